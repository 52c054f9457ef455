//! The figures of Holland, Angelino, Wald and Seltzer, "Flash caching on the storage client", USENIX ATC 2013, on
//! [`crate::machine`]. Sizes are those of the paper over [`SCALE`], and so are periods, so that as much is dirty in proportion;
//! what the text leaves open is in `docs/SIMULATION.md`.

mod rows;

pub(super) use rows::TABLES;

use super::sabotage::Sabotage;
use super::{Figure, Found};
use destage_core::{AtLimit, Span, When};
use destage_runtime::units::{Bytes, Interval};
use destage_sim::generate::{Generate, Load};
use destage_sim::hits::Replacements;
use destage_sim::machine::{
    Architecture, Arrivals, Device, Devices, Report, Settings, Start, Tier, WritePolicy, run,
};
use rayon::prelude::*;
use std::convert::Infallible;

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "flash-2",
        title: "read latency by working set and flash (Holland 2013)",
        parts: &[working_sets, five_times_the_flash, ten_times_the_flash],
    },
    Figure {
        name: "flash-policies",
        title: "the grid of 7 x 7 write-back policies (Holland 2013)",
        parts: &[policies_hits, policies],
    },
    Figure {
        name: "flash-unified",
        title: "naive against unified architecture (Holland 2013)",
        parts: &[architectures],
    },
    Figure {
        name: "flash-3",
        title: "persistence: its cost, warm against cold caches (Holland 2013)",
        parts: &[replacement_20, cold_small, cold_60, cold_crossing, cold_large],
    },
    Figure {
        name: "flash-4",
        title: "writes that invalidate a block of another host (Holland 2013)",
        parts: &[replacement_of_two, invalidations_40, invalidations_120],
    },
    Figure {
        name: "flash-5",
        title: "RAM down to zero, working set of 60 GB (Holland 2013)",
        parts: &[replacement_60, hits_60, small_ram_60],
    },
    Figure {
        name: "flash-6",
        title: "RAM down to zero, working set of 5 GB (Holland 2013)",
        parts: &[small_ram_5],
    },
    Figure {
        name: "flash-sensitivity",
        title: "how far the assumed latencies matter (Holland 2013)",
        parts: &[sensitivity],
    },
];

/// The paper's sizes over this are simulated; smaller ones in the tests, which are not compiled for speed.
const SCALE: u64 = if cfg!(test) { 4_096 } else { 256 };
/// Its periods over this. Of 1 s remain 16 ms: the core allows no less than 10 ms.
const PERIOD_SCALE: u64 = 64;
/// What remains of the scale: the devices are slower by it, so that as much is written in a period in proportion.
const SLOWDOWN: u64 = SCALE / PERIOD_SCALE;
const GIB: u64 = 1 << 30;
/// What the text leaves open; `docs/SIMULATION.md` says which of its numbers decide it.
const THREADS: u16 = 3;
const OUTSIDE_PERCENT: u8 = 13;
const OUTSIDE_HALVINGS: u8 = 11;
const SKEW: u8 = 2;
const SLOW_PERCENT: u8 = 16;
/// Of the set, not of the scaled one.
const REGION_BLOCKS: u64 = 4_096;

/// An experiment: sizes in GiB of the paper.
#[derive(Clone, Debug)]
struct Experiment {
    set: u64,
    hosts: u16,
    region_blocks: u64,
    request_blocks: u64,
    settings: Settings,
    seed: u64,
}

/// The paper's default machine: 8 GB of RAM, 64 GB of flash, naive; asynchronous from RAM, and through the flash.
fn experiment(seed: u64, set: u64) -> Experiment {
    // One block at a time leaves for the level below, as by a background thread.
    let tier = Tier {
        staleness: Interval::NONE,
        at_limit: AtLimit::Block,
        batches: 4,
        batch_groups: 4,
        ..Tier::default()
    };
    let mut settings = Settings {
        arrivals: Arrivals::Closed { threads: THREADS, think: Interval::default() },
        ram: tier.clone(),
        flash: Tier { policy: WritePolicy::WriteThrough, persistent: true, ..tier },
        seed,
        ..Settings::default()
    };
    settings.ram.size = scaled(8);
    settings.flash.size = scaled(64);
    settings.devices.filer.slow_percent = SLOW_PERCENT;
    slow_down(&mut settings.devices);
    let region_blocks = REGION_BLOCKS / SCALE;
    Experiment { set, hosts: 1, region_blocks, request_blocks: 1, settings, seed }
}

fn slow_down(devices: &mut Devices) {
    let slow = |time: &mut Interval| time.0 = Span(time.span().0 * SLOWDOWN);
    [&mut devices.ram, &mut devices.packet, &mut devices.kilobyte].into_iter().for_each(slow);
    for device in [&mut devices.flash, &mut devices.filer] {
        let times = [&mut device.read, &mut device.slow_read, &mut device.write, &mut device.next];
        times.into_iter().for_each(slow);
    }
}

/// All reads of the filer take their mean, which is all that is compared, so that fewer requests suffice: it serves more at once
/// than there are threads, so nothing waits behind a slow one.
fn even_out(filer: &mut Device) {
    let [read, slow_read] = [filer.read, filer.slow_read].map(|time| time.span().0);
    let slow = u64::from(filer.slow_percent);
    filer.read = Interval(Span((read * (100 - slow) + slow_read * slow) / 100));
    filer.slow_percent = 0;
}

fn scaled(gib: u64) -> Bytes {
    Bytes(gib * GIB / SCALE)
}

impl Experiment {
    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Twice the working set of each host warms the caches, twice the working set is measured.
    fn run(mut self) -> Report {
        for tier in [&mut self.settings.ram, &mut self.settings.flash] {
            if Sabotage::FifoEverywhere.is_on() {
                tier.replacement = Replacements::Fifo;
            }
            if Sabotage::HalfTheCache.is_on() {
                tier.size = Bytes(tier.size.get() / 2);
            }
        }
        even_out(&mut self.settings.devices.filer);
        let block = self.settings.block.get();
        let set_blocks = self.set * GIB / SCALE / block;
        let requests = 2 * set_blocks / self.request_blocks * u64::from(self.hosts);
        self.settings.warmup_requests = requests;
        self.settings.hosts = self.hosts;
        let generate = Generate {
            load: Load::WorkingSet {
                set_blocks,
                all_blocks: 1_400 * GIB / SCALE / block,
                region_blocks: self.region_blocks,
                skew: SKEW,
                outside_percent: OUTSIDE_PERCENT,
                outside_halvings: OUTSIDE_HALVINGS,
                write_percent: 30,
                request_blocks: self.request_blocks,
            },
            requests: 2 * requests,
            interval: Span::ZERO,
            hosts: self.hosts,
            threads: THREADS,
            seed: self.seed,
        };
        let requests = generate.requests().expect("the parameters are in range");
        run(requests.map(Ok::<_, Infallible>), &self.settings).expect("the settings fit together")
    }

    fn read_us(self) -> f64 {
        read_us(&self.run())
    }
}

fn read_us(report: &Report) -> f64 {
    report.reads.block_mean_seconds * 1e6 / SLOWDOWN as f64
}

fn write_us(report: &Report) -> f64 {
    report.writes.block_mean_seconds * 1e6 / SLOWDOWN as f64
}

fn with_flash(experiment: Experiment, gib: u64) -> Experiment {
    experiment.with(|settings| settings.flash.size = scaled(gib))
}

/// The blocks read that hit in RAM, over those that do if what came first leaves it: what the replacement is worth here.
fn over_fifo(experiment: Experiment) -> Found {
    let hits = |experiment: Experiment| experiment.run().reads.counts.ram_block_hits as f64;
    let fifo = experiment.clone().with(|settings| settings.ram.replacement = Replacements::Fifo);
    vec![("blocks read that hit in RAM, LRU / FIFO", hits(experiment) / hits(fifo))]
}

fn replacement_20(seed: u64) -> Found {
    over_fifo(experiment(seed, 20))
}

fn replacement_60(seed: u64) -> Found {
    over_fifo(experiment(seed, 60))
}

fn replacement_of_two(seed: u64) -> Found {
    over_fifo(of_two_hosts(seed, 20))
}

fn working_sets(seed: u64) -> Found {
    let read = |set, flash| with_flash(experiment(seed, set), flash).read_us();
    let (fits, without) = (read(40, 64), read(40, 0));
    let small = read(5, 64);
    vec![
        ("set of 40 GB, no flash / 64 GB", without / fits),
        ("set of 40 GB / set of 5 GB, flash of 64 GB", fits / small),
        ("set of 40 GB / set of 5 GB, no flash", without / read(5, 0)),
        ("set of 40 GB, flash of 32 GB / 64 GB", read(40, 32) / fits),
    ]
}

/// Reads with a flash of 16 GB over those without.
fn over_none(seed: u64, set: u64) -> f64 {
    let read = |flash| with_flash(experiment(seed, set), flash).read_us();
    read(16) / read(0)
}

fn five_times_the_flash(seed: u64) -> Found {
    vec![("set 5 times the flash of 16 GB, flash / none", over_none(seed, 80))]
}

fn ten_times_the_flash(seed: u64) -> Found {
    vec![("set 10 times the flash of 16 GB, flash / none", over_none(seed, 160))]
}

/// A policy of the paper's grid.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Sync,
    Async,
    Periodic(u64),
    None,
}

const WAYS: [Way; 7] = [
    Way::Sync,
    Way::Async,
    Way::Periodic(1),
    Way::Periodic(5),
    Way::Periodic(15),
    Way::Periodic(30),
    Way::None,
];

impl Way {
    fn name(self) -> String {
        match self {
            Self::Sync => "synchronous".into(),
            Self::Async => "asynchronous".into(),
            Self::Periodic(seconds) => format!("every {seconds} s"),
            Self::None => "none".into(),
        }
    }

    fn is_tested(self) -> bool {
        !matches!(self, Self::Periodic(5 | 15))
    }

    fn set(self, tier: &mut Tier) {
        tier.policy =
            if self == Self::Sync { WritePolicy::WriteThrough } else { WritePolicy::WriteBack };
        tier.when = match self {
            Self::Sync | Self::Async => When::Async,
            Self::Periodic(seconds) => {
                When::Periodic { every: Span(Span::from_secs(seconds).0 / PERIOD_SCALE) }
            }
            Self::None => When::OnPressure,
        };
        if self == Self::None {
            (tier.dirty_percent, tier.low_percent) = (100, 99);
        }
    }
}

/// A cell of the grid: the policies of RAM and flash, and what a read and a write take, us.
type Cell = (Way, Way, f64, f64);

/// A smaller machine, since the grid has 49 runs. In the tests it is not as small, so that what is on its way below remains a
/// small part of the RAM.
fn of_grid(seed: u64) -> Experiment {
    let ram = if cfg!(test) { 4 } else { 1 };
    experiment(seed, 8 * ram).with(|settings| {
        (settings.ram.size, settings.flash.size) = (scaled(ram), scaled(8 * ram));
    })
}

fn policies_hits(seed: u64) -> Found {
    let report = of_grid(seed)
        .with(|settings| {
            Way::Async.set(&mut settings.ram);
            Way::Async.set(&mut settings.flash);
        })
        .run();
    let hits = 100.0 * report.reads.counts.blocks.ratio();
    vec![("asynchronous from both: blocks read that hit", hits)]
}

/// The policies of the grid: in the tests it has its corners and its middle only.
fn ways() -> Vec<Way> {
    WAYS.into_iter().filter(|way| !cfg!(test) || way.is_tested()).collect()
}

/// The grid, row by row.
fn grid(seed: u64) -> Vec<Cell> {
    let base = of_grid(seed);
    let ways = ways();
    let cell = |ram: Way, flash: Way| {
        let report = base
            .clone()
            .with(|settings| {
                ram.set(&mut settings.ram);
                flash.set(&mut settings.flash);
            })
            .run();
        (ram, flash, read_us(&report), write_us(&report))
    };
    let row = |ram: Way| ways.iter().map(move |&flash| (ram, flash));
    let pairs: Vec<_> = ways.iter().flat_map(|&ram| row(ram)).collect();
    pairs.into_par_iter().map(|(ram, flash)| cell(ram, flash)).collect()
}

fn policies(seed: u64) -> Found {
    let [synchronous, none, others] = by_ram(&grid(seed));
    vec![
        ("neither synchronous from RAM nor none: farthest from their mean", others.farthest),
        (
            "synchronous from RAM, best write / worst of the others",
            synchronous.best_write / others.worst_write,
        ),
        ("none from RAM, best write / worst of the others", none.best_write / others.worst_write),
    ]
}

/// What the cells of some policies of the RAM come to.
struct OfRam {
    /// us.
    best_write: f64,
    worst_write: f64,
    /// What an application sees, from the mean of all that are neither synchronous nor none, percent.
    farthest: f64,
}

/// Of synchronous, of none, and of all others.
fn by_ram(cells: &[Cell]) -> [OfRam; 3] {
    let is_bad = |cell: &Cell| matches!(cell.0, Way::Sync | Way::None);
    // A write costs an application what a read does not, by their shares.
    let seen = |cell: &Cell| 0.7 * cell.2 + 0.3 * cell.3;
    let good: Vec<f64> = cells.iter().filter(|cell| !is_bad(cell)).map(seen).collect();
    let mean = good.iter().sum::<f64>() / good.len() as f64;
    let of = |is_one: &dyn Fn(&Cell) -> bool| {
        let cells = || cells.iter().filter(|cell| is_one(cell));
        let farthest = cells().map(|cell| (seen(cell) / mean - 1.0).abs()).fold(0.0, f64::max);
        OfRam {
            best_write: cells().map(|cell| cell.3).fold(f64::INFINITY, f64::min),
            worst_write: cells().map(|cell| cell.3).fold(0.0, f64::max),
            farthest: farthest * 100.0,
        }
    };
    [of(&|cell| cell.0 == Way::Sync), of(&|cell| cell.0 == Way::None), of(&|cell| !is_bad(cell))]
}

fn architectures(seed: u64) -> Found {
    let base = experiment(seed, 72).with(|settings| settings.flash.policy = WritePolicy::WriteBack);
    let naive = base.clone().run();
    let unified = base.with(|settings| settings.architecture = Architecture::Unified);
    let write_flash = unified.settings.devices.flash.write.span().as_secs_f64() * 1e6;
    let write_flash = write_flash / SLOWDOWN as f64;
    let unified = unified.run();
    vec![
        ("reads, unified / naive", read_us(&unified) / read_us(&naive)),
        ("writes, naive, us", write_us(&naive)),
        ("writes, unified / flash write", write_us(&unified) / write_flash),
    ]
}

fn cold(seed: u64, set: u64) -> Report {
    experiment(seed, set).with(|settings| settings.start = Start::Cold).run()
}

/// Reads of a cold flash over those of a warm one.
fn cold_over_warm(seed: u64, set: u64) -> f64 {
    read_us(&cold(seed, set)) / experiment(seed, set).read_us()
}

fn cold_small(seed: u64) -> Found {
    vec![("set of 5 GB, cold / warm", cold_over_warm(seed, 5))]
}

fn cold_large(seed: u64) -> Found {
    vec![("set of 320 GB, cold / warm", cold_over_warm(seed, 320))]
}

fn cold_60(seed: u64) -> Found {
    let doubled = |device: &mut Device| device.writes_per_block = 2;
    let plain = experiment(seed, 60).run();
    let kept = experiment(seed, 60).with(|settings| doubled(&mut settings.devices.flash)).run();
    let none = with_flash(experiment(seed, 60), 0).read_us();
    vec![
        ("reads, metadata written / not", read_us(&kept) / read_us(&plain)),
        ("writes, metadata written / not", write_us(&kept) / write_us(&plain)),
        ("set of 60 GB, cold flash / no flash", read_us(&cold(seed, 60)) / none),
    ]
}

/// The first set of a row of rising ones at which a cold flash is better than none.
fn cold_crossing(seed: u64) -> Found {
    let sets = [5, 10, 15, 20, 30, 60];
    let crossed = sets
        .iter()
        .map(|&set| (cold(seed, set), with_flash(experiment(seed, set), 0).read_us()))
        .find(|(cold, none)| read_us(cold) < *none);
    let minutes =
        crossed.map_or(f64::NAN, |(cold, _)| cold.duration_seconds * PERIOD_SCALE as f64 / 60.0);
    vec![("cold flash is better than none after, minutes", minutes)]
}

fn of_two_hosts(seed: u64, set: u64) -> Experiment {
    Experiment { hosts: 2, region_blocks: 64, request_blocks: 4, ..experiment(seed, set) }
}

/// Writes that invalidate, with a flash of so many GB: by block, and by request of several blocks, percent.
fn invalidated(seed: u64, set: u64, flash: u64) -> [f64; 2] {
    let report = with_flash(of_two_hosts(seed, set), flash).run();
    [report.invalidated, report.invalidated_requests].map(|count| count.ratio() * 100.0)
}

fn invalidations_40(seed: u64) -> Found {
    let [blocks, requests] = invalidated(seed, 40, 64);
    let [_, without] = invalidated(seed, 40, 0);
    vec![
        ("set of 40 GB, flash of 64 GB, by request", requests),
        ("set of 40 GB, flash of 64 GB, by block", blocks),
        ("set of 40 GB, no flash", without),
    ]
}

fn invalidations_120(seed: u64) -> Found {
    let [[_, with], [_, without]] = [64, 0].map(|flash| invalidated(seed, 120, flash));
    vec![("set of 120 GB, flash of 64 GB", with), ("set of 120 GB, no flash", without)]
}

/// Read and write latency with RAM of so many bytes, not scaled.
fn with_ram(seed: u64, set: u64, ram: Bytes) -> Report {
    experiment(seed, set).with(|settings| settings.ram.size = ram).run()
}

fn hits_60(seed: u64) -> Found {
    let [in_ram, in_flash] = hits(&with_ram(seed, 60, scaled(8)));
    vec![("reads that hit in 8 GB of RAM", in_ram), ("other reads that hit in flash", in_flash)]
}

/// Blocks read that hit in RAM, and of the others those that hit in flash, percent.
fn hits(report: &Report) -> [f64; 2] {
    let (blocks, in_ram) = (report.reads.counts.blocks, report.reads.counts.ram_block_hits);
    let percent = |hits: u64, all: u64| hits as f64 / all as f64 * 100.0;
    [percent(in_ram, blocks.all), percent(blocks.hits - in_ram, blocks.all - in_ram)]
}

/// What buffers writes is not scaled: it holds as many of them.
const LITTLE_RAM: Bytes = Bytes(256 << 10);

fn small_ram_60(seed: u64) -> Found {
    let full = with_ram(seed, 60, scaled(8));
    let (little, none) = (with_ram(seed, 60, LITTLE_RAM), with_ram(seed, 60, Bytes(0)));
    vec![
        ("reads, 256 KB of RAM / 8 GB", read_us(&little) / read_us(&full)),
        ("reads, no RAM / 8 GB", read_us(&none) / read_us(&full)),
        ("writes, 256 KB of RAM / 8 GB", write_us(&little) / write_us(&full)),
    ]
}

/// The mean read of a set of 5 GB, us.
fn read_of_5(seed: u64, flash: u64, ram: u64) -> f64 {
    // The set is so small in the tests that one run of it says little.
    let seeds = if cfg!(test) { 8 } else { 1 };
    let one = |seed| {
        let base = with_flash(experiment(seed, 5), flash);
        base.with(|settings| settings.ram.size = scaled(ram)).read_us()
    };
    (seed..seed + seeds).map(one).sum::<f64>() / seeds as f64
}

fn small_ram_5(seed: u64) -> Found {
    let read = |flash, ram| read_of_5(seed, flash, ram);
    vec![
        ("reads, no RAM / 8 GB", read(64, 0) / read(64, 8)),
        ("reads without flash, no RAM / 8 GB", read(0, 0) / read(0, 8)),
    ]
}

fn sensitivity(seed: u64) -> Found {
    let penalty = |change: fn(&mut Settings)| {
        let full = experiment(seed, 5).with(change).read_us();
        let none = experiment(seed, 5)
            .with(change)
            .with(|settings| settings.ram.size = Bytes(0))
            .read_us();
        none / full
    };
    vec![
        ("flash reads take 44 us", penalty(|s| s.devices.flash.read = us(44))),
        ("flash reads take 176 us", penalty(|s| s.devices.flash.read = us(176))),
        ("a tenth of the filer's reads is slow", penalty(|s| s.devices.filer.slow_percent = 10)),
        ("three tenths are slow", penalty(|s| s.devices.filer.slow_percent = 30)),
        ("slow reads take 4 ms", penalty(|s| s.devices.filer.slow_read = us(4_000))),
        ("slow reads take 16 ms", penalty(|s| s.devices.filer.slow_read = us(16_000))),
        (
            "the network takes no time",
            penalty(|s| (s.devices.packet, s.devices.kilobyte) = (us(0), us(0))),
        ),
    ]
}

fn us(micros: u64) -> Interval {
    Interval(Span::from_micros(micros * SLOWDOWN))
}
