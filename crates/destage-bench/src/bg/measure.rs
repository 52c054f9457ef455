//! One side under one mix with more and more clients; and a server killed under load.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use destage_runtime::sockets::Listen;

use super::graph::{Graph, KINDS, MIXES};
use super::link::Link;
use super::lists::{Documents, Watching};
use super::{AGREED, AGREED_SHARE, origin};
use crate::Result;
use crate::behind::{Behind, driver, runtime};
use crate::bench::{cpu_us, watching};
use crate::control::{Client as Control, Value};
use crate::drive::{Actor, Tally, drive};
use crate::figure::{Run, thousands};
use crate::keys::Rng;
use crate::servers::{Destage, DestageConfig};
use crate::stats::Spread;

/// Writes that are acknowledged before a kill, and how many clients wait for theirs then.
const WRITES_BEFORE_KILL: u64 = 300;
const KILL_CLIENTS: usize = 8;
/// A kill ends the load long before.
const KILL_TIME: Duration = Duration::from_secs(120);
const KINDS_READING: usize = 3;

/// What all sides share.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) origin: Behind,
    pub(super) graph: Rc<RefCell<Graph>>,
    pub(super) time: Duration,
    pub(super) seed: u64,
    pub(super) staleness_seconds: u64,
}

/// What a side bears under a mix.
#[derive(Debug, Default)]
pub(super) struct Rated {
    /// Actions per second, and with how many clients; `None` if not even the fewest got their answers in time.
    pub(super) soar: Option<(f64, usize)>,
    /// Mean times with the fewest clients, ms, by kind.
    pub(super) means: [Option<f64>; KINDS],
    /// Round trips per action with the fewest clients, by the client's count.
    pub(super) trips: f64,
    /// What was measured with each number of clients.
    pub(super) runs: Vec<(usize, Vec<Run>)>,
    /// With so many clients that they no longer got their answers in time.
    is_broken: bool,
}

/// A client of some side.
struct Client {
    graph: Rc<RefCell<Graph>>,
    link: Link,
    mix: [u64; KINDS],
    random: Rng,
    fuse: Option<Rc<Fuse>>,
}

impl Actor for Client {
    async fn act(&mut self) -> Result<usize> {
        let (action, since) = {
            let mut graph = self.graph.borrow_mut();
            let action = graph.begin(&self.mix, &mut self.random);
            (action, graph.since())
        };
        let kind = action.kind();
        self.link.perform(action, since).await.map_err(|error| format!("{action:?}: {error}"))?;
        self.graph.borrow_mut().finish(action);
        if let Some(fuse) = self.fuse.as_ref().filter(|_| kind >= KINDS_READING) {
            fuse.burn();
        }
        Ok(kind)
    }
}

/// Kills a process once so many writes have been acknowledged.
struct Fuse {
    left: Cell<u64>,
    pid: u32,
}

impl Fuse {
    fn burn(&self) {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        if left == 1 {
            // SAFETY: the server is our child and has not been waited for, so the number is still its own.
            unsafe { libc::kill(self.pid.cast_signed(), libc::SIGKILL) };
        }
    }
}

/// Reads every profile and list once.
///
/// # Errors
/// The server refuses something.
pub(super) fn warm(server: &Destage, members: u64, has_lists: bool) -> Result<()> {
    let mut client = Control::connect(&server.address)?;
    let lists: &[&str] = if has_lists { &["friends", "pending"] } else { &[] };
    for start in (0..members).step_by(100) {
        let end = (start + 100).min(members);
        for member in start..end {
            client.send(&["HGETALL", &format!("members:{member}")])?;
            for list in lists {
                client.send(&["ZRANGE", &format!("{list}:{member}"), "0", "0"])?;
            }
        }
        for _ in start..end {
            (0..=lists.len()).try_for_each(|_| client.receive().map(drop))?;
        }
    }
    Ok(())
}

/// A side: its name, and the server with the words that give it the side's policy, unless it is the origin itself.
pub(super) type Side<'a> = (&'a str, Option<(&'a Destage, &'a [&'a str])>);

/// Measures sides of the same tables in turn with every number of clients, each until the agreement is broken; after each
/// number the origin is checked.
///
/// # Errors
/// An action failed, the staleness passed its bound, or the origin does not hold what was acknowledged.
pub(super) fn rate(
    bench: &mut Bench,
    sides: &[Side<'_>],
    (mix_name, mix): (&str, &[u64; KINDS]),
    clients: &[usize],
    rounds: usize,
) -> Result<Vec<Rated>> {
    let mut rated: Vec<Rated> = sides.iter().map(|_| Rated::default()).collect();
    for (index, &count) in clients.iter().enumerate() {
        let mut runs: Vec<Vec<Once>> = sides.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            let bearing = sides.iter().zip(&mut runs).zip(&rated);
            for ((side, runs), _) in bearing.filter(|(_, rated)| !rated.is_broken) {
                let run = turn(bench, side, mix, count)
                    .map_err(|error| format!("{}: {error}", side.0))?;
                runs.push(run);
            }
        }
        for (((name, _), runs), rated) in sides.iter().zip(&runs).zip(&mut rated) {
            let Some(rate) = Spread::of(runs.iter().map(|run| run.run.per_second)) else {
                continue;
            };
            rated.runs.push((count, runs.iter().map(|run| run.run).collect()));
            let mut tally = Tally::new(KINDS);
            runs.iter().for_each(|run| tally.add(&run.tally));
            let within = tally.all().value_at_quantile(AGREED_SHARE);
            eprintln!(
                "{name}, {mix_name}, {count} clients: {} [{}, {}]/s, 95 % within {:.1} ms",
                thousands(rate.median),
                thousands(rate.min),
                thousands(rate.max),
                within as f64 / 1e3
            );
            if index == 0 {
                rated.means = std::array::from_fn(|kind| tally.mean_ms(kind));
                rated.trips = runs[0].trips;
            }
            rated.is_broken = u128::from(within) > AGREED.as_micros();
            if !rated.is_broken && rated.soar.is_none_or(|(best, _)| rate.median > best) {
                rated.soar = Some((rate.median, count));
            }
        }
        let is_direct = sides.iter().all(|(_, served)| served.is_none());
        bench.graph.borrow_mut().check(&origin::found(&bench.origin, is_direct)?)?;
    }
    Ok(rated)
}

/// One run of a side, under its policy.
fn turn(bench: &Bench, (_, served): &Side<'_>, mix: &[u64; KINDS], count: usize) -> Result<Once> {
    if let Some((server, words)) = served {
        let changed = server.control(words)?;
        if !matches!(changed, Value::Text(_)) {
            return Err(format!("the policy was not changed: {changed:?}").into());
        }
    }
    once(bench, served.map(|(server, _)| server), mix, count)
}

/// What a run did: its times, its rate to the end of the drain, its round trips per action.
struct Once {
    tally: Tally,
    run: Run,
    trips: f64,
}

/// One run.
fn once(bench: &Bench, server: Option<&Destage>, mix: &[u64; KINDS], count: usize) -> Result<Once> {
    let runtime = runtime()?;
    let address = server.map(|server| &server.address);
    let clients = runtime.block_on(clients(bench, address, mix, count, None))?;
    let cpu = || server.map_or_else(|| bench.origin.cpu(), Destage::cpu);
    let (cpu_before, origin_before) = (cpu()?, bench.origin.cpu()?);
    let start = Instant::now();
    let work = || -> Result<_> {
        let done = runtime.block_on(drive(clients, KINDS, bench.time))?;
        server.map_or(Ok(()), Destage::drain)?;
        Ok((done, start.elapsed()))
    };
    let (((clients, tally), elapsed), staleness) = match server {
        None => (work()?, None),
        Some(server) => watching(server, work).map(|(done, worst)| (done, Some(worst)))?,
    };
    if let Some(worst) = staleness.filter(|worst| *worst > bench.staleness_seconds as f64) {
        return Err(format!("the staleness reached {worst:.1} s, above its bound").into());
    }
    let (all, requests) = (tally.all(), tally.actions().max(1));
    let origin_cpu = bench.origin.cpu()?;
    let run = Run {
        requests,
        per_second: requests as f64 / elapsed.as_secs_f64(),
        cpu_us: cpu_us(cpu_before, cpu()?, requests),
        origin_cpu_us: server.map(|_| cpu_us(origin_before, origin_cpu, requests)),
        p50_us: all.value_at_quantile(0.5) as f64,
        p99_us: all.value_at_quantile(0.99) as f64,
        staleness_max_seconds: staleness,
        ..Run::default()
    };
    let trips: u64 = clients.iter().map(|client| client.link.trips()).sum();
    Ok(Once { tally, run, trips: trips as f64 / requests as f64 })
}

async fn clients(
    bench: &Bench,
    server: Option<&Listen>,
    mix: &[u64; KINDS],
    count: usize,
    fuse: Option<Rc<Fuse>>,
) -> Result<Vec<Client>> {
    let mut clients = Vec::with_capacity(count);
    let documents = match (server, &bench.origin) {
        (None, Behind::Mongodb(origin)) => Some(driver(origin.address).await?),
        _ => None,
    };
    for lane in 0..count as u64 {
        let link = match (server, &documents, &bench.origin) {
            (_, Some(client), _) => Link::Documents(Documents::of(client)),
            (Some(address), _, Behind::Postgres(_)) => Link::keys(address).await?,
            (Some(address), _, Behind::Mongodb(_)) => {
                Link::Watching(Watching::connect(address).await?)
            }
            (None, _, origin) => Link::sql(&origin.address().into()).await?,
        };
        let random = Rng::new(bench.seed ^ (lane + 1).wrapping_mul(0xd6e8_feb8_6659_fd93));
        let (graph, fuse) = (bench.graph.clone(), fuse.clone());
        clients.push(Client { graph, link, mix: *mix, random, fuse });
    }
    Ok(clients)
}

/// Kills the server under load with d = 0, starts it again over the same journal, drains it, and checks the origin: every
/// acknowledged action is there, and those that were under way are there whole or not at all.
///
/// # Errors
/// The server does not start again, or the origin holds something else.
pub(super) fn kill(
    bench: &mut Bench,
    server: Destage,
    dir: &Path,
    config: &DestageConfig,
    number: u64,
) -> Result<Destage> {
    server.control(&["POLICY", "write-back", "commit=0"])?;
    bench.seed = bench.seed.wrapping_add(number);
    let fuse = Rc::new(Fuse { left: Cell::new(WRITES_BEFORE_KILL), pid: server.pid() });
    let mix = &MIXES[0].1;
    let runtime = runtime()?;
    let address = Some(&server.address);
    let clients =
        runtime.block_on(clients(bench, address, mix, KILL_CLIENTS, Some(fuse.clone())))?;
    let ended = runtime.block_on(drive(clients, KINDS, KILL_TIME)).map(drop);
    match (ended, fuse.left.get()) {
        (Err(_), 0) => {}
        (Err(error), _) => return Err(format!("before the kill: {error}").into()),
        (Ok(()), _) => return Err("the load ended before the kill".into()),
    }
    let server = server.start_again(dir, config)?;
    if let Behind::Mongodb(_) = bench.origin {
        runtime.block_on(finish(bench, &server.address))?;
    }
    server.drain()?;
    let found = origin::found(&bench.origin, false)?;
    bench
        .graph
        .borrow_mut()
        .check(&found)
        .map_err(|error| format!("after kill {number}: {error}"))?;
    Ok(server)
}

/// Two documents do not change as one: what a crash interrupted is done again, which changes nothing that was done.
async fn finish(bench: &Bench, address: &Listen) -> Result<()> {
    let mut client = Watching::connect(address).await?;
    let interrupted = bench.graph.borrow().interrupted();
    for action in interrupted {
        client.perform(action).await?;
        bench.graph.borrow_mut().finish(action);
    }
    Ok(())
}
