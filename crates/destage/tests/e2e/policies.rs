//! What an acknowledgement means under each policy, and what happens at a limit.

use crate::harness::{
    Client, Database, Launch, PATIENCE, Reply, Scratch, Server, eventually, millis, seconds, shop,
};
use std::io;
use std::time::{Duration, Instant};

const NAME: &str = "SELECT name FROM customers WHERE id = 1";

/// Before each kind of database, once.
fn on_each_shop(arguments: &[&str], body: impl Fn(&Server, &Database)) {
    let scratch = Scratch::new();
    for (number, database) in shop::each(&scratch).into_iter().enumerate() {
        let launch = Launch::before(&scratch, &database.url()).with(arguments);
        body(&launch.elsewhere(&scratch, &format!("data-{number}")).start(), &database);
    }
}

/// Each acknowledged write is at the origin at once, and read back through Destage.
#[track_caller]
fn each_ack_is_at_the_origin(client: &mut Client, database: &Database, round: &str) {
    for n in 0..10 {
        let name = format!("{round}-{n}");
        assert_eq!(client.run(&format!("HSET customers:1 name {name}")).int(), 0);
        assert_eq!(database.value(NAME), name);
        assert_eq!(client.run("HGET customers:1 name").text(), name);
    }
}

#[test]
fn write_through_acknowledges_after_the_origin_has_it() {
    on_each_shop(&["--policy", "write-through"], |server, database| {
        let mut client = server.client();
        each_ack_is_at_the_origin(&mut client, database, "through");
        // The row stays cached: reading it again asks nobody.
        let misses = server.metric("destage_cache_misses_total");
        client.run("HGET customers:1 name");
        assert_eq!(server.metric("destage_cache_misses_total"), misses);
    });
}

#[test]
fn write_around_acknowledges_after_the_origin_has_it_and_drops_the_cached_row() {
    on_each_shop(&["--policy", "write-around"], |server, database| {
        let mut client = server.client();
        each_ack_is_at_the_origin(&mut client, database, "around");
        client.run("HSET customers:1 name dropped");
        let misses = server.metric("destage_cache_misses_total");
        assert_eq!(client.run("HGET customers:1 name").text(), "dropped");
        assert_eq!(server.metric("destage_cache_misses_total"), misses + 1.0);
    });
}

#[test]
fn write_through_tells_the_client_what_the_origin_rejects_and_changes_nothing() {
    for policy in ["write-through", "write-around"] {
        on_each_shop(&["--policy", policy], |server, database| {
            let mut client = server.client();
            let reply = client.run("HSET orders:9 customer_id 4711");
            assert!(reply.is_error(), "{reply:?}");
            assert_eq!(client.run("EXISTS orders:9").int(), 0);
            assert_eq!(database.number("SELECT count(*) FROM orders WHERE id = 9"), 0);
            assert_eq!(server.status()["destage"]["parked_groups"], 0);
            assert_eq!(client.run("HSET orders:9 customer_id 2").int(), 1);
            assert_eq!(database.number("SELECT customer_id FROM orders WHERE id = 9"), 2);
        });
    }
}

#[test]
fn write_back_acknowledges_before_the_origin_has_it() {
    on_each_shop(&["--when", "pressure", "--staleness", "1h"], |server, database| {
        assert_eq!(server.client().run("HSET customers:1 name later").int(), 0);
        assert_eq!(database.value(NAME), "Ada");
        assert_eq!(server.status()["writes"]["dirty_groups"], 1);
        server.drain();
        assert_eq!(database.value(NAME), "later");
    });
}

#[test]
fn the_policy_changes_at_run_time_by_command_and_by_the_admin_port() {
    on_each_shop(&["--when", "pressure", "--staleness", "1h"], |server, database| {
        let mut client = server.client();
        client.run("HSET customers:2 name Hopper");
        assert!(!client.run("DESTAGE POLICY write-through").is_error());
        each_ack_is_at_the_origin(&mut client, database, "switched");
        assert_eq!(server.status()["policy"]["acknowledge"], "write-through");
        let answer = server.post("policy", &["write-back", "when=pressure"]);
        assert!(answer.contains("result"), "{answer}");
        assert_eq!(server.status()["policy"]["acknowledge"], "write-back");
        client.run("HSET customers:1 name buffered");
        assert_eq!(database.value(NAME), "switched-9");
        // What was buffered before the switch went first, in order.
        assert_eq!(database.value("SELECT name FROM customers WHERE id = 2"), "Hopper");
        assert!(client.run("DESTAGE POLICY sideways").error().contains("write-around"));
        for out_of_range in ["2h", "61s", "1ns", "999us"] {
            let change = format!("commit={out_of_range}");
            let refusal = client.run(&format!("DESTAGE POLICY {change}"));
            assert!(refusal.error().contains("0, or 1 ms to 60 s"), "{change}: {refusal:?}");
            let refusal = server.post("policy", &[&change]);
            assert!(refusal.contains("0, or 1 ms to 60 s"), "{change}: {refusal}");
        }
        assert_eq!(server.status()["policy"]["commit_seconds"], 0.0);
        assert_eq!(server.status()["policy"]["acknowledge"], "write-back");
    });
}

#[test]
fn each_choice_of_when_destages_by_itself() {
    for when in ["async", "periodic:300ms", "interval:300ms,50ms"] {
        on_each_shop(&["--when", when], |server, database| {
            let mut client = server.client();
            for n in 1..=50 {
                assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 10 + n);
            }
            eventually("it is at the origin", PATIENCE, || {
                database.number("SELECT stock FROM products WHERE id = 1") == 60
            });
        });
    }
}

#[test]
fn staleness_hurries_what_no_other_rule_would_destage() {
    on_each_shop(&["--when", "pressure", "--staleness", "2s"], |server, database| {
        let mut slowest = Duration::ZERO;
        // A busy machine may be late at times; a server that does not hurry always is.
        let in_time = (0..10).any(|n| {
            let time = time_to_the_origin(server, database, &format!("n{n}"));
            slowest = slowest.max(time);
            time < millis(2_500)
        });
        assert!(in_time, "nothing arrived within D = 2s and the time for a look at it");
        // The server says so too: it was late by no more than what a client saw, and held the write back at first.
        let own = server.status()["rpo"]["total_loss_max_seconds"].as_f64().expect("a number");
        assert!((1.0..=slowest.as_secs_f64()).contains(&own), "{own} s, {slowest:?}");
    });
}

/// How long a name takes to get to the origin, a look at it included.
#[track_caller]
fn time_to_the_origin(server: &Server, database: &Database, name: &str) -> Duration {
    let start = Instant::now();
    server.client().run(&format!("HSET customers:1 name {name}"));
    eventually("it is at the origin", PATIENCE, || {
        database.value(NAME) == name && server.status()["writes"]["dirty_groups"] == 0
    });
    start.elapsed()
}

#[test]
fn pressure_destages_down_to_the_low_mark() {
    let pressure = ["--when", "pressure", "--staleness", "1h", "--dirty-limit", "256K"];
    on_each_shop(&pressure, |server, _| {
        let mut client = server.client();
        for n in 0..600 {
            client.call(&["HSET", &format!("customers:{}", 2_000 + n), "name", &"x".repeat(1_000)]);
        }
        eventually("buffered writes are within the limit", PATIENCE, || {
            dirty_bytes(server) <= 256 << 10
        });
        assert!(server.status()["destage"]["groups_total"].as_u64() > Some(0));
    });
}

/// The server with destaging paused and its buffer filled until a write does not get through at once; the number of
/// writes that did, and what became of the last one.
fn fill(at_limit: &str) -> (Scratch, Database, Server, Client, i64, io::Result<Reply>) {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let server = Launch::before(&scratch, &database.url())
        .with(&["--dirty-limit", "64K", "--staleness", "1h", "--at-limit", at_limit])
        .start();
    let mut client = server.client();
    client.run("DESTAGE PAUSE").ok();
    client.patience(seconds(1));
    for n in 0..1_000 {
        let key = format!("customers:{}", 2_000 + n);
        let mut reply = client.try_call(&["HSET", &key, "name", &"x".repeat(1_000)]);
        let mut waits = false;
        // Throttling and a busy machine only delay a reply; at the limit it waits until there is room.
        eventually("the write is answered, or waits at the limit", PATIENCE, || {
            if reply.is_err() && !waits {
                waits = waits_at_the_limit(&server);
                // An answer that was on its way meanwhile arrives.
                reply = client.receive();
            }
            reply.is_ok() || waits
        });
        if !matches!(reply, Ok(Reply::Int(1))) {
            client.patience(PATIENCE);
            return (scratch, database, server, client, n, reply);
        }
    }
    panic!("1,000 writes of 1 KB fit into 64 KB");
}

/// Whether a write without an answer waits for room, or for the origin instead.
fn waits_at_the_limit(server: &Server) -> bool {
    let status = server.status();
    let writes = &status["writes"];
    match status["mode"].as_str() {
        Some("full") => status["clients"]["waiting"].as_u64() > Some(0),
        Some("fallback") => writes["committed_lsn"] == writes["last_lsn"],
        _ => false,
    }
}

/// What counts against the limit: the buffered writes and the rows that they pin.
fn dirty_bytes(server: &Server) -> u64 {
    let writes = &server.status()["writes"];
    let bytes = |name: &str| writes[name].as_u64().expect("a number");
    bytes("dirty_bytes") + bytes("pinned_bytes")
}

/// Whether the admitted writes fit what the limit of 64 KiB allows.
#[track_caller]
fn is_near_the_limit(admitted: i64, server: &Server) {
    assert!((10..=64).contains(&admitted), "{admitted} writes were admitted");
    assert!(dirty_bytes(server) <= 66 << 10);
}

#[test]
fn at_the_limit_fail_refuses_with_a_reason_and_reads_go_on() {
    let (_scratch, database, server, mut client, admitted, last) = fill("fail");
    let message = last.expect("it is answered").error().to_lowercase();
    assert!(message.contains("limit"), "{message}");
    is_near_the_limit(admitted, &server);
    assert_eq!(server.status()["mode"], "full");
    assert_eq!(client.run("HGET customers:1 name").text(), "Ada");
    assert!(server.metric("destage_refused_writes_total") >= 1.0);
    client.run("DESTAGE RESUME").ok();
    eventually("writes are taken again", PATIENCE, || {
        !client.run("HSET customers:1 name again").is_error()
    });
    server.drain();
    let rows = database.number("SELECT count(*) FROM customers WHERE id >= 2000");
    assert_eq!(rows, admitted, "refused writes must not arrive");
}

#[test]
fn at_the_limit_block_waits_until_there_is_room() {
    for at_limit in ["block", "throttle", "write-through"] {
        let (_scratch, database, server, mut client, admitted, last) = fill(at_limit);
        assert!(last.is_err(), "{at_limit}: {last:?}");
        if at_limit != "write-through" {
            assert_eq!(server.status()["mode"], "full", "{at_limit}");
        }
        is_near_the_limit(admitted, &server);
        assert_eq!(server.client().run("HGET customers:1 name").text(), "Ada", "reads go on");
        server.client().run("DESTAGE RESUME").ok();
        assert_eq!(client.receive().expect("the write gets through"), Reply::Int(1), "{at_limit}");
        server.drain();
        let rows = database.number("SELECT count(*) FROM customers WHERE id >= 2000");
        assert_eq!(rows, admitted + 1, "{at_limit}");
    }
}

#[test]
fn at_the_limit_write_through_is_shown_and_acknowledges_after_the_origin() {
    let (_scratch, database, server, mut client, admitted, _) = fill("write-through");
    assert_eq!(server.status()["mode"], "fallback");
    server.client().run("DESTAGE RESUME").ok();
    assert_eq!(client.receive().expect("the write gets through"), Reply::Int(1));
    let at_origin = database.number("SELECT count(*) FROM customers WHERE id >= 2000");
    assert_eq!(at_origin, admitted + 1, "acknowledged before the origin had it");
    eventually("the mode is normal again", PATIENCE, || server.status()["mode"] == "normal");
}

#[test]
fn throttling_delays_writes_before_the_limit_is_reached() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let server = Launch::before(&scratch, &database.url())
        .with(&["--dirty-limit", "256K", "--staleness", "1h", "--at-limit", "throttle"])
        .start();
    let mut client = server.client();
    client.run("DESTAGE PAUSE").ok();
    eventually("it throttles", PATIENCE, || {
        let key = format!(
            "customers:{}",
            2_000 + server.status()["writes"]["last_lsn"].as_u64().unwrap_or(0)
        );
        client.call(&["HSET", &key, "name", &"x".repeat(4_000)]);
        server.status()["mode"] == "throttled"
    });
    let dirty = dirty_bytes(&server);
    assert!(((192 << 10)..=(256 << 10)).contains(&dirty), "{dirty} bytes");
    client.run("DESTAGE RESUME").ok();
    eventually("the mode is normal again", PATIENCE, || server.status()["mode"] == "normal");
}
