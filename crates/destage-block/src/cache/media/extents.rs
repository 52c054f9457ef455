//! What a file system notes of a file's space.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// The parts of a range that were written, in ascending order. What the page cache holds is written first, so that it
/// counts.
///
/// # Errors
/// Where the file system does not tell, or the range is in more runs than are asked for.
pub(super) fn written(file: &File, range: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let mut map = Map {
        start: range.start,
        length: range.end - range.start,
        flags: FLAG_SYNC,
        extents_mapped: 0,
        extents_room: EXTENTS_MAX as u32,
        reserved: 0,
        extents: [Extent::default(); EXTENTS_MAX],
    };
    if map.length == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the kernel reads and writes the structure only, as many extents of it as it says that it has room for.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut map) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let found = &map.extents[..(map.extents_mapped as usize).min(EXTENTS_MAX)];
    if found.len() == EXTENTS_MAX && found[EXTENTS_MAX - 1].flags & EXTENT_LAST == 0 {
        return Err(io::Error::other("too many extents"));
    }
    let inside = |extent: &Extent| {
        let end = extent.logical.saturating_add(extent.length);
        extent.logical.max(range.start)..end.min(range.end)
    };
    let is_written = |extent: &&Extent| extent.flags & EXTENT_UNWRITTEN == 0;
    Ok(found.iter().filter(is_written).map(inside).collect())
}

/// As the kernel lays it out.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    extents_mapped: u32,
    extents_room: u32,
    reserved: u32,
    extents: [Extent; EXTENTS_MAX],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

const EXTENTS_MAX: usize = 64;
// Its type differs between the C libraries.
const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;
const FLAG_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 1;
const EXTENT_UNWRITTEN: u32 = 0x800;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, fallocate};
    use std::os::unix::fs::FileExt;

    #[test]
    fn space_that_was_only_allocated_is_not_written_and_dirty_pages_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::options().create_new(true).write(true).open(path).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        // Some file systems do not tell; there is nothing to test on them.
        let Ok(nothing) = written(&file, &(0..1 << 20)) else { return };
        assert_eq!(nothing, []);
        file.write_all_at(&[1; 8192], 16 << 10).unwrap();
        file.write_all_at(&[1; 4096], 64 << 10).unwrap();
        let some = written(&file, &(0..1 << 20)).unwrap();
        assert_eq!(some, [16 << 10..24 << 10, 64 << 10..68 << 10]);
        assert_eq!(
            written(&file, &(20 << 10..66 << 10)).unwrap(),
            [20 << 10..24 << 10, 64 << 10..66 << 10]
        );
        assert_eq!(written(&file, &(5..5)).unwrap(), []);
    }
}
