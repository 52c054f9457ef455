//! Too few servers take what is written, or answer at all: what becomes of commands meanwhile. `--at-limit` says whether they are
//! refused or wait, for no longer than `--client-wait`.
//!
//! Nothing of a command is done that could not be answered. So what a refused client is told tells of nothing, and may leave
//! although this process is not sure to own the log.

use super::Engine;
use super::prepared::Prepared;
use crate::resp::{Code, Reply, ReplyError, count_replies};
use destage_core::{AtLimit, ClientId};
use destage_replicas_redis::Reach;

/// What replies begin with that tell nothing of what is stored.
const SAY_NOTHING: [&[u8]; 2] = [b"-UNAVAILABLE ", b"-PENDING "];

impl Engine {
    /// What the servers of the log allow from now on.
    pub(crate) fn reached(&mut self, reach: Reach) {
        let before = self.measured.set_reach(reach);
        match reach {
            _ if before == reach => return,
            Reach::Whole => tracing::info!("enough servers of the log take writes again"),
            Reach::Reads => {
                tracing::error!("too few servers of the log take writes: none is acknowledged")
            }
            Reach::Nothing => {
                tracing::error!("too few servers of the log answer: nothing is answered")
            }
        }
        if reach != Reach::Nothing {
            self.wake_lease_waiters();
            self.run_ready();
        }
    }

    /// What commands are told that nobody waits for.
    pub(super) fn refuses_for_copies<'p>(
        &self,
        commands: impl Iterator<Item = &'p Prepared>,
    ) -> Option<ReplyError> {
        let what = self.lack_of_copies()?;
        if self.core.policy().at_limit != AtLimit::Fail || !self.must_wait(commands) {
            return None;
        }
        let words = format!("{what} (--at-limit fail), and nothing was done; see DESTAGE STATUS");
        Some(ReplyError::new(Code::Unavailable, words))
    }

    /// What is lacking, if anything is.
    pub(super) fn lack_of_copies(&self) -> Option<&'static str> {
        match self.measured.reach() {
            Reach::Whole => None,
            Reach::Reads => Some("too few servers of the log take writes"),
            Reach::Nothing => Some("too few servers of the log answer"),
        }
    }

    /// Whether all that a client is to be sent tells of nothing that is stored.
    pub(crate) fn tells_nothing(&mut self, client: ClientId) -> bool {
        let Some(session) = self.sessions.get_mut(client) else { return false };
        let (mut rest, is_any) = (session.ready.as_slice(), !session.ready.is_empty());
        while SAY_NOTHING.iter().any(|begin| rest.starts_with(begin)) {
            let end = memchr::memmem::find(rest, b"\r\n").map_or(rest.len(), |at| at + 2);
            rest = &rest[end..];
        }
        is_any && rest.is_empty()
    }

    /// Answers otherwise than by replies that may not leave, none of which has left in part.
    pub(crate) fn withhold_ready(&mut self, client: ClientId) {
        let limit = self.config.client_wait.as_secs_f64();
        let error = ReplyError::new(
            Code::Pending,
            format!(
                "too few servers of the log have answered for {limit} s (--client-wait), and its answer is not told before that: if \
                 it wrote, the write is kept: do not repeat it; see DESTAGE STATUS"
            ),
        );
        let Some(session) = self.sessions.get_mut(client) else { return };
        let count = count_replies(&session.ready);
        session.ready.clear();
        let mut reply = Reply::new(&mut session.ready, session.protocol);
        (0..count).for_each(|_| reply.error(&error));
        self.measured.gave_up(count as u64);
        self.sessions.send(client);
    }
}
