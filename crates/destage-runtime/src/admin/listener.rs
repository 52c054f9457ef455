//! Connections within bounds: so many at once, each dropped when a request does not come or go on for too long.

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Connections at once; further ones wait to be accepted.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// How long clients may take.
pub(super) const LIMITS: Limits =
    Limits { head: Duration::from_secs(10), rest: Duration::from_secs(60) };
/// A host that is gone without a word is noticed within three minutes, so that a command for it does not wait for ever.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMES: u32 = 6;
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How long clients may take, however much of it they have done. A client that waits for a command may be silent for as long
/// as that takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For a request to begin, and then for the rest of its head. Clients that keep connections for later open new ones, so
    /// that those who come meanwhile are not kept out.
    pub(super) head: Duration,
    /// For all of a body, and for taking in all of an answer, besides what [`moved`] allows for their bytes. A connection that
    /// is older ends with its next answer.
    pub(super) rest: Duration,
}

/// How much longer so many bytes may take: a megabyte a second, as over a slow line.
pub(super) fn moved(bytes: u64) -> Duration {
    Duration::from_micros(bytes)
}

/// A TCP listener that accepts at most [`CONNECTIONS_MAX`] connections at once.
pub(super) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    limits: Limits,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener, limits: Limits) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)), limits }
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
                    return (Connection::new(stream, place, self.limits), addr);
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

/// A connection that ends when its client takes too long.
pub(super) struct Connection {
    stream: TcpStream,
    pace: Pace,
    limit: Pin<Box<Sleep>>,
    limits: Limits,
    _place: OwnedSemaphorePermit,
}

/// What a request is told of its connection.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) address: IpAddr,
    pub(super) pace: Pace,
}

impl Connected<IncomingStream<'_, Bounded>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        let pace = stream.io().pace.clone();
        Self { address: stream.remote_addr().ip(), pace }
    }
}

/// What a connection is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A request.
    Idle,
    /// The rest of its head.
    Head,
    /// What is made of it, with its body: whoever does that sees to the time.
    Request,
    /// The client, which takes in the answer.
    Answer,
}

/// What a connection is waiting for, and since when. Only those who make the answers know where a request begins and ends.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    opened: Instant,
    at: Arc<Mutex<(Stage, Instant)>>,
}

impl Pace {
    fn new() -> Self {
        let now = Instant::now();
        Self { opened: now, at: Arc::new(Mutex::new((Stage::Idle, now))) }
    }

    pub(super) fn enter(&self, stage: Stage) {
        *self.at() = (stage, Instant::now());
    }

    /// Since when the connection is there.
    pub(super) fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// So many bytes were taken in, of an answer if it is one.
    fn wrote(&self, bytes: usize) {
        if let (Stage::Answer, since) = &mut *self.at() {
            *since += moved(bytes as u64);
        }
    }

    fn stage(&self) -> Stage {
        self.at().0
    }

    /// By when what is waited for has to be there.
    fn until(&self, limits: Limits) -> Option<Instant> {
        let (stage, since) = *self.at();
        match stage {
            Stage::Idle | Stage::Head => Some(since + limits.head),
            Stage::Answer => Some(since + limits.rest),
            Stage::Request => None,
        }
    }

    fn at(&self) -> MutexGuard<'_, (Stage, Instant)> {
        // A panic ends the process: see the program's `main`.
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit, limits: Limits) -> Self {
        let limit = Box::pin(tokio::time::sleep(limits.head));
        Self { stream, pace: Pace::new(), limit, limits, _place: place }
    }

    /// Whether the client has taken too long.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(until) = self.pace.until(self.limits) else { return false };
        if self.limit.deadline() != until {
            self.limit.as_mut().reset(until);
        }
        self.limit.as_mut().poll(cx).is_ready()
    }
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
            Poll::Ready(_) if self.pace.stage() == Stage::Idle && buf.filled().len() > before => {
                self.pace.enter(Stage::Head);
            }
            Poll::Ready(_) => {}
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
            Poll::Ready(Ok(bytes)) => self.pace.wrote(bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending if self.is_over(cx) => {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            Poll::Pending => {}
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What is asked for before that, such as that of a body, is no answer yet.
        if self.pace.stage() == Stage::Answer {
            self.pace.enter(Stage::Idle);
            // Nobody reads until something comes, so the time for the next request is to wake this task.
            let _ = self.is_over(cx);
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
