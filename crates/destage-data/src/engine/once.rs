//! DESTAGE ONCE token command: carried out once for a token, however often it is sent.
//!
//! The group that the command makes tells of the token, of a hash of the command, and of the reply, so all of them are
//! durable or none is; a command that changes nothing makes a group that only tells of them. Whether a token is known is
//! looked up in the very step in which the command would be carried out. So of several that wait with the same token, for a
//! row or a lease, the first that need not wait any longer is carried out, and the others get its reply. That leaves under
//! the rules for the first one's: not before its group is durable, nor while D is exceeded. If the first one waits for the
//! origin's word, the others do, too.

pub(super) mod command;
mod keep;
mod kept;
mod tokens;

use super::Engine;
use super::command::Category;
use super::prepared::{Prepared, Trouble};
use super::queued::Queued;
use super::session::{Session, Waiting};
use super::txn::Txn;
use crate::once::Done;
use crate::resp::{Code, Protocol, Reply, ReplyError, in_v2};
use crate::settings::Settings;
use command::{Once, OnceRecord};
use destage_core::{Access, ClientId, Lsn, Span};
pub(super) use kept::OnceTokens;
use tokens::Limits;

/// The longest token.
pub(super) const TOKEN_BYTES_MAX: usize = 128;
/// The longest reply that is kept.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// A token is kept for this long, and no shorter than what is decided is retained.
const LIFE_MIN: Span = Span::from_secs(3_600);
/// Tokens take this part of the journal at most, since they are written anew each time that they would leave it.
const JOURNAL_SHARE: u64 = 4;

/// How many tokens the settings let there be.
pub(super) fn limits(settings: &Settings) -> Limits {
    let journal = settings.policy.limits.journal_bytes_max / JOURNAL_SHARE;
    let bytes = settings.once_bytes_max.min(journal);
    Limits { tokens: settings.once_tokens_max, bytes, life: settings.retain.max(LIFE_MIN) }
}

impl Engine {
    /// Whether nothing is to be carried out: the command is answered, or its answer is waited for. Otherwise it is to be
    /// carried out in this very step, or is asked for once more.
    pub(super) fn is_known(
        &mut self,
        client: ClientId,
        session: &mut Session,
        once: Option<&Once>,
    ) -> bool {
        let Some(once) = once else { return false };
        let Some(known) = self.once.get(&once.token) else {
            let room = self.once.check_room(&once.token, b"", self.now);
            let has_room = room.is_ok();
            if let Err(error) = room {
                self.fail(session, error);
            }
            return !has_room;
        };
        if known.command != once.command {
            self.fail(
                session,
                ReplyError::fixed(
                    Code::Err,
                    "this token was used for another command, nothing was done: take a new one for each command, and \
                     the same for each time that it is sent",
                ),
            );
            return true;
        }
        let lsn = known.lsn;
        if known.through && self.core.is_undecided(lsn) {
            self.once.wait(lsn, client);
            session.waiting = Some(Waiting::Origin { lsn });
        } else {
            self.answer_again(session, &once.token);
        }
        true
    }

    /// Answers as the first time.
    pub(super) fn answer_again(&mut self, session: &mut Session, token: &[u8]) {
        let Some(known) = self.once.get(token) else { return };
        let lsn = known.lsn;
        session.last_write = lsn;
        if known.through && self.core.is_parked(lsn) {
            let message = ReplyError::new(
                Code::Parked,
                format!(
                    "the origin rejected write {}; it is kept in destage_parked with the reason",
                    lsn.0
                ),
            );
            return self.complain(session, message);
        }
        push_reply(&mut session.out, session.protocol, &known.reply);
        session.lsn = session.lsn.max(lsn);
        session.wrote = true;
        self.once.replayed();
    }

    /// Has a transaction tell of its command, whose reply is behind `start`, written as RESP3.
    ///
    /// # Errors
    /// There is no room for it, or its reply is too long.
    pub(super) fn stage_token(
        &mut self,
        session: &mut Session,
        txn: &mut Txn,
        once: Option<&Once>,
        start: usize,
        access: Access,
    ) -> Result<(), Trouble> {
        let Some(once) = once else { return Ok(()) };
        let reply = session.out.split_off(start);
        if reply.len() > REPLY_BYTES_MAX {
            return Err(Trouble::Error(ReplyError::err(format!(
                "a reply of {} bytes exceeds {REPLY_BYTES_MAX}, the most that DESTAGE ONCE keeps; leave out what only reads",
                reply.len()
            ))));
        }
        self.once.check_room(&once.token, &reply, self.now).map_err(Trouble::Error)?;
        push_reply(&mut session.out, session.protocol, &reply);
        let through = access != Access::Back && !txn.is_empty();
        txn.once_record = Some(OnceRecord { once: once.clone(), reply: reply.into(), through });
        Ok(())
    }

    /// The group in which a transaction tells of its command has its number.
    pub(super) fn record_token(&mut self, lsn: Lsn, record: Option<OnceRecord>) {
        if let Some(record) = record {
            let done = Done { lsn, stamp: self.now, ..record.done() };
            self.once.insert(lsn, &done);
        }
    }

    /// Why a command cannot be carried out once.
    pub(super) fn refuses_once(&self, prepared: &Prepared) -> Option<ReplyError> {
        let plain = self.schema.plain;
        if prepared.key_list.iter().any(|(table, _)| Some(*table) == plain) {
            return Some(ReplyError::fixed(
                Code::Err,
                "DESTAGE ONCE keeps in the journal what was done, and this key is in memory alone; nothing was done",
            ));
        }
        (!prepared.changes_rows(&self.schema)).then(|| {
            ReplyError::fixed(
                Code::Err,
                "DESTAGE ONCE is for what changes rows, and a deadline is of the cached copy: send it without; \
                 nothing was done",
            )
        })
    }

    /// The same for a transaction.
    pub(super) fn refuses_all_once(&self, queued: &[Queued]) -> Option<ReplyError> {
        queued.iter().find_map(|command| match command {
            Queued::Data(prepared) if prepared.category == Category::Write => {
                self.refuses_once(prepared)
            }
            _ => None,
        })
    }

    /// The origin has decided a write whose client waited for its word; those that wait for the same are told.
    pub(super) fn decide_token(&mut self, lsn: Lsn, refusal: Option<&ReplyError>) {
        let (token, clients) = self.once.decide(lsn, refusal.is_none());
        for client in clients {
            let Some(mut session) = self.sessions.take_waiting_for(client, lsn) else { continue };
            (session.waiting, session.last_write) = (None, lsn);
            match (refusal, &token) {
                (Some(error), _) => self.complain(&mut session, error.clone()),
                (None, Some(token)) => self.answer_again(&mut session, token),
                (None, None) => self.complain(
                    &mut session,
                    ReplyError::fixed(Code::Err, "the origin has decided it; send it again"),
                ),
            }
            self.sessions.restore_answered(client, session);
        }
    }

    /// The same for those that an earlier run has left.
    pub(super) fn decide_tokens(&mut self) {
        let is_decided = |lsn: &Lsn| !self.core.is_undecided(*lsn);
        let decided: Vec<Lsn> = self.once.open().filter(is_decided).collect();
        decided.into_iter().for_each(|lsn| self.decide_token(lsn, None));
    }
}

/// A reply that was written as RESP3.
fn push_reply(out: &mut Vec<u8>, protocol: Protocol, reply: &[u8]) {
    match protocol {
        Protocol::V3 => out.extend_from_slice(reply),
        Protocol::V2 => in_v2(reply, &mut Reply::new(out, protocol)),
    }
}
