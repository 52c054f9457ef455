//! Groups that the origin has rejected.

use super::*;

pub(super) fn kept(checked: &Checked<'_>) {
    let mut owner = checked.owner();
    let (second, fourth) = (parked_group(2, None), parked_group(4, Some(2)));
    for _ in 0..2 {
        owner.park(&[mark(FIRST, 0, 2)], Some(&second)).expect("it is parked once");
    }
    owner.park(&[mark(FIRST, 2, 4)], Some(&fourth)).expect("it is parked");
    owner.park(&[mark(FIRST, 4, 5)], None).expect("it is passed by");
    assert_eq!(owner.watermark(FIRST), 5);
    assert_eq!(owner.writer.parked(u64::MAX).expect("they are read"), [second, fourth]);
}

pub(super) fn refused(checked: &Checked<'_>) {
    let mut owner = checked.owner();
    let parked = parked_group(2, Some(1));
    checked.store.refuse_parking(true);
    for _ in 0..2 {
        // Anything else would have the group tried as one that can be rejected, or the owner stop.
        let refused = owner.park(&[mark(FIRST, 0, 2)], Some(&parked));
        assert_eq!(checked.fault(refused), Some(Fault::Denied));
    }
    checked.store.refuse_parking(false);
    owner.park(&[mark(FIRST, 0, 2)], Some(&parked)).expect("it is parked");
    assert_eq!(owner.watermark(FIRST), 2);
    assert_eq!(owner.writer.parked(u64::MAX).expect("they are read"), [parked]);
}

pub(super) fn in_several_domains(checked: &Checked<'_>) {
    let mut owner = checked.owner();
    let marks = [mark(FIRST, 0, 3), mark(OTHER, 0, 3)];
    let parked = parked_group(3, None);
    if !checked.store.has_transactions() {
        assert_eq!(checked.fault(owner.park(&marks, Some(&parked))), Some(Fault::Denied));
        return;
    }
    for _ in 0..2 {
        owner.park(&marks, Some(&parked)).expect("it is parked once");
    }
    assert_eq!((owner.watermark(FIRST), owner.watermark(OTHER)), (3, 3));
    assert_eq!(owner.writer.parked(u64::MAX).expect("they are read"), [parked]);
}

/// An owner that has parked the first `count` groups.
fn with_parked<'c, 's>(checked: &'c Checked<'s>, count: u64) -> Owned {
    let mut owner = checked.owner();
    for lsn in 1..=count {
        let parked = parked_group(lsn, None);
        owner.park(&[mark(FIRST, lsn - 1, lsn)], Some(&parked)).expect("it is parked");
    }
    owner
}

fn left(owner: &mut Owned) -> Vec<u64> {
    owner
        .writer
        .parked(u64::MAX)
        .expect("they are read")
        .iter()
        .map(|parked| parked.lsn.0)
        .collect()
}

pub(super) fn taken_back(checked: &Checked<'_>) {
    let mut owner = with_parked(checked, 4);
    let group = checked.increment(1);
    owner.unpark(&[], &[]).expect("there is nothing to do");
    owner.unpark(&[1], &[]).expect("it is dropped");
    assert_eq!(left(&mut owner), [2, 3, 4]);
    owner.unpark(&[2, 3], &[(2, &group), (3, &group)]).expect("they are applied");
    assert_eq!((left(&mut owner), checked.count(1)), (vec![4], 2));
    // One of them is not there any more, or cannot be applied: nothing is done.
    let gone = owner.unpark(&[3, 4], &[(3, &checked.increment(2))]);
    assert_eq!(checked.fault(gone), Some(Fault::Rejected));
    let refused = owner.unpark(&[4], &[(4, &checked.increment(99))]);
    assert_eq!(checked.fault(refused), Some(Fault::Rejected));
    assert_eq!((left(&mut owner), checked.count(1), checked.count(2)), (vec![4], 2, 0));
    assert_eq!(owner.watermark(FIRST), 4, "it stays");
    owner.apply(4, &[(5, &group)]).expect("writes go on");
    assert_eq!(checked.count(1), 3);
}

pub(super) fn in_doubt(checked: &Checked<'_>) {
    let mut owner = with_parked(checked, 2);
    let group = checked.increment(1);
    owner.unpark(&[1], &[(1, &group)]).expect("it is applied");
    // On new connections; whether the second one is brought to an end or given up is the origin's affair.
    owner.writer = checked.writer();
    assert_eq!(owner.settle(&[1], &[(1, &group)]).ok(), Some(true));
    assert_eq!((left(&mut owner), checked.count(1)), (vec![2], 1));
    owner.writer = checked.writer();
    let done = owner.settle(&[2], &[(2, &group)]).expect("it is found out");
    let counted = i64::from(done);
    assert_eq!((left(&mut owner).is_empty(), checked.count(1)), (done, 1 + counted));
}
