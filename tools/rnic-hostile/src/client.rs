//! A client that uses the daemon's protocol and memory directly, without the library and its
//! checks.

use rnic_abi::ABI_VERSION;
use rnic_abi::control::{Answer, CreateQp, QueuePlace, Refusal, Reply, Request, RingPlace};
use rnic_abi::doorbell::{AREA_WORDS, Bell, RecordIndex};
use rnic_abi::os::{Connection, Descriptors, EventFd, candidate_socket_paths, memory};
use rnic_abi::verbs::{AccessFlags, AhAttr, AttrMask, QpAttr, QpCaps, QpState, QpType};
use rnic_abi::words::{WORD, Words};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

/// Q_Key of its queue pairs.
pub(crate) const QKEY: u32 = 0x1111_1111;
/// Bytes of the memory that a client registers.
pub(crate) const ZONE: usize = 64 * 1024;

/// A session with an open device.
pub(crate) struct Client {
    pub(crate) connection: Connection,
    /// The doorbell area and its file.
    pub(crate) area: Words,
    pub(crate) files: Vec<(OwnedFd, usize)>,
    pub(crate) bell: Bell,
    pub(crate) wake: EventFd,
    pub(crate) arenas: HashMap<u32, Words>,
    pub(crate) pd: u32,
    pub(crate) cq: u32,
    pub(crate) zone: Box<[u8]>,
    pub(crate) key: u32,
    /// The key of a window of each type, before it is bound.
    pub(crate) windows: [u32; 2],
    /// An address handle to the device itself.
    pub(crate) ah: u32,
    /// An XRC domain, and the number and doorbell record of a shared receive queue there.
    pub(crate) xrc: Option<(u32, u32, RecordIndex)>,
    /// The number of the queue pair that was made last.
    pub(crate) last_qpn: u32,
    gid: [u8; 16],
    _events: OwnedFd,
}

/// A queue pair and the memory of its queues.
pub(crate) struct Qp {
    pub(crate) handle: u32,
    pub(crate) qpn: u32,
    pub(crate) qp_type: QpType,
    /// Its send queue and the memory of that; XRC targets have none.
    pub(crate) sends: Option<(QueuePlace, Words)>,
    /// The doorbell record of what it receives into, which for XRC is a shared receive queue's.
    pub(crate) receives: Option<RecordIndex>,
}

/// A session after the first message.
pub(crate) fn greet() -> io::Result<Connection> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for path in candidate_socket_paths() {
        match Connection::connect(&path) {
            Ok(connection) => {
                let hello = Request::Hello { abi: ABI_VERSION };
                granted(connection.call(&hello, &[])?.0)?;
                return Ok(connection);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The reply, or the refusal as an error.
pub(crate) fn granted(answer: Answer) -> io::Result<Reply> {
    answer.map_err(|Refusal { errno, message }| {
        io::Error::other(format!("refused (errno {errno}): {message}"))
    })
}

impl Client {
    /// Opens the first device and makes a PD, a CQ and a memory region.
    pub(crate) fn open() -> io::Result<Self> {
        let connection = greet()?;
        let Reply::Devices(devices) = granted(connection.call(&Request::ListDevices, &[])?.0)?
        else {
            return Err(surprise());
        };
        let name = devices.first().ok_or_else(surprise)?.name.clone();
        let (answer, fds) = connection.call(&Request::OpenDevice { name }, &[])?;
        granted(answer)?;
        let [area_file, wake, events] = fds.exactly()?;
        let area = memory::map(&area_file, AREA_WORDS)?;
        let bell = Bell::new(area.clone()).ok_or_else(surprise)?;
        let mut client = Self {
            connection,
            area,
            files: vec![(area_file, AREA_WORDS)],
            bell,
            wake: wake.into(),
            arenas: HashMap::new(),
            pd: 0,
            cq: 0,
            zone: vec![0x77; ZONE].into_boxed_slice(),
            key: 0,
            windows: [0; 2],
            ah: 0,
            xrc: None,
            last_qpn: 0,
            gid: [0; 16],
            _events: events,
        };
        client.furnish()?;
        Ok(client)
    }

    fn furnish(&mut self) -> io::Result<()> {
        if let Reply::Gids(gids) = self.call(&Request::QueryGids { start: 0 })?.0 {
            self.gid = gids.iter().map(|entry| entry.gid).next().unwrap_or_default();
        }
        let (Reply::Handle(pd), _) = self.call(&Request::AllocPd)? else {
            return Err(surprise());
        };
        self.pd = pd;
        self.cq = self.create_cq(256)?;
        let addr = self.zone.as_ptr() as u64;
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::MW_BIND;
        let length = self.zone.len() as u64;
        let request = Request::RegMr { pd, addr, length, iova: addr, access, fd_offset: 0 };
        let (Reply::Mr { lkey, .. }, _) = self.call(&request)? else { return Err(surprise()) };
        self.key = lkey;
        for (at, kind) in [1, 2].into_iter().enumerate() {
            let (Reply::Mw { rkey, .. }, _) = self.call(&Request::AllocMw { pd, kind })? else {
                return Err(surprise());
            };
            self.windows[at] = rkey;
        }
        let request = Request::CreateAh { pd, attr: self.address() };
        let (Reply::Handle(ah), _) = self.call(&request)? else { return Err(surprise()) };
        self.ah = ah;
        Ok(())
    }

    /// Once: an XRC domain and a shared receive queue there.
    fn open_domain(&mut self) -> io::Result<()> {
        if self.xrc.is_some() {
            return Ok(());
        }
        let open = Request::OpenXrcd { create: true, exclusive: false };
        let (Reply::Handle(xrcd), _) = self.call(&open)? else { return Err(surprise()) };
        let xrc = Some((xrcd, self.cq));
        let create = Request::CreateSrq { pd: self.pd, max_wr: 16, max_sge: 4, limit: 0, xrc };
        let (reply, mut fds) = self.call(&create)?;
        let Reply::Srq { queue, srqn, .. } = reply else { return Err(surprise()) };
        self.ring(&queue.ring, &mut fds)?;
        self.xrc = Some((xrcd, srqn, queue.record));
        Ok(())
    }

    pub(crate) fn call(&self, request: &Request) -> io::Result<(Reply, Descriptors)> {
        let (answer, fds) = self.connection.call(request, &[])?;
        Ok((granted(answer)?, fds))
    }

    fn ring(&mut self, place: &RingPlace, fds: &mut Descriptors) -> io::Result<Words> {
        if place.arena_is_new {
            let file = fds.next().ok_or_else(surprise)?;
            let words = usize::try_from(place.arena_len).map_err(io::Error::other)? / WORD;
            self.arenas.insert(place.arena, memory::map(&file, words)?);
            self.files.push((file, words));
        }
        let (start, words) = (place.start.try_into().ok(), place.words.try_into().ok());
        let arena = self.arenas.get(&place.arena).ok_or_else(surprise)?;
        start.zip(words).and_then(|(start, words)| arena.slice(start, words)).ok_or_else(surprise)
    }

    /// A completion queue.
    pub(crate) fn create_cq(&mut self, cqe: u32) -> io::Result<u32> {
        let request = Request::CreateCq { cqe, channel: None, comp_vector: 0 };
        let (Reply::Cq { cq, ring, .. }, mut fds) = self.call(&request)? else {
            return Err(surprise());
        };
        self.ring(&ring, &mut fds)?;
        Ok(cq)
    }

    /// A queue pair in RESET.
    pub(crate) fn create_qp(&mut self, qp_type: QpType) -> io::Result<Qp> {
        let xrc = self.xrc.filter(|_| qp_type == QpType::XrcRecv);
        let caps = QpCaps {
            max_send_wr: 64,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let request = Request::CreateQp(CreateQp {
            pd: self.pd,
            qp_type,
            send_cq: Some(self.cq),
            recv_cq: Some(self.cq),
            srq: None,
            xrcd: xrc.map(|(xrcd, ..)| xrcd),
            caps,
            sq_sig_all: false,
        });
        let (reply, mut fds) = self.call(&request)?;
        let Reply::Qp { qp, qpn, sq, rq, .. } = reply else { return Err(surprise()) };
        let sends = match sq {
            Some(sq) => Some((sq, self.ring(&sq.ring, &mut fds)?)),
            None => None,
        };
        if let Some(rq) = &rq {
            self.ring(&rq.ring, &mut fds)?;
        }
        self.last_qpn = qpn;
        let shared = xrc.map(|(.., record)| record);
        let receives = rq.map(|rq| rq.record).or(shared);
        Ok(Qp { handle: qp, qpn, qp_type, sends, receives })
    }

    /// The device itself.
    fn address(&self) -> AhAttr {
        AhAttr { dgid: self.gid, is_global: true, port_num: 1, ..AhAttr::default() }
    }

    /// RESET to RTS, connected to `peer` of the same device.
    pub(crate) fn connect(&self, qp: &Qp, peer: u32) -> io::Result<()> {
        let mut attr = QpAttr {
            path_mtu: 3,
            dest_qpn: peer,
            access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
            ah: self.address(),
            qkey: QKEY,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            port_num: 1,
            timeout: 10,
            retry_cnt: 1,
            rnr_retry: 1,
            ..QpAttr::default()
        };
        use AttrMask as M;
        let steps = [
            (QpState::Reset, M::STATE),
            (QpState::Init, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
            (
                QpState::Rtr,
                M::STATE
                    | M::AV
                    | M::PATH_MTU
                    | M::DEST_QPN
                    | M::RQ_PSN
                    | M::MAX_DEST_RD_ATOMIC
                    | M::MIN_RNR_TIMER,
            ),
            (
                QpState::Rts,
                M::STATE
                    | M::TIMEOUT
                    | M::RETRY_CNT
                    | M::RNR_RETRY
                    | M::SQ_PSN
                    | M::MAX_QP_RD_ATOMIC,
            ),
        ];
        let meaningless = meaningless(qp.qp_type);
        for (state, mask) in steps {
            let mut mask = mask - meaningless;
            mask.set(M::QKEY, qp.qp_type == QpType::Ud && state == QpState::Init);
            attr.state = state;
            self.call(&Request::ModifyQp { qp: qp.handle, mask, attr })?;
        }
        Ok(())
    }

    /// Two queue pairs connected to each other: of XRC, one of each end.
    pub(crate) fn create_pair(&mut self, qp_type: QpType) -> io::Result<[Qp; 2]> {
        let mut other = qp_type;
        if qp_type == QpType::XrcSend {
            self.open_domain()?;
            other = QpType::XrcRecv;
        }
        let pair = [self.create_qp(qp_type)?, self.create_qp(other)?];
        self.connect(&pair[0], pair[1].qpn)?;
        self.connect(&pair[1], pair[0].qpn)?;
        Ok(pair)
    }
}

/// Attributes that mean nothing to queue pairs of a type.
fn meaningless(qp_type: QpType) -> AttrMask {
    use AttrMask as M;
    let answers = M::MAX_DEST_RD_ATOMIC
        | M::MIN_RNR_TIMER
        | M::TIMEOUT
        | M::RETRY_CNT
        | M::RNR_RETRY
        | M::MAX_QP_RD_ATOMIC;
    match qp_type {
        QpType::Uc => answers,
        QpType::Ud => answers | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::ACCESS_FLAGS,
        // The ends of XRC ignore what is for the other end.
        _ => M::empty(),
    }
}

fn surprise() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unexpected reply of the daemon")
}
