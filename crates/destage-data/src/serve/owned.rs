//! Whose the origin is, and where its ordering domains stand: at the start.

use super::ServeError;
use crate::domains::{MAP_OF_ONE, Partition};
use crate::engine::Engine;
use crate::origins::{
    ALL_DOMAINS, Claim, Mark, Origin, OriginError, Owner, Watermarks, WriteClaim, Writer,
    decided_of,
};
use crate::schema::Schema;
use crate::settings::Settings;
use destage_core::{DomainId, Lsn};
use destage_runtime::exit;

/// The partition that the settings ask for, if this origin can keep it.
pub(super) fn partition(
    settings: &Settings,
    origin: &dyn Origin,
    schema: &Schema,
) -> Result<Partition, ServeError> {
    let usage = |message: String| ServeError::new(exit::USAGE, message);
    let partition = Partition::new(schema, &settings.domains, &settings.tables).map_err(usage)?;
    if !partition.is_one() && !origin.has_domains() {
        return Err(usage(format!(
            "{} cannot move the watermarks of several ordering domains in one transaction: leave [[domain]] out",
            origin.describe()
        )));
    }
    Ok(partition)
}

/// The newest write that the origin has decided, in whatever domain.
pub(super) fn newest(owner: Option<&Owner>) -> Lsn {
    let watermarks = owner.map(|owner| &owner.watermarks[..]).unwrap_or_default();
    watermarks.iter().map(|&(_, lsn)| lsn).max().unwrap_or(Lsn::ZERO)
}

/// Everything up to here is decided, in every domain.
pub(super) fn decided(owner: Option<&Owner>) -> Lsn {
    let Some(owner) = owner else { return Lsn::ZERO };
    match owner.domain_map {
        MAP_OF_ONE => decided_of(&owner.watermarks, DomainId(0)),
        _ => stored(&owner.watermarks, ALL_DOMAINS),
    }
}

fn stored(watermarks: &Watermarks, domain: DomainId) -> Lsn {
    watermarks.iter().find(|(d, _)| *d == domain).map_or(Lsn::ZERO, |&(_, lsn)| lsn)
}

/// A domain of this owner's of which the origin does not say how far it is, which every claim makes it say.
pub(super) fn lacking(owner: &Owner, partition: &Partition) -> Option<DomainId> {
    let is_there = |domain: &DomainId| owner.watermarks.iter().any(|(found, _)| found == domain);
    let mut domains: Vec<DomainId> = match owner.domain_map {
        MAP_OF_ONE => vec![DomainId(0)],
        map if map == partition.map() => partition.ids().chain([ALL_DOMAINS]).collect(),
        _ => vec![ALL_DOMAINS],
    };
    domains.retain(|domain| !is_there(domain));
    domains.first().copied()
}

/// Why the origin was not claimed.
pub(super) enum Refusal {
    Origin(OriginError),
    /// The domains are others than before, and writes up to the second number are not known to be decided behind the first.
    Undecided(Lsn, Lsn),
}

impl From<OriginError> for Refusal {
    fn from(error: OriginError) -> Self {
        Self::Origin(error)
    }
}

impl Refusal {
    pub(super) fn in_words(&self, origin: &str) -> ServeError {
        match self {
            Self::Origin(error) => error.clone().into(),
            Self::Undecided(decided, last) => ServeError::new(
                exit::USAGE,
                format!(
                    "the ordering domains have changed while writes {} to {} are undecided at {origin}: a partition may only \
                     change when nothing is on its way. Start with the [[domain]] sections it was written with, let it \
                     drain (DESTAGE DRAIN) and stop it, then start with the new ones",
                    decided.0 + 1,
                    last.0
                ),
            ),
        }
    }
}

/// Claims the origin for a partition, and returns our epoch: `epoch`, or the one behind it. `last` is the newest write that
/// exists anywhere.
pub(super) fn claim(
    writer: &mut dyn Writer,
    partition: &Partition,
    journal: &str,
    owner: Option<Owner>,
    last: Lsn,
    epoch: u64,
) -> Result<u64, Refusal> {
    let mut domains: Vec<DomainId> = partition.ids().collect();
    if !partition.is_one() {
        domains.push(ALL_DOMAINS);
    }
    let expected = owner.as_ref().map(|owner| owner.epoch);
    let mut claim = |domain_map: u64| {
        let journal = journal.to_owned();
        let domains = domains.clone();
        writer.claim(&Claim { journal, expected, epoch, domain_map, domains })
    };
    let Some(owner) = owner.filter(|owner| owner.domain_map != partition.map()) else {
        claim(partition.map())?;
        return Ok(epoch);
    };
    let decided = decided(Some(&owner));
    if decided < last {
        return Err(Refusal::Undecided(decided, last));
    }
    // First what was decided by the old domains is said of all, then the new ones begin there: wherever this is cut short, the
    // next start finds one or the other whole.
    claim(owner.domain_map)?;
    // Until then the owner before may have moved them on.
    let owner = writer.owner()?.unwrap_or(owner);
    let (decided, last) = (self::decided(Some(&owner)), newest(Some(&owner)).max(last));
    if decided < last {
        return Err(Refusal::Undecided(decided, last));
    }
    let at = stored(&owner.watermarks, ALL_DOMAINS);
    if !partition.is_one() && decided > at {
        let marks = [Mark { domain: ALL_DOMAINS, expected: at, upto: decided }];
        let claim = WriteClaim { epoch, marks: &marks, unsafe_no_watermark: false };
        writer.mark_all(&claim, &owner.watermarks)?;
    }
    let epoch = epoch + 1;
    let (journal, expected) = (journal.to_owned(), Some(epoch - 1));
    let domain_map = partition.map();
    writer.claim(&Claim { journal, expected, epoch, domain_map, domains })?;
    tracing::info!(
        domains = partition.len(),
        "the ordering domains have changed; everything before was decided"
    );
    Ok(epoch)
}

/// Whether a write of the journal is still to be decided.
///
/// # Errors
/// Some of its domains have decided it and others have not, which nothing of ours does.
pub(super) fn is_undecided(
    engine: &Engine,
    found: &Watermarks,
    lsn: Lsn,
    payload: &[u8],
) -> Result<bool, ServeError> {
    let partition = engine.partition();
    let (spread, count) = engine.undecided_in(found, lsn, payload);
    let domains = spread.as_slice();
    if count > 0 && count < domains.len() {
        let names: Vec<&str> = domains.iter().map(|&domain| partition.name(domain)).collect();
        return Err(ServeError::new(
            exit::ORIGIN_WENT_BACK,
            format!(
                "the origin was changed by hand: write {} of the domains {} is decided in some of them only",
                lsn.0,
                names.join(", ")
            ),
        ));
    }
    Ok(count > 0)
}
