//! CHECK constraints that are judged before the acknowledgement, and those that are left to the origin.

use crate::harness::server::binary;
use crate::harness::{Client, Database, Launch, PATIENCE, Scratch, Server, eventually};
use std::process::Command;

const STOCK: &str = "
CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER NOT NULL DEFAULT 0, least INTEGER, state VARCHAR(9),
    note VARCHAR(20), price DECIMAL(8,2),
    CONSTRAINT enough CHECK (n >= least), CONSTRAINT known CHECK (state IN ('new', 'sold')),
    CONSTRAINT told CHECK (NOT (state = 'sold' AND note IS NULL)), CONSTRAINT fair CHECK (price BETWEEN 0.5 AND 99.95),
    CONSTRAINT few CHECK (n + 0 < 1000));
INSERT INTO stock (id, n, least) VALUES (1, 5, 5), (2, 7, NULL), (3, 8, 1);
";

/// Each kind of database with these tables, and a server before it.
fn on_each(tables: &str, body: impl Fn(&Launch, Server, &Database)) {
    let scratch = Scratch::new();
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(tables);
        let launch = Launch::before(&scratch, &database.url());
        let launch = launch.elsewhere(&scratch, &format!("data-{number}"));
        let server = launch.start();
        body(&launch, server, &database);
    }
}

/// The error of a command that a constraint forbids.
#[track_caller]
fn refused(client: &mut Client, command: &[&str], constraint: &str) {
    let reply = client.call(command);
    let told = reply.error();
    let named = format!("would violate {constraint} CHECK (");
    assert!(told.contains(&named) && told.contains("nothing was written"), "{command:?}: {told}");
}

#[test]
fn a_write_that_breaks_a_constraint_is_refused_and_nothing_of_it_is_acknowledged() {
    on_each(STOCK, |launch, server, database| {
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        // Of a row that was not cached, whose other columns matter; and of one that is, in its place.
        refused(&mut client, &["HSET", "stock:1", "n", "4"], "enough");
        refused(&mut client, &["HSET", "stock:1", "n", "3"], "enough");
        refused(&mut client, &["HINCRBY", "stock:1", "n", "-1"], "enough");
        refused(&mut client, &["HSET", "stock:3", "least", "9"], "enough");
        refused(&mut client, &["HSETNX", "stock:2", "least", "8"], "enough");
        refused(&mut client, &["HSET", "stock:2", "state", "old"], "known");
        refused(&mut client, &["HSET", "stock:2", "state", "sold"], "told");
        refused(&mut client, &["HSET", "stock:2", "price", "99.96", "state", "new"], "fair");
        refused(&mut client, &["HSET", "stock:2", "price", "0.494"], "fair");
        refused(&mut client, &["HSET", "stock:9", "state", "lost"], "known");
        assert_eq!(client.run("HGET stock:1 n").int(), 5);
        assert_eq!(client.run("EXISTS stock:9").int(), 0);
        assert_eq!(client.run("HEXISTS stock:2 state").int(), 0);
        // A transaction is judged by what comes of it.
        client.run("MULTI").ok();
        client.run("HSET stock:3 n 100");
        client.run("HSET stock:1 n 1");
        let reply = client.run("EXEC");
        let told = reply.error();
        assert!(told.starts_with("EXECABORT") && told.contains("enough"), "{told}");
        assert_eq!(client.run("HGET stock:3 n").int(), 8);
        client.run("MULTI").ok();
        client.run("HSET stock:1 n 1");
        client.run("HSET stock:1 least 1");
        assert!(!client.run("EXEC").is_error());
        // NULL breaks nothing, and what fits is taken.
        assert_eq!(client.run("HDEL stock:3 least").int(), 1);
        assert_eq!(client.run("HSET stock:3 n -7").int(), 0);
        assert_eq!(client.run("HSET stock:2 state sold note gone price 99.95").int(), 3);
        refused(&mut client, &["HDEL", "stock:2", "note"], "told");
        assert_eq!(client.run("HSET stock:4 n 3 least 3 price 0.50").int(), 3);
        client.run("DESTAGE RESUME").ok();
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM stock"), 4);
        assert_eq!(database.number("SELECT sum(n) FROM stock"), 1 + 7 - 7 + 3);
        let status = server.status();
        assert_eq!(status["destage"]["parked_groups"], 0, "{status}");
        // Nor is anything of it in the journal.
        client.run("DESTAGE PAUSE").ok();
        refused(&mut client, &["HSET", "stock:4", "n", "2"], "enough");
        assert_eq!(client.run("HINCRBY stock:4 n 1").int(), 4);
        server.kill();
        let server = launch.start();
        assert_eq!(server.client().run("HGET stock:4 n").int(), 4);
        server.drain();
        assert_eq!(database.number("SELECT n FROM stock WHERE id = 4"), 4);
    });
}

#[test]
fn a_constraint_that_is_not_understood_is_left_to_the_origin() {
    on_each(STOCK, |_, server, _| {
        let mut client = server.client();
        assert_eq!(client.run("HSET stock:2 n 1000").int(), 0);
        let parked = || server.status()["destage"]["parked_groups"] == 1;
        eventually("the write is parked", PATIENCE, parked);
        // What readers see is judged, too: what builds on it is parked behind it.
        refused(&mut client, &["HSET", "stock:2", "least", "1001"], "enough");
    });
}

#[test]
fn a_row_that_others_change_before_it_is_checked_is_not_judged_here() {
    let scratch = Scratch::new();
    let table =
        "CREATE TABLE clamped (id INTEGER PRIMARY KEY, n INTEGER, CONSTRAINT low CHECK (n < 10));";
    let postgres = "CREATE FUNCTION clamp() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN NEW.n := least(NEW.n, 9); RETURN NEW; END $$;
        CREATE TRIGGER clamp BEFORE INSERT OR UPDATE ON clamped FOR EACH ROW EXECUTE FUNCTION clamp();";
    let mariadb =
        "CREATE TRIGGER clamp BEFORE INSERT ON clamped FOR EACH ROW SET NEW.n = least(NEW.n, 9);";
    let databases = [
        Database::postgres().map(|database| database.with(table).with(postgres)),
        Database::mariadb().map(|database| database.with(table).with(mariadb)),
    ];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let launch = Launch::before(&scratch, &database.url());
        let server = launch.elsewhere(&scratch, &format!("clamped-{number}")).start();
        let mut client = server.client();
        assert_eq!(client.run("HSET clamped:1 n 12").int(), 1);
        assert_eq!(client.run("HGET clamped:1 n").int(), 9);
    }
}

#[test]
fn domains_of_postgresql_are_judged_by_their_own_constraints() {
    let scratch = Scratch::new();
    let Some(database) = Database::postgres() else { return };
    let database = database.with(
        "CREATE DOMAIN positive AS int CONSTRAINT above CHECK (VALUE > 0);
         CREATE DOMAIN percent AS positive CONSTRAINT below CHECK (VALUE <= 100);
         CREATE DOMAIN word AS text CHECK (VALUE ~ '^[a-z]+$');
         CREATE TABLE rates (id int PRIMARY KEY, p percent, w word);
         INSERT INTO rates VALUES (1, 50, 'a');",
    );
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    refused(&mut client, &["HSET", "rates:1", "p", "101"], "below");
    refused(&mut client, &["HINCRBY", "rates:1", "p", "-50"], "above");
    refused(&mut client, &["HSET", "rates:2", "p", "0"], "above");
    assert_eq!(client.run("HSET rates:1 p 100").int(), 0);
    assert_eq!(client.run("HDEL rates:1 p").int(), 1);
    assert_eq!(client.run("HSET rates:1 w A1").int(), 0);
    eventually("the word is parked", PATIENCE, || server.status()["destage"]["parked_groups"] == 1);
}

#[test]
fn the_schema_tells_of_each_constraint_who_judges_it() {
    on_each(STOCK, |_, _server, database| {
        let schema = |format: &str| {
            let url = database.url();
            let arguments = ["schema", "--origin", url.as_str(), "--format", format];
            let output = Command::new(binary()).args(arguments).output().expect("it starts");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).expect("it is text")
        };
        let shown = schema("table");
        let line = |name: &str| {
            let start = format!("  {name} CHECK (");
            shown.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{shown}"))
        };
        for name in ["enough", "known", "told", "fair"] {
            assert!(line(name).ends_with(": judged before the acknowledgement"), "{}", line(name));
        }
        assert!(line("few").contains(": left to the origin (it may be more"), "{}", line("few"));
        let json: serde_json::Value = serde_json::from_str(&schema("json")).expect("it is JSON");
        let checks = json["tables"][0]["checks"].as_array().expect("there are checks");
        let judged = checks.iter().filter(|check| check["before_acknowledgement"] == true).count();
        assert_eq!((checks.len(), judged), (5, 4), "{json}");
    });
}
