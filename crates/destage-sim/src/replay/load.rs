//! What clients asked for in a recording, apart from what the policy made of it.

use super::{Observer, is_of_volume};
use destage_core::{
    Access, BatchId, Core, DomainId, Effect, Input, Intent, Lsn, Mode, Policy, RequestId, Span,
    Time, UnitId, WaitFor,
};
use destage_record::{answer, answer_of};
use hashbrown::{HashMap, HashSet};

/// Requests in order of their arrival, and how long the devices took.
#[derive(Clone, Debug, Default)]
pub struct Load {
    pub(super) arrivals: Vec<(Time, Arrival)>,
    pub(super) requests: Vec<Request>,
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
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetched {
    pub(super) identity: u64,
    /// Batches were on their way to the origin when it began.
    pub(super) is_beside_batches: bool,
    pub(super) timed: Timed,
}

/// How long a batch took.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchTime {
    pub(super) units: u64,
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
    /// The first of those that are answered together, and of the first one how many these are.
    pub(super) first: u32,
    pub(super) parts: u32,
    pub(super) items: Box<[u32]>,
    pub(super) writes: Vec<Write>,
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
    /// Of a volume: the first request of each answer.
    answers: HashMap<u32, u32>,
    /// Requests that are not executed yet.
    waiting: HashMap<RequestId, (u32, Box<[UnitId]>)>,
    /// The request that was executed by the last effect.
    executing: Option<u32>,
    /// Of them, those that write.
    waiting_writes: usize,
    /// A limit holds writes back.
    is_held_back: bool,
    /// Requests that write through, by their first unit.
    through: HashMap<UnitId, u32>,
    evicted: Option<u32>,
    syncing: Option<Time>,
    /// When each began, and whether batches were on their way then.
    fetching: HashMap<UnitId, (Time, bool)>,
    /// Units of which the driver says at once that they are there.
    whole: HashSet<UnitId>,
    destaging: HashMap<BatchId, (u64, Time)>,
    /// Units of the groups that were recorded and are not destaged.
    units: HashMap<Lsn, u32>,
}

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
            self.identities.push(None);
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

    /// The first request of those that are answered together with this one.
    fn first_of_answer(&mut self, request: RequestId, index: u32) -> u32 {
        // Of rows nothing tells which belong together: each stands for itself.
        if !self.counts_writes_only {
            return index;
        }
        *self.open.answers.entry(answer_of(request)).or_insert(index)
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
        self.arrivals.push((now, arrival));
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
    fn input(&mut self, now: Time, input: &Input<'_>, core: &Core) {
        if self.began.is_none() {
            self.began = Some(now);
            self.policy = Some(core.policy().clone());
            self.held_bytes = core.status().cache_bytes;
        }
        self.ended = now;
        self.ended_clean = core.last() == core.decided();
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
                let first = self.first_of_answer(request, index);
                self.requests.push(Request { intent, first, parts: 0, items, writes: Vec::new() });
                self.requests[first as usize].parts += 1;
                self.open.waiting.insert(request, (index, units.into()));
                self.waiting_max = self.waiting_max.max(self.open.waiting.len());
                self.open.waiting_writes += usize::from(intent.writes());
                if let Some((_, most)) =
                    self.held_back.last_mut().filter(|_| self.open.is_held_back)
                {
                    *most = self.open.waiting_writes.max(*most);
                }
                self.arrives(now, Arrival::Request(index));
            }
            Input::Write { domain, units, bytes, journal_bytes, access } => {
                let items = self.sized(units, core);
                self.open.units.insert(core.next_lsn(), units.len() as u32);
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
            }
            Input::Release { units } => {
                for unit in units {
                    self.open.through.remove(unit);
                }
            }
            Input::Respond { client, .. } => {
                self.open.answers.remove(&answer(client));
            }
            Input::Wait { until, .. } => self.arrives(now, Arrival::Wait(until)),
            Input::Fetched { unit, result, identity } => {
                let item = self.item(unit, core);
                self.identities[item as usize] = Some(identity);
                if let Ok(bytes) = result {
                    self.size(item, bytes);
                }
                let began = self.open.fetching.remove(&unit);
                self.fetches.extend(began.map(|(began, is_beside_batches)| {
                    let timed = Timed { began, took: now.since(began) };
                    Fetched { identity, is_beside_batches, timed }
                }));
            }
            Input::Evicted { identity } => {
                if let Some(item) = self.open.evicted.take() {
                    self.identities[item as usize] = Some(identity);
                }
            }
            Input::Invalidate { unit } | Input::Reload { unit } => {
                let item = self.item(unit, core);
                self.arrives(now, Arrival::Invalidate(item));
            }
            Input::Synced { result: Ok(()), .. } => {
                let began = self.open.syncing.take();
                self.syncs.extend(began.map(|began| Timed { began, took: now.since(began) }));
            }
            Input::Destaged { batch, result } => {
                if let Some((units, began)) = self.open.destaging.remove(&batch)
                    && result.is_ok()
                {
                    self.destages.push(BatchTime { units, began, took: now.since(began) });
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
        match *effect {
            Effect::Execute { request, access, .. } => {
                // A request from before the recording is not known.
                let Some((index, units)) = self.ended_waiting(request) else { return };
                self.open.executing = Some(index);
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
            Effect::Sync { .. } => self.open.syncing = Some(now),
            Effect::Fetch { unit } => {
                let is_whole = self.open.whole.remove(&unit);
                let is_beside_batches = !self.open.destaging.is_empty();
                let fetch = (unit, (now, is_beside_batches));
                self.open.fetching.extend((!is_whole).then_some(fetch));
            }
            Effect::Destage { batch, .. } => {
                let lsns = core.batch(batch).iter();
                let units = lsns.map(|lsn| self.open.units.remove(lsn).map_or(1, u64::from)).sum();
                self.open.destaging.insert(batch, (units, now));
            }
            Effect::Evict { unit } => self.open.evicted = self.open.items.remove(&unit),
            _ => {}
        }
    }
}
