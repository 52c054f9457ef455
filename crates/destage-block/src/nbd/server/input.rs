//! Received bytes until they are understood. Bounded: one option or some requests, and at most one write's payload,
//! which is received in place.

use crate::nbd::wire::OptionHeader;

/// The longest option's data, bytes.
pub(super) const OPTION_DATA_MAX: usize = 64 << 10;

/// Holds the longest option with its header.
const CAPACITY: usize = OPTION_DATA_MAX + OptionHeader::SIZE;

#[derive(Debug)]
pub(super) struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    payload: Option<Payload>,
    /// Bytes yet to be thrown away before anything else.
    skip: u64,
}

#[derive(Debug)]
struct Payload {
    bytes: Vec<u8>,
    filled: usize,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; CAPACITY].into_boxed_slice(),
            start: 0,
            end: 0,
            payload: None,
            skip: 0,
        }
    }

    /// Where the next bytes go; empty while what is there must be understood first.
    pub(super) fn space(&mut self) -> &mut [u8] {
        match &mut self.payload {
            Some(payload) if payload.filled < payload.bytes.len() => {
                &mut payload.bytes[payload.filled..]
            }
            _ => {
                if self.start > 0 {
                    self.bytes.copy_within(self.start..self.end, 0);
                    self.end -= self.start;
                    self.start = 0;
                }
                &mut self.bytes[self.end..]
            }
        }
    }

    /// Says that the first `len` bytes of the space are filled.
    pub(super) fn filled(&mut self, len: usize) {
        match &mut self.payload {
            Some(payload) if payload.filled < payload.bytes.len() => payload.filled += len,
            _ => self.end += len,
        }
        self.settle();
    }

    /// The next bytes, if as many are there.
    pub(super) fn peek<const N: usize>(&self) -> Option<&[u8; N]> {
        self.bytes[self.start..self.end].first_chunk()
    }

    /// The next bytes from one place to another, if they are there.
    pub(super) fn range(&self, from: usize, len: usize) -> Option<&[u8]> {
        self.bytes[self.start..self.end].get(from..from + len)
    }

    /// Throws away bytes, also such as are still to come.
    pub(super) fn skip(&mut self, len: u64) {
        self.skip += len;
        self.settle();
    }

    /// The next `len` bytes are to be one payload: see [`Input::take_payload`].
    pub(super) fn begin_payload(&mut self, len: usize) {
        // Zeroed memory comes from the system as such: nothing is touched before bytes arrive.
        let mut bytes = vec![0; len];
        let filled = len.min(self.end - self.start);
        bytes[..filled].copy_from_slice(&self.bytes[self.start..self.start + filled]);
        self.start += filled;
        self.payload = Some(Payload { bytes, filled });
    }

    /// The payload, once it is whole.
    pub(super) fn take_payload(&mut self) -> Option<Vec<u8>> {
        let payload = self.payload.take_if(|payload| payload.filled == payload.bytes.len())?;
        Some(payload.bytes)
    }

    /// Whether a payload has begun and is not whole.
    pub(super) fn is_within_payload(&self) -> bool {
        self.payload.as_ref().is_some_and(|payload| payload.filled < payload.bytes.len())
    }

    /// Whether no byte waits to be understood.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether there is space behind what waits to be understood.
    pub(super) fn has_space(&self) -> bool {
        self.is_within_payload() || self.end - self.start < self.bytes.len()
    }

    fn settle(&mut self) {
        let there = (self.end - self.start) as u64;
        let now = self.skip.min(there);
        self.start += now as usize;
        self.skip -= now;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }
}
