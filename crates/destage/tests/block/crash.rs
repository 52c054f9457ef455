//! Kills at random moments, with a large dirty backlog before a slow origin: what the cache keeps, and what the origin is
//! without it.

use crate::harness::{PATIENCE, Random, Scratch, eventually, seconds};
use crate::history::{BLOCK, BLOCKS, History, State, read_state, state_of};
use crate::server::{Launch, SlowDisk, image, replay};
use std::path::Path;
use std::time::{Duration, Instant};

/// How slow the disk is, for each write.
const DELAY_MS: u32 = 2;
/// The same where the disk does one request at a time, and a kill is to find it in the middle of a hundred.
const DELAY_ONE_BY_ONE_MS: u32 = 300;
/// Writes after destaging was paused.
const HELD_BACK: u64 = 50;

/// So many writes are answered before a kill, at the least; usually it is ten times as many. A server that answers nothing
/// loses nothing.
pub(crate) const ANSWERED_MIN: u64 = 20;

/// What is killed, and what must hold afterwards.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    arguments: &'static [&'static str],
    check: Check,
}

/// What is looked at after the kill.
#[derive(Clone, Copy)]
enum Check {
    /// The cache survives: everything flushed is there, and nothing is out of order.
    Kept,
    /// The cache is lost: the origin is whole epochs and a part of the next.
    Epochs,
    /// The cache is lost: the origin is the log up to one write.
    Prefix,
}

const STRICT: &[&str] = &["--policy", "ordered", "--order", "strict"];
const KEPT_WRITE_BACK: Case = case("kept-write-back", &["--policy", "write-back"], Check::Kept);
const KEPT_ORDERED: Case = case("kept-ordered", &["--policy", "ordered"], Check::Kept);
const KEPT_STRICT: Case = case("kept-strict", STRICT, Check::Kept);
const KEPT_JOURNALED: Case = case("kept-journaled", &["--policy", "journaled"], Check::Kept);
const KEPT_D_0: Case = case("kept-d-0", &["--policy", "journaled", "-d", "0"], Check::Kept);
const LOST_ORDERED: Case = case("lost-ordered", &["--policy", "ordered"], Check::Epochs);
// One client that waits for each answer: a chain, so downward closed is a prefix.
const LOST_STRICT: Case = case("lost-strict", STRICT, Check::Prefix);
const LOST_JOURNALED: Case = case("lost-journaled", &["--policy", "journaled"], Check::Prefix);
/// Everything that must hold.
pub(crate) const CASES: [Case; 9] = [
    case("kept-write-through", &["--policy", "write-through"], Check::Kept),
    KEPT_WRITE_BACK,
    KEPT_ORDERED,
    KEPT_STRICT,
    KEPT_JOURNALED,
    KEPT_D_0,
    LOST_ORDERED,
    LOST_STRICT,
    LOST_JOURNALED,
];

const fn case(name: &'static str, arguments: &'static [&'static str], check: Check) -> Case {
    Case { name, arguments, check }
}

/// What came of a kill.
pub(crate) struct Round {
    /// Writes that were answered.
    pub(crate) acknowledged: u64,
    /// The origin lacked some of them.
    is_behind: bool,
}

/// A volume before a slow disk.
struct Setup {
    scratch: Scratch,
    image: std::path::PathBuf,
    disk: Option<SlowDisk>,
    launch: Launch,
}

impl Setup {
    /// Takes the disk's server away, with what it was still waiting to write, and starts another one: where a connection
    /// ends with requests under way, nbdkit may end too (`Assertion 'sock >= 0' failed`).
    fn restart_disk(&mut self) {
        self.disk = None;
        self.disk = SlowDisk::start(&self.scratch, &self.image, DELAY_MS);
    }
}

fn setup(arguments: &[&str]) -> Option<Setup> {
    let scratch = Scratch::new();
    let image = image(&scratch, BLOCKS * BLOCK as u64);
    let disk = SlowDisk::start(&scratch, &image, DELAY_MS)?;
    let redo = scratch.join("redo");
    let launch = Launch::before(&scratch, &disk.uri).redo_at(redo).with(arguments);
    // However slow the client, the bound does not stop it while destaging is paused.
    let launch = launch.with(&["--linger", "0", "--batch-size", "1M", "-D", "1h"]);
    Some(Setup { scratch, image, disk: Some(disk), launch })
}

/// Writes for a moment, then kills the server; what was written. If so told, the last writes are held back: however fast the
/// disk and slow the client, the origin lacks them.
fn killed(setup: &mut Setup, random: &mut Random, is_held_back: bool) -> History {
    let server = setup.launch.start();
    let client = server.client();
    let mut history = History::default();
    let (least, most) = (200, Instant::now() + seconds(20));
    let until = Instant::now() + Duration::from_millis(random.between(150, 700));
    history.write(&client, random, |number| {
        (number > least && Instant::now() > until) || Instant::now() > most
    });
    if is_held_back {
        server.ask(&["pause"]);
        let least = history.acknowledged + HELD_BACK;
        history.write(&client, random, |number| number > least);
    }
    server.kill();
    setup.restart_disk();
    history
}

fn image_state(image: &Path) -> Result<State, String> {
    state_of(&std::fs::read(image).expect("the image can be read"))
}

impl Case {
    /// Kills once; what is wrong afterwards, if anything. `None` where nbdkit is missing.
    pub(crate) fn round(&self, seed: u64, round: u64) -> Option<Result<Round, String>> {
        self.kill(seed, round, false)
    }

    /// The same, and whether the last writes are held back.
    fn kill(&self, seed: u64, round: u64, is_held_back: bool) -> Option<Result<Round, String>> {
        let mut setup = setup(self.arguments)?;
        let mut random = Random::new(seed, round);
        let history = killed(&mut setup, &mut random, is_held_back);
        let done = match self.check {
            Check::Kept => self.kept(&setup, &history),
            Check::Epochs => {
                lost(&setup).and_then(|state| history.is_epochs(&state).map(|()| state))
            }
            Check::Prefix => {
                lost(&setup).and_then(|state| history.is_prefix(&state, 0).map(|()| state))
            }
        };
        let acknowledged = history.acknowledged;
        let done = done.and_then(|state| {
            if acknowledged >= ANSWERED_MIN {
                Ok(Round { acknowledged, is_behind: state.iter().max() < Some(&acknowledged) })
            } else {
                Err(format!("{acknowledged} writes were answered: that proves nothing"))
            }
        });
        Some(done.map_err(|error| format!("{}, seed {seed}, round {round}: {error}", self.name)))
    }

    fn kept(&self, setup: &Setup, history: &History) -> Result<State, String> {
        let server = setup.launch.start();
        let promised =
            if self.arguments.contains(&"0") { history.acknowledged } else { history.flushed };
        let held = read_state(&server.client())?;
        history.is_prefix(&held, promised)?;
        server.ask(&["drain"]);
        if image_state(&setup.image)? == held {
            Ok(held)
        } else {
            Err("the origin differs after a drain".into())
        }
    }

    fn holds(&self, seed: u64, rounds: u64) {
        for round in 0..rounds {
            let is_held_back = !matches!(self.check, Check::Kept) && round + 1 == rounds;
            let Some(done) = self.kill(seed, round, is_held_back) else { return };
            let done = done.unwrap_or_else(|error| panic!("{error}"));
            assert!(done.is_behind || !is_held_back, "the origin has what was held back");
        }
    }
}

/// Kills the server when the first of many dirty blocks has arrived, and loses the cache: what is wrong with the origin, if
/// anything. The disk takes half a minute for all of them, so the kill finds it in between on any machine.
fn half_sent(policy: &'static [&'static str], check: Check) -> Option<Result<(), String>> {
    let mut setup = setup(policy)?;
    setup.disk = None;
    setup.disk = SlowDisk::one_by_one(&setup.scratch, &setup.image, DELAY_ONE_BY_ONE_MS);
    let server = setup.launch.start();
    let client = server.client();
    server.ask(&["pause"]);
    let mut history = History::default();
    for _ in 0..3 {
        // No neighbours: each is a request of its own.
        for block in (0..BLOCKS).step_by(2) {
            history.put(&client, block).expect("the log takes it");
        }
        history.flush(&client).expect("the log takes it");
    }
    server.ask(&["resume"]);
    eventually("the first block arrives", PATIENCE, || {
        image_state(&setup.image).is_ok_and(|state| state.iter().any(|&number| number > 0))
    });
    server.kill();
    setup.restart_disk();
    Some(lost(&setup).and_then(|state| match check {
        Check::Prefix => history.is_prefix(&state, 0),
        _ => history.is_epochs(&state),
    }))
}

/// Deletes the cache; what the origin holds after a replay.
fn lost(setup: &Setup) -> Result<State, String> {
    std::fs::remove_file(&setup.launch.cache).expect("the cache can be deleted");
    let redo = setup.launch.redo.as_ref().expect("there is one");
    replay(&setup.launch.origin, redo);
    image_state(&setup.image)
}

/// > A write whose FLUSH was answered is never lost while the cache survives.
#[test]
fn what_was_flushed_survives_a_crash_under_write_back() {
    KEPT_WRITE_BACK.holds(1, 5);
}

#[test]
fn what_was_flushed_survives_a_crash_under_ordered() {
    KEPT_ORDERED.holds(2, 5);
}

#[test]
fn what_was_flushed_survives_a_crash_under_journaled() {
    KEPT_JOURNALED.holds(3, 5);
}

/// > Under `-d 0` a write that was acknowledged is never lost while the cache survives.
#[test]
fn what_was_acknowledged_survives_a_crash_with_d_0() {
    KEPT_D_0.holds(4, 5);
}

/// > Under `ordered` the origin always holds all epochs up to one, and a part of the next.
#[test]
fn without_the_cache_the_origin_is_whole_epochs_under_ordered() {
    LOST_ORDERED.holds(5, 10);
}

#[test]
fn without_the_cache_the_origin_is_a_prefix_under_strict_order() {
    LOST_STRICT.holds(6, 5);
}

/// > Under `journaled` the origin, after `destage block replay`, always is the volume as of one write.
#[test]
fn without_the_cache_the_origin_is_the_log_up_to_one_write_under_journaled() {
    LOST_JOURNALED.holds(7, 10);
}

#[test]
fn without_the_cache_what_is_half_sent_keeps_its_order() {
    for (policy, check) in [
        (&["--policy", "ordered"][..], Check::Epochs),
        (&["--policy", "journaled"][..], Check::Prefix),
    ] {
        if let Some(checked) = half_sent(policy, check) {
            checked.unwrap_or_else(|error| panic!("{policy:?}: {error}"));
        }
    }
}

/// The control of all of these.
#[test]
fn without_the_cache_the_origin_is_garbage_under_plain_write_back() {
    if let Some(checked) = half_sent(&["--policy", "write-back"], Check::Epochs) {
        checked.expect_err("plain write-back kept an order: the checker proves nothing");
    }
}
