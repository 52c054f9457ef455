//! Rows that end at the time in a column (`ttl = "column ..."`): what clients see of them, and what becomes of them at the
//! origin, whatever other programs, crashes, locks and clocks do.

mod clocks;
mod declared;
mod others;

use crate::harness::{Client, Database, Launch, PATIENCE, Reply, Scratch, Server, eventually};
use crate::mapped;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SESSIONS: &str =
    "CREATE TABLE sessions (id NAME NOT NULL PRIMARY KEY, data VARCHAR(100), expires_at WHEN );";
const SETTINGS: &str = r#"
[table.sessions]
ttl = "column expires_at"

[[string]]
key = "lock:{id}"
table = "sessions"
value = "data"
"#;

/// `WHEN` in the statements stands for a column that holds a time, or nothing.
fn with(database: Database, sql: &str) -> Database {
    let when = match database {
        Database::Sqlite(_) => " DATETIME ",
        Database::Postgres(_) => " TIMESTAMPTZ ",
        Database::Mariadb(_) => " DATETIME(6) NULL ",
    };
    database.with(&sql.replace(" WHEN ", when))
}

/// The expression of the time in so many seconds, by the database's clock.
fn at(database: &Database, seconds: i64) -> String {
    match database {
        Database::Sqlite(_) => format!("strftime('%Y-%m-%d %H:%M:%f', 'now', '{seconds} seconds')"),
        Database::Postgres(_) => format!("(now() + interval '{seconds} seconds')"),
        Database::Mariadb(_) => format!("(utc_timestamp(6) + interval {seconds} second)"),
    }
}

/// On each kind of database, with these tables and settings.
fn on_each(tables: &str, settings: &str, body: impl Fn(Launch, &Database) + Sync) {
    let scratch = Scratch::new();
    let found = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    // At once: most of them wait for the next sweep.
    thread::scope(|scope| {
        for (number, database) in found.into_iter().flatten().enumerate() {
            let database = with(database, tables);
            let launch = mapped::launch(&scratch, &database, &format!("data-{number}"), settings);
            let body = &body;
            scope.spawn(move || body(launch, &database));
        }
    });
}

/// Sessions of these keys that end in so many seconds, by another program.
fn insert(database: &Database, keys: &[String], seconds: i64) {
    let at = at(database, seconds);
    // An argument of a command has 128 KiB at most.
    for keys in keys.chunks(500) {
        let rows: Vec<String> = keys.iter().map(|key| format!("('{key}', 'x', {at})")).collect();
        database.execute(&format!("INSERT INTO sessions VALUES {}", rows.join(", ")));
    }
}

/// How many sessions there are that fit.
fn count(database: &Database, condition: &str) -> i64 {
    database.number(&format!("SELECT count(*) FROM sessions WHERE {condition}"))
}

/// How many have been parked.
fn parked(database: &Database) -> i64 {
    database.number("SELECT count(*) FROM destage_parked")
}

/// Deletions that were journaled since the start.
fn ended(server: &Server) -> f64 {
    server.metric("destage_ended_rows_total")
}

/// What a command answers, a number.
#[track_caller]
fn number(client: &mut Client, command: &str, expected: i64) {
    assert_eq!(client.run(command), Reply::Int(expected), "{command}");
}

#[test]
fn a_row_is_gone_at_the_time_in_its_column_which_expire_sets_and_ttl_reads() {
    on_each(SESSIONS, SETTINGS, |launch, database| {
        insert(database, &["old".into()], -3_600);
        insert(database, &["young".into()], 3_600);
        database.execute("INSERT INTO sessions VALUES ('lasting', 'x', NULL)");
        let server = launch.start();
        let mut client = server.client();
        for command in
            ["EXISTS sessions:old", "DEL lock:old", "EXPIRE sessions:old 100", "PERSIST lock:old"]
        {
            number(&mut client, command, 0);
        }
        assert_eq!(client.run("HGET sessions:old data"), Reply::Nil);
        number(&mut client, "TTL sessions:old", -2);
        number(&mut client, "TTL sessions:lasting", -1);
        assert!((3_000..=3_600).contains(&client.run("TTL sessions:young").int()));

        number(&mut client, "HSET sessions:new data y", 1);
        number(&mut client, "EXPIRE sessions:new 1000", 1);
        assert!((500..=1_000).contains(&client.run("TTL sessions:new").int()));
        client.run("SET lock:a mine NX EX 1000").ok();
        assert_eq!(client.run("SET lock:a theirs NX EX 1000"), Reply::Nil);
        assert_eq!(client.run("GETEX lock:a EX 2000").text(), "mine");
        server.drain();
        for (key, seconds) in [("new", 1_000), ("a", 2_000)] {
            let (from, to) = (at(database, seconds - 500), at(database, seconds));
            let set = format!("id = '{key}' AND expires_at > {from} AND expires_at <= {to}");
            assert_eq!(
                count(database, &set),
                1,
                "{key}: {:?}",
                database.rows("SELECT * FROM sessions")
            );
        }
        // A lock that has ended is free, also before it is deleted at the origin.
        number(&mut client, "PEXPIRE lock:a 1", 1);
        eventually("it ends", PATIENCE, || client.run("GET lock:a") == Reply::Nil);
        client.run("SET lock:a theirs NX EX 1000").ok();
        number(&mut client, "PERSIST sessions:new", 1);
        server.drain();
        assert_eq!(count(database, "id = 'a' AND data = 'theirs'"), 1);
        assert_eq!(count(database, "id = 'new' AND expires_at IS NULL"), 1);

        eventually("it is deleted", PATIENCE, || count(database, "id = 'old'") == 0);
        assert_eq!((count(database, "1 = 1"), parked(database)), (4, 0));
        assert!(ended(&server) >= 1.0);
        server.kill();
        let server = launch.start();
        let mut client = server.client();
        assert_eq!(client.run("GET lock:a").text(), "theirs");
        number(&mut client, "TTL sessions:new", -1);
    });
}

/// Milliseconds since 1970, by the clock of the host.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a date after 1970");
    since.as_millis() as i64
}

/// > A row that has ended is never seen by a client.
#[test]
fn no_read_that_begins_after_the_end_of_a_row_sees_it() {
    on_each(SESSIONS, SETTINGS, |launch, _| {
        let server = launch.start();
        let mut client = server.client();
        let mut seen = 0;
        for session in 0..4 {
            let key = format!("sessions:{session}");
            number(&mut client, &format!("HSET {key} data x"), 1);
            number(&mut client, &format!("PEXPIRE {key} 500"), 1);
            // It may have ended before this is asked.
            let told = client.run(&format!("PEXPIRETIME {key}")).int();
            let ends = if told < 0 { now_ms() } else { told };
            loop {
                let asked = now_ms();
                if client.run(&format!("HGET {key} data")) == Reply::Nil {
                    break;
                }
                // The server's clock differs from the host's by what that was corrected since the start.
                assert!(asked <= ends + 100, "seen {} ms after its end", asked - ends);
                seen += 1;
            }
            assert!(now_ms() + 100 >= ends, "gone {} ms before its end", ends - now_ms());
        }
        assert!(seen > 0, "none was seen at all");
    });
}

/// Each row is prolonged, and so kept, or has ended, and is deleted; what was under way when the server was killed comes once.
#[test]
fn kills_amid_deletions_lose_no_prolonged_row_and_leave_no_ended_one() {
    on_each(SESSIONS, SETTINGS, |launch, database| {
        let mut prolonged = Vec::new();
        let mut first_end = Instant::now();
        for round in 0..3 {
            let old: Vec<_> = (0..700).map(|n| format!("old-{round}-{n}")).collect();
            insert(database, &old, -60);
            let server = launch.start();
            let mut client = server.client();
            let keys: Vec<_> = (0..5).map(|n| format!("kept-{round}-{n}")).collect();
            insert(database, &keys, 4);
            first_end = Instant::now() + Duration::from_secs(4);
            for key in keys {
                // On a slow machine it may have ended by now.
                if client.run(&format!("EXPIRE sessions:{key} 5000")).int() == 1 {
                    prolonged.push(key);
                }
            }
            eventually("some are being deleted", PATIENCE, || ended(&server) > 0.0);
            server.kill();
        }
        assert!(prolonged.len() >= 3, "{prolonged:?}");
        let server = launch.start();
        eventually("all are deleted", PATIENCE, || count(database, "id LIKE 'old-%'") == 0);
        eventually("their first time has passed", PATIENCE, || Instant::now() > first_end);
        let mut client = server.client();
        for key in &prolonged {
            assert_eq!(client.run(&format!("HGET sessions:{key} data")).text(), "x", "{key}");
        }
        server.drain();
        let kept = format!("id LIKE 'kept-%' AND expires_at > {}", at(database, 1_000));
        assert_eq!(count(database, &kept), prolonged.len() as i64);
        assert_eq!(parked(database), 0);
    });
}
