//! One connection.

use destage_core::{Span, Time};
use destage_runtime::sockets::Stream;
use destage_runtime::tls::TlsStream;
use std::io::{self, ErrorKind, Write};

/// What is told to a client that has begun with a command where TLS was expected.
pub(super) const SPEAKS_TLS: &[u8] =
    b"-ERR this port speaks TLS: use rediss://, or redis-cli --tls --cacert FILE\r\n";

/// The log tells of clients that do not come to speak TLS no more often than this.
const TOLD_EVERY: Span = Span::from_secs(10);

/// One connection.
pub(super) struct Client {
    pub(super) stream: TlsStream<Stream>,
    /// How much of the outgoing bytes has been taken by the stream.
    pub(super) sent: usize,
    /// There may be more to read than was read.
    pub(super) readable: bool,
    /// The socket takes no more for now.
    pub(super) blocked: bool,
    /// The encryption is not agreed on yet.
    pub(super) handshaking: bool,
    /// The peer has announced that it sends no more: nothing else will, so the socket is read to its end.
    pub(super) ending: bool,
    /// It was read to its end. The connection is closed once everything asked before is answered.
    pub(super) ended: bool,
}

impl Client {
    /// One that has just come.
    pub(super) fn new(stream: TlsStream<Stream>) -> Self {
        let handshaking = stream.is_handshaking();
        Self {
            stream,
            sent: 0,
            readable: false,
            blocked: false,
            handshaking,
            ending: false,
            ended: false,
        }
    }

    /// Sends these bytes, from where it has come to, as far as the socket takes them; whether all have left.
    pub(super) fn send(&mut self, ready: &[u8]) -> io::Result<bool> {
        while !self.blocked {
            let sent = if self.sent < ready.len() {
                self.stream.write(&ready[self.sent..]).map(|count| self.sent += count)
            } else if !self.stream.is_flushed() {
                self.stream.flush()
            } else {
                return Ok(true);
            };
            match sent {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.blocked = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                sent => sent?,
            }
        }
        Ok(false)
    }
}

/// Clients that did not come to speak TLS, and that the log may not have told of.
#[derive(Default)]
pub(super) struct Refused {
    untold: u64,
    told: Option<Time>,
}

impl Refused {
    /// One more, unless it has only hung up.
    pub(super) fn note(&mut self, now: Time, error: &io::Error) {
        if error.kind() != ErrorKind::InvalidData {
            return;
        }
        self.untold += 1;
        if self.told.is_none_or(|told| now.since(told) >= TOLD_EVERY) {
            let clients = std::mem::take(&mut self.untold);
            self.told = Some(now);
            tracing::warn!(%error, clients, "clients were refused that did not come to speak TLS");
        }
    }
}
