//! Starting pieces: whose turn it is, which handles they get, and what the core makes of them.

use super::Volume;
use super::piece::{Piece, Work};
use super::write::group_bytes;
use crate::cache::record::GroupKind;
use crate::request::RequestError;
use destage_core::{Access, Ack, Input, Intent, Lsn, Refusal, RequestId, UnitId};

impl Volume {
    /// A new piece.
    pub(super) fn enter(&mut self, id: u64, piece: Piece) {
        let is_write = piece.is_write();
        self.pieces.insert(id, piece);
        if is_write {
            return;
        }
        match self.service.is_stopped() {
            true => self.read_around(id),
            false => self.pieces.start(id),
        }
    }

    /// Starts what can be started. True if anything was.
    pub(super) fn start_pieces(&mut self) -> bool {
        let mut moved = self.begin_writes();
        let mut at = 0;
        // Behind a piece that waits for handles, only those may pass that need none, or are of the other kind.
        let mut is_short = [false; 2];
        let mut reading = self.fetches.len();
        while let Some(id) = self.pieces.start_at(at) {
            let Some(missing) = self.missing(id) else {
                self.pieces.take_start(at);
                continue;
            };
            let is_write = self.pieces.get(id).is_some_and(Piece::is_write);
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
            self.pieces.take_start(at);
            self.start(id);
            moved = true;
        }
        moved
    }

    /// Begins the writes whose turn it is.
    fn begin_writes(&mut self) -> bool {
        if self.service.holds_writes()
            || (self.core.policy().waits_for_origin() && !self.may_write_through())
        {
            return false;
        }
        let mut moved = false;
        while let Some(id) = self.pieces.next_write(self.shape.line_blocks_max) {
            moved = true;
            let Some(piece) = self.pieces.get(id) else { continue };
            if piece.is_partial() {
                let (asked, extent) = (piece.asked, piece.extent);
                let reader = self.id();
                let edges = Piece::new(asked, extent, Work::Edges { writer: id });
                self.pieces.insert(reader, edges);
                self.pieces.start(reader);
            } else {
                self.pieces.start(id);
            }
        }
        moved
    }

    /// How many of a piece's blocks have no handle; `None` if there is no such piece.
    fn missing(&self, id: u64) -> Option<usize> {
        let piece = self.pieces.get(id)?;
        if self.may_pass_by(id) {
            return Some(0);
        }
        Some(piece.lbas().filter(|&lba| self.slots.find(lba).is_none()).count())
    }

    /// Whether a piece is of a long sequential read and the cache knows nothing of its blocks: then the origin holds their
    /// newest bytes, durably or not, and a write from now on is under way together with the read.
    fn may_pass_by(&self, id: u64) -> bool {
        let Some(piece) = self.pieces.get(id) else { return false };
        matches!(piece.work, Work::Read { passes_by: true, .. })
            && !self.overlay.is_zeroed(piece.extent)
            && self.slots.within(piece.extent).is_empty()
    }

    /// Gives a piece its handles and asks the core.
    fn start(&mut self, id: u64) {
        if self.may_pass_by(id) {
            return self.read_around(id);
        }
        let Some(piece) = self.pieces.get_mut(id) else { return };
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
        let Some(piece) = self.pieces.get(id) else { return };
        match piece.work {
            Work::Prefetch => {
                let asked = piece.asked;
                self.pieces.remove(id);
                self.piece_done(asked, Ok(()));
            }
            Work::Read { .. } | Work::Edges { .. } => self.execute_read(id, observed),
            Work::Write { .. } | Work::Zero { .. } => self.execute_write(id, access, observed),
        }
    }

    /// The core refuses a piece.
    pub(super) fn refused(&mut self, id: u64, refusal: Refusal) {
        let Some(piece) = self.pieces.get(id) else { return };
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
        let Some(piece) = self.pieces.remove(id) else { return };
        match piece.work {
            Work::Edges { writer } => self.abandon(writer, error),
            _ => self.piece_done(piece.asked, Err(error)),
        }
    }
}
