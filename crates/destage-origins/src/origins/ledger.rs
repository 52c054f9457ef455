//! What origins over the network make alike of Destage's own tables there: numbers, watermarks, who owns the origin.

use crate::change::Op;
use crate::contract::{AcrossClaim, GroupRef, Mark, OriginError, WriteClaim};
use crate::schema::Table;
use destage_core::{DomainId, Fault, Lsn};

/// The tables' names.
pub(super) const NAMES: [&str; 3] = ["destage_owner", "destage_watermark", "destage_parked"];

/// Whether all watermarks are of the epoch of the row of `destage_owner` that is read.
pub(super) const WHOLE: &str =
    "NOT EXISTS (SELECT 1 FROM destage_watermark w WHERE w.epoch <> destage_owner.epoch)";

/// Reads watermarks written as one text: `domain seq,domain seq`.
pub(super) fn parse_watermarks(text: Option<&str>) -> Vec<(DomainId, Lsn)> {
    let pair = |entry: &str| {
        let (domain, seq) = entry.split_once(' ')?;
        Some((DomainId(domain.parse().ok()?), Lsn(seq.parse().ok()?)))
    };
    text.unwrap_or_default().split(',').filter_map(pair).collect()
}

/// The watermark was not where the claim expected it but at `found`, a number and an epoch: who is right? The number up to
/// which the groups had landed before.
///
/// # Errors
/// [`Fault::Fenced`] or [`Fault::Failed`], as [`crate::contract::Writer::apply`] says; [`Fault::Unavailable`] where it is where it was
/// expected after all.
pub(super) fn landed(
    place: &str,
    claim: &WriteClaim,
    found: Option<(Lsn, u64)>,
    groups: &[GroupRef<'_>],
) -> Result<Lsn, OriginError> {
    let domain = claim.domain.0;
    let Some((seq, epoch)) = found else {
        let message = format!("{place} has no watermark for domain {domain}: claim it first");
        return Err(OriginError::new(Fault::Failed, message));
    };
    if epoch != claim.epoch {
        return Err(fenced(place, claim.epoch, Some(epoch)));
    }
    let is_beyond = groups.last().is_some_and(|last| last.lsn <= seq);
    if is_beyond || groups.iter().any(|group| group.lsn == seq) {
        return Ok(seq);
    }
    if seq == claim.expected {
        return Err(unmoved(place, claim));
    }
    Err(changed(place, claim, seq))
}

/// The same for a write of several domains, with the watermark and the epoch `found` for each. Done if it had landed.
///
/// # Errors
/// As for [`landed`]; also where some have moved and others have not, which nothing of ours does.
pub(super) fn landed_across(
    place: &str,
    claim: &AcrossClaim<'_>,
    found: impl Fn(DomainId) -> Option<(Lsn, u64)>,
) -> Result<(), OriginError> {
    let stays = |mark: &Mark| found(mark.domain) == Some((mark.expected, claim.epoch));
    if let [first, ..] = claim.marks
        && claim.marks.iter().all(stays)
    {
        return Err(unmoved(place, &claim.of(first)));
    }
    for mark in claim.marks {
        let (upto, claim) = ([GroupRef { lsn: mark.upto, bytes: &[] }], claim.of(mark));
        landed(place, &claim, found(mark.domain), &upto).map_err(|error| match error.fault {
            Fault::Unavailable => changed(place, &claim, claim.expected),
            _ => error,
        })?;
    }
    Ok(())
}

/// The watermark is where the claim left it, and did not move all the same: nothing was lost, so there is nothing but to try
/// again.
pub(super) fn unmoved(place: &str, claim: &WriteClaim) -> OriginError {
    let (domain, expected) = (claim.domain.0, claim.expected.0);
    OriginError::new(
        Fault::Unavailable,
        format!(
            "{place} did not move the watermark of domain {domain} from {expected}, where it stands"
        ),
    )
}

/// The watermark is where nothing of ours has put it.
fn changed(place: &str, claim: &WriteClaim, found: Lsn) -> OriginError {
    OriginError::new(
        Fault::Failed,
        format!(
            "{place} stands at group {} of domain {}, expected {}: it was restored or changed by hand",
            found.0, claim.domain.0, claim.expected.0
        ),
    )
}

/// Whether no domain stands below what was confirmed of it.
///
/// # Errors
/// [`Fault::Failed`] names the first that does.
pub(super) fn check_floors(
    place: &str,
    found: &[(DomainId, Lsn)],
    floors: &[(DomainId, Lsn)],
) -> Result<(), OriginError> {
    let at = |domain: DomainId| {
        found.iter().find(|(d, _)| *d == domain).map_or(Lsn::ZERO, |&(_, lsn)| lsn)
    };
    match floors.iter().find(|&&(domain, floor)| at(domain) < floor) {
        None => Ok(()),
        Some(&(domain, floor)) => Err(OriginError::new(
            Fault::Failed,
            format!(
                "{place} went back: domain {} stands at write {}, and was at {}",
                domain.0,
                at(domain).0,
                floor.0
            ),
        )),
    }
}

/// A claim met another owner than the one that had been read, whatever its epoch.
pub(super) fn outrun(place: &str) -> OriginError {
    let message = format!("another process claimed {place} meanwhile; read its owner again");
    OriginError::new(Fault::Fenced, message)
}

/// The origin is not ours any more: another owner's, or, as epochs only grow, one that was restored to before our start.
pub(super) fn fenced(place: &str, ours: u64, theirs: Option<u64>) -> OriginError {
    if let Some(epoch) = theirs.filter(|epoch| *epoch < ours) {
        return OriginError::new(
            Fault::Failed,
            format!("{place} went back: its epoch is {epoch}, and was {ours}"),
        );
    }
    let theirs = theirs.map_or_else(|| "none".to_owned(), |epoch| epoch.to_string());
    let message = format!("{place} has another owner: its epoch is {theirs}, ours is {ours}");
    OriginError::new(Fault::Fenced, message)
}

/// A statement did not touch its rows exactly. `target` is `None` where a group was to be parked or taken back.
pub(super) fn missed(target: Option<(&Table, Op)>, expected: u64, rows: u64) -> String {
    let (table, op) = target.map_or(("destage_parked", "change"), |(table, op)| {
        let op = match op {
            Op::Insert => "insert",
            Op::Update => "update",
            Op::Delete => "delete",
        };
        (table.name.as_str(), op)
    });
    format!("{op} of {expected} rows of {table} met {rows}: the others do not exist there")
}

/// The statement that meets one row if the claim's owner still is the owner, and holds it until the transaction ends.
pub(super) fn still_ours(claim: &WriteClaim) -> String {
    format!(
        "UPDATE destage_watermark SET seq = seq WHERE domain = {} AND epoch = {}",
        claim.domain.0,
        signed(claim.epoch)
    )
}

/// The statement that takes one group out of the parked ones, whatever its domains: no two have one number.
pub(super) fn take_parked(lsn: Lsn) -> String {
    format!("DELETE FROM destage_parked WHERE seq = {}", signed(lsn.0))
}

/// As databases hold it that know no unsigned numbers.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("sequence numbers and epochs stay below 2^63")
}

/// Back from [`signed`]; 0 for what nobody but a stranger can have written.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: u64 = 4;

    fn claim(expected: u64) -> WriteClaim {
        WriteClaim {
            domain: DomainId(0),
            epoch: EPOCH,
            expected: Lsn(expected),
            unsafe_no_watermark: false,
        }
    }

    fn fault_of<T>(result: Result<T, OriginError>) -> Option<Fault> {
        result.err().map(|error| error.fault)
    }

    #[test]
    fn a_watermark_that_stayed_where_it_was_is_tried_again_and_one_elsewhere_went_back() {
        let groups = [6, 7].map(|lsn| GroupRef { lsn: Lsn(lsn), bytes: &[] });
        let landed = |found| landed("the origin", &claim(5), Some((Lsn(found), EPOCH)), &groups);
        assert_eq!(fault_of(landed(5)), Some(Fault::Unavailable));
        assert_eq!(fault_of(landed(4)), Some(Fault::Failed));
        assert_eq!(landed(6).ok(), Some(Lsn(6)));
        assert_eq!(landed(9).ok(), Some(Lsn(9)));
    }

    #[test]
    fn of_several_watermarks_all_stay_or_none() {
        let mark = |domain, expected| Mark {
            domain: DomainId(domain),
            expected: Lsn(expected),
            upto: Lsn(9),
        };
        let marks = [mark(0, 5), mark(1, 3)];
        let claim = AcrossClaim { epoch: EPOCH, marks: &marks, unsafe_no_watermark: false };
        let landed = |found: [u64; 2]| {
            let at = |domain: DomainId| Some((Lsn(found[usize::from(domain.0)]), EPOCH));
            fault_of(landed_across("the origin", &claim, at))
        };
        assert_eq!(landed([5, 3]), Some(Fault::Unavailable));
        assert_eq!(landed([9, 9]), None);
        assert_eq!(landed([9, 3]), Some(Fault::Failed));
        assert_eq!(landed([5, 9]), Some(Fault::Failed));
        assert_eq!(landed([4, 3]), Some(Fault::Failed));
    }

    #[test]
    fn a_domain_below_what_was_confirmed_of_it_went_back() {
        let at = |domain, lsn| (DomainId(domain), Lsn(lsn));
        let found = [at(0, 5), at(1, 3)];
        let checked = |floors: &[_]| fault_of(check_floors("the origin", &found, floors));
        assert_eq!(checked(&[at(0, 5), at(1, 2)]), None);
        assert_eq!(checked(&[at(0, 5), at(1, 4)]), Some(Fault::Failed));
        assert_eq!(checked(&[at(2, 1)]), Some(Fault::Failed), "it has no row any more");
    }
}
