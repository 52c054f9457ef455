//! The five transactions as sessions of the library.
//!
//! Values that never change (names, taxes, prices) are read without a lease, as the standard allows; so is everything that
//! Stock-Level reads. A customer's last order is a cached entry, which new orders are merged into.

use super::random::{DISTRICTS, Input, Line, Who};
use super::sql::Sql;
use super::{Done, Target};
use crate::Result;
use destage_data::store::{
    Computed, Entries, Entry, Error, ErrorKind, Key, Merge, Op, Row, RowChange, Session, Store,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The newest order of a customer, by `warehouse:district:customer`; 0 for none.
pub(crate) struct LastOrder {
    origin: Mutex<Sql>,
}

impl Entry for LastOrder {
    type Value = i64;

    fn compute(&self, name: &str) -> std::result::Result<Computed<i64>, Error> {
        let parts: Vec<&str> = name.split(':').collect();
        let [w, d, c] = parts[..] else {
            return Err(Error::abort(format!("'{name}' names no customer")));
        };
        let mut origin = self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = origin.numbers(&format!(
            "SELECT coalesce((SELECT max(o_id) FROM orders WHERE o_w_id = {w} AND o_d_id = {d} AND o_c_id = {c}), 0), \
             domain, seq FROM destage_watermark"
        ));
        let rows = rows.map_err(Error::abort_with)?;
        let Some(&order) = rows.first().and_then(|row| row.first()) else {
            return Err(Error::abort("the origin has no watermark"));
        };
        let watermark =
            |row: &Vec<i64>| Some((u16::try_from(row[1]).ok()?, row[2].cast_unsigned()));
        Ok(Computed::as_of_each(order, rows.iter().filter_map(watermark)))
    }

    fn mapping(&self, change: &RowChange<'_>) -> Vec<String> {
        match (change.table(), change.op(), change.number("o_c_id")) {
            ("orders", Op::Insert, Some(c)) => {
                vec![format!("{}:{}:{c}", change.key("o_w_id"), change.key("o_d_id"))]
            }
            _ => Vec::new(),
        }
    }

    fn merge(&self, _: &str, order: &mut i64, change: &RowChange<'_>) -> Merge {
        match change.key("o_id").parse::<i64>() {
            Ok(new) => *order = new.max(*order),
            Err(_) => return Merge::Drop,
        }
        Merge::Merged
    }
}

/// What the clients of one store share.
pub(crate) struct Shared<'s> {
    pub(crate) store: &'s Store,
    last_orders: Entries<'s, LastOrder>,
    /// Customers by warehouse, district and last name, in the order of their first names. Names never change.
    names: HashMap<(i64, i64, String), Vec<i64>>,
    /// No undelivered order of a district is older than this one.
    oldest: BTreeMap<(i64, i64), AtomicI64>,
    next_history: AtomicI64,
}

impl<'s> Shared<'s> {
    /// # Errors
    /// The origin cannot be asked.
    pub(crate) fn new(store: &'s Store, url: &str) -> Result<Self> {
        let mut sql = Sql::open(url)?;
        let mut names: HashMap<_, Vec<i64>> = HashMap::new();
        let rows = sql.rows(
            "SELECT c_w_id, c_d_id, c_last, c_id FROM customer ORDER BY c_w_id, c_d_id, c_last, c_first",
        )?;
        for row in rows {
            let place = (row[0].parse()?, row[1].parse()?, row[2].clone());
            names.entry(place).or_default().push(row[3].parse()?);
        }
        let oldest = sql.numbers(
            "SELECT no_w_id, no_d_id, min(no_o_id) FROM new_orders GROUP BY no_w_id, no_d_id",
        )?;
        let oldest = oldest.iter().map(|row| ((row[0], row[1]), AtomicI64::new(row[2]))).collect();
        let first = sql.numbers("SELECT max(h_id) + 1 FROM history")?;
        // Beyond what is buffered and not at the origin yet, should there be something.
        let unseen = store.status()?.writes.last_lsn.cast_signed();
        let next_history = AtomicI64::new(first[0][0] + unseen);
        let last_orders = store.entries(LastOrder { origin: Mutex::new(sql) })?;
        Ok(Self { store, last_orders, names, oldest, next_history })
    }

    /// The newest order of a customer, by `warehouse:district:customer`.
    ///
    /// # Errors
    /// The origin cannot be asked.
    pub(crate) fn last_order(&self, customer: &str) -> std::result::Result<i64, Error> {
        self.last_orders.get(customer)
    }

    /// The customer's number; of several of one name the one in the middle.
    fn customer(&self, w: i64, d: i64, who: &Who) -> Option<i64> {
        match who {
            Who::Number(number) => Some(*number),
            Who::Name(name) => {
                let all = self.names.get(&(w, d, name.clone()))?;
                all.get((all.len() - 1) / 2).copied()
            }
        }
    }

    fn new_order(&self, input: &Input) -> std::result::Result<(), Error> {
        let Input::NewOrder { w, d, c, lines, is_unused } = input else { return Ok(()) };
        let (w, d, c) = (*w, *d, *c);
        let taxes: [Key; 1] = [("warehouse", w).into()];
        let items: Vec<Key> = lines.iter().map(|line| ("item", line.item).into()).collect();
        let mut fixed = self.store.read_all(&[&taxes[..], &items[..]].concat())?.into_iter();
        let w_tax: i64 = present(fixed.next())?.get("w_tax")?;
        let prices: Vec<i64> = fixed
            .map(|row| present(Some(row))?.get("i_price"))
            .collect::<std::result::Result<_, _>>()?;
        self.store.session(|s| {
            let district: Key = ("district", (w, d)).into();
            let row = present(s.read_to_write(std::slice::from_ref(&district))?.pop())?;
            let (order, d_tax): (i64, i64) = (row.get("d_next_o_id")?, row.get("d_tax")?);
            if *is_unused {
                return Err(Error::abort("an item that does not exist"));
            }
            let mut keys: Vec<Key> = vec![("customer", (w, d, c)).into()];
            keys.extend(lines.iter().map(|line| Key::from(("stock", (line.supplier, line.item)))));
            let rows = s.read_all(&keys)?;
            let discount: i64 = present(rows.first().cloned())?.get("c_discount")?;
            s.inc(&district, "d_next_o_id", 1)?;
            let is_local = lines.iter().all(|line| line.supplier == w);
            let count = lines.len() as i64;
            let fields = [
                ("o_c_id", c.into()),
                ("o_entry_d", now().into()),
                ("o_ol_cnt", count.into()),
                ("o_all_local", i64::from(is_local).into()),
            ];
            s.insert_new(("orders", (w, d, order)), fields)?;
            s.insert_new(("new_orders", (w, d, order)), [])?;
            let priced = lines.iter().zip(&prices).zip(rows.iter().zip(&keys).skip(1));
            for (number, ((line, price), (stock, key))) in (1..).zip(priced) {
                let stock = present(Some(stock.clone()))?;
                take_stock(s, key, &stock, line, w)?;
                let fields = [
                    ("ol_i_id", line.item.into()),
                    ("ol_supply_w_id", line.supplier.into()),
                    ("ol_quantity", line.quantity.into()),
                    ("ol_amount", (price * line.quantity).into()),
                    ("ol_dist_info", stock.get::<String>("s_dist")?.into()),
                ];
                s.insert_new(("order_line", (w, d, order, number)), fields)?;
            }
            // What the terminal would show.
            let _total = (10_000 - discount) * (10_000 + w_tax + d_tax);
            Ok(())
        })
    }

    fn payment(&self, input: &Input) -> std::result::Result<(), Error> {
        let Input::Payment { w, d, of, who, amount } = input else { return Ok(()) };
        let Some(c) = self.customer(of.0, of.1, who) else { return Ok(()) };
        let history = self.next_history.fetch_add(1, Ordering::Relaxed);
        let names =
            self.store.read_all(&[("warehouse", *w).into(), ("district", (*w, *d)).into()])?;
        let mut names = names.into_iter();
        let w_name: String = present(names.next())?.get("w_name")?;
        let d_name: String = present(names.next())?.get("d_name")?;
        self.store.session(|s| {
            let key: Key = ("customer", (of.0, of.1, c)).into();
            let row = s.row(&key)?;
            s.inc(("warehouse", *w), "w_ytd", amount)?;
            s.inc(("district", (*w, *d)), "d_ytd", amount)?;
            s.inc(&key, "c_balance", -amount)?;
            s.inc(&key, "c_ytd_payment", amount)?;
            s.inc(&key, "c_payment_cnt", 1)?;
            if row.get::<String>("c_credit")? == "BC" {
                let data: String = row.get("c_data")?;
                let data: String = format!("{c} {} {} {d} {w} {amount} {data}", of.1, of.0)
                    .chars()
                    .take(500)
                    .collect();
                s.set(&key, [("c_data", data.into())])?;
            }
            let fields = [
                ("h_c_w_id", of.0.into()),
                ("h_c_d_id", of.1.into()),
                ("h_c_id", c.into()),
                ("h_d_id", (*d).into()),
                ("h_date", now().into()),
                ("h_amount", (*amount).into()),
                ("h_data", format!("{w_name}    {d_name}").into()),
            ];
            s.insert_new(("history", (*w, history)), fields)
        })
    }

    fn order_status(&self, w: i64, d: i64, who: &Who) -> std::result::Result<(), Error> {
        let Some(c) = self.customer(w, d, who) else { return Ok(()) };
        self.store.session(|s| {
            s.row(("customer", (w, d, c)))?;
            let order = self.last_orders.get_in(s, &format!("{w}:{d}:{c}"))?;
            if order == 0 {
                return Ok(());
            }
            let count: i64 = s.row(("orders", (w, d, order)))?.get("o_ol_cnt")?;
            let lines: Vec<Key> =
                (1..=count).map(|line| ("order_line", (w, d, order, line)).into()).collect();
            s.read_all(&lines).map(drop)
        })
    }

    /// One session per district, as the standard allows.
    fn delivery(&self, w: i64, carrier: i64) -> std::result::Result<(), Error> {
        for d in 1..=DISTRICTS {
            let Some(oldest) = self.oldest.get(&(w, d)) else { continue };
            let delivered = self.store.session(|s| deliver(s, (w, d), carrier, oldest))?;
            oldest.fetch_max(delivered, Ordering::Relaxed);
        }
        Ok(())
    }

    fn stock_level(&self, w: i64, d: i64, threshold: i64) -> std::result::Result<(), Error> {
        let row = present(Some(self.store.read(("district", (w, d)))?))?;
        let next: i64 = row.get("d_next_o_id")?;
        let orders: Vec<i64> = ((next - 20).max(1)..next).collect();
        let keys: Vec<Key> = orders.iter().map(|&o| ("orders", (w, d, o)).into()).collect();
        let mut lines: Vec<Key> = Vec::new();
        for (o, row) in orders.iter().zip(self.store.read_all(&keys)?) {
            let Some(row) = row else { continue };
            let count: i64 = row.get("o_ol_cnt")?;
            lines.extend((1..=count).map(|line| Key::from(("order_line", (w, d, *o, line)))));
        }
        let mut items = Vec::new();
        for row in self.store.read_all(&lines)?.into_iter().flatten() {
            items.push(row.get::<i64>("ol_i_id")?);
        }
        items.sort_unstable();
        items.dedup();
        let stock: Vec<Key> = items.iter().map(|&i| ("stock", (w, i)).into()).collect();
        let rows = self.store.read_all(&stock)?;
        let low = rows
            .iter()
            .flatten()
            .filter(|row| row.get::<i64>("s_quantity").is_ok_and(|quantity| quantity < threshold));
        let _shown = low.count();
        Ok(())
    }
}

fn take_stock(
    s: &mut Session<'_>,
    key: &Key,
    stock: &Row,
    line: &Line,
    w: i64,
) -> std::result::Result<(), Error> {
    let quantity: i64 = stock.get("s_quantity")?;
    let more = if quantity >= line.quantity + 10 { 0 } else { 91 };
    s.set(key, [("s_quantity", (quantity - line.quantity + more).into())])?;
    s.inc(key, "s_ytd", line.quantity)?;
    s.inc(key, "s_order_cnt", 1)?;
    if line.supplier == w { Ok(()) } else { s.inc(key, "s_remote_cnt", 1) }
}

/// Delivers the district's oldest order; the number of the next one is returned.
fn deliver(
    s: &mut Session<'_>,
    (w, d): (i64, i64),
    carrier: i64,
    oldest: &AtomicI64,
) -> std::result::Result<i64, Error> {
    let mut order = oldest.load(Ordering::Relaxed);
    // Another client may have delivered some already.
    while s.read_to_write(&[("new_orders", (w, d, order)).into()])?.pop().flatten().is_none() {
        if s.read(("orders", (w, d, order)))?.is_none() {
            return Ok(order);
        }
        order += 1;
    }
    s.delete(("new_orders", (w, d, order)))?;
    let key: Key = ("orders", (w, d, order)).into();
    let row = s.row(&key)?;
    let (c, count): (i64, i64) = (row.get("o_c_id")?, row.get("o_ol_cnt")?);
    s.set(&key, [("o_carrier_id", carrier.into())])?;
    let lines: Vec<Key> =
        (1..=count).map(|line| ("order_line", (w, d, order, line)).into()).collect();
    let mut total = 0;
    for (line, row) in lines.iter().zip(s.read_all(&lines)?) {
        total += present(Some(row))?.get::<i64>("ol_amount")?;
        s.set(line, [("ol_delivery_d", now().into())])?;
    }
    s.inc(("customer", (w, d, c)), "c_balance", total)?;
    s.inc(("customer", (w, d, c)), "c_delivery_cnt", 1)?;
    Ok(order + 1)
}

fn present(row: Option<Option<Row>>) -> std::result::Result<Row, Error> {
    row.flatten().ok_or_else(|| Error::abort("a row of the standard's population is missing"))
}

/// Seconds since 1970.
fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs().cast_signed())
}

impl Target for &Shared<'_> {
    fn perform(&mut self, input: &Input) -> Result<Done> {
        let performed = match input {
            Input::NewOrder { .. } => self.new_order(input),
            Input::Payment { .. } => self.payment(input),
            Input::OrderStatus { w, d, who } => self.order_status(*w, *d, who),
            Input::Delivery { w, carrier } => self.delivery(*w, *carrier),
            Input::StockLevel { w, d, threshold } => self.stock_level(*w, *d, *threshold),
        };
        match (performed, input) {
            (Ok(()), _) => Ok(Done::Committed),
            (Err(error), Input::NewOrder { is_unused: true, .. })
                if error.kind() == ErrorKind::Aborted =>
            {
                Ok(Done::RolledBack)
            }
            (Err(error), _) => Err(error.into()),
        }
    }
}
