//! Results as JSON: an array of objects.

use super::RESULT_BYTES_MAX;
use crate::contract::OriginError;
use destage_core::Fault;

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A number, all its digits kept. What JSON cannot write as one, NaN or infinity, is a text.
    Number,
    /// `t` or `f`, `true` or `false`.
    Bool,
    /// JSON as it is.
    Json,
    /// A text.
    Text,
}

/// A result in the making.
pub(crate) struct Json {
    out: Vec<u8>,
    /// The columns' names as they stand in each object, with their colons.
    names: Vec<Vec<u8>>,
    /// The next value's column.
    column: usize,
}

impl Json {
    /// An empty array of rows with these columns.
    pub(crate) fn new<'n>(names: impl Iterator<Item = &'n str>) -> Self {
        let name = |name: &str| {
            let mut out = Vec::new();
            push_text(&mut out, name);
            out.push(b':');
            out
        };
        Self { out: vec![b'['], names: names.map(name).collect(), column: 0 }
    }

    /// The next row's next value; NULL is `null`. After as many as there are columns the next row begins.
    pub(crate) fn push(&mut self, kind: Kind, value: Option<&[u8]>) {
        self.begin_value();
        match value {
            None => self.out.extend_from_slice(b"null"),
            Some(value) => self.value(kind, value),
        }
        self.end_value();
    }

    fn begin_value(&mut self) {
        match self.column {
            0 if self.out.len() > 1 => self.out.extend_from_slice(b",{"),
            0 => self.out.push(b'{'),
            _ => self.out.push(b','),
        }
        self.out.extend_from_slice(&self.names[self.column]);
    }

    fn end_value(&mut self) {
        self.column += 1;
        if self.column == self.names.len() {
            self.column = 0;
            self.out.push(b'}');
        }
    }

    fn value(&mut self, kind: Kind, value: &[u8]) {
        let out = &mut self.out;
        match (kind, std::str::from_utf8(value)) {
            (Kind::Number, Ok(text)) if is_number(text) => out.extend_from_slice(value),
            (Kind::Bool, Ok("t" | "true" | "1")) => out.extend_from_slice(b"true"),
            (Kind::Bool, Ok("f" | "false" | "0")) => out.extend_from_slice(b"false"),
            (Kind::Json, Ok(_)) => out.extend_from_slice(value),
            (_, Ok(text)) => push_text(out, text),
            (_, Err(_)) => self.push_hex(value),
        }
    }

    /// Bytes that are no text: `\x` and two digits for each.
    pub(crate) fn push_bytes(&mut self, value: &[u8]) {
        self.begin_value();
        self.push_hex(value);
        self.end_value();
    }

    fn push_hex(&mut self, value: &[u8]) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.out.extend_from_slice(b"\"\\\\x");
        for byte in value {
            self.out.push(DIGITS[usize::from(byte >> 4)]);
            self.out.push(DIGITS[usize::from(byte & 15)]);
        }
        self.out.push(b'"');
    }

    /// Refuses what has grown too large.
    ///
    /// # Errors
    /// [`Fault::Rejected`] past [`RESULT_BYTES_MAX`].
    pub(crate) fn check_size(&self) -> Result<(), OriginError> {
        if self.out.len() <= RESULT_BYTES_MAX { Ok(()) } else { Err(too_large()) }
    }

    /// The whole.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.out.push(b']');
        self.out
    }
}

/// A result of more than anyone can want under one key.
pub(crate) fn too_large() -> OriginError {
    OriginError::new(
        Fault::Rejected,
        format!(
            "the result has more than {} rows or {} MiB: ask for less, for example by LIMIT",
            super::ROWS_MAX,
            RESULT_BYTES_MAX >> 20
        ),
    )
}

/// What a query that locks rows or writes is told.
pub(crate) const ONLY_READS: &str = "the SQL locks rows or writes (FOR UPDATE, a function that changes something): a derived key only reads";

/// A query was about to write.
pub(crate) fn only_reads(what: &str) -> OriginError {
    OriginError::new(Fault::Rejected, format!("failed to {what}: {ONLY_READS}"))
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    let written = serde_json::to_writer(&mut *out, text);
    written.expect("a text is written to memory");
}

/// Whether JSON reads it as a number.
fn is_number(text: &str) -> bool {
    serde_json::from_str::<f64>(text).is_ok()
}
