//! A correct client beside a hostile one.

use crate::tenant::Tenant;
use crate::world::World;
use crate::wqe::{PSNS, pair};
use rnic_abi::verbs::{AccessFlags, QpType, SendFlags, WrOpcode};
use rnic_abi::wqe::SendControl;
use rnic_sim::memory::PAGE;
use rnic_sim::verbs::{Connection, Mr, full_access};

/// Turns within which its message must arrive, whatever the hostile one does.
const PATIENCE: usize = 400;
const MESSAGE: u32 = 700;

/// The correct client: sends one message at a time from one of its QPs to the other.
pub(crate) struct Honest {
    pub(crate) tenant: Tenant,
    pub(crate) from: Mr,
    to: Mr,
    /// Messages posted; the bytes of each say which one it is.
    posted: u8,
    /// Completions of the current message that are still to come.
    due: usize,
}

impl Honest {
    pub(crate) fn new(world: &mut World) -> Self {
        let mut tenant = Tenant::new(world, 1);
        let from = tenant.region(world, tenant.pds[0], PAGE, AccessFlags::LOCAL_WRITE);
        let to = tenant.region(world, tenant.pds[0], PAGE, full_access());
        pair(world, &mut tenant, [QpType::Rc; 2], Connection { path_mtu: 2, ..PSNS });
        let mut honest = Self { tenant, from, to, posted: 0, due: 0 };
        honest.post(world);
        honest
    }

    /// A WRITE, and a SEND that announces it.
    pub(crate) fn post(&mut self, world: &mut World) {
        if self.due > 0 {
            return;
        }
        self.posted = self.posted.wrapping_add(1);
        self.tenant.fill(world, &self.from, self.posted);
        self.tenant.fill(world, &self.to, 0);
        let mut write = SendControl::new(WrOpcode::Write, SendFlags::SIGNALED, 1);
        write.num_sge = 1;
        write.remote_addr = self.to.addr;
        write.rkey = self.to.rkey;
        let mut send = SendControl::new(WrOpcode::SendImm, SendFlags::SIGNALED, 2);
        send.num_sge = 1;
        let beyond = self.to.sge(u64::from(MESSAGE), 16);
        let posted = self.tenant.post_recv(1, 3, &[beyond])
            && self.tenant.post_send(world, 0, &write, &[self.from.sge(0, MESSAGE)], &[])
            && self.tenant.post_send(world, 0, &send, &[self.from.sge(0, 16)], &[]);
        assert!(posted, "an idle queue has room");
        self.due = 3;
    }

    /// Checks what completed.
    pub(crate) fn poll(&mut self, world: &mut World) {
        for cqe in self.tenant.poll() {
            assert_eq!(cqe.status.number(), 0, "an honest request failed: {cqe:?}");
            self.due = self.due.checked_sub(1).expect("a completion for each request");
            if self.due == 0 {
                let bytes = &self.tenant.bytes(world, &self.to)[..MESSAGE as usize];
                assert!(*bytes == [self.posted; MESSAGE as usize], "wrong data arrived");
            }
        }
    }

    /// The message on its way arrives, whatever others do.
    pub(crate) fn finish(&mut self, world: &mut World) {
        let mut turns = 0;
        while self.due > 0 {
            world.turn();
            world.loop_back();
            self.poll(world);
            turns += 1;
            assert!(turns < PATIENCE, "the honest client makes no progress");
        }
    }
}
