//! What an earlier run left: undecided groups of the journal.
//!
//! Each is noted wherever readers and later writers look for undecided changes, before the core is told of it: the core may
//! want the group destaged, or one of its rows fetched, at once. No row is loaded yet, so all changes are chained to their
//! units, and a fetch overlays them. The numbers in between, which are not given to [`Engine::recover`], are of groups that
//! are decided. Nothing is visible to clients before all of them are taken in.

use super::rows::dedup;
use super::{Engine, overlay};
use crate::change;
use destage_core::{Lsn, Time, UnitId};
use destage_engine::{Drive, Recovered};

impl Engine {
    /// Takes a group that the journal held at start and the origin has not decided. From within [`destage_engine::recover`].
    pub fn recover(&mut self, lsn: Lsn, stamp: Time, bytes: &[u8]) {
        debug_assert!(
            lsn >= self.core.next_lsn(),
            "an earlier run's groups are taken in their order"
        );
        let units = self.units_of(bytes);
        for &unit in &units {
            self.overlay.chain(unit, lsn);
        }
        self.undecided.structural_mut().note(&self.schema, lsn, bytes);
        self.undecided.claims_mut().note(&self.schema, lsn, bytes);
        self.note_keys(bytes);
        self.note_derived_group(lsn);
        self.note_cascade(lsn, bytes);
        // In between are groups of other domains, which are decided.
        self.overlay.skip_to(lsn, stamp);
        self.overlay.push(lsn, stamp, bytes.into());
        let spread = self.domains.partition().of_group(&self.schema, bytes);
        let on = change::builds_on(bytes);
        let size = bytes.len() + overlay::GROUP_OVERHEAD + size_of_val(&on[..]);
        let group = Recovered {
            lsn,
            stamp,
            domains: spread.as_slice(),
            level: 0,
            units: &units,
            bytes: size as u32,
            journal_bytes: bytes.len() as u32,
            is_continued: false,
            builds_on: &on,
        };
        self.tell_recovered(self.now, &group);
        let covers = self.covered(bytes);
        if !covers.is_empty() {
            self.make_unknown(lsn, &covers);
        }
        self.measured.recovered();
    }

    /// The units that a group changes, each once: rows, their collections, and what raw SQL covers.
    pub(super) fn units_of(&mut self, bytes: &[u8]) -> Vec<UnitId> {
        let mut units = Vec::new();
        let mut parts = Vec::new();
        for change in overlay::changes(&self.schema, bytes) {
            units.push(self.rows.find_or_insert(change.table, change.key));
            parts.push((change.table, self.domain_of(change.table, change.key)));
        }
        let covers = self.covered(bytes);
        let declared = covers.rows.iter();
        parts.extend(declared.map(|(table, key)| (*table, self.domain_of(*table, key))));
        units.extend(self.covering_units(parts.into_iter()));
        if !covers.is_empty() {
            units.extend(self.units_of_covers(&covers));
        }
        if !self.schema.collections.is_empty() {
            units.extend(self.collections_of(bytes, true));
        }
        match units.len() {
            0 | 1 => units,
            _ => dedup(&units),
        }
    }
}
