//! The server's own thread: time, signals, the command that runs beside, the end.

use super::live::Live;
use super::start::Started;
use super::{Event, ServeError};
use crate::settings::Settings;
use destage_core::{Span, StopReason};
use destage_engine::Drive;
use destage_runtime::shell::{EndRequest, Shell};
use destage_runtime::shutdown::Request;
use destage_runtime::{exit, fuse, notify, policy};
use destage_tokens::Root;
use fuser::BackgroundSession;
use mio::Events;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the end of the process waits for the journal.
const COMMIT_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long an end waits for the journal to say that its end is durable, which loses nothing if it does not.
const MARK_WAIT_MAX: Duration = Duration::from_secs(2);
const MARK_LOOK_EVERY: Duration = Duration::from_millis(1);
/// How often it looks meanwhile.
const COMMIT_LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long tokens are given back at the end.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// The live server.
pub(super) struct Server {
    shell: Shell<Event>,
    /// What is mounted, and where.
    session: Option<(BackgroundSession, PathBuf)>,
    started: Started,
    live: Arc<Live>,
    settings: Settings,
}

impl Server {
    pub(super) fn new(
        settings: Settings,
        shell: Shell<Event>,
        session: Option<(BackgroundSession, PathBuf)>,
        started: Started,
    ) -> Self {
        let live = started.live.clone();
        Self { shell, session, started, live, settings }
    }

    /// Where it is mounted.
    fn place(&self) -> String {
        let mounted = self.session.as_ref();
        mounted.map_or_else(String::new, |(_, place)| place.display().to_string())
    }

    fn announce(&self) {
        let found = self.started.found;
        if found > 0 {
            tracing::info!(
                groups = found,
                "an earlier run left changes: they are shown, and go to the origin now"
            );
        } else {
            tracing::info!("found the journal with nothing to destage");
        }
        let mut text = format!(
            "destage ready: mounted={} origin={} journal={} admin={} policy={} fsync={}\n",
            self.place(),
            self.settings.origin.display(),
            self.settings.journal.display(),
            self.shell.admin_address(),
            policy::summary(&self.settings.policy).replace(", ", ","),
            if self.settings.fsync_origin { "origin" } else { "journal" },
        );
        if self.settings.is_example {
            let place = self.place();
            text.push_str(&format!(
                "try:  ls -l {place}\n      cp -r /etc/skel {place}/\n      destage mount status {place}\n"
            ));
        }
        notify::ready(text.lines().next().unwrap_or_default());
        // Whoever started it may not want to know.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }

    pub(super) fn run(mut self) -> Result<(), ServeError> {
        self.announce();
        if let Some(command) = &self.settings.run {
            let started = self.shell.run_child(command, &[("mountpoint", Some(self.place()))]);
            started.map_err(|error| ServeError::internal(&error))?;
        }
        self.serve()?;
        self.finish()
    }

    /// Destages what there is.
    pub(super) fn replay(mut self) -> Result<(), ServeError> {
        let (begun, limit) = (Instant::now(), self.settings.drain_timeout.as_nanos());
        self.end();
        self.serve()?;
        self.finish().map_err(|error| {
            // Rather than a signal has ended it.
            let is_late = begun.elapsed() >= Duration::from_nanos(limit);
            if error.exit_code() == exit::DIRTY_REMAINS && is_late {
                return ServeError::new(exit::TIMED_OUT, format!("the time is over: {error}"));
            }
            error
        })
    }

    fn serve(&mut self) -> Result<(), ServeError> {
        let mut events = Events::with_capacity(16);
        loop {
            let at = self.live.tick();
            let timeout = self.shell.timeout(at);
            Shell::<Event>::waited(self.shell.wait(&mut events, timeout))?;
            while let Some(event) = self.shell.next_event() {
                self.event(event);
            }
            if !self.shell.is_ending() {
                continue;
            }
            let dirty = self.live.with(|front, _| front.undecided());
            self.shell.show_progress(|| dirty);
            let is_over = self.is_over() || self.is_fenced();
            if dirty == 0 || self.shell.is_out_of_time() || is_over {
                // What comes until the folder is gone is destaged as well.
                match self.session.take() {
                    Some((session, place)) => fuse::unmount(session, &place),
                    None => return Ok(()),
                }
            }
        }
    }

    /// Nothing more will be done: it has stopped, and without an origin the journal has all there is.
    fn is_over(&self) -> bool {
        self.live.with(|front, _| {
            let is_kept = !front.has_lost_origin() || front.committed() >= front.last();
            front.stopped().is_some() && is_kept
        })
    }

    fn is_fenced(&self) -> bool {
        self.live.shared().is_some_and(|shared| shared.tokens.is_fenced())
    }

    fn stopped(&self) -> Option<StopReason> {
        self.live.with(|front, _| front.stopped())
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Look => {}
            Event::Unmounted | Event::OriginGone | Event::Over => self.end(),
            Event::End(request) => {
                self.end();
                self.shell.heed(request);
            }
        }
    }

    fn end(&mut self) {
        if self.shell.is_ending() {
            return;
        }
        let dirty = self.live.with(|front, now| {
            front.thaw();
            front.resume(now);
            front.drain(now);
            front.undecided()
        });
        self.shell.drain(dirty, self.settings.drain_timeout.max(Span::from_nanos(1)));
    }

    /// Waits until the journal holds durably what has been answered, for a limited time. How many groups it does not hold.
    fn await_commit(&mut self) -> u64 {
        let upto = self.live.with(|front, now| {
            front.commit_soon(now);
            front.last()
        });
        let until = Instant::now() + COMMIT_WAIT_MAX;
        loop {
            let at = self.live.tick();
            let missing = self.live.with(|front, _| upto.0.saturating_sub(front.committed().0));
            let limit = until.saturating_duration_since(Instant::now());
            if missing == 0 || limit.is_zero() || self.stopped() == Some(StopReason::JournalFailed)
            {
                return missing;
            }
            // The journal's thread says nothing when it has done something.
            let wait = self.shell.timeout(at).min(limit).min(COMMIT_LOOK_EVERY);
            match self.shell.await_event(wait) {
                Ok(Event::End(EndRequest::Shutdown(Request::Now))) => return missing,
                Ok(Event::End(request)) => self.shell.heed(request),
                // Others' events come as well, and must not make it longer.
                _ => {}
            }
        }
    }

    /// Waits until the journal says that its end is durable, for a limited time.
    fn mark_end(&self) {
        self.live.with(|front, now| front.mark_end(now));
        let until = Instant::now() + MARK_WAIT_MAX;
        while !self.live.with(|front, _| front.is_end_marked()) && Instant::now() < until {
            std::thread::sleep(MARK_LOOK_EVERY);
        }
    }

    fn finish(mut self) -> Result<(), ServeError> {
        self.live.close();
        let left = self.live.with(|front, _| front.undecided());
        let lost = if left > 0 { self.await_commit() } else { 0 };
        if lost == 0 {
            self.mark_end();
        }
        self.shell.finish_progress();
        if lost > 0 {
            let message = format!(
                "stopped with {left} groups that are not at the origin, and the newest {lost} of them are not in the journal {} \
                 either, which did not take them in time: look after its disk",
                self.settings.journal.display()
            );
            return Err(ServeError::new(exit::JOURNAL_UNUSABLE, message));
        }
        if self.is_fenced() {
            let message = format!(
                "other hosts have shut this one out; what they did not find at the origin is in the journal {}: start again, and \
                 what nobody has changed since goes there, the rest is kept as conflicts",
                self.settings.journal.display()
            );
            return Err(ServeError::new(exit::FENCED, message));
        }
        if self.live.with(|front, _| front.has_lost_origin()) {
            let message = format!(
                "the origin {} is not mounted any more: mount it again, and start this again; what was acknowledged is in the journal {}",
                self.settings.origin.display(),
                self.settings.journal.display()
            );
            return Err(ServeError::new(exit::ORIGIN_UNREACHABLE, message));
        }
        if let Some(shared) = self.live.shared().filter(|_| left == 0) {
            // Else a start would bring to the origin once more what others may have changed by then.
            let upto = self.live.with(|front, _| front.covered(&Root::Volume, &[]).1);
            if shared.wait_for_origin(&self.live, upto) {
                shared.tokens.leave(LEAVE_LIMIT);
            }
        }
        if let Some(reason) = self.stopped() {
            let message = format!(
                "stopped ({reason:?}): what was acknowledged as durable is in the journal {}",
                self.settings.journal.display()
            );
            return Err(ServeError::new(exit::JOURNAL_UNUSABLE, message));
        }
        if left > 0 {
            let message = format!(
                "{left} groups are not at the origin: they are in the journal {}, and the next start takes them up",
                self.settings.journal.display()
            );
            return Err(ServeError::new(exit::DIRTY_REMAINS, message));
        }
        self.shell.child_result()
    }
}
