//! Every order of everything that can happen to a small configuration, to its end: three servers, two owners, three entries.
//!
//! No lease is in force here, since nothing acknowledged may depend on clocks. Whatever is under way may be carried out at any
//! time, answers may arrive at any later time, a connection may break before or after a request was carried out, and a server
//! may lose its memory.

use destage_core::{Span, Time};
use destage_replicas::{
    Address, Connection, Controls, Entry, Owner, Position, Reply, Request, RunId, Server, Settings,
};
use std::array::from_fn;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

const SERVERS: usize = 3;
const OWNERS: usize = 2;
const NOW: Time = Time::ZERO;

#[derive(Clone, Copy, Default)]
struct Bounds {
    copies: usize,
    /// Of entries.
    writes: u8,
    /// Of servers' memories.
    losses: u8,
    /// Of connections.
    breaks: u8,
    /// Of take-overs.
    epochs: u64,
    states_max: usize,
    /// Owners open with fewer servers than copies.
    opens_short: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Link {
    requests: VecDeque<Request>,
    reply: Option<Reply>,
    /// Of an earlier connection to the same life of the server.
    stray: Option<Request>,
}

/// A part of the state, which most steps leave as it is.
#[derive(Clone)]
struct Part<T> {
    value: Arc<T>,
    hash: u128,
}

impl<T: Hash + Clone> Part<T> {
    fn new(value: T) -> Self {
        Self { hash: fingerprint(&value), value: Arc::new(value) }
    }

    fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        let value = Arc::make_mut(&mut self.value);
        let result = change(value);
        self.hash = fingerprint(value);
        result
    }
}

impl<T> std::ops::Deref for Part<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Hash for Part<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

#[derive(Clone, Hash)]
struct World {
    servers: [Part<(Server, RunId)>; SERVERS],
    controls: Controls,
    owners: [Part<Owner>; OWNERS],
    started: [bool; OWNERS],
    links: [[Part<Link>; SERVERS]; OWNERS],
    written: u8,
    losses: u8,
    breaks: u8,
    /// What k servers hold, or so many that it may go to the origin.
    acknowledged: Arc<BTreeMap<Position, Entry>>,
    secured: [Position; OWNERS],
}

fn address(server: usize) -> Address {
    format!("s{server}").into()
}

fn settings(owner: usize, bounds: Bounds, controls: Controls) -> Settings {
    Settings {
        identity: owner as u64 + 1,
        place: format!("o{owner}").into(),
        subject: "test".into(),
        servers: (0..SERVERS).map(address).collect(),
        copies: bounds.copies,
        lease: Span(1),
        quiet: Span::ZERO,
        renew_every: Span(1),
        window: 1,
        bytes_max: 1 << 10,
        opens_short: bounds.opens_short,
        founds: true,
        at_once: false,
        controls,
    }
}

impl World {
    /// The first owner has founded the log; the other one may begin at any time.
    fn new(bounds: Bounds, controls: Controls) -> Self {
        let mut world = Self {
            controls,
            servers: from_fn(|s| Part::new((Server::new(controls), RunId(s as u128 + 1)))),
            owners: from_fn(|o| Part::new(Owner::new(settings(o, bounds, controls), NOW))),
            started: [false; OWNERS],
            links: from_fn(|_| from_fn(|_| Part::new(Link::default()))),
            written: 0,
            losses: 0,
            breaks: 0,
            acknowledged: Arc::default(),
            secured: [Position::NONE; OWNERS],
        };
        world.start(0);
        while let Some(server) = (0..SERVERS).find(|&s| !world.links[0][s].requests.is_empty()) {
            world.carry_out(0, server);
            world.answer(0, server);
        }
        assert!(world.owners[0].is_open(), "the log is founded");
        world
    }

    fn start(&mut self, owner: usize) {
        self.started[owner] = true;
        (0..SERVERS).for_each(|server| self.connect(owner, server));
    }

    fn connect(&mut self, owner: usize, server: usize) {
        let connection = Connection { run: self.servers[server].1, is_durable: false };
        self.tell(owner, |owner| owner.connected(NOW, &address(server), connection));
    }

    /// An owner is told something, and sends what follows.
    fn tell(&mut self, owner: usize, what: impl FnOnce(&mut Owner)) {
        let requests = self.owners[owner].change(|owner| {
            what(owner);
            std::iter::from_fn(|| owner.poll_request()).collect::<Vec<_>>()
        });
        for (to, request) in requests {
            let server = (0..SERVERS).find(|&s| address(s) == to).expect("a server of ours");
            self.links[owner][server].change(|link| link.requests.push_back(request));
        }
    }

    /// A server does what it was asked first; its answer is under way.
    fn carry_out(&mut self, owner: usize, server: usize) {
        let request = self.links[owner][server].change(|link| link.requests.pop_front());
        let reply = self.servers[server].change(|(s, _)| s.handle(&request.expect("there")));
        self.links[owner][server].change(|link| link.reply = Some(reply));
    }

    fn answer(&mut self, owner: usize, server: usize) {
        let reply = self.links[owner][server].change(|link| link.reply.take()).expect("there");
        self.tell(owner, |owner| owner.replied(NOW, &address(server), reply));
    }

    /// Everything that can happen next.
    fn successors(&self, bounds: Bounds, each: &mut dyn FnMut(Self)) {
        for owner in 0..OWNERS {
            if !self.started[owner] {
                let mut next = self.clone();
                next.start(owner);
                each(next);
                continue;
            }
            for server in 0..SERVERS {
                self.at_link(bounds, (owner, server), each);
            }
            let is_open = self.owners[owner].is_open() && self.owners[owner].may_answer(NOW);
            if is_open && self.written < bounds.writes {
                let mut next = self.clone();
                next.written += 1;
                let payload = [next.written].as_slice().into();
                next.tell(owner, |owner| {
                    owner.append(NOW, payload);
                });
                each(next);
            }
        }
        for server in 0..SERVERS {
            if self.losses < bounds.losses {
                let mut next = self.clone();
                next.lose(server);
                each(next);
            }
        }
    }

    /// A request is carried out and answered, or is carried out and the connection breaks, or the connection breaks before.
    fn at_link(&self, bounds: Bounds, (owner, server): (usize, usize), each: &mut dyn FnMut(Self)) {
        let link = &self.links[owner][server];
        if let Some(request) = &link.stray {
            let mut next = self.clone();
            next.servers[server].change(|(server, _)| server.handle(request));
            next.links[owner][server].change(|link| link.stray = None);
            each(next);
        }
        let Some(request) = link.requests.front() else { return };
        let mut next = self.clone();
        next.carry_out(owner, server);
        let mut broken = (self.breaks < bounds.breaks).then(|| next.clone());
        next.answer(owner, server);
        each(next);
        if let Some(broken) = &mut broken {
            broken.breaks += 1;
            broken.reconnect(owner, server, None);
            each(broken.clone());
            let mut early = self.clone();
            early.breaks += 1;
            early.reconnect(owner, server, Some(request.clone()));
            each(early);
        }
    }

    fn reconnect(&mut self, owner: usize, server: usize, stray: Option<Request>) {
        self.links[owner][server] = Part::new(Link { stray, ..Link::default() });
        self.tell(owner, |owner| owner.disconnected(NOW, &address(server)));
        self.connect(owner, server);
    }

    fn lose(&mut self, server: usize) {
        self.losses += 1;
        let run = RunId(self.servers[server].1.0 + SERVERS as u128);
        self.servers[server] = Part::new((Server::new(self.controls), run));
        for owner in 0..OWNERS {
            if self.started[owner] {
                self.reconnect(owner, server, None);
            }
        }
    }

    /// What an owner says is acknowledged, or may go to the origin, must be in every log of which anything is afterwards.
    fn check(&mut self) -> Result<(), String> {
        for owner in 0..OWNERS {
            let upto = self.owners[owner].secured();
            assert!(self.owners[owner].committed() <= upto);
            if !self.owners[owner].is_open() || upto == self.secured[owner] {
                continue;
            }
            self.secured[owner] = upto;
            let log: BTreeMap<Position, Entry> = self.owners[owner]
                .entries()
                .filter(|(at, _)| *at <= upto)
                .map(|(at, entry)| (at, entry.clone()))
                .collect();
            // A deposed owner may still hear that an entry was accepted which the next one has found.
            let epoch = self.owners[owner].epoch();
            for (at, entry) in &*self.acknowledged {
                let is_later = *at > upto && entry.epoch >= epoch;
                if log.get(at) != Some(entry) && !is_later {
                    return Err(format!("owner {owner} has no {entry:?} at {at:?}: {log:?}"));
                }
            }
            Arc::make_mut(&mut self.acknowledged).extend(log);
        }
        Ok(())
    }

    fn is_within(&self, bounds: Bounds) -> bool {
        self.owners.iter().all(|owner| owner.epoch().number <= bounds.epochs)
    }
}

fn fingerprint(value: &impl Hash) -> u128 {
    let mut hasher = Twin(1, 2);
    value.hash(&mut hasher);
    u128::from(hasher.0) << 64 | u128::from(hasher.1)
}

/// Two mixes at once, since one of 64 bits would confuse some of millions of states.
struct Twin(u64, u64);

impl Hasher for Twin {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
        self.1 = (self.1.rotate_left(23) ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.1 ^= self.1 >> 31;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

struct Found {
    states: usize,
    acknowledged: usize,
    is_complete: bool,
}

/// Looks at every state.
fn search(bounds: Bounds, controls: Controls) -> Result<Found, String> {
    let mut seen = HashSet::new();
    let mut stack = vec![World::new(bounds, controls)];
    let mut found = Found { states: 0, acknowledged: 0, is_complete: true };
    while let Some(world) = stack.pop() {
        found.states += 1;
        if found.states > bounds.states_max {
            found.is_complete = false;
            return Ok(found);
        }
        found.acknowledged = found.acknowledged.max(world.acknowledged.len());
        let mut result = Ok(());
        world.successors(bounds, &mut |mut next| {
            if result.is_ok() {
                result = next.check();
            }
            if next.is_within(bounds) && seen.insert(fingerprint(&next)) {
                stack.push(next);
            }
        });
        result?;
    }
    Ok(found)
}

const ALL: Bounds = Bounds {
    copies: 2,
    writes: 3,
    losses: 0,
    breaks: 0,
    epochs: 3,
    states_max: 4_000_000,
    opens_short: false,
};
/// Three copies on three servers, of which two are enough for the origin to have it.
const SHORT: Bounds = Bounds { copies: 3, opens_short: true, ..ALL };

fn searched(bounds: Bounds) {
    let found = search(bounds, Controls::default()).expect("nothing is lost");
    println!("{} states, {} acknowledged", found.states, found.acknowledged);
    assert!(found.is_complete, "the search has come to its end");
    // The entries, the first ones of both owners, and of whoever fills a server again: that is a take-over of its own.
    assert_eq!(found.acknowledged, usize::from(bounds.writes + bounds.losses) + 2);
}

#[test]
fn nothing_is_lost_in_any_order_of_three_entries_and_a_take_over() {
    searched(ALL);
}

#[test]
fn nothing_is_lost_when_a_connection_breaks_anywhere() {
    searched(Bounds { writes: 1, breaks: 1, ..ALL });
}

#[test]
fn nothing_is_lost_when_a_server_loses_its_memory_anywhere() {
    searched(Bounds { writes: 1, losses: 1, epochs: 2, ..ALL });
}

#[test]
fn nothing_is_lost_when_a_server_is_filled_again_and_another_owner_knows_of_it() {
    // What is acknowledged are the first entries of three epochs. With a write besides, the search takes minutes.
    let writes = std::env::var("DESTAGE_SEARCH_WRITES").ok().and_then(|text| text.parse().ok());
    let writes = writes.unwrap_or(0);
    let bounds = Bounds { writes, losses: 1, epochs: 3, states_max: 60_000_000, ..ALL };
    let found = search(bounds, Controls::default()).expect("nothing is lost");
    println!("{} states, {} acknowledged", found.states, found.acknowledged);
    assert!(found.is_complete, "the search has come to its end");
    assert!(found.acknowledged >= 3 + usize::from(writes), "{}", found.acknowledged);
}

#[test]
fn what_goes_to_the_origin_with_fewer_copies_is_in_every_later_log() {
    searched(Bounds { writes: 2, ..SHORT });
}

#[test]
fn what_goes_to_the_origin_with_fewer_copies_is_kept_when_a_connection_breaks_anywhere() {
    searched(Bounds { writes: 1, breaks: 1, epochs: 2, ..SHORT });
}

#[test]
fn what_goes_to_the_origin_with_fewer_copies_is_kept_when_a_server_loses_its_memory_anywhere() {
    let bounds = Bounds { writes: 1, losses: 1, epochs: 2, ..SHORT };
    let found = search(bounds, Controls::default()).expect("nothing is lost");
    println!("{} states, {} acknowledged", found.states, found.acknowledged);
    assert!(found.is_complete, "the search has come to its end");
    assert!(found.acknowledged >= 3, "{}", found.acknowledged);
}

#[test]
fn a_server_too_few_for_the_origin_is_caught() {
    is_caught(Controls { short_secured: true, ..Controls::default() }, SHORT);
}

fn is_caught(controls: Controls, bounds: Bounds) {
    let found = search(bounds, controls).map(|found| found.states);
    println!("{}", found.expect_err("the search notices"));
}

#[test]
fn a_server_that_takes_entries_of_anybody_is_caught() {
    is_caught(Controls { no_fence: true, ..Controls::default() }, ALL);
}

#[test]
fn a_promise_too_few_is_caught() {
    is_caught(Controls { short_quorum: true, ..Controls::default() }, ALL);
}
