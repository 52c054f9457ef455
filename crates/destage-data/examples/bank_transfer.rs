//! Money moves between accounts, from several threads at once, and is never lost.
//!
//! ```sh
//! cargo run -p destage-data --example bank_transfer            # before a SQLite file of its own
//! cargo run -p destage-data --example bank_transfer -- postgres://localhost/bank
//! ```
//!
//! An origin of your own needs a table `accounts (id integer primary key, balance integer not null)` with ids 1 to 10.

use destage_data::store::{Error, Key, Options, Store};
use std::error::Error as StdError;
use std::thread;

const ACCOUNTS: i64 = 10;
const THREADS: i64 = 4;
const TRANSFERS: i64 = 250;

fn main() -> Result<(), Box<dyn StdError>> {
    let folder = tempfile::tempdir()?;
    let origin = match std::env::args().nth(1) {
        Some(origin) => origin,
        None => new_bank(&folder.path().join("bank.db"))?,
    };
    let store = Options::new(origin, folder.path().join("data")).open()?;
    let before = total(&store)?;
    thread::scope(|scope| {
        let transfers = |thread: i64| {
            let store = &store;
            move || (0..TRANSFERS).try_for_each(|n| transfer(store, n + thread, n * 7 + 3, n % 20))
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(transfers(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread panicked"))
    })?;
    let after = total(&store)?;
    println!("{} transfers; total before {before}, after {after}", THREADS * TRANSFERS);
    assert_eq!(before, after, "money is neither made nor lost");
    store.close()?;
    Ok(())
}

/// Moves an amount, if there is enough.
fn transfer(store: &Store, from: i64, to: i64, amount: i64) -> Result<(), Error> {
    let (from, to) = (from % ACCOUNTS + 1, to % ACCOUNTS + 1);
    store.session(|s| {
        let balance: i64 = s.row(("accounts", from))?.get("balance")?;
        if balance >= amount {
            s.inc(("accounts", from), "balance", -amount)?;
            s.inc(("accounts", to), "balance", amount)?;
        }
        Ok(())
    })
}

/// All balances at one moment.
fn total(store: &Store) -> Result<i64, Error> {
    let keys: Vec<Key> = (1..=ACCOUNTS).map(|id| ("accounts", id).into()).collect();
    store.session(|s| {
        let rows = s.read_all(&keys)?;
        rows.iter().flatten().map(|row| row.get::<i64>("balance")).sum()
    })
}

/// A database file with some money in it; its address is returned.
fn new_bank(file: &std::path::Path) -> Result<String, rusqlite::Error> {
    let bank = rusqlite::Connection::open(file)?;
    bank.execute_batch("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")?;
    for id in 1..=ACCOUNTS {
        bank.execute("INSERT INTO accounts VALUES (?, 1000)", [id])?;
    }
    Ok(format!("sqlite:{}", file.display()))
}
