//! Where each ordering domain stands at the origin, and the mark that stands for all of them.
//!
//! A domain that nobody writes to stays where it is, however long ago. So that the journal's beginning can be let go of, and
//! an origin that went back is told from one that was idle, a further row at the origin, [`ALL_DOMAINS`], follows from time
//! to time: everything up to it is decided in every domain. The journal keeps what is behind it.

use super::halts::with_choices;
use super::health::Way;
use super::{Engine, FetchJob, Io};
use crate::domains::{Partition, Spread};
use crate::origins::{ALL_DOMAINS, Mark, OriginError, Watermarks, decided_of};
use destage_core::{Core, DomainId, Fault, Lsn, Span, StopReason, Time};
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
    pub(super) fn one(partition: Partition, decided: Lsn) -> Self {
        Self::new(Arc::new(partition), &vec![(DomainId(0), decided)])
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

    pub(super) fn partition(&self) -> &Arc<Partition> {
        &self.partition
    }

    pub(super) fn watermark(&self, domain: DomainId) -> Lsn {
        self.watermarks[usize::from(domain.0)]
    }

    /// Where each domain is known to stand.
    fn floors(&self) -> Watermarks {
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
}

impl Engine {
    /// The same for an origin of several ordering domains, which stand there as `found` says; up to `parallel` batches may be
    /// under way at once. To be said before anything else.
    #[must_use]
    pub fn with_domains(
        mut self,
        partition: Arc<Partition>,
        found: &Watermarks,
        parallel: usize,
    ) -> Self {
        let decided = self.core.decided();
        let one = self.config.unsafe_flags.in_force().one_watermark;
        self.domains = Domains::new(partition, found);
        self.domains.unsafe_one_watermark = one;
        if !self.domains.partition.is_one() {
            let core = Core::resume(self.now, self.core.policy().clone(), decided);
            let parallel = u32::try_from(parallel).unwrap_or(u32::MAX);
            let core = with_choices(core.with_parallel(parallel), &self.domains.partition);
            self.core = core.into();
        }
        self
    }

    /// The partition in force.
    pub fn partition(&self) -> &Arc<Partition> {
        &self.domains.partition
    }

    /// The domain of a row.
    pub(super) fn domain_of(&self, table: crate::schema::TableId, key: &[u8]) -> DomainId {
        self.domains.partition.of_row(table, key)
    }

    /// The domains of a group, and how many of them have not decided it at an origin that stands as `found` says. Either all
    /// or none: nothing of ours decides it in some of them.
    pub fn undecided_in(&self, found: &Watermarks, lsn: Lsn, bytes: &[u8]) -> (Spread, usize) {
        let spread = self.domains.partition.of_group(&self.schema, bytes);
        let open = |domain: &&DomainId| decided_of(found, **domain) < lsn;
        let count = spread.as_slice().iter().filter(open).count();
        (spread, count)
    }

    /// How a batch, or a group to be parked, moves the watermarks.
    pub(super) fn marks(&self, lsns: &[Lsn], lead: DomainId) -> Box<[Mark]> {
        if self.domains.unsafe_one_watermark {
            let (domain, upto) = (DomainId(0), *lsns.last().expect("batches hold groups"));
            return Box::new([Mark { domain, expected: self.domains.watermark(domain), upto }]);
        }
        let lead = [lead];
        let domains = self.core.domains_spanned(lsns[0]).unwrap_or(&lead);
        let mark = |&domain: &DomainId| {
            let is_in = |lsn: &&Lsn| {
                let across = self.core.domains_spanned(**lsn);
                domains.len() == 1
                    || across.map_or_else(
                        || self.core.domain_of(**lsn) == Some(domain),
                        |domains| domains.contains(&domain),
                    )
            };
            let upto = lsns.iter().rev().find(is_in).copied().unwrap_or(lsns[0]);
            Mark { domain, expected: self.domains.watermark(domain), upto }
        };
        domains.iter().map(mark).collect()
    }

    /// The origin has taken what these marks stand for.
    pub(super) fn reached(&mut self, marks: &[Mark]) {
        for mark in marks {
            let at = &mut self.domains.watermarks[usize::from(mark.domain.0)];
            *at = mark.upto.max(*at);
        }
    }

    /// Counts a parked group for its domains.
    pub(super) fn count_parked(&mut self, bytes: &[u8]) {
        let spread = self.domains.partition.of_group(&self.schema, bytes);
        for domain in spread.as_slice() {
            self.domains.parked[usize::from(domain.0)] += 1;
        }
    }

    /// It is parked no more.
    pub(super) fn uncount_parked(&mut self, bytes: &[u8]) {
        let spread = self.domains.partition.of_group(&self.schema, bytes);
        for domain in spread.as_slice() {
            self.domains.parked[usize::from(domain.0)] -= 1;
        }
    }

    /// Where a row's domain stands in a snapshot; `None` if that is before what was confirmed when the row was asked for: the
    /// origin went back.
    pub(super) fn seen(&mut self, watermarks: &Watermarks, job: &FetchJob) -> Option<Lsn> {
        let watermark = decided_of(watermarks, self.domain_of(job.table, &job.key));
        (!self.went_back(watermark, job.confirmed)).then_some(watermark)
    }

    /// The same for a page of keys: up to where it shows everything, of each domain. Of groups between what is known to be
    /// decided and its watermark nobody knows yet whether they are there or parked, and either way readers see their changes.
    pub(super) fn seen_page(
        &mut self,
        request: u64,
        watermarks: &Watermarks,
        pinned: Lsn,
    ) -> Option<Box<[Lsn]>> {
        let asked = self.domains.asked.remove(&request).unwrap_or_default();
        if self.domains.partition.is_one() {
            let watermark = decided_of(watermarks, DomainId(0));
            let is_older = self.went_back(watermark, pinned);
            return (!is_older).then(|| [watermark.min(self.core.decided())].into());
        }
        for (domain, confirmed) in self.domains.partition.ids().zip(asked) {
            if self.went_back(decided_of(watermarks, domain), confirmed) {
                return None;
            }
        }
        let domains = self.domains.partition.ids().zip(&self.domains.watermarks);
        Some(domains.map(|(domain, &known)| decided_of(watermarks, domain).min(known)).collect())
    }

    /// The heartbeat found `watermarks`, which are to be no older than what was `confirmed` before it was sent.
    pub fn shown(&mut self, now: Time, watermarks: &Watermarks, confirmed: &[Lsn]) {
        self.now = self.now.max(now);
        for (domain, &before) in self.domains.partition.ids().zip(confirmed) {
            let found = watermarks.iter().find(|(d, _)| *d == domain);
            if found.is_some_and(|&(_, found)| self.went_back(found, before)) {
                return;
            }
        }
    }

    /// What is to be seen of the domains; nothing where there is one only.
    pub(super) fn domain_reports(&self) -> Vec<DomainReport> {
        let partition = &self.domains.partition;
        if partition.is_one() {
            return Vec::new();
        }
        let statuses = self.core.domain_statuses();
        let report = |domain: DomainId| {
            let at = usize::from(domain.0);
            let status = statuses.get(at);
            DomainReport {
                name: partition.name(domain).to_owned(),
                watermark: self.domains.watermarks[at].0,
                dirty_groups: status.map_or(0, |status| status.dirty_groups),
                staleness_seconds: status.map_or(0.0, |status| status.staleness.as_secs_f64()),
                parked_groups: self.domains.parked[at],
                failing: status.is_some_and(|status| status.failing),
                halted: status.is_some_and(|status| status.halt.is_some()),
            }
        };
        partition.ids().map(report).collect()
    }

    /// Where each domain stands at the origin.
    pub fn watermarks(&self) -> &[Lsn] {
        &self.domains.watermarks
    }

    /// Has the mark of all domains follow, if it is time.
    pub(super) fn move_mark(&mut self) {
        let decided = self.core.decided();
        if self.domains.mark_at(decided).is_some_and(|at| at <= self.now) {
            let floors = self.domains.floors();
            let all = &mut self.domains.all;
            let upto = *all.target.get_or_insert(decided);
            all.is_moving = true;
            self.io.push(Io::MarkAll { expected: all.at, upto, floors });
        }
    }

    /// The last move of the mark before the end: from where, to where and with which floors, if there is any.
    pub fn last_mark(&self) -> Option<(Lsn, Lsn, Watermarks)> {
        let decided = self.core.decided();
        let at = self.domains.all.target.unwrap_or(self.domains.all.at);
        let is_behind = !self.domains.partition.is_one() && decided > at;
        is_behind.then(|| (at, decided, self.domains.floors()))
    }

    /// The mark has moved, or not.
    pub fn marked_all(&mut self, now: Time, upto: Lsn, result: Result<(), OriginError>) {
        self.now = self.now.max(now);
        self.domains.all.is_moving = false;
        self.domains.all.not_before = self.now + MARK_EVERY;
        match result {
            Ok(()) => {
                self.measured.origin_works(Way::Write);
                self.domains.all.at = upto;
                self.domains.all.target = None;
                self.reclaim();
            }
            Err(error) if error.fault == Fault::Fenced => {
                self.io.push(Io::Stop(StopReason::Fenced))
            }
            Err(error) if error.fault == Fault::Failed => {
                tracing::error!(
                    error = error.message,
                    "the mark of all domains is not where it was left"
                );
                self.io.push(Io::Stop(StopReason::OriginChanged));
            }
            Err(error) => self.measured.origin_failed(self.now, Way::Write, &error),
        }
    }
}
