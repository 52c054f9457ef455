//! What the driver tells the core ([`Input`]) and what the core asks of the driver ([`Effect`]).

use crate::id::{BatchId, ClientId, DomainId, Lsn, RequestId, UnitId};
use crate::policy::Policy;
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// Something that happened, told to [`crate::Core::handle`].
#[derive(Clone, Debug, PartialEq)]
pub enum Input<'a> {
    /// A request wants its units. Answered by exactly one [`Effect::Execute`] or [`Effect::Refuse`], unless cancelled.
    Access {
        /// The request; its id is free again once it is answered.
        request: RequestId,
        /// What it will do.
        intent: Intent,
        /// The units it reads or writes, each once.
        units: &'a [UnitId],
    },
    /// An executed request wrote a group. The driver has appended it to the journal's buffer under
    /// [`crate::Core::next_lsn`] before it says so.
    Write {
        /// The ordering domain of the group.
        domain: DomainId,
        /// Every unit the group changed, once, with the unit's new size in bytes.
        units: &'a [(UnitId, u32)],
        /// Memory that the buffered write holds, bytes.
        bytes: u32,
        /// Bytes that its journal record holds.
        journal_bytes: u32,
        /// As the [`Effect::Execute`] said.
        access: Access,
    },
    /// The newest group is one part of a request, and the next group another one: a batch that holds it holds both, whatever
    /// its limits. To be said before the next group is written or recovered. Not under [`crate::Order::Unit`], where it has no
    /// effect.
    Join {
        /// The newest group.
        lsn: Lsn,
    },
    /// The newest group belongs to all these domains, its own among them: it is applied when it is at the head of each, and
    /// the watermarks of all of them move at once. To be said before the next group is written or recovered. Not under
    /// [`crate::Order::Unit`].
    Spans {
        /// The newest group.
        lsn: Lsn,
        /// Its domains, ascending, each once.
        domains: &'a [DomainId],
    },
    /// The newest group builds on these groups, although it changes none of their units, since its client had read what they
    /// wrote: where one of them is parked by the time at which this group is to be applied, it is parked behind that. What
    /// is neither undecided nor parked any more counts for nothing. To be said before the next group is written or
    /// recovered. Groups of other domains, and all under [`crate::Order::Unit`], are not waited for: those that are undecided
    /// by then count for nothing either.
    BuildsOn {
        /// The newest group.
        lsn: Lsn,
        /// What it builds on: older groups, ascending, each once.
        on: &'a [Lsn],
    },
    /// The driver has carried the write of a request that was executed with [`Access::Through`] or [`Access::Around`] to
    /// the origin by itself, without a group. Only where [`Effect::Execute`] observed nothing undecided, or the write would
    /// overtake it.
    Through {
        /// Every unit that was written, once, with its size in bytes.
        units: &'a [(UnitId, u32)],
        /// As the effect said; the units are kept after `Through` and dropped after `Around`. [`Access::Back`] where units
        /// follow a write that had not locked them: they are kept, and locked still for whoever has locked them by now.
        access: Access,
        /// Whether the origin has it. If not, the cached copies are dropped: nobody knows what it holds.
        result: Result<(), Fault>,
    },
    /// A request that was executed with [`Access::Through`] or [`Access::Around`] wrote nothing after all: its units are
    /// free again.
    Release {
        /// The units of the request.
        units: &'a [UnitId],
    },
    /// Replies of a connection are ready to leave. Answered by one [`Effect::Send`] once they may; the driver gives no
    /// further `Respond` for this client before that.
    Respond {
        /// The connection.
        client: ClientId,
        /// The highest group that the replies wrote or observed.
        lsn: Lsn,
        /// Whether they acknowledge a write, which the staleness bound may hold back.
        wrote: bool,
    },
    /// A request wants to know when a group is committed or decided. Answered by one [`Effect::Waited`].
    Wait {
        /// The request.
        request: RequestId,
        /// The group.
        lsn: Lsn,
        /// What to wait for.
        until: WaitFor,
    },
    /// A request that has not been answered yet is no longer wanted. What it has written stays.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// A [`Effect::Fetch`] ended. On success the driver has installed the unit with every later group overlaid.
    Fetched {
        /// The unit.
        unit: UnitId,
        /// Its size in bytes, or why it could not be read.
        result: Result<u32, Fault>,
        /// A hash of what the unit stands for, by which a returning unit is recognised.
        identity: u64,
    },
    /// An earlier run left clean copies of these units, all of the same size. For units that the core has not been told of;
    /// much cheaper than reads of them. Highest units first, and the room for all is taken at once.
    Restored {
        /// The units.
        units: &'a [UnitId],
        /// The size of each, bytes.
        bytes: u32,
    },
    /// The driver has dropped a unit after [`Effect::Evict`].
    Evicted {
        /// A hash of what the unit stood for.
        identity: u64,
    },
    /// A unit's cached copy must not be used any more. Ignored for units that are dirty, which
    /// [`crate::Core::is_present`] tells afterwards; a fetch under way is repeated: by the driver where the unit becomes
    /// dirty before it ends, see [`crate::Core::is_outdated`].
    Invalidate {
        /// The unit.
        unit: UnitId,
    },
    /// As `Invalidate`, for dirty units as well: such a unit is fetched again before it is used, and the driver overlays its
    /// undecided changes. What is being fetched for a dirty unit is not repeated: the driver does that.
    Reload {
        /// The unit.
        unit: UnitId,
    },
    /// A [`Effect::Sync`] ended, or the journal became durable or failed without having been asked to. A failure fences the
    /// core: a failed sync is never retried as if it had succeeded.
    Synced {
        /// The group up to which the journal is durable: more than before. Fewer groups than it was asked for, where the journal
        /// had room for a part: the rest is asked for again.
        upto: Lsn,
        /// Whether it is.
        result: Result<(), Fault>,
    },
    /// A [`Effect::Destage`] ended.
    Destaged {
        /// The batch.
        batch: BatchId,
        /// Applied as a whole, or not at all.
        result: Result<(), Fault>,
    },
    /// An [`Effect::Park`] ended.
    Parked {
        /// The group.
        lsn: Lsn,
        /// Whether the origin now holds it as parked.
        result: Result<(), Fault>,
    },
    /// A group found in the journal at start: not decided yet. In order, before any other input but `RecoveredParked`.
    Recovered {
        /// Its number; the first one sets where the numbering goes on.
        lsn: Lsn,
        /// When it was written.
        stamp: Time,
        /// Its domain.
        domain: DomainId,
        /// Its level, as [`crate::Core::level`] gave it; 0 where levels are not kept.
        level: u64,
        /// The units it changed.
        units: &'a [UnitId],
        /// As for `Write`.
        bytes: u32,
        /// As for `Write`.
        journal_bytes: u32,
    },
    /// A group found parked at the origin at start.
    RecoveredParked {
        /// Its number.
        lsn: Lsn,
        /// The units it changed.
        units: &'a [UnitId],
    },
    /// These units stand for many others each, as a set does for its members: a group that changes one of them does not build on
    /// every parked group that did so, but on those that changed a unit of its own. Before the `Parked` or `RecoveredParked` of a
    /// group that changed them; until nothing of the unit is parked any more.
    Collective {
        /// The units.
        units: &'a [UnitId],
    },
    /// Numbers up to this one were used in an earlier run and must not be used again, whether or not their groups are
    /// still undecided. After the last `Recovered`; needed where groups are decided out of order (several domains,
    /// [`crate::Order::Unit`]).
    RecoveredUpto {
        /// The newest number that the journal or the origin holds.
        lsn: Lsn,
    },
    /// The driver keeps so many bytes of a group no more, before the group is decided: what it wrote was overwritten, or is gone.
    /// They do not count as dirty any more. The group is decided in its turn as before. Of a decided group it means nothing.
    Shrunk {
        /// The group.
        lsn: Lsn,
        /// Bytes, at most those that are left of what [`Input::Write`] said. More count as all of these.
        bytes: u32,
    },
    /// Someone is about to decide on parked groups: until this is taken back, no group is parked behind another one, so that
    /// none joins those that are about to leave. It waits at the head of its domain instead.
    HoldParked {
        /// Whether they are held.
        held: bool,
    },
    /// A parked group is parked no more: it was applied after all, or given up. Its units are fetched again before they are
    /// used, with the undecided changes overlaid.
    Unparked {
        /// The group.
        lsn: Lsn,
        /// The units it changed, and those that were changed in its place.
        units: &'a [UnitId],
    },
    /// The journal is not durable as it should be, and will not be soon: fewer copies of it can be had than were asked for. Until
    /// this is taken back by `None`, writes go through to the origin. What is up to this group may be destaged although the
    /// journal does not hold it durably: it survives all that a start could meet, fewer copies of it notwithstanding. The
    /// driver counts what the origin has decided as durable, and says so by [`Input::Synced`].
    Lacking {
        /// The newest group that may be destaged; it never goes back.
        secured: Option<Lsn>,
    },
    /// Use another policy from now on. Must have passed [`Policy::validate`].
    SetPolicy(&'a Policy),
    /// Stop destaging until `Resume`. The staleness bound stays in force.
    Pause,
    /// Destage again; also ends the back-off after a failure, and what [`Effect::Halted`] told.
    Resume,
    /// As `Resume`; and what domains halted at because the origin rejected it is parked if it is rejected once more, whatever
    /// [`crate::OnReject`] says.
    ResumeParking,
    /// Destage everything now and from now on, as before a shutdown.
    Drain,
    /// The driver has nothing more at hand, or a timeout passed: decide what to start. Harmless at any time.
    Tick,
}

/// What a request will do with its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Intent {
    /// Read the newest value.
    Read,
    /// Read what only the origin can compute: destage the unit's changes first, then fetch it again.
    ReadSettled,
    /// Read and write; the size is an upper estimate of the buffered write in bytes.
    Write {
        /// Bytes the write will buffer.
        bytes: u32,
        /// Whether the acknowledgement follows the policy or always waits for the origin.
        ack: Ack,
        /// Whether the units must be present. Blind writes need not know the old value.
        fetch: bool,
    },
}

impl Intent {
    /// Whether it writes.
    pub const fn writes(&self) -> bool {
        matches!(self, Self::Write { .. })
    }
}

/// Whose word a write's acknowledgement waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Ack {
    /// As [`Policy::acknowledge`] says.
    Policy,
    /// The origin's, whatever the policy says.
    Origin,
    /// The origin's, and the units are dropped afterwards because the origin changes more than it is told.
    OriginInvalidate,
}

/// How an executed request must treat its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Access {
    /// Change the cached units, write the group, respond.
    Back,
    /// Do not change the cached units yet; write the group and wait for [`Effect::Settled`], then install the change
    /// and reply. The units are locked until then, so nobody sees a value that the origin may reject.
    Through,
    /// As `Through`, but drop the cached units at the end instead of changing them.
    Around,
}

/// What [`Input::Wait`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum WaitFor {
    /// The journal is durable up to the group.
    Committed,
    /// The origin has decided the group.
    Decided,
    /// The origin has decided every group up to this one.
    AllDecided,
}

/// Something the driver must do, from [`crate::Core::poll_effect`]. In the order given.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Effect {
    /// Execute the request now, before polling the next effect: every unit is present.
    Execute {
        /// The request.
        request: RequestId,
        /// How to treat its write; [`Access::Back`] for reads.
        access: Access,
        /// The highest uncommitted or undecided group among its units: what its reply reveals.
        observed: Lsn,
    },
    /// Tell the client that its request is refused. Nothing has been done.
    Refuse {
        /// The request.
        request: RequestId,
        /// Why.
        refusal: Refusal,
    },
    /// Send the replies that [`Input::Respond`] announced.
    Send {
        /// The connection.
        client: ClientId,
    },
    /// Answer an [`Input::Wait`].
    Waited {
        /// The request.
        request: RequestId,
        /// How the wait ended.
        outcome: Outcome,
    },
    /// Make the journal durable at least up to `upto`, then say [`Input::Synced`]. One at a time.
    Sync {
        /// The newest group.
        upto: Lsn,
    },
    /// Read a unit from the origin, overlay every group that the origin had not decided, install it, then say
    /// [`Input::Fetched`].
    Fetch {
        /// The unit.
        unit: UnitId,
    },
    /// Apply the groups of [`crate::Core::batch`] to the origin in one transaction, then say [`Input::Destaged`].
    Destage {
        /// The batch.
        batch: BatchId,
        /// Its domain; the domains of its first group where that belongs to several, see [`crate::Core::domains_spanned`].
        domain: DomainId,
    },
    /// Move one group out of the queue: in one origin transaction advance the watermark past it and, if `keep`, store it
    /// among the parked ones. Then say [`Input::Parked`].
    Park {
        /// The group.
        lsn: Lsn,
        /// Its domain.
        domain: DomainId,
        /// The parked group whose fate it shares, if it was not itself rejected.
        depends_on: Option<Lsn>,
        /// False for a group whose client is told of the rejection instead.
        keep: bool,
    },
    /// A group written with [`Access::Through`] or [`Access::Around`] is decided: install its change, or drop the cached
    /// copies of its units (after `Around`, and where it was rejected unless they are dirty), then reply.
    Settled {
        /// The group.
        lsn: Lsn,
        /// False if the origin rejected it.
        applied: bool,
    },
    /// Groups up to and including this one are decided and no fetch needs them: their payload may be dropped.
    Forget {
        /// The newest group to forget.
        upto: Lsn,
    },
    /// Drop the unit's cached copy and reuse its handle, then say [`Input::Evicted`]. Comes after every other effect.
    Evict {
        /// The unit.
        unit: UnitId,
    },
    /// The mode of operation changed; to be shown and logged.
    Mode(Mode),
    /// Nothing more of a domain is sent to the origin before [`Input::Resume`]; to be shown and logged.
    Halted {
        /// The domain.
        domain: DomainId,
        /// Why.
        halt: Halt,
    },
    /// Stop acknowledging and serving; keep the journal.
    Stop(StopReason),
}

/// Why a domain stands still until someone has looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Halt {
    /// The origin rejected this group, which is undecided still, under [`crate::OnReject::Stop`].
    Rejected(Lsn),
    /// More groups were parked within a minute than [`crate::Limits::parked_per_minute_max`] allows.
    ParkedTooFast,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Outcome {
    /// Committed or decided as asked.
    Done,
    /// The group was rejected by the origin and is parked there.
    Parked,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Refusal {
    /// The oldest undecided write is older than `D`, and the policy says to fail.
    Stale,
    /// The dirty or journal limit is reached, and the policy says to fail.
    Full,
    /// Too many requests wait already.
    Busy,
    /// The origin could not be read.
    Unavailable,
    /// The origin refused to be read (permission, schema).
    Denied,
    /// The core is fenced or stopped.
    Stopped,
}

/// Trouble reported by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Fault {
    /// Out of reach, out of resources, a serialisation failure: try again later.
    Unavailable,
    /// The data were refused (constraint, type): the group can never be applied as it is.
    Rejected,
    /// Permission or schema: nothing will work until someone mends it; tried again at the longest back-off.
    Denied,
    /// Another owner has taken over the origin.
    Fenced,
    /// The medium failed; what it holds is unknown.
    Failed,
    /// What was to be sent cannot be read back: the journal is damaged there.
    JournalDamaged,
}

/// The mode of operation, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Mode {
    /// The policy is in force.
    Normal,
    /// Writes are delayed (dirty bytes above the low mark).
    Throttled,
    /// The dirty or journal limit is reached: writes wait or fail.
    Full,
    /// The dirty or journal limit is reached, or copies of the journal are lacking: writes go through to the origin.
    Fallback,
    /// The oldest undecided write is older than `D`: no write is acknowledged.
    StalenessExceeded,
    /// Fenced or failed.
    Stopped,
}

/// Why the core stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum StopReason {
    /// A sync failed, so that the journal's content is unknown, or a part of it that is still needed is damaged.
    JournalFailed,
    /// Another process owns the origin.
    Fenced,
    /// The origin's watermark is not where it was left: it was restored, or failed over to a lagging replica.
    OriginChanged,
}
