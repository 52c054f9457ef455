//! What a slow disk alone holds after numbered writes: whether it ever was a state of the volume, and how old it is.

use super::numbered::Order;

/// Which writes were answered by when, as the writer said it: numbers and milliseconds, both growing.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Vec<(u64, u64)>);

impl Progress {
    pub(super) fn add(&mut self, number: u64, milliseconds: u64) {
        let is_later = self.0.last().is_none_or(|last| last.0 < number && last.1 <= milliseconds);
        assert!(is_later, "a writer goes on");
        self.0.push((number, milliseconds));
    }

    /// The last write of which is known that it was answered; 0 for none.
    pub(super) fn answered(&self) -> u64 {
        self.0.last().map_or(0, |last| last.0)
    }

    pub(super) fn seconds(&self) -> f64 {
        self.0.last().map_or(0.0, |last| last.1 as f64 / 1e3)
    }

    /// When this write had been answered, at the latest.
    fn time_of(&self, number: u64) -> f64 {
        let at = self.0.partition_point(|line| line.0 < number);
        self.0.get(at).map_or_else(|| self.seconds(), |line| line.1 as f64 / 1e3)
    }
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct State {
    /// Writes that were answered.
    pub(super) answered: u64,
    /// The newest write that is there; 0 for none.
    pub(super) newest: u64,
    /// Blocks whose content is older than it was when that write was made.
    pub(super) wrong: u64,
    /// Answered writes of which neither they nor later ones of the same block are there.
    pub(super) missing: u64,
    /// How long before the end the oldest of those was answered.
    pub(super) age_seconds: f64,
}

impl State {
    /// The volume once was in this state.
    pub(super) fn existed(&self) -> bool {
        self.wrong == 0
    }

    /// `found` has the number of each block's write. Writes are in groups of `epoch`, each ended by a flush: within the group of
    /// the newest, a crash of the disk itself could have left any of them out, unless `is_exact`.
    pub(super) fn of(
        found: &[u64],
        seed: u64,
        progress: &Progress,
        epoch: u64,
        is_exact: bool,
    ) -> Self {
        let answered = progress.answered();
        let newest = found.iter().copied().max().unwrap_or(0);
        let whole = if is_exact { newest } else { newest.saturating_sub(1) / epoch * epoch };
        let mut order = Order::new(seed, found.len() as u64);
        // The last write of each block up to `whole`, and the answered ones that are not there.
        let mut due = vec![0; found.len()];
        let (mut missing, mut oldest) = (0, None);
        for number in 1..=answered.max(newest) {
            let block = usize::try_from(order.next()).expect("a place in `found`");
            if number <= whole {
                due[block] = number;
            }
            if number <= answered && found[block] < number {
                missing += 1;
                oldest = oldest.or(Some(number));
            }
        }
        let wrong = found.iter().zip(&due).filter(|(found, due)| found < due).count();
        let age_seconds =
            oldest.map_or(0.0, |number| progress.seconds() - progress.time_of(number));
        Self { answered, newest, wrong: wrong as u64, missing, age_seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: usize = 8;
    const EPOCH: u64 = 4;

    /// The blocks as of the first so many writes, but for some.
    fn after(writes: u64, without: &[u64]) -> Vec<u64> {
        let mut order = Order::new(3, BLOCKS as u64);
        let mut found = vec![0; BLOCKS];
        for number in 1..=writes {
            let block = order.next() as usize;
            if !without.contains(&number) {
                found[block] = number;
            }
        }
        found
    }

    fn judged(found: &[u64], is_exact: bool) -> State {
        let mut progress = Progress::default();
        (1..=10).for_each(|tenth| progress.add(tenth * 10, tenth * 100));
        State::of(found, 3, &progress, EPOCH, is_exact)
    }

    #[test]
    fn each_state_that_was_is_one() {
        for writes in 0..=100 {
            let state = judged(&after(writes, &[]), true);
            assert!(state.existed() && state.newest == writes, "{writes}: {state:?}");
            let is_old = state.age_seconds > 0.85;
            assert_eq!(is_old, writes < 10, "{writes}: {state:?}");
        }
        let whole = judged(&after(100, &[]), true);
        assert_eq!((whole.missing, whole.age_seconds), (0, 0.0));
    }

    #[test]
    fn what_leaves_out_an_earlier_write_never_was() {
        // The newest write of another block, well before the last.
        let found = after(100, &[]);
        let left_out = found.iter().copied().filter(|number| *number <= 96).max().expect("some");
        let state = judged(&after(100, &[left_out]), false);
        assert!(!state.existed() && state.missing == 1, "{state:?}");
        assert!(state.age_seconds < 0.5, "{state:?}");
    }

    #[test]
    fn the_last_group_may_be_there_in_part_unless_the_state_is_to_be_exact() {
        // Writes 97 to 100 are one group.
        let found = after(100, &[]);
        let left_out = found.iter().copied().filter(|number| (97..100).contains(number)).max();
        let found = after(100, &[left_out.expect("one of them is still there")]);
        assert!(judged(&found, false).existed());
        assert!(!judged(&found, true).existed());
    }
}
