//! Leases: rights of sessions to what they have read (S) and to what they write (X), for a limited time.
//!
//! A session asks for an S lease before it reads a key and for an X lease before it writes one. Nobody ever waits: a request
//! that does not fit is refused, and its session starts anew. An X lease voids the S leases of others, so that writers do
//! not starve. A session whose leases are all in force is *validated*; from then on they are golden, and nobody voids them
//! before it commits. So sessions take effect in the order of their commits, and what each has read is still true then.
//!
//! This owns who holds what. Values stay with the driver, which drops a key's cached value when it is told that the X lease
//! on it ended without a commit. It survives holders that stop at any moment: their leases end after their lifetime, and
//! their [`Token`] shuts them out should they come back. The driver calls [`Leases::expire`] before anything else whenever
//! time has passed.
//!
//! *Source:* Ghandeharizadeh and Nguyen, write-back with cache augmented data stores, section 2 and table 1.

use crate::time::{Span, Time};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// A session's fencing token. Later sessions have higher ones; none is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Why a request for a lease, a validation or a commit was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Another session holds a lease that goes before: end the session and try again after a while.
    Conflict,
    /// Another session has taken the right to write what this one had read: end the session and try again.
    Voided,
    /// The session has ended, or its time is up: whatever it did is undone already.
    Fenced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum State {
    /// May ask for leases.
    Open,
    /// One of its S leases was voided.
    Void,
    /// Its leases are golden.
    Validated,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Session<K> {
    state: State,
    /// From then on it is fenced.
    deadline: Time,
    keys: BTreeSet<K>,
}

/// Who holds a key. At least one does.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Holders {
    shared: BTreeSet<Token>,
    exclusive: Option<Token>,
}

/// The leases of all sessions on keys of one kind.
///
/// ```
/// use destage_core::lease::{Denied, Leases};
/// use destage_core::{Span, Time};
///
/// let (now, lifetime) = (Time::from_secs(1), Span::from_millis(500));
/// let mut leases = Leases::default();
/// let (reader, writer) = (leases.begin(now, lifetime), leases.begin(now, lifetime));
/// assert_eq!(leases.share(now, reader, &"stock"), Ok(()));
/// assert_eq!(leases.exclude(now, writer, &"stock"), Ok(()));
/// // What the reader has read is about to change.
/// assert_eq!(leases.validate(now, reader), Err(Denied::Voided));
/// assert_eq!(leases.commit(now, writer), Ok(()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leases<K> {
    newest: Token,
    sessions: BTreeMap<Token, Session<K>>,
    keys: BTreeMap<K, Holders>,
    /// When the sessions' time is up; those whose time never is are not listed.
    deadlines: BTreeSet<(Time, Token)>,
}

impl<K> Default for Leases<K> {
    fn default() -> Self {
        Self {
            newest: Token(0),
            sessions: BTreeMap::new(),
            keys: BTreeMap::new(),
            deadlines: BTreeSet::new(),
        }
    }
}

impl<K: Ord + Clone> Leases<K> {
    /// Begins a session. *Units:* its leases end `lifetime` nanoseconds after `now`; with [`Span::MAX`] never.
    pub fn begin(&mut self, now: Time, lifetime: Span) -> Token {
        self.newest = Token(self.newest.0 + 1);
        let token = self.newest;
        let deadline = now + lifetime;
        self.sessions
            .insert(token, Session { state: State::Open, deadline, keys: BTreeSet::new() });
        if deadline < Time(u64::MAX) {
            self.deadlines.insert((deadline, token));
        }
        token
    }

    /// Grants an S lease: the session may read the key.
    ///
    /// # Errors
    /// Another session holds the X lease; or the session is void or fenced.
    pub fn share(&mut self, now: Time, token: Token, key: &K) -> Result<(), Denied> {
        self.check(now, token)?;
        if self.exclusive_of_another(token, key).is_some() {
            return Err(Denied::Conflict);
        }
        self.keys.entry(key.clone()).or_default().shared.insert(token);
        self.note(token, key);
        Ok(())
    }

    /// Grants an X lease: the session alone may read and write the key. The S leases of others are void.
    ///
    /// # Errors
    /// Another session holds the X lease, or a golden S lease; or the session is void or fenced.
    pub fn exclude(&mut self, now: Time, token: Token, key: &K) -> Result<(), Denied> {
        self.check(now, token)?;
        if self.exclusive_of_another(token, key).is_some() {
            return Err(Denied::Conflict);
        }
        self.void_shared(key, Some(token))?;
        self.keys.entry(key.clone()).or_default().exclusive = Some(token);
        self.note(token, key);
        Ok(())
    }

    /// A write that is no session's, done at once: as an X lease that is granted and committed in one step. The S leases of
    /// all sessions on the key are void.
    ///
    /// # Errors
    /// A session holds the X lease or a golden S lease.
    pub fn write(&mut self, key: &K) -> Result<(), Denied> {
        match self.keys.get(key) {
            None => Ok(()),
            Some(Holders { exclusive: Some(_), .. }) => Err(Denied::Conflict),
            Some(_) => self.void_shared(key, None),
        }
    }

    /// Whether everything that the session has read is still so, and its time is not up. A value that was fetched for a
    /// session may be kept only if this holds once it is here.
    ///
    /// # Errors
    /// The session is void or fenced.
    pub fn check(&self, now: Time, token: Token) -> Result<(), Denied> {
        match self.sessions.get(&token) {
            None => Err(Denied::Fenced),
            Some(session) if session.deadline <= now => Err(Denied::Fenced),
            Some(session) if session.state == State::Void => Err(Denied::Voided),
            Some(_) => Ok(()),
        }
    }

    /// Makes the session's leases golden: until it ends or its time is up, nobody voids them. A further lease takes that
    /// back.
    ///
    /// # Errors
    /// The session is void or fenced.
    pub fn validate(&mut self, now: Time, token: Token) -> Result<(), Denied> {
        self.check(now, token)?;
        self.set_state(token, State::Validated);
        Ok(())
    }

    /// Ends a session whose changes take effect with this very step of the driver; a session that has not been validated is
    /// so now. If it is refused, nothing may take effect.
    ///
    /// # Errors
    /// The session is void or fenced.
    pub fn commit(&mut self, now: Time, token: Token) -> Result<(), Denied> {
        self.check(now, token)?;
        self.end(token);
        Ok(())
    }

    /// Ends a session without effect. The keys on which it held X leases are returned: their cached values may show what it
    /// did, and must be dropped.
    pub fn abort(&mut self, token: Token) -> Vec<K> {
        self.end(token)
    }

    /// Ends all sessions whose time is up. As for [`Leases::abort`], the cached values of the keys returned must be dropped.
    pub fn expire(&mut self, now: Time) -> Vec<K> {
        let mut keys = Vec::new();
        while let Some(&(deadline, token)) = self.deadlines.first()
            && deadline <= now
        {
            keys.append(&mut self.end(token));
        }
        keys
    }

    /// When a session's time is up, if it has not ended before.
    pub fn deadline(&self, token: Token) -> Option<Time> {
        self.sessions.get(&token).map(|session| session.deadline)
    }

    /// When to call [`Leases::expire`] at the latest.
    pub fn next_timeout(&self) -> Option<Time> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// The holder of the X lease.
    pub fn exclusive(&self, key: &K) -> Option<Token> {
        self.keys.get(key)?.exclusive
    }

    /// The holders of S leases, by rising token.
    pub fn shared(&self, key: &K) -> impl Iterator<Item = Token> {
        self.keys.get(key).into_iter().flat_map(|holders| holders.shared.iter().copied())
    }

    /// The keys on which the session holds leases, or held S leases that are void by now.
    pub fn keys(&self, token: Token) -> impl ExactSizeIterator<Item = &K> {
        self.sessions.get(&token).map(|session| session.keys.iter()).unwrap_or_default()
    }

    /// The keys on which anyone holds a lease.
    pub fn held(&self) -> impl Iterator<Item = &K> {
        self.keys.keys()
    }

    /// Whether nobody holds anything.
    pub fn is_free(&self) -> bool {
        self.keys.is_empty()
    }

    fn exclusive_of_another(&self, token: Token, key: &K) -> Option<Token> {
        self.exclusive(key).filter(|&holder| holder != token)
    }

    /// Voids the S leases on a key, but for those of `except`. None is if one of them is golden.
    fn void_shared(&mut self, key: &K, except: Option<Token>) -> Result<(), Denied> {
        let Some(holders) = self.keys.get_mut(key) else { return Ok(()) };
        let is_other = |holder: &Token| Some(*holder) != except;
        let sessions = &mut self.sessions;
        let is_golden = |holder: &Token| {
            sessions.get(holder).is_some_and(|session| session.state == State::Validated)
        };
        if holders.shared.iter().filter(|holder| is_other(holder)).any(is_golden) {
            return Err(Denied::Conflict);
        }
        for holder in holders.shared.iter().filter(|holder| is_other(holder)) {
            if let Some(session) = sessions.get_mut(holder) {
                session.state = State::Void;
            }
        }
        holders.shared.retain(|holder| !is_other(holder));
        self.forget_unheld(key);
        Ok(())
    }

    fn note(&mut self, token: Token, key: &K) {
        self.set_state(token, State::Open);
        if let Some(session) = self.sessions.get_mut(&token)
            && !session.keys.contains(key)
        {
            session.keys.insert(key.clone());
        }
    }

    fn set_state(&mut self, token: Token, state: State) {
        if let Some(session) = self.sessions.get_mut(&token) {
            session.state = state;
        }
    }

    /// Releases everything; the keys on which it held X leases are returned.
    fn end(&mut self, token: Token) -> Vec<K> {
        let Some(session) = self.sessions.remove(&token) else { return Vec::new() };
        self.deadlines.remove(&(session.deadline, token));
        let mut written = Vec::new();
        for key in session.keys {
            // Where its S lease was void, others may hold the key, or nobody.
            let Some(holders) = self.keys.get_mut(&key) else { continue };
            holders.shared.remove(&token);
            let is_written = holders.exclusive == Some(token);
            if is_written {
                holders.exclusive = None;
            }
            self.forget_unheld(&key);
            if is_written {
                written.push(key);
            }
        }
        written
    }

    fn forget_unheld(&mut self, key: &K) {
        let is_held = |holders: &Holders| holders.exclusive.is_some() || !holders.shared.is_empty();
        if !self.keys.get(key).is_some_and(is_held) {
            self.keys.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const LIFETIME: Span = Span::from_millis(300);

    fn at(ms: u64) -> Time {
        Time::from_secs(1) + Span::from_millis(ms)
    }

    fn two() -> (Leases<u8>, Token, Token) {
        let mut leases = Leases::default();
        let (first, second) = (leases.begin(at(0), LIFETIME), leases.begin(at(0), LIFETIME));
        assert!(first < second);
        (leases, first, second)
    }

    #[test]
    fn table_1_of_the_paper() {
        let (mut leases, first, second) = two();
        assert_eq!(leases.share(at(0), first, &1), Ok(()));
        assert_eq!(leases.share(at(0), second, &1), Ok(()), "S beside S");
        assert_eq!(leases.exclude(at(0), first, &1), Ok(()), "X voids S");
        assert_eq!(
            leases.share(at(0), second, &2),
            Err(Denied::Voided),
            "told at its next request"
        );
        let third = leases.begin(at(0), LIFETIME);
        assert_eq!(leases.share(at(0), third, &1), Err(Denied::Conflict), "S beside X");
        assert_eq!(leases.exclude(at(0), third, &1), Err(Denied::Conflict), "X beside X");
        assert_eq!(leases.check(at(0), third), Ok(()), "a refusal takes nothing away");
        assert_eq!(leases.share(at(0), first, &1), Ok(()), "its own X");
    }

    #[test]
    fn golden_leases_are_not_voided_until_their_session_ends() {
        let (mut leases, reader, writer) = two();
        leases.share(at(0), reader, &1).unwrap();
        leases.validate(at(0), reader).unwrap();
        assert_eq!(leases.exclude(at(0), writer, &1), Err(Denied::Conflict));
        assert_eq!(leases.write(&1), Err(Denied::Conflict));
        assert_eq!(leases.commit(at(0), reader), Ok(()));
        assert_eq!(leases.exclude(at(0), writer, &1), Ok(()));
    }

    #[test]
    fn a_further_lease_takes_the_validation_back() {
        let (mut leases, reader, writer) = two();
        leases.share(at(0), reader, &1).unwrap();
        leases.validate(at(0), reader).unwrap();
        leases.share(at(0), reader, &2).unwrap();
        assert_eq!(leases.exclude(at(0), writer, &1), Ok(()));
        assert_eq!(leases.commit(at(0), reader), Err(Denied::Voided));
    }

    #[test]
    fn a_late_holder_is_fenced_and_what_it_wrote_is_named() {
        let (mut leases, late, _) = two();
        leases.share(at(0), late, &1).unwrap();
        leases.exclude(at(0), late, &2).unwrap();
        assert_eq!(leases.next_timeout(), Some(at(300)));
        assert_eq!(leases.commit(at(300), late), Err(Denied::Fenced), "also before it is expired");
        assert_eq!(leases.expire(at(299)), vec![]);
        assert_eq!(leases.expire(at(300)), vec![2]);
        assert_eq!((leases.is_free(), leases.next_timeout()), (true, None));
        let next = leases.begin(at(300), LIFETIME);
        leases.exclude(at(300), next, &2).unwrap();
        assert_eq!(leases.share(at(300), late, &1), Err(Denied::Fenced));
        assert_eq!(leases.abort(late), vec![], "the new holder's lease is not ended");
        assert_eq!(leases.exclusive(&2), Some(next));
    }

    #[test]
    fn a_write_at_once_voids_every_session_that_has_read_the_key() {
        let (mut leases, first, second) = two();
        leases.share(at(0), first, &1).unwrap();
        leases.share(at(0), second, &2).unwrap();
        assert_eq!(leases.write(&1), Ok(()));
        assert_eq!(leases.check(at(0), first), Err(Denied::Voided));
        assert_eq!(leases.check(at(0), second), Ok(()));
        leases.exclude(at(0), second, &3).unwrap();
        assert_eq!(leases.write(&3), Err(Denied::Conflict));
    }

    #[test]
    fn sessions_without_end_never_expire() {
        let mut leases = Leases::default();
        let token = leases.begin(at(0), Span::MAX);
        leases.share(at(0), token, &1).unwrap();
        assert_eq!(leases.next_timeout(), None);
        assert_eq!(leases.expire(Time(u64::MAX - 1)), vec![]);
        assert_eq!(leases.check(Time(u64::MAX - 1), token), Ok(()));
        assert_eq!(leases.keys(token).collect::<Vec<_>>(), [&1]);
    }
}
