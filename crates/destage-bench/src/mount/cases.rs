//! The cases, and how one is measured: rounds of runs, each with every side in turn.

use std::fs;
use std::time::{Duration, Instant};

use super::ceph::Received;
use super::loads::{self, Done, Once, Share, Start};
use super::options::Options;
use super::sides::{Side, Sides};
use super::table;
use crate::Result;
use crate::block::clients;
use crate::report::Table;

/// So long the first operation of a run may take.
const FIRST_MAX: Duration = Duration::from_secs(30);

/// A load, and how it is reported.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// What it does, for the report; what an operation is; what is timed.
    pub(super) what: &'static str,
    load: Load,
}

enum Load {
    /// So many threads, until the time is over.
    Threads(u64, Start),
    Once(Once),
}

/// In the order of the report.
pub(super) const CASES: [Case; 11] = [
    Case {
        name: "varmail",
        what: "16 threads: a mail of 16 KiB is deleted, written anew and fsynced; one is read, 8 KiB appended and fsynced; \
               one is read. All that is an operation; the median is of one fsync.",
        load: Load::Threads(16, loads::varmail),
    },
    Case {
        name: "fileserver",
        what: "16 threads: a file of 128 KiB is made, 16 KiB appended to one, one read, one deleted, one looked at. All \
               that is an operation; the median is of making one.",
        load: Load::Threads(16, loads::fileserver),
    },
    Case {
        name: "createfiles",
        what: "16 threads make files of 16 KiB, a hundred to a folder.",
        load: Load::Threads(16, loads::createfiles),
    },
    Case {
        name: "metadata",
        what: "8 threads: an empty file is made, looked at, renamed and removed. All that is an operation; the median is \
               of making one.",
        load: Load::Threads(8, loads::metadata),
    },
    Case {
        name: "fsync",
        what: "One thread overwrites 4 KiB of a file of 16 MiB and calls fsync; the median is of the fsync.",
        load: Load::Threads(1, loads::fsync),
    },
    Case {
        name: "sqlite",
        what: "One thread commits transactions of SQLite, a rollback journal, synchronous=FULL.",
        load: Load::Threads(1, loads::sqlite),
    },
    Case {
        name: "build",
        what: "200 C files are unpacked by tar and built by make -j4 (20 with --quick); an operation is a file.",
        load: Load::Once(loads::BUILD),
    },
    Case {
        name: "zipf",
        what: "fio overwrites a file at zipfian places (1.0001), 2 to 16 KiB at a time, as many bytes as the file has.",
        load: Load::Once(loads::ZIPF),
    },
    Case {
        name: "filebench-varmail",
        what: "Filebench's own varmail; an operation is one of its flow operations.",
        load: Load::Once(loads::FILEBENCH_VARMAIL),
    },
    Case {
        name: "filebench-fileserver",
        what: "Filebench's own fileserver; an operation is one of its flow operations.",
        load: Load::Once(loads::FILEBENCH_FILESERVER),
    },
    Case {
        name: "filebench-createfiles",
        what: "Filebench's own createfiles; an operation is one of its flow operations.",
        load: Load::Once(loads::FILEBENCH_CREATEFILES),
    },
];

/// What one run on one side came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) done: Done,
    /// From the load's end until all of it was at the origin, seconds.
    pub(super) drain_seconds: f64,
    /// What the OSDs received until the load's end, and until the end of the drain.
    pub(super) received: Option<[Received; 2]>,
}

impl Case {
    /// Measures it on all sides.
    ///
    /// # Errors
    ///
    /// A run failed, or did nothing.
    pub(super) fn measure(&self, options: &Options, sides: &Sides) -> Result<Table> {
        let mut runs: Vec<(Side, Vec<Run>)> =
            sides.all().into_iter().map(|side| (side, Vec::new())).collect();
        for round in 0..options.pairs {
            for (side, of_side) in &mut runs {
                let name = format!("{}-{round}-{side:?}", self.name);
                let run = self.run(options, sides, *side, &name);
                let run = run.map_err(|error| format!("{}: {error}", side.name()))?;
                eprintln!(
                    "{name}: {:.0} operations in {:.2} s, drained in {:.2} s",
                    run.done.operations, run.done.seconds, run.drain_seconds
                );
                if run.done.operations < 1.0 {
                    return Err(format!("{}: nothing was done", side.name()).into());
                }
                of_side.push(run);
            }
        }
        Ok(table::table(self, &runs))
    }

    fn run(&self, options: &Options, sides: &Sides, side: Side, name: &str) -> Result<Run> {
        let mut place = sides.open(side, name)?;
        let folder = place.folder().join("load");
        fs::create_dir(&folder)?;
        let (done, before, after) = match &self.load {
            Load::Threads(threads, start) => {
                let share = |thread| Share {
                    folder: folder.clone(),
                    thread,
                    files: (options.files / threads).max(1),
                    seed: options.seed,
                };
                let workers = (0..*threads).map(|thread| start(&share(thread)));
                let workers = workers.collect::<Result<Vec<_>>>()?;
                place.settle()?;
                let before = place.received()?;
                let done = clients::work(self.name, workers, |progress| {
                    let begin = Instant::now();
                    let deadline = begin + options.time;
                    // A short run goes on until something was done.
                    let is_idle = || progress.operations() == 0 && begin.elapsed() < FIRST_MAX;
                    while Instant::now() < deadline || is_idle() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    let (operations, seconds) =
                        (progress.operations() as f64, begin.elapsed().as_secs_f64());
                    Ok(Done {
                        operations,
                        seconds,
                        median_us: Some(progress.take_reads().median_us),
                    })
                })?;
                (done, before, place.received()?)
            }
            Load::Once((prepare, work)) => {
                prepare(&folder, options)?;
                place.settle()?;
                let before = place.received()?;
                let done = work(&folder, options)?;
                (done, before, place.received()?)
            }
        };
        let drain_seconds = place.drain()?.as_secs_f64();
        let drained = place.received()?;
        let received = match (before, after, drained) {
            (Some(before), Some(after), Some(drained)) => {
                Some([after.since(before), drained.since(before)])
            }
            _ => None,
        };
        Ok(Run { done, drain_seconds, received })
    }
}
