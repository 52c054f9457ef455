//! Finding where replies end, without copying them.

/// The protocol of the server under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// RESP2 or RESP3.
    Resp,
    /// PostgreSQL's; one reply ends at each ReadyForQuery.
    Postgres,
}

/// One whole reply at the front of the input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Its bytes.
    pub(crate) length: usize,
    /// The server's message, if it is an error.
    pub(crate) error: Option<String>,
}

impl Protocol {
    /// The first reply in `input`, or `None` if it is not whole yet.
    ///
    /// # Errors
    ///
    /// The bytes are not of this protocol.
    pub(crate) fn reply(self, input: &[u8]) -> Result<Option<Reply>, String> {
        match self {
            Self::Resp => resp(input),
            Self::Postgres => postgres(input),
        }
    }
}

fn resp(input: &[u8]) -> Result<Option<Reply>, String> {
    let Some(length) = resp_length(input, 0)? else { return Ok(None) };
    let error = matches!(input[0], b'-' | b'!')
        .then(|| String::from_utf8_lossy(&input[1..length]).trim().to_owned());
    Ok(Some(Reply { length, error }))
}

/// Where the value that starts at `from` ends.
fn resp_length(input: &[u8], from: usize) -> Result<Option<usize>, String> {
    let mut at = from;
    let mut values = 1u64;
    while values > 0 {
        let Some(line) = line_end(input, at) else { return Ok(None) };
        values -= 1;
        let (kind, digits) = (input[at], &input[at + 1..line - 2]);
        let count = || number(digits);
        at = line;
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            b'$' | b'!' | b'=' => {
                let bytes = count()?;
                if bytes >= 0 {
                    at += bytes as usize + 2;
                }
            }
            b'*' | b'~' | b'>' => values += count()?.max(0) as u64,
            b'%' => values += 2 * count()?.max(0) as u64,
            b'|' => values += 2 * count()?.max(0) as u64 + 1,
            other => return Err(format!("unexpected byte {other:#04x} in a RESP reply")),
        }
        if at > input.len() {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

fn line_end(input: &[u8], from: usize) -> Option<usize> {
    let rest = input.get(from..)?;
    let at = rest.iter().position(|&byte| byte == b'\n')?;
    (at >= 2).then_some(from + at + 1)
}

fn number(digits: &[u8]) -> Result<i64, String> {
    std::str::from_utf8(digits)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("a RESP length is not a number: {digits:?}"))
}

fn postgres(input: &[u8]) -> Result<Option<Reply>, String> {
    let mut at = 0;
    let mut error = None;
    loop {
        let Some(head) = input.get(at..at + 5) else { return Ok(None) };
        let size = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if size < 4 {
            return Err(format!("a PostgreSQL message claims {size} bytes"));
        }
        let Some(body) = input.get(at + 5..at + 1 + size) else { return Ok(None) };
        at += 1 + size;
        match head[0] {
            b'Z' => return Ok(Some(Reply { length: at, error })),
            b'E' => error = Some(server_error(body)),
            b'C' if body.ends_with(b" 0\0") => {
                error = Some(format!("no row touched: {}", String::from_utf8_lossy(body)));
            }
            _ => {}
        }
    }
}

/// Severity, code and message of an ErrorResponse.
pub(crate) fn server_error(body: &[u8]) -> String {
    let field = |kind: u8| {
        let text = body.split(|&b| b == 0).find(|f| f.first() == Some(&kind))?;
        Some(String::from_utf8_lossy(&text[1..]).into_owned())
    };
    let part = |kind| field(kind).unwrap_or_default();
    format!("{} {}: {}", part(b'S'), part(b'C'), part(b'M'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(input: &str) -> Option<usize> {
        Protocol::Resp.reply(input.as_bytes()).expect("RESP").map(|reply| reply.length)
    }

    #[test]
    fn every_prefix_of_a_resp_reply_is_incomplete() {
        let nested = "*3\r\n$3\r\nabc\r\n*2\r\n:1\r\n$-1\r\n%1\r\n+a\r\n#t\r\n";
        for end in 0..nested.len() {
            assert_eq!(length(&nested[..end]), None, "at {end}");
        }
        assert_eq!(length(nested), Some(nested.len()));
        assert_eq!(length(&format!("{nested}+OK\r\n")), Some(nested.len()));
    }

    #[test]
    fn errors_are_reported_and_garbage_is_refused() {
        let reply = Protocol::Resp.reply(b"-ERR no\r\n").expect("RESP").expect("whole");
        assert_eq!(reply.error.as_deref(), Some("ERR no"));
        assert!(Protocol::Resp.reply(b"HTTP/1.1\r\n").is_err());
    }

    #[test]
    fn postgres_reply_ends_at_ready_and_an_untouched_row_is_an_error() {
        let mut input = b"2\0\0\0\x04C\0\0\0\x0dUPDATE 1\0Z\0\0\0\x05I".to_vec();
        let whole = input.len();
        for end in 0..whole {
            assert_eq!(Protocol::Postgres.reply(&input[..end]).expect("fine"), None);
        }
        let reply = Protocol::Postgres.reply(&input).expect("fine").expect("whole");
        assert_eq!((reply.length, reply.error), (whole, None));
        input[whole - 8] = b'0';
        let reply = Protocol::Postgres.reply(&input).expect("fine").expect("whole");
        assert!(reply.error.expect("reported").contains("no row touched"));
    }
}
