//! What a start would find, looked at without changing anything.
//!
//! Only an attachment tells whether another host has the origin, and whether the origin is as it was left: that stays with the
//! start, and with `destage block check`.

use super::start::{cache_error, check_flush, open_origin, redo_error, tls};
use super::{ServeError, groups};
use crate::cache::{self, CacheDevice, CacheError, FileMedia};
use crate::origin::{self, Origin};
use crate::redo::RedoStore;
use crate::settings::{OriginTls, Settings, VolumeSettings, new_cache_bytes};
use destage_core::Order;
use destage_runtime::exit;
use destage_runtime::findings::Findings;
use destage_runtime::human::bytes;
use std::fs::{File, OpenOptions};
use std::path::Path;

/// Looks at everything that these settings name.
pub fn check(settings: &Settings) -> Findings {
    let mut findings = Findings::default();
    let is_running = settings.volumes.iter().any(|volume| is_locked(&volume.cache));
    findings.addresses(&settings.listen, settings.admin, is_running);
    findings.note("encryption", tls(settings), |_| "as the settings say".into());
    findings.note("consistency groups", groups::checked(settings), |found| found.len().to_string());
    if let Some(folder) = &settings.fuse {
        findings
            .note(format!("--fuse {}", folder.display()), fuse(folder), |text| (*text).to_owned());
    }
    for volume in &settings.volumes {
        check_volume(&mut findings, volume);
    }
    findings
}

/// Looks whether the volumes fit together, by what their settings say and nothing else.
///
/// # Errors
/// Any start would refuse them.
pub fn check_together(settings: &Settings) -> Result<(), ServeError> {
    groups::checked(settings).map(drop)
}

fn check_volume(findings: &mut Findings, settings: &VolumeSettings) {
    let place = if settings.name.is_empty() {
        String::new()
    } else {
        format!("volume '{}': ", settings.name)
    };
    if is_locked(&settings.cache) {
        let used = Ok::<(), ServeError>(());
        let what = format!("{place}cache {}", settings.cache.display());
        findings.note(what, used, |()| "in use by a server: its contents are not looked at".into());
        return;
    }
    if let Some(record) = &settings.record {
        let checked = record.check().map_err(|error| ServeError::usage(&error));
        findings.note(format!("{place}--record"), checked, |()| record.path.display().to_string());
    }
    let opened = OriginTls::options(settings.origin_tls.as_ref())
        .map_err(|error| ServeError::usage(&error))
        .and_then(|reach| open_origin(settings, &reach).map(|origin| (origin, reach)));
    let what = format!("{place}origin {}", settings.origin);
    let opened = findings.note(what, opened, |(origin, _)| bytes(origin.size()));
    if let Some((origin, reach)) = &opened {
        findings.note(format!("{place}order"), check_flush(settings, &**origin), |()| {
            "the origin can keep what the policy promises".into()
        });
        let redo = redo(settings, reach);
        findings.note(format!("{place}redo store"), redo, Clone::clone);
    }
    let what = format!("{place}cache {}", settings.cache.display());
    let name = opened.and_then(|(origin, _)| origin.identity().ok()).map(|identity| identity.name);
    findings.note(what, cache(settings, name.as_deref()), Clone::clone);
}

fn is_locked(path: &Path) -> bool {
    let file = OpenOptions::new().read(true).open(path);
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock)))
}

fn fuse(folder: &Path) -> Result<&'static str, ServeError> {
    let refused = |why: String| Err(ServeError::new(exit::USAGE, why));
    File::open("/dev/fuse").map_err(|error| {
        ServeError::new(exit::USAGE, format!("/dev/fuse cannot be opened: {error}"))
    })?;
    match std::fs::read_dir(folder).map(Iterator::count) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok("a start makes it"),
        Err(error) => refused(format!("{} cannot be looked at: {error}", folder.display())),
        Ok(entries) if entries > 0 => {
            refused(format!("{} is not empty: name an empty folder by --fuse", folder.display()))
        }
        Ok(_) => Ok("an empty folder"),
    }
}

fn redo(settings: &VolumeSettings, reach: &origin::NbdOptions) -> Result<String, ServeError> {
    let is_needed = settings.policy.order == Order::Domain;
    let Some(place) = settings.redo.clone().or_else(|| origin::sidecar(&settings.origin)) else {
        if is_needed {
            let why = format!(
                "the journaled policy needs room for atomic groups in the failure domain of {}: name it by --redo",
                settings.origin
            );
            return Err(ServeError::new(exit::USAGE, why));
        }
        return Ok("none is needed".into());
    };
    if origin::absent(&place).is_some() {
        return Ok(format!("{place}: a start makes it"));
    }
    let failed = |error: &origin::OriginIoError| {
        ServeError::new(exit::ORIGIN_UNREACHABLE, error.message.clone())
    };
    let medium = origin::open(&place, reach).map_err(|error| failed(&error))?;
    if origin::is_blank(&*medium).map_err(|error| failed(&error))? {
        return Ok(format!("{place}: blank, a start makes it"));
    }
    let store = RedoStore::open(medium).map_err(|error| redo_error(&place, &error))?;
    Ok(format!("{place}: groups of up to {}", bytes(store.group_bytes_max())))
}

fn cache(settings: &VolumeSettings, origin: Option<&str>) -> Result<String, ServeError> {
    let failed = |error: CacheError| cache_error(settings, &error);
    let path = &settings.cache;
    let size = bytes(settings.cache_bytes.unwrap_or_else(|| new_cache_bytes(path)));
    if !path.exists() {
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        std::fs::metadata(folder.unwrap_or_else(|| Path::new(".")))
            .map_err(|error| failed(CacheError::io("look at its folder")(error)))?;
        return Ok(format!("a start makes it, {size}"));
    }
    let media = || FileMedia::open_read_only(path).map_err(failed);
    match cache::inspect(Box::new(media()?)) {
        Ok(found) => {
            let name = &found.superblock.origin.name;
            if origin.is_some_and(|origin| origin != name) && !settings.adopt {
                let why = format!(
                    "the cache {} belongs to the origin {name}: name another cache, or give --adopt, which drops its clean blocks",
                    path.display()
                );
                return Err(ServeError::new(exit::JOURNAL_UNUSABLE, why));
            }
            Ok(format!("{} for {name}", bytes(found.superblock.geometry.total_bytes)))
        }
        Err(CacheError::NotACache) => {
            CacheDevice::check_empty(Box::new(media()?)).map_err(failed)?;
            Ok(format!("empty: a start makes a cache of it, {size}"))
        }
        Err(error) => Err(failed(error)),
    }
}
