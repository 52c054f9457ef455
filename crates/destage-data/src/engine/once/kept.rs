//! The tokens that are kept, and what is under way to keep them.

use super::super::job::Io;
use super::tokens::{Known, Limits, Token, Tokens};
use crate::once::{Done, TokenRecord};
use crate::resp::{Code, ReplyError};
use destage_core::{ClientId, Lsn, Time};
use destage_runtime::status::OnceReport;
use std::collections::BTreeMap;

/// With no more segments than these, and twice as many as the tokens take, none need leave the journal.
const SEGMENTS_MIN: u64 = 1;

/// A write that the origin has rejected while its client waited.
#[derive(Debug)]
struct GivenUp {
    lsn: Lsn,
    /// Moves the watermark past it.
    park: Io,
    /// The group that says that it is given up. Once that is durable, the watermark may move.
    journaled_by: Option<Lsn>,
}

/// What is known of commands that are carried out once.
#[derive(Debug)]
pub(in crate::engine) struct OnceTokens {
    tokens: Tokens,
    /// Tokens that a later group tells of, which is not durable yet.
    moving: Vec<(Token, Lsn)>,
    given_up: Vec<GivenUp>,
    /// Who waits for the origin's word on a write of someone else.
    waiting: BTreeMap<Lsn, Vec<ClientId>>,
}

impl OnceTokens {
    pub(in crate::engine) fn new(limits: Limits) -> Self {
        let tokens = Tokens::new(limits);
        Self { tokens, moving: Vec::new(), given_up: Vec::new(), waiting: BTreeMap::new() }
    }

    /// Whether no token is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// What is known of a token.
    pub(super) fn get(&self, token: &[u8]) -> Option<&Known> {
        self.tokens.get(token)
    }

    /// Whether there is room for one more, with this reply.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn check_room(
        &mut self,
        token: &[u8],
        reply: &[u8],
        now: Time,
    ) -> Result<(), ReplyError> {
        if self.tokens.has_room(token, reply) {
            return Ok(());
        }
        self.tokens.refused += 1;
        let limits = self.tokens.limits();
        Err(ReplyError::new(
            Code::Full,
            format!(
                "DESTAGE ONCE keeps {} tokens in {} bytes, and the oldest for {} s yet, nothing was done: raise \
                 --once-tokens ({}) \
             or --once-limit ({} bytes, a quarter of --journal-size at most)",
                self.tokens.len(),
                self.tokens.bytes(),
                self.tokens
                    .oldest_ends()
                    .map_or(0, |end| end.since(now).as_nanos() / 1_000_000_000),
                limits.tokens,
                limits.bytes
            ),
        ))
    }

    /// Notes what a group tells.
    pub(super) fn insert(&mut self, place: Lsn, done: &Done<'_>) {
        self.tokens.insert(place, done);
    }

    /// A token was answered as the first time.
    pub(super) fn replayed(&mut self) {
        self.tokens.replayed += 1;
    }

    /// A client waits for the origin's word on a write of someone else.
    pub(super) fn wait(&mut self, lsn: Lsn, client: ClientId) {
        self.waiting.entry(lsn).or_default().push(client);
    }

    /// The origin has decided a write whose client waited for its word: its token, and who else waits for the same.
    pub(super) fn decide(&mut self, lsn: Lsn, is_applied: bool) -> (Option<Token>, Vec<ClientId>) {
        let token = self.tokens.of_open(lsn).cloned();
        if is_applied {
            self.tokens.close(lsn);
        } else {
            self.tokens.give_up(lsn);
        }
        (token, self.waiting.remove(&lsn).unwrap_or_default())
    }

    /// The writes whose clients wait, or waited, for the origin's word.
    pub(super) fn open(&self) -> impl Iterator<Item = Lsn> {
        self.tokens.open()
    }

    /// Takes out a write that the journal says is given up.
    pub(super) fn give_up(&mut self, lsn: Lsn) {
        self.tokens.give_up(lsn);
    }

    /// Has a write be given up before `park` moves the watermark past it; gives that back if no token is concerned.
    pub(super) fn begin_give_up(&mut self, lsn: Lsn, park: Io) -> Option<Io> {
        if self.tokens.of_open(lsn).is_none() {
            return Some(park);
        }
        self.given_up.push(GivenUp { lsn, park, journaled_by: None });
        None
    }

    /// The next write that is given up, of which no group tells yet.
    pub(super) fn next_unjournaled(&self) -> Option<Lsn> {
        self.given_up
            .iter()
            .find(|given_up| given_up.journaled_by.is_none())
            .map(|given_up| given_up.lsn)
    }

    /// A group tells of it.
    pub(super) fn journaled_by(&mut self, lsn: Lsn, group: Lsn) {
        let untold = self.given_up.iter_mut().find(|given_up| given_up.lsn == lsn);
        untold.expect("only what is given up is told of").journaled_by = Some(group);
    }

    /// Forgets what has been kept for long enough.
    pub(super) fn expire(&mut self, now: Time, decided: Lsn) {
        self.tokens.expire(now, decided);
    }

    /// Whether tokens may be written anew, where a journal has so many segments, and takes so many bytes in a group: none
    /// are under way, and most of the journal is something else. Otherwise that would make no room, only more segments that
    /// are due.
    pub(super) fn may_carry(&self, segments: u64, payload_bytes_max: u64) -> bool {
        let half = payload_bytes_max;
        let is_worth = segments > SEGMENTS_MIN + self.tokens.bytes() / half;
        !self.tokens.is_empty() && self.moving.is_empty() && is_worth
    }

    /// From this group on, a start would know of all of them.
    pub(in crate::engine) fn first_place(&self) -> Option<Lsn> {
        self.tokens.first_place()
    }

    /// Tells once more, in a group to come, of tokens that groups up to this one tell of, as long as `tell` says that there
    /// is room; how many they are.
    pub(super) fn carry(
        &mut self,
        upto: Lsn,
        group: Lsn,
        mut tell: impl FnMut(&TokenRecord<'_>) -> bool,
    ) -> usize {
        assert!(self.moving.is_empty(), "what is written anew is durable before more is");
        for (token, known) in self.tokens.placed_upto(upto) {
            let done = Done {
                lsn: known.lsn,
                stamp: known.since,
                through: known.through,
                token,
                command: known.command,
                reply: &known.reply,
            };
            let has_room = tell(&TokenRecord::Done(done));
            self.moving.push((token.clone(), group));
            if !has_room {
                break;
            }
        }
        self.moving.len()
    }

    /// The journal is durable up to here: what may go on because of it.
    pub(super) fn committed(&mut self, committed: Lsn) -> impl Iterator<Item = Io> {
        if self.moving.last().is_some_and(|(_, lsn)| *lsn <= committed) {
            for (token, lsn) in std::mem::take(&mut self.moving) {
                self.tokens.placed(&token, lsn);
            }
        }
        let is_durable = move |given_up: &mut GivenUp| {
            given_up.journaled_by.is_some_and(|group| group <= committed)
        };
        self.given_up.extract_if(.., is_durable).map(|given_up| given_up.park)
    }

    /// What there is to see of them.
    pub(in crate::engine) fn report(&self) -> OnceReport {
        self.tokens.report()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::once::COMMAND_BYTES;
    use destage_core::{Span, StopReason};

    fn tokens() -> OnceTokens {
        let limits = Limits { tokens: 9, bytes: 1 << 20, life: Span::from_secs(10) };
        let mut all = OnceTokens::new(limits);
        for (token, lsn) in [(b"a", 1), (b"b", 2)] {
            let (lsn, stamp, command) = (Lsn(lsn), Time::ZERO, [7; COMMAND_BYTES]);
            let done = Done { lsn, stamp, through: true, token, command, reply: b":1\r\n" };
            all.insert(lsn, &done);
        }
        all
    }

    #[test]
    fn the_watermark_moves_past_a_write_once_it_is_durable_that_it_is_given_up() {
        let mut all = tokens();
        let park = || Io::Stop(StopReason::Fenced);
        assert!(all.begin_give_up(Lsn(9), park()).is_some(), "it has no token");
        assert!(all.begin_give_up(Lsn(1), park()).is_none());
        assert_eq!((all.next_unjournaled(), all.committed(Lsn(99)).count()), (Some(Lsn(1)), 0));
        all.journaled_by(Lsn(1), Lsn(5));
        assert_eq!((all.next_unjournaled(), all.committed(Lsn(4)).count()), (None, 0));
        assert_eq!((all.committed(Lsn(5)).count(), all.committed(Lsn(5)).count()), (1, 0));
    }

    #[test]
    fn tokens_move_once_the_group_that_tells_of_them_is_durable() {
        let mut all = tokens();
        assert!(all.may_carry(2, 1 << 20) && !all.may_carry(1, 1 << 20));
        assert_eq!(all.carry(Lsn(2), Lsn(7), |_| false), 1);
        assert!(!all.may_carry(2, 1 << 20), "one group at a time");
        assert_eq!(all.committed(Lsn(6)).count(), 0);
        assert_eq!(all.first_place(), Some(Lsn(1)));
        assert_eq!(all.committed(Lsn(7)).count(), 0);
        assert_eq!(all.first_place(), Some(Lsn(2)));
    }

    #[test]
    fn all_who_wait_for_one_write_hear_of_it() {
        let mut all = tokens();
        all.wait(Lsn(1), ClientId(4));
        all.wait(Lsn(1), ClientId(5));
        let (token, clients) = all.decide(Lsn(1), true);
        assert_eq!((token.as_deref(), clients), (Some(&b"a"[..]), vec![ClientId(4), ClientId(5)]));
        assert!(all.get(b"a").is_some());
        let (token, clients) = all.decide(Lsn(2), false);
        assert!(token.is_some() && clients.is_empty() && all.get(b"b").is_none());
    }
}
