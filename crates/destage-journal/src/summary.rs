//! What a sealed segment says of itself at its end, so that a start need not read it whole.
//!
//! A summary lists the segment's records with what [`Options::summarise`](crate::Options::summarise) took from each payload.
//! It lies behind the batches, at the end of the file, and is only a shorter way of reading them: nothing depends on its
//! being there. One that is lost, torn, of the file's earlier life or of a segment that went on after all is not used, and
//! the segment is read whole.

use crate::chain::Chain;
use crate::disk::Disk;
use crate::error::Error;
use crate::format::{
    BATCH_HEADER, BatchHeader, PAGE, RECORD_HEADER, RecordReader, SegmentHeader, seed, u32_at,
    u64_at,
};
use crate::store::{Segment, segment_name};
use crc32c::{crc32c, crc32c_append};

/// Appends to `out` what a start needs of a payload. May be given any bytes.
pub type Summarise = fn(payload: &[u8], out: &mut Vec<u8>);

/// What stands at the very end of a summarised segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    body_len: u32,
    body_crc: u32,
    number: u64,
    /// Of the last batch.
    incarnation: u64,
    /// Of the first batch of the next segment.
    next_sequence: u64,
    next_lsn: u64,
    /// The highest mark in any of its batches.
    durable: u64,
    /// After the last batch.
    pub(crate) end: u64,
    /// Of the last batch.
    pub(crate) flags: u64,
    pub(crate) stamp_max_ns: u64,
}

/// The summary of the segment that is being written or read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Builder {
    summarise: Option<Summarise>,
    /// It would not fit: this segment gets none.
    given_up: bool,
    body: Vec<u8>,
    /// Of the batches so far.
    durable: u64,
    flags: u64,
}

/// A record as a summary lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) lsn: u64,
    pub(crate) stamp_ns: u64,
    pub(crate) domain: u16,
    pub(crate) payload_bytes: u32,
    /// Where the payload starts in the segment.
    pub(crate) payload_at: u64,
    /// Where its summary lies in the body.
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// Walks a body. Any bytes are safe to pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    at: usize,
    left: u32,
    lsn: u64,
    /// Where the next record starts in the segment.
    record_at: u64,
}

impl Builder {
    pub(crate) fn new(summarise: Option<Summarise>) -> Self {
        Self { summarise, ..Self::default() }
    }

    /// Begins the next segment's.
    pub(crate) fn clear(&mut self) {
        self.body.clear();
        (self.given_up, self.durable, self.flags) = (false, 0, 0);
    }

    /// This segment gets none.
    pub(crate) fn give_up(&mut self) {
        self.body.clear();
        self.given_up = true;
    }

    /// Adds a batch that begins at `at` in the segment, with its records if it has any, and notes it as the last one.
    pub(crate) fn push(&mut self, at: u64, header: &BatchHeader, payload: &[u8]) {
        self.list(at, header.first_lsn, header.records, payload);
        self.follow(header.durable, header.flags);
    }

    /// Notes a batch as the last one, by what its header says.
    pub(crate) fn follow(&mut self, durable: u64, flags: u64) {
        self.durable = self.durable.max(durable);
        self.flags = flags;
    }

    /// Adds the records of a batch that begins at `at` in the segment.
    pub(crate) fn list(&mut self, at: u64, first_lsn: u64, records: u32, payload: &[u8]) {
        let Some(summarise) = self.summarise.filter(|_| !self.given_up && records > 0) else {
            return;
        };
        let body = &mut self.body;
        body.extend_from_slice(&first_lsn.to_le_bytes());
        body.extend_from_slice(&records.to_le_bytes());
        body.extend_from_slice(&(at as u32).to_le_bytes());
        let mut reader = RecordReader::new(payload);
        while let Some(record) = reader.read() {
            body.extend_from_slice(&record.stamp_ns.to_le_bytes());
            body.extend_from_slice(&(record.payload.len() as u32).to_le_bytes());
            body.extend_from_slice(&record.domain.to_le_bytes());
            let length_at = body.len();
            body.extend_from_slice(&[0; 4]);
            summarise(record.payload, body);
            let length = (body.len() - length_at - 4) as u32;
            body[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.body.len()
    }

    /// Takes back what was added beyond this length.
    pub(crate) fn cut(&mut self, len: usize) {
        self.body.truncate(len);
    }

    pub(crate) fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// Bytes that it takes at the segment's end.
    pub(crate) fn room(&self) -> u64 {
        match self.summarise {
            Some(_) if !self.given_up => whole_pages(self.body.len()) as u64,
            _ => 0,
        }
    }

    /// The bytes for the end of the segment that is being left. `None` if there are to be none, or marks of earlier starts
    /// have taken their room.
    pub(crate) fn seal(
        &self,
        seed: u32,
        segment: &Segment,
        incarnation: u64,
        next_sequence: u64,
    ) -> Option<Vec<u8>> {
        let room = self.room();
        if room == 0 || segment.end + room > segment.file_bytes {
            return None;
        }
        let trailer = Trailer {
            body_len: self.body.len() as u32,
            body_crc: crc32c(&self.body),
            number: segment.number,
            incarnation,
            next_sequence,
            next_lsn: segment.next_lsn,
            durable: self.durable,
            end: segment.end,
            flags: self.flags,
            stamp_max_ns: segment.stamps.max_ns,
        };
        let mut bytes = vec![0; room as usize - TRAILER - self.body.len()];
        bytes.extend_from_slice(&self.body);
        bytes.extend_from_slice(&trailer.encode(seed));
        Some(bytes)
    }
}

impl Trailer {
    fn encode(&self, seed: u32) -> [u8; TRAILER] {
        let mut bytes = [0; TRAILER];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.body_crc.to_le_bytes());
        let words = [
            self.number,
            self.incarnation,
            self.next_sequence,
            self.next_lsn,
            self.durable,
            self.end,
            self.flags,
            self.stamp_max_ns,
        ];
        for (place, word) in bytes[16..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c_append(seed, &bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; TRAILER], seed: u32) -> Option<Self> {
        let holds = &bytes[..4] == MAGIC && u32_at(bytes, 4) == crc32c_append(seed, &bytes[8..]);
        holds.then(|| Self {
            body_len: u32_at(bytes, 8),
            body_crc: u32_at(bytes, 12),
            number: u64_at(bytes, 16),
            incarnation: u64_at(bytes, 24),
            next_sequence: u64_at(bytes, 32),
            next_lsn: u64_at(bytes, 40),
            durable: u64_at(bytes, 48),
            end: u64_at(bytes, 56),
            flags: u64_at(bytes, 64),
            stamp_max_ns: u64_at(bytes, 72),
        })
    }

    /// Whether it tells all of the segment `head`, behind which `next` begins. One of the file's earlier life has another
    /// number; of a segment that went on after it was written, another end.
    fn is_of(&self, head: &SegmentHeader, next: &SegmentHeader) -> bool {
        self.number == head.number
            && self.next_sequence == next.first_sequence
            && self.next_lsn == next.first_lsn
            && (head.incarnation..=next.incarnation).contains(&self.incarnation)
            && self.end >= head.data_start()
            && self.end.saturating_add(whole_pages(self.body_len as usize) as u64)
                <= head.segment_bytes
    }

    /// Moves the chain from before the segment to behind it.
    pub(crate) fn follow(&self, chain: &mut Chain) {
        chain.sequence = self.next_sequence;
        chain.incarnation = self.incarnation;
        chain.next_lsn = self.next_lsn;
        chain.durable = chain.durable.max(self.durable);
    }
}

/// Reads a segment's summary into `body`. `None` if it has none that tells all of it.
pub(crate) fn read(
    disk: &dyn Disk,
    head: &SegmentHeader,
    next: &SegmentHeader,
    body: &mut Vec<u8>,
) -> Result<Option<Trailer>, Error> {
    let trailer = read_trailer(disk, head)?.filter(|trailer| trailer.is_of(head, next));
    let Some(trailer) = trailer else { return Ok(None) };
    Ok(read_body(disk, head.number, head.segment_bytes, &trailer, body)?.then_some(trailer))
}

fn read_trailer(disk: &dyn Disk, head: &SegmentHeader) -> Result<Option<Trailer>, Error> {
    let name = segment_name(head.number);
    let mut bytes = [0; TRAILER];
    let read = disk.open(&name, false).and_then(|file| {
        let is_whole = file.len()? >= head.segment_bytes;
        let at = head.segment_bytes.saturating_sub(TRAILER as u64);
        Ok(is_whole && file.read_at(at, &mut bytes)? == TRAILER)
    });
    let is_whole = read.map_err(|e| Error::io(format_args!("read {name}"), e))?;
    Ok(Trailer::decode(&bytes, seed(&head.uuid)).filter(|_| is_whole))
}

/// Reads the body that a trailer tells of; false if it does not hold.
pub(crate) fn read_body(
    disk: &dyn Disk,
    number: u64,
    segment_bytes: u64,
    trailer: &Trailer,
    body: &mut Vec<u8>,
) -> Result<bool, Error> {
    let name = segment_name(number);
    let len = trailer.body_len as usize;
    body.resize(len, 0);
    let at = segment_bytes - (TRAILER + len) as u64;
    let read = disk.open(&name, false).and_then(|file| file.read_at(at, body));
    let read = read.map_err(|e| Error::io(format_args!("read {name}"), e))?;
    Ok(read == len && crc32c(body) == trailer.body_crc && is_sound(body, trailer))
}

/// Whether the body's records can be read, and lead to where the trailer says.
fn is_sound(body: &[u8], trailer: &Trailer) -> bool {
    let mut cursor = Cursor::default();
    let mut next_lsn = 0;
    while let Some(entry) = cursor.advance(body) {
        let end = entry.payload_at + u64::from(entry.payload_bytes);
        if entry.lsn < next_lsn || end > trailer.end {
            return false;
        }
        next_lsn = entry.lsn + 1;
    }
    cursor.at == body.len() && cursor.left == 0 && next_lsn <= trailer.next_lsn
}

impl Cursor {
    pub(crate) fn advance(&mut self, body: &[u8]) -> Option<Entry> {
        while self.left == 0 {
            let batch = body.get(self.at..)?.get(..BATCH)?;
            self.lsn = u64_at(batch, 0);
            self.left = u32_at(batch, 8);
            self.record_at = u64::from(u32_at(batch, 12)) + BATCH_HEADER as u64;
            self.at += BATCH;
        }
        let record = body.get(self.at..)?.get(..RECORD)?;
        let from = self.at + RECORD;
        let to = from.checked_add(u32_at(record, 14) as usize).filter(|&to| to <= body.len())?;
        let entry = Entry {
            lsn: self.lsn,
            stamp_ns: u64_at(record, 0),
            domain: u16::from_le_bytes([record[12], record[13]]),
            payload_bytes: u32_at(record, 8),
            payload_at: self.record_at + RECORD_HEADER as u64,
            from,
            to,
        };
        self.at = to;
        self.left -= 1;
        self.lsn = self.lsn.checked_add(1)?;
        self.record_at = entry.payload_at + u64::from(entry.payload_bytes);
        Some(entry)
    }
}

/// Bytes of a body with its trailer, in whole pages.
fn whole_pages(body_len: usize) -> usize {
    (body_len + TRAILER).next_multiple_of(PAGE)
}

const MAGIC: &[u8; 4] = b"DSTS";
const TRAILER: usize = 80;
/// Of a batch with records: the first one's number, how many, where it starts.
const BATCH: usize = 16;
/// Of a record: stamp, length of its payload, domain, length of what was taken from it, which follows.
const RECORD: usize = 18;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::push_record;
    use crate::store::Stamps;

    fn head(number: u64) -> SegmentHeader {
        SegmentHeader {
            uuid: [7; 16],
            number,
            incarnation: 3,
            first_lsn: 100,
            first_sequence: 50,
            segment_bytes: 1 << 20,
            catalog_len: 0,
            catalog_crc: 0,
        }
    }

    fn after(sequence: u64, next_lsn: u64) -> SegmentHeader {
        SegmentHeader { first_lsn: next_lsn, first_sequence: sequence, ..head(9) }
    }

    fn sealed() -> (Builder, Vec<u8>) {
        let mut builder = Builder::new(Some(|payload, out| out.extend_from_slice(&payload[..1])));
        let mut payload = Vec::new();
        push_record(&mut payload, 1_000, 2, b"first");
        push_record(&mut payload, 1_001, 3, b"second");
        builder.list(5_000, 100, 2, &payload);
        builder.follow(99, 0);
        let segment = Segment {
            number: 8,
            file_bytes: 1 << 20,
            first_lsn: 100,
            next_lsn: 102,
            stamps: Stamps { min_ns: Some(1_000), max_ns: 1_001 },
            end: 8_192,
            summary: None,
        };
        let bytes = builder.seal(seed(&[7; 16]), &segment, 3, 51).unwrap();
        (builder, bytes)
    }

    fn trailer(bytes: &[u8]) -> Option<Trailer> {
        Trailer::decode(bytes.last_chunk().unwrap(), seed(&[7; 16]))
    }

    #[test]
    fn a_summary_tells_each_record_and_where_it_lies() {
        let (builder, bytes) = sealed();
        assert_eq!(bytes.len(), PAGE);
        let mut cursor = Cursor::default();
        let body = &builder.body;
        let entries: Vec<_> = std::iter::from_fn(|| cursor.advance(body)).collect();
        let first = &entries[0];
        assert_eq!(
            (first.lsn, first.stamp_ns, first.domain, first.payload_bytes),
            (100, 1_000, 2, 5)
        );
        assert_eq!((first.payload_at, &body[first.from..first.to]), (5_070, &b"f"[..]));
        assert_eq!((entries[1].lsn, entries[1].payload_at), (101, 5_070 + 5 + 14));
        assert!(is_sound(body, &trailer(&bytes).unwrap()));
    }

    #[test]
    fn a_summary_of_an_earlier_life_or_of_a_segment_that_went_on_is_intact_and_not_used() {
        let (_, bytes) = sealed();
        let trailer = trailer(&bytes).expect("its checksum holds");
        assert!(trailer.is_of(&head(8), &after(51, 102)));
        assert!(!trailer.is_of(&head(108), &after(51, 102)), "the file was recycled");
        assert!(!trailer.is_of(&head(8), &after(52, 102)), "a mark followed");
        assert!(!trailer.is_of(&head(8), &after(52, 103)), "a batch followed");
    }

    /// The summary that `docs/FORMAT.md` shows: of the segment shown there, up to its batch with records.
    fn example() -> Vec<u8> {
        let summarise: Summarise =
            |payload, out| out.extend_from_slice(&payload[..payload.len().min(5)]);
        let mut builder = Builder::new(Some(summarise));
        let mut payload = Vec::new();
        push_record(&mut payload, 1_700_000_000_000_000_000, 0, b"first group");
        push_record(&mut payload, 1_700_000_000_000_001_000, 7, b"");
        builder.follow(0, 0);
        builder.list(0x1200, 1, 2, &payload);
        builder.follow(0, 0);
        let segment = Segment {
            number: 1,
            file_bytes: 65_536,
            first_lsn: 1,
            next_lsn: 3,
            stamps: Stamps { min_ns: None, max_ns: 1_700_000_000_000_001_000 },
            end: 0x1400,
            summary: None,
        };
        builder.seal(seed(EXAMPLE_UUID), &segment, 1, 3).unwrap()
    }

    const EXAMPLE_UUID: &[u8; 16] =
        b"\x00\x01\x02\x03\x04\x05\x46\x07\x88\x09\x0a\x0b\x0c\x0d\x0e\x0f";

    #[test]
    fn the_documented_summary_is_what_is_written_and_tells_the_records() {
        let document = include_str!("../../../docs/FORMAT.md");
        let section = document.split("\n### A summary\n").nth(1).expect("the section is there");
        let shown = section.split("```hexdump\n").nth(1).and_then(|rest| rest.split("```").next());
        let bytes = example();
        let rows = bytes.chunks(16).enumerate().filter(|(_, row)| row.iter().any(|&b| b != 0));
        let written: String = rows
            .map(|(i, row)| {
                let hex: Vec<_> = row.iter().map(|b| format!("{b:02x}")).collect();
                format!("{:06x}  {}\n", 65_536 - bytes.len() + i * 16, hex.join(" "))
            })
            .collect();
        assert_eq!(shown, Some(written.as_str()), "this build writes:\n{written}");
        let trailer = Trailer::decode(bytes.last_chunk().unwrap(), seed(EXAMPLE_UUID));
        let trailer = trailer.expect("its checksum holds");
        let from = bytes.len() - TRAILER - trailer.body_len as usize;
        let body = &bytes[from..bytes.len() - TRAILER];
        assert!(crc32c(body) == trailer.body_crc && is_sound(body, &trailer));
        let mut cursor = Cursor::default();
        let told: Vec<_> = std::iter::from_fn(|| cursor.advance(body))
            .map(|entry| (entry.lsn, entry.payload_at, &body[entry.from..entry.to]))
            .collect();
        assert_eq!(told, [(1, 0x1246, &b"first"[..]), (2, 0x125f, &b""[..])]);
    }

    #[test]
    fn each_changed_byte_is_noticed() {
        let (builder, bytes) = sealed();
        let sound = trailer(&bytes).unwrap();
        for at in bytes.len() - TRAILER - builder.len()..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 4;
            let body = &bytes[bytes.len() - TRAILER - builder.len()..bytes.len() - TRAILER];
            assert!(trailer(&bytes) != Some(sound) || crc32c(body) != sound.body_crc, "{at}");
        }
    }

    #[test]
    fn any_bytes_can_be_walked() {
        let (builder, _) = sealed();
        for cut in 0..builder.len() {
            let mut cursor = Cursor::default();
            while cursor.advance(&builder.body[..cut]).is_some() {}
            let mut cursor = Cursor::default();
            let body = vec![cut as u8 ^ 0xff; cut];
            while cursor.advance(&body).is_some() {}
        }
    }
}
