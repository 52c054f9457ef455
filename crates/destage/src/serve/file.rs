//! The settings file: the same names as the flags, and sections of single tables.
//!
//! Each key becomes the flag of that name and goes through the flag's own parser, so that file and command line cannot
//! differ in what they take. Flags override the environment, which overrides the file.

use super::args::ServeArgs;
use crate::error::CliError;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use destage_data::settings::TableSettings;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// A settings file, read but not yet merged with the flags.
pub(crate) struct File {
    /// The flag's name and the value, `None` for a switch.
    flags: Vec<(String, Option<String>)>,
    /// The `[table.NAME]` sections.
    pub(crate) tables: BTreeMap<String, TableSettings>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TableSection {
    blind: bool,
    ack: AckWord,
    triggers: Option<Triggers>,
}

#[derive(Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum AckWord {
    #[default]
    Policy,
    Origin,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Triggers {
    Word(String),
    Tables(Vec<String>),
}

/// Reads and checks a file.
pub(crate) fn read(path: &Path) -> Result<File, CliError> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        CliError::usage(format!("failed to read the settings in {}: {e}", path.display()))
    })?;
    parse(&text).map_err(|e| CliError::usage(format!("in {}: {e}", path.display())))
}

fn parse(text: &str) -> Result<File, String> {
    let mut keys: toml::Table = toml::from_str(text).map_err(|e| e.to_string())?;
    let tables = match keys.remove("table") {
        None => BTreeMap::new(),
        Some(toml::Value::Table(sections)) => sections
            .into_iter()
            .map(|(name, section)| table(&name, section).map(|settings| (name, settings)))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err("'table' is not a section: write [table.NAME]".into()),
    };
    let command = command();
    let mut flags = Vec::new();
    for (key, value) in keys {
        let arg = find(&command, &key)?;
        flags.extend(flag(arg, &key, value)?);
    }
    let file = File { flags, tables };
    // Alone first, so that a wrong value is blamed on the file.
    let argv = std::iter::once(OsString::from("destage")).chain(file.argv(|_| true));
    command.try_get_matches_from(argv).map_err(|e| reason(&e))?;
    Ok(file)
}

impl File {
    /// The flags of the command line, completed by those of the file.
    pub(crate) fn merged(&self, line: &ArgMatches) -> Result<ServeArgs, CliError> {
        let command = command();
        let given = |arg: &Arg| {
            matches!(
                line.value_source(arg.get_id().as_str()),
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            )
        };
        let mut argv = vec![OsString::from("destage")];
        argv.extend(self.argv(|name| find(&command, name).is_ok_and(|arg| !given(arg))));
        for arg in command.get_arguments() {
            let id = arg.get_id().as_str();
            if line.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            let Some(name) = arg.get_long() else { continue };
            if matches!(arg.get_action(), ArgAction::SetTrue) {
                argv.push(format!("--{name}").into());
            } else {
                argv.extend(line.get_raw(id).into_iter().flatten().map(|raw| join(name, raw)));
            }
        }
        let matches = command.try_get_matches_from(argv).map_err(CliError::usage)?;
        ServeArgs::from_arg_matches(&matches).map_err(CliError::usage)
    }

    fn argv(&self, keep: impl Fn(&str) -> bool) -> impl Iterator<Item = OsString> {
        self.flags.iter().filter(move |(name, _)| keep(name)).map(|(name, value)| match value {
            Some(value) => join(name, OsStr::new(value)),
            None => format!("--{name}").into(),
        })
    }
}

/// The flags of `serve` without the rest of the command line.
fn command() -> Command {
    ServeArgs::augment_args(Command::new("destage").disable_help_flag(true))
}

fn find<'a>(command: &'a Command, key: &str) -> Result<&'a Arg, String> {
    let known = |arg: &&Arg| !arg.is_hide_set() && arg.get_id() != "config";
    let mut keys: Vec<_> = Vec::new();
    for arg in command.get_arguments().filter(known) {
        let Some(name) = arg.get_long() else { continue };
        if name == key {
            return Ok(arg);
        }
        keys.push(name);
    }
    Err(format!("unknown key '{key}': the keys are {} and [table.NAME]", keys.join(", ")))
}

fn flag(
    arg: &Arg,
    key: &str,
    value: toml::Value,
) -> Result<Option<(String, Option<String>)>, String> {
    let switch = matches!(arg.get_action(), ArgAction::SetTrue);
    let text = match value {
        toml::Value::Boolean(set) if switch => {
            return Ok(set.then(|| (key.to_string(), None)));
        }
        _ if switch => return Err(format!("{key} is true or false")),
        toml::Value::String(text) => text,
        toml::Value::Integer(number) => number.to_string(),
        _ => return Err(format!("{key} takes a text in quotes or a whole number")),
    };
    Ok(Some((key.to_string(), Some(text))))
}

fn table(name: &str, section: toml::Value) -> Result<TableSettings, String> {
    let section: TableSection = section
        .try_into()
        .map_err(|e: toml::de::Error| format!("[table.{name}]: {}", e.message()))?;
    let triggers = match section.triggers {
        None => None,
        Some(Triggers::Tables(tables)) => Some(tables),
        Some(Triggers::Word(word)) if word == "none" => Some(Vec::new()),
        Some(Triggers::Word(word)) => {
            return Err(format!(
                "[table.{name}]: triggers = '{word}' is neither \"none\" nor a list of the tables \
                 that they change"
            ));
        }
    };
    Ok(TableSettings { blind: section.blind, ack_origin: section.ack == AckWord::Origin, triggers })
}

fn join(name: &str, value: &OsStr) -> OsString {
    let mut arg = OsString::from(format!("--{name}="));
    arg.push(value);
    arg
}

/// The first lines of a parser's error, without the usage that belongs to a command line.
fn reason(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    text.split("\n\n").next().unwrap_or(text).trim_end().to_string()
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
