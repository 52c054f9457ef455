//! How the parts of keys are written: the escapes, and bytes shown to people.
//!
//! Inside a table's name and inside the parts of a composite key, `:` is written `%3A`, and `%` is written `%25` where it
//! would begin an escape. Which row a key names is not decided here.

use std::borrow::Cow;

/// Bytes for people: cut short, with what is not text replaced.
pub fn show(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 64;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_MAX)]);
    let cut = if bytes.len() > SHOWN_MAX { "..." } else { "" };
    format!("{}{cut}", text.escape_debug())
}

/// Decodes `%3A` and `%25`; any other `%` stands for itself.
pub fn decode(part: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'%', part).is_none() {
        return Cow::Borrowed(part);
    }
    let mut out = Vec::with_capacity(part.len());
    let mut rest = part;
    while let Some((&first, tail)) = rest.split_first() {
        let (byte, used) = match rest.get(..3) {
            Some(b"%3A" | b"%3a") => (b':', 3),
            Some(b"%25") => (b'%', 3),
            _ => (first, 1),
        };
        out.push(byte);
        rest = if used == 1 { tail } else { &rest[used..] };
    }
    Cow::Owned(out)
}

/// Writes a table's name, or a part of a composite key, so that [`decode`] gives it back.
pub fn encode(part: &[u8], out: &mut Vec<u8>) {
    for (i, &byte) in part.iter().enumerate() {
        match byte {
            b':' => out.extend_from_slice(b"%3A"),
            // Only where it would be read as an escape.
            b'%' if matches!(part.get(i + 1..i + 3), Some(b"3A" | b"3a" | b"25")) => {
                out.extend_from_slice(b"%25");
            }
            _ => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_to_what_it_was() {
        for part in
            ["", "plain", ":", "a:b", "%", "100%", "%3A", "%3a", "%25", "%253A", "%:25", "::%%3A"]
        {
            let mut text = Vec::new();
            encode(part.as_bytes(), &mut text);
            assert!(!text.contains(&b':'), "{part} is one part");
            assert_eq!(decode(&text), part.as_bytes(), "{part}");
        }
    }

    #[test]
    fn what_is_shown_is_short_text() {
        assert_eq!(show(b"a\r\nb\xff"), "a\\r\\nb\u{fffd}");
        assert_eq!(show(&[b'x'; 65]), format!("{}...", "x".repeat(64)));
    }
}
