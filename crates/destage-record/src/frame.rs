//! Frames: pieces of a file with their length and checksum.

use std::fmt;

/// The first bytes of every file, with the version of the format.
pub(crate) const MAGIC: &[u8; 8] = b"DSTGREC1";
/// Kind, length and checksum.
pub(crate) const HEADER_LEN: usize = 9;
/// Longer frames are damage.
const LEN_MAX: usize = 1 << 28;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What the part is: the first frame.
    Begin = 1,
    /// A piece of the core's state.
    State = 2,
    /// Inputs and digests of effects.
    Events = 3,
    /// The recording ended in order: the last frame.
    End = 4,
}

/// A file that is not, or no longer, what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Damage {
    /// Where, in bytes from the beginning of the file.
    pub at: u64,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.at, self.what)
    }
}

/// Appends a frame.
pub(crate) fn put(out: &mut Vec<u8>, kind: Kind, payload: &[u8]) {
    let len = u32::try_from(payload.len()).expect("frames are cut far below 4 GiB");
    let mut head = [kind as u8, 0, 0, 0, 0];
    head[1..].copy_from_slice(&len.to_le_bytes());
    out.extend(head);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&head), payload);
    out.extend(sum.to_le_bytes());
    out.extend(payload);
}

/// What stands at a place of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// A whole frame, and where the next one begins.
    Frame { kind: Kind, payload: &'a [u8], next: usize },
    /// Nothing more.
    Nothing,
    /// The last frame was being written when the recording broke off.
    Torn,
}

/// Reads the frame at a place.
///
/// # Errors
/// It is damaged, and more follows.
pub(crate) fn read(file: &[u8], at: usize) -> Result<Found<'_>, Damage> {
    let rest = &file[at..];
    if rest.is_empty() {
        return Ok(Found::Nothing);
    }
    let damage = |what| Damage { at: at as u64, what };
    // A file system may have made room at the end that was never written.
    if rest.iter().take(HEADER_LEN).all(|&byte| byte == 0) {
        return if rest.iter().all(|&byte| byte == 0) {
            Ok(Found::Torn)
        } else {
            Err(damage("zeros where a frame should begin"))
        };
    }
    let Some((head, body)) = rest.split_at_checked(HEADER_LEN) else { return Ok(Found::Torn) };
    let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let sum = u32::from_le_bytes([head[5], head[6], head[7], head[8]]);
    let kind = match head[0] {
        1 => Kind::Begin,
        2 => Kind::State,
        3 => Kind::Events,
        4 => Kind::End,
        _ => return Err(damage("no frame begins here")),
    };
    if len > LEN_MAX {
        return Err(damage("the frame is longer than any that is written"));
    }
    let Some(payload) = body.get(..len) else { return Ok(Found::Torn) };
    if crc32c::crc32c_append(crc32c::crc32c(&head[..5]), payload) != sum {
        return if body.len() == len {
            Ok(Found::Torn)
        } else {
            Err(damage("the frame's checksum is wrong"))
        };
    }
    Ok(Found::Frame { kind, payload, next: at + HEADER_LEN + len })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_frames() -> Vec<u8> {
        let mut file = Vec::new();
        put(&mut file, Kind::Begin, b"abc");
        put(&mut file, Kind::Events, b"defgh");
        file
    }

    #[test]
    fn frames_read_back() {
        let file = two_frames();
        let Ok(Found::Frame { kind: Kind::Begin, payload: b"abc", next }) = read(&file, 0) else {
            panic!("{:?}", read(&file, 0));
        };
        let end = file.len();
        let second = Found::Frame { kind: Kind::Events, payload: b"defgh", next: end };
        assert_eq!(read(&file, next), Ok(second));
        assert_eq!(read(&file, end), Ok(Found::Nothing));
    }

    #[test]
    fn a_torn_end_is_told_from_damage_in_the_middle() {
        let file = two_frames();
        for cut in 13..file.len() {
            assert_eq!(read(&file[..cut], 12), Ok(Found::Torn), "{cut}");
        }
        for at in 0..file.len() {
            let mut bad = file.clone();
            bad[at] ^= 0x10;
            let from = if at < 12 { 0 } else { 12 };
            assert!(!matches!(read(&bad, from), Ok(Found::Frame { .. })), "{at}");
            if (5..12).contains(&at) {
                assert!(read(&bad, 0).is_err(), "{at}");
            }
        }
        let zeros = [&file[..], &[0; 40]].concat();
        assert_eq!(read(&zeros, file.len()), Ok(Found::Torn));
    }
}
