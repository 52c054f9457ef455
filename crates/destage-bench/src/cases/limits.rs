//! Write-back without memory for it, against write-through: at the dirty limit sessions go through to the origin together,
//! so that even the smallest limit costs nothing beside a policy that never buffers.
//!
//! Both sides are one server with one warm cache, whose policy is changed between the runs. Section 4.4.1 of Ghandeharizadeh
//! and Nguyen, "Design, Implementation, and Evaluation of Write-Back Policy with Cache Augmented Data Stores", has the
//! opposite for its own write-back.

use super::update::{Client, changed_in_postgres, through_destage};
use crate::Result;
use crate::bench::{Bench, warm};
use crate::control::Value;
use crate::figure::{Run, Target};
use crate::servers::{Destage, Postgres};

const GROUP: &str =
    "PostgreSQL: little memory for buffered writes, counted to the end of the drain";
const TABLE: &str = "bench";
/// Room for some dozen updates, some hundred, some ten thousand.
const LIMITS: [&str; 3] = ["64K", "1M", "64M"];

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let rows = bench.options.rows;
    bench.postgres_table(TABLE, rows, 100)?;
    let origin = Postgres::url(bench.postgres()?.address);
    let server = bench.destage(&origin, "0")?;
    warm(&server.address, TABLE, rows)?;
    for limit in LIMITS {
        for client in [Client::uniform(4, 1), Client::uniform(16, 1), Client::uniform(16, 16)] {
            let limit = format!("dirty-limit={limit}");
            bench.pairs(
                GROUP,
                &format!("d = 0, {limit}, at-limit=write-through, {}", client.text()),
                "the same server and limit under write-through",
                Target::ratio(1.0),
                |bench| under(bench, &server, "write-back", &limit, client),
                |bench| under(bench, &server, "write-through", &limit, client),
            );
        }
    }
    Ok(())
}

fn under(
    bench: &mut Bench,
    server: &Destage,
    policy: &str,
    limit: &str,
    client: Client,
) -> Result<Run> {
    let changed = server.control(&["POLICY", policy, limit, "at-limit=write-through"])?;
    if !matches!(changed, Value::Text(_)) {
        return Err(format!("the policy was not changed: {changed:?}").into());
    }
    let address = bench.postgres()?.address;
    let pid = bench.postgres()?.pid();
    through_destage(
        bench,
        server,
        TABLE,
        client,
        || Ok(Some(crate::cpu::tree_cpu(pid)?)),
        |tag| changed_in_postgres(address, TABLE, tag),
    )
}
