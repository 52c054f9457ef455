//! Derived keys: the results of queries, never older than the writes that were acknowledged before.

mod slow;

use crate::harness::{Client, Database, Launch, PATIENCE, Scratch, Server, eventually};
use serde_json::{Value, json};

const TABLES: &str = "
CREATE TABLE sales (
    id ID ,
    region VARCHAR(20),
    amount INTEGER NOT NULL
);
CREATE TABLE targets (region VARCHAR(20) NOT NULL PRIMARY KEY, amount INTEGER NOT NULL);
CREATE TABLE notes (line VARCHAR(20));
CREATE VIEW reached AS SELECT s.id, s.region, t.amount AS target FROM sales s JOIN targets t
    ON t.region = s.region WHERE s.amount >= t.amount;
INSERT INTO sales (id, region, amount) VALUES (1, 'eu', 5), (2, 'eu', 7), (3, 'us', 1), (4, NULL, 9);
INSERT INTO targets VALUES ('eu', 6), ('us', 1);
";

const TOTAL: &str = "
[[query]]
key = \"total:{region}\"
sql = \"SELECT sum(amount) AS total, count(*) AS sales FROM sales WHERE region = $region -- and so on\"
depends_on = [\"sales\"]
match = { region = \"sales.region\" }
deadline = \"60s\"
";

const REACHED: &str = "
[[query]]
key = \"reached:{least}\"
sql = \"SELECT id, region, target FROM reached WHERE id >= $least ORDER BY id DESC LIMIT 10;\"
depends_on = [\"sales\", \"targets\"]
types = { least = \"integer\" }
deadline = \"60s\"
";

/// A settings file with these sections.
fn configured(scratch: &Scratch, launch: &Launch, name: &str, sections: &str) -> Launch {
    let file = scratch.join(format!("{name}.toml"));
    std::fs::write(&file, sections).expect("the file can be written");
    launch.with(&["--config", file.to_str().expect("the path is text")])
}

/// Before each kind of database, once.
fn on_each(sections: &str, body: impl Fn(&Launch, &Database)) {
    let scratch = Scratch::new();
    let all = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in all.into_iter().flatten().enumerate() {
        let database = database.with(TABLES);
        let name = format!("data-{number}");
        let launch = Launch::before(&scratch, &database.url()).elsewhere(&scratch, &name);
        body(&configured(&scratch, &launch, &name, sections), &database);
    }
}

#[track_caller]
fn get(client: &mut Client, key: &str) -> Value {
    let reply = client.call(&["GET", key]);
    assert!(!reply.is_error(), "{key}: {reply:?}");
    serde_json::from_str(&reply.text()).expect("results are JSON")
}

fn queries(server: &Server) -> u64 {
    server.status()["derived"]["queries_total"].as_u64().expect("a count")
}

/// > A result always holds every write that was acknowledged before it was asked for, from any client, cached or not, also
/// > after a crash.
#[test]
fn a_result_shows_every_write_acknowledged_before_it_was_asked_for() {
    on_each(&[TOTAL, REACHED].concat(), |launch, _| {
        let server = launch.start();
        let (mut writer, mut reader) = (server.client(), server.client());
        assert_eq!(get(&mut reader, "total:eu"), json!([{ "total": 12, "sales": 2 }]));
        assert_eq!(get(&mut reader, "total:nowhere"), json!([{ "total": null, "sales": 0 }]));
        let reached = json!([
            { "id": 3, "region": "us", "target": 1 },
            { "id": 2, "region": "eu", "target": 6 },
        ]);
        assert_eq!(get(&mut reader, "reached:-7"), reached);
        assert_eq!(get(&mut reader, "reached:4"), json!([]));
        for round in 1..=10 {
            writer.run("HINCRBY sales:1 amount 1").int();
            let total = 12 + round;
            assert_eq!(get(&mut reader, "total:eu"), json!([{ "total": total, "sales": 2 }]));
        }
        // What belongs to nobody, comes, moves and goes.
        writer.run("HSET sales:4 region eu").int();
        assert_eq!(get(&mut reader, "total:eu")[0]["total"], 31);
        writer.run("HSET sales:4 region us").int();
        assert_eq!(get(&mut reader, "total:eu")[0]["total"], 22);
        assert_eq!(get(&mut reader, "total:us")[0]["total"], 10);
        writer.run("HSET sales:50 region us amount 90").int();
        writer.run("DEL sales:3").int();
        assert_eq!(get(&mut reader, "total:us"), json!([{ "total": 99, "sales": 2 }]));
        writer.run("HSET targets:us amount 95").int();
        assert_eq!(get(&mut reader, "reached:3"), json!([]));
        writer.run("MULTI").ok();
        writer.run("HSET targets:us amount 2");
        writer.run("HSET sales:4 amount 1");
        writer.run("EXEC");
        let only = json!([{ "id": 50, "region": "us", "target": 2 }]);
        assert_eq!(get(&mut reader, "reached:3"), only);
    });
}

#[test]
fn a_result_is_cached_until_something_that_it_depends_on_is_written() {
    on_each(&[TOTAL, REACHED].concat(), |launch, _| {
        let server = launch.start();
        let mut client = server.client();
        get(&mut client, "total:eu");
        get(&mut client, "reached:0");
        let before = queries(&server);
        for _ in 0..5 {
            get(&mut client, "total:eu");
            get(&mut client, "reached:0");
            // Another region's sales are no concern of this one's total.
            client.run("HINCRBY sales:3 amount 0").int();
            get(&mut client, "total:eu");
        }
        let ran = queries(&server) - before;
        assert!(ran <= 5, "{ran} queries, and only the second key's tables were written");
        assert_eq!(client.run("EXISTS total:eu total:us").int(), 2);
        assert_eq!(client.run("TYPE total:eu").text(), "string");
        assert_eq!(client.run("TTL total:eu").int(), -1);
        assert_eq!(client.run("DEL total:eu").int(), 1);
        assert_eq!(client.run("DEL total:eu").int(), 0);
    });
}

#[test]
fn buffered_writes_are_destaged_before_the_query_or_the_request_is_given_up() {
    let hasty = TOTAL.replace("total:", "hasty:").replace("60s", "300ms");
    on_each(&[TOTAL, &hasty].concat(), |launch, database| {
        let server = launch.start();
        let mut client = server.client();
        assert_eq!(get(&mut client, "total:eu")[0]["total"], 12);
        client.run("DESTAGE PAUSE").ok();
        client.run("HINCRBY sales:1 amount 100").int();
        let error = client.call(&["GET", "hasty:eu"]).error().to_owned();
        assert!(
            error.starts_with("TIMEOUT a result of hasty:{region} must hold writes"),
            "{error}"
        );
        assert_eq!(get(&mut client, "total:us")[0]["total"], 1, "another result needs no write");
        client.run("DESTAGE RESUME").ok();
        assert_eq!(get(&mut client, "total:eu")[0]["total"], 112);
        assert_eq!(database.number("SELECT amount FROM sales WHERE id = 1"), 105);
    });
}

#[test]
fn a_result_after_a_crash_shows_what_was_acknowledged_before_it() {
    on_each(TOTAL, |launch, _| {
        let server = launch.start();
        let mut client = server.client();
        assert_eq!(get(&mut client, "total:eu")[0]["total"], 12);
        client.run("DESTAGE PAUSE").ok();
        client.run("HINCRBY sales:1 amount 100").int();
        client.run("HSET sales:60 region eu amount 1000").int();
        server.kill();
        let server = launch.start();
        let total = get(&mut server.client(), "total:eu");
        assert_eq!(total, json!([{ "total": 1112, "sales": 3 }]));
    });
}

#[test]
fn what_others_change_is_noticed_after_max_age_or_when_told() {
    let aged = TOTAL
        .replace("total:{region}", "aged:{region}")
        .replace("deadline", "max_age = \"200ms\"\ndeadline");
    let kept = aged
        .replace("aged:{region}", "kept:{region}")
        .replace("\"200ms\"", "\"1h\"\non_write = \"keep\"");
    let sections = [TOTAL, &aged, &kept, "[table.targets]\nmax_age = \"200ms\"\n"].concat();
    on_each(&sections, |launch, database| {
        let server = launch.start();
        let mut client = server.client();
        for key in ["total:eu", "aged:eu", "kept:eu"] {
            assert_eq!(get(&mut client, key)[0]["total"], 12);
        }
        assert_eq!(client.run("HGET targets:eu amount").text(), "6");
        database.execute("UPDATE sales SET amount = 50 WHERE id = 1");
        database.execute("UPDATE targets SET amount = 60 WHERE region = 'eu'");
        let is_57 = |client: &mut Client, key: &str| get(client, key)[0]["total"] == 57;
        eventually("the age is reached", PATIENCE, || is_57(&mut client, "aged:eu"));
        eventually("the row's age is reached", PATIENCE, || {
            client.run("HGET targets:eu amount").text() == "60"
        });
        assert_eq!(get(&mut client, "total:eu")[0]["total"], 12, "nobody has said so");
        client.run("DESTAGE INVALIDATE sales:*").int();
        assert!(is_57(&mut client, "total:eu"));
        // Kept through writes and what is told of rows, but not if it is dropped itself.
        client.run("HINCRBY sales:1 amount 1").int();
        assert_eq!(get(&mut client, "kept:eu")[0]["total"], 12);
        let left = client.run("TTL kept:eu").int();
        assert!((1..=3_600).contains(&left), "{left}");
        assert_eq!(client.run("DESTAGE INVALIDATE kept:eu").int(), 1);
        assert_eq!(get(&mut client, "kept:eu")[0]["total"], 58);
    });
}

#[test]
fn sections_that_cannot_work_are_refused_at_start() {
    let query = |sql: &str, tables: &str| {
        format!("[[query]]\nkey = \"all\"\nsql = \"{sql}\"\ndepends_on = [{tables}]\n")
    };
    let scratch = Scratch::new();
    let all = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in all.into_iter().flatten().enumerate() {
        let is_exact = !matches!(database, Database::Mariadb(_));
        let database = database.with(TABLES);
        let launch = Launch::before(&scratch, &database.url());
        let refused = |name: &str, sections: &str, words: &[&str]| {
            let launch = launch.elsewhere(&scratch, &format!("data-{number}"));
            configured(&scratch, &launch, name, sections).refused().says(2, words);
        };
        let sales = "\"sales\"";
        refused("column", &query("SELECT nosuch FROM sales", sales), &["all", "nosuch"]);
        refused("table", &query("SELECT 1 AS a FROM nosuch", sales), &["all", "nosuch"]);
        refused("twice", &query("SELECT id, id FROM sales", sales), &["all", "id"]);
        refused("write", &query("DELETE FROM sales", sales), &["all", "must begin with SELECT"]);
        for written in [
            "WITH x AS (SELECT 1 AS id) DELETE FROM sales",
            "WITH x AS (DELETE FROM sales RETURNING id) SELECT id FROM x",
            "SELECT id INTO TEMP copied FROM sales",
        ] {
            refused("with", &query(written, sales), &["all"]);
        }
        refused("unknown", &query("SELECT 1 AS a", "\"nosuch\""), &["depends_on", "nosuch"]);
        refused(
            "key",
            "[[query]]\nkey = \"sales:{a}\"\nsql = \"SELECT $a AS a\"\ndepends_on = [\"sales\"]",
            &["table sales"],
        );
        refused(
            "typo",
            "[[query]]\nkey = \"a\"\nsqll = \"SELECT 1\"",
            &["[[query]] number 1", "sqll"],
        );
        if let Database::Postgres(_) = database {
            let locks = query("SELECT id FROM sales FOR UPDATE", sales);
            refused("locks", &locks, &["all", "only reads"]);
        }
        if is_exact {
            let message = ["it reads targets, which depends_on does not list"];
            refused("through-view", &query("SELECT * FROM reached", sales), &message);
        }
    }
}

#[test]
fn a_query_that_would_write_is_told_so_and_its_origin_is_not_away() {
    let scratch = Scratch::new();
    for (folder, database) in
        scratch.apart([Database::postgres(), Database::mariadb()].into_iter().flatten().collect())
    {
        let database = database.with(TABLES);
        let sql = match database {
            Database::Postgres(_) => {
                database.execute("CREATE SEQUENCE counted");
                "SELECT nextval('counted') AS n FROM sales"
            }
            _ => "SELECT id FROM sales FOR UPDATE",
        };
        let section =
            format!("[[query]]\nkey = \"all\"\nsql = \"{sql}\"\ndepends_on = [\"sales\"]\n");
        let launch = Launch::before(&folder, &database.url());
        let server = configured(&folder, &launch, "writes", &section).start();
        let reply = server.client().run("GET all");
        assert!(reply.error().starts_with("ERR "), "{reply:?}");
        assert!(reply.error().contains("only reads"), "{reply:?}");
        assert_eq!(server.status()["origin"]["down"], false);
    }
}
