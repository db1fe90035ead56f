//! The numbers of the verbs API that cross the boundary, with the values of `verbs.h`.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum $name { $($(#[$vmeta])* $variant = $value,)* }

        impl $name {
            /// The variant with this number.
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($value => Some(Self::$variant),)* _ => None }
            }

            /// The number `verbs.h` gives it.
            pub fn number(self) -> u8 {
                self as u8
            }
        }
    };
}

numbered! {
    /// `ibv_wr_opcode`.
    WrOpcode {
        /// RDMA WRITE.
        Write = 0,
        /// RDMA WRITE with immediate data.
        WriteImm = 1,
        /// SEND.
        Send = 2,
        /// SEND with immediate data.
        SendImm = 3,
        /// RDMA READ.
        Read = 4,
        /// Atomic compare and swap.
        CmpSwap = 5,
        /// Atomic fetch and add.
        FetchAdd = 6,
        /// Local invalidate.
        LocalInv = 7,
        /// Memory window bind.
        BindMw = 8,
        /// SEND with invalidate.
        SendInv = 9,
        /// RDMA FLUSH.
        Flush = 14,
        /// Atomic write of 8 bytes.
        AtomicWrite = 15,
    }
}

numbered! {
    /// `ibv_wc_status`.
    WcStatus {
        /// Success.
        Success = 0,
        /// Local length error.
        LocLenErr = 1,
        /// Local QP operation error.
        LocQpOpErr = 2,
        /// Local EE context operation error.
        LocEecOpErr = 3,
        /// Local protection error.
        LocProtErr = 4,
        /// Work request flushed.
        WrFlushErr = 5,
        /// Memory window bind error.
        MwBindErr = 6,
        /// Bad response.
        BadRespErr = 7,
        /// Local access error.
        LocAccessErr = 8,
        /// Remote invalid request.
        RemInvReqErr = 9,
        /// Remote access error.
        RemAccessErr = 10,
        /// Remote operation error.
        RemOpErr = 11,
        /// Transport retry counter exceeded.
        RetryExcErr = 12,
        /// RNR retry counter exceeded.
        RnrRetryExcErr = 13,
        /// Remote aborted.
        RemAbortErr = 16,
        /// Fatal error.
        FatalErr = 19,
        /// General error.
        GeneralErr = 21,
    }
}

numbered! {
    /// `ibv_wc_opcode`; receive opcodes have bit 7 set.
    WcOpcode {
        /// A SEND of any kind.
        Send = 0,
        /// An RDMA WRITE of any kind.
        Write = 1,
        /// An RDMA READ.
        Read = 2,
        /// Compare and swap.
        CmpSwap = 3,
        /// Fetch and add.
        FetchAdd = 4,
        /// Memory window bind.
        BindMw = 5,
        /// Local invalidate.
        LocalInv = 6,
        /// FLUSH.
        Flush = 8,
        /// Atomic write.
        AtomicWrite = 9,
        /// Received SEND.
        Recv = 128,
        /// Received RDMA WRITE with immediate data.
        RecvWriteImm = 129,
    }
}

impl WrOpcode {
    /// What such a work request completes as.
    #[must_use]
    pub fn completion(self) -> WcOpcode {
        match self {
            Self::Write | Self::WriteImm => WcOpcode::Write,
            Self::Send | Self::SendImm | Self::SendInv => WcOpcode::Send,
            Self::Read => WcOpcode::Read,
            Self::CmpSwap => WcOpcode::CmpSwap,
            Self::FetchAdd => WcOpcode::FetchAdd,
            Self::LocalInv => WcOpcode::LocalInv,
            Self::BindMw => WcOpcode::BindMw,
            Self::Flush => WcOpcode::Flush,
            Self::AtomicWrite => WcOpcode::AtomicWrite,
        }
    }
}

numbered! {
    /// `ibv_qp_state`.
    QpState {
        /// RESET.
        Reset = 0,
        /// INIT.
        Init = 1,
        /// Ready to receive.
        Rtr = 2,
        /// Ready to send.
        Rts = 3,
        /// Send queue drained.
        Sqd = 4,
        /// Send queue error.
        Sqe = 5,
        /// Error.
        Err = 6,
    }
}

numbered! {
    /// `ibv_qp_type`.
    QpType {
        /// Reliable connection.
        Rc = 2,
        /// Unreliable connection.
        Uc = 3,
        /// Unreliable datagram.
        Ud = 4,
        /// XRC initiator.
        XrcSend = 9,
        /// XRC target.
        XrcRecv = 10,
    }
}

numbered! {
    /// `ibv_event_type`.
    AsyncEventType {
        /// CQ error (overrun).
        CqErr = 0,
        /// QP fatal.
        QpFatal = 1,
        /// QP request error.
        QpReqErr = 2,
        /// QP access error.
        QpAccessErr = 3,
        /// Communication established.
        CommEst = 4,
        /// Send queue drained.
        SqDrained = 5,
        /// Device fatal.
        DeviceFatal = 8,
        /// Port active.
        PortActive = 9,
        /// Port error.
        PortErr = 10,
        /// SRQ error.
        SrqErr = 14,
        /// SRQ limit reached.
        SrqLimitReached = 15,
        /// Last WQE reached.
        QpLastWqeReached = 16,
        /// GID table changed.
        GidChange = 18,
    }
}

bitflags! {
    /// `ibv_send_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct SendFlags: u8 {
        /// Wait for earlier READs and atomics.
        const FENCE = 1;
        /// Produce a CQE on success.
        const SIGNALED = 2;
        /// Set the solicited-event bit.
        const SOLICITED = 4;
        /// The payload is in the WQE and there are no SGEs.
        const INLINE = 8;
    }
}

bitflags! {
    /// `ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
    pub struct AccessFlags: u32 {
        /// The NIC may write locally.
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 2;
        /// Peers may read.
        const REMOTE_READ = 4;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound.
        const MW_BIND = 16;
        /// Addresses are offsets.
        const ZERO_BASED = 32;
        /// On-demand paging (all our memory is).
        const ON_DEMAND = 64;
        /// Huge pages hint.
        const HUGETLB = 128;
        /// FLUSH to global visibility.
        const FLUSH_GLOBAL = 256;
        /// FLUSH to persistence.
        const FLUSH_PERSISTENT = 512;
        /// Relaxed ordering hint.
        const RELAXED_ORDERING = 1 << 20;
    }
}

bitflags! {
    /// `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct AttrMask: u32 {
        /// `qp_state`.
        const STATE = 1;
        /// `cur_qp_state`.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `ah_attr`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_ah_attr` and the rest of the alternate path.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`.
        const CAP = 1 << 19;
        /// `dest_qp_num`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`.
        const RATE_LIMIT = 1 << 25;
    }
}

/// Address vector: `ibv_ah_attr` with its `ibv_global_route`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AhAttr {
    /// Destination GID.
    pub dgid: [u8; 16],
    /// 20 bits; 0 lets the NIC derive the UDP source port from the QPNs.
    pub flow_label: u32,
    /// Index of our GID.
    pub sgid_index: u8,
    /// IPv4 TTL or IPv6 hop limit; 0 means 64.
    pub hop_limit: u8,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// Service level: VLAN priority on Ethernet.
    pub sl: u8,
    /// Port, 1.
    pub port_num: u8,
    /// RoCE requires a global route; false is an error.
    pub is_global: bool,
}

/// `ibv_qp_cap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QpCaps {
    /// Send WQEs.
    pub max_send_wr: u32,
    /// Receive WQEs.
    pub max_recv_wr: u32,
    /// SGEs of a send WQE.
    pub max_send_sge: u32,
    /// SGEs of a receive WQE.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

/// `ibv_qp_attr`, without the alternate path (RoCE has no APM).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QpAttr {
    /// Target state of a modify; current state of a query.
    pub state: QpState,
    /// Assumed current state.
    pub cur_state: QpState,
    /// Path MTU code 1 to 5.
    pub path_mtu: u8,
    /// UD Q_Key.
    pub qkey: u32,
    /// 24 bits.
    pub rq_psn: u32,
    /// 24 bits.
    pub sq_psn: u32,
    /// 24 bits.
    pub dest_qpn: u32,
    /// What peers may do through this QP.
    pub access: AccessFlags,
    /// Address vector.
    pub ah: AhAttr,
    /// P_Key table index.
    pub pkey_index: u16,
    /// Raise `SqDrained` when SQD is drained.
    pub en_sqd_async_notify: bool,
    /// Query only: SQD entered but not yet drained.
    pub sq_draining: bool,
    /// Outstanding READs and atomics as requester.
    pub max_rd_atomic: u8,
    /// Outstanding READs and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code 0 to 31.
    pub min_rnr_timer: u8,
    /// Port, 1.
    pub port_num: u8,
    /// Local ACK timeout exponent, 4.096 us x 2^n; 0 is infinite.
    pub timeout: u8,
    /// 0 to 7.
    pub retry_cnt: u8,
    /// 0 to 7; 7 is infinite.
    pub rnr_retry: u8,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            path_mtu: 0,
            qkey: 0,
            rq_psn: 0,
            sq_psn: 0,
            dest_qpn: 0,
            access: AccessFlags::empty(),
            ah: AhAttr::default(),
            pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port_num: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
        }
    }
}
