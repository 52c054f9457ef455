//! Raw SQL: applied in its place and exactly once, refused before it is written behind where that can be told.

use super::database::Database;
use crate::claimed::{Claimed, change, key};
use destage_core::Fault;
use destage_origins::change::{GroupWriter, Op};
use destage_origins::contract::Origin;
use destage_origins::dml::{self, Parameter};
use destage_origins::schema::Table;

const TABLES: &str = "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, d decimal(9, 2), b bytea, x text); \
     INSERT INTO t (id, n) VALUES (1, 1), (2, 1); CREATE TABLE u (id int PRIMARY KEY)";

fn raw(table: &Table, sql: &str, parameters: &[Parameter<'_>]) -> Vec<u8> {
    let key = key(&["1"]);
    let mut group = GroupWriter::new();
    group.dml(&dml::encode(sql, parameters, &[(table.id, Some(&key)), (table.id, None)]));
    group.finish().to_vec()
}

#[test]
fn raw_sql_is_applied_in_its_place_among_other_changes_and_once() {
    let Some(database) = Database::open("dml_once") else { return };
    database.sql(TABLES);
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let double = raw(
        &table,
        "UPDATE t SET n = n * $2, x = $1 WHERE id = 1 AND n < $3 -- a comment ends with its line",
        &[Parameter::Text("it's $1; :x"), Parameter::Integer(2), Parameter::Integer(1_000_000)],
    );
    let add = change(&table, Op::Update, &["1"], &[], &[("n", "3")]);
    let groups = [add.clone(), double.clone(), add.clone(), double.clone(), double];
    let first = claimed.claim;
    claimed.apply(&groups).unwrap();
    claimed.claim = first;
    claimed.apply(&groups).unwrap();
    // ((1 + 3) * 2 + 3) * 4
    assert_eq!(
        database.text("SELECT concat(n, x) FROM t WHERE id = 1").as_deref(),
        Some("44it's $1; :x")
    );
    // The negative control: without the watermark the same batch counts twice.
    claimed.claim = first;
    claimed.claim.unsafe_no_watermark = true;
    claimed.apply(&groups).unwrap();
    // ((44 + 3) * 2 + 3) * 4
    assert_eq!(database.text("SELECT concat(n, '') FROM t WHERE id = 1").as_deref(), Some("388"));
}

#[test]
fn parameters_arrive_as_what_they_are() {
    let Some(database) = Database::open("dml_parameters") else { return };
    database.sql(TABLES);
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let sql = "INSERT INTO t (id, n, d, b, x) VALUES ($4, $1, $2, $3, $5)";
    let values = |id, text| {
        [
            Parameter::Integer(-7),
            Parameter::Real(12.5),
            Parameter::Bytes(b"\x00\xff'"),
            Parameter::Integer(id),
            text,
        ]
    };
    let groups = [(8, Parameter::Null), (9, Parameter::Text(""))];
    let groups = groups.map(|(id, text)| raw(&table, sql, &values(id, text)));
    claimed.apply(&groups).unwrap();
    let shown = "SELECT concat(n, '|', d, '|', encode(b, 'hex'), '|', coalesce(x, 'null')) FROM t WHERE id = ";
    let of = |database: &Database, id: i32| {
        database.text(&format!("{shown}{id}")).map(|t| t.to_lowercase())
    };
    assert_eq!(of(&database, 8).as_deref(), Some("-7|12.50|00ff27|null"));
    assert_eq!(of(&database, 9).as_deref(), Some("-7|12.50|00ff27|"));
}

#[test]
fn what_the_data_do_not_bear_is_rejected_and_leaves_nothing() {
    let Some(database) = Database::open("dml_rejected") else { return };
    database.sql(TABLES);
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let good = raw(&table, "UPDATE t SET n = 9 WHERE id = 2", &[]);
    for sql in ["INSERT INTO t (id, n) VALUES (1, 1)", "UPDATE t SET n = NULL WHERE id = 1"] {
        let first = claimed.claim;
        let error = claimed.apply(&[good.clone(), raw(&table, sql, &[])]).unwrap_err();
        assert_eq!(error.fault, Fault::Rejected, "{sql}: {error}");
        assert_eq!(
            database.text("SELECT concat(max(n), '') FROM t").as_deref(),
            Some("1"),
            "{sql}"
        );
        claimed.claim = first;
    }
    // It meets no row, which is its own affair.
    claimed.apply(&[raw(&table, "DELETE FROM t WHERE id = 77", &[])]).unwrap();
}

#[test]
fn statements_are_looked_at_without_being_run() {
    let Some(database) = Database::open("dml_checked") else { return };
    database.sql(TABLES);
    let origin = database.origin();
    let schema = origin.schema().unwrap();
    let mut reader = origin.reader().unwrap();
    let mut check =
        |sql: &str, count: usize| reader.check_dml(&dml::checked(sql, count).unwrap(), &schema);
    let told =
        |tables: &[&str]| Some(tables.iter().map(|table| (*table).to_owned()).collect::<Vec<_>>());
    assert_eq!(check("UPDATE t SET n = $1 WHERE id = $2", 2).unwrap(), told(&["t"]));
    assert_eq!(check("DELETE FROM t WHERE id IN (SELECT id FROM u)", 0).unwrap(), told(&["t"]));
    assert_eq!(check("INSERT INTO u SELECT id FROM t", 0).unwrap(), told(&["u"]));
    for sql in [
        "UPDATE t SET m = 1",
        "UPDATE nowhere SET n = 1",
        "UPDATE t SET",
        "WITH x AS (SELECT 1) SELECT * FROM x",
    ] {
        let error = check(sql, 0).unwrap_err();
        assert_eq!(error.fault, Fault::Denied, "{sql}: {error}");
    }
    assert_eq!(database.text("SELECT concat(sum(n), '') FROM t").as_deref(), Some("2"));
}
