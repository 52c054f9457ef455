//! What a row says of the paper is true of its bound, and the documentation has the same rows.

use super::*;
use std::collections::BTreeMap;

#[test]
fn what_is_said_to_be_the_papers_is_within_what_the_paper_says() {
    let mut wrong = Vec::new();
    for row in all() {
        let (Says::Paper(text) | Says::Fitted(text) | Says::Against(text) | Says::Trace(text)) =
            row.says
        else {
            continue;
        };
        let is_right = row.says.numbers().is_none_or(|numbers| match row.says {
            Says::Paper(_) => numbers.agree(row.bound),
            Says::Against(_) => !numbers.agree(row.bound),
            _ => numbers.is_met(row.bound),
        });
        if !is_right || said::hides_a_number(text) {
            wrong.push(format!("{}: {}: {} {:?}", row.figure, row.what, row.bound, row.says));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The row of a number in `docs/SIMULATION.md`: its bound, and what the paper says.
fn told(row: &Expected) -> (String, String) {
    let says = match row.says {
        Says::Paper(text) => format!("paper: {text}"),
        Says::Fitted(text) => format!("fitted: {text}"),
        Says::Against(text) => format!("against: {text}"),
        Says::Trace(text) => format!("trace: {text}"),
        Says::Ours => "ours".to_owned(),
    };
    (row.bound.to_string(), says)
}

#[test]
fn the_documentation_has_every_number_with_its_bound_and_what_the_paper_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/SIMULATION.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut documented = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let [name, seed_1, bound, says] = cells[..] {
            let told = (bound.replace(',', ""), says.to_owned());
            documented.insert(name.to_owned(), (seed_1, told));
        }
    }
    let mut wrong = Vec::new();
    // These are in a table of another form.
    for row in all().filter(|row| row.figure != "flash-sensitivity") {
        let name = format!("{}: {}", row.figure, row.what);
        let expected = told(row);
        let Some((seed_1, found)) = documented.remove(&name) else {
            wrong.push(format!("missing: | {name} | | {} | {} |", expected.0, expected.1));
            continue;
        };
        if found != expected {
            wrong.push(format!("| {name} | {seed_1} | {} | {} |", expected.0, expected.1));
        }
        let ours = seed_1.split(' ').next().and_then(|value| value.replace(',', "").parse().ok());
        // The table has three digits, the bound sometimes four.
        let is_within =
            |value: f64| [0.995, 1.0, 1.005].into_iter().any(|off| row.bound.holds(value * off));
        assert!(ours.is_some_and(is_within), "{name}: {seed_1} is not within {}", row.bound);
    }
    assert!(wrong.is_empty(), "docs/SIMULATION.md is to have\n{}", wrong.join("\n"));
    let figures: Vec<&str> = all().map(|row| row.figure).collect();
    let extra = documented
        .keys()
        .filter(|name| name.split_once(": ").is_some_and(|(figure, _)| figures.contains(&figure)));
    assert_eq!(
        extra.collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "these are no numbers of a figure"
    );
}
