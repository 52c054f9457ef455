//! Real traces, where `DESTAGE_TRACES` names a folder that holds them; each test says what it misses.
//!
//! They are cloudPhysicsIO of libCacheSim, one week of DiskSim's hplajw trace, the sample of Open CAS's I/O tracer and the start
//! of MQSim's tpcc-small, each compressed and beside a plain conversion to CSV.

use destage_core::UnitId;
use destage_core::replace::{Arc, Clock, Fifo, Lru, Replacement, S3Fifo, Sieve};
use destage_sim::blocks::mix;
use destage_sim::curves::{Curve, Curves, Method, Sample, Sizes};
use destage_sim::hits::{Hits, Replacements, Setup};
use destage_sim::trace::{Extent, Format, Op, Options, Request, Trace};
use destage_testkit::needs::trace;
use std::collections::{HashMap, VecDeque};

fn read(name: &str) -> Option<(Format, Vec<Request>)> {
    let mut trace = Trace::open(&trace(name)?, &Options::default()).expect("it can be opened");
    let requests = trace.by_ref().map(|request| request.expect("it is whole")).collect();
    assert_eq!(trace.counts().late, 0);
    Some((trace.format(), requests))
}

/// Operation, offset, bytes.
fn place(request: &Request) -> (Op, u64, u64) {
    let Extent::Range { offset, bytes, .. } = request.extent else { panic!("{request:?}") };
    (request.op, offset, bytes)
}

fn same(original: &str, format: Format, converted: &str) {
    let (Some((found, original)), Some((csv, converted))) = (read(original), read(converted))
    else {
        return;
    };
    assert_eq!((found, csv, original.len()), (format, Format::Csv, converted.len()));
    for (index, (left, right)) in original.iter().zip(&converted).enumerate() {
        assert_eq!((left.time, place(left)), (right.time, place(right)), "request {index}");
    }
}

#[test]
fn binary_traces_are_read_as_their_conversions() {
    same("cloudphysics.vscsi.zst", Format::Vscsi, "cloudphysics.csv.zst");
    same("hplajw-1week.srt.zst", Format::Srt, "hplajw-1week.csv.zst");
    same("ycsb-a-rocksdb.octf.tar.xz", Format::Octf, "ycsb-a-rocksdb.csv.zst");
}

#[test]
fn counts_are_those_that_the_traces_are_published_with() {
    for (name, [reads, writes, discards, accesses, distinct]) in [
        ("cloudphysics.vscsi.zst", [46_974, 66_898, 0, 1_141_869, 269_210]),
        ("hplajw-1week.srt.zst", [13_040, 31_479, 0, 73_671, 7_344]),
        ("ycsb-a-rocksdb.octf.tar.xz", [1, 64_188, 231, 2_042_460, 436_083]),
        ("mqsim-tpcc-small.trace.zst", [4_381, 2_618, 0, 20_669, 20_470]),
    ] {
        let Some((_, requests)) = read(name) else { continue };
        let count = |op| requests.iter().filter(|request| request.op == op).count() as u64;
        assert_eq!(
            [count(Op::Read), count(Op::Write), count(Op::Discard)],
            [reads, writes, discards]
        );
        let setup = Setup {
            replacement: Replacements::Lru,
            ram_replacement: Replacements::Lru,
            ram_blocks: 0,
            flash_blocks: 10,
        };
        let mut hits = Hits::new(4_096, &[setup]).unwrap();
        requests.iter().for_each(|request| hits.request(request).unwrap());
        assert_eq!(u64::from(hits.distinct_blocks()), distinct, "{name}");
        assert_eq!(hits.finish()[0].1.total().blocks.all, accesses, "{name}");
    }
}

/// What one cache misses: objects are the first blocks of requests, each as large as at its first appearance.
fn misses(policy: &mut impl Replacement, objects: &[(u32, u32)], bytes_max: u64) -> u64 {
    misses_seen(policy, objects, bytes_max, |_| false)
}

/// The same; of how many bytes were inserted before anything was evicted it depends whether an object counts as seen before.
fn misses_seen(
    policy: &mut impl Replacement,
    objects: &[(u32, u32)],
    bytes_max: u64,
    is_seen: impl Fn(u64) -> bool,
) -> u64 {
    let (mut misses, mut has_evicted) = (0, false);
    for &(id, bytes) in objects {
        if policy.touch(UnitId(id)) {
            continue;
        }
        misses += 1;
        let identity = mix(id.into());
        policy.expect(identity);
        while policy.bytes() + u64::from(bytes) > bytes_max {
            has_evicted = true;
            let evicted = policy.evict(bytes_max).expect("something is present");
            policy.evicted(mix(evicted.0.into()));
        }
        let seen = !has_evicted && is_seen(policy.bytes());
        policy.insert(UnitId(id), bytes, (!seen).then_some(identity));
    }
    misses
}

/// The misses that the tests of libCacheSim expect on this trace, from 128 MiB to 1 GiB in steps of 128 MiB (its
/// test/test_evictionAlgo.c at commit 0379a0199994).
const LRU: [u64; 8] = [93_374, 89_783, 83_572, 81_722, 72_494, 72_104, 71_972, 71_704];
const FIFO: [u64; 8] = [93_403, 89_386, 84_387, 84_025, 72_498, 72_228, 72_182, 72_140];
const CLOCK: [u64; 8] = [93_313, 89_775, 83_411, 81_328, 74_815, 72_283, 71_927, 64_456];
const SIEVE: [u64; 8] = [91_699, 86_720, 78_578, 76_707, 69_945, 66_221, 64_445, 64_376];
const ARC: [u64; 8] = [90_252, 85_861, 78_168, 74_297, 67_381, 65_685, 64_439, 64_772];
const S3_FIFO: [u64; 8] = [90_117, 80_915, 75_060, 72_191, 69_815, 65_542, 60_799, 56_045];

#[test]
fn misses_are_those_of_another_simulator() {
    let Some((_, requests)) = read("cloudphysics.vscsi.zst") else { return };
    let mut ids = HashMap::new();
    let mut sizes = Vec::new();
    let mut sequence = Vec::new();
    for request in &requests {
        let (_, offset, bytes) = place(request);
        let id = *ids.entry(offset).or_insert(sizes.len() as u32);
        if id as usize == sizes.len() {
            sizes.push(bytes as u32);
        }
        sequence.push(id);
    }
    let objects: Vec<(u32, u32)> = sequence.iter().map(|&id| (id, sizes[id as usize])).collect();
    let all: u64 = objects.iter().map(|&(_, bytes)| u64::from(bytes)).sum();
    assert_eq!((objects.len(), all), (113_872, 4_368_040_448), "as its tests have it");
    let steps = |new: fn(&[(u32, u32)], u64) -> u64| -> Vec<u64> {
        (1..=8).map(|step| new(&objects, step << 27)).collect()
    };
    assert_eq!(steps(|o, max| misses(&mut Lru::default(), o, max)), LRU);
    assert_eq!(steps(|o, max| misses(&mut Fifo::default(), o, max)), FIFO);
    assert_eq!(steps(|o, max| misses(&mut Clock::default(), o, max)), CLOCK);
    assert_eq!(steps(|o, max| misses(&mut Sieve::default(), o, max)), SIEVE);
    let near = |found: Vec<u64>, theirs: [u64; 8], percent: u64, name: &str| {
        println!("{name}: {found:?}, theirs {theirs:?}");
        for (ours, theirs) in found.into_iter().zip(theirs) {
            assert!(ours.abs_diff(theirs) * 100 <= theirs * percent, "{name}: {ours} {theirs}");
        }
    };
    near(steps(|o, max| misses(&mut Arc::default(), o, max)), ARC, 3, "arc");
    // Theirs, by its rules to the letter, written anew: then what ours has otherwise is what makes the difference.
    let letter = steps(|o, max| Reference::new(max).misses(o));
    assert_eq!(letter, S3_FIFO);
    let filling = |o: &[(u32, u32)], max: u64| {
        misses_seen(&mut S3Fifo::default(), o, max, |bytes| bytes >= max / 10)
    };
    // Ours counts ghosts, not their bytes, which here are 512 to 65,536 for each.
    near(steps(filling), S3_FIFO, 8, "s3-fifo");
}

/// The accesses of a trace to blocks of this size, each as an object.
fn accesses(requests: &[Request], block: u64) -> Vec<(u32, u32)> {
    let mut ids = HashMap::new();
    let mut objects = Vec::new();
    for (_, offset, bytes) in requests.iter().map(place).filter(|(op, ..)| *op != Op::Discard) {
        for block in offset / block..(offset + bytes).div_ceil(block) {
            let next = ids.len() as u32;
            objects.push((*ids.entry(block).or_insert(next), BLOCK));
        }
    }
    objects
}

/// What each of them takes.
const BLOCK: u32 = 4_096;

/// The shares that miss with so many places: ours, and with the ghosts in one exact queue.
fn shares(objects: &[(u32, u32)], places: u64) -> [f64; 2] {
    let bytes_max = places * u64::from(BLOCK);
    // From the beginning, what is new enters the small queue.
    let exact = Reference { has_evicted: true, ..Reference::new(bytes_max) };
    let ours = misses(&mut S3Fifo::default(), objects, bytes_max);
    [ours, exact.misses(objects)].map(|misses| misses as f64 / objects.len() as f64)
}

/// The ghosts of [`S3Fifo`] are in short queues, to which identities are spread. Loops that are a little longer than one
/// queue of them would be, as cloudPhysicsIO has, meet some of them still, where one queue would have forgotten all.
#[test]
fn over_blocks_s3_fifo_misses_about_as_often_as_with_one_exact_queue_of_ghosts() {
    for name in ["cloudphysics.vscsi.zst", "hplajw-1week.srt.zst", "ycsb-a-rocksdb.octf.tar.xz"] {
        let Some((_, requests)) = read(name) else { continue };
        let objects = accesses(&requests, 4_096);
        for places in [512, 2_048, 8_192, 32_768, 131_072] {
            let [ours, exact] = shares(&objects, places);
            println!("{name}, {places} blocks: {ours:.4}, exact {exact:.4}");
            assert!(
                ours < exact + 0.003 && ours > exact - 0.011,
                "{name} {places}: {ours} {exact}"
            );
        }
    }
}

/// What libCacheSim prints for single blocks, as BENCHMARKS has it: its ghosts are in one queue.
#[test]
fn over_blocks_s3_fifo_misses_about_as_often_as_that_of_another_simulator() {
    let theirs = 0.7782;
    let Some((_, requests)) = read("cloudphysics.vscsi.zst") else { return };
    let [ours, exact] = shares(&accesses(&requests, 4_096), 32_768);
    assert!((ours - theirs).abs() <= 0.002, "{ours}");
    assert!((exact - theirs).abs() <= 0.000_05, "the ghosts alone make the difference: {exact}");
}

/// Curves of the policies over a trace.
fn curves(requests: &[Request], policies: &[Replacements], sample: Sample) -> Vec<Curve> {
    let mut curves = Curves::new(4_096, policies, sample);
    requests.iter().for_each(|request| curves.request(request).expect("few blocks"));
    curves.finish(&Sizes::Given(vec![4_000, 16_000, 65_000, 260_000]))
}

#[test]
fn curves_of_real_traces_are_exact_or_close() {
    let policies =
        [Replacements::Lru, Replacements::Arc, Replacements::S3Fifo, Replacements::Sieve];
    for name in ["cloudphysics.vscsi.zst"] {
        let Some((_, requests)) = read(name) else { continue };
        let simulated = curves(&requests, &policies, Sample::All);
        let exact = |curve: &Curve| {
            simulated.iter().find(|exact| exact.replacement == curve.replacement).expect("its own")
        };
        // Stack distances are what a simulation of LRU gives.
        let setup = |blocks| Setup {
            replacement: Replacements::Lru,
            ram_replacement: Replacements::Lru,
            ram_blocks: 0,
            flash_blocks: blocks,
        };
        let lru = &simulated[0];
        let setups: Vec<Setup> = lru.points.iter().map(|point| setup(point.blocks)).collect();
        let mut hits = Hits::new(4_096, &setups).expect("they have places");
        requests.iter().for_each(|request| hits.request(request).expect("few blocks"));
        for (point, (_, outcome)) in lru.points.iter().zip(hits.finish()) {
            let misses = 1.0 - outcome.total().blocks.ratio();
            assert!((misses - point.block_miss_ratio).abs() < 1e-12, "{name} {point:?}");
        }
        assert_eq!(lru.method, Method::StackDistances);
        for sample in [Sample::Rate(0.1), Sample::Blocks(16_000)] {
            for curve in curves(&requests, &policies, sample) {
                let errors = curve.points.iter().map(|point| {
                    let exact = exact(&curve).points.iter();
                    let mut same = exact.filter(|other| other.blocks == point.blocks);
                    let exact = same.next().expect("the same sizes");
                    (exact.block_miss_ratio - point.block_miss_ratio).abs()
                });
                let errors: Vec<f64> = errors.collect();
                let mean = errors.iter().sum::<f64>() / errors.len() as f64;
                let largest = errors.iter().copied().fold(0.0, f64::max);
                println!("{name} {} {sample:?}: {largest:.4}, mean {mean:.4}", curve.replacement);
                assert!(errors.len() == 4 && mean < 0.02 && largest < 0.05, "{curve:?} {errors:?}");
            }
        }
    }
}

/// S3-FIFO as that simulator has it, with what it does otherwise than the paper: while it fills, what does not fit the small
/// queue enters the main one. The ghosts are as many bytes as the main queue has.
struct Reference {
    bytes_max: u64,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// With the number that [`Self::ghosts`] has too, unless the object returned.
    ghost: VecDeque<(u32, u64)>,
    small_bytes: u64,
    main_bytes: u64,
    ghost_bytes: u64,
    /// Where each object is, how often it was touched, its size.
    objects: HashMap<u32, (Place, u32, u64)>,
    ghosts: HashMap<u32, u64>,
    remembered: u64,
    has_evicted: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Small,
    Main,
}

impl Reference {
    fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghost: VecDeque::new(),
            small_bytes: 0,
            main_bytes: 0,
            ghost_bytes: 0,
            objects: HashMap::new(),
            ghosts: HashMap::new(),
            remembered: 0,
            has_evicted: false,
        }
    }

    fn misses(mut self, objects: &[(u32, u32)]) -> u64 {
        let mut misses = 0;
        let sizes: HashMap<u32, u64> =
            objects.iter().map(|&(id, bytes)| (id, u64::from(bytes))).collect();
        for &(id, bytes) in objects {
            if let Some((_, touches, _)) = self.objects.get_mut(&id) {
                *touches += 1;
                continue;
            }
            misses += 1;
            let bytes = u64::from(bytes);
            let returns = self.ghosts.remove(&id).is_some();
            if returns {
                self.ghost_bytes -= bytes;
            }
            while self.small_bytes + self.main_bytes + bytes > self.bytes_max {
                self.evict(&sizes);
            }
            let overflows = !self.has_evicted && self.small_bytes >= self.bytes_max / 10;
            let place = if returns || overflows { Place::Main } else { Place::Small };
            self.push(id, place, 0, bytes);
        }
        misses
    }

    fn push(&mut self, id: u32, place: Place, touches: u32, bytes: u64) {
        self.objects.insert(id, (place, touches, bytes));
        match place {
            Place::Small => {
                self.small.push_back(id);
                self.small_bytes += bytes;
            }
            Place::Main => {
                self.main.push_back(id);
                self.main_bytes += bytes;
            }
        }
    }

    fn evict(&mut self, sizes: &HashMap<u32, u64>) {
        self.has_evicted = true;
        let main_max = self.bytes_max - self.bytes_max / 10;
        if self.main_bytes > main_max || self.small.is_empty() {
            while let Some(id) = self.main.pop_front() {
                let (_, touches, bytes) = self.objects.remove(&id).expect("it is in a queue");
                self.main_bytes -= bytes;
                if touches == 0 {
                    return;
                }
                self.push(id, Place::Main, touches.min(3) - 1, bytes);
            }
        }
        while let Some(id) = self.small.pop_front() {
            let (_, touches, bytes) = self.objects.remove(&id).expect("it is in a queue");
            self.small_bytes -= bytes;
            if touches < 2 {
                return self.remember(id, bytes, sizes);
            }
            self.push(id, Place::Main, 0, bytes);
        }
    }

    fn remember(&mut self, id: u32, bytes: u64, sizes: &HashMap<u32, u64>) {
        let max = self.bytes_max / 10 * 9;
        while self.ghost_bytes + bytes > max {
            let Some((oldest, number)) = self.ghost.pop_front() else { return };
            if self.ghosts.get(&oldest) == Some(&number) {
                self.ghosts.remove(&oldest);
                self.ghost_bytes -= sizes[&oldest];
            }
        }
        self.remembered += 1;
        self.ghost.push_back((id, self.remembered));
        self.ghosts.insert(id, self.remembered);
        self.ghost_bytes += bytes;
    }
}
