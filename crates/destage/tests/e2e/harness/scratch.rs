//! A test's own folder, and the watchdog that ends a run in which a test hangs.

use super::Database;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// A folder that is removed with the test, unless the test fails: then its name is printed.
pub(crate) struct Scratch {
    folder: Option<tempfile::TempDir>,
    path: PathBuf,
    watched: u64,
}

impl Scratch {
    /// A folder for a test that ends within eight minutes, on the slowest machine.
    pub(crate) fn new() -> Self {
        Self::for_at_most(Duration::from_secs(480))
    }

    /// A folder for a test that ends within `limit`.
    pub(crate) fn for_at_most(limit: Duration) -> Self {
        let folder = tempfile::Builder::new().prefix("destage-e2e-").tempdir();
        let folder = folder.expect("a temporary folder can be made");
        let path = folder.path().to_owned();
        Self { folder: Some(folder), path, watched: watch(limit) }
    }

    /// The path of something in the folder.
    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// A folder inside, removed with this one.
    pub(crate) fn folder(&self, name: &str) -> Self {
        let path = self.join(name);
        std::fs::create_dir_all(&path).expect("a folder can be made");
        Self { folder: None, path, watched: watch(Duration::from_secs(480)) }
    }

    /// Each database with a folder inside this one.
    pub(crate) fn apart(&self, databases: Vec<Database>) -> impl Iterator<Item = (Self, Database)> {
        let numbered = databases.into_iter().enumerate();
        numbered.map(|(number, database)| (self.folder(&number.to_string()), database))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        unwatch(self.watched);
        if let (true, Some(folder)) = (thread::panicking(), self.folder.take()) {
            eprintln!("the test's files are kept: {}", folder.keep().display());
        }
    }
}

/// A test under watch: its number, name, deadline and limit.
type Watched = (u64, String, Instant, Duration);

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
static CHILDREN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn watch(limit: Duration) -> u64 {
    static WATCHDOG: OnceLock<()> = OnceLock::new();
    WATCHDOG.get_or_init(|| {
        thread::spawn(|| {
            loop {
                thread::sleep(Duration::from_secs(1));
                bark();
            }
        });
    });
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let mut watched = WATCHED.lock().expect("no holder panics");
    let number = watched.iter().map(|entry| entry.0).max().unwrap_or(0) + 1;
    watched.push((number, name, Instant::now() + limit, limit));
    number
}

fn unwatch(number: u64) {
    WATCHED.lock().expect("no holder panics").retain(|entry| entry.0 != number);
}

/// Ends the whole run, servers included, if a test is late.
fn bark() {
    let watched = WATCHED.lock().expect("no holder panics");
    let Some((_, name, _, limit)) = watched.iter().find(|entry| entry.2 < Instant::now()) else {
        return;
    };
    // Not by the macros: what this thread prints by them belongs to the test that started it, and would be lost.
    let _ = writeln!(io::stderr(), "test {name} has not ended within {limit:?}: giving up");
    let counts = "0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
    let _ = writeln!(io::stdout(), "test result: FAILED. {counts}");
    for &child in CHILDREN.lock().expect("no holder panics").iter() {
        super::server::signal(child, rustix::process::Signal::KILL);
    }
    std::process::exit(101);
}

/// Remembers a process that must not outlive a run given up.
pub(crate) fn adopt(child: u32) {
    CHILDREN.lock().expect("no holder panics").push(child);
}

/// Forgets a process that has ended.
pub(crate) fn release(child: u32) {
    CHILDREN.lock().expect("no holder panics").retain(|&id| id != child);
}
