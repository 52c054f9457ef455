//! A set of keys that may say yes to a key it was never given, and never says no to one that it was: Bloom filters in a row,
//! each of which takes twice as many keys as the one before. Nothing is taken out of it.
//!
//! *Source:* Bloom, "Space/time trade-offs in hash coding with allowable errors", 1970; Almeida et al., "Scalable Bloom
//! Filters", 2007. All filters have the same rate here: a set that is made anew begins with room for what it held.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Bits for a key of a full filter, and how many of them it sets: one in 318 foreign keys passes for one that was given.
const BITS_PER_KEY: u64 = 12;
const PROBES: u64 = 8;
/// Keys that the first filter takes at least.
const KEYS_MIN: u64 = 4_096;

/// A set of keys.
#[derive(Debug)]
pub(super) struct Keys {
    filters: Vec<Filter>,
    /// Keys that the next filter takes.
    next_keys: u64,
}

#[derive(Debug)]
struct Filter {
    words: Box<[u64]>,
    keys: u64,
    keys_max: u64,
}

impl Keys {
    /// An empty set, which takes so many keys before it grows. It takes no memory yet.
    pub(super) fn with_room(keys: u64) -> Self {
        Self { filters: Vec::new(), next_keys: keys.max(KEYS_MIN) }
    }

    /// Takes a key in; whether memory was taken for it.
    pub(super) fn insert(&mut self, key: &[u8]) -> bool {
        let hash = hash(key);
        if self.contains_hash(hash) {
            return false;
        }
        let is_full = self.filters.last().is_none_or(|filter| filter.keys == filter.keys_max);
        if is_full {
            self.filters.push(Filter::new(self.next_keys));
            self.next_keys = self.next_keys.saturating_mul(2);
        }
        self.filters.last_mut().expect("there is one with room").insert(hash);
        is_full
    }

    /// Whether a key may have been given; false is certain.
    #[inline]
    pub(super) fn may_hold(&self, key: &[u8]) -> bool {
        self.contains_hash(hash(key))
    }

    fn contains_hash(&self, hash: u64) -> bool {
        // The newest filter holds the most keys.
        self.filters.iter().rev().any(|filter| filter.contains(hash))
    }

    /// Keys that it was given, but for those that passed for others.
    pub(super) fn len(&self) -> u64 {
        self.filters.iter().map(|filter| filter.keys).sum()
    }

    /// Memory, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.filters.iter().map(|filter| size_of_val(&*filter.words)).sum()
    }

    /// What share of foreign keys it takes for its own, 0 to 1.
    pub(super) fn false_positive_rate(&self) -> f64 {
        let passes = |filter: &Filter| {
            let bits = filter.words.len() as f64 * 64.0;
            let is_set = 1.0 - (-((PROBES * filter.keys) as f64) / bits).exp();
            is_set.powi(PROBES as i32)
        };
        1.0 - self.filters.iter().map(|filter| 1.0 - passes(filter)).product::<f64>()
    }
}

impl Filter {
    fn new(keys_max: u64) -> Self {
        let words = (keys_max * BITS_PER_KEY).div_ceil(64);
        let words = usize::try_from(words).expect("a filter is far smaller than memory");
        Self { words: vec![0; words].into(), keys: 0, keys_max }
    }

    fn insert(&mut self, hash: u64) {
        for (word, bit) in places(hash, self.words.len()) {
            self.words[word] |= bit;
        }
        self.keys += 1;
    }

    fn contains(&self, hash: u64) -> bool {
        places(hash, self.words.len()).all(|(word, bit)| self.words[word] & bit != 0)
    }
}

/// Where a key's bits are: two halves of its hash, as good as that many hashes (Kirsch and Mitzenmacher, 2006).
fn places(hash: u64, words: usize) -> impl Iterator<Item = (usize, u64)> {
    let step = hash.rotate_left(32) | 1;
    (0..PROBES).map(move |probe| {
        let mixed = mix(hash.wrapping_add(step.wrapping_mul(probe)));
        let word = (u128::from(mixed) * words as u128) >> 64;
        (word as usize, 1 << (mixed & 63))
    })
}

/// Without a seed of its own: who chooses keys that collide has the origin asked for them, and no more.
fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Vec<u8> {
        number.to_string().into_bytes()
    }

    #[test]
    fn a_key_that_was_given_is_never_denied_however_the_set_has_grown() {
        let mut keys = Keys::with_room(0);
        assert!(!keys.may_hold(&key(1)) && keys.bytes() == 0, "nothing takes no memory");
        for number in 0..100_000 {
            keys.insert(&key(number));
            assert!(keys.may_hold(&key(number)));
        }
        assert!((0..100_000).all(|number| keys.may_hold(&key(number))));
        assert!((99_000..=100_000).contains(&keys.len()), "{}", keys.len());
    }

    #[test]
    fn few_foreign_keys_pass_and_as_many_as_it_says() {
        for (room, most, bytes_max) in [(0, 0.025, 400_000), (100_000, 0.0045, 150_000)] {
            let mut keys = Keys::with_room(room);
            (0..100_000).for_each(|number| _ = keys.insert(&key(number)));
            let passed = (100_000..300_000).filter(|&number| keys.may_hold(&key(number))).count();
            let (rate, said) = (passed as f64 / 200_000.0, keys.false_positive_rate());
            assert!(rate < most && (rate - said).abs() < most / 4.0, "{rate}, and it says {said}");
            assert!(keys.bytes() <= bytes_max, "{} bytes", keys.bytes());
        }
    }
}
