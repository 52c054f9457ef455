//! One host: what it holds, what it is asked, and what it asks the store.
//!
//! Whatever happens to it is told by a method; what it wants done comes out of [`Host::poll`]. It has one transaction
//! under way at a time, which carries all that can be changed then.

mod asks;
mod gates;
mod mirror;
mod plan;
mod session;

use crate::{Event, FileId, HostId, Key, LeaseId, Mode, Rev, Root, Settings, Txn, TxnReply};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use asks::Ask;
use destage_core::Time;
use gates::Gate;
use mirror::Mirror;
use plan::Inflight;
use session::{Fencing, Lease};

/// Which request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);

/// What a request needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Need {
    /// Of which token.
    pub root: Root,
    /// At least this.
    pub mode: Mode,
    /// That of the directory in which the file was made is not enough: it is about to have another name.
    pub is_explicit: bool,
}

/// How far a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Not started.
    Offline,
    /// It asks for a lease.
    Leasing,
    /// It reads what the store holds.
    Loading,
    /// It makes itself known.
    Entering,
    /// It finds out what of an earlier life is still its own.
    Confirming,
    /// It takes up what an earlier life has left.
    Recovering,
    /// It serves.
    Online,
    /// It gives everything back.
    Leaving,
    /// It has.
    Left,
    /// Others have shut it out: what it holds is void.
    Fenced,
}

/// What came of renewing a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// It lasts on.
    Renewed,
    /// The store knows no such lease.
    Gone,
    /// Nobody knows.
    Failed,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Get a lease; then [`Host::leased`].
    Lease,
    /// Renew it; then [`Host::kept`].
    Renew(LeaseId),
    /// Read everything, and pass on what changes from there; then [`Host::loaded`].
    Load,
    /// Carry a transaction out; then [`Host::replied`].
    Txn(Txn),
    /// The request may be carried out; then [`Host::ended`].
    Admit(AskId),
    /// Bring what changed under a token to the origin, and forget what is known by it; then [`Host::drained`].
    Revoke {
        /// Which.
        root: Root,
        /// What is left of it.
        to: Option<Mode>,
        /// Files that it covers besides.
        covered: Vec<FileId>,
    },
    /// See to it that nothing of this host can reach the origin any more; then [`Host::fence_ended`].
    Fence(HostId),
    /// It knows what of an earlier life is still its own: see [`Host::is_confirmed`]; then [`Host::recovered`].
    Entered,
    /// Others have shut this host out.
    Fenced,
    /// It holds nothing any more.
    Left,
}

/// One host: see the module.
#[derive(Clone, Debug, Hash)]
pub struct Host {
    settings: Settings,
    stage: Stage,
    lease: Lease,
    mirror: Mirror,
    asks: BTreeMap<AskId, Ask>,
    /// Requests under way, by the tokens that cover them.
    pins: BTreeMap<Root, u32>,
    gates: BTreeMap<Root, Gate>,
    /// Files made under the token of a directory, and in which.
    born: BTreeMap<FileId, FileId>,
    inflight: Option<Inflight>,
    fencing: BTreeMap<HostId, Fencing>,
    confirmed: Option<BTreeSet<Root>>,
    is_recovered: bool,
    effects: VecDeque<Effect>,
}

impl Host {
    /// One that has not started.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let settings = Settings { controls: settings.controls.in_force(), ..settings };
        Self {
            settings,
            stage: Stage::Offline,
            lease: Lease::default(),
            mirror: Mirror::new(settings.host, settings.controls),
            asks: BTreeMap::new(),
            pins: BTreeMap::new(),
            gates: BTreeMap::new(),
            born: BTreeMap::new(),
            inflight: None,
            fencing: BTreeMap::new(),
            confirmed: None,
            is_recovered: false,
            effects: VecDeque::new(),
        }
    }

    /// The next thing to be done.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// How far it is.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// In which of its lives it is: what it holds was given at no earlier revision.
    #[must_use]
    pub fn epoch(&self) -> Rev {
        self.mirror.epoch()
    }

    /// Hosts that are silent, and have what others want.
    pub fn fencing(&self) -> impl Iterator<Item = HostId> + '_ {
        self.fencing.keys().copied()
    }

    /// Tokens that it holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.mirror.mine().len()
    }

    /// Keys of the store, and files made, of which it knows.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.mirror.len() + self.born.len()
    }

    /// What it holds of a token by itself.
    #[must_use]
    pub fn mode_of(&self, root: &Root) -> Option<Mode> {
        self.mirror.mode(root)
    }

    /// Whether a request that has been admitted may be carried out now: asked again right before its effects and its answer.
    #[must_use]
    pub fn may_serve(&self, now: Time) -> bool {
        let is_leased = now < self.lease.valid_until || self.settings.controls.ignores_lease;
        is_leased && matches!(self.stage, Stage::Online | Stage::Leaving)
    }

    /// Whether the origin may be changed: asked again right before each effect.
    #[must_use]
    pub fn may_change(&self, now: Time) -> bool {
        self.may_serve(now) || (self.stage == Stage::Recovering && now < self.lease.valid_until)
    }

    /// Whether a host has been fenced since it last came; `None` if it is not known.
    #[must_use]
    pub fn is_fenced(&self, host: HostId) -> Option<bool> {
        self.mirror.is_fenced(host)
    }

    /// Whether nobody else may have changed since what an earlier life of this host has changed under a token and not
    /// brought to the origin. Nothing is, before [`Effect::Entered`].
    #[must_use]
    pub fn is_confirmed(&self, cover: &Root) -> bool {
        let confirmed = self.confirmed.as_ref();
        confirmed.is_some_and(|roots| self.settings.controls.confirms_all || roots.contains(cover))
    }

    /// The store tells of a change.
    ///
    /// Changes come in the order of their revisions from what was loaded last, and none is left out. Those that were told before
    /// are no harm.
    pub fn event(&mut self, now: Time, event: Event) {
        self.mirror.hear(event);
        self.step(now);
    }

    /// What came of the transaction; `None` if nobody knows.
    pub fn replied(&mut self, now: Time, reply: Option<TxnReply>) {
        let Some(inflight) = self.inflight.take() else { return };
        match reply {
            Some(reply) if reply.is_done => {
                self.lease.doubts = 0;
                self.done(inflight, reply.revision);
            }
            Some(reply) => {
                self.lease.doubts = 0;
                for (key, found) in reply.found {
                    let (value, rev) =
                        found.map_or((None, reply.revision), |(value, rev)| (Some(value), rev));
                    self.mirror.set(reply.revision, key, value, rev);
                }
            }
            None => self.load_later(now),
        }
        self.step(now);
    }

    /// Time has passed. Too early is no harm.
    pub fn tick(&mut self, now: Time) {
        self.step(now);
    }

    /// What follows from all that is known.
    fn step(&mut self, now: Time) {
        self.keep_lease(now);
        if matches!(self.stage, Stage::Offline | Stage::Fenced | Stage::Left) {
            return;
        }
        let is_known = matches!(
            self.stage,
            Stage::Confirming | Stage::Recovering | Stage::Online | Stage::Leaving
        );
        let known = self.mirror.rev(&Key::Host(self.settings.host));
        if is_known && known != self.mirror.epoch() {
            // Nobody else removes it: so the store's news may come before its answer, or instead of it.
            if self.stage == Stage::Leaving && known == Rev::NONE {
                self.left();
            } else {
                self.fenced_out();
            }
            return;
        }
        self.load_if_due(now);
        if self.stage == Stage::Online {
            self.admit_all(now);
            self.open_gates();
            self.fence_silent(now);
        }
        if self.inflight.is_none() && self.lease.is_loaded() {
            self.plan(now);
        }
    }
}
