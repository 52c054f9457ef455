//! Whether blocks of an origin are what they were: many reads at a time, since a start waits for them.

use crate::block::{BLOCK, Lba};
use crate::origin::{Origin, OriginIoError};
use crc32c::crc32c;
use destage_runtime::progress::Progress;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Reads at a time. A disk far away takes milliseconds for each, and as many as this at once.
const READS: usize = 64;

/// The blocks whose checksum at the origin is another one than is known, in order.
///
/// # Errors
/// As the origin reports them.
pub(crate) fn differing(
    origin: &dyn Origin,
    known: &[(Lba, u32)],
) -> Result<Vec<Lba>, OriginIoError> {
    let mut bar = Progress::new("comparing blocks with the origin", known.len() as u64);
    let next = AtomicUsize::new(0);
    let (sender, compared) = mpsc::channel();
    let mut wrong = thread::scope(|scope| {
        for _ in 0..READS.min(known.len()) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some(&(lba, then)) = known.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let now = block_sum(origin, lba);
                    if sender.send(now.map(|now| (now != Some(then)).then_some(lba))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut wrong = Vec::new();
        // After an error nobody listens any more, so that the others end with what they are at.
        for (done, found) in (1..).zip(compared) {
            wrong.extend(found?);
            bar.set(done);
        }
        Ok::<_, OriginIoError>(wrong)
    })?;
    bar.finish();
    wrong.sort_unstable();
    Ok(wrong)
}

/// The checksum of a block; `None` behind the end.
fn block_sum(origin: &dyn Origin, lba: Lba) -> Result<Option<u32>, OriginIoError> {
    let mut buf = [0; BLOCK];
    let Some(len) = origin.size().checked_sub(lba.offset()).filter(|len| *len > 0) else {
        return Ok(None);
    };
    let len = len.min(BLOCK as u64) as usize;
    origin.read(lba.offset(), &mut buf[..len])?;
    Ok(Some(crc32c(&buf)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::{FileOrigin, Identity, OriginIoErrorKind, Run};
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::Duration;

    /// A disk that answers nobody before so many ask at the same time, or fails from a block on.
    #[derive(Debug)]
    struct Far {
        disk: Arc<dyn Origin>,
        fails_from: u64,
        together: usize,
        asking: Mutex<usize>,
        enough: Condvar,
    }

    /// Only who asks for one after the other waits so long, and then fails.
    const PATIENCE: Duration = Duration::from_secs(60);

    impl Origin for Far {
        fn size(&self) -> u64 {
            self.disk.size()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OriginIoError> {
            if offset >= self.fails_from {
                return Err(OriginIoError::new(OriginIoErrorKind::Unavailable, "away"));
            }
            let mut asking = self.asking.lock().unwrap();
            *asking += 1;
            self.enough.notify_all();
            let too_few = |asking: &mut usize| *asking < self.together;
            let (asking, waited) =
                self.enough.wait_timeout_while(asking, PATIENCE, too_few).unwrap();
            drop(asking);
            assert!(!waited.timed_out(), "the reads come one after the other");
            self.disk.read(offset, buf)
        }
        fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OriginIoError> {
            self.disk.write(offset, bytes)
        }
        fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<(), OriginIoError> {
            self.disk.zero(offset, len, punch)
        }
        fn flush(&self) -> Result<(), OriginIoError> {
            self.disk.flush()
        }
        fn losses(&self) -> u64 {
            self.disk.losses()
        }
        fn parallelism(&self) -> usize {
            self.disk.parallelism()
        }
        fn allocation(&self, offset: u64, len: u64) -> Result<Vec<Run>, OriginIoError> {
            self.disk.allocation(offset, len)
        }
        fn identity(&self) -> Result<Identity, OriginIoError> {
            self.disk.identity()
        }
    }

    const BLOCKS: u64 = 640;

    fn far(together: usize, fails_from: u64) -> (tempfile::TempDir, Far) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, vec![7; BLOCKS as usize * BLOCK]).unwrap();
        let disk = Arc::new(FileOrigin::open(&path).unwrap());
        let (asking, enough) = (Mutex::default(), Condvar::new());
        (folder, Far { disk, fails_from, together, asking, enough })
    }

    fn known() -> Vec<(Lba, u32)> {
        let sum = crc32c(&[7; BLOCK]);
        (0..BLOCKS).map(|block| (Lba(block), if block % 100 == 3 { 0 } else { sum })).collect()
    }

    #[test]
    fn what_differs_is_found_in_order_by_many_reads_at_a_time() {
        let (_folder, origin) = far(READS, u64::MAX);
        let wrong = differing(&origin, &known()).unwrap();
        assert_eq!(wrong, [3, 103, 203, 303, 403, 503, 603].map(Lba));
        assert_eq!(differing(&origin, &[]).unwrap(), []);
    }

    #[test]
    fn an_origin_that_fails_ends_the_comparison() {
        let (_folder, origin) = far(1, 200 * BLOCK as u64);
        let error = differing(&origin, &known()).unwrap_err();
        assert_eq!(error.kind, OriginIoErrorKind::Unavailable);
    }
}
