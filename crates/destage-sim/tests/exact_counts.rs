//! The counters of the event mode against a model of the policies over plain lists, written from their definitions: with devices
//! that take no time, both must count alike, on generated loads and, where `DESTAGE_TRACES` names a folder with them, on real
//! traces.

use destage_core::{Span, Time, When};
use destage_runtime::units::{Bytes, Interval};
use destage_sim::blocks::Blocks;
use destage_sim::generate::{Generate, Load, Ycsb};
use destage_sim::hits::{Hits, Replacements, Setup};
use destage_sim::machine::{Devices, Report, Settings, Tier, WritePolicy, run};
use destage_sim::trace::{Op, Options, Request, Trace};
use destage_testkit::needs::trace;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;

const BLOCK: u64 = 4_096;

/// What is counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    read_hits: u64,
    write_hits: u64,
    requests_hit: u64,
    origin_reads: u64,
    origin_writes: u64,
    writes_on_dirty: u64,
    dirty_left: u64,
    bursts: u64,
    burst_max: u64,
    age_sum: u64,
}

/// A policy by its definition.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// Every write reaches the origin at once.
    WriteThrough,
    /// Everything dirty leaves at every multiple of the period (Mogul 1994).
    Periodic(Span),
    /// At every multiple of the check, what became dirty at least so long before leaves (the same).
    Interval(Span, Span),
    /// Destage's own, which pins what is dirty: writes leave in the order of their writing once the next one finds no room, until no
    /// more than the low mark is left. The classic cache that writes a block when it is evicted is another one: see below.
    Pressure { dirty_max: u64, dirty_low: u64 },
}

#[derive(Debug)]
struct Write {
    at: Time,
    /// Writes are numbered from 1.
    number: u64,
    blocks: Vec<u32>,
}

#[derive(Debug, Default)]
struct Block {
    /// When it was written first since it left last.
    dirty_since: Option<Time>,
    /// The newest write of it, and the newest that has left; 0 for none.
    newest: u64,
    left: u64,
    /// Writes that are not decided: pinned.
    pending: u32,
    /// Its place in the order of use, if it is clean.
    used: Option<u64>,
}

struct Model {
    rule: Rule,
    places: usize,
    blocks: HashMap<u32, Block>,
    /// Clean blocks in the order of their last use.
    clean: BTreeMap<u64, u32>,
    uses: u64,
    pinned: usize,
    writes: VecDeque<Write>,
    written: u64,
    /// The medium holds the writes up to this one.
    committed: u64,
    pending_bytes: u64,
    looked: Time,
    counted: Counted,
    burst: (Option<Time>, u64),
}

impl Model {
    fn new(rule: Rule, places: usize) -> Self {
        Self {
            rule,
            places,
            blocks: HashMap::new(),
            clean: BTreeMap::new(),
            uses: 0,
            pinned: 0,
            writes: VecDeque::new(),
            written: 0,
            committed: 0,
            pending_bytes: 0,
            looked: Time::ZERO,
            counted: Counted::default(),
            burst: (None, 0),
        }
    }

    fn request(&mut self, now: Time, op: Op, blocks: &[u32]) {
        self.look(now);
        match op {
            Op::Flush => return,
            Op::Discard => return blocks.iter().for_each(|&block| self.drop_clean(block)),
            Op::Read | Op::Write if blocks.is_empty() => return,
            _ => {}
        }
        let hits = blocks.iter().filter(|&&block| self.is_present(block)).count() as u64;
        self.counted.requests_hit += u64::from(hits == blocks.len() as u64);
        if op == Op::Read {
            self.counted.read_hits += hits;
            self.counted.origin_reads += blocks.len() as u64 - hits;
            blocks.iter().for_each(|&block| self.used(block));
            return self.make_room();
        }
        self.counted.write_hits += hits;
        if self.rule == Rule::WriteThrough {
            self.counted.origin_writes += blocks.len() as u64;
            blocks.iter().for_each(|&block| self.used(block));
            return self.make_room();
        }
        let is_leaving = self.wait_for_room(now, blocks.len() as u64);
        self.written += 1;
        for &block in blocks {
            self.drop_clean(block);
            let known = self.blocks.entry(block).or_default();
            self.counted.writes_on_dirty += u64::from(known.dirty_since.is_some());
            known.dirty_since.get_or_insert(now);
            known.newest = self.written;
            self.pinned += usize::from(known.pending == 0);
            known.pending += 1;
        }
        self.pending_bytes += blocks.len() as u64 * BLOCK;
        self.writes.push_back(Write { at: now, number: self.written, blocks: blocks.to_vec() });
        self.relieve(now, is_leaving);
        self.committed = self.written;
        self.make_room();
    }

    fn is_present(&self, block: u32) -> bool {
        self.blocks.get(&block).is_some_and(|known| known.pending > 0 || known.used.is_some())
    }

    fn drop_clean(&mut self, block: u32) {
        if let Some(used) = self.blocks.get_mut(&block).and_then(|known| known.used.take()) {
            self.clean.remove(&used);
        }
    }

    /// A block that is not pinned counts as used just now.
    fn used(&mut self, block: u32) {
        self.drop_clean(block);
        let known = self.blocks.entry(block).or_default();
        if known.pending == 0 {
            self.uses += 1;
            known.used = Some(self.uses);
            self.clean.insert(self.uses, block);
        }
    }

    fn make_room(&mut self) {
        while self.clean.len() > self.places.saturating_sub(self.pinned) {
            let (_, block) = self.clean.pop_first().expect("there is one");
            self.blocks.get_mut(&block).expect("it is known").used = None;
        }
    }

    /// The points in time up to now at which the policy looks.
    fn look(&mut self, now: Time) {
        let period = match self.rule {
            Rule::Periodic(period) | Rule::Interval(_, period) => period,
            Rule::WriteThrough | Rule::Pressure { .. } => return,
        };
        while self.looked + period <= now {
            self.looked = self.looked + period;
            let due = match self.rule {
                Rule::Interval(age, _) if self.looked.0 < age.0 => continue,
                Rule::Interval(age, _) => self.looked - age,
                _ => self.looked,
            };
            while self.writes.front().is_some_and(|write| write.at <= due) {
                self.leave(self.looked);
            }
            self.make_room();
        }
    }

    /// The oldest write is decided; those of its blocks that have not left since then leave, in their newest version, or where
    /// the medium does not hold that yet in the write's own.
    /// Whether anything had to.
    fn leave(&mut self, now: Time) -> bool {
        let before = self.counted.origin_writes;
        let write = self.writes.pop_front().expect("there is one");
        self.pending_bytes -= write.blocks.len() as u64 * BLOCK;
        for block in write.blocks {
            let known = self.blocks.get_mut(&block).expect("it is known");
            if known.left < write.number {
                let is_newest = known.newest == write.number || known.newest <= self.committed;
                known.left = if is_newest { known.newest } else { write.number };
                let since = known.dirty_since.take().expect("it is dirty");
                if !is_newest {
                    known.dirty_since = self.writes.back().map(|newest| newest.at);
                }
                self.counted.age_sum += now.since(since).0;
                self.counted.origin_writes += 1;
                if self.burst.0 != Some(now) {
                    self.burst = (Some(now), 0);
                    self.counted.bursts += 1;
                }
                self.burst.1 += 1;
                self.counted.burst_max = self.counted.burst_max.max(self.burst.1);
            }
            known.pending -= 1;
            if known.pending == 0 {
                self.pinned -= 1;
                self.used(block);
            }
        }
        self.counted.origin_writes > before
    }

    fn dirty_bytes(&self) -> u64 {
        self.pending_bytes + self.pinned as u64 * BLOCK
    }

    /// Makes room for a write that finds none. Whether the next one to leave is on its way when the write comes.
    fn wait_for_room(&mut self, now: Time, blocks: u64) -> bool {
        let Rule::Pressure { dirty_max, dirty_low } = self.rule else { return false };
        let mut has_waited = false;
        while self.dirty_bytes() > 0 && self.dirty_bytes() + blocks * BLOCK > dirty_max {
            self.leave(now);
            self.make_room();
            has_waited = true;
        }
        has_waited && self.dirty_bytes() > dirty_low
    }

    /// What came over the high mark goes down to the low mark. By the time that the first block has left, the medium holds the
    /// write that has just come.
    fn relieve(&mut self, now: Time, is_leaving: bool) {
        let Rule::Pressure { dirty_max, dirty_low } = self.rule else { return };
        let mut is_over = is_leaving || self.dirty_bytes() >= dirty_max;
        while is_over {
            if self.leave(now) {
                self.committed = self.written;
            }
            is_over = self.dirty_bytes() > dirty_low;
        }
    }

    fn finish(mut self) -> Counted {
        self.counted.dirty_left =
            self.blocks.values().filter(|known| known.dirty_since.is_some()).count() as u64;
        self.counted
    }
}

fn model(requests: &[Request], rule: Rule, places: usize) -> Counted {
    let mut blocks = Blocks::new(BLOCK as u32);
    let mut found = Vec::new();
    let mut model = Model::new(rule, places);
    for request in requests {
        blocks.of(request, &mut found).expect("there are few blocks");
        let ids: Vec<u32> = found.iter().map(|block| block.id).collect();
        model.request(request.time, request.op, &ids);
    }
    model.finish()
}

fn simulated(requests: &[Request], rule: Rule, places: usize) -> (Counted, Report) {
    let tier = Tier {
        size: Bytes(places as u64 * BLOCK),
        policy: if rule == Rule::WriteThrough {
            WritePolicy::WriteThrough
        } else {
            WritePolicy::WriteBack
        },
        when: match rule {
            Rule::WriteThrough => When::Async,
            Rule::Periodic(every) => When::Periodic { every },
            Rule::Interval(age, check) => When::Interval { age, check },
            Rule::Pressure { .. } => When::OnPressure,
        },
        staleness: Interval::NONE,
        at_limit: destage_core::AtLimit::Block,
        dirty_percent: 100,
        low_percent: 99,
        batch: Bytes(1 << 40),
        batch_groups: if matches!(rule, Rule::Pressure { .. }) { 1 } else { 65_536 },
        ..Tier::default()
    };
    let settings =
        Settings { flash: tier, devices: Devices::infinitely_fast(), ..Settings::default() };
    let report = run(requests.iter().map(|&request| Ok::<_, Infallible>(request)), &settings)
        .expect("the settings fit");
    let (reads, writes, destage) = (&report.reads, &report.writes, report.destage);
    let through = rule == Rule::WriteThrough;
    let counted = Counted {
        read_hits: reads.counts.blocks.hits,
        write_hits: writes.counts.blocks.hits,
        requests_hit: reads.counts.requests.hits + writes.counts.requests.hits,
        origin_reads: report.origin.read_blocks,
        origin_writes: report.origin.write_blocks,
        writes_on_dirty: destage.written_on_dirty,
        dirty_left: destage.dirty_left,
        bursts: destage.bursts,
        burst_max: destage.burst_max,
        age_sum: (destage.dirty_age_mean * destage.destaged_blocks as f64 * 1e9).round() as u64,
    };
    assert!(through || destage.destaged_blocks == report.origin.write_blocks);
    (counted, report)
}

fn alike(name: &str, requests: &[Request], rule: Rule, places: usize) -> Counted {
    let (mut ours, _) = simulated(requests, rule, places);
    let theirs = model(requests, rule, places);
    // The report holds the mean age as a floating-point number.
    if (ours.age_sum as f64 - theirs.age_sum as f64).abs() <= theirs.age_sum as f64 * 1e-12 + 1.0 {
        ours.age_sum = theirs.age_sum;
    }
    assert_eq!(ours, theirs, "{name} {rule:?} with {places} blocks");
    ours
}

fn pressure(places: usize) -> Rule {
    let dirty_max = places as u64 * 2 * BLOCK;
    Rule::Pressure { dirty_max, dirty_low: dirty_max / 100 * 99 }
}

fn generated(seed: u64) -> Vec<Request> {
    let load = match seed % 2 {
        0 => Load::Ycsb { workload: Ycsb::A, records: 20_000 },
        _ => Load::WorkingSet {
            set_blocks: 3_000,
            all_blocks: 1_000_000,
            region_blocks: 64,
            skew: 1,
            outside_percent: 20,
            outside_halvings: 0,
            write_percent: 30,
            request_blocks: 3,
        },
    };
    // Not a divisor of the periods, nor a multiple.
    let interval = Span(3_100_007);
    let generate = Generate { load, requests: 20_000, interval, hosts: 1, threads: 1, seed };
    generate.requests().expect("the parameters are in range").collect()
}

#[test]
fn every_counter_is_that_of_the_definition_on_generated_loads() {
    let (mut on_dirty, mut left, mut misses) = (0, 0, 0);
    for seed in 1..=4 {
        let requests = generated(seed);
        for (rule, places) in [
            (Rule::WriteThrough, 500),
            (Rule::WriteThrough, 2_500),
            (Rule::Periodic(Span::from_secs(1)), 4_000),
            (Rule::Interval(Span::from_secs(1), Span::from_millis(50)), 6_000),
            // The interval policy itself, as nearly as the core has it.
            (Rule::Interval(Span::from_millis(700), Span::from_millis(1)), 6_000),
            (pressure(300), 300),
            (pressure(2_000), 2_000),
        ] {
            let counted = alike(&format!("seed {seed}"), &requests, rule, places);
            on_dirty += counted.writes_on_dirty;
            left += counted.dirty_left;
            misses += counted.origin_reads;
        }
    }
    assert!(on_dirty > 1_000 && left > 1_000 && misses > 10_000, "{on_dirty} {left} {misses}");
}

/// The classic write-on-eviction cache by its definition: the least recently used block leaves, dirty or not, and is written then
/// if it is dirty.
fn written_on_eviction(requests: &[Request], places: usize) -> u64 {
    let mut blocks = Blocks::new(BLOCK as u32);
    let (mut found, mut written) = (Vec::new(), 0);
    // By their last use, and whether they are dirty.
    let mut cached: BTreeMap<u64, (u32, bool)> = BTreeMap::new();
    let mut used: HashMap<u32, u64> = HashMap::new();
    for (request, start) in requests.iter().zip((0..).step_by(1 << 20)) {
        blocks.of(request, &mut found).expect("there are few blocks");
        for (block, now) in found.iter().zip(start..) {
            let before = used.remove(&block.id).and_then(|then| cached.remove(&then));
            if request.op == Op::Discard {
                continue;
            }
            if before.is_none() && cached.len() == places {
                let (_, (out, is_dirty)) = cached.pop_first().expect("it is full");
                used.remove(&out);
                written += u64::from(is_dirty);
            }
            let is_dirty = request.op == Op::Write || before.is_some_and(|(_, is_dirty)| is_dirty);
            cached.insert(now, (block.id, is_dirty));
            used.insert(block.id, now);
        }
    }
    written
}

fn counted_on_eviction(requests: &[Request], places: usize) -> u64 {
    let setup = Setup {
        replacement: Replacements::Lru,
        ram_replacement: Replacements::Lru,
        ram_blocks: 0,
        flash_blocks: places as u64,
    };
    let mut hits = Hits::new(BLOCK as u32, &[setup]).expect("it has room");
    requests.iter().for_each(|request| hits.request(request).expect("there are few blocks"));
    hits.finish()[0].1.evicted_dirty_blocks
}

#[test]
fn what_leaves_dirty_is_what_a_cache_writes_that_writes_on_eviction_and_not_what_pressure_writes() {
    for seed in 1..=4 {
        let requests = generated(seed);
        for places in [300, 2_000] {
            let ours = counted_on_eviction(&requests, places);
            assert_eq!(ours, written_on_eviction(&requests, places), "seed {seed}, {places}");
            let pressed = model(&requests, pressure(places), places).origin_writes;
            assert_ne!(ours, pressed, "seed {seed}, {places}: the two differ");
        }
    }
}

/// Requests of each real trace that are looked at, unless all are.
const PREFIX: usize = 4_000;

#[test]
fn every_counter_is_that_of_the_definition_on_the_beginning_of_real_traces() {
    on_real_traces(PREFIX);
}

#[test]
#[ignore = "takes a minute in a release build, five otherwise: cargo test --release -p destage-sim --test exact_counts -- --ignored"]
fn every_counter_is_that_of_the_definition_on_whole_real_traces() {
    on_real_traces(usize::MAX);
}

const TRACES: [&str; 7] = [
    "cloudphysics.csv.zst",
    "cloudphysics.vscsi.zst",
    "hplajw-1week.csv.zst",
    "hplajw-1week.srt.zst",
    "mqsim-tpcc-small.trace.zst",
    "ycsb-a-rocksdb.csv.zst",
    "ycsb-a-rocksdb.octf.tar.xz",
];

fn on_real_traces(requests_max: usize) {
    for name in TRACES {
        let Some(path) = trace(name) else { return };
        let trace = Trace::open(&path, &Options::default()).expect("the trace can be opened");
        let requests: Vec<Request> =
            trace.take(requests_max).collect::<Result<_, _>>().expect("the trace is whole");
        let mut blocks = Blocks::new(BLOCK as u32);
        let mut found = Vec::new();
        requests.iter().for_each(|request| blocks.of(request, &mut found).expect("it is small"));
        let all = blocks.len() as usize;
        for (rule, places) in [
            (Rule::WriteThrough, all / 10),
            (Rule::Periodic(Span::from_secs(30)), all * 20),
            (Rule::Interval(Span::from_secs(30), Span::from_secs(1)), all * 20),
            (Rule::Interval(Span::from_secs(30), Span::from_millis(10)), all * 20),
            (pressure(all / 10), all / 10),
        ] {
            let counted = alike(name, &requests, rule, places);
            println!("{name} {rule:?}: {counted:?}");
        }
    }
}
