//! Other programs: they prolong rows, refer to them, lock them, and write what is no time.

use super::{SESSIONS, SETTINGS, at, count, ended, insert, number, on_each, parked, with};
use crate::harness::{Database, Held, Launch, PATIENCE, Reply, Scratch, eventually};
use std::thread;

/// A row that has ended, and which another program prolongs in a transaction that is open while Destage deletes the row. It
/// commits or not; whether the row is there then.
fn is_kept(launch: &Launch, database: &Database, commits: bool) -> bool {
    let server = launch.start();
    let mut client = server.client();
    // If it is deleted before it is locked, there is another one.
    let (key, held, before) = (0..100)
        .find_map(|number| {
            let before = ended(&server);
            let key = format!("s-{commits}-{number}");
            insert(database, std::slice::from_ref(&key), -60);
            let later = at(database, 5_000);
            let set = format!("UPDATE sessions SET expires_at = {later} WHERE id = '{key}'");
            let held = Held::begin(database, &set);
            let is_locked = count(database, &format!("id = '{key}'")) == 1;
            is_locked.then_some((key, held, before))
        })
        .expect("one is locked in time");
    eventually("its deletion is under way", PATIENCE, || ended(&server) > before);
    assert_eq!(client.run(&format!("HGET sessions:{key} data")), Reply::Nil);
    if commits {
        held.commit();
    } else {
        drop(held);
    }
    server.drain();
    let is_there = count(database, &format!("id = '{key}'")) == 1;
    if is_there {
        eventually("it is seen again", PATIENCE, || {
            client.run(&format!("HGET sessions:{key} data")) != Reply::Nil
        });
        server.kill();
        let server = launch.start();
        let mut client = server.client();
        assert_eq!(client.run(&format!("HGET sessions:{key} data")).text(), "x");
        assert!((1..=5_000).contains(&client.run(&format!("TTL sessions:{key}")).int()));
    }
    assert_eq!(parked(database), 0);
    is_there
}

#[test]
fn a_row_that_is_prolonged_while_its_deletion_is_under_way_stays_and_any_other_goes() {
    on_each(SESSIONS, SETTINGS, |launch, database| {
        assert!(is_kept(&launch, database, true));
        // The control: without the other program's word the same deletion takes the row.
        assert!(!is_kept(&launch, database, false));
    });
}

/// A trigger of the database keeps a row that has ended: that is told, and others are deleted all the same.
#[test]
fn a_row_whose_deletion_a_trigger_swallows_is_told_of_and_keeps_no_other() {
    let scratch = Scratch::new();
    let Some(database) = Database::postgres() else { return };
    let database = with(
        database,
        &format!(
            "{SESSIONS}
             CREATE FUNCTION keeps() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN IF OLD.id LIKE 'kept%' THEN RETURN NULL; END IF; RETURN OLD; END $$;
             CREATE TRIGGER keeps BEFORE DELETE ON sessions FOR EACH ROW EXECUTE FUNCTION keeps();"
        ),
    );
    let settings = SETTINGS.replace("[table.sessions]", "[table.sessions]\ntriggers = 'none'");
    let launch = crate::mapped::launch(&scratch, &database, "data", &settings);
    let server = launch.start();
    insert(&database, &["kept-1".into(), "kept-2".into()], -60);
    insert(&database, &["gone-1".into(), "gone-2".into()], -60);
    eventually("those that nobody keeps go", PATIENCE, || count(&database, "id LIKE 'gone%'") == 0);
    eventually("the others are told of", PATIENCE * 2, || {
        server.metric("destage_ended_rows_undeleted") == 2.0
    });
    assert_eq!(count(&database, "id LIKE 'kept%'"), 2);
    assert_eq!(server.client().run("HGET sessions:kept-1 data"), Reply::Nil);
    // One that comes later goes, too.
    insert(&database, &["gone-3".into()], -60);
    eventually("it goes", PATIENCE, || count(&database, "id LIKE 'gone%'") == 0);
    assert_eq!(parked(&database), 0);
    server.terminate(PATIENCE);
}

const CARTS: &str = "
CREATE TABLE carts (id INTEGER NOT NULL PRIMARY KEY, n INTEGER, expires_at WHEN );
CREATE TABLE items (id ID , cart INTEGER NOT NULL REFERENCES carts (id));
CREATE TABLE marks (cart INTEGER REFERENCES carts (id));
CREATE TABLE notes (id INTEGER NOT NULL PRIMARY KEY, body VARCHAR(100));
";

#[test]
fn rows_that_others_refer_to_stay_until_they_do_not_and_hold_up_nothing() {
    let settings = "on-reject = 'stop'\n[table.carts]\nttl = 'column expires_at'\n";
    on_each(CARTS, settings, |launch, database| {
        let past = at(database, -60);
        let carts = (1..=4).map(|id| format!("({id}, 1, {past})")).collect::<Vec<_>>().join(", ");
        database.execute(&format!("INSERT INTO carts VALUES {carts}"));
        // A table without a key is none that Destage knows.
        database.execute("INSERT INTO items VALUES (1, 1); INSERT INTO marks VALUES (2)");
        let server = launch.start();
        let mut client = server.client();
        let carts = || database.rows("SELECT id FROM carts ORDER BY id").concat();
        eventually("two are deleted", PATIENCE, || carts() == ["1", "2"]);
        eventually("two are counted", PATIENCE, || {
            let status = server.status();
            let of = |name: &str| status["ended"][name].as_u64().unwrap_or(0);
            of("kept") == 1 && of("refused_total") > 0 || of("kept") == 2
        });
        number(&mut client, "EXISTS carts:1", 0);
        let refused = client.run("HSET carts:1 n 2");
        assert!(refused.error().contains("rows of other tables may refer to it"), "{refused:?}");
        number(&mut client, "HSET notes:1 body x", 1);
        server.drain();
        assert_eq!(database.value("SELECT body FROM notes WHERE id = 1"), "x");
        assert_eq!(server.status().get("halted"), None);
        assert_eq!((parked(database), carts()), (0, vec!["1".to_owned(), "2".to_owned()]));

        database.execute("DELETE FROM items; DELETE FROM marks");
        eventually("all are deleted", PATIENCE, || carts().is_empty());
        assert_eq!(server.status().get("halted"), None);
    });
}

/// Many rows with each of these values, in front of one that has ended; which of them last.
fn values(database: &Database) -> Vec<(&'static str, bool)> {
    match database {
        Database::Sqlite(_) => vec![
            ("NULL", true),
            ("'soon'", true),
            ("''", true),
            ("0", true),
            ("2457754.5", true),
            ("'2020-01-01T00:00:00.0001Z'", false),
            ("'2020-01-01 00:00:00.123456789'", false),
            ("'2020-01-01'", false),
            ("'9999-12-31 23:59:59.999'", true),
        ],
        Database::Postgres(_) => vec![
            ("NULL", true),
            ("'infinity'", true),
            ("'-infinity'", false),
            ("'0044-03-15 00:00:00+00 BC'", false),
            ("'2020-01-01 00:00:00.000001+14'", false),
        ],
        Database::Mariadb(_) => vec![
            ("NULL", true),
            ("'0000-00-00 00:00:00'", true),
            ("'2020-00-00 00:00:00'", true),
            ("'2020-01-01 00:00:00.000001'", false),
            ("'9999-12-31 23:59:59.999999'", true),
        ],
    }
}

#[test]
fn values_that_are_no_time_last_and_keep_no_ended_row_from_being_deleted() {
    on_each(SESSIONS, SETTINGS, |launch, database| {
        let values = values(database);
        let any = if let Database::Mariadb(_) = database { "SET sql_mode = ''; " } else { "" };
        // More than one page of each.
        for (at, (value, _)) in values.iter().enumerate() {
            let rows = (0..600).map(|n| format!("('{at}-{n}', 'x', {value})"));
            let rows = rows.collect::<Vec<_>>().join(", ");
            database.execute(&format!("{any}INSERT INTO sessions VALUES {rows}"));
        }
        insert(database, &["z".into()], -60);
        let server = launch.start();
        let mut client = server.client();
        for (at, (value, lasts)) in values.iter().enumerate() {
            let seen = client.run(&format!("EXISTS sessions:{at}-7")).int();
            assert_eq!(seen, i64::from(*lasts), "{value}");
            let ttl = client.run(&format!("TTL sessions:{at}-7")).int();
            assert!(
                if *lasts { ttl == -1 || ttl > 1_000_000 } else { ttl == -2 },
                "{value}: {ttl}"
            );
        }
        let gone = |at: usize| count(database, &format!("id LIKE '{at}-%'"));
        eventually("what has ended is deleted", PATIENCE, || {
            let mut ended = values.iter().enumerate().filter(|(_, (_, lasts))| !lasts);
            count(database, "id = 'z'") == 0 && ended.all(|(at, _)| gone(at) == 0)
        });
        server.drain();
        for (at, (value, lasts)) in values.iter().enumerate() {
            assert_eq!(gone(at), if *lasts { 600 } else { 0 }, "{value}");
        }
        assert_eq!(parked(database), 0);
    });
}

/// More rows have ended than the dirty limit lets be deleted at once, and the first of them is locked.
#[test]
fn deletions_that_the_origin_does_not_take_stop_below_the_limit_and_go_on_after_that() {
    const LIMIT: u64 = 64 * 1024;
    let scratch = Scratch::new();
    let config = scratch.join("settings.toml");
    std::fs::write(&config, SETTINGS).expect("the settings can be written");
    let config = config.display().to_string();
    let found = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    let stops_and_goes_on = &|number: usize, database: &Database| {
        let launch = Launch::in_folder(&scratch, &format!("data-{number}"))
            .with(&["--origin", &database.url(), "--no-auth", "--origin-timeout", "2s"])
            .with(&["--config", &config, "--staleness", "none", "--dirty-limit", "64K"]);
        let server = launch.start();
        let keys: Vec<_> = (0..2_500).map(|n| format!("old-{n:04}")).collect();
        let locked = |key: &str| {
            Held::begin(database, &format!("UPDATE sessions SET data = 'y' WHERE id = '{key}'"))
        };
        let held = if matches!(database, Database::Sqlite(_)) {
            // Whoever locks a row there locks all of them.
            insert(database, &keys, -60);
            locked("old-0000")
        } else {
            // If it is deleted before it is locked, there is another one.
            let first = |number: usize| {
                let key = format!("a-{number}");
                insert(database, std::slice::from_ref(&key), -60);
                let held = locked(&key);
                (count(database, &format!("id = '{key}'")) == 1).then_some(held)
            };
            let held = (0..100).find_map(first).expect("one is locked in time");
            insert(database, &keys, -60);
            held
        };
        let check = || {
            let writes = server.status()["writes"].clone();
            let of = |name: &str| writes[name].as_u64().expect("a number");
            assert!(of("dirty_bytes") + of("pinned_bytes") <= LIMIT, "{writes}");
        };
        eventually("the origin is tried in vain", PATIENCE, || {
            check();
            ended(&server) > 0.0 && server.status()["origin"]["retries_total"].as_u64() > Some(1)
        });
        assert!(count(database, "1 = 1") > 0, "nothing was held up");
        drop(held);
        eventually("all are deleted", PATIENCE, || {
            check();
            count(database, "1 = 1") == 0
        });
        assert!(ended(&server) >= 2_500.0);
        assert_eq!(parked(database), 0);
    };
    thread::scope(|scope| {
        for (number, database) in found.into_iter().flatten().enumerate() {
            scope.spawn(move || stops_and_goes_on(number, &with(database, SESSIONS)));
        }
    });
}
