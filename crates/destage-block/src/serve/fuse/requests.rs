//! What a file's operations mean for a volume. A volume has a fixed size, as a block device has.

use crate::request::Request;
use fuser::{Errno, OpenFlags};

/// A volume as its file shows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes.
    pub(super) size: u64,
    pub(super) read_only: bool,
}

/// Either something for the volume to do, or nothing.
type Meant = Result<Option<Request>, Errno>;

/// A read: up to the end and not further.
pub(super) fn read(shape: Shape, offset: u64, len: u32) -> Option<Request> {
    let len = u64::from(len).min(shape.size.saturating_sub(offset));
    // At most what was asked, so it fits.
    (len > 0).then_some(Request::Read { offset, len: len as u32 })
}

/// A write: up to the end; behind it there is no space. `O_SYNC` and `O_DSYNC` ask for the write to be durable.
pub(super) fn write(shape: Shape, offset: u64, data: &[u8], flags: OpenFlags) -> Meant {
    if shape.read_only {
        return Err(Errno::EROFS);
    }
    if data.is_empty() {
        return Ok(None);
    }
    let room = shape.size.saturating_sub(offset);
    if room == 0 {
        return Err(Errno::ENOSPC);
    }
    let len = room.min(data.len() as u64) as usize;
    let fua = flags.0 & libc::O_DSYNC != 0;
    Ok(Some(Request::Write { offset, data: data[..len].to_vec(), fua }))
}

/// Punching holes and zeroing. Whether a volume's space is really there is the origin's affair, so it cannot be reserved.
pub(super) fn fallocate(shape: Shape, offset: u64, len: u64, mode: i32) -> Meant {
    if shape.read_only {
        return Err(Errno::EROFS);
    }
    let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let punch = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        libc::FALLOC_FL_PUNCH_HOLE => true,
        libc::FALLOC_FL_ZERO_RANGE => false,
        _ => return Err(Errno::EOPNOTSUPP),
    };
    let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
    if end > shape.size && !keeps_size {
        return Err(Errno::ENOSPC);
    }
    let len = end.min(shape.size).saturating_sub(offset);
    Ok((len > 0).then_some(Request::Zero { offset, len, fua: false, punch }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { size: 10_000, read_only: false };
    const SEALED: Shape = Shape { size: 10_000, read_only: true };

    fn written(shape: Shape, offset: u64, len: usize, flags: i32) -> Result<(usize, bool), Errno> {
        let request = write(shape, offset, &vec![7; len], OpenFlags(flags))?;
        Ok(request.map_or((0, false), |request| match request {
            Request::Write { data, fua, .. } => (data.len(), fua),
            other => panic!("{other:?}"),
        }))
    }

    #[test]
    fn reads_and_writes_end_at_the_end() {
        assert_eq!(read(SHAPE, 0, 4096), Some(Request::Read { offset: 0, len: 4096 }));
        assert_eq!(read(SEALED, 9_000, 4096), Some(Request::Read { offset: 9_000, len: 1_000 }));
        assert_eq!(read(SHAPE, 10_000, 1), None);
        assert_eq!(read(SHAPE, u64::MAX, 4096), None);
        assert_eq!(written(SHAPE, 0, 4096, libc::O_RDWR), Ok((4096, false)));
        assert_eq!(written(SHAPE, 9_000, 4096, libc::O_RDWR), Ok((1_000, false)));
        assert_eq!(written(SHAPE, 0, 0, libc::O_RDWR), Ok((0, false)));
        assert_eq!(written(SHAPE, 10_000, 1, libc::O_RDWR), Err(Errno::ENOSPC));
        assert_eq!(written(SEALED, 0, 1, libc::O_RDWR), Err(Errno::EROFS));
    }

    #[test]
    fn synchronous_writes_are_durable() {
        for flags in [libc::O_SYNC, libc::O_DSYNC] {
            assert_eq!(written(SHAPE, 0, 512, libc::O_RDWR | flags), Ok((512, true)));
        }
    }

    #[test]
    fn holes_and_zeroes_are_the_only_allocation() {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let zero = |offset, len, punch| Request::Zero { offset, len, fua: false, punch };
        for (offset, len, mode, meant) in [
            (0, 4096, libc::FALLOC_FL_PUNCH_HOLE | keep, Ok(Some(zero(0, 4096, true)))),
            (4096, 4096, libc::FALLOC_FL_ZERO_RANGE, Ok(Some(zero(4096, 4096, false)))),
            (9_000, 4096, libc::FALLOC_FL_ZERO_RANGE | keep, Ok(Some(zero(9_000, 1_000, false)))),
            (9_000, 4096, libc::FALLOC_FL_ZERO_RANGE, Err(Errno::ENOSPC)),
            (20_000, 1, libc::FALLOC_FL_PUNCH_HOLE | keep, Ok(None)),
            (u64::MAX, 2, libc::FALLOC_FL_PUNCH_HOLE | keep, Err(Errno::EFBIG)),
            (0, 4096, 0, Err(Errno::EOPNOTSUPP)),
            (0, 4096, keep, Err(Errno::EOPNOTSUPP)),
            (0, 4096, libc::FALLOC_FL_COLLAPSE_RANGE, Err(Errno::EOPNOTSUPP)),
        ] {
            assert_eq!(fallocate(SHAPE, offset, len, mode), meant, "{offset} {len} {mode}");
        }
        let punch = libc::FALLOC_FL_PUNCH_HOLE | keep;
        assert_eq!(fallocate(SEALED, 0, 1, punch), Err(Errno::EROFS));
    }
}
