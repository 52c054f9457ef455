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

/// The same from its text.
pub(crate) fn parse(text: &str) -> Result<File, String> {
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

/// What is in force by the command line, the environment and this file; the volume without a section has no name.
pub(crate) fn texts(path: &Path, line: &ArgMatches) -> Result<Texts, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let (flags, sections) = FlagFile::<BlockServeArgs>::parse(&text, "volume")?;
    let has_own = own_volume(&flags, sections.iter().map(|(name, _)| name), line);
    let has_own = has_own.map_err(|error| error.to_string())?;
    let of_volumes = file::names::<VolumeArgs>();
    let all = flags.texts(line).map_err(|error| error.to_string())?;
    let (own, server) = all.into_iter().partition(|(name, _)| of_volumes.contains(name));
    let mut texts = Texts::from([(String::new(), server)]);
    if has_own {
        texts.insert("volume.".to_owned(), own);
    }
    for (name, section) in sections {
        let own = FlagFile::<VolumeArgs>::section(section).and_then(|flags| flags.own_texts())?;
        texts.insert(format!("volume.{name}"), own);
    }
    Ok(texts)
}

/// Whether there is a volume outside of the sections of these names.
///
/// # Errors
/// There is none, and something is said of it.
fn own_volume<'a>(
    flags: &FlagFile<BlockServeArgs>,
    mut sections: impl Iterator<Item = &'a String>,
    line: &ArgMatches,
) -> Result<bool, CliError> {
    let given = flags.given(line)?;
    let Some(first) = sections.next() else { return Ok(true) };
    if given.contains("origin") || given.contains("cache") {
        return Ok(true);
    }
    let said: Vec<_> = file::names::<VolumeArgs>().intersection(&given).cloned().collect();
    if said.is_empty() {
        return Ok(false);
    }
    Err(CliError::usage(format!(
        "{}: on the command line, and above the sections of the settings file, this is said of a volume without a section, and \
         there is none: write it into the section of each volume that it is meant for, such as [volume.{first}]",
        said.join(", ")
    )))
}

impl File {
    /// The flags of the command line, completed by those of the file.
    pub(crate) fn merged(&self, line: &ArgMatches) -> Result<BlockServeArgs, CliError> {
        own_volume(&self.flags, self.volumes.iter().map(|(name, _)| name), line)?;
        self.flags.merged(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_block::settings::Settings;
    use destage_core::{Acknowledge, Order, Span};

    fn matches(line: &[&str]) -> ArgMatches {
        let argv = std::iter::once("destage").chain(line.iter().copied());
        file::command::<BlockServeArgs>().try_get_matches_from(argv).unwrap()
    }

    fn merged(text: &str, line: &[&str]) -> Result<Settings, String> {
        let matches = matches(line);
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
            ("admin = '0.0.0.0:2'", &["--origin", "o", "--cache", "c"], "--admin 0.0.0.0:2 can be"),
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

    #[test]
    fn the_admin_port_is_open_to_other_hosts_with_a_password_or_where_that_is_meant() {
        let text = "admin = '192.0.2.1:2'\norigin = 'file:/o'\ncache = '/c'";
        assert!(merged(text, &[]).is_err());
        let settings = merged(text, &["--password", "secret"]).unwrap();
        assert!(settings.admin.is_some_and(|addr| !addr.ip().is_loopback()));
        assert!(merged(text, &["--no-auth"]).is_ok());
        assert!(merged(text, &["--admin", "[::1]:2"]).is_ok());
    }

    const TWO: &str = "[volume.a]\norigin = 'file:/a'\ncache = '/a'\n[volume.b]\norigin = 'file:/b'\ncache = '/b'\n";

    #[test]
    fn what_is_said_outside_of_all_sections_is_never_lost() {
        for line in [
            &["--read-only"][..],
            &["--policy", "write-through"],
            &["-d", "0"],
            &["-D", "5s"],
            &["--adopt"],
            &["--unsafe-no-fsync"],
        ] {
            let error = merged(TWO, line).err().unwrap_or_else(|| panic!("{line:?} is taken"));
            assert!(error.contains("into the section of each volume"), "{error}");
        }
        let error = merged(&format!("staleness = '5s'\nwhen = 'async'\n{TWO}"), &[]).err();
        let error = error.expect("it is of no volume");
        assert!(error.starts_with("staleness, when: ") && error.contains("[volume.a]"), "{error}");
        // The server's own keys stand there, and so does all of a volume without a section.
        assert_eq!(merged(TWO, &["--max-clients", "7"]).unwrap().volumes.len(), 2);
        let own = ["--origin", "file:/c", "--cache", "/c", "--read-only"];
        let read_only: Vec<bool> =
            merged(TWO, &own).unwrap().volumes.iter().map(|volume| volume.read_only).collect();
        assert_eq!(read_only, [true, false, false]);
    }

    #[test]
    fn no_variable_of_the_environment_is_about_a_volume() {
        // One that a unit sets for another server would be lost, or stop the start, where there are sections.
        let command = file::command::<VolumeArgs>();
        assert!(command.get_arguments().all(|arg| arg.get_env().is_none()));
    }

    #[test]
    fn what_is_read_again_outside_of_the_sections_is_of_the_volume_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("block.toml");
        let read = |text: &str, line: &[&str]| {
            std::fs::write(&path, text).unwrap();
            texts(&path, &matches(line))
        };
        let own = ["--origin", "file:/c", "--cache", "/c"];
        let all = read(&format!("staleness = '5s'\nmax-clients = 7\n{TWO}"), &own).unwrap();
        assert_eq!(all["volume."]["staleness"], "5s");
        assert_eq!((&all[""]["max-clients"][..], all[""].get("staleness")), ("7", None));
        assert_eq!(all["volume.a"]["staleness"], "30s");
        assert!(!read(TWO, &[]).unwrap().contains_key("volume."));
        let error = read(&format!("staleness = '5s'\n{TWO}"), &[]).unwrap_err();
        assert!(error.contains("into the section of each volume"), "{error}");
    }
}
