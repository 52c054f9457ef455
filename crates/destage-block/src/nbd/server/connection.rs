//! A session on a stream, with or without TLS. For blocking streams and for those that say `WouldBlock`.

use super::{Cookie, Event, Exports, Limits, Session, TlsMode};
use crate::request::Reply;
use destage_runtime::tls::{ServerConfig, ServerTls, is_for_now};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

/// Slices given to the system at a time.
const SLICES: usize = 64;

/// Whether connections are encrypted, and how.
#[derive(Clone, Debug, Default)]
pub enum Tls {
    /// See [`TlsMode::Off`].
    #[default]
    Off,
    /// See [`TlsMode::Optional`].
    Optional(Arc<ServerConfig>),
    /// See [`TlsMode::Required`].
    Required(Arc<ServerConfig>),
}

impl Tls {
    fn mode(&self) -> TlsMode {
        match self {
            Self::Off => TlsMode::Off,
            Self::Optional(_) => TlsMode::Optional,
            Self::Required(_) => TlsMode::Required,
        }
    }
}

/// What [`Connection::receive`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Some bytes; there may be events.
    Some,
    /// The same, and the stream had no more for now.
    Last,
    /// None for now.
    None,
    /// The client has closed: nothing more will come, and nobody waits for replies.
    Closed,
}

/// A session and the stream it runs on. The round is the one at the module's head, with [`Connection::receive`] for
/// step 1 and [`Connection::send`] for step 4; [`Event::StartTls`] never shows. TLS holds at most 128 KiB more than
/// [`Limits`] says.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    session: Session,
    tls: Tls,
    encrypted: Option<ServerTls>,
    /// What must leave before the first encrypted byte.
    clear: Vec<u8>,
    closing: bool,
    /// The client said in TLS that nothing more will come.
    client_closed: bool,
}

impl<S: Read + Write> Connection<S> {
    /// A stream that was just accepted.
    pub fn new(stream: S, exports: Arc<dyn Exports>, tls: Tls, limits: Limits) -> Self {
        let session = Session::new(exports, tls.mode(), limits);
        Self {
            stream,
            session,
            tls,
            encrypted: None,
            clear: Vec::new(),
            closing: false,
            client_closed: false,
        }
    }

    /// The stream, for registering it.
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// The session, for its state.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// See [`Session::set_memory`].
    pub fn set_memory(&mut self, bytes_max: usize, takes_long: bool) {
        self.session.set_memory(bytes_max, takes_long);
    }

    /// See [`Session::stop`].
    pub fn stop(&mut self) {
        self.session.stop();
    }

    /// Whether [`Connection::receive`] is to be called. It may become true by [`Connection::reply`],
    /// [`Connection::send`] and [`Connection::next_event`], without any news from the stream.
    pub fn wants_read(&self) -> bool {
        // With TLS, what was decrypted is taken first.
        let ready = match &self.encrypted {
            Some(connection) => self.client_closed || connection.wants_read(),
            None => true,
        };
        ready && self.session.wants_input()
    }

    /// Whether [`Connection::send`] has something to send.
    pub fn wants_write(&self) -> bool {
        !self.clear.is_empty()
            || self.session.has_output()
            || self.encrypted.as_ref().is_some_and(|connection| connection.wants_write())
    }

    /// Whether all has been said, so that the stream is to be closed.
    pub fn is_finished(&self) -> bool {
        self.session.is_finished() && !self.wants_write()
    }

    /// Reads once, if [`Connection::wants_read`].
    ///
    /// # Errors
    /// As the stream, and when the client's TLS fails: the connection is to be closed.
    pub fn receive(&mut self) -> io::Result<Received> {
        if !self.wants_read() {
            return Ok(Received::None);
        }
        if self.client_closed {
            return Ok(Received::Closed);
        }
        let (received, space) = match &mut self.encrypted {
            None => {
                let space = self.session.space();
                (self.stream.read(space), space.len())
            }
            Some(connection) => (connection.receive(&mut self.stream), 0),
        };
        match received {
            Ok(0) => Ok(Received::Closed),
            Ok(len) if self.encrypted.is_none() => {
                self.session.filled(len);
                Ok(if len < space { Received::Last } else { Received::Some })
            }
            Ok(_) => {
                if let Some(connection) = &mut self.encrypted
                    && let Err(error) = connection.process()
                {
                    // The alert tells the client why. The error that is returned is the one that matters.
                    let _ = connection.send(&mut self.stream);
                    return Err(error);
                }
                Ok(Received::Some)
            }
            Err(error) if is_for_now(&error) => Ok(Received::None),
            Err(error) => Err(error),
        }
    }

    /// What happened: see [`Session::next_event`].
    ///
    /// # Errors
    /// When TLS fails: the connection is to be closed.
    pub fn next_event(&mut self) -> io::Result<Option<Event>> {
        loop {
            match self.session.next_event() {
                Some(Event::StartTls) => self.start_tls()?,
                Some(event) => return Ok(Some(event)),
                None if self.decrypt()? => {}
                None => return Ok(None),
            }
        }
    }

    /// See [`Session::reply`].
    pub fn reply(&mut self, cookie: Cookie, reply: Reply) {
        self.session.reply(cookie, reply);
    }

    /// Sends as much as the stream takes; [`Connection::wants_write`] says whether that was all. To be followed by
    /// [`Connection::next_event`], since requests may have waited for room.
    ///
    /// # Errors
    /// As the stream: the connection is to be closed.
    pub fn send(&mut self) -> io::Result<()> {
        match self.send_all() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            sent => sent,
        }
    }

    fn send_all(&mut self) -> io::Result<()> {
        while !self.clear.is_empty() {
            let sent = written(self.stream.write(&self.clear))?;
            self.clear.drain(..sent);
        }
        if self.encrypted.is_some() { self.send_encrypted() } else { self.send_plain() }
    }

    fn send_plain(&mut self) -> io::Result<()> {
        while self.session.has_output() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let set = self.session.output(&mut slices);
            let sent = written(self.stream.write_vectored(&slices[..set]))?;
            self.session.sent(sent);
        }
        self.stream.flush()
    }

    fn send_encrypted(&mut self) -> io::Result<()> {
        let Some(connection) = &mut self.encrypted else {
            return Ok(());
        };
        loop {
            if self.session.has_output() {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let set = self.session.output(&mut slices);
                // Takes as much as its own bounded buffer holds, maybe nothing.
                let taken = connection.encrypt(&slices[..set])?;
                self.session.sent(taken);
            } else if self.session.is_finished() && !self.closing {
                self.closing = true;
                connection.say_end();
            }
            if !connection.wants_write() {
                return self.stream.flush();
            }
            connection.send(&mut self.stream)?;
        }
    }

    fn start_tls(&mut self) -> io::Result<()> {
        let (Tls::Optional(config) | Tls::Required(config)) = &self.tls else {
            return Err(io::Error::other("TLS was agreed on without a certificate"));
        };
        let connection = ServerTls::new(config)?;
        let mut slices = [IoSlice::new(&[]); SLICES];
        let set = self.session.output(&mut slices);
        self.clear = slices[..set].iter().flat_map(|slice| slice.to_vec()).collect();
        self.session.sent(self.clear.len());
        self.session.tls_started();
        self.encrypted = Some(connection);
        Ok(())
    }

    /// Moves decrypted bytes into the session; whether there were some.
    fn decrypt(&mut self) -> io::Result<bool> {
        let Some(connection) = self.encrypted.as_mut().filter(|_| self.session.wants_input())
        else {
            return Ok(false);
        };
        let Some(len) = connection.decrypted(self.session.space())? else { return Ok(false) };
        self.session.filled(len);
        self.client_closed = len == 0;
        Ok(len > 0)
    }
}

/// How much was written: nothing is no progress, and an interruption is none either but no error.
fn written(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(ErrorKind::WriteZero.into()),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
        result => result,
    }
}
