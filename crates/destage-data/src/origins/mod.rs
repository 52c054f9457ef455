//! The stores behind the cache.
//!
//! An [`Origin`] opens connections; each belongs to one thread and blocks. A [`Writer`] applies batches together with the
//! domain's watermark, exactly once; a [`Reader`] serves misses, each with the watermark of the same snapshot. Neither
//! retries: faults are classified ([`Fault`]) and the core decides.

mod address;
mod bound;
mod error;
mod foreign;
mod ledger;
mod mongo;
mod mysql;
mod open;
mod postgres;
mod quote;
mod sqlite;
mod tls;

pub use error::{OriginError, Stage};
pub(crate) use foreign::Heard;
pub use foreign::{ChangedRows, ForeignChanges, InvalidationChange, Listener};
pub use mongo::Mongo;
pub use mysql::Mysql;
pub use open::{ADDRESSES, open};
pub use postgres::Postgres;
pub use sqlite::{Sqlite, create_example};

use crate::cells::Cell;
use crate::collection::Edge;
use crate::derived::{Answer, Query, Statement, Uses};
use crate::schema::{Schema, Table};
use destage_core::{DomainId, Fault, Lsn};
use std::sync::Arc;
use std::time::Duration;

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

    /// Whether a transaction can move the watermarks of several ordering domains, as [`Writer::apply_across`] does.
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
        Err(foreign::no_invalidation(&self.describe()))
    }

    /// Takes back what [`Origin::install_invalidation`] did, for all tables; with `is_dry`, only says what that takes.
    ///
    /// # Errors
    /// As for `install_invalidation`.
    fn remove_invalidation(&self, is_dry: bool) -> Result<InvalidationChange, OriginError> {
        let _ = is_dry;
        Err(foreign::no_invalidation(&self.describe()))
    }
}

/// Rows as of one snapshot.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// For each key asked, in order: the encoded row (see [`crate::cells`]), or `None` where there is no row.
    pub rows: Vec<Option<Box<[u8]>>>,
    /// Each domain's watermark in the same snapshot. A domain without a row stands at 0.
    pub watermarks: Watermarks,
    /// For each row, in the same order: the last group of its own that it holds, where it may be ahead of the watermark. Empty
    /// where rows and watermarks are of one snapshot.
    pub seen: Vec<Lsn>,
}

/// Watermarks by domain.
pub type Watermarks = Vec<(DomainId, Lsn)>;

/// In the place of a domain: everything up to this watermark is decided, in whatever domain it is.
pub const ALL_DOMAINS: DomainId = DomainId(u16::MAX);

/// Up to where a domain is decided by these watermarks: its own, and what is said of all.
pub fn decided_of(watermarks: &[(DomainId, Lsn)], domain: DomainId) -> Lsn {
    let concerns = |&&(d, _): &&(DomainId, Lsn)| d == domain || d == ALL_DOMAINS;
    watermarks.iter().filter(concerns).map(|&(_, lsn)| lsn).max().unwrap_or(Lsn::ZERO)
}

impl Snapshot {
    /// The number up to which the row of this index holds all groups: its own or the watermark of its domain, `watermark`.
    pub fn seen(&self, index: usize, watermark: Lsn) -> Lsn {
        self.seen.get(index).copied().unwrap_or(watermark).max(watermark)
    }

    /// The watermark of a domain.
    pub fn watermark(&self, domain: DomainId) -> Lsn {
        decided_of(&self.watermarks, domain)
    }
}

/// Encoded keys, in key order.
pub type Keys = Vec<Box<[u8]>>;

/// Rows that share the values of some key columns, in an order.
#[derive(Clone, Debug)]
pub struct Range<'a> {
    /// Key columns with their values.
    pub equal: Vec<(usize, Cell<'a>)>,
    /// The columns to order by: a number, and then a column of the key by the bytes of its canonical form; or that alone.
    pub order: Vec<usize>,
    /// Where the first of these columns begins.
    pub min: Option<Edge>,
    /// Where it ends.
    pub max: Option<Edge>,
    /// From the end to the beginning.
    pub reverse: bool,
    /// At most so many.
    pub limit: usize,
}

impl Range<'_> {
    /// The edges with the operators that keep them.
    fn edges(&self) -> impl Iterator<Item = (&'static str, &Edge)> {
        let operator = |edge: &Edge, [included, excluded]: [&'static str; 2]| match edge.is_included
        {
            true => included,
            false => excluded,
        };
        let min = self.min.iter().map(move |edge| (operator(edge, [">=", ">"]), edge));
        let max = self.max.iter().map(move |edge| (operator(edge, ["<=", "<"]), edge));
        min.chain(max)
    }

    /// Whether a column is ordered as a number.
    fn is_number(&self, column: usize) -> bool {
        self.order.len() == 2 && self.order[0] == column
    }

    /// What follows an expression in ORDER BY.
    fn direction(&self) -> &'static str {
        if self.reverse { " DESC" } else { "" }
    }
}

/// A connection for reads.
pub trait Reader: Send {
    /// The rows of `keys` (encoded key cells) with the watermarks of the same snapshot, in one statement.
    ///
    /// # Errors
    /// See [`OriginError`]; after [`Fault::Unavailable`] the connection is to be dropped.
    fn fetch(&mut self, table: &Table, keys: &[&[u8]]) -> Result<Snapshot, OriginError>;

    /// Up to `limit` encoded keys greater than `after` in key order (numbers by value, text by bytes), with the
    /// watermarks of the same snapshot. Ordered as [`crate::value::ColumnType`]s compare, see `key_order`.
    ///
    /// # Errors
    /// As for `fetch`.
    fn scan(
        &mut self,
        table: &Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Keys, Watermarks), OriginError>;

    /// The rows of a range with the watermarks of the same snapshot, in one statement.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Denied`] where the origin has no such ranges.
    fn range(&mut self, table: &Table, range: &Range<'_>) -> Result<Snapshot, OriginError> {
        let _ = range;
        Err(no_ranges(table))
    }

    /// How many rows have these values in these columns, with the watermarks of the same snapshot.
    ///
    /// # Errors
    /// As for `range`.
    fn count(
        &mut self,
        table: &Table,
        equal: &[(usize, Cell<'_>)],
    ) -> Result<(u64, Vec<(DomainId, Lsn)>), OriginError> {
        let _ = equal;
        Err(no_ranges(table))
    }

    /// Reserves `count` new values of the table's generated key; the first one is returned. They are consecutive where the
    /// origin allows it; otherwise each value is listed.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Denied`] if the table has no generated key.
    fn next_keys(&mut self, table: &Table, count: u32) -> Result<Vec<i64>, OriginError>;

    /// Which tables the query of a derived key reads.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Denied`] if the query cannot be run.
    fn uses(&mut self, _query: &Query, _schema: &Schema) -> Result<Uses, OriginError> {
        Err(OriginError::new(Fault::Denied, "the origin takes no SQL, so it has no derived keys"))
    }

    /// Has the origin prepare raw SQL, which is not run: it is one statement that writes rows. The names of the tables that it
    /// writes by itself, without what triggers and cascades add; `None` where the origin does not tell.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Denied`] if it is no such statement or cannot be prepared.
    fn check_dml(
        &mut self,
        _statement: &Statement,
        _schema: &Schema,
    ) -> Result<Option<Vec<String>>, OriginError> {
        Err(OriginError::new(Fault::Denied, "this kind of origin takes no SQL"))
    }

    /// Runs the query of a derived key on one snapshot, in which nothing can be written. `values` are its parameters' values,
    /// as cells. At the origin nothing of it is left after `limit`, which is not zero, or after the time of one operation.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Rejected`] for values that the query does not bear. [`OriginError::is_late`] past the limit.
    fn query(
        &mut self,
        query: &Query,
        _values: &[u8],
        _limit: Duration,
    ) -> Result<Answer, OriginError> {
        let message = format!("the origin takes no SQL, so it has no {}", query.key);
        Err(OriginError::new(Fault::Denied, message))
    }
}

fn no_ranges(table: &Table) -> OriginError {
    let message = format!("this kind of origin does not serve sets over {}", table.name);
    OriginError::new(Fault::Denied, message)
}

/// Who owns an origin: one row there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The journal's identity.
    pub journal: String,
    /// Raised by each claim; fences earlier owners.
    pub epoch: u64,
    /// Hash of the partition into domains.
    pub domain_map: u64,
    /// Time since the owner last showed itself, by the origin's clock. Without meaning once it has released the origin.
    pub heartbeat_age: Duration,
    /// Whether it stopped with everything decided, so that nothing of it can be stranded.
    pub released: bool,
    /// Watermarks, one per domain.
    pub watermarks: Vec<(DomainId, Lsn)>,
    /// Whether all watermarks are of the owner's epoch, as every claim leaves them.
    pub is_whole: bool,
}

/// An owner whose heartbeat is younger than this is alive.
const HEARTBEAT_ALIVE: Duration = Duration::from_secs(15);

impl Owner {
    /// Whether it has shown itself lately and has not said that it stopped.
    pub(crate) fn may_live(&self) -> bool {
        !self.released && self.heartbeat_age < HEARTBEAT_ALIVE
    }
}

/// A group on its way to the origin.
#[derive(Clone, Copy, Debug)]
pub struct GroupRef<'a> {
    /// Its number.
    pub lsn: Lsn,
    /// Its changes, see [`crate::change`].
    pub bytes: &'a [u8],
}

/// What a batch did at the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Changes that the groups held.
    pub changes: u64,
    /// Rows that were written for them; 0 if the batch turned out to have landed before.
    pub rows: u64,
}

/// A group stored at the origin because it was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedGroup {
    /// Its domain.
    pub domain: DomainId,
    /// Its number.
    pub lsn: Lsn,
    /// The parked group whose fate it shares.
    pub depends_on: Option<Lsn>,
    /// The origin's reason.
    pub reason: String,
    /// Its changes, in the self-describing form of [`crate::parked`].
    pub payload: String,
}

/// The connection for writes. One transaction at a time.
pub trait Writer: Send {
    /// The current owner, if the origin has ever had one.
    ///
    /// # Errors
    /// See [`OriginError`].
    fn owner(&mut self) -> Result<Option<Owner>, OriginError>;

    /// Makes `journal` the owner with epoch `epoch`, provided that the owner's epoch still is `expected` (`None`: no owner
    /// yet), creates the watermark rows of `domains` that are missing (at 0) and gives the others the new epoch; their
    /// sequence numbers stay.
    ///
    /// # Errors
    /// [`Fault::Fenced`] if someone else claimed it in between.
    fn claim(&mut self, claim: &Claim) -> Result<(), OriginError>;

    /// Applies the groups in order, merged as [`crate::plan`] allows, and moves the domain's watermark from `expected` to the
    /// last group. An origin may cut the batch into several transactions, each of which moves the watermark to its own last
    /// group: whatever happens, the origin holds all groups up to its watermark and nothing of those behind it. Groups that had
    /// landed before are left out.
    ///
    /// # Errors
    /// [`Fault::Rejected`]: the data of some group were refused (also: an update or delete that met no row); groups before it may
    /// have landed. [`Fault::Fenced`]: the epoch is not ours any more. If the watermark is neither `expected` nor at one of the
    /// groups nor beyond them: [`Fault::Failed`]. An outcome that is unknown is reported as [`Fault::Unavailable`]; after
    /// reconnecting, `watermark` tells.
    fn apply(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim,
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError>;

    /// Moves the watermark past one group without applying it and, if `parked` is given, stores that, in one transaction.
    ///
    /// # Errors
    /// As for `apply`.
    fn park(
        &mut self,
        claim: &WriteClaim,
        lsn: Lsn,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError>;

    /// As `apply`, for groups of several domains, in one transaction that moves all their watermarks. Where the origin's
    /// [`Origin::has_domains`] says so.
    ///
    /// # Errors
    /// As for `apply`. [`Fault::Failed`] where one watermark has moved and another has not.
    fn apply_across(
        &mut self,
        _schema: &Schema,
        _claim: &AcrossClaim<'_>,
        _groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        Err(OriginError::new(Fault::Denied, "this origin has one ordering domain only"))
    }

    /// As `park`, for one group of several domains.
    ///
    /// # Errors
    /// As for `apply_across`.
    fn park_across(
        &mut self,
        _claim: &AcrossClaim<'_>,
        _parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        Err(OriginError::new(Fault::Denied, "this origin has one ordering domain only"))
    }

    /// Moves the mark of [`ALL_DOMAINS`] from the claim's number to `upto`, in one step with a look at the domains: nothing is
    /// moved where one of them stands below its number in `floors`, since the origin went back then. Where the origin's
    /// [`Origin::has_domains`] says so.
    ///
    /// # Errors
    /// As for `apply`; [`Fault::Failed`] where the origin went back.
    fn mark_all(
        &mut self,
        _claim: &WriteClaim,
        _upto: Lsn,
        _floors: &[(DomainId, Lsn)],
    ) -> Result<(), OriginError> {
        Err(OriginError::new(Fault::Denied, "this origin has one ordering domain only"))
    }

    /// Renews the owner's heartbeat, and reads back the watermarks.
    ///
    /// # Errors
    /// [`Fault::Fenced`] if the epoch is not ours any more.
    fn heartbeat(&mut self, epoch: u64) -> Result<Watermarks, OriginError>;

    /// Says that the owner has stopped and has nothing undecided, so that another one need not wait; its next claim or
    /// heartbeat takes that back.
    ///
    /// # Errors
    /// As for `heartbeat`.
    fn release(&mut self, epoch: u64) -> Result<(), OriginError>;

    /// Everything parked, oldest first.
    ///
    /// # Errors
    /// See [`OriginError`].
    fn parked(&mut self) -> Result<Vec<ParkedGroup>, OriginError>;

    /// Takes groups out of the parked ones, each exactly once, and applies `groups` in their order, in one transaction. The
    /// watermark stays; `expected` of the claim is not looked at. It waits for the end of such a transaction of this owner's
    /// that may still be under way, so with nothing to do it tells that there is none.
    ///
    /// # Errors
    /// As for `apply`; [`Fault::Rejected`] as well if a parked group is not there any more. Nothing was done then.
    fn unpark(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim,
        parked: &[Lsn],
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let _ = (schema, claim, parked, groups);
        let message = "this origin cannot take back what it has parked; see destage_parked there";
        Err(OriginError::new(Fault::Denied, message))
    }

    /// After an `unpark` with an unknown outcome, on a new connection: brings it to an end and tells whether it was done.
    ///
    /// # Errors
    /// As for `unpark`, but [`Fault::Rejected`]; the outcome is unknown still.
    fn settle_unpark(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim,
        parked: &[Lsn],
        groups: &[GroupRef<'_>],
    ) -> Result<bool, OriginError> {
        let _ = groups;
        // Waits until the transaction in doubt has ended.
        self.unpark(schema, claim, &[], &[])?;
        Ok(!self.parked()?.iter().any(|group| parked.contains(&group.lsn)))
    }
}

/// Taking over an origin.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Our journal.
    pub journal: String,
    /// The epoch of the owner that was read, to be replaced.
    pub expected: Option<u64>,
    /// Our epoch, greater than `expected`.
    pub epoch: u64,
    /// Our partition into domains.
    pub domain_map: u64,
    /// The domains.
    pub domains: Vec<DomainId>,
}

/// What each write states about itself.
#[derive(Clone, Copy, Debug)]
pub struct WriteClaim {
    /// The domain.
    pub domain: DomainId,
    /// Our epoch.
    pub epoch: u64,
    /// The watermark before this write.
    pub expected: Lsn,
    /// Negative control for the tests: applies without looking at the watermark, so that a repeated batch counts twice.
    pub unsafe_no_watermark: bool,
}

/// What a write of several domains states about itself.
#[derive(Clone, Copy, Debug)]
pub struct AcrossClaim<'m> {
    /// Our epoch.
    pub epoch: u64,
    /// The domains, ascending.
    pub marks: &'m [Mark],
    /// As for [`WriteClaim`].
    pub unsafe_no_watermark: bool,
}

/// How a write moves the watermark of one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The domain.
    pub domain: DomainId,
    /// Its watermark before this write.
    pub expected: Lsn,
    /// Its watermark afterwards: the domain's last group of the write.
    pub upto: Lsn,
}

impl AcrossClaim<'_> {
    /// The claim for one of the domains.
    pub(crate) fn of(&self, mark: &Mark) -> WriteClaim {
        WriteClaim {
            domain: mark.domain,
            epoch: self.epoch,
            expected: mark.expected,
            unsafe_no_watermark: self.unsafe_no_watermark,
        }
    }
}
