//! The tables of a run, with the paper's figures beside them.

use super::graph::{KINDS, MIXES, NAMES};
use super::measure::Rated;
use super::{SIDES, Settings};
use crate::figure::thousands;
use crate::report::Table;

/// Table 7: MongoDB itself, with write-through, with write-back.
const PAPER_SOAR: [[&str; 3]; 3] = [
    ["27,518", "111,548", "355,769"],
    ["48,365", "488,593", "693,816"],
    ["76,068", "678,665", "711,659"],
];
/// Table 6, in the order of [`NAMES`], with its round trips.
const PAPER_TIMES: [[&str; 3]; KINDS] = [
    ["0.52 (1)", "0.18 (1)", "0.18 (1)"],
    ["0.81 (1)", "0.52 (2)", "0.52 (2)"],
    ["0.81 (1)", "0.52 (2)", "0.52 (2)"],
    ["0.23 (1)", "0.70 (5)", "0.34 (5)"],
    ["0.24 (1)", "0.71 (6)", "0.41 (6)"],
    ["0.46 (2)", "1.64 (11)", "1.01 (11)"],
    ["0.48 (2)", "1.66 (11)", "0.87 (11)"],
];

/// `rated` is by side, then by mix.
pub(super) fn tables(rated: &[Vec<Rated>], settings: &Settings) -> Vec<Table> {
    let columns = |first: &str| {
        let sides = SIDES.iter().map(|(name, _)| (*name).to_owned());
        std::iter::once(first.to_owned()).chain(sides).collect::<Vec<_>>()
    };
    let mut rates = Vec::new();
    for (mix, (name, _)) in MIXES.iter().enumerate() {
        let cells = rated.iter().map(|side| soar(&side[mix], &rated[0][mix]));
        rates.push(std::iter::once((*name).to_owned()).chain(cells).collect());
        rates.push(paper(name, PAPER_SOAR[mix]));
    }
    let mut times = Vec::new();
    for (kind, name) in NAMES.iter().enumerate() {
        let cell = |side: &Vec<Rated>| {
            side[0].means[kind].map_or_else(|| "-".to_owned(), |mean| format!("{mean:.2}"))
        };
        times.push(std::iter::once((*name).to_owned()).chain(rated.iter().map(cell)).collect());
        times.push(paper(name, PAPER_TIMES[kind]));
    }
    let trips: Vec<String> = rated.iter().map(|side| format!("{:.2}", side[0].trips)).collect();
    vec![
        Table {
            title: "BG: SoAR, actions per second".into(),
            note: format!(
                "The highest rate, counted to the end of the drain, at which 95 % of the actions were answered within 100 ms; \
                 in parentheses the number of clients and the ratio to the origin directly. The paper's are MongoDB's, with \
                 ten million members on a cluster. After each of these, and after each of {} kills of a server with \
                 write-back and d = 0, every acknowledged action was found at the origin, every friendship on both sides, and \
                 every count right.",
                settings.kills
            ),
            columns: columns("mix"),
            rows: rates,
        },
        Table {
            title: "BG: mean response times, ms".into(),
            note: format!(
                "With the fewest clients under 90 % reads. Ours take one round trip, a list that is not empty two except \
                 directly; on the average of the mix, by the client's count, {}. The paper's round trips are in parentheses.",
                trips.join(", ")
            ),
            columns: columns("action"),
            rows: times,
        },
    ]
}

fn soar(rated: &Rated, direct: &Rated) -> String {
    match (rated.soar, direct.soar) {
        (None, _) => "never within 100 ms".to_owned(),
        (Some((rate, clients)), Some((base, _))) => {
            format!("{} ({clients}, {:.1}x)", thousands(rate), rate / base)
        }
        (Some((rate, clients)), None) => format!("{} ({clients})", thousands(rate)),
    }
}

/// The paper has one write-back, and no `d`.
fn paper(name: &str, [direct, through, back]: [&str; 3]) -> Vec<String> {
    Table::paper(name, [direct, through, back, back])
}
