//! The clients' sockets: accepting, reading, sending, closing.

use super::super::client::{Client, SPEAKS_TLS};
use super::{OUTPUT_KEPT_BYTES, READS_IN_A_ROW, Server};
use crate::engine::TURN;
use destage_core::{ClientId, Time};
use destage_runtime::tls::TlsStream;
use mio::{Interest, Token};
use std::io::{self, Write};

impl Server {
    pub(super) fn accept(&mut self) {
        while let Some((mut stream, from)) = self.shell.accept() {
            let is_encrypted = self.tls.is_some();
            let Some(id) = self.engine.connect_from(self.clock.now(), from, !is_encrypted) else {
                // Who expects TLS could not read it.
                if !is_encrypted {
                    let _ =
                        stream.write(b"-ERR max number of clients reached; see --max-clients\r\n");
                }
                continue;
            };
            let interest = Interest::READABLE | Interest::WRITABLE;
            let token = Token(id.0 as usize);
            let registry = self.shell.registry();
            let watched = registry
                .register(stream.source(), token, interest)
                .and_then(|()| TlsStream::new(stream, self.tls.as_ref()));
            let stream = match watched {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot watch a connection");
                    self.engine.disconnect(self.clock.now(), id);
                    continue;
                }
            };
            if self.clients.len() <= token.0 {
                self.clients.resize_with(token.0 + 1, || None);
            }
            self.clients[token.0] = Some(Client::new(stream));
        }
    }

    pub(super) fn read(&mut self, id: ClientId) {
        let now = self.now();
        let end = self.engine.work() + TURN;
        for _ in 0..READS_IN_A_ROW {
            let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::as_mut) else {
                return;
            };
            if client.ended {
                return;
            }
            let is_over = self.engine.work() >= end || self.shell.is_ending();
            if is_over || !self.engine.wants_input(id) {
                break;
            }
            if client.handshaking {
                let Some(left) = self.handshakes_left.checked_sub(1) else { break };
                self.handshakes_left = left;
            }
            let read = client.stream.read_all(&mut self.buffer);
            if client.handshaking && !client.stream.is_handshaking() {
                client.handshaking = false;
                self.engine.greet(id);
            }
            match read {
                Ok(0) => return self.end(id),
                Ok(count) => {
                    let is_full = count == self.buffer.len();
                    let more = is_full || client.ending || client.stream.is_encrypted();
                    self.engine.receive(now, id, &self.buffer[..count]);
                    // Less than asked for: the socket is empty, and more will be announced.
                    if !more {
                        return self.read_again_later(id, false);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.read_again_later(id, false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if client.handshaking {
                        self.refused.note(now, &error);
                    }
                    if client.stream.spoke_in_the_clear() {
                        client.stream.answer_in_the_clear(SPEAKS_TLS);
                    }
                    return self.close(id);
                }
            }
        }
        self.read_again_later(id, true);
    }

    /// The peer will send no more.
    pub(super) fn ending(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::as_mut) {
            client.ending = true;
        }
    }

    /// The peer sends no more than what has arrived, whether or not that is read yet: it may be gone.
    pub(super) fn hang_up(&mut self, id: ClientId) {
        if self.clients.get(id.0 as usize).is_some_and(Option::is_some) {
            let now = self.now();
            self.engine.hang_up(now, id);
        }
    }

    /// The peer has sent everything. It may still wait for answers, as `printf ... | nc` does.
    pub(super) fn end(&mut self, id: ClientId) {
        if let Some(client) = self.clients[id.0 as usize].as_mut() {
            client.ended = true;
        }
        if self.engine.is_idle(id) {
            self.close(id);
        }
    }

    fn read_again_later(&mut self, id: ClientId, again: bool) {
        if let Some(client) = self.clients[id.0 as usize].as_mut() {
            if again && !client.readable {
                self.unread.push(id);
            }
            client.readable = again;
        }
    }

    /// Reads on where reading stopped for fairness or because a command waited.
    pub(super) fn read_unread(&mut self) {
        if self.unread.is_empty() || self.shell.is_ending() {
            return;
        }
        for id in std::mem::take(&mut self.unread) {
            let Some(client) = self.clients[id.0 as usize].as_mut() else { continue };
            if !client.readable {
                continue;
            }
            if self.engine.wants_input(id) {
                client.readable = false;
                self.read(id);
            } else {
                self.unread.push(id);
            }
        }
    }

    pub(super) fn unblock(&mut self, id: ClientId) {
        let is_handshaking = |client: &Client| client.handshaking;
        if self.clients.get(id.0 as usize).and_then(Option::as_ref).is_some_and(is_handshaking) {
            // It sends in turn.
            self.read(id);
        }
        let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        // TLS has words of its own to send.
        if std::mem::take(&mut client.blocked) || !client.stream.is_flushed() {
            self.send(id);
        }
    }

    /// Sends every reply that may leave; the number of clients is returned.
    pub(super) fn send_all(&mut self) -> usize {
        let mut sends = std::mem::take(&mut self.sends);
        self.engine.take_sends(&mut sends);
        for &id in &sends {
            self.send(id);
        }
        let count = sends.len();
        self.sends = sends;
        count
    }

    /// Tells those clients that nothing more will come who have all of their replies.
    pub(super) fn say_end(&mut self) {
        for client in self.clients.iter_mut().flatten().filter(|client| !client.blocked) {
            client.stream.say_end();
        }
    }

    /// Sends what was held back, if it may leave now; what has waited for too long is answered otherwise.
    pub(super) fn send_held(&mut self) {
        if !self.syncer.may_answer() {
            return self.withhold_late();
        }
        for (id, _) in std::mem::take(&mut self.held) {
            self.send(id);
        }
    }

    /// When something has been held back for too long at the latest.
    pub(super) fn next_withheld(&self) -> Option<Time> {
        let since = self.held.iter().map(|(_, since)| *since).min()?;
        Some(since + self.settings.client_wait)
    }

    fn withhold_late(&mut self) {
        let (now, wait) = (self.now(), self.settings.client_wait);
        let is_late = |(_, since): &mut (ClientId, Time)| *since + wait <= now;
        let late: Vec<_> = self.held.extract_if(.., is_late).collect();
        for (id, _) in late {
            let client = self.clients.get(id.0 as usize).and_then(Option::as_ref);
            if client.is_some_and(|client| client.sent > 0) {
                // A part of it has left while it might.
                self.close(id);
            } else {
                self.engine.withhold_ready(id);
            }
        }
    }

    /// Sends what may leave, as far as the socket takes it.
    fn send(&mut self, id: ClientId) {
        if self.clients.get(id.0 as usize).is_some_and(Option::is_some) && self.engine.is_cut(id) {
            return self.close(id);
        }
        // Before each reply: this process may have been stopped for any time, and another one be the owner by now.
        if !self.syncer.may_answer() && !self.engine.tells_nothing(id) {
            if !self.held.iter().any(|(held, _)| *held == id) {
                self.held.push((id, self.now()));
            }
            return;
        }
        let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return self.send_local(id);
        };
        let Some((ready, closing)) = self.engine.outgoing(id) else { return };
        if closing && client.handshaking {
            // It can be told nothing yet.
            return self.close(id);
        }
        match client.send(ready) {
            Err(_) => return self.close(id),
            Ok(false) => return,
            Ok(true) => {}
        }
        client.sent = 0;
        ready.clear();
        if ready.capacity() > OUTPUT_KEPT_BYTES {
            *ready = Vec::new();
        }
        self.engine.sent(id);
        let ended = client.ended;
        if closing || (ended && self.engine.is_idle(id)) {
            self.close(id);
        }
    }

    pub(super) fn close(&mut self, id: ClientId) {
        if let Some(mut client) = self.clients.get_mut(id.0 as usize).and_then(Option::take) {
            client.stream.say_end();
            // Closing the socket removes it from the poll in any case.
            let _ = self.shell.registry().deregister(client.stream.inner().source());
            self.held.retain(|(held, _)| *held != id);
            self.engine.disconnect(self.clock.now(), id);
        }
    }
}
