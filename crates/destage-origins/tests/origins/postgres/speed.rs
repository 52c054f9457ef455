//! How fast a backlog is destaged; run by hand: `cargo test --release -p destage-origins --test origins -- --ignored
//! --nocapture postgres::speed`.

use super::database::Database;
use crate::claimed::{Claimed, change};
use destage_origins::change::Op;
use std::time::{Duration, Instant};

#[test]
#[ignore = "a measurement over a million rows"]
fn updates_in_batches_of_a_thousand() {
    let Some(database) = Database::open("speed") else { return };
    let columns: Vec<_> = (0..10).map(|n| format!("f{n} text")).collect();
    let fills: Vec<_> = (0..10).map(|_| "rpad(md5(i::text), 100, 'x')").collect();
    let rows = 1_000_000u64;
    database.sql(&format!(
        "CREATE TABLE t (id bigint PRIMARY KEY, {}); INSERT INTO t SELECT i, {} FROM generate_series(0, {rows} - 1) i",
        columns.join(", "),
        fills.join(", ")
    ));
    database.sql("VACUUM ANALYZE t");
    database.sql("CHECKPOINT");
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let mut state = 7u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) % rows
    };
    let seconds = std::env::var("DESTAGE_SPEED_SECONDS").map_or(10, |s| s.parse().unwrap());
    let (start, mut done, mut spent) = (Instant::now(), 0u64, Duration::ZERO);
    let mut shown = Instant::now();
    let mut last = (0, Duration::ZERO);
    while start.elapsed() < Duration::from_secs(seconds) {
        let groups: Vec<_> = (0..1_000)
            .map(|_| {
                let (row, column) = (random(), format!("f{}", random() % 10));
                let column = if std::env::var_os("DESTAGE_SPEED_COLUMNS").is_some() {
                    column
                } else {
                    "f3".to_owned()
                };
                let value = format!("{:0100}", random());
                change(&table, Op::Update, &[&row.to_string()], &[(&column, Some(&value))], &[])
            })
            .collect();
        let began = Instant::now();
        claimed.apply(&groups).unwrap();
        spent += began.elapsed();
        done += 1_000;
        if shown.elapsed() > Duration::from_secs(1) {
            let rate = (done - last.0) as f64 / (spent - last.1).as_secs_f64();
            println!("{done} rows, now {rate:.0} rows/s");
            (shown, last) = (Instant::now(), (done, spent));
        }
    }
    println!("{:.0} rows/s", done as f64 / spent.as_secs_f64());
}
