//! Writing: into the log, or through to the origin.

use super::control::NOBODY;
use super::fragment::Work;
use super::job::{ThroughJob, Work as JobWork};
use super::overlay::LoggedGroup;
use super::{DOMAIN, Volume};
use crate::block::{BLOCK, Extent};
use crate::cache::record::{GroupHeader, GroupKind};
use crate::origin::OriginIoError;
use crate::request::RequestError;
use destage_core::consistency::Ordered;
use destage_core::{Access, Input, Intent, Lsn, Order, RequestId, Span, UnitId};
use std::sync::Arc;

impl Volume {
    /// The core admits a write.
    pub(super) fn execute_write(&mut self, id: u64, access: Access, observed: Lsn) {
        let Some(extent) = self.fragments.get(id).map(|fragment| fragment.extent) else { return };
        let is_direct = self.core.policy().waits_for_origin()
            && observed == Lsn::ZERO
            && !self.is_dirty(extent);
        let Some(fragment) = self.fragments.get_mut(id) else { return };
        let passes_by = fragment.is_of_stream();
        let is_unsafe = passes_by && self.write_through.takes_streams();
        if is_unsafe || access != Access::Back && is_direct {
            return self.write_through(id);
        }
        let (asked, units) = (fragment.asked, std::mem::take(&mut fragment.units));
        let (kind, data) = match &mut fragment.work {
            Work::Write { data, .. } => (GroupKind::Write, std::mem::take(data)),
            Work::Zero { punch: true } => (GroupKind::Trim, Vec::new()),
            _ => (GroupKind::Zero, Vec::new()),
        };
        let extents = vec![extent];
        let group = NewGroup { kind, extents, units, data, continues: false, passes_by };
        self.counters.bypassed_blocks += if passes_by { u64::from(extent.blocks) } else { 0 };
        let lsn = self.log_parts(group, extent, access);
        self.requests.note_lsn(asked, lsn);
        if access == Access::Back {
            self.fragment_logged(id, Ok(()));
        } else {
            self.fragments.settle(lsn, id);
        }
    }

    /// Logs a fragment of a write, as several groups if it is longer than one may be; the last one's number.
    fn log_parts(&mut self, mut group: NewGroup, extent: Extent, access: Access) -> Lsn {
        let blocks_max = self.shape.fragment_blocks_max as usize;
        let mut first = extent.first;
        while group.units.len() > blocks_max {
            let rest = NewGroup {
                units: group.units.split_off(blocks_max),
                data: group.data.split_off(blocks_max * BLOCK),
                ..group
            };
            let part = Extent { first, blocks: blocks_max as u32 };
            (group.extents, group.continues) = (vec![part], true);
            self.log(group, access);
            first = part.end();
            let blocks = rest.units.len() as u32;
            group = NewGroup { extents: vec![Extent { first, blocks }], ..rest };
        }
        self.log(group, access)
    }

    /// Appends a write group to the log and tells the core.
    pub(super) fn log(&mut self, group: NewGroup, access: Access) -> Lsn {
        let NewGroup { kind, extents, units, data, continues, passes_by } = group;
        let lsn = self.core.next_lsn();
        self.upkeep.logged(lsn, kind);
        let header = GroupHeader { kind, level: self.core.level(), extents, continues };
        let bytes = group_bytes(kind, header.blocks());
        let mut payload = std::mem::take(&mut self.log.payload);
        payload.clear();
        let mut crcs = Vec::with_capacity(units.len());
        header.encode(&data, &mut payload, &mut crcs);
        let stamp = self.stamp();
        self.put_in_order(Ordered {
            lsn,
            stamp,
            bytes: (units.len() * BLOCK) as u64,
            is_mark: kind == GroupKind::Mark,
            continues,
        });
        let is_atomic = self.core.policy().order == Order::Domain;
        for &unit in &units {
            self.fetches.outdate(unit);
            if let Some(crc) = self.slots.crc(unit).filter(|_| is_atomic) {
                self.batches.note_pre_image(unit, crc);
            }
            self.slots.set_undefined(unit);
        }
        let sizes: Vec<(UnitId, u32)> = units.iter().map(|&unit| (unit, BLOCK as u32)).collect();
        let absent: Vec<UnitId> =
            units.iter().copied().filter(|&unit| !self.core.is_present(unit)).collect();
        let zeroed = if kind == GroupKind::Write { Vec::new() } else { header.extents.clone() };
        let mut group = LoggedGroup {
            kind,
            level: header.level,
            extents: header.extents,
            units,
            crcs,
            data: (kind == GroupKind::Write).then(|| Arc::new(data)),
            offset_in_batch: 0,
            at: None,
            is_decided: false,
            continues,
            passes_by,
            written_at: self.now,
        };
        let told = destage_engine::Append {
            domains: &[DOMAIN],
            units: &sizes,
            bytes,
            journal_bytes: payload.len() as u32,
            access,
            continues,
            builds_on: &[],
        };
        let (journal, overlay) = (&mut self.log.journal, &mut self.overlay);
        destage_engine::write(&mut self.core, self.now, &told, |lsn| {
            group.offset_in_batch = journal.append(lsn.0, stamp, DOMAIN.0, &payload);
            overlay.push(lsn, group);
        });
        self.log.payload = payload;
        self.make_present(&absent);
        zeroed.into_iter().for_each(|extent| self.drop_zeroed(extent));
        lsn
    }

    /// Blocks that read as zeros need neither their cached copies nor what is on its way from the origin.
    fn drop_zeroed(&mut self, extent: Extent) {
        for unit in self.slots.within(extent) {
            self.batches.forget_pre_image(unit);
            self.fetches.outdate(unit);
            self.drop_cached(unit);
        }
    }

    /// Tells the core that blocks may be read although they were never fetched: their dirty version is whole.
    pub(super) fn make_present(&mut self, units: &[UnitId]) {
        if units.is_empty() {
            return;
        }
        let request = RequestId(self.id());
        self.core.handle(self.now, Input::Access { request, intent: Intent::Read, units });
    }

    /// A fragment of a write is done with.
    fn fragment_logged(&mut self, id: u64, result: Result<(), RequestError>) {
        if let Some(fragment) = self.fragments.remove(id) {
            self.fragment_done(fragment.asked, result);
        }
    }

    /// The origin has decided a write that waited for it.
    pub(super) fn settled(&mut self, lsn: Lsn, applied: bool) {
        if let Some(id) = self.fragments.settled(lsn) {
            self.fragment_logged(id, if applied { Ok(()) } else { Err(RequestError::Io) });
        }
    }

    /// Carries a write to the origin without a group.
    fn write_through(&mut self, id: u64) {
        let Some(fragment) = self.fragments.get_mut(id) else { return };
        let (data, punch) = match &mut fragment.work {
            Work::Write { data, .. } => (Some(Arc::new(std::mem::take(data))), false),
            Work::Zero { punch } => (None, *punch),
            _ => unreachable!("only writes are written through"),
        };
        let (units, extent, is_kept) =
            (fragment.units.clone(), fragment.extent, !fragment.is_of_stream());
        if data.is_none() {
            self.drop_zeroed(extent);
        }
        let job = ThroughJob { fragment: id, extent, units: units.clone(), data, punch, is_kept };
        self.write_through.begin();
        self.counters.bypassed_blocks += if is_kept { 0 } else { units.len() as u64 };
        for &unit in &units {
            self.fetches.outdate(unit);
            self.slots.set_undefined(unit);
            self.slots.pin(unit);
        }
        self.jobs.push(JobWork::Through(job));
    }

    /// A write has reached the origin, or not.
    pub(super) fn through_done(
        &mut self,
        job: ThroughJob,
        result: Result<(), OriginIoError>,
        is_cached: bool,
        losses: u64,
    ) {
        self.write_through.end(losses);
        let sizes: Vec<(UnitId, u32)> =
            job.units.iter().map(|&unit| (unit, BLOCK as u32)).collect();
        let fault = result.as_ref().map_err(|error| error.kind.fault()).map(|_| ());
        let access = if is_cached { Access::Through } else { Access::Around };
        if let (true, Ok(()), Some(data)) = (is_cached, &fault, &job.data) {
            for (&unit, block) in job.units.iter().zip(data.chunks_exact(BLOCK)) {
                self.slots.set_clean(unit, crc32c::crc32c(block));
            }
            self.upkeep.changed(self.now);
        }
        if job.data.is_none() {
            // Reads may have fetched meanwhile what was there before.
            self.drop_zeroed(job.extent);
        }
        self.core.handle(self.now, Input::Through { units: &sizes, access, result: fault });
        job.units.iter().for_each(|&unit| self.slots.unpin(unit));
        let reply = result.map_err(|error| {
            self.counters.note_origin_error(&error.message);
            RequestError::Io
        });
        if reply.is_ok()
            && let Some(fragment) = self.fragments.get(job.fragment)
        {
            self.requests.note_through(fragment.asked);
        }
        self.fragment_logged(job.fragment, reply);
    }

    /// The origin was flushed for a request, or not.
    pub(super) fn flush_done(
        &mut self,
        asked: u32,
        result: Result<(), OriginIoError>,
        losses: u64,
    ) {
        let is_lost =
            self.write_through.end_flush(result.is_ok(), losses, self.service.is_closing());
        if let Err(error) = &result {
            self.counters.note_origin_error(&error.message);
        } else if is_lost {
            self.counters.note_origin_error("the origin may have lost writes before a flush");
        }
        if is_lost {
            self.batches.doubt_pre_images();
        }
        if asked == NOBODY && result.is_err() {
            self.service.try_again_at(self.now + FLUSH_RETRY);
        }
        self.origin_flushed(asked, result.is_ok() && !is_lost);
    }
}

/// A write group that has no number yet.
#[derive(Debug)]
pub(super) struct NewGroup {
    pub(super) kind: GroupKind,
    pub(super) extents: Vec<Extent>,
    /// The handles of a write's blocks.
    pub(super) units: Vec<UnitId>,
    /// Their bytes.
    pub(super) data: Vec<u8>,
    /// The next group is another part of the same request.
    pub(super) continues: bool,
    /// It belongs to a long sequential write.
    pub(super) passes_by: bool,
}

/// What a group counts for against the limits: the bytes of a write; of zeros what keeping and sending them costs.
pub(super) fn group_bytes(kind: GroupKind, blocks: u64) -> u32 {
    let block = if kind == GroupKind::Write { BLOCK as u64 } else { ZERO_BLOCK_BYTES };
    u32::try_from(blocks * block).unwrap_or(u32::MAX)
}

/// A change of the policy that waits for a flush of the origin tries again so long after one that failed.
const FLUSH_RETRY: Span = Span::from_secs(1);
/// What a block of zeros counts for, bytes.
const ZERO_BLOCK_BYTES: u64 = 64;
