//! What is looked at that no process knows, and how a run stands.

use crate::world::{Machine, World};
use destage_replicas::{Entry, Epoch, Position};
use std::collections::BTreeMap;

impl World {
    /// What is acknowledged, the origin holds, or as many servers as there are copies, but for those that have lost it again.
    pub(crate) fn check_held(&mut self, position: Position, id: u32) -> Result<(), String> {
        if position <= self.origin.watermark {
            self.report.through += u64::from(self.held_by(position, id) < self.setup.copies);
            return Ok(());
        }
        let held = self.held_by(position, id) + self.lost_since_settled;
        if held < self.setup.copies {
            return Err(format!("{id} at {position:?} is acknowledged, {held} servers hold it"));
        }
        Ok(())
    }

    fn held_by(&self, position: Position, id: u32) -> usize {
        let holds = |machine: &&Machine| {
            let mut entries = machine.memory.entries();
            entries.any(|(at, entry)| at == position && entry.payload[..] == id.to_le_bytes())
        };
        self.machines.iter().filter(holds).count()
    }

    /// Equal positions of equal epochs hold the same on all servers.
    pub(crate) fn check_logs(&self) -> Result<(), String> {
        let mut known: BTreeMap<(Position, Epoch), &Entry> = BTreeMap::new();
        for machine in &self.machines {
            for (at, entry) in machine.memory.entries() {
                let first = known.entry((at, entry.epoch)).or_insert(entry);
                if *first != entry {
                    return Err(format!("two entries at {at:?} of {}", entry.epoch));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn describe(&self) -> String {
        let stages: Vec<_> = self
            .processes
            .iter()
            .map(|at| {
                at.owner.as_ref().map(|owner| {
                    (
                        owner.stage().clone(),
                        owner.committed(),
                        owner.last(),
                        owner.standings().collect::<Vec<_>>(),
                        owner.config().cloned(),
                    )
                })
            })
            .collect();
        let views: Vec<_> =
            self.machines.iter().map(|m| (m.run, m.is_up, m.memory.view())).collect();
        format!("{stages:#?} {views:#?} W {:?}", self.origin.watermark)
    }
}
