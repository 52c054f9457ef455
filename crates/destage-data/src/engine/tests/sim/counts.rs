//! What a run met.

/// What a run met, so that a test can see that it met anything.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine::tests) struct Counts {
    pub(in crate::engine::tests) steps: u64,
    pub(in crate::engine::tests) groups: u64,
    pub(in crate::engine::tests) replies: u64,
    pub(in crate::engine::tests) crashes: u64,
    pub(in crate::engine::tests) parked: u64,
    pub(in crate::engine::tests) dropped: u64,
    pub(in crate::engine::tests) refused: u64,
    pub(in crate::engine::tests) scans: u64,
    pub(in crate::engine::tests) evictions: u64,
    /// Transactions that watched rows, and those of them that were not done.
    pub(in crate::engine::tests) watched: u64,
    pub(in crate::engine::tests) not_done: u64,
    /// Results of derived keys.
    pub(in crate::engine::tests) derived: u64,
    /// Replies about a set.
    pub(in crate::engine::tests) members: u64,
    /// Groups that were parked and applied later, and those that were given up.
    pub(in crate::engine::tests) unparked: u64,
    pub(in crate::engine::tests) skipped: u64,
    /// Rows that went with others.
    pub(in crate::engine::tests) implied: u64,
    /// Syncs that failed.
    pub(in crate::engine::tests) failed_syncs: u64,
    /// Syncs of the journal beside flushes.
    pub(in crate::engine::tests) lane_syncs: u64,
    pub(in crate::engine::tests) durable_writes: u64,
    /// Writes of several domains, and those that began while another was under way.
    pub(in crate::engine::tests) across: u64,
    pub(in crate::engine::tests) parallel: u64,
    /// Rows with undecided changes that were taken for changed at the origin.
    pub(in crate::engine::tests) distrusted: u64,
    /// Most groups of raw SQL parked at once.
    pub(in crate::engine::tests) raw_parked: u64,
    /// Writes that were refused since a row was missing to which they referred.
    pub(in crate::engine::tests) orphans: u64,
    /// Domains that stood still when someone looked.
    pub(in crate::engine::tests) halted: u64,
    /// Answers to what was sent again; groups that starts found which tell of tokens anew, or that writes are given up.
    pub(in crate::engine::tests) again: u64,
    pub(in crate::engine::tests) carried: u64,
    pub(in crate::engine::tests) given_up: u64,
    /// Rows for which the origin was not asked, as it certainly did not have them.
    pub(in crate::engine::tests) absent: u64,
}

impl Counts {
    pub(in crate::engine::tests) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.groups += other.groups;
        self.replies += other.replies;
        self.crashes += other.crashes;
        self.parked += other.parked;
        self.dropped += other.dropped;
        self.refused += other.refused;
        self.scans += other.scans;
        self.evictions += other.evictions;
        self.watched += other.watched;
        self.not_done += other.not_done;
        self.derived += other.derived;
        self.members += other.members;
        self.unparked += other.unparked;
        self.skipped += other.skipped;
        self.implied += other.implied;
        self.failed_syncs += other.failed_syncs;
        self.lane_syncs += other.lane_syncs;
        self.durable_writes += other.durable_writes;
        self.across += other.across;
        self.parallel += other.parallel;
        self.distrusted += other.distrusted;
        self.raw_parked += other.raw_parked;
        self.orphans += other.orphans;
        self.halted += other.halted;
        self.again += other.again;
        self.carried += other.carried;
        self.given_up += other.given_up;
        self.absent += other.absent;
    }
}
