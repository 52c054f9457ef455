//! Derived keys: GET of a key whose value is the result of a query at the origin.
//!
//! A result is cached as a row of a table of its own, one for each query, so that it is counted, used and evicted like any
//! other row. On a miss the mapping (the query's `depends_on`) names the newest buffered write that matters; the origin
//! decides everything up to that one first, hurried, and only then the query runs (write-back with cache augmented data
//! stores, Algorithm 1, under Design 2's order). What was asked as of a change is answered by a result as of that change or
//! a later one, and a result is kept only while nothing that it depends on has changed since ([`Versions`]). Requests for one
//! key share a query.

mod answers;
mod commands;
mod foreign;
mod notes;
pub(super) mod results;

use super::asking::{Answer as Word, PREFETCH_CLIENT};
use super::rows::Kind;
use super::session::{Session, Waiting};
use super::{Engine, Io};
use crate::cells::{Cell, Reader, push_cell};
use crate::derived::{Answer, Queries, Version};
use crate::key_text::show;
use crate::origins::{OriginError, decided_of};
use crate::resp::{Code, Reply, ReplyError, TOO_LONG};
use crate::schema::TableId;
use destage_core::{ClientId, DomainId, Fault, Input, Intent, Lsn, Time, UnitId, WaitFor};
use results::{Asked, Running, Waiter};
pub(super) use results::{Derived, Name};
use std::sync::Arc;

/// A cached result.
struct Cached<'r> {
    unit: UnitId,
    /// The change as of which it holds.
    count: u64,
    at: Time,
    json: &'r [u8],
}

impl Engine {
    /// Serves derived keys. Before anything is recovered or connected, and after [`Engine::with_domains`].
    pub fn derive(&mut self, queries: Arc<Queries>) {
        let first_table = self.schema.tables.len();
        self.rows.add_tables(queries.len(), 1);
        let partition = self.domains.partition();
        let domains_of = |index: usize| match queries.get(index).tables() {
            Some(tables) => partition.of_tables(tables),
            None => partition.ids().collect(),
        };
        let domains = (0..queries.len()).map(domains_of).collect();
        self.derived = Derived::new(queries, domains, first_table);
    }

    /// The derived keys.
    pub fn queries(&self) -> Arc<Queries> {
        self.derived.queries().clone()
    }

    /// The cached result, whether or not it is still good.
    fn cached(&self, name: &Name) -> Option<Cached<'_>> {
        let (table, key) = self.derived.place(name);
        let unit = self.rows.find(table, &key)?;
        let row = self.rows.get(unit);
        if row.kind != Kind::Row || !self.core.is_present(unit) {
            return None;
        }
        let mut cells = Reader::new(row.cells).skip(1);
        let stamps = cells.next().and_then(Cell::value)?;
        let json = cells.next().and_then(Cell::value)?;
        let (count, at) = stamps.split_first_chunk::<8>()?;
        let at = at.first_chunk::<8>()?;
        Some(Cached {
            unit,
            count: u64::from_le_bytes(*count),
            at: Time(u64::from_le_bytes(*at)),
            json,
        })
    }

    /// Whether a cached result may still be given out.
    fn is_fresh(&self, name: &Name, cached: &Cached<'_>) -> bool {
        let query = self.derived.query(name);
        let is_young = query.max_age.is_none_or(|age| self.now.since(cached.at) < age);
        is_young && self.derived.needed(name).count <= cached.count
    }

    /// The unit of a result that is cached and good; one that is old is dropped.
    fn fresh(&mut self, name: &Name) -> Option<UnitId> {
        let cached = self.cached(name)?;
        let unit = cached.unit;
        if self.is_fresh(name, &cached) {
            return Some(unit);
        }
        self.invalidate(unit);
        None
    }

    /// GET of a derived key.
    fn get_derived(&mut self, client: ClientId, session: &mut Session, name: Name, key: &[u8]) {
        let Some(unit) = self.fresh(&name) else { return self.miss(client, session, name, key) };
        let request = self.asking.request_id(client.0);
        match self.access(request, Intent::Read, &[unit]) {
            Word::Now(_, observed) => session.lsn = session.lsn.max(observed),
            Word::Refused(refusal) => return self.refused(session, refusal),
            Word::Later => self.core.handle(self.now, Input::Cancel { request }),
        }
        let Some(cached) = self.cached(&name) else { return self.miss(client, session, name, key) };
        if cached.json.len() > self.config.output_bytes_max {
            return self.fail(session, TOO_LONG);
        }
        Reply::new(&mut session.out, session.protocol).bulk(cached.json);
        let version = (cached.count, cached.at);
        self.remember_result(session, key, &name, version);
        self.derived.hit();
    }

    /// Has a request wait for the result.
    fn miss(&mut self, client: ClientId, session: &mut Session, name: Name, key: &[u8]) {
        let request = self.asking.request_id(client.0);
        let count = self.derived.needed(&name).count;
        let deadline = self.now + self.derived.query(&name).deadline;
        self.sessions.set_deadline(client, deadline);
        session.waiting =
            Some(Waiting::Derived { request, deadline, name: name.clone(), key: key.into() });
        let waiter = Waiter { client, request, deadline, count };
        if self.derived.miss(name.clone(), waiter) == Asked::First {
            self.begin_query(name);
        }
    }

    /// Has the origin decide what the result must hold.
    fn begin_query(&mut self, name: Name) {
        let newest = self.derived.newest(&name);
        let is_decided = self.holds_upto(name.0, newest.lsn)
            || self.config.unsafe_flags.in_force().no_query_destage;
        if is_decided {
            self.derived.ready(name, newest);
            return self.start_queries();
        }
        for lsn in self.undecided_of(name.0, newest.lsn) {
            let request = self.asking.request_id(PREFETCH_CLIENT);
            self.core.handle(self.now, Input::Wait { request, lsn, until: WaitFor::Decided });
        }
        self.derived.await_destage(name, newest);
    }

    /// Whether the origin has decided all writes up to this one that may change results of a query.
    fn holds_upto(&self, query: usize, upto: Lsn) -> bool {
        upto <= self.core.decided()
            || !self.domains.partition().is_one() && self.undecided_of(query, upto).is_empty()
    }

    /// What the origin must decide for that: of each of the query's domains the newest write.
    fn undecided_of(&self, query: usize, upto: Lsn) -> Vec<Lsn> {
        if self.domains.partition().is_one() {
            return vec![upto];
        }
        let domains = self.derived.domains_of(query).iter();
        domains.filter_map(|&domain| self.core.last_undecided(domain, upto)).collect()
    }

    /// The origin has decided more than before.
    pub(super) fn derived_decided(&mut self) {
        let decided = self.core.decided();
        let (core, is_one) = (&self.core, self.domains.partition().is_one());
        self.derived.take_destaged(decided, |derived, query, upto| {
            let mut domains = derived.domains_of(query).iter();
            !is_one && domains.all(|&domain| core.last_undecided(domain, upto).is_none())
        });
        self.start_queries();
    }

    fn start_queries(&mut self) {
        while let Some((name, newest, version, ends)) = self.derived.next_query(self.now) {
            // What came meanwhile may be decided as well.
            let version = if self.holds_upto(name.0, newest.lsn) { newest } else { version };
            let confirmed = if self.domains.partition().is_one() {
                [version.lsn].into()
            } else {
                let domains = self.derived.domains_of(name.0).iter();
                domains.map(|&domain| self.domains.watermark(domain)).collect()
            };
            let (query, values, limit) = (name.0, name.1.clone(), ends.since(self.now));
            let job = self.derived.run(Running { name, version, at: self.now, ends, confirmed });
            self.jobs.push(Io::Query { job, query, values, limit });
        }
    }

    /// Refuses what an origin says that has forgotten what it had decided.
    fn not_older(&mut self, answer: Answer, running: &Running) -> Result<Answer, OriginError> {
        if self.config.unsafe_flags.in_force().no_query_destage {
            return Ok(answer);
        }
        let domains: Box<[DomainId]> = self.derived.domains_of(running.name.0).into();
        let mut known = domains.iter().zip(&running.confirmed);
        if known.any(|(&d, &at)| self.went_back(decided_of(&answer.watermarks, d), at)) {
            return Err(OriginError::new(Fault::Unavailable, "the origin went back"));
        }
        Ok(answer)
    }

    /// Answers those whom the result satisfies, and keeps it if it is good for others.
    fn answer(&mut self, name: &Name, version: Version, at: Time, json: &[u8]) {
        let Some((answered, has_others)) = self.derived.answered(name, version) else { return };
        for waiter in answered {
            match self.sessions.may_copy(json.len()) {
                Ok(()) => {
                    let made = Some((version.count, at));
                    self.end_derived(waiter, made, |reply| reply.bulk(json));
                }
                Err(error) => {
                    self.measured.error();
                    self.end_derived(waiter, None, |reply| reply.error(&error));
                }
            }
        }
        self.keep_result(name, version, at, json);
        if has_others {
            // They asked behind a later change.
            self.begin_query(name.clone());
        } else {
            self.derived.end_miss(name);
        }
    }

    fn query_failed(&mut self, name: &Name, error: &OriginError) {
        self.measured.read_failed(self.now, &self.derived.query(name).key, error);
        let code = match error.fault {
            Fault::Denied => Code::Denied,
            // What the query makes of its parameters and rows, such as a division by zero.
            Fault::Rejected => Code::Err,
            _ => Code::Unavailable,
        };
        // Who asks may read what the query reads.
        let error = ReplyError::new(code, format!("{}: {}", self.config.origin, error.in_full()));
        for waiter in self.derived.failed(name) {
            self.measured.error();
            self.end_derived(waiter, None, |reply| reply.error(&error));
        }
    }

    /// Answers one request, if its client still waits for it; with a result, as of which change and when.
    fn end_derived(
        &mut self,
        waiter: Waiter,
        made: Option<(u64, Time)>,
        write: impl FnOnce(&mut Reply<'_>),
    ) {
        let Some((client, mut session)) = self.sessions.take_waiting(waiter.request) else {
            return;
        };
        debug_assert_eq!(client, waiter.client, "a request's number names its client");
        if let Some(Waiting::Derived { deadline, name, key, .. }) = session.waiting.take() {
            self.sessions.clear_deadline(client, deadline);
            if let Some(version) = made {
                self.remember_result(&session, &key, &name, version);
            }
        }
        write(&mut Reply::new(&mut session.out, session.protocol));
        self.sessions.count_unread(&mut session);
        self.sessions.restore_answered(client, session);
    }

    /// Caches a result unless it is old already.
    fn keep_result(&mut self, name: &Name, version: Version, at: Time, json: &[u8]) {
        if self.derived.needed(name).count > version.count {
            return;
        }
        let (table, key) = self.derived.place(name);
        let unit = self.rows.find_or_insert(table, &key);
        if self.core.is_present(unit) {
            return;
        }
        let mut cells = key;
        let stamps = [version.count.to_le_bytes(), at.0.to_le_bytes()].concat();
        push_cell(&mut cells, Cell::Value(&stamps));
        push_cell(&mut cells, Cell::Value(json));
        self.derived.arrive(unit, cells);
        // The core counts it in as it does a row that is fetched.
        let request = self.asking.request_id(PREFETCH_CLIENT);
        let _ = self.access(request, Intent::Read, &[unit]);
        self.derived.end_arrival();
    }

    /// The core wants a result that is at hand.
    pub(super) fn fetch_derived(&mut self, unit: UnitId) {
        let result = match self.derived.take_arriving(unit) {
            Some(cells) => {
                self.rows.set(unit, Some(&cells));
                Ok(self.rows.bytes(unit))
            }
            // It was dropped while it was asked for; whoever wants it asks anew.
            None => Err(Fault::Unavailable),
        };
        let row = self.rows.get(unit);
        let identity = self.rows.identity(row.table, self.rows.key(unit));
        self.core.handle(self.now, Input::Fetched { unit, result, identity });
    }

    /// A request has waited for as long as it may.
    pub(super) fn derived_timed_out(&mut self, client: ClientId, name: &Name) {
        let query = self.derived.query(name);
        let (key, limit) = (query.key.clone(), query.deadline.as_secs_f64());
        let message = match self.derived.timed_out(name) {
            Some(version) => ReplyError::new(
                Code::Timeout,
                format!(
                    "a result of {key} must hold writes up to {}, and {} has decided those up to {} after {limit} s; see \
                 DESTAGE STATUS",
                    version.lsn.0,
                    self.config.origin,
                    self.core.decided().0
                ),
            ),
            None => ReplyError::new(
                Code::Timeout,
                format!(
                    "the query of {key} has not ended after {limit} s at {}",
                    self.config.origin
                ),
            ),
        };
        let waiters = self.derived.leave(client, name);
        for waiter in waiters {
            self.measured.error();
            self.end_derived(waiter, None, |reply| reply.error(&message));
        }
    }

    /// The query and the values of a key that begins as derived keys do.
    pub(super) fn derived_name(&self, key: &[u8]) -> Option<Result<Name, ReplyError>> {
        let queries = self.derived.queries();
        let similar = queries.begins(key)?;
        let Some((index, parts)) = queries.find(key) else {
            return Some(Err(ReplyError::err(format!(
                "the key '{}' fits no derived key: those that begin so are {}",
                show(key),
                similar.key
            ))));
        };
        let values = queries.get(index).canonical(&self.schema, &parts).map_err(ReplyError::err);
        Some(values.map(|values| {
            let mut cells = Vec::new();
            values.iter().for_each(|value| push_cell(&mut cells, Cell::Value(value)));
            (index, cells.into())
        }))
    }

    /// The tables that a key to be watched depends on, if it is derived.
    pub(super) fn watched_tables(&self, key: &[u8]) -> Option<Result<Vec<TableId>, ReplyError>> {
        let name = self.derived_name(key)?;
        let tables = |name: Name| {
            let dependencies = self.derived.query(&name).dependencies().iter();
            dependencies.map(|dependency| dependency.table).collect()
        };
        Some(name.map(tables))
    }

    /// DESTAGE INVALIDATE of a key that begins as derived keys do.
    ///
    /// # Errors
    /// The key fits no query.
    pub(super) fn drop_derived(&mut self, key: &[u8]) -> Option<Result<i64, ReplyError>> {
        let name = self.derived_name(key)?;
        Some(name.map(|name| self.drop_results(&[name])))
    }

    /// Drops cached results, and those on their way; how many were cached.
    pub(super) fn drop_results(&mut self, names: &[Name]) -> i64 {
        self.rows.tracking_mut().results_changed(None);
        let mut dropped = 0;
        for name in names {
            self.derived.versions_mut().drop(name.0, &name.1);
            let unit = self.cached(name).map(|cached| cached.unit);
            dropped += i64::from(unit.is_some());
            unit.into_iter().for_each(|unit| self.invalidate(unit));
        }
        dropped
    }
}
