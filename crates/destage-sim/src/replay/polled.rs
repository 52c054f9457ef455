//! A core polled as often as was recorded.

use destage_core::{Core, Effect};
use destage_record::Digest;

/// A core that has nothing to say so often in a row has nothing to say until it is told something.
const NOTHING_MAX: u64 = 2;

/// Polls the core so often, as far as it has anything to say: what a changed file claims beyond that takes no time. How often it
/// was polled.
pub(super) fn polled(
    core: &mut Core,
    digest: &mut Digest,
    count: u64,
    mut given: impl FnMut(Effect, &Core),
) -> u64 {
    let (mut done, mut nothing) = (0, 0);
    while done < count && nothing < NOTHING_MAX {
        let effect = core.poll_effect();
        digest.add(core, effect.as_ref());
        done += 1;
        match effect {
            None => nothing += 1,
            Some(effect) => {
                nothing = 0;
                given(effect, core);
            }
        }
    }
    digest.add_nothing(count - done);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_core::{Input, Intent, Policy, RequestId, Time, UnitId};

    #[test]
    fn who_has_nothing_to_say_is_not_asked_billions_of_times() {
        let mut core = Core::new(Time::ZERO, Policy::default());
        let (request, units) = (RequestId(1), &[UnitId(1)]);
        core.handle(Time::ZERO, Input::Access { request, intent: Intent::Read, units });
        let mut same = core.clone();
        let (mut ours, mut theirs) = (Digest::default(), Digest::default());
        let mut effects = 0;
        let done = polled(&mut core, &mut ours, 1_000, |_, _| effects += 1);
        assert!(effects > 0 && done == effects + NOTHING_MAX, "{effects} {done}");
        for _ in 0..1_000 {
            let effect = same.poll_effect();
            theirs.add(&same, effect.as_ref());
        }
        assert_eq!(ours.all(), theirs.all());
        assert_eq!(polled(&mut core, &mut ours, 1 << 60, |_, _| {}), NOTHING_MAX);
    }
}
