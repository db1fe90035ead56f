//! Draws a model. Nothing here knows a terminal.

mod chosen;
mod ladder;
mod list;

use super::model::{Lists, Model};
use super::view::View;
use super::words::{Signs, hex, short};
use crate::cli::watching::time_of_day;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph};
use rnic_host::observe::Record;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().fg(Color::DarkGray);
const GOOD: Style = Style::new().fg(Color::Green);
const BAD: Style = Style::new().fg(Color::Red);
const AGAIN: Style = Style::new().fg(Color::Yellow);
const OWN: Style = Style::new().fg(Color::Cyan);

/// Draws what the view shows.
pub(super) fn draw(frame: &mut Frame<'_>, now: &Model, view: &View, signs: Signs) {
    let model = view.of(now);
    let area = frame.area();
    let rows = [Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(rows).areas(area);
    header(frame, head, now, view);
    let fits = area.width >= 120 && area.height >= 34;
    if model.lists().is_none() {
        frame.render_widget(Paragraph::new("waiting for the daemon ..."), body);
    } else if fits {
        let list = u16::try_from(model.qps().len()).unwrap_or(u16::MAX).clamp(2, 10) + 2;
        let rows = [Constraint::Length(list), Constraint::Fill(1), Constraint::Length(9)];
        let [list, middle, below] = Layout::vertical(rows).areas(body);
        list::draw(frame, list, model, view, signs);
        chosen::draw(frame, middle, model, view, signs);
        events(frame, below, model, view, signs);
    } else if view.is_open {
        chosen::draw(frame, body, model, view, signs);
    } else {
        let rows = [Constraint::Fill(3), Constraint::Fill(2)];
        let [list, below] = Layout::vertical(rows).areas(body);
        list::draw(frame, list, model, view, signs);
        events(frame, below, model, view, signs);
    }
    footer(frame, foot, view, fits);
    if view.helps {
        help(frame, area, signs);
    }
}

/// A part of the screen with a title above.
fn part(frame: &mut Frame<'_>, area: Rect, title: String, signs: Signs) -> Rect {
    let title = Line::styled(format!(" {title} "), BOLD.fg(Color::Reset));
    let block = Block::new().borders(Borders::TOP).border_set(signs.border).border_style(FAINT);
    let block = block.title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    inner
}

fn header(frame: &mut Frame<'_>, area: Rect, now: &Model, view: &View) {
    let model = view.of(now);
    let Some(lists) = model.lists() else { return };
    let rates = model.port_rates();
    let lost = Span::styled(
        format!("{} not shown", short(now.lost)),
        if now.lost > 0 { BAD } else { Style::new() },
    );
    let mut first = vec![
        Span::styled(about(lists, area.width), BOLD),
        Span::raw(format!("  events {}/s, ", short(model.event_rate()))),
        lost,
    ];
    if view.held.is_some() {
        first.push(Span::styled("  HELD", AGAIN.add_modifier(Modifier::BOLD)));
    }
    let count = |name: &str| lists.counters.get(name).copied().unwrap_or(0);
    let faults = lists.counters.iter().filter(|(name, _)| name.starts_with("fault_"));
    let faults: u64 = faults.map(|(_, count)| *count).sum();
    let again = count("retransmitted_packets");
    let style = |number: u64, style| if number > 0 { style } else { Style::new() };
    let second = vec![
        Span::raw(format!(
            "sent {}B/s {} p/s  received {}B/s {} p/s  ",
            short(rates.tx_bytes),
            short(rates.tx_packets),
            short(rates.rx_bytes),
            short(rates.rx_packets),
        )),
        Span::styled(format!("again {}", short(again)), style(again, AGAIN)),
        Span::styled(format!("  faults {}", short(faults)), style(faults, BAD)),
    ];
    frame.render_widget(Paragraph::new(vec![Line::from(first), Line::from(second)]), area);
}

fn about(lists: &Lists, width: u16) -> String {
    let status = &lists.status;
    let totals = &status.totals;
    let mut text = status.device.clone();
    if let Some(netdev) = &status.netdev {
        text += &format!(" on {netdev}");
    }
    if width >= 120 {
        text += &format!(", rnicd {} process {}, {}", status.version, status.pid, status.io);
    }
    text + &format!(": {} QPs, {} CQs, {} MRs", totals.qps, totals.cqs, totals.mrs)
}

fn events(frame: &mut Frame<'_>, area: Rect, model: &Model, view: &View, signs: Signs) {
    let title = if view.all_events { "All events" } else { "Events that tell of trouble" };
    let inner = part(frame, area, title.to_owned(), signs);
    let lines = model.events(view.all_events).take(inner.height.into()).map(|(about, record)| {
        let style = match () {
            () if record.is_error => BAD,
            () if !view.all_events => AGAIN,
            () => Style::new(),
        };
        let qpn = about.map_or("        ".to_owned(), hex);
        Line::from(vec![
            Span::styled(time_of_day(record.time_ns), FAINT),
            Span::raw(format!(" {qpn} ")),
            Span::styled(record.event.clone(), style),
            Span::raw(described(record)),
        ])
    });
    let lines: Vec<_> = lines.collect();
    if lines.is_empty() {
        frame.render_widget(Paragraph::new(Line::styled("none yet", FAINT)), inner);
    }
    frame.render_widget(Paragraph::new(lines), inner);
}

/// The fields of an event, shortest first in importance: its names, then its PSN.
fn described(record: &Record) -> String {
    let mut text = String::new();
    for name in ["reason", "cause", "kind", "status", "opcode", "operation", "from", "to"] {
        if let Some(value) = record.name(name) {
            text += &format!(" {value}");
        }
    }
    if let Some(psn) = record.number("psn") {
        text += &format!(" psn {}", hex(psn));
    }
    if let Some(message) = record.number("message") {
        text += &format!(" message {message}");
    }
    text
}

fn footer(frame: &mut Frame<'_>, area: Rect, view: &View, fits: bool) {
    let keys: &[(&str, &str)] = match (fits, view.is_open) {
        (true, _) => &[("up/down", "choose")],
        (false, true) => &[("up/down", "choose"), ("Esc", "back")],
        (false, false) => &[("up/down", "choose"), ("Enter", "open")],
    };
    let common = [("q", "quit"), ("Space", "hold"), ("e", "all events"), ("?", "help")];
    let spans = keys.iter().chain(&common).flat_map(|(key, what)| {
        [Span::styled((*key).to_owned(), BOLD), Span::styled(format!(" {what}  "), FAINT)]
    });
    frame.render_widget(Line::from(spans.collect::<Vec<_>>()), area);
}

fn help(frame: &mut Frame<'_>, area: Rect, signs: Signs) {
    let [in_flight, again, waiting, free] = signs.fills;
    let text = format!(
        "SQ, RQ, CQ   entries in use of those there are\n\
         FLIGHT       packets that are sent and not acknowledged\n\
         TIMER        what is waited for, and how long still:\n\
         \x20            ack    without an ACK until then it sends again\n\
         \x20            rnr    the peer has no receive WQE\n\
         \x20            pause  what it sent may be on its way still\n\
         SENT, RCVD   bytes per second\n\
         AGAIN        packets that were sent again\n\
         \n\
         {in_flight} in flight  {again} to be sent again  {waiting} not sent yet  {free} free\n\
         \n\
         arrows, j, k choose; Enter opens, Esc closes; PgUp, PgDn scroll\n\
         e all events or those that tell of trouble; Space holds the view\n\
         q quits. What comes faster than it is shown is counted above."
    );
    let height = u16::try_from(text.lines().count()).unwrap_or(0) + 2;
    let (width, height) = (70.min(area.width), height.min(area.height));
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let block = Block::new().borders(Borders::ALL).border_set(signs.border).title(" Help ");
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(text).block(block), place);
}

#[cfg(test)]
mod tests;
