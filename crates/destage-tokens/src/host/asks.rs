//! Requests: which tokens cover them, and when they may begin.

use super::{AskId, Effect, Host, Need};
use crate::{FileId, Mode, Root};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use destage_core::Time;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ask {
    /// In the order in which they are taken: the same on every host, so that no two wait for each other.
    needs: Vec<Need>,
    /// The tokens that cover it, once it is admitted.
    pinned: Option<Vec<Root>>,
}

impl Host {
    /// A request comes. It is admitted at once if it can be.
    pub fn ask(&mut self, now: Time, id: AskId, mut needs: Vec<Need>) {
        needs.sort();
        self.asks.insert(id, Ask { needs, pinned: None });
        self.step(now);
    }

    /// It has been carried out, or given up.
    pub fn ended(&mut self, now: Time, id: AskId) {
        let pinned = self.asks.remove(&id).and_then(|ask| ask.pinned);
        for root in pinned.into_iter().flatten() {
            if let Some(pins) = self.pins.get_mut(&root) {
                *pins -= 1;
                if *pins == 0 {
                    self.pins.remove(&root);
                }
            }
        }
        self.step(now);
    }

    /// Requests that have not ended.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.asks.len()
    }

    /// A file was made in a directory whose names this host may change: nobody else knows of it. To be said again after a
    /// start of what the journal holds under the directory's token.
    pub fn born(&mut self, file: &FileId, dir: &FileId) {
        if self.mirror.mode(&Root::Volume) != Some(Mode::Exclusive) {
            self.born.insert(file.clone(), dir.clone());
        }
    }

    /// A file was moved to a directory whose names this host may change.
    pub fn moved(&mut self, file: &FileId, dir: &FileId) {
        if let Some(home) = self.born.get_mut(file) {
            *home = dir.clone();
        }
    }

    /// A file has a further name, or is gone.
    pub fn not_born(&mut self, file: &FileId) {
        self.born.remove(file);
    }

    /// The token that covers a change of a file now. What is written down of the change is confirmed by it after a crash.
    #[must_use]
    pub fn cover(&self, file: &FileId) -> Option<Root> {
        let need =
            Need { root: Root::File(file.clone()), mode: Mode::Exclusive, is_explicit: false };
        // What is on its way to the origin already waits for no further change.
        let is_draining = |root: &Root| {
            self.gates.get(root).is_some_and(|gate| gate.phase != super::gates::Phase::Closing)
        };
        self.covered(&need)
            .or_else(|| self.covering(&need, |root| !is_draining(root)))
            .or_else(|| self.covering(&need, |_| true))
    }

    /// The way from a file to the token that covers a change of it now: the directory in which it was made, that in which this
    /// one was made, and so on up to the one whose token is held. A file's own token, or that of everything, is the whole way.
    /// What is written down of a change says all of it: a directory that is moved takes along what lies below it.
    #[must_use]
    pub fn way(&self, file: &FileId) -> Vec<Root> {
        let Some(cover) = self.cover(file) else { return Vec::new() };
        let is_own = cover == Root::Volume || cover == Root::File(file.clone());
        let homes = if is_own { Vec::new() } else { self.homes(file) };
        let below = homes.into_iter().map(Root::File).take_while(|home| *home != cover);
        let below: Vec<Root> = below.collect();
        below.into_iter().chain([cover]).collect()
    }

    fn covering(&self, need: &Need, is_open: impl Fn(&Root) -> bool) -> Option<Root> {
        let volume = self.mirror.mode(&Root::Volume)?;
        if volume == Mode::Exclusive {
            return Some(Root::Volume).filter(is_open);
        }
        let holds = |root: &Root, mode| self.mirror.mode(root) >= Some(mode) && is_open(root);
        if holds(&need.root, need.mode) {
            return Some(need.root.clone());
        }
        let Root::File(file) = &need.root else { return None };
        let homes = if need.is_explicit { Vec::new() } else { self.homes(file) };
        homes.into_iter().map(Root::File).find(|home| holds(home, Mode::Exclusive))
    }

    /// The directories in which a file was made, from the nearest one up.
    pub(super) fn homes(&self, file: &FileId) -> Vec<FileId> {
        let mut homes = Vec::new();
        let mut at = file;
        while let Some(home) = self.born.get(at).filter(|home| !homes.contains(*home)) {
            homes.push(home.clone());
            at = home;
        }
        homes
    }

    /// What covers a need for requests that begin now.
    pub(super) fn covered(&self, need: &Need) -> Option<Root> {
        let ignores_gates = self.settings.controls.no_gate;
        self.covering(need, |root| ignores_gates || !self.gates.contains_key(root))
    }

    pub(super) fn admit_all(&mut self, now: Time) {
        if !self.may_serve(now) {
            return;
        }
        let waiting = self.asks.iter().filter(|(_, ask)| ask.pinned.is_none());
        let ready = waiting.filter_map(|(id, ask)| {
            let pins = ask.needs.iter().map(|need| self.covered(need));
            Some((*id, pins.collect::<Option<BTreeSet<Root>>>()?))
        });
        let ready: Vec<_> = ready.collect();
        for (id, roots) in ready {
            for root in &roots {
                *self.pins.entry(root.clone()).or_default() += 1;
            }
            if let Some(ask) = self.asks.get_mut(&id) {
                ask.pinned = Some(roots.into_iter().collect());
            }
            self.effects.push_back(Effect::Admit(id));
        }
    }

    /// What each waiting request needs, in order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Vec<Need>> {
        self.asks.values().filter(|ask| ask.pinned.is_none()).map(|ask| &ask.needs)
    }

    /// Tokens that waiting requests have got and keep until they have the next ones. Not one that sorts behind what is waited for,
    /// as that of a directory can which covers a file: two hosts that kept such ones could wait for each other. And none while
    /// a silent host has what is waited for: others wait for what that one has, and for nothing else.
    pub(super) fn reserved(&self) -> BTreeSet<Root> {
        let mut reserved = BTreeSet::new();
        for needs in self.waiting() {
            let missing = needs.iter().find(|need| self.covered(need).is_none());
            if self.kept_by_silent(needs).is_some() {
                continue;
            }
            let is_before = |root: &Root| missing.is_none_or(|missing| *root < missing.root);
            let got = needs.iter().map_while(|need| self.covered(need));
            reserved.extend(got.filter(is_before));
        }
        reserved
    }
}
