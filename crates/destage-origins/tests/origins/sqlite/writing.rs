//! Batches on a real SQLite file: exactly once, fenced, classified.

use super::fixture::*;
use destage_core::{Fault, Lsn};
use destage_origins::change::Op::{Delete, Insert, Update};

const SHOP: &str = "
    CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, stock INTEGER DEFAULT 0,
      weight REAL, price DECIMAL(10,2), photo BLOB, sku TEXT UNIQUE);
    CREATE TABLE lines (ord INTEGER, line INTEGER, product INTEGER REFERENCES products (id),
      PRIMARY KEY (ord, line)) WITHOUT ROWID;
    CREATE TABLE positive (id INTEGER PRIMARY KEY, n INTEGER CHECK (n > 0));
    INSERT INTO products (id, name, stock) VALUES (1, 'pot', 5), (2, 'cup', 7);
    INSERT INTO positive VALUES (1, 1);";

fn fault(result: Result<(), destage_origins::contract::OriginError>) -> Option<Fault> {
    result.err().map(|error| error.fault)
}

#[test]
fn what_the_data_cannot_do_is_rejected_as_a_whole() {
    let mut shop = Fixture::new(SHOP);
    let good = shop.group(&[("products", Update, &["1"], &[("name", to("changed"))])]);
    let bad = [
        shop.group(&[("products", Update, &["9"], &[("name", to("x"))])]),
        shop.group(&[("products", Delete, &["9"], &[])]),
        shop.group(&[("products", Insert, &["2"], &[("name", to("x"))])]),
        shop.group(&[("products", Insert, &["3"], &[])]),
        shop.group(&[("products", Update, &["1"], &[("name", NULL)])]),
        shop.group(&[("products", Insert, &["x"], &[("name", to("x"))])]),
        shop.group(&[("lines", Insert, &["1", "1"], &[("product", to("99"))])]),
        shop.group(&[("positive", Update, &["1"], &[("n", by("-1"))])]),
        shop.group(&[("products", Update, &["1"], &[("stock", by("9223372036854775807"))])]),
        shop.group(&[("products", Update, &["1"], &[("weight", by("1"))])]),
    ];
    let malformed = shop.apply(&[good.clone(), b"malformed".to_vec()]);
    assert_eq!(fault(malformed), Some(Fault::Failed));
    for group in bad {
        let error = shop.apply(&[good.clone(), group.clone()]).unwrap_err();
        assert_eq!(error.fault, Fault::Rejected, "{error}");
        assert_eq!(shop.row("products", &["1"]).unwrap()[1].as_deref(), Some("pot"), "{error}");
        assert_eq!(shop.writer.heartbeat(EPOCH).unwrap(), [(DOMAIN, Lsn(0))]);
    }
}

#[test]
fn another_writers_lock_makes_the_origin_unavailable_until_it_is_gone() {
    let mut shop = Fixture::new(SHOP);
    let group = shop.group(&[("products", Update, &["1"], &[("name", to("x"))])]);
    let other = shop.sql();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(fault(shop.apply(std::slice::from_ref(&group))), Some(Fault::Unavailable));
    other.execute_batch("ROLLBACK; BEGIN; SELECT * FROM products").unwrap();
    other.execute_batch("COMMIT").unwrap();
    shop.apply(&[group]).unwrap();
}

#[test]
fn a_missing_table_is_denied_not_rejected() {
    let mut shop = Fixture::new(SHOP);
    let group = shop.group(&[("positive", Update, &["1"], &[("n", to("5"))])]);
    shop.sql().execute_batch("DROP TABLE positive").unwrap();
    assert_eq!(fault(shop.apply(&[group])), Some(Fault::Denied));
}

#[test]
fn a_schema_that_a_prepared_statement_does_not_fit_any_more_is_denied_not_rejected() {
    let changes = [
        "ALTER TABLE lines RENAME COLUMN product TO article",
        "ALTER TABLE lines RENAME TO rows; CREATE VIEW lines AS SELECT * FROM rows",
        "DROP TABLE products",
        // What the foreign key refers to is unique no more.
        "DROP TABLE products; CREATE TABLE products (id INTEGER, name TEXT)",
    ];
    for change in changes {
        let mut shop = Fixture::new(SHOP);
        let line = |shop: &Fixture, number: &str| {
            shop.group(&[("lines", Insert, &["1", number], &[("product", to("1"))])])
        };
        let first = line(&shop, "1");
        shop.apply(&[first]).unwrap();
        shop.sql().execute_batch(&format!("PRAGMA foreign_keys = OFF; {change}")).unwrap();
        let second = line(&shop, "2");
        assert_eq!(fault(shop.apply(&[second])), Some(Fault::Denied), "{change}");
    }
}

#[test]
fn deferred_foreign_keys_are_checked_group_by_group() {
    let mut shop = Fixture::new(
        "CREATE TABLE p (id INTEGER PRIMARY KEY);
         CREATE TABLE c (id INTEGER PRIMARY KEY, p REFERENCES p DEFERRABLE INITIALLY DEFERRED);",
    );
    let child = ("c", Insert, &["1"][..], &[("p", to("5"))][..]);
    let parent = ("p", Insert, &["5"][..], &[][..]);
    let (child_alone, parent_alone) = (shop.group(&[child]), shop.group(&[parent]));
    let error = shop.apply(&[child_alone, parent_alone]).unwrap_err();
    assert_eq!(error.fault, Fault::Rejected);
    let both = shop.group(&[child, parent]);
    shop.apply(&[both]).unwrap();
}

#[test]
fn odd_names_and_hostile_values_stay_names_and_values() {
    let mut shop = Fixture::new(
        "CREATE TABLE \"order; DROP TABLE x; --\" (\"select\" TEXT PRIMARY KEY, \"a\"\"b\" TEXT,
           \"?1\" INTEGER DEFAULT 1) WITHOUT ROWID;",
    );
    let table = "order; DROP TABLE x; --";
    let hostile = "'); DROP TABLE destage_owner; --\u{1F980}";
    let insert = shop.group(&[(table, Insert, &[hostile], &[("a\"b", to(hostile))])]);
    let add = shop.group(&[(table, Update, &[hostile], &[("?1", by("2"))])]);
    shop.apply(&[insert, add]).unwrap();
    let row = shop.row(table, &[hostile]).unwrap();
    assert_eq!(row, [Some(hostile.into()), Some(hostile.into()), Some("3".into())]);
    let (keys, at) = shop.reader.scan(&shop.schema.tables[0], None, 10).unwrap();
    assert_eq!((keys, at), (vec![key(&[hostile]).into()], vec![(DOMAIN, Lsn(2))]));
    let delete = shop.group(&[(table, Delete, &[hostile], &[])]);
    shop.apply(&[delete]).unwrap();
    assert_eq!(shop.row(table, &[hostile]), None);
}
