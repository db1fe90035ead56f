//! How a world of traffic ends, and what must be true then.

use crate::flow::Flow;
use crate::plan::Ending;
use crate::traffic::{TIME_LIMIT, Traffic};
use crate::trouble::Side;
use rnic_abi::verbs::QpState;
use rnic_sim::pair::End;
use rnic_sim::port::NEVER;
use rnic_sim::verbs::SendWr;

/// Receives that overflow a CQ.
const FLOOD: u64 = 30;
/// `wr_id` of what is posted in ERR.
const IN_ERR: u64 = 1 << 41;

impl Traffic {
    /// One end of the first connection fails; the other connections must not notice.
    pub(crate) fn disrupt(&mut self) {
        if self.has_disrupted || !self.flows[0].is_halfway() {
            return;
        }
        self.has_disrupted = true;
        let ending = self.plan.ending;
        let hit = if ending == Ending::WireDies { self.flows.len() } else { 2 };
        for (at, flow) in self.flows[..hit].iter_mut().enumerate() {
            let side = if at == 0 { Side::Mine } else { Side::Others };
            flow.trouble.ending = Some((ending, side));
            flow.trouble.nak_arrives = self.plan.is_calm();
            // A program cannot post to a queue pair that is gone.
            flow.trouble.posts_on = at != 1 || !ending.is_gone();
        }
        let End { host, qp, .. } = self.flows[0].from;
        // What completed before is polled before.
        self.poll(host);
        let world = &mut self.world;
        match ending {
            Ending::Clean => {}
            Ending::OneSideFails => world.host(host).set_state(qp, QpState::Err),
            Ending::OneSideResets => world.host(host).set_state(qp, QpState::Reset),
            Ending::Destroyed => world.host(host).destroy_qp(qp),
            Ending::KeyVanishes(part) => self.flows[0].deregister(world, part),
            Ending::PageVanishes(part) => self.flows[0].unmap(world, part),
            Ending::CqOverflows => {
                let End { host, recv_cq, .. } = self.flows[0].to;
                self.unpolled = Some((host, recv_cq));
                self.flows[0].flood_receives(world, FLOOD);
            }
            Ending::WireDies => world.host(host).port.refuse_until(NEVER),
            Ending::DepthVanishes => {
                self.flows[0].trouble.loses_depth = true;
                if !self.flows[0].trouble.is_paused {
                    self.flows[0].toggle_pause(world, None);
                }
            }
        }
        if ending.is_sudden() {
            for flow in &mut self.flows[..2] {
                flow.trouble.has_failed = true;
            }
        }
    }

    pub(crate) fn finish(&mut self) {
        self.heal();
        self.unpolled = None;
        if self.plan.ending != Ending::Clean {
            self.flush_rest();
        }
        self.world.run_to_silence(TIME_LIMIT);
        for host in 0..2 {
            if self.poll(host) && self.plan.ending == Ending::Clean {
                self.world.fail("a completion after the end");
            }
        }
        let intact = |flow: &&mut Flow| flow.trouble.ending.is_none();
        for flow in self.flows.iter_mut().filter(intact) {
            flow.check_all(&mut self.world);
            let owed = self.world.host(flow.from.host).owed(flow.from.qp).0;
            if owed != 0 {
                self.world.fail(&format!("{owed} sends never completed"));
            }
        }
        let lost = self.plan.ending.is_gone();
        for flow in &self.flows {
            if !lost || flow.trouble.ending.is_none() {
                flow.check_told(&self.world);
            }
        }
        if self.plan.ending == Ending::Clean {
            self.check_shared_words();
            self.check_calm();
        }
        self.check_counters();
    }

    fn check_counters(&self) {
        for (id, host) in self.world.hosts().iter().enumerate() {
            if let Err(why) = host.check_counters() {
                self.world.fail(&format!("host {id}: {why}"));
            }
        }
    }

    /// Where nothing was lost, overtaken or late, nothing is missed or comes twice. A lazy
    /// application may let the peer wait for a receive.
    fn check_calm(&self) {
        let faults = self.world.fault_counts();
        let strange = faults.harmed() + faults.duplicated + faults.reordered + faults.echoed > 0;
        if strange || !self.plan.is_calm() {
            return;
        }
        for (id, host) in self.world.hosts().iter().enumerate() {
            let counters = host.engine.counters();
            let missed = counters.packet_seq_err
                + counters.implied_nak_seq_err
                + counters.local_ack_timeout_err
                + counters.duplicate_request
                + counters.rx_ghost_response;
            if missed > 0 {
                self.world.fail(&format!("host {id} missed something although nothing was lost"));
            }
        }
    }

    /// Both ends of every connection that was hit fail, and everything posted there completes.
    fn flush_rest(&mut self) {
        let hit: Vec<usize> = (0..self.flows.len())
            .step_by(2)
            .filter(|at| self.flows[*at].trouble.ending.is_some())
            .collect();
        for at in hit {
            for flow in &mut self.flows[at..at + 2] {
                flow.trouble.is_flushed = true;
            }
            let Flow { from, to, .. } = self.flows[at];
            let is_gone = self.plan.ending.is_gone();
            for end in [to, from].into_iter().take(if is_gone { 1 } else { 2 }) {
                self.flush(end);
            }
        }
    }

    /// A queue pair fails, and everything that was and will be posted there completes.
    fn flush(&mut self, end: End) {
        self.world.run_to_silence(TIME_LIMIT);
        self.poll(end.host);
        if self.world.host(end.host).state(end.qp) != QpState::Err {
            self.world.host(end.host).set_state(end.qp, QpState::Err);
        }
        self.check_flushed(end);
        let host = self.world.host(end.host);
        host.post_recv(end.qp, IN_ERR, &[]).expect("room, as everything was flushed");
        self.check_flushed(end);
        let host = self.world.host(end.host);
        host.post_send(end.qp, &SendWr::send(IN_ERR, &[])).expect("room likewise");
        self.check_flushed(end);
    }

    fn check_flushed(&mut self, end: End) {
        self.world.run_to_silence(TIME_LIMIT);
        self.poll(end.host);
        let owed = self.world.host(end.host).owed(end.qp);
        let overflowed = self.plan.ending == Ending::CqOverflows && end.host == 1;
        if owed != (0, 0) && !overflowed {
            self.world.fail(&format!("sends and receives that were never flushed: {owed:?}"));
        }
    }
}
