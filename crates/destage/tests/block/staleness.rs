//! D, measured on what is left: clients write faster than the origin takes it, the server is killed, the cache is thrown
//! away, and the oldest acknowledged write that the origin lacks tells how old the origin was.

use crate::harness::{PATIENCE, Random, Scratch, eventually, millis, seconds};
use crate::history::{BLOCK, stamped};
use crate::server::{Launch, Server, SlowDisk, image, replay};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const BLOCKS: u64 = (64 << 20) / BLOCK as u64;
/// What the origin takes each second, bytes.
const RATE: u64 = 2 << 20;
/// The bound.
const D: Duration = seconds(2);
/// By how much a busy machine may be late to send what it should. A volume without a bound is older by far.
const TOLERANCE: Duration = seconds(5);
/// By how much the server may be late to refuse.
const TOLERANCE_REFUSED: Duration = seconds(2);
/// How long the clients write, milliseconds: longer than the bound and the tolerance.
const TIME_MS: (u64, u64) = (9_000, 11_000);
const WRITERS: u64 = 4;
/// So many writes are answered before the kill, at the least; usually it is a thousand.
const ANSWERED_MIN: u64 = 50;

/// What is tried.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    arguments: &'static [&'static str],
    load: Load,
    /// What the origin takes each second, bytes.
    rate: u64,
    time_ms: (u64, u64),
}

/// What the clients do, and so what D promises.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Half of what the origin takes: it is never older than D.
    Paced,
    /// As much as they may: no write is acknowledged once the origin lacks one that is older than D.
    Flood,
    /// The same, and the origin goes away for good.
    Away,
}

/// What D alone hurries.
const LATE_WRITE_BACK: &[&str] = &["--policy", "write-back", "-D", "2s", "--when", "pressure"];
const LATE_ORDERED: &[&str] = &["--policy", "ordered", "-D", "2s", "--when", "pressure"];
const LATE_JOURNALED: &[&str] = &["--policy", "journaled", "-D", "2s", "--when", "pressure"];

pub(crate) const CASES: [Case; 7] = [
    case("staleness-write-back", LATE_WRITE_BACK, Load::Paced),
    case("staleness-ordered", LATE_ORDERED, Load::Paced),
    case("staleness-journaled", LATE_JOURNALED, Load::Paced),
    case(
        "staleness-adaptive",
        &["--policy", "journaled", "-D", "2s", "--when", "adaptive"],
        Load::Paced,
    ),
    case("staleness-flood-ordered", &["--policy", "ordered", "-D", "2s"], Load::Flood),
    case("staleness-flood-journaled", &["--policy", "journaled", "-D", "2s"], Load::Flood),
    case(
        "staleness-away",
        &["--policy", "journaled", "-D", "2s", "--at-limit", "block"],
        Load::Away,
    ),
];
/// Without a bound, each kind of load must break it.
const UNBOUNDED: [Case; 2] = [
    case(
        "staleness-unbounded",
        &["--policy", "journaled", "-D", "none", "--when", "pressure"],
        Load::Paced,
    ),
    // A flood fills whatever there is and then goes on at the origin's pace: for longer than the bound only if that is much.
    Case {
        rate: RATE / 2,
        time_ms: (20_000, 22_000),
        ..case(
            "staleness-flood-unbounded",
            &["--policy", "journaled", "-D", "none", "--log-size", "256M", "--dirty-limit", "128M"],
            Load::Flood,
        )
    },
];

const fn case(name: &'static str, arguments: &'static [&'static str], load: Load) -> Case {
    Case { name, arguments, load, rate: RATE, time_ms: TIME_MS }
}

/// An acknowledged write. The server took it at some time between the two moments.
#[derive(Clone, Copy)]
struct Acknowledged {
    number: u64,
    begun: Instant,
    noted: Instant,
}

/// What was lost.
#[derive(Debug)]
pub(crate) struct Loss {
    writes: u64,
    pub(crate) acknowledged: u64,
    /// From the oldest lost acknowledgement to the last write that was begun and acknowledged: never more than what the server
    /// saw, however slow the clients are.
    spanned: Duration,
    /// How old the origin was: from the oldest lost acknowledgement to the kill.
    age: Duration,
}

impl Case {
    /// Writes, kills, throws the cache away; `None` where nbdkit is missing.
    fn kill(&self, seed: u64) -> Option<Loss> {
        let scratch = Scratch::new();
        let image = image(&scratch, BLOCKS * BLOCK as u64);
        let mut disk = Some(SlowDisk::with_rate(&scratch, &image, self.rate)?);
        let redo = scratch.join("redo");
        let launch = Launch::before(&scratch, &disk.as_ref()?.uri).redo_at(redo.clone());
        let launch = launch.with(self.arguments).with(&["--cache-size", "1G"]);
        let server = launch.start();
        let time = millis(Random::new(seed, 0).between(self.time_ms.0, self.time_ms.1));
        let start = Instant::now();
        let mut killed = start;
        let acknowledged = write_until(&server, self.load, |begun| {
            if self.load == Load::Away {
                thread::sleep(time / 2);
                disk = None;
                let stops = || server.volume("mode") == "staleness-exceeded";
                eventually("writes stop", PATIENCE, stops);
            }
            thread::sleep(time.saturating_sub(start.elapsed()));
            if self.load != Load::Away {
                server.ask(&["pause"]);
                lack_something(begun);
            }
            killed = Instant::now();
            server.cut();
        });
        server.kill();
        drop(disk);
        std::fs::remove_file(&launch.cache).expect("the cache can be deleted");
        let disk = SlowDisk::start(&scratch, &image, 0)?;
        replay(&disk.uri, &redo);
        drop(disk);
        Some(loss(&acknowledged, killed, &image))
    }

    /// A kill, and whether the origin was young enough: what was lost, or what is wrong.
    pub(crate) fn round(&self, seed: u64) -> Option<Result<Loss, String>> {
        let loss = self.kill(seed)?;
        let Loss { writes, acknowledged, spanned, age } = loss;
        let (measured, tolerance) = match self.load {
            Load::Paced => (age, TOLERANCE),
            Load::Flood | Load::Away => (spanned, TOLERANCE_REFUSED),
        };
        let what = format!(
            "{}, seed {seed}: {writes} of {acknowledged} acknowledged writes are lost, the oldest {spanned:?} before the \
             last one and {age:?} before the kill",
            self.name
        );
        eprintln!("{what}");
        Some(if measured > D + tolerance {
            Err(format!("{what}: D is {D:?}"))
        } else if acknowledged < ANSWERED_MIN {
            Err(format!("{what}: that proves nothing"))
        } else {
            Ok(loss)
        })
    }
}

/// Returns when the origin, to which nothing is sent any more, lacks an acknowledged write: each client has begun another one
/// after one that was, or none may, since there is too much that the origin lacks.
fn lack_something(begun: &AtomicU64) {
    let (more, start) = (begun.load(Ordering::SeqCst) + 2 * WRITERS, Instant::now());
    while begun.load(Ordering::SeqCst) < more && start.elapsed() < seconds(3) {
        thread::sleep(millis(5));
    }
}

/// Several clients write one block after the other, until `kill`, which is told how many writes have begun, has ended the
/// server.
fn write_until(server: &Server, load: Load, kill: impl FnOnce(&AtomicU64)) -> Vec<Acknowledged> {
    let next = AtomicU64::new(0);
    let all = Mutex::new(Vec::new());
    let pause = match load {
        Load::Paced => Duration::from_secs(WRITERS * BLOCK as u64) / (RATE / 2) as u32,
        Load::Flood | Load::Away => Duration::ZERO,
    };
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            let client = server.client();
            let (next, all) = (&next, &all);
            scope.spawn(move || {
                let mut own = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst) + 1;
                    let at = number % BLOCKS * BLOCK as u64;
                    let begun = Instant::now();
                    if client.write(at, &stamped(number), false).is_err() {
                        break;
                    }
                    own.push(Acknowledged { number, begun, noted: Instant::now() });
                    thread::sleep(pause);
                }
                all.lock().expect("no holder panics").extend(own);
            });
        }
        kill(&next);
    });
    all.into_inner().expect("no holder panics")
}

/// Compares what was acknowledged with what the image holds.
fn loss(acknowledged: &[Acknowledged], killed: Instant, image: &Path) -> Loss {
    let bytes = std::fs::read(image).expect("the image can be read");
    let held = |number: u64| {
        let at = (number % BLOCKS) as usize * BLOCK;
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    };
    let lost = acknowledged.iter().filter(|write| held(write.number) < write.number);
    let oldest = lost.clone().map(|write| write.noted).min();
    let newest = acknowledged.iter().map(|write| write.begun).max();
    let since_oldest = |end: Option<Instant>| {
        let end = end.zip(oldest);
        end.map_or(Duration::ZERO, |(end, oldest)| end.saturating_duration_since(oldest))
    };
    Loss {
        writes: lost.count() as u64,
        acknowledged: acknowledged.len() as u64,
        spanned: since_oldest(newest),
        age: since_oldest(Some(killed)),
    }
}

fn holds(name: &str) {
    let case = CASES.iter().find(|case| case.name == name).expect("a case");
    // A machine with much else to do may have brought everything to the origin: that proves nothing.
    for seed in 1..=ROUNDS_MAX {
        let Some(result) = case.round(seed) else { return };
        if result.unwrap_or_else(|error| panic!("{error}")).writes > 0 {
            return;
        }
    }
    panic!("the origin had everything in {ROUNDS_MAX} rounds");
}

const ROUNDS_MAX: u64 = 5;

/// > D holds as above: destaging begins early enough, and no write is acknowledged while the oldest undecided one is older
/// > than D. So losing host and cache never costs more than the writes acknowledged within one span of D.
#[test]
fn without_the_cache_the_origin_is_at_most_d_old_under_write_back() {
    holds("staleness-write-back");
}

#[test]
fn without_the_cache_the_origin_is_at_most_d_old_under_ordered() {
    holds("staleness-ordered");
    holds("staleness-flood-ordered");
}

#[test]
fn without_the_cache_the_origin_is_at_most_d_old_under_journaled() {
    holds("staleness-journaled");
    holds("staleness-flood-journaled");
}

#[test]
fn without_the_cache_the_origin_is_at_most_d_old_where_destaging_is_adaptive() {
    holds("staleness-adaptive");
}

#[test]
fn without_the_cache_at_most_d_of_acknowledged_writes_is_lost_where_the_origin_is_away() {
    holds("staleness-away");
}

/// The same checks find out a volume without a bound.
#[test]
fn without_the_cache_the_origin_is_older_than_d_where_there_is_no_bound() {
    for case in &UNBOUNDED {
        let Some(result) = case.round(1) else { return };
        let error =
            result.expect_err("without a bound the origin kept up: the check proves nothing");
        assert!(error.contains("D is 2s"), "{error}");
    }
}
