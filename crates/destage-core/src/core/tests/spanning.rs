//! Groups of several domains, and batches of several domains under way at once.

use super::*;
use alloc::vec;

/// Writes groups 1.. to these domains, all committed, with destaging held back until the end. Each changes a unit of its own.
fn spread(core: impl FnOnce(Core) -> Core, groups: &[&[u16]]) -> (Pair, Vec<Effect>) {
    let mut pair = Pair::new(policy());
    pair.core = core(pair.core);
    pair.core.handle(START, Input::Pause);
    for (index, domains) in groups.iter().enumerate() {
        let domains: Vec<DomainId> = domains.iter().copied().map(DomainId).collect();
        let (lsn, unit) = (Lsn(index as u64 + 1), UnitId(index as u32));
        pair.core.handle(
            START,
            Input::Write {
                domain: domains[0],
                units: &[(unit, 100)],
                bytes: WRITE_BYTES,
                journal_bytes: WRITE_BYTES,
                access: Access::Back,
            },
        );
        pair.core.handle(START, Input::Spans { lsn, domains: &domains });
    }
    pair.effects();
    pair.synced(groups.len() as u64);
    let effects = pair.send(Input::Resume);
    (pair, effects)
}

fn destage_of(batch: u64, domain: u16) -> Effect {
    Effect::Destage { batch: BatchId(batch), domain: DomainId(domain) }
}

fn destages(effects: Vec<Effect>) -> Vec<Effect> {
    effects.into_iter().filter(|effect| matches!(effect, Effect::Destage { .. })).collect()
}

#[test]
fn a_group_of_two_domains_goes_when_it_is_at_the_head_of_both() {
    let (mut pair, effects) = spread(|core| core, &[&[0], &[1], &[0, 1], &[0], &[1], &[2]]);
    assert_eq!(destages(effects), [destage_of(0, 0), destage_of(1, 1), destage_of(2, 2)]);
    assert_eq!((pair.batch(0), pair.batch(1), pair.batch(2)), (vec![1], vec![2], vec![6]));
    assert_eq!(destages(pair.destaged(0)), [], "the other domain is not there yet");
    assert_eq!(destages(pair.destaged(1)), [destage_of(3, 0)]);
    assert_eq!(pair.batch(3), [3, 4, 5], "what follows in both goes along");
    assert_eq!(pair.core.domains_spanned(Lsn(3)), Some(&[DomainId(0), DomainId(1)][..]));
    pair.destaged(2);
    pair.destaged(3);
    assert_eq!(pair.core.domains_spanned(Lsn(3)), None);
    pair.assert_clean(0);
}

#[test]
fn the_last_undecided_group_of_a_domain_is_found_wherever_it_is() {
    let (mut pair, _) = spread(|core| core, &[&[0], &[1], &[0, 1], &[0], &[1], &[2]]);
    let last = |pair: &Pair, domain, upto| {
        pair.core.last_undecided(DomainId(domain), Lsn(upto)).map(|lsn| lsn.0)
    };
    assert_eq!([6, 3, 2].map(|upto| last(&pair, 0, upto)), [Some(4), Some(3), Some(1)]);
    assert_eq!([6, 5].map(|upto| last(&pair, 2, upto)), [Some(6), None]);
    assert_eq!(last(&pair, 9, 6), None);
    pair.destaged(0);
    assert_eq!(last(&pair, 0, 2), None);
    pair.destaged(1);
    assert_eq!([0, 1].map(|domain| last(&pair, domain, 6)), [Some(4), Some(5)], "under way");
    assert_eq!(last(&pair, 1, 4), Some(3));
    pair.destage_failed(3, Fault::Unavailable);
    assert_eq!([0, 1].map(|domain| last(&pair, domain, 6)), [Some(4), Some(5)], "to be repeated");
}

#[test]
fn a_batch_of_two_domains_stops_before_a_group_of_a_third() {
    let (mut pair, effects) = spread(|core| core, &[&[0, 1], &[1, 2], &[0], &[2]]);
    // The domain of the third waits: it is blocked behind the second group.
    assert_eq!(destages(effects), [destage_of(0, 0)]);
    assert_eq!(pair.batch(0), [1]);
    let next = destages(pair.destaged(0));
    assert_eq!(next, [destage_of(1, 0), destage_of(2, 1)]);
    assert_eq!((pair.batch(1), pair.batch(2)), (vec![3], vec![2, 4]));
    pair.settle();
    pair.assert_clean(0);
}

#[test]
fn both_domains_stand_still_until_the_outcome_of_their_batch_is_known() {
    let (mut pair, effects) = spread(|core| core, &[&[0, 1], &[0], &[1]]);
    assert_eq!(destages(effects), [destage_of(0, 0)]);
    assert_eq!(pair.batch(0), [1, 2, 3]);
    assert_eq!(destages(pair.destage_failed(0, Fault::Unavailable)), []);
    assert_eq!(destages(pair.at(50)), [destage_of(1, 0)]);
    assert_eq!(pair.batch(1), [1, 2, 3], "repeated as it was: it may have landed");
    pair.destaged(1);
    pair.assert_clean(0);
}

#[test]
fn a_rejected_group_of_two_domains_is_found_and_parked_once() {
    let (mut pair, effects) = spread(|core| core, &[&[0, 1], &[0, 1], &[0, 1], &[1]]);
    assert_eq!(destages(effects), [destage_of(0, 0)]);
    assert_eq!(pair.batch(0), [1, 2, 3, 4]);
    assert_eq!(destages(pair.destage_failed(0, Fault::Rejected)), [destage_of(1, 0)]);
    assert_eq!(pair.batch(1), [1, 2]);
    assert_eq!(destages(pair.destage_failed(1, Fault::Rejected)), [destage_of(2, 0)]);
    assert_eq!(pair.batch(2), [1]);
    let parks = |effects: Vec<Effect>| {
        effects
            .into_iter()
            .filter(|effect| matches!(effect, Effect::Park { .. }))
            .collect::<Vec<_>>()
    };
    let parked = parks(pair.destage_failed(2, Fault::Rejected));
    let domain = DomainId(0);
    assert_eq!(parked, [Effect::Park { lsn: Lsn(1), domain, depends_on: None, keep: true }]);
    assert_eq!(pair.core.domains_spanned(Lsn(1)).map(<[_]>::len), Some(2));
    let next = destages(pair.parked(1));
    assert_eq!(next, [destage_of(3, 0)], "both domains go on");
    pair.settle();
    assert_eq!(pair.core.status().dirty_groups, 0);
}

#[test]
fn no_more_batches_are_under_way_than_the_driver_takes_and_each_domain_has_its_turn() {
    let limited = |core: Core| core.with_parallel(2);
    let (mut pair, effects) = spread(limited, &[&[0], &[1], &[2], &[3]]);
    assert_eq!(destages(effects), [destage_of(0, 0), destage_of(1, 1)]);
    // The first domain has more, but it was its turn.
    pair.write_to(0, 7, &[7], Ack::Policy);
    assert_eq!(destages(pair.synced(5)), []);
    assert_eq!(destages(pair.destaged(0)), [destage_of(2, 2)]);
    assert_eq!(destages(pair.destaged(1)), [destage_of(3, 3)]);
    assert_eq!(destages(pair.destaged(2)), [destage_of(4, 0)]);
    pair.settle();
    pair.assert_clean(0);
}

#[test]
fn waiting_for_everything_waits_for_every_domain() {
    let (mut pair, effects) = spread(|core| core, &[&[0], &[1]]);
    assert_eq!(destages(effects).len(), 2);
    assert_eq!(pair.wait(9, 2, WaitFor::AllDecided), []);
    let waited = Effect::Waited { request: RequestId(9), outcome: Outcome::Done };
    assert!(!pair.destaged(1).contains(&waited), "the newest write is there, the older one is not");
    assert!(pair.destaged(0).contains(&waited));
    assert_eq!(pair.wait(10, 2, WaitFor::AllDecided).len(), 1);
    pair.assert_clean(0);
}
