//! Connections from within the process: the library's sessions. They say what sockets would say, and are answered in the
//! same order and under the same conditions; only the bytes take another way.

use super::Server;
use crate::serve::Event;
use crate::serve::Outbox;
use destage_core::{ClientId, Lsn};
use destage_engine::Drive;
use destage_runtime::handoff::{Receiver, Sender, queue};

/// What such a connection tells the server.
pub(crate) enum LocalEvent {
    /// Open one; the answer is its number and where its replies arrive. Without an answer there are too many, or the server
    /// is ending.
    Open(Sender<(ClientId, Receiver<Vec<u8>>)>),
    /// Requests.
    Requests(ClientId, Vec<u8>),
    /// Its next reply tells of this write.
    See(ClientId, Lsn),
    /// It has ended.
    Close(ClientId),
    /// The server is to end at once: what is dirty stays in the journal.
    Stop,
}

/// One connection from within the process. Closed when dropped.
pub(crate) struct Local {
    client: ClientId,
    replies: Receiver<Vec<u8>>,
    outbox: Outbox,
}

impl Local {
    /// Opens a connection; `None` if there are too many or the server has ended.
    pub(in crate::serve) fn open(outbox: &Outbox) -> Option<Self> {
        let (answer, answered) = queue();
        outbox.send(Event::Local(LocalEvent::Open(answer)));
        let (client, replies) = answered.recv().ok()?;
        Some(Self { client, replies, outbox: outbox.clone() })
    }

    /// Sends whole requests.
    pub(crate) fn send(&self, requests: Vec<u8>) {
        self.outbox.send(Event::Local(LocalEvent::Requests(self.client, requests)));
    }

    /// Has the next reply wait until this write may be told of.
    pub(crate) fn see(&self, lsn: Lsn) {
        self.outbox.send(Event::Local(LocalEvent::See(self.client, lsn)));
    }

    /// Waits for bytes of replies; `None` if the server has ended.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        self.replies.recv().ok()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.outbox.send(Event::Local(LocalEvent::Close(self.client)));
    }
}

impl Server {
    pub(super) fn local(&mut self, event: LocalEvent) {
        match event {
            LocalEvent::Open(answer) => self.open_local(&answer),
            LocalEvent::Requests(client, requests) => {
                if self.shell.is_ending() {
                    return self.close_local(client);
                }
                if self.locals.contains_key(&client) {
                    self.writers.came();
                    let now = self.clock.now();
                    self.engine.receive(now, client, &requests);
                }
            }
            LocalEvent::See(client, lsn) => self.engine.see(client, lsn),
            LocalEvent::Close(client) => self.close_local(client),
            LocalEvent::Stop => self.shell.end_now(self.engine.undecided()),
        }
    }

    fn open_local(&mut self, answer: &Sender<(ClientId, Receiver<Vec<u8>>)>) {
        if self.shell.is_ending() {
            return;
        }
        let Some(client) = self.engine.connect_trusted() else { return };
        let (mailbox, replies) = queue();
        self.locals.insert(client, mailbox);
        if answer.send((client, replies)).is_err() {
            self.close_local(client);
        }
    }

    pub(super) fn close_local(&mut self, client: ClientId) {
        if self.locals.remove(&client).is_some() {
            self.engine.disconnect(self.clock.now(), client);
        }
    }

    /// Delivers the replies that may leave.
    pub(super) fn send_local(&mut self, client: ClientId) {
        let Some(mailbox) = self.locals.get(&client) else { return };
        let Some((ready, closing)) = self.engine.outgoing(client) else { return };
        if ready.is_empty() && !closing {
            return;
        }
        // Whoever does not listen any more has closed it, which comes next.
        let _ = mailbox.send(std::mem::take(ready));
        self.engine.sent(client);
        if closing {
            self.close_local(client);
        }
    }
}
