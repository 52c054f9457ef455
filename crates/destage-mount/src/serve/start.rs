//! A start: the origin, the claim, the journal, and what an earlier run left in it.

use super::live::Live;
use super::{Outbox, ServeError, share};
use crate::ask::{Errno, Make};
use crate::engine::{Below, Front, FrontSettings, Homes, OwnFolders, Scan, read_group};
use crate::origin::claim::Claim;
use crate::origin::pool::Pool;
use crate::origin::{Key, LocalOrigin, Origin};
use crate::settings::Settings;
use crate::tokens::Tokens;
use destage_core::{Lsn, Time};
use destage_engine::Drive;
use destage_journal::{DirDisk, Journal, Options};
use destage_runtime::clock::Clock;
use destage_runtime::exit;
use destage_runtime::policy;
use destage_runtime::progress::{self, Progress};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What a start has made.
pub(super) struct Started {
    pub(super) live: Arc<Live>,
    pub(super) root: u64,
    /// Undecided groups that were found.
    pub(super) found: u64,
    /// See [`PAGE_CACHE`].
    pub(super) has_page_cache: bool,
    /// Held for as long as the origin is.
    pub(super) _claim: Claim,
}

pub(super) fn start(
    settings: &Settings,
    clock: &Clock,
    outbox: Outbox,
) -> Result<Started, ServeError> {
    let origin = open_origin(settings)?;
    check_places(settings)?;
    if let Some(record) = &settings.record {
        record.check().map_err(|error| ServeError::usage(&error))?;
    }
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        origin = %settings.origin.display(),
        journal = %settings.journal.display(),
        policy = policy::summary(&settings.policy),
        "starting"
    );
    let disk = DirDisk::open(&settings.journal)?;
    let (journal, recovery) = progress::of_segments("reading the journal", |shown| {
        Journal::open_with(Arc::new(disk), options(settings), shown)
    })?;
    let uuid = journal.uuid().to_owned();
    let own = own_folders(&origin, &uuid).map_err(|error| {
        let place = settings.origin.display();
        let message = format!(
            "cannot keep files of its own in {place}/.destage: {error}: the origin must be writable for this process (root \
             squashed or read-only ones are not)"
        );
        ServeError::new(exit::USAGE, message)
    })?;
    let folder = settings.origin.join(OsStr::from_bytes(crate::OWN_FOLDER));
    let mount = uuid::Uuid::parse_str(&uuid).unwrap_or_default();
    let claim = match &settings.tokens {
        Some(_) => Claim::share(&folder, &uuid)?,
        None => Claim::whole(&folder, &uuid)?,
    };
    check_handles(&origin, &own, settings)?;
    let (longest, has_page_cache) =
        probe_file(&origin, &own).map_err(|error| unreachable_origin(settings, error))?;
    if has_page_cache && settings.tokens.is_some() {
        return Err(ServeError::new(exit::USAGE, format!("--tokens promises more: {PAGE_CACHE}")));
    }
    if has_page_cache {
        tracing::warn!("{PAGE_CACHE}");
    }
    let origin = Arc::new(origin);
    let shared = match &settings.tokens {
        Some(shared) => Some(share::start(shared, &origin, &folder, mount)?),
        None => None,
    };
    let origin: Arc<dyn Origin> = origin;
    let root = origin.root().ino;
    let tokens = shared.as_deref();
    let (mut front, found, epoch) = recover(settings, clock, journal, origin.clone(), tokens)?;
    front.tree.file_bytes_max = longest;
    front.counted.cut_bytes = recovery.torn.map_or(0, |torn| torn.bytes);
    let is_used = |ino| front.tree.node(ino).is_some();
    let pool =
        Pool::sweep(origin.clone(), own.clone(), front.tree.staged_max(), is_used, MADE_AT_A_TIME);
    let pool = pool.map_err(|error| unreachable_origin(settings, error))?;
    let space = origin.space().map_err(|error| unreachable_origin(settings, error))?;
    front.set_space(&space, front.landed());
    if let Some(record) = &settings.record {
        let recorded = front.core_mut().record(record, env!("CARGO_PKG_VERSION"), "mount");
        recorded.map_err(|error| ServeError::usage(&error))?;
    }
    front.begin(clock.now(), mount.into_bytes(), epoch + 1);
    let live = Live::start(front, origin, own, pool, clock.clone(), outbox)
        .map_err(|error| ServeError::internal(&error))?;
    if let (Some(tokens), Some(settings)) = (shared, &settings.tokens) {
        share::take_up(&live, tokens, settings)?;
    }
    Ok(Started { live, root, found, has_page_cache, _claim: claim })
}

fn options(settings: &Settings) -> Options {
    let bytes = settings.journal_bytes;
    Options {
        segment_bytes: (bytes / 16).clamp(4 << 20, 32 << 20),
        journal_bytes_max: bytes,
        // What the origin has is of no use here: it can be asked.
        retain: Duration::ZERO,
        keeps_spare: true,
        ..Options::default()
    }
}

/// Reads the journal twice: what it says of the origin, then what the origin does not have.
fn recover(
    settings: &Settings,
    clock: &Clock,
    journal: Journal,
    origin: Arc<dyn Origin>,
    tokens: Option<&Tokens>,
) -> Result<(Front, u64, u64), ServeError> {
    let last = journal.last();
    let mut scan = Scan::default();
    let mut newest = Time::ZERO;
    let mut records = journal.read(1, last);
    progress::of_segments("looking through the journal", |shown| {
        while let Some(record) = records.advance()? {
            newest = newest.max(Time(record.stamp_ns));
            scan.look(Lsn(record.lsn), read(record.payload, record.lsn)?);
            shown(records.progress());
        }
        Ok::<_, ServeError>(())
    })?;
    clock.not_before(newest);
    let front_settings = FrontSettings {
        fsync_origin: settings.fsync_origin,
        fsync_origin_below: Below::new(&settings.fsync_origin_below),
        names_fresh: destage_core::Span(settings.names_unseen().0 - settings.nobodys_unseen().0),
        ..Default::default()
    };
    let policy = settings.policy.clone();
    let mut records = journal.read(scan.decided.0 + 1, last);
    let now = clock.now();
    let mut front = Front::new(now, policy, journal, origin, scan.decided, front_settings);
    scan.prepare(&mut front.tree, false);
    let mut homes = Homes::default();
    let mut bar = Progress::new("replaying the journal", last.saturating_sub(scan.decided.0));
    destage_engine::recover(&mut front, now, Lsn(last), |front| -> Result<bool, ServeError> {
        let Some(record) = records.advance()? else {
            if let Some(tokens) = tokens {
                front.tree.lost = homes.take_up(|root| tokens.is_confirmed(root), tokens);
            }
            return Ok(false);
        };
        let payload = record.payload.len();
        let (lsn, stamp) = (Lsn(record.lsn), Time(record.stamp_ns));
        bar.set(record.lsn.saturating_sub(scan.decided.0));
        let records = read(record.payload, record.lsn)?;
        share::look(tokens.is_some(), &records, &mut homes)?;
        front.take_up(lsn, stamp, payload, &records);
        Ok(true)
    })?;
    bar.finish();
    front.counted.conflicts = scan.conflicts;
    let found = front.counted.recovered_groups;
    Ok((front, found, scan.epoch))
}

fn read(payload: &[u8], lsn: u64) -> Result<Vec<crate::engine::Record>, ServeError> {
    read_group(payload).map_err(|error| {
        let message = match error {
            crate::engine::Unreadable::Unknown(kind) => format!(
                "the journal's group {lsn} has a record of kind {kind}: a later version wrote it; start that one"
            ),
            crate::engine::Unreadable::Broken => {
                format!("the journal's group {lsn} is no group of a mount: name a journal of its own")
            }
        };
        ServeError::new(exit::JOURNAL_UNUSABLE, message)
    })
}

fn own_folders(origin: &LocalOrigin, uuid: &str) -> Result<OwnFolders, Errno> {
    let top = folder(origin, &origin.root(), crate::OWN_FOLDER)?;
    let pools = folder(origin, &top, b"pool")?;
    let conflicts = folder(origin, &top, b"conflicts")?;
    let pool = folder(origin, &pools, uuid.as_bytes())?;
    let mut all = vec![pool.clone()];
    for number in 1..POOLS {
        all.push(folder(origin, &pool, format!("part-{number}").as_bytes())?);
    }
    let conflicts_here = folder(origin, &conflicts, uuid.as_bytes())?;
    let at_work = folder(origin, &top, b"at-work")?;
    match origin.make(&at_work, uuid.as_bytes(), &Make::File) {
        Ok(_) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let own = OwnFolders {
        pools: all,
        conflicts: conflicts_here,
        at_work: (at_work.clone(), uuid.as_bytes().into()),
    };
    for made in [&origin.root(), &top, &pools, &pool, &conflicts, &at_work] {
        origin.sync(made)?;
    }
    Ok(own)
}

fn folder(origin: &LocalOrigin, dir: &Key, name: &[u8]) -> Result<Key, Errno> {
    match origin.make(dir, name, &Make::Dir) {
        Ok((key, _)) => Ok(key),
        Err(Errno::EXIST) => Ok(origin.lookup(dir, name)?.0),
        Err(error) => Err(error),
    }
}

/// Origin, mountpoint and journal lie beside one another.
fn check_places(settings: &Settings) -> Result<(), ServeError> {
    let places = [
        ("origin", &settings.origin),
        ("mountpoint", &settings.mountpoint),
        ("journal", &settings.journal),
    ];
    let places = places.map(|(what, place)| (what, whole(place)));
    for (what, place) in &places {
        for (other, within) in places.iter().filter(|(other, _)| other != what) {
            // A replay has nothing mounted, and names the journal twice.
            if place.starts_with(within) && place != within {
                let (place, within) = (place.display(), within.display());
                let message =
                    format!("the {what} {place} lies in the {other} {within}: name another place");
                return Err(ServeError::new(exit::USAGE, message));
            }
        }
    }
    Ok(())
}

/// A path from the root on, of what is there and what is not yet.
fn whole(place: &Path) -> PathBuf {
    let there = place.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)));
    match there {
        Some((part, known)) => {
            let rest = place.strip_prefix(part).unwrap_or_else(|_| Path::new(""));
            if rest.as_os_str().is_empty() { known } else { known.join(rest) }
        }
        None => std::path::absolute(place).unwrap_or_else(|_| place.to_owned()),
    }
}

/// What the promises need of an origin is tried out, on a file that nobody sees.
fn check_handles(
    origin: &LocalOrigin,
    own: &OwnFolders,
    settings: &Settings,
) -> Result<(), ServeError> {
    let (from, to) = (&b"probe"[..], &b"probe2"[..]);
    for name in [from, to] {
        // An earlier probe may have been interrupted.
        let _ = origin.unlink(&own.conflicts, name);
    }
    let probe = || -> Result<Option<&'static str>, Errno> {
        let (key, _) = origin.make(&own.conflicts, from, &Make::File)?;
        origin.write(&key, 0, b"probe")?;
        origin.rename(&own.conflicts, from, &own.conflicts, to, false)?;
        origin.make(&own.conflicts, from, &Make::File)?;
        let refused = origin.rename(&own.conflicts, from, &own.conflicts, to, false);
        if refused != Err(Errno::EXIST) {
            return Ok(Some("it cannot rename without replacing"));
        }
        if origin.read(&key, 0, 9)? != b"probe" {
            return Ok(Some("a file is not found by its handle once it is renamed"));
        }
        let owner = Some((1, 1));
        origin.set(&key, &crate::origin::Attributes { owner, ..Default::default() })?;
        let stat = origin.stat(&key)?;
        if (stat.uid, stat.gid) != (1, 1) {
            return Ok(Some("this process may not give files to others there"));
        }
        let time = crate::ask::Moment { seconds: 1_000_000_007, nanos: 0 };
        let mtime = Some(time);
        origin.set(&key, &crate::origin::Attributes { mtime, ..Default::default() })?;
        origin.sync(&key)?;
        if origin.stat(&key)?.mtime != time {
            return Ok(Some("it does not keep the times that files are given"));
        }
        origin.unlink(&own.conflicts, to)?;
        origin.unlink(&own.conflicts, from)?;
        Ok(None)
    };
    let place = settings.origin.display();
    let remedy =
        "destage mount needs it for its promises: use CephFS, ext4, XFS or btrfs, and run as root";
    match probe() {
        Ok(None) => Ok(()),
        Ok(Some(lack)) => {
            let message = format!("the origin {place} cannot be used: {lack}; {remedy}");
            Err(ServeError::new(exit::USAGE, message))
        }
        Err(error) => {
            let message =
                format!("the origin {place} cannot be used: a probe failed: {error}; {remedy}");
            Err(ServeError::new(exit::USAGE, message))
        }
    }
}

/// How long a file can be at the origin: who wants a longer one is to hear of it at once. And whether its mount has pages of its
/// own in the kernel.
fn probe_file(origin: &LocalOrigin, own: &OwnFolders) -> Result<(u64, bool), Errno> {
    let name = &b"probe"[..];
    let (key, _) = origin.make(&own.conflicts, name, &Make::File)?;
    let found = (origin.longest(&key)?, origin.has_page_cache(&key)?);
    origin.unlink(&own.conflicts, name)?;
    Ok(found)
}

/// Files that are made in advance at a time: an origin over a network takes several together.
const MADE_AT_A_TIME: usize = 8;
/// Folders for them.
const POOLS: usize = 8;

/// What follows from pages that the origin's own mount keeps.
pub(super) const PAGE_CACHE: &str = "the origin's own mount keeps pages of its files in the kernel: what other hosts write may stay \
     unseen here; mount it without them, as with 'ceph-fuse --fuse_disable_pagecache=true'";

fn open_origin(settings: &Settings) -> Result<LocalOrigin, ServeError> {
    LocalOrigin::open(&settings.origin).map_err(|error| unreachable_origin(settings, error))
}

fn unreachable_origin(settings: &Settings, error: Errno) -> ServeError {
    let place: &Path = &settings.origin;
    let (code, advice) = match error.0 {
        libc::ENOENT | libc::ENOTDIR => {
            (exit::USAGE, "name a folder that is there, as of a mounted file system")
        }
        libc::EPERM | libc::EACCES => (
            exit::USAGE,
            "run as root, with CAP_DAC_READ_SEARCH: files are opened by their handles",
        ),
        libc::EOPNOTSUPP => (
            exit::USAGE,
            "its file system has no file handles, by which files are known after a crash: use CephFS, ext4, XFS or btrfs",
        ),
        libc::ENOTCONN | libc::ESHUTDOWN => {
            (exit::ORIGIN_UNREACHABLE, "its file system is not connected: mount it again")
        }
        _ => (exit::ORIGIN_UNREACHABLE, "see whether its file system is mounted and well"),
    };
    let message = format!("the origin {} cannot be used: {error}: {advice}", place.display());
    ServeError::new(code, message)
}
