//! Declarations: what `destage schema` shows of them, and what is refused.

use super::{SESSIONS, SETTINGS, on_each};
use crate::harness::ferretdb::Ferret;
use crate::harness::schema::schema_under;
use crate::harness::{Database, Launch, PATIENCE, Scratch, eventually};
use crate::mapped;
use mongodb::bson::doc;

#[test]
fn the_schema_says_at_which_time_rows_end() {
    on_each(SESSIONS, SETTINGS, |launch, database| {
        let shown = schema_under(database, &launch.data().with_extension("schema.toml"), SETTINGS);
        let line = shown.lines().find(|line| line.starts_with("sessions:{"));
        let line = line.expect("the table is shown");
        assert!(line.contains("rows end at the time in expires_at"), "{line}");
    });
}

/// Without the index the origin looks through the whole table: the statement that is named mends it.
#[test]
fn the_index_that_finds_rows_which_have_ended_is_named_until_it_is_there() {
    on_each(SESSIONS, SETTINGS, |launch, database| {
        let server = launch.start();
        eventually("the log names it", PATIENCE, || server.log().contains("CREATE INDEX"));
        server.terminate(PATIENCE);
        let shown = schema_under(database, &launch.data().with_extension("schema.toml"), SETTINGS);
        let (_, statement) = shown.split_once("CREATE INDEX").expect("it is named");
        let line = statement.lines().next().expect("a line");
        database.execute(&format!("CREATE INDEX{line}"));
        let shown = schema_under(database, &launch.data().with_extension("schema.toml"), SETTINGS);
        assert!(!shown.contains("CREATE INDEX"), "{shown}");
        let server = launch.start();
        assert!(!server.log().contains("CREATE INDEX"), "{}", server.log());
        server.terminate(PATIENCE);
    });
}

const TABLES: &str = "
CREATE TABLE owners (id INTEGER PRIMARY KEY, at DATETIME, word TEXT, twice INTEGER AS (id * 2));
CREATE TABLE owned (id INTEGER PRIMARY KEY, owner INTEGER REFERENCES owners (id) ON DELETE CASCADE);
CREATE TABLE logged (id INTEGER PRIMARY KEY, at DATETIME);
CREATE TABLE log (id INTEGER PRIMARY KEY, n INTEGER);
CREATE TRIGGER logs AFTER DELETE ON logged BEGIN INSERT INTO log (n) VALUES (1); END;
CREATE TABLE plain (id INTEGER PRIMARY KEY, at DATETIME, word TEXT, u INTEGER UNIQUE, twice INTEGER AS (id * 2));
";

#[test]
fn a_declaration_that_cannot_hold_is_refused_at_the_start_and_says_why() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(TABLES);
    for (number, (table, ttl, why)) in [
        ("plain", "column none", "plain has no column none"),
        ("plain", "column id", "part of a key"),
        ("plain", "column u", "constraint over rows"),
        ("plain", "column word", "word is TEXT: it takes a timestamp"),
        ("plain", "column twice", "twice is computed by the origin"),
        ("plain", "column at ms", "leave s or ms out"),
        ("plain", "colum at", "is none of"),
        ("owners", "column at", "ON DELETE"),
        ("logged", "column at", "triggers may do more"),
    ]
    .into_iter()
    .enumerate()
    {
        let settings = format!("[table.{table}]\nttl = '{ttl}'\n");
        let launch = mapped::launch(&scratch, &database, &format!("data-{number}"), &settings);
        let section = format!("[table.{table}]");
        launch.refused().says(2, &[&section, "ttl", why]);
    }
}

#[test]
fn with_mongodb_rows_that_end_are_refused_for_its_own_ttl_indexes() {
    let scratch = Scratch::new();
    let Some(mongo) = Ferret::start(&scratch) else { return };
    mongo.insert("sessions", vec![doc! { "_id": "a" }]);
    let path = scratch.join("mongo.toml");
    let settings =
        "[table.sessions]\nid = 'string'\nfields = { at = 'string' }\nttl = 'column at'\n";
    std::fs::write(&path, settings).expect("the settings can be written");
    let path = path.display().to_string();
    let launch = Launch::before(&scratch, &mongo.url()).with(&["--config", &path]);
    launch.refused().says(2, &["[table.sessions]", "a TTL index of its own"]);
}
