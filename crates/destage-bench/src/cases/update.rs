//! One-field updates of a large table, counted to the end of the drain.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::Result;
use crate::bench::{Bench, cpu_us, watching};
use crate::figure::Run;
use crate::keys::Shape;
use crate::load::{Bound, Load, Outcome};
use crate::servers::{Destage, Postgres, Query};

/// Bytes of the field that is written.
pub(super) const DATA_BYTES: usize = 100;

/// The client's side, the same for both servers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) connections: usize,
    pub(super) pipeline: usize,
    pub(super) shape: Shape,
}

impl Client {
    pub(super) fn uniform(connections: usize, pipeline: usize) -> Self {
        Self { connections, pipeline, shape: Shape::Uniform }
    }

    pub(super) fn text(self) -> String {
        let plural = if self.connections == 1 { "" } else { "s" };
        let shape = if self.shape == Shape::Zipfian { ", zipfian keys" } else { "" };
        format!("{} connection{plural}, pipeline {}{shape}", self.connections, self.pipeline)
    }

    pub(super) fn apply(self, load: &mut Load, bench: &Bench) {
        (load.connections, load.pipeline, load.shape) =
            (self.connections, self.pipeline, self.shape);
        load.key_space = bench.options.rows;
        load.bound = Bound::Time(bench.options.time);
        load.seed = bench.options.seed;
    }
}

/// Writes through Destage and waits until all of it is at the origin. `origin_cpu` is the origin's
/// CPU time, `changed` counts its rows that carry a tag.
pub(super) fn through_destage(
    bench: &mut Bench,
    server: &Destage,
    table: &str,
    client: Client,
    origin_cpu: impl Fn() -> Result<Option<Duration>>,
    changed: impl Fn(&str) -> Result<u64>,
) -> Result<Run> {
    let tag = bench.next_tag();
    let key = format!("{table}:__rand_int__");
    let mut load =
        Load::resp(server.address.clone(), &["HSET", &key, "f0", "__data__"], DATA_BYTES)?;
    client.apply(&mut load, bench);
    load.template.tag(&tag);
    let (status, cpu, origin) = (server.status()?, server.cpu()?, origin_cpu()?);
    let start = Instant::now();
    let (outcome, staleness) = watching(server, || {
        let outcome = load.run()?.without_errors()?;
        server.drain()?;
        Ok((outcome, start.elapsed()))
    })?;
    let (outcome, elapsed) = outcome;
    let mut run = to_run(&outcome, elapsed, cpu, server.cpu()?);
    run.origin_cpu_us =
        origin.zip(origin_cpu()?).map(|(before, after)| cpu_us(before, after, run.requests));
    let after = server.status()?;
    let batches = after.batches.saturating_sub(status.batches);
    run.batch_groups =
        (batches > 0).then(|| (after.destaged - status.destaged) as f64 / batches as f64);
    run.staleness_max_seconds = Some(staleness);
    if staleness > bench.options.staleness_seconds as f64 {
        return Err(format!("the staleness reached {staleness:.1} s, above its bound").into());
    }
    check_changed(&outcome, changed(&tag)?)?;
    Ok(run)
}

/// Writes straight to PostgreSQL at `via` with prepared statements.
pub(super) fn direct_postgres(
    bench: &mut Bench,
    via: SocketAddr,
    table: &str,
    client: Client,
) -> Result<Run> {
    let tag = bench.next_tag();
    let mut load = Postgres::update_load(via, table, DATA_BYTES)?;
    client.apply(&mut load, bench);
    load.template.tag(&tag);
    let before = bench.postgres()?.cpu()?;
    let outcome = load.run()?.without_errors()?;
    let run = to_run(&outcome, outcome.elapsed, before, bench.postgres()?.cpu()?);
    check_changed(&outcome, changed_in_postgres(bench.postgres()?.address, table, &tag)?)?;
    Ok(run)
}

/// Rows of `table` whose updated field starts with `tag`.
pub(super) fn changed_in_postgres(server: SocketAddr, table: &str, tag: &str) -> Result<u64> {
    let sql = format!("SELECT count(*) FROM {table} WHERE starts_with(f0, '{tag}')");
    Ok(Query::connect(server)?.run(&sql)?.ok_or("no count")?.parse()?)
}

fn to_run(outcome: &Outcome, elapsed: Duration, before: Duration, after: Duration) -> Run {
    Run {
        requests: outcome.requests,
        per_second: outcome.requests as f64 / elapsed.as_secs_f64(),
        cpu_us: cpu_us(before, after, outcome.requests),
        p50_us: outcome.latency_us(0.5),
        p99_us: outcome.latency_us(0.99),
        ..Run::default()
    }
}

/// A rate counts only if the work was done: as many rows changed as keys were written.
fn check_changed(outcome: &Outcome, changed: u64) -> Result<()> {
    let written = outcome.distinct_keys;
    if changed == written {
        return Ok(());
    }
    Err(format!("{written} different rows were written, but {changed} changed at the origin")
        .into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::bench::Options;
    use crate::place::run_folder;
    use crate::servers::postgres_version;

    fn bench(dir: &std::path::Path) -> Bench {
        let options = Options {
            bin: "destage".into(),
            rows: 5000,
            hot_rows: 1000,
            time: Duration::from_millis(500),
            pairs: 1,
            seed: 1,
            staleness_seconds: 30,
            control: false,
            extra: Vec::new(),
        };
        Bench::new(options, dir)
    }

    #[test]
    fn direct_updates_change_every_row_they_name_and_feel_the_proxy() {
        if postgres_version() == "not installed" {
            return destage_testkit::needs::skip("PostgreSQL below /usr/lib/postgresql");
        }
        let folder = run_folder(Some(&std::env::temp_dir())).expect("temp folder");
        let mut bench = bench(folder.path());
        bench.postgres_table("direct", 5000, 100).expect("filled");
        let near = bench.postgres().expect("runs").address;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let far = listener.local_addr().expect("bound");
        thread::spawn(move || crate::proxy::serve(&listener, near, Duration::from_millis(3)));
        for (connections, pipeline) in [(1, 1), (16, 1), (16, 16)] {
            let client = Client::uniform(connections, pipeline);
            let run = direct_postgres(&mut bench, near, "direct", client).expect("runs");
            assert!(run.requests > 0 && run.cpu_us > 0.0, "{run:?}");
            eprintln!("{}: {:.0}/s, {:.1} µs CPU", client.text(), run.per_second, run.cpu_us);
        }
        let run = direct_postgres(&mut bench, far, "direct", Client::uniform(4, 1)).expect("runs");
        assert!(run.p50_us >= 6000.0, "faster than the proxy allows: {run:?}");
        assert_eq!(changed_in_postgres(near, "direct", "nothing").expect("counts"), 0);
    }
}
