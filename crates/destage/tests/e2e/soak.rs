//! Crashes and outages of `destage serve` with new seeds for as long as asked: `cargo xtask soak --front data`.

mod footprint;
mod long_lived;

use crate::crash::{self, Case};
use crate::harness::rounds::{Length, Scenario, soak};
use crate::mongo;
use crate::origin_away::Outage;
use crate::sessions;

const CRASHES: [Case; 11] = [
    crash::SQLITE,
    crash::POSTGRES,
    crash::SQLITE_SECOND,
    crash::POSTGRES_SECOND,
    crash::SQLITE_PARKED,
    crash::POSTGRES_PARKED,
    crash::MARIADB,
    crash::MARIADB_PARKED,
    crash::SQLITE_DOMAINS,
    crash::POSTGRES_DOMAINS,
    crash::MARIADB_DOMAINS,
];

#[test]
#[ignore = "runs for as long as DESTAGE_SOAK_SECONDS says"]
fn rounds() {
    let crashes = CRASHES.iter().map(|case| Scenario {
        name: case.name,
        length: Length::Short,
        round: Box::new(move |seed| crash::round(case, seed)),
    });
    let cases = [
        sessions::SQLITE,
        sessions::POSTGRES,
        sessions::MARIADB,
        sessions::POSTGRES_CRASHES,
        sessions::MARIADB_CRASHES,
    ];
    let sessions = cases.map(|case| Scenario {
        name: case.name,
        length: Length::Short,
        round: Box::new(move |seed| sessions::round(&case, seed)),
    });
    let documents =
        Scenario { name: mongo::CRASHES, length: Length::Short, round: Box::new(mongo::round) };
    let outage = Scenario {
        name: "outage",
        length: Length::Long,
        round: Box::new(|seed| Outage::seeded(seed).run().map(Ok)),
    };
    let long_lived = Scenario {
        name: long_lived::NAME,
        length: Length::Share,
        round: Box::new(|seed| long_lived::round(seed).map(Ok)),
    };
    soak("data", crashes.chain(sessions).chain([documents, outage, long_lived]).collect());
}
