//! Kills at random moments, with a large dirty backlog before a slow origin: what the cache keeps, and what the origin is
//! without it.

use crate::harness::{Random, Scratch, seconds};
use crate::history::{BLOCK, BLOCKS, History, State, read_state, state_of};
use crate::server::{Launch, SlowDisk, image, replay};
use std::path::Path;
use std::time::{Duration, Instant};

/// How slow the disk is, for each write.
const DELAY_MS: u32 = 2;

/// A volume before a slow disk.
struct Setup {
    scratch: Scratch,
    image: std::path::PathBuf,
    delay_ms: u32,
    disk: Option<SlowDisk>,
    launch: Launch,
}

impl Setup {
    /// Takes the disk's server away, with what it was still waiting to write, and starts another one: where a connection
    /// ends with requests under way, nbdkit may end too (`Assertion 'sock >= 0' failed`).
    fn restart_disk(&mut self) {
        self.disk = None;
        self.disk = SlowDisk::start(&self.scratch, &self.image, self.delay_ms);
    }
}

fn setup(arguments: &[&str], delay_ms: u32) -> Option<Setup> {
    let scratch = Scratch::new();
    let image = image(&scratch, BLOCKS * BLOCK as u64);
    let disk = SlowDisk::start(&scratch, &image, delay_ms)?;
    let redo = scratch.join("redo");
    let launch = Launch::before(&scratch, &disk.uri).redo_at(redo).with(arguments);
    let launch = launch.with(&["--linger", "0", "--batch-size", "1M"]);
    Some(Setup { scratch, image, delay_ms, disk: Some(disk), launch })
}

/// Writes for a moment, then kills the server; what was written.
fn killed(setup: &mut Setup, random: &mut Random) -> History {
    let server = setup.launch.start();
    let client = server.client();
    let mut history = History::default();
    let (least, most) = (200, Instant::now() + seconds(20));
    let until = Instant::now() + Duration::from_millis(random.between(150, 700));
    history.write(&client, random, |number| {
        (number > least && Instant::now() > until) || Instant::now() > most
    });
    server.kill();
    setup.restart_disk();
    history
}

fn image_state(image: &Path) -> Result<State, String> {
    state_of(&std::fs::read(image).expect("the image can be read"))
}

/// The cache survives: everything flushed is there, and nothing is out of order.
fn cache_kept(arguments: &[&str], seed: u64, rounds: u64) {
    for round in 0..rounds {
        let Some(mut setup) = setup(arguments, DELAY_MS) else { return };
        let mut random = Random::new(seed, round);
        let history = killed(&mut setup, &mut random);
        let server = setup.launch.start();
        let promised = match arguments.contains(&"0") {
            true => history.acknowledged,
            false => history.flushed,
        };
        let held = read_state(&server.client());
        let checked = held.and_then(|state| history.is_prefix(&state, promised));
        checked.unwrap_or_else(|e| panic!("{arguments:?}, seed {seed}, round {round}: {e}"));
        server.ask(&["drain"]);
        let held = read_state(&server.client()).expect("nothing is torn");
        assert_eq!(image_state(&setup.image), Ok(held), "the origin follows");
    }
}

/// The cache is lost: what is wrong with the origin in the first round in which something is, if any.
fn cache_lost(
    arguments: &[&str],
    delay_ms: u32,
    seed: u64,
    rounds: u64,
    check: fn(&History, &State) -> Result<(), String>,
) -> Option<Result<(), String>> {
    let mut behind = false;
    for round in 0..rounds {
        let mut setup = setup(arguments, delay_ms)?;
        let mut random = Random::new(seed, round);
        let history = killed(&mut setup, &mut random);
        std::fs::remove_file(&setup.launch.cache).expect("the cache can be deleted");
        let redo = setup.launch.redo.as_ref().expect("there is one");
        replay(&setup.launch.origin, redo);
        let checked = image_state(&setup.image).and_then(|state| {
            behind |= state.iter().max() < Some(&history.acknowledged);
            check(&history, &state)
        });
        if let Err(error) = checked {
            let kept = setup.scratch.join("block.log");
            return Some(Err(format!("seed {seed}, round {round}: {error} ({})", kept.display())));
        }
    }
    assert!(behind, "the origin had everything each time: the test proves nothing");
    Some(Ok(()))
}

/// > A write whose FLUSH was answered is never lost while the cache survives.
#[test]
fn what_was_flushed_survives_a_crash_under_write_back() {
    cache_kept(&["--policy", "write-back"], 1, 5);
}

#[test]
fn what_was_flushed_survives_a_crash_under_ordered() {
    cache_kept(&["--policy", "ordered"], 2, 5);
}

#[test]
fn what_was_flushed_survives_a_crash_under_journaled() {
    cache_kept(&["--policy", "journaled"], 3, 5);
}

/// > Under `-d 0` a write that was acknowledged is never lost while the cache survives.
#[test]
fn what_was_acknowledged_survives_a_crash_with_d_0() {
    cache_kept(&["--policy", "journaled", "-d", "0"], 4, 5);
}

/// > Under `ordered` the origin always holds all epochs up to one, and a part of the next.
#[test]
fn without_the_cache_the_origin_is_whole_epochs_under_ordered() {
    let checked = cache_lost(&["--policy", "ordered"], DELAY_MS, 5, 10, History::is_epochs);
    if let Some(checked) = checked {
        checked.expect("epochs are kept");
    }
}

#[test]
fn without_the_cache_the_origin_is_a_prefix_under_strict_order() {
    // One client that waits for each answer: a chain, so downward closed is a prefix.
    let arguments = ["--policy", "ordered", "--order", "strict"];
    let prefix = |history: &History, state: &State| history.is_prefix(state, 0);
    let checked = cache_lost(&arguments, DELAY_MS, 6, 5, prefix);
    if let Some(checked) = checked {
        checked.expect("the order is kept");
    }
}

/// > Under `journaled` the origin, after `destage block replay`, always is the volume as of one write.
#[test]
fn without_the_cache_the_origin_is_the_log_up_to_one_write_under_journaled() {
    let arguments = ["--policy", "journaled"];
    let prefix = |history: &History, state: &State| history.is_prefix(state, 0);
    let checked = cache_lost(&arguments, DELAY_MS, 7, 10, prefix);
    if let Some(checked) = checked {
        checked.expect("groups are atomic");
    }
}

#[test]
fn without_the_cache_the_origin_is_garbage_under_plain_write_back() {
    // So slow that even a busy client gets epochs ahead of it.
    let checked = cache_lost(&["--policy", "write-back"], 100, 8, 40, History::is_epochs);
    if let Some(checked) = checked {
        checked.expect_err("plain write-back kept an order: the checker proves nothing");
    }
}
