//! Raw increments by a process that is killed in the midst: each that was acknowledged counts, and once.

use destage_data::store::{Declared, Options};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Tells the child what to do: the origin's address and the data folder, with a line feed between them.
const CHILD: &str = "DESTAGE_TEST_KILLED";
/// After so many acknowledgements it is killed.
const AFTER: u64 = 100;
const ROUNDS: u64 = 3;
const WORD: &str = "acknowledged";

/// Before an origin with a table `counters` whose row 1 has `n = 0`. `test` is the caller's full name, which its child runs
/// again; `count` reads `n`.
pub(crate) fn each_counts_once(test: &str, origin: &str, mut count: impl FnMut() -> u64) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut counted = 0;
    for round in 0..ROUNDS {
        let acknowledged = killed_child(test, origin, &data);
        assert!(acknowledged >= AFTER, "round {round}: {acknowledged}");
        // What it left in its journal is destaged by the next one.
        Options::new(origin, &data).open().unwrap().close().unwrap();
        let now = count();
        let made = now - counted;
        // One more may have been on its way when it was killed.
        assert!(
            made == acknowledged || made == acknowledged + 1,
            "round {round}: {made} of {acknowledged} increments count"
        );
        counted = now;
    }
}

/// In the child this does not return.
pub(crate) fn is_child() {
    let Ok(place) = std::env::var(CHILD) else { return };
    let (origin, data) = place.split_once('\n').expect("the parent names both");
    let store = Options::new(origin, data).open().unwrap();
    let row = [Declared::row(("counters", 1))];
    for number in 1.. {
        let sql = "UPDATE counters SET n = n + $1 WHERE id = $2";
        store.session(|s| s.execute(sql, &[1.into(), 1.into()], &row)).unwrap();
        // In a line of its own, whatever the harness has printed.
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{WORD} {number}").unwrap();
        out.flush().unwrap();
    }
}

fn killed_child(test: &str, origin: &str, data: &Path) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{origin}\n{}", data.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut acknowledged = 0;
    let mut is_killed = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let Some(number) = line.strip_prefix(WORD) else { continue };
        acknowledged = number.trim().parse().unwrap();
        if acknowledged >= AFTER && !is_killed {
            child.kill().unwrap();
            is_killed = true;
        }
    }
    child.wait().unwrap();
    assert!(is_killed, "the child ended by itself after {acknowledged}");
    acknowledged
}
