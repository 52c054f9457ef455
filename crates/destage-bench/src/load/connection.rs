//! Nonblocking connections and the loop that drives them.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use destage_runtime::sockets::Stream;
use mio::{Events, Interest, Poll, Token};

use super::{Bound, Load, Part, Shared, Template, new_histogram};
use crate::Result;
use crate::connect::Connected;
use crate::keys::{Keys, Shape};

const READ_BYTES: usize = 256 * 1024;

/// One connection with its own keys and its own copy of the request.
pub(super) struct Connection {
    stream: Stream,
    lane: usize,
    keys: Keys,
    template: Template,
    serial: u64,
    out: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    filled: usize,
    waiting: u64,
    sent_at: Instant,
    /// This lane's own share of a counted run that visits each key once: lanes differ in speed.
    quota: Option<u64>,
}

impl Connection {
    pub(super) fn open(load: &Load, lane: usize) -> Result<Self> {
        let stream = connect(load)
            .map_err(|error| format!("failed to connect to {}: {error}", load.address))?;
        Ok(Self {
            stream: stream.nonblocking()?,
            lane,
            keys: load.keys(lane),
            template: load.template.clone(),
            // Lanes write different payloads, whatever their serial numbers.
            serial: lane as u64 * 1_000_000_000 / load.connections as u64,
            out: Vec::new(),
            written: 0,
            input: vec![0; READ_BYTES],
            filled: 0,
            waiting: 0,
            sent_at: Instant::now(),
            quota: quota(load, lane as u64),
        })
    }

    /// Queues the next pipeline's worth and sends it. False: the bound is reached.
    fn next_batch(&mut self, load: &Load, shared: &Shared, part: &mut Part) -> Result<bool> {
        let now = Instant::now();
        let wanted = load.pipeline as u64;
        let count = match &mut self.quota {
            None => shared.take(wanted, now),
            Some(left) => {
                let count = wanted.min(*left);
                *left -= count;
                count
            }
        };
        if count == 0 {
            return Ok(false);
        }
        self.out.clear();
        self.written = 0;
        for _ in 0..count {
            let key = self.keys.next();
            part.seen[(key / 64) as usize] |= 1 << (key % 64);
            self.template.append(key, self.serial, &mut self.out);
            self.serial += 1;
        }
        self.waiting = count;
        self.sent_at = now;
        self.write()?;
        Ok(true)
    }

    fn write(&mut self) -> Result<()> {
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("failed to send: {error}").into()),
            }
        }
        Ok(())
    }

    /// Reads what is there. Fewer bytes than asked for means that the socket is empty.
    fn read(&mut self, load: &Load, part: &mut Part) -> Result<()> {
        loop {
            if self.filled == self.input.len() {
                self.input.resize(self.input.len() * 2, 0);
            }
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Err("the server closed a connection under load".into()),
                Ok(count) => {
                    self.filled += count;
                    let more = self.filled == self.input.len();
                    self.take_replies(load, part)?;
                    if !more {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("failed to receive: {error}").into()),
            }
        }
    }

    fn take_replies(&mut self, load: &Load, part: &mut Part) -> Result<()> {
        let mut at = 0;
        let mut count = 0;
        while let Some(reply) = load.protocol.reply(&self.input[at..self.filled])? {
            at += reply.length;
            count += 1;
            if let Some(error) = reply.error {
                part.errors += 1;
                part.first_error.get_or_insert(error);
            }
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        if count > self.waiting {
            return Err("the server sent more replies than it got requests".into());
        }
        if count > 0 {
            self.waiting -= count;
            part.requests += count;
            part.last_reply = Instant::now();
            let nanos = part.last_reply.duration_since(self.sent_at).as_nanos() as u64;
            part.latency.saturating_record_n(nanos.max(1), count);
        }
        Ok(())
    }
}

fn quota(load: &Load, lane: u64) -> Option<u64> {
    match (load.shape, load.bound) {
        (Shape::Each, Bound::Requests(all)) => {
            Some(all.saturating_sub(lane).div_ceil(load.connections as u64))
        }
        _ => None,
    }
}

fn connect(load: &Load) -> Result<Connected> {
    let mut stream = Connected::to(&load.address)?;
    if load.preamble.is_empty() {
        return Ok(stream);
    }
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(&load.preamble)?;
    let mut got = Vec::new();
    let mut chunk = [0u8; 4096];
    let mut replies = expected_replies(load);
    while replies > 0 {
        let count = stream.read(&mut chunk)?;
        if count == 0 {
            return Err("the server closed the connection before the load began".into());
        }
        got.extend_from_slice(&chunk[..count]);
        while let Some(reply) = load.protocol.reply(&got)? {
            if let Some(error) = reply.error {
                return Err(format!("the server refused the preamble: {error}").into());
            }
            got.drain(..reply.length);
            replies -= 1;
        }
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// PostgreSQL answers the start-up and the Parse with one ReadyForQuery each.
fn expected_replies(load: &Load) -> usize {
    match load.protocol {
        super::Protocol::Postgres => 2,
        super::Protocol::Resp => 1,
    }
}

/// Drives `crew` until the bound is reached and all replies are in.
pub(super) fn drive(load: &Load, mut crew: Vec<Connection>, shared: &Shared) -> Result<Part> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut part = Part {
        requests: 0,
        errors: 0,
        first_error: None,
        last_reply: Instant::now(),
        latency: new_histogram(),
        seen: vec![0; load.key_space.div_ceil(64) as usize],
    };
    let mut active = 0usize;
    for (at, connection) in crew.iter_mut().enumerate() {
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(connection.stream.source(), Token(at), interest)?;
        active += usize::from(connection.next_batch(load, shared, &mut part)?);
    }
    while active > 0 {
        poll.poll(&mut events, Some(Duration::from_secs(1)))?;
        if part.last_reply.elapsed() > load.stall_timeout {
            return Err(stalled(load, &crew).into());
        }
        for event in &events {
            let connection = &mut crew[event.token().0];
            if connection.written < connection.out.len() {
                connection.write()?;
            }
            if !event.is_readable() || connection.waiting == 0 {
                continue;
            }
            connection.read(load, &mut part)?;
            if connection.waiting == 0 && !connection.next_batch(load, shared, &mut part)? {
                active -= 1;
            }
        }
    }
    Ok(part)
}

fn stalled(load: &Load, crew: &[Connection]) -> String {
    let lanes: Vec<usize> = crew.iter().filter(|c| c.waiting > 0).map(|c| c.lane).collect();
    let seconds = load.stall_timeout.as_secs();
    format!("no reply from {} for {seconds} s; connections {lanes:?} still wait", load.address)
}
