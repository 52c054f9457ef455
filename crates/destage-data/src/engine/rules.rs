//! What writes set off at the origin, and whose word they wait for, as far as the schema and the settings of the tables
//! tell.

use super::command::{Category, Verb};
use super::overlay::{self, GROUP_OVERHEAD};
use super::prepared::Prepared;
use super::txn::Txn;
use super::unknown::Covers;
use crate::change::{Change, Op};
use crate::dml::Dml;
use crate::domains::Partition;
use crate::schema::{Schema, Table, TableId};
use crate::settings::TableSettings;
use destage_core::{Ack, Intent};

/// The schema and the settings of its tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    pub(super) schema: &'a Schema,
    /// By the table's number.
    pub(super) tables: &'a [TableSettings],
}

impl<'a> Rules<'a> {
    fn settings(self, table: TableId) -> &'a TableSettings {
        &self.tables[usize::from(table.0)]
    }

    /// The tables in which the origin changes rows by itself when it applies changes. Of each it is given the table, the
    /// operation, and whether it sets a structural column.
    pub(super) fn reached_by(
        self,
        changes: impl Iterator<Item = (TableId, Op, bool)>,
    ) -> Vec<TableId> {
        let mut tables = Vec::new();
        for (table, op, is_structural) in changes {
            tables.extend(self.changed_by_triggers(table));
            if op.removes() || is_structural {
                self.add_cascades(table, &mut tables);
            }
        }
        let collections =
            tables.iter().flat_map(|table| self.schema.table(*table).collections.iter());
        let parts: Vec<TableId> =
            collections.flat_map(|id| self.schema.collection(*id).parts).collect();
        tables.extend(parts);
        tables
    }

    /// The tables that a table's triggers are declared to change.
    fn changed_by_triggers(self, table: TableId) -> impl Iterator<Item = TableId> {
        let names = self.settings(table).triggers.iter().flatten();
        names.filter_map(move |name| self.schema.find(name.as_bytes())).map(|table| table.id)
    }

    /// Adds the tables that a table's cascades reach, and those that the triggers of these are declared to change.
    pub(super) fn add_cascades(self, table: TableId, tables: &mut Vec<TableId>) {
        let mut reached = Vec::new();
        self.add_children(table, &mut reached);
        let changed = reached.iter().flat_map(|&child| self.changed_by_triggers(child));
        for table in reached.iter().copied().chain(changed) {
            if !tables.contains(&table) {
                tables.push(table);
            }
        }
    }

    fn add_children(self, table: TableId, reached: &mut Vec<TableId>) {
        for &child in &self.schema.table(table).class.cascades_to {
            if !reached.contains(&child) {
                reached.push(child);
                self.add_children(child, reached);
            }
        }
    }

    /// Whether triggers of a table that its cascades reach change what nobody has declared.
    fn cascades_unforeseeably(self, table: TableId) -> bool {
        let mut reached = Vec::new();
        self.add_children(table, &mut reached);
        reached.into_iter().any(|child| self.is_unforeseeable(child))
    }

    /// The same for a group.
    pub(super) fn reached_by_group(self, bytes: &[u8]) -> Vec<TableId> {
        let is_structural = |change: &Change<'_>| {
            let columns = &self.schema.table(change.table).columns;
            change.sets().any(|(column, _)| columns[column].structural)
        };
        let changes = overlay::changes(self.schema, bytes);
        self.reached_by(changes.map(|change| (change.table, change.op, is_structural(&change))))
    }

    /// Whether triggers may change a row of this table further when it is written.
    pub(super) fn is_changed_further(self, table: TableId) -> bool {
        let triggers = &self.settings(table).triggers;
        self.schema.table(table).class.opaque.is_some()
            && triggers.as_ref().is_none_or(|tables| !tables.is_empty())
    }

    /// The tables in which the origin changes rows by itself when it applies this transaction.
    pub(super) fn reached_by_txn(self, txn: &Txn) -> Vec<TableId> {
        let changes = txn.touched().map(|(table, op, sets)| {
            let columns = &self.schema.table(table).columns;
            (table, op, sets.iter().any(|(column, _)| columns[*column].structural))
        });
        self.reached_by(changes)
    }

    /// Adds what raw SQL covers: what it declares, the tables that the origin changes along with these, and the collections
    /// over all of them, each as far as it is in the domains of what is declared.
    pub(super) fn add_covered(self, dml: &Dml<'_>, partition: &Partition, covers: &mut Covers) {
        let mut tables: Vec<TableId> = Vec::new();
        for (table, row) in dml.declared() {
            match row {
                Some(key) => covers.rows.push((table, key.into())),
                None => tables.push(table),
            }
            let mut along = Vec::new();
            self.add_cascades(table, &mut along);
            along.extend(self.changed_by_triggers(table));
            tables.extend(&along);
            for table in along.into_iter().chain([table]) {
                let collections = self.schema.table(table).collections.iter();
                tables.extend(collections.flat_map(|id| self.schema.collection(*id).parts));
            }
        }
        let domains = partition.of_dml(dml);
        for table in tables {
            let homes = partition.homes(table).into_iter();
            covers.add_table(table, homes.filter(|domain| domains.contains(domain)));
        }
    }

    /// Whose word raw SQL waits for: the origin's where triggers may do what nobody has declared.
    pub(super) fn ack_of_dml(self, dml: &Dml<'_>) -> Ack {
        let mut ack = Ack::Policy;
        for (table, _) in dml.declared() {
            let settings = self.settings(table);
            if self.is_unforeseeable(table) || self.cascades_unforeseeably(table) {
                return Ack::OriginInvalidate;
            }
            if settings.ack_origin {
                ack = Ack::Origin;
            }
        }
        ack
    }

    /// Whether triggers of a table change what nobody has declared.
    pub(super) fn is_unforeseeable(self, table: TableId) -> bool {
        let undeclared = self.settings(table).triggers.is_none();
        undeclared && self.schema.table(table).class.opaque.is_some()
    }

    /// What commands mean to do with their units.
    pub(super) fn intent<'p>(self, commands: impl Iterator<Item = &'p Prepared>) -> Intent {
        let mut write = None;
        let mut single = true;
        for prepared in commands {
            if prepared.category != Category::Write || !prepared.changes_rows(self.schema) {
                continue;
            }
            let (bytes, ack, blind) = write.unwrap_or((GROUP_OVERHEAD as u32, Ack::Policy, true));
            let table = prepared.key_list[0].0;
            let ack_here = prepared.key_list.iter().map(|(table, _)| self.ack(*table, prepared));
            let ack = ack_here.fold(ack, stronger);
            let settings = self.settings(table);
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
    fn ack(self, table: TableId, prepared: &Prepared) -> Ack {
        // Of a set that is deleted, the rows may become known only once the set is here.
        let part = self.schema.table(table).part;
        let table = part.map_or(table, |(id, _)| self.schema.collection(id).table);
        let settings = self.settings(table);
        let table = self.schema.table(table);
        let cascades = !table.class.cascades_to.is_empty() && self.may_cascade(table, prepared);
        if settings.goes_through(table) || (cascades && self.cascades_unforeseeably(table.id)) {
            return Ack::OriginInvalidate;
        }
        if settings.ack_origin || cascades { Ack::Origin } else { Ack::Policy }
    }

    /// Whether a command on a table may delete rows or change what others refer to.
    fn may_cascade(self, table: &Table, prepared: &Prepared) -> bool {
        if matches!(prepared.verb, Verb::Del | Verb::GetDel | Verb::DelIf | Verb::RemoveMembers) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Deletes of `a` cascade to `b`, and from there to `c` and back to `a`.
    fn schema() -> Schema {
        let mut tables = ["a", "b", "c"].map(|name| Table::named(name.into(), name.into()));
        tables[0].class.cascades_to = vec![TableId(1)];
        tables[1].class.cascades_to = vec![TableId(2), TableId(0)];
        Schema::new(tables.to_vec(), vec![])
    }

    #[test]
    fn cascades_are_followed_to_their_end_and_triggers_are_taken_as_they_are_declared() {
        let (schema, mut tables) = (schema(), vec![TableSettings::default(); 3]);
        tables[2].triggers = Some(vec!["b".into()]);
        let rules = Rules { schema: &schema, tables: &tables };
        let reached = |table, op, is_structural| {
            rules.reached_by([(TableId(table), op, is_structural)].into_iter())
        };
        assert_eq!(reached(0, Op::Delete, false), [TableId(1), TableId(2), TableId(0)]);
        assert_eq!(reached(0, Op::Update, true), [TableId(1), TableId(2), TableId(0)]);
        assert_eq!(reached(0, Op::Update, false), []);
        assert_eq!(reached(2, Op::Update, false), [TableId(1)]);
    }

    #[test]
    fn what_triggers_of_a_table_change_that_a_cascade_reaches_is_reached_by_it() {
        let mut tables = ["a", "b", "c", "d"].map(|name| Table::named(name.into(), name.into()));
        tables[0].class.cascades_to = vec![TableId(1)];
        tables[1].class.cascades_to = vec![TableId(2)];
        tables[2].class.opaque = Some("it has a trigger".into());
        let schema = Schema::new(tables.to_vec(), vec![]);
        let mut tables = vec![TableSettings::default(); 4];
        let reached = |tables: &[TableSettings], op| {
            let rules = Rules { schema: &schema, tables };
            let reached = rules.reached_by([(TableId(0), op, false)].into_iter());
            (reached, rules.cascades_unforeseeably(TableId(0)))
        };
        assert_eq!(reached(&tables, Op::Delete), (vec![TableId(1), TableId(2)], true));
        tables[2].triggers = Some(vec!["d".into()]);
        let all = vec![TableId(1), TableId(2), TableId(3)];
        assert_eq!(reached(&tables, Op::Delete), (all, false));
        assert_eq!(reached(&tables, Op::Update), (vec![], false));
    }

    #[test]
    fn nobody_foresees_what_undeclared_triggers_do() {
        let (mut schema, mut tables) = (schema(), vec![TableSettings::default(); 3]);
        schema.tables[1].class.opaque = Some("it has a trigger".into());
        tables[1].triggers = None;
        let is_unforeseeable = |tables: &[TableSettings]| {
            Rules { schema: &schema, tables }.is_unforeseeable(TableId(1))
        };
        assert!(is_unforeseeable(&tables));
        tables[1].triggers = Some(Vec::new());
        assert!(!is_unforeseeable(&tables));
    }

    #[test]
    fn of_two_the_longer_wait_counts() {
        for (first, second, expected) in [
            (Ack::Policy, Ack::Origin, Ack::Origin),
            (Ack::OriginInvalidate, Ack::Origin, Ack::OriginInvalidate),
            (Ack::Policy, Ack::Policy, Ack::Policy),
        ] {
            assert_eq!((stronger(first, second), stronger(second, first)), (expected, expected));
        }
    }
}
