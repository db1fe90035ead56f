//! Two engines: every operation at the sizes where segmentation changes, without and with loss.

mod common;

use common::{BASE, Pair, pattern, send_control};
use rnic_abi::cqe::Cqe;
use rnic_abi::verbs::{SendFlags, WcOpcode, WcStatus, WrOpcode};
use rnic_abi::wqe::SendControl;

const MTU: usize = 1024;
const SIZES: [usize; 7] = [0, 1, MTU - 1, MTU, MTU + 1, 2 * MTU, 1 << 20];

/// Local buffers begin here, remote ones at 4 MiB.
const REMOTE: usize = 4 << 20;

fn remote_control(pair: &Pair, opcode: WrOpcode) -> SendControl {
    SendControl {
        remote_addr: BASE + REMOTE as u64,
        rkey: pair.b.key,
        imm_or_key: 0x0403_0201,
        ..send_control(opcode, 77)
    }
}

fn only_success(cqes: &[Cqe], opcode: WcOpcode, wr_id: u64) -> Cqe {
    assert_eq!(cqes.len(), 1, "{cqes:?}");
    assert_eq!(cqes[0].status, WcStatus::Success, "{cqes:?}");
    assert_eq!((cqes[0].opcode, cqes[0].wr_id), (opcode, wr_id));
    cqes[0]
}

fn post(pair: &mut Pair, opcode: WrOpcode, len: usize) {
    let control = remote_control(pair, opcode);
    let sges = [pair.a.sge(0, len as u32)];
    pair.a.post_send(control, &sges);
}

/// The receive buffer of `b`, wherever the data went.
fn received(pair: &mut Pair, cqe: &Cqe) -> Vec<u8> {
    if cqe.carried_len() > 0 {
        return cqe.carried()[..cqe.carried_len()].to_vec();
    }
    pair.b.memory(REMOTE, cqe.byte_len as usize).to_vec()
}

fn send(len: usize, opcode: WrOpcode, lose: impl FnMut(usize) -> bool) -> Pair {
    let mut lose = lose;
    let mut pair = Pair::new();
    let data = pattern(len as u64, len);
    pair.a.memory(0, len).copy_from_slice(&data);
    let sge = pair.b.sge(REMOTE as u64, 1 << 20);
    pair.b.post_recv(5, &[sge]);
    post(&mut pair, opcode, len);
    pair.run(|n, _| lose(n));
    only_success(&pair.a.poll(), WcOpcode::Send, 77);
    let cqes = pair.b.poll();
    let cqe = only_success(&cqes, WcOpcode::Recv, 5);
    assert_eq!(cqe.byte_len as usize, len);
    assert!(received(&mut pair, &cqe) == data, "the data differs at {len} bytes");
    pair
}

fn write(len: usize, opcode: WrOpcode, lose: impl FnMut(usize) -> bool) -> Pair {
    let mut lose = lose;
    let mut pair = Pair::new();
    let data = pattern(len as u64, len);
    pair.a.memory(0, len).copy_from_slice(&data);
    if opcode == WrOpcode::WriteImm {
        pair.b.post_recv(6, &[]);
    }
    post(&mut pair, opcode, len);
    pair.run(|n, _| lose(n));
    only_success(&pair.a.poll(), WcOpcode::Write, 77);
    let cqes = pair.b.poll();
    if opcode == WrOpcode::WriteImm {
        let cqe = only_success(&cqes, WcOpcode::RecvWriteImm, 6);
        assert_eq!((cqe.byte_len as usize, cqe.imm_or_key), (len, 0x0403_0201));
    } else {
        assert!(cqes.is_empty(), "{cqes:?}");
    }
    assert!(pair.b.memory(REMOTE, len) == data, "the data differs at {len} bytes");
    pair
}

fn read(len: usize, lose: impl FnMut(usize) -> bool) -> Pair {
    let mut lose = lose;
    let mut pair = Pair::new();
    let data = pattern(len as u64, len);
    pair.b.memory(REMOTE, len).copy_from_slice(&data);
    post(&mut pair, WrOpcode::Read, len);
    pair.run(|n, _| lose(n));
    let cqe = only_success(&pair.a.poll(), WcOpcode::Read, 77);
    assert_eq!(cqe.byte_len as usize, len);
    assert!(pair.a.memory(0, len) == data, "the data differs at {len} bytes");
    pair
}

#[test]
fn sends_arrive_at_every_size() {
    for len in SIZES {
        send(len, WrOpcode::Send, |_| false);
        let pair = send(len, WrOpcode::SendImm, |_| false);
        assert_eq!(pair.a.engine.counters().retransmitted_packets, 0);
    }
}

#[test]
fn writes_arrive_at_every_size() {
    for len in SIZES {
        write(len, WrOpcode::Write, |_| false);
        let pair = write(len, WrOpcode::WriteImm, |_| false);
        assert_eq!(pair.a.engine.counters().retransmitted_packets, 0);
    }
}

#[test]
fn reads_arrive_at_every_size() {
    for len in SIZES {
        let pair = read(len, |_| false);
        assert_eq!(pair.a.engine.counters().retransmitted_packets, 0);
    }
}

#[test]
fn any_single_lost_packet_is_recovered() {
    for len in [0, 1, MTU, MTU + 1, 5 * MTU + 3] {
        for lost in 0..16 {
            send(len, WrOpcode::SendImm, |n| n == lost);
            write(len, WrOpcode::Write, |n| n == lost);
            write(len, WrOpcode::WriteImm, |n| n == lost);
            read(len, |n| n == lost);
        }
    }
}

#[test]
fn any_two_lost_packets_are_recovered() {
    for (first, second) in (0..12).flat_map(|i| (0..12).map(move |j| (i, i + 1 + j))) {
        let lose = |n| n == first || n == second;
        send(4 * MTU + 5, WrOpcode::Send, lose);
        write(4 * MTU + 5, WrOpcode::WriteImm, lose);
        read(4 * MTU + 5, lose);
    }
}

#[test]
fn a_mebibyte_survives_regular_loss() {
    let pair = write(1 << 20, WrOpcode::Write, |n| n % 61 == 60);
    assert!(pair.a.engine.counters().packet_seq_err > 0);
    send(1 << 20, WrOpcode::Send, |n| n % 61 == 60);
    let pair = read(1 << 20, |n| n % 61 == 60);
    assert!(pair.a.engine.counters().implied_nak_seq_err > 0);
}

#[test]
fn several_sges_are_gathered_and_scattered() {
    let mut pair = Pair::new();
    let data = pattern(9, 3000);
    pair.a.memory(0, 1000).copy_from_slice(&data[..1000]);
    pair.a.memory(5000, 2000).copy_from_slice(&data[1000..]);
    let into =
        [pair.b.sge(0, 7), pair.b.sge(100, 0), pair.b.sge(200, 2000), pair.b.sge(9000, 5000)];
    pair.b.post_recv(1, &into);
    let from = [pair.a.sge(0, 1000), pair.a.sge(5000, 2000)];
    pair.a.post_send(send_control(WrOpcode::Send, 2), &from);
    pair.run_lossless();
    only_success(&pair.a.poll(), WcOpcode::Send, 2);
    only_success(&pair.b.poll(), WcOpcode::Recv, 1);
    let got = [
        pair.b.memory(0, 7).to_vec(),
        pair.b.memory(200, 2000).to_vec(),
        pair.b.memory(9000, 993).to_vec(),
    ]
    .concat();
    assert!(got == data);
}

#[test]
fn inline_data_leaves_without_dma() {
    let mut pair = Pair::new();
    let data = pattern(3, 200);
    let sge = pair.b.sge(REMOTE as u64, 4096);
    pair.b.post_recv(1, &[sge]);
    pair.a.post_inline(send_control(WrOpcode::Send, 2), &data);
    pair.run_lossless();
    assert_eq!(pair.a.dma.reads, 0);
    only_success(&pair.b.poll(), WcOpcode::Recv, 1);
    assert!(pair.b.memory(REMOTE, 200) == data);
}

#[test]
fn many_messages_stay_in_order_under_loss() {
    let mut pair = Pair::new();
    for i in 0..40u32 {
        let sge = pair.b.sge(REMOTE as u64 + u64::from(i) * 4096, 4096);
        pair.b.post_recv(u64::from(i), &[sge]);
    }
    for i in 0..40u32 {
        let len = (i * 97) % 4000;
        let data = pattern(u64::from(i) + 1, len as usize);
        pair.a.memory(i as usize * 4096, len as usize).copy_from_slice(&data);
        let sge = pair.a.sge(u64::from(i) * 4096, len);
        pair.a.post_send(send_control(WrOpcode::Send, u64::from(i)), &[sge]);
    }
    pair.run(|n, _| n % 7 == 3);
    let sent = pair.a.poll();
    let received = pair.b.poll();
    for (cqes, _side) in [(&sent, "send"), (&received, "receive")] {
        assert_eq!(cqes.len(), 40);
        assert!(cqes.iter().all(|cqe| cqe.status == WcStatus::Success));
        assert!(cqes.iter().map(|cqe| cqe.wr_id).eq(0..40));
    }
    for i in 0..40u32 {
        let len = (i * 97 % 4000) as usize;
        let data = pattern(u64::from(i) + 1, len);
        let place = REMOTE + i as usize * 4096;
        assert!(pair.b.memory(place, len) == data, "message {i}");
    }
}

#[test]
fn atomics_return_the_old_value_once() {
    for lost in 0..6 {
        let mut pair = Pair::new();
        pair.b.memory(REMOTE, 8).copy_from_slice(&40u64.to_ne_bytes());
        let mut add = remote_control(&pair, WrOpcode::FetchAdd);
        add.compare_add = 2;
        let mut swap = remote_control(&pair, WrOpcode::CmpSwap);
        (swap.compare_add, swap.swap) = (42, 7);
        let (first, second) = (pair.a.sge(0, 8), pair.a.sge(8, 8));
        pair.a.post_send(add, &[first]);
        pair.a.post_send(swap, &[second]);
        pair.run(|n, _| n == lost);
        let cqes = pair.a.poll();
        assert_eq!(cqes.len(), 2, "{cqes:?}");
        assert!(cqes.iter().all(|cqe| cqe.status == WcStatus::Success));
        let old: Vec<u8> = [40u64.to_ne_bytes(), 42u64.to_ne_bytes()].concat();
        assert_eq!(pair.a.memory(0, 16), old);
        assert_eq!(pair.b.memory(REMOTE, 8), 7u64.to_ne_bytes());
    }
}

#[test]
fn mixed_operations_survive_every_single_loss() {
    for lost in 0..60 {
        let mut pair = Pair::new();
        let data = pattern(1, 3000);
        pair.a.memory(0, 3000).copy_from_slice(&data);
        let sge = pair.b.sge(REMOTE as u64 + 100_000, 4096);
        pair.b.post_recv(9, &[sge]);
        let operations =
            [WrOpcode::Write, WrOpcode::Read, WrOpcode::Write, WrOpcode::Read, WrOpcode::Send];
        for (i, opcode) in operations.into_iter().enumerate() {
            let mut control = remote_control(&pair, opcode);
            if opcode == WrOpcode::Read {
                control.flags |= SendFlags::FENCE;
            }
            let at = if opcode == WrOpcode::Read { 10_000 * i as u64 } else { 0 };
            let sge = pair.a.sge(at, 3000);
            pair.a.post_send(control, &[sge]);
        }
        pair.run(|n, _| n == lost);
        let cqes = pair.a.poll();
        assert_eq!(cqes.len(), 5, "lost {lost}: {cqes:?}");
        assert!(cqes.iter().all(|cqe| cqe.status == WcStatus::Success), "lost {lost}: {cqes:?}");
        assert_eq!(pair.b.poll().len(), 1);
        assert!(pair.a.memory(10_000, 3000) == data && pair.a.memory(30_000, 3000) == data);
        assert!(pair.b.memory(REMOTE + 100_000, 3000) == data);
    }
}
