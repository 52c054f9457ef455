//! From kill -9 of the owner to the first write that the standby acknowledges, with many writes that the origin lacks.

use super::{COPIES, Servers};
use crate::Result;
use crate::control::{Client, Value, http_get};
use crate::keys::Shape;
use crate::load::{Bound, Load};
use crate::report::Table;
use crate::servers::{Destage, DestageConfig, Postgres, Process, Transport, free_address};
use crate::stats::Spread;
use destage_runtime::sockets::Listen;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const TABLE: &str = "taken";
/// The time after which an owner is taken for dead.
const FAILOVER: &str = "1s";
/// Nothing reaches the origin by itself.
const KEPT: [&str; 2] = ["--when", "pressure"];
/// How long a standby may take to follow, and to take over.
const PATIENCE: Duration = Duration::from_secs(240);
const TARGET: (u64, f64) = (100_000, 2.5);

/// A row for each number of groups.
pub(super) fn table(bin: &Path, dir: &Path, groups: &[u64], rounds: usize) -> Result<Table> {
    let mut rows = Vec::new();
    for &count in groups {
        let mut times = Vec::new();
        for round in 0..rounds {
            let took = once(bin, dir, count)?;
            eprintln!(
                "take-over with {count} groups, round {}: {:.2} s",
                round + 1,
                took.as_secs_f64()
            );
            times.push(took.as_secs_f64());
        }
        let Some(spread) = Spread::of(times) else { continue };
        let (target, reached) = match TARGET {
            (at, most) if at == count => {
                (format!("< {most} s"), if spread.median < most { "yes" } else { "**no**" })
            }
            _ => ("-".into(), "-"),
        };
        let cells = [spread.median, spread.min, spread.max].map(|time| format!("{time:.2}"));
        let first = std::iter::once(crate::figure::thousands(count as f64)).chain(cells);
        rows.push(first.chain([target, reached.to_owned()]).collect());
    }
    Ok(Table {
        title: "Replicas: from kill -9 to the first acknowledged write, seconds".into(),
        note: format!(
            "`--failover {FAILOVER}`, 2 of 3 copies, a standby that has followed the log. Each group adds to one row and the origin has \
             none of them. Afterwards each of them was found at the origin, once."
        ),
        columns: ["undecided groups", "median", "least", "most", "target", "reached"]
            .map(str::to_owned)
            .to_vec(),
        rows,
    })
}

/// One take-over; all of it must be at the origin afterwards.
fn once(bin: &Path, dir: &Path, groups: u64) -> Result<Duration> {
    let origin = Postgres::start(dir, Transport::Tcp)?;
    origin.query()?.run(&format!("CREATE TABLE {TABLE} (id bigint PRIMARY KEY, n bigint)"))?;
    let servers = Servers::start(dir)?;
    let mut flags = vec!["--replicas".to_owned(), servers.urls().join(",")];
    flags.extend(["--copies".to_owned(), COPIES.to_string(), "--failover".into(), FAILOVER.into()]);
    flags.extend(KEPT.map(str::to_owned));
    let config = DestageConfig {
        bin: bin.to_owned(),
        origin: Postgres::url(origin.address),
        commit: "0".into(),
        staleness: "1h".into(),
        transport: Transport::Tcp,
        extra: flags.clone(),
    };
    let owner = Destage::start_unforced(dir, &config)?;
    let key = format!("{TABLE}:__rand_int__");
    let mut load = Load::resp(owner.address.clone(), &["HINCRBY", &key, "n", "1"], 0)?;
    (load.connections, load.pipeline) = (16, if groups > 1_000 { 64 } else { 1 });
    (load.shape, load.key_space, load.bound) = (Shape::Each, groups, Bound::Requests(groups));
    let outcome = load.run()?.without_errors()?;
    eprintln!("wrote {groups} groups in {:.1} s", outcome.elapsed.as_secs_f64());
    let standby = Standby::start(bin, dir, &config)?;
    standby.await_following()?;
    owner.kill()?;
    let killed = Instant::now();
    // A row that nobody has written.
    let fresh = format!("{TABLE}:{}", groups + 1);
    while killed.elapsed() < PATIENCE {
        let asked = Client::connect(&standby.address)
            .and_then(|mut c| c.call(&["HINCRBY", &fresh, "n", "1"]));
        if let Ok(Value::Int(1)) = asked {
            let took = killed.elapsed();
            let mut client = Client::connect(&standby.address)?;
            client.call(&["DESTAGE", "DRAIN"])?;
            let sum =
                origin.query()?.run(&format!("SELECT count(*) || ' ' || sum(n) FROM {TABLE}"))?;
            let expected = format!("{0} {0}", groups + 1);
            if sum.as_deref() != Some(expected.as_str()) {
                return Err(format!("the origin holds {sum:?} instead of {expected}").into());
            }
            return Ok(took);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(format!("the standby acknowledged nothing within {PATIENCE:?}").into())
}

/// A standby.
struct Standby {
    _process: Process,
    address: Listen,
    admin: SocketAddr,
    _data: tempfile::TempDir,
}

impl Standby {
    fn start(bin: &Path, dir: &Path, config: &DestageConfig) -> Result<Self> {
        let (address, admin) = (config.transport.place(dir, "standby")?, free_address()?);
        let data = tempfile::Builder::new().prefix("standby-").tempdir_in(dir)?;
        let mut command = Command::new(bin);
        command.args(["serve", "--standby", "--origin", &config.origin, "--no-auth"]);
        command.args(["--listen", &address.to_string(), "--admin", &admin.to_string()]);
        command.arg("--data").arg(data.path());
        command.args(["--commit", &config.commit, "--staleness", &config.staleness]);
        command.args(["--dirty-limit", "4G", "--cache-size", "4G"]).args(&config.extra);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::start(&mut command, "destage", libc::SIGTERM)?;
        Ok(Self { _process: process, address, admin, _data: data })
    }

    /// Waits until it has read all that the servers show.
    fn await_following(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let status = http_get(self.admin, "/status").ok();
            let status =
                status.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
            let is_there = status.is_some_and(|status| {
                let log = &status["replicas"];
                log["behind_entries"] == 0 && log["undecided_bytes"].as_u64().is_some_and(|b| b > 0)
            });
            if is_there {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Err("the standby does not follow the log".into())
    }
}
