//! Connections from within the process: the library's sessions. They say what sockets would say, and are answered in the
//! same order and under the same conditions; only the bytes take another way.

use super::Server;
use crate::serve::Event;
use crate::serve::Outbox;
use destage_core::{ClientId, Lsn};
use destage_engine::Drive;
use destage_runtime::handoff::{Receiver, Sender, queue};
use std::collections::HashMap;

/// What such a connection tells the server.
pub(crate) enum LocalEvent {
    /// Open one; the answer is its number and where its replies arrive. Without an answer the server has ended.
    Open(Sender<Result<(LocalId, Receiver<Replies>), Refusal>>),
    /// Requests.
    Requests(LocalId, Vec<u8>),
    /// Its next reply tells of this write.
    See(LocalId, Lsn),
    /// It has ended.
    Close(LocalId),
    /// The server is to end at once: what is dirty stays in the journal.
    Stop,
}

/// Which connection it is. What one says that the server has closed meanwhile is not taken for what another one says.
#[derive(Clone, Copy)]
pub(crate) struct LocalId {
    /// Its number in the engine, which is another one's once it is closed.
    client: ClientId,
    /// Its own for ever.
    number: u64,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// There are too many.
    Full,
    /// The server has ended, or is ending.
    Ended,
}

/// What arrives of its replies.
pub(crate) struct Replies {
    pub(crate) bytes: Vec<u8>,
    /// The server has closed it.
    pub(crate) are_last: bool,
}

/// One connection from within the process. Closed when dropped.
pub(crate) struct Local {
    id: LocalId,
    replies: Receiver<Replies>,
    outbox: Outbox,
}

impl Local {
    /// Opens a connection.
    pub(in crate::serve) fn open(outbox: &Outbox) -> Result<Self, Refusal> {
        let (answer, answered) = queue();
        outbox.send(Event::Local(LocalEvent::Open(answer)));
        let (id, replies) = answered.recv().unwrap_or(Err(Refusal::Ended))?;
        Ok(Self { id, replies, outbox: outbox.clone() })
    }

    /// Sends whole requests.
    pub(crate) fn send(&self, requests: Vec<u8>) {
        self.outbox.send(Event::Local(LocalEvent::Requests(self.id, requests)));
    }

    /// Has the next reply wait until this write may be told of.
    pub(crate) fn see(&self, lsn: Lsn) {
        self.outbox.send(Event::Local(LocalEvent::See(self.id, lsn)));
    }

    /// Waits for bytes of replies; `None` if the server has ended, or has closed it.
    pub(crate) fn receive(&self) -> Option<Replies> {
        self.replies.recv().ok()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.outbox.send(Event::Local(LocalEvent::Close(self.id)));
    }
}

/// Those that are open, by their numbers in the engine.
#[derive(Default)]
pub(super) struct Locals {
    mailboxes: HashMap<ClientId, Mailbox>,
    /// How many there have been.
    opened: u64,
}

struct Mailbox {
    number: u64,
    replies: Sender<Replies>,
}

impl Locals {
    pub(super) fn is_empty(&self) -> bool {
        self.mailboxes.is_empty()
    }

    pub(super) fn clients(&self) -> Vec<ClientId> {
        self.mailboxes.keys().copied().collect()
    }

    fn open(&mut self, client: ClientId) -> (LocalId, Receiver<Replies>) {
        let (replies, received) = queue();
        self.opened += 1;
        let number = self.opened;
        self.mailboxes.insert(client, Mailbox { number, replies });
        (LocalId { client, number }, received)
    }

    fn is_open(&self, id: LocalId) -> bool {
        self.mailboxes.get(&id.client).is_some_and(|mailbox| mailbox.number == id.number)
    }
}

impl Server {
    pub(super) fn local(&mut self, event: LocalEvent) {
        match event {
            LocalEvent::Open(answer) => self.open_local(&answer),
            LocalEvent::Stop => self.shell.end_now(self.engine.undecided()),
            LocalEvent::Requests(id, _) | LocalEvent::See(id, _) | LocalEvent::Close(id)
                if !self.locals.is_open(id) => {}
            LocalEvent::Requests(id, _) if self.shell.is_ending() => self.close_local(id.client),
            LocalEvent::Requests(id, requests) => {
                self.writers.came();
                let now = self.clock.now();
                self.engine.receive(now, id.client, &requests);
            }
            LocalEvent::See(id, lsn) => self.engine.see(id.client, lsn),
            LocalEvent::Close(id) => self.close_local(id.client),
        }
    }

    fn open_local(&mut self, answer: &Sender<Result<(LocalId, Receiver<Replies>), Refusal>>) {
        let opened = if self.shell.is_ending() {
            Err(Refusal::Ended)
        } else {
            self.engine.connect_trusted().ok_or(Refusal::Full)
        };
        let opened = opened.map(|client| self.locals.open(client));
        if let Err(unsent) = answer.send(opened)
            && let Ok((id, _)) = unsent.0
        {
            self.close_local(id.client);
        }
    }

    pub(super) fn close_local(&mut self, client: ClientId) {
        if self.locals.mailboxes.remove(&client).is_some() {
            self.engine.disconnect(self.clock.now(), client);
        }
    }

    /// Delivers the replies that may leave.
    pub(super) fn send_local(&mut self, client: ClientId) {
        let Some(mailbox) = self.locals.mailboxes.get(&client) else { return };
        let Some((ready, are_last)) = self.engine.outgoing(client) else { return };
        if ready.is_empty() && !are_last {
            return;
        }
        // Whoever does not listen any more has closed it, which comes next.
        let _ = mailbox.replies.send(Replies { bytes: std::mem::take(ready), are_last });
        self.engine.sent(client);
        if are_last {
            self.close_local(client);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::serve::EmbeddedServer;
    use crate::settings::Settings;

    #[test]
    fn what_a_connection_says_that_was_closed_is_not_taken_for_what_the_next_one_says() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("origin.db");
        let table = "CREATE TABLE notes (id INTEGER PRIMARY KEY)";
        rusqlite::Connection::open(&file).unwrap().execute_batch(table).unwrap();
        let settings = Settings {
            origin: Some(format!("sqlite:{}", file.display())),
            data: folder.path().join("data"),
            admin: None,
            ..Settings::default()
        };
        let server = EmbeddedServer::start(settings, false).unwrap();
        let closed = server.connect().unwrap();
        closed.send(b"*x\r\n".to_vec());
        let told = closed.receive().unwrap();
        assert!(told.are_last && told.bytes.starts_with(b"-ERR Protocol error"));
        let next = server.connect().unwrap();
        assert_eq!(next.id.client, closed.id.client);
        closed.send(b"*1\r\n$4\r\nPING\r\n".to_vec());
        drop(closed);
        for _ in 0..2 {
            next.send(b"*2\r\n$4\r\nECHO\r\n$4\r\nmine\r\n".to_vec());
            let told = next.receive().unwrap();
            assert_eq!(String::from_utf8(told.bytes).unwrap(), "$4\r\nmine\r\n");
        }
        server.stop(true).unwrap();
    }
}
