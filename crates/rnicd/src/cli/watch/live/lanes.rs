//! Between which packets go: this device and its peers, or two queue pairs of this device.

use rnic_page::{Party, Step};
use std::collections::VecDeque;
use std::net::IpAddr;

/// What a lane is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// This device.
    Own,
    /// A queue pair of this device that talks to another one.
    Qp(u32),
    Peer(IpAddr),
}

/// See the [module](self).
pub(super) struct Lanes {
    ends: Vec<Option<End>>,
    parties: Vec<Party>,
}

impl Lanes {
    /// Of a device.
    pub(super) fn new(device: &str) -> Self {
        let party = Party { name: device.to_owned(), address: String::new() };
        Self { ends: vec![Some(End::Own)], parties: vec![party] }
    }

    /// What the page calls them.
    pub(super) fn parties(&self) -> &[Party] {
        &self.parties
    }

    /// The lane of one that has one.
    pub(super) fn known(&self, end: End) -> Option<usize> {
        self.ends.iter().position(|other| *other == Some(end))
    }

    /// The lane of one. A new one gets a lane that no step is about, nor the one `besides`; where
    /// there is none, it shares the last with others.
    pub(super) fn of(&mut self, end: End, besides: Option<usize>, steps: &VecDeque<Step>) -> usize {
        if let Some(known) = self.known(end) {
            return known;
        }
        let name = match end {
            End::Own => return 0,
            End::Qp(qpn) => format!("QP {qpn:#08x}"),
            End::Peer(address) => address.to_string(),
        };
        let party = Party { name, address: String::new() };
        if self.ends.len() < MOST - 1 {
            self.ends.push(Some(end));
            self.parties.push(party);
            return self.ends.len() - 1;
        }
        let is_used = |lane: usize| {
            let to = |step: &Step| step.flight.as_ref().map(|flight| flight.to);
            besides == Some(lane)
                || steps.iter().any(|step| step.host == lane || to(step) == Some(lane))
        };
        if let Some(free) = (1..MOST - 1).find(|lane| !is_used(*lane)) {
            self.ends[free] = Some(end);
            self.parties[free] = party;
            return free;
        }
        if self.ends.len() < MOST {
            self.ends.push(None);
            self.parties.push(Party { name: "others".to_owned(), address: String::new() });
        }
        MOST - 1
    }
}

/// More are too narrow to read.
const MOST: usize = 6;
