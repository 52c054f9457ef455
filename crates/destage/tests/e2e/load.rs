//! Concurrent clients whose writes can be told apart afterwards, and what a state that really existed looks like.
//!
//! Each client performs numbered operations in order. A *session* (`MULTI` to `EXEC`) counts a global and an own counter up,
//! sets an own register and inserts an own event; the others count a shared counter, set another register, or delete an
//! event. So whatever a reader finds later belongs to exactly one prefix of each client's operations, a repeated or lost
//! increment belongs to none, and the replies of the global counter order the sessions of all clients.

pub(crate) mod observed;

pub(crate) use observed::Observed;

use crate::harness::resp::encode;
use crate::harness::{Client, Database, PATIENCE, Random, Reply};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The tables, with a row for each counter and register that the clients use.
const TABLES: &str = "
CREATE TABLE counters (id INTEGER PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0);
CREATE TABLE registers (id INTEGER PRIMARY KEY, seq BIGINT NOT NULL DEFAULT -1, body TEXT);
CREATE TABLE events (client INTEGER, seq INTEGER, body TEXT NOT NULL, PRIMARY KEY (client, seq));
CREATE TABLE orphans (
    client INTEGER, seq INTEGER, parent INTEGER NOT NULL REFERENCES counters (id),
    PRIMARY KEY (client, seq)
);
";

/// Most clients that a load may have.
const CLIENTS_MAX: usize = 16;
/// How long a client that was refused waits before it tries something else.
const AFTER_REFUSAL: Duration = Duration::from_millis(20);

/// Makes the tables.
#[track_caller]
pub(crate) fn tables(database: Database) -> Database {
    let ids = |base: usize| (base..base + CLIENTS_MAX).map(|id| format!("({id})"));
    let list = |ids: Vec<String>| ids.join(", ");
    let counters = list(ids(10).chain(["(0)".to_owned(), "(1)".to_owned()]).collect());
    let registers = list(ids(0).chain(ids(100)).collect());
    database.with(&format!(
        "{TABLES} INSERT INTO counters (id) VALUES {counters}; \
         INSERT INTO registers (id) VALUES {registers};"
    ))
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// One atomic group over three tables.
    Session,
    /// One more in the shared counter.
    Count,
    /// The client's second register.
    Set,
    /// An event goes.
    Delete(i64),
    /// A row that the origin will reject.
    Orphan,
}

/// Which operations the clients choose from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mix {
    /// All of them.
    Full,
    /// Those on rows that exist from the start: once these are cached, the origin is not needed.
    Cached,
    /// All of them, and some that the origin rejects.
    Poisoned,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// No reply: it may have happened.
    Unknown,
    /// Acknowledged then; sessions with the global counter's value.
    Done(Instant, i64),
    /// Answered with an error: it must not have happened.
    Refused,
}

/// An operation with its number, counted from 0 for each client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) seq: i64,
    pub(crate) kind: Kind,
    /// Just before it was sent.
    pub(crate) begun: Instant,
    pub(crate) outcome: Outcome,
}

/// Everything that a client did, in order.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) client: usize,
    pub(crate) operations: Vec<Operation>,
    pub(crate) mix: Mix,
    /// The first refusal, if any.
    pub(crate) refusal: Option<String>,
}

/// What the clients share.
struct Shared {
    stop: AtomicBool,
    /// Nothing new is begun.
    hold: AtomicBool,
    /// Clients that do nothing because of that.
    idle: AtomicI64,
    /// The moment of the newest acknowledgement, in microseconds after `start`.
    last_ack_us: AtomicI64,
    acks: AtomicI64,
    start: Instant,
    /// What each client does nothing for after each reply.
    pause: Duration,
}

/// Clients at work.
pub(crate) struct Load {
    clients: Vec<JoinHandle<History>>,
    reader: JoinHandle<i64>,
    shared: Arc<Shared>,
}

impl Load {
    /// Starts `clients` clients, each with up to `depth` operations under way, and a reader.
    pub(crate) fn start(
        address: SocketAddr,
        seed: u64,
        clients: usize,
        depth: usize,
        mix: Mix,
    ) -> Self {
        Self::paced(address, seed, clients, depth, mix, Duration::ZERO)
    }

    /// The same with a pause after each reply, for loads that go on for long.
    pub(crate) fn paced(
        address: SocketAddr,
        seed: u64,
        clients: usize,
        depth: usize,
        mix: Mix,
        pause: Duration,
    ) -> Self {
        assert!(clients <= CLIENTS_MAX, "the tables have rows for {CLIENTS_MAX} clients");
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            hold: AtomicBool::new(false),
            idle: AtomicI64::new(0),
            last_ack_us: AtomicI64::new(0),
            acks: AtomicI64::new(0),
            start: Instant::now(),
            pause,
        });
        let writers = (0..clients).map(|client| {
            let shared = shared.clone();
            let random = Random::new(seed, client as u64 + 1);
            thread::spawn(move || Writer::new(client, depth, mix, random, shared).run(address))
        });
        let writers = writers.collect();
        let reader = thread::spawn({
            let shared = shared.clone();
            move || read(address, &shared)
        });
        Self { clients: writers, reader, shared }
    }

    /// Operations acknowledged so far.
    pub(crate) fn acks(&self) -> i64 {
        self.shared.acks.load(Ordering::Acquire)
    }

    /// The moment of the newest acknowledgement.
    pub(crate) fn last_ack(&self) -> Instant {
        let us = self.shared.last_ack_us.load(Ordering::Acquire);
        self.shared.start + Duration::from_micros(us.cast_unsigned())
    }

    /// Lets the clients finish what is under way and begin nothing more, or go on. They stay connected.
    pub(crate) fn hold(&self, holds: bool) {
        self.shared.hold.store(holds, Ordering::Release);
    }

    /// Whether all of them have paused.
    pub(crate) fn is_idle(&self) -> bool {
        self.shared.idle.load(Ordering::Acquire) == self.clients.len() as i64 + 1
    }

    /// Lets the clients finish what is under way.
    pub(crate) fn stop(self) -> Histories {
        self.shared.stop.store(true, Ordering::Release);
        self.finish()
    }

    /// What the clients did, after the server has gone.
    pub(crate) fn finish(self) -> Histories {
        let clients = self.clients.into_iter().map(|c| c.join().expect("a client panicked"));
        let clients = clients.collect();
        self.shared.stop.store(true, Ordering::Release);
        let seen = self.reader.join().expect("the reader panicked");
        Histories { clients, seen }
    }
}

impl Shared {
    /// Waits while nothing is to be begun.
    fn pass_hold(&self) {
        let holds = || self.hold.load(Ordering::Acquire) && !self.stop.load(Ordering::Acquire);
        if holds() {
            self.idle.fetch_add(1, Ordering::AcqRel);
            while holds() {
                thread::sleep(Duration::from_millis(2));
            }
            self.idle.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// What all clients did, and the highest value of the global counter that a reader has seen.
pub(crate) struct Histories {
    pub(crate) clients: Vec<History>,
    pub(crate) seen: i64,
}

impl Histories {
    /// The operations that were acknowledged: when each was begun, and when its client had the answer.
    pub(crate) fn acknowledged(&self) -> impl Iterator<Item = (Instant, Instant)> {
        let all = self.clients.iter().flat_map(|client| &client.operations);
        all.filter_map(|operation| match operation.outcome {
            Outcome::Done(at, _) => Some((operation.begun, at)),
            _ => None,
        })
    }

    /// How many rows the origin must have rejected: at least those that were acknowledged, at most all that were sent.
    pub(crate) fn orphans(&self) -> RangeInclusive<i64> {
        let all = self.clients.iter().flat_map(|client| &client.operations);
        let orphans = all.filter(|operation| operation.kind == Kind::Orphan);
        let (mut least, mut most) = (0, 0);
        for orphan in orphans {
            least += i64::from(matches!(orphan.outcome, Outcome::Done(..)));
            most += i64::from(orphan.outcome != Outcome::Refused);
        }
        least..=most
    }
}

/// Reads the global counter again and again.
fn read(address: SocketAddr, shared: &Shared) -> i64 {
    let mut seen = 0;
    let Ok(mut client) = Client::try_connect(address) else {
        return seen;
    };
    while !shared.stop.load(Ordering::Acquire) {
        shared.pass_hold();
        match client.try_call(&["HGET", "counters:0", "n"]) {
            Ok(value @ Reply::Bulk(_)) => {
                assert!(value.int() >= seen, "the global counter went back");
                seen = value.int();
            }
            // Reads of what is not cached fail while the origin is away.
            Ok(_) => {}
            Err(_) => break,
        }
        thread::sleep(shared.pause);
    }
    seen
}

/// One client.
struct Writer {
    history: History,
    depth: usize,
    mix: Mix,
    random: Random,
    shared: Arc<Shared>,
    under_way: VecDeque<usize>,
}

impl Writer {
    fn new(client: usize, depth: usize, mix: Mix, random: Random, shared: Arc<Shared>) -> Self {
        let history = History { client, operations: Vec::new(), mix, refusal: None };
        Self { history, depth, mix, random, shared, under_way: VecDeque::new() }
    }

    fn run(mut self, address: SocketAddr) -> History {
        // The server may be killed before this client gets through: then it did nothing.
        if let Ok(mut connection) = Client::try_connect(address) {
            // A database may be away for a minute, and the writes wait for it.
            connection.patience(PATIENCE * 3);
            // The end of the connection is the end of the client.
            let _ = self.work(&mut connection);
        }
        self.history
    }

    fn work(&mut self, connection: &mut Client) -> io::Result<()> {
        loop {
            if self.under_way.is_empty() {
                self.shared.pass_hold();
            }
            let stop = self.shared.stop.load(Ordering::Acquire)
                || self.shared.hold.load(Ordering::Acquire) && !self.under_way.is_empty();
            let mut bytes = Vec::new();
            while !stop && self.under_way.len() < self.depth {
                self.begin(&mut bytes);
            }
            connection.send_raw(&bytes)?;
            let Some(&first) = self.under_way.front() else {
                return Ok(());
            };
            let outcome = self.receive(connection, self.history.operations[first].kind)?;
            self.history.operations[first].outcome = outcome;
            self.under_way.pop_front();
            let refused = outcome == Outcome::Refused;
            thread::sleep(if refused { AFTER_REFUSAL } else { self.shared.pause });
        }
    }

    fn begin(&mut self, bytes: &mut Vec<u8>) {
        let seq = self.history.operations.len() as i64;
        let poison = self.mix == Mix::Poisoned && self.random.between(0, 25) == 0;
        let kind = match self.random.between(0, 10) {
            _ if poison => Kind::Orphan,
            0..6 => Kind::Session,
            6 | 7 => Kind::Count,
            8 => Kind::Set,
            _ if self.mix == Mix::Cached => Kind::Set,
            _ => self.deletable().map_or(Kind::Count, Kind::Delete),
        };
        let client = self.history.client;
        let body = format!("{client}.{seq}");
        let commands = match kind {
            Kind::Session => {
                let last = match self.mix {
                    Mix::Full | Mix::Poisoned => format!("HSET events:{client}:{seq} body {body}"),
                    Mix::Cached => "PING".to_owned(),
                };
                vec![
                    "MULTI".to_owned(),
                    "HINCRBY counters:0 n 1".to_owned(),
                    format!("HINCRBY counters:{} n 1", 10 + client),
                    format!("HSET registers:{client} seq {seq} body {body}"),
                    last,
                    "EXEC".to_owned(),
                ]
            }
            Kind::Count => vec!["HINCRBY counters:1 n 1".to_owned()],
            Kind::Set => vec![format!("HSET registers:{} seq {seq}", 100 + client)],
            Kind::Delete(event) => vec![format!("DEL events:{client}:{event}")],
            Kind::Orphan => vec![format!("HSET orphans:{client}:{seq} parent 4711")],
        };
        for command in commands {
            encode(bytes, &command.split(' ').collect::<Vec<_>>());
        }
        self.under_way.push_back(self.history.operations.len());
        let (begun, outcome) = (Instant::now(), Outcome::Unknown);
        self.history.operations.push(Operation { seq, kind, begun, outcome });
    }

    /// An acknowledged event that has not been deleted yet: among the newest, so that its insert may still be on its way.
    fn deletable(&mut self) -> Option<i64> {
        let operations = &self.history.operations;
        let back = self.random.between(1, 40) as usize;
        let index = operations.len().checked_sub(back)?;
        let candidate = operations[index];
        let done = matches!(candidate.outcome, Outcome::Done(..));
        let deleted = operations[index..].iter().any(|o| o.kind == Kind::Delete(candidate.seq));
        (candidate.kind == Kind::Session && done && !deleted).then_some(candidate.seq)
    }

    fn receive(&mut self, connection: &mut Client, kind: Kind) -> io::Result<Outcome> {
        let mut reply = connection.receive()?;
        if kind == Kind::Session {
            for _ in 0..5 {
                reply = connection.receive()?;
            }
        }
        if let Reply::Error(message) = &reply
            && message.starts_with("PENDING")
        {
            // It was carried out, which nobody may be told of before D is kept again.
            return Ok(Outcome::Unknown);
        }
        if let Reply::Error(message) = reply {
            self.history.refusal.get_or_insert(message);
            return Ok(Outcome::Refused);
        }
        let number = if kind == Kind::Session { reply.array()[0].int() } else { 0 };
        if let Kind::Delete(event) = kind {
            assert_eq!(reply, Reply::Int(1), "event {event} is not there");
        }
        let now = Instant::now();
        let us = now.duration_since(self.shared.start).as_micros() as i64;
        self.shared.last_ack_us.fetch_max(us, Ordering::AcqRel);
        self.shared.acks.fetch_add(1, Ordering::AcqRel);
        Ok(Outcome::Done(now, number))
    }
}
