//! Questions to the kernel's routing netlink, and its announcements.

use anyhow::{Context, Result, bail};
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::os::fd::{AsFd, BorrowedFd};

/// A routing netlink socket.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// One to ask with.
    pub(super) fn new() -> Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE).context("cannot open a netlink socket")?;
        socket.bind_auto().context("cannot bind a netlink socket")?;
        socket.connect(&SocketAddr::new(0, 0)).context("cannot connect a netlink socket")?;
        Ok(Self { socket, sequence: 0 })
    }

    /// One that hears of changes to links, addresses and neighbours; reading it never waits.
    pub(super) fn listener() -> Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE).context("cannot open a netlink socket")?;
        let groups = [libc::RTNLGRP_LINK, libc::RTNLGRP_NEIGH]
            .into_iter()
            .chain([libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR]);
        socket.bind(&SocketAddr::new(0, 0)).context("cannot bind a netlink socket")?;
        for group in groups {
            socket.add_membership(group).context("cannot listen to changes of the network")?;
        }
        socket.set_non_blocking(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends `question`; all answers. With `dump` for lists, without for one answer.
    ///
    /// # Errors
    /// The kernel's refusal as the root cause.
    pub(super) fn ask(
        &mut self,
        question: RouteNetlinkMessage,
        dump: bool,
    ) -> Result<Vec<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | if dump { NLM_F_DUMP } else { 0 };
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).context("cannot ask the kernel")?;
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full().context("the kernel does not answer")?;
            for message in messages(&bytes) {
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(error.to_io().into());
                    }
                    NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => return Ok(answers),
                    NetlinkPayload::Overrun(_) => bail!("the kernel's answer got lost"),
                    _ => {}
                }
                if !dump {
                    return Ok(answers);
                }
            }
        }
    }

    /// What was announced since the last call; `None` when announcements got lost.
    pub(super) fn announced(&self) -> Option<Vec<RouteNetlinkMessage>> {
        let mut all = Vec::new();
        loop {
            match self.socket.recv_from_full() {
                Ok((bytes, _)) => all.extend(messages(&bytes).filter_map(|m| match m.payload {
                    NetlinkPayload::InnerMessage(announcement) => Some(announcement),
                    _ => None,
                })),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Some(all),
                Err(_) => return None,
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The messages of a datagram that can be understood.
fn messages(bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<RouteNetlinkMessage>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        loop {
            let len = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
            let whole = rest.get(..len).filter(|whole| !whole.is_empty())?;
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            if let Ok(message) = NetlinkMessage::deserialize(whole) {
                return Some(message);
            }
        }
    })
}
