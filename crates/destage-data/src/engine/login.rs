//! Who a client is: AUTH and HELLO with the password of the settings, or with one of a user of `--users`.
//!
//! The hash of a user's password takes long to look at, so another thread does that, and the client waits. A password that
//! was right once is known again without it, by a quick hash that is kept in memory alone, with a key of this process: a pool
//! of connections that comes back costs one look. Wrong ones cost one each, and so their number is bounded: by the brake that
//! all passwords share ([`destage_runtime::auth`]), and by how many of one address, or network of IPv6, are looked
//! at at a time.
//!
//! When the users are read again, whoever has lost a right is disconnected: nothing that it has begun goes on.

use super::handshake::HelloRest;
use super::session::{Job, Session, Waiting};
use super::{Engine, Io};
use crate::resp::{Code, ReplyError};
use crate::users::{DEFAULT, User, Users};
use destage_core::{ClientId, Input, RequestId, Span};
use destage_runtime::auth::{Peer, Verdict, guess};
use destage_runtime::password_hash::PASSWORD_BYTES_MAX;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Different passwords that are looked at at a time: of one address, and of all.
pub(crate) const LOOKS_OF_ADDRESS_MAX: usize = 8;
pub(crate) const LOOKS_MAX: usize = 256;
/// Passwords that are known again; the oldest are forgotten.
const KNOWN_MAX: usize = 10_000;

pub(crate) const WRONG: ReplyError =
    ReplyError::fixed(Code::WrongPass, "invalid username-password pair or user is disabled.");
pub(crate) const BUSY: ReplyError = ReplyError::fixed(
    Code::Busy,
    "too many different passwords are looked at already: this one was not, try again",
);

/// A user that a connection has logged in as, and the hash of the password by which it has.
#[derive(Clone)]
pub(crate) struct Login {
    pub(super) user: Arc<User>,
    hash: Arc<str>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Whether a client is logged in.
pub(super) enum LoggedIn {
    Now,
    /// It is told once its password was looked at.
    Later,
}

/// A password to be looked at; [`Engine::password_checked`] follows.
pub struct PasswordJob {
    pub(crate) id: u64,
    users: Arc<Users>,
    user: Option<Arc<User>>,
    password: Box<[u8]>,
}

impl PasswordJob {
    /// Which of the user's passwords it is. Takes long.
    pub(crate) fn look(&self) -> Option<usize> {
        self.users.position(self.user.as_deref(), &self.password)
    }
}

impl fmt::Debug for PasswordJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordJob").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A quick hash of a password, or of one with a name.
pub(crate) type Quick = [u8; 32];

/// The users, and who waits to be one.
#[derive(Debug, Default)]
pub(super) struct Logins {
    /// None without `--users`.
    users: Option<Arc<Users>>,
    known: Known,
    looks: HashMap<u64, Look>,
    next: u64,
}

/// A password that is looked at, for all who have sent it.
#[derive(Debug)]
struct Look {
    sent: Quick,
    user: Option<Arc<User>>,
    /// The quick hashes with each of the user's own.
    quick: Vec<Quick>,
    from: Option<IpAddr>,
    guess: u64,
    asked_by: Vec<RequestId>,
}

/// Passwords that were right.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Makes the quick hashes those of this process.
    key: [u8; 32],
    all: HashSet<Quick>,
    order: VecDeque<Quick>,
}

impl Known {
    /// None yet; the key is one that nobody else has.
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self { key, ..Self::default() }
    }

    pub(crate) fn quick(&self, what: &[u8], password: &[u8]) -> Quick {
        let mut hash = Sha256::new();
        hash.update(self.key);
        hash.update((what.len() as u64).to_le_bytes());
        hash.update(what);
        hash.update(password);
        hash.finalize().into()
    }

    /// The quick hashes of a password with each of the user's own hashes.
    pub(crate) fn quick_of(&self, user: Option<&User>, password: &[u8]) -> Vec<Quick> {
        let hashes = user.into_iter().flat_map(User::passwords);
        hashes.map(|(text, _)| self.quick(text.as_bytes(), password)).collect()
    }

    /// Which of these is known.
    pub(crate) fn position(&self, quick: &[Quick]) -> Option<usize> {
        quick.iter().position(|quick| self.all.contains(quick))
    }

    pub(crate) fn insert(&mut self, quick: Quick) {
        if self.all.insert(quick) {
            self.order.push_back(quick);
            if self.order.len() > KNOWN_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.all.remove(&oldest);
            }
        }
    }
}

impl Logins {
    /// One by its name who may log in.
    fn user(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.users.as_ref()?.get(name).filter(|user| user.is_on())
    }

    /// Has a password be looked at, unless that is under way: the job, if there is a new one.
    fn look(
        &mut self,
        request: RequestId,
        (name, password): (&[u8], &[u8]),
        quick: Vec<Quick>,
        from: Option<IpAddr>,
    ) -> Result<Option<PasswordJob>, ReplyError> {
        let (user, sent) = (self.user(name).cloned(), self.known.quick(name, password));
        let peer = from.map(Peer::of);
        let is_of_peer = |look: &Look| look.from.map(Peer::of) == peer;
        let is_same =
            |look: &&mut Look| look.sent == sent && is_of_peer(look) && look.quick == quick;
        let same = self.looks.values_mut().find(is_same);
        if let Some(look) = same {
            look.asked_by.push(request);
            return Ok(None);
        }
        let of_address = self.looks.values().filter(|look| peer.is_some() && is_of_peer(look));
        if of_address.count() >= LOOKS_OF_ADDRESS_MAX || self.looks.len() >= LOOKS_MAX {
            return Err(BUSY);
        }
        self.next += 1;
        let (guess, asked_by) = (guess(name, password), vec![request]);
        self.looks
            .insert(self.next, Look { sent, user: user.clone(), quick, from, guess, asked_by });
        let users = self.users.clone().unwrap_or_default();
        Ok(Some(PasswordJob { id: self.next, users, user, password: password.into() }))
    }

    /// What a right password makes of whoever has sent it: nothing if the user has lost it meanwhile.
    fn confirm(&mut self, look: &Look, place: usize) -> Option<Login> {
        let asked = look.user.as_ref()?;
        let hash = asked.passwords()[place].0.clone();
        self.known.insert(look.quick[place]);
        let user = self.user(asked.name().as_bytes())?.clone();
        user.passwords().iter().any(|(own, _)| *own == hash).then_some(Login { user, hash })
    }
}

impl Engine {
    /// Whether clients have to say who they are.
    pub(super) fn asks_for_password(&self) -> bool {
        self.config.auth.is_asked_for() || self.sessions.logins().users.is_some()
    }

    /// Whether the user default has a password: that of the settings, or one of the file.
    pub(super) fn has_default_password(&self) -> bool {
        self.config.auth.is_asked_for() || self.sessions.logins().user(DEFAULT.as_bytes()).is_some()
    }

    /// The users of the file, if there is one.
    pub(super) fn users(&self) -> Option<&Arc<Users>> {
        self.sessions.logins().users.as_ref()
    }

    /// Lets the client in if it knows the password; HELLO goes on with `then` if that takes a while.
    ///
    /// # Errors
    /// A message for the client.
    pub(super) fn log_in(
        &mut self,
        client: ClientId,
        session: &mut Session,
        user: &[u8],
        password: &[u8],
        then: Option<&HelloRest>,
    ) -> Result<LoggedIn, ReplyError> {
        let from = session.from.map(|from| from.ip());
        let is_default = user == DEFAULT.as_bytes();
        if self.sessions.logins().users.is_none() || is_default && self.config.auth.is_asked_for() {
            return match self.config.auth.check(self.now, from, !is_default, password) {
                Verdict::Right => {
                    session.authenticate();
                    Ok(LoggedIn::Now)
                }
                Verdict::Wrong => Err(WRONG),
                Verdict::Held(span) => Err(held(span)),
            };
        }
        if let Some(span) = self.config.auth.held(self.now, from) {
            return Err(held(span));
        }
        if password.len() > PASSWORD_BYTES_MAX {
            self.config.auth.was_wrong(self.now, from, guess(user, password));
            return Err(WRONG);
        }
        let found = self.sessions.logins().user(user).cloned();
        let quick = self.sessions.logins().known.quick_of(found.as_deref(), password);
        let known = self.sessions.logins().known.position(&quick);
        if let (Some(place), Some(user)) = (known, found) {
            let hash = user.passwords()[place].0.clone();
            session.log_in(Login { user, hash });
            return Ok(LoggedIn::Now);
        }
        let request = self.asking.request_id(client.0);
        if let Some(job) =
            self.sessions.logins_mut().look(request, (user, password), quick, from)?
        {
            self.jobs.push(Io::CheckPassword(job));
        }
        session.waiting = Some(Waiting::Job { request, job: Job::LogIn(then.cloned()) });
        Ok(LoggedIn::Later)
    }

    /// A password was looked at: who it lets in, if anybody, and the requests that it answers.
    pub(super) fn looked_at(
        &mut self,
        id: u64,
        place: Option<usize>,
    ) -> Option<(Option<Login>, Vec<RequestId>)> {
        let look = self.sessions.logins_mut().looks.remove(&id)?;
        if place.is_none() {
            self.config.auth.was_wrong(self.now, look.from, look.guess);
        }
        let login = place.and_then(|place| self.sessions.logins_mut().confirm(&look, place));
        Some((login, look.asked_by))
    }

    /// The users from now on. Whoever has lost a right, or the password by which it came, is disconnected; how many were. The
    /// first time the key is taken that makes the quick hashes those of this process.
    pub(super) fn take_users(&mut self, users: Arc<Users>, key: [u8; 32]) -> usize {
        if self.sessions.logins().users.is_none() {
            self.sessions.logins_mut().known = Known::new(key);
        }
        let mut turned_out = Vec::new();
        for (client, session) in self.sessions.iter_mut() {
            let Some(login) = &mut session.login else { continue };
            let own = users.get(login.user.name().as_bytes());
            let has_password =
                |user: &User| user.passwords().iter().any(|(hash, _)| *hash == login.hash);
            match own.filter(|user| has_password(user) && user.includes(&login.user)) {
                Some(user) => login.user = user.clone(),
                None => turned_out.push(client),
            }
        }
        self.sessions.logins_mut().users = Some(users);
        for &client in &turned_out {
            self.turn_away(client);
        }
        turned_out.len()
    }

    /// As if the client had sent the user's first password.
    #[cfg(test)]
    pub(super) fn let_in(&mut self, client: ClientId, name: &str) {
        let user =
            self.sessions.logins().user(name.as_bytes()).expect("there is this user").clone();
        let hash = user.passwords()[0].0.clone();
        self.sessions.get_mut(client).expect("it is connected").log_in(Login { user, hash });
    }

    /// Disconnects a client: what it waits for is dropped, and nothing of what it has sent is done any more.
    fn turn_away(&mut self, client: ClientId) {
        let Some(mut session) = self.sessions.take(client) else { return };
        if let Some(request) = session.pending_request() {
            self.core.handle(self.now, Input::Cancel { request });
        }
        match &session.waiting {
            Some(Waiting::Derived { name, .. }) => {
                self.derived.leave(client, name);
            }
            Some(Waiting::Lease { .. }) => self.watchers.leave(client),
            _ => {}
        }
        session.multi = None;
        self.unwatch(&mut session);
        self.sessions.turn_away(client, &mut session);
        self.sessions.restore(client, session);
    }
}

pub(crate) fn held(span: Span) -> ReplyError {
    ReplyError::err(format!(
        "too many wrong passwords came from this address: this one was not looked at, try again in {} s",
        span.as_nanos().div_ceil(1_000_000_000)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(logins: &mut Logins, request: u64, password: &str, from: &str) -> Result<bool, ()> {
        let (sent, from) = ((&b"ada"[..], password.as_bytes()), from.parse().ok());
        let job = logins.look(RequestId(request), sent, Vec::new(), from);
        job.map(|job| job.is_some()).map_err(drop)
    }

    #[test]
    fn one_address_has_few_looks_and_a_pool_has_one() {
        let mut logins = Logins::default();
        for request in 0..1_000 {
            assert_eq!(look(&mut logins, request, "right", "192.0.2.1"), Ok(request == 0));
        }
        for guess in 1..LOOKS_OF_ADDRESS_MAX {
            assert_eq!(look(&mut logins, 0, &guess.to_string(), "192.0.2.1"), Ok(true));
        }
        assert_eq!(look(&mut logins, 0, "one more", "192.0.2.1"), Err(()));
        assert_eq!(
            look(&mut logins, 0, "right", "192.0.2.1"),
            Ok(false),
            "it is looked at already"
        );
        assert_eq!(look(&mut logins, 0, "right", "192.0.2.2"), Ok(true), "others go on");
        assert_eq!(logins.looks[&1].asked_by.len(), 1_001);
    }

    #[test]
    fn all_addresses_of_a_network_have_few_looks_together() {
        let mut logins = Logins::default();
        for guess in 0..LOOKS_OF_ADDRESS_MAX {
            let from = format!("2001:db8::{guess}");
            assert_eq!(look(&mut logins, 0, &guess.to_string(), &from), Ok(true));
        }
        assert_eq!(look(&mut logins, 0, "one more", "2001:db8::ffff"), Err(()));
        assert_eq!(look(&mut logins, 0, "one more", "2001:db8:0:1::1"), Ok(true), "others go on");
        for guess in 0..LOOKS_OF_ADDRESS_MAX {
            let from = ["192.0.2.1", "::ffff:192.0.2.1"][guess % 2];
            assert_eq!(look(&mut logins, 0, &guess.to_string(), from), Ok(true));
        }
        assert_eq!(look(&mut logins, 0, "one more", "192.0.2.1"), Err(()));
    }

    #[test]
    fn few_passwords_are_known_again_and_those_the_newest() {
        let mut known = Known::default();
        let quick = |number: usize| {
            let mut quick = [0; 32];
            quick[..8].copy_from_slice(&number.to_le_bytes());
            quick
        };
        (0..KNOWN_MAX + 5).for_each(|number| known.insert(quick(number)));
        known.insert(quick(KNOWN_MAX));
        assert_eq!((known.all.len(), known.order.len()), (KNOWN_MAX, KNOWN_MAX));
        assert!(!known.all.contains(&quick(4)) && known.all.contains(&quick(5)));
    }

    #[test]
    fn a_job_does_not_show_its_password() {
        let job =
            PasswordJob { id: 1, users: Arc::default(), user: None, password: (*b"hush").into() };
        let shown = format!("{job:?}");
        let shown = shown + &format!("{:?}", Io::CheckPassword(job));
        assert!(!shown.contains("hush") && !shown.contains("104, 117"), "{shown}");
    }
}
