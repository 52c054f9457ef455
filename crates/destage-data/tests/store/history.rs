//! Many threads move money at once; whatever they saw, one order of all sessions explains it.

use crate::support::{Kind, Place, bank};
use destage_data::store::{Error, Key, Options, Row, Store};
use destage_testkit::history::sessions::{self, Session};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const ACCOUNTS: u64 = 4;
const THREADS: u64 = 4;
const TRANSFERS: u64 = 60;

/// What all threads share.
struct Bank<'a> {
    store: &'a Store,
    time: AtomicU64,
    version: AtomicU64,
}

impl Bank<'_> {
    fn tick(&self) -> u64 {
        self.time.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Moves money between two accounts, or only looks at all of them.
    fn act(&self, number: u64) -> Result<Session, Error> {
        let begun = self.tick();
        let is_look = number.is_multiple_of(5);
        let (from, to) = (number % ACCOUNTS + 1, (number / 7 + number) % ACCOUNTS + 1);
        let to = if from == to { from % ACCOUNTS + 1 } else { to };
        let ids: Vec<u64> = if is_look { (1..=ACCOUNTS).collect() } else { vec![from, to] };
        let keys: Vec<Key> = ids.iter().map(|&id| ("accounts", id).into()).collect();
        let (reads, writes) = self.store.session(|s| {
            let rows = match number % 3 {
                0 if !is_look => s.read_to_write(&keys)?,
                _ => s.read_all(&keys)?,
            };
            let rows: Vec<Row> = rows.into_iter().flatten().collect();
            let mut reads = BTreeMap::new();
            for (&id, row) in ids.iter().zip(&rows) {
                reads.insert(id, row.get("version")?);
            }
            if is_look {
                let balances: Result<Vec<i64>, _> =
                    rows.iter().map(|row| row.get("balance")).collect();
                assert_eq!(balances?.iter().sum::<i64>(), 100 * ACCOUNTS as i64);
                return Ok((reads, BTreeMap::new()));
            }
            let version = self.version.fetch_add(1, Ordering::SeqCst) + 1;
            let balance: i64 = rows[0].get("balance")?;
            s.set(&keys[0], [("balance", (balance - 1).into()), ("version", version.into())])?;
            s.inc(&keys[1], "balance", 1)?;
            s.set(&keys[1], [("version", version.into())])?;
            Ok((reads, BTreeMap::from([(from, version), (to, version)])))
        })?;
        Ok(Session { begun, ended: Some(self.tick()), reads, writes })
    }
}

fn versions(place: &Place) -> BTreeMap<u64, u64> {
    let number =
        |id: u64| place.at_origin(&format!("SELECT version FROM accounts WHERE id = {id}"));
    (1..=ACCOUNTS)
        .map(|id| (id, number(id).expect("the account exists").parse().expect("a number")))
        .collect()
}

fn round(change: impl FnOnce(Options) -> Options) {
    let place = bank(Kind::Sqlite, ACCOUNTS as u32);
    let store = change(place.options()).open().unwrap();
    let bank = Bank { store: &store, time: AtomicU64::new(0), version: AtomicU64::new(0) };
    let history: Vec<Session> = thread::scope(|scope| {
        let bank = &bank;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let act = move |n| bank.act(thread * 1_009 + n * 13).unwrap();
                scope.spawn(move || (0..TRANSFERS).map(act).collect::<Vec<_>>())
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    store.close().unwrap();
    let summary = sessions::check(&history, &versions(&place)).unwrap();
    assert_eq!(summary.sessions as u64, THREADS * TRANSFERS);
    let sum = place.at_origin("SELECT sum(balance) FROM accounts");
    assert_eq!(sum, Some((100 * ACCOUNTS).to_string()));
}

#[test]
fn one_order_explains_what_concurrent_sessions_saw() {
    round(|options| options);
}

#[test]
fn one_order_explains_it_without_a_cache_too() {
    round(|options| {
        options.policy("commit=10ms").with(|settings| settings.policy.limits.cache_bytes_max = 0)
    });
}

#[test]
fn one_order_explains_it_under_write_through_too() {
    round(|options| options.policy("policy=write-through"));
}
