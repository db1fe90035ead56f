//! What is shown of a queue pair: where it is, and what it waits for.

use crate::{dialogue, ok, send, statuses};
use rnic_core::{QpView, TimerReason};
use rnic_sim::dialogue::{Dialogue, Say};
use roce_wire::headers::rnr_timer_ns;

fn view(d: &Dialogue) -> QpView {
    let host = &d.world.hosts()[0];
    host.engine.qp(host.qp_handle(d.nic.qp)).unwrap()
}

/// Oldest PSN without an ACK, next one, one past the highest sent, first of the next WQE.
fn psns(d: &Dialogue, view: &QpView) -> [u32; 4] {
    let (oldest, next) = view.in_flight;
    [oldest, next, view.sent_end, view.free_psn].map(|psn| psn.wrapping_sub(d.our_psn(0)))
}

#[test]
fn the_window_and_the_timer_are_shown_as_they_are() {
    let mut d = dialogue();
    let idle = view(&d);
    assert_eq!((psns(&d, &idle), idle.timer), ([0; 4], None));
    d.post_all(&[send(&d, 1, 600), send(&d, 2, 10)]);
    d.hear_burst();
    let sent = view(&d);
    assert_eq!((psns(&d, &sent), sent.outstanding, sent.posted), ([0, 4, 4, 4], 2, 0));
    let (reason, until) = sent.timer.unwrap();
    assert!(reason == TimerReason::AckTimeout && until > d.world.now());
    let code = 18;
    d.say(&Say::rnr_nak(code, d.our_psn(3), 1));
    assert_eq!(statuses(&d.sent()), ok([1]));
    let waits = view(&d);
    assert_eq!((psns(&d, &waits), waits.outstanding), ([3, 3, 4, 4], 1));
    let (reason, until) = waits.timer.unwrap();
    assert_eq!(reason, TimerReason::RnrWait);
    assert!(until.since(d.world.now()).as_nanos() <= rnr_timer_ns(code).into());
    assert_eq!(waits.retries_left, (7, 7), "an RNR retry of seven is never taken");
}

#[test]
fn posted_receives_are_shown_although_the_engine_has_not_looked() {
    let mut d = dialogue();
    let before = view(&d).receives.unwrap();
    for n in 0..3 {
        let sge = d.nic.mr.sge(0, 64);
        d.recv(n, &[sge]);
    }
    let receives = view(&d).receives.unwrap();
    assert_eq!((receives.posted, receives.srq), (before.posted + 3, None));
    assert!(receives.posted <= receives.capacity);
}
