//! Bytes to send. Headers are gathered, the data of reads is kept as it came.

use std::collections::VecDeque;
use std::io::IoSlice;

/// Up to here, bytes: copying is cheaper than one more slice for the system.
const COPIED_MAX: usize = 1024;
/// A buffer of headers is closed at this length, bytes.
const GATHERED_MAX: usize = 32 << 10;

#[derive(Debug, Default)]
pub(super) struct Output {
    queue: VecDeque<Vec<u8>>,
    /// How much of the first buffer is gone.
    sent: usize,
    /// All that is left to send.
    len: usize,
    /// Whether more may be put into the last buffer.
    open: bool,
}

impl Output {
    /// Puts a copy behind all others.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.len += bytes.len();
        match self.queue.back_mut() {
            Some(last) if self.open && last.len() < GATHERED_MAX => last.extend_from_slice(bytes),
            _ => self.queue.push_back(bytes.to_vec()),
        }
        self.open = true;
    }

    /// Puts a buffer behind all others, without copying it if it is long.
    pub(super) fn put_owned(&mut self, bytes: Vec<u8>) {
        if bytes.len() <= COPIED_MAX {
            return self.put(&bytes);
        }
        self.len += bytes.len();
        self.queue.push_back(bytes);
        self.open = false;
    }

    /// Sets slices to what comes next; returns how many are set.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut set = 0;
        for (slice, buffer) in slices.iter_mut().zip(&self.queue) {
            let from = if set == 0 { self.sent } else { 0 };
            *slice = IoSlice::new(&buffer[from..]);
            set += 1;
        }
        set
    }

    /// Forgets what was sent. More than there is counts as all.
    pub(super) fn advance(&mut self, len: usize) {
        let len = len.min(self.len);
        self.len -= len;
        self.sent += len;
        while let Some(first) = self.queue.front()
            && self.sent >= first.len()
        {
            self.sent -= first.len();
            self.queue.pop_front();
        }
    }

    /// Bytes to send.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(output: &Output) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 16];
        let set = output.slices(&mut slices);
        slices[..set].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn small_fragments_are_gathered_and_large_ones_keep_their_memory() {
        for len in [COPIED_MAX + 1, 1 << 20] {
            let mut output = Output::default();
            output.put(b"head");
            let data = vec![7; len];
            let place = data.as_ptr();
            output.put_owned(data);
            output.put(b"next");
            output.put(b"head");
            let mut slices = [IoSlice::new(&[]); 16];
            assert_eq!(output.slices(&mut slices), 3);
            assert_eq!((slices[1].as_ptr(), slices[1].len()), (place, len));
            assert_eq!(&*slices[2], b"nexthead");
        }
    }

    #[test]
    fn any_way_of_sending_sends_the_same_bytes() {
        for step in [1, 3, 4, 5, 1500, 5000] {
            let mut output = Output::default();
            output.put(b"one");
            output.put_owned(vec![2; 2000]);
            output.put_owned(Vec::new());
            output.put(b"three");
            let mut sent = Vec::new();
            while output.len() > 0 {
                let rest = gathered(&output);
                assert_eq!(rest.len(), output.len());
                let now = step.min(rest.len());
                sent.extend_from_slice(&rest[..now]);
                output.advance(now);
                output.put(b"");
            }
            assert_eq!(sent, [b"one".to_vec(), vec![2; 2000], b"three".to_vec()].concat());
        }
    }
}
