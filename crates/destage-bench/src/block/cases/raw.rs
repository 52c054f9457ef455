//! Bursts and hits against the cache's own disk: fio on a file by io_uring and O_DIRECT, and through qemu-nbd.
//!
//! A burst ends before a limit is reached, so that what it measures is the log and not the disk behind it.
//! Destaging goes on meanwhile. Before each run everything is brought to the origin.

use std::path::PathBuf;

use crate::Result;
use crate::block::bench::{BlockBench, Comparison, Disk, Sizes, Volume};
use crate::figure::{Run, Target};
use crate::fio::{Job, Place, Spread, Until};
use crate::servers::QemuNbd;

const AGAINST_FILE: &str =
    "The cache's own disk: bursts and hits, against a file by io_uring and O_DIRECT";
const AGAINST_QEMU: &str = "The cache's own disk: bursts and hits, against qemu-nbd --cache=none";
const SYNCHRONOUS: &str = "d = 0: every write durable before its reply, against O_DSYNC on a file";

/// A case with its targets against the file and against `qemu-nbd`.
type Row = (&'static str, Job, Target, Target);

fn rows(bench: &BlockBench) -> Vec<Row> {
    let write = Job {
        until: Until { bytes_max: Some(bench.options.burst), ..bench.random("randwrite").until },
        ..bench.random("randwrite")
    };
    let read = bench.random("randread");
    let flushing = |every| Job { flush_every: every, ..write };
    let in_order = |kind, job: Job| Job {
        kind,
        block_bytes: 128 << 10,
        depth: 8,
        spread: Spread::Each,
        ..job
    };
    let (none, ratio) = (Target::NONE, Target::ratio);
    vec![
        ("random write of 4 KiB, depth 1", write, ratio(0.75), none),
        ("random write of 4 KiB, depth 32", Job { depth: 32, ..write }, ratio(0.7), none),
        ("random write of 4 KiB, depth 1, a flush after each", flushing(1), ratio(0.65), none),
        ("random write of 4 KiB, depth 1, a flush after 16", flushing(16), none, none),
        ("random write of 4 KiB, depth 1, a flush after 128", flushing(128), none, none),
        ("sequential write of 128 KiB, depth 8", in_order("write", write), none, none),
        ("random read of 4 KiB, cached, depth 1", read, none, ratio(1.0)),
        ("random read of 4 KiB, cached, depth 32", Job { depth: 32, ..read }, none, ratio(1.0)),
        ("sequential read of 128 KiB, cached, depth 8", in_order("read", read), none, none),
    ]
}

/// A file of the region's length on the cache's disk, every block of it written.
fn laid_out_file(bench: &BlockBench, name: &str) -> Result<PathBuf> {
    let path = bench.dir.join(name);
    bench.fill(&Place::File(path.clone()))?;
    Ok(path)
}

fn volume(bench: &BlockBench) -> Result<Volume> {
    let sizes = Sizes::of(bench.options.region, bench.options.burst);
    let mut volume = Volume::start(bench, Disk::new("raid"), sizes, "journaled")?;
    volume.lay_out(bench)?;
    Ok(volume)
}

pub(super) fn run(bench: &mut BlockBench) -> Result<()> {
    let mut volume = volume(bench)?;
    let file = Place::File(laid_out_file(bench, "raw")?);
    let qemu = QemuNbd::start(&bench.dir, &laid_out_file(bench, "qemu")?)?;
    for (case, job, target_file, target_qemu) in rows(bench) {
        let comparison = |group, peer: &str, theirs, target| Comparison {
            group,
            case: case.to_owned(),
            peer: peer.to_owned(),
            ours: 0,
            theirs,
            target,
        };
        let comparisons = vec![
            comparison(AGAINST_FILE, "the same job on a file", 1, target_file),
            comparison(AGAINST_QEMU, "the same job through qemu-nbd", 2, target_qemu),
        ];
        let mut ours = |bench: &mut BlockBench| {
            if job.kind.contains("read") {
                volume.hits(bench, &job)
            } else {
                volume.burst(bench, &job)
            }
        };
        let mut raw = |bench: &mut BlockBench| bench.fio(&file, &job);
        let mut theirs = |bench: &mut BlockBench| -> Result<Run> {
            bench.fio_at(qemu.uri(), &job, || qemu.cpu())
        };
        bench.rounds(case, comparisons, [&mut ours, &mut raw, &mut theirs]);
    }
    // Both tables whole, one after the other.
    bench.figures.sort_by_key(|figure| figure.group == AGAINST_QEMU);
    Ok(())
}

pub(super) fn run_synchronous(bench: &mut BlockBench) -> Result<()> {
    let mut volume = volume(bench)?;
    volume.rest_with(&["commit=0"])?;
    let file = Place::File(laid_out_file(bench, "raw")?);
    for depth in [1, 32] {
        let (_, write, ..) = rows(bench)[0];
        let job = Job { depth, ..write };
        let raw_job = Job { is_synchronous: true, ..job };
        let comparison = Comparison {
            group: SYNCHRONOUS,
            case: format!("random write of 4 KiB, depth {depth}"),
            peer: "the same job on a file opened with O_DSYNC".into(),
            ours: 0,
            theirs: 1,
            target: Target::ratio(0.8),
        };
        let name = comparison.case.clone();
        let mut ours = |bench: &mut BlockBench| volume.burst(bench, &job);
        let mut raw = |bench: &mut BlockBench| bench.fio(&file, &raw_job);
        bench.rounds(&name, vec![comparison], [&mut ours, &mut raw]);
    }
    Ok(())
}
