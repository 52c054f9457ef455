//! Work that blocks: what the engine wants done, carried out on any thread, and what came of it.

mod consistency;
mod destage;
mod payload;

use super::allocation::StatusJob;
use super::overlay::Shared;
use crate::block::{BLOCK, Extent, Lba};
use crate::cache::record::{STORED_BLOCK, check_stored_block};
use crate::cache::{CacheDevice, CacheError, CheckpointWriter};
use crate::origin::{InTurn, Origin, OriginIoError, Turns};
use crate::redo::RedoStore;
use crate::request::Status;
use destage_core::{BatchId, Lsn, UnitId};
use destage_journal::DiskFile;
use destage_runtime::commit::{CommitDone, CommitWork};
use std::sync::{Arc, Mutex};

pub(super) use consistency::send_group;
pub(super) use destage::{DestageJob, Failure, From, Part, Sent, Target};
pub(super) use payload::PreImageRead;

/// The media that jobs work on.
#[derive(Clone, Debug)]
pub struct Context {
    /// The cache device.
    pub cache: Arc<CacheDevice>,
    /// The origin.
    pub origin: Arc<dyn Origin>,
    /// Where atomic groups are staged, if the policy may ask for them.
    pub redo: Option<Arc<Mutex<RedoStore>>>,
    /// Who may use the origin now. Where the redo store is in the same failure domain, its medium takes turns as well.
    pub turns: Arc<Turns>,
}

impl Context {
    /// The origin as destaging uses it: clients' reads come first.
    fn origin_in_turn(&self) -> InTurn {
        InTurn::new(self.origin.clone(), self.turns.clone())
    }
}

/// Something to be carried out on any thread; several at once. [`super::Volume::finished`] takes what comes of it.
#[derive(Debug)]
pub struct Job(pub(super) Work);

/// Which threads should run a job, so that the slow kind does not keep the quick one waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// Makes the log durable. At most one at a time; the clients' acknowledgements wait for it.
    Log,
    /// Reads from the cache device while a client waits.
    Read,
    /// Writes clean blocks into their slots.
    Install,
    /// Reads from the origin.
    Fetch,
    /// Writes to the origin while a client waits.
    Through,
    /// Destages. At most one at a time.
    Destage,
    /// Writes a checkpoint of the index. At most one at a time.
    Checkpoint,
}

#[derive(Debug)]
pub(super) enum Work {
    /// Writes the log, or makes it durable.
    Log(CommitWork),
    Read {
        gather: u64,
        items: Vec<ReadItem>,
    },
    Fetch {
        extent: Extent,
        purpose: FetchPurpose,
    },
    Install {
        items: Vec<InstallItem>,
    },
    Destage(DestageJob),
    Through(ThroughJob),
    OriginFlush {
        asked: u32,
    },
    Status(StatusJob),
    /// Writes the chunk, or commits if there is none; marks what is decided then.
    Checkpoint {
        writer: CheckpointWriter,
        chunk: Option<Vec<u8>>,
        decided: Lsn,
    },
}

/// What came of a [`Job`].
#[derive(Debug)]
pub struct JobDone(pub(super) Done);

#[derive(Debug)]
pub(super) enum Done {
    Log(CommitDone),
    Read {
        gather: u64,
        items: Vec<ReadItem>,
        blocks: Vec<Option<Vec<u8>>>,
    },
    Fetch {
        purpose: FetchPurpose,
        result: Result<Vec<u8>, OriginIoError>,
    },
    Install {
        items: Vec<InstallItem>,
        is_written: bool,
    },
    Destage {
        batch: BatchId,
        sent: Vec<Sent>,
        before: PreImageRead,
        pins: Vec<Lsn>,
        result: Result<(), Failure>,
    },
    Through {
        job: ThroughJob,
        result: Result<(), OriginIoError>,
        is_cached: bool,
        losses: u64,
    },
    OriginFlush {
        asked: u32,
        result: Result<(), OriginIoError>,
        losses: u64,
    },
    Status {
        asked: u32,
        parts: Vec<Status>,
    },
    /// The writer if chunks are to follow, or the Lsn of a checkpoint that is in force.
    Checkpoint {
        result: Result<Checkpointed, CacheError>,
    },
}

/// One block to be read from the cache device.
#[derive(Clone, Debug)]
pub(super) struct ReadItem {
    /// Its place among the blocks of the reader.
    pub(super) index: u32,
    pub(super) unit: UnitId,
    pub(super) place: Place,
    pub(super) crc: u32,
}

/// Where on the cache device a block's bytes are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Slot,
    Log { lsn: Lsn, file: Arc<dyn DiskFile>, offset: u64 },
}

/// Whom a fetch serves.
#[derive(Clone, Debug)]
pub(super) enum FetchPurpose {
    /// The cache: the handles of the extent's blocks.
    Cache(Vec<UnitId>),
    /// A client, past a cache that has failed.
    Around { gather: u64 },
}

/// A clean block on its way into its slot.
#[derive(Clone, Debug)]
pub(super) struct InstallItem {
    pub(super) unit: UnitId,
    pub(super) install: u64,
    pub(super) data: Shared,
    pub(super) at: usize,
    pub(super) crc: u32,
}

/// A client's write that goes to the origin first.
#[derive(Debug)]
pub(super) struct ThroughJob {
    pub(super) fragment: u64,
    pub(super) extent: Extent,
    /// The handles into whose slots the blocks are written afterwards; none for zeros.
    pub(super) units: Vec<UnitId>,
    /// The blocks' bytes; `None` for zeros.
    pub(super) data: Option<Shared>,
    pub(super) punch: bool,
    /// Whether the blocks are written into their slots.
    pub(super) is_kept: bool,
}

impl Job {
    /// Which threads should run it.
    pub fn kind(&self) -> JobKind {
        match self.0 {
            Work::Log(_) => JobKind::Log,
            Work::Read { .. } => JobKind::Read,
            Work::Install { .. } => JobKind::Install,
            Work::Fetch { .. } | Work::Status(_) => JobKind::Fetch,
            Work::Through(_) | Work::OriginFlush { .. } => JobKind::Through,
            Work::Destage(_) => JobKind::Destage,
            Work::Checkpoint { .. } => JobKind::Checkpoint,
        }
    }

    /// Whether it only writes a few blocks to the log.
    pub fn is_short(&self) -> bool {
        let Work::Log(work) = &self.0 else { return false };
        work.written_bytes().is_some_and(|bytes| bytes <= SHORT_BYTES)
    }

    /// Carries it out if that takes no waiting for a medium; gives it back otherwise.
    ///
    /// # Errors
    /// The job as it was.
    pub fn run_now(self, context: &Context) -> Result<JobDone, Self> {
        let Work::Read { gather, items } = self.0 else { return Err(self) };
        let blocks: Option<Vec<_>> =
            items.iter().map(|item| read_block_now(context, item).map(Some)).collect();
        match blocks {
            Some(blocks) => Ok(JobDone(Done::Read { gather, items, blocks })),
            None => Err(Self(Work::Read { gather, items })),
        }
    }

    /// Carries it out; blocks until it is done. Never panics for what the media do.
    pub fn run(self, context: &Context) -> JobDone {
        JobDone(match self.0 {
            Work::Log(work) => Done::Log(work.run()),
            Work::Read { gather, items } => {
                let blocks = items.iter().map(|item| read_block(context, item)).collect();
                Done::Read { gather, items, blocks }
            }
            Work::Fetch { extent, purpose } => {
                let result = context.turns.read(|| fetch(&*context.origin, extent));
                Done::Fetch { purpose, result }
            }
            Work::Install { items } => {
                let blocks: Vec<_> = items
                    .iter()
                    .map(|item| (item.unit.0, &item.data[item.at..item.at + BLOCK]))
                    .collect();
                let is_written = context.cache.write_slots(&blocks).is_ok();
                Done::Install { items, is_written }
            }
            Work::Destage(job) => {
                let (batch, pins) = (job.batch, job.pins());
                let destage::Destaged { sent, before, result } = job.run(context);
                Done::Destage { batch, sent, before, pins, result }
            }
            Work::Through(job) => through(context, job),
            Work::OriginFlush { asked } => {
                let result = context.origin.flush();
                Done::OriginFlush { asked, result, losses: context.origin.losses() }
            }
            Work::Status(job) => {
                Done::Status { asked: job.asked, parts: job.run(&*context.origin) }
            }
            Work::Checkpoint { writer, chunk, decided } => {
                Done::Checkpoint { result: checkpoint(context, writer, chunk, decided) }
            }
        })
    }
}

/// See [`Job::is_short`].
const SHORT_BYTES: usize = 160 << 10;

/// How far a checkpoint has come.
#[derive(Debug)]
pub(super) enum Checkpointed {
    Part(CheckpointWriter),
    InForce(Lsn),
}

fn checkpoint(
    context: &Context,
    mut writer: CheckpointWriter,
    chunk: Option<Vec<u8>>,
    decided: Lsn,
) -> Result<Checkpointed, CacheError> {
    if let Some(chunk) = chunk {
        writer.write(&chunk)?;
        return Ok(Checkpointed::Part(writer));
    }
    let lsn = Lsn(writer.commit()?);
    context.cache.set_decided(decided.0)?;
    Ok(Checkpointed::InForce(lsn))
}

/// A block's bytes if they are what they should be.
fn read_block(context: &Context, item: &ReadItem) -> Option<Vec<u8>> {
    match &item.place {
        Place::Slot => {
            let mut bytes = vec![0; BLOCK];
            let is_sound = context.cache.read_slot(item.unit.0, item.crc, &mut bytes).ok()?;
            is_sound.then_some(bytes)
        }
        Place::Log { file, offset, .. } => {
            let mut stored = vec![0; STORED_BLOCK];
            file.read_at(*offset, &mut stored).ok()?;
            check_stored_block(&stored, item.crc).map(<[u8]>::to_vec)
        }
    }
}

/// A block's bytes if they can be had without waiting and are what they should be.
fn read_block_now(context: &Context, item: &ReadItem) -> Option<Vec<u8>> {
    match &item.place {
        Place::Slot => {
            let mut bytes = vec![0; BLOCK];
            let read = context.cache.read_slot_now(item.unit.0, item.crc, &mut bytes);
            (read.ok()? == Some(true)).then_some(bytes)
        }
        Place::Log { file, offset, .. } => {
            let mut stored = vec![0; STORED_BLOCK];
            let is_read = file.read_now(*offset, &mut stored).ok()?;
            check_stored_block(&stored, item.crc).filter(|_| is_read).map(<[u8]>::to_vec)
        }
    }
}

/// Bytes of an extent that lie inside the volume.
fn clipped(extent: Extent, size: u64) -> u64 {
    extent.bytes().min(size.saturating_sub(extent.first.offset()))
}

/// The blocks of an extent; zeros behind the volume's end.
fn fetch(origin: &dyn Origin, extent: Extent) -> Result<Vec<u8>, OriginIoError> {
    let mut bytes = vec![0; extent.bytes() as usize];
    let inside = clipped(extent, origin.size()) as usize;
    if inside > 0 {
        origin.read(extent.first.offset(), &mut bytes[..inside])?;
    }
    Ok(bytes)
}

/// Writes blocks, as far as they lie inside the volume.
fn write_blocks(origin: &dyn Origin, first: Lba, bytes: &[u8]) -> Result<(), OriginIoError> {
    let extent = Extent { first, blocks: (bytes.len() / BLOCK) as u32 };
    let inside = clipped(extent, origin.size()) as usize;
    if inside == 0 { Ok(()) } else { origin.write(first.offset(), &bytes[..inside]) }
}

/// Zeroes blocks, as far as they lie inside the volume.
fn zero_blocks(origin: &dyn Origin, extent: Extent, punch: bool) -> Result<(), OriginIoError> {
    let inside = clipped(extent, origin.size());
    if inside == 0 { Ok(()) } else { origin.zero(extent.first.offset(), inside, punch) }
}

fn through(context: &Context, job: ThroughJob) -> Done {
    let losses = context.origin.losses();
    let settled = destage::settle_for_good(context)
        .map_err(|error| OriginIoError::new(error.kind(), error.to_string()));
    let result = settled.and_then(|()| match &job.data {
        Some(data) => write_blocks(&*context.origin, job.extent.first, data),
        None => zero_blocks(&*context.origin, job.extent, job.punch),
    });
    let mut is_cached = false;
    if let (Ok(()), Some(data), true) = (&result, &job.data, job.is_kept) {
        let handles = job.units.iter().map(|unit| unit.0);
        let blocks: Vec<_> = handles.zip(data.chunks_exact(BLOCK)).collect();
        is_cached = context.cache.write_slots(&blocks).is_ok();
    }
    Done::Through { job, result, is_cached, losses }
}
