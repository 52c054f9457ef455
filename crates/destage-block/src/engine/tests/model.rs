//! What may be read, and what the origin may hold.

use destage_core::{Lsn, Order};
use std::collections::BTreeMap;

/// What clients wrote, by sector, as far as they can know its order: by which reply came before which request.
#[derive(Debug, Default)]
pub(super) struct Registers {
    clock: u64,
    writes: BTreeMap<u32, Write>,
    sectors: Vec<Vec<u32>>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    /// What its sectors hold afterwards: its id, or 0.
    value: u32,
    begun: u64,
    /// When its reply came; never for one that failed.
    ended: u64,
    is_durable: bool,
}

const NEVER: u64 = u64::MAX;

impl Registers {
    /// A volume whose sectors hold these values.
    pub(super) fn new(values: &[u32]) -> Self {
        let mut registers = Self { sectors: vec![Vec::new(); values.len()], ..Self::default() };
        registers.reset(values);
        registers
    }

    /// The sectors hold these values for certain.
    pub(super) fn reset(&mut self, values: &[u32]) {
        self.writes.clear();
        for (sector, &value) in values.iter().enumerate() {
            // Numbers from the top: clients count from below.
            let id = u32::MAX - sector as u32;
            let write = Write { value, begun: 0, ended: 0, is_durable: true };
            self.writes.insert(id, write);
            self.sectors[sector] = vec![id];
        }
    }

    /// A moment that all others are before or after.
    pub(super) fn moment(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(super) fn begin(&mut self, id: u32, value: u32, sectors: std::ops::Range<usize>) {
        let begun = self.moment();
        self.writes.insert(id, Write { value, begun, ended: NEVER, is_durable: false });
        for sector in sectors {
            self.sectors[sector].push(id);
        }
    }

    pub(super) fn end(&mut self, id: u32, is_durable: bool) {
        let ended = self.moment();
        let write = self.writes.get_mut(&id).expect("it has begun");
        write.ended = ended;
        write.is_durable |= is_durable;
    }

    /// A flush that began at `begun` has been answered.
    pub(super) fn flushed(&mut self, begun: u64) {
        for write in self.writes.values_mut() {
            write.is_durable |= write.ended < begun;
        }
    }

    fn check(&self, sector: usize, value: u32, what: &str, counts: impl Fn(&Write) -> bool) {
        let writes: Vec<Write> = self.sectors[sector].iter().map(|id| self.writes[id]).collect();
        let is_newest_known =
            |write: &Write| !writes.iter().any(|later| write.ended < later.begun && counts(later));
        assert!(
            writes.iter().any(|write| write.value == value && is_newest_known(write)),
            "{what}: sector {sector} holds {value}, which cannot be: {writes:?}"
        );
    }

    /// A read that began at `begun` found this value.
    pub(super) fn check_read(&self, sector: usize, value: u32, begun: u64) {
        self.check(sector, value, "a read", |later| later.ended < begun);
    }

    /// After a crash a sector holds this value.
    pub(super) fn check_recovered(&self, sector: usize, value: u32, what: &str) {
        self.check(sector, value, what, |later| later.is_durable);
    }
}

/// The log as the volume wrote it, by number.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// What the origin held before all of it.
    base: Vec<u32>,
    groups: BTreeMap<Lsn, Logged>,
}

/// A group: what its sectors hold afterwards.
#[derive(Clone, Debug)]
pub(super) struct Logged {
    /// Run of the process, and level in it.
    pub(super) level: (u32, u64),
    pub(super) sectors: Vec<(usize, u32)>,
    /// The next group is another part of the same request.
    pub(super) continues: bool,
}

impl Log {
    pub(super) fn new(base: Vec<u32>) -> Self {
        Self { base, groups: BTreeMap::new() }
    }

    pub(super) fn push(&mut self, lsn: Lsn, group: Logged) {
        self.groups.insert(lsn, group);
    }

    /// What came after this was lost, and its numbers are used again.
    pub(super) fn truncate(&mut self, last: Lsn) {
        self.groups.split_off(&last.next());
        // A request that was cut short ends here.
        if let Some(group) = self.groups.get_mut(&last) {
            group.continues = false;
        }
    }

    /// The sectors after all groups up to this one.
    pub(super) fn state_at(&self, upto: Lsn) -> Vec<u32> {
        let mut state = self.base.clone();
        for (_, group) in self.groups.range(..=upto) {
            group.sectors.iter().for_each(|&(sector, value)| state[sector] = value);
        }
        state
    }

    /// Whether the origin may hold this, if its policy keeps that order and `decided` has been decided.
    pub(super) fn check_origin(&self, order: Order, found: &[u32], decided: Lsn, done: Lsn) {
        if order == Order::Domain {
            assert!(
                done >= decided,
                "the origin is behind what was decided: {done:?} < {decided:?}"
            );
            let last = self.groups.get(&done);
            assert!(
                !last
                    .is_some_and(|group| group.continues && self.groups.contains_key(&done.next())),
                "the origin stopped inside a request, at {done:?}"
            );
            let expected = self.state_at(done);
            assert!(
                found == expected,
                "the origin is not the log up to {done:?}: {}",
                first_difference(found, &expected)
            );
            return;
        }
        let mut levels: Vec<(u32, u64)> = self.groups.values().map(|group| group.level).collect();
        levels.dedup();
        assert!(levels.is_sorted(), "levels never fall");
        // Everything of the levels before the last decided group's is decided.
        let at_least = self.groups.range(..=decided).next_back().map(|(_, group)| group.level);
        let before = levels.iter().filter(|&&level| at_least.is_some_and(|least| level < least));
        let fits = (before.count()..=levels.len()).any(|whole| self.fits(found, &levels, whole));
        assert!(
            fits,
            "the origin is no whole number of levels and a part of the next; decided {decided:?}"
        );
    }

    /// Whether the sectors are those of the first `whole` levels and any of the next one.
    fn fits(&self, found: &[u32], levels: &[(u32, u64)], whole: usize) -> bool {
        let (mut state, mut allowed) = (self.base.clone(), BTreeMap::<usize, Vec<u32>>::new());
        for group in self.groups.values() {
            let Ok(level) = levels.binary_search(&group.level) else { return false };
            for &(sector, value) in &group.sectors {
                if level < whole {
                    state[sector] = value;
                } else if level == whole {
                    allowed.entry(sector).or_default().push(value);
                }
            }
        }
        found.iter().enumerate().all(|(sector, value)| {
            state[sector] == *value
                || allowed.get(&sector).is_some_and(|values| values.contains(value))
        })
    }
}

fn first_difference(found: &[u32], expected: &[u32]) -> String {
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    differs.map_or_else(String::new, |sector| {
        format!("sector {sector} holds {} instead of {}", found[sector], expected[sector])
    })
}
