//! That groups do merge where they may; `plan_oracle` checks that they never do where they must not.

use super::fixture::*;
use destage_origins::change::Op::{Delete, Insert, Update};
use destage_origins::plan::{Plan, Step, plan};

const SHOP: &str = "
    CREATE TABLE products (id INTEGER PRIMARY KEY, stock INTEGER, price DECIMAL, name TEXT NOT NULL,
      rating INTEGER CHECK (rating < 6));
    CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT);
    CREATE TABLE lines (ord INTEGER REFERENCES orders, line INTEGER, product INTEGER REFERENCES products,
      PRIMARY KEY (ord, line));";

fn shapes(shop: &Fixture, plan: &Plan<'_>) -> Vec<String> {
    let describe = |b: &destage_origins::plan::Bucket<'_>| {
        let table = shop.schema.table(b.table);
        format!("{:?} {} x{}", b.op, table.name, b.len())
    };
    plan.buckets.iter().map(describe).collect()
}

fn planned<'a>(shop: &Fixture, groups: &'a [Vec<u8>]) -> Plan<'a> {
    plan(&shop.schema, groups.iter().map(Vec::as_slice)).unwrap()
}

#[test]
fn many_small_orders_become_one_statement_per_table() {
    let shop = Fixture::in_memory(SHOP);
    let order = |id: &str| {
        shop.group(&[
            ("orders", Insert, &[id], &[("status", to("new"))]),
            ("lines", Insert, &[id, "1"], &[("product", to("4"))]),
            ("lines", Insert, &[id, "2"], &[("product", to("5"))]),
            ("products", Update, &["4"], &[("stock", by("-1"))]),
            ("products", Update, &["5"], &[("stock", by("-2"))]),
        ])
    };
    let groups: Vec<_> = (0..50).map(|id| order(&id.to_string())).collect();
    let plan = planned(&shop, &groups);
    assert_eq!(
        shapes(&shop, &plan),
        ["Insert orders x50", "Insert lines x100", "Update products x2"]
    );
    assert_eq!((plan.changes, plan.rows()), (250, 152));
    assert_eq!(plan.buckets[2].value(1, 0).value(), Some(&b"-100"[..]));
}

#[test]
fn changes_of_one_row_fold_unless_an_intermediate_value_counts() {
    let shop = Fixture::in_memory(SHOP);
    let update = |column: &str, set| shop.group(&[("products", Update, &["1"], &[(column, set)])]);
    let folds = |groups: &[Vec<u8>]| planned(&shop, groups).rows() == 1;
    assert!(folds(&[update("name", to("a")), update("name", to("b"))]));
    assert!(folds(&[update("stock", to("1")), update("stock", by("2"))]));
    assert!(!folds(&[update("stock", by("1")), update("stock", to("2"))]));
    assert!(!folds(&[update("price", by("1")), update("price", by("2"))]));
    assert!(!folds(&[update("rating", to("9")), update("rating", to("1"))]));
    assert!(!folds(&[update("name", NULL), update("name", to("b"))]));
    assert!(!folds(&[update("stock", by("9223372036854775807")), update("stock", by("1"))]));

    let new = shop.group(&[("products", Insert, &["1"], &[("name", to("a"))])]);
    assert!(folds(&[new.clone(), update("name", to("b"))]));
    assert!(!folds(&[new, update("stock", to("1"))]));
}

#[test]
fn other_columns_of_a_busy_row_do_not_multiply_the_statements() {
    let shop = Fixture::in_memory(SHOP);
    let groups: Vec<_> = (0..100)
        .map(|i| {
            let column = if i % 3 == 0 { "name" } else { "price" };
            shop.group(&[("products", Update, &["1"], &[(column, to("5"))])])
        })
        .collect();
    assert_eq!(shapes(&shop, &planned(&shop, &groups)), ["Update products x1"; 2]);
}

#[test]
fn a_deleted_row_comes_back_only_after_it_has_gone() {
    let shop = Fixture::in_memory(SHOP);
    let delete = |id: &str| shop.group(&[("orders", Delete, &[id], &[])]);
    let insert = |id: &str| shop.group(&[("orders", Insert, &[id], &[("status", to("x"))])]);
    let groups = [insert("1"), delete("1"), insert("1"), insert("2")];
    let expected = ["Insert orders x1", "Delete orders x1", "Insert orders x2"];
    assert_eq!(shapes(&shop, &planned(&shop, &groups)), expected);
}

#[test]
fn a_parked_group_reads_back_as_it_was() {
    let shop =
        Fixture::in_memory("CREATE TABLE t (a INT, b BLOB, v TEXT, n INT, PRIMARY KEY (a, b));");
    let group = shop.group(&[
        ("t", Insert, &["1", "x"], &[("v", to("\"quoted\"\n")), ("n", NULL)]),
        ("t", Update, &["1", "x"], &[("n", by("-5")), ("v", to(""))]),
        ("t", Delete, &["1", "x"], &[]),
    ]);
    let text = destage_origins::parked::encode(&shop.schema, &group).unwrap();
    assert_eq!(destage_origins::parked::decode(&shop.schema, &text).unwrap(), group);
    let raw = text.replace("\"b\":\"x\"", "\"b\":{\"hex\":\"00ff\"}");
    let bytes = destage_origins::parked::decode(&shop.schema, &raw).unwrap();
    assert_eq!(destage_origins::parked::encode(&shop.schema, &bytes).unwrap(), raw);
    for (from, into, says) in [
        ("\"t\"", "\"gone\"", "there is no table gone"),
        ("\"name\":\"v\"", "\"name\":\"w\"", "w is not a writable column"),
        ("\"a\":\"1\"", "\"a\":\"one\"", "t.a"),
        ("\"a\":\"1\",", "", "lacks a"),
    ] {
        let edited = text.replacen(from, into, 1);
        let error = destage_origins::parked::decode(&shop.schema, &edited).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_child_never_overtakes_its_parent() {
    let shop = Fixture::in_memory(SHOP);
    let order = |id: &str, note| shop.group(&[("orders", Insert, &[id], note)]);
    let line = |id: &str| shop.group(&[("lines", Insert, &[id, "1"], &[("product", NULL)])]);
    let groups = [order("1", &[]), line("1"), order("2", &[("status", to("x"))]), line("2")];
    let expected = ["Insert orders x1", "Insert lines x1", "Insert orders x1", "Insert lines x1"];
    assert_eq!(shapes(&shop, &planned(&shop, &groups)), expected);
}

#[test]
fn only_what_no_constraint_looks_at_is_free() {
    let shop = Fixture::in_memory(SHOP);
    let free = |groups: &[Vec<u8>]| planned(&shop, groups).is_free();
    let name = shop.group(&[("products", Update, &["1"], &[("name", to("n"))])]);
    let stock = shop.group(&[("products", Update, &["2"], &[("stock", by("1"))])]);
    assert!(free(&[name.clone(), stock.clone()]));
    let others: [(&str, ChangeOf<'_>); 4] = [
        ("a checked column", ("products", Update, &["3"], &[("rating", to("1"))])),
        ("a foreign key", ("lines", Update, &["1", "1"], &[("product", to("4"))])),
        ("a new row", ("orders", Insert, &["9"], &[("status", to("new"))])),
        ("a row less", ("orders", Delete, &["9"], &[])),
    ];
    for (what, other) in others {
        assert!(!free(&[name.clone(), shop.group(&[other])]), "{what}");
    }
}

#[test]
fn a_plan_knows_the_rows_it_writes() {
    let shop = Fixture::in_memory(SHOP);
    let groups = [
        shop.group(&[("products", Update, &["1"], &[("name", to("n"))])]),
        shop.group(&[("products", Update, &["1"], &[("stock", by("1"))])]),
        shop.group(&[("orders", Update, &["2"], &[("status", to("x"))])]),
    ];
    let plan = planned(&shop, &groups);
    let [products, orders] =
        ["products", "orders"].map(|t| shop.schema.find(t.as_bytes()).unwrap().id);
    let (one, two) = (key(&["1"]), key(&["2"]));
    assert!(plan.writes(products, &one) && plan.writes(orders, &two));
    assert!(!plan.writes(orders, &one) && !plan.writes(products, &two));
}

#[test]
fn raw_sql_stands_where_it_was_written_and_nothing_passes_it() {
    let shop = Fixture::in_memory(SHOP);
    let update = |stock: &str| shop.group(&[("products", Update, &["1"], &[("stock", to(stock))])]);
    let raw = |sql: &str| {
        let products = shop.schema.find(b"products").unwrap().id;
        let mut group = destage_origins::change::GroupWriter::new();
        group.dml(&destage_origins::dml::encode(sql, &[], &[(products, None)]));
        group.finish().to_vec()
    };
    let groups = [raw("first"), update("1"), update("2"), raw("second"), raw("third"), update("3")];
    let plan = planned(&shop, &groups);
    let steps: Vec<String> = plan
        .steps()
        .map(|step| match step {
            Step::Bucket(bucket) => format!("{:?} x{}", bucket.op, bucket.len()),
            Step::Raw(raw) => format!("{} {}", raw.dml.sql(), raw.check_after),
        })
        .collect();
    assert_eq!(steps, ["first true", "Update x1", "second true", "third true", "Update x1"]);
    assert_eq!((plan.changes, plan.rows(), plan.is_free()), (6, 5, false));
}
