//! Replies that clients have not read: how many bytes of them there are, of each client and of all, and when they are too
//! many.

use super::super::session::Session;
use destage_core::ClientId;

/// Most bytes of replies that wait for a client that has not sent the password.
const STRANGER_BYTES_MAX: usize = 16 << 10;

/// What is unread, of all clients.
#[derive(Debug)]
pub(super) struct Unread {
    bytes: usize,
    /// Most that one client may leave unread.
    client_bytes_max: usize,
    /// Most that all of them may.
    total_bytes_max: usize,
    /// Clients that were disconnected for it.
    cut: u64,
}

impl Unread {
    pub(super) fn new(client_bytes_max: usize, total_bytes_max: usize) -> Self {
        Self { bytes: 0, client_bytes_max, total_bytes_max, cut: 0 }
    }

    /// Bytes of replies that wait for clients.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// How many clients were disconnected.
    pub(super) fn cut(&self) -> u64 {
        self.cut
    }

    /// Most bytes of replies that may wait for a client.
    pub(super) fn bytes_max(&self, session: &Session) -> usize {
        if session.known {
            self.client_bytes_max
        } else {
            STRANGER_BYTES_MAX.min(self.client_bytes_max)
        }
    }

    /// Whether a reply is longer than any client may leave unread.
    pub(super) fn is_too_long(&self, bytes: usize) -> bool {
        bytes > self.client_bytes_max
    }

    /// Whether all clients together may leave so much more unread.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.bytes.saturating_add(bytes) <= self.total_bytes_max
    }

    /// A client is gone.
    pub(super) fn forget(&mut self, session: &Session) {
        self.bytes -= session.unread_bytes;
    }

    /// Counts what is unread of one client as it is now.
    pub(super) fn count(&mut self, session: &mut Session) {
        let bytes = session.output_bytes();
        assert!(
            self.bytes >= session.unread_bytes,
            "all leave at least as much unread as one of them"
        );
        self.bytes = self.bytes - session.unread_bytes + bytes;
        session.unread_bytes = bytes;
    }

    /// Disconnects a client.
    pub(super) fn cut_off(&mut self, client: ClientId, session: &mut Session) {
        tracing::warn!(
            client = client.0,
            bytes = session.output_bytes(),
            all_clients_bytes = self.bytes,
            "a client has left too many replies unread; disconnecting it (--output-limit, --output-limit-total)"
        );
        self.cut += 1;
        self.give_up(session);
    }

    /// Drops what a client has not read: it is closed at once.
    pub(super) fn give_up(&mut self, session: &mut Session) {
        // Given back at once: nobody may ever read it.
        (session.out, session.gated, session.ready) = (Vec::new(), Vec::new(), Vec::new());
        (session.pushes, session.gated_pushes) = (Vec::new(), Vec::new());
        (session.closing, session.is_cut) = (true, true);
        self.count(session);
    }
}
