//! The buffered writes on other servers: taking their log over at a start, and handing writes over to it.

mod entries;
mod founding;
mod report;

use self::entries::{Entries, of_parcel, says_the_same};
use self::founding::{Founding, begin, kept_without};
use super::standby::Standby;
use super::start::{self, Started, journal_options, open_journal_on};
use super::{Door, Event, Outbox, ServeError, alone};
use crate::catalog::Catalog;
use crate::settings::{JournalKind, ReplicaSettings, Settings, UnsafeFlags};
use destage_core::{AtLimit, Lsn, Span};
use destage_journal::{DirDisk, Disk, Journal, MemDisk, Options, ParcelReader, Recovery};
use destage_replicas::{Position, Refusal, Stage};
use destage_replicas_redis::{LogSettings, Reach, Replicas, Said, ServerReport, Trouble};
use destage_runtime::{exit, human};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) use report::report;

/// Entries that are handed over and not yet held by k servers; what comes meanwhile goes together.
const UNDER_WAY_MAX: usize = 2;
/// So much is handed over although nobody waits for it.
const AHEAD_BYTES: usize = 256 << 10;
/// An entry explains itself at least so often, so that those before it may go; always where that takes few bytes.
const EXPLAINED_EVERY: usize = 64;
const EXPLANATION_SMALL: usize = 1 << 10;
/// How long a start waits for servers before it says what it lacks, and then gives up.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a start waits for a sign of another owner, beyond the time after which one is taken for dead.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long it waits before it says that it does.
const TOLD_AFTER: Duration = Duration::from_secs(1);

/// So often another process may have claimed the origin from an owner of the log before it ends.
const OUTRUN_MAX: u32 = 5;

/// How often it looks whether it still owns the log.
const LEASE_LOOK: Duration = Duration::from_millis(20);

/// How long it waits if servers are not fit to be used, which a person has to mend.
const SETTLING: Duration = Duration::from_secs(3);

/// How the journal's segments are named.
const SEGMENT: &str = "segment-";

/// The log of a running server: see the module.
#[derive(Debug)]
pub(super) struct Replicated {
    log: Arc<Replicas>,
    /// Not held by k servers yet.
    under_way: VecDeque<Entry>,
    /// Not reclaimed yet, oldest first; those under way are among them.
    kept: VecDeque<Kept>,
    /// The newest write handed over.
    shipped: Lsn,
    /// The newest write that k servers hold, or the origin does with all before it.
    reached: Lsn,
    /// The newest write that whoever takes over finds.
    secured: Lsn,
    /// The newest write that this process has found. Before it is reached nothing is answered: it may have been told of by
    /// nobody, and be lost with fewer servers than `--copies` says.
    found: Lsn,
    /// How long the newest entry took that is as safe as that.
    took: Span,
    /// The newest write that is durable in the journal here, whatever that is worth.
    here: Lsn,
    wanted: Option<Lsn>,
    unsent: Option<Unsent>,
    since_explained: usize,
    unsafe_flags: UnsafeFlags,
    /// Held for its lock.
    _folder: Option<DirDisk>,
}

/// What is to be handed over next.
#[derive(Debug)]
struct Unsent {
    last: Lsn,
    explains: bool,
    bytes: destage_replicas::Payload,
}

#[derive(Debug)]
struct Entry {
    at: Position,
    last: Lsn,
    since: Instant,
}

#[derive(Debug)]
struct Kept {
    at: Position,
    last: Lsn,
    is_explained: bool,
}

/// Takes the log over, if there is one. A standby waits as long as another process owns it, and answers at the places that are
/// taken; other starts are refused then.
///
/// # Errors
/// [`exit::FENCED`] if another process owns it, [`exit::JOURNAL_UNUSABLE`] if too few servers can be reached, and
/// [`exit::USAGE`] for settings that do not fit.
pub(super) fn open(
    settings: &Settings,
    door: Option<&Door>,
) -> Result<Option<Arc<Replicas>>, ServeError> {
    let Some(replicas) = &settings.replicas else { return Ok(None) };
    let log = Replicas::start(replicas.places.clone(), &log_settings(settings, replicas));
    let log = Arc::new(log);
    let answering = match door.filter(|_| replicas.standby) {
        Some(door) => Some(Standby::begin(settings, replicas, door, log.clone())?),
        None => None,
    };
    let is_decided =
        |said: &Said| said.is_blank || matches!(said.stage, Stage::Open | Stage::Refused(_));
    let mut founding = Founding::default();
    let began = Instant::now();
    let patience = PATIENCE.max(replicas.failover * 4);
    let mut is_told = false;
    loop {
        let said = log.wait(LOOK_AGAIN, is_decided);
        match said.stage {
            Stage::Open => break,
            Stage::Refused(refusal) => return Err(refused(&refusal, replicas)),
            _ if said.is_blank => founding.go_on(settings, replicas, &log)?,
            _ => {}
        }
        if replicas.standby {
            continue;
        }
        if let Some((_, place, true)) = log.owner_seen()
            && !settings.take_over
            && began.elapsed() > replicas.failover + LOOK_AGAIN
        {
            return Err(ServeError::new(
                exit::FENCED,
                format!(
                    "another process owns the log '{}' on these servers: its clients reach it at {place}. Stop it first, start \
                     this one with --standby, or --take-over from it",
                    replicas.name
                ),
            ));
        }
        if !is_told && began.elapsed() > TOLD_AFTER {
            is_told = true;
            tracing::info!(
                "waiting for the log's servers, and for a former owner's time to end: {} at most",
                human::seconds(patience.as_secs_f64())
            );
        }
        let is_late = began.elapsed() > patience;
        let is_hopeless = began.elapsed() > replicas.failover + SETTLING && is_hopeless(&log);
        if is_late || is_hopeless {
            return Err(too_few(&log, replicas));
        }
    }
    if let Some(config) = log.config() {
        let (copies, least) = (config.now.copies, config.now.leases());
        if copies != replicas.copies {
            tracing::warn!(
                copies,
                asked = replicas.copies,
                "the log keeps as many copies as when it was begun; --copies counts for a new one"
            );
        }
        if settings.policy.at_limit == AtLimit::WriteThrough && least == copies {
            tracing::warn!(
                copies,
                servers = config.now.members.len(),
                "with fewer servers than --copies writes wait: --at-limit write-through needs more than half of the servers, which \
                 is no fewer, and holds for the other limits alone"
            );
        }
    }
    drop(answering);
    Ok(Some(log))
}

/// Starts behind the log. A standby that has taken it over tries again while the origin cannot be claimed: the former owner may
/// have been stopped in the middle of a transaction, whose locks the origin holds for a while, and somebody else who had taken
/// the log over before may have waited for them as well.
///
/// # Errors
/// As any start.
pub(super) fn start(
    settings: &Settings,
    log: Option<Arc<Replicas>>,
) -> Result<Started, ServeError> {
    let is_standby = settings.replicas.as_ref().is_some_and(|replicas| replicas.standby);
    let mut outrun = 0;
    loop {
        let error = match start::start(settings, log.clone()) {
            Err(error) if is_standby && error.exit_code() == exit::ORIGIN_UNREACHABLE => error,
            Err(error)
                if is_standby && error.exit_code() == exit::FENCED && outrun < OUTRUN_MAX =>
            {
                outrun += 1;
                error
            }
            result => return result,
        };
        let is_owned = log.as_ref().is_some_and(|log| !is_lost(&log.said()));
        if !is_owned {
            return Err(error);
        }
        tracing::warn!(%error, "took the log over, but not the origin yet; trying again");
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn log_settings(settings: &Settings, replicas: &ReplicaSettings) -> LogSettings {
    let place = replicas.advertise.clone().unwrap_or_else(|| settings.listen.to_string());
    let random = uuid::Uuid::new_v4().as_u64_pair();
    LogSettings {
        name: replicas.name.clone(),
        subject: replicas.name.clone(),
        place,
        copies: replicas.copies,
        failover: replicas.failover,
        opens_short: settings.policy.at_limit == AtLimit::WriteThrough,
        founds: false,
        at_once: settings.take_over,
        identity: random.0 ^ random.1,
    }
}

fn refused(refusal: &Refusal, replicas: &ReplicaSettings) -> ServeError {
    let message = match refusal {
        Refusal::Copies => format!(
            "--copies {} of {} servers cannot be had: 1 to {0} can",
            replicas.copies,
            replicas.places.addresses().len()
        ),
        Refusal::Subject(subject) => format!(
            "the log '{}' on these servers is for {subject}: choose another name with --replica-log",
            replicas.name
        ),
    };
    ServeError::new(exit::USAGE, message)
}

/// Whether a person has to mend something before the log can be taken over.
fn is_hopeless(log: &Replicas) -> bool {
    let servers = log.servers();
    let is_unfit = |server: &&ServerReport| matches!(server.trouble, Some(Trouble::Unfit(_)));
    let unfit = servers.iter().filter(is_unfit).count();
    // A new log asks all servers.
    let needed = log.config().map_or(servers.len(), |config| {
        config.now.promises().max(config.now.copies).min(servers.len())
    });
    servers.len() - unfit < needed
}

fn too_few(log: &Replicas, replicas: &ReplicaSettings) -> ServeError {
    let mut text = format!(
        "too few servers of the log '{}' can be used to take it over; nothing was changed:",
        replicas.name
    );
    for server in log.servers() {
        let standing = &server.standing;
        let what = match (&server.trouble, standing.is_member, standing.counts) {
            (Some(trouble), ..) => trouble.to_string(),
            (None, true, false) => "it has lost its memory, or was restarted without one".into(),
            (None, _, _) if !standing.is_reachable => "it does not answer".into(),
            _ => "it is ready".into(),
        };
        text.push_str(&format!("\n  {}: {what}", standing.address));
    }
    text.push_str("\nBring the servers back that hold it");
    ServeError::new(exit::JOURNAL_UNUSABLE, text)
}

/// The journal, with what the log holds, and the log behind it. The log decides: a journal on the local disk that holds
/// something else is set aside, since what only it has was never acknowledged.
///
/// # Errors
/// As for a journal on the local disk, and for a log that cannot be read.
pub(super) fn journal(
    settings: &Settings,
    log: Arc<Replicas>,
    folder: DirDisk,
    catalog: &Catalog,
) -> Result<(Journal, Recovery, Option<Replicated>), ServeError> {
    let kind = settings.replicas.as_ref().map_or(JournalKind::Replicas, |r| r.journal);
    let mut options = journal_options(settings, catalog);
    // By this identity the origin knows a log that its servers have forgotten from the one that is begun in its place.
    options.uuid = Some(match identity(&log.entries())? {
        Some(identity) => identity,
        None => begin(settings, &log, &options.catalog)?,
    });
    if kind == JournalKind::Replicas {
        // What is decided is of use to nobody: it is not there after a restart.
        options.retain = Duration::ZERO;
    }
    let entries = log.entries();
    let mut kept = VecDeque::new();
    for (at, payload) in entries.iter().filter(|(_, payload)| !payload.is_empty()) {
        let (last, is_explained) = of_parcel(payload)?;
        kept.push_back(Kept { at: *at, last, is_explained });
    }
    let fill = |disk: Arc<dyn Disk>| -> Result<(Journal, Recovery), ServeError> {
        let (mut journal, recovery) = open_journal_on(settings, disk.clone(), options.clone())?;
        if kept.is_empty() {
            return Ok((journal, recovery));
        }
        for (_, payload) in entries.iter().filter(|(_, payload)| !payload.is_empty()) {
            journal.append_parcel(payload)?;
        }
        journal.close()?;
        open_journal_on(settings, disk, options.clone())
    };
    let (mut journal, recovery, folder) = match kind {
        JournalKind::Replicas => {
            let (journal, recovery) = fill(Arc::new(MemDisk::default()))?;
            (journal, recovery, Some(folder))
        }
        JournalKind::Both => {
            let (journal, recovery) = both(settings, folder, &options, &entries, &fill)?;
            (journal, recovery, None)
        }
    };
    let last = Lsn(journal.last());
    journal.hand_over();
    let committed = log.said().committed;
    let is_early = |kept: &&Kept| kept.at > committed;
    let since = Instant::now();
    let entry = |kept: &Kept| Entry { at: kept.at, last: kept.last, since };
    let under_way: VecDeque<Entry> = kept.iter().filter(is_early).map(entry).collect();
    let reached = if under_way.is_empty() { last } else { Lsn::ZERO };
    let replicated = Replicated {
        log,
        under_way,
        kept,
        shipped: last,
        reached,
        secured: last,
        found: last,
        took: Span::ZERO,
        here: last,
        wanted: None,
        unsent: None,
        since_explained: EXPLAINED_EVERY,
        unsafe_flags: settings.unsafe_flags.in_force(),
        _folder: folder,
    };
    Ok((journal, recovery, Some(replicated)))
}

/// Whose the log's records are, unless it is a new one.
fn identity(entries: &Entries) -> Result<Option<[u8; 16]>, ServeError> {
    let Some((_, payload)) = entries.iter().find(|(_, payload)| !payload.is_empty()) else {
        return Ok(None);
    };
    Ok(Some(ParcelReader::open(payload)?.journal))
}

/// The journal on the local disk if it says the same as the log, else a new one.
fn both(
    settings: &Settings,
    folder: DirDisk,
    options: &Options,
    entries: &Entries,
    fill: &dyn Fn(Arc<dyn Disk>) -> Result<(Journal, Recovery), ServeError>,
) -> Result<(Journal, Recovery), ServeError> {
    let place = settings.data.join("journal");
    let disk: Arc<dyn Disk> = Arc::new(folder);
    let names = disk.list().map_err(|error| ServeError::internal(&error))?;
    let is_empty = !names.iter().any(|name| name.starts_with(SEGMENT));
    let fill = |disk: Arc<dyn Disk>| {
        alone::set_behind(settings, true)?;
        let filled = fill(disk)?;
        alone::set_behind(settings, false)?;
        Ok(filled)
    };
    if is_empty {
        return fill(disk);
    }
    let (journal, recovery) = open_journal_on(settings, disk.clone(), options.clone())?;
    let uuid = options.uuid.map(|uuid| uuid::Uuid::from_bytes(uuid).to_string());
    if Some(journal.uuid()) != uuid.as_deref() {
        return Err(kept_without(settings));
    }
    if says_the_same(&journal, entries)? {
        alone::set_behind(settings, false)?;
        return Ok((journal, recovery));
    }
    alone::set_behind(settings, true)?;
    let cut = journal.last();
    drop((journal, recovery, disk));
    let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let aside = settings.data.join(format!("journal.{}", stamp.map_or(0, |age| age.as_secs())));
    std::fs::rename(&place, &aside).map_err(|error| {
        let message = format!("cannot set the journal {} aside: {error}", place.display());
        ServeError::new(exit::JOURNAL_UNUSABLE, message)
    })?;
    tracing::warn!(
        aside = %aside.display(),
        last = cut,
        "the journal here and the log on the servers differ; the log decides. What only the journal had was never acknowledged, and \
         is set aside"
    );
    fill(Arc::new(DirDisk::open(place)?))
}

fn is_lost(said: &Said) -> bool {
    matches!(said.stage, Stage::Fenced { .. })
}

fn lost(said: &Said) -> ServeError {
    let by = match &said.stage {
        Stage::Fenced { place, .. } if !place.is_empty() => format!(" at {place}"),
        _ => String::new(),
    };
    ServeError::new(
        exit::FENCED,
        format!(
            "another process{by} took over the log; this one acknowledged nothing since and stopped. Everything acknowledged \
             is there"
        ),
    )
}

impl Replicated {
    /// Tells the server of each change from now on.
    pub(super) fn tell(&self, outbox: Outbox) {
        self.log.listen(move |_| outbox.send(Event::Replicated));
    }

    /// Waits until no other process can own the log. Whoever has lost it must not claim the origin from its successor.
    ///
    /// # Errors
    /// [`exit::FENCED`]: another one owns it; [`exit::JOURNAL_UNUSABLE`]: too few servers are reached to tell.
    pub(super) fn await_lease(&self, settings: &Settings) -> Result<(), ServeError> {
        let began = Instant::now();
        while !self.log.is_leased() {
            let said = self.log.wait(LEASE_LOOK, is_lost);
            if is_lost(&said) {
                return Err(lost(&said));
            }
            // A standby waits for its servers for as long as it takes.
            let is_over = |it: &&ReplicaSettings| !it.standby && began.elapsed() > PATIENCE;
            if let Some(replicas) = settings.replicas.as_ref().filter(is_over) {
                return Err(too_few(&self.log, replicas));
            }
        }
        Ok(())
    }

    /// Whether this process still owns the log, after it has claimed the origin. It does while the servers' configuration is
    /// being changed, too.
    ///
    /// # Errors
    /// [`exit::FENCED`]: another one does.
    pub(super) fn check_owned(&self) -> Result<(), ServeError> {
        let said = self.log.said();
        if is_lost(&said) { Err(lost(&said)) } else { Ok(()) }
    }

    pub(super) fn want(&mut self, upto: Lsn) {
        self.wanted = self.wanted.max(Some(upto));
    }

    /// Hands over what is wanted, or much; lets go of what is decided. The origin has decided everything up to `decided`.
    pub(super) fn ship(&mut self, journal: &mut Journal, decided: Lsn) {
        self.reached = self.reached.max(decided);
        while let Some(entry) = self.under_way.pop_front_if(|entry| entry.last <= decided) {
            self.took = Span(entry.since.elapsed().as_nanos() as u64);
        }
        while self.is_due(journal) {
            let is_small = journal.catalog_bytes() <= EXPLANATION_SMALL;
            let explains = is_small || self.since_explained >= EXPLAINED_EVERY;
            let parcel = self.unsent.take().or_else(|| {
                let parcel = journal.take_parcel(explains)?;
                self.since_explained = if explains { 0 } else { self.since_explained + 1 };
                Some(Unsent { last: Lsn(parcel.last()), explains, bytes: parcel.finish().into() })
            });
            let Some(parcel) = parcel else { break };
            self.send(parcel);
            if self.unsent.is_some() {
                break;
            }
        }
        self.reclaim(Lsn(journal.decided()));
    }

    /// Hands over all that the journal has. How many writes are not held by k servers yet.
    pub(super) fn ship_all(&mut self, journal: &mut Journal, decided: Lsn) -> u64 {
        let last = Lsn(journal.last());
        self.want(last);
        self.ship(journal, decided);
        last.0.saturating_sub(self.reached.0)
    }

    fn is_due(&self, journal: &Journal) -> bool {
        let is_wanted = self.wanted.is_some_and(|wanted| wanted > self.shipped);
        if !is_wanted && journal.parcel_bytes() <= AHEAD_BYTES {
            return false;
        }
        let said = self.log.said();
        // With fewer servers than copies the origin goes on with what is secured.
        let is_short = said.reach == Reach::Through;
        let is_awaited = |entry: &&Entry| !is_short || entry.at > said.secured;
        let awaited = self.under_way.iter().rev().take_while(is_awaited).count();
        said.stage == Stage::Open && awaited < UNDER_WAY_MAX
    }

    fn send(&mut self, parcel: Unsent) {
        let Unsent { last, explains: is_explained, .. } = parcel;
        let Some(at) = self.log.append(parcel.bytes.clone()) else {
            // The servers' configuration is being changed, which takes a few round trips.
            self.unsent = Some(parcel);
            return;
        };
        self.shipped = last;
        self.under_way.push_back(Entry { at, last, since: Instant::now() });
        self.kept.push_back(Kept { at, last, is_explained });
    }

    /// Everything before the newest entry that explains itself and has only decided ones before it. One entry stays, since it
    /// says which number comes next, and is one that whoever takes over finds: they may find none behind those.
    fn reclaim(&mut self, decided: Lsn) {
        let is_early = self.unsafe_flags.early_reclaim;
        let decided = if is_early { self.reached } else { decided.min(self.reached) };
        let is_decided = |kept: &&Kept| kept.last <= decided;
        let count = self.kept.iter().take_while(is_decided).count();
        let reached = self.reached;
        let is_base = |(_, kept): &(usize, &Kept)| kept.is_explained && kept.last <= reached;
        let mut candidates = self.kept.iter().take(count + 1).enumerate().skip(1);
        let Some((index, base)) = candidates.rfind(is_base) else {
            return;
        };
        let base = base.at;
        self.kept.drain(..index);
        self.log.reclaim(base);
    }

    /// The journal here is durable up to there.
    pub(super) fn durable_here(&mut self, upto: Lsn) {
        self.here = self.here.max(upto);
    }

    /// Up to where a write is acknowledged, and how long the newest entry took.
    pub(super) fn durable(&self) -> (Lsn, Span) {
        (self.here.min(self.reached), self.took)
    }

    /// Up to where whoever starts next finds every write, on however few servers.
    pub(super) fn secured(&self) -> Lsn {
        self.here.min(self.secured.max(self.reached))
    }

    /// Hears how the log stands.
    ///
    /// # Errors
    /// Another process owns the log.
    pub(super) fn hear(&mut self) -> Result<(), ServeError> {
        let said = self.log.said();
        if is_lost(&said) {
            return Err(lost(&said));
        }
        while let Some(entry) = self.under_way.pop_front_if(|entry| entry.at <= said.committed) {
            self.reached = self.reached.max(entry.last);
            self.took = Span(entry.since.elapsed().as_nanos() as u64);
        }
        let is_secured = |entry: &&Entry| entry.at <= said.secured;
        if let Some(entry) = self.under_way.iter().take_while(is_secured).last() {
            self.secured = self.secured.max(entry.last);
        }
        self.wanted = self.wanted.filter(|&wanted| wanted > self.reached);
        Ok(())
    }

    /// The log itself.
    pub(super) fn log(&self) -> &Arc<Replicas> {
        &self.log
    }

    /// What the servers allow now.
    pub(super) fn reach(&self) -> Reach {
        self.log.said().reach
    }

    #[inline]
    pub(super) fn may_answer(&self) -> bool {
        self.log.may_answer() && self.reached >= self.found || self.unsafe_flags.no_log_lease
    }

    pub(super) fn give_up(&self) {
        self.log.give_up();
    }
}
