//! What clients were told, and what the origin has: the judges.

use destage_replicas::{Entry, Epoch, Owner, Position};
use std::collections::{BTreeMap, BTreeSet};

/// The clients' books.
#[derive(Default)]
pub(crate) struct Books {
    written: u32,
    acknowledged: BTreeMap<Position, u32>,
}

/// The origin: it takes each batch once, of its owner, in order.
#[derive(Default)]
pub(crate) struct Origin {
    fence: Epoch,
    pub(crate) watermark: Position,
    applied: Vec<(Position, u32)>,
}

impl Origin {
    /// Whether a log has ever been used with it.
    pub(crate) fn is_claimed(&self) -> bool {
        self.fence != Epoch::NONE
    }

    pub(crate) fn claim(&mut self, epoch: Epoch) -> Option<Position> {
        if epoch < self.fence {
            return None;
        }
        self.fence = epoch;
        Some(self.watermark)
    }

    pub(crate) fn apply(
        &mut self,
        epoch: Epoch,
        expected: Position,
        entries: &[(Position, Entry)],
    ) -> Option<Position> {
        if epoch != self.fence || expected != self.watermark {
            return None;
        }
        for (at, entry) in entries {
            if let Ok(id) = <[u8; 4]>::try_from(&entry.payload[..]) {
                self.applied.push((*at, u32::from_le_bytes(id)));
            }
            self.watermark = *at;
        }
        Some(self.watermark)
    }
}

impl Books {
    /// How much of what was acknowledged the origin does not have.
    pub(crate) fn undecided(&self, origin: &Origin) -> u64 {
        self.acknowledged.range(origin.watermark.next()..).count() as u64
    }

    pub(crate) fn write(&mut self) -> u32 {
        self.written += 1;
        self.written
    }

    pub(crate) fn acknowledged(&mut self, at: Position, id: u32) -> Result<(), String> {
        match self.acknowledged.insert(at, id) {
            None => Ok(()),
            Some(before) => Err(format!("{before} and {id} were both acknowledged at {at:?}")),
        }
    }

    /// Under d = 0 every answer shows everything that was acknowledged before.
    pub(crate) fn read(&self, upto: Position) -> Result<(), String> {
        let newest = self.acknowledged.last_key_value();
        match newest.filter(|&(&at, _)| at > upto) {
            None => Ok(()),
            Some((at, _)) => Err(format!("a read showed {upto:?} after {at:?} was acknowledged")),
        }
    }

    /// Whoever owns the log holds everything that was acknowledged, and all that the origin has of it is of that log.
    pub(crate) fn opened(
        &self,
        owner: &Owner,
        upto: Position,
        origin: &Origin,
    ) -> Result<(), String> {
        if origin.watermark > owner.last() {
            return Err(format!(
                "the log ends at {:?}, and is lost: the origin is at {:?}",
                owner.last(),
                origin.watermark
            ));
        }
        if owner.base() > origin.watermark.next() {
            return Err(format!(
                "the log begins at {:?}, the origin is at {:?}",
                owner.base(),
                origin.watermark
            ));
        }
        let log: BTreeMap<Position, &Entry> = owner.entries().collect();
        for (at, id) in self.acknowledged.range(owner.base()..) {
            let is_there = log.get(at).is_some_and(|entry| entry.payload[..] == id.to_le_bytes());
            if !is_there || *at > upto {
                return Err(format!("{id} at {at:?} was acknowledged and is lost"));
            }
        }
        Ok(())
    }

    pub(crate) fn check_end(&self, origin: &Origin) -> Result<(), String> {
        let ids: BTreeSet<u32> = origin.applied.iter().map(|&(_, id)| id).collect();
        if ids.len() != origin.applied.len() {
            return Err("the origin has something twice".into());
        }
        if !origin.applied.is_sorted() {
            return Err("the origin has something out of order".into());
        }
        let applied: BTreeMap<Position, u32> = origin.applied.iter().copied().collect();
        for (at, id) in &self.acknowledged {
            if applied.get(at) != Some(id) {
                return Err(format!(
                    "{id} at {at:?} was acknowledged, the origin has {:?}",
                    applied.get(at)
                ));
            }
        }
        Ok(())
    }
}
