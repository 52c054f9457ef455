//! Every order of everything that can happen to a small configuration, to its end: three servers, two owners, three entries.
//!
//! No lease is in force here, since nothing acknowledged may depend on clocks. Whatever is under way may be carried out at any
//! time, answers may arrive at any later time, a connection may break before or after a request was carried out, and a server
//! may lose its memory.

use destage_core::{Span, Time};
use destage_replicas::{
    Address, Connection, Controls, Entry, Owner, Position, Request, RunId, Server, Settings,
};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};

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
}

#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Link {
    requests: VecDeque<Request>,
    /// Of an earlier connection to the same life of the server.
    stray: Option<Request>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    servers: Vec<(Server, RunId)>,
    controls: Controls,
    owners: Vec<Owner>,
    started: [bool; OWNERS],
    links: Vec<Vec<Link>>,
    written: u8,
    losses: u8,
    breaks: u8,
    acknowledged: BTreeMap<Position, Entry>,
    committed: [Position; OWNERS],
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
        at_once: false,
        controls,
    }
}

impl World {
    /// The first owner has founded the log; the other one may begin at any time.
    fn new(bounds: Bounds, controls: Controls) -> Self {
        let mut world = Self {
            controls,
            servers: (0..SERVERS).map(|s| (Server::new(controls), RunId(s as u128 + 1))).collect(),
            owners: (0..OWNERS).map(|o| Owner::new(settings(o, bounds, controls), NOW)).collect(),
            started: [false; OWNERS],
            links: vec![vec![Link::default(); SERVERS]; OWNERS],
            written: 0,
            losses: 0,
            breaks: 0,
            acknowledged: BTreeMap::new(),
            committed: [Position::NONE; OWNERS],
        };
        world.start(0);
        while let Some(server) = (0..SERVERS).find(|&s| !world.links[0][s].requests.is_empty()) {
            let request = world.links[0][server].requests.pop_front().expect("there");
            let reply = world.servers[server].0.handle(&request);
            world.owners[0].replied(NOW, &address(server), reply);
            world.send(0);
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
        self.owners[owner].connected(NOW, &address(server), connection);
        self.send(owner);
    }

    fn send(&mut self, owner: usize) {
        while let Some((to, request)) = self.owners[owner].poll_request() {
            let server = (0..SERVERS).find(|&s| address(s) == to).expect("a server of ours");
            self.links[owner][server].requests.push_back(request);
        }
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
                next.owners[owner].append(NOW, [next.written].as_slice().into());
                next.send(owner);
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
            next.servers[server].0.handle(request);
            next.links[owner][server].stray = None;
            each(next);
        }
        let Some(request) = link.requests.front() else { return };
        let mut next = self.clone();
        next.links[owner][server].requests.pop_front();
        let reply = next.servers[server].0.handle(request);
        let mut broken = (self.breaks < bounds.breaks).then(|| next.clone());
        next.owners[owner].replied(NOW, &address(server), reply);
        next.send(owner);
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
        self.links[owner][server] = Link { stray, ..Link::default() };
        self.owners[owner].disconnected(NOW, &address(server));
        self.send(owner);
        self.connect(owner, server);
    }

    fn lose(&mut self, server: usize) {
        self.losses += 1;
        let (memory, run) = &mut self.servers[server];
        *memory = Server::new(self.controls);
        run.0 += SERVERS as u128;
        for owner in 0..OWNERS {
            if self.started[owner] {
                self.reconnect(owner, server, None);
            }
        }
    }

    /// What an owner says is acknowledged must be in every log that anything is acknowledged from afterwards.
    fn check(&mut self) -> Result<(), String> {
        for owner in 0..OWNERS {
            let upto = self.owners[owner].committed();
            if !self.owners[owner].is_open() || upto == self.committed[owner] {
                continue;
            }
            self.committed[owner] = upto;
            let log: BTreeMap<Position, Entry> = self.owners[owner]
                .entries()
                .filter(|(at, _)| *at <= upto)
                .map(|(at, entry)| (at, entry.clone()))
                .collect();
            // A deposed owner may still hear that an entry was accepted which the next one has found.
            let epoch = self.owners[owner].epoch();
            for (at, entry) in &self.acknowledged {
                let is_later = *at > upto && entry.epoch >= epoch;
                if log.get(at) != Some(entry) && !is_later {
                    return Err(format!("owner {owner} has no {entry:?} at {at:?}: {log:?}"));
                }
            }
            self.acknowledged.extend(log);
        }
        Ok(())
    }

    fn is_within(&self, bounds: Bounds) -> bool {
        self.owners.iter().all(|owner| owner.epoch().number <= bounds.epochs)
    }

    fn fingerprint(&self) -> u128 {
        let mut hasher = Twin(1, 2);
        self.hash(&mut hasher);
        u128::from(hasher.0) << 64 | u128::from(hasher.1)
    }
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
            if next.is_within(bounds) && seen.insert(next.fingerprint()) {
                stack.push(next);
            }
        });
        result?;
    }
    Ok(found)
}

#[test]
fn probe() {
    let began = std::time::Instant::now();
    let var = |n: &str, d: u64| std::env::var(n).ok().and_then(|v| v.parse().ok()).unwrap_or(d);
    let bounds = Bounds {
        copies: var("K", 2) as usize,
        writes: var("W", 1) as u8,
        losses: var("L", 0) as u8,
        breaks: var("B", 0) as u8,
        epochs: var("E", 2),
        states_max: 6_000_000,
    };
    let found = search(bounds, Controls::default()).expect("nothing is lost");
    println!("{} states, {} acknowledged, complete {}, {:?}", found.states, found.acknowledged, found.is_complete, began.elapsed());
}
