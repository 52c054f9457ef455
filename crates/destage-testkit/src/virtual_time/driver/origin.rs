//! The origin's side: snapshots, batches and parkings, with their faults.

use super::{Driver, Event, Snapshot};
use crate::virtual_time::log::Fate;
use crate::virtual_time::setup::Sabotage;
use destage_core::{BatchId, Fault, Input, Lsn, Time, UnitId};

impl Driver<'_> {
    /// Whether a call to the origin fails, and if so whether it takes effect all the same.
    pub(super) fn origin_fault(&mut self) -> Option<bool> {
        let since = self.world.now.since(Time::from_secs(1_000)).0 / 1_000_000;
        let away = self.world.options.away_ms.iter();
        if away.into_iter().any(|&(from, to)| (from..to).contains(&since)) {
            return Some(false);
        }
        let percent = if self.drained { 0 } else { self.world.options.fault_percent };
        let chance = &mut self.world.chance;
        chance.chance(percent).then(|| chance.chance(50))
    }

    pub(super) fn snapshot(&mut self, unit: UnitId) {
        let latency = self.latency(self.world.options.origin_us / 2);
        if self.origin_fault().is_some() {
            return self.after(latency, Event::Fetched(unit, None));
        }
        let key = self.slots[unit.0 as usize].key;
        let log = &self.world.log;
        let held = log.entries.iter().enumerate().map(|(i, e)| (Lsn(i as u64 + 1), e));
        let decided = held
            .filter(|(_, entry)| entry.fate != Fate::Undecided && entry.touches(key))
            .map(|(lsn, _)| lsn)
            .collect();
        let value = log.read_origin(key);
        let snapshot = Snapshot { value, version: log.versions[key as usize], decided };
        self.after(latency, Event::Fetched(unit, Some(snapshot)));
    }

    /// Installs a row with every later group overlaid.
    pub(super) fn fetched(&mut self, unit: UnitId, snapshot: Option<Snapshot>) {
        let size = snapshot.as_ref().map(|_| 100).ok_or(Fault::Unavailable);
        let key = self.slots[unit.0 as usize].key;
        if let Some(snapshot) = snapshot {
            let mut value = snapshot.value;
            let log = &self.world.log;
            for index in self.forgotten.0 as usize..log.entries.len() {
                let (lsn, entry) = (Lsn(index as u64 + 1), &log.entries[index]);
                if self.world.sabotage == Sabotage::Overlay
                    || entry.hidden
                    || entry.fate == Fate::Dropped
                    || snapshot.decided.contains(&lsn)
                {
                    continue;
                }
                let ops = entry.ops.iter().filter(|(k, _)| *k == key);
                ops.for_each(|(_, op)| op.apply(&mut value));
            }
            self.slots[unit.0 as usize].row = Some((value, snapshot));
        }
        let identity = u64::from(key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.core.handle(self.world.now, Input::Fetched { unit, result: size, identity });
    }

    pub(super) fn apply(&mut self, batch: BatchId, lsns: &[Lsn]) -> Result<(), String> {
        let latency = self.latency(self.world.options.origin_us / 2);
        let fault = self.origin_fault();
        let guarded = self.world.sabotage != Sabotage::Watermark;
        let mut result = Err(Fault::Unavailable);
        if fault != Some(false) {
            let applied = self.world.log.apply(lsns, guarded)?;
            result = if applied { Ok(()) } else { Err(Fault::Rejected) };
        }
        if fault == Some(true) {
            self.world.report.unknown += 1;
            result = Err(Fault::Unavailable);
        }
        self.after(latency, Event::Destaged(batch, result));
        Ok(())
    }

    pub(super) fn park(
        &mut self,
        lsn: Lsn,
        depends_on: Option<Lsn>,
        keep: bool,
    ) -> Result<(), String> {
        let latency = self.latency(self.world.options.origin_us / 2);
        let fault = self.origin_fault();
        if fault != Some(false) {
            self.world.log.park(lsn, depends_on, keep)?;
            self.world.report.rejected += 1;
        }
        let result = if fault.is_some() { Err(Fault::Unavailable) } else { Ok(()) };
        self.after(latency, Event::Parked(lsn, result));
        Ok(())
    }
}
