//! What a CephFS allows for a folder: a quota, which `statfs` of a folder within a mount does not tell.

use super::local::path_of;
use rustix::fs::{self as sys, Mode, OFlags};
use std::os::fd::{BorrowedFd, OwnedFd};

/// Bytes that may still be taken in a folder by its quotas, and by those of the folders above it; `None` where there are none.
pub(super) fn left(folder: BorrowedFd<'_>) -> Option<u64> {
    let mut least: Option<u64> = None;
    let mut dir = folder.try_clone_to_owned().ok()?;
    for _ in 0..DEPTH_MAX {
        if let Some(most) = number(&dir, "ceph.quota.max_bytes").filter(|&most| most > 0) {
            let left = most.saturating_sub(number(&dir, "ceph.dir.rbytes").unwrap_or(0));
            least = Some(least.map_or(left, |least| least.min(left)));
        }
        let Some(above) = above(&dir) else { break };
        dir = above;
    }
    least
}

/// The folder above, if it is of the same file system.
fn above(dir: &OwnedFd) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = sys::openat(dir, c"..", flags, Mode::empty()).ok()?;
    let (here, there) = (sys::fstat(dir).ok()?, sys::fstat(&above).ok()?);
    (here.st_dev == there.st_dev && here.st_ino != there.st_ino).then_some(above)
}

fn number(dir: &OwnedFd, name: &str) -> Option<u64> {
    let mut value = Vec::with_capacity(NUMBER_LEN_MAX);
    sys::getxattr(path_of(dir), name, rustix::buffer::spare_capacity(&mut value)).ok()?;
    std::str::from_utf8(&value).ok()?.trim_end_matches('\0').parse().ok()
}

/// Folders up to the top of a file system that are looked at.
const DEPTH_MAX: usize = 256;
const NUMBER_LEN_MAX: usize = 32;
