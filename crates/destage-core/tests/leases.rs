//! Every order in which a few sessions, destagers and accidents can go, on the very code that grants the leases.
//!
//! Sessions read and change rows step by step, as remote ones would: what they change is in the cache before they commit.
//! Destagers bring committed groups to the origin under an X lease on the queue. Any of them may stop for ever between two
//! steps, or so long that its leases end and it comes back late; rows may be evicted at any time. Plain commands write
//! between the steps of sessions, in one step each. And the whole process may stop: leases, cache and the sessions under way
//! are gone then, the committed groups are not, and a transaction on its way to the origin lands early, late or never.
//!
//! What must hold is what the report's appendix proves:
//! - theorem 1, read-after-write consistency while buffered writes are applied. Lemma 1.1, what a session has read is the
//!   newest committed value when it commits, on a hit as on a miss; so the order of the commits is a serial order of readers
//!   and writers (lemma 1.2) and of writers (lemma 1.3);
//! - theorem 2, the origin's consistency whatever happens to those who apply buffered writes: it holds each group once, in
//!   order, and no group leaves the queue before.
//!
//! Each rule that the driver or the table keeps can be left out, and then some order breaks a promise.

use Step::{Add, Commit, Lock, Read, Validate, Write};
use destage_core::lease::{Denied, Leases, Token};
use destage_core::{Span, Time};
use std::collections::HashSet;

const ROWS: usize = 2;
/// One tick; each tick lets every session so far expire.
const LIFETIME: Span = Span(1);

/// A number per row.
type Values = [i64; ROWS];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Row(usize),
    /// The committed groups that are not decided.
    Queue,
}

/// What a session does, step by step.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read(usize),
    Lock(usize),
    /// Adds to what it has read, in the cache.
    Add(usize, i64),
    Validate,
    Commit,
    /// A plain command: adds at once, without a session, and waits while it must not.
    Write(usize, i64),
}

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    Nothing,
    /// Sessions do not ask for leases.
    Leases,
    /// Plain commands do not ask whether they may write.
    PlainWrites,
    /// What a late holder does counts.
    Fence,
    /// The cached value stays when the X lease on it expires.
    DropOnExpiry,
    /// A value fetched under an S lease is kept though the lease is void by now.
    CheckOfFetched,
    /// Misses read the origin alone.
    Overlay,
    /// A destager applies its group without looking where the origin is.
    Watermark,
}

/// A session under way, and how often it may begin anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    token: Option<Token>,
    at: usize,
    reads: [Option<i64>; ROWS],
    fetched: Option<i64>,
    added: Values,
    attempts: u8,
    is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Destager {
    Idle,
    /// Has the lease and has read the group after this many.
    Read(Token, usize),
    /// Has brought it to the origin.
    Applied(Token, usize),
    Crashed,
}

/// What may still go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Accidents {
    ticks: u8,
    crashes: u8,
    evictions: u8,
    /// Of the whole process.
    restarts: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    leases: Leases<Key>,
    now: Time,
    left: Accidents,
    /// The values after all committed sessions.
    committed: Values,
    /// What each committed session added.
    log: Vec<Values>,
    /// So many of them have left the queue.
    decided: usize,
    cache: [Option<i64>; ROWS],
    origin: Values,
    watermark: usize,
    clients: Vec<Client>,
    destagers: Vec<Destager>,
    /// Groups whose transaction an earlier process has sent: it may land at any time.
    late: Vec<usize>,
}

/// What the clients do, and how many destagers there are.
struct Scenario {
    programs: &'static [&'static [Step]],
    destagers: usize,
    accidents: Accidents,
}

/// What an exploration met.
#[derive(Debug, Default)]
struct Met {
    worlds: usize,
    conflicts: usize,
    voided: usize,
    fenced: usize,
    /// The most sessions that committed on one way.
    commits: usize,
}

fn add(values: &mut Values, more: &Values) {
    values.iter_mut().zip(more).for_each(|(value, more)| *value += more);
}

fn sum(groups: &[Values]) -> Values {
    groups.iter().fold([0; ROWS], |mut sum, group| {
        add(&mut sum, group);
        sum
    })
}

impl Client {
    fn new(attempts: u8) -> Self {
        Self {
            token: None,
            at: 0,
            reads: [None; ROWS],
            fetched: None,
            added: [0; ROWS],
            attempts,
            is_over: attempts == 0,
        }
    }
}

impl World {
    fn new(scenario: &Scenario) -> Self {
        Self {
            leases: Leases::default(),
            now: Time(1),
            left: scenario.accidents,
            committed: [0; ROWS],
            log: Vec::new(),
            decided: 0,
            cache: [None; ROWS],
            origin: [0; ROWS],
            watermark: 0,
            clients: vec![Client::new(2); scenario.programs.len()],
            destagers: vec![Destager::Idle; scenario.destagers],
            late: Vec::new(),
        }
    }

    fn drop_cached(&mut self, keys: Vec<Key>) {
        for key in keys {
            if let Key::Row(row) = key {
                self.cache[row] = None;
            }
        }
    }

    /// Ends a session without effect; it begins anew if it may.
    fn restart(&mut self, index: usize) {
        if let Some(token) = self.clients[index].token {
            let keys = self.leases.abort(token);
            self.drop_cached(keys);
        }
        let client = &mut self.clients[index];
        *client = Client::new(client.attempts - 1);
    }

    /// The process stops and another one takes its place: it knows what is in the journal and at the origin.
    fn restart_process(&mut self) {
        self.leases = Leases::default();
        self.cache = [None; ROWS];
        self.decided = self.watermark;
        for client in self.clients.iter_mut().filter(|client| client.token.is_some()) {
            if !client.is_over {
                *client = Client::new(client.attempts - 1);
            }
        }
        for destager in &mut self.destagers {
            if let Destager::Read(_, group) = *destager {
                self.late.push(group);
            }
            *destager = Destager::Idle;
        }
    }

    /// A plain command, unless it has to wait.
    fn write(&mut self, index: usize, row: usize, amount: i64, rules: Rules, met: &mut Met) {
        let is_unasked = matches!(rules.0, Sabotage::Leases | Sabotage::PlainWrites);
        if !is_unasked && self.leases.write(&Key::Row(row)).is_err() {
            met.conflicts += 1;
            return;
        }
        let mut added = [0; ROWS];
        added[row] = amount;
        self.cache[row] = self.cache[row].map(|value| value + amount);
        self.log.push(added);
        add(&mut self.committed, &added);
        self.clients[index].is_over = true;
    }

    /// The next step of a session, whose program is `steps`.
    fn step(&mut self, index: usize, steps: &[Step], rules: Rules, met: &mut Met) {
        let now = self.now;
        if let Write(row, amount) = steps[self.clients[index].at] {
            self.write(index, row, amount, rules, met);
            return;
        }
        let token = match self.clients[index].token {
            Some(token) => token,
            None => self.leases.begin(now, LIFETIME),
        };
        self.clients[index].token = Some(token);
        let done = match steps[self.clients[index].at] {
            Read(row) => self.read(index, token, row, rules),
            Lock(row) => rules.ask(|| self.leases.exclude(now, token, &Key::Row(row))),
            Add(row, amount) => rules.fence(self.leases.check(now, token)).map(|()| {
                let client = &mut self.clients[index];
                client.added[row] += amount;
                self.cache[row] = client.reads[row].map(|value| value + client.added[row]);
            }),
            Validate => rules.fence(self.leases.validate(now, token)),
            Commit => rules.fence(self.leases.commit(now, token)).map(|()| {
                self.commit(index, met);
            }),
            Write(..) => unreachable!("no step of a session"),
        };
        match done {
            Ok(()) if self.clients[index].fetched.is_none() => self.clients[index].at += 1,
            Ok(()) => {}
            Err(denied) => {
                *match denied {
                    Denied::Conflict => &mut met.conflicts,
                    Denied::Voided => &mut met.voided,
                    Denied::Fenced => &mut met.fenced,
                } += 1;
                self.restart(index);
            }
        }
    }

    /// A hit, or a miss in two steps: the origin is asked, and later its answer is installed.
    fn read(&mut self, index: usize, token: Token, row: usize, rules: Rules) -> Result<(), Denied> {
        if let Some(value) = self.clients[index].fetched.take() {
            if rules.0 != Sabotage::CheckOfFetched {
                rules.fence(self.leases.check(self.now, token))?;
            }
            self.cache[row] = Some(value);
            self.clients[index].reads[row] = Some(value);
            return Ok(());
        }
        rules.ask(|| self.leases.share(self.now, token, &Key::Row(row)))?;
        match self.cache[row] {
            Some(value) => self.clients[index].reads[row] = Some(value),
            None => {
                let later = match rules.0 {
                    Sabotage::Overlay => [0; ROWS],
                    _ => sum(&self.log[self.watermark..]),
                };
                self.clients[index].fetched = Some(self.origin[row] + later[row]);
            }
        }
        Ok(())
    }

    /// The session takes effect. Theorem 1: everything that it has read is still so.
    fn commit(&mut self, index: usize, met: &mut Met) {
        let client = &mut self.clients[index];
        client.is_over = true;
        for (row, read) in client.reads.iter().enumerate() {
            let newest = self.committed[row];
            assert!(
                read.is_none_or(|read| read == newest),
                "session {index} commits after reading {read:?} in row {row}, which is {newest}"
            );
        }
        if client.added != [0; ROWS] {
            self.log.push(client.added);
            add(&mut self.committed, &client.added);
        }
        let commits = self.clients.iter().filter(|c| c.is_over && c.attempts > 0).count();
        met.commits = met.commits.max(commits);
    }

    /// The next step of a destager; false if it has nothing to do.
    fn destage(&mut self, index: usize, rules: Rules, met: &mut Met) -> bool {
        let now = self.now;
        self.destagers[index] = match self.destagers[index] {
            Destager::Idle if self.decided < self.log.len() => {
                let token = self.leases.begin(now, LIFETIME);
                let granted = rules.ask(|| self.leases.exclude(now, token, &Key::Queue));
                if granted.is_err() {
                    // It would ask again and again: others go on first.
                    return false;
                }
                Destager::Read(token, self.decided)
            }
            Destager::Read(token, group) => {
                self.land(group, rules);
                Destager::Applied(token, group)
            }
            Destager::Applied(token, group) => {
                match rules.fence(self.leases.commit(now, token)) {
                    Ok(()) => self.decided = self.decided.max(group + 1),
                    Err(_) => met.fenced += 1,
                }
                Destager::Idle
            }
            Destager::Idle | Destager::Crashed => return false,
        };
        true
    }

    /// One transaction at the origin.
    fn land(&mut self, group: usize, rules: Rules) {
        if self.watermark == group || rules.0 == Sabotage::Watermark {
            add(&mut self.origin, &self.log[group].clone());
            self.watermark = self.watermark.max(group + 1);
        }
    }

    /// Theorem 2, and that leases exclude each other.
    fn check(&self) {
        let landed = sum(&self.log[..self.watermark]);
        assert_eq!(self.origin, landed, "the origin, after {} groups", self.watermark);
        assert!(self.decided <= self.watermark, "a group left the queue before it was applied");
        for key in (0..ROWS).map(Key::Row).chain([Key::Queue]) {
            if let Some(holder) = self.leases.exclusive(&key) {
                assert!(self.leases.shared(&key).all(|other| other == holder), "{key:?}");
            }
        }
    }

    /// Everything that may happen next.
    fn successors(&self, scenario: &Scenario, rules: Rules, met: &mut Met) -> Vec<Self> {
        let mut next = Vec::new();
        for (index, program) in scenario.programs.iter().enumerate() {
            if !self.clients[index].is_over {
                next.push(self.with(|world| world.step(index, program, rules, met)));
            }
        }
        for index in 0..self.destagers.len() {
            let mut world = self.clone();
            if world.destage(index, rules, met) {
                next.push(world);
            }
        }
        if self.left.crashes > 0 {
            let busy = |index: &usize| {
                !self.clients[*index].is_over && self.clients[*index].token.is_some()
            };
            next.extend((0..self.clients.len()).filter(busy).map(|index| {
                self.with(|world| {
                    world.left.crashes -= 1;
                    (world.clients[index].is_over, world.clients[index].attempts) = (true, 0);
                })
            }));
            let busy = |index: &usize| {
                matches!(self.destagers[*index], Destager::Read(..) | Destager::Applied(..))
            };
            next.extend((0..self.destagers.len()).filter(busy).map(|index| {
                self.with(|world| {
                    world.left.crashes -= 1;
                    world.destagers[index] = Destager::Crashed;
                })
            }));
        }
        next.extend((0..self.late.len()).map(|index| {
            self.with(|world| {
                let group = world.late.remove(index);
                world.land(group, rules);
            })
        }));
        if self.left.restarts > 0 {
            next.push(self.with(|world| {
                world.left.restarts -= 1;
                world.restart_process();
            }));
        }
        if self.left.ticks > 0 && self.leases.next_timeout().is_some() {
            next.push(self.with(|world| {
                world.left.ticks -= 1;
                world.now = world.now + Span(1);
                let keys = world.leases.expire(world.now);
                if rules.0 != Sabotage::DropOnExpiry {
                    world.drop_cached(keys);
                }
            }));
        }
        for row in 0..ROWS {
            let is_clean = self.leases.exclusive(&Key::Row(row)).is_none();
            if self.left.evictions > 0 && is_clean && self.cache[row].is_some() {
                next.push(self.with(|world| {
                    world.left.evictions -= 1;
                    world.cache[row] = None;
                }));
            }
        }
        next
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut world = self.clone();
        change(&mut world);
        world
    }
}

/// The driver's part, with what is left out of it.
#[derive(Clone, Copy)]
struct Rules(Sabotage);

impl Rules {
    fn ask(self, request: impl FnOnce() -> Result<(), Denied>) -> Result<(), Denied> {
        match self.0 {
            Sabotage::Leases => Ok(()),
            _ => self.fence(request()),
        }
    }

    fn fence(self, answer: Result<(), Denied>) -> Result<(), Denied> {
        match (self.0, answer) {
            (Sabotage::Fence, Err(Denied::Fenced)) => Ok(()),
            (_, answer) => answer,
        }
    }
}

/// Goes every way to its end.
fn explore(scenario: &Scenario, sabotage: Sabotage) -> Met {
    let mut met = Met::default();
    let first = World::new(scenario);
    let mut known = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        world.check();
        for next in world.successors(scenario, Rules(sabotage), &mut met) {
            if known.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    met.worlds = known.len();
    met
}

/// Each reads both rows and changes one: of two that see each other's old value, one must give way.
const SKEW: Scenario = Scenario {
    programs: &[
        &[Read(0), Read(1), Lock(0), Add(0, 1), Validate, Commit],
        &[Read(1), Read(0), Lock(1), Add(1, 10), Validate, Commit],
    ],
    destagers: 1,
    accidents: Accidents { ticks: 1, crashes: 1, evictions: 1, restarts: 0 },
};
/// Two add to one row, and the second also to another.
const UPDATES: Scenario = Scenario {
    programs: &[
        &[Read(0), Lock(0), Add(0, 1), Commit],
        &[Read(0), Read(1), Lock(0), Add(0, 10), Lock(1), Add(1, 100), Commit],
    ],
    destagers: 1,
    accidents: Accidents { ticks: 2, crashes: 1, evictions: 1, restarts: 0 },
};
/// A reader of both rows beside a writer of each.
const FORK: Scenario = Scenario {
    programs: &[
        &[Read(0), Lock(0), Add(0, 1), Commit],
        &[Read(1), Lock(1), Add(1, 10), Commit],
        &[Read(0), Read(1), Validate, Commit],
    ],
    destagers: 0,
    accidents: Accidents { ticks: 1, crashes: 0, evictions: 1, restarts: 0 },
};
/// Destagers that crash and come late.
const DESTAGERS: Scenario = Scenario {
    programs: &[&[Read(0), Lock(0), Add(0, 1), Commit], &[Read(0), Lock(0), Add(0, 10), Commit]],
    destagers: 2,
    accidents: Accidents { ticks: 2, crashes: 1, evictions: 0, restarts: 0 },
};
/// Plain commands beside a session that reads what one of them writes, and writes what the other does.
const PLAIN: Scenario = Scenario {
    programs: &[
        &[Read(0), Read(1), Lock(1), Add(1, 100), Validate, Commit],
        &[Write(0, 1)],
        &[Write(1, 10)],
    ],
    destagers: 1,
    accidents: Accidents { ticks: 1, crashes: 0, evictions: 1, restarts: 0 },
};
/// The process stops between any two steps, also while it destages.
const RESTARTS: Scenario = Scenario {
    programs: &[&[Read(0), Lock(0), Add(0, 1), Commit], &[Read(0), Commit], &[Write(0, 10)]],
    destagers: 1,
    accidents: Accidents { ticks: 1, crashes: 0, evictions: 0, restarts: 1 },
};
const SCENARIOS: [(&str, Scenario); 6] = [
    ("plain", PLAIN),
    ("skew", SKEW),
    ("updates", UPDATES),
    ("fork", FORK),
    ("destagers", DESTAGERS),
    ("restarts", RESTARTS),
];

#[test]
fn sessions_are_serial_and_the_origin_gets_each_once_in_every_order() {
    for (name, scenario) in SCENARIOS {
        let met = explore(&scenario, Sabotage::Nothing);
        eprintln!("{name}: {met:?}");
        // An exploration that does not meet what the leases are for proves nothing.
        assert_eq!(met.commits, scenario.programs.len(), "{name}: {met:?}");
        assert!(met.worlds > 1_000 && met.voided > 100 && met.fenced > 100, "{name}: {met:?}");
    }
}

/// The first broken promise, in any scenario.
fn caught(sabotage: Sabotage) -> String {
    let mut messages = SCENARIOS.iter().filter_map(|(_, scenario)| message(scenario, sabotage));
    messages.next().unwrap_or_else(|| panic!("nobody notices: {sabotage:?}"))
}

fn message(scenario: &Scenario, sabotage: Sabotage) -> Option<String> {
    let panic = std::panic::catch_unwind(|| explore(scenario, sabotage)).err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn every_rule_left_out_breaks_a_promise_in_some_order() {
    for sabotage in [
        Sabotage::Leases,
        Sabotage::PlainWrites,
        Sabotage::Fence,
        Sabotage::DropOnExpiry,
        Sabotage::CheckOfFetched,
        Sabotage::Overlay,
    ] {
        let message = caught(sabotage);
        assert!(message.contains("commits after reading"), "{sabotage:?}: {message}");
    }
    for scenario in [DESTAGERS, RESTARTS] {
        let message = message(&scenario, Sabotage::Watermark).expect("a group lands twice");
        assert!(message.contains("the origin, after"), "{message}");
    }
}
