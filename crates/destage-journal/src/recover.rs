//! What a start finds: the chain of batches from the oldest segment on, its end, and whether that end is a torn tail or
//! damage.

use crate::chain::{Chain, Tail};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Position};
use crate::format::{
    CATALOG_OFFSET, FLAG_CLOSE, FLAG_FOLLOWED, FORMAT_VERSION, HeaderProblem, PAGE, RecordReader,
    SECTOR, SegmentHeader,
};
use crate::options::Options;
use crate::read::Records;
use crate::store::{FileKind, Segment, Stamps, read_file, segment_name, survey};
use crate::summaries::Summaries;
use crate::summary::{self, Builder, Summarise};
use std::collections::VecDeque;
use std::sync::Arc;

/// What [`crate::Journal::open`] found. Holds no records itself: it streams them.
#[derive(Debug)]
pub struct Recovery {
    /// The oldest retained group; `last_lsn + 1` if there is none.
    pub first_lsn: u64,
    /// The newest group; 0 in a new journal.
    pub last_lsn: u64,
    /// What was cut at the end: written, never known durable.
    pub torn: Option<Torn>,
    /// Whether the previous process closed the journal. True for a new one.
    pub clean_shutdown: bool,
    /// Segments that hold records.
    pub segments: usize,
    /// Whether this start created the journal.
    pub created: bool,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) summarise: Option<Summarise>,
    pub(crate) index: VecDeque<Segment>,
}

/// A torn tail that was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Where the first broken batch started.
    pub at: Position,
    /// Bytes from there to the end of the last batch that could be recognised.
    pub bytes: u64,
}

/// How far a scan or a reader has come, for a progress bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Segments read.
    pub segments: u64,
    /// Segments to read.
    pub segments_total: u64,
}

impl Recovery {
    /// The records from `from` on, in order, with the catalog in force for each.
    pub fn records(&self, from: u64) -> Records {
        Records::new(self.disk.clone(), self.index.clone(), from, self.last_lsn)
    }

    /// The summaries of the records from `from` on, in order, of sealed segments as these tell them themselves.
    ///
    /// # Panics
    /// If the journal was opened without [`crate::Options::summarise`].
    pub fn summaries(&self, from: u64) -> Summaries {
        let summarise = self.summarise.expect("the journal was opened with summaries");
        Summaries::new(self.disk.clone(), self.index.clone(), summarise, from)
    }
}

/// A whole journal, read and found sound.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) uuid: [u8; 16],
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) chain: Chain,
    /// The broken end of the last segment, as offsets.
    pub(crate) torn: Option<(u64, u64)>,
    pub(crate) unproven: Unproven,
    pub(crate) clean: bool,
    pub(crate) catalog: Arc<[u8]>,
    /// Of the last segment.
    pub(crate) summary: Builder,
    /// Segments that were made ready but never begun, ascending.
    pub(crate) ready: Vec<u64>,
}

/// The end of the last segment, of which no mark says that it is durable, as the scan has read it.
///
/// It may be in the system's cache only: after a sync that failed the system takes what it did not write for written. So
/// neither does another sync bring it to the medium, nor would another read surely find it.
#[derive(Debug, Default)]
pub(crate) struct Unproven {
    from: u64,
    bytes: Vec<u8>,
}

impl Scan {
    pub(crate) fn torn(&self) -> Option<Torn> {
        let segment = self.segments.back()?.number;
        let (offset, end) = self.torn?;
        Some(Torn { at: Position { segment, offset }, bytes: end - offset })
    }
}

/// Reads everything, sealed segments by their summaries where they have them and `summarise` is given; `None` if there is no
/// journal.
pub(crate) fn scan(
    disk: &dyn Disk,
    summarise: Option<Summarise>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<Scan>, Error> {
    scan_into(disk, summarise, progress, &mut VecDeque::new())
}

/// As [`scan`]; after an error, `sound` holds what lies before the damage.
pub(crate) fn scan_into(
    disk: &dyn Disk,
    summarise: Option<Summarise>,
    progress: &mut dyn FnMut(Progress),
    sound: &mut VecDeque<Segment>,
) -> Result<Option<Scan>, Error> {
    let numbers: Vec<u64> = survey(disk)?
        .into_iter()
        .filter_map(|(kind, _)| if let FileKind::Segment(n) = kind { Some(n) } else { None })
        .collect();
    let Some(&first) = numbers.first() else {
        return Ok(None);
    };
    for (&number, expected) in numbers.iter().zip(first..) {
        if number != expected {
            return Err(Error::corrupt(expected, 0, "the segment's file is missing"));
        }
    }
    let (mut heads, mut ready) = begun(disk, &numbers)?;
    let total = heads.len() as u64;
    let mut walk = Walk::new(&heads[0], summarise);
    let mut bytes = Vec::new();
    drop_half_begun(disk, &mut heads, &mut ready)?;
    for (i, head) in heads.iter().enumerate() {
        let next = heads.get(i + 1);
        let is_told = match next.filter(|_| summarise.is_some()) {
            Some(next) => walk.summarised(disk, head, next, &mut bytes)?,
            None => false,
        };
        if !is_told {
            read_file(disk, &segment_name(head.number), &mut bytes)?;
            let walked = walk.segment(head, next, &mut bytes);
            sound.clone_from(&walk.segments);
            walked?;
        }
        progress(Progress { segments: i as u64 + 1, segments_total: total });
    }
    for &number in &ready {
        read_file(disk, &segment_name(number), &mut bytes)?;
        // A file gets its name when all of it is durable, in whole pages.
        let is_whole =
            bytes.len().is_multiple_of(PAGE) && bytes.len() as u64 >= Options::SEGMENT_BYTES_MIN;
        if !is_whole {
            return Err(Error::corrupt(number, bytes.len() as u64, CUT));
        }
        // A header is durable before its segment's first batch: batches without it are no torn tail.
        if walk.chain.any_at_or_after(&bytes) {
            return Err(Error::corrupt(number, 0, "its header or catalog is broken"));
        }
    }
    Ok(Some(Scan { ready, ..walk.finish(heads[0].uuid) }))
}

/// A crash while the newest segment was being begun may leave its header whole and its catalog torn. Then it was not
/// begun; batches in it would prove the opposite, and are looked for with those of the other ready segments.
fn drop_half_begun(
    disk: &dyn Disk,
    heads: &mut Vec<SegmentHeader>,
    ready: &mut Vec<u64>,
) -> Result<(), Error> {
    let [.., _, last] = heads.as_slice() else {
        // The first segment gets its name when its header and catalog are durable.
        return Ok(());
    };
    let number = last.number;
    let mut bytes = Vec::new();
    read_file(disk, &segment_name(number), &mut bytes)?;
    if (bytes.len() as u64) < last.segment_bytes {
        return Err(Error::corrupt(number, bytes.len() as u64, CUT));
    }
    if last.catalog(&bytes).is_none() {
        heads.pop();
        ready.insert(0, number);
    }
    Ok(())
}

/// The headers of the segments that were begun, and the numbers of those after them.
fn begun(disk: &dyn Disk, numbers: &[u64]) -> Result<(Vec<SegmentHeader>, Vec<u64>), Error> {
    let mut heads = Vec::with_capacity(numbers.len());
    for &number in numbers {
        heads.push(read_header(disk, number)?.filter(|head| head.number == number));
    }
    let count = heads.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    let ready = numbers[count.max(1)..].to_vec();
    let mut found: Vec<SegmentHeader> = Vec::with_capacity(count);
    for (&number, head) in numbers.iter().zip(heads).take(count.max(1)) {
        let Some(head) = head else {
            return Err(Error::corrupt(number, 0, "its header is broken"));
        };
        if found.first().is_some_and(|first| first.uuid != head.uuid) {
            return Err(Error::corrupt(number, 0, "it belongs to another journal"));
        }
        found.push(head);
    }
    Ok((found, ready))
}

pub(crate) fn read_header(disk: &dyn Disk, number: u64) -> Result<Option<SegmentHeader>, Error> {
    let name = segment_name(number);
    let mut sector = [0; SECTOR];
    let read = disk.open(&name, false).and_then(|file| file.read_at(0, &mut sector));
    let n = read.map_err(|e| Error::io(format_args!("read {name}"), e))?;
    match SegmentHeader::decode(&sector[..n]) {
        Ok(header) => Ok(Some(header)),
        Err(HeaderProblem::Broken) => Ok(None),
        Err(HeaderProblem::Version(found)) => Err(Error::invalid(format!(
            "{name} has journal format {found}, this build reads format {FORMAT_VERSION}: use the build \
             that wrote it to drain the journal first"
        ))),
    }
}

const CUT: &str =
    "the file is shorter than it was made: it has been cut, or bytes were taken out of it";

/// Follows the chain from segment to segment.
struct Walk {
    chain: Chain,
    segments: VecDeque<Segment>,
    torn: Option<(u64, u64)>,
    unproven: Unproven,
    clean: bool,
    /// Whether the last batch says that a further segment was begun.
    followed: bool,
    catalog: Arc<[u8]>,
    summary: Builder,
    /// Of each batch of the last segment: the next group's number, and where the batch ends.
    ends: Vec<(u64, usize)>,
}

impl Walk {
    fn new(first: &SegmentHeader, summarise: Option<Summarise>) -> Self {
        Self {
            chain: Chain::begin(first),
            segments: VecDeque::new(),
            torn: None,
            unproven: Unproven::default(),
            clean: false,
            followed: false,
            catalog: Arc::default(),
            summary: Builder::new(summarise),
            ends: Vec::new(),
        }
    }

    /// Passes a sealed segment by its summary. False if it has none that tells all of it, or anything else is unusual about it,
    /// and it is to be read whole.
    fn summarised(
        &mut self,
        disk: &dyn Disk,
        head: &SegmentHeader,
        next: &SegmentHeader,
        bytes: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let Some(trailer) = summary::read(disk, head, next, bytes)? else {
            return Ok(false);
        };
        bytes.resize(head.data_start().min(head.segment_bytes) as usize, 0);
        let name = segment_name(head.number);
        let read = disk.open(&name, false).and_then(|file| file.read_at(0, bytes));
        bytes.truncate(read.map_err(|e| Error::io(format_args!("read {name}"), e))?);
        let Some(catalog) = head.catalog(bytes).filter(|_| self.chain.admits(head)) else {
            return Ok(false);
        };
        if *catalog != *self.catalog {
            self.catalog = Arc::from(catalog);
        }
        trailer.follow(&mut self.chain);
        self.clean = trailer.flags & FLAG_CLOSE != 0;
        self.segments.push_back(Segment {
            number: head.number,
            file_bytes: head.segment_bytes,
            first_lsn: head.first_lsn,
            next_lsn: self.chain.next_lsn,
            stamps: Stamps { min_ns: None, max_ns: trailer.stamp_max_ns },
            end: trailer.end,
            summary: Some(trailer),
        });
        Ok(true)
    }

    fn segment(
        &mut self,
        head: &SegmentHeader,
        next: Option<&SegmentHeader>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let number = head.number;
        if !self.chain.admits(head) {
            return Err(Error::corrupt(number, 0, "it does not follow the segment before it"));
        }
        self.chain.incarnation = head.incarnation;
        let Some(catalog) = head.catalog(bytes) else {
            return Err(Error::corrupt(number, CATALOG_OFFSET as u64, "its catalog is broken"));
        };
        if *catalog != *self.catalog {
            self.catalog = Arc::from(catalog);
        }
        if (bytes.len() as u64) < head.segment_bytes || head.data_start() > head.segment_bytes {
            return Err(Error::corrupt(number, bytes.len() as u64, CUT));
        }
        bytes.truncate(head.segment_bytes as usize);
        let (end, stamps) = self.batches(head, next, bytes);
        self.segments.push_back(Segment {
            number,
            file_bytes: head.segment_bytes,
            first_lsn: head.first_lsn,
            next_lsn: self.chain.next_lsn,
            stamps,
            end: end as u64,
            summary: None,
        });
        match next {
            None if self.followed => {
                let what = "it had been begun, as the segment before it says: its file is missing or broken at its start";
                Err(Error::corrupt(number + 1, 0, what))
            }
            None => {
                self.unproven = self.unproven_of(bytes, end);
                self.tail(number, bytes, end)
            }
            // Where the next segment starts, this one had ended: what lies behind was cut long ago.
            Some(next) if self.chain.sequence == next.first_sequence => {
                // But for what a later start wrote: it had not found the next segment begun.
                let mut later = self.chain;
                later.incarnation = next.incarnation.saturating_add(1);
                if later.follow(bytes, end).is_some() {
                    let what =
                        "its header is of an earlier start than the end of the segment before it";
                    return Err(Error::corrupt(next.number, 0, what));
                }
                Ok(())
            }
            Some(_) => {
                let what = "a batch before the next segment's start is broken or missing";
                Err(Error::corrupt(number, end as u64, what))
            }
        }
    }

    /// Follows the batches of one segment. Returns where they end and when their records were written.
    fn batches(
        &mut self,
        head: &SegmentHeader,
        next: Option<&SegmentHeader>,
        bytes: &[u8],
    ) -> (usize, Stamps) {
        let mut offset = head.data_start() as usize;
        let mut stamps = Stamps::default();
        while next.is_none_or(|n| self.chain.sequence < n.first_sequence) {
            let Some(batch) = self.chain.follow(bytes, offset) else {
                break;
            };
            let mut records = RecordReader::new(batch.payload);
            while let Some(record) = records.read() {
                stamps.note(record.stamp_ns);
            }
            self.clean = batch.header.flags & FLAG_CLOSE != 0;
            self.followed = batch.header.flags & FLAG_FOLLOWED != 0;
            if next.is_none() {
                self.summary.push(offset as u64, &batch.header, batch.payload);
                self.ends.push((batch.header.next_lsn(), batch.end));
            }
            offset = batch.end;
        }
        (offset, stamps)
    }

    /// What lies behind the batch with the newest group that a mark calls durable. If that is in an earlier segment, not
    /// even the last one's header is proven.
    fn unproven_of(&self, bytes: &[u8], end: usize) -> Unproven {
        let durable = |&&(next_lsn, _): &&(u64, usize)| next_lsn > self.chain.durable;
        let first = self.segments.back().map_or(0, |segment| segment.first_lsn);
        let proven = self.ends.iter().find(durable).filter(|_| self.chain.durable >= first);
        let from = proven.map_or(0, |&(_, end)| end);
        let unproven = bytes.get(from..end.min(bytes.len())).unwrap_or_default();
        Unproven { from: from as u64, bytes: unproven.to_vec() }
    }

    fn tail(&mut self, number: u64, bytes: &[u8], end: usize) -> Result<(), Error> {
        match self.chain.judge(bytes, end) {
            Tail::Clean => Ok(()),
            Tail::Torn { end: torn_end } => {
                self.clean = false;
                self.torn = Some((end as u64, torn_end as u64));
                Ok(())
            }
            Tail::Damaged => Err(Error::corrupt(
                number,
                end as u64,
                "a batch is broken that a later one says was durable, or what follows it has moved",
            )),
        }
    }

    fn finish(self, uuid: [u8; 16]) -> Scan {
        Scan {
            uuid,
            segments: self.segments,
            chain: self.chain,
            torn: self.torn,
            unproven: self.unproven,
            clean: self.clean,
            catalog: self.catalog,
            summary: self.summary,
            ready: Vec::new(),
        }
    }
}

/// Makes what was read durable and the cut final. What no mark calls durable is written again first, since a sync alone
/// does not bring it to the medium if an earlier one has failed; and what the cut leaves behind is overwritten, so that it
/// never looks new again.
pub(crate) fn settle(
    file: &dyn DiskFile,
    unproven: &Unproven,
    torn: Option<(u64, u64)>,
) -> std::io::Result<()> {
    if !unproven.bytes.is_empty() {
        file.write_at(unproven.from, &unproven.bytes)?;
    }
    if let Some((from, to)) = torn {
        file.write_at(from, &vec![0; (to - from) as usize])?;
    }
    file.sync_data()
}
