//! A live run recorded, and told to the core once more.

use crate::harness::{PATIENCE, Scratch, eventually};
use crate::history::stamped;
use crate::server::{Launch, destage, image, text};
use destage_runtime::units::Bytes;
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

/// Runs `destage sim` on the recording.
#[track_caller]
fn sim(scratch: &Scratch, command: &str, arguments: &[&str]) -> String {
    let mut run = destage();
    run.args(["sim", command, "--trace"]).arg(scratch.join("run")).args(arguments);
    let output = run.output().expect("the binary starts");
    assert!(output.status.success(), "{command}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The limits of clean bytes and of a batch out of what is in force, and all that is before, between and after them.
fn split_off(in_force: &str) -> ([u64; 2], String) {
    let number = |before: &str, after: &str| {
        let (_, rest) = in_force.split_once(before).unwrap_or_else(|| panic!("{in_force}"));
        let (size, _) = rest.split_once(after).unwrap_or_else(|| panic!("{in_force}"));
        (size.to_owned(), size.parse::<Bytes>().unwrap_or_else(|error| panic!("{size}: {error}")))
    };
    let (clean, clean_bytes) = number("cache limit ", ",");
    let (batch, batch_bytes) = number("groups and ", ",");
    let rest = in_force.replacen(&clean, "CLEAN", 1).replacen(&batch, "BATCH", 1);
    ([clean_bytes.get(), batch_bytes.get()], rest)
}

#[test]
fn a_server_a_replay_and_a_run_have_the_same_in_force() {
    for size in ["128M", "200M", "1G"] {
        let scratch = Scratch::new();
        let server = launch(&scratch).with(&["--cache-size", size]).start();
        load(&server, 1);
        assert_eq!(server.stop(), 0);
        let served = text(&replay(&scratch, &[]).stdout);
        let served = served.lines().next().and_then(|line| line.strip_prefix("policy: "));
        let (served, rest) = split_off(served.expect("its policy comes first"));
        let run = sim(&scratch, "run", &["--flash", size, "--policy", "journaled"]);
        let run = run.lines().next().and_then(|line| line.strip_prefix("flash"));
        let run = run.and_then(|line| line.split_once("; replacement")).expect("its flash").0;
        let (run, of_run) = split_off(run.trim());
        assert_eq!(of_run, rest, "{size}");
        // But for superblocks and the like, for which a cache has less than a hundredth.
        for (ours, theirs) in run.into_iter().zip(served) {
            assert!(ours.abs_diff(theirs) <= theirs / 100, "{size}: {ours}, served {theirs}");
        }
    }
}

#[test]
fn a_recording_is_a_trace_like_any_other_up_to_advice_that_a_server_takes() {
    let scratch = Scratch::new();
    let server = launch(&scratch).start();
    load(&server, 1);
    // All blocks once, so that the recording knows where each of them is.
    let client = server.client();
    let mut block = vec![0; 4096];
    (512..1024_u64).for_each(|at| client.read(at * 4096, &mut block).expect("a read"));
    drop(client);
    assert_eq!(server.stop(), 0);
    let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
    let contents = json(sim(&scratch, "inspect", &["--output", "json"]));
    assert_eq!(
        (&contents["format"], &contents["writes"]["requests"]),
        (&"recording".into(), &200.into())
    );
    assert_eq!(contents["reads"]["requests"], 150 + 512, "{contents}");
    // 50 flushes, 13 writes that wait for the log, and what the server asks for at its end.
    let flushes = contents["flushes"].as_u64().expect("a number");
    assert!((63..=64).contains(&flushes), "{contents}");
    assert_eq!(contents["distinct_blocks"], 512 + 350, "{contents}");
    // Blocks that were fetched lie where they lie: what was read in order is in order.
    let csv = sim(&scratch, "convert", &["--op", "read", "--device", "0"]);
    let last: Vec<&str> = csv.lines().rev().take(512).collect();
    let offset = |line: &str| line.split(',').nth(3).and_then(|text| text.parse::<u64>().ok());
    let offsets: Vec<_> = last.iter().rev().filter_map(|line| offset(line)).collect();
    assert_eq!(offsets, (512..1024).map(|at| at * 4096).collect::<Vec<_>>());
    // Its conversion is the same trace.
    let whole = sim(&scratch, "convert", &[]);
    std::fs::write(scratch.join("run.csv"), whole).expect("a file");
    let converted = json({
        let mut run = destage();
        run.args(["sim", "inspect", "--output", "json", "--trace"]).arg(scratch.join("run.csv"));
        text(&run.output().expect("the binary starts").stdout)
    });
    for part in ["reads", "writes", "flushes", "distinct_blocks"] {
        assert_eq!(contents[part], converted[part], "{part}");
    }
    let curve = sim(&scratch, "curve", &["--replacement", "lru,s3-fifo", "--output", "csv"]);
    assert!(curve.lines().count() > 10, "{curve}");
    let run = json(sim(
        &scratch,
        "run",
        &["--flash", "64M", "--policy", "journaled", "--output", "json"],
    ));
    assert_eq!(run["writes"]["latency"]["count"], 200, "{run}");
    let advice = ["--rpo", "5s", "--flash", "64M", "--crashes", "5", "--output", "json"];
    let advice = json(sim(&scratch, "advise", &advice));
    assert_eq!(advice["devices"], "as the recording measured them");
    let online = advice["online"].as_str().expect("a command line").to_owned();
    let words: Vec<&str> = online.split(' ').skip(3).collect();
    assert!(!advice["choices"].as_array().expect("a list").is_empty(), "{advice}");
    // The recorded run itself says how sure each figure is.
    let sure = advice["sure"].as_array().expect("a list");
    let told: Vec<&str> = sure.iter().filter_map(|sure| sure["what"].as_str()).collect();
    let all =
        ["mean", "p99-read", "p99-write", "dirty-age", "behind", "origin-writes", "origin-reads"];
    assert_eq!(told, all, "{advice}");
    for sure in sure {
        let of = |name: &str| sure[name].as_f64().expect("a number");
        // Writes wait for nothing: a flush makes them durable.
        let is_write = sure["what"] == "p99-write";
        assert!(of("recorded") > 0.0 || is_write, "{sure}");
        assert!(of("low") <= of("predicted"), "{sure}");
        assert!(of("predicted") <= of("high"), "{sure}");
    }
    // Every block that was read was read at the origin once, by the recording as by the model.
    let fetched = sure.iter().find(|sure| sure["what"] == "origin-reads").expect("it was told");
    assert_eq!(fetched["recorded"], fetched["modelled"], "{advice}");
    // The advice is applied to a server that runs, which then says so.
    let other = Scratch::new();
    let server = launch(&other).start();
    let applied = server.ask(&[&["policy"], &words[..]].concat()).to_string();
    let policy =
        advice["ranking"][0]["policy"].as_str().expect("a word").replace("strict", "ordered");
    assert!(applied.contains(&format!("policy={policy}")), "{applied}");
    assert!(applied.contains("when="), "{applied}");
    assert_eq!(server.stop(), 0);
}

/// Requests of parts of blocks, at the very begin of a volume, at its end and across blocks; each stays in an extent of 1 MiB.
/// Blocks that are written are never fetched, and nothing is evicted.
const ASKED: &[(char, u64, u64)] = &[
    ('W', 0, 4_096),
    ('W', 3 * MIB, 65_536),
    ('R', 512, 512),
    ('R', 8 * MIB - 512, 512),
    ('W', 5 * MIB + 1_536, 1_024),
    ('R', 3 * MIB + 4_000, 10_000),
    ('D', 2 * MIB, 8_192),
    ('D', 6 * MIB, 4_096),
    ('R', 5 * MIB, 131_072),
    ('R', 5 * MIB + 131_072, 131_072),
];

fn asks(server: &crate::server::Server) {
    let client = server.client();
    for (number, &(op, offset, len)) in ASKED.iter().enumerate() {
        let mut bytes = vec![7; len as usize];
        match op {
            'R' => client.read(offset, &mut bytes).expect("a read"),
            'W' => client.write(offset, &bytes, false).expect("a write"),
            _ => client.zero(offset, len, number % 2 == 0, false).expect("zeros"),
        }
    }
}

/// What was asked for, as the recording's conversion tells it.
fn converted(scratch: &Scratch) -> Vec<(char, u64, u64)> {
    let csv = sim(scratch, "convert", &["--op", "read,write,discard"]);
    let request = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields[2], "0", "one device: {line}");
        let number = |at: usize| fields[at].parse().expect("a number");
        (fields[1].chars().next().expect("an operation"), number(3), number(4))
    };
    csv.lines().skip(1).map(request).collect()
}

#[test]
fn a_recording_holds_the_bytes_that_clients_asked_for() {
    let scratch = Scratch::new();
    let server = launch(&scratch).start();
    asks(&server);
    assert_eq!(server.stop(), 0);
    assert_eq!(converted(&scratch), ASKED);
    let inspected: serde_json::Value =
        serde_json::from_str(&sim(&scratch, "inspect", &["--output", "json"])).expect("JSON");
    assert_eq!(inspected["discards"]["requests"], 2, "{inspected}");
    let output = destage()
        .args(["sim", "inspect", "--trace"])
        .arg(scratch.join("run"))
        .output()
        .expect("the binary starts");
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(!said.contains("apart from all others"), "{said}");
}

#[test]
fn an_anonymous_recording_keeps_what_lies_together_and_no_address() {
    let scratch = Scratch::new();
    let flags = ["--record-anonymous"];
    let server = launch(&scratch).with(&flags).start();
    asks(&server);
    load(&server, 1);
    assert_eq!(server.stop(), 0);
    assert_eq!(replayed(&scratch, &[])["same_effects"], true);
    let found = converted(&scratch);
    let extents = |requests: &[(char, u64, u64)]| -> Vec<u64> {
        requests.iter().map(|(_, offset, _)| offset / MIB).collect()
    };
    let (asked, found) = (ASKED, &found[..ASKED.len()]);
    let inside = |requests: &[(char, u64, u64)]| -> Vec<_> {
        requests.iter().map(|&(op, offset, len)| (op, offset % MIB, len)).collect()
    };
    assert_eq!(inside(found), inside(asked));
    let (real, told) = (extents(asked), extents(found));
    for first in 0..asked.len() {
        for second in 0..first {
            let is_same = real[first] == real[second];
            assert_eq!(told[first] == told[second], is_same, "{real:?} {told:?}");
        }
    }
    // There are 2^36 extents: that a volume of eight is not where it was is no chance.
    assert!(told.iter().all(|&extent| extent >= 8), "{told:?}");
    // Another recording of the same has other places, and the flag alone is refused.
    let other = Scratch::new();
    let server = launch(&other).with(&flags).start();
    asks(&server);
    assert_eq!(server.stop(), 0);
    assert_ne!(extents(&converted(&other)), told);
    let lone = destage().args(["block", "serve", "--record-anonymous"]).output();
    assert_eq!(lone.expect("the binary starts").status.code(), Some(2));
}

#[test]
fn a_cache_that_evicts_replays_with_the_same_effects_from_an_anonymous_recording() {
    let scratch = Scratch::new();
    let image = image(&scratch, 128 * MIB);
    let file = scratch.join("run").display().to_string();
    let launch = Launch::before(&scratch, &format!("file:{}", image.display()));
    let server = launch.with(&["--record", &file, "--record-anonymous"]).start();
    let client = server.client();
    let mut bytes = vec![0; 65_536];
    // More than the cache holds, out of order, and again: what was evicted is remembered when it returns.
    for step in 0..4_096_u64 {
        client.read(step * 37 % 2_048 * 65_536, &mut bytes).expect("a read");
    }
    drop(client);
    assert_eq!(server.stop(), 0);
    assert_eq!(replayed(&scratch, &[])["same_effects"], true);
    let report = replayed(&scratch, &["--when", "pressure"]);
    assert!(report["recorded"]["evictions"].as_u64() > Some(10_000), "{report}");
    let inspected: serde_json::Value =
        serde_json::from_str(&sim(&scratch, "inspect", &["--output", "json"])).expect("JSON");
    assert_eq!(inspected["distinct_blocks"], 128 * MIB / 4_096, "{inspected}");
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
    let answered = &report["recorded"]["write_times"]["answered"];
    assert!(answered.as_u64() > Some(0), "{report}");
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
    // Who reads it as a trace is told as much.
    let mut traced = destage();
    traced.args(["sim", "inspect", "--trace"]).arg(scratch.join("run"));
    let traced = traced.output().expect("the binary starts");
    let said = text(&traced.stderr);
    assert_eq!(traced.status.code(), Some(17), "{said}");
    assert!(said.contains("the recording was changed") && !said.contains("bug"), "{said}");
    // The next name cannot be made in a folder that does not exist.
    let (code, said) =
        Launch::before(&scratch, &format!("file:{}", scratch.join("disk.img").display()))
            .with(&["--record", "/nonexistent/run"])
            .refused();
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("cannot make the recording /nonexistent/run"), "{said}");
}
