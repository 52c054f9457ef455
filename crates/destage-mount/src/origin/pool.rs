//! Files made in advance at the origin, so that what is created has its number and its handle at once, although its
//! name comes to the origin later.
//!
//! They are durable before they are given out: the journal names them by handle, and a crash of the origin must not
//! lose what the journal names.

use super::{Key, Origin, Result};
use crate::ask::{Errno, Ino, Kind, Listed, Make};
use crate::engine::{OwnFolders, Stage, Staged, staged_name};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The stock: see the module.
pub(crate) struct Pool {
    origin: Arc<dyn Origin>,
    own: OwnFolders,
    next: AtomicU64,
    files: Stock,
    dirs: Stock,
    waste: Mutex<Waste>,
    has_waste: Condvar,
    /// Held while waste is removed.
    removing: Mutex<()>,
    /// So many are made or removed at a time.
    lanes: usize,
}

/// What is not needed any more.
#[derive(Default)]
struct Waste {
    numbers: Vec<u64>,
    has_ended: bool,
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
    /// A stock in these folders, in which nothing is left but what is in use. Numbers begin behind `used`: what the journal
    /// says of one is not to come true of another file, and be its own at its name already. `lanes` of them are made at a time.
    ///
    /// # Errors
    /// The origin's.
    pub(crate) fn sweep(
        origin: Arc<dyn Origin>,
        own: OwnFolders,
        used: u64,
        is_used: impl Fn(Ino) -> bool,
        lanes: usize,
    ) -> Result<Self> {
        let mut next = used + 1;
        for folder in &own.pools {
            for listed in origin.list(folder)? {
                if own.pools.iter().any(|pool| pool.ino == listed.ino) {
                    continue;
                }
                let number = std::str::from_utf8(&listed.name).ok();
                let number = number.and_then(|text| u64::from_str_radix(text, 16).ok());
                next = next.max(number.map_or(0, |number| number + 1));
                match number.filter(|_| is_used(listed.ino)) {
                    Some(number) => move_to(&*origin, folder, own.pool(number), &listed)?,
                    None if is_used(listed.ino) => {}
                    None => remove(&*origin, folder, &listed)?,
                }
            }
        }
        Ok(Self {
            origin,
            own,
            next: AtomicU64::new(next),
            files: Stock::new(Make::File, FILES),
            dirs: Stock::new(Make::Dir, DIRS),
            waste: Mutex::default(),
            has_waste: Condvar::new(),
            removing: Mutex::default(),
            lanes,
        })
    }

    /// So few are made at once.
    #[cfg(test)]
    pub(crate) fn keep_at_most(&mut self, count: usize) {
        self.files.count = AtomicUsize::new(count);
        self.dirs.count = AtomicUsize::new(count);
    }

    fn make(&self, number: u64, make: &Make) -> Result<Staged> {
        let (key, stat) = self.origin.make(self.own.pool(number), &staged_name(number), make)?;
        Ok(Staged { number, key, stat })
    }

    /// One that is durable.
    fn make_one(&self, make: &Make) -> Result<Staged> {
        let staged = self.make(self.next.fetch_add(1, Ordering::Relaxed), make)?;
        self.origin.sync(self.own.pool(staged.number))?;
        Ok(staged)
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
        let began = Instant::now();
        let first = self.next.fetch_add(count as u64, Ordering::Relaxed);
        let numbers: Vec<u64> = (first..first + count as u64).collect();
        let made = self.own.in_lanes(self.lanes, &numbers, |numbers| -> Result<Vec<Staged>> {
            let made = numbers.iter().map(|&number| self.make(number, &stock.make));
            let made = made.collect::<Result<Vec<_>>>()?;
            let pools: BTreeSet<&Key> =
                numbers.iter().map(|&number| self.own.pool(number)).collect();
            pools.into_iter().try_for_each(|pool| self.origin.sync(pool))?;
            Ok(made)
        });
        let made: Vec<Vec<Staged>> = made.into_iter().collect::<Result<_>>()?;
        if self.lanes > 1 && count > FEW && stock.ready().was_empty {
            stock.grow(count, began.elapsed());
        }
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

    fn waste(&self) -> MutexGuard<'_, Waste> {
        self.waste.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are not needed any more. [`Pool::tidy`] removes them.
    pub(crate) fn discard_later(&self, numbers: impl Iterator<Item = u64>) {
        let mut waste = self.waste();
        let before = waste.numbers.len();
        waste.numbers.extend(numbers);
        if waste.numbers.len() > before {
            self.has_waste.notify_one();
        }
    }

    /// Removes what is not needed any more, until nobody creates anything any more. No batch waits for it.
    pub(crate) fn tidy(&self) {
        loop {
            let mut waste = self.waste();
            while !waste.has_ended && waste.numbers.is_empty() {
                waste = self.has_waste.wait(waste).unwrap_or_else(PoisonError::into_inner);
            }
            if waste.has_ended {
                return;
            }
            drop(waste);
            let _removing = self.removing.lock().unwrap_or_else(PoisonError::into_inner);
            let numbers = std::mem::take(&mut self.waste().numbers);
            self.discard_all(&numbers);
        }
    }

    /// Files that are as they were made are in stock again. No more of them than may soon be wanted: an end removes all of them.
    pub(crate) fn give_back(&self, unchanged: Vec<Staged>) {
        if unchanged.is_empty() {
            return;
        }
        let most = 2 * self.files.count();
        let mut ready = self.files.ready();
        let fit = if ready.has_ended { 0 } else { most.saturating_sub(ready.files.len()) };
        let mut unchanged = unchanged.into_iter();
        ready.files.extend(unchanged.by_ref().take(fit));
        ready.is_low &= ready.files.len() <= self.files.count() / 2;
        drop(ready);
        self.discard_later(unchanged.map(|staged| staged.number));
    }

    fn discard_all(&self, numbers: &[u64]) {
        self.own.in_lanes(self.lanes, numbers, |numbers| {
            numbers.iter().for_each(|&number| self.discard(number));
        });
    }

    /// One is not needed any more.
    pub(crate) fn discard(&self, number: u64) {
        let (pool, name) = (self.own.pool(number), staged_name(number));
        let result = match self.origin.unlink(pool, &name) {
            Err(Errno::ISDIR | Errno::PERM) => self.origin.rmdir(pool, &name),
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
        let _removing = self.removing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = {
            let mut waste = self.waste();
            waste.has_ended = true;
            std::mem::take(&mut waste.numbers)
        };
        self.has_waste.notify_all();
        for stock in [&self.files, &self.dirs] {
            // What is being made is to be in it.
            let _making = stock.making.lock().unwrap_or_else(PoisonError::into_inner);
            let _few = stock.making_few.lock().unwrap_or_else(PoisonError::into_inner);
            let mut ready = stock.ready();
            ready.has_ended = true;
            left.extend(std::mem::take(&mut ready.files).into_iter().map(|staged| staged.number));
            stock.runs_low.notify_all();
        }
        self.discard_all(&left);
    }
}

/// Removes what nobody uses of what is found where files are made in advance.
fn remove(origin: &dyn Origin, folder: &Key, listed: &Listed) -> Result<()> {
    if listed.kind != Kind::Dir {
        return origin.unlink(folder, &listed.name);
    }
    // What is in it was there under other names only, or is a file that nobody names.
    match origin.rmdir(folder, &listed.name) {
        Ok(()) | Err(Errno::NOTEMPTY) => Ok(()),
        Err(error) => Err(error),
    }
}

/// What is in use is where its number says: earlier versions had one folder for all.
fn move_to(origin: &dyn Origin, from: &Key, to: &Key, listed: &Listed) -> Result<()> {
    if from == to {
        return Ok(());
    }
    match origin.rename(from, &listed.name, to, &listed.name, false) {
        // An earlier start has given it the new name, and has not taken the old one away.
        Err(Errno::EXIST) if origin.lookup(to, &listed.name)?.0.ino == listed.ino => {
            origin.unlink(from, &listed.name)?;
        }
        other => other?,
    }
    origin.sync(to)?;
    origin.sync(from)
}

impl Stage for Pool {
    fn take(&self, make: &Make) -> Result<Staged> {
        match make {
            Make::File => self.take_from(&self.files),
            Make::Dir => self.take_from(&self.dirs),
            Make::Link(_) | Make::Special(..) => self.make_one(make),
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
    use crate::origin::LocalOrigin;

    fn names(origin: &dyn Origin, folder: &Key) -> Vec<String> {
        let listed = origin.list(folder).unwrap().into_iter();
        listed.map(|listed| String::from_utf8_lossy(&listed.name).into_owned()).collect()
    }

    #[test]
    fn what_is_in_use_is_found_where_its_number_says_and_all_else_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let origin: Arc<dyn Origin> = Arc::new(LocalOrigin::open(folder.path()).unwrap());
        let (first, _) = origin.make(&origin.root(), b"pool", &Make::Dir).unwrap();
        let (second, _) = origin.make(&first, b"part-1", &Make::Dir).unwrap();
        let pools = vec![first.clone(), second.clone()];
        let own = OwnFolders {
            pools,
            conflicts: origin.root(),
            at_work: (origin.root(), b"at-work"[..].into()),
        };
        // As an earlier version leaves them: all in one folder.
        let made = |number: u64| origin.make(&first, &staged_name(number), &Make::File).unwrap().0;
        let (even, odd, twice, unused) = (made(4), made(5), made(7), made(9));
        origin.link(&twice, &second, &staged_name(7)).unwrap();
        let used = [even.ino, odd.ino, twice.ino];
        let is_used = |ino| used.contains(&ino);
        let pool = Pool::sweep(origin.clone(), own.clone(), 3, is_used, 2).unwrap();
        let name = |number: u64| format!("{number:016x}");
        let mut first_names = names(&*origin, &first);
        first_names.sort();
        assert_eq!(first_names, [name(4), "part-1".to_owned()]);
        let mut second_names = names(&*origin, &second);
        second_names.sort();
        assert_eq!(second_names, [name(5), name(7)]);
        assert_eq!(origin.lookup(&second, &staged_name(5)).unwrap().0, odd);
        assert!(origin.lookup(&first, &staged_name(9)).is_err(), "{unused:?}");
        // Numbers go on behind all that were there, and what is left at the end is removed.
        let staged: Vec<Staged> = (0..20).map(|_| pool.take(&Make::File).unwrap()).collect();
        assert!(staged.iter().all(|staged| staged.number > 9));
        let place =
            |staged: &Staged| origin.lookup(own.pool(staged.number), &staged_name(staged.number));
        assert!(staged.iter().all(|staged| place(staged).is_ok_and(|(key, _)| key == staged.key)));
        pool.discard_later(staged.iter().map(|staged| staged.number));
        pool.empty();
        assert_eq!(names(&*origin, &first).len() + names(&*origin, &second).len(), 4);
    }

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
