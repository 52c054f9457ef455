//! The server's thread: sockets, the engines, and the hand-over to the threads that block.

use super::clients::{Asked, Client, Handshake};
use super::control::{Ended, View, VolumesControl};
use super::fuse::{Files, Place};
use super::groups::Groups;
use super::grow::{Growth, LiveExports};
use super::pool::Pool;
use super::report::Counted;
use super::shutdown_report::ShutdownReport;
use super::spin::Spin;
use super::start::{self, Started};
use super::{Event, ServeError, Served, auto, slice};
use crate::engine::{Context, Job, JobKind};
use crate::nbd::server::{Exports, Tls};
use crate::request::Reply;
use crate::settings::Settings;
use destage_core::Time;
use destage_engine::Drive;
use destage_runtime::auth::Auth;
use destage_runtime::clock::Clock;
use destage_runtime::shell::{EndRequest, LISTENER, Shell, WAKER};
use destage_runtime::shutdown::Request;
use destage_runtime::sockets::{Listen, Reserved};
use destage_runtime::{exit, flusher, notify};
use hashbrown::HashMap;
use mio::{Events, Token};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Above this measured latency, syncs of the log leave the server's thread.
const INLINE_SYNC_MAX: Duration = Duration::from_millis(3);
/// How long the end of the process waits for the next job under way to end.
const JOBS_WAIT_MAX: Duration = Duration::from_secs(10);

/// The live server.
pub(super) struct Server {
    pub(super) shell: Shell<Event>,
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
    clock: Arc<Clock>,
    /// The volumes as files, if they are wanted.
    pub(super) files: Option<Files>,
    pub(super) settings: Settings,
    /// Those who wait for the end.
    detaching: Vec<Ended>,
}

/// What is around the engines: all of a start that can fail once the origins are attached.
pub(super) struct Surroundings {
    shell: Shell<Event>,
    pool: Pool,
    groups: Groups,
    files: Option<Files>,
    control: Arc<VolumesControl>,
}

impl Surroundings {
    /// What the admin port asks, for others that ask the same.
    pub(super) fn control(&self) -> Arc<VolumesControl> {
        self.control.clone()
    }

    pub(super) fn new(
        settings: &Settings,
        started: &Started,
        mut reserved: Reserved,
        place: Option<Place>,
    ) -> Result<Self, ServeError> {
        let internal = |error: io::Error| ServeError::internal(&error);
        let Started { clock, volumes, contexts, exports, groups, .. } = started;
        let mut shell = Shell::new(clock.clone())?;
        let outbox = shell.outbox().clone();
        let pool = Pool::start(contexts.clone(), &outbox).map_err(internal)?;
        let groups = Groups::start(groups, contexts, &outbox).map_err(internal)?;
        let files =
            place.map(|place| Files::mount(place, settings, volumes, &outbox)).transpose()?;
        shell.listen(&mut reserved)?;
        let growth = Growth::new(contexts, exports, files.as_ref());
        let control = Arc::new(VolumesControl::new(outbox, volumes, growth));
        let auth = Arc::new(Auth::new(settings.password.clone()));
        shell.serve_admin(&mut reserved, control.clone(), auth, &settings.admin_hosts)?;
        shell.watch_signals()?;
        // What it starts is a program of its own, which no volume waits for.
        let adviser = || shell.ask_for_advice(auto::recordings(settings), control.clone());
        flusher::ordinary(adviser).map_err(internal)?;
        Ok(Self { shell, pool, groups, files, control })
    }
}

impl Server {
    pub(super) fn new(
        settings: Settings,
        started: Started,
        surroundings: Surroundings,
    ) -> Result<Self, ServeError> {
        let Started { clock, volumes, contexts, exports, tls, .. } = started;
        let Surroundings { shell, pool, groups, files, .. } = surroundings;
        let server = Self {
            shell,
            names: exports.list().into_iter().map(|export| export.name).collect(),
            exports,
            tls,
            clients: Vec::new(),
            looks: Vec::new(),
            held_back: Vec::new(),
            connected: 0,
            handshakes: VecDeque::new(),
            accepted_total: 0,
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
            spin: Spin::new(Duration::from_nanos(settings.spin.as_nanos())),
            clock: Arc::new(clock),
            files,
            settings,
            detaching: Vec::new(),
        };
        server.announce();
        match server.start_child() {
            Ok(()) => Ok(server),
            Err(error) => {
                start::give_back(server.volumes, &server.contexts);
                Err(ServeError::internal(&error))
            }
        }
    }

    /// One ready line for each volume, and what to try next.
    fn announce(&self) {
        let admin = self.shell.admin_address();
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
        notify::ready(text.lines().next().unwrap_or_default());
        // Whoever started it may not want to know.
        let _ = io::stdout().write_all(text.as_bytes());
    }

    fn uri(&self, volume: usize) -> String {
        let name = &self.names[volume];
        let scheme = if matches!(self.tls, Tls::Off) { "nbd" } else { "nbds" };
        let listen = self.shell.address();
        match &self.settings.listen {
            Listen::Tcp(_) => format!("{scheme}://{listen}/{name}"),
            Listen::Unix(path) => format!("{scheme}+unix:///{name}?socket={}", path.display()),
        }
    }

    /// Where the volume is as a file.
    fn file(&self, volume: usize) -> Option<String> {
        self.files.as_ref().map(|files| files.path(volume).display().to_string())
    }

    fn start_child(&self) -> io::Result<()> {
        let Some(command) = &self.settings.run else { return Ok(()) };
        let uri = self.uri(0);
        let mut env = vec![("uri", Some(uri.clone())), ("nbd_uri", Some(uri))];
        env.extend(self.file(0).map(|file| ("file", Some(file))));
        flusher::ordinary(|| self.shell.run_child(command, &env))
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
            Shell::<Event>::waited(self.spin.wait(self.shell.poll(), &mut events, timeout))?;
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
            while let Some(event) = self.shell.next_event() {
                self.event(event);
            }
            if self.shell.is_accept_due() {
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
        let of = |served: &Served| [served.volume.next_timeout(), served.auto_due()];
        let volumes = self.volumes.iter().flat_map(of).flatten();
        let handshake = self.handshakes.front().map(|handshake| handshake.until);
        self.shell.timeout(volumes.chain(handshake).min())
    }

    /// Carries out everything that can be done now.
    fn turn(&mut self) {
        // Clients that may send more are taken up again after what others wait for, so this ends.
        for _ in 0..TURNS_MAX {
            self.resume_held_back();
            let served = self.serve_clients() | self.serve_files();
            if !self.drive() && !served {
                break;
            }
        }
        self.write_ahead();
        let dirty = || self.volumes.iter().map(|served| served.volume.undecided()).sum();
        self.shell.show_progress(dirty);
    }

    /// Lets the engines act, starts their jobs and passes replies on; true if there was anything.
    fn drive(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.volumes.len() {
            let now = self.now();
            self.volumes[index].look_at_auto(now);
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
                let mut ends = None;
                let ends_here = &mut ends;
                work(&mut View { volumes, counted, now, next_tag, ends: ends_here });
                if let Some(ended) = ends {
                    self.detaching.push(ended);
                    self.drain();
                }
            }
            Event::File(event) => self.file_event(event),
            Event::End(request) => {
                self.drain();
                self.shell.heed(request);
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
        if self.shell.is_ending() {
            return;
        }
        self.shell.stop_listening();
        self.stop_clients();
        self.warn_of_open_files();
        let now = self.now();
        for served in &mut self.volumes {
            served.volume.thaw(now);
            served.volume.resume(now);
            served.volume.drain(now);
        }
        let dirty = self.volumes.iter().map(|served| served.volume.undecided()).sum();
        self.shell.drain(dirty, self.settings.drain_timeout);
    }

    fn is_drained(&self) -> bool {
        if !self.shell.is_ending() {
            return false;
        }
        // A stopped volume destages nothing more, however long one waits.
        let is_done =
            |served: &Served| served.volume.undecided() == 0 || served.volume.is_stopped();
        let clean = self.volumes.iter().all(is_done);
        (clean && self.is_quiet()) || self.shell.is_out_of_time()
    }

    /// Closes the volumes and waits for their last jobs.
    ///
    /// # Errors
    /// That takes too long, or somebody asks for the end at once.
    fn close_volumes(&mut self) -> Result<(), ServeError> {
        let dirty = |message| Err(ServeError::new(exit::DIRTY_REMAINS, message));
        let now = self.now();
        self.groups.close();
        self.volumes.iter_mut().for_each(|served| served.volume.close(now));
        let mut until = Instant::now() + JOBS_WAIT_MAX;
        loop {
            self.drive();
            let closed = self.volumes.iter().all(|served| served.volume.is_closed());
            if closed && self.under_way == 0 {
                return Ok(());
            }
            let limit = until.saturating_duration_since(Instant::now());
            if limit.is_zero() {
                return dirty(
                    "a disk does not answer; what the cache holds is recovered at the next start",
                );
            }
            match self.shell.await_event(limit) {
                Ok(event @ (Event::Done { .. } | Event::GroupDone { .. })) => {
                    self.event(event);
                    until = Instant::now() + JOBS_WAIT_MAX;
                }
                Ok(Event::End(EndRequest::Shutdown(Request::Now))) => {
                    return dirty(
                        "stopped at once, while disks were waited for; what the cache holds is recovered at the next start",
                    );
                }
                // Others' events come as well, and must not make it longer.
                Ok(Event::End(request)) => self.shell.heed(request),
                Ok(Event::Control(_) | Event::File(_)) | Err(_) => {}
            }
        }
    }

    fn finish(mut self) -> Result<(), ServeError> {
        let ended = self.close_all();
        for detaching in self.detaching {
            // Whoever asked may have stopped waiting.
            let _ = detaching.send(ended.as_ref().map_err(ToString::to_string).copied());
        }
        ended?;
        self.shell.child_result()
    }

    /// The last words: what is clean, what remains.
    fn close_all(&mut self) -> Result<(), ServeError> {
        self.serve_clients();
        if let Some(files) = &mut self.files {
            files.unmount();
        }
        let closed = self.close_volumes();
        self.shell.finish_progress();
        closed?;
        let mut report = ShutdownReport::default();
        let volumes = std::mem::take(&mut self.volumes);
        for (served, context) in volumes.into_iter().zip(self.contexts.iter()) {
            report.note(&served);
            start::close(served, context)?;
        }
        report.verdict()
    }
}

/// Rounds before the sockets are looked at again.
const TURNS_MAX: usize = 16;
