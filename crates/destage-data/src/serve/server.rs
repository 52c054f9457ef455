//! The server's thread: sockets, the engine, and the hand-over to the threads that block.

mod connections;
mod ending;
mod locals;
mod watch;

pub(super) use locals::LocalEvent;
pub(crate) use locals::{Local, Refusal};

use super::claims::Claims;
use super::client::{Client, Refused};
use super::control::{EngineControl, recording};
use super::replicated::Replicated;
use super::slow::Slow;
use super::start::Started;
use super::sync::Syncer;
use super::whose::Whose;
use super::workers::{Confirmed, Destager, Fetcher, ReadJob, WriteJob};
use super::{Door, Event, Outbox, ServeError, users};
use crate::engine::{Engine, Io, PasswordJob};
use crate::origins::Mark;
use crate::settings::Settings;
use destage_core::{ClientId, StopReason, Time};
use destage_engine::{Drive, Writers};
use destage_replicas_redis::Replicas;
use destage_runtime::clock::Clock;
use destage_runtime::handoff::{Sender, queue};
use destage_runtime::reload::{self, Hangups, Reread};
use destage_runtime::shell::{LISTENER, Shell, WAKER};
use destage_runtime::sockets::{Listen, Listener};
use destage_runtime::tls::{ServerConfig, ServerFiles};
use destage_runtime::watch::Guard;
use destage_runtime::{notify, policy};
use locals::Locals;
use mio::unix::SourceFd;
use mio::{Events, Interest, Token};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes read from one connection at once, and how often in a row before others get their turn.
const READ_BYTES: usize = 64 << 10;
const READS_IN_A_ROW: usize = 4;
/// So many reads of clients that do not speak TLS yet there are before the others are answered.
const HANDSHAKES_IN_A_ROUND: usize = 32;
/// Rows fetched in one statement.
const FETCH_ROWS_MAX: usize = 256;
const FETCHERS: usize = 4;
/// An output buffer that grew beyond this is given back once it is sent.
const OUTPUT_KEPT_BYTES: usize = 64 << 10;

/// Durable writes of the journal, in a poll's events.
const JOURNAL: Token = Token(usize::MAX - 2);
/// The first of the log's servers; the others count down from it.
const LOG: Token = Token(usize::MAX - 3);
/// Clients count up, and are fewer than this.
const LOG_LAST: Token = Token(usize::MAX / 2);

/// Where the server runs.
pub(super) enum Host {
    /// It is the program: it listens, heeds signals, of which SIGHUP has the settings read again, and announces itself.
    Program(Hangups, Reread),
    /// It is a part of a program.
    Library,
}

/// The live server.
pub(super) struct Server {
    shell: Shell<Event>,
    /// What encrypts the clients' connections, if anything does.
    tls: Option<Arc<ServerConfig>>,
    /// Clients that did not come to speak TLS.
    refused: Refused,
    /// So many reads of clients that do not speak TLS yet are left in this round: each may cost a signature.
    handshakes_left: usize,
    clients: Vec<Option<Client>>,
    /// Connections from within the process.
    locals: Locals,
    /// Clients that were not read to the end.
    unread: Vec<ClientId>,
    sends: Vec<ClientId>,
    /// Clients whose answers wait until this process is sure that it owns the log.
    held: Vec<(ClientId, Time)>,
    /// The log's servers have answered, and the log stands otherwise since.
    log_news: bool,
    buffer: Box<[u8]>,
    clock: Arc<Clock>,
    engine: Engine,
    /// What the data folder knows of the origin's owners.
    claims: Claims,
    whose: Whose,
    syncer: Syncer,
    /// One for each thread that writes to the origin.
    writes: Vec<Sender<WriteJob>>,
    reads: Sender<ReadJob>,
    fetches: usize,
    /// Where passwords of users are looked at, if there are users.
    passwords: Option<Sender<PasswordJob>>,
    writers: Writers,
    /// Looks whether the journal is in its place.
    journal: Guard,
    settings: Settings,
    /// Held for those threads that end with the server.
    _alive: Arc<()>,
    _hangups: Option<reload::Watcher>,
    stopped: Option<ServeError>,
}

/// What the admin port shows of the log.
fn log_of(settings: &Settings, replicated: Option<&Replicated>) -> Option<(Arc<Replicas>, String)> {
    let name = settings.replicas.as_ref()?.name.clone();
    Some((replicated?.log().clone(), name))
}

impl Server {
    /// A server, and where events for it go.
    pub(super) fn new(
        settings: Settings,
        started: Started,
        door: Door,
        host: Host,
    ) -> Result<(Self, Outbox), ServeError> {
        let internal = |error: io::Error| ServeError::internal(&error);
        let Started {
            clock,
            mut engine,
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
        } = started;
        let Door { mut reserved, tls } = door;
        let mut shell = Shell::new(clock.clone())?;
        let outbox = shell.outbox().clone();
        let (reads, read_jobs) = queue();
        let schema = engine.schema().clone();
        let confirmed = Arc::new(Confirmed::new(engine.watermarks()));
        let mut writer = Some(writer);
        let mut writes = Vec::with_capacity(writers);
        for at in 0..writers {
            let (sender, jobs) = queue();
            let destager = Destager {
                origin: origin.clone(),
                schema: schema.clone(),
                writer: writer.take(),
                epoch,
                is_first: at == 0,
                parked_bytes_max: settings.parked_bytes_max,
                confirmed: confirmed.clone(),
                unsafe_no_watermark: settings.unsafe_flags.in_force().no_watermark,
                outbox: outbox.clone(),
                doubt: None,
                slow: Slow::default(),
            };
            destager.spawn(jobs).map_err(internal)?;
            writes.push(sender);
        }
        for _ in 0..FETCHERS {
            let fetcher = Fetcher {
                origin: origin.clone(),
                schema: schema.clone(),
                queries: engine.queries(),
                reader: None,
                outbox: outbox.clone(),
            };
            fetcher.spawn(read_jobs.clone()).map_err(internal)?;
        }
        let alive =
            super::listening::start(listener, &origin, schema, &outbox).map_err(internal)?;
        shell.listen(&mut reserved)?;
        let control = Arc::new(EngineControl {
            outbox: outbox.clone(),
            log: log_of(&settings, replicated.as_ref()),
        });
        let auth = engine.passwords().clone();
        shell.serve_admin(&mut reserved, control, auth, &settings.admin_hosts)?;
        let mut passwords = None;
        if let Some(file) = &settings.users {
            engine.set_users(clock.now(), file.now(), users::key());
            passwords = Some(users::passwords(outbox.clone()).map_err(internal)?);
        }
        let hangups = match host {
            Host::Program(hangups, mut reread) => {
                if let Some(file) = &settings.users {
                    reread = users::rereading(file.clone(), outbox.clone(), reread);
                }
                shell.watch_signals()?;
                let control = Arc::new(EngineControl { outbox: outbox.clone(), log: None });
                let recordings = recording(&settings).into_iter().collect();
                shell.ask_for_advice(recordings, control.clone()).map_err(internal)?;
                Some(reload::watch(hangups, control, reread).map_err(internal)?)
            }
            Host::Library => None,
        };
        let is_program = hangups.is_some();
        let clock = Arc::new(clock);
        let syncer = Syncer::spawn(&outbox, clock.now(), engine.journal(), replicated);
        let syncer = syncer.map_err(internal)?;
        if let Some(ring) = syncer.ring() {
            let registry = shell.registry();
            let watched = registry.register(&mut SourceFd(&ring), JOURNAL, Interest::READABLE);
            watched.map_err(internal)?;
        }
        if let Some(log) = syncer.log() {
            let registry = shell.registry().try_clone().map_err(internal)?;
            log.attend(move |descriptor, server| {
                let interest = Interest::READABLE | Interest::WRITABLE;
                let token = Token(LOG.0 - server);
                registry.register(&mut SourceFd(&descriptor.as_raw_fd()), token, interest)
            });
        }
        let server = Self {
            claims,
            whose,
            syncer,
            shell,
            tls,
            refused: Refused::default(),
            handshakes_left: 0,
            clients: Vec::new(),
            locals: Locals::default(),
            unread: Vec::new(),
            sends: Vec::new(),
            held: Vec::new(),
            log_news: false,
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            clock,
            engine,
            writes,
            reads,
            fetches: 0,
            passwords,
            writers: Writers::default(),
            journal: Guard::new(watch),
            settings,
            _alive: alive,
            _hangups: hangups,
            stopped: None,
        };
        if is_program {
            server.announce(&origin.describe(), is_example);
            server.start_child().map_err(internal)?;
        }
        if let Some(unused) = unused {
            unused.keep();
        }
        Ok((server, outbox))
    }

    /// Where clients connect, if they can.
    pub(super) fn address(&self) -> Option<String> {
        self.shell.listener().map(Listener::address)
    }

    /// The ready line, and what to try next.
    fn announce(&self, origin: &str, is_example: bool) {
        let (listen, admin) = (self.shell.address(), self.shell.admin_address());
        let policy = self.engine.policy();
        let mut text = format!(
            "destage ready: listen={listen} admin={admin} origin={origin} policy={} d={} D={}\n",
            policy::acknowledge_name(policy.acknowledge),
            destage_runtime::units::Interval(policy.commit),
            destage_runtime::units::Interval(policy.staleness),
        );
        if self.settings.run.is_none() {
            text.push_str(&self.trials(&listen, is_example));
        }
        notify::ready(text.lines().next().unwrap_or_default());
        // Whoever started it may not want to know.
        let _ = io::stdout().write_all(text.as_bytes());
    }

    /// Commands worth trying.
    fn trials(&self, listen: &str, is_example: bool) -> String {
        let cli = match &self.settings.listen {
            Listen::Tcp(_) => {
                let port = listen.rsplit(':').next().unwrap_or_default();
                format!("redis-cli{} -p {port}", self.tls_trial())
            }
            Listen::Unix(path) => format!("redis-cli -s {}", path.display()),
        };
        let (read, write) = if is_example {
            ("HGETALL customers:1".to_owned(), "HINCRBY products:1 stock 5".to_owned())
        } else {
            let table = self.engine.schema().tables.first().map_or("table", |t| &t.name);
            (format!("SCAN 0 MATCH {table}:*"), "DESTAGE WAIT 0".to_owned())
        };
        format!("try:  {cli} {read}\n      {cli} {write}\n      {cli} DESTAGE STATUS\n")
    }

    /// What a client says to come by TLS, with files of its own.
    fn tls_trial(&self) -> &'static str {
        match &self.settings.tls {
            None => "",
            Some(ServerFiles { client_ca: None, .. }) => " --tls --cacert CA.pem",
            Some(_) => " --tls --cacert CA.pem --cert CLIENT.pem --key CLIENT.key",
        }
    }

    fn start_child(&self) -> io::Result<()> {
        let Some(command) = &self.settings.run else { return Ok(()) };
        self.shell
            .run_child(command, &super::run::environment(self.shell.listener(), self.tls.is_some()))
    }

    /// Serves until it is told to stop.
    pub(super) fn run(mut self) -> Result<(), ServeError> {
        let mut events = Events::with_capacity(1_024);
        self.turn(&mut events);
        while self.stopped.is_none() && !self.is_drained() {
            let timeout = self.timeout();
            Shell::<Event>::waited(self.shell.wait(&mut events, timeout))?;
            self.handshakes_left = HANDSHAKES_IN_A_ROUND;
            self.dispatch(&events);
            if self.shell.is_accept_due() {
                self.accept();
            }
            self.durably_written();
            self.heed_log();
            self.watch_journal();
            self.read_unread();
            while let Some(event) = self.shell.next_event() {
                self.event(event);
            }
            for _ in 0..self.engine.go_on(self.now()) {
                self.writers.came();
            }
            self.turn(&mut events);
        }
        self.finish()
    }

    fn dispatch(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                LISTENER => self.accept(),
                WAKER | JOURNAL => {}
                token if (LOG_LAST..=LOG).contains(&token) => {
                    let log = self.syncer.log();
                    self.log_news |= log.is_some_and(|log| log.read(LOG.0 - token.0));
                }
                Token(index) => {
                    let client = ClientId(index as u32);
                    if event.is_writable() {
                        self.unblock(client);
                    }
                    if event.is_read_closed() {
                        self.ending(client);
                    }
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        self.writers.came();
                        self.read(client);
                    }
                    if event.is_read_closed() {
                        self.hang_up(client);
                    }
                    if event.is_error() || event.is_write_closed() {
                        self.close(client);
                    }
                }
            }
        }
    }

    /// Takes note of what has arrived from the log's servers. Not among other events: it may close clients whose events would
    /// then be taken for those of new ones.
    fn heed_log(&mut self) {
        if std::mem::take(&mut self.log_news) {
            self.event(Event::Replicated);
        }
    }

    /// Takes note of durable writes that have ended.
    fn durably_written(&mut self) {
        let now = self.now();
        let mut is_first = true;
        while let Some(done) = self.syncer.next_written(now) {
            if std::mem::replace(&mut is_first, false) {
                self.answer();
            }
            self.syncer.ended(&mut self.engine, now, done);
        }
        if !is_first {
            self.heed_failure();
            self.release();
        }
    }

    /// Group commit for clients that write in lockstep with the journal.
    fn gather(&mut self, events: &mut Events) {
        let Some(patience) = self.syncer.patience(&self.engine, &self.writers) else { return };
        let began = Instant::now();
        while !self.writers.is_complete() && began.elapsed() < patience {
            if self.shell.wait(events, Duration::ZERO).is_err() {
                break;
            }
            self.dispatch(events);
            // Those within the process write by events.
            while !self.locals.is_empty()
                && let Some(event) = self.shell.next_event()
            {
                self.event(event);
            }
        }
        self.answer();
        self.heed_log();
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn timeout(&mut self) -> Duration {
        if !self.unread.is_empty() {
            let wants = self.unread.iter().any(|&client| self.engine.wants_input(client));
            if wants {
                return Duration::ZERO;
            }
        }
        let syncer = self.syncer.next_timeout(&mut self.engine);
        let held = self.next_withheld();
        self.shell.timeout([self.engine.next_timeout(), syncer, held].into_iter().flatten().min())
    }

    /// Carries out everything that can be done now.
    fn turn(&mut self, events: &mut Events) {
        loop {
            self.heed_failure();
            self.engine.tick(self.now());
            self.answer();
            for io in self.engine.take_io() {
                self.start_io(io);
            }
            while self.fetches < FETCHERS && self.engine.has_fetches() {
                self.fetches += 1;
                let jobs = self.engine.take_fetches(FETCH_ROWS_MAX);
                self.reads.send(ReadJob::Fetch(jobs)).expect("readers live as long as the server");
            }
            self.gather(events);
            let clock = self.clock.clone();
            if !self.syncer.work(&mut self.engine, &self.writers, || clock.now()) {
                break;
            }
            self.release();
        }
        self.answer();
        self.shell.show_progress(|| self.engine.undecided());
    }

    /// Sends what may leave without a sync.
    fn answer(&mut self) {
        if !self.held.is_empty() {
            self.send_held();
        }
        let answered = self.send_all();
        self.writers.answered(answered);
    }

    /// Sends what a sync has released.
    fn release(&mut self) {
        let released = self.send_all();
        self.writers.released(released, self.engine.clients());
    }

    fn start_io(&mut self, io: Io) {
        let alive = "workers live as long as the server";
        match io {
            Io::Sync { upto } => self.syncer.want(upto),
            Io::Destage { batch, marks, groups } => {
                let writer = self.writer_of(&marks);
                writer.send(WriteJob::Apply { batch, marks, groups }).expect(alive);
            }
            Io::Park { lsn, marks, parked } => {
                let writer = self.writer_of(&marks);
                writer.send(WriteJob::Park { lsn, marks, parked }).expect(alive);
            }
            Io::MarkAll { expected, upto, floors } => {
                self.writes[0].send(WriteJob::MarkAll { expected, upto, floors }).expect(alive);
            }
            Io::Scan { request, table, after, limit } => {
                self.reads.send(ReadJob::Scan { request, table, after, limit }).expect(alive);
            }
            Io::Ended { request, ask } => {
                self.reads.send(ReadJob::Ended { request, ask }).expect(alive);
            }
            Io::NextKeys { request, table, column, count } => {
                let job = ReadJob::NextKeys { request, table, column, count };
                self.reads.send(job).expect(alive);
            }
            Io::Holders { request, questions } => {
                self.reads.send(ReadJob::Holders { request, questions }).expect(alive);
            }
            Io::Query { job, query, values, limit } => {
                let until = Instant::now() + Duration::from_nanos(limit.as_nanos());
                self.reads.send(ReadJob::Query { job, query, values, until }).expect(alive);
            }
            Io::Unpark { parked, groups } => {
                self.writes[0].send(WriteJob::Unpark { parked, groups }).expect(alive);
            }
            Io::ListParked { request } => {
                self.writes[0].send(WriteJob::ListParked { request }).expect(alive);
            }
            Io::CheckPassword(job) => {
                let passwords = self.passwords.as_ref().expect("only users have such passwords");
                passwords.send(job).expect(alive);
            }
            Io::Stop(reason) => self.stop(reason),
        }
    }

    /// The thread that writes these domains: always the same one for a domain.
    fn writer_of(&self, marks: &[Mark]) -> &Sender<WriteJob> {
        let domain = marks.first().map_or(0, |mark| usize::from(mark.domain.0));
        &self.writes[domain % self.writes.len()]
    }

    fn event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Committed(done) => {
                self.answer();
                let is_sync = done.is_sync();
                self.syncer.ended(&mut self.engine, now, done);
                self.heed_failure();
                if is_sync {
                    self.release();
                }
            }
            Event::Replicated => {
                if let Some(error) = self.syncer.replicated(&mut self.engine, now) {
                    self.stopped.get_or_insert(error);
                }
                self.send_held();
                self.release();
            }
            Event::Fetched { jobs, result } => {
                self.fetches -= 1;
                match result {
                    Ok(packed) => self.engine.fetched(now, jobs, packed.unpack()),
                    Err(error) => self.engine.fetch_failed(now, jobs, &error),
                }
            }
            Event::PasswordChecked { id, place } => self.engine.password_checked(now, id, place),
            Event::Scanned { request, result } => self.engine.scanned(now, request, result),
            Event::Ended { request, result } => self.engine.ended(now, request, result),
            Event::KeysReserved { request, result } => {
                self.engine.keys_reserved(now, request, result);
            }
            Event::HoldersFound { request, result } => {
                self.engine.holders_found(now, request, result);
            }
            Event::Queried { job, result } => self.engine.queried(now, job, result),
            Event::Destaged { batch, result } => self.engine.destaged(now, batch, result),
            Event::Parked { lsn, result } => self.engine.parked(now, lsn, result),
            Event::Unparked { result } => self.engine.unparked(now, result),
            Event::ParkedListed { request, result } => {
                self.engine.parked_listed(request, result);
            }
            Event::Shown { watermarks, confirmed } => {
                self.engine.shown(now, &watermarks, &confirmed)
            }
            Event::MarkedAll { upto, result } => self.engine.marked_all(now, upto, result),
            Event::Listening(tables) => self.engine.listening(now, tables),
            Event::Notices(heard) => self.engine.note_foreign_changes(now, heard.take()),
            Event::Fenced(error) => {
                tracing::error!(error = error.message, "fenced");
                self.stop(StopReason::Fenced);
            }
            Event::Changed(error) => {
                tracing::error!(error = error.message, "the origin is not the one that was opened");
                self.stop(StopReason::OriginChanged);
            }
            Event::Control(work) => {
                self.engine.advance(now);
                work(&mut self.engine);
            }
            Event::Local(event) => self.local(event),
            Event::End(request) => {
                self.drain();
                self.shell.heed(request);
            }
        }
    }
}
