//! The life of a core in the smallest front end that there is: a journal that is durable at once, an origin that answers when
//! it is told to.

use super::*;
use crate::{Append, write};
use alloc::vec;
use alloc::vec::Vec;
use destage_core::{
    Access, BatchId, ClientId, DomainId, Mode, Outcome, Refusal, Span, StopReason, UnitId, When,
};

struct Front {
    now: Time,
    core: Core,
    batches: Vec<BatchId>,
    /// Up to where each sync was asked for, and each group forgotten.
    syncs: Vec<Lsn>,
    forgotten: Lsn,
    waits: Vec<RequestId>,
    next: u64,
    /// Rounds in which something more became possible.
    rounds: u32,
    recovered: Option<Lsn>,
}

impl Front {
    fn new(policy: Policy, decided: Lsn) -> Self {
        let now = Time::from_secs(1_000);
        Self {
            now,
            core: Core::resume(now, policy, decided),
            batches: Vec::new(),
            syncs: Vec::new(),
            forgotten: decided,
            waits: Vec::new(),
            next: 0,
            rounds: 0,
            recovered: None,
        }
    }

    fn write(&mut self) {
        let group = Append {
            domains: &[DomainId(0)],
            units: &[(UnitId(0), 10)],
            bytes: 10,
            journal_bytes: 10,
            access: Access::Back,
            continues: false,
            builds_on: &[],
        };
        write(&mut self.core, self.now, &group, |_| ());
        self.control(self.now, Input::Tick);
    }

    fn tick(&mut self) {
        self.control(self.now, Input::Tick);
    }

    /// The origin takes what it was sent.
    fn land(&mut self) {
        for batch in core::mem::take(&mut self.batches) {
            self.control(self.now, Input::Destaged { batch, result: Ok(()) });
        }
    }
}

impl FrontEnd for Front {
    fn execute(&mut self, _: RequestId, _: Access, _: Lsn) {}
    fn refuse(&mut self, _: RequestId, _: Refusal) {}
    fn send_replies(&mut self, _: ClientId) {}
    fn wait_ended(&mut self, request: RequestId, _: Outcome) {
        self.waits.push(request);
    }
    fn make_durable(&mut self, upto: Lsn) {
        self.syncs.push(upto);
        self.core.handle(self.now, Input::Synced { upto, result: Ok(()) });
    }
    fn fetch_unit(&mut self, _: UnitId) {}
    fn send_batch(&mut self, batch: BatchId, _: DomainId) {
        self.batches.push(batch);
    }
    fn write_settled(&mut self, _: Lsn, _: bool) {}
    fn forget_groups(&mut self, upto: Lsn) {
        self.forgotten = upto;
    }
    fn evict_unit(&mut self, _: UnitId) {
        self.core.handle(self.now, Input::Evicted { identity: 0 });
    }
    fn mode_changed(&mut self, _: Mode) {}
    fn stop_serving(&mut self, _: StopReason) {}
}

impl Drive for Front {
    type Core = Core;

    fn core(&self) -> &Core {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    fn unheard(&mut self) -> RequestId {
        self.next += 1;
        RequestId(self.next)
    }

    fn after_effects(&mut self) -> bool {
        self.rounds = self.rounds.saturating_sub(1);
        self.rounds > 0
    }

    fn recovered_upto(&mut self, upto: Lsn) {
        assert!(self.core.last() >= upto, "the core was told before");
        self.recovered = Some(upto);
    }
}

/// Nothing leaves unless it is asked for.
fn lazy() -> Policy {
    Policy { commit: Span::from_secs(1), when: When::OnPressure, ..Policy::default() }
}

#[test]
fn what_is_hurried_is_decided_whatever_the_policy_says() {
    let mut front = Front::new(lazy(), Lsn::ZERO);
    front.write();
    front.write();
    assert_eq!((front.undecided(), front.batches.len()), (2, 0));
    front.hurry(front.now);
    // First the journal, then what it holds.
    front.tick();
    front.tick();
    assert!(!front.batches.is_empty());
    front.land();
    assert_eq!((front.undecided(), front.decided(), front.forgotten), (0, Lsn(2), Lsn(2)));
    assert_eq!(front.waits, [RequestId(1)]);
}

#[test]
fn a_pause_holds_back_what_a_drain_sends_until_destaging_is_resumed() {
    let mut front = Front::new(lazy(), Lsn::ZERO);
    front.write();
    front.pause(front.now);
    front.drain(front.now);
    assert!(front.batches.is_empty());
    front.resume(front.now);
    front.land();
    assert_eq!(front.undecided(), 0);
}

#[test]
fn the_journal_is_durable_before_its_interval_if_someone_asks() {
    let mut front = Front::new(lazy(), Lsn::ZERO);
    front.write();
    assert_eq!(front.committed(), Lsn::ZERO);
    front.commit_soon(front.now);
    front.tick();
    assert_eq!((front.committed(), &front.syncs[..]), (Lsn(1), &[Lsn(1)][..]));
}

#[test]
fn a_policy_that_does_not_fit_together_changes_nothing() {
    let mut front = Front::new(lazy(), Lsn::ZERO);
    let wrong = Policy { commit: Span::from_secs(2), staleness: Span::from_secs(1), ..lazy() };
    assert!(front.set_policy(front.now, &wrong).is_err());
    assert_eq!(front.policy(), &lazy());
    let prompt = Policy { when: When::Async, ..lazy() };
    front.set_policy(front.now, &prompt).unwrap();
    assert_eq!(front.policy(), &prompt);
}

#[test]
fn time_never_goes_back_and_what_becomes_possible_is_done_until_nothing_does() {
    let mut front = Front::new(lazy(), Lsn::ZERO);
    let now = front.now;
    front.rounds = 3;
    front.pause(Time::from_secs(1));
    assert_eq!((front.now, front.rounds), (now, 0));
}

fn group(lsn: u64) -> Recovered<'static> {
    Recovered {
        lsn: Lsn(lsn),
        stamp: Time::from_secs(999),
        domains: &[DomainId(0)],
        level: 0,
        units: &[UnitId(0)],
        bytes: 10,
        journal_bytes: 10,
        is_continued: false,
        builds_on: &[],
    }
}

fn recovering(front: &mut Front, groups: &[u64], upto: u64) -> Result<(), &'static str> {
    let mut groups = groups.iter();
    recover(front, front.now, Lsn(upto), |front| match groups.next() {
        None => Ok(false),
        Some(0) => Err("damaged"),
        Some(&lsn) => {
            front.tell_recovered(front.now, &group(lsn));
            Ok(true)
        }
    })
}

#[test]
fn what_an_earlier_run_left_is_known_before_anything_else_and_goes_to_the_origin() {
    let mut front = Front::new(Policy::default(), Lsn(3));
    // The fifth was decided before, and nobody knows what the seventh was.
    recovering(&mut front, &[4, 6], 7).unwrap();
    assert_eq!(front.recovered, Some(Lsn(7)));
    assert_eq!((front.last(), front.committed(), front.decided()), (Lsn(7), Lsn(7), Lsn(3)));
    front.control(front.now + Span::from_secs(1), Input::Tick);
    front.land();
    assert_eq!((front.decided(), front.undecided()), (Lsn(7), 0));
    assert_eq!(vec![front.forgotten], [Lsn(7)]);
}

#[test]
fn a_journal_that_cannot_be_read_ends_it() {
    let mut front = Front::new(Policy::default(), Lsn::ZERO);
    assert_eq!(recovering(&mut front, &[1, 0, 2], 2), Err("damaged"));
    assert_eq!(front.recovered, None);
}

#[test]
#[should_panic(expected = "is recovered after")]
fn groups_out_of_order_are_a_bug() {
    let _ = recovering(&mut Front::new(Policy::default(), Lsn::ZERO), &[2, 1], 2);
}

#[test]
#[should_panic(expected = "is the last")]
fn a_group_behind_the_last_is_a_bug() {
    let _ = recovering(&mut Front::new(Policy::default(), Lsn::ZERO), &[1, 2], 1);
}
