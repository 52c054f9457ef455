//! What a cached block costs in memory, as the allocator sees it.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use destage_block::block::Lba;
use destage_block::cache::Index;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller guarantees.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller guarantees.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_clean_block_costs_less_than_13_bytes_of_index() {
    let slots = 1_000_000;
    let before = BYTES.load(Ordering::Relaxed);
    let mut index = Index::new(slots);
    for block in 0..u64::from(slots) {
        let handle = index.insert(Lba(block * 3)).unwrap();
        index.set_clean(handle, block as u32);
    }
    let each = (BYTES.load(Ordering::Relaxed) - before) as f64 / f64::from(slots);
    assert!(each < 13.0, "{each} bytes a block");
    assert!(each > 8.0, "{each} bytes a block: less than block number and checksum take");
    assert_eq!(index.used(), slots);
}
