//! The stores behind the cache.
//!
//! An [`Origin`] opens connections; each belongs to one thread and blocks. A [`Writer`] applies batches together with the
//! domain's watermark, exactly once; a [`Reader`] serves misses, each with the watermark of the same snapshot. Neither
//! retries: faults are classified ([`Fault`]) and the core decides.

mod invalidation;
mod reader;
mod writer;

pub use crate::error::{OriginError, Stage};
pub use invalidation::{ChangedRows, ForeignChanges, Heard, InvalidationChange, Listener};
pub use reader::{ALL_DOMAINS, Keys, Range, Reader, Snapshot, Watermarks, decided_of};
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

    /// Sections of a settings file, for tables that cannot be reached before it says what they hold; `None` where there are no
    /// such tables. They are to be looked at by a person: what they say is guessed.
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
