//! Connections within bounds: so many at once, each dropped when a request does not come or go on for too long.

use super::caller::UnderWay;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Connections at once; further ones wait to be accepted.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// How long a place is kept for a request that has not begun, and then for the rest of its head. Clients that keep connections
/// for later open new ones, so that those who come meanwhile are not kept out.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// The same for what follows: its body, and the client's taking in the answer. A client that waits for a command may be
/// silent for as long as that takes.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A host that is gone without a word is noticed within three minutes, so that a command for it does not wait for ever.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMES: u32 = 6;
const HEAD_END: &[u8] = b"\r\n\r\n";
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A TCP listener that accepts at most [`CONNECTIONS_MAX`] connections at once.
pub(super) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    silence: Duration,
}

impl Bounded {
    /// *Units:* what has begun may be silent for `silence`.
    pub(super) fn new(listener: TcpListener, silence: Duration) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)), silence }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let place = Arc::clone(&self.places)
            .acquire_owned()
            .await
            .expect("the semaphore lives as long as the listener and is never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, addr)) => {
                    let keepalive = TcpKeepalive::new()
                        .with_time(KEEPALIVE)
                        .with_interval(KEEPALIVE_AGAIN)
                        .with_retries(KEEPALIVE_TIMES);
                    // Without it all else works.
                    if let Err(error) = SockRef::from(&stream).set_tcp_keepalive(&keepalive) {
                        tracing::debug!("a connection to the admin port has no keepalive: {error}");
                    }
                    return (Connection::new(stream, place, self.silence), addr);
                }
                Err(error) => {
                    tracing::warn!("the admin port failed to accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when it is silent for too long.
pub(super) struct Connection {
    stream: TcpStream,
    stage: Stage,
    limit: Pin<Box<Sleep>>,
    silence: Duration,
    under_way: UnderWay,
    _place: OwnedSemaphorePermit,
}

/// What a request is told of its connection.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) address: IpAddr,
    pub(super) under_way: UnderWay,
}

impl Connected<IncomingStream<'_, Bounded>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        let under_way = stream.io().under_way.clone();
        Self { address: stream.remote_addr().ip(), under_way }
    }
}

/// What a connection is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A request.
    Idle,
    /// The rest of its head, of whose end so many bytes have come.
    Head(usize),
    /// Its body, its answer, or the client, which takes in the answer.
    Busy,
}

impl Connection {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit, silence: Duration) -> Self {
        let limit = Box::pin(tokio::time::sleep(HEAD_MAX));
        let under_way = UnderWay::default();
        Self { stream, stage: Stage::Idle, limit, silence, under_way, _place: place }
    }

    fn enter(&mut self, stage: Stage) {
        let limit = if stage == Stage::Busy { self.silence } else { HEAD_MAX };
        self.limit.as_mut().reset(Instant::now() + limit);
        self.stage = stage;
    }

    fn heard(&mut self, bytes: &[u8]) {
        let matched = match self.stage {
            Stage::Busy => return self.enter(Stage::Busy),
            Stage::Idle => {
                self.enter(Stage::Head(0));
                0
            }
            Stage::Head(matched) => matched,
        };
        match head_end(matched, bytes) {
            matched if matched == HEAD_END.len() => self.enter(Stage::Busy),
            // The limit is for all of the head.
            matched => self.stage = Stage::Head(matched),
        }
    }

    /// Whether it has been silent for too long.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        while self.limit.as_mut().poll(cx).is_ready() {
            if !self.under_way.is_any() {
                return true;
            }
            self.enter(Stage::Busy);
        }
        false
    }
}

/// How many bytes of a head's end have come, after `matched` and these.
fn head_end(matched: usize, bytes: &[u8]) -> usize {
    bytes.iter().fold(matched, |matched, &byte| match matched {
        _ if matched == HEAD_END.len() => matched,
        _ if byte == HEAD_END[matched] => matched + 1,
        _ => usize::from(byte == HEAD_END[0]),
    })
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        match polled {
            Poll::Ready(_) => self.heard(&buf.filled()[before..]),
            Poll::Pending if self.is_over(cx) => {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            Poll::Pending => {}
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        match polled {
            // All of the answer, or it goes on at once.
            Poll::Ready(_) => self.enter(Stage::Idle),
            Poll::Pending if self.stage != Stage::Busy => self.enter(Stage::Busy),
            Poll::Pending if self.is_over(cx) => {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            Poll::Pending => {}
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_head_is_found_wherever_it_is_cut() {
        let head = b"GET / HTTP/1.1\r\nHost: h\r\r\n\n\r\n\r\nbody";
        let end = head.len() - "body".len();
        for cut in 0..head.len() {
            let matched = head_end(head_end(0, &head[..cut]), &head[cut..]);
            assert_eq!(matched, HEAD_END.len(), "cut at {cut}");
        }
        for short in 0..end {
            assert!(head_end(0, &head[..short]) < HEAD_END.len(), "{short} bytes");
        }
    }
}
