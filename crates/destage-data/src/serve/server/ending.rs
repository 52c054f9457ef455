//! How the server ends: told to, or because it cannot go on; and its last words.

use super::Server;
use crate::serve::workers::WriteJob;
use crate::serve::{Event, ServeError};
use crate::settings::JournalKind;
use destage_core::{Fault, StopReason};
use destage_engine::Drive;
use destage_runtime::exit;
use destage_runtime::handoff::{Sender, queue};
use destage_runtime::status::HaltReport;
use std::time::{Duration, Instant};

impl Server {
    /// Ends it as it is: what is dirty stays in the journal.
    pub(super) fn stop(&mut self, reason: StopReason) {
        let (code, message) = match reason {
            StopReason::JournalFailed => (
                exit::JOURNAL_UNUSABLE,
                "the journal could not be made durable; nothing was acknowledged since. Check the disk, then start again",
            ),
            StopReason::Fenced => (
                exit::FENCED,
                "another process took over the origin; this one stopped serving. What it had not destaged is in its \
                 journal: see `destage journal export`",
            ),
            StopReason::OriginChanged => (
                exit::ORIGIN_WENT_BACK,
                "the origin is not as it was left: it was restored or failed over. Start again: what it lost is replayed from \
                 the journal as far as --retain reaches",
            ),
        };
        self.stopped.get_or_insert_with(|| ServeError::new(code, message));
    }

    /// Begins a shutdown: no new connections or commands; what is under way is answered and destaged.
    pub(super) fn drain(&mut self) {
        if self.shell.is_ending() {
            return;
        }
        self.shell.stop_listening();
        let now = self.now();
        self.engine.stop_ending();
        self.engine.drain(now);
        self.engine.resume(now);
        self.shell.drain(self.engine.undecided(), self.settings.drain_timeout);
    }

    pub(super) fn is_drained(&self) -> bool {
        if !self.shell.is_ending() {
            return false;
        }
        let is_done = self.engine.undecided() == 0 && !self.engine.has_work();
        let is_over = self.shell.is_out_of_time() || self.engine.is_halted();
        is_done || is_over || self.has_sent_what_was_acknowledged()
    }

    /// Waits until no flush is under way any more; false if that takes too long.
    fn await_flush(&mut self) -> bool {
        let until = Instant::now() + FLUSH_WAIT_MAX;
        loop {
            self.durably_written();
            if !self.syncer.is_busy() {
                return true;
            }
            // Others' events come as well, and must not make it longer.
            let limit = until.saturating_duration_since(Instant::now());
            if limit.is_zero() {
                self.syncer.abandon_writes();
                return false;
            }
            // Durable writes end without an event.
            let wait = if self.syncer.writes_durably() { limit.min(WRITE_WAIT) } else { limit };
            if let Ok(event @ Event::Committed(_)) = self.shell.await_event(wait) {
                self.event(event);
            }
        }
    }

    /// Waits until enough servers of the log hold what the origin has not decided: with d = T some of it is in memory alone.
    /// How many writes they do not hold after all.
    fn await_copies(&mut self) -> u64 {
        let is_fenced = |error: &ServeError| error.exit_code() == exit::FENCED;
        if self.engine.undecided() == 0 || self.stopped.as_ref().is_some_and(is_fenced) {
            return 0;
        }
        let until = Instant::now() + FLUSH_WAIT_MAX;
        loop {
            let missing = self.syncer.copy_all(&mut self.engine);
            let limit = until.saturating_duration_since(Instant::now());
            if missing == 0 || limit.is_zero() {
                return missing;
            }
            // What the log's servers answer comes without an event, and others may have read it. Others' events are of no use.
            let _ = self.shell.await_event(limit.min(WRITE_WAIT));
            if let Some(log) = self.syncer.log() {
                log.read_all();
            }
            let now = self.now();
            if let Some(error) = self.syncer.replicated(&mut self.engine, now) {
                self.stopped.get_or_insert(error);
                return missing;
            }
        }
    }

    /// The last words: what is clean, what remains.
    pub(super) fn finish(mut self) -> Result<(), ServeError> {
        self.send_all();
        self.say_end();
        let flushed = self.await_flush();
        let uncopied = self.await_copies();
        let left = self.engine.undecided();
        let lost = self.lost_journal(left);
        if let Some(error) = self.stopped {
            if uncopied > 0 {
                tracing::error!(uncopied, "too few servers of the log hold the newest writes");
            }
            // What was acknowledged and is in memory only goes to the journal; one that failed refuses.
            if flushed && let Err(error) = self.engine.into_journal().close() {
                tracing::error!(%error, "cannot close the journal");
            }
            let is_journals = error.exit_code() == exit::JOURNAL_UNUSABLE;
            return Err(lost.filter(|_| is_journals).unwrap_or(error));
        }
        if !flushed {
            let message =
                "the journal's disk does not answer; what it holds is recovered at the next start";
            return Err(ServeError::new(exit::JOURNAL_UNUSABLE, message));
        }
        self.shell.finish_progress();
        let mut released = Ok(());
        if left == 0 {
            if let Some((expected, upto, floors)) = self.engine.last_mark() {
                // Whoever starts with other domains then sees that nothing is left. Its fate is in the log.
                let _ = self.writes[0].send(WriteJob::MarkAll { expected, upto, floors });
            }
            released = release(&self.writes[0], self.settings.origin_timeout);
        }
        let remains = (left > 0).then(|| match uncopied {
            0 => self.dirty_remains(left),
            _ => too_few_copies(left, uncopied),
        });
        // What the origin has not answered it may have decided, and of several domains some may have decided more than all have.
        let is_told =
            left == 0 || self.engine.partition().is_one() && !self.engine.core().is_in_doubt();
        let decided = is_told.then(|| self.engine.decided().0);
        let journal = self.engine.into_journal();
        let last = journal.last();
        let closed = journal.close();
        if let Some(error) = lost {
            return Err(error);
        }
        if let Err(error) = closed {
            return Err(ServeError::from(error));
        }
        self.syncer.give_up_log();
        // The note of the start stays, which says too little rather than too much.
        if let Err(error) = self.whose.end(decided, last) {
            tracing::warn!(%error, "--change-origin will be refused");
        }
        released?;
        if let Some(error) = remains {
            return Err(error);
        }
        self.claims.end(last)?;
        self.shell.child_result()
    }

    /// Where the next start finds what is dirty.
    fn where_kept(&self) -> String {
        match &self.settings.replicas {
            Some(replicas) if replicas.journal == JournalKind::Replicas => {
                format!("the log '{}' on its servers", replicas.name)
            }
            _ => format!("the journal in {}", self.settings.data.display()),
        }
    }

    fn dirty_remains(&mut self, left: u64) -> ServeError {
        let first = self.engine.decided().next();
        let report = self.engine.report();
        let (origin, halt) = (report.origin, report.halted.into_iter().next());
        let halted = |halt: HaltReport| match halt.write {
            Some(write) => {
                format!(" (the domain '{}' halts at {write}: {})", halt.domain, halt.reason)
            }
            None => format!(" (the domain '{}' has halted: {})", halt.domain, halt.reason),
        };
        let last_error = || origin.last_error.map(|error| format!(" ({error})"));
        let last_error = halt.map(halted).or_else(last_error).unwrap_or_default();
        ServeError::new(
            exit::DIRTY_REMAINS,
            format!(
                "stopped with {left} writes (from {} on) that {} has not taken{last_error}; they are in {}, and the next start \
                 destages them",
                first.0,
                origin.description,
                self.where_kept(),
            ),
        )
    }
}

/// Why a process ends that could not hand over what it had acknowledged within d = T.
fn too_few_copies(left: u64, uncopied: u64) -> ServeError {
    ServeError::new(
        exit::JOURNAL_UNUSABLE,
        format!(
            "stopped with {left} writes that the origin has not taken, while too few servers of the log answered: the newest \
             {uncopied} of them are on fewer servers than --copies says, and may be lost. Check the servers, then start again"
        ),
    )
}

/// Tells the origin that its owner has ended and left nothing behind; a convenience, for which the end waits a limited time.
///
/// # Errors
/// What was written to is not the origin any more.
fn release(writes: &Sender<WriteJob>, patience: Duration) -> Result<(), ServeError> {
    let (done, released) = queue();
    if writes.send(WriteJob::Release { done }).is_err() {
        return Ok(());
    }
    match released.recv_timeout(patience) {
        Ok(Err(error)) if error.fault == Fault::Failed => {
            let message = format!("{}. {}", error.message, WENT_BACK);
            Err(ServeError::new(exit::ORIGIN_WENT_BACK, message))
        }
        // What else went wrong has been logged.
        _ => Ok(()),
    }
}

const WENT_BACK: &str =
    "Start again: what it lost is replayed from the journal as far as --retain reaches";

/// How long the end of the process waits for a flush under way.
const FLUSH_WAIT_MAX: Duration = Duration::from_secs(10);
/// How often the journal's durable writes are looked for meanwhile.
const WRITE_WAIT: Duration = Duration::from_millis(2);
