//! One token's state at the store: who holds it, and who wants it.

use crate::{HostId, Mode, Rev};
use alloc::vec::Vec;

/// A host's part in a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Whose.
    pub host: HostId,
    /// In which of its lives: the revision at which it came. Once it is fenced, what it held before is void.
    pub epoch: Rev,
    /// What it may do, or wants to.
    pub mode: Mode,
}

/// One token: see the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Register {
    /// They never exclude each other, apart from those that are void.
    pub holders: Vec<Entry>,
    /// In the order in which they came.
    pub wants: Vec<Entry>,
}

impl Register {
    /// A host's place among the holders.
    #[must_use]
    pub fn holder(&self, host: HostId) -> Option<&Entry> {
        self.holders.iter().find(|entry| entry.host == host)
    }

    /// A host's place among those that wait.
    #[must_use]
    pub fn want(&self, host: HostId) -> Option<&Entry> {
        self.wants.iter().find(|entry| entry.host == host)
    }

    /// Nobody has to do with it.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.wants.is_empty()
    }

    /// A host holds it like this from now on, or not at all.
    pub(crate) fn hold(&mut self, host: HostId, epoch: Rev, mode: Option<Mode>) {
        self.holders.retain(|entry| entry.host != host);
        self.holders.extend(mode.map(|mode| Entry { host, epoch, mode }));
    }

    /// A host waits for it, in its place if it has one.
    pub(crate) fn queue(&mut self, host: HostId, epoch: Rev, mode: Mode) {
        match self.wants.iter_mut().find(|entry| entry.host == host) {
            Some(entry) => *entry = Entry { host, epoch, mode },
            None => self.wants.push(Entry { host, epoch, mode }),
        }
    }

    /// A host does not wait for it any more.
    pub(crate) fn unqueue(&mut self, host: HostId) {
        self.wants.retain(|entry| entry.host != host);
    }
}
