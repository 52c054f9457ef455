//! The machine: what it consists of, how its requests begin and end, and what is counted of them.

mod finish;

use super::crash::Watch;
use super::disk::Filer;
use super::looks::Looks;
use super::meter::Meter;
use super::report::{Gathered, Origin, Report};
use super::settings::{Architecture, Arrivals, Faulty, Settings, Start};
use super::task::{self, Task, TaskId, Tasks, Units};
use super::tier::Tier;
use super::{RunError, device};
use crate::blocks::{Block, Blocks, TooManyBlocks, mix};
use crate::event::{Events, Station};
use crate::hits::{Count, Counts};
use crate::trace::{Extent, Op, Request};
use destage_core::{Input, Span, Time, UnitId};
use std::collections::VecDeque;

/// What is planned.
#[derive(Debug)]
pub(super) enum Event {
    /// A thread issues its next request.
    Issue { thread: u16 },
    /// A server of a station is done.
    Served { station: u16, server: u16 },
    /// Something happens at the modelled disk.
    Disk,
    /// A tier's core wants to look at the time.
    Tick { tier: u16 },
    /// Somebody looks, as an operator would: see [`super::looks`].
    Look,
}

/// Hosts, network and filer.
pub(super) struct Machine<'s> {
    pub(super) settings: &'s Settings,
    pub(super) now: Time,
    pub(super) events: Events<Event>,
    pub(super) tasks: Tasks,
    /// What is over, and whether it went well.
    pub(super) ready: VecDeque<(TaskId, bool)>,
    /// Tiers whose core has something to say.
    pub(super) touched: Vec<u16>,
    pub(super) tiers: Vec<Tier>,
    pub(super) levels: u16,
    pub(super) stations: Vec<Station>,
    /// In the place of the last station, where there is one.
    pub(super) disk: Option<Filer>,
    pub(super) watch: Option<Watch>,
    /// Who looks on the way.
    pub(super) looks: Option<Looks<'s>>,
    /// Where each block lies on its device.
    pub(super) places: Vec<u64>,
    pub(super) origin: Origin,
    blocks: Blocks,
    found: Vec<Block>,
    issued: u64,
    /// Requests and drains that are not over.
    pub(super) pending: u64,
    last_write: u32,
    writes_since_flush: Vec<u32>,
    writes_since_drain: Vec<u32>,
    seen: Seen,
    meter: &'s Meter,
    /// Requests that the meter knows of.
    metered: u64,
    /// When the last request of an open loop came, and how many were under way then.
    last_arrival: Option<(Time, u64)>,
}

/// What is counted since the measurement began.
#[derive(Debug, Default)]
struct Seen {
    since: Option<Time>,
    until: Time,
    reads: Side,
    writes: Side,
    flushes: u64,
    discards: u64,
    failed: u64,
    invalidated: Count,
    invalidated_requests: Count,
    hash: u64,
    busy_before: Vec<(u64, Span)>,
}

#[derive(Debug, Default)]
struct Side {
    counts: Counts,
    gathered: Gathered,
}

/// So many requests are issued before the meter is told again.
const METER_EVERY: u64 = 1_024;
/// Bits of a place that are a block's number on its device.
const PLACE_BITS: u32 = 47;

impl<'s> Machine<'s> {
    pub(super) fn new(settings: &'s Settings, meter: &'s Meter) -> Self {
        let (mut tiers, mut levels) = (Vec::new(), 0);
        for host in 0..settings.hosts {
            let base = tiers.len() as u16;
            let has = [settings.ram.size.get() > 0, settings.flash.size.get() > 0];
            match (settings.architecture, has) {
                (Architecture::Unified, _) => tiers.push(Tier::unified(settings, host)),
                (_, [true, true]) => {
                    tiers.push(Tier::new(settings, host, true, Some(base + 1)));
                    tiers.push(Tier::new(settings, host, false, None));
                }
                (_, [false, false]) => {}
                (_, [is_ram, _]) => tiers.push(Tier::new(settings, host, is_ram, None)),
            }
            levels = tiers.len() as u16 - base;
        }
        let devices = &settings.devices;
        let mut stations = Vec::new();
        for host in 0..settings.hosts {
            let name = format!("flash {host}");
            let faults = &settings.faults;
            stations.push(device::station(
                &devices.flash,
                settings.seed,
                &name,
                Faulty::Flash,
                faults,
            ));
            let (packet, kilobyte) = (devices.packet.span(), devices.kilobyte.span());
            for _ in 0..2 {
                stations.push(device::link(packet, kilobyte, settings.block.get()));
            }
        }
        let (filer, faults) = (&devices.filer, &settings.faults);
        stations.push(device::station(filer, settings.seed, "filer", Faulty::Filer, faults));
        Self {
            now: Time::ZERO,
            events: Events::default(),
            tasks: Tasks::default(),
            ready: VecDeque::new(),
            touched: Vec::new(),
            watch: (!settings.crashes.is_empty())
                .then(|| Watch::new(&settings.crashes, tiers.len())),
            looks: None,
            tiers,
            levels,
            stations,
            disk: devices.disk.map(|disk| Filer::new(disk, settings.seed)),
            places: Vec::new(),
            origin: Origin::default(),
            blocks: Blocks::new(settings.block.get() as u32),
            found: Vec::new(),
            issued: 0,
            pending: 0,
            last_write: 0,
            writes_since_flush: vec![0; settings.hosts.into()],
            writes_since_drain: vec![0; settings.hosts.into()],
            seen: Seen::default(),
            meter,
            metered: 0,
            last_arrival: None,
            settings,
        }
    }

    pub(super) fn run<E>(
        mut self,
        mut source: impl Iterator<Item = Result<Request, E>>,
    ) -> Result<Report, RunError<E>> {
        if self.settings.start == Start::Cold {
            for _ in 0..self.settings.warmup_requests {
                source.next().transpose().map_err(RunError::Source)?;
            }
            self.issued = self.settings.warmup_requests;
        }
        self.plan_look();
        match self.settings.arrivals {
            Arrivals::Open { speed_percent } => self.open(source, speed_percent)?,
            Arrivals::Closed { threads, .. } => self.closed(source, threads)?,
        }
        self.meter.add(self.issued - self.metered);
        // What the last request lets happen at once still does.
        while self.events.next_at().is_some_and(|at| at <= self.now) {
            self.step();
        }
        if let Some(watch) = &mut self.watch {
            watch.look(Time(u64::MAX));
        }
        Ok(self.report())
    }

    /// Requests at their times; what is planned for the same time comes first.
    fn open<E>(
        &mut self,
        mut source: impl Iterator<Item = Result<Request, E>>,
        speed_percent: u32,
    ) -> Result<(), RunError<E>> {
        let mut base = None;
        let mut next = source.next().transpose().map_err(RunError::Source)?;
        while !self.is_stopped() {
            let arrival = next.as_ref().map(|request| {
                let since = request.time.since(*base.get_or_insert(request.time)).0;
                Time((u128::from(since) * 100 / u128::from(speed_percent)) as u64)
            });
            match arrival {
                Some(at) if self.events.next_at().is_none_or(|event| at < event) => {
                    self.advance(at);
                    let request = next.take().expect("it has an arrival");
                    self.issue(&request, 0)?;
                    self.settle();
                    next = source.next().transpose().map_err(RunError::Source)?;
                    if next.is_none() {
                        self.last_arrival = Some((self.now, self.pending));
                    }
                }
                None if self.pending == 0 => return Ok(()),
                _ => {
                    if !self.step() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the run is to end early; tells how far it is.
    fn is_stopped(&mut self) -> bool {
        if self.issued - self.metered >= METER_EVERY {
            self.meter.add(self.issued - self.metered);
            self.metered = self.issued;
        }
        self.meter.is_stopped()
    }

    /// Each thread issues a request when its last one is over.
    fn closed<E>(
        &mut self,
        mut source: impl Iterator<Item = Result<Request, E>>,
        threads: u16,
    ) -> Result<(), RunError<E>> {
        for thread in 0..threads {
            self.events.plan(Time::ZERO, Event::Issue { thread });
        }
        let mut is_over = false;
        while !(self.is_stopped() || is_over && self.pending == 0) {
            let Some(at) = self.events.next_at() else { return Ok(()) };
            self.advance(at);
            match self.events.take_until(at) {
                Some(Event::Issue { thread }) if !is_over => {
                    match source.next().transpose().map_err(RunError::Source)? {
                        Some(request) => self.issue(&request, thread)?,
                        None => is_over = true,
                    }
                }
                Some(event) => self.happen(&event),
                None => {}
            }
            self.settle();
        }
        Ok(())
    }

    fn advance(&mut self, at: Time) {
        if let Some(watch) = &mut self.watch {
            watch.look(at);
        }
        self.now = at;
    }

    /// Lets the next thing happen; false if nothing is planned.
    fn step(&mut self) -> bool {
        let Some(at) = self.events.next_at() else { return false };
        self.advance(at);
        if let Some(event) = self.events.take_until(at) {
            self.happen(&event);
        }
        self.settle();
        true
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::Issue { .. } => {}
            Event::Served { station, server } => self.served(station, server),
            Event::Disk => self.disk_moved(),
            Event::Look => self.look(),
            Event::Tick { tier } => {
                let state = &mut self.tiers[usize::from(tier)];
                if state.timer == Some(self.now) {
                    state.timer = None;
                    state.needs_tick = true;
                    self.touched.push(tier);
                }
            }
        }
    }

    fn issue(&mut self, request: &Request, thread: u16) -> Result<(), TooManyBlocks> {
        if self.issued == self.settings.warmup_requests {
            self.begin_measuring();
        }
        let measured = self.issued >= self.settings.warmup_requests;
        self.issued += 1;
        let mut found = std::mem::take(&mut self.found);
        let known = self.blocks.len();
        self.blocks.of(request, &mut found)?;
        self.place(request, &found, known);
        let host = request.host % self.settings.hosts;
        let state = task::Request {
            at: self.now,
            host,
            thread,
            is_write: request.op == Op::Write,
            is_flush: request.op == Op::Flush,
            measured,
            blocks: found.len() as u32,
            version: 0,
        };
        self.pending += 1;
        match request.op {
            Op::Flush => self.flush(state),
            Op::Discard => self.discard(state, &found),
            Op::Read | Op::Write => self.access_blocks(state, &found),
        }
        self.found = found;
        Ok(())
    }

    /// Notes where new blocks lie.
    fn place(&mut self, request: &Request, found: &[Block], known: u32) {
        if self.blocks.len() == known {
            return;
        }
        let (base, step) = match request.extent {
            Extent::Range { device, offset, .. } => {
                ((u64::from(device) << PLACE_BITS) + offset / self.blocks.block_bytes(), 1)
            }
            // Objects lie where their number says, far from one another.
            Extent::Object { .. } => (u64::from(known) * 2, 2),
        };
        for (index, block) in found.iter().enumerate() {
            if block.id as usize >= self.places.len() {
                self.places.push(base + index as u64 * step);
            }
        }
    }

    fn access_blocks(&mut self, mut request: task::Request, found: &[Block]) {
        let units: Vec<UnitId>;
        let units = match found {
            [block] => Units::One(UnitId(block.id)),
            _ => {
                units = found.iter().map(|block| UnitId(block.id)).collect();
                Units::new(&units)
            }
        };
        self.count(&request, found);
        let mut versions = Vec::new();
        if request.is_write {
            self.invalidate_others(&request, units.as_slice());
            if let Some(watch) = &mut self.watch {
                self.last_write += 1;
                request.version = self.last_write;
                versions = vec![request.version; units.as_slice().len()];
                watch.issued(self.now, request.version, units.clone());
            }
        }
        let is_write = request.is_write;
        let host = request.host;
        let id = self.tasks.add(Task::Request(request));
        if found.is_empty() {
            self.ready.push_back((id, true));
        } else {
            let top = (self.levels > 0).then(|| host * self.levels);
            self.below(top, host, id, units, is_write, versions);
        }
        if is_write && self.settings.flush_every > 0 {
            self.flush_if_due(request);
        }
    }

    /// A flush of the host's own after so many writes.
    fn flush_if_due(&mut self, request: task::Request) {
        let since = &mut self.writes_since_flush[usize::from(request.host)];
        *since += 1;
        if *since < self.settings.flush_every {
            return;
        }
        *since = 0;
        self.pending += 1;
        // No thread waits for it.
        let thread = u16::MAX;
        self.flush(task::Request { is_write: false, is_flush: true, thread, blocks: 0, ..request });
    }

    /// Counts hits as they are found when the request arrives.
    fn count(&mut self, request: &task::Request, found: &[Block]) {
        if !request.measured || found.is_empty() {
            return;
        }
        let base = usize::from(request.host * self.levels);
        let tiers = &self.tiers[base..base + usize::from(self.levels)];
        let has_ram = self.settings.ram.size.get() > 0;
        let side = if request.is_write { &mut self.seen.writes } else { &mut self.seen.reads };
        let mut counts = Counts::default();
        for block in found {
            let level = tiers.iter().position(|tier| tier.holds(UnitId(block.id)));
            let hit = u64::from(level.is_some());
            let in_ram = has_ram && level == Some(0);
            counts.ram_block_hits += u64::from(in_ram);
            counts.blocks.add(1, hit);
            counts.bytes.add(block.bytes.into(), u64::from(block.bytes) * hit);
        }
        counts.requests.add(1, u64::from(counts.blocks.hits == counts.blocks.all));
        side.counts.add(&counts);
    }

    /// Global knowledge instead of a protocol: what a host writes, the others drop wherever they hold it clean.
    fn invalidate_others(&mut self, request: &task::Request, units: &[UnitId]) {
        if self.settings.hosts == 1 {
            return;
        }
        let mut any = false;
        for &unit in units {
            let mut was_held = false;
            for index in 0..self.tiers.len() {
                let tier = &mut self.tiers[index];
                if tier.host != request.host && tier.holds(unit) {
                    was_held = true;
                    tier.core.handle(self.now, Input::Invalidate { unit });
                    self.touched.push(index as u16);
                }
            }
            any |= was_held;
            if request.measured {
                self.seen.invalidated.add(1, u64::from(was_held));
            }
        }
        if request.measured {
            self.seen.invalidated_requests.add(1, u64::from(any));
        }
    }

    fn discard(&mut self, request: task::Request, found: &[Block]) {
        let base = request.host * self.levels;
        for level in base..base + self.levels {
            for block in found {
                let unit = UnitId(block.id);
                self.tiers[usize::from(level)].core.handle(self.now, Input::Invalidate { unit });
            }
            self.touched.push(level);
        }
        self.seen.discards += u64::from(request.measured);
        self.pending -= 1;
        self.go_on(&request, Span::ZERO);
    }

    /// A request of an application is over.
    pub(super) fn request_done(&mut self, request: task::Request, is_ok: bool) {
        self.pending -= 1;
        let has_ram = self.settings.ram.size.get() > 0;
        let in_ram = if has_ram { self.settings.devices.ram.span().0 } else { 0 };
        let delay = Span(in_ram.saturating_mul(request.blocks.into()));
        let latency = Span((self.now + delay).since(request.at).0);
        if let Some(looks) = self.looks.as_mut().filter(|_| request.is_write) {
            looks.answered(latency);
        }
        if let Some(watch) = &mut self.watch {
            if request.is_flush {
                watch.flushed(request.at);
            } else if request.is_write && is_ok {
                watch.acked(self.now, request.version);
            }
        }
        if request.is_write && self.settings.drain_every > 0 {
            self.drain_if_due(request.host);
        }
        self.go_on(&request, delay);
        if !request.measured {
            return;
        }
        let seen = &mut self.seen;
        seen.until = seen.until.max(self.now + delay);
        let kind = u64::from(request.is_write) | u64::from(is_ok) << 1;
        seen.hash = mix(seen.hash ^ mix(latency.0 << 2 | kind));
        seen.failed += u64::from(!is_ok);
        match (request.is_flush, request.is_write) {
            (true, _) => seen.flushes += 1,
            (_, true) => seen.writes.gathered.add(latency),
            (_, false) => seen.reads.gathered.add(latency),
        }
    }

    /// A drain of the host's own after so many writes.
    fn drain_if_due(&mut self, host: u16) {
        let since = &mut self.writes_since_drain[usize::from(host)];
        *since += 1;
        if *since == self.settings.drain_every {
            *since = 0;
            self.drain(host);
        }
    }

    /// The thread of a request that is over goes on.
    fn go_on(&mut self, request: &task::Request, delay: Span) {
        if let Arrivals::Closed { think, .. } = self.settings.arrivals
            && request.thread != u16::MAX
        {
            let at = self.now + Span(delay.0.saturating_add(think.span().0));
            self.events.plan(at, Event::Issue { thread: request.thread });
        }
    }

    fn begin_measuring(&mut self) {
        self.tiers.iter_mut().for_each(Tier::reset);
        let busy_before = self.served_by_now();
        self.seen = Seen { since: Some(self.now), until: self.now, busy_before, ..Seen::default() };
        self.origin = Origin::default();
        if self.settings.start == Start::Restarted {
            self.restart();
        }
    }

    /// Nothing clean is left but in persistent flash.
    fn restart(&mut self) {
        for index in 0..self.tiers.len() {
            if self.tiers[index].has_medium && self.settings.flash.persistent {
                continue;
            }
            for id in 0..self.blocks.len() {
                let unit = UnitId(id);
                self.tiers[index].core.handle(self.now, Input::Invalidate { unit });
            }
            self.touched.push(index as u16);
        }
    }
}
