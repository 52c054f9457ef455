//! Whether a file system keeps pages of its files in the kernel.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;

/// Whether a file can be mapped to be written, which takes pages in the kernel.
///
/// # Errors
/// It cannot for another reason.
pub(super) fn can_be_mapped(file: BorrowedFd<'_>) -> io::Result<bool> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at a place that the kernel chooses, which nobody touches.
    let mapped = unsafe { mmap(ptr::null_mut(), PAGE_BYTES, access, MapFlags::SHARED, file, 0) };
    match mapped {
        Ok(place) => {
            // SAFETY: this is what was mapped above.
            unsafe { munmap(place, PAGE_BYTES) }?;
            Ok(true)
        }
        Err(rustix::io::Errno::NODEV) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

const PAGE_BYTES: usize = 4096;
