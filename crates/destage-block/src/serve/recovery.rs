//! Recovery of an origin at a start: who used it since the cache did, whether the cache, the redo store or the origin went back in time,
//! and what is to be finished before anything new is written.

use super::ServeError;
use super::start::{Opening, cache_error, open_error, redo_error};
use crate::attach::{self, Claim, OwnWrites, WentBack};
use crate::block::BLOCK;
use crate::cache::{Attachment, CacheDevice};
use crate::engine;
use crate::origin::{NbdOptions, Origin, OriginIoErrorKind};
use crate::redo::{InDoubt, RedoError, RedoStore, Replay};
use crate::settings::VolumeSettings;
use destage_core::Lsn;
use destage_journal::Recovery;
use destage_runtime::exit;

/// What an earlier run left in the cache.
pub(super) struct Recovered<'a> {
    pub(super) cache: &'a CacheDevice,
    pub(super) recovery: &'a Recovery,
    pub(super) is_new: bool,
    /// The newest write in the log.
    pub(super) last: u64,
    pub(super) has_undecided: bool,
}

/// Another cache served this origin since this one did: its clean copies are out of date, and its dirty ones older than
/// what the origin has.
fn refuse_outdated(settings: &VolumeSettings, recovered: &Recovered<'_>) -> Result<(), ServeError> {
    let cache = settings.cache.display();
    if recovered.has_undecided {
        return Err(ServeError::new(
            exit::FENCED,
            format!(
                "another cache has served {} since, and {cache} holds writes that would go over newer ones: start with \
                 another cache, and remove this one if its writes may be lost",
                settings.origin
            ),
        ));
    }
    if settings.adopt {
        return Ok(());
    }
    Err(ServeError::new(
        exit::FENCED,
        format!(
            "another cache has served {} since, so what {cache} holds may be out of date: start with a new cache, or with \
             --adopt, which drops the cached copies",
            settings.origin
        ),
    ))
}

/// What the cache's own log tells of its writes, if it was the last one at this origin and did not detach.
fn own_writes(
    settings: &VolumeSettings,
    redo: &RedoStore,
    recovered: &Recovered<'_>,
) -> Result<Option<engine::Logged>, ServeError> {
    let attachment = redo.attachment();
    let is_ours = attachment.cache == *recovered.cache.superblock().uuid.as_bytes();
    if !is_ours || !attachment.attached || recovered.is_new {
        return Ok(None);
    }
    let upto = redo.evidence_upto().map_err(|error| redo_error(&settings.origin, &error))?;
    let logged = upto.map(|upto| engine::Logged::after(upto, recovered.cache, recovered.recovery));
    logged.transpose().map_err(|error| open_error(settings, &error))
}

/// An origin without a place for an attach record: nobody can tell who wrote to it since.
pub(super) fn recover_without_redo(
    settings: &VolumeSettings,
    recovered: &Recovered<'_>,
) -> Result<(), ServeError> {
    tracing::warn!(
        origin = settings.origin,
        "there is no redo store, so another host at this origin would not be noticed, and each start is a cold one: name \
         a place for one by --redo"
    );
    if recovered.is_new { Ok(()) } else { forget_clean(settings, recovered) }
}

fn forget_clean(settings: &VolumeSettings, recovered: &Recovered<'_>) -> Result<(), ServeError> {
    // Loading finds out which of the two areas is in force.
    let loaded = recovered.cache.load_checkpoint(0);
    let dropped = loaded.and_then(|_| recovered.cache.drop_clean(recovered.last));
    dropped.map_err(|error| cache_error(settings, &error))
}

/// Looks who used the origin since, finishes or drops the group that an earlier run left half done, and attaches; up to
/// where the origin then is.
pub(super) fn recover_origin(
    settings: &VolumeSettings,
    redo: &mut RedoStore,
    origin: &dyn Origin,
    recovered: &Recovered<'_>,
    opening: &Opening,
    options: &NbdOptions,
) -> Result<Lsn, ServeError> {
    let failed = |error: RedoError| redo_error(&settings.origin, &error);
    check_generation(settings, redo, recovered)?;
    check_pending(settings, redo, recovered)?;
    let logged = own_writes(settings, redo, recovered)?;
    let is_undecided = |lba| logged.as_ref().is_some_and(|logged| logged.contains(lba));
    let own = logged
        .as_ref()
        .map(|logged| OwnWrites { decided: logged.decided, is_undecided: &is_undecided });
    let found = attach::examine(redo, origin, own.as_ref()).map_err(failed)?;
    tracing::debug!(checked = ?found.checked, unchecked = ?found.unchecked, "looked at the origin");
    if !found.is_unchanged() && !settings.adopt {
        return Err(ServeError::new(
            exit::ORIGIN_WENT_BACK,
            format!(
                "something else changed {} since it was detached ({}): its cached copies would be wrong. Start with a new \
                 cache, or with --adopt, which drops the cached copies",
                settings.origin,
                found.differs.join("; ")
            ),
        ));
    }
    let cache = recovered.cache.superblock().uuid;
    let is_ours = found.previous.generation == 0 || found.previous.cache == *cache.as_bytes();
    if !is_ours && !recovered.is_new {
        refuse_outdated(settings, recovered)?;
    }
    if !is_ours && let Some(upto) = redo.unwhole_before().map_err(failed)? {
        tracing::warn!(
            origin = settings.origin,
            upto = upto.0,
            "the cache before this one had lost its redo store and not yet sent everything again: the volume may be no state \
             that existed: check its file system"
        );
    }
    if settings.adopt && !recovered.is_new {
        forget_clean(settings, recovered)?;
    }
    take_over(settings, redo, origin, recovered, opening)?;
    if found.grown.is_some() {
        redo.accept_growth();
    }
    replay(redo, origin, opening, options).map_err(failed)?;
    check_rollback(settings, redo, recovered)?;
    if let Some((then, now)) = found.grown {
        accept_growth(settings, redo, recovered, (then, now))?;
    }
    Ok(redo.done())
}

/// Attaches, before anything is written: another host may be in the middle of the group that a replay would finish. The cache
/// notes it before and after, so that a crash in between is not taken for an older copy of either.
fn take_over(
    settings: &VolumeSettings,
    redo: &mut RedoStore,
    origin: &dyn Origin,
    recovered: &Recovered<'_>,
    opening: &Opening,
) -> Result<(), ServeError> {
    let superblock = recovered.cache.superblock();
    let known = superblock.attachment;
    let note = |attachment| {
        let noted = recovered.cache.set_attachment(attachment);
        noted.map_err(|error| cache_error(settings, &error))
    };
    let begun = attach::next_generation(redo, known.made);
    note(Attachment { begun, ..known })?;
    let claim = Claim {
        cache: *superblock.uuid.as_bytes(),
        host: attach::host_name(),
        now_ns: opening.clock.now().0,
        take_over: settings.adopt,
        known: known.made,
    };
    let attached = attach::attach(redo, origin, &claim).map_err(|error| match error.kind() {
        OriginIoErrorKind::Denied => ServeError::new(exit::FENCED, format!("{error} (--adopt)")),
        _ => redo_error(&settings.origin, &error),
    })?;
    note(Attachment { begun: begun.max(attached.generation), made: attached.generation })
}

/// Of the cache and the attach record each knows how often the cache was attached: whichever knows less is an older copy.
fn check_generation(
    settings: &VolumeSettings,
    redo: &RedoStore,
    recovered: &Recovered<'_>,
) -> Result<(), ServeError> {
    let superblock = recovered.cache.superblock();
    let (cache, origin) = (settings.cache.display(), &settings.origin);
    let record = redo.attachment();
    match attach::went_back(record, superblock.uuid.as_bytes(), superblock.attachment) {
        Some(WentBack::Cache { knows, recorded }) => Err(ServeError::new(
            exit::ORIGIN_WENT_BACK,
            format!(
                "the cache in {cache} was attached to {origin} {recorded} times, but this one knows of {knows}: it is an older \
                 copy of itself, as a backup or a snapshot brings it back. Bring the newer copy back, or start with a new cache \
                 and --adopt; what only the newer copy held is lost then"
            ),
        )),
        Some(WentBack::Record { knows, recorded }) if !settings.adopt => Err(ServeError::new(
            exit::ORIGIN_WENT_BACK,
            format!(
                "{cache} was attached to {origin} {knows} times, but the redo store knows of {recorded}: the redo store is an \
                 older copy of itself, and {origin} perhaps as well. Bring the newer one back, or start with --adopt, which drops \
                 the cached copies and goes on from the origin as it is"
            ),
        )),
        _ => Ok(()),
    }
}

/// A group that the store would finish, and that the cache knows to be done: durable at the origin before the mark was. No
/// store that is up to date has one, since the next group begins by making known that the one before is done; an older
/// copy from within the same attachment has. To finish it would bring old blocks back where one holds by chance what it
/// held then.
fn check_pending(
    settings: &VolumeSettings,
    redo: &RedoStore,
    recovered: &Recovered<'_>,
) -> Result<(), ServeError> {
    let is_ours = redo.attachment().cache == *recovered.cache.superblock().uuid.as_bytes();
    if !is_ours || recovered.is_new {
        return Ok(());
    }
    let failed = |error: RedoError| redo_error(&settings.origin, &error);
    let decided = recovered.cache.decided();
    match redo.pending_upto().map_err(failed)? {
        Some(upto) if upto.0 < decided => Err(ServeError::new(
            exit::ORIGIN_WENT_BACK,
            format!(
                "the redo store of {} would finish a group up to write {}, but {} knows that the origin holds everything \
                 up to {decided}: the redo store is an older copy of itself, as a backup brings it back, and perhaps the \
                 origin as well. Bring the newer one back; if it is lost, move this one away and start with --adopt",
                settings.origin,
                upto.0,
                settings.cache.display()
            ),
        )),
        _ => Ok(()),
    }
}

/// The origin is larger than at the last start.
fn accept_growth(
    settings: &VolumeSettings,
    redo: &mut RedoStore,
    recovered: &Recovered<'_>,
    (then, now): (u64, u64),
) -> Result<(), ServeError> {
    tracing::info!(then, now, "the origin has grown; the volume has its new size in bytes");
    if then % BLOCK as u64 != 0 && !recovered.is_new {
        // The last block was cached with zeros where the origin may have something now.
        forget_clean(settings, recovered)?;
    }
    redo.set_origin_bytes(now);
    redo.settle().map_err(|error| redo_error(&settings.origin, &error))
}

/// A log that ends before what the origin already holds is an older copy of itself, such as a snapshot brings back. Its clean
/// blocks are of that time as well.
fn check_rollback(
    settings: &VolumeSettings,
    redo: &RedoStore,
    recovered: &Recovered<'_>,
) -> Result<(), ServeError> {
    let (cache, known) = (recovered.cache, recovered.last.max(recovered.cache.decided()));
    let is_ours = redo.attachment().cache == *cache.superblock().uuid.as_bytes();
    let evidence = redo.evidence_upto().map_err(|error| redo_error(&settings.origin, &error))?;
    let held = redo.done().max(evidence.unwrap_or_default()).0;
    if recovered.is_new || !is_ours || held <= known {
        return Ok(());
    }
    let (path, origin) = (settings.cache.display(), &settings.origin);
    Err(ServeError::new(
        exit::ORIGIN_WENT_BACK,
        format!(
            "{origin} holds writes up to {held}, but the log in {path} ends at {known}: the cache is an older copy of itself, as \
             a snapshot brings it back. Start with a new cache and --adopt; what the newer copy held and {origin} lacks is lost unless \
             that copy is brought back"
        ),
    ))
}

fn replay(
    redo: &mut RedoStore,
    origin: &dyn Origin,
    opening: &Opening,
    options: &NbdOptions,
) -> Result<(), RedoError> {
    let decide = |in_doubt: &InDoubt| opening.decide(in_doubt, options);
    let replay = redo.recover_with(origin, false, &decide)?;
    match replay {
        Replay::Nothing => {}
        Replay::Dropped { to } => {
            tracing::info!(to = to.0, "dropped an atomic group that was not committed")
        }
        Replay::Written { to, blocks, .. } => {
            tracing::info!(to = to.0, blocks, "finished an atomic group at the origin");
        }
    }
    Ok(())
}
