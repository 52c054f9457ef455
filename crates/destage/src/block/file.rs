//! The settings file of `destage block serve`: flags, and one section for each volume.

use super::args::{BlockServeArgs, VolumeArgs};
use crate::error::CliError;
use crate::file::{self, FlagFile};
use crate::reload::Texts;
use clap::ArgMatches;
use std::path::Path;

/// A settings file, read but not yet merged with the flags.
pub(crate) struct File {
    flags: FlagFile<BlockServeArgs>,
    /// The `[volume.NAME]` sections.
    pub(crate) volumes: Vec<(String, VolumeArgs)>,
}

/// Reads and checks a file.
pub(crate) fn read(path: &Path) -> Result<File, CliError> {
    file::read(path, parse)
}

fn parse(text: &str) -> Result<File, String> {
    let (flags, sections) = FlagFile::parse(text, "volume")?;
    let volumes = sections
        .into_iter()
        .map(|(name, section)| {
            let in_section = |error| format!("[volume.{name}]: {error}");
            let args = FlagFile::section(section).and_then(|flags| flags.alone());
            Ok((name.clone(), args.map_err(in_section)?))
        })
        .collect::<Result<_, String>>()?;
    Ok(File { flags, volumes })
}

/// What is in force by the command line, the environment and this file.
pub(crate) fn texts(path: &Path, line: &ArgMatches) -> Result<Texts, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let (flags, sections) = FlagFile::<BlockServeArgs>::parse(&text, "volume")?;
    let flags = flags.texts(line).map_err(|error| error.to_string())?;
    let mut texts = Texts::from([(String::new(), flags)]);
    for (name, section) in sections {
        let own = FlagFile::<VolumeArgs>::section(section).and_then(|flags| flags.own_texts())?;
        texts.insert(format!("volume.{name}"), own);
    }
    Ok(texts)
}

impl File {
    /// The flags of the command line, completed by those of the file.
    pub(crate) fn merged(&self, line: &ArgMatches) -> Result<BlockServeArgs, CliError> {
        self.flags.merged(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_block::settings::Settings;
    use destage_core::{Acknowledge, Order, Span};

    fn merged(text: &str, line: &[&str]) -> Result<Settings, String> {
        let argv = std::iter::once("destage").chain(line.iter().copied());
        let matches = file::command::<BlockServeArgs>().try_get_matches_from(argv).unwrap();
        let file = parse(text)?;
        let args = file.merged(&matches).map_err(|e| e.to_string())?;
        args.into_settings(file.volumes).map_err(|e| e.to_string())
    }

    #[test]
    fn each_section_is_a_volume() {
        let text = r#"
            listen = "unix:/run/destage/block"
            fuse = "/run/destage/volumes"
            [volume.database]
            origin = "file:/disk.img"
            cache = "/ssd/database"
            policy = "ordered"
            order = "strict"
            commit = "0"
            [volume.log]
            origin = "nbd://storage/log"
            cache = "/ssd/log"
            policy = "write-through"
        "#;
        let settings = merged(text, &["--drain-timeout", "5s"]).unwrap();
        let names: Vec<_> = settings.volumes.iter().map(|volume| &volume.name[..]).collect();
        assert_eq!(names, ["database", "log"]);
        let [database, log] = &settings.volumes[..] else { panic!("two volumes") };
        assert_eq!(database.policy.order, Order::Strict);
        assert_eq!((database.policy.commit, database.commit_on_flush), (Span::ZERO, false));
        assert_eq!(log.policy.acknowledge, Acknowledge::Origin);
        assert!(log.commit_on_flush);
        assert_eq!(settings.drain_timeout, Span::from_secs(5));
        assert_eq!(settings.fuse.as_deref(), Some(Path::new("/run/destage/volumes")));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (text, line, part) in [
            ("", &["--cache", "/c"][..], "--origin is missing"),
            ("", &["--origin", "file:/o"], "--cache is missing"),
            ("[volume.a]\norigin = 'file:/o'", &[], "[volume.a]: --cache is missing"),
            ("[volume.a]\ncolour = 1", &[], "[volume.a]: unknown key 'colour'"),
            ("[volume.a]\npolicy = 'lazy'", &[], "[volume.a]: "),
            ("colour = 1", &[], "and [volume.NAME]"),
            ("", &["--origin", "o", "--cache", "c", "--listen", "0.0.0.0:1"], "--tls-client-ca"),
            (
                "",
                &["--origin", "o", "--cache", "c", "-d", "40s"],
                "must exceed the commit interval",
            ),
        ] {
            let error =
                merged(text, line).err().unwrap_or_else(|| panic!("{text} {line:?} is taken"));
            assert!(error.contains(part), "{error}");
        }
    }
}
