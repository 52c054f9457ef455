//! Settings files: the same names as the flags, and sections.
//!
//! Each key becomes the flag of that name and goes through the flag's own parser, so that file and command line cannot
//! differ in what they take. Flags override the environment, which overrides the file.

use crate::error::CliError;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::marker::PhantomData;
use std::path::Path;

/// The flags that a settings file gives to a subcommand with the arguments `A`; not yet merged with those of the command
/// line.
#[derive(Debug)]
pub(crate) struct FlagFile<A> {
    /// The flag's name and the value, `None` for a switch.
    flags: Vec<(String, Option<String>)>,
    arguments: PhantomData<A>,
}

/// The sections `[KIND.NAME]` of a file, in the order of their names.
pub(crate) type Sections = Vec<(String, toml::Value)>;

/// Reads a file with sections of one kind; `parse` makes of its text what the subcommand needs.
pub(crate) fn read<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, CliError> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        CliError::usage(format!("failed to read the settings in {}: {e}", path.display()))
    })?;
    parse(&text).map_err(|e| CliError::usage(format!("in {}: {e}", path.display())))
}

/// The keys of a file.
pub(crate) fn keys(text: &str) -> Result<toml::Table, String> {
    toml::from_str(text).map_err(|e: toml::de::Error| {
        // Without the line itself, which may hold a password.
        let before = e.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        format!("line {}: {}", before.matches('\n').count() + 1, e.message().trim())
    })
}

impl<A: Args> FlagFile<A> {
    /// Parses and checks a file's text: its flags, and its sections `[kind.NAME]`.
    pub(crate) fn parse(text: &str, kind: &str) -> Result<(Self, Sections), String> {
        Self::of_keys(keys(text)?, &[], kind)
    }

    /// The same for keys that are read already, after those of these lists `[[NAME]]` were taken.
    pub(crate) fn of_keys(
        mut keys: toml::Table,
        lists: &[&str],
        kind: &str,
    ) -> Result<(Self, Sections), String> {
        let sections = match keys.remove(kind) {
            None => Vec::new(),
            Some(toml::Value::Table(sections)) => sections.into_iter().collect(),
            Some(_) => return Err(format!("'{kind}' is not a section: write [{kind}.NAME]")),
        };
        let flags = Self::from_keys(keys).map_err(|e| match e {
            Wrong::Key(e) => {
                let lists: String = lists.iter().map(|name| format!(", [[{name}]]")).collect();
                format!("{e}{lists} and [{kind}.NAME]")
            }
            Wrong::Value(e) => e,
        })?;
        Ok((flags, sections))
    }

    /// The same for the keys of one section, which has no sections of its own.
    pub(crate) fn section(keys: toml::Value) -> Result<Self, String> {
        let toml::Value::Table(keys) = keys else {
            return Err("this is no section".into());
        };
        Self::from_keys(keys).map_err(|e| match e {
            Wrong::Key(e) | Wrong::Value(e) => e,
        })
    }

    fn from_keys(keys: toml::Table) -> Result<Self, Wrong> {
        let command = command::<A>();
        let mut flags = Vec::new();
        for (key, value) in keys {
            let arg = find(&command, &key).map_err(Wrong::Key)?;
            flags.extend(flag(arg, &key, value).map_err(Wrong::Value)?);
        }
        let file = Self { flags, arguments: PhantomData };
        // Alone first, so that a wrong value is blamed on the file.
        file.alone().map_err(Wrong::Value)?;
        Ok(file)
    }

    /// The arguments as the file alone gives them.
    pub(crate) fn alone(&self) -> Result<A, String> {
        let argv = std::iter::once(OsString::from("destage")).chain(self.argv(|_| true));
        let matches = command::<A>().try_get_matches_from(argv).map_err(|e| reason(&e))?;
        A::from_arg_matches(&matches).map_err(|e| reason(&e))
    }

    /// The flags of the command line, completed by those of the file.
    pub(crate) fn merged(&self, line: &ArgMatches) -> Result<A, CliError> {
        A::from_arg_matches(&self.matches(line)?).map_err(CliError::usage)
    }

    /// The text in force of each flag that has one, by its name.
    pub(crate) fn texts(&self, line: &ArgMatches) -> Result<BTreeMap<String, String>, CliError> {
        let matches = self.matches(line)?;
        Ok(texts::<A>(&matches))
    }

    /// The names of the flags that the command line or the file gives, and not the environment or a default.
    pub(crate) fn given(&self, line: &ArgMatches) -> Result<BTreeSet<String>, CliError> {
        let matches = self.matches(line)?;
        let command = command::<A>();
        let is_given = |arg: &&Arg| {
            matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
        };
        let given = command.get_arguments().filter(is_given).filter_map(Arg::get_long);
        Ok(given.map(str::to_owned).collect())
    }

    fn matches(&self, line: &ArgMatches) -> Result<ArgMatches, CliError> {
        let command = command::<A>();
        let given = |arg: &Arg| {
            let id = arg.get_id().as_str();
            match line.value_source(id) {
                Some(ValueSource::CommandLine) => true,
                // An empty variable means that there is none.
                Some(ValueSource::EnvVariable) => {
                    line.get_raw(id).into_iter().flatten().any(|value| !value.is_empty())
                }
                _ => false,
            }
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
        command.try_get_matches_from(argv).map_err(CliError::usage)
    }

    /// The text of each flag as the file alone gives it.
    pub(crate) fn own_texts(&self) -> Result<BTreeMap<String, String>, String> {
        let argv = std::iter::once(OsString::from("destage")).chain(self.argv(|_| true));
        let matches = command::<A>().try_get_matches_from(argv).map_err(|e| reason(&e))?;
        Ok(texts::<A>(&matches))
    }

    fn argv(&self, keep: impl Fn(&str) -> bool) -> impl Iterator<Item = OsString> {
        self.flags.iter().filter(move |(name, _)| keep(name)).map(|(name, value)| match value {
            Some(value) => join(name, OsStr::new(value)),
            None => format!("--{name}").into(),
        })
    }
}

fn texts<A: Args>(matches: &ArgMatches) -> BTreeMap<String, String> {
    let command = command::<A>();
    let text = |arg: &Arg| {
        let (id, name) = (arg.get_id().as_str(), arg.get_long()?);
        if matches!(arg.get_action(), ArgAction::SetTrue) {
            return Some((name.to_owned(), matches.get_flag(id).to_string()));
        }
        let raw = matches.get_raw(id)?.map(OsStr::to_string_lossy).collect::<Vec<_>>();
        Some((name.to_owned(), raw.join(",")))
    };
    command.get_arguments().filter_map(text).collect()
}

/// The flags of a subcommand without the rest of the command line.
pub(crate) fn command<A: Args>() -> Command {
    A::augment_args(Command::new("destage").disable_help_flag(true))
}

/// The names of these flags.
pub(crate) fn names<A: Args>() -> BTreeSet<String> {
    command::<A>().get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect()
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
    Err(format!("unknown key '{key}': the keys are {}", keys.join(", ")))
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
        toml::Value::Array(list) if arg.get_value_delimiter().is_some() => listed(key, &list)?,
        _ => return Err(format!("{key} takes a text in quotes or a whole number")),
    };
    Ok(Some((key.to_string(), Some(text))))
}

/// A list of texts as the flag takes it, separated by commas.
fn listed(key: &str, list: &[toml::Value]) -> Result<String, String> {
    let texts: Option<Vec<&str>> = list.iter().map(toml::Value::as_str).collect();
    match texts {
        Some(texts) if !texts.is_empty() && !texts.iter().any(|text| text.contains(',')) => {
            Ok(texts.join(","))
        }
        _ => Err(format!("the list of {key} holds one text or more, in quotes and without commas")),
    }
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

/// What is wrong with a key of a file.
enum Wrong {
    Key(String),
    Value(String),
}
