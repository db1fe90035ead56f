//! The state of one stream: what may be sent, what has come, and what the other end is told.
//! Nothing here knows of verbs: callers post what it says and report what completes.
//!
//! Each end receives into a ring of two halves. It lends them to the other end in turns, which
//! writes its data there by RDMA and says with each message how much it wrote. What the other end
//! says is only believed where it cannot harm this one: lengths are compared with what is lent.

use std::collections::VecDeque;

use super::wire::{Connect, Control, MAX_DATA, Message, PLACE_LEN, PLACES, Place};

/// Sizes of one end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Messages that the other end may have on their way: depth of the receive queue.
    pub(crate) receives: u16,
    /// Depth of the send queue, those for control messages included.
    pub(crate) sends: u16,
    /// Bytes of the receive ring, even.
    pub(crate) receive_bytes: u32,
    pub(crate) send_bytes: u32,
    /// Places for buffers that the other end maps.
    pub(crate) mappings: u16,
}

/// The other end does what no rsocket does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Violation;

/// A message to post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outgoing {
    pub(crate) message: Message,
    /// Where its bytes go.
    pub(crate) to: Place,
    /// Its bytes begin here in the ring of bytes to send, and may wrap around its end.
    pub(crate) from: u32,
}

/// Tells the other end that it may send more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) message: Message,
    /// A half of the ring that is lent again, and where the other end wants to be told of it.
    pub(crate) half: Option<([u8; PLACE_LEN], Place)>,
}

#[derive(Debug)]
pub(crate) struct Flow {
    sizes: Sizes,
    peer: Connect,
    state: State,
    // What is sent.
    sent: u16,
    limit: u16,
    lent: [Place; PLACES],
    /// The place that is written to, and the one that the other end fills in next.
    using: usize,
    filling: usize,
    entries: u32,
    controls: u32,
    room: u32,
    send_at: u32,
    // What is received.
    receive: Place,
    queue: VecDeque<u32>,
    unread: u32,
    read_at: u32,
    /// Bytes that the other end may still write.
    granted: u32,
    /// Bytes that were read and are not lent again.
    freed: u32,
    grant_at: u32,
    telling: u32,
    consumed: u16,
    due: u16,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct State {
    /// Messages go both ways.
    up: bool,
    /// The other end may still send, and this program wants to hear it.
    readable: bool,
    /// This program may still send, and the other end wants to hear it.
    writable: bool,
    error: i32,
}

/// Control messages under way at one time.
pub(crate) const CONTROLS: u16 = 4;
/// Parts of the ring of bytes to send of which one has to be free: less is not worth a message.
const PARTS: u32 = 8;
/// The first message of bytes that nothing is under way before.
const FIRST: u32 = 2048;
/// The largest message of bytes.
const LARGEST: u32 = 262_144;

impl Flow {
    /// Of an end that knows nothing of the other one. `receive` is the receive ring.
    pub(crate) fn new(sizes: Sizes, receive: Place) -> Self {
        let half = sizes.receive_bytes / 2;
        Self {
            sizes,
            peer: Connect::default(),
            state: State::default(),
            sent: 0,
            limit: 0,
            lent: [Place::default(); PLACES],
            using: 0,
            filling: 1,
            entries: u32::from(sizes.sends.saturating_sub(CONTROLS)),
            controls: CONTROLS.into(),
            room: sizes.send_bytes,
            send_at: 0,
            receive,
            queue: VecDeque::with_capacity(usize::from(sizes.receives) + 1),
            unread: 0,
            read_at: 0,
            granted: half,
            freed: half,
            grant_at: half,
            telling: 1,
            consumed: 0,
            due: sizes.receives / 2,
        }
    }

    /// What this end says when it connects; `table` is its own.
    pub(crate) fn introduce(&self, table: Place) -> Connect {
        Connect {
            credits: self.sizes.receives,
            mappings: self.sizes.mappings,
            table: Place { len: PLACES as u32, ..table },
            data: Place { len: self.sizes.receive_bytes / 2, ..self.receive },
            ..Connect::default()
        }
    }

    /// The connection is made.
    pub(crate) fn meet(&mut self, peer: Connect) -> Result<(), Violation> {
        if peer.table.len == 0 || peer.data.len == 0 {
            return Err(Violation);
        }
        self.peer = peer;
        self.limit = peer.credits;
        self.lent[0] = peer.data;
        self.telling %= peer.table.len;
        self.state = State { up: true, readable: true, writable: true, error: 0 };
        Ok(())
    }

    pub(crate) fn peer(&self) -> &Connect {
        &self.peer
    }

    pub(crate) fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state.up
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.state.readable
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.state.writable
    }

    /// Why the stream ended, if not as it should.
    pub(crate) fn error(&self) -> i32 {
        self.state.error
    }

    /// Both ends are through with each other.
    pub(crate) fn disconnect(&mut self) {
        self.state = State { error: self.state.error, ..State::default() };
    }

    /// The stream is broken.
    pub(crate) fn fail(&mut self, errno: i32) {
        if self.state.up {
            self.state = State { error: errno, ..State::default() };
        }
    }

    /// This program reads no more.
    pub(crate) fn stop_reading(&mut self) {
        self.state.readable = false;
    }

    /// This program sends no more.
    pub(crate) fn stop_writing(&mut self) {
        self.state.writable = false;
    }

    pub(crate) fn can_send(&self) -> bool {
        self.has_credit() && self.lent[self.using].len > 0
    }

    /// A message fits into the queue here, and one more of them into the other end's.
    pub(crate) fn has_credit(&self) -> bool {
        let enough = self.room >= self.sizes.send_bytes / PARTS;
        self.state.writable && self.entries > 0 && enough && self.sent != self.limit
    }

    /// How long the first message of a call is best. Where nothing is under way it is a small one,
    /// so that the other end begins to read while the rest is copied.
    pub(crate) fn first_len(&self) -> u32 {
        if self.is_quiet() { FIRST.min(self.largest_len()) } else { self.largest_len() }
    }

    /// How long messages are at most: several of them are under way at a time, in the ring here and
    /// in each place that the other end lends, so that it reads one while the next one comes.
    pub(crate) fn largest_len(&self) -> u32 {
        let lent = (self.peer.data.len / 2).max(FIRST);
        LARGEST.min(self.sizes.send_bytes / 4).min(lent)
    }

    /// The next message of data: as much of `want` as fits. It is on its way: callers post it.
    pub(crate) fn send(&mut self, want: u32, inline: u32) -> Option<Outgoing> {
        if !self.can_send() {
            return None;
        }
        let lent = self.lent.get_mut(self.using)?;
        let len = want.min(self.room).min(lent.len).min(MAX_DATA);
        let to = Place { len, ..*lent };
        lent.addr = lent.addr.wrapping_add(len.into());
        lent.len -= len;
        if lent.len == 0 {
            self.using = (self.using + 1) % PLACES;
        }
        self.sent = self.sent.wrapping_add(1);
        let from = self.occupy(len, inline);
        Some(Outgoing { message: Message::Data(len), to, from })
    }

    /// Takes an entry of the send queue, and bytes of the ring unless the queue takes them itself.
    fn occupy(&mut self, len: u32, inline: u32) -> u32 {
        self.entries -= 1;
        let from = self.send_at;
        if len > inline {
            self.room -= len;
            self.send_at = (self.send_at + len) % self.sizes.send_bytes;
        }
        from
    }

    /// A write that is no message: into a mapped buffer.
    pub(crate) fn write(&mut self, want: u32, inline: u32, to: Place) -> Option<Outgoing> {
        if !self.has_credit() {
            return None;
        }
        let len = want.min(self.room).min(to.len);
        let from = self.occupy(len, inline);
        Some(Outgoing { message: Message::Unknown, to: Place { len, ..to }, from })
    }

    /// Announces a mapped buffer. Counts as a message of data.
    pub(crate) fn announce(&mut self, index: u16) -> Option<Outgoing> {
        let addr = self.peer.mapping_at(index)?;
        if !self.has_credit() {
            return None;
        }
        self.sent = self.sent.wrapping_add(1);
        let from = self.occupy(0, 0);
        let to = Place { addr, rkey: self.peer.table.rkey, len: 0 };
        Some(Outgoing { message: Message::Mapping(index), to, from })
    }

    /// What [`send`](Self::send) and its like posted is done, with `len` bytes of the ring.
    pub(crate) fn sent(&mut self, len: u32) {
        self.entries += 1;
        self.room = self.sizes.send_bytes.min(self.room.saturating_add(len));
    }

    /// One more control message; callers post it.
    pub(crate) fn control(&mut self, control: Control) -> Option<Message> {
        if self.controls == 0 || !self.state.up {
            return None;
        }
        self.controls -= 1;
        Some(Message::Control(control))
    }

    pub(crate) fn can_control(&self) -> bool {
        self.controls > 0
    }

    /// A control message is done.
    pub(crate) fn control_sent(&mut self) {
        self.controls += 1;
    }

    /// Nothing is under way any more.
    pub(crate) fn is_quiet(&self) -> bool {
        let all = self.sizes.sends.saturating_sub(CONTROLS);
        self.entries == u32::from(all) && self.controls == u32::from(CONTROLS)
    }

    /// Nothing of what was sent can still arrive.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_quiet() || self.state.error != 0
    }

    /// A message has come, with a body of `len` bytes. `table` reads a place of the own table.
    pub(crate) fn received(
        &mut self,
        message: Message,
        len: u32,
        table: impl FnOnce(usize) -> Place,
    ) -> Result<(), Violation> {
        match message {
            Message::Data(announced) => self.data(announced, len),
            Message::Credits(limit) => {
                self.limit = limit;
                match len as usize {
                    0 => Ok(()),
                    PLACE_LEN => self.lend(table(self.filling)),
                    _ => Err(Violation),
                }
            }
            Message::Mapping(index) if index < self.sizes.mappings => {
                self.consumed = self.consumed.wrapping_add(1);
                Ok(())
            }
            Message::Control(Control::Disconnect) => {
                self.disconnect();
                Ok(())
            }
            Message::Control(Control::Shutdown) => {
                match self.state.writable {
                    true => self.state.readable = false,
                    false => self.disconnect(),
                }
                Ok(())
            }
            Message::Control(Control::KeepAlive) => Ok(()),
            Message::Mapping(_) | Message::Unknown => Err(Violation),
        }
    }

    fn data(&mut self, announced: u32, len: u32) -> Result<(), Violation> {
        let is_honest = announced == len
            && announced <= self.granted
            && self.queue.len() < usize::from(self.sizes.receives);
        if !is_honest {
            return Err(Violation);
        }
        if len == 0 {
            self.consumed = self.consumed.wrapping_add(1);
            return Ok(());
        }
        self.granted -= len;
        self.unread += len;
        self.queue.push_back(len);
        Ok(())
    }

    /// The other end lends memory again, in turns.
    fn lend(&mut self, place: Place) -> Result<(), Violation> {
        let slot = self.lent.get_mut(self.filling).ok_or(Violation)?;
        if slot.len != 0 || place.len == 0 {
            return Err(Violation);
        }
        *slot = place;
        self.filling = (self.filling + 1) % PLACES;
        Ok(())
    }

    /// Bytes that wait for the program, and where the first lies in the ring.
    pub(crate) fn unread(&self) -> (u32, u32) {
        (self.unread, self.read_at)
    }

    /// The program has read so many bytes, at most what [`unread`](Self::unread) says.
    pub(crate) fn read(&mut self, len: u32) {
        let len = len.min(self.unread);
        self.unread -= len;
        self.freed += len;
        self.read_at = (self.read_at + len) % self.sizes.receive_bytes;
        let mut left = len;
        while let Some(first) = self.queue.front_mut().filter(|_| left > 0) {
            let taken = left.min(*first);
            *first -= taken;
            left -= taken;
            if *first == 0 {
                self.queue.pop_front();
                self.consumed = self.consumed.wrapping_add(1);
            }
        }
    }

    /// What the other end has to be told now; callers post it.
    pub(crate) fn grant(&mut self) -> Option<Grant> {
        let half = self.sizes.receive_bytes / 2;
        let lends = self.freed >= half;
        let counts = self.consumed.wrapping_sub(self.due).cast_signed() >= 0;
        if !(lends || counts) || self.controls == 0 || !self.state.up {
            return None;
        }
        self.controls -= 1;
        self.due = self.consumed.wrapping_add(self.sizes.receives / 2);
        let message = Message::Credits(self.consumed.wrapping_add(self.sizes.receives));
        if !lends {
            return Some(Grant { message, half: None });
        }
        let addr = self.receive.addr.wrapping_add(self.grant_at.into());
        let place = Place { addr, len: half, ..self.receive };
        let into = u64::from(self.telling) * PLACE_LEN as u64;
        let table = &self.peer.table;
        let to =
            Place { addr: table.addr.wrapping_add(into), rkey: table.rkey, len: PLACE_LEN as u32 };
        self.freed -= half;
        self.granted += half;
        self.grant_at = (self.grant_at + half) % self.sizes.receive_bytes;
        self.telling = (self.telling + 1) % table.len.max(1);
        Some(Grant { message, half: Some((place.to_table(self.peer.order), to)) })
    }
}

#[cfg(test)]
#[path = "flow_tests.rs"]
mod tests;
