//! Starting: whose origin and whose cache it is, what an earlier run left, and whether all of it fits together.

use super::report::Latencies;
use super::{ServeError, Served};
use crate::attach::{self, Claim};
use crate::cache::{CacheDevice, CacheError, Creation, FileMedia, OriginId, Sizing};
use crate::engine::{Context, OpenError, Parts, Volume, VolumeOptions};
use crate::nbd::server::{Export, Tls};
use crate::nbd::tls::{Identity, server_config};
use crate::origin::{self, Origin, OriginError, OriginErrorKind};
use crate::redo::{NewStore, RedoError, RedoStore, Replay};
use crate::settings::{Settings, VolumeSettings};
use destage_core::{Lsn, Order};
use destage_journal::{ErrorKind, Journal, Options};
use destage_runtime::clock::Clock;
use destage_runtime::exit;
use std::sync::{Arc, Mutex, PoisonError};

/// A server ready to listen.
pub(super) struct Started {
    pub(super) clock: Clock,
    pub(super) volumes: Vec<Served>,
    pub(super) contexts: Vec<Context>,
    pub(super) exports: Vec<Export>,
    pub(super) tls: Tls,
}

pub(super) fn start(settings: &Settings) -> Result<Started, ServeError> {
    let clock = Clock::new();
    let tls = tls(settings)?;
    let mut started =
        Started { clock, volumes: Vec::new(), contexts: Vec::new(), exports: Vec::new(), tls };
    for volume in &settings.volumes {
        let place = if volume.name.is_empty() {
            String::new()
        } else {
            format!("volume '{}': ", volume.name)
        };
        let (served, context) = open(volume, &started.clock)
            .map_err(|error| ServeError::new(error.code, format!("{place}{}", error.message)))?;
        let mut export = Export::new(&volume.name, served.volume.size());
        export.read_only = volume.read_only;
        export.description = format!("{} cached by destage", served.description);
        started.volumes.push(served);
        started.contexts.push(context);
        started.exports.push(export);
    }
    Ok(started)
}

fn tls(settings: &Settings) -> Result<Tls, ServeError> {
    let Some(tls) = &settings.tls else { return Ok(Tls::Off) };
    let identity = Identity { certificate: tls.certificate.clone(), key: tls.key.clone() };
    let config = server_config(&identity, tls.client_ca.as_deref())
        .map_err(|error| ServeError::new(exit::USAGE, error.to_string()))?;
    Ok(if tls.optional { Tls::Optional(config) } else { Tls::Required(config) })
}

fn open(settings: &VolumeSettings, clock: &Clock) -> Result<(Served, Context), ServeError> {
    // The cache first: its lock keeps a second process from touching anything.
    let media = open_media(settings)?;
    let origin = origin::open(&settings.origin).map_err(|error| origin_error(&error))?;
    check_flush(settings, &*origin)?;
    let identity = origin.identity().map_err(|error| origin_error(&error))?;
    let mut redo = open_redo(settings, &origin)?;
    let id = OriginId {
        uuid: redo
            .as_ref()
            .map_or_else(|| named(&identity.store), |redo| uuid::Uuid::from_bytes(redo.uuid())),
        name: identity.name.clone(),
        volume_bytes: origin.size(),
    };
    let (cache, is_new) = open_cache(settings, media, &id, clock)?;
    let options =
        Options { unsafe_no_fsync: settings.unsafe_flags.no_fsync, ..cache.log_options() };
    let (journal, recovery) = Journal::open(cache.log(), options)
        .map_err(|error| ServeError::new(exit::JOURNAL_UNUSABLE, log_error(settings, &error)))?;
    let recovered = Recovered {
        cache: &cache,
        is_new,
        last: journal.last(),
        has_undecided: journal.last() > cache.decided(),
    };
    let applied = match &mut redo {
        None => {
            take_up_blindly(settings, &recovered)?;
            None
        }
        Some(redo) => Some(take_up(settings, redo, &*origin, &recovered, clock)?),
    };
    let size = origin.size();
    let parts = Parts {
        cache: cache.clone(),
        journal,
        recovery,
        size,
        policy: settings.policy.clone(),
        options: VolumeOptions {
            fetch_patience: settings.origin_timeout,
            unsafe_reclaim_past_checkpoint: settings.unsafe_flags.reclaim_past_checkpoint,
            ..VolumeOptions::default()
        },
        applied,
        atomic_bytes_max: redo.as_ref().map(RedoStore::group_bytes_max),
    };
    let now = clock.now();
    let volume = Volume::open(parts, now).map_err(|error| open_error(settings, &error))?;
    if volume.undecided() > 0 {
        tracing::info!(
            volume = settings.name,
            writes = volume.undecided(),
            "found undestaged writes in the cache; destaging them"
        );
    }
    let served = Served {
        name: settings.name.clone(),
        volume,
        description: identity.name,
        cache: settings.cache.display().to_string(),
        commits_on_flush: settings.commit_on_flush,
        latencies: Latencies::new(now),
        losses_told: crate::engine::LossesTold::default(),
        file_losses_known: 0,
    };
    let redo = redo.map(|redo| Arc::new(Mutex::new(redo)));
    Ok((served, Context { cache, origin, redo }))
}

/// Opens the cache's file or device; makes a file of the size that was asked for where there is none.
fn open_media(settings: &VolumeSettings) -> Result<FileMedia, ServeError> {
    let media = match settings.cache.exists() {
        true => FileMedia::open(&settings.cache),
        false => FileMedia::create(&settings.cache, settings.cache_bytes),
    };
    media.map_err(|error| cache_error(settings, &error))
}

/// Takes up a cache, or makes one on an empty file or device.
fn open_cache(
    settings: &VolumeSettings,
    media: FileMedia,
    id: &OriginId,
    clock: &Clock,
) -> Result<(Arc<CacheDevice>, bool), ServeError> {
    let failed = |error: CacheError| cache_error(settings, &error);
    let creation = |overwrite| Creation {
        sizing: Sizing {
            total_bytes: settings.cache_bytes,
            log_bytes: settings.log_bytes,
            segment_bytes: None,
        },
        origin: id.clone(),
        created_ns: clock.now().0,
        overwrite,
    };
    match CacheDevice::open(Box::new(media), id) {
        Ok(cache) => Ok((Arc::new(cache), false)),
        Err(CacheError::NotACache) => {
            // What is there may be someone's data: only an empty one is taken.
            let media = FileMedia::create(&settings.cache, settings.cache_bytes).map_err(failed)?;
            let cache = CacheDevice::create(Box::new(media), &creation(false)).map_err(failed)?;
            Ok((Arc::new(cache), true))
        }
        Err(error) => Err(failed(error)),
    }
}

/// An origin that cannot flush cannot keep an order.
fn check_flush(settings: &VolumeSettings, origin: &dyn Origin) -> Result<(), ServeError> {
    let ordered = settings.policy.order != Order::Any;
    if origin.can_flush() || !ordered || settings.adopt {
        return Ok(());
    }
    Err(ServeError::new(
        exit::USAGE,
        format!(
            "{} cannot flush, so nothing that reaches it is known to be durable or in order: use --policy write-through or \
             write-back, or --adopt if each of its writes is durable at once",
            settings.origin
        ),
    ))
}

/// The redo store: where it was said to be, else beside a file origin. Only the journaled policy cannot do without.
fn open_redo(
    settings: &VolumeSettings,
    origin: &Arc<dyn Origin>,
) -> Result<Option<RedoStore>, ServeError> {
    let needed = settings.policy.order == Order::Domain;
    let place = match (&settings.redo, origin::sidecar(&settings.origin)) {
        (Some(place), _) => place.clone(),
        (None, Some(path)) => path,
        (None, None) if needed => {
            return Err(ServeError::new(
                exit::USAGE,
                format!(
                    "the journaled policy needs room for atomic groups in the failure domain of {}: name a file or an NBD \
                     export there by --redo",
                    settings.origin
                ),
            ));
        }
        (None, None) => return Ok(None),
    };
    let bytes = (settings.policy.limits.batch_bytes_max * 5).max(REDO_BYTES_MIN);
    let medium = origin::open_or_create(&place, bytes).map_err(|error| origin_error(&error))?;
    let opened = match origin::is_blank(&*medium).map_err(|error| origin_error(&error))? {
        false => RedoStore::open(medium),
        true => RedoStore::create(
            medium,
            &NewStore {
                uuid: *uuid::Uuid::new_v4().as_bytes(),
                origin_bytes: origin.size(),
                overwrite: false,
            },
        ),
    };
    let store = opened.map_err(|error| redo_error(&place, &error))?;
    if store.group_bytes_max() < GROUP_BYTES_MIN {
        let message =
            format!("the redo store {place} is too small: give it {REDO_BYTES_MIN} bytes or more");
        return Err(ServeError::new(exit::USAGE, message));
    }
    Ok(Some(store))
}

/// What an earlier run left in the cache.
struct Recovered<'a> {
    cache: &'a CacheDevice,
    is_new: bool,
    /// The newest write in the log.
    last: u64,
    has_undecided: bool,
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

/// An origin without a place for an attach record: nobody can tell who wrote to it since.
fn take_up_blindly(settings: &VolumeSettings, recovered: &Recovered<'_>) -> Result<(), ServeError> {
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
fn take_up(
    settings: &VolumeSettings,
    redo: &mut RedoStore,
    origin: &dyn Origin,
    recovered: &Recovered<'_>,
    clock: &Clock,
) -> Result<Lsn, ServeError> {
    let failed = |error: RedoError| redo_error(&settings.origin, &error);
    let found = attach::examine(redo, origin, None).map_err(failed)?;
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
    if settings.adopt && !recovered.is_new {
        forget_clean(settings, recovered)?;
    }
    // Before anything is written: another host may be in the middle of the group that a replay would finish.
    let claim = Claim {
        cache: *cache.as_bytes(),
        host: attach::host_name(),
        now_ns: clock.now().0,
        take_over: settings.adopt,
    };
    attach::attach(redo, &claim).map_err(|error| match error.kind() {
        OriginErrorKind::Denied => ServeError::new(exit::FENCED, format!("{error} (--adopt)")),
        _ => failed(error),
    })?;
    recover(redo, origin).map_err(failed)?;
    Ok(redo.done())
}

fn recover(redo: &mut RedoStore, origin: &dyn Origin) -> Result<(), RedoError> {
    let replay = redo.recover(origin, false)?;
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

/// Ends a volume whose last jobs are done: the log is closed, and the origin given back if nothing is left for it.
pub(super) fn close(served: Served, context: &Context) -> Result<(), ServeError> {
    let decided = served.volume.status().core.decided;
    if served.volume.undecided() == 0
        && !served.volume.is_origin_unflushed()
        && let Some(redo) = &context.redo
    {
        let mut redo = redo.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = attach::detach(&mut redo, &*context.origin, decided) {
            tracing::warn!(%error, "cannot note at the origin that the cache has detached");
        }
    }
    let journal = served.volume.into_journal();
    journal.close().map(|_| ()).map_err(|error| {
        ServeError::new(exit::JOURNAL_UNUSABLE, format!("the log in {}: {error}", served.cache))
    })
}

/// The UUID that stands for an origin that has no record of its own.
fn named(store: &str) -> uuid::Uuid {
    uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_URL, store.as_bytes())
}

fn origin_error(error: &OriginError) -> ServeError {
    let code = match error.kind {
        OriginErrorKind::Fenced => exit::FENCED,
        _ => exit::ORIGIN_UNREACHABLE,
    };
    ServeError::new(code, error.message.clone())
}

fn redo_error(place: &str, error: &RedoError) -> ServeError {
    let code = match error.kind() {
        OriginErrorKind::Fenced => exit::FENCED,
        OriginErrorKind::Unavailable => exit::ORIGIN_UNREACHABLE,
        _ => exit::ORIGIN_WENT_BACK,
    };
    ServeError::new(code, format!("the redo store {place}: {error}"))
}

fn cache_error(settings: &VolumeSettings, error: &CacheError) -> ServeError {
    let message = format!("the cache {}: {error}", settings.cache.display());
    ServeError::new(exit::JOURNAL_UNUSABLE, message)
}

fn open_error(settings: &VolumeSettings, error: &OpenError) -> ServeError {
    let code = match error {
        OpenError::Invalid(_) => exit::USAGE,
        _ => exit::JOURNAL_UNUSABLE,
    };
    ServeError::new(code, format!("the cache {}: {error}", settings.cache.display()))
}

fn log_error(settings: &VolumeSettings, error: &destage_journal::Error) -> String {
    let cache = settings.cache.display();
    match error.kind() {
        ErrorKind::Corrupt => format!(
            "the log in {cache}: {error}. Nothing was changed. Under the ordered and journaled policies the origin is a \
             consistent older state: make the cache anew to go on from there"
        ),
        _ => format!("the log in {cache}: {error}"),
    }
}

/// Room for two groups of the longest kind and what describes them.
const REDO_BYTES_MIN: u64 = 16 << 20;
/// The longest single write with what describes it.
const GROUP_BYTES_MIN: u64 = 2 << 20;
