//! How an owner stands, for people and for whoever drives it.

use super::{Owner, Stage};
use crate::{Address, Config, Entry, Epoch, Position};
use alloc::sync::Arc;
use destage_core::Time;

/// How a server stands, as this owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Where it is.
    pub address: Address,
    /// It is connected.
    pub is_reachable: bool,
    /// It writes to its disk before it answers, as far as is known.
    pub is_durable: bool,
    /// It belongs to the configuration in force.
    pub is_member: bool,
    /// It has kept its memory, and takes entries.
    pub counts: bool,
    /// It refused for lack of memory.
    pub is_full: bool,
    /// Entries that it lacks; `None` where that is not known.
    pub behind: Option<u64>,
    /// Bytes of the undecided entries that it holds; `None` where that is not known.
    pub bytes: Option<u64>,
}

impl Owner {
    /// How far it is.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Its epoch; the last one that it tried while it looks.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The configuration, as far as it is known.
    pub fn config(&self) -> Option<&Arc<Config>> {
        self.config.as_ref()
    }

    /// Whether entries are taken.
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// The newest entry.
    pub fn last(&self) -> Position {
        self.log.last()
    }

    /// The first entry that is not decided, there or to come.
    pub fn base(&self) -> Position {
        self.log.base()
    }

    /// Its entries that are not decided.
    pub fn entries(&self) -> impl Iterator<Item = (Position, &Entry)> {
        self.log.iter()
    }

    /// Bytes of these.
    pub fn bytes(&self) -> u64 {
        self.log.bytes()
    }

    /// Who owns the log as far as the servers know, and where clients reach that one.
    pub fn owner_seen(&self) -> Option<(Epoch, Address)> {
        let views = self.peers.values().filter_map(|peer| peer.view.as_ref());
        let best = views.max_by_key(|view| view.beat.promise)?;
        (best.beat.promise != Epoch::NONE).then(|| (best.beat.promise, best.place.clone()))
    }

    /// How far the log is that servers show, of which this one follows.
    pub fn last_seen(&self) -> Position {
        let views = self.peers.values().filter_map(|peer| peer.view.as_ref());
        views.map(|view| view.last).max().unwrap_or(Position::NONE).max(self.log.last())
    }

    /// Whether somebody else shows itself: it has given a sign since this one looks, and the newest was not long ago. What was
    /// found at first may be the last sign of one that is dead.
    pub fn is_owner_alive(&self, now: Time) -> bool {
        self.peers.values().any(|peer| {
            let Some((beat, since)) = peer.quiet_since else { return false };
            let is_other = beat.promise != Epoch::NONE && !beat.promise.is_given_up();
            is_other && peer.has_shown && beat.count > 0 && now < since + self.settings.quiet
        })
    }

    /// Whether every server of the configuration holds everything, and knows that it is the configuration.
    pub fn is_settled(&self) -> bool {
        let Some(config) = self.config.as_deref().filter(|_| self.stage == Stage::Open) else {
            return false;
        };
        let rank = config.rank();
        let last = Some(self.log.last());
        config.before.is_empty()
            && config.now.members.iter().all(|member| {
                self.peers.get(&member.address).is_some_and(|peer| {
                    peer.is_kept(member) && peer.configured == Some(rank) && peer.matched == last
                })
            })
    }

    /// Whether enough servers of the configuration take entries now for one to be secured.
    pub fn can_secure(&self) -> bool {
        let Some(config) = self.config.as_deref() else { return false };
        self.holders_now().0 >= config.now.leases()
    }

    /// How many servers of the configuration take entries now, and how many must hold one before it is committed.
    pub fn holders_now(&self) -> (usize, usize) {
        let Some(config) = self.config.as_deref() else { return (0, 0) };
        let takes = |peer: &super::peer::Peer| peer.full_at.is_none().then_some(());
        (self.holders(config, takes).len(), config.now.copies)
    }

    /// How each server stands.
    pub fn standings(&self) -> impl Iterator<Item = Standing> {
        self.peers.iter().map(|(address, peer)| {
            let member = self.config.as_ref().and_then(|config| config.now.get(address));
            let is_kept = member.is_some_and(|member| peer.is_kept(member));
            let held = match self.stage {
                Stage::Looking => peer.view.as_ref().map(|view| view.last),
                _ => peer.matched,
            };
            let last = self.log.last();
            Standing {
                address: address.clone(),
                is_reachable: peer.connection.is_some(),
                is_durable: peer.connection.map_or_else(
                    || member.is_some_and(|member| member.is_durable),
                    |connection| connection.is_durable,
                ),
                is_member: member.is_some(),
                counts: is_kept,
                is_full: peer.full_at.is_some(),
                behind: held.map(|held| last.0.saturating_sub(held.0)),
                bytes: held.map(|held| self.log.bytes_upto(held)),
            }
        })
    }
}
