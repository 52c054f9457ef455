//! How accesses go down the tiers and come back: carries out what the cores ask for.

use super::run::{Event, Machine};
use super::task::{Run, Step, Task, TaskId, Units};
use super::tier::Tier;
use super::{device, task};
use crate::blocks::mix;
use crate::event::JobKind;
use destage_core::{
    Access, Ack, BatchId, ClientId, Core, DomainId, Fault, Input, Intent, Lsn, Mode, Outcome,
    Refusal, RequestId, Span, StopReason, Time, UnitId, WaitFor,
};
use destage_engine::{Drive, FrontEnd};

/// Most blocks that are read or written below in one piece: 1 MiB of blocks of 4 KiB, as the block front end has it.
const RUN_BLOCKS_MAX: u32 = 256;
/// The part of a batch that is its copy in a redo store.
const REDO: u32 = u32::MAX;

impl Machine<'_> {
    /// Carries on until nothing more happens at this time without an event.
    pub(super) fn settle(&mut self) {
        loop {
            if let Some((task, is_ok)) = self.ready.pop_front() {
                self.done(task, is_ok);
            } else if let Some(tier) = self.touched.pop() {
                self.pump(tier);
            } else {
                return;
            }
        }
    }

    /// Reads or writes blocks one level down: at a tier, or at the filer.
    pub(super) fn below(
        &mut self,
        tier: Option<u16>,
        host: u16,
        parent: TaskId,
        units: Units,
        is_write: bool,
        versions: Vec<u32>,
    ) {
        match tier {
            Some(tier) => self.access(tier, parent, units, is_write, versions),
            None => self.remote(host, parent, &units, is_write, versions),
        }
    }

    fn access(
        &mut self,
        tier: u16,
        parent: TaskId,
        units: Units,
        is_write: bool,
        versions: Vec<u32>,
    ) {
        let state = &mut self.tiers[usize::from(tier)];
        if state.ticks_first && is_write {
            // A period that ended before this write does not take it along.
            state.core.handle(self.now, Input::Tick);
        }
        state.needs_tick |= is_write;
        let id = self.tasks.add(Task::Over);
        let bytes = (self.settings.block.get() * units.as_slice().len() as u64) as u32;
        let (intent, step) = if is_write {
            (Intent::Write { bytes, ack: Ack::Policy, fetch: false }, Step::Write)
        } else {
            (Intent::Read, Step::Read)
        };
        let is_absent = |unit: &&UnitId| !state.core.is_present(**unit);
        let absent = units.as_slice().iter().filter(is_absent).count() as u32;
        let input =
            Input::Access { request: RequestId(id.into()), intent, units: units.as_slice() };
        state.core.handle(self.now, input);
        *self.tasks.get(id) = Task::Access { tier, parent, units, absent, step, versions };
        self.touched.push(tier);
    }

    /// Asks the top tier of a host to make everything so far durable.
    pub(super) fn flush(&mut self, request: task::Request) {
        let host = request.host;
        let parent = self.tasks.add(Task::Request(request));
        if self.levels == 0 {
            self.ready.push_back((parent, true));
            return;
        }
        self.wait(host * self.levels, parent, WaitFor::Committed);
    }

    /// Asks every tier of a host to send what is dirty. No request waits for it, but the run does not end before.
    pub(super) fn drain(&mut self, host: u16) {
        let base = host * self.levels;
        for tier in base..base + self.levels {
            let parent = self.tasks.add(Task::Drain);
            self.wait(tier, parent, WaitFor::Decided);
            self.pending += 1;
        }
    }

    /// Waits until everything that a tier has logged so far has come so far.
    fn wait(&mut self, tier: u16, parent: TaskId, until: WaitFor) {
        let id = self.tasks.add(Task::Access {
            tier,
            parent,
            units: Units::new(&[]),
            absent: 0,
            step: Step::ReplyingWrite,
            versions: Vec::new(),
        });
        let state = &mut self.tiers[usize::from(tier)];
        let lsn = state.core.last();
        state.core.handle(self.now, Input::Wait { request: RequestId(id.into()), lsn, until });
        state.needs_tick = true;
        self.touched.push(tier);
    }

    /// Carries out what a tier's core asks for.
    fn pump(&mut self, tier: u16) {
        let index = usize::from(tier);
        let mut front = TierFront { machine: self, tier, ticked: false };
        front.pump();
        let ticked = front.ticked;
        if !self.tiers[index].misses.is_empty() {
            self.fetch(tier);
        }
        if ticked {
            self.plan_tick(tier);
        }
    }

    fn plan_tick(&mut self, tier: u16) {
        let state = &mut self.tiers[usize::from(tier)];
        let Some(at) = state.core.next_timeout() else { return };
        let at = at.max(self.now + Span(1));
        if state.timer.is_none_or(|timer| at < timer) {
            state.timer = Some(at);
            self.events.plan(at, Event::Tick { tier });
        }
    }

    /// The core lets an access go on.
    fn execute(&mut self, tier: u16, id: TaskId, access: Access, observed: Lsn) {
        let state = &mut self.tiers[usize::from(tier)];
        let Task::Access { step, units, absent, versions, .. } = self.tasks.get(id) else {
            self.tasks.take(id);
            return;
        };
        if *step == Step::Read {
            if observed <= state.core.committed() {
                return self.work(tier, id);
            }
            *step = Step::ReplyingRead;
            let client = ClientId(id);
            state.core.handle(self.now, Input::Respond { client, lsn: observed, wrote: false });
            state.needs_tick = true;
            return;
        }
        let versions = std::mem::take(versions);
        if access != Access::Back && state.is_direct && observed == Lsn::ZERO {
            *step = Step::Settling;
            let (units, below, host) = (units.clone(), state.below, state.host);
            let through = self.tasks.add(Task::Through { access: id, how: access });
            return self.below(below, host, through, units, true, versions);
        }
        let units = units.clone();
        let has_absent = *absent > 0;
        let owner = (access != Access::Back).then_some(id);
        *step = if owner.is_some() { Step::Settling } else { Step::ReplyingWrite };
        let lsn = state.log(self.now, units.clone(), access, owner, versions);
        if owner.is_none() {
            let client = ClientId(id);
            state.core.handle(self.now, Input::Respond { client, lsn, wrote: true });
        }
        if has_absent {
            // The dirty version is whole: the blocks may be read although they were never fetched.
            let request = RequestId(self.tasks.add(Task::Note).into());
            let state = &mut self.tiers[usize::from(tier)];
            let units = units.as_slice();
            state.core.handle(self.now, Input::Access { request, intent: Intent::Read, units });
        }
    }

    /// A reply may leave.
    fn replied(&mut self, tier: u16, id: TaskId) {
        match self.tasks.get(id) {
            Task::Access { step: Step::ReplyingRead, .. } => self.work(tier, id),
            _ => self.ready.push_back((id, true)),
        }
    }

    /// Reads what the medium holds; what was fetched just now is in memory.
    fn work(&mut self, tier: u16, id: TaskId) {
        let state = &mut self.tiers[usize::from(tier)];
        let Task::Access { units, absent, step, .. } = self.tasks.get(id) else { return };
        *step = Step::Working;
        let on_medium = state.on_medium(units.as_slice());
        let held = on_medium.saturating_sub((*absent).into());
        if held == 0 {
            self.ready.push_back((id, true));
            return;
        }
        let place = self.places[units.as_slice()[0].0 as usize];
        let station = device::flash_of(state.host);
        self.submit(station, id, JobKind::Read, place, held);
    }

    /// The core wants the newest groups on the medium.
    /// Does what group commit says; the log is written in one piece, on its medium.
    fn commit(&mut self, tier: u16) {
        loop {
            let state = &mut self.tiers[usize::from(tier)];
            if state.next_flush(self.now).is_none() {
                return;
            }
            let upto = state.core.last();
            let blocks = std::mem::take(&mut state.unsynced);
            if blocks > 0 {
                let station = device::flash_of(state.host);
                let id = self.tasks.add(Task::Sync { tier, upto });
                return self.submit(station, id, JobKind::Write, upto.0, blocks);
            }
            self.synced(tier, upto);
        }
    }

    fn synced(&mut self, tier: u16, upto: Lsn) {
        let state = &mut self.tiers[usize::from(tier)];
        if let Some(watch) = &mut self.watch
            && state.has_medium
            && self.settings.flash.persistent
        {
            watch.committed(usize::from(tier), state, upto);
        }
        state.flushed(self.now, upto);
        state.needs_tick = true;
        self.touched.push(tier);
    }

    /// Reads what was missed from below, neighbours together.
    fn fetch(&mut self, tier: u16) {
        let state = &mut self.tiers[usize::from(tier)];
        let mut misses = std::mem::take(&mut state.misses);
        let (below, host) = (state.below, state.host);
        if let [unit] = misses[..] {
            misses.clear();
            state.misses = misses;
            let id = self.tasks.add(Task::Fetch { tier, units: Units::One(unit) });
            return self.below(below, host, id, Units::One(unit), false, Vec::new());
        }
        misses.sort_unstable();
        for run in self.runs(&misses) {
            let units = Units::run(run.first, run.blocks);
            let id = self.tasks.add(Task::Fetch { tier, units: units.clone() });
            self.below(below, host, id, units, false, Vec::new());
        }
    }

    /// Neighbouring blocks together; the units rise.
    fn runs(&self, units: &[UnitId]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for &unit in units {
            let place = |unit: u32| self.places[unit as usize];
            match runs.last_mut() {
                Some(run)
                    if run.blocks < RUN_BLOCKS_MAX
                        && run.first.0 + run.blocks == unit.0
                        && place(run.first.0) + u64::from(run.blocks) == place(unit.0) =>
                {
                    run.blocks += 1;
                }
                _ => runs.push(Run { first: unit, blocks: 1, versions: Vec::new() }),
            }
        }
        runs
    }

    /// Sends a batch below, all at once, or after its copy in a redo store.
    fn destage(&mut self, tier: u16, batch: BatchId) {
        let index = usize::from(tier);
        let lsns = self.tiers[index].core.batch(batch).to_vec();
        let state = &mut self.tiers[index];
        let leaving = state.leave(self.now, &lsns);
        if leaving.is_empty() {
            state.left(&lsns, true);
            state.core.handle(self.now, Input::Destaged { batch, result: Ok(()) });
            state.needs_tick = true;
            return;
        }
        let units: Vec<UnitId> = leaving.iter().map(|block| block.unit).collect();
        if self.tiers[index].has_rows {
            return self.transact(tier, batch, &units);
        }
        let mut runs = self.runs(&units);
        if let Some(watch) = &self.watch {
            watch.fill(&mut runs, &self.tiers[index]);
        }
        let (has_redo, host) = (self.tiers[index].has_redo, self.tiers[index].host);
        let left = if has_redo { 1 } else { runs.len() as u32 };
        let task = Task::Batch { tier, batch, left, failed: false, runs };
        let id = self.tasks.add(task);
        if has_redo {
            let part = self.tasks.add(Task::Part { batch: id, index: REDO });
            return self.redo(host, part, units.len() as u32);
        }
        self.send_runs(id);
    }

    /// Sends a batch below as one transaction.
    fn transact(&mut self, tier: u16, batch: BatchId, units: &[UnitId]) {
        let state = &self.tiers[usize::from(tier)];
        let (below, host) = (state.below, state.host);
        let versions = match &self.watch {
            Some(_) => units.iter().map(|&unit| state.version_sent(unit)).collect(),
            None => Vec::new(),
        };
        let task = Task::Batch { tier, batch, left: 1, failed: false, runs: Vec::new() };
        let id = self.tasks.add(task);
        let part = self.tasks.add(Task::Part { batch: id, index: 0 });
        self.below(below, host, part, Units::new(units), true, versions);
    }

    fn send_runs(&mut self, id: TaskId) {
        let Task::Batch { tier, runs, .. } = self.tasks.get(id) else { return };
        let (tier, runs) = (usize::from(*tier), runs.clone());
        let (below, host) = (self.tiers[tier].below, self.tiers[tier].host);
        for (index, run) in runs.into_iter().enumerate() {
            let part = self.tasks.add(Task::Part { batch: id, index: index as u32 });
            self.below(below, host, part, Units::run(run.first, run.blocks), true, run.versions);
        }
    }

    /// A part of a batch is below, or not.
    fn part_done(&mut self, id: TaskId, part: u32, is_ok: bool) {
        let Task::Batch { left, failed, runs, .. } = self.tasks.get(id) else { return };
        *left -= 1;
        *failed |= !is_ok;
        if part == REDO && is_ok {
            // The group is whole from here on: a replay would carry it out.
            *left = runs.len() as u32;
            if let Some(watch) = &mut self.watch {
                for run in runs.iter() {
                    let units = Units::run(run.first, run.blocks);
                    watch.arrived(units.as_slice(), &run.versions);
                }
            }
            return self.send_runs(id);
        }
        if *left > 0 {
            return;
        }
        let Task::Batch { tier, batch, failed, .. } = self.tasks.take(id) else { return };
        let state = &mut self.tiers[usize::from(tier)];
        let lsns = state.core.batch(batch).to_vec();
        state.left(&lsns, !failed);
        let result = if failed { Err(Fault::Unavailable) } else { Ok(()) };
        state.core.handle(self.now, Input::Destaged { batch, result });
        state.needs_tick = true;
        self.touched.push(tier);
    }

    /// A task is over.
    fn done(&mut self, id: TaskId, is_ok: bool) {
        if let Task::Remote(_) = self.tasks.get(id) {
            return self.stage_done(id);
        }
        match self.tasks.take(id) {
            Task::Request(request) => self.request_done(request, is_ok),
            Task::Drain => self.pending -= 1,
            Task::Access { parent, .. } => self.ready.push_back((parent, is_ok)),
            Task::Fetch { tier, units } => self.fetched(tier, &units, is_ok),
            Task::Part { batch, index } => self.part_done(batch, index, is_ok),
            Task::Through { access, how } => self.through_done(access, how, is_ok),
            Task::Sync { tier, upto } => self.synced(tier, upto),
            Task::Note | Task::Background | Task::Over => {}
            task @ (Task::Batch { .. } | Task::Remote(_)) => {
                unreachable!("it ends with its parts: {task:?}")
            }
        }
    }

    fn fetched(&mut self, tier: u16, units: &Units, is_ok: bool) {
        let state = &mut self.tiers[usize::from(tier)];
        let mut installed = 0;
        for &unit in units.as_slice() {
            let result =
                if is_ok { Ok(self.settings.block.get() as u32) } else { Err(Fault::Unavailable) };
            if is_ok {
                installed += u64::from(state.take_frame(unit));
            }
            let identity = mix(self.places[unit.0 as usize]);
            state.core.handle(self.now, Input::Fetched { unit, result, identity });
        }
        state.needs_tick |= state.core.policy().read_priority || state.ticks_first;
        self.touched.push(tier);
        self.install(tier, units.as_slice()[0], installed);
    }

    /// Writes clean copies to the medium; nobody waits for it.
    fn install(&mut self, tier: u16, first: UnitId, blocks: u64) {
        if blocks > 0 {
            let id = self.tasks.add(Task::Background);
            let station = device::flash_of(self.tiers[usize::from(tier)].host);
            self.submit(station, id, JobKind::Write, self.places[first.0 as usize], blocks);
        }
    }

    /// What was written through is below, or not.
    fn through_done(&mut self, id: TaskId, how: Access, is_ok: bool) {
        let Task::Access { tier, units, absent, .. } = self.tasks.get(id) else { return };
        let (tier, units, absent) = (*tier, units.clone(), *absent);
        let block = self.settings.block.get() as u32;
        let sizes: Vec<_> = units.as_slice().iter().map(|&unit| (unit, block)).collect();
        let result = if is_ok { Ok(()) } else { Err(Fault::Unavailable) };
        let state = &mut self.tiers[usize::from(tier)];
        let mut installed = 0;
        if is_ok && how == Access::Through {
            state.counters.allocated += u64::from(absent);
            for &unit in units.as_slice() {
                installed += u64::from(state.take_frame(unit));
            }
        }
        state.core.handle(self.now, Input::Through { units: &sizes, access: how, result });
        self.touched.push(tier);
        if installed == 0 {
            self.ready.push_back((id, is_ok));
            return;
        }
        // The reply follows the cached copy, as in the block front end.
        let station = device::flash_of(state.host);
        let place = self.places[units.as_slice()[0].0 as usize];
        self.submit(station, id, JobKind::Write, place, installed);
    }
}

/// A tier as the front end of its core.
struct TierFront<'a, 'm> {
    machine: &'a mut Machine<'m>,
    tier: u16,
    /// The core was told of the time.
    ticked: bool,
}

impl TierFront<'_, '_> {
    fn state(&mut self) -> &mut Tier {
        &mut self.machine.tiers[usize::from(self.tier)]
    }
}

/// Nothing is rejected and no sync fails here.
impl FrontEnd for TierFront<'_, '_> {
    fn execute(&mut self, request: RequestId, access: Access, observed: Lsn) {
        self.machine.execute(self.tier, request.0 as TaskId, access, observed);
    }

    fn refuse(&mut self, request: RequestId, _refusal: Refusal) {
        self.state().counters.refused += 1;
        self.machine.ready.push_back((request.0 as TaskId, false));
    }

    fn send_replies(&mut self, client: ClientId) {
        self.machine.replied(self.tier, client.0);
    }

    fn wait_ended(&mut self, request: RequestId, _outcome: Outcome) {
        self.machine.ready.push_back((request.0 as TaskId, true));
    }

    fn make_durable(&mut self, upto: Lsn) {
        let state = self.state();
        state.commit.want(upto);
        state.needs_tick = true;
        self.machine.commit(self.tier);
    }

    fn fetch_unit(&mut self, unit: UnitId) {
        let now = self.machine.now;
        let identity = mix(self.machine.places[unit.0 as usize]);
        let bytes = self.machine.settings.block.get() as u32;
        let state = self.state();
        if state.is_written(unit) {
            state.core.handle(now, Input::Fetched { unit, result: Ok(bytes), identity })
        } else {
            state.misses.push(unit)
        }
    }

    fn send_batch(&mut self, batch: BatchId, _domain: DomainId) {
        self.machine.destage(self.tier, batch);
    }

    fn write_settled(&mut self, lsn: Lsn, applied: bool) {
        if let Some(owner) = self.state().group(lsn).owner {
            self.machine.ready.push_back((owner, applied));
        }
    }

    fn forget_groups(&mut self, upto: Lsn) {
        self.state().forget(upto);
    }

    fn evict_unit(&mut self, unit: UnitId) {
        let now = self.machine.now;
        let identity = mix(self.machine.places[unit.0 as usize]);
        let state = self.state();
        state.give_frame(unit);
        state.core.handle(now, Input::Evicted { identity });
    }

    fn mode_changed(&mut self, _mode: Mode) {}

    fn stop_serving(&mut self, reason: StopReason) {
        unreachable!("no sync fails here: {reason:?}")
    }
}

impl Drive for TierFront<'_, '_> {
    type Core = Core;

    fn core(&self) -> &Core {
        &self.machine.tiers[usize::from(self.tier)].core
    }

    fn core_mut(&mut self) -> &mut Core {
        &mut self.state().core
    }

    fn advance(&mut self, _now: Time) -> Time {
        self.machine.now
    }

    fn unheard(&mut self) -> RequestId {
        RequestId(self.machine.tasks.add(Task::Note).into())
    }

    /// The core is told of the time once nothing else is to be done at it.
    fn after_effects(&mut self) -> bool {
        let now = self.machine.now;
        let needs_tick = std::mem::take(&mut self.state().needs_tick);
        if needs_tick {
            self.state().core.handle(now, Input::Tick);
            self.ticked = true;
        }
        needs_tick
    }
}
