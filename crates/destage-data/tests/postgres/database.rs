//! A schema of its own for each test.

use destage_core::{DomainId, Lsn};
use destage_data::cells::{Cell, Reader as Cells, push_cell};
use destage_data::change::{GroupWriter, Op, Set};
use destage_data::origins::{
    Claim, GroupRef, Origin, OriginError, Postgres, Reader, Snapshot, WriteClaim, Writer,
};
use destage_data::schema::{Schema, Table};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls};

pub(crate) struct Database {
    runtime: Runtime,
    client: Client,
    schema: String,
    /// Reaches this test's schema only.
    pub(crate) url: String,
    /// Whether the schema is removed at the end.
    owns: bool,
}

impl Database {
    /// `None` where no server is given.
    pub(crate) fn open(test: &str) -> Option<Self> {
        let Ok(url) = std::env::var("DESTAGE_TEST_POSTGRES") else {
            let required = std::env::var("DESTAGE_TEST_REQUIRE").is_ok_and(|v| v == "1");
            assert!(!required, "{test}: DESTAGE_TEST_POSTGRES is not set");
            eprintln!("skipped {test}: DESTAGE_TEST_POSTGRES is not set");
            return None;
        };
        let schema = format!("destage_test_{test}_{}", std::process::id());
        let separator = if url.contains('?') { '&' } else { '?' };
        let scoped = format!("{url}{separator}options=-csearch_path%3D{schema}");
        let database = Self::connected(schema, scoped, true);
        let name = &database.schema;
        database.sql(&format!("DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}"));
        database.sql("SET client_min_messages = warning; SET TimeZone = 'UTC'");
        Some(database)
    }

    /// Another session of the same test.
    pub(crate) fn beside(other: &Self) -> Self {
        Self::connected(other.schema.clone(), other.url.clone(), false)
    }

    fn connected(schema: String, url: String, owns: bool) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        });
        Self { runtime, client, schema, url, owns }
    }

    pub(crate) fn schema_name(&self) -> &str {
        &self.schema
    }

    pub(crate) fn origin(&self) -> Postgres {
        Postgres::new(&self.url).unwrap()
    }

    pub(crate) fn sql(&self, script: &str) {
        self.runtime.block_on(self.client.batch_execute(script)).unwrap();
    }

    /// As `sql`, where an error is expected: in words, with its state.
    pub(crate) fn try_sql(&self, script: &str) -> Result<(), String> {
        let result = self.runtime.block_on(self.client.batch_execute(script));
        result.map_err(|error| format!("{error} [{}]", error.code().map_or("", |code| code.code())))
    }

    /// The first column of the first row, as text.
    pub(crate) fn text(&self, query: &str) -> Option<String> {
        self.texts(query, &[]).into_iter().next().flatten()
    }

    /// The first column, for a query that may take one array of text.
    pub(crate) fn texts(&self, query: &str, inputs: &[String]) -> Vec<Option<String>> {
        let rows = self.runtime.block_on(async {
            if inputs.is_empty() && !query.contains("$1") {
                self.client.query(query, &[]).await
            } else {
                self.client.query(query, &[&inputs]).await
            }
        });
        rows.unwrap().iter().map(|row| row.get(0)).collect()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !self.owns {
            return;
        }
        let script = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema);
        let _ = self.runtime.block_on(self.client.batch_execute(&script));
    }
}

/// A claimed writer with its schema, and what comes next.
pub(crate) struct Arm {
    pub(crate) schema: Schema,
    pub(crate) writer: Box<dyn Writer>,
    pub(crate) reader: Box<dyn Reader>,
    pub(crate) claim: WriteClaim,
}

impl Arm {
    pub(crate) fn new(database: &Database) -> Self {
        Self::before(&database.origin())
    }

    /// Before an origin with settings of its own.
    pub(crate) fn before(origin: &Postgres) -> Self {
        let mut writer = origin.writer().unwrap();
        writer.claim(&claim(None, 1)).unwrap();
        Self {
            schema: origin.schema().unwrap(),
            writer,
            reader: origin.reader().unwrap(),
            claim: WriteClaim {
                domain: DomainId(0),
                epoch: 1,
                expected: Lsn::ZERO,
                unsafe_no_watermark: false,
            },
        }
    }

    pub(crate) fn table(&self, name: &str) -> &Table {
        self.schema.find(name.as_bytes()).unwrap_or_else(|| panic!("no table {name}"))
    }

    /// Applies the groups as one batch behind the last one.
    pub(crate) fn apply(&mut self, groups: &[Vec<u8>]) -> Result<(), OriginError> {
        let first = self.claim.expected.0 + 1;
        let refs: Vec<_> =
            (first..).zip(groups).map(|(lsn, bytes)| GroupRef { lsn: Lsn(lsn), bytes }).collect();
        self.writer.apply(&self.schema, &self.claim, &refs)?;
        self.claim.expected = Lsn(self.claim.expected.0 + groups.len() as u64);
        Ok(())
    }

    pub(crate) fn fetch(&mut self, table: &str, keys: &[&[&str]]) -> Snapshot {
        let keys: Vec<_> = keys.iter().map(|parts| key(parts)).collect();
        let refs: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let table = self.schema.find(table.as_bytes()).unwrap();
        self.reader.fetch(table, &refs).unwrap()
    }
}

pub(crate) fn claim(expected: Option<u64>, epoch: u64) -> Claim {
    Claim {
        journal: format!("journal-{epoch}"),
        expected,
        epoch,
        domain_map: u64::MAX - 7,
        domains: vec![DomainId(0), DomainId(3)],
    }
}

pub(crate) fn key(parts: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        push_cell(&mut out, Cell::Value(part.as_bytes()));
    }
    out
}

/// A row's cells as text; NULL as `~`.
pub(crate) fn shown(row: Option<&[u8]>) -> String {
    let Some(row) = row else { return "none".to_owned() };
    let cell = |cell: Cell<'_>| match cell {
        Cell::Null => "~".to_owned(),
        Cell::Unknown => "?".to_owned(),
        Cell::Value(bytes) => String::from_utf8_lossy(bytes).into_owned(),
    };
    Cells::new(row).map(cell).collect::<Vec<_>>().join("|")
}

/// A group of one change; values by column name, `+n` in the amount list.
pub(crate) fn change(
    table: &Table,
    op: Op,
    key_parts: &[&str],
    sets: &[(&str, Option<&str>)],
    amounts: &[(&str, &str)],
) -> Vec<u8> {
    let mut group = GroupWriter::new();
    push_change(&mut group, table, op, key_parts, sets, amounts);
    group.finish().to_vec()
}

pub(crate) fn push_change(
    group: &mut GroupWriter,
    table: &Table,
    op: Op,
    key_parts: &[&str],
    sets: &[(&str, Option<&str>)],
    amounts: &[(&str, &str)],
) {
    group.begin(table.id, op, &key(key_parts));
    let place = |name: &str| table.column(name.as_bytes()).unwrap_or_else(|| panic!("no {name}"));
    for (name, value) in sets {
        let cell = value.map_or(Cell::Null, |value| Cell::Value(value.as_bytes()));
        group.set(place(name), Set::To(cell));
    }
    for (name, amount) in amounts {
        group.set(place(name), Set::By(amount.as_bytes()));
    }
}
