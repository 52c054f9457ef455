//! Several mounts in front of one origin, by one etcd: what one has changed, the others see.

use crate::etcd::Etcd;
use crate::harness::server::signal;
use crate::harness::{PATIENCE, Random, Scratch, eventually, millis, seconds};
use crate::mounted::{Launch, Mounted, Unmounting};
use crate::origin::{Kind, Origin};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Hosts that share an origin, each a mount with a journal of its own.
struct Hosts {
    launches: Vec<Launch>,
    mounted: Vec<Option<Mounted>>,
    folders: Vec<PathBuf>,
    // After the mounts, which are gone or dead by then.
    _unmounting: Vec<Unmounting>,
}

impl Hosts {
    fn start(scratch: &Scratch, origin: &Origin, etcd: &Etcd, count: usize, more: &[&str]) -> Self {
        let mut hosts =
            Self { launches: vec![], mounted: vec![], folders: vec![], _unmounting: vec![] };
        for number in 0..count {
            let own = scratch.folder(&format!("host{number}"));
            let launch = Launch::before(&own, origin)
                // Nothing that was answered is lost with a process, so that books can be kept.
                .with(&["--tokens", &etcd.url(), "--token-lease", "3s", "-d", "0"])
                .with(more);
            let folder = own.join("mnt");
            hosts._unmounting.push(Unmounting(folder.clone()));
            hosts.mounted.push(Some(launch.start()));
            hosts.launches.push(launch);
            hosts.folders.push(folder);
        }
        hosts
    }

    fn stop(&mut self) {
        self.mounted.iter_mut().filter_map(Option::take).for_each(Mounted::stop);
    }
}

/// A write or a read of a register, and when it began and ended; a write that failed has no end.
#[derive(Clone, Copy, Debug)]
struct Op {
    register: usize,
    value: u64,
    began: Instant,
    ended: Option<Instant>,
}

/// What the clients of all hosts have done.
#[derive(Default)]
struct Books {
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

    #[track_caller]
    fn check(&self, folder: &Path) {
        assert_eq!(*lock(&self.wrong), Vec::<String>::new());
        let stale = self.stale();
        assert!(stale.is_empty(), "{} stale reads, as {:?}", stale.len(), stale.first());
        let log = fs::read_to_string(folder.join("log")).expect("the log is there");
        let found: BTreeSet<u64> =
            log.lines().map(|line| line.parse().expect("a number")).collect();
        let appended = lock(&self.appended);
        let lost: Vec<_> = appended.iter().filter(|value| !found.contains(value)).collect();
        assert!(lost.is_empty(), "{} of {} appends are lost", lost.len(), appended.len());
        println!(
            "{} reads, {} writes, {} appends, {} failed",
            lock(&self.reads).len(),
            lock(&self.writes).len(),
            appended.len(),
            self.failed.load(Ordering::Relaxed)
        );
    }
}

/// Clients on every host while something happens to the hosts.
fn exercised(hosts: &mut Hosts, seed: u64, what: impl FnOnce(&mut Hosts)) -> Books {
    let books = Books::default();
    for register in 0..REGISTERS {
        fs::write(hosts.folders[0].join(format!("register{register}")), block(0)).expect("it can");
    }
    fs::write(hosts.folders[0].join("log"), b"").expect("a file can be made");
    fs::create_dir(hosts.folders[0].join("names")).expect("a folder can be made");
    let folders = hosts.folders.clone();
    thread::scope(|scope| {
        let (books, folders) = (&books, &folders);
        for own in 0..folders.len() {
            for lane in 0..2 {
                scope.spawn(move || books.client(folders, own, seed + 100 * lane));
            }
        }
        what(hosts);
        books.over.store(true, Ordering::Relaxed);
    });
    books
}

#[test]
fn what_one_host_has_changed_every_other_one_sees() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch) else { return };
    let Some(origin) = Origin::new(Kind::Local, &scratch) else { return };
    let mut hosts = Hosts::start(&scratch, &origin, &etcd, 3, &[]);
    let books = exercised(&mut hosts, 1, |_| thread::sleep(seconds(10)));
    assert_eq!(books.failed.load(Ordering::Relaxed), 0, "nothing fails while nothing happens");
    assert!(
        lock(&books.reads).len() > 100 && lock(&books.appended).len() > 20,
        "too little was done"
    );
    books.check(&hosts.folders[1]);
    hosts.stop();
    books.check(origin.folder());
}

#[test]
fn hosts_killed_and_stopped_and_an_etcd_that_restarts_leave_nothing_stale_and_lose_no_append() {
    let scratch = Scratch::new();
    let Some(mut etcd) = Etcd::start(&scratch) else { return };
    let Some(origin) = Origin::new(Kind::Local, &scratch) else { return };
    let mut hosts = Hosts::start(&scratch, &origin, &etcd, 3, &[]);
    let books = exercised(&mut hosts, 2, |hosts| {
        for round in 0..2 {
            thread::sleep(seconds(2));
            // It is back before others count it as gone.
            let victim = round % 3;
            if let Some(mounted) = hosts.mounted[victim].take() {
                mounted.kill();
            }
            hosts.mounted[victim] = Some(hosts.launches[victim].start());
            thread::sleep(seconds(1));
            // Longer than its lease; its lock at the origin keeps others from what it holds.
            let stopped = (round + 1) % 3;
            let process = hosts.mounted[stopped].as_ref().map(Mounted::id).expect("it runs");
            signal(process, Signal::STOP);
            thread::sleep(seconds(5));
            signal(process, Signal::CONT);
            thread::sleep(seconds(1));
            etcd.kill();
            thread::sleep(seconds(1));
            etcd.again();
        }
        thread::sleep(seconds(4));
    });
    assert!(
        lock(&books.reads).len() > 50 && lock(&books.appended).len() > 10,
        "too little was done"
    );
    books.check(&hosts.folders[2]);
    hosts.stop();
    books.check(origin.folder());
}

#[test]
fn a_host_that_was_shut_out_keeps_what_others_have_replaced_as_a_conflict() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch) else { return };
    let Some(origin) = Origin::new(Kind::Local, &scratch) else { return };
    let fence = ["--fence-command", "kill -9 $DESTAGE_FENCE_PROCESS"];
    let mut hosts = Hosts::start(&scratch, &origin, &etcd, 2, &fence);
    let [first, second] = [hosts.folders[0].clone(), hosts.folders[1].clone()];
    for name in ["taken", "kept"] {
        fs::write(first.join(name), "before").expect("a file can be made");
        assert_eq!(fs::read(second.join(name)).expect("the other host sees it"), b"before");
    }
    // Both are durable in the first host's journal, and not at the origin.
    for name in ["taken", "kept"] {
        let mut file = OpenOptions::new().write(true).open(first.join(name)).expect("it opens");
        file.write_all(b"behind").and_then(|()| file.sync_all()).expect("it is written");
    }
    let process = hosts.mounted[0].as_ref().map(Mounted::id).expect("it runs");
    signal(process, Signal::STOP);
    let began = Instant::now();
    assert_eq!(fs::read(second.join("taken")).expect("others go on"), b"before");
    assert!(began.elapsed() > Duration::from_secs(2), "no host is shut out within its lease");
    fs::write(second.join("taken"), "after!").expect("others may change it");
    hosts.mounted[0].take().expect("it was started").kill();
    hosts.mounted[0] = Some(hosts.launches[0].start());
    assert_eq!(fs::read(first.join("taken")).expect("it is there"), b"after!");
    assert_eq!(fs::read(second.join("kept")).expect("it is there"), b"behind");
    let listed = hosts.mounted[0].as_ref().expect("it runs").ask(&["status"]);
    assert!(listed.status.success());
    let conflicts = origin.folder().join(".destage/conflicts");
    let mut kept = Vec::new();
    eventually("the conflict is kept", PATIENCE, || {
        kept.clear();
        let journals = fs::read_dir(&conflicts).expect("a folder").flatten();
        for place in journals.flat_map(|journal| fs::read_dir(journal.path())).flatten().flatten() {
            kept.extend(fs::read(place.path().join("data")));
        }
        !kept.is_empty()
    });
    assert_eq!(kept, [b"behind"], "what was acknowledged is not discarded");
    hosts.stop();
}

#[test]
fn one_mount_alone_and_hosts_that_share_keep_each_other_out() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch) else { return };
    let Some(origin) = Origin::new(Kind::Local, &scratch) else { return };
    let mut hosts = Hosts::start(&scratch, &origin, &etcd, 1, &[]);
    let alone = Launch::before(&scratch.folder("alone"), &origin);
    let (code, text) = alone.refused();
    assert_eq!(code, 11, "{text}");
    assert!(text.contains("--tokens"), "{text}");
    hosts.stop();
    alone.start().stop();
}
