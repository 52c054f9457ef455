//! Starting fragments: whose turn it is, which handles they get, and what the core makes of them.

use super::Volume;
use super::fragment::{Fragment, Work};
use super::write::group_bytes;
use crate::cache::record::GroupKind;
use crate::request::RequestError;
use destage_core::{Access, Ack, Input, Intent, Lsn, Refusal, RequestId, UnitId};

impl Volume {
    /// A new fragment.
    pub(super) fn enter(&mut self, id: u64, fragment: Fragment) {
        let is_write = fragment.is_write();
        self.fragments.insert(id, fragment);
        if is_write {
            return;
        }
        if self.service.is_stopped() { self.read_around(id) } else { self.fragments.start(id) }
    }

    /// Starts what can be started. True if anything was.
    pub(super) fn start_fragments(&mut self) -> bool {
        let mut moved = self.begin_writes();
        let mut at = 0;
        // Behind a fragment that waits for handles, only those may pass that need none, or are of the other kind.
        let mut is_short = [false; 2];
        let mut reading = self.fetches.len();
        while let Some(id) = self.fragments.start_at(at) {
            let Some(missing) = self.missing(id) else {
                self.fragments.take_start(at);
                continue;
            };
            let is_write = self.fragments.get(id).is_some_and(Fragment::is_write);
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
            self.fragments.take_start(at);
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
        while let Some(id) = self.fragments.next_write(self.shape.line_blocks_max) {
            moved = true;
            if self.service.has_lost_log(self.core.policy()) {
                self.abandon(id, RequestError::Io);
                continue;
            }
            let Some(fragment) = self.fragments.get(id) else { continue };
            if fragment.is_partial() {
                let (asked, extent) = (fragment.asked, fragment.extent);
                let reader = self.id();
                let edges = Fragment::new(asked, extent, Work::Edges { writer: id });
                self.fragments.insert(reader, edges);
                self.fragments.start(reader);
            } else {
                self.fragments.start(id);
            }
        }
        moved
    }

    /// How many of a fragment's blocks have no handle; `None` if there is no such fragment.
    fn missing(&self, id: u64) -> Option<usize> {
        let fragment = self.fragments.get(id)?;
        if self.may_pass_by(id) {
            return Some(0);
        }
        Some(fragment.lbas().filter(|&lba| self.slots.find(lba).is_none()).count())
    }

    /// Whether a fragment is of a long sequential read and the cache knows nothing of its blocks: then the origin holds their
    /// newest bytes, durably or not, and a write from now on is under way together with the read.
    fn may_pass_by(&self, id: u64) -> bool {
        let Some(fragment) = self.fragments.get(id) else { return false };
        matches!(fragment.work, Work::Read { passes_by: true, .. })
            && !self.overlay.is_zeroed(fragment.extent)
            && self.slots.within(fragment.extent).is_empty()
    }

    /// Gives a fragment its handles and asks the core.
    fn start(&mut self, id: u64) {
        if self.may_pass_by(id) {
            return self.read_around(id);
        }
        let Some(fragment) = self.fragments.get_mut(id) else { return };
        let units: Vec<UnitId> = fragment.lbas().map(|lba| self.slots.take(lba)).collect();
        fragment.units.clone_from(&units);
        let intent = if fragment.is_write() {
            Intent::Write {
                bytes: if fragment.is_zero() {
                    group_bytes(GroupKind::Zero, u64::from(fragment.extent.blocks))
                } else {
                    group_bytes(GroupKind::Write, units.len() as u64)
                },
                ack: if fragment.is_of_stream() {
                    self.core.policy().acknowledges_stream()
                } else {
                    Ack::Policy
                },
                fetch: false,
            }
        } else {
            Intent::Read
        };
        if intent == Intent::Read {
            let hits = units.iter().filter(|&&unit| self.core.is_present(unit)).count() as u64;
            self.counters.hit_blocks += hits;
            self.counters.miss_blocks += units.len() as u64 - hits;
        }
        if self.core.is_recording() {
            for &unit in &units {
                self.core.name(self.now, unit, || self.slots.identity(unit));
            }
        }
        self.core.handle(self.now, Input::Access { request: RequestId(id), intent, units: &units });
    }

    /// The core lets a fragment go on.
    pub(super) fn execute_fragment(&mut self, id: u64, access: Access, observed: Lsn) {
        // Whoever only made sure that blocks are known as present has no fragment.
        let Some(fragment) = self.fragments.get(id) else { return };
        match fragment.work {
            Work::Prefetch => {
                let asked = fragment.asked;
                self.fragments.remove(id);
                self.fragment_done(asked, Ok(()));
            }
            Work::Read { .. } | Work::Edges { .. } => self.execute_read(id, observed),
            Work::Write { .. } | Work::Zero { .. } => self.execute_write(id, access, observed),
        }
    }

    /// The core refuses a fragment.
    pub(super) fn refused(&mut self, id: u64, refusal: Refusal) {
        let Some(fragment) = self.fragments.get(id) else { return };
        if refusal == Refusal::Stopped && !fragment.is_write() {
            return self.read_around(id);
        }
        let error = match refusal {
            Refusal::Full | Refusal::Stale => RequestError::NoSpace,
            Refusal::Busy => RequestError::Busy,
            Refusal::Unavailable | Refusal::Denied | Refusal::Stopped => RequestError::Io,
        };
        self.abandon(id, error);
    }
}
