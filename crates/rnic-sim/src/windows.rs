//! Memory windows of a simulated application.

use crate::host::Host;
use crate::verbs::{Mr, Remote, SendWr};
use rnic_abi::verbs::{AccessFlags, WrOpcode};
use rnic_core::command::WindowType;
use rnic_core::command::{ClientCommand, CommandError, Outcome};

/// A memory window of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mw {
    /// Engine's handle.
    pub handle: u32,
    /// Its key now.
    pub rkey: u32,
}

impl Mw {
    /// The key that it has next, as `ibv_inc_rkey` says.
    #[must_use]
    pub fn next_key(&self) -> u32 {
        self.rkey & !0xff | self.rkey.wrapping_add(1) & 0xff
    }
}

impl SendWr {
    /// A signaled bind of `len` bytes of `mr` from `offset` on; the window has `key` then.
    pub fn bind(
        wr_id: u64,
        key: u32,
        (mr, offset, len): (&Mr, u64, u64),
        access: AccessFlags,
    ) -> Self {
        let start = Remote { addr: mr.addr + offset, rkey: key };
        let mut wr = Self::new(WrOpcode::BindMw, wr_id, &[], start);
        (wr.lkey, wr.compare_add, wr.swap) = (mr.lkey, len, access.bits().into());
        wr
    }

    /// A signaled bind to nothing, of a window of type 1; the window has `key` then.
    pub fn unbind(wr_id: u64, key: u32) -> Self {
        Self::new(WrOpcode::BindMw, wr_id, &[], Remote { addr: 0, rkey: key })
    }

    /// A signaled invalidation of a window of one's own.
    pub fn local_inv(wr_id: u64, key: u32) -> Self {
        let mut wr = Self::new(WrOpcode::LocalInv, wr_id, &[], Remote { addr: 0, rkey: 0 });
        wr.imm = key;
        wr
    }

    /// Invalidating this key of the peer (SEND).
    #[must_use]
    pub fn invalidating(mut self, key: u32) -> Self {
        (self.opcode, self.imm) = (WrOpcode::SendInv, key);
        self
    }
}

impl Host {
    /// Makes a window.
    ///
    /// # Panics
    /// When the engine refuses.
    pub fn alloc_mw(&mut self, pd: u32, kind: WindowType) -> Mw {
        match self.command(ClientCommand::AllocMw { pd, kind }) {
            Ok(Outcome::Mw { mw: handle, rkey }) => Mw { handle, rkey },
            other => panic!("the engine does not make a window: {other:?}"),
        }
    }

    /// Destroys a window.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn dealloc_mw(&mut self, mw: &Mw) -> Result<(), CommandError> {
        self.command(ClientCommand::DeallocMw { mw: mw.handle }).map(drop)
    }
}
