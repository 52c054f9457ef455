//! The cache manager behind one origin, without I/O: requests and completions in, replies and jobs out.
//!
//! It owns the rows, the buffered writes and the connections' state, and drives [`destage_core::Core`], which decides
//! everything about time and order. The server (and the simulated one in the tests) moves the bytes: it hands in what
//! clients send ([`Engine::receive`]), carries out the [`Io`] it is given, reports completions, and calls
//! [`Engine::tick`] when it has nothing more at hand.

mod absent;
mod access;
mod acl;
mod ask;
mod ask_again;
mod asking;
mod assumed;
mod auto;
mod builds_on;
mod cascade;
mod claims;
mod client_wait;
mod clients;
mod collections;
mod command;
mod commit;
mod connection;
mod constraints;
mod copies;
mod cursors;
mod deadline;
mod decide;
mod derived;
mod diagnose;
mod dispatch;
mod domains;
mod effects;
mod elements;
mod ended;
mod entry;
mod exec;
mod expire;
mod fetch;
mod fields;
mod fresh;
mod freshness;
mod front_end;
mod given;
mod glob;
mod halts;
mod handshake;
mod hash_scan;
mod health;
mod in_place;
mod inbox;
mod inspect;
mod job;
mod jobs;
mod journal;
mod key;
mod leased;
mod leases;
mod listen;
mod log;
mod login;
mod measured;
mod members;
mod numbers;
mod observe;
mod observer;
mod once;
mod origin;
mod overlay;
mod page_clock;
mod parents;
mod perform;
mod plain;
mod prepared;
mod presence;
mod put_off;
mod queued;
mod raw_sql;
mod recover;
mod reload;
mod replies;
mod report;
mod reserved;
mod resume;
mod rights;
mod rows;
mod rules;
mod scan;
mod script;
mod session;
mod sessions;
mod set_scan;
mod sets;
mod settle;
mod slabs;
mod slow;
mod strings;
mod structural;
mod track_command;
mod tracked;
mod tracking;
mod turn;
mod txn;
mod undecided;
mod undeleted;
mod uniques;
mod unknown;
mod unsupported;
mod waits;
mod watch;
mod watchers;
mod watermarks;

use crate::domains::Partition;
use crate::lookup::OwnerPlace;
use crate::resp::RequestLimits;
use crate::schema::Schema;
use crate::settings::{OnAway, Settings, TableSettings, UnsafeFlags};
use absent::Absent;
use asking::{Asking, PREFETCH_CLIENT};
use decide::Decisions;
pub use decide::{Asker, ParkedAnswer, ParkedCommand};
use derived::Derived;
use destage_core::{ClientId, Core, DomainId, Lsn, Span, Time};
use destage_engine::Drive;
use destage_journal::Journal;
use destage_record::RecordedCore;
use destage_runtime::auth::Auth;
use destage_runtime::auto::AutoPilot;
use domains::Domains;
use ended::Sweep;
pub(crate) use ended::ahead_ms;
use fresh::Fresh;
use freshness::Freshness;
pub(crate) use glob::glob;
pub use job::{FetchJob, Groups, Io};
use jobs::Jobs;
pub(crate) use journal::COMMIT;
pub(crate) use key::{format_key, key_cells};
use log::GroupLog;
pub use login::PasswordJob;
pub(crate) use login::{BUSY, Known, LOOKS_MAX, LOOKS_OF_ADDRESS_MAX, Quick, WRONG, held};
use measured::Measured;
pub use measured::StartReport;
pub(crate) use observer::Observer;
use once::OnceTokens;
use overlay::Overlay;
use perform::FieldNames;
use prepared::Prepared;
use rows::Rows;
use rules::Rules;
use sessions::Sessions;
pub(crate) use sessions::TURN;
use std::sync::Arc;
use txn::Txn;
use undecided::Undecided;
use watchers::Watchers;

/// The first ordering domain: the whole origin, unless the settings say otherwise.
pub const DOMAIN: DomainId = DomainId(0);

/// The engine: see the module.
#[derive(Debug)]
pub struct Engine {
    now: Time,
    core: RecordedCore,
    schema: Arc<Schema>,
    config: Config,
    log: GroupLog,
    /// What is cached.
    rows: Rows,
    /// The bytes of what the origin has not decided.
    overlay: Overlay,
    /// What else is known of that.
    undecided: Undecided,
    /// How far the origin has come.
    domains: Domains,
    /// For how long what is cached may be used, and what is new.
    freshness: Freshness,
    /// What the origin does not have.
    absent: Absent,
    sessions: Sessions,
    asking: Asking,
    /// Whom a change concerns.
    watchers: Watchers,
    /// Commands that are carried out once.
    once: OnceTokens,
    /// Decisions on parked groups.
    decisions: Decisions,
    derived: Derived,
    jobs: Jobs,
    measured: Measured,
    scratch: Scratch,
}

/// What is kept for its memory alone: empty, or outdated, between any two commands.
#[derive(Debug, Default)]
struct Scratch {
    prepared: Prepared,
    txn: Txn,
    /// Where values go in a row that is patched.
    patches: Vec<usize>,
}

/// What the engine takes from the settings and the schema, and stays as it is.
#[derive(Debug)]
struct Config {
    auth: Arc<Auth>,
    limits: RequestLimits,
    pipeline_max: usize,
    output_bytes_max: usize,
    clients_max: usize,
    /// For how long a client waits for an answer.
    client_wait: Span,
    on_away: OnAway,
    handshake_timeout: Span,
    unsafe_flags: UnsafeFlags,
    origin: String,
    /// Where clients find the owner of the replicated log, which this is.
    place: Option<OwnerPlace>,
    /// By the table's number.
    tables: Vec<TableSettings>,
    /// The names of all columns.
    fields: FieldNames,
}

impl Config {
    fn new(settings: &Settings, schema: &Schema, origin: String) -> Self {
        let of = |name: &String| settings.tables.get(name).cloned().unwrap_or_default();
        Self {
            auth: Arc::new(Auth::new(settings.password.clone())),
            limits: RequestLimits { bytes_max: settings.request_bytes_max, args_max: 1 << 20 },
            pipeline_max: settings.pipeline_max,
            output_bytes_max: settings.output_bytes_max.min(settings.output_total_bytes_max),
            clients_max: settings.clients_max,
            client_wait: settings.client_wait,
            on_away: settings.on_away,
            handshake_timeout: settings.handshake_timeout,
            unsafe_flags: settings.unsafe_flags,
            origin,
            place: settings.replicas.as_ref().and_then(|replicas| {
                let listen = settings.listen.to_string();
                let place = replicas.advertise.as_deref().unwrap_or(&listen);
                OwnerPlace::parse(&replicas.name, place)
            }),
            tables: schema.tables.iter().map(|table| of(&table.name)).collect(),
            fields: FieldNames::new(schema),
        }
    }
}

impl Engine {
    /// An engine whose origin has decided every group up to `decided`. What the journal holds beyond that follows through
    /// [`Engine::recover`].
    pub fn new(
        now: Time,
        schema: Arc<Schema>,
        journal: Journal,
        settings: &Settings,
        origin: String,
        decided: Lsn,
    ) -> Self {
        let config = Config::new(settings, &schema, origin);
        let aged = schema.tables.iter().zip(&config.tables);
        let ages = aged.filter_map(|(table, settings)| Some((table.id, settings.max_age?)));
        Self {
            now,
            core: Core::resume(now, settings.policy.clone(), decided).into(),
            log: GroupLog::new(journal),
            rows: Rows::tracked(&schema, settings.tracking_keys_max),
            overlay: Overlay::new(decided),
            undecided: Undecided::default(),
            domains: Domains::one(Partition::one(&schema), decided),
            freshness: Freshness::new(ages, Sweep::new(&schema), Fresh::new(&schema)),
            absent: Absent::new(settings, &schema, &config.tables),
            sessions: Sessions::new(
                config.clients_max,
                config.output_bytes_max,
                settings.output_total_bytes_max,
            ),
            asking: Asking::default(),
            watchers: Watchers::default(),
            once: OnceTokens::new(once::limits(settings)),
            decisions: Decisions::default(),
            derived: Derived::default(),
            jobs: Jobs::default(),
            measured: Measured::new(now, AutoPilot::new(now, settings.auto, "", &settings.policy)),
            scratch: Scratch::default(),
            config,
            schema,
        }
    }

    /// New rows are given UUIDs made by a key that is random and nobody else's; before that these are left to the origin.
    pub fn give_uuids(&mut self, key: [u8; 32]) {
        self.freshness.fresh_mut().set_key(key);
    }

    /// The time that counts: the latest that it was told.
    pub fn now(&self) -> Time {
        self.now
    }

    /// What writes set off, and whose word they wait for.
    fn rules(&self) -> Rules<'_> {
        Rules { schema: &self.schema, tables: &self.config.tables }
    }

    /// When to call [`Engine::tick`] at the latest.
    pub fn next_timeout(&self) -> Option<Time> {
        let times = [
            self.sessions.has_work().then_some(self.now),
            self.sessions.next_timeout(),
            self.core.next_timeout(),
            self.freshness.next_timeout(),
            self.absent.next_timeout(),
            self.jobs.put_off().next_timeout(),
            self.domains.watermarks().all_due(self.core.decided()),
            self.undecided.unknown().next_timeout(),
            self.measured.next_timeout(),
            self.watchers.next_timeout(),
            self.rows.tracking().next_timeout(self.now),
        ];
        times.into_iter().flatten().min()
    }

    /// Jobs to start, in order.
    pub fn take_io(&mut self) -> Vec<Io> {
        self.jobs.take()
    }

    /// The next rows to fetch: up to `limit`, all of one table.
    pub fn take_fetches(&mut self, limit: usize) -> Vec<FetchJob> {
        // Each collection is a question of its own.
        self.jobs.take_fetches(limit, |job| self.schema.table(job.table).part.is_some())
    }

    /// Whether rows wait to be fetched.
    pub fn has_fetches(&self) -> bool {
        self.jobs.has_fetches()
    }

    /// Clients with replies to send.
    pub fn take_sends(&mut self, sends: &mut Vec<ClientId>) {
        self.sessions.take_sends(sends);
    }

    /// The replies that may leave, to be drained by what was sent (then [`Engine::sent`]); and whether the connection is to be closed
    /// afterwards.
    pub fn outgoing(&mut self, client: ClientId) -> Option<(&mut Vec<u8>, bool)> {
        self.sessions.get_mut(client).map(|session| session.outgoing())
    }

    /// Replies of a client were sent, as [`Engine::outgoing`] gave them.
    pub fn sent(&mut self, client: ClientId) {
        self.sessions.sent(client);
    }

    /// Whether the connection is to be closed at once, whatever of the replies has been sent.
    pub fn is_cut(&self, client: ClientId) -> bool {
        self.sessions.get(client).is_some_and(|session| session.is_cut)
    }

    /// Whether the client waits for nothing: everything that it has sent in whole is answered, and the answers are sent.
    pub fn is_idle(&self, client: ClientId) -> bool {
        self.sessions.get(client).is_none_or(|session| session.is_idle())
    }

    /// Whether the engine takes more bytes from this client now. It does not while there is something to execute, or a command
    /// waits and another one is there.
    pub fn wants_input(&self, client: ClientId) -> bool {
        self.sessions.get(client).is_some_and(|session| session.wants_input())
    }

    fn pump(&mut self) {
        Drive::pump(self);
    }

    /// The tables.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }
}

#[cfg(test)]
mod tests;
