//! The database stops under load: what is cached goes on until D, then clients see what was chosen; when the database is
//! back everything arrives, in order, once.

use crate::harness::{
    Database, Kind, Launch, OwnServer, PATIENCE, Proxy, Random, Reply, Scratch, Server, eventually,
    millis, seconds, shop,
};
use crate::load::{self, Histories, Load, Mix, Observed};
use std::io::ErrorKind;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

/// Time that a loaded machine may take between looking at its clock and taking a write.
const SLACK: Duration = seconds(2);
/// Clients under load, and how many operations each has under way.
const CLIENTS: usize = 4;
const DEPTH: usize = 2;

/// A server before a database of its own that may be stopped.
struct Setup {
    scratch: Scratch,
    origin: OwnServer,
    database: Database,
}

fn setup(kind: Kind) -> Option<Setup> {
    let origin = OwnServer::start(kind)?;
    let database = load::tables(origin.database());
    Some(Setup { scratch: Scratch::new(), origin, database })
}

impl Setup {
    fn launch(&self, staleness: Duration, at_limit: &str) -> Launch {
        let staleness = format!("{}s", staleness.as_secs());
        // Whoever waits does so until the database is back.
        let bounds = ["--staleness", &staleness, "--at-limit", at_limit, "--client-wait", "10m"];
        Launch::before(&self.scratch, &self.database.url()).with(&bounds)
    }
}

/// How the database goes away under load, and for how long.
pub(crate) struct Outage {
    seed: u64,
    kind: Kind,
    /// D.
    staleness: Duration,
    at_limit: &'static str,
    /// How long it is away, longer than D.
    lasts: Duration,
    goes: fn(&mut OwnServer),
    returns: fn(&mut OwnServer),
}

impl Outage {
    /// A short one, after which writes fail.
    const STOP: Self = Self {
        seed: 1,
        kind: Kind::Postgres,
        staleness: seconds(6),
        at_limit: "fail",
        lasts: seconds(9),
        goes: OwnServer::stop,
        returns: OwnServer::restart,
    };
    /// A whole minute with the default of D.
    const MINUTE: Self = Self { staleness: seconds(30), lasts: seconds(60), ..Self::STOP };

    /// One that the seed chooses.
    pub(crate) fn seeded(seed: u64) -> Self {
        let mut random = Random::new(seed, 0);
        let staleness = seconds(random.between(2, 10));
        let lasts = staleness + millis(random.between(2_000, 6_000));
        let at_limit = *random.pick(&["fail", "block"]);
        let (goes, returns) = match random.between(0, 2) {
            0 => (OwnServer::stop as fn(&mut OwnServer), OwnServer::restart as fn(&mut OwnServer)),
            _ => (OwnServer::freeze as fn(&mut OwnServer), OwnServer::thaw as fn(&mut OwnServer)),
        };
        let kind = *random.pick(&[Kind::Postgres, Kind::Mariadb]);
        Self { seed, kind, staleness, at_limit, lasts, goes, returns }
    }

    /// Takes the database away until D is passed, and brings it back; the number of writes acknowledged, or `None` where
    /// there is no server.
    ///
    /// # Panics
    /// If something is not as promised.
    pub(crate) fn run(self) -> Option<i64> {
        let mut setup = setup(self.kind)?;
        let server = setup.launch(self.staleness, self.at_limit).start();
        let (mix, pause) = (Mix::Cached, millis(2));
        let load = Load::paced(server.listen, self.seed, CLIENTS, DEPTH, mix, pause);
        eventually("the load runs", PATIENCE, || load.acks() > 200);

        let before = Instant::now();
        let lag = server.status()["rpo"]["total_loss_seconds"].as_f64().expect("a number");
        (self.goes)(&mut setup.origin);
        let gone = Instant::now();
        let mut exceeded = None;
        while gone.elapsed() < self.lasts || exceeded.is_none() {
            still_reads(&server);
            if exceeded.is_none() && server.status()["mode"] == "staleness-exceeded" {
                exceeded = Some(Instant::now());
            }
            assert!(gone.elapsed() < self.lasts + PATIENCE, "D is never exceeded");
            thread::sleep(millis(500));
        }
        // The oldest write that the database lacks was acknowledged after this.
        let oldest = before - Duration::from_secs_f64(lag);
        let within = exceeded.map_or(Duration::ZERO, |at| at.saturating_duration_since(oldest));
        assert!(within >= self.staleness, "writes went on for {within:?} only");
        assert_eq!(server.status()["mode"], "staleness-exceeded");
        self.is_felt(&server);

        let returned = Instant::now();
        (self.returns)(&mut setup.origin);
        let works = Instant::now();
        eventually("writes go on", PATIENCE, || load.last_ack() > works + millis(300));
        let histories = load.stop();
        self.check_acknowledged(&histories, gone..returned);
        // What was on its way when D passed is in the journal already: its answer waits under either choice.
        let refused = histories.clients.iter().any(|client| client.refusal.is_some());
        assert!(!refused || self.at_limit == "fail");
        let arrived = Observed::all_arrives(&server, &setup.database, &histories);
        arrived.expect("nothing is lost or doubled");
        Some(histories.acknowledged().count() as i64)
    }

    /// A write past D fails or waits, as chosen.
    fn is_felt(&self, server: &Server) {
        let mut client = server.client();
        if self.at_limit == "block" {
            client.patience(millis(500));
        }
        match (self.at_limit, client.try_call(&["HINCRBY", "counters:1", "n", "0"])) {
            ("fail", Ok(Reply::Error(message))) => {
                assert!(message.starts_with("STALE "), "{message}")
            }
            ("block", Err(error)) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            (at_limit, other) => panic!("--at-limit {at_limit}: {other:?}"),
        }
    }

    /// Writes were acknowledged without the database, and none past D. However long it took clients to note an answer: they had
    /// not even asked before D.
    fn check_acknowledged(&self, histories: &Histories, away: Range<Instant>) {
        let acks = histories.acknowledged().filter(|(_, at)| away.contains(at));
        let acks: Vec<_> = acks.collect();
        assert!(acks.len() > CLIENTS * DEPTH, "{} writes without the database", acks.len());
        // The first write that was sent without the database is undecided since it was acknowledged, at the latest.
        let sent = acks.iter().filter(|(begun, _)| *begun > away.start);
        let undecided = sent.map(|(_, at)| *at).min().expect("there are some");
        let past = undecided + self.staleness + SLACK;
        let late = acks.iter().filter(|(begun, _)| *begun > past).count();
        assert_eq!(late, 0, "sent after D and acknowledged");
    }
}

/// A cached row is read while the database is away: an answer at all shows that it is not asked.
#[track_caller]
fn still_reads(server: &Server) {
    assert!(server.client().run("HGET counters:0 n").int() > 0);
}

#[test]
fn with_the_database_stopped_writes_go_on_until_d_then_fail_and_all_arrives_once() {
    Outage::STOP.run();
}

#[test]
fn with_the_database_stopped_writes_go_on_until_d_then_wait_and_all_arrives_once() {
    Outage { seed: 2, at_limit: "block", ..Outage::STOP }.run();
}

#[test]
fn with_mariadb_stopped_writes_go_on_until_d_then_fail_and_all_arrives_once() {
    Outage { seed: 5, kind: Kind::Mariadb, ..Outage::STOP }.run();
}

#[test]
fn with_mariadb_frozen_writes_go_on_until_d_then_wait_and_all_arrives_once() {
    let (goes, returns) = (OwnServer::freeze, OwnServer::thaw);
    let (kind, at_limit) = (Kind::Mariadb, "block");
    Outage { seed: 6, kind, at_limit, goes, returns, ..Outage::STOP }.run();
}

#[test]
fn with_the_database_frozen_writes_go_on_until_d_then_wait_and_all_arrives_once() {
    let (goes, returns) = (OwnServer::freeze, OwnServer::thaw);
    Outage { seed: 3, at_limit: "block", goes, returns, ..Outage::STOP }.run();
}

#[test]
fn with_the_database_away_for_a_minute_writes_go_on_for_d_then_fail_or_wait_and_all_arrives_once() {
    // One minute for both.
    thread::scope(|scope| {
        scope.spawn(|| Outage { seed: 7, ..Outage::MINUTE }.run());
        scope.spawn(|| Outage { seed: 8, at_limit: "block", ..Outage::MINUTE }.run());
    });
}

#[test]
fn a_crash_during_an_outage_loses_nothing_and_d_counts_from_before_it() {
    let Some(mut setup) = setup(Kind::Postgres) else { return };
    let staleness = seconds(3);
    let launch = setup.launch(staleness, "fail");
    let server = launch.start();
    let load = Load::start(server.listen, 4, 3, 1, Mix::Full);
    eventually("the load runs", PATIENCE, || load.acks() > 100);
    setup.origin.stop();
    thread::sleep(millis(500));
    server.kill();
    let histories = load.finish();
    // Longer than D in all: what waits in the journal is too old for anything to be acknowledged before it is at the origin.
    thread::sleep(staleness);
    setup.origin.restart();
    let server = launch.start();
    let arrived = Observed::all_arrives(&server, &setup.database, &histories);
    arrived.expect("nothing is lost or doubled");
}

#[test]
fn a_locked_sqlite_file_is_waited_for() {
    let scratch = Scratch::new();
    let database = load::tables(Database::sqlite(&scratch));
    let origin = ["--origin", &database.url(), "--origin-timeout", "2s", "--no-auth"];
    let server = Launch::example(&scratch).with(&origin).with(&["--staleness", "10m"]).start();
    let load = Load::start(server.listen, 5, 3, 4, Mix::Full);
    eventually("the load runs", PATIENCE, || load.acks() > 100);
    let lock = database.connect();
    lock.execute_batch("BEGIN IMMEDIATE").expect("the file can be locked");
    let before = load.acks();
    // Longer than the server is ready to wait for the lock at a time, and more writes than are under way.
    let locked = Instant::now();
    eventually("the origin is tried in vain, writes do not wait for it", PATIENCE, || {
        locked.elapsed() > seconds(3)
            && load.acks() > before + 50
            && server.status()["origin"]["retries_total"].as_u64() > Some(0)
    });
    lock.execute_batch("ROLLBACK").expect("the lock goes");
    let unlocked = Instant::now();
    eventually("the load goes on", PATIENCE, || load.last_ack() > unlocked + millis(200));
    let histories = load.stop();
    let arrived = Observed::all_arrives(&server, &database, &histories);
    arrived.expect("nothing is lost or doubled");
}

/// Loses the answers to the commits of batches, again and again under load; what is wrong afterwards.
fn lost_answers(database: Option<Database>, more: &[&str]) -> Option<Result<(), String>> {
    let scratch = Scratch::new();
    let database = load::tables(database?);
    let (proxy, url) = Proxy::before(&database.url());
    let server = Launch::before(&scratch, &url).with(more).start();
    let load = Load::start(server.listen, 6, 4, 2, Mix::Cached);
    for _ in 0..10 {
        let before = load.acks();
        eventually("the load runs", PATIENCE, || load.acks() > before + 20);
        proxy.lose_next_commit();
        eventually("a batch is committed", PATIENCE, || proxy.has_lost());
        proxy.cut();
    }
    let histories = load.stop();
    Some(Observed::all_arrives(&server, &database, &histories))
}

#[test]
fn a_batch_whose_answer_is_lost_is_not_applied_twice() {
    for database in [Database::postgres(), Database::mariadb()] {
        if let Some(checked) = lost_answers(database, &[]) {
            checked.expect("nothing is lost or doubled");
        }
    }
}

#[test]
fn without_the_watermark_a_batch_whose_answer_is_lost_is_applied_twice() {
    // Which batches lose their answers is up to the load, and a batch that comes twice shows only where it counts: so a round
    // may pass.
    const ROUNDS_MAX: usize = 8;
    for database in [Database::postgres, Database::mariadb] {
        let rounds =
            (0..ROUNDS_MAX).map_while(|_| lost_answers(database(), &["--unsafe-no-watermark"]));
        let mut rounds = rounds.peekable();
        if rounds.peek().is_none() {
            continue;
        }
        let what = rounds.find_map(Result::err);
        let what = what.expect("lost answers did no harm: the test proves nothing");
        assert!(what.contains("drained"), "{what}");
    }
}

#[test]
fn reads_that_succeed_do_not_hide_that_writes_fail() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    database.execute("PRAGMA journal_mode = WAL");
    let origin = ["--origin", &database.url(), "--origin-timeout", "2s", "--no-auth"];
    let server = Launch::example(&scratch).with(&origin).with(&["--staleness", "10m"]).start();
    let mut client = server.client();
    assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 11);
    server.drain();
    // Readers pass a writer.
    let lock = database.connect();
    lock.execute_batch("BEGIN IMMEDIATE").expect("the file can be locked");
    assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 12);
    let failing = || server.status()["origin"]["failing_for_seconds"].as_f64();
    eventually("a batch fails", PATIENCE, || failing().is_some());
    assert_eq!(client.run("HGET customers:1 name").text(), "Ada");
    let before = failing().expect("a read says nothing about writes");
    eventually("it goes on failing", PATIENCE, || failing() > Some(before + 2.0));
    assert_eq!(client.run("HGET customers:2 name").text(), "Grace");
    assert!(failing() > Some(before));
    assert_eq!(server.status()["origin"]["down"], true);
    lock.execute_batch("ROLLBACK").expect("the lock goes");
    server.drain();
    eventually("it works again", PATIENCE, || failing().is_none());
}

#[test]
fn a_mariadb_that_turns_read_only_is_waited_for() {
    let Some(origin) = OwnServer::start(Kind::Mariadb) else { return };
    let database = shop::filled(origin.database());
    let url = database.url();
    let (_, place) = url.split_once('@').expect("the address names a user");
    let (_, name) = place.rsplit_once('/').expect("the address names a database");
    // As some have it, who want no statement without a key.
    database.execute("SET GLOBAL sql_safe_updates = 1");
    // One whom the setting concerns.
    for host in ["%", "localhost"] {
        let user = format!("app@'{host}'");
        database.execute(&format!(
            "CREATE USER {user} IDENTIFIED BY 'secret'; GRANT ALL ON {name}.* TO {user}"
        ));
    }
    let scratch = Scratch::new();
    let server = Launch::before(&scratch, &format!("mysql://app:secret@{place}")).start();
    let mut client = server.client();
    assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 11);
    server.drain();
    database.execute("SET GLOBAL read_only = 1");
    assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 12);
    eventually("it is tried in vain", PATIENCE, || {
        server.status()["origin"]["retries_total"].as_u64() > Some(1)
    });
    assert_eq!(client.run("HGET customers:1 name").text(), "Ada");
    assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 13);
    database.execute("SET GLOBAL read_only = 0");
    server.drain();
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 13);
    server.terminate(PATIENCE).says(0, &[]);
}

#[test]
fn a_table_that_cannot_be_read_is_no_failure_of_the_origin() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let server = Launch::before(&folder, &database.url()).start();
        database.execute("ALTER TABLE labels RENAME TO elsewhere");
        let mut client = server.client();
        let count = 20;
        for n in 0..count {
            let denied = client.run(&format!("HGETALL labels:{n}:bulk"));
            assert!(denied.is_error() && format!("{denied:?}").contains("DENIED"), "{denied:?}");
            assert_eq!(server.status()["origin"]["down"], false);
        }
        assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 11);
        server.drain();
        let log = server.log();
        // Once a minute, however long this takes.
        assert!((1..count).contains(&log.matches("the origin denies a read").count()), "{log}");
        assert!(!log.contains("the origin failed"), "{log}");
    }
}
