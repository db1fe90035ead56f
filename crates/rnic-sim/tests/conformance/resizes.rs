//! Completion queues that change their size.

use crate::dialogue;
use rnic_abi::cq::{ArmKind, CqProducer};
use rnic_abi::words::Words;
use rnic_core::command::{ClientCommand, ClientId, Command, Errno};
use rnic_sim::pair::{PATIENCE, Pair};
use rnic_sim::verbs::{Connection, SendWr};

/// One message each way of counting: a receive completion at the second host.
fn send(pair: &mut Pair, wr_id: u64) {
    let (a, b) = (pair.a, pair.b);
    pair.recv(b, wr_id, &[b.mr.sge(0, 64)]);
    pair.run(a, &SendWr::send(wr_id, &[a.mr.sge(0, 64)]));
    pair.world.run_to_silence(PATIENCE);
}

fn polled(pair: &mut Pair) -> Vec<u64> {
    let cq = pair.b.recv_cq;
    std::iter::from_fn(|| pair.world.host(1).poll(cq)).map(|cqe| cqe.wr_id).collect()
}

fn resize(pair: &mut Pair, capacity: u32) -> Option<Errno> {
    let cq = pair.b.recv_cq;
    pair.world.host(1).resize_cq(cq, capacity).err().map(|error| error.errno)
}

#[test]
fn a_queue_of_another_size_has_all_that_was_not_polled_in_order() {
    for (seed, capacity) in [(1, 4), (2, 8), (3, 512)] {
        let mut pair = Pair::new(seed, Connection::default());
        let cq = pair.b.recv_cq;
        (0..3).for_each(|wr_id| send(&mut pair, wr_id));
        assert_eq!(pair.world.host(1).poll(cq).map(|cqe| cqe.wr_id), Some(0));
        assert_eq!(resize(&mut pair, capacity), None);
        (3..5).for_each(|wr_id| send(&mut pair, wr_id));
        assert_eq!(polled(&mut pair), [1, 2, 3, 4]);
        (5..8).for_each(|wr_id| send(&mut pair, wr_id));
        assert_eq!(polled(&mut pair), [5, 6, 7]);
    }
}

#[test]
fn a_queue_is_not_made_smaller_than_what_it_holds() {
    let mut pair = Pair::new(4, Connection::default());
    (0..3).for_each(|wr_id| send(&mut pair, wr_id));
    assert_eq!(resize(&mut pair, 2), Some(Errno::Invalid));
    send(&mut pair, 3);
    assert_eq!(polled(&mut pair), [0, 1, 2, 3]);
    assert_eq!(resize(&mut pair, 2), None);
    (4..6).for_each(|wr_id| send(&mut pair, wr_id));
    assert_eq!(polled(&mut pair), [4, 5]);
}

#[test]
fn an_arming_survives_another_size() {
    let mut pair = Pair::new(5, Connection::default());
    let cq = pair.b.recv_cq;
    pair.world.host(1).arm(cq, ArmKind::Any);
    assert_eq!(resize(&mut pair, 16), None);
    send(&mut pair, 0);
    assert_eq!(pair.world.host(1).take_completion_events(), [cq]);
    assert_eq!(resize(&mut pair, 32), None);
    send(&mut pair, 1);
    assert_eq!(pair.world.host(1).take_completion_events(), []);
}

#[test]
fn a_queue_of_another_client_has_its_size() {
    let mut d = dialogue();
    let cq = d.world.hosts()[0].cq_handle(d.nic.recv_cq);
    let capacity = 16;
    let ring = CqProducer::new(Words::heap(4096), capacity).expect("room");
    let resize = Command::Client(ClientId(2), ClientCommand::ResizeCq { cq, ring, capacity });
    let now = d.world.now();
    let refused = d.world.host(0).engine.execute(now, resize);
    assert_eq!(refused.err().map(|error| error.errno), Some(Errno::NoEntry));
}
