//! Which identifier has which port.

use super::id::Port;
use super::types::CmError;
use roce_wire::cm::PortSpace;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// By space and number: the ports, each with its identifier.
    taken: BTreeMap<(u16, u16), Vec<(Port, u32)>>,
}

impl Ports {
    /// Gives a port to an identifier; number 0 is any that is free, searched from `start` on.
    pub(super) fn take(
        &mut self,
        mut port: Port,
        handle: u32,
        start: u32,
    ) -> Result<Port, CmError> {
        if port.number == 0 {
            let mut free = (0..EPHEMERAL.1).map(|step| {
                let offset = start.wrapping_add(step.into()) % u32::from(EPHEMERAL.1);
                EPHEMERAL.0.saturating_add(u16::try_from(offset).unwrap_or(0))
            });
            port.number =
                free.find(|number| self.of(port.space, *number).is_empty()).ok_or(CmError::Full)?;
        }
        let of = self.of(port.space, port.number).iter();
        let share = |other: &Port| port.sharers.is_some() && other.sharers == port.sharers;
        let collides = |other: &Port| overlap(other, &port) && !share(other);
        if of.map(|(other, _)| other).any(collides) {
            return Err(CmError::AddressInUse);
        }
        self.taken.entry((port.space as u16, port.number)).or_default().push((port, handle));
        Ok(port)
    }

    pub(super) fn give(&mut self, port: Port, handle: u32) {
        let key = (port.space as u16, port.number);
        if let Some(of) = self.taken.get_mut(&key) {
            of.retain(|(_, other)| *other != handle);
            if of.is_empty() {
                self.taken.remove(&key);
            }
        }
    }

    fn of(&self, space: PortSpace, number: u16) -> &[(Port, u32)] {
        self.taken.get(&(space as u16, number)).map_or(&[], Vec::as_slice)
    }

    /// Identifiers, also the own, of ports that overlap with this one.
    pub(super) fn overlapping(&self, port: &Port) -> impl Iterator<Item = u32> {
        let port = *port;
        let of = self.of(port.space, port.number).iter();
        of.filter(move |(other, _)| overlap(other, &port)).map(|(_, handle)| *handle)
    }

    /// Identifiers to which what is sent to this address and port may be for: the one that named
    /// the address, those that take its family, those that take all.
    pub(super) fn candidates(
        &self,
        space: PortSpace,
        number: u16,
        address: IpAddr,
    ) -> impl Iterator<Item = u32> {
        let of = self.of(space, number);
        let at = move |wanted: Option<IpAddr>| {
            of.iter().filter(move |(port, _)| port.address == wanted).map(|(_, handle)| *handle)
        };
        at(Some(address)).chain(at(Some(all_like(address)))).chain(at(None))
    }
}

/// What is sent to one of them may be for the other one.
fn overlap(one: &Port, other: &Port) -> bool {
    match (one.address, other.address) {
        (Some(one), Some(other)) => {
            let is_all = one.is_unspecified() || other.is_unspecified();
            one == other || is_all && one.is_ipv4() == other.is_ipv4()
        }
        _ => true,
    }
}

/// All addresses of the same family.
fn all_like(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// First of the ports for those that want any, and how many there are: as Linux has it.
const EPHEMERAL: (u16, u16) = (32_768, 28_232);
