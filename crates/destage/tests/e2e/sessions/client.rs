//! One client, and what it was told.

use super::{ACCOUNTS, REGISTERS, connect};
use crate::harness::resp::encode;
use crate::harness::{Client, Random, Reply, millis};
use destage_testkit::history::register::Operation;
use destage_testkit::history::sessions::Session;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Where the server is just now.
#[derive(Clone, Copy)]
enum Place {
    Nowhere,
    At(SocketAddr),
    Over,
}

/// What the clients share.
pub(super) struct Shared {
    place: Mutex<Place>,
    /// The newest version or value that was given to anyone.
    newest: AtomicU64,
    /// What the clients got done so far: sessions, looks, reads and writes of registers.
    done: AtomicU64,
    /// A client was told an error and has ended.
    refused: AtomicBool,
    start: Instant,
    watches: bool,
    /// The origin crashes at times, and clients are told so.
    may_be_away: bool,
}

impl Shared {
    pub(super) fn new(watches: bool, may_be_away: bool) -> Self {
        let place = Mutex::new(Place::Nowhere);
        let (newest, done) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            place,
            newest,
            done,
            refused: AtomicBool::new(false),
            start: Instant::now(),
            watches,
            may_be_away,
        }
    }

    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    fn set(&self, place: Place) {
        *self.place.lock().expect("no holder panics") = place;
    }

    pub(super) fn open(&self, address: SocketAddr) {
        self.set(Place::At(address));
    }

    pub(super) fn close(&self) {
        self.set(Place::Nowhere);
    }

    pub(super) fn end(&self) {
        self.set(Place::Over);
    }

    /// The server, if there is one now; `None` if there will be none any more.
    pub(super) fn server(&self) -> Option<Option<SocketAddr>> {
        match *self.place.lock().expect("no holder panics") {
            Place::Over => None,
            Place::Nowhere => Some(None),
            Place::At(address) => Some(Some(address)),
        }
    }

    /// Nanoseconds since the start, never 0.
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + 1
    }

    fn new_number(&self) -> u64 {
        self.newest.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// What a client knows in the end.
#[derive(Default)]
pub(super) struct Told {
    pub(super) sessions: Vec<Session>,
    pub(super) operations: Vec<(u64, Operation)>,
    /// An error where none was to come.
    pub(super) refusal: Option<String>,
}

/// How a session makes sure that what it looks at stays.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// WATCH, MULTI, EXEC.
    Watched,
    /// DESTAGE BEGIN, EXEC.
    Leased,
}

/// A client.
pub(super) struct Customer<'a> {
    number: u64,
    random: Random,
    shared: &'a Shared,
    told: Told,
}

impl<'a> Customer<'a> {
    pub(super) fn new(number: u64, random: Random, shared: &'a Shared) -> Self {
        Self { number, random, shared, told: Told::default() }
    }

    /// Goes on until there is no server any more.
    pub(super) fn run(mut self) -> Told {
        while let Some(mut client) = connect(self.shared) {
            // The end of the connection is a kill: another server comes, or none.
            while self.told.refusal.is_none() && self.act(&mut client).is_ok() {
                self.shared.done.fetch_add(1, Ordering::Relaxed);
            }
            if self.told.refusal.is_some() {
                self.shared.refused.store(true, Ordering::Relaxed);
                break;
            }
        }
        self.told
    }

    fn act(&mut self, client: &mut Client) -> io::Result<()> {
        match self.random.between(0, 10) {
            0..2 => self.change(client, Way::Watched, true),
            2..4 => self.change(client, Way::Leased, true),
            4 => self.change(client, Way::Watched, false),
            5 => self.change(client, Way::Leased, false),
            6..8 => self.look(client),
            8 => self.write_register(client),
            _ => self.read_register(client),
        }
    }

    fn refused(&mut self, what: &str, reply: &Reply) {
        let number = self.number;
        self.told.refusal.get_or_insert_with(|| format!("client {number}: {what}: {reply:?}"));
    }

    /// Whether the origin was away, which may come to pass: asks not too often then.
    fn is_away(&self, reply: &Reply) -> bool {
        let says = |reply: &Reply| matches!(reply, Reply::Error(error) if error.starts_with("UNAVAILABLE "));
        let is_away = match reply {
            Reply::Array(replies) => replies.iter().any(says),
            reply => says(reply),
        };
        if is_away && self.shared.may_be_away {
            thread::sleep(millis(2));
        }
        is_away && self.shared.may_be_away
    }

    /// Looks at two accounts, then changes both, by moving money, or only the first.
    fn change(&mut self, client: &mut Client, way: Way, is_transfer: bool) -> io::Result<()> {
        let from = self.random.between(0, ACCOUNTS);
        let to = (from + self.random.between(1, ACCOUNTS)) % ACCOUNTS;
        match way {
            Way::Leased => _ = client.try_call(&["DESTAGE", "BEGIN"])?,
            Way::Watched if self.shared.watches => {
                let keys = [from, to].map(|id| format!("accounts:{id}"));
                client.try_call(&["WATCH", &keys[0], &keys[1]])?;
            }
            Way::Watched => {}
        }
        let Some(before) = self.look_at(client, &[from, to])? else {
            // Others were faster; they may be done after a while.
            thread::sleep(millis(self.random.between(0, 3)));
            let end = if way == Way::Leased { "DISCARD" } else { "UNWATCH" };
            return client.try_call(&[end]).map(drop);
        };
        let version = self.shared.new_number();
        let amount = self.random.between(1, 20).cast_signed();
        let mut bytes = Vec::new();
        if way == Way::Watched {
            encode(&mut bytes, &["MULTI"]);
        }
        let mut change = |id: u64, by: i64| {
            let (key, balance) = (format!("accounts:{id}"), (before[&id].0 + by).to_string());
            let words = ["HSET", &key, "balance", &balance, "version", &version.to_string()];
            encode(&mut bytes, &words);
        };
        let changed: &[u64] = if is_transfer { &[from, to] } else { &[from] };
        if is_transfer {
            change(from, -amount);
            change(to, amount);
        } else {
            change(from, 0)
        }
        encode(&mut bytes, &["EXEC"]);
        let session = Session {
            begun: self.shared.now(),
            ended: None,
            reads: before.iter().map(|(&id, &(_, version))| (id, version)).collect(),
            writes: changed.iter().map(|&id| (id, version)).collect(),
        };
        self.told.sessions.push(session);
        client.send_raw(&bytes)?;
        for _ in 0..changed.len() + usize::from(way == Way::Watched) {
            client.receive()?;
        }
        let reply = client.receive()?;
        let ended = Some(self.shared.now());
        match &reply {
            // Not done: it is no part of the history.
            Reply::Nil => drop(self.told.sessions.pop()),
            Reply::Error(error) if self.shared.may_be_away && error.starts_with("EXECABORT ") => {
                drop(self.told.sessions.pop());
            }
            // Whether it was done is not known.
            reply if self.is_away(reply) => {}
            Reply::Array(replies) if !replies.iter().any(Reply::is_error) => {
                self.told.sessions.last_mut().expect("just pushed").ended = ended;
            }
            other => self.refused("EXEC", other),
        }
        Ok(())
    }

    /// Balances and versions of accounts, one after the other.
    fn look_at(
        &mut self,
        client: &mut Client,
        ids: &[u64],
    ) -> io::Result<Option<BTreeMap<u64, (i64, u64)>>> {
        let mut found = BTreeMap::new();
        for &id in ids {
            let reply =
                client.try_call(&["HMGET", &format!("accounts:{id}"), "balance", "version"])?;
            match account(&reply) {
                Some(account) => _ = found.insert(id, account),
                None if matches!(&reply, Reply::Error(error) if error.starts_with("RETRY ")) => {
                    return Ok(None);
                }
                None if self.is_away(&reply) => return Ok(None),
                None => {
                    self.refused("HMGET", &reply);
                    return Ok(None);
                }
            }
        }
        Ok(Some(found))
    }

    /// Looks at all accounts in one session.
    fn look(&mut self, client: &mut Client) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode(&mut bytes, &["MULTI"]);
        for id in 0..ACCOUNTS {
            encode(&mut bytes, &["HMGET", &format!("accounts:{id}"), "balance", "version"]);
        }
        encode(&mut bytes, &["EXEC"]);
        let begun = self.shared.now();
        client.send_raw(&bytes)?;
        for _ in 0..=ACCOUNTS {
            client.receive()?;
        }
        let reply = client.receive()?;
        let ended = Some(self.shared.now());
        let accounts: Option<Vec<_>> = match &reply {
            Reply::Array(replies) => replies.iter().map(account).collect(),
            _ => None,
        };
        let Some(accounts) = accounts else {
            if !self.is_away(&reply) {
                self.refused("EXEC", &reply);
            }
            return Ok(());
        };
        let accounts = (0..).zip(accounts).collect();
        if let Err(what) = super::check_sum(&accounts, "in a session") {
            self.told.refusal.get_or_insert(what);
        }
        let reads = super::versions(&accounts);
        self.told.sessions.push(Session { begun, ended, reads, writes: BTreeMap::new() });
        Ok(())
    }

    fn write_register(&mut self, client: &mut Client) -> io::Result<()> {
        let (register, value) = (self.random.between(0, REGISTERS), self.shared.new_number());
        let begun = self.shared.now();
        let operation = Operation { begun, ended: None, is_write: true, value };
        self.told.operations.push((register, operation));
        let words = ["HSET", &format!("registers:{register}"), "value", &value.to_string()];
        let reply = client.try_call(&words)?;
        let ended = self.shared.now();
        match reply {
            Reply::Int(0) => {
                self.told.operations.last_mut().expect("just pushed").1.ended = Some(ended);
            }
            other if self.is_away(&other) => {}
            other => self.refused("HSET", &other),
        }
        Ok(())
    }

    fn read_register(&mut self, client: &mut Client) -> io::Result<()> {
        let register = self.random.between(0, REGISTERS);
        let begun = self.shared.now();
        let reply = client.try_call(&["HGET", &format!("registers:{register}"), "value"])?;
        let ended = Some(self.shared.now());
        match &reply {
            Reply::Bulk(_) => {
                let value = reply.int().cast_unsigned();
                let operation = Operation { begun, ended, is_write: false, value };
                self.told.operations.push((register, operation));
            }
            other if self.is_away(other) => {}
            other => self.refused("HGET", other),
        }
        Ok(())
    }
}

/// Balance and version.
fn account(reply: &Reply) -> Option<(i64, u64)> {
    let Reply::Array(fields) = reply else { return None };
    match &fields[..] {
        [balance @ Reply::Bulk(_), version @ Reply::Bulk(_)] => {
            Some((balance.int(), version.int().cast_unsigned()))
        }
        _ => None,
    }
}
