//! Keeping tokens: across starts, and beyond the segments in which their groups lie.

use super::super::session::Session;
use super::super::{Engine, Io, dispatch};
use super::tokens::Token;
use crate::change::told;
use crate::once::{Done, Told};
use destage_core::{Access, ClientId, Input, Lsn, Time, WaitFor};
use std::collections::{BTreeMap, HashSet};

/// Most bytes of tokens in one group that is written to keep them.
const GROUP_BYTES_MAX: usize = 256 << 10;
/// With no more segments than these, and twice as many as the tokens take, none need leave the journal.
const SEGMENTS_MIN: u64 = 1;

/// What is under way to keep tokens.
#[derive(Debug, Default)]
pub(in crate::engine) struct Keeping {
    /// Tokens that a later group tells of, which is not durable yet.
    moving: Vec<(Token, Lsn)>,
    /// Writes that the origin has rejected while their clients waited: what moves the watermark past them, once it is durable
    /// that they are given up, and the group that says so.
    given_up: Vec<(Lsn, Io, Option<Lsn>)>,
    /// Who waits for the origin's word on a write of someone else.
    waiting: BTreeMap<Lsn, Vec<ClientId>>,
}

impl Keeping {
    pub(super) fn wait(&mut self, lsn: Lsn, client: ClientId) {
        self.waiting.entry(lsn).or_default().push(client);
    }

    pub(super) fn waited(&mut self, lsn: Lsn) -> Vec<ClientId> {
        self.waiting.remove(&lsn).unwrap_or_default()
    }
}

impl Engine {
    /// A group of the journal at start, decided or not, oldest first: what it tells of commands that were carried out once.
    /// Before all of [`Engine::recover`].
    pub fn recover_told(
        &mut self,
        lsn: Lsn,
        stamp: Time,
        bytes: &[u8],
        given_up: &mut HashSet<Lsn>,
    ) {
        for told in told(bytes) {
            match told {
                Told::Done(done) if done.lsn == Lsn::ZERO => {
                    self.tokens.insert(lsn, &Done { lsn, stamp, ..done });
                }
                Told::Done(done) => self.tokens.insert(lsn, &done),
                Told::GivenUp(lsn) => {
                    self.tokens.give_up(lsn);
                    given_up.insert(lsn);
                }
            }
        }
    }

    /// The tokens are those of the journal.
    pub(in crate::engine) fn recovered_tokens(&mut self) {
        self.decided_once();
        self.tokens.expire(self.now, self.core.decided());
    }

    /// Has a write be given up that the origin rejected while its client waited, before `park` moves the watermark past it: a
    /// start that finds it undecided would apply it, and one that finds it decided would take it for applied.
    pub(in crate::engine) fn give_up_once(&mut self, lsn: Lsn, park: Io) {
        match self.tokens.of_open(lsn) {
            Some(_) => self.keeping.given_up.push((lsn, park, None)),
            None => self.io.push(park),
        }
    }

    /// Writes what is to be written to keep tokens, and lets go of what need not be kept.
    pub(in crate::engine) fn keep_tokens(&mut self) {
        self.journal_given_up();
        if self.tokens.is_empty() {
            return;
        }
        let decided = self.core.decided();
        self.tokens.expire(self.now, decided);
        if !self.keeping.moving.is_empty() || !self.is_worth_carrying() {
            return;
        }
        let Some(upto) = self.journal.due(self.domains.reclaimable(decided).0, self.now.0) else {
            return;
        };
        if self.tokens.first_place().is_some_and(|first| first <= Lsn(upto)) {
            self.carry(Lsn(upto));
        }
    }

    /// Whether most of the journal is something else than tokens. Otherwise writing them anew would make no room, only more
    /// segments that are due.
    fn is_worth_carrying(&self) -> bool {
        let half = self.journal.payload_bytes_max() as u64;
        let segments = self.journal.status().segments as u64;
        segments > SEGMENTS_MIN + self.tokens.bytes() / half
    }

    /// Tells once more of the tokens that groups up to this one tell of: these are about to leave the journal.
    fn carry(&mut self, upto: Lsn) {
        let bytes_max = GROUP_BYTES_MAX.min(self.journal.payload_bytes_max() / 2);
        let lsn = self.core.next_lsn();
        self.writer.clear();
        let mut moving = Vec::new();
        for (token, known) in self.tokens.placed_upto(upto) {
            let done = Done {
                lsn: known.lsn,
                stamp: known.since,
                through: known.through,
                token,
                command: known.command,
                reply: &known.reply,
            };
            self.writer.told(&Told::Done(done));
            moving.push((token.clone(), lsn));
            if self.writer.finish().len() > bytes_max {
                break;
            }
        }
        tracing::debug!(lsn = lsn.0, tokens = moving.len(), "writing tokens of DESTAGE ONCE anew");
        self.keeping.moving = moving;
        self.append_telling();
    }

    /// Appends the group in the writer, which changes nothing.
    fn append_telling(&mut self) {
        self.append_group(&mut Session::default(), &[], Access::Back);
    }

    /// Journals that writes are given up, and has that be durable soon.
    fn journal_given_up(&mut self) {
        for place in 0..self.keeping.given_up.len() {
            if let (lsn, _, None) = self.keeping.given_up[place] {
                self.writer.clear();
                self.writer.told(&Told::GivenUp(lsn));
                let own = self.core.next_lsn();
                self.append_telling();
                self.keeping.given_up[place].2 = Some(own);
                let request = self.request_id(dispatch::PREFETCH_CLIENT);
                let until = WaitFor::Committed;
                self.core.handle(self.now, Input::Wait { request, lsn: own, until });
            }
        }
    }

    /// The journal is durable further than before.
    pub(in crate::engine) fn tokens_committed(&mut self) {
        let committed = self.core.committed();
        if self.keeping.moving.last().is_some_and(|(_, lsn)| *lsn <= committed) {
            for (token, lsn) in std::mem::take(&mut self.keeping.moving) {
                self.tokens.placed(&token, lsn);
            }
        }
        let is_durable =
            |(_, _, own): &mut (Lsn, Io, Option<Lsn>)| own.is_some_and(|own| own <= committed);
        let parks = self.keeping.given_up.extract_if(.., is_durable).map(|(_, park, _)| park);
        self.io.extend(parks);
    }

    /// Lets go of the segments whose groups are decided up to here, and that tell of no token that is kept.
    pub(in crate::engine) fn reclaim(&mut self) {
        let upto = self.domains.reclaimable(self.core.decided());
        let kept = self.tokens.first_place().map_or(upto, |first| upto.min(Lsn(first.0 - 1)));
        self.journal.reclaim(kept.0, self.now.0);
    }
}
