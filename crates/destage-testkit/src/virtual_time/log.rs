//! What really happened: every group ever written, the origin's values, and the checks on both.
//!
//! The journal's content and the origin survive a crash; everything else is the driver's and does not.

use super::rng::Rng;
use destage_core::{Lsn, Span, Time};

/// What a group does to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Set(i64),
    Add(i64),
}

impl Op {
    pub(super) fn apply(self, value: &mut i64) {
        match self {
            Self::Set(new) => *value = new,
            Self::Add(n) => *value += n,
        }
    }
}

/// What the origin knows of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Undecided,
    Applied,
    Parked,
    /// Rejected, and its client was told so.
    Dropped,
}

/// One group.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) stamp: Time,
    pub(super) domain: u16,
    pub(super) ops: Vec<(u32, Op)>,
    /// What its client had read before.
    pub(super) builds_on: Vec<Lsn>,
    /// The origin rejects it.
    pub(super) poison: bool,
    pub(super) fate: Fate,
    /// When the client got its acknowledgement.
    pub(super) acked: Option<Time>,
    /// Some client has seen the result.
    pub(super) exposed: bool,
    /// Waits for the origin's word before anybody may see it.
    pub(super) hidden: bool,
}

impl Entry {
    pub(super) fn touches(&self, key: u32) -> bool {
        self.ops.iter().any(|&(k, _)| k == key)
    }
}

/// The log, the journal's durable part of it, and the origin.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) entries: Vec<Entry>,
    /// So many leading entries are durable.
    pub(super) durable: usize,
    /// The origin's values, and how often each was changed there.
    pub(super) origin: Vec<i64>,
    pub(super) versions: Vec<u64>,
    /// What readers must see, and the newest group that they see with it.
    pub(super) view: Vec<i64>,
    pub(super) newest: Vec<Lsn>,
    /// The medium hung for longer than the journal's interval: what is lost may be older than that, but not more.
    pub(super) hung: bool,
    /// All before this index is decided.
    decided: usize,
    /// Whether groups of a domain must be decided in order; otherwise only those that share a key.
    pub(super) by_domain: bool,
}

impl Log {
    pub(super) fn new(keys: u32) -> Self {
        let keys = keys as usize;
        Self {
            entries: Vec::new(),
            durable: 0,
            origin: vec![0; keys],
            versions: vec![0; keys],
            view: vec![0; keys],
            newest: vec![Lsn::ZERO; keys],
            hung: false,
            decided: 0,
            by_domain: true,
        }
    }

    pub(super) fn entry(&self, lsn: Lsn) -> &Entry {
        &self.entries[lsn.0 as usize - 1]
    }

    pub(super) fn entry_mut(&mut self, lsn: Lsn) -> &mut Entry {
        &mut self.entries[lsn.0 as usize - 1]
    }

    pub(super) fn last(&self) -> Lsn {
        Lsn(self.entries.len() as u64)
    }

    /// Everything up to here is decided at the origin.
    pub(super) fn decided(&mut self) -> Lsn {
        while self.entries.get(self.decided).is_some_and(|e| e.fate != Fate::Undecided) {
            self.decided += 1;
        }
        Lsn(self.decided as u64)
    }

    /// Undecided groups, oldest first.
    pub(super) fn undecided(&self) -> impl Iterator<Item = (Lsn, &Entry)> {
        let numbered = self.entries.iter().enumerate().skip(self.decided);
        numbered
            .filter(|(_, entry)| entry.fate == Fate::Undecided)
            .map(|(index, entry)| (Lsn(index as u64 + 1), entry))
    }

    /// What the client of the next group is taken to have read: of every second, one or two of the groups shortly before it that
    /// are not at the origin.
    pub(super) fn read_before(&self, lsn: Lsn) -> Vec<Lsn> {
        if !lsn.0.is_multiple_of(2) {
            return Vec::new();
        }
        let mut read = [lsn.0.saturating_sub(2 + lsn.0 / 2 % 6), lsn.0 - 1].map(Lsn).to_vec();
        read.dedup();
        let is_open = |fate| matches!(fate, Fate::Undecided | Fate::Parked);
        read.retain(|&lsn| lsn > Lsn::ZERO && is_open(self.entry(lsn).fate));
        read
    }

    /// Makes a group's result visible to readers.
    pub(super) fn show(&mut self, lsn: Lsn) {
        let ops = self.entry(lsn).ops.clone();
        self.entry_mut(lsn).hidden = false;
        for (key, op) in ops {
            op.apply(&mut self.view[key as usize]);
            self.newest[key as usize] = lsn;
        }
    }

    /// A reader's value from the origin: its row, with what is parked there.
    pub(super) fn read_origin(&self, key: u32) -> i64 {
        let mut value = self.origin[key as usize];
        let parked = self.entries.iter().filter(|entry| entry.fate == Fate::Parked);
        for (_, op) in parked.flat_map(|entry| &entry.ops).filter(|(k, _)| *k == key) {
            op.apply(&mut value);
        }
        value
    }

    fn check_order(&self, lsn: Lsn) -> Result<(), String> {
        let this = self.entry(lsn);
        if this.fate != Fate::Undecided {
            return Err(format!("group {lsn:?} is decided twice"));
        }
        let overtaken =
            self.undecided().take_while(|&(other, _)| other < lsn).find(|(_, older)| {
                if self.by_domain {
                    older.domain == this.domain
                } else {
                    older.ops.iter().any(|&(key, _)| this.touches(key))
                }
            });
        match overtaken {
            Some((older, _)) => Err(format!("group {lsn:?} overtook {older:?} at the origin")),
            None => Ok(()),
        }
    }

    /// The origin applies a batch as a whole, or finds a group that it rejects (`Ok(false)`).
    pub(super) fn apply(&mut self, lsns: &[Lsn], guarded: bool) -> Result<bool, String> {
        let landed = lsns.iter().filter(|&&lsn| self.entry(lsn).fate != Fate::Undecided).count();
        if guarded && landed == lsns.len() {
            return Ok(true);
        }
        if guarded && landed > 0 {
            return Err(format!("batch {lsns:?} changed its groups after it had landed"));
        }
        if lsns.iter().any(|&lsn| self.entry(lsn).poison) {
            return Ok(false);
        }
        for &lsn in lsns {
            if guarded {
                self.check_order(lsn)?;
            }
            let keys = self.entry(lsn).ops.clone();
            let depends = self.entries.iter().any(|entry| {
                entry.fate == Fate::Parked && keys.iter().any(|&(key, _)| entry.touches(key))
            });
            if depends && !self.entry(lsn).hidden {
                return Err(format!("group {lsn:?} was applied over a parked one of its unit"));
            }
            if let Some(other) = self.parked_below(lsn).filter(|_| self.by_domain) {
                return Err(format!("group {lsn:?} was applied though it builds on {other:?}"));
            }
            for (key, op) in keys {
                op.apply(&mut self.origin[key as usize]);
                self.versions[key as usize] += 1;
            }
            self.entry_mut(lsn).fate = Fate::Applied;
        }
        Ok(true)
    }

    /// A parked group of the same domain on which this one builds. That of another domain may have been parked just now.
    fn parked_below(&self, lsn: Lsn) -> Option<Lsn> {
        let this = self.entry(lsn);
        let is_parked = |other: &Lsn| {
            let other = self.entry(*other);
            other.fate == Fate::Parked && other.domain == this.domain
        };
        this.builds_on.iter().copied().find(is_parked)
    }

    /// The origin parks a group.
    pub(super) fn park(
        &mut self,
        lsn: Lsn,
        depends_on: Option<Lsn>,
        keep: bool,
    ) -> Result<(), String> {
        if matches!(self.entry(lsn).fate, Fate::Parked | Fate::Dropped) {
            return Ok(());
        }
        self.check_order(lsn)?;
        let this = self.entry(lsn);
        let is_right = match depends_on {
            None => this.poison,
            Some(lsn) => {
                let other = self.entry(lsn);
                let shares = other.ops.iter().any(|&(key, _)| this.touches(key));
                other.fate == Fate::Parked && (shares || this.builds_on.contains(&lsn))
            }
        };
        if !is_right {
            return Err(format!("group {lsn:?} was parked for no reason ({depends_on:?})"));
        }
        self.entry_mut(lsn).fate = if keep { Fate::Parked } else { Fate::Dropped };
        Ok(())
    }

    /// The host crashes: what the journal had not made durable is gone, up to a prefix that reached the medium by luck.
    pub(super) fn crash(&mut self, now: Time, commit: Span, rng: &mut Rng) -> Result<(), String> {
        let spare = (self.entries.len() - self.durable) as u64;
        let lucky = if rng.chance(50) { 0 } else { rng.below(spare + 1) as usize };
        let lost = self.entries.split_off(self.durable + lucky);
        let first = self.entries.len() as u64 + 1;
        if commit == Span::ZERO {
            for (index, entry) in lost.iter().enumerate() {
                let lsn = first + index as u64;
                if entry.acked.is_some() {
                    return Err(format!("acknowledged group {lsn} was lost with d = 0"));
                }
                if entry.exposed {
                    return Err(format!("group {lsn} was seen by a client, then lost with d = 0"));
                }
            }
        }
        if lost.iter().any(|entry| entry.fate != Fate::Undecided) {
            return Err("a group reached the origin before the journal held it".into());
        }
        let acked = lost.iter().filter(|entry| entry.acked.is_some());
        let oldest = acked.clone().map(|entry| entry.stamp).min().unwrap_or(now);
        let newest = acked.filter_map(|entry| entry.acked).max().unwrap_or(now);
        let until = if self.hung { newest } else { now };
        if until.since(oldest) > commit {
            let span = until.since(oldest);
            return Err(format!("writes of {span:?} were lost with d = {commit:?}"));
        }
        self.durable = self.entries.len();
        self.replay();
        Ok(())
    }

    /// What readers must see after a restart.
    fn replay(&mut self) {
        self.view.fill(0);
        self.newest.fill(Lsn::ZERO);
        for index in 0..self.entries.len() {
            if self.entries[index].fate != Fate::Dropped {
                self.show(Lsn(index as u64 + 1));
            }
        }
    }

    /// At the end: everything is decided, and the origin holds exactly what was accepted, each once.
    pub(super) fn check_end(&mut self) -> Result<(), String> {
        if self.decided() != self.last() {
            return Err(format!("drained, but only up to {:?} of {:?}", self.decided, self.last()));
        }
        let mut expected = vec![0; self.origin.len()];
        let applied = self.entries.iter().filter(|entry| entry.fate == Fate::Applied);
        for &(key, op) in applied.flat_map(|entry| &entry.ops) {
            op.apply(&mut expected[key as usize]);
        }
        if expected != self.origin {
            return Err(format!("the origin holds {:?}, not {expected:?}", self.origin));
        }
        let needless = self.entries.iter().find(|e| e.poison && e.fate == Fate::Applied);
        needless.map_or(Ok(()), |entry| Err(format!("a rejected group was applied: {entry:?}")))
    }
}
