//! The bytes of the disk: in memory, or in a file; what was never written takes no room and reads as zeros.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

use crate::Result;

/// What was written, at once and for all to see.
#[derive(Debug)]
pub(crate) struct Store(File);

impl Store {
    /// A disk of `bytes` in memory, or in the file at `path`, which keeps them.
    ///
    /// # Errors
    ///
    /// The file cannot be made.
    pub(crate) fn new(path: Option<&Path>, bytes: u64) -> Result<Self> {
        let file = match path {
            None => File::from(memfd_create("destage-bench-device", MemfdFlags::CLOEXEC)?),
            Some(path) => OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(|error| format!("failed to open {}: {error}", path.display()))?,
        };
        file.set_len(bytes)?;
        Ok(Self(file))
    }

    pub(crate) fn read(&self, offset: u64, len: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.0.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.0.write_all_at(bytes, offset)?)
    }

    pub(crate) fn zero(&self, offset: u64, len: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.0, flags, offset, len)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_holds_what_was_written_and_zeros_elsewhere() {
        let folder = tempfile::tempdir().expect("temp folder");
        let path = folder.path().join("disk");
        for path in [None, Some(path.as_path())] {
            let store = Store::new(path, 1 << 40).expect("sparse");
            store.write(1 << 39, b"far").expect("written");
            assert_eq!(store.read((1 << 39) - 1, 5).expect("read"), b"\0far\0");
            store.zero(1 << 39, 2).expect("punched");
            assert_eq!(store.read(1 << 39, 3).expect("read"), b"\0\0r");
            assert!(store.read((1 << 40) - 1, 2).is_err(), "behind the end");
        }
    }
}
