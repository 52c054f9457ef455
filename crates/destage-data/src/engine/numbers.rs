//! Numbers as clients write them.

use crate::resp::{Code, ReplyError};
use crate::value::ColumnType;

pub(super) const NOT_INTEGER: ReplyError =
    ReplyError::fixed(Code::Err, "value is not an integer or out of range");
pub(super) const NOT_FLOAT: ReplyError = ReplyError::fixed(Code::Err, "value is not a valid float");
pub(super) const OVERFLOW: ReplyError =
    ReplyError::fixed(Code::Err, "increment or decrement would overflow");

/// A whole number as Redis reads it: without a plus sign or zeros in front, and no `-0`.
pub(super) fn integer(text: &[u8]) -> Result<i64, ReplyError> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let number = number.filter(|&number| itoa::Buffer::new().format(number).as_bytes() == text);
    number.ok_or(NOT_INTEGER)
}

pub(super) fn exact() -> ColumnType {
    ColumnType::DECIMAL
}

/// A finite number in exact form.
pub(super) fn decimal(text: &[u8]) -> Option<Vec<u8>> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    number.is_finite().then(|| exact().canonical(text).ok().map(|exact| exact.into_owned()))?
}

/// `1.50` as `1.5`, `2.0` as `2`.
pub(super) fn without_zeros(number: &[u8]) -> &[u8] {
    if !number.contains(&b'.') {
        return number;
    }
    let kept = number.iter().rposition(|&byte| byte != b'0').map_or(0, |last| last + 1);
    number[..kept].strip_suffix(b".").unwrap_or(&number[..kept])
}
