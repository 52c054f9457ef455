//! What the tests on SQLite files share.

use crate::claimed::OneDomain;
use destage_core::{DomainId, Lsn};
use destage_origins::cells::{Cell, Reader as Cells, push_cell};
use destage_origins::change::{GroupWriter, Op, Set};
use destage_origins::contract::{Claim, GroupRef, Origin, OriginError, Reader, Writer};
use destage_origins::origins::Sqlite;
use destage_origins::schema::Schema;
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// A change: table, operation, key values, columns with what happens to them.
pub(crate) type ChangeOf<'a> = (&'a str, Op, &'a [&'a str], &'a [(&'a str, Set<'a>)]);

pub(crate) const EPOCH: u64 = 3;
pub(crate) const DOMAIN: DomainId = DomainId(0);

/// A database file made by a script, opened and claimed.
pub(crate) struct Fixture {
    _folder: TempDir,
    pub(crate) path: PathBuf,
    pub(crate) origin: Sqlite,
    pub(crate) schema: Schema,
    pub(crate) writer: Box<dyn Writer>,
    pub(crate) reader: Box<dyn Reader>,
    pub(crate) at: u64,
}

impl Fixture {
    pub(crate) fn new(script: &str) -> Self {
        Self::within(tempfile::tempdir().unwrap(), script)
    }

    /// Where a sync costs nothing, for tests that run very many batches.
    pub(crate) fn in_memory(script: &str) -> Self {
        let memory = Path::new("/dev/shm");
        let folder =
            if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self::within(folder.unwrap(), script)
    }

    fn within(folder: TempDir, script: &str) -> Self {
        let path = folder.path().join("shop.db");
        Connection::open(&path).unwrap().execute_batch(script).unwrap();
        let origin = Sqlite::open(&path, Duration::from_millis(200)).unwrap();
        let schema = origin.schema().unwrap();
        let mut writer = origin.writer().unwrap();
        writer.claim(&claim(None, EPOCH)).unwrap();
        let reader = origin.reader().unwrap();
        Self { _folder: folder, path, origin, schema, writer, reader, at: 0 }
    }

    /// Another program's connection.
    pub(crate) fn sql(&self) -> Connection {
        let connection = Connection::open(&self.path).unwrap();
        connection.execute_batch("PRAGMA foreign_keys = ON").unwrap();
        connection
    }

    /// Applies the groups as one batch; the next batch goes on from there if it succeeds.
    pub(crate) fn apply(&mut self, groups: &[Vec<u8>]) -> Result<(), OriginError> {
        let refs: Vec<_> = groups
            .iter()
            .zip(self.at + 1..)
            .map(|(bytes, lsn)| GroupRef { lsn: Lsn(lsn), bytes })
            .collect();
        let upto = Lsn(self.at + groups.len() as u64);
        let writer = &mut self.writer;
        write_claim(self.at).upto(upto, |claim| writer.apply(&self.schema, claim, &refs))?;
        self.at += groups.len() as u64;
        Ok(())
    }

    /// A group of changes: table, operation, key values, columns.
    pub(crate) fn group(&self, changes: &[ChangeOf<'_>]) -> Vec<u8> {
        let mut writer = GroupWriter::new();
        for (table, op, key_values, sets) in changes {
            let table = self.schema.find(table.as_bytes()).expect("the table is reachable");
            writer.begin(table.id, *op, &key(key_values));
            for (column, set) in *sets {
                writer.set(table.column(column.as_bytes()).expect("the column exists"), *set);
            }
        }
        writer.finish().to_vec()
    }

    /// The cells of a row in the order of the schema's columns, `None` for NULL.
    pub(crate) fn row(&mut self, table: &str, key_values: &[&str]) -> Option<Vec<Option<String>>> {
        let table = self.schema.find(table.as_bytes()).unwrap();
        let key = key(key_values);
        let snapshot = self.reader.fetch(table, &[&key]).unwrap();
        let row = snapshot.rows[0].as_ref()?;
        assert!(row.starts_with(&key));
        let text = |cell: Cell<'_>| cell.value().map(|v| String::from_utf8_lossy(v).into_owned());
        Some(Cells::new(row).map(text).collect())
    }
}

pub(crate) fn claim(expected: Option<u64>, epoch: u64) -> Claim {
    Claim {
        journal: "journal-a".to_owned(),
        expected,
        epoch,
        domain_map: u64::MAX,
        domains: vec![DOMAIN],
    }
}

pub(crate) fn write_claim(expected: u64) -> OneDomain {
    OneDomain { domain: DOMAIN, epoch: EPOCH, expected: Lsn(expected), unsafe_no_watermark: false }
}

pub(crate) fn key(values: &[&str]) -> Vec<u8> {
    let mut key = Vec::new();
    for value in values {
        push_cell(&mut key, Cell::Value(value.as_bytes()));
    }
    key
}

pub(crate) fn to(value: &str) -> Set<'_> {
    Set::To(Cell::Value(value.as_bytes()))
}

pub(crate) fn by(amount: &str) -> Set<'_> {
    Set::By(amount.as_bytes())
}

pub(crate) const NULL: Set<'static> = Set::To(Cell::Null);
