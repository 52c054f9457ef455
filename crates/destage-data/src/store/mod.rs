//! Destage as a library: sessions over the rows of an origin, written back behind the program.
//!
//! A [`Store`] is the engine behind `destage serve`, inside the program: rows are cached, writes are journaled and
//! acknowledged, and the origin follows, with the same promises (`docs/SEMANTICS.md`). A [`Session`] reads and writes any
//! rows; it takes effect as a whole or not at all, as if it were alone, and becomes one transaction at the origin.
//!
//! ```
//! use destage_data::store::{Error, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let file = folder.path().join("bank.db");
//! # rusqlite::Connection::open(&file)?.execute_batch(
//! #     "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
//! #      INSERT INTO accounts VALUES (1, 100), (2, 0);")?;
//! # let (origin, data) = (format!("sqlite:{}", file.display()), folder.path().join("data"));
//! let store = Options::new(origin, data).open()?;
//! let left = store.session(|s| {
//!     let balance: i64 = s.row(("accounts", 1))?.get("balance")?;
//!     if balance < 30 {
//!         return Err(Error::abort("not enough money"));
//!     }
//!     s.inc(("accounts", 1), "balance", -30)?;
//!     s.inc(("accounts", 2), "balance", 30)?;
//!     Ok(balance - 30)
//! })?;
//! assert_eq!(left, 70);
//! store.close()?; // destages what is left
//! # Ok(())
//! # }
//! ```
//!
//! Sessions hold leases, as table 1 of the paper has them: an S lease on what they read, an X lease on what they write.
//! Neither makes anybody wait: who comes too late tries again, after a while, and [`Store::session`] does so by itself. A
//! session that takes longer than its leases last is fenced and tried again, too.
//!
//! The blocking calls here are for threads; a store is shared among them by reference or in an [`std::sync::Arc`]. An
//! asynchronous program runs a whole session by its runtime's call for what blocks, such as Tokio's `spawn_blocking`, never
//! between two awaits: the example `async_orders` does.
//!
//! *Source:* Ghandeharizadeh and Nguyen, write-back with cache augmented data stores: sessions and leases in section 2,
//! Design 2 in section 3.

mod arrays;
mod checker;
mod dml;
mod embedded;
mod entries;
mod error;
mod manager;
mod options;
mod retry;
mod session;
mod shelf;
mod value;
mod view;
mod wire;

pub use crate::change::Op;
pub use crate::schema::Schema;
pub use crate::settings::{DomainSettings, Settings};
pub use destage_runtime::status::Report;
pub use dml::{Declared, Dml, Parameter};
pub use embedded::Embedded;
pub use entries::{
    ColumnChange, Computed, ENTRIES_BYTES_MAX_DEFAULT, Entries, Entry, Merge, RowChange,
};
pub use error::{Error, ErrorKind};
pub use manager::{CacheManager, CacheSession, Change, Lease};
pub use options::{LEASE_DEFAULT, LEASE_MAX, LEASE_MIN, Options, RETRY_TIMEOUT_DEFAULT};
pub use session::Session;
pub use value::{FromValue, Key, KeyPart, KeyParts, Row, Value};

use destage_runtime::admin::{Caller, Control};
use retry::Attempts;
use std::time::Duration;
use wire::{Answer, push_request};

/// A session that was tried so often in vain takes X leases on what it reads: those who come later fail instead.
const ATTEMPTS_UNTIL_X: u32 = 3;

/// An origin with its cache. See the [module](self).
///
/// Dropped without [`Store::close`], it stops at once; what is not destaged is in the journal, and the next store on the
/// same folder destages it.
pub struct Store<M: CacheManager = Embedded> {
    manager: M,
    lease: Duration,
    retry_timeout: Duration,
}

impl<M: CacheManager> Store<M> {
    /// A store over a cache manager. *Units:* leases last `lease`; sessions are tried again for `retry_timeout`.
    pub fn over(manager: M, lease: Duration, retry_timeout: Duration) -> Self {
        Self { manager, lease, retry_timeout }
    }

    /// The origin's tables.
    pub fn schema(&self) -> &Schema {
        self.manager.schema()
    }

    /// Runs a session: `work` reads and writes through it, and when it returns `Ok`, all of that takes effect in one step,
    /// or `work` is run again from the start, since another session was faster. When it returns an error, nothing takes
    /// effect. The result is returned once the session is as durable as the policy's `d` asks for.
    ///
    /// # Errors
    /// What `work` returned; [`ErrorKind::Conflict`] or [`ErrorKind::Busy`] once [`Options::retry_timeout`] is over; and what
    /// [`CacheSession::commit`] says. Nothing was done, but for two kinds:
    ///
    /// - [`ErrorKind::Pending`]: it is done, and must not be repeated;
    /// - [`ErrorKind::Unknown`]: that is not known, and has to be read before it is repeated.
    pub fn session<T>(
        &self,
        mut work: impl FnMut(&mut Session<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut attempts = Attempts::new(self.retry_timeout);
        loop {
            let least = if attempts.failed() < ATTEMPTS_UNTIL_X { Lease::S } else { Lease::X };
            let (is_lost, done) = match self.manager.begin(self.lease) {
                Ok(held) => self.attempt(held, least, &mut work),
                Err(error) => (false, Err(error)),
            };
            match done {
                Err(error) if is_lost || error.is_retryable() => {
                    if !attempts.wait() {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }

    /// Whether another session was faster, and what came of this attempt otherwise.
    fn attempt<T>(
        &self,
        held: Box<dyn CacheSession + '_>,
        least: Lease,
        work: &mut impl FnMut(&mut Session<'_>) -> Result<T, Error>,
    ) -> (bool, Result<T, Error>) {
        let mut session = Session::new(self.manager.schema().clone(), held, least);
        let worked = work(&mut session);
        let is_lost = session.is_lost();
        let done = match worked {
            Ok(value) if !is_lost => session.commit().map(|()| value),
            Ok(_) => Err(Error::new(ErrorKind::Conflict, "a conflict was not passed on")),
            Err(error) => Err(error),
        };
        (is_lost, done)
    }

    /// A row as it is now; `None` if it does not exist.
    ///
    /// # Errors
    /// As for [`CacheManager::look`].
    pub fn read(&self, key: impl Into<Key>) -> Result<Option<Row>, Error> {
        self.manager.look(&[key.into()]).map(|mut rows| rows.pop().flatten())
    }

    /// Several rows in one round trip, each as it is at some moment of the call; for one moment of all, use a session.
    ///
    /// # Errors
    /// As for [`CacheManager::look`].
    pub fn read_all(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, Error> {
        self.manager.look(keys)
    }
}

impl Store {
    /// Opens a store with the defaults: see [`Options::new`].
    ///
    /// # Errors
    /// As for [`Options::open`].
    pub fn open(
        origin: impl Into<String>,
        data: impl Into<std::path::PathBuf>,
    ) -> Result<Self, Error> {
        Options::new(origin, data).open()
    }

    /// Where Redis clients connect, with [`Options::listen`].
    pub fn address(&self) -> Option<&str> {
        self.manager.server().address()
    }

    /// The state, as `destage status` shows it.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`].
    pub fn status(&self) -> Result<Report, Error> {
        Ok(self.manager.server().control().report()?)
    }

    /// Changes the policy while sessions go on, in the words of `destage policy`; the policy now in force is returned.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: a change does not fit, and nothing has changed.
    pub fn change_policy(&self, changes: &[&str]) -> Result<String, Error> {
        let changes: Vec<String> = changes.iter().map(|&change| change.to_owned()).collect();
        let changed =
            self.manager.server().control().command("policy", &changes, &Caller::patient())?;
        Ok(changed["policy"].as_str().unwrap_or_default().to_owned())
    }

    /// Stops destaging, until [`Store::resume`].
    ///
    /// # Errors
    /// [`ErrorKind::Closed`].
    pub fn pause(&self) -> Result<(), Error> {
        self.command("pause", &[])
    }

    /// Destages again; also ends the back-off after a failure, and the halt of ordering domains. A domain that halted at a
    /// write which the origin rejected sends it once more, and halts again if it is rejected again.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`].
    pub fn resume(&self) -> Result<(), Error> {
        self.command("resume", &[])
    }

    /// As [`Store::resume`], but what ordering domains halted at is parked if the origin rejects it once more, and they go
    /// on; [`Store::parked`] then decides on it. `DESTAGE RESUME PARK` for Redis clients.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`].
    pub fn resume_parking(&self) -> Result<(), Error> {
        self.command("resume", &["park"])
    }

    /// Waits until everything written so far is durable in the journal.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`].
    pub fn flush(&self) -> Result<(), Error> {
        self.command("flush", &[])
    }

    /// Waits until everything written so far is at the origin, or rejected by it and parked there: for as long as the origin
    /// needs, also while it is away or destaging is paused. [`Store::drain_within`] waits no longer than it is told.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`].
    pub fn drain(&self) -> Result<(), Error> {
        self.command("drain", &[])
    }

    /// As [`Store::drain`], but for so long at most. What is not destaged by then is destaged later all the same.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`]; [`ErrorKind::Closed`].
    pub fn drain_within(&self, limit: Duration) -> Result<(), Error> {
        self.manager.server().control().command("drain", &[], &Caller::within(limit))?;
        Ok(())
    }

    /// Shows or decides on what the origin has rejected, in the words of `destage parked`: `LIST`, `SHOW id`, `RETRY id`,
    /// `RETRY ALL`, `EDIT id changes`, `SKIP id`. Waits for as long as the origin needs.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for other words; [`ErrorKind::Timeout`] with the reason for which nothing was done.
    pub fn parked(&self, words: &[&str]) -> Result<serde_json::Value, Error> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        Ok(self.manager.server().control().command("parked", &words, &Caller::patient())?)
    }

    fn command(&self, name: &str, words: &[&str]) -> Result<(), Error> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        self.manager.server().control().command(name, &words, &Caller::patient())?;
        Ok(())
    }

    /// Drops the cached copies of rows that another program has changed at the origin; how many there were is returned. A row
    /// with changes that are not destaged is fetched again, and they are laid over what the origin has now.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: a key names no row; [`ErrorKind::Busy`] with too many sessions at once.
    pub fn invalidate(&self, keys: &[Key]) -> Result<u64, Error> {
        let mut words: Vec<&[u8]> = vec![b"DESTAGE", b"INVALIDATE"];
        words.extend(keys.iter().map(|key| key.0.as_bytes()));
        match self.one(&words)? {
            Answer::Int(count) => Ok(count.cast_unsigned()),
            _ => Ok(0),
        }
    }

    /// Reserves `count` (1 to 10,000) values of a key that the origin generates, for rows to be inserted.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where there is no such key, or the count does not fit; [`ErrorKind::Unavailable`];
    /// [`ErrorKind::Busy`] with too many sessions at once.
    pub fn next_keys(&self, table: &str, count: u32) -> Result<Vec<i64>, Error> {
        let count = count.to_string();
        let number = |answer| if let Answer::Int(key) = answer { Some(key) } else { None };
        match self.one(&[b"DESTAGE", b"NEXTID", table.as_bytes(), count.as_bytes()])? {
            Answer::Array(Some(keys)) => Ok(keys.into_iter().filter_map(number).collect()),
            answer => Ok(number(answer).into_iter().collect()),
        }
    }

    fn one(&self, words: &[&[u8]]) -> Result<Answer, Error> {
        let mut requests = Vec::new();
        push_request(&mut requests, words);
        let answer = self.manager.ask(requests, 1)?.pop();
        answer.ok_or_else(|| Error::closed(None))?.accepted()
    }

    /// Ends the store: destages what is dirty, for as long as the settings allow, and gives the origin back.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] with what is left in the journal, or the reason for which the store had failed before.
    pub fn close(self) -> Result<(), Error> {
        Ok(self.manager.server().stop(true)?)
    }
}
