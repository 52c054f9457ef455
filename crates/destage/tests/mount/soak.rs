//! Kills of `destage mount` with new seeds for as long as asked: `cargo xtask soak --front mount`.

use crate::crash;
use crate::harness::rounds::{Length, Scenario, soak};

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
    soak("mount", crashes.collect());
}
