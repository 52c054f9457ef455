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

/// How far an unfinished request has been read: what comes is read from there, and not from the request's start again. It keeps
/// no arguments, so that it costs nothing to hold; they are collected once the request is whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    at: usize,
    /// Arguments that are missing; none before their number is known.
    left: Option<usize>,
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
    resume(buffer, limits, &mut Place::default(), args)
}

/// As [`parse`], where `place` tells how far the same bytes have been read before; then how far they are read now.
///
/// # Errors
/// As of [`parse`]; nothing more can be read then.
pub fn resume(
    buffer: &[u8],
    limits: &RequestLimits,
    place: &mut Place,
    args: &mut Args,
) -> Result<Parse, ProtocolError> {
    args.ranges.clear();
    if place.at == 0 {
        return read(buffer, limits, place, |range| args.ranges.push(range));
    }
    match read(buffer, limits, place, |_| {})? {
        // Whole: read once more for the arguments, which is as long again and no more.
        Parse::Request(len) => {
            *place = Place::default();
            parse(&buffer[..len], limits, args)
        }
        Parse::Incomplete => Ok(Parse::Incomplete),
    }
}

#[inline]
fn read(
    buffer: &[u8],
    limits: &RequestLimits,
    place: &mut Place,
    keep: impl FnMut(Range<usize>),
) -> Result<Parse, ProtocolError> {
    match buffer.first() {
        None => Ok(Parse::Incomplete),
        Some(b'*') => read_array(buffer, limits, place, keep),
        Some(_) => read_inline(buffer, limits, place, keep),
    }
}

#[inline]
fn read_array(
    buffer: &[u8],
    limits: &RequestLimits,
    place: &mut Place,
    mut keep: impl FnMut(Range<usize>),
) -> Result<Parse, ProtocolError> {
    let (mut at, mut left) = match place.left {
        Some(left) => (place.at, left),
        None => {
            let Some((count, at)) = read_length(buffer, 1)? else { return Ok(Parse::Incomplete) };
            if count > limits.args_max as i64 {
                return error(format!("more than {} arguments in one request", limits.args_max));
            }
            (at, usize::try_from(count).unwrap_or(0))
        }
    };
    while left > 0 {
        match buffer.get(at) {
            Some(b'$') => {}
            None => break,
            Some(&other) => {
                return error(format!("expected '$', got '{}'", char::from(other).escape_debug()));
            }
        }
        let Some((len, start)) = read_length(buffer, at + 1)? else { break };
        let Ok(len) = usize::try_from(len) else { return error("invalid bulk length") };
        if len > limits.bytes_max || start + len > limits.bytes_max {
            return error(format!("a request of more than {} bytes", limits.bytes_max));
        }
        let end = start + len;
        if buffer.len() < end + 2 {
            break;
        }
        if &buffer[end..end + 2] != b"\r\n" {
            return error("a bulk string that does not end where its length says");
        }
        keep(start..end);
        at = end + 2;
        left -= 1;
    }
    if left > 0 {
        *place = Place { at, left: Some(left) };
        return Ok(Parse::Incomplete);
    }
    Ok(Parse::Request(at))
}

/// Reads a decimal number and its line end from `at`; the number and the place after it.
#[inline]
fn read_length(buffer: &[u8], at: usize) -> Result<Option<(i64, usize)>, ProtocolError> {
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
fn read_inline(
    buffer: &[u8],
    limits: &RequestLimits,
    place: &mut Place,
    mut keep: impl FnMut(Range<usize>),
) -> Result<Parse, ProtocolError> {
    let inline_max = INLINE_MAX.min(limits.bytes_max);
    let seen = buffer.len().min(inline_max);
    let Some(end) = memchr::memchr(b'\n', &buffer[place.at.min(seen)..seen]) else {
        place.at = seen;
        return if buffer.len() >= inline_max {
            error("too big inline request")
        } else {
            Ok(Parse::Incomplete)
        };
    };
    let line = &buffer[..=place.at + end];
    let mut start = 0;
    // The line's end is white space too.
    for (at, byte) in line.iter().enumerate() {
        if byte.is_ascii_whitespace() {
            if start < at {
                keep(start..at);
            }
            start = at + 1;
        }
    }
    Ok(Parse::Request(line.len()))
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

    type Found = Vec<Result<Vec<Vec<u8>>, ProtocolError>>;

    /// What a client's bytes are if they come in parts of these lengths, and the rest at once: requests with their arguments, then
    /// perhaps an error.
    fn in_parts(bytes: &[u8], parts: &[usize]) -> Found {
        let (mut found, mut held, mut rest) = (Vec::new(), Vec::new(), bytes);
        let (mut place, mut args) = (Place::default(), Args::default());
        for &part in parts.iter().chain([&usize::MAX]) {
            let (come, later) = rest.split_at(part.min(rest.len()));
            rest = later;
            held.extend(come);
            loop {
                match resume(&held, &LIMITS, &mut place, &mut args) {
                    Ok(Parse::Request(len)) => {
                        found
                            .push(Ok((0..args.len()).map(|i| args.get(&held, i).into()).collect()));
                        held.drain(..len);
                    }
                    Ok(Parse::Incomplete) => break,
                    Err(error) => {
                        found.push(Err(error));
                        return found;
                    }
                }
            }
        }
        found
    }

    #[test]
    fn requests_cut_anywhere_are_the_same() {
        let bytes = b"*3\r\n$4\r\nHGET\r\n$3\r\na:1\r\n$0\r\n\r\n  GET a \r\n*0\r\n*-1\r\n\n*1\r\n$4\r\nPING\r\n*1\r\n$x";
        let whole = in_parts(bytes, &[]);
        assert_eq!(whole.len(), 7);
        for cut in 0..=bytes.len() {
            assert_eq!(in_parts(bytes, &[cut]), whole, "cut at {cut}");
        }
        assert_eq!(in_parts(bytes, &vec![1; bytes.len()]), whole);
    }

    #[test]
    fn what_was_read_is_not_read_again() {
        let mut bytes = b"*9\r\n$1\r\na\r\n".to_vec();
        let (mut place, mut args) = (Place::default(), Args::default());
        let mut read = |bytes: &[u8]| resume(bytes, &LIMITS, &mut place, &mut args);
        assert_eq!(read(&bytes), Ok(Parse::Incomplete));
        // What lies before is not looked at, whatever has become of it.
        bytes[4..].fill(b'!');
        bytes.extend(b"$1\r\nb\r\n$1");
        assert_eq!(read(&bytes), Ok(Parse::Incomplete));
        bytes.extend(b"x");
        assert!(read(&bytes).is_err());
    }

    /// Bytes that are requests more often than any would be.
    fn likely() -> impl proptest::strategy::Strategy<Value = Vec<u8>> {
        use proptest::prelude::*;
        let piece = prop_oneof![
            Just(b"*2\r\n".to_vec()),
            Just(b"*1\r\n".to_vec()),
            Just(b"$3\r\nabc\r\n".to_vec()),
            Just(b"$0\r\n\r\n".to_vec()),
            Just(b"GET a\r\n".to_vec()),
            "[ -~\r\n]{0,4}".prop_map(String::into_bytes),
            any::<Vec<u8>>(),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_in_any_parts_are_the_same(bytes in likely(), parts: Vec<u8>) {
            let parts: Vec<usize> = parts.into_iter().map(|part| usize::from(part % 16)).collect();
            let whole = in_parts(&bytes, &[]);
            proptest::prop_assert_eq!(in_parts(&bytes, &parts), whole.clone());
            proptest::prop_assert_eq!(in_parts(&bytes, &vec![1; bytes.len()]), whole);
        }

        #[test]
        fn any_bytes_are_answered_without_panic(bytes: Vec<u8>) {
            let _ = parsed(&bytes);
            let mut array = b"*2\r\n$".to_vec();
            array.extend(&bytes);
            let _ = parsed(&array);
        }
    }
}
