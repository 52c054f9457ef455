//! Ordering domains that halt: at what the origin rejects, where that is asked for, and where it rejects too much.

use crate::harness::server::binary;
use crate::harness::{Client, Database, Launch, PATIENCE, Scratch, Server, eventually, shop};
use crate::parking::ok;
use serde_json::Value;
use std::process::Command;

/// Nobody has this number.
const ORPHAN: &str = "HSET orders:30 customer_id 4711";
const PARENT: &str = "INSERT INTO customers (id, name) VALUES (4711, 'found')";
const NAME: &str = "SELECT name FROM customers WHERE id = 2";
const ORDERS: &str = "SELECT count(*) FROM orders WHERE id >= 30";
const PARKED: &str = "SELECT count(*) FROM destage_parked";

/// The first domain that has halted, once one has.
fn halt(server: &Server) -> Value {
    eventually("a domain halts", PATIENCE, || server.metric("destage_halted_domains") > 0.0);
    server.status()["halted"][0].clone()
}

/// The command line against a server.
#[track_caller]
fn run(server: &Server, words: &[&str]) {
    let admin = server.admin.to_string();
    let output = Command::new(binary()).args(words).args(["--admin", &admin]).output();
    let output = output.expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{words:?}: {said}");
}

/// On each kind of database, with these flags.
fn on_each(flags: &[&str], body: impl Fn(Launch, &Database)) {
    let scratch = Scratch::new();
    for (number, database) in shop::each(&scratch).into_iter().enumerate() {
        let launch = Launch::before(&scratch, &database.url());
        body(launch.elsewhere(&scratch, &format!("data-{number}")).with(flags), &database);
    }
}

/// A write that the origin rejects, and one that nothing is wrong with.
fn write_both(client: &mut Client) {
    ok(client, "DESTAGE PAUSE");
    ok(client, ORPHAN);
    ok(client, "HSET customers:2 name later");
    ok(client, "DESTAGE RESUME");
}

#[test]
fn a_domain_that_stops_keeps_everything_behind_a_rejected_write_until_its_cause_is_mended() {
    on_each(&["--on-reject", "stop"], |launch, database| {
        let server = launch.start();
        let mut client = server.client();
        write_both(&mut client);
        let halt = halt(&server);
        assert_eq!(halt["domain"], "default");
        let reason = halt["reason"].as_str().expect("a text").to_lowercase();
        assert!(reason.contains("foreign key"), "{reason}");
        let warnings = server.status()["warnings"].to_string();
        assert!(warnings.contains("destage resume --park"), "{warnings}");
        assert!(server.log().contains("halts there"), "{}", server.log());
        // Nothing has changed places, and the cache shows both.
        assert_eq!(client.run("DESTAGE WAIT 50").int(), 0);
        assert_eq!(database.value(NAME), "Grace");
        assert_eq!((database.number(ORDERS), database.number(PARKED)), (0, 0));
        assert_eq!(client.run("HGET customers:2 name").text(), "later");
        // The cause is still there.
        ok(&mut client, "DESTAGE RESUME");
        eventually("it halts again", PATIENCE, || {
            server.metric("destage_rejected_groups_total") == 0.0
                && server.metric("destage_halted_domains") > 0.0
        });

        database.execute(PARENT);
        ok(&mut client, "DESTAGE RESUME");
        assert_eq!(client.run("DESTAGE WAIT 60000").int(), 1);
        assert_eq!(database.value(NAME), "later");
        assert_eq!((database.number(ORDERS), database.number(PARKED)), (1, 0));
        assert_eq!(server.metric("destage_halted_domains"), 0.0);
        assert_eq!(server.status().get("halted"), None);
    });
}

/// The same writes where they are parked: what comes later is not kept behind what is rejected.
#[test]
fn a_domain_that_parks_lets_what_comes_later_pass_a_rejected_write() {
    on_each(&[], |launch, database| {
        let server = launch.start();
        let mut client = server.client();
        write_both(&mut client);
        assert_eq!(client.run("DESTAGE WAIT 60000").int(), 1);
        assert_eq!(database.value(NAME), "later");
        assert_eq!((database.number(ORDERS), database.number(PARKED)), (0, 1));
        assert_eq!(server.metric("destage_halted_domains"), 0.0);
    });
}

#[test]
fn what_a_domain_halted_at_may_be_parked_and_decided_on_and_the_next_one_halts_it_again() {
    on_each(&["--on-reject", "stop"], |launch, database| {
        let server = launch.start();
        let mut client = server.client();
        write_both(&mut client);
        ok(&mut client, "HSET orders:31 customer_id 4712");
        let first = halt(&server)["write"].as_u64().expect("a number");
        run(&server, &["resume", "--park"]);
        eventually("the next one halts it", PATIENCE, || {
            server.status()["halted"][0]["write"].as_u64().is_some_and(|next| next > first)
        });
        assert_eq!(database.value(NAME), "later");
        assert_eq!(database.number(PARKED), 1);
        database.execute(PARENT);
        ok(&mut client, &format!("DESTAGE PARKED RETRY {first}"));
        assert_eq!((database.number(ORDERS), database.number(PARKED)), (1, 0));
        // The choice can be made anew while it stands still.
        ok(&mut client, "DESTAGE POLICY on-reject=park");
        assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
        assert_eq!((database.number(ORDERS), database.number(PARKED)), (1, 1));
        assert!(client.run("DESTAGE RESUME NOW").error().contains("RESUME PARK"));
    });
}

#[test]
fn a_kill_and_a_stop_keep_what_a_domain_halted_at_and_the_next_start_halts_there_again() {
    on_each(&["--on-reject", "stop", "--drain-timeout", "none"], |launch, database| {
        let server = launch.start();
        write_both(&mut server.client());
        let write = halt(&server)["write"].clone();
        server.kill();
        let server = launch.start();
        assert_eq!(halt(&server)["write"], write);
        assert_eq!((database.number(PARKED), database.value(NAME)), (0, "Grace".into()));
        // However long the shutdown may take: it ends, since nothing goes on without someone.
        let halts = format!("halts at {write}");
        server.terminate(PATIENCE).says(12, &[&halts, "foreign key", "in the journal"]);
        database.execute(PARENT);
        let server = launch.start();
        server.drain();
        assert_eq!((database.number(ORDERS), database.value(NAME)), (1, "later".into()));
    });
}

#[test]
fn past_d_nothing_is_acknowledged_behind_what_a_domain_halted_at() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let flags = ["--on-reject", "stop", "--staleness", "300ms", "--at-limit", "fail"];
    let server = Launch::before(&scratch, &database.url()).with(&flags).start();
    // Answered only after the halt, where the journal takes longer than D to hold it. No write is made from then until D has
    // passed, since that would wait as well.
    let mut early = server.client();
    early.send(&ORPHAN.split(' ').collect::<Vec<_>>()).expect("it is sent");
    halt(&server);
    let exceeded = || server.status()["mode"] == "staleness-exceeded";
    eventually("the bound has passed", PATIENCE, exceeded);
    let mut client = server.client();
    let reply = client.run("HSET customers:2 name later");
    assert!(reply.is_error() && reply.error().starts_with("STALE"), "{reply:?}");
    assert_eq!(client.run("HGET orders:30 customer_id").text(), "4711");
    database.execute(PARENT);
    ok(&mut client, "DESTAGE RESUME");
    assert_eq!(early.receive().expect("it is answered").int(), 1);
    eventually("writes are taken again", PATIENCE, || {
        !client.run("HSET customers:2 name later").is_error()
    });
    server.drain();
    assert_eq!(database.value(NAME), "later");
}

/// The orders apart, and on their own terms.
const APART: &str = "
[[domain]]
name = 'orders'
tables = ['orders', 'order_lines']
assume_independent = true
on_reject = 'stop'
";

#[test]
fn one_domain_may_stop_while_the_others_park_and_go_on() {
    let scratch = Scratch::new();
    let path = scratch.join("apart.toml");
    std::fs::write(&path, APART).expect("the test's folder can be written");
    let path = path.to_str().expect("the test's folder has a plain name");
    on_each(&["--config", path], |launch, database| {
        let server = launch.start();
        let mut client = server.client();
        write_both(&mut client);
        assert_eq!(client.run("DESTAGE WAIT 60000").int(), 1, "of another domain");
        assert_eq!(halt(&server)["domain"], "orders");
        let metrics = server.get("/metrics");
        for line in ["{domain=\"orders\"} 1", "{domain=\"default\"} 0"] {
            let line = format!("destage_domain_halted{line}");
            assert!(metrics.contains(&line), "{line} in {metrics}");
        }
        assert!(client.run("DESTAGE STATUS").text().contains(", halted"));
        assert_eq!((database.number(ORDERS), database.value(NAME)), (0, "later".into()));
        run(&server, &["resume", "--park"]);
        server.drain();
        assert_eq!((database.number(ORDERS), database.number(PARKED)), (0, 1));
    });
}

#[test]
fn a_choice_that_is_none_is_refused_with_those_that_are() {
    let scratch = Scratch::new();
    let path = scratch.join("wrong.toml");
    let text = APART.replace("'stop'", "'halt'");
    std::fs::write(&path, text).expect("the test's folder can be written");
    let path = path.to_str().expect("the test's folder has a plain name");
    let refused = |flags: &[&str]| Launch::example(&scratch).with(flags).refused();
    refused(&["--config", path]).says(2, &["[[domain]] orders: on_reject", "use park or stop"]);
    refused(&["--on-reject", "drop"]).says(2, &["use park or stop"]);
    refused(&["--parked-per-minute", "0"]).says(2, &["1 to 1000000, or none"]);
}

#[test]
fn more_parked_writes_in_a_minute_than_allowed_halt_the_domain_until_someone_has_looked() {
    on_each(&["--parked-per-minute", "2"], |launch, database| {
        let server = launch.start();
        let mut client = server.client();
        ok(&mut client, "DESTAGE PAUSE");
        for id in 30..36 {
            ok(&mut client, &format!("HSET orders:{id} customer_id 4711"));
        }
        ok(&mut client, "DESTAGE RESUME");
        let halted = halt(&server);
        assert_eq!(
            (&halted["domain"], halted.get("write")),
            (&"default".into(), Some(&Value::Null))
        );
        let warnings = server.status()["warnings"].to_string();
        assert!(warnings.contains("--parked-per-minute"), "{warnings}");
        assert_eq!(database.number(PARKED), 3);
        assert_eq!(server.status()["writes"]["dirty_groups"], 3);
        // Mended, the rest is taken, and what was parked is decided on as ever.
        database.execute(PARENT);
        run(&server, &["resume"]);
        assert_eq!(client.run("DESTAGE WAIT 60000").int(), 1);
        assert_eq!((database.number(ORDERS), database.number(PARKED)), (3, 3));
        ok(&mut client, "DESTAGE PARKED RETRY ALL");
        assert_eq!((database.number(ORDERS), database.number(PARKED)), (6, 0));
        assert_eq!(server.metric("destage_halted_domains"), 0.0);
    });
}
