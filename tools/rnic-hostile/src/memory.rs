//! Attacks through the shared memory.

use crate::Attack;
use crate::client::{Client, Qp};
use rnic_abi::verbs::QpType;
use rnic_abi::words::{WORD, Words};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Queue pairs of an attacker, in pairs.
const PAIRS: [QpType; 4] = [QpType::Rc, QpType::Rc, QpType::Rc, QpType::XrcSend];

fn furnished() -> io::Result<(Client, Vec<[Qp; 2]>)> {
    let mut client = Client::open()?;
    let pairs = PAIRS.map(|qp_type| client.create_pair(qp_type));
    let pairs = pairs.into_iter().collect::<io::Result<_>>()?;
    Ok((client, pairs))
}

/// Random values into every word of every shared page.
pub(crate) fn scribble(attack: &mut Attack) -> io::Result<()> {
    while attack.goes_on() {
        let (client, pairs) = furnished()?;
        let mut memory: Vec<Words> = client.arenas.values().cloned().collect();
        memory.push(client.area.clone());
        // A queue pair in error does nothing any more: reconnect it now and then.
        for _ in 0..50 {
            for pair in &pairs {
                // Refused when the daemon has marked the queue as broken; the next client has new
                // ones.
                let _ = client.connect(&pair[0], pair[1].qpn);
                let _ = client.connect(&pair[1], pair[0].qpn);
            }
            for _ in 0..20_000 {
                let words = &memory[attack.random.below(memory.len())];
                words.set(attack.random.below(words.len()), attack.random.word());
                attack.done += 1;
            }
            sweep(attack, &memory);
            if attack.random.one_in(4) {
                let (file, words) = &client.files[attack.random.below(client.files.len())];
                punch_hole(file, attack.random.below(*words) * WORD);
            }
            client.wake.wake()?;
            if !attack.goes_on() {
                break;
            }
        }
    }
    Ok(())
}

/// Every word of a random page, and of the first part of each area.
fn sweep(attack: &mut Attack, memory: &[Words]) {
    const PAGE: usize = 512;
    for words in memory {
        let page =
            if attack.random.one_in(2) { 0 } else { attack.random.below(words.len()) / PAGE };
        for i in page * PAGE..((page + 1) * PAGE).min(words.len()) {
            words.set(i, attack.random.word());
            attack.done += 1;
        }
    }
}

/// Punches a page out of a shared file, which the seals do not forbid.
fn punch_hole(file: &OwnedFd, at: usize) {
    let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let at = libc::off_t::try_from(at & !4095).unwrap_or(0);
    // SAFETY: a plain system call on our own descriptor. Our mappings then read zeroes.
    unsafe { libc::fallocate(file.as_raw_fd(), flags, at, 4096) };
}

/// Doorbells of every queue, ours or not, without pause.
pub(crate) fn doorbells(attack: &mut Attack) -> io::Result<()> {
    let (client, pairs) = furnished()?;
    let own = pairs[0][0].sends.as_ref().map_or(0, |(sq, _)| sq.record.value());
    while attack.goes_on() {
        for _ in 0..1000 {
            // What a ring writes: the record, its bit, the bits above.
            let index = attack.random.below(rnic_abi::doorbell::MAX_RECORDS);
            let index =
                if attack.random.one_in(4) { own } else { u32::try_from(index).unwrap_or(0) };
            if let Some(record) = rnic_abi::doorbell::RecordIndex::new(index) {
                if client.bell.ring(record, attack.random.next() as u32) {
                    client.wake.wake()?;
                }
                attack.done += 1;
            }
        }
        // All bits of all levels at once.
        for i in rnic_abi::doorbell::SUMMARY.skip(64) {
            client.area.set(i, u64::MAX);
        }
        client.wake.wake()?;
        if attack.random.one_in(64) {
            for pair in &pairs {
                let _ = client.connect(&pair[0], pair[1].qpn);
                let _ = client.connect(&pair[1], pair[0].qpn);
            }
        }
    }
    Ok(())
}
