//! What clients asked for in a recording, apart from what the policy made of it.

use super::causes::{Cause, Causes, Moment};
use super::clients::Clients;
use super::{Observer, is_of_rows, is_of_volume};
use destage_core::{
    Access, BatchId, ClientId, Core, DomainId, Effect, Input, Intent, Lsn, Mode, Policy, RequestId,
    Span, Time, UnitId, WaitFor,
};
use destage_record::{Asked as AskedFor, answer, answer_of};
use hashbrown::{HashMap, HashSet};

/// Requests in order of their arrival, and how long the devices took.
#[derive(Clone, Debug, Default)]
pub struct Load {
    pub(super) arrivals: Vec<(Time, Arrival)>,
    /// What each of them followed, as far as that is known.
    pub(super) causes: Vec<Option<Cause>>,
    pub(super) requests: Vec<Request>,
    /// What clients asked a volume for, when, and how many arrivals came before. Older recordings do not tell.
    pub(super) asked: Vec<(Time, AskedFor, u32)>,
    /// What each item stands for, where that is known: items with the same identity are one.
    pub(super) identities: Vec<Option<u64>>,
    /// The size of each item, bytes; 0 where it was never told.
    pub(super) sizes: Vec<u32>,
    /// Items that the cache held when the recording began.
    pub(super) held: Vec<u32>,
    /// Items that were read before anything else was done with them.
    pub(super) read_first: Vec<u32>,
    /// Bytes that the cache held when the recording began.
    pub(super) held_bytes: u64,
    pub(super) syncs: Vec<Timed>,
    pub(super) fetches: Vec<Fetched>,
    /// How long reads were served once all was there: those that had to wait for something, and those that hit.
    pub(super) served: [Vec<Timed>; 2],
    pub(super) destages: Vec<BatchTime>,
    pub(super) policy: Option<Policy>,
    /// Whether only the bytes of writes count against the dirty limits: the cores of volumes are told so.
    pub(super) counts_writes_only: bool,
    /// When a limit began to hold writes back, and most of them that waited in the core until it did not any more.
    pub(super) held_back: Vec<(Time, usize)>,
    /// Most requests that waited in the core at the same time.
    pub(super) waiting_max: usize,
    pub(super) began: Option<Time>,
    /// For so long from the first request on nothing is counted: what comes fills the cache.
    pub(super) warmup: Span,
    pub(super) ended: Time,
    /// The origin had everything then.
    pub(super) ended_clean: bool,
    open: Open,
}

/// When a sync or a fetch began, and how long it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub(super) began: Time,
    pub(super) took: Span,
}

/// How long a fetch took, and of what.
#[derive(Clone, Debug)]
pub(super) struct Fetched {
    pub(super) identity: u64,
    /// The numbers of the batches that were on their way to the origin when it began.
    pub(super) beside: Box<[u32]>,
    pub(super) timed: Timed,
}

/// How long a batch took.
#[derive(Clone, Debug)]
pub(super) struct BatchTime {
    /// In the order in which they began.
    pub(super) number: u32,
    pub(super) items: Box<[u32]>,
    pub(super) began: Time,
    pub(super) took: Span,
}

/// Something that the core is told from outside.
#[derive(Clone, Debug)]
pub(super) enum Arrival {
    Request(u32),
    Wait(WaitFor),
    Invalidate(u32),
    Policy(Box<Policy>),
    Pause,
    Resume,
    Drain,
}

/// A request and what it turned out to do.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) intent: Intent,
    /// Its place among the arrivals.
    pub(super) arrival: u32,
    /// The first of those that are answered together, and of the first one how many these are: none for what the driver reads
    /// for itself.
    pub(super) first: u32,
    pub(super) parts: u32,
    /// The answer's number, of a volume.
    answer: u32,
    /// All its items were there when it came.
    pub(super) is_hit: bool,
    /// Of a volume, of the first read of an answer: how long the answer took once all of it was there.
    pub(super) served: Option<Served>,
    pub(super) items: Box<[u32]>,
    pub(super) writes: Vec<Write>,
}

/// How long a read took from its execution to its answer, and whether it was a hit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub(super) took: Span,
    pub(super) is_hit: bool,
}

/// A group that a request wrote.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) domain: DomainId,
    pub(super) items: Box<[(u32, u32)]>,
    pub(super) bytes: u32,
    pub(super) journal_bytes: u32,
    /// The next group belongs to it.
    pub(super) is_joined: bool,
    /// All its domains, where it belongs to several.
    pub(super) across: Box<[DomainId]>,
    /// Items that it wrote whole, so that they may be read without being fetched.
    pub(super) whole: Box<[u32]>,
}

impl Write {
    fn new(domain: DomainId, items: Box<[(u32, u32)]>, bytes: u32, journal_bytes: u32) -> Self {
        let (is_joined, across, whole) = (false, [].into(), [].into());
        Self { domain, items, bytes, journal_bytes, is_joined, across, whole }
    }
}

/// What is under way while a recording is read.
#[derive(Clone, Debug, Default)]
struct Open {
    items: HashMap<UnitId, u32>,
    /// What units stand for that no input has named yet.
    names: HashMap<UnitId, u64>,
    /// Of a volume: what is asked for each answer.
    answers: HashMap<u32, Asked>,
    causes: Causes,
    clients: Clients,
    /// Requests that are not executed yet.
    waiting: HashMap<RequestId, (u32, Box<[UnitId]>)>,
    /// The request that was executed by the last effect, and when.
    executing: Option<u32>,
    executing_at: Time,
    /// Of them, those that write.
    waiting_writes: usize,
    /// A limit holds writes back.
    is_held_back: bool,
    /// Requests that write through, by their first unit.
    through: HashMap<UnitId, u32>,
    evicted: Option<u32>,
    syncing: Option<Time>,
    /// When each began, and the batches that were on their way then.
    fetching: HashMap<UnitId, (Time, Box<[u32]>)>,
    /// Units of which the driver says at once that they are there.
    whole: HashSet<UnitId>,
    destaging: HashMap<BatchId, Sent>,
    batches: u32,
    /// What the groups write that were recorded and are not destaged.
    groups: HashMap<Lsn, Box<[(u32, u32)]>>,
}

/// A batch on its way.
#[derive(Clone, Debug)]
struct Sent {
    number: u32,
    lsns: Box<[Lsn]>,
    items: Option<Box<[u32]>>,
    began: Time,
}

/// The requests that are answered together.
#[derive(Clone, Copy, Debug)]
struct Asked {
    first: u32,
    last: u32,
    /// The one that was executed last, and when.
    executed: Option<(u32, Time)>,
    /// It waits for the origin.
    is_through: bool,
    /// So many of its parts have gone through to the origin without a group.
    through: u32,
}

/// The answer of what a driver reads for itself, such as the ends of a write of parts of blocks. Nobody hears of it.
pub(super) const NOBODY: u32 = 0;

impl Load {
    /// How many requests wait in the core before clients send no more, since each of them waits for an answer: as many as did,
    /// where a limit held writes back. `None` where nobody knows, since none did.
    pub(super) fn clients(&self) -> Option<usize> {
        (!self.held_back.is_empty()).then_some(self.waiting_max)
    }

    /// How many writes wait while a limit holds them back before clients send no more: as many as waited when one did at about
    /// this time. Who waits for something else then, such as a sync, sends nothing either.
    pub(super) fn writes_at_limit(&self, now: Time) -> Option<usize> {
        let after = self.held_back.partition_point(|(began, _)| *began <= now);
        let near = [after.checked_sub(1), Some(after)].into_iter().flatten();
        let near = near.filter_map(|index| self.held_back.get(index));
        near.min_by_key(|(began, _)| began.0.abs_diff(now.0)).map(|(_, most)| *most)
    }

    /// What the recording is of, as its parts say: volumes count what is dirty in another way than rows.
    pub fn note_subject(&mut self, subject: &str) {
        self.counts_writes_only = is_of_volume(subject);
        self.open.clients = Clients::of(is_of_rows(subject));
    }

    /// For so long from the first request on nothing is counted: what comes fills the cache.
    pub(super) fn set_warmup(&mut self, warmup: Span) {
        self.warmup = warmup;
    }

    /// Whether the warm-up is over at this time.
    pub(super) fn is_warm(&self, now: Time) -> bool {
        let is_request = |arrival: &&(Time, Arrival)| matches!(arrival.1, Arrival::Request(_));
        self.warmup == Span::ZERO
            || self.arrivals.iter().find(is_request).is_some_and(|(at, _)| now >= *at + self.warmup)
    }

    fn item(&mut self, unit: UnitId, core: &Core) -> u32 {
        let next = self.identities.len() as u32;
        let item = *self.open.items.entry(unit).or_insert(next);
        if item == next {
            self.identities.push(self.open.names.remove(&unit));
            self.sizes.push(0);
            if core.is_present(unit) {
                self.held.push(item);
            }
        }
        item
    }

    fn items(&mut self, units: &[UnitId], core: &Core) -> Box<[u32]> {
        units.iter().map(|&unit| self.item(unit, core)).collect()
    }

    fn sized(&mut self, units: &[(UnitId, u32)], core: &Core) -> Box<[(u32, u32)]> {
        let mut items = Vec::with_capacity(units.len());
        for &(unit, bytes) in units {
            let item = self.item(unit, core);
            self.size(item, bytes);
            items.push((item, bytes));
        }
        items.into()
    }

    fn size(&mut self, item: u32, bytes: u32) {
        let size = &mut self.sizes[item as usize];
        if *size == 0 {
            *size = bytes;
        }
    }

    /// The request that is being executed, if it has just written these units, none of which the cache holds.
    fn has_written(&self, units: &[UnitId], items: &[u32], core: &Core) -> Option<u32> {
        let request = self.open.executing?;
        let write = self.requests[request as usize].writes.last()?;
        let written = |item: &u32| write.items.iter().any(|(other, _)| other == item);
        let absent = units.iter().all(|&unit| !core.is_present(unit));
        (absent && items.iter().all(written)).then_some(request)
    }

    /// Notes that a request belongs to an answer: the first request of it, and what this one followed. Of rows nothing tells which
    /// belong together: each stands for itself.
    fn asked(&mut self, now: Time, request: RequestId, units: &[UnitId]) -> (u32, Option<Cause>) {
        let index = self.requests.len() as u32;
        if !self.counts_writes_only {
            let arrival = self.arrivals.len() as u32;
            return (index, self.open.clients.asks(now, request, arrival, units));
        }
        if answer_of(request) == NOBODY {
            return (index, self.open.causes.take(now));
        }
        let Some(asked) = self.open.answers.get_mut(&answer_of(request)) else {
            let (executed, is_through, through) = (None, false, 0);
            let asked = Asked { first: index, last: index, executed, is_through, through };
            self.open.answers.insert(answer_of(request), asked);
            return (index, self.open.causes.take(now));
        };
        let before = std::mem::replace(&mut asked.last, index);
        let arrival = self.requests[before as usize].arrival;
        let (moment, at) = match asked.executed {
            Some((last, at)) if last == before => (Moment::Executed, at),
            _ => (Moment::Told, self.arrivals[arrival as usize].0),
        };
        (asked.first, Some(Cause { arrival, moment, gap: now.since(at) }))
    }

    /// The request that is being executed at this very moment.
    fn executes_now(&self, now: Time) -> Option<u32> {
        self.open.executing.filter(|_| self.open.executing_at == now)
    }

    /// A part of an answer has gone through to the origin. Once all have, it is answered without the core's hearing of it.
    fn went_through(&mut self, now: Time, request: u32) {
        let Request { answer, .. } = self.requests[request as usize];
        let Some(asked) = self.open.answers.get_mut(&answer) else { return };
        asked.through += 1;
        let Request { parts, arrival, .. } = self.requests[asked.first as usize];
        if asked.through == parts {
            self.open.answers.remove(&answer);
            self.open.causes.answered(now, arrival);
        }
    }

    /// All that was asked for an answer is done.
    fn answered(&mut self, now: Time, client: ClientId, wrote: bool) {
        let Some(asked) = self.open.answers.remove(&answer(client)) else { return };
        let Some((last, began)) = asked.executed else { return };
        let is_done_now = self.executes_now(now) == Some(last);
        // A write that had to be on the medium by itself was answered when waiting for it ended, which is told as well.
        if !wrote || asked.is_through || is_done_now {
            let arrival = self.requests[asked.first as usize].arrival;
            self.open.causes.responds(client, arrival);
        }
        if !wrote {
            let is_hit = self.requests[last as usize].is_hit;
            let took = now.since(began);
            self.served[usize::from(is_hit)].push(Timed { began, took });
            self.requests[asked.first as usize].served = Some(Served { took, is_hit });
        }
    }

    /// What is waited for followed the request that is being executed, or an answer.
    fn waits(&mut self, now: Time, request: RequestId) -> Option<Cause> {
        if !self.counts_writes_only {
            return None;
        }
        let writes = |index: &u32| self.requests[*index as usize].intent.writes();
        let cause = match self.executes_now(now).filter(writes) {
            Some(executing) => {
                let (arrival, gap) = (self.requests[executing as usize].arrival, Span::ZERO);
                Some(Cause { arrival, moment: Moment::Executed, gap })
            }
            None => self.open.causes.take(now),
        };
        self.open.causes.waits(request, self.arrivals.len() as u32);
        cause
    }

    /// The driver asks for units that the request has just written whole.
    fn written_whole(&mut self, request: u32, units: &[UnitId], items: Box<[u32]>) {
        self.open.whole.extend(units);
        if let Some(write) = self.requests[request as usize].writes.last_mut() {
            write.whole = items;
        }
    }

    /// A request waits in the core no longer. `None` for one from before the recording.
    fn ended_waiting(&mut self, request: RequestId) -> Option<(u32, Box<[UnitId]>)> {
        let (index, units) = self.open.waiting.remove(&request)?;
        self.open.waiting_writes -= usize::from(self.requests[index as usize].intent.writes());
        Some((index, units))
    }

    fn wrote(&mut self, write: Write, request: Option<u32>) {
        if let Some(request) = request {
            self.requests[request as usize].writes.push(write);
        }
    }

    fn arrives(&mut self, now: Time, arrival: Arrival) {
        self.follows(now, arrival, None);
    }

    fn follows(&mut self, now: Time, arrival: Arrival, cause: Option<Cause>) {
        self.arrivals.push((now, arrival));
        self.causes.push(cause);
    }
}

impl Load {
    /// The write that was told last, while its request is executed.
    fn newest_write(&mut self) -> Option<&mut Write> {
        let request = self.open.executing.map(|request| request as usize)?;
        self.requests.get_mut(request)?.writes.last_mut()
    }
}

impl Observer for Load {
    fn asked(&mut self, now: Time, asked: &AskedFor) {
        self.began.get_or_insert(now);
        self.asked.push((now, *asked, self.arrivals.len() as u32));
    }

    fn named(&mut self, unit: UnitId, identity: u64) {
        match self.open.items.get(&unit) {
            Some(&item) => self.identities[item as usize] = Some(identity),
            None => {
                self.open.names.insert(unit, identity);
            }
        }
    }

    fn input(&mut self, now: Time, input: &Input<'_>, core: &Core) {
        self.began.get_or_insert(now);
        if self.policy.is_none() {
            self.policy = Some(core.policy().clone());
            self.held_bytes = core.status().cache_bytes;
        }
        self.ended = now;
        self.ended_clean = core.last() == core.decided();
        self.open.clients.input(now, input, core);
        match *input {
            Input::Access { request, intent, units } => {
                let known = self.identities.len() as u32;
                let items = self.items(units, core);
                if matches!(intent, Intent::Read | Intent::ReadSettled) {
                    self.read_first.extend(known..self.identities.len() as u32);
                }
                if let Some(request) = self.has_written(units, &items, core) {
                    return self.written_whole(request, units, items);
                }
                let index = self.requests.len() as u32;
                let (first, cause) = self.asked(now, request, units);
                self.requests.push(Request {
                    intent,
                    arrival: self.arrivals.len() as u32,
                    first,
                    parts: 0,
                    answer: answer_of(request),
                    is_hit: units.iter().all(|&unit| core.is_present(unit)),
                    served: None,
                    items,
                    writes: Vec::new(),
                });
                let is_of_driver = self.counts_writes_only && answer_of(request) == NOBODY;
                self.requests[first as usize].parts += u32::from(!is_of_driver);
                self.open.waiting.insert(request, (index, units.into()));
                self.waiting_max = self.waiting_max.max(self.open.waiting.len());
                self.open.waiting_writes += usize::from(intent.writes());
                if let Some((_, most)) =
                    self.held_back.last_mut().filter(|_| self.open.is_held_back)
                {
                    *most = self.open.waiting_writes.max(*most);
                }
                self.follows(now, Arrival::Request(index), cause);
            }
            Input::Write { domain, units, bytes, journal_bytes, access } => {
                let items = self.sized(units, core);
                self.open.groups.insert(core.next_lsn(), items.clone());
                let write = Write::new(domain, items, bytes, journal_bytes);
                let request = match access {
                    Access::Back => self.open.executing,
                    _ => units.first().and_then(|(unit, _)| self.open.through.remove(unit)),
                };
                self.wrote(write, request.or(self.open.executing));
            }
            Input::Join { .. } => {
                if let Some(write) = self.newest_write() {
                    write.is_joined = true;
                }
            }
            Input::Spans { domains, .. } => {
                if let Some(write) = self.newest_write() {
                    write.across = domains.into();
                }
            }
            Input::Through { units, result: Ok(()), .. } => {
                let items = self.sized(units, core);
                let request = units.first().and_then(|(unit, _)| self.open.through.remove(unit));
                let bytes = units.iter().fold(0_u32, |sum, &(_, size)| sum.saturating_add(size));
                let write = Write::new(DomainId(0), items, bytes, bytes);
                self.wrote(write, request);
                if let Some(request) = request.filter(|_| self.counts_writes_only) {
                    self.went_through(now, request);
                }
            }
            Input::Release { units } => {
                for unit in units {
                    self.open.through.remove(unit);
                }
            }
            Input::Respond { client, wrote, .. } => self.answered(now, client, wrote),
            Input::Wait { request, until, .. } => {
                let cause = self.waits(now, request);
                self.follows(now, Arrival::Wait(until), cause);
            }
            Input::Fetched { unit, result, identity } => {
                let item = self.item(unit, core);
                // What it was named by counts: a server's own hashes of rows are others in each run.
                let identity = *self.identities[item as usize].get_or_insert(identity);
                if let Ok(bytes) = result {
                    self.size(item, bytes);
                }
                let began = self.open.fetching.remove(&unit);
                self.fetches.extend(began.map(|(began, beside)| {
                    let timed = Timed { began, took: now.since(began) };
                    Fetched { identity, beside, timed }
                }));
            }
            Input::Evicted { identity } => {
                if let Some(item) = self.open.evicted.take() {
                    self.identities[item as usize].get_or_insert(identity);
                }
            }
            Input::Invalidate { unit } | Input::Reload { unit } => {
                let item = self.item(unit, core);
                // Of a volume that is zeroed, or else comes when it came.
                let executing = self.executes_now(now).filter(|_| self.counts_writes_only);
                let cause = executing.map(|executing| {
                    let (arrival, gap) = (self.requests[executing as usize].arrival, Span::ZERO);
                    Cause { arrival, moment: Moment::Executed, gap }
                });
                self.follows(now, Arrival::Invalidate(item), cause);
            }
            Input::Synced { result: Ok(()), .. } => {
                let began = self.open.syncing.take();
                self.syncs.extend(began.map(|began| Timed { began, took: now.since(began) }));
            }
            Input::Destaged { batch, result } => {
                if let Some(Sent { number, lsns, items, began }) =
                    self.open.destaging.remove(&batch)
                    && result.is_ok()
                {
                    lsns.iter().for_each(|lsn| {
                        self.open.groups.remove(lsn);
                    });
                    let took = now.since(began);
                    let batch = items.map(|items| BatchTime { number, items, began, took });
                    self.destages.extend(batch);
                }
            }
            Input::SetPolicy(policy) => {
                self.arrives(now, Arrival::Policy(Box::new(policy.clone())));
            }
            Input::Pause => self.arrives(now, Arrival::Pause),
            Input::Resume => self.arrives(now, Arrival::Resume),
            Input::Drain => self.arrives(now, Arrival::Drain),
            _ => {}
        }
    }

    fn effect(&mut self, now: Time, effect: &Effect, core: &Core) {
        self.open.executing = None;
        self.ended_clean = core.last() == core.decided();
        self.open.clients.effect(now, effect);
        match *effect {
            Effect::Execute { request, access, .. } => {
                // A request from before the recording is not known.
                let Some((index, units)) = self.ended_waiting(request) else { return };
                (self.open.executing, self.open.executing_at) = (Some(index), now);
                if let Some(asked) = self.open.answers.get_mut(&answer_of(request)) {
                    asked.executed = Some((index, now));
                    asked.is_through = access != Access::Back;
                }
                if access != Access::Back {
                    self.open.through.extend(units.iter().map(|&unit| (unit, index)));
                }
            }
            Effect::Refuse { request, .. } => {
                self.open.answers.remove(&answer_of(request));
                self.ended_waiting(request);
            }
            Effect::Mode(mode) => {
                let was_held_back =
                    std::mem::replace(&mut self.open.is_held_back, mode != Mode::Normal);
                if self.open.is_held_back && !was_held_back {
                    self.held_back.push((now, self.open.waiting_writes));
                }
            }
            Effect::Send { client } => self.open.causes.sent(now, client),
            Effect::Waited { request, .. } => self.open.causes.waited(now, request),
            Effect::Sync { .. } => self.open.syncing = Some(now),
            Effect::Fetch { unit } => {
                let is_whole = self.open.whole.remove(&unit);
                let batches = self.open.destaging.values().map(|batch| batch.number).collect();
                let fetch = (unit, (now, batches));
                self.open.fetching.extend((!is_whole).then_some(fetch));
            }
            Effect::Destage { batch, .. } => {
                let lsns = core.batch(batch);
                let groups = lsns.iter().map(|lsn| self.open.groups.get(lsn));
                // One of groups from before the recording is of no known size.
                let groups: Option<Vec<_>> = groups.collect();
                let items = groups
                    .map(|groups| groups.into_iter().flatten().map(|(item, _)| *item).collect());
                let (number, lsns) = (self.open.batches, lsns.into());
                let sent = Sent { number, lsns, items, began: now };
                self.open.destaging.insert(batch, sent);
                self.open.batches += 1;
            }
            Effect::Evict { unit } => self.open.evicted = self.open.items.remove(&unit),
            _ => {}
        }
    }
}
