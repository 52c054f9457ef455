//! What is known of derived keys: what has changed since their results were made, who waits for a result, which queries may
//! run and which do.

use crate::cells::{Cell, push_cell};
use crate::derived::{Queries, Query, Version, Versions};
use crate::schema::TableId;
use destage_core::{ClientId, DomainId, Lsn, RequestId, Span, Time, UnitId};
use destage_runtime::status::DerivedReport;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Queries at the origin at once: half of the readers, so that rows can still be fetched.
const QUERIES_MAX: usize = 2;

/// How much later than those who wait for it a query is given up, so that their time is over by then.
const LATER: Span = Span::from_millis(50);

/// A derived key: its query, and its parameters' values as cells.
pub(in crate::engine) type Name = (usize, Box<[u8]>);

/// The derived keys and what is known of them.
#[derive(Debug, Default)]
pub(in crate::engine) struct Derived {
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
    last_job: u64,
    /// A result on its way into the cache.
    arriving: Option<(UnitId, Vec<u8>)>,
    counts: Counts,
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

/// What came of asking for a result that is not cached.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Nobody has asked before: the query is to be begun.
    First,
    /// It is under way.
    Again,
}

/// A key whose result is not cached, and who wants it.
#[derive(Debug, Default)]
struct Miss {
    phase: Phase,
    waiters: Vec<Waiter>,
}

/// A query under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) name: Name,
    pub(super) version: Version,
    pub(super) at: Time,
    /// When it is given up.
    pub(super) ends: Time,
    /// Where the domains of the query must stand in its answer.
    pub(super) confirmed: Box<[Lsn]>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Phase {
    #[default]
    New,
    /// The origin has not decided yet what the result must hold.
    Destaging(Version),
    /// It has.
    Ready(Version),
    Running,
}

/// Who waits for a result.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Waiter {
    pub(super) client: ClientId,
    pub(super) request: RequestId,
    pub(super) deadline: Time,
    /// The result must hold everything up to this change.
    pub(super) count: u64,
}

impl Derived {
    /// These queries, and of each the ordering domains whose writes may change its results. Their results are rows of tables
    /// from `first_table` on.
    pub(in crate::engine) fn new(
        queries: Arc<Queries>,
        domains: Vec<Box<[DomainId]>>,
        first_table: usize,
    ) -> Self {
        let versions = Versions::new(&queries, first_table);
        Self { queries, domains, first_table, versions, ..Self::default() }
    }

    /// Whether there are derived keys at all.
    #[inline]
    pub(in crate::engine) fn is_on(&self) -> bool {
        !self.queries.is_empty()
    }

    /// The queries.
    pub(in crate::engine) fn queries(&self) -> &Arc<Queries> {
        &self.queries
    }

    /// Whether a table's rows are a query's results.
    pub(in crate::engine) fn is_result(&self, table: TableId) -> bool {
        let first = self.first_table;
        (first..first + self.queries.len()).contains(&usize::from(table.0))
    }

    /// The row's key under which a result is cached.
    pub(in crate::engine) fn place(&self, name: &Name) -> (TableId, Vec<u8>) {
        let mut key = Vec::with_capacity(name.1.len() + 4);
        push_cell(&mut key, Cell::Value(&name.1));
        let table = u16::try_from(self.first_table + name.0);
        (TableId(table.expect("queries are limited with the tables")), key)
    }

    /// The query of a key.
    pub(in crate::engine) fn query(&self, name: &Name) -> &Query {
        self.queries.get(name.0)
    }

    /// The domains whose writes may change results of a query.
    pub(super) fn domains_of(&self, query: usize) -> &[DomainId] {
        &self.domains[query]
    }

    /// What has changed, of which results are made.
    pub(in crate::engine) fn versions_mut(&mut self) -> &mut Versions {
        &mut self.versions
    }

    /// The newest change that a result must hold to be as new as the origin will be.
    pub(super) fn newest(&self, name: &Name) -> Version {
        self.versions.newest(name.0, self.query(name), &name.1)
    }

    /// The newest change that a result must hold to be given out.
    pub(in crate::engine) fn needed(&self, name: &Name) -> Version {
        if self.query(name).keep {
            self.versions.dropped(name.0, &name.1)
        } else {
            self.newest(name)
        }
    }

    /// A request was answered from the cache.
    pub(super) fn hit(&mut self) {
        self.counts.hits += 1;
    }

    /// What there is to see of them.
    pub(in crate::engine) fn report(&self) -> DerivedReport {
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

/// Misses.
impl Derived {
    /// Someone waits for a result.
    pub(super) fn miss(&mut self, name: Name, waiter: Waiter) -> Asked {
        self.counts.misses += 1;
        let miss = self.misses.entry(name).or_default();
        miss.waiters.push(waiter);
        if matches!(miss.phase, Phase::New) { Asked::First } else { Asked::Again }
    }

    /// The query of a key may run, which must hold this.
    pub(super) fn ready(&mut self, name: Name, version: Version) {
        if let Some(miss) = self.misses.get_mut(&name) {
            miss.phase = Phase::Ready(version);
        }
        self.ready.push_back(name);
    }

    /// It must wait until the origin has decided that.
    pub(super) fn await_destage(&mut self, name: Name, version: Version) {
        if let Some(miss) = self.misses.get_mut(&name) {
            miss.phase = Phase::Destaging(version);
        }
        self.counts.destaged_first += 1;
        self.destaging.entry(version.lsn).or_default().push(name);
    }

    /// Of the queries that wait for the origin, those may run whose write `is_decided`; everything up to `decided` is.
    pub(super) fn take_destaged(
        &mut self,
        decided: Lsn,
        is_decided: impl Fn(&Self, usize, Lsn) -> bool,
    ) {
        let mut waiting = std::mem::take(&mut self.destaging);
        let later = waiting.split_off(&decided.next());
        let pairs = |(lsn, names): (Lsn, Vec<Name>)| names.into_iter().map(move |name| (lsn, name));
        let mut found: Vec<(Lsn, Name)> = waiting.into_iter().flat_map(pairs).collect();
        for (lsn, name) in later.into_iter().flat_map(pairs) {
            if is_decided(self, name.0, lsn) {
                found.push((lsn, name));
            } else {
                self.destaging.entry(lsn).or_default().push(name);
            }
        }
        for (lsn, name) in found {
            let Some(miss) = self.misses.get_mut(&name) else { continue };
            // Another miss of the same key may have taken its place.
            if let Phase::Destaging(version) = miss.phase
                && version.lsn == lsn
            {
                miss.phase = Phase::Ready(version);
                self.ready.push_back(name);
            }
        }
    }

    /// The next query to run: its name, the newest change, the change that it is to hold at least, and when it ends at the
    /// latest.
    pub(super) fn next_query(&mut self, now: Time) -> Option<(Name, Version, Version, Time)> {
        while self.running.len() < QUERIES_MAX {
            let name = self.ready.pop_front()?;
            let newest = self.newest(&name);
            let Some(miss) = self.misses.get_mut(&name) else { continue };
            let Phase::Ready(version) = miss.phase else { continue };
            miss.phase = Phase::Running;
            let last = miss.waiters.iter().map(|waiter| waiter.deadline).max();
            let ends = last.unwrap_or(now).max(now) + LATER;
            return Some((name, newest, version, ends));
        }
        None
    }

    /// It runs; the job's number.
    pub(super) fn run(&mut self, running: Running) -> u64 {
        self.last_job += 1;
        self.counts.queries += 1;
        self.running.insert(self.last_job, running);
        self.last_job
    }

    /// It has ended.
    pub(super) fn end(&mut self, job: u64) -> Option<Running> {
        self.running.remove(&job)
    }

    /// Those whom a result satisfies that holds this; and whether others wait for a later one.
    pub(super) fn answered(
        &mut self,
        name: &Name,
        version: Version,
    ) -> Option<(Vec<Waiter>, bool)> {
        let miss = self.misses.get_mut(name)?;
        miss.phase = Phase::New;
        let answered =
            miss.waiters.extract_if(.., |waiter| waiter.count <= version.count).collect();
        Some((answered, !miss.waiters.is_empty()))
    }

    /// Nobody waits for a result any more.
    pub(super) fn end_miss(&mut self, name: &Name) {
        self.misses.remove(name);
    }

    /// A query was given up: whether it is to be begun anew, for those who came later.
    pub(super) fn given_up(&mut self, name: &Name, now: Time) -> bool {
        let Some(miss) = self.misses.get_mut(name) else { return false };
        miss.phase = Phase::New;
        if miss.waiters.is_empty() {
            self.misses.remove(name);
            return false;
        }
        miss.waiters.iter().any(|waiter| waiter.deadline > now)
    }

    /// A query failed: all who waited for it.
    pub(super) fn failed(&mut self, name: &Name) -> Vec<Waiter> {
        self.counts.failures += 1;
        self.misses.remove(name).map(|miss| miss.waiters).unwrap_or_default()
    }

    /// A request has waited for as long as it may: the change for which it waited, if that is not at the origin yet.
    pub(super) fn timed_out(&mut self, name: &Name) -> Option<Version> {
        self.counts.timeouts += 1;
        match self.misses.get(name)?.phase {
            Phase::Destaging(version) => Some(version),
            Phase::New | Phase::Ready(_) | Phase::Running => None,
        }
    }

    /// Takes a client out of those who wait for a result; a miss that nobody waits for any more ends.
    pub(in crate::engine) fn leave(&mut self, client: ClientId, name: &Name) -> Vec<Waiter> {
        let Some(miss) = self.misses.get_mut(name) else { return Vec::new() };
        let left = miss.waiters.extract_if(.., |waiter| waiter.client == client).collect();
        if miss.waiters.is_empty() && !matches!(miss.phase, Phase::Running) {
            self.misses.remove(name);
        }
        left
    }

    /// A result is on its way into the cache.
    pub(super) fn arrive(&mut self, unit: UnitId, cells: Vec<u8>) {
        self.arriving = Some((unit, cells));
    }

    /// It has got there, or is not wanted.
    pub(super) fn end_arrival(&mut self) {
        self.arriving = None;
    }

    /// The result that is at hand for a unit.
    pub(super) fn take_arriving(&mut self, unit: UnitId) -> Option<Vec<u8>> {
        self.arriving.take_if(|(arriving, _)| *arriving == unit).map(|(_, cells)| cells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(client: u32, count: u64) -> Waiter {
        let (request, deadline) = (RequestId(u64::from(client)), Time(100));
        Waiter { client: ClientId(client), request, deadline, count }
    }

    fn version(count: u64, lsn: u64) -> Version {
        Version { count, lsn: Lsn(lsn) }
    }

    #[test]
    fn whoever_asks_behind_a_later_change_waits_for_a_later_result() {
        let (mut derived, name): (_, Name) = (Derived::default(), (0, Box::default()));
        assert_eq!(derived.miss(name.clone(), waiter(1, 3)), Asked::First);
        derived.await_destage(name.clone(), version(3, 7));
        assert_eq!(derived.miss(name.clone(), waiter(2, 4)), Asked::Again);
        assert_eq!(derived.timed_out(&name).map(|version| version.lsn), Some(Lsn(7)));
        derived.take_destaged(Lsn(6), |_, _, _| false);
        assert!(derived.ready.is_empty());
        derived.take_destaged(Lsn(7), |_, _, _| false);
        assert!(derived.timed_out(&name).is_none() && derived.ready.len() == 1);
        let (answered, has_others) = derived.answered(&name, version(3, 7)).unwrap();
        assert!(answered.len() == 1 && answered[0].client == ClientId(1) && has_others);
        assert_eq!(derived.leave(ClientId(2), &name).len(), 1);
        assert!(derived.misses.is_empty() && derived.answered(&name, version(9, 9)).is_none());
    }

    #[test]
    fn a_result_arrives_at_its_own_unit_alone() {
        let mut derived = Derived::default();
        derived.arrive(UnitId(1), vec![7]);
        assert_eq!(derived.take_arriving(UnitId(2)), None);
        assert_eq!(derived.take_arriving(UnitId(1)), Some(vec![7]));
        assert_eq!(derived.take_arriving(UnitId(1)), None);
    }
}
