//! `destage serve`: Redis clients in front of a SQL database.

pub(crate) mod args;
mod checks;
mod file;
mod mappings;
mod queries;

use crate::cli::Cli;
use crate::error::CliError;
use crate::reload;
use crate::server::{refuse_controls, warn_of_controls};
use args::ServeArgs;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use destage_data::settings::{Settings, UnsafeFlags};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Reads the settings file, if there is one, then starts the server and stays until it ends.
pub(crate) fn run(matches: &ArgMatches) -> Result<(), CliError> {
    let settings = settings(matches)?;
    refuse_controls(settings.unsafe_flags.any())?;
    warn(&settings);
    let config = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
    let reread = reload::rereading(config, matches, file::texts);
    destage_data::serve::run(settings, reread)
        .map_err(|error| CliError::new(error.exit_code(), error))
}

/// Flags over environment over file over defaults, parsed and checked.
fn settings(matches: &ArgMatches) -> Result<Settings, CliError> {
    let args = ServeArgs::from_arg_matches(matches).map_err(CliError::usage)?;
    let settings = match &args.config {
        None => args.into_settings()?,
        Some(path) => {
            let file = file::read(path)?;
            let args = file.merged(matches)?;
            file.completes(args)?
        }
    };
    checks::check(&settings)?;
    Ok(settings)
}

/// The settings that a file gives by itself.
pub(crate) fn of_file(path: &Path) -> Result<Settings, CliError> {
    let file = file::read(path)?;
    let args = file.alone()?;
    file.completes(args)
}

/// The settings of a server that is started with a file and the environment, checked as at a start.
pub(crate) fn checked(path: &Path) -> Result<Settings, CliError> {
    let line = Cli::command().try_get_matches_from([
        OsStr::new("destage"),
        "serve".as_ref(),
        "--config".as_ref(),
        path.as_ref(),
    ]);
    let line = line.map_err(CliError::usage)?;
    settings(line.subcommand_matches("serve").expect("the subcommand was given"))
}

/// Whether a start takes a settings file of this text, as far as that can be told without a look at what it names.
pub(crate) fn check_text(text: &str) -> Result<(), CliError> {
    let line = Cli::command().try_get_matches_from(["destage", "serve"]);
    let line = line.map_err(CliError::usage)?;
    let line = line.subcommand_matches("serve").expect("the subcommand was given");
    let file = file::parse(text).map_err(CliError::usage)?;
    let args = file.merged(line)?;
    checks::check(&file.completes(args)?)
}

/// Says aloud, whatever the log level, what has been switched off.
fn warn(settings: &Settings) {
    let UnsafeFlags {
        no_fsync,
        no_watermark,
        no_overlay,
        no_read_gate,
        split_sessions,
        no_leases,
        no_query_destage,
        no_query_invalidation,
        one_watermark,
        // Only the library sends raw SQL.
        no_opaque_wait: _,
        // The library's tests alone set it.
        no_builds_on: _,
        early_reclaim,
        no_log_lease,
        forgetful_filter: _,
    } = settings.unsafe_flags;
    warn_of_controls(&[
        (no_fsync, "--unsafe-no-fsync", "a crash loses acknowledged writes"),
        (no_watermark, "--unsafe-no-watermark", "a retry applies writes twice"),
        (no_overlay, "--unsafe-no-overlay", "reads miss acknowledged writes"),
        (no_read_gate, "--unsafe-no-read-gate", "a crash takes back values that were read"),
        (split_sessions, "--unsafe-split-sessions", "transactions come apart"),
        (no_leases, "--unsafe-no-leases", "sessions overwrite what others have read"),
        (no_query_destage, "--unsafe-no-query-destage", "derived keys miss acknowledged writes"),
        (
            no_query_invalidation,
            "--unsafe-no-query-invalidation",
            "derived keys show what was before acknowledged writes",
        ),
        (one_watermark, "--unsafe-one-watermark", "writes of other domains pass for destaged"),
        (early_reclaim, "--unsafe-early-reclaim", "a lost host loses acknowledged writes"),
        (no_log_lease, "--unsafe-no-log-lease", "a former owner shows old values"),
    ]);
}
