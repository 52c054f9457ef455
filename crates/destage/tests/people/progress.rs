//! What takes long shows how far it has come, and a start says what it found.
//!
//! Nothing is slow here: `DESTAGE_PROGRESS_AFTER=0s` has everything shown from its first step on.

use crate::harness::server::binary;
use crate::harness::{Launch, PATIENCE, Scratch, eventually, output};
use crate::volumes::Volumes;
use destage_block::nbd::client::{Client, ClientOptions};
use rustix::process::Signal;
use std::process::{Command, Output, Stdio};

const AT_ONCE: (&str, &str) = ("DESTAGE_PROGRESS_AFTER", "0s");

fn destage(words: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(words).env(AT_ONCE.0, AT_ONCE.1).env_remove("DESTAGE_PASSWORD");
    command.stdin(Stdio::null());
    command
}

/// What a command says beside its result.
#[track_caller]
fn said(words: &[&str]) -> String {
    let Output { status, stderr, .. } = destage(words).output().expect("the binary starts");
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert!(status.success(), "{words:?}: {status}: {said}");
    said
}

/// Each of these is shown with its share: `label: 3 of 8 (37 %)`.
#[track_caller]
fn shows(log: &str, labels: &[&str]) {
    for label in labels {
        let shown = log.split(&format!("{label}: ")).skip(1).any(|rest| {
            let share = rest.split(')').next().unwrap_or_default();
            share.contains(" of ") && share.ends_with(" %")
        });
        assert!(shown, "{label} in\n{log}");
    }
}

/// A drain that cannot go on shows how far it is; when it can, it ends.
#[track_caller]
fn drains(scratch: &Scratch, drain: &[&str], resume: &[&str]) {
    let path = scratch.join("drain.log");
    let log = std::fs::File::create(&path).expect("a file");
    let mut draining =
        destage(drain).stdout(Stdio::null()).stderr(log).spawn().expect("the binary starts");
    let text = || std::fs::read_to_string(&path).unwrap_or_default();
    eventually("the drain is shown", PATIENCE, || text().contains("draining: 0 of "));
    output(&mut destage(resume));
    let mut ended = None;
    eventually("the drain ends", PATIENCE, || {
        ended = draining.try_wait().expect("it is our child");
        ended.is_some()
    });
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}: {}", text());
    shows(&text(), &["draining"]);
}

#[test]
fn rows_show_drain_recovery_and_check_and_say_what_they_found() {
    let scratch = Scratch::new();
    let launch = Launch::example(&scratch).hearing(AT_ONCE.0, AT_ONCE.1);
    let server = launch.start();
    for part in [" starting", "version=", "found the origin", "origin=", "policy="] {
        assert!(server.log().contains(part), "{part} in\n{}", server.log());
    }
    let admin = server.admin.to_string();
    let write = || {
        output(&mut destage(&["pause", "--admin", &admin]));
        for number in 0..20 {
            server.client().run(&format!("HINCRBY products:{} stock 1", number % 5 + 1));
        }
    };
    write();
    drains(&scratch, &["drain", "--admin", &admin], &["resume", "--admin", &admin]);
    write();
    server.kill();
    let data = launch.data().display().to_string();
    shows(&said(&["journal", "check", "--data", &data]), &["reading the journal"]);
    let server = launch.start();
    shows(&server.log(), &["reading the journal", "replaying the journal"]);
    assert!(server.log().contains("found undestaged writes in the journal"), "{}", server.log());
    assert!(server.terminate(PATIENCE).log.contains("destaging what is dirty"));
}

#[test]
fn volumes_show_drain_recovery_check_and_resize_and_say_what_they_found() {
    let scratch = Scratch::new();
    let volumes = Volumes::start(&scratch, &["database"]);
    for part in [" starting", "version=", "origin=", "made the cache", "policy="] {
        assert!(volumes.log().contains(part), "{part} in\n{}", volumes.log());
    }
    let write = |volumes: &Volumes, first: u64| {
        output(&mut destage(&["block", "pause", "--admin", &volumes.admin]));
        let options = ClientOptions { timeout: PATIENCE, ..ClientOptions::default() };
        let client = Client::connect(&volumes.uris[0].parse().expect("a URI"), &options);
        let client = client.expect("it connects");
        for block in first..first + 64 {
            client.write(block * 4096, &[block as u8; 4096], false).expect("it is written");
        }
    };
    write(&volumes, 0);
    // What `flush` answers is durable: the crash below does not take it away.
    let flushed = output(&mut destage(&["block", "flush", "--admin", &volumes.admin]));
    assert!(flushed.contains("committed"), "{flushed}");
    let admin = &volumes.admin;
    drains(&scratch, &["block", "drain", "--admin", admin], &["block", "resume", "--admin", admin]);
    // Others: what is written again is not compared.
    write(&volumes, 64);
    output(&mut destage(&["block", "flush", "--admin", admin]));
    volumes.kill();
    let path = |name: &str| scratch.join(name).display().to_string();
    let (cache, origin) = (path("database.cache"), path("database.img"));
    let checked = said(&["block", "check", "--cache", &cache, "--origin", &origin]);
    shows(&checked, &["checking the log"]);
    let mut volumes = Volumes::again(&scratch, 1, &[AT_ONCE]);
    let log = volumes.log();
    shows(&log, &["reading the log", "replaying the log"]);
    for part in ["comparing blocks with the origin", "found undestaged writes in the cache"] {
        assert!(log.contains(part), "{part} in\n{log}");
    }
    output(&mut destage(&["block", "drain", "--admin", &volumes.admin]));
    volumes.signal(Signal::TERM);
    eventually("it ends", PATIENCE, || !volumes.is_running());
    let resized = said(&["block", "resize", "--cache", &cache, "--cache-size", "96M"]);
    shows(&resized, &["moving clean blocks"]);
}

#[test]
fn simulations_show_how_far_they_are() {
    let scratch = Scratch::new();
    let trace = scratch.join("trace.csv").display().to_string();
    let generated = destage(&["sim", "generate", "working-set", "--requests", "20000"])
        .args(["--working-set", "16M"])
        .output()
        .expect("the binary starts");
    std::fs::write(&trace, &generated.stdout).expect("it can be written");
    shows(&String::from_utf8_lossy(&generated.stderr), &["generating requests"]);
    let grid = scratch.join("grid.toml").display().to_string();
    let text = "trace = 'trace.csv'\nflash = ['4M', '8M']\nreplacement = ['lru', 'arc']\n";
    std::fs::write(&grid, text).expect("it can be written");
    shows(&said(&["sim", "sweep", &grid]), &["running simulations"]);
    let curve = ["sim", "curve", "--trace", &trace, "--replacement", "lru,sieve"];
    shows(&said(&curve), &["simulating sizes"]);
    let advise = ["sim", "advise", "--trace", &trace, "--rpo", "5s", "--flash", "64M"];
    shows(&said(&advise), &["simulating (requests of all candidates)"]);
    shows(&said(&["sim", "run", "--trace", &trace, "--flash", "8M"]), &["(bytes)"]);
}
