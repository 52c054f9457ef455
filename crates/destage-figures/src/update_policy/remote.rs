//! Figures 4-5 and 4-6: the slower system is the client of the faster one, which has the disk.
//!
//! The paper names the systems, Spritely NFS, and PrestoServe, whose memory needs no power. The rest is assumed: 5 ms for the way
//! there and back (4 KiB take 3.3 ms at 10 Mbit/s), four processes of the client that wait for its writes, a write at the server
//! for each block, 1 MB of PrestoServe, and no read that the server's own cache holds.

use super::{
    ASYNC_PU, DELAYED_AIPU, DELAYED_PU, DEVIATION, Found, MEAN, PERIOD, TRIAL, TRIAL_POINT, TRIALS,
    Times, WAYS, Way, add_trials, fast, in_way, slow,
};
use crate::Table;
use crate::table::Of;
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

pub(super) fn figure_4_5_rows(seed: u64) -> Vec<Table> {
    let titles = ["response time of remote random reads", DEVIATION];
    let [each, mut all] = rows("figure-4-5", titles, &WAYS, |way, presto| {
        let trials = trials(seed, TRIALS, &remote(way, presto));
        let times = Times::of(&trials);
        (trials, (times.mean(), times.deviation()))
    });
    let [direct, _, periodic, interval] = WAYS.map(|way| way.0);
    let number = "delayed writes: mean PU / mean AIPU";
    all.tell(number, (periodic, MEAN), Of::Over((interval, MEAN)));
    let number = "delayed writes: sd AIPU / sd PU";
    all.tell(number, (interval, DEVIATION), Of::Over((periodic, DEVIATION)));
    for (number, way) in [
        ("async writes, PU: mean with PrestoServe / without", direct),
        ("delayed writes, PU: mean with PrestoServe / without", periodic),
        ("delayed writes, AIPU: mean with PrestoServe / without", interval),
    ] {
        all.tell(number, (&with_presto(way), MEAN), Of::Over((way, MEAN)));
    }
    vec![each, all]
}

pub(super) fn figure_4_6_rows(seed: u64) -> Vec<Table> {
    let between = "deviation between trials, ms";
    let titles = ["response time of remote sequential reads", between];
    let [each, mut all] = rows("figure-4-6", titles, &[DELAYED_PU, DELAYED_AIPU], |way, presto| {
        let trials = trials(seed, LONG_TRIALS, &in_sequence(way, presto));
        let means = means(&trials);
        (trials, means)
    });
    let [periodic, interval] = [DELAYED_PU.0, DELAYED_AIPU.0];
    all.tell("mean AIPU / mean PU", (interval, MEAN), Of::Over((periodic, MEAN)));
    let number = "deviation between trials, AIPU / PU";
    all.tell(number, (interval, between), Of::Over((periodic, between)));
    let [periodic, interval] = [periodic, interval].map(with_presto);
    let number = "with PrestoServe: mean AIPU / mean PU";
    all.tell(number, (&interval, MEAN), Of::Over((&periodic, MEAN)));
    let number = "with PrestoServe: deviation between trials, AIPU / PU";
    all.tell(number, (&interval, between), Of::Over((&periodic, between)));
    vec![each, all]
}

fn with_presto(way: &str) -> String {
    format!("{way}, PrestoServe")
}

/// A point for each trial, and the mean and a deviation of all trials of a configuration, which are given in seconds.
fn rows(
    figure: &'static str,
    [title, deviation]: [&str; 2],
    ways: &[Way],
    run: impl Fn(Way, Presto) -> (Vec<Measured>, (f64, f64)),
) -> [Table; 2] {
    let mut each = Table::new(figure, format!("{title}, each trial"), &TRIAL);
    each.point = TRIAL_POINT;
    let header = ["configuration", MEAN, deviation];
    let mut all = Table::new(figure, format!("{title}, all trials"), &header);
    for &way in ways {
        for (presto, name) in
            [(Presto::Without, way.0.to_owned()), (Presto::With, with_presto(way.0))]
        {
            let (trials, (mean, deviation)) = run(way, presto);
            add_trials(&mut each, &name, &trials);
            all.row(&name, [mean, deviation].map(|span| format!("{:.4}", span * 1e3)));
        }
    }
    [each, all]
}
