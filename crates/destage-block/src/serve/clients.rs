//! The clients' sockets: accepting, reading, sending, closing.

use super::Served;
use super::fuse::Answer;
use super::server::{LISTENER, Server};
use crate::nbd::server::{Connection, Cookie, End, Event, Limits, Received};
use crate::request::{Reply, Request};
use destage_runtime::sockets::Stream;
use mio::{Interest, Token};
use std::io;

/// How often in a row one connection is read before others get their turn.
const READS_IN_A_ROW: usize = 8;

/// One connection.
pub(super) struct Client {
    connection: Connection<Stream>,
    /// The export that it opened.
    volume: Option<usize>,
    /// How many losses at the origin it was told of.
    losses_known: u64,
    /// Tells it from the one that had the same place before.
    number: u64,
    /// There may be more to read than was read.
    readable: bool,
    /// It stands in the list of those to be looked at.
    listed: bool,
}

/// Who asks.
pub(super) enum Asker {
    /// An NBD client.
    Client { place: usize, number: u64, cookie: Cookie },
    /// Whoever has the volume's file open.
    File(Answer),
}

/// Whose request it is.
pub(super) struct Asked {
    pub(super) asker: Asker,
    /// When it came, for the latencies.
    pub(super) at: destage_core::Time,
    pub(super) volume: usize,
    pub(super) writes: bool,
    pub(super) flushes: bool,
}

impl Server {
    pub(super) fn accept(&mut self) {
        loop {
            let Some(listener) = &self.listener else { return };
            let stream = match listener.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // Out of descriptors, or the peer went away: others are served.
                    tracing::warn!(%error, "cannot accept a connection");
                    return;
                }
            };
            self.accepted_total += 1;
            if self.connected >= self.settings.clients_max {
                tracing::warn!(
                    clients = self.connected,
                    "a client was turned away: see --max-clients"
                );
                continue;
            }
            self.admit(stream);
        }
    }

    fn admit(&mut self, stream: Stream) {
        let limits = Limits::default();
        let mut connection =
            Connection::new(stream, self.exports.clone(), self.tls.clone(), limits);
        let place = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
        let interest = Interest::READABLE | Interest::WRITABLE;
        let source = connection.stream().source();
        if let Err(error) = self.poll.registry().register(source, Token(place), interest) {
            tracing::warn!(%error, "cannot watch a connection");
            return;
        }
        assert!(Token(place) != LISTENER, "clients are limited");
        let client = Client {
            connection,
            volume: None,
            losses_known: 0,
            number: self.accepted_total,
            readable: true,
            listed: false,
        };
        if place == self.clients.len() {
            self.clients.push(None);
        }
        self.clients[place] = Some(client);
        self.connected += 1;
        self.look_at(place);
    }

    /// Something about the connection may have changed.
    pub(super) fn look_at(&mut self, place: usize) {
        if let Some(client) = self.clients.get_mut(place).and_then(Option::as_mut)
            && !client.listed
        {
            client.listed = true;
            self.looks.push(place);
        }
    }

    pub(super) fn readable(&mut self, place: usize) {
        if let Some(client) = self.clients.get_mut(place).and_then(Option::as_mut) {
            client.readable = true;
        }
        self.look_at(place);
    }

    /// Takes up the clients that had to wait for room, if there is some again.
    pub(super) fn take_up_held_back(&mut self) {
        for place in std::mem::take(&mut self.held_back) {
            match self.is_congested(place) {
                true => self.held_back.push(place),
                false => self.look_at(place),
            }
        }
    }

    /// Moves every connection on that may have something to do; true if any did.
    pub(super) fn serve_clients(&mut self) -> bool {
        let looks = std::mem::take(&mut self.looks);
        let any = !looks.is_empty();
        for place in looks {
            if let Some(client) = self.clients[place].as_mut() {
                client.listed = false;
            }
            if let Err(error) = self.serve(place) {
                tracing::debug!(%error, "a connection ended");
                self.close(place);
            }
        }
        any
    }

    fn serve(&mut self, place: usize) -> io::Result<()> {
        for _ in 0..READS_IN_A_ROW {
            self.take_events(place)?;
            let congested = self.is_congested(place);
            let Some(client) = self.clients[place].as_mut() else { return Ok(()) };
            client.connection.send()?;
            if client.connection.is_finished() {
                self.close(place);
                return Ok(());
            }
            if !client.readable || !client.connection.wants_read() || congested {
                if congested && client.readable {
                    // Nothing will be announced again: it is looked at once there is room.
                    self.held_back.push(place);
                }
                return self.take_events(place);
            }
            match client.connection.receive()? {
                Received::Some => {}
                Received::None => client.readable = false,
                Received::Closed => {
                    self.close(place);
                    return Ok(());
                }
            }
        }
        self.take_events(place)?;
        // There may be more: others first.
        self.look_at(place);
        Ok(())
    }

    /// Whether the client's volume has so much to do that the client must wait.
    fn is_congested(&self, place: usize) -> bool {
        let volume = self.clients[place].as_ref().and_then(|client| client.volume);
        volume.is_some_and(|volume| self.volumes[volume].volume.is_congested())
    }

    fn take_events(&mut self, place: usize) -> io::Result<()> {
        let now = self.now();
        loop {
            let Some(client) = self.clients[place].as_mut() else { return Ok(()) };
            let Some(event) = client.connection.next_event()? else { return Ok(()) };
            match event {
                Event::Opened(export) => {
                    client.volume = self.names.iter().position(|name| *name == export.name);
                    let served = client.volume.map(|volume| &self.volumes[volume]);
                    client.losses_known = served.map_or(0, |served| served.losses_told.known());
                }
                Event::Request(cookie, request) => {
                    let volume = client.volume.expect("requests follow an opened export");
                    let asker = Asker::Client { place, number: client.number, cookie };
                    let (writes, flushes) = (request.is_write(), request.is_flush());
                    self.submit(Asked { asker, at: now, volume, writes, flushes }, request);
                }
                Event::StartTls => unreachable!("a connection starts TLS by itself"),
                Event::Ended(End::Disconnected) => {}
                Event::Ended(End::Violation(what)) => {
                    tracing::warn!(what, "a client broke the protocol; its connection is closed");
                }
            }
        }
    }

    /// Gives a request to its volume.
    pub(super) fn submit(&mut self, asked: Asked, request: Request) {
        let now = self.now();
        let volume = asked.volume;
        self.next_tag += 1;
        self.requests_total += 1;
        self.asked.insert(self.next_tag, asked);
        self.volumes[volume].volume.submit(now, self.next_tag, request);
    }

    /// Gives whoever asked its reply, if it is still there.
    pub(super) fn reply(&mut self, asker: Asker, reply: Reply) {
        let (place, number, cookie) = match asker {
            Asker::Client { place, number, cookie } => (place, number, cookie),
            Asker::File(answer) => return answer.give(reply),
        };
        if let Some(client) = self.clients.get_mut(place).and_then(Option::as_mut)
            && client.number == number
        {
            client.connection.reply(cookie, reply);
            self.look_at(place);
        }
    }

    /// The reply to a flush, which fails for each client that does not know of a loss at the origin.
    pub(super) fn tell_of_losses(&mut self, asked: &Asked, reply: Reply) -> Reply {
        if !asked.flushes {
            return reply;
        }
        let Served { volume, losses_told, file_losses_known, .. } = &mut self.volumes[asked.volume];
        let known = match asked.asker {
            Asker::File(_) => file_losses_known,
            Asker::Client { place, number, .. } => {
                let client = self.clients.get_mut(place).and_then(Option::as_mut);
                match client.filter(|client| client.number == number) {
                    Some(client) => &mut client.losses_known,
                    // Nobody hears it.
                    None => return reply,
                }
            }
        };
        losses_told.answer(known, volume.losses_found(), reply)
    }

    fn close(&mut self, place: usize) {
        if let Some(mut client) = self.clients[place].take() {
            self.connected -= 1;
            // Closing the socket removes it from the poll in any case.
            let _ = self.poll.registry().deregister(client.connection.stream().source());
        }
    }

    /// From now on clients are told that the server shuts down.
    pub(super) fn stop_clients(&mut self) {
        for client in self.clients.iter_mut().flatten() {
            client.connection.stop();
        }
    }

    /// Whether every request has its reply, every reply has left, and every file is closed.
    pub(super) fn is_quiet(&self) -> bool {
        self.asked.is_empty()
            && self.files_are_quiet()
            && self.clients.iter().flatten().all(|client| !client.connection.wants_write())
    }
}
