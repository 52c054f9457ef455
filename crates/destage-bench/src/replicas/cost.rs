//! Writes with d = 0: acknowledged when two of three servers hold them, against the journal on a disk.

use super::{COPIES, SERVERS, Servers};
use crate::Result;
use crate::bench::{cpu_us, in_turn};
use crate::control::{Client, Value};
use crate::figure::{Figure, Run, Target};
use crate::keys::Shape;
use crate::load::{Bound, Load};
use crate::origins::fill_postgres;
use crate::report::Table;
use crate::servers::{Destage, DestageConfig, Postgres, Transport};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const GROUP: &str = "Replicas: d = 0, 2 of 3 copies, against the local journal";
const TABLE: &str = "written";
const CONNECTIONS: [usize; 3] = [1, 16, 64];
/// Renewals of the lease are rare beside the writes whose round trips are counted.
const RARELY: [&str; 2] = ["--failover", "1m"];
/// What is compared is acknowledging: the origin takes no processor time from any side meanwhile.
const LATER: [&str; 2] = ["--when", "interval:20s,1s"];
const COUNTED: u64 = 2_000;
/// The model of a disk: a sync takes so long, and what this one takes.
const SYNC: Duration = Duration::from_millis(2);

/// What is measured, and how long.
pub(super) struct Cost<'a> {
    pub(super) bin: &'a Path,
    pub(super) dir: &'a Path,
    pub(super) records: u64,
    pub(super) time: Duration,
    pub(super) rounds: usize,
    pub(super) extra: &'a [String],
    pub(super) seed: u64,
}

/// What came of it.
pub(super) struct Measured {
    pub(super) figures: Vec<Figure>,
    pub(super) round_trips: Table,
    pub(super) failures: Vec<String>,
}

impl Cost<'_> {
    pub(super) fn run(&self) -> Result<Measured> {
        let mut started = Vec::new();
        // Each has a database server of its own, which stays as long as it.
        let mut origins = Vec::new();
        let servers = Servers::start(self.dir)?;
        let slow = slow_sync(self.bin, self.dir)?;
        // Durable writes past the page cache make no such call: the model is of a disk that syncs one thing after the other.
        let serial = Some(["--journal-depth", "0"]);
        for (bin, log, flags) in [
            (self.bin, Some(&servers), None),
            (self.bin, None, None),
            (slow.as_path(), None, serial),
        ] {
            let origin = Postgres::start(self.dir, Transport::Tcp)?;
            fill_postgres(&mut origin.query()?, TABLE, self.records, 100)?;
            let server = self.start(bin, &Postgres::url(origin.address), log, flags)?;
            crate::bench::warm(&server.address, TABLE, self.records)?;
            origins.push(origin);
            started.push(server);
        }
        let [ours, disk, slow] = started.as_slice() else {
            return Err("three servers start".into());
        };
        let (mut figures, mut failures) = (Vec::new(), Vec::new());
        for connections in CONNECTIONS {
            let sides = [ours, disk, slow];
            let mut sides = sides.map(|server| move |_: &mut ()| self.write(server, connections));
            let [a, b, c] = &mut sides;
            let name = format!("d = 0, {connections} connections");
            let ([ours, disk, slow], ended) = in_turn(&mut (), &name, self.rounds, [a, b, c]);
            failures.extend(ended.err().map(|error| format!("{name}: {error}")));
            for (peer, theirs, least) in
                [("this disk", disk, 1.0), ("a disk whose sync takes 2 ms", slow, 5.0)]
            {
                figures.push(Figure {
                    group: GROUP,
                    case: format!("{connections} connections, against {peer}"),
                    peer: peer.to_owned(),
                    ours: ours.clone(),
                    theirs,
                    target: Target::ratio(least),
                });
            }
        }
        Ok(Measured { figures, round_trips: self.round_trips(ours, &servers)?, failures })
    }

    fn start(
        &self,
        bin: &Path,
        url: &str,
        servers: Option<&Servers>,
        flags: Option<[&str; 2]>,
    ) -> Result<Destage> {
        let mut extra = self.extra.to_vec();
        extra.extend(flags.into_iter().flatten().chain(LATER).map(str::to_owned));
        if let Some(servers) = servers {
            let copies = COPIES.to_string();
            extra.extend([
                "--replicas".into(),
                servers.urls().join(","),
                "--copies".into(),
                copies,
            ]);
            extra.extend(RARELY.map(str::to_owned));
        }
        let config = DestageConfig {
            bin: bin.to_owned(),
            origin: url.to_owned(),
            commit: "0".into(),
            staleness: "30s".into(),
            transport: Transport::Tcp,
            extra,
        };
        Destage::start_unforced(self.dir, &config)
    }

    /// Acknowledged writes of one field; what the origin has not taken by then is drained afterwards.
    fn write(&self, server: &Destage, connections: usize) -> Result<Run> {
        let key = format!("{TABLE}:__rand_int__");
        let mut load =
            Load::resp(server.address.clone(), &["HSET", &key, "f1", "__rand_int__"], 0)?;
        (load.connections, load.key_space, load.seed) = (connections, self.records, self.seed);
        (load.shape, load.bound) = (Shape::Uniform, Bound::Time(self.time));
        let cpu = server.cpu()?;
        let outcome = load.run()?.without_errors()?;
        let run = Run {
            requests: outcome.requests,
            per_second: outcome.per_second(),
            cpu_us: cpu_us(cpu, server.cpu()?, outcome.requests),
            p50_us: outcome.latency_us(0.5),
            p99_us: outcome.latency_us(0.99),
            ..Run::default()
        };
        server.drain()?;
        Ok(run)
    }

    /// One client, so that each write is a batch: how often a server is asked for each.
    fn round_trips(&self, server: &Destage, servers: &Servers) -> Result<Table> {
        let calls =
            || servers.0.iter().map(|one| calls(&one.address)).collect::<Result<Vec<u64>>>();
        let key = format!("{TABLE}:__rand_int__");
        let mut load =
            Load::resp(server.address.clone(), &["HSET", &key, "f1", "__rand_int__"], 0)?;
        (load.key_space, load.bound) = (self.records, Bound::Requests(COUNTED));
        let before = calls()?;
        load.run()?.without_errors()?;
        let after = calls()?;
        let row = |(number, (before, after)): (usize, (&u64, &u64))| {
            let trips = (after - before) as f64 / COUNTED as f64;
            vec![format!("server {} of {SERVERS}", number + 1), format!("{trips:.2}")]
        };
        Ok(Table {
            title: "Replicas: round trips for each acknowledged batch".into(),
            note: "One client writes, and waits for each acknowledgement: calls of the script at each server, by its own count, for \
                   each write. The origin's progress goes along with the next batch, and so does the lease."
                .into(),
            columns: ["server", "calls for each write"].map(str::to_owned).to_vec(),
            rows: before.iter().zip(&after).enumerate().map(row).collect(),
        })
    }
}

/// How often a server's script was called.
fn calls(address: &destage_runtime::sockets::Listen) -> Result<u64> {
    let answer = Client::connect(address)?.call(&["INFO", "commandstats"])?;
    let Value::Text(text) = answer else { return Err(format!("no statistics: {answer:?}").into()) };
    let count = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let count = count.and_then(|rest| rest.split(',').next()).and_then(|text| text.parse().ok());
    count.ok_or_else(|| "the server has counted no calls of the script".into())
}

/// The program on a disk whose sync takes longer: its calls of `fdatasync` sleep before they do their work.
fn slow_sync(bin: &Path, dir: &Path) -> Result<PathBuf> {
    let (source, library) = (dir.join("slow.c"), dir.join("slow.so"));
    let nanoseconds = SYNC.as_nanos();
    std::fs::write(
        &source,
        format!(
            "#include <sys/syscall.h>\n#include <time.h>\n#include <unistd.h>\n\
             int fdatasync(int file) {{\n  struct timespec span = {{0, {nanoseconds}}};\n  nanosleep(&span, 0);\n\
             return syscall(SYS_fdatasync, file);\n}}\n"
        ),
    )?;
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    let status = compile.status().map_err(|error| format!("no C compiler (cc): {error}"))?;
    if !status.success() {
        return Err(format!("cc failed: {status}").into());
    }
    let script = dir.join("slow-destage");
    std::fs::write(
        &script,
        format!("#!/bin/sh\nLD_PRELOAD='{}' exec '{}' \"$@\"\n", library.display(), bin.display()),
    )?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok(script)
}
