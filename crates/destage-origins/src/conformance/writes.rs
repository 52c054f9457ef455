//! Batches, and the watermarks that move with them.

use super::*;

/// What a row counts after a batch of two increments was sent twice.
pub(super) fn count_of_repeated_batch(checked: &Checked<'_>, ignored: bool) -> i64 {
    let mut owner = checked.owner();
    owner.ignored = ignored;
    let group = checked.increment(1);
    for _ in 0..2 {
        owner.apply(0, &[(1, &group), (2, &group)]).expect("it lands");
    }
    checked.count(1)
}

pub(super) fn lands_once(checked: &Checked<'_>) {
    assert_eq!(count_of_repeated_batch(checked, false), 2);
    let mut owner = Owned::taken_over(checked, 1);
    let group = checked.increment(1);
    let applied = owner.apply(0, &[(1, &group), (2, &group)]).expect("it has landed");
    assert_eq!(applied, Applied::default());
    let applied = owner.apply(2, &[(3, &group), (4, &group)]).expect("it lands");
    assert!(applied.changes == 2 && applied.rows > 0, "{applied:?}");
    assert_eq!((checked.count(1), owner.watermark(FIRST)), (4, 4));
}

pub(super) fn landed_in_part(checked: &Checked<'_>) {
    let mut owner = checked.owner();
    let group = checked.increment(1);
    owner.apply(0, &[(1, &group), (4, &group)]).expect("it lands");
    let longer = [(1, &group[..]), (4, &group), (5, &group), (9, &group)];
    owner.apply(0, &longer).expect("the rest lands");
    assert_eq!((checked.count(1), owner.watermark(FIRST)), (4, 9));
    owner.apply(0, &longer[..2]).expect("it has landed, and what is behind it, too");
    assert_eq!((checked.count(1), owner.watermark(FIRST)), (4, 9));
}

pub(super) fn watermark_elsewhere(checked: &Checked<'_>) {
    let mut owner = checked.owner();
    let group = checked.increment(1);
    owner.apply(0, &[(2, &group), (3, &group)]).expect("it lands");
    for elsewhere in [2, 5] {
        checked.store.set_watermark(FIRST, Lsn(elsewhere));
        let batch = [(4, &group[..]), (7, &group)];
        assert_eq!(checked.fault(owner.apply(3, &batch)), Some(Fault::Failed), "at {elsewhere}");
        let passed_by = owner.park(&[mark(FIRST, 3, 7)], Some(&parked_group(7, None)));
        assert_eq!(checked.fault(passed_by), Some(Fault::Failed), "at {elsewhere}");
        assert_eq!((checked.count(1), owner.watermark(FIRST)), (2, elsewhere));
    }
    assert_eq!(owner.writer.parked(u64::MAX).expect("it is read"), []);
    let unclaimed = owner.apply_in(&[mark(DomainId(77), 0, 1)], &[(1, &group)]);
    assert_eq!(checked.fault(unclaimed), Some(Fault::Failed));
    assert_eq!(checked.count(1), 2);
}

pub(super) fn rejected(checked: &Checked<'_>) {
    let mut owner = checked.owner();
    let (good, bad, behind) = (checked.increment(1), checked.increment(99), checked.increment(2));
    let batch = [(1, &good[..]), (2, &bad), (3, &behind)];
    assert_eq!(checked.fault(owner.apply(0, &batch)), Some(Fault::Rejected));
    let at = owner.watermark(FIRST);
    assert!(at < 2, "the watermark has passed the rejected group: {at}");
    assert_eq!((checked.count(1), checked.count(2)), (at.cast_signed(), 0));
    if at == 0 {
        owner.apply(0, &batch[..1]).expect("the one before it lands");
    }
    assert_eq!(checked.fault(owner.apply(1, &batch[1..2])), Some(Fault::Rejected));
    owner.park(&[mark(FIRST, 1, 2)], None).expect("it is passed by");
    owner.apply(2, &batch[2..]).expect("the one behind it lands");
    assert_eq!((checked.count(1), checked.count(2), owner.watermark(FIRST)), (1, 1, 3));
}

pub(super) fn merged(checked: &Checked<'_>) {
    let mut owner = checked.owner();
    let (first, none) = (checked.insert(1, Some(b"5")), checked.insert(1, None));
    for group in [&first, &none] {
        assert_eq!(checked.fault(owner.apply(0, &[(1, group)])), Some(Fault::Rejected));
    }
    assert_eq!((checked.count(1), owner.watermark(FIRST)), (0, 0));
    let table = usize::from(checked.table().id.0);
    (owner.schema.tables[table].merges_new, owner.schema.merges_new) = (true, true);
    let (new, more) = (checked.insert(3, Some(b"7")), checked.increment(1));
    let batch = [(1, &first[..]), (2, &new), (3, &more), (4, &none)];
    for _ in 0..2 {
        owner.apply(0, &batch).expect("they are merged once");
        assert_eq!([1, 2, 3].map(|id| checked.count(id)), [6, 0, 7]);
    }
    assert_eq!(owner.watermark(FIRST), 4);
    // Also where it was made past the cache since the group was sent first, and where it is decided on later.
    let parked = [mark(FIRST, 4, 5)];
    owner.park(&parked, Some(&parked_group(5, None))).expect("it is parked");
    owner.unpark(&[5], &[(5, &checked.insert(2, Some(b"8")))]).expect("it is merged");
    assert_eq!([1, 2, 3].map(|id| checked.count(id)), [6, 8, 7]);
}

pub(super) fn several_domains(checked: &Checked<'_>) {
    let mut owner = checked.owner();
    let (one, two) = (checked.increment(1), checked.increment(2));
    let marks = [mark(FIRST, 0, 2), mark(OTHER, 0, 2)];
    let batch = [(1, &one[..]), (2, &two)];
    if !checked.store.has_transactions() {
        assert_eq!(checked.fault(owner.apply_in(&marks, &batch)), Some(Fault::Denied));
        return;
    }
    for _ in 0..2 {
        owner.apply_in(&marks, &batch).expect("it lands once");
    }
    let is_at = |owner: &mut Owned, domains: [u64; 2], counts: [i64; 2]| {
        assert_eq!([owner.watermark(FIRST), owner.watermark(OTHER)], domains);
        assert_eq!([checked.count(1), checked.count(2)], counts);
    };
    is_at(&mut owner, [2, 2], [1, 1]);
    // A group of it is refused.
    let bad = checked.increment(99);
    let refused = owner.apply_in(&[mark(FIRST, 2, 4), mark(OTHER, 2, 4)], &[(3, &one), (4, &bad)]);
    assert_eq!(checked.fault(refused), Some(Fault::Rejected));
    is_at(&mut owner, [2, 2], [1, 1]);
    // One watermark is elsewhere.
    for elsewhere in [1, 4] {
        checked.store.set_watermark(OTHER, Lsn(elsewhere));
        let marks = [mark(FIRST, 2, 4), mark(OTHER, 2, 4)];
        let failed = owner.apply_in(&marks, &[(3, &one), (4, &two)]);
        assert_eq!(checked.fault(failed), Some(Fault::Failed), "at {elsewhere}");
        let failed = owner.park(&marks, Some(&parked_group(4, None)));
        assert_eq!(checked.fault(failed), Some(Fault::Failed), "at {elsewhere}");
        is_at(&mut owner, [2, elsewhere], [1, 1]);
    }
    assert_eq!(owner.writer.parked(u64::MAX).expect("it is read"), []);
}

pub(super) fn malformed(checked: &Checked<'_>) {
    let mut owner = checked.owner();
    assert_eq!(checked.fault(owner.apply(0, &[(1, &[1, 2, 3])])), Some(Fault::Failed));
    assert_eq!(owner.watermark(FIRST), 0);
}
