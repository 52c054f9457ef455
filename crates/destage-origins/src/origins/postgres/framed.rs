//! Between the client and its socket, above encryption: the messages of the server, none larger than it may be.
//!
//! The client holds a message whole before anybody sees it, and the protocol lets a server announce two gigabytes. So the
//! announcements are read here, too, and the connection ends at one that is too large.

use super::settings::Settings;
use crate::origins::bound::MESSAGE_BYTES_MAX;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How large one message of a connection may be, and whether one has been too large.
#[derive(Debug)]
pub(super) struct Limit {
    /// Of a row; everything else has a limit of its own.
    row_bytes_max: AtomicUsize,
    exceeded: AtomicBool,
}

impl Default for Limit {
    fn default() -> Self {
        Self { row_bytes_max: MESSAGE_BYTES_MAX.into(), exceeded: false.into() }
    }
}

impl Limit {
    pub(super) fn set_row_bytes_max(&self, bytes: usize) {
        self.row_bytes_max.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }

    fn of(&self, kind: u8) -> usize {
        match kind {
            b'D' => self.row_bytes_max.load(Ordering::Relaxed),
            b'A' => NOTIFICATION_BYTES_MAX,
            _ => MESSAGE_BYTES_MAX,
        }
    }
}

/// More than PostgreSQL lets a notification have, however it was built.
const NOTIFICATION_BYTES_MAX: usize = 64 << 10;

/// Makes streams with a limit, encrypted or not as the URL has it. The client takes it for what encrypts, and it answers for
/// what is above the socket in any case: so the client's own negotiation is left out ([`Settings`] says so to it).
#[derive(Clone)]
pub(super) struct Framed {
    mode: SslMode,
    tls: Option<MakeRustlsConnect>,
    limit: Arc<Limit>,
}

impl Framed {
    pub(super) fn new(settings: &Settings, limit: Arc<Limit>) -> Self {
        Self { mode: settings.mode, tls: settings.tls.clone(), limit }
    }
}

/// What a connection needs of a socket.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Socket for S {}

type Encrypting<S> = <MakeRustlsConnect as MakeTlsConnect<S>>::TlsConnect;
type Encrypted<S> = <MakeRustlsConnect as MakeTlsConnect<S>>::Stream;

impl<S: Socket> MakeTlsConnect<S> for Framed {
    type Stream = Messages<S>;
    type TlsConnect = Connecting<S>;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Connecting<S>> {
        let tls = self.tls.as_mut().map(|tls| MakeTlsConnect::<S>::make_tls_connect(tls, host));
        let tls = tls.transpose().map_err(io::Error::other)?;
        Ok(Connecting { mode: self.mode, tls, limit: self.limit.clone() })
    }
}

pub(super) struct Connecting<S: Socket> {
    mode: SslMode,
    tls: Option<Encrypting<S>>,
    limit: Arc<Limit>,
}

impl<S: Socket> TlsConnect<S> for Connecting<S> {
    type Stream = Messages<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Messages<S>>> + Send>>;

    fn connect(self, socket: S) -> Self::Future {
        let Self { mode, tls, limit } = self;
        Box::pin(async move {
            let transport = negotiated(socket, mode, tls).await?;
            Ok(Messages { transport, place: Place::default(), limit })
        })
    }
}

/// Asks for encryption. The answer is one byte, before all messages.
async fn negotiated<S: Socket>(
    mut socket: S,
    mode: SslMode,
    tls: Option<Encrypting<S>>,
) -> io::Result<Transport<S>> {
    let Some(tls) = tls else { return Ok(Transport::Plain(socket)) };
    socket.write_all(&SSL_REQUEST).await?;
    match (socket.read_u8().await?, mode) {
        (b'S', _) => Ok(Transport::Encrypted(Box::new(tls.connect(socket).await?))),
        (_, SslMode::Prefer) => Ok(Transport::Plain(socket)),
        _ => Err(io::Error::other("server does not support TLS")),
    }
}

/// Its length and the number that asks for encryption.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

enum Transport<S: Socket> {
    Plain(S),
    Encrypted(Box<Encrypted<S>>),
}

/// A stream of messages.
pub(super) struct Messages<S: Socket> {
    transport: Transport<S>,
    place: Place,
    limit: Arc<Limit>,
}

/// Where in a message what was read last ends.
#[derive(Debug, Default)]
struct Place {
    /// Its kind and length, as far as they have come.
    head: [u8; 5],
    head_len: usize,
    /// What is still to come of the rest.
    body_left: usize,
}

impl Place {
    /// Goes on by what was read.
    fn follow(&mut self, mut read: &[u8], limit: &Limit) -> io::Result<()> {
        while !read.is_empty() {
            let skipped = self.body_left.min(read.len());
            (self.body_left, read) = (self.body_left - skipped, &read[skipped..]);
            let wanted = (self.head.len() - self.head_len).min(read.len());
            self.head[self.head_len..][..wanted].copy_from_slice(&read[..wanted]);
            (self.head_len, read) = (self.head_len + wanted, &read[wanted..]);
            if self.head_len < self.head.len() {
                continue;
            }
            let [kind, length @ ..] = self.head;
            let length = u32::from_be_bytes(length) as usize;
            if length > limit.of(kind) {
                limit.exceeded.store(true, Ordering::Relaxed);
                let message = format!("the server announced a message of {length} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            // The length counts itself; one that does not is the client's to refuse.
            (self.head_len, self.body_left) = (0, length.saturating_sub(size_of::<u32>()));
        }
        Ok(())
    }
}

impl<S: Socket> Messages<S> {
    fn transport(&mut self) -> Pin<&mut dyn Both> {
        match &mut self.transport {
            Transport::Plain(socket) => Pin::new(socket),
            Transport::Encrypted(stream) => Pin::new(&mut **stream),
        }
    }
}

trait Both: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Both for T {}

impl<S: Socket> AsyncRead for Messages<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(self.transport().poll_read(context, buffer))?;
        let Self { place, limit, .. } = &mut *self;
        Poll::Ready(place.follow(&buffer.filled()[before..], limit))
    }
}

impl<S: Socket> AsyncWrite for Messages<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.transport().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.transport().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.transport().poll_shutdown(context)
    }
}

impl<S: Socket> TlsStream for Messages<S> {
    fn channel_binding(&self) -> ChannelBinding {
        match &self.transport {
            Transport::Plain(_) => ChannelBinding::none(),
            Transport::Encrypted(stream) => stream.channel_binding(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, len: usize) -> Vec<u8> {
        let length = u32::try_from(len).unwrap().to_be_bytes();
        [&[kind], &length[..], &vec![b'x'; len - 4]].concat()
    }

    /// Whether all of it is taken, and whether it is where it comes in pieces of this size.
    fn takes(bytes: &[u8], limit: &Limit, piece: usize) -> bool {
        let mut place = Place::default();
        bytes.chunks(piece).all(|piece| place.follow(piece, limit).is_ok())
    }

    #[test]
    fn messages_are_taken_up_to_the_limit_of_their_kind_however_they_come() {
        let limit = Limit::default();
        limit.set_row_bytes_max(100);
        let small = [message(b'Z', 5), message(b'D', 100), message(b'1', 4)].concat();
        let large = [&small[..], &message(b'D', 101)].concat();
        for piece in [1, 3, 4, 5, 6, 64, 1_000] {
            assert!(takes(&small.repeat(3), &limit, piece), "{piece}");
            assert!(!limit.is_exceeded());
        }
        for piece in [1, 3, 4, 5, 6, 64, 1_000] {
            assert!(!takes(&large, &limit, piece), "{piece}");
        }
        assert!(limit.is_exceeded());
        limit.set_row_bytes_max(101);
        assert!(takes(&large, &limit, 7));
    }

    #[test]
    fn what_is_no_row_has_a_limit_of_its_own() {
        let limit = Limit::default();
        limit.set_row_bytes_max(usize::MAX);
        assert!(takes(&message(b'A', NOTIFICATION_BYTES_MAX), &limit, 1 << 20));
        assert!(!takes(&message(b'A', NOTIFICATION_BYTES_MAX + 1), &limit, 1 << 20));
        for kind in [b'E', b'N', b'R', b'S', b'T'] {
            let announced =
                |len: usize| [&[kind], &u32::try_from(len).unwrap().to_be_bytes()[..]].concat();
            assert!(takes(&announced(MESSAGE_BYTES_MAX), &limit, 5));
            assert!(!takes(&announced(MESSAGE_BYTES_MAX + 1), &limit, 5));
            assert!(!takes(&announced(u32::MAX as usize), &limit, 5));
        }
        assert!(takes(&[b'D', 0x40, 0, 0, 0], &limit, 5));
    }
}
