//! The volume: the cache of one disk, without I/O. Requests and what came of jobs go in, replies and jobs come out.
//!
//! It owns which blocks are dirty, where every block's newest bytes are, and what each client waits for, and drives
//! [`destage_core::Core`], which decides everything about time, order and replacement. Whoever drives it carries out the
//! [`Job`]s on any threads, in any order, and calls [`Volume::tick`] when nothing more is at hand. The same inputs give
//! the same outputs.
//!
//! It survives a cache device whose slots fail (a miss), a log that fails (it stops: see [`VolumeMode`]), an origin that
//! fails for any time, and the loss of power at any job's any step.

mod allocation;
mod auto;
mod batches;
mod consistency;
mod control;
mod destage;
mod effects;
mod ends;
mod entry;
mod extents;
mod fetch;
mod fetches;
mod fragment;
mod install;
mod job;
mod jobs;
mod known;
mod log;
mod losses;
mod measured;
mod member;
mod overlay;
mod pre_image;
mod range_lock;
mod read;
mod recover;
mod requests;
mod service;
mod slots;
mod start;
mod status;
mod submit;
mod upkeep;
mod waits;
mod write;
mod write_through;

use crate::block::BLOCK;
use crate::request::Reply;
use batches::Batches;
pub use consistency::{ConsistencyGroup, ConsistencyGroupStatus, GroupDone, GroupJob};
use destage_core::{ClientId, DomainId, Input, Lsn, RequestId, Span, Time};
use destage_record::RecordedCore;
use destage_runtime::mode_log::ModeLog;
use fetches::Fetches;
use fragment::Fragments;
pub use job::{Context, Job, JobDone, JobKind};
use jobs::Jobs;
pub use known::known_blocks;
use log::VolumeLog;
pub use losses::ReportedLosses;
use measured::Measured;
pub use measured::VolumeLatencies;
pub use member::GroupClock;
use member::Membership;
use overlay::Overlay;
pub use recover::{Logged, OpenError, Parts};
use requests::Requests;
use service::Service;
use slots::Slots;
use status::Counters;
pub use status::{VolumeMode, VolumeStatus};
use upkeep::Upkeep;
use waits::{Wait, Waits};
use write_through::WriteThrough;

/// The only ordering domain: the whole volume.
const DOMAIN: DomainId = DomainId(0);

/// What a volume takes from its user besides the policy.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Its name in the log; empty, the default, where there is one only.
    pub name: String,
    /// Bytes of undecided writes that are kept in memory besides in the log. Default 64 MiB.
    pub memory_bytes_max: u64,
    /// How long a read waits for an origin that is out of reach before it fails. Default 30 s.
    pub fetch_patience: Span,
    /// How often the index of clean blocks is checkpointed while it changes. Default 30 s.
    pub checkpoint_every: Span,
    /// Requests under way above which [`Volume::is_congested`]. Default 4,096.
    pub requests_max: usize,
    /// Bytes of requests under way above which [`Volume::is_congested`]. Default 128 MiB.
    pub request_bytes_max: u64,
    /// Lets go of the log without regard to the index checkpoint. Gives outdated data after a crash; exists so that tests
    /// can show that they would notice. Default false.
    pub unsafe_reclaim_past_checkpoint: bool,
    /// Carries long sequential writes straight to the origin whatever the policy, past the log. Breaks the order of writes and
    /// gives outdated data after a crash; exists so that tests can show that they would notice. Default false.
    pub unsafe_bypass_log: bool,
    /// Takes for what the origin holds of a block what it held before an earlier group. Makes a replay refuse its own blocks;
    /// exists so that tests can show that they would notice. Default false.
    pub unsafe_outdated_before: bool,
    /// The clock of the consistency group that the volume is in. Whoever sets it hands the volume to
    /// [`ConsistencyGroup::drive`], without which nothing is destaged. Default none.
    pub group_clock: Option<GroupClock>,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            name: String::new(),
            memory_bytes_max: 64 << 20,
            fetch_patience: Span::from_secs(30),
            checkpoint_every: Span::from_secs(30),
            requests_max: 4_096,
            request_bytes_max: 128 << 20,
            unsafe_reclaim_past_checkpoint: false,
            unsafe_bypass_log: false,
            unsafe_outdated_before: false,
            group_clock: None,
        }
    }
}

/// The volume: see the module.
#[derive(Debug)]
pub struct Volume {
    now: Time,
    core: RecordedCore,
    modes: ModeLog,
    log: VolumeLog,
    overlay: Overlay,
    slots: Slots,
    shape: Shape,
    requests: Requests,
    fragments: Fragments,
    /// Names fragments, gathers and waits alike.
    next_id: u64,
    waits: Waits,
    fetches: Fetches,
    batches: Batches,
    upkeep: Upkeep,
    /// In a consistency group: what is destaged together with other volumes.
    membership: Option<Membership>,
    service: Service,
    write_through: WriteThrough,
    jobs: Jobs,
    counters: Counters,
    measured: Measured,
}

/// Sizes that stay as they are.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Bytes of the volume.
    size: u64,
    /// Most blocks of one fragment of a read, and of one group of a write.
    fragment_blocks_max: u32,
    /// Most blocks of one fragment of a write: its groups reach the origin together.
    write_blocks_max: u32,
    /// Most blocks of one fragment that is zeroed.
    zero_blocks_max: u32,
    /// Most handles that writes hold which are not logged, and most that wait for reads at the origin: neither kind can take
    /// what the other one needs.
    line_blocks_max: u64,
    /// Room of the log, bytes.
    log_bytes: u64,
    /// Bytes of a segment of the log.
    segment_bytes: u64,
    /// Most bytes of an atomic group, if there is a redo store.
    atomic_bytes_max: Option<u64>,
}

impl Volume {
    /// The next reply: the tag that the request came with, each exactly once.
    pub fn poll_reply(&mut self) -> Option<(u64, Reply)> {
        self.requests.poll_reply()
    }

    /// Whether so much is under way that further requests should wait at the client.
    pub fn is_congested(&self) -> bool {
        self.requests.is_congested((self.slots.loaded_len() * BLOCK) as u64)
    }

    /// Bytes of the volume.
    pub fn size(&self) -> u64 {
        self.shape.size
    }

    fn id(&mut self) -> u64 {
        self.part_id(0)
    }

    /// An id that says which answer it is a part of.
    fn part_id(&mut self, asked: u32) -> u64 {
        self.next_id += 1;
        destage_record::part_of(ClientId(asked), self.next_id).0
    }

    /// Asks the core to tell when a group is committed or decided.
    fn wait_for(&mut self, wait: Wait, lsn: Lsn, until: destage_core::WaitFor) {
        let id = self.id();
        self.waits.begin(id, wait);
        self.core.handle(self.now, Input::Wait { request: RequestId(id), lsn, until });
    }

    /// Lets the core say when a request's reply may leave.
    fn respond(&mut self, asked: u32, lsn: Lsn, wrote: bool) {
        self.core.handle(self.now, Input::Respond { client: ClientId(asked), lsn, wrote });
    }
}

#[cfg(test)]
impl Volume {
    /// Cuts zeros into shorter fragments, so that small volumes see several.
    fn set_zero_blocks_max(&mut self, blocks: u32) {
        self.shape.zero_blocks_max = blocks;
    }
}

#[cfg(test)]
mod tests;
