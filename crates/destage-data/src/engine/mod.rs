//! The cache manager behind one origin, without I/O: requests and completions in, replies and jobs out.
//!
//! It owns the rows, the buffered writes and the connections' state, and drives [`destage_core::Core`], which decides
//! everything about time and order. The server (and the simulated one in the tests) moves the bytes: it hands in what
//! clients send ([`Engine::receive`]), carries out the [`Io`] it is given, reports completions, and calls
//! [`Engine::tick`] when it has nothing more at hand.

mod aftermath;
mod ask;
mod builds_on;
mod collections;
mod command;
mod commit;
mod connection;
mod decide;
mod derived;
mod dispatch;
mod domains;
mod effects;
mod elements;
mod exec;
mod expire;
mod fields;
mod front_end;
mod halts;
mod health;
mod in_place;
mod inbox;
mod intent;
mod jobs;
mod key;
mod leased;
mod listen;
mod observe;
mod once;
mod opaque;
mod origin;
mod output;
mod overlay;
mod patience;
mod perform;
mod plain;
mod recover;
mod reload;
mod report;
mod rows;
mod scan;
mod session;
mod sets;
mod slabs;
mod strings;
mod turn;
mod txn;
mod unsupported;
mod watch;
mod whole;

use crate::change::GroupWriter;
use crate::domains::Partition;
use crate::origins::{Mark, OriginError, ParkedGroup, Watermarks};
use crate::resp::RequestLimits;
use crate::schema::{Schema, TableId};
use crate::settings::{Settings, TableSettings, UnsafeFlags};
use aftermath::Aftermaths;
use command::Prepared;
use derived::Derived;
use derived::foreign::Ages;
use destage_core::expiry::Expiries;
use destage_core::{
    BatchId, ClientId, Core, DomainId, Input, Lsn, Policy, RequestId, Span, StopReason, Time,
    UnitId, WaitFor,
};
use destage_engine::carry_out;
use destage_journal::Journal;
use destage_record::{RecordSettings, RecordedCore};
use destage_runtime::auth::Auth;
use destage_runtime::mode_log::ModeLog;
use dispatch::Answer;
use domains::Domains;
use once::{Keeping, Tokens};
use opaque::Opaque;
use output::Unread;
use overlay::Overlay;
use perform::FieldNames;
use report::Measured;
use rows::Rows;
use scan::{Cursors, Structural};
use session::{Session, Through};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use txn::Txn;
use watch::Watched;

pub use decide::{Asker, ParkedAnswer, ParkedCommand};
pub use jobs::{FetchJob, Groups};
pub(crate) use key::encode;
pub use report::StartReport;

pub(crate) use key::{format_key, key_cells};
pub(crate) use observe::Observer;
pub(crate) use turn::TURN;

/// The first ordering domain: the whole origin, unless the settings say otherwise.
pub const DOMAIN: DomainId = DomainId(0);

/// Work for the threads that do I/O.
#[derive(Debug)]
pub enum Io {
    /// Make the journal durable up to a group, then [`Engine::synced`].
    Sync {
        /// The newest group.
        upto: Lsn,
    },
    /// Apply the groups in one transaction, then [`Engine::destaged`].
    Destage {
        /// The batch.
        batch: BatchId,
        /// How the watermarks of its domains move.
        marks: Box<[Mark]>,
        /// The groups, oldest first.
        groups: Groups,
    },
    /// Move the watermarks past one group and keep it as parked if one is given, then [`Engine::parked`].
    Park {
        /// The group.
        lsn: Lsn,
        /// How the watermarks of its domains move.
        marks: Box<[Mark]>,
        /// What to store.
        parked: Option<ParkedGroup>,
    },
    /// Move the mark of all domains, then [`Engine::marked_all`].
    MarkAll {
        /// Where it stands.
        expected: Lsn,
        /// Everything up to here is decided.
        upto: Lsn,
        /// Where each domain stands at least; else the origin went back.
        floors: Watermarks,
    },
    /// Read keys in order, then [`Engine::scanned`].
    Scan {
        /// Which question this is.
        request: u64,
        /// The table.
        table: TableId,
        /// Keys greater than this one.
        after: Option<Box<[u8]>>,
        /// At most so many.
        limit: usize,
    },
    /// Reserve keys, then [`Engine::keys_reserved`].
    NextKeys {
        /// Which question this is.
        request: u64,
        /// The table.
        table: TableId,
        /// How many.
        count: u32,
    },
    /// Run the query of a derived key, then [`Engine::queried`].
    Query {
        /// Which question this is.
        job: u64,
        /// The query's number among [`Engine::queries`].
        query: usize,
        /// Its parameters' values, as cells.
        values: Box<[u8]>,
        /// After that nobody waits for the result any more.
        limit: Span,
    },
    /// Take groups out of the parked ones and apply `groups` in order, in one transaction, then [`Engine::unparked`].
    Unpark {
        /// What is parked no more.
        parked: Vec<Lsn>,
        /// What is applied.
        groups: Groups,
    },
    /// Read everything parked, then [`Engine::parked_listed`].
    ListParked {
        /// Which question this is.
        request: u64,
    },
    /// Stop serving; the process ends with the reason's exit code.
    Stop(StopReason),
}

/// The engine: see the module.
#[derive(Debug)]
pub struct Engine {
    now: Time,
    started: Time,
    schema: Arc<Schema>,
    core: RecordedCore,
    modes: ModeLog,
    journal: Journal,
    rows: Rows,
    overlay: Overlay,
    /// What raw SQL makes unknown.
    opaque: Opaque,
    structural: Structural,
    fields: FieldNames,
    tables: Vec<TableSettings>,
    sessions: Vec<Option<Box<Session>>>,
    free_sessions: Vec<u32>,
    clients: usize,
    cursors: Cursors,
    through: HashMap<Lsn, Through>,
    /// Of collections that were fetched beyond one of these: up to where they hold every group.
    fetched_ahead: HashMap<UnitId, Lsn>,
    /// Why single groups were rejected, until they are parked.
    reasons: HashMap<Lsn, OriginError>,
    /// What the origin may change by itself when it applies groups that no client waits for.
    aftermaths: Aftermaths,
    /// Commands that are carried out once.
    tokens: Tokens,
    keeping: Keeping,
    /// Decisions on parked groups.
    decisions: decide::Decisions,
    /// The ordering domains and their watermarks.
    domains: Domains,
    /// How the watermarks move by what is under way, by its first group.
    moving: HashMap<Lsn, Box<[Mark]>>,
    deadlines: BTreeSet<(Time, ClientId)>,
    /// When to look whether a client has waited for as long as it may.
    alarms: BTreeSet<(Time, ClientId)>,
    /// The keys that connections watch.
    watched: Watched,
    /// Rows of which sessions say that the origin does not have them.
    absent: HashSet<watch::RowKey>,
    observers: Vec<Arc<dyn Observer>>,
    derived: Derived,
    /// When cached rows of some tables are fetched again.
    ages: Ages,
    /// When plain cache keys and cached copies expire.
    expiries: Expiries,
    /// Plain cache keys that were asked for and did not exist.
    absent_plain: Vec<UnitId>,
    /// Cached rows that may have changed at the origin under undecided changes.
    doubts: reload::Doubts,
    /// Whether the origin tells what others change.
    listening: listen::Listening,
    /// Waits that clients asked for and the core has not been told of.
    waits: Vec<(RequestId, Lsn, WaitFor)>,
    next_request: u64,
    /// Requests that ask the core while others, which it let go on, ask it in turn; and the answer to one of them.
    asking: Vec<RequestId>,
    answered: Option<(RequestId, Answer)>,
    /// Moments of what happens to collections.
    moment: u64,
    /// When the fetches of pages under way began.
    page_starts: HashMap<UnitId, u64>,
    /// Clients who may go on.
    runnable: VecDeque<ClientId>,
    /// Clients who have more to execute, and let the others have their turn first.
    yielded: VecDeque<ClientId>,
    /// What was executed so far, in the units of [`TURN`].
    work: usize,
    /// Replies that nobody has read.
    unread: Unread,
    sends: Vec<ClientId>,
    /// Released while their session was at work.
    late_sends: Vec<ClientId>,
    io: Vec<Io>,
    fetches: VecDeque<FetchJob>,
    config: Config,
    measured: Measured,
    // Scratch, kept for its memory.
    prepared: Prepared,
    txn: Txn,
    writer: GroupWriter,
    patches: Vec<usize>,
}

/// What the engine takes from the settings.
#[derive(Debug)]
struct Config {
    auth: Arc<Auth>,
    limits: RequestLimits,
    pipeline_max: usize,
    output_bytes_max: usize,
    output_total_bytes_max: usize,
    clients_max: usize,
    /// For how long a client waits for an answer.
    client_wait: Span,
    handshake_timeout: Span,
    unsafe_flags: UnsafeFlags,
    origin: String,
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
        let tables: Vec<TableSettings> = schema
            .tables
            .iter()
            .map(|table| settings.tables.get(&table.name).cloned().unwrap_or_default())
            .collect();
        let aged = schema.tables.iter().zip(&tables);
        let ages =
            Ages::new(aged.filter_map(|(table, settings)| Some((table.id, settings.max_age?))));
        Self {
            now,
            started: now,
            core: Core::resume(now, settings.policy.clone(), decided).into(),
            modes: ModeLog::default(),
            journal,
            rows: Rows::new(&schema),
            overlay: Overlay::new(decided),
            opaque: Opaque::default(),
            structural: Structural::default(),
            fields: FieldNames::new(&schema),
            tables,
            sessions: Vec::new(),
            free_sessions: Vec::new(),
            clients: 0,
            cursors: Cursors::default(),
            through: HashMap::new(),
            fetched_ahead: HashMap::new(),
            reasons: HashMap::new(),
            aftermaths: Aftermaths::default(),
            tokens: Tokens::new(once::limits(settings)),
            keeping: Keeping::default(),
            decisions: decide::Decisions::default(),
            domains: Domains::one(Partition::one(&schema), decided),
            moving: HashMap::new(),
            deadlines: BTreeSet::new(),
            alarms: BTreeSet::new(),
            watched: Watched::default(),
            absent: HashSet::new(),
            observers: Vec::new(),
            derived: Derived::default(),
            ages,
            expiries: Expiries::default(),
            absent_plain: Vec::new(),
            doubts: reload::Doubts::default(),
            listening: listen::Listening::default(),
            waits: Vec::new(),
            next_request: 0,
            asking: Vec::new(),
            answered: None,
            moment: 0,
            page_starts: HashMap::new(),
            runnable: VecDeque::new(),
            yielded: VecDeque::new(),
            work: 0,
            unread: Unread::default(),
            sends: Vec::new(),
            late_sends: Vec::new(),
            io: Vec::new(),
            fetches: VecDeque::new(),
            config: Config {
                auth: Arc::new(Auth::new(settings.password.clone())),
                limits: RequestLimits { bytes_max: settings.request_bytes_max, args_max: 1 << 20 },
                pipeline_max: settings.pipeline_max,
                output_bytes_max: settings.output_bytes_max.min(settings.output_total_bytes_max),
                output_total_bytes_max: settings.output_total_bytes_max,
                clients_max: settings.clients_max,
                client_wait: settings.client_wait,
                handshake_timeout: settings.handshake_timeout,
                unsafe_flags: settings.unsafe_flags,
                origin,
            },
            measured: Measured::new(now),
            schema,
            prepared: Prepared::default(),
            txn: Txn::default(),
            writer: GroupWriter::new(),
            patches: Vec::new(),
        }
    }

    /// Records from now on what the core is told and what it answers. `version` is the program's.
    ///
    /// # Errors
    /// The first file cannot be made; nothing is recorded then.
    pub fn record(
        &mut self,
        settings: &RecordSettings,
        version: &str,
        subject: &str,
    ) -> std::io::Result<()> {
        self.core.record(settings, version, subject)
    }

    fn session(&mut self, client: ClientId) -> Option<&mut Session> {
        self.sessions.get_mut(client.0 as usize)?.as_deref_mut()
    }

    /// Time passed, or the server has nothing more at hand.
    pub fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some(&(deadline, client)) = self.deadlines.first()
            && deadline <= self.now
        {
            self.deadlines.pop_first();
            self.wait_timed_out(client);
        }
        self.expire_leases();
        self.expire_rows();
        self.expire_some();
        self.drop_absent_plain();
        self.reload_doubtful();
        self.expire_held();
        self.end_waits();
        self.config.auth.tell(self.now);
        self.keep_tokens();
        self.core.handle(self.now, Input::Tick);
        self.move_mark();
        self.modes.tick(self.now);
        self.pump();
        self.next_decision();
        self.run_ready();
    }

    /// When to call [`Engine::tick`] at the latest.
    pub fn next_timeout(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        let alarm = self.alarms.first().map(|&(alarm, _)| alarm);
        let foreign = [self.ages.next_timeout(), self.doubts.next_timeout()];
        let others = [self.modes.due(), self.watched.next_timeout()].into_iter().chain(foreign);
        let mark = self.domains.mark_at(self.core.decided());
        let held = self.opaque.next_timeout();
        let work = self.has_work().then_some(self.now);
        [work, deadline, alarm, self.core.next_timeout(), self.expiries.next_timeout(), mark, held]
            .into_iter()
            .chain(others)
            .flatten()
            .min()
    }

    /// Jobs to start, in order.
    pub fn take_io(&mut self) -> Vec<Io> {
        std::mem::take(&mut self.io)
    }

    /// The next rows to fetch: up to `limit`, all of one table.
    pub fn take_fetches(&mut self, limit: usize) -> Vec<FetchJob> {
        let Some(table) = self.fetches.front().map(|job| job.table) else { return Vec::new() };
        // Each collection is a question of its own.
        let limit = if self.schema.table(table).part.is_some() { 1 } else { limit };
        let count = self.fetches.iter().take(limit).take_while(|job| job.table == table).count();
        self.fetches.drain(..count).collect()
    }

    /// Whether rows wait to be fetched.
    pub fn has_fetches(&self) -> bool {
        !self.fetches.is_empty()
    }

    /// Clients with replies to send.
    pub fn take_sends(&mut self, sends: &mut Vec<ClientId>) {
        sends.clear();
        std::mem::swap(sends, &mut self.sends);
    }

    /// The replies that may leave, to be drained by what was sent (then [`Engine::sent`]); and whether the connection is to be closed
    /// afterwards.
    pub fn outgoing(&mut self, client: ClientId) -> Option<(&mut Vec<u8>, bool)> {
        let session = self.session(client)?;
        // What is not released yet must be sent first.
        let closing = session.closing && !session.is_held() && session.out.is_empty();
        let closing = closing || session.is_cut;
        Some((&mut session.ready, closing))
    }

    /// Whether the client waits for nothing: everything that it has sent in whole is answered, and the answers are sent.
    pub fn is_idle(&self, client: ClientId) -> bool {
        self.sessions[client.0 as usize].as_ref().is_none_or(|session| {
            let answered = session.waiting.is_none() && !session.is_held();
            let executed = session.closing || session.inbox.needs_more();
            answered && executed && session.out.is_empty() && session.ready.is_empty()
        })
    }

    /// Whether the engine takes more bytes from this client now. It does not while there is something to execute, or a command
    /// waits and another one is there.
    pub fn wants_input(&self, client: ClientId) -> bool {
        self.sessions[client.0 as usize].as_ref().is_some_and(|session| {
            let may_go_on = session.inbox.is_empty() || session.waiting.is_none();
            !session.closing && may_go_on && session.inbox.needs_more()
        })
    }

    /// The journal, for the server to flush.
    pub fn journal(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// Ends the engine, to close the journal.
    pub fn into_journal(self) -> Journal {
        self.journal
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        self.core.policy()
    }

    /// Uses another policy from now on.
    pub fn set_policy(&mut self, policy: &Policy) {
        self.core.handle(self.now, Input::SetPolicy(policy));
        self.pump();
        self.run_ready();
    }

    /// Stops destaging until [`Engine::resume`].
    pub fn pause(&mut self) {
        self.core.handle(self.now, Input::Pause);
        self.pump();
        self.run_ready();
    }

    /// Destages again.
    pub fn resume(&mut self) {
        self.core.handle(self.now, Input::Resume);
        self.pump();
        self.run_ready();
    }

    /// Makes the journal durable as soon as it can.
    pub fn commit_soon(&mut self) {
        let request = self.request_id(dispatch::PREFETCH_CLIENT);
        let lsn = self.last();
        self.core.handle(self.now, Input::Wait { request, lsn, until: WaitFor::Committed });
        self.pump();
        self.run_ready();
    }

    /// The journal is durable up to here.
    pub fn committed(&self) -> Lsn {
        self.core.committed()
    }

    /// Destages what is dirty now, whatever the policy says.
    pub fn hurry(&mut self) {
        let request = self.request_id(dispatch::PREFETCH_CLIENT);
        let lsn = self.last();
        self.core.handle(self.now, Input::Wait { request, lsn, until: WaitFor::AllDecided });
        self.pump();
        self.run_ready();
    }

    /// Destages everything from now on, as before a shutdown.
    pub fn drain(&mut self) {
        self.core.handle(self.now, Input::Drain);
        self.pump();
        self.run_ready();
    }

    /// The tables.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Carries out everything the core asks for.
    fn pump(&mut self) {
        while let Some(effect) = self.next_effect() {
            carry_out(self, effect);
        }
    }
}

/// Undecided inserts and deletes by key order, for scans.
pub(crate) type KeyOrder = BTreeMap<(TableId, Vec<u8>), (Lsn, bool, Box<[u8]>)>;

#[cfg(test)]
mod tests;
