//! How one client asks: of a server of keys, of PostgreSQL by prepared statements, of MongoDB by its driver.

use destage_runtime::sockets::Listen;
use mongodb::bson::{Document, doc};
use mongodb::{Client, Collection};

use super::workload::{Action, SCANNED};
use crate::Result;
use crate::load::{Protocol, Template};
use crate::origins::FIELDS;
use crate::servers::{Statement, postgres_preamble};
use crate::wire::Wire;

/// Length of a field.
pub(super) const FIELD_BYTES: usize = 100;
const RECORD_BYTES: usize = FIELDS * FIELD_BYTES;
/// Digits of a serial number, at the end of a field; its begin is the run's mark.
pub(super) const SERIAL_DIGITS: usize = 10;

/// A client's connection with a side.
#[derive(Debug)]
pub(super) enum Link {
    Prepared(Box<Prepared>),
    Documents(Documents),
}

impl Link {
    /// A client of `table` at a server that speaks the Redis protocol. Records are hashes; a scan asks for its records in
    /// one round trip, since their keys follow one another.
    pub(super) async fn keys(address: &Listen, table: &str, tag: &str) -> Result<Self> {
        let wire = Wire::connect(address, Protocol::Resp, &[], 0).await?;
        let key = format!("{table}:__rand_int__");
        let read = Template::resp(&["HGETALL", &key], 0)?;
        let names: Vec<String> = (0..FIELDS).map(|field| format!("f{field}")).collect();
        let mut command = vec!["HSET", key.as_str()];
        names.iter().for_each(|name| command.extend([name.as_str(), "__data__"]));
        let mut write = Template::resp(&command, FIELD_BYTES)?;
        write.tag(tag);
        let insert = write.clone();
        Ok(Self::Prepared(Box::new(Prepared { wire, read, scan: None, update: write, insert })))
    }

    /// A client of PostgreSQL itself; every statement is prepared once and a transaction of its own.
    pub(super) async fn postgres(address: &Listen, table: &str, tag: &str) -> Result<Self> {
        let statements = statements(table);
        let replies = statements.len() + 1;
        let preamble = postgres_preamble(&statements);
        let wire = Wire::connect(address, Protocol::Postgres, &preamble, replies).await?;
        let template = |index: usize| {
            let Statement { name, texts, .. } = &statements[index];
            let mut template = Template::postgres(name, *texts, FIELD_BYTES);
            template.tag(tag);
            template
        };
        let [read, scan, update, insert] = std::array::from_fn(template);
        Ok(Self::Prepared(Box::new(Prepared { wire, read, scan: Some(scan), update, insert })))
    }

    /// A client of a collection, by the driver.
    pub(super) fn documents(client: &Client, database: &str, table: &str, tag: &str) -> Self {
        let collection = client.database(database).collection(table);
        Self::Documents(Documents { collection, tag: tag.to_owned(), trips: 0 })
    }

    /// Performs one action.
    ///
    /// # Errors
    ///
    /// The server refused it, or a record is missing.
    pub(super) async fn perform(&mut self, action: Action) -> Result<()> {
        match self {
            Self::Prepared(link) => link.perform(action).await,
            Self::Documents(link) => link.perform(action).await,
        }
    }

    /// Round trips so far.
    pub(super) fn trips(&self) -> u64 {
        match self {
            Self::Prepared(link) => link.wire.trips(),
            Self::Documents(link) => link.trips,
        }
    }
}

fn statements(table: &str) -> [Statement; 4] {
    let list =
        |part: &dyn Fn(usize) -> String| (0..FIELDS).map(part).collect::<Vec<_>>().join(", ");
    let (names, values) = (list(&|f| format!("f{f}")), list(&|f| format!("${}", f + 1)));
    let set = list(&|f| format!("f{f} = ${}", f + 1));
    let key = FIELDS + 1;
    let statement = |name, sql, texts| Statement { name, sql, texts, numbers: 1 };
    [
        statement("r", format!("SELECT * FROM {table} WHERE id = $1"), 0),
        statement(
            "s",
            format!("SELECT * FROM {table} WHERE id >= $1 ORDER BY id LIMIT {SCANNED}"),
            0,
        ),
        statement("u", format!("UPDATE {table} SET {set} WHERE id = ${key}"), FIELDS),
        statement(
            "i",
            format!("INSERT INTO {table} ({names}, id) VALUES ({values}, ${key})"),
            FIELDS,
        ),
    ]
}

/// Requests that are made once and patched, over one connection.
#[derive(Debug)]
pub(super) struct Prepared {
    wire: Wire,
    read: Template,
    /// Where there is none, a scan is as many reads.
    scan: Option<Template>,
    update: Template,
    insert: Template,
}

impl Prepared {
    async fn perform(&mut self, action: Action) -> Result<()> {
        let out = &mut self.wire.out;
        let (replies, bytes_min) = match action {
            Action::Read(key) => {
                self.read.append(key, 0, out);
                (1, RECORD_BYTES)
            }
            Action::Scan(key) => {
                let replies = match &mut self.scan {
                    Some(scan) => {
                        scan.append(key, 0, out);
                        1
                    }
                    None => {
                        (key..key + SCANNED).for_each(|key| self.read.append(key, 0, out));
                        SCANNED as usize
                    }
                };
                (replies, RECORD_BYTES * SCANNED as usize)
            }
            Action::Update { key, serial } => {
                self.update.append(key, serial, out);
                (1, 0)
            }
            Action::Insert { key, serial } => {
                self.insert.append(key, serial, out);
                (1, 0)
            }
        };
        let reply = self.wire.exchange(replies).await?;
        if reply.len() >= bytes_min {
            Ok(())
        } else {
            Err(format!("{action:?} got only {} bytes", reply.len()).into())
        }
    }
}

/// A collection of documents.
#[derive(Debug)]
pub(super) struct Documents {
    collection: Collection<Document>,
    tag: String,
    trips: u64,
}

impl Documents {
    async fn perform(&mut self, action: Action) -> Result<()> {
        self.trips += 1;
        let missing = |key: u64| format!("document {} is missing", id(key));
        match action {
            Action::Read(key) => {
                let found = self.collection.find_one(doc! { "_id": id(key) }).await?;
                found.filter(|it| it.len() > FIELDS).ok_or_else(|| missing(key))?;
            }
            Action::Scan(key) => {
                let from = doc! { "_id": { "$gte": id(key) } };
                let limit = SCANNED.cast_signed();
                let find = self.collection.find(from).sort(doc! { "_id": 1 }).limit(limit);
                let mut cursor = find.await?;
                for at in 0..SCANNED {
                    if !cursor.advance().await? {
                        return Err(missing(key + at).into());
                    }
                }
            }
            Action::Update { key, serial } => {
                let set = doc! { "$set": fields(&self.tag, serial) };
                let done = self.collection.update_one(doc! { "_id": id(key) }, set).await?;
                if done.matched_count != 1 {
                    return Err(missing(key).into());
                }
            }
            Action::Insert { key, serial } => {
                let mut document = doc! { "_id": id(key) };
                document.extend(fields(&self.tag, serial));
                self.collection.insert_one(document).await?;
            }
        }
        Ok(())
    }
}

/// A document's key: the digits that a template writes.
pub(super) fn id(key: u64) -> String {
    format!("{key:012}")
}

/// What a write puts into a document.
pub(super) fn fields(tag: &str, serial: u64) -> Document {
    let filling = "x".repeat(FIELD_BYTES - SERIAL_DIGITS - tag.len());
    let value = format!("{tag}{filling}{serial:010}");
    (0..FIELDS).map(|field| (format!("f{field}"), value.clone().into())).collect()
}
