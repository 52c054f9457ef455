//! Tables without a primary key, whose rows are reached by a unique index; and keys of MariaDB whose collations fold.

use super::scan::scan;
use crate::harness::server::binary;
use crate::harness::{Client, Database, Launch, Scratch};
use crate::mapped;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// `twins` is `parts` with a primary key.
const TABLES: &str = "
CREATE TABLE parts (
    n INTEGER, word NAME NOT NULL, place INTEGER NOT NULL, spare INTEGER UNIQUE, UNIQUE (place, word));
CREATE TABLE twins (
    n INTEGER, word NAME NOT NULL, place INTEGER NOT NULL, spare INTEGER UNIQUE, PRIMARY KEY (place, word));
CREATE TABLE names (word NAME NOT NULL, n INTEGER NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX names_word ON names (word);
CREATE TABLE loose (word NAME , n INTEGER, UNIQUE (word));
CREATE TABLE many (d INTEGER, c INTEGER NOT NULL, b INTEGER NOT NULL, a INTEGER NOT NULL);
CREATE UNIQUE INDEX aa ON many (a, b);
CREATE UNIQUE INDEX bb ON many (d);
CREATE UNIQUE INDEX yy ON many (b);
CREATE UNIQUE INDEX zz ON many (c);
";

fn before_each_database(body: impl Fn(&Database, &Launch)) {
    let scratch = Scratch::new();
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(TABLES);
        body(&database, &mapped::launch(&scratch, &database, &format!("data-{number}"), ""));
    }
}

/// What `destage schema` prints.
fn schema(database: &Database, format: &str) -> String {
    let mut command = Command::new(binary());
    command.args(["schema", "--origin", &database.url(), "--format", format]);
    let output = command.output().expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it is text")
}

fn parts(database: &Database, table: &str) -> Vec<Vec<String>> {
    let columns = "place, word, coalesce(n, -1), coalesce(spare, -1)";
    database.rows(&format!("SELECT {columns} FROM {table} ORDER BY place, word"))
}

#[test]
fn rows_without_a_primary_key_are_reached_by_a_unique_index() {
    before_each_database(|database, launch| {
        database.execute("INSERT INTO names (word, n) VALUES ('old', 4), ('gone', 1)");
        let server = launch.start();
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        assert_eq!(client.run("HSET parts:7:x n 5 spare 1").int(), 2);
        assert_eq!(client.run("HSET parts:8:x n 1").int(), 1);
        assert_eq!(client.run("HINCRBY parts:7:x n 2").int(), 7);
        assert_eq!(client.run("HDEL parts:7:x spare").int(), 1);
        assert_eq!(client.run("HINCRBY names:old n 1").int(), 5);
        assert_eq!(client.run("DEL names:gone parts:8:x").int(), 2);
        assert!(client.run("HGET loose:x n").error().contains("no unique index"));
        assert!(client.run("DESTAGE NEXTID parts").is_error());
        server.kill();
        let server = launch.start();
        let mut client = server.client();
        assert_eq!(client.run("HGET parts:7:x n").int(), 7);
        server.drain();
        assert_eq!(parts(database, "parts"), [["7", "x", "7", "-1"]]);
        assert_eq!(database.rows("SELECT word, n FROM names"), [["old", "5"]]);
        client.run("DESTAGE INVALIDATE *");
        assert_eq!(client.run("HGETALL parts:7:x").pairs().len(), 3);
        assert_eq!(client.run("HGET names:old n").int(), 5);
        assert_eq!(scan(&mut client, "parts:*", 3), ["parts:7:x"]);
        assert_eq!(server.status()["destage"]["parked_groups"], 0);
    });
}

#[test]
fn crashes_between_writes_by_a_unique_index_double_and_lose_none() {
    before_each_database(|database, launch| {
        for round in 1..=4 {
            let server = launch.start();
            let mut client = server.client();
            assert_eq!(client.run("HINCRBY parts:1:x n 1").int(), round * 2 - 1);
            client.run(&format!("HSET parts:{round}:gone n 1 spare {round}")).int();
            assert_eq!(client.run("HINCRBY parts:1:x n 1").int(), round * 2);
            assert_eq!(client.run(&format!("HDEL parts:{round}:gone spare")).int(), 1);
            if round % 2 == 0 {
                assert_eq!(client.run(&format!("DEL parts:{round}:gone")).int(), 1);
            }
            server.kill();
        }
        let server = launch.start();
        server.drain();
        let expected = [["1", "gone", "1", "-1"], ["1", "x", "8", "-1"], ["3", "gone", "1", "-1"]];
        assert_eq!(parts(database, "parts"), expected);
        assert_eq!(server.status()["destage"]["parked_groups"], 0);
    });
}

/// The replies to the same commands on a table, in which it has the name `T`.
fn replies(client: &mut Client, table: &str) -> Vec<String> {
    let commands = [
        "HSET T:7:x n 5 spare 6",
        "HSET T:7:x word y",
        "HSET T:7:x place 8 n 3",
        "HSET T:7:x place 7 word x n 9",
        "HSET T:9:z place 1 word z",
        "HSETNX T:7:x word y",
        "HDEL T:7:x word",
        "HDEL T:7:x place n",
        "HINCRBY T:7:x place 1",
        "HINCRBYFLOAT T:7:x word 1",
        "HGETALL T:7:x",
        "HKEYS T:7:x",
        "HSET T:7 n 1",
        "HSET T:seven:x n 1",
        "EXISTS T:8:x T:7:y T:7:x T:9:z T:1:z",
    ];
    let commands = commands.iter();
    commands
        .map(|command| {
            let reply = client.run(&command.replace("T:", &format!("{table}:")));
            format!("{command}: {reply:?}").replace(table, "T")
        })
        .collect()
}

#[test]
fn columns_of_a_unique_index_that_is_the_key_change_no_more_than_those_of_a_primary_key() {
    before_each_database(|database, launch| {
        let server = launch.start();
        let mut client = server.client();
        let [by_index, by_key] = ["parts", "twins"].map(|table| replies(&mut client, table));
        assert_eq!(by_index, by_key);
        assert!(by_key[1].contains("Error"), "{by_key:?}");
        server.drain();
        assert_eq!(parts(database, "parts"), parts(database, "twins"));
        // What others change is a row that is gone, and another one that is there.
        for table in ["parts", "twins"] {
            database.execute(&format!("UPDATE {table} SET word = 'y' WHERE place = 7"));
        }
        client.run("DESTAGE INVALIDATE *");
        for table in ["parts", "twins"] {
            assert_eq!(client.run(&format!("EXISTS {table}:7:x")).int(), 0);
            assert_eq!(client.run(&format!("HGET {table}:7:y spare")).int(), 6);
        }
    });
}

#[test]
fn of_several_unique_indexes_the_shortest_is_the_key_then_the_first_by_name() {
    before_each_database(|database, launch| {
        let json: Value = serde_json::from_str(&schema(database, "json")).expect("it is JSON");
        let tables = json["tables"].as_array().expect("a list");
        let of = |name: &str| tables.iter().find(|table| table["name"] == name).expect("is there");
        let many = of("many");
        assert_eq!((&many["key"][0], &many["key_index"]), (&"b".into(), &"yy".into()), "{many}");
        let others = many["unique"].as_array().expect("a list");
        let names = others.iter().filter_map(|unique| unique["name"].as_str());
        assert_eq!(names.collect::<BTreeSet<_>>(), BTreeSet::from(["aa", "bb", "zz"]));
        assert!(of("twins")["key_index"].is_null());
        let shown = schema(database, "table");
        let said = "has no primary key: its unique index names_word is the key";
        let line = shown.lines().find(|line| line.starts_with("names:{word} "));
        assert!(line.is_some_and(|line| line.contains(said)), "{shown}");

        // A journal whose writes have another key is not destaged under this one.
        let server = launch.start();
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        assert_eq!(client.run("HSET many:2 a 1 c 3 d 4").int(), 3);
        server.kill();
        database.execute("CREATE UNIQUE INDEX ab ON many (a)");
        launch.refused().says(13, &["the key of many is another one now"]);
        database.execute(match database {
            Database::Mariadb(_) => "DROP INDEX ab ON many",
            _ => "DROP INDEX ab",
        });
        let server = launch.start();
        server.drain();
        assert_eq!(database.rows("SELECT a, b, c, d FROM many"), [["1", "2", "3", "4"]]);
    });
}

const FOLDED: &str = "
CREATE TABLE authors (
    name varchar(20) COLLATE utf8mb4_general_ci DEFAULT 'it''s \\\\' COMMENT 'a ''name''' CHECK (name <> 'x'),
    n int DEFAULT 0, PRIMARY KEY (name));
CREATE TABLE books (
    title varchar(20) CHARACTER SET latin1 NOT NULL, author varchar(20) COLLATE utf8mb4_general_ci, n int,
    UNIQUE books_title (title),
    CONSTRAINT `by` FOREIGN KEY (author) REFERENCES authors (name) ON DELETE CASCADE);
CREATE TABLE tagged (
    a varchar(9) COLLATE utf8mb4_unicode_ci, n int NOT NULL, b varchar(9) COLLATE utf8mb4_nopad_bin, v int,
    PRIMARY KEY (a, n, b));
CREATE TABLE plain (id int PRIMARY KEY, author varchar(20) COLLATE utf8mb4_general_ci);
INSERT INTO authors VALUES ('Ann', 1);
INSERT INTO books VALUES ('One', 'Ann', 1);
";

#[test]
fn keys_of_mariadb_that_fold_are_told_once_with_the_whole_change_which_mends_them() {
    let Some(database) = Database::mariadb() else { return };
    let database = database.with(FOLDED);
    let scratch = Scratch::new();
    let launch = Launch::before(&scratch, &database.url());
    let server = launch.start();
    let refused = server.client().run("HGET authors:Ann n");
    assert!(refused.error().contains("the whole change: destage schema"), "{refused:?}");
    let log = server.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("ALTER TABLE")).collect();
    assert!(told.len() == 1 && told[0].contains("tagged") && told[0].contains("books"), "{log}");
    server.kill();

    let shown = schema(&database, "table");
    let begin = shown.find("-- Texts that differ").expect("it is told");
    let statements = &shown[begin..];
    assert_eq!(statements.matches("ALTER TABLE").count(), 5, "{statements}");
    assert!(!statements.contains("plain"), "{statements}");
    // Pasted as it is.
    database.execute(statements);
    let json: Value = serde_json::from_str(&schema(&database, "json")).expect("it is JSON");
    assert_eq!(json["unreachable"].as_array().map(Vec::len), Some(0), "{json}");
    assert_eq!(json["key_changes"].as_array().map(Vec::len), Some(0), "{json}");

    let server = launch.start();
    let mut client = server.client();
    assert_eq!(client.run("HGET authors:ann n"), client.run("HGET authors:none n"));
    assert_eq!(client.run("HSET authors:ann n 2").int(), 1);
    assert_eq!(client.run("HINCRBY authors:Ann n 2").int(), 3);
    assert_eq!(client.run("HSET books:one author ann n 1").int(), 2);
    assert_eq!(client.run("HSET tagged:A:1:b v 1").int(), 1);
    assert_eq!(client.run("HSET tagged:a:1:b v 2").int(), 1);
    server.kill();
    let server = launch.start();
    server.drain();
    let authors = database.rows("SELECT name, n FROM authors ORDER BY name");
    assert_eq!(authors, [["Ann", "3"], ["ann", "2"]]);
    assert_eq!(database.number("SELECT count(*) FROM tagged"), 2);
    // Nothing of the tables is lost: not what foreign keys do, nor conditions, defaults and comments.
    database.execute("DELETE FROM authors WHERE name = 'Ann'");
    assert_eq!(database.rows("SELECT title, author FROM books"), [["one", "ann"]]);
    let kept = "SELECT concat(COLUMN_DEFAULT, COLUMN_COMMENT) FROM information_schema.COLUMNS \
                WHERE TABLE_SCHEMA = database() AND TABLE_NAME = 'authors' AND COLUMN_NAME = 'name'";
    assert!(database.value(kept).contains("a 'name'"));
    let checks = "SELECT count(*) FROM information_schema.CHECK_CONSTRAINTS \
                  WHERE CONSTRAINT_SCHEMA = database() AND TABLE_NAME = 'authors'";
    assert_eq!(database.number(checks), 1);
    assert_eq!(server.status()["destage"]["parked_groups"], 0);
}
