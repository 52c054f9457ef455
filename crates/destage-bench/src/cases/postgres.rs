//! Updates through Destage against prepared updates sent straight to PostgreSQL.

use super::update::{Client, changed_in_postgres, direct_postgres, through_destage};
use crate::Result;
use crate::bench::{Bench, warm};
use crate::figure::Target;
use crate::keys::Shape;
use crate::servers::{Destage, Postgres};

const GROUP: &str = "PostgreSQL: one-field updates, counted to the end of the drain";

/// The tables are alike, so that neither side's versions and vacuums burden the other.
const OURS: &str = "bench";
const DIRECT: &str = "direct";

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let rows = bench.options.rows;
    bench.postgres_table(OURS, rows, 100)?;
    bench.postgres_table(DIRECT, rows, 100)?;
    let origin = Postgres::url(bench.postgres()?.address);
    let zipfian = Client { connections: 16, pipeline: 16, shape: Shape::Zipfian };
    for commit in ["0", "1s"] {
        let server = bench.destage(&origin, commit)?;
        warm(&server.address, OURS, rows)?;
        for (client, target) in [
            (Client::uniform(1, 1), Target::ratio(10.0)),
            (Client::uniform(16, 1), Target::ratio(2.5)),
            (Client::uniform(16, 16), Target::ratio(5.0)),
            (zipfian, Target::NONE),
        ] {
            compare(bench, &server, commit, client, target);
        }
        crossed(bench, &server, commit);
    }
    cold(bench, &origin);
    Ok(())
}

fn compare(bench: &mut Bench, server: &Destage, commit: &str, client: Client, target: Target) {
    let case = format!("d = {commit}, {}", client.text());
    bench.pairs(
        GROUP,
        &case,
        "the same connections straight to PostgreSQL",
        target,
        |bench| ours(bench, server, client),
        |bench| direct(bench, client),
    );
}

/// What sixteen pipelining clients get from us, against one direct connection.
fn crossed(bench: &mut Bench, server: &Destage, commit: &str) {
    bench.pairs(
        GROUP,
        &format!("d = {commit}, 16 connections, pipeline 16, against one direct connection"),
        "one connection straight to PostgreSQL",
        Target::ratio(10.0),
        |bench| ours(bench, server, Client::uniform(16, 16)),
        |bench| direct(bench, Client::uniform(1, 1)),
    );
}

/// Each of our runs starts with an empty cache; starting and stopping are not counted.
fn cold(bench: &mut Bench, origin: &str) {
    let client = Client::uniform(16, 16);
    bench.pairs(
        GROUP,
        &format!("d = 0, {}, cold cache", client.text()),
        "the same connections straight to PostgreSQL",
        Target::NONE,
        |bench| {
            let server = bench.destage(origin, "0")?;
            ours(bench, &server, client)
        },
        |bench| direct(bench, client),
    );
}

fn ours(bench: &mut Bench, server: &Destage, client: Client) -> Result<crate::figure::Run> {
    let address = bench.postgres()?.address;
    let pid = bench.postgres()?.pid();
    through_destage(
        bench,
        server,
        OURS,
        client,
        || Ok(Some(crate::cpu::tree_cpu(pid)?)),
        |tag| changed_in_postgres(address, OURS, tag),
    )
}

fn direct(bench: &mut Bench, client: Client) -> Result<crate::figure::Run> {
    let address = bench.postgres()?.address;
    direct_postgres(bench, address, DIRECT, client)
}
