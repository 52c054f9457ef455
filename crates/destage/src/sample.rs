//! `destage settings`: a settings file with every key, commented out, at its default: made of what `--help` is made of.

use crate::block::args::{BlockServeArgs, VolumeArgs};
use crate::error::CliError;
use crate::file;
use crate::output::print;
use crate::serve::args::ServeArgs;
use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Args};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Flags of `settings`.
#[derive(Debug, clap::Args)]
pub(crate) struct SettingsArgs {
    /// Whose settings.
    #[arg(value_enum, default_value = "serve", value_name = "FRONT_END")]
    front_end: FrontEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FrontEnd {
    /// Of 'destage serve'.
    Serve,
    /// Of 'destage block serve'.
    Block,
}

/// Prints the sample.
pub(crate) fn run(args: &SettingsArgs) -> Result<(), CliError> {
    print(&sample(args.front_end))
}

/// The whole file.
pub(crate) fn sample(front_end: FrontEnd) -> String {
    match front_end {
        FrontEnd::Serve => {
            let head = "# Settings of 'destage serve --config FILE'. Each key is a flag without its dashes; flags and the\n\
                        # environment override the file. What is commented out stands at its default, or shows an example.\n";
            format!("{head}{}\n{SERVE_SECTIONS}", keys::<ServeArgs>(&BTreeSet::new(), ""))
        }
        FrontEnd::Block => {
            let head = "# Settings of 'destage block serve --config FILE'. Each key is a flag without its dashes; flags and the\n\
                        # environment override the file. What is commented out stands at its default, or shows an example.\n";
            let of_volumes = file::names::<VolumeArgs>();
            format!(
                "{head}{}\n{BLOCK_SECTION}{}",
                keys::<BlockServeArgs>(&of_volumes, ""),
                keys::<VolumeArgs>(&BTreeSet::new(), "")
            )
        }
    }
}

/// The flags that a file may hold.
fn args<A: Args>() -> Vec<Arg> {
    let command = file::command::<A>();
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "config");
    args.filter(|arg| arg.get_long().is_some()).cloned().collect()
}

fn keys<A: Args>(without: &BTreeSet<String>, indent: &str) -> String {
    let mut out = String::new();
    for arg in args::<A>() {
        let name = arg.get_long().unwrap_or_default();
        if without.contains(name) {
            continue;
        }
        let _ = write!(out, "\n{}{indent}# {name} = {}\n", help(&arg, indent), value(&arg, name));
    }
    out
}

/// The help as comments.
fn help(arg: &Arg, indent: &str) -> String {
    let text = arg.get_long_help().or_else(|| arg.get_help()).map(StyledStr::to_string);
    let text = text.unwrap_or_default();
    let mut out = String::new();
    let mut line = String::new();
    let words = text.split_whitespace().map(Some).chain([None]);
    for word in words {
        if word.is_none_or(|word| line.len() + word.len() > 96) && !line.is_empty() {
            let _ = writeln!(out, "{indent}##{line}");
            line.clear();
        }
        if let Some(word) = word {
            let _ = write!(line, " {word}");
        }
    }
    let choices = arg.get_possible_values();
    if !choices.is_empty() && !matches!(arg.get_action(), ArgAction::SetTrue) {
        let names: Vec<_> = choices.iter().map(clap::builder::PossibleValue::get_name).collect();
        let _ = writeln!(out, "{indent}## One of: {}.", names.join(", "));
    }
    out
}

/// The default, as the file writes it; of what has none, what a value looks like.
fn value(arg: &Arg, name: &str) -> String {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return "false".into();
    }
    let default = arg.get_default_values().first().and_then(|value| value.to_str());
    let text = default.or_else(|| example(name)).unwrap_or("");
    match text.parse::<u64>() {
        Ok(number) if default.is_some() && number > 0 => number.to_string(),
        _ => format!("{text:?}"),
    }
}

/// Keys without a default.
fn example(name: &str) -> Option<&'static str> {
    Some(match name {
        "origin" => "postgres://user:password@localhost/shop",
        "data" => "./destage-data",
        "replicas" => "redis://:password@a:6379,redis://:password@b:6379,redis://:password@c:6379",
        "journal" => "replicas",
        "advertise" => "cache.internal:6380",
        "auto-linger" => "1ms..500ms",
        "auto-batch" => "1000..16000",
        "admin-host" => "cache.internal",
        "change-origin" => "FROM=TO",
        "record" => "/var/lib/destage/recording",
        "record-size" => "1G",
        "run" => "redis-cli -u $DESTAGE_URL PING",
        "password" => "choose-one",
        "users" => "/etc/destage/users",
        "cache" => "/ssd/cache.img",
        "cache-size" => "4G",
        "log-size" | "dirty-limit" => "25%",
        "redo" => "file:/disk.destage",
        "group" => "database",
        "fuse" => "/run/destage/volumes",
        _ if name.ends_with("certificate") || name.ends_with("ca") => {
            "/etc/destage/certificate.pem"
        }
        _ if name.ends_with("key") => "/etc/destage/key.pem",
        _ => return None,
    })
}

const SERVE_SECTIONS: &str = include_str!("sample/serve.toml");
const BLOCK_SECTION: &str = "## One section for each volume; its keys follow. Without sections, the same keys stand above and make one\n\
                             ## volume with an empty name.\n# [volume.database]\n";

#[cfg(test)]
mod tests {
    use super::*;

    /// The file with what is commented out taken in, but for comments in words.
    fn taken_in(text: &str) -> String {
        let taken = |line: &str| match line.strip_prefix("# ") {
            Some(rest) if rest.contains(" = ") || rest.starts_with('[') => rest.to_owned(),
            _ => line.to_owned(),
        };
        text.lines().map(taken).collect::<Vec<_>>().join("\n")
    }

    fn names<A: Args>() -> BTreeSet<String> {
        args::<A>().iter().filter_map(Arg::get_long).map(str::to_owned).collect()
    }

    fn keys_of(table: &toml::Table) -> BTreeSet<String> {
        table
            .iter()
            .filter(|(_, value)| !value.is_table() && !value.is_array())
            .map(|(key, _)| key.clone())
            .collect()
    }

    #[test]
    fn every_key_of_the_program_is_in_the_sample_and_every_default_is_taken() {
        let text = taken_in(&sample(FrontEnd::Serve));
        let table: toml::Table = toml::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(keys_of(&table), names::<ServeArgs>());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("destage.toml");
        std::fs::write(&path, &text).unwrap();
        let shown = crate::serve::of_file(&path).map_err(|e| e.to_string()).unwrap();
        assert_eq!(shown.policy, destage_data::settings::Settings::default().policy);
        for section in ["table", "string", "set", "zset", "hash", "query", "domain"] {
            assert!(table.contains_key(section), "{section}");
        }
    }

    #[test]
    fn the_sample_of_volumes_has_the_keys_of_both_and_is_taken() {
        let text = taken_in(&sample(FrontEnd::Block));
        let table: toml::Table = toml::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let volume = table["volume"]["database"].as_table().unwrap();
        assert_eq!(keys_of(volume), names::<VolumeArgs>());
        let all: BTreeSet<_> = keys_of(&table).union(&keys_of(volume)).cloned().collect();
        assert_eq!(all, names::<BlockServeArgs>());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("destage.toml");
        std::fs::write(&path, &text).unwrap();
        assert!(crate::block::of_file(&path).is_ok());
    }

    #[test]
    fn the_sample_as_it_is_changes_nothing() {
        for front_end in [FrontEnd::Serve, FrontEnd::Block] {
            let table: toml::Table = toml::from_str(&sample(front_end)).unwrap();
            assert!(table.is_empty(), "{table:?}");
        }
    }
}
