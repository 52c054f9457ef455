//! PostgreSQL tells what others change, by triggers.

use super::{AFTER, BEFORE, TABLES, change, invalidation, launch, schema, seen};
use crate::harness::{Client, Database, PATIENCE, Scratch, Server, eventually, output};
use crate::tracking::{listener, told};
use std::process::Command;

/// A database with the tables and the triggers.
pub(super) fn installed(tables: &str) -> Option<Database> {
    let database = Database::postgres()?.with(tables);
    let said = run(&database, &["--install-invalidation"]);
    assert!(said.contains("told of from now on"), "{said}");
    Some(database)
}

/// `destage schema`, which succeeds.
#[track_caller]
fn run(database: &Database, arguments: &[&str]) -> String {
    let done = schema(database, arguments);
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("it prints text")
}

fn started(scratch: &Scratch, database: &Database) -> (Server, Client) {
    let server = launch(scratch, database, "data", "").start();
    eventually("it listens", PATIENCE, || invalidation(&server, "listening") == true);
    let client = server.client();
    (server, client)
}

pub(super) fn number(server: &Server, field: &str) -> u64 {
    invalidation(server, field).as_u64().expect("a count")
}

/// Waits until the server was told so often.
#[track_caller]
pub(super) fn notified(server: &Server, notifications: u64) {
    eventually("the server is told", PATIENCE, || {
        number(server, "notifications_total") >= notifications
    });
    assert_eq!(number(server, "notifications_total"), notifications);
}

#[test]
fn what_others_change_is_told_and_what_destage_destages_is_not() {
    let Some(database) = installed(TABLES) else { return };
    let scratch = Scratch::new();
    let (server, mut client) = started(&scratch, &database);
    assert_eq!(seen(&mut client), BEFORE);
    change(&database);
    notified(&server, 3);
    assert_eq!(seen(&mut client), AFTER, "what is asked for after it was told is new");
    for n in 0..20 {
        client.run("HINCRBY accounts:1 n 1").int();
        client.call(&["ZADD", "ranking:1", "1", &format!("m{n}")]).int();
        client.call(&["SREM", "tagged:1", "green"]).int();
        client.call(&["HSET", "accounts:9", "name", "new", "n", "1"]).int();
    }
    server.drain();
    assert_eq!(database.number("SELECT n FROM accounts WHERE id = 1"), 31);
    // Notifications come in the order of the commits, so an echo would have come before this one.
    database.execute("UPDATE accounts SET n = 100 WHERE id = 1");
    notified(&server, 4);
    assert_eq!(client.run("HGET accounts:1 n").text(), "100");
    // The WATCH of a row, of a set and of a query notices.
    for (told_before, key) in [(4, "accounts:2"), (6, "ranking:2"), (8, "total")] {
        let mut watching = server.client();
        watching.call(&["WATCH", key]).ok();
        database.execute("UPDATE accounts SET n = n + 1 WHERE id = 2");
        database.execute("UPDATE members SET points = points + 1 WHERE team = 2");
        notified(&server, told_before + 2);
        watching.run("MULTI").ok();
        watching.run("HINCRBY accounts:1 n 1");
        assert_eq!(watching.run("EXEC"), crate::harness::Reply::Nil, "{key}");
    }
}

#[test]
fn keys_that_change_appear_and_vanish() {
    let Some(database) = installed(TABLES) else { return };
    let scratch = Scratch::new();
    let (server, mut client) = started(&scratch, &database);
    for key in ["accounts:1", "accounts:2", "accounts:3", "accounts:50"] {
        client.call(&["EXISTS", key]).int();
    }
    let exist = |client: &mut Client| {
        ["accounts:1", "accounts:2", "accounts:3", "accounts:50"]
            .map(|key| client.call(&["EXISTS", key]).int())
    };
    database.execute("UPDATE accounts SET id = 50 WHERE id = 2");
    notified(&server, 1);
    assert_eq!(exist(&mut client), [1, 0, 0, 1]);
    database.execute("INSERT INTO accounts (id, name, n) VALUES (3, 'eve', 3)");
    database.execute("DELETE FROM accounts WHERE id = 1");
    notified(&server, 3);
    assert_eq!(exist(&mut client), [0, 0, 1, 1]);
    assert_eq!(client.run("GET total").text(), r#"[{"total":23}]"#);
    // A statement that touches no row tells nothing; one that touches many tells of the table, once.
    database.execute("UPDATE accounts SET n = 0 WHERE id = 12345");
    database.execute("INSERT INTO accounts SELECT i, 'many', 1 FROM generate_series(1000, 6000) i");
    notified(&server, 4);
    assert_eq!(client.run("GET total").text(), r#"[{"total":5024}]"#);
    assert_eq!(client.run("ZCARD ranking:1").int(), 2);
    database.execute("TRUNCATE accounts, members");
    notified(&server, 6);
    assert_eq!(exist(&mut client), [0, 0, 0, 0]);
    assert_eq!(client.run("ZCARD ranking:1").int(), 0);
}

#[test]
fn rows_whose_keys_look_like_escapes_are_told_of() {
    let words = "CREATE TABLE w (word TEXT PRIMARY KEY, n INTEGER NOT NULL); \
                 INSERT INTO w VALUES ('%3A', 1), ('%25', 1), (':', 1), ('http://x', 1)";
    let Some(database) = installed(&format!("{TABLES}; {words}")) else { return };
    let scratch = Scratch::new();
    let (server, mut client) = started(&scratch, &database);
    let keys = ["w:%3A", "w:%25", "w::", "w:http://x"];
    let seen = |client: &mut Client| keys.map(|key| client.call(&["HGET", key, "n"]).int());
    assert_eq!(seen(&mut client), [1; 4]);
    database.execute("UPDATE w SET n = 2");
    notified(&server, 1);
    assert_eq!(seen(&mut client), [2; 4]);
}

#[test]
fn without_triggers_what_others_change_is_not_noticed() {
    let Some(database) = Database::postgres() else { return };
    let database = database.with(TABLES);
    let scratch = Scratch::new();
    let server = launch(&scratch, &database, "data", "").start();
    let mut client = server.client();
    assert_eq!(seen(&mut client), BEFORE);
    change(&database);
    assert_eq!((number(&server, "tables"), number(&server, "resyncs_total")), (0, 0));
    assert_eq!(seen(&mut client), BEFORE);
}

#[test]
fn undecided_changes_stay_on_top_of_what_others_change() {
    let Some(database) = installed(TABLES) else { return };
    let scratch = Scratch::new();
    let (server, mut client) = started(&scratch, &database);
    client.run("DESTAGE PAUSE").ok();
    assert_eq!(client.run("HINCRBY accounts:1 n 5").int(), 15);
    assert_eq!(client.run("HSET accounts:2 name ours").int(), 0);
    assert_eq!(client.run("ZADD ranking:1 6 zoe").int(), 1);
    database.execute("UPDATE accounts SET n = 1000, name = 'theirs'");
    database.execute("INSERT INTO members VALUES (1, 'amy', 9)");
    notified(&server, 2);
    eventually("the row is fetched again", PATIENCE, || {
        client.run("HGET accounts:1 n").text() == "1005"
    });
    assert_eq!(client.run("HGET accounts:1 name").text(), "theirs");
    eventually("the other one, too", PATIENCE, || client.run("HGET accounts:2 n").text() == "1000");
    assert_eq!(client.run("HGET accounts:2 name").text(), "ours");
    eventually("the set is fetched again", PATIENCE, || {
        let members = client.run("ZRANGE ranking:1 0 -1");
        members.array().iter().map(|m| m.text()).eq(["ada", "zoe", "bob", "amy"])
    });
    // What is written on top of it goes on as ever.
    assert_eq!(client.run("HINCRBY accounts:1 n 5").int(), 1010);
    client.run("DESTAGE RESUME").ok();
    server.drain();
    let rows = database.rows("SELECT id, name, n FROM accounts ORDER BY id");
    assert_eq!(rows, [["1", "theirs", "1010"], ["2", "ours", "1000"]]);
    assert_eq!(client.run("HGET accounts:1 n").text(), "1010");
    assert_eq!(number(&server, "notifications_total"), 2);
}

#[test]
fn after_a_lost_connection_everything_is_fetched_again() {
    let Some(database) = installed(TABLES) else { return };
    let scratch = Scratch::new();
    let (server, mut client) = started(&scratch, &database);
    assert_eq!(number(&server, "resyncs_total"), 1);
    assert_eq!(seen(&mut client), BEFORE);
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE application_name = 'destage listener' AND datname = current_database()";
    assert_eq!(database.number(kill), 1);
    change(&database);
    eventually("it listens again", PATIENCE, || number(&server, "resyncs_total") == 2);
    assert_eq!(invalidation(&server, "listening"), true);
    // What was changed while nobody listened is seen already, the rest is told.
    eventually("all of it is seen", PATIENCE, || seen(&mut client) == AFTER);
    assert!(server.metric("destage_invalidation_resyncs_total") >= 2.0);
    // Without triggers there is nothing to be heard, and that is shown.
    run(&database, &["--remove-invalidation"]);
    eventually("it notices", PATIENCE, || invalidation(&server, "listening") == false);
    let status = client.run("DESTAGE STATUS").text();
    assert!(status.contains("no, trying again") && status.contains("warning:"), "{status}");
    // Changes in between are seen as soon as it listens again.
    seen(&mut client);
    database.execute("UPDATE accounts SET n = 55 WHERE id = 1");
    assert_eq!(client.run("GET count:1").text(), "11", "nobody tells");
    run(&database, &["--install-invalidation"]);
    eventually("it listens again", PATIENCE, || number(&server, "resyncs_total") == 3);
    assert_eq!(client.run("GET count:1").text(), "55");
}

#[test]
fn installing_twice_and_removing_leave_nothing_behind() {
    let Some(database) = Database::postgres() else { return };
    let parts = "CREATE TABLE parts (id INTEGER PRIMARY KEY, n INTEGER) PARTITION BY RANGE (id);
        CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100);";
    let database = database.with(&format!("{TABLES}{parts}"));
    let triggers = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'destage%'";
    let plain = run(&database, &[]);
    let dry = run(&database, &["--install-invalidation", "--dry-run", "--table", "tags"]);
    assert_eq!((dry.matches("CREATE TRIGGER").count(), database.number(triggers)), (4, 0));
    // What is printed is what a user with the rights may run.
    database.execute(&dry);
    assert_eq!(database.number(triggers), 4);
    let said = run(&database, &["--install-invalidation"]);
    assert!(said.contains("tags: others' changes were told of already"), "{said}");
    assert!(said.contains("members: others' changes are told of from now on"), "{said}");
    assert_eq!(database.number(triggers), 20);
    let again = run(&database, &["--install-invalidation", "--format", "json"]);
    let again: serde_json::Value = serde_json::from_str(&again).expect("it is JSON");
    assert_eq!(again["statements"], serde_json::json!([]), "{again}");
    assert_eq!(run(&database, &[]), plain, "the tables are as plain as before");
    // One whose arguments are not those of the key any more is made anew, also of a partition.
    database.execute(
        "DROP TRIGGER destage_changed_delete ON parts_low;
         ALTER TABLE accounts DISABLE TRIGGER destage_changed_update",
    );
    let repaired = run(&database, &["--install-invalidation"]);
    assert!(repaired.contains("parts: others' changes are told of from now on"), "{repaired}");
    assert!(repaired.contains("accounts: others' changes are told of from now on"), "{repaired}");
    assert_eq!(database.number(triggers), 20);
    let scratch = Scratch::new();
    let (server, mut client) = started(&scratch, &database);
    assert_eq!(number(&server, "tables"), 4);
    assert_eq!(client.run("EXISTS parts:7").int(), 0);
    database.execute("INSERT INTO parts_low VALUES (7, 70)");
    notified(&server, 1);
    assert_eq!(client.run("HGET parts:7 n").text(), "70");
    drop(server);
    assert!(run(&database, &["--remove-invalidation", "--dry-run"]).contains("DROP FUNCTION"));
    run(&database, &["--remove-invalidation"]);
    let functions = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'destage%'";
    assert_eq!((database.number(triggers), database.number(functions)), (0, 0));
    let nothing = run(&database, &["--remove-invalidation"]);
    assert!(nothing.contains("nothing was to be done"), "{nothing}");
    let unknown = schema(&database, &["--install-invalidation", "--table", "nosuch"]);
    assert_eq!(unknown.status.code(), Some(2));
}

#[test]
fn a_user_who_may_not_is_told_and_nothing_is_done() {
    let Some(database) = Database::postgres() else { return };
    let database = database.with(TABLES);
    let role = format!("invalidation_{}", std::process::id());
    database.execute(&format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'secret';
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role};
         GRANT CREATE ON SCHEMA public TO {role}"
    ));
    let url = database.url();
    let (_, place) = url.split_once('@').expect("the URL has a user");
    let theirs = Database::Postgres(format!("postgres://{role}:secret@{place}"));
    let refused = schema(&theirs, &["--install-invalidation"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("Nothing was done") && said.contains("--dry-run"), "{said}");
    assert!(!said.contains("secret"), "{said}");
    let functions = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'destage%'";
    assert_eq!(database.number(functions), 0);
    // This is all that it takes.
    database.execute(&format!("GRANT TRIGGER ON ALL TABLES IN SCHEMA public TO {role}"));
    run(&theirs, &["--install-invalidation"]);
    database.execute(&format!(
        "DROP FUNCTION destage_changed CASCADE;
         REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role};
         REVOKE ALL ON SCHEMA public FROM {role}; DROP ROLE {role}"
    ));
}

const KINDS: &str = "
CREATE TABLE kinds (
    a TEXT, b UUID, c TIMESTAMPTZ, d BYTEA, e CHAR(5), f NUMERIC(8,2), g BOOL, h DATE, n INTEGER,
    PRIMARY KEY (a, b, c, d, e, f, g, h)
);
INSERT INTO kinds VALUES
    ('it''s: \"a\\b\" %I', '00000000-0000-0000-0000-0000000000ab', '2024-02-29 23:30:00.5+00', '\\x003a41',
     'ab', 1.5, true, '2024-02-29', 1),
    ('other', '00000000-0000-0000-0000-0000000000ab', '2024-02-29 23:30:00.5+00', '\\x01',
     'ab', 1.5, false, '2024-02-29', 1);
";

#[test]
fn keys_of_every_type_are_told_whatever_the_other_session_is_set_to() {
    let Some(database) = installed(KINDS) else { return };
    let scratch = Scratch::new();
    let server = crate::mapped::launch(&scratch, &database, "data", "").start();
    let mut client = server.client();
    let keys: Vec<String> = client.run("SCAN 0 MATCH kinds:* COUNT 10").array()[1]
        .array()
        .iter()
        .map(|key| key.text())
        .collect();
    assert_eq!(keys.len(), 2);
    let n = |client: &mut Client, key: &str| client.call(&["HGET", key, "n"]).text();
    for key in &keys {
        assert_eq!(n(&mut client, key), "1");
    }
    let dropped = number(&server, "dropped_total");
    database.execute(
        "SET DateStyle = 'German'; SET TimeZone = 'Asia/Tokyo'; SET bytea_output = 'escape';
         UPDATE kinds SET n = 2 WHERE g",
    );
    notified(&server, 1);
    assert_eq!(number(&server, "dropped_total"), dropped + 1, "the row alone, by its key");
    let mut all: Vec<String> = keys.iter().map(|key| n(&mut client, key)).collect();
    all.sort();
    assert_eq!(all, ["1", "2"]);
    // A key that fits no notification stands for its table, and so does a key of other columns than when it began.
    let long = "x".repeat(2_000).replace('x', "wxyz");
    database.execute(&format!(
        "ALTER TABLE kinds RENAME COLUMN a TO aa;
         UPDATE kinds SET n = 3; ALTER TABLE kinds RENAME COLUMN aa TO a;
         UPDATE kinds SET a = '{long}' WHERE NOT g"
    ));
    notified(&server, 2);
    let of_two = keys.iter().find(|key| !key.starts_with("kinds:other")).expect("it is one");
    assert_eq!(n(&mut client, of_two), "3");
}

#[test]
fn what_triggers_and_cascades_change_because_of_a_destage_is_told() {
    let tables = "
        CREATE TABLE parents (id INTEGER PRIMARY KEY, n INTEGER);
        CREATE TABLE children (id INTEGER PRIMARY KEY,
            parent INTEGER REFERENCES parents ON DELETE SET NULL, n INTEGER);
        CREATE TABLE sums (id INTEGER PRIMARY KEY, n INTEGER);
        INSERT INTO parents VALUES (1, 1), (2, 2);
        INSERT INTO children VALUES (10, 1, 1);
        INSERT INTO sums VALUES (1, 3);
        CREATE FUNCTION add_up() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN UPDATE sums SET n = (SELECT sum(n) FROM parents); RETURN NULL; END $$;
        CREATE TRIGGER adds_up AFTER UPDATE ON parents EXECUTE FUNCTION add_up();
    ";
    let Some(database) = installed(tables) else { return };
    let scratch = Scratch::new();
    let server = crate::mapped::launch(&scratch, &database, "data", "").start();
    let mut client = server.client();
    assert_eq!(client.run("HGET sums:1 n").text(), "3");
    assert_eq!(client.run("HGET children:10 parent").text(), "1");
    client.run("HSET parents:2 n 20").int();
    eventually("the sum is fetched again", PATIENCE, || client.run("HGET sums:1 n").text() == "21");
    assert_eq!(client.run("DEL parents:1").int(), 1);
    eventually("the child, too", PATIENCE, || {
        client.run("HGET children:10 parent") == crate::harness::Reply::Nil
    });
    server.drain();
    notified(&server, 2);
}

#[test]
fn help_names_the_flags() {
    let help = output(Command::new(crate::harness::server::binary()).args(["schema", "--help"]));
    for flag in ["--install-invalidation", "--remove-invalidation", "--dry-run", "--table"] {
        assert!(help.contains(flag), "{flag}: {help}");
    }
}

#[test]
fn what_others_change_is_told_to_those_who_hold_it() {
    let Some(database) = installed(TABLES) else { return };
    let scratch = Scratch::new();
    let (server, mut client) = started(&scratch, &database);
    let (mut listener, id) = listener(&server);
    client.run(&format!("CLIENT TRACKING ON REDIRECT {id}")).ok();
    assert_eq!(seen(&mut client), BEFORE);
    change(&database);
    let mut keys: Vec<String> = Vec::new();
    let all = ["accounts:1", "count:1", "ranking:1", "tagged:1", "total", "who:1"];
    while all.iter().any(|key| !keys.iter().any(|told| told == key)) {
        keys.extend(told(&mut listener));
    }
    assert_eq!(seen(&mut client), AFTER);
}
