//! Errors as replies: a code, which is the first word on the wire, and a text for people.

use std::borrow::Cow;
use std::fmt;

/// What kind of error a reply tells of. Clients look at the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The request does not fit, or asks for what is not possible.
    Err,
    /// The key is of another kind.
    WrongType,
    /// The password was not sent.
    NoAuth,
    /// The password is another one.
    WrongPass,
    /// The user has not the right to this.
    NoPerm,
    /// There is no such version of the protocol.
    NoProto,
    /// A transaction was discarded.
    ExecAbort,
    /// Too much waits already.
    Busy,
    /// A limit is reached.
    Full,
    /// The oldest write has waited for the origin for too long.
    Stale,
    /// The origin, or what a request waited for, did not answer.
    Unavailable,
    /// The origin refuses what is needed.
    Denied,
    /// The origin has judged a write, and rejected it.
    Rejected,
    /// The same, and the write is parked.
    Parked,
    /// It is done or on its way, and its answer has to wait.
    Pending,
    /// Not everything was done in the time given.
    Timeout,
    /// The server does not serve any more.
    Stopped,
    /// Another session was faster.
    Retry,
    /// A row that is to be new is there.
    Exists,
    /// A set has too many members for what is asked.
    Large,
    /// Destaging is paused.
    Paused,
    /// Nobody has sent the script that is named.
    NoScript,
    /// No script is under way.
    NotBusy,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::Err,
        Self::WrongType,
        Self::NoAuth,
        Self::WrongPass,
        Self::NoPerm,
        Self::NoProto,
        Self::ExecAbort,
        Self::Busy,
        Self::Full,
        Self::Stale,
        Self::Unavailable,
        Self::Denied,
        Self::Rejected,
        Self::Parked,
        Self::Pending,
        Self::Timeout,
        Self::Stopped,
        Self::Retry,
        Self::Exists,
        Self::Large,
        Self::Paused,
        Self::NoScript,
        Self::NotBusy,
    ];

    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Err => "ERR",
            Self::WrongType => "WRONGTYPE",
            Self::NoAuth => "NOAUTH",
            Self::WrongPass => "WRONGPASS",
            Self::NoPerm => "NOPERM",
            Self::NoProto => "NOPROTO",
            Self::ExecAbort => "EXECABORT",
            Self::Busy => "BUSY",
            Self::Full => "FULL",
            Self::Stale => "STALE",
            Self::Unavailable => "UNAVAILABLE",
            Self::Denied => "DENIED",
            Self::Rejected => "REJECTED",
            Self::Parked => "PARKED",
            Self::Pending => "PENDING",
            Self::Timeout => "TIMEOUT",
            Self::Stopped => "STOPPED",
            Self::Retry => "RETRY",
            Self::Exists => "EXISTS",
            Self::Large => "LARGE",
            Self::Paused => "PAUSED",
            Self::NoScript => "NOSCRIPT",
            Self::NotBusy => "NOTBUSY",
        }
    }
}

/// An error that a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyError {
    code: Code,
    text: Cow<'static, str>,
}

impl ReplyError {
    /// An error with this code and text.
    pub fn new(code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, text: text.into() }
    }

    /// One that is always the same.
    pub const fn fixed(code: Code, text: &'static str) -> Self {
        Self { code, text: Cow::Borrowed(text) }
    }

    /// A request that does not fit, or asks for what is not possible.
    pub fn err(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Err, text)
    }

    /// An error as it came over the wire; what begins with no known word is an `ERR` as a whole.
    pub fn from_wire(line: &str) -> Self {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match Code::ALL.into_iter().find(|code| code.word() == word) {
            Some(code) => Self::new(code, rest.to_owned()),
            None => Self::err(line.to_owned()),
        }
    }

    /// Its code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Its text, without the code.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same text under another code, behind these words.
    #[must_use]
    pub fn within(&self, code: Code, before: &str) -> Self {
        Self::new(code, format!("{before}{}", self.text))
    }
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code.word(), self.text)
    }
}

impl std::error::Error for ReplyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_read_as_it_was_written() {
        for code in Code::ALL {
            let error = ReplyError::new(code, "what happened, and what to do");
            assert_eq!(ReplyError::from_wire(&error.to_string()), error);
        }
        assert_eq!(ReplyError::from_wire("no word"), ReplyError::err("no word"));
        assert_eq!(ReplyError::from_wire("BUSY").code(), Code::Busy);
    }
}
