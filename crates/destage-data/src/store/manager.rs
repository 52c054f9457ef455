//! The cache manager as the library sees it: where rows, leases and buffered writes are.
//!
//! Each operation is one atomic step on one shard and one round trip at most, so that a manager whose shards are servers,
//! with buffered writes replicated among them, can take the place of the embedded one.

use super::{Dml, Error, Key, Row, Value};
use crate::schema::Schema;
use std::sync::Arc;
use std::time::Duration;

/// Where rows are cached, leased and buffered.
pub trait CacheManager: Send + Sync {
    /// The origin's tables.
    fn schema(&self) -> &Arc<Schema>;

    /// Begins a session, whose leases end after `lifetime` whatever becomes of it.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](super::ErrorKind::Busy) with too many sessions at once, `Closed` if the manager is.
    fn begin(&self, lifetime: Duration) -> Result<Box<dyn CacheSession + '_>, Error>;

    /// Rows as they are now, each by itself, under no lease.
    ///
    /// # Errors
    /// A key names no row; the origin is needed and cannot be read; or [`ErrorKind::Busy`](super::ErrorKind::Busy) as for
    /// [`CacheManager::begin`].
    fn look(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, Error>;
}

/// A session's part of the cache manager. One that is dropped has ended without effect.
pub trait CacheSession: Send {
    /// Takes leases on rows and reads them, in one step.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](super::ErrorKind::Conflict) as table 1 of the paper says, or once the session has lost a
    /// lease or its time is up; otherwise as for [`CacheManager::look`].
    fn read(&mut self, lease: Lease, keys: &[Key]) -> Result<Vec<Option<Row>>, Error>;

    /// Takes an S lease on a cache entry, by its name.
    ///
    /// # Errors
    /// As for `read`.
    fn share(&mut self, name: &str) -> Result<(), Error>;

    /// Has the origin look at raw SQL that it has not seen before. The tables that it writes, triggers and cascades left out;
    /// `None` where the origin does not tell.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](super::ErrorKind::Invalid) if the origin does not take it as one statement that writes rows;
    /// `Unavailable` if the origin cannot be asked.
    fn check(&mut self, dml: &Dml) -> Result<Option<Vec<String>>, Error>;

    /// Takes X leases on what changes, validates the session, and makes one write group of its changes: all in one step,
    /// with which the session ends. It returns once the group is as durable as the policy's `d` asks for; under
    /// write-through, once the origin has it.
    ///
    /// # Errors
    /// As for `read`; besides that what does not fit the tables, [`ErrorKind::Exists`](super::ErrorKind::Exists), the
    /// policy's limits, and under write-through the origin's refusal: nothing was done then.
    /// [`ErrorKind::Pending`](super::ErrorKind::Pending): it was done.
    /// [`ErrorKind::Unknown`](super::ErrorKind::Unknown): that is not known.
    fn commit(&mut self, changes: &[Change]) -> Result<(), Error>;

    /// Ends the session without effect.
    fn abort(&mut self);
}

/// A right to a row until the session ends.
///
/// *Source:* Ghandeharizadeh and Nguyen, write-back with cache augmented data stores, table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lease {
    /// Shared: to read. A writer voids it, and the session is told so.
    S,
    /// Exclusive: to read and write. Nobody else gets a lease meanwhile, and single writes wait.
    X,
}

/// What a session changes, in the order in which it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Columns take values; a row that does not exist is made.
    Set {
        /// The row.
        key: Key,
        /// Columns and values.
        fields: Vec<(String, Value)>,
    },
    /// Columns become NULL, if the row exists.
    Unset {
        /// The row.
        key: Key,
        /// The columns.
        columns: Vec<String>,
    },
    /// A number grows by an amount, a decimal number in text form. NULL counts as 0.
    Inc {
        /// The row.
        key: Key,
        /// The column.
        field: String,
        /// The amount.
        by: String,
    },
    /// A row that does not exist is made. `is_known`: the session has seen that, or has deleted it. Otherwise the manager
    /// refuses the session if it knows the row, and the origin finds out if it does not.
    Insert {
        /// The row.
        key: Key,
        /// Columns and values.
        fields: Vec<(String, Value)>,
        /// Whether the session has read that it does not exist.
        is_known: bool,
    },
    /// A row ceases to exist, if it did exist.
    Delete {
        /// The row.
        key: Key,
    },
    /// Raw SQL. Nobody knows what it does to the rows that it declares until the origin has decided it.
    Execute(Dml),
}

impl Change {
    /// The row that changes; `None` for raw SQL.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Set { key, .. }
            | Self::Unset { key, .. }
            | Self::Inc { key, .. }
            | Self::Insert { key, .. }
            | Self::Delete { key } => Some(key),
            Self::Execute(_) => None,
        }
    }
}
