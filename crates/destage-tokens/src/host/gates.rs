//! Giving tokens up: no request begins any more, those under way end, what changed goes to the origin; only then does the
//! store hear of it.

use super::{Effect, Host, Need};
use crate::{Entry, FileId, HostId, Mode, Root};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use destage_core::Time;

/// A token on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Gate {
    /// What is left of it.
    pub(super) to: Option<Mode>,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Requests under it are on their way.
    Closing,
    /// What changed under it goes to the origin.
    Draining,
    /// The store may hear of it.
    Drained,
}

impl Host {
    /// All that changed under a token is at the origin, durably, and what was known by it is forgotten.
    pub fn drained(&mut self, now: Time, root: &Root) {
        if let Some(gate) = self.gates.get_mut(root) {
            gate.phase = Phase::Drained;
        }
        self.step(now);
    }

    /// Closes gates where others wait, and goes on where nothing is on its way any more.
    pub(super) fn open_gates(&mut self) {
        let contested = self.mirror.contested().iter();
        let wanted = contested.filter(|root| !self.gates.contains_key(*root));
        let wanted: Vec<_> =
            wanted.filter_map(|root| Some((root.clone(), self.asked_to_give(root)?))).collect();
        if !wanted.is_empty() {
            let reserved = self.reserved();
            for (root, to) in wanted.into_iter().filter(|(root, _)| !reserved.contains(root)) {
                self.gates.insert(root, Gate { to, phase: Phase::Closing });
            }
        }
        self.give_back_some();
        let no_gate = self.settings.controls.no_gate;
        let closing = self.gates.iter().filter(|(root, gate)| {
            gate.phase == Phase::Closing && (no_gate || !self.pins.contains_key(*root))
        });
        let closing: Vec<Root> = closing.map(|(root, _)| root.clone()).collect();
        for root in closing {
            let covered = self.covered_by(&root);
            if let Some(gate) = self.gates.get_mut(&root) {
                gate.phase = Phase::Draining;
                self.effects.push_back(Effect::Revoke { root, to: gate.to, covered });
            }
        }
    }

    /// What may be left of a token that others want, if they want it before this host wants more of it.
    fn asked_to_give(&self, root: &Root) -> Option<Option<Mode>> {
        let held = self.mirror.mode(root)?;
        let register = self.mirror.register(root)?;
        let before = register.wants.iter().take_while(|want| want.host != self.settings.host);
        let mut before =
            before.filter(|want| self.mirror.is_alive(want.host) && want.mode.excludes(held));
        before.next().map(|want| (want.mode == Mode::Read).then_some(Mode::Read))
    }

    /// Who holds very many gives some back that no request is under.
    fn give_back_some(&mut self) {
        let mine = self.mirror.mine();
        let is_idle = |root: &&Root| {
            **root != Root::Volume
                && !self.gates.contains_key(*root)
                && !self.pins.contains_key(*root)
        };
        let over = mine.len().saturating_sub(self.settings.tokens_max + self.gates.len());
        // What was made in a directory is remembered until that one is given up.
        let has_made_much = self.born.len() > self.settings.tokens_max && self.gates.is_empty();
        if over == 0 && !has_made_much {
            return;
        }
        let reserved = self.reserved();
        let is_idle = |root: &&Root| is_idle(root) && !reserved.contains(*root);
        let idle = mine.keys().filter(is_idle);
        let mut idle: Vec<Root> = idle.take(over).cloned().collect();
        if has_made_much {
            let homes = self.born.values().map(|dir| Root::File(dir.clone()));
            idle.extend(homes.into_iter().find(|home| mine.contains_key(home) && is_idle(&home)));
        }
        for root in idle {
            self.gates.insert(root, Gate { to: None, phase: Phase::Closing });
        }
    }

    fn covered_by(&self, root: &Root) -> Vec<FileId> {
        let Root::File(dir) = root else { return Vec::new() };
        self.born.keys().filter(|file| self.homes(file).contains(dir)).cloned().collect()
    }

    /// Whether requests may change a file while a token that covered it is given up, and afterwards: another one covers it, as
    /// its own does after it was to get a further name.
    #[must_use]
    pub fn stays(&self, file: &FileId, root: &Root) -> bool {
        let Root::File(dir) = root else { return false };
        let is_open = |root: &Root| {
            self.mirror.mode(root) == Some(Mode::Exclusive) && !self.gates.contains_key(root)
        };
        let own = (file != dir).then(|| file.clone());
        let mut others = own.into_iter().chain(self.nearer(file, dir)).map(Root::File);
        is_open(&Root::Volume) || others.any(|root| is_open(&root))
    }

    /// The directories in which a file was made, below this one; all of them, if this is none.
    fn nearer(&self, file: &FileId, dir: &FileId) -> impl Iterator<Item = FileId> {
        self.homes(file).into_iter().take_while(move |home| home != dir)
    }

    /// A token has been given up at the store, or less of it is left.
    pub(super) fn gave_up(&mut self, root: &Root) {
        let mut lost: BTreeSet<FileId> = self.covered_by(root).into_iter().collect();
        if let Root::File(dir) = root {
            let holds = |home| self.mirror.mode(&Root::File(home)) == Some(Mode::Exclusive);
            lost.retain(|file| !self.nearer(file, dir).any(holds));
        }
        self.born.retain(|file, _| !lost.contains(file));
        self.gates.remove(root);
    }

    /// Hosts that others wait for and that do not live.
    pub(super) fn silent(&self) -> Vec<HostId> {
        let mut silent = Vec::new();
        for root in self.mirror.contested() {
            let Some(register) = self.mirror.register(root) else { continue };
            let Some(want) = register.want(self.settings.host) else { continue };
            let blockers = register.holders.iter();
            let blockers =
                blockers.filter(|entry| entry.mode.excludes(want.mode) && self.is_of_silent(entry));
            silent.extend(blockers.map(|entry| entry.host));
        }
        silent
    }

    fn is_of_silent(&self, entry: &Entry) -> bool {
        entry.host != self.settings.host
            && !self.mirror.is_void(entry)
            && !self.mirror.is_alive(entry.host)
            && self.mirror.is_fenced(entry.host).is_some()
    }

    /// What of these a host that does not live keeps from this one, or from another that comes before it.
    pub(super) fn kept_by_silent<'a>(&self, needs: &'a [Need]) -> Option<&'a Need> {
        needs.iter().find(|need| self.covered(need).is_none() && self.is_kept_by_silent(need))
    }

    fn is_kept_by_silent(&self, need: &Need) -> bool {
        let Some(register) = self.mirror.register(&need.root) else { return false };
        let before = register.wants.iter().take_while(|want| want.host != self.settings.host);
        let before =
            before.filter(|want| self.mirror.is_alive(want.host) && want.mode.excludes(need.mode));
        let modes: Vec<Mode> = before.map(|want| want.mode).chain([need.mode]).collect();
        register.holders.iter().any(|entry| {
            self.is_of_silent(entry) && modes.iter().any(|mode| entry.mode.excludes(*mode))
        })
    }

    /// What is left to be asked after so much time.
    pub(super) fn fence_silent(&mut self, now: Time) {
        let silent = self.silent();
        self.see_silent(now, &silent);
    }
}
