//! Reading: each block from where its newest bytes are, never from the origin while they are dirty.

use super::Volume;
use super::fragment::{Gather, Work};
use super::job::{FetchPurpose, Place, ReadItem, Work as JobWork};
use super::overlay::Bytes;
use crate::block::{BLOCK, Extent};
use crate::origin::OriginIoError;
use crate::request::RequestError;
use destage_core::{Input, Lsn, UnitId};

/// Where a block's bytes are.
enum Source {
    Zeros,
    Memory(super::overlay::Shared, usize),
    Device(Place, u32),
    /// Nowhere: it is to be fetched again.
    Lost,
}

impl Volume {
    /// A fragment's blocks are present.
    pub(super) fn execute_read(&mut self, id: u64, observed: Lsn) {
        let Some(fragment) = self.fragments.get(id) else { return };
        let (asked, units) = (fragment.asked, fragment.units.clone());
        self.requests.note_lsn(asked, observed);
        self.note_zeros(asked, &units);
        let mut bytes = vec![0; units.len() * BLOCK];
        let mut items = Vec::new();
        for (index, &unit) in units.iter().enumerate() {
            let block = &mut bytes[index * BLOCK..(index + 1) * BLOCK];
            match self.source(unit) {
                Source::Zeros => {}
                Source::Memory(data, at) => block.copy_from_slice(&data[at..at + BLOCK]),
                Source::Device(place, crc) => {
                    items.push(ReadItem { index: index as u32, unit, place, crc });
                }
                Source::Lost => {
                    self.core.handle(self.now, Input::Invalidate { unit });
                    return self.begin_again(id);
                }
            }
        }
        if items.is_empty() {
            return self.gathered(id, bytes);
        }
        items.iter().for_each(|item| self.pin(item));
        let gather = self.id();
        self.fragments.gather(gather, Gather { fragment: id, bytes });
        self.jobs.push(JobWork::Read { gather, items });
    }

    /// The core does not know of zeros: what a read sees of them counts as seen.
    fn note_zeros(&mut self, asked: u32, units: &[UnitId]) {
        if self.overlay.zeroed_blocks() == 0 {
            return;
        }
        let seen = units.iter().filter_map(|&unit| self.overlay.zeroed(self.slots.lba(unit)));
        if let Some(lsn) = seen.max() {
            self.requests.note_lsn(asked, lsn);
        }
    }

    fn source(&mut self, unit: UnitId) -> Source {
        if let Some(version) = self.overlay.newest(self.slots.lba(unit), unit) {
            return match self.overlay.bytes(version) {
                Bytes::Zero { .. } => Source::Zeros,
                Bytes::Memory { data, at, .. } => Source::Memory(data, at),
                Bytes::Log { at, crc } => match self.log.journal.segment_reader(at.segment) {
                    Ok(file) => {
                        let place = Place::Log { lsn: version.lsn, file, offset: at.offset };
                        Source::Device(place, crc)
                    }
                    Err(_) => Source::Lost,
                },
            };
        }
        if let Some(loaded) = self.slots.loaded(unit) {
            return Source::Memory(loaded.data.clone(), loaded.at);
        }
        self.slots.crc(unit).map_or(Source::Lost, |crc| Source::Device(Place::Slot, crc))
    }

    fn pin(&mut self, item: &ReadItem) {
        self.slots.pin(item.unit);
        if let Place::Log { lsn, .. } = item.place {
            self.log.pin(lsn);
        }
    }

    fn unpin(&mut self, item: &ReadItem) {
        self.slots.unpin(item.unit);
        if let Place::Log { lsn, .. } = item.place {
            self.log.unpin(lsn);
        }
    }

    /// The cache device gave blocks, or something else than was written there.
    pub(super) fn blocks_read(
        &mut self,
        gather: u64,
        items: &[ReadItem],
        blocks: Vec<Option<Vec<u8>>>,
    ) {
        let Some(mut state) = self.fragments.take_gather(gather) else { return };
        let mut is_whole = true;
        for (item, block) in items.iter().zip(blocks) {
            let Some(block) = block else {
                is_whole = false;
                self.block_lost(item);
                continue;
            };
            let at = item.index as usize * BLOCK;
            state.bytes[at..at + BLOCK].copy_from_slice(&block);
        }
        items.iter().for_each(|item| self.unpin(item));
        if is_whole {
            self.gathered(state.fragment, state.bytes)
        } else {
            self.begin_again(state.fragment)
        }
    }

    /// A block is not where it should be. A clean one is fetched again; of a dirty one there is nothing else.
    fn block_lost(&mut self, item: &ReadItem) {
        match item.place {
            Place::Slot if self.slots.crc(item.unit) == Some(item.crc) => {
                self.counters.slot_errors += 1;
                self.drop_cached(item.unit);
            }
            Place::Slot => {}
            Place::Log { lsn, .. } => {
                self.counters.log_read_errors += 1;
                tracing::error!(lsn = lsn.0, "a block of this write cannot be read from the log");
            }
        }
    }

    /// The cached copy of a clean block is not to be used any more.
    pub(super) fn drop_cached(&mut self, unit: UnitId) {
        if !self.overlay.is_written(unit) {
            self.slots.set_undefined(unit);
            self.core.handle(self.now, Input::Invalidate { unit });
        }
    }

    /// A fragment asks for its blocks once more.
    fn begin_again(&mut self, id: u64) {
        let Some(fragment) = self.fragments.get_mut(id) else { return };
        fragment.tries += 1;
        if self.service.is_stopped() {
            return self.read_around(id);
        }
        if fragment.tries > TRIES_MAX {
            return self.abandon(id, RequestError::Io);
        }
        self.fragments.start_again(id);
    }

    /// A fragment has the bytes of its blocks.
    fn gathered(&mut self, id: u64, bytes: Vec<u8>) {
        let Some(fragment) = self.fragments.remove(id) else { return };
        match fragment.work {
            Work::Read { skip, len, at, .. } => {
                self.requests.deliver(fragment.asked, at, bytes, skip, len);
                self.fragment_done(fragment.asked, Ok(()));
            }
            Work::Edges { writer } => self.merge(writer, &bytes),
            _ => unreachable!("only reads gather bytes"),
        }
    }

    /// Completes the ends of a write by what is there; `edges` holds its first and its last block, or the only one.
    fn merge(&mut self, writer: u64, edges: &[u8]) {
        let Some(fragment) = self.fragments.get_mut(writer) else { return };
        let Work::Write { data, merge, .. } = &mut fragment.work else { return };
        if let Some(merge) = merge.take() {
            data[..merge.head].copy_from_slice(&edges[..merge.head]);
            let (to, from) = (data.len() - merge.tail, edges.len() - merge.tail);
            data[to..].copy_from_slice(&edges[from..]);
        }
        self.fragments.start(writer);
    }

    /// Whether any block of an extent has undecided changes.
    pub(super) fn is_dirty(&self, extent: Extent) -> bool {
        self.overlay.is_zeroed(extent)
            || self.slots.within(extent).into_iter().any(|unit| self.overlay.is_written(unit))
    }

    /// Reads past a cache that has stopped, where the origin is known to hold the newest bytes.
    pub(super) fn read_around(&mut self, id: u64) {
        let Some(fragment) = self.fragments.get(id) else { return };
        let extent = fragment.extent;
        if self.is_dirty(extent) || matches!(fragment.work, Work::Edges { .. }) {
            return self.abandon(id, RequestError::Io);
        }
        let gather = self.id();
        self.fragments.gather(gather, Gather { fragment: id, bytes: Vec::new() });
        let purpose = FetchPurpose::Around { gather };
        self.jobs.push(JobWork::Fetch { extent, purpose });
    }

    /// The origin answered a read past the cache.
    pub(super) fn read_around_done(&mut self, gather: u64, result: Result<Vec<u8>, OriginIoError>) {
        let Some(state) = self.fragments.take_gather(gather) else { return };
        match result {
            Ok(bytes) if matches!(self.fragments.get(state.fragment), Some(fragment) if matches!(fragment.work, Work::Prefetch)) =>
            {
                drop(bytes);
                if let Some(fragment) = self.fragments.remove(state.fragment) {
                    self.fragment_done(fragment.asked, Ok(()));
                }
            }
            Ok(bytes) => {
                self.counters.passed_blocks += (bytes.len() / BLOCK) as u64;
                self.gathered(state.fragment, bytes);
            }
            Err(error) => {
                self.counters.note_origin_error(&error.message);
                if let Some(fragment) = self.fragments.get_mut(state.fragment)
                    && let Work::Read { passes_by, .. } = &mut fragment.work
                    && std::mem::take(passes_by)
                    && !self.service.is_stopped()
                {
                    // By the usual way it is asked again for as long as reads are patient.
                    return self.fragments.start(state.fragment);
                }
                self.abandon(state.fragment, RequestError::Io);
            }
        }
    }
}

/// How often a fragment asks for its blocks before it fails. Each time the cache device had lost one.
const TRIES_MAX: u32 = 4;
