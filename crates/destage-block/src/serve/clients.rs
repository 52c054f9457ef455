//! The clients' sockets: accepting, reading, sending, closing.

use super::Served;
use super::fuse::Answer;
use super::requests::Kind;
use super::server::Server;
use crate::nbd::server::{Connection, Cookie, End, Event, Limits, Received};
use crate::nbd::wire::PAYLOAD_MAX;
use crate::request::{Reply, Request};
use destage_core::Time;
use destage_runtime::shell::LISTENER;
use destage_runtime::sockets::Stream;
use mio::{Interest, Registry, Token};
use std::io;

/// Bytes of requests and replies that the clients' connections may hold together.
const MEMORY_MAX: usize = 512 << 20;
/// How often in a row one connection is read before others get their turn, and before what it sent begins: of many requests
/// that came together the first ones are at the disk while the others are received.
const READS_IN_A_ROW: usize = 2;

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
    /// It has closed its side: what is left to read ends with that.
    closes: bool,
    /// It is told when its socket takes more. Only while something waits to be sent: a client's every receipt would wake
    /// the server otherwise.
    watches_room: bool,
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
    pub(super) at: Time,
    pub(super) volume: usize,
    pub(super) kind: Kind,
    /// That it is about.
    pub(super) bytes: u64,
    pub(super) flushes: bool,
}

impl Asked {
    pub(super) fn new(asker: Asker, at: Time, volume: usize, request: &Request) -> Self {
        let (kind, bytes) = (Kind::of(request), request.bytes());
        Self { asker, at, volume, kind, bytes, flushes: request.is_flush() }
    }
}

/// A connection that has to open an export by some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handshake {
    pub(super) until: Time,
    place: usize,
    number: u64,
}

impl Client {
    /// Asks to be told when the socket takes more, if something waits to be sent.
    fn watch(&mut self, registry: &Registry, place: usize) -> io::Result<()> {
        let wants = self.connection.wants_write();
        if wants == self.watches_room {
            return Ok(());
        }
        self.watches_room = wants;
        let interest =
            if wants { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        registry.reregister(self.connection.stream().source(), Token(place), interest)
    }
}

impl Server {
    pub(super) fn accept(&mut self) {
        while let Some((stream, _)) = self.shell.accept() {
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
        let source = connection.stream().source();
        let registry = self.shell.registry();
        if let Err(error) = registry.register(source, Token(place), Interest::READABLE) {
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
            closes: false,
            watches_room: false,
            listed: false,
        };
        let until = self.now() + self.settings.handshake_timeout;
        self.handshakes.push_back(Handshake { until, place, number: client.number });
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

    pub(super) fn readable(&mut self, place: usize, closes: bool) {
        if let Some(client) = self.clients.get_mut(place).and_then(Option::as_mut) {
            client.readable = true;
            client.closes |= closes;
        }
        self.look_at(place);
    }

    /// Closes the connections that have taken too long to open an export.
    pub(super) fn end_handshakes(&mut self) {
        let now = self.now();
        while let Some(&Handshake { until, place, number }) = self.handshakes.front() {
            let client = self.clients.get(place).and_then(Option::as_ref);
            let is_open =
                client.is_none_or(|client| client.number != number || client.volume.is_some());
            if !is_open && now < until {
                return;
            }
            self.handshakes.pop_front();
            if !is_open {
                tracing::warn!("a client that did not open an export in time was disconnected");
                self.close(place);
            }
        }
    }

    /// Takes up the clients that had to wait for room, if there is some again.
    pub(super) fn resume_held_back(&mut self) {
        for place in std::mem::take(&mut self.held_back) {
            if self.is_congested(place) { self.held_back.push(place) } else { self.look_at(place) }
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

    /// Divides the memory among the clients: as much for each as one alone may have, as long as there are few. With more,
    /// half of it is shared out, and a request beyond its client's share waits until it fits into the whole. So all hold at
    /// most one and a half times [`MEMORY_MAX`], the whole of which was taken before there were so many.
    fn serve(&mut self, place: usize) -> io::Result<()> {
        let each = Limits::default().bytes_max;
        let is_roomy = self.connected * each <= MEMORY_MAX;
        let share = if is_roomy { each } else { MEMORY_MAX / 2 / self.connected };
        self.serve_within(place, share, is_roomy)?;
        if self.is_short_of_memory(place) && self.has_memory() {
            self.serve_within(place, share, true)?;
        }
        if self.is_short_of_memory(place) {
            // Only others can make room, and they do not tell.
            self.held_back.push(place);
        }
        Ok(())
    }

    /// Sends what clients are owed before this thread waits for a disk itself.
    pub(super) fn send_replies(&mut self) {
        for &place in &self.looks {
            let Some(client) = self.clients[place].as_mut() else { continue };
            // What is wrong with the connection shows again when its turn comes.
            if client.connection.wants_write()
                && let Err(error) = client.connection.send()
            {
                tracing::debug!(%error, "cannot reply");
            }
        }
    }

    fn is_short_of_memory(&self, place: usize) -> bool {
        let client = self.clients[place].as_ref();
        client.is_some_and(|client| client.connection.session().is_short_of_memory())
    }

    /// Whether all clients together leave room for the longest request.
    fn has_memory(&self) -> bool {
        self.client_bytes() + PAYLOAD_MAX as usize <= MEMORY_MAX
    }

    /// Bytes of requests and replies that all connections hold.
    pub(super) fn client_bytes(&self) -> usize {
        let clients = self.clients.iter().flatten();
        clients.map(|client| client.connection.session().bytes_held()).sum()
    }

    fn serve_within(&mut self, place: usize, share: usize, takes_long: bool) -> io::Result<()> {
        let Some(client) = self.clients[place].as_mut() else { return Ok(()) };
        client.connection.set_memory(share, takes_long);
        self.serve_once(place)
    }

    fn serve_once(&mut self, place: usize) -> io::Result<()> {
        for _ in 0..READS_IN_A_ROW {
            self.take_events(place)?;
            let congested = self.is_congested(place);
            let Some(client) = self.clients[place].as_mut() else { return Ok(()) };
            client.connection.send()?;
            client.watch(self.shell.registry(), place)?;
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
                // Whatever comes after this is announced, but for an end that has been announced before.
                Received::Last => client.readable = client.closes,
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
                    client.losses_known = served.map_or(0, |served| served.reported_losses.known());
                }
                Event::Request(cookie, request) => {
                    let volume = client.volume.expect("requests follow an opened export");
                    let asker = Asker::Client { place, number: client.number, cookie };
                    self.submit(Asked::new(asker, now, volume, &request), request);
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
        let Served { volume, reported_losses, file_losses_known, .. } =
            &mut self.volumes[asked.volume];
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
        reported_losses.answer(known, volume.losses_found(), reply)
    }

    fn close(&mut self, place: usize) {
        if let Some(mut client) = self.clients[place].take() {
            self.connected -= 1;
            // Closing the socket removes it from the poll in any case.
            let _ = self.shell.registry().deregister(client.connection.stream().source());
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
