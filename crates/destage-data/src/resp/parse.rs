//! Requests: arrays of bulk strings, or inline commands as a person types them.

use std::ops::Range;

/// Bounds on one request, so that a client cannot make the server hold more than it should.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Most bytes in one request.
    pub bytes_max: usize,
    /// Most arguments in one request.
    pub args_max: usize,
}

/// Longest inline command, bytes.
const INLINE_MAX: usize = 64 * 1024;

/// The arguments of a request as ranges of the buffer it was read from; reused from request to request.
#[derive(Debug, Default)]
pub struct Args {
    ranges: Vec<Range<usize>>,
}

impl Args {
    /// The `index`-th argument.
    pub fn get<'a>(&self, buffer: &'a [u8], index: usize) -> &'a [u8] {
        &buffer[self.ranges[index].clone()]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// All arguments.
    pub fn to_slices<'a>(&self, buffer: &'a [u8], out: &mut Vec<&'a [u8]>) {
        out.clear();
        out.extend(self.ranges.iter().map(|range| &buffer[range.clone()]));
    }
}

/// What the bytes hold.
#[derive(Debug, PartialEq, Eq)]
pub enum Parse {
    /// A whole request of this many bytes; its arguments (possibly none, for an empty line) were stored.
    Request(usize),
    /// The request goes on beyond the bytes.
    Incomplete,
}

/// The client does not speak the protocol, or exceeds a bound; the connection is closed after the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Protocol error: {0}")]
pub struct ProtocolError(pub String);

fn error<T>(message: impl Into<String>) -> Result<T, ProtocolError> {
    Err(ProtocolError(message.into()))
}

/// Reads one request from the front of `buffer`.
///
/// # Errors
/// [`ProtocolError`] if the bytes are no request or exceed the limits.
pub fn parse(
    buffer: &[u8],
    limits: &RequestLimits,
    args: &mut Args,
) -> Result<Parse, ProtocolError> {
    args.ranges.clear();
    match buffer.first() {
        None => Ok(Parse::Incomplete),
        Some(b'*') => parse_array(buffer, limits, args),
        Some(_) => parse_inline(buffer, limits, args),
    }
}

fn parse_array(
    buffer: &[u8],
    limits: &RequestLimits,
    args: &mut Args,
) -> Result<Parse, ProtocolError> {
    let Some((count, mut at)) = parse_length(buffer, 1)? else { return Ok(Parse::Incomplete) };
    if count > limits.args_max as i64 {
        return error(format!("more than {} arguments in one request", limits.args_max));
    }
    for _ in 0..count.max(0) {
        match buffer.get(at) {
            None => return Ok(Parse::Incomplete),
            Some(b'$') => {}
            Some(&other) => {
                return error(format!("expected '$', got '{}'", char::from(other).escape_debug()));
            }
        }
        let Some((len, start)) = parse_length(buffer, at + 1)? else {
            return Ok(Parse::Incomplete);
        };
        let Ok(len) = usize::try_from(len) else { return error("invalid bulk length") };
        if len > limits.bytes_max || start + len > limits.bytes_max {
            return error(format!("a request of more than {} bytes", limits.bytes_max));
        }
        let end = start + len;
        if buffer.len() < end + 2 {
            return Ok(Parse::Incomplete);
        }
        if &buffer[end..end + 2] != b"\r\n" {
            return error("a bulk string that does not end where its length says");
        }
        args.ranges.push(start..end);
        at = end + 2;
    }
    Ok(Parse::Request(at))
}

/// Reads a decimal number and its line end from `at`; the number and the place after it.
#[inline]
fn parse_length(buffer: &[u8], at: usize) -> Result<Option<(i64, usize)>, ProtocolError> {
    /// Digits of the longest length that makes sense, and a sign.
    const DIGITS_MAX: usize = 16;
    let mut value = 0i64;
    let mut negative = false;
    for (i, &byte) in buffer[at.min(buffer.len())..].iter().enumerate() {
        match byte {
            b'0'..=b'9' => value = value * 10 + i64::from(byte - b'0'),
            b'-' if i == 0 => negative = true,
            b'\r' => {
                return match buffer.get(at + i + 1) {
                    None => Ok(None),
                    Some(b'\n') if i > usize::from(negative) => {
                        Ok(Some((if negative { -value } else { value }, at + i + 2)))
                    }
                    Some(_) => error("invalid length"),
                };
            }
            _ => return error("invalid length"),
        }
        if i >= DIGITS_MAX {
            return error("invalid length");
        }
    }
    Ok(None)
}

/// Words separated by blanks; no quoting, since nothing but people and probes send inline commands.
fn parse_inline(
    buffer: &[u8],
    limits: &RequestLimits,
    args: &mut Args,
) -> Result<Parse, ProtocolError> {
    let inline_max = INLINE_MAX.min(limits.bytes_max);
    let Some(end) = memchr::memchr(b'\n', &buffer[..buffer.len().min(inline_max)]) else {
        return match buffer.len() >= inline_max {
            true => error("too big inline request"),
            false => Ok(Parse::Incomplete),
        };
    };
    let mut start = 0;
    // The line's end is white space too.
    for (at, byte) in buffer[..=end].iter().enumerate() {
        if byte.is_ascii_whitespace() {
            if start < at {
                args.ranges.push(start..at);
            }
            start = at + 1;
        }
    }
    Ok(Parse::Request(end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RequestLimits = RequestLimits { bytes_max: 1_000, args_max: 10 };

    fn parsed(bytes: &[u8]) -> Result<(Parse, Vec<Vec<u8>>), ProtocolError> {
        let mut args = Args::default();
        let parse = parse(bytes, &LIMITS, &mut args)?;
        let list = match parse {
            Parse::Request(_) => (0..args.len()).map(|i| args.get(bytes, i).to_vec()).collect(),
            Parse::Incomplete => Vec::new(),
        };
        Ok((parse, list))
    }

    #[test]
    fn whole_requests_are_read_and_cut_ones_wait() {
        let bytes = b"*3\r\n$4\r\nHGET\r\n$3\r\na:1\r\n$0\r\n\r\n*1\r\n";
        let whole = bytes.len() - 4;
        let (parse, args) = parsed(bytes).unwrap();
        assert_eq!(parse, Parse::Request(whole));
        assert_eq!(args, [b"HGET".to_vec(), b"a:1".to_vec(), b"".to_vec()]);
        for cut in 0..whole {
            assert_eq!(parsed(&bytes[..cut]).unwrap().0, Parse::Incomplete, "cut at {cut}");
        }
    }

    #[test]
    fn inline_commands_are_split_at_blanks() {
        let (parse, args) = parsed(b"  HGET  a:1 name\r\nPING\n").unwrap();
        assert_eq!(parse, Parse::Request(18));
        assert_eq!(args, [b"HGET".to_vec(), b"a:1".to_vec(), b"name".to_vec()]);
        assert_eq!(parsed(b"\r\n").unwrap(), (Parse::Request(2), vec![]));
    }

    #[test]
    fn nonsense_and_excess_are_refused() {
        for bytes in [
            b"*x\r\n".as_slice(),
            b"*1\r\n+OK\r\n",
            b"*1\r\n$-1\r\n",
            b"*11\r\n",
            b"*1\r\n$2000\r\n",
            b"*1\r\n$99999999999999999999\r\n",
            b"*1\r\n$2\r\nabcd\r\n",
            b"*\r\n",
            &[b'a'; 1_000],
        ] {
            assert!(parsed(bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_answered_without_panic(bytes: Vec<u8>) {
            let _ = parsed(&bytes);
            let mut array = b"*2\r\n$".to_vec();
            array.extend(&bytes);
            let _ = parsed(&array);
        }
    }
}
