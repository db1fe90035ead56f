//! A stream of packets: fetched, sealed and sent on one side, checked and placed on the other.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use roce_wire::{Flow, IpIdHint, icrc};

use crate::case::{Copy, LinkKind, Shape};
use crate::link::{self, Link, Piece};
use crate::memory::Memory;
use crate::pair::{self, Side, Stage};

/// Base transport header, and the RETH behind that of a FIRST packet.
const BTH: usize = 12;
const RETH: usize = 16;
const ICRC: usize = 4;
/// Opcodes RC WRITE FIRST and MIDDLE.
const FIRST: u8 = 0x06;
const MIDDLE: u8 = 0x07;
/// After so long without a packet, what is in flight counts as lost.
const LOST: Duration = Duration::from_millis(100);

pub(crate) fn run(stage: &Stage, link: LinkKind, shape: Shape, copy: Copy) -> Result<String> {
    pair::with_board(|board| {
        let measured = pair::run(stage, board, |side| {
            let memory = Memory::new(shape.memory, copy)?;
            let link = link::open(link, side)?;
            side.start()?;
            match side.index {
                0 => Sender::new(link, shape, memory).run(side),
                _ => Receiver::new(link, shape, memory).run(side),
            }
        })?;
        ensure!(measured.packets > 0, "nothing arrived");
        Ok(format!(
            r#"{{"bytes_per_second":{},"packets_per_second":{},"lost":{},"waited":{}}}"#,
            measured.bytes as f64 / measured.seconds,
            measured.packets as f64 / measured.seconds,
            measured.lost,
            measured.waited,
        ))
    })
}

/// One packet of a burst that is being built.
struct Built {
    datagram: Range<usize>,
    payload: Range<usize>,
    /// Its place in its train, which is its IPv4 identification.
    index: u16,
}

struct Sender {
    link: Box<dyn Link>,
    shape: Shape,
    memory: Memory,
    flow: Flow,
    at: usize,
    sent: u64,
    built: Vec<Built>,
    payloads: Vec<Range<usize>>,
}

impl Sender {
    fn new(link: Box<dyn Link>, shape: Shape, memory: Memory) -> Self {
        let room = shape.burst;
        Self {
            link,
            shape,
            memory,
            flow: link::flow(0),
            at: 0,
            sent: 0,
            built: Vec::with_capacity(room),
            payloads: Vec::with_capacity(room),
        }
    }

    fn run(&mut self, side: &Side<'_>) -> Result<()> {
        while side.board.is_running() {
            if self.has_room(side) {
                self.burst()?;
            }
        }
        Ok(())
    }

    /// Waits until a burst fits into the limit of packets in flight; false when the measurement
    /// ended.
    fn has_room(&mut self, side: &Side<'_>) -> bool {
        let board = side.board;
        let room = (self.shape.in_flight - self.shape.burst) as u64;
        let (mut arrived, mut since) = (board.packets.get(), Instant::now());
        // Packets given up as lost may still arrive, so the count of arrived packets may exceed
        // that of sent ones.
        while self.sent.saturating_sub(arrived + board.lost.get()) > room {
            if !board.is_running() {
                return false;
            }
            let now = board.packets.get();
            if now != arrived {
                (arrived, since) = (now, Instant::now());
            } else if since.elapsed() > LOST {
                board.lost.set(self.sent - arrived);
            }
            self.link.submit();
            std::hint::spin_loop();
        }
        true
    }

    fn burst(&mut self) -> Result<()> {
        let payload = self.shape.payload;
        let stretch = self.shape.stretch();
        let packets = self.shape.burst.min((stretch - self.at % stretch) / payload);
        self.built.clear();
        let mut left = packets;
        while left > 0 {
            let begins = self.shape.message > 0
                && (self.at + (packets - left) * payload).is_multiple_of(self.shape.message);
            let count = if begins { 1 } else { left.min(self.shape.train) };
            if !self.unit(count, begins) {
                break;
            }
            left -= count;
        }
        self.payloads.clear();
        self.payloads.extend(self.built.iter().map(|packet| packet.payload.clone()));
        if self.payloads.is_empty() {
            self.link.submit();
            return Ok(());
        }
        self.memory.fetch(self.at, self.link.tx(), &self.payloads)?;
        for packet in &self.built {
            let datagram = &mut self.link.tx()[packet.datagram.clone()];
            icrc::seal(&self.flow, packet.index, datagram);
        }
        self.link.submit();
        self.sent += self.built.len() as u64;
        self.at += self.built.len() * payload;
        if self.at == self.memory.len() {
            self.at = 0;
        }
        Ok(())
    }

    /// Reserves a unit and writes its headers; false when the link is full.
    fn unit(&mut self, count: usize, begins: bool) -> bool {
        let header = if begins { BTH + RETH } else { BTH };
        let len = header + self.shape.payload + ICRC;
        let Some(start) = self.link.reserve(count, len) else { return false };
        for index in 0..count {
            let datagram = start + index * len..start + (index + 1) * len;
            let head = &mut self.link.tx()[datagram.start..datagram.start + header];
            head.fill(0);
            head[0] = if begins { FIRST } else { MIDDLE };
            let psn = self.sent + self.built.len() as u64;
            head[8..12].copy_from_slice(&(psn as u32).to_be_bytes());
            let payload = datagram.start + header..datagram.end - ICRC;
            self.built.push(Built { datagram, payload, index: index as u16 });
        }
        true
    }
}

struct Receiver {
    link: Box<dyn Link>,
    shape: Shape,
    memory: Memory,
    flow: Flow,
    at: usize,
    packets: u64,
    bytes: u64,
    pieces: Vec<Piece>,
    payloads: Vec<Range<usize>>,
}

impl Receiver {
    fn new(link: Box<dyn Link>, shape: Shape, memory: Memory) -> Self {
        Self {
            link,
            shape,
            memory,
            flow: link::flow(0),
            at: 0,
            packets: 0,
            bytes: 0,
            pieces: Vec::new(),
            payloads: Vec::new(),
        }
    }

    fn run(&mut self, side: &Side<'_>) -> Result<()> {
        while side.board.is_running() {
            self.pieces.clear();
            self.link.receive(&mut self.pieces);
            if self.pieces.is_empty() {
                continue;
            }
            for index in 0..self.pieces.len() {
                self.take(self.pieces[index])?;
            }
            self.flush()?;
            self.link.release();
            side.board.bytes.set(self.bytes);
            side.board.packets.set(self.packets);
        }
        Ok(())
    }

    /// Checks the packets of a piece and notes where their payload lies.
    fn take(&mut self, piece: Piece) -> Result<()> {
        for (index, start) in (0..piece.len).step_by(piece.segment).enumerate() {
            let end = piece.len.min(start + piece.segment);
            let datagram = piece.offset + start..piece.offset + end;
            let bytes = &self.link.rx()[datagram.clone()];
            let id = IpIdHint::Predicted(index as u16);
            ensure!(icrc::verify(&self.flow, id, bytes).is_good(), "a wrong ICRC");
            let header = if bytes[0] == FIRST { BTH + RETH } else { BTH };
            ensure!(bytes.len() == header + self.shape.payload + ICRC, "a foreign packet");
            if self.at + (self.payloads.len() + 1) * self.shape.payload > self.memory.len() {
                self.flush()?;
            }
            self.payloads.push(datagram.start + header..datagram.end - ICRC);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let bytes = self.payloads.len() * self.shape.payload;
        self.memory.place(self.at, self.link.rx(), &self.payloads)?;
        self.packets += self.payloads.len() as u64;
        self.bytes += bytes as u64;
        self.at += bytes;
        if self.at + self.shape.payload > self.memory.len() {
            self.at = 0;
        }
        self.payloads.clear();
        Ok(())
    }
}
