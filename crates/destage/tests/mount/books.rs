//! Books of what clients of several hosts do in one folder, and what must be true of it: a read sees the last write, an append is
//! there, a name is there or not on every host.

use crate::harness::{PATIENCE, Random, eventually, millis};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// A write or a read of a register, and when it began and ended; a write that failed has no end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    register: usize,
    value: u64,
    began: Instant,
    ended: Option<Instant>,
}

/// What the clients of all hosts have done.
#[derive(Default)]
pub(crate) struct Books {
    next: AtomicU64,
    writes: Mutex<Vec<Op>>,
    reads: Mutex<Vec<Op>>,
    appended: Mutex<Vec<u64>>,
    wrong: Mutex<Vec<String>>,
    failed: AtomicU64,
    over: AtomicBool,
}

const REGISTERS: usize = 3;
const BLOCK: usize = 4096;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn block(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK / 8)
}

impl Books {
    fn client(&self, folders: &[PathBuf], own: usize, seed: u64) {
        let mut random = Random::new(seed, own as u64);
        while !self.over.load(Ordering::Relaxed) {
            let folder = &folders[own];
            let register = random.between(0, REGISTERS as u64) as usize;
            let path = folder.join(format!("register{register}"));
            let result = match random.between(0, 10) {
                0..3 => self.write(&path, register),
                3..7 => self.read(&path, register),
                7..9 => self.append(&folder.join("log")),
                _ => self.names(folders, own, &mut random),
            };
            if result.is_err() {
                // Its host is being killed, or started.
                self.failed.fetch_add(1, Ordering::Relaxed);
                thread::sleep(millis(20));
            }
        }
    }

    fn value(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn write(&self, path: &Path, register: usize) -> std::io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        let value = self.value();
        let began = Instant::now();
        let index = {
            let mut writes = lock(&self.writes);
            writes.push(Op { register, value, began, ended: None });
            writes.len() - 1
        };
        file.write_all_at(&block(value), 0)?;
        lock(&self.writes)[index].ended = Some(Instant::now());
        Ok(())
    }

    fn read(&self, path: &Path, register: usize) -> std::io::Result<()> {
        let file = File::open(path)?;
        let began = Instant::now();
        let mut found = vec![0; BLOCK];
        file.read_exact_at(&mut found, 0)?;
        let ended = Some(Instant::now());
        let value = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
        if found != block(value) {
            lock(&self.wrong).push(format!("register {register} is torn"));
        }
        lock(&self.reads).push(Op { register, value, began, ended });
        Ok(())
    }

    fn append(&self, path: &Path) -> std::io::Result<()> {
        let value = self.value();
        let mut file = OpenOptions::new().append(true).open(path)?;
        file.write_all(format!("{value:09}\n").as_bytes())?;
        lock(&self.appended).push(value);
        Ok(())
    }

    /// A file that is made on one host is there on another one, with its attributes; and gone once it is gone.
    fn names(&self, folders: &[PathBuf], own: usize, random: &mut Random) -> std::io::Result<()> {
        let other = random.between(0, folders.len() as u64) as usize;
        let name = format!("names/{}", self.value());
        let (here, there) = (folders[own].join(&name), folders[other].join(&name));
        let moved = folders[own].join(format!("{name}-moved"));
        fs::write(&here, b"twelve bytes")?;
        let wrong = |what: &str| lock(&self.wrong).push(format!("{name}: {what}"));
        match there.metadata() {
            Ok(found) if found.len() == 12 => {}
            Ok(found) => wrong(&format!("it has {} bytes elsewhere", found.len())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => wrong("it is not there"),
            Err(error) => return Err(error),
        }
        fs::rename(&there, folders[other].join(format!("{name}-moved")))?;
        if here.try_exists()? {
            wrong("its old name is still there");
        }
        if !moved.try_exists()? {
            wrong("its new name is not there");
        }
        fs::remove_file(&moved)?;
        if folders[other].join(format!("{name}-moved")).try_exists()? {
            wrong("it is still there");
        }
        Ok(())
    }

    /// Reads that gave a value which another write, begun after it had ended, had replaced before they began.
    fn stale(&self) -> Vec<Op> {
        let (writes, reads) = (lock(&self.writes), lock(&self.reads));
        let by_value: BTreeMap<u64, Op> = writes.iter().map(|op| (op.value, *op)).collect();
        let is_stale = |read: &&Op| {
            let ended = match by_value.get(&read.value) {
                // It may have taken effect at any time since.
                Some(write) => match write.ended {
                    None => return false,
                    ended => ended,
                },
                None => None,
            };
            writes.iter().any(|later| {
                later.register == read.register
                    && ended.is_none_or(|ended| later.began > ended)
                    && later.ended.is_some_and(|over| over < read.began)
            })
        };
        reads.iter().filter(is_stale).copied().collect()
    }

    /// What is wrong, seen from this folder.
    pub(crate) fn check(&self, folder: &Path) -> Result<(), String> {
        if let Some(wrong) = lock(&self.wrong).first() {
            return Err(wrong.clone());
        }
        let stale = self.stale();
        if let Some(first) = stale.first() {
            return Err(format!("{} stale reads, as {first:?}", stale.len()));
        }
        let log = fs::read_to_string(folder.join("log")).map_err(|error| error.to_string())?;
        let found = log.lines().map(str::parse).collect::<Result<BTreeSet<u64>, _>>();
        let found = found.map_err(|_| "the log has a torn line".to_owned())?;
        let appended = lock(&self.appended);
        let lost = appended.iter().filter(|value| !found.contains(value)).count();
        if lost > 0 {
            return Err(format!("{lost} of {} appends are lost", appended.len()));
        }
        Ok(())
    }

    /// Whether something is wrong already.
    pub(crate) fn is_wrong(&self) -> bool {
        !lock(&self.wrong).is_empty() || !self.stale().is_empty()
    }

    /// How much was done.
    pub(crate) fn done(&self) -> String {
        format!(
            "{} reads, {} writes, {} appends, {} failed",
            lock(&self.reads).len(),
            lock(&self.writes).len(),
            lock(&self.appended).len(),
            self.failed.load(Ordering::Relaxed)
        )
    }

    /// Waits until so much more was done of everything.
    #[track_caller]
    pub(crate) fn goes_on(&self, count: usize) {
        let done =
            || [lock(&self.reads).len(), lock(&self.writes).len(), lock(&self.appended).len()];
        let before = done();
        eventually("the clients go on", PATIENCE * 2, || {
            done().iter().zip(before).all(|(now, before)| now - before >= count)
        });
    }

    /// Nothing has failed.
    pub(crate) fn has_failures(&self) -> bool {
        self.failed.load(Ordering::Relaxed) > 0
    }
}

/// Two clients in each of these folders, which are one folder, while something happens.
pub(crate) fn exercised(folders: &[PathBuf], seed: u64, what: impl FnOnce(&Books)) -> Books {
    let books = Books::default();
    for register in 0..REGISTERS {
        fs::write(folders[0].join(format!("register{register}")), block(0)).expect("it can");
    }
    fs::write(folders[0].join("log"), b"").expect("a file can be made");
    fs::create_dir(folders[0].join("names")).expect("a folder can be made");
    thread::scope(|scope| {
        let books = &books;
        for own in 0..folders.len() {
            for lane in 0..2 {
                scope.spawn(move || books.client(folders, own, seed + 100 * lane));
            }
        }
        // A client that waits for a host that has failed would keep the test from telling so.
        let _over = Over(&books.over);
        what(books);
    });
    books
}

/// The clients end, however that comes.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
