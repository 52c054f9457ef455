//! The Java programs that stand on the sides.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::Result;
use crate::servers::{Java, Postgres, free_address};

/// What the peers are told: no more than so much behind.
pub(super) const DELAY_MS: u64 = 1000;
/// Bytes of a record's value.
pub(super) const BYTES: u64 = 100;
/// The class with the entry point.
const CLASS: &str = "Peers";

/// What all of them share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Programs<'a> {
    /// The compiled programs and their libraries.
    pub(super) folder: &'a Path,
    /// For logs and what the clients keep.
    pub(super) dir: &'a Path,
    pub(super) records: u64,
    pub(super) threads: u64,
    pub(super) batch: u64,
}

impl Programs<'_> {
    /// Starts one that works on `table`.
    pub(super) fn start(
        &self,
        side: &str,
        origin: &Postgres,
        table: &str,
        words: &[String],
    ) -> Result<Java> {
        let mut arguments = vec![side.to_owned()];
        arguments.push(format!("table={table}"));
        arguments.push(format!("jdbc=jdbc:postgresql://{}/postgres?user=bench", origin.address));
        arguments.push(format!("acknowledged={}", self.acknowledged(table).display()));
        for (name, number) in [
            ("records", self.records),
            ("threads", self.threads),
            ("batch", self.batch),
            ("delay_ms", DELAY_MS),
        ] {
            arguments.push(format!("{name}={number}"));
        }
        arguments.extend_from_slice(words);
        // A side may be started again.
        let log = self.dir.join(format!("{table}-{side}-{}.log", free_address()?.port()));
        Java::start(self.folder, CLASS, &arguments, &log)
    }

    /// Where the clients of a table keep what was acknowledged.
    pub(super) fn acknowledged(&self, table: &str) -> PathBuf {
        self.dir.join(format!("{table}.acknowledged"))
    }

    /// Name and version of each library that is compared.
    pub(super) fn versions(&self) -> Result<Vec<(String, String)>> {
        let mut versions = Vec::new();
        for (name, library) in [
            ("Hazelcast", "hazelcast-"),
            ("Redisson", "redisson-"),
            ("Jedis", "jedis-"),
            ("PostgreSQL's JDBC driver", "postgresql-"),
        ] {
            let files = std::fs::read_dir(self.folder)?.flatten();
            let found = files.filter_map(|file| {
                let file = file.file_name().into_string().ok()?;
                let version = file.strip_prefix(library)?.strip_suffix(".jar")?;
                version
                    .starts_with(|first: char| first.is_ascii_digit())
                    .then(|| version.to_owned())
            });
            let missing = || format!("{} has no {library}*.jar", self.folder.display());
            versions.push((name.to_owned(), found.last().ok_or_else(missing)?));
        }
        Ok(versions)
    }
}

/// The words that place a member of Hazelcast on a port of its own, beside others.
pub(super) fn member(port: SocketAddr, others: &[SocketAddr]) -> Vec<String> {
    let members: Vec<String> = others.iter().map(ToString::to_string).collect();
    vec![format!("port={}", port.port()), format!("members={}", members.join(","))]
}

/// A number of an answer.
///
/// # Errors
///
/// It has none of this name.
pub(super) fn number(answer: &Json, name: &str) -> Result<f64> {
    answer[name].as_f64().ok_or_else(|| format!("no number {name} in {answer}").into())
}
