//! Who knows that writes were lost at the origin.
//!
//! A write that went past the log was answered before it was durable, so a loss shows at a later flush. Any client may have
//! made that write, and the flush of one covers the writes of all: so each of them is told, once. A client that connects
//! later is told if nobody was before. That is what Linux does for the descriptors of a file.

use crate::request::{Reply, RequestError};

/// What one volume's clients were told.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportedLosses(u64);

impl ReportedLosses {
    /// What a client knows that connects now, for [`ReportedLosses::answer`].
    pub fn known(&self) -> u64 {
        self.0
    }

    /// The reply to a flush, or to a write that had to be durable, for a client that knows of `known` losses of the
    /// `found` that there were.
    pub fn answer(&mut self, known: &mut u64, found: u64, reply: Reply) -> Reply {
        let is_news = *known < found;
        *known = found;
        self.0 = found;
        match (is_news, reply) {
            (true, Reply::Done) => Reply::Error(RequestError::Io),
            (_, reply) => reply,
        }
    }
}
