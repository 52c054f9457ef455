//! Records in one piece, as they are kept elsewhere than on this journal's disk: `docs/FORMAT.md` describes the bytes.

use crate::error::Error;
use crate::journal::Journal;
use std::sync::Arc;

const MAGIC: [u8; 4] = *b"DGP1";
/// In the place of the catalog's length: it is as it was in the parcel before.
const AS_BEFORE: u32 = u32::MAX;
const RECORD_HEADER: usize = 22;

/// Records on their way to another place, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    bytes: Vec<u8>,
    /// The newest record's number; 0 for none.
    last: u64,
    has_catalog: bool,
}

impl Parcel {
    pub(crate) fn new(catalog: Option<&[u8]>) -> Self {
        let mut bytes = MAGIC.to_vec();
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
    pub(crate) fn explained(self, catalog: &[u8]) -> Self {
        let mut explained = Self::new(Some(catalog));
        explained.bytes.extend_from_slice(&self.bytes[MAGIC.len() + 4..]);
        Self { last: self.last, ..explained }
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

impl Journal {
    /// Appends what a parcel holds, numbers that are not in it skipped; records that the journal has are passed over.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] for bytes that are no parcel, or not whole; [`crate::ErrorKind::Invalid`] for a catalog or
    /// record that this journal has no room for.
    pub fn append_parcel(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut reader = ParcelReader::open(bytes)?;
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
        let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(|| broken("it is too short"))?;
        let len = u32::from_le_bytes(*len);
        if len == AS_BEFORE {
            return Ok(Self { catalog: None, rest });
        }
        let split = rest.split_at_checked(len as usize);
        let (catalog, rest) = split.ok_or_else(|| broken("its catalog is cut"))?;
        Ok(Self { catalog: Some(Arc::from(catalog)), rest })
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

    #[test]
    fn what_a_journal_hands_over_another_one_takes_up() {
        let options = || Options { catalog: b"tables".to_vec(), ..Options::default() };
        let open = || Journal::open(Arc::new(MemDisk::default()), options()).unwrap().0;
        let (mut one, mut two) = (open(), open());
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
        let mut parcel = Parcel::new(Some(b"catalog"));
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
