//! Who follows whom, and how many followers each one has: a count that is cached, and kept right by the changes themselves.
//!
//! ```sh
//! cargo run -p destage-data --example social_counter
//! ```
//!
//! The count is no column of a table: on a miss it is counted at the origin, and what the origin lacks, since it is still
//! buffered, is added (a query result change). Later changes are added to what is cached.

use destage_data::store::{Computed, Entry, Error, Merge, Op, Options, RowChange};
use rusqlite::Connection;
use std::error::Error as StdError;
use std::path::PathBuf;

const USERS: i64 = 20;

fn main() -> Result<(), Box<dyn StdError>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("social.db");
    Connection::open(&file)?.execute_batch(
        "CREATE TABLE follows (follower INTEGER, followee INTEGER, PRIMARY KEY (follower, followee));
         INSERT INTO follows VALUES (2, 1), (3, 1)",
    )?;
    let options = Options::new(format!("sqlite:{}", file.display()), folder.path().join("data"));
    let store = options.open()?;
    let counts = store.entries(FollowerCount { file })?;
    // The origin learns nothing of what follows until the end.
    store.pause()?;
    for user in 4..=USERS {
        store.session(|s| s.insert(("follows", (user, 1)), []))?;
    }
    store.session(|s| s.delete(("follows", (2, 1))))?;
    println!("followers of 1: {} (2 of them at the origin)", counts.get("followers:1")?);
    store.session(|s| s.insert(("follows", (1, 20)), []))?;
    println!("followers of 20: {}", counts.get("followers:20")?);
    store.resume()?;
    store.drain()?;
    println!("followers of 1 once all is at the origin: {}", counts.get("followers:1")?);
    assert_eq!(counts.get("followers:1")?, USERS - 2, "all but themselves and who left");
    drop(counts);
    store.close()?;
    Ok(())
}

/// `followers:ID`: how many follow them.
struct FollowerCount {
    file: PathBuf,
}

impl Entry for FollowerCount {
    type Value = i64;

    fn compute(&self, name: &str) -> Result<Computed<i64>, Error> {
        let id: i64 = name.trim_start_matches("followers:").parse().map_err(Error::abort_with)?;
        let count = || {
            // Count and watermark in one statement, so that they belong together.
            Connection::open(&self.file)?.query_row(
                "SELECT (SELECT count(*) FROM follows WHERE followee = ?1),
                        (SELECT seq FROM destage_watermark WHERE domain = 0)",
                [id],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
        };
        let (count, watermark): (i64, i64) = count().map_err(Error::abort_with)?;
        Ok(Computed::as_of(count, watermark.cast_unsigned()))
    }

    fn mapping(&self, change: &RowChange<'_>) -> Vec<String> {
        match (change.table(), change.op()) {
            ("follows", Op::Insert | Op::Delete) => {
                vec![format!("followers:{}", change.key("followee"))]
            }
            _ => Vec::new(),
        }
    }

    fn merge(&self, _: &str, count: &mut i64, change: &RowChange<'_>) -> Merge {
        *count += if change.op() == Op::Insert { 1 } else { -1 };
        Merge::Merged
    }
}
