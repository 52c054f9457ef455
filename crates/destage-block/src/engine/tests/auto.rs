//! A policy that is asked for while an earlier change waits, and settings that are tried out meanwhile.

use super::bench::{Bench, lazy};
use crate::block::BLOCK;
use crate::engine::{JobKind, VolumeMode};
use destage_core::{Order, Policy, Span, When};
use destage_engine::Drive;
use destage_engine::auto::Goal;
use destage_runtime::auto::{AutoOptions, AutoPilot};

const LINGER: Span = Span::from_millis(20);

/// A volume of which a longer linger is being tried, and something is not at the origin.
fn trying() -> (Bench, AutoPilot) {
    let mut choice = lazy(Order::Any);
    choice.has_redo = true;
    choice.policy.when = When::Async;
    choice.policy.limits.linger = LINGER;
    let mut bench = Bench::new(choice);
    let options = AutoOptions {
        goal: Some(Goal::Writes),
        period: Span::from_secs(1),
        ..AutoOptions::default()
    };
    let mut auto = AutoPilot::new(bench.now, options, "", bench.volume.policy());
    for round in 0..1_000 {
        bench.now = bench.now + Span::from_millis(100);
        for block in 0..20 {
            bench.write(round * 20 + block, block * BLOCK as u64, &[1; BLOCK], false);
        }
        bench.run();
        bench.replies.clear();
        bench.volume.look_at_auto(bench.now, &mut auto, (0, 0)).expect("it fits");
        if bench.volume.policy().limits.linger != LINGER {
            break;
        }
    }
    assert_eq!(bench.volume.policy().limits.linger, Span(2 * LINGER.0), "nothing is tried");
    bench.write(90_000, 0, &[2; BLOCK], true);
    bench.run_except(Some(JobKind::Destage));
    assert!(bench.volume.undecided() > 0);
    (bench, auto)
}

fn journaled(bench: &mut Bench) {
    let journaled = Policy { order: Order::Domain, ..bench.volume.wanted_policy().clone() };
    bench.volume.set_policy(bench.now, &journaled).unwrap();
    assert_eq!(bench.volume.status().mode, VolumeMode::ChangingPolicy);
}

/// All that waits for the origin is there in the end.
fn settle(bench: &mut Bench) {
    bench.now = bench.now + Span::from_secs(2);
    bench.run();
    assert!(matches!(bench.volume.status().mode, VolumeMode::Serving(_)));
}

#[test]
fn a_trial_that_ends_does_not_take_back_a_policy_that_is_waited_for() {
    let (mut bench, mut auto) = trying();
    journaled(&mut bench);
    for _ in 0..5 {
        bench.now = bench.now + Span::from_secs(1);
        assert_eq!(bench.volume.auto_due(&auto), None, "or the server would not rest");
        bench.volume.look_at_auto(bench.now, &mut auto, (0, 0)).expect("it fits");
    }
    assert_eq!(bench.volume.wanted_policy().order, Order::Domain);
    settle(&mut bench);
    assert_eq!(bench.volume.policy().order, Order::Domain);
    let due = bench.volume.auto_due(&auto).expect("it goes on");
    assert!(due <= bench.now);
    bench.volume.look_at_auto(bench.now, &mut auto, (0, 0)).expect("it fits");
    let policy = bench.volume.wanted_policy();
    assert_eq!((policy.order, policy.limits.linger), (Order::Domain, LINGER));
}

#[test]
fn switching_the_trials_off_does_not_take_back_a_policy_that_is_waited_for() {
    let (mut bench, mut auto) = trying();
    journaled(&mut bench);
    bench.volume.switch_auto(bench.now, &mut auto, None).expect("it fits");
    settle(&mut bench);
    let policy = bench.volume.policy();
    assert_eq!((policy.order, policy.limits.linger), (Order::Domain, LINGER));
}

/// A change in parts starts from [`crate::engine::Volume::wanted_policy`].
#[test]
fn a_second_change_keeps_what_the_first_one_asked_for() {
    let (mut bench, _) = trying();
    journaled(&mut bench);
    let mut next = bench.volume.wanted_policy().clone();
    next.limits.linger = Span::from_millis(5);
    bench.volume.set_policy(bench.now, &next).unwrap();
    settle(&mut bench);
    let policy = bench.volume.policy();
    assert_eq!((policy.order, policy.limits.linger), (Order::Domain, Span::from_millis(5)));
    assert_eq!(bench.volume.wanted_policy(), bench.volume.policy());
}
