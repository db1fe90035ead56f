//! The side of a further shard.

use super::entry::{WORDS, decode_rx, encode_tx};
use super::memory::{self, Area};
use super::{ARENA_ID, Attachment, DATAGRAMS, TRAINS, Waker, decode_caps};
use crate::wire::train_len;
use rnic_abi::hand_over::{Broken, Consumer, Producer};
use rnic_abi::os::EventFd;
use rnic_abi::words::Words;
use rnic_core::ports::{ArenaId, RxTrain, TxSlot, TxTrain, Wire, WireCaps};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// The wire of a further shard. See the [module](self).
pub struct ShardWire {
    caps: Words,
    trains: Producer<WORDS>,
    tx: Area,
    /// Slots of trains that are reserved since the last submit.
    reserved: usize,
    datagrams: Consumer<WORDS>,
    rx: Area,
    woken: Waker,
    /// Wakes the owner.
    pub(super) owner: EventFd,
    /// The ring was full: only time tells when it has room again.
    starved: bool,
    /// The owner's words make no sense: it is not the one that this was made for.
    broken: bool,
}

impl ShardWire {
    /// On what the owner of the wire has sent.
    ///
    /// # Errors
    /// When the files are not those of this version.
    pub fn attach(attachment: Attachment) -> io::Result<Self> {
        let Attachment([to_read, to_write, woken, owner]) = attachment;
        let theirs = memory::map_to_read(to_read, DATAGRAMS)?;
        let own = memory::map(to_write, TRAINS)?;
        let impossible = || io::Error::from(io::ErrorKind::InvalidInput);
        Ok(Self {
            caps: theirs.caps,
            trains: Producer::new(own.producer, theirs.consumer).ok_or_else(impossible)?,
            tx: own.bytes,
            reserved: 0,
            datagrams: Consumer::new(own.consumer, theirs.producer).ok_or_else(impossible)?,
            rx: theirs.bytes,
            woken: Waker(woken),
            owner: owner.into(),
            starved: false,
            broken: false,
        })
    }

    /// Readable when frames wait and this side sleeps.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.woken.0.as_fd()
    }

    /// Something is to be sent for which there was no room.
    pub(crate) fn has_backlog(&self) -> bool {
        self.starved
    }

    /// Says to the owner that this side is about to sleep. False when it must not.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        self.datagrams.prepare_sleep().unwrap_or_else(|Broken| self.give_up())
    }

    /// It does not sleep any more.
    pub(crate) fn awake(&mut self) {
        self.datagrams.awake();
        self.woken.drain();
    }

    fn give_up<T: Default>(&mut self) -> T {
        if !self.broken {
            tracing::error!("the daemon's memory makes no sense: no packet comes or goes any more");
        }
        self.broken = true;
        T::default()
    }
}

impl Wire for ShardWire {
    fn caps(&self) -> WireCaps {
        decode_caps(self.caps.get(0))
    }

    fn receive(&mut self, trains: &mut Vec<RxTrain>) {
        while trains.len() < trains.capacity() {
            match self.datagrams.take() {
                Ok(Some((slot, entry))) => {
                    let offset = (slot * DATAGRAMS.bytes) as u32;
                    trains.push(decode_rx(&entry, ARENA_ID, offset));
                }
                Ok(None) => return,
                Err(Broken) => return self.give_up(),
            }
        }
    }

    fn rx(&self, _: ArenaId) -> &[u8] {
        self.rx.shown()
    }

    fn release(&mut self) {
        self.datagrams.release();
    }

    fn reserve(&mut self, train: &TxTrain) -> Option<TxSlot> {
        let len = train_len(train)? as usize;
        let slot = match self.trains.free_slot() {
            Ok(slot) => slot,
            Err(Broken) => self.give_up(),
        };
        self.starved = slot.is_none();
        let slot = slot.filter(|_| len <= TRAINS.bytes)?;
        self.trains.push(&encode_tx(train));
        self.reserved += 1;
        let offset = (slot * TRAINS.bytes) as u32;
        Some(TxSlot { arena: ARENA_ID, offset, stride: train.segment_len, is_internal: false })
    }

    fn cancel_from(&mut self, slot: &TxSlot) {
        let first = slot.offset as usize / TRAINS.bytes;
        // Slots follow each other, so that this many were reserved from that one on.
        let next = self.trains.next_slot();
        let count = (next + TRAINS.slots - first - 1) % TRAINS.slots + 1;
        for _ in 0..count.min(self.reserved) {
            if self.trains.take_back() {
                self.reserved -= 1;
            }
        }
    }

    fn tx(&mut self, _: ArenaId) -> &mut [u8] {
        self.tx.own()
    }

    fn submit(&mut self) {
        self.reserved = 0;
        // What was refused may have gone away with its queue pair.
        if self.starved && self.trains.free_slot() != Ok(None) {
            self.starved = false;
        }
        if self.trains.publish()
            && let Err(error) = self.owner.wake()
        {
            tracing::error!("cannot wake the daemon: {error}");
        }
    }
}
