//! Defaults that are given here (`defaults = "here"`): what a new row shows before the origin has it is what it holds there.

use crate::harness::ferretdb::Ferret;
use crate::harness::schema::schema_under;
use crate::harness::{
    Client, Database, Kind, Launch, OwnServer, PATIENCE, Reply, Scratch, Server, eventually,
};
use crate::mapped;
use mongodb::bson::doc;
use std::time::{SystemTime, UNIX_EPOCH};

const SETTINGS: &str = r#"
[table.orders]
defaults = "here"

[table.labels]
defaults = "here"

[[set]]
key = "labels-of:{order_id}"
table = "labels"
member = "label"
"#;

const SQLITE: &str = "
CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT, public_id TEXT NOT NULL UNIQUE DEFAULT (uuid()),
    created_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, updated_at TEXT DEFAULT (datetime('now')),
    day DATE NOT NULL DEFAULT CURRENT_DATE);
CREATE TRIGGER touched AFTER UPDATE ON orders BEGIN
    UPDATE orders SET updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE id = NEW.id; END;
CREATE TABLE labels (order_id INTEGER, label TEXT, made DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (order_id, label));";

const POSTGRES: &str = "
CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT, public_id UUID NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(), updated_at TIMESTAMP(3) DEFAULT (now() AT TIME ZONE 'utc'),
    day DATE NOT NULL DEFAULT CURRENT_DATE, token VARCHAR(36) DEFAULT gen_random_uuid());
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN NEW.updated_at := now(); RETURN NEW; END $$;
CREATE TRIGGER touched BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION touch();
CREATE TABLE labels (order_id INTEGER, label TEXT, made TIMESTAMPTZ(0) NOT NULL DEFAULT now(),
    PRIMARY KEY (order_id, label));";

const MARIADB: &str = "
CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT, public_id UUID NOT NULL UNIQUE DEFAULT uuid(),
    created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), updated_at TIMESTAMP(3) NULL DEFAULT CURRENT_TIMESTAMP(3),
    day DATE NOT NULL DEFAULT CURDATE(), token CHAR(36) DEFAULT uuid());
CREATE TRIGGER touched BEFORE UPDATE ON orders FOR EACH ROW SET NEW.updated_at = NOW(3);
CREATE TABLE labels (order_id INTEGER, label VARCHAR(99) COLLATE utf8mb4_bin, made DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (order_id, label));";

/// Each kind of database with such tables, and a server before it.
fn on_each(body: impl Fn(&Launch, &Database)) {
    let scratch = Scratch::new();
    let found = [
        Some(Database::sqlite(&scratch).with(SQLITE)),
        Database::postgres().map(|database| database.with(POSTGRES)),
        Database::mariadb().map(|database| database.with(MARIADB)),
    ];
    for (number, database) in found.into_iter().flatten().enumerate() {
        let data = format!("data-{number}");
        body(&mapped::launch(&scratch, &database, &data, SETTINGS), &database);
    }
}

type Fields = Vec<(String, String)>;

fn row(client: &mut Client, key: &str) -> Fields {
    client.run(&format!("HGETALL {key}")).pairs()
}

#[track_caller]
fn field<'r>(row: &'r Fields, name: &str) -> &'r str {
    let found = row.iter().find(|(field, _)| field == name);
    &found.unwrap_or_else(|| panic!("no {name} in {row:?}")).1
}

/// Seconds since 1970, by the clock of the host.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a date after 1970");
    since.as_secs() as i64
}

/// The seconds since 1970 that a column shows, of UTC.
fn seconds_of(shown: &str) -> i64 {
    let memory = rusqlite::Connection::open_in_memory().expect("there is memory");
    let sql = "SELECT CAST(strftime('%s', ?1) AS INTEGER)";
    let shown = &shown[..19.min(shown.len())];
    memory.query_row(sql, [shown], |row| row.get(0)).expect("it is a time")
}

/// The rows as they are once the origin has them and the cache has nothing of them any more.
fn at_origin(server: &Server, keys: &[&str]) -> Vec<Fields> {
    server.drain();
    let mut client = server.client();
    client.run("DESTAGE INVALIDATE *");
    keys.iter().map(|key| row(&mut client, key)).collect()
}

/// > A value that is given here stays as it was acknowledged: it is never another one after a crash, nor at the origin.
#[test]
fn a_new_row_is_read_at_once_and_is_the_same_after_a_crash_and_at_the_origin() {
    on_each(|launch, database| {
        let server = launch.start();
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        let before = now();
        assert_eq!(client.run("HSET orders:1 note x").int(), 1);
        assert_eq!(client.run("HSETNX orders:2 note y").int(), 1);
        assert_eq!(client.run("HSETNX orders:2 day 2001-02-03").int(), 0);
        assert_eq!(client.run("HSETNX orders:3 day 2001-02-03").int(), 1);
        assert_eq!(client.run("SADD labels-of:1 red").int(), 1);
        let after = now();
        // Nothing of it is at the origin, and nothing has to be asked for there.
        assert_eq!(database.number("SELECT count(*) FROM orders"), 0);
        let keys = ["orders:1", "orders:2", "orders:3", "labels:1:red"];
        let shown: Vec<Fields> = keys.iter().map(|key| row(&mut client, key)).collect();
        for (row, times) in shown.iter().zip([&["created_at", "updated_at"][..]; 3]) {
            for time in times {
                let seconds = seconds_of(field(row, time));
                assert!((before..=after).contains(&seconds), "{time} of {row:?}");
            }
        }
        assert!((before..=after).contains(&seconds_of(field(&shown[3], "made"))), "{shown:?}");
        assert_eq!(field(&shown[0], "day"), &field(&shown[0], "created_at")[..10]);
        assert_eq!(field(&shown[2], "day"), "2001-02-03");
        let id = |row: &Fields| field(row, "public_id").to_owned();
        assert!(id(&shown[0]) != id(&shown[1]) && id(&shown[1]) != id(&shown[2]), "{shown:?}");
        assert_eq!((id(&shown[0]).len(), &id(&shown[0])[14..15]), (36, "4"));
        // The row is sent in another second than the one in which it was acknowledged.
        eventually("a second passes", PATIENCE, || now() > after);
        server.kill();
        let server = launch.start();
        let mut client = server.client();
        let again: Vec<Fields> = keys.iter().map(|key| row(&mut client, key)).collect();
        assert_eq!(again, shown);
        // Another process gives other UUIDs.
        assert_eq!(client.run("HSET orders:4 note z").int(), 1);
        let next = row(&mut client, "orders:4");
        assert!(shown[..3].iter().all(|row| id(row) != id(&next)), "{shown:?} {next:?}");
        assert_eq!(at_origin(&server, &keys), shown);
        for row in &shown[..3] {
            let (id, at) = (id(row), field(row, "created_at"));
            let sql = match database {
                // Not every client of its has this zone.
                Database::Sqlite(_) | Database::Postgres(_) => format!("created_at = '{at}' AND "),
                Database::Mariadb(_) => String::new(),
            };
            let sql = format!("SELECT count(*) FROM orders WHERE {sql}public_id = '{id}'");
            assert_eq!(database.number(&sql), 1, "{row:?}");
        }
        assert_eq!(server.status()["destage"]["parked_groups"], 0);
    });
}

/// A transaction has one time; what it reads of a row that it makes is what becomes of it.
#[test]
fn a_transaction_gives_all_its_rows_one_time_and_shows_what_it_gives() {
    on_each(|launch, _| {
        let server = launch.start();
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        client.run("MULTI").ok();
        let commands = [
            "HSET orders:1 note a",
            "HGET orders:1 public_id",
            "HSET orders:2 note b",
            "HSET orders:1 note c",
            "HGET orders:1 public_id",
        ];
        for command in commands {
            assert_eq!(client.run(command), Reply::Status("QUEUED".into()));
        }
        let replies = client.run("EXEC");
        let (first, second) = (row(&mut client, "orders:1"), row(&mut client, "orders:2"));
        assert_eq!(field(&first, "note"), "c");
        for place in [1, 4] {
            assert_eq!(replies.array()[place].text(), field(&first, "public_id"));
        }
        assert_eq!(field(&first, "created_at"), field(&second, "created_at"));
        assert_ne!(field(&first, "public_id"), field(&second, "public_id"));

        // Under leases, too, though each command performs the ones before it again.
        client.run("DESTAGE BEGIN 60000").ok();
        assert_eq!(client.run("HSET orders:3 note d").int(), 1);
        let told = row(&mut client, "orders:3");
        let begun = now();
        eventually("a second passes", PATIENCE, || now() > begun);
        assert_eq!(client.run("SADD labels-of:3 blue").int(), 1);
        assert_eq!(row(&mut client, "orders:3"), told);
        assert!(!client.run("EXEC").is_error());
        assert_eq!(row(&mut client, "orders:3"), told);

        // Deleted and made anew, it is another one.
        assert_eq!(client.run("DEL orders:1").int(), 1);
        assert_eq!(client.run("HSET orders:1 note e").int(), 1);
        let anew = row(&mut client, "orders:1");
        assert_ne!(field(&anew, "public_id"), field(&first, "public_id"));
        client.run("DESTAGE RESUME").ok();
        assert_eq!(at_origin(&server, &["orders:1", "orders:2", "orders:3"]), [anew, second, told]);
        assert_eq!(server.status()["destage"]["parked_groups"], 0);
    });
}

/// What a trigger sets in the row later is the origin's again; other programs' rows are given their defaults there, as ever.
#[test]
fn what_comes_after_the_new_row_is_the_origins() {
    on_each(|launch, database| {
        let server = launch.start();
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        assert_eq!(client.run("HSET orders:1 note a").int(), 1);
        let made = row(&mut client, "orders:1");
        assert_eq!(client.run("HSET orders:1 note b").int(), 0);
        let wrote = now();
        eventually("a second passes", PATIENCE, || now() > wrote);
        client.run("DESTAGE RESUME").ok();
        let touched = row(&mut client, "orders:1");
        assert_eq!(field(&touched, "created_at"), field(&made, "created_at"));
        assert!(seconds_of(field(&touched, "updated_at")) > wrote, "{touched:?} after {made:?}");
        let values = match database {
            Database::Sqlite(_) => "(id, public_id) VALUES (5, 'x')",
            _ => "(id) VALUES (5)",
        };
        database.execute(&format!("INSERT INTO orders {values}"));
        assert!(seconds_of(field(&row(&mut client, "orders:5"), "updated_at")) >= wrote);
    });
}

/// It is known that there is no such row; everything else is done and read without the origin.
fn while_the_origin_is_away(kind: Kind, tables: &str) {
    let Some(mut origin) = OwnServer::start(kind) else { return };
    let scratch = Scratch::new();
    let database = origin.database().with(tables);
    let launch = mapped::launch(&scratch, &database, "data", SETTINGS);
    let server = launch.start();
    let mut client = server.client();
    assert_eq!(client.run("EXISTS orders:1 orders:2").int(), 0);
    origin.stop();
    assert_eq!(client.run("HSET orders:1 note a").int(), 1);
    let shown = row(&mut client, "orders:1");
    server.kill();
    origin.restart();
    let server = launch.start();
    assert_eq!(row(&mut server.client(), "orders:1"), shown);
    assert_eq!(at_origin(&server, &["orders:1"]), [shown]);
}

#[test]
fn a_new_row_is_read_while_postgresql_is_away() {
    while_the_origin_is_away(Kind::Postgres, POSTGRES);
}

#[test]
fn a_new_row_is_read_while_mariadb_is_away() {
    while_the_origin_is_away(Kind::Mariadb, MARIADB);
}

/// The negative control: without the setting, what the origin computes is not told before the origin has the row.
#[test]
fn without_the_setting_a_new_row_waits_for_the_origin() {
    on_each(|launch, _| {
        let launch = launch.with(&["--client-wait", "10m"]);
        let path = launch.data().with_extension("toml");
        let settings = SETTINGS.replace("defaults = \"here\"", "defaults = \"origin\"");
        std::fs::write(&path, settings).expect("the settings can be written");
        let server = launch.start();
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        // SQLite has no UUIDs of its own.
        let id = "11111111-1111-4111-8111-111111111111";
        assert_eq!(client.run(&format!("HSET orders:1 note a public_id {id}")).int(), 2);
        assert_eq!(client.run("HGET orders:1 note").text(), "a");
        let mut reader = server.client();
        reader.send(&["HGET", "orders:1", "created_at"]).expect("it is sent");
        eventually("the reader waits", PATIENCE, || server.status()["clients"]["waiting"] == 1);
        let waited = now();
        eventually("a second passes", PATIENCE, || now() > waited);
        client.run("DESTAGE RESUME").ok();
        let shown = reader.receive().expect("it is answered").text();
        assert!(seconds_of(&shown) > waited, "{shown}");
        assert_eq!(at_origin(&server, &["orders:1"]).len(), 1);
    });
}

#[test]
fn the_schema_says_what_can_be_given_and_what_is() {
    on_each(|launch, database| {
        let of = |shown: &str, column: &str| {
            let lines = shown.lines().skip_while(|line| !line.starts_with("orders:{"));
            let line = lines.skip(1).find(|line| line.trim_start().starts_with(column));
            line.unwrap_or_else(|| panic!("no {column} in {shown}")).to_owned()
        };
        let columns = ["public_id", "created_at", "updated_at", "day"];
        let shown = schema_under(database, &launch.data().with_extension("schema.toml"), "");
        for column in columns {
            let line = of(&shown, column);
            assert!(line.contains("with defaults = \"here\" a new row is given it"), "{line}");
        }
        let shown = schema_under(database, &launch.data().with_extension("schema.toml"), SETTINGS);
        for column in columns {
            let line = of(&shown, column);
            assert!(line.ends_with("a new row is given it before the acknowledgement"), "{line}");
        }
        let line = shown.lines().find(|line| line.starts_with("orders:{")).expect("it is there");
        assert!(line.contains("new rows are given public_id, created_at, "), "{line}");
        // A column that the user leaves to triggers is theirs.
        let declared = "[table.orders]\ndefaults = 'here'\ntriggers = { sets = ['updated_at'] }\n";
        let shown = schema_under(database, &launch.data().with_extension("schema.toml"), declared);
        assert!(!of(&shown, "updated_at").contains("is given"), "{shown}");
    });
}

#[test]
fn a_table_without_such_defaults_is_refused_and_so_is_mongodb() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch)
        .with("CREATE TABLE notes (id INTEGER PRIMARY KEY, n INTEGER DEFAULT (abs(-1)))");
    let settings = "[table.notes]\ndefaults = 'here'\n";
    let launch = mapped::launch(&scratch, &database, "data", settings);
    launch.refused().says(2, &["[table.notes] defaults", "CURRENT_TIMESTAMP"]);

    let Some(mongo) = Ferret::start(&scratch) else { return };
    mongo.insert("notes", vec![doc! { "_id": "a" }]);
    let path = scratch.join("mongo.toml");
    let settings = "[table.notes]\nid = 'string'\nfields = { at = 'string' }\ndefaults = 'here'\n";
    std::fs::write(&path, settings).expect("the settings can be written");
    let path = path.display().to_string();
    let launch = Launch::before(&scratch, &mongo.url()).with(&["--config", &path]);
    launch.refused().says(2, &["[table.notes] defaults", "MongoDB's collections have no defaults"]);
}
