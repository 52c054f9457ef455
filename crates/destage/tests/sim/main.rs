//! `destage sim` from the command line.

mod converted;
mod endings;
mod told;

use destage_testkit::needs::trace;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const TRACE: &str = "time_us,op,offset_bytes,size_bytes\n0,W,0,8192\n10,R,0,4096\n20,R,4096,8192\n\
                     30,W,12288,100\n40,R,0,16384\n50,D,0,4096\n60,R,0,4096\n";

fn destage(arguments: &[&str]) -> Output {
    let program =
        std::env::var_os("DESTAGE_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_destage").into());
    Command::new(program).args(arguments).output().expect("the program starts")
}

fn stdout(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).expect("the result is text")
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("the folder can be written");
    path.to_str().expect("the path is text").to_owned()
}

#[test]
fn a_run_counts_requests_blocks_and_bytes() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = write(folder.path(), "small.csv", TRACE.as_bytes());
    let output = destage(&["sim", "run", "--trace", &trace, "--flash", "1M", "--output", "json"]);
    let rows: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("it is JSON");
    let row = &rows[0];
    assert_eq!((&row["format"], &row["replacement"]), (&"csv".into(), &"s3-fifo".into()));
    assert_eq!((&row["distinct_blocks"], &row["discarded_blocks"]), (&4.into(), &1.into()));
    // Reads: block 0; 1 and 2, of which 2 is new; 0 to 3; 0 again after it was discarded.
    for (name, count) in [
        ("requests", 4),
        ("request_hits", 2),
        ("blocks", 8),
        ("block_hits", 6),
        ("block_hits_in_ram", 0),
        ("bytes", 32_768),
        ("byte_hits", 24_576),
    ] {
        assert_eq!(row["reads"][name], count, "{name} in {row}");
    }
    assert_eq!((&row["writes"]["blocks"], &row["writes"]["bytes"]), (&3.into(), &8_292.into()));
    assert_eq!(row["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn every_combination_is_a_row() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = write(folder.path(), "small.csv", TRACE.as_bytes());
    let caches = ["--ram", "8K,16K", "--flash", "0,64K", "--replacement", "lru,arc,s3-fifo"];
    let arguments = [&["sim", "run", "--trace", &trace, "--output", "csv"], &caches[..]].concat();
    let text = stdout(&destage(&arguments));
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 13, "{text}");
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
    assert!(text.contains(",s3-fifo,lru,16384,65536,"), "{text}");
    // The same once more gives the same, byte by byte.
    assert_eq!(stdout(&destage(&arguments)), text);
    let table = stdout(&destage(&[
        "sim",
        "run",
        "--trace",
        &trace,
        "--ram",
        "8K",
        "--replacement",
        "belady",
    ]));
    assert!(table.contains("7 requests") || table.contains("6 requests"), "{table}");
    assert!(table.contains("belady") && table.contains("8.0 KiB"), "{table}");
}

#[test]
fn a_trace_may_come_by_a_pipe_and_compressed() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = write(folder.path(), "small.csv", TRACE.as_bytes());
    let direct = stdout(&destage(&["sim", "inspect", "--trace", &trace, "--output", "json"]));
    let mut child = Command::new(env!("CARGO_BIN_EXE_destage"))
        .args(["sim", "inspect", "--trace", "-", "--output", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let packed = zstd::encode_all(TRACE.as_bytes(), 3).expect("it can be packed");
    let mut input = child.stdin.take().expect("it is piped");
    input.write_all(&packed).expect("it is read");
    drop(input);
    let piped = stdout(&child.wait_with_output().expect("it ends"));
    assert_eq!(piped, direct.replace(&trace, "-"));
    let contents: serde_json::Value = serde_json::from_str(&direct).expect("it is JSON");
    assert_eq!(
        (&contents["reads"]["requests"], &contents["writes"]["requests"]),
        (&4.into(), &2.into())
    );
    assert_eq!(
        (&contents["distinct_blocks"], &contents["distinct_blocks_written"]),
        (&4.into(), &3.into())
    );
}

#[test]
fn what_cannot_be_done_says_why() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = write(folder.path(), "small.csv", TRACE.as_bytes());
    let damaged = write(folder.path(), "damaged.csv", TRACE.replace("20,R", "20,X").as_bytes());
    let nonsense = write(folder.path(), "nonsense", b"what is this?\n");
    let empty = write(folder.path(), "empty.csv", b"");
    let packed = zstd::encode_all(TRACE.as_bytes(), 3).expect("it can be packed");
    let cut = write(folder.path(), "cut.zst", &packed[..packed.len() - 4]);
    let folder_name = folder.path().to_str().expect("the path is text");
    for (arguments, code, part) in [
        (vec!["--trace", &trace], 2, "no room for a single block"),
        (vec!["--trace", &trace, "--flash", "100"], 2, "less than one block"),
        (vec!["--trace", &trace, "--flash", "1M", "--replacement", "mru"], 2, "s3-fifo"),
        (vec!["--trace", &trace, "--flash", "1M", "--block", "3K"], 2, "power of two"),
        (vec!["--trace", &trace, "--flash", "1M", "--trace-format", "xml"], 2, "oracle-general"),
        (vec!["--trace", "/nowhere", "--flash", "1M"], 17, "failed to open the trace /nowhere"),
        (
            vec!["--trace", &damaged, "--flash", "1M"],
            17,
            "line 4 (byte 58): 'X' is not an operation",
        ),
        (
            vec!["--trace", &nonsense, "--flash", "1M"],
            17,
            "is not recognised from its beginning, 'what is this?'",
        ),
        (vec!["--trace", &empty, "--flash", "1M"], 17, "empty.csv is empty"),
        (vec!["--trace", &empty, "--format", "csv", "--flash", "1M"], 17, "empty.csv is empty"),
        (vec!["--trace", folder_name, "--flash", "1M"], 17, "is a directory"),
        (vec!["--trace", &cut, "--flash", "1M"], 17, "cut.zst after 0 bytes: incomplete frame"),
        (vec!["--trace", &cut, "--flash", "1M"], 17, ": the file was cut short"),
        (vec!["--trace", "-", "--flash", "1M"], 17, "the trace (standard input) is empty"),
        (vec!["--trace", &trace, "--flash", "1M", "--format", "vscsi"], 17, "neither version 1"),
    ] {
        let output = destage(&[&["sim", "run"], &arguments[..]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
    let output = destage(&[
        "sim",
        "run",
        "--trace",
        &damaged,
        "--flash",
        "1M",
        "--skip-bad",
        "1",
        "--output",
        "json",
    ]);
    assert!(stdout(&output).contains("\"bad_records\": 1"));
    let header = write(
        folder.path(),
        "header.csv",
        TRACE.split_inclusive('\n').next().expect("one").as_bytes(),
    );
    let output = destage(&["sim", "inspect", "--trace", &header]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("there are no requests in it"), "{said}");
}

#[test]
fn a_generated_trace_is_the_same_for_its_seed_and_can_be_run() {
    let load = ["sim", "generate", "working-set", "--requests", "5000", "--working-set", "16M"];
    let text = stdout(&destage(&load));
    assert_eq!(stdout(&destage(&load)), text);
    assert_ne!(stdout(&destage(&[&load[..], &["--seed", "2"]].concat())), text);
    assert_eq!(text.lines().count(), 5_002, "a header, the parameters, the requests");
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = write(folder.path(), "generated.csv", text.as_bytes());
    let caches = ["--ram", "4M", "--flash", "16M,64M", "--output", "json"];
    let output = stdout(&destage(&[&["sim", "run", "--trace", &trace], &caches[..]].concat()));
    let rows: serde_json::Value = serde_json::from_str(&output).expect("it is JSON");
    let ratio = |row: usize| rows[row]["block_hit_ratio"].as_f64().expect("it is a number");
    assert!(0.1 < ratio(0) && ratio(0) < ratio(1), "{output}");
    assert_eq!(rows[0]["reads"]["requests"].as_u64().map(|reads| reads / 500), Some(7), "70 %");
    let wrong =
        destage(&["sim", "generate", "working-set", "--working-set", "1G", "--region", "2G"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn a_figure_is_reproduced_twice_alike_and_within_its_bounds() {
    let listed = stdout(&destage(&["sim", "figure"]));
    assert!(listed.contains("table-2-1") && listed.contains("figure-4-3"), "{listed}");
    let table = stdout(&destage(&["sim", "figure", "dirty-age", "--check"]));
    assert!(table.contains("AIPU-30") && table.contains("paper: 45"), "{table}");
    let drawn = stdout(&destage(&["sim", "figure", "figure-4-7"]));
    assert!(drawn.contains("bursts of at most") && drawn.contains("largest burst"), "{drawn}");
    let json = stdout(&destage(&["sim", "figure", "dirty-age", "--output", "json"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(json["numbers"].as_array().expect("a list").len(), 3);
    assert!(json["tables"].as_array().expect("a list").is_empty());
    let unknown = destage(&["sim", "figure", "figure-9"]);
    assert_eq!(unknown.status.code(), Some(2));
}

/// A generated load in a file.
fn generated(folder: &Path, load: &str, requests: &str) -> String {
    let text = stdout(&destage(&["sim", "generate", load, "--requests", requests]));
    write(folder, &format!("{load}.csv"), text.as_bytes())
}

#[test]
fn a_curve_is_what_runs_of_its_sizes_give() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = generated(folder.path(), "mail-server", "20000");
    let curve = ["sim", "curve", "--trace", &trace, "--replacement", "lru,sieve"];
    let sizes = ["--sizes", "1M,2M,16M", "--output", "json"];
    let found: serde_json::Value =
        serde_json::from_str(&stdout(&destage(&[&curve[..], &sizes].concat()))).expect("JSON");
    let caches = ["--flash", "1M,2M,16M", "--replacement", "lru,sieve", "--output", "json"];
    let run = stdout(&destage(&[&["sim", "run", "--trace", &trace], &caches[..]].concat()));
    let rows: serde_json::Value = serde_json::from_str(&run).expect("it is JSON");
    let mut compared = 0;
    for curve in found["curves"].as_array().expect("a list") {
        for point in curve["points"].as_array().expect("a list") {
            let bytes = point["blocks"].as_u64().expect("a number") * 4_096;
            let same = |row: &&serde_json::Value| {
                row["replacement"] == curve["replacement"] && row["flash_bytes"] == bytes
            };
            let row = rows.as_array().and_then(|rows| rows.iter().find(same)).expect("its run");
            let miss = 1.0 - row["block_hit_ratio"].as_f64().expect("a number");
            let found = point["block_miss_ratio"].as_f64().expect("a number");
            assert!((miss - found).abs() < 1e-9, "{row} {point}");
            compared += 1;
        }
    }
    assert_eq!(compared, 6, "{found}");
    assert_eq!(found["curves"][0]["method"], "stack-distances");
    let sampled = [&curve[..], &["--sample-rate", "0.5", "--output", "csv"]].concat();
    let text = stdout(&destage(&sampled));
    assert!(text.contains(",shards,0.5") && text.contains(",miniature,0.5"), "{text}");
    assert!(
        stdout(&destage(&[&curve[..], &["--sample-blocks", "500"]].concat())).contains("SHARDS")
    );
    let svg = stdout(&destage(&[&curve[..], &["--output", "svg"]].concat()));
    assert!(svg.starts_with("<svg") && svg.contains("sieve"), "{svg}");
    let page = stdout(&destage(&[&curve[..], &["--output", "html"]].concat()));
    assert!(page.contains("<svg") && page.contains("</html>") && !page.contains("<script"));
    for wrong in [
        &["--sample-rate", "0"][..],
        &["--sample-rate", "1.5"],
        &["--sample-blocks", "1"],
        &["--sizes", "1K"],
        &["--points", "1"],
    ] {
        assert_eq!(destage(&[&curve[..], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

/// The same but for the last digits of fractions.
fn is_alike(left: &serde_json::Value, right: &serde_json::Value) -> bool {
    use serde_json::Value;
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            let alike = |(name, value)| right.get(name).is_some_and(|other| is_alike(value, other));
            left.len() == right.len() && left.iter().all(alike)
        }
        (Value::Number(left), Value::Number(right)) if left.is_f64() => {
            left.as_f64().zip(right.as_f64()).is_some_and(|(a, b)| (a - b).abs() < 1e-12)
        }
        _ => left == right,
    }
}

#[test]
fn a_sweep_has_the_rows_of_single_runs_and_makes_none_twice() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = generated(folder.path(), "file-server", "5000");
    let text = "trace = 'file-server.csv'\nram = [0, '8M']\nflash = ['64M', '256M']\n\
                replacement = ['lru', 'arc', 's3-fifo']\nblock = '4K'\n";
    let grid = write(folder.path(), "grid.toml", text.as_bytes());
    let sweep = |more: &[&str]| destage(&[&["sim", "sweep", &grid], more].concat());
    let json = stdout(&sweep(&["--output", "json"]));
    let rows: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    let rows = rows.as_array().expect("a list");
    assert_eq!(rows.len(), 12);
    for row in rows {
        let flag = |name: &str| match &row["parameters"][name] {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let flags =
            ["ram", "flash", "replacement"].map(|name| [format!("--{name}"), flag(name)]).concat();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let run = [&["sim", "run", "--trace", &trace, "--output", "json"], &flags[..]].concat();
        let single: serde_json::Value =
            serde_json::from_str(&stdout(&destage(&run))).expect("it is JSON");
        assert!(is_alike(&row["result"], &single[0]), "{row} {single}");
    }
    let kept = std::fs::read(folder.path().join("grid.jsonl")).expect("the results are there");
    let again = sweep(&["--output", "json", "--threads", "1"]);
    assert_eq!(stdout(&again), json);
    let log = String::from_utf8_lossy(&again.stderr);
    assert!(log.contains("12 of 12 runs are in"), "{log}");
    assert_eq!(std::fs::read(folder.path().join("grid.jsonl")).expect("still there"), kept);
    let csv = stdout(&sweep(&["--output", "csv"]));
    assert_eq!(csv.lines().count(), 13);
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(columns.iter().all(|&count| count == columns[0] && count > 20), "{csv}");
    let table = stdout(&sweep(&[]));
    assert!(table.contains("block accesses that hit") && table.contains("s3-fifo"), "{table}");
    let page = stdout(&sweep(&["--output", "html"]));
    assert!(page.matches("<svg").count() >= 3 && !page.contains("<script"), "{page}");
    // Another trace under the same name is another sweep.
    write(folder.path(), "file-server.csv", TRACE.as_bytes());
    let other = sweep(&[]);
    assert!(!String::from_utf8_lossy(&other.stderr).contains("runs are in"));
    assert_ne!(stdout(&other), table);
}

#[test]
fn debug_and_release_builds_and_any_number_of_threads_give_the_same_results() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    generated(folder.path(), "mail-server", "3000");
    let text = "trace = 'mail-server.csv'\nflash = '8M'\nwhen = 'adaptive'\nstaleness = '5s'\n\
                policy = ['write-through', 'write-back', 'ordered', 'strict', 'journaled']\n\
                crash-at = 'random:20'\nlose-cache = true\n";
    let grid = write(folder.path(), "grid.toml", text.as_bytes());
    // Where the end-to-end tests are pointed at a release build, the other one is a debug build.
    let built = env!("CARGO_BIN_EXE_destage");
    let other = std::env::var("DESTAGE_BIN").unwrap_or_else(|_| built.to_owned());
    let mut outputs = Vec::new();
    for (number, (program, threads)) in
        [(built, "1"), (built, "2"), (other.as_str(), "1"), (other.as_str(), "2")]
            .iter()
            .enumerate()
    {
        let results = folder.path().join(format!("{number}.jsonl"));
        let output = Command::new(program)
            .args(["sim", "sweep", &grid, "--output", "json", "--threads", threads, "--results"])
            .arg(results)
            .output()
            .expect("the program starts");
        let rows: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("it is JSON");
        let rows = rows.as_array().expect("a list").clone();
        let hashes = rows.iter().filter(|row| row["result"]["hash"].is_string()).count();
        assert_eq!((rows.len(), hashes), (5, 5), "{rows:?}");
        outputs.push(rows);
    }
    assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]), "{outputs:?}");
}

#[test]
fn a_sweep_that_is_killed_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    generated(folder.path(), "file-server", "8000");
    let sizes: Vec<String> = (1..=40).map(|size| format!("'{}M'", 10 * size)).collect();
    let text =
        format!("trace = 'file-server.csv'\nflash = [{}]\nreplacement = 'arc'\n", sizes.join(","));
    let grid = write(folder.path(), "grid.toml", text.as_bytes());
    let results = folder.path().join("kept.jsonl");
    let name = results.to_str().expect("the path is text");
    let arguments =
        ["sim", "sweep", &grid, "--results", name, "--threads", "1", "--output", "json"];
    let lines = || std::fs::read(&results).map_or(0, |text| text.split(|&b| b == b'\n').count());
    let mut child = Command::new(env!("CARGO_BIN_EXE_destage"))
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("the program starts");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while lines() < 4 {
        assert!(std::time::Instant::now() < deadline, "no rows within a minute");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // A second sweep keeps off while the first runs, unless that is done already.
    let second = destage(&arguments);
    let is_done = child.try_wait().expect("it can be asked").is_some();
    assert!(is_done || second.status.code() == Some(2), "{second:?}");
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
    // What the kill left of the last row, if it left anything, is cut.
    let left = std::fs::read(&results).expect("the results are there");
    // A fast machine may have been done before: then as a kill at the half would have left it.
    let mut torn: Vec<u8> =
        left.split_inclusive(|&byte| byte == b'\n').take(20).flatten().copied().collect();
    let kept = torn.iter().filter(|&&byte| byte == b'\n').count();
    assert!(kept >= 3, "it was killed after some rows");
    torn.extend(b"{\"key\":\"0123");
    std::fs::write(&results, torn).expect("it can be written");
    let all_cores =
        ["sim", "sweep", &grid, "--results", name, "--threads", "0", "--output", "json"];
    let resumed = destage(&all_cores);
    let rows: serde_json::Value = serde_json::from_str(&stdout(&resumed)).expect("it is JSON");
    assert_eq!(rows.as_array().map(Vec::len), Some(40));
    assert!(rows.as_array().is_some_and(|rows| rows.iter().all(|row| row["result"].is_object())));
    let log = String::from_utf8_lossy(&resumed.stderr);
    assert!(log.contains(&format!("{kept} of 40 runs are in")), "{log}");
    std::fs::remove_file(&results).expect("it can be removed");
    let afresh = stdout(&destage(&all_cores));
    assert!(afresh == stdout(&resumed), "as if it had not been killed");
}

#[test]
fn grids_that_cannot_be_run_say_why() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    write(folder.path(), "small.csv", TRACE.as_bytes());
    for (text, code, part) in [
        ("flash = '1M'\n", 2, "'trace' is missing"),
        ("trace = ['a', 'b']\n", 2, "'trace' is the same for all runs"),
        ("trace = 'small.csv'\n", 2, "no room for a single block"),
        ("trace = 'small.csv'\nflash = ['1M', 'x']\n", 2, "flash = x"),
        ("trace = 'small.csv'\nflash = '1M,2M'\n", 2, "several values are a list"),
        ("trace = 'small.csv'\nflsh = '1M'\n", 2, "unknown key 'flsh'"),
        ("trace = 'small.csv'\nflash = '1M'\noutput = 'csv'\n", 2, "no parameter"),
        ("trace = 'gone.csv'\nflash = '1M'\n", 17, "gone.csv"),
        ("trace = \n", 2, "TOML"),
    ] {
        let grid = write(folder.path(), "grid.toml", text.as_bytes());
        let output = destage(&["sim", "sweep", &grid]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}: {error}");
        assert!(error.contains(part), "{text}: {error}");
    }
    let grid = write(folder.path(), "grid.toml", b"trace = 'small.csv'\nflash = '1M'\n");
    let foreign = write(folder.path(), "notes.txt", b"not ours\n");
    let output = destage(&["sim", "sweep", &grid, "--results", &foreign]);
    assert_eq!(output.status.code(), Some(2));
    let gone = destage(&["sim", "sweep", &grid, "--results", "/nowhere/results"]);
    assert_eq!(gone.status.code(), Some(22));
    // A disk that is full.
    let full = destage(&["sim", "sweep", &grid, "--results", "/dev/full"]);
    assert!(!full.status.success(), "{full:?}");
    assert_eq!(destage(&["sim", "sweep", "/nowhere"]).status.code(), Some(2));
}

#[test]
fn a_figure_on_a_trace_needs_it_and_says_what_is_wrong_with_it() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_destage"))
            .args(["sim", "figure", "hp-trace"])
            .args(arguments)
            .env_remove("DESTAGE_TRACES")
            .output();
        let output = output.expect("the program starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, error) = run(&[]);
    assert!(code == Some(2) && error.contains("--traces"), "{code:?} {error}");
    let folder = tempfile::tempdir().expect("a folder can be made");
    let folder_name = folder.path().to_str().expect("the path is text");
    let (code, error) = run(&["--traces", folder_name]);
    assert!(code == Some(17) && error.contains("hplajw-1week.csv.zst"), "{code:?} {error}");
    let damaged = zstd::encode_all(&b"header\n0,8,R,0,8192,5,3,1,0,0,0x1\n"[..], 0);
    let damaged = damaged.expect("it can be packed");
    write(folder.path(), "hplajw-1week.csv.zst", &damaged);
    let (code, error) = run(&["--traces", folder_name]);
    assert!(code == Some(17) && error.contains("line 2"), "{code:?} {error}");
    // With the trace, where it is at hand.
    let Some(trace) = trace("hplajw-1week.csv.zst") else { return };
    let traces = trace.parent().and_then(Path::to_str).expect("the path is text");
    let (code, error) = run(&["--traces", traces, "--check"]);
    assert_eq!(code, Some(0), "{error}");
}

#[test]
fn a_sweep_over_policies_tells_what_crashes_would_lose() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = generated(folder.path(), "mail-server", "6000");
    let devices = "[filer]\nread = '1ms'\nwrite = '5ms'\nservers = 2\n[flash]\nwrite = '20us'\n";
    let devices = write(folder.path(), "slow.toml", devices.as_bytes());
    let text = "trace = 'mail-server.csv'\nflash = '64M'\ncrash-at = 'random:100'\n\
                lose-cache = true\nwhen = 'periodic:500ms'\npolicy = ['journaled', 'ordered', 'write-back', 'write-through']\n";
    let text = format!("{text}devices = '{devices}'\n");
    let grid = write(folder.path(), "grid.toml", text.as_bytes());
    let json = stdout(&destage(&["sim", "sweep", &grid, "--output", "json"]));
    let rows: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    let losses = |policy: &str| {
        let rows = rows.as_array().expect("a list");
        let row = rows.iter().find(|row| row["parameters"]["policy"] == policy).expect("a row");
        assert_eq!(row["result"]["losses"]["crashes"], 100, "{row}");
        row["result"]["losses"].clone()
    };
    let violations = |policy: &str, kind: &str| losses(policy)[kind]["crashes"].as_u64();
    // The control first: the same crashes find writes out of order where nothing keeps them in order.
    assert!(violations("write-back", "order_violations") > Some(0), "{json}");
    assert!(violations("write-back", "epoch_violations") > Some(0), "{json}");
    assert_eq!(violations("ordered", "epoch_violations"), Some(0));
    assert_eq!(violations("journaled", "order_violations"), Some(0));
    assert_eq!(violations("journaled", "torn_writes"), Some(0));
    assert_eq!(losses("write-through")["lost_writes"]["max"], 0.0);
    let table = stdout(&destage(&["sim", "sweep", &grid]));
    assert!(table.contains("crashes out of order") && table.contains("most writes lost"));
    let run = ["sim", "run", "--trace", &trace, "--flash", "64M", "--policy", "write-back"];
    let crash = ["--crash-at", "random:100"];
    let text = stdout(&destage(&[&run[..], &crash, &["--lose-cache"]].concat()));
    assert!(text.contains("100 crashes that lose the caches too"), "{text}");
    assert!(text.contains("writes out of order across flushes: in "), "{text}");
    // As a server commits unless told, a crash of the host alone loses what was not flushed; with d = 0 it loses nothing.
    let unflushed = stdout(&destage(&[&run[..], &crash].concat()));
    assert!(unflushed.contains("that spare persistent flash") && !unflushed.contains("mean 0.0"));
    let survived = stdout(&destage(&[&run[..], &crash, &["--commit", "0"]].concat()));
    assert!(survived.contains("that spare persistent flash: writes lost: mean 0.0"), "{survived}");
    for wrong in ["random:0", "random:x", "soon"] {
        let output = destage(&[&run[..], &["--crash-at", wrong]].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn advice_names_a_policy_a_reason_and_a_command_line() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = generated(folder.path(), "mail-server", "4000");
    let advise = ["sim", "advise", "--trace", &trace, "--rpo", "5s", "--flash", "64M"];
    let asked = [&advise[..], &["--p99-read", "100ms", "--crashes", "50"]].concat();
    let text = stdout(&destage(&asked));
    assert!(
        text.contains("destage block serve --origin") && text.contains("--staleness 5s"),
        "{text}"
    );
    assert!(text.contains("write-through") && text.contains("of 21 candidates"), "{text}");
    let json = stdout(&destage(&[&asked[..], &["--output", "json"]].concat()));
    let advice: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    let ranking = advice["ranking"].as_array().expect("a list");
    // The advice is the best candidate itself: nothing else that can be set gains anything here.
    assert_eq!((ranking.len(), &ranking[0]["meets"]), (21, &true.into()));
    assert_ne!(ranking[0]["policy"], "write-back", "which promises nothing without the cache");
    let page = stdout(&destage(&[&asked[..], &["--output", "html"]].concat()));
    assert!(page.contains("To put it into service") && page.contains("<tr class=\"best\">"));
    assert!(
        page.contains("<svg") && page.contains("the origin is behind") && page.contains("strict")
    );
    let with_ram = stdout(&destage(&[&asked[..], &["--ram", "8M"]].concat()));
    assert!(with_ram.contains("64M of flash, 8M of RAM"), "{with_ram}");
    let impossible = [&advise[..], &["--p99-read", "1ns", "--p99-write", "1ns"]].concat();
    assert!(stdout(&destage(&impossible)).contains("None of the 21 candidates"));
    let lis = write(folder.path(), "no-times.lis", b"1 8 0 0\n9 8 0 1\n");
    let timeless =
        ["sim", "advise", "--trace", &lis, "--format", "lis", "--rpo", "5s", "--flash", "64M"];
    let output = destage(&timeless);
    assert_eq!(output.status.code(), Some(17), "{output:?}");
    assert_eq!(destage(&[&advise[..], &["--flash", "1M"]].concat()).status.code(), Some(2));
}

#[test]
fn advice_on_rows_takes_keys_and_names_the_server_of_rows() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let lines: String = (0..4_000_u64)
        .map(|n| {
            let operation = if n % 4 == 0 { "set" } else { "get" };
            format!("{},row:{},8,200,1,{operation},0\n", n / 100, n * 7_919 % 900)
        })
        .collect();
    let trace = write(folder.path(), "rows.csv", lines.as_bytes());
    let advise = ["sim", "advise", "--front", "data", "--trace", &trace, "--rpo", "5s"];
    let text = stdout(&destage(&[&advise[..], &["--ram", "4M"]].concat()));
    assert!(
        text.contains("destage serve --origin")
            && text.contains("--cache-size 2M --dirty-limit 2M"),
        "{text}"
    );
    assert!(text.contains("of 6 candidates") && text.contains("host and journal"), "{text}");
    let blocks = generated(folder.path(), "mail-server", "100");
    for (arguments, part) in [
        (vec!["--trace", &trace, "--front", "data"], "--ram"),
        (vec!["--trace", &trace], "--flash"),
        (vec!["--trace", &blocks, "--front", "data", "--ram", "4M"], "name objects by key"),
    ] {
        let all = [&["sim", "advise", "--rpo", "5s"], &arguments[..]].concat();
        let output = destage(&all);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}
