//! `destage block check`.

use super::args::OriginTlsArgs;
use super::offline::{origin_error, redo_error};
use crate::error::CliError;
use crate::output::{Format, print, print_json};
use destage_block::attach::{self, WentBack};
use destage_block::block::Extent;
use destage_block::cache::{self, Against, CacheCheck, CheckError, FileMedia};
use destage_block::origin::{self, Origin};
use destage_block::redo::{RedoError, RedoStore};
use destage_runtime::exit;
use destage_runtime::human::count;
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Flags of `check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The cache: a file or a block device. No server may use it.
    #[arg(long, value_name = "PATH")]
    cache: PathBuf,

    /// Also check the redo store and the attach record of this origin, and compare each clean block with it.
    #[arg(long, value_name = "ORIGIN")]
    origin: Option<String>,

    /// Where the origin's redo store is; beside a file origin (NAME.destage) unless told.
    #[arg(long, requires = "origin", value_name = "PLACE")]
    redo: Option<String>,

    #[command(flatten)]
    tls: OriginTlsArgs,

    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// What was found out about an origin and its redo store.
struct Origins {
    origin: Arc<dyn Origin>,
    store: Option<RedoStore>,
    pending: Vec<Extent>,
    /// What is broken, in words.
    faults: Vec<String>,
    /// What looks as if something else had written to the origin, in words.
    differs: Vec<String>,
    remarks: Vec<String>,
}

/// Checks everything; changes nothing.
pub(crate) fn run(args: &CheckArgs) -> Result<(), CliError> {
    let cache_error = |error: &dyn std::fmt::Display| {
        CliError::new(exit::JOURNAL_UNUSABLE, format!("{}: {error}", args.cache.display()))
    };
    let media = FileMedia::open(&args.cache).map_err(|error| cache_error(&error))?;
    let mut origins = args.origin.as_ref().map(|origin| Origins::open(origin, args)).transpose()?;
    let against = origins.as_ref().map(|origins| Against {
        origin: &*origins.origin,
        applied: origins.store.as_ref().map_or(([0; 16], 0), |store| {
            (store.attachment().cache, store.applied(&*origins.origin).0)
        }),
        pending: &origins.pending,
    });
    let found = cache::check(Box::new(media), against.as_ref()).map_err(|error| match error {
        CheckError::Origin(error) => origin_error(&error),
        CheckError::Cache(error) => cache_error(&error),
    })?;
    if let Some(origins) = &mut origins {
        origins.compare(&found);
    }
    let none = (Vec::new(), Vec::new(), Vec::new());
    let (faults, differs, remarks) =
        origins.map_or(none, |origins| (origins.faults, origins.differs, origins.remarks));
    let faults: Vec<String> = found.faults.iter().cloned().chain(faults).collect();
    let remarks: Vec<String> = found.remarks.iter().cloned().chain(remarks).collect();
    match args.format {
        Format::Json => print_json(&as_json(&found, &faults, &differs, &remarks))?,
        Format::Table => print(&as_table(&found, &faults, &differs, &remarks))?,
    }
    if !faults.is_empty() {
        let message = format!("{} has {} faults", args.cache.display(), faults.len());
        return Err(CliError::new(exit::JOURNAL_UNUSABLE, message));
    }
    if found.differing_blocks > 0 || !differs.is_empty() {
        return Err(CliError::new(
            exit::ORIGIN_WENT_BACK,
            format!(
                "{} does not belong to the origin as it is: something else has changed it; start with a new cache, or with \
                 --adopt, which drops the clean blocks",
                args.cache.display()
            ),
        ));
    }
    if let Some(first) = found.first_damaged {
        return Err(CliError::new(
            exit::SLOTS_DAMAGED,
            format!(
                "{} holds {} damaged copies of clean blocks, the first in slot {first}: nothing is lost, since each is fetched \
                 again when it is read, but the device changes what is written to it: replace it",
                args.cache.display(),
                count(found.damaged_slots)
            ),
        ));
    }
    Ok(())
}

impl Origins {
    fn open(name: &str, args: &CheckArgs) -> Result<Self, CliError> {
        let options = args.tls.options()?;
        let origin = origin::open(name, &options).map_err(|error| origin_error(&error))?;
        let mut origins = Self {
            origin,
            store: None,
            pending: Vec::new(),
            faults: Vec::new(),
            differs: Vec::new(),
            remarks: Vec::new(),
        };
        let Some(place) = args.redo.clone().or_else(|| origin::sidecar(name)) else {
            origins.remarks.push("no redo store was named (--redo), so it was not checked".into());
            return Ok(origins);
        };
        if origin::absent(&place).is_some() {
            origins.faults.push(format!(
                "there is no redo store {place}: bring it back, or, if it is lost for good, see --adopt of 'destage block serve'"
            ));
            return Ok(origins);
        }
        let medium = origin::open(&place, &options).map_err(|error| origin_error(&error))?;
        match RedoStore::open(medium) {
            Ok(store) => origins.store = Some(store),
            Err(error @ RedoError::Origin(_)) => return Err(redo_error(&place, &error)),
            Err(error) => origins.faults.push(format!("the redo store {place}: {error}")),
        }
        origins.check_store(&place)?;
        Ok(origins)
    }

    fn check_store(&mut self, place: &str) -> Result<(), CliError> {
        let Some(store) = &self.store else { return Ok(()) };
        match store.check_pending() {
            Ok(0) => {}
            Ok(blocks) => self.remarks.push(format!(
                "an atomic group of {} blocks may be half written at the origin; the next start or 'destage block replay' \
                 completes or drops it",
                count(blocks)
            )),
            Err(error @ RedoError::Origin(_)) => return Err(redo_error(place, &error)),
            Err(error) => {
                self.faults.push(format!("the redo store {place}: {error}"));
                return Ok(());
            }
        }
        self.pending = store.pending_extents().map_err(|error| redo_error(place, &error))?;
        let report = attach::examine(store, &*self.origin, None);
        self.differs = report.map_err(|error| redo_error(place, &error))?.differs;
        Ok(())
    }

    /// Whose the origin is.
    fn compare(&mut self, found: &CacheCheck) {
        let Some(store) = &self.store else { return };
        let (cache, origin) = (found.superblock.uuid, found.superblock.origin.uuid);
        if *origin.as_bytes() != store.uuid() {
            let advice = match store.attachment().generation {
                0 => {
                    "; its redo store is an unused one, as after a loss: see --adopt of 'destage block serve'"
                }
                _ => "",
            };
            self.faults.push(format!(
                "the cache belongs to the origin {} ({origin}), not to this one{advice}",
                found.superblock.origin.name
            ));
            return;
        }
        let record = store.attachment();
        let applied = store.applied(&*self.origin).0;
        if record.generation > 0 && record.cache != *cache.as_bytes() {
            self.differs.push(format!(
                "another cache has served the origin since, from host \"{}\" (attachment {})",
                record.host, record.generation
            ));
        }
        match attach::went_back(record, cache.as_bytes(), found.superblock.attachment) {
            None => {}
            Some(WentBack::Cache { knows, recorded }) => self.faults.push(format!(
                "the cache was attached {recorded} times, and this one knows of {knows}: it is an older copy of itself"
            )),
            Some(WentBack::Record { knows, recorded }) => self.differs.push(format!(
                "the cache was attached {knows} times, and the redo store knows of {recorded}: that is an older copy of itself"
            )),
        }
        if record.cache == *cache.as_bytes() && applied > found.log.1.max(found.decided_mark) {
            self.faults.push(format!(
                "the origin holds writes up to {}, and the log of its cache ends at {}: the cache is an older copy of itself",
                applied, found.log.1
            ));
        }
        if record.attached {
            self.remarks.push(format!(
                "the cache has not detached from the origin (host \"{}\")",
                record.host
            ));
        }
    }
}

fn as_json(
    found: &CacheCheck,
    faults: &[String],
    differs: &[String],
    remarks: &[String],
) -> serde_json::Value {
    json!({
        "uuid": found.superblock.uuid.to_string(),
        "sound": faults.is_empty() && differs.is_empty() && found.is_sound(),
        "log_first": found.log.0,
        "log_last": found.log.1,
        "decided": found.decided,
        "undecided_groups": found.undecided_groups,
        "dirty_blocks": found.dirty_blocks,
        "marks_ahead": found.marks_ahead,
        "checkpoint": found.checkpoint,
        "clean_blocks": found.clean_blocks,
        "outdated_slots": found.outdated_slots,
        "damaged_slots": found.damaged_slots,
        "first_damaged_slot": found.first_damaged,
        "compared_blocks": found.compared_blocks,
        "differing_blocks": found.differing_blocks,
        "first_differing_block": found.first_differing.map(|lba| lba.0),
        "faults": faults,
        "differs": differs,
        "remarks": remarks,
    })
}

fn as_table(
    found: &CacheCheck,
    faults: &[String],
    differs: &[String],
    remarks: &[String],
) -> String {
    let rows = [
        ("cache", found.superblock.uuid.to_string()),
        ("origin", found.superblock.origin.name.clone()),
        ("log", format!("writes {} to {}", found.log.0, found.log.1)),
        ("at the origin", format!("up to write {}", found.decided)),
        ("undecided", count(found.undecided_groups)),
        ("dirty blocks", count(found.dirty_blocks)),
        ("marks ahead", count(found.marks_ahead)),
        ("checkpoint at", found.checkpoint.to_string()),
        ("clean blocks", count(found.clean_blocks)),
        ("outdated slots", count(found.outdated_slots)),
        ("damaged slots", count(found.damaged_slots)),
        ("compared", count(found.compared_blocks)),
        ("differing", count(found.differing_blocks)),
    ];
    let mut out = String::new();
    for (label, value) in rows {
        let _ = writeln!(out, "{label:<16} {value}");
    }
    if let Some(lba) = found.first_differing {
        let _ = writeln!(out, "first differing  block {}", lba.0);
    }
    for (label, lines) in [("remark", remarks), ("differs", differs), ("FAULT", faults)] {
        for line in lines {
            let _ = writeln!(out, "{label:<16} {line}");
        }
    }
    out
}
