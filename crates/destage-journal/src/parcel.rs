//! Records in one piece, as they are kept elsewhere than on this journal's disk: `docs/FORMAT.md` describes the bytes.

use crate::error::Error;
use crate::journal::Journal;
use std::collections::VecDeque;
use std::sync::Arc;
use uuid::Uuid;

const MAGIC: [u8; 4] = *b"DGP1";
const UUID: usize = 16;
/// In the place of the catalog's length: it is as it was in the parcel before.
const AS_BEFORE: u32 = u32::MAX;
const RECORD_HEADER: usize = 22;
/// Most bytes of a parcel, unless a single record has more. What waits may be as much as all that is not destaged, which no
/// server takes in one piece, nor within the time after which it is taken for gone.
const BYTES_MAX: usize = 1 << 20;

/// Records on their way to another place, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    bytes: Vec<u8>,
    /// The newest record's number; 0 for none.
    last: u64,
    has_catalog: bool,
}

impl Parcel {
    pub(crate) fn new(journal: Uuid, catalog: Option<&[u8]>) -> Self {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(journal.as_bytes());
        let len = catalog.map_or(AS_BEFORE, |catalog| catalog.len() as u32);
        bytes.extend(len.to_le_bytes());
        bytes.extend_from_slice(catalog.unwrap_or_default());
        Self { bytes, last: 0, has_catalog: catalog.is_some() }
    }

    pub(crate) fn push(&mut self, lsn: u64, stamp_ns: u64, domain: u16, payload: &[u8]) {
        self.bytes.extend(lsn.to_le_bytes());
        self.bytes.extend(stamp_ns.to_le_bytes());
        self.bytes.extend(domain.to_le_bytes());
        self.bytes.extend((payload.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(payload);
        self.last = lsn;
    }

    /// The same with what explains it. That is the same for all of its records: it changes between two starts only.
    pub(crate) fn explained(self, journal: Uuid, catalog: &[u8]) -> Self {
        let mut explained = Self::new(journal, Some(catalog));
        explained.bytes.extend_from_slice(&self.bytes[MAGIC.len() + UUID + 4..]);
        Self { last: self.last, ..explained }
    }

    /// One without records, of the journal with this identity: the parcels behind it are that one's.
    pub fn first(journal: [u8; UUID], catalog: &[u8]) -> Self {
        Self::new(Uuid::from_bytes(journal), Some(catalog))
    }

    /// Whether it holds no record.
    pub fn is_empty(&self) -> bool {
        self.last == 0
    }

    /// The newest record's number; 0 for none.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it says what explains its records, which the parcels after it may leave out.
    pub fn has_catalog(&self) -> bool {
        self.has_catalog
    }

    /// Its bytes, with their checksum.
    pub fn finish(mut self) -> Vec<u8> {
        let crc = crc32c::crc32c(&self.bytes);
        self.bytes.extend(crc.to_le_bytes());
        self.bytes
    }
}

/// What waits to be handed over.
#[derive(Debug)]
pub(crate) struct Handed {
    journal: Uuid,
    parcels: VecDeque<Parcel>,
}

impl Handed {
    pub(crate) fn push(&mut self, lsn: u64, stamp_ns: u64, domain: u16, payload: &[u8]) {
        let len = RECORD_HEADER + payload.len();
        let has_room = |parcel: &&mut Parcel| parcel.len() + len <= BYTES_MAX;
        if let Some(parcel) = self.parcels.back_mut().filter(has_room) {
            return parcel.push(lsn, stamp_ns, domain, payload);
        }
        let mut parcel = Parcel::new(self.journal, None);
        parcel.push(lsn, stamp_ns, domain, payload);
        self.parcels.push_back(parcel);
    }
}

impl Journal {
    fn identity(&self) -> Uuid {
        Uuid::parse_str(self.uuid()).unwrap_or_default()
    }

    /// What is appended from now on is handed over to another place as well: [`Journal::take_parcel`].
    pub fn hand_over(&mut self) {
        let journal = self.identity();
        self.handed_mut().get_or_insert_with(|| Handed { journal, parcels: VecDeque::new() });
    }

    /// Bytes of what explains the records.
    pub fn catalog_bytes(&self) -> usize {
        self.catalog().len()
    }

    /// Bytes that wait to be handed over.
    pub fn parcel_bytes(&self) -> usize {
        self.handed().map_or(0, |handed| handed.parcels.iter().map(Parcel::len).sum())
    }

    /// The oldest of what was appended and not taken yet, if anything is; with what explains it if that is asked for.
    pub fn take_parcel(&mut self, with_catalog: bool) -> Option<Parcel> {
        let journal = self.identity();
        let parcel = self.handed_mut().as_mut()?.parcels.pop_front()?;
        Some(if with_catalog { parcel.explained(journal, self.catalog()) } else { parcel })
    }

    /// Appends what a parcel holds, numbers that are not in it skipped; records that the journal has are passed over.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] for bytes that are no parcel, or not whole; [`crate::ErrorKind::Invalid`] for a catalog or
    /// record that this journal has no room for.
    pub fn append_parcel(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut reader = ParcelReader::open(bytes)?;
        if reader.journal != *self.identity().as_bytes() {
            return Err(Error::corrupt_parcel("it is of another journal"));
        }
        if let Some(catalog) = &reader.catalog {
            self.set_catalog(catalog)?;
        }
        while let Some(record) = reader.advance()? {
            if record.lsn <= self.last() {
                continue;
            }
            if record.payload.len() > self.payload_bytes_max() {
                return Err(Error::invalid(format!(
                    "record {} has {} bytes, more than this journal takes: use a larger one",
                    record.lsn,
                    record.payload.len()
                )));
            }
            self.skip_to(record.lsn);
            self.append(record.lsn, record.stamp_ns, record.domain, record.payload);
        }
        Ok(())
    }
}

/// A record of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParcelRecord<'a> {
    /// As in [`crate::Record`]; so for the others.
    pub lsn: u64,
    /// When it was appended.
    pub stamp_ns: u64,
    /// Its ordering domain.
    pub domain: u16,
    /// What it says.
    pub payload: &'a [u8],
}

/// The records of a parcel.
#[derive(Debug)]
pub struct ParcelReader<'a> {
    /// The identity of the journal that its records are of.
    pub journal: [u8; UUID],
    /// What explains them, if the parcel says so.
    pub catalog: Option<Arc<[u8]>>,
    rest: &'a [u8],
}

impl<'a> ParcelReader<'a> {
    /// Looks at a parcel.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`]: it is none, or not whole.
    pub fn open(bytes: &'a [u8]) -> Result<Self, Error> {
        let broken = |why: &str| Error::corrupt_parcel(why);
        let (rest, crc) = bytes.split_last_chunk::<4>().ok_or_else(|| broken("it is too short"))?;
        if crc32c::crc32c(rest) != u32::from_le_bytes(*crc) {
            return Err(broken("its checksum is wrong"));
        }
        let rest = rest.strip_prefix(&MAGIC).ok_or_else(|| broken("it is of another kind"))?;
        let split = rest.split_first_chunk::<UUID>();
        let (&journal, rest) = split.ok_or_else(|| broken("it is too short"))?;
        let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(|| broken("it is too short"))?;
        let len = u32::from_le_bytes(*len);
        if len == AS_BEFORE {
            return Ok(Self { journal, catalog: None, rest });
        }
        let split = rest.split_at_checked(len as usize);
        let (catalog, rest) = split.ok_or_else(|| broken("its catalog is cut"))?;
        Ok(Self { journal, catalog: Some(Arc::from(catalog)), rest })
    }

    /// The next record.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`]: it is cut.
    pub fn advance(&mut self) -> Result<Option<ParcelRecord<'a>>, Error> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let cut = || Error::corrupt_parcel("a record is cut");
        let (header, rest) = self.rest.split_first_chunk::<RECORD_HEADER>().ok_or_else(cut)?;
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let len = u32::from_le_bytes([header[18], header[19], header[20], header[21]]) as usize;
        let (payload, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
        self.rest = rest;
        let domain = u16::from_le_bytes([header[16], header[17]]);
        Ok(Some(ParcelRecord { lsn: number(0), stamp_ns: number(8), domain, payload }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemDisk, Options};

    fn open(uuid: u8) -> Journal {
        let catalog = b"tables".to_vec();
        let options = Options { catalog, uuid: Some([uuid; 16]), ..Options::default() };
        Journal::open(Arc::new(MemDisk::default()), options).unwrap().0
    }

    #[test]
    fn much_is_handed_over_in_parcels_that_servers_take() {
        let mut journal = open(1);
        journal.hand_over();
        let payload = vec![7; 100_000];
        for lsn in 1..=50 {
            journal.append(lsn, lsn, 0, &payload);
        }
        journal.append(51, 51, 0, &vec![8; BYTES_MAX + 1]);
        journal.append(52, 52, 0, b"");
        let (mut last, mut count, mut bytes) = (0, 0, journal.parcel_bytes());
        while let Some(parcel) = journal.take_parcel(count == 0) {
            assert!(parcel.len() <= BYTES_MAX + 100 || parcel.last() == 51, "{}", parcel.len());
            assert!(journal.parcel_bytes() < bytes);
            (bytes, count) = (journal.parcel_bytes(), count + 1);
            let parcel = parcel.finish();
            let mut reader = ParcelReader::open(&parcel).unwrap();
            while let Some(record) = reader.advance().unwrap() {
                last += 1;
                assert_eq!(record.lsn, last);
            }
        }
        assert_eq!((last, count, bytes), (52, 7, 0));
    }

    #[test]
    fn a_parcel_says_whose_it_is_and_no_other_journal_takes_it() {
        let mut two = open(2);
        let parcel = Parcel::first([1; 16], b"tables");
        assert!(parcel.is_empty() && parcel.has_catalog());
        let bytes = parcel.finish();
        assert_eq!(ParcelReader::open(&bytes).unwrap().journal, [1; 16]);
        open(1).append_parcel(&bytes).unwrap();
        let error = two.append_parcel(&bytes).unwrap_err();
        assert!(error.to_string().contains("another journal"), "{error}");
    }

    #[test]
    fn what_a_journal_hands_over_another_one_takes_up() {
        let (mut one, mut two) = (open(1), open(1));
        one.hand_over();
        one.append(1, 5, 2, b"a");
        one.append(2, 6, 0, b"");
        let first = one.take_parcel(true).unwrap();
        assert!(first.has_catalog() && first.last() == 2);
        one.skip_to(9);
        one.append(9, 7, 1, b"c");
        let second = one.take_parcel(false).unwrap();
        assert!(!second.has_catalog());
        assert!(one.take_parcel(false).is_none());
        for parcel in [first, second.clone(), second] {
            two.append_parcel(&parcel.finish()).unwrap();
        }
        let mut flush = two.take();
        flush.run(true).unwrap();
        two.give_back(flush);
        let mut records = two.read(1, 9);
        let mut found = Vec::new();
        while let Some(record) = records.advance().unwrap() {
            found.push((record.lsn, record.stamp_ns, record.domain, record.payload.to_vec()));
        }
        assert_eq!(found, [(1, 5, 2, b"a".to_vec()), (2, 6, 0, vec![]), (9, 7, 1, b"c".to_vec())]);
    }

    #[test]
    fn a_parcel_with_any_byte_changed_or_cut_is_refused() {
        let mut parcel = Parcel::new(Uuid::nil(), Some(b"catalog"));
        parcel.push(1, 2, 3, b"payload");
        let bytes = parcel.finish();
        assert!(ParcelReader::open(&bytes).is_ok());
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert!(ParcelReader::open(&changed).is_err(), "{at}");
            assert!(ParcelReader::open(&bytes[..at]).is_err(), "{at}");
        }
    }
}
