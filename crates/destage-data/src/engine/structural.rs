//! Undecided inserts and deletes in the order of their keys: what the origin's pages do not show, and which group makes the
//! row that another one refers to.

use super::cursors::Scan;
use super::key::order_key;
use super::overlay::changes;
use crate::change::Op;
use crate::schema::{Schema, Table, TableId};
use destage_core::Lsn;
use std::collections::BTreeMap;
use std::sync::Arc;

/// By place in key order: the newest group that inserts or deletes the row, whether it inserts it, and the row's key.
type KeyOrder = BTreeMap<(TableId, Vec<u8>), (Lsn, bool, Box<[u8]>)>;

/// Inserts and deletes that the origin's pages do not show: undecided ones, and those that are parked.
#[derive(Debug, Default)]
pub(crate) struct Structural {
    by_key: KeyOrder,
    by_lsn: BTreeMap<Lsn, Vec<(TableId, Vec<u8>)>>,
    parked: KeyOrder,
    /// Pages under way.
    pins: BTreeMap<u64, Pin>,
    decided: Lsn,
}

/// A page under way.
#[derive(Debug)]
struct Pin {
    /// What was decided when it was asked for: it may show no more than that.
    decided: Lsn,
    /// What was parked until some of it left meanwhile, oldest first: nobody knows on which side of that the page is.
    parked: Vec<Arc<KeyOrder>>,
}

impl Structural {
    /// Notes the inserts and deletes of a group.
    pub(crate) fn note(&mut self, schema: &Schema, lsn: Lsn, bytes: &[u8]) {
        // Groups of updates alone, the common case, are told by the first change's operation.
        for change in changes(schema, bytes) {
            if change.op == Op::Update {
                continue;
            }
            let table = schema.table(change.table);
            let place = (change.table, order_key(table, change.key));
            let entry = (lsn, change.op == Op::Insert, change.key.into());
            self.by_key.insert(place.clone(), entry);
            self.by_lsn.entry(lsn).or_default().push(place);
        }
    }

    /// Notes the inserts and deletes of a group that is parked.
    pub(crate) fn park(&mut self, schema: &Schema, lsn: Lsn, bytes: &[u8]) {
        note_parked(&mut self.parked, schema, lsn, bytes);
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty() && self.parked.is_empty()
    }

    /// The group that inserts a row, if that is among them and the row is not deleted again. `is_open` tells which groups the
    /// origin has not applied.
    pub(super) fn inserted_by(
        &self,
        table: &Table,
        key: &[u8],
        is_open: impl Fn(Lsn) -> bool,
    ) -> Option<Lsn> {
        let place = (table.id, order_key(table, key));
        let undecided = self.by_key.get(&place).filter(|(lsn, ..)| is_open(*lsn));
        let (lsn, is_insert, _) = undecided.or_else(|| self.parked.get(&place))?;
        is_insert.then_some(*lsn)
    }

    /// Some groups are parked no more; these still are.
    pub(super) fn unpark<'g>(
        &mut self,
        schema: &Schema,
        still: impl Iterator<Item = (Lsn, &'g [u8])>,
    ) {
        let mut fewer = KeyOrder::new();
        still.for_each(|(lsn, bytes)| note_parked(&mut fewer, schema, lsn, bytes));
        let before = Arc::new(std::mem::replace(&mut self.parked, fewer));
        self.pins.values_mut().for_each(|pin| pin.parked.push(before.clone()));
    }

    /// A page is asked for.
    pub(super) fn pin(&mut self, request: u64) {
        self.pins.insert(request, Pin { decided: self.decided, parked: Vec::new() });
    }

    /// What was decided when the page was asked for.
    pub(super) fn pinned(&self, request: u64) -> Lsn {
        self.pins.get(&request).map_or(Lsn::ZERO, |pin| pin.decided)
    }

    /// The page came, or will not come.
    pub(super) fn unpin(&mut self, request: u64) {
        self.pins.remove(&request);
        self.forget(self.decided);
    }

    /// Drops what the origin has decided, unless a page under way may need it.
    pub(crate) fn forget(&mut self, decided: Lsn) {
        self.decided = self.decided.max(decided);
        let pinned = self.pins.values().map(|pin| pin.decided).min();
        let upto = pinned.map_or(self.decided, |pin| pin.min(self.decided));
        while let Some(entry) = self.by_lsn.first_entry()
            && *entry.key() <= upto
        {
            for place in entry.remove() {
                if self.by_key.get(&place).is_some_and(|(lsn, ..)| *lsn <= upto) {
                    self.by_key.remove(&place);
                }
            }
        }
    }

    /// Whether an undecided group inserts a row.
    pub(super) fn inserts(&self, table: TableId, order: Vec<u8>) -> bool {
        self.by_key.get(&(table, order)).is_some_and(|(_, insert, _)| *insert)
    }

    /// Merges a page of keys with what it does not show in its range: what is or was parked, and what comes behind that group
    /// up to which all of a key's domain is `shown`.
    pub(super) fn merge(
        &self,
        schema: &Schema,
        (request, scan): (u64, &Scan),
        page: Vec<Box<[u8]>>,
        shown: impl Fn(&[u8]) -> Lsn,
    ) -> Vec<Box<[u8]>> {
        let table = schema.table(scan.table);
        let is_last = page.len() < scan.count;
        let upper = page.last().map(|key| order_key(table, key));
        let mut merged: BTreeMap<Vec<u8>, Box<[u8]>> =
            page.into_iter().map(|key| (order_key(table, &key), key)).collect();
        let lower = scan.after.as_ref().map(|key| order_key(table, key));
        let start = (scan.table, lower.clone().unwrap_or_default());
        let within = |((table, order), _): &(&(TableId, Vec<u8>), _)| {
            let beyond = !is_last && upper.as_ref().is_some_and(|upper| order > upper);
            *table == scan.table && !beyond
        };
        let before = self.pins.get(&request).into_iter().flat_map(|pin| &pin.parked);
        let parked = before.map(|parked| &**parked).chain([&self.parked]);
        let parked = parked.flat_map(|parked| parked.range(start.clone()..).take_while(within));
        let later = self.by_key.range(start.clone()..).take_while(within);
        let later = later.filter(|(_, (lsn, _, key))| *lsn > shown(key));
        for ((_, order), (_, insert, key)) in parked.chain(later) {
            if Some(order) == lower.as_ref() {
                continue;
            }
            if *insert {
                merged.insert(order.clone(), key.clone());
            } else {
                merged.remove(order);
            }
        }
        merged.into_values().collect()
    }
}

fn note_parked(parked: &mut KeyOrder, schema: &Schema, lsn: Lsn, bytes: &[u8]) {
    for change in changes(schema, bytes) {
        if change.op != Op::Update {
            let place = (change.table, order_key(schema.table(change.table), change.key));
            let entry = (lsn, change.op == Op::Insert, change.key.into());
            parked.insert(place, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::{Cell, push_cell};
    use crate::change::GroupWriter;
    use crate::schema::{Column, ColumnDefault};
    use crate::value::ColumnType;

    fn schema() -> Schema {
        let mut table = Table::named("t".into(), "t".into());
        table.key_len = 1;
        table.columns = vec![Column {
            name: "id".into(),
            sql_name: "id".into(),
            ty: ColumnType::Int { min: 0, max: 99 },
            type_name: "int".into(),
            not_null: true,
            default: ColumnDefault::None,
            generated: false,
            structural: true,
            checked: false,
        }];
        Schema::new(vec![table], vec![])
    }

    fn key(id: u32) -> Box<[u8]> {
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(id.to_string().as_bytes()));
        key.into()
    }

    fn group(op: Op, id: u32) -> Vec<u8> {
        let mut writer = GroupWriter::new();
        writer.begin(TableId(0), op, &key(id));
        writer.finish().to_vec()
    }

    fn scan(count: usize) -> Scan {
        Scan { table: TableId(0), all_tables: false, after: None, pattern: None, count, kind: None }
    }

    #[test]
    fn a_page_shows_what_is_not_decided_and_nothing_beyond_its_range() {
        let (schema, mut structural) = (schema(), Structural::default());
        structural.note(&schema, Lsn(1), &group(Op::Insert, 2));
        structural.note(&schema, Lsn(2), &group(Op::Delete, 3));
        structural.note(&schema, Lsn(3), &group(Op::Insert, 9));
        structural.note(&schema, Lsn(4), &group(Op::Update, 1));
        let page = || vec![key(1), key(3), key(5)];
        let merged = structural.merge(&schema, (0, &scan(3)), page(), |_| Lsn::ZERO);
        assert_eq!(merged, [key(1), key(2), key(5)]);
        let merged = structural.merge(&schema, (0, &scan(9)), page(), |_| Lsn(1));
        assert_eq!(
            merged,
            [key(1), key(5), key(9)],
            "the first one is decided: it is there or rejected"
        );
    }

    #[test]
    fn what_is_decided_stays_for_the_pages_under_way() {
        let (schema, mut structural) = (schema(), Structural::default());
        structural.pin(7);
        structural.note(&schema, Lsn(1), &group(Op::Insert, 2));
        structural.forget(Lsn(1));
        assert!(!structural.is_empty() && structural.pinned(7) == Lsn::ZERO);
        structural.unpin(7);
        assert!(structural.is_empty());
    }

    #[test]
    fn a_row_is_made_by_its_newest_open_insert() {
        let (schema, mut structural) = (schema(), Structural::default());
        let table = &schema.tables[0];
        structural.note(&schema, Lsn(1), &group(Op::Insert, 2));
        assert_eq!(structural.inserted_by(table, &key(2), |_| true), Some(Lsn(1)));
        assert_eq!(structural.inserted_by(table, &key(2), |_| false), None);
        structural.park(&schema, Lsn(1), &group(Op::Insert, 2));
        assert_eq!(structural.inserted_by(table, &key(2), |_| false), Some(Lsn(1)));
        structural.note(&schema, Lsn(2), &group(Op::Delete, 2));
        assert_eq!(structural.inserted_by(table, &key(2), |_| true), None);
    }
}
