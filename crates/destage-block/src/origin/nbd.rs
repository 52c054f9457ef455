//! Another server's export.
//!
//! A connection that breaks takes with it the knowledge of whether the server still has what was written over it: it may
//! have restarted. So the next flush fails, and [`Origin::losses`] grows, if anything was written and not flushed.

use super::losses::Losses;
use super::{Identity, Origin, OriginIoError, OriginIoErrorKind, Run};
use crate::block::BLOCK;
use crate::nbd::client::{Client, ClientError, ClientOptions};
use crate::nbd::uri::Uri;
use crate::nbd::wire::{errno, transmission};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How to reach an export.
#[derive(Clone, Debug)]
pub struct NbdOptions {
    /// Of each connection.
    pub client: ClientOptions,
    /// Connections at a time, 1 to [`CONNECTIONS_MAX`]; one only unless the server says that one flush covers all.
    pub connections: usize,
    /// Requests at a time over all connections; at least 1.
    pub parallelism: usize,
}

impl Default for NbdOptions {
    fn default() -> Self {
        Self { client: ClientOptions::default(), connections: 4, parallelism: 32 }
    }
}

/// An export, reached over one or more connections that come back when they are lost.
#[derive(Debug)]
pub struct NbdOrigin {
    uri: Uri,
    options: NbdOptions,
    size: AtomicU64,
    /// Held by each request, and alone while the connections are exchanged for others.
    requests: RwLock<()>,
    can_flush: bool,
    lines: Vec<Line>,
    next: AtomicUsize,
    losses: Losses,
}

/// A connection's place.
#[derive(Debug, Default)]
struct Line {
    state: Mutex<State>,
    /// Grows before and after each write over it.
    writes: AtomicU64,
    /// What `writes` was when the last good flush began.
    flushed: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    client: Option<Arc<Client>>,
    /// Failed attempts in a row.
    failures: u32,
    /// No attempt before it, and why.
    wait: Option<(Instant, OriginIoError)>,
}

impl NbdOrigin {
    /// Connects once, to learn the export's size and abilities.
    ///
    /// # Errors
    /// `Unavailable` if nobody answers; `Denied` if the export is absent, empty, read-only or takes no writes of 4 KiB.
    pub fn open(uri: &Uri, options: NbdOptions) -> Result<Self, OriginIoError> {
        let client = Client::connect(uri, &options.client).map_err(|e| of_client(&e))?;
        let denied = |why: String| Err(OriginIoError::new(OriginIoErrorKind::Denied, why));
        if client.offers(transmission::READ_ONLY) {
            return denied(format!("{uri} is a read-only export: an origin must take writes"));
        }
        let block = client.block_sizes();
        if block.min as usize > BLOCK {
            return denied(format!(
                "{uri} takes writes of {} bytes and more only: blocks of {BLOCK} bytes are needed",
                block.min
            ));
        }
        if client.size() == 0 {
            return denied(format!("{uri} is an export of 0 bytes"));
        }
        let is_multi = client.offers(transmission::CAN_MULTI_CONN);
        let connections = if is_multi { options.connections.clamp(1, CONNECTIONS_MAX) } else { 1 };
        let lines: Vec<Line> = (0..connections).map(|_| Line::default()).collect();
        let (size, can_flush) = (client.size(), client.offers(transmission::SEND_FLUSH));
        lines[0].state.lock().unwrap_or_else(PoisonError::into_inner).client = Some(client.into());
        Ok(Self {
            uri: uri.clone(),
            size: AtomicU64::new(size),
            requests: RwLock::new(()),
            can_flush,
            options,
            lines,
            next: AtomicUsize::new(0),
            losses: Losses::default(),
        })
    }

    /// How many connections it uses.
    pub fn connections(&self) -> usize {
        self.lines.len()
    }

    /// Carries a request out over the next connection. One that finds its connection broken fails, since it may or may not
    /// have been carried out; the next request over that line connects again.
    fn with_line<T>(
        &self,
        is_write: bool,
        run: impl FnOnce(&Client) -> Result<T, ClientError>,
    ) -> Result<T, OriginIoError> {
        let _request = self.requests.read().unwrap_or_else(PoisonError::into_inner);
        let index = self.next.fetch_add(1, Ordering::Relaxed) % self.lines.len();
        let line = &self.lines[index];
        let client = self.connected(line)?;
        // Both before and after: a flush in between may or may not cover it.
        line.writes.fetch_add(u64::from(is_write), Ordering::AcqRel);
        let result = run(&client);
        line.writes.fetch_add(u64::from(is_write), Ordering::AcqRel);
        result.map_err(|error| {
            self.note(line, &client);
            of_client(&error)
        })
    }

    /// A line's connection, made anew where it is lost.
    fn connected(&self, line: &Line) -> Result<Arc<Client>, OriginIoError> {
        let mut state = line.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &state.client {
            if client.is_connected() {
                return Ok(client.clone());
            }
            self.lose(line, &mut state);
        }
        if let Some((until, error)) = &state.wait
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        match self.connect() {
            Ok(client) => {
                *state = State { client: Some(client.clone()), ..State::default() };
                Ok(client)
            }
            Err(error) => {
                state.failures = (state.failures + 1).min(BACKOFF_DOUBLINGS_MAX);
                let wait = BACKOFF_FIRST * 2_u32.pow(state.failures - 1);
                state.wait = Some((Instant::now() + wait, error.clone()));
                Err(error)
            }
        }
    }

    fn connect(&self) -> Result<Arc<Client>, OriginIoError> {
        let client = Client::connect(&self.uri, &self.options.client).map_err(|e| of_client(&e))?;
        let is_multi = client.offers(transmission::CAN_MULTI_CONN);
        // One that has grown is the same one: what was added counts once it is taken up.
        if client.size() < self.size()
            || client.block_sizes().min as usize > BLOCK
            || client.offers(transmission::READ_ONLY)
            || client.offers(transmission::SEND_FLUSH) != self.can_flush
            || (self.lines.len() > 1 && !is_multi)
        {
            let message = format!(
                "{} is no longer what was opened (it had {} bytes, now {}; or it takes other requests): \
                 restart once the right one is back",
                self.uri,
                self.size(),
                client.size()
            );
            return Err(OriginIoError::new(OriginIoErrorKind::Denied, message));
        }
        Ok(client.into())
    }

    /// Forgets a connection that broke.
    fn note(&self, line: &Line, client: &Arc<Client>) {
        if client.is_connected() {
            return;
        }
        let mut state = line.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Someone else may have connected again meanwhile.
        if state.client.as_ref().is_some_and(|current| Arc::ptr_eq(current, client)) {
            self.lose(line, &mut state);
        }
    }

    fn lose(&self, line: &Line, state: &mut State) {
        state.client = None;
        if line.is_dirty() {
            self.losses.add();
        }
        line.flushed.store(line.writes.load(Ordering::Acquire), Ordering::Release);
        tracing::warn!(origin = %self.uri, "the connection to the origin is lost");
    }

    /// Flushes each line that was written to, over the connection that carried the writes. One flush would cover them all,
    /// but over a connection to a server that has restarted it covers nothing, and only the old ones show that.
    fn flush_lines(&self) -> Result<(), OriginIoError> {
        let mut dirty: Vec<&Line> = self.lines.iter().filter(|line| line.is_dirty()).collect();
        if dirty.is_empty() {
            // What an earlier process has written is to be durable as well.
            dirty.push(&self.lines[0]);
        }
        let [first, others @ ..] = &dirty[..] else { return Ok(()) };
        std::thread::scope(|scope| {
            let others = others.iter().map(|line| scope.spawn(|| self.flush_line(line)));
            let others: Vec<_> = others.collect();
            let first = self.flush_line(first);
            let panicked = |_| Err(unavailable("a thread that flushed the origin ended early"));
            others.into_iter().fold(first, |all, other| {
                let other = other.join().unwrap_or_else(panicked);
                all.and(other)
            })
        })
    }

    fn flush_line(&self, line: &Line) -> Result<(), OriginIoError> {
        let begun = line.writes.load(Ordering::Acquire);
        let client = self.connected(line)?;
        match client.flush() {
            Ok(()) => {
                line.flushed.fetch_max(begun, Ordering::AcqRel);
                Ok(())
            }
            Err(error) => {
                self.note(line, &client);
                Err(of_client(&error))
            }
        }
    }
}

impl Line {
    /// Something was written over it that no flush has covered.
    fn is_dirty(&self) -> bool {
        self.writes.load(Ordering::Acquire) != self.flushed.load(Ordering::Acquire)
    }
}

fn unavailable(message: &str) -> OriginIoError {
    OriginIoError::new(OriginIoErrorKind::Unavailable, message)
}

impl Origin for NbdOrigin {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// A connection knows the size that the export had when it was made, so all are made anew.
    fn take_up_growth(&self) -> Result<u64, OriginIoError> {
        let client = self.connect()?;
        let size = client.size();
        if size == self.size() {
            return Ok(size);
        }
        let _alone = self.requests.write().unwrap_or_else(PoisonError::into_inner);
        // No request is under way: what the old connections have carried is durable after this.
        self.flush()?;
        for line in &self.lines {
            line.state.lock().unwrap_or_else(PoisonError::into_inner).client = None;
        }
        let mut first = self.lines[0].state.lock().unwrap_or_else(PoisonError::into_inner);
        *first = State { client: Some(client), ..State::default() };
        self.size.store(size, Ordering::Release);
        Ok(size)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OriginIoError> {
        self.with_line(false, |client| client.read(offset, buf))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OriginIoError> {
        self.with_line(true, |client| client.write(offset, bytes, false))
    }

    fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<(), OriginIoError> {
        if len == 0 {
            return Ok(());
        }
        self.with_line(true, |client| client.zero(offset, len, punch, false))
    }

    fn flush(&self) -> Result<(), OriginIoError> {
        // What cannot flush is refused where it matters; elsewhere its users know that nothing is promised.
        if !self.can_flush {
            return self.losses.flush(&self.uri.to_string(), || Ok(()));
        }
        self.losses.flush(&self.uri.to_string(), || self.flush_lines())
    }

    fn losses(&self) -> u64 {
        self.losses.count()
    }

    fn can_flush(&self) -> bool {
        self.can_flush
    }

    fn parallelism(&self) -> usize {
        self.options.parallelism.max(1)
    }

    /// As the server says, if it tells by `base:allocation` where the export is sparse.
    fn allocation(&self, offset: u64, len: u64) -> Result<Vec<Run>, OriginIoError> {
        // Servers tell of whole blocks only.
        let block = BLOCK as u64;
        let first = offset / block * block;
        let end = (offset + len).next_multiple_of(block).min(self.size());
        let mut runs = self.with_line(false, |client| client.allocation(first, end - first))?;
        // What comes before the range is no part of the answer; what comes after it does no harm.
        let mut skip = offset - first;
        runs.retain_mut(|run| {
            let skipped = skip.min(run.len);
            (skip, run.len) = (skip - skipped, run.len - skipped);
            run.len > 0
        });
        Ok(runs)
    }

    fn identity(&self) -> Result<Identity, OriginIoError> {
        let name = self.uri.to_string();
        let store = format!("export \"{}\" at {}", self.uri.export, self.uri.place);
        Ok(Identity { name, size: self.size(), store, modified_ns: None })
    }
}

/// What a client's error means for an origin.
fn of_client(error: &ClientError) -> OriginIoError {
    let kind = match error {
        ClientError::Connect { .. } | ClientError::Lost { .. } => OriginIoErrorKind::Unavailable,
        ClientError::Refused { .. } | ClientError::Invalid(_) => OriginIoErrorKind::Denied,
        ClientError::Server { reason, .. } => match reason.0 {
            errno::EPERM | errno::ENOSPC | errno::EOVERFLOW | errno::ENOTSUP => {
                OriginIoErrorKind::Denied
            }
            errno::ENOMEM | errno::ESHUTDOWN => OriginIoErrorKind::Unavailable,
            _ => OriginIoErrorKind::Failed,
        },
    };
    OriginIoError::new(kind, error.to_string())
}

/// More help no server.
pub const CONNECTIONS_MAX: usize = 16;
/// After the first failed attempt; doubled after each further one.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// About 3 s: longer would make a server that is back wait for us.
const BACKOFF_DOUBLINGS_MAX: u32 = 7;

#[cfg(test)]
mod tests;
