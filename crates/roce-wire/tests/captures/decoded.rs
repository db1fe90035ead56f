//! The decoded fields that accompany the JSON vectors, against ours.

use crate::pcap::vectors;
use roce_wire::{Datagram, Frame, FrameError};
use serde_json::Value;

#[test]
fn captured_fields_agree() {
    assert_eq!(check_file("captured.json"), 27);
}

#[test]
fn synthetic_fields_agree() {
    assert_eq!(check_file("synthetic.json"), 60);
}

/// Returns the number of frames looked at.
fn check_file(name: &str) -> usize {
    let text = std::fs::read_to_string(vectors().join(name)).expect("vectors");
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let frames = file["frames"].as_array().expect("frames");
    for vector in frames {
        let name = vector["name"].as_str().expect("name");
        let bytes = unhex(vector["frame"].as_str().expect("frame"));
        let decoded = Fields { name, fields: &vector["decoded"] };
        if decoded.text("l3") == "v1" {
            assert_eq!(Frame::parse(&bytes).err(), Some(FrameError::RoceV1), "{name}");
            continue;
        }
        let frame = Frame::parse(&bytes).unwrap_or_else(|reason| panic!("{name}: {reason}"));
        let datagram =
            Datagram::parse(frame.payload()).unwrap_or_else(|reason| panic!("{name}: {reason}"));
        check_network(&decoded, &frame);
        check_transport(&decoded, &datagram);
        check_extensions(&decoded, &datagram);
    }
    frames.len()
}

fn check_network(decoded: &Fields<'_>, frame: &Frame<'_>) {
    let flow = frame.flow;
    decoded.is("src", &flow.src.to_string());
    decoded.is("dst", &flow.dst.to_string());
    decoded.is("udp_sport", &flow.sport.to_string());
    let tags = decoded.fields["vlan"].as_array().expect("vlan");
    let tag = tags.first().map(|tag| tag.as_u64().expect("tag"));
    assert_eq!(frame.vlan.map(|tag| u64::from(tag.0)), tag, "{}", decoded.name);
    if flow.is_ipv4() {
        decoded.number("ip_id", frame.ip_id);
        decoded.number("df", u8::from(frame.flow.df));
        decoded.number("ttl", flow.hop_limit);
        decoded.number("tos", flow.tos);
    } else {
        decoded.number("tclass", flow.tos);
        decoded.number("flow_label", flow.flow_label);
        decoded.number("hoplimit", flow.hop_limit);
    }
}

fn check_transport(decoded: &Fields<'_>, datagram: &Datagram<'_>) {
    let bth = datagram.bth();
    decoded.is("opname", bth.opcode.name());
    decoded.number("opcode", bth.opcode.code());
    decoded.number("se", u8::from(bth.solicited));
    decoded.number("migreq", u8::from(bth.mig_req));
    decoded.number("pad", bth.pad);
    decoded.number("pkey", bth.pkey.0);
    decoded.number("byte4", u8::from(bth.fecn) << 7 | u8::from(bth.becn) << 6 | bth.resv6);
    decoded.number("dest_qp", bth.dest_qp.value());
    decoded.number("ackreq", u8::from(bth.ack_req));
    decoded.number("psn", bth.psn.value());
    decoded.number("payload_len", datagram.payload_len() as u64);
    let icrc = u32::from_be_bytes(datagram.icrc_bytes());
    decoded.is("icrc_wire", &format!("{icrc:08x}"));
}

fn check_extensions(decoded: &Fields<'_>, datagram: &Datagram<'_>) {
    let headers = datagram.headers();
    decoded.group("reth", headers.reth, |group, reth| {
        group.number("va", reth.va);
        group.number("rkey", reth.rkey.0);
        group.number("dmalen", reth.dma_len);
    });
    decoded.group("aeth", headers.aeth, |group, aeth| {
        group.number("syndrome", aeth.syndrome.to_u8());
        group.number("msn", aeth.msn.value());
    });
    decoded.group("deth", headers.deth, |group, deth| {
        group.number("qkey", deth.qkey.0);
        group.number("src_qp", deth.src_qp.value());
    });
    decoded.group("atomiceth", headers.atomic, |group, atomic| {
        group.number("va", atomic.va);
        group.number("rkey", atomic.rkey.0);
        group.number("swap_add", atomic.swap_or_add);
        group.number("cmp", atomic.compare);
    });
    decoded.group("feth", headers.feth, |group, feth| {
        group.number("plt", feth.placement());
        group.number("sel", feth.selectivity());
    });
    decoded.optional("imm", headers.imm.map(|imm| u64::from(u32::from_be_bytes(imm.0))));
    decoded.optional("ieth_rkey", headers.ieth.map(|ieth| u64::from(ieth.rkey.0)));
    decoded.optional("xrceth_srqn", headers.xrceth.map(|xrceth| u64::from(xrceth.srq)));
    decoded.optional("atomic_ack_orig", headers.atomic_ack.map(|ack| ack.original));
}

/// Fields of one frame in the JSON, numbers or hexadecimal strings.
struct Fields<'a> {
    name: &'a str,
    fields: &'a Value,
}

impl Fields<'_> {
    fn text(&self, key: &str) -> String {
        match &self.fields[key] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    #[track_caller]
    fn is(&self, key: &str, ours: &str) {
        assert_eq!(self.text(key), ours, "{}: {key}", self.name);
    }

    #[track_caller]
    fn number(&self, key: &str, ours: impl ToNumber) {
        assert_eq!(self.text(key).to_number(), ours.to_number(), "{}: {key}", self.name);
    }

    #[track_caller]
    fn optional(&self, key: &str, ours: Option<u64>) {
        let theirs = self.fields.get(key).map(|_| self.text(key).to_number());
        assert_eq!(theirs, ours, "{}: {key}", self.name);
    }

    #[track_caller]
    fn group<T>(&self, key: &str, ours: Option<T>, check: impl FnOnce(&Fields<'_>, T)) {
        assert_eq!(self.fields.get(key).is_some(), ours.is_some(), "{}: {key}", self.name);
        if let Some(ours) = ours {
            check(&Fields { name: self.name, fields: &self.fields[key] }, ours);
        }
    }
}

trait ToNumber {
    fn to_number(self) -> u64;
}

impl ToNumber for String {
    fn to_number(self) -> u64 {
        match self.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => self.parse(),
        }
        .unwrap_or_else(|_| panic!("{self:?} is not a number"))
    }
}

macro_rules! to_number {
    ($($ty:ty)*) => {$(
        impl ToNumber for $ty {
            fn to_number(self) -> u64 {
                u64::from(self)
            }
        }
    )*};
}
to_number!(u8 u16 u32 u64);

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex"))
        .collect()
}
