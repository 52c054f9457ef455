//! Text, labels, booleans and identifiers.

use super::{ValueError, refused, trimmed};
use std::borrow::Cow;

/// UTF-8 without NUL, of at most that many characters.
#[inline]
pub(super) fn text(input: &[u8], chars_max: Option<u32>) -> Result<Cow<'_, [u8]>, ValueError> {
    let valid = utf8(input)?;
    if let Some(max) = chars_max
        && input.len() > max as usize
        && valid.chars().count() > max as usize
    {
        return Err(too_long(valid.chars().count(), max));
    }
    Ok(Cow::Borrowed(input))
}

/// Text filled with blanks up to its width; surplus blanks at its end do not count.
pub(super) fn padded(input: &[u8], chars: u32) -> Result<Cow<'_, [u8]>, ValueError> {
    let width = chars as usize;
    let valid = utf8(input)?;
    let count = valid.chars().count();
    if count == width {
        return Ok(Cow::Borrowed(input));
    }
    let kept = valid.trim_end_matches(' ');
    let count = kept.chars().count();
    if count > width {
        return Err(too_long(count, chars));
    }
    let mut out = kept.to_owned();
    out.extend(std::iter::repeat_n(' ', width - count));
    Ok(Cow::Owned(out.into_bytes()))
}

/// One of the labels, exactly.
pub(super) fn label<'a>(input: &'a [u8], labels: &[String]) -> Result<Cow<'a, [u8]>, ValueError> {
    if labels.iter().any(|label| label.as_bytes() == input) {
        return Ok(Cow::Borrowed(input));
    }
    let shown: Vec<_> = labels.iter().take(LABELS_SHOWN_MAX).map(String::as_str).collect();
    let more = if labels.len() > shown.len() { " ..." } else { "" };
    Err(refused(&format!("one of: {}{more}", shown.join(", ")), input))
}

/// `t` or `f`, from any spelling that PostgreSQL takes.
pub(super) fn boolean(input: &[u8]) -> Result<Cow<'_, [u8]>, ValueError> {
    match input {
        b"t" | b"f" => return Ok(Cow::Borrowed(input)),
        b"1" => return Ok(Cow::Borrowed(b"t")),
        b"0" => return Ok(Cow::Borrowed(b"f")),
        _ => {}
    }
    let word = trimmed(input).to_ascii_lowercase();
    let begins = |full: &str, chars_min: usize| {
        word.len() >= chars_min && full.as_bytes().starts_with(&word)
    };
    if begins("true", 1) || begins("yes", 1) || begins("on", 2) || word == b"1" {
        Ok(Cow::Borrowed(b"t"))
    } else if begins("false", 1) || begins("no", 1) || begins("off", 2) || word == b"0" {
        Ok(Cow::Borrowed(b"f"))
    } else {
        Err(refused("true or false", input))
    }
}

/// Lower-case with dashes, from any spelling that PostgreSQL takes: capitals, braces, a dash after any group of four.
pub(super) fn uuid(input: &[u8]) -> Result<String, ValueError> {
    parse_uuid(input)
        .ok_or_else(|| refused("UUIDs such as a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", input))
}

/// 24 hexadecimal digits, in lower case.
pub(super) fn object_id(input: &[u8]) -> Result<String, ValueError> {
    let digits = trimmed(input);
    if digits.len() != 24 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(refused("24 hexadecimal digits such as 65a0c3d2e1f0a1b2c3d4e5f6", input));
    }
    Ok(digits.iter().map(|digit| char::from(digit.to_ascii_lowercase())).collect())
}

fn parse_uuid(input: &[u8]) -> Option<String> {
    let mut rest = match input {
        [b'{', inner @ .., b'}'] => inner,
        _ => input,
    };
    let mut out = String::with_capacity(36);
    for group in 0..8 {
        let (digits, after) = rest.split_at_checked(4)?;
        rest = after;
        if matches!(group, 2..=5) {
            out.push('-');
        }
        for digit in digits {
            out.push(digit.is_ascii_hexdigit().then(|| char::from(digit.to_ascii_lowercase()))?);
        }
        if group < 7
            && let [b'-', after @ ..] = rest
        {
            rest = after;
        }
    }
    rest.is_empty().then_some(out)
}

#[inline]
pub(super) fn utf8(input: &[u8]) -> Result<&str, ValueError> {
    let valid = std::str::from_utf8(input).map_err(|error| {
        ValueError(format!("takes UTF-8 text; byte {} is not", error.valid_up_to()))
    })?;
    if let Some(at) = memchr::memchr(0, input) {
        return Err(ValueError(format!("takes text without NUL; there is one at byte {at}")));
    }
    Ok(valid)
}

fn too_long(count: usize, max: u32) -> ValueError {
    ValueError(format!("takes at most {max} characters, not {count}"))
}

const LABELS_SHOWN_MAX: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_borrowed_counted_in_characters_and_never_cut() {
        assert!(matches!(text("äöü".as_bytes(), Some(3)).unwrap(), Cow::Borrowed(_)));
        assert!(text("äöüß".as_bytes(), Some(3)).is_err());
        assert!(text(b"abc ", Some(3)).is_err());
        assert!(text(b"a\0b", None).is_err());
        assert!(text(b"\xff", None).is_err());
        assert_eq!(&*text(b"", Some(0)).unwrap(), b"");
    }

    #[test]
    fn padded_text_has_its_width() {
        assert_eq!(&*padded(b"ab", 4).unwrap(), b"ab  ");
        assert_eq!(&*padded(b"ab      ", 4).unwrap(), b"ab  ");
        assert_eq!(&*padded("ä".as_bytes(), 2).unwrap(), "ä ".as_bytes());
        assert!(padded(b"abcde", 4).is_err());
    }

    #[test]
    fn booleans_have_one_spelling() {
        for input in ["t", "true", "TRUE", "tr", "1", "yes", "y", "on", " true "] {
            assert_eq!(&*boolean(input.as_bytes()).unwrap(), b"t", "{input}");
        }
        for input in ["f", "false", "0", "no", "n", "off", "of"] {
            assert_eq!(&*boolean(input.as_bytes()).unwrap(), b"f", "{input}");
        }
        for input in ["", "o", "2", "truex", "00", " "] {
            assert!(boolean(input.as_bytes()).is_err(), "{input}");
        }
    }

    #[test]
    fn uuids_have_one_spelling() {
        let canonical = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
        for input in [
            canonical,
            "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
            "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
            "a0eebc999c0b4ef8bb6d6bb9bd380a11",
            "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11",
        ] {
            assert_eq!(uuid(input.as_bytes()).unwrap(), canonical);
        }
        for input in ["", "a0eebc99", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1g", "{}"] {
            assert!(uuid(input.as_bytes()).is_err(), "{input}");
        }
        assert!(uuid(b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11-").is_err());
    }

    #[test]
    fn object_ids_have_one_spelling() {
        let canonical = "65a0c3d2e1f0a1b2c3d4e5f6";
        for input in [canonical, "65A0C3D2E1F0A1B2C3D4E5F6", " 65a0c3d2e1f0a1b2c3d4e5f6"] {
            assert_eq!(object_id(input.as_bytes()).unwrap(), canonical);
        }
        for input in
            ["", "65a0c3d2e1f0a1b2c3d4e5f", "65a0c3d2e1f0a1b2c3d4e5f6a", "g5a0c3d2e1f0a1b2c3d4e5f6"]
        {
            assert!(object_id(input.as_bytes()).is_err(), "{input}");
        }
    }
}
