//! Kills of `destage block` with new seeds for as long as asked: `cargo xtask soak --front block`.

use crate::harness::rounds::{Length, Scenario, soak};
use crate::{crash, file_systems, group, staleness, verify};

fn scenario(
    name: &'static str,
    round: impl Fn(u64) -> Option<Result<u64, String>> + Sync + 'static,
) -> Scenario {
    let round = move |seed| Some(round(seed)?.map(|acknowledged| acknowledged as i64));
    Scenario { name, length: Length::Short, round: Box::new(round) }
}

#[test]
#[ignore = "runs for as long as DESTAGE_SOAK_SECONDS says"]
fn rounds() {
    let crashes = crash::CASES.iter().map(|case| {
        scenario(case.name, |seed| Some(case.round(seed, 0)?.map(|round| round.acknowledged)))
    });
    let verified = verify::CASES.iter().map(|case| scenario(case.name, |seed| case.round(seed)));
    let bounded = staleness::CASES.iter().map(|case| {
        scenario(case.name, |seed| Some(case.round(seed)?.map(|loss| loss.acknowledged)))
    });
    let mounted = file_systems::soaked().into_iter().map(|(name, case)| Scenario {
        length: Length::Long,
        ..scenario(name, move |seed| case.reseeded(seed))
    });
    let together = [scenario("lost-group", group::round)];
    soak("block", crashes.chain(together).chain(verified).chain(bounded).chain(mounted).collect());
}
