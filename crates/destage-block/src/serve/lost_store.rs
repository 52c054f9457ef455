//! A redo store that is lost: with a new one the origin has another identity, which a cache takes up only where it was asked
//! to, where nobody has used the new store yet, and where the origin holds what the cache knows it to hold.
//!
//! The lost store may have been in the middle of a group, whose parts the origin then holds. All of it is still in the log,
//! since nothing is let go before it is known to be at the origin, and is sent again. Until then the origin may be no state
//! that existed; the new store says so to whoever replays it.

use super::ServeError;
use super::recovery::Recovered;
use super::start::{cache_error, open_error};
use crate::cache::{CacheDevice, CacheError, FileMedia, OriginId};
use crate::compare::differing;
use crate::engine;
use crate::origin::Origin;
use crate::redo::RedoStore;
use crate::settings::VolumeSettings;
use destage_core::Lsn;
use destage_runtime::exit;

/// Opens the cache of this origin; where it may be adopted, of any origin.
pub(super) fn open(
    settings: &VolumeSettings,
    media: FileMedia,
    id: &OriginId,
    redo: Option<&RedoStore>,
) -> Result<CacheDevice, CacheError> {
    if settings.adopt && redo.is_some_and(is_unused) {
        CacheDevice::open_of_any_origin(Box::new(media))
    } else {
        CacheDevice::open(Box::new(media), id)
    }
}

/// What to do about a cache that another redo store belongs to.
pub(super) fn advice(error: &CacheError, redo: Option<&RedoStore>) -> &'static str {
    match error {
        CacheError::OtherOrigin { cache_name, wanted_name, .. }
            if cache_name == wanted_name && redo.is_some_and(is_unused) =>
        {
            ". The redo store that was found is an unused one: bring the cache's own back over it, or, if that is lost for good, \
             start with --adopt, which compares the origin with what the cache knows of it and sends everything that the cache holds"
        }
        _ => "",
    }
}

fn is_unused(redo: &RedoStore) -> bool {
    redo.attachment().generation == 0
}

/// Gives the cache the identity of the new store, if that is not the one it has: see the module.
pub(super) fn take_identity(
    settings: &VolumeSettings,
    redo: Option<&mut RedoStore>,
    origin: &dyn Origin,
    recovered: &Recovered<'_>,
    id: &OriginId,
) -> Result<(), ServeError> {
    let Some(redo) = redo.filter(|redo| is_unused(redo) && !recovered.is_new) else {
        return Ok(());
    };
    let superblock = recovered.cache.superblock();
    if superblock.origin.is_same(id) && superblock.attachment.made == 0 {
        return Ok(());
    }
    if !settings.adopt {
        // An older start gave it the identity and was killed before it attached: what comes next refuses that.
        return Ok(());
    }
    check_name(settings, &superblock.origin, id)?;
    let compared = compare(settings, origin, recovered)?;
    let undecided = recovered.last.saturating_sub(recovered.cache.decided());
    tracing::warn!(
        origin = settings.origin,
        compared,
        undecided,
        "the redo store is a new one: went by the name, the size and the blocks that the cache knows. Whether something else \
         wrote to other blocks cannot be told. The lost store may have been in the middle of a group: until the undecided \
         writes are at the origin, it may be no state that existed, so keep the cache ('destage block drain')"
    );
    if undecided > 0 {
        redo.set_whole_from(Lsn(recovered.last));
    }
    let set = recovered.cache.set_origin(id.clone());
    set.map_err(|error| cache_error(settings, &error))
}

fn check_name(
    settings: &VolumeSettings,
    then: &OriginId,
    now: &OriginId,
) -> Result<(), ServeError> {
    let cache = settings.cache.display();
    if then.name != now.name {
        return Err(ServeError::new(
            exit::JOURNAL_UNUSABLE,
            format!(
                "the cache {cache} was made for the origin \"{}\", and this one is \"{}\": without the redo store that it was \
                 made with only the name tells whose writes they are. Make the origin available under its old name, or use \
                 another cache; nothing was sent",
                then.name, now.name
            ),
        ));
    }
    if now.volume_bytes < then.volume_bytes {
        return Err(ServeError::new(
            exit::ORIGIN_WENT_BACK,
            format!(
                "{} has {} bytes, and had {} when it was last used with {cache}: it is another one, or was cut; nothing was sent",
                settings.origin, now.volume_bytes, then.volume_bytes
            ),
        ));
    }
    Ok(())
}

/// Compares the origin with what the cache knows of it; how many blocks that were.
fn compare(
    settings: &VolumeSettings,
    origin: &dyn Origin,
    recovered: &Recovered<'_>,
) -> Result<usize, ServeError> {
    let known = engine::known_blocks(recovered.cache, recovered.recovery)
        .map_err(|error| open_error(settings, &error))?;
    let wrong = differing(origin, &known)
        .map_err(|error| ServeError::new(exit::ORIGIN_UNREACHABLE, error.message))?;
    let Some(first) = wrong.first() else { return Ok(known.len()) };
    Err(ServeError::new(
        exit::ORIGIN_WENT_BACK,
        format!(
            "{} of {} blocks of {} that {} knows hold other bytes, the first at block {}: this is another disk, or an older copy \
             of the right one, over which the cache's writes must not go. Bring the right one back, or start with a new cache; \
             nothing was sent",
            wrong.len(),
            known.len(),
            settings.origin,
            settings.cache.display(),
            first.0
        ),
    ))
}
