//! Strings over a column.

use super::{behaves_as_redis, launch, rounds};
use crate::harness::{Database, PATIENCE, Random, Redis, Reply, Scratch, Server, eventually, shop};

pub(super) const TABLES: &str = "
CREATE TABLE notes (name VARCHAR(40) PRIMARY KEY, body TEXT, seen INTEGER NOT NULL DEFAULT 0);
CREATE TABLE counters (id INTEGER PRIMARY KEY, n BIGINT NOT NULL);
CREATE TABLE bare (id INTEGER PRIMARY KEY, body TEXT, owner TEXT NOT NULL);
";

pub(super) const MAPPINGS: &str = r#"
[[string]]
key = "note:{name}"
table = "notes"
value = "body"

[[string]]
key = "counter:{id}"
table = "counters"
value = "n"

[[string]]
key = "bare:{id}:body"
table = "bare"
value = "body"

[[hash]]
key = "{name=user*}"
table = "notes"
"#;

fn databases(scratch: &Scratch) -> Vec<Database> {
    let found = [Some(Database::sqlite(scratch)), Database::postgres(), Database::mariadb()];
    found.into_iter().flatten().map(|database| database.with(TABLES)).collect()
}

const KEYS: [&str; 6] = ["note:a", "note:b", "note:c d", "note:e:f", "counter:1", "counter:2"];

fn command(random: &mut Random) -> Vec<String> {
    let counter = random.between(0, 3) == 0;
    let key = if counter {
        KEYS[random.between(4, 6) as usize]
    } else {
        KEYS[random.between(0, 4) as usize]
    };
    let number = |random: &mut Random| random.between(0, 2_000).cast_signed() - 1_000;
    let value = match random.between(0, 3) {
        _ if counter => number(random).to_string(),
        0 => number(random).to_string(),
        1 => format!("{}.5", random.between(0, 50)),
        _ => format!("text {}", random.next()),
    };
    let by = number(random).to_string();
    let other = KEYS[random.between(0, 4) as usize];
    let text = match random.between(0, 24) {
        0..4 => format!("GET\0{key}"),
        4..7 => format!("SET\0{key}\0{value}"),
        7 => format!("SET\0{key}\0{value}\0NX"),
        8 => format!("SET\0{key}\0{value}\0XX"),
        9 => format!("SET\0{key}\0{value}\0GET"),
        10 => format!("SETNX\0{key}\0{value}"),
        11 => format!("GETSET\0{key}\0{value}"),
        12 => format!("GETDEL\0{key}"),
        13 => format!("MGET\0{key}\0{other}\0{key}"),
        14 => format!("MSET\0{key}\0{value}\0{other}\0x{by}"),
        15 => format!("MSETNX\0{key}\0{value}\0{other}\0y"),
        16 => format!("INCR\0{key}"),
        17 => format!("DECRBY\0{key}\0{by}"),
        18 => format!("INCRBY\0{key}\0{by}"),
        19 if !counter => format!("INCRBYFLOAT\0{key}\0{}.25", random.between(0, 9)),
        20 if !counter => format!("APPEND\0{key}\0{}", random.between(0, 10)),
        21 => format!("GETRANGE\0{key}\0{}\0{}", number(random) % 8, number(random) % 8),
        22 => format!("DEL\0{key}\0{other}"),
        23 => format!("EXISTS\0{key}\0{key}"),
        _ => format!("STRLEN\0{key}"),
    };
    text.split('\0').map(str::to_owned).collect()
}

#[test]
fn strings_behave_as_in_redis_through_evictions_destages_and_crashes() {
    let scratch = Scratch::new();
    let Some(redis) = Redis::start(&scratch) else { return };
    for (number, database) in databases(&scratch).into_iter().enumerate() {
        let mut redis = redis.client();
        redis.run("FLUSHALL").ok();
        let launch = launch(&scratch, &database, &format!("data-{number}"), MAPPINGS);
        let server = behaves_as_redis(&launch, &mut redis, rounds(number), &KEYS, command);
        server.drain();
        for key in KEYS {
            let (table, key_column, value, id) = match key.split_once(':').expect("keys have one") {
                ("note", id) => ("notes", "name", "body", id),
                (_, id) => ("counters", "id", "n", id),
            };
            let sql = format!("SELECT {value} FROM {table} WHERE {key_column} = '{id}'");
            let rows = database.rows(&sql);
            let stored = rows.first().map(|row| row[0].clone());
            let expected = match redis.call(&["GET", key]) {
                Reply::Nil => None,
                reply => Some(reply.text()),
            };
            assert_eq!(stored, expected, "{key}");
        }
        assert_eq!(server.status()["destage"]["parked_groups"], 0);
    }
}

/// A server whose buffered writes are in its journal alone, as after a crash of the host.
fn restarted_with_a_backlog(scratch: &Scratch, arguments: &[&str]) -> Server {
    let database = Database::sqlite(scratch).with(TABLES);
    database.execute("INSERT INTO notes (name, body) VALUES ('a', 'old')");
    let launch = launch(scratch, &database, "data", MAPPINGS).with(&["--when", "periodic:1h"]);
    let server = launch.start();
    server.client().run("SET note:a new").ok();
    server.kill();
    launch.with(arguments).start()
}

#[test]
fn a_string_that_only_the_journal_holds_is_read_after_a_crash() {
    let scratch = Scratch::new();
    let server = restarted_with_a_backlog(&scratch, &[]);
    assert_eq!(server.client().run("GET note:a").text(), "new");
}

#[test]
fn without_the_overlay_the_old_string_is_read() {
    let scratch = Scratch::new();
    let server = restarted_with_a_backlog(&scratch, &["--unsafe-no-overlay"]);
    assert_eq!(server.client().run("GET note:a").text(), "old");
}

#[test]
fn a_key_is_what_its_mapping_says_and_the_row_stays_a_hash() {
    let scratch = Scratch::new();
    for (number, database) in databases(&scratch).into_iter().enumerate() {
        let launch = launch(&scratch, &database, &format!("data-{number}"), MAPPINGS);
        let server = launch.start();
        let mut client = server.client();
        client.run("SET note:a hello").ok();
        assert_eq!(client.run("HGET notes:a body").text(), "hello");
        assert_eq!(client.run("HINCRBY notes:a seen 2").int(), 2);
        assert_eq!(client.run("GET note:a").text(), "hello");
        assert_eq!(client.run("TYPE note:a").text(), "string");
        assert_eq!(client.run("TYPE notes:a").text(), "hash");
        assert!(client.run("HGET note:a body").error().starts_with("WRONGTYPE"));
        assert!(client.run("GET notes:a").error().starts_with("WRONGTYPE"));
        assert_eq!(client.run("HSET user7 body x seen 1").int(), 2);
        assert_eq!(client.run("HGET notes:user7 body").text(), "x");
        let error = client.run("SET note:a x EX 5");
        assert!(error.error().contains("rows do not expire"), "{error:?}");
        let error = client.run("SET counter:7 many");
        assert!(error.error().contains("counters.n"), "{error:?}");
        let error = client.run("SET counter:x 7");
        assert!(error.error().contains("counters.id"), "{error:?}");
        let error = client.run("SET bare:1:body x");
        assert!(error.error().contains("owner"), "{error:?}");
        server.drain();
        assert_eq!(
            database.rows("SELECT body, seen FROM notes WHERE name = 'a'"),
            [["hello", "2"]]
        );
        // Another program's change is seen once the copy is dropped.
        database.execute("UPDATE notes SET body = 'theirs' WHERE name = 'a'");
        assert_eq!(client.run("DESTAGE INVALIDATE note:a").int(), 1);
        assert_eq!(client.run("GET note:a").text(), "theirs");
        server.terminate(PATIENCE);
    }
}

#[test]
fn a_watched_string_that_changes_ends_the_transaction() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(TABLES);
    let server = launch(&scratch, &database, "data", MAPPINGS).start();
    let (mut one, mut other) = (server.client(), server.client());
    one.run("WATCH note:a").ok();
    other.run("HSET notes:a body theirs");
    one.run("MULTI").ok();
    one.run("SET note:a mine");
    assert_eq!(one.run("EXEC"), Reply::Nil);
    one.run("WATCH note:a").ok();
    one.run("MULTI").ok();
    one.run("SET note:a mine");
    assert_eq!(one.run("EXEC").array().len(), 1);
    eventually("the value is at the origin", PATIENCE, || {
        database.rows("SELECT body FROM notes") == [["mine"]]
    });
}

#[test]
fn mapped_rows_are_leased_by_their_keys() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(TABLES);
    let server = launch(&scratch, &database, "data", MAPPINGS).start();
    let mut one = server.client();
    for command in ["DESTAGE BEGIN 60000", "DESTAGE EXCLUDE note:a user1", "DESTAGE ABSENT note:b"]
    {
        one.run(command).ok();
    }
    for command in ["SET note:a x", "HSET user1 body x"] {
        let mut other = server.client();
        other.run("DESTAGE BEGIN 60000").ok();
        assert!(other.run(command).error().starts_with("RETRY"), "{command}");
    }
    assert!(one.run("DESTAGE EXCLUDE nobody").is_error());
    assert!(one.run("EXEC").error().starts_with("EXECABORT"));
}

#[test]
fn a_mapping_that_fits_no_table_is_refused_at_start() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    for (number, (mapping, words)) in [
        ("[[string]]\nkey='a:{id}'\ntable='none'\nvalue='x'", &["a:{id}", "no table none"][..]),
        ("[[string]]\nkey='a:{id}'\ntable='customers'\nvalue='x'", &["no column 'x'", "email"]),
        ("[[string]]\nkey='a:{nr}'\ntable='customers'\nvalue='name'", &["lacks {id}"]),
        ("[[string]]\nkey='a:{id}'\ntable='customers'\nvalue='id'", &["part of the key"]),
        ("[[string]]\nkey='a:{id}:{x}'\ntable='customers'\nvalue='name'", &["one name too many"]),
        ("[[hash]]\nkey='a:{id}'\ntable='log_lines'", &["cannot be reached", "primary key"]),
    ]
    .into_iter()
    .enumerate()
    {
        launch(&scratch, &database, &format!("data-{number}"), mapping).refused().says(2, words);
    }
}
