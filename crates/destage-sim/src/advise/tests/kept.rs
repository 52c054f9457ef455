//! What is in force, with a recorded load.

use super::*;
use crate::replay::{Observer, Watched, what_if};
use destage_core::{ClientId, Core, Effect, Input, Intent, Policy, RequestId, UnitId};

/// How long a fetch takes.
const FETCH: Span = Span::from_millis(4);

/// A volume of which `items` items of so many bytes are read, one after the other and again from the first one on.
fn reads(policy: &Policy, items: u32, bytes: u32) -> RecordedRun {
    let mut core = Core::new(Time::ZERO, policy.clone()).counting_writes_only();
    let mut watched = Watched::new(Span::ZERO);
    watched.note_subject("block volume");
    for n in 0..200 {
        let mut tell = |now: Time, input: Input<'_>| {
            watched.input(now, &input, &core);
            core.handle(now, input);
            let mut effects = Vec::new();
            while let Some(effect) = core.poll_effect() {
                watched.effect(now, &effect, &core);
                effects.push(effect);
            }
            effects
        };
        let mut now = Time(u64::from(n) * 10_000_000);
        let units = &[UnitId(n % items)];
        let access = Input::Access { request: RequestId(n.into()), intent: Intent::Read, units };
        let mut effects = tell(now, access);
        while let Some(effect) = effects.pop() {
            effects.extend(match effect {
                Effect::Execute { observed: lsn, .. } => {
                    tell(now, Input::Respond { client: ClientId(n), lsn, wrote: false })
                }
                Effect::Fetch { unit } => {
                    now = now + FETCH;
                    let (result, identity) = (Ok(bytes), u64::from(unit.0));
                    tell(now, Input::Fetched { unit, result, identity })
                }
                Effect::Evict { unit } => tell(now, Input::Evicted { identity: unit.0.into() }),
                _ => Vec::new(),
            });
        }
    }
    let (_, run) = watched.into_run();
    run.expect("something was recorded")
}

#[test]
fn what_stays_is_judged_with_the_limits_that_were_recorded_and_predicted_to_be_as_it_was() {
    let requests = mail();
    let base = base(&requests);
    let wish = wish(Span::from_secs(5), None);
    let settings = wish.candidates(&base).swap_remove(1);
    let ours = wish.live_policy(&settings);
    let mut theirs = ours.clone();
    theirs.limits.cache_bytes_max -= ours.limits.cache_bytes_max / 100;
    // Ten items fit under the limit of the candidate, and nine under that which is in force.
    let run = reads(&theirs, 10, (ours.limits.cache_bytes_max / 10) as u32);
    // Something that was written, so that there is a mean, and so fast that nothing gains on it.
    let run = RecordedRun { writes: run.reads.clone(), ..run };
    let fetched = |policy: &Policy| {
        let load = run.load.as_ref().expect("a load was recorded");
        what_if(load, |_| policy.clone()).expect("something was recorded").tally.fetches
    };
    assert!(fetched(&theirs) > 2 * fetched(&ours), "the bytes make a difference");
    let meter = Meter::default();
    let ranking = wish.judge_recorded(&requests, Some(&run), vec![settings], &meter);
    let ranking = ranking.expect("it runs");
    let (best, choices) = (ranking[0].clone(), Vec::new());
    let tuned = Tuned { base: best.clone(), best, choices, is_kept: false };
    let tuned = wish.keep_in_force(&run, &ranking, tuned);
    assert!(tuned.is_kept);
    let trust = wish.trust(&run, &requests, &base, &meter).expect("it runs");
    let trust = trust.expect("nothing interrupted it");
    let sure = trust.of(&tuned);
    assert_eq!(sure.len(), Predicted::ALL.len());
    for sure in &sure {
        assert_eq!(sure.predicted, sure.recorded, "{sure}");
    }
    // The model does not miss what was recorded to be missed: that is said.
    let mut slow = *sure.iter().find(|it| it.what == Predicted::P99Read).expect("it is predicted");
    (slow.recorded, slow.predicted, slow.modelled) = (0.006, 0.006, 0.004);
    let limited = |ms| Wish { p99_read: Some(Span::from_millis(ms)), ..wish };
    assert!(slow.doubt(&limited(5)).is_some_and(|doubt| doubt.contains("was recorded")));
    assert_eq!((slow.doubt(&limited(7)), slow.doubt(&limited(3))), (None, None));
    let as_other = trust.of(&Tuned { is_kept: false, ..tuned });
    for (kept, other) in sure.iter().zip(as_other) {
        assert_eq!(other.predicted, kept.modelled, "{other}");
    }
}

#[test]
fn what_treats_writes_in_another_way_must_gain_more_than_a_fifth() {
    let requests = mail();
    let base = base(&requests);
    let wish = wish(Span::from_secs(5), None);
    let meter = Meter::default();
    let candidates = wish.candidates(&base);
    let alike = candidates.iter().find(|it| it.flash.policy == WritePolicy::Journaled);
    let alike = alike.expect("one of the candidates").clone();
    let run = reads(&wish.live_policy(&alike), 10, 4_096);
    let run = RecordedRun { load: None, ..run };
    let ranking = wish.judge_recorded(&requests, None, vec![alike], &meter).expect("it runs");
    let in_force = &ranking[0];
    let tuned_in_force = wish.tune(&requests, in_force, &meter).expect("it runs");
    let other = candidates.iter().find(|it| it.flash.when != in_force.report.settings.flash.when);
    let mut other = wish.judge(&requests, vec![other.expect("another").clone()], &meter);
    let other = other.as_mut().expect("it runs").remove(0);
    let chosen = |share: f64| {
        let mut best = other.clone();
        // So that its requests take this share of those of what is in force.
        let factor = share * tuned_in_force.best.mean() / best.mean();
        best.report.reads.latency.mean *= factor;
        best.report.writes.latency.mean *= factor;
        best.misses.clone_from(&tuned_in_force.best.misses);
        let fastest = Tuned { base: best.clone(), best, choices: Vec::new(), is_kept: false };
        let tuned = wish.tune_in_force(&requests, &run, &ranking, fastest, &meter);
        tuned.expect("it runs").base.report.settings
    };
    assert_eq!(chosen(0.9), in_force.report.settings);
    assert_eq!(chosen(0.7), other.report.settings);
}

#[test]
fn what_was_set_otherwise_already_stays() {
    let requests = mail();
    let base = base(&requests);
    let wish = wish(Span::from_secs(5), None);
    let judge = |settings: Settings| {
        let judged = wish.judge(&requests, vec![settings], &Meter::default());
        judged.expect("it runs").remove(0)
    };
    let ranking = [judge(wish.candidates(&base).swap_remove(1))];
    let mut other = ranking[0].report.settings.clone();
    other.flash.linger = Interval(Span::from_millis(500));
    let best = judge(other.clone());
    let tuned = Tuned { base: ranking[0].clone(), best, choices: Vec::new(), is_kept: false };
    let kept = |policy: Policy| {
        let run = RecordedRun { load: None, ..reads(&policy, 10, 4_096) };
        let tuned = wish.keep_in_force(&run, &ranking, tuned.clone());
        (tuned.is_kept, tuned.base.report.settings == other)
    };
    assert_eq!(kept(wish.live_policy(&other)), (true, true));
    let mut another = wish.live_policy(&other);
    another.limits.linger = Span::from_millis(20);
    assert_eq!(kept(another), (false, false));
}

#[test]
fn on_a_recording_something_else_is_set_only_for_more_than_a_fifth() {
    let requests = mail();
    let base = base(&requests);
    let wish = wish(Span::from_secs(5), None);
    let meter = Meter::default();
    let settings = wish.candidates(&base).swap_remove(1);
    let run = RecordedRun { load: None, ..reads(&wish.live_policy(&settings), 10, 4_096) };
    let first = wish.judge(&requests, vec![settings], &meter).expect("it runs").remove(0);
    let taken = |run: Option<&RecordedRun>, longer: f64| {
        let mut first = first.clone();
        first.report.reads.latency.mean *= longer;
        first.report.writes.latency.mean *= longer;
        let tuned = wish.tune_recorded(&requests, run, &first, &meter).expect("it runs");
        tuned.choices.iter().filter(|choice| choice.is_taken).count()
    };
    assert_eq!(taken(Some(&run), 1.15), 0);
    // The controls: it gains enough, and on a trace each little counts.
    assert!(taken(Some(&run), 1.35) > 0);
    assert!(taken(None, 1.15) > 0);
}
