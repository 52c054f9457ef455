//! What is parked behind a rejected write besides the later writes of its rows: what has read it, and what refers to a row
//! that it makes.

use crate::support::{Kind, Place, on_each_origin};
use destage_data::settings::DomainSettings;
use destage_data::store::{Error, Store};

on_each_origin! {
    what_has_read_a_rejected_write_is_parked_behind_it_and_applied_with_it,
    what_it_has_read_is_known_after_a_restart,
    once_a_rejected_write_is_given_up_what_has_read_it_is_decided_on_by_itself,
    once_a_rejected_write_is_edited_what_has_read_it_goes_along,
    rows_that_refer_to_a_rejected_new_row_are_parked_behind_it,
    a_row_that_comes_to_refer_to_a_rejected_new_row_is_parked_behind_it,
    what_refers_to_a_row_that_the_origin_has_goes_though_a_change_of_that_was_rejected,
    what_is_told_to_a_client_that_waits_for_the_origin,
    a_domain_goes_on_but_with_what_has_read_a_write_parked_in_another,
}

/// Nobody has customer 4711, and no account may hold more than 1000.
fn shop(kind: Kind) -> Place {
    Place::new(
        kind,
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL);
         CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, note VARCHAR(20),
                              FOREIGN KEY (customer_id) REFERENCES customers (id));
         CREATE TABLE order_lines (order_id INTEGER NOT NULL, line INTEGER NOT NULL, quantity INTEGER NOT NULL,
                                   PRIMARY KEY (order_id, line),
                                   FOREIGN KEY (order_id) REFERENCES orders (id));
         CREATE TABLE parcels (id INTEGER PRIMARY KEY, order_id INTEGER, line INTEGER, note VARCHAR(20),
                               FOREIGN KEY (order_id, line) REFERENCES order_lines (order_id, line));
         CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance + 0 <= 1000));
         INSERT INTO customers VALUES (1, 'Ada');
         INSERT INTO orders VALUES (1, 1, NULL);
         INSERT INTO parcels VALUES (1, NULL, NULL, NULL);
         INSERT INTO accounts VALUES (1, 100), (2, 100), (3, 100);",
    )
}

const FOUND: &str = "INSERT INTO customers VALUES (4711, 'found')";

fn order_of_nobody(store: &Store, id: i32) {
    store.session(|s| s.insert_new(("orders", id), [("customer_id", 4711.into())])).unwrap();
}

/// A session that has read one row and changes another one.
fn pay(store: &Store, read: (&str, i32), account: i32) {
    store
        .session(|s| {
            s.row(read)?;
            s.inc(("accounts", account), "balance", -10)
        })
        .unwrap();
}

fn balances(place: &Place) -> String {
    place.listed("SELECT CAST(balance AS CHAR(10)) FROM accounts ORDER BY id").replace(' ', "")
}

fn orders(place: &Place) -> String {
    place.at_origin("SELECT count(*) FROM orders").unwrap()
}

/// A decision that is refused; why.
fn refused(store: &Store, words: &[&str]) -> String {
    store.parked(words).unwrap_err().to_string()
}

fn what_has_read_a_rejected_write_is_parked_behind_it_and_applied_with_it(kind: Kind) {
    let place = shop(kind);
    let store = place.open();
    store.pause().unwrap();
    order_of_nobody(&store, 2);
    pay(&store, ("orders", 2), 1);
    // What has to do with neither goes its way.
    pay(&store, ("orders", 1), 2);
    store.resume().unwrap();
    store.drain().unwrap();
    assert_eq!(place.parked(), "1,2<1");
    assert_eq!(balances(&place), "100,90,100");
    // Also once they are parked; and so on.
    pay(&store, ("accounts", 1), 3);
    order_of_nobody(&store, 3);
    store.drain().unwrap();
    assert_eq!(place.parked(), "1,2<1,4<2,5");
    let seen: i64 = store.read(("accounts", 3)).unwrap().unwrap().get("balance").unwrap();
    assert_eq!(seen, 90, "reads go on showing it");

    let told = refused(&store, &["RETRY", "4"]);
    assert!(told.contains("builds on the rejected write 2: decide on that one first"), "{told}");
    place.sql(FOUND);
    assert_eq!(store.parked(&["RETRY", "1"]).unwrap()["applied"], 3);
    assert_eq!((place.parked().as_str(), balances(&place).as_str()), ("5", "90,90,90"));
    assert_eq!(store.parked(&["RETRY", "ALL"]).unwrap()["applied"], 1);
    // Nothing of it is left over.
    pay(&store, ("orders", 2), 1);
    store.drain().unwrap();
    assert_eq!((place.parked().as_str(), balances(&place).as_str()), ("", "80,90,90"));
    store.close().unwrap();
}

/// The negative control of the tests above and below.
#[test]
fn without_the_word_of_what_it_has_read_a_session_goes_its_way() {
    let place = shop(Kind::Sqlite);
    let options = place.options().with(|settings| settings.unsafe_flags.no_builds_on = true);
    let store = options.open().unwrap();
    store.pause().unwrap();
    order_of_nobody(&store, 2);
    pay(&store, ("orders", 2), 1);
    store.session(|s| s.insert_new(("order_lines", (2, 1)), [("quantity", 5.into())])).unwrap();
    store.resume().unwrap();
    store.drain().unwrap();
    assert_eq!((place.parked().as_str(), balances(&place).as_str()), ("1,3", "90,100,100"));
    store.close().unwrap();
}

fn what_it_has_read_is_known_after_a_restart(kind: Kind) {
    let place = shop(kind);
    // Undecided at the end of the first run, in the journal.
    let options = || place.options();
    let store = options().policy("on-reject=stop").open().unwrap();
    order_of_nobody(&store, 2);
    pay(&store, ("orders", 2), 1);
    store.session(|s| s.insert_new(("order_lines", (2, 1)), [("quantity", 5.into())])).unwrap();
    store.close().unwrap_err();
    assert_eq!(place.parked(), "");
    let store = options().open().unwrap();
    store.drain().unwrap();
    assert_eq!((place.parked().as_str(), balances(&place).as_str()), ("1,2<1,3<1", "100,100,100"));
    store.close().unwrap();
    // Parked at the end of the second run, at the origin.
    let store = options().open().unwrap();
    assert!(refused(&store, &["RETRY", "2"]).contains("rejected write 1"));
    pay(&store, ("accounts", 1), 2);
    store.session(|s| s.insert_new(("order_lines", (2, 2)), [("quantity", 5.into())])).unwrap();
    store.drain().unwrap();
    assert_eq!(place.parked(), "1,2<1,3<1,4<2,5<1");
    place.sql(FOUND);
    assert_eq!(store.parked(&["RETRY", "1"]).unwrap()["applied"], 5);
    assert_eq!((place.parked().as_str(), balances(&place).as_str()), ("", "90,90,100"));
    store.close().unwrap();
}

fn once_a_rejected_write_is_given_up_what_has_read_it_is_decided_on_by_itself(kind: Kind) {
    let place = shop(kind);
    let store = place.open();
    order_of_nobody(&store, 2);
    pay(&store, ("orders", 2), 1);
    pay(&store, ("orders", 2), 2);
    store.drain().unwrap();
    assert_eq!(place.parked(), "1,2<1,3<1");
    store.parked(&["SKIP", "1"]).unwrap();
    assert_eq!(store.read(("orders", 2)).unwrap(), None);
    assert_eq!(store.parked(&["RETRY", "3"]).unwrap()["applied"], 1);
    assert_eq!((place.parked().as_str(), balances(&place).as_str()), ("2<1", "100,90,100"));
    store.parked(&["SKIP", "2"]).unwrap();
    // What reads the rows now builds on nothing that is parked.
    pay(&store, ("accounts", 1), 3);
    store.drain().unwrap();
    assert_eq!((place.parked().as_str(), balances(&place).as_str()), ("", "100,90,90"));
    store.close().unwrap();
}

fn once_a_rejected_write_is_edited_what_has_read_it_goes_along(kind: Kind) {
    let place = shop(kind);
    let store = place.open();
    order_of_nobody(&store, 2);
    pay(&store, ("orders", 2), 1);
    store.drain().unwrap();
    let shown = store.parked(&["SHOW", "1"]).unwrap()["payload"].to_string();
    let mended = shown.replace("4711", "1");
    assert_eq!(store.parked(&["EDIT", "1", &mended]).unwrap()["applied"], 2);
    assert_eq!((place.parked().as_str(), balances(&place).as_str()), ("", "90,100,100"));

    // What builds on something itself is shown with that, and taken in that form.
    store.session(|s| s.inc(("accounts", 2), "balance", 5_000)).unwrap();
    pay(&store, ("accounts", 2), 3);
    store.drain().unwrap();
    let shown = store.parked(&["SHOW", "4"]).unwrap();
    assert_eq!(shown["payload"]["builds_on"], serde_json::json!([3]));
    store.parked(&["SKIP", "3"]).unwrap();
    let mended = shown["payload"].to_string().replace("-10", "-20");
    assert_eq!(store.parked(&["EDIT", "4", &mended]).unwrap()["applied"], 1);
    assert_eq!((place.parked().as_str(), balances(&place).as_str()), ("", "90,100,80"));
    store.close().unwrap();
}

fn line(store: &Store, order: i32, line: i32) -> Result<(), Error> {
    store.session(|s| s.insert_new(("order_lines", (order, line)), [("quantity", 5.into())]))
}

fn rows_that_refer_to_a_rejected_new_row_are_parked_behind_it(kind: Kind) {
    let place = shop(kind);
    let store = place.open();
    store.pause().unwrap();
    order_of_nobody(&store, 2);
    line(&store, 2, 1).unwrap();
    // Without having read anything; by a key of several columns.
    let parcel = [("order_id", 2.into()), ("line", 1.into())];
    store.session(|s| s.insert_new(("parcels", 2), parcel.clone())).unwrap();
    line(&store, 1, 1).unwrap();
    store.resume().unwrap();
    store.drain().unwrap();
    assert_eq!(place.parked(), "1,2<1,3<2");
    assert_eq!(place.at_origin("SELECT order_id FROM order_lines").as_deref(), Some("1"));
    line(&store, 2, 2).unwrap();
    store.drain().unwrap();
    assert_eq!(place.parked(), "1,2<1,3<2,5<1");

    place.sql(FOUND);
    assert_eq!(store.parked(&["RETRY", "1"]).unwrap()["applied"], 4);
    let lines = place.at_origin("SELECT count(*) FROM order_lines");
    assert_eq!((place.parked().as_str(), lines.as_deref()), ("", Some("3")));
    assert_eq!(place.at_origin("SELECT line FROM parcels WHERE id = 2").as_deref(), Some("1"));
    store.close().unwrap();
}

fn a_row_that_comes_to_refer_to_a_rejected_new_row_is_parked_behind_it(kind: Kind) {
    let place = shop(kind);
    let store = place.open();
    line(&store, 1, 1).unwrap();
    let refer = |to: (i32, i32)| {
        let columns = [("order_id", to.0.into()), ("line", to.1.into())];
        store.session(|s| s.set(("parcels", 1), columns.clone())).unwrap();
    };
    refer((1, 1));
    order_of_nobody(&store, 2);
    line(&store, 2, 1).unwrap();
    refer((2, 1));
    // A change that refers to nothing new.
    store.session(|s| s.set(("parcels", 1), [("note", "x".into())])).unwrap();
    store.session(|s| s.set(("orders", 1), [("note", "x".into())])).unwrap();
    store.drain().unwrap();
    assert_eq!(place.parked(), "3,4<3,5<4,6<5");
    assert_eq!(place.at_origin("SELECT note FROM orders WHERE id = 1").as_deref(), Some("x"));
    // Given up, the row refers to nothing.
    for id in ["6", "5", "4", "3"] {
        store.parked(&["SKIP", id]).unwrap();
    }
    refer((1, 1));
    store.drain().unwrap();
    assert_eq!((place.parked().as_str(), orders(&place).as_str()), ("", "1"));
    store.close().unwrap();
}

fn what_refers_to_a_row_that_the_origin_has_goes_though_a_change_of_that_was_rejected(kind: Kind) {
    let place = shop(kind);
    let store = place.open();
    store.session(|s| s.set(("orders", 1), [("customer_id", 4711.into())])).unwrap();
    line(&store, 1, 1).unwrap();
    store.drain().unwrap();
    assert_eq!(place.parked(), "1");
    // A new row that the origin has taken is as good as any other, though a later change of it is parked.
    store.session(|s| s.insert_new(("orders", 2), [("customer_id", 1.into())])).unwrap();
    store.session(|s| s.set(("orders", 2), [("customer_id", 4711.into())])).unwrap();
    line(&store, 2, 1).unwrap();
    store.drain().unwrap();
    assert_eq!(place.parked(), "1,4");
    assert_eq!(place.at_origin("SELECT count(*) FROM order_lines").as_deref(), Some("2"));
    store.close().unwrap();
}

fn what_is_told_to_a_client_that_waits_for_the_origin(kind: Kind) {
    let place = shop(kind);
    let store = place.open();
    order_of_nobody(&store, 2);
    store.drain().unwrap();
    store.change_policy(&["policy=write-through"]).unwrap();
    let waits = store.session(|s| {
        s.row(("orders", 2))?;
        s.inc(("accounts", 1), "balance", -10)
    });
    let told = waits.unwrap_err().to_string();
    assert!(told.contains("builds on the rejected write 1"), "{told}");
    let told = line(&store, 2, 1).unwrap_err().to_string();
    assert!(told.contains("builds on the rejected write 1"), "{told}");
    line(&store, 1, 1).unwrap();
    assert_eq!((place.parked().as_str(), balances(&place).as_str()), ("1", "100,100,100"));
    store.close().unwrap();
}

fn a_domain_goes_on_but_with_what_has_read_a_write_parked_in_another(kind: Kind) {
    let place = shop(kind);
    let money = DomainSettings::of_tables("money", ["accounts"]);
    let store = place.options().domain(money).open().unwrap();
    order_of_nobody(&store, 2);
    store.drain().unwrap();
    pay(&store, ("orders", 2), 1);
    pay(&store, ("orders", 1), 2);
    store.drain().unwrap();
    assert_eq!((place.parked().as_str(), balances(&place).as_str()), ("1,2<1", "100,90,100"));
    place.sql(FOUND);
    assert_eq!(store.parked(&["RETRY", "1"]).unwrap()["applied"], 2);
    assert_eq!((place.parked().as_str(), balances(&place).as_str()), ("", "90,90,100"));
    store.close().unwrap();
}
