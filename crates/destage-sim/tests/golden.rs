//! What runs with devices come to, as numbers that must not change by themselves: not with the machine, the build, the number of
//! threads, nor by a change that was not meant to change results.

use destage_core::{AtLimit, Span, Time, When};
use destage_runtime::units::{Bytes, Interval};
use destage_sim::blocks::mix;
use destage_sim::machine::{
    Arrivals, Device, Devices, Discipline, Kind, Report, Settings, Spread, Tier, WritePolicy, run,
};
use destage_sim::trace::{Extent, Op, Request};
use rayon::prelude::*;
use std::convert::Infallible;

const BLOCK: u64 = 4_096;

/// A load of its own, so that generators may change: hot blocks, runs, writes, flushes, discards.
fn requests() -> Vec<Request> {
    let request = |n: u64| {
        let random = mix(n);
        let (op, bytes) = match random % 40 {
            0 => (Op::Flush, 0),
            1 => (Op::Discard, BLOCK),
            2..20 => (Op::Write, BLOCK * (1 + (random >> 8) % 4)),
            _ => (Op::Read, BLOCK * (1 + (random >> 8) % 12)),
        };
        let block = (random >> 16) % (1 + (random >> 40) % 3_000);
        let extent = Extent::Range { device: 0, offset: block * BLOCK, bytes };
        let time = Time::ZERO + Span::from_micros(n * 700 + random % 600);
        Request { time, op, extent, host: (random >> 32) as u16 % 2, thread: 0 }
    };
    (0..8_000).map(request).collect()
}

/// What matters most is said, so that the devices assumed elsewhere may change.
fn settings(policy: WritePolicy, when: When) -> Settings {
    let us = |n| Interval(Span::from_micros(n));
    let device = |read, write, servers| Device {
        read: us(read),
        slow_read: us(8_000),
        slow_percent: 10,
        write: us(write),
        next: us(10),
        spread: Spread::Exponential,
        servers,
        discipline: Discipline::ReadPriority,
        starvation: us(50_000),
        merge_blocks: 64,
        ..Device::default()
    };
    let tier = |size: u64, policy, when| Tier {
        size: Bytes(size * BLOCK),
        policy,
        when,
        staleness: Interval(Span::from_secs(2)),
        at_limit: AtLimit::Throttle,
        persistent: true,
        ..Tier::default()
    };
    Settings {
        hosts: 2,
        ram: tier(100, WritePolicy::WriteBack, When::Async),
        flash: tier(900, policy, when),
        devices: Devices {
            ram: Interval(Span::from_nanos(400)),
            flash: device(80, 20, 4),
            packet: us(8),
            kilobyte: us(8),
            filer: device(90, 400, 16),
            disk: None,
        },
        seed: 7,
        ..Settings::default()
    }
}

/// Of the numbers that a policy decides; new fields of a report change nothing.
fn digest(report: &Report) -> u64 {
    let side = |kind: &Kind| {
        let (counts, latency) = (&kind.counts, &kind.latency);
        let fractions = [latency.mean, latency.deviation, latency.p50, latency.p99, latency.max];
        let numbers = [counts.requests.hits, counts.blocks.hits, counts.blocks.all, latency.count];
        [&numbers[..], &fractions.map(f64::to_bits)].concat()
    };
    let (origin, destage) = (&report.origin, &report.destage);
    let numbers = [
        origin.read_requests,
        origin.read_blocks,
        origin.write_requests,
        origin.write_blocks,
        origin.redo_blocks,
        destage.written_on_dirty,
        destage.destaged_blocks,
        destage.bursts,
        destage.dirty_left,
        destage.dirty_age_mean.to_bits(),
        report.duration_seconds.to_bits(),
        report.failed,
    ];
    let all = [side(&report.reads), side(&report.writes), numbers.to_vec()].concat();
    all.iter().fold(0, |digest, &number| mix(digest ^ mix(number)))
}

const GOLDEN: [(&str, u64); 6] = [
    ("write-through", 592_045_002_090_091_643),
    ("write-back, periodic", 17_744_395_950_890_598_611),
    ("write-back, interval", 8_937_796_146_389_056_640),
    ("ordered", 2_605_233_377_636_035_133),
    ("journaled", 12_953_947_942_982_442_842),
    ("journaled, closed loop", 889_905_444_880_949_657),
];

#[test]
fn runs_with_devices_come_to_the_same_numbers_on_any_build_and_number_of_threads() {
    let requests = requests();
    let periodic = When::Periodic { every: Span::from_secs(1) };
    let interval = When::Interval { age: Span::from_secs(1), check: Span::from_millis(50) };
    let closed = Arrivals::Closed { threads: 8, think: Interval(Span::from_micros(100)) };
    let journaled = settings(WritePolicy::Journaled, When::Adaptive);
    let all = [
        settings(WritePolicy::WriteThrough, When::Async),
        settings(WritePolicy::WriteBack, periodic),
        settings(WritePolicy::WriteBack, interval),
        settings(WritePolicy::Ordered, When::Async),
        journaled.clone(),
        Settings { arrivals: closed, ..journaled },
    ];
    let came_to = |settings: &Settings| {
        let source = requests.iter().map(|&request| Ok::<_, Infallible>(request));
        let report = run(source, settings).expect("the settings fit");
        (digest(&report), report.hash)
    };
    let on = |threads: usize| -> Vec<_> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.expect("threads can be started").install(|| all.par_iter().map(came_to).collect())
    };
    let (one, two) = (on(1), on(2));
    assert_eq!(one, two, "the number of threads changes the result");
    let found: Vec<_> =
        GOLDEN.iter().zip(&one).map(|(&(name, _), &(digest, _))| (name, digest)).collect();
    assert_eq!(found, GOLDEN, "if the change is meant, the left side is to be noted here");
}
