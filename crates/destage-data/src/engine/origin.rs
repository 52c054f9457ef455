//! What comes back from the journal and the origin.

use super::session::{Job, Waiting};
use super::{Engine, FetchJob, Io};
use crate::origins::{Applied, OriginError, Snapshot};
use crate::resp::Reply;
use crate::schema::TableId;
use destage_core::{BatchId, ClientId, Fault, Input, Lsn, Span, StopReason, Time, UnitId};
use std::sync::Arc;

impl Engine {
    /// The journal is durable up to `upto`, after a flush that took `took`; or it failed.
    pub fn synced(&mut self, now: Time, result: Result<(Lsn, Span), Fault>) {
        self.now = self.now.max(now);
        let (upto, result) = match result {
            Ok((upto, took)) => {
                self.measured.fsync.record(self.now, took);
                self.measured.committed(self.now, upto, &self.overlay);
                (upto, Ok(()))
            }
            Err(fault) => (Lsn::ZERO, Err(fault)),
        };
        self.core.handle(self.now, Input::Synced { upto, result });
        self.pump();
        self.run_ready();
    }

    /// A fetch brought the rows of `jobs`, in order.
    pub fn fetched(&mut self, now: Time, jobs: Vec<FetchJob>, mut snapshot: Snapshot) {
        self.now = self.now.max(now);
        self.measured.origin_works();
        let mut seen = Vec::with_capacity(jobs.len());
        for job in &jobs {
            let Some(watermark) = self.seen(&snapshot.watermarks, job) else {
                let error = OriginError::new(Fault::Unavailable, "the origin went back");
                return self.fetch_failed(now, jobs, &error);
            };
            seen.push(watermark);
        }
        let rows = std::mem::take(&mut snapshot.rows);
        for (index, ((job, row), watermark)) in jobs.into_iter().zip(rows).zip(seen).enumerate() {
            let Some(job) = self.hold_back(job) else { continue };
            let FetchJob { unit, table, key, .. } = job;
            let watermark = snapshot.seen(index, watermark);
            if let Some(part) = self.schema.table(table).part {
                self.install_members(unit, part, &key, row.as_deref(), watermark);
                self.installed(unit, table, &key);
                continue;
            }
            let row = match self.config.unsafe_flags.no_overlay {
                true => row,
                false => self.overlay.overlay(&self.schema, unit, table, &key, row, watermark),
            };
            self.rows.set(unit, row.as_deref());
            self.overlay.unchain(unit);
            self.ages.note(self.now, table, unit);
            self.installed(unit, table, &key);
        }
        self.run_ready();
    }

    /// What was fetched is in its place.
    fn installed(&mut self, unit: UnitId, table: TableId, key: &[u8]) {
        let identity = self.rows.identity(table, key);
        let result = Ok(self.rows.bytes(unit));
        self.core.handle(self.now, Input::Fetched { unit, result, identity });
        self.pump();
    }

    /// Whether a snapshot is older than what the origin had `confirmed` before: it was restored, or this is a replica that
    /// lags. What it lacks may be dropped here already, so nothing may be told from it.
    pub(super) fn went_back(&mut self, watermark: Lsn, confirmed: Lsn) -> bool {
        let is_older = watermark < confirmed;
        if is_older {
            tracing::error!(found = watermark.0, "the origin's watermark went back");
            self.io.push(Io::Stop(StopReason::OriginChanged));
        }
        is_older
    }

    /// A fetch failed.
    pub fn fetch_failed(&mut self, now: Time, jobs: Vec<FetchJob>, error: &OriginError) {
        self.now = self.now.max(now);
        self.measured.origin_failed(self.now, error);
        for FetchJob { unit, table, key, .. } in jobs {
            self.page_starts.remove(&unit);
            self.decisions.fetch_failed(unit);
            let identity = self.rows.identity(table, &key);
            let result = Err(error.fault);
            self.core.handle(self.now, Input::Fetched { unit, result, identity });
            self.pump();
        }
        self.run_ready();
    }

    /// A batch was applied, or not.
    pub fn destaged(&mut self, now: Time, batch: BatchId, result: Result<Applied, OriginError>) {
        self.now = self.now.max(now);
        let lsns = self.core.batch(batch);
        let (first, last) = (lsns[0], *lsns.last().expect("batches hold groups"));
        let count = lsns.len();
        let marks = self.moving.remove(&first).expect("every batch was sent");
        let stamps = self.measured.batch_ended(first);
        let result = match result {
            Ok(applied) => {
                self.reached(&marks);
                self.measured.origin_works();
                self.measured.batch_applied(self.now, stamps, count, applied);
                Ok(())
            }
            Err(error) => {
                if error.fault == Fault::Rejected && first == last {
                    self.reasons.insert(first, error.message);
                } else if error.fault != Fault::Rejected {
                    self.measured.origin_failed(self.now, &error);
                }
                Err(error.fault)
            }
        };
        self.core.handle(self.now, Input::Destaged { batch, result });
        self.pump();
        self.derived_decided();
        self.run_ready();
    }

    /// A group was moved past, or not.
    pub fn parked(&mut self, now: Time, lsn: Lsn, result: Result<(), OriginError>) {
        self.now = self.now.max(now);
        let marks = self.moving.remove(&lsn).expect("every parking was sent");
        let result = match result {
            Ok(()) => {
                self.reached(&marks);
                self.note_parked(lsn);
                Ok(())
            }
            Err(error) => {
                self.measured.origin_failed(self.now, &error);
                Err(error.fault)
            }
        };
        self.core.handle(self.now, Input::Parked { lsn, result });
        self.pump();
        self.derived_decided();
        self.run_ready();
    }

    /// Keeps a parked group's changes for readers whose rows are fetched again.
    fn note_parked(&mut self, lsn: Lsn) {
        if self.through.contains_key(&lsn) {
            return;
        }
        self.reasons.remove(&lsn);
        self.overlay.end_park(lsn);
        let Some(group) = self.overlay.get(lsn) else { return };
        let bytes: Arc<[u8]> = (&*group.bytes).into();
        let units = self.units_of(&bytes);
        self.count_parked(&bytes);
        for &unit in &units {
            self.overlay.park(unit, lsn, &bytes);
        }
        self.structural.park(&self.schema, &bytes);
        self.decisions.know(lsn, units, Ok(bytes));
    }

    /// Takes the job that a client waits for, if it still does.
    pub(super) fn take_job(&mut self, request: u64) -> Option<(ClientId, Job)> {
        let client = ClientId((request >> 32) as u32);
        let session = self.session(client)?;
        match &session.waiting {
            Some(Waiting::Job { request: waits, .. }) if waits.0 == request => {}
            _ => return None,
        }
        match session.waiting.take() {
            Some(Waiting::Job { job, .. }) => Some((client, job)),
            _ => None,
        }
    }

    /// Keys were reserved, or not.
    pub fn keys_reserved(
        &mut self,
        now: Time,
        request: u64,
        result: Result<Vec<i64>, OriginError>,
    ) {
        self.now = self.now.max(now);
        let Some((client, Job::NextKeys { table, count })) = self.take_job(request) else { return };
        let result = result.map(|keys| self.beyond_buffered(table, keys));
        match result {
            Ok(Some(keys)) => {
                let Some(session) = self.session(client) else { return };
                let mut reply = Reply::new(&mut session.out, session.protocol);
                if let ([key], 1) = (&keys[..], count) {
                    reply.integer(*key);
                } else {
                    reply.array(keys.len());
                    keys.iter().for_each(|&key| reply.integer(key));
                }
            }
            Ok(None) => {
                // A row with such a key is buffered: ask again, beyond it.
                let request = self.request_id(client.0);
                self.io.push(Io::NextKeys { request: request.0, table, count });
                if let Some(session) = self.session(client) {
                    let job = Job::NextKeys { table, count };
                    session.waiting = Some(Waiting::Job { request, job });
                }
            }
            Err(error) => self.job_failed(client, &error),
        }
        self.runnable.push_back(client);
        self.run_ready();
    }

    pub(super) fn job_failed(&mut self, client: ClientId, error: &OriginError) {
        self.measured.origin_failed(self.now, error);
        let word = if error.fault == Fault::Denied { "DENIED" } else { "UNAVAILABLE" };
        let message = format!("{word} {}: {}", self.config.origin, error.message);
        if let Some(mut session) = self.sessions[client.0 as usize].take() {
            self.fail(&mut session, &message);
            self.sessions[client.0 as usize] = Some(session);
        }
    }
}
