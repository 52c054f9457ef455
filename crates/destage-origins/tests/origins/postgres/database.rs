//! A schema of its own for each test.

use destage_origins::origins::Postgres;
use destage_testkit::needs::prepared;
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
        let url = prepared("DESTAGE_TEST_POSTGRES")?;
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

    /// A session of the database at this address.
    pub(crate) fn at(url: String) -> Self {
        Self::connected("public".to_owned(), url, false)
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
