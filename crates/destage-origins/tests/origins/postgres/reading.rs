//! Reads: rows, watermarks of the same snapshot, keys in order, new keys.

use super::database::Database;
use crate::claimed::{Claimed, change, key, shown};
use destage_core::{DomainId, Fault, Lsn};
use destage_origins::change::Op;
use destage_origins::contract::Origin;
use destage_origins::origins::Postgres;
use destage_origins::schema::Table;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn rows_arrive_in_the_order_asked_with_their_watermarks() {
    let Some(database) = Database::open("read_rows") else { return };
    database.sql(
        "CREATE TYPE mood AS ENUM ('sad', 'ok');
         CREATE TABLE t (a int, b text, i int2, f4 float4, f8 float8, n numeric(8,2), c char(4), y bytea, o bool, u uuid,
           d date, ti time, ts timestamp, tz timestamptz, j json, jb jsonb, m mood, ip inet, PRIMARY KEY (b, a));
         INSERT INTO t VALUES (1, 'x', -5, 0.1, 1e23, 1.5, 'ab', '\\x00ff', true, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11',
           '2026-01-31', '10:00:00.50', '2026-01-31 10:00', '2026-01-31 10:00+02', '{\"b\" :1}', '{\"b\" :1}', 'ok', '10.0.0.1/8');
         INSERT INTO t (a, b) VALUES (2, 'y'), (3, 'it''s; DROP TABLE t; --')",
    );
    let mut claimed = Claimed::before(&database.origin());
    let snapshot = claimed.fetch(
        "t",
        &[&["y", "2"], &["z", "9"], &["x", "1"], &["it's; DROP TABLE t; --", "3"], &["y", "2"]],
    );
    assert_eq!(shown(snapshot.rows[0].as_deref()), "y|2|~|~|~|~|~|~|~|~|~|~|~|~|~|~|~|~");
    assert_eq!(snapshot.rows[1], None);
    assert_eq!(
        shown(snapshot.rows[2].as_deref()).replace('\u{fffd}', "#"),
        "x|1|-5|0.1|9.999999999999999e+22|1.50|ab  |\0#|t|a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11|2026-01-31|10:00:00.5|\
         2026-01-31 10:00:00|2026-01-31 08:00:00+00|{\"b\" :1}|{\"b\": 1}|ok|10.0.0.1/8"
    );
    assert!(
        snapshot.rows[3].as_deref().unwrap().starts_with(&key(&["it's; DROP TABLE t; --", "3"]))
    );
    assert_eq!(snapshot.rows[4], snapshot.rows[0]);
    assert_eq!(snapshot.watermarks, [(DomainId(0), Lsn(0)), (DomainId(3), Lsn(0))]);
    assert_eq!(claimed.fetch("t", &[]).watermarks.len(), 2);

    // Each canonical value read is canonical.
    let table = claimed.table("t").clone();
    let cells = destage_origins::cells::Reader::new(snapshot.rows[2].as_deref().unwrap());
    for (cell, column) in cells.zip(&table.columns) {
        let value = cell.value().unwrap();
        if column.name != "ip" {
            assert_eq!(&*column.ty.canonical(value).unwrap(), value, "{}", column.name);
        }
    }
}

#[test]
fn a_reader_may_come_before_the_first_writer() {
    let Some(database) = Database::open("read_early") else { return };
    database.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')");
    let origin = database.origin();
    let schema = origin.schema().unwrap();
    let mut reader = origin.reader().unwrap();
    let table = schema.find(b"t").unwrap();
    let key = key(&["1"]);
    assert!(reader.fetch(table, &[&key]).unwrap().watermarks.is_empty());
    let mut claimed = Claimed::before(&database.origin());
    claimed.apply(&[change(table, Op::Update, &["1"], &[("v", Some("b"))], &[])]).unwrap();
    let snapshot = reader.fetch(table, &[&key]).unwrap();
    assert_eq!(snapshot.watermark(DomainId(0)), Lsn(1));
    assert_eq!(shown(snapshot.rows[0].as_deref()), "1|b");
}

#[test]
fn keys_are_scanned_in_order_page_by_page() {
    let Some(database) = Database::open("read_scan") else { return };
    database.sql(
        "CREATE TABLE n (id bigint PRIMARY KEY); INSERT INTO n SELECT generate_series(-20, 20);
         CREATE TABLE p (a text, b int, PRIMARY KEY (a, b));
         INSERT INTO p SELECT x, y FROM unnest(ARRAY['b', 'a', 'B', 'ä', '_', '']) x, generate_series(9, 11) y;
         CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE e (id mood PRIMARY KEY); INSERT INTO e VALUES ('ok'), ('sad')",
    );
    let mut claimed = Claimed::before(&database.origin());
    let mut all = |name: &str, limit: usize| {
        let table = claimed.schema.find(name.as_bytes()).unwrap();
        let mut keys: Vec<Box<[u8]>> = Vec::new();
        loop {
            let (page, _) = claimed.reader.scan(table, keys.last().map(|k| &**k), limit).unwrap();
            assert!(page.len() <= limit);
            if page.is_empty() {
                return keys.iter().map(|k| shown(Some(k))).collect::<Vec<_>>();
            }
            keys.extend(page);
        }
    };
    assert_eq!(all("n", 7), (-20..=20).map(|n| n.to_string()).collect::<Vec<_>>());
    let expected: Vec<_> = ["", "B", "_", "a", "b", "ä"]
        .iter()
        .flat_map(|a| (9..=11).map(move |b| format!("{a}|{b}")))
        .collect();
    assert_eq!(all("p", 4), expected);
    assert_eq!(all("e", 1), ["ok", "sad"]);
}

#[test]
fn new_keys_come_from_the_sequence() {
    let Some(database) = Database::open("read_keys") else { return };
    database.sql(
        "CREATE TABLE a (id bigint GENERATED ALWAYS AS IDENTITY (START 5) PRIMARY KEY);
         CREATE TABLE \"B;b\" (\"i\"\"d\" serial PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY)",
    );
    let mut claimed = Claimed::before(&database.origin());
    let tables = claimed.schema.clone();
    assert_eq!(claimed.reader.next_keys(tables.find(b"a").unwrap(), 3).unwrap().keys, [5, 6, 7]);
    assert_eq!(claimed.reader.next_keys(tables.find(b"B;b").unwrap(), 1).unwrap().keys, [1]);
    let error = claimed.reader.next_keys(tables.find(b"c").unwrap(), 1).unwrap_err();
    assert_eq!(error.fault, Fault::Denied);
}

#[test]
fn an_origin_that_does_not_answer_is_unavailable_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let url = format!("postgres://app:secret@127.0.0.1:{port}/db");
    let origin = Postgres::new(&url).unwrap().timeout(Duration::from_millis(200));
    let start = Instant::now();
    let error = origin.reader().err().unwrap();
    assert_eq!(error.fault, Fault::Unavailable);
    // It would wait for ever.
    assert!(start.elapsed() < Duration::from_secs(60) && !error.message.contains("secret"));
    drop(silent);
    assert_eq!(origin.schema().err().unwrap().fault, Fault::Unavailable);
}

#[test]
fn a_table_that_was_renamed_is_not_told_of_before_its_triggers_are_installed_again() {
    let Some(database) = Database::open("read_renamed") else { return };
    database
        .sql("CREATE TABLE \"ö;ld\" (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)");
    let origin = database.origin();
    let told_of = || -> Vec<String> {
        let schema = Arc::new(origin.schema().unwrap());
        let listener = origin.listener(&schema).unwrap();
        let tables = listener.iter().flat_map(|listener| listener.tables());
        tables.map(|table| schema.table(*table).name.clone()).collect()
    };
    let install = || {
        let schema = origin.schema().unwrap();
        let tables: Vec<&Table> = schema.reachable().iter().collect();
        origin.install_invalidation(&tables, false).unwrap();
    };
    install();
    assert_eq!(told_of(), ["other", "ö;ld"]);
    database.sql("ALTER TABLE \"ö;ld\" RENAME TO new");
    assert_eq!(told_of(), ["other"]);
    install();
    assert_eq!(told_of(), ["new", "other"]);
}
