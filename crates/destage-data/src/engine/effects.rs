//! Carrying out what the core asks for.

use super::asking::is_prefetch;
use super::command::{Category, EXEC, Verb, find};
use super::key::format_key;
use super::once::command::Once;
use super::rows::{Kind, dedup};
use super::session::{Session, WaitKind, Waiting};
use super::{Engine, FetchJob, Groups, Io, overlay};
use crate::cells::Reader;
use crate::key_text::show;
use crate::origins::{OriginError, ParkedGroup};
use crate::resp::{Args, Code, Reply, ReplyError, parse};
use crate::schema::TableId;
use destage_core::{
    Access, BatchId, ClientId, DomainId, Fault, Input, Intent, Lsn, Outcome, Refusal, RequestId,
    UnitId,
};

/// Keys of one write in the log.
const KEYS_LOGGED_MAX: usize = 5;

impl Engine {
    /// The core lets a waiting request go on.
    pub(super) fn execute_waiting(&mut self, request: RequestId, access: Access, observed: Lsn) {
        if is_prefetch(request) {
            return;
        }
        let Some((client, mut session)) = self.sessions.take_waiting(request) else {
            unreachable!("a request that nobody waits for was cancelled")
        };
        match session.waiting.take() {
            Some(Waiting::Units { raw, .. }) => {
                self.execute_raw(client, &mut session, &raw, access, observed);
            }
            Some(Waiting::Settling { raw, .. }) => {
                self.execute_settled(client, &mut session, &raw, observed);
            }
            other => unreachable!("{other:?} waits for no units"),
        }
        self.sessions.restore_answered(client, session);
    }

    /// Executes a request, read before, from its bytes.
    fn execute_raw(
        &mut self,
        client: ClientId,
        session: &mut Session,
        raw: &[u8],
        access: Access,
        observed: Lsn,
    ) {
        let mut args = Args::default();
        parse(raw, &self.config.limits, &mut args).expect("the request was read before");
        let mut list = Vec::new();
        args.to_slices(raw, &mut list);
        let (once, list) = Once::split(&list);
        let spec = find(list).expect("the command was found before");
        if spec.verb == Verb::Exec {
            return self.exec_now(client, session, access, observed);
        }
        if session.is_leased() {
            return self.leased_now(client, session, raw, observed);
        }
        let mut prepared = std::mem::take(&mut self.scratch.prepared);
        prepared.read(&self.schema, spec, list).expect("the arguments were checked before");
        prepared.once = once;
        self.locate(&mut prepared, session.attempts);
        let all: Vec<UnitId> =
            prepared.keys().map(|(table, key)| self.rows.find_or_insert(table, key)).collect();
        let units = dedup(&all);
        let intent = self.rules().intent(std::iter::once(&prepared));
        if self.lacks_space(std::iter::once(&prepared))
            || self.is_leased_to_another(session, std::iter::once(&prepared))
        {
            self.release_locks(&units, access);
            self.wait_for_lease(client, session, raw);
        } else if matches!(intent, Intent::Write { fetch: false, .. }) || self.are_present(&units) {
            self.execute(client, session, &prepared, &all, &units, access, observed, raw);
        } else if !self.schema.collections.is_empty() {
            // At once: what has come is kept for it while the rest is fetched, however little room there is.
            self.release_locks(&units, access);
            self.data_prepared(client, session, &prepared, raw);
        } else {
            self.begin_anew(session, &units, access, raw);
        }
        self.scratch.prepared = prepared;
    }

    /// Whether the rows that a waiting request was given are still there: what another one caused at the origin may have
    /// dropped them since.
    pub(super) fn are_present(&self, units: &[UnitId]) -> bool {
        units.iter().all(|&unit| self.core.is_present(unit))
    }

    /// Has a request that waited ask for its rows again.
    pub(super) fn begin_anew(
        &mut self,
        session: &mut Session,
        units: &[UnitId],
        access: Access,
        raw: &[u8],
    ) {
        self.release_locks(units, access);
        session.inbox.put_back(raw);
        session.asks_anew = true;
    }

    /// The rows hold what only the origin knew. Reads are executed at once; writes start anew, since they have to be admitted.
    fn execute_settled(
        &mut self,
        client: ClientId,
        session: &mut Session,
        raw: &[u8],
        observed: Lsn,
    ) {
        let mut args = Args::default();
        parse(raw, &self.config.limits, &mut args).expect("the request was read before");
        let mut list = Vec::new();
        args.to_slices(raw, &mut list);
        let is_read = find(&list).is_ok_and(|spec| spec.category == Category::Read);
        session.settled = true;
        if is_read {
            return self.execute_raw(client, session, raw, Access::Back, observed);
        }
        session.inbox.put_back(raw);
        session.asks_anew = true;
    }

    pub(super) fn refuse_waiting(&mut self, request: RequestId, refusal: Refusal) {
        if let Some((client, mut session)) = self.sessions.take_waiting(request) {
            let raw = match session.waiting.take() {
                Some(Waiting::Units { raw, .. } | Waiting::Settling { raw, .. }) => raw,
                other => unreachable!("{other:?} waits for no units"),
            };
            // EXEC has said what becomes of the whole; a refused command of a session under leases leaves that to EXEC.
            if *raw == *EXEC {
                self.end_multi(&mut session);
            }
            self.refused(&mut session, refusal);
            self.sessions.restore_answered(client, session);
        }
    }

    /// Tells a client that its request was refused.
    pub(super) fn refused(&mut self, session: &mut Session, refusal: Refusal) {
        let policy = self.core.policy();
        let message = match refusal {
            Refusal::Stale => ReplyError::new(
                Code::Stale,
                format!(
                    "the oldest write has waited for {} longer than D = {:.1} s: no write is acknowledged until \
                 it is up again; reads of cached rows go on",
                    self.config.origin,
                    policy.staleness.as_secs_f64()
                ),
            ),
            Refusal::Full => ReplyError::new(
                Code::Full,
                format!(
                    "the limit of {} bytes of buffered writes is reached; try again when some are destaged, or raise \
                 --dirty-limit",
                    policy.limits.dirty_bytes_max
                ),
            ),
            Refusal::Busy => ReplyError::fixed(Code::Busy, "too many requests wait; try again"),
            Refusal::Unavailable => ReplyError::new(
                Code::Unavailable,
                format!(
                    "the row is not cached and {} cannot be read: {}",
                    self.config.origin,
                    self.measured.read_error()
                ),
            ),
            Refusal::Denied => ReplyError::new(
                Code::Denied,
                format!(
                    "the row is not cached and {} refuses to be read: {}",
                    self.config.origin,
                    self.measured.read_error()
                ),
            ),
            Refusal::Stopped => {
                ReplyError::fixed(Code::Stopped, "this server has stopped; see its log")
            }
        };
        self.fail(session, message);
    }

    pub(super) fn waited(&mut self, request: RequestId, outcome: Outcome) {
        self.finish_wait(request, Some(outcome));
    }

    /// Ends a WAITAOF, DESTAGE WAIT, FLUSH or DRAIN; without an outcome it timed out.
    fn finish_wait(&mut self, request: RequestId, outcome: Option<Outcome>) {
        let Some((client, mut session)) = self.sessions.take_waiting(request) else { return };
        let Some(Waiting::Wait { kind, deadline, .. }) = session.waiting.take() else {
            unreachable!("only waits end so")
        };
        if let Some(deadline) = deadline {
            self.sessions.clear_deadline(client, deadline);
        }
        let last = session.last_write;
        let mut reply = Reply::new(&mut session.out, session.protocol);
        match (kind, outcome) {
            (WaitKind::Aof, done) => {
                reply.array(2);
                reply.integer(i64::from(done.is_some()));
                reply.integer(0);
            }
            // Parked is decided: what others were refused concerns this client no more than their successes.
            (WaitKind::Flushed | WaitKind::Drained, Some(_)) => reply.ok(),
            (WaitKind::Decided(_), done) => reply.integer(i64::from(done.is_some())),
            (_, Some(Outcome::Parked)) => reply.error(&ReplyError::new(
                Code::Parked,
                format!(
                    "the origin rejected write {}; it is kept in destage_parked with the reason",
                    last.0
                ),
            )),
            (WaitKind::Destaged, done) => reply.integer(i64::from(done.is_some())),
            (WaitKind::Flushed, None) => {
                reply.error(&ReplyError::fixed(
                    Code::Timeout,
                    "not everything is in the journal yet; see DESTAGE STATUS",
                ));
            }
            (WaitKind::Drained, None) => {
                reply.error(&ReplyError::fixed(
                    Code::Timeout,
                    "not everything is destaged yet; see DESTAGE STATUS",
                ));
            }
        }
        self.sessions.restore_answered(client, session);
    }

    pub(super) fn wait_timed_out(&mut self, client: ClientId) {
        let Some(request) =
            self.sessions.get_mut(client).and_then(|session| session.pending_request())
        else {
            return;
        };
        self.core.handle(self.now, Input::Cancel { request });
        let waiting = self.sessions.get_mut(client).and_then(|session| session.waiting.as_ref());
        if let Some(Waiting::Derived { name, .. }) = waiting {
            let name = name.clone();
            return self.derived_timed_out(client, &name);
        }
        self.finish_wait(request, None);
    }

    /// The origin has decided a write whose client waits for it.
    pub(super) fn settled(&mut self, lsn: Lsn, applied: bool) {
        let (through, reason) = self.undecided.end_through(lsn);
        if applied && through.access == Access::Through {
            for staged in &through.staged {
                self.rows.set(staged.unit, staged.row.as_deref());
            }
        }
        if applied {
            self.settle_members(lsn)
        } else {
            // A fetch under way may have looked before the origin said so.
            through.units.iter().for_each(|&unit| self.overlay.unchain_group(unit, lsn))
        }
        self.undecided.forget_ahead();
        through.units.iter().for_each(|&unit| self.unload_if_absent(unit));
        if applied {
            self.tell_changed(lsn);
            self.keep_beside(through.beside);
        } else {
            self.drop_beside(&through.beside)
        }
        let refusal = (!applied).then(|| {
            let why = reason.as_ref().map_or("no reason given", |error| &error.message);
            ReplyError::new(Code::Rejected, format!("by the origin, nothing was done: {why}"))
        });
        self.decide_token(lsn, refusal.as_ref());
        let Some(mut session) = self.sessions.take_waiting_for(through.client, lsn) else {
            if !applied {
                let why = reason.map(|error| error.message).unwrap_or_default();
                tracing::warn!(
                    lsn = lsn.0,
                    reason = why.as_str(),
                    "the origin rejected a write whose client waited for it no longer; nothing was done"
                );
            }
            return;
        };
        session.waiting = None;
        let client = through.client;
        match refusal {
            None => {
                session.out.extend_from_slice(&through.reply);
                session.lsn = session.lsn.max(lsn);
            }
            Some(message) => self.fail(&mut session, message),
        }
        self.sessions.restore_answered(client, session);
    }

    /// A row may have changed at the origin: it is fetched again before it is used, unless undecided changes pin it.
    pub(super) fn invalidate(&mut self, unit: UnitId) {
        self.core.handle(self.now, Input::Invalidate { unit });
        self.unload_if_absent(unit);
    }

    /// Drops a row that the core does not count as present any more.
    fn unload_if_absent(&mut self, unit: UnitId) {
        if !self.core.is_present(unit) {
            self.rows.unload(unit);
        }
    }

    pub(super) fn forget(&mut self, upto: Lsn) {
        self.overlay.forget(upto);
        self.unknown.forget(upto);
        let decided = self.core.decided();
        self.undecided.structural_mut().forget(decided);
        self.watchers.tell_decided(decided);
        self.reclaim();
    }

    pub(super) fn fetch(&mut self, unit: UnitId) {
        let table = self.rows.get(unit).table;
        if self.derived.is_result(table) {
            return self.fetch_derived(unit);
        }
        if self.schema.plain == Some(table) {
            return self.fetch_plain(unit);
        }
        if self.stands_for_tables(table) {
            let key: Box<[u8]> = self.rows.key(unit).into();
            return self.fetched_nothing(unit, table, &key);
        }
        if let Some(place) = self.raw_sql_before(unit, table) {
            return self.fetch_behind(unit, place);
        }
        self.rows.unload(unit);
        self.begin_page(unit);
        let key: Box<[u8]> = self.rows.key(unit).into();
        let confirmed = self.domains.watermark(self.domain_of(table, &key));
        let row = (table, key);
        // What a session says is not there need not be looked for, unless undecided changes are to be overlaid.
        if self.watchers.assumes_any_absent()
            && !self.overlay.is_chained(unit)
            && self.watchers.is_assumed_absent(&row)
        {
            return self.fetched_nothing(unit, table, &row.1);
        }
        self.jobs.fetch(FetchJob { unit, table, key: row.1, confirmed });
    }

    /// As if the origin had been asked for a row and had said that there is none.
    fn fetched_nothing(&mut self, unit: UnitId, table: TableId, key: &[u8]) {
        let none = self.overlay.overlay(&self.schema, unit, table, key, None, Lsn(u64::MAX));
        self.rows.set(unit, none.as_deref());
        self.freshness.fetched(self.now, table, unit);
        let identity = self.rows.identity(table, key);
        let result = Ok(self.rows.bytes(unit));
        self.core.handle(self.now, Input::Fetched { unit, result, identity });
    }

    /// Drops a unit and gives up its number.
    pub(super) fn evict(&mut self, unit: UnitId) {
        let row = self.rows.get(unit);
        if self.schema.plain == Some(row.table) && row.kind == Kind::Row {
            self.plain_changed(unit);
        }
        self.freshness.unset_deadline(unit);
        let identity = self.rows.remove(unit);
        self.overlay.unchain(unit);
        self.core.handle(self.now, Input::Evicted { identity });
    }

    pub(super) fn destage(&mut self, batch: BatchId, domain: DomainId) {
        let lsns = self.core.batch(batch);
        let mut groups = Groups::default();
        for &lsn in lsns {
            let group = self.overlay.get(lsn).expect("undecided groups are kept");
            groups.push(lsn, &group.bytes);
        }
        let (first, last) = (lsns[0], *lsns.last().expect("batches hold groups"));
        self.measured.batch_started(self.now, first, last, &self.overlay);
        let core = &self.core;
        let spans = |lsn| core.domains_spanned(lsn);
        let marks = self.domains.begin(lsns, domain, spans, |lsn| core.domain_of(lsn));
        self.jobs.push(Io::Destage { batch, marks, groups });
    }

    pub(super) fn park(&mut self, lsn: Lsn, domain: DomainId, depends_on: Option<Lsn>, keep: bool) {
        let because = |why: String| OriginError::new(Fault::Rejected, why);
        let reason = match depends_on {
            Some(parked) => because(format!("builds on the rejected write {}", parked.0)),
            None => {
                let known = self.undecided.reason(lsn).cloned();
                known.unwrap_or_else(|| because(String::new()))
            }
        };
        if keep {
            self.overlay.begin_park(lsn);
        } else {
            // Its client is told.
            self.undecided.rejected(lsn, reason.clone());
        }
        let parked = keep.then(|| {
            let group = self.overlay.get(lsn).expect("undecided groups are kept");
            let (keys, why) = (self.keys_of(&group.bytes), &reason.message);
            tracing::warn!(
                lsn = lsn.0,
                keys,
                reason = why,
                "the origin rejected a write; parking it"
            );
            let payload = crate::parked::encode(&self.schema, &group.bytes)
                .expect("groups are checked when they are written or recovered");
            ParkedGroup { domain, lsn, depends_on, reason: reason.in_full(), payload }
        });
        let core = &self.core;
        let spans = |lsn| core.domains_spanned(lsn);
        let marks = self.domains.begin(&[lsn], domain, spans, |lsn| core.domain_of(lsn));
        let park = Io::Park { lsn, marks, parked };
        if keep {
            self.jobs.push(park);
        } else {
            self.give_up_once(lsn, park);
        }
    }

    /// The keys of the rows that a group changes, as many as a line of the log has room for.
    pub(super) fn keys_of(&self, bytes: &[u8]) -> String {
        let mut keys: Vec<String> = Vec::new();
        for change in overlay::changes(&self.schema, bytes) {
            let mut key = Vec::new();
            format_key(self.schema.table(change.table), Reader::new(change.key), &mut key);
            let key = show(&key);
            if !keys.contains(&key) {
                if keys.len() == KEYS_LOGGED_MAX {
                    keys.push("...".to_owned());
                    break;
                }
                keys.push(key);
            }
        }
        if keys.is_empty() { "those of raw SQL".to_owned() } else { keys.join(" ") }
    }
}
