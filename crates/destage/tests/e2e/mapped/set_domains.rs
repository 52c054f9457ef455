//! Sets and sorted sets in ordering domains: those of their tables, or of a column that their keys tell.

use super::{behaves_as_redis, launch};
use crate::harness::{Database, PATIENCE, Random, Redis, Scratch, eventually};

/// Boards by their names, spread over three domains; everybody in one of their own.
const BOARDS: &str = r#"
[[domain]]
name = "boards"
column = "board"
count = 3

[[domain]]
name = "everybody"
tables = ["everybody"]
"#;

#[test]
fn sets_in_several_domains_behave_as_in_redis_through_evictions_destages_and_crashes() {
    let scratch = Scratch::new();
    let Some(redis) = Redis::start(&scratch) else { return };
    for (number, database) in super::sets::databases(&scratch).into_iter().enumerate() {
        for is_paged in [false, true] {
            let mut redis = redis.client();
            redis.run("FLUSHALL").ok();
            database.execute("DELETE FROM ranks");
            database.execute("DELETE FROM everybody");
            let mappings = super::sets::mappings(is_paged) + BOARDS;
            let launch = launch(&scratch, &database, &format!("data-{number}"), &mappings);
            let command = |random: &mut Random| super::sets::sorted_command(random, is_paged);
            let rounds = (40 + number as u64, if number == 0 { 150 } else { 60 });
            let keys = &super::sets::SORTED;
            let server = behaves_as_redis(&launch, &mut redis, rounds, keys, command);
            server.drain();
            for key in keys {
                super::sets::is_at_the_origin(&database, &mut redis, key);
            }
            let status = server.status();
            assert_eq!(status["destage"]["parked_groups"], 0);
            assert_eq!(status["domains"].as_array().map(Vec::len), Some(5), "{status}");
            server.terminate(PATIENCE).says(0, &[]);
        }
    }
}

#[test]
fn a_member_that_is_rejected_in_one_domain_leaves_the_sets_of_others_alone() {
    let scratch = Scratch::new();
    for (number, database) in super::sets::databases(&scratch).into_iter().enumerate() {
        let mappings = super::sets::mappings(false) + BOARDS;
        let launch = launch(&scratch, &database, &format!("data-{number}"), &mappings);
        let server = launch.start();
        let mut client = server.client();
        // A session over sets of several domains, whole at the origin.
        for command in [
            "MULTI",
            "ZADD rank:a 1 ann",
            "ZADD rank:b 2 ann",
            "ZADD _indices 3 ann",
            "SADD tags:1 red",
            "EXEC",
        ] {
            assert!(!client.run(command).is_error(), "{command}");
        }
        assert_eq!(client.run("DESTAGE WAIT 60000").int(), 1);
        assert_eq!(database.number("SELECT count(*) FROM ranks"), 2);
        assert_eq!(database.number("SELECT count(*) FROM tags"), 1);
        // Nobody has product 77; the session is parked in both of its domains.
        for command in ["MULTI", "SADD tags:77 red", "ZADD rank:a 9 bob", "EXEC"] {
            assert!(!client.run(command).is_error(), "{command}");
        }
        assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
        assert!(!client.run("ZADD rank:a 4 cid").is_error());
        assert_eq!(client.run("DESTAGE WAIT 60000").int(), 1, "it builds on nothing");
        assert_eq!(client.run("ZCARD rank:a").int(), 3);
        database.execute("INSERT INTO products VALUES (77, 'found')");
        let reply = client.run("DESTAGE PARKED RETRY ALL");
        assert!(reply.pairs().contains(&("applied".into(), "1".into())), "{reply:?}");
        assert_eq!(client.run("ZCARD rank:a").int(), 3);
        assert_eq!(client.run("SCARD tagged:red").int(), 2);
        assert_eq!(database.number("SELECT count(*) FROM ranks WHERE board = 'a'"), 3);
        eventually("nothing is pinned", PATIENCE, || {
            server.status()["writes"]["pinned_bytes"] == 0
        });
        server.terminate(PATIENCE).says(0, &[]);
    }
}

#[test]
fn a_set_whose_members_are_in_several_domains_is_refused_at_start() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(super::sets::TABLES);
    let by_member = "[[domain]]\nname = 'players'\ncolumn = 'player'\n";
    let mappings = super::sets::mappings(false) + by_member;
    let exit = launch(&scratch, &database, "data", &mappings).refused();
    exit.says(2, &["ranks", "by player, which is the member"]);
}
