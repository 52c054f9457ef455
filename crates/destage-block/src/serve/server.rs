//! The server's thread: sockets, the engines, and the hand-over to the threads that block.

use super::clients::{Asked, Client, Handshake};
use super::control::{View, VolumesControl};
use super::flusher;
use super::fuse::{Files, Place};
use super::groups::Groups;
use super::grow::{Growth, LiveExports};
use super::pool::{Outbox, Pool};
use super::report::Counted;
use super::shutdown_report::ShutdownReport;
use super::spin::Spin;
use super::start::{self, Started};
use super::watch::Watches;
use super::{Event, ServeError, Served, slice};
use crate::engine::{Context, Job, JobKind};
use crate::nbd::server::{Exports, Tls};
use crate::request::Reply;
use crate::settings::Settings;
use crossbeam_channel::Receiver;
use destage_core::{Span, Time};
use destage_engine::Drive;
use destage_runtime::admin::{self, AdminHandle};
use destage_runtime::auth::Auth;
use destage_runtime::clock::Clock;
use destage_runtime::progress::Progress;
use destage_runtime::sockets::{Listen, Listener, Reserved};
use destage_runtime::{child, exit, shutdown};
use hashbrown::HashMap;
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);
/// Longest sleep, so that a changed clock or a lost wake-up is noticed.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Above this measured latency, syncs of the log leave the server's thread.
const INLINE_SYNC_MAX: Duration = Duration::from_millis(3);
/// How long the end of the process waits for jobs under way.
const JOBS_WAIT_MAX: Duration = Duration::from_secs(10);

/// The live server.
pub(super) struct Server {
    pub(super) poll: Poll,
    events: Receiver<Event>,
    pub(super) listener: Option<Listener>,
    pub(super) exports: Arc<LiveExports>,
    pub(super) names: Vec<String>,
    pub(super) tls: Tls,
    pub(super) clients: Vec<Option<Client>>,
    pub(super) looks: Vec<usize>,
    /// Clients with more to say than their volumes have room for.
    pub(super) held_back: Vec<usize>,
    pub(super) connected: usize,
    /// The connections that have not opened an export, and maybe some that have; by when they must.
    pub(super) handshakes: VecDeque<Handshake>,
    pub(super) accepted_total: u64,
    /// When to accept again after that has failed.
    pub(super) accept_at: Option<Time>,
    pub(super) requests_total: u64,
    errors_total: u64,
    started: Time,
    pub(super) volumes: Vec<Served>,
    contexts: Arc<[Context]>,
    pub(super) asked: HashMap<u64, Asked>,
    pub(super) next_tag: u64,
    pool: Pool,
    groups: Groups,
    /// Jobs on other threads.
    under_way: usize,
    /// What a sync of each volume's log takes.
    sync_latency: Vec<Duration>,
    spin: Spin,
    pub(super) watches: Watches,
    clock: Arc<Clock>,
    /// The volumes as files, if they are wanted.
    pub(super) files: Option<Files>,
    pub(super) settings: Settings,
    admin: Option<AdminHandle>,
    _signals: shutdown::Watcher,
    draining: Option<Draining>,
    child_code: Option<u8>,
}

/// A shutdown in progress.
struct Draining {
    until: Option<Time>,
    first: u64,
    bar: Progress,
}

/// What is around the engines: all of a start that can fail once the origins are attached.
pub(super) struct Shell {
    poll: Poll,
    events: Receiver<Event>,
    outbox: Outbox,
    pool: Pool,
    groups: Groups,
    listener: Option<Listener>,
    files: Option<Files>,
    admin: Option<AdminHandle>,
    signals: shutdown::Watcher,
}

impl Shell {
    pub(super) fn new(
        settings: &Settings,
        started: &Started,
        mut reserved: Reserved,
        place: Option<Place>,
    ) -> Result<Self, ServeError> {
        let internal = |error: io::Error| ServeError::internal(&error);
        let Started { clock, volumes, contexts, exports, groups, .. } = started;
        let poll = Poll::new().map_err(internal)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(internal)?);
        let (sender, events) = crossbeam_channel::unbounded();
        let outbox = Outbox { sender, waker };
        let pool = Pool::start(contexts.clone(), &outbox).map_err(internal)?;
        let groups = Groups::start(groups, contexts, &outbox).map_err(internal)?;
        let files =
            place.map(|place| Files::mount(place, settings, volumes, &outbox)).transpose()?;
        let mut listener = reserved
            .listen()
            .map_err(|error| ServeError::new(exit::ADDRESS_IN_USE, error.to_string()))?;
        if let Some(listener) = &mut listener {
            poll.registry()
                .register(listener.source(), LISTENER, Interest::READABLE)
                .map_err(internal)?;
        }
        let growth = Growth::new(contexts, exports, files.as_ref());
        let control = VolumesControl::new(outbox.clone(), volumes, growth);
        let admin = start_admin(settings, clock, &mut reserved, control)?;
        let to = outbox.clone();
        let signals = shutdown::watch(move |request| to.send(Event::Shutdown(request)));
        let signals = signals.map_err(internal)?;
        Ok(Self { poll, events, outbox, pool, groups, listener, files, admin, signals })
    }
}

impl Server {
    pub(super) fn new(
        settings: Settings,
        started: Started,
        shell: Shell,
    ) -> Result<Self, ServeError> {
        let Started { clock, volumes, contexts, exports, tls, .. } = started;
        let Shell { poll, events, outbox, pool, groups, listener, files, admin, signals } = shell;
        let server = Self {
            poll,
            events,
            listener,
            names: exports.list().into_iter().map(|export| export.name).collect(),
            exports,
            tls,
            clients: Vec::new(),
            looks: Vec::new(),
            held_back: Vec::new(),
            connected: 0,
            handshakes: VecDeque::new(),
            accepted_total: 0,
            accept_at: None,
            requests_total: 0,
            errors_total: 0,
            started: clock.now(),
            sync_latency: vec![Duration::ZERO; volumes.len()],
            volumes,
            contexts,
            asked: HashMap::new(),
            next_tag: 0,
            pool,
            groups,
            under_way: 0,
            watches: Watches::new(),
            spin: Spin::new(Duration::from_nanos(settings.spin.as_nanos())),
            clock: Arc::new(clock),
            files,
            settings,
            admin,
            _signals: signals,
            draining: None,
            child_code: None,
        };
        server.announce();
        match server.start_child(outbox) {
            Ok(()) => Ok(server),
            Err(error) => {
                start::give_back(server.volumes, &server.contexts);
                Err(ServeError::internal(&error))
            }
        }
    }

    /// One ready line for each volume, and what to try next.
    fn announce(&self) {
        let admin = self.admin.as_ref().map_or_else(|| "none".into(), |a| a.addr().to_string());
        let mut text = String::new();
        for (index, served) in self.volumes.iter().enumerate() {
            text.push_str(&format!(
                "destage ready: uri={}{} admin={admin} size={} origin={} cache={} {}\n",
                self.uri(index),
                self.file(index).map_or_else(String::new, |file| format!(" file={file}")),
                served.volume.size(),
                served.description,
                served.cache,
                super::report::policy_summary(served)
            ));
        }
        if self.settings.run.is_none() {
            let uri = self.uri(0);
            text.push_str(&format!(
                "try:  nbdinfo '{uri}'\n      qemu-img convert -p -O raw disk.img -n '{uri}'\n      \
                 destage block status --admin {admin}\n"
            ));
            if let Some(file) = self.file(0) {
                text.push_str(&format!(
                    "      losetup --find --show --direct-io=on --sector-size 4096 '{file}'\n"
                ));
            }
        }
        // Whoever started it may not want to know.
        let _ = io::stdout().write_all(text.as_bytes());
    }

    fn uri(&self, volume: usize) -> String {
        let name = &self.names[volume];
        let scheme = if matches!(self.tls, Tls::Off) { "nbd" } else { "nbds" };
        let listen = self.listener.as_ref().map_or_else(String::new, Listener::address);
        match &self.settings.listen {
            Listen::Tcp(_) => format!("{scheme}://{listen}/{name}"),
            Listen::Unix(path) => format!("{scheme}+unix:///{name}?socket={}", path.display()),
        }
    }

    /// Where the volume is as a file.
    fn file(&self, volume: usize) -> Option<String> {
        self.files.as_ref().map(|files| files.path(volume).display().to_string())
    }

    fn start_child(&self, outbox: Outbox) -> io::Result<()> {
        let Some(command) = &self.settings.run else { return Ok(()) };
        let uri = self.uri(0);
        let mut env = vec![("uri", Some(uri.clone())), ("nbd_uri", Some(uri))];
        env.extend(self.file(0).map(|file| ("file", Some(file))));
        let ended = move |status: io::Result<ExitStatus>| {
            outbox.send(Event::ChildEnded(status.map_or(exit::BUG, child::exit_code)));
        };
        flusher::ordinary(|| child::run(command, &env, ended)).map(|_| ())
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Serves until it is told to stop.
    pub(super) fn run(mut self) -> Result<(), ServeError> {
        let mut events = Events::with_capacity(1_024);
        slice::shorten();
        self.turn();
        while !self.is_drained() {
            let timeout = self.timeout();
            match self.spin.wait(&mut self.poll, &mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    let message = format!("cannot wait for events: {error}");
                    return Err(ServeError::new(exit::BUG, message));
                }
                _ => {}
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => {}
                    Token(place) => {
                        if event.is_readable() || event.is_read_closed() || event.is_error() {
                            self.readable(place, event.is_read_closed() || event.is_error());
                        } else {
                            self.look_at(place);
                        }
                    }
                }
            }
            while let Ok(event) = self.events.try_recv() {
                self.event(event);
            }
            if self.accept_at.is_some_and(|at| at <= self.now()) {
                self.accept_at = None;
                self.accept();
            }
            self.end_handshakes();
            self.watch_caches();
            self.turn();
        }
        self.finish()
    }

    fn timeout(&self) -> Duration {
        if !self.looks.is_empty() {
            return Duration::ZERO;
        }
        let now = self.now();
        let volumes = self.volumes.iter().filter_map(|served| served.volume.next_timeout());
        let drain = self.draining.as_ref().and_then(|draining| draining.until);
        let handshake = self.handshakes.front().map(|handshake| handshake.until);
        let at = volumes.chain(drain).chain(handshake).chain(self.accept_at).min();
        let wait = at.map_or(SLEEP_MAX, |at| Duration::from_nanos(at.since(now).as_nanos()));
        wait.min(SLEEP_MAX)
    }

    /// Carries out everything that can be done now.
    fn turn(&mut self) {
        // Clients that may send more are taken up again after what others wait for, so this ends.
        for _ in 0..TURNS_MAX {
            self.take_up_held_back();
            let served = self.serve_clients() | self.serve_files();
            if !self.drive() && !served {
                break;
            }
        }
        self.write_ahead();
        if let Some(draining) = &mut self.draining {
            let left: u64 = self.volumes.iter().map(|served| served.volume.undecided()).sum();
            draining.bar.set(draining.first.saturating_sub(left));
        }
    }

    /// Lets the engines act, starts their jobs and passes replies on; true if there was anything.
    fn drive(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.volumes.len() {
            let now = self.now();
            self.volumes[index].volume.tick(now);
            any |= self.pass_replies(index);
            while let Some(job) = self.volumes[index].volume.poll_job() {
                any = true;
                self.start_job(index, job);
            }
        }
        let now = self.now();
        let begun = self.groups.drive(&mut self.volumes, now);
        self.under_way += begun;
        // What a group tells its volumes may give them something to do.
        any |= begun > 0;
        any
    }

    fn pass_replies(&mut self, index: usize) -> bool {
        let mut any = false;
        while let Some((tag, reply)) = self.volumes[index].volume.poll_reply() {
            any = true;
            if let Some(asked) = self.asked.remove(&tag) {
                let now = self.now();
                let took = now.since(asked.at);
                let reply = self.tell_of_losses(&asked, reply);
                let failed = matches!(reply, Reply::Error(_));
                let requests = &mut self.volumes[asked.volume].requests;
                requests.answered(now, asked.kind, asked.bytes, took, failed);
                self.errors_total += u64::from(failed);
                self.reply(asked.asker, reply);
            }
        }
        any
    }

    /// Runs a job here where that is quicker than waking a thread, and hands it over otherwise.
    fn start_job(&mut self, index: usize, job: Job) {
        // Nobody else is kept waiting meanwhile, and a thread's wake-up would only add to what the one client waits for.
        let is_alone = self.asked.len() == 1;
        let kind = job.kind();
        let is_quick = self.sync_latency[index] <= INLINE_SYNC_MAX;
        let ran = match kind {
            // Of several clients the others are heard meanwhile.
            JobKind::Log if is_quick && is_alone => {
                self.send_replies();
                let began = Instant::now();
                let done = job.run(&self.contexts[index]);
                let latency = &mut self.sync_latency[index];
                *latency = (*latency * 7 + began.elapsed()) / 8;
                Ok(done)
            }
            JobKind::Read if is_alone => Ok(job.run(&self.contexts[index])),
            JobKind::Read => job.run_now(&self.contexts[index]),
            _ => Err(job),
        };
        match ran {
            Ok(done) => {
                let now = self.now();
                self.volumes[index].volume.finished(now, done);
            }
            Err(job) => {
                self.under_way += 1;
                self.pool.give(index, job);
            }
        }
    }

    /// Has the logs written while nothing else is to be done here.
    fn write_ahead(&mut self) {
        let is_idle = self.asked.is_empty();
        for index in 0..self.volumes.len() {
            let Some(job) = self.volumes[index].volume.poll_ahead(is_idle) else { continue };
            let is_quick = self.sync_latency[index] <= INLINE_SYNC_MAX;
            if self.asked.len() <= 1 && job.is_short() && is_quick {
                let done = job.run(&self.contexts[index]);
                let now = self.now();
                self.volumes[index].volume.finished(now, done);
            } else {
                self.under_way += 1;
                self.pool.give(index, job);
            }
        }
    }

    fn event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Done { volume, done } => {
                self.under_way -= 1;
                // A disk that was slow may be quick again: the next sync is tried here.
                self.sync_latency[volume] = self.sync_latency[volume] / 16 * 15;
                self.volumes[volume].volume.finished(now, done);
            }
            Event::GroupDone { group, done } => {
                self.under_way -= 1;
                self.groups.finished(&mut self.volumes, now, group, done);
            }
            Event::Control(work) => {
                let counted = self.counted();
                let (volumes, next_tag) = (&mut self.volumes[..], &mut self.next_tag);
                let mut ends = false;
                let ends_here = &mut ends;
                work(&mut View { volumes, counted, now, next_tag, ends: ends_here });
                if ends {
                    self.drain();
                }
            }
            Event::File(event) => self.file_event(event),
            Event::Shutdown(shutdown::Request::Drain) => self.drain(),
            Event::Shutdown(shutdown::Request::Now) => {
                self.drain();
                if let Some(draining) = &mut self.draining {
                    draining.until = Some(now);
                }
            }
            Event::ChildEnded(code) => {
                self.child_code = Some(code);
                self.drain();
            }
        }
    }

    fn counted(&self) -> Counted {
        Counted {
            started: self.started,
            connected: self.connected,
            connected_max: self.settings.clients_max,
            open_files: self.open_files(),
            accepted_total: self.accepted_total,
            requests_total: self.requests_total,
            errors_total: self.errors_total,
            client_bytes: self.client_bytes(),
        }
    }

    /// Begins a shutdown: no new connections; what is under way is answered and destaged.
    fn drain(&mut self) {
        if self.draining.is_some() {
            return;
        }
        if let Some(mut listener) = self.listener.take() {
            let _ = self.poll.registry().deregister(listener.source());
        }
        self.stop_clients();
        self.warn_of_open_files();
        let now = self.now();
        for served in &mut self.volumes {
            served.volume.thaw(now);
            served.volume.resume(now);
            served.volume.drain(now);
        }
        let first: u64 = self.volumes.iter().map(|served| served.volume.undecided()).sum();
        tracing::info!(groups = first, "shutting down: destaging what is dirty");
        let timeout = self.settings.drain_timeout;
        let until = (timeout != Span::MAX).then(|| now + timeout);
        self.draining = Some(Draining { until, first, bar: Progress::new("draining", first) });
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    fn is_drained(&self) -> bool {
        let Some(draining) = &self.draining else { return false };
        // A stopped volume destages nothing more, however long one waits.
        let is_done =
            |served: &Served| served.volume.undecided() == 0 || served.volume.is_stopped();
        let clean = self.volumes.iter().all(is_done);
        (clean && self.is_quiet()) || draining.until.is_some_and(|until| self.now() >= until)
    }

    /// Closes the volumes and waits for their last jobs; false if that takes too long.
    fn close_volumes(&mut self) -> bool {
        let now = self.now();
        self.groups.close();
        self.volumes.iter_mut().for_each(|served| served.volume.close(now));
        loop {
            self.drive();
            let closed = self.volumes.iter().all(|served| served.volume.is_closed());
            if closed && self.under_way == 0 {
                return true;
            }
            let Ok(event) = self.events.recv_timeout(JOBS_WAIT_MAX) else { return false };
            if let Event::Done { .. } | Event::GroupDone { .. } = event {
                self.event(event);
            }
        }
    }

    /// The last words: what is clean, what remains.
    fn finish(mut self) -> Result<(), ServeError> {
        self.serve_clients();
        if let Some(files) = &mut self.files {
            files.unmount();
        }
        let ended = self.close_volumes();
        if let Some(draining) = self.draining.take() {
            draining.bar.finish();
        }
        if !ended {
            let message =
                "a disk does not answer; what the cache holds is recovered at the next start";
            return Err(ServeError::new(exit::DIRTY_REMAINS, message));
        }
        let mut report = ShutdownReport::default();
        let volumes = std::mem::take(&mut self.volumes);
        for (served, context) in volumes.into_iter().zip(self.contexts.iter()) {
            report.note(&served);
            start::close(served, context)?;
        }
        report.verdict()?;
        match self.child_code {
            None | Some(0) => Ok(()),
            Some(code) => Err(ServeError::new(code, format!("the command ended with {code}"))),
        }
    }
}

fn start_admin(
    settings: &Settings,
    clock: &Clock,
    reserved: &mut Reserved,
    control: VolumesControl,
) -> Result<Option<AdminHandle>, ServeError> {
    let Some(listener) = reserved.take_admin() else { return Ok(None) };
    let auth = Arc::new(Auth::new(settings.password.clone()));
    let (control, hosts) = (Arc::new(control), settings.admin_hosts.clone());
    let admin = admin::serve(listener, control, auth, clock.clone(), hosts).map_err(|error| {
        let message = format!("cannot serve the admin port: {error}; choose another with --admin");
        ServeError::new(exit::ADDRESS_IN_USE, message)
    })?;
    Ok(Some(admin))
}

/// Rounds before the sockets are looked at again.
const TURNS_MAX: usize = 16;
