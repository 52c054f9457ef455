//! Questions to an origin that is away: they are asked again, instead of failing who waits for the answers (`--on-away wait`).
//!
//! For whoever waits this is a question that takes long. Who has waited for as long as it may is answered like any other
//! (`--client-wait`), and what nobody waits for any more is not asked again: so there are never more questions here than
//! requests that wait. While the origin fails, one of them finds out whether it is back. Then all are asked, rows many at
//! a time.

use super::asking::is_prefetch;
use super::{Engine, FetchJob, Io};
use crate::origins::OriginError;
use crate::schema::TableId;
use crate::settings::OnAway;
use destage_core::{Fault, RequestId, Span, Time, UnitId};
use std::collections::VecDeque;

/// A question is asked again after so long.
const AGAIN_AFTER: Span = Span::from_millis(200);

/// What is to be asked again, the oldest first.
#[derive(Debug, Default)]
pub(super) struct PutOff {
    questions: VecDeque<Question>,
    due: Time,
}

#[derive(Debug)]
enum Question {
    Row(FetchJob),
    /// Of one client's request.
    Other(RequestId, Io),
}

impl PutOff {
    /// When there is something to be asked.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        (!self.questions.is_empty()).then_some(self.due)
    }

    fn push(&mut self, question: Question, now: Time) {
        if self.questions.is_empty() {
            self.due = now + AGAIN_AFTER;
        }
        self.questions.push_back(question);
    }

    /// All of it, if it is time. What is put off once more waits as long again.
    fn take_due(&mut self, now: Time) -> VecDeque<Question> {
        if self.next_timeout().is_none_or(|due| due > now) {
            return VecDeque::new();
        }
        std::mem::take(&mut self.questions)
    }
}

impl Engine {
    /// Whether whoever waits for an answer goes on to wait after this failure.
    fn waits_out(&self, error: &OriginError) -> bool {
        self.config.on_away == OnAway::Wait && error.fault == Fault::Unavailable
    }

    /// Whether some client waits for a row that is under way.
    fn is_awaited(&self, unit: UnitId) -> bool {
        self.core.waiting_at(unit).any(|request| !is_prefetch(request))
    }

    /// The origin has not given these rows. Those that a client waits for are asked for again; the others are returned.
    pub(super) fn put_off_rows(
        &mut self,
        jobs: Vec<FetchJob>,
        error: &OriginError,
    ) -> Vec<FetchJob> {
        if !self.waits_out(error) {
            return jobs;
        }
        let (kept, failed): (Vec<_>, _) =
            jobs.into_iter().partition(|job| self.is_awaited(job.unit));
        for job in kept {
            self.put_off(Question::Row(job));
        }
        failed
    }

    /// The origin has not answered a question about this table, for which a request waits. Whether it is asked again.
    pub(super) fn put_off_question(
        &mut self,
        request: RequestId,
        table: TableId,
        error: &OriginError,
        question: impl FnOnce() -> Io,
    ) -> bool {
        let is_put_off = self.waits_out(error);
        if is_put_off {
            self.measured.read_failed(self.now, &self.schema.table(table).name, error);
            self.put_off(Question::Other(request, question()));
        }
        is_put_off
    }

    fn put_off(&mut self, question: Question) {
        self.jobs.put_off_mut().push(question, self.now);
    }

    /// Asks again what it is time for, and gives up what nobody waits for any more.
    pub(super) fn ask_put_off(&mut self) {
        let mut asks = true;
        for question in self.jobs.put_off_mut().take_due(self.now) {
            let is_awaited = match &question {
                Question::Row(job) => self.is_awaited(job.unit),
                Question::Other(request, _) => {
                    self.sessions.waiting(*request).is_some() || self.awaits_numbers(*request)
                }
            };
            match question {
                Question::Row(job) if !is_awaited => self.row_failed(&job, Fault::Unavailable),
                Question::Other(request, Io::Scan { .. }) if !is_awaited => {
                    self.undecided.structural_mut().unpin(request.0);
                    self.domains.unask(request.0);
                }
                Question::Other(request, Io::NextKeys { .. }) if !is_awaited => {
                    self.forget_numbers(request);
                }
                _ if !is_awaited => {}
                question if !asks => self.put_off(question),
                Question::Row(job) => self.jobs.fetch(job),
                Question::Other(_, io) => self.jobs.push(io),
            }
            asks &= !is_awaited || !self.measured.is_read_failing();
        }
    }
}
