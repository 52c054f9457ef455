//! What a run came to, counted from the core's inputs and effects alone: the same way for recorded and simulated runs.

use super::Observer;
use destage_core::{BatchId, Core, Effect, Input, Lsn, Time, UnitId};
use hashbrown::HashMap;
use serde::Serialize;
use std::collections::BTreeSet;

/// Counts of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Write groups.
    pub writes: u64,
    /// Units that they changed, each group's counted for itself.
    pub written_units: u64,
    /// Batches that reached the origin.
    pub batches: u64,
    /// Groups in them.
    pub destaged: u64,
    /// Units written to the origin: of each batch, a unit once; and those that were written through.
    pub origin_writes: u64,
    /// Batches that the origin did not take.
    pub failed_batches: u64,
    /// The most units in one batch.
    pub burst_max: u64,
    /// How long a changed unit was dirty when its batch was given to the origin, on average, seconds.
    pub dirty_age_mean: f64,
    /// The longest of them, seconds.
    pub dirty_age_max: f64,
    /// The largest age of the oldest undecided write, seconds.
    pub staleness_max: f64,
    /// The most dirty bytes.
    pub dirty_bytes_max: u64,
    /// Groups that were undecided at the end.
    pub left_dirty: u64,
    /// Syncs of the journal.
    pub syncs: u64,
    /// Units read from the origin.
    pub fetches: u64,
    /// Units dropped from the cache.
    pub evictions: u64,
    /// Requests refused.
    pub refused: u64,
    #[serde(skip)]
    ages: u64,
    #[serde(skip)]
    age_sum: f64,
    #[serde(skip)]
    groups: HashMap<Lsn, (Time, Box<[UnitId]>)>,
    #[serde(skip)]
    fetching: HashMap<UnitId, Time>,
    #[serde(skip)]
    under_way: HashMap<BatchId, (Time, Vec<Lsn>)>,
}

impl Observer for Tally {
    fn input(&mut self, now: Time, input: &Input<'_>, core: &Core) {
        match *input {
            Input::Write { units, .. } => {
                self.writes += 1;
                self.written_units += units.len() as u64;
                let units = units.iter().map(|&(unit, _)| unit).collect();
                self.groups.insert(core.next_lsn(), (now, units));
            }
            Input::Through { units, result: Ok(()), .. } => {
                self.written_units += units.len() as u64;
                self.origin_writes += units.len() as u64;
            }
            // Those that take no time are units that were written whole.
            Input::Fetched { unit, .. } => {
                let began = self.fetching.remove(&unit);
                self.fetches += u64::from(began.is_some_and(|began| began < now));
            }
            Input::Destaged { batch, result } => self.destaged(batch, result.is_ok()),
            _ => {}
        }
        self.look(core);
    }

    fn effect(&mut self, now: Time, effect: &Effect, core: &Core) {
        match effect {
            Effect::Destage { batch, .. } => {
                self.under_way.insert(*batch, (now, core.batch(*batch).to_vec()));
            }
            Effect::Sync { .. } => self.syncs += 1,
            Effect::Fetch { unit } => {
                self.fetching.insert(*unit, now);
            }
            Effect::Evict { .. } => self.evictions += 1,
            Effect::Refuse { .. } => self.refused += 1,
            _ => {}
        }
    }
}

impl Tally {
    fn destaged(&mut self, batch: BatchId, is_done: bool) {
        // A batch that was on its way when the recording began is not known.
        let Some((sent, lsns)) = self.under_way.remove(&batch) else { return };
        if !is_done {
            self.failed_batches += 1;
            return;
        }
        self.batches += 1;
        self.destaged += lsns.len() as u64;
        let mut units = BTreeSet::new();
        for lsn in lsns {
            let Some((stamp, changed)) = self.groups.remove(&lsn) else { continue };
            let age = sent.since(stamp).as_secs_f64();
            self.ages += changed.len() as u64;
            self.age_sum += age * changed.len() as f64;
            self.dirty_age_max = self.dirty_age_max.max(age);
            units.extend(changed);
        }
        self.origin_writes += units.len() as u64;
        self.burst_max = self.burst_max.max(units.len() as u64);
        self.dirty_age_mean = self.age_sum / self.ages.max(1) as f64;
    }

    /// Counts from now on, and forgets no group on its way.
    pub(super) fn count_anew(&mut self) {
        let before = std::mem::take(self);
        (self.groups, self.fetching, self.under_way) =
            (before.groups, before.fetching, before.under_way);
    }

    /// Units of the groups.
    pub(super) fn units_in(&self, lsns: &[Lsn]) -> impl Iterator<Item = UnitId> {
        let groups = lsns.iter().filter_map(|lsn| self.groups.get(lsn));
        groups.flat_map(|(_, units)| units.iter().copied())
    }

    fn look(&mut self, core: &Core) {
        let status = core.status();
        self.staleness_max = self.staleness_max.max(status.staleness.as_secs_f64());
        self.left_dirty = status.last.0 - status.decided.0;
        self.dirty_bytes_max = self.dirty_bytes_max.max(status.dirty_bytes);
    }
}
