//! Sets and sorted sets over junction tables.

use super::{behaves_as_redis, launch, rounds};
use crate::harness::{Client, Database, PATIENCE, Random, Redis, Reply, Scratch, Server};

pub(super) const TABLES: &str = "
CREATE TABLE products (id INTEGER PRIMARY KEY, name VARCHAR(40));
CREATE TABLE tags (
    product_id INTEGER NOT NULL REFERENCES products (id) ON DELETE CASCADE,
    tag VARCHAR(40) NOT NULL,
    PRIMARY KEY (product_id, tag)
);
CREATE TABLE ranks (
    board VARCHAR(20) NOT NULL,
    player VARCHAR(40) NOT NULL,
    points DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (board, player)
);
CREATE TABLE everybody (name VARCHAR(40) PRIMARY KEY, place BIGINT NOT NULL);
INSERT INTO products VALUES (1, 'Lamp'), (2, 'Chair');
";

const MAPPINGS: &str = r#"
[[set]]
key = "tags:{product_id}"
table = "tags"
member = "tag"

[[set]]
key = "tagged:{tag}"
table = "tags"
member = "product_id"

[[zset]]
key = "rank:{board}"
table = "ranks"
member = "player"
score = "points"

[[zset]]
key = "_indices"
table = "everybody"
member = "name"
score = "place"
"#;

/// So small a limit that the sorted sets are read in pages.
fn paged() -> String {
    MAPPINGS.replace("[[zset]]", "[[zset]]\nmembers-max = 3")
}

/// The settings, with sorted sets as a whole or in pages.
pub(super) fn mappings(is_paged: bool) -> String {
    if is_paged { paged() } else { MAPPINGS.to_owned() }
}

pub(super) fn databases(scratch: &Scratch) -> Vec<Database> {
    let found = [Some(Database::sqlite(scratch)), Database::postgres(), Database::mariadb()];
    found.into_iter().flatten().map(|database| database.with(TABLES)).collect()
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

const SETS: [&str; 2] = ["tags:1", "tags:2"];

fn set_command(random: &mut Random) -> Vec<String> {
    let key = *random.pick(&SETS);
    let mut member = || format!("m{}", random.between(0, 12));
    let (first, second, third) = (member(), member(), member());
    words(&match random.between(0, 16) {
        0..4 => format!("SADD {key} {first}"),
        4 => format!("SADD {key} {first} {second} {third}"),
        5..7 => format!("SREM {key} {first}"),
        7 => format!("SREM {key} {second} {third}"),
        8 => format!("SISMEMBER {key} {first}"),
        9 => format!("SMISMEMBER {key} {first} {second}"),
        10..12 => format!("SCARD {key}"),
        12 => format!("EXISTS {key}"),
        13 => format!("TYPE {key}"),
        14 if random.between(0, 4) == 0 => format!("DEL {key}"),
        _ => format!("SMEMBERS {key}"),
    })
}

pub(super) const SORTED: [&str; 3] = ["rank:a", "rank:b", "_indices"];

/// Questions for all of a set are left out where sets are read in pages.
pub(super) fn sorted_command(random: &mut Random, is_paged: bool) -> Vec<String> {
    let key = *random.pick(&SORTED);
    let members: Vec<String> = (0..3).map(|_| format!("p{}", random.between(0, 12))).collect();
    let [first, second, third] = [&members[0], &members[1], &members[2]];
    let number = |random: &mut Random| random.between(0, 9).cast_signed() - 3;
    let (score, other) = (number(random), number(random));
    let (low, high) = (score.min(other), score.max(other) + 2);
    let open = *random.pick(&["", "("]);
    let limit = format!("LIMIT {} {}", random.between(0, 2), random.between(0, 3));
    let flag = *random.pick(&["NX", "XX", "GT", "LT", "CH", "XX CH", "GT CH"]);
    let scores = *random.pick(&["", " WITHSCORES"]);
    let text = match random.between(0, 30) {
        0..4 => format!("ZADD {key} {score} {first}"),
        4 => format!("ZADD {key} {score} {first} {other} {second} {low} {third}"),
        5 => format!("ZADD {key} {flag} {score} {first} {other} {second}"),
        6 => format!("ZADD {key} INCR {score} {first}"),
        7 => format!("ZADD {key} XX INCR {score} {first}"),
        8 => format!("ZINCRBY {key} {score} {first}"),
        9..11 => format!("ZREM {key} {first}"),
        11 => format!("ZREM {key} {first} {second}"),
        12 => format!("ZSCORE {key} {first}"),
        13 => format!("ZMSCORE {key} {first} {second}"),
        14..16 => format!("ZCARD {key}"),
        16..19 => format!("ZRANGEBYSCORE {key} {open}{low} {high} {limit}"),
        19 => format!("ZRANGEBYSCORE {key} {low} +inf LIMIT 0 3"),
        20 => format!("ZREVRANGEBYSCORE {key} {high} {open}{low} {limit}"),
        21 => format!("ZRANGE {key} 0 {}{scores}", random.between(0, 3)),
        22 => format!("ZREVRANGE {key} 0 1{scores}"),
        23 => format!("ZRANGE {key} -2 -1{scores}"),
        24 => format!("ZRANGE {key} {open}{low} {high} BYSCORE {limit}"),
        25 => format!("EXISTS {key}"),
        _ if is_paged => format!("ZREVRANGE {key} -1 -1"),
        26 => format!("ZRANGE {key} {} {}{scores}", number(random), number(random)),
        27 => format!("ZCOUNT {key} {open}{low} {high}"),
        28 => format!("ZRANK {key} {first}"),
        29 if random.between(0, 3) == 0 => format!("DEL {key}"),
        _ => format!("ZREVRANK {key} {first}"),
    };
    words(&text)
}

/// What the origin holds of a sorted set, as Redis shows it.
fn sorted_rows(database: &Database, key: &str) -> Vec<Vec<String>> {
    match key.strip_prefix("rank:") {
        Some(board) => database.rows(&format!(
            "SELECT player, CAST(points AS INTEGER) FROM ranks WHERE board = '{board}' ORDER BY points, player"
        )),
        None => database.rows("SELECT name, place FROM everybody ORDER BY place, name"),
    }
}

/// Whether the origin holds of a sorted set what Redis does.
#[track_caller]
pub(super) fn is_at_the_origin(database: &Database, redis: &mut Client, key: &str) {
    assert_eq!(sorted_rows(database, key), all_with_scores(redis, key), "{key}");
}

fn all_with_scores(client: &mut Client, key: &str) -> Vec<Vec<String>> {
    let reply = client.call(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
    let texts: Vec<String> = reply.array().iter().map(Reply::text).collect();
    texts.chunks(2).map(<[String]>::to_vec).collect()
}

#[test]
fn sets_behave_as_in_redis_through_evictions_destages_and_crashes() {
    let scratch = Scratch::new();
    let Some(redis) = Redis::start(&scratch) else { return };
    for (number, database) in databases(&scratch).into_iter().enumerate() {
        let mut redis = redis.client();
        redis.run("FLUSHALL").ok();
        let launch = launch(&scratch, &database, &format!("data-{number}"), MAPPINGS);
        let server = behaves_as_redis(&launch, &mut redis, rounds(number), &SETS, set_command);
        server.drain();
        for key in SETS {
            let id = key.trim_start_matches("tags:");
            let rows = database
                .rows(&format!("SELECT tag FROM tags WHERE product_id = {id} ORDER BY tag"));
            let mut members: Vec<String> =
                redis.call(&["SMEMBERS", key]).array().iter().map(Reply::text).collect();
            members.sort();
            assert_eq!(rows.into_iter().flatten().collect::<Vec<_>>(), members, "{key}");
        }
        assert_eq!(server.status()["destage"]["parked_groups"], 0);
    }
}

#[test]
fn sorted_sets_behave_as_in_redis_through_evictions_destages_and_crashes() {
    let scratch = Scratch::new();
    let Some(redis) = Redis::start(&scratch) else { return };
    for (number, database) in databases(&scratch).into_iter().enumerate() {
        for is_paged in [false, true] {
            let mut redis = redis.client();
            redis.run("FLUSHALL").ok();
            database.execute("DELETE FROM ranks");
            database.execute("DELETE FROM everybody");
            let launch =
                launch(&scratch, &database, &format!("data-{number}"), &mappings(is_paged));
            let command = |random: &mut Random| sorted_command(random, is_paged);
            let server = behaves_as_redis(&launch, &mut redis, rounds(number), &SORTED, command);
            server.drain();
            for key in SORTED {
                is_at_the_origin(&database, &mut redis, key);
            }
            assert_eq!(server.status()["destage"]["parked_groups"], 0);
            server.terminate(PATIENCE);
        }
    }
}

#[test]
fn the_rows_of_a_set_are_hashes_and_both_directions_are_sets() {
    let scratch = Scratch::new();
    for (number, database) in databases(&scratch).into_iter().enumerate() {
        let server = launch(&scratch, &database, &format!("data-{number}"), MAPPINGS).start();
        let mut client = server.client();
        assert_eq!(client.run("SMEMBERS tags:1").array(), []);
        assert_eq!(client.run("SADD tags:1 red new").int(), 2);
        assert_eq!(client.run("SMEMBERS tagged:red").array(), [Reply::Bulk(b"1".into())]);
        assert_eq!(client.run("SADD tagged:red 2").int(), 1);
        assert_eq!(client.run("SISMEMBER tags:2 red").int(), 1);
        // A pattern that takes a key hides the row of that name.
        assert!(client.run("HGET tags:2:red tag").error().contains("tags.product_id"));
        server.terminate(PATIENCE);
    }
}

#[test]
fn members_that_the_origin_deletes_by_itself_are_gone_from_their_set() {
    let scratch = Scratch::new();
    for (number, database) in databases(&scratch).into_iter().enumerate() {
        let server = launch(&scratch, &database, &format!("data-{number}"), MAPPINGS).start();
        let mut client = server.client();
        client.run("SADD tags:1 red new").int();
        assert_eq!(client.run("SCARD tags:1").int(), 2);
        assert_eq!(client.run("SCARD tagged:red").int(), 1);
        assert_eq!(client.run("DEL products:1").int(), 1);
        assert_eq!(client.run("SCARD tags:1").int(), 0);
        assert_eq!(client.run("SMEMBERS tagged:red").array(), []);
        server.terminate(PATIENCE);
    }
}

#[test]
fn a_transaction_sees_its_own_members_and_a_watched_set_ends_it() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(TABLES);
    for mappings in [MAPPINGS.to_owned(), paged()] {
        let server = launch(&scratch, &database, "data", &mappings).start();
        let (mut one, mut other) = (server.client(), server.client());
        for n in 0..6 {
            one.run(&format!("ZADD rank:a {n} p{n}"));
        }
        for command in
            ["MULTI", "ZADD rank:a 2.5 new", "ZREM rank:a p1", "ZRANGE rank:a 0 2", "ZCARD rank:a"]
        {
            one.run(command);
        }
        let replies = one.run("EXEC");
        let members: Vec<String> = replies.array()[2].array().iter().map(Reply::text).collect();
        assert_eq!(members, ["p0", "p2", "new"]);
        assert_eq!(replies.array()[3].int(), 6);
        for command in
            ["MULTI", "SADD tags:1 red", "SADD tags:1 new", "DEL tags:1", "SCARD tags:1", "EXEC"]
        {
            let reply = one.run(command);
            if command == "EXEC" {
                let replies = reply.array().iter().map(Reply::int).collect::<Vec<_>>();
                assert_eq!(replies, [1, 1, 1, 0]);
            }
        }
        one.run("WATCH rank:a").ok();
        other.run("ZADD rank:a 9 theirs");
        one.run("MULTI").ok();
        one.run("ZADD rank:a 9 mine");
        assert_eq!(one.run("EXEC"), Reply::Nil);
        for member in ["p0", "p1", "p2", "p3", "p4", "p5", "new", "theirs"] {
            one.run(&format!("ZREM rank:a {member}"));
        }
        server.terminate(PATIENCE);
    }
}

#[test]
fn a_large_set_is_read_in_parts_and_says_what_needs_all_of_it() {
    let scratch = Scratch::new();
    for (number, database) in databases(&scratch).into_iter().enumerate() {
        let values: Vec<String> = (0..500).map(|n| format!("('m{n:03}', {n})")).collect();
        database.execute(&format!("INSERT INTO everybody VALUES {}", values.join(", ")));
        let server = launch(&scratch, &database, &format!("data-{number}"), &paged()).start();
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        let page = client.run("ZRANGEBYSCORE _indices 100 +inf LIMIT 0 3");
        assert_eq!(
            page.array().iter().map(Reply::text).collect::<Vec<_>>(),
            ["m100", "m101", "m102"]
        );
        // More than a page's spare elements are deleted, and one is moved into it.
        for n in 101..140 {
            assert_eq!(client.run(&format!("ZREM _indices m{n}")).int(), 1);
        }
        client.run("ZADD _indices 139 m400").int();
        let page = client.run("ZRANGEBYSCORE _indices 100 +inf LIMIT 0 3");
        assert_eq!(
            page.array().iter().map(Reply::text).collect::<Vec<_>>(),
            ["m100", "m400", "m140"]
        );
        assert_eq!(client.run("ZCARD _indices").int(), 461);
        let last = client.run("ZRANGE _indices -1 -1");
        assert_eq!(last.array()[0].text(), "m499");
        for command in
            ["ZRANGE _indices 0 -1", "ZRANK _indices m100", "ZCOUNT _indices 0 400", "DEL _indices"]
        {
            assert!(client.run(command).error().starts_with("LARGE "), "{command}");
        }
        client.run("DESTAGE RESUME").ok();
        server.drain();
        assert_eq!(client.run("ZCARD _indices").int(), 461);
        assert_eq!(database.number("SELECT count(*) FROM everybody"), 461);
    }
}

/// What is asked of a sorted set that has shrunk, and what Redis says.
fn is_read_as_a_whole(client: &mut Client, members: &[&str]) {
    let key = "rank:q";
    let there = i64::from(!members.is_empty());
    assert_eq!(client.run(&format!("EXISTS {key}")).int(), there);
    let kind = if members.is_empty() { "none" } else { "zset" };
    assert_eq!(client.run(&format!("TYPE {key}")).text(), kind);
    let all = client.run(&format!("ZRANGE {key} 0 -1"));
    assert_eq!(all.array().iter().map(Reply::text).collect::<Vec<_>>(), members);
    let rank = client.run(&format!("ZRANK {key} e"));
    let place = members.iter().position(|member| *member == "e");
    assert_eq!(rank, place.map_or(Reply::Nil, |place| Reply::Int(place as i64)));
    // A start and a stop before the beginning.
    assert_eq!(client.run(&format!("ZRANGE {key} -9 -9")).array(), []);
}

#[test]
fn a_large_set_that_shrinks_is_read_as_a_whole_again() {
    let scratch = Scratch::new();
    for (number, database) in databases(&scratch).into_iter().enumerate() {
        let data = format!("data-{number}");
        // What the sets have lost is undecided, and keeps them in memory, until the destager resumes.
        for is_paused in [true, false] {
            database.execute("DELETE FROM ranks");
            let server = launch(&scratch, &database, &data, &paged()).start();
            let mut client = server.client();
            let add = "ZADD rank:q 1 a 2 b 3 c 4 d 5 e";
            assert_eq!(client.run(add).int(), 5);
            server.drain();
            assert!(client.run("ZRANGE rank:q 0 -1").error().starts_with("LARGE "));
            if is_paused {
                client.run("DESTAGE PAUSE").ok();
            }
            assert_eq!(client.run("ZREM rank:q a").int(), 1);
            assert!(client.run("ZRANK rank:q e").error().starts_with("LARGE "));
            assert!(client.run("DEL rank:q").error().starts_with("LARGE "));
            assert_eq!(client.run("EXISTS rank:q").int(), 1);
            assert_eq!(client.run("ZREM rank:q b c").int(), 2);
            is_read_as_a_whole(&mut client, &["d", "e"]);
            for command in ["MULTI", "ZREM rank:q d e", "EXISTS rank:q", "ZADD rank:q 5 e"] {
                client.run(command);
            }
            assert_eq!(client.run("EXEC").array()[1].int(), 0);
            is_read_as_a_whole(&mut client, &["e"]);
            assert_eq!(client.run("DEL rank:q").int(), 1);
            is_read_as_a_whole(&mut client, &[]);
            assert_eq!(client.run(add).int(), 5);
            assert_eq!(client.run("ZREM rank:q a b c d e").int(), 5);
            is_read_as_a_whole(&mut client, &[]);
            client.run("DESTAGE RESUME").ok();
            server.drain();
            is_read_as_a_whole(&mut client, &[]);
            server.terminate(PATIENCE);
        }
    }
}

/// A server whose buffered writes are in its journal alone.
fn restarted_with_a_backlog(scratch: &Scratch, mappings: &str, arguments: &[&str]) -> Server {
    let database = Database::sqlite(scratch).with(TABLES);
    let values: Vec<String> = (0..9).map(|n| format!("('m{n}', {n})")).collect();
    database.execute(&format!("INSERT INTO everybody VALUES {}", values.join(", ")));
    let when = ["--when", "periodic:1h"];
    let launch = launch(scratch, &database, "data", mappings).with(&when);
    let server = launch.start();
    server.client().run("ZREM _indices m0").int();
    server.client().run("ZADD _indices 1 new").int();
    server.kill();
    launch.with(arguments).start()
}

fn first_two(server: &Server) -> Vec<String> {
    let reply = server.client().run("ZRANGE _indices 0 1");
    reply.array().iter().map(Reply::text).collect()
}

#[test]
fn members_that_only_the_journal_holds_are_read_after_a_crash() {
    for mappings in [MAPPINGS.to_owned(), paged()] {
        let scratch = Scratch::new();
        let server = restarted_with_a_backlog(&scratch, &mappings, &[]);
        assert_eq!(first_two(&server), ["m1", "new"]);
    }
}

#[test]
fn without_the_overlay_the_old_members_are_read() {
    for mappings in [MAPPINGS.to_owned(), paged()] {
        let scratch = Scratch::new();
        let server = restarted_with_a_backlog(&scratch, &mappings, &["--unsafe-no-overlay"]);
        assert_eq!(first_two(&server), ["m0", "m1"]);
    }
}

#[test]
fn a_set_that_fits_no_table_is_refused_at_start() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(TABLES);
    for (number, (mapping, words)) in [
        ("[[set]]\nkey='a:{product_id}'\ntable='tags'\nmember='none'", &["no column 'none'"][..]),
        ("[[set]]\nkey='a:{id}'\ntable='products'\nmember='name'", &["not part of the key"]),
        ("[[set]]\nkey='a'\ntable='tags'\nmember='tag'", &["lacks {product_id}"]),
        ("[[set]]\nkey='a:{board}'\ntable='ranks'\nmember='player'", &["ranks.points", "NOT NULL"]),
        (
            "[[zset]]\nkey='a:{product_id}'\ntable='tags'\nmember='tag'\nscore='tag'",
            &["cannot be a score"],
        ),
        (
            "[[zset]]\nkey='a'\ntable='everybody'\nmember='name'\nscore='place'\nmembers-max=0",
            &["members-max"],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        launch(&scratch, &database, &format!("data-{number}"), mapping).refused().says(2, words);
    }
}
