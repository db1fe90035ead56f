//! Connections by name, and congestion.

use super::{A, B, Scenario, plain};
use crate::setup::connection;
use crate::teller::{NAMES, Teller};
use rnic_abi::verbs::AhAttr;
use rnic_core::cm::{Cm, CmConfig, CmEvent, Connect, Happening, Offer, Owner, PrivateData, Route};
use rnic_core::command::Path;
use rnic_core::event::Event;
use rnic_core::ports::HopId;
use rnic_core::{OutgoingMad, Secret};
use rnic_page::Kind;
use rnic_sim::pair::End;
use rnic_sim::port::Packet;
use rnic_sim::verbs::{Connection, SendWr};
use rnic_sim::world::{Carried, HostId, WorldConfig};
use roce_wire::cm::{PortSpace, TransportType};
use roce_wire::{Flow, HeaderRepr, Qpn};

pub(super) const CM_CONNECT: Scenario = Scenario {
    name: "cm-connect",
    line: "The connection manager: connecting by IP address and port",
    about: &[
        "Both ends of a connection need the other's queue pair number and first PSN. The connection \
         manager (CM) exchanges them, with three messages as in TCP's handshake: REQ (request), REP \
         (reply) and RTU (ready to use). They are datagrams to queue pair 1, which every NIC has for \
         management. librdmacm is its library: rdma_connect, rdma_listen, rdma_accept.",
        "The IP address is that of the packets. The port is in the REQ, as a service ID.",
    ],
    world: plain,
    play: cm_connect,
    ask: "B moves its queue pair to RTR before it sends the REP. Why?",
    answer: "As soon as A has the REP it may go to RTS and send. B must be able to receive by then.",
    next: &["rnic lab qp-states", "rnic lab cm-connect --drop 2", "rnic run -- rping -s"],
};

/// The port on which B listens.
const PORT: u16 = 7471;
const OWNER: Owner = Owner { user: 0, place: 1 };

/// Both connection managers.
struct Managers {
    cms: [Cm; 2],
    ends: [End; 2],
}

fn cm_connect(t: &mut Teller) {
    let (a, b) = t.ends(|_| ());
    t.told_setup(A, &a, None);
    t.told_setup(B, &b, None);
    let manager = |host: u64| {
        Cm::new(CmConfig {
            secret: Secret::new([7, host]),
            guid: 0x0200_00ff_fe00_0000 | host,
            max_ids: 16,
            max_of_user: 16,
            mtu_code: 1,
        })
    };
    let mut m = Managers { cms: [manager(0), manager(1)], ends: [a, b] };
    let Ok((listener, _)) = m.cms[B].bind(OWNER, PortSpace::Tcp, None, PORT, false) else { return };
    if m.cms[B].listen(listener, 4).is_err() {
        return;
    }
    t.note(Kind::Call, B, format!("rdma_listen(port {PORT})"));
    let Ok((id, _)) = m.cms[A].bind(OWNER, PortSpace::Tcp, None, 0, false) else { return };
    let connect = m.connect(t);
    let Ok(psn) = m.cms[A].connect(t.world.now(), id, &connect) else { return };
    t.note(Kind::Call, A, format!("rdma_connect({}, port {PORT})", t.world.hosts()[B].ip));
    m.send(t, A);
    let Some((request, peer)) = m.hear_request(t) else { return };
    let how =
        Connection { rq_psn: peer.psn.value(), sq_psn: peer.starting_psn.value(), ..connection() };
    t.init(&b, &how);
    t.rtr(&b, &how, (A, peer.offer.qpn.value()));
    t.rts(&b, &how);
    let offer = m.offer(t, B);
    if m.cms[B].accept(t.world.now(), request, &offer, &PrivateData::NONE).is_err() {
        return;
    }
    t.note(Kind::Call, B, "rdma_accept()".into());
    m.send(t, B);
    let Some(response) = m.hear_response(t) else { return };
    let how =
        Connection { rq_psn: psn.value(), sq_psn: response.starting_psn.value(), ..connection() };
    t.init(&a, &how);
    t.rtr(&a, &how, (B, response.offer.qpn.value()));
    t.rts(&a, &how);
    if m.cms[A].establish(id).is_ok() {
        t.note(Kind::Call, A, "A's queue pair is ready: RTU".into());
    }
    m.send(t, A);
    m.hear(t, B);
    t.receive(B, b.qp, 1, &[b.mr.sge(0, 64)]);
    t.say("The connection is an ordinary one from here on.");
    t.when(B, |e| matches!(e, Event::Completed { receive: true, .. }), "Over the connection.");
    t.post(A, a.qp, &[SendWr::send(2, &[]).inline(b"connected")]);
    t.wait(B, b.recv_cq);
    t.wait(A, a.send_cq);
}

impl Managers {
    fn offer(&self, t: &mut Teller, host: HostId) -> Offer {
        let qpn = t.world.host(host).qpn(self.ends[host].qp);
        Offer {
            qpn: Qpn::new(qpn),
            srq: false,
            responder_resources: 4,
            initiator_depth: 4,
            flow_control: false,
            rnr_retry_count: 7,
        }
    }

    fn connect(&self, t: &mut Teller) -> Connect {
        let hosts = t.world.hosts();
        let (local, remote) = (hosts[A].ip, hosts[B].ip);
        let route = Route { local, remote, traffic_class: 0, flow_label: 0, qpn: Qpn::GSI };
        Connect {
            route,
            port: PORT,
            transport: TransportType::Rc,
            offer: self.offer(t, A),
            retry_count: 7,
            mtu_code: 1,
            ack_timeout: 4,
            private: PrivateData::NONE,
        }
    }

    /// What a manager has to say leaves from QP1 of its host.
    fn send(&mut self, t: &mut Teller, host: HostId) {
        while let Some(outgoing) = self.cms[host].next_mad() {
            let flow = Flow::new(outgoing.route.local, outgoing.route.remote, 0xc000);
            let attr = AhAttr { is_global: true, port_num: 1, ..AhAttr::default() };
            let path = Path { attr, flow, hop: HopId(0) };
            let mad = OutgoingMad { path, dest: outgoing.route.qpn, mad: outgoing.mad };
            // A queue that is full loses it, and the manager says it again.
            let _ = t.world.host(host).send_mad(mad);
        }
    }

    /// Lets messages pass until a host's program hears of something.
    fn hear(&mut self, t: &mut Teller, host: HostId) -> Option<CmEvent> {
        let end = t.world.now().after_nanos(LONGEST);
        while t.world.now() < end {
            t.settle();
            for to in [A, B] {
                for (flow, sender, mad) in t.world.host(to).take_mads() {
                    let route = Route::back(&flow, sender);
                    self.cms[to].receive(t.world.now(), &route, &mad);
                }
                self.send(t, to);
            }
            if let Some(event) = self.cms[host].next_event() {
                let title =
                    format!("rdma_get_cm_event() at {}: {}", NAMES[host], name(&event.what));
                t.note(Kind::Completion, host, title);
                return Some(event);
            }
            self.pass(t);
        }
        t.note(Kind::Refusal, host, "The program hears nothing, and gives up".into());
        None
    }

    /// Time passes until something arrives, or a manager has waited long enough.
    fn pass(&mut self, t: &mut Teller) {
        if t.world.next_event().is_some() {
            return;
        }
        let deadlines = self.cms.iter().filter_map(Cm::next_deadline);
        let Some(at) = deadlines.min() else { return t.pause(LONGEST) };
        let wait = at.as_nanos().saturating_sub(t.world.now().as_nanos());
        t.pause(wait.max(1));
        for host in [A, B] {
            self.cms[host].expire(t.world.now());
            self.send(t, host);
        }
    }

    fn hear_request(&mut self, t: &mut Teller) -> Option<(u32, rnic_core::cm::Request)> {
        let event = self.hear(t, B)?;
        match event.what {
            Happening::Request(request) => Some((event.id, request)),
            _ => None,
        }
    }

    fn hear_response(&mut self, t: &mut Teller) -> Option<rnic_core::cm::Response> {
        match self.hear(t, A)?.what {
            Happening::Response(response) => Some(response),
            _ => None,
        }
    }
}

/// Nanoseconds after which a program of this story gives up: some repetitions of a message.
const LONGEST: u64 = 60_000_000_000;

fn name(what: &Happening) -> &'static str {
    match what {
        Happening::Request(_) => "RDMA_CM_EVENT_CONNECT_REQUEST",
        Happening::Response(_) => "RDMA_CM_EVENT_CONNECT_RESPONSE",
        Happening::Established => "RDMA_CM_EVENT_ESTABLISHED",
        Happening::Rejected(_) => "RDMA_CM_EVENT_REJECTED",
        Happening::Unreachable => "RDMA_CM_EVENT_UNREACHABLE",
        Happening::Disconnected => "RDMA_CM_EVENT_DISCONNECTED",
        Happening::TimewaitExit => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        Happening::Lookup(_) | Happening::Found { .. } => "an answer about a datagram service",
    }
}

pub(super) const ECN_CNP: Scenario = Scenario {
    name: "ecn-cnp",
    line: "Congestion marks: what a NIC should do, and what this one does",
    about: &[
        "A switch whose queues grow can mark packets instead of dropping them (ECN, explicit \
         congestion notification): it sets two bits of the IP header to CE. A RoCE receiver that \
         sees the mark sends a CNP (congestion notification packet) to the sender, and the sender \
         slows down. The scheme of most cards is called DCQCN.",
        "soft-rnic counts marks and CNPs, and does nothing else: it sends no CNP, and does not slow \
         down when it gets one. This story shows exactly that.",
    ],
    world: marking,
    play: ecn_cnp,
    ask: "Why is a mark better than a drop?",
    answer: "A drop costs a go-back-N: everything behind the lost packet is sent again, which makes \
             the congestion worse. A mark costs nothing, and comes earlier.",
    next: &["rnic lab loss", "rnic counters", "rnic fault add mark=100%"],
};

/// A network that marks whatever may be marked.
fn marking() -> WorldConfig {
    let mut world = plain();
    world.faults.mark = 1_000_000;
    world
}

fn ecn_cnp(t: &mut Teller) {
    let how = connection();
    let (a, b) = t.ends(|_| ());
    let qpns = (t.world.host(A).qpn(a.qp), t.world.host(B).qpn(b.qp));
    t.init(&a, &how);
    t.init(&b, &how.reversed());
    t.say("Traffic class 2 sets the ECN bits to ECT(0): switches may mark these packets.");
    t.rtr_marked(&a, &how, (B, qpns.1), 2);
    t.rtr(&b, &how.reversed(), (A, qpns.0));
    t.rts(&a, &how);
    t.rts(&b, &how.reversed());
    t.write(A, a.mr.addr, b"through a busy switch");
    t.when(
        B,
        |e| matches!(e, Event::Received { .. }),
        "The mark changes nothing for the \
           transport, and the ICRC leaves the ECN bits out.",
    );
    t.post(A, a.qp, &[SendWr::write(1, &[a.mr.sge(0, 21)], b.mr.remote(0))]);
    t.wait(A, a.send_cq);
    t.quiet();
    counters(t, B);
    cnp(t, qpns.0);
    t.quiet();
    counters(t, A);
}

/// A CNP as a card would send it from B to A.
fn cnp(t: &mut Teller, qpn: u32) {
    let hosts = t.world.hosts();
    let flow = Flow::new(hosts[B].ip, hosts[A].ip, 0xc001);
    let headers = HeaderRepr::cnp(Qpn::new(qpn));
    let mut bytes = vec![0; headers.datagram_len(0)];
    headers.emit(&mut bytes);
    headers.write_pad_and_icrc(&flow, 0, &mut bytes);
    let packet = Packet { flow, ip_id: 0, bytes: bytes.into() };
    let at = t.world.now();
    let arrivals = vec![(at, packet.clone())];
    let carried =
        Carried { number: 0, at, from: B, to: A, packet: packet.clone(), arrivals, blow: None };
    t.say("soft-rnic sends no CNPs. This one is made by hand, as a card in B would send it.");
    t.injected(&carried);
    t.world.inject(A, packet);
}

fn counters(t: &mut Teller, host: HostId) {
    let counters = t.world.host(host).engine.counters();
    let (marked, handled) = (counters.np_ecn_marked_roce_packets, counters.rp_cnp_handled);
    let title = format!("np_ecn_marked_roce_packets = {marked}, rp_cnp_handled = {handled}");
    t.note(Kind::Nic, host, title);
}
