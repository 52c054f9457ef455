//! The values that undecided writes have given to columns of unique indexes, where these are asked for (`unique = "ask"`).
//!
//! Groups that are decided while a question is on its way to the origin stay until it is answered: the answer may be from
//! before them.

use super::overlay::changes;
use super::rows::RowKey;
use crate::cells::{Cell, Reader, push_cell};
use crate::change::{Change, Op, Set};
use crate::schema::{Schema, Table, TableId, Unique};
use destage_core::Lsn;
use std::collections::{BTreeMap, HashMap};

/// A table, the place of one of its unique indexes, and values of that one's columns, as cells.
pub(super) type Values = (TableId, usize, Box<[u8]>);

/// What the origin says of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// No row has them.
    None,
    /// This row has them.
    Row(Box<[u8]>),
    /// This row had them, and there are newer writes of it.
    Changed(Box<[u8]>),
}

/// What groups have set that the origin may not have.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// The rows that were given these values, each with the newest group that did so.
    by_values: HashMap<Values, BTreeMap<Box<[u8]>, Lsn>>,
    /// The newest group that makes or deletes a row, or changes its unique columns.
    by_row: HashMap<RowKey, Lsn>,
    by_lsn: BTreeMap<Lsn, Vec<(RowKey, Vec<Values>)>>,
    /// Questions on their way, with what was decided when they were asked.
    pins: BTreeMap<u64, Lsn>,
    decided: Lsn,
}

impl Claims {
    /// Notes what a group sets.
    pub(super) fn note(&mut self, schema: &Schema, lsn: Lsn, bytes: &[u8]) {
        if !schema.asks_unique {
            return;
        }
        for change in changes(schema, bytes) {
            let table = schema.table(change.table);
            let is_unique =
                |column: usize| table.uniques.iter().any(|unique| unique.columns.contains(&column));
            let matters = change.op != Op::Update || change.sets().any(|(set, _)| is_unique(set));
            if !table.asks_unique || !matters {
                continue;
            }
            let values: Vec<Values> = schema
                .uniques_asked(table)
                .filter_map(|(at, unique)| {
                    Some((table.id, at, set_values(table, unique, &change)?))
                })
                .collect();
            let row: RowKey = (table.id, change.key.into());
            for values in &values {
                let rows = self.by_values.entry(values.clone()).or_default();
                rows.insert(row.1.clone(), lsn);
            }
            self.by_row.insert(row.clone(), lsn);
            self.by_lsn.entry(lsn).or_default().push((row, values));
        }
    }

    /// A question is asked.
    pub(super) fn pin(&mut self, request: u64) {
        self.pins.insert(request, self.decided);
    }

    /// It is answered, or nobody waits for it any more.
    pub(super) fn unpin(&mut self, request: u64) {
        self.pins.remove(&request);
        self.forget(self.decided);
    }

    /// Drops what the origin has decided, unless a question on its way may need it.
    pub(super) fn forget(&mut self, decided: Lsn) {
        self.decided = self.decided.max(decided);
        let upto = self.pins.values().copied().min().unwrap_or(self.decided).min(self.decided);
        while let Some(entry) = self.by_lsn.first_entry()
            && *entry.key() <= upto
        {
            for (row, all) in entry.remove() {
                for values in all {
                    let Some(rows) = self.by_values.get_mut(&values) else { continue };
                    if rows.get(&row.1).is_some_and(|lsn| *lsn <= upto) {
                        rows.remove(&row.1);
                    }
                    if rows.is_empty() {
                        self.by_values.remove(&values);
                    }
                }
                if self.by_row.get(&row).is_some_and(|lsn| *lsn <= upto) {
                    self.by_row.remove(&row);
                }
            }
        }
    }

    /// The rows that were given these values, and may have lost them since.
    pub(super) fn rows(&self, values: &Values) -> impl Iterator<Item = &[u8]> {
        self.by_values.get(values).into_iter().flatten().map(|(key, _)| &key[..])
    }

    /// Whether the origin's word on a row may not be what is seen here.
    pub(super) fn changes(&self, row: &RowKey) -> bool {
        self.by_row.contains_key(row)
    }
}

/// The values of a unique index's columns in a row; `None` if one of them is NULL, which equals nothing, or not known.
pub(super) fn values_of(unique: &Unique, cells: &[Cell<'_>]) -> Option<Box<[u8]>> {
    let mut out = Vec::new();
    for &column in &unique.columns {
        push_cell(&mut out, Cell::Value(cells.get(column)?.value()?));
    }
    Some(out.into())
}

/// The same where a change sets them all.
fn set_values(table: &Table, unique: &Unique, change: &Change<'_>) -> Option<Box<[u8]>> {
    let mut cells: Vec<Cell<'_>> = Reader::new(change.key).collect();
    cells.resize(table.columns.len(), Cell::Unknown);
    let is_set =
        |&column: &usize| column >= table.key_len && change.sets().any(|(set, _)| set == column);
    if !unique.columns.iter().any(is_set) {
        return None;
    }
    for (column, set) in change.sets() {
        if let (Some(cell), Set::To(value)) = (cells.get_mut(column), set) {
            *cell = value;
        }
    }
    values_of(unique, &cells)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::GroupWriter;
    use crate::schema::Column;
    use crate::value::ColumnType;

    fn schema() -> Schema {
        let mut table = Table::named("t".into(), "t".into());
        table.key_len = 1;
        let column = |name: &str| Column {
            structural: true,
            ..Column::named(name, ColumnType::Int { min: 0, max: 99 })
        };
        table.columns = ["id", "a", "b"].map(column).into();
        let unique = |columns: &[usize]| Unique {
            name: "u".into(),
            columns: columns.to_vec(),
            is_whole: true,
        };
        (table.uniques, table.asks_unique) = (vec![unique(&[1]), unique(&[1, 2])], true);
        let mut schema = Schema::new(vec![table], vec![]);
        schema.asks_unique = true;
        schema
    }

    fn cells(values: &[&str]) -> Box<[u8]> {
        let mut out = Vec::new();
        values.iter().for_each(|value| push_cell(&mut out, Cell::Value(value.as_bytes())));
        out.into()
    }

    fn group(op: Op, id: &str, sets: &[(usize, &str)]) -> Vec<u8> {
        let mut writer = GroupWriter::new();
        writer.begin(TableId(0), op, &cells(&[id]));
        sets.iter().for_each(|(at, value)| writer.set(*at, Set::To(Cell::Value(value.as_bytes()))));
        writer.finish().to_vec()
    }

    #[test]
    fn values_are_known_until_they_are_decided_and_no_question_is_on_its_way() {
        let (schema, mut claims) = (schema(), Claims::default());
        claims.note(&schema, Lsn(1), &group(Op::Insert, "7", &[(1, "5"), (2, "6")]));
        claims.note(&schema, Lsn(2), &group(Op::Update, "8", &[(1, "5")]));
        let rows = |claims: &Claims, at: usize, values: &[&str]| {
            claims.rows(&(TableId(0), at, cells(values))).map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        let keys = |ids: &[&str]| ids.iter().map(|id| cells(&[id]).to_vec()).collect::<Vec<_>>();
        assert_eq!(rows(&claims, 0, &["5"]), keys(&["7", "8"]));
        assert_eq!(rows(&claims, 1, &["5", "6"]), keys(&["7"]), "all of them have to be set");
        claims.pin(3);
        claims.forget(Lsn(1));
        assert_eq!(rows(&claims, 0, &["5"]), keys(&["7", "8"]), "a question is on its way");
        claims.unpin(3);
        assert_eq!(rows(&claims, 0, &["5"]), keys(&["8"]));
        assert!(!claims.changes(&(TableId(0), cells(&["7"]))));
        assert!(claims.changes(&(TableId(0), cells(&["8"]))));
        claims.forget(Lsn(2));
        assert!(
            claims.by_values.is_empty() && claims.by_row.is_empty() && claims.by_lsn.is_empty()
        );
    }
}
