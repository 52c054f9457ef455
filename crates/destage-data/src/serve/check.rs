//! What a start would find, looked at without changing anything.
//!
//! Only a claim tells whether another server owns the origin, and whether the origin went back: that stays with the start.

use super::ServeError;
use super::ends::missing_indexes;
use super::start::{check_reach, fit};
use super::whose::Whose;
use crate::catalog::Catalog;
use crate::origins::{self, Origin};
use crate::schema::Schema;
use crate::settings::{EXAMPLE_FILE, Settings, journal_dir};
use destage_journal::{CheckReport, DirDisk, Disk};
use destage_runtime::findings::Findings;
use destage_runtime::{exit, own, progress};
use std::fs::File;
use std::sync::Arc;

/// Looks at everything that these settings name.
pub fn check(settings: &Settings) -> Findings {
    let mut findings = Findings::default();
    let is_running = is_running(settings);
    findings.addresses(&settings.listen, settings.admin, is_running);
    if let Some(tls) = &settings.tls {
        let config = tls.config().map_err(ServeError::from);
        findings.note("encryption", config, |_| "as the settings say".into());
    }
    if let Some(users) = &settings.users {
        let read = users.clone().read().map_err(|error| ServeError::usage(&error));
        findings.note("--users", read, |users| format!("{} users", users.iter().len()));
    }
    if let Some(record) = &settings.record {
        let checked = record.check().map_err(|error| ServeError::usage(&error));
        findings.note("--record", checked, |()| record.path.display().to_string());
    }
    let data = settings.data.display();
    findings.note(format!("--data {data}"), folder(settings), |text| (*text).to_owned());
    let journal = journal(settings);
    let journal = findings.note("journal", journal, |found| match found {
        None => "none yet: a start makes it".to_owned(),
        Some((report, _)) => {
            let torn = report.torn.as_ref().map_or(0, |torn| torn.bytes);
            let torn = if torn > 0 {
                format!(", cuts a torn tail of {torn} bytes")
            } else {
                String::new()
            };
            format!("sound, writes {} to {}{torn}", report.first_lsn, report.last_lsn)
        }
    });
    let opened = open(settings);
    let Some(opened) = findings.note("origin", opened, |opened| opened.is_like()) else {
        return findings;
    };
    let Opened::Found { origin, mut schema } = opened else { return findings };
    let fits = check_reach(settings, &*origin, &schema)
        .and_then(|()| fit(settings, &*origin, &mut schema).map(drop));
    let tables = schema.reachable().len();
    findings.note("tables and keys", fits, |()| format!("{tables} tables, all settings fit"));
    if schema.rows_end {
        let told = match missing_indexes(&*origin, &schema).as_deref() {
            Ok([]) => "found by an index".to_owned(),
            Ok(missing) => {
                let each = missing.iter().map(|(table, statement)| {
                    format!("those of {table} are looked for through the whole table: {statement}")
                });
                each.collect::<Vec<_>>().join("; ")
            }
            Err(error) => format!("whether an index finds them is not known: {error}"),
        };
        findings.note("rows that end", Ok::<_, ServeError>(told), String::clone);
    }
    if let Some(Some((report, disk))) = journal {
        let belongs = belongs(settings, &*origin, &report);
        findings.note("whose journal", belongs, |text| (*text).to_owned());
        let readable = readable(&disk, &schema);
        findings.note("journaled writes", readable, |count| format!("{count}, all fit the tables"));
    }
    findings
}

/// The example shop is made by a start.
enum Opened {
    Example,
    Found { origin: Arc<dyn Origin>, schema: Box<Schema> },
}

impl Opened {
    fn is_like(&self) -> String {
        match self {
            Self::Example => "the example shop, which a start makes".into(),
            Self::Found { origin, .. } => format!("{} answers", origin.describe()),
        }
    }
}

fn open(settings: &Settings) -> Result<Opened, ServeError> {
    let example = settings.data.join(EXAMPLE_FILE);
    let url = match &settings.origin {
        Some(url) => url.clone(),
        None if example.is_file() => format!("sqlite:{}", example.display()),
        None => return Ok(Opened::Example),
    };
    let origin = origins::open(&url, settings.origin_timeout, &settings.tables)?;
    let schema = origin.schema()?;
    Ok(Opened::Found { origin, schema: Box::new(schema) })
}

/// Whether a server uses the journal now.
fn is_running(settings: &Settings) -> bool {
    let Ok(disk) = DirDisk::open_read_only(journal_dir(&settings.data)) else { return false };
    let Ok(lock) = File::open(disk.lock_path()) else { return false };
    // Let go at once: a start that looks at this moment is told to try again.
    matches!(lock.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock))
}

fn folder(settings: &Settings) -> Result<&'static str, ServeError> {
    let failed = |message: String| Err(ServeError::new(exit::JOURNAL_UNUSABLE, message));
    let data = &settings.data;
    match std::fs::metadata(data) {
        Ok(found) if found.is_dir() => match own::folder_at_risk(data) {
            Ok(None) => Ok("a folder of its own"),
            Ok(Some(risk)) => {
                failed(format!("the data folder {} is not safe: {risk}", data.display()))
            }
            Err(error) => {
                failed(format!("cannot look at the data folder {}: {error}", data.display()))
            }
        },
        Ok(_) => failed(format!("{} is no folder: name another one by --data", data.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok("a start makes it"),
        Err(error) => failed(format!("cannot look at the data folder {}: {error}", data.display())),
    }
}

type Found = Option<(CheckReport, Arc<dyn Disk>)>;

fn journal(settings: &Settings) -> Result<Found, ServeError> {
    let folder = journal_dir(&settings.data);
    if !folder.is_dir() {
        return Ok(None);
    }
    let disk: Arc<dyn Disk> = Arc::new(DirDisk::open_read_only(folder)?);
    let report = progress::of_segments("reading the journal", |shown| {
        destage_journal::check_with(&*disk, shown)
    })?;
    Ok(report.map(|report| (report, disk)))
}

fn belongs(
    settings: &Settings,
    origin: &dyn Origin,
    report: &CheckReport,
) -> Result<&'static str, ServeError> {
    let whose = Whose::read(&settings.data, &report.uuid, &origin.describe())?;
    match whose.other() {
        Some(other) if report.last_lsn > 0 && settings.change_origin.is_none() => {
            Err(ServeError::new(
                exit::ORIGIN_WENT_BACK,
                format!(
                    "the journal in {} belongs to the origin {other}, and this is {}: use that origin, or another --data folder",
                    settings.data.display(),
                    whose.found()
                ),
            ))
        }
        _ => Ok("this origin's"),
    }
}

/// How many writes there are, all of which must mean something to the tables as they are now.
fn readable(disk: &Arc<dyn Disk>, schema: &Schema) -> Result<u64, ServeError> {
    let (mut records, end) = progress::of_segments("looking for writes in the journal", |shown| {
        destage_journal::export_with(disk, 0, shown)
    })?;
    let mut count = 0;
    progress::of_segments("comparing the journal's writes with the tables", |shown| {
        while let Some(record) = records.advance()? {
            count += 1;
            let old = Catalog::decode(record.catalog).ok_or_else(|| {
                ServeError::new(exit::JOURNAL_UNUSABLE, "the journal's catalog cannot be read")
            })?;
            old.translate(schema, record.payload).map_err(|lacks| {
                let message = format!(
                    "write {} needs what the origin does not have any more: {lacks}. If the origin has it already, nothing is \
                     lost",
                    record.lsn
                );
                ServeError::new(exit::JOURNAL_UNUSABLE, message)
            })?;
            shown(records.progress());
        }
        end.map_or(Ok(count), |error| Err(error.into()))
    })
}
