//! Sizes are written alike everywhere: for servers of both kinds, in settings files, at run time, for the simulator.

use crate::harness::server::binary;
use crate::harness::{Launch, Scratch};
use std::process::Command;

const GIB: u64 = 1 << 30;

#[track_caller]
fn refused(arguments: &[&str], part: &str) {
    let output = Command::new(binary()).args(arguments).output().expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(said.contains(part), "{arguments:?}: {said}");
}

#[test]
fn a_server_takes_sizes_as_people_write_them() {
    let scratch = Scratch::new();
    for (number, (cache, dirty)) in
        [("1GB", "512MB"), ("1GiB", "512MiB"), ("1g", "512m"), ("1G", "0.5 GB")]
            .into_iter()
            .enumerate()
    {
        let launch = Launch::in_folder(&scratch, &format!("data-{number}"));
        let server = launch.with(&["--cache-size", cache, "--dirty-limit", dirty]).start();
        let policy = &server.status()["policy"];
        assert_eq!(policy["cache_bytes_max"], GIB, "{cache}");
        assert_eq!(policy["dirty_bytes_max"], GIB / 2, "{dirty}");
        assert!(!server.client().run("DESTAGE POLICY cache-size=2GB").is_error());
        assert_eq!(server.status()["policy"]["cache_bytes_max"], 2 * GIB);
    }
}

#[test]
fn a_share_is_of_the_memory_of_the_process_or_of_the_cache() {
    let scratch = Scratch::new();
    let file = scratch.join("destage.toml");
    std::fs::write(&file, "cache-size = '20%'\n").expect("the settings can be written");
    let config = file.display().to_string();
    let launch = Launch::example(&scratch).with(&["--config", &config, "--dirty-limit", "10%"]);
    let policy = launch.start().status()["policy"].clone();
    let [cache, dirty] = ["cache_bytes_max", "dirty_bytes_max"]
        .map(|name| policy[name].as_u64().expect("a number of bytes"));
    assert!(dirty > 1 << 20 && cache.abs_diff(2 * dirty) <= 2, "{cache} {dirty}");
    for flag in ["--journal-size", "--max-request", "--output-limit-total", "--record-size"] {
        refused(&["serve", flag, "70%"], "a share, not a size");
    }
    refused(&["serve", "--cache-size", "170%"], "up to 100");
    refused(&["block", "serve", "--cache-size", "70%"], "a share, not a size");
    refused(&["sim", "run", "--trace", "-", "--ram", "70%"], "a share, not a size");
    let changed = launch.start().client().run("DESTAGE POLICY dirty-limit=70%");
    assert!(changed.error().contains("a share, not a size"), "{changed:?}");
}

#[test]
fn the_simulator_reads_sizes_as_the_servers_do() {
    let scratch = Scratch::new();
    let trace = scratch.join("trace.csv");
    let generate = ["sim", "generate", "ycsb-a", "--requests", "200"];
    let made = Command::new(binary()).args(generate).output().expect("the binary starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::write(&trace, made.stdout).expect("the trace can be written");
    let trace = trace.display().to_string();
    let run = |ram: &str| {
        let arguments = ["sim", "run", "--trace", &trace, "--output", "csv", "--ram", ram];
        let output = Command::new(binary()).args(arguments).output().expect("the binary starts");
        assert!(output.status.success(), "{ram}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    assert_eq!(run("1MB"), run("1M"));
    assert_eq!(run("1 MiB"), run("1048576"));
}
