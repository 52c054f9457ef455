//! Values before their destage equal values after a reload, for every type; what only the origin computes is not guessed.

use crate::harness::{Client, Database, Launch, Scratch};
use crate::mapped::launch;
use crate::parking::named;

const SQLITE_TYPES: &str = "
CREATE TABLE kinds (
    id INTEGER PRIMARY KEY, whole INTEGER, fraction REAL, words TEXT, raw BLOB,
    made TEXT NOT NULL DEFAULT (hex(randomblob(8))),
    base INTEGER,
    doubled INTEGER GENERATED ALWAYS AS (base * 2) STORED
)";

const POSTGRES_TYPES: &str = "
CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE TABLE kinds (
    id BIGINT PRIMARY KEY, whole INTEGER, small SMALLINT, big BIGINT, fraction DOUBLE PRECISION, half REAL,
    exact NUMERIC(10, 2), loose NUMERIC, words TEXT, short VARCHAR(5), padded CHAR(6), raw BYTEA, yes BOOLEAN,
    ident UUID, day DATE, instant TIMESTAMPTZ, local TIMESTAMP, clock TIME, doc JSON, docb JSONB, feeling mood,
    numbers INTEGER[], tags TEXT[], shorts VARCHAR(5)[] DEFAULT '{}', sums NUMERIC(10, 2)[], idents UUID[],
    instants TIMESTAMPTZ[], docs JSONB[], feelings mood[], span INT4RANGE,
    made TEXT NOT NULL DEFAULT gen_random_uuid(),
    base INTEGER,
    doubled INTEGER GENERATED ALWAYS AS (base * 2) STORED
)";

const MARIADB_TYPES: &str = "
CREATE TABLE kinds (
    id BIGINT PRIMARY KEY, whole INTEGER, small SMALLINT, big BIGINT UNSIGNED, fraction DOUBLE, half FLOAT,
    exact NUMERIC(10, 2), words TEXT, short VARCHAR(5), padded CHAR(6), raw BLOB, fixed BINARY(4), yes BOOLEAN,
    ident UUID, day DATE, instant TIMESTAMP(6) NULL, local DATETIME(3), clock TIME, doc JSON,
    feeling ENUM('glad', 'sad'), several SET('red', 'green'), bits BIT(5), spot POINT,
    made VARCHAR(40) NOT NULL DEFAULT (uuid()),
    base INTEGER,
    doubled INTEGER AS (base * 2) STORED
)";

/// A column, what a client sends, and what the origin makes of it.
const SQLITE_VALUES: &[(&str, &str, &str)] = &[
    ("whole", "0042", "42"),
    ("whole", "-9223372036854775808", "-9223372036854775808"),
    ("fraction", "1.50", "1.5"),
    ("fraction", "1e3", "1000.0"),
    ("fraction", "0.1", "0.1"),
    ("words", "two  words ", "two  words "),
    ("words", "\u{1F512} ünï", "\u{1F512} ünï"),
    ("raw", "bytes", "bytes"),
];

const POSTGRES_VALUES: &[(&str, &str, &str)] = &[
    ("whole", "0042", "42"),
    ("whole", "-2147483648", "-2147483648"),
    ("small", "-7", "-7"),
    ("big", "9223372036854775807", "9223372036854775807"),
    ("fraction", "1.50", "1.5"),
    ("fraction", "1e300", "1e+300"),
    ("fraction", "0.1", "0.1"),
    ("half", "0.1", "0.1"),
    ("exact", "1.5", "1.50"),
    ("exact", "-0012.3", "-12.30"),
    ("loose", "1.500", "1.500"),
    ("words", "two  words ", "two  words "),
    ("words", "\u{1F512} ünï", "\u{1F512} ünï"),
    ("short", "abcde", "abcde"),
    ("padded", "ab", "ab    "),
    ("yes", "true", "t"),
    ("yes", "0", "f"),
    ("ident", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("day", "2024-02-29", "2024-02-29"),
    ("instant", "2024-02-29 12:00:00+02", "2024-02-29 10:00:00+00"),
    ("instant", "2024-02-29T12:00:00.120Z", "2024-02-29 12:00:00.12+00"),
    ("local", "2024-02-29 12:00:00", "2024-02-29 12:00:00"),
    ("clock", "07:05:00", "07:05:00"),
    ("doc", "{\"b\":1, \"a\":[1,2]}", "{\"b\":1, \"a\":[1,2]}"),
    ("docb", "{\"bb\":1,\"a\":[1,2.0],\"a\":3}", "{\"a\": 3, \"bb\": 1}"),
    ("feeling", "glad", "glad"),
    ("numbers", "{1, 02 ,null}", "{1,2,NULL}"),
    ("numbers", "{}", "{}"),
    ("numbers", "[0:1][1:1]={{1},{2}}", "[0:1][1:1]={{1},{2}}"),
    ("tags", r#"{a b,"","NULL",null,"x\"y",ü}"#, r#"{"a b","","NULL",NULL,"x\"y",ü}"#),
    ("shorts", "{abcde}", "{abcde}"),
    ("sums", "{1.5,-0012.3}", "{1.50,-12.30}"),
    ("idents", "{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"),
    ("instants", "{2024-02-29T12:00:00+02}", r#"{"2024-02-29 10:00:00+00"}"#),
    ("docs", r#"{"{\"b\":1,\"a\":2}"}"#, r#"{"{\"a\": 2, \"b\": 1}"}"#),
    ("feelings", "{glad,sad}", "{glad,sad}"),
];

const MARIADB_VALUES: &[(&str, &str, &str)] = &[
    ("whole", "0042", "42"),
    ("big", "9223372036854775807", "9223372036854775807"),
    ("fraction", "1.50", "1.5"),
    ("fraction", "1e300", "1e+300"),
    ("fraction", "0.1", "0.1"),
    ("half", "0.1", "0.1"),
    ("exact", "-0012.3", "-12.30"),
    ("words", "two  words ", "two  words "),
    ("words", "\u{1F512} ünï '\\", "\u{1F512} ünï '\\"),
    ("short", "abcde", "abcde"),
    ("padded", "ab  ", "ab"),
    ("fixed", "ab", "ab\0\0"),
    ("yes", "1", "1"),
    ("ident", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("day", "2024-02-29", "2024-02-29"),
    ("instant", "2024-02-29T12:00:00.120+02", "2024-02-29 10:00:00.12+00"),
    ("local", "2024-02-29 12:00:00.1", "2024-02-29 12:00:00.1"),
    ("clock", "07:05:00", "07:05:00"),
    ("doc", "{\"b\":1, \"a\":[1,2]}", "{\"b\":1, \"a\":[1,2]}"),
    ("feeling", "glad", "glad"),
    ("several", "green,red", "red,green"),
    ("bits", "21", "21"),
];

fn sqlite() -> (Scratch, Database) {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(SQLITE_TYPES);
    (scratch, database)
}

fn postgres() -> Option<(Scratch, Database)> {
    Some((Scratch::new(), Database::postgres()?.with(POSTGRES_TYPES)))
}

fn mariadb() -> Option<(Scratch, Database)> {
    Some((Scratch::new(), Database::mariadb()?.with(MARIADB_TYPES)))
}

#[track_caller]
fn survive_a_reload(scratch: &Scratch, database: &Database, values: &[(&str, &str, &str)]) {
    let server = Launch::before(scratch, &database.url()).start();
    let mut client = server.client();
    for (n, (column, sent, canonical)) in values.iter().enumerate() {
        let key = format!("kinds:{}", n + 1);
        assert_eq!(client.call(&["HSET", &key, column, sent]).int(), 1, "{column} = {sent}");
        assert_eq!(client.call(&["HGET", &key, column]).text(), *canonical, "buffered {column}");
    }
    server.drain();
    for (n, (column, _, canonical)) in values.iter().enumerate() {
        let key = format!("kinds:{}", n + 1);
        client.call(&["DESTAGE", "INVALIDATE", &key]);
        assert_eq!(client.call(&["HGET", &key, column]).text(), *canonical, "reloaded {column}");
    }
    assert_eq!(server.status()["destage"]["parked_groups"], 0);
}

#[test]
fn values_survive_a_reload_from_sqlite() {
    let (scratch, database) = sqlite();
    survive_a_reload(&scratch, &database, SQLITE_VALUES);
}

#[test]
fn values_survive_a_reload_from_postgres() {
    let Some((scratch, database)) = postgres() else { return };
    survive_a_reload(&scratch, &database, POSTGRES_VALUES);
}

#[test]
fn values_survive_a_reload_from_mariadb() {
    let Some((scratch, database)) = mariadb() else { return };
    survive_a_reload(&scratch, &database, MARIADB_VALUES);
}

#[test]
fn bytes_are_kept_as_they_are() {
    let databases = [Some(sqlite()), postgres(), mariadb()];
    for (scratch, database) in databases.into_iter().flatten() {
        let launch = Launch::before(&scratch, &database.url());
        let server = launch.start();
        let mut client = server.client();
        let bytes: Vec<u8> = (0..=255).chain(*b"\r\n\0").collect();
        client.call(&[b"HSET".as_slice(), b"kinds:1", b"raw", &bytes]);
        server.drain();
        client.call(&["DESTAGE", "INVALIDATE", "kinds:1"]);
        let read = client.call(&["HGET", "kinds:1", "raw"]);
        assert_eq!(read, crate::harness::Reply::Bulk(bytes));
    }
}

#[test]
fn values_that_do_not_fit_are_refused_with_the_columns_name() {
    let Some((scratch, database)) = postgres() else { return };
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    for (column, value) in [
        ("whole", "2147483648"),
        ("whole", "x"),
        ("small", "40000"),
        ("exact", "123456789.00"),
        ("short", "abcdef"),
        ("ident", "not-a-uuid"),
        ("day", "2023-02-29"),
        ("instant", "soon"),
        ("doc", "{"),
        ("feeling", "angry"),
        ("yes", "maybe"),
        ("fraction", "1.2.3"),
        ("numbers", "[1]"),
        ("numbers", "{1,{2}}"),
        ("numbers", "{2147483648}"),
        ("tags", "{a,}"),
        ("tags", "{\"a}"),
        ("shorts", "{abcdef}"),
        ("sums", "{123456789.00}"),
        ("docs", "{{1}"),
        ("docs", r#"{"\"\\u0000\""}"#),
        ("docb", "\"\\u0000\""),
        ("feelings", "{angry}"),
        ("span", "[1,2)"),
        ("doubled", "4"),
    ] {
        let reply = client.call(&["HSET", "kinds:1", "words", "half", column, value]);
        assert!(reply.error().contains(column), "{column} = {value}: {reply:?}");
    }
    // NUL is no text for PostgreSQL.
    assert!(client.call(&["HSET", "kinds:1", "words", "a\0b"]).is_error());
    assert_eq!(client.run("EXISTS kinds:1").int(), 0);
}

const LISTS: &str = "
CREATE TABLE lists (
    id BIGINT PRIMARY KEY, tags TEXT[] NOT NULL DEFAULT '{}', doc JSONB, n INTEGER NOT NULL DEFAULT 0,
    CHECK (cardinality(tags) < 4 OR array_ndims(tags) > 1)
)";

/// The rows 1 and 2 as texts of `tags` and `doc`.
fn lists(client: &mut Client) -> [Vec<String>; 2] {
    ["lists:1", "lists:2"].map(|id| {
        let row = client.run(&format!("HMGET {id} tags doc"));
        row.array().iter().map(crate::harness::Reply::text).collect()
    })
}

#[test]
fn arrays_and_documents_of_postgresql_are_the_same_through_a_crash_and_a_reload() {
    let Some(database) = Database::postgres() else { return };
    let database = database.with(LISTS);
    let scratch = Scratch::new();
    let launch = Launch::before(&scratch, &database.url());
    let server = launch.start();
    let mut client = server.client();
    assert_eq!(client.run("HSET lists:1 n 1").int(), 1);
    assert_eq!(client.run("HGET lists:1 tags").text(), "{}");
    server.drain();
    client.run("DESTAGE PAUSE").ok();
    let tags = r#"{ {"a b", null}, {"\\", "NULL"} }"#;
    let doc = r#"{"bb": [1.50, -0, 1e2], "a": {"\u0061": 1, "a": "\ud83d\ude00"}, "bb": []}"#;
    let shown = [r#"{{"a b",NULL},{"\\","NULL"}}"#, r#"{"a": {"a": "😀"}, "bb": []}"#];
    for id in ["lists:1", "lists:2"] {
        assert!(!client.call(&["HSET", id, "tags", tags, "doc", doc]).is_error());
        assert!(client.run(&format!("HINCRBY {id} n 2")).int() >= 2);
    }
    for (column, wrong) in [("tags", "{a"), ("tags", "[]"), ("doc", "{"), ("doc", "\"\\ud800\"")] {
        let refused = client.call(&["HSET", "lists:3", column, wrong]);
        assert!(refused.error().contains(column), "{refused:?}");
    }
    let refused = client.run("HINCRBY lists:1 tags 1");
    assert!(refused.error().contains("(text[]) is not a number"), "{refused:?}");
    server.kill();

    let server = launch.start();
    let mut client = server.client();
    assert_eq!(lists(&mut client), [shown, shown]);
    server.drain();
    client.run("DESTAGE INVALIDATE *");
    assert_eq!(lists(&mut client), [shown, shown]);
    let held = database.rows("SELECT tags::text, doc::text, n FROM lists ORDER BY id");
    assert_eq!(held, [[shown[0], shown[1], "3"], [shown[0], shown[1], "2"]]);
    assert_eq!(server.status()["destage"]["parked_groups"], 0);
}

#[test]
fn a_parked_array_is_edited_as_it_is_written_elsewhere() {
    let Some(database) = Database::postgres() else { return };
    let database = database.with(LISTS);
    let scratch = Scratch::new();
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    assert!(!client.run("HSET lists:1 tags {1,2,3,4}").is_error());
    assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
    let list = client.run("DESTAGE PARKED LIST");
    let id = named(list.array().last().expect("it is listed"), "id").text();
    let payload = named(&client.run(&format!("DESTAGE PARKED SHOW {id}")), "payload").text();
    assert!(payload.contains("{1,2,3,4}"), "{payload}");
    let mut edit = |to: &str| {
        let edited = payload.replace("{1,2,3,4}", to);
        client.call(&["DESTAGE", "PARKED", "EDIT", &id, &edited])
    };
    let refused = edit("{1,");
    assert!(refused.error().contains("tags"), "{refused:?}");
    let decided = edit("{ 1 , 'x' }");
    assert!(!decided.is_error(), "{decided:?}");
    assert_eq!(client.run("HGET lists:1 tags").text(), "{1,'x'}");
    assert_eq!(database.value("SELECT tags::text FROM lists WHERE id = 1"), "{1,'x'}");
}

#[test]
fn numbers_of_mariadb_shrink_where_they_have_no_sign_and_are_finite() {
    let Some((scratch, database)) = mariadb() else { return };
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    let values = ["HSET", "kinds:1", "big", "5", "fraction", "1.5", "half", "1", "exact", "2"];
    assert_eq!(client.call(&values).int(), 4);
    server.drain();
    assert_eq!(client.run("HINCRBY kinds:1 big -3").int(), 2);
    assert!(client.run("HINCRBY kinds:1 big -3").error().contains("big"));
    assert_eq!(client.run("HINCRBYFLOAT kinds:1 fraction 0.25").text(), "1.75");
    assert_eq!(client.run("HINCRBYFLOAT kinds:1 half -0.5").text(), "0.5");
    for value in ["NaN", "nan", "inf"] {
        assert!(client.call(&["HSET", "kinds:1", "exact", value]).error().contains("exact"));
        assert!(client.call(&["HSET", "kinds:1", "fraction", value]).error().contains("fraction"));
    }
    server.drain();
    client.run("DESTAGE INVALIDATE kinds:1");
    let row = client.run("HMGET kinds:1 big fraction half exact");
    let row: Vec<String> = row.array().iter().map(crate::harness::Reply::text).collect();
    assert_eq!(row, ["2", "1.75", "0.5", "2.00"]);
    assert_eq!(server.status()["destage"]["parked_groups"], 0);
}

/// What only the origin computes is read from there, also while the row is dirty.
#[track_caller]
fn computed_columns_are_the_origins(client: &mut Client, database: &Database) {
    assert_eq!(client.run("HSET kinds:1 base 21").int(), 1);
    assert_eq!(client.run("HGET kinds:1 doubled").int(), 42);
    let made = client.run("HGET kinds:1 made").text();
    assert_eq!(database.value("SELECT made FROM kinds WHERE id = 1"), made);
    assert_eq!(client.run("HINCRBY kinds:1 base 9").int(), 30);
    let row = client.run("HGETALL kinds:1").pairs();
    assert!(row.contains(&("doubled".into(), "60".into())), "{row:?}");
    assert!(row.contains(&("made".into(), made)), "{row:?}");
    // What is not computed needs no origin.
    client.run("DESTAGE PAUSE").ok();
    assert_eq!(client.run("HSET kinds:1 words now").int(), 1);
    assert_eq!(client.run("HGET kinds:1 words").text(), "now");
    client.run("DESTAGE RESUME").ok();
    assert!(client.run("HSET kinds:1 doubled 7").error().contains("doubled"));
}

#[test]
fn computed_columns_and_defaults_are_read_from_the_origin_never_guessed() {
    let databases = [Some(sqlite()), postgres(), mariadb()];
    for (scratch, database) in databases.into_iter().flatten() {
        let server = Launch::before(&scratch, &database.url()).start();
        computed_columns_are_the_origins(&mut server.client(), &database);
    }
}

#[test]
fn uuid_keys_in_any_case_are_one_row() {
    let Some(database) = Database::postgres() else { return };
    let database =
        database.with("CREATE TABLE things (id UUID PRIMARY KEY, n INTEGER NOT NULL DEFAULT 0)");
    let scratch = Scratch::new();
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    for key in ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"] {
        client.run(&format!("HSET things:{key} n 0"));
        client.run(&format!("HINCRBY things:{key} n 1"));
    }
    server.drain();
    assert_eq!(database.rows("SELECT n FROM things"), [["1"]]);
}

#[test]
fn a_trigger_makes_writes_go_through() {
    let Some(database) = Database::postgres() else { return };
    let database = database.with(
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT, shout TEXT);
         CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN NEW.shout := upper(NEW.body); RETURN NEW; END $$;
         CREATE TRIGGER shouting BEFORE INSERT OR UPDATE ON notes
             FOR EACH ROW EXECUTE FUNCTION shout();",
    );
    let scratch = Scratch::new();
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    client.run("HSET notes:1 body hello");
    assert_eq!(database.value("SELECT shout FROM notes WHERE id = 1"), "HELLO");
    assert_eq!(client.run("HGET notes:1 shout").text(), "HELLO");
}

#[test]
fn a_cascading_delete_takes_the_children_with_it() {
    let scratch = Scratch::new();
    let children = "
        CREATE TABLE parents (id INTEGER PRIMARY KEY, name TEXT);
        CREATE TABLE children (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents (id) ON DELETE CASCADE);
        INSERT INTO parents VALUES (1, 'p');
        INSERT INTO children VALUES (1, 1), (2, 1);";
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(children);
        let launch = Launch::before(&scratch, &database.url());
        let server = launch.elsewhere(&scratch, &format!("data-{number}")).start();
        let mut client = server.client();
        assert_eq!(client.run("EXISTS children:1 children:2").int(), 2);
        assert_eq!(client.run("DEL parents:1").int(), 1);
        client.run("DESTAGE WAIT 30000");
        assert_eq!(client.run("EXISTS children:1 children:2").int(), 0);
        assert_eq!(database.number("SELECT count(*) FROM children"), 0);
    }
}

#[test]
fn increments_and_removed_members_that_set_off_cascades_are_acknowledged_after_these() {
    let scratch = Scratch::new();
    let tables = "
        CREATE TABLE parents (id INTEGER PRIMARY KEY, code INTEGER UNIQUE);
        CREATE TABLE children (
            id INTEGER PRIMARY KEY, code INTEGER REFERENCES parents (code) ON UPDATE CASCADE);
        CREATE TABLE tags (owner INTEGER NOT NULL, tag VARCHAR(40) NOT NULL, PRIMARY KEY (owner, tag));
        CREATE TABLE notes (
            id INTEGER PRIMARY KEY, owner INTEGER, tag VARCHAR(40),
            FOREIGN KEY (owner, tag) REFERENCES tags (owner, tag) ON DELETE CASCADE);
        INSERT INTO parents VALUES (1, 1);
        INSERT INTO children VALUES (1, 1);
        INSERT INTO tags VALUES (1, 'warm'), (2, 'cold');
        INSERT INTO notes VALUES (1, 1, 'warm'), (2, 2, 'cold');";
    let sets = "[[set]]\nkey = \"tagged:{owner}\"\ntable = \"tags\"\nmember = \"tag\"\n";
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(tables);
        let server = launch(&scratch, &database, &format!("data-{number}"), sets).start();
        let mut client = server.client();
        assert_eq!(client.run("HGET children:1 code").text(), "1");
        assert_eq!(client.run("HINCRBY parents:1 code 5").int(), 6);
        assert_eq!(client.run("HGET children:1 code").text(), "6");
        assert_eq!(client.run("EXISTS notes:1").int(), 1);
        assert_eq!(client.run("SREM tagged:1 warm").int(), 1);
        assert_eq!(client.run("EXISTS notes:1").int(), 0);
        // The members are known before the set that they belong to.
        assert_eq!(client.run("SISMEMBER tagged:2 cold").int(), 1);
        assert_eq!(client.run("EXISTS notes:2").int(), 1);
        assert_eq!(client.run("DEL tagged:2").int(), 1);
        assert_eq!(client.run("EXISTS notes:2").int(), 0);
        assert_eq!(database.number("SELECT count(*) FROM notes"), 0);
    }
}
