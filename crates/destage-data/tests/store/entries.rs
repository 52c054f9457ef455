//! Cache entries: never older than what was acknowledged, whatever the origin lacks.

use crate::support::{Kind, Place};
use destage_data::store::{Computed, Entries, Entry, Error, Merge, Op, RowChange, Store};
use rusqlite::Connection;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const FOLLOWS: &str = "
CREATE TABLE follows (follower INTEGER, followee INTEGER, PRIMARY KEY (follower, followee));
INSERT INTO follows VALUES (1, 7), (2, 7);
";

/// How an entry is computed and kept.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// With its watermark: what the origin lacks is merged.
    Merged,
    /// Without: what matters is destaged first.
    Destaged,
    /// The control: what the origin holds, whatever is buffered.
    Blind,
}

/// How many follow someone, by the name of their number.
struct Followers {
    file: PathBuf,
    way: Way,
    computed: AtomicU64,
}

impl Entry for Followers {
    type Value = i64;

    fn compute(&self, name: &str) -> Result<Computed<i64>, Error> {
        self.computed.fetch_add(1, Ordering::SeqCst);
        let origin = Connection::open(&self.file).map_err(Error::abort_with)?;
        let (count, seq): (i64, u64) = origin
            .query_row(
                "SELECT (SELECT count(*) FROM follows WHERE followee = ?1), (SELECT max(seq) FROM destage_watermark)",
                [name],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .map_err(Error::abort_with)?;
        Ok(match self.way {
            Way::Merged => Computed::as_of(count, seq),
            Way::Destaged | Way::Blind => Computed::after_destaging(count),
        })
    }

    fn mapping(&self, change: &RowChange<'_>) -> Vec<String> {
        match (self.way, change.op()) {
            (Way::Blind, _) | (_, Op::Update) => Vec::new(),
            _ => vec![change.key("followee").to_owned()],
        }
    }

    fn merge(&self, _: &str, count: &mut i64, change: &RowChange<'_>) -> Merge {
        *count += if change.op() == Op::Insert { 1 } else { -1 };
        Merge::Merged
    }
}

fn followers<'s>(store: &'s Store, place: &Place, way: Way) -> Entries<'s, Followers> {
    let file = place.file().to_owned();
    store.entries(Followers { file, way, computed: AtomicU64::new(0) }).unwrap()
}

fn follow(store: &Store, follower: i64) {
    store.session(|s| s.insert(("follows", (follower, 7)), [])).unwrap();
}

#[test]
fn a_miss_merges_what_the_origin_lacks_and_hits_follow_the_changes() {
    let place = Place::new(Kind::Sqlite, FOLLOWS);
    let store = place.open();
    store.pause().unwrap();
    follow(&store, 3);
    let entries = followers(&store, &place, Way::Merged);
    assert_eq!(entries.get("7").unwrap(), 3, "buffered before anyone asked");
    follow(&store, 4);
    store.session(|s| s.delete(("follows", (1, 7)))).unwrap();
    assert!(entries.is_cached("7"));
    assert_eq!(entries.get("7").unwrap(), 3);
    store.resume().unwrap();
    store.drain().unwrap();
    assert_eq!(entries.get("7").unwrap(), 3, "nothing counts twice");
    let again = followers(&store, &place, Way::Merged);
    assert_eq!(again.get("7").unwrap(), 3);
    drop((entries, again));
    store.close().unwrap();
}

#[test]
fn a_miss_destages_what_matters_where_the_watermark_is_not_told() {
    let place = Place::new(Kind::Sqlite, FOLLOWS);
    let store = place.open();
    let entries = followers(&store, &place, Way::Destaged);
    for follower in 3..10 {
        follow(&store, follower);
        assert_eq!(entries.get("7").unwrap(), follower);
        assert_eq!(entries.get("8").unwrap(), 0);
    }
    drop(entries);
    store.close().unwrap();
}

#[test]
fn an_entry_that_knows_of_no_changes_is_found_to_be_old() {
    let place = Place::new(Kind::Sqlite, FOLLOWS);
    let store = place.open();
    store.pause().unwrap();
    let entries = followers(&store, &place, Way::Blind);
    follow(&store, 3);
    assert_eq!(entries.get("7").unwrap(), 2, "the control: without a mapping the write is missed");
    store.resume().unwrap();
    drop(entries);
    store.close().unwrap();
}

#[test]
fn an_entry_is_never_older_than_what_was_acknowledged() {
    for (way, policy) in [
        (Way::Merged, "policy=write-back"),
        (Way::Merged, "policy=write-through"),
        (Way::Destaged, "policy=write-back"),
    ] {
        let place = Place::new(Kind::Sqlite, FOLLOWS);
        let store = place.options().policy(policy).open().unwrap();
        let entries = followers(&store, &place, way);
        let (begun, done) = (AtomicU64::new(2), AtomicU64::new(2));
        thread::scope(|scope| {
            for thread in 0..2 {
                let (store, begun, done) = (&store, &begun, &done);
                scope.spawn(move || {
                    for follower in 0..40 {
                        begun.fetch_add(1, Ordering::SeqCst);
                        follow(store, 100 + thread * 100 + follower);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..40 {
                let least = done.load(Ordering::SeqCst);
                let found = entries.get("7").unwrap().cast_unsigned();
                let most = begun.load(Ordering::SeqCst);
                assert!((least..=most).contains(&found), "{found} is not in {least}..={most}");
            }
        });
        assert_eq!(entries.get("7").unwrap(), 82);
        drop(entries);
        store.close().unwrap();
    }
}

#[test]
fn a_session_that_used_an_entry_runs_again_when_it_changes() {
    let place = Place::new(Kind::Sqlite, FOLLOWS);
    let store = place.open();
    let entries = followers(&store, &place, Way::Merged);
    let mut runs = 0;
    let seen = store
        .session(|s| {
            runs += 1;
            let seen = entries.get_in(s, "7")?;
            if runs == 1 {
                follow(&store, 3);
            }
            s.insert_new(("follows", (seen, 99)), [])?;
            Ok(seen)
        })
        .unwrap();
    assert_eq!((runs, seen), (2, 3));
    store.invalidate(&["follows:1:7".into()]).unwrap();
    assert!(!entries.is_cached("7"), "nobody knows what else changed");
    assert_eq!(entries.get("7").unwrap(), 3);
    drop(entries);
    store.close().unwrap();
}
