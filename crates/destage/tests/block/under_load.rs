//! What an operator does, and what befalls an origin, while clients write.

use crate::crash::ANSWERED_MIN;
use crate::disks::argument;
use crate::harness::{PATIENCE, Random, Scratch, eventually};
use crate::history::{BLOCK, BLOCKS, History, read_state, state_of};
use crate::server::{Launch, Server, SlowDisk, image, replay};
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Kills, unless `DESTAGE_KILLS` says how many.
const KILLS: u64 = 4;
/// Writes before the first change and until the kill.
const WRITES: u64 = 300;
/// Changes of the policy that a kill waits for.
const CHANGES: usize = 4;
/// What keeps an order at the origin.
const ORDERED: [&str; 4] = ["journaled", "ordered", "order=strict", "write-through"];

/// Changes the policy until told to stop; how often.
fn change_policies(server: &Server, random: &mut Random, ends: &AtomicBool, changes: &AtomicBool) {
    let mut made = 0;
    while !ends.load(Ordering::Relaxed) {
        let policy: &str = random.pick::<&str>(&ORDERED);
        server.ask(&["policy", policy]);
        made += 1;
        changes.store(made >= CHANGES, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(random.between(0, 150)));
    }
}

/// Kills a server whose policy is being changed under a client's writes. With the cache everything flushed is there,
/// whatever the policy of the next start is; without it the origin is whole epochs and a part of the next.
fn changed_and_killed(round: u64) -> Option<()> {
    let scratch = Scratch::new();
    let image = image(&scratch, BLOCKS * BLOCK as u64);
    let disk = SlowDisk::start(&scratch, &image, 2)?;
    let redo = scratch.join("redo");
    let launch = Launch::before(&scratch, &disk.uri).redo_at(redo.clone());
    let launch = launch.with(&["--linger", "0", "--batch-size", "256K", "-D", "1h"]);
    let mut random = Random::new(81, round);
    let server = launch.clone().with(&["--policy", "journaled"]).start();
    let client = server.client();
    let mut history = History::default();
    let (ends, changed) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut choices = Random::new(82, round);
    thread::scope(|scope| {
        let operator = scope.spawn(|| change_policies(&server, &mut choices, &ends, &changed));
        let rest = random.between(0, 100);
        history.write(&client, &mut random, |number| {
            (number > WRITES + rest && changed.load(Ordering::Relaxed)) || operator.is_finished()
        });
        ends.store(true, Ordering::Relaxed);
    });
    // Some of them are not at the origin for certain, whatever policy was the last.
    let policy: &str = random.pick::<&str>(&ORDERED[..2]);
    server.ask(&["policy", policy]);
    eventually("the policy is in force", PATIENCE, || {
        !server.ask(&["policy"]).contains("write-through")
    });
    let last = history.acknowledged + 40;
    history.write(&client, &mut random, |number| number > last);
    server.kill();
    let answered = history.acknowledged;
    assert!(answered >= ANSWERED_MIN, "{answered} writes were answered: that proves nothing");
    // With what its server was still waiting to write.
    drop(disk);

    let (lost, store) = (scratch.join("lost.img"), scratch.join("lost.redo"));
    fs::copy(&image, &lost).expect("a copy");
    fs::copy(&redo, &store).expect("a copy");
    replay(argument(&lost), &store);
    let state = fs::read(&lost).map(|bytes| state_of(&bytes)).expect("it can be read");
    let whole = state.and_then(|state| history.is_epochs(&state));
    whole.unwrap_or_else(|error| panic!("round {round}: without the cache: {error}"));

    let disk = SlowDisk::start(&scratch, &image, 0)?;
    let next = random.pick(&ORDERED[..]);
    let next = if *next == "order=strict" { "write-back" } else { *next };
    let server = launch.to(&disk.uri).with(&["--policy", next]).start();
    let kept = read_state(&server.client()).expect("no block is torn");
    let whole = history.is_prefix(&kept, history.flushed);
    whole.unwrap_or_else(|error| panic!("round {round}: with the cache, {next}: {error}"));
    assert_eq!(server.stop(), 0);
    drop(disk);
    assert_eq!(state_of(&fs::read(&image).expect("the image")), Ok(kept), "round {round}");
    Some(())
}

/// Policies change while clients write: after a kill each promise holds that all of them make.
#[test]
fn policies_that_change_under_load_keep_their_promises_after_a_kill() {
    let kills = std::env::var("DESTAGE_KILLS").ok();
    let kills = kills.map_or(KILLS, |text| text.parse().expect("DESTAGE_KILLS is a number"));
    for round in 0..kills {
        if changed_and_killed(round).is_none() {
            return;
        }
    }
}

#[test]
fn a_detach_under_load_leaves_nothing_behind_that_was_acknowledged() {
    let scratch = Scratch::new();
    let image = image(&scratch, BLOCKS * BLOCK as u64);
    let Some(disk) = SlowDisk::start(&scratch, &image, 2) else { return };
    let launch = Launch::before(&scratch, &disk.uri).redo_at(scratch.join("redo"));
    let mut server = launch.with(&["--linger", "0", "-D", "1h"]).start();
    let client = server.client();
    let mut history = History::default();
    let busy = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Until the server says that it shuts down.
            history.write(&client, &mut Random::new(83, 0), |number| {
                busy.store(number > WRITES, Ordering::Relaxed);
                false
            });
        });
        eventually("the client writes", PATIENCE, || busy.load(Ordering::Relaxed));
        server.ask(&["detach"]);
    });
    assert_eq!(server.wait(), 0);
    drop(disk);
    let state = state_of(&fs::read(&image).expect("the image")).expect("no block is torn");
    history.is_prefix(&state, history.acknowledged).expect("everything acknowledged is there");
}

fn set_len(image: &Path, bytes: u64) {
    File::options().write(true).open(image).and_then(|file| file.set_len(bytes)).expect("a size");
}

/// > A running server whose origin was cut writes nothing more to it until it is mended.
#[test]
fn an_origin_that_was_cut_gets_nothing_more_until_it_is_mended() {
    for policy in ["journaled", "ordered"] {
        let scratch = Scratch::new();
        let image = image(&scratch, BLOCKS * BLOCK as u64);
        let launch = Launch::before(&scratch, argument(&image)).with(&["--policy", policy]);
        let launch = launch.with(&["--linger", "0", "-D", "1h"]);
        let server = launch.start();
        let client = server.client();
        let mut history = History::default();
        history.write(&client, &mut Random::new(84, 0), |number| number > WRITES);
        server.ask(&["drain"]);
        server.ask(&["pause"]);
        let sound = fs::read(&image).expect("the image");
        set_len(&image, BLOCKS / 2 * BLOCK as u64);
        history.write(&client, &mut Random::new(84, 1), |number| number > WRITES + 50);
        history.flush(&client).expect("the log takes it");
        server.ask(&["resume"]);
        eventually("the cut is noticed", PATIENCE, || {
            server.volume("origin_errors_total").as_u64() > Some(0)
        });
        let cut = fs::read(&image).expect("the image");
        assert!(sound.starts_with(&cut), "{policy}: nothing was written to it");
        assert_eq!(cut.len() as u64, BLOCKS / 2 * BLOCK as u64, "{policy}: it did not grow again");
        server.kill();
        let (code, said) = launch.refused();
        assert_eq!(code, 14, "{policy}: {said}");
        let (code, said) = launch.clone().with(&["--adopt"]).refused();
        assert_eq!(code, 14, "{policy}: {said}");
        // From a backup of it.
        fs::write(&image, &sound).expect("it is mended");
        let server = launch.start();
        server.ask(&["drain"]);
        assert_eq!(server.stop(), 0);
        let state = state_of(&fs::read(&image).expect("the image")).expect("no block is torn");
        history.is_prefix(&state, history.flushed).expect("everything arrived");
    }
}
