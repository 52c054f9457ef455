//! The `[[query]]` sections of the settings file: derived keys.

use destage_core::Span;
use destage_data::derived::QuerySettings;
use destage_runtime::units::Interval;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Results are kept for at least so long, and at most.
const AGE_MIN: Span = Span::from_millis(10);
const AGE_MAX: Span = Span::from_secs(30 * 24 * 3_600);
/// Nobody waits for longer.
const DEADLINE_MAX: Span = Span::from_secs(3_600);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    key: String,
    sql: String,
    depends_on: Vec<String>,
    #[serde(default)]
    types: BTreeMap<String, String>,
    #[serde(default, rename = "match")]
    matches: BTreeMap<String, String>,
    max_age: Option<String>,
    #[serde(default)]
    on_write: OnWrite,
    deadline: Option<String>,
}

#[derive(Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum OnWrite {
    #[default]
    Invalidate,
    Keep,
}

/// Takes the sections out of a file's keys.
pub(crate) fn take(keys: &mut toml::Table) -> Result<Vec<QuerySettings>, String> {
    let sections = match keys.remove("query") {
        None => return Ok(Vec::new()),
        Some(toml::Value::Array(sections)) => sections,
        Some(_) => return Err("'query' is not a list of sections: write [[query]]".into()),
    };
    sections.into_iter().enumerate().map(|(at, section)| query(at + 1, section)).collect()
}

fn query(number: usize, section: toml::Value) -> Result<QuerySettings, String> {
    let blame = |error: &str| format!("[[query]] number {number}: {error}");
    let section: Section = section.try_into().map_err(|e: toml::de::Error| blame(e.message()))?;
    let max_age = section.max_age.as_deref().map(age).transpose();
    let max_age = max_age.map_err(|error| blame(&format!("max_age: {error}")))?;
    let deadline = match &section.deadline {
        None => QuerySettings::DEADLINE_DEFAULT,
        Some(text) => {
            within(text, DEADLINE_MAX).map_err(|error| blame(&format!("deadline: {error}")))?
        }
    };
    Ok(QuerySettings {
        key: section.key,
        sql: section.sql,
        depends_on: section.depends_on,
        types: section.types,
        matches: section.matches,
        max_age,
        keep: section.on_write == OnWrite::Keep,
        deadline,
    })
}

/// A greatest age of what is cached.
pub(crate) fn age(text: &str) -> Result<Span, String> {
    within(text, AGE_MAX)
}

fn within(text: &str, most: Span) -> Result<Span, String> {
    let span = text.parse::<Interval>().map_err(|error| error.to_string())?.0;
    if (AGE_MIN..=most).contains(&span) {
        Ok(span)
    } else {
        Err(format!("'{text}' is out of range: {} to {}", Interval(AGE_MIN), Interval(most)))
    }
}
