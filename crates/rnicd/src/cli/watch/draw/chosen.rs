//! The chosen queue pair: its window of PSNs, its timer, its WQEs, and its ladder.

use super::super::model::Model;
use super::super::trail::{Progress, Wqe};
use super::super::view::View;
use super::super::words::{Signs, hex, short};
use super::list::{acked, completions, in_flight, receive_queue, send_queue, timer};
use super::{AGAIN, BAD, BOLD, FAINT, GOOD, OWN, ladder, part};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use rnic_host::report::Qp;
use roce_wire::Psn;

/// Draws it.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, view: &View, signs: Signs) {
    let Some(qpn) = view.qpn(model) else {
        let inner = part(frame, area, "No queue pair".to_owned(), signs);
        frame.render_widget(Paragraph::new("Start a program with `rnic run`."), inner);
        return;
    };
    let is_wide = area.width >= 120;
    let [facts, rest] = Layout::vertical([Constraint::Length(5), Constraint::Fill(1)]).areas(area);
    let columns = [Constraint::Length(70), Constraint::Fill(1)];
    let rows = [Constraint::Fill(2), Constraint::Fill(3)];
    let layout = if is_wide { Layout::horizontal(columns) } else { Layout::vertical(rows) };
    let [wqes, rungs] = layout.areas(rest);
    window(frame, facts, model, qpn, signs);
    let empty = Default::default();
    let trail = model.trail(qpn).unwrap_or(&empty);
    let inner = part(frame, wqes, "Send WQEs, newest first".to_owned(), signs);
    let head = Line::styled("INDEX      OPERATION     BYTES PSNS", BOLD);
    let room = usize::from(inner.height).saturating_sub(1);
    let lines = trail.wqes.iter().rev().take(room).map(wqe);
    let lines = std::iter::once(head).chain(lines).collect::<Vec<_>>();
    frame.render_widget(Paragraph::new(lines), inner);
    let peer = model.qp(qpn).and_then(|made| made.object.dest_qpn);
    ladder::draw(frame, rungs, (qpn, peer), (&trail.rungs, view.scrolled), signs);
}

fn window(frame: &mut Frame<'_>, area: Rect, model: &Model, qpn: u32, signs: Signs) {
    let Some(made) = model.qp(qpn) else {
        let inner = part(frame, area, format!("Queue pair {}", hex(qpn)), signs);
        frame.render_widget(Paragraph::new(Line::styled("It is gone.", BAD)), inner);
        return;
    };
    let qp = &made.object;
    let mut title = format!("Queue pair {} {} {}", hex(qpn), qp.transport, qp.state);
    if let (Some(peer), Some(dgid)) = (qp.dest_qpn, &qp.dgid) {
        title += &format!(", peer {} at {dgid}", hex(peer));
    }
    if let Some(command) = &made.command {
        title += &format!(", {command}");
    }
    let inner = part(frame, area, title, signs);
    let again = ahead(qp.sent_psn, qp.next_psn);
    let mut psns = vec![
        Span::raw(format!("acked {}  ", hex(acked(qp)))),
        Span::styled(format!("in flight {}  ", in_flight(qp)), OWN),
        Span::raw(format!("next {}  ", hex(qp.next_psn))),
    ];
    if again > 0 {
        psns.push(Span::styled(format!("again {again}  "), AGAIN));
    }
    psns.push(Span::raw(format!("expected {}", hex(qp.expected_psn))));
    let rates = model.qp_rates(qpn);
    let queues = format!(
        "SQ {}  RQ {}  CQ {}  sent {}B/s  received {}B/s",
        send_queue(qp),
        receive_queue(qp),
        completions(model, qp),
        short(rates.tx_bytes),
        short(rates.rx_bytes),
    );
    let lines = vec![Line::from(psns), bar(qp, inner.width, signs), Line::raw(queues), waits(qp)];
    frame.render_widget(Paragraph::new(lines), inner);
}

/// What it waits for, and what went wrong so far.
fn waits(qp: &Qp) -> Line<'static> {
    let timer = qp.timer.as_ref().map_or("timer off".to_owned(), |left| {
        let words = match &*left.reason {
            "ack_timeout" => "until sent again",
            "rnr_wait" => "the peer has no receive WQE",
            _ => "it may be on its way",
        };
        format!("timer {}: {words}", timer(left))
    });
    let counters = &qp.counters;
    let troubles = format!(
        "  again {}  timeouts {}  RNR {}",
        short(counters.retransmitted_packets),
        short(counters.timeouts),
        short(counters.rnr_naks_received),
    );
    let is_well = counters.retransmitted_packets + counters.timeouts == 0;
    Line::from(vec![
        Span::raw(timer),
        Span::raw(format!("  retries left {}/{}", qp.retries_left, qp.retry_cnt)),
        Span::styled(troubles, if is_well { Style::new() } else { AGAIN }),
    ])
}

/// PSNs from `from` to `to`; none where that is behind.
fn ahead(to: u32, from: u32) -> u32 {
    u32::try_from(Psn::new(to).distance_from(Psn::new(from))).unwrap_or(0)
}

/// The PSNs from the oldest without an acknowledgement to the last that a fetched WQE has.
fn bar(qp: &Qp, width: u16, signs: Signs) -> Line<'static> {
    let all = ahead(qp.free_psn, qp.una);
    let sent = ahead(qp.next_psn, qp.una).min(all);
    let again = ahead(qp.sent_psn, qp.next_psn).min(all - sent);
    let room = u32::from(width.saturating_sub(2));
    let columns = |psns: u32| {
        let share = u64::from(psns) * u64::from(room) / u64::from(all.max(1));
        usize::try_from(share).unwrap_or(0)
    };
    let (a, b, c) = (columns(sent), columns(sent + again), columns(all));
    let [in_flight, repeated, waiting, free] = signs.fills;
    let room = usize::try_from(room).unwrap_or(0);
    Line::from(vec![
        Span::styled("[", FAINT),
        Span::styled(in_flight.repeat(a), OWN),
        Span::styled(repeated.repeat(b - a), AGAIN),
        Span::raw(waiting.repeat(c - b)),
        Span::styled(free.repeat(room - c), FAINT),
        Span::styled("]", FAINT),
    ])
}

fn wqe(wqe: &Wqe) -> Line<'static> {
    // One that has no packets has the PSN before its first as its last.
    let psns = match wqe.last {
        last if ahead(wqe.first, last) == 1 => "none".to_owned(),
        last if last == wqe.first => hex(last),
        last => format!("{}-{}", hex(wqe.first), hex(last)),
    };
    let (text, style) = match &wqe.progress {
        Progress::Fetched => ("waits".to_owned(), FAINT),
        Progress::Sent => ("in flight".to_owned(), OWN),
        Progress::Acked => ("acked".to_owned(), GOOD),
        Progress::Completed(status) if status == "success" => ("completed".to_owned(), GOOD),
        Progress::Completed(status) => (status.clone(), BAD),
    };
    let mut spans = vec![
        Span::raw(format!("{:<10} {:<11} {:>7} ", wqe.index, wqe.operation, wqe.length)),
        Span::raw(format!("{psns:<18}")),
        Span::styled(text, style),
    ];
    if wqe.again > 0 {
        spans.push(Span::styled(format!(" again {}", wqe.again), AGAIN));
    }
    Line::from(spans)
}
