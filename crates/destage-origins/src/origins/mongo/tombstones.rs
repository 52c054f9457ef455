//! What is left of deleted documents: the number of the group that deleted each, until no group before it can come again.
//!
//! A document that is gone has no guard. Without a tombstone, a redelivered insert of it would bring it back, and a
//! redelivered update or delete would be taken for one of a document that never existed.

use super::connection::{Connection, Query};
use super::guard::Ours;
use super::statements::{Verb, durable};
use super::types::{integer, key_cells};
use crate::contract::OriginError;
use crate::origins::ledger::{signed, unsigned};
use crate::schema::{Schema, TableId};
use destage_core::Lsn;
use hashbrown::HashMap;
use mongodb::bson::{Bson, Document, doc};
use std::time::{Duration, Instant};

pub(super) const COLLECTION: &str = "destage_tombstones";

/// A document that is gone, by its encoded key.
type Deleted = (TableId, Box<[u8]>);

/// The tombstones of groups that the watermark has not passed, as the collection holds them.
pub(super) struct Tombstones {
    known: HashMap<Deleted, Lsn>,
    /// There may be more in the collection, from before, that the watermark has passed.
    has_old: bool,
    since: Instant,
}

impl Tombstones {
    /// Reads those behind `watermark`.
    pub(super) fn load(
        connection: &mut Connection,
        schema: &Schema,
        ours: Ours,
        watermark: Lsn,
    ) -> Result<Self, OriginError> {
        let filter = doc! {
            "epoch": { "$gte": signed(ours.since) },
            "seq": { "$gt": signed(watermark.0) },
        };
        let query = Query { filter, ..Query::default() };
        let mut known = HashMap::new();
        for found in connection.find("read the tombstones", COLLECTION, query)? {
            known.extend(parsed(schema, &found));
        }
        Ok(Self { known, has_old: true, since: Instant::now() })
    }

    /// The group that deleted a document, if it is not decided yet.
    pub(super) fn get(&self, table: TableId, key: &[u8]) -> Option<Lsn> {
        self.known.get(&(table, Box::from(key))).copied()
    }

    /// Writes tombstones; only then may the documents go.
    pub(super) fn write(
        &mut self,
        connection: &mut Connection,
        schema: &Schema,
        ours: Ours,
        table: TableId,
        deleted: &[(&[u8], Bson, Lsn)],
    ) -> Result<(), OriginError> {
        const WHAT: &str = "write tombstones";
        let name = schema.table(table).name.as_str();
        let upserts = deleted.iter().map(|(_, id, lsn)| {
            doc! {
                "q": { "_id": { "c": name, "k": id.clone() } },
                "u": { "$set": ours.written(*lsn) },
                "upsert": true,
            }
        });
        let command = Verb::Update.command(COLLECTION, upserts.collect(), connection.timeout());
        let reply = connection.command(WHAT, command)?;
        super::writer::documents_met(WHAT, connection.place(), &reply)?;
        for (key, _, lsn) in deleted {
            self.known.insert((table, Box::from(*key)), *lsn);
        }
        Ok(())
    }

    /// Drops those that the watermark has passed: their groups cannot come again from us. A command of an earlier connection
    /// could still be under way, so a connection leaves them alone at first.
    pub(super) fn forget(
        &mut self,
        connection: &mut Connection,
        watermark: Lsn,
    ) -> Result<(), OriginError> {
        let quiet = QUIET + 2 * connection.timeout();
        let is_passed = self.has_old || self.known.values().any(|lsn| *lsn <= watermark);
        if self.since.elapsed() < quiet || !is_passed {
            return Ok(());
        }
        let mut command = doc! {
            "delete": COLLECTION,
            "deletes": [{ "q": { "seq": { "$lte": signed(watermark.0) } }, "limit": 0 }],
        };
        command.extend(durable(connection.timeout()));
        connection.command("drop tombstones", command)?;
        self.known.retain(|_, lsn| *lsn > watermark);
        self.has_old = false;
        Ok(())
    }
}

fn parsed(schema: &Schema, found: &Document) -> Option<(Deleted, Lsn)> {
    let id = found.get_document("_id").ok()?;
    let table = schema.find(id.get_str("c").ok()?.as_bytes())?;
    let key = key_cells(&table.columns[0], id.get("k")?)?;
    Some(((table.id, key), Lsn(unsigned(integer(found.get("seq")?)?))))
}

/// Longer than any command that has left us may be on its way.
const QUIET: Duration = Duration::from_secs(60);
