//! Too few servers take what is written, or answer at all: what becomes of commands meanwhile. `--at-limit` says whether they are
//! refused or wait, for no longer than `--client-wait`.
//!
//! Nothing of a command is done that could not be answered. So what a refused client is told tells of nothing, and may leave
//! although this process is not sure to own the log.

use super::Engine;
use super::prepared::Prepared;
use super::queued::{Queued, data_commands, dmls};
use super::session::NOT_DONE;
use crate::resp::{Code, Protocol, Reply, ReplyError, count_replies, each_reply};
use destage_core::{AtLimit, ClientId, Span};
use destage_replicas_redis::Reach;

/// What replies begin with that tell nothing of what is stored.
const SAY_NOTHING: [&[u8]; 4] = [b"-UNAVAILABLE ", b"-PENDING ", b"-NOAUTH ", b"+QUEUED\r\n"];
/// So long is what is told instead of a reply, about, bytes.
pub(super) const WITHHELD_BYTES: usize = 256;

/// Whether this answers nothing: a copy that a client holds is old. A connection that takes such messages in RESP2 may ask for
/// nothing of that form.
fn is_told_unasked(one: &[u8], takes_messages: bool) -> bool {
    let message = b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n";
    one.first() == Some(&b'>') || takes_messages && one.starts_with(message)
}

impl Engine {
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

    /// The same of a transaction. One that was begun by DESTAGE BEGIN never waits, so it is told in any case.
    pub(super) fn refuses_all_for_copies(
        &self,
        queued: &[Queued],
        is_begun: bool,
    ) -> Option<ReplyError> {
        let what = self.lack_of_copies()?;
        let changes = dmls(queued).next().is_some() || self.must_wait(data_commands(queued));
        if !changes || !is_begun && self.core.policy().at_limit != AtLimit::Fail {
            return None;
        }
        Some(ReplyError::new(
            Code::Unavailable,
            format!("{what}, and nothing was done; see DESTAGE STATUS"),
        ))
    }

    /// What is lacking, if anything is.
    pub(super) fn lack_of_copies(&self) -> Option<&'static str> {
        match self.measured.reach() {
            Reach::Whole | Reach::Through => None,
            Reach::Reads => Some("too few servers of the log take writes"),
            Reach::Nothing => Some("too few servers of the log answer"),
        }
    }

    /// Whether all that a client is to be sent tells of nothing that is stored.
    pub(crate) fn tells_nothing(&mut self, client: ClientId) -> bool {
        let Some(session) = self.sessions.get_mut(client) else { return false };
        if session.monitors {
            // What others ask for, and not what becomes of it.
            return true;
        }
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
        let where_kept = if self.core.policy().commit > Span::ZERO {
            "what it wrote within d may be lost if another process owns the log by now"
        } else {
            "if it wrote, the write is kept: do not repeat it"
        };
        let of_result = ReplyError::new(
            Code::Pending,
            format!(
                "too few servers of the log have answered for {limit} s (--client-wait), and its answer is not told before that: \
                 {where_kept}; see DESTAGE STATUS"
            ),
        );
        let of_error = ReplyError::new(
            Code::Unavailable,
            format!(
                "too few servers of the log have answered for {limit} s (--client-wait), and its answer is not told before that; \
                 nothing was done; see DESTAGE STATUS"
            ),
        );
        let bytes_max = self.config.output_bytes_max;
        let Some(mut session) = self.sessions.take(client) else { return };
        let all = std::mem::take(&mut session.ready);
        let count = count_replies(&all);
        if count.saturating_mul(WITHHELD_BYTES) > bytes_max {
            self.sessions.cut_off(client, &mut session);
        } else {
            let (protocol, mut at) = (session.protocol, 0);
            let takes_messages = session.is_subscribed && protocol == Protocol::V2;
            each_reply(&all, |one| {
                at += one.len();
                let mut reply = Reply::new(&mut session.ready, protocol);
                // That of MULTI, which the first of its commands follows.
                let is_of_multi = one == b"+OK\r\n" && all[at..].starts_with(b"+QUEUED\r\n");
                // An error, or nil for EXEC.
                let is_not_done =
                    one.first() == Some(&b'-') || one == b"*-1\r\n" || one == NOT_DONE;
                if is_of_multi
                    || is_told_unasked(one, takes_messages)
                    || SAY_NOTHING.iter().any(|begin| one.starts_with(begin))
                {
                    reply.raw(one);
                } else if is_not_done {
                    reply.error(&of_error);
                } else {
                    reply.error(&of_result);
                }
            });
            self.sessions.count_unread(&mut session);
        }
        self.sessions.restore(client, session);
        self.measured.gave_up(count as u64);
        self.sessions.send(client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_the_form_of_a_message_is_withheld() {
        let message = b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n$1\r\nk\r\n";
        let value = b"*3\r\n$7\r\nmessage\r\n$1\r\n1\r\n$1\r\n2\r\n";
        assert!(is_told_unasked(message, true) && !is_told_unasked(message, false));
        assert!(!is_told_unasked(value, true) && !is_told_unasked(value, false));
        assert!(is_told_unasked(b">2\r\n$10\r\ninvalidate\r\n*-1\r\n", false));
    }
}
