//! Many short writes at a time, through io_uring: a device that is told of them together takes each for a fraction of what
//! it takes one by one, and so does the processor.

use io_uring::{IoUring, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Most writes under way at a time.
const ENTRIES: usize = 32;

/// Rings for whoever writes, as many as there ever were writers at a time.
#[derive(Debug, Default)]
pub struct Rings {
    spares: Mutex<Vec<Ring>>,
}

impl Rings {
    /// A ring, if the kernel grants one: a container's filter or an old kernel may not.
    pub fn take(&self) -> Option<Ring> {
        let spare = self.spares.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.or_else(|| match Ring::new() {
            Ok(ring) => Some(ring),
            Err(error) => {
                tracing::debug!(%error, "no io_uring: blocks are written one by one");
                None
            }
        })
    }

    /// Keeps a ring for the next writer.
    pub fn give_back(&self, ring: Ring) {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner).push(ring);
    }
}

/// One writer's ring.
pub struct Ring {
    uring: IoUring,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

impl Ring {
    fn new() -> io::Result<Self> {
        Ok(Self { uring: new_ring(ENTRIES as u32)? })
    }

    /// Writes some bytes each at its offset, in any order; returns when none is under way any more.
    ///
    /// # Errors
    /// The first that the device reports; any part of the bytes may then have been written.
    pub fn write(&mut self, file: &File, writes: &[(u64, &[u8])]) -> io::Result<()> {
        writes.chunks(ENTRIES).try_for_each(|some| self.write_some(file, some))
    }

    fn write_some(&mut self, file: &File, writes: &[(u64, &[u8])]) -> io::Result<()> {
        let fd = types::Fd(file.as_raw_fd());
        for (index, &(offset, bytes)) in writes.iter().enumerate() {
            let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
            let entry = opcode::Write::new(fd, bytes.as_ptr(), len).offset(offset).build();
            self.push(&entry.user_data(index as u64));
        }
        let mut results = [0; ENTRIES];
        self.wait_for(writes.len(), &mut results);
        for (&(offset, bytes), &result) in writes.iter().zip(&results) {
            match usize::try_from(result) {
                Ok(written) if written == bytes.len() => {}
                // What the device did not take in one go.
                Ok(written) => file.write_all_at(&bytes[written..], offset + written as u64)?,
                Err(_) if is_for_now(-result) => file.write_all_at(bytes, offset)?,
                Err(_) => return Err(io::Error::from_raw_os_error(-result)),
            }
        }
        Ok(())
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the bytes and the file outlive the write, because `write_some` waits for the end of every write.
        let pushed = unsafe { self.uring.submission().push(entry) };
        pushed.expect("no more writes at a time than the ring has entries");
    }

    /// Hands over what was pushed and waits until all of it is done.
    fn wait_for(&mut self, count: usize, results: &mut [i32; ENTRIES]) {
        let mut done = 0;
        while done < count {
            if let Err(error) = self.uring.submit_and_wait(count - done)
                && !is_for_now(error.raw_os_error().unwrap_or_default())
            {
                // The kernel may be reading the bytes: they must not be given to anybody else.
                tracing::error!(%error, "io_uring failed with writes under way");
                std::process::abort();
            }
            for completion in self.uring.completion() {
                results[completion.user_data() as usize] = completion.result();
                done += 1;
            }
        }
    }
}

/// A ring of the kernel's.
pub(crate) fn new_ring(entries: u32) -> io::Result<IoUring> {
    IoUring::builder().setup_coop_taskrun().build(entries).or_else(|_| IoUring::new(entries))
}

/// Errors that only ask for another try.
pub(crate) fn is_for_now(errno: i32) -> bool {
    matches!(errno, libc::EINTR | libc::EAGAIN | libc::EBUSY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_testkit::needs;

    /// `None` where the kernel grants none.
    fn ring(rings: &Rings) -> Option<Ring> {
        let ring = rings.take();
        if ring.is_none() {
            needs::refused("io_uring");
        }
        ring
    }

    #[test]
    fn writes_of_any_number_and_length_land_where_they_belong() {
        let file = tempfile::tempfile().unwrap();
        let Some(mut ring) = ring(&Rings::default()) else { return };
        let blocks: Vec<Vec<u8>> = (0..100_u8).map(|n| vec![n; 1 + usize::from(n) * 40]).collect();
        let mut expected = vec![0; 100 * 5_000];
        let mut writes = Vec::new();
        for (n, block) in blocks.iter().enumerate() {
            // Backwards, so that the order of the offsets is not that of the writes.
            let at = (99 - n) * 5_000;
            expected[at..at + block.len()].copy_from_slice(block);
            writes.push((at as u64, &block[..]));
        }
        file.set_len(expected.len() as u64).unwrap();
        ring.write(&file, &writes).unwrap();
        let mut found = vec![0; expected.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == expected);
        ring.write(&file, &[]).unwrap();
    }

    #[test]
    fn an_error_is_told_and_the_ring_serves_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"as it was").unwrap();
        let read_only = File::open(&path).unwrap();
        let rings = Rings::default();
        let Some(mut ring) = ring(&rings) else { return };
        let error = ring.write(&read_only, &[(0, b"new"), (3, b"new")]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        rings.give_back(ring);
        let mut ring = rings.take().unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        ring.write(&file, &[(3, b"it is")]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"as it is\x73");
    }
}
