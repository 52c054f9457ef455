//! How simulations end: in time, overloaded, interrupted, or not at all begun.

use super::{destage, generated, stdout, write};
use destage_testkit::needs::trace;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

#[test]
fn flags_that_count_with_devices_only_are_refused_without() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = generated(folder.path(), "mail-server", "100");
    let run = ["sim", "run", "--trace", &trace, "--flash", "8M"];
    for flags in [
        &["--warmup", "10"][..],
        &["--hosts", "2"],
        &["--threads", "4"],
        &["--seed", "3"],
        &["--start", "cold"],
        &["--when", "async"],
        &["--commit", "1s"],
        &["--staleness", "5s"],
        &["--at-limit", "block"],
        &["--architecture", "naive"],
        &["--ram-policy", "write-back"],
        &["--ram-when", "async"],
        &["--crash-at", "1s"],
        &["--check"],
    ] {
        let refused = destage(&[&run[..], flags].concat());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(flags[0]) && said.contains("--policy"), "{flags:?}: {said}");
        let with_devices = [&run[..], &["--policy", "write-back"], flags].concat();
        assert!(destage(&with_devices).status.success(), "{flags:?}");
    }
    let grid = format!("trace = '{trace}'\nflash = '8M'\nhosts = 2\n");
    let grid = write(folder.path(), "grid.toml", grid.as_bytes());
    let swept = destage(&["sim", "sweep", &grid]);
    assert!(String::from_utf8_lossy(&swept.stderr).contains("--hosts counts"), "{swept:?}");
}

/// Reads and writes of 4 KiB, so many of them in so much time, most of them of few blocks.
fn rush(folder: &Path, requests: u64, every_us: u64) -> String {
    let lines: String = (0..requests)
        .map(|n| {
            let op = if n % 2 == 0 { 'W' } else { 'R' };
            format!("{},{op},{},4096\n", n * every_us, n * 7_919 % 1_000_003 * 4_096)
        })
        .collect();
    write(folder, "rush.csv", format!("time_us,op,offset_bytes,size_bytes\n{lines}").as_bytes())
}

#[test]
fn a_load_above_what_a_device_can_do_is_reported_as_such_and_takes_time_in_proportion() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let run = |trace: &str| {
        let started = Instant::now();
        let flags = ["--flash", "8M", "--policy", "write-through"];
        let output = destage(&[&["sim", "run", "--trace", trace], &flags[..]].concat());
        (stdout(&output), started.elapsed())
    };
    // A link carries a block in 50 us.
    let (easy, _) = run(&rush(folder.path(), 20_000, 200));
    assert!(!easy.contains("overload"), "{easy}");
    let (text, short) = run(&rush(folder.path(), 100_000, 5));
    let overload = text.lines().find(|line| line.starts_with("overload")).expect("it is told");
    assert!(overload.contains("busiest: network") || overload.contains("busiest: filer"), "{text}");
    let (_, long) = run(&rush(folder.path(), 400_000, 5));
    // Four times the requests; twice that is for the machine.
    let bound = Duration::from_secs(1) + 8 * short;
    assert!(long < bound, "100,000 requests take {short:?}, 400,000 {long:?}");
    let advise = ["sim", "advise", "--trace", &rush(folder.path(), 100_000, 5)];
    let flags = ["--rpo", "5s", "--flash", "64M", "--crashes", "5", "--format", "json"];
    let advice = json(&destage(&[&advise[..], &flags].concat()));
    let ranking = advice["ranking"].as_array().expect("a list");
    let told =
        |ranked: &&serde_json::Value| ranked["misses"].to_string().contains("more comes than");
    assert!(ranking.iter().any(|ranked| told(&ranked)), "{advice}");
}

/// Starts a command, interrupts it once it has begun to work, and waits for its end.
fn interrupted(arguments: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_destage"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(child.try_wait().expect("it can be asked").is_none(), "it is still at work");
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().expect("kill is there");
    assert!(sent.success());
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().expect("it can be asked").is_none() {
        assert!(Instant::now() < deadline, "it ends soon after the signal");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("it has ended")
}

#[test]
fn an_interrupt_shows_what_there_is_by_then() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = rush(folder.path(), 3_000_000, 100);
    let flash = ["--trace", &trace, "--flash", "64M"];
    let run = [&["sim", "run"], &flash[..], &["--policy", "journaled", "--format", "json"]];
    let output = interrupted(&run.concat());
    assert_eq!(output.status.code(), Some(24), "{output:?}");
    let report = json(&output);
    let writes = report["writes"]["latency"]["count"].as_u64().expect("a number");
    assert!((1..1_500_000).contains(&writes), "some of the requests: {writes}");
    assert!(report["interrupted"].is_u64() && report["overload"].is_null(), "{report}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("interrupted: what is shown is what there was"), "{said}");
    // Rows that are done are kept, and shown.
    let grid = format!(
        "trace = '{trace}'\nflash = ['8M', '16M', '32M', '64M', '128M', '256M']\npolicy = 'journaled'\n"
    );
    let grid = write(folder.path(), "grid.toml", grid.as_bytes());
    let output = interrupted(&["sim", "sweep", &grid, "--threads", "1"]);
    assert_eq!(output.status.code(), Some(24), "{output:?}");
}

#[test]
fn what_is_dirty_when_it_leaves_is_counted_as_a_cache_that_writes_then_only() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    // Two places: 0 is written twice and leaves dirty once, 1 leaves clean, 2 is dirty at the end.
    let lines = "op,offset_blocks,size_blocks\nW,0,1\nW,0,1\nR,1,1\nR,3,1\nW,2,1\n";
    let trace_file = write(folder.path(), "small.csv", lines.as_bytes());
    let run = ["sim", "run", "--trace", &trace_file, "--flash", "8K", "--format", "json"];
    let row = &json(&destage(&run))[0];
    assert_eq!((&row["evicted_blocks"], &row["evicted_dirty_blocks"]), (&2.into(), &1.into()));
    assert_eq!(row["dirty_left_blocks"], 1);
    // What the classic write-on-eviction cache comes to on a trace, by a count of another program.
    let Some(trace) = trace("hplajw-1week.csv.zst") else { return };
    let trace = trace.to_str().expect("the path is text");
    let run = ["sim", "run", "--trace", trace, "--flash", "16M", "--format", "json"];
    assert_eq!(json(&destage(&run))[0]["evicted_dirty_blocks"], 2_114);
}
