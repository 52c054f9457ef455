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
fn what_stays_is_predicted_to_be_what_the_model_has_of_the_recorded_run() {
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
    let tuned = Tuned { best: ranking[0].clone(), choices: Vec::new(), is_kept: false };
    let tuned = wish.keep_in_force(&run, &ranking, tuned);
    assert!(tuned.is_kept);
    let trust = wish.trust(&run, &requests, &base, &meter).expect("it runs");
    let sure = trust.expect("nothing interrupted it").of(&tuned.best);
    assert_eq!(sure.len(), Predicted::ALL.len());
    for sure in sure {
        assert_eq!(sure.predicted, sure.modelled, "{sure}");
    }
}
