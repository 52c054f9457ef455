//! The traces: two of others, and one that anyone can generate.

use std::path::{Path, PathBuf};

use super::programs::Programs;
use crate::Result;

/// A trace and the cache that is simulated on it.
pub(super) struct Load {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    source: Source,
    /// The size of its blocks as `--block` takes it.
    block: &'static str,
    blocks: u64,
}

enum Source {
    /// A file of this name in the folder of traces.
    File(&'static str),
    /// YCSB's workload C: so many requests to so many records.
    Generated { requests: u64, records: u64 },
}

/// What both sides read.
pub(super) struct Trace {
    /// One record for each access to a block.
    pub(super) path: PathBuf,
    pub(super) accesses: u64,
    pub(super) distinct: u64,
    /// Places of the cache.
    pub(super) blocks: u64,
}

pub(super) const LOADS: [Load; 3] = [
    Load {
        name: "P3",
        what: "P3 of the ARC paper, a workstation's disk, in blocks of 512 bytes as the paper counts them",
        source: Source::File("P3.lis.zst"),
        block: "512",
        blocks: 131_072,
    },
    Load {
        name: "cloudPhysicsIO",
        what: "cloudPhysicsIO, a virtual machine's disk, in blocks of 4 KiB",
        source: Source::File("cloudphysics.vscsi.zst"),
        block: "4K",
        blocks: 32_768,
    },
    Load {
        name: "YCSB-C, generated",
        what: "zipfian reads of records of 1 KiB, in blocks of 4 KiB",
        source: Source::Generated { requests: 3_000_000, records: 4_000_000 },
        block: "4K",
        blocks: 131_072,
    },
];

/// Bytes of a record of oracleGeneral: time, block, size, next access.
const RECORD: u64 = 24;

impl Load {
    pub(super) fn is_generated(&self) -> bool {
        matches!(self.source, Source::Generated { .. })
    }

    /// Writes the trace in the form that both sides read; what is missing, if it is not there. A short one has a thousandth.
    ///
    /// # Errors
    ///
    /// `destage sim` failed.
    pub(super) fn prepare(
        &self,
        programs: &Programs,
        folder: Option<&Path>,
        seed: u64,
        is_short: bool,
    ) -> Result<std::result::Result<Trace, String>> {
        let shorter = if is_short { 1_000 } else { 1 };
        let source = match self.source {
            Source::File(file) => match folder.map(|folder| folder.join(file)) {
                Some(path) if path.is_file() => path,
                Some(path) => return Ok(Err(format!("{}: no {}", self.name, path.display()))),
                None => return Ok(Err(format!("{}: no folder of --traces", self.name))),
            },
            Source::Generated { requests, records } => {
                let numbers = [requests / shorter, records / shorter, seed].map(|n| n.to_string());
                let path = programs.dir.join("generated.csv");
                let [requests, records, seed] = &numbers;
                let arguments = [
                    "generate",
                    "ycsb-c",
                    "--requests",
                    requests,
                    "--records",
                    records,
                    "--seed",
                    seed,
                ];
                programs.write(&arguments.map(str::to_owned), &path)?;
                path
            }
        };
        let path =
            programs.dir.join(format!("{}.oracleGeneral", self.name.replace([' ', ','], "")));
        let source = source.to_string_lossy().into_owned();
        let arguments =
            ["convert", "--trace", &source, "--block", self.block, "--to", "oracle-general"];
        programs.write(&arguments.map(str::to_owned), &path)?;
        let accesses = std::fs::metadata(&path)?.len() / RECORD;
        let blocks = self.blocks / shorter;
        let distinct = programs.distinct(&path)?;
        Ok(Ok(Trace { path, accesses, distinct, blocks }))
    }
}
