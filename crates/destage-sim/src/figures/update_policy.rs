//! Mogul, "A better update policy", USENIX Summer 1994: tables 2-1 and 2-2, figures 4-1 to 4-4, the mean ages of section 2.3.

use super::Figure;
use crate::event::{Begun, Discipline, Job, JobKind, MeanTimes, Station, Stream};
use crate::update::{Experiment, Measured};
use destage_core::{Span, Time, When};

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "table-2-1",
        title: "writing a tenth of the memory to random places of a disk (Mogul 1994)",
        run: table_2_1,
    },
    Figure {
        name: "table-2-2",
        title: "writing a tenth of the memory in sequence (Mogul 1994)",
        run: table_2_2,
    },
    Figure {
        name: "figure-4-1",
        title: "response times of local random reads, fast system (Mogul 1994)",
        run: figure_4_1,
    },
    Figure {
        name: "figure-4-2",
        title: "response times of local random reads, slow system (Mogul 1994)",
        run: figure_4_2,
    },
    Figure {
        name: "figure-4-3",
        title: "their distribution, fast system (Mogul 1994)",
        run: figure_4_3,
    },
    Figure {
        name: "figure-4-4",
        title: "their distribution, slow system (Mogul 1994)",
        run: figure_4_4,
    },
    Figure {
        name: "dirty-age",
        title: "mean age of a block when it is written (Mogul 1994, section 2.3)",
        run: dirty_age,
    },
];

const PERIOD: Span = Span::from_secs(30);
const PU: When = When::Periodic { every: PERIOD };
const AIPU: When = When::Interval { age: PERIOD, check: Span::from_secs(1) };
const AIPU_30: When = When::Interval { age: PERIOD, check: PERIOD };
/// The paper's trials per configuration, and reads per trial.
const TRIALS: u64 = 6;
const READS: u64 = 10_000;

/// The faster system: DECstation 5000/200 with an RZ58 of 18 ms. A buffer of 4 KiB, one rotation at 5400 per minute, and 2 ms
/// of the host's own time per read are assumptions. In a burst a write takes 14 ms: the paper has 300 ms for 20 of them and 8 to
/// 9 s for about 600.
fn fast(when: When) -> Experiment {
    Experiment {
        when,
        discipline: Discipline::Fifo,
        access: Span::from_millis(18),
        near: Span::from_millis(14),
        rotation: Span::from_micros(11_111),
        think: Span::from_millis(2),
        cache_blocks: 1_228,
        file_blocks: (34 << 20) / 4_096,
        writes_per_30s: 614,
        reads: READS,
        seed: 0,
    }
}

/// The slower system: DECstation 3100 with an RZ57 of 23 ms at 3600 rotations per minute; the rest in proportion.
fn slow(when: When) -> Experiment {
    Experiment {
        access: Span::from_millis(23),
        near: Span::from_millis(18),
        rotation: Span::from_micros(16_667),
        think: Span::from_millis(3),
        cache_blocks: 614,
        file_blocks: (32 << 20) / 4_096,
        writes_per_30s: 307,
        ..fast(when)
    }
}

fn trials(seed: u64, experiment: &Experiment) -> Vec<Measured> {
    let trial = |trial| Experiment { seed: seed.wrapping_add(trial), ..experiment.clone() }.run();
    (0..TRIALS).map(trial).collect()
}

/// Response times of all trials together, seconds.
struct Times(Vec<f64>);

impl Times {
    fn of(trials: &[Measured]) -> Self {
        let reads = trials.iter().flat_map(|trial| &trial.reads);
        Self(reads.map(|span| span.as_secs_f64()).collect())
    }

    fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares = self.0.iter().map(|time| (time - mean) * (time - mean));
        (squares.sum::<f64>() / self.0.len() as f64).sqrt()
    }

    fn max(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }

    fn longer_than(&self, seconds: f64) -> f64 {
        self.0.iter().filter(|&&time| time > seconds).count() as f64
    }

    /// The share of a bound below which all but so many are.
    fn all_but(&self, count: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len().saturating_sub(count + 1)]
    }
}

fn response_times(seed: u64, system: fn(When) -> Experiment) -> Vec<(&'static str, f64)> {
    let configurations = [When::Async, PU, AIPU].map(|when| trials(seed, &system(when)));
    let rate = |trials: &[Measured]| {
        let seconds: f64 = trials.iter().map(|trial| trial.duration.as_secs_f64()).sum();
        (TRIALS * READS) as f64 / seconds
    };
    let [direct, periodic, interval] = configurations.each_ref().map(|trials| Times::of(trials));
    let rates = configurations.each_ref().map(|trials| rate(trials));
    vec![
        ("async writes, reads/s", rates[0]),
        ("PU, reads/s", rates[1]),
        ("AIPU, reads/s", rates[2]),
        ("sd PU / sd AIPU", periodic.deviation() / interval.deviation()),
        ("mean AIPU / mean PU", interval.mean() / periodic.mean()),
        ("mean PU / mean async writes", periodic.mean() / direct.mean()),
    ]
}

fn figure_4_1(seed: u64) -> Vec<(&'static str, f64)> {
    response_times(seed, fast)
}

fn figure_4_2(seed: u64) -> Vec<(&'static str, f64)> {
    response_times(seed, slow)
}

fn figure_4_3(seed: u64) -> Vec<(&'static str, f64)> {
    let [periodic, interval] = [PU, AIPU].map(|when| trials(seed, &fast(when)));
    // One read per burst waits for it.
    let bursts: usize = interval.iter().map(|trial| trial.bursts.len()).sum();
    let [periodic, interval] = [&periodic, &interval].map(|trials| Times::of(trials));
    vec![
        ("PU, longest read", periodic.max()),
        ("PU, reads longer than 1 s, of 60,000", periodic.longer_than(1.0)),
        ("AIPU, longest read", interval.max()),
        ("AIPU, reads longer than 0.45 s, of 60,000", interval.longer_than(0.45)),
        ("AIPU, longest wait behind a usual burst", interval.all_but(bursts / 2)),
    ]
}

fn figure_4_4(seed: u64) -> Vec<(&'static str, f64)> {
    let [periodic, interval] = [PU, AIPU].map(|when| Times::of(&trials(seed, &slow(when))));
    vec![("PU, longest read / AIPU, longest read", periodic.max() / interval.max())]
}

fn dirty_age(seed: u64) -> Vec<(&'static str, f64)> {
    let age = |when| {
        let trial = Experiment { seed, ..fast(when) }.run();
        trial.dirty_age_sum.as_secs_f64() / trial.writes as f64
    };
    vec![
        ("PU, every 30 s", age(PU)),
        ("AIPU-1, 30 s old, every 1 s", age(AIPU)),
        ("AIPU-30, 30 s old, every 30 s", age(AIPU_30)),
    ]
}

/// How long a disk takes for so many buffers given at once, seconds; the mean of the trials.
fn drain(seed: u64, buffers: u64, access: Span) -> f64 {
    let trial = |trial: u64| {
        let random = Stream::new(seed.wrapping_add(trial), "disk");
        let service = MeanTimes::new([access, access, Span::ZERO], random);
        let mut disk = Station::new(Discipline::Fifo.into(), Box::new(service));
        let mut next = None;
        for id in 0..buffers {
            let job = Job { id, kind: JobKind::Write, block: id, blocks: 1 };
            let begun = disk.submit(Time::ZERO, job);
            next = next.or(begun);
        }
        let mut end = Time::ZERO;
        while let Some(Begun { server, at }) = next {
            end = at;
            next = disk.done(at, server).1;
        }
        end.since(Time::ZERO).as_secs_f64()
    };
    (0..TRIALS).map(trial).sum::<f64>() / TRIALS as f64
}

fn table_2_1(seed: u64) -> Vec<(&'static str, f64)> {
    [("1983", 205, 35), ("1993", 1_638, 15), ("2003", 6_554, 6)]
        .map(|(year, buffers, ms)| (year, drain(seed, buffers, Span::from_millis(ms))))
        .to_vec()
}

fn table_2_2(seed: u64) -> Vec<(&'static str, f64)> {
    // Kilobytes of a tenth of the memory, buffers of table 2-1, megabytes per second.
    [("1983", 103.0, 205, 1.0), ("1993", 6_554.0, 1_638, 5.5), ("2003", 410_000.0, 6_554, 30.0)]
        .map(|(year, kilobytes, buffers, bandwidth)| {
            let seconds = kilobytes / 1_000.0 / bandwidth;
            let each = Span((seconds * 1e9 / f64::from(buffers)) as u64);
            (year, drain(seed, buffers as u64, each))
        })
        .to_vec()
}
