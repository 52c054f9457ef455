//! Pieces: parts of requests that the core decides about one by one.

use super::Volume;
use super::write::group_bytes;
use crate::block::{Extent, Lba};
use crate::cache::record::GroupKind;
use crate::request::RequestError;
use destage_core::{Access, Ack, Input, Intent, Lsn, Refusal, RequestId, UnitId};

/// A part of a request.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) asked: u32,
    pub(super) extent: Extent,
    pub(super) work: Work,
    /// Its blocks' handles, once it has been started.
    pub(super) units: Vec<UnitId>,
    /// How often it was begun again because the cache device gave something else than was written there.
    pub(super) tries: u32,
}

/// What it does.
#[derive(Debug)]
pub(super) enum Work {
    /// Reads `len` bytes, `skip` bytes into the extent, to `at` in the reply; if nothing of it is cached, perhaps from the
    /// origin without keeping it.
    Read { skip: usize, len: usize, at: usize, passes_by: bool },
    /// Fetches what is not cached.
    Prefetch,
    /// Reads the blocks that a write changes in part: the first one of the extent, or the last, or both.
    Edges { writer: u64 },
    /// Writes whole blocks. With `merge`, their ends are to be completed by what is there. With `passes_by`, the cache does not
    /// keep them once they are at the origin.
    Write { data: Vec<u8>, merge: Option<Merge>, passes_by: bool },
    /// Makes blocks read as zeros.
    Zero { punch: bool },
}

/// What a write leaves out of its first and its last block, bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    pub(super) head: usize,
    pub(super) tail: usize,
}

/// The bytes of some blocks, as they come.
#[derive(Debug)]
pub(super) struct Gather {
    pub(super) piece: u64,
    pub(super) bytes: Vec<u8>,
}

impl Merge {
    /// `None` where nothing is left out.
    pub(super) fn of(head: usize, tail: usize) -> Option<Self> {
        (head > 0 || tail > 0).then_some(Self { head, tail })
    }
}

impl Piece {
    pub(super) fn new(asked: u32, extent: Extent, work: Work) -> Self {
        Self { asked, extent, work, units: Vec::new(), tries: 0 }
    }

    pub(super) fn is_write(&self) -> bool {
        matches!(self.work, Work::Write { .. } | Work::Zero { .. })
    }

    /// Whether it changes blocks in part.
    pub(super) fn is_partial(&self) -> bool {
        matches!(self.work, Work::Write { merge: Some(_), .. })
    }

    /// Whether it is of a long sequential write.
    pub(super) fn is_of_stream(&self) -> bool {
        matches!(self.work, Work::Write { passes_by: true, .. })
    }

    pub(super) fn is_zero(&self) -> bool {
        matches!(self.work, Work::Zero { .. })
    }

    /// How many handles it needs.
    pub(super) fn handles(&self) -> usize {
        self.lbas().count()
    }

    /// The blocks whose handles it needs, each once. Zeros need none: they are held by extents.
    fn lbas(&self) -> impl Iterator<Item = Lba> + use<> {
        let extent = self.extent;
        let (step, count) = match self.work {
            Work::Zero { .. } => (1, 0),
            Work::Edges { .. } => ((extent.blocks as usize - 1).max(1), 2),
            _ => (1, usize::MAX),
        };
        extent.iter().step_by(step).take(count)
    }
}

impl Volume {
    /// A new piece.
    pub(super) fn enter(&mut self, id: u64, piece: Piece) {
        let is_write = piece.is_write();
        if is_write {
            self.line.push(id, &piece);
        } else if self.service.is_stopped() {
            self.pieces.insert(id, piece);
            return self.read_around(id);
        } else {
            self.starts.push_back(id);
        }
        self.pieces.insert(id, piece);
    }

    /// Starts what can be started. True if anything was.
    pub(super) fn start_pieces(&mut self) -> bool {
        let mut moved = self.start_line();
        let mut at = 0;
        // Behind a piece that waits for handles, only those may pass that need none, or are of the other kind.
        let mut is_short = [false; 2];
        let mut reading = self.fetches.len();
        while at < self.starts.len().min(STARTS_LOOKED_AT) {
            let id = self.starts[at];
            let Some(missing) = self.missing(id) else {
                self.starts.remove(at);
                continue;
            };
            let is_write = self.pieces.get(&id).is_some_and(Piece::is_write);
            // Reads that wait for the origin leave writes their share, and the other way round.
            let is_over =
                !is_write && (reading + missing) as u64 > self.shape.line_blocks_max && reading > 0;
            let is_behind = is_short[usize::from(is_write)];
            if missing > 0 && (is_behind || is_over || missing > self.slots.free_len()) {
                is_short[usize::from(is_write)] = true;
                at += 1;
                continue;
            }
            reading += if is_write { 0 } else { missing };
            self.starts.remove(at);
            self.start(id);
            moved = true;
        }
        moved
    }

    /// Begins what the line of writes lets pass.
    fn start_line(&mut self) -> bool {
        if self.service.holds_writes()
            || (self.core.policy().waits_for_origin() && !self.may_write_through())
        {
            return false;
        }
        let mut moved = false;
        while let Some(id) = self.line.pass(self.shape.line_blocks_max) {
            moved = true;
            let Some(piece) = self.pieces.get(&id) else { continue };
            if piece.is_partial() {
                let (asked, extent) = (piece.asked, piece.extent);
                let reader = self.id();
                let edges = Piece::new(asked, extent, Work::Edges { writer: id });
                self.pieces.insert(reader, edges);
                self.starts.push_back(reader);
            } else {
                self.starts.push_back(id);
            }
        }
        moved
    }

    /// How many of a piece's blocks have no handle; `None` if there is no such piece.
    fn missing(&self, id: u64) -> Option<usize> {
        let piece = self.pieces.get(&id)?;
        if self.may_pass_by(id) {
            return Some(0);
        }
        Some(piece.lbas().filter(|&lba| self.slots.find(lba).is_none()).count())
    }

    /// Whether a piece is of a long sequential read and the cache knows nothing of its blocks: then the origin holds their
    /// newest bytes, durably or not, and a write from now on is under way together with the read.
    fn may_pass_by(&self, id: u64) -> bool {
        let Some(piece) = self.pieces.get(&id) else { return false };
        matches!(piece.work, Work::Read { passes_by: true, .. })
            && !self.overlay.is_zeroed(piece.extent)
            && self.slots.within(piece.extent).is_empty()
    }

    /// Gives a piece its handles and asks the core.
    fn start(&mut self, id: u64) {
        if self.may_pass_by(id) {
            return self.read_around(id);
        }
        let Some(piece) = self.pieces.get_mut(&id) else { return };
        let units: Vec<UnitId> = piece.lbas().map(|lba| self.slots.take(lba)).collect();
        piece.units.clone_from(&units);
        let intent = match piece.is_write() {
            false => Intent::Read,
            true => Intent::Write {
                bytes: match piece.is_zero() {
                    true => group_bytes(GroupKind::Zero, u64::from(piece.extent.blocks)),
                    false => group_bytes(GroupKind::Write, units.len() as u64),
                },
                ack: match piece.is_of_stream() {
                    true => self.core.policy().acknowledges_stream(),
                    false => Ack::Policy,
                },
                fetch: false,
            },
        };
        if intent == Intent::Read {
            let hits = units.iter().filter(|&&unit| self.core.is_present(unit)).count() as u64;
            self.counters.hit_blocks += hits;
            self.counters.miss_blocks += units.len() as u64 - hits;
        }
        self.core.handle(self.now, Input::Access { request: RequestId(id), intent, units: &units });
    }

    /// The core lets a piece go on.
    pub(super) fn execute_piece(&mut self, id: u64, access: Access, observed: Lsn) {
        // Whoever only made sure that blocks are known as present has no piece.
        let Some(piece) = self.pieces.get(&id) else { return };
        match piece.work {
            Work::Prefetch => {
                let asked = piece.asked;
                self.pieces.remove(&id);
                self.piece_done(asked, Ok(()));
            }
            Work::Read { .. } | Work::Edges { .. } => self.execute_read(id, observed),
            Work::Write { .. } | Work::Zero { .. } => self.execute_write(id, access, observed),
        }
    }

    /// The core refuses a piece.
    pub(super) fn refused(&mut self, id: u64, refusal: Refusal) {
        let Some(piece) = self.pieces.get(&id) else { return };
        if refusal == Refusal::Stopped && !piece.is_write() {
            return self.read_around(id);
        }
        let error = match refusal {
            Refusal::Full | Refusal::Stale => RequestError::NoSpace,
            Refusal::Busy => RequestError::Busy,
            Refusal::Unavailable | Refusal::Denied | Refusal::Stopped => RequestError::Io,
        };
        self.abandon(id, error);
    }

    /// A piece fails, and the write that it read for with it.
    pub(super) fn abandon(&mut self, id: u64, error: RequestError) {
        let Some(piece) = self.pieces.remove(&id) else { return };
        match piece.work {
            Work::Edges { writer } => self.abandon(writer, error),
            _ => {
                if piece.is_write() {
                    self.line.leave(id);
                }
                self.piece_done(piece.asked, Err(error));
            }
        }
    }
}

/// How far behind a piece that waits for handles others may pass it.
const STARTS_LOOKED_AT: usize = 256;
