//! What a reader finds after a load, and which prefix of each client's operations it belongs to.

use super::{CLIENTS_MAX, Histories, History, Kind, Mix, Outcome};
use crate::harness::{Client, Database, Reply, Server};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Instant;

/// The content of the tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    /// Counters by id.
    pub(crate) counters: BTreeMap<usize, i64>,
    /// Registers by id.
    pub(crate) registers: BTreeMap<usize, i64>,
    /// Events of each client.
    pub(crate) events: Vec<BTreeSet<i64>>,
}

/// What may be missing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Allowed {
    /// Nothing that was acknowledged.
    Nothing,
    /// Acknowledged operations from that moment on.
    Since(Instant),
    /// Any suffix: the origin may be behind.
    AnySuffix,
}

impl Observed {
    /// Through Destage. The histories tell which events to ask for.
    pub(crate) fn by_client(client: &mut Client, histories: &Histories) -> Self {
        let mut observed = Self::default();
        let counters = [0, 1].into_iter().chain(10..10 + CLIENTS_MAX);
        for id in counters {
            let reply = client.read(&[format!("HGET counters:{id} n")]).remove(0);
            observed.counters.insert(id, reply.int());
        }
        for id in (0..CLIENTS_MAX).chain(100..100 + CLIENTS_MAX) {
            let reply = client.read(&[format!("HGET registers:{id} seq")]).remove(0);
            observed.registers.insert(id, reply.int());
        }
        observed.events = vec![BTreeSet::new(); CLIENTS_MAX];
        for history in &histories.clients {
            let number = history.client;
            let sessions = history
                .operations
                .iter()
                .filter(|operation| operation.kind == Kind::Session && history.mix != Mix::Cached);
            let events: Vec<i64> = sessions.map(|operation| operation.seq).collect();
            for chunk in events.chunks(500) {
                let commands: Vec<_> =
                    chunk.iter().map(|seq| format!("HGET events:{number}:{seq} body")).collect();
                for (seq, reply) in chunk.iter().zip(client.read(&commands)) {
                    if reply != Reply::Nil {
                        assert_eq!(reply.text(), format!("{number}.{seq}"));
                        observed.events[number].insert(*seq);
                    }
                }
            }
        }
        observed
    }

    /// Directly, past Destage, in one transaction.
    pub(crate) fn by_database(database: &Database) -> Self {
        // One statement sees one state.
        let rows = database.rows(
            "SELECT 'counter', id, n FROM counters UNION ALL \
             SELECT 'register', id, seq FROM registers UNION ALL \
             SELECT 'event', client, seq FROM events",
        );
        let mut observed = Self { events: vec![BTreeSet::new(); CLIENTS_MAX], ..Self::default() };
        for row in rows {
            let id: usize = row[1].parse().expect("the id is a number");
            let number: i64 = row[2].parse().expect("the value is a number");
            match row[0].as_str() {
                "counter" => _ = observed.counters.insert(id, number),
                "register" => _ = observed.registers.insert(id, number),
                _ => _ = observed.events[id].insert(number),
            }
        }
        observed
    }

    /// Checks that everything acknowledged is read from a server, and is at its origin, the same and none of it parked, once it
    /// has been drained.
    ///
    /// # Errors
    /// What is not.
    pub(crate) fn all_arrives(
        server: &Server,
        database: &Database,
        histories: &Histories,
    ) -> Result<(), String> {
        let read = Self::by_client(&mut server.client(), histories);
        read.check(histories, Allowed::Nothing)?;
        server.drain();
        let held = Self::by_database(database);
        if held != read {
            return Err(format!("drained: {held:?}\nread before: {read:?}"));
        }
        match server.status()["destage"]["parked_groups"].as_u64() {
            Some(0) => Ok(()),
            parked => Err(format!("parked: {parked:?}")),
        }
    }

    /// Checks that this is a state that really existed, with nothing missing but what is allowed.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn check(&self, histories: &Histories, allowed: Allowed) -> Result<(), String> {
        let global = self.counters[&0];
        if matches!(allowed, Allowed::Nothing) && global < histories.seen {
            return Err(format!(
                "a reader saw the global counter at {}, now it is {global}",
                histories.seen
            ));
        }
        let (mut counted_min, mut counted_max, mut sessions) = (0, 0, 0);
        for history in &histories.clients {
            let prefixes = self.prefixes(history, allowed)?;
            check_global(history, global, &prefixes)?;
            sessions += self.counters[&(10 + history.client)];
            counted_min += history.counted(*prefixes.start());
            counted_max += history.counted(*prefixes.end());
        }
        if sessions != global {
            return Err(format!("{sessions} sessions, but the global counter says {global}"));
        }
        let counted = self.counters[&1];
        if !(counted_min..=counted_max).contains(&counted) {
            return Err(format!(
                "the shared counter is {counted}: {counted_min} to {counted_max} increments happened"
            ));
        }
        Ok(())
    }

    /// Checks that this is a prefix of every ordering domain: of the counters, of each client's registers, of its events. What
    /// spans them, the sessions, is there whole or not at all.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn check_by_domain(&self, histories: &Histories) -> Result<(), String> {
        let global = self.counters[&0];
        let mut sessions = 0;
        for history in &histories.clients {
            let client = history.client;
            sessions += self.counters[&(10 + client)];
            let mut state = Prefix::default();
            let mut fitting = None;
            let mut sets = vec![-1];
            for (at, operation) in history.operations.iter().enumerate() {
                if fitting.is_none() && state.fits_but_second(self, client) {
                    fitting = Some(at);
                }
                if operation.outcome != Outcome::Refused {
                    state.perform(operation.seq, operation.kind, history.mix);
                    sets.extend((operation.kind == Kind::Set).then_some(operation.seq));
                }
            }
            if fitting.is_none() && state.fits_but_second(self, client) {
                fitting = Some(history.operations.len());
            }
            let Some(length) = fitting else {
                return Err(format!(
                    "client {client}: nothing leaves {} sessions, register {}, {} events",
                    self.counters[&(10 + client)],
                    self.registers[&client],
                    self.events[client].len()
                ));
            };
            check_global(history, global, &(length..=length))?;
            if !sets.contains(&self.registers[&(100 + client)]) {
                return Err(format!(
                    "client {client}: nobody set {}",
                    self.registers[&(100 + client)]
                ));
            }
        }
        if sessions == global {
            Ok(())
        } else {
            Err(format!("{sessions} sessions, but the global counter says {global}"))
        }
    }

    /// The prefixes of a client's operations that explain what is found: they differ only by what leaves no trace of its
    /// own (increments of the shared counter).
    fn prefixes(
        &self,
        history: &History,
        allowed: Allowed,
    ) -> Result<RangeInclusive<usize>, String> {
        let least = history.least(allowed);
        let mut state = Prefix::default();
        let mut fitting: Option<RangeInclusive<usize>> = None;
        for length in 0..=history.operations.len() {
            if length >= least && state.fits(self, history.client) {
                let first = fitting.as_ref().map_or(length, |range| *range.start());
                fitting = Some(first..=length);
            }
            let next = history.operations.get(length);
            if let Some(operation) = next.filter(|o| o.outcome != Outcome::Refused) {
                state.perform(operation.seq, operation.kind, history.mix);
            }
        }
        fitting.ok_or_else(|| {
            format!(
                "client {}: no prefix of at least {least} of {} operations leaves {} sessions, \
                 registers {} and {}, {} events",
                history.client,
                history.operations.len(),
                self.counters[&(10 + history.client)],
                self.registers[&history.client],
                self.registers[&(100 + history.client)],
                self.events[history.client].len(),
            )
        })
    }
}

/// Sessions are missing in the global order: those after the counter's value, and no others.
fn check_global(
    history: &History,
    global: i64,
    prefixes: &RangeInclusive<usize>,
) -> Result<(), String> {
    for (index, operation) in history.operations.iter().enumerate() {
        let (Kind::Session, Outcome::Done(_, number)) = (operation.kind, operation.outcome) else {
            continue;
        };
        let present = index < *prefixes.end();
        if present != (number <= global) {
            return Err(format!(
                "client {}: session {} is {}, but the global counter is at {global}",
                history.client,
                number,
                if present { "present" } else { "missing" },
            ));
        }
    }
    Ok(())
}

impl History {
    /// How many operations must be there at least.
    fn least(&self, allowed: Allowed) -> usize {
        let due = |outcome: Outcome| match (outcome, allowed) {
            (Outcome::Done(..), Allowed::Nothing) => true,
            (Outcome::Done(at, _), Allowed::Since(moment)) => at < moment,
            _ => false,
        };
        self.operations.iter().rposition(|operation| due(operation.outcome)).map_or(0, |i| i + 1)
    }

    /// Increments of the shared counter among the first `length` operations.
    fn counted(&self, length: usize) -> i64 {
        let counts = self.operations[..length]
            .iter()
            .filter(|o| o.kind == Kind::Count && o.outcome != Outcome::Refused);
        counts.count() as i64
    }
}

/// What a prefix of one client's operations leaves behind.
struct Prefix {
    sessions: i64,
    register: i64,
    second: i64,
    events: BTreeSet<i64>,
}

impl Default for Prefix {
    fn default() -> Self {
        Self { sessions: 0, register: -1, second: -1, events: BTreeSet::new() }
    }
}

impl Prefix {
    fn perform(&mut self, seq: i64, kind: Kind, mix: Mix) {
        match kind {
            Kind::Session => {
                self.sessions += 1;
                self.register = seq;
                if mix != Mix::Cached {
                    self.events.insert(seq);
                }
            }
            // They leave no trace that is the client's own.
            Kind::Count | Kind::Orphan => {}
            Kind::Set => self.second = seq,
            Kind::Delete(event) => _ = self.events.remove(&event),
        }
    }

    fn fits(&self, observed: &Observed, client: usize) -> bool {
        self.fits_but_second(observed, client) && self.second == observed.registers[&(100 + client)]
    }

    fn fits_but_second(&self, observed: &Observed, client: usize) -> bool {
        self.sessions == observed.counters[&(10 + client)]
            && self.register == observed.registers[&client]
            && self.events == observed.events[client]
    }
}
