//! Random groups: members come and go, have receives or not, and hosts hear a datagram never, once
//! or twice. Exactly the members get a copy each time, and each copy is whole.

use crate::{AREA, Party};
use rnic_abi::verbs::WcStatus;
use rnic_sim::datagrams::To;
use rnic_sim::pair::pattern;
use rnic_sim::rng::Rng;
use rnic_sim::sweep;
use rnic_sim::verbs::SendWr;
use rnic_sim::world::{HostId, WorldConfig};
use roce_wire::Qpn;
use std::net::IpAddr;

/// The sender, which may be a member, and others.
const HOSTS: [HostId; 5] = [0, 0, 1, 1, 1];
const GROUPS: usize = 3;
const STEPS: u64 = 80;
const BUFFER: u32 = 1024 + AREA;

/// What a queue pair must do.
#[derive(Clone, Default)]
struct Believed {
    groups: [bool; GROUPS],
    /// `wr_id` of receives that are posted.
    receives: Vec<u64>,
    next: u64,
}

fn address(group: usize, config: &WorldConfig) -> IpAddr {
    let last = u8::try_from(group).unwrap();
    match config.ipv6 {
        true => format!("ff0e::{group}:1").parse().unwrap(),
        false => [239, 0, 0, last].into(),
    }
}

struct Scene {
    party: Party,
    members: Vec<Believed>,
    handles: Vec<u32>,
    addresses: Vec<IpAddr>,
    rng: Rng,
}

impl Scene {
    fn change(&mut self, nth: usize, group: usize) {
        let (end, address) = (self.party.ends[nth], self.addresses[group]);
        let is_member = &mut self.members[nth].groups[group];
        let host = self.party.world.host(end.host);
        let changed = match *is_member {
            true => host.detach(end.qp, address),
            false => host.attach(end.qp, address),
        };
        *is_member = !*is_member;
        assert_eq!(changed, Ok(()));
    }

    fn post_receive(&mut self, nth: usize) {
        let believed = &mut self.members[nth];
        if believed.receives.len() >= 8 {
            return;
        }
        let wr_id = believed.next;
        believed.next += 1;
        believed.receives.push(wr_id);
        let mr = self.party.ends[nth].mr;
        self.party.recv(nth, wr_id, mr, wr_id % 8 * u64::from(BUFFER), BUFFER);
    }

    /// Each host hears it as often as it likes.
    fn send(&mut self, id: u64, group: usize) {
        let len = u32::try_from(id * 131 % 1025).unwrap();
        let (sender, data) = (self.party.ends[0], pattern(len.into(), id));
        let buffer = sender.mr.addr + 64 * 1024;
        self.party.world.host(0).write_bytes(buffer, &data);
        let to = To { ah: self.handles[group], qpn: Qpn::MULTICAST.value(), qkey: crate::QKEY };
        self.party.post(0, &SendWr::send(id, &[sender.mr.sge(64 * 1024, len)]).to(to));
        self.party.world.run_to_silence(rnic_sim::pair::PATIENCE);
        let left = self.party.world.take_strays();
        let [(_, packet)] = &left[..] else { panic!("{left:?}") };
        assert_eq!(packet.flow.dst, self.addresses[group]);
        for host in [0, 1] {
            for _ in 0..self.rng.pick(&[0, 1, 1, 1, 2]) {
                self.party.world.inject(host, packet.clone());
                self.expect(host, group, &data);
            }
        }
        let sent = self.party.completions(0).0;
        assert_eq!(sent.len(), 1);
    }

    fn expect(&mut self, host: HostId, group: usize, data: &[u8]) {
        for nth in (0..HOSTS.len()).filter(|nth| HOSTS[*nth] == host) {
            let received = self.receives_of(nth);
            let believed = &mut self.members[nth];
            let is_due = believed.groups[group] && !believed.receives.is_empty();
            assert_eq!(received.len(), usize::from(is_due), "member {nth}: {received:?}");
            let Some(cqe) = received.first() else { continue };
            assert_eq!((cqe.wr_id, cqe.status), (believed.receives.remove(0), WcStatus::Success));
            assert_eq!(cqe.byte_len as usize, data.len() + AREA as usize);
            let at = self.party.ends[nth].mr.addr + cqe.wr_id % 8 * u64::from(BUFFER);
            let len = data.len() as u64;
            assert_eq!(self.party.world.host(host).bytes(at + u64::from(AREA), len), data);
        }
    }

    fn receives_of(&mut self, nth: usize) -> Vec<rnic_abi::cqe::Cqe> {
        self.party.world.run_to_silence(rnic_sim::pair::PATIENCE);
        self.party.world.check();
        let end = self.party.ends[nth];
        self.party.world.host(end.host).drain(end.recv_cq)
    }
}

#[test]
fn exactly_the_members_of_a_group_get_a_copy() {
    for seed in sweep::seeds(200) {
        let config = WorldConfig::random_pair(seed);
        let mut party = Party::new(&config, &HOSTS);
        let addresses: Vec<_> = (0..GROUPS).map(|group| address(group, &config)).collect();
        let pd = party.ends[0].pd;
        let make = |address: &IpAddr| party.world.host(0).create_ah(pd, *address);
        let handles = addresses.iter().map(make).collect();
        let members = vec![Believed::default(); HOSTS.len()];
        let rng = Rng::new(seed ^ 0x6772_7073);
        let mut scene = Scene { party, members, handles, addresses, rng };
        for id in 1..=STEPS {
            let (nth, group) = (scene.rng.below(5) as usize, scene.rng.below(3) as usize);
            match scene.rng.below(4) {
                0 => scene.change(nth, group),
                1 => scene.post_receive(nth),
                _ => scene.send(id, group),
            }
        }
    }
}
