//! What the cache holds at the beginning.

use super::Run;
use destage_core::{Input, UnitId};
use destage_engine::Drive;
use hashbrown::HashSet;

impl Run<'_> {
    /// The cache holds what it held; the sizes that nobody told are those of the first that was.
    pub(super) fn restore(&mut self) {
        let usual = self.load.sizes.iter().copied().find(|&size| size > 0).unwrap_or(4_096);
        let mut units: Vec<(UnitId, u32)> = Vec::new();
        for &item in &self.load.held {
            let size = self.load.sizes[item as usize];
            units.push((self.units[item as usize], if size == 0 { usual } else { size }));
        }
        units.extend(self.held_more(&units).into_iter().map(|unit| (unit, usual)));
        units.sort_unstable_by_key(|&(unit, _)| std::cmp::Reverse(unit));
        units.dedup_by_key(|(unit, _)| *unit);
        for (unit, bytes) in units {
            // What was held at the beginning is not told in the run.
            self.core.core.handle(self.now, Input::Restored { units: &[unit], bytes });
        }
        self.pump();
    }

    /// What a larger cache than the recorded one had held as well. Which units those were, nobody knows. The recording tells
    /// which share of the units that were read first was held: with so much more room it is so much larger. A cache that was
    /// not full had held no more.
    fn held_more(&self, held: &[(UnitId, u32)]) -> Vec<UnitId> {
        let load = self.load;
        let recorded = load.policy.as_ref().map_or(0, |policy| policy.limits.cache_bytes_max);
        let room = self.core.policy().limits.cache_bytes_max;
        if room <= recorded || load.held_bytes < recorded / 10 * 9 || recorded == 0 {
            return Vec::new();
        }
        let held: HashSet<UnitId> = held.iter().map(|&(unit, _)| unit).collect();
        let first = load.read_first.iter().filter(|&&item| self.units[item as usize].0 == item);
        let first: Vec<UnitId> = first.map(|&item| UnitId(item)).collect();
        let known = first.iter().filter(|unit| held.contains(*unit)).count();
        let before = known as f64 / first.len().max(1) as f64;
        let after = (before * room as f64 / recorded as f64).min(1.0);
        let share = (after - before) / (1.0 - before).max(1e-9);
        let most = (share * u64::MAX as f64) as u64;
        let is_held =
            |unit: &UnitId| !held.contains(unit) && crate::blocks::mix(u64::from(unit.0)) <= most;
        first.into_iter().filter(|unit| share > 0.0 && is_held(unit)).collect()
    }
}
