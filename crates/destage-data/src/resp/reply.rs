//! Replies, appended to a connection's output.

use super::error::{Code, ReplyError};

/// The protocol version that a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// RESP2, until the client asks otherwise.
    #[default]
    V2,
    /// RESP3, after `HELLO 3`.
    V3,
}

/// How many replies some bytes are. They are whole ones, as [`Reply`] writes them.
pub(crate) fn count_replies(bytes: &[u8]) -> usize {
    let mut count = 0;
    each_reply(bytes, |_| count += 1);
    count
}

/// The replies that some bytes are, one by one. They are whole ones, as [`Reply`] writes them.
pub(crate) fn each_reply(bytes: &[u8], mut see: impl FnMut(&[u8])) {
    let (mut rest, mut begin, mut parts) = (bytes, bytes, 0_u64);
    while let Some(end) = memchr::memmem::find(rest, b"\r\n") {
        let (line, tail) = (&rest[..end], &rest[end + 2..]);
        let number = line.get(1..).and_then(|text| std::str::from_utf8(text).ok());
        // What is absent has a negative length.
        let number = number.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let is_absent = line.get(1) == Some(&b'-');
        rest = match line.first() {
            Some(b'$' | b'=') if !is_absent => tail.get(number as usize + 2..).unwrap_or_default(),
            _ => tail,
        };
        // An inner part is none by itself, and may have parts in turn.
        parts = parts.saturating_sub(1);
        parts += match line.first() {
            Some(b'*' | b'~' | b'>') => number,
            Some(b'%') => 2 * number,
            _ => 0,
        };
        if parts == 0 {
            see(&begin[..begin.len() - rest.len()]);
            begin = rest;
        }
    }
}

/// What is told instead of a reply that is too long.
pub(crate) const TOO_LONG: ReplyError =
    ReplyError::fixed(Code::Err, "its reply exceeds --output-limit; ask for less at once");

/// Writes whole replies of RESP3, as [`Reply`] writes them, as they are in RESP2.
pub(crate) fn in_v2(bytes: &[u8], reply: &mut Reply<'_>) {
    let mut rest = bytes;
    while let Some(end) = memchr::memmem::find(rest, b"\r\n") {
        let (line, tail) = (&rest[..end], &rest[end + 2..]);
        rest = tail;
        let Some((&kind, text)) = line.split_first() else { continue };
        let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<usize>().ok());
        let number = number.unwrap_or(0);
        match kind {
            b'_' => reply.null(),
            b'%' => reply.map(number),
            b'~' => reply.set(number),
            b',' => reply.bulk(text),
            b'$' | b'=' => {
                let (value, tail) = tail.split_at_checked(number).unwrap_or((tail, b""));
                rest = tail.get(2..).unwrap_or_default();
                match kind {
                    b'$' => reply.bulk(value),
                    _ => reply.bulk(value.get(b"txt:".len()..).unwrap_or_default()),
                }
            }
            _ => reply.line(kind, text),
        }
    }
}

/// Writes replies for one protocol version.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
    bytes_max: usize,
}

impl<'a> Reply<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Self { out, protocol, bytes_max: usize::MAX }
    }

    /// Takes no further value once so many bytes wait in the output, so that what is too much is found before it is copied. The
    /// output then is over the limit and no reply: the caller drops it.
    #[must_use]
    pub fn within(self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self }
    }

    /// The version in use.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Whether the output kept to its limit.
    ///
    /// # Errors
    /// The reply to give instead.
    pub fn is_within(&self) -> Result<(), ReplyError> {
        if self.out.len() <= self.bytes_max {
            return Ok(());
        }
        Err(TOO_LONG)
    }

    /// Bytes that are replies already.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// `+OK`
    pub fn ok(&mut self) {
        self.raw(b"+OK\r\n");
    }

    /// A status word.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error. Line ends are blanked, since they would end the reply.
    pub fn error(&mut self, error: &ReplyError) {
        self.out.push(b'-');
        let start = self.out.len();
        self.out.extend_from_slice(error.code().word().as_bytes());
        self.out.push(b' ');
        self.out.extend_from_slice(error.text().as_bytes());
        for byte in &mut self.out[start..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    fn number(&mut self, kind: u8, value: i64) {
        let mut buffer = itoa::Buffer::new();
        self.line(kind, buffer.format(value).as_bytes());
    }

    /// A whole number.
    pub fn integer(&mut self, value: i64) {
        self.number(b':', value);
    }

    /// A string of bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if self.out.len() <= self.bytes_max {
            push_bulk(self.out, bytes);
        }
    }

    /// Nothing: an absent field, a missing key.
    pub fn null(&mut self) {
        self.raw(match self.protocol {
            Protocol::V2 => b"$-1\r\n",
            Protocol::V3 => b"_\r\n",
        });
    }

    /// An array that is not there: a transaction that was not done.
    pub fn null_array(&mut self) {
        self.raw(match self.protocol {
            Protocol::V2 => b"*-1\r\n",
            Protocol::V3 => b"_\r\n",
        });
    }

    /// A value or nothing.
    pub fn bulk_or_null(&mut self, value: Option<&[u8]>) {
        match value {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// Starts an array of `len` replies.
    pub fn array(&mut self, len: usize) {
        self.number(b'*', len as i64);
    }

    /// Starts something of `len` replies that is told unasked, in RESP3.
    pub fn push(&mut self, len: usize) {
        self.number(b'>', len as i64);
    }

    /// Starts a set of `len` replies: an array in RESP2.
    pub fn set(&mut self, len: usize) {
        let kind = if self.is_typed() { b'~' } else { b'*' };
        self.number(kind, len as i64);
    }

    /// A number with a fraction, as text: a string in RESP2.
    pub fn double(&mut self, number: &str) {
        if self.is_typed() {
            self.line(b',', number.as_bytes())
        } else {
            self.bulk(number.as_bytes())
        }
    }

    /// Whether the protocol has types of its own for more than strings, whole numbers and arrays.
    pub fn is_typed(&self) -> bool {
        self.protocol == Protocol::V3
    }

    /// Starts a map of `len` pairs: a flat array in RESP2.
    pub fn map(&mut self, len: usize) {
        match self.protocol {
            Protocol::V2 => self.number(b'*', len as i64 * 2),
            Protocol::V3 => self.number(b'%', len as i64),
        }
    }

    /// A longer text for people: verbatim in RESP3, so that clients print its line ends.
    pub fn text(&mut self, text: &str) {
        match self.protocol {
            Protocol::V2 => self.bulk(text.as_bytes()),
            Protocol::V3 => {
                self.number(b'=', text.len() as i64 + 4);
                self.raw(b"txt:");
                self.raw(text.as_bytes());
                self.raw(b"\r\n");
            }
        }
    }
}

/// Appends bytes as people read them: in quotation marks, and escaped where they are no printable ASCII.
pub(crate) fn escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b' '..=b'~' => out.push(byte),
            _ => out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    out.push(b'"');
}

/// Appends a bulk string.
#[inline]
fn push_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut buffer = itoa::Buffer::new();
    let len = buffer.format(bytes.len());
    out.reserve(len.len() + bytes.len() + 5);
    out.push(b'$');
    out.extend_from_slice(len.as_bytes());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl Fn(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply::new(&mut out, protocol));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn both_versions_are_written_as_specified() {
        assert_eq!(written(Protocol::V2, |r| r.null()), "$-1\r\n");
        assert_eq!(written(Protocol::V3, |r| r.null()), "_\r\n");
        assert_eq!(written(Protocol::V2, |r| r.null_array()), "*-1\r\n");
        assert_eq!(written(Protocol::V3, |r| r.null_array()), "_\r\n");
        assert_eq!(written(Protocol::V2, |r| r.map(2)), "*4\r\n");
        assert_eq!(written(Protocol::V3, |r| r.map(2)), "%2\r\n");
        assert_eq!(written(Protocol::V3, |r| r.text("a\nb")), "=7\r\ntxt:a\nb\r\n");
        assert_eq!(written(Protocol::V2, |r| r.bulk(b"x\r\n")), "$3\r\nx\r\n\r\n");
        assert_eq!(written(Protocol::V2, |r| r.integer(-5)), ":-5\r\n");
    }

    #[test]
    fn what_is_over_the_limit_takes_no_further_value() {
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, Protocol::V2).within(100);
        reply.array(1_000);
        for _ in 0..1_000 {
            reply.bulk(&[b'x'; 90]);
        }
        // One value at most goes past it, so that it shows.
        assert!(reply.is_within().is_err() && out.len() < 300);
    }

    #[test]
    fn replies_are_counted_whatever_is_in_them() {
        for protocol in [Protocol::V2, Protocol::V3] {
            let all = written(protocol, |r| {
                r.bulk(b"*9\r\n:1\r\n");
                r.bulk_or_null(None);
                r.null_array();
                r.array(3);
                r.array(0);
                r.map(1);
                r.bulk(b"$5");
                r.set(1);
                r.integer(-5);
                r.bulk(b"");
                r.double("1.5");
                r.text("a\r\nb");
                r.ok();
                r.error(&ReplyError::err("a"));
            });
            assert_eq!(count_replies(all.as_bytes()), 8, "{all:?}");
            let mut found = Vec::new();
            each_reply(all.as_bytes(), |one| found.push(one.to_vec()));
            assert_eq!(found.concat(), all.as_bytes());
            assert_eq!(found.last().map(Vec::as_slice), Some(&b"-ERR a\r\n"[..]));
        }
        assert_eq!(count_replies(b""), 0);
    }

    #[test]
    fn replies_of_resp3_are_what_resp2_would_have_been() {
        let all = |protocol| {
            written(protocol, |r| {
                r.bulk(b"*9\r\n:1\r\n");
                r.bulk_or_null(None);
                r.array(3);
                r.array(0);
                r.map(1);
                r.bulk(b"$5");
                r.set(1);
                r.integer(-5);
                r.bulk(b"");
                r.double("1.5");
                r.text("a\r\nb");
                r.ok();
                r.error(&ReplyError::err("a"));
            })
        };
        let turned = written(Protocol::V2, |r| in_v2(all(Protocol::V3).as_bytes(), r));
        assert_eq!(turned, all(Protocol::V2));
    }

    #[test]
    fn errors_never_break_the_line() {
        assert_eq!(written(Protocol::V2, |r| r.error(&ReplyError::err("a\r\nb"))), "-ERR a  b\r\n");
    }
}
