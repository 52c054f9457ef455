//! Zipfian updates of rows before PostgreSQL.

use std::time::Duration;

use destage_runtime::sockets::Listen;

use super::pace::Pace;
use super::{Bench, Measured};
use crate::Result;
use crate::block::clients::work;
use crate::block::{Progress, Worker};
use crate::control::Client;
use crate::keys::{Keys, Shape};
use crate::origins::fill_postgres;
use crate::servers::{Destage, Postgres, Transport};

const CLIENTS: u64 = 16;
/// One request of so many reads.
const READS_DIVISOR: u64 = 4;
const FIELD_BYTES: usize = 100;
/// A run may take so many times its time.
const PATIENCE: u32 = 30;

/// Runs the load on a server with these settings that records, before a database of its own.
///
/// # Errors
///
/// A server does not start, or a request failed.
pub(super) fn measure(bench: &Bench, words: &[String]) -> Result<Measured> {
    let origin = Postgres::start(&bench.dir, Transport::Tcp)?;
    fill_postgres(&mut origin.query()?, "usertable", bench.rows, FIELD_BYTES)?;
    let folder = tempfile::Builder::new().prefix("loop-").tempdir_in(&bench.dir)?;
    let data = tempfile::Builder::new().prefix("data-").tempdir_in(&bench.dir)?;
    let recording = folder.path().join("recording");
    let mut words = words.to_vec();
    words.extend(["--adopt".to_owned(), "--record".to_owned(), recording.display().to_string()]);
    let url = origin.near_url();
    let server = Destage::start_as(&bench.dir, &bench.bin, &url, Transport::Tcp, data, &words)?;
    let clients: Vec<Worker> =
        (0..CLIENTS).map(|lane| client(&server.address, bench, lane)).collect::<Result<_>>()?;
    let pace = Pace::new(CLIENTS, bench.burst, bench.time)?;
    let clients = clients.into_iter().map(|worker| pace.client(worker)).collect();
    let (operations, mean_ms, p99_ms) =
        work("rows", clients, |_| pace.wait(bench.time * PATIENCE))?;
    let status = server.status()?;
    drop(server);
    let hits = (status.cache_hits, status.cache_hits + status.cache_misses);
    let warmup = Duration::ZERO;
    Ok(Measured { operations, mean_ms, p99_ms, hits, recording, warmup, _folder: folder })
}

fn client(address: &Listen, bench: &Bench, lane: u64) -> Result<Worker> {
    let mut client = Client::connect(address)?;
    let mut keys = Keys::new(Shape::Zipfian, bench.rows, bench.seed, lane, CLIENTS);
    let value = "x".repeat(FIELD_BYTES - 12);
    let mut count = lane;
    Ok(Box::new(move |_: &Progress| {
        let key = format!("usertable:{}", keys.next());
        count += 1;
        if count.is_multiple_of(READS_DIVISOR) {
            client.call(&["HGETALL", &key])?;
        } else {
            client.call(&["HSET", &key, "f0", &format!("{count:012}{value}")])?;
        }
        Ok(())
    }))
}
