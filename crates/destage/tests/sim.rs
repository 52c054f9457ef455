//! `destage sim` from the command line.

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
    assert_eq!((&row["format"], &row["replacement"]), (&"csv".into(), &"lru".into()));
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
    for (arguments, code, part) in [
        (vec!["--trace", &trace], 2, "no room for a single block"),
        (vec!["--trace", &trace, "--flash", "100"], 2, "less than one block"),
        (vec!["--trace", &trace, "--flash", "1M", "--replacement", "mru"], 2, "s3-fifo"),
        (vec!["--trace", &trace, "--flash", "1M", "--block", "3K"], 2, "power of two"),
        (vec!["--trace", &trace, "--flash", "1M", "--format", "xml"], 2, "oracle-general"),
        (vec!["--trace", "/nowhere", "--flash", "1M"], 17, "failed to open the trace /nowhere"),
        (
            vec!["--trace", &damaged, "--flash", "1M"],
            17,
            "line 4 (byte 58): 'X' is not an operation",
        ),
        (vec!["--trace", &nonsense, "--flash", "1M"], 17, "is not recognised"),
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
    let unknown = destage(&["sim", "figure", "figure-9"]);
    assert_eq!(unknown.status.code(), Some(2));
}
