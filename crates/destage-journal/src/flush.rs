//! The write path: what [`crate::Journal::take`] hands over, carried out on any thread.

use crate::disk::DiskFile;
use crate::error::{Error, Position};
use crate::format::{
    BATCH_HEADER, BatchHeader, FLAG_CLOSE, FLAG_FOLLOWED, FLAG_SKIP, PAGE, SECTOR, SegmentHeader,
    padded, seed,
};
use crate::store::{Segment, Stamps, Store, Way};
use crate::summary::Builder;
use crate::upkeep::Upkeep;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Records on their way to the medium: owned, so that it can run on any thread while further records are appended.
/// Hand it back by [`crate::Journal::give_back`] whether it failed or not.
#[derive(Debug)]
#[must_use = "the records reach the medium when it runs"]
pub struct Flush {
    pub(crate) writer: Box<Writer>,
    pub(crate) buffer: Buffer,
    /// How many of the batches have been written.
    done: usize,
}

/// Batches in memory, each behind room for its header and padded to whole sectors.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    pub(crate) bytes: Vec<u8>,
    pub(crate) batches: Vec<BatchMeta>,
}

#[derive(Debug)]
pub(crate) struct BatchMeta {
    /// Where it lies in the buffer; the end without padding.
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) records: u32,
    pub(crate) first_lsn: u64,
    pub(crate) stamps: Stamps,
    pub(crate) flags: u64,
    /// The catalog in force from this batch on, if it is another one.
    pub(crate) catalog: Option<Arc<[u8]>>,
}

/// Where a batch lies that a flush has written. Its groups are `first_lsn` to `first_lsn + records - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenBatch {
    /// Its first group.
    pub first_lsn: u64,
    /// How many groups it holds.
    pub records: u32,
    /// Where it starts.
    pub at: Position,
}

impl WrittenBatch {
    /// Where the payload lies for which [`crate::Journal::append`] returned this offset.
    pub fn payload(&self, offset_in_batch: u32) -> Position {
        Position { offset: self.at.offset + u64::from(offset_in_batch), ..self.at }
    }
}

/// Where the journal stands on the medium. There is one, in the journal or in its flush.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) store: Arc<Store>,
    pub(crate) upkeep: Upkeep,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) number: u64,
    pub(crate) capacity: u64,
    pub(crate) offset: u64,
    pub(crate) incarnation: u64,
    pub(crate) sequence: u64,
    pub(crate) next_lsn: u64,
    /// Every group up to this one is durable.
    pub(crate) durable: u64,
    /// The highest durable mark that is itself durable.
    pub(crate) marked: u64,
    pub(crate) unsynced: bool,
    /// How many writes there have been, so that one who makes them durable later knows whether there were further ones.
    pub(crate) writes: u64,
    pub(crate) catalog: Arc<[u8]>,
    /// Of the segment being written.
    pub(crate) summary: Builder,
    /// What the flush under way, or the last one, has written.
    pub(crate) written: Vec<WrittenBatch>,
}

impl Writer {
    /// Whether it needs no further segment for these batches, as far as can be told beforehand.
    pub(crate) fn has_room_for(&self, buffer: &Buffer) -> bool {
        let listed = buffer.batches.iter().map(|batch| u64::from(batch.records)).sum::<u64>();
        // What a summary says of a record seldom takes more than a page.
        let need = buffer.bytes.len() as u64 + (listed + 1) * PAGE as u64;
        buffer.batches.iter().all(|batch| batch.catalog.is_none())
            && self.offset + need <= self.usable()
    }
}

impl Flush {
    pub(crate) fn new(mut writer: Box<Writer>, buffer: Buffer) -> Self {
        writer.written.clear();
        Self { writer, buffer, done: 0 }
    }

    /// Writes the records and, with `sync`, makes them durable. Returns the newest group that is durable (with `sync`)
    /// or written (without). An empty flush with `sync` makes earlier writes durable or, if they are, writes a mark that
    /// says so: recovery can then tell damage at the journal's end from a torn tail.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Full`] if there is no space for a further segment: may be run again, nothing is lost.
    /// [`crate::ErrorKind::Fenced`] for any other failure: nothing is written any more, by this flush or a later one.
    pub fn run(&mut self, sync: bool) -> Result<u64, Error> {
        self.write_all()?;
        let idle = self.buffer.batches.is_empty();
        if !sync {
            return Ok(self.writer.next_lsn - 1);
        }
        if self.writer.unsynced {
            self.writer.sync()?;
        } else if idle && self.writer.marked < self.writer.durable {
            self.writer.mark_idle()?;
        }
        Ok(self.writer.durable)
    }

    fn write_all(&mut self) -> Result<(), Error> {
        self.writer.store.check_fence()?;
        while self.done < self.buffer.batches.len() {
            self.done += self.writer.write(&mut self.buffer, self.done)?;
        }
        Ok(())
    }

    /// Makes everything durable and says that nothing follows.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        self.write_all()?;
        if self.writer.unsynced {
            self.writer.sync()?;
        }
        self.writer.mark(FLAG_CLOSE)
    }

    /// Bytes to write.
    pub fn len(&self) -> usize {
        self.buffer.bytes.len()
    }

    /// Whether there are no records to write.
    pub fn is_empty(&self) -> bool {
        self.buffer.batches.is_empty()
    }

    /// The writer, and what it has not written.
    pub(crate) fn into_parts(self) -> (Box<Writer>, Buffer) {
        let Self { writer, mut buffer, done } = self;
        buffer.drop_first(done);
        (writer, buffer)
    }
}

impl Buffer {
    /// Forgets its first batches, which have been written.
    pub(crate) fn drop_first(&mut self, count: usize) {
        let cut = self.batches.get(count).map_or(self.bytes.len(), |batch| batch.start);
        self.bytes.drain(..cut);
        self.batches.drain(..count);
        for batch in &mut self.batches {
            batch.start -= cut;
            batch.end -= cut;
        }
    }
}

impl Writer {
    /// Writes as many batches from `from` on as one write takes. Returns how many.
    fn write(&mut self, buffer: &mut Buffer, from: usize) -> Result<usize, Error> {
        let mut count = self.fitting(buffer, from);
        if count == 0 {
            let catalog = buffer.batches[from].catalog.clone();
            self.roll(catalog.unwrap_or_else(|| self.catalog.clone()))?;
            buffer.batches[from].catalog = None;
            count = self.fitting(buffer, from);
            if count == 0 {
                self.summary.give_up();
                count = self.fitting(buffer, from);
                assert!(count > 0, "a batch fits a segment");
            }
        }
        let at = Position { segment: self.number, offset: self.offset };
        let (end, stamps) = self.seal_run(buffer, from, count);
        let Buffer { bytes, batches } = buffer;
        let start = batches[from].start;
        let last = from + count == batches.len();
        let filled = if last { self.fill_page(bytes, start, end) } else { end };
        self.put(&bytes[start..filled], (end - start) as u64, stamps)?;
        self.written.extend(batches[from..from + count].iter().map(|batch| WrittenBatch {
            first_lsn: batch.first_lsn,
            records: batch.records,
            at: Position { offset: at.offset + (batch.start - start) as u64, ..at },
        }));
        Ok(count)
    }

    /// How many batches from `from` on go into the segment with one write; those are in its summary from then on.
    pub(crate) fn fitting(&mut self, buffer: &Buffer, from: usize) -> usize {
        let Buffer { bytes, batches } = buffer;
        let start = batches[from].start;
        let fits = |batch: &&BatchMeta| batch.catalog.is_none() && self.takes(bytes, batch, start);
        batches[from..].iter().take_while(fits).count()
    }

    /// Seals batches for one write. Returns where it ends in the buffer, padding included, and when its records were made.
    pub(crate) fn seal_run(
        &mut self,
        buffer: &mut Buffer,
        from: usize,
        count: usize,
    ) -> (usize, Stamps) {
        let Buffer { bytes, batches } = buffer;
        let run = &batches[from..from + count];
        let mut stamps = Stamps::default();
        for batch in run {
            self.seal(batch, bytes);
            stamps.join(batch.stamps);
        }
        (run[0].start + padded(run[count - 1].end - run[0].start), stamps)
    }

    /// Whether the segment has room for a batch and for what its summary says of it, which it does from then on. `start` is
    /// where the batches that are written together with it begin in the buffer.
    fn takes(&mut self, bytes: &[u8], batch: &BatchMeta, start: usize) -> bool {
        let listed = self.summary.len();
        let at = self.offset + (batch.start - start) as u64;
        let payload = &bytes[batch.start + BATCH_HEADER..batch.end];
        self.summary.list(at, batch.first_lsn, batch.records, payload);
        let fits = self.offset + padded(batch.end - start) as u64 <= self.usable();
        if !fits {
            self.summary.cut(listed);
        }
        fits
    }

    /// Extends the last write by zeros to the end of its page, which saves reading that page first.
    fn fill_page(&self, bytes: &mut Vec<u8>, start: usize, end: usize) -> usize {
        let to = (self.offset + (end - start) as u64).next_multiple_of(PAGE as u64);
        let filled = start + (to - self.offset) as usize;
        bytes.resize(filled, 0);
        filled
    }

    fn seal(&mut self, batch: &BatchMeta, bytes: &mut [u8]) {
        assert!(
            batch.first_lsn == self.next_lsn
                || (batch.flags & FLAG_SKIP != 0 && batch.first_lsn > self.next_lsn),
            "batches follow one another"
        );
        let header = BatchHeader {
            payload_len: (batch.end - batch.start - BATCH_HEADER) as u32,
            records: batch.records,
            incarnation: self.incarnation,
            sequence: self.sequence,
            first_lsn: batch.first_lsn,
            durable: self.durable,
            flags: batch.flags,
        };
        header.seal(&mut bytes[batch.start..batch.end], seed(&self.store.uuid));
        self.summary.follow(header.durable, header.flags);
        self.sequence += 1;
        self.next_lsn = header.next_lsn();
    }

    /// Writes sealed batches; `used` bytes of them count, the rest is filling.
    fn put(&mut self, bytes: &[u8], used: u64, stamps: Stamps) -> Result<(), Error> {
        let written = self.file.write_at(self.offset, bytes);
        written.map_err(|e| self.store.fence(&format!("write segment {}", self.number), e))?;
        self.wrote();
        self.offset += used;
        self.store.flying.fetch_sub(used.min(self.store.flying.load(Relaxed)), Relaxed);
        self.store.index().wrote(self.next_lsn, self.offset, stamps);
        Ok(())
    }

    fn wrote(&mut self) {
        self.unsynced = true;
        self.writes += 1;
    }

    /// Takes note of what became durable meanwhile.
    pub(crate) fn reached(&mut self, durable: u64, writes: u64) {
        self.durable = self.durable.max(durable);
        self.unsynced &= self.writes != writes;
    }

    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        self.store.sync_or_fence(&*self.file, self.number, Way::Writer)?;
        self.unsynced = false;
        self.durable = self.next_lsn - 1;
        Ok(())
    }

    /// Up to where batches may fill the segment. What is left is for its summary and for the marks of later starts: a journal
    /// whose medium has no room for a further segment can be opened all the same.
    fn usable(&self) -> u64 {
        let starts = STARTS_BYTES.min(self.capacity / STARTS_DIVISOR);
        self.capacity.saturating_sub(starts + self.summary.room())
    }

    /// As [`Writer::mark`], but never in the room that starts need.
    fn mark_idle(&mut self) -> Result<(), Error> {
        if self.offset >= self.usable() {
            self.roll(self.catalog.clone())?;
        }
        self.mark(0)
    }

    /// Writes a batch without records, durably.
    pub(crate) fn mark(&mut self, flags: u64) -> Result<(), Error> {
        // The last sector is for the mark that the next segment was begun.
        if self.offset + 2 * SECTOR as u64 > self.capacity {
            self.roll(self.catalog.clone())?;
        }
        let mut bytes = vec![0; BATCH_HEADER];
        let batch = BatchMeta {
            start: 0,
            end: BATCH_HEADER,
            records: 0,
            first_lsn: self.next_lsn,
            stamps: Stamps::default(),
            flags: flags & FLAG_CLOSE,
            catalog: None,
        };
        self.seal(&batch, &mut bytes);
        let end = padded(BATCH_HEADER);
        bytes.resize(end, 0);
        let filled = self.fill_page(&mut bytes, 0, end);
        self.put(&bytes[..filled], end as u64, Stamps::default())?;
        let marked = self.durable;
        self.sync()?;
        self.marked = marked;
        Ok(())
    }

    /// Goes on in the next segment. Everything before is durable first, and so is the new header: only the newest
    /// segment can have a torn tail.
    fn roll(&mut self, catalog: Arc<[u8]>) -> Result<(), Error> {
        let summary_bytes = self.write_summary()?;
        if self.unsynced {
            self.sync()?;
        }
        let number = self.number + 1;
        let file = self.store.take_prepared(number)?;
        let header = SegmentHeader {
            uuid: self.store.uuid,
            number,
            incarnation: self.incarnation,
            first_lsn: self.next_lsn,
            first_sequence: self.sequence,
            segment_bytes: self.store.segment_bytes,
            catalog_len: catalog.len() as u32,
            catalog_crc: crc32c::crc32c(&catalog),
        };
        let begun =
            file.write_at(0, &header.encode(&catalog)).and_then(|()| self.store.sync(&*file));
        begun.map_err(|e| self.store.fence(&format!("begin segment {number}"), e))?;
        self.mark_followed(summary_bytes)?;
        self.file = file;
        self.number = number;
        self.capacity = self.store.segment_bytes;
        self.offset = header.data_start();
        self.catalog = catalog;
        self.summary.clear();
        self.marked = self.durable;
        self.store.index().begin(Segment {
            number,
            file_bytes: self.capacity,
            first_lsn: self.next_lsn,
            next_lsn: self.next_lsn,
            stamps: Stamps::default(),
            end: self.offset,
            summary: None,
        });
        self.upkeep.prepare(number + 1);
        Ok(())
    }

    /// Says at the end of the segment that is being left that the next one has been begun, which is durable: should that one's
    /// file be gone one day, this is not the journal's end. It has the sequence of the next segment's first batch, so nobody
    /// reads it while that segment is there. Not synced: nothing depends on it but what is noticed.
    fn mark_followed(&self, summary_bytes: u64) -> Result<(), Error> {
        if self.offset + SECTOR as u64 > self.capacity - summary_bytes {
            return Ok(());
        }
        let mut bytes = vec![0; SECTOR];
        let header = BatchHeader {
            payload_len: 0,
            records: 0,
            incarnation: self.incarnation,
            sequence: self.sequence,
            first_lsn: self.next_lsn,
            durable: self.next_lsn - 1,
            flags: FLAG_FOLLOWED,
        };
        header.seal(&mut bytes[..BATCH_HEADER], seed(&self.store.uuid));
        let written = self.file.write_at(self.offset, &bytes);
        written.map_err(|e| self.store.fence(&format!("end segment {}", self.number), e))
    }

    /// Writes the summary of the segment that is being left. Returns how many bytes of its end it takes.
    fn write_summary(&mut self) -> Result<u64, Error> {
        let segment = self.store.index().segments.back().cloned();
        let segment = segment.expect("the segment being written is in the index");
        let seed = seed(&self.store.uuid);
        let sealed = self.summary.seal(seed, &segment, self.incarnation, self.sequence);
        let Some(bytes) = sealed else { return Ok(0) };
        let written = self.file.write_at(self.capacity - bytes.len() as u64, &bytes);
        written.map_err(|e| self.store.fence(&format!("summarise segment {}", self.number), e))?;
        self.wrote();
        Ok(bytes.len() as u64)
    }
}

/// Room at a segment's end for the marks of later starts, one sector each, and at most this share of a segment.
const STARTS_BYTES: u64 = 16 << 10;
const STARTS_DIVISOR: u64 = 16;
