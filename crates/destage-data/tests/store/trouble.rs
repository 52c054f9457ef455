//! What a program does about an origin that rejects, is away, or was changed by others.

use crate::support::{Kind, Place, bank, on_each_origin};
use destage_core::Span;
use destage_data::store::{ErrorKind, Store};
use std::thread;
use std::time::{Duration, Instant};

on_each_origin! {
    what_a_domain_halted_at_is_parked_on_demand_and_only_then,
    a_drain_waits_for_as_long_as_it_takes_or_as_it_is_told,
    a_session_that_is_kept_but_not_acknowledged_in_time_is_not_run_again,
    an_invalidated_row_with_changes_under_way_shows_them_over_what_the_origin_has_now,
}

const PATIENCE: Duration = Duration::from_secs(60);

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn halted(store: &Store) -> Option<u64> {
    store.status().unwrap().halted.first().map(|halt| halt.write.unwrap_or_default())
}

/// Nobody has customer 4711; the other write is behind it.
fn write_both(store: &Store) {
    store.session(|s| s.insert_new(("orders", 1), [("customer_id", 4711.into())])).unwrap();
    store.session(|s| s.set(("customers", 1), [("name", "later".into())])).unwrap();
}

fn shop(kind: Kind) -> Place {
    Place::new(
        kind,
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
         CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL,
                              FOREIGN KEY (customer_id) REFERENCES customers (id));
         INSERT INTO customers VALUES (1, 'Ada');",
    )
}

fn what_a_domain_halted_at_is_parked_on_demand_and_only_then(kind: Kind) {
    let place = shop(kind);
    let store = place.options().policy("on-reject=stop").open().unwrap();
    write_both(&store);
    eventually("the domain halts", || halted(&store).is_some());
    let name = "SELECT name FROM customers";
    // Resuming by itself sends it once more, and halts at it once more.
    store.resume().unwrap();
    assert_eq!(
        store.drain_within(Duration::from_millis(300)).unwrap_err().kind(),
        ErrorKind::Timeout
    );
    eventually("it halts again", || halted(&store).is_some());
    assert_eq!(place.at_origin(name).as_deref(), Some("Ada"));
    assert_eq!(store.status().unwrap().destage.parked_groups, Some(0));

    store.resume_parking().unwrap();
    store.drain().unwrap();
    assert_eq!(halted(&store), None);
    assert_eq!(place.at_origin(name).as_deref(), Some("later"));
    assert_eq!(store.status().unwrap().destage.parked_groups, Some(1));
    let listed = store.parked(&["LIST"]).unwrap();
    let id = listed[0]["id"].as_u64().unwrap().to_string();
    place.sql("INSERT INTO customers VALUES (4711, 'found')");
    store.parked(&["RETRY", &id]).unwrap();
    assert_eq!(place.at_origin("SELECT customer_id FROM orders").as_deref(), Some("4711"));
    store.close().unwrap();
}

fn a_drain_waits_for_as_long_as_it_takes_or_as_it_is_told(kind: Kind) {
    let place = bank(kind, 1);
    let store = place.open();
    store.pause().unwrap();
    store.session(|s| s.inc(("accounts", 1), "balance", 5)).unwrap();
    let begun = Instant::now();
    let error = store.drain_within(Duration::from_millis(200)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert!(error.to_string().contains("1 writes are left"), "{error}");
    thread::scope(|scope| {
        let drain = scope.spawn(|| store.drain());
        thread::sleep(Duration::from_millis(300));
        assert!(!drain.is_finished());
        store.resume().unwrap();
        drain.join().unwrap().unwrap();
    });
    assert_eq!(place.at_origin("SELECT balance FROM accounts").as_deref(), Some("105"));
    store.close().unwrap();
}

fn a_session_that_is_kept_but_not_acknowledged_in_time_is_not_run_again(kind: Kind) {
    let place = bank(kind, 1);
    let options = place.options().policy("policy=write-through");
    let wait = Span::from_millis(50);
    let store = options.with(|settings| settings.client_wait = wait).open().unwrap();
    eventually("the row is cached", || store.read(("accounts", 1)).is_ok());
    store.pause().unwrap();
    let mut runs = 0;
    let told = store.session(|s| {
        runs += 1;
        s.inc(("accounts", 1), "balance", 5)
    });
    let error = told.unwrap_err();
    assert_eq!((error.kind(), runs), (ErrorKind::Pending, 1), "{error}");
    store.resume().unwrap();
    store.drain().unwrap();
    assert_eq!(place.at_origin("SELECT balance FROM accounts").as_deref(), Some("105"));
    store.close().unwrap();
}

fn an_invalidated_row_with_changes_under_way_shows_them_over_what_the_origin_has_now(kind: Kind) {
    let place = bank(kind, 1);
    let store = place.open();
    store.pause().unwrap();
    store.session(|s| s.inc(("accounts", 1), "balance", 5)).unwrap();
    place.sql("UPDATE accounts SET balance = 200, version = 9");
    let read = || {
        let row = store.read(("accounts", 1)).unwrap().unwrap();
        (row.get::<i64>("balance").unwrap(), row.get::<i64>("version").unwrap())
    };
    assert_eq!(read(), (105, 0), "what is cached is not compared");
    store.invalidate(&["accounts:1".into()]).unwrap();
    eventually("it is fetched again", || read() == (205, 9));
    store.resume().unwrap();
    store.close().unwrap();
    assert_eq!(place.at_origin("SELECT balance FROM accounts").as_deref(), Some("205"));
}
