//! Streaming the summaries of records out of retained segments.

use crate::chain::Chain;
use crate::disk::Disk;
use crate::error::{Error, Position};
use crate::format::SegmentHeader;
use crate::store::{Segment, read_file, segment_name};
use crate::summary::{self, Builder, Cursor, Summarise};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a start needs of one write group's record, borrowed from the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary<'a> {
    /// The group's number.
    pub lsn: u64,
    /// When it was appended, nanoseconds since the Unix epoch.
    pub stamp_ns: u64,
    /// Its ordering domain.
    pub domain: u16,
    /// Bytes of its payload.
    pub payload_bytes: u32,
    /// What [`crate::Options::summarise`] took from the payload.
    pub summary: &'a [u8],
    /// Where the payload lies: see [`crate::Journal::segment_reader`].
    pub at: Position,
}

/// Summaries in order. A sealed segment's own is read where it has one that holds, else the segment.
#[derive(Debug)]
pub struct Summaries {
    disk: Arc<dyn Disk>,
    segments: VecDeque<Segment>,
    summarise: Summarise,
    from: u64,
    number: u64,
    body: Vec<u8>,
    cursor: Cursor,
}

impl Summaries {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        mut segments: VecDeque<Segment>,
        summarise: Summarise,
        from: u64,
    ) -> Self {
        segments.retain(|s| s.next_lsn > from && s.next_lsn > s.first_lsn);
        Self {
            disk,
            segments,
            summarise,
            from,
            number: 0,
            body: Vec::new(),
            cursor: Cursor::default(),
        }
    }

    /// The next record's summary, or `None` after the last.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] where the journal was damaged since it was opened.
    pub fn advance(&mut self) -> Result<Option<Summary<'_>>, Error> {
        let entry = loop {
            match self.cursor.advance(&self.body) {
                Some(entry) if entry.lsn >= self.from => break entry,
                Some(_) => {}
                None => {
                    let Some(segment) = self.segments.pop_front() else { return Ok(None) };
                    self.enter(&segment)?;
                }
            }
        };
        Ok(Some(Summary {
            lsn: entry.lsn,
            stamp_ns: entry.stamp_ns,
            domain: entry.domain,
            payload_bytes: entry.payload_bytes,
            summary: &self.body[entry.from..entry.to],
            at: Position { segment: self.number, offset: entry.payload_at },
        }))
    }

    fn enter(&mut self, segment: &Segment) -> Result<(), Error> {
        (self.number, self.cursor) = (segment.number, Cursor::default());
        if let Some(trailer) = &segment.summary
            && summary::read_body(
                &*self.disk,
                segment.number,
                segment.file_bytes,
                trailer,
                &mut self.body,
            )?
        {
            return Ok(());
        }
        self.summarise_whole(segment)
    }

    fn summarise_whole(&mut self, segment: &Segment) -> Result<(), Error> {
        let (number, mut bytes) = (segment.number, Vec::new());
        read_file(&*self.disk, &segment_name(number), &mut bytes)?;
        let header = SegmentHeader::decode(&bytes).ok().filter(|header| header.number == number);
        let header =
            header.ok_or_else(|| Error::corrupt(number, 0, "its header cannot be read"))?;
        let mut chain = Chain::begin(&header);
        let mut builder = Builder::new(Some(self.summarise));
        let mut offset = header.data_start();
        bytes.truncate(segment.end as usize);
        while offset < segment.end {
            let Some(batch) = chain.follow(&bytes, offset as usize) else {
                return Err(Error::corrupt(number, offset, "a batch cannot be read"));
            };
            builder.push(offset, &batch.header, batch.payload);
            offset = batch.end as u64;
        }
        self.body = builder.into_body();
        Ok(())
    }
}
