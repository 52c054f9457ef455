//! Owned bytes behind one word: a row's slot is an array element, and there is one per cached row.
//!
//! A `Box<[u8]>` takes two words, one of them for a length that nearly every row keeps below two bytes. Here the length
//! stands, as a variable-length integer, in front of the bytes in the same allocation.

#![expect(
    unsafe_code,
    reason = "no safe type is one word wide; the invariants are local to this file"
)]

use crate::cells::{push_varint, varint_len};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Immutable length, mutable content; nothing is allocated for no bytes.
#[derive(Default)]
pub(crate) struct ThinBytes(Option<NonNull<u8>>);

/// Longest encoded length.
const PREFIX_MAX: usize = 10;

// SAFETY: the allocation is owned and not shared.
unsafe impl Send for ThinBytes {}
// SAFETY: shared access only reads.
unsafe impl Sync for ThinBytes {}

impl ThinBytes {
    /// The concatenation of two runs of bytes.
    pub(crate) fn join(head: &[u8], tail: &[u8]) -> Self {
        let len = head.len() + tail.len();
        if len == 0 {
            return Self(None);
        }
        let mut prefix = Vec::with_capacity(PREFIX_MAX);
        push_varint(&mut prefix, len as u64);
        let layout = layout(prefix.len() + len);
        // SAFETY: the layout's size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout)
        };
        let mut at = start;
        for part in [&prefix[..], head, tail] {
            // SAFETY: the three parts together are as long as the allocation, which overlaps none of them.
            unsafe {
                at.copy_from_nonoverlapping(NonNull::from(part).cast(), part.len());
                at = at.add(part.len());
            }
        }
        Self(Some(start))
    }

    /// The length of the content and of the prefix before it.
    fn lens(start: NonNull<u8>) -> (usize, usize) {
        let mut len = 0;
        let mut prefix = 0;
        loop {
            // SAFETY: the prefix ends before the allocation does, at the first byte below 128.
            let byte = unsafe { start.add(prefix).read() };
            len |= usize::from(byte & 0x7f) << (7 * prefix);
            prefix += 1;
            if byte < 0x80 {
                return (len, prefix);
            }
        }
    }

    /// The bytes.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        let Some(start) = self.0 else { return &[] };
        let (len, prefix) = Self::lens(start);
        // SAFETY: `len` initialised bytes follow the prefix, and are not written while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(start.add(prefix).as_ptr(), len) }
    }

    /// The bytes, to be overwritten.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        let Some(start) = self.0 else { return &mut [] };
        let (len, prefix) = Self::lens(start);
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(start.add(prefix).as_ptr(), len) }
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, 1).expect("a row is shorter than half the address space")
}

impl Drop for ThinBytes {
    fn drop(&mut self) {
        let Some(start) = self.0 else { return };
        let (len, prefix) = Self::lens(start);
        debug_assert_eq!(varint_len(len as u64), prefix);
        // SAFETY: allocated in `join` with this very layout, and never again reachable.
        unsafe { dealloc(start.as_ptr(), layout(prefix + len)) };
    }
}

impl std::fmt::Debug for ThinBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_slice().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_read_back() {
        assert_eq!(size_of::<ThinBytes>(), size_of::<usize>());
        for len in (0..300).chain([16_383, 16_384, 100_000]) {
            let content: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let (head, tail) = content.split_at(len / 3);
            let mut bytes = ThinBytes::join(head, tail);
            assert_eq!(bytes.as_slice(), content);
            bytes.as_mut_slice().fill(7);
            assert!(bytes.as_slice().len() == len && bytes.as_slice().iter().all(|&b| b == 7));
        }
        assert_eq!(ThinBytes::default().as_slice(), b"");
    }
}
