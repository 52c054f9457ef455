//! The configuration: written by each owner when it takes over, and so is each change of it a take-over.

use super::peer::{Peer, Sent};
use super::{Connection, Owner, Stage};
use crate::{Address, Config, Entry, Epoch, Member, MemberList, Payload, Request};
use alloc::sync::Arc;
use alloc::vec::Vec;

impl Owner {
    /// The log is known. Which servers hold it is written down under this owner's epoch.
    pub(super) fn begin_configuring(&mut self) {
        self.stage = Stage::Configuring;
        self.admitting.clear();
        self.old = self.config.clone().filter(|_| !self.is_founding);
        let (now, before) = match self.old.clone() {
            None => (self.founders(), Vec::new()),
            Some(old) => {
                let can = self.has_writes(&old, |peer| peer.has_promised);
                let can = can || self.settings.controls.no_old_promises;
                // A change that was asked for waits for its servers, and nothing else waits for it.
                let is_wanted_there = can && self.are_wanted_there();
                let wanted = self.wanted.take_if(|_| is_wanted_there);
                let now = if can { self.next_list(&old.now, wanted) } else { old.now.clone() };
                let is_same = names(&now).eq(names(&old.now));
                // What was accepted by servers of any of these counts, until the new ones hold it.
                let mut before = old.before.clone();
                before.extend((!is_same).then(|| old.now.clone()));
                (now, before)
            }
        };
        if before.is_empty() && !self.is_founding {
            // What is in force stays so.
            return self.begin_opening();
        }
        for member in now.members.iter().filter(|member| member.admitted == self.epoch) {
            self.admitting.insert(member.address.clone());
        }
        let (epoch, subject) = (self.epoch, self.settings.subject.clone());
        self.config = Some(Arc::new(Config { epoch, subject, now, before }));
    }

    fn founders(&self) -> MemberList {
        let members = self.settings.servers.iter().filter_map(|address| self.admit(address));
        MemberList { members: members.collect(), copies: self.settings.copies }
    }

    /// A server as it is now, admitted by this owner.
    fn admit(&self, address: &Address) -> Option<Member> {
        let peer = self.peers.get(address).filter(|peer| peer.has_promised)?;
        let Connection { run, is_durable } = peer.connection?;
        // One that belongs to a list before goes on as that member: what it has noted must stay as it is.
        let lists = self.old.iter().flat_map(|old| old.lists());
        let mut known = lists.filter_map(|list| list.get(address));
        let admitted = known.find(|member| peer.is_kept(member)).map(|member| member.admitted);
        let admitted = admitted.unwrap_or(self.epoch);
        Some(Member { address: address.clone(), run, is_durable, admitted })
    }

    /// The servers that there shall be. Those that have lost their memory are admitted anew where they have promised.
    fn next_list(&self, old: &MemberList, wanted: Option<Vec<Address>>) -> MemberList {
        let addresses = wanted.unwrap_or_else(|| addresses(old));
        let member = |address: &Address| {
            let Some(member) = old.get(address) else { return self.admit(address) };
            let peer = self.peers.get(address);
            let Some(connection) = peer.filter(|peer| peer.has_promised).and_then(|p| p.connection)
            else {
                return Some(member.clone());
            };
            if peer.is_some_and(|peer| peer.is_kept(member)) {
                let (run, is_durable) = (connection.run, connection.is_durable);
                return Some(Member { run, is_durable, ..member.clone() });
            }
            self.admit(address)
        };
        let members: Vec<Member> = addresses.iter().filter_map(member).collect();
        // One that was to be added is gone again: the others stay as they are.
        if members.len() < addresses.len() {
            return old.clone();
        }
        MemberList { members, copies: old.copies }
    }

    /// Writes it to those who have promised, and goes on once enough of the old configuration's have it.
    pub(super) fn write_config(&mut self) {
        self.ask_each();
        self.configure_each();
        let Some(config) = self.config.clone() else { return };
        let rank = config.rank();
        let is_done = match &self.old {
            None => config.now.members.iter().all(|member| {
                self.peers.get(&member.address).is_some_and(|peer| peer.configured == Some(rank))
            }),
            Some(_) if self.settings.controls.no_old_promises => true,
            Some(old) => {
                let is_written = |peer: &Peer| peer.configured == Some(rank);
                self.has_writes(old, is_written)
                    && old.lists().all(|list| self.has_promises(list, is_written))
            }
        };
        if is_done {
            self.begin_opening();
        }
    }

    /// The first entry comes behind all that was found. With it, all of that is accepted under this owner's epoch.
    fn begin_opening(&mut self) {
        let payload = Payload::from(&[][..]);
        self.log.push(Entry { epoch: self.epoch, payload });
        self.opening = self.log.last();
        self.stage = Stage::Opening;
    }

    /// Tells servers that have promised of the configuration.
    pub(super) fn configure_each(&mut self) {
        let Some(config) = self.config.clone() else { return };
        let (epoch, rank) = (self.epoch, config.rank());
        for (address, peer) in &mut self.peers {
            let known = peer.view.as_ref().and_then(|view| view.config.as_ref());
            let is_known = known.is_some_and(|known| known.rank() == rank);
            if peer.has_promised && is_known && !self.admitting.contains(address) {
                peer.configured = Some(rank);
            }
        }
        // First those that are admitted: whoever finds a configuration finds all of its servers admitted, however little else of
        // it was written.
        let is_admitting = self.stage == Stage::Configuring && !self.admitting.is_empty();
        let mut due = self.addresses_where(|peer| {
            let is_under_way = |sent: &Sent| {
                matches!(sent, Sent::Configure { epoch: e, rank: r } if (*e, *r) == (epoch, rank))
            };
            peer.has_promised
                && peer.configured != Some(rank)
                && !peer.sent.iter().any(is_under_way)
                && peer.is_willing(self.now, self.settings.renew_every)
        });
        if is_admitting {
            due.retain(|address| self.admitting.contains(address));
        }
        for address in due {
            let admitted = self.admission(&config, &address);
            let request = Request::Configure { epoch, config: config.clone(), admitted };
            self.send(&address, request, Sent::Configure { epoch, rank });
        }
    }

    /// Under which epoch a server is admitted: what it has noted, unless it is admitted now. That happens once: a server that
    /// has noted it and then loses its memory must not be told again.
    fn admission(&self, config: &Config, address: &Address) -> Epoch {
        let peer = self.peers.get(address);
        let noted = peer.and_then(|peer| peer.view.as_ref()).map_or(Epoch::NONE, |v| v.admitted);
        let run = peer.and_then(|peer| peer.connection).map(|connection| connection.run);
        let is_now = |member: &&Member| self.admitting.contains(address) && Some(member.run) == run;
        config.now.get(address).filter(is_now).map_or(noted, |member| member.admitted)
    }

    pub(super) fn configured(&mut self, address: &Address, sent: &Sent) {
        let Sent::Configure { epoch, rank } = *sent else { return };
        let Some(config) = self.config.clone().filter(|_| epoch == self.epoch) else { return };
        let admitted = self.admission(&config, address);
        let Some(peer) = self.peers.get_mut(address).filter(|peer| peer.has_promised) else {
            return;
        };
        self.admitting.remove(address);
        peer.configured = Some(rank);
        peer.full_at = None;
        if let Some(view) = &mut peer.view {
            view.admitted = admitted;
        }
    }

    /// k servers of the new list hold all of the log: the old list is needed no more.
    pub(super) fn conclude_change(&mut self) {
        let Some(config) = self.config.as_deref().filter(|config| !config.before.is_empty()) else {
            return;
        };
        self.config = Some(Arc::new(Config { before: Vec::new(), ..config.clone() }));
    }

    /// Begins a change of the servers if one is due: asked for, or because one has lost its memory.
    pub(super) fn change_if_due(&mut self) {
        let Some(config) = self.config.clone() else { return };
        let has_lost = |member: &&Member| {
            let peer = self.peers.get(&member.address);
            peer.is_some_and(|peer| {
                let is_there = peer.has_promised && peer.full_at.is_none();
                is_there && peer.configured.is_some() && !peer.is_kept(member)
            })
        };
        let lost = config.now.members.iter().find(has_lost).cloned();
        let has_any_lost = lost.is_some();
        if let Some(lost) = lost.filter(|_| self.settings.controls.admits_alone) {
            return self.admit_alone(&config, &lost.address);
        }
        let is_open = self.stage == Stage::Open;
        let is_asked_for = self.wanted.is_some() && is_open && self.are_wanted_there();
        let is_due = (is_asked_for || has_any_lost) && self.change_from <= self.now;
        let can = self.settings.controls.no_old_promises
            || (self.has_writes(&config, |peer| peer.has_promised)
                && config.lists().all(|list| self.has_promises(list, |peer| peer.has_promised)));
        if is_due && can {
            self.change_from = self.now + self.settings.quiet;
            self.begin_again();
        }
    }

    /// Whether all servers that are to be added have promised.
    pub(super) fn are_wanted_there(&self) -> bool {
        let is_old = |address: &Address| {
            self.config.as_ref().is_some_and(|config| config.now.get(address).is_some())
        };
        self.wanted.iter().flatten().all(|address| {
            is_old(address) || self.peers.get(address).is_some_and(|peer| peer.has_promised)
        })
    }

    /// Takes over from itself.
    pub(super) fn begin_again(&mut self) {
        self.previous = self.epoch;
        self.epoch = self.next_epoch();
        self.stage = Stage::Promising;
        self.enough_since = None;
        for peer in self.peers.values_mut() {
            peer.begin_epoch();
        }
    }

    /// Wrong, and only for the tests: a server is admitted without promises.
    fn admit_alone(&mut self, config: &Config, address: &Address) {
        let mut config = config.clone();
        let admitted = self.admit(address);
        for member in config.now.members.iter_mut().filter(|member| member.address == *address) {
            *member = admitted.clone().unwrap_or_else(|| member.clone());
        }
        self.admitting.insert(address.clone());
        self.config = Some(Arc::new(config));
        if let Some(peer) = self.peers.get_mut(address) {
            peer.configured = None;
        }
    }
}

fn names(list: &MemberList) -> impl Iterator<Item = (&Address, Epoch)> {
    list.members.iter().map(|member| (&member.address, member.admitted))
}

/// The servers of a list.
pub(super) fn addresses(list: &MemberList) -> Vec<Address> {
    list.members.iter().map(|member| member.address.clone()).collect()
}
