//! Patterns of keys and fields, as Redis has them.

use crate::resp::ReplyError;

/// Most bytes of a pattern that a client sends: each name of a page is compared with it.
const PATTERN_BYTES_MAX: usize = 4 << 10;

/// The pattern behind a MATCH.
///
/// # Errors
/// It is too long; a message for the client.
pub(super) fn pattern_of(given: &[u8]) -> Result<&[u8], ReplyError> {
    if given.len() <= PATTERN_BYTES_MAX {
        return Ok(given);
    }
    Err(ReplyError::err(format!(
        "the pattern behind MATCH has {} bytes, and {PATTERN_BYTES_MAX} are the most: shorten it",
        given.len()
    )))
}

/// Redis's glob patterns: `*`, `?`, `[abc]`, `[^a-z]`, `\x`. Takes time proportional to the lengths' product at worst.
pub(crate) fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some(_) => match_one(&pattern[p..], text[t]),
            None => None,
        };
        match (step, star) {
            (Some(used), _) => {
                p += used;
                t += 1;
            }
            (None, Some((after, from))) => {
                star = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// Matches one byte; the length of the pattern's element, or `None`.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern[0] {
        b'?' => Some(1),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        b'[' => match_class(pattern, byte),
        literal => (literal == byte).then_some(1),
    }
}

fn match_class(pattern: &[u8], byte: u8) -> Option<usize> {
    let negated = pattern.get(1) == Some(&b'^');
    let mut at = if negated { 2 } else { 1 };
    let mut found = false;
    while let Some(&first) = pattern.get(at) {
        if first == b']' {
            return (found != negated).then_some(at + 1);
        }
        let first = if first == b'\\' && at + 1 < pattern.len() {
            at += 1;
            pattern[at]
        } else {
            first
        };
        if pattern.get(at + 1) == Some(&b'-') && pattern.get(at + 2).is_some_and(|&b| b != b']') {
            let last = pattern[at + 2];
            found |= (first.min(last)..=first.max(last)).contains(&byte);
            at += 3;
        } else {
            found |= first == byte;
            at += 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{PATTERN_BYTES_MAX, glob};
    use crate::engine::hash_scan::HashScan;
    use crate::engine::set_scan::SetScan;

    #[test]
    fn patterns_that_are_too_long_are_refused() {
        for (bytes, is_fit) in [(PATTERN_BYTES_MAX, true), (PATTERN_BYTES_MAX + 1, false)] {
            let pattern = vec![b'*'; bytes];
            let args: [&[u8]; 3] = [b"0", b"MATCH", &pattern];
            assert_eq!(HashScan::read(&args).is_ok(), is_fit);
            assert_eq!(SetScan::read(&args, 100).is_ok(), is_fit);
        }
    }

    #[test]
    fn globs_match_as_in_redis() {
        let cases: [(&str, &str, bool); 14] = [
            ("*", "", true),
            ("orders:*", "orders:1", true),
            ("orders:*", "order:1", false),
            ("*:1", "orders:1", true),
            ("o*s:?", "orders:1", true),
            ("o*s:?", "orders:12", false),
            ("t:[12]", "t:2", true),
            ("t:[^12]", "t:2", false),
            ("t:[0-9]*", "t:77", true),
            ("t:[9-0]", "t:5", true),
            ("t:\\*", "t:*", true),
            ("t:\\*", "t:1", false),
            ("t:[", "t:[", false),
            ("a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
