//! The server's side of encrypted connections, for blocking streams and for those that say `WouldBlock`.

use super::ServerConfig;
use rustls::ServerConnection;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

/// What the first record of a client's handshake begins with.
const HANDSHAKE: u8 = 22;

/// One connection's encryption, apart from its stream.
#[derive(Debug)]
pub struct ServerTls(Box<ServerConnection>);

impl ServerTls {
    /// One that waits for the client's first words.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn new(config: &Arc<ServerConfig>) -> io::Result<Self> {
        let connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
        Ok(Self(Box::new(connection)))
    }

    /// Whether client and server have not agreed yet.
    pub fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    /// Whether [`ServerTls::receive`] is to be called: what was decrypted is taken first.
    pub fn wants_read(&self) -> bool {
        self.0.wants_read()
    }

    /// Whether encrypted bytes wait to be sent.
    pub fn wants_write(&self) -> bool {
        self.0.wants_write()
    }

    /// Reads once; to be followed by [`ServerTls::process`]. 0 at the stream's end.
    ///
    /// # Errors
    /// As the stream.
    pub fn receive(&mut self, stream: &mut impl Read) -> io::Result<usize> {
        self.0.read_tls(stream)
    }

    /// Decrypts what was received. The client is told by the stream if it cannot be.
    ///
    /// # Errors
    /// When the client's TLS fails: the connection is to be closed.
    pub fn process(&mut self, stream: &mut impl Write) -> io::Result<()> {
        let Err(error) = self.0.process_new_packets() else {
            return Ok(());
        };
        // The alert tells the client why. The error that is returned is the one that matters.
        let _ = self.0.write_tls(stream);
        Err(io::Error::new(ErrorKind::InvalidData, format!("failed to speak TLS: {error}")))
    }

    /// Takes decrypted bytes: how many, `None` if there are none for now, 0 once the client has said that no more will come.
    ///
    /// # Errors
    /// None that a stream that goes on would show.
    pub fn decrypted(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.0.reader().read(buffer) {
            Ok(count) => Ok(Some(count)),
            Err(error) if is_for_now(&error) => Ok(None),
            // Closed without saying so in TLS: the stream says it too.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Encrypts as many of these bytes as a bounded buffer has room for, maybe none.
    ///
    /// # Errors
    /// The connection cannot encrypt any more.
    pub fn encrypt(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.writer().write_vectored(slices)
    }

    /// Encrypts the word that no more will come.
    pub fn say_end(&mut self) {
        self.0.send_close_notify();
    }

    /// Sends all that waits to be sent.
    ///
    /// # Errors
    /// As the stream; `WouldBlock` if it takes no more for now.
    pub fn send(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while self.0.wants_write() {
            match self.0.write_tls(stream) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether an error of a stream only says that there is nothing for now.
pub fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A server's stream that is encrypted from its first byte, or not at all.
///
/// The handshake goes on in [`Read::read`]. It needs no call of its own, but a stream that is to be watched for room must be
/// read, too, when there is some, as long as [`TlsStream::is_handshaking`].
#[derive(Debug)]
pub struct TlsStream<S> {
    stream: S,
    tls: Option<ServerTls>,
    /// The first byte that came.
    first: Option<u8>,
    /// Something of the owner's is encrypted and has not left.
    holds: bool,
}

impl<S: Read + Write> TlsStream<S> {
    /// A stream that was just accepted; encrypted if there is a configuration.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn new(stream: S, config: Option<&Arc<ServerConfig>>) -> io::Result<Self> {
        let tls = config.map(ServerTls::new).transpose()?;
        Ok(Self { stream, tls, first: None, holds: false })
    }

    /// The stream itself, for registering it.
    pub fn inner(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Whether it is encrypted. Then a short read does not say that the stream has no more.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether client and server have not agreed on the encryption yet.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(ServerTls::is_handshaking)
    }

    /// Whether the client has begun with something else than TLS, where this was expected.
    pub fn spoke_in_the_clear(&self) -> bool {
        self.tls.is_some() && self.first.is_some_and(|first| first != HANDSHAKE)
    }

    /// Whether everything that was written has left.
    pub fn is_flushed(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.wants_write())
    }

    /// Answers a client that [`TlsStream::spoke_in_the_clear`] in its own way, if the stream takes it.
    pub fn answer_in_the_clear(&mut self, text: &[u8]) {
        // The connection is closed next: who does not take it in hears the end.
        let _ = self.stream.write(text);
    }

    /// Reads until the buffer is full or there is no more for now: TLS comes in small pieces.
    ///
    /// # Errors
    /// As [`Read::read`], if nothing was read.
    pub fn read_all(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut count = self.read(buffer)?;
        // An error or an end comes again.
        while self.tls.is_some()
            && count > 0
            && count < buffer.len()
            && let Ok(more @ 1..) = self.read(&mut buffer[count..])
        {
            count += more;
        }
        Ok(count)
    }

    /// Says that nothing more will come, if the stream takes it. Not behind something that was held back.
    pub fn say_end(&mut self) {
        if let Some(tls) = self.tls.as_mut().filter(|tls| !tls.is_handshaking() && !self.holds) {
            tls.say_end();
            let _ = tls.send(&mut self.stream);
        }
    }
}

impl<S: Read + Write> Read for TlsStream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.stream.read(buffer) };
        loop {
            // The words of TLS itself. Those of the owner leave when it says so, and before what comes behind them.
            if tls.is_handshaking() || !self.holds {
                match tls.send(&mut self.stream) {
                    Err(error)
                        if error.kind() == ErrorKind::WouldBlock && !tls.is_handshaking() => {}
                    sent => sent?,
                }
            }
            if let Some(count) = tls.decrypted(buffer)? {
                return Ok(count);
            }
            let mut noting = Noting { stream: &mut self.stream, first: &mut self.first };
            if tls.receive(&mut noting)? == 0 {
                return Ok(0);
            }
            if self.first != Some(HANDSHAKE) {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "the client does not speak TLS",
                ));
            }
            tls.process(&mut self.stream)?;
        }
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let Some(tls) = &mut self.tls else { return self.stream.write(bytes) };
            let taken = tls.encrypt(&[IoSlice::new(bytes)])?;
            self.holds |= taken > 0;
            let (is_done, is_handshaking) = (taken > 0 || bytes.is_empty(), tls.is_handshaking());
            match self.flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock && is_done => {}
                sent => sent?,
            }
            if is_done {
                return Ok(taken);
            }
            // There was no room for more, and only the end of the handshake makes some.
            if is_handshaking {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.send(&mut self.stream)?;
            self.holds = false;
        }
        self.stream.flush()
    }
}

/// Keeps the first byte that a stream gives.
struct Noting<'a, S> {
    stream: &'a mut S,
    first: &'a mut Option<u8>,
}

impl<S: Read> Read for Noting<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        if self.first.is_none() {
            *self.first = buffer[..count].first().copied();
        }
        Ok(count)
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
