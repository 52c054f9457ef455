//! The server in virtual time: real engine and journal, a simulated disk, a model origin, and clients that never agree with
//! what they are told before they have checked it.

mod counts;
mod disk;
mod ends;
mod restart;
mod storage;

pub(super) use counts::Counts;
pub(super) use storage::watermarks;

use disk::{PLACES, group_commit};

use super::client::{Client, Issued, Watching};
use super::derived::Asking;
use super::history::History;
use super::once::Sendings;
use super::options::{Options, Rng};
use super::shop;
use crate::domains::{DOMAINS_MAX, Partition};
use crate::engine::freshness::Doubt;
use crate::engine::{Asker, Engine, FetchJob, Io, ParkedCommand};
use crate::origins::{ALL_DOMAINS, Mark, OriginError, Snapshot, Watermarks};
use crate::schema::TableId;
use destage_core::{BatchId, Lsn, Span, StopReason, Time};
use destage_engine::Drive;
use destage_journal::Journal;
use destage_runtime::commit::{CommitDone, CommitWork, JournalCommit};
use destage_testkit::SimDisk;
use destage_testkit::origin::{self, Fate, Origin};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// What is to happen at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Act(usize),
    CommitRun(usize),
    CommitEnd(usize),
    FetchRead(u64),
    FetchEnd(u64),
    WriteRun(u64),
    WriteEnd(u64),
    ScanRead(u64),
    ScanEnd(u64),
    QueryRead(u64),
    QueryEnd(u64),
    Tick,
    Admin,
    OriginDown,
    OriginUp,
    Backup,
    Rewind,
    Distrust,
}

pub(super) struct Fetching {
    jobs: Vec<FetchJob>,
    snapshot: Option<Snapshot>,
}

pub(super) struct Scanning {
    request: u64,
    table: usize,
    after: Option<i64>,
    limit: usize,
    page: Option<(Vec<Box<[u8]>>, Watermarks)>,
}

/// A job of one of the origin's writers.
pub(super) struct Write {
    work: Work,
    marks: Vec<origin::Mark>,
    groups: Vec<(u64, Vec<u8>)>,
    parked: Option<String>,
    /// The groups that are to be parked no more.
    unparked: Vec<u64>,
    result: Option<Result<(), OriginError>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Batch(BatchId),
    Park,
    Unpark,
    MarkAll,
}

impl Work {
    /// It moves the watermark of an ordering domain.
    fn is_ordered(self) -> bool {
        matches!(self, Self::Batch(_) | Self::Park)
    }
}

/// Something under way at the journal's disk.
enum Committing {
    Nothing,
    Begun(CommitWork),
    Ran(CommitDone),
}

/// The whole simulated world.
pub(super) struct Sim {
    pub(super) now: Time,
    pub(super) options: Options,
    pub(super) rng: Rng,
    pub(super) engine: Engine,
    pub(super) history: History,
    pub(super) clients: Vec<Client>,
    pub(super) origin: Origin,
    /// The newest group that any client has learnt of.
    pub(super) revealed: u64,
    /// Numbers of commands, and which group each became.
    pub(super) next_command: u64,
    pub(super) groups_of: BTreeMap<u64, u64>,
    pub(super) issued: BTreeMap<u64, Issued>,
    pub(super) sendings: Sendings,
    /// What transactions watch.
    pub(super) watching: BTreeMap<u64, Watching>,
    /// The transactions of the commands inside them.
    pub(super) owners: BTreeMap<u64, u64>,
    /// The groups that were parked in this life or before, and when the engine was told that they are no more.
    pub(super) parked: BTreeMap<u64, Option<Time>>,
    crashed_at: Time,
    disk: SimDisk,
    /// The origin as the history says it must be, and how far, by domain.
    mirror: (Vec<u64>, BTreeMap<origin::Place, origin::Row>),
    backup: Option<Origin>,
    /// What had become of each group before the origin went back, as long as the process lives that saw it.
    pub(super) undone: BTreeMap<u64, Fate>,
    epoch: u64,
    heap: BinaryHeap<Reverse<(Time, u64, u64, Event)>>,
    events: u64,
    /// Events of earlier lives are void.
    life: u64,
    commit: JournalCommit,
    /// The flush, then the syncs of the lanes.
    committing: [Committing; PLACES],
    fetching: BTreeMap<u64, Fetching>,
    scanning: BTreeMap<u64, Scanning>,
    pub(super) asking: BTreeMap<u64, Asking>,
    writes: BTreeMap<u64, Write>,
    next_job: u64,
    pub(super) down: bool,
    ticking: Option<Time>,
    pub(super) quiet: bool,
    stopped: Option<StopReason>,
    steps: u64,
    pub(super) crash_at: u64,
    crashes: u64,
    pub(super) hash: u64,
    pub(super) counts: Counts,
}

const FETCHERS: usize = 4;

impl Sim {
    pub(super) fn new(options: Options) -> Self {
        let rng = Rng::new(options.seed, 1);
        let disk = SimDisk::new();
        disk.set_unsafe_no_rewrites(options.unsafe_no_rewrites);
        let (mut journal, _) = Journal::open(Arc::new(disk.clone()), options.journal()).unwrap();
        journal.allow_durable_writes(options.durable_writes);
        let mut origin =
            Origin::new(if options.cascades { shop::model_with_cascades() } else { shop::model() });
        origin.rows = shop::initial().into_iter().collect();
        origin.lands_in_part = Rng::new(options.seed, 17).chance(50);
        let epoch = origin.claim(journal.uuid(), None).unwrap();
        let now = Time::from_secs(1_000);
        let engine = Engine::new(
            now,
            options.schema(),
            journal,
            &options.settings(),
            "model".into(),
            Lsn::ZERO,
        );
        let engine = with_domains(engine, &options, &Vec::new());
        let mut sim = Self {
            now,
            rng,
            engine,
            history: History::new(),
            clients: Vec::new(),
            revealed: 0,
            next_command: 1,
            groups_of: BTreeMap::new(),
            issued: BTreeMap::new(),
            sendings: Sendings::default(),
            watching: BTreeMap::new(),
            owners: BTreeMap::new(),
            parked: BTreeMap::new(),
            crashed_at: now,
            disk,
            mirror: (vec![0; usize::from(DOMAINS_MAX)], origin.rows.clone()),
            origin,
            backup: None,
            undone: BTreeMap::new(),
            epoch,
            heap: BinaryHeap::new(),
            events: 0,
            life: 0,
            commit: group_commit(&options, now),
            committing: [const { Committing::Nothing }; PLACES],
            fetching: BTreeMap::new(),
            scanning: BTreeMap::new(),
            asking: BTreeMap::new(),
            writes: BTreeMap::new(),
            next_job: 0,
            down: false,
            ticking: None,
            quiet: false,
            stopped: None,
            steps: 0,
            crash_at: options.crash_at,
            crashes: 0,
            hash: 0xcbf2_9ce4_8422_2325,
            counts: Counts::default(),
            options,
        };
        sim.options.derive(&mut sim.engine);
        sim.threaten_sync();
        sim.begin_life();
        for at in sim.options.downs.clone() {
            let up = at + Span(sim.rng.below(300_000_000));
            sim.at(at, Event::OriginDown);
            sim.at(up, Event::OriginUp);
        }
        sim
    }

    fn begin_life(&mut self) {
        self.clients = (0..self.options.clients).map(|index| Client::new(self, index)).collect();
        for index in 0..self.clients.len() {
            self.later(3_000_000, Event::Act(index));
        }
        self.later(20_000_000, Event::Admin);
        if self.options.distrusts {
            self.at(self.now + Span::from_millis(5), Event::Distrust);
        }
        if let Some((backup, rewind)) = self.options.rewind {
            self.at(backup, Event::Backup);
            self.at(rewind, Event::Rewind);
        }
        self.step();
    }

    pub(super) fn at(&mut self, at: Time, event: Event) {
        self.events += 1;
        self.heap.push(Reverse((at.max(self.now), self.events, self.life, event)));
    }

    /// Within `most` nanoseconds.
    pub(super) fn later(&mut self, most: u64, event: Event) {
        let at = self.now + Span(self.rng.below(most.max(1)) + 1);
        self.at(at, event);
    }

    pub(super) fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(0x0100_0000_01b3);
    }

    /// Runs until nothing happens any more or `until` is past.
    pub(super) fn run(&mut self, until: Time) {
        while let Some(&Reverse((at, _, life, event))) = self.heap.peek() {
            if at > until {
                break;
            }
            self.heap.pop();
            let survives = matches!(event, Event::OriginDown | Event::OriginUp);
            if life != self.life && !survives {
                continue;
            }
            self.now = self.now.max(at);
            self.mix(at.0 ^ event_number(event));
            self.event(event);
            self.step();
            self.steps += 1;
            assert!(self.steps < 1_000_000, "there is no end to it");
            self.counts.steps += 1;
            if self.stopped.is_some() {
                self.restart(false);
            } else if self.steps >= self.crash_at {
                self.crash_at = self.options.next_crash(&mut self.rng, self.steps, self.crashes);
                self.restart(true);
            }
        }
        self.now = self.now.max(until);
        self.engine.tick(self.now);
        self.step();
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Act(index) => self.act(index),
            Event::CommitRun(place) => self.run_commit(place),
            Event::CommitEnd(place) => self.end_commit(place),
            Event::FetchRead(job) => self.read_fetch(job),
            Event::FetchEnd(job) => self.end_fetch(job),
            Event::WriteRun(job) => self.run_write(job),
            Event::WriteEnd(job) => self.end_write(job),
            Event::ScanRead(job) => self.read_scan(job),
            Event::ScanEnd(job) => self.end_scan(job),
            Event::QueryRead(job) => self.read_query(job),
            Event::QueryEnd(job) => self.end_query(job),
            Event::Tick => {
                self.ticking = None;
                self.engine.tick(self.now);
            }
            Event::Admin => self.admin(),
            Event::OriginDown => self.down = !self.quiet,
            Event::OriginUp => self.down = false,
            Event::Backup => self.backup = Some(self.origin.clone()),
            Event::Rewind => self.rewind(),
            Event::Distrust => self.distrust(),
        }
    }

    fn admin(&mut self) {
        if self.quiet {
            return;
        }
        self.later(40_000_000, Event::Admin);
        match self.rng.below(6) {
            0 => self.engine.pause(self.now),
            1 | 2 if self.options.halts => self.look_at_halts(),
            1 | 2 => self.engine.resume(self.now),
            3 => {
                self.limit_scores();
                self.engine.hurry(self.now);
            }
            4 if self.options.switches => {
                let policy = self.options.policy(&mut self.rng);
                self.engine.set_policy(self.now, &policy).unwrap();
            }
            5 if self.options.decides => {
                self.free_scores();
                let command = self.decision();
                self.engine.ask_parked(command, Asker::new(drop));
            }
            _ => {}
        }
    }

    /// What a row is fetched again for: nobody has changed it, so it must be what it was. Of a stream of its own, so that seeds
    /// without it stay what they were.
    fn distrust(&mut self) {
        if self.quiet {
            return;
        }
        let mut rng = Rng::new(self.options.seed ^ self.steps, 12);
        self.at(self.now + Span(1 + rng.below(30_000_000)), Event::Distrust);
        for _ in 0..=rng.below(6) {
            let table = rng.below(shop::KEYS.len() as u64) as usize;
            let key = shop::key_cells(rng.below(shop::KEYS[table] as u64) as i64);
            let Some(unit) = self.engine.rows.find(TableId(table as u16), &key) else { continue };
            self.counts.distrusted += u64::from(self.engine.core.has_undecided(unit));
            self.engine.distrust(unit, Doubt::Age);
        }
    }

    /// What someone wants of the parked groups.
    fn decision(&mut self) -> ParkedCommand {
        let parked: Vec<u64> = self.origin.parked.keys().copied().collect();
        if !self.options.skips || parked.is_empty() {
            return ParkedCommand::Retry(None);
        }
        let one = Lsn(self.rng.pick(&parked));
        match self.rng.below(4) {
            0 => ParkedCommand::Retry(None),
            1 => ParkedCommand::Retry(Some(one)),
            _ => ParkedCommand::Skip(one),
        }
    }

    fn rewind(&mut self) {
        if self.quiet {
            return;
        }
        if let Some(backup) = self.backup.take() {
            let at = (0..DOMAINS_MAX).map(|domain| self.reached(&backup, domain)).collect();
            self.mirror = (at, backup.rows.clone());
            self.undone = std::mem::replace(&mut self.origin, backup).fates;
        }
    }

    /// One turn of the server: until nothing more can be done at this moment.
    pub(super) fn step(&mut self) {
        for turn in 0.. {
            assert!(turn < 10_000, "the engine spins");
            self.engine.go_on(self.now);
            self.engine.tick(self.now);
            self.take_groups();
            let sent = self.send_all();
            let ios = self.engine.take_io();
            let had_io = !ios.is_empty();
            for io in ios {
                self.start_io(io);
            }
            while self.fetching.len() < FETCHERS && self.engine.has_fetches() {
                let jobs = self.engine.take_fetches(self.options.fetch_rows);
                let job = self.job();
                self.fetching.insert(job, Fetching { jobs, snapshot: None });
                self.later(self.options.fetch_ns, Event::FetchRead(job));
            }
            self.start_flush();
            if !sent && !had_io && !self.engine.has_work() {
                break;
            }
        }
        if let Some(at) = self.engine.next_timeout()
            && self.ticking.is_none_or(|ticking| at < ticking)
        {
            assert!(at > self.now || self.ticking != Some(self.now), "the engine spins");
            self.ticking = Some(at);
            self.at(at + Span(1), Event::Tick);
        }
    }

    pub(super) fn job(&mut self) -> u64 {
        self.next_job += 1;
        self.next_job
    }

    fn start_io(&mut self, io: Io) {
        match io {
            Io::Sync { upto } => self.commit.want(upto),
            Io::Destage { batch, marks, groups } => {
                let groups = groups.iter().map(|g| (g.lsn.0, g.bytes.to_vec())).collect();
                self.check_batch(&groups);
                self.enqueue(Write {
                    work: Work::Batch(batch),
                    marks: marks.iter().map(mark_of).collect(),
                    groups,
                    parked: None,
                    unparked: Vec::new(),
                    result: None,
                });
            }
            Io::Park { lsn, marks, parked } => {
                let groups = vec![(lsn.0, Vec::new())];
                self.enqueue(Write {
                    work: Work::Park,
                    marks: marks.iter().map(mark_of).collect(),
                    groups,
                    parked: parked.map(|parked| parked.payload),
                    unparked: Vec::new(),
                    result: None,
                });
            }
            Io::Unpark { parked, groups } => {
                let groups = groups.iter().map(|g| (g.lsn.0, g.bytes.to_vec())).collect();
                let unparked = parked.iter().map(|lsn| lsn.0).collect();
                let (work, marks, result) = (Work::Unpark, Vec::new(), None);
                self.enqueue(Write { work, marks, groups, parked: None, unparked, result });
            }
            Io::ListParked { .. } => panic!("nobody asked for a list"),
            Io::MarkAll { expected, upto, floors } => {
                let mark = Mark { domain: ALL_DOMAINS, expected, upto };
                let (work, mut marks) = (Work::MarkAll, vec![mark_of(&mark)]);
                let floor = |(domain, lsn)| Mark { domain, expected: lsn, upto: lsn };
                marks.extend(floors.into_iter().map(floor).map(|mark| mark_of(&mark)));
                let (groups, unparked) = (Vec::new(), Vec::new());
                let (parked, result) = (None, None);
                self.enqueue(Write { work, marks, groups, parked, unparked, result });
            }
            Io::Scan { request, table, after, limit } => {
                let job = self.job();
                let table = usize::from(table.0);
                let after = after.map(|key| shop::key_of(&key));
                self.scanning.insert(job, Scanning { request, table, after, limit, page: None });
                self.later(self.options.fetch_ns, Event::ScanRead(job));
            }
            Io::Query { job, query, values, .. } => self.ask(job, query, &values),
            Io::NextKeys { .. } => panic!("nobody asked for keys"),
            Io::Holders { .. } => panic!("no unique column is asked for"),
            Io::Ended { .. } => panic!("no rows end here"),
            Io::CheckPassword(_) => panic!("there are no users"),
            Io::Stop(reason) => self.stopped = Some(reason),
        }
    }

    /// What is destaged is what was written, and the journal holds it.
    fn check_batch(&mut self, groups: &Vec<(u64, Vec<u8>)>) {
        let durable = self.engine.journal().status().durable_lsn;
        for (lsn, bytes) in groups {
            assert_eq!(&self.history.entry(*lsn).bytes, bytes, "group {lsn} changed on its way");
            let flushed = self.committing.iter().any(|one| !matches!(one, Committing::Nothing));
            assert!(*lsn <= durable || flushed, "group {lsn} is destaged before it is durable");
        }
    }

    fn enqueue(&mut self, write: Write) {
        let job = self.job();
        let is_free = |other: &Write| {
            let domains: Vec<u16> = other.marks.iter().map(|mark| mark.domain).collect();
            let are_ordered = other.work.is_ordered() && write.work.is_ordered();
            !are_ordered || !write.marks.iter().any(|mark| domains.contains(&mark.domain))
        };
        assert!(self.writes.values().all(is_free), "a domain is written by two at once");
        let limit = self.options.domains.unwrap_or(1);
        let batches = self.writes.values().filter(|write| write.work.is_ordered()).count();
        assert!(batches < limit || !write.work.is_ordered(), "more writes than writers");
        self.counts.parallel += u64::from(batches > 0);
        self.counts.across += u64::from(write.marks.len() > 1);
        self.writes.insert(job, write);
        self.later(self.options.write_ns, Event::WriteRun(job));
    }
}

fn mark_of(mark: &Mark) -> origin::Mark {
    origin::Mark { domain: mark.domain.0, expected: mark.expected.0, upto: mark.upto.0 }
}

/// The engine with the ordering domains of the run.
fn with_domains(engine: Engine, options: &Options, found: &Watermarks) -> Engine {
    let Some(parallel) = options.domains else { return engine };
    let settings = options.settings();
    let partition = Partition::new(engine.schema(), &settings.domains, &settings.tables).unwrap();
    engine.with_domains(Arc::new(partition), found, parallel)
}

fn event_number(event: Event) -> u64 {
    match event {
        Event::Act(n) => n as u64,
        Event::CommitRun(place) => 110 + place as u64,
        Event::CommitEnd(place) => 120 + place as u64,
        Event::FetchRead(n) => 1_000 + n,
        Event::FetchEnd(n) => 100_000 + n,
        Event::WriteRun(n) => 3_000_000 + n,
        Event::WriteEnd(n) => 4_000_000 + n,
        Event::ScanRead(n) => 1_000_000 + n,
        Event::ScanEnd(n) => 2_000_000 + n,
        Event::QueryRead(n) => 5_000_000 + n,
        Event::QueryEnd(n) => 6_000_000 + n,
        Event::Tick => 105,
        Event::Admin => 106,
        Event::OriginDown => 107,
        Event::OriginUp => 108,
        Event::Backup => 109,
        Event::Rewind => 110,
        Event::Distrust => 111,
    }
}
