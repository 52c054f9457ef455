//! Handles of files: what `name_to_handle_at` gives and `open_by_handle_at` takes.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Longest handle, bytes.
const HANDLE_BYTES_MAX: usize = 128;
const HEADER_BYTES: usize = 8;

#[repr(C, align(8))]
struct Raw {
    bytes: u32,
    kind: i32,
    data: [u8; HANDLE_BYTES_MAX],
}

/// The handle of a name, or of the file itself where the name is empty: its kind, then its bytes.
///
/// # Errors
/// `EOPNOTSUPP` where the file system has none.
pub(super) fn of(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Arc<[u8]>> {
    let mut raw = Raw { bytes: HANDLE_BYTES_MAX as u32, kind: 0, data: [0; HANDLE_BYTES_MAX] };
    let mut mount = 0;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: `Raw` begins as `struct file_handle` does and has the room that its first field says; the name ends
    // with a NUL.
    let result = unsafe {
        libc::name_to_handle_at(
            dir.as_raw_fd(),
            name.as_ptr(),
            (&raw mut raw).cast(),
            &raw mut mount,
            flags,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let len = (raw.bytes as usize).min(HANDLE_BYTES_MAX);
    Ok([&raw.kind.to_le_bytes()[..], &raw.data[..len]].concat().into())
}

/// Opens the file of a handle; `mount` is any open file of its file system.
///
/// # Errors
/// `ESTALE` if it is gone, `EPERM` without CAP_DAC_READ_SEARCH.
pub(super) fn open(mount: BorrowedFd<'_>, handle: &[u8], flags: i32) -> io::Result<OwnedFd> {
    let broken = || io::Error::from_raw_os_error(libc::ESTALE);
    let (kind, data) = handle.split_first_chunk::<4>().ok_or_else(broken)?;
    let mut raw = Raw {
        bytes: data.len() as u32,
        kind: i32::from_le_bytes(*kind),
        data: [0; HANDLE_BYTES_MAX],
    };
    raw.data.get_mut(..data.len()).ok_or_else(broken)?.copy_from_slice(data);
    // SAFETY: as above; a result that is not negative is a new descriptor of ours.
    unsafe {
        let fd = libc::open_by_handle_at(
            mount.as_raw_fd(),
            (&raw mut raw).cast(),
            flags | libc::O_CLOEXEC | libc::O_NOCTTY,
        );
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

const _: () = assert!(std::mem::offset_of!(Raw, data) == HEADER_BYTES);
