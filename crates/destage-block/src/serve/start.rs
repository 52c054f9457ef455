//! Starting: whose origin and whose cache it is, what an earlier run left, and whether all of it fits together.

use super::groups::{self, Members};
use super::grow::LiveExports;
use super::made::Made;
use super::recovery::{Recovered, recover_origin, recover_without_redo};
use super::report::Found;
use super::requests::Requests;
use super::{ServeError, Served, control, lost_store, report};
use crate::attach;
use crate::cache::{CacheDevice, CacheError, Creation, FileMedia, OriginId, Sizing};
use crate::engine::{self, Context, GroupClock, OpenError, Parts, Volume, VolumeOptions};
use crate::nbd::server::{Export, Tls};
use crate::origin::{self, InTurn, NbdOptions, Origin, OriginIoError, OriginIoErrorKind, Turns};
use crate::redo::{CoordinatorRecord, InDoubt, NewStore, RedoError, RedoStore, ask_coordinator};
use crate::settings::{
    Atomic, GroupSettings, OriginTls, Settings, VolumeSettings, new_cache_bytes,
};
use destage_core::{Lsn, Order};
use destage_engine::Drive;
use destage_journal::{ErrorKind, Journal, Options};
use destage_runtime::auto::AutoPilot;
use destage_runtime::clock::Clock;
use destage_runtime::exit;
use destage_runtime::progress;
use destage_runtime::units::Bytes;
use destage_runtime::watch::{Guard, Watch};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A server ready to listen.
pub(super) struct Started {
    pub(super) clock: Clock,
    pub(super) volumes: Vec<Served>,
    pub(super) contexts: Arc<[Context]>,
    pub(super) exports: Arc<LiveExports>,
    pub(super) groups: Vec<Members>,
    pub(super) tls: Tls,
    /// Goes with the start if that comes to nothing after all.
    pub(super) made: Made,
}

pub(super) fn start(settings: &Settings) -> Result<Started, ServeError> {
    let clock = Clock::new();
    let tls = tls(settings)?;
    let groups = groups::checked(settings)?;
    for record in settings.volumes.iter().filter_map(|volume| volume.record.as_ref()) {
        record.check().map_err(|error| ServeError::usage(&error))?;
    }
    let mut opening = Opening { clock, opened: BTreeMap::new(), clocks: BTreeMap::new() };
    // Coordinators first: what they have committed is asked by the others.
    let mut order: Vec<usize> = (0..settings.volumes.len()).collect();
    order.sort_by_key(|&index| {
        let group = settings.volumes[index].group.as_ref();
        !group.is_some_and(|group| group.is_coordinator)
    });
    let mut made = Made::default();
    for index in order {
        let volume = &settings.volumes[index];
        let place = if volume.name.is_empty() {
            String::new()
        } else {
            format!("volume '{}': ", volume.name)
        };
        let mut of_volume = Made::default();
        match open(volume, &mut opening, &mut of_volume) {
            Ok(opened) => {
                made.0.append(&mut of_volume.0);
                opening.opened.insert(index, opened);
            }
            Err(error) => {
                let (volumes, contexts): (Vec<_>, Vec<_>) = opening.opened.into_values().unzip();
                give_back(volumes, &contexts);
                return Err(error.within(&place));
            }
        }
    }
    let (volumes, contexts): (Vec<Served>, Vec<Context>) = opening.opened.into_values().unzip();
    let contexts = contexts.into();
    let exports = volumes.iter().zip(&settings.volumes).map(|(served, volume)| {
        let mut export = Export::new(&volume.name, served.volume.size());
        export.read_only = volume.read_only;
        export.description = format!("{} cached by destage", served.description);
        export
    });
    let exports = Arc::new(LiveExports::new(exports.collect()));
    Ok(Started { clock: opening.clock, volumes, contexts, exports, groups, tls, made })
}

/// What has been opened so far.
pub(super) struct Opening {
    pub(super) clock: Clock,
    opened: BTreeMap<usize, (Served, Context)>,
    /// By the name of the consistency group: its clock, and the coordinator's store.
    clocks: BTreeMap<String, (GroupClock, CoordinatorRecord)>,
}

impl Opening {
    /// Whether a group of several volumes is committed.
    pub(super) fn decide(
        &self,
        in_doubt: &InDoubt,
        options: &NbdOptions,
    ) -> Result<bool, RedoError> {
        for (_, context) in self.opened.values() {
            let Some(redo) = &context.redo else { continue };
            let mut redo = redo.lock().unwrap_or_else(PoisonError::into_inner);
            if redo.uuid() == in_doubt.coordinator {
                return redo.decide(&in_doubt.group);
            }
        }
        ask_coordinator(None, options, in_doubt)
    }

    /// The clock of a volume's group, and whose commit record decides there.
    fn join(
        &mut self,
        settings: &GroupSettings,
        redo: &RedoStore,
        place: &str,
    ) -> (GroupClock, CoordinatorRecord) {
        let new = || {
            let record = CoordinatorRecord { store: redo.uuid(), place: place.to_owned() };
            (GroupClock::default(), record)
        };
        self.clocks.entry(settings.name.clone()).or_insert_with(new).clone()
    }
}

pub(super) fn tls(settings: &Settings) -> Result<Tls, ServeError> {
    let Some(tls) = &settings.tls else { return Ok(Tls::Off) };
    let config = tls.files.config()?;
    Ok(if tls.optional { Tls::Optional(config) } else { Tls::Required(config) })
}

fn open(
    settings: &VolumeSettings,
    opening: &mut Opening,
    made: &mut Made,
) -> Result<(Served, Context), ServeError> {
    let clock = opening.clock.clone();
    let clock = &clock;
    // The cache first: its lock keeps a second process from touching anything.
    let media = open_media(settings)?;
    let reach = OriginTls::options(settings.origin_tls.as_ref())
        .map_err(|error| ServeError::new(exit::USAGE, error.to_string()))?;
    let origin = open_origin(settings, &reach)?;
    check_flush(settings, &*origin)?;
    let identity = origin.identity().map_err(|error| origin_error(&error))?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        volume = settings.name,
        origin = identity.name,
        cache = %settings.cache.display(),
        "starting"
    );
    let turns = Arc::new(Turns::default());
    let mut redo = open_redo(settings, &origin, &reach, &turns, made)?;
    if let Some(redo) = &mut redo {
        redo.set_snapshots(settings.atomic == Atomic::Snapshot);
    }
    let id = OriginId {
        uuid: redo
            .as_ref()
            .map_or_else(|| named(&identity.store), |redo| uuid::Uuid::from_bytes(redo.uuid())),
        name: identity.name.clone(),
        volume_bytes: origin.size(),
    };
    let (cache, is_new) = open_cache(settings, media, &id, redo.as_ref(), clock, made)?;
    let watch = Watch::on(&settings.cache)
        .map_err(|error| cache_error(settings, &CacheError::io("look at the file")(error)))?;
    let options = Options {
        unsafe_no_fsync: settings.unsafe_flags.in_force().no_fsync,
        ..cache.log_options()
    };
    let opened = progress::of_segments("reading the log", |shown| {
        Journal::open_with(cache.log(), options, shown)
    });
    let (journal, recovery) = opened
        .map_err(|error| ServeError::new(exit::JOURNAL_UNUSABLE, log_error(settings, &error)))?;
    let recovered = Recovered {
        cache: &cache,
        recovery: &recovery,
        is_new,
        last: journal.last(),
        has_undecided: journal.last() > cache.decided(),
    };
    lost_store::take_identity(settings, redo.as_mut(), &*origin, &recovered, &id)?;
    let applied = match &mut redo {
        None => {
            recover_without_redo(settings, &recovered)?;
            None
        }
        Some(redo) => Some(recover_origin(settings, redo, &*origin, &recovered, opening, &reach)?),
    };
    if !is_new {
        // The cache knows its redo store from now on, and outlives this start.
        made.keep();
    }
    // With nothing left for the origin, it is given back if the start comes to nothing after all.
    let upto = (!recovered.has_undecided).then(|| applied.unwrap_or_default());
    if cache.superblock().origin.volume_bytes != id.volume_bytes {
        cache.set_origin(id).map_err(|error| cache_error(settings, &error))?;
    }
    let group_clock = redo.as_mut().and_then(|redo| join(settings, redo, opening));
    let cut_bytes = recovery.torn.as_ref().map_or(0, |torn| torn.bytes);
    let size = origin.size();
    let parts = Parts {
        cache: cache.clone(),
        journal,
        recovery,
        size,
        policy: settings.policy_with_log(cache.superblock().geometry.log_bytes()),
        options: VolumeOptions {
            name: settings.name.clone(),
            fetch_patience: settings.origin_timeout,
            group_clock,
            unsafe_reclaim_past_checkpoint: settings
                .unsafe_flags
                .in_force()
                .reclaim_past_checkpoint,
            ..VolumeOptions::default()
        },
        applied,
        atomic_bytes_max: redo.as_ref().map(RedoStore::group_bytes_max),
    };
    let now = clock.now();
    let opened = Volume::open(parts, now).map_err(|error| open_error(settings, &error));
    let volume = opened.and_then(|mut volume| record(settings, &mut volume).map(|()| volume));
    let volume = volume.inspect_err(|_| {
        if let Some((redo, upto)) = redo.as_mut().zip(upto) {
            detach(redo, &*origin, upto);
        }
    })?;
    let found = Found { undecided: volume.undecided(), cut_bytes };
    let policy = report::summary_of(volume.policy(), settings.commit_on_flush);
    if volume.undecided() > 0 {
        tracing::info!(
            volume = settings.name,
            policy,
            writes = volume.undecided(),
            "found undestaged writes in the cache; destaging them"
        );
    } else {
        let found =
            if is_new { "made the cache" } else { "found the cache with nothing to destage" };
        tracing::info!(volume = settings.name, policy, "{found}");
    }
    let auto = AutoPilot::new(now, settings.auto, &settings.name, volume.policy());
    let served = Served {
        name: settings.name.clone(),
        volume,
        description: identity.name,
        cache: settings.cache.display().to_string(),
        cache_bytes: cache.superblock().geometry.total_bytes,
        commits_on_flush: settings.commit_on_flush,
        requests: Requests::new(now),
        found,
        reported_losses: engine::ReportedLosses::default(),
        file_losses_known: 0,
        group: settings.group.as_ref().map(|group| group.name.clone()),
        takes_snapshots: settings.atomic == Atomic::Snapshot,
        auto,
        watch: Guard::new(watch),
    };
    let redo = redo.map(|redo| Arc::new(Mutex::new(redo)));
    Ok((served, Context { cache, origin, redo, turns }))
}

/// Begins the recording that was asked for.
fn record(settings: &VolumeSettings, volume: &mut Volume) -> Result<(), ServeError> {
    let Some(record) = &settings.record else { return Ok(()) };
    let subject = match settings.name.as_str() {
        "" => "block".to_owned(),
        name => format!("block volume {name}"),
    };
    volume
        .core_mut()
        .record(record, env!("CARGO_PKG_VERSION"), &subject)
        .map_err(|error| ServeError::usage(&error))
}

/// Opens the cache's file or device, if there is one.
fn open_media(settings: &VolumeSettings) -> Result<Option<FileMedia>, ServeError> {
    let media = settings.cache.exists().then(|| FileMedia::open(&settings.cache));
    media.transpose().map_err(|error| cache_error(settings, &error))
}

/// Takes up a cache, or makes one on an empty file or device.
fn open_cache(
    settings: &VolumeSettings,
    media: Option<FileMedia>,
    id: &OriginId,
    redo: Option<&RedoStore>,
    clock: &Clock,
    made: &mut Made,
) -> Result<(Arc<CacheDevice>, bool), ServeError> {
    let found = match media {
        Some(media) => lost_store::open(settings, media, id, redo),
        None => Err(CacheError::NotACache),
    };
    match found {
        Ok(cache) => {
            compare_sizes(settings, cache.superblock().geometry.total_bytes);
            Ok((Arc::new(cache), false))
        }
        Err(CacheError::NotACache) => Ok((Arc::new(new_cache(settings, id, clock, made)?), true)),
        Err(error) => {
            let advice = lost_store::advice(&error, redo);
            Err(cache_error(settings, &error).with_advice(advice))
        }
    }
}

/// Says so where a cache has another size than was asked for.
fn compare_sizes(settings: &VolumeSettings, found: u64) {
    if let Some(asked) = settings.cache_bytes.filter(|&asked| asked != found) {
        tracing::warn!(
            cache = %settings.cache.display(),
            bytes = found,
            asked,
            "the cache keeps its size; --cache-size is for a new one. For another size: 'destage block resize'"
        );
    }
}

/// Makes a cache where there is no file, or an empty one, or an empty device. What is there may be someone's data: it is looked
/// at before anything is changed.
fn new_cache(
    settings: &VolumeSettings,
    id: &OriginId,
    clock: &Clock,
    made: &mut Made,
) -> Result<CacheDevice, ServeError> {
    let failed = |error: CacheError| cache_error(settings, &error);
    let path = &settings.cache;
    let total_bytes = settings.cache_bytes.unwrap_or_else(|| new_cache_bytes(path));
    if path.exists() {
        let media = FileMedia::open(path).map_err(failed)?;
        CacheDevice::check_empty(Box::new(media)).map_err(failed)?;
        let found = path.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
        if let Some(found) = found.filter(|&found| found > total_bytes) {
            let (path, found, asked) = (path.display(), Bytes(found), Bytes(total_bytes));
            let message = format!(
                "the file {path} is empty and has {found}, the cache is to have {asked}: give --cache-size {found}, or \
                 remove the file"
            );
            return Err(ServeError::new(exit::USAGE, message));
        }
    } else {
        made.create(path).map_err(|error| failed(CacheError::io("create the file")(error)))?;
    }
    let media = FileMedia::create(path, total_bytes).map_err(|error| {
        if matches!(error, CacheError::InUse(_)) {
            // Another start has been quicker: the file is its own by now.
            made.forget(path);
        }
        failed(error)
    })?;
    let creation = Creation {
        sizing: Sizing { total_bytes, log_bytes: settings.log_bytes, segment_bytes: None },
        origin: id.clone(),
        created_ns: clock.now().0,
        overwrite: false,
    };
    CacheDevice::create(Box::new(media), &creation).map_err(failed)
}

/// Opens the origin, as one that is replaced as a whole if that is wanted.
pub(super) fn open_origin(
    settings: &VolumeSettings,
    options: &NbdOptions,
) -> Result<Arc<dyn Origin>, ServeError> {
    if settings.atomic == Atomic::Redo {
        return origin::open(&settings.origin, options).map_err(|error| origin_error(&error));
    }
    if settings.group.is_some() {
        let why = "a consistency group needs redo stores, since no two files can be replaced in one instant: use \
                   --atomic redo";
        return Err(ServeError::new(exit::USAGE, why));
    }
    control::check_snapshots(&settings.policy).map_err(|why| ServeError::new(exit::USAGE, why))?;
    let opened = origin::open_replaceable(&settings.origin);
    let origin = opened.map_err(|error| match error.kind {
        // Nothing is out of reach: it is of the wrong kind.
        OriginIoErrorKind::Denied => ServeError::new(exit::USAGE, error.message),
        _ => origin_error(&error),
    })?;
    Ok(if settings.unsafe_flags.in_force().in_place {
        Arc::new(origin.unsafe_in_place())
    } else {
        Arc::new(origin)
    })
}

/// An origin that cannot flush cannot keep an order.
pub(super) fn check_flush(
    settings: &VolumeSettings,
    origin: &dyn Origin,
) -> Result<(), ServeError> {
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
    options: &NbdOptions,
    turns: &Arc<Turns>,
    made: &mut Made,
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
    let absent = origin::absent(&place);
    let medium =
        origin::open_or_create(&place, bytes, options).map_err(|error| origin_error(&error))?;
    if let Some(path) = absent {
        made.note(&path);
    }
    // It is where the origin is, so what destaging writes there delays clients' reads as much.
    let medium: Arc<dyn Origin> = Arc::new(InTurn::new(medium, turns.clone()));
    let opened = if origin::is_blank(&*medium).map_err(|error| origin_error(&error))? {
        RedoStore::create(
            medium,
            &NewStore {
                uuid: *uuid::Uuid::new_v4().as_bytes(),
                origin_bytes: origin.size(),
                overwrite: false,
            },
        )
    } else {
        RedoStore::open(medium)
    };
    let store = opened.map_err(|error| redo_error(&place, &error))?;
    if store.group_bytes_max() < GROUP_BYTES_MIN {
        let message =
            format!("the redo store {place} is too small: give it {REDO_BYTES_MIN} bytes or more");
        return Err(ServeError::new(exit::USAGE, message));
    }
    Ok(Some(store))
}

/// Notes in the redo store whose commit record decides from now on; the clock of the volume's group, if it is in one.
fn join(
    settings: &VolumeSettings,
    redo: &mut RedoStore,
    opening: &mut Opening,
) -> Option<GroupClock> {
    let Some(group) = &settings.group else {
        redo.set_coordinator(CoordinatorRecord::default());
        return None;
    };
    let place = settings.redo.clone().or_else(|| origin::sidecar(&settings.origin));
    let (clock, record) = opening.join(group, redo, &place.unwrap_or_default());
    redo.set_coordinator(record);
    Some(clock)
}

/// Ends a volume whose last jobs are done: the log is closed, and the origin given back if nothing is left for it.
pub(super) fn close(served: Served, context: &Context) -> Result<(), ServeError> {
    let decided = served.volume.status().core.decided;
    if served.volume.undecided() == 0
        && !served.volume.is_origin_unflushed()
        && let Some(redo) = &context.redo
    {
        let mut redo = redo.lock().unwrap_or_else(PoisonError::into_inner);
        detach(&mut redo, &*context.origin, decided);
    }
    let journal = served.volume.into_journal();
    journal.close().map(|_| ()).map_err(|error| {
        ServeError::new(exit::JOURNAL_UNUSABLE, format!("the log in {}: {error}", served.cache))
    })
}

fn detach(redo: &mut RedoStore, origin: &dyn Origin, upto: Lsn) {
    if let Err(error) = attach::detach(redo, origin, upto) {
        tracing::warn!(%error, "cannot note at the origin that the cache has detached");
    }
}

/// Ends the volumes of a start that came to nothing.
pub(super) fn give_back(volumes: Vec<Served>, contexts: &[Context]) {
    for (served, context) in volumes.into_iter().zip(contexts) {
        if let Err(error) = close(served, context) {
            tracing::warn!(%error, "a volume could not be closed");
        }
    }
}

/// The UUID that stands for an origin that has no record of its own.
fn named(store: &str) -> uuid::Uuid {
    uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_URL, store.as_bytes())
}

fn origin_error(error: &OriginIoError) -> ServeError {
    let code = match error.kind {
        OriginIoErrorKind::Fenced => exit::FENCED,
        _ => exit::ORIGIN_UNREACHABLE,
    };
    ServeError::new(code, error.message.clone())
}

pub(super) fn redo_error(place: &str, error: &RedoError) -> ServeError {
    let code = match error.kind() {
        OriginIoErrorKind::Fenced => exit::FENCED,
        OriginIoErrorKind::Unavailable => exit::ORIGIN_UNREACHABLE,
        _ if matches!(error, RedoError::InDoubt { .. }) => {
            let message = format!(
                "the redo store {place}: {error}. Bring it within reach, or see 'destage block replay --help'"
            );
            return ServeError::new(exit::ORIGIN_UNREACHABLE, message);
        }
        _ => exit::ORIGIN_WENT_BACK,
    };
    ServeError::new(code, format!("the redo store {place}: {error}"))
}

pub(super) fn cache_error(settings: &VolumeSettings, error: &CacheError) -> ServeError {
    let message = format!("the cache {}: {error}", settings.cache.display());
    ServeError::new(exit::JOURNAL_UNUSABLE, message)
}

pub(super) fn open_error(settings: &VolumeSettings, error: &OpenError) -> ServeError {
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
