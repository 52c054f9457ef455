//! What is done without a running server: looking at a cache, and making an origin whole.

use super::args::OriginTlsArgs;
use crate::error::CliError;
use crate::output::{Format, print, print_json};
use destage_block::cache::{self, CacheError, FileMedia, Inspection};
use destage_block::origin::{self, OriginIoError, OriginIoErrorKind};
use destage_block::redo::{InDoubt, RedoError, RedoStore, Replay, ask_coordinator};
use destage_runtime::exit;
use destage_runtime::human::{bytes, count};
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;

/// Flags of `inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// The cache: a file or a block device. May be in use.
    #[arg(long, value_name = "PATH")]
    cache: PathBuf,

    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Flags of `replay`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// The origin: file:/path, /dev/..., or an NBD export. No server may use it.
    #[arg(long, value_name = "ORIGIN")]
    origin: String,

    /// Where its redo store is; beside a file origin (NAME.destage) unless told.
    #[arg(long, value_name = "PLACE")]
    redo: Option<String>,

    #[command(flatten)]
    tls: OriginTlsArgs,

    /// For a volume of a consistency group: the redo store of the group's coordinator, which knows whether the last group was
    /// committed. Where the last server used it unless told.
    #[arg(long, value_name = "PLACE")]
    coordinator: Option<String>,

    /// The coordinator's redo store is lost for good: complete the last group here. The volume then is a state that existed;
    /// the group's other volumes may be one group older.
    #[arg(long, conflicts_with = "coordinator")]
    alone: bool,

    /// Overwrite blocks that something else has changed meanwhile.
    #[arg(long)]
    force: bool,
}

/// Shows what a cache says of itself; changes nothing.
pub(crate) fn inspect(args: &InspectArgs) -> Result<(), CliError> {
    let found = FileMedia::open_read_only(&args.cache)
        .and_then(|media| cache::inspect(Box::new(media)))
        .map_err(|error: CacheError| {
            let message = format!("{}: {error}", args.cache.display());
            CliError::new(exit::JOURNAL_UNUSABLE, message)
        })?;
    match args.format {
        Format::Json => print_json(&as_json(&found)),
        Format::Table => print(&as_table(&found)),
    }
}

fn as_json(found: &Inspection) -> serde_json::Value {
    let superblock = &found.superblock;
    let files = found.log_files.as_ref().map(|files| {
        files.iter().map(|f| json!({ "name": f.name, "bytes": f.bytes })).collect::<Vec<_>>()
    });
    json!({
        "uuid": superblock.uuid.to_string(),
        "generation": superblock.generation,
        "attachment": superblock.attachment.made,
        "created_ns": superblock.created_ns,
        "origin": superblock.origin.name,
        "origin_uuid": superblock.origin.uuid.to_string(),
        "volume_bytes": superblock.origin.volume_bytes,
        "total_bytes": superblock.geometry.total_bytes,
        "log_bytes": superblock.geometry.log_bytes(),
        "slots": superblock.geometry.slots,
        "decided": found.decided,
        "checkpoints": found.checkpoint_lsns,
        "log_files": files,
    })
}

fn as_table(found: &Inspection) -> String {
    let superblock = &found.superblock;
    let geometry = &superblock.geometry;
    let decided =
        found.decided.map_or_else(|| "unknown: no mark can be read".to_owned(), |n| n.to_string());
    let checkpoints: Vec<String> =
        found.checkpoint_lsns.iter().flatten().map(u64::to_string).collect();
    let checkpoints = match checkpoints.len() {
        0 => "none yet".to_owned(),
        _ => checkpoints.join(", "),
    };
    let rows = [
        ("cache", superblock.uuid.to_string()),
        ("origin", format!("{} ({})", superblock.origin.name, superblock.origin.uuid)),
        ("attachment", count(superblock.attachment.made)),
        ("volume", bytes(superblock.origin.volume_bytes)),
        ("size", bytes(geometry.total_bytes)),
        ("log", bytes(geometry.log_bytes())),
        ("slots", count(u64::from(geometry.slots))),
        ("decided up to", decided),
        ("checkpoints", checkpoints),
    ];
    let mut out = String::new();
    for (label, value) in rows {
        let _ = writeln!(out, "{label:<16} {value}");
    }
    match &found.log_files {
        None => out.push_str("log files        the table is damaged\n"),
        Some(files) => {
            for file in files {
                let _ = writeln!(out, "log file         {:<20} {}", file.name, bytes(file.bytes));
            }
        }
    }
    out
}

/// Completes or drops the last atomic group, so that the origin is a state that really existed.
pub(crate) fn replay(args: &ReplayArgs) -> Result<(), CliError> {
    let Some(place) = args.redo.clone().or_else(|| origin::sidecar(&args.origin)) else {
        return Err(CliError::usage(format!(
            "where is the redo store of {}? Name it by --redo, as for 'destage block serve'",
            args.origin
        )));
    };
    let options = args.tls.options()?;
    let origin = origin::open(&args.origin, &options).map_err(|error| origin_error(&error))?;
    if origin::absent(&place).is_some() {
        let message = format!(
            "there is no redo store {place}, so nothing tells whether {} is whole: name the redo store that was in use",
            args.origin
        );
        return Err(CliError::new(exit::ORIGIN_WENT_BACK, message));
    }
    let medium = origin::open(&place, &options).map_err(|error| origin_error(&error))?;
    let failed = |error: RedoError| redo_error(&place, &error);
    let mut store = RedoStore::open(medium).map_err(failed)?;
    if store.attachment().generation == 0 {
        let message = format!(
            "{place} was never used by a cache, so it does not tell whether {} is whole: name the redo store that was in use",
            args.origin
        );
        return Err(CliError::new(exit::ORIGIN_WENT_BACK, message));
    }
    if origin.size() > store.origin_bytes() {
        // What was added is no part of the last group, whose blocks are compared all the same.
        store.accept_growth();
    }
    let decide = |in_doubt: &InDoubt| {
        if args.alone {
            Ok(true)
        } else {
            ask_coordinator(args.coordinator.as_deref(), &options, in_doubt)
        }
    };
    let replay = store.recover_with(&*origin, args.force, &decide).map_err(failed)?;
    let done = store.done().0;
    print(&match replay {
        Replay::Nothing => format!("{} is whole: the volume as of write {done}", args.origin),
        Replay::Dropped { to } => format!(
            "dropped a group up to write {} that was not committed; {} is the volume as of write {done}",
            to.0, args.origin
        ),
        Replay::Written { from, to, blocks, foreign } => format!(
            "wrote {} blocks of the writes {} to {} again{}; {} is the volume as of write {done}",
            count(blocks),
            from.0,
            to.0,
            if foreign > 0 {
                format!(", {foreign} of them over someone else's")
            } else {
                String::new()
            },
            args.origin
        ),
    })?;
    match store.unwhole_before().map_err(failed)? {
        None => Ok(()),
        Some(upto) => Err(CliError::new(
            exit::ORIGIN_WENT_BACK,
            format!(
                "{place} took the place of a lost redo store, and its cache had not sent everything again up to write {}: {} may be \
                 no state that existed. Start the cache that it belongs to; if that is lost, check the file system",
                upto.0, args.origin
            ),
        )),
    }
}

pub(super) fn origin_error(error: &OriginIoError) -> CliError {
    CliError::new(exit::ORIGIN_UNREACHABLE, &error.message)
}

pub(super) fn redo_error(place: &str, error: &RedoError) -> CliError {
    if let RedoError::InDoubt { .. } = error {
        let message = format!(
            "{place}: {error}. Bring that store within reach or name it by --coordinator; if it is lost for good, --alone \
             completes the group here"
        );
        return CliError::new(exit::ORIGIN_UNREACHABLE, message);
    }
    let code = match error.kind() {
        OriginIoErrorKind::Fenced => exit::FENCED,
        OriginIoErrorKind::Unavailable => exit::ORIGIN_UNREACHABLE,
        _ => exit::JOURNAL_UNUSABLE,
    };
    CliError::new(code, format!("{place}: {error}"))
}
