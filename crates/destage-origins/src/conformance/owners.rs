//! Who owns the origin.

use super::*;
use std::time::Duration;

pub(super) fn claims(checked: &Checked<'_>) {
    let mut writer = checked.writer();
    assert_eq!(writer.owner().expect("it is read"), None);
    assert_eq!(checked.fault(writer.claim(&claim(Some(7), 9))), Some(Fault::Fenced));
    let mut first = checked.owner();
    assert_eq!(checked.fault(writer.claim(&claim(None, 9))), Some(Fault::Fenced));
    assert_eq!(checked.fault(writer.claim(&claim(Some(7), 9))), Some(Fault::Fenced));
    first.apply(0, &[(6, &checked.increment(1))]).expect("it is applied");
    checked.store.set_watermark(OTHER, Lsn(9));
    assert_eq!((first.watermark(FIRST), first.watermark(OTHER)), (6, 9));
    let domains = vec![FIRST, OTHER, DomainId(4), ALL_DOMAINS];
    writer.claim(&Claim { domains, ..claim(Some(1), 5) }).expect("the owner is as it was read");
    let owner = writer.owner().expect("it is read").expect("there is one");
    assert_eq!((owner.journal.as_str(), owner.epoch), ("journal-5", 5));
    assert_eq!(owner.domain_map, u64::MAX - 7);
    assert!(!owner.released && owner.epochs_agree && owner.heartbeat_age < Duration::from_secs(60));
    let mut watermarks = owner.watermarks;
    watermarks.sort();
    let all = [(FIRST, 6), (OTHER, 9), (DomainId(4), 0), (ALL_DOMAINS, 0)];
    assert_eq!(watermarks, all.map(|(domain, lsn)| (domain, Lsn(lsn))));
}

pub(super) fn claims_at_once(checked: &Checked<'_>) {
    checked.owner();
    let claimed = std::thread::scope(|scope| {
        let claiming = [5, 6].map(|epoch| {
            let mut writer = checked.writer();
            scope.spawn(move || checked.fault(writer.claim(&claim(Some(1), epoch))))
        });
        claiming.map(|thread| thread.join().expect("it claims"))
    });
    let succeeded = claimed.iter().filter(|fault| fault.is_none()).count();
    assert_eq!(succeeded, 1, "{claimed:?}");
    assert!(claimed.iter().flatten().all(|fault| *fault != Fault::Rejected), "{claimed:?}");
}

pub(super) fn fenced(checked: &Checked<'_>) {
    let mut late = checked.owner();
    let group = checked.increment(1);
    late.park(&[mark(FIRST, 0, 1)], Some(&parked_group(1, None))).expect("it is parked");
    let mut other = Owned::taken_over(checked, late.epoch);
    let fenced = Some(Fault::Fenced);
    assert_eq!(checked.fault(late.apply(1, &[(2, &group)])), fenced);
    let absent = checked.increment(99);
    assert_eq!(checked.fault(late.apply(1, &[(2, &absent)])), fenced, "whatever else is wrong");
    if checked.store.has_transactions() {
        let marks = [mark(FIRST, 1, 2), mark(OTHER, 0, 2)];
        assert_eq!(checked.fault(late.apply_in(&marks, &[(2, &group)])), fenced);
    }
    let parked = parked_group(2, None);
    assert_eq!(checked.fault(late.park(&[mark(FIRST, 1, 2)], Some(&parked))), fenced);
    assert_eq!(checked.fault(late.park(&[mark(FIRST, 1, 2)], None)), fenced);
    assert_eq!(checked.fault(late.unpark(&[1], &[(1, &group)])), fenced);
    assert_eq!(checked.fault(late.unpark(&[], &[])), fenced);
    assert_eq!(checked.fault(late.settle(&[1], &[(1, &group)])), fenced);
    assert_eq!(checked.fault(late.mark_all(0, 1, &[])), fenced);
    assert_eq!(checked.fault(late.writer.heartbeat(late.epoch)), fenced);
    assert_eq!(checked.fault(late.writer.release(late.epoch)), fenced);
    assert_eq!(checked.count(1), 0);
    assert_eq!(other.writer.parked(u64::MAX).expect("it is read").len(), 1);
    assert_eq!((other.watermark(FIRST), other.watermark(ALL_DOMAINS)), (1, 0));
    other.apply(1, &[(2, &group)]).expect("the new owner goes on");
}

pub(super) fn release_and_heartbeat(checked: &Checked<'_>) {
    let mut owner = checked.owner();
    let released = |owner: &mut Owned| {
        owner.writer.owner().expect("it is read").expect("there is one").released
    };
    owner.writer.release(1).expect("it is the owner");
    assert!(released(&mut owner));
    owner.writer.heartbeat(1).expect("it is the owner");
    assert!(!released(&mut owner));
    let found = owner.writer.owner().expect("it is read").expect("there is one");
    assert!(found.heartbeat_age < Duration::from_secs(60), "{:?}", found.heartbeat_age);
    owner.writer.release(1).expect("it is the owner");
    let mut other = Owned::taken_over(checked, 1);
    assert!(!released(&mut other));
}

pub(super) fn mark_of_all(checked: &Checked<'_>) {
    let mut owner = checked.owner();
    owner.apply(0, &[(3, &checked.increment(1))]).expect("it is applied");
    owner.mark_all(0, 2, &[(FIRST, Lsn(3)), (OTHER, Lsn(0))]).expect("no domain went back");
    owner.mark_all(0, 2, &[(FIRST, Lsn(3))]).expect("it has moved before");
    assert_eq!(owner.watermark(ALL_DOMAINS), 2);
    checked.store.set_watermark(FIRST, Lsn(1));
    let went_back = owner.mark_all(2, 3, &[(FIRST, Lsn(3))]);
    assert_eq!(checked.fault(went_back), Some(Fault::Failed));
    assert_eq!(owner.watermark(ALL_DOMAINS), 2);
}
