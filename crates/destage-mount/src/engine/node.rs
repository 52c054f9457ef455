//! One file as this front end knows it: what of it the origin does not have yet.

use super::below::Place;
use super::extents::Extents;
use super::lives::Life;
use super::needs::Staged;
use super::record::Base;
use crate::ask::{Ino, Kind, Name, Stat};
use crate::origin::Key;
use destage_core::{Lsn, UnitId};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// A file: see the module.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) key: Key,
    pub(crate) kind: Kind,
    /// The kernel's references, and opens.
    pub(crate) lookups: u64,
    pub(crate) opens: u32,
    /// Of them, those through whose mappings the kernel may store.
    pub(crate) writers: u32,
    /// Names in [`Directory`]s that are this file's.
    pub(crate) refs: u32,
    /// What `stat` shows while anything of it is not at the origin; later the origin says it.
    pub(crate) stat: Option<Stat>,
    /// What the origin held before the first change that it does not hold.
    pub(crate) base: Option<Base>,
    pub(crate) content: Content,
    /// The oldest change of content or attributes that is not at the origin, with those after it.
    pub(crate) changed: Changed,
    /// The newest change of anything, names included.
    pub(crate) last: Lsn,
    /// When something of it was settled last: see [`Tree::settled`](super::tree::Tree::settled).
    pub(crate) settled: u64,
    /// Made in advance and not named at the origin yet: under which number, and since when it has a name here.
    pub(crate) staged: Option<(u64, Lsn)>,
    /// The origin may have something of it that was not there when it was made in advance.
    pub(crate) is_sent: bool,
    /// Since when it has no name.
    pub(crate) dead: Option<Lsn>,
    /// What extended attributes are to be; `None` for those that are to go.
    pub(crate) xattrs: BTreeMap<Name, (Value, Lsn)>,
    /// Of a directory.
    pub(crate) names: Directory,
    /// Kept readable at the origin.
    pub(crate) is_pinned: bool,
    pub(crate) unit: Option<UnitId>,
    pub(crate) place: Place,
}

/// What an extended attribute is to be, if it is to be there.
pub(crate) type Value = Option<Box<[u8]>>;

/// What is on top of the origin's content.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) extents: Extents,
    /// So many bytes of the origin's content can still be seen.
    pub(crate) limit: u64,
    /// The same for what the origin will hold once what is under way has arrived.
    pub(crate) next_limit: Option<u64>,
}

impl Content {
    /// Nothing is behind this place any more.
    pub(crate) fn cut(&mut self, size: u64) {
        self.extents.cut(size);
        self.limit = self.limit.min(size);
        self.next_limit = self.next_limit.map(|limit| limit.min(size));
    }
}

/// Since when something is not at the origin. While a part of it is under way, later changes are told apart.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Changed {
    pub(crate) first: Option<Lsn>,
    /// What of it was changed besides.
    pub(crate) parts: Parts,
    /// The first one after what is under way.
    later: Option<Lsn>,
    later_parts: Parts,
    is_sent: bool,
}

/// Which parts of a file were changed, even if they are as they were again: an attempt may have brought what was in between.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts {
    /// Bytes, or their number.
    pub(crate) has_content: bool,
    /// When its content changed.
    pub(crate) has_mtime: bool,
    /// Its mode, or whose it is, as far as others may have changed that unseen: of what is no file.
    pub(crate) has_mode: bool,
}

impl Changed {
    pub(crate) fn note(&mut self, lsn: Lsn) {
        self.first.get_or_insert(lsn);
        if self.is_sent {
            self.later.get_or_insert(lsn);
        }
    }

    /// The same of parts.
    pub(crate) fn note_parts(&mut self, note: impl Fn(&mut Parts)) {
        note(&mut self.parts);
        if self.is_sent {
            note(&mut self.later_parts);
        }
    }

    /// All of it is on its way.
    pub(crate) fn send(&mut self) {
        (self.later, self.later_parts, self.is_sent) = (None, Parts::default(), true);
    }

    /// It has arrived.
    pub(crate) fn arrived(&mut self) {
        *self = Self { first: self.later, parts: self.later_parts, ..Self::default() };
    }
}

/// What is known of a directory's names besides what the origin says.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// Whose a name is, if anybody's, and since when.
    pub(crate) known: HashMap<Name, (Option<Ino>, Lsn)>,
    /// There are no other names.
    pub(crate) is_complete: bool,
}

impl Node {
    pub(crate) fn new(key: Key, kind: Kind) -> Self {
        Self {
            key,
            kind,
            lookups: 0,
            opens: 0,
            writers: 0,
            refs: 0,
            stat: None,
            base: None,
            content: Content::default(),
            changed: Changed::default(),
            last: Lsn::ZERO,
            settled: 0,
            staged: None,
            is_sent: false,
            dead: None,
            xattrs: BTreeMap::new(),
            names: Directory::default(),
            is_pinned: false,
            unit: None,
            place: Place::default(),
        }
    }

    /// Tells lives of its number apart.
    pub(crate) fn generation(&self) -> u64 {
        // FNV-1a: the same after a restart.
        self.key.handle.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
    }

    /// From the group that made it in advance to the one with which its last name went, if it has none and the origin knows none.
    pub(crate) fn life(&self) -> Option<Life> {
        let ((_, from), to) = (self.staged?, self.dead?);
        Some(Life { ino: self.key.ino, from, to })
    }

    /// As a file that can be given out again, if it is one, is known to nobody, and the origin has it as it was made.
    pub(crate) fn unchanged(&self) -> Option<Staged> {
        let is_known = self.lookups > 0 || self.opens > 0 || self.refs > 0 || self.is_pinned;
        if self.kind != Kind::File || is_known || self.is_sent {
            return None;
        }
        let (number, _) = self.staged?;
        let stat = Stat { size: 0, blocks: 0, nlink: 1, ..self.stat? };
        Some(Staged { number, key: self.key.clone(), stat })
    }

    /// The number is another file's now. Returns the life that was.
    pub(crate) fn begin_life(&mut self, key: Key, kind: Kind) -> Option<Life> {
        let (life, lookups, refs, unit) = (self.life(), self.lookups, self.refs, self.unit);
        *self = Self { lookups, refs, unit, ..Self::new(key, kind) };
        life
    }

    /// What a file holds is of no use once it is gone, and the kernel does not know it any more: else somebody may be about to
    /// open it. A file made in advance may get a name at the origin yet, with its content.
    pub(crate) fn free_if_gone(&mut self) {
        if self.is_gone() && self.lookups == 0 && self.staged.is_none() {
            self.content.extents.forget_all();
        }
    }

    /// No name and nobody who has it open: what it holds is of no use to anybody.
    pub(crate) fn is_gone(&self) -> bool {
        self.dead.is_some() && self.opens == 0
    }
}
