//! Derived keys: GET of a key whose value is the result of a query at the origin.
//!
//! A result is cached as a row of a table of its own, one for each query, so that it is counted, used and evicted like any
//! other row. On a miss the mapping (the query's `depends_on`) names the newest buffered write that matters; the origin
//! decides everything up to that one first, hurried, and only then the query runs (write-back with cache augmented data
//! stores, Algorithm 1, under Design 2's order). What was asked as of a change is answered by a result as of that change or
//! a later one, and a result is kept only while nothing that it depends on has changed since ([`Versions`]). Requests for one
//! key share a query.

mod commands;
pub(super) mod foreign;

use super::dispatch::{Answer as Word, PREFETCH_CLIENT};
use super::health::Way;
use super::rows::Kind;
use super::session::{Session, Waiting};
use super::txn::Txn;
use super::{Engine, Io};
use crate::cells::{Cell, Reader, push_cell};
use crate::derived::{Answer, Queries, Query, Version, Versions};
use crate::origins::{OriginError, decided_of};
use crate::resp::{Reply, TOO_LONG};
use crate::schema::TableId;
use destage_core::{
    ClientId, DomainId, Fault, Input, Intent, Lsn, RequestId, Span, Time, UnitId, WaitFor,
};
use destage_runtime::status::DerivedReport;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Queries at the origin at once: half of the readers, so that rows can still be fetched.
const QUERIES_MAX: usize = 2;

/// How much later than those who wait for it a query is given up, so that their time is over by then.
const LATER: Span = Span::from_millis(50);

/// A derived key: its query, and its parameters' values as cells.
pub(super) type Name = (usize, Box<[u8]>);

/// The derived keys and what is known of them.
#[derive(Debug, Default)]
pub(super) struct Derived {
    queries: Arc<Queries>,
    /// For each, the ordering domains whose writes may change its results.
    domains: Vec<Box<[DomainId]>>,
    /// The number of the first table that stands for a query.
    first_table: usize,
    versions: Versions,
    misses: HashMap<Name, Miss>,
    /// Misses that wait for the origin to decide a write.
    destaging: BTreeMap<Lsn, Vec<Name>>,
    /// Misses whose query may run.
    ready: VecDeque<Name>,
    running: HashMap<u64, Running>,
    next_job: u64,
    /// A result on its way into the cache.
    arriving: Option<(UnitId, Vec<u8>)>,
    pub(super) counts: Counts,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Answers from the cache.
    pub(super) hits: u64,
    /// Requests that waited for a query.
    pub(super) misses: u64,
    /// Queries that ran.
    pub(super) queries: u64,
    /// Queries before which writes were destaged.
    pub(super) destaged_first: u64,
    /// Requests given up at their deadline.
    pub(super) timeouts: u64,
    /// Queries that failed.
    pub(super) failures: u64,
}

/// A key whose result is not cached, and who wants it.
#[derive(Debug, Default)]
struct Miss {
    phase: Phase,
    waiters: Vec<Waiter>,
}

/// A query under way.
#[derive(Debug)]
struct Running {
    name: Name,
    version: Version,
    at: Time,
    /// When it is given up.
    ends: Time,
    /// Where the domains of the query must stand in its answer.
    confirmed: Box<[Lsn]>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    New,
    /// The origin has not decided yet what the result must hold.
    Destaging(Version),
    /// It has.
    Ready(Version),
    Running,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    client: ClientId,
    request: RequestId,
    deadline: Time,
    /// The result must hold everything up to this change.
    count: u64,
}

/// A cached result.
struct Cached<'r> {
    unit: UnitId,
    /// The change as of which it holds.
    count: u64,
    at: Time,
    json: &'r [u8],
}

impl Derived {
    /// Whether there are derived keys at all.
    pub(super) fn is_on(&self) -> bool {
        !self.queries.is_empty()
    }

    /// The row's key under which a result is cached.
    fn place(&self, name: &Name) -> (TableId, Vec<u8>) {
        let mut key = Vec::with_capacity(name.1.len() + 4);
        push_cell(&mut key, Cell::Value(&name.1));
        let table = u16::try_from(self.first_table + name.0);
        (TableId(table.expect("queries are limited with the tables")), key)
    }

    fn query(&self, name: &Name) -> &Query {
        self.queries.get(name.0)
    }

    fn newest(&self, name: &Name) -> Version {
        self.versions.newest(name.0, self.query(name), &name.1)
    }

    /// What there is to see of them.
    pub(super) fn report(&self) -> DerivedReport {
        let Counts { hits, misses, queries, destaged_first, timeouts, failures } = self.counts;
        DerivedReport {
            keys: self.queries.len() as u64,
            hits_total: hits,
            misses_total: misses,
            queries_total: queries,
            destaged_first_total: destaged_first,
            timeouts_total: timeouts,
            failures_total: failures,
            waiting: self.misses.values().map(|miss| miss.waiters.len() as u64).sum(),
        }
    }
}

impl Engine {
    /// Serves derived keys. Before anything is recovered or connected, and after [`Engine::with_domains`].
    pub fn derive(&mut self, queries: Arc<Queries>) {
        let first_table = self.schema.tables.len();
        self.rows.add_tables(queries.len(), 1);
        let versions = Versions::new(&queries, first_table);
        let partition = self.domains.partition();
        let domains_of = |index: usize| match queries.get(index).tables() {
            Some(tables) => partition.of_tables(tables),
            None => partition.ids().collect(),
        };
        let domains = (0..queries.len()).map(domains_of).collect();
        self.derived = Derived { queries, domains, first_table, versions, ..Derived::default() };
    }

    /// The derived keys.
    pub fn queries(&self) -> Arc<Queries> {
        self.derived.queries.clone()
    }

    /// Whether a row is a query's result.
    pub(super) fn is_derived(&self, table: TableId) -> bool {
        let first = self.derived.first_table;
        (first..first + self.derived.queries.len()).contains(&usize::from(table.0))
    }

    /// Notes what a transaction changes, before it does.
    pub(super) fn note_derived(&mut self, txn: &Txn) {
        if !self.derived.is_on() || self.config.unsafe_flags.in_force().no_query_invalidation {
            return;
        }
        let lsn = self.core.next_lsn();
        let cascades = self.cascades(txn);
        let versions = &mut self.derived.versions;
        for staged in &txn.staged {
            let row = self.rows.get(staged.unit);
            let before = (row.kind == Kind::Row).then_some(row.cells);
            versions.row(row.table, before, staged.row.as_deref(), lsn);
        }
        for unit in txn.blind_units() {
            versions.table(self.rows.get(unit).table, lsn);
        }
        cascades.into_iter().for_each(|table| versions.table(table, lsn));
        if txn.touched().any(|(table, ..)| self.is_unforeseeable(table)) {
            self.derived.versions.everything(lsn);
        }
    }

    /// Whether changes are noted for derived keys.
    pub(super) fn has_derived(&self) -> bool {
        self.derived.is_on() && !self.config.unsafe_flags.in_force().no_query_invalidation
    }

    /// Notes that a group changes rows of tables, of which nobody tells which ones; or with `everything`, whatever there is.
    pub(super) fn note_derived_tables(
        &mut self,
        tables: impl Iterator<Item = TableId>,
        lsn: Lsn,
        everything: bool,
    ) {
        let versions = &mut self.derived.versions;
        tables.for_each(|table| versions.table(table, lsn));
        if everything {
            versions.everything(lsn);
        }
    }

    /// Notes a change of one row that is patched where it lies.
    pub(super) fn note_derived_row(&mut self, table: TableId, before: &[u8], after: &[u8]) {
        if !self.config.unsafe_flags.in_force().no_query_invalidation {
            let lsn = self.core.next_lsn();
            self.derived.versions.row(table, Some(before), Some(after), lsn);
        }
    }

    /// A group that an earlier run left may have changed anything.
    pub(super) fn note_derived_group(&mut self, lsn: Lsn) {
        if self.derived.is_on() {
            self.derived.versions.everything(lsn);
        }
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
        let newest = self.derived.versions.dropped(name.0, &name.1);
        let newest = if query.keep { newest } else { self.derived.newest(name) };
        is_young && newest.count <= cached.count
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
    fn get_derived(&mut self, client: ClientId, session: &mut Session, name: Name) {
        let Some(unit) = self.fresh(&name) else { return self.miss(client, session, name) };
        let request = self.request_id(client.0);
        match self.access(request, Intent::Read, &[unit]) {
            Word::Now(_, observed) => session.lsn = session.lsn.max(observed),
            Word::Refused(refusal) => return self.refused(session, refusal),
            Word::Later => self.core.handle(self.now, Input::Cancel { request }),
        }
        let Some(cached) = self.cached(&name) else { return self.miss(client, session, name) };
        if cached.json.len() > self.config.output_bytes_max {
            return self.fail(session, TOO_LONG);
        }
        Reply::new(&mut session.out, session.protocol).bulk(cached.json);
        self.derived.counts.hits += 1;
    }

    /// Has a request wait for the result.
    fn miss(&mut self, client: ClientId, session: &mut Session, name: Name) {
        self.derived.counts.misses += 1;
        let request = self.request_id(client.0);
        let query = self.derived.query(&name);
        let newest = match query.keep {
            true => self.derived.versions.dropped(name.0, &name.1),
            false => self.derived.newest(&name),
        };
        let deadline = self.now + query.deadline;
        self.deadlines.insert((deadline, client));
        session.waiting = Some(Waiting::Derived { request, deadline, name: name.clone() });
        let miss = self.derived.misses.entry(name.clone()).or_default();
        miss.waiters.push(Waiter { client, request, deadline, count: newest.count });
        if matches!(miss.phase, Phase::New) {
            self.begin_query(name);
        }
    }

    /// Has the origin decide what the result must hold.
    fn begin_query(&mut self, name: Name) {
        let newest = self.derived.newest(&name);
        let is_decided = self.holds_upto(name.0, newest.lsn)
            || self.config.unsafe_flags.in_force().no_query_destage;
        let phase = if is_decided { Phase::Ready(newest) } else { Phase::Destaging(newest) };
        if let Some(miss) = self.derived.misses.get_mut(&name) {
            miss.phase = phase;
        }
        if is_decided {
            self.derived.ready.push_back(name);
            return self.start_queries();
        }
        self.derived.counts.destaged_first += 1;
        for lsn in self.undecided_of(name.0, newest.lsn) {
            let request = self.request_id(PREFETCH_CLIENT);
            self.core.handle(self.now, Input::Wait { request, lsn, until: WaitFor::Decided });
        }
        self.derived.destaging.entry(newest.lsn).or_default().push(name);
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
        let domains = self.derived.domains[query].iter();
        domains.filter_map(|&domain| self.core.last_undecided(domain, upto)).collect()
    }

    /// The origin has decided more than before.
    pub(super) fn derived_decided(&mut self) {
        for (lsn, name) in self.take_destaged() {
            let Some(miss) = self.derived.misses.get_mut(&name) else { continue };
            // Another miss of the same key may have taken its place.
            if let Phase::Destaging(version) = miss.phase
                && version.lsn == lsn
            {
                miss.phase = Phase::Ready(version);
                self.derived.ready.push_back(name);
            }
        }
        self.start_queries();
    }

    /// The misses that need not wait for a write any more, with the write that they waited for.
    fn take_destaged(&mut self) -> Vec<(Lsn, Name)> {
        let later = self.derived.destaging.split_off(&self.core.decided().next());
        let decided = std::mem::replace(&mut self.derived.destaging, later);
        let pairs = |(lsn, names): (Lsn, Vec<Name>)| names.into_iter().map(move |name| (lsn, name));
        let mut found: Vec<(Lsn, Name)> = decided.into_iter().flat_map(pairs).collect();
        if !self.domains.partition().is_one() {
            let later = std::mem::take(&mut self.derived.destaging);
            for (lsn, name) in later.into_iter().flat_map(pairs) {
                match self.holds_upto(name.0, lsn) {
                    true => found.push((lsn, name)),
                    false => self.derived.destaging.entry(lsn).or_default().push(name),
                }
            }
        }
        found
    }

    fn start_queries(&mut self) {
        while self.derived.running.len() < QUERIES_MAX
            && let Some(name) = self.derived.ready.pop_front()
        {
            let newest = self.derived.newest(&name);
            let Some(miss) = self.derived.misses.get_mut(&name) else { continue };
            let Phase::Ready(version) = miss.phase else { continue };
            miss.phase = Phase::Running;
            let last = miss.waiters.iter().map(|waiter| waiter.deadline).max();
            let ends = last.unwrap_or(self.now).max(self.now) + LATER;
            // What came meanwhile may be decided as well.
            let version = if self.holds_upto(name.0, newest.lsn) { newest } else { version };
            let confirmed = match self.domains.partition().is_one() {
                true => [version.lsn].into(),
                false => {
                    let domains = self.derived.domains[name.0].iter();
                    domains.map(|&domain| self.domains.watermark(domain)).collect()
                }
            };
            self.derived.next_job += 1;
            let job = self.derived.next_job;
            self.derived.counts.queries += 1;
            let limit = ends.since(self.now);
            self.io.push(Io::Query { job, query: name.0, values: name.1.clone(), limit });
            let running = Running { name, version, at: self.now, ends, confirmed };
            self.derived.running.insert(job, running);
        }
    }

    /// A query ended.
    pub fn queried(&mut self, now: Time, job: u64, result: Result<Answer, OriginError>) {
        self.now = self.now.max(now);
        let Some(running) = self.derived.running.remove(&job) else { return };
        let result = result.and_then(|answer| self.not_older(answer, &running));
        let Running { name, version, at, ends, .. } = running;
        match result {
            Ok(answer) => {
                self.measured.origin_works(Way::Read);
                self.answer(&name, version, at, &answer.json);
            }
            Err(error) if error.is_late && self.now >= ends => self.query_given_up(name),
            Err(error) => self.query_failed(&name, &error),
        }
        self.start_queries();
        self.pump();
        self.run_ready();
    }

    /// Refuses what an origin says that has forgotten what it had decided.
    fn not_older(&mut self, answer: Answer, running: &Running) -> Result<Answer, OriginError> {
        if self.config.unsafe_flags.in_force().no_query_destage {
            return Ok(answer);
        }
        let domains = self.derived.domains[running.name.0].clone();
        let mut known = domains.iter().zip(&running.confirmed);
        match known.any(|(&d, &at)| self.went_back(decided_of(&answer.watermarks, d), at)) {
            true => Err(OriginError::new(Fault::Unavailable, "the origin went back")),
            false => Ok(answer),
        }
    }

    /// Answers those whom the result satisfies, and keeps it if it is good for others.
    fn answer(&mut self, name: &Name, version: Version, at: Time, json: &[u8]) {
        let Some(miss) = self.derived.misses.get_mut(name) else { return };
        miss.phase = Phase::New;
        let (answered, others): (Vec<Waiter>, Vec<Waiter>) =
            miss.waiters.drain(..).partition(|waiter| waiter.count <= version.count);
        miss.waiters = others;
        let has_others = !miss.waiters.is_empty();
        for waiter in answered {
            match self.may_copy(json.len()) {
                Ok(()) => self.end_derived(waiter, |reply| reply.bulk(json)),
                Err(message) => {
                    self.measured.errors += 1;
                    self.end_derived(waiter, |reply| reply.error(message));
                }
            }
        }
        self.keep_result(name, version, at, json);
        match has_others {
            // They asked behind a later change.
            true => self.begin_query(name.clone()),
            false => drop(self.derived.misses.remove(name)),
        }
    }

    /// A query took longer than those waited who asked before it began. Whoever came later may still wait.
    fn query_given_up(&mut self, name: Name) {
        let Some(miss) = self.derived.misses.get_mut(&name) else { return };
        miss.phase = Phase::New;
        if miss.waiters.is_empty() {
            self.derived.misses.remove(&name);
        } else if miss.waiters.iter().any(|waiter| waiter.deadline > self.now) {
            self.begin_query(name);
        }
    }

    fn query_failed(&mut self, name: &Name, error: &OriginError) {
        self.derived.counts.failures += 1;
        self.measured.read_failed(self.now, &self.derived.queries.get(name.0).key, error);
        let word = match error.fault {
            Fault::Denied => "DENIED",
            // What the query makes of its parameters and rows, such as a division by zero.
            Fault::Rejected => "ERR",
            _ => "UNAVAILABLE",
        };
        // Who asks may read what the query reads.
        let message = format!("{word} {}: {}", self.config.origin, error.whole());
        let Some(miss) = self.derived.misses.remove(name) else { return };
        for waiter in miss.waiters {
            self.measured.errors += 1;
            self.end_derived(waiter, |reply| reply.error(&message));
        }
    }

    /// Answers one request, if its client still waits for it.
    fn end_derived(&mut self, waiter: Waiter, write: impl FnOnce(&mut Reply<'_>)) {
        let Some((client, mut session)) = self.take_waiting(waiter.request) else { return };
        debug_assert_eq!(client, waiter.client, "a request's number names its client");
        if let Some(Waiting::Derived { deadline, .. }) = session.waiting.take() {
            self.deadlines.remove(&(deadline, client));
        }
        write(&mut Reply::new(&mut session.out, session.protocol));
        self.count_unread(&mut session);
        self.put_back(client, session);
    }

    /// Caches a result unless it is old already.
    fn keep_result(&mut self, name: &Name, version: Version, at: Time, json: &[u8]) {
        let newest = match self.derived.query(name).keep {
            true => self.derived.versions.dropped(name.0, &name.1),
            false => self.derived.newest(name),
        };
        if newest.count > version.count {
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
        self.derived.arriving = Some((unit, cells));
        // The core counts it in as it does a row that is fetched.
        let request = self.request_id(PREFETCH_CLIENT);
        let _ = self.access(request, Intent::Read, &[unit]);
        self.derived.arriving = None;
    }

    /// The core wants a result that is at hand.
    pub(super) fn fetch_derived(&mut self, unit: UnitId) {
        let arriving = self.derived.arriving.take_if(|(arriving, _)| *arriving == unit);
        let result = match arriving {
            Some((_, cells)) => {
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
        self.derived.counts.timeouts += 1;
        let query = self.derived.query(name);
        let (key, limit) = (query.key.clone(), query.deadline.as_secs_f64());
        let phase = self.derived.misses.get(name).map(|miss| miss.phase);
        let message = match phase {
            Some(Phase::Destaging(version)) => format!(
                "TIMEOUT a result of {key} must hold writes up to {}, and {} has decided those up to {} after {limit} s; see \
                 DESTAGE STATUS",
                version.lsn.0,
                self.config.origin,
                self.core.decided().0
            ),
            _ => format!(
                "TIMEOUT the query of {key} has not ended after {limit} s at {}",
                self.config.origin
            ),
        };
        let waiters = self.leave_miss(client, name);
        for waiter in waiters {
            self.measured.errors += 1;
            self.end_derived(waiter, |reply| reply.error(&message));
        }
    }

    /// Takes a client out of those who wait for a result; a miss that nobody waits for any more ends.
    pub(super) fn leave_miss(&mut self, client: ClientId, name: &Name) -> Vec<Waiter> {
        let Some(miss) = self.derived.misses.get_mut(name) else { return Vec::new() };
        let left = miss.waiters.extract_if(.., |waiter| waiter.client == client).collect();
        if miss.waiters.is_empty() && !matches!(miss.phase, Phase::Running) {
            self.derived.misses.remove(name);
        }
        left
    }
}
