//! One attempt at a session: what it has read, what it will change, and how it sees its own changes.

use super::arrays::{Edit, Element};
use super::dml::{Covered, check_writes};
use super::view::{applied, canonical_key, column_type};
use super::{CacheSession, Change, Declared, Error, ErrorKind, Key, Lease, Parameter, Row, Value};
use crate::schema::Schema;
use std::collections::HashMap;
use std::sync::Arc;

/// A session in progress, handed to the closure of [`Store::session`](super::Store::session).
///
/// What it has read stays as it is until the session ends, or the session is tried again; what it changes only it sees until
/// then. A closure may therefore run several times, and must leave nothing behind outside of the session.
pub struct Session<'s> {
    schema: Arc<Schema>,
    held: Box<dyn CacheSession + 's>,
    /// The least lease that reads take.
    least: Lease,
    /// The rows read, as this session sees them.
    rows: HashMap<Key, Option<Row>>,
    changes: Vec<Change>,
    /// What its raw SQL covers.
    covered: Covered,
    is_lost: bool,
}

impl<'s> Session<'s> {
    pub(super) fn new(schema: Arc<Schema>, held: Box<dyn CacheSession + 's>, least: Lease) -> Self {
        let (rows, covered) = (HashMap::new(), Covered::default());
        Self { schema, held, least, rows, changes: Vec::new(), covered, is_lost: false }
    }

    /// Whether another session was faster, so that this one cannot take effect.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    pub(super) fn commit(mut self) -> Result<(), Error> {
        self.held.commit(&self.changes)
    }

    /// A row under an S lease; `None` if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another session may write it: pass it on, and the session is tried again.
    pub fn read(&mut self, key: impl Into<Key>) -> Result<Option<Row>, Error> {
        self.read_under(self.least, &[key.into()]).map(|mut rows| rows.pop().flatten())
    }

    /// As [`Session::read`], for a row that must exist.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] if it does not; otherwise as for [`Session::read`].
    pub fn row(&mut self, key: impl Into<Key>) -> Result<Row, Error> {
        let key = key.into();
        self.read(&key)?.ok_or_else(|| missing(&key))
    }

    /// Several rows in one round trip, as for [`Session::read`].
    ///
    /// # Errors
    /// As for [`Session::read`].
    pub fn read_all(&mut self, keys: &[Key]) -> Result<Vec<Option<Row>>, Error> {
        self.read_under(self.least, keys)
    }

    /// Rows under X leases: no other session gets a lease on them meanwhile, and single writes wait. Worth it for rows that
    /// many sessions change, since the others are told before they have done their work in vain.
    ///
    /// # Errors
    /// As for [`Session::read`].
    pub fn read_to_write(&mut self, keys: &[Key]) -> Result<Vec<Option<Row>>, Error> {
        self.read_under(Lease::X, keys)
    }

    fn read_under(&mut self, lease: Lease, keys: &[Key]) -> Result<Vec<Option<Row>>, Error> {
        let keys: Vec<Key> =
            keys.iter().map(|key| canonical_key(&self.schema, key)).collect::<Result<_, _>>()?;
        keys.iter().try_for_each(|key| self.refuse_covered(key))?;
        let is_needed = |key: &&Key| lease == Lease::X || !self.rows.contains_key(*key);
        let mut needed: Vec<Key> = keys.iter().filter(is_needed).cloned().collect();
        needed.sort_unstable();
        needed.dedup();
        if !needed.is_empty() {
            let found = self.held.read(lease, &needed);
            let found = self.watched(found)?;
            for (key, mut row) in needed.into_iter().zip(found) {
                for change in self.changes.iter().filter(|change| change.key() == Some(&key)) {
                    row = applied(&self.schema, row, change)?;
                }
                self.rows.insert(key, row);
            }
        }
        Ok(keys.iter().map(|key| self.rows.get(key).cloned().flatten()).collect())
    }

    /// An S lease on a cache entry.
    pub(super) fn share(&mut self, name: &str) -> Result<(), Error> {
        let shared = self.held.share(name);
        self.watched(shared)
    }

    /// Notes whether the session has lost.
    fn watched<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            self.is_lost |= error.kind() == ErrorKind::Conflict;
        }
        result
    }

    fn change(&mut self, change: Change) -> Result<(), Error> {
        if let Some(key) = change.key() {
            self.refuse_covered(key)?;
            if let Some(row) = self.rows.get_mut(key) {
                *row = applied(&self.schema, row.take(), &change)?;
            }
        }
        self.changes.push(change);
        Ok(())
    }

    /// Nobody knows what a row holds that the session's own raw SQL covers.
    fn refuse_covered(&self, key: &Key) -> Result<(), Error> {
        if self.covered.contains(&self.schema, key)? {
            Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{key} is covered by this session's own raw SQL, so only the origin will know what it holds: use it \
                     before, or in another session"
                ),
            ))
        } else {
            Ok(())
        }
    }

    /// Writes by raw SQL: one INSERT, UPDATE, DELETE, REPLACE or MERGE in the origin's own words, its parameters written `$1`,
    /// `$2` and so on. It is acknowledged like every other write and applied later, exactly once, in its place among the others;
    /// what it does nobody knows before. So it declares the rows and tables that it reads or writes, and whoever reads these
    /// meanwhile waits until the origin has decided it. The session itself cannot use them any more.
    ///
    /// The first time that the origin sees the text, it prepares it. Functions such as `now()` and `random()` are evaluated
    /// when it is applied.
    ///
    /// ```
    /// use destage_data::store::{Declared, Options};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("bank.db");
    /// # rusqlite::Connection::open(&file)?.execute_batch(
    /// #     "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
    /// #      INSERT INTO accounts VALUES (1, 100), (2, 50);")?;
    /// # let (origin, data) = (format!("sqlite:{}", file.display()), folder.path().join("data"));
    /// let store = Options::new(origin, data).open()?;
    /// store.session(|s| {
    ///     s.execute(
    ///         "UPDATE accounts SET balance = balance + balance / $1 WHERE balance >= $2",
    ///         &[10.into(), 100.into()],
    ///         &[Declared::table("accounts")],
    ///     )
    /// })?;
    /// let balance: i64 = store.read(("accounts", 1))?.expect("it is there").get("balance")?;
    /// assert_eq!(balance, 110); // the origin has decided it before this was read
    /// store.close()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: it is not one statement that writes rows, its parameters are others, a row or table is not there,
    /// it writes a table that it does not declare (as far as the origin tells), or the origin takes no SQL.
    /// [`ErrorKind::Unavailable`]: the origin has not seen the text yet and cannot be asked.
    pub fn execute(
        &mut self,
        sql: &str,
        parameters: &[Parameter],
        declared: &[Declared],
    ) -> Result<(), Error> {
        let mut covered = self.covered.clone();
        let dml = covered.add(&self.schema, sql, parameters, declared)?;
        if let Some(writes) = self.held.check(&dml)? {
            check_writes(&self.schema, &dml, &writes)?;
        }
        self.covered = covered;
        self.change(Change::Execute(dml))
    }

    /// Sets columns; a row that does not exist is made. NULL is a value like others. Of a column that is named twice, the
    /// last value counts.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: a key, column or value does not fit, found here or at the end.
    pub fn set<'f>(
        &mut self,
        key: impl Into<Key>,
        fields: impl IntoIterator<Item = (&'f str, Value)>,
    ) -> Result<(), Error> {
        let key = canonical_key(&self.schema, &key.into())?;
        self.change(Change::Set { key, fields: owned(fields) })
    }

    /// Sets columns to NULL; of a row that does not exist, nothing.
    ///
    /// # Errors
    /// As for [`Session::set`]; also where a column is NOT NULL.
    pub fn unset(&mut self, key: impl Into<Key>, columns: &[&str]) -> Result<(), Error> {
        let key = canonical_key(&self.schema, &key.into())?;
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        self.change(Change::Unset { key, columns })
    }

    /// Adds to a number, NULL counting as 0; the row need not have been read. *Units:* `by` is a decimal number of the
    /// column's type.
    ///
    /// # Errors
    /// As for [`Session::set`]; also where the column is no number, or the sum leaves its range.
    pub fn inc(
        &mut self,
        key: impl Into<Key>,
        column: &str,
        by: impl ToString,
    ) -> Result<(), Error> {
        let key = canonical_key(&self.schema, &key.into())?;
        self.change(Change::Inc { key, field: column.to_owned(), by: by.to_string() })
    }

    /// Makes a row. Whether it exists is looked up first, at the origin if need be.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if it does; otherwise as for [`Session::set`] and [`Session::read`].
    pub fn insert<'f>(
        &mut self,
        key: impl Into<Key>,
        fields: impl IntoIterator<Item = (&'f str, Value)>,
    ) -> Result<(), Error> {
        let key = key.into();
        if self.read(&key)?.is_some() {
            return Err(exists(&key));
        }
        let key = canonical_key(&self.schema, &key)?;
        self.change(Change::Insert { key, fields: owned(fields), is_known: true })
    }

    /// Makes a row that the caller knows to be new, since its key comes from a counter, say. The origin is not asked; should
    /// it alone have the row after all, it rejects the session when that is destaged, and the session is parked.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`], here or at the end, if the row is known here to exist; otherwise as for [`Session::set`].
    pub fn insert_new<'f>(
        &mut self,
        key: impl Into<Key>,
        fields: impl IntoIterator<Item = (&'f str, Value)>,
    ) -> Result<(), Error> {
        let key = canonical_key(&self.schema, &key.into())?;
        let is_there = self.is_there(&key);
        if is_there == Some(true) {
            return Err(exists(&key));
        }
        self.change(Change::Insert { key, fields: owned(fields), is_known: is_there.is_some() })
    }

    /// Whether a row exists behind the session's own changes, as far as the session itself knows.
    fn is_there(&self, key: &Key) -> Option<bool> {
        if let Some(row) = self.rows.get(key) {
            return Some(row.is_some());
        }
        let mut own = self.changes.iter().rev().filter(|change| change.key() == Some(key));
        own.find_map(|change| match change {
            Change::Delete { .. } => Some(false),
            Change::Set { .. } | Change::Inc { .. } | Change::Insert { .. } => Some(true),
            Change::Unset { .. } | Change::Execute(_) => None,
        })
    }

    /// Deletes a row, if it exists.
    ///
    /// # Errors
    /// The key names no row.
    pub fn delete(&mut self, key: impl Into<Key>) -> Result<(), Error> {
        let key = canonical_key(&self.schema, &key.into())?;
        self.change(Change::Delete { key })
    }

    /// Appends an element to a JSON array in a column of text or JSON, or of type `array` or `json` before MongoDB, where an
    /// element may also be in Extended JSON; NULL counts as the empty one. The other elements stay as they are.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] if the row does not exist; [`ErrorKind::Invalid`] if the column holds no JSON array; otherwise
    /// as for [`Session::read`].
    pub fn push(
        &mut self,
        key: impl Into<Key>,
        column: &str,
        element: impl Into<serde_json::Value>,
    ) -> Result<(), Error> {
        self.edit(key.into(), column, Edit::Push, element.into())
    }

    /// Removes every equal element from a JSON array. The order of an object's names does not count; `1` and `1.0` are two
    /// different elements.
    ///
    /// # Errors
    /// As for [`Session::push`].
    pub fn pull(
        &mut self,
        key: impl Into<Key>,
        column: &str,
        element: impl Into<serde_json::Value>,
    ) -> Result<(), Error> {
        self.edit(key.into(), column, Edit::Pull, element.into())
    }

    /// Appends an element to a JSON array unless it holds an equal one, as [`Session::pull`] has it.
    ///
    /// # Errors
    /// As for [`Session::push`].
    pub fn add_to_set(
        &mut self,
        key: impl Into<Key>,
        column: &str,
        element: impl Into<serde_json::Value>,
    ) -> Result<(), Error> {
        self.edit(key.into(), column, Edit::AddToSet, element.into())
    }

    /// What an array becomes is computed here, under the session's lease, and set as a whole: applied twice, it is the same,
    /// as the paper's table 2 asks of origins that might apply it twice.
    fn edit(
        &mut self,
        key: Key,
        column: &str,
        edit: Edit,
        element: serde_json::Value,
    ) -> Result<(), Error> {
        let row = self.row(&key)?;
        let old: Option<String> = row.get(column)?;
        let invalid = |why: String| Error::new(ErrorKind::Invalid, format!("{key} {column} {why}"));
        let element = Element::new(column_type(&self.schema, &key, column)?, element)
            .map_err(|error| invalid(error.0))?;
        let edited = edit.apply(&element, old.as_deref()).map_err(invalid)?;
        match edited {
            Some(new) => self.set(key, [(column, new.into())]),
            None => Ok(()),
        }
    }
}

fn exists(key: &Key) -> Error {
    Error::new(ErrorKind::Exists, format!("{key} exists already"))
}

fn missing(key: &Key) -> Error {
    Error::new(ErrorKind::Missing, format!("{key} does not exist"))
}

fn owned<'f>(fields: impl IntoIterator<Item = (&'f str, Value)>) -> Vec<(String, Value)> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
