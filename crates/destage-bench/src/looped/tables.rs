//! What came of it: before and after, and predicted beside measured.

use super::advice::Sure;
use super::{Closed, RPO};
use crate::report::Table;

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
    let row = |it: &Closed| {
        let ratio = it.default.mean_ms / it.advised.mean_ms.max(1e-9);
        let reached = match ratio {
            _ if it.advice.is_kept => "the same settings",
            GAIN.. => "yes",
            1.0.. => "no, but not worse",
            _ => "**no**",
        };
        let ms = |value: f64| format!("{value:.2}");
        vec![
            it.case.name.to_owned(),
            it.default.operations.to_string(),
            ms(it.default.mean_ms),
            ms(it.advised.mean_ms),
            format!("{ratio:.2}"),
            format!("≥ {GAIN}"),
            reached.to_owned(),
            ms(it.default.p99_ms),
            ms(it.advised.p99_ms),
        ]
    };
    let whats: Vec<String> =
        closed.iter().map(|it| format!("{}: {}.", it.case.name, it.case.what)).collect();
    table(
        "The loop: an operation before and after, as its client sees it",
        format!(
            "Milliseconds. Asked for is the least mean with at most {RPO} lost. {}",
            whats.join(" ")
        ),
        &[
            "load",
            "operations",
            "mean, defaults",
            "mean, advised",
            "ratio",
            "target",
            "reached",
            "p99, defaults",
            "p99, advised",
        ],
        closed.iter().map(row).collect(),
    )
}

fn predictions(closed: &[Closed]) -> Table {
    let mut rows = Vec::new();
    for it in closed {
        for (name, words, error_max) in FIGURES {
            let (Some(before), Some(after)) = (it.advice.figure(name), it.after.figure(name))
            else {
                continue;
            };
            rows.push(prediction(it.case.name, words, error_max, before, after.recorded));
        }
        rows.extend(hit_rate(it));
    }
    table(
        "The loop: predicted beside measured",
        "Times are those of the servers' requests, milliseconds; the origin is behind by seconds. Corrected is what the model \
         predicts, times what it was off for the recorded run itself: the other end of the range that the advice shows. What \
         is held against the target is the prediction itself."
            .to_owned(),
        &["load", "figure", "defaults, recorded", "defaults, modelled", "advised, predicted", "corrected", "advised, measured", "error", "error, corrected", "target", "reached"],
        rows,
    )
}

fn prediction(
    load: &str,
    words: &str,
    error_max: Option<f64>,
    before: &Sure,
    measured: f64,
) -> Vec<String> {
    let factor = if words.contains("origin") { 1.0 } else { 1e3 };
    let text = |value: f64| match value * factor {
        large @ 100.0.. => format!("{large:.0}"),
        small => format!("{small:.3}"),
    };
    let corrected = before.predicted * before.recorded / before.modelled.max(1e-6);
    let error = |predicted: f64| (predicted - measured) / measured.max(1e-6);
    let plain = error(before.predicted);
    vec![
        load.to_owned(),
        words.to_owned(),
        text(before.recorded),
        text(before.modelled),
        text(before.predicted),
        text(corrected),
        text(measured),
        format!("{:+.0} %", plain * 100.0),
        format!("{:+.0} %", error(corrected) * 100.0),
        error_max.map_or_else(|| "-".to_owned(), |most| format!("≤ {:.0} %", most * 100.0)),
        match error_max {
            None => "-",
            Some(most) if plain.abs() <= most => "yes",
            Some(_) => "**no**",
        }
        .to_owned(),
    ]
}

/// Of the blocks read, those that were in the cache.
fn hit_rate(it: &Closed) -> Option<Vec<String>> {
    let (before, all) = it.default.hits.filter(|(_, all)| *all > 0)?;
    let (after, all_after) = it.advised.hits.filter(|(_, all)| *all > 0)?;
    let reads = it.advice.figure("origin-reads")?;
    let of = |misses: f64| 100.0 * (1.0 - misses / all as f64).max(0.0);
    let measured = 100.0 * after as f64 / all_after as f64;
    let predicted = of(reads.predicted);
    let error = (predicted - measured) / measured.max(1e-6);
    let percent = |value: f64| format!("{value:.1} %");
    Some(vec![
        it.case.name.to_owned(),
        "blocks read that hit".to_owned(),
        percent(100.0 * before as f64 / all as f64),
        percent(of(reads.modelled)),
        percent(predicted),
        "-".to_owned(),
        percent(measured),
        format!("{:+.0} %", error * 100.0),
        "-".to_owned(),
        format!("≤ {:.0} %", ERROR * 100.0),
        if error.abs() <= ERROR { "yes" } else { "**no**" }.to_owned(),
    ])
}

fn settings(closed: &[Closed]) -> Table {
    let row = |it: &Closed| {
        let from = it.advice.command.find("--cache-size").unwrap_or_default();
        vec![
            it.case.name.to_owned(),
            format!("`{}`", &it.advice.command[from..]),
            it.advice.reason.first().cloned().unwrap_or_default(),
        ]
    };
    table(
        "The loop: what was advised",
        String::new(),
        &["load", "settings", "why"],
        closed.iter().map(row).collect(),
    )
}

fn table(title: &str, note: String, columns: &[&str], rows: Vec<Vec<String>>) -> Table {
    let columns = columns.iter().map(|&column| column.to_owned()).collect();
    Table { title: title.to_owned(), note, columns, rows }
}
