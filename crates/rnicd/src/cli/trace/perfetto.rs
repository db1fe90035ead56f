//! A timeline in the Trace Event format, which the Perfetto viewer loads: a track for each queue
//! pair, a slice for each WQE from its fetch to its end, and an instant for each other event.

use rnic_host::observe::Record;
use rnic_host::observe::story::MessageId;
use roce_wire::Psn;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Write};

/// What is drawn of one shard.
#[derive(Default)]
struct Shard {
    /// Tracks that have a name.
    named: HashSet<u32>,
    /// Messages that have no end yet, with their last PSN.
    open: HashMap<u32, VecDeque<(u32, Psn)>>,
    /// How many these are.
    opened: usize,
}

/// See the [module](self). Its memory is bounded: each packet that arrives for a queue pair
/// which does not exist has an event, and names that number.
#[derive(Default)]
pub(super) struct Timeline {
    /// No engine uses up the room of another one's.
    shards: HashMap<u8, Shard>,
    /// WQEs without a slice, as there were too many.
    unopened: u64,
    is_begun: bool,
}

impl Timeline {
    /// Draws an event.
    pub(super) fn tell(
        &mut self,
        to: &mut impl Write,
        shard: u8,
        record: &Record,
        id: Option<MessageId>,
    ) -> io::Result<()> {
        let wanted = match (record.number("qpn"), record.number("dest_qpn")) {
            (Some(qpn), _) => qpn,
            // Peers may send to any number: that makes no track.
            (None, Some(to)) if !self.shards.entry(shard).or_default().named.contains(&to) => {
                OTHERS
            }
            (None, to) => to.unwrap_or(0),
        };
        let track = self.track(to, shard, wanted)?;
        let time = record.time_ns as f64 / 1000.0;
        match &*record.event {
            "wqe_fetched" => {
                let last = record.number("last_psn");
                let of_shard = self.shards.entry(shard).or_default();
                let has_room = of_shard.opened < MOST_OPEN;
                self.unopened += u64::from(!has_room);
                if let (Some(id), Some(last), true) = (id, last, has_room) {
                    of_shard.opened += 1;
                    let open = of_shard.open.entry(id.qpn).or_default();
                    open.push_back((id.message, Psn::new(last)));
                    let name = format!(
                        "{} {} bytes",
                        record.name("operation").unwrap_or("?"),
                        record.number("length").unwrap_or(0)
                    );
                    let begin = slice(
                        "b",
                        time,
                        shard,
                        id,
                        json!({ "name": name, "args": record.to_json() }),
                    );
                    return self.put(to, &begin);
                }
            }
            "acked" => {
                if let (Some(id), Some(psn)) = (id, record.number("psn")) {
                    let psn = Psn::new(psn);
                    self.end(to, (time, shard, id.qpn), |_, last| psn.distance_from(last) >= 0)?;
                }
            }
            "completed" => {
                if let Some(id) = id {
                    let ends = |message: u32, _| id.message.wrapping_sub(message) < 1 << 31;
                    self.end(to, (time, shard, id.qpn), ends)?;
                }
            }
            _ => {}
        }
        let name = match (record.name("opcode"), record.number("psn")) {
            (Some(opcode), Some(psn)) => format!("{} {opcode} {psn:#08x}", record.event),
            _ => record.event.clone(),
        };
        let mut args = record.to_json();
        args.extend(id.map(|id| ("id".to_owned(), id.to_string().into())));
        let instant = json!({
            "ph": "i", "s": "t", "ts": time, "pid": shard, "tid": track, "cat": record.event,
            "name": name, "args": args,
        });
        self.put(to, &instant)
    }

    /// The number of a queue pair's track, which has a name from then on.
    fn track(&mut self, to: &mut impl Write, shard: u8, qpn: u32) -> io::Result<u32> {
        let named = &mut self.shards.entry(shard).or_default().named;
        let track = if named.contains(&qpn) || named.len() < MOST_TRACKS { qpn } else { OTHERS };
        if named.insert(track) {
            let name = match track {
                0 => "device".to_owned(),
                OTHERS => "further QPs".to_owned(),
                qpn => format!("QP {qpn:#08x}"),
            };
            let args = json!({ "name": name });
            let named = json!({
                "ph": "M", "name": "thread_name", "pid": shard, "tid": track, "args": args,
            });
            self.put(to, &named)?;
        }
        Ok(track)
    }

    /// WQEs that are instants only, because too many had no end.
    pub(super) fn unopened(&self) -> u64 {
        self.unopened
    }

    /// Ends messages of a queue pair, from the oldest on, while `ends` says so.
    fn end(
        &mut self,
        to: &mut impl Write,
        (time, shard, qpn): (f64, u8, u32),
        ends: impl Fn(u32, Psn) -> bool,
    ) -> io::Result<()> {
        while let Some(of_shard) = self.shards.get_mut(&shard)
            && let Some(open) = of_shard.open.get_mut(&qpn)
            && let Some(&(message, last)) = open.front()
            && ends(message, last)
        {
            open.pop_front();
            if open.is_empty() {
                of_shard.open.remove(&qpn);
            }
            of_shard.opened -= 1;
            let end = slice("e", time, shard, MessageId { qpn, message }, json!({ "name": "" }));
            self.put(to, &end)?;
        }
        Ok(())
    }

    fn put(&mut self, to: &mut impl Write, event: &Value) -> io::Result<()> {
        let separator = if std::mem::replace(&mut self.is_begun, true) { "," } else { "" };
        write!(to, "{separator}\n{event}")
    }

    /// The end of the file.
    pub(super) fn finish(&self, to: &mut impl Write) -> io::Result<()> {
        writeln!(to, "\n]")
    }
}

/// The begin or the end of a WQE.
fn slice(phase: &str, time: f64, shard: u8, id: MessageId, more: Value) -> Value {
    let mut slice = json!({
        "ph": phase, "ts": time, "pid": shard, "tid": id.qpn, "cat": "wqe", "id": id.to_string(),
    });
    if let (Value::Object(slice), Value::Object(more)) = (&mut slice, more) {
        slice.extend(more);
    }
    slice
}

/// Tracks of queue pairs of a shard; further ones share a track.
const MOST_TRACKS: usize = 4096;
/// No queue pair has this number.
const OTHERS: u32 = u32::MAX;
/// Slices of a shard without an end.
const MOST_OPEN: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_abi::verbs::WrOpcode;
    use rnic_core::Event;
    use rnic_core::event::{DropReason, PacketInfo};
    use roce_wire::{Opcode, Qpn};
    use std::time::SystemTime;

    #[test]
    fn packets_for_no_queue_pair_use_up_no_tracks() {
        let (mut timeline, mut drawn) = (Timeline::default(), b"[".to_vec());
        let mut tell = |event: &Event| {
            let record = Record::new(SystemTime::UNIX_EPOCH, event);
            timeline.tell(&mut drawn, 0, &record, None).unwrap();
        };
        for qpn in 1..10_000 {
            let (opcode, dest_qpn, psn) = (Opcode::RcSendOnly, Qpn::new(qpn), Psn::new(1));
            let packet =
                PacketInfo { opcode, dest_qpn, psn, ack_req: false, payload: 0, aeth: None };
            tell(&Event::Dropped { reason: DropReason::NoQp, packet: Some(packet) });
        }
        tell(&Event::Acked { qpn: Qpn::new(0x5555), psn: Psn::new(1) });
        timeline.finish(&mut drawn).unwrap();
        let drawn: Vec<Value> = serde_json::from_slice(&drawn).unwrap();
        assert_eq!(drawn.last().unwrap()["tid"], 0x5555);
    }

    /// The timeline of so many queue pairs and packets for others that are none, and of a WQE.
    #[test]
    fn packets_for_any_number_of_queue_pairs_take_bounded_memory() {
        let (mut timeline, mut drawn) = (Timeline::default(), b"[".to_vec());
        let mut tell = |event: &Event, id| {
            timeline.tell(&mut drawn, 0, &Record::new(SystemTime::UNIX_EPOCH, event), id).unwrap();
            timeline.shards[&0].named.len()
        };
        let mut most = 0;
        for qpn in 1..10_000 {
            let (qpn, psn) = (Qpn::new(qpn), Psn::new(1));
            most = most.max(tell(&Event::Acked { qpn, psn }, None));
        }
        for qpn in 10_000..20_000 {
            let (opcode, dest_qpn, psn) = (Opcode::RcSendOnly, Qpn::new(qpn), Psn::new(1));
            let packet =
                PacketInfo { opcode, dest_qpn, psn, ack_req: false, payload: 0, aeth: None };
            let (reason, packet) = (DropReason::NoQp, Some(packet));
            most = most.max(tell(&Event::Dropped { reason, packet }, None));
        }
        assert!(most <= MOST_TRACKS + 1, "{most} tracks");
        let (qpn, message) = (Qpn::new(9), 4);
        let fetched = Event::WqeFetched {
            qpn,
            message,
            operation: WrOpcode::Send,
            wr_id: 0,
            length: 1,
            first_psn: Psn::new(7),
            last_psn: Psn::new(7),
            peer_qpn: None,
        };
        let id = Some(MessageId { qpn: qpn.value(), message });
        tell(&fetched, id);
        tell(&Event::Acked { qpn, psn: Psn::new(7) }, id);
        let ended = &timeline.shards[&0];
        assert!(ended.open.is_empty() && ended.opened == 0, "an ended WQE is kept");
        timeline.shards.get_mut(&0).unwrap().opened = MOST_OPEN;
        timeline.tell(&mut drawn, 0, &Record::new(SystemTime::UNIX_EPOCH, &fetched), id).unwrap();
        assert_eq!((timeline.unopened(), timeline.shards[&0].open.len()), (1, 0));
        // There is room for another engine's.
        timeline.tell(&mut drawn, 4, &Record::new(SystemTime::UNIX_EPOCH, &fetched), id).unwrap();
        assert_eq!((timeline.unopened(), timeline.shards[&4].open.len()), (1, 1));
        timeline.finish(&mut drawn).unwrap();
        let drawn: Vec<Value> = serde_json::from_slice(&drawn).unwrap();
        let shared = drawn.iter().filter(|one| one["tid"] == OTHERS && one["ph"] == "i").count();
        assert_eq!(shared, 9_999 - MOST_TRACKS + 10_000);
    }
}
