//! Recently evicted units, by fingerprint, in a fixed amount of memory.

use alloc::vec;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A ghost queue in pieces: each identity belongs to one bucket, and a bucket is a short FIFO queue of fingerprints. A ghost
/// that returns makes room in its bucket, as it would in one long queue. What differs from that is when a ghost is
/// forgotten: after as many others of its bucket, which are so many on average; and that one unit in 2^11 is taken for
/// another. Both change hit ratios, never what is read: on real traces the miss ratio is less than 0.003 above that with one
/// queue, and below it where blocks come back a little later than one queue would remember them.
///
/// ```text
/// words   [ newest .. oldest | newest .. oldest | ... ]      BUCKET words of 16 bits each, 0 behind the oldest
/// ```
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Ghost {
    words: Vec<u16>,
}

/// Ghosts in a bucket: a line of a processor's cache.
const BUCKET: usize = 32;

impl Ghost {
    /// Remembers an eviction among about `length` entries.
    pub(super) fn insert(&mut self, identity: u64, length: usize) {
        if self.words.len() < length.max(1) {
            // Ghosts are only hints: starting empty after growth is cheaper than moving them.
            self.words = vec![0; (length + length / 8).next_multiple_of(BUCKET)];
        }
        let (bucket, share) = (self.bucket(identity), self.share(length));
        let words = &mut self.words[bucket..bucket + BUCKET];
        words.copy_within(..BUCKET - 1, 1);
        words[0] = print(identity);
        words[share..].fill(0);
    }

    /// Whether the unit was evicted as one of the last `length`, of those that have not returned; forgets it.
    pub(super) fn take(&mut self, identity: u64, length: usize) -> bool {
        if self.words.is_empty() {
            return false;
        }
        let (bucket, share) = (self.bucket(identity), self.share(length));
        let words = &mut self.words[bucket..bucket + BUCKET];
        let mut counting = words[..share].iter();
        let Some(place) = counting.position(|&word| word == print(identity)) else { return false };
        words.copy_within(place + 1.., place);
        words[BUCKET - 1] = 0;
        true
    }

    /// How many ghosts of a bucket count: all but for room to grow, or fewer after the memory was larger.
    fn share(&self, length: usize) -> usize {
        let share = (length * BUCKET + self.words.len() / 2) / self.words.len();
        share.clamp(1, BUCKET)
    }

    /// Where the identity's bucket begins: the lower half of the identity, scaled to their number.
    fn bucket(&self, identity: u64) -> usize {
        let buckets = (self.words.len() / BUCKET) as u64;
        (((identity & 0xffff_ffff) * buckets) >> 32) as usize * BUCKET
    }
}

/// The upper bits. Never 0, which marks room.
fn print(identity: u64) -> u16 {
    ((identity >> 48) as u16).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replace::spread;

    #[test]
    fn ghosts_are_known_for_a_queues_length_of_evictions() {
        [20, 1_000, 40_000, 100_000].into_iter().for_each(known_for_a_length);
    }

    fn known_for_a_length(length: usize) {
        let mut ghost = Ghost::default();
        assert!(!ghost.take(spread(0), length));
        (0..4 * length as u64).for_each(|unit| ghost.insert(spread(unit), length));
        let known = |from: usize, to: usize| {
            let mut ghost = ghost.clone();
            (from as u64..to as u64).filter(|&unit| ghost.take(spread(unit), length)).count()
        };
        let (half, few) = (length / 2, length / 500);
        let (newest, youngest) =
            (known(3 * length + half, 4 * length), known(3 * length, 4 * length));
        assert!(newest >= half * 99 / 100, "{newest} of {half}");
        assert!(youngest >= length * 90 / 100, "{youngest} of {length}");
        // A bucket's life is so long on average.
        let older = known(2 * length, 3 * length);
        assert!(older <= length * 12 / 100, "{older} of {length}");
        let (oldest, never) = (known(0, length), known(4 * length, 5 * length));
        assert!(oldest <= few && never <= few, "{oldest} and {never} of {length}");
    }

    #[test]
    fn a_ghost_returns_once_and_makes_room() {
        let mut ghost = Ghost::default();
        (0..20).for_each(|unit| ghost.insert(spread(unit), 20));
        assert!(ghost.take(spread(7), 20) && !ghost.take(spread(7), 20));
        ghost.insert(spread(20), 20);
        assert!(ghost.take(spread(0), 20), "as many as fit are remembered");
    }

    #[test]
    fn a_short_queue_is_exact() {
        let mut ghost = Ghost::default();
        (0..9).for_each(|unit| ghost.insert(spread(unit), 3));
        let known: Vec<u64> = (0..9).filter(|&unit| ghost.clone().take(spread(unit), 3)).collect();
        assert_eq!(known, [6, 7, 8]);
    }

    #[test]
    fn a_ghost_takes_two_bytes_and_an_eighth_of_room() {
        let mut ghost = Ghost::default();
        ghost.insert(spread(1), 1_000_000);
        assert_eq!(ghost.words.capacity(), 1_125_024);
    }
}
