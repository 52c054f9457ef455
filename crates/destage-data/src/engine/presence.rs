//! Whether what is cached may be used, and the locks on it.

use super::Engine;
use super::session::Session;
use destage_core::{Access, Input, UnitId};

impl Engine {
    /// A row may have changed at the origin: it is fetched again before it is used, unless undecided changes pin it.
    pub(super) fn invalidate(&mut self, unit: UnitId) {
        self.core.handle(self.now, Input::Invalidate { unit });
        self.unload_if_absent(unit);
    }

    /// Drops a row that the core does not count as present any more.
    pub(super) fn unload_if_absent(&mut self, unit: UnitId) {
        if !self.core.is_present(unit) {
            self.rows.unload(unit);
        }
    }

    /// Whether the rows that a waiting request was given are still there: what another one caused at the origin may have
    /// dropped them since.
    pub(super) fn are_present(&self, units: &[UnitId]) -> bool {
        units.iter().all(|&unit| self.core.is_present(unit))
    }

    /// Has a request that waited ask for its rows again.
    pub(super) fn begin_anew(
        &mut self,
        session: &mut Session,
        units: &[UnitId],
        access: Access,
        raw: &[u8],
    ) {
        self.release_locks(units, access);
        session.put_back(raw);
        session.asks_anew = true;
    }

    pub(super) fn release_locks(&mut self, units: &[UnitId], access: Access) {
        if access != Access::Back {
            self.core.handle(self.now, Input::Release { units });
        }
    }

    /// Tells those who watch it that a plain key changes.
    pub(super) fn plain_changed(&mut self, unit: UnitId) {
        if !self.watchers.is_empty() {
            let key = (self.rows.get(unit).table, self.rows.key(unit).into());
            self.watchers.change(&key);
        }
    }
}
