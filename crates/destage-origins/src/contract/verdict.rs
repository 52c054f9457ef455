//! What an origin's ledger means, whatever it is kept in: whether a batch had landed before, who owns the origin, whether it
//! went back.

use super::{GroupRef, Mark, WriteClaim};
use crate::change::Op;
use crate::error::OriginError;
use crate::schema::Table;
use destage_core::{DomainId, Fault, Lsn};

/// The watermarks are not where the claim expects them but where `found` has them, with their epochs: who is right? The
/// number up to which the groups had landed before.
///
/// # Errors
/// [`Fault::Fenced`] or [`Fault::Failed`], as [`super::Writer::apply`] says; [`Fault::Unavailable`] where they are
/// where they were expected after all.
pub fn landed(
    place: &str,
    claim: &WriteClaim<'_>,
    found: impl Fn(DomainId) -> Option<(Lsn, u64)>,
    groups: &[GroupRef<'_>],
) -> Result<Lsn, OriginError> {
    if let [mark] = claim.marks {
        return reached(place, claim.epoch, mark, found(mark.domain), groups);
    }
    let stays = |mark: &Mark| found(mark.domain) == Some((mark.expected, claim.epoch));
    if let Some(first) = claim.marks.first().filter(|_| claim.marks.iter().all(stays)) {
        return Err(unmoved(place, first));
    }
    // All have moved, or something that is not ours has moved some.
    for mark in claim.marks {
        let whole = [GroupRef { lsn: mark.upto, bytes: &[] }];
        reached(place, claim.epoch, mark, found(mark.domain), &whole).map_err(
            |error| match error.fault {
                Fault::Unavailable => changed(place, mark, mark.expected),
                _ => error,
            },
        )?;
    }
    Ok(claim.marks.iter().map(|mark| mark.upto).max().unwrap_or(Lsn::ZERO))
}

/// The number up to which the groups of one domain had landed.
fn reached(
    place: &str,
    epoch: u64,
    mark: &Mark,
    found: Option<(Lsn, u64)>,
    groups: &[GroupRef<'_>],
) -> Result<Lsn, OriginError> {
    let Some((seq, theirs)) = found else {
        let message =
            format!("{place} has no watermark for domain {}: claim it first", mark.domain.0);
        return Err(OriginError::new(Fault::Failed, message));
    };
    if theirs != epoch {
        return Err(fenced(place, epoch, Some(theirs)));
    }
    let is_beyond = groups.last().is_some_and(|last| last.lsn <= seq);
    if is_beyond || groups.iter().any(|group| group.lsn == seq) {
        return Ok(seq);
    }
    if seq == mark.expected {
        return Err(unmoved(place, mark));
    }
    Err(changed(place, mark, seq))
}

/// The watermark is where the claim left it, and did not move all the same: nothing was lost, so there is nothing but to try
/// again.
fn unmoved(place: &str, mark: &Mark) -> OriginError {
    let (domain, expected) = (mark.domain.0, mark.expected.0);
    OriginError::new(
        Fault::Unavailable,
        format!(
            "{place} did not move the watermark of domain {domain} from {expected}, where it stands"
        ),
    )
}

/// The watermark is where nothing of ours has put it.
fn changed(place: &str, mark: &Mark, found: Lsn) -> OriginError {
    OriginError::new(
        Fault::Failed,
        format!(
            "{place} stands at group {} of domain {}, expected {}: it was restored or changed by hand",
            found.0, mark.domain.0, mark.expected.0
        ),
    )
}

/// Whether no domain stands below what was confirmed of it.
///
/// # Errors
/// [`Fault::Failed`] names the first that does.
pub fn check_floors(
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
pub fn outrun(place: &str) -> OriginError {
    let message = format!("another process claimed {place} meanwhile; read its owner again");
    OriginError::new(Fault::Fenced, message)
}

/// The origin is not ours any more: another owner's, or, as epochs only grow, one that was restored to before our start.
pub fn fenced(place: &str, ours: u64, theirs: Option<u64>) -> OriginError {
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

/// What kept a group from being parked. Where the origin refused that, it has to wait until somebody has mended it.
pub fn not_parked(error: OriginError) -> OriginError {
    if error.fault != Fault::Rejected {
        return error;
    }
    let message = format!(
        "the origin rejected a write and refuses to keep it in destage_parked, too, so its ordering domain waits: {}",
        error.message
    );
    OriginError { fault: Fault::Denied, message, ..error }
}

/// A statement did not touch its rows exactly. `target` is `None` where a group was to be parked or taken back.
pub fn missed(target: Option<(&Table, Op)>, expected: u64, rows: u64) -> String {
    let (table, op) = target.map_or(("destage_parked", "change"), |(table, op)| {
        let op = match op {
            Op::Insert => "insert",
            Op::Update => "update",
            Op::Delete => "delete",
            Op::End => "end",
        };
        (table.name.as_str(), op)
    });
    format!("{op} of {expected} rows of {table} met {rows}: the others do not exist there")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: u64 = 4;

    fn mark(domain: u16, expected: u64, upto: u64) -> Mark {
        Mark { domain: DomainId(domain), expected: Lsn(expected), upto: Lsn(upto) }
    }

    fn fault_of<T>(result: Result<T, OriginError>) -> Option<Fault> {
        result.err().map(|error| error.fault)
    }

    #[test]
    fn a_watermark_that_stayed_where_it_was_is_tried_again_and_one_elsewhere_went_back() {
        let groups = [6, 7].map(|lsn| GroupRef { lsn: Lsn(lsn), bytes: &[] });
        let marks = [mark(0, 5, 7)];
        let claim = WriteClaim { epoch: EPOCH, marks: &marks, unsafe_no_watermark: false };
        let landed = |found| landed("the origin", &claim, |_| Some((Lsn(found), EPOCH)), &groups);
        assert_eq!(fault_of(landed(5)), Some(Fault::Unavailable));
        assert_eq!(fault_of(landed(4)), Some(Fault::Failed));
        assert_eq!(landed(6).ok(), Some(Lsn(6)));
        assert_eq!(landed(9).ok(), Some(Lsn(9)));
    }

    #[test]
    fn a_watermark_of_another_epoch_is_never_taken_for_ours_wherever_it_stands() {
        let groups = [6, 7].map(|lsn| GroupRef { lsn: Lsn(lsn), bytes: &[] });
        let marks = [mark(0, 5, 7)];
        let claim = WriteClaim { epoch: EPOCH, marks: &marks, unsafe_no_watermark: false };
        for seq in [4, 5, 6, 7, 9] {
            let of = |epoch| {
                fault_of(landed("the origin", &claim, |_| Some((Lsn(seq), epoch)), &groups))
            };
            assert_eq!(of(EPOCH + 1), Some(Fault::Fenced), "{seq}");
            // Epochs only grow: the origin was restored to before our start.
            assert_eq!(of(EPOCH - 1), Some(Fault::Failed), "{seq}");
        }
        assert_eq!(fault_of(landed("the origin", &claim, |_| None, &groups)), Some(Fault::Failed));
    }

    #[test]
    fn of_several_watermarks_all_stay_or_none() {
        let marks = [mark(0, 5, 9), mark(1, 3, 9)];
        let claim = WriteClaim { epoch: EPOCH, marks: &marks, unsafe_no_watermark: false };
        let landed = |found: [u64; 2]| {
            let at = |domain: DomainId| Some((Lsn(found[usize::from(domain.0)]), EPOCH));
            fault_of(landed("the origin", &claim, at, &[]))
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
