//! A peer that only sends, as cores in logic do: a fixed QPN, AckReq on every packet, MigReq set,
//! whole words, and messages of up to 16 MiB at a path MTU of 4096. It hears acknowledgements, and
//! goes back to a PSN that is asked for.

use crate::{ACK, SEQUENCE, ok, request, statuses};
use rnic_abi::verbs::WcOpcode;
use rnic_sim::dialogue::{Dialogue, Say};
use rnic_sim::pair::pattern;
use rnic_sim::verbs::{Connection, full_access};
use roce_wire::{ImmDt, Opcode};

const MTU: usize = 4096;
const LONGEST: usize = 16 << 20;
/// Packets of a burst of the core.
const BURST: usize = 32;

/// Just before PSNs begin again at zero.
const FIRST_PSN: u32 = 0x00ff_fff0;

fn core() -> Dialogue {
    let connection = Connection { path_mtu: 5, rq_psn: FIRST_PSN, ..Connection::default() };
    let mut d = Dialogue::new(connection);
    d.nic.mr = d.world.host(0).new_mr(d.nic.pd, LONGEST as u64, full_access());
    d
}

/// The packets of a message, of which the first has PSN `offset` after the core's first one.
fn packets(d: &Dialogue, (is_write, offset): (bool, u32), data: &[u8], imm: u32) -> Vec<Say> {
    let count = data.len().div_ceil(MTU);
    let len = u32::try_from(data.len()).expect("a message");
    let one = |(nth, payload): (usize, &[u8])| {
        let (first, last) = (nth == 0, nth + 1 == count);
        let opcode = match (is_write, first, last) {
            (true, true, true) => Opcode::RcWriteOnlyImm,
            (true, true, false) => Opcode::RcWriteFirst,
            (true, false, false) => Opcode::RcWriteMiddle,
            (true, false, true) => Opcode::RcWriteLastImm,
            (false, true, true) => Opcode::RcSendOnlyImm,
            (false, true, false) => Opcode::RcSendFirst,
            (false, false, false) => Opcode::RcSendMiddle,
            (false, false, true) => Opcode::RcSendLastImm,
        };
        let psn = offset + u32::try_from(nth).expect("a packet");
        request(d, opcode, psn, (0, len)).payload(payload).ack_req().with(|h| {
            assert!(h.bth.mig_req);
            if last {
                h.imm = Some(ImmDt(imm.to_be_bytes()));
            }
        })
    };
    data.chunks(MTU).enumerate().map(one).collect()
}

/// Says all, in bursts: every one is acknowledged, with its last PSN.
fn say_in_bursts(d: &mut Dialogue, all: &[Say], offset: u32) {
    for (nth, burst) in all.chunks(BURST).enumerate() {
        d.say_all(burst);
        let answers = d.hear_burst();
        let last = offset + u32::try_from(nth * BURST + burst.len() - 1).expect("a packet");
        let heard = answers.last().expect("an acknowledgement");
        assert_eq!((heard.opcode(), heard.psn()), (Opcode::RcAck, d.peer_psn(last)));
        assert!(answers.iter().all(|heard| heard.aeth().0 == ACK));
    }
}

#[test]
fn messages_of_any_length_of_whole_words_arrive() {
    let mut d = core();
    let mut offset = 0;
    for (number, len) in (0..).zip([4, 8, 4092, 4096, 4100, 8192, 65_536, LONGEST]) {
        for is_write in [true, false] {
            let data = pattern(len as u64, u64::from(number));
            let sge = d.nic.mr.sge(0, u32::try_from(len).expect("a length"));
            d.recv(number.into(), &[sge]);
            let all = packets(&d, (is_write, offset), &data, number);
            say_in_bursts(&mut d, &all, offset);
            offset += u32::try_from(all.len()).expect("packets");
            let received = d.received();
            assert_eq!(statuses(&received), ok([number.into()]));
            assert_eq!(
                (received[0].byte_len as usize, received[0].imm_or_key),
                (len, number.to_be())
            );
            let expected = if is_write { WcOpcode::RecvWriteImm } else { WcOpcode::Recv };
            assert_eq!(received[0].opcode, expected);
            assert!(d.memory(0, len as u64) == data, "message {number} of {len} bytes");
        }
    }
}

#[test]
fn a_core_that_goes_back_finds_its_message_where_it_was() {
    let mut d = core();
    let data = pattern(1 << 20, 5);
    d.recv(7, &[]);
    let all = packets(&d, (true, 0), &data, 9);
    let lost = 100;
    say_in_bursts(&mut d, &all[..lost], 0);
    d.say_all(&all[lost + 1..lost + 9]);
    d.expect_aeth(d.peer_psn(100), SEQUENCE, 0);
    d.expect_silence();
    assert_eq!(d.received(), []);
    // It does not know how much has arrived, and repeats more than it has to.
    d.say_all(&all[lost - 8..lost]);
    d.hear_burst();
    say_in_bursts(&mut d, &all[lost..], 100);
    assert_eq!(statuses(&d.received()), ok([7]));
    assert!(d.memory(0, data.len() as u64) == data);
}
