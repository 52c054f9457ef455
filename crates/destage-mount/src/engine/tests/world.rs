//! A mount in virtual time: the engine, a simulated disk for its journal, a simulated origin, and a program that uses it.

use super::covers::FakeCovers;
use super::model::{Model, Tree};
use super::origin::{Death, SimOrigin};
use crate::ask::{Answer, Answered, Ask, Caller, Errno, Ino, Kind, Listed, Make, Name, Stat};
use crate::engine::front::FrontControls;
use crate::engine::{
    AtWork, Below, Carried, Front, FrontSettings, Hints, Homes, Need, OwnFolders, Pending, Plan,
    Scan, Submitted, Ticket, carry_out, read_group,
};
use crate::origin::pool::Pool;
use crate::origin::{Key, Origin};
use crate::serve::live::gather;
use destage_core::{Lsn, Policy, Span, Time, When};
use destage_engine::Drive;
use destage_journal::{Journal, Options};
use destage_testkit::SimDisk;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// A stream of numbers from a seed.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

/// Where an answer arrives.
type Inbox = Arc<Mutex<Option<Result<Answered, Errno>>>>;

struct Mailed(Inbox);

impl Answer for Mailed {
    fn give(self: Box<Self>, answered: Result<Answered, Errno>) {
        *self.0.lock().expect("no panic before") = Some(answered);
    }
}

/// A request that is slow.
pub(super) struct Slow {
    inbox: Inbox,
    pending: Pending,
    /// What it had to know first.
    pub(super) first: Need,
}

/// The mount: see the module.
pub(super) struct World {
    pub(super) disk: SimDisk,
    pub(super) origin: Arc<SimOrigin>,
    pub(super) front: Option<Front>,
    pool: Option<Pool>,
    own: Option<OwnFolders>,
    at_work: AtWork,
    pub(super) now: Time,
    pub(super) random: Random,
    pub(super) model: Model,
    /// After how many changes an fsync was answered.
    pub(super) durable: usize,
    commits: VecDeque<destage_runtime::commit::CommitWork>,
    batches: VecDeque<(destage_core::BatchId, Plan)>,
    /// Carried out, and not told of yet.
    landing: Option<(destage_core::BatchId, Plan, Carried)>,
    free: Vec<u64>,
    /// So many files were to be given out again.
    pub(super) given_back: usize,
    pub(super) open: Vec<(Ino, u64)>,
    controls: FrontControls,
    pub(super) fsync_origin_below: Below,
    pub(super) caller: Caller,
    /// Of which files the kernel was told to ask again.
    pub(super) outdated: Vec<Ino>,
    pub(super) names_made: u64,
    /// From the next start on.
    pub(super) batch_groups_min: u32,
    pub(super) segment_bytes: u64,
    /// What is being made, and not answered.
    pub(super) making: Option<(Ino, Name, Kind)>,
    /// How long listings of the origin count.
    pub(super) names_fresh: Span,
    /// Where several hosts share the origin: what their tokens cover.
    pub(super) covers: Option<Arc<FakeCovers>>,
}

impl World {
    pub(super) fn new(seed: u64, controls: FrontControls) -> Self {
        let origin = Arc::new(SimOrigin::new(seed.is_multiple_of(2)));
        let root = origin.root().ino;
        let mut world = Self {
            disk: SimDisk::new(),
            origin,
            front: None,
            pool: None,
            own: None,
            at_work: AtWork::default(),
            now: Time::from_secs(5_000),
            random: Random::new(seed),
            model: Model::new(root),
            durable: 0,
            commits: VecDeque::new(),
            batches: VecDeque::new(),
            landing: None,
            free: Vec::new(),
            given_back: 0,
            open: Vec::new(),
            controls,
            fsync_origin_below: Below::default(),
            caller: Caller::default(),
            outdated: Vec::new(),
            names_made: 0,
            batch_groups_min: 1,
            segment_bytes: 64 << 10,
            making: None,
            names_fresh: Span::ZERO,
            covers: None,
        };
        assert!(world.start(), "the first start meets no fault");
        world
    }

    fn policy(&mut self) -> Policy {
        let mut policy = Policy { commit: Span::from_secs(1), ..Policy::default() };
        policy.when = match self.random.below(3) {
            0 => When::Async,
            1 => When::Periodic { every: Span::from_millis(700) },
            _ => When::Interval { age: Span::from_secs(2), check: Span::from_millis(500) },
        };
        policy.limits.batch_groups_max = self.batch_groups_min + self.random.below(12) as u32;
        policy
    }

    /// Starts with what was set meanwhile, before anything was done.
    pub(super) fn start_anew(&mut self) {
        self.crash(Death::Process);
        assert!(self.start(), "nothing dies");
    }

    /// Starts, with whatever an earlier life left; false if the origin or the disk died of it.
    pub(super) fn start(&mut self) -> bool {
        self.try_start().is_some()
    }

    fn try_start(&mut self) -> Option<()> {
        self.commits.clear();
        self.batches.clear();
        self.landing = None;
        self.free.clear();
        self.open.clear();
        self.at_work = AtWork::default();
        let options = Options {
            segment_bytes: self.segment_bytes,
            background: false,
            retain: std::time::Duration::ZERO,
            keeps_spare: !self.controls.no_journal_room,
            ..Options::default()
        };
        let opened = Journal::open(Arc::new(self.disk.clone()), options);
        let (journal, _) = opened.inspect_err(|error| self.note(error)).ok()?;
        let origin: Arc<dyn Origin> = self.origin.clone();
        let own = own_folders(&*origin)?;
        let last = journal.last();
        let mut scan = Scan::default();
        let mut records = journal.read(1, last);
        while let Some(record) = records.advance().ok()? {
            let found = read_group(record.payload).expect("what was written can be read");
            scan.look(Lsn(record.lsn), found);
        }
        let mut records = journal.read(scan.decided.0 + 1, last);
        let settings = FrontSettings {
            controls: self.controls,
            fsync_origin_below: self.fsync_origin_below.clone(),
            names_fresh: self.names_fresh,
            ..FrontSettings::default()
        };
        let policy = self.policy();
        let mut front =
            Front::new(self.now, policy, journal, origin.clone(), scan.decided, settings);
        scan.prepare(&mut front.tree, self.controls.no_intent);
        let (covers, mut homes) = (self.covers.clone(), Homes::default());
        destage_engine::recover(&mut front, self.now, Lsn(last), |front| {
            let Some(record) = records.advance().map_err(|_| ())? else {
                if let Some(covers) = &covers {
                    front.tree.lost = covers.take_up(&homes);
                }
                return Ok(false);
            };
            let found = read_group(record.payload).expect("what was written can be read");
            let stamp = Time(record.stamp_ns);
            homes.look(&found);
            front.take_up(Lsn(record.lsn), stamp, record.payload.len(), &found);
            Ok(true)
        })
        .map_err(|(): ()| ())
        .ok()?;
        let used = |ino| front.tree.node(ino).is_some();
        let swept = Pool::sweep(origin, own.clone(), front.tree.staged_max(), used, 1);
        let mut pool = swept.inspect_err(|error| self.note(error)).ok()?;
        // What the origin frees is to be made anew soon.
        pool.keep_at_most(2);
        self.pool = Some(pool);
        self.own = Some(own);
        let space = self.origin.space().ok()?;
        front.set_space(&space, front.landed());
        front.begin(self.now, [7; 16], scan.epoch + 1);
        if let Some(covers) = &self.covers {
            front.set_covers(covers.clone());
        }
        self.front = Some(front);
        self.collect();
        Some(())
    }

    /// What a start met, where nothing was to be met.
    fn note(&self, error: &dyn std::fmt::Display) {
        if !self.is_dead() {
            println!("the start met: {error}");
        }
    }

    fn front(&mut self) -> &mut Front {
        self.front.as_mut().expect("it has started")
    }

    /// Whether the disk or the origin is dead.
    pub(super) fn is_dead(&self) -> bool {
        self.origin.is_dead() || self.disk.is_powered_off()
    }

    pub(super) fn die_after(&mut self, effects: u64, of_disk: bool) {
        if of_disk {
            self.disk.power_off_after(effects.max(1));
        } else {
            self.origin.die_after(effects);
        }
    }

    /// Everything is lost that is volatile.
    pub(super) fn crash(&mut self, death: Death) {
        self.front = None;
        // Long enough for what has changed since to be the work of others.
        self.now = self.now + Span::from_secs(60);
        self.origin.pass(Span::from_secs(60));
        let mut random = self.random.clone();
        self.origin.crash(death, &mut |bound| random.below(bound));
        self.random = random;
        if death == Death::Process {
            self.disk.kill();
        } else {
            let seed = self.random.below(1 << 30) as u64;
            self.disk.crash(seed);
        }
    }

    fn collect(&mut self) {
        let out = self.front().take_out();
        for (answer, answered) in out.answers {
            answer.give(answered);
        }
        self.outdated.extend(out.outdated);
        self.commits.extend(out.commits);
        self.batches.extend(out.batches);
        self.free.extend(out.free);
        self.free.extend(out.unused.into_iter().map(|staged| staged.number));
        self.given_back += out.unchanged.len();
        out.unchanged.iter().for_each(|staged| self.model.is_given_back(staged.key.ino));
        for staged in out.unchanged {
            // What is not wanted soon is removed, as what is over for good is.
            if self.random.below(3) == 0 {
                self.free.push(staged.number);
            } else {
                self.pool.as_ref().expect("it has started").give_back(vec![staged]);
            }
        }
        for (pending, need) in out.retries {
            self.find_out(pending, need);
        }
        for pending in out.again {
            let now = self.now;
            match self.submit(now, pending) {
                Submitted::Needs(pending, need) => _ = self.find_out(pending, need),
                Submitted::Taken => self.collect(),
                _ => unreachable!("it changes something"),
            }
        }
    }

    /// Tokens are had as soon as they are needed.
    fn submit(&mut self, now: Time, mut pending: Pending) -> Submitted {
        loop {
            match self.front().submit(now, pending) {
                Submitted::NeedsTokens(again, needs) => {
                    pending = again;
                    let ask = Arc::default();
                    pending.ticket = Some(Ticket { needs, ask });
                }
                other => return other,
            }
        }
    }

    fn find_out(&mut self, mut pending: Pending, mut need: Need) -> Option<Submitted> {
        loop {
            let pool = self.pool.as_ref().expect("it has started");
            if let Err(errno) = pending.hints.ask(&need, &*self.origin, pool) {
                self.front().cannot_know(pending, errno);
                self.collect();
                return None;
            }
            let now = self.now;
            match self.submit(now, pending) {
                Submitted::Needs(again, more) => (pending, need) = (again, more),
                other => {
                    self.collect();
                    return Some(other);
                }
            }
        }
    }

    /// Carries out one thing that is under way; false if there is none.
    pub(super) fn work(&mut self) -> bool {
        let now = self.now;
        // No batch waits for what is not needed any more, and it waits for none.
        let tidies = !self.free.is_empty() && self.random.below(4) == 0;
        let is_idle = self.batches.is_empty() && self.landing.is_none();
        let takes_commit = is_idle || self.random.below(2) == 0;
        if tidies {
            self.discard_one();
        } else if takes_commit && let Some(work) = self.commits.pop_front() {
            let done = work.run();
            self.front().commit_ended(now, done);
        } else if let Some((batch, plan, carried)) = self.landing.take() {
            self.front().batch_ended(now, batch, plan, carried);
        } else if let Some((batch, plan)) = self.batches.pop_front() {
            let own = self.own.clone().expect("it has started");
            self.origin.forget_names(true);
            let origin = self.origin.clone();
            let began = origin.clock();
            // Nobody's clock stands still meanwhile.
            origin.is_slow(true);
            let carried = carry_out(
                &*self.origin,
                &own,
                &plan,
                self.controls.carry,
                1,
                &self.at_work,
                &|| now + origin.since(began),
            );
            origin.is_slow(false);
            self.now = now + origin.since(began);
            self.origin.forget_names(false);
            self.landing = Some((batch, plan, carried));
        } else if !self.discard_one() {
            return false;
        }
        self.collect();
        true
    }

    fn discard_one(&mut self) -> bool {
        let number = self.free.pop();
        number
            .inspect(|&number| self.pool.as_ref().expect("it has started").discard(number))
            .is_some()
    }

    /// Fewer steps than that, of what is under way or of time.
    pub(super) fn goes_on(&mut self, bound: usize) {
        for _ in 0..self.random.below(bound) {
            if !self.work() {
                self.pass(Span::from_millis(300));
            }
        }
    }

    /// Everything under way ends.
    pub(super) fn settle(&mut self) {
        self.collect();
        while self.work() {}
    }

    /// Time passes.
    pub(super) fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        self.origin.pass(span);
        let now = self.now;
        self.front().tick(now);
        self.collect();
    }

    /// Everything goes to the origin; false if something died.
    pub(super) fn drain(&mut self) -> bool {
        let now = self.now;
        self.front().drain(now);
        self.collect();
        for _ in 0..10_000 {
            if self.is_dead() {
                return false;
            }
            if self.work() {
                continue;
            }
            if self.front().undecided() == 0 {
                return true;
            }
            self.pass(Span::from_millis(100));
        }
        panic!("the drain does not end: {:?}", self.front().core().status());
    }

    /// Asks, and lets things happen until it is answered; `None` if something died.
    pub(super) fn ask(&mut self, ask: Ask) -> Option<Result<Answered, Errno>> {
        let (inbox, pending) = self.pending(ask);
        self.go_on_with(inbox, pending)
    }

    fn pending(&self, ask: Ask) -> (Inbox, Pending) {
        let inbox = Inbox::default();
        let answer = Box::new(Mailed(inbox.clone()));
        let pending =
            Pending { caller: self.caller, ask, hints: Hints::default(), answer, ticket: None };
        (inbox, pending)
    }

    /// Whether a request waits for tokens, or for the lease.
    pub(super) fn waits_for_tokens(&mut self, ask: Ask) -> bool {
        let (now, (_, pending)) = (self.now, self.pending(ask));
        matches!(self.front().submit(now, pending), Submitted::NeedsTokens(..))
    }

    /// Asks, and finds out what has to be known of the origin first, but goes on only later.
    pub(super) fn ask_slowly(&mut self, ask: Ask) -> Slow {
        let (now, (inbox, pending)) = (self.now, self.pending(ask));
        let Submitted::Needs(mut pending, first) = self.front().submit(now, pending) else {
            panic!("it has to know something")
        };
        let pool = self.pool.as_ref().expect("it has started");
        pending.hints.ask(&first, &*self.origin, pool).expect("nothing dies");
        Slow { inbox, pending, first }
    }

    /// What it still has to know, and then it is carried out.
    pub(super) fn questions(&mut self, slow: Slow) -> Vec<Need> {
        let (mut pending, mut asked) = (slow.pending, Vec::new());
        let now = self.now;
        while let Submitted::Needs(mut again, need) = self.submit(now, pending) {
            let pool = self.pool.as_ref().expect("it has started");
            again.hints.ask(&need, &*self.origin, pool).expect("nothing dies");
            asked.push(need);
            pending = again;
        }
        self.settle();
        asked
    }

    pub(super) fn go_on(&mut self, slow: Slow) -> Option<Result<Answered, Errno>> {
        self.go_on_with(slow.inbox, slow.pending)
    }

    fn go_on_with(&mut self, inbox: Inbox, pending: Pending) -> Option<Result<Answered, Errno>> {
        let now = self.now;
        let submitted = match self.submit(now, pending) {
            Submitted::Needs(pending, need) => self.find_out(pending, need),
            other => Some(other),
        };
        if let Some(Submitted::Read(answer, key, fragments, limit)) = submitted {
            let read = gather(&*self.origin, &key, &fragments, limit);
            answer.give(read.map(Answered::Data));
        }
        self.collect();
        self.answer_of(&inbox, 1_000).unwrap_or_else(|| panic!("never answered"))
    }

    /// Asks; `None` if it is not answered within so many steps.
    pub(super) fn ask_within(&mut self, ask: Ask, steps: usize) -> Option<Result<Answered, Errno>> {
        let (inbox, pending) = self.pending(ask);
        let now = self.now;
        if let Submitted::Needs(pending, need) = self.submit(now, pending) {
            self.find_out(pending, need);
        }
        self.collect();
        self.answer_of(&inbox, steps).flatten()
    }

    fn answer_of(
        &mut self,
        inbox: &Inbox,
        steps: usize,
    ) -> Option<Option<Result<Answered, Errno>>> {
        for _ in 0..steps {
            if let Some(answered) = inbox.lock().expect("no panic before").take() {
                let failed = answered.is_err() && self.is_dead();
                return Some((!failed).then_some(answered));
            }
            if self.is_dead() {
                return Some(None);
            }
            if !self.work() {
                self.pass(Span::from_millis(50));
            }
        }
        None
    }

    /// The same where nothing dies.
    pub(super) fn sure(&mut self, ask: Ask) -> Answered {
        self.ask(ask).expect("nothing dies").expect("it can be done")
    }

    pub(super) fn root(&self) -> Ino {
        self.origin.root().ino
    }

    /// The origin is asked for its room, as it is from time to time.
    pub(super) fn look_at_space(&mut self) {
        let landed = self.front().landed();
        let space = self.origin.space().expect("it says");
        self.front().set_space(&space, landed);
    }

    /// What a program sees: each path.
    pub(super) fn view(&mut self) -> Tree {
        let mut found = Tree::new();
        let mut dirs = vec![(String::new(), self.root())];
        while let Some((path, dir)) = dirs.pop() {
            let names = match self.sure(Ask::ReadDir { ino: dir, handle: 0, anew: true }) {
                Answered::Names(names) => names,
                other => panic!("{other:?}"),
            };
            for Listed { name, .. } in names.iter().skip(2) {
                let stat = self.look(dir, name);
                let path = format!("{path}/{}", String::from_utf8_lossy(name));
                let content = match stat.kind {
                    Kind::File => self.content(stat),
                    _ => Vec::new(),
                };
                if stat.kind == Kind::Dir {
                    dirs.push((path.clone(), stat.ino));
                }
                found.insert(path, (stat.ino, stat.kind, content));
            }
        }
        found
    }

    pub(super) fn look(&mut self, dir: Ino, name: &Name) -> Stat {
        match self.sure(Ask::Lookup { dir, name: name.clone() }) {
            Answered::Entry(stat, _) => stat,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn content(&mut self, stat: Stat) -> Vec<u8> {
        let len = 1_000;
        match self.sure(Ask::Read { ino: stat.ino, offset: 0, len, mapped: false }) {
            Answered::Data(bytes) => {
                assert_eq!(bytes.len() as u64, stat.size, "a file is as long as it says");
                bytes
            }
            other => panic!("{other:?}"),
        }
    }
}

fn own_folders(origin: &dyn Origin) -> Option<OwnFolders> {
    let folder = |dir: &Key, name: &[u8]| match origin.make(dir, name, &Make::Dir) {
        Ok((key, _)) => Some(key),
        Err(Errno::EXIST) => origin.lookup(dir, name).ok().map(|(key, _)| key),
        Err(_) => None,
    };
    let top = folder(&origin.root(), crate::OWN_FOLDER)?;
    let pools = ["pool", "pool2"].map(|name| folder(&top, name.as_bytes()));
    let pools = pools.into_iter().collect::<Option<Vec<_>>>()?;
    let conflicts = folder(&top, b"conflicts")?;
    let at_work = folder(&top, b"at-work")?;
    match origin.make(&at_work, b"mount", &Make::File) {
        Ok(_) | Err(Errno::EXIST) => {}
        Err(_) => return None,
    }
    origin.sync(&at_work).ok()?;
    let at_work = (at_work, b"mount"[..].into());
    let own = OwnFolders { pools, conflicts, at_work };
    origin.sync(&top).ok()?;
    Some(own)
}
