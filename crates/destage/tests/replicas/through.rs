//! Fewer servers than copies, and writes that go through to the origin meanwhile (`--at-limit write-through`).

use crate::world::{Client, World};
use std::time::{Duration, Instant};

const FLAGS: [&str; 8] =
    ["--copies", "3", "--failover", "1s", "--client-wait", "20s", "--at-limit", "write-through"];
/// What need not go to the origin does not.
const RARELY: [&str; 4] = ["--when", "periodic:1h", "--staleness", "none"];

fn increment(client: &mut Client, row: u64) -> String {
    client.ask(&["HINCRBY", &format!("t:{row}"), "n", "1"])
}

/// > With `--at-limit write-through` and fewer than k servers, but more than half of them, a write is acknowledged once the origin
/// > has it. Whoever takes over finds it in the log, too, with its token of `DESTAGE ONCE`.
#[test]
fn with_fewer_servers_than_copies_writes_go_through_and_whoever_takes_over_has_them_once() {
    let flags = [&FLAGS[..], &RARELY].concat();
    let mut world = World::new(3, &[]);
    let mut owner = world.start(&flags);
    let mut client = owner.client();
    assert_eq!(increment(&mut client, 1), ":1");
    assert_eq!(world.origin_rows(), [], "the servers hold it");
    world.servers.cut(2);
    world.await_status(&owner, |status| status["mode"] == "copies-fallback");
    assert_eq!(owner.ready(), 200);
    let status = owner.status();
    let warning = status["warnings"][0].as_str().expect("a warning");
    assert!(warning.contains("acknowledged once the origin has it"), "{status:#}");
    for n in 2..=6 {
        assert_eq!(increment(&mut client, 1), format!(":{n}"));
        assert_eq!(world.origin_rows(), [(1, n)], "the origin has what is acknowledged");
    }
    let once = ["DESTAGE", "ONCE", "a-token", "HINCRBY", "t:2", "n", "5"];
    assert_eq!(client.ask(&once), ":5");
    assert_eq!(world.origin_rows(), [(1, 6), (2, 5)]);
    // Another that the origin does not get before this owner is lost: it may be done, and never twice.
    owner.command(&["pause"]);
    let mut other = owner.client();
    assert!(other.send(&["HINCRBY", "t:3", "n", "1"]));
    std::thread::sleep(Duration::from_millis(500));
    owner.kill();
    world.lose_disk(owner);
    let mut next = world.start(&flags);
    let mut client = next.client();
    assert_eq!(client.ask(&["HGET", "t:1", "n"]), "6");
    assert_eq!(client.ask(&once), ":5", "answered as the first time");
    assert_eq!(increment(&mut client, 1), ":7");
    let rows = world.origin_rows();
    assert!(rows == [(1, 7), (2, 5)] || rows == [(1, 7), (2, 5), (3, 1)], "{rows:?}");
    world.servers.heal();
    world.await_copies(&next, 3);
    world.await_status(&next, |status| status["mode"] == "normal");
    assert_eq!(increment(&mut client, 1), ":8");
    assert_eq!(world.origin_rows(), rows, "the servers hold it again");
    // The server that was away is as good as the others.
    next.kill();
    world.lose_disk(next);
    world.servers.cut(0);
    let mut last = world.start(&flags);
    assert_eq!(last.client().ask(&["HGET", "t:1", "n"]), "8");
    last.end();
    assert_eq!(world.origin_rows()[..2], [(1, 8), (2, 5)]);
}

/// An owner without enough servers for the copies acknowledges nothing before the origin has it.
#[test]
fn nothing_is_acknowledged_before_the_origin_has_it() {
    let mut world = World::new(3, &[]);
    let mut owner = world.start(&FLAGS);
    let (mut reader, mut writer) = (owner.client(), owner.client());
    assert_eq!(increment(&mut writer, 1), ":1");
    assert_eq!(increment(&mut writer, 2), ":1");
    assert_eq!(writer.ask(&["DESTAGE", "WAIT", "60000"]), ":1");
    // This one is on its way when the server is lost, and is acknowledged all the same.
    world.servers.cut(2);
    assert_eq!(increment(&mut writer, 1), ":2");
    world.await_status(&owner, |status| status["mode"] == "copies-fallback");
    owner.command(&["pause"]);
    assert!(writer.send(&["HINCRBY", "t:1", "n", "1"]));
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        assert_eq!(reader.ask(&["HGET", "t:2", "n"]), "1", "reads go on");
    }
    let status = owner.status();
    let writes = &status["writes"];
    assert!(writes["committed_lsn"].as_u64() < writes["last_lsn"].as_u64(), "{status:#}");
    assert_eq!(world.origin_rows(), [(1, 2), (2, 1)]);
    owner.command(&["resume"]);
    assert_eq!(writer.receive().as_deref(), Some(":3"));
    assert_eq!(world.origin_rows(), [(1, 3), (2, 1)]);
    owner.end();
    assert_eq!(world.origin_rows(), [(1, 3), (2, 1)]);
}

/// Two servers of three may be fewer than those that held a write that was acknowledged: whoever opens with them says nothing of it
/// before the origin has it.
#[test]
fn who_opens_with_fewer_servers_than_copies_answers_nothing_before_the_origin_has_what_it_found() {
    let flags = [&FLAGS[..], &RARELY].concat();
    let mut world = World::new(3, &[]);
    let mut owner = world.start(&flags);
    assert_eq!(increment(&mut owner.client(), 1), ":1");
    let lock = world.lock_origin();
    owner.kill();
    world.lose_disk(owner);
    world.servers.cut(2);
    let mut next = world.start_standby(&flags);
    world.await_status(&next, |status| status["mode"] == "copies-fallback");
    let mut client = next.client();
    assert!(client.send(&["HGET", "t:1", "n"]));
    assert!(!client.hears(Duration::from_secs(2)), "{:?}", client.receive());
    assert_eq!(world.origin_rows(), []);
    drop(lock);
    assert_eq!(client.receive().as_deref(), Some("1"));
    assert_eq!(world.origin_rows(), [(1, 1)]);
    next.end();
}
