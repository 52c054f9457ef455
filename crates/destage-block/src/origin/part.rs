//! A range of another origin: a volume before a reserved tail, or that tail.

use super::{Identity, Origin, OriginIoError, OriginIoErrorKind};
use std::sync::Arc;

/// The bytes from `start` on, `len` of them, as an origin of their own.
#[derive(Clone, Debug)]
pub struct Part {
    whole: Arc<dyn Origin>,
    start: u64,
    len: u64,
}

impl Part {
    /// A range of `whole`, bytes.
    ///
    /// # Errors
    /// `Denied` if it does not lie inside.
    pub fn new(whole: Arc<dyn Origin>, start: u64, len: u64) -> Result<Self, OriginIoError> {
        let size = whole.size();
        if start.checked_add(len).is_none_or(|end| end > size) {
            let message = format!("{len} bytes at {start} do not fit in an origin of {size} bytes");
            return Err(OriginIoError::new(OriginIoErrorKind::Denied, message));
        }
        Ok(Self { whole, start, len })
    }

    /// Cuts a tail of `tail_bytes` off: the volume, then the tail.
    ///
    /// # Errors
    /// `Denied` if nothing remains of the volume.
    pub fn split_tail(
        whole: Arc<dyn Origin>,
        tail_bytes: u64,
    ) -> Result<(Self, Self), OriginIoError> {
        let size = whole.size();
        let start = size.saturating_sub(tail_bytes) / ALIGN * ALIGN;
        if start == 0 {
            let message =
                format!("an origin of {size} bytes has no room for a tail of {tail_bytes} bytes");
            return Err(OriginIoError::new(OriginIoErrorKind::Denied, message));
        }
        let volume = Self::new(whole.clone(), 0, start)?;
        Ok((volume, Self::new(whole, start, size - start)?))
    }

    fn check(&self, offset: u64, len: u64) -> Result<u64, OriginIoError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.start + offset),
            _ => Err(OriginIoError::beyond("this part of the origin", offset, len, self.len)),
        }
    }
}

impl Origin for Part {
    fn size(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OriginIoError> {
        self.whole.read(self.check(offset, buf.len() as u64)?, buf)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OriginIoError> {
        self.whole.write(self.check(offset, bytes.len() as u64)?, bytes)
    }

    fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<(), OriginIoError> {
        self.whole.zero(self.check(offset, len)?, len, punch)
    }

    fn flush(&self) -> Result<(), OriginIoError> {
        self.whole.flush()
    }

    fn losses(&self) -> u64 {
        self.whole.losses()
    }

    fn can_flush(&self) -> bool {
        self.whole.can_flush()
    }

    fn parallelism(&self) -> usize {
        self.whole.parallelism()
    }

    fn identity(&self) -> Result<Identity, OriginIoError> {
        let whole = self.whole.identity()?;
        let store = format!("{} from {}", whole.store, self.start);
        // The other parts change it as well.
        Ok(Identity { size: self.len, store, modified_ns: None, ..whole })
    }
}

/// Parts begin at multiples of it, so that a block never lies in two of them.
const ALIGN: u64 = 4096;
