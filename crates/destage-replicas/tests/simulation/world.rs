//! What happens, in the order of virtual time.

use crate::client::{Books, Origin};
use crate::events::Event;
use crate::faults;
use crate::setup::{Report, Setup};
use destage_core::{Span, Time};
use destage_replicas::{
    Address, Connection, Entry, Epoch, Owner, Position, Reply, Request, RunId, Server, Settings,
    Stage,
};
use destage_testkit::virtual_time::Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

pub(crate) const MS: u64 = 1_000_000;
/// The lease by an owner's clock, and the wait by a standby's.
const LEASE: u64 = 700 * MS;
const QUIET: u64 = 1_000 * MS;
/// What a run says that comes to no end.
pub(crate) const STANDSTILL: &str = "nothing goes on";
/// Nothing goes wrong any more.
const CALM: u64 = 20_000 * MS;
const END: u64 = CALM + 60_000 * MS;

pub(crate) struct Process {
    pub(crate) owner: Option<Owner>,
    pub(crate) life: u64,
    offset: u64,
    /// Thousandths.
    rate: u64,
    pub(crate) paused_until: u64,
    /// Written, and not acknowledged.
    waiting: VecDeque<(Position, u32)>,
    pub(crate) claimed: Option<(Epoch, Position)>,
    /// The newest entry that it found: nothing is told before that is acknowledged or at the origin.
    found: Position,
    is_applying: bool,
}

/// What may be told: k servers hold it, or the origin does.
fn told(owner: &Owner, claimed: Option<(Epoch, Position)>, setup: &Setup) -> Position {
    let at_origin = claimed.map_or(Position::NONE, |(_, watermark)| watermark);
    match (setup.goes_through, setup.acknowledges_early) {
        (false, _) => owner.committed(),
        (true, false) => owner.committed().max(at_origin),
        (true, true) => owner.secured(),
    }
}

pub(crate) struct Machine {
    pub(crate) memory: Server,
    pub(crate) run: RunId,
    pub(crate) is_durable: bool,
    pub(crate) is_up: bool,
}

struct Batch {
    process: usize,
    life: u64,
    epoch: Epoch,
    expected: Position,
    entries: Vec<(Position, Entry)>,
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) now: u64,
    pub(crate) rng: Rng,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    pub(crate) processes: Vec<Process>,
    pub(crate) machines: Vec<Machine>,
    /// The number of the link in use, if there is one, and the server's life when it began.
    links: BTreeMap<(usize, usize), (u64, RunId)>,
    links_made: u64,
    pub(crate) blocked: Vec<Vec<bool>>,
    requests: BTreeMap<u64, (Request, RunId)>,
    replies: BTreeMap<u64, Reply>,
    batches: BTreeMap<u64, Batch>,
    ids: u64,
    lives: u64,
    pub(crate) lost_since_settled: usize,
    pub(crate) has_all_forgotten: bool,
    pub(crate) books: Books,
    pub(crate) origin: Origin,
    pub(crate) report: Report,
}

pub(crate) fn address(server: usize) -> Address {
    format!("s{server}").into()
}

/// Runs a setup to its end.
pub(crate) fn run(setup: &Setup) -> Result<Report, String> {
    let mut world = World::new(*setup);
    let outcome = world.course();
    outcome.map_err(|error| format!("{error}, at {} ms, {:?}", world.now / MS, world.setup))?;
    Ok(world.report)
}

impl World {
    fn new(setup: Setup) -> Self {
        let mut rng = Rng::new(setup.seed, 1);
        let count = setup.servers + setup.spares;
        let process = |rng: &mut Rng| Process {
            owner: None,
            life: 0,
            offset: rng.below(1_000_000) * MS,
            rate: 950 + rng.below(101),
            paused_until: 0,
            waiting: VecDeque::new(),
            claimed: None,
            found: Position::NONE,
            is_applying: false,
        };
        let processes = (0..setup.processes).map(|_| process(&mut rng)).collect();
        let is_durable = rng.chance(30);
        let machine = |s: usize| Machine {
            memory: Server::new(setup.controls),
            run: RunId(1 + s as u128),
            is_durable,
            is_up: true,
        };
        let mut world = Self {
            setup,
            now: 0,
            rng,
            queue: BinaryHeap::new(),
            sequence: 0,
            processes,
            machines: (0..count).map(machine).collect(),
            links: BTreeMap::new(),
            links_made: 0,
            blocked: vec![vec![false; count]; setup.processes],
            requests: BTreeMap::new(),
            replies: BTreeMap::new(),
            batches: BTreeMap::new(),
            ids: 0,
            lives: 0,
            lost_since_settled: 0,
            has_all_forgotten: false,
            books: Books::default(),
            origin: Origin::default(),
            report: Report::default(),
        };
        for process in 0..setup.processes {
            let at = world.rng.below(500) * MS;
            world.at(at, Event::Start { process });
        }
        world.at(1_000 * MS, Event::Fault);
        if setup.all_forget {
            let at = (3_000 + world.rng.below(12_000)) * MS;
            world.at(at, Event::AllForget);
        }
        world
    }

    pub(crate) fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse((time, self.sequence, event)));
    }

    pub(crate) fn after(&mut self, span: u64, event: Event) {
        self.at(self.now + span, event);
    }

    fn course(&mut self) -> Result<(), String> {
        let mut is_calm = false;
        let mut end_at = END;
        while let Some(Reverse((time, _, event))) = self.queue.pop() {
            self.now = time;
            self.report.events += 1;
            if time >= CALM && !is_calm {
                is_calm = true;
                faults::end(self);
            }
            if event == Event::AllForget && !is_calm {
                is_calm = faults::all_forget(self);
                // Others have seen all of what they wait for long before.
                end_at = if is_calm { time + CALM } else { end_at };
                continue;
            }
            if self.has_all_forgotten && time >= end_at {
                return self.books.check_end(&self.origin);
            }
            if time >= END {
                return Err(format!("{STANDSTILL}: {}", self.describe()));
            }
            if let Some(until) = self.paused(&event) {
                self.at(until, event);
                continue;
            }
            self.event(event, is_calm)?;
            if is_calm && !self.has_all_forgotten && self.is_done() {
                return self.books.check_end(&self.origin);
            }
        }
        Err("nothing happens any more".into())
    }

    /// What a stopped process would do is done once it goes on.
    fn paused(&self, event: &Event) -> Option<u64> {
        let process = match event {
            Event::Answer { to, .. } => *to,
            Event::Tick { process, .. } | Event::Applied { process, .. } => *process,
            _ => return None,
        };
        Some(self.processes[process].paused_until).filter(|&until| until > self.now)
    }

    fn event(&mut self, event: Event, is_calm: bool) -> Result<(), String> {
        match event {
            Event::Deliver { from, server, link, id } => self.deliver(from, server, link, id),
            Event::Answer { to, server, link, id } => {
                let reply = self.replies.remove(&id).expect("sent");
                if self.links.get(&(to, server)).is_some_and(|&(number, _)| number == link) {
                    self.tell(to, |owner, now| owner.replied(now, &address(server), reply));
                }
                self.follow_up(to)
            }
            Event::Connect { process, server, link } => {
                self.connect(process, server, link);
                self.follow_up(process)
            }
            Event::Tick { process, life } => self.tick(process, life, is_calm),
            Event::Start { process } => {
                self.start(process);
                Ok(())
            }
            Event::Apply { id } => {
                self.apply(id);
                Ok(())
            }
            Event::Applied { process, life, watermark } => {
                let reclaims_early = self.setup.reclaims_early;
                let at = &mut self.processes[process];
                if at.life == life {
                    at.is_applying = false;
                    if let (Some(watermark), Some((_, known)), Some(owner)) =
                        (watermark, &mut at.claimed, &mut at.owner)
                    {
                        *known = watermark;
                        if !reclaims_early {
                            owner.reclaim(watermark.next());
                        }
                    }
                }
                Ok(())
            }
            Event::ServerBack { server } => {
                self.machines[server].is_up = true;
                Ok(())
            }
            Event::Heal => {
                self.blocked.iter_mut().flatten().for_each(|blocked| *blocked = false);
                Ok(())
            }
            Event::Fault => {
                if !is_calm {
                    faults::happen(self);
                    let after = (30 + self.rng.below(500)) * MS;
                    self.after(after, Event::Fault);
                }
                self.check_logs()
            }
            Event::AllForget => Ok(()),
        }
    }

    pub(crate) fn local(&self, process: usize) -> Time {
        let at = &self.processes[process];
        Time(at.offset + self.now / 1_000 * at.rate)
    }

    pub(crate) fn tell(&mut self, process: usize, what: impl FnOnce(&mut Owner, Time)) {
        let now = self.local(process);
        if let Some(owner) = &mut self.processes[process].owner {
            what(owner, now);
        }
        self.send(process);
    }

    fn send(&mut self, process: usize) {
        while let Some((to, request)) =
            self.processes[process].owner.as_mut().and_then(Owner::poll_request)
        {
            let server: usize = to[1..].parse().expect("a server's name");
            let Some(&(link, run)) = self.links.get(&(process, server)) else { continue };
            self.ids += 1;
            let id = self.ids;
            self.requests.insert(id, (request, run));
            let delay = self.delay();
            self.after(delay, Event::Deliver { from: process, server, link, id });
            // It may be carried out a second time, much later.
            if self.rng.chance(3) {
                self.ids += 1;
                let (request, run) = self.requests[&id].clone();
                let twin = self.ids;
                self.requests.insert(twin, (request, run));
                let late = self.rng.below(3_000) * MS;
                self.after(late, Event::Deliver { from: process, server, link: 0, id: twin });
            }
        }
        let addresses = self.processes[process].owner.as_ref().map(Owner::addresses);
        for server in addresses.into_iter().flatten() {
            let server: usize = server[1..].parse().expect("a server's name");
            if !self.links.contains_key(&(process, server)) {
                self.reconnect(process, server, 1);
            }
        }
    }

    /// A connection's order is kept, since what is sent on it has a constant delay; later connections overtake it.
    fn delay(&mut self) -> u64 {
        MS / 2
    }

    fn deliver(&mut self, from: usize, server: usize, link: u64, id: u64) -> Result<(), String> {
        let (request, run) = self.requests.remove(&id).expect("sent");
        let is_current = self.links.get(&(from, server)).is_some_and(|&(number, _)| number == link);
        let machine = &self.machines[server];
        // What was sent to an earlier life of a server, its end has ended.
        if machine.run != run {
            return Ok(());
        }
        if !machine.is_up || (self.blocked[from][server] && link != 0) {
            // It may be in some buffer.
            if self.rng.chance(50) {
                self.requests.insert(id, (request, run));
                let late = self.rng.below(2_000) * MS;
                self.after(late, Event::Deliver { from, server, link: 0, id });
            }
            if is_current {
                self.cut(from, server);
            }
            return self.follow_up(from);
        }
        let reply = self.machines[server].memory.handle(&request);
        if is_current {
            self.ids += 1;
            let id = self.ids;
            self.replies.insert(id, reply);
            let slow = if self.setup.seed.is_multiple_of(2) { MS / 3 } else { MS };
            self.after(slow, Event::Answer { to: from, server, link, id });
        }
        Ok(())
    }

    /// A connection ends.
    pub(crate) fn cut(&mut self, process: usize, server: usize) {
        if self.links.remove(&(process, server)).is_some() {
            self.tell(process, |owner, now| owner.disconnected(now, &address(server)));
        }
    }

    fn reconnect(&mut self, process: usize, server: usize, ms: u64) {
        self.links_made += 1;
        let link = self.links_made;
        self.links.insert((process, server), (link, RunId(0)));
        let after = ms * MS + self.rng.below(30) * MS;
        self.after(after, Event::Connect { process, server, link });
    }

    fn connect(&mut self, process: usize, server: usize, link: u64) {
        if self.links.get(&(process, server)).is_none_or(|&(number, _)| number != link) {
            return;
        }
        if !self.machines[server].is_up || self.blocked[process][server] {
            return self.reconnect(process, server, 50);
        }
        let machine = &self.machines[server];
        let connection = Connection { run: machine.run, is_durable: machine.is_durable };
        self.links.insert((process, server), (link, machine.run));
        self.tell(process, |owner, now| owner.connected(now, &address(server), connection));
    }

    fn start(&mut self, process: usize) {
        self.lives += 1;
        let life = self.lives;
        let settings = Settings {
            identity: life,
            place: format!("p{process}").into(),
            subject: "test".into(),
            servers: (0..self.setup.servers).map(address).collect(),
            copies: self.setup.copies,
            lease: Span(LEASE),
            quiet: Span(QUIET),
            renew_every: Span(100 * MS),
            window: 1 + self.rng.below(4) as usize,
            bytes_max: 16,
            opens_short: self.setup.goes_through,
            founds: self.setup.founds_unasked,
            at_once: self.rng.chance(10) && self.now > 0,
            controls: self.setup.controls,
        };
        let now = self.local(process);
        let at = &mut self.processes[process];
        at.owner = Some(Owner::new(settings, now));
        at.life = life;
        at.paused_until = 0;
        self.after(0, Event::Tick { process, life });
        self.send(process);
    }

    /// A process ends, however.
    pub(crate) fn end(&mut self, process: usize, restart_after: u64) {
        let at = &mut self.processes[process];
        at.owner = None;
        at.life = 0;
        at.waiting.clear();
        at.claimed = None;
        at.found = Position::NONE;
        at.is_applying = false;
        let count = self.machines.len();
        (0..count).for_each(|server| {
            self.links.remove(&(process, server));
        });
        self.after(restart_after, Event::Start { process });
    }

    fn tick(&mut self, process: usize, life: u64, is_calm: bool) -> Result<(), String> {
        if self.processes[process].life != life {
            return Ok(());
        }
        self.tell(process, |owner, now| owner.tick(now));
        // It looks at the origin before it begins a log.
        let is_unclaimed = !self.origin.is_claimed();
        let is_blank = |owner: &Owner| owner.is_blank() && is_unclaimed;
        if self.processes[process].owner.as_ref().is_some_and(is_blank) {
            self.tell(process, Owner::found);
        }
        self.follow_up(process)?;
        if self.processes[process].life != life {
            return Ok(());
        }
        let (may_write, may_read) = (self.rng.chance(30) && !is_calm, self.rng.chance(30));
        if self.processes[process].owner.as_ref().is_some_and(Owner::is_open) {
            if may_write {
                self.write(process);
            }
            if may_read {
                self.read(process)?;
            }
            self.destage(process);
        }
        let after = (5 + self.rng.below(20)) * MS;
        self.after(after, Event::Tick { process, life });
        self.follow_up(process)
    }

    fn write(&mut self, process: usize) {
        for _ in 0..=self.rng.below(3) {
            let id = self.books.write();
            let mut at = Position::NONE;
            self.tell(process, |owner, now| {
                if owner.is_open() {
                    at = owner.append(now, id.to_le_bytes().as_slice().into());
                }
            });
            if at != Position::NONE {
                self.processes[process].waiting.push_back((at, id));
            }
        }
    }

    fn read(&mut self, process: usize) -> Result<(), String> {
        let now = self.local(process);
        let at = &self.processes[process];
        let Some(owner) = at.owner.as_ref() else { return Ok(()) };
        let told = told(owner, at.claimed, &self.setup);
        if owner.may_answer(now) && told >= at.found {
            self.report.reads += 1;
            self.books.read(told)?;
        }
        Ok(())
    }

    /// Whatever follows from what an owner has heard.
    fn follow_up(&mut self, process: usize) -> Result<(), String> {
        let now = self.local(process);
        let at = &mut self.processes[process];
        let Some(owner) = &mut at.owner else { return Ok(()) };
        if let Stage::Fenced { .. } | Stage::Refused(_) | Stage::GivenUp = owner.stage() {
            self.report.fenced += 1;
            self.end(process, 300 * MS);
            return Ok(());
        }
        if !owner.is_open() {
            return Ok(());
        }
        if at.claimed.is_none_or(|(epoch, _)| epoch != owner.epoch()) {
            let epoch = owner.epoch();
            let goes_through = self.setup.goes_through;
            let upto = if goes_through { owner.secured() } else { owner.committed() };
            self.books.opened(owner, upto, &self.origin)?;
            self.report.take_overs += 1;
            self.report.short += u64::from(owner.committed() < owner.last());
            at.found = owner.last();
            at.claimed = self.origin.claim(epoch).map(|watermark| (epoch, watermark));
            at.is_applying = false;
            if at.claimed.is_none() {
                self.end(process, 300 * MS);
                return Ok(());
            }
        }
        let mut answered = Vec::new();
        if owner.may_answer(now) {
            let upto = told(owner, at.claimed, &self.setup);
            while let Some(write) = at.waiting.pop_front_if(|(position, _)| *position <= upto) {
                answered.push(write);
            }
        }
        if self.setup.reclaims_early {
            owner.reclaim(owner.committed().next());
        }
        // A deposed one would not know.
        if owner.is_settled() && owner.may_answer(now) {
            self.lost_since_settled = 0;
        }
        for (position, id) in answered {
            self.report.acknowledged += 1;
            self.check_held(position, id)?;
            self.books.acknowledged(position, id)?;
        }
        Ok(())
    }

    fn destage(&mut self, process: usize) {
        let at = &mut self.processes[process];
        let (Some(owner), Some((epoch, watermark))) = (&at.owner, at.claimed) else { return };
        let most = match (self.setup.goes_through, self.setup.destages_early) {
            (true, true) => owner.last(),
            (true, false) => owner.secured(),
            (false, _) => owner.committed(),
        };
        if at.is_applying || most <= watermark || !self.rng.chance(40) {
            return;
        }
        let upto = most.min(watermark.plus(6));
        let is_due = |&(position, _): &(Position, &Entry)| position > watermark && position <= upto;
        let entries: Vec<_> =
            owner.entries().filter(is_due).map(|(at, entry)| (at, entry.clone())).collect();
        at.is_applying = true;
        self.ids += 1;
        let id = self.ids;
        let life = at.life;
        self.batches.insert(id, Batch { process, life, epoch, expected: watermark, entries });
        let delay = self.rng.pick(&[2, 2, 5, 40, 900]) * MS;
        self.after(delay, Event::Apply { id });
    }

    fn apply(&mut self, id: u64) {
        let Batch { process, life, epoch, expected, entries } =
            self.batches.remove(&id).expect("sent");
        let watermark = self.origin.apply(epoch, expected, &entries);
        self.after(2 * MS, Event::Applied { process, life, watermark });
    }

    /// The owner, of whom others may not have heard yet, has nothing left to do.
    fn is_done(&self) -> bool {
        let owners = self.processes.iter().filter_map(|at| Some((at.owner.as_ref()?, at)));
        let open = owners.filter(|(owner, _)| owner.is_open());
        let newest = open.max_by_key(|(owner, _)| owner.epoch());
        newest.is_some_and(|(owner, at)| {
            let is_quiet = at.waiting.is_empty() && owner.committed() == owner.last();
            owner.is_settled() && is_quiet && self.origin.watermark == owner.committed()
        })
    }
}
