//! Writing to an origin.

use super::Watermarks;
use crate::error::OriginError;
use crate::schema::Schema;
use destage_core::{DomainId, Fault, Lsn};

pub use destage_engine::Mark;
use std::time::Duration;

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
    pub epochs_agree: bool,
}

/// An owner whose heartbeat is younger than this is alive.
const HEARTBEAT_ALIVE: Duration = Duration::from_secs(15);

impl Owner {
    /// Whether it has shown itself lately and has not said that it stopped.
    pub fn may_live(&self) -> bool {
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
    /// Rows that were to end and that the origin does not let go.
    pub kept: u64,
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

    /// Applies the groups in order, merged as [`crate::plan`] allows, and moves the watermarks as the claim says, so that a
    /// batch lands once however often it is sent: groups that had landed before are left out.
    ///
    /// A batch of one domain may be cut into several transactions, each of which moves the watermark to its own last group:
    /// whatever happens, the origin holds all groups up to its watermark and nothing of those behind it. One of several
    /// domains is one transaction, which moves all their watermarks; it is sent where [`super::Origin::has_domains`] says
    /// so.
    ///
    /// A group that does nothing but end rows ([`crate::change::Op::End`]) is never rejected when it is sent by itself: where
    /// the origin does not let the row go, as for a foreign key that refers to it, the group is passed without effect. A
    /// batch with such a group is rejected where the origin says that it is not allowed, so that the groups come one by one.
    ///
    /// # Errors
    /// [`Fault::Rejected`]: the data of some group were refused (also: an update or delete that met no row); groups before
    /// it may have landed. [`Fault::Fenced`]: the epoch is not ours any more. [`Fault::Failed`]: a watermark is neither
    /// where it is expected nor at one of the groups nor beyond them, or one has moved and another has not. An outcome that
    /// is unknown is reported as [`Fault::Unavailable`]; after reconnecting, the same batch finds out.
    fn apply(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError>;

    /// Moves the watermarks past one group without applying it and, if `parked` is given, stores that, in one transaction.
    ///
    /// # Errors
    /// As for `apply`, but never [`Fault::Rejected`]: there is nothing else to do with the group, so where the origin refuses
    /// to store it, that is [`Fault::Denied`] ([`super::verdict::not_parked`]), and it is tried again.
    fn park(
        &mut self,
        claim: &WriteClaim<'_>,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError>;

    /// Moves the mark of [`super::ALL_DOMAINS`], the claim's only one, in one step with a look at the domains: nothing is
    /// moved where one of them stands below its number in `floors`, since the origin went back then. Called where
    /// [`super::Origin::has_domains`] says so.
    ///
    /// # Errors
    /// As for `apply`; [`Fault::Failed`] where the origin went back.
    fn mark_all(
        &mut self,
        _claim: &WriteClaim<'_>,
        _floors: &[(DomainId, Lsn)],
    ) -> Result<(), OriginError> {
        Err(one_domain_only())
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

    /// Everything parked, oldest first, which is at most so many bytes: an origin that is not what it seems must not fill the
    /// memory.
    ///
    /// # Errors
    /// See [`OriginError`]; [`Fault::Denied`] if it is more.
    fn parked(&mut self, bytes_max: u64) -> Result<Vec<ParkedGroup>, OriginError>;

    /// Takes groups out of the parked ones, each exactly once, and applies `groups` in their order, in one transaction. The
    /// watermark of the claim's only mark is held where it is, wherever that may be. It waits for the end of such a
    /// transaction of this owner's that may still be under way, so with nothing to do it tells that there is none.
    ///
    /// # Errors
    /// As for `apply`; [`Fault::Rejected`] as well if a parked group is not there any more. Nothing was done then.
    fn unpark(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
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
        claim: &WriteClaim<'_>,
        parked: &[Lsn],
        groups: &[GroupRef<'_>],
    ) -> Result<bool, OriginError> {
        let _ = groups;
        // Waits until the transaction in doubt has ended.
        self.unpark(schema, claim, &[], &[])?;
        Ok(!self.parked(u64::MAX)?.iter().any(|group| parked.contains(&group.lsn)))
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
pub struct WriteClaim<'m> {
    /// Our epoch.
    pub epoch: u64,
    /// The watermarks that move: one for each domain of the write, in the order of the domains; at least one.
    pub marks: &'m [Mark],
    /// Negative control for the tests: applies without looking at the watermarks, so that a repeated batch counts twice.
    pub unsafe_no_watermark: bool,
}

impl WriteClaim<'_> {
    /// The mark of a write of one domain.
    ///
    /// # Errors
    /// [`Fault::Denied`] for several.
    pub fn only(&self) -> Result<Mark, OriginError> {
        match self.marks {
            [mark] => Ok(*mark),
            _ => Err(one_domain_only()),
        }
    }
}

fn one_domain_only() -> OriginError {
    OriginError::new(Fault::Denied, "this origin writes to one ordering domain at a time")
}
