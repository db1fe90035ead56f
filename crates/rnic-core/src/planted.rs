//! Switches that make the engine wrong on purpose, to prove that tests notice.
//!
//! Each [`Rule`] is a row of `docs/compliance.md`: where the engine keeps it, and the test that
//! fails when it does not. Each [`Bug`] is a mistake that the random walks of rnic-sim must find.
//! `cargo xtask compliance` turns them on one by one: compiled with `--cfg planted`, the engine
//! reads the name of one of them from the environment variable `RNIC_PLANTED`. In every other
//! build the answers are constants and the switches cost nothing.

macro_rules! switches {
    ($(#[$about:meta])* $name:ident: $($(#[$what:meta])* $switch:ident,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum $name {
            $($(#[$what])* $switch,)*
        }

        #[cfg(planted)]
        impl $name {
            fn by_name(wanted: &str) -> Option<Self> {
                let all = [$((stringify!($switch), Self::$switch),)*];
                all.into_iter().find(|(name, _)| *name == wanted).map(|(_, switch)| switch)
            }
        }
    };
}

switches! {
    /// A rule of the specification. `docs/compliance.md` says which.
    Rule:
    // Requester: requests.
    FirstPsn,
    EmptyMessagePsn,
    ReadPsns,
    Segmentation,
    WriteAnnouncesAll,
    ImmediateSentRaw,
    SolicitedAtEnd,
    PadIsZero,
    FaultSparesEarlier,
    PKeySent,
    DestQpn,
    AckReqAtEnd,
    AckReqOnTheWay,
    Window,
    HalvesTakeTurns,
    ReadDepth,
    Fence,
    NoDepthNoReads,
    // Requester: work requests that fail.
    MalformedWqe,
    OpcodeExists,
    InlineSendsOnly,
    MaxSge,
    MaxMessage,
    AtomicSink,
    LocalKeyStatus,
    SinkIsWritable,
    EmptySgeMeansNothing,
    AcknowledgedCompletes,
    SendErrorEndsQp,
    ErrorsAlwaysTold,
    // Requester: responses.
    ResponseBehind,
    ResponseAhead,
    AckUpToItsPsn,
    AckCoalesces,
    AckInsideMessage,
    ImpliedNak,
    ImpliedNakCostsRetry,
    ImpliedNakOnce,
    ImpliedNakAgain,
    NakAcknowledgesEarlier,
    SequenceNakRewinds,
    SequenceNakCostsRetry,
    RepeatedNakIgnored,
    ReservedSyndromeIgnored,
    InvalidRequestStatus,
    AccessErrorStatus,
    OperationalErrorStatus,
    ReadAcknowledgesEarlier,
    AtomicAcknowledgesEarlier,
    ReadResponseForRead,
    AtomicResponseForAtomic,
    ReadResponseSequence,
    ReadRestartsAnywhere,
    ReadResponseLength,
    AtomicResultNative,
    // Requester: timers and retries.
    TimeoutRange,
    TimeoutZeroIsNever,
    TimerArms,
    TimerStops,
    TimerOutlastsStall,
    ArrivalsBeforeTimers,
    TurnIsNoTimeout,
    GoBackN,
    ReadRestart,
    RetriesEnd,
    SevenRetriesAreSeven,
    ProgressReloadsRetries,
    ProgressRestartsTimer,
    RnrWait,
    RnrRetriesEnd,
    RnrSevenIsInfinite,
    SequenceNakInRnrWait,
    LateEchoIsFree,
    AckInRnrWait,
    ProgressReloadsRnrRetries,
    RnrResends,
    // Responder: whose packet is it.
    Icrc,
    WholeQpn,
    TransportFits,
    StateReceives,
    PKeyMatches,
    PeerAddress,
    // Responder: PSNs.
    FirstExpectedPsn,
    GapDropped,
    GapNakPsn,
    OneNakPerGap,
    AcceptedEndsGap,
    DuplicateEndsGap,
    // Responder: checks.
    OpcodeSequence,
    OperationExists,
    QpAccess,
    PayloadLength,
    WriteTotal,
    MaxDmaLength,
    SendFits,
    ReplyDepth,
    DepthRoundedUp,
    NoDepthNoReplies,
    AtomicAlignment,
    KeyDomain,
    KeyBounds,
    WriteNeedsRight,
    ReadNeedsRight,
    AtomicNeedsRight,
    EmptyNeedsNoKey,
    // Responder: receive WQEs.
    SendTakesReceiveFirst,
    WriteImmTakesReceive,
    RnrNakPsn,
    RnrTimer,
    RnrSilencesGap,
    // Responder: duplicates.
    DuplicateNotExecuted,
    DuplicateAckPsn,
    DuplicateAckStopsAtReads,
    DuplicateReadAnswered,
    DuplicateReadMatches,
    DuplicateReadPsn,
    DuplicateAtomicAnswered,
    DuplicateAtomicMatches,
    DuplicateRestartsStream,
    DuplicateKeepsAnswers,
    DuplicateKeepsAck,
    DuplicateErrorSilent,
    OldestForgotten,
    DistantForgotten,
    StaleGivesWay,
    // Responder: answers.
    AckNamesLast,
    AckReqAnswered,
    AckOnlyOnRequest,
    AnswersInOrder,
    ReplyReplacesAck,
    NoCredits,
    MsnCountsMessages,
    MsnCountsReads,
    MsnCountsAtomics,
    InvalidNak,
    AccessNak,
    OperationalNak,
    MissingMemoryIsOurs,
    NakLeavesInErr,
    NakEndsQp,
    // Responder: effects.
    FetchAddWraps,
    SwapOnlyWhenEqual,
    AtomicAfterWrites,
    DataBeforeCompletion,
    FaultRollsBack,
    FaultFlushesBurst,
    TooLongStatus,
    ReceiveKeyStatus,
    RefusedImmStatus,
    RefusedReceiveFails,
    QpAccessErr,
    QpReqErr,
    EventOnlyUnreported,
    // Completions.
    CompletionOpcode,
    FetchedLength,
    SignalAll,
    UnsignaledSilent,
    ReceiveOpcode,
    ReceivedLength,
    ImmediateDelivered,
    SolicitedDelivered,
    ErrorsAreSolicited,
    EventsNeedArming,
    SolicitedArmWaits,
    OverflowTold,
    OverflowEndsQps,
    OverflowNotAcked,
    // Queue pair states.
    CurrentState,
    Transitions,
    RequiredAttributes,
    AllowedAttributes,
    PortRange,
    PKeyIndexRange,
    TimeoutExponentRange,
    RetryCntRange,
    RnrRetryRange,
    MinRnrTimerRange,
    PathMtuRange,
    RdAtomicRange,
    DestRdAtomicRange,
    AddressRange,
    AddressPortRange,
    NoAlternatePath,
    QueryTellsPsns,
    Route,
    PsnMasked,
    CommEst,
    CommEstOnce,
    RtrSendsNothing,
    SqdHoldsNew,
    SqdResponds,
    SqdReportsDraining,
    SqdDrains,
    SqdFinishesMessage,
    SqDrainedOnRequest,
    ErrFlushesCurrent,
    ErrFlushesSends,
    ErrFlushesReceives,
    ErrFlushesLateReceives,
    ResetEmpties,
    // Objects and the port.
    DomainInUse,
    CqInUse,
    QpTypes,
    OwnQps,
    OwnRegions,
    RemoteWriteNeedsLocal,
    RegionLength,
    RegionWraps,
    PortEvents,
    GidEvents,
}

switches! {
    /// A mistake.
    Bug:
    /// The ACK names the PSN after the one it acknowledges.
    AckOffByOne,
    /// A request before the expected PSN is executed again.
    SkipDuplicateCheck,
    /// A response beyond an unanswered READ or atomic completes it.
    NoImpliedNak,
    /// The expected PSN sticks at 0xFFFFFF instead of wrapping.
    PsnSticks,
    /// An RNR NAK is answered by sending again at once.
    RnrNoWait,
    /// Exhausted retries never fail the request.
    RetryNeverEnds,
    /// The last packet of a long WRITE is acknowledged but not stored.
    LostTailWrite,
    /// The end of a message may become visible before the rest.
    TailNotLast,
    /// A fenced request does not wait for earlier READs.
    FenceIgnored,
    /// A restarted READ answers with the data of its beginning.
    ReadRestartOffset,
    /// A receive completion is written twice.
    DoubleCqe,
    /// Progress does not make the retries available again.
    RetriesNotReloaded,
    /// An RNR NAK is waited for half as long as it says.
    RnrHalfTime,
    /// The answer to a restarted READ has the length of the whole READ.
    RestartedReadLength,
    /// The MSN does not count READs.
    MsnSkipsReads,
    /// One READ or atomic less than may be outstanding is remembered for duplicates.
    ResultForgotten,
    /// An ACK leaves before the responses of earlier READs.
    AckBeforeReplies,
    /// READs that are sent again count as outstanding twice.
    RewindKeepsReads,
    /// Two completions that are due together change places.
    CompletionsSwapped,
    /// A fence does not see an atomic right before it.
    FenceOverlooksAtomic,
    /// The timer goes on when everything is acknowledged, and hits the next request.
    LateTimer,
    /// What is sent again does not ask for an ACK.
    RetransmitWithoutAckReq,
    /// A packet that is refused for want of a receive WQE counts as received.
    RefusedCountsAsReceived,
    /// An engine that is busy is not told that it cannot hear a silent client.
    NobodyIsParked,
}

impl Rule {
    /// Does the engine keep it?
    #[inline(always)]
    pub(crate) fn applies(self) -> bool {
        #[cfg(planted)]
        return chosen::get() != Some(chosen::Switch::Rule(self));
        #[cfg(not(planted))]
        true
    }
}

impl Bug {
    /// Does the engine make it?
    #[inline(always)]
    pub(crate) fn is_planted(self) -> bool {
        #[cfg(planted)]
        return chosen::get() == Some(chosen::Switch::Bug(self));
        #[cfg(not(planted))]
        false
    }
}

/// What this process was told to do wrong.
#[cfg(planted)]
mod chosen {
    use super::{Bug, Rule};
    use std::sync::OnceLock;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) enum Switch {
        Rule(Rule),
        Bug(Bug),
    }

    static CHOSEN: OnceLock<Option<Switch>> = OnceLock::new();

    pub(super) fn get() -> Option<Switch> {
        *CHOSEN.get_or_init(|| {
            let name = std::env::var("RNIC_PLANTED").ok()?;
            let rule = Rule::by_name(&name).map(Switch::Rule);
            let switch = rule.or_else(|| Bug::by_name(&name).map(Switch::Bug));
            assert!(switch.is_some(), "RNIC_PLANTED={name} is neither a rule nor a bug");
            switch
        })
    }
}
