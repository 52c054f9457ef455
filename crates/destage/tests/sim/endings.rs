//! How simulations end: in time, overloaded, interrupted, or not at all begun.

use super::converted::recorded;
use super::{destage, generated, json, stdout, write};
use destage_testkit::needs::trace;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

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
        let with_devices = [&run[..], &["--policy", "write-back", "--ram", "1M"], flags].concat();
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
    let slow =
        write(folder.path(), "slow.toml", b"[filer]\nread = '5ms'\nwrite = '5ms'\nservers = 1\n");
    let advise = ["sim", "advise", "--trace", &rush(folder.path(), 2_000, 100), "--devices", &slow];
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
    // What it says may be more than a pipe holds.
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let output =
        ended.recv_timeout(Duration::from_secs(20)).expect("it ends soon after the signal");
    output.expect("it has ended")
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

/// Who applies what is printed must not get half of a search for an advice.
#[test]
fn interrupted_advice_says_so_first_and_has_nothing_to_apply() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = rush(folder.path(), 20_000, 100);
    let advise = ["sim", "advise", "--trace", &trace, "--flash", "128M", "--rpo", "5s"];
    let output = interrupted(&advise);
    assert_eq!(output.status.code(), Some(24), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("interrupted: "), "{text}");
    assert!(!text.contains("online:") && !text.contains("to start:"), "{text}");
    let output = interrupted(&[&advise[..], &["--format", "json"]].concat());
    assert!(json(&output)["interrupted"]["candidates"].is_u64(), "{output:?}");
}

#[test]
fn interrupted_figures_show_those_that_are_done() {
    let output = interrupted(&["sim", "figure", "all"]);
    assert_eq!(output.status.code(), Some(24), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("table-2-1: ") && !text.contains("host-15: "), "{text}");
}

/// The search of a server comes after all other work, and goes first where memory is short.
#[test]
fn a_search_for_a_server_gives_way_and_is_for_the_server_that_started_it_alone() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = folder.path().join("trace").display().to_string();
    // Nobody writes into it: the search waits.
    assert!(Command::new("mkfifo").arg(&trace).status().expect("mkfifo is there").success());
    let advise = |parent: u32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_destage"));
        let flags = ["sim", "advise", "--trace", &trace, "--flash", "128M", "--rpo", "5s"];
        command.args(flags).arg(format!("--ends-with={parent}"));
        command
    };
    let mut search = advise(std::process::id()).spawn().expect("the program starts");
    let of = |file: &str| {
        let path = format!("/proc/{}/{file}", search.id());
        std::fs::read_to_string(path).expect("it runs")
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    // Behind the name: the state is the first field, the nice value the seventeenth.
    let nice = |stat: &str| stat.rsplit(") ").next()?.split(' ').nth(16).map(str::to_owned);
    while of("oom_score_adj").trim() != "1000" || nice(&of("stat")).as_deref() != Some("19") {
        assert!(Instant::now() < deadline, "{} {}", of("oom_score_adj"), of("stat"));
        std::thread::sleep(Duration::from_millis(10));
    }
    search.kill().expect("it can be killed");
    search.wait().expect("it ends");
    // The first process of all is not the one that started this.
    let refused = advise(1).output().expect("the program starts");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("process 1 does not wait for this one"), "{said}");
}

#[test]
fn an_interrupted_replay_shows_what_was_replayed_by_then() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let name = recorded(folder.path(), "block");
    let whole = std::fs::read(format!("{name}.1")).expect("its only part");
    let pipe = format!("{name}.2");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there");
    assert!(made.success());
    // Of two parts the second comes after the signal.
    let ended = |form: &str, is_interrupted: bool| {
        let child = Command::new(env!("CARGO_BIN_EXE_destage"))
            .args(["sim", "replay", &name, "--when", "pressure", "--format", form])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        // Who opens it to write waits for who reads.
        let mut writer = std::fs::File::options().write(true).open(&pipe).expect("it is read");
        if is_interrupted {
            let pid = child.id().to_string();
            assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
        }
        std::io::Write::write_all(&mut writer, &whole).expect("it is read to its end");
        drop(writer);
        child.wait_with_output().expect("it ends")
    };
    let output = ended("json", true);
    assert_eq!(output.status.code(), Some(24), "{output:?}");
    let report = json(&output);
    let [first, second] = [0, 1].map(|part| report["parts"][part]["inputs"].as_u64());
    assert!(first > Some(0) && second == Some(0), "{report}");
    assert!(report["parts"][1]["interrupted_at"].is_u64(), "{report}");
    assert!(report["parts"][0]["interrupted_at"].is_null(), "{report}");
    assert!(report["recorded"].is_null() && report["what_if"].is_null(), "{report}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("interrupted: what is shown is what there was"), "{said}");
    let table = ended("table", true);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("all as recorded; interrupted at byte "), "{table}");
    // The control: nobody interrupts it.
    let report = json(&ended("json", false));
    assert_eq!(report["parts"][1]["inputs"].as_u64(), first, "{report}");
    assert!(report["what_if"].is_object(), "{report}");
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
    let run = ["sim", "run", "--trace", trace, "--flash", "16M", "--replacement", "lru"];
    let run = [&run[..], &["--format", "json"]].concat();
    assert_eq!(json(&destage(&run))[0]["evicted_dirty_blocks"], 2_114);
}

#[test]
fn a_trace_is_converted_whole_or_in_part_and_comes_to_the_same() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = generated(folder.path(), "mail-server", "3000");
    let convert =
        |flags: &[&str]| destage(&[&["sim", "convert", "--trace", &trace], flags].concat());
    let hits = |trace: &str| {
        let run = ["sim", "run", "--trace", trace, "--flash", "2M", "--format", "json"];
        json(&destage(&run))[0]["reads"].clone()
    };
    let copy = write(folder.path(), "copy.csv", &convert(&[]).stdout);
    assert_eq!(hits(&copy), hits(&trace));
    let reads = stdout(&convert(&["--op", "read", "--from", "1s", "--until", "2s"]));
    let times =
        reads.lines().skip(1).filter_map(|line| line.split(',').next()?.parse::<u64>().ok());
    let times: Vec<u64> = times.collect();
    assert!(!times.is_empty() && times.iter().all(|&time| time < 1_000_000_000), "{times:?}");
    assert!(reads.lines().skip(1).all(|line| line.contains(",R,")), "{reads}");
    // Records of 24 bytes, one for each block that is read or written; each says when its block is next.
    let binary = convert(&["--to", "oracle-general"]).stdout;
    let inspected = json(&destage(&["sim", "inspect", "--trace", &trace, "--format", "json"]));
    let accesses = |kind: &str| inspected[kind]["block_accesses"].as_u64().expect("a number");
    assert_eq!(binary.len() as u64, 24 * (accesses("reads") + accesses("writes")));
    let record = |at: usize| {
        let bytes = &binary[24 * at..24 * at + 24];
        let object = u64::from_le_bytes(bytes[4..12].try_into().expect("eight bytes"));
        (object, i64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes")))
    };
    let (object, next) = record(0);
    assert!(next == -1 || record(next as usize - 1).0 == object);
    // The same with columns that are called otherwise.
    let text = stdout(&convert(&[])).replacen(
        "time_ns,op,device,offset_bytes,size_bytes",
        "When,What,Where,LBA,Len",
        1,
    );
    let foreign = write(folder.path(), "foreign.csv", text.as_bytes());
    let inspect =
        |flags: &[&str]| destage(&[&["sim", "inspect", "--trace", &foreign], flags].concat());
    assert_eq!(inspect(&[]).status.code(), Some(17), "the control: it is not recognised");
    let columns = "time_ns=When,op=2,device=Where,offset_bytes=LBA,size_bytes=Len,thread=7";
    let again = ["sim", "convert", "--trace", &foreign, "--trace-columns", columns];
    let again = write(folder.path(), "again.csv", &destage(&again).stdout);
    assert_eq!(hits(&again), hits(&trace));
    let missing = inspect(&["--trace-columns", "offset_bytes=Lba,size_bytes=Len"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no column 'Lba', but When, What"));
    assert_eq!(missing.status.code(), Some(17));
    let both = inspect(&["--trace-columns", columns, "--trace-format", "msr"]);
    assert_eq!(both.status.code(), Some(2));
    for wrong in [&["--from", "2s", "--until", "1s"][..], &["--op", "erase"], &["--to", "xml"]] {
        assert_eq!(convert(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
