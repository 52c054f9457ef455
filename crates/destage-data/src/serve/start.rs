//! Starting: what the journal holds that the origin does not, and whether both fit together.

use super::claims::Claims;
use super::identity::{self, Behind, Claimed, Unused};
use super::replicated::{self, Replicated};
use super::whose::Whose;
use super::{ServeError, alone, owned, sync};
use crate::catalog::Catalog;
use crate::change::items;
use crate::derived::{self, Queries};
use crate::domains::Partition;
use crate::engine::{Engine, StartReport, ahead_ms};
use crate::origins::{self, Listener, Origin, OriginError, Watermarks, Writer};
use crate::schema::{Schema, Table, TableId};
use crate::settings::{EXAMPLE_FILE, Settings, Unmapped};
use destage_core::{Fault, Lsn, Time};
use destage_engine::Drive;
use destage_journal::{DirDisk, Disk, ErrorKind, Journal, Options, Records, Recovery};
use destage_replicas_redis::Replicas;
use destage_runtime::clock::Clock;
use destage_runtime::progress::{self, Progress};
use destage_runtime::watch::Watch;
use destage_runtime::{exit, own, policy};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// The journal's folder, inside the data folder.
const JOURNAL_FOLDER: &str = "journal";
/// Segments of small journals are smaller, so that reclaiming has a grain.
const SEGMENTS_MIN: u64 = 8;

/// A server ready to listen.
pub(super) struct Started {
    pub(super) clock: Clock,
    pub(super) engine: Engine,
    pub(super) origin: Arc<dyn Origin>,
    pub(super) writer: Box<dyn Writer>,
    /// How many threads may write at once, the one of `writer` included.
    pub(super) writers: usize,
    /// If the origin tells what others change.
    pub(super) listener: Option<Box<dyn Listener>>,
    pub(super) epoch: u64,
    /// What the data folder knows of the origin's owners.
    pub(super) claims: Claims,
    /// What it knows of which origin its journal is for.
    pub(super) whose: Whose,
    pub(super) is_example: bool,
    /// Looks whether the journal is still in its place.
    pub(super) watch: Option<Watch>,
    /// The log on other servers.
    pub(super) replicated: Option<Replicated>,
    /// Gives the origin back if the start comes to nothing after all.
    pub(super) unused: Option<Unused>,
}

pub(super) fn start(
    settings: &Settings,
    log: Option<Arc<Replicas>>,
) -> Result<Started, ServeError> {
    create_folder(settings)?;
    if let Some(record) = &settings.record {
        record.check().map_err(|error| ServeError::usage(&error))?;
    }
    let (url, is_example) = origin_url(settings)?;
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(version, data = %settings.data.display(), "starting");
    // The journal first: its lock keeps a second process from touching anything.
    let disk = DirDisk::open(settings.data.join(JOURNAL_FOLDER))?;
    let is_alone = alone::check(settings)?;
    let watch = if log.is_some() { None } else { watch(&disk)? };
    let origin = origins::open(&url, settings.origin_timeout, &settings.tables)?;
    let mut schema = origin.schema()?;
    let (tables, policy) = (schema.reachable().len(), policy::summary(&settings.policy));
    tracing::info!(origin = origin.describe(), tables, policy, "found the origin");
    tell_key_changes(&*origin, &schema);
    check_reach(settings, &*origin, &schema)?;
    let (queries, partition) = fit(settings, &*origin, &mut schema)?;
    let schema = Arc::new(schema);
    let catalog = Catalog::of(&schema);
    let depth = sync::depth(settings, &disk)?;
    let (mut journal, recovery, replicated) = match log {
        None => {
            let (journal, recovery) = open_journal(settings, disk, &catalog)?;
            (journal, recovery, None)
        }
        Some(log) => replicated::journal(settings, log, disk, &catalog)?,
    };
    journal.allow_durable_writes(depth);
    let mut writer = origin.writer()?;
    let partition = Arc::new(partition);
    let behind = match &replicated {
        Some(log) => Behind::Log(log),
        None if is_alone => Behind::Alone,
        None => Behind::Nothing,
    };
    let Claimed { epoch, owner, claims, whose, floor, unused } = identity::claim(
        settings,
        &behind,
        &origin,
        &mut *writer,
        &partition,
        &mut journal,
        &recovery,
    )?;
    if let Some(replicated) = &replicated {
        replicated.check_owned()?;
    }
    let found = owner.as_ref().map(|owner| owner.watermarks.clone()).unwrap_or_default();
    let watermark = owned::decided(owner.as_ref());
    let last = Lsn(journal.last());
    let clock = Clock::new();
    let description = origin.describe();
    let writers = if partition.is_one() { 1 } else { origin.writers_max().min(partition.len()) };
    let mut engine =
        Engine::new(clock.now(), schema.clone(), journal, settings, description, watermark)
            .with_domains(partition, &found, writers);
    engine.derive(queries);
    engine.give_uuids(super::users::key());
    recover_parked(&mut engine, &mut *writer, settings.parked_bytes_max)?;
    let given_up = recover_once(&mut engine, &recovery)?;
    let left =
        Undecided { from: watermark.0.max(floor) + 1, last, watermark, found: &found, given_up };
    clock.not_before(recover(settings, &mut engine, &recovery, &catalog, &left)?);
    record(settings, &mut engine)?;
    if let Some(torn) = recovery.torn {
        tracing::warn!(
            segment = torn.at.segment,
            offset = torn.at.offset,
            bytes = torn.bytes,
            "cut a torn tail of the journal: nothing says that it had become durable, as after a crash in the middle of a write"
        );
        engine.set_start_report(StartReport { cut_bytes: torn.bytes });
    }
    if schema.rows_end {
        engine.clock_is_ahead(clock_ahead_ms(&*origin, &clock)?);
        super::ends::tell_missing_indexes(&*origin, &schema);
    }
    let listener = origin.listener(&schema)?;
    Ok(Started {
        clock,
        engine,
        origin,
        writer,
        writers,
        listener,
        epoch,
        claims,
        whose,
        is_example,
        watch,
        unused,
        replicated,
    })
}

/// Makes of an origin's tables what the settings say, and looks whether these fit.
pub(super) fn fit(
    settings: &Settings,
    origin: &dyn Origin,
    schema: &mut Schema,
) -> Result<(Arc<Queries>, Partition), ServeError> {
    check_tables(settings, schema)?;
    let usage = |error| ServeError::new(exit::USAGE, error);
    declare_sets(settings, schema).map_err(usage)?;
    schema.give_defaults(&settings.tables).map_err(usage)?;
    serve_keys(settings, schema).map_err(usage)?;
    check_deletions(origin, schema)?;
    let queries = queries(settings, schema, origin)?;
    Ok((queries, owned::partition(settings, origin, schema)?))
}

/// Refuses a start from which no key would reach anything because nobody has said what the tables hold.
pub(super) fn check_reach(
    settings: &Settings,
    origin: &dyn Origin,
    schema: &Schema,
) -> Result<(), ServeError> {
    if !schema.reachable().is_empty() {
        return Ok(());
    }
    let place = origin.describe();
    let suggested = origin.suggested_settings(schema)?;
    match suggested {
        Some(sections) if settings.unmapped == Unmapped::Reject => Err(ServeError::new(
            exit::USAGE,
            format!(
                "nothing says what the collections of {place} hold, so no key would reach anything. Write it into a settings \
                 file and name that by --config. To begin with, what some of their documents hold, which is yours to \
                 correct:\n\n{sections}"
            ),
        )),
        _ => {
            tracing::warn!(origin = place, "no key reaches a table; 'destage schema' says why");
            Ok(())
        }
    }
}

/// Says once, for all tables, what has to be changed at the origin so that keys reach them.
fn tell_key_changes(origin: &dyn Origin, schema: &Schema) {
    if !schema.key_changes.is_empty() {
        let statements = schema.key_changes.join("; ");
        tracing::warn!(origin = origin.describe(), statements, "{}", Schema::KEY_CHANGES);
    }
}

/// Enters what the settings say of triggers that only set columns of their own rows.
fn declare_sets(settings: &Settings, schema: &mut Schema) -> Result<(), String> {
    for (name, table) in &settings.tables {
        let id = schema.find(name.as_bytes()).map(|table| table.id);
        id.map_or(Ok(()), |id| schema.declare_sets(id, &table.trigger_sets))?;
    }
    Ok(())
}

/// Adds the keys that the settings make to those of the tables.
fn serve_keys(settings: &Settings, schema: &mut Schema) -> Result<(), String> {
    schema.map_keys(&settings.mappings)?;
    schema.let_copies_expire(|name| settings.tables.get(name).is_some_and(|t| t.copies_expire));
    schema.let_rows_end(&settings.tables)?;
    schema.ask_foreign_keys(&settings.tables)?;
    schema.ask_uniques(&settings.tables)?;
    schema.merge_new_rows(&settings.tables)?;
    match &settings.unmapped {
        Unmapped::Reject => Ok(()),
        Unmapped::Cache => schema.serve_plain_keys(&[]),
        Unmapped::Prefixes(prefixes) => schema.serve_plain_keys(prefixes),
    }
}

/// Looks whether rows that end may be deleted: the origin would refuse each deletion.
fn check_deletions(origin: &dyn Origin, schema: &Schema) -> Result<(), ServeError> {
    if !schema.rows_end {
        return Ok(());
    }
    let mut reader = origin.reader()?;
    for table in schema.tables.iter().filter(|table| table.ttl.is_some()) {
        lacks_deletion(table, reader.may_delete(table))
            .map_or(Ok(()), |why| Err(ServeError::new(exit::USAGE, why)))?;
    }
    Ok(())
}

/// Why rows of a table cannot end, if the user may not delete them. Other trouble at that question says nothing about it.
fn lacks_deletion(table: &Table, asked: Result<(), OriginError>) -> Option<String> {
    let denied = asked.err().filter(|error| error.fault == Fault::Denied && error.is_partial())?;
    let (name, sql_name) = (&table.name, &table.sql_name);
    let column = table.ttl.as_ref().map_or("", |ttl| &table.columns[ttl.column].name);
    Some(format!(
        "[table.{name}] ttl = \"column {column}\": rows that have ended are deleted, which the user may not do; run GRANT DELETE \
         ON {sql_name} TO the user ({denied})"
    ))
}

/// By how much this clock is ahead of the origin's; negative: behind.
fn clock_ahead_ms(origin: &dyn Origin, clock: &Clock) -> Result<i64, ServeError> {
    let now_ms = || clock.now().0.cast_signed() / 1_000_000;
    let mut reader = origin.reader()?;
    let asked = now_ms();
    let origin_ms = reader.clock_ms()?;
    Ok(ahead_ms([asked, now_ms()], origin_ms, 0))
}

/// Begins the recording that was asked for.
fn record(settings: &Settings, engine: &mut Engine) -> Result<(), ServeError> {
    let Some(record) = &settings.record else { return Ok(()) };
    engine
        .core_mut()
        .record(record, env!("CARGO_PKG_VERSION"), "serve")
        .map_err(|error| ServeError::usage(&error))
}

pub(super) fn create_folder(settings: &Settings) -> Result<(), ServeError> {
    use std::os::unix::fs::DirBuilderExt;
    let create = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&settings.data);
    let data = settings.data.display();
    create.map_err(|error| {
        let message = format!("cannot create the data folder {data}: {error}");
        ServeError::new(exit::JOURNAL_UNUSABLE, message)
    })?;
    let risk = own::folder_at_risk(&settings.data).map_err(|error| {
        let message = format!("cannot look at the data folder {data}: {error}");
        ServeError::new(exit::JOURNAL_UNUSABLE, message)
    })?;
    risk.map_or(Ok(()), |risk| {
        let message = format!(
            "the data folder {data} is not safe: {risk}, or use another --data folder. Whoever can change it can put other \
             files in the place of the journal's"
        );
        Err(ServeError::new(exit::JOURNAL_UNUSABLE, message))
    })
}

fn watch(disk: &DirDisk) -> Result<Option<Watch>, ServeError> {
    let path = disk.lock_path();
    Watch::on(&path).map_err(|error| {
        let message = format!("cannot look at the journal's {}: {error}", path.display());
        ServeError::new(exit::JOURNAL_UNUSABLE, message)
    })
}

/// The origin's address; the example shop is created where none is given.
pub(super) fn origin_url(settings: &Settings) -> Result<(String, bool), ServeError> {
    if let Some(url) = &settings.origin {
        return Ok((url.clone(), false));
    }
    let path = settings.data.join(EXAMPLE_FILE);
    origins::create_example(&path)?;
    Ok((format!("sqlite:{}", path.display()), true))
}

fn check_tables(settings: &Settings, schema: &Schema) -> Result<(), ServeError> {
    let declared = settings.tables.values().flat_map(|table| table.triggers.iter().flatten());
    for name in settings.tables.keys().chain(declared) {
        if schema.find(name.as_bytes()).is_none() {
            return Err(ServeError::new(
                exit::USAGE,
                format!(
                    "the settings name a table '{name}' that is not reachable; see destage schema"
                ),
            ));
        }
    }
    Ok(())
}

/// The derived keys, which the origin has prepared.
fn queries(
    settings: &Settings,
    schema: &Schema,
    origin: &dyn Origin,
) -> Result<Arc<Queries>, ServeError> {
    let queries = Queries::new(&settings.queries, schema)
        .map_err(|error| ServeError::new(exit::USAGE, error))?;
    for mapping in &settings.mappings {
        let word = mapping.key.split('{').next().unwrap_or_default();
        if let Some(query) = queries.begins(word.as_bytes()) {
            let message = format!(
                "[[query]] key = '{}': the keys '{}' begin with the same word; begin one of them with another",
                query.key, mapping.key
            );
            return Err(ServeError::new(exit::USAGE, message));
        }
    }
    if !queries.is_empty() {
        let mut reader = origin.reader()?;
        derived::check(&queries, schema, &mut *reader).map_err(|error| match error.fault {
            Fault::Denied | Fault::Rejected => ServeError::new(exit::USAGE, error.message),
            _ => ServeError::from(error),
        })?;
    }
    Ok(Arc::new(queries))
}

fn open_journal(
    settings: &Settings,
    disk: DirDisk,
    catalog: &Catalog,
) -> Result<(Journal, Recovery), ServeError> {
    open_journal_on(settings, Arc::new(disk), journal_options(settings, catalog))
}

/// How the journal is kept.
pub(super) fn journal_options(settings: &Settings, catalog: &Catalog) -> Options {
    let defaults = Options::default();
    let bytes_max = settings.policy.limits.journal_bytes_max;
    Options {
        segment_bytes: (bytes_max / SEGMENTS_MIN)
            .clamp(Options::SEGMENT_BYTES_MIN, defaults.segment_bytes),
        journal_bytes_max: bytes_max,
        retain: Duration::from_nanos(settings.retain.as_nanos()),
        catalog: catalog.encode(),
        unsafe_no_fsync: settings.unsafe_flags.in_force().no_fsync,
        ..defaults
    }
}

pub(super) fn open_journal_on(
    settings: &Settings,
    disk: Arc<dyn Disk>,
    options: Options,
) -> Result<(Journal, Recovery), ServeError> {
    let opened = progress::of_segments("reading the journal", |shown| {
        Journal::open_with(disk, options, shown)
    });
    opened.map_err(|error| match error.kind() {
        ErrorKind::Corrupt => ServeError::new(
            exit::JOURNAL_UNUSABLE,
            format!(
                "{error}. Nothing was changed. See what it holds with `destage journal inspect --data {0}`, save it with \
                 `destage journal export --data {0}`, and see what cutting it would lose with `destage journal repair \
                 --data {0} --cut {1}`",
                settings.data.display(),
                error.position().map_or_else(|| "SEGMENT:OFFSET".to_owned(), |at| at.to_string())
            ),
        ),
        _ => ServeError::from(error),
    })
}

fn recover_parked(
    engine: &mut Engine,
    writer: &mut dyn Writer,
    bytes_max: u64,
) -> Result<(), ServeError> {
    for parked in writer.parked(bytes_max)? {
        match crate::parked::decode(engine.schema(), &parked.payload) {
            Ok(bytes) => engine.recover_parked(parked.lsn, &bytes),
            Err(error) => {
                // The reason may repeat a value of its rows.
                tracing::warn!(
                    lsn = parked.lsn.0,
                    "a parked write does not fit the tables any more; readers do not see it. 'destage parked retry' with its \
                     number says why; edit or skip it"
                );
                engine.recover_unreadable(parked.lsn, error.to_string());
            }
        }
    }
    Ok(())
}

/// Hands the engine what the whole journal tells of commands that were carried out once; returns the writes that are given up.
fn recover_once(engine: &mut Engine, recovery: &Recovery) -> Result<HashSet<Lsn>, ServeError> {
    let mut given_up = HashSet::new();
    let mut records = recovery.records(0);
    progress::of_segments("looking for tokens in the journal", |shown| {
        while let Some(record) = records.advance()? {
            let (lsn, stamp) = (Lsn(record.lsn), Time(record.stamp_ns));
            engine.recover_once(lsn, stamp, record.payload, &mut given_up);
            shown(records.progress());
        }
        Ok(given_up)
    })
}

/// What an earlier run has left, of which some may be decided.
struct Undecided<'a> {
    /// The first group that the origin may not have decided, and the last that was written.
    from: u64,
    last: Lsn,
    /// Where the origin stands, as a whole and in each domain.
    watermark: Lsn,
    found: &'a Watermarks,
    /// Groups that were given up.
    given_up: HashSet<Lsn>,
}

/// Hands the engine what the origin has not decided; returns the newest stamp.
fn recover(
    settings: &Settings,
    engine: &mut Engine,
    recovery: &Recovery,
    catalog: &Catalog,
    left: &Undecided<'_>,
) -> Result<Time, ServeError> {
    let (from, current) = (left.from, catalog.encode());
    let total = (recovery.last_lsn + 1).saturating_sub(from);
    let mut bar = Progress::new("replaying the journal", total);
    let mut newest = Time::ZERO;
    let mut next = from;
    let mut records = recovery.records(from);
    let schema = engine.schema().clone();
    let now = engine.now();
    destage_engine::recover(engine, now, left.last, |engine| {
        let record = records.advance()?;
        let Some(record) = record else { return Ok(false) };
        let lsn = Lsn(record.lsn);
        if lsn.0 > next && !settings.adopt {
            return Err(gap(settings, left.watermark, next, lsn));
        }
        next = lsn.0 + 1;
        if left.given_up.contains(&lsn) {
            return Ok(true);
        }
        let translated;
        let payload = if **record.catalog == *current {
            check_readable(&schema, lsn, record.payload)?;
            record.payload
        } else {
            let old = Catalog::decode(record.catalog).ok_or_else(|| {
                ServeError::new(exit::JOURNAL_UNUSABLE, "the journal's catalog cannot be read")
            })?;
            translated = match old.translate(&schema, record.payload) {
                Ok(payload) => payload,
                Err(lacks) => {
                    let others = unfit(&schema, &mut records)?;
                    return Err(schema_changed(lsn, &lacks, &others));
                }
            };
            &translated
        };
        let stamp = Time(record.stamp_ns);
        if owned::is_undecided(engine, left.found, lsn, payload)? {
            newest = stamp;
            engine.recover(lsn, newest, payload);
        }
        bar.set(next - from);
        Ok(true)
    })?;
    bar.finish();
    if total > 0 {
        tracing::info!(groups = total, "found undestaged writes in the journal; destaging them");
    } else {
        tracing::info!(last = recovery.last_lsn, "found the journal with nothing to destage");
    }
    Ok(newest)
}

/// Checks what this build is about to take for granted.
fn check_readable(schema: &Schema, lsn: Lsn, payload: &[u8]) -> Result<(), ServeError> {
    let key_len = |id: TableId| schema.tables.get(usize::from(id.0)).map(|table| table.key_len);
    let malformed = items(payload, key_len).find_map(Result::err);
    malformed.map_or(Ok(()), |error| {
        let message = format!(
            "write {} of the journal cannot be read: {error}. A newer build of Destage may have written it: start that one \
             until the journal is drained, or export the writes with `destage journal export`",
            lsn.0
        );
        Err(ServeError::new(exit::JOURNAL_UNUSABLE, message))
    })
}

/// Between two times of this journal another one, or a part that was cut, wrote at the origin.
fn gap(settings: &Settings, watermark: Lsn, next: u64, found: Lsn) -> ServeError {
    ServeError::new(
        exit::ORIGIN_WENT_BACK,
        format!(
            "the origin went back: it stands at write {}, and the journal in {} lacks the writes {next} to {}, which were \
             written through another journal or cut. Restore a copy that is at least as new as write {}, or start with an \
             empty data folder and --adopt",
            watermark.0,
            settings.data.display(),
            found.0 - 1,
            found.0 - 1
        ),
    )
}

/// Which of the further writes do not fit the schema any more.
fn unfit(schema: &Schema, records: &mut Records) -> Result<Vec<u64>, ServeError> {
    let mut lsns = Vec::new();
    while let Some(record) = records.advance()? {
        let old = Catalog::decode(record.catalog);
        if old.is_none_or(|old| old.translate(schema, record.payload).is_err()) {
            lsns.push(record.lsn);
        }
    }
    Ok(lsns)
}

fn schema_changed(lsn: Lsn, lacks: &str, others: &[u64]) -> ServeError {
    let named: Vec<String> = others.iter().take(NAMED_MAX).map(u64::to_string).collect();
    let others = match others.len() {
        0 => String::new(),
        count if count > NAMED_MAX => format!(
            "; {count} later ones do not fit either: {} and {} more",
            named.join(", "),
            count - NAMED_MAX
        ),
        count => format!("; {count} later ones do not fit either: {}", named.join(", ")),
    };
    ServeError::new(
        exit::JOURNAL_UNUSABLE,
        format!(
            "the origin's schema changed while writes were undestaged: write {} needs what is not there: {lacks}{others}. \
             Bring it back until the journal is drained, or export the writes with `destage journal export`",
            lsn.0
        ),
    )
}

/// Numbers of writes that one message names.
const NAMED_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origins::Stage;

    #[test]
    fn who_may_not_delete_is_told_which_right_is_missing() {
        let table = Table::named("sessions".into(), "`sessions`".into());
        let denied = || OriginError::new(Fault::Denied, "DELETE command denied");
        let why = lacks_deletion(&table, Err(denied())).expect("it is refused");
        for part in ["[table.sessions] ttl", "GRANT DELETE ON `sessions` TO", "command denied"] {
            assert!(why.contains(part), "{why}");
        }
        // A primary that became a replica, or a user that was locked out, says nothing about this table.
        let unavailable = OriginError::new(Fault::Unavailable, "read-only");
        for other in [Ok(()), Err(unavailable), Err(denied().at(Stage::Connection))] {
            assert_eq!(lacks_deletion(&table, other), None);
        }
    }
}
