//! The view as an SVG picture.

use super::Source;
use super::draw::draw;
use super::model::Model;
use super::view::View;
use super::words::Signs;
use anyhow::{Context, Result, ensure};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Watches for a time, and draws once.
pub(super) fn take(
    source: &mut Source<Model>,
    view: &View,
    size: (u16, u16),
    after: Duration,
    file: &Path,
) -> Result<()> {
    let until = Instant::now() + after;
    while Instant::now() < until {
        ensure!(source.take(STEP)?, "interrupted before there was a picture");
    }
    let Ok(mut terminal) = Terminal::new(TestBackend::new(size.0, size.1));
    let Ok(_) = terminal.draw(|frame| draw(frame, &source.to, view, Signs::UNICODE));
    let text = svg(terminal.backend().buffer());
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// `80x24`.
pub(super) fn size(text: &str) -> Result<(u16, u16), String> {
    let number = |text: &str| text.parse().ok().filter(|number| (1..=500).contains(number));
    let size = text.split_once('x').and_then(|(w, h)| Some((number(w)?, number(h)?)));
    size.ok_or_else(|| format!("{text:?} is no size: give columns and rows, as in 80x24"))
}

/// A picture of a screen: cells of one look that follow each other are one text.
fn svg(buffer: &Buffer) -> String {
    let (columns, rows) = (usize::from(buffer.area.width), usize::from(buffer.area.height));
    let (width, height) = (columns * WIDTH + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"DejaVu Sans Mono,Menlo,Consolas,monospace\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{PAPER}\"/>\n"
    );
    for (row, cells) in buffer.content().chunks(columns).enumerate() {
        let mut at = 0;
        while let Some(first) = cells.get(at) {
            let look = look(first);
            // A symbol may be several characters: a letter and its accents.
            let count = cells[at..].iter().take_while(|cell| self::look(cell) == look).count();
            let symbols: String = cells[at..at + count].iter().map(Cell::symbol).collect();
            put(&mut text, (at, row, count), &symbols, look);
            at += count;
        }
    }
    text + "</svg>\n"
}

/// Colours of letter and background, and whether it is bold.
type Look = (&'static str, Option<&'static str>, bool);

fn look(cell: &Cell) -> Look {
    let letter = match cell.fg {
        Color::DarkGray => "#7d8896",
        Color::Green => "#5fd38a",
        Color::Red => "#ff8a80",
        Color::Yellow => "#ffd479",
        Color::Cyan => "#6cc7ff",
        _ => "#dfe5ec",
    };
    let is_bold = cell.modifier.contains(Modifier::BOLD);
    if cell.modifier.contains(Modifier::REVERSED) {
        (PAPER, Some(letter), is_bold)
    } else {
        (letter, None, is_bold)
    }
}

fn put(svg: &mut String, (column, row, count): (usize, usize, usize), symbols: &str, look: Look) {
    let (letter, background, is_bold) = look;
    let (x, y) = (MARGIN + column * WIDTH, MARGIN + row * HEIGHT);
    let width = count * WIDTH;
    // Writing to a string does not fail.
    if let Some(colour) = background {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{HEIGHT}\" fill=\"{colour}\"/>"
        );
    }
    let words = symbols.trim_end();
    let shown = words.trim_start();
    if shown.is_empty() {
        return;
    }
    let length = |text: &str| text.chars().count();
    let (before, behind) = (length(words) - length(shown), length(symbols) - length(words));
    let x = x + before * WIDTH;
    let escaped = shown.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{}\" textLength=\"{}\" fill=\"{letter}\"{} xml:space=\"preserve\">\
         {escaped}</text>",
        y + HEIGHT - 4,
        count.saturating_sub(before + behind) * WIDTH,
        if is_bold { " font-weight=\"bold\"" } else { "" },
    );
}

/// Of a letter, and around all.
const WIDTH: usize = 8;
const HEIGHT: usize = 17;
const MARGIN: usize = 10;
const PAPER: &str = "#12161c";
/// How long one look takes.
const STEP: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::super::script::model;
    use super::*;

    #[test]
    fn a_picture_has_the_words_of_the_screen_and_no_markup_of_others() {
        let mut model = model();
        let mut lists = super::super::script::lists(50_000_000_000_000, 1);
        lists.qps[0].command = Some("<script>&".into());
        model.update(lists);
        let mut terminal = Terminal::new(TestBackend::new(200, 50)).unwrap();
        let view = View::default();
        terminal.draw(|frame| draw(frame, &model, &view, Signs::UNICODE)).unwrap();
        let text = svg(terminal.backend().buffer());
        assert!(text.contains("&lt;script&gt;&amp;") && !text.contains("<script"));
        assert!(text.contains("0x000011") && text.len() < 100_000, "{}", text.len());
    }

    #[test]
    fn what_follows_letters_with_accents_is_drawn() {
        let bold = ratatui::style::Style::new().add_modifier(Modifier::BOLD);
        let mut buffer = Buffer::empty(ratatui::layout::Rect::new(0, 0, 4, 1));
        buffer.set_string(0, 0, "e\u{301}e\u{301}", ratatui::style::Style::new());
        buffer.set_string(2, 0, "XY", bold);
        let text = svg(&buffer);
        assert!(text.contains(">XY<") && text.contains("textLength=\"16\""), "{text}");
    }

    #[test]
    fn sizes_have_two_numbers() {
        assert_eq!(size("200x50"), Ok((200, 50)));
        assert!(size("0x5").is_err() && size("80").is_err() && size("80x99999").is_err());
    }
}
