//! What commands mean to do with their units: read or write them, how much, and whose word they wait for.

use super::Engine;
use super::command::{Category, Prepared, Verb};
use super::overlay::GROUP_OVERHEAD;
use crate::schema::{Table, TableId};
use destage_core::{Ack, Intent};

impl Engine {
    /// What commands mean to do with their units.
    pub(super) fn intent<'p>(&self, commands: impl Iterator<Item = &'p Prepared>) -> Intent {
        let mut write = None;
        let mut single = true;
        for prepared in commands {
            if prepared.category != Category::Write || !prepared.changes_rows(self.schema.plain) {
                continue;
            }
            let (bytes, ack, blind) = write.unwrap_or((GROUP_OVERHEAD as u32, Ack::Policy, true));
            let table = prepared.key_list[0].0;
            let ack_here = prepared.key_list.iter().map(|(table, _)| self.ack(*table, prepared));
            let ack = ack_here.fold(ack, stronger);
            let settings = &self.config.tables[usize::from(table.0)];
            let blind =
                blind && settings.blind && matches!(prepared.verb, Verb::HSet | Verb::HMSet);
            single &= write.is_none();
            write = Some((bytes.saturating_add(prepared.buffered_bytes()), ack, blind));
        }
        match write {
            None => Intent::Read,
            Some((bytes, ack, blind)) => Intent::Write { bytes, ack, fetch: !(blind && single) },
        }
    }

    /// Whose word a change of this table waits for.
    fn ack(&self, table: TableId, prepared: &Prepared) -> Ack {
        // Of a set that is deleted, the rows may become known only once the set is here.
        let part = self.schema.table(table).part;
        let table = part.map_or(table, |(id, _)| self.schema.collection(id).table);
        let settings = &self.config.tables[usize::from(table.0)];
        let table = self.schema.table(table);
        if settings.goes_through(table) {
            return Ack::OriginInvalidate;
        }
        let cascades = !table.class.cascades_to.is_empty() && self.may_cascade(table, prepared);
        match settings.ack_origin || cascades {
            true => Ack::Origin,
            false => Ack::Policy,
        }
    }

    /// Whether a command on a table may delete rows or change what others refer to.
    fn may_cascade(&self, table: &Table, prepared: &Prepared) -> bool {
        if matches!(prepared.verb, Verb::Del | Verb::GetDel | Verb::RemoveMembers) {
            return true;
        }
        let sets = prepared.sets().map(|(column, _)| column);
        // Those that are cleared, incremented or appended to.
        let others = prepared.columns.iter().copied();
        let score =
            prepared.set.as_ref().and_then(|set| self.schema.collection(set.collection).score);
        // MSET may set columns of several tables; one that another table's column makes structural waits for nothing.
        let is_structural = |column: usize| table.columns.get(column).is_some_and(|c| c.structural);
        sets.chain(others).chain(score).any(is_structural)
    }
}

/// Of two, the one that waits for more.
pub(super) fn stronger(first: Ack, second: Ack) -> Ack {
    match (first, second) {
        (Ack::OriginInvalidate, _) | (_, Ack::OriginInvalidate) => Ack::OriginInvalidate,
        (Ack::Origin, _) | (_, Ack::Origin) => Ack::Origin,
        (Ack::Policy, Ack::Policy) => Ack::Policy,
    }
}
