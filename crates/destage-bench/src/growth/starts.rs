//! Starts: by tables of the origin, by bytes of the journal, by the size of a volume.

use std::fs::File;

use super::curve::{Bound as Limit, Curve, Point, sizes};
use super::{FREE, Growth, LINEAR, MIB, folder_bytes, measure};
use crate::Result;
use crate::bench::warm;
use crate::cpu::resident_bytes;
use crate::load::{Bound, Load};
use crate::origins::fill_sqlite;
use crate::servers::{BlockConfig, BlockServer, Postgres, Transport};

/// What neither grows nor shrinks.
const CONSTANT: Limit = Limit::AtMost(0.1);
const TABLE: &str = "grown";
/// The bytes of a value that fills the journal.
const VALUE_BYTES: usize = 65_536;
const VALUES: u64 = 64;
const GIB: u64 = 1 << 30;

/// The start before an origin with so many tables.
pub(super) fn tables(growth: &Growth, largest: u64) -> Result<Vec<Curve>> {
    let origin = Postgres::start(&growth.dir, Transport::Tcp)?;
    let config = growth.config(Postgres::url(origin.address), &[]);
    let mut made = 0;
    let mut points = Vec::new();
    for count in sizes(10, largest, 10) {
        origin.query()?.run(&format!(
            "DO $$ BEGIN FOR n IN {made}..{} LOOP EXECUTE format('CREATE TABLE t%s (id bigint PRIMARY KEY, name text, n \
             bigint NOT NULL DEFAULT 0, price numeric(10,2), at timestamptz)', n); COMMIT; END LOOP; END $$",
            count - 1
        ))?;
        made = count;
        origin.query()?.run("VACUUM ANALYZE")?;
        // The first one also makes its own tables at the origin.
        let server = growth.start(&config)?.start_again(&growth.dir, &config)?;
        let memory = resident_bytes(server.pid())?;
        points.push(Point::new(
            count,
            vec![
                server.started_in.as_secs_f64(),
                server.cpu()?.as_secs_f64(),
                memory as f64 / MIB,
                memory as f64 / 1_024.0 / count as f64,
            ],
        ));
    }
    Ok(vec![Curve {
        title: "tables of the origin",
        note:
            "Tables of five columns at PostgreSQL, without rows; the start reads their definitions."
                .into(),
        axis: "tables",
        measures: vec![
            measure("start, s", 3, LINEAR),
            measure("CPU of it, s", 2, LINEAR),
            measure("memory after it, MiB", 1, LINEAR),
            measure("memory for each, KiB", 1, FREE),
        ],
        points,
    }])
}

/// The start over a journal of so many MiB, all of it decided and retained.
pub(super) fn journal(growth: &Growth, largest: u64) -> Result<Vec<Curve>> {
    let path = growth.dir.join("journal.db");
    fill_sqlite(&path, TABLE, VALUES, 10)?;
    let flags = ["--retain", "1h", "--journal-size", "64G"];
    let config = growth.config(format!("sqlite:{}", path.display()), &flags);
    let mut server = growth.start(&config)?;
    warm(&server.address, TABLE, VALUES)?;
    let mut written = 0;
    let mut points = Vec::new();
    for mib in sizes((largest / 64).max(1), largest, 4) {
        let values = (mib << 20) / VALUE_BYTES as u64;
        let key = format!("{TABLE}:__rand_int__");
        let mut load =
            Load::resp(server.address.clone(), &["HSET", &key, "f0", "__data__"], VALUE_BYTES)?;
        (load.connections, load.key_space, load.seed) = (16, VALUES, growth.seed);
        load.bound = Bound::Requests(values.saturating_sub(written).max(1));
        written += load.run()?.without_errors()?.requests;
        server.drain()?;
        let files = folder_bytes(server.data())? as f64;
        server = server.start_again(&growth.dir, &config)?;
        let memory = resident_bytes(server.pid())?;
        points.push(Point::new(
            mib,
            vec![
                files / MIB,
                server.started_in.as_secs_f64(),
                server.cpu()?.as_secs_f64(),
                memory as f64 / MIB,
            ],
        ));
    }
    drop(server);
    std::fs::remove_file(&path)?;
    Ok(vec![Curve {
        title: "bytes of the journal",
        note: "Values of 64 KiB, all of them decided and retained (`--retain`), in the system's page cache as far as they fit.".into(),
        axis: "written, MiB",
        measures: vec![measure("journal, MiB", 0, FREE), measure("start, s", 3, LINEAR), measure("CPU of it, s", 2, LINEAR), measure("memory after it, MiB", 1, CONSTANT)],
        points,
    }])
}

/// The start of a volume of so many GiB, a sparse file.
pub(super) fn volume(growth: &Growth, largest: u64) -> Result<Vec<Curve>> {
    let mut points = Vec::new();
    for gib in sizes(1, largest, 16) {
        let folder = tempfile::Builder::new().prefix("volume-").tempdir_in(&growth.dir)?;
        let origin = folder.path().join("origin");
        File::create(&origin)?.set_len(gib * GIB)?;
        let config = BlockConfig {
            bin: growth.bin.clone(),
            origin: format!("file:{}", origin.display()),
            redo: folder.path().join("redo").display().to_string(),
            cache: folder.path().join("cache"),
            cache_bytes: 96 << 20,
            log_bytes: 64 << 20,
            dirty_bytes: 16 << 20,
            policy: "write-back",
            extra: growth.extra.clone(),
        };
        // The first one also makes the cache.
        BlockServer::start(folder.path(), &config)?.kill()?;
        let server = BlockServer::start(folder.path(), &config)?;
        let memory = resident_bytes(server.pid())?;
        points.push(Point::new(gib, vec![server.started_in.as_secs_f64(), memory as f64 / MIB]));
    }
    Ok(vec![Curve {
        title: "size of a volume",
        note: "A sparse file behind a cache of 96 MiB that is there already and clean.".into(),
        axis: "volume, GiB",
        measures: vec![
            measure("start, s", 3, CONSTANT),
            measure("memory after it, MiB", 1, CONSTANT),
        ],
        points,
    }])
}
