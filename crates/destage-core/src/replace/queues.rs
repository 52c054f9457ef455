//! Some queues over one array of nodes: a unit is in at most one of them.

use super::list::{Nodes, Queue};

/// `N` queues, numbered from 0; at most three.
#[derive(Clone, Debug)]
pub(super) struct Queues<const N: usize> {
    nodes: Nodes,
    queues: [Queue; N],
}

impl<const N: usize> Default for Queues<N> {
    fn default() -> Self {
        // Node 0 means "in no queue".
        Self { nodes: Nodes::default(), queues: core::array::from_fn(|i| Queue::new(i as u8 + 1)) }
    }
}

impl<const N: usize> Queues<N> {
    /// Puts a unit that is in no queue at the new end of one.
    pub(super) fn push(&mut self, queue: usize, unit: u32, bytes: u32) {
        self.queues[queue].push(&mut self.nodes, unit, bytes);
    }

    /// Takes a unit out; the queue it was in and its size are returned.
    pub(super) fn remove(&mut self, unit: u32) -> Option<(usize, u32)> {
        let queue = self.queue_of(unit)?;
        Some((queue, self.queues[queue].remove(&mut self.nodes, unit)))
    }

    /// Moves a present unit to the new end of a queue.
    pub(super) fn renew(&mut self, unit: u32, queue: usize) {
        if self.queues[queue].newest() == Some(unit) {
            return;
        }
        if let Some((_, bytes)) = self.remove(unit) {
            self.push(queue, unit, bytes);
        }
    }

    /// See [`super::Replacement::foresee`].
    #[inline]
    pub(super) fn foresee(&self, unit: u32) -> u32 {
        self.nodes.foresee(unit)
    }

    /// Which queue holds the unit.
    #[inline]
    pub(super) fn queue_of(&self, unit: u32) -> Option<usize> {
        self.nodes.get(unit).map(|node| usize::from(node.queue()) - 1)
    }

    /// The unit at a queue's old end.
    pub(super) fn oldest(&self, queue: usize) -> Option<u32> {
        self.queues[queue].oldest()
    }

    /// The unit that entered the same queue after this one.
    pub(super) fn newer(&self, unit: u32) -> Option<u32> {
        self.nodes.get(unit).and_then(|node| node.newer())
    }

    /// How often the unit was touched since it entered.
    pub(super) fn touches(&self, unit: u32) -> u32 {
        self.nodes.get(unit).map_or(0, |node| node.touches())
    }

    /// Sets how often the unit counts as touched.
    pub(super) fn set_touches(&mut self, unit: u32, touches: u32) {
        if let Some(node) = self.nodes.get_mut(unit) {
            node.set_touches(touches);
        }
    }

    /// Counts a touch up to a limit; false if the unit is not present.
    #[inline]
    pub(super) fn count_touch(&mut self, unit: u32, touches_max: u32) -> bool {
        let Some(node) = self.nodes.get_mut(unit) else { return false };
        if node.touches() < touches_max {
            node.set_touches(node.touches() + 1);
        }
        true
    }

    /// Changes a present unit's size.
    pub(super) fn resize(&mut self, unit: u32, bytes: u32) {
        if let Some(queue) = self.queue_of(unit) {
            self.queues[queue].resize(&mut self.nodes, unit, bytes);
        }
    }

    /// The size of a present unit.
    pub(super) fn bytes_of(&self, unit: u32) -> Option<u32> {
        self.nodes.get(unit).map(|node| node.bytes())
    }

    /// Bytes in one queue.
    pub(super) fn bytes_in(&self, queue: usize) -> u64 {
        self.queues[queue].bytes
    }

    /// Bytes in all queues.
    pub(super) fn bytes(&self) -> u64 {
        self.queues.iter().map(|queue| queue.bytes).sum()
    }

    /// Units in all queues.
    pub(super) fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.len).sum()
    }
}
