//! Small structures that are written to two places in turn: magic, checksum, body. The checksum starts from the cache's
//! UUID and covers everything behind it.

use super::bytes::u32_at;
use crc32c::crc32c_append;

/// Room for magic and checksum.
pub(super) const SEAL: usize = 8;

/// Fills in what stands before the body, whose bytes are in place from [`SEAL`] on.
pub(super) fn seal(bytes: &mut [u8], magic: &[u8; 4], seed: u32) {
    bytes[..4].copy_from_slice(magic);
    let crc = crc32c_append(seed, &bytes[SEAL..]);
    bytes[4..SEAL].copy_from_slice(&crc.to_le_bytes());
}

/// The whole, if magic and checksum hold for this length.
pub(super) fn open<'a>(bytes: &'a [u8], magic: &[u8; 4], seed: u32) -> Option<&'a [u8]> {
    let holds = bytes.len() >= SEAL
        && &bytes[..4] == magic
        && u32_at(bytes, 4) == crc32c_append(seed, &bytes[SEAL..]);
    holds.then_some(bytes)
}
