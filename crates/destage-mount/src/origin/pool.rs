//! Files made in advance at the origin, so that what is created has its number and its handle at once, although its
//! name comes to the origin later.
//!
//! They are durable before they are given out: the journal names them by handle, and a crash of the origin must not
//! lose what the journal names.

use super::{Key, Origin, Result};
use crate::ask::{Errno, Ino, Make};
use crate::engine::{Stage, Staged, staged_name};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The stock: see the module.
pub(crate) struct Pool {
    origin: Arc<dyn Origin>,
    folder: Key,
    next: AtomicU64,
    files: Stock,
    dirs: Stock,
    /// So many are made at a time.
    lanes: usize,
}

/// Files of one kind.
struct Stock {
    make: Make,
    /// How many are made at once: more where more were wanted, as many as there is time for.
    count: AtomicUsize,
    ready: Mutex<Ready>,
    runs_low: Condvar,
    /// One makes many at a time, and one those that are waited for.
    making: Mutex<()>,
    making_few: Mutex<()>,
}

#[derive(Default)]
struct Ready {
    files: Vec<Staged>,
    /// Somebody has taken one, and few are left.
    is_low: bool,
    /// Somebody has found none since there were some.
    was_empty: bool,
    has_begun: bool,
    has_ended: bool,
}

impl Stock {
    fn new(make: Make, count: usize) -> Self {
        Self {
            make,
            count: AtomicUsize::new(count),
            // The first who creates something is not to wait.
            ready: Mutex::new(Ready { is_low: true, ..Ready::default() }),
            runs_low: Condvar::new(),
            making: Mutex::default(),
            making_few: Mutex::default(),
        }
    }

    fn ready(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Somebody found none, although some were made before. To make them durable takes its time however many they are: so more
    /// are made at once, if that takes little. As many took so long.
    fn grow(&self, made: usize, took: Duration) {
        let each = took.as_secs_f64() / made as f64;
        let most = (MAKING_MAX.as_secs_f64() / each.max(1e-9)) as usize;
        let count = (self.count() * 2).min(most).min(COUNT_MAX);
        self.count.fetch_max(count, Ordering::Relaxed);
    }

    fn take(&self) -> Option<Staged> {
        let mut ready = self.ready();
        let staged = ready.files.pop();
        ready.was_empty |= staged.is_none() && ready.has_begun;
        ready.has_begun = true;
        if ready.files.len() <= self.count() / 2 {
            ready.is_low = true;
            self.runs_low.notify_one();
        }
        staged
    }
}

impl Pool {
    /// A stock in this folder, in which nothing is left but what is in use. Numbers begin behind `used`: what the journal says
    /// of one is not to come true of another file, and be its own at its name already. `lanes` of them are made at a time.
    ///
    /// # Errors
    /// The origin's.
    pub(crate) fn sweep(
        origin: Arc<dyn Origin>,
        folder: Key,
        used: u64,
        is_used: impl Fn(Ino) -> bool,
        lanes: usize,
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
            files: Stock::new(Make::File, FILES),
            dirs: Stock::new(Make::Dir, DIRS),
            lanes,
        })
    }

    fn make(&self, make: &Make) -> Result<Staged> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (key, stat) = self.origin.make(&self.folder, &staged_name(number), make)?;
        Ok(Staged { number, key, stat })
    }

    /// One of the stock. If it is empty, a few more are made by one of those who wait, whatever is being made beside them.
    fn take_from(&self, stock: &Stock) -> Result<Staged> {
        loop {
            if let Some(staged) = stock.take() {
                return Ok(staged);
            }
            let _making = stock.making_few.lock().unwrap_or_else(PoisonError::into_inner);
            if stock.ready().files.is_empty() {
                let few = if self.lanes < 2 { stock.count() } else { FEW };
                self.refill(stock, few)?;
            }
        }
    }

    /// Several at a time, where the origin is quicker so. They are durable before they are given out.
    fn refill(&self, stock: &Stock, count: usize) -> Result<()> {
        let make =
            |count| -> Result<Vec<Staged>> { (0..count).map(|_| self.make(&stock.make)).collect() };
        if self.lanes < 2 {
            return self.put(stock, [make(count)?]);
        }
        let began = Instant::now();
        let share = count.div_ceil(self.lanes);
        let made: Vec<Result<Vec<Staged>>> = thread::scope(|scope| {
            let lanes = (0..count).step_by(share).map(|first| {
                let part = share.min(count - first);
                scope.spawn(move || make(part))
            });
            let lanes: Vec<_> = lanes.collect();
            let joined = lanes
                .into_iter()
                .map(|lane| lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.collect()
        });
        let made: Vec<Vec<Staged>> = made.into_iter().collect::<Result<_>>()?;
        if count > FEW && stock.ready().was_empty {
            stock.grow(count, began.elapsed());
        }
        self.put(stock, made)
    }

    fn put(&self, stock: &Stock, made: impl IntoIterator<Item = Vec<Staged>>) -> Result<()> {
        self.origin.sync(&self.folder)?;
        let mut ready = stock.ready();
        ready.files.extend(made.into_iter().flatten());
        if ready.files.len() > stock.count() / 2 {
            (ready.is_low, ready.was_empty) = (false, false);
        }
        Ok(())
    }

    /// Refills a stock whenever it is low, until nobody creates anything any more: who creates a file is not to wait for more
    /// than there are.
    pub(crate) fn keep(&self, files: bool) {
        let stock = if files { &self.files } else { &self.dirs };
        loop {
            {
                let mut ready = stock.ready();
                while !ready.has_ended && !ready.is_low {
                    ready = stock.runs_low.wait(ready).unwrap_or_else(PoisonError::into_inner);
                }
                if ready.has_ended {
                    return;
                }
            }
            let making = stock.making.lock().unwrap_or_else(PoisonError::into_inner);
            // It may have ended meanwhile.
            let is_wanted = {
                let ready = stock.ready();
                ready.is_low && !ready.has_ended
            };
            let refilled = if is_wanted { self.refill(stock, stock.count()) } else { Ok(()) };
            drop(making);
            if let Err(error) = refilled {
                // Who needs one meanwhile is told why there is none.
                tracing::debug!(%error, "no files can be made in advance");
                thread::sleep(RETRY_AFTER);
            }
        }
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
            // What is being made is to be in it.
            let _making = stock.making.lock().unwrap_or_else(PoisonError::into_inner);
            let _few = stock.making_few.lock().unwrap_or_else(PoisonError::into_inner);
            let left = {
                let mut ready = stock.ready();
                ready.has_ended = true;
                std::mem::take(&mut ready.files)
            };
            stock.runs_low.notify_all();
            left.into_iter().for_each(|staged| self.discard(staged.number));
        }
    }
}

impl Stage for Pool {
    fn take(&self, make: &Make) -> Result<Staged> {
        match make {
            Make::File => self.take_from(&self.files),
            Make::Dir => self.take_from(&self.dirs),
            Make::Link(_) | Make::Special(..) => {
                let staged = self.make(make)?;
                self.origin.sync(&self.folder)?;
                Ok(staged)
            }
        }
    }
}

/// How many are made at once, to begin with, and at most.
const FILES: usize = 256;
const DIRS: usize = 32;
const COUNT_MAX: usize = 8_192;
/// How many are made for those who wait.
const FEW: usize = 16;
/// How long that may take: so long an end may have to wait.
const MAKING_MAX: Duration = Duration::from_millis(500);
/// After a failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_are_made_at_once_where_more_are_wanted_and_no_more_than_there_is_time_for() {
        let stock = Stock::new(Make::File, 256);
        stock.grow(256, Duration::from_millis(5));
        assert_eq!(stock.count(), 512);
        // 2 ms each: there is time for 250, which is no reason to make fewer than before.
        stock.grow(512, Duration::from_millis(1_024));
        assert_eq!(stock.count(), 512);
        for _ in 0..10 {
            stock.grow(1_000, Duration::from_millis(1));
        }
        assert_eq!(stock.count(), COUNT_MAX);
    }
}
