//! What is under way: each task knows what waits for it.

use destage_core::{Access, BatchId, Lsn, Time, UnitId};

/// The number of a task, used again once it is over. Also the core's request and client where it stands for an access.
pub(super) type TaskId = u32;

/// Units of an access.
#[derive(Clone, Debug)]
pub(super) enum Units {
    One(UnitId),
    Many(Box<[UnitId]>),
}

/// Something that takes time.
#[derive(Clone, Debug)]
pub(super) enum Task {
    /// A request of an application.
    Request(Request),
    /// A request at a tier's core.
    Access {
        tier: u16,
        parent: TaskId,
        units: Units,
        /// Units that had to be fetched.
        absent: u32,
        step: Step,
        /// The number of the write that each unit gets, where crashes are looked at.
        versions: Vec<u32>,
    },
    /// The core of a tier takes note that blocks are present; nobody waits.
    Note,
    /// A tier reads blocks from below.
    Fetch { tier: u16, units: Units },
    /// A tier's batch on its way below.
    Batch { tier: u16, batch: BatchId, left: u32, failed: bool, runs: Vec<Run> },
    /// Some neighbouring blocks of it.
    Part { batch: TaskId, index: u32 },
    /// Written through a tier without a group.
    Through { access: TaskId, how: Access },
    /// The medium of a tier takes its newest groups.
    Sync { tier: u16, upto: Lsn },
    /// Nobody waits.
    Background,
    /// Everything dirty leaves a tier.
    Drain,
    /// Between a host and the filer.
    Remote(Remote),
    /// Free.
    Over,
}

/// How far an access is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Reads, until the core executes it.
    Read,
    /// Writes, until the core executes it.
    Write,
    /// The core holds the answer to a read.
    ReplyingRead,
    /// The core holds the acknowledgement of a write, or of a flush.
    ReplyingWrite,
    /// The medium works for it.
    Working,
    /// Waits for the core to settle a group written through.
    Settling,
}

/// A request of an application.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) at: Time,
    pub(super) host: u16,
    pub(super) thread: u16,
    pub(super) is_write: bool,
    pub(super) is_flush: bool,
    pub(super) measured: bool,
    pub(super) blocks: u32,
    /// The number of the write, for crashes.
    pub(super) version: u32,
}

/// Neighbouring blocks on their way below.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) first: UnitId,
    pub(super) blocks: u32,
    /// The newest write of each block, where crashes are looked at.
    pub(super) versions: Vec<u32>,
}

/// A transfer between a host and the filer.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) host: u16,
    pub(super) parent: TaskId,
    pub(super) is_write: bool,
    /// Whether the first of its two stages is over.
    pub(super) is_halfway: bool,
    pub(super) failed: bool,
    pub(super) block: u64,
    pub(super) blocks: u32,
    /// What arrives, where crashes are looked at.
    pub(super) arrives: Option<Box<Arrives>>,
}

/// Blocks with the number of the write that each gets.
#[derive(Clone, Debug)]
pub(super) struct Arrives {
    pub(super) units: Units,
    pub(super) versions: Vec<u32>,
}

impl Units {
    pub(super) fn new(units: &[UnitId]) -> Self {
        match units {
            [unit] => Self::One(*unit),
            _ => Self::Many(units.into()),
        }
    }

    /// So many units from the first one on.
    pub(super) fn run(first: UnitId, blocks: u32) -> Self {
        match blocks {
            1 => Self::One(first),
            _ => Self::Many((first.0..first.0 + blocks).map(UnitId).collect()),
        }
    }

    pub(super) fn as_slice(&self) -> &[UnitId] {
        match self {
            Self::One(unit) => std::slice::from_ref(unit),
            Self::Many(units) => units,
        }
    }
}

/// All tasks.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    list: Vec<Task>,
    free: Vec<TaskId>,
}

impl Tasks {
    pub(super) fn add(&mut self, task: Task) -> TaskId {
        match self.free.pop() {
            Some(id) => {
                self.list[id as usize] = task;
                id
            }
            None => {
                self.list.push(task);
                self.list.len() as TaskId - 1
            }
        }
    }

    pub(super) fn get(&mut self, id: TaskId) -> &mut Task {
        &mut self.list[id as usize]
    }

    /// Takes a task that is over.
    pub(super) fn take(&mut self, id: TaskId) -> Task {
        self.free.push(id);
        std::mem::replace(&mut self.list[id as usize], Task::Over)
    }
}
