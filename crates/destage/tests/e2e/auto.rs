//! Settings that a server tries out by itself.

use crate::harness::server::binary;
use crate::harness::{Launch, PATIENCE, Reply, Scratch, Server, eventually, millis, shop};
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
}
