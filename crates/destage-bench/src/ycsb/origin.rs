//! The records at the store behind.

use std::net::SocketAddr;

use mongodb::bson::{Document, doc};

use super::check::Found;
use super::link::{FIELD_BYTES, SERIAL_DIGITS, fields, id};
use crate::Result;
use crate::behind::{Behind, driver, runtime};
use crate::origins::{self, FIELDS};
use crate::servers::Postgres;
use crate::tpcc::Sql;

/// The database at FerretDB.
pub(super) const DATABASE: &str = "ycsb";
const DOCUMENTS_AT_ONCE: u64 = 500;

/// What Destage must be told about the tables, if anything.
pub(super) fn settings(origin: &Behind, tables: &[&str]) -> Option<String> {
    let Behind::Mongodb(_) = origin else { return None };
    let names: Vec<String> = (0..FIELDS).map(|field| format!("f{field} = \"string\"")).collect();
    let fields = names.join(", ");
    let section =
        |table: &&str| format!("[table.{table}]\nid = \"string\"\nfields = {{ {fields} }}\n");
    Some(tables.iter().map(section).collect())
}

/// Makes `table` with so many records.
pub(super) fn fill(origin: &Behind, table: &str, records: u64) -> Result<()> {
    eprintln!("filling {table}: {records} records of {FIELDS} x {FIELD_BYTES} bytes");
    match origin {
        Behind::Postgres(server) => {
            origins::fill_postgres(&mut server.query()?, table, records, FIELD_BYTES)
        }
        Behind::Mongodb(server) => {
            let runtime = runtime()?;
            runtime.block_on(fill_documents(server.address, table, records))
        }
    }
}

/// The records of `table` whose fields begin with `tag`.
pub(super) fn found(origin: &Behind, table: &str, tag: &str) -> Result<Vec<Found>> {
    match origin {
        Behind::Postgres(server) => {
            let serial = |field: usize| format!("right(f{field}, {SERIAL_DIGITS})::bigint");
            let sql = format!(
                "SELECT id, {}, {} FROM {table} WHERE starts_with(f0, '{tag}')",
                serial(0),
                serial(FIELDS - 1)
            );
            let rows = Sql::open(&Postgres::url(server.address))?.numbers(&sql)?;
            let number = |row: &Vec<i64>, at: usize| row[at].cast_unsigned();
            Ok(rows.iter().map(|row| (number(row, 0), number(row, 1), number(row, 2))).collect())
        }
        Behind::Mongodb(server) => runtime()?.block_on(found_documents(server.address, table, tag)),
    }
}

async fn fill_documents(address: SocketAddr, table: &str, records: u64) -> Result<()> {
    let collection = driver(address).await?.database(DATABASE).collection::<Document>(table);
    for start in (0..records).step_by(DOCUMENTS_AT_ONCE as usize) {
        let keys = start..(start + DOCUMENTS_AT_ONCE).min(records);
        let documents = keys.map(|key| {
            let mut document = doc! { "_id": id(key) };
            document.extend(fields("first", key));
            document
        });
        collection.insert_many(documents).await?;
    }
    Ok(())
}

async fn found_documents(address: SocketAddr, table: &str, tag: &str) -> Result<Vec<Found>> {
    let collection = driver(address).await?.database(DATABASE).collection::<Document>(table);
    let mut cursor = collection.find(doc! {}).await?;
    let mut found = Vec::new();
    let end = format!("f{}", FIELDS - 1);
    while cursor.advance().await? {
        let document = cursor.deserialize_current()?;
        let first = document.get_str("f0")?;
        if !first.starts_with(tag) {
            continue;
        }
        let serial = |text: &str| -> Result<u64> {
            let digits = text.get(text.len().saturating_sub(SERIAL_DIGITS)..);
            Ok(digits.ok_or("a field is no text of ours")?.parse()?)
        };
        let key = document.get_str("_id")?.parse()?;
        found.push((key, serial(first)?, serial(document.get_str(&end)?)?));
    }
    Ok(found)
}
