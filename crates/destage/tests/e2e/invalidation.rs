//! What other programs change at the origin: dropped by hand, after a time, or because PostgreSQL tells of it.

mod notifications;
mod undecided;

use crate::harness::server::binary;
use crate::harness::{Client, Database, Launch, PATIENCE, Scratch, Server, eventually};
use serde_json::Value;
use std::process::{Command, Output};

const TABLES: &str = "
CREATE TABLE accounts (id ID , name VARCHAR(40), n INTEGER NOT NULL);
CREATE TABLE members (
    team INTEGER NOT NULL,
    who VARCHAR(20) NOT NULL,
    points INTEGER NOT NULL,
    PRIMARY KEY (team, who)
);
CREATE TABLE tags (team INTEGER NOT NULL, tag VARCHAR(20) NOT NULL, PRIMARY KEY (team, tag));
INSERT INTO accounts (id, name, n) VALUES (1, 'ada', 10), (2, 'bob', 20);
INSERT INTO members VALUES (1, 'ada', 5), (1, 'bob', 7), (2, 'cyd', 1);
INSERT INTO tags VALUES (1, 'red'), (2, 'blue');
";

/// Every kind of mapping over them.
const MAPPINGS: &str = r#"
[[string]]
key = "count:{id}"
table = "accounts"
value = "n"

[[hash]]
key = "who:{id}"
table = "accounts"

[[zset]]
key = "ranking:{team}"
table = "members"
member = "who"
score = "points"

[[set]]
key = "tagged:{team}"
table = "tags"
member = "tag"

[[query]]
key = "total"
sql = "SELECT sum(n) AS total FROM accounts"
depends_on = ["accounts"]
deadline = "60s"
"#;

/// What one key of each kind of mapping shows, and a query.
fn seen(client: &mut Client) -> Vec<String> {
    let mut seen = rows(client);
    seen.push(client.run("GET total").text());
    seen
}

/// What one key of each kind of mapping shows.
fn rows(client: &mut Client) -> Vec<String> {
    let texts = |client: &mut Client, command: &str| {
        let mut texts: Vec<String> =
            client.run(command).array().iter().map(|reply| reply.text()).collect();
        if command.starts_with("SMEMBERS") {
            texts.sort();
        }
        texts.join(" ")
    };
    vec![
        client.run("HGET accounts:1 n").text(),
        client.run("GET count:1").text(),
        client.run("HGET who:1 n").text(),
        texts(client, "ZRANGE ranking:1 0 -1 WITHSCORES"),
        client.run("ZSCORE ranking:1 ada").text(),
        texts(client, "SMEMBERS tagged:1"),
        client.run("SISMEMBER tagged:1 green").int().to_string(),
    ]
}

const BEFORE: [&str; 8] = ["10", "10", "10", "ada 5 bob 7", "5", "red", "0", r#"[{"total":30}]"#];
const AFTER: [&str; 8] =
    ["11", "11", "11", "bob 7 ada 8", "8", "green red", "1", r#"[{"total":31}]"#];

/// What makes the one of the other.
const CHANGE: &str = "UPDATE accounts SET n = 11 WHERE id = 1;
    UPDATE members SET points = 8 WHERE team = 1 AND who = 'ada';
    INSERT INTO tags VALUES (1, 'green')";

/// Before each kind of database, with these sections in the settings file.
fn on_each(sections: &str, body: impl Fn(&Server, &Database)) {
    let scratch = Scratch::new();
    let all = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in all.into_iter().flatten().enumerate() {
        let database = database.with(TABLES);
        let server = launch(&scratch, &database, &format!("data-{number}"), sections).start();
        body(&server, &database);
    }
}

fn launch(scratch: &Scratch, database: &Database, data: &str, sections: &str) -> Launch {
    crate::mapped::launch(scratch, database, data, &format!("{MAPPINGS}{sections}"))
}

fn change(database: &Database) {
    CHANGE.split(';').for_each(|statement| database.execute(statement));
}

#[test]
fn invalidating_a_table_drops_the_strings_sets_and_queries_over_it() {
    on_each("", |server, database| {
        let mut client = server.client();
        assert_eq!(seen(&mut client), BEFORE);
        change(database);
        assert_eq!(seen(&mut client), BEFORE, "nobody has said so");
        for table in ["accounts", "members", "tags"] {
            assert!(client.run(&format!("DESTAGE INVALIDATE {table}:*")).int() > 0);
        }
        assert_eq!(seen(&mut client), AFTER);
    });
}

#[test]
fn a_mapped_key_stands_for_what_is_behind_it() {
    on_each("", |server, database| {
        let mut client = server.client();
        assert_eq!(seen(&mut client), BEFORE);
        change(database);
        for keys in ["count:1", "ranking:1", "tagged:*"] {
            assert!(client.run(&format!("DESTAGE INVALIDATE {keys}")).int() > 0, "{keys}");
        }
        assert_eq!(seen(&mut client), AFTER);
        // A member's row, by its own key, stands for the sets that it is in.
        database.execute("UPDATE members SET points = 9 WHERE who = 'bob'");
        database.execute("DELETE FROM tags WHERE tag = 'red'");
        client.run("DESTAGE INVALIDATE members:1:bob tags:1:red").int();
        assert_eq!(seen(&mut client)[3..6], ["ada 8 bob 9", "8", "green"]);
    });
}

#[test]
fn every_kind_of_mapping_has_the_greatest_age_of_its_table() {
    let ages: String = ["accounts", "members", "tags"]
        .map(|table| format!("[table.{table}]\nmax_age = \"200ms\"\n"))
        .concat();
    on_each(&ages, |server, database| {
        let mut client = server.client();
        assert_eq!(rows(&mut client), BEFORE[..7]);
        change(database);
        eventually("all are fetched again", PATIENCE, || rows(&mut client) == AFTER[..7]);
        // Also where undecided changes of ours pin them.
        client.run("DESTAGE PAUSE").ok();
        assert_eq!(client.run("HINCRBY accounts:1 n 100").int(), 111);
        assert_eq!(client.run("ZADD ranking:1 1 eve").int(), 1);
        database.execute("UPDATE accounts SET n = 12, name = 'eva' WHERE id = 1");
        database.execute("UPDATE members SET points = 2 WHERE who = 'bob'");
        eventually("pinned rows are fetched again", PATIENCE, || {
            client.run("HGET accounts:1 n").text() == "112"
        });
        assert_eq!(client.run("HGET who:1 name").text(), "eva");
        eventually("pinned sets are fetched again", PATIENCE, || {
            rows(&mut client)[3] == "eve 1 bob 2 ada 8"
        });
        client.run("DESTAGE RESUME").ok();
        server.drain();
        assert_eq!(database.number("SELECT n FROM accounts WHERE id = 1"), 112);
    });
}

#[test]
fn an_origin_that_cannot_tell_says_what_can_be_done_instead() {
    let scratch = Scratch::new();
    let all = [Some(Database::sqlite(&scratch)), Database::mariadb()];
    for database in all.into_iter().flatten() {
        let database = database.with(TABLES);
        for flag in ["--install-invalidation", "--remove-invalidation"] {
            let refused = schema(&database, &[flag]);
            assert_eq!(refused.status.code(), Some(2));
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(said.contains("PostgreSQL") && said.contains("max_age"), "{said}");
        }
    }
    let dry = schema(&Database::sqlite(&scratch), &["--dry-run"]);
    assert_eq!(dry.status.code(), Some(2));
}

/// `destage schema` before a database.
fn schema(database: &Database, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(["schema", "--origin", &database.url()]).args(arguments);
    command.output().expect("the binary runs")
}

fn invalidation(server: &Server, field: &str) -> Value {
    server.status()["invalidation"][field].clone()
}
