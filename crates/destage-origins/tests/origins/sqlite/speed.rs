//! Rates, for people: `cargo test --release -p destage-origins --test origins -- --ignored --nocapture sqlite::speed`.

use super::fixture::*;
use destage_origins::change::Op::Update;
use destage_origins::plan::plan;
use std::time::Instant;

const TABLE: &str = "PRAGMA journal_mode = WAL;
    CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, n INTEGER NOT NULL DEFAULT 0);
    WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 100000)
    INSERT INTO t SELECT i, 'some name of row ' || i, 0 FROM c;";

/// Single-row updates of keys in a pseudo-random order.
fn updates(shop: &Fixture, count: u64) -> Vec<Vec<u8>> {
    (1..=count)
        .map(|i| {
            let id = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % 100_000 + 1;
            shop.group(&[("t", Update, &[&id.to_string()], &[("name", to("another name of it"))])])
        })
        .collect()
}

#[test]
#[ignore = "measures, checks nothing"]
fn rates_of_planning_and_destaging() {
    let mut shop = Fixture::new(TABLE);
    let groups = updates(&shop, 200_000);

    let start = Instant::now();
    for batch in groups.chunks(1_000) {
        let plan = plan(&shop.schema, batch.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(plan.buckets.len(), 1);
    }
    let planned = groups.len() as f64 / start.elapsed().as_secs_f64();

    let groups = &groups[..100_000];
    let start = Instant::now();
    for batch in groups.chunks(1_000) {
        shop.apply(batch).unwrap();
    }
    let destaged = groups.len() as f64 / start.elapsed().as_secs_f64();
    println!("planned {planned:.0} updates/s; destaged {destaged:.0} rows/s in batches of 1,000");
}
