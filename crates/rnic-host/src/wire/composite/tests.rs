use super::*;
use crate::wire::tests::{loopback_path, train_to_itself};
use rnic_core::ports::{Range, RxIpId};

/// A link on which more arrives than is taken.
struct Busy;

impl Link for Busy {
    fn caps(&self) -> WireCaps {
        LOOPBACK_CAPS
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        let flow = loopback_path().flow;
        let range = Range { offset: 0, len: 16 };
        let ip_id = RxIpId::Likely(0);
        let train =
            RxTrain { flow, arena: OUTSIDE, range, segment_len: 16, ip_id, is_internal: false };
        trains.resize(trains.capacity(), train);
    }

    fn rx(&self, _: ArenaId) -> &[u8] {
        &[0; 16]
    }

    fn release(&mut self) {}

    fn reserve(&mut self, _: &TxTrain) -> Result<TxSlot, TxRefusal> {
        Err(TxRefusal::Full)
    }

    fn cancel(&mut self, _: &TxSlot) {}

    fn tx(&mut self) -> &mut [u8] {
        &mut []
    }

    fn submit(&mut self) {}

    fn has_backlog(&self) -> bool {
        false
    }

    fn follow(&mut self, _: &Change) -> bool {
        true
    }

    fn join(&mut self, _: IpAddr, _: Membership) {}

    fn leave(&mut self, _: IpAddr) {}

    fn counters(&mut self) -> LinkCounters {
        vec![("link_rx_no_buffer", 3), ("link_rx_frames", 4)]
    }
}

fn with_both() -> Composite {
    let (outside, local) = (Some(Box::new(Busy) as Box<dyn Link>), Some(Box::new(Busy) as _));
    Composite::new(Links { outside, local, ..Links::default() })
}

#[test]
fn each_way_is_heard_beside_the_others() {
    let mut wire = with_both();
    let train = train_to_itself(16);
    let mut heard = [0; 3];
    let mut trains = Vec::with_capacity(64);
    for _ in 0..2 * LOOK_EVERY {
        wire.reserve(&train).unwrap();
        wire.submit();
        trains.clear();
        wire.receive(&mut trains);
        for (heard, arena) in heard.iter_mut().zip([OUTSIDE, LOCAL, LOOPBACK]) {
            *heard += trains.iter().filter(|train| train.arena == arena).count();
        }
        wire.release();
    }
    assert!(heard.iter().all(|heard| *heard > 0), "{heard:?}");
}

#[test]
fn the_local_link_is_heard_after_a_sleep() {
    let mut wire = with_both();
    let mut trains = Vec::with_capacity(64);
    for _ in 0..3 {
        wire.awake();
        trains.clear();
        wire.receive(&mut trains);
        assert!(trains.iter().any(|train| train.arena == LOCAL));
        wire.release();
    }
}

#[test]
fn both_links_are_counted() {
    let counters = with_both().counters();
    let of_links: Vec<_> = counters.iter().filter(|(_, count)| *count > 0).copied().collect();
    let expected = [("link_rx_no_buffer", 3), ("link_rx_frames", 4), ("local_rx_no_buffer", 3)];
    assert_eq!(of_links, expected);
}

#[test]
fn each_datagram_that_has_no_way_is_counted() {
    let mut wire = Composite::new(Links::default());
    let train = TxTrain { hop: HopId(4711), segments: 5, ..train_to_itself(16) };
    assert_eq!(wire.reserve(&train).unwrap().arena, DISCARD);
    assert!(wire.counters().contains(&("link_tx_no_route", 5)));
}
