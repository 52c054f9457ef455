//! Streaming records out of retained segments, one segment in memory at a time.

use crate::chain::Chain;
use crate::disk::Disk;
use crate::error::{Error, Position};
use crate::format::{RecordReader, SegmentHeader};
use crate::recover::Progress;
use crate::store::{Segment, read_file, segment_name};
use std::collections::VecDeque;
use std::sync::Arc;

/// One write group's record, borrowed from the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The group's number.
    pub lsn: u64,
    /// When it was appended, nanoseconds since the Unix epoch.
    pub stamp_ns: u64,
    /// Its ordering domain.
    pub domain: u16,
    /// What it says.
    pub payload: &'a [u8],
    /// Where the payload lies: see [`crate::Journal::segment_reader`].
    pub at: Position,
    /// The catalog that was in force when it was written.
    pub catalog: &'a Arc<[u8]>,
}

/// A [`Record`] of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRecord {
    /// As [`Record::lsn`].
    pub lsn: u64,
    /// As [`Record::stamp_ns`].
    pub stamp_ns: u64,
    /// As [`Record::domain`].
    pub domain: u16,
    /// As [`Record::payload`].
    pub payload: Vec<u8>,
    /// As [`Record::at`].
    pub at: Position,
    /// As [`Record::catalog`].
    pub catalog: Arc<[u8]>,
}

/// Records in order. [`Records::advance`] lends each one without copying; as an iterator it yields owned ones.
#[derive(Debug)]
pub struct Records {
    disk: Arc<dyn Disk>,
    segments: VecDeque<Segment>,
    segments_total: usize,
    from: u64,
    to: u64,
    /// The segment being read, up to its end.
    bytes: Vec<u8>,
    number: u64,
    chain: Option<Chain>,
    catalog: Arc<[u8]>,
    /// Where the next batch starts.
    next_batch: usize,
    /// Where the next record starts, where its batch's payload ends, how many are left in it.
    at: usize,
    batch_end: usize,
    left: u32,
    lsn: u64,
}

impl Records {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        mut segments: VecDeque<Segment>,
        from: u64,
        to: u64,
    ) -> Self {
        segments.retain(|s| s.next_lsn > from && s.first_lsn <= to && s.next_lsn > s.first_lsn);
        Self {
            disk,
            segments_total: segments.len(),
            segments,
            from,
            to,
            bytes: Vec::new(),
            number: 0,
            chain: None,
            catalog: Arc::default(),
            next_batch: 0,
            at: 0,
            batch_end: 0,
            left: 0,
            lsn: 0,
        }
    }

    /// How far the reader has come; the segment being read counts as read.
    pub fn progress(&self) -> Progress {
        let total = self.segments_total as u64;
        Progress { segments: total - self.segments.len() as u64, segments_total: total }
    }

    /// The next record, or `None` after the last.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] where the journal was damaged since it was opened, [`crate::ErrorKind::Invalid`] if
    /// the segment was reclaimed meanwhile.
    pub fn advance(&mut self) -> Result<Option<Record<'_>>, Error> {
        loop {
            if self.left == 0 {
                if !self.enter_batch()? {
                    return Ok(None);
                }
                continue;
            }
            let mut reader = RecordReader::new(&self.bytes[self.at..self.batch_end]);
            let found = reader.read().map(|r| (r.stamp_ns, r.domain, r.payload.len()));
            let (stamp_ns, domain, len) = found.expect("a batch's records were checked with it");
            let end = self.batch_end - reader.rest_len();
            let lsn = self.lsn;
            self.lsn += 1;
            self.left -= 1;
            self.at = end;
            if lsn > self.to {
                self.segments.clear();
                self.left = 0;
                self.next_batch = self.bytes.len();
                return Ok(None);
            }
            if lsn >= self.from {
                let payload = &self.bytes[end - len..end];
                let at = Position { segment: self.number, offset: (end - len) as u64 };
                let catalog = &self.catalog;
                return Ok(Some(Record { lsn, stamp_ns, domain, payload, at, catalog }));
            }
        }
    }

    fn enter_batch(&mut self) -> Result<bool, Error> {
        if self.next_batch >= self.bytes.len() {
            return self.enter_segment();
        }
        let offset = self.next_batch;
        let chain = self.chain.as_mut().expect("a segment has been entered");
        let Some(batch) = chain.follow(&self.bytes, offset) else {
            return Err(Error::corrupt(self.number, offset as u64, "a batch cannot be read"));
        };
        self.left = batch.header.records;
        self.lsn = batch.header.first_lsn;
        self.at = offset + crate::format::BATCH_HEADER;
        self.batch_end = self.at + batch.payload.len();
        self.next_batch = batch.end;
        Ok(true)
    }

    fn enter_segment(&mut self) -> Result<bool, Error> {
        let Some(segment) = self.segments.pop_front() else {
            return Ok(false);
        };
        let number = segment.number;
        let gone = || {
            Error::invalid(format!(
                "segment {number} was reclaimed while its records were being read"
            ))
        };
        let name = segment_name(number);
        match read_file(&*self.disk, &name, &mut self.bytes) {
            Err(_) if !self.disk.exists(&name).unwrap_or(true) => return Err(gone()),
            read => read?,
        }
        let header = SegmentHeader::decode(&self.bytes)
            .map_err(|_| Error::corrupt(number, 0, "its header cannot be read"))?;
        if header.number != number {
            return Err(gone());
        }
        let catalog = header.catalog(&self.bytes);
        let catalog = catalog.ok_or_else(|| {
            Error::corrupt(number, crate::format::CATALOG_OFFSET as u64, "its catalog is broken")
        })?;
        if *catalog != *self.catalog {
            self.catalog = Arc::from(catalog);
        }
        self.bytes.truncate(segment.end as usize);
        self.number = number;
        self.chain = Some(Chain::begin(&header));
        self.next_batch = header.data_start() as usize;
        Ok(true)
    }
}

impl Iterator for Records {
    type Item = Result<OwnedRecord, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = match self.advance() {
            Ok(record) => record?.to_owned(),
            Err(error) => {
                // Nothing sensible follows an error.
                self.segments.clear();
                self.next_batch = self.bytes.len();
                self.left = 0;
                return Some(Err(error));
            }
        };
        Some(Ok(record))
    }
}

impl Record<'_> {
    /// A copy of its own.
    pub fn to_owned(&self) -> OwnedRecord {
        OwnedRecord {
            lsn: self.lsn,
            stamp_ns: self.stamp_ns,
            domain: self.domain,
            payload: self.payload.to_vec(),
            at: self.at,
            catalog: self.catalog.clone(),
        }
    }
}
