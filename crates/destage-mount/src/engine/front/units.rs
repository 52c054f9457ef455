//! Handles by which the core knows files.

use super::Front;
use crate::ask::Ino;
use destage_core::{Input, UnitId};

/// Which file has which handle.
#[derive(Debug, Default)]
pub(super) struct Units {
    files: Vec<Option<Ino>>,
    free: Vec<UnitId>,
}

impl Units {
    fn give(&mut self, ino: Ino) -> UnitId {
        match self.free.pop() {
            Some(unit) => {
                self.files[unit.0 as usize] = Some(ino);
                unit
            }
            None => {
                self.files.push(Some(ino));
                UnitId(self.files.len() as u32 - 1)
            }
        }
    }

    /// A handle is free again: whose it was.
    pub(super) fn take(&mut self, unit: UnitId) -> Option<Ino> {
        let ino = self.files[unit.0 as usize].take();
        if ino.is_some() {
            self.free.push(unit);
        }
        ino
    }
}

impl Front {
    pub(super) fn unit(&mut self, ino: Ino) -> Option<UnitId> {
        let node = self.tree.node_mut(ino)?;
        if node.unit.is_none() {
            node.unit = Some(self.units.give(ino));
        }
        node.unit
    }

    /// Files without undecided changes need no handles.
    pub(super) fn give_back_units(&mut self) {
        let clean: Vec<UnitId> = (0..self.units.files.len())
            .filter(|&index| self.units.files[index].is_some())
            .map(|index| UnitId(index as u32))
            .filter(|&unit| !self.core.has_undecided(unit))
            .collect();
        for unit in clean {
            self.core.handle(self.now, Input::Invalidate { unit });
        }
    }
}
