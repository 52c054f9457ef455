//! Rows that may have changed at the origin while undecided changes of ours pin them: fetched again, with these overlaid.
//!
//! What such a row holds is made of what was fetched and what was written here since, so it cannot simply be dropped. The
//! groups that changed it are looked up among all undecided ones, in one pass for many rows, and then it is as after a
//! restart: dirty and not loaded.

use super::Engine;
use super::freshness::{Doubt, Doubtful};
use destage_core::{Input, UnitId};
use std::collections::{BTreeSet, HashSet};

impl Engine {
    /// A row or a set may have changed at the origin: it is fetched again before it is used, at once if nothing undecided pins
    /// it, soon if something does.
    pub(super) fn distrust(&mut self, unit: UnitId, doubt: Doubt) {
        self.invalidate(unit);
        if !self.core.has_undecided(unit) {
            return self.freshness.unset_deadline(unit);
        }
        self.freshness.doubt(self.rows.get(unit).table, unit, doubt);
        if self.core.is_fetching(unit) {
            self.decisions.fetch_again(unit);
        }
    }

    /// Has the rows in doubt fetched again if a pass is due.
    pub(super) fn reload_doubtful(&mut self) {
        let Some(mut doubts) = self.freshness.take_doubtful(self.now, self.core.undecided()) else {
            return;
        };
        // The number may stand for another row by now.
        doubts.retain(|&(table, unit), _| self.rows.is_of(unit, table));
        self.keep_through(&mut doubts);
        // Those that were decided meanwhile need no looking up.
        let (pinned, free): (Vec<UnitId>, Vec<UnitId>) =
            doubts.keys().map(|&(_, unit)| unit).partition(|&unit| self.core.has_undecided(unit));
        let loaded = pinned.into_iter().filter(|&unit| self.core.is_present(unit)).collect();
        self.reload(loaded);
        for unit in free {
            self.invalidate(unit);
            self.freshness.unset_deadline(unit);
        }
        self.tell_reloaded(&doubts);
    }

    /// Has dirty units fetched again that are loaded.
    fn reload(&mut self, units: Vec<UnitId>) {
        // What changed a set is kept for it in any case.
        let is_row = |unit: &UnitId| self.schema.table(self.rows.get(*unit).table).part.is_none();
        let rows_in_doubt: HashSet<UnitId> = units.iter().copied().filter(is_row).collect();
        if !rows_in_doubt.is_empty() {
            self.chain_again(&rows_in_doubt);
        }
        for unit in units {
            self.core.handle(self.now, Input::Reload { unit });
            self.rows.unload(unit);
            self.freshness.unset_deadline(unit);
        }
    }

    /// Leaves those for the next pass that a write changes which waits for the origin: until it is decided nobody uses them,
    /// and then they hold what was made of the old row.
    fn keep_through(&mut self, doubts: &mut Doubtful) {
        let through = self.undecided.units_through();
        let kept = doubts.extract_if(.., |&(_, unit), _| through.contains(&unit));
        self.freshness.doubt_still(kept.collect());
    }

    /// Tells those of rows whose change was told of who have looked at them since, and saw the old copies.
    fn tell_reloaded(&mut self, doubts: &Doubtful) {
        let mut tables = BTreeSet::new();
        for (&(table, unit), _) in doubts.iter().filter(|(_, doubt)| **doubt == Doubt::Reported) {
            self.watchers.change(&(table, self.rows.key(unit).into()));
            tables.insert(table);
        }
        if !tables.is_empty() {
            self.watchers.tell_unsure(&tables.into_iter().collect::<Vec<_>>());
            self.wake_lease_waiters();
        }
    }
}
