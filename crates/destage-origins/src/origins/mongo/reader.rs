//! Reads: first the watermarks, then the documents, each of which says itself what it has seen beyond them.

use super::collections::check_read;
use super::connection::{Connection, Query};
use super::guard::{self, Guard, Ours};
use super::owner::State;
use super::statements::{at_path, id};
use super::types::{Kind, key_cells, push_read};
use crate::contract::{Keys, NextKeys, OriginError, Reader, Snapshot, Watermarks};
use crate::schema::Table;
use destage_core::{Fault, Lsn};
use hashbrown::HashMap;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, doc};

pub(super) struct MongoReader {
    connection: Connection,
}

impl MongoReader {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection }
    }
}

impl Reader for MongoReader {
    fn fetch(&mut self, table: &Table, keys: &[&[u8]]) -> Result<Snapshot, OriginError> {
        let state = State::read(&mut self.connection)?;
        let watermarks = state.as_ref().map(State::watermarks).unwrap_or_default();
        let ours = state.as_ref().map(State::ours).unwrap_or_default();
        let ids = keys.iter().map(|key| id(table, key)).collect::<Result<Vec<Bson>, _>>()?;
        let mut found = HashMap::with_capacity(keys.len());
        if !ids.is_empty() {
            let what = format!("read {}", table.name);
            let query = Query { filter: doc! { "_id": { "$in": ids } }, ..Query::default() };
            let documents = self.connection.find(&what, &table.name, query)?;
            if documents.is_empty() {
                check_read(&mut self.connection, &what, &table.name)?;
            }
            for document in documents {
                let Some(row) = encoded_row(table, &document) else { continue };
                found.insert(row.0, (row.1, seen(ours, &document)));
            }
        }
        let mut snapshot = Snapshot { watermarks, ..Snapshot::default() };
        for key in keys {
            let (row, seen) = match found.get(*key) {
                Some((row, seen)) => (Some(row.clone()), *seen),
                None => (None, Lsn::ZERO),
            };
            snapshot.rows.push(row);
            snapshot.seen.push(seen);
        }
        Ok(snapshot)
    }

    fn scan(
        &mut self,
        table: &Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Keys, Watermarks), OriginError> {
        let what = format!("scan {}", table.name);
        let state = State::read(&mut self.connection)?;
        let watermarks = state.as_ref().map(State::watermarks).unwrap_or_default();
        let column = &table.columns[0];
        let mut bound = match after {
            Some(key) => doc! { "$gt": id(table, key)? },
            None => doc! { "$gte": smallest(Kind::of(column)) },
        };
        let mut keys = Keys::new();
        while keys.len() < limit {
            let query = Query {
                filter: doc! { "_id": bound },
                projection: Some(doc! { "_id": 1 }),
                sorted: true,
                limit: i64::try_from(limit).unwrap_or(i64::MAX),
                ..Query::default()
            };
            let found = self.connection.find(&what, &table.name, query)?;
            let ids = found.iter().filter_map(|document| document.get("_id"));
            let Some(last) = ids.clone().next_back().cloned() else {
                check_read(&mut self.connection, &what, &table.name)?;
                break;
            };
            // Documents whose `_id` no key reaches (fractions, say) are passed over.
            keys.extend(ids.filter_map(|id| key_cells(column, id)));
            if found.len() < limit {
                break;
            }
            bound = doc! { "$gt": last };
        }
        keys.truncate(limit);
        Ok((keys, watermarks))
    }

    fn next_keys(&mut self, table: &Table, _count: u32) -> Result<NextKeys, OriginError> {
        let message = format!(
            "MongoDB hands out no keys of {}: use keys that the application makes, an ObjectId for example",
            table.name
        );
        Err(OriginError::new(Fault::Denied, message))
    }
}

/// The last of our groups that is in a document for certain.
fn seen(ours: Ours, document: &Document) -> Lsn {
    match ours.read(document.get(guard::FIELD)) {
        Guard::Upto(lsn) => lsn,
        Guard::None | Guard::Fenced(_) => Lsn::ZERO,
    }
}

/// A document's key cells, and all of its row's.
type Encoded = (Box<[u8]>, Box<[u8]>);

/// A document as it is kept; `None` if no key reaches it.
fn encoded_row(table: &Table, document: &Document) -> Option<Encoded> {
    let key = key_cells(&table.columns[0], document.get("_id")?)?;
    let mut row = key.to_vec();
    for column in &table.columns[table.key_len..] {
        push_read(&mut row, column, at_path(document, &column.name));
    }
    Some((key, row.into_boxed_slice()))
}

/// Where keys of a type begin; others sort before or behind all of them.
fn smallest(kind: Kind) -> Bson {
    match kind {
        Kind::Int => Bson::Int32(i32::MIN),
        Kind::Long => Bson::Int64(i64::MIN),
        Kind::ObjectId => Bson::ObjectId(ObjectId::from_bytes([0; 12])),
        _ => Bson::String(String::new()),
    }
}
