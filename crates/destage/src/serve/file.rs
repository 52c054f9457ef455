//! The settings file of `destage serve`: flags, sections of single tables, mappings of keys, and derived keys.

use super::args::ServeArgs;
use super::{mappings, queries};
use crate::error::CliError;
use crate::file::{self, FlagFile};
use crate::reload::Texts;
use clap::ArgMatches;
use destage_data::derived::QuerySettings;
use destage_data::domains::COUNT_DEFAULT;
use destage_data::mapping::MappingSettings;
use destage_data::settings::{DocumentSettings, DomainSettings, Settings, TableSettings};
use destage_data::ttl::TtlSettings;
use destage_runtime::policy::parse_on_reject;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A settings file, read but not yet merged with the flags.
pub(crate) struct File {
    flags: FlagFile<ServeArgs>,
    /// The `[table.NAME]` sections.
    pub(crate) tables: BTreeMap<String, TableSettings>,
    /// The `[[string]]`, `[[set]]`, `[[zset]]` and `[[hash]]` sections.
    pub(crate) mappings: Vec<MappingSettings>,
    /// The `[[query]]` sections.
    pub(crate) queries: Vec<QuerySettings>,
    /// The `[[domain]]` entries.
    pub(crate) domains: Vec<DomainSettings>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TableSection {
    blind: bool,
    ack: AckWord,
    triggers: Option<Triggers>,
    id: Option<String>,
    fields: BTreeMap<String, String>,
    required: Vec<String>,
    writers: WritersWord,
    new: NewWord,
    max_age: Option<String>,
    defaults: DefaultsWord,
    /// "refuse", "cached-copy" or "column NAME".
    ttl: Option<String>,
    fk: JudgeWord,
    unique: JudgeWord,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DomainEntry {
    name: String,
    #[serde(default)]
    tables: Vec<String>,
    column: Option<String>,
    #[serde(default)]
    columns: BTreeMap<String, String>,
    count: Option<u16>,
    #[serde(default)]
    assume_independent: bool,
    on_reject: Option<String>,
}

#[derive(Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum AckWord {
    #[default]
    Policy,
    Origin,
}

#[derive(Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum DefaultsWord {
    #[default]
    Origin,
    Here,
}

/// Who judges a constraint.
#[derive(Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum JudgeWord {
    #[default]
    Origin,
    Ask,
}

/// Who puts rows into a table, and changes them.
#[derive(Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum WritersWord {
    #[default]
    Destage,
    Others,
}

/// What becomes of a new row that meets a row at the origin.
#[derive(Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum NewWord {
    #[default]
    Insert,
    Upsert,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Triggers {
    Word(String),
    Tables(Vec<String>),
    Own(OwnColumns),
}

/// Triggers that change nothing but the row that is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnColumns {
    sets: Vec<String>,
}

/// Reads and checks a file.
pub(crate) fn read(path: &Path) -> Result<File, CliError> {
    file::read(path, parse)
}

/// The same from its text.
pub(crate) fn parse(text: &str) -> Result<File, String> {
    let mut keys = file::keys(text)?;
    let mappings = mappings::take(&mut keys)?;
    let queries = queries::take(&mut keys)?;
    let domains = domains(keys.remove("domain"))?;
    let (flags, sections) = FlagFile::of_keys(keys, &LISTS, "table")?;
    let tables = sections
        .into_iter()
        .map(|(name, section)| table(&name, section).map(|settings| (name, settings)))
        .collect::<Result<_, _>>()?;
    Ok(File { flags, tables, mappings, queries, domains })
}

/// The sections that may be written several times.
const LISTS: [&str; 6] = ["string", "set", "zset", "hash", "query", "domain"];

/// What is in force by the command line, the environment and this file; each section whole.
pub(crate) fn texts(path: &Path, line: &ArgMatches) -> Result<Texts, String> {
    let file = read(path).map_err(|error| error.to_string())?;
    let flags = file.flags.texts(line).map_err(|error| error.to_string())?;
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let sections =
        file::keys(&text)?.into_iter().filter(|(_, value)| value.is_table() || value.is_array());
    let mut all: BTreeMap<String, String> = flags;
    all.extend(sections.map(|(name, value)| (format!("[{name}]"), value.to_string())));
    Ok(Texts::from([(String::new(), all)]))
}

impl File {
    /// The flags of the command line, completed by those of the file.
    pub(crate) fn merged(&self, line: &ArgMatches) -> Result<ServeArgs, CliError> {
        self.flags.merged(line)
    }

    /// Its flags.
    pub(crate) fn alone(&self) -> Result<ServeArgs, CliError> {
        self.flags.alone().map_err(CliError::usage)
    }

    /// The settings that flags make, with those of the sections.
    pub(crate) fn completes(self, flags: ServeArgs) -> Result<Settings, CliError> {
        let Self { flags: _, tables, mappings, queries, domains } = self;
        Ok(Settings { tables, mappings, queries, domains, ..flags.into_settings()? })
    }
}

/// The ordering domains of the `[[domain]]` entries, in their order.
fn domains(entries: Option<toml::Value>) -> Result<Vec<DomainSettings>, String> {
    let entries = match entries {
        None => return Ok(Vec::new()),
        Some(toml::Value::Array(entries)) => entries,
        Some(_) => return Err("'domain' is not a list: write [[domain]]".into()),
    };
    let domain = |entry: toml::Value| {
        let entry: DomainEntry = entry
            .try_into()
            .map_err(|e: toml::de::Error| format!("[[domain]]: {}", e.message()))?;
        let by_value = entry.column.is_some() || !entry.columns.is_empty();
        if !by_value && entry.count.is_some() {
            let name = entry.name;
            return Err(format!(
                "[[domain]] {name}: count is for domains by the value of a column"
            ));
        }
        let on_reject = entry.on_reject.as_deref().map(parse_on_reject).transpose();
        let on_reject =
            on_reject.map_err(|error| format!("[[domain]] {}: on_reject: {error}", entry.name))?;
        Ok(DomainSettings {
            name: entry.name,
            tables: entry.tables,
            column: entry.column,
            columns: entry.columns,
            count: entry.count.unwrap_or(if by_value { COUNT_DEFAULT } else { 1 }),
            assume_independent: entry.assume_independent,
            on_reject,
        })
    };
    entries.into_iter().map(domain).collect()
}

fn table(name: &str, section: toml::Value) -> Result<TableSettings, String> {
    let section: TableSection = section
        .try_into()
        .map_err(|e: toml::de::Error| format!("[table.{name}]: {}", e.message()))?;
    let mut trigger_sets = Vec::new();
    let triggers = match section.triggers {
        None => None,
        Some(Triggers::Tables(tables)) => Some(tables),
        Some(Triggers::Own(OwnColumns { sets })) => {
            trigger_sets = sets;
            Some(Vec::new())
        }
        Some(Triggers::Word(word)) if word == "none" => Some(Vec::new()),
        Some(Triggers::Word(word)) => {
            return Err(format!(
                "[table.{name}]: triggers = '{word}' is neither \"none\" nor a list of the tables \
                 that they change nor {{ sets = [...] }}, the columns that they set in their own row"
            ));
        }
    };
    let max_age = section.max_age.as_deref().map(queries::age).transpose();
    let max_age = max_age.map_err(|error| format!("[table.{name}]: max_age: {error}"))?;
    let TableSection { id, fields, required, .. } = section;
    let is_said = id.is_some() || !fields.is_empty() || !required.is_empty();
    let document = is_said.then_some(DocumentSettings { id, fields, required });
    let ack_origin = section.ack == AckWord::Origin;
    let defaults_here = section.defaults == DefaultsWord::Here;
    let (copies_expire, ttl) = match section.ttl.as_deref() {
        None | Some("refuse") => (false, None),
        Some("cached-copy") => (true, None),
        Some(text) => {
            let ttl = TtlSettings::parse(text);
            (false, Some(ttl.map_err(|error| format!("[table.{name}]: ttl: {error}"))?))
        }
    };
    let blind = section.blind;
    let [ask_foreign_keys, ask_unique] =
        [section.fk, section.unique].map(|word| word == JudgeWord::Ask);
    let others_write = section.writers == WritersWord::Others;
    Ok(TableSettings {
        blind,
        ack_origin,
        triggers,
        trigger_sets,
        others_write,
        merges_new: section.new == NewWord::Upsert,
        max_age,
        copies_expire,
        ttl,
        ask_foreign_keys,
        ask_unique,
        document,
        defaults_here,
    })
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
