//! Unique columns that are judged before the acknowledgement (`unique = "ask"`), and those that are left to the origin.

use super::asked::{on_each, parked, with_sections};
use crate::harness::ferretdb::Ferret;
use crate::harness::schema::schema;
use crate::harness::{Client, Database, Kind, Launch, OwnServer, PATIENCE, Scratch, eventually};

const PEOPLE: &str = "
CREATE TABLE people (id INTEGER PRIMARY KEY, email VARCHAR(40), hall INTEGER, seat INTEGER);
CREATE UNIQUE INDEX people_email ON people (email);
CREATE UNIQUE INDEX people_seat ON people (hall, seat);
INSERT INTO people VALUES (1, 'ada@x', 1, 1), (2, 'barbara@x', 1, 2), (3, NULL, 1, NULL);
";

const SECTIONS: &str = "[table.people]\nunique = \"ask\"\n";

/// The error of a command that sets what another row has.
#[track_caller]
fn taken(client: &mut Client, command: &str, columns: &str, by: &str) {
    let reply = client.run(command);
    let told = reply.error();
    let named = format!("UNIQUE ({columns}): {by} already, so nothing was written");
    assert!(told.contains(&named), "{command}: {told}");
}

#[test]
fn a_value_that_another_row_has_is_refused_and_nothing_of_it_is_acknowledged() {
    on_each(PEOPLE, SECTIONS, |launch, server, database| {
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        taken(&mut client, "HSET people:4 email ada@x", "email", "people:1 has ada@x");
        assert_eq!(client.run("EXISTS people:4").int(), 0);
        taken(&mut client, "HSET people:2 seat 1", "hall, seat", "people:1 has 1, 1");
        // Free at the origin; then taken by what is undecided here.
        assert_eq!(client.run("HSET people:4 email dora@x").int(), 1);
        taken(&mut client, "HSET people:5 email dora@x", "email", "people:4 has dora@x");
        // The row's own value, NULL, and half of two columns are no trouble.
        assert_eq!(client.run("HSET people:1 email ada@x").int(), 0);
        assert_eq!(client.run("HDEL people:2 email").int(), 1);
        assert_eq!(client.run("HSET people:5 hall 1").int(), 1);
        // What was given up is free, be it by a change, by a deletion, or by the same transaction.
        assert_eq!(client.run("HSET people:5 email barbara@x").int(), 1);
        assert_eq!(client.run("DEL people:1").int(), 1);
        assert_eq!(client.run("HSET people:6 email ada@x hall 1 seat 1").int(), 3);
        for command in ["MULTI", "HSET people:4 email eva@x", "HSET people:7 email dora@x"] {
            assert!(!client.run(command).is_error(), "{command}");
        }
        assert!(!client.run("EXEC").is_error());
        for command in ["MULTI", "HSET people:8 email flo@x", "HSET people:9 email flo@x"] {
            assert!(!client.run(command).is_error(), "{command}");
        }
        let reply = client.run("EXEC");
        let told = reply.error();
        assert!(told.starts_with("EXECABORT") && told.contains("people:8 has flo@x"), "{told}");
        client.run("DESTAGE RESUME").ok();
        server.drain();
        assert_eq!(parked(&server), 0);
        assert_eq!(database.number("SELECT count(*) FROM people"), 6);
        // What the journal still holds is known after a crash.
        client.run("DESTAGE PAUSE").ok();
        assert_eq!(client.run("HSET people:8 email gil@x").int(), 1);
        server.kill();
        let server = launch.start();
        let mut client = server.client();
        taken(&mut client, "HSET people:9 email gil@x", "email", "people:8 has gil@x");
        server.drain();
        taken(&mut client, "HSET people:9 email gil@x", "email", "people:8 has gil@x");
        assert_eq!(database.number("SELECT count(*) FROM people WHERE email = 'gil@x'"), 1);
        assert_eq!(parked(&server), 0);
    });
}

#[test]
fn a_value_that_another_program_takes_meanwhile_is_parked() {
    on_each(PEOPLE, SECTIONS, |_, server, database| {
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        assert_eq!(client.run("HSET people:4 email dora@x").int(), 1);
        database.execute("INSERT INTO people (id, email) VALUES (9, 'dora@x')");
        client.run("DESTAGE RESUME").ok();
        eventually("it is parked", PATIENCE, || parked(&server) == 1);
        // What they have taken by then is known.
        taken(&mut client, "HSET people:5 email dora@x", "email", "people:9 has dora@x");
    });
}

#[test]
fn what_cannot_be_asked_while_the_origin_is_away_is_not_acknowledged() {
    for kind in [Kind::Postgres, Kind::Mariadb] {
        let Some(mut origin) = OwnServer::start(kind) else { return };
        let (scratch, database) = (Scratch::new(), origin.database().with(PEOPLE));
        let launch = Launch::before(&scratch, &database.url()).with(&["--client-wait", "1s"]);
        let server = with_sections(&launch, &scratch, SECTIONS).start();
        let mut client = server.client();
        assert_eq!(client.run("EXISTS people:1 people:4").int(), 1);
        origin.stop();
        let reply = client.run("HSET people:4 email dora@x");
        let told = reply.error();
        assert!(told.starts_with("UNAVAILABLE"), "{told}");
        assert_eq!(client.run("EXISTS people:4").int(), 0);
        assert_eq!(client.run("HDEL people:1 email").int(), 1);
        origin.restart();
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM people"), 3);
        assert_eq!(database.number("SELECT count(email) FROM people"), 1);
    }
}

#[test]
fn the_schema_tells_of_each_unique_index_who_judges_it() {
    on_each(PEOPLE, SECTIONS, |launch, _server, database| {
        database.execute("CREATE UNIQUE INDEX people_upper ON people (hall, id)");
        let config = launch.data().with_file_name("destage.toml").display().to_string();
        let schema = |more: &[&str]| schema(database, more);
        let line = |shown: &str, name: &str| {
            let line = shown.lines().find(|line| line.contains(name));
            line.unwrap_or_else(|| panic!("no {name} in {shown}")).to_owned()
        };
        let asked = schema(&["--config", &config]);
        for index in ["people_email UNIQUE (email)", "people_seat UNIQUE (hall, seat)"] {
            let line = line(&asked, index);
            assert!(line.ends_with(": judged before the acknowledgement"), "{line}");
        }
        let plain = line(&schema(&[]), "people_email");
        assert!(plain.ends_with("(unless the settings say unique = \"ask\")"), "{plain}");
        let json = schema(&["--config", &config, "--format", "json"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
        let unique = json["tables"][0]["unique"].as_array().expect("there are some");
        assert!(unique.iter().all(|unique| unique["before_acknowledgement"] == true), "{json}");
        assert_eq!(unique.len(), 3, "{json}");
    });
}

#[test]
fn an_index_with_a_condition_is_left_to_the_origin() {
    let scratch = Scratch::new();
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(
            "CREATE TABLE slots (id INTEGER PRIMARY KEY, n INTEGER, state INTEGER);
             CREATE UNIQUE INDEX slots_open ON slots (n) WHERE state = 1;
             CREATE UNIQUE INDEX slots_state ON slots (state, id);
             INSERT INTO slots VALUES (1, 7, 0);",
        );
        let launch = Launch::before(&scratch, &database.url());
        let launch = with_sections(&launch, &scratch, "[table.slots]\nunique = \"ask\"\n");
        let server = launch.elsewhere(&scratch, &format!("slots-{number}")).start();
        let mut client = server.client();
        assert_eq!(client.run("HSET slots:2 n 7 state 0").int(), 2, "neither is open");
        assert_eq!(client.run("HSET slots:3 n 7 state 1").int(), 2);
        assert_eq!(client.run("HSET slots:4 n 7 state 1").int(), 2, "the origin is to judge");
        eventually("it is parked", PATIENCE, || parked(&server) == 1);
    }
}

#[test]
fn a_table_without_unique_columns_that_can_be_asked_for_is_refused_at_the_start() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch)
        .with("CREATE TABLE plain (id INTEGER PRIMARY KEY, n INTEGER); CREATE TABLE u (id INTEGER PRIMARY KEY, n INTEGER UNIQUE);");
    let launch = Launch::before(&scratch, &database.url());
    for (sections, why) in [
        ("[table.plain]\nunique = 'ask'\n", "it has no unique index"),
        ("[table.u]\nunique = 'ask'\nblind = true\n", "written blind"),
    ] {
        with_sections(&launch, &scratch, sections).refused().says(2, &["unique = \"ask\"", why]);
    }
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let launch = Launch::before(&scratch, &ferret.url());
    let sections = "[table.products]\nid = 'int'\nfields = { code = 'int' }\nunique = 'ask'\n";
    let exit = with_sections(&launch, &scratch, sections).refused();
    exit.says(2, &["[table.products]", "MongoDB is not asked"]);
}
