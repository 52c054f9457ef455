//! Cache entries: never older than what was acknowledged, whatever the origin lacks.

use crate::support::{Kind, Place, bank, on_each_origin};
use destage_data::settings::DomainSettings;
use destage_data::store::{
    ColumnChange, Computed, Entries, Entry, Error, Merge, Op, RowChange, Store,
};
use rusqlite::Connection;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

on_each_origin! {
    entries_over_several_ordering_domains_lack_no_write,
}

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

/// What all accounts hold together. Whenever the mapping is told of a change, somebody reads the entry meanwhile.
struct Total {
    file: PathBuf,
    readers: Arc<Mutex<Option<Sender<Sender<()>>>>>,
}

impl Entry for Total {
    type Value = i64;

    fn compute(&self, _: &str) -> Result<Computed<i64>, Error> {
        let origin = Connection::open(&self.file).map_err(Error::abort_with)?;
        let query =
            "SELECT (SELECT sum(balance) FROM accounts), (SELECT max(seq) FROM destage_watermark)";
        let found = origin.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?)));
        let (total, seq) = found.map_err(Error::abort_with)?;
        Ok(Computed::as_of(total, seq))
    }

    fn mapping(&self, _: &RowChange<'_>) -> Vec<String> {
        if let Some(reader) = &*self.readers.lock().unwrap() {
            let (done, is_done) = channel();
            reader.send(done).unwrap();
            // One who has seen a part of the group waits for this thread. Whoever reads later sees all of it.
            let _ = is_done.recv_timeout(Duration::from_secs(1));
        }
        vec!["total".to_owned()]
    }

    fn merge(&self, _: &str, total: &mut i64, change: &RowChange<'_>) -> Merge {
        let Some(ColumnChange::By(amount)) = change.column("balance") else { return Merge::Drop };
        *total += std::str::from_utf8(amount).unwrap().parse::<i64>().unwrap();
        Merge::Merged
    }
}

#[test]
fn an_entry_shows_all_that_a_session_changes_or_none_of_it() {
    let place = bank(Kind::Sqlite, 2);
    let store = place.open();
    let readers = Arc::new(Mutex::new(None));
    let total = Total { file: place.file().to_owned(), readers: readers.clone() };
    let entries = store.entries(total).unwrap();
    assert_eq!(entries.get("total").unwrap(), 200);
    let (asks, asked) = channel::<Sender<()>>();
    *readers.lock().unwrap() = Some(asks);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = Vec::new();
            for done in asked {
                seen.push(entries.get("total").unwrap());
                // Whoever asked may not wait any more.
                let _ = done.send(());
            }
            seen
        });
        let moved = store.session(|s| {
            s.inc(("accounts", 1), "balance", -10)?;
            s.inc(("accounts", 2), "balance", 10)
        });
        *readers.lock().unwrap() = None;
        assert_eq!(reader.join().unwrap(), [200, 200], "for each change of the group");
        moved.unwrap();
    });
    assert_eq!(entries.get("total").unwrap(), 200);
    drop(entries);
    store.close().unwrap();
}

/// Followers whose mapping panics at one of them, and whose merge at another one.
struct Panicking(Followers);

impl Entry for Panicking {
    type Value = i64;

    fn compute(&self, name: &str) -> Result<Computed<i64>, Error> {
        self.0.compute(name)
    }

    fn mapping(&self, change: &RowChange<'_>) -> Vec<String> {
        assert_ne!(change.key("follower"), "13", "the mapping panics");
        self.0.mapping(change)
    }

    fn merge(&self, name: &str, count: &mut i64, change: &RowChange<'_>) -> Merge {
        assert_ne!(change.key("follower"), "14", "the merge panics");
        self.0.merge(name, count, change)
    }
}

#[test]
fn a_mapping_or_merge_that_panics_ends_neither_the_store_nor_makes_an_entry_old() {
    let place = Place::new(Kind::Sqlite, FOLLOWS);
    let store = place.open();
    let (file, way) = (place.file().to_owned(), Way::Merged);
    let followers = Followers { file, way, computed: AtomicU64::new(0) };
    let entries = store.entries(Panicking(followers)).unwrap();
    for (follower, count) in [(12, 3), (13, 4), (14, 5), (15, 6)] {
        assert_eq!(entries.get("7").unwrap(), count - 1);
        follow(&store, follower);
        assert_eq!(entries.get("7").unwrap(), count, "after follower {follower}");
    }
    // Nobody knows which entries one changes at which the mapping panics: whoever has read any runs again.
    let mut runs = 0;
    let session = store.session(|s| {
        runs += 1;
        let seen = entries.get_in(s, "8")?;
        if runs == 1 {
            store.session(|s| s.insert(("follows", (13, 8)), []))?;
        }
        s.insert_new(("follows", (seen, 99)), [])?;
        Ok(seen)
    });
    assert_eq!((session.unwrap(), runs), (1, 2));
    drop(entries);
    store.close().unwrap();
}

/// The sum over a table whose rows are in several ordering domains, with all watermarks or with the first one only.
struct Sum {
    kind: Kind,
    place: Arc<Place>,
    is_of_each: bool,
}

impl Entry for Sum {
    type Value = i64;

    fn compute(&self, _: &str) -> Result<Computed<i64>, Error> {
        let marks = match self.kind {
            Kind::Postgres => "string_agg(concat(domain, ':', seq), ',')",
            Kind::Sqlite | Kind::Mariadb => "group_concat(concat(domain, ':', seq))",
        };
        let found = self.place.listed(&format!(
            "SELECT concat((SELECT sum(n) FROM counts), ';', (SELECT {marks} FROM destage_watermark))"
        ));
        let (sum, marks) = found.split_once(';').unwrap();
        let marks: Vec<(u16, u64)> = marks
            .split(',')
            .map(|mark| mark.split_once(':').unwrap())
            .map(|(domain, seq)| (domain.parse().unwrap(), seq.parse().unwrap()))
            .collect();
        let sum = sum.parse().unwrap();
        Ok(if self.is_of_each {
            Computed::as_of_each(sum, marks)
        } else {
            Computed::as_of(sum, marks[0].1)
        })
    }

    fn mapping(&self, change: &RowChange<'_>) -> Vec<String> {
        change.column("n").map(|_| "sum".to_owned()).into_iter().collect()
    }

    fn merge(&self, _: &str, sum: &mut i64, change: &RowChange<'_>) -> Merge {
        let Some(ColumnChange::By(amount)) = change.column("n") else { return Merge::Drop };
        *sum += std::str::from_utf8(amount).unwrap().parse::<i64>().unwrap();
        Merge::Merged
    }
}

fn entries_over_several_ordering_domains_lack_no_write(kind: Kind) {
    const ROWS: i64 = 4;
    const ADDED: i64 = 60;
    let place = Arc::new(Place::new(
        kind,
        "CREATE TABLE counts (id INTEGER PRIMARY KEY, n INTEGER NOT NULL);
         INSERT INTO counts VALUES (0, 0), (1, 0), (2, 0), (3, 0)",
    ));
    let open = || {
        let by_id = DomainSettings::by_columns("by_id", [("counts", "id")], 4);
        place.options().with(|settings| settings.domains = vec![by_id]).open().unwrap()
    };
    let sum = |is_of_each| Sum { kind, place: place.clone(), is_of_each };
    let store = open();
    let one = store.entries(sum(false)).unwrap();
    let refused = one.get("sum").unwrap_err().to_string();
    assert!(refused.contains("as_of_each"), "{refused}");
    drop(one);
    let entries = store.entries(sum(true)).unwrap();
    let added = AtomicI64::new(0);
    thread::scope(|scope| {
        for id in 0..ROWS {
            let (store, entries, added) = (&store, &entries, &added);
            scope.spawn(move || {
                for n in 1..=ADDED {
                    store.session(|s| s.inc(("counts", id), "n", 1)).unwrap();
                    let least = added.fetch_add(1, Ordering::SeqCst) + 1;
                    let found = entries.get("sum").unwrap();
                    assert!(found >= least, "{found} of {least}");
                    if n % 5 == id {
                        // Computed again while the domains stand at different writes.
                        store.invalidate(&[("counts", id).into()]).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(entries.get("sum").unwrap(), ROWS * ADDED);
    // A row set to a value, of which nobody knows what it was, drops the entry.
    store.pause().unwrap();
    store.session(|s| s.set(("counts", 0), [("n", 1000.into())])).unwrap();
    drop(entries);
    drop(store);

    // As after a crash: a part is at the origin, the rest in the journal.
    let store = open();
    let entries = store.entries(sum(true)).unwrap();
    assert_eq!(entries.get("sum").unwrap(), 1000 + (ROWS - 1) * ADDED);
    store.drain().unwrap();
    let all = place.at_origin("SELECT sum(n) FROM counts").unwrap();
    assert_eq!(all, (1000 + (ROWS - 1) * ADDED).to_string());
    drop(entries);
    store.close().unwrap();
}
