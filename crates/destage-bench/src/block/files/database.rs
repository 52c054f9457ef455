//! Loads on one large file: an SQLite database, and pages with a log beside them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;

use rusqlite::Connection;
use rustix::fs::{Advice, fadvise};

use super::{Place, Worker};
use crate::Result;
use crate::block::clients::Progress;
use crate::keys::{Keys, Rng, Shape};

const PAGE: u64 = 4096;
/// A row's text: with its number and its amount about half a page.
const ROW_TEXT: usize = 1_900;
const ROW_BYTES: u64 = 2_048;
/// The changed rows of a transaction, and as many that are only read.
const ROWS: usize = 4;
/// The log begins again after so many bytes.
const LOG_BYTES: u64 = 1 << 20;

pub(super) fn transactions(place: &Place<'_>) -> Result<Worker> {
    let path = place.folder.join("shop.db");
    let rows = (place.bytes / ROW_BYTES).max(64);
    let is_new = !path.exists();
    let database = Connection::open(&path)?;
    database.execute_batch(
        "PRAGMA page_size = 4096; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -1024;",
    )?;
    if is_new {
        fill(&database, rows)?;
    }
    let file = File::open(&path)?;
    file.sync_all()?;
    let mut hot = Keys::new(Shape::Zipfian, rows, place.seed, 0, 1);
    Ok(Box::new(move |progress: &Progress| {
        // What was checkpointed to the database is dropped; what is in the log is read from memory, as everywhere.
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let transaction = database.unchecked_transaction()?;
        for _ in 0..ROWS {
            let mut read = database.prepare_cached("SELECT amount FROM account WHERE id = ?1")?;
            let id = hot.next() as i64 + 1;
            progress.read(|| Ok(read.query_row([id], |row| row.get::<_, i64>(0))?))?;
            let changed = hot.next() as i64 + 1;
            database
                .prepare_cached("UPDATE account SET amount = amount + 1 WHERE id = ?1")?
                .execute([changed])?;
        }
        database
            .prepare_cached("INSERT INTO history (account, amount) VALUES (?1, 1)")?
            .execute([hot.next() as i64 + 1])?;
        Ok(transaction.commit()?)
    }))
}

fn fill(database: &Connection, rows: u64) -> Result<()> {
    database.execute_batch(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL, note TEXT NOT NULL);
         CREATE TABLE history (id INTEGER PRIMARY KEY, account INTEGER NOT NULL, amount INTEGER NOT NULL);",
    )?;
    database.execute(
        "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?1)
         INSERT INTO account SELECT n, 0, ?2 FROM number",
        (rows as i64, "x".repeat(ROW_TEXT)),
    )?;
    Ok(database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?)
}

pub(super) fn key_value(place: &Place<'_>) -> Result<Worker> {
    let open = |name: &str| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).open(place.folder.join(name))
    };
    let (pages, log) = (open("pages")?, open("log")?);
    let count = (place.bytes / PAGE).max(16);
    let mut page = vec![place.seed as u8 | 1; PAGE as usize];
    for at in 0..count {
        pages.write_all_at(&page, at * PAGE)?;
    }
    for at in 0..LOG_BYTES.min(place.bytes / 8) / PAGE {
        log.write_all_at(&page, at * PAGE)?;
    }
    pages.sync_all()?;
    log.sync_all()?;
    let mut hot = Keys::new(Shape::Zipfian, count, place.seed, 0, 1);
    let mut rng = Rng::new(place.seed);
    let (mut writes, log_pages) = (0, (LOG_BYTES.min(place.bytes / 8) / PAGE).max(1));
    Ok(Box::new(move |progress| {
        let at = hot.next() * PAGE;
        if rng.below(2) == 0 {
            return progress.read(|| {
                fadvise(&pages, at, std::num::NonZero::new(PAGE), Advice::DontNeed)?;
                Ok(pages.read_exact_at(&mut page, at)?)
            });
        }
        log.write_all_at(&page, writes % log_pages * PAGE)?;
        pages.write_all_at(&page, at)?;
        writes += 1;
        if writes % 16 == 0 {
            log.sync_data()?;
        }
        if writes % 256 == 0 {
            pages.sync_data()?;
        }
        Ok(())
    }))
}
