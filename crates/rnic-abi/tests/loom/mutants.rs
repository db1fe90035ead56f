//! Each ordering that the arguments rest on is taken away once, and a model must notice.

use crate::{cq, doorbell, hand_over, work_queue};
use rnic_abi::mutant::Mutant;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn must_be_caught(mutant: Mutant, model: fn()) {
    let outcome = mutant.during(|| catch_unwind(AssertUnwindSafe(model)));
    assert!(outcome.is_err(), "{mutant:?} goes unnoticed");
}

#[test]
fn bits_set_top_down() {
    must_be_caught(Mutant::BitsTopDown, doorbell::two_ringing_threads_lose_no_doorbell);
}

#[test]
fn bits_that_release_nothing() {
    must_be_caught(Mutant::RelaxedBits, doorbell::a_visit_sees_the_ring_that_caused_it);
}

#[test]
fn a_skip_whenever_the_word_is_not_zero() {
    must_be_caught(Mutant::SkipOnOthersBit, doorbell::a_complete_ring_is_seen_at_once);
}

#[test]
fn a_ring_without_fence() {
    must_be_caught(Mutant::NoFenceRing, doorbell::an_engine_that_sleeps_is_woken);
}

#[test]
fn a_sleep_without_fence() {
    must_be_caught(Mutant::NoFenceSleep, doorbell::an_engine_that_sleeps_is_woken);
}

#[test]
fn a_record_that_releases_nothing() {
    let model = work_queue::wqes_arrive_whole_and_in_order_across_the_wrap;
    must_be_caught(Mutant::RelaxedRecord, model);
}

#[test]
fn a_sequence_number_that_releases_nothing() {
    let model = cq::completions_arrive_whole_and_in_order_across_the_wrap;
    must_be_caught(Mutant::RelaxedSequenceStore, model);
}

#[test]
fn a_sequence_number_that_acquires_nothing() {
    let model = cq::completions_arrive_whole_and_in_order_across_the_wrap;
    must_be_caught(Mutant::RelaxedSequenceLoad, model);
}

#[test]
fn a_completion_queue_that_is_never_full() {
    must_be_caught(Mutant::CqNeverFull, cq::an_overflow_is_reported_and_overwrites_nothing);
}

#[test]
fn an_arming_without_fence() {
    must_be_caught(Mutant::NoFenceArm, cq::no_event_is_missed_when_armed_for_any);
}

#[test]
fn an_arm_check_without_fence() {
    must_be_caught(Mutant::NoFenceArmCheck, cq::no_event_is_missed_when_armed_for_solicited);
}

#[test]
fn a_poller_that_looks_without_fence() {
    must_be_caught(Mutant::NoFencePrepare, cq::a_poller_that_sleeps_is_woken);
}

#[test]
fn a_look_for_sleepers_without_fence() {
    must_be_caught(Mutant::NoFenceArmCheck, cq::a_poller_that_sleeps_is_woken);
}

#[test]
fn a_flush_mark_without_fence() {
    must_be_caught(Mutant::NoFenceMark, work_queue::a_receive_posted_while_the_queue_fails_is_seen);
}

#[test]
fn a_mark_check_without_fence() {
    let model = work_queue::a_receive_posted_while_the_queue_fails_is_seen;
    must_be_caught(Mutant::NoFenceMarkCheck, model);
}

#[test]
fn an_index_that_releases_nothing() {
    must_be_caught(Mutant::RelaxedHandOver, hand_over::entries_arrive_whole_and_in_order);
}

#[test]
fn a_hand_over_without_fence() {
    must_be_caught(Mutant::NoFencePublish, hand_over::a_consumer_that_sleeps_is_woken);
}

#[test]
fn a_consumer_that_looks_without_fence() {
    must_be_caught(Mutant::NoFenceHandOverSleep, hand_over::a_consumer_that_sleeps_is_woken);
}
