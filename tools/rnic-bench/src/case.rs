//! What can be measured, and the names of the cases.

use anyhow::{Context, Result, bail, ensure};

/// How packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkKind {
    Udp,
    AfPacket,
    XdpNative,
    XdpGeneric,
}

/// How payload is copied from and to the memory of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    /// Memory that is mapped here: a plain copy.
    Memcpy,
    /// Memory of another process.
    ProcessVm,
}

/// Sizes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Payload bytes of a packet.
    pub(crate) payload: usize,
    /// Packets of a train.
    pub(crate) train: usize,
    /// Bytes of a message whose first packet has a RETH and therefore travels alone; 0 for a
    /// stream of equal packets.
    pub(crate) message: usize,
    /// Bytes of application memory that the stream uses, again and again: several messages long,
    /// where many queue pairs have memory each.
    pub(crate) memory: usize,
    /// Packets that are fetched and sent together.
    pub(crate) burst: usize,
    /// Packets in flight at most.
    pub(crate) in_flight: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Stream { link: LinkKind, shape: Shape, copy: Copy },
    Ping { link: LinkKind, packets: usize },
    Switch,
    Line,
    Poke { copy: Copy },
    Loopback { copy: Copy },
}

/// UDP payload of the longest train.
const MAX_TRAIN_BYTES: usize = 65_507;
/// Base transport header and ICRC around the payload.
const OVERHEAD: usize = 16;
/// Segments of a train that every kernel accepts.
const MAX_SEGMENTS: usize = 64;
/// Memory of a stream of equal packets: the size of the largest message that it is compared with,
/// which programs send from the same memory again and again.
const STREAM_MEMORY: usize = 1 << 20;
/// Trains in flight at most.
const TRAINS_IN_FLIGHT: usize = 24;
/// Single packets that are sent together, and those in flight at most.
const BURST: usize = 16;
const IN_FLIGHT: usize = 192;

impl Case {
    pub(crate) fn parse(name: &str) -> Result<Self> {
        let words: Vec<&str> = name.split('/').collect();
        match words[..] {
            ["ping", link] => Ok(Self::Ping { link: LinkKind::parse(link)?, packets: 1 }),
            ["ping-2", link] => Ok(Self::Ping { link: LinkKind::parse(link)?, packets: 2 }),
            ["switch"] => Ok(Self::Switch),
            ["line"] => Ok(Self::Line),
            ["poke", copy] => Ok(Self::Poke { copy: Copy::parse(copy)? }),
            ["loopback", copy] => Ok(Self::Loopback { copy: Copy::parse(copy)? }),
            [link, shape, copy] => {
                let link = LinkKind::parse(link)?;
                let shape = Shape::parse(shape, link)?;
                Ok(Self::Stream { link, shape, copy: Copy::parse(copy)? })
            }
            _ => bail!("no case is called {name}"),
        }
    }
}

impl LinkKind {
    fn parse(name: &str) -> Result<Self> {
        match name {
            "udp" => Ok(Self::Udp),
            "af-packet" => Ok(Self::AfPacket),
            "xdp-native" => Ok(Self::XdpNative),
            "xdp-generic" => Ok(Self::XdpGeneric),
            _ => bail!("no link is called {name}"),
        }
    }

    fn has_trains(self) -> bool {
        matches!(self, Self::Udp | Self::AfPacket)
    }
}

impl Copy {
    fn parse(name: &str) -> Result<Self> {
        match name {
            "memcpy" => Ok(Self::Memcpy),
            "process-vm" => Ok(Self::ProcessVm),
            _ => bail!("no way to copy is called {name}"),
        }
    }
}

impl Shape {
    fn parse(name: &str, link: LinkKind) -> Result<Self> {
        let shape = match name.split_once('x') {
            Some((payload, train)) => Self::equal(number(payload)?, number(train)?),
            None => {
                let sizes =
                    name.strip_prefix("write-").with_context(|| format!("no shape {name}"))?;
                match sizes.split('-').collect::<Vec<_>>()[..] {
                    [message, payload] => Self::write(number(message)?, number(payload)?, 1)?,
                    [message, payload, queues] => {
                        Self::write(number(message)?, number(payload)?, number(queues)?)?
                    }
                    _ => bail!("no shape {name}"),
                }
            }
        };
        ensure!(shape.payload > 0 && shape.train > 0, "a shape has no zero: {name}");
        ensure!(
            shape.train <= MAX_SEGMENTS
                && shape.train * (shape.payload + OVERHEAD) <= MAX_TRAIN_BYTES,
            "{name} is more than one train holds"
        );
        Ok(if link.has_trains() { shape } else { shape.without_trains() })
    }

    fn equal(payload: usize, train: usize) -> Self {
        let burst = if train == 1 { BURST } else { train };
        let in_flight = if train == 1 { IN_FLIGHT } else { TRAINS_IN_FLIGHT * train };
        let memory = STREAM_MEMORY / payload.max(1) * payload;
        Self { payload, train, message: 0, memory, burst, in_flight }
    }

    fn write(message: usize, payload: usize, queues: usize) -> Result<Self> {
        ensure!(
            payload > 0 && message > payload && message.is_multiple_of(payload),
            "a message must be several whole packets"
        );
        let memory = message.checked_mul(queues).filter(|memory| *memory > 0);
        let memory = memory.context("too many queues, or none")?;
        let train = (MAX_TRAIN_BYTES / (payload + OVERHEAD)).min(MAX_SEGMENTS);
        // A message's FIRST and the train after it are sent together.
        let burst = (train + 1).min(message / payload);
        let in_flight = TRAINS_IN_FLIGHT * train;
        Ok(Self { payload, train, message, memory, burst, in_flight })
    }

    /// Of how many bytes a burst is a part.
    pub(crate) fn stretch(&self) -> usize {
        if self.message > 0 { self.message } else { self.memory }
    }

    fn without_trains(self) -> Self {
        Self { train: 1, burst: BURST, in_flight: IN_FLIGHT, ..self }
    }
}

fn number(text: &str) -> Result<usize> {
    text.parse().with_context(|| format!("{text} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_of_64_kib_is_a_first_and_one_train() {
        let Case::Stream { shape, .. } = Case::parse("udp/write-65536-4096/memcpy").unwrap() else {
            panic!("not a stream")
        };
        assert_eq!((shape.train, shape.burst, shape.memory), (15, 16, 65536));
    }

    #[test]
    fn messages_of_many_queues_have_memory_each() {
        let name = "udp/write-65536-4096-128/memcpy";
        let Case::Stream { shape, .. } = Case::parse(name).unwrap() else { panic!("not a stream") };
        assert_eq!((shape.message, shape.memory), (65536, 128 * 65536));
    }

    #[test]
    fn frames_travel_alone() {
        let Case::Stream { shape, .. } = Case::parse("xdp-native/4096x15/memcpy").unwrap() else {
            panic!("not a stream")
        };
        assert_eq!((shape.train, shape.burst), (1, 16));
    }

    #[test]
    fn a_ping_has_one_packet_or_two() {
        let link = LinkKind::XdpNative;
        for (name, packets) in [("ping/xdp-native", 1), ("ping-2/xdp-native", 2)] {
            assert_eq!(Case::parse(name).unwrap(), Case::Ping { link, packets });
        }
    }

    #[test]
    fn what_needs_no_link_has_none_in_its_name() {
        assert_eq!(Case::parse("switch").unwrap(), Case::Switch);
        assert_eq!(Case::parse("line").unwrap(), Case::Line);
        let copy = Copy::ProcessVm;
        assert_eq!(Case::parse("poke/process-vm").unwrap(), Case::Poke { copy });
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for name in [
            "udp/4096x16/memcpy",
            "udp/0x1/memcpy",
            "udp/write-100-4096/memcpy",
            "udp/write-65536-4096-0/memcpy",
            "udp/write-65536/memcpy",
            "poke",
            "x",
            "",
        ] {
            assert!(Case::parse(name).is_err(), "{name}");
        }
    }
}
