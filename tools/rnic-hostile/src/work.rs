//! Attacks by work requests.

use crate::Attack;
use crate::client::{Client, QKEY, Qp, ZONE};
use rnic_abi::verbs::{QpType, SendFlags, WrOpcode};
use rnic_abi::work_queue::WorkProducer;
use rnic_abi::wqe::{SendControl, Sge};
use std::io;

/// Work requests with impossible counts, lengths, opcodes and keys.
pub(crate) fn wqes(attack: &mut Attack) -> io::Result<()> {
    each_queue(attack, |attack, client, slot| {
        let mut wqe = plausible(attack, client, WrOpcode::Write);
        // Most fields are valid, so that the invalid ones are reached.
        for _ in 0..=attack.random.below(4) {
            let at = attack.random.below(wqe.len());
            wqe[at] = match attack.random.below(3) {
                0 => attack.random.word(),
                1 => wqe[at] ^ 1 << attack.random.below(64),
                _ => wqe[at] ^ attack.random.word() << 16,
            };
        }
        wqe.truncate(slot);
        wqe
    })
}

/// Well-formed requests under keys, and to addresses, that belong to another user.
pub(crate) fn keys(attack: &mut Attack) -> io::Result<()> {
    use WrOpcode::{
        AtomicWrite, BindMw, FetchAdd, Flush, LocalInv, Read, Send, SendImm, SendInv, Write,
    };
    let opcodes =
        [SendImm, Write, Read, FetchAdd, Send, SendInv, LocalInv, BindMw, AtomicWrite, Flush];
    each_queue(attack, |attack, client, slot| {
        let opcode = opcodes[attack.random.below(opcodes.len())];
        let mut wqe = plausible(attack, client, opcode);
        // Remote key, local key, or both.
        let guess = attack.random.next() & 0xffff_ffff;
        if matches!(opcode, LocalInv | BindMw | SendInv) {
            guess_window(attack, &mut wqe, guess);
        } else if attack.random.one_in(2) {
            wqe[4] = guess;
        } else {
            wqe[9] = wqe[9] & !0xffff_ffff | guess;
        }
        wqe[3] = attack.random.next() & 0x7fff_ffff_fff8;
        wqe.truncate(slot);
        wqe
    })
}

/// A key to invalidate, a window to bind, or a region to bind it to.
fn guess_window(attack: &mut Attack, wqe: &mut [u64], guess: u64) {
    match attack.random.below(3) {
        0 => wqe[2] = guess,
        1 => wqe[4] = wqe[4] & !0xffff_ffff | guess,
        _ => wqe[4] = wqe[4] & 0xffff_ffff | guess << 32,
    }
}

/// A request that would work: one SGE in our own memory, to our own memory.
fn plausible(attack: &mut Attack, client: &Client, opcode: WrOpcode) -> Vec<u64> {
    let zone = client.zone.as_ptr() as u64;
    let length = match opcode {
        WrOpcode::FetchAdd | WrOpcode::AtomicWrite => 8,
        _ => u32::try_from(attack.random.below(ZONE)).unwrap_or(0),
    };
    let mut control = SendControl::new(opcode, SendFlags::SIGNALED, attack.done);
    control.num_sge = 1;
    if opcode == WrOpcode::Flush {
        (control.num_sge, control.swap) = (0, 1);
    }
    control.remote_addr = zone;
    control.rkey = client.key;
    (control.ah, control.remote_qpn, control.qkey) = (client.ah, client.last_qpn, QKEY);
    control.srqn = client.xrc.map_or(0, |(_, number, _)| number);
    if attack.random.one_in(4) {
        control.srqn ^= 1 << attack.random.below(24);
    }
    let window = client.windows[attack.random.below(2)];
    if matches!(opcode, WrOpcode::BindMw | WrOpcode::LocalInv) {
        (control.num_sge, control.rkey) = (0, window ^ 1);
        (control.qkey, control.compare_add, control.swap) = (client.key, u64::from(length), 0xe);
    }
    control.imm_or_key = window ^ 1;
    let sge = Sge { addr: zone, length, lkey: client.key };
    control.encode().into_iter().chain(sge.encode()).collect()
}

/// Fills send queues with requests from `make`, rings, and starts over with new queue pairs: a bad
/// request breaks its queue.
fn each_queue(
    attack: &mut Attack,
    mut make: impl FnMut(&mut Attack, &Client, usize) -> Vec<u64>,
) -> io::Result<()> {
    let mut client = Client::open()?;
    while attack.goes_on() {
        let types = [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend];
        let qp_type = types[attack.random.below(types.len())];
        let pair = client.create_pair(qp_type)?;
        for _ in 0..8 {
            fill(attack, &client, &pair[0], &mut make)?;
            let _ = client.connect(&pair[1], pair[0].qpn);
            let _ = client.connect(&pair[0], pair[1].qpn);
        }
        for qp in pair {
            client.call(&rnic_abi::control::Request::DestroyQp { qp: qp.handle })?;
        }
    }
    Ok(())
}

fn fill(
    attack: &mut Attack,
    client: &Client,
    qp: &Qp,
    make: &mut impl FnMut(&mut Attack, &Client, usize) -> Vec<u64>,
) -> io::Result<()> {
    let Some((sq, words)) = &qp.sends else { return Ok(()) };
    let Some(mut queue) = WorkProducer::new(words.clone(), sq.shape) else {
        return Err(io::Error::other("the queue's memory does not fit its shape"));
    };
    for _ in 0..1 + attack.random.below(8) {
        let wqe = make(attack, client, queue.stride());
        queue.push(&wqe);
        attack.done += 1;
    }
    // Now and then an index beyond what was written, or beyond the queue's size.
    let lie = if attack.random.one_in(4) { attack.random.word() as u32 } else { 0 };
    if client.bell.ring(sq.record, queue.producer().wrapping_add(lie)) {
        client.wake.wake()?;
    }
    let shared = client.xrc.map(|(.., record)| record);
    for record in qp.receives.into_iter().chain(shared) {
        client.bell.publish(record, attack.random.word() as u32);
    }
    Ok(())
}
