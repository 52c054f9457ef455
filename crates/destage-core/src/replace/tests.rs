//! Each policy against a model written from its definition over plain vectors: the same hits, access by access.

use super::{
    Arc, Clock, Fifo, Lru, NumberedArc, NumberedTwoQ, Replacement, S3Fifo, Sieve, TwoQ, spread,
    unspread,
};
use crate::id::UnitId;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use proptest::prelude::*;

#[test]
fn a_number_is_found_again_by_what_it_was_spread_to() {
    for number in (0..100_000).chain([u64::MAX, 1 << 43, 0x1234_5678_9abc]) {
        assert_eq!(unspread(spread(number)), number);
    }
}

const SIZE: u32 = 4_096;
/// Units in the tests.
const UNITS: u32 = 1_024;
/// Up to so many places the ghosts of S3-FIFO are kept in one queue.
const EXACT_MAX: usize = 32;

/// A different fingerprint for each unit.
fn identity(unit: u32) -> u64 {
    u64::from(unit) << 49 | 1 << 48 | u64::from(unit) << 22
}

/// A cache in the form of the papers: fixed places, room is made before a miss enters.
trait Model {
    fn access(&mut self, unit: u32) -> bool;
}

/// Drives the policy as a demand cache of so many places.
struct Cache<R> {
    policy: R,
    places: usize,
    identity: fn(u32) -> u64,
}

impl<R: Replacement> Model for Cache<R> {
    fn access(&mut self, unit: u32) -> bool {
        if self.policy.touch(UnitId(unit)) {
            return true;
        }
        let bytes_max = self.places as u64 * u64::from(SIZE);
        let identity = self.identity;
        self.policy.expect(identity(unit));
        while self.policy.bytes() + u64::from(SIZE) > bytes_max {
            let evicted = self.policy.evict(bytes_max).expect("something is present");
            assert!(self.policy.bytes_of(evicted).is_none());
            self.policy.evicted(identity(evicted.0));
        }
        self.policy.insert(UnitId(unit), SIZE, Some(identity(unit)));
        assert_eq!(self.policy.bytes(), self.policy.len() as u64 * u64::from(SIZE));
        false
    }
}

/// Oldest first; takes `unit` out if it is there.
fn take(list: &mut VecDeque<u32>, unit: u32) -> bool {
    let place = list.iter().position(|&other| other == unit);
    place.map(|place| list.remove(place)).is_some()
}

struct FifoModel(VecDeque<u32>, usize);

impl Model for FifoModel {
    fn access(&mut self, unit: u32) -> bool {
        if self.0.contains(&unit) {
            return true;
        }
        if self.0.len() == self.1 {
            self.0.pop_front();
        }
        self.0.push_back(unit);
        false
    }
}

struct LruModel(VecDeque<u32>, usize);

impl Model for LruModel {
    fn access(&mut self, unit: u32) -> bool {
        let hit = take(&mut self.0, unit);
        if !hit && self.0.len() == self.1 {
            self.0.pop_front();
        }
        self.0.push_back(unit);
        hit
    }
}

/// A ring of places with a bit each and a hand, the classic form: the queue of the implementation is this ring cut at the hand.
struct ClockModel {
    ring: Vec<(u32, bool)>,
    hand: usize,
    places: usize,
}

impl Model for ClockModel {
    fn access(&mut self, unit: u32) -> bool {
        if let Some(entry) = self.ring.iter_mut().find(|entry| entry.0 == unit) {
            entry.1 = true;
            return true;
        }
        if self.ring.len() < self.places {
            self.ring.push((unit, false));
            return false;
        }
        while self.ring[self.hand].1 {
            self.ring[self.hand].1 = false;
            self.hand = (self.hand + 1) % self.places;
        }
        self.ring[self.hand] = (unit, false);
        self.hand = (self.hand + 1) % self.places;
        false
    }
}

/// Oldest first, with the visited bit; the hand is a position.
struct SieveModel {
    list: Vec<(u32, bool)>,
    hand: usize,
    places: usize,
}

impl Model for SieveModel {
    fn access(&mut self, unit: u32) -> bool {
        if let Some(entry) = self.list.iter_mut().find(|entry| entry.0 == unit) {
            entry.1 = true;
            return true;
        }
        if self.list.len() == self.places {
            while self.list[self.hand].1 {
                self.list[self.hand].1 = false;
                self.hand = (self.hand + 1) % self.places;
            }
            self.list.remove(self.hand);
            // The hand now points at the next newer one, or has run off the new end.
            if self.hand == self.list.len() {
                self.hand = 0;
            }
        }
        self.list.push((unit, false));
        false
    }
}

struct TwoQModel {
    once: VecDeque<u32>,
    out: VecDeque<u32>,
    again: VecDeque<u32>,
    places: usize,
}

impl Model for TwoQModel {
    fn access(&mut self, unit: u32) -> bool {
        if take(&mut self.again, unit) {
            self.again.push_back(unit);
            return true;
        }
        if self.once.contains(&unit) {
            return true;
        }
        let was_out = take(&mut self.out, unit);
        if self.once.len() + self.again.len() == self.places {
            if self.once.len() > self.places / 4 || self.again.is_empty() {
                let left = self.once.pop_front().expect("one of the two is not empty");
                self.out.push_back(left);
                if self.out.len() > self.places / 2 {
                    self.out.pop_front();
                }
            } else {
                self.again.pop_front();
            }
        }
        if was_out { &mut self.again } else { &mut self.once }.push_back(unit);
        false
    }
}

/// The paper's figure 4, case by case, with its names.
#[derive(Default)]
struct ArcModel {
    t1: VecDeque<u32>,
    t2: VecDeque<u32>,
    b1: VecDeque<u32>,
    b2: VecDeque<u32>,
    /// In bytes, rounded down, as in the implementation.
    p: u64,
    c: usize,
}

impl ArcModel {
    fn replace(&mut self, in_b2: bool) {
        let t1 = self.t1.len() as u64 * u64::from(SIZE);
        let from_t1 = t1 > self.p || (in_b2 && t1 == self.p);
        if !self.t1.is_empty() && (from_t1 || self.t2.is_empty()) {
            self.b1.extend(self.t1.pop_front());
        } else {
            self.b2.extend(self.t2.pop_front());
        }
    }

    fn step(own: usize, other: usize) -> u64 {
        (u64::from(SIZE) * other as u64 / own as u64).max(u64::from(SIZE))
    }
}

impl Model for ArcModel {
    fn access(&mut self, unit: u32) -> bool {
        let c = self.c;
        if take(&mut self.t1, unit) || take(&mut self.t2, unit) {
            self.t2.push_back(unit);
            return true;
        }
        if self.b1.contains(&unit) {
            let step = Self::step(self.b1.len(), self.b2.len());
            self.p = (self.p + step).min(c as u64 * u64::from(SIZE));
            take(&mut self.b1, unit);
            self.replace(false);
            self.t2.push_back(unit);
            return false;
        }
        if self.b2.contains(&unit) {
            let step = Self::step(self.b2.len(), self.b1.len());
            self.p = self.p.saturating_sub(step);
            take(&mut self.b2, unit);
            self.replace(true);
            self.t2.push_back(unit);
            return false;
        }
        let all = self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len();
        if self.t1.len() + self.b1.len() == c {
            if self.t1.len() < c {
                self.b1.pop_front();
                self.replace(false);
            } else {
                self.t1.pop_front();
            }
        } else if all >= c {
            if all == 2 * c {
                self.b2.pop_front();
            }
            self.replace(false);
        }
        self.t1.push_back(unit);
        false
    }
}

struct S3FifoModel {
    small: VecDeque<(u32, u32)>,
    main: VecDeque<(u32, u32)>,
    /// Oldest first.
    ghost: VecDeque<u32>,
    places: usize,
}

impl S3FifoModel {
    /// As many as the main queue has places.
    fn remember(&mut self, unit: u32) {
        let present = self.small.len() + self.main.len();
        self.ghost.push_back(unit);
        while self.ghost.len() > (present * 90 / 100).max(1) {
            self.ghost.pop_front();
        }
    }

    fn evict(&mut self) {
        let bytes = self.places as u64 * u64::from(SIZE);
        let main_max = bytes - bytes / 100 * 10;
        loop {
            let main_full = self.main.len() as u64 * u64::from(SIZE) > main_max;
            if self.small.is_empty() || main_full {
                let (unit, touches) = self.main.pop_front().expect("something is present");
                match touches {
                    0 => return,
                    _ => self.main.push_back((unit, touches - 1)),
                }
            } else if let Some((unit, touches)) = self.small.pop_front() {
                match touches {
                    0 | 1 => return self.remember(unit),
                    _ => self.main.push_back((unit, 0)),
                }
            }
        }
    }
}

impl Model for S3FifoModel {
    fn access(&mut self, unit: u32) -> bool {
        let mut present = self.small.iter_mut().chain(&mut self.main);
        if let Some(entry) = present.find(|entry| entry.0 == unit) {
            entry.1 = (entry.1 + 1).min(3);
            return true;
        }
        if self.small.len() + self.main.len() == self.places {
            self.evict();
        }
        let ghost = self.ghost.iter().position(|&ghost| ghost == unit);
        let queue = if ghost.is_some() { &mut self.main } else { &mut self.small };
        ghost.map(|place| self.ghost.remove(place));
        queue.push_back((unit, 0));
        false
    }
}

fn agree(policy: impl Replacement, model: &mut impl Model, places: usize, accesses: &[u32]) {
    agree_by(identity, policy, model, places, accesses);
}

/// The same, with units known by this identity.
fn agree_by(
    identity: fn(u32) -> u64,
    policy: impl Replacement,
    model: &mut impl Model,
    places: usize,
    accesses: &[u32],
) {
    let mut cache = Cache { policy, places, identity };
    let mut hits = 0;
    for (index, &unit) in accesses.iter().enumerate() {
        let expected = model.access(unit);
        assert_eq!(cache.access(unit), expected, "access {index}, to unit {unit}");
        hits += usize::from(expected);
    }
    assert!(cache.policy.len() <= places && hits <= accesses.len());
}

/// Hot units, cold ones and scans.
fn accesses() -> impl Strategy<Value = Vec<u32>> {
    let run = prop_oneof![
        4 => prop::collection::vec(0..12u32, 1..40),
        2 => prop::collection::vec(0..60u32, 1..40),
        1 => (0..UNITS - 100, 1..100u32).prop_map(|(from, len)| (from..from + len).collect()),
    ];
    prop::collection::vec(run, 1..30).prop_map(|runs| runs.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_policy_hits_when_its_definition_hits(places in 1..48usize, accesses in accesses()) {
        let list = VecDeque::new;
        agree(Fifo::default(), &mut FifoModel(list(), places), places, &accesses);
        agree(Lru::default(), &mut LruModel(list(), places), places, &accesses);
        let mut clock = ClockModel { ring: Vec::new(), hand: 0, places };
        agree(Clock::default(), &mut clock, places, &accesses);
        let mut sieve = SieveModel { list: Vec::new(), hand: 0, places };
        agree(Sieve::default(), &mut sieve, places, &accesses);
        let two_q = || TwoQModel { once: list(), out: list(), again: list(), places };
        agree(TwoQ::default(), &mut two_q(), places, &accesses);
        agree_by(u64::from, NumberedTwoQ::default(), &mut two_q(), places, &accesses);
        let arc = || ArcModel { c: places, ..ArcModel::default() };
        agree(Arc::default(), &mut arc(), places, &accesses);
        agree_by(u64::from, NumberedArc::default(), &mut arc(), places, &accesses);
        let (ghost, places) = (VecDeque::new(), places.min(EXACT_MAX));
        let [small, main] = [VecDeque::new(), VecDeque::new()];
        let mut s3fifo = S3FifoModel { small, main, ghost, places };
        agree(S3Fifo::default(), &mut s3fifo, places, &accesses);
    }

    #[test]
    fn units_that_are_taken_out_or_change_their_size_are_counted_right(
        steps in prop::collection::vec((0..40u32, 0..5u8, 1..9_000u32), 1..400),
    ) {
        sizes_add_up(Fifo::default(), &steps);
        sizes_add_up(Lru::default(), &steps);
        sizes_add_up(Clock::default(), &steps);
        sizes_add_up(Sieve::default(), &steps);
        sizes_add_up(TwoQ::default(), &steps);
        sizes_add_up(Arc::default(), &steps);
        sizes_add_up(S3Fifo::default(), &steps);
    }
}

fn sizes_add_up(mut policy: impl Replacement, steps: &[(u32, u8, u32)]) {
    const BYTES_MAX: u64 = 60_000;
    let mut present = alloc::collections::BTreeMap::new();
    for &(unit, action, bytes) in steps {
        let id = UnitId(unit);
        assert_eq!(policy.bytes_of(id), present.get(&unit).copied());
        match action {
            0 => assert_eq!(policy.remove(id), present.remove(&unit)),
            1 if present.contains_key(&unit) => {
                policy.resize(id, bytes);
                present.insert(unit, bytes);
            }
            _ if policy.touch(id) => {}
            _ => {
                // Units come back from being pinned without an identity.
                policy.insert(id, bytes, (action > 2).then_some(identity(unit)));
                present.insert(unit, bytes);
            }
        }
        while policy.bytes() > BYTES_MAX {
            let evicted = policy.evict(BYTES_MAX).expect("something is present");
            assert!(present.remove(&evicted.0).is_some());
            policy.evicted(identity(evicted.0));
        }
        assert_eq!(policy.bytes(), present.values().map(|&bytes| u64::from(bytes)).sum::<u64>());
        assert_eq!((policy.len(), policy.is_empty()), (present.len(), present.is_empty()));
    }
}
