//! What can go wrong, sorted by what the caller does about it.

use crate::resp::{Code, ReplyError};
use crate::serve::ServeError;
use destage_runtime::admin::ControlError;

/// An error of the library: what happened, to what, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What to do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another session was faster, or this one took longer than its leases last: [`Store::session`](super::Store::session)
    /// tries again by itself, and gives this error only when its time-out for retries is over.
    Conflict,
    /// Too much waits already: try again after a while. Sessions do so by themselves.
    Busy,
    /// The limit of buffered writes is reached: try again when some are destaged.
    Full,
    /// The oldest write has waited for the origin longer than D: no write is acknowledged until the origin is up again.
    Stale,
    /// The origin is needed and cannot be reached.
    Unavailable,
    /// The origin refuses what is needed: permissions, mostly.
    Denied,
    /// The origin has judged the write, under write-through, and rejected it. Nothing was done.
    Rejected,
    /// A key, field or value does not fit the tables, or the session asks for what is not possible. Nothing was done.
    Invalid,
    /// The row to be inserted exists. Nothing was done.
    Exists,
    /// The row to be changed does not exist.
    Missing,
    /// Not everything was done in the time given.
    Timeout,
    /// The session is kept and goes to the origin, but could not be acknowledged in the time that there is for it
    /// ([`Settings::client_wait`](super::Settings::client_wait)): do not repeat it. Should the origin reject it, the log
    /// tells so.
    Pending,
    /// The store has failed while the end of a session was awaited: whether that took effect is not known. The next store on
    /// the same folder shows it.
    Unknown,
    /// The store could not be opened, has failed, or is closed. A session was not begun, or had not come to its end: nothing
    /// was done.
    Closed,
    /// The caller's own reason to end a session: see [`Error::abort`].
    Aborted,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The caller's own reason to end a session without effect, to be told to whoever called
    /// [`Store::session`](super::Store::session).
    pub fn abort(reason: impl Into<String>) -> Self {
        Self::new(ErrorKind::Aborted, reason)
    }

    /// As [`Error::abort`], for an error of another kind, which becomes the source of this one.
    pub fn abort_with(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let source = error.into();
        Self { kind: ErrorKind::Aborted, message: source.to_string(), source: Some(source) }
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same session may succeed if it is tried again at once or after a while.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Conflict | ErrorKind::Busy)
    }

    pub(crate) fn closed(reason: Option<&ServeError>) -> Self {
        let why = reason.map_or_else(|| "it is closed or closing".to_owned(), ToString::to_string);
        Self::new(ErrorKind::Closed, format!("the store does not answer: {why}"))
    }

    /// What is told of the changes of a session for whose end this came.
    pub(crate) fn of_changes(self) -> Self {
        if self.kind != ErrorKind::Closed {
            return self;
        }
        let message = format!(
            "whether the session took effect is not known: {}; open the store again, and read",
            self.message
        );
        Self { kind: ErrorKind::Unknown, message, source: self.source }
    }
}

/// An error as the engine tells it.
impl From<ReplyError> for Error {
    fn from(error: ReplyError) -> Self {
        Self::new(kind_of(error.code()), error.text())
    }
}

/// What to do about an error with this code.
fn kind_of(code: Code) -> ErrorKind {
    match code {
        Code::Retry => ErrorKind::Conflict,
        Code::Busy => ErrorKind::Busy,
        Code::Full => ErrorKind::Full,
        Code::Stale => ErrorKind::Stale,
        Code::Unavailable => ErrorKind::Unavailable,
        Code::Denied => ErrorKind::Denied,
        Code::Rejected | Code::Parked => ErrorKind::Rejected,
        // Of what changes no rows, as all but the end of a session: it may be repeated.
        Code::Timeout | Code::Pending => ErrorKind::Timeout,
        Code::Stopped => ErrorKind::Closed,
        Code::Exists => ErrorKind::Exists,
        Code::Err
        | Code::WrongType
        | Code::NoAuth
        | Code::WrongPass
        | Code::NoPerm
        | Code::NoProto
        | Code::ExecAbort
        | Code::Large
        | Code::Paused
        | Code::NoScript
        | Code::NotBusy => ErrorKind::Invalid,
    }
}

impl From<ServeError> for Error {
    fn from(error: ServeError) -> Self {
        Self { kind: ErrorKind::Closed, message: error.to_string(), source: Some(Box::new(error)) }
    }
}

impl From<ControlError> for Error {
    fn from(error: ControlError) -> Self {
        let kind = match error {
            ControlError::Unavailable(_) => ErrorKind::Closed,
            ControlError::Invalid(_) => ErrorKind::Invalid,
            ControlError::Failed(_) | ControlError::TimedOut(_) => ErrorKind::Timeout,
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_tried_again_is_told_from_what_may_not() {
        let retryable =
            Code::ALL.map(|code| Error::from(ReplyError::new(code, "why")).is_retryable());
        let expected = Code::ALL.map(|code| matches!(code, Code::Retry | Code::Busy));
        assert_eq!(retryable, expected);
        let parked = Error::from(ReplyError::new(Code::Parked, "the origin rejected it"));
        assert_eq!(
            (parked.kind(), &*parked.to_string()),
            (ErrorKind::Rejected, "the origin rejected it")
        );
    }
}
