//! kill -9 at random moments under concurrent load: what was acknowledged is there at the first read, the origin holds a
//! state that really existed, and after a drain it equals the model, increments included.
//!
//! A killed process leaves its unsynced pages to the kernel, so these tests cannot tell whether the journal syncs before
//! it acknowledges, nor whether replies wait for it: simulated crashes in the journal's and the engine's own tests do. The
//! watermark is looked at once at the start, too: `origin_away` shows what its absence does while the server runs.

use crate::harness::rounds::hold;
use crate::harness::{Database, Launch, PATIENCE, Random, Scratch, eventually, millis};
use crate::load::{self, Load, Mix, Observed};
use observed::Allowed;
use std::thread;
use std::time::Duration;

pub(crate) use crate::load::observed;

/// What one round of crashes is about.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    /// The name that a `reproduce:` line gives.
    pub(crate) name: &'static str,
    /// Its database; `None` (after saying so) where that is missing.
    origin: fn(&Scratch) -> Option<Database>,
    arguments: &'static [&'static str],
    /// What a crash may lose.
    loss: Option<Duration>,
    load_ms: (u64, u64),
    /// What each client does nothing for after each reply: a load of seconds would else be checked for minutes.
    pause: Duration,
    mix: Mix,
    /// A settings file; one with ordering domains has the origin follow each of them apart.
    config: Option<&'static str>,
}

/// Nothing may be lost; the small file before everything else.
pub(crate) const SQLITE: Case = Case {
    name: "sqlite",
    origin: |scratch| Some(Database::sqlite(scratch)),
    arguments: &[],
    loss: None,
    load_ms: (20, 400),
    pause: Duration::ZERO,
    mix: Mix::Full,
    config: None,
};
/// The same before a database server.
pub(crate) const POSTGRES: Case =
    Case { name: "postgres", origin: |_| Database::postgres(), ..SQLITE };
/// And before another one.
pub(crate) const MARIADB: Case =
    Case { name: "mariadb", origin: |_| Database::mariadb(), ..SQLITE };
/// At most the last second may be lost.
pub(crate) const SQLITE_SECOND: Case = Case {
    name: "sqlite-1s",
    arguments: &["--commit", "1s"],
    loss: Some(Duration::from_secs(1)),
    load_ms: (900, 2_600),
    pause: millis(4),
    ..SQLITE
};
/// Both.
pub(crate) const POSTGRES_SECOND: Case =
    Case { name: "postgres-1s", origin: |_| Database::postgres(), ..SQLITE_SECOND };

/// Seven ordering domains: registers and events by their keys, counters and orphans together.
const DOMAINS: &str = "
[[domain]]
name = 'registers'
tables = ['registers']
column = 'id'
count = 3

[[domain]]
name = 'events'
tables = ['events']
column = 'client'
count = 3
";
/// Sessions span domains, everything else is in one of them.
pub(crate) const SQLITE_DOMAINS: Case =
    Case { name: "sqlite-domains", mix: Mix::Poisoned, config: Some(DOMAINS), ..SQLITE };
/// The same before a database server, which takes several batches at once.
pub(crate) const POSTGRES_DOMAINS: Case =
    Case { name: "postgres-domains", origin: |_| Database::postgres(), ..SQLITE_DOMAINS };
/// And before another one.
pub(crate) const MARIADB_DOMAINS: Case =
    Case { name: "mariadb-domains", origin: |_| Database::mariadb(), ..SQLITE_DOMAINS };

/// Some rows are rejected by the origin.
pub(crate) const SQLITE_PARKED: Case = Case { name: "sqlite-parked", mix: Mix::Poisoned, ..SQLITE };
/// The same before a database server.
pub(crate) const POSTGRES_PARKED: Case =
    Case { name: "postgres-parked", origin: |_| Database::postgres(), ..SQLITE_PARKED };

/// And before another one.
pub(crate) const MARIADB_PARKED: Case =
    Case { name: "mariadb-parked", origin: |_| Database::mariadb(), ..SQLITE_PARKED };

/// Settings that lead through other paths: evictions, small segments that are reclaimed at once, other times to destage, a
/// limit that is always reached. One is chosen by the seed.
const VARIANTS: [&[&str]; 8] = [
    &[],
    &[],
    &["--cache-size", "0"],
    &["--journal-size", "1M", "--retain", "0"],
    &["--when", "periodic:100ms"],
    &["--when", "interval:50ms,10ms"],
    &["--dirty-limit", "64K", "--at-limit", "write-through"],
    &["--policy", "write-through"],
];

/// Time that a loaded machine may take from the server's looking at its clock to its reading a command.
const SLACK: Duration = Duration::from_secs(2);

/// One seeded round: load, kill, perhaps kills while it starts again, checks. The number of acknowledged operations, or what
/// does not fit; `None` where the database is missing.
pub(crate) fn round(case: &Case, seed: u64) -> Option<Result<i64, String>> {
    let scratch = Scratch::new();
    let database = load::tables((case.origin)(&scratch)?);
    let mut random = Random::new(seed, 0);
    let linger = ["0", "1ms", "20ms", "200ms"];
    let batch = ["1", "7", "100", "1000"];
    // What the disk gains by, buffered writes with syncs, and durable writes one by one and beside each other.
    let journal_depth = *Random::new(seed, 1).pick(&["auto", "0", "1", "6"]);
    let variant = *random.pick(&VARIANTS);
    let launch = Launch::before(&scratch, &database.url())
        .with(case.arguments)
        .with(variant)
        .with(&["--linger", *random.pick(&linger), "--batch", *random.pick(&batch)])
        .with(&["--journal-depth", journal_depth]);
    let launch = configured(case, &scratch, launch);
    let server = launch.start();
    let (clients, depth) = (random.between(1, 12) as usize, *random.pick(&[1, 1, 4, 16]));
    let load = Load::paced(server.listen, seed, clients, depth, case.mix, case.pause);
    thread::sleep(millis(random.between(case.load_ms.0, case.load_ms.1)));
    server.kill();
    let acks = load.acks();
    let histories = load.finish();
    for history in &histories.clients {
        // Where acknowledgements wait for the origin, its rejections are answers.
        let refusal = history.refusal.as_ref().filter(|why| !why.starts_with("REJECTED"));
        assert_eq!(refusal, None, "seed {seed}");
    }

    // Where a commit takes long, nothing more is acknowledged once the oldest uncommitted write is as old as the bound.
    let newest = histories.acknowledged().map(|(begun, _)| begun).max();
    let allowed = match (case.loss, newest) {
        (None, _) => Allowed::Nothing,
        (Some(loss), Some(newest)) => Allowed::Since(newest - loss - SLACK),
        (Some(_), None) => Allowed::AnySuffix,
    };
    let checks = || {
        let origin = Observed::by_database(&database);
        let held = match case.config {
            None => origin.check(&histories, Allowed::AnySuffix),
            Some(_) => origin.check_by_domain(&histories),
        };
        held.map_err(|what| format!("at the origin after the crash: {what}"))?;
        // The start is work too, and may be cut short as often as it likes.
        for _ in 0..random.between(0, 3) {
            let mut starting = launch.spawn();
            thread::sleep(millis(random.between(1, 60)));
            starting.end(rustix::process::Signal::KILL, PATIENCE);
        }
        let server = launch.start();
        let first = Observed::by_client(&mut server.client(), &histories);
        first.check(&histories, allowed).map_err(|what| format!("at the first read: {what}"))?;
        server.drain();
        let parked = "SELECT count(*) FROM destage_parked";
        let (parked, expected) = (database.number(parked), histories.orphans());
        if case.loss.is_none() && !expected.contains(&parked) {
            return Err(format!("{parked} groups are parked, {expected:?} were to be rejected"));
        }
        let drained = Observed::by_database(&database);
        if drained == first {
            Ok(acks)
        } else {
            Err(format!("drained: {drained:?}\nfirst read: {first:?}"))
        }
    };
    let mut checks = checks;
    Some(checks().map_err(|what| format!("{}, seed {seed}: {what}", case.name)))
}

/// With the case's settings file, if it has one.
fn configured(case: &Case, scratch: &Scratch, launch: Launch) -> Launch {
    let Some(text) = case.config else { return launch };
    let path = scratch.join("destage.toml");
    std::fs::write(&path, text).expect("the test's folder can be written");
    launch.with(&["--config", path.to_str().expect("the test's folder has a plain name")])
}

#[track_caller]
fn holds(case: &Case, seeds: u64) {
    hold(case.name, seeds, |seed| round(case, seed));
}

#[test]
fn no_acknowledged_write_is_lost_or_doubled_by_kill_9_before_sqlite() {
    holds(&SQLITE, 50);
}

#[test]
fn no_acknowledged_write_is_lost_or_doubled_by_kill_9_before_postgres() {
    holds(&POSTGRES, 10);
}

#[test]
fn no_acknowledged_write_is_lost_or_doubled_by_kill_9_before_mariadb() {
    holds(&MARIADB, 8);
}

#[test]
fn rejected_rows_are_parked_once_and_take_nothing_along_through_kill_9_before_sqlite() {
    holds(&SQLITE_PARKED, 16);
}

#[test]
fn rejected_rows_are_parked_once_and_take_nothing_along_through_kill_9_before_postgres() {
    holds(&POSTGRES_PARKED, 6);
}

#[test]
fn rejected_rows_are_parked_once_and_take_nothing_along_through_kill_9_before_mariadb() {
    holds(&MARIADB_PARKED, 4);
}

#[test]
fn with_several_ordering_domains_kill_9_loses_and_doubles_nothing_before_sqlite() {
    holds(&SQLITE_DOMAINS, 8);
}

#[test]
fn with_several_ordering_domains_kill_9_loses_and_doubles_nothing_before_postgres() {
    holds(&POSTGRES_DOMAINS, 8);
}

#[test]
fn with_several_ordering_domains_kill_9_loses_and_doubles_nothing_before_mariadb() {
    holds(&MARIADB_DOMAINS, 5);
}

#[test]
fn with_d_of_a_second_kill_9_loses_at_most_a_suffix_of_a_second_before_sqlite() {
    holds(&SQLITE_SECOND, 8);
}

#[test]
fn with_d_of_a_second_kill_9_loses_at_most_a_suffix_of_a_second_before_postgres() {
    holds(&POSTGRES_SECOND, 4);
}

/// The checks see a loss: what d = 60s has not committed yet, held against the promise of d = 0.
#[test]
fn what_is_not_committed_yet_does_not_pass_for_no_loss() {
    let scratch = Scratch::new();
    let database = load::tables(Database::sqlite(&scratch));
    let launch = Launch::before(&scratch, &database.url());
    let launch = launch.with(&["--commit", "60s", "--staleness", "1h", "--when", "pressure"]);
    let server = launch.start();
    let load = Load::start(server.listen, 1, 4, 4, Mix::Full);
    eventually("writes are acknowledged", PATIENCE, || load.acks() > 50);
    server.kill();
    let histories = load.finish();
    let first = Observed::by_client(&mut launch.start().client(), &histories);
    first.check(&histories, Allowed::AnySuffix).expect("it is a suffix that is lost");
    let checked = first.check(&histories, Allowed::Nothing);
    checked.expect_err("nothing was lost: the check proves nothing");
}

/// Writes a value, holds it back from the origin, kills the server, and reads the value first thing after the restart.
fn first_read_after_crash(more: &[&str]) -> String {
    let scratch = Scratch::new();
    let database = crate::harness::shop::sqlite(&scratch);
    // Nothing is destaged by itself, neither before the crash nor after it.
    let held_back = ["--when", "pressure", "--staleness", "1h"];
    let launch = Launch::before(&scratch, &database.url()).with(&held_back);
    let server = launch.start();
    let mut client = server.client();
    client.run("DESTAGE PAUSE").ok();
    assert_eq!(client.run("HSET customers:1 name Lovelace").int(), 0);
    assert_eq!(client.run("HGET customers:1 name").text(), "Lovelace");
    server.kill();
    assert_eq!(database.value("SELECT name FROM customers WHERE id = 1"), "Ada");
    let server = launch.with(more).start();
    let read = server.client().run("HGET customers:1 name").text();
    assert_eq!(database.value("SELECT name FROM customers WHERE id = 1"), "Ada", "not held back");
    read
}

#[test]
fn the_first_read_after_a_crash_sees_what_the_origin_does_not_have_yet() {
    assert_eq!(first_read_after_crash(&[]), "Lovelace");
}

#[test]
fn without_the_overlay_the_first_read_after_a_crash_is_stale() {
    assert_eq!(first_read_after_crash(&["--unsafe-no-overlay"]), "Ada");
}
