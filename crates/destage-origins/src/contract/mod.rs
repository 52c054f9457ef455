//! The stores behind the cache, and what whoever adds one must guarantee.
//!
//! An [`Origin`] opens connections; each belongs to one thread and blocks. A [`Writer`] applies batches together with the
//! watermarks of their domains, exactly once; a [`Reader`] serves misses, each with the watermarks of the same snapshot.
//! Neither retries: faults are classified ([`Fault`]) and the core decides.
//!
//! # What an origin guarantees
//!
//! Beside the user's data, it keeps a *ledger*: the owner, a watermark for each ordering domain, the parked groups. What the
//! ledger means is judged in [`verdict`].
//!
//! 1. *A batch lands once.* The data and the watermarks change in one transaction, or the data tell themselves which groups
//!    they hold ([`Snapshot::seen`]). A batch that is sent again changes nothing, whether nothing, some or all of it had
//!    landed.
//! 2. *In order, and whole.* At any moment, and after any crash, the origin holds every group up to its watermark and
//!    nothing of those behind it. A rejected group leaves nothing of itself.
//! 3. *Durable.* What is reported as done survives a crash of the origin, whatever its settings say.
//! 4. *One owner.* A claim replaces the owner that was read and no other. Once it has, the owner before can change nothing
//!    more, not even by what it sent earlier.
//! 5. *Set back is noticed.* A watermark that nothing of ours can have left there is [`Fault::Failed`], and nothing is
//!    changed.
//! 6. *Parked groups are kept* as they were given until they are taken back, each exactly once.
//! 7. *Reads tell their age.* Rows come with the watermarks of the same snapshot, from the owner's writes and all others'.
//! 8. *Secrets stay.* No message holds a password, nor a value of a row that was rejected.
//!
//! # Faults
//!
//! | fault | when | what follows |
//! |---|---|---|
//! | [`Fault::Rejected`] | the data of a group are refused, for as long as the data around them stay | the group is parked |
//! | [`Fault::Unavailable`] | unreachable, too slow, locked, full; or the outcome is unknown | it is sent again |
//! | [`Fault::Denied`] | a person must change something: a right, a setting, a table that is gone | it is sent again later |
//! | [`Fault::Fenced`] | the epoch is not ours any more | the process ends |
//! | [`Fault::Failed`] | the origin went back, or a group does not follow the format | it ends, or waits for a person |
//!
//! `destage_origins::conformance` (with the feature of that name) checks what of it can be seen without a crash. An origin that
//! speaks SQL brings a dialect, a connection and a way to send a transaction; the rest is in `origins/ledger`.
//!
//! [`Fault`]: destage_core::Fault
//! [`Fault::Rejected`]: destage_core::Fault::Rejected
//! [`Fault::Unavailable`]: destage_core::Fault::Unavailable
//! [`Fault::Denied`]: destage_core::Fault::Denied
//! [`Fault::Fenced`]: destage_core::Fault::Fenced
//! [`Fault::Failed`]: destage_core::Fault::Failed

mod invalidation;
mod reader;
pub mod verdict;
mod writer;

pub use crate::error::{OriginError, Stage};
pub use crate::ttl::EndedAsk;
pub use invalidation::{ChangedRows, ForeignChanges, InvalidationChange, Listener, Notices};
pub use reader::{
    ALL_DOMAINS, EndedKeys, Keys, NextKeys, Range, Reader, Snapshot, Watermarks, decided_of,
};
pub use writer::{Applied, Claim, GroupRef, Mark, Owner, ParkedGroup, WriteClaim, Writer};

use crate::schema::{Schema, Table};
use std::sync::Arc;

/// A store to cache.
pub trait Origin: Send + Sync {
    /// What it is, for people: address and database, never a password.
    fn describe(&self) -> String;

    /// Reads the catalogue. Destage's own tables (`destage_owner`, `destage_watermark`, `destage_parked`) are left out.
    ///
    /// # Errors
    /// Unreachable, or the catalogue may not be read.
    fn schema(&self) -> Result<Schema, OriginError>;

    /// Sections of a settings file, for tables that cannot be reached before it says what they hold; `None` where there are
    /// no such tables. They are to be looked at by a person: what they say is guessed.
    ///
    /// # Errors
    /// Unreachable, or the tables may not be read.
    fn suggested_settings(&self, schema: &Schema) -> Result<Option<String>, OriginError> {
        let _ = schema;
        Ok(None)
    }

    /// How many [`Writer`]s may apply batches of different ordering domains at once; 1 unless the origin says otherwise.
    fn writers_max(&self) -> usize {
        1
    }

    /// Whether a transaction can move the watermarks of several ordering domains, as [`Writer::apply`] then has to.
    fn has_domains(&self) -> bool {
        false
    }

    /// Opens a connection for reads.
    ///
    /// # Errors
    /// Unreachable or refused.
    fn reader(&self) -> Result<Box<dyn Reader>, OriginError>;

    /// Opens the connection for writes and creates Destage's own tables where they are missing. The origin's durability
    /// is forced on for it. Nothing is claimed yet.
    ///
    /// # Errors
    /// Unreachable or refused; where tables may not be created, the message holds the statements to run.
    fn writer(&self) -> Result<Box<dyn Writer>, OriginError>;

    /// Opens a connection on which the origin tells what others change from now on; `None` if it tells of no table.
    ///
    /// # Errors
    /// Unreachable or refused.
    fn listener(&self, schema: &Arc<Schema>) -> Result<Option<Box<dyn Listener>>, OriginError> {
        let _ = schema;
        Ok(None)
    }

    /// Has the origin tell what others change in these tables; with `is_dry`, only says what that takes.
    ///
    /// # Errors
    /// [`Fault::Denied`] if the origin cannot, or the user may not; unreachable. Nothing was done then.
    fn install_invalidation(
        &self,
        tables: &[&Table],
        is_dry: bool,
    ) -> Result<InvalidationChange, OriginError> {
        let _ = (tables, is_dry);
        Err(invalidation::no_invalidation(&self.describe()))
    }

    /// Takes back what [`Origin::install_invalidation`] did, for all tables; with `is_dry`, only says what that takes.
    ///
    /// # Errors
    /// As for `install_invalidation`.
    fn remove_invalidation(&self, is_dry: bool) -> Result<InvalidationChange, OriginError> {
        let _ = is_dry;
        Err(invalidation::no_invalidation(&self.describe()))
    }
}
