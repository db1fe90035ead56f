//! XRC domains of a host, and what belongs to them.

use crate::host::{CLIENT, Host};
use crate::srq::SrqId;
use crate::verbs::{CqId, QpId, QpSetup, SendWr};
use rnic_abi::doorbell::{AREA_WORDS, Doorbells};
use rnic_abi::verbs::QpType;
use rnic_abi::words::Words;
use rnic_core::command::{
    ClientCommand, ClientId, Command, CommandError, NewXrcSrq, Outcome, XrcOpen,
};
use rnic_core::ports::SpaceId;

/// A domain that only one client has.
pub const PRIVATE: XrcOpen = XrcOpen { file: None, create: true, exclusive: false };

impl SendWr {
    /// For this shared receive queue of the peer.
    #[must_use]
    pub fn named(mut self, srqn: u32) -> Self {
        self.srqn = srqn;
        self
    }
}

impl Host {
    /// Opens a domain.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn open_xrcd(&mut self, how: XrcOpen) -> u32 {
        self.open_xrcd_as(CLIENT, how).expect("the engine opens a domain")
    }

    /// Opens a domain for a client.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn open_xrcd_as(&mut self, client: ClientId, how: XrcOpen) -> Result<u32, CommandError> {
        match self.command_of(client, ClientCommand::OpenXrcd(how))? {
            Outcome::Handle(xrcd) => Ok(xrcd),
            other => panic!("OpenXrcd has the outcome {other:?}"),
        }
    }

    /// Executes a command of some client.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn command_of(
        &mut self,
        client: ClientId,
        command: ClientCommand,
    ) -> Result<Outcome, CommandError> {
        self.called = true;
        self.engine.execute(self.now, Command::Client(client, command))
    }

    /// A further client, which has nothing yet.
    ///
    /// # Panics
    /// When there is one with that number.
    pub fn add_client(&mut self, client: ClientId) {
        let doorbells = Doorbells::new(Words::heap(AREA_WORDS)).expect("the area is large enough");
        let space = SpaceId(u64::from(client.0) + 100);
        let add = Command::AddClient { client, space, doorbells };
        self.engine.execute(self.now, add).expect("a new client");
    }

    /// Creates a shared receive queue of a domain.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn create_xrc_srq(&mut self, pd: u32, xrcd: u32, cq: CqId, max_wr: u32) -> SrqId {
        let xrc = NewXrcSrq { xrcd, cq: self.cq_handle(cq) };
        let srq = self.new_srq(pd, (max_wr, 4), Some(xrc)).expect("the engine makes the queue");
        self.srqs[srq.0].cq = Some(cq);
        srq
    }

    /// Its number in packets.
    pub fn srqn(&self, srq: SrqId) -> u32 {
        self.srqs[srq.0].srqn
    }

    /// Destroys a shared receive queue. What completed and was not polled is of no account any
    /// more.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), CommandError> {
        self.command(ClientCommand::DestroySrq { srq: self.srqs[srq.0].handle }).map(drop)
    }

    /// Creates a target.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn create_target(&mut self, xrcd: u32) -> QpId {
        // It completes nowhere.
        let nowhere = CqId(usize::MAX);
        let setup = QpSetup { qp_type: QpType::XrcRecv, ..QpSetup::new(0, nowhere) };
        let (handle, qpn) = match self.command(ClientCommand::CreateTarget { xrcd }) {
            Ok(Outcome::Qp { qp, qpn }) => (qp, qpn),
            other => panic!("CreateTarget has the outcome {other:?}"),
        };
        self.add_qp(setup, (handle, qpn))
    }

    /// A further reference of a client to a target.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn open_qp_as(
        &mut self,
        client: ClientId,
        xrcd: u32,
        qpn: u32,
    ) -> Result<u32, CommandError> {
        match self.command_of(client, ClientCommand::OpenQp { xrcd, qpn })? {
            Outcome::Qp { qp, .. } => Ok(qp),
            other => panic!("OpenQp has the outcome {other:?}"),
        }
    }

    /// The same of this host's own client.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn open_qp(&mut self, xrcd: u32, qpn: u32) -> Result<u32, CommandError> {
        self.open_qp_as(CLIENT, xrcd, qpn)
    }

    /// Gives a reference up.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn close_reference(&mut self, qp: u32) -> Result<Outcome, CommandError> {
        self.command_of(CLIENT, ClientCommand::DestroyQp { qp })
    }
}
