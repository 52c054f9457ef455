//! What a run is made of, and what it was like.

use destage_replicas::Controls;
use destage_testkit::virtual_time::Rng;

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) processes: usize,
    /// Of the configuration at the beginning, and besides.
    pub(crate) servers: usize,
    pub(crate) spares: usize,
    pub(crate) copies: usize,
    pub(crate) controls: Controls,
    /// Once, all servers forget the log while its owner lives.
    pub(crate) all_forget: bool,
    /// Processes begin a log without a look at the origin.
    pub(crate) founds_unasked: bool,
    /// Entries leave once they are committed, whatever the origin says.
    pub(crate) reclaims_early: bool,
    /// With fewer servers than copies writes go through to the origin.
    pub(crate) goes_through: bool,
    /// Then to the origin goes what no server has accepted yet.
    pub(crate) destages_early: bool,
    /// Then it is acknowledged before the origin has it.
    pub(crate) acknowledges_early: bool,
}

impl Setup {
    pub(crate) fn of(seed: u64, controls: Controls) -> Self {
        let mut rng = Rng::new(seed, 0);
        let (servers, copies) =
            rng.pick(&[(3, 2), (3, 2), (3, 2), (3, 3), (5, 3), (5, 4), (2, 2), (1, 1)]);
        let processes = rng.pick(&[2, 2, 3]);
        let goes_through = rng.chance(50);
        Self {
            seed,
            processes,
            servers,
            spares: 2,
            copies,
            controls,
            all_forget: false,
            founds_unasked: false,
            reclaims_early: false,
            goes_through,
            destages_early: false,
            acknowledges_early: false,
        }
    }
}

/// What a run was like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) acknowledged: u64,
    /// Of these, by the origin alone.
    pub(crate) through: u64,
    /// Take-overs with fewer servers than copies.
    pub(crate) short: u64,
    pub(crate) take_overs: u64,
    pub(crate) lost_memories: u64,
    pub(crate) changes: u64,
    pub(crate) pauses: u64,
    pub(crate) fenced: u64,
    pub(crate) reads: u64,
    /// Acknowledged writes that the origin did not have when all servers forgot the log.
    pub(crate) forgotten: u64,
    pub(crate) events: u64,
}

impl Report {
    pub(crate) fn add(&mut self, other: &Self) {
        self.acknowledged += other.acknowledged;
        self.through += other.through;
        self.short += other.short;
        self.take_overs += other.take_overs;
        self.lost_memories += other.lost_memories;
        self.changes += other.changes;
        self.pauses += other.pauses;
        self.fenced += other.fenced;
        self.reads += other.reads;
        self.forgotten += other.forgotten;
        self.events += other.events;
    }
}
