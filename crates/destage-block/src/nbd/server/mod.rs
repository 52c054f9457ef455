//! The server's side of one connection, without I/O: bytes in, events out, replies in, bytes out.
//!
//! The owner of the socket goes round like this (and [`Connection`] does it, TLS included, for any stream):
//! 1. while [`Session::wants_input`], read into [`Session::space`] and say how much by [`Session::filled`];
//! 2. take [`Session::next_event`] until there is none, and carry the requests out at leisure;
//! 3. give each result to [`Session::reply`], in any order;
//! 4. send what [`Session::output`] shows and say how much by [`Session::sent`]; then go to 2, since room for further
//!    requests may have come about;
//! 5. close once [`Session::is_finished`].
//!
//! Nothing that a client sends makes it panic, and memory is bounded: see [`Limits`].

mod connection;
mod contexts;
mod export;
mod input;
mod negotiation;
mod output;
#[cfg(test)]
mod tests;
mod transmission;

use crate::request::{Reply, Request};
pub use connection::{Connection, Received, Tls};
use contexts::Context;
pub use export::{BlockSizes, Export, Exports};
use input::Input;
use negotiation::Negotiation;
use output::Output;
use std::io::IoSlice;
use std::sync::Arc;
use transmission::Transmission;

/// Which request a reply belongs to: unique in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(pub u64);

/// Whether connections are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// TLS is refused.
    #[default]
    Off,
    /// TLS if the client asks for it. Anyone between both may prevent that.
    Optional,
    /// Nothing but the start of TLS is answered in the clear.
    Required,
}

/// What one connection may hold. Memory is at most `bytes_max`, or one request of the export's longest where that is
/// more, and less than 256 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests taken and not answered yet; at least 1.
    pub requests_max: usize,
    /// Data of writes taken and not answered, of reads to be answered, and replies not sent yet, bytes.
    pub bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { requests_max: 256, bytes_max: 64 << 20 }
    }
}

/// What the owner of a session must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The negotiation is over: requests to this export follow.
    Opened(Export),
    /// The client asks for something, within the export and its limits. To be answered by [`Session::reply`].
    Request(Cookie, Request),
    /// After what [`Session::output`] shows now has been sent in the clear, everything is TLS with the server's side
    /// waiting for the client's first words. To be answered by [`Session::tls_started`] before any decrypted bytes are
    /// given; bytes that come before are refused.
    StartTls,
    /// No further event follows. The connection is to be closed once [`Session::is_finished`].
    Ended(End),
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The client took its leave.
    Disconnected,
    /// The client broke the protocol, or asked in a way that can only be refused by closing: what happened.
    Violation(String),
}

/// One connection. See the module's head.
#[derive(Debug)]
pub struct Session {
    limits: Limits,
    /// Whether a request beyond the limit may be taken alone.
    takes_long: bool,
    input: Input,
    output: Output,
    negotiation: Negotiation,
    transmission: Option<Transmission>,
    ended: Option<End>,
    stopping: bool,
}

/// What a session may hold now.
#[derive(Clone, Copy, Debug)]
struct Room {
    limits: Limits,
    /// Whether a request beyond the limit may be taken alone.
    takes_long: bool,
}

/// What understanding the next bytes led to.
enum Step {
    /// More bytes, or room, are needed.
    Wait,
    /// Something was done; there may be more.
    Again,
    /// The owner must know.
    Event(Event),
    /// The negotiation is over.
    Open(Export, Replies, Vec<Context>),
    /// It is over.
    End(End),
}

/// How a client wants its replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replies {
    Simple,
    Structured,
}

impl Session {
    /// A connection that was just accepted: the greeting is in [`Session::output`].
    pub fn new(exports: Arc<dyn Exports>, tls: TlsMode, limits: Limits) -> Self {
        let mut output = Output::default();
        output.put(&Negotiation::greeting());
        Self {
            limits,
            takes_long: true,
            input: Input::new(),
            output,
            negotiation: Negotiation::new(exports, tls),
            transmission: None,
            ended: None,
            stopping: false,
        }
    }

    /// Whether bytes are to be read from the client now. `false` while its requests are at a limit: let it wait.
    pub fn wants_input(&self) -> bool {
        self.ended.is_none()
            && (self.input.is_within_payload() || (self.input.has_space() && !self.is_at_limit()))
    }

    /// Sets what the session may hold from now on: [`Limits::bytes_max`], and whether a request beyond it may be taken alone,
    /// as it may unless this says otherwise. What is held already stays.
    pub fn set_memory(&mut self, bytes_max: usize, takes_long: bool) {
        self.limits.bytes_max = bytes_max;
        self.takes_long = takes_long;
    }

    /// Whether a request waits for [`Session::set_memory`] alone, and not for what this session holds.
    pub fn is_short_of_memory(&self) -> bool {
        let transmission = self.transmission.as_ref().filter(|_| self.ended.is_none());
        !self.takes_long
            && transmission.is_some_and(|it| it.waits_for_memory(&self.input, self.limits))
            && self.bytes_held() == 0
    }

    /// Where received bytes go; not empty if [`Session::wants_input`] and all events have been taken.
    pub fn space(&mut self) -> &mut [u8] {
        self.input.space()
    }

    /// Says that the first `len` bytes of [`Session::space`] have been received.
    ///
    /// # Panics
    /// If there was less space.
    pub fn filled(&mut self, len: usize) {
        let space = self.input.space().len();
        assert!(len <= space, "{len} bytes were put into a space of {space}");
        self.input.filled(len);
    }

    /// What happened. To be called until there is nothing, after bytes were received and after replies were sent.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            match self.step() {
                Step::Wait => return None,
                Step::Again => {}
                Step::Event(event) => return Some(event),
                Step::Open(export, replies, contexts) => {
                    let transmission = Transmission::new(export.clone(), replies, contexts);
                    self.transmission = Some(transmission);
                    return Some(Event::Opened(export));
                }
                Step::End(end) => {
                    self.ended = Some(end.clone());
                    return Some(Event::Ended(end));
                }
            }
        }
    }

    /// Goes on in TLS: the answer to [`Event::StartTls`].
    pub fn tls_started(&mut self) {
        self.negotiation.tls_started();
    }

    /// Answers a request. A reply that does not fit its request becomes an input/output error; one to an unknown request,
    /// or after the client broke the protocol, is dropped.
    pub fn reply(&mut self, cookie: Cookie, reply: Reply) {
        if let Some(transmission) = &mut self.transmission
            && !matches!(self.ended, Some(End::Violation(_)))
        {
            transmission.reply(&mut self.output, cookie, reply);
        }
    }

    /// From now on everything is refused because the server shuts down. What was taken is still to be answered.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Sets slices to the bytes to send next; returns how many are set, 0 if there is nothing to send.
    pub fn output<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.output.slices(slices)
    }

    /// Says that `len` bytes of what [`Session::output`] shows are sent.
    pub fn sent(&mut self, len: usize) {
        self.output.advance(len);
    }

    /// Whether there is something to send.
    pub fn has_output(&self) -> bool {
        self.output.len() > 0
    }

    /// Requests that wait for [`Session::reply`].
    pub fn requests_under_way(&self) -> usize {
        self.transmission.as_ref().map_or(0, Transmission::requests)
    }

    /// Bytes held for requests and replies: what [`Limits::bytes_max`] limits.
    pub fn bytes_held(&self) -> usize {
        self.output.len() + self.transmission.as_ref().map_or(0, Transmission::bytes)
    }

    /// Whether all has been said, so that the connection is to be closed.
    pub fn is_finished(&self) -> bool {
        match &self.ended {
            None => false,
            Some(End::Violation(_)) => !self.has_output(),
            Some(End::Disconnected) => !self.has_output() && self.requests_under_way() == 0,
        }
    }

    fn step(&mut self) -> Step {
        if self.ended.is_some() {
            return Step::Wait;
        }
        let (input, output) = (&mut self.input, &mut self.output);
        match &mut self.transmission {
            Some(transmission) => {
                let room = Room { limits: self.limits, takes_long: self.takes_long };
                transmission.step(input, output, room, self.stopping)
            }
            None => self.negotiation.step(input, output, self.stopping),
        }
    }

    fn is_at_limit(&self) -> bool {
        let transmission = self.transmission.as_ref();
        transmission.is_some_and(|it| it.is_at_limit(self.limits, self.output.len()))
    }
}
