//! A store before a new database of any kind.

use crate::{mariadb, postgres};
use destage_data::store::{LEASE_MAX, Options, Store};
use destage_testkit::needs::prepared;
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// What the origin is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    Mariadb,
}

impl Kind {
    /// Whether there is a server of this kind; says so if not.
    pub(crate) fn is_at_hand(self) -> bool {
        match self {
            Self::Sqlite => true,
            Self::Postgres => prepared("DESTAGE_TEST_POSTGRES").is_some(),
            Self::Mariadb => prepared("DESTAGE_TEST_MARIADB").is_some(),
        }
    }
}

/// Makes a test of each of these functions for each kind of origin, which it is called with.
macro_rules! on_each_origin {
    (@ $module:ident $kind:ident $($test:ident)*) => {
        mod $module {
            use crate::support::Kind;
            $(
                #[test]
                fn $test() {
                    if Kind::$kind.is_at_hand() {
                        super::$test(Kind::$kind);
                    }
                }
            )*
        }
    };
    ($($test:ident,)*) => {
        crate::support::on_each_origin!(@ sqlite Sqlite $($test)*);
        crate::support::on_each_origin!(@ postgres Postgres $($test)*);
        crate::support::on_each_origin!(@ mariadb Mariadb $($test)*);
    };
}
pub(crate) use on_each_origin;

/// A database with the folder of its journal.
pub(crate) struct Place {
    folder: TempDir,
    database: Database,
}

/// Removed at its end.
enum Database {
    Sqlite(PathBuf),
    Postgres(postgres::Database),
    /// Its connection is used by one at a time.
    Mariadb(Mutex<mariadb::Database>),
}

impl Place {
    /// A database that a script has filled.
    pub(crate) fn new(kind: Kind, script: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("store_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir().unwrap();
        let database = match kind {
            Kind::Sqlite => Database::Sqlite(folder.path().join("origin.db")),
            Kind::Postgres => Database::Postgres(postgres::Database::open(&name).unwrap()),
            Kind::Mariadb => Database::Mariadb(Mutex::new(mariadb::Database::open(&name).unwrap())),
        };
        let place = Self { folder, database };
        place.sql(script);
        place
    }

    /// The file of a SQLite database.
    pub(crate) fn file(&self) -> &Path {
        match &self.database {
            Database::Sqlite(file) => file,
            _ => panic!("a server's database has no file"),
        }
    }

    /// Runs a script past the store.
    pub(crate) fn sql(&self, script: &str) {
        match &self.database {
            Database::Sqlite(file) => {
                Connection::open(file).unwrap().execute_batch(script).unwrap();
            }
            Database::Postgres(database) => database.sql(script),
            Database::Mariadb(database) => database.lock().unwrap().sql(script),
        }
    }

    /// The only value of a query at the origin, as text.
    pub(crate) fn at_origin(&self, query: &str) -> Option<String> {
        let text = if let Database::Mariadb(_) = self.database { "CHAR" } else { "TEXT" };
        let mut values = self.column(&format!("SELECT CAST(({query}) AS {text})"));
        assert_eq!(values.len(), 1, "{query}: {values:?}");
        values.remove(0)
    }

    /// The first column of a query at the origin, which is text.
    pub(crate) fn column(&self, query: &str) -> Vec<Option<String>> {
        match &self.database {
            Database::Sqlite(file) => {
                let connection = Connection::open(file).unwrap();
                let mut statement = connection.prepare(query).unwrap();
                let rows = statement.query_map([], |row| row.get(0)).unwrap();
                rows.map(|value| value.unwrap()).collect()
            }
            Database::Postgres(database) => database.texts(query, &[]),
            Database::Mariadb(database) => database.lock().unwrap().texts(query),
        }
    }

    /// As [`Self::column`], without NULLs, in one line.
    pub(crate) fn listed(&self, query: &str) -> String {
        let values = self.column(query).into_iter();
        values.map(|value| value.expect("no value is NULL")).collect::<Vec<_>>().join(",")
    }

    /// The writes that are parked, each with the one it is parked behind.
    pub(crate) fn parked(&self) -> String {
        let behind = "CASE WHEN depends_on IS NULL THEN '' ELSE concat('<', depends_on) END";
        self.listed(&format!("SELECT concat(seq, {behind}) FROM destage_parked ORDER BY seq"))
    }

    /// The origin's address.
    pub(crate) fn origin(&self) -> String {
        match &self.database {
            Database::Sqlite(file) => format!("sqlite:{}", file.display()),
            Database::Postgres(database) => database.url.clone(),
            Database::Mariadb(database) => database.lock().unwrap().url.clone(),
        }
    }

    /// With so much retry_timeout that no stall of the machine ends a lease, a thread's wait or an operation at the origin.
    pub(crate) fn options(&self) -> Options {
        let options = Options::new(self.origin(), self.folder.path().join("data"));
        let options = options.with(|settings| settings.origin_timeout = Duration::from_secs(60));
        options.lease(LEASE_MAX).retry_timeout(Duration::from_secs(600))
    }

    pub(crate) fn open(&self) -> Store {
        self.options().open().unwrap()
    }
}

/// Accounts 1 to `count` with a balance of 100.
pub(crate) fn bank(kind: Kind, count: u32) -> Place {
    let rows: Vec<String> = (1..=count).map(|id| format!("({id}, 100, 0)")).collect();
    let rows = rows.join(", ");
    Place::new(
        kind,
        &format!(
            "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, version INTEGER NOT NULL);
             INSERT INTO accounts VALUES {rows}"
        ),
    )
}
