//! Which frames a capture shows.

use clap::Args;
use rnic_host::observe::comments::Commented;
use roce_wire::{Frame, Opcode};
use std::net::IpAddr;

/// See the [module](self). What is given must all be true of a frame.
#[derive(Args, Debug, Default)]
pub(super) struct Filter {
    /// Only frames of this queue pair of the device, sent or received; decimal or 0x..., up to
    /// 0xffffff
    #[arg(long, value_name = "QPN", value_parser = qpn)]
    qp: Option<u32>,
    /// Only frames from or to this address
    #[arg(long, value_name = "IP")]
    peer: Option<IpAddr>,
    /// Only frames with this opcode, as `rnic capture` shows it (RC_SEND_ONLY), or as a number up
    /// to 255
    #[arg(long, value_name = "OPCODE", value_parser = opcode)]
    opcode: Option<u8>,
    /// Only frames with which something is wrong: sent again, dropped, refused, refusals, disturbed
    #[arg(long)]
    only_errors: bool,
}

impl Filter {
    /// Whether a frame is shown.
    pub(super) fn matches(&self, frame: &Commented) -> bool {
        let has_peer = |peer: IpAddr| {
            Frame::parse(&frame.captured.frame)
                .is_ok_and(|frame| frame.flow.src == peer || frame.flow.dst == peer)
        };
        self.qp.is_none_or(|qpn| frame.qpns.contains(&Some(qpn)))
            && self.opcode.is_none_or(|opcode| frame.opcode == Some(opcode))
            && self.peer.is_none_or(has_peer)
            && (!self.only_errors || frame.is_trouble)
    }
}

fn qpn(text: &str) -> Result<u32, String> {
    number(text).filter(|qpn| *qpn <= 0xff_ffff).ok_or_else(|| {
        format!("{text:?} is no QP number: give a number up to 0xffffff, as `rnic qp` shows it")
    })
}

fn opcode(text: &str) -> Result<u8, String> {
    Opcode::named(&text.to_ascii_uppercase())
        .map(Opcode::code)
        .or_else(|| number(text).and_then(|code| u8::try_from(code).ok()))
        .ok_or_else(|| format!("{text:?} is no opcode: give a name like RC_SEND_ONLY, or a number"))
}

/// Decimal, or hexadecimal with 0x.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_understood_and_others_refused() {
        assert_eq!((qpn("0x11"), qpn("17")), (Ok(17), Ok(17)));
        assert!(qpn("0x1000000").is_err() && qpn("x").is_err() && qpn("").is_err());
        assert_eq!((opcode("rc_send_only"), opcode("0x11")), (Ok(4), Ok(17)));
        assert!(opcode("256").is_err() && opcode("RC_NOTHING").is_err());
    }
}
