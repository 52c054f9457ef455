//! Passwords of `--users` at a standby. The thread of a client looks at its password itself, by the rules that the server has:
//! one look at a time, few of one address, and none for a password that is known or is looked at already.

use crate::engine::{BUSY, Known, LOOKS_MAX, LOOKS_OF_ADDRESS_MAX, Quick, WRONG, held};
use crate::resp::ReplyError;
use crate::serve::users::key;
use crate::users::{User, UsersFile};
use destage_core::Time;
use destage_runtime::auth::{Auth, Peer, guess};
use destage_runtime::password_hash::PASSWORD_BYTES_MAX;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};

/// The users, and who waits to be one.
pub(super) struct Looks {
    file: UsersFile,
    state: Mutex<State>,
    /// Held while a hash is looked at: guesses are not to take more than one processor.
    turn: Mutex<()>,
}

struct State {
    known: Known,
    under_way: HashMap<What, UnderWay>,
}

/// A password that is looked at: of whom, with its name, and with each of the user's own hashes.
#[derive(Clone, PartialEq, Eq, Hash)]
struct What {
    peer: Peer,
    sent: Quick,
    quick: Vec<Quick>,
}

#[derive(Default)]
struct UnderWay {
    /// Clients that have sent it.
    clients: usize,
    is_right: Option<bool>,
}

impl Looks {
    pub(super) fn new(file: UsersFile) -> Self {
        let state = State { known: Known::new(key()), under_way: HashMap::new() };
        Self { file, state: Mutex::new(state), turn: Mutex::new(()) }
    }

    /// Whether a client is that user.
    ///
    /// # Errors
    /// A message for the client.
    pub(super) fn look(
        &self,
        auth: &Auth,
        now: Time,
        from: IpAddr,
        (name, password): (&[u8], &[u8]),
    ) -> Result<(), ReplyError> {
        if let Some(span) = auth.held(now, Some(from)) {
            return Err(held(span));
        }
        let wrong = || {
            auth.was_wrong(now, Some(from), guess(name, password));
            Err(WRONG)
        };
        if password.len() > PASSWORD_BYTES_MAX {
            return wrong();
        }
        let users = self.file.now();
        let user = users.get(name).map(|user| &**user).filter(|user| user.is_on());
        let Some(what) = self.begin(Peer::of(from), user, (name, password))? else { return Ok(()) };
        let look = || users.position(user, password);
        if self.wait(&what, look) { Ok(()) } else { wrong() }
    }

    /// What is to be looked at; nothing if it is known to be right.
    fn begin(
        &self,
        peer: Peer,
        user: Option<&User>,
        (name, password): (&[u8], &[u8]),
    ) -> Result<Option<What>, ReplyError> {
        let state = &mut *self.state();
        let quick = state.known.quick_of(user, password);
        if state.known.position(&quick).is_some() {
            return Ok(None);
        }
        let what = What { peer, sent: state.known.quick(name, password), quick };
        if !state.under_way.contains_key(&what) {
            let of_address = state.under_way.keys().filter(|other| other.peer == peer).count();
            if of_address >= LOOKS_OF_ADDRESS_MAX || state.under_way.len() >= LOOKS_MAX {
                return Err(BUSY);
            }
        }
        state.under_way.entry(what.clone()).or_default().clients += 1;
        Ok(Some(what))
    }

    /// Looks once it is its turn, unless another client has had the same looked at meanwhile.
    fn wait(&self, what: &What, look: impl FnOnce() -> Option<usize>) -> bool {
        // A panic elsewhere leaves nothing half done.
        let _turn = self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let told = self.state().under_way.get(what).and_then(|under_way| under_way.is_right);
        let place = if told.is_none() { look() } else { None };
        let is_right = told.unwrap_or_else(|| place.is_some());
        let state = &mut *self.state();
        if let Some(place) = place {
            state.known.insert(what.quick[place]);
        }
        if let Some(under_way) = state.under_way.get_mut(what) {
            under_way.clients -= 1;
            under_way.is_right = Some(is_right);
            if under_way.clients == 0 {
                state.under_way.remove(what);
            }
        }
        is_right
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    fn looks() -> Looks {
        Looks::new(UsersFile::new(PathBuf::from("none"), false))
    }

    fn begin(looks: &Looks, from: &str, password: &str) -> Result<Option<What>, ()> {
        let peer = Peer::of(from.parse().unwrap());
        looks.begin(peer, None, (b"ada", password.as_bytes())).map_err(drop)
    }

    #[test]
    fn one_address_or_network_has_few_looks_and_others_go_on() {
        for addresses in [["192.0.2.1"; 2], ["2001:db8::1", "2001:db8::ffff:2"]] {
            let looks = looks();
            for guess in 0..LOOKS_OF_ADDRESS_MAX {
                let what = begin(&looks, addresses[guess % 2], &guess.to_string());
                assert!(what.is_ok_and(|what| what.is_some()), "{guess}");
            }
            assert!(begin(&looks, addresses[1], "one more").is_err());
            let same = begin(&looks, addresses[0], "0").unwrap().expect("it is looked at already");
            assert_eq!(looks.state().under_way[&same].clients, 2);
            assert!(begin(&looks, "192.0.2.2", "one more").is_ok());
            for _ in 0..2 {
                assert!(!looks.wait(&same, || None));
            }
            assert!(begin(&looks, addresses[1], "one more").is_ok(), "a place is free again");
        }
    }

    #[test]
    fn one_look_is_under_way_at_a_time_and_one_password_costs_one() {
        let (looks, now, most, count) =
            (looks(), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let look = || {
            count.fetch_add(1, Ordering::SeqCst);
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
            None
        };
        let begun: Vec<What> = (0..64)
            .map(|client| begin(&looks, "192.0.2.1", &(client % 4).to_string()))
            .map(|what| what.unwrap().unwrap())
            .collect();
        thread::scope(|scope| {
            for what in &begun {
                scope.spawn(|| looks.wait(what, look));
            }
        });
        assert_eq!((most.into_inner(), count.into_inner()), (1, 4));
        assert!(looks.state().under_way.is_empty());
    }
}
