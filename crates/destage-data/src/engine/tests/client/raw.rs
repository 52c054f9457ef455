//! Raw SQL of the library's connections. The model knows what it does, the engine does not.

use super::super::shop::{self, ITEM, KEYS};
use super::{Client, Data, Request, Sim};
use crate::change::{Item, items};
use crate::dml::{self, Dml};
use crate::schema::TableId;
use destage_testkit::origin::{Change, Op, Place, Set};

/// The statement of a command: one row, or all of them.
fn sql(number: u64, key: Option<i64>) -> String {
    let which = key.map(|key| format!(" WHERE id = {key}")).unwrap_or_default();
    format!("UPDATE item SET tag = 'v{number}', n = n + {number}{which}")
}

/// The last word of DESTAGE EXECUTE.
pub(in crate::engine::tests) fn word(number: u64, key: Option<i64>) -> String {
    let row = key.map(shop::key_cells);
    let bytes = dml::encode(&sql(number, key), &[], &[(TableId(ITEM as u16), row.as_deref())]);
    String::from_utf8(bytes).expect("all of it is short")
}

/// What it does to rows that exist.
pub(in crate::engine::tests) fn changes_of(number: u64, key: Option<i64>) -> Vec<Change> {
    let keys = key.map_or_else(|| (0..KEYS[ITEM]).collect(), |key| vec![key]);
    let change = |place: Place| Change {
        place,
        op: Op::UpdateIfThere,
        sets: vec![(1, Set::By(number as i64)), (2, Set::To(Some(format!("v{number}"))))],
    };
    keys.into_iter().map(|key| change((ITEM, key))).collect()
}

/// The same of a statement on its way to the origin.
pub(in crate::engine::tests) fn changes(dml: &Dml<'_>) -> Vec<Change> {
    let tag = dml.sql().split('\'').nth(1).and_then(|tag| tag.strip_prefix('v'));
    let number = tag.and_then(|number| number.parse().ok()).expect("a statement of ours");
    let (_, row) = dml.declared().next().expect("it declares something");
    changes_of(number, row.map(shop::key_of))
}

/// Whether a group is raw SQL, and if so, whether it covers the whole table.
pub(in crate::engine::tests) fn covers_table(bytes: &[u8]) -> Option<bool> {
    items(bytes, |_| Some(1)).find_map(|item| match item.expect("groups are well-formed") {
        Item::Dml(dml) => Some(dml.declared().any(|(_, row)| row.is_none())),
        Item::Change(_) => None,
    })
}

impl Sim {
    pub(super) fn raw(&mut self, client: &mut Client, bytes: &mut Vec<u8>) {
        let (number, exec) = (self.number(), self.number());
        let is_row = client.rng.chance(75) || !self.options.raw_tables;
        let key = is_row.then(|| client.rng.below(KEYS[ITEM] as u64) as i64);
        let command = Data::Raw(number, key);
        self.owners.insert(number, exec);
        self.send(client, bytes, Request::Multi, &["MULTI".into()]);
        self.send(client, bytes, Request::Queued, &command.words());
        self.issue(exec, vec![command], true);
        self.send(client, bytes, Request::Exec(exec), &["EXEC".into()]);
    }

    /// Readers see rows without what is parked of raw SQL, also where the origin went back and nobody knows it yet.
    pub(in crate::engine::tests) fn note_unseen(&mut self) {
        let is_raw = |lsn: &u64| covers_table(&self.history.entry(*lsn).bytes).is_some();
        let parked: Vec<u64> = self.origin.parked.keys().copied().filter(is_raw).collect();
        self.history.unseen.extend(parked);
        self.counts.raw_parked = self.counts.raw_parked.max(self.history.unseen.len() as u64);
    }
}
