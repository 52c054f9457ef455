//! Taking requests: each is cut into fragments, and answered once all of them are done.

use super::Volume;
use super::fragment::{Fragment, Merge, Work};
use super::requests::{Kind, Rest};
use crate::block::{BLOCK, Extent, Lba};
use crate::request::{Request, RequestError};
use destage_core::Time;
use destage_engine::Drive;
use destage_record::{Asked, What};

impl Volume {
    /// Takes a request. Exactly one reply with this tag follows.
    pub fn submit(&mut self, now: Time, tag: u64, request: Request) {
        self.now = self.now.max(now);
        if let Err(error) = self.check(&request) {
            return self.requests.fail(tag, error);
        }
        self.record(&request);
        match request {
            Request::Read { offset, len } => self.submit_read(tag, offset, len),
            Request::Write { offset, data, fua } => self.submit_write(tag, offset, data, fua),
            Request::Zero { offset, len, fua, punch } => {
                self.submit_zero(tag, offset, len, fua, punch);
            }
            Request::Flush => self.submit_flush(tag),
            Request::Status { offset, len } => self.submit_status(tag, offset, len),
            Request::Cache { offset, len } => self.submit_cache(tag, offset, len),
        }
        self.pump();
    }

    /// Tells a recording what the client asks for. A flush it sees by what waits for the log.
    fn record(&mut self, request: &Request) {
        let (what, offset, bytes) = match *request {
            Request::Read { offset, len } => (What::Read, offset, u64::from(len)),
            Request::Write { offset, ref data, .. } => (What::Write, offset, data.len() as u64),
            Request::Zero { offset, len, punch: false, .. } => (What::Zero, offset, len),
            Request::Zero { offset, len, punch: true, .. } => (What::Discard, offset, len),
            Request::Cache { offset, len } => (What::Cache, offset, self.cached_at_once(len)),
            Request::Flush | Request::Status { .. } => return,
        };
        self.core.ask(self.now, Asked { what, offset, bytes });
    }

    fn check(&self, request: &Request) -> Result<(), RequestError> {
        let (offset, len) = match request {
            Request::Read { offset, len } => (*offset, u64::from(*len)),
            Request::Write { offset, data, .. } => (*offset, data.len() as u64),
            Request::Zero { offset, len, .. }
            | Request::Status { offset, len }
            | Request::Cache { offset, len } => (*offset, *len),
            Request::Flush => (0, 1),
        };
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.shape.size);
        if !matches!(request, Request::Flush) && (len == 0 || !is_inside) {
            return Err(RequestError::Invalid);
        }
        if self.service.is_closing() {
            return Err(RequestError::Stopping);
        }
        let is_look = matches!(request, Request::Read { .. } | Request::Status { .. });
        if self.service.is_stopped() && !is_look {
            return Err(RequestError::Io);
        }
        if self.service.has_lost_log(self.core.policy())
            && (request.is_write() || request.is_flush())
        {
            return Err(RequestError::Io);
        }
        Ok(())
    }

    fn submit_read(&mut self, tag: u64, offset: u64, len: u32) {
        let asked = self.requests.begin(tag, Kind::Read, u64::from(len));
        let bytes_max = self.core.policy().limits.sequential_bytes_max;
        let passes_by = self.requests.is_of_long_read(offset, u64::from(len), bytes_max);
        let mut works = Vec::new();
        cut(offset, u64::from(len), self.shape.fragment_blocks_max, |extent, skip, len, at| {
            works.push((extent, Work::Read { skip, len, at, passes_by }));
        });
        self.begin(asked, works);
    }

    fn submit_write(&mut self, tag: u64, offset: u64, data: Vec<u8>, fua: bool) {
        let asked = self.requests.begin(tag, Kind::Write { fua }, data.len() as u64);
        self.log.rhythm.wrote();
        let mut works = Vec::new();
        let len = data.len() as u64;
        let passes_by = self.is_of_long_write(offset, len);
        let mut data = Some(data);
        let size = self.shape.size;
        cut(offset, len, self.shape.write_blocks_max, |extent, skip, len, at| {
            let bytes = extent.bytes() as usize;
            if len == bytes && at == 0 && data.as_ref().is_some_and(|data| data.len() == len) {
                let data = data.take().unwrap_or_default();
                works.push((extent, Work::Write { data, merge: None, passes_by }));
                return;
            }
            let mut whole = vec![0; bytes];
            if let Some(data) = &data {
                whole[skip..skip + len].copy_from_slice(&data[at..at + len]);
            }
            // What lies behind the volume's end is zeros and needs no reading.
            let is_last = extent.first.offset() + (skip + len) as u64 == size;
            let tail = if is_last { 0 } else { bytes - skip - len };
            let merge = Merge::of(skip, tail);
            works.push((extent, Work::Write { data: whole, merge, passes_by }));
        });
        self.begin(asked, works);
    }

    fn is_of_long_write(&mut self, offset: u64, len: u64) -> bool {
        let bytes_max = self.core.policy().limits.sequential_bytes_max;
        self.requests.is_of_long_write(offset, len, bytes_max)
    }

    fn submit_zero(&mut self, tag: u64, offset: u64, len: u64, fua: bool, punch: bool) {
        let asked = self.requests.begin(tag, Kind::Write { fua }, 0);
        let passes_by = self.is_of_long_write(offset, len);
        let mut works = Vec::new();
        let end = offset + len;
        let is_end = end == self.shape.size;
        let whole_from = Lba(offset.div_ceil(BLOCK as u64));
        let whole_to = if is_end { Lba(end.div_ceil(BLOCK as u64)) } else { Lba::of(end) };
        let edge = |first: Lba, from: u64, to: u64| {
            let head = (from - first.offset()) as usize;
            let tail = BLOCK - (to - first.offset()) as usize;
            let merge = Merge::of(head, if to == self.shape.size { 0 } else { tail });
            let work = Work::Write { data: vec![0; BLOCK], merge, passes_by };
            (Extent { first, blocks: 1 }, work)
        };
        if Lba::of(offset) < whole_from {
            works.push(edge(Lba::of(offset), offset, end.min(whole_from.offset())));
        }
        self.requests.set_rest(asked, Rest { from: whole_from, to: whole_to, punch });
        works.extend(self.requests.next_of_rest(asked, self.shape.zero_blocks_max));
        // A range inside one block has been dealt with as its head.
        if !is_end && whole_to >= whole_from && whole_to.offset() < end {
            works.push(edge(whole_to, whole_to.offset(), end));
        }
        self.begin(asked, works);
    }

    /// One more fragment of each request that zeroes more than a fragment holds. Others come between two of them, and the time
    /// that one call takes stays bounded.
    pub(super) fn go_on(&mut self) {
        for asked in self.requests.take_rests() {
            let next = self.requests.next_of_rest(asked, self.shape.zero_blocks_max);
            let Some((extent, work)) = next else { continue };
            let id = self.part_id(asked);
            self.enter(id, Fragment::new(asked, extent, work));
        }
    }

    fn submit_cache(&mut self, tag: u64, offset: u64, len: u64) {
        let asked = self.requests.begin(tag, Kind::Cache, 0);
        let mut works = Vec::new();
        cut(offset, self.cached_at_once(len), self.shape.fragment_blocks_max, |extent, _, _, _| {
            works.push((extent, Work::Prefetch));
        });
        self.begin(asked, works);
    }

    /// More than the cache holds would only push out what came first.
    fn cached_at_once(&self, len: u64) -> u64 {
        len.min(u64::from(self.slots.index().slots() / 2) * BLOCK as u64).max(1)
    }

    fn submit_status(&mut self, tag: u64, offset: u64, len: u64) {
        let asked = self.requests.begin(tag, Kind::Status, 0);
        self.begin_status(asked, offset, len);
    }

    fn submit_flush(&mut self, tag: u64) {
        let asked = self.requests.begin(tag, Kind::Flush, 0);
        self.log.rhythm.flushed();
        self.make_durable(asked, self.last());
    }

    fn begin(&mut self, asked: u32, works: Vec<(Extent, Work)>) {
        self.requests.expect_fragments(asked, works.len());
        for (extent, work) in works {
            let id = self.part_id(asked);
            let fragment = Fragment::new(asked, extent, work);
            self.enter(id, fragment);
        }
    }
}

/// Cuts a range into extents of at most so many blocks. Each comes with the bytes of its first block that the range
/// leaves out, the bytes of the range in it, and how many of the range's bytes come before.
fn cut(
    offset: u64,
    len: u64,
    blocks_max: u32,
    mut fragment: impl FnMut(Extent, usize, usize, usize),
) {
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let first = Lba::of(at);
        let to = end.min(first.offset() + u64::from(blocks_max) * BLOCK as u64);
        let blocks = to.div_ceil(BLOCK as u64) - first.0;
        let extent = Extent { first, blocks: blocks as u32 };
        let skip = (at - first.offset()) as usize;
        fragment(extent, skip, (to - at) as usize, (at - offset) as usize);
        at = to;
    }
}
