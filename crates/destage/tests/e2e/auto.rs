//! Settings that a server tries out by itself.

use crate::harness::server::{binary, signal};
use crate::harness::{
    Database, Held, Launch, PATIENCE, Reply, Scratch, Server, eventually, millis, shop,
};
use rustix::process::Signal;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Updates of two rows at a rate that the machine's noise does not change: who is late catches up.
struct Updates {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<i64>,
}

const EVERY: Duration = millis(3);

impl Updates {
    fn start(server: &Server) -> Self {
        let mut client = server.client();
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let thread = thread::spawn(move || {
            let (began, mut sent) = (Instant::now(), 0_u32);
            while !ended.load(Ordering::Relaxed) {
                let due = (began.elapsed().as_nanos() / EVERY.as_nanos()) as u32;
                let commands: Vec<String> = (sent..due.max(sent))
                    .map(|n| format!("HINCRBY customers:{} visits 1", n % 2 + 1))
                    .collect();
                if !commands.is_empty() {
                    assert!(!client.pipeline(&commands).iter().any(Reply::is_error));
                }
                sent = due.max(sent);
                thread::sleep(EVERY);
            }
            i64::from(sent)
        });
        Self { ends, thread }
    }

    /// How many there were.
    fn end(self) -> i64 {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("all were answered")
    }
}

const VISITS: &str = "SELECT sum(visits) FROM customers WHERE id IN (1, 2)";

/// Waits until a step is kept. Where the machine was too busy for a fair trial, all is tried anew.
fn keeps_a_step(server: &Server) {
    eventually("a step is kept", 2 * PATIENCE, || {
        let status = server.status();
        let auto = &status["auto"];
        let (kept, back) = (auto["kept_total"].as_u64(), auto["went_back_total"].as_u64());
        if kept == Some(0) && back >= Some(3) {
            server.post("policy", &["auto=off"]);
            server.post("policy", &["auto=writes"]);
        }
        kept > Some(0)
    });
}

#[test]
fn a_server_finds_a_longer_linger_says_why_and_yields_to_its_user() {
    let Some(database) = shop::postgres() else { return };
    let scratch = Scratch::new();
    let file = scratch.join("run").display().to_string();
    let flags = ["--auto", "writes", "--auto-period", "1s", "--linger", "4ms", "--record", &file];
    let server = Launch::before(&scratch, &database.url()).with(&flags).start();
    let before = database.number(VISITS);
    let updates = Updates::start(&server);
    keeps_a_step(&server);
    let status = server.status();
    let (auto, policy) = (&status["auto"], &status["policy"]);
    assert_eq!((&auto["goal"], &auto["user_linger_seconds"]), (&"writes".into(), &0.004.into()));
    assert!(policy["linger_seconds"].as_f64() > Some(0.004), "{status}");
    assert!(auto["last"].as_str().is_some_and(|text| text.contains("linger")), "{status}");
    assert_eq!(policy["staleness_seconds"], 30.0);
    let log = server.log();
    for part in ["auto: linger 4ms -> ", "is tried: the origin writes for each change", "is kept"] {
        assert!(log.contains(part), "{part} in {log}");
    }
    assert!(server.metric("destage_auto_kept_total") >= 1.0);
    assert!(server.metric("destage_auto_changes_total") >= 1.0);

    // By hand: it goes on from there.
    assert!(server.post("policy", &["linger=7ms"]).contains("auto writes"));
    eventually("the user's word is known", PATIENCE, || {
        server.status()["auto"]["user_linger_seconds"] == 0.007
    });
    // Switched off, it leaves what the user has set.
    keeps_a_step(&server);
    assert!(!server.post("policy", &["auto=off"]).contains("auto"));
    let status = server.status();
    assert_eq!((&status["policy"]["linger_seconds"], &status["auto"]), (&0.007.into(), &().into()));
    let refusal = server.post("policy", &["auto=fast", "linger=9ms"]);
    assert!(refusal.contains("use off, writes or latency"), "{refusal}");
    assert_eq!(server.status()["policy"]["linger_seconds"], 0.007);
    // What the user names stays, although it is what was found.
    server.post("policy", &["auto=writes"]);
    keeps_a_step(&server);
    let found = server.status()["policy"]["linger_seconds"].as_f64().expect("a number");
    assert_ne!(found, 0.007);
    server.post("policy", &[&format!("linger={}ms", (found * 1e3).round()), "auto=off"]);
    assert_eq!(server.status()["policy"]["linger_seconds"], found);

    let sent = updates.end();
    server.drain();
    assert_eq!(database.number(VISITS), before + sent);
    server.terminate(PATIENCE).says(0, &[]);
    // The changes are a part of the recording.
    let mut replay = Command::new(binary());
    replay.args(["sim", "replay", &file, "--output", "json"]);
    let output = replay.output().expect("the binary starts");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(report["same_effects"], true, "{report}");
}

/// The log's word for a step that was advised.
const ADVISED: &str = "is tried as advised: the origin writes for each change";

#[test]
fn a_server_tries_what_advice_on_its_own_recording_says_and_takes_it_back_if_it_is_worse() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let file = scratch.join("run").display().to_string();
    let launch = Launch::before(&scratch, &database.url());
    let launch = launch.with(&["--auto", "writes", "--auto-period", "1s", "--linger", "4ms"]);
    let flags = ["--auto-linger", "1ms..40ms", "--auto-advice", "2s", "--record", &file];
    let server = launch.with(&flags).start();
    // The recording begins with what it knows as in force, and there is no step from here: only advice leads anywhere.
    server.post("policy", &["linger=40ms"]);
    let before = database.number(VISITS);
    let updates = Updates::start(&server);
    eventually("what is advised is tried", 2 * PATIENCE, || {
        let log = server.log();
        log.contains("auto: linger 40ms -> 4ms") && log.contains(ADVISED)
    });
    eventually("it goes back", 2 * PATIENCE, || {
        let status = server.status();
        status["auto"]["went_back_total"].as_u64() >= Some(1)
            && status["policy"]["linger_seconds"] == 0.04
    });
    let (log, status) = (server.log(), server.status());
    assert!(log.contains("auto: advised is 'destage policy write-back"), "{log}");
    assert!(log.contains("linger 4ms -> 40ms goes back: "), "{log}");
    let auto = &status["auto"];
    assert!(auto["advice"].as_str().is_some_and(|words| words.contains("linger=4ms")), "{auto}");
    assert_eq!((&auto["kept_total"], &auto["user_linger_seconds"]), (&0.into(), &0.04.into()));
    let sent = updates.end();
    server.drain();
    assert_eq!(database.number(VISITS), before + sent);
    server.terminate(PATIENCE).says(0, &[]);
}

#[test]
fn a_server_whose_recording_is_gone_says_so_and_goes_on() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let file = scratch.join("run").display().to_string();
    let flags = ["--auto", "writes", "--auto-advice", "1s", "--record", &file];
    let server = Launch::before(&scratch, &database.url()).with(&flags).start();
    std::fs::remove_file(scratch.join("run.1")).expect("it was begun");
    let advice = || server.status()["auto"]["advice"].as_str().map(str::to_owned);
    eventually("it is told", PATIENCE, || {
        advice().is_some_and(|why| {
            why.starts_with("none: ") && why.contains("failed to open the trace")
        })
    });
    let log = server.log();
    assert!(log.contains("auto: there is no advice"), "{log}");
    assert!(!server.client().run("HINCRBY customers:1 visits 1").is_error());
    assert!(server.is_ready());
    server.terminate(PATIENCE).says(0, &[]);
}

/// A search that a server has started. It stands still, and would not end by itself.
struct Search(u32);

impl Search {
    /// The one of a server whose search takes a while, or of the next one that does.
    fn of(server: &Server) -> Self {
        let mut found = None;
        eventually("a search is under way", 2 * PATIENCE, || {
            let path = format!("/proc/{}/task", server.id());
            let threads = std::fs::read_dir(path).expect("it runs").flatten();
            let children = |thread: std::fs::DirEntry| {
                std::fs::read_to_string(thread.path().join("children")).unwrap_or_default()
            };
            let ids: String = threads.map(children).collect();
            let mut searches = ids.split_whitespace().map(|id| id.parse().expect("a number"));
            // It has done what it does at first.
            found = searches.find(|&id| hundredths(id) >= Some(10));
            found.is_some()
        });
        let id = found.expect("it was found");
        signal(id, Signal::STOP);
        Self(id)
    }

    fn has_ended(&self) -> bool {
        hundredths(self.0).is_none()
    }
}

/// The hundredths of a second that a processor has spent on a process; nothing once it has ended.
fn hundredths(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // Whoever takes over the children of others may leave them there.
    if fields[0] == "Z" { None } else { fields[11].parse().ok() }
}

impl Drop for Search {
    fn drop(&mut self) {
        if !self.has_ended() {
            signal(self.0, Signal::KILL);
        }
    }
}

/// A server with enough in its recording that a search takes a while.
fn with_a_search(scratch: &Scratch, database: &Database) -> (Server, Search) {
    let file = scratch.join("run").display().to_string();
    let flags = ["--auto", "writes", "--auto-advice", "1s", "--record", &file];
    let server = Launch::before(scratch, &database.url()).with(&flags).start();
    let mut client = server.client();
    let writes: Vec<_> =
        (0..100).map(|n| format!("HINCRBY customers:{} visits 1", n % 2 + 1)).collect();
    for _ in 0..200 {
        assert!(!client.pipeline(&writes).iter().any(Reply::is_error));
    }
    let search = Search::of(&server);
    (server, search)
}

#[test]
fn a_search_for_advice_ends_when_its_server_is_killed() {
    let scratch = Scratch::new();
    let (server, search) = with_a_search(&scratch, &shop::sqlite(&scratch));
    server.kill();
    eventually("the search ends", PATIENCE, || search.has_ended());
}

#[test]
fn a_search_for_advice_ends_as_soon_as_its_server_begins_to_end() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let (server, search) = with_a_search(&scratch, &database);
    // It cannot destage this, and goes on for now.
    let held = Held::begin(&database, "UPDATE customers SET visits = visits WHERE id = 1");
    assert!(!server.client().run("HINCRBY customers:1 visits 1").is_error());
    server.signal(Signal::TERM);
    eventually("the search ends", PATIENCE, || search.has_ended());
    assert!(server.status()["writes"]["dirty_groups"].as_u64() > Some(0));
    held.commit();
    server.ends(PATIENCE).says(0, &[]);
}

#[test]
fn unless_asked_for_nothing_is_tried() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let server = Launch::before(&scratch, &database.url()).start();
    assert_eq!(server.status()["auto"], serde_json::Value::Null);
    assert!(!server.get("/metrics").contains("destage_auto"));
    let launch = Launch::before(&scratch, &database.url());
    for (flags, part) in [
        (["--auto", "fast"], "off, writes or latency"),
        (["--auto-linger", "5ms"], "write MIN..MAX, such as 1ms..500ms"),
        (["--auto-linger", "50ms..5ms"], "write MIN..MAX"),
        (["--auto-batch", "0..10"], "'0' is not a number from 1 to 65536"),
    ] {
        launch.elsewhere(&scratch, "other").with(&flags).refused().says(2, &[part]);
    }
    let record = scratch.join("run").display().to_string();
    for (flags, part) in [
        (&["--auto-advice", "10m", "--auto", "writes"][..], "give --record FILE and --auto"),
        (&["--auto-advice", "10m", "--record", &record], "give --record FILE and --auto"),
        (&["--auto-advice", "10ms", "--auto", "writes", "--record", &record], "or 'none'"),
    ] {
        launch.elsewhere(&scratch, "other").with(flags).refused().says(2, &[part]);
    }
}
