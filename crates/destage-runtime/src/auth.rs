//! Who knows the password, and a brake for those who guess it: the clients' connections and the admin port have one between them.
//!
//! An address that has sent [`FREE`] different wrong passwords is not listened to for a while after each further one, which
//! doubles up to [`HELD_MAX`]. What it sends meanwhile is refused unread, so that no number of connections speeds up its
//! guessing. Others are never held up. What is forgotten: an address that has been quiet for [`FORGOTTEN_AFTER`], and beyond
//! [`PEERS_MAX`] the one that has been quiet for longest. Sockets in the file system have no brake, as only the user who runs
//! the server can connect to them. Time comes as an argument.

use crate::status::ClientsReport;
use destage_core::{Span, Time};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard};

/// Different wrong passwords from one address before it is held up.
const FREE: u32 = 10;
/// How long it is held up after the next one.
const HELD_FIRST: Span = Span::from_secs(1);
/// How long at most: somebody at the same address who knows the password waits no longer either.
const HELD_MAX: Span = Span::from_secs(16);
/// An address that sends no further wrong password for so long starts anew.
const FORGOTTEN_AFTER: Span = Span::from_secs(600);
/// Addresses that are remembered.
const PEERS_MAX: usize = 4_096;
/// Wrong passwords of an address that are known when they come again: a client with a wrong setting sends the same one over
/// and over, which is no guess, and must not hold up its neighbours.
const KNOWN: usize = 4;
/// The log tells of wrong passwords no more often than this,
const TOLD_EVERY: Span = Span::from_secs(10);
/// of so many addresses by name.
const TOLD_PEERS_MAX: usize = 16;

/// The password, and who has sent wrong ones. Not shown by `Debug`.
pub struct Auth {
    password: Option<String>,
    tries: Mutex<Tries>,
}

/// What became of a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the right one.
    Right,
    /// It is not.
    Wrong,
    /// It was not looked at, nor will another one from this address be for so long.
    Held(Span),
}

/// Wrong passwords so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Passwords that were wrong.
    pub wrong: u64,
    /// Passwords that were not looked at.
    pub held: u64,
}

#[derive(Debug, Default)]
struct Tries {
    peers: BTreeMap<Peer, Guesses>,
    failures: Failures,
    /// Wrong passwords that the log has not told of, and those of further addresses.
    untold: BTreeMap<Option<Peer>, u64>,
    untold_others: u64,
    told: Option<Time>,
}

/// Where passwords come from. Whoever has an address of IPv6 has all 2^64 of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// An address of IPv4, also one that is mapped into IPv6.
    V4(Ipv4Addr),
    /// A network of IPv6: the first 64 bits.
    V6([u16; 4]),
}

#[derive(Clone, Copy, Debug)]
struct Guesses {
    count: u32,
    held_until: Time,
    last: Time,
    /// Hashes of the latest wrong ones.
    known: [u64; KNOWN],
}

impl Auth {
    /// Asks for this password, or for none.
    pub fn new(password: Option<String>) -> Self {
        Self { password, tries: Mutex::default() }
    }

    /// Whether a password is asked for.
    pub fn is_asked_for(&self) -> bool {
        self.password.is_some()
    }

    /// Looks at a password that somebody has sent from this address, `None` for a socket in the file system. One that belongs to
    /// `another_user` is wrong.
    pub fn check(
        &self,
        now: Time,
        from: Option<IpAddr>,
        another_user: bool,
        given: &[u8],
    ) -> Verdict {
        let Some(password) = &self.password else {
            return if another_user { Verdict::Wrong } else { Verdict::Right };
        };
        if let Some(held) = self.held(now, from) {
            return Verdict::Held(held);
        }
        if same(given, password.as_bytes()) && !another_user {
            return Verdict::Right;
        }
        let user: &[u8] = if another_user { b"another" } else { b"default" };
        self.was_wrong(now, from, guess(user, given));
        Verdict::Wrong
    }

    /// For how long no password from this address is looked at, if it is held up: counts one that was sent all the same.
    pub fn held(&self, now: Time, from: Option<IpAddr>) -> Option<Span> {
        let mut tries = self.tries();
        let held = tries.held(now, Peer::of(from?))?;
        tries.failures.held += 1;
        Some(held)
    }

    /// A password from this address was wrong, which others have looked at; [`guess`] tells it from others.
    pub fn was_wrong(&self, now: Time, from: Option<IpAddr>, guess: u64) {
        let mut tries = self.tries();
        tries.failed(now, from.map(Peer::of), guess);
        tries.tell(now);
    }

    /// Tells the log of wrong passwords if it is time to. Call it every now and then.
    pub fn tell(&self, now: Time) {
        let mut tries = self.tries();
        if !tries.untold.is_empty() {
            tries.tell(now);
        }
    }

    /// What has been counted.
    pub fn failures(&self) -> Failures {
        self.tries().failures
    }

    fn tries(&self) -> MutexGuard<'_, Tries> {
        // A panic elsewhere leaves numbers that are good enough.
        self.tries.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").field("is_asked_for", &self.is_asked_for()).finish_non_exhaustive()
    }
}

impl Tries {
    /// For how long this address is held up.
    fn held(&self, now: Time, peer: Peer) -> Option<Span> {
        let held = self.peers.get(&peer)?.held_until.since(now);
        (held > Span::ZERO).then_some(held)
    }

    fn failed(&mut self, now: Time, peer: Option<Peer>, hash: u64) {
        self.failures.wrong += 1;
        if self.untold.len() < TOLD_PEERS_MAX || self.untold.contains_key(&peer) {
            *self.untold.entry(peer).or_default() += 1;
        } else {
            self.untold_others += 1;
        }
        let Some(peer) = peer else { return };
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&peer) {
            let quietest = self.peers.iter().min_by_key(|(_, guesses)| guesses.last);
            let quietest = *quietest.expect("there are many").0;
            self.peers.remove(&quietest);
        }
        self.peers.entry(peer).or_insert_with(|| Guesses::none(now)).add(now, hash);
    }

    fn tell(&mut self, now: Time) {
        let is_early = self.told.is_some_and(|told| now.since(told) < TOLD_EVERY);
        if self.untold.is_empty() || is_early {
            return;
        }
        self.told = Some(now);
        for (peer, wrong) in std::mem::take(&mut self.untold) {
            let address = peer.map_or_else(|| "a socket file".into(), |peer| peer.to_string());
            tracing::warn!(%address, wrong, "wrong passwords were sent");
        }
        let others = std::mem::take(&mut self.untold_others);
        if others > 0 {
            tracing::warn!(wrong = others, "wrong passwords were sent from further addresses");
        }
    }
}

impl Guesses {
    fn none(now: Time) -> Self {
        Self { count: 0, held_until: Time::ZERO, last: now, known: [0; KNOWN] }
    }

    fn add(&mut self, now: Time, hash: u64) {
        if now.since(self.last) >= FORGOTTEN_AFTER {
            *self = Self::none(now);
        }
        self.last = now;
        if self.known.contains(&hash) {
            return;
        }
        self.known.rotate_right(1);
        self.known[0] = hash;
        self.count = self.count.saturating_add(1);
        if let Some(beyond) = self.count.checked_sub(FREE + 1) {
            let doubled = HELD_FIRST.as_nanos().saturating_mul(1 << beyond.min(30));
            self.held_until = now + Span::from_nanos(doubled).min(HELD_MAX);
        }
    }
}

impl Peer {
    /// Whom an address belongs to.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(address) => address.fmt(f),
            &Self::V6([a, b, c, d]) => {
                write!(f, "{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
        }
    }
}

/// What a try is told from others by.
pub fn guess(user: &[u8], password: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (user, password).hash(&mut hasher);
    hasher.finish()
}

/// Compares in a time that depends on the length only.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (x, y)| differ | (x ^ y)) == 0
}

impl ClientsReport {
    /// Adds what has become of passwords.
    pub fn set_auth(&mut self, auth: &Auth) {
        let failures = auth.failures();
        self.auth_failures_total = failures.wrong;
        self.auth_held_total = failures.held;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Held, Right, Wrong};

    const HERE: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    const THERE: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)));

    fn auth() -> Auth {
        Auth::new(Some("secret".into()))
    }

    fn at(seconds: u64) -> Time {
        Time::from_secs(1_000 + seconds)
    }

    /// Sends that many different wrong ones.
    fn guess(auth: &Auth, now: Time, from: Option<IpAddr>, count: u32) -> Verdict {
        let mut last = Right;
        for number in 0..count {
            last = auth.check(now, from, false, format!("{now:?} {number}").as_bytes());
        }
        last
    }

    #[test]
    fn a_guesser_is_held_up_for_longer_and_longer_and_nobody_else_is() {
        let auth = auth();
        assert_eq!(guess(&auth, at(0), HERE, FREE + 1), Wrong);
        let mut now = at(0);
        for held in [1, 2, 4, 8, 16, 16] {
            let held = Span::from_secs(held);
            assert_eq!(auth.check(now, HERE, false, b"secret"), Held(held));
            assert_eq!(auth.check(now, THERE, false, b"secret"), Right);
            assert_eq!(auth.check(now, None, false, b"secret"), Right);
            now = now + held;
            assert_eq!(auth.check(now, HERE, false, b"secret"), Right);
            assert_eq!(guess(&auth, now, HERE, 1), Wrong);
        }
        assert_eq!(auth.failures(), Failures { wrong: u64::from(FREE) + 7, held: 6 });
        let later = now + FORGOTTEN_AFTER;
        assert_eq!(guess(&auth, later, HERE, FREE), Wrong);
        assert_eq!(auth.check(later, HERE, false, b"secret"), Right);
    }

    #[test]
    fn the_same_wrong_password_again_is_no_guess() {
        let auth = auth();
        for _ in 0..1_000 {
            for wrong in ["old", "older", "oldest"] {
                assert_eq!(auth.check(at(0), HERE, false, wrong.as_bytes()), Wrong);
            }
        }
        assert_eq!(auth.check(at(0), HERE, false, b"secret"), Right);
        assert_eq!(auth.check(at(0), HERE, true, b"secret"), Wrong, "another user's");
        assert_eq!(auth.failures(), Failures { wrong: 3_001, held: 0 });
    }

    #[test]
    fn all_addresses_of_a_network_are_one_and_a_socket_file_is_never_held_up() {
        let auth = auth();
        let address = |text: &str| Some(text.parse().unwrap());
        guess(&auth, at(0), address("2001:db8::1"), FREE);
        guess(&auth, at(1), address("2001:db8::ffff:1"), 1);
        for (from, is_held) in
            [("2001:db8:0:0:1::", true), ("2001:db8:0:1::1", false), ("192.0.2.1", false)]
        {
            let verdict = auth.check(at(1), address(from), false, b"secret");
            assert_eq!(matches!(verdict, Held(_)), is_held, "{from}");
        }
        guess(&auth, at(1), address("::ffff:192.0.2.1"), FREE + 1);
        assert!(matches!(auth.check(at(1), HERE, false, b"secret"), Held(_)));
        assert_eq!(guess(&auth, at(1), None, 1_000), Wrong);
        let shown = Peer::of("2001:db8::ffff:1".parse().unwrap()).to_string();
        assert_eq!(shown, "2001:db8::/64");
    }

    #[test]
    fn many_addresses_take_no_more_memory_and_the_latest_stay_known() {
        let auth = auth();
        let address = |number: u32| Some(IpAddr::V4(Ipv4Addr::from_bits(number)));
        for number in 0..PEERS_MAX as u32 + 100 {
            let now = Time(at(0).0 + u64::from(number));
            guess(&auth, now, address(number), FREE + 1);
        }
        let tries = auth.tries();
        assert_eq!(tries.peers.len(), PEERS_MAX);
        assert!(tries.untold.len() <= TOLD_PEERS_MAX);
        drop(tries);
        let held = |number| matches!(auth.check(at(0), address(number), false, b"x"), Held(_));
        assert!(!held(0) && held(PEERS_MAX as u32 + 99));
    }

    #[test]
    fn without_a_password_only_another_user_is_wrong() {
        let auth = Auth::new(None);
        assert_eq!(auth.check(at(0), HERE, false, b"x"), Right);
        assert_eq!(auth.check(at(0), HERE, true, b"x"), Wrong);
        assert_eq!(auth.failures(), Failures::default());
    }

    #[test]
    fn passwords_compare_by_content() {
        assert!(same(b"abc", b"abc") && !same(b"abc", b"abd") && !same(b"abc", b"abcd"));
    }
}
