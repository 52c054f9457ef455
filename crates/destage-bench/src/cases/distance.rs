//! The origin 1 ms away each way, behind a delaying proxy; four clients without pipelining.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use super::update::{Client, changed_in_postgres, direct_postgres, through_destage};
use crate::Result;
use crate::bench::{Bench, warm};
use crate::cpu::tree_cpu;
use crate::figure::Target;
use crate::servers::{Postgres, Process, Query, free_address};
use crate::stats::Spread;

const GROUP: &str =
    "PostgreSQL 1 ms away each way: one-field updates, counted to the end of the drain";
const TABLE: &str = "bench";
const DIRECT: &str = "direct";

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let rows = bench.options.rows;
    bench.postgres_table(TABLE, rows, 100)?;
    bench.postgres_table(DIRECT, rows, 100)?;
    let address = bench.postgres()?.address;
    let pid = bench.postgres()?.pid();
    let (_proxy, far) = proxy(address, "1ms")?;
    let trip = round_trip_ms(far)?;
    eprintln!(
        "round trip through the proxy: {:.2} ms, straight {:.2} ms",
        trip.median,
        round_trip_ms(address)?.median
    );
    if !(2.0..3.0).contains(&trip.median) {
        let median = trip.median;
        return Err(format!("a round trip through the proxy takes {median:.2} ms, not 2").into());
    }
    let client = Client::uniform(4, 1);
    for (commit, target) in [("1s", 20.0), ("0", 10.0)] {
        let server = bench.destage(&Postgres::url(far), commit)?;
        warm(&server.address, TABLE, rows)?;
        bench.pairs(
            GROUP,
            &format!("d = {commit}, {}", client.text()),
            "the same connections to PostgreSQL through the proxy",
            Target::ratio(target),
            |bench| {
                let cpu = || Ok(Some(tree_cpu(pid)?));
                let changed = |tag: &str| changed_in_postgres(address, TABLE, tag);
                through_destage(bench, &server, TABLE, client, cpu, changed)
            },
            |bench| direct_postgres(bench, far, DIRECT, client),
        );
    }
    Ok(())
}

/// This program's own proxy, as a process of its own.
///
/// # Errors
///
/// It does not start.
pub(crate) fn proxy(to: SocketAddr, delay: &str) -> Result<(Process, SocketAddr)> {
    let listen = free_address()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["proxy", "--listen", &listen.to_string(), "--to", &to.to_string()]);
    command.args(["--delay", delay]);
    let mut process = Process::start(&mut command, "the proxy", libc::SIGTERM)?;
    process.wait_for(listen)?;
    Ok((process, listen))
}

/// Of an empty statement, over 200 statements.
fn round_trip_ms(address: SocketAddr) -> Result<Spread> {
    let mut session = Query::connect(address)?;
    let mut times = Vec::with_capacity(200);
    for _ in 0..200 {
        let start = Instant::now();
        session.run("SELECT 1")?;
        times.push(start.elapsed());
    }
    let milliseconds = times.iter().map(Duration::as_secs_f64).map(|s| s * 1e3);
    Ok(Spread::of(milliseconds).ok_or("nothing was timed")?)
}
