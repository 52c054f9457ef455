//! SSCAN and ZSCAN over sets as a whole and in parts.

use super::launch;
use super::sets::{databases, mappings};
use crate::harness::{Client, PATIENCE, Reply, Scratch, Server, prepared};
use std::collections::BTreeSet;
use std::process::Command;

/// Sets and sorted sets, as a whole or in parts of at most seven.
fn settings(is_paged: bool) -> String {
    let settings = mappings(false);
    if !is_paged {
        return settings;
    }
    settings
        .replace("[[set]]", "[[set]]\nmembers-max = 7")
        .replace("[[zset]]", "[[zset]]\nmembers-max = 7")
}

/// All that a scan shows; `between` does something between its parts.
#[track_caller]
fn scan(
    client: &mut Client,
    command: &str,
    mut between: impl FnMut(&mut Client, usize),
) -> (Vec<String>, usize) {
    let (name, key) = command.split_once(' ').expect("it has two words");
    let (mut cursor, mut shown, mut parts) = ("0".to_owned(), Vec::new(), 0);
    loop {
        let part = client.run(&format!("{name} {key} {cursor}"));
        let Reply::Array(part) = part else { panic!("{command}: {part:?}") };
        shown.extend(part[1].array().iter().map(Reply::text));
        (cursor, parts) = (part[0].text(), parts + 1);
        if cursor == "0" {
            return (shown, parts);
        }
        between(client, parts);
    }
}

/// Each kind of database, with sets as a whole and in parts.
fn on_each(body: impl Fn(&Server, bool)) {
    let scratch = Scratch::new();
    for (number, database) in databases(&scratch).into_iter().enumerate() {
        for is_paged in [false, true] {
            database.execute("DELETE FROM tags");
            database.execute("DELETE FROM ranks");
            let data = format!("data-{number}");
            let server = launch(&scratch, &database, &data, &settings(is_paged)).start();
            body(&server, is_paged);
            server.drain();
            server.terminate(PATIENCE);
        }
    }
}

#[track_caller]
fn added(client: &mut Client, command: &str) {
    assert!(!client.run(command).is_error(), "{command}");
}

#[test]
fn a_scan_of_a_set_shows_once_what_stays_in_it_whatever_else_changes() {
    on_each(|server, is_paged| {
        let mut client = server.client();
        let member = |n: usize| format!("m{n:02}");
        for n in 0..40 {
            added(&mut client, &format!("SADD tags:1 {}", member(n)));
            // The order by score is another one than that by member.
            added(&mut client, &format!("ZADD rank:q {} {}", (n * 17) % 40, member(n)));
        }
        server.drain();
        let stays: BTreeSet<String> = (0..40).step_by(2).map(member).collect();
        // Half of the time the changes are buffered, and pages are read through them.
        let change = |client: &mut Client, part: usize| {
            if part == 1 {
                client.run("DESTAGE PAUSE").ok();
            }
            if part == 4 {
                client.run("DESTAGE RESUME").ok();
            }
            let odd = member((part * 10 + 1) % 40);
            added(client, &format!("SREM tags:1 {odd}"));
            added(client, &format!("SADD tags:1 new{part} a{part}"));
            added(client, &format!("ZREM rank:q {odd}"));
            added(client, &format!("ZADD rank:q -5 new{part} 100 a{part}"));
            // Members move to the other end of the scores, before and behind where the scan is.
            for n in (0..40).step_by(2) {
                let by = if (n / 2 + part).is_multiple_of(2) { 1_000 } else { -1_000 };
                added(client, &format!("ZINCRBY rank:q {by} {}", member(n)));
            }
        };
        let (set, set_parts) = scan(&mut client, "SSCAN tags:1", change);
        let (sorted, sorted_parts) = scan(&mut client, "ZSCAN rank:q", change);
        client.run("DESTAGE RESUME").ok();
        let members: Vec<String> = sorted.chunks(2).map(|pair| pair[0].clone()).collect();
        for (shown, parts) in [(set, set_parts), (members, sorted_parts)] {
            assert_eq!(parts > 4, is_paged, "{parts} parts");
            let distinct: BTreeSet<String> = shown.iter().cloned().collect();
            assert_eq!(distinct.len(), shown.len(), "none is shown twice: {shown:?}");
            assert!(stays.is_subset(&distinct), "{stays:?}: {shown:?}");
            assert!(shown.iter().all(|m| m.starts_with(['m', 'n', 'a'])), "{shown:?}");
        }
    });
}

#[test]
fn scans_of_sets_take_what_redis_takes() {
    on_each(|server, is_paged| {
        let mut client = server.client();
        for n in 0..20 {
            added(&mut client, &format!("SADD tags:1 m{n:02}"));
            added(&mut client, &format!("ZADD rank:q {n}.5 m{n:02}"));
        }
        server.drain();
        let none = |client: &mut Client, command: &str| {
            let reply = client.run(command);
            assert_eq!(reply.array()[0].text(), "0", "{command}");
            assert_eq!(reply.array()[1].array(), [], "{command}");
        };
        none(&mut client, "SSCAN tags:2 0");
        none(&mut client, "ZSCAN rank:none 0 MATCH * COUNT 3");
        let matched = |client: &mut Client, command: &str, options: &str| {
            let (mut cursor, mut shown) = ("0".to_owned(), Vec::new());
            loop {
                let part = client.run(&format!("{command} {cursor} {options}"));
                shown.extend(part.array()[1].array().iter().map(Reply::text));
                cursor = part.array()[0].text();
                if cursor == "0" {
                    return shown;
                }
            }
        };
        let shown = matched(&mut client, "SSCAN tags:1", "MATCH m1* COUNT 2");
        assert_eq!(shown, (10..20).map(|n| format!("m{n}")).collect::<Vec<_>>());
        let shown = matched(&mut client, "ZSCAN rank:q", "MATCH *9");
        assert_eq!(shown, ["m09", "9.5", "m19", "19.5"]);
        for (command, code) in [
            ("SSCAN rank:q 0", "WRONGTYPE"),
            ("ZSCAN tags:1 0", "WRONGTYPE"),
            ("SSCAN products:1 0", "WRONGTYPE"),
            ("SSCAN tags:1 x", "ERR invalid cursor"),
            ("SSCAN tags:1 987654321", "ERR this cursor is unknown"),
            ("SSCAN tags:1 0 COUNT 0", "ERR syntax"),
            ("SSCAN tags:1 0 NOVALUES", "ERR syntax"),
            ("SSCAN tags:1", "ERR wrong number"),
        ] {
            let reply = client.run(command);
            assert!(reply.error().starts_with(code), "{command}: {reply:?}");
        }
        let cursor = client.run("SSCAN tags:1 0").array()[0].text();
        assert_eq!(cursor != "0", is_paged);
        if is_paged {
            let other = client.run(&format!("SSCAN tags:2 {cursor}"));
            assert!(other.error().contains("is of another key"), "{other:?}");
            // A cursor may be sent again, and in a transaction.
            client.run("MULTI").ok();
            client.run("SADD tags:1 m055");
            client.run(&format!("SSCAN tags:1 {cursor}"));
            let replies = client.run("EXEC");
            let again = client.run(&format!("SSCAN tags:1 {cursor}"));
            assert_eq!(replies.array()[1].array()[1], again.array()[1]);
            assert_ne!(again.array()[1].array().len(), 0);
        }
        if let Some(python) = prepared("DESTAGE_TEST_PYTHON") {
            let program = "import redis, sys\n\
                for protocol in (2, 3):\n\
                \x20   r = redis.Redis(port=int(sys.argv[1]), protocol=protocol, decode_responses=True)\n\
                \x20   assert set(r.sscan_iter('tags:1')) == r.smembers('tags:1') if sys.argv[2] == 'whole' else len(set(r.sscan_iter('tags:1'))) == 21\n\
                \x20   found = dict(r.zscan_iter('rank:q', match='m*'))\n\
                \x20   assert len(found) == 20 and found['m07'] == 7.5, found\n\
                print('done')\n";
            let kind = if is_paged { "paged" } else { "whole" };
            let said = crate::harness::output(Command::new(python).args([
                "-c",
                program,
                &server.port(),
                kind,
            ]));
            assert_eq!(said.trim(), "done");
        }
    });
}
