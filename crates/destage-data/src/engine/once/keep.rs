//! Keeping tokens: across starts, and beyond the segments in which their groups lie.

use super::super::asking::PREFETCH_CLIENT;
use super::super::session::Session;
use super::super::{Engine, Io};
use crate::change::token_records;
use crate::once::{Done, TokenRecord};
use destage_core::{Access, Input, Lsn, Time, WaitFor};
use std::collections::HashSet;

/// Most bytes of tokens in one group that is written to keep them.
const GROUP_BYTES_MAX: usize = 256 << 10;

impl Engine {
    /// A group of the journal at start, decided or not, oldest first: what it tells of commands that were carried out once.
    /// Before all of [`Engine::recover`].
    pub fn recover_once(
        &mut self,
        lsn: Lsn,
        stamp: Time,
        bytes: &[u8],
        given_up: &mut HashSet<Lsn>,
    ) {
        for told in token_records(bytes) {
            match told {
                TokenRecord::Done(done) if done.lsn == Lsn::ZERO => {
                    self.once.insert(lsn, &Done { lsn, stamp, ..done });
                }
                TokenRecord::Done(done) => self.once.insert(lsn, &done),
                TokenRecord::GivenUp(lsn) => {
                    self.once.give_up(lsn);
                    given_up.insert(lsn);
                }
            }
        }
    }

    /// The tokens are those of the journal.
    pub(in crate::engine) fn recovered_tokens(&mut self) {
        self.decide_tokens();
        self.once.expire(self.now, self.core.decided());
    }

    /// Has a write be given up that the origin rejected while its client waited, before `park` moves the watermark past it: a
    /// start that finds it undecided would apply it, and one that finds it decided would take it for applied.
    pub(in crate::engine) fn give_up_once(&mut self, lsn: Lsn, park: Io) {
        if let Some(park) = self.once.begin_give_up(lsn, park) {
            self.jobs.push(park);
        }
    }

    /// Writes what is to be written to keep tokens, and lets go of what need not be kept.
    pub(in crate::engine) fn keep_tokens(&mut self) {
        self.journal_given_up();
        if self.once.is_empty() {
            return;
        }
        let decided = self.core.decided();
        self.once.expire(self.now, decided);
        let segments = self.log.status().segments as u64;
        if !self.once.may_carry(segments, self.log.payload_bytes_max() as u64) {
            return;
        }
        let Some(upto) = self.log.due(self.domains.watermarks().reclaimable(decided), self.now)
        else {
            return;
        };
        if self.once.first_place().is_some_and(|first| first <= upto) {
            self.carry(upto);
        }
    }

    /// Tells once more of the tokens that groups up to this one tell of: these are about to leave the journal.
    fn carry(&mut self, upto: Lsn) {
        let bytes_max = GROUP_BYTES_MAX.min(self.log.payload_bytes_max() / 2);
        let lsn = self.core.next_lsn();
        let writer = self.log.begin();
        let tokens = self.once.carry(upto, lsn, |told| {
            writer.token_record(told);
            writer.finish().len() <= bytes_max
        });
        tracing::debug!(lsn = lsn.0, tokens, "writing tokens of DESTAGE ONCE anew");
        self.append_once_group();
    }

    /// Appends the group that is written, which changes nothing.
    fn append_once_group(&mut self) {
        self.append_group(&mut Session::default(), &[], Access::Back);
    }

    /// Journals that writes are given up, and has that be durable soon.
    fn journal_given_up(&mut self) {
        while let Some(lsn) = self.once.next_unjournaled() {
            self.log.begin().token_record(&TokenRecord::GivenUp(lsn));
            let own = self.core.next_lsn();
            self.append_once_group();
            self.once.journaled_by(lsn, own);
            let request = self.asking.request_id(PREFETCH_CLIENT);
            let until = WaitFor::Committed;
            self.core.handle(self.now, Input::Wait { request, lsn: own, until });
        }
    }

    /// The journal is durable further than before, or as good as that: whoever starts finds what it tells.
    pub(in crate::engine) fn tokens_committed(&mut self) {
        for park in self.once.committed(self.core.secured()) {
            self.jobs.push(park);
        }
    }
}
