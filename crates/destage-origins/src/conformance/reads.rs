//! Rows, each with the watermarks of the same snapshot.

use super::*;
use std::collections::BTreeSet;

/// So many groups are written while rows are read.
const GROUPS: u64 = 200;

/// Each group adds 1, and has the number that the row then holds.
pub(super) fn of_one_snapshot(checked: &Checked<'_>) {
    let mut owner = checked.owner();
    let group = checked.increment(1);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for lsn in 1..=GROUPS {
                owner.apply(lsn - 1, &[(lsn, &group)]).expect("it lands");
            }
        });
        let mut reader = checked.reader();
        let mut is_written = false;
        while !is_written {
            // One read comes after the last write, however fast those are.
            is_written = writing.is_finished();
            let (one, two) = (key(1), key(99));
            let snapshot = reader.fetch(checked.table(), &[&one, &two]).expect("it is read");
            assert_eq!(snapshot.rows.len(), 2);
            assert_eq!(snapshot.rows[1], None);
            let count = number(snapshot.rows[0].as_deref().expect("the row is there"));
            let seen = snapshot.seen(0, snapshot.watermark(FIRST));
            assert_eq!(Lsn(count.cast_unsigned()), seen, "the row holds the groups that it tells");
        }
        writing.join().expect("all is written");
    });
    assert_eq!(checked.count(1), GROUPS.cast_signed());
}

pub(super) fn in_order(checked: &Checked<'_>) {
    checked.owner().apply(0, &[(7, &checked.increment(2))]).expect("it lands");
    let mut reader = checked.reader();
    let mut scan = |after: Option<i64>, limit: usize| {
        let after = after.map(key);
        let found = reader.scan(checked.table(), after.as_deref(), limit);
        let (keys, watermarks) = found.expect("it is read");
        assert!(watermarks.contains(&(FIRST, Lsn(7))), "{watermarks:?}");
        keys
    };
    let keys = |ids: &[i64]| ids.iter().map(|id| key(*id).into()).collect::<Vec<Box<[u8]>>>();
    assert_eq!(scan(None, 100), keys(&ROWS), "10 is behind 2");
    assert_eq!(scan(None, 2), keys(&ROWS[..2]));
    assert_eq!(scan(Some(1), 1), keys(&ROWS[1..2]));
    assert_eq!(scan(Some(2), 100), keys(&ROWS[2..]));
    assert_eq!(scan(Some(10), 100), keys(&[]));
}

pub(super) fn reserved_keys(checked: &Checked<'_>) {
    let mut readers = [checked.reader(), checked.reader()];
    if checked.table().generated_key.is_none() {
        let reserved = readers[0].next_keys(checked.table(), 1);
        assert_eq!(checked.fault(reserved), Some(Fault::Denied));
        return;
    }
    let mut all = BTreeSet::new();
    for count in [1, 5, 2] {
        for reader in &mut readers {
            let keys = reader.next_keys(checked.table(), count).expect("they are reserved").keys;
            assert_eq!(keys.len(), count as usize, "{keys:?}");
            for key in keys {
                assert!(all.insert(key), "{key} was given before");
            }
        }
    }
}
