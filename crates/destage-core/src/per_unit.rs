//! Values by unit.

use crate::id::UnitId;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};
use serde::{Deserialize, Serialize};

/// One value per unit, in an array, since handles are dense.
///
/// It grows by an eighth, not to the double: it has an entry per cached unit, and each unit answers for its share of the
/// room that is not used yet. What that costs in copying stays below ten times the array's final size.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PerUnit<T>(Vec<T>);

/// Fewest entries that the array grows by.
const GROWTH_MIN: usize = 64;
/// It grows by its length over this.
const GROWTH_DIVISOR: usize = 8;

impl<T> Default for PerUnit<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone> PerUnit<T> {
    /// The unit's value, if the array reaches so far.
    #[inline]
    pub fn get(&self, unit: UnitId) -> Option<&T> {
        self.0.get(unit.0 as usize)
    }

    /// The unit's value, if the array reaches so far.
    #[inline]
    pub fn get_mut(&mut self, unit: UnitId) -> Option<&mut T> {
        self.0.get_mut(unit.0 as usize)
    }

    /// The unit's value; up to there the array is filled with `empty`.
    #[inline]
    pub fn reach(&mut self, unit: UnitId, empty: T) -> &mut T {
        let index = unit.0 as usize;
        if self.0.len() <= index {
            self.grow(index + 1, empty);
        }
        &mut self.0[index]
    }

    #[cold]
    fn grow(&mut self, len: usize, empty: T) {
        if len > self.0.capacity() {
            let room = len + (self.0.len() / GROWTH_DIVISOR).max(GROWTH_MIN);
            self.0.reserve_exact(room - self.0.len());
        }
        self.0.resize(len, empty);
    }

    /// How many units the array reaches.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it reaches none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All values, by rising unit.
    pub fn iter(&self) -> impl Iterator<Item = (UnitId, &T)> {
        self.0.iter().enumerate().map(|(index, value)| (UnitId(index as u32), value))
    }
}

/// # Panics
/// If the array does not reach so far.
impl<T> Index<UnitId> for PerUnit<T> {
    type Output = T;

    #[inline]
    fn index(&self, unit: UnitId) -> &T {
        &self.0[unit.0 as usize]
    }
}

impl<T> IndexMut<UnitId> for PerUnit<T> {
    #[inline]
    fn index_mut(&mut self, unit: UnitId) -> &mut T {
        &mut self.0[unit.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_where_they_are_and_room_stays_small() {
        let mut values = PerUnit::default();
        for unit in 0..100_000 {
            *values.reach(UnitId(unit), 0) = unit;
            let room = values.0.capacity() - values.len();
            assert!(room <= (values.len() / GROWTH_DIVISOR).max(GROWTH_MIN), "{room} at {unit}");
        }
        assert!(values.iter().all(|(unit, &value)| value == unit.0));
        *values.reach(UnitId(100_010), 7) = 8;
        assert_eq!((values[UnitId(100_009)], values[UnitId(100_010)]), (7, 8));
        assert_eq!((values.len(), values.get(UnitId(100_011))), (100_011, None));
    }
}
