//! Rounds of faults with new seeds for as long as asked: `cargo xtask soak --front replicas`.

use crate::harness::{Length, Scenario, soak};
use crate::rounds::{CASES, Case, round};

#[test]
#[ignore = "runs for as long as DESTAGE_SOAK_SECONDS says"]
fn rounds() {
    let scenario = |case: &'static Case| Scenario {
        name: case.name,
        length: Length::Short,
        round: Box::new(move |seed| Some(round(case, seed, &[]))),
    };
    soak("replicas", CASES.iter().map(scenario).collect());
}
