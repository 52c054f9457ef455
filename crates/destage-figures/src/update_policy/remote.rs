//! Figures 4-5 and 4-6: the slower system is the client of the faster one, which has the disk.
//!
//! The paper names the systems, Spritely NFS, and PrestoServe, whose memory needs no power. The rest is assumed: 5 ms for the way
//! there and back (4 KiB take 3.3 ms at 10 Mbit/s), four processes of the client that wait for its writes, a write at the server
//! for each block, 1 MB of PrestoServe, and no read that the server's own cache holds.

use super::{
    ASYNC_AIPU, ASYNC_PU, DELAYED_AIPU, DELAYED_PU, Found, PERIOD, TRIAL, TRIALS, Times, Way,
    add_trials, fast, in_way, slow,
};
use crate::Table;
use crate::update::{Experiment, Measured, Server};
use destage_core::Span;

/// Of 4 KiB.
const NVRAM_BLOCKS: u64 = 256;
/// 64 MiB: "a file much larger than the buffer cache on either the client or server".
const LONG_FILE_BLOCKS: u64 = 16_384;
/// Instead of the paper's six, so that the deviation between trials says something with one seed.
const LONG_TRIALS: u64 = 24;

/// Whether the server has PrestoServe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presto {
    Without,
    With,
}

fn remote(way: Way, presto: Presto) -> Experiment {
    let nvram_blocks = if presto == Presto::With { NVRAM_BLOCKS } else { 0 };
    let disk = fast(way.1);
    Experiment {
        access: disk.access,
        near: disk.near,
        rotation: disk.rotation,
        server: Some(Server { travel: Span::from_millis(5), daemons: 4, nvram_blocks }),
        // Wherever the update policy happens to be.
        begins_within: PERIOD,
        ..in_way(slow, way)
    }
}

fn in_sequence(way: Way, presto: Presto) -> Experiment {
    Experiment { is_sequential: true, file_blocks: LONG_FILE_BLOCKS, ..remote(way, presto) }
}

/// Trials of which no two seeds have one in common.
fn trials(seed: u64, count: u64, experiment: &Experiment) -> Vec<Measured> {
    let first = seed.wrapping_mul(count);
    let trial = |trial| Experiment { seed: first.wrapping_add(trial), ..experiment.clone() }.run();
    (0..count).map(trial).collect()
}

pub(super) fn figure_4_5(seed: u64) -> Found {
    let of = |presto| {
        let times = |way| Times::of(&trials(seed, TRIALS, &remote(way, presto)));
        [ASYNC_PU, DELAYED_PU, DELAYED_AIPU].map(times)
    };
    let [without, with] = [Presto::Without, Presto::With].map(of);
    let [_, periodic, interval] = &without;
    let gain = |way: usize| with[way].mean() / without[way].mean();
    vec![
        ("delayed writes: mean PU / mean AIPU", periodic.mean() / interval.mean()),
        ("delayed writes: sd AIPU / sd PU", interval.deviation() / periodic.deviation()),
        ("async writes, PU: mean with PrestoServe / without", gain(0)),
        ("delayed writes, PU: mean with PrestoServe / without", gain(1)),
        ("delayed writes, AIPU: mean with PrestoServe / without", gain(2)),
    ]
}

/// The mean of the trials' means, and the deviation of these, seconds.
fn means(trials: &[Measured]) -> (f64, f64) {
    let means: Vec<f64> =
        trials.iter().map(|trial| Times::of(std::slice::from_ref(trial)).mean()).collect();
    let mean = means.iter().sum::<f64>() / means.len() as f64;
    let squares = means.iter().map(|one| (one - mean) * (one - mean)).sum::<f64>();
    (mean, (squares / means.len() as f64).sqrt())
}

pub(super) fn figure_4_6(seed: u64) -> Found {
    let of = |presto| {
        let of = |way| means(&trials(seed, LONG_TRIALS, &in_sequence(way, presto)));
        let [periodic, interval] = [DELAYED_PU, DELAYED_AIPU].map(of);
        [interval.0 / periodic.0, interval.1 / periodic.1]
    };
    let ([mean, between], [mean_with, between_with]) = (of(Presto::Without), of(Presto::With));
    vec![
        ("deviation between trials, AIPU / PU", between),
        ("with PrestoServe: deviation between trials, AIPU / PU", between_with),
        ("mean AIPU / mean PU", mean),
        ("with PrestoServe: mean AIPU / mean PU", mean_with),
    ]
}

const PRESTO: [(Presto, &str); 2] = [(Presto::Without, ""), (Presto::With, ", PrestoServe")];

pub(super) fn figure_4_5_rows(seed: u64) -> Vec<Table> {
    let title = "response time of remote random reads, each trial";
    let mut table = Table::new("figure-4-5", title, &TRIAL);
    for way in [ASYNC_PU, ASYNC_AIPU, DELAYED_PU, DELAYED_AIPU] {
        for (presto, name) in PRESTO {
            let trials = trials(seed, TRIALS, &remote(way, presto));
            add_trials(&mut table, &format!("{}{name}", way.0), &trials);
        }
    }
    vec![table]
}

pub(super) fn figure_4_6_rows(seed: u64) -> Vec<Table> {
    let title = "response time of remote sequential reads, each trial";
    let mut table = Table::new("figure-4-6", title, &TRIAL);
    for way in [DELAYED_PU, DELAYED_AIPU] {
        for (presto, name) in PRESTO {
            let trials = trials(seed, LONG_TRIALS, &in_sequence(way, presto));
            add_trials(&mut table, &format!("{}{name}", way.0), &trials);
        }
    }
    vec![table]
}
