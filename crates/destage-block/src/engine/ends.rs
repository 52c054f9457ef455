//! How requests end: their fragments are done, or given up; what they wait for is durable.

use super::Volume;
use super::fragment::Work;
use super::job::Work as JobWork;
use super::requests::{Ended, Kind};
use super::waits::Wait;
use crate::request::{Reply, RequestError};
use destage_core::{Lsn, Span, WaitFor};

impl Volume {
    /// A fragment is done, or has failed.
    pub(super) fn fragment_done(&mut self, asked: u32, result: Result<(), RequestError>) {
        let Some(ended) = self.requests.fragment_done(asked, result) else { return };
        let Ended { kind, lsn, is_through } = ended;
        match kind {
            Kind::Cache => self.requests.finish(asked, Reply::Done),
            Kind::Read if self.service.is_stopped() => self.requests.answer(asked),
            Kind::Read => self.respond(asked, lsn, false),
            _ if self.service.is_stopped() => {
                self.requests.finish(asked, Reply::Error(RequestError::Io))
            }
            Kind::Write { fua: true } => self.make_durable(asked, lsn),
            Kind::Write { fua: false } if lsn == Lsn::ZERO && is_through => {
                self.requests.answer(asked)
            }
            Kind::Write { fua: false } => self.respond(asked, lsn, true),
            Kind::Flush | Kind::Status => unreachable!("these have no fragments"),
        }
    }

    /// The origin has been flushed for a request, or not.
    pub(super) fn origin_flushed(&mut self, asked: u32, is_flushed: bool) {
        if !is_flushed {
            return self.requests.finish(asked, Reply::Error(RequestError::Io));
        }
        let Some(lsn) = self.requests.lsn(asked) else { return };
        if self.service.is_stopped() {
            return self.requests.finish(asked, Reply::Error(RequestError::Io));
        }
        self.wait_for(Wait::Asked(asked), lsn, WaitFor::Committed);
    }

    /// What a flush or a durable write waited for is durable.
    pub(super) fn durable(&mut self, asked: u32) {
        if self.service.has_lost_log(self.core.policy()) {
            return self.requests.finish(asked, Reply::Error(RequestError::Io));
        }
        match self.requests.written_lsn(asked) {
            Some(lsn) => self.respond(asked, lsn, true),
            None => self.requests.answer(asked),
        }
    }

    /// The core lets a reply leave. It may have held it since before the cache's file was found lost.
    pub(super) fn reply_due(&mut self, asked: u32) {
        let policy = self.core.policy();
        let is_every = policy.commit == Span::ZERO;
        if self.service.has_lost_log(policy) && self.requests.claims_durability(asked, is_every) {
            return self.requests.finish(asked, Reply::Error(RequestError::Io));
        }
        self.requests.answer(asked);
    }

    /// A fragment fails, and the write that it read for with it.
    pub(super) fn abandon(&mut self, id: u64, error: RequestError) {
        let Some(fragment) = self.fragments.remove(id) else { return };
        match fragment.work {
            Work::Edges { writer } => self.abandon(writer, error),
            _ => self.fragment_done(fragment.asked, Err(error)),
        }
    }

    /// Makes what a request covers durable: first at the origin, where writes went past the log, then in the log.
    pub(super) fn make_durable(&mut self, asked: u32, lsn: Lsn) {
        self.requests.set_lsn(asked, lsn);
        if self.write_through.needs_flush() {
            return self.flush_origin(asked);
        }
        self.wait_for(Wait::Asked(asked), lsn, WaitFor::Committed);
    }

    /// Makes what went past the log durable, for a request.
    pub(super) fn flush_origin(&mut self, asked: u32) {
        // Writes that end while the flush runs are not covered by it.
        self.write_through.begin_flush(self.fragments.is_write_under_way());
        self.jobs.push(JobWork::OriginFlush { asked });
    }
}
