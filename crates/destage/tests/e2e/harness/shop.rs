//! The shop that most tests use, in any database.

use super::{Database, Scratch};

/// Tables and a few rows.
const SHOP: &str = "
CREATE TABLE customers (
    id ID ,
    name TEXT NOT NULL,
    email TEXT,
    note TEXT,
    visits INTEGER NOT NULL DEFAULT 0,
    balance DOUBLE PRECISION
);
CREATE TABLE products (
    id ID ,
    name TEXT NOT NULL,
    price_cents INTEGER NOT NULL CHECK (price_cents + 0 >= 0),
    stock INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE orders (
    id ID ,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    status TEXT NOT NULL DEFAULT 'new',
    note TEXT
);
CREATE TABLE order_lines (
    order_id INTEGER NOT NULL REFERENCES orders (id),
    product_id INTEGER NOT NULL REFERENCES products (id),
    quantity INTEGER NOT NULL,
    PRIMARY KEY (order_id, product_id)
);
CREATE TABLE labels (
    name NAME NOT NULL,
    kind NAME NOT NULL,
    note TEXT,
    PRIMARY KEY (name, kind)
);
CREATE TABLE log_lines (at TEXT, line TEXT);
INSERT INTO customers (id, name, email, visits, balance) VALUES
    (1, 'Ada', 'ada@example.org', 3, 12.5),
    (2, 'Grace', NULL, 0, NULL);
INSERT INTO products (id, name, price_cents, stock) VALUES (1, 'Lamp', 1990, 10), (2, 'Chair', 4900, 4);
INSERT INTO orders (id, customer_id) VALUES (1, 1);
INSERT INTO order_lines VALUES (1, 1, 2);
";

/// PostgreSQL's sequences do not see the keys that the rows above bring along.
const SEQUENCES: &str = "
SELECT setval(pg_get_serial_sequence('customers', 'id'), 1000);
SELECT setval(pg_get_serial_sequence('products', 'id'), 1000);
SELECT setval(pg_get_serial_sequence('orders', 'id'), 1000);
";

/// The shop in a SQLite file.
#[track_caller]
pub(crate) fn sqlite(scratch: &Scratch) -> Database {
    Database::sqlite(scratch).with(SHOP)
}

/// The shop in the shared PostgreSQL; `None` (after saying so) where there is none.
#[track_caller]
pub(crate) fn postgres() -> Option<Database> {
    Database::postgres().map(filled)
}

/// The shop in the shared MariaDB; `None` (after saying so) where there is none.
#[track_caller]
pub(crate) fn mariadb() -> Option<Database> {
    Database::mariadb().map(filled)
}

/// The shop in that empty database.
#[track_caller]
pub(crate) fn filled(database: Database) -> Database {
    let database = database.with(SHOP);
    if let Database::Postgres(_) = database {
        database.execute(SEQUENCES);
    }
    database
}

/// The shop in each kind of database that is at hand.
#[track_caller]
pub(crate) fn each(scratch: &Scratch) -> Vec<Database> {
    [Some(sqlite(scratch)), postgres(), mariadb()].into_iter().flatten().collect()
}
