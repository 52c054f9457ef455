//! A database of its own for each test.

use destage_origins::origins::Mysql;
use destage_testkit::needs::prepared;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

pub(crate) struct Database {
    runtime: Runtime,
    conn: Option<Conn>,
    name: String,
    /// Reaches this test's database.
    pub(crate) url: String,
    /// Whether the database is removed at the end.
    owns: bool,
}

impl Database {
    /// `None` where no server is given.
    pub(crate) fn open(test: &str) -> Option<Self> {
        let url = prepared("DESTAGE_TEST_MARIADB")?;
        let name = format!("destage_test_{test}_{}", std::process::id());
        let (server, _) = url.rsplit_once('/').expect("the address names a database");
        let mut database = Self::connected(name.clone(), format!("{server}/{name}"), true);
        database
            .sql(&format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}; USE {name}"));
        Some(database)
    }

    /// Another session of the same test.
    pub(crate) fn beside(other: &Self) -> Self {
        let mut beside = Self::connected(other.name.clone(), other.url.clone(), false);
        beside.sql(&format!("USE {}", other.name));
        beside
    }

    fn connected(name: String, url: String, owns: bool) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let opts = OptsBuilder::from_opts(Opts::from_url(&url).unwrap());
        let opts = opts.db_name(None::<String>).prefer_socket(false);
        let conn = runtime.block_on(Conn::new(opts)).unwrap();
        Self { runtime, conn: Some(conn), name, url, owns }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// With time for a loaded machine.
    pub(crate) fn origin(&self) -> Mysql {
        Mysql::new(&self.url).unwrap().timeout(Duration::from_secs(60))
    }

    pub(crate) fn sql(&mut self, script: &str) {
        let conn = self.conn.as_mut().unwrap();
        self.runtime.block_on(conn.query_drop(script)).unwrap();
    }

    /// Whether the server takes the script.
    pub(crate) fn try_sql(&mut self, script: &str) -> bool {
        let conn = self.conn.as_mut().unwrap();
        self.runtime.block_on(conn.query_drop(script)).is_ok()
    }

    /// The first column, as text.
    pub(crate) fn texts(&mut self, query: &str) -> Vec<Option<String>> {
        let conn = self.conn.as_mut().unwrap();
        self.runtime.block_on(conn.query(query)).unwrap()
    }

    /// The first column of the first row, as text.
    pub(crate) fn text(&mut self, query: &str) -> Option<String> {
        self.texts(query).into_iter().next().flatten()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let Some(mut conn) = self.conn.take() else { return };
        let script = format!("DROP DATABASE IF EXISTS {}", self.name);
        let owns = self.owns;
        let _ = self.runtime.block_on(async {
            if owns {
                conn.query_drop(script).await?;
            }
            conn.disconnect().await
        });
    }
}
