//! The list of queue pairs.

use super::super::model::{Model, Rates};
use super::super::view::View;
use super::super::words::{Signs, hex, short, span};
use super::{AGAIN, BAD, BOLD, part};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use rnic_host::report::{Made, Qp, Timer};
use roce_wire::Psn;

/// A queue pair and what belongs to it.
struct Row<'a> {
    made: &'a Made<Qp>,
    model: &'a Model,
    rates: Rates,
}

/// A column: its title, its width, the width of the screen from which on it is there, and what it
/// shows.
type Column = (&'static str, usize, u16, fn(&Row<'_>) -> String);

const COLUMNS: [Column; 19] = [
    ("QPN", 8, 0, |row| hex(row.made.object.qpn)),
    ("TYPE", 4, 0, |row| row.made.object.transport.replace("XRC_", "X")),
    ("STATE", 5, 0, |row| row.made.object.state.clone()),
    ("PEER", 8, 100, |row| row.made.object.dest_qpn.map_or("-".into(), hex)),
    ("ADDRESS", 15, 160, |row| row.made.object.dgid.clone().unwrap_or("-".into())),
    ("SQ", 8, 0, |row| send_queue(&row.made.object)),
    ("RQ", 8, 0, |row| receive_queue(&row.made.object)),
    ("CQ", 8, 0, |row| completions(row.model, &row.made.object)),
    ("ACKED", 8, 120, |row| hex(acked(&row.made.object))),
    ("FLIGHT", 6, 0, |row| in_flight(&row.made.object).to_string()),
    ("NEXT", 8, 120, |row| hex(row.made.object.next_psn)),
    ("EXPECTED", 8, 140, |row| hex(row.made.object.expected_psn)),
    ("TIMER", 12, 0, |row| row.made.object.timer.as_ref().map_or("-".into(), timer)),
    ("SENT", 6, 0, |row| short(row.rates.tx_bytes)),
    ("RCVD", 6, 110, |row| short(row.rates.rx_bytes)),
    ("AGAIN", 5, 0, |row| short(row.made.object.counters.retransmitted_packets)),
    ("TIMEOUTS", 8, 140, |row| short(row.made.object.counters.timeouts)),
    ("PID", 7, 180, |row| row.made.pid.map_or("-".into(), |pid| pid.to_string())),
    ("COMMAND", 15, 130, |row| row.made.command.clone().unwrap_or("-".into())),
];

/// Draws it; the chosen one is always in view.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, view: &View, signs: Signs) {
    let inner = part(frame, area, "Queue pairs".to_owned(), signs);
    let columns: Vec<_> = COLUMNS.iter().filter(|(_, _, least, _)| inner.width >= *least).collect();
    let titles = columns.iter().map(|(title, width, ..)| padded(title, *width));
    let mut lines = vec![Line::styled(format!(" {}", titles.collect::<String>()), BOLD)];
    let room = usize::from(inner.height).saturating_sub(1);
    let place = view.place(model);
    let first = (place + 1).saturating_sub(room);
    for (at, made) in model.qps().iter().enumerate().skip(first).take(room) {
        let row = Row { made, model, rates: model.qp_rates(made.object.qpn) };
        let is_chosen = at == place;
        let mut spans = vec![Span::raw(if is_chosen { ">" } else { " " })];
        for (title, width, _, show) in &columns {
            spans.push(Span::styled(padded(&show(&row), *width), style(title, &row)));
        }
        let line = Line::from(spans);
        lines.push(if is_chosen { line.patch_style(Modifier::REVERSED) } else { line });
    }
    if model.qps().is_empty() {
        lines.push(Line::raw(" no program has a queue pair"));
    }
    frame.render_widget(Paragraph::new(lines), inner);
}

fn style(title: &str, row: &Row<'_>) -> Style {
    let qp = &row.made.object;
    match title {
        "STATE" if matches!(&*qp.state, "ERR" | "SQE") => BAD,
        "AGAIN" if qp.counters.retransmitted_packets > 0 => AGAIN,
        "TIMEOUTS" if qp.counters.timeouts > 0 => AGAIN,
        "TIMER" if qp.timer.as_ref().is_some_and(|timer| timer.reason != "ack_timeout") => AGAIN,
        _ => Style::new(),
    }
}

/// In so many columns, and one behind.
fn padded(text: &str, width: usize) -> String {
    let text: String = text.chars().take(width).collect();
    format!("{text:width$} ")
}

/// WQEs in use and those there may be.
pub(super) fn send_queue(qp: &Qp) -> String {
    format!("{}/{}", qp.outstanding.saturating_add(qp.posted), qp.max_send_wr)
}

pub(super) fn receive_queue(qp: &Qp) -> String {
    let text = |queue: &rnic_host::report::ReceiveQueue| {
        format!("{}/{}{}", queue.posted, queue.max_wr, if queue.srq.is_some() { "s" } else { "" })
    };
    qp.receive_queue.as_ref().map_or("-".into(), text)
}

/// Of the fuller one of its completion queues.
pub(super) fn completions(model: &Model, qp: &Qp) -> String {
    let cqs = [qp.send_cq, qp.recv_cq].into_iter().flatten();
    let found = cqs.filter_map(|cq| model.cq(cq, qp.client));
    let used = |cq: &&rnic_host::report::Cq| cq.written.saturating_sub(cq.polled);
    match found.max_by_key(used) {
        Some(cq) if cq.broken => "broken".into(),
        Some(cq) => format!("{}/{}", used(&cq), cq.capacity),
        None => "-".into(),
    }
}

/// The last PSN that is acknowledged.
pub(super) fn acked(qp: &Qp) -> u32 {
    Psn::new(qp.una).wrapping_sub(1).value()
}

/// PSNs that are sent and not acknowledged.
pub(super) fn in_flight(qp: &Qp) -> u32 {
    Psn::new(qp.next_psn).wrapping_sub(qp.una).value()
}

/// The reason in a word, and the time left.
pub(super) fn timer(timer: &Timer) -> String {
    let reason = timer.reason.split('_').next().unwrap_or_default();
    format!("{reason} {}", span(timer.left_us))
}
