//! The tables and their first rows.
//!
//! As the standard has them, but: amounts are whole numbers of cents, on every side alike; a row of the history has a number,
//! since rows without a key cannot be cached, and its key begins with the warehouse; and texts that no transaction reads are
//! left out.
//!
//! *Source:* TPC Benchmark C, clauses 1.3 and 4.3.3.

use super::Scale;
use super::random::{DISTRICTS, Random, last_name};
use super::sql::Sql;
use crate::Result;

const TABLES: &str = "
CREATE TABLE warehouse (w_id BIGINT PRIMARY KEY, w_name TEXT NOT NULL, w_tax BIGINT NOT NULL, w_ytd BIGINT NOT NULL);
CREATE TABLE district (d_w_id BIGINT, d_id BIGINT, d_name TEXT NOT NULL, d_tax BIGINT NOT NULL, d_ytd BIGINT NOT NULL,
  d_next_o_id BIGINT NOT NULL, PRIMARY KEY (d_w_id, d_id));
CREATE TABLE customer (c_w_id BIGINT, c_d_id BIGINT, c_id BIGINT, c_first TEXT NOT NULL, c_last TEXT NOT NULL,
  c_credit TEXT NOT NULL, c_discount BIGINT NOT NULL, c_balance BIGINT NOT NULL, c_ytd_payment BIGINT NOT NULL,
  c_payment_cnt BIGINT NOT NULL, c_delivery_cnt BIGINT NOT NULL, c_data TEXT NOT NULL,
  PRIMARY KEY (c_w_id, c_d_id, c_id));
CREATE TABLE history (h_id BIGINT, h_c_w_id BIGINT NOT NULL, h_c_d_id BIGINT NOT NULL, h_c_id BIGINT NOT NULL,
  h_w_id BIGINT, h_d_id BIGINT NOT NULL, h_date BIGINT NOT NULL, h_amount BIGINT NOT NULL, h_data TEXT NOT NULL,
  PRIMARY KEY (h_w_id, h_id));
CREATE TABLE new_orders (no_w_id BIGINT, no_d_id BIGINT, no_o_id BIGINT, PRIMARY KEY (no_w_id, no_d_id, no_o_id));
CREATE TABLE orders (o_w_id BIGINT, o_d_id BIGINT, o_id BIGINT, o_c_id BIGINT NOT NULL, o_entry_d BIGINT NOT NULL,
  o_carrier_id BIGINT, o_ol_cnt BIGINT NOT NULL, o_all_local BIGINT NOT NULL, PRIMARY KEY (o_w_id, o_d_id, o_id));
CREATE TABLE order_line (ol_w_id BIGINT, ol_d_id BIGINT, ol_o_id BIGINT, ol_number BIGINT, ol_i_id BIGINT NOT NULL,
  ol_supply_w_id BIGINT NOT NULL, ol_delivery_d BIGINT, ol_quantity BIGINT NOT NULL, ol_amount BIGINT NOT NULL,
  ol_dist_info TEXT NOT NULL, PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number));
CREATE TABLE item (i_id BIGINT PRIMARY KEY, i_name TEXT NOT NULL, i_price BIGINT NOT NULL, i_data TEXT NOT NULL);
CREATE TABLE stock (s_w_id BIGINT, s_i_id BIGINT, s_quantity BIGINT NOT NULL, s_ytd BIGINT NOT NULL,
  s_order_cnt BIGINT NOT NULL, s_remote_cnt BIGINT NOT NULL, s_dist TEXT NOT NULL, s_data TEXT NOT NULL,
  PRIMARY KEY (s_w_id, s_i_id));
CREATE INDEX customer_by_name ON customer (c_w_id, c_d_id, c_last, c_first);
CREATE INDEX orders_by_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);
";
const ROWS_AT_ONCE: usize = 500;
/// What a customer has paid at first, in cents.
const FIRST_PAYMENT: i64 = 1_000;

/// Rows on their way into a table.
struct Rows<'a> {
    sql: &'a mut Sql,
    table: &'static str,
    rows: Vec<String>,
}

impl<'a> Rows<'a> {
    fn of(sql: &'a mut Sql, table: &'static str) -> Self {
        Self { sql, table, rows: Vec::new() }
    }

    /// `values` are in the form of SQL.
    fn push(&mut self, values: &str) -> Result<()> {
        self.rows.push(format!("({values})"));
        if self.rows.len() >= ROWS_AT_ONCE { self.finish() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let statement = format!("INSERT INTO {} VALUES {}", self.table, self.rows.join(","));
        self.rows.clear();
        self.sql.run(&statement)
    }
}

/// Makes the tables and fills them.
///
/// # Errors
/// The database refuses something.
pub(crate) fn load(sql: &mut Sql, scale: &Scale, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    sql.run(TABLES)?;
    sql.run("BEGIN")?;
    let mut items = Rows::of(sql, "item");
    for i in 1..=scale.items {
        let price = random.between(100, 10_000);
        let (name, data) = (random.text(14, 24), random.text(26, 50));
        items.push(&format!("{i},'{name}',{price},'{data}'"))?;
    }
    items.finish()?;
    for w in 1..=scale.warehouses {
        warehouse(sql, scale, w, &mut random)?;
    }
    sql.run("COMMIT")?;
    if matches!(sql, Sql::Postgres(..)) {
        sql.run("ANALYZE")?;
    }
    Ok(())
}

fn warehouse(sql: &mut Sql, scale: &Scale, w: i64, random: &mut Random) -> Result<()> {
    let of_district = scale.customers * FIRST_PAYMENT;
    let (name, tax) = (random.text(6, 10), random.between(0, 2_000));
    let ytd = of_district * DISTRICTS;
    sql.run(&format!("INSERT INTO warehouse VALUES ({w},'{name}',{tax},{ytd})"))?;
    let mut stock = Rows::of(sql, "stock");
    for i in 1..=scale.items {
        let (dist, data) = (random.text(24, 24), random.text(26, 50));
        stock.push(&format!("{w},{i},{},0,0,0,'{dist}','{data}'", random.between(10, 100)))?;
    }
    stock.finish()?;
    for d in 1..=DISTRICTS {
        let (name, tax) = (random.text(6, 10), random.between(0, 2_000));
        let next = scale.customers + 1;
        sql.run(&format!(
            "INSERT INTO district VALUES ({w},{d},'{name}',{tax},{of_district},{next})"
        ))?;
        customers(sql, scale, (w, d), random)?;
        orders(sql, scale, (w, d), random)?;
    }
    Ok(())
}

fn customers(sql: &mut Sql, scale: &Scale, (w, d): (i64, i64), random: &mut Random) -> Result<()> {
    let mut rows = Rows::of(sql, "customer");
    for c in 1..=scale.customers {
        let number = if c <= 1_000 { c - 1 } else { random.between(0, 999) };
        let credit = if random.between(1, 10) == 1 { "BC" } else { "GC" };
        let (first, data) = (random.text(8, 16), random.text(300, 500));
        rows.push(&format!(
            "{w},{d},{c},'{first}','{}','{credit}',{},-{FIRST_PAYMENT},{FIRST_PAYMENT},1,0,'{data}'",
            last_name(number),
            random.between(0, 5_000)
        ))?;
    }
    rows.finish()?;
    let mut rows = Rows::of(sql, "history");
    for c in 1..=scale.customers {
        let id = ((w * DISTRICTS + d) << 20) + c;
        rows.push(&format!("{id},{w},{d},{c},{w},{d},0,{FIRST_PAYMENT},'first'"))?;
    }
    rows.finish()
}

fn orders(sql: &mut Sql, scale: &Scale, (w, d): (i64, i64), random: &mut Random) -> Result<()> {
    let counts: Vec<i64> = (0..scale.customers).map(|_| random.between(5, 15)).collect();
    // The last three tenths are not delivered.
    let delivered = scale.customers * 7 / 10;
    let mut rows = Rows::of(sql, "orders");
    for (index, c) in random.shuffled(scale.customers).into_iter().enumerate() {
        let o = index as i64 + 1;
        let carrier =
            if o <= delivered { random.between(1, 10).to_string() } else { "NULL".into() };
        rows.push(&format!("{w},{d},{o},{c},0,{carrier},{},1", counts[index]))?;
    }
    rows.finish()?;
    let mut rows = Rows::of(sql, "new_orders");
    for o in delivered + 1..=scale.customers {
        rows.push(&format!("{w},{d},{o}"))?;
    }
    rows.finish()?;
    let mut rows = Rows::of(sql, "order_line");
    for (o, &count) in (1..).zip(&counts) {
        for line in 1..=count {
            let is_delivered = o <= delivered;
            let date = if is_delivered { "0" } else { "NULL" };
            let amount = if is_delivered { 0 } else { random.between(1, 999_999) };
            let (item, info) = (random.between(1, scale.items), random.text(24, 24));
            rows.push(&format!("{w},{d},{o},{line},{item},{w},{date},5,{amount},'{info}'"))?;
        }
    }
    rows.finish()
}
