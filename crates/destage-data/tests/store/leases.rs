//! Leases: who comes too late tries again, and a late holder does no harm. One thread plays all sessions, one inside the
//! other, so that each order of events is the one written here.

use crate::support::{Kind, bank, on_each_origin};
use destage_data::store::{ErrorKind, Key, Session, Store};
use destage_testkit::history::sessions;
use std::collections::BTreeMap;
use std::time::Duration;

on_each_origin! {
    a_session_whose_reads_were_overwritten_runs_again,
    what_only_reads_is_of_one_moment_too,
    an_x_lease_keeps_other_sessions_off_until_it_ends,
    a_late_holder_is_fenced,
    sessions_are_serializable_and_without_leases_they_are_not,
}

fn balance(s: &mut Session<'_>, id: i64) -> Result<i64, destage_data::store::Error> {
    s.row(("accounts", id))?.get("balance")
}

fn a_session_whose_reads_were_overwritten_runs_again(kind: Kind) {
    let place = bank(kind, 2);
    let store = place.open();
    let mut runs = 0;
    let seen = store
        .session(|s| {
            runs += 1;
            let seen = balance(s, 1)?;
            if runs == 1 {
                store.session(|other| other.inc(("accounts", 1), "balance", 5))?;
            }
            s.set(("accounts", 2), [("balance", seen.into())])?;
            Ok(seen)
        })
        .unwrap();
    assert_eq!((runs, seen), (2, 105));
    let copied: i64 = store.read(("accounts", 2)).unwrap().unwrap().get("balance").unwrap();
    assert_eq!(copied, 105);
    store.close().unwrap();
}

fn what_only_reads_is_of_one_moment_too(kind: Kind) {
    let place = bank(kind, 2);
    let store = place.open();
    let mut runs = 0;
    let sum = store
        .session(|s| {
            runs += 1;
            let first = balance(s, 1)?;
            if runs == 1 {
                store.session(|other| {
                    other.inc(("accounts", 1), "balance", -5)?;
                    other.inc(("accounts", 2), "balance", 5)
                })?;
            }
            Ok(first + balance(s, 2)?)
        })
        .unwrap();
    assert_eq!((runs, sum), (2, 200));
    store.close().unwrap();
}

fn an_x_lease_keeps_other_sessions_off_until_it_ends(kind: Kind) {
    let place = bank(kind, 2);
    let store = place
        .options()
        .retry_timeout(Duration::ZERO)
        .lease(Duration::from_secs(60))
        .open()
        .unwrap();
    let key = [Key::from(("accounts", 1))];
    store
        .session(|s| {
            s.read_to_write(&key)?;
            let read = store.session(|other| balance(other, 1));
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Conflict, "S beside X");
            let write = store.session(|other| {
                other.inc(("accounts", 1), "balance", 1).and_then(|()| {
                    // Under leases, so that it does not wait as single commands and plain transactions do.
                    balance(other, 2).map(drop)
                })
            });
            assert_eq!(write.unwrap_err().kind(), ErrorKind::Conflict, "X beside X");
            assert_eq!(store.session(|other| balance(other, 2))?, 100, "other rows");
            s.inc(("accounts", 1), "balance", 1)
        })
        .unwrap();
    assert_eq!(store.session(|s| balance(s, 1)).unwrap(), 101);
    store.close().unwrap();
}

fn a_late_holder_is_fenced(kind: Kind) {
    let place = bank(kind, 1);
    let store = place.options().lease(Duration::from_millis(50)).open().unwrap();
    let (mut runs, mut is_overtaken) = (0, false);
    store
        .session(|s| {
            runs += 1;
            let seen = s.read_to_write(&[Key::from(("accounts", 1))])?;
            let seen: i64 = seen[0].as_ref().expect("the account exists").get("balance")?;
            if !std::mem::replace(&mut is_overtaken, true) {
                // Done as soon as the lease has ended.
                store.session(|other| {
                    let now = balance(other, 1)?;
                    other.set(("accounts", 1), [("balance", (now + 1_000).into())])
                })?;
            }
            s.set(("accounts", 1), [("balance", (seen + 1).into())])
        })
        .unwrap();
    let balance: i64 = store.read(("accounts", 1)).unwrap().unwrap().get("balance").unwrap();
    assert_eq!(balance, 1_101, "both took effect, after {runs} runs");
    assert!(runs >= 2);
    store.close().unwrap();
}

/// Two sessions each read both accounts and change one, at the same time; whether one order explains what they saw.
fn write_skew(store: &Store) -> Result<sessions::Summary, String> {
    fn look(s: &mut Session<'_>) -> Result<BTreeMap<u64, u64>, destage_data::store::Error> {
        (1..=2).map(|id| Ok((id, s.row(("accounts", id))?.get("version")?))).collect()
    }
    fn change(
        s: &mut Session<'_>,
        id: u64,
        version: u64,
    ) -> Result<(), destage_data::store::Error> {
        s.set(("accounts", id), [("version", version.into())])
    }
    let session = |times: [u64; 2], reads, write| sessions::Session {
        begun: times[0],
        ended: Some(times[1]),
        reads,
        writes: BTreeMap::from([write]),
    };
    let mut inner = None;
    let outer = store.session(|s| {
        let seen = look(s)?;
        if inner.is_none() {
            inner = Some(store.session(|other| {
                let seen = look(other)?;
                change(other, 2, 72)?;
                Ok(seen)
            })?);
        }
        change(s, 1, 71)?;
        Ok(seen)
    });
    let inner = session([2, 3], inner.expect("it has run"), (2, 72));
    let outer = session([1, 4], outer.map_err(|error| error.to_string())?, (1, 71));
    sessions::check(&[outer, inner], &BTreeMap::from([(1, 71), (2, 72)]))
}

fn sessions_are_serializable_and_without_leases_they_are_not(kind: Kind) {
    let place = bank(kind, 2);
    let store = place.open();
    assert_eq!(write_skew(&store).map(|summary| summary.sessions), Ok(2));
    store.close().unwrap();

    let place = bank(kind, 2);
    let store =
        place.options().with(|settings| settings.unsafe_flags.no_leases = true).open().unwrap();
    let skewed = write_skew(&store);
    assert!(skewed.is_err(), "the control was not caught: {skewed:?}");
    store.close().unwrap();
}
