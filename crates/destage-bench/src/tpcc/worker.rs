//! A process that performs transactions until it is killed, and whoever kills it and looks at what is left.

use super::cli::TpccArgs;
use super::random::{Input, Random};
use super::sql::Sql;
use super::{Domains, Done, Scale, Target as _, check, library, open, scale};
use crate::Result;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// New orders acknowledged before a kill.
const ORDERS_MIN: i64 = 40;
const POLICY: [&str; 2] = ["policy=write-back", "commit=0"];

/// Performs transactions for ever, and says how many new orders have been acknowledged.
///
/// # Errors
/// One failed.
pub(crate) fn run(arguments: &TpccArgs, url: &str, data: &Path) -> Result<()> {
    let scale = scale(arguments)?;
    let domains = if arguments.worker_domains { Domains::OnePerWarehouse } else { Domains::One };
    let store = open(url, data, &POLICY, domains, &scale)?;
    let shared = library::Shared::new(&store, url)?;
    let mut random = Random::new(arguments.seed);
    let mut target = &shared;
    let mut acknowledged = 0_i64;
    loop {
        let warehouse = 1 + acknowledged % scale.warehouses;
        let input = Input::next(&mut random, &scale, warehouse);
        if target.perform(&input)? == Done::Committed && input.kind() == 0 {
            acknowledged += 1;
            let mut out = std::io::stdout().lock();
            writeln!(out, "{acknowledged}")?;
            out.flush()?;
        }
    }
}

/// Kills such a process again and again: the conditions hold at the origin at once, and after what the journal holds has
/// followed. The number of acknowledged new orders that are missing then is returned.
///
/// # Errors
/// A condition is broken, or an order is missing.
pub(super) fn kill_and_check(
    url: &str,
    data: &Path,
    arguments: &TpccArgs,
    scale: &Scale,
    kills: u32,
) -> Result<i64> {
    let mut sql = Sql::open(url)?;
    for kill in 1..=kills {
        let before = check::orders(&mut sql)?;
        // What is drained may be divided anew.
        let domains = if kill % 2 == 1 { Domains::OnePerWarehouse } else { Domains::One };
        let acknowledged = work_until_killed(url, data, arguments, scale, kill, domains)?;
        let blame = |when: &str, error| format!("kill {kill}, {when}: {error}");
        check::check(&mut sql).map_err(|error| blame("at once", error))?;
        let store = open(url, data, &POLICY, domains, scale)?;
        store.drain()?;
        store.close()?;
        check::check(&mut sql).map_err(|error| blame("drained", error))?;
        let missing = before + acknowledged - check::orders(&mut sql)?;
        if missing > 0 {
            return Err(blame(
                "drained",
                format!("{missing} acknowledged orders are missing").into(),
            )
            .into());
        }
    }
    Ok(0)
}

fn work_until_killed(
    url: &str,
    data: &Path,
    arguments: &TpccArgs,
    scale: &Scale,
    kill: u32,
    domains: Domains,
) -> Result<i64> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["tpcc", "--worker", url, "--worker-data"]).arg(data);
    for (name, value) in [
        ("--warehouses", scale.warehouses),
        ("--items", scale.items),
        ("--customers", scale.customers),
        ("--seed", arguments.seed.cast_signed() + i64::from(kill)),
    ] {
        command.args([name, &value.to_string()]);
    }
    if domains == Domains::OnePerWarehouse {
        command.arg("--worker-domains");
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let out = child.stdout.take().ok_or("the worker has no output")?;
    let mut acknowledged = 0;
    for line in BufReader::new(out).lines() {
        acknowledged = line?.parse()?;
        // Whatever it says between the kill and its end counts, too.
        if acknowledged == ORDERS_MIN {
            child.kill()?;
        }
    }
    child.wait()?;
    if acknowledged >= ORDERS_MIN {
        Ok(acknowledged)
    } else {
        Err(format!("the worker ended by itself after {acknowledged} orders").into())
    }
}
