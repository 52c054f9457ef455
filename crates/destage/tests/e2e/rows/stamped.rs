//! Columns that triggers set in the row which is written: the writes are buffered, and what the trigger sets is the origin's.

use crate::harness::{Client, Database, Launch, Reply, Scratch};

const POSTGRES: &str = "
CREATE TABLE notes (id INTEGER PRIMARY KEY, n INTEGER NOT NULL DEFAULT 0, body TEXT,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT '2001-01-01', seen TIMESTAMPTZ);
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN NEW.updated_at := now(); RETURN NEW; END $$;
CREATE TRIGGER touched BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION touch();";

const MARIADB: &str = "
CREATE TABLE notes (id INTEGER PRIMARY KEY, n INTEGER NOT NULL DEFAULT 0, body TEXT,
    updated_at DATETIME(6) NOT NULL DEFAULT '2001-01-01', seen DATETIME(6));
CREATE TRIGGER touched BEFORE UPDATE ON notes FOR EACH ROW SET NEW.updated_at = NOW(6);";

const SQLITE: &str = "
CREATE TABLE notes (id INTEGER PRIMARY KEY, n INTEGER NOT NULL DEFAULT 0, body TEXT,
    updated_at TEXT NOT NULL DEFAULT '2001-01-01', seen TEXT);
CREATE TRIGGER touched AFTER UPDATE ON notes BEGIN
    UPDATE notes SET updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE id = NEW.id; END;";

const ROWS: &str = "INSERT INTO notes (id) VALUES (1), (2), (3);";

/// Each kind of database with such a table.
fn databases(scratch: &Scratch) -> Vec<Database> {
    let databases = [
        Some(Database::sqlite(scratch)).map(|database| database.with(SQLITE)),
        Database::postgres().map(|database| database.with(POSTGRES)),
        Database::mariadb().map(|database| database.with(MARIADB)),
    ];
    databases.into_iter().flatten().map(|database| database.with(ROWS)).collect()
}

fn updated_at(client: &mut Client, id: u32) -> String {
    client.run(&format!("HGET notes:{id} updated_at")).text()
}

fn is_old(value: &str) -> bool {
    value.starts_with("2001-01-01")
}

#[test]
fn a_table_with_the_usual_trigger_is_written_back_and_shows_what_the_trigger_set() {
    let scratch = Scratch::new();
    for (number, database) in databases(&scratch).into_iter().enumerate() {
        let launch = Launch::before(&scratch, &database.url());
        let server = launch.elsewhere(&scratch, &format!("data-{number}")).start();
        let mut client = server.client();
        assert!(is_old(&updated_at(&mut client, 1)));
        client.run("DESTAGE PAUSE").ok();
        // Nobody waits for the origin, and two updates are one there.
        assert_eq!(client.run("HINCRBY notes:1 n 2").int(), 2);
        assert_eq!(client.run("HINCRBY notes:1 n 3").int(), 5);
        assert_eq!(client.run("HSET notes:1 body new").int(), 1);
        assert_eq!(client.run("HGET notes:1 n").int(), 5);
        assert_eq!(client.run("HSET notes:2 n 7").int(), 0);
        // What a client gives for it is the origin's to take or leave, and needs no look there.
        assert_eq!(
            client.call(&["HSET", "notes:2", "updated_at", "2002-02-02", "n", "8"]).int(),
            0
        );
        assert_eq!(client.run("HSET notes:4 n 1 body made").int(), 2);
        assert_eq!(database.number("SELECT sum(n) FROM notes"), 0);
        assert!(client.run("HINCRBY notes:1 updated_at 1").is_error());
        client.run("DESTAGE RESUME").ok();
        let touched = updated_at(&mut client, 1);
        assert!(!is_old(&touched), "{touched}");
        let row = client.run("HGETALL notes:1").pairs();
        assert!(row.contains(&("updated_at".into(), touched)), "{row:?}");
        assert!(row.contains(&("n".into(), "5".into())), "{row:?}");
        let touched = updated_at(&mut client, 2);
        assert!(!is_old(&touched) && !touched.starts_with("2002"), "{touched}");
        // Made and not changed since: the trigger has not fired. Neither has it for what nobody wrote.
        assert!(is_old(&updated_at(&mut client, 4)) && is_old(&updated_at(&mut client, 3)));
        server.drain();
        let old = "SELECT count(*) FROM notes WHERE updated_at < '2003-01-01'";
        assert_eq!(database.number(old), 2);
        // An update of a row that was made in the same batch is no part of the insert.
        client.run("DESTAGE PAUSE").ok();
        client.run("HSET notes:5 n 1");
        client.run("HINCRBY notes:5 n 1");
        client.run("DESTAGE RESUME").ok();
        let touched = updated_at(&mut client, 5);
        assert!(!is_old(&touched), "{touched}");
        // A cached row never shows what was before its last change.
        let mut before = updated_at(&mut client, 1);
        for _ in 0..3 {
            client.run("HINCRBY notes:1 n 1");
            server.drain();
            let now = updated_at(&mut client, 1);
            assert!(now > before, "{now} after {before}");
            before = now;
        }
        // After a crash, too.
        client.run("DESTAGE PAUSE").ok();
        client.run("HINCRBY notes:1 n 1");
        server.kill();
        let server = launch.elsewhere(&scratch, &format!("data-{number}")).start();
        let mut client = server.client();
        let now = updated_at(&mut client, 1);
        assert!(now > before, "{now} after {before}");
        assert_eq!(server.status()["destage"]["parked_groups"], 0);
    }
}

/// What a transaction writes into columns of a row that it makes is not shown before the origin has had its word.
#[test]
fn a_transaction_that_sets_what_a_trigger_sets_shows_what_the_trigger_made_of_it() {
    let scratch = Scratch::new();
    let made = |database: Database, trigger: &str| {
        database.with("CREATE TABLE notes (id INTEGER PRIMARY KEY, body VARCHAR(99), made TIMESTAMP NULL, at TIMESTAMP NULL)").with(trigger)
    };
    let sqlite = "CREATE TRIGGER made AFTER INSERT ON notes BEGIN
            UPDATE notes SET made = datetime('now') WHERE id = NEW.id; END;
        CREATE TRIGGER touched AFTER UPDATE ON notes BEGIN
            UPDATE notes SET at = datetime('now') WHERE id = NEW.id; END;";
    let postgres = "CREATE FUNCTION make() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN NEW.made := now(); RETURN NEW; END $$;
        CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.at := now(); RETURN NEW; END $$;
        CREATE TRIGGER made BEFORE INSERT ON notes FOR EACH ROW EXECUTE FUNCTION make();
        CREATE TRIGGER touched BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION touch();";
    let mariadb = "CREATE TRIGGER made BEFORE INSERT ON notes FOR EACH ROW SET NEW.made = NOW();
        CREATE TRIGGER touched BEFORE UPDATE ON notes FOR EACH ROW SET NEW.at = NOW();";
    let databases = [
        Some(made(Database::sqlite(&scratch), sqlite)),
        Database::postgres().map(|database| made(database, postgres)),
        Database::mariadb().map(|database| made(database, mariadb)),
    ];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let launch = Launch::before(&scratch, &database.url());
        let server = launch.elsewhere(&scratch, &format!("made-{number}")).start();
        let mut client = server.client();
        let transaction = |client: &mut Client, commands: &[&str]| {
            client.run("MULTI").ok();
            for command in commands {
                let words: Vec<&str> = command.splitn(4, ' ').collect();
                assert_eq!(client.call(&words), Reply::Status("QUEUED".into()), "{command}");
            }
            assert!(!client.run("EXEC").is_error(), "{commands:?}");
        };
        let commands = ["HSET notes:1 body x", "HSET notes:1 made 2002-01-01 00:00:00"];
        transaction(&mut client, &commands);
        let shown = client.run("HGET notes:1 made").text();
        assert!(!shown.starts_with("2002"), "{shown}");
        // An update, of which the trigger sets what the second command sets, too.
        client.run("DESTAGE PAUSE").ok();
        let commands = ["HSET notes:1 body y", "HSET notes:1 at 2002-01-01 00:00:00"];
        transaction(&mut client, &commands);
        client.run("DESTAGE RESUME").ok();
        let shown = client.run("HGET notes:1 at").text();
        assert!(!shown.starts_with("2002"), "{shown}");
        server.drain();
        // What is cached is what the origin has.
        for column in ["made", "at"] {
            let held = database.rows(&format!("SELECT {column} FROM notes"))[0][0].clone();
            let shown = client.run(&format!("HGET notes:1 {column}")).text();
            assert_eq!(held.get(..19), shown.get(..19), "{column}");
        }
        client.run("HSET notes:2 body x");
        server.drain();
        let held = database.rows("SELECT at FROM notes WHERE id = 2")[0][0].clone();
        let shown = client.run("HGET notes:2 at");
        assert_eq!(shown == Reply::Nil, held.is_empty() || held == "NULL", "{shown:?} {held}");
        assert_eq!(server.status()["destage"]["parked_groups"], 0);
    }
}

/// Only what is declared, or recognised, is written back: another function goes through.
#[test]
fn a_trigger_that_does_more_goes_through_until_it_is_declared() {
    let Some(database) = Database::postgres() else { return };
    let database = database.with(
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, n INTEGER, version INTEGER NOT NULL DEFAULT 0);
         INSERT INTO notes VALUES (1, 0, 0);
         CREATE FUNCTION count_up() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN NEW.version := OLD.version + 1; RETURN NEW; END $$;
         CREATE TRIGGER counts BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION count_up();",
    );
    let scratch = Scratch::new();
    let launch = || Launch::before(&scratch, &database.url());
    {
        let server = launch().start();
        let mut client = server.client();
        assert_eq!(client.run("HINCRBY notes:1 n 1").int(), 1);
        assert_eq!(database.number("SELECT n FROM notes"), 1, "it went through");
        server.drain();
    }
    let file = scratch.join("declared.toml");
    let section = "[table.notes]\ntriggers = { sets = ['version'] }\n";
    std::fs::write(&file, section).expect("the settings can be written");
    let config = file.display().to_string();
    {
        let server = launch().with(&["--config", &config]).start();
        let mut client = server.client();
        assert_eq!(client.run("HGET notes:1 version").int(), 1);
        client.run("DESTAGE PAUSE").ok();
        for n in 2..=4 {
            assert_eq!(client.run("HINCRBY notes:1 n 1").int(), n);
        }
        assert_eq!(database.number("SELECT n FROM notes"), 1, "it is buffered");
        client.run("DESTAGE RESUME").ok();
        // Each write was one for the trigger.
        assert_eq!(client.run("HGET notes:1 version").int(), 4);
    }
    // A column that no trigger may be left to set ends the start.
    std::fs::write(&file, "[table.notes]\ntriggers = { sets = ['id'] }\n").expect("it is written");
    launch()
        .with(&["--config", &config])
        .refused()
        .says(2, &["[table.notes]", "'id'", "of the key"]);
}
