//! A file's bytes on their way.

use super::super::extents::Content;
use super::super::plan::FileWork;
use super::Carrier;
use crate::origin::{Key, Result};

/// How a file becomes longer.
struct Growth {
    /// Others can see it.
    is_seen: bool,
    /// Where it ended before.
    end: u64,
    is_unsynced: bool,
}

impl Carrier<'_> {
    /// The size grows by bytes that exist, and only then to what is zeros.
    pub(super) fn content(&self, key: &Key, found: u64, file: &FileWork) -> Result<()> {
        let mut size = found;
        let end = self.end_left(file);
        if size > end {
            self.origin.truncate(key, end)?;
            size = end;
        }
        self.clear(key, file, size)?;
        let mut buffer: Vec<u8> = Vec::new();
        let mut start = 0;
        // What made it longer in an earlier attempt may not be durable.
        let is_unsynced = file.is_brought;
        let mut growth = Growth { is_seen: file.is_named, end: size, is_unsynced };
        for (offset, len, content) in &file.writes {
            let is_next = start + buffer.len() as u64 == *offset;
            if !buffer.is_empty() && (!is_next || buffer.len() >= WRITE_BYTES_MAX) {
                self.put(key, start, &buffer, &mut growth)?;
                buffer.clear();
            }
            if matches!(content, Content::Zeros) && *len > ZERO_BYTES_MAX {
                if !buffer.is_empty() {
                    self.put(key, start, &buffer, &mut growth)?;
                    buffer.clear();
                }
                if *offset < size {
                    self.origin.punch(key, *offset, *len)?;
                }
                continue;
            }
            if buffer.is_empty() {
                start = *offset;
            }
            content.append_to(&mut buffer, *len);
            size = size.max(offset + len);
        }
        if !buffer.is_empty() {
            self.put(key, start, &buffer, &mut growth)?;
        }
        if size < file.stat.size {
            self.grow(key, &mut growth)?;
            self.origin.truncate(key, file.stat.size)?;
        }
        Ok(())
    }

    /// What is behind this place at the origin is cut off. An earlier attempt may have given the file a name after its content,
    /// and others may see both: then only what is too long is cut off.
    fn end_left(&self, file: &FileWork) -> u64 {
        if file.is_brought { file.limit.max(file.stat.size) } else { file.limit }
    }

    /// Of what is left, what is not the file's any more and is not written anew becomes zeros.
    fn clear(&self, key: &Key, file: &FileWork, size: u64) -> Result<()> {
        let mut at = file.limit;
        for &(offset, len, _) in &file.writes {
            let gap = at..offset.min(size);
            if gap.start < gap.end {
                self.origin.punch(key, gap.start, gap.end - gap.start)?;
            }
            at = at.max(offset + len);
        }
        if at < size {
            self.origin.punch(key, at, size - at)?;
        }
        Ok(())
    }

    /// Writes bytes: of what makes a file longer that others see, no more at a time than becomes durable as one.
    fn put(&self, key: &Key, offset: u64, bytes: &[u8], growth: &mut Growth) -> Result<()> {
        self.is_at_work()?;
        let grows = growth.is_seen && offset + bytes.len() as u64 > growth.end;
        if !grows || self.controls.no_growth_order {
            return self.origin.write(key, offset, bytes);
        }
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let whole = self.origin.whole_bytes();
            let (part, later) = rest.split_at(((whole - at % whole) as usize).min(rest.len()));
            self.grow(key, growth)?;
            self.origin.write(key, at, part)?;
            growth.is_unsynced = true;
            at += part.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Before a file that others see becomes longer once more, what made it longer is durable: else a host that dies might
    /// leave zeros where these bytes belong.
    fn grow(&self, key: &Key, growth: &mut Growth) -> Result<()> {
        if growth.is_unsynced && !self.controls.no_growth_order {
            self.origin.sync(key)?;
            growth.is_unsynced = false;
            self.is_at_work()?;
        }
        Ok(())
    }
}

/// Bytes that are written at once.
const WRITE_BYTES_MAX: usize = 4 << 20;
/// Zeros up to which they are written like bytes.
const ZERO_BYTES_MAX: u64 = 64 << 10;
