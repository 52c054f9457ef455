//! Block streams with the mix of reads, writes and flushes of the paper's workloads, sent by our own NBD client.
//!
//! A stream stands for an application on a file system without a page cache before the volume. The volume's first parts
//! stand for the file system's own structures, which few blocks make hot, and for a log, which is written round and
//! round. One operation is what the benchmark that it stands for counts as one.

use destage_block::nbd::client::{Client, ClientOptions};

use super::clients::{self, Progress};
use crate::Result;
use crate::keys::{Keys, Rng, Shape};

const KIB: u64 = 1024;
const BLOCK: u64 = 4 * KIB;
/// The longest request.
const REQUEST_MAX: usize = 128 << 10;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Read { offset: u64, len: u64 },
    Write { offset: u64, len: u64 },
    Flush,
}

/// A workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mix {
    pub(super) name: &'static str,
    /// Operations at the same time.
    pub(super) threads: u64,
    /// One operation of a thread.
    operation: fn(&mut Draw) -> Vec<Step>,
    /// What it does, for the report.
    pub(super) what: &'static str,
}

/// The paper's workloads; of the mail server it shows no figure.
pub(super) const MIXES: [Mix; 7] = [
    Mix {
        name: "file server",
        threads: 16,
        operation: file_server,
        what: "Filebench: write a file of 128 KiB, append 16 KiB to one, read one, two of the file system's blocks; a flush \
               every 64 operations",
    },
    Mix {
        name: "mail server",
        threads: 16,
        operation: mail_server,
        what: "append 16 KiB to a mailbox, log, flush; read another",
    },
    Mix {
        name: "PostMark",
        threads: 1,
        operation: post_mark,
        what: "write or read a file of 4 to 12 KiB, one of the file system's blocks; a flush every 64 operations",
    },
    Mix {
        name: "TPC-C",
        threads: 8,
        operation: transactions,
        what: "read 4 and write 4 zipfian pages of 8 KiB, log, flush",
    },
    Mix {
        name: "YCSB-A",
        threads: 8,
        operation: |draw| key_value(draw, 50, false),
        what: "read or overwrite zipfian pages of 4 KiB, half each; overwrites are logged, a flush every 16",
    },
    Mix {
        name: "YCSB-B",
        threads: 8,
        operation: |draw| key_value(draw, 5, false),
        what: "the same, 5% overwrites",
    },
    Mix {
        name: "YCSB-F",
        threads: 8,
        operation: |draw| key_value(draw, 50, true),
        what: "the same, half overwrites, which read their page first",
    },
];

/// What an operation is drawn from.
#[derive(Debug)]
pub(super) struct Draw {
    rng: Rng,
    /// Hot pages of [`BLOCK`] among the data.
    zipfian: Keys,
    layout: Layout,
    /// Where the next log record goes; each thread has a part of the log.
    log: u64,
    operations: u64,
    log_writes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    /// The file system's own blocks, from the volume's start, bytes.
    structures: u64,
    /// A thread's part of the log.
    log_start: u64,
    log_bytes: u64,
    data_start: u64,
    data_bytes: u64,
}

impl Layout {
    fn new(region: u64, thread: u64, threads: u64) -> Self {
        // Whole files of 128 KiB each.
        let part = |share: u64| (region / share / REQUEST_MAX as u64).max(1) * REQUEST_MAX as u64;
        let log_bytes = (part(32) / threads / BLOCK).max(4) * BLOCK;
        let data_start = part(64) + part(16);
        Self {
            structures: part(64),
            log_start: part(64) + thread * log_bytes,
            log_bytes,
            data_start,
            data_bytes: (region - data_start) / REQUEST_MAX as u64 * REQUEST_MAX as u64,
        }
    }
}

impl Draw {
    pub(super) fn new(region: u64, seed: u64, thread: u64, threads: u64) -> Self {
        let layout = Layout::new(region, thread, threads);
        let pages = layout.data_bytes / BLOCK;
        Self {
            rng: Rng::new(seed.wrapping_mul(1_000_003) + thread),
            zipfian: Keys::new(Shape::Zipfian, pages, seed, thread, threads),
            layout,
            log: 0,
            operations: 0,
            log_writes: 0,
        }
    }

    /// A place among the data, aligned to `len`.
    fn anywhere(&mut self, len: u64) -> u64 {
        self.layout.data_start + self.rng.below(self.layout.data_bytes / len) * len
    }

    /// A hot place among the data, aligned to `len`, which holds whole pages.
    fn hot(&mut self, len: u64) -> u64 {
        self.layout.data_start + self.zipfian.next() * BLOCK / len * len
    }

    /// One of the file system's blocks: of four thousand files or so, sixteen in one block.
    fn structure(&mut self) -> Step {
        let blocks = self.layout.structures / BLOCK;
        Step::Write { offset: self.rng.below(blocks.min(256)) * BLOCK, len: BLOCK }
    }

    /// The next record of the log.
    fn logged(&mut self, len: u64) -> Step {
        let at = self.log;
        self.log = (at + len) % (self.layout.log_bytes - len).max(BLOCK);
        self.log_writes += 1;
        Step::Write { offset: self.layout.log_start + at, len }
    }
}

fn file_server(draw: &mut Draw) -> Vec<Step> {
    let file = REQUEST_MAX as u64;
    let mut steps = vec![
        Step::Write { offset: draw.anywhere(file), len: file },
        Step::Write { offset: draw.anywhere(16 * KIB), len: 16 * KIB },
        Step::Read { offset: draw.anywhere(file), len: file },
        draw.structure(),
        draw.structure(),
    ];
    commit_now_and_then(draw, &mut steps);
    steps
}

fn mail_server(draw: &mut Draw) -> Vec<Step> {
    let mail = 16 * KIB;
    let offset = draw.anywhere(mail);
    let (logged, other) = (draw.logged(BLOCK), draw.anywhere(mail));
    vec![
        Step::Write { offset, len: mail },
        logged,
        Step::Flush,
        Step::Read { offset: other, len: mail },
    ]
}

fn post_mark(draw: &mut Draw) -> Vec<Step> {
    let len = (1 + draw.rng.below(3)) * BLOCK;
    let offset = draw.anywhere(16 * KIB);
    let mut steps = match draw.rng.below(2) {
        0 => vec![Step::Read { offset, len }],
        _ => vec![Step::Write { offset, len }, draw.structure()],
    };
    commit_now_and_then(draw, &mut steps);
    steps
}

/// What a file system with a journal does every few seconds.
fn commit_now_and_then(draw: &mut Draw, steps: &mut Vec<Step>) {
    draw.operations += 1;
    if draw.operations.is_multiple_of(64) {
        steps.push(draw.logged(4 * BLOCK));
        steps.push(Step::Flush);
    }
}

fn transactions(draw: &mut Draw) -> Vec<Step> {
    let page = 8 * KIB;
    let mut steps = Vec::with_capacity(10);
    for _ in 0..4 {
        steps.push(Step::Read { offset: draw.hot(page), len: page });
        steps.push(Step::Write { offset: draw.hot(page), len: page });
    }
    steps.push(draw.logged(page));
    steps.push(Step::Flush);
    steps
}

/// An operation of which `writes` of a hundred are overwrites; with `reads_first` these read before.
fn key_value(draw: &mut Draw, writes: u64, reads_first: bool) -> Vec<Step> {
    let offset = draw.hot(BLOCK);
    let read = Step::Read { offset, len: BLOCK };
    if draw.rng.below(100) >= writes {
        return vec![read];
    }
    let mut steps = vec![Step::Write { offset, len: BLOCK }, draw.logged(BLOCK)];
    if reads_first {
        steps.insert(0, read);
    }
    if draw.log_writes.is_multiple_of(16) {
        steps.push(Step::Flush);
    }
    steps
}

/// Sends a stream while `watch` runs.
///
/// # Errors
///
/// A request or `watch` failed.
pub(super) fn send<T>(
    uri: &str,
    mix: Mix,
    region: u64,
    seed: u64,
    watch: impl FnOnce(&Progress) -> Result<T>,
) -> Result<T> {
    let address = uri.parse().map_err(|error| format!("{uri}: {error}"))?;
    let client = &Client::connect(&address, &ClientOptions::default())?;
    let threads = (0..mix.threads).map(|thread| {
        let mut draw = Draw::new(region, seed, thread, mix.threads);
        let mut buffer = vec![thread as u8 + 1; REQUEST_MAX];
        move |progress: &Progress| {
            let mut steps = (mix.operation)(&mut draw).into_iter();
            steps.try_for_each(|it| step(client, it, &mut buffer, progress))
        }
    });
    clients::work(mix.name, threads.collect(), watch)
}

fn step(client: &Client, step: Step, buffer: &mut [u8], progress: &Progress) -> Result<()> {
    match step {
        Step::Read { offset, len } => {
            progress.read(|| Ok(client.read(offset, &mut buffer[..len as usize])?))?;
        }
        Step::Write { offset, len } => client.write(offset, &buffer[..len as usize], false)?,
        Step::Flush => client.flush()?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_stay_in_their_region_and_repeat_with_their_seed() {
        for region in [64 << 20, 256 << 20] {
            for mix in MIXES {
                let draws = || Draw::new(region, 5, mix.threads - 1, mix.threads);
                let (mut first, mut again) = (draws(), draws());
                for _ in 0..2_000 {
                    let steps = (mix.operation)(&mut first);
                    assert_eq!(steps, (mix.operation)(&mut again), "{}", mix.name);
                    for step in steps {
                        if let Step::Read { offset, len } | Step::Write { offset, len } = step {
                            assert!(offset + len <= region, "{}: {step:?}", mix.name);
                            assert!(offset.is_multiple_of(BLOCK) && len <= REQUEST_MAX as u64);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn mixes_write_and_flush_as_often_as_they_say() {
        let share = |name: &str, is: fn(&Step) -> bool| {
            let mix = MIXES.iter().find(|mix| mix.name == name).expect("a mix");
            let mut draw = Draw::new(256 << 20, 1, 0, mix.threads);
            let steps = (0..10_000).flat_map(|_| (mix.operation)(&mut draw)).filter(is).count();
            steps as f64 / 10_000.0
        };
        let reads = |name| share(name, |step| matches!(step, Step::Read { .. }));
        let flushes = |name| share(name, |step| matches!(step, Step::Flush));
        assert!((reads("YCSB-A") - 0.5).abs() < 0.02 && (reads("YCSB-B") - 0.95).abs() < 0.01);
        assert!((reads("YCSB-F") - 1.0).abs() < f64::EPSILON, "overwrites read first");
        assert!((flushes("TPC-C") - 1.0).abs() < f64::EPSILON);
        assert!((flushes("file server") - 1.0 / 64.0).abs() < 0.001);
        assert!((flushes("YCSB-A") - 0.5 / 16.0).abs() < 0.005);
    }
}
