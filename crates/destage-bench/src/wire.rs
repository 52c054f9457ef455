//! One client's connection in a closed loop, in RESP or PostgreSQL's protocol: what is sent together is one round trip.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use destage_runtime::sockets::Listen;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use crate::Result;
use crate::connect::{Duplex, duplex};
use crate::control::{Value, read_value};
use crate::load::Protocol;

const READ_BYTES: usize = 64 * 1024;

/// A connection, and what is about to be sent on it.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: Box<dyn Duplex>,
    protocol: Protocol,
    /// Requests for the next exchange.
    pub(crate) out: Vec<u8>,
    input: Vec<u8>,
    filled: usize,
    /// Exchanges so far.
    trips: u64,
}

impl Wire {
    /// Connects, and sends what a session begins with, which gets so many replies.
    ///
    /// # Errors
    ///
    /// Nobody listens, or the server refuses the session.
    pub(crate) async fn connect(
        address: &Listen,
        protocol: Protocol,
        preamble: &[u8],
        replies: usize,
    ) -> Result<Self> {
        let failed = |error| format!("failed to connect to {address}: {error}");
        let stream = duplex(address).await.map_err(failed)?;
        let input = vec![0; READ_BYTES];
        let mut wire =
            Self { stream, protocol, out: preamble.to_vec(), input, filled: 0, trips: 0 };
        if replies > 0 {
            wire.exchange(replies).await?;
            wire.trips = 0;
        }
        Ok(wire)
    }

    /// Sends what is in `out` and waits for so many replies, which are returned as they came.
    ///
    /// # Errors
    ///
    /// The connection broke, or a reply is an error; then all of them have been taken all the same.
    pub(crate) async fn exchange(&mut self, replies: usize) -> Result<&[u8]> {
        self.trips += 1;
        self.filled = 0;
        self.send().await.map_err(|error| format!("failed to send: {error}"))?;
        let (mut at, mut left, mut failure) = (0, replies, None);
        while left > 0 {
            match self.protocol.reply(&self.input[at..self.filled])? {
                Some(reply) => {
                    (at, left) = (at + reply.length, left - 1);
                    failure = failure.or(reply.error);
                }
                None => self.receive().await?,
            }
        }
        if at < self.filled {
            return Err("the server sent more replies than it got requests".into());
        }
        match failure {
            None => Ok(&self.input[..at]),
            Some(error) => Err(error.into()),
        }
    }

    /// Round trips since it was connected.
    pub(crate) fn trips(&self) -> u64 {
        self.trips
    }

    async fn send(&mut self) -> std::io::Result<()> {
        let mut written = 0;
        while written < self.out.len() {
            let rest = &self.out[written..];
            let stream = &mut self.stream;
            written +=
                std::future::poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, rest)).await?;
        }
        self.out.clear();
        Ok(())
    }

    async fn receive(&mut self) -> Result<()> {
        if self.filled == self.input.len() {
            self.input.resize(self.input.len() * 2, 0);
        }
        let count = std::future::poll_fn(|cx| self.poll_receive(cx)).await;
        match count.map_err(|error| format!("failed to receive: {error}"))? {
            0 => Err("the server closed a connection under load".into()),
            count => {
                self.filled += count;
                Ok(())
            }
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        let mut room = ReadBuf::new(&mut self.input[self.filled..]);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room))?;
        Poll::Ready(Ok(room.filled().len()))
    }
}

/// A client of the Redis protocol on such a connection, whose replies are read.
#[derive(Debug)]
pub(crate) struct Resp {
    wire: Wire,
    requests: usize,
}

impl Resp {
    /// # Errors
    ///
    /// Nobody listens.
    pub(crate) async fn connect(address: &Listen) -> Result<Self> {
        let wire = Wire::connect(address, Protocol::Resp, &[], 0).await?;
        Ok(Self { wire, requests: 0 })
    }

    /// Adds a command to the next exchange.
    pub(crate) fn push(&mut self, arguments: &[&str]) {
        let out = &mut self.wire.out;
        out.extend(format!("*{}\r\n", arguments.len()).bytes());
        for argument in arguments {
            out.extend(format!("${}\r\n{argument}\r\n", argument.len()).bytes());
        }
        self.requests += 1;
    }

    /// Sends the commands; the last one's reply, once all are there.
    ///
    /// # Errors
    ///
    /// The connection broke, or a command was refused, also one inside of a transaction.
    pub(crate) async fn last(&mut self) -> Result<Value> {
        let count = std::mem::take(&mut self.requests);
        let mut bytes = self.wire.exchange(count).await?;
        let replies = (0..count).map(|_| read_value(&mut bytes));
        replies.last().unwrap_or_else(|| Err("no command was sent".into()))
    }

    /// Round trips since it was connected.
    pub(crate) fn trips(&self) -> u64 {
        self.wire.trips()
    }
}
