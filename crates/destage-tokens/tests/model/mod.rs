//! Several hosts, the store and an origin, as steps that can come in any order: what the simulation draws by chance, and what
//! the search tries all of.
//!
//! File 0 is a directory whose value says which files are in it; those are made under its token. A read must give what the
//! last write gave. A write of a host that has been shut out may be lost, once somebody has seen the origin without it: then
//! it is kept by who wrote it, and never reaches the origin.

use destage_core::{Span, Time};
use destage_tokens::{
    AskId, Controls, Effect, Event, FileId, Host, HostId, Kept, Key, LeaseId, Mode, Need, Root,
    Settings, Stage, Store, Txn, TxnReply, Value,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is broken on purpose besides the protocol itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Broken {
    pub(crate) controls: Controls,
    /// What was read under a token is still shown when it is gone.
    pub(crate) no_invalidation: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Op {
    pub(crate) file: usize,
    pub(crate) kind: Kind,
    pub(crate) is_admitted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Read,
    Write,
    /// Makes this file in directory 0.
    Create(usize),
}

#[derive(Clone, Debug, Hash)]
struct Truth {
    value: u64,
    writer: usize,
    may_be_lost: bool,
}

/// A host with what is around it.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Machine {
    pub(crate) host: Option<Host>,
    /// In its journal, with the token that covered it.
    pub(crate) dirty: BTreeMap<usize, (u64, Root)>,
    cache: BTreeMap<usize, u64>,
    /// Files of which it has heard.
    known: BTreeSet<usize>,
    /// On the way to the origin.
    pub(crate) io: Vec<(usize, u64)>,
    pub(crate) ops: BTreeMap<u64, Op>,
    revoking: Vec<(Root, Option<Mode>, BTreeSet<usize>)>,
    pub(crate) txn: Option<Txn>,
    pub(crate) reply: Option<TxnReply>,
    pub(crate) events: VecDeque<Event>,
    is_watching: bool,
    pub(crate) load: bool,
    pub(crate) fences: Vec<HostId>,
    pub(crate) lease_asked: Option<Time>,
    pub(crate) renews: VecDeque<(Time, LeaseId)>,
    pub(crate) lease: Option<LeaseId>,
    is_evicted: bool,
    kept: Vec<(usize, u64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Counted {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) creates: u64,
    pub(crate) revoked: u64,
    pub(crate) fenced: u64,
    pub(crate) confirmed: u64,
    pub(crate) conflicts: u64,
    pub(crate) reconnects: u64,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) machines: Vec<Machine>,
    origin: Vec<u64>,
    truth: Vec<Truth>,
    /// Files that were ever made: none is made twice.
    made: BTreeSet<usize>,
    next_value: u64,
    next_ask: u64,
    next_lease: u64,
    pub(crate) alive: BTreeSet<LeaseId>,
    broken: Broken,
    settings: Settings,
    pub(crate) counted: Counted,
}

pub(crate) fn file_id(file: usize) -> FileId {
    [file as u8].as_slice().into()
}

fn file_of(id: &FileId) -> usize {
    id[0].into()
}

fn host_id(machine: usize) -> HostId {
    HostId(machine as u128 + 1)
}

impl World {
    pub(crate) fn new(hosts: usize, files: usize, settings: Settings, broken: Broken) -> Self {
        let machine = Machine {
            host: None,
            dirty: BTreeMap::new(),
            cache: BTreeMap::new(),
            known: BTreeSet::from([0]),
            io: Vec::new(),
            ops: BTreeMap::new(),
            revoking: Vec::new(),
            txn: None,
            reply: None,
            events: VecDeque::new(),
            is_watching: false,
            load: false,
            fences: Vec::new(),
            lease_asked: None,
            renews: VecDeque::new(),
            lease: None,
            is_evicted: false,
            kept: Vec::new(),
        };
        let truth = Truth { value: 0, writer: 0, may_be_lost: false };
        Self {
            store: Store::default(),
            machines: vec![machine; hosts],
            origin: vec![0; files],
            truth: vec![truth; files],
            made: BTreeSet::new(),
            next_value: 0,
            next_ask: 0,
            next_lease: 0,
            alive: BTreeSet::new(),
            broken,
            settings,
            counted: Counted::default(),
        }
    }

    pub(crate) fn files(&self) -> usize {
        self.origin.len()
    }

    pub(crate) fn settings(lease: Span, margin: Span, controls: Controls) -> Settings {
        Settings {
            host: HostId(0),
            lease,
            margin,
            renew_every: Span(lease.0 / 3),
            retry_after: Span(lease.0 / 10),
            tokens_max: 100,
            controls,
        }
    }

    pub(crate) fn is_serving(&self, m: usize, now: Time) -> bool {
        self.machines[m].host.as_ref().is_some_and(|host| host.may_serve(now))
    }

    /// The process starts.
    pub(crate) fn start(&mut self, m: usize, now: Time) -> Result<(), String> {
        // Its claim is free only once nothing of an earlier life is on its way.
        assert!(self.machines[m].io.is_empty(), "an earlier life's writes");
        let controls = self.broken.controls;
        let mut host = Host::new(Settings { host: host_id(m), controls, ..self.settings });
        host.start(now);
        self.machines[m].host = Some(host);
        self.machines[m].is_evicted = false;
        self.effects(m, now)
    }

    /// The process ends. What is on its way to the origin arrives, or not.
    pub(crate) fn crash(&mut self, m: usize) {
        let machine = &mut self.machines[m];
        machine.host = None;
        machine.cache.clear();
        machine.ops.clear();
        machine.revoking.clear();
        (machine.txn, machine.reply) = (None, None);
        machine.events.clear();
        machine.is_watching = false;
        machine.load = false;
        machine.fences.clear();
        machine.lease_asked = None;
        machine.renews.clear();
        machine.lease = None;
    }

    fn tell(&mut self, m: usize, now: Time, what: impl FnOnce(&mut Host)) -> Result<(), String> {
        if let Some(host) = &mut self.machines[m].host {
            what(host);
        }
        self.effects(m, now)
    }

    fn effects(&mut self, m: usize, now: Time) -> Result<(), String> {
        while let Some(effect) = self.machines[m].host.as_mut().and_then(Host::poll) {
            let files = self.files();
            let machine = &mut self.machines[m];
            match effect {
                Effect::Lease => machine.lease_asked = Some(now),
                Effect::Renew(lease) => machine.renews.push_back((now, lease)),
                Effect::Load => machine.load = true,
                Effect::Txn(txn) => {
                    assert!(machine.txn.is_none(), "one transaction at a time");
                    machine.txn = Some(txn);
                }
                Effect::Admit(ask) => {
                    if let Some(op) = machine.ops.get_mut(&ask.0) {
                        op.is_admitted = true;
                    }
                }
                Effect::Revoke { root, to, covered } => {
                    let files: BTreeSet<usize> = match &root {
                        Root::Volume => (0..files).collect(),
                        Root::File(file) => {
                            [file].into_iter().chain(&covered).map(file_of).collect()
                        }
                    };
                    machine.revoking.push((root, to, files));
                    self.counted.revoked += 1;
                }
                Effect::Fence(host) => machine.fences.push(host),
                Effect::Entered => {
                    self.entered(m);
                    if let Some(host) = &mut self.machines[m].host {
                        host.recovered(now);
                    }
                }
                Effect::Fenced => self.crash(m),
                Effect::Left => return Err("nobody leaves".into()),
            }
        }
        Ok(())
    }

    /// What an earlier life has left.
    fn entered(&mut self, m: usize) {
        let machine = &mut self.machines[m];
        let Some(host) = &machine.host else { return };
        let (kept, lost): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut machine.dirty)
            .into_iter()
            .partition(|(_, (_, cover))| host.is_confirmed(cover));
        self.counted.confirmed += kept.len() as u64;
        self.counted.conflicts += lost.len() as u64;
        machine.kept.extend(lost.iter().map(|(file, (value, _))| (*file, *value)));
        for (file, (value, _)) in &kept {
            let truth = &mut self.truth[*file];
            if truth.value == *value {
                truth.may_be_lost = false;
            }
        }
        // What a directory's token covers is given up with it, in this life, too.
        let covers: Vec<_> = kept.iter().map(|(file, (_, cover))| (*file, cover.clone())).collect();
        machine.dirty = kept;
        for (file, cover) in covers {
            if let (Some(host), Root::File(dir)) = (&mut machine.host, cover)
                && dir != file_id(file)
            {
                host.born(&file_id(file), &dir);
            }
        }
    }

    /// The store gives a lease, or does not answer.
    pub(crate) fn lease(&mut self, m: usize, now: Time, is_lost: bool) -> Result<(), String> {
        let Some(asked) = self.machines[m].lease_asked.take() else { return Ok(()) };
        self.next_lease += 1;
        let lease = LeaseId(self.next_lease);
        self.alive.insert(lease);
        let lease = (!is_lost).then_some(lease);
        self.machines[m].lease = lease;
        self.counted.reconnects += 1;
        self.tell(m, now, |host| host.leased(now, asked, lease))
    }

    pub(crate) fn renew(&mut self, m: usize, now: Time, is_lost: bool) -> Result<(), String> {
        let Some((asked, lease)) = self.machines[m].renews.pop_front() else { return Ok(()) };
        let kept = match () {
            () if is_lost => Kept::Failed,
            () if self.alive.contains(&lease) => Kept::Renewed,
            () => Kept::Gone,
        };
        self.tell(m, now, |host| host.kept(now, asked, lease, kept))
    }

    pub(crate) fn load(&mut self, m: usize, now: Time, is_lost: bool) -> Result<(), String> {
        self.machines[m].load = false;
        let all = (!is_lost).then(|| self.store.all());
        self.machines[m].events.clear();
        self.machines[m].is_watching = !is_lost;
        self.tell(m, now, |host| host.loaded(now, all))
    }

    pub(crate) fn unwatch(&mut self, m: usize, now: Time) -> Result<(), String> {
        self.machines[m].events.clear();
        self.machines[m].is_watching = false;
        self.tell(m, now, |host| host.unwatched(now))
    }

    /// The store carries a transaction out.
    pub(crate) fn store(&mut self, m: usize) {
        let Some(txn) = self.machines[m].txn.take() else { return };
        let (reply, events) = self.store.txn(&txn);
        self.machines[m].reply = Some(reply);
        self.spread(events);
    }

    fn spread(&mut self, events: Vec<Event>) {
        for event in events {
            if let (Key::Host(host), Some(Value::Host { is_fenced: true })) =
                (&event.key, &event.value)
            {
                self.counted.fenced += 1;
                let fenced = host.0 as usize - 1;
                for (file, (value, _)) in &self.machines[fenced].dirty {
                    let truth = &mut self.truth[*file];
                    truth.may_be_lost |= truth.value == *value;
                }
            }
            for machine in self.machines.iter_mut().filter(|machine| machine.is_watching) {
                machine.events.push_back(event.clone());
            }
        }
    }

    /// A lease ends at the store.
    pub(crate) fn expire(&mut self, lease: LeaseId) {
        self.alive.remove(&lease);
        let events = self.store.end(lease);
        self.spread(events);
    }

    pub(crate) fn reply(&mut self, m: usize, now: Time, is_lost: bool) -> Result<(), String> {
        let reply = self.machines[m].reply.take().filter(|_| !is_lost);
        self.tell(m, now, |host| host.replied(now, reply))
    }

    pub(crate) fn watch(&mut self, m: usize, now: Time) -> Result<(), String> {
        let Some(event) = self.machines[m].events.pop_front() else { return Ok(()) };
        self.tell(m, now, |host| host.event(now, event))
    }

    pub(crate) fn tick(&mut self, m: usize, now: Time) -> Result<(), String> {
        self.tell(m, now, |host| host.tick(now))
    }

    pub(crate) fn lose(&mut self, m: usize, now: Time) -> Result<(), String> {
        self.tell(m, now, |host| {
            host.lose();
            host.tick(now);
        })
    }

    /// Another host cannot reach the origin any more: what is on its way never arrives.
    pub(crate) fn fence(&mut self, m: usize, now: Time) -> Result<(), String> {
        let Some(host) = self.machines[m].fences.pop() else { return Ok(()) };
        let other = host.0 as usize - 1;
        self.machines[other].io.clear();
        self.machines[other].is_evicted = true;
        self.tell(m, now, |fencer| fencer.fence_ended(now, host, true))
    }

    pub(crate) fn knows(&self, m: usize, file: usize) -> bool {
        self.machines[m].known.contains(&file)
    }

    /// Whether a file has been made, or is on its way to be.
    pub(crate) fn is_made(&self, file: usize) -> bool {
        let is_asked = |op: &Op| op.kind == Kind::Create(file);
        self.made.contains(&file)
            || self.machines.iter().any(|machine| machine.ops.values().any(is_asked))
    }

    pub(crate) fn ask(
        &mut self,
        m: usize,
        now: Time,
        file: usize,
        kind: Kind,
    ) -> Result<(), String> {
        self.next_ask += 1;
        let id = self.next_ask;
        let mode = if kind == Kind::Read { Mode::Read } else { Mode::Exclusive };
        let needs = vec![Need { root: Root::File(file_id(file)), mode, is_explicit: false }];
        self.machines[m].ops.insert(id, Op { file, kind, is_admitted: false });
        self.tell(m, now, |host| host.ask(now, AskId(id), needs))
    }

    fn visible(&self, m: usize, file: usize) -> u64 {
        let machine = &self.machines[m];
        let dirty = machine.dirty.get(&file).map(|(value, _)| *value);
        dirty.or_else(|| machine.cache.get(&file).copied()).unwrap_or(self.origin[file])
    }

    /// A request that has been admitted is carried out and answered, if the lease allows it.
    pub(crate) fn perform(&mut self, m: usize, now: Time, id: u64) -> Result<(), String> {
        if !self.is_serving(m, now) {
            return Ok(());
        }
        let Some(op) = self.machines[m].ops.remove(&id) else { return Ok(()) };
        let value = self.visible(m, op.file);
        match op.kind {
            Kind::Read => {
                self.counted.reads += 1;
                self.check(m, op.file, value)?;
                self.machines[m].cache.insert(op.file, value);
                if op.file == 0 {
                    let made = (1..self.files()).filter(|file| value & (1 << file) != 0);
                    self.machines[m].known.extend(made);
                }
            }
            Kind::Write => {
                self.counted.writes += 1;
                self.next_value += 1;
                // A directory keeps what is in it.
                let names = if op.file == 0 { value & NAMES } else { 0 };
                if op.file == 0 {
                    self.check(m, 0, value)?;
                }
                self.write(m, op.file, self.next_value << NAME_BITS | names);
            }
            Kind::Create(file) => {
                self.counted.creates += 1;
                self.made.insert(file);
                self.check(m, 0, value)?;
                self.next_value += 1;
                let stamp = self.next_value << NAME_BITS;
                self.write(m, 0, stamp | value & NAMES | 1 << file);
                if let Some(host) = &mut self.machines[m].host {
                    host.born(&file_id(file), &file_id(0));
                }
                self.write(m, file, stamp);
                self.machines[m].known.insert(file);
            }
        }
        self.tell(m, now, |host| host.ended(now, AskId(id)))
    }

    fn write(&mut self, m: usize, file: usize, value: u64) {
        let machine = &mut self.machines[m];
        let id = file_id(file);
        let cover = machine.host.as_ref().and_then(|host| host.cover(&id));
        machine.dirty.insert(file, (value, cover.unwrap_or(Root::File(id))));
        machine.cache.remove(&file);
        self.truth[file] = Truth { value, writer: m, may_be_lost: false };
    }

    fn check(&mut self, m: usize, file: usize, value: u64) -> Result<(), String> {
        let truth = &mut self.truth[file];
        if truth.value == value {
            return Ok(());
        }
        let writer = &self.machines[truth.writer];
        let is_kept = writer.kept.contains(&(file, truth.value))
            || writer.dirty.get(&file).is_some_and(|(value, _)| *value == truth.value);
        if truth.may_be_lost && value == self.origin[file] && is_kept {
            *truth = Truth { value, writer: m, may_be_lost: false };
            return Ok(());
        }
        Err(format!("host {m} finds {value} in file {file}, not {truth:?}"))
    }

    /// What may go to the origin now.
    pub(crate) fn sendable(&self, m: usize) -> Vec<usize> {
        let machine = &self.machines[m];
        let is_under_way = |file: usize| machine.io.iter().any(|(other, _)| *other == file);
        machine.dirty.keys().copied().filter(|file| !is_under_way(*file)).collect()
    }

    pub(crate) fn send(&mut self, m: usize, now: Time, file: usize) {
        if !self.is_serving(m, now) {
            return;
        }
        if self.machines[m].is_evicted {
            // The origin says so, and the process ends.
            return self.crash(m);
        }
        let machine = &mut self.machines[m];
        if let Some((value, _)) = machine.dirty.get(&file) {
            machine.io.push((file, *value));
        }
    }

    /// A write arrives at the origin, whoever sent it.
    pub(crate) fn land(&mut self, m: usize, index: usize) {
        let (file, value) = self.machines[m].io.remove(index);
        self.origin[file] = value;
        let machine = &mut self.machines[m];
        if machine.host.is_some() && machine.dirty.get(&file).is_some_and(|(v, _)| *v == value) {
            machine.dirty.remove(&file);
        }
    }

    /// Tokens whose changes are at the origin.
    pub(crate) fn drainable(&self, m: usize) -> Vec<usize> {
        let machine = &self.machines[m];
        let is_clean = |file: &usize| {
            !machine.dirty.contains_key(file) && !machine.io.iter().any(|(other, _)| other == file)
        };
        let revoking = machine.revoking.iter().enumerate();
        revoking.filter(|(_, (_, _, files))| files.iter().all(is_clean)).map(|(i, _)| i).collect()
    }

    pub(crate) fn drained(&mut self, m: usize, now: Time, index: usize) -> Result<(), String> {
        let machine = &mut self.machines[m];
        let (root, to, files) = machine.revoking.remove(index);
        // What is read under what is left of it may still be shown.
        let is_kept = |file| to.is_some() && root == Root::File(file_id(file));
        if !self.broken.no_invalidation {
            machine.cache.retain(|file, _| !files.contains(file) || is_kept(*file));
        }
        self.tell(m, now, |host| host.drained(now, &root))
    }

    pub(crate) fn stage(&self, m: usize) -> Option<Stage> {
        self.machines[m].host.as_ref().map(Host::stage)
    }
}

/// A directory's value says in its lowest bits what is in it.
const NAME_BITS: u32 = 4;
const NAMES: u64 = (1 << NAME_BITS) - 1;
