//! The sections of the settings file that map keys to tables: `[[string]]`, `[[set]]`, `[[zset]]`, `[[hash]]`.

use destage_data::mapping::{MEMBERS_MAX_DEFAULT, MappingSettings, ShapeSettings};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StringSection {
    key: String,
    table: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HashSection {
    key: String,
    table: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SetSection {
    key: String,
    table: String,
    member: String,
    members_max: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SortedSetSection {
    key: String,
    table: String,
    member: String,
    score: String,
    members_max: Option<usize>,
}

/// Takes the mappings out of a file's keys: the special kinds first, each in the order of the file.
///
/// # Errors
/// Names the section and what is wrong with it.
pub(super) fn take(keys: &mut toml::Table) -> Result<Vec<MappingSettings>, String> {
    let mut mappings = Vec::new();
    take_kind(keys, "string", &mut mappings, |section: StringSection| MappingSettings {
        key: section.key,
        table: section.table,
        shape: ShapeSettings::String { value: section.value },
    })?;
    take_kind(keys, "set", &mut mappings, |section: SetSection| MappingSettings {
        key: section.key,
        table: section.table,
        shape: ShapeSettings::Set {
            member: section.member,
            score: None,
            members_max: section.members_max.unwrap_or(MEMBERS_MAX_DEFAULT),
        },
    })?;
    take_kind(keys, "zset", &mut mappings, |section: SortedSetSection| MappingSettings {
        key: section.key,
        table: section.table,
        shape: ShapeSettings::Set {
            member: section.member,
            score: Some(section.score),
            members_max: section.members_max.unwrap_or(MEMBERS_MAX_DEFAULT),
        },
    })?;
    take_kind(keys, "hash", &mut mappings, |section: HashSection| MappingSettings {
        key: section.key,
        table: section.table,
        shape: ShapeSettings::Hash,
    })?;
    Ok(mappings)
}

fn take_kind<S: for<'de> Deserialize<'de>>(
    keys: &mut toml::Table,
    kind: &str,
    mappings: &mut Vec<MappingSettings>,
    mapping: impl Fn(S) -> MappingSettings,
) -> Result<(), String> {
    let sections = match keys.remove(kind) {
        None => return Ok(()),
        Some(toml::Value::Array(sections)) => sections,
        Some(_) => {
            return Err(format!("[[{kind}]] is written with double brackets, once per mapping"));
        }
    };
    for (index, section) in sections.into_iter().enumerate() {
        let name = match section.get("key").and_then(toml::Value::as_str) {
            Some(key) if section.get("table").is_some() => format!("'{key}'"),
            _ => format!("number {}", index + 1),
        };
        let section: S = section
            .try_into()
            .map_err(|e: toml::de::Error| format!("[[{kind}]] {name}: {}", e.message()))?;
        mappings.push(mapping(section));
    }
    Ok(())
}
