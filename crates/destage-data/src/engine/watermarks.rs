//! What the watermarks mean for the engine: how they move, and that none of them may have gone back.

use super::halts::with_choices;
use super::measured::Way;
use super::{Domains, Engine, FetchJob, Io};
use crate::domains::{Partition, Spread};
use crate::origins::{OriginError, Watermarks, decided_of};
use crate::schema::TableId;
use destage_core::{Core, DomainId, Fault, Lsn, StopReason, Time};
use std::sync::Arc;

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
        self.domains = Domains::several(partition, found, one);
        if !self.partition().is_one() {
            let core = Core::resume(self.now, self.core.policy().clone(), decided);
            let parallel = u32::try_from(parallel).unwrap_or(u32::MAX);
            let core = with_choices(core.with_parallel(parallel), self.partition());
            self.core = core.into();
        }
        self
    }

    /// The partition in force.
    pub fn partition(&self) -> &Arc<Partition> {
        self.domains.partition()
    }

    /// Where each domain stands at the origin.
    pub fn watermarks(&self) -> &[Lsn] {
        self.domains.watermarks().as_slice()
    }

    /// The domain of a row.
    pub(super) fn domain_of(&self, table: TableId, key: &[u8]) -> DomainId {
        self.partition().of_row(table, key)
    }

    /// The domains of a group, and how many of them have not decided it at an origin that stands as `found` says. Either all
    /// or none: nothing of ours decides it in some of them.
    pub fn undecided_in(&self, found: &Watermarks, lsn: Lsn, bytes: &[u8]) -> (Spread, usize) {
        let spread = self.partition().of_group(&self.schema, bytes);
        let open = |domain: &&DomainId| decided_of(found, **domain) < lsn;
        let count = spread.as_slice().iter().filter(open).count();
        (spread, count)
    }

    /// Whether a snapshot is older than what the origin had `confirmed` before: it was restored, or this is a replica that
    /// lags. What it lacks may be dropped here already, so nothing may be told from it.
    pub(super) fn went_back(&mut self, watermark: Lsn, confirmed: Lsn) -> bool {
        let is_older = watermark < confirmed;
        if is_older {
            tracing::error!(found = watermark.0, "the origin's watermark went back");
            self.jobs.push(Io::Stop(StopReason::OriginChanged));
        }
        is_older
    }

    /// Where a row's domain stands in a snapshot; `None` if that is before what was confirmed when the row was asked for: the
    /// origin went back.
    pub(super) fn seen(&mut self, watermarks: &Watermarks, job: &FetchJob) -> Option<Lsn> {
        let watermark = decided_of(watermarks, self.domain_of(job.table, &job.key));
        (!self.went_back(watermark, job.confirmed)).then_some(watermark)
    }

    /// The same for a page of keys: up to where it shows everything, of each domain.
    pub(super) fn seen_page(
        &mut self,
        request: u64,
        watermarks: &Watermarks,
    ) -> Option<Box<[Lsn]>> {
        let pinned = self.undecided.structural().pinned(request);
        match self.domains.seen_page(request, watermarks, pinned, self.core.decided()) {
            Ok(shown) => Some(shown),
            Err((found, confirmed)) => {
                self.went_back(found, confirmed);
                None
            }
        }
    }

    /// The heartbeat found `watermarks`, which are to be no older than what was `confirmed` before it was sent.
    pub fn shown(&mut self, now: Time, watermarks: &Watermarks, confirmed: &[Lsn]) {
        self.now = self.now.max(now);
        for (domain, &before) in self.partition().ids().zip(confirmed) {
            let found = watermarks.iter().find(|(d, _)| *d == domain);
            if found.is_some_and(|&(_, found)| self.went_back(found, before)) {
                return;
            }
        }
    }

    /// The last move of the mark before the end: from where, to where and with which floors, if there is any.
    pub fn last_mark(&self) -> Option<(Lsn, Lsn, Watermarks)> {
        let (at, upto) = self.domains.watermarks().last_all(self.core.decided())?;
        Some((at, upto, self.domains.floors()))
    }

    /// The mark of all domains has moved, or not.
    pub fn marked_all(&mut self, now: Time, upto: Lsn, result: Result<(), OriginError>) {
        self.now = self.now.max(now);
        self.domains.watermarks_mut().all_ended(self.now, result.is_ok().then_some(upto));
        match result {
            Ok(()) => {
                self.measured.origin_works(Way::Write);
                self.reclaim();
            }
            Err(error) if error.fault == Fault::Fenced => {
                self.jobs.push(Io::Stop(StopReason::Fenced));
            }
            Err(error) if error.fault == Fault::Failed => {
                tracing::error!(
                    error = error.message,
                    "the mark of all domains is not where it was left"
                );
                self.jobs.push(Io::Stop(StopReason::OriginChanged));
            }
            Err(error) => self.measured.origin_failed(self.now, Way::Write, &error),
        }
    }

    /// Lets go of the segments whose groups are decided up to here, and that tell of no token that is kept.
    pub(super) fn reclaim(&mut self) {
        let upto = self.domains.watermarks().reclaimable(self.core.decided());
        let kept = self.once.first_place().map_or(upto, |first| upto.min(Lsn(first.0 - 1)));
        self.log.reclaim(kept, self.now);
    }
}
