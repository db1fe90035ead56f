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
        Vec::new()
    }
}

#[test]
fn each_way_is_heard_beside_the_others() {
    let (outside, local) = (Some(Box::new(Busy) as Box<dyn Link>), Some(Box::new(Busy) as _));
    let mut wire = Composite::new(Links { outside, local, ..Links::default() });
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
