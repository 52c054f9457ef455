//! Rows, keys and changed values as one flat run of bytes: the form in which the cache holds them, the journal records
//! them and the origins exchange them.
//!
//! A *cell* is a variable-length integer `n` (little-endian base 128), then bytes: `n = 0` is NULL, `n = 1` is *unknown*
//! (only the origin can compute it; see `docs/SEMANTICS.md`), otherwise `n - 2` bytes of the canonical value follow. Cells
//! delimit themselves, so the encoded key of a row (its key cells) is a prefix of the encoded row.

/// One decoded cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    /// SQL NULL: to Redis clients, an absent field.
    Null,
    /// A value that only the origin knows.
    Unknown,
    /// A canonical value: the origin's own text form, raw bytes for binary columns.
    Value(&'a [u8]),
}

impl<'a> Cell<'a> {
    /// The value, if there is one.
    pub fn value(self) -> Option<&'a [u8]> {
        match self {
            Cell::Value(bytes) => Some(bytes),
            Cell::Null | Cell::Unknown => None,
        }
    }

    /// Bytes that the encoded cell takes.
    pub fn encoded_len(self) -> usize {
        match self {
            Cell::Null | Cell::Unknown => 1,
            Cell::Value(bytes) => varint_len(bytes.len() as u64 + 2) + bytes.len(),
        }
    }
}

/// Appends one cell.
pub fn push_cell(out: &mut Vec<u8>, cell: Cell<'_>) {
    match cell {
        Cell::Null => out.push(0),
        Cell::Unknown => out.push(1),
        Cell::Value(bytes) => {
            push_varint(out, bytes.len() as u64 + 2);
            out.extend_from_slice(bytes);
        }
    }
}

/// Appends a variable-length integer.
pub fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes that a variable-length integer takes.
pub fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Reads cells and integers from a run of bytes, front to back.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from their start.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything has been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next byte; `None` at the end.
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    /// The next integer; `None` if the bytes are cut short or exceed 64 bits.
    #[inline]
    pub fn varint(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7;
        loop {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
            shift += 7;
            if shift >= 64 {
                return None;
            }
        }
    }

    /// The next `len` bytes; `None` if there are fewer.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    /// The next cell; `None` if the bytes are cut short.
    #[inline]
    pub fn cell(&mut self) -> Option<Cell<'a>> {
        match self.varint()? {
            0 => Some(Cell::Null),
            1 => Some(Cell::Unknown),
            n => self.take(usize::try_from(n - 2).ok()?).map(Cell::Value),
        }
    }

    /// The next `count` cells as they are encoded; `None` if the bytes are cut short.
    pub fn cells(&mut self, count: usize) -> Option<&'a [u8]> {
        let start = self.rest;
        for _ in 0..count {
            self.cell()?;
        }
        Some(&start[..start.len() - self.rest.len()])
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Cell<'a>;

    fn next(&mut self) -> Option<Cell<'a>> {
        self.cell()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_read_back_as_written() {
        let long = vec![7u8; 300];
        let cells =
            [Cell::Null, Cell::Value(b""), Cell::Unknown, Cell::Value(b"abc"), Cell::Value(&long)];
        let mut bytes = Vec::new();
        for cell in cells {
            let before = bytes.len();
            push_cell(&mut bytes, cell);
            assert_eq!(bytes.len() - before, cell.encoded_len());
        }
        assert_eq!(Reader::new(&bytes).collect::<Vec<_>>(), cells);
        for cut in 0..bytes.len() {
            assert!(Reader::new(&bytes[..cut]).count() < cells.len());
        }
    }

    #[test]
    fn varints_read_back_and_refuse_overflow() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            assert_eq!(bytes.len(), varint_len(value));
            assert_eq!(Reader::new(&bytes).varint(), Some(value));
        }
        assert_eq!(Reader::new(&[0xff; 11]).varint(), None);
    }
}
