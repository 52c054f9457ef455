//! Questions to an origin that is away: they are asked again, instead of failing who waits for the answers (`--on-away wait`).
//!
//! For whoever waits this is a question that takes long. Who has waited for as long as it may is answered like any other
//! (`--client-wait`), and what nobody waits for any more is not asked again: so there are never more questions here than
//! requests that wait. While the origin fails, one of them finds out whether it is back. Then all are asked, rows many at
//! a time.

use super::asking::is_prefetch;
use super::{Engine, FetchJob, Io};
use crate::origins::OriginError;
use crate::resp::{Code, ReplyError};
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
pub(super) enum Question {
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
    pub(super) fn take_due(&mut self, now: Time) -> VecDeque<Question> {
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
    pub(super) fn is_awaited(&self, unit: UnitId) -> bool {
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

    pub(super) fn put_off(&mut self, question: Question) {
        self.jobs.put_off_mut().push(question, self.now);
    }

    /// What a client is told whose question the origin has not answered.
    pub(super) fn read_failed(&mut self, table: TableId, error: &OriginError) -> ReplyError {
        self.measured.read_failed(self.now, &self.schema.table(table).name, error);
        // What is rejected, as a key of a sequence that is exhausted, no second attempt gets.
        let code = match error.fault {
            Fault::Denied => Code::Denied,
            Fault::Rejected => Code::Err,
            _ => Code::Unavailable,
        };
        ReplyError::new(code, format!("{}: {}", self.config.origin, error.message))
    }
}
