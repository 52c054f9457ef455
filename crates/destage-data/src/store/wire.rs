//! Requests to the engine and its replies, as bytes: the sessions of the library speak to it as every other client does.

use super::{Error, ErrorKind};
use crate::resp::ReplyError;

/// What the engine answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Simple(String),
    Error(ReplyError),
    Int(i64),
    Bulk(Option<Vec<u8>>),
    Array(Option<Vec<Self>>),
}

impl Answer {
    /// What was told, unless it is an error.
    pub(crate) fn accepted(self) -> Result<Self, Error> {
        match self {
            Self::Error(error) => Err(error.into()),
            answer => Ok(answer),
        }
    }
}

/// Appends a request.
pub(crate) fn push_request(out: &mut Vec<u8>, words: &[&[u8]]) {
    push_number(out, b'*', words.len());
    for word in words {
        push_number(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn push_number(out: &mut Vec<u8>, mark: u8, number: usize) {
    out.push(mark);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Reads one answer from the front of `bytes`; with it how many of them it took. `None` if it is not there in whole yet.
pub(crate) fn read_answer(bytes: &[u8]) -> Result<Option<(Answer, usize)>, Error> {
    let mut reader = Reader { bytes, at: 0 };
    match reader.answer() {
        Ok(answer) => Ok(Some((answer, reader.at))),
        Err(Broken::Incomplete) => Ok(None),
        Err(Broken::Malformed) => {
            Err(Error::new(ErrorKind::Closed, "the engine's answer does not follow the protocol"))
        }
    }
}

enum Broken {
    Incomplete,
    Malformed,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn line(&mut self) -> Result<&'a [u8], Broken> {
        let rest = &self.bytes[self.at..];
        let end = memchr::memchr(b'\n', rest).ok_or(Broken::Incomplete)?;
        self.at += end + 1;
        rest[..end].strip_suffix(b"\r").ok_or(Broken::Malformed)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Broken> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..len + 2).ok_or(Broken::Incomplete)?;
        self.at += len + 2;
        Ok(&taken[..len])
    }

    fn answer(&mut self) -> Result<Answer, Broken> {
        let line = self.line()?;
        let (&mark, text) = line.split_first().ok_or(Broken::Malformed)?;
        let shown = || String::from_utf8_lossy(text).into_owned();
        let number = || std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
        match mark {
            b'+' => Ok(Answer::Simple(shown())),
            b'-' => Ok(Answer::Error(ReplyError::from_wire(&shown()))),
            b':' => number().map(Answer::Int).ok_or(Broken::Malformed),
            b'$' | b'*' => {
                let len = number().ok_or(Broken::Malformed)?;
                let len = usize::try_from(len).ok();
                match (mark, len) {
                    (b'$', Some(len)) => Ok(Answer::Bulk(Some(self.take(len)?.to_vec()))),
                    (b'$', None) => Ok(Answer::Bulk(None)),
                    (_, None) => Ok(Answer::Array(None)),
                    (_, Some(len)) => {
                        let answers: Result<Vec<_>, _> = (0..len).map(|_| self.answer()).collect();
                        answers.map(|answers| Answer::Array(Some(answers)))
                    }
                }
            }
            _ => Err(Broken::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let bytes = b"*3\r\n:-7\r\n$2\r\nab\r\n*-1\r\n+OK\r\n";
        let len = bytes.len() - 5;
        for cut in 0..len {
            assert!(matches!(read_answer(&bytes[..cut]), Ok(None)), "cut at {cut}");
        }
        let whole = vec![Answer::Int(-7), Answer::Bulk(Some(b"ab".to_vec())), Answer::Array(None)];
        let (answer, used) = read_answer(bytes).unwrap().unwrap();
        assert_eq!((answer, used), (Answer::Array(Some(whole)), len));
        assert!(read_answer(b"?\r\n").is_err());
    }

    #[test]
    fn requests_are_read_back_by_the_engines_own_parser() {
        let mut bytes = Vec::new();
        push_request(&mut bytes, &[b"HSET", b"a:1", b"\r\n", b""]);
        let mut args = crate::resp::Args::default();
        let limits = crate::resp::RequestLimits { bytes_max: 100, args_max: 9 };
        let parsed = crate::resp::parse(&bytes, &limits, &mut args);
        assert_eq!(parsed, Ok(crate::resp::Parse::Request(bytes.len())));
        assert_eq!((args.len(), args.get(&bytes, 2)), (4, b"\r\n".as_slice()));
    }
}
