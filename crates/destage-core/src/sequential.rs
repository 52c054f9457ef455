//! Which requests belong to a long sequential stream, so that they may pass a cache by.

use alloc::vec::Vec;

/// Recognises sequential streams among requests of a kind. What one reads or writes from start to end will hardly be read again
/// soon, and a slow store serves it well without a cache.
#[derive(Debug, Default)]
pub struct Sequential {
    streams: Vec<Stream>,
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Where its next request begins.
    next: u64,
    /// How much it has asked for, without a gap.
    bytes: u64,
    used: u64,
}

/// Streams that are followed at a time; the one idle longest gives way.
const STREAMS_MAX: usize = 32;

impl Sequential {
    /// Notes a request for `len` bytes at `offset`. Whether it belongs to a stream that has asked for more than `bytes_max`
    /// bytes, itself included. [`u64::MAX`] is never exceeded; requests that come with it are not followed.
    pub fn is_longer(&mut self, offset: u64, len: u64, bytes_max: u64) -> bool {
        if bytes_max == u64::MAX {
            // Nobody asks, so nothing is followed.
            return false;
        }
        self.clock += 1;
        let used = self.clock;
        let next = offset.saturating_add(len);
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.next == offset) {
            *stream = Stream { next, bytes: stream.bytes.saturating_add(len), used };
            return stream.bytes > bytes_max;
        }
        let stream = Stream { next, bytes: len, used };
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
            *oldest = stream;
        }
        len > bytes_max
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
        assert_eq!(sequential.streams.len(), STREAMS_MAX);
        assert!(!sequential.is_longer(1_800, 900, 1_000), "it was forgotten");
    }
}
