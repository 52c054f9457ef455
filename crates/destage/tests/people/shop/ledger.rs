//! Customers, and what they were told: with it the database is compared.

use super::applications::Application;
use crate::harness::{Client, Database, Random};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The number of a product and its price in cents.
pub(super) const PRODUCTS: [(u64, u64); 3] = [(1, 1990), (2, 4900), (3, 14950)];
/// How many there are of each product at first.
pub(super) const STOCK: i64 = 1000;
pub(super) const CUSTOMERS: [u64; 2] = [1, 2];

/// What the applications have acknowledged.
#[derive(Clone, Default)]
pub(super) struct Ledger {
    orders: BTreeMap<String, Order>,
    deliveries: BTreeMap<String, Delivery>,
}

#[derive(Clone)]
struct Order {
    customer: u64,
    lines: BTreeMap<u64, u64>,
    is_placed: bool,
    /// The method, and what only this payment says.
    payment: Option<(&'static str, String)>,
}

impl Order {
    fn cents(&self) -> u64 {
        let price = |number| PRODUCTS.iter().find(|(known, _)| known == number).expect("known").1;
        self.lines.iter().map(|(product, quantity)| price(product) * quantity).sum()
    }

    /// As the database writes it: 0 until the order is placed.
    fn total(&self) -> String {
        let cents = if self.is_placed { self.cents() } else { 0 };
        format!("{}.{:02}", cents / 100, cents % 100)
    }
}

#[derive(Clone)]
struct Delivery {
    product: u64,
    quantity: u64,
    has_arrived: bool,
}

impl Delivery {
    fn status(&self) -> &'static str {
        if self.has_arrived { "arrived" } else { "announced" }
    }
}

impl Ledger {
    /// Together with what somebody else was told.
    pub(super) fn add(&mut self, other: Self) {
        self.orders.extend(other.orders);
        self.deliveries.extend(other.deliveries);
    }

    /// How many orders are placed.
    pub(super) fn placed(&self) -> usize {
        self.orders.values().filter(|order| order.is_placed).count()
    }

    /// One line for each row that there must be.
    pub(super) fn lines(&self) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        let mut stock: BTreeMap<u64, i64> = PRODUCTS.iter().map(|&(id, _)| (id, STOCK)).collect();
        let mut points: BTreeMap<u64, usize> = CUSTOMERS.iter().map(|&id| (id, 0)).collect();
        for (id, order) in &self.orders {
            let (total, customer) = (order.total(), order.customer);
            let status = if order.is_placed { "placed" } else { "open" };
            lines.insert(format!("order {id} {customer} {status} {total}"));
            for (product, quantity) in &order.lines {
                lines.insert(format!("line {id} {product} {quantity}"));
            }
            if order.is_placed {
                *points.entry(customer).or_default() += order.lines.len();
                for (&product, &quantity) in &order.lines {
                    *stock.entry(product).or_default() -= quantity.cast_signed();
                }
            }
            if let Some((method, token)) = &order.payment {
                lines.insert(format!("payment {id} {method} {total} {token}"));
            }
        }
        for (id, delivery) in &self.deliveries {
            let Delivery { product, quantity, has_arrived } = delivery;
            lines.insert(format!("delivery {id} {product} {quantity} {}", delivery.status()));
            if *has_arrived {
                *stock.entry(*product).or_default() += quantity.cast_signed();
            }
        }
        lines.extend(stock.iter().map(|(product, count)| format!("stock {product} {count}")));
        lines.extend(points.iter().map(|(customer, count)| format!("points {customer} {count}")));
        lines
    }
}

/// The same of what the database has.
pub(super) fn in_the_database(database: &Database) -> BTreeSet<String> {
    let rows = database.rows(
        "SELECT 'order ' || id || ' ' || customer_id || ' ' || status || ' ' || total FROM orders
         UNION ALL SELECT 'line ' || order_id || ' ' || product_id || ' ' || quantity FROM order_lines
         UNION ALL SELECT 'payment ' || order_id || ' ' || method || ' ' || amount || ' ' || (details ->> 'token')
             FROM payments
         UNION ALL SELECT 'delivery ' || id || ' ' || product_id || ' ' || quantity || ' ' || status FROM deliveries
         UNION ALL SELECT 'stock ' || id || ' ' || stock FROM products
         UNION ALL SELECT 'points ' || id || ' ' || points FROM customers",
    );
    rows.into_iter().map(|row| row.concat()).collect()
}

/// The same of what Redis has of these orders and deliveries.
pub(super) fn in_redis(client: &mut Client, ledger: &Ledger) -> BTreeSet<String> {
    let mut values = |command: &str| -> Vec<String> {
        client.run(command).array().iter().map(|reply| reply.text()).collect()
    };
    let mut lines = BTreeSet::new();
    for id in ledger.orders.keys() {
        let order = values(&format!("HMGET orders:{id} customer_id status total")).join(" ");
        lines.insert(format!("order {id} {order}"));
        let cart = values(&format!("ZRANGE cart:{id} 0 -1 WITHSCORES"));
        lines.extend(cart.chunks(2).map(|line| format!("line {id} {} {}", line[0], line[1])));
        let payment = values(&format!("HMGET payments:{id} method amount details"));
        let details: Value = serde_json::from_str(&payment[2]).expect("it is JSON");
        let token = details["token"].as_str().expect("a text");
        lines.insert(format!("payment {id} {} {} {token}", payment[0], payment[1]));
    }
    for id in ledger.deliveries.keys() {
        let delivery = values(&format!("HMGET deliveries:{id} product_id quantity status"));
        lines.insert(format!("delivery {id} {}", delivery.join(" ")));
    }
    for (product, _) in PRODUCTS {
        let stock = values(&format!("HMGET products:{product} stock")).concat();
        lines.insert(format!("stock {product} {stock}"));
    }
    for customer in CUSTOMERS {
        let points = values(&format!("HMGET customers:{customer} points")).concat();
        lines.insert(format!("points {customer} {points}"));
    }
    lines
}

/// What is missing, and what nobody was told of.
pub(super) fn differences(told: &BTreeSet<String>, found: &BTreeSet<String>) -> Vec<String> {
    let lost = told.difference(found).map(|line| format!("told, but not there: {line}"));
    lost.chain(found.difference(told).map(|line| format!("there, but not told: {line}"))).collect()
}

/// A customer of one application, who also delivers goods.
pub(super) struct Worker<'a> {
    application: &'a Application,
    random: Random,
    /// Orders and deliveries that are begun, each pair of the same time.
    begun: VecDeque<(String, String)>,
    pub(super) ledger: Ledger,
}

impl<'a> Worker<'a> {
    pub(super) fn new(application: &'a Application, number: u64) -> Self {
        let random = Random::new(23, number);
        Self { application, random, begun: VecDeque::new(), ledger: Ledger::default() }
    }

    fn uuid(&mut self) -> String {
        let (a, b) = (self.random.next(), self.random.next());
        let (first, second, third) = (a >> 32, a >> 16 & 0xffff, a & 0xfff);
        format!(
            "{first:08x}-{second:04x}-4{third:03x}-8{:03x}-{:012x}",
            b >> 48 & 0xfff,
            b & 0xffff_ffff_ffff
        )
    }

    fn ask(&self, method: &str, page: &str, body: &Value) -> Value {
        self.application.ask(method, page, body)
    }

    /// Begins orders, and looks at what may be put into each; announces as many deliveries.
    pub(super) fn begin(&mut self, count: usize) {
        for _ in 0..count {
            let (order, delivery) = (self.uuid(), self.uuid());
            let customer = *self.random.pick(&CUSTOMERS);
            let page = format!("/orders/{order}");
            self.ask("PUT", &page, &json!({ "customer": customer }));
            let begun = Order { customer, lines: BTreeMap::new(), is_placed: false, payment: None };
            self.ledger.orders.insert(order.clone(), begun);
            let shown = self.ask("GET", &page, &Value::Null);
            assert_eq!((&shown["status"], &shown["lines"]), (&json!("open"), &json!([])));
            for (product, _) in PRODUCTS {
                let shown = self.ask("GET", &format!("{page}/lines/{product}"), &Value::Null);
                assert_eq!(shown["quantity"], 0, "{shown}");
                self.ask("GET", &format!("/products/{product}"), &Value::Null);
            }
            let (product, quantity) = (self.random.pick(&PRODUCTS).0, self.random.between(1, 9));
            let goods = json!({ "product": product, "quantity": quantity });
            self.ask("PUT", &format!("/deliveries/{delivery}"), &goods);
            let announced = Delivery { product, quantity, has_arrived: false };
            self.ledger.deliveries.insert(delivery.clone(), announced);
            self.begun.push_back((order, delivery));
        }
    }

    /// Fills the next cart, places the order and pays; the next delivery arrives. Some requests are sent twice. Whether
    /// there was one.
    pub(super) fn sell_next(&mut self) -> bool {
        let Some((order, delivery)) = self.begun.pop_front() else { return false };
        let page = format!("/orders/{order}");
        let mut lines = BTreeMap::new();
        for _ in 0..2 {
            let (product, quantity) = (self.random.pick(&PRODUCTS).0, self.random.between(1, 4));
            let line = json!({ "quantity": quantity });
            self.ask("PUT", &format!("{page}/lines/{product}"), &line);
            lines.insert(product, quantity);
        }
        let known = self.ledger.orders.get_mut(&order).expect("it was begun");
        (known.lines, known.is_placed) = (lines, true);
        let total = known.total();
        let times = self.random.between(1, 3);
        for _ in 0..times {
            let placed = self.ask("POST", &format!("{page}/placed"), &Value::Null);
            assert_eq!(placed["total"], *total, "{order}");
        }
        let (method, token) = (*self.random.pick(&["card", "invoice", "voucher"]), self.uuid());
        let payment = json!({ "method": method, "details": { "token": token } });
        let paid = self.ask("PUT", &format!("{page}/payment"), &payment);
        assert_eq!(paid["amount"], *total, "{order}");
        self.ledger.orders.get_mut(&order).expect("as above").payment = Some((method, token));
        for _ in 0..times {
            self.ask("POST", &format!("/deliveries/{delivery}/arrived"), &Value::Null);
        }
        self.ledger.deliveries.get_mut(&delivery).expect("it was begun").has_arrived = true;
        // Whoever looks sees it at once.
        let shown = self.ask("GET", &page, &Value::Null);
        assert_eq!((&shown["status"], &shown["total"]), (&json!("placed"), &json!(total)));
        assert_eq!(shown["payment"]["method"], method, "{shown}");
        true
    }
}
