//! The one file or device under all parts of the cache.

use destage_journal::DiskFile;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The device, shared by all parts. A clone is the same device.
///
/// A sync makes everything on it durable, whoever wrote it; so one sync serves all who wait for one. And a sync that fails
/// leaves open what of all that is durable, whoever asked: from then on the device is only read.
#[derive(Clone, Debug)]
pub(crate) struct Medium {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: Box<dyn DiskFile>,
    failed: AtomicBool,
    /// Syncs begun.
    begun: AtomicU64,
    /// The newest sync that succeeded. Held during a sync: the kernel reports a failure to one caller only.
    ended: Mutex<u64>,
}

impl Medium {
    pub(crate) fn new(file: Box<dyn DiskFile>) -> Self {
        let shared = Shared {
            file,
            failed: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            ended: Mutex::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn len(&self) -> io::Result<u64> {
        self.shared.file.len()
    }

    /// Fills `buf`; an error if the device ends before.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let n = self.shared.file.read_at(offset, buf)?;
        if n < buf.len() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the device is shorter than it was",
            ));
        }
        Ok(())
    }

    /// As [`Medium::read`], if it takes no waiting; false if it would.
    pub(crate) fn read_now(&self, offset: u64, buf: &mut [u8]) -> io::Result<bool> {
        self.shared.file.read_now(offset, buf)
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check()?;
        self.shared.file.write_at(offset, bytes)
    }

    /// Writes some bytes each at its offset, in any order.
    pub(crate) fn write_each(&self, writes: &[(u64, &[u8])]) -> io::Result<()> {
        self.check()?;
        self.shared.file.write_each(writes)
    }

    /// Writes zeros in bounded runs.
    pub(crate) fn write_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        let zeros = vec![0; ZEROS_BYTES.min(to.saturating_sub(from)) as usize];
        let mut at = from;
        while at < to {
            let n = (to - at).min(ZEROS_BYTES);
            self.write(at, &zeros[..n as usize])?;
            at += n;
        }
        Ok(())
    }

    /// Makes durable what was written before the call.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let shared = &*self.shared;
        let before = shared.begun.load(Ordering::Acquire);
        let mut ended = shared.ended.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        if *ended > before {
            // One that began after this call has ended meanwhile.
            return Ok(());
        }
        let number = shared.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let synced = shared.file.sync_data();
        match &synced {
            Ok(()) => *ended = number,
            Err(_) => shared.failed.store(true, Ordering::Release),
        }
        synced
    }

    fn check(&self) -> io::Result<()> {
        if self.shared.failed.load(Ordering::Acquire) {
            return Err(io::Error::other(
                "an earlier sync of the cache device failed: restart to recover what is durable",
            ));
        }
        Ok(())
    }
}

const ZEROS_BYTES: u64 = 1 << 20;
