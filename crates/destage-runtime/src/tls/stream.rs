//! The server's side of encrypted connections, for blocking streams and for those that say `WouldBlock`.

use super::ServerConfig;
use rustls::{ProtocolVersion, ServerConnection};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

/// What the first record of a client's handshake begins with.
const HANDSHAKE: u8 = 22;

/// So many records may leave under TLS 1.2, whose keys stay the same: fewer than the 2^24 from which on rustls takes what it is
/// given under AES-GCM and sends none of it.
const RECORDS_MAX: u64 = (1 << 24) - 64;
/// What one record holds at the most, bytes.
const RECORD_BYTES_MAX: usize = 16 << 10;
/// More than one call encrypts: what waits to be sent is bounded by 64 KiB.
const RECORDS_AT_ONCE: u64 = 8;

/// So often a stream is read in a row without a decrypted byte before its owner has a turn: records may hold nothing.
const RECEIPTS_MAX: usize = 16;

/// One connection's encryption, apart from its stream.
#[derive(Debug)]
pub struct ServerTls {
    connection: Box<ServerConnection>,
    /// Under TLS 1.2.
    records_left: u64,
    /// Why the client's TLS failed. Nothing is received any more.
    failure: Option<String>,
}

impl ServerTls {
    /// One that waits for the client's first words.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn new(config: &Arc<ServerConfig>) -> io::Result<Self> {
        let connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
        Ok(Self { connection: Box::new(connection), records_left: RECORDS_MAX, failure: None })
    }

    /// Whether client and server have not agreed yet.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Whether [`ServerTls::receive`] is to be called: what was decrypted is taken first.
    pub fn wants_read(&self) -> bool {
        self.connection.wants_read()
    }

    /// Whether encrypted bytes wait to be sent.
    pub fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Reads once; to be followed by [`ServerTls::process`]. 0 at the stream's end.
    ///
    /// # Errors
    /// As the stream, and once more as [`ServerTls::process`] where that has failed.
    pub fn receive(&mut self, stream: &mut impl Read) -> io::Result<usize> {
        self.check()?;
        self.connection.read_tls(stream)
    }

    /// Decrypts what was received.
    ///
    /// # Errors
    /// When the client's TLS fails: the connection is to be closed. [`ServerTls::send`] tells the client why.
    pub fn process(&mut self) -> io::Result<()> {
        if let Err(error) = self.connection.process_new_packets() {
            self.failure = Some(format!("failed to speak TLS: {error}"));
        }
        self.check()
    }

    fn check(&self) -> io::Result<()> {
        match &self.failure {
            Some(why) => Err(io::Error::new(ErrorKind::InvalidData, why.clone())),
            None => Ok(()),
        }
    }

    /// Takes decrypted bytes: how many, `None` if there are none for now, 0 once the client has said that no more will come.
    ///
    /// # Errors
    /// None that a stream that goes on would show.
    pub fn decrypted(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.connection.reader().read(buffer) {
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
    /// The connection cannot encrypt any more: it is to be closed.
    pub fn encrypt(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let is_bounded = self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_2);
        if is_bounded && self.records_left < RECORDS_AT_ONCE {
            return Err(io::Error::other("the keys of this connection have been used up"));
        }
        let taken = self.connection.writer().write_vectored(slices)?;
        self.records_left =
            self.records_left.saturating_sub(taken.div_ceil(RECORD_BYTES_MAX) as u64);
        Ok(taken)
    }

    /// Encrypts the word that no more will come.
    pub fn say_end(&mut self) {
        self.connection.send_close_notify();
    }

    /// Sends all that waits to be sent.
    ///
    /// # Errors
    /// As the stream; `WouldBlock` if it takes no more for now.
    pub fn send(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(stream) {
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
/// read, too, when there is some, as long as [`TlsStream::is_handshaking`]. Until then nothing can be written. A read is
/// [`ErrorKind::Interrupted`] where much came and nothing of it was for the owner.
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
        for _ in 0..RECEIPTS_MAX {
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
            if let Err(error) = tls.process() {
                // The alert tells the client why. The error that is returned is the one that matters.
                if !self.holds {
                    let _ = tls.send(&mut self.stream);
                }
                return Err(error);
            }
        }
        // There may be more.
        Err(ErrorKind::Interrupted.into())
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let Some(tls) = &mut self.tls else { return self.stream.write(bytes) };
            if tls.is_handshaking() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let taken = tls.encrypt(&[IoSlice::new(bytes)])?;
            self.holds |= taken > 0;
            let is_done = taken > 0 || bytes.is_empty();
            match self.flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock && is_done => {}
                sent => sent?,
            }
            if is_done {
                return Ok(taken);
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
