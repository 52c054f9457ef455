//! Replies that clients have not read: how many bytes of them there are, of each client and of all, and who has to go when they
//! are too many.

use super::Engine;
use super::session::Session;
use destage_core::ClientId;

/// Most bytes of replies that wait for a client that has not sent the password.
const STRANGER_BYTES_MAX: usize = 16 << 10;

/// What is unread, of all clients.
#[derive(Debug, Default)]
pub(super) struct Unread {
    bytes: usize,
    /// Clients that were disconnected for it.
    cut: u64,
}

impl Unread {
    /// Bytes of replies that wait for clients.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// How many clients were disconnected.
    pub(super) fn cut(&self) -> u64 {
        self.cut
    }

    /// A client is gone.
    pub(super) fn forget(&mut self, session: &Session) {
        self.bytes -= session.unread_bytes;
    }

    /// Counts what is unread of one client as it is now.
    fn count(&mut self, session: &mut Session) {
        let bytes = session.output_bytes();
        self.bytes = self.bytes - session.unread_bytes + bytes;
        session.unread_bytes = bytes;
    }

    fn cut_off(&mut self, client: ClientId, session: &mut Session, total: usize) {
        let own = session.output_bytes();
        tracing::warn!(
            client = client.0,
            bytes = own,
            all_clients_bytes = total,
            "a client has left too many replies unread; disconnecting it (--output-limit, --output-limit-total)"
        );
        // Given back at once: nobody may ever read it.
        (session.out, session.gated, session.ready) = (Vec::new(), Vec::new(), Vec::new());
        (session.closing, session.is_cut) = (true, true);
        self.cut += 1;
        self.count(session);
    }
}

impl Engine {
    /// Most bytes of replies that may wait for a client.
    fn unread_bytes_max(&self, session: &Session) -> usize {
        match session.known {
            true => self.config.output_bytes_max,
            false => STRANGER_BYTES_MAX.min(self.config.output_bytes_max),
        }
    }

    /// Whether a client leaves too much unread. Where all of them together do, those go first that leave more than this one.
    pub(super) fn outgrows(&mut self, session: &mut Session) -> bool {
        self.unread.count(session);
        let own = session.unread_bytes;
        own > self.unread_bytes_max(session) || !self.make_room(0, own)
    }

    /// Disconnects clients that leave more than `least` bytes unread, most first, until there is room for so many bytes; false if
    /// there is none then.
    fn make_room(&mut self, bytes: usize, least: usize) -> bool {
        let total_max = self.config.output_total_bytes_max;
        while self.unread.bytes.saturating_add(bytes) > total_max {
            let sessions = self.sessions.iter_mut().enumerate();
            let unread = sessions.filter_map(|(at, slot)| Some((at, slot.as_deref_mut()?)));
            let most = unread.max_by_key(|(_, session)| session.unread_bytes);
            let Some((at, session)) = most.filter(|(_, session)| session.unread_bytes > least)
            else {
                return false;
            };
            let client = ClientId(at as u32);
            let total = self.unread.bytes;
            self.unread.cut_off(client, session, total);
            self.sends.push(client);
        }
        true
    }

    /// Whether one more client may be given a copy of a reply of so many bytes that others were given just now, who are not to
    /// go for it.
    ///
    /// # Errors
    /// The reply to give instead.
    pub(super) fn may_copy(&mut self, bytes: usize) -> Result<(), &'static str> {
        if bytes > self.config.output_bytes_max {
            return Err(crate::resp::TOO_LONG);
        }
        match self.make_room(bytes, bytes.saturating_mul(2)) {
            true => Ok(()),
            false => Err(
                "BUSY clients have left too many replies unread (--output-limit-total); try again",
            ),
        }
    }

    /// Counts what a client has been given beside its own turn.
    pub(super) fn count_unread(&mut self, session: &mut Session) {
        self.unread.count(session);
    }

    /// Disconnects a client that leaves too much unread.
    pub(super) fn cut_off(&mut self, client: ClientId, session: &mut Session) {
        let total = self.unread.bytes;
        self.unread.cut_off(client, session, total);
        self.sends.push(client);
    }

    /// Replies of a client were sent, as [`Engine::outgoing`] gave them.
    pub fn sent(&mut self, client: ClientId) {
        if let Some(Some(session)) = self.sessions.get_mut(client.0 as usize) {
            self.unread.count(session);
        }
    }

    /// Whether the connection is to be closed at once, whatever of the replies has been sent.
    pub fn is_cut(&self, client: ClientId) -> bool {
        self.sessions
            .get(client.0 as usize)
            .and_then(Option::as_deref)
            .is_some_and(|session| session.is_cut)
    }
}
