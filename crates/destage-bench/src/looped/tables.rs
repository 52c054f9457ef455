//! What came of it: before and after, and predicted beside measured.

use super::advice::Sure;
use super::{Closed, Front, Measured, RPO, RPO_CRASH, Round};
use crate::report::Table;
use crate::stats::Spread;

/// The advised settings are to be so many times as good as the defaults, in two of three loads.
const GAIN: f64 = 1.5;
/// Predictions may be off by so much; those of 99 % by [`ERROR_P99`].
const ERROR: f64 = 0.15;
const ERROR_P99: f64 = 0.3;

/// What advice predicts, by its name there; how it is called here; and how far it may be off, where there is a target.
const FIGURES: [(&str, &str, Option<f64>); 7] = [
    ("mean", "a request, mean", Some(ERROR)),
    ("p99-read", "99 % of the reads", Some(ERROR_P99)),
    ("p99-write", "99 % of the writes", Some(ERROR_P99)),
    ("dirty-age", "dirty age when sent, mean", Some(ERROR)),
    ("behind", "origin behind, at most", Some(ERROR)),
    ("origin-writes", "written at the origin", None),
    ("origin-reads", "read at the origin", None),
];

/// All of them.
pub(super) fn tables(closed: &[Closed]) -> Vec<Table> {
    if closed.is_empty() {
        return Vec::new();
    }
    vec![gains(closed), predictions(closed), settings(closed)]
}

fn gains(closed: &[Closed]) -> Table {
    let rows = closed.iter().flat_map(|it| {
        let is_kept = it.rounds.iter().all(|round| round.advice.is_kept);
        let whole = gain(it.case.name.to_owned(), it, Some(is_kept), |round| Some(&round.default));
        let name = format!("{}, the same loss allowed", it.case.name);
        whole.into_iter().chain(gain(name, it, None, |round| round.allowed.as_ref()))
    });
    let whats: Vec<String> =
        closed.iter().map(|it| format!("{}: {}.", it.case.name, it.case.what)).collect();
    table(
        "The loop: an operation before and after, as its client sees it",
        format!(
            "Milliseconds, medians. Asked for is the least mean with at most {RPO} lost. {} The last line has `--commit \
             {RPO_CRASH}` in the first run, too, as the question allows: what is left is what advice gains beyond it.",
            whats.join(" ")
        ),
        &[
            "load",
            "operations",
            "mean, before",
            "mean, advised",
            "ratio",
            "target",
            "reached",
            "p99, before",
            "p99, advised",
        ],
        rows.collect(),
    )
}

/// What was measured before, beside the advised settings. Without `is_kept` there is no target.
fn gain(
    name: String,
    it: &Closed,
    is_kept: Option<bool>,
    before: impl Fn(&Round) -> Option<&Measured>,
) -> Option<Vec<String>> {
    let rounds: Vec<(&Measured, &Measured)> =
        it.rounds.iter().filter_map(|round| Some((before(round)?, &round.advised))).collect();
    let of = |value: &dyn Fn(&(&Measured, &Measured)) -> f64| Spread::of(rounds.iter().map(value));
    let ms =
        |value: &dyn Fn(&(&Measured, &Measured)) -> f64| Some(format!("{:.2}", of(value)?.median));
    let ratio = of(&|(before, after)| before.mean_ms / after.mean_ms.max(1e-9))?;
    let reached = match (is_kept, ratio.median) {
        (None, _) => "-",
        (Some(true), _) => "the settings stay",
        (_, GAIN..) => "yes",
        (_, 1.0..) => "no, but not worse",
        _ => "**no**",
    };
    Some(vec![
        name,
        rounds.first()?.0.operations.to_string(),
        ms(&|(before, _)| before.mean_ms)?,
        ms(&|(_, after)| after.mean_ms)?,
        match rounds.len() {
            1 => format!("{:.2}", ratio.median),
            _ => format!("{:.2} [{:.2}, {:.2}]", ratio.median, ratio.min, ratio.max),
        },
        is_kept.map_or_else(|| "-".to_owned(), |_| format!("≥ {GAIN}")),
        reached.to_owned(),
        ms(&|(before, _)| before.p99_ms)?,
        ms(&|(_, after)| after.p99_ms)?,
    ])
}

fn predictions(closed: &[Closed]) -> Table {
    let mut rows = Vec::new();
    for it in closed {
        for (name, words, error_max) in FIGURES {
            let of = |round: &Round| {
                Some((round.advice.figure(name)?.clone(), round.after.figure(name)?.recorded))
            };
            rows.extend(prediction(it, words, error_max, of));
        }
        rows.extend(prediction(it, hits_words(it), Some(ERROR), hits));
    }
    table(
        "The loop: predicted beside measured",
        "Times are those of the servers' requests, milliseconds; the origin is behind by seconds. Values are those of the \
         first seed; errors are those of all runs: median, least and most. Corrected is what the model predicts, times what \
         it was off for the recorded run itself: the other end of the range that the advice shows. What is held against the \
         target is the prediction itself, in each run. Where the settings stay, the prediction is what was recorded: such a \
         target is reached *as recorded*, and what the model makes of the recorded run stands beside it."
            .to_owned(),
        &["load", "figure", "defaults, recorded", "defaults, modelled", "advised, predicted", "corrected", "advised, measured", "error", "error, corrected", "target", "reached"],
        rows,
    )
}

/// A figure of each round, and what was measured of it.
fn prediction(
    it: &Closed,
    words: &str,
    error_max: Option<f64>,
    of: impl Fn(&Round) -> Option<(Sure, f64)>,
) -> Option<Vec<String>> {
    let found: Vec<(Sure, f64)> = it.rounds.iter().map(of).collect::<Option<_>>()?;
    let corrected = |sure: &Sure| sure.predicted * sure.recorded / sure.modelled.max(1e-6);
    let error = |predicted: f64, measured: f64| (predicted - measured) / measured.max(1e-6);
    let plain: Vec<f64> = found.iter().map(|(sure, value)| error(sure.predicted, *value)).collect();
    let other = found.iter().map(|(sure, value)| error(corrected(sure), *value));
    let (first, measured) = found.first()?;
    let text = |value: f64| match words {
        _ if words.contains("that hit") => format!("{:.1} %", value * 100.0),
        _ if words.contains("origin") => number(value),
        _ => number(value * 1e3),
    };
    let is_kept = it.rounds.iter().all(|round| round.advice.is_kept);
    Some(vec![
        it.case.name.to_owned(),
        words.to_owned(),
        text(first.recorded),
        text(first.modelled),
        text(first.predicted),
        text(corrected(first)),
        text(*measured),
        errors(Spread::of(plain.iter().copied())?, found.len()),
        errors(Spread::of(other)?, found.len()),
        error_max.map_or_else(|| "-".to_owned(), |most| format!("≤ {:.0} %", most * 100.0)),
        match error_max {
            None => "-",
            Some(most) if plain.iter().any(|error| error.abs() > most) => "**no**",
            Some(_) if is_kept => "as recorded",
            Some(_) => "yes",
        }
        .to_owned(),
    ])
}

fn number(value: f64) -> String {
    match value {
        large @ 100.0.. => format!("{large:.0}"),
        small => format!("{small:.3}"),
    }
}

fn errors(spread: Spread, rounds: usize) -> String {
    let [median, min, max] =
        [spread.median, spread.min, spread.max].map(|part| format!("{:+.0}", part * 100.0));
    if rounds == 1 { format!("{median} %") } else { format!("{median} % [{min}, {max}]") }
}

fn hits_words(it: &Closed) -> &'static str {
    match it.case.front {
        Front::Volume { .. } => "blocks read that hit",
        Front::Rows => "rows used that hit",
    }
}

/// Of the blocks read, or the rows used, those that were in the cache. What the model reads at the origin are the others.
fn hits(round: &Round) -> Option<(Sure, f64)> {
    let share = |(hits, all): (u64, u64)| (all > 0).then(|| hits as f64 / all as f64);
    let reads = round.advice.figure("origin-reads")?;
    let (_, all) = round.default.hits;
    let of = |misses: f64| (1.0 - misses / all as f64).max(0.0);
    let sure = Sure {
        what: "hits".to_owned(),
        recorded: share(round.default.hits)?,
        modelled: of(reads.modelled),
        predicted: of(reads.predicted),
    };
    Some((sure, share(round.advised.hits)?))
}

/// Of rounds that were advised the same, the first.
fn settings(closed: &[Closed]) -> Table {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for it in closed {
        let mut told: Vec<&str> = Vec::new();
        for round in &it.rounds {
            let command = &round.advice.command;
            let words = &command[command.find("--cache-size").unwrap_or_default()..];
            if told.contains(&words) {
                continue;
            }
            told.push(words);
            rows.push(vec![
                it.case.name.to_owned(),
                round.seed.to_string(),
                format!("`{words}`"),
                round.advice.reason.first().cloned().unwrap_or_default(),
            ]);
        }
    }
    table(
        "The loop: what was advised",
        "A seed that is missing was advised the same as one before it.".to_owned(),
        &["load", "seed", "settings", "why"],
        rows,
    )
}

fn table(title: &str, note: String, columns: &[&str], rows: Vec<Vec<String>>) -> Table {
    let columns = columns.iter().map(|&column| column.to_owned()).collect();
    Table { title: title.to_owned(), note, columns, rows }
}
