//! Carrying a batch to the origin: in the order of the blocks, several requests at a time, flushed before it counts.

use super::super::install::CleanBlock;
use super::super::overlay::Shared;
use super::payload::{PartBytes, PreImageRead};
use super::{Context, write_blocks, zero_blocks};
use crate::attach;
use crate::block::{BLOCK, Extent, Lba};
use crate::cache::record::{STORED_BLOCK, check_stored_block};
use crate::origin::{Origin, OriginIoError, OriginIoErrorKind};
use crate::redo::{AtomicGroup, Content, RedoError, Run};
use destage_core::{BatchId, Fault, Lsn, UnitId};
use destage_journal::DiskFile;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

/// A batch on its way.
#[derive(Debug)]
pub(in super::super) struct DestageJob {
    pub(in super::super) batch: BatchId,
    /// Made durable before anything is sent: everything up to here is decided. Set where a new level begins.
    pub(in super::super) mark: Option<Lsn>,
    /// Whether each part goes through the redo store, whole or not at all.
    pub(in super::super) is_atomic: bool,
    /// What to send, each part after the one before it.
    pub(in super::super) parts: Vec<Part>,
}

/// The newest versions of some blocks, in the order of the blocks; each block once.
#[derive(Debug)]
pub(in super::super) struct Part {
    /// The oldest and the newest group that it holds.
    pub(in super::super) from: Lsn,
    pub(in super::super) upto: Lsn,
    pub(in super::super) targets: Vec<Target>,
}

impl Part {
    /// The groups that are read from the log, once for each block.
    pub(in super::super) fn pins(&self) -> impl Iterator<Item = Lsn> {
        let from_log = self.targets.iter().filter(|target| matches!(target.from, From::Log { .. }));
        from_log.map(|target| target.lsn)
    }
}

/// One block to send, or neighbours that become zeros.
#[derive(Debug)]
pub(in super::super) struct Target {
    pub(in super::super) extent: Extent,
    /// The block's handle; `None` for zeros.
    pub(in super::super) unit: Option<UnitId>,
    pub(in super::super) lsn: Lsn,
    pub(in super::super) from: From,
    /// Whether the cache keeps it.
    pub(in super::super) is_kept: bool,
    /// The checksum of what the origin holds there, if the slot still holds the same.
    pub(in super::super) before: Option<u32>,
}

/// Where a block's bytes come from.
#[derive(Debug)]
pub(in super::super) enum From {
    Zero { punch: bool },
    Memory { data: Shared, at: usize, crc: u32 },
    Log { file: Arc<dyn DiskFile>, offset: u64, crc: u32 },
}

/// A block that has reached the origin, or zeros that have.
#[derive(Clone, Debug)]
pub(in super::super) struct Sent {
    pub(in super::super) unit: Option<UnitId>,
    pub(in super::super) blocks: u32,
    pub(in super::super) lsn: Lsn,
    /// What it holds now; `None` for zeros, for what is not kept, and for what could not be read back.
    pub(in super::super) content: Option<CleanBlock>,
}

/// What came of a batch.
pub(in super::super) struct Destaged {
    /// What has reached the origin.
    pub(in super::super) sent: Vec<Sent>,
    /// Where it was learned what was there before.
    pub(in super::super) before: PreImageRead,
    pub(in super::super) result: Result<(), Failure>,
}

/// Why a batch is not decided.
#[derive(Clone, Debug)]
pub(in super::super) struct Failure {
    pub(in super::super) fault: Fault,
    pub(in super::super) message: String,
}

/// A request to the origin.
enum Request {
    Write { first: Lba, bytes: Vec<u8> },
    Zero { extent: Extent, punch: bool },
}

/// Longest write to the origin, in blocks: 1 MiB.
const RUN_BLOCKS_MAX: usize = 256;
/// Longest zeroing, in blocks: 64 MiB.
const ZERO_BLOCKS_MAX: u32 = 16_384;
/// Most requests sent at a time, whatever the origin takes.
const PARALLEL_MAX: usize = 16;

impl DestageJob {
    /// The groups that are read from the log, once for each block.
    pub(in super::super) fn pins(&self) -> Vec<Lsn> {
        self.parts.iter().flat_map(Part::pins).collect()
    }

    /// Sends everything and makes it durable.
    pub(super) fn run(self, context: &Context) -> Destaged {
        let (mut sent, mut before) = (Vec::new(), PreImageRead::default());
        if let Some(decided) = self.mark
            && let Err(error) = context.cache.set_decided(decided.0)
        {
            let message = format!("failed to mark group {} as decided: {error}", decided.0);
            let result = Err(Failure { fault: Fault::Unavailable, message });
            return Destaged { sent, before, result };
        }
        for part in &self.parts {
            let result = if self.is_atomic {
                send_atomic(context, part, &mut before)
            } else {
                send_plain(context, part)
            };
            if result.is_err() {
                return Destaged { sent, before, result };
            }
            sent.extend(part.targets.iter().map(sent_block));
        }
        Destaged { sent, before, result: Ok(()) }
    }
}

fn send_plain(context: &Context, part: &Part) -> Result<(), Failure> {
    let origin = &context.origin_in_turn();
    let requests = requests(&part.targets)?;
    if requests.is_empty() {
        return Ok(());
    }
    settle(context)?;
    void_outdated(context, part.from)?;
    let losses = origin.losses();
    send_all(origin, &requests)?;
    origin.flush()?;
    if origin.losses() == losses {
        note_sent(context, part);
        return Ok(());
    }
    let message = "a part of the batch may have been lost at the origin before it was flushed: it is sent again";
    Err(Failure { fault: Fault::Unavailable, message: message.into() })
}

fn send_atomic(context: &Context, part: &Part, before: &mut PreImageRead) -> Result<(), Failure> {
    let redo = context.redo.as_ref().ok_or_else(|| Failure {
        fault: Fault::Denied,
        message: "no redo store is attached: the journaled policy needs one".into(),
    })?;
    // A panic elsewhere leaves the store as a crash would: it settles that itself.
    let mut redo = redo.lock().unwrap_or_else(PoisonError::into_inner);
    let group = AtomicGroup { from: part.from, to: part.upto, runs: runs(&part.targets) };
    let bytes = PartBytes::of(part, &context.cache);
    let applied = redo.apply(&context.origin_in_turn(), &group, &bytes);
    let read = bytes.before_read();
    before.cached += read.cached;
    before.fetched += read.fetched;
    applied.map_err(|error| bytes.why(error))
}

/// Lets no replay of the redo store's last group come over what is written past it from now on.
fn settle(context: &Context) -> Result<(), RedoError> {
    let Some(redo) = &context.redo else { return Ok(()) };
    let mut redo = redo.lock().unwrap_or_else(PoisonError::into_inner);
    redo.recover(&*context.origin, false)?;
    redo.settle()
}

/// As [`settle`], for writes of which the log knows nothing: what was noted of the blocks at the origin does not hold any
/// more, and must not be compared after a crash.
pub(super) fn settle_for_good(context: &Context) -> Result<(), RedoError> {
    settle(context)?;
    let Some(redo) = &context.redo else { return Ok(()) };
    let mut redo = redo.lock().unwrap_or_else(PoisonError::into_inner);
    attach::void_evidence(&mut redo, &*context.origin)
}

/// Blocks that are sent again may be older than what was noted of them before: see [`attach::void_evidence_from`].
fn void_outdated(context: &Context, from: Lsn) -> Result<(), RedoError> {
    let Some(redo) = &context.redo else { return Ok(()) };
    let mut redo = redo.lock().unwrap_or_else(PoisonError::into_inner);
    attach::void_evidence_from(&mut redo, &*context.origin, from)
}

/// Leaves evidence of what the origin holds now, by which a start after a crash finds out that someone else wrote there.
fn note_sent(context: &Context, part: &Part) {
    let Some(redo) = &context.redo else { return };
    let mut redo = redo.lock().unwrap_or_else(PoisonError::into_inner);
    for target in &part.targets {
        match target.from {
            From::Zero { .. } => redo.note_zeroed(target.extent),
            From::Memory { crc, .. } | From::Log { crc, .. } => {
                redo.note_destaged(target.extent.first, crc);
            }
        }
    }
    if let Err(error) = attach::leave_evidence(&mut redo, &*context.origin, part.upto) {
        tracing::debug!(%error, "no evidence was left of the last batch");
    }
}

/// Joins neighbours.
pub(super) fn runs(targets: &[Target]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for target in targets {
        let content = match target.from {
            From::Zero { punch } => Content::Zero { punch },
            _ => Content::Data,
        };
        match runs.last_mut() {
            Some(last) if last.content == content && last.extent.end() == target.extent.first => {
                last.extent.blocks += target.extent.blocks;
            }
            _ => runs.push(Run { extent: target.extent, content }),
        }
    }
    runs
}

/// Joins neighbours into requests; reads what is no longer in memory.
fn requests(targets: &[Target]) -> Result<Vec<Request>, Failure> {
    let mut requests = Vec::new();
    for target in targets {
        match target.from {
            From::Zero { punch } => push_zero(&mut requests, target.extent, punch),
            _ => push_block(&mut requests, target.extent.first, &read(target)?),
        }
    }
    Ok(requests)
}

fn push_zero(requests: &mut Vec<Request>, zeros: Extent, punch: bool) {
    if let Some(Request::Zero { extent, punch: before }) = requests.last_mut()
        && extent.end() == zeros.first
        && *before == punch
        && extent.blocks + zeros.blocks <= ZERO_BLOCKS_MAX
    {
        extent.blocks += zeros.blocks;
        return;
    }
    requests.push(Request::Zero { extent: zeros, punch });
}

fn push_block(requests: &mut Vec<Request>, lba: Lba, block: &[u8]) {
    if let Some(Request::Write { first, bytes }) = requests.last_mut()
        && bytes.len() < RUN_BLOCKS_MAX * BLOCK
        && first.0 + (bytes.len() / BLOCK) as u64 == lba.0
    {
        bytes.extend_from_slice(block);
        return;
    }
    requests.push(Request::Write { first: lba, bytes: block.to_vec() });
}

/// The bytes of a target that is no zero.
pub(super) fn read(target: &Target) -> Result<Vec<u8>, Failure> {
    let (file, offset, crc) = match &target.from {
        From::Zero { .. } => return Ok(vec![0; BLOCK]),
        From::Memory { data, at, .. } => return Ok(data[*at..*at + BLOCK].to_vec()),
        From::Log { file, offset, crc } => (file, *offset, *crc),
    };
    let mut stored = vec![0; STORED_BLOCK];
    let failure = |fault, what: &str| Failure {
        fault,
        message: format!(
            "failed to read block {} of write {} from the log: {what}",
            target.extent.first.0, target.lsn.0
        ),
    };
    if let Err(error) = file.read_at(offset, &mut stored) {
        return Err(failure(Fault::Unavailable, &error.to_string()));
    }
    match check_stored_block(&stored, crc) {
        Some(block) => Ok(block.to_vec()),
        None => {
            Err(failure(Fault::JournalDamaged, "its checksum is wrong: the log is damaged there"))
        }
    }
}

/// Sends requests that share no block, several at a time.
fn send_all(origin: &dyn Origin, requests: &[Request]) -> Result<(), Failure> {
    let threads = origin.parallelism().clamp(1, PARALLEL_MAX).min(requests.len());
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), OriginIoError> {
        while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
            send(origin, request)?;
        }
        Ok(())
    };
    if threads == 1 {
        return Ok(work()?);
    }
    let result: Result<(), OriginIoError> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut result = work();
        for other in others {
            let ended = other.join().unwrap_or_else(|_| Err(panicked()));
            result = result.and(ended);
        }
        result
    });
    Ok(result?)
}

fn panicked() -> OriginIoError {
    OriginIoError {
        kind: OriginIoErrorKind::Failed,
        message: "a thread that wrote to the origin panicked".into(),
    }
}

fn send(origin: &dyn Origin, request: &Request) -> Result<(), OriginIoError> {
    match request {
        Request::Write { first, bytes } => write_blocks(origin, *first, bytes),
        Request::Zero { extent, punch } => zero_blocks(origin, *extent, *punch),
    }
}

/// A block that is at the origin, with its bytes for its slot.
pub(super) fn sent_block(target: &Target) -> Sent {
    let content = match &target.from {
        From::Zero { .. } => None,
        _ if !target.is_kept => None,
        From::Memory { data, at, crc } => {
            Some(CleanBlock { data: data.clone(), at: *at, crc: *crc }.compact())
        }
        // It was read for the origin a moment ago, so the system still has it.
        From::Log { crc, .. } => {
            let read = read(target).ok();
            read.map(|bytes| CleanBlock { data: Arc::new(bytes), at: 0, crc: *crc })
        }
    };
    Sent { unit: target.unit, blocks: target.extent.blocks, lsn: target.lsn, content }
}

impl std::convert::From<OriginIoError> for Failure {
    fn from(error: OriginIoError) -> Self {
        Self { fault: error.kind.fault(), message: error.message }
    }
}

impl std::convert::From<RedoError> for Failure {
    fn from(error: RedoError) -> Self {
        Self { fault: error.kind().fault(), message: error.to_string() }
    }
}
