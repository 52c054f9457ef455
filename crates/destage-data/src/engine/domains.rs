//! Where each ordering domain stands at the origin, and the mark that stands for all of them.
//!
//! A domain that nobody writes to stays where it is, however long ago. So that the journal's beginning can be let go of, and
//! an origin that went back is told from one that was idle, a further row at the origin, [`ALL_DOMAINS`], follows from time
//! to time: everything up to it is decided in every domain. The journal keeps what is behind it.

use super::job::Io;
use crate::domains::Partition;
use crate::origins::{ALL_DOMAINS, Mark, Watermarks, decided_of};
use crate::schema::Schema;
use destage_core::{DomainId, DomainStatus, Lsn, Span, Time};
use destage_runtime::status::DomainReport;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often the mark of all domains may move.
const MARK_EVERY: Span = Span::from_secs(1);

/// The domains, as the engine knows them.
#[derive(Debug)]
pub(super) struct Domains {
    partition: Arc<Partition>,
    /// The watermarks at the origin, after what succeeded.
    watermarks: Vec<Lsn>,
    all: AllMark,
    /// For pages under way, where the domains stood when they were asked for.
    asked: BTreeMap<u64, Box<[Lsn]>>,
    /// Parked groups of each domain.
    parked: Vec<u64>,
    /// Negative control: see [`crate::settings::UnsafeFlags::one_watermark`].
    unsafe_one_watermark: bool,
}

/// The mark of all domains at the origin.
#[derive(Debug, Default)]
struct AllMark {
    at: Lsn,
    /// Where it is being moved, or may have been: a move whose outcome is unknown is repeated as it was.
    target: Option<Lsn>,
    is_moving: bool,
    not_before: Time,
}

impl Domains {
    /// One domain, which has decided everything up to `decided`.
    pub(super) fn one(partition: Partition, decided: Lsn) -> Self {
        Self::new(Arc::new(partition), &vec![(DomainId(0), decided)])
    }

    /// Several domains, which stand as `found` says. `unsafe_one_watermark`: see
    /// [`crate::settings::UnsafeFlags::one_watermark`].
    pub(super) fn several(
        partition: Arc<Partition>,
        found: &Watermarks,
        unsafe_one_watermark: bool,
    ) -> Self {
        Self { unsafe_one_watermark, ..Self::new(partition, found) }
    }

    fn new(partition: Arc<Partition>, found: &Watermarks) -> Self {
        let stored = |domain: DomainId| {
            found.iter().find(|(d, _)| *d == domain).map_or(Lsn::ZERO, |(_, lsn)| *lsn)
        };
        Self {
            watermarks: partition.ids().map(stored).collect(),
            all: AllMark { at: stored(ALL_DOMAINS), ..AllMark::default() },
            asked: BTreeMap::new(),
            parked: vec![0; partition.len()],
            unsafe_one_watermark: false,
            partition,
        }
    }

    /// Which row belongs to which domain.
    pub(super) fn partition(&self) -> &Arc<Partition> {
        &self.partition
    }

    /// Where a domain is known to stand.
    #[inline]
    pub(super) fn watermark(&self, domain: DomainId) -> Lsn {
        self.watermarks[usize::from(domain.0)]
    }

    /// Where each domain is known to stand.
    pub(super) fn floors(&self) -> Watermarks {
        self.partition.ids().zip(self.watermarks.iter().copied()).collect()
    }

    /// A page is asked for.
    pub(super) fn ask(&mut self, request: u64) {
        self.asked.insert(request, self.watermarks.clone().into());
    }

    /// The page will not come.
    pub(super) fn unask(&mut self, request: u64) {
        self.asked.remove(&request);
    }

    /// When the mark of all domains is to move, with this much decided.
    pub(super) fn mark_at(&self, decided: Lsn) -> Option<Time> {
        let is_behind = !self.partition.is_one() && decided > self.all.at;
        (is_behind && !self.all.is_moving).then_some(self.all.not_before)
    }

    /// Up to where no domain needs the journal.
    pub(super) fn reclaimable(&self, decided: Lsn) -> Lsn {
        if self.partition.is_one() { decided } else { decided.min(self.all.at) }
    }
    /// Where each domain stands at the origin.
    pub(super) fn watermarks(&self) -> &[Lsn] {
        &self.watermarks
    }

    /// How a batch, or a group to be parked, moves the watermarks. It is led by a domain; `across` tells of a group the domains
    /// that it reaches across, if they are several, and `of` its domain.
    pub(super) fn marks<'a>(
        &self,
        lsns: &[Lsn],
        lead: DomainId,
        across: impl Fn(Lsn) -> Option<&'a [DomainId]>,
        of: impl Fn(Lsn) -> Option<DomainId>,
    ) -> Box<[Mark]> {
        assert!(lsns.is_sorted(), "a batch holds its groups in order");
        if self.unsafe_one_watermark {
            let (domain, upto) = (DomainId(0), *lsns.last().expect("batches hold groups"));
            return Box::new([Mark { domain, expected: self.watermark(domain), upto }]);
        }
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
            Mark { domain, expected: self.watermark(domain), upto }
        };
        domains.iter().map(mark).collect()
    }

    /// The origin has taken what these marks stand for.
    pub(super) fn reached(&mut self, marks: &[Mark]) {
        for mark in marks {
            let at = &mut self.watermarks[usize::from(mark.domain.0)];
            *at = mark.upto.max(*at);
        }
    }

    /// Counts a parked group for its domains.
    pub(super) fn count_parked(&mut self, schema: &Schema, bytes: &[u8]) {
        for domain in self.partition.of_group(schema, bytes).as_slice() {
            self.parked[usize::from(domain.0)] += 1;
        }
    }

    /// It is parked no more.
    pub(super) fn uncount_parked(&mut self, schema: &Schema, bytes: &[u8]) {
        for domain in self.partition.of_group(schema, bytes).as_slice() {
            let parked = &mut self.parked[usize::from(domain.0)];
            assert!(*parked > 0, "what is parked no more was counted");
            *parked -= 1;
        }
    }

    /// A page of keys came, which was read where the origin stood as `watermarks` says, after it had decided everything up to
    /// `pinned`; the core knows that everything up to `decided` is. Up to where the page shows everything, of each domain. Of
    /// groups between what is known to be decided and its watermark nobody knows yet whether they are there or parked, and
    /// either way readers see their changes.
    ///
    /// # Errors
    /// The origin went back: where it stands, and where it stood.
    pub(super) fn seen_page(
        &mut self,
        request: u64,
        watermarks: &Watermarks,
        pinned: Lsn,
        decided: Lsn,
    ) -> Result<Box<[Lsn]>, (Lsn, Lsn)> {
        let asked = self.asked.remove(&request).unwrap_or_default();
        if self.partition.is_one() {
            let found = decided_of(watermarks, DomainId(0));
            return if found < pinned {
                Err((found, pinned))
            } else {
                Ok([found.min(decided)].into())
            };
        }
        for (domain, confirmed) in self.partition.ids().zip(asked) {
            let found = decided_of(watermarks, domain);
            if found < confirmed {
                return Err((found, confirmed));
            }
        }
        let domains = self.partition.ids().zip(&self.watermarks);
        Ok(domains.map(|(domain, &known)| decided_of(watermarks, domain).min(known)).collect())
    }

    /// What is to be seen of the domains; nothing where there is one only.
    pub(super) fn reports(&self, statuses: &[DomainStatus]) -> Vec<DomainReport> {
        if self.partition.is_one() {
            return Vec::new();
        }
        let report = |domain: DomainId| {
            let at = usize::from(domain.0);
            let status = statuses.get(at);
            DomainReport {
                name: self.partition.name(domain).to_owned(),
                watermark: self.watermarks[at].0,
                dirty_groups: status.map_or(0, |status| status.dirty_groups),
                staleness_seconds: status.map_or(0.0, |status| status.staleness.as_secs_f64()),
                parked_groups: self.parked[at],
                failing: status.is_some_and(|status| status.failing),
                halted: status.is_some_and(|status| status.halt.is_some()),
            }
        };
        self.partition.ids().map(report).collect()
    }

    /// Has the mark of all domains follow, if it is time.
    pub(super) fn move_mark(&mut self, now: Time, decided: Lsn) -> Option<Io> {
        if self.mark_at(decided)? > now {
            return None;
        }
        let floors = self.floors();
        let all = &mut self.all;
        let upto = *all.target.get_or_insert(decided);
        all.is_moving = true;
        Some(Io::MarkAll { expected: all.at, upto, floors })
    }

    /// The mark has moved to there, or it is not known whether it has.
    pub(super) fn mark_moved(&mut self, now: Time, upto: Option<Lsn>) {
        self.all.is_moving = false;
        self.all.not_before = now + MARK_EVERY;
        if let Some(upto) = upto {
            assert!(upto >= self.all.at, "the mark moves forward");
            (self.all.at, self.all.target) = (upto, None);
        }
    }

    /// The last move of the mark before the end: from where, to where and with which floors, if there is any.
    pub(super) fn last_mark(&self, decided: Lsn) -> Option<(Lsn, Lsn, Watermarks)> {
        let at = self.all.target.unwrap_or(self.all.at);
        let is_behind = !self.partition.is_one() && decided > at;
        is_behind.then(|| (at, decided, self.floors()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domains(found: Watermarks) -> Domains {
        let schema = Schema::new(Vec::new(), Vec::new());
        Domains::several(Arc::new(Partition::one(&schema)), &found, false)
    }

    #[test]
    fn a_watermark_never_goes_back() {
        let mut domains = domains(vec![(DomainId(0), Lsn(4))]);
        let lsns = [Lsn(5), Lsn(6)];
        let marks = domains.marks(&lsns, DomainId(0), |_| None, |_| Some(DomainId(0)));
        let is_it = |mark: &Mark| (mark.expected, mark.upto) == (Lsn(4), Lsn(6));
        assert!(marks.len() == 1 && is_it(&marks[0]));
        domains.reached(&marks);
        domains.reached(&[Mark { domain: DomainId(0), expected: Lsn(4), upto: Lsn(5) }]);
        assert_eq!(domains.watermark(DomainId(0)), Lsn(6));
    }

    #[test]
    fn a_page_older_than_what_was_confirmed_is_told_from_one_that_is_not() {
        let mut domains = domains(vec![(DomainId(0), Lsn(4))]);
        let found = |lsn| vec![(DomainId(0), Lsn(lsn))];
        assert_eq!(domains.seen_page(1, &found(3), Lsn(4), Lsn(9)), Err((Lsn(3), Lsn(4))));
        assert_eq!(domains.seen_page(1, &found(7), Lsn(4), Lsn(5)), Ok([Lsn(5)].into()));
        assert!(domains.mark_at(Lsn(9)).is_none(), "one domain needs no mark");
    }
}
