//! Applications that know what they made durable, and that can tell whether it is there.

use crate::harness::{PATIENCE, Random};
use rusqlite::Connection;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Application {
    /// Files that are replaced durably, each noted in a counter afterwards, among others that are not synced.
    Files,
    /// SQLite transactions with a rollback journal.
    SqliteRollback,
    /// SQLite transactions with a write-ahead log.
    SqliteWal,
}

/// Its steps have the numbers from 1; one that is noted here is durable.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    newest: AtomicU64,
    is_held: AtomicBool,
}

impl Steps {
    /// The newest durable step.
    pub(crate) fn done(&self) -> u64 {
        self.newest.load(Ordering::SeqCst)
    }

    /// Lets the application stop after the step that it is at, or go on.
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::SeqCst);
    }

    fn note(&self, step: u64) {
        self.newest.store(step, Ordering::SeqCst);
        // Not for ever, or a test that fails meanwhile would not end.
        let until = Instant::now() + PATIENCE * 2;
        while self.is_held.load(Ordering::SeqCst) && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Application {
    /// Goes on until the disk below fails.
    pub(crate) fn work(self, folder: &Path, steps: &Steps, random: &mut Random) {
        // How it ends does not matter: the disk is gone.
        let _ = match self {
            Self::Files => write_files(folder, steps, random).map_err(|error| error.to_string()),
            Self::SqliteRollback | Self::SqliteWal => {
                transact(self, folder, steps, random).map_err(|error| error.to_string())
            }
        };
    }

    /// The newest step that is there.
    ///
    /// # Errors
    /// What is missing, torn or out of order.
    pub(crate) fn check(self, folder: &Path) -> Result<u64, String> {
        match self {
            Self::Files => check_files(folder).map_err(|error| error.to_string()),
            Self::SqliteRollback | Self::SqliteWal => {
                check_database(self, folder).map_err(|error| error.to_string())
            }
        }
    }
}

/// The newest step that is there, or what is broken.
type Checked = Result<u64, Box<dyn std::error::Error>>;

/// Files that are replaced in turn.
const SLOTS: u64 = 40;

/// What the file of a step holds: its number, then bytes that follow from it.
fn content(step: u64) -> Vec<u8> {
    let mut random = Random::new(step, 1);
    let mut bytes = step.to_le_bytes().to_vec();
    for _ in 0..random.between(1, 1_500) {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes
}

/// Makes this the content of that file, at once and durably.
fn replace(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let written = folder.join(format!("{name}.new"));
    let mut file = File::create(&written)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&written, folder.join(name))?;
    File::open(folder)?.sync_all()
}

fn write_files(folder: &Path, steps: &Steps, random: &mut Random) -> io::Result<()> {
    let noise = folder.join("noise");
    fs::create_dir_all(&noise)?;
    for step in 1.. {
        replace(folder, &format!("file-{}", step % SLOTS), &content(step))?;
        replace(folder, "counter", &step.to_le_bytes())?;
        steps.note(step);
        // What nobody waits for keeps the file system's own order busy.
        let name = noise.join(format!("n{}", random.between(0, 30)));
        fs::write(&name, vec![step as u8; random.between(0, 150_000) as usize])?;
        if step % 3 == 0 {
            fs::rename(&name, noise.join(format!("renamed-{}", random.between(0, 30))))?;
        }
        if step % 11 == 0 {
            fs::remove_dir_all(&noise)?;
            fs::create_dir_all(&noise)?;
        }
    }
    Ok(())
}

fn check_files(folder: &Path) -> Checked {
    let counter = match fs::read(folder.join("counter")) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let number = |bytes: &[u8]| bytes.get(..8).and_then(|first| first.try_into().ok());
    let counter = number(&counter).map(u64::from_le_bytes);
    let counter = counter.filter(|&counter| counter > 0);
    let counter = counter.ok_or("the counter is torn")?;
    for step in counter.saturating_sub(SLOTS - 1).max(1)..=counter {
        let bytes = fs::read(folder.join(format!("file-{}", step % SLOTS)))
            .map_err(|error| format!("the file of step {step} of {counter}: {error}"))?;
        let newer = number(&bytes).map_or(0, u64::from_le_bytes);
        if newer < step || newer > counter + 1 || newer % SLOTS != step % SLOTS {
            return Err(format!("step {counter} is there, {step} is not: found {newer}").into());
        }
        if bytes != content(newer) {
            return Err(format!("the file of step {newer} of {counter} is torn").into());
        }
    }
    // Whatever is there can be read.
    for entry in fs::read_dir(folder.join("noise")).into_iter().flatten() {
        fs::read(entry?.path())?;
    }
    Ok(counter)
}

/// Rows that are kept.
const ROWS: u64 = 200;

fn connect(application: Application, folder: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(folder.join("application.db"))?;
    // Without memory shared through a file of a disk that will fail: a page that cannot be read would end the test.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    let mode = match application {
        Application::SqliteWal => "WAL",
        _ => "DELETE",
    };
    connection.pragma_update(None, "journal_mode", mode)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

fn transact(
    application: Application,
    folder: &Path,
    steps: &Steps,
    random: &mut Random,
) -> rusqlite::Result<()> {
    let mut connection = connect(application, folder)?;
    connection.execute_batch(
        "BEGIN; CREATE TABLE steps (step INTEGER PRIMARY KEY, content BLOB); \
         CREATE INDEX contents ON steps (content); \
         CREATE TABLE counter (step INTEGER); INSERT INTO counter VALUES (0); COMMIT",
    )?;
    for step in 1_u64.. {
        let transaction = connection.transaction()?;
        let bytes: Vec<u8> = content(step).into_iter().take(2_000).collect();
        transaction.execute("INSERT INTO steps VALUES (?1, ?2)", (step.cast_signed(), bytes))?;
        let oldest = step.saturating_sub(ROWS).cast_signed();
        transaction.execute("DELETE FROM steps WHERE step <= ?1", [oldest])?;
        transaction.execute("UPDATE counter SET step = ?1", [step.cast_signed()])?;
        transaction.commit()?;
        steps.note(step);
        if random.between(0, 20) == 0 {
            // The file system has something of its own to do, now and then.
            let _ = fs::write(folder.join("other"), vec![1; random.between(0, 200_000) as usize]);
        }
    }
    Ok(())
}

fn check_database(application: Application, folder: &Path) -> Checked {
    if !folder.join("application.db").exists() {
        return Ok(0);
    }
    let connection = connect(application, folder)?;
    let sound: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if sound != "ok" {
        return Err(sound.into());
    }
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        return Ok(0);
    }
    let counter: i64 = connection.query_row("SELECT step FROM counter", [], |row| row.get(0))?;
    let mut statement = connection.prepare("SELECT step, content FROM steps ORDER BY step")?;
    let rows =
        statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
    let mut expected = (counter - ROWS.cast_signed()).max(0);
    for row in rows {
        let (step, bytes) = row?;
        expected += 1;
        if step != expected || !content(step.cast_unsigned()).starts_with(&bytes) {
            return Err(format!("row {step} where {expected} of {counter} must be").into());
        }
    }
    if expected != counter {
        return Err(format!("the rows end at {expected}, the counter is {counter}").into());
    }
    Ok(counter.cast_unsigned())
}
