//! 64 clients write, zero, trim and read the same sectors at the same time, across the edges of blocks, before a slow
//! origin. What each read showed, what is there in the end, and what a kill left, is held against all that was answered.

use crate::harness::{PATIENCE, Random, Scratch, eventually, seconds};
use crate::sectors::{Content, Kind, Operation, Record, SECTOR, SECTORS, Stamps};
use crate::server::{Launch, SlowDisk, image};
use destage_block::nbd::client::Client;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// How slow the disk is, for each write.
const DELAY_MS: u32 = 2;
const CLIENTS: u64 = 64;
/// A client does at most so much in one phase, so that the record stays small.
const OPERATIONS_MAX: u64 = 1_500;
/// Half of all requests begin in the first sectors, so that they overlap.
const CROWDED: u64 = 192;
/// How long the clients work before the kill, unless `DESTAGE_VERIFY_SECONDS` says so; the same after it.
const WORK: Duration = seconds(3);

/// A policy to try.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    arguments: &'static [&'static str],
    /// Whether nothing is sent to the origin.
    is_paused: bool,
    /// Whether an answered write is durable without a flush.
    is_durable_at_once: bool,
}

pub(crate) const CASES: [Case; 6] = [
    case("verify-write-through", &["--policy", "write-through"]),
    case("verify-write-back", &["--policy", "write-back"]),
    case("verify-ordered", &["--policy", "ordered"]),
    case("verify-strict", &["--policy", "ordered", "--order", "strict"]),
    case("verify-journaled", &["--policy", "journaled"]),
    Case {
        is_durable_at_once: true,
        ..case("verify-journaled-d-0", &["--policy", "journaled", "-d", "0"])
    },
];

const fn case(name: &'static str, arguments: &'static [&'static str]) -> Case {
    Case { name, arguments, is_paused: false, is_durable_at_once: false }
}

/// Nothing reaches the origin before the kill, however fast it is; the clients go on until there is no room left.
const NOTHING_SENT: Case = Case {
    is_paused: true,
    ..case("verify-nothing-sent", &["--policy", "write-back", "-D", "1h"])
};

/// One volume before a slow disk, and everything that was done to it.
struct Run {
    scratch: Scratch,
    disk: Option<SlowDisk>,
    launch: Launch,
    is_paused: bool,
    stamps: Stamps,
    record: Record,
}

impl Run {
    fn new(case: &Case) -> Option<Self> {
        let scratch = Scratch::new();
        let image = image(&scratch, SECTORS * SECTOR as u64);
        let disk = SlowDisk::start(&scratch, &image, DELAY_MS)?;
        let launch = Launch::before(&scratch, &disk.uri).redo_at(scratch.join("redo"));
        let launch = launch.with(case.arguments).with(&["--linger", "0", "--batch-size", "1M"]);
        let (disk, is_paused) = (Some(disk), case.is_paused);
        let (stamps, record) = (Stamps::default(), Record::default());
        Some(Self { scratch, disk, launch, is_paused, stamps, record })
    }

    /// All clients at work for a while; then, if told so, the server is killed under them.
    fn phase(&mut self, seed: u64, phase: u64, and_kill: bool) {
        let server = self.launch.start();
        if self.is_paused {
            server.ask(&["pause"]);
        }
        let end = Instant::now() + work();
        let stamps = &self.stamps;
        let clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
        let records = thread::scope(|scope| {
            let workers: Vec<_> = clients
                .iter()
                .zip(0_u64..)
                .map(|(client, index)| {
                    let random = Random::new(seed, phase * 1_000 + index);
                    scope.spawn(move || Worker { client, random, stamps }.work(end, and_kill))
                })
                .collect();
            if and_kill {
                thread::sleep(end.saturating_duration_since(Instant::now()));
                server.kill();
            } else {
                let is_done = || workers.iter().all(|worker| worker.is_finished());
                eventually("the clients end", work() + PATIENCE, is_done);
                assert_eq!(server.stop(), 0);
            }
            let joined = workers.into_iter().map(|worker| worker.join().expect("no panic"));
            joined.collect::<Vec<_>>()
        });
        records.into_iter().for_each(|record| self.record.extend(record));
    }

    /// What the volume holds after a start, once it is also at the origin.
    fn content(&self) -> Result<Content, String> {
        let server = self.launch.start();
        let mut bytes = vec![0; SECTORS as usize * SECTOR];
        server.client().read(0, &mut bytes).map_err(|error| error.to_string())?;
        server.ask(&["drain"]);
        if std::fs::read(self.image()).expect("the image can be read") != bytes {
            return Err("the origin differs from the volume after a drain".into());
        }
        server.kill();
        Content::of(&bytes)
    }

    fn image(&self) -> PathBuf {
        self.scratch.join("disk.img")
    }

    fn restart_disk(&mut self) {
        self.disk = None;
        self.disk = SlowDisk::start(&self.scratch, &self.image(), DELAY_MS);
    }
}

/// One client's thread.
struct Worker<'a> {
    client: &'a Client,
    random: Random,
    stamps: &'a Stamps,
}

impl Worker<'_> {
    /// Works until the end, or until the connection breaks; what it did.
    fn work(mut self, end: Instant, may_break: bool) -> Record {
        let mut record = Record::default();
        for _ in 0..OPERATIONS_MAX {
            // A kill is to find requests under way.
            if Instant::now() >= end && !may_break {
                break;
            }
            let operation = self.operation();
            let is_answered = operation.is_answered();
            assert!(is_answered || may_break, "a request failed: {operation:?}");
            record.add(operation);
            if !is_answered {
                break;
            }
        }
        record
    }

    fn operation(&mut self) -> Operation {
        let random = &mut self.random;
        let first = match random.between(0, 2) {
            0 => random.between(0, CROWDED),
            _ => random.between(0, SECTORS),
        };
        let fua = random.between(0, 40) == 0;
        let kind = match random.between(0, 40) {
            0..24 => Kind::Write { fua },
            24..27 => Kind::Trim { fua },
            27..30 => Kind::Zero { fua, punch: random.between(0, 2) == 0 },
            30..39 => Kind::Read,
            _ => Kind::Flush,
        };
        let longest = match kind {
            // Now and then as long as several pieces of the log.
            Kind::Trim { .. } | Kind::Zero { .. } => *random.pick(&[1, 9, 128, 128, SECTORS]),
            _ => *random.pick(&[1, 2, 8, 9, 40, 128]),
        };
        let sectors = random.between(1, longest + 1).min(SECTORS - first);
        self.stamps.carry_out(self.client, kind, first, sectors)
    }
}

fn work() -> Duration {
    let told = std::env::var("DESTAGE_VERIFY_SECONDS").ok();
    told.map_or(WORK, |text| seconds(text.parse().expect("DESTAGE_VERIFY_SECONDS is a number")))
}

impl Case {
    /// Work that a kill ends, and after a restart work that ends in good order: the requests that were answered, or what is
    /// wrong.
    pub(crate) fn round(&self, seed: u64) -> Option<Result<u64, String>> {
        let mut run = Run::new(self)?;
        run.phase(seed, 0, true);
        let checked = run.settle(self.is_durable_at_once).and_then(|()| {
            run.phase(seed, 1, false);
            run.settle(true)
        });
        let answered = checked.map(|()| run.record.answered());
        Some(answered.map_err(|error| format!("{}, seed {seed}: {error}", self.name)))
    }
}

impl Run {
    /// Checks what the clients read and what was left; from here on it is what the volume holds.
    fn settle(&mut self, is_durable_at_once: bool) -> Result<(), String> {
        self.restart_disk();
        self.record.reads_are_right()?;
        let content = self.content()?;
        self.record.allows(&content, is_durable_at_once)?;
        self.record.settle(&content, &self.stamps);
        Ok(())
    }
}

fn holds(index: usize) {
    if let Some(result) = CASES[index].round(1) {
        let answered = result.unwrap_or_else(|error| panic!("{error}"));
        eprintln!("{}: {answered} requests answered", CASES[index].name);
        assert!(answered > 100, "the clients hardly worked");
    }
}

#[test]
fn overlapping_writes_are_right_under_write_through_also_after_a_kill() {
    holds(0);
}

#[test]
fn overlapping_writes_are_right_under_write_back_also_after_a_kill() {
    holds(1);
}

#[test]
fn overlapping_writes_are_right_under_ordered_also_after_a_kill() {
    holds(2);
}

#[test]
fn overlapping_writes_are_right_under_strict_order_also_after_a_kill() {
    holds(3);
}

#[test]
fn overlapping_writes_are_right_under_journaled_also_after_a_kill() {
    holds(4);
}

#[test]
fn overlapping_writes_are_right_with_d_0_also_after_a_kill() {
    holds(5);
}

/// The same check finds out what is lost with the cache.
#[test]
fn overlapping_writes_are_not_right_without_the_cache() {
    let Some(mut run) = Run::new(&NOTHING_SENT) else { return };
    run.phase(0, 0, true);
    run.restart_disk();
    std::fs::remove_file(&run.launch.cache).expect("the cache can be deleted");
    run.launch = run.launch.with(&["--adopt"]);
    let checked = run.content().and_then(|content| run.record.allows(&content, false));
    assert!(checked.is_err(), "what was flushed survived the cache: this proves nothing");
}
