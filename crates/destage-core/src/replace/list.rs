//! Doubly linked queues threaded through one array of nodes, indexed by unit.

use crate::id::UnitId;
use crate::per_unit::PerUnit;

/// No unit.
const NIL: u32 = u32::MAX;

/// A unit's links and size. Twelve bytes, because there is one per cached unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    newer: u32,
    older: u32,
    /// From the lowest bit: the queue that holds the unit (2 bits, 0 for none), how often it was touched since it entered (2
    /// bits), its size (28 bits).
    packed: u32,
}

const EMPTY: Node = Node { newer: NIL, older: NIL, packed: 0 };
const QUEUE_MASK: u32 = 0b11;
const TOUCHES_SHIFT: u32 = 2;
const BYTES_SHIFT: u32 = 4;
/// How often a unit counts as touched, at most.
pub(super) const TOUCHES_MAX: u32 = 0b11;
/// Larger units count as so large: 256 MiB.
const BYTES_MAX: u32 = u32::MAX >> BYTES_SHIFT;

impl Node {
    /// Which queue holds the unit; 0 for none.
    pub(super) fn queue(&self) -> u8 {
        (self.packed & QUEUE_MASK) as u8
    }

    /// How often the unit was touched since it entered.
    pub(super) fn touches(&self) -> u32 {
        self.packed >> TOUCHES_SHIFT & TOUCHES_MAX
    }

    /// The unit that entered the same queue next.
    pub(super) fn newer(&self) -> Option<u32> {
        (self.newer != NIL).then_some(self.newer)
    }

    pub(super) fn set_touches(&mut self, touches: u32) {
        let touches = touches.min(TOUCHES_MAX) << TOUCHES_SHIFT;
        self.packed = self.packed & !(TOUCHES_MAX << TOUCHES_SHIFT) | touches;
    }

    /// The unit's size.
    pub(super) fn bytes(&self) -> u32 {
        self.packed >> BYTES_SHIFT
    }

    fn set_bytes(&mut self, bytes: u32) {
        let rest = self.packed & ((1 << BYTES_SHIFT) - 1);
        self.packed = rest | bytes.min(BYTES_MAX) << BYTES_SHIFT;
    }
}

/// One queue: units leave at the old end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    id: u8,
    newest: u32,
    oldest: u32,
    pub(super) bytes: u64,
    pub(super) len: usize,
}

/// All nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes(PerUnit<Node>);

impl Nodes {
    pub(super) fn get(&self, unit: u32) -> Option<&Node> {
        self.0.get(UnitId(unit)).filter(|node| node.queue() != 0)
    }

    /// What is stored of the unit, in a queue or not.
    #[inline]
    pub(super) fn foresee(&self, unit: u32) -> u32 {
        self.0.get(UnitId(unit)).map_or(0, |node| node.packed)
    }

    pub(super) fn get_mut(&mut self, unit: u32) -> Option<&mut Node> {
        self.0.get_mut(UnitId(unit)).filter(|node| node.queue() != 0)
    }

    fn at(&mut self, unit: u32) -> &mut Node {
        &mut self.0[UnitId(unit)]
    }

    fn reach(&mut self, unit: u32) -> &mut Node {
        self.0.reach(UnitId(unit), EMPTY)
    }
}

impl Queue {
    /// An empty queue whose nodes carry `id` (not 0).
    pub(super) const fn new(id: u8) -> Self {
        Self { id, newest: NIL, oldest: NIL, bytes: 0, len: 0 }
    }

    /// Puts a unit that is in no queue at the new end.
    pub(super) fn push(&mut self, nodes: &mut Nodes, unit: u32, bytes: u32) {
        let newest = self.newest;
        let node = nodes.reach(unit);
        assert!(node.queue() == 0, "a unit is in one queue at a time");
        *node = Node { newer: NIL, older: newest, packed: u32::from(self.id) };
        node.set_bytes(bytes);
        let bytes = node.bytes();
        match newest {
            NIL => self.oldest = unit,
            _ => nodes.at(newest).newer = unit,
        }
        self.newest = unit;
        self.bytes += u64::from(bytes);
        self.len += 1;
    }

    /// Takes a unit out; its size is returned.
    pub(super) fn remove(&mut self, nodes: &mut Nodes, unit: u32) -> u32 {
        let node = *nodes.at(unit);
        assert!(node.queue() == self.id, "the unit is in this queue");
        match node.newer {
            NIL => self.newest = node.older,
            newer => nodes.at(newer).older = node.older,
        }
        match node.older {
            NIL => self.oldest = node.newer,
            older => nodes.at(older).newer = node.newer,
        }
        *nodes.at(unit) = EMPTY;
        self.bytes -= u64::from(node.bytes());
        self.len -= 1;
        node.bytes()
    }

    /// The unit at the old end.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NIL).then_some(self.oldest)
    }

    /// The unit at the new end.
    pub(super) fn newest(&self) -> Option<u32> {
        (self.newest != NIL).then_some(self.newest)
    }

    /// Changes a unit's size.
    pub(super) fn resize(&mut self, nodes: &mut Nodes, unit: u32, bytes: u32) {
        let node = nodes.at(unit);
        let before = node.bytes();
        node.set_bytes(bytes);
        self.bytes = self.bytes - u64::from(before) + u64::from(node.bytes());
    }
}
