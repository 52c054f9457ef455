//! Kills of `destage mount` with new seeds for as long as asked: `cargo xtask soak --front mount`.

use crate::harness::rounds::{Length, Scenario, soak};
use crate::{crash, outages};

/// Kills in a row on one mount.
const KILLS: u64 = 4;

#[test]
#[ignore = "runs for as long as DESTAGE_SOAK_SECONDS says"]
fn rounds() {
    let crashes = crash::CASES.iter().map(|case| Scenario {
        name: case.name,
        length: Length::Short,
        round: Box::new(move |seed| {
            Some(case.kills(seed, KILLS)?.map(|acknowledged| acknowledged as i64))
        }),
    });
    let outages = Scenario {
        name: "mount-outages",
        length: Length::Long,
        round: Box::new(|seed| Some(outages::round(seed)?.map(|acknowledged| acknowledged as i64))),
    };
    soak("mount", crashes.chain([outages]).collect());
}
