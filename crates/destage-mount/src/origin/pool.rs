//! Files made in advance at the origin, so that what is created has its number and its handle at once, although its
//! name comes to the origin later.
//!
//! They are durable before they are given out: the journal names them by handle, and a crash of the origin must not
//! lose what the journal names.

use super::{Key, Origin, Result};
use crate::ask::{Errno, Ino, Make};
use crate::engine::{Stage, Staged, staged_name};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The stock: see the module.
pub(crate) struct Pool {
    origin: Arc<dyn Origin>,
    folder: Key,
    next: AtomicU64,
    files: Mutex<Vec<Staged>>,
    dirs: Mutex<Vec<Staged>>,
}

impl Pool {
    /// A stock in this folder, in which nothing is left but what is in use. Numbers begin behind `used`: what the journal says
    /// of one is not to come true of another file, and be its own at its name already.
    ///
    /// # Errors
    /// The origin's.
    pub(crate) fn sweep(
        origin: Arc<dyn Origin>,
        folder: Key,
        used: u64,
        is_used: impl Fn(Ino) -> bool,
    ) -> Result<Self> {
        let mut next = used + 1;
        for listed in origin.list(&folder)? {
            let number = std::str::from_utf8(&listed.name).ok();
            let number = number.and_then(|text| u64::from_str_radix(text, 16).ok());
            next = next.max(number.map_or(0, |number| number + 1));
            if is_used(listed.ino) {
                continue;
            }
            if listed.kind == crate::ask::Kind::Dir {
                // What is in it was there under other names only, or is a file that nobody names.
                match origin.rmdir(&folder, &listed.name) {
                    Ok(()) | Err(Errno::NOTEMPTY) => {}
                    Err(error) => return Err(error),
                }
            } else {
                origin.unlink(&folder, &listed.name)?;
            }
        }
        Ok(Self {
            origin,
            folder,
            next: AtomicU64::new(next),
            files: Mutex::default(),
            dirs: Mutex::default(),
        })
    }

    fn make(&self, make: &Make) -> Result<Staged> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (key, stat) = self.origin.make(&self.folder, &staged_name(number), make)?;
        Ok(Staged { number, key, stat })
    }

    fn take_from(&self, stock: &Mutex<Vec<Staged>>, make: &Make, count: usize) -> Result<Staged> {
        let mut stock = stock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(staged) = stock.pop() {
            return Ok(staged);
        }
        let made: Vec<Staged> = (0..count).map(|_| self.make(make)).collect::<Result<_>>()?;
        self.origin.sync(&self.folder)?;
        *stock = made;
        stock.pop().ok_or(Errno::IO)
    }

    /// One is not needed any more.
    pub(crate) fn discard(&self, number: u64) {
        let name = staged_name(number);
        let result = match self.origin.unlink(&self.folder, &name) {
            Err(Errno::ISDIR | Errno::PERM) => self.origin.rmdir(&self.folder, &name),
            other => other,
        };
        if let Err(error) = result
            && error != Errno::NOENT
        {
            // The next start tries again.
            tracing::debug!(%error, number, "a file made in advance cannot be removed");
        }
    }

    /// Nobody creates anything any more.
    pub(crate) fn empty(&self) {
        for stock in [&self.files, &self.dirs] {
            let left = std::mem::take(&mut *stock.lock().unwrap_or_else(PoisonError::into_inner));
            left.into_iter().for_each(|staged| self.discard(staged.number));
        }
    }
}

impl Stage for Pool {
    fn take(&self, make: &Make) -> Result<Staged> {
        match make {
            Make::File => self.take_from(&self.files, make, FILES),
            Make::Dir => self.take_from(&self.dirs, make, DIRS),
            Make::Link(_) | Make::Special(..) => {
                let staged = self.make(make)?;
                self.origin.sync(&self.folder)?;
                Ok(staged)
            }
        }
    }
}

/// How many are made at once.
const FILES: usize = 128;
const DIRS: usize = 32;
