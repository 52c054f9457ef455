//! What comes back from the journal and the origin.

use super::claims::{Holder, Values};
use super::command::EXEC;
use super::measured::Way;
use super::session::{Job, Waiting};
use super::undecided::Cascade;
use super::{Engine, FetchJob, Io};
use crate::origins::{Applied, Keys, NextKeys, OriginError, Snapshot, Watermarks};
use crate::resp::Reply;
use crate::schema::TableId;
use destage_core::{
    BatchId, ClientId, Fault, Input, Lsn, RequestId, Span, StopReason, Time, UnitId,
};

impl Engine {
    /// The journal is durable up to `upto`, after a flush that took `took`; or it failed.
    pub fn synced(&mut self, now: Time, result: Result<(Lsn, Span), Fault>) {
        self.now = self.now.max(now);
        let (upto, result) = match result {
            Ok((upto, took)) => {
                self.measured.committed(self.now, upto, took, &self.overlay);
                (upto, Ok(()))
            }
            Err(fault) => (Lsn::ZERO, Err(fault)),
        };
        self.core.handle(self.now, Input::Synced { upto, result });
        self.tokens_committed();
        self.pump();
        self.run_ready();
    }

    /// The journal failed while the core did not wait for it.
    pub fn journal_failed(&mut self) {
        self.jobs.push(Io::Stop(StopReason::JournalFailed));
    }

    /// A fetch brought the rows of `jobs`, in order.
    pub fn fetched(&mut self, now: Time, jobs: Vec<FetchJob>, mut snapshot: Snapshot) {
        self.now = self.now.max(now);
        self.measured.origin_works(Way::Read);
        let mut seen = Vec::with_capacity(jobs.len());
        for job in &jobs {
            let Some(watermark) = self.seen(&snapshot.watermarks, job) else {
                let error = OriginError::new(Fault::Unavailable, "the origin went back");
                return self.fetch_failed(now, jobs, &error);
            };
            seen.push(watermark);
        }
        let rows = std::mem::take(&mut snapshot.rows);
        debug_assert_eq!(
            rows.len(),
            jobs.len(),
            "a reader tells of each row that it was asked for"
        );
        for (index, ((job, row), watermark)) in jobs.into_iter().zip(rows).zip(seen).enumerate() {
            let Some(job) = self.hold_back(job) else { continue };
            let FetchJob { unit, table, key, .. } = job;
            let watermark = snapshot.seen(index, watermark);
            if let Some(place) = self.raw_sql_behind(unit, table, &snapshot.watermarks) {
                // It looked at the origin before raw SQL that covers it was applied there.
                self.rows.pages().end(unit);
                self.fetch_behind(unit, place);
                continue;
            }
            if let Some(part) = self.schema.table(table).part {
                self.install_members(unit, part, &key, row.as_deref(), watermark);
                self.freshness.fetched(self.now, table, unit);
                self.installed(unit, table, &key);
                continue;
            }
            let row = if self.config.unsafe_flags.in_force().no_overlay {
                row
            } else {
                self.overlay.overlay(&self.schema, unit, table, &key, row, watermark)
            };
            self.rows.set(unit, row.as_deref());
            self.overlay.unchain(unit);
            self.freshness.fetched(self.now, table, unit);
            self.drop_at_end(unit);
            self.installed(unit, table, &key);
        }
        self.pump();
        self.run_ready();
    }

    /// What was fetched is in its place.
    fn installed(&mut self, unit: UnitId, table: TableId, key: &[u8]) {
        let identity = self.rows.identity(table, key);
        let result = Ok(self.rows.bytes(unit));
        self.core.handle(self.now, Input::Fetched { unit, result, identity });
        self.pump();
    }

    /// A fetch failed.
    pub fn fetch_failed(&mut self, now: Time, jobs: Vec<FetchJob>, error: &OriginError) {
        self.now = self.now.max(now);
        if let Some(first) = jobs.first() {
            self.measured.read_failed(self.now, &self.schema.table(first.table).name, error);
        }
        for job in self.put_off_rows(jobs, error) {
            self.row_failed(&job, error.fault);
        }
        self.run_ready();
    }

    /// A batch was applied, or not.
    pub fn destaged(&mut self, now: Time, batch: BatchId, result: Result<Applied, OriginError>) {
        self.now = self.now.max(now);
        let lsns = self.core.batch(batch).to_vec();
        debug_assert!(lsns.is_sorted(), "a batch holds its groups in order");
        let (first, last) = (lsns[0], *lsns.last().expect("batches hold groups"));
        let count = lsns.len();
        self.domains.watermarks_mut().ended(first, result.is_ok());
        let cascade = match &result {
            Ok(_) => self.undecided.take_cascades(&lsns),
            Err(_) => Cascade::default(),
        };
        let stamps = self.measured.batch_ended(first);
        let result = match result {
            Ok(applied) => {
                self.measured.origin_works(Way::Write);
                self.measured.batch_applied(self.now, stamps, count, applied);
                self.freshness.sweep_mut().refused(self.now, applied.kept);
                self.undecided.forget_reasons(&lsns);
                Ok(())
            }
            Err(error) => {
                if error.fault == Fault::Rejected && first == last {
                    self.undecided.rejected(first, error.clone());
                } else if error.fault != Fault::Rejected {
                    self.measured.origin_failed(self.now, Way::Write, &error);
                }
                Err(error.fault)
            }
        };
        self.core.handle(self.now, Input::Destaged { batch, result });
        self.cascaded(&cascade);
        self.pump();
        self.derived_decided();
        self.raw_sql_decided();
        self.decide_tokens();
        self.pump();
        self.run_ready();
    }

    /// A group was moved past, or not.
    pub fn parked(&mut self, now: Time, lsn: Lsn, result: Result<(), OriginError>) {
        self.now = self.now.max(now);
        self.domains.watermarks_mut().ended(lsn, result.is_ok());
        let result = match result {
            Ok(()) => {
                self.measured.origin_works(Way::Write);
                self.note_parked(lsn);
                Ok(())
            }
            Err(error) => {
                self.measured.origin_failed(self.now, Way::Write, &error);
                if error.fault == Fault::Denied {
                    self.decisions.note_denial(&error.message);
                }
                Err(error.fault)
            }
        };
        self.core.handle(self.now, Input::Parked { lsn, result });
        self.pump();
        self.derived_decided();
        self.raw_sql_decided();
        self.decide_tokens();
        self.pump();
        self.run_ready();
    }

    /// Keeps a parked group's changes for readers whose rows are fetched again.
    fn note_parked(&mut self, lsn: Lsn) {
        if !self.undecided.parked(lsn) {
            return;
        }
        self.overlay.end_park(lsn);
        let Some(group) = self.overlay.get(lsn) else { return };
        let bytes: Box<[u8]> = (&*group.bytes).into();
        self.domains.count_parked(&self.schema, &bytes);
        self.show_parked(lsn, &bytes);
    }

    /// Keys were reserved, or not.
    pub fn keys_reserved(
        &mut self,
        now: Time,
        request: u64,
        result: Result<NextKeys, OriginError>,
    ) {
        self.now = self.now.max(now);
        let request = RequestId(request);
        let Err(result) = self.take_numbers(request, result) else { return self.run_ready() };
        if let Err(error) = &result
            && let Some(&Waiting::Job { job: Job::NextKeys { table, column, count, .. }, .. }) =
                self.sessions.waiting(request)
        {
            let again = || Io::NextKeys { request: request.0, table, column, count };
            if self.put_off_question(request, table, error, again) {
                return;
            }
        }
        let Some((client, Job::NextKeys { table, column, count, decided })) =
            self.sessions.take_job(request)
        else {
            return;
        };
        let are_new = result.as_ref().is_ok_and(|next| next.are_new);
        let result = result.map(|next| self.beyond_buffered(table, next.keys));
        match result {
            Ok(Some(keys)) => {
                if are_new {
                    self.absent.hand_out(table, &keys, decided);
                }
                let Some(session) = self.sessions.get_mut(client) else { return };
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
                let waiting = self.ask_next_keys(client, table, column, count);
                if let Some(session) = self.sessions.get_mut(client) {
                    session.waiting = Some(waiting);
                }
            }
            Err(error) => self.job_failed(client, table, &error),
        }
        self.sessions.ready(client);
        self.run_ready();
    }

    pub(super) fn job_failed(&mut self, client: ClientId, table: TableId, error: &OriginError) {
        let error = self.read_failed(table, error);
        if let Some(mut session) = self.sessions.take(client) {
            self.fail(&mut session, error);
            self.sessions.restore(client, session);
        }
    }

    /// The origin says which rows have the values that were asked for, in their order, or failed to.
    pub fn holders_found(
        &mut self,
        now: Time,
        request: u64,
        result: Result<Vec<Option<Box<[u8]>>>, OriginError>,
    ) {
        self.now = self.now.max(now);
        if let Err(error) = &result
            && let Some(Waiting::Holders { questions, .. }) =
                self.sessions.waiting(RequestId(request))
        {
            let (table, questions) = (table_of(questions), questions.clone());
            let again = || Io::Holders { request, questions };
            if self.put_off_question(RequestId(request), table, error, again) {
                return;
            }
        }
        if let Some((client, mut session)) = self.sessions.take_waiting(RequestId(request)) {
            let Some(Waiting::Holders { raw, questions, .. }) = session.waiting.take() else {
                unreachable!("it was asked for holders")
            };
            match result {
                Ok(found) => {
                    let answers = questions.into_iter().zip(found);
                    let answers =
                        answers.map(|(values, key)| (values.clone(), self.holder(&values, key)));
                    session.holders.extend(answers);
                    session.pinned.push(request);
                    session.put_back(&raw);
                    session.asks_anew = true;
                }
                Err(error) => {
                    self.undecided.claims_mut().unpin(request);
                    if *raw == *EXEC {
                        self.end_multi(&mut session);
                    }
                    let error = self.read_failed(table_of(&questions), &error);
                    self.fail(&mut session, error);
                }
            }
            self.sessions.restore_answered(client, session);
        }
        self.run_ready();
    }

    fn holder(&self, (table, ..): &Values, key: Option<Box<[u8]>>) -> Holder {
        match key {
            None => Holder::None,
            Some(key) if self.undecided.claims().changes(&(*table, key.clone())) => {
                Holder::Changed(key)
            }
            Some(key) => Holder::Row(key),
        }
    }

    /// A page of keys came, or failed.
    pub fn scanned(
        &mut self,
        now: Time,
        request: u64,
        result: Result<(Keys, Watermarks), OriginError>,
    ) {
        self.now = self.now.max(now);
        let Some(result) = self.take_keys(request, result) else {
            self.pump();
            return self.run_ready();
        };
        if let Err(error) = &result
            && let Some(Waiting::Job { job: Job::Scan(scan), .. }) =
                self.sessions.waiting(RequestId(request))
        {
            let (table, page) = (scan.table, scan.question(request));
            if self.put_off_question(RequestId(request), table, error, || page) {
                return;
            }
        }
        let Some((client, Job::Scan(scan))) = self.sessions.take_job(RequestId(request)) else {
            self.domains.unask(request);
            return self.undecided.structural_mut().unpin(request);
        };
        match result {
            Err(error) => {
                self.domains.unask(request);
                self.job_failed(client, scan.table, &error);
            }
            Ok((page, watermarks)) => {
                let table = scan.table;
                match self.seen_page(request, &watermarks) {
                    Some(shown) => self.reply_page(client, (request, scan), page, &shown),
                    None => {
                        let error = OriginError::new(Fault::Unavailable, "the origin went back");
                        self.job_failed(client, table, &error);
                    }
                }
            }
        }
        self.undecided.structural_mut().unpin(request);
        self.sessions.ready(client);
        self.run_ready();
    }
}

/// The table that the first question is about.
fn table_of(questions: &[Values]) -> TableId {
    questions.first().map_or(TableId(0), |values| values.0)
}
