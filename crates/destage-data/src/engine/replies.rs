//! What a client is told of that is no result: errors, refusals, leases that it has lost.

use super::Engine;
use super::session::Session;
use crate::resp::{Code, Reply, ReplyError};
use destage_core::Refusal;
use destage_core::lease::Denied;

impl Engine {
    /// Replies with an error; a transaction goes on as if nothing had been said.
    pub(super) fn complain(&mut self, session: &mut Session, error: ReplyError) {
        self.measured.error();
        Reply::new(&mut session.out, session.protocol).error(&error);
    }

    /// Replies with an error; between MULTI and EXEC, or DESTAGE BEGIN and EXEC, it also spoils the transaction.
    pub(super) fn fail(&mut self, session: &mut Session, error: ReplyError) {
        if let Some(multi) = &mut session.multi {
            multi.failed = true;
            if multi.begun {
                self.end_leases(session);
            }
        }
        self.complain(session, error);
    }

    /// Tells a client that its request was refused.
    pub(super) fn refused(&mut self, session: &mut Session, refusal: Refusal) {
        let policy = self.core.policy();
        let message = match refusal {
            Refusal::Stale => ReplyError::new(
                Code::Stale,
                format!(
                    "the oldest write has waited for {} longer than D = {:.1} s: no write is acknowledged until \
                 it is up again; reads of cached rows go on",
                    self.config.origin,
                    policy.staleness.as_secs_f64()
                ),
            ),
            Refusal::Full => ReplyError::new(
                Code::Full,
                format!(
                    "the limit of {} bytes of buffered writes is reached; try again when some are destaged, or raise \
                 --dirty-limit",
                    policy.limits.dirty_bytes_max
                ),
            ),
            Refusal::Busy => ReplyError::fixed(Code::Busy, "too many requests wait; try again"),
            Refusal::Unavailable => ReplyError::new(
                Code::Unavailable,
                format!(
                    "the row is not cached and {} cannot be read: {}",
                    self.config.origin,
                    self.measured.read_error()
                ),
            ),
            Refusal::Denied => ReplyError::new(
                Code::Denied,
                format!(
                    "the row is not cached and {} refuses to be read: {}",
                    self.config.origin,
                    self.measured.read_error()
                ),
            ),
            Refusal::Stopped => {
                ReplyError::fixed(Code::Stopped, "this server has stopped; see its log")
            }
        };
        self.fail(session, message);
    }

    /// Tells a session that it has lost its leases: nothing of it will be done, and EXEC says so with nil.
    pub(super) fn lost(&mut self, session: &mut Session, denied: Denied) {
        self.end_leases(session);
        let message = match denied {
            Denied::Conflict => ReplyError::fixed(
                Code::Retry,
                "another session holds the row: EXEC, and begin anew after a while",
            ),
            Denied::Voided => ReplyError::fixed(
                Code::Retry,
                "a row that this session has read was changed: EXEC, and begin anew",
            ),
            Denied::Fenced => ReplyError::fixed(
                Code::Retry,
                "this session has lost its leases: EXEC, and begin anew",
            ),
        };
        // It tells of what others did.
        session.lsn = session.lsn.max(self.core.last());
        self.complain(session, message);
    }
}
