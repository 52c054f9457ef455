//! Numbers as bytes: seven bits a byte, lowest first, the highest bit set on all but the last.

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// What is left to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    /// The next byte; `None` past the end.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    /// The next number; `None` past the end, or if it does not fit.
    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// The next number, if it fits.
    pub(crate) fn number32(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    /// The next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next eight bytes, lowest first.
    pub(crate) fn fixed64(&mut self) -> Option<u64> {
        let bytes = self.take(8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_and_what_is_no_number_is_refused() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            let mut read = Bytes(&bytes);
            assert_eq!((read.number(), read.0.len()), (Some(number), 0));
            assert_eq!(Bytes(&bytes[..bytes.len() - 1]).number(), None);
        }
        assert_eq!(Bytes(&[0xff; 10]).number(), None, "more than 64 bits");
        assert_eq!(Bytes(&[0xff, 0xff, 0xff, 0xff, 0x7f]).number32(), None);
    }
}
