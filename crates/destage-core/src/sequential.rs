//! Which requests belong to a long sequential stream, so that they may pass a cache by.

use alloc::vec::Vec;

/// Recognises sequential streams among requests of a kind, whoever sends them. What one reads or writes from start to end will
/// hardly be read again soon, and a slow store serves it well without a cache.
///
/// A stream may come over many connections and a little out of order, as a program with many requests under way sends it: what
/// was asked for is kept as runs without a gap, and runs that meet become one.
#[derive(Debug, Default)]
pub struct Sequential {
    runs: Vec<Run>,
    clock: u64,
}

/// What was asked for without a gap, in whatever order.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    end: u64,
    /// The last request of it.
    used: u64,
}

/// Runs that are followed at a time; the one idle longest gives way.
const RUNS_MAX: usize = 128;
/// A request belongs to a run that ends at most so many of its own lengths before it: what lies between is on its way.
const AHEAD_MAX: u64 = 32;
/// A run that ended so many of a request's lengths before the request's end, or fewer, is being asked for again.
const AGAIN_MAX: u64 = 64;
/// Such a run is still being asked for: one of the last so many requests was its.
const RECENT: u64 = 128;

impl Sequential {
    /// Notes a request for `len` bytes at `offset`. Whether it belongs to a stream that has asked for more than `bytes_max`
    /// bytes, itself included. [`u64::MAX`] is never exceeded; requests that come with it are not followed.
    pub fn is_longer(&mut self, offset: u64, len: u64, bytes_max: u64) -> bool {
        if bytes_max == u64::MAX {
            // Nobody asks, so nothing is followed.
            return false;
        }
        self.clock += 1;
        let mut run = Run { start: offset, end: offset.saturating_add(len), used: self.clock };
        self.runs.retain(|earlier| {
            if earlier.end == run.start {
                run.start = earlier.start;
                return false;
            }
            if earlier.start == run.end {
                run.end = earlier.end;
                return false;
            }
            // Who asks for the same again reads or writes no stream; but long ago it may have been another one.
            !earlier.is_asked_again(offset, len)
        });
        let is_ahead = self.runs.iter().any(|earlier| {
            let gap = offset.checked_sub(earlier.end);
            let is_near = gap.is_some_and(|gap| gap <= len.saturating_mul(AHEAD_MAX));
            is_near && earlier.len() > bytes_max && self.clock - earlier.used <= RECENT
        });
        if self.runs.len() < RUNS_MAX {
            self.runs.push(run);
        } else if let Some(oldest) = self.runs.iter_mut().min_by_key(|run| run.used) {
            *oldest = run;
        }
        run.len() > bytes_max || is_ahead
    }
}

impl Run {
    fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether a request overlaps what came last of the run.
    fn is_asked_again(&self, offset: u64, len: u64) -> bool {
        let recent = self.end.saturating_sub(len.saturating_mul(AGAIN_MAX)).max(self.start);
        offset < self.end && recent < offset.saturating_add(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_told_apart_and_random_requests_are_none() {
        let mut sequential = Sequential::default();
        for step in 0..20 {
            for start in [0, 1 << 30, 5 << 30] {
                let is_long = sequential.is_longer(start + step * 100, 100, 1_000);
                assert_eq!(is_long, step >= 10, "step {step} of the stream at {start}");
            }
            assert!(!sequential.is_longer((step * 7_919) << 20, 100, 1_000));
        }
        assert!(sequential.is_longer(77, 2_000, 1_000), "one long request is a stream");
    }

    #[test]
    fn a_stream_that_jumps_begins_anew_and_memory_is_bounded() {
        let mut sequential = Sequential::default();
        assert!(!sequential.is_longer(0, 900, 1_000));
        assert!(sequential.is_longer(900, 900, 1_000));
        assert!(!sequential.is_longer(50_000, 900, 1_000));
        (0..1_000).for_each(|n| assert!(!sequential.is_longer(n << 40, 900, 1_000)));
        assert_eq!(sequential.runs.len(), RUNS_MAX);
        assert!(!sequential.is_longer(1_800, 900, 1_000), "it was forgotten");
    }

    /// The places of a stream of so many requests, of which each comes up to `reach` places early or late.
    fn shuffled(requests: u64, reach: u64) -> Vec<u64> {
        let mut places: Vec<u64> = (0..requests).collect();
        // Any fixed order that mixes each stretch of `reach` requests.
        places.chunks_mut(reach as usize).for_each(|stretch| {
            let len = stretch.len();
            (0..len).for_each(|i| stretch.swap(i, (i * 7 + 3) % len));
        });
        places
    }

    #[test]
    fn a_stream_that_comes_out_of_order_is_one() {
        for reach in [1, 2, 4, 16, 32] {
            let mut sequential = Sequential::default();
            let places = shuffled(1_000, reach);
            // As eight connections with requests under way send it, beside a reader at random places.
            let long = places.iter().enumerate().filter(|&(step, place)| {
                let noise = ((step as u64 * 7_919) << 20) + (1 << 50);
                assert!(
                    !sequential.is_longer(noise, 4_096, 65_536),
                    "random requests are no stream"
                );
                sequential.is_longer(place * 4_096, 4_096, 65_536)
            });
            let kept = 1_000 - long.count();
            assert!((16..=16 + 2 * reach as usize).contains(&kept), "{kept} of {reach} are kept");
        }
    }

    #[test]
    fn a_stream_may_come_backwards() {
        let mut sequential = Sequential::default();
        for step in 0..20 {
            assert_eq!(sequential.is_longer((100 - step) * 100, 100, 1_000), step >= 10);
        }
    }

    #[test]
    fn a_small_place_that_is_used_again_and_again_is_no_stream() {
        let mut sequential = Sequential::default();
        let mut state = 1_u64;
        let mut long = 0;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            long += u32::from(sequential.is_longer((state >> 33) % 256 * 4_096, 4_096, 262_144));
        }
        assert_eq!(long, 0, "a quarter of the place was taken for a stream");
        // From the start to the end, over and over: each time anew.
        for _ in 0..3 {
            for step in 0..20 {
                assert_eq!(sequential.is_longer((1 << 40) + step * 100, 100, 1_000), step >= 10);
            }
        }
    }
}
