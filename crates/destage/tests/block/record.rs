//! A live run recorded, and told to the core once more.

use crate::harness::{PATIENCE, Scratch, eventually};
use crate::history::stamped;
use crate::server::{Launch, destage, image, text};
use std::process::Output;

const MIB: u64 = 1 << 20;

fn launch(scratch: &Scratch) -> Launch {
    let image = image(scratch, 8 * MIB);
    let file = scratch.join("run").display().to_string();
    Launch::before(scratch, &format!("file:{}", image.display())).with(&["--record", &file])
}

/// Reads, writes, flushes and trims from several connections.
fn load(server: &crate::server::Server, seed: u64) {
    let clients: Vec<_> = (0..3).map(|_| server.client()).collect();
    let mut block = vec![0; 4096];
    for step in 0..400_u64 {
        let client = &clients[(step % 3) as usize];
        let at = (step * 7_919 + seed) % 512 * 4096;
        match step % 8 {
            0..=3 => client.write(at, &stamped(step + 1), step % 32 == 0).expect("a write"),
            4..=6 => client.read(at, &mut block).expect("a read"),
            _ => client.flush().expect("a flush"),
        }
    }
}

fn replay(scratch: &Scratch, arguments: &[&str]) -> Output {
    let mut command = destage();
    command.args(["sim", "replay"]).arg(scratch.join("run")).args(arguments);
    command.output().expect("the binary starts")
}

#[track_caller]
fn replayed(scratch: &Scratch, arguments: &[&str]) -> serde_json::Value {
    let output = replay(scratch, &[arguments, &["--output", "json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

#[test]
fn a_volumes_run_replays_with_the_same_effects_under_every_policy() {
    for policy in ["write-through", "write-back", "ordered", "journaled"] {
        let scratch = Scratch::new();
        let server = launch(&scratch).with(&["--policy", policy]).start();
        load(&server, 1);
        if policy == "write-back" {
            server.ask(&["policy", "ordered", "staleness=10s"]);
            load(&server, 3);
        }
        assert_eq!(server.stop(), 0);
        let report = replayed(&scratch, &[]);
        assert_eq!(report["same_effects"], true);
        let parts = report["parts"].as_array().expect("parts");
        assert_eq!((parts.len(), &parts[0]["subject"]), (1, &"block".into()), "{report}");
        let inputs = parts[0]["inputs"].as_u64().expect("a number");
        assert!(inputs > 800 && parts[0]["broken_off_at"].is_null(), "{report}");
    }
}

#[test]
fn a_killed_servers_recording_replays_as_far_as_it_goes() {
    let scratch = Scratch::new();
    // Of one image: a second one would be someone else's change, and is refused.
    let launch = launch(&scratch);
    let server = launch.start();
    let part = scratch.join("run.1");
    let len = || part.metadata().map_or(0, |metadata| metadata.len());
    server.client().write(0, &stamped(1), false).expect("a write");
    eventually("the state is recorded", PATIENCE, || len() > 0);
    let state = len();
    load(&server, 1);
    eventually("the recording is written without anyone's help", PATIENCE, || {
        len() > state + 5_000
    });
    server.kill();
    let report = replayed(&scratch, &[]);
    assert!(report["parts"][0]["broken_off_at"].is_u64(), "{report}");
    // The next run begins a part of its own.
    let server = launch.start();
    load(&server, 5);
    assert_eq!(server.stop(), 0);
    let report = replayed(&scratch, &[]);
    assert_eq!(report["parts"].as_array().map(Vec::len), Some(2), "{report}");
}

#[test]
fn another_policy_is_tried_on_what_was_recorded() {
    let scratch = Scratch::new();
    let server = launch(&scratch).with(&["--policy", "write-back", "--linger", "0"]).start();
    load(&server, 1);
    load(&server, 1);
    assert_eq!(server.stop(), 0);
    let report = replayed(&scratch, &["--policy", "journaled", "--when", "pressure"]);
    let number = |run: &str, field: &str| {
        let tally =
            if run == "recorded" { &report[run] } else { &report["what_if"]["outcome"]["tally"] };
        tally[field].as_u64().expect("a number")
    };
    assert_eq!(number("recorded", "writes"), number("what if", "writes"));
    assert!(number("what if", "origin_writes") < number("recorded", "origin_writes"), "{report}");
    let table = replay(&scratch, &["-D", "1m", "--when", "periodic:2s"]);
    let table = text(&table.stdout);
    assert!(
        table.contains("what if: write-back, periodic:2s") && table.contains("modelled"),
        "{table}"
    );
    let wrong = replay(&scratch, &["-D", "100ms", "-d", "1s"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
}

/// The first byte of the end of a batch in a recording.
const DESTAGED: u8 = 14;

/// A frame of a recording, its sum included.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("it is short");
    let head = [&[kind][..], &len.to_le_bytes()].concat();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&head), payload);
    [&head[..], &sum.to_le_bytes(), payload].concat()
}

#[test]
fn what_is_no_recording_or_a_damaged_one_is_refused() {
    let scratch = Scratch::new();
    let missing = replay(&scratch, &[]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("there is no recording"), "{}", text(&missing.stderr));
    std::fs::write(scratch.join("run"), "something else").expect("a file");
    let other = replay(&scratch, &[]);
    assert_eq!(other.status.code(), Some(17), "{}", text(&other.stderr));
    std::fs::remove_file(scratch.join("run")).expect("it goes");
    let server = launch(&scratch).start();
    load(&server, 1);
    assert_eq!(server.stop(), 0);
    let part = scratch.join("run.1");
    let whole = std::fs::read(&part).expect("it can be read");
    let mut bad = whole.clone();
    bad[whole.len() / 2] ^= 1;
    std::fs::write(&part, bad).expect("it can be written");
    let damaged = replay(&scratch, &[]);
    assert_eq!(damaged.status.code(), Some(17), "{}", text(&damaged.stderr));
    assert!(text(&damaged.stderr).contains("byte "), "{}", text(&damaged.stderr));
    // The sums are right again, but what it tells cannot have happened: no batch was under way when this one ended.
    let now = u64::MAX.to_le_bytes();
    let forged = frame(3, &[&now[..], &[DESTAGED, 0, 1], &[0; 8]].concat());
    let end = frame(4, &[]);
    let events = whole.strip_suffix(&end[..]).expect("it ends in order");
    std::fs::write(&part, [events, &forged, &end].concat()).expect("it can be written");
    let changed = replay(&scratch, &[]);
    let said = text(&changed.stderr);
    assert_eq!(changed.status.code(), Some(17), "{said}");
    let place = format!("run.1: byte {}: the recording was changed", events.len() + 9 + 8);
    assert!(said.contains(&place) && !said.contains("bug"), "{said}");
    // The next name cannot be made in a folder that does not exist.
    let (code, said) =
        Launch::before(&scratch, &format!("file:{}", scratch.join("disk.img").display()))
            .with(&["--record", "/nonexistent/run"])
            .refused();
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("cannot make the recording /nonexistent/run"), "{said}");
}
