//! Simulated origins for crash tests.

use crate::origin::losses::Losses;
use crate::origin::{Identity, Origin, OriginIoError, OriginIoErrorKind, Run};
use destage_journal::{Disk, DiskFile};
use destage_testkit::SimDisk;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file of a [`SimDisk`] as an origin: what is not flushed is lost or torn by [`SimDisk::crash`], power goes at any
/// operation by [`SimDisk::power_off_after`]. Origins on one disk share its fate; a clone is the same origin.
#[derive(Clone, Debug)]
pub struct SimOrigin {
    disk: SimDisk,
    name: String,
    size: u64,
    faults: Arc<Mutex<Faults>>,
    losses: Arc<Losses>,
}

#[derive(Debug, Default)]
struct Faults {
    calls: u64,
    /// Calls from this one on find nobody there.
    away_at: Option<u64>,
    unsafe_no_flush: bool,
    parallelism: usize,
}

impl SimOrigin {
    /// A file of `size` zeros on `disk`; the file that is there if it has this size.
    pub fn new(disk: &SimDisk, name: &str, size: u64) -> Self {
        if disk.bytes(name).is_none_or(|bytes| bytes.len() as u64 != size) {
            disk.edit(name, |bytes| *bytes = vec![0; size as usize]);
        }
        let faults = Faults { parallelism: 1, ..Faults::default() };
        Self {
            disk: disk.clone(),
            name: name.to_owned(),
            size,
            faults: Arc::new(Mutex::new(faults)),
            losses: Arc::default(),
        }
    }

    /// The disk it is on.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// What a reader sees now.
    pub fn bytes(&self) -> Vec<u8> {
        self.disk.bytes(&self.name).expect("the file is never removed")
    }

    /// Changes it durably, as another host would.
    pub fn edit(&self, edit: impl FnOnce(&mut [u8])) {
        self.disk.edit(&self.name, |bytes| edit(bytes));
    }

    /// The `n`-th call from now on (from 1) and all after it find the origin out of reach, until [`SimOrigin::come_back`].
    pub fn go_away_after(&self, n: u64) {
        let mut faults = self.faults();
        faults.away_at = Some(faults.calls + n);
    }

    /// In reach again. What was written before is still in the server's cache.
    pub fn come_back(&self) {
        self.faults().away_at = None;
    }

    /// The server restarted: like [`SimOrigin::come_back`], but what no flush covered is lost or torn, all over its disk.
    pub fn restart(&self, seed: u64) {
        self.disk.crash(seed);
        self.come_back();
        self.lose();
    }

    /// What no flush has covered may be lost: for an origin whose disk a restart of another one has crashed.
    pub fn lose(&self) {
        self.losses.add();
    }

    /// Negative control: flushes succeed and do nothing.
    pub fn set_unsafe_no_flush(&self, on: bool) {
        self.faults().unsafe_no_flush = on;
    }

    /// What [`Origin::parallelism`] says; 1 by default, which keeps the order of operations the same in every run.
    pub fn set_parallelism(&self, parallelism: usize) {
        self.faults().parallelism = parallelism;
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.faults().calls
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_file<T>(
        &self,
        run: impl FnOnce(&dyn DiskFile) -> std::io::Result<T>,
    ) -> Result<T, OriginIoError> {
        {
            let mut faults = self.faults();
            faults.calls += 1;
            if faults.away_at.is_some_and(|at| faults.calls >= at) {
                return Err(unavailable("the simulated origin is out of reach"));
            }
        }
        let result = self.disk.open(&self.name, false).and_then(|file| run(&*file));
        result.map_err(|error| {
            if self.disk.is_powered_off() {
                unavailable("the power is off")
            } else {
                OriginIoError::io("use the simulated origin", &error)
            }
        })
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), OriginIoError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(OriginIoError::beyond(&self.name, offset, len, self.size)),
        }
    }
}

impl Origin for SimOrigin {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OriginIoError> {
        self.check(offset, buf.len() as u64)?;
        self.with_file(|file| file.read_at(offset, buf)).map(drop)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OriginIoError> {
        self.check(offset, bytes.len() as u64)?;
        self.with_file(|file| file.write_at(offset, bytes))
    }

    fn zero(&self, offset: u64, len: u64, _punch: bool) -> Result<(), OriginIoError> {
        self.check(offset, len)?;
        self.with_file(|file| file.write_at(offset, &vec![0; len as usize]))
    }

    fn flush(&self) -> Result<(), OriginIoError> {
        if self.faults().unsafe_no_flush {
            return self.with_file(|_| Ok(()));
        }
        self.losses.flush(&self.name, || self.with_file(|file| file.sync_data()))
    }

    fn losses(&self) -> u64 {
        self.losses.count()
    }

    fn parallelism(&self) -> usize {
        self.faults().parallelism
    }

    fn allocation(&self, offset: u64, len: u64) -> Result<Vec<Run>, OriginIoError> {
        let mut bytes = vec![0; len as usize];
        self.read(offset, &mut bytes)?;
        let run = |bytes: &[u8]| Run {
            len: bytes.len() as u64,
            is_hole: bytes.iter().all(|&byte| byte == 0),
        };
        Ok(bytes.chunks(HOLE_BYTES).map(run).collect())
    }

    fn identity(&self) -> Result<Identity, OriginIoError> {
        Ok(Identity {
            name: self.name.clone(),
            size: self.size,
            store: format!("simulated {}", self.name),
            modified_ns: None,
        })
    }
}

/// Zeros of this length are told to be a hole.
const HOLE_BYTES: usize = 512;

fn unavailable(message: &str) -> OriginIoError {
    OriginIoError::new(OriginIoErrorKind::Unavailable, message)
}
