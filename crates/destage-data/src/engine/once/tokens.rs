//! The tokens of commands that are carried out once, and what each was answered.
//!
//! A token is kept for a time from when its command was journaled, and no shorter than its write is undecided. None is
//! forgotten before: where there is no room, further ones are refused.

use crate::once::{COMMAND_BYTES, Done};
use destage_core::{Lsn, Span, Time};
use destage_runtime::status::OnceReport;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Memory of a token besides its bytes and those of its answer: three entries, and the allocator's share.
const OVERHEAD: usize = 256;

/// A token's name.
pub(super) type Token = Arc<[u8]>;

/// A command that was carried out.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) command: [u8; COMMAND_BYTES],
    /// As RESP3.
    pub(super) reply: Box<[u8]>,
    /// Its group.
    pub(super) lsn: Lsn,
    /// When that was written.
    pub(super) since: Time,
    /// Its client waits for the origin's word.
    pub(super) through: bool,
    /// The oldest group of the journal from which a start would know of it.
    place: Lsn,
}

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Limits {
    pub(in crate::engine) tokens: usize,
    pub(in crate::engine) bytes: u64,
    /// For how long.
    pub(in crate::engine) life: Span,
}

/// All tokens.
#[derive(Debug)]
pub(in crate::engine) struct Tokens {
    limits: Limits,
    known: HashMap<Token, Known>,
    bytes: u64,
    by_age: BTreeSet<(Time, Token)>,
    by_place: BTreeSet<(Lsn, Token)>,
    /// Those whose clients wait for the origin's word.
    open: BTreeMap<Lsn, Token>,
    pub(super) replayed: u64,
    pub(super) refused: u64,
}

impl Tokens {
    pub(in crate::engine) fn new(limits: Limits) -> Self {
        Self {
            limits,
            known: HashMap::new(),
            bytes: 0,
            by_age: BTreeSet::new(),
            by_place: BTreeSet::new(),
            open: BTreeMap::new(),
            replayed: 0,
            refused: 0,
        }
    }

    pub(in crate::engine) fn len(&self) -> usize {
        self.known.len()
    }

    pub(in crate::engine) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(in crate::engine) fn limits(&self) -> Limits {
        self.limits
    }

    /// What there is to see of them.
    pub(in crate::engine) fn report(&self) -> OnceReport {
        OnceReport {
            tokens: self.known.len() as u64,
            tokens_max: self.limits.tokens as u64,
            bytes: self.bytes,
            bytes_max: self.limits.bytes,
            replayed_total: self.replayed,
            refused_total: self.refused,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(super) fn get(&self, token: &[u8]) -> Option<&Known> {
        self.known.get(token)
    }

    /// Whether there is room for one more.
    pub(super) fn has_room(&self, token: &[u8], reply: &[u8]) -> bool {
        let bytes = self.bytes + size(token, reply);
        self.known.len() < self.limits.tokens && bytes <= self.limits.bytes
    }

    /// Notes what the group `place` tells. What it told before about the same token counts no more.
    pub(super) fn insert(&mut self, place: Lsn, done: &Done<'_>) {
        self.remove(done.token);
        let token: Token = done.token.into();
        let known = Known {
            command: done.command,
            reply: done.reply.into(),
            lsn: done.lsn,
            since: done.stamp,
            through: done.through,
            place,
        };
        self.bytes += size(&token, &known.reply);
        self.by_age.insert((known.since, token.clone()));
        self.by_place.insert((place, token.clone()));
        if known.through {
            self.open.insert(known.lsn, token.clone());
        }
        self.known.insert(token, known);
    }

    fn remove(&mut self, token: &[u8]) {
        let Some((token, known)) = self.known.remove_entry(token) else { return };
        self.bytes -= size(&token, &known.reply);
        self.open.remove(&known.lsn);
        self.by_place.remove(&(known.place, token.clone()));
        self.by_age.remove(&(known.since, token));
    }

    /// The token of a write whose client waits for the origin's word.
    pub(super) fn of_open(&self, lsn: Lsn) -> Option<&Token> {
        self.open.get(&lsn)
    }

    /// Takes out a write whose client waited for the origin's word, which was no.
    pub(super) fn give_up(&mut self, lsn: Lsn) {
        if let Some(token) = self.open.get(&lsn).cloned() {
            self.remove(&token);
        }
    }

    /// The origin has taken it.
    pub(super) fn close(&mut self, lsn: Lsn) {
        self.open.remove(&lsn);
    }

    /// The writes whose clients wait for the origin's word.
    pub(super) fn open(&self) -> impl Iterator<Item = Lsn> {
        self.open.keys().copied()
    }

    /// When the oldest one is forgotten.
    pub(super) fn oldest_ends(&self) -> Option<Time> {
        self.by_age.first().map(|(since, _)| *since + self.limits.life)
    }

    /// Forgets what has been kept for long enough. Everything up to `decided` is.
    pub(super) fn expire(&mut self, now: Time, decided: Lsn) {
        while let Some((since, token)) = self.by_age.first()
            && *since + self.limits.life <= now
            && self.known[token].lsn <= decided
        {
            let token = token.clone();
            self.remove(&token);
        }
    }

    /// From this group on, a start would know of all of them.
    pub(super) fn first_place(&self) -> Option<Lsn> {
        self.by_place.first().map(|(place, _)| *place)
    }

    /// Those of which groups up to this one tell.
    pub(super) fn placed_upto(&self, upto: Lsn) -> impl Iterator<Item = (&Token, &Known)> {
        let placed = self.by_place.iter().take_while(move |(place, _)| *place <= upto);
        placed.map(|(_, token)| (token, &self.known[token]))
    }

    /// A later group tells of it, durably.
    pub(super) fn placed(&mut self, token: &Token, place: Lsn) {
        let Some(known) = self.known.get_mut(token) else { return };
        let before = known.place;
        known.place = place.max(before);
        self.by_place.remove(&(before, token.clone()));
        self.by_place.insert((known.place, token.clone()));
    }
}

fn size(token: &[u8], reply: &[u8]) -> u64 {
    (token.len() + reply.len() + OVERHEAD) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Span = Span::from_secs(10);

    fn tokens(count: usize, bytes: u64) -> Tokens {
        Tokens::new(Limits { tokens: count, bytes, life: LIFE })
    }

    fn done(token: &[u8], lsn: u64, through: bool) -> Done<'_> {
        let (lsn, stamp) = (Lsn(lsn), Time::from_secs(lsn));
        Done { lsn, stamp, through, token, command: [7; COMMAND_BYTES], reply: b":1\r\n" }
    }

    fn insert(tokens: &mut Tokens, token: &[u8], lsn: u64) {
        tokens.insert(Lsn(lsn), &done(token, lsn, false));
    }

    #[test]
    fn live_tokens_are_never_forgotten_and_full_is_full() {
        let mut two = tokens(2, 1 << 20);
        insert(&mut two, b"a", 1);
        insert(&mut two, b"b", 2);
        assert!(!two.has_room(b"c", b""));
        two.expire(Time::from_secs(10), Lsn(9));
        assert_eq!(two.len(), 2);
        // Its time is over, and its write is undecided.
        two.expire(Time::from_secs(11), Lsn::ZERO);
        assert_eq!(two.len(), 2);
        two.expire(Time::from_secs(11), Lsn(9));
        assert!(two.get(b"a").is_none() && two.get(b"b").is_some() && two.has_room(b"c", b""));

        let mut small = tokens(9, 2 * OVERHEAD as u64 + 10);
        insert(&mut small, b"a", 1);
        assert!(small.has_room(b"b", b":1\r\n") && !small.has_room(b"bb", b":1\r\n"));
        small.expire(Time::from_secs(99), Lsn(9));
        assert_eq!((small.bytes(), small.len()), (0, 0));
        assert!(small.by_age.is_empty() && small.by_place.is_empty());
    }

    #[test]
    fn a_token_lies_where_it_was_last_told_of() {
        let mut all = tokens(9, 1 << 20);
        insert(&mut all, b"a", 1);
        insert(&mut all, b"b", 2);
        insert(&mut all, b"c", 3);
        assert_eq!(all.first_place(), Some(Lsn(1)));
        let early: Vec<Token> = all.placed_upto(Lsn(2)).map(|(token, _)| token.clone()).collect();
        assert_eq!(early.len(), 2);
        early.iter().for_each(|token| all.placed(token, Lsn(8)));
        assert_eq!(all.first_place(), Some(Lsn(3)));
        assert_eq!(all.placed_upto(Lsn(8)).count(), 3);
        assert_eq!(all.get(b"a").map(|known| known.lsn), Some(Lsn(1)));
    }

    #[test]
    fn what_the_origin_refused_is_free_again_and_what_it_took_stays() {
        let mut all = tokens(9, 1 << 20);
        all.insert(Lsn(1), &done(b"a", 1, true));
        all.insert(Lsn(2), &done(b"b", 2, true));
        assert_eq!(all.of_open(Lsn(1)).map(|token| &token[..]), Some(&b"a"[..]));
        all.give_up(Lsn(1));
        assert!(all.get(b"a").is_none());
        assert!(all.open().eq([Lsn(2)]));
        all.close(Lsn(2));
        assert!(all.of_open(Lsn(2)).is_none() && all.get(b"b").is_some());
        all.give_up(Lsn(2));
        assert!(all.get(b"b").is_some());
    }
}
