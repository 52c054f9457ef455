//! The pages that TPC-C's transactions touch, below a database without a buffer pool: RAM before the flash, in the simulation,
//! stands for one.
//!
//! Rows, their sizes, the mix of the transactions and the distributions are those of the TPC Benchmark C standard specification,
//! revision 5.11 (clauses 1.2, 1.3, 2.1.6, 2.4 to 2.8 and 5.2.3). Indexes are left out. A transaction reads each of its pages
//! once; one that writes appends a page to a log, which is synced, and then writes its pages.

use super::{Access, GenerateError, Operations};
use crate::event::Stream;
use crate::trace::Op;
use std::collections::VecDeque;

const PAGE: u64 = 8_192;
const DISTRICTS: u64 = 10;
const CUSTOMERS: u64 = 3_000;
const ITEMS: u64 = 100_000;
/// Orders that a district has room for; later ones take the place of the oldest. At the start it has half as many.
const ORDERS: u64 = 6_000;
/// Lines that an order has room for.
const LINES: u64 = 15;
/// Orders of a district at the start, of which the last are not delivered yet.
const ORDERS_AT_START: u64 = 3_000;
const DELIVERED_AT_START: u64 = 2_100;
const LOG_PAGES: u64 = (1 << 30) / PAGE;
const WAREHOUSES_MAX: u64 = 10_000;

/// A table: where it begins, and how many rows a page holds.
#[derive(Clone, Copy, Debug)]
struct Table {
    first_page: u64,
    rows_per_page: u64,
}

impl Table {
    /// The page of a row.
    fn page(self, row: u64) -> u64 {
        self.first_page + row / self.rows_per_page
    }
}

/// [`super::Load::Tpcc`].
pub(super) struct Tpcc {
    warehouses: u64,
    random: Stream,
    warehouse: Table,
    district: Table,
    customer: Table,
    history: Table,
    order: Table,
    new_order: Table,
    order_line: Table,
    stock: Table,
    item: Table,
    log_first: u64,
    logged: u64,
    paid: u64,
    /// Orders that each district has seen, and those delivered.
    orders: Vec<[u64; 2]>,
    read: Vec<u64>,
    written: Vec<u64>,
}

impl Tpcc {
    pub(super) fn new(warehouses: u64, random: Stream) -> Result<Self, GenerateError> {
        if !(1..=WAREHOUSES_MAX).contains(&warehouses) {
            return Err(GenerateError("there are 1 to 10000 warehouses"));
        }
        let mut next_page = 0;
        let mut table = |rows: u64, row_bytes: u64| {
            let table = Table { first_page: next_page, rows_per_page: PAGE / row_bytes };
            next_page = table.page(rows) + 1;
            table
        };
        let districts = warehouses * DISTRICTS;
        let tables = Self {
            warehouses,
            random,
            warehouse: table(warehouses, 89),
            district: table(districts, 95),
            customer: table(districts * CUSTOMERS, 655),
            history: table(districts * ORDERS, 46),
            order: table(districts * ORDERS, 24),
            new_order: table(districts * ORDERS, 8),
            order_line: table(districts * ORDERS * LINES, 54),
            stock: table(warehouses * ITEMS, 306),
            item: table(ITEMS, 82),
            log_first: 0,
            logged: 0,
            paid: 0,
            orders: vec![[ORDERS_AT_START, DELIVERED_AT_START]; districts as usize],
            read: Vec::new(),
            written: Vec::new(),
        };
        Ok(Self { log_first: next_page, ..tables })
    }

    fn read(&mut self, page: u64) {
        if !self.read.contains(&page) {
            self.read.push(page);
        }
    }

    /// Reads a page and writes it.
    fn update(&mut self, page: u64) {
        self.read(page);
        self.insert(page);
    }

    /// Writes a page whose earlier content does not matter, at the end of a table.
    fn insert(&mut self, page: u64) {
        if !self.written.contains(&page) {
            self.written.push(page);
        }
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.random.below(high - low + 1)
    }

    /// Non-uniform, from 0 to below `count` (clause 2.1.6); its constant is 0.
    fn skewed(&mut self, a: u64, count: u64) -> u64 {
        (self.between(0, a) | self.random.below(count)) % count
    }

    fn home(&mut self) -> u64 {
        self.random.below(self.warehouses)
    }

    /// Another warehouse with so many percent.
    fn maybe_remote(&mut self, home: u64, percent: u64) -> u64 {
        if self.random.below(100) < percent && self.warehouses > 1 {
            (home + 1 + self.random.below(self.warehouses - 1)) % self.warehouses
        } else {
            home
        }
    }

    fn any_district(&mut self, warehouse: u64) -> u64 {
        warehouse * DISTRICTS + self.random.below(DISTRICTS)
    }

    /// A customer by number; in three of five cases by name, of which the one in the middle of three is chosen.
    fn customer(&mut self, district: u64) -> u64 {
        let first = district * CUSTOMERS;
        if self.random.below(100) < 40 {
            return self.customer.page(first + self.skewed(1_023, CUSTOMERS));
        }
        let name = self.skewed(255, 1_000);
        for same_name in [name, name + 2_000] {
            self.read(self.customer.page(first + same_name));
        }
        self.customer.page(first + name + 1_000)
    }

    fn order_row(district: u64, order: u64) -> u64 {
        district * ORDERS + order % ORDERS
    }

    fn line_pages(&self, row: u64) -> std::ops::RangeInclusive<u64> {
        self.order_line.page(row * LINES)..=self.order_line.page(row * LINES + LINES - 1)
    }

    fn new_order(&mut self) {
        let home = self.home();
        let district = self.any_district(home);
        self.read(self.warehouse.page(home));
        self.update(self.district.page(district));
        let customer = district * CUSTOMERS + self.skewed(1_023, CUSTOMERS);
        self.read(self.customer.page(customer));
        for _ in 0..self.between(5, 15) {
            let item = self.skewed(8_191, ITEMS);
            self.read(self.item.page(item));
            let supplier = self.maybe_remote(home, 1);
            self.update(self.stock.page(supplier * ITEMS + item));
        }
        let seen = &mut self.orders[district as usize][0];
        let row = Self::order_row(district, *seen);
        *seen += 1;
        self.insert(self.order.page(row));
        self.insert(self.new_order.page(row));
        self.line_pages(row).for_each(|page| self.insert(page));
    }

    fn payment(&mut self) {
        let home = self.home();
        let district = self.any_district(home);
        self.update(self.warehouse.page(home));
        self.update(self.district.page(district));
        let other = self.maybe_remote(home, 15);
        let district = if other == home { district } else { self.any_district(other) };
        let customer = self.customer(district);
        self.update(customer);
        let rows = self.warehouses * DISTRICTS * ORDERS;
        self.insert(self.history.page(self.paid % rows));
        self.paid += 1;
    }

    fn order_status(&mut self) {
        let home = self.home();
        let district = self.any_district(home);
        let customer = self.customer(district);
        self.read(customer);
        // A customer's last order is any of the last three thousand.
        let seen = self.orders[district as usize][0];
        let row = Self::order_row(district, seen - 1 - self.random.below(CUSTOMERS));
        self.read(self.order.page(row));
        self.line_pages(row).for_each(|page| self.read(page));
    }

    fn delivery(&mut self) {
        let home = self.home();
        for district in home * DISTRICTS..(home + 1) * DISTRICTS {
            let [seen, delivered] = &mut self.orders[district as usize];
            if delivered == seen {
                continue;
            }
            let row = Self::order_row(district, *delivered);
            *delivered += 1;
            self.update(self.new_order.page(row));
            self.update(self.order.page(row));
            self.line_pages(row).for_each(|page| self.update(page));
            let customer = district * CUSTOMERS + self.random.below(CUSTOMERS);
            self.update(self.customer.page(customer));
        }
    }

    fn stock_level(&mut self) {
        let home = self.home();
        let district = self.any_district(home);
        self.read(self.district.page(district));
        let seen = self.orders[district as usize][0];
        for order in seen - 20..seen {
            self.line_pages(Self::order_row(district, order)).for_each(|page| self.read(page));
            for _ in 0..self.between(5, 15) {
                let item = self.skewed(8_191, ITEMS);
                self.read(self.stock.page(home * ITEMS + item));
            }
        }
    }
}

impl Operations for Tpcc {
    fn next(&mut self, accesses: &mut VecDeque<Access>) {
        match self.random.below(100) {
            0..45 => self.new_order(),
            45..88 => self.payment(),
            88..92 => self.order_status(),
            92..96 => self.delivery(),
            _ => self.stock_level(),
        }
        let access = |op, page| Access { op, offset: page * PAGE, bytes: PAGE };
        accesses.extend(self.read.drain(..).map(|page| access(Op::Read, page)));
        if self.written.is_empty() {
            return;
        }
        accesses.push_back(access(Op::Write, self.log_first + self.logged % LOG_PAGES));
        accesses.push_back(Access::flush());
        self.logged += 1;
        accesses.extend(self.written.drain(..).map(|page| access(Op::Write, page)));
    }
}
