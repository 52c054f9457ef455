//! Loads of files on a file system that is on a volume, as applications would make them.
//!
//! Files are written through the kernel's page cache and synced now and then, in place of the kernel's own timers, which are
//! longer than a run. What is read is dropped from the page cache before, as on a machine with little memory, so that reads
//! reach the volume.

mod database;
mod mounted;
mod pool;

use std::path::Path;

pub(super) use self::mounted::FileVolume;
pub(crate) use self::mounted::{FileMount, FileSystem, check};
use super::clients::{self, Progress};
use crate::Result;

/// A load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileLoad {
    pub(super) name: &'static str,
    /// Operations at the same time.
    pub(crate) threads: u64,
    /// Makes the files of one thread in a folder of its own, and then works on them.
    start: fn(&Place<'_>) -> Result<Worker>,
    /// What it does, for the report.
    pub(super) what: &'static str,
}

/// Where a thread's files are, and how much they may take.
#[derive(Debug)]
pub(super) struct Place<'a> {
    folder: &'a Path,
    /// Bytes of this thread's files.
    bytes: u64,
    /// A seed of this thread's own.
    seed: u64,
}

/// A thread's work: one call is one operation.
pub(crate) type Worker = Box<dyn FnMut(&Progress) -> Result<()> + Send>;

/// The loads, in the order of the report.
pub(super) const LOADS: [FileLoad; 5] = [
    FileLoad {
        name: "file server",
        threads: 8,
        start: pool::file_server,
        what: "Filebench: write a file of 128 KiB anew, append 16 KiB to one, read one, look at one; all synced every 16 \
               operations",
    },
    FileLoad {
        name: "mail server",
        threads: 8,
        start: pool::mail_server,
        what: "delete a mail, write one of 16 KiB and fsync it, read one, append 4 KiB to one and fsync it",
    },
    FileLoad {
        name: "PostMark",
        threads: 1,
        start: pool::post_mark,
        what: "make or delete a file of 0.5 to 9.8 KB, then read or append to another; all synced every 32 operations",
    },
    FileLoad {
        name: "OLTP",
        threads: 1,
        start: database::transactions,
        what: "SQLite, WAL, synchronous=FULL: a transaction reads 4 rows, changes 4 zipfian ones and adds one",
    },
    FileLoad {
        name: "key-value",
        threads: 4,
        start: database::key_value,
        what: "read or overwrite zipfian pages of 4 KiB, half each; overwrites are logged, the log is synced every 16, the \
               pages every 256",
    },
];

impl FileLoad {
    /// The load of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        LOADS.into_iter().find(|load| load.name == name)
    }

    /// Makes the files of all threads below `folder`, `bytes` in all. Those that are there already are worked on as they are.
    ///
    /// # Errors
    ///
    /// As the file system reports them.
    pub(crate) fn prepare(&self, folder: &Path, bytes: u64, seed: u64) -> Result<Prepared> {
        let workers = (0..self.threads).map(|thread| {
            let folder = folder.join(format!("client{thread}"));
            std::fs::create_dir_all(&folder)?;
            let seed = seed.wrapping_mul(1_000_003) + thread;
            (self.start)(&Place { folder: &folder, bytes: bytes / self.threads, seed })
        });
        Ok(Prepared { name: self.name, workers: workers.collect::<Result<_>>()? })
    }
}

/// A load whose files are there.
pub(crate) struct Prepared {
    name: &'static str,
    workers: Vec<Worker>,
}

impl Prepared {
    /// Each thread's work, changed.
    pub(crate) fn map(self, change: impl FnMut(Worker) -> Worker) -> Self {
        Self { workers: self.workers.into_iter().map(change).collect(), ..self }
    }

    /// Runs the load while `watch` does; its files stay.
    ///
    /// # Errors
    ///
    /// An operation or `watch` failed.
    pub(crate) fn work<T>(self, watch: impl FnOnce(&Progress) -> Result<T>) -> Result<T> {
        clients::work(self.name, self.workers, watch)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::block::clients::wait_for_operations;

    #[test]
    fn loads_run_in_any_folder_and_stay_in_their_size() {
        for load in LOADS {
            let folder = tempfile::tempdir().expect("a folder");
            let bytes = 8 << 20;
            let prepared = load.prepare(folder.path(), bytes, 7).expect("files");
            let wanted = 60;
            let seen = AtomicU64::new(0);
            prepared
                .work(|progress| {
                    wait_for_operations(progress, wanted, Duration::from_secs(60));
                    seen.store(progress.operations(), Ordering::Relaxed);
                    Ok(())
                })
                .expect("nothing fails");
            assert!(seen.into_inner() >= wanted, "{}", load.name);
            let taken = size_of(folder.path());
            assert!((bytes / 4..=bytes * 2).contains(&taken), "{}: {taken}", load.name);
        }
    }

    fn size_of(folder: &Path) -> u64 {
        let entries = std::fs::read_dir(folder).expect("a folder").map(|it| it.expect("an entry"));
        let size = |entry: std::fs::DirEntry| {
            if entry.file_type().expect("a type").is_dir() {
                size_of(&entry.path())
            } else {
                entry.metadata().expect("metadata").len()
            }
        };
        entries.map(size).sum()
    }
}
