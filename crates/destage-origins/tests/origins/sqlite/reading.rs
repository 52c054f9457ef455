//! The catalogue and reads of a real SQLite file.

use super::fixture::*;
use destage_core::{Fault, Lsn};
use destage_origins::cells::Cell as Value;
use destage_origins::change::Op::{Insert, Update};
use destage_origins::change::Set;
use destage_origins::contract::Origin;
use destage_origins::defaults::Formula;
use destage_origins::origins::{Sqlite, create_example};
use destage_origins::schema::ColumnDefault;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::Duration;

#[test]
fn a_unique_index_is_a_key_if_it_tells_all_texts_of_all_rows_apart() {
    let shop = Fixture::new(
        "CREATE TABLE held (v, b TEXT NOT NULL, a INT NOT NULL DEFAULT 1, w TEXT COLLATE NOCASE, UNIQUE (a, b));
         CREATE TABLE nullable (k TEXT UNIQUE);
         CREATE TABLE folded (k TEXT NOT NULL COLLATE NOCASE UNIQUE);
         CREATE TABLE column_folds (k TEXT NOT NULL COLLATE NOCASE, UNIQUE (k COLLATE BINARY));
         CREATE TABLE index_folds (k TEXT NOT NULL); CREATE UNIQUE INDEX f ON index_folds (k COLLATE NOCASE);
         CREATE TABLE partly (k TEXT NOT NULL); CREATE UNIQUE INDEX p ON partly (k) WHERE k > 'a';
         CREATE TABLE derives (k INT NOT NULL); CREATE UNIQUE INDEX d ON derives (k + 1);
         CREATE TABLE computed (v, k INT NOT NULL AS (v + 1) UNIQUE);",
    );
    assert_eq!(shop.schema.tables.len(), 1, "{:?}", shop.schema.unreachable);
    assert!(shop.schema.unreachable.iter().all(|table| table.reason.contains("unique index")));
    let held = &shop.schema.tables[0];
    assert_eq!(held.key().iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(held.key_index.as_deref(), Some("sqlite_autoindex_held_1"));
    assert!(!held.has_unique && held.uniques.is_empty() && held.generated_key.is_none());
    assert!(held.columns[0].structural && held.columns[0].default == ColumnDefault::None);
}

#[test]
fn the_catalogue_tells_what_is_reachable_and_why_not() {
    let shop = Fixture::new(
        "CREATE TABLE parent (id INTEGER PRIMARY KEY, code TEXT UNIQUE, d TEXT DEFAULT 'it''s',
           n DECIMAL DEFAULT 1.50, t DEFAULT CURRENT_TIMESTAMP, g INT AS (id * 2), e INT DEFAULT (1+1));
         CREATE TABLE child (b TEXT, a INT, p INTEGER REFERENCES Parent ON DELETE CASCADE,
           PRIMARY KEY (a, b));
         CREATE TABLE grandchild (id INTEGER PRIMARY KEY, a INT, b TEXT,
           FOREIGN KEY (a, b) REFERENCES child (a, b) ON DELETE SET NULL);
         CREATE TABLE logged (id TEXT PRIMARY KEY, v);
         CREATE TRIGGER log AFTER INSERT ON logged BEGIN SELECT 1; END;
         CREATE TABLE stamped (id INTEGER PRIMARY KEY, v, at TEXT);
         CREATE TRIGGER IF NOT EXISTS stamp AFTER UPDATE ON stamped WHEN NEW.at IS OLD.at BEGIN
           UPDATE stamped SET at = datetime('now') WHERE id = NEW.id; END;
         CREATE TABLE twice (id INTEGER PRIMARY KEY, made TEXT NOT NULL, at TEXT);
         CREATE TRIGGER made AFTER INSERT ON twice BEGIN UPDATE twice SET made = datetime('now') WHERE id = NEW.id; END;
         CREATE TRIGGER touched AFTER UPDATE ON twice BEGIN UPDATE twice SET at = datetime('now') WHERE id = NEW.id; END;
         CREATE TABLE computed (id INT PRIMARY KEY, a INT, b INT); CREATE INDEX i ON computed (a + b);
         CREATE TABLE strict_one (id INT PRIMARY KEY, v ANY) STRICT;
         CREATE TABLE keyless (v); CREATE VIEW seen AS SELECT * FROM parent;
         CREATE TABLE folded (k TEXT COLLATE NOCASE PRIMARY KEY);
         CREATE TABLE dangling (id INTEGER PRIMARY KEY, x REFERENCES nowhere);",
    );
    let names: Vec<_> = shop.schema.tables.iter().map(|t| t.name.as_str()).collect();
    let expected =
        ["child", "computed", "grandchild", "logged", "parent", "stamped", "strict_one", "twice"];
    assert_eq!(names, expected);
    let why: Vec<_> =
        shop.schema.unreachable.iter().map(|u| (u.name.as_str(), u.reason.as_str())).collect();
    let reason = |name| why.iter().find(|(n, _)| *n == name).unwrap().1;
    assert!(reason("keyless").contains("it has no primary key"));
    assert_eq!(reason("seen"), "it is a view");
    assert!(reason("folded").contains("NOCASE"));
    assert!(reason("dangling").contains("nowhere"));
    assert_eq!(why.len(), 4);

    let table = |name: &str| shop.schema.find(name.as_bytes()).unwrap();
    let (parent, child, grandchild) = (table("parent"), table("child"), table("grandchild"));
    assert_eq!(parent.generated_key, Some(0));
    assert_eq!(child.generated_key, None);
    assert!(parent.has_unique && !child.has_unique);
    assert_eq!(parent.class.cascades_to, [child.id, grandchild.id]);
    assert_eq!(child.columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["a", "b", "p"]);
    assert_eq!(child.references, [parent.id]);
    assert!(child.foreign_keys[0].exact && grandchild.foreign_keys[0].exact);
    let column = |name: &str| &parent.columns[parent.column(name.as_bytes()).unwrap()];
    assert!(column("code").structural && !column("d").structural && column("g").generated);
    assert_eq!(column("d").default, ColumnDefault::Constant(b"it's".to_vec()));
    assert_eq!(column("n").default, ColumnDefault::Constant(b"1.5".to_vec()));
    assert_eq!(column("t").default, ColumnDefault::Formula(Formula::Time { digits: 0 }));
    assert_eq!(column("e").default, ColumnDefault::Computed);
    assert!(table("logged").class.opaque.as_deref().unwrap().starts_with("it has trigger log ("));
    let stamped = table("stamped");
    assert_eq!((&stamped.class.opaque, stamped.class.sets.len()), (&None, 1));
    assert!(stamped.is_left_to_origin(2, false) && !stamped.is_left_to_origin(2, true));
    // What the first trigger does fires the second one. A value that comes after the check of NOT NULL is to be given.
    let twice = table("twice");
    assert!(twice.is_left_to_origin(1, true) && twice.is_left_to_origin(2, true));
    assert!(!twice.is_filled_by_origin(1));
    assert!(table("computed").columns[1].checked && table("strict_one").is_plain());
}

#[test]
fn scans_page_in_key_order_and_keys_are_handed_out_once() {
    let mut shop = Fixture::new(
        "CREATE TABLE t (a INT, b TEXT, PRIMARY KEY (a, b));
         INSERT INTO t VALUES (10, 'x'), (9, 'z'), (9, 'Z'), (-1, ''), (NULL, 'unreachable');
         CREATE TABLE n (id INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO n VALUES (41);",
    );
    let table = shop.schema.find(b"t").unwrap().clone();
    let mut seen: Vec<Box<[u8]>> = Vec::new();
    loop {
        let (page, _) = shop.reader.scan(&table, seen.last().map(AsRef::as_ref), 2).unwrap();
        if page.is_empty() {
            break;
        }
        seen.extend(page);
    }
    let expected = [["-1", ""], ["9", "Z"], ["9", "z"], ["10", "x"]];
    assert_eq!(seen, expected.map(|k| key(&k).into_boxed_slice()));

    let n = shop.schema.find(b"n").unwrap().clone();
    assert_eq!(shop.reader.next_keys(&n, 3).unwrap().keys, [42, 43, 44]);
    assert_eq!(shop.reader.next_keys(&n, 1).unwrap().keys, [45]);
    shop.sql().execute("INSERT INTO n VALUES (100)", []).unwrap();
    assert_eq!(shop.reader.next_keys(&n, 1).unwrap().keys, [101]);
    assert_eq!(shop.reader.next_keys(&table, 1).unwrap_err().fault, Fault::Denied);
    shop.sql().execute("INSERT INTO n VALUES (9223372036854775807)", []).unwrap();
    assert!(shop.reader.next_keys(&n, 1).unwrap_err().message.contains("used up"));
}

#[test]
fn values_of_another_class_than_their_column_are_delivered_as_text() {
    let mut shop = Fixture::new(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, i INT, r REAL, b BLOB, x TEXT);
         INSERT INTO t VALUES (1, 'abc', 'def', 12, x'00ff'), (2, 1.5, 1e300, 'text', 5);",
    );
    let row = shop.row("t", &["1"]).unwrap();
    assert_eq!(row[1..4], [Some("abc".into()), Some("def".into()), Some("12".into())]);
    assert_eq!(shop.row("t", &["2"]).unwrap()[1].as_deref(), Some("1.5"));
}

#[test]
fn files_that_are_no_database_are_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path| Sqlite::open(path, Duration::ZERO).unwrap_err();
    let missing = open(&folder.path().join("none.db"));
    assert!(missing.fault == Fault::Denied && missing.message.contains("create it first"));
    assert!(!folder.path().join("none.db").exists());
    assert!(open(folder.path()).message.contains("not a file"));
    let text = folder.path().join("text.db");
    std::fs::write(&text, "not a database at all, but long enough to be read as one".repeat(100))
        .unwrap();
    assert!(open(&text).fault == Fault::Denied);
}

#[test]
fn the_example_is_made_once_and_reachable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    for _ in 0..2 {
        create_example(&path).unwrap();
    }
    let schema = Sqlite::open(&path, Duration::ZERO).unwrap().schema().unwrap();
    let names: Vec<_> = schema.tables.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["customers", "order_lines", "orders", "products"]);
    assert!(schema.unreachable.is_empty() && schema.tables.iter().all(|t| t.is_plain()));
    let stock = schema.find(b"products").unwrap();
    assert!(!stock.columns[stock.column(b"stock").unwrap()].checked);
}

#[test]
fn a_fetch_and_its_watermark_are_one_snapshot() {
    let mut shop = Fixture::new(
        "PRAGMA journal_mode = WAL; CREATE TABLE t (id INTEGER PRIMARY KEY, n INT);
        INSERT INTO t VALUES (1, 0);",
    );
    let group = shop.group(&[("t", Update, &["1"], &[("n", by("1"))])]);
    let (origin, table) = (shop.origin.clone(), shop.schema.tables[0].clone());
    let reads = std::thread::spawn(move || {
        let (mut reader, id) = (origin.reader().unwrap(), key(&["1"]));
        for _ in 0..500 {
            let snapshot = reader.fetch(&table, &[&id]).unwrap();
            let cells = destage_origins::cells::Reader::new(snapshot.rows[0].as_ref().unwrap());
            let n = cells.last().unwrap().value().unwrap().to_vec();
            assert_eq!(n, snapshot.watermark(DOMAIN).0.to_string().as_bytes());
        }
    });
    for _ in 0..50 {
        shop.apply(std::slice::from_ref(&group)).unwrap();
    }
    reads.join().unwrap();
    let id = key(&["1"]);
    let both = shop.reader.fetch(&shop.schema.tables[0], &[&id, &key(&["2"])]).unwrap();
    assert!(both.rows[1].is_none() && both.watermark(DOMAIN) == Lsn(50));
}

fn input() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| format!("{n}")),
        any::<f64>().prop_map(|n| format!("{n:e}")),
        "[+-]?[0-9]{1,3}(\\.[0-9]{0,4})?(e[+-]?[0-9]{1,2})?",
        "[ ]{0,2}[0-9]{0,20}[a-z.]?[ ]?",
        "[0-9]{4}-[0-9]{2}-[0-9]{2}",
        "\\PC{0,12}",
    ]
}

#[test]
fn a_value_before_the_destage_equals_the_value_after_a_reload() {
    let shop = Fixture::in_memory(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, i INT, r REAL, n NUMERIC, d DATE, x TEXT, b BLOB, u, a ANY);",
    );
    let table = shop.schema.tables[0].clone();
    let (shop, next) = (RefCell::new(shop), Cell::new(0u64));
    let mut runner = prop::test_runner::TestRunner::new(ProptestConfig::with_cases(400));
    runner
        .run(&prop::collection::vec(input(), 8), |inputs| {
            let mut kept = Vec::new();
            for (column, input) in table.columns[1..].iter().zip(&inputs) {
                kept.push(column.ty.canonical(input.as_bytes()).ok().map(|v| v.into_owned()));
            }
            let mut shop = shop.borrow_mut();
            next.set(next.get() + 1);
            let id = next.get().to_string();
            let sets: Vec<_> = table.columns[1..]
                .iter()
                .zip(&kept)
                .map(|(c, v)| {
                    let cell = v.as_ref().map_or(Value::Null, |v| Value::Value(v));
                    (c.name.as_str(), Set::To(cell))
                })
                .collect();
            let group = shop.group(&[("t", Insert, &[&id], &sets)]);
            shop.apply(&[group]).unwrap();
            let snapshot = shop.reader.fetch(&table, &[&key(&[&id])]).unwrap();
            let row = snapshot.rows[0].as_ref().unwrap();
            let reloaded: Vec<_> = destage_origins::cells::Reader::new(row)
                .skip(1)
                .map(|cell| cell.value().map(<[u8]>::to_vec))
                .collect();
            prop_assert_eq!(reloaded, kept);
            Ok(())
        })
        .unwrap();
}
