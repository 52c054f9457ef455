//! Writes: ownership, batches exactly once, what is rejected and how it is told.

use super::database::Database;
use crate::claimed::{Claimed, change, push_change, shown};
use destage_core::{Fault, Lsn};
use destage_origins::change::{GroupWriter, Op};
use destage_origins::contract::{GroupRef, Origin, ParkedGroup};
use destage_origins::parked;
use std::time::Duration;

#[test]
fn what_the_data_break_is_rejected_whole_with_postgresqls_reason() {
    let Some(database) = Database::open("write_rejected") else { return };
    database.sql(
        "CREATE TABLE parent (id int PRIMARY KEY);
         CREATE TABLE t (id int PRIMARY KEY, n int2 CHECK (n < 100), u text UNIQUE, w text NOT NULL DEFAULT '',
           p int REFERENCES parent, q int REFERENCES parent DEFERRABLE INITIALLY DEFERRED, s varchar(3));
         INSERT INTO parent VALUES (1); INSERT INTO t (id, n, u) VALUES (1, 1, 'a'), (2, 2, 'b'), (3, NULL, 'c');
         CREATE TABLE guarded (id int PRIMARY KEY);
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''not today''; END';
         CREATE TRIGGER refuse BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let mut claimed = Claimed::before(&database.origin());
    let (t, parent) = (claimed.table("t").clone(), claimed.table("parent").clone());
    let guarded = claimed.table("guarded").clone();
    let good = change(&t, Op::Update, &["2"], &[("w", Some("touched"))], &[]);
    let cases = [
        ("update of no row", change(&t, Op::Update, &["9"], &[("w", Some("x"))], &[]), "met 0"),
        ("touch of no row", change(&t, Op::Update, &["9"], &[], &[]), "met 0"),
        ("delete of no row", change(&t, Op::Delete, &["9"], &[], &[]), "met 0"),
        ("increment of NULL", change(&t, Op::Update, &["3"], &[], &[("n", "1")]), "met 0"),
        ("insert of a row", change(&t, Op::Insert, &["1"], &[], &[]), "23505"),
        ("unique", change(&t, Op::Update, &["1"], &[("u", Some("b"))], &[]), "t_u_key"),
        ("check", change(&t, Op::Update, &["1"], &[("n", Some("100"))], &[]), "t_n_check"),
        ("check of a sum", change(&t, Op::Update, &["1"], &[], &[("n", "99")]), "t_n_check"),
        ("range of a sum", change(&t, Op::Update, &["1"], &[], &[("n", "40000")]), "22003"),
        ("not null", change(&t, Op::Update, &["1"], &[("w", None)], &[]), "23502"),
        (
            "too long, never cut",
            change(&t, Op::Update, &["1"], &[("s", Some("abcd"))], &[]),
            "22001",
        ),
        ("child", change(&t, Op::Update, &["1"], &[("p", Some("7"))], &[]), "t_p_fkey"),
        ("deferred child", change(&t, Op::Update, &["1"], &[("q", Some("7"))], &[]), "t_q_fkey"),
        ("trigger", change(&guarded, Op::Insert, &["1"], &[], &[]), "not today"),
    ];
    for (name, bad, word) in cases {
        let error = claimed.apply(&[good.clone(), bad]).unwrap_err();
        assert_eq!(error.fault, Fault::Rejected, "{name}: {error}");
        assert!(error.in_full().contains(word), "{name}: {error}");
    }
    assert_eq!(database.text("SELECT count(*)::text FROM t WHERE w <> ''").as_deref(), Some("0"));
    assert_eq!(
        database.text("SELECT seq::text FROM destage_watermark WHERE domain = 0").as_deref(),
        Some("0")
    );
    // A parent that arrives later in the same group satisfies the deferred key.
    let mut group = GroupWriter::new();
    push_change(&mut group, &t, Op::Update, &["1"], &[("q", Some("7"))], &[]);
    push_change(&mut group, &parent, Op::Insert, &["7"], &[], &[]);
    let both = group.finish().to_vec();
    claimed.apply(&[good, both]).unwrap();
    // Two groups: the first alone breaks it, whatever the second brings.
    let error = claimed.apply(&[
        change(&t, Op::Update, &["1"], &[("q", Some("8"))], &[]),
        change(&parent, Op::Insert, &["8"], &[], &[]),
    ]);
    assert_eq!(error.unwrap_err().fault, Fault::Rejected);
}

#[test]
fn a_write_for_which_the_encoding_lacks_characters_is_rejected_and_parked() {
    let Some(server) = Database::open("write_encoding") else { return };
    let name = format!("{}_latin1", server.schema_name());
    server.sql(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
    server.sql(&format!(
        "CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    ));
    let (address, _) = server.url.split_once('?').unwrap();
    let (address, _) = address.rsplit_once('/').unwrap();
    let database = Database::at(format!("{address}/{name}"));
    database.sql("CREATE TABLE t (id int PRIMARY KEY, v text)");
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let group = change(&table, Op::Insert, &["1"], &[("v", Some("\u{1f600}"))], &[]);
    let error = claimed.apply(std::slice::from_ref(&group)).unwrap_err();
    assert_eq!(error.fault, Fault::Rejected, "{error}");
    let payload = parked::encode(&claimed.schema, &group).unwrap();
    let reason = "it has an \u{1f600}".to_owned();
    let parked = ParkedGroup {
        domain: claimed.claim.domain,
        lsn: Lsn(1),
        depends_on: None,
        reason,
        payload,
    };
    claimed.park(Lsn(1), Some(&parked)).unwrap();
    let found = claimed.writer.parked(u64::MAX).unwrap().remove(0);
    assert_eq!(found.reason, r"it has an \ud83d\ude00");
    assert_eq!(parked::decode(&claimed.schema, &found.payload).unwrap(), group);
    drop((claimed, database));
    server.sql(&format!("DROP DATABASE {name} WITH (FORCE)"));
}

#[test]
fn every_type_arrives_as_it_was_written() {
    let Some(database) = Database::open("write_types") else { return };
    database.sql(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE \"Odd;Type\" AS ENUM ('a''b');
         CREATE DOMAIN small AS numeric(6,1) CHECK (VALUE < 1000);
         CREATE TABLE t (u uuid, c char(3), i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric, b bool, y bytea,
           d date, ti time(3), ts timestamp, tz timestamptz, j json, jb jsonb, m mood, o \"Odd;Type\", s small,
           v varchar(4), x text, PRIMARY KEY (u, c))",
    );
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let key = ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "k  "];
    let values = [
        ("i2", "-32768"),
        ("i4", "2147483647"),
        ("i8", "-9223372036854775808"),
        ("f4", "1e-07"),
        ("f8", "-Infinity"),
        ("n", "123456789012345678901234567890.10"),
        ("b", "f"),
        ("y", "\u{1}'\\raw"),
        ("d", "0001-01-01"),
        ("ti", "24:00:00"),
        ("ts", "9999-12-31 23:59:59.999999"),
        ("tz", "2026-01-31 08:00:00+00"),
        ("j", "{\"a\" :  1}"),
        ("jb", "{\"a\": 1}"),
        ("m", "ok"),
        ("o", "a'b"),
        ("s", "999.9"),
        ("v", "äöüß"),
        ("x", "'; DROP TABLE t; -- \\ $1 {}"),
    ];
    let sets: Vec<_> = values.iter().map(|(name, value)| (*name, Some(*value))).collect();
    claimed.apply(&[change(&table, Op::Insert, &key, &sets, &[])]).unwrap();
    let row = claimed.fetch("t", &[&key]).rows.remove(0);
    let expected: Vec<_> = key.iter().copied().chain(values.iter().map(|(_, v)| *v)).collect();
    assert_eq!(shown(row.as_deref()), expected.join("|"));

    let amounts = [("i2", "1"), ("i4", "-1"), ("f4", "1"), ("n", "0.905"), ("s", "-1.25")];
    let nulls: Vec<_> =
        values.iter().map(|(n, _)| *n).filter(|n| amounts.iter().all(|(a, _)| a != n)).collect();
    let sets: Vec<_> = nulls.iter().map(|name| (*name, None)).collect();
    claimed.apply(&[change(&table, Op::Update, &key, &sets, &amounts)]).unwrap();
    let row = claimed.fetch("t", &[&key]).rows.remove(0);
    let sum = |name: &str, amount: &str| {
        let value = values.iter().find(|(n, _)| *n == name).unwrap().1;
        let ty = &table.columns[table.column(name.as_bytes()).unwrap()].ty;
        String::from_utf8(ty.add(value.as_bytes(), amount.as_bytes()).unwrap()).unwrap()
    };
    let expected: Vec<_> = key
        .iter()
        .map(|part| (*part).to_owned())
        .chain(values.iter().map(|(name, _)| {
            amounts
                .iter()
                .find(|(n, _)| n == name)
                .map_or_else(|| "~".to_owned(), |(n, a)| sum(n, a))
        }))
        .collect();
    assert_eq!(shown(row.as_deref()), expected.join("|"));
    claimed.apply(&[change(&table, Op::Delete, &key, &[], &[])]).unwrap();
    assert_eq!(claimed.fetch("t", &[&key]).rows, [None]);
}

#[test]
fn odd_names_and_generated_columns_are_written() {
    let Some(database) = Database::open("write_names") else { return };
    database.sql(
        "CREATE TABLE \"Or;der\" (\"a\"\"b\" int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \"select\" text,
           \"é $1\" int DEFAULT 4, twice int GENERATED ALWAYS AS (\"é $1\" * 2) STORED)",
    );
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("Or;der").clone();
    claimed
        .apply(&[
            change(&table, Op::Insert, &["41"], &[("select", Some("x"))], &[]),
            change(&table, Op::Update, &["41"], &[("é $1", Some("5"))], &[]),
        ])
        .unwrap();
    let row = claimed.fetch("Or;der", &[&["41"]]).rows.remove(0);
    assert_eq!(shown(row.as_deref()), "41|x|5|10");
}

#[test]
fn trouble_of_the_moment_is_unavailable_and_a_schema_change_denied() {
    let Some(database) = Database::open("write_trouble") else { return };
    database.sql("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0)");
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let group = change(&table, Op::Update, &["1"], &[("n", Some("1"))], &[]);
    // Long enough for a busy machine to open the connection, short enough to be waited for.
    let origin = database.origin().timeout(Duration::from_secs(3));
    claimed.writer = origin.writer().unwrap();
    database.sql("BEGIN; LOCK TABLE t");
    assert_eq!(claimed.apply(std::slice::from_ref(&group)).unwrap_err().fault, Fault::Unavailable);
    database.sql("COMMIT");
    // After an outcome that is unknown the connection is to be dropped.
    claimed.writer = database.origin().writer().unwrap();
    claimed.apply(std::slice::from_ref(&group)).unwrap();

    database.sql("ALTER TABLE t RENAME n TO m");
    assert_eq!(claimed.apply(&[group]).unwrap_err().fault, Fault::Denied);
    let refs = [GroupRef { lsn: Lsn(2), bytes: &[1, 2, 3] }];
    let malformed = claimed.apply_refs(&refs).unwrap_err();
    assert_eq!(malformed.fault, Fault::Failed);
}

#[test]
fn a_lost_connection_is_unavailable_and_leaves_nothing_half_done() {
    let Some(database) = Database::open("write_lost") else { return };
    database.sql("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0)");
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let group = change(&table, Op::Update, &["1"], &[], &[("n", "1")]);
    claimed.apply(std::slice::from_ref(&group)).unwrap();
    // The backend of this writer is the one that waits for the lock below.
    database.sql("BEGIN; LOCK TABLE t");
    let url = database.url.clone();
    let killer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            for _ in 0..6_000 {
                let sql = "SELECT count(pg_terminate_backend(l.pid)) FROM pg_locks l \
                     WHERE l.relation = 't'::regclass AND NOT l.granted";
                if client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    });
    assert_eq!(claimed.apply(std::slice::from_ref(&group)).unwrap_err().fault, Fault::Unavailable);
    killer.join().unwrap();
    database.sql("COMMIT");
    assert_eq!(claimed.apply(std::slice::from_ref(&group)).unwrap_err().fault, Fault::Unavailable);
    claimed.writer = database.origin().writer().unwrap();
    claimed.apply(&[group]).unwrap();
    assert_eq!(database.text("SELECT n::text FROM t").as_deref(), Some("2"));
}
