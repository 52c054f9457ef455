//! An owner of the log, from its first look at the servers to its end.
//!
//! ```text
//!             all quiet            promises of n - k + 1        log read           written to n - k + 1     k accepted
//!   Looking ─────────────► Promising ───────────────► Reading ─────────► Configuring ─────────────► Opening ─────────► Open
//!      ▲                       │  somebody else was faster, or a later configuration was found │                         │
//!      └───────────────────────┴──────────────────────────────────────────────────────────────┘                         ▼
//!                                                                                    Fenced (terminal), GivenUp (terminal)
//! ```
//!
//! A configuration is changed by the same way, from `Open` to `Promising`.

mod adopt;
mod look;
mod peer;
mod replicate;
mod report;
mod take;

pub use peer::Connection;
pub use report::Standing;

use crate::log::Run;
use crate::{Address, Config, Epoch, Position, Reply, Request, RunId, Settings, View};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use destage_core::Time;
use peer::{Peer, Sent};

/// How far an owner is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// It looks at the servers, and follows whoever owns the log.
    Looking,
    /// It asks for promises.
    Promising,
    /// It reads the log that it has chosen.
    Reading,
    /// It writes down which servers hold the log.
    Configuring,
    /// It has its first entry accepted.
    Opening,
    /// It owns the log.
    Open,
    /// It did, and somebody else does now.
    Fenced {
        /// Whom a server has promised.
        by: Epoch,
        /// Where clients reach that one.
        place: Address,
    },
    /// It gave the log up.
    GivenUp,
    /// What it found is not for it.
    Refused(Refusal),
}

/// Why an owner does not take a log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It is for something else.
    Subject(Address),
    /// More copies are asked for than there are servers, or none.
    Copies,
}

/// The owner: see the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    settings: Arc<Settings>,
    /// It takes over from an owner that shows itself.
    is_at_once: bool,
    now: Time,
    stage: Stage,
    epoch: Epoch,
    peers: BTreeMap<Address, Peer>,
    /// As found, or since this owner wrote one, its own.
    config: Option<Arc<Config>>,
    /// What this owner's configuration follows, while it is being written.
    old: Option<Arc<Config>>,
    /// No server has held anything of this log yet.
    is_founding: bool,
    /// It may begin a log.
    may_found: bool,
    /// The servers that there shall be.
    wanted: Option<Vec<Address>>,
    log: Run,
    /// Where logs are read from, and what was read of each.
    sources: Vec<(Address, Run)>,
    /// Of this owner's first entry.
    opening: Position,
    committed: Position,
    /// See [`Owner::secured`].
    secured: Position,
    /// Nothing is answered earlier.
    answers_from: Time,
    /// It has been open.
    was_open: bool,
    /// Since when there are enough promises.
    enough_since: Option<Time>,
    /// The epoch before, which was this owner's as well.
    previous: Epoch,
    /// Servers that are admitted by this owner, and have not noted it yet.
    admitting: BTreeSet<Address>,
    /// The servers' configuration is not changed again earlier.
    change_from: Time,
    outbox: VecDeque<(Address, Request)>,
}

impl Owner {
    /// One that knows nothing yet.
    pub fn new(settings: Settings, now: Time) -> Self {
        let copies = settings.copies;
        // A log that is found may have more servers than are named.
        let is_valid = copies > 0 && !settings.servers.is_empty();
        let stage = if is_valid { Stage::Looking } else { Stage::Refused(Refusal::Copies) };
        let mut owner = Self {
            is_at_once: settings.at_once,
            may_found: settings.founds,
            settings: Arc::new(Settings { controls: settings.controls.in_force(), ..settings }),
            now,
            stage,
            epoch: Epoch::NONE,
            peers: BTreeMap::new(),
            config: None,
            old: None,
            is_founding: false,
            wanted: None,
            log: Run::default(),
            sources: Vec::new(),
            opening: Position::NONE,
            committed: Position::NONE,
            secured: Position::NONE,
            answers_from: Time::ZERO,
            was_open: false,
            enough_since: None,
            previous: Epoch::NONE,
            admitting: BTreeSet::new(),
            change_from: now,
            outbox: VecDeque::new(),
        };
        for address in owner.settings.servers.clone() {
            owner.peers.entry(address).or_default();
        }
        owner
    }

    /// Something to be asked of a server, to be taken until there is nothing. Requests to one server are carried out in order
    /// on one connection, and each is answered by [`Owner::replied`], in this order, or by [`Owner::disconnected`] with all others.
    pub fn poll_request(&mut self) -> Option<(Address, Request)> {
        self.outbox.pop_front()
    }

    /// A server is connected; who it is was asked on this connection.
    pub fn connected(&mut self, now: Time, address: &Address, connection: Connection) {
        self.now = self.now.max(now);
        let peer = self.peers.entry(address.clone()).or_default();
        peer.forget();
        peer.connection = Some(connection);
        self.advance();
    }

    /// Another address at which the server in this life is connected: what it holds must not count twice.
    pub fn twin_of(&self, address: &Address, run: RunId) -> Option<&Address> {
        let is_same = |peer: &Peer| peer.connection.is_some_and(|there| there.run == run);
        let mut all = self.peers.iter();
        all.find(|(other, peer)| *other != address && is_same(peer)).map(|(other, _)| other)
    }

    /// A connection has ended. What was under way may have been carried out, or may still be.
    pub fn disconnected(&mut self, now: Time, address: &Address) {
        self.now = self.now.max(now);
        self.outbox.retain(|(to, _)| to != address);
        if let Some(peer) = self.peers.get_mut(address) {
            peer.forget();
        }
        self.found_anew();
        // What was read of it is not to be mixed with what it may say later.
        if self.stage == Stage::Reading && self.sources.iter().any(|(from, _)| from == address) {
            self.look_again();
        }
        if self.stage == Stage::Configuring && self.admitting.contains(address) {
            // It may be gone for good. What was found is what this begins with once more; nobody else has heard of the other.
            self.config = self.old.clone();
            if self.config.is_some() { self.begin_again() } else { self.look_again() }
        }
        self.advance();
    }

    /// A server has answered the oldest request that it was sent on its connection.
    pub fn replied(&mut self, now: Time, address: &Address, reply: Reply) {
        self.now = self.now.max(now);
        let Some(peer) = self.peers.get_mut(address) else { return };
        let Some(sent) = peer.sent.pop_front() else { return };
        match reply {
            Reply::Seen(view) => self.looked_at(address, view),
            Reply::Lively(view) => self.was_late(address, view),
            Reply::Promised(view) => self.promised(address, view),
            Reply::Fenced { promise, place } if promise > self.epoch => {
                self.fenced(address, promise, place);
            }
            Reply::Fenced { .. } | Reply::Stranger => self.forgotten(address, &sent),
            Reply::Configured => self.configured(address, &sent),
            Reply::Appended => self.appended(address, &sent),
            Reply::Gap { last } => self.gap(address, &sent, last),
            Reply::Entries { from, entries, view } => {
                self.read(address, &sent, from, entries, view)
            }
            Reply::Full => self.full(address, &sent),
            Reply::GivenUp => {}
        }
        self.advance();
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.advance();
    }

    /// When time alone has something to be done.
    pub fn next_timeout(&self) -> Time {
        self.now + self.settings.renew_every
    }

    /// Ends in order: others need not wait.
    pub fn give_up(&mut self, now: Time) {
        self.now = self.now.max(now);
        let epoch = self.epoch;
        if self.stage != Stage::Open {
            return;
        }
        self.stage = Stage::GivenUp;
        let promised: Vec<Address> = self.promised_peers().cloned().collect();
        for address in promised {
            self.send(&address, Request::GiveUp { epoch }, Sent::GiveUp);
        }
    }

    /// The servers that there shall be, while one of them has not answered yet.
    pub fn wanted_servers(&self) -> Option<&[Address]> {
        self.wanted.as_deref()
    }

    /// Uses these servers from now on, and as many copies as before. One change at a time. A change that waits for a server is
    /// given up by asking for the servers that there are.
    ///
    /// # Errors
    /// Why not.
    pub fn use_servers(&mut self, now: Time, servers: Vec<Address>) -> Result<(), &'static str> {
        self.now = self.now.max(now);
        let Some(config) = self.config.clone().filter(|_| self.stage == Stage::Open) else {
            return Err("the log is being opened: try again in a moment");
        };
        if self.wanted.is_some() && adopt::addresses(&config.now) == servers {
            self.wanted = None;
            return Ok(());
        }
        if !config.before.is_empty() {
            return Err("another change of the servers is under way");
        }
        if self.wanted.is_some() {
            return Err("a server that was added is not reached yet; remove it to give it up");
        }
        if servers.len() < config.now.copies {
            return Err("fewer servers would remain than copies are kept");
        }
        for address in &servers {
            self.peers.entry(address.clone()).or_default();
        }
        self.wanted = Some(servers);
        self.advance();
        Ok(())
    }

    /// All that can be done now.
    fn advance(&mut self) {
        loop {
            let before = self.stage.clone();
            match self.stage {
                Stage::Looking => self.look(),
                Stage::Promising => self.ask_promises(),
                Stage::Reading => self.read_on(),
                Stage::Configuring => self.write_config(),
                Stage::Opening | Stage::Open => self.replicate(),
                Stage::Fenced { .. } | Stage::GivenUp | Stage::Refused(_) => {}
            }
            if self.stage == before {
                return;
            }
        }
    }

    fn send(&mut self, address: &Address, request: Request, sent: Sent) {
        let Some(peer) = self.peers.get_mut(address) else { return };
        if peer.connection.is_none() {
            return;
        }
        peer.sent.push_back(sent);
        peer.asked_at = Some(self.now);
        self.outbox.push_back((address.clone(), request));
    }

    fn promised_peers(&self) -> impl Iterator<Item = &Address> {
        self.peers.iter().filter(|(_, peer)| peer.has_promised).map(|(address, _)| address)
    }

    /// A server has promised somebody later.
    fn fenced(&mut self, address: &Address, promise: Epoch, place: Address) {
        if let Some(peer) = self.peers.get_mut(address) {
            peer.has_promised = false;
            peer.view = None;
        }
        match self.stage {
            Stage::Fenced { .. } | Stage::GivenUp | Stage::Refused(_) => {}
            _ if self.was_open => self.stage = Stage::Fenced { by: promise, place },
            Stage::Looking => {}
            _ => {
                self.is_at_once = false;
                self.look_again();
            }
        }
    }

    /// Somebody has shown itself before a promise was asked for.
    fn was_late(&mut self, address: &Address, view: View) {
        self.looked_at(address, view);
        if !self.was_open && self.stage == Stage::Promising {
            self.look_again();
        }
    }

    /// A server has shown itself. Whoever takes over from itself asks none for a promise that has promised somebody else since.
    fn looked_at(&mut self, address: &Address, view: View) {
        let (promise, place) = (view.beat.promise, view.place.clone());
        self.saw(address, view);
        if self.was_open && promise > self.previous && promise != self.epoch {
            self.fenced(address, promise, place);
        }
    }

    fn look_again(&mut self) {
        self.stage = Stage::Looking;
        self.may_found = self.settings.founds;
        self.sources.clear();
        self.is_founding = false;
        self.enough_since = None;
        for peer in self.peers.values_mut() {
            peer.begin_epoch();
        }
    }

    /// The newest configuration that any server has shown.
    fn newest_config(&self) -> Option<Arc<Config>> {
        let views = self.peers.values().filter_map(|peer| peer.view.as_ref());
        views.filter_map(|view: &View| view.config.clone()).max_by_key(|config| config.rank())
    }
}
