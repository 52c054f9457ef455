//! Where the ordering domains of a front end stand at its origin, what is on its way there, and up to where no domain needs
//! the journal.
//!
//! A domain that nobody writes to stays where it is, however long ago. So that the journal's beginning can be let go of, and
//! an origin that went back is told from one that was idle, a mark of all domains follows at the origin from time to time:
//! everything up to it is decided in every domain. The journal keeps what is behind it. One domain needs no such mark.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use destage_core::{DomainId, Lsn, Span, Time};

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

/// The watermarks: see the module.
#[derive(Debug)]
pub struct Watermarks {
    /// By domain, after what succeeded.
    reached: Vec<Lsn>,
    /// How they move by what is under way, by its first group.
    moving: BTreeMap<Lsn, Box<[Mark]>>,
    all: AllMark,
}

/// The mark of all domains.
#[derive(Debug, Default)]
struct AllMark {
    at: Lsn,
    /// Where it is being moved, or may have been: a move whose outcome is unknown is repeated as it was.
    target: Option<Lsn>,
    is_moving: bool,
    not_before: Time,
}

impl Watermarks {
    /// Each domain stands where the origin says, and so does the mark of all.
    pub fn new(reached: impl IntoIterator<Item = Lsn>, all: Lsn) -> Self {
        let all = AllMark { at: all, ..AllMark::default() };
        Self { reached: reached.into_iter().collect(), moving: BTreeMap::new(), all }
    }

    /// Where a domain is known to stand.
    #[inline]
    pub fn at(&self, domain: DomainId) -> Lsn {
        self.reached[usize::from(domain.0)]
    }

    /// Where each domain is known to stand.
    pub fn as_slice(&self) -> &[Lsn] {
        &self.reached
    }

    /// How a batch, or a group to be parked, moves the watermarks. It is led by a domain; `across` tells of a group the domains
    /// that it spans, if they are several, and `of` its domain.
    ///
    /// # Panics
    /// If there is no group, or they are not in order.
    pub fn marks<'a>(
        &self,
        lsns: &[Lsn],
        lead: DomainId,
        across: impl Fn(Lsn) -> Option<&'a [DomainId]>,
        of: impl Fn(Lsn) -> Option<DomainId>,
    ) -> Box<[Mark]> {
        assert!(lsns.is_sorted(), "a batch holds its groups in order");
        let lead = [lead];
        let domains = across(lsns[0]).unwrap_or(&lead);
        let mark = |&domain: &DomainId| {
            let is_in = |lsn: &&Lsn| {
                domains.len() == 1
                    || across(**lsn).map_or_else(
                        || of(**lsn) == Some(domain),
                        |domains| domains.contains(&domain),
                    )
            };
            let upto = lsns.iter().rev().find(is_in).copied().unwrap_or(lsns[0]);
            Mark { domain, expected: self.at(domain), upto }
        };
        domains.iter().map(mark).collect()
    }

    /// What is sent, from this group on, moves the watermarks so.
    ///
    /// # Panics
    /// If it is under way already.
    pub fn begin(&mut self, first: Lsn, marks: &[Mark]) {
        let before = self.moving.insert(first, marks.into());
        assert!(before.is_none(), "a group is sent once at a time");
    }

    /// It has come back: the origin has taken it, or not.
    ///
    /// # Panics
    /// If it was not under way.
    pub fn ended(&mut self, first: Lsn, is_taken: bool) {
        let marks = self.moving.remove(&first).expect("only what was sent comes back");
        for mark in marks.iter().filter(|_| is_taken) {
            let at = &mut self.reached[usize::from(mark.domain.0)];
            *at = mark.upto.max(*at);
        }
    }

    /// Whether nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.moving.is_empty()
    }

    /// When the mark of all domains is to move, with this much decided.
    pub fn all_due(&self, decided: Lsn) -> Option<Time> {
        let is_behind = !self.is_one() && decided > self.all.at;
        (is_behind && !self.all.is_moving).then_some(self.all.not_before)
    }

    /// Has the mark of all domains follow, if it is time: from where, to where.
    pub fn begin_all(&mut self, now: Time, decided: Lsn) -> Option<(Lsn, Lsn)> {
        if self.all_due(decided)? > now {
            return None;
        }
        self.all.is_moving = true;
        Some((self.all.at, *self.all.target.get_or_insert(decided)))
    }

    /// The mark has moved to there, or it is not known whether it has.
    ///
    /// # Panics
    /// If it has moved back.
    pub fn all_ended(&mut self, now: Time, upto: Option<Lsn>) {
        self.all.is_moving = false;
        self.all.not_before = now + MARK_EVERY;
        if let Some(upto) = upto {
            assert!(upto >= self.all.at, "the mark moves forward");
            (self.all.at, self.all.target) = (upto, None);
        }
    }

    /// The last move of the mark before the end: from where, to where, if there is any.
    pub fn last_all(&self, decided: Lsn) -> Option<(Lsn, Lsn)> {
        let at = self.all.target.unwrap_or(self.all.at);
        (!self.is_one() && decided > at).then_some((at, decided))
    }

    /// Up to where no domain needs the journal.
    pub fn reclaimable(&self, decided: Lsn) -> Lsn {
        if self.is_one() { decided } else { decided.min(self.all.at) }
    }

    fn is_one(&self) -> bool {
        self.reached.len() == 1
    }
}

/// How often the mark of all domains may move.
const MARK_EVERY: Span = Span::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const A: DomainId = DomainId(0);
    const B: DomainId = DomainId(1);
    const NOW: Time = Time::from_secs(9);

    fn of(lsn: Lsn) -> Option<DomainId> {
        Some(DomainId((lsn.0 % 2) as u16))
    }

    #[test]
    fn a_watermark_follows_what_the_origin_took_and_never_goes_back() {
        let mut watermarks = Watermarks::new([Lsn(4)], Lsn::ZERO);
        let marks = watermarks.marks(&[Lsn(5), Lsn(6)], A, |_| None, of);
        assert_eq!(&marks[..], [Mark { domain: A, expected: Lsn(4), upto: Lsn(6) }]);
        watermarks.begin(Lsn(5), &marks);
        assert!(!watermarks.is_quiet());
        watermarks.ended(Lsn(5), false);
        assert_eq!((watermarks.at(A), watermarks.is_quiet()), (Lsn(4), true));
        watermarks.begin(Lsn(5), &marks);
        watermarks.ended(Lsn(5), true);
        watermarks.begin(Lsn(3), &[Mark { domain: A, expected: Lsn(2), upto: Lsn(3) }]);
        watermarks.ended(Lsn(3), true);
        assert_eq!(watermarks.as_slice(), [Lsn(6)]);
    }

    #[test]
    fn a_batch_across_domains_moves_each_to_its_own_last_group() {
        let watermarks = Watermarks::new([Lsn(2), Lsn(1)], Lsn::ZERO);
        let both = [A, B];
        let across = |lsn: Lsn| (lsn == Lsn(3)).then_some(&both[..]);
        let marks = watermarks.marks(&[Lsn(3), Lsn(4), Lsn(6)], A, across, of);
        let upto: Vec<_> = marks.iter().map(|mark| (mark.domain, mark.upto.0)).collect();
        assert_eq!(upto, [(A, 6), (B, 3)]);
    }

    #[test]
    fn the_mark_of_all_follows_and_a_move_in_doubt_is_repeated_as_it_was() {
        let mut watermarks = Watermarks::new([Lsn(2), Lsn(1)], Lsn(1));
        assert_eq!((watermarks.reclaimable(Lsn(9)), watermarks.all_due(Lsn(1))), (Lsn(1), None));
        assert_eq!(watermarks.begin_all(NOW, Lsn(5)), Some((Lsn(1), Lsn(5))));
        assert_eq!(watermarks.begin_all(NOW, Lsn(7)), None, "one at a time");
        watermarks.all_ended(NOW, None);
        assert_eq!(watermarks.begin_all(NOW, Lsn(7)), None, "not so soon again");
        assert_eq!(watermarks.last_all(Lsn(7)), Some((Lsn(5), Lsn(7))));
        let later = NOW + MARK_EVERY;
        assert_eq!(watermarks.begin_all(later, Lsn(7)), Some((Lsn(1), Lsn(5))));
        watermarks.all_ended(later, Some(Lsn(5)));
        assert_eq!(
            (watermarks.reclaimable(Lsn(9)), watermarks.reclaimable(Lsn(3))),
            (Lsn(5), Lsn(3))
        );
    }

    #[test]
    fn one_domain_needs_no_mark() {
        let mut watermarks = Watermarks::new([Lsn(2)], Lsn::ZERO);
        assert_eq!(watermarks.begin_all(NOW, Lsn(7)), None);
        assert_eq!((watermarks.last_all(Lsn(7)), watermarks.reclaimable(Lsn(7))), (None, Lsn(7)));
    }

    #[test]
    #[should_panic(expected = "once at a time")]
    fn what_is_under_way_is_not_sent_again() {
        let mut watermarks = Watermarks::new([Lsn(2)], Lsn::ZERO);
        watermarks.begin(Lsn(3), &[]);
        watermarks.begin(Lsn(3), &[]);
    }
}
