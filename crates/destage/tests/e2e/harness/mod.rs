//! What the end-to-end tests share: the real binary on ephemeral ports, a small Redis client, databases of their own.
//!
//! Every wait has a deadline, every process is ended with its test, and a missing tool skips the test with its name, or
//! fails it where `DESTAGE_TEST_REQUIRE` is set (as `cargo xtask test` does after installing everything).

pub(crate) mod certificates;
pub(crate) mod database;
pub(crate) mod ferretdb;
pub(crate) mod held;
pub(crate) mod mariadb;
pub(crate) mod own_server;
pub(crate) mod postgres;
pub(crate) mod proxy;
pub(crate) mod random;
pub(crate) mod redis;
pub(crate) mod resp;
pub(crate) mod rounds;
pub(crate) mod schema;
pub(crate) mod scratch;
pub(crate) mod server;
pub(crate) mod shop;
pub(crate) mod small_disk;

pub(crate) use certificates::Certificates;
pub(crate) use database::Database;
pub(crate) use destage_testkit::needs::{has, prepared, skip};
pub(crate) use held::Held;
pub(crate) use own_server::{Kind, OwnServer};
pub(crate) use proxy::Proxy;
pub(crate) use random::Random;
pub(crate) use redis::Redis;
pub(crate) use resp::{Client, Reply};
pub(crate) use scratch::Scratch;
pub(crate) use server::{Launch, Server};

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for what must happen; only a test that fails waits that long, however slow the machine is.
pub(crate) const PATIENCE: Duration = seconds(120);

/// Waits until `holds`, looking every few milliseconds.
///
/// # Panics
/// With `what` once `limit` has passed.
#[track_caller]
pub(crate) fn eventually(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program to its end and returns what it printed.
///
/// # Panics
/// If it fails; with its output.
#[track_caller]
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{printed}\n{errors}", output.status);
    printed
}

/// `n` seconds.
pub(crate) const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// `n` milliseconds.
pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
