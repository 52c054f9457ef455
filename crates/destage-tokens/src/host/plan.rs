//! The next transaction: all that can be changed at the store now.

use super::gates::Phase;
use super::session::Fencing;
use super::{Effect, Host, Need, Stage};
use crate::{Entry, HostId, Key, Mode, Put, Register, Rev, Root, Txn, Value};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use destage_core::Time;

/// A transaction under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Inflight {
    puts: Vec<Put>,
    /// Tokens that are given up by it.
    given: Vec<Root>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// This host becomes known.
    Enter,
    Tokens,
    Leave,
}

/// Tokens that are to change.
type Draft = BTreeMap<Root, Register>;

impl Host {
    pub(super) fn plan(&mut self, now: Time) {
        match self.stage {
            Stage::Entering => self.enter(),
            Stage::Confirming => {
                let draft = self.restamp();
                if draft.is_empty() {
                    self.all_confirmed();
                    self.step(now);
                } else {
                    self.send_tokens(draft, Vec::new());
                }
            }
            Stage::Online => {
                if let Some((host, life)) = self.fenced() {
                    return self.declare_fenced(host, life);
                }
                let mut draft = self.give_up();
                let given = draft.keys().cloned().collect();
                self.take(&mut draft);
                self.unqueue(&mut draft);
                if !draft.is_empty() {
                    self.send_tokens(draft, given);
                }
            }
            Stage::Leaving => self.leave_next(),
            _ => {}
        }
    }

    fn me(&self) -> HostId {
        self.settings.host
    }

    fn compare(&self, key: Key) -> (Key, Rev) {
        let rev = self.mirror.rev(&key);
        (key, rev)
    }

    fn send(&mut self, kind: Kind, compares: Vec<(Key, Rev)>, puts: Vec<Put>) {
        self.inflight = Some(Inflight { puts: puts.clone(), given: Vec::new(), kind });
        self.effects.push_back(Effect::Txn(Txn { compares, puts }));
    }

    fn send_tokens(&mut self, draft: Draft, given: Vec<Root>) {
        // Of a host that has been fenced, nothing counts that comes late.
        let mut compares = vec![self.compare(Key::Host(self.me()))];
        let mut puts = Vec::new();
        for (root, register) in draft {
            let key = Key::Token(root);
            compares.push(self.compare(key.clone()));
            let value = (!register.is_idle()).then_some(Value::Token(register));
            puts.push(Put { key, value, lease: None });
        }
        self.send(Kind::Tokens, compares, puts);
        if let Some(inflight) = &mut self.inflight {
            inflight.given = given;
        }
    }

    fn enter(&mut self) {
        let (host, session) = (Key::Host(self.me()), Key::Session(self.me()));
        let fenced = self.mirror.is_fenced(self.me());
        let epoch = self.mirror.epoch();
        let is_another = epoch != Rev::NONE && epoch != self.mirror.rev(&host);
        // It has lived through it: what it has not brought to the origin is to be confirmed by a new start.
        if is_another {
            return self.fenced_out();
        }
        let compares = vec![self.compare(host.clone()), self.compare(session.clone())];
        let mut puts = vec![
            Put { key: session, value: Some(Value::Session), lease: self.lease.id },
            Put { key: Key::Life(self.me()), value: Some(Value::Life), lease: None },
        ];
        if fenced != Some(false) {
            let value = Some(Value::Host { is_fenced: false });
            puts.push(Put { key: host, value, lease: None });
        }
        self.send(Kind::Enter, compares, puts);
    }

    /// What is left of an earlier life gets this one's epoch.
    fn restamp(&self) -> Draft {
        let (me, epoch) = (self.me(), self.mirror.epoch());
        let old = self
            .mirror
            .tokens()
            .filter(|(_, register)| register.holder(me).is_some_and(|entry| entry.epoch != epoch));
        let renewed = old.take(ROOTS_MAX).map(|(root, register)| {
            let mut register = register.clone();
            let mode = register.holder(me).map(|entry| entry.mode);
            register.hold(me, epoch, mode);
            register.unqueue(me);
            (root.clone(), register)
        });
        renewed.collect()
    }

    /// What is drained.
    fn give_up(&self) -> Draft {
        let (me, epoch) = (self.me(), self.mirror.epoch());
        let drained = self.gates.iter().filter(|(_, gate)| gate.phase == Phase::Drained);
        let given = drained.take(ROOTS_MAX).map(|(root, gate)| {
            let mut register = self.mirror.register(root).cloned().unwrap_or_default();
            register.hold(me, epoch, gate.to);
            (root.clone(), register)
        });
        given.collect()
    }

    /// What requests wait for, as far as it can be had; and a place in the queue for the first that cannot.
    fn take(&self, draft: &mut Draft) {
        for needs in self.waiting() {
            if draft.len() >= ROOTS_MAX {
                return;
            }
            if !self.take_volume(draft) {
                continue;
            }
            let is_whole = draft.get(&Root::Volume).and_then(|register| register.holder(self.me()));
            if is_whole.is_some_and(|entry| entry.mode == Mode::Exclusive) {
                return;
            }
            // It would not keep the others, so it does not take them from anybody before it can have this one.
            if let Some(kept) = self.kept_by_silent(needs) {
                if !self.is_closing(&kept.root) {
                    self.take_one(draft, kept);
                }
                continue;
            }
            for need in needs {
                if self.covered(need).is_some() {
                    continue;
                }
                if self.is_closing(&need.root) || !self.take_one(draft, need) {
                    break;
                }
            }
        }
    }

    /// Whether a token is being given up, or one that covers it: what changes under it goes to the origin with that one.
    fn is_closing(&self, root: &Root) -> bool {
        let homes = match root {
            Root::Volume => Vec::new(),
            Root::File(file) => self.homes(file),
        };
        let mut all = homes.into_iter().map(Root::File).chain([root.clone()]);
        all.any(|root| self.gates.contains_key(&root))
    }

    /// The whole volume, if nobody else is there, or a part in it. False if it must be waited for.
    fn take_volume(&self, draft: &mut Draft) -> bool {
        let root = Root::Volume;
        if self.gates.contains_key(&root) {
            return false;
        }
        let held = self.mirror.mode(&root);
        if held == Some(Mode::Exclusive) || draft.contains_key(&root) {
            return held.is_some();
        }
        let register = self.mirror.register(&root);
        let is_other = |entry: &Entry| entry.host != self.me();
        // Who is void there may come back, and find out by it what it may still do.
        let is_shared = register.is_some_and(|register| {
            register.holders.iter().any(is_other) || register.wants.iter().any(is_other)
        });
        if held.is_some() && is_shared {
            return true;
        }
        let mode = if is_shared { Mode::Read } else { Mode::Exclusive };
        self.take_one(draft, &Need { root, mode, is_explicit: true })
    }

    fn take_one(&self, draft: &mut Draft, need: &Need) -> bool {
        let (me, epoch) = (self.me(), self.mirror.epoch());
        let planned = draft.get(&need.root);
        let known = planned.or_else(|| self.mirror.register(&need.root));
        let mut register = known.cloned().unwrap_or_default();
        if register.holder(me).is_some_and(|own| own.epoch == epoch && own.mode >= need.mode) {
            return true;
        }
        let excludes = |entry: &Entry| entry.host != me && entry.mode.excludes(need.mode);
        let is_held =
            register.holders.iter().any(|entry| excludes(entry) && !self.mirror.is_void(entry));
        let before = register.wants.iter().take_while(|want| want.host != me);
        let mut before = before.filter(|want| self.mirror.is_alive(want.host));
        let is_due = !is_held && !before.any(excludes);
        if is_due {
            register.holders.retain(|entry| !excludes(entry));
            register.hold(me, epoch, Some(need.mode));
            register.unqueue(me);
        } else if register.want(me).is_some_and(|own| own.epoch == epoch && own.mode >= need.mode) {
            return false;
        } else {
            register.queue(me, epoch, need.mode);
        }
        draft.insert(need.root.clone(), register);
        is_due
    }

    /// Nobody is to wait behind a request that is gone.
    fn unqueue(&self, draft: &mut Draft) {
        let contested = self.mirror.contested().iter();
        for root in contested {
            if draft.contains_key(root) || draft.len() >= ROOTS_MAX {
                continue;
            }
            let Some(register) = self.mirror.register(root) else { continue };
            if register.want(self.me()).is_some() && !self.is_waited_for(root) {
                let mut register = register.clone();
                register.unqueue(self.me());
                draft.insert(root.clone(), register);
            }
        }
    }

    /// Whether it is what a request takes next. A place in front of others is not kept for what comes after that: they may
    /// have what comes before it, and wait for this one.
    fn is_waited_for(&self, root: &Root) -> bool {
        let is_next = |needs: &Vec<Need>| {
            let first = || needs.iter().find(|need| self.covered(need).is_none());
            self.kept_by_silent(needs).or_else(first).is_some_and(|need| need.root == *root)
        };
        *root == Root::Volume && self.mirror.mode(root).is_none() && self.waiting().next().is_some()
            || self.waiting().any(is_next)
    }

    fn fenced(&self) -> Option<(HostId, Rev)> {
        self.fencing.iter().find_map(|(host, fencing)| match fencing {
            Fencing::Done(life) => Some((*host, *life)),
            Fencing::Silent(_) | Fencing::Asked(_) => None,
        })
    }

    /// It has no session, and nothing of this life of it can reach the origin: what it holds is void from now on.
    ///
    /// That it has not come back since is compared: whoever was shut out may start again before this is carried out, and be
    /// silent again by then. Of that life nothing is known.
    fn declare_fenced(&mut self, host: HostId, life: Rev) {
        self.fencing.remove(&host);
        let key = Key::Host(host);
        let mut compares = vec![
            self.compare(Key::Host(self.me())),
            self.compare(key.clone()),
            (Key::Session(host), Rev::NONE),
        ];
        if !self.settings.controls.any_life {
            compares.push((Key::Life(host), life));
        }
        let value = Some(Value::Host { is_fenced: true });
        self.send(Kind::Tokens, compares, vec![Put { key, value, lease: None }]);
    }

    fn leave_next(&mut self) {
        let me = self.me();
        let own = self
            .mirror
            .tokens()
            .filter(|(_, register)| register.holder(me).is_some() || register.want(me).is_some());
        let own = own.take(ROOTS_MAX).map(|(root, register)| {
            let mut register = register.clone();
            register.hold(me, Rev::NONE, None);
            register.unqueue(me);
            (root.clone(), register)
        });
        let draft: Draft = own.collect();
        if !draft.is_empty() {
            return self.send_tokens(draft, Vec::new());
        }
        let keys = [Key::Host(me), Key::Session(me), Key::Life(me)];
        let compares = vec![self.compare(keys[0].clone())];
        let puts = keys.map(|key| Put { key, value: None, lease: None });
        self.send(Kind::Leave, compares, puts.into());
    }

    /// The transaction was carried out.
    pub(super) fn done(&mut self, inflight: Inflight, revision: Rev) {
        let mut epoch = None;
        for Put { key, value, .. } in inflight.puts {
            match &key {
                Key::Token(root) => {
                    if inflight.given.contains(root) {
                        self.gave_up(root);
                    }
                    let is_whole = matches!(&value, Some(Value::Token(register))
                        if register.holder(self.settings.host).is_some_and(|own| own.mode == Mode::Exclusive));
                    if *root == Root::Volume && is_whole {
                        // Names may change under it without a word about the directories.
                        self.born.clear();
                    }
                }
                Key::Host(host) if *host == self.settings.host => epoch = Some(revision),
                _ => {}
            }
            self.mirror.set(revision, key, value, revision);
        }
        match inflight.kind {
            Kind::Enter => {
                let known = self.mirror.rev(&Key::Host(self.settings.host));
                // A lease may have ended meanwhile.
                if self.stage == Stage::Entering {
                    self.entered(epoch.unwrap_or(known));
                }
            }
            Kind::Leave => self.left(),
            Kind::Tokens => {}
        }
    }
}

/// Tokens that change in one transaction: etcd takes 128 operations.
const ROOTS_MAX: usize = 60;
