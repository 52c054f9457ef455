//! Who waits until a group is committed or decided.

use hashbrown::HashMap;

/// Who waits for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// A flush, or a write that must be durable.
    Asked(u32),
    /// Whoever called [`super::Volume::wait`] or [`super::Volume::freeze`].
    Caller(u64),
    /// The change of the policy.
    Policy,
    /// Nobody: what is dirty is wanted at the origin.
    Nobody,
}

/// Everyone who waits, by the number that the core knows.
#[derive(Debug, Default)]
pub(super) struct Waits(HashMap<u64, Wait>);

impl Waits {
    /// Someone waits from now on.
    pub(super) fn begin(&mut self, id: u64, wait: Wait) {
        self.0.insert(id, wait);
    }

    /// The wait is over. Returns who waited.
    pub(super) fn end(&mut self, id: u64) -> Option<Wait> {
        self.0.remove(&id)
    }

    /// Whether a change of the policy waits for a group.
    pub(super) fn is_policy_waiting(&self) -> bool {
        self.0.values().any(|wait| *wait == Wait::Policy)
    }

    /// All wait in vain. Returns the callers' tags, who waits longest first.
    pub(super) fn end_all(&mut self) -> Vec<u64> {
        let mut waits: Vec<_> = std::mem::take(&mut self.0).into_iter().collect();
        // A hash map's order must not show.
        waits.sort_unstable_by_key(|&(id, _)| id);
        let caller = |(_, wait)| match wait {
            Wait::Caller(tag) => Some(tag),
            _ => None,
        };
        waits.into_iter().filter_map(caller).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_once_and_all_end_in_order() {
        let mut waits = Waits::default();
        waits.begin(1, Wait::Policy);
        for id in (2..9).rev() {
            waits.begin(id, Wait::Caller(id * 10));
        }
        waits.begin(9, Wait::Asked(4));
        assert!(waits.is_policy_waiting());
        assert_eq!(waits.end(3), Some(Wait::Caller(30)));
        assert_eq!(waits.end(3), None);
        assert_eq!(waits.end_all(), [20, 40, 50, 60, 70, 80]);
        assert_eq!(waits.end(9), None);
        assert!(!waits.is_policy_waiting());
    }
}
