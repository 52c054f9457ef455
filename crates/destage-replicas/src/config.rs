//! Which servers hold the log, and how many of them must.

use crate::{Address, Epoch, RunId, View};
use alloc::vec::Vec;

/// A server of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Where it is.
    pub address: Address,
    /// The life in which it was admitted.
    pub run: RunId,
    /// It writes to its disk before it answers: it keeps its memory through a restart.
    pub is_durable: bool,
    /// Under which epoch it was admitted, as it has noted itself: one that has lost its memory has not.
    pub admitted: Epoch,
}

/// Servers, and how many of them must hold an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemberList {
    /// The servers.
    pub members: Vec<Member>,
    /// k: so many hold an entry before it counts.
    pub copies: usize,
}

/// What servers know of all servers of a log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Of the owner that wrote it.
    pub epoch: Epoch,
    /// What the log is for, in words.
    pub subject: Address,
    /// In force.
    pub now: MemberList,
    /// In force as well, until k servers of `now` are known to hold the whole log.
    pub before: Vec<MemberList>,
}

impl MemberList {
    /// The member at an address.
    pub fn get(&self, address: &str) -> Option<&Member> {
        self.members.iter().find(|member| *member.address == *address)
    }

    /// How many promises of servers with all their memory a take-over needs: so many that any k servers have one of them among
    /// themselves, and so have any that a change of the configuration was written to ([`MemberList::writes`]). Where k is at
    /// most half of the servers and one, the former is the larger number: n - k + 1.
    pub fn promises(&self) -> usize {
        let count = self.members.len();
        (count + 1).saturating_sub(self.copies).max(count - count / 2)
    }

    /// On how many servers an owner's lease is: so many that any take-over has a promise of one of them. That is k, or more
    /// than half of the servers where that is fewer.
    pub fn leases(&self) -> usize {
        (self.members.len() + 1).saturating_sub(self.promises())
    }

    /// To how many servers, with their memory or without, a change of the configuration is written before it is in force. With
    /// fewer, two owners of whom each reaches other servers could change it at the same time.
    pub fn writes(&self) -> usize {
        let count = self.members.len();
        (count + 1).saturating_sub(self.copies).max(count / 2 + 1)
    }
}

impl Config {
    /// Whether one found later is to be believed rather than this one.
    pub(crate) fn is_older_than(&self, other: &Self) -> bool {
        self.rank() < other.rank()
    }

    /// Of one owner, the configuration that needs no other one beside it is the later one.
    pub(crate) fn rank(&self) -> (Epoch, bool) {
        (self.epoch, self.before.is_empty())
    }

    /// All lists in force.
    pub(crate) fn lists(&self) -> impl Iterator<Item = &MemberList> {
        core::iter::once(&self.now).chain(&self.before)
    }

    /// All servers' addresses, some twice.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.lists().flat_map(|list| list.members.iter().map(|member| &member.address))
    }
}

impl Member {
    /// Whether a server that shows this, in this life, has kept everything that it ever accepted as this member.
    pub(crate) fn has_kept(&self, view: &View, run: RunId, is_durable: bool) -> bool {
        let is_same_life = run == self.run || (self.is_durable && is_durable);
        view.admitted == self.admitted && is_same_life
    }
}
