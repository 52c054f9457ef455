//! A blocking client. Many threads may send requests over one connection at the same time: a thread of its own gives
//! each reply to the one that waits for it. A connection that is lost stays lost; connecting again is up to the caller.

mod dispatch;
mod handshake;
mod link;
#[cfg(test)]
mod tests;

use crate::nbd::server::BlockSizes;
use crate::nbd::uri::{Place, Uri};
use crate::nbd::wire::{
    RequestHeader, Take, allocation, command, command_flag, errno, transmission,
};
use crate::origin::Run;
use dispatch::Dispatch;
use link::{Link, Writer};
use rustls::ClientConfig;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How to connect.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// How long to wait for a connection, for each step of the negotiation, and for each reply. Default 30 s.
    pub timeout: Duration,
    /// For `nbds`; see [`crate::nbd::tls::client_config`].
    pub tls: Option<Arc<ClientConfig>>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), tls: None }
    }
}

/// Why a client did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answered. It may work later.
    #[error("failed to connect to {place}: {source}")]
    Connect {
        /// Where to.
        place: Place,
        /// As the system says.
        source: io::Error,
    },
    /// The server answered and refused, or speaks something else, or is not who it must be. It will do so again until
    /// someone changes a configuration.
    #[error("{place} does not serve export {export:?}: {why}")]
    Refused {
        /// Where.
        place: Place,
        /// What was asked for.
        export: String,
        /// As the server says, or what was wrong with its words.
        why: String,
    },
    /// The connection broke, or a reply did not come in time. The request may or may not have been carried out.
    #[error("the connection to {place} is lost: {why}")]
    Lost {
        /// Where.
        place: Place,
        /// What happened first.
        why: String,
    },
    /// The server answered with an error.
    #[error("{place} failed to {action}{}: {reason}{}", range(*offset, *len), detail(message))]
    Server {
        /// Where.
        place: Place,
        /// What was asked.
        action: &'static str,
        /// Where in the export, bytes.
        offset: u64,
        /// How many bytes; 0 of a flush.
        len: u64,
        /// As the server says.
        reason: Errno,
        /// As the server says; may be empty.
        message: String,
    },
    /// The request is not one that this export takes; nothing was sent.
    #[error("{0}")]
    Invalid(String),
}

fn range(offset: u64, len: u64) -> String {
    if len == 0 { String::new() } else { format!(" {len} bytes at {offset}") }
}

fn detail(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

/// An error number of the protocol: see [`errno`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub u32);

impl std::fmt::Display for Errno {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self.0 {
            errno::EPERM => "not permitted",
            errno::EIO => "input/output error",
            errno::ENOMEM => "out of memory",
            errno::EINVAL => "invalid request",
            errno::ENOSPC => "no space",
            errno::EOVERFLOW => "too large",
            errno::ENOTSUP => "not supported",
            errno::ESHUTDOWN => "shutting down",
            other => return write!(formatter, "error {other}"),
        })
    }
}

/// What the server said of its export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    size: u64,
    /// See [`transmission`].
    flags: u16,
    block: BlockSizes,
    /// The number of the context [`wire::ALLOCATION`], if the server tells where the export is sparse.
    allocation: Option<u32>,
}

/// One connection to one export. Dropping it takes leave.
#[derive(Debug)]
pub struct Client {
    place: Place,
    offer: Offer,
    timeout: Duration,
    link: Link,
    writer: Mutex<Writer>,
    dispatch: Arc<Dispatch>,
    reader: Option<JoinHandle<()>>,
}

/// What is asked in one request.
#[derive(Clone, Copy, Debug)]
struct Ask {
    action: &'static str,
    command: u16,
    flags: u16,
    offset: u64,
    len: u32,
}

impl Client {
    /// Connects to an export and agrees on what both sides can.
    ///
    /// # Errors
    /// [`ClientError::Connect`], [`ClientError::Refused`].
    pub fn connect(uri: &Uri, options: &ClientOptions) -> Result<Self, ClientError> {
        let link = Link::connect(&uri.place, options.timeout)
            .map_err(|source| ClientError::Connect { place: uri.place.clone(), source })?;
        Self::over(link, uri, options)
    }

    fn over(mut link: Link, uri: &Uri, options: &ClientOptions) -> Result<Self, ClientError> {
        let place = uri.place.clone();
        let offer = handshake::negotiate(&mut link, uri, options.tls.as_ref())
            .map_err(|why| why.into_client_error(uri))?;
        let lost = |source| ClientError::Connect { place: place.clone(), source };
        // From now on only those who wait for replies know how long is too long.
        link.wait_forever_for_reads().map_err(lost)?;
        let (reader, writer) = link.split();
        let dispatch = Arc::new(Dispatch::default());
        let thread = thread::Builder::new().name("nbd replies".to_owned()).spawn({
            let dispatch = Arc::clone(&dispatch);
            move || dispatch.run(reader)
        });
        Ok(Self {
            reader: Some(thread.map_err(lost)?),
            writer: Mutex::new(writer),
            timeout: options.timeout,
            place,
            offer,
            link,
            dispatch,
        })
    }

    /// The export's size in bytes.
    pub fn size(&self) -> u64 {
        self.offer.size
    }

    /// The sizes of requests that the server takes. Longer ones are cut here; ones that are not multiples of the
    /// smallest are refused here: the caller must read, merge and write.
    pub fn block_sizes(&self) -> BlockSizes {
        self.offer.block
    }

    /// Whether all of these transmission flags are set: see [`transmission`].
    pub fn offers(&self, flags: u16) -> bool {
        self.offer.flags & flags == flags
    }

    /// Whether requests still have a chance.
    pub fn is_connected(&self) -> bool {
        self.dispatch.lost().is_none()
    }

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// [`ClientError::Lost`], [`ClientError::Server`], [`ClientError::Invalid`]; so for every method here.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), ClientError> {
        self.check(offset, buf.len() as u64)?;
        let mut at = offset;
        for fragment in buf.chunks_mut(self.fragment_max()) {
            let len = fragment.len() as u32;
            let ask = Ask { action: "read", command: command::READ, flags: 0, offset: at, len };
            fragment.copy_from_slice(&self.ask(ask, &[])?);
            at += u64::from(len);
        }
        Ok(())
    }

    /// Writes all of `bytes`; with `fua` they are durable afterwards. After an error any part may have been written.
    pub fn write(&self, offset: u64, bytes: &[u8], fua: bool) -> Result<(), ClientError> {
        self.check_writable(offset, bytes.len() as u64)?;
        let flags = self.fua_flag(fua)?;
        let mut at = offset;
        for fragment in bytes.chunks(self.fragment_max()) {
            let len = fragment.len() as u32;
            let ask = Ask { action: "write", command: command::WRITE, flags, offset: at, len };
            self.ask(ask, fragment)?;
            at += u64::from(len);
        }
        self.flush_instead(fua, flags)
    }

    /// Makes a range read as zeros; with `punch` its space may be given back. A server without `WRITE_ZEROES` is sent the
    /// zeros.
    pub fn zero(&self, offset: u64, len: u64, punch: bool, fua: bool) -> Result<(), ClientError> {
        self.check_writable(offset, len)?;
        if !self.offers(transmission::SEND_WRITE_ZEROES) {
            return self.write_zeros(offset, len, fua);
        }
        let keep = if punch { 0 } else { command_flag::NO_HOLE };
        self.in_fragments("zero", command::WRITE_ZEROES, keep, offset, len, fua)
    }

    /// Says that a range's content no longer matters: it may read as anything afterwards. Nothing is sent to a server
    /// without `TRIM`.
    pub fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), ClientError> {
        self.check_writable(offset, len)?;
        if !self.offers(transmission::SEND_TRIM) {
            return Ok(());
        }
        self.in_fragments("trim", command::TRIM, 0, offset, len, fua)
    }

    /// Makes every write that returned before durable: over this connection, and over all that have the same export open
    /// if the server [offers](Client::offers) `CAN_MULTI_CONN`.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] if the server does not offer `SEND_FLUSH`: it does not say when writes are durable.
    pub fn flush(&self) -> Result<(), ClientError> {
        if !self.offers(transmission::SEND_FLUSH) {
            return Err(ClientError::Invalid(format!(
                "{} cannot flush: whether writes are durable is unknown",
                self.place
            )));
        }
        let ask = Ask { action: "flush", command: command::FLUSH, flags: 0, offset: 0, len: 0 };
        self.ask(ask, &[]).map(drop)
    }

    /// Which parts of a range take no space and read as zeros, from its start on; it may stop before the end. What the server
    /// does not tell is no hole.
    pub fn allocation(&self, offset: u64, len: u64) -> Result<Vec<Run>, ClientError> {
        self.check(offset, len)?;
        let unknown = vec![Run { len, is_hole: false }];
        let Some(context) = self.offer.allocation.filter(|_| len > 0) else { return Ok(unknown) };
        let asked = len.min(RANGE_MAX);
        let (action, command, flags) = ("tell where it is sparse", command::BLOCK_STATUS, 0);
        let ask = Ask { action, command, flags, offset, len: asked as u32 };
        let parts = self.ask_of(ask, &[], Some(context))?;
        let runs = runs(&parts, asked);
        Ok(if runs.is_empty() { unknown } else { runs })
    }

    fn in_fragments(
        &self,
        action: &'static str,
        command: u16,
        flags: u16,
        offset: u64,
        len: u64,
        fua: bool,
    ) -> Result<(), ClientError> {
        let fua_flag = self.fua_flag(fua)?;
        let flags = flags | fua_flag;
        let mut at = offset;
        while at < offset + len {
            let len = (offset + len - at).min(RANGE_MAX) as u32;
            self.ask(Ask { action, command, flags, offset: at, len }, &[])?;
            at += u64::from(len);
        }
        self.flush_instead(fua, fua_flag)
    }

    fn write_zeros(&self, offset: u64, len: u64, fua: bool) -> Result<(), ClientError> {
        let zeros = vec![0; self.fragment_max().min(ZEROS_MAX).min(len as usize)];
        let mut at = offset;
        while at < offset + len {
            let fragment = &zeros[..zeros.len().min((offset + len - at) as usize)];
            self.write(at, fragment, fua)?;
            at += fragment.len() as u64;
        }
        Ok(())
    }

    fn fua_flag(&self, fua: bool) -> Result<u16, ClientError> {
        match fua {
            true if self.offers(transmission::SEND_FUA) => Ok(command_flag::FUA),
            true if !self.offers(transmission::SEND_FLUSH) => Err(ClientError::Invalid(format!(
                "{} has neither FUA nor flush: writes cannot be made durable",
                self.place
            ))),
            _ => Ok(0),
        }
    }

    /// Where FUA was wanted and the server has none.
    fn flush_instead(&self, fua: bool, flag: u16) -> Result<(), ClientError> {
        if fua && flag == 0 { self.flush() } else { Ok(()) }
    }

    /// The longest read or write, a multiple of the smallest.
    fn fragment_max(&self) -> usize {
        self.offer.block.max as usize
    }

    fn check_writable(&self, offset: u64, len: u64) -> Result<(), ClientError> {
        if self.offers(transmission::READ_ONLY) {
            return Err(ClientError::Invalid(format!("{} serves a read-only export", self.place)));
        }
        self.check(offset, len)
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), ClientError> {
        let Offer { size, block, .. } = self.offer;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(ClientError::Invalid(format!(
                "{len} bytes at {offset} are beyond the {size} bytes of the export at {}",
                self.place
            )));
        }
        let unit = u64::from(block.min);
        if !offset.is_multiple_of(unit) || !len.is_multiple_of(unit) {
            return Err(ClientError::Invalid(format!(
                "{len} bytes at {offset} are no multiples of the {unit} bytes that {} insists on",
                self.place
            )));
        }
        Ok(())
    }

    /// Sends one request and waits for its reply.
    fn ask(&self, ask: Ask, payload: &[u8]) -> Result<Vec<u8>, ClientError> {
        self.ask_of(ask, payload, None)
    }

    /// The same for a request whose reply is of a context.
    fn ask_of(
        &self,
        ask: Ask,
        payload: &[u8],
        context: Option<u32>,
    ) -> Result<Vec<u8>, ClientError> {
        let data_len = if ask.command == command::READ { ask.len } else { 0 };
        let expected = self.dispatch.expect(ask.offset, data_len, context);
        let (cookie, waiting) = expected.map_err(|why| self.lost(why))?;
        let Ask { flags, command, offset, len, .. } = ask;
        let header = RequestHeader { flags, command, cookie, offset, len };
        let sent = self.writer().send(&header.encode(), payload);
        if let Err(error) = sent {
            self.give_up(format!("sending failed: {error}"));
        }
        let reply = waiting.recv_timeout(self.timeout).unwrap_or_else(|_| {
            self.give_up(format!("no reply within {:?}", self.timeout));
            Err(self.dispatch.failure())
        });
        reply.map_err(|failure| match failure {
            dispatch::Failure::Lost(why) => self.lost(why),
            dispatch::Failure::Server(reason, message) => ClientError::Server {
                place: self.place.clone(),
                action: ask.action,
                offset,
                len: u64::from(len),
                reason,
                message,
            },
        })
    }

    fn lost(&self, why: String) -> ClientError {
        ClientError::Lost { place: self.place.clone(), why }
    }

    /// Ends the connection for all who wait.
    fn give_up(&self, why: String) {
        self.dispatch.lose(why);
        self.link.shutdown();
    }

    fn writer(&self) -> std::sync::MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.is_connected() {
            let (flags, command, cookie) = (0, command::DISC, 0);
            let leave = RequestHeader { flags, command, cookie, offset: 0, len: 0 };
            // A server that is gone needs no farewell.
            let _ = self.writer().send(&leave.encode(), &[]);
        }
        self.link.shutdown();
        if let Some(reader) = self.reader.take() {
            // It ends with the connection; had it panicked, its message would be on stderr.
            let _ = reader.join();
        }
    }
}

/// What a server tells of at most `len` bytes, parts of a length and flags each; none if it makes no sense.
fn runs(parts: &[u8], len: u64) -> Vec<Run> {
    const HOLE: u32 = allocation::HOLE | allocation::ZERO;
    let (mut runs, mut told) = (Vec::new(), 0);
    for part in parts.chunks_exact(PART_BYTES) {
        let mut take = Take(part);
        let (Some(bytes), Some(flags)) = (take.u32(), take.u32()) else { return Vec::new() };
        // Only the last part may reach beyond what was asked for.
        if bytes == 0 || told >= len {
            return Vec::new();
        }
        let part = u64::from(bytes).min(len - told);
        told += part;
        runs.push(Run { len: part, is_hole: flags & HOLE == HOLE });
    }
    runs
}

/// Bytes of a part in a reply about a context.
const PART_BYTES: usize = 8;

/// The longest range of a request without data, bytes: a multiple of any block size, and short enough for servers that
/// do it fragment by fragment to answer in time.
const RANGE_MAX: u64 = 256 << 20;

/// Zeros sent at a time to a server that cannot make them itself.
const ZEROS_MAX: usize = 1 << 20;
