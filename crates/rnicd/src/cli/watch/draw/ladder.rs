//! The ladder of a queue pair and its peer: the newest packet is below.

use super::super::trail::{Rung, Way};
use super::super::words::{Signs, hex, short};
use super::{AGAIN, BAD, FAINT, OWN, part};
use crate::cli::watching::time_of_day;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use std::collections::VecDeque;

/// Draws as many rungs as there is room for, above those that are scrolled away.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    (qpn, peer): (u32, Option<u32>),
    (rungs, scrolled): (&VecDeque<Rung>, usize),
    signs: Signs,
) {
    let peer = peer.map_or("its peers".to_owned(), hex);
    let title = format!("Ladder: {} on the left, {peer} on the right", hex(qpn));
    let inner = part(frame, area, title, signs);
    let room = usize::from(inner.height);
    let end = rungs.len().saturating_sub(scrolled).max(room.min(rungs.len()));
    let shown = rungs.range(end.saturating_sub(room)..end);
    let lines: Vec<_> = shown.map(|rung| line(rung, inner.width.into(), signs)).collect();
    if lines.is_empty() {
        frame.render_widget(Paragraph::new(Line::styled("no packets yet", FAINT)), inner);
    }
    frame.render_widget(Paragraph::new(lines), inner);
}

fn line(rung: &Rung, width: usize, signs: Signs) -> Line<'static> {
    let time = time_of_day(rung.at_ns);
    // Where there is little room, hours and minutes are left out.
    let time = if width < 100 { time[6..].to_owned() } else { time };
    let room = width.saturating_sub(time.len() + 3);
    let style = match &rung.trouble {
        Some(trouble) if trouble.starts_with("again") => AGAIN,
        Some(_) => BAD,
        None if rung.way == Way::Out => OWN,
        None => Style::new(),
    };
    let text = label(rung, room.saturating_sub(6), signs);
    let rest = room.saturating_sub(text.chars().count() + 2);
    let middle = match rung.way {
        Way::Here => format!("{} {text}{}", signs.here, " ".repeat(rest)),
        Way::Out => {
            let (before, behind) = (rest / 2, rest - rest / 2);
            let tip = tip(rung, behind, signs.right, signs);
            format!("{} {text} {tip}", signs.line.repeat(before))
        }
        Way::In => {
            let (before, behind) = (rest / 2, rest - rest / 2);
            let tip: String = tip(rung, before, signs.left, signs).chars().rev().collect();
            format!("{tip} {text} {}", signs.line.repeat(behind))
        }
    };
    Line::from(vec![
        Span::styled(format!("{time} "), FAINT),
        Span::styled(signs.lane, FAINT),
        Span::styled(middle, style),
        Span::styled(signs.lane, FAINT),
    ])
}

/// The half of an arrow that has its tip, or ends on the way.
fn tip(rung: &Rung, columns: usize, tip: &str, signs: Signs) -> String {
    match columns.checked_sub(1) {
        None => String::new(),
        Some(line) if rung.is_stopped => {
            let line = line.min(columns / 2);
            let gap = " ".repeat(columns - line - 1);
            format!("{}{}{gap}", signs.line.repeat(line), signs.stop)
        }
        Some(line) => format!("{}{tip}", signs.line.repeat(line)),
    }
}

/// What it says, in so many columns: without the bytes, and cut off, where it must be.
fn label(rung: &Rung, most: usize, signs: Signs) -> String {
    let mut text = rung.what.clone();
    if rung.last_what != rung.what {
        // RC_SEND_FIRST..LAST
        let name = rung.last_what.rsplit('_').next().unwrap_or_default();
        text += &format!("..{name}");
    }
    if let Some(first) = rung.first {
        text += &format!(" {}", hex(first));
    }
    if let Some(last) = rung.last().filter(|_| rung.count > 1) {
        text += &format!("-{} {}{}", hex(last), signs.times, rung.count);
    }
    let trouble = rung.trouble.as_ref().map_or(String::new(), |what| format!(" ({what})"));
    let bytes = if rung.bytes > 0 { format!(" {}B", short(rung.bytes)) } else { String::new() };
    if text.chars().count() + bytes.len() + trouble.chars().count() <= most {
        text += &bytes;
    }
    text += &trouble;
    text.chars().take(most).collect()
}
