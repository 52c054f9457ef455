//! First-in-first-out queues of units, in five bytes a unit.
//!
//! A unit that becomes dirty, or whose block is trimmed, leaves its queue early. Its place stays in the chain, empty, until the
//! place reaches the old end: so a chain needs links in one direction only. If the unit is clean again before that, it takes
//! its empty place and is *late*: at the old end it gets another round. So it stays at least as long as it should, and at
//! most until its second turn. Each change clears away a few places, so that they never pile up before one choice.

use crate::id::UnitId;
use crate::per_unit::PerUnit;
use serde::{Deserialize, Serialize};

/// `N` queues, numbered from 0; at most three. A unit is in at most one of them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Fifos<const N: usize> {
    /// The unit behind each one in its chain; anything for the newest one.
    newer: PerUnit<u32>,
    marks: PerUnit<Mark>,
    sizes: Sizes,
    #[serde(with = "array")]
    chains: [Chain; N],
}

/// From the lowest bit: the queue that holds the unit (2 bits, 0 for none), how often it was touched since it entered (2
/// bits), the chain that its place is in (2 bits, 0 for none), whether it is late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
struct Mark(u8);

/// The places of one queue, and what counts to it.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Chain {
    newest: u32,
    oldest: u32,
    bytes: u64,
    len: usize,
}

/// How large units are.
#[derive(Clone, Debug, Deserialize, Serialize)]
enum Sizes {
    /// All alike; 0 as long as there are none.
    Same(u32),
    Each(PerUnit<u32>),
}

const NIL: u32 = u32::MAX;
/// How often a unit counts as touched, at most.
pub(super) const TOUCHES_MAX: u8 = 0b11;
/// Places looked at for being cleared, in each chain at each change.
const CLEARED: usize = 2;

impl Mark {
    const LATE: u8 = 1 << 6;

    fn queue(self) -> Option<usize> {
        usize::from(self.0 & 0b11).checked_sub(1)
    }

    fn touches(self) -> u8 {
        self.0 >> 2 & 0b11
    }

    fn chain(self) -> Option<usize> {
        usize::from(self.0 >> 4 & 0b11).checked_sub(1)
    }

    fn is_late(self) -> bool {
        self.0 & Self::LATE != 0
    }

    fn with_touches(self, touches: u8) -> Self {
        Self(self.0 & !(0b11 << 2) | touches.min(TOUCHES_MAX) << 2)
    }

    /// In a queue and untouched; its place is in the same chain.
    fn entered(queue: usize) -> Self {
        let number = queue as u8 + 1;
        Self(number | number << 4)
    }

    /// In a queue and untouched; its place is where it was.
    fn late(self, queue: usize) -> Self {
        Self((queue as u8 + 1) | self.0 & (0b11 << 4) | Self::LATE)
    }

    /// In no queue; its place stays.
    fn left(self) -> Self {
        Self(self.0 & (0b11 << 4))
    }
}

impl<const N: usize> Default for Fifos<N> {
    fn default() -> Self {
        Self {
            newer: PerUnit::default(),
            marks: PerUnit::default(),
            sizes: Sizes::Same(0),
            chains: [Chain { newest: NIL, oldest: NIL, bytes: 0, len: 0 }; N],
        }
    }
}

impl<const N: usize> Fifos<N> {
    /// Puts a unit that is in no queue at the new end of one.
    pub(super) fn push(&mut self, queue: usize, unit: UnitId, bytes: u32) {
        if self.len() == 0 {
            self.sizes = Sizes::Same(bytes);
        }
        let mark = *self.marks.reach(unit, Mark::default());
        assert!(mark.queue().is_none(), "a unit is in one queue at a time");
        self.sizes.set(unit, bytes, self.marks.len());
        self.chains[queue].bytes += u64::from(bytes);
        self.chains[queue].len += 1;
        match mark.chain() {
            Some(_) => self.marks[unit] = mark.late(queue),
            None => self.append(queue, unit),
        }
        self.clear_away();
    }

    /// Takes a unit out; its size is returned.
    pub(super) fn remove(&mut self, unit: UnitId) -> Option<u32> {
        let bytes = self.leave(unit)?;
        self.clear_away();
        Some(bytes)
    }

    /// The unit at a queue's old end. `None` as well if the places of all its units are in other chains, behind units of
    /// those: then there is an oldest unit in another queue.
    pub(super) fn oldest(&mut self, queue: usize) -> Option<UnitId> {
        while self.clear_oldest(queue) {}
        if self.chains[queue].oldest == NIL {
            (0..N).for_each(|other| while self.clear_oldest(other) {});
        }
        let oldest = self.chains[queue].oldest;
        (oldest != NIL).then_some(UnitId(oldest))
    }

    /// Moves the unit at a queue's old end to the new end of a queue.
    pub(super) fn renew_oldest(&mut self, from: usize, to: usize, touches: u8) {
        let unit = UnitId(self.chains[from].oldest);
        let bytes = u64::from(self.sizes.get(unit));
        self.unlink_oldest(from);
        self.chains[from].bytes -= bytes;
        self.chains[from].len -= 1;
        self.chains[to].bytes += bytes;
        self.chains[to].len += 1;
        self.append(to, unit);
        self.marks[unit] = self.marks[unit].with_touches(touches);
    }

    /// See [`super::Replacement::foresee`].
    #[inline]
    pub(super) fn foresee(&self, unit: UnitId) -> u32 {
        self.marks.get(unit).map_or(0, |mark| mark.0.into())
    }

    /// Counts a touch; false if the unit is not present.
    #[inline]
    pub(super) fn count_touch(&mut self, unit: UnitId) -> bool {
        let Some(mark) = self.marks.get_mut(unit) else { return false };
        *mark = match mark.queue() {
            Some(_) => mark.with_touches(mark.touches() + 1),
            None => return false,
        };
        true
    }

    /// How often the unit was touched since it entered.
    pub(super) fn touches(&self, unit: UnitId) -> u8 {
        self.marks.get(unit).map_or(0, |mark| mark.touches())
    }

    /// Changes a present unit's size.
    pub(super) fn resize(&mut self, unit: UnitId, bytes: u32) {
        let Some(queue) = self.queue_of(unit) else { return };
        let before = self.sizes.get(unit);
        self.sizes.set(unit, bytes, self.marks.len());
        let chain = &mut self.chains[queue];
        chain.bytes = chain.bytes - u64::from(before) + u64::from(bytes);
    }

    /// The size of a present unit.
    pub(super) fn bytes_of(&self, unit: UnitId) -> Option<u32> {
        self.queue_of(unit).map(|_| self.sizes.get(unit))
    }

    /// Bytes in one queue.
    pub(super) fn bytes_in(&self, queue: usize) -> u64 {
        self.chains[queue].bytes
    }

    /// Units in one queue.
    #[cfg(test)]
    pub(super) fn len_in(&self, queue: usize) -> usize {
        self.chains[queue].len
    }

    /// Bytes in all queues.
    pub(super) fn bytes(&self) -> u64 {
        self.chains.iter().map(|chain| chain.bytes).sum()
    }

    /// Units in all queues.
    pub(super) fn len(&self) -> usize {
        self.chains.iter().map(|chain| chain.len).sum()
    }

    fn queue_of(&self, unit: UnitId) -> Option<usize> {
        self.marks.get(unit).and_then(|mark| mark.queue())
    }

    fn leave(&mut self, unit: UnitId) -> Option<u32> {
        let queue = self.queue_of(unit)?;
        let bytes = self.sizes.get(unit);
        self.marks[unit] = self.marks[unit].left();
        self.chains[queue].bytes -= u64::from(bytes);
        self.chains[queue].len -= 1;
        Some(bytes)
    }

    /// Gives a unit without a place one at the new end.
    fn append(&mut self, queue: usize, unit: UnitId) {
        *self.newer.reach(unit, NIL) = NIL;
        self.marks[unit] = Mark::entered(queue);
        let chain = &mut self.chains[queue];
        match chain.newest {
            NIL => chain.oldest = unit.0,
            newest => self.newer[UnitId(newest)] = unit.0,
        }
        chain.newest = unit.0;
    }

    fn unlink_oldest(&mut self, queue: usize) {
        let chain = &mut self.chains[queue];
        chain.oldest = self.newer[UnitId(chain.oldest)];
        if chain.oldest == NIL {
            chain.newest = NIL;
        }
    }

    /// Takes the oldest place of a chain away if its unit has left or is late, which goes to the new end of its own queue.
    /// False if it is neither, or there is none.
    fn clear_oldest(&mut self, queue: usize) -> bool {
        let unit = match self.chains[queue].oldest {
            NIL => return false,
            oldest => UnitId(oldest),
        };
        let mark = self.marks[unit];
        match mark.queue() {
            Some(_) if !mark.is_late() => return false,
            Some(own) => {
                self.unlink_oldest(queue);
                self.append(own, unit);
                self.marks[unit] = self.marks[unit].with_touches(mark.touches());
            }
            None => {
                self.unlink_oldest(queue);
                self.marks[unit] = Mark::default();
            }
        }
        true
    }

    fn clear_away(&mut self) {
        for queue in 0..N {
            let _ = (0..CLEARED).all(|_| self.clear_oldest(queue));
        }
    }
}

impl Sizes {
    #[inline]
    fn get(&self, unit: UnitId) -> u32 {
        match self {
            Self::Same(bytes) => *bytes,
            Self::Each(sizes) => sizes.get(unit).copied().unwrap_or(0),
        }
    }

    /// `units` is how many units the others' sizes are kept of once sizes differ.
    #[inline]
    fn set(&mut self, unit: UnitId, bytes: u32, units: usize) {
        match self {
            Self::Same(same) if *same == bytes => {}
            Self::Same(_) => self.set_apart(unit, bytes, units),
            Self::Each(sizes) => *sizes.reach(unit, 0) = bytes,
        }
    }

    #[cold]
    fn set_apart(&mut self, unit: UnitId, bytes: u32, units: usize) {
        let same = self.get(unit);
        let mut sizes = PerUnit::default();
        sizes.reach(UnitId(units as u32 - 1), same);
        *sizes.reach(unit, same) = bytes;
        *self = Self::Each(sizes);
    }
}

/// Arrays of any length, which serde knows only up to a few.
mod array {
    use super::Chain;
    use alloc::vec::Vec;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer, const N: usize>(
        chains: &[Chain; N],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        chains.as_slice().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        deserializer: D,
    ) -> Result<[Chain; N], D::Error> {
        let chains = Vec::<Chain>::deserialize(deserializer)?;
        chains.try_into().map_err(|_| D::Error::custom("another number of queues"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn drain(fifos: &mut Fifos<2>, queue: usize) -> Vec<u32> {
        core::iter::from_fn(|| {
            let unit = fifos.oldest(queue)?;
            fifos.remove(unit);
            Some(unit.0)
        })
        .collect()
    }

    #[test]
    fn units_leave_in_the_order_they_came_and_one_that_came_back_is_as_new() {
        let mut fifos = Fifos::<2>::default();
        (0..10).for_each(|unit| fifos.push(0, UnitId(unit), 4_096));
        let sizes = [3, 5, 6, 7].map(|unit| fifos.remove(UnitId(unit)));
        assert_eq!(sizes, [Some(4_096); 4]);
        fifos.push(0, UnitId(5), 4_096);
        fifos.push(1, UnitId(6), 4_096);
        assert_eq!((fifos.len_in(0), fifos.len_in(1), fifos.bytes()), (7, 1, 8 * 4_096));
        assert_eq!(drain(&mut fifos, 0), [0, 1, 2, 4, 8, 9, 5]);
        assert_eq!((drain(&mut fifos, 1), fifos.len()), ([6].to_vec(), 0));
    }

    #[test]
    fn places_of_units_that_left_do_not_pile_up_before_one_choice() {
        const UNITS: u32 = 100_000;
        let mut fifos = Fifos::<1>::default();
        (0..UNITS).for_each(|unit| fifos.push(0, UnitId(unit), 1));
        // All leave, the oldest one last, so that its place holds up the others; then all come back.
        (0..UNITS).rev().for_each(|unit| assert_eq!(fifos.remove(UnitId(unit)), Some(1)));
        (0..UNITS).for_each(|unit| fifos.push(0, UnitId(unit), 1));
        let late = (0..UNITS).filter(|&unit| fifos.marks[UnitId(unit)].is_late()).count();
        assert!(late < 4, "{late} places are left to be cleared away");
    }

    #[test]
    fn sizes_part_at_the_first_that_differs() {
        let mut fifos = Fifos::<1>::default();
        (0..100).for_each(|unit| fifos.push(0, UnitId(unit), 4_096));
        assert!(matches!(fifos.sizes, Sizes::Same(4_096)));
        fifos.resize(UnitId(8), 5);
        fifos.push(0, UnitId(100), 7);
        let sizes = [7, 8, 100, 101].map(|unit| fifos.bytes_of(UnitId(unit)));
        assert_eq!(sizes, [Some(4_096), Some(5), Some(7), None]);
        assert_eq!(fifos.bytes(), 99 * 4_096 + 5 + 7);
    }

    proptest! {
        #[test]
        fn any_changes_keep_count_and_lose_nothing(
            steps in proptest::collection::vec((0..20_u32, 0..6_u8, 1..3_u32), 1..200)
        ) {
            let mut fifos = Fifos::<2>::default();
            let mut held = alloc::collections::BTreeMap::new();
            for (unit, what, bytes) in steps {
                let queue = usize::from(what % 2);
                match what {
                    0 | 1 if !held.contains_key(&unit) => {
                        fifos.push(queue, UnitId(unit), bytes);
                        held.insert(unit, (queue, bytes));
                    }
                    2 => prop_assert_eq!(fifos.remove(UnitId(unit)), held.remove(&unit).map(|h| h.1)),
                    3 => {
                        if let Some(oldest) = fifos.oldest(queue) {
                            fifos.renew_oldest(queue, 1 - queue, 1);
                            prop_assert_eq!(fifos.touches(oldest), 1);
                            held.get_mut(&oldest.0).unwrap().0 = 1 - queue;
                        }
                    }
                    4 if held.contains_key(&unit) => {
                        fifos.resize(UnitId(unit), bytes);
                        held.get_mut(&unit).unwrap().1 = bytes;
                    }
                    _ => prop_assert_eq!(fifos.count_touch(UnitId(unit)), held.contains_key(&unit)),
                }
                for queue in 0..2 {
                    let own = held.values().filter(|h| h.0 == queue);
                    prop_assert_eq!(fifos.len_in(queue), own.clone().count());
                    prop_assert_eq!(fifos.bytes_in(queue), own.map(|h| u64::from(h.1)).sum::<u64>());
                }
            }
            let mut left = Vec::new();
            while fifos.len() > 0 {
                let more = [drain(&mut fifos, 0), drain(&mut fifos, 1)].concat();
                prop_assert!(!more.is_empty(), "some queue has an oldest unit");
                left.extend(more);
            }
            left.sort_unstable();
            prop_assert_eq!(left, held.into_keys().collect::<Vec<_>>());
        }
    }
}
