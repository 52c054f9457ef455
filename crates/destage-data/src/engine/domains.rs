//! The ordering domains: which row belongs to which, what is parked in each, and where each stands at the origin
//! ([`destage_engine::Watermarks`]). The mark of all domains is a further row there, [`ALL_DOMAINS`].

use super::job::Io;
use crate::domains::Partition;
use crate::origins::{ALL_DOMAINS, Mark, Watermarks, decided_of};
use crate::schema::Schema;
use destage_core::{DomainId, DomainStatus, Lsn, Time};
use destage_runtime::status::DomainReport;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The domains, as the engine knows them.
#[derive(Debug)]
pub(super) struct Domains {
    partition: Arc<Partition>,
    watermarks: destage_engine::Watermarks,
    /// For pages under way, where the domains stood when they were asked for.
    asked: BTreeMap<u64, Box<[Lsn]>>,
    /// Parked groups of each domain.
    parked: Vec<u64>,
    /// Negative control: see [`crate::settings::UnsafeFlags::one_watermark`].
    unsafe_one_watermark: bool,
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
            watermarks: destage_engine::Watermarks::new(
                partition.ids().map(stored),
                stored(ALL_DOMAINS),
            ),
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

    /// Where they stand.
    #[inline]
    pub(super) fn watermarks(&self) -> &destage_engine::Watermarks {
        &self.watermarks
    }

    /// The same, to be moved.
    pub(super) fn watermarks_mut(&mut self) -> &mut destage_engine::Watermarks {
        &mut self.watermarks
    }

    /// Where a domain is known to stand.
    #[inline]
    pub(super) fn watermark(&self, domain: DomainId) -> Lsn {
        self.watermarks.at(domain)
    }

    /// Where each domain is known to stand.
    pub(super) fn floors(&self) -> Watermarks {
        self.partition.ids().zip(self.watermarks.as_slice().iter().copied()).collect()
    }

    /// A page is asked for.
    pub(super) fn ask(&mut self, request: u64) {
        self.asked.insert(request, self.watermarks.as_slice().into());
    }

    /// The page will not come.
    pub(super) fn unask(&mut self, request: u64) {
        self.asked.remove(&request);
    }

    /// What is sent moves the watermarks so; see [`destage_engine::Watermarks::marks`].
    pub(super) fn begin<'a>(
        &mut self,
        lsns: &[Lsn],
        lead: DomainId,
        across: impl Fn(Lsn) -> Option<&'a [DomainId]>,
        of: impl Fn(Lsn) -> Option<DomainId>,
    ) -> Box<[Mark]> {
        let marks = if self.unsafe_one_watermark {
            let (domain, upto) = (DomainId(0), *lsns.last().expect("batches hold groups"));
            [Mark { domain, expected: self.watermark(domain), upto }].into()
        } else {
            self.watermarks.marks(lsns, lead, across, of)
        };
        self.watermarks.begin(lsns[0], &marks);
        marks
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

    /// A page of keys came, which was read where the origin stood as `watermarks` says, after it had decided everything up
    /// to `pinned`; the core knows that everything up to `decided` is. Up to where the page shows everything, of each
    /// domain. Of groups between what is known to be decided and its watermark nobody knows yet whether they are there or
    /// parked, and either way readers see their changes.
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
        let domains = self.partition.ids().zip(self.watermarks.as_slice());
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
                watermark: self.watermark(domain).0,
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
        let (expected, upto) = self.watermarks.begin_all(now, decided)?;
        Some(Io::MarkAll { expected, upto, floors: self.floors() })
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
    fn a_page_older_than_what_was_confirmed_is_told_from_one_that_is_not() {
        let mut domains = domains(vec![(DomainId(0), Lsn(4))]);
        let found = |lsn| vec![(DomainId(0), Lsn(lsn))];
        assert_eq!(domains.seen_page(1, &found(3), Lsn(4), Lsn(9)), Err((Lsn(3), Lsn(4))));
        assert_eq!(domains.seen_page(1, &found(7), Lsn(4), Lsn(5)), Ok([Lsn(5)].into()));
    }
}
