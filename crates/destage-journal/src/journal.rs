//! The journal as its owner uses it: appending in memory, handing flushes over, reclaiming.

use crate::disk::{Disk, DiskFile};
use crate::durable::Direct;
use crate::error::Error;
use crate::flush::{BatchMeta, Buffer, Flush, Writer, WrittenBatch};
use crate::format::{BATCH_HEADER, FLAG_SKIP, RECORD_HEADER, SegmentHeader, padded, push_record};
use crate::options::{Options, check_catalog};
use crate::parcel::Handed;
use crate::read::Records;
use crate::recover::{Progress, Recovery, scan};
use crate::start;
use crate::store::{Index, Segment, Stamps, Store, Way, segment_name};
use crate::sync::Sync;
use crate::upkeep::{Upkeep, Worker};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The durable log of write groups. One owner appends; one [`Flush`] at a time runs on any thread.
///
/// # Examples
/// ```
/// # use destage_journal::{DirDisk, Journal, Options};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("journal");
/// let disk = std::sync::Arc::new(DirDisk::open(path)?);
/// let (mut journal, recovery) = Journal::open(disk, Options::default())?;
/// assert!(recovery.created);
/// journal.append(1, 1_700_000_000_000_000_000, 0, b"a write group");
/// let mut flush = journal.take();
/// let durable = flush.run(true);
/// journal.give_back(flush);
/// assert_eq!(durable?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Journal {
    pub(crate) store: Arc<Store>,
    pub(crate) upkeep: Upkeep,
    uuid: String,
    incarnation: u64,
    /// `None` while a flush has it.
    pub(crate) writer: Option<Box<Writer>>,
    pub(crate) buffer: Buffer,
    /// Whether the last batch of the buffer takes further records.
    open: bool,
    /// Emptied buffers keep their memory for the next flush.
    recycled: Buffer,
    batch_bytes_max: usize,
    payload_bytes_max: usize,
    last: u64,
    skip: bool,
    catalog: Arc<[u8]>,
    catalog_pending: bool,
    /// What is handed over to another place, too, if anything is.
    handed: Option<Handed>,
    pub(crate) written: u64,
    pub(crate) durable: u64,
    /// The newest group that a [`Sync`] or a durable write has made durable, and how many writes.
    pub(crate) reached: (u64, u64),
    mark_due: bool,
    decided: u64,
    retain: Duration,
    journal_bytes_max: u64,
    /// Handles that [`Journal::segment_reader`] gave out.
    readers: BTreeMap<u64, Arc<dyn DiskFile>>,
    pub(crate) direct: Direct,
    /// The handle of [`Journal::sync_beside`], and of which segment.
    beside: Option<(u64, Arc<dyn DiskFile>)>,
    /// Dropped last: waits for the thread.
    _worker: Option<Worker>,
}

/// What the journal holds, for status pages and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalStatus {
    /// Segments that hold or may hold records.
    pub segments: usize,
    /// Bytes of all files, prepared and spare ones included.
    pub bytes: u64,
    /// Bytes of the segments that hold undecided groups, the one being written included.
    pub pinned_bytes: u64,
    /// The limit above which decided segments are not retained.
    pub journal_bytes_max: u64,
    /// The oldest group still readable; `last_lsn + 1` if none is.
    pub oldest_lsn: u64,
    /// When that was written, as [`Journal::append`] was told; `None` without one, or where the start has read a summary of its
    /// segment only.
    pub oldest_stamp_ns: Option<u64>,
    /// The oldest group that is not decided, as [`Journal::reclaim`] was last told.
    pub oldest_needed_lsn: u64,
    /// The newest group appended.
    pub last_lsn: u64,
    /// The newest group known written.
    pub written_lsn: u64,
    /// The newest group known durable.
    pub durable_lsn: u64,
    /// Bytes appended and not yet taken by a flush.
    pub buffered_bytes: usize,
    /// Durable writes that there may be at once; 0 where what is written is synced.
    pub durable_writes: usize,
    /// Whether a write or sync has failed.
    pub fenced: bool,
}

impl Journal {
    /// Opens the journal on this disk, creating it if there is none.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] names the segment and offset of damage to what was known durable;
    /// [`crate::ErrorKind::Invalid`] for options out of range or another format version; [`crate::ErrorKind::Full`],
    /// [`crate::ErrorKind::Retry`] and [`crate::ErrorKind::Fenced`] for the medium's trouble.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<(Self, Recovery), Error> {
        Self::open_with(disk, options, &mut |_| {})
    }

    /// As [`Journal::open`], telling how far the reading has come.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_with(
        disk: Arc<dyn Disk>,
        mut options: Options,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, Recovery), Error> {
        options.validate()?;
        let found = scan(&*disk, options.summarise, progress)?;
        let begun = match found {
            Some(scan) => start::resume(disk, scan, &options)?,
            None => start::create(disk, &options)?,
        };
        let start::Begun { writer, worker, recovery } = begun;
        let segment_bytes = options.segment_bytes as usize;
        let mut journal = Self {
            store: writer.store.clone(),
            upkeep: writer.upkeep.clone(),
            uuid: uuid::Uuid::from_bytes(writer.store.uuid).to_string(),
            incarnation: writer.incarnation,
            buffer: Buffer::default(),
            open: false,
            recycled: Buffer::default(),
            batch_bytes_max: BATCH_BYTES_MAX.min(segment_bytes / 4),
            payload_bytes_max: segment_bytes / 2 - RECORD_HEADER - BATCH_HEADER,
            last: writer.next_lsn - 1,
            skip: false,
            handed: None,
            catalog: writer.catalog.clone(),
            catalog_pending: false,
            written: writer.next_lsn - 1,
            durable: writer.durable,
            reached: (0, 0),
            mark_due: false,
            decided: 0,
            retain: options.retain,
            journal_bytes_max: options.journal_bytes_max,
            readers: BTreeMap::new(),
            direct: Direct::default(),
            beside: None,
            writer: Some(Box::new(writer)),
            _worker: worker,
        };
        if !options.catalog.is_empty() {
            journal.set_catalog(&options.catalog)?;
        }
        Ok((journal, recovery))
    }

    /// Names the journal for ever, in the usual hyphenated form.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Counts the openings of this journal, from 1.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The newest group appended, flushed or not.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The longest payload that [`Journal::append`] takes: half a segment.
    pub fn payload_bytes_max(&self) -> usize {
        self.payload_bytes_max
    }

    /// Adds a group's record to the buffer. Touches memory only. Returns how many bytes after the start of its batch the
    /// payload begins: with [`Journal::written_batches`], that tells later where it lies.
    ///
    /// # Panics
    /// If `lsn` is not the number after [`Journal::last`], or the payload exceeds [`Journal::payload_bytes_max`].
    #[inline]
    pub fn append(&mut self, lsn: u64, stamp_ns: u64, domain: u16, payload: &[u8]) -> u32 {
        assert_eq!(lsn, self.last + 1, "groups are numbered without gaps");
        assert!(payload.len() <= self.payload_bytes_max, "the payload exceeds half a segment");
        let need = RECORD_HEADER + payload.len();
        if !self.open || self.open_len() + need > self.batch_bytes_max {
            self.begin_batch(lsn);
        }
        if let Some(handed) = &mut self.handed {
            handed.push(lsn, stamp_ns, domain, payload);
        }
        let offset = self.open_len() + RECORD_HEADER;
        push_record(&mut self.buffer.bytes, stamp_ns, domain, payload);
        let batch = self.buffer.batches.last_mut().expect("a batch is open");
        batch.records += 1;
        batch.stamps.note(stamp_ns);
        self.last = lsn;
        offset as u32
    }

    pub(crate) fn handed(&self) -> Option<&Handed> {
        self.handed.as_ref()
    }

    pub(crate) fn handed_mut(&mut self) -> &mut Option<Handed> {
        &mut self.handed
    }

    pub(crate) fn catalog(&self) -> &[u8] {
        &self.catalog
    }

    fn open_len(&self) -> usize {
        let start = self.buffer.batches.last().map_or(0, |b| b.start);
        self.buffer.bytes.len() - start
    }

    #[cold]
    fn begin_batch(&mut self, first_lsn: u64) {
        self.end_batch();
        let start = self.buffer.bytes.len();
        self.buffer.bytes.resize(start + BATCH_HEADER, 0);
        let catalog = self.catalog_pending.then(|| self.catalog.clone());
        self.catalog_pending = false;
        self.buffer.batches.push(BatchMeta {
            start,
            end: 0,
            records: 0,
            first_lsn,
            stamps: Stamps::default(),
            flags: if std::mem::take(&mut self.skip) { FLAG_SKIP } else { 0 },
            catalog,
        });
        self.open = true;
    }

    pub(crate) fn end_batch(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let bytes = &mut self.buffer.bytes;
        let batch = self.buffer.batches.last_mut().expect("a batch is open");
        batch.end = bytes.len();
        bytes.resize(batch.start + padded(batch.end - batch.start), 0);
    }

    /// Bytes appended and not yet taken.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.bytes.len()
    }

    /// Whether writing what is buffered, without a sync, takes no longer than handing its bytes to the system: it needs no
    /// further segment, as far as can be told beforehand. False while a flush is out.
    pub fn stays_in_segment(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.has_room_for(&self.buffer))
    }

    /// Hands over what is buffered. May be empty: running it then only syncs.
    ///
    /// # Panics
    /// If the flush before has not been given back, or a durable write.
    pub fn take(&mut self) -> Flush {
        assert!(self.direct.under_way == 0, "durable writes are given back first");
        let writer = self.writer.take().expect("one flush at a time: give the last one back first");
        self.end_batch();
        let buffer = std::mem::replace(&mut self.buffer, std::mem::take(&mut self.recycled));
        self.store.flying.store(buffer.bytes.len() as u64, Relaxed);
        Flush::new(writer, buffer)
    }

    /// Takes a flush back after it ran, well or not. Batches that it did not write ([`crate::ErrorKind::Full`], or it never
    /// ran) are first in the next flush.
    pub fn give_back(&mut self, flush: Flush) {
        assert!(self.writer.is_none(), "this journal has no flush under way");
        let (writer, mut buffer) = flush.into_parts();
        self.store.flying.store(0, Relaxed);
        self.written = writer.next_lsn - 1;
        self.writer = Some(writer);
        self.open_direct();
        self.note_durable();
        if !buffer.batches.is_empty() {
            self.prepend(buffer);
            return;
        }
        // A burst must not keep its memory for ever.
        buffer.bytes.shrink_to(BUFFER_KEPT_BYTES);
        self.recycled = buffer;
    }

    /// What has been written, to be made durable while further flushes write. `None` if all of it is durable, or while a
    /// flush is out.
    pub fn sync(&self) -> Option<Sync> {
        let writer = self.unsynced()?;
        Some(self.sync_through(writer.file.clone(), Way::Writer, writer))
    }

    /// The same, to run while one of [`Journal::sync`] does: through a handle of its own, since the system tells each handle
    /// of a failed write once. Several of these run one after the other.
    ///
    /// # Errors
    /// If the segment cannot be opened once more, for which the journal is none the worse.
    pub fn sync_beside(&mut self) -> Result<Option<Sync>, Error> {
        let Some(writer) = self.unsynced() else { return Ok(None) };
        let number = writer.number;
        let file = match &self.beside {
            Some((of, file)) if *of == number => file.clone(),
            _ => Arc::from(writer.file.again().map_err(|e| {
                Error::io(format_args!("open {} once more", segment_name(number)), e)
            })?),
        };
        let sync = self.sync_through(file.clone(), Way::Beside, writer);
        self.beside = Some((number, file));
        Ok(Some(sync))
    }

    /// Where the journal stands, if not all that is written is durable.
    fn unsynced(&self) -> Option<&Writer> {
        self.writer.as_deref().filter(|writer| writer.unsynced)
    }

    fn sync_through(&self, file: Arc<dyn DiskFile>, way: Way, writer: &Writer) -> Sync {
        let (upto, writes) = (writer.next_lsn - 1, writer.writes);
        Sync::new(self.store.clone(), file, way, writer.number, upto, writes)
    }

    /// Takes a sync back after it ran, well or not. A flush may be out.
    pub fn synced(&mut self, sync: &Sync) {
        // After a failure nothing is known to be durable that was not before, whatever a later sync says.
        if let Some(reached) = sync.reached().filter(|_| !self.store.is_fenced()) {
            self.reached = self.reached.max(reached);
            self.durable = self.durable.max(self.reached.0);
            self.note_durable();
        }
    }

    pub(crate) fn note_durable(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        let (durable, writes) = self.reached;
        writer.reached(durable, writes);
        self.durable = self.durable.max(writer.durable);
        self.mark_due = writer.unsynced || writer.marked < writer.durable;
    }

    /// Everything up to here is decided, as [`Journal::reclaim`] was last told.
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// The newest group known written, durable or not.
    pub fn written(&self) -> u64 {
        self.written
    }

    fn prepend(&mut self, mut rest: Buffer) {
        let shift = rest.bytes.len();
        rest.bytes.extend_from_slice(&self.buffer.bytes);
        for mut batch in self.buffer.batches.drain(..) {
            batch.start += shift;
            // The open batch has no end yet; it gets one when it is closed.
            batch.end += shift;
            rest.batches.push(batch);
        }
        self.buffer = rest;
    }

    /// The batches that the last flush given back has written, in order, whether or not it synced them or failed after
    /// them. Batches that it did not write come with the next one.
    ///
    /// # Panics
    /// While a flush is out.
    pub fn written_batches(&self) -> &[WrittenBatch] {
        &self.writer.as_ref().expect("the last flush has been given back").written
    }

    /// A handle for reading a segment's bytes at any later time, on any thread, beside the journal's own work. Handles are
    /// kept: asking again is cheap.
    ///
    /// A segment that [`Journal::reclaim`] lets go is written anew under another number, and the handle would show those
    /// bytes. So whoever calls [`Journal::reclaim`] with `decided` guarantees that no read of a group up to `decided` is
    /// under way and none will begin. Payloads should carry a checksum of their own in any case: the journal's covers
    /// whole batches and is not looked at here.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] if the journal holds no such segment (any more).
    pub fn segment_reader(&mut self, number: u64) -> Result<Arc<dyn DiskFile>, Error> {
        if !self.store.index().segments.iter().any(|s| s.number == number) {
            return Err(Error::invalid(format!(
                "segment {number} is not in the journal: its groups are decided and have been reclaimed"
            )));
        }
        if let Some(reader) = self.readers.get(&number) {
            return Ok(reader.clone());
        }
        let name = segment_name(number);
        let file = self.store.disk.open(&name, false);
        let file = file.map_err(|e| Error::io(format_args!("open {name}"), e))?;
        let reader: Arc<dyn DiskFile> = Arc::from(file);
        self.readers.insert(number, reader.clone());
        Ok(reader)
    }

    /// Whether an idle driver should take and run an empty flush: something is not durable yet, or its durability not
    /// marked. Looks at the last flush given back.
    pub fn mark_due(&self) -> bool {
        self.mark_due
    }

    /// Numbering goes on at `lsn` instead of the next number: the origin has decided groups that this journal never knew.
    /// Durable with the next flush that syncs.
    ///
    /// # Panics
    /// If `lsn` is not above [`Journal::last`].
    pub fn skip_to(&mut self, lsn: u64) {
        assert!(lsn > self.last, "numbers are never used twice");
        if lsn == self.last + 1 {
            return;
        }
        self.skip = true;
        self.begin_batch(lsn);
        self.last = lsn - 1;
    }

    /// Sets what explains the records from the next one on. Takes a new segment if it differs from what is in force.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] above a quarter of a segment.
    pub fn set_catalog(&mut self, bytes: &[u8]) -> Result<(), Error> {
        check_catalog(bytes, self.store.segment_bytes)?;
        if *bytes != *self.catalog {
            self.end_batch();
            self.catalog = Arc::from(bytes);
            self.catalog_pending = true;
        }
        Ok(())
    }

    /// Lets go of the segments whose groups are all decided (up to `decided`) and older than the retention, or older than
    /// the newest when the journal exceeds its size. Copies nothing; cheap when there is nothing to do. With a retention of
    /// 0 they go at once. Reads through [`Journal::segment_reader`] must have ended: see there.
    ///
    /// Segments leave from the oldest on, without a gap: a start reads on from the oldest that is there and takes a missing
    /// number for damage. The newest one never leaves, because it says which number comes next.
    pub fn reclaim(&mut self, decided: u64, now_ns: u64) {
        self.decided = self.decided.max(decided);
        // A group may be decided before it is durable, where a policy writes through. If its segment left now and the host died,
        // the journal would begin behind its own end.
        let decided = self.decided.min(self.durable);
        loop {
            let keeps =
                |index: &Index, oldest: &Segment| self.keeps(index, oldest, decided, now_ns);
            let Some(segment) = self.store.index().pop_unless(keeps) else { return };
            self.readers.remove(&segment.number);
            self.upkeep.recycle(segment);
        }
    }

    /// The newest group of the segment that [`Journal::reclaim`] with the same would let go of first, if it would any. Whoever
    /// still needs something of that segment writes it anew, and reclaims when it is durable.
    pub fn due(&self, decided: u64, now_ns: u64) -> Option<u64> {
        let index = self.store.index();
        let oldest = index.segments.front().filter(|_| index.segments.len() > 1)?;
        let decided = decided.max(self.decided).min(self.durable);
        (!self.keeps(&index, oldest, decided, now_ns)).then_some(oldest.next_lsn - 1)
    }

    /// Whether the oldest segment stays.
    fn keeps(&self, index: &Index, oldest: &Segment, decided: u64, now_ns: u64) -> bool {
        let retain_ns = u64::try_from(self.retain.as_nanos()).unwrap_or(u64::MAX);
        let needed = oldest.next_lsn > decided + 1;
        let young = now_ns.saturating_sub(oldest.stamps.max_ns) < retain_ns;
        needed || (young && index.bytes(self.store.segment_bytes) <= self.journal_bytes_max)
    }

    /// Gives up the oldest segment whose groups are all decided, however young, because the disk is full. False if there is
    /// none but the one in use. As for [`Journal::reclaim`], reads must have ended.
    pub fn reclaim_oldest(&mut self) -> bool {
        let decided = self.decided.min(self.durable);
        let popped = self.store.index().pop_unless(|_, oldest| oldest.next_lsn > decided + 1);
        let Some(segment) = popped else { return false };
        self.readers.remove(&segment.number);
        self.upkeep.recycle(segment);
        true
    }

    /// The retained records from `from` to `to`, both included, as far as they are written.
    pub fn read(&self, from: u64, to: u64) -> Records {
        let segments = self.store.index().segments.clone();
        Records::new(self.store.disk.clone(), segments, from, to)
    }

    /// What it holds now.
    pub fn status(&self) -> JournalStatus {
        let index = self.store.index();
        let oldest = index.segments.iter().find(|s| s.next_lsn > s.first_lsn);
        let needed = |s: &&Segment| s.next_lsn > self.decided + 1;
        let last = index.segments.back().map_or(0, |s| s.number);
        JournalStatus {
            segments: index.segments.len(),
            bytes: index.bytes(self.store.segment_bytes),
            pinned_bytes: index
                .segments
                .iter()
                .filter(|s| needed(s) || s.number == last)
                .map(|s| s.file_bytes)
                .sum(),
            journal_bytes_max: self.journal_bytes_max,
            oldest_lsn: oldest.map_or(self.last + 1, |s| s.first_lsn),
            oldest_stamp_ns: oldest.and_then(|s| s.stamps.min_ns),
            oldest_needed_lsn: self.decided + 1,
            last_lsn: self.last,
            written_lsn: self.written,
            durable_lsn: self.durable,
            buffered_bytes: self.buffer.bytes.len(),
            durable_writes: self.durable_writes(),
            fenced: self.store.is_fenced(),
        }
    }

    /// Makes everything durable and marks the journal as closed. Returns the newest group.
    ///
    /// # Errors
    /// As [`Flush::run`]. The journal is then not marked; recovery copes.
    ///
    /// # Panics
    /// If a flush has not been given back.
    pub fn close(mut self) -> Result<u64, Error> {
        self.take().finish()?;
        Ok(self.last)
    }
}

/// A batch is sealed by one checksum; beyond this, another one begins.
const BATCH_BYTES_MAX: usize = 1 << 20;
const BUFFER_KEPT_BYTES: usize = 16 << 20;

/// Holds what the first bytes of a segment say, for a new one.
pub(crate) fn first_header(uuid: [u8; 16], segment_bytes: u64, catalog: &[u8]) -> SegmentHeader {
    SegmentHeader {
        uuid,
        number: 1,
        incarnation: 1,
        first_lsn: 1,
        first_sequence: 1,
        segment_bytes,
        catalog_len: catalog.len() as u32,
        catalog_crc: crc32c::crc32c(catalog),
    }
}
