//! The event loop: sockets, a timer, and the model that says when an answer leaves.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use destage_block::nbd::server::{Connection, Cookie, Event, Export, Limits, Received, Tls};
use destage_block::request::{Reply, Request, RequestError, Status};
use destage_runtime::sockets::{Listen, Listener, Stream};
use destage_sim::disk::{Access, Model, Moment, Profile};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::DeviceArgs;
use super::store::Store;
use crate::Result;

const LISTENER: Token = Token(usize::MAX);
const TIMER: Token = Token(usize::MAX - 1);
const WAKER: Token = Token(usize::MAX - 2);

/// What whoever started the device says on its standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Instant,
    Timed,
    Counts,
    Unknown(String),
    End,
}

impl Word {
    pub(super) fn of(line: &str) -> Self {
        match line.trim() {
            "instant" => Self::Instant,
            "timed" => Self::Timed,
            "counts" => Self::Counts,
            other => Self::Unknown(other.to_owned()),
        }
    }
}

/// A disk that clients speak to.
#[derive(Debug)]
pub(super) struct Device {
    poll: Poll,
    listener: Listener,
    timer: OwnedFd,
    clients: Vec<Option<Client>>,
    exports: Arc<Vec<Export>>,
    model: Model,
    store: Store,
    /// What is under way, by the model's tag.
    asked: HashMap<u64, Asked>,
    next_tag: u64,
    started: Instant,
}

#[derive(Debug)]
struct Client {
    connection: Connection<Stream>,
    /// Where its export begins.
    base: u64,
    number: u64,
}

#[derive(Debug)]
struct Asked {
    client: usize,
    number: u64,
    cookie: Cookie,
    /// Where to read when the time has come.
    read: Option<(u64, u32)>,
    /// What is said if there is nothing to read.
    reply: Reply,
}

impl Device {
    pub(super) fn new(arguments: &DeviceArgs, profile: Profile) -> Result<Self> {
        let bytes = arguments.size + arguments.redo_size;
        let poll = Poll::new()?;
        let mut listener = Listener::bind(&Listen::Unix(arguments.socket.clone()))?;
        poll.registry().register(listener.source(), LISTENER, Interest::READABLE)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        poll.registry().register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        let rotational = profile.accesses_us.random_read > profile.accesses_us.sequential_read;
        let export = |name: &str, size: u64| Export { rotational, ..Export::new(name, size) };
        Ok(Self {
            poll,
            listener,
            timer,
            clients: Vec::new(),
            exports: Arc::new(vec![
                export("disk", arguments.size),
                export("redo", arguments.redo_size),
            ]),
            model: Model::new(profile, bytes, arguments.seed),
            store: Store::new(arguments.state.as_deref(), bytes)?,
            asked: HashMap::new(),
            next_tag: 0,
            started: Instant::now(),
        })
    }

    pub(super) fn waker(&self) -> io::Result<Waker> {
        Waker::new(self.poll.registry(), WAKER)
    }

    /// Serves until it is told to end.
    pub(super) fn serve(&mut self, words: &Receiver<Word>) -> Result<()> {
        let mut events = Events::with_capacity(256);
        loop {
            match self.poll.poll(&mut events, None) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(error.into());
                }
                _ => {}
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    TIMER => self.clear_timer(),
                    WAKER => {}
                    Token(place) => self.serve_client(place),
                }
            }
            while let Ok(word) = words.try_recv() {
                if !self.obey(&word)? {
                    return Ok(());
                }
            }
            self.answer()?;
            self.set_timer()?;
        }
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    /// Whether to go on.
    fn obey(&mut self, word: &Word) -> Result<bool> {
        let now = self.now();
        match word {
            Word::Instant => self.model.set_instant(now, true),
            Word::Timed => self.model.set_instant(now, false),
            Word::Counts => {
                println!("{}", serde_json::to_string(&self.model.counts())?);
                return Ok(true);
            }
            Word::Unknown(line) => {
                println!("no such command: {line:?}; use instant, timed or counts");
                return Ok(true);
            }
            Word::End => return Ok(false),
        }
        println!("ok");
        Ok(true)
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            let (stream, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let limits = Limits::default();
            let exports = self.exports.clone();
            let mut connection = Connection::new(stream, exports, Tls::Off, limits);
            let place = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
            let interest = Interest::READABLE | Interest::WRITABLE;
            let source = connection.stream().source();
            self.poll.registry().register(source, Token(place), interest)?;
            self.next_tag += 1;
            let client = Client { connection, base: 0, number: self.next_tag };
            if place == self.clients.len() {
                self.clients.push(None);
            }
            self.clients[place] = Some(client);
            self.serve_client(place);
        }
    }

    fn serve_client(&mut self, place: usize) {
        match self.move_on(place) {
            Ok(true) => {}
            Ok(false) => self.close(place),
            Err(error) => {
                eprintln!("warning: a connection ended: {error}");
                self.close(place);
            }
        }
    }

    fn close(&mut self, place: usize) {
        // Closing the socket removes it from the poll.
        self.clients[place] = None;
    }

    /// Reads and sends as far as the socket lets it; false once the connection is to be closed.
    fn move_on(&mut self, place: usize) -> Result<bool> {
        loop {
            self.take_requests(place)?;
            let Some(client) = self.clients.get_mut(place).and_then(Option::as_mut) else {
                return Ok(true);
            };
            client.connection.send()?;
            if client.connection.is_finished() {
                return Ok(false);
            }
            if !client.connection.wants_read() {
                return Ok(true);
            }
            match client.connection.receive()? {
                Received::Some | Received::Last => {}
                Received::None => return Ok(true),
                Received::Closed => return Ok(false),
            }
        }
    }

    fn take_requests(&mut self, place: usize) -> Result<()> {
        loop {
            let Some(client) = self.clients.get_mut(place).and_then(Option::as_mut) else {
                return Ok(());
            };
            match client.connection.next_event()? {
                None => return Ok(()),
                Some(Event::Opened(export)) => {
                    let before = self.exports.iter().take_while(|it| it.name != export.name);
                    client.base = before.map(|it| it.size).sum();
                }
                Some(Event::Request(cookie, request)) => {
                    let (base, number) = (client.base, client.number);
                    self.ask(place, number, cookie, base, request);
                }
                Some(Event::StartTls | Event::Ended(_)) => {}
            }
        }
    }

    /// Carries a request out and lets the model say when its answer leaves.
    fn ask(&mut self, client: usize, number: u64, cookie: Cookie, base: u64, request: Request) {
        let (mut read, mut status) = (None, None);
        let (access, offset, len, stored) = match request {
            Request::Read { offset, len } => {
                read = Some((base + offset, len));
                (Access::Read, offset, u64::from(len), Ok(()))
            }
            Request::Write { offset, data, fua } => {
                let stored = self.store.write(base + offset, &data);
                (Access::Write { through: fua }, offset, data.len() as u64, stored)
            }
            Request::Zero { offset, len, .. } => {
                (Access::Note, offset, 0, self.store.zero(base + offset, len))
            }
            Request::Flush => (Access::Flush, 0, 0, Ok(())),
            Request::Status { offset, len } => {
                status = Some(vec![Status { len, is_hole: false, is_dirty: false }]);
                (Access::Note, offset, 0, Ok(()))
            }
            Request::Cache { offset, .. } => (Access::Note, offset, 0, Ok(())),
        };
        let reply = match stored {
            Ok(()) => status.map_or(Reply::Done, Reply::Status),
            Err(error) => {
                eprintln!("warning: failed to keep {len} bytes at {offset}: {error}");
                Reply::Error(RequestError::Io)
            }
        };
        self.next_tag += 1;
        let tag = self.next_tag;
        self.asked.insert(tag, Asked { client, number, cookie, read, reply });
        self.model.submit(self.now(), tag, access, base + offset, len);
    }

    /// Sends what is due.
    fn answer(&mut self) -> Result<()> {
        loop {
            let tags = self.model.done(self.now());
            if tags.is_empty() {
                return Ok(());
            }
            let mut touched = Vec::new();
            for tag in tags {
                let Some(asked) = self.asked.remove(&tag) else { continue };
                let reply = match asked.read {
                    Some((offset, len)) => Reply::Data(self.store.read(offset, len)?),
                    None => asked.reply,
                };
                let client = self.clients.get_mut(asked.client).and_then(Option::as_mut);
                if let Some(client) = client.filter(|client| client.number == asked.number) {
                    client.connection.reply(asked.cookie, reply);
                    touched.push(asked.client);
                }
            }
            touched.dedup();
            touched.into_iter().for_each(|place| self.serve_client(place));
        }
    }

    fn set_timer(&mut self) -> Result<()> {
        let wait = match self.model.next_moment() {
            // Zero would switch the timer off.
            Some(at) => at.saturating_sub(self.now()).max(Duration::from_nanos(1)),
            None => Duration::ZERO,
        };
        let value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.timer.as_fd(), TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    fn clear_timer(&self) {
        let mut count = [0; 8];
        match rustix::io::read(&self.timer, &mut count) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => eprintln!("warning: failed to read the timer: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use destage_block::nbd::client::{Client as NbdClient, ClientOptions};

    use super::*;

    #[test]
    fn clients_get_their_bytes_back_in_the_models_time() {
        let folder = tempfile::tempdir().expect("temp folder");
        let socket = folder.path().join("socket");
        let profile = Profile::RAID.with_write_cache(0);
        let arguments = DeviceArgs {
            socket: socket.clone(),
            profile: profile.clone(),
            size: 1 << 30,
            redo_size: 1 << 20,
            write_cache: None,
            seed: 1,
            state: None,
        };
        let mut device = Device::new(&arguments, profile).expect("bound");
        let (sender, words) = std::sync::mpsc::channel();
        let waker = device.waker().expect("a waker");
        let served = std::thread::spawn(move || device.serve(&words).map_err(|e| e.to_string()));
        let open = |name: &str| {
            let uri = format!("nbd+unix:///{name}?socket={}", socket.display());
            let uri = uri.parse().expect("an address");
            NbdClient::connect(&uri, &ClientOptions::default()).expect("connected")
        };
        let (disk, redo) = (open("disk"), open("redo"));
        assert_eq!((disk.size(), redo.size()), (1 << 30, 1 << 20));
        let start = Instant::now();
        disk.write(512 << 20, &[1; 4096], false).expect("written");
        assert!(start.elapsed() >= Duration::from_micros(891), "{:?}", start.elapsed());
        redo.write(0, &[2; 4096], true).expect("written");
        disk.flush().expect("flushed");
        let mut bytes = [0; 4096];
        disk.read(512 << 20, &mut bytes).expect("read");
        assert_eq!(bytes, [1; 4096]);
        disk.zero(512 << 20, 4096, true, false).expect("trimmed");
        disk.read(512 << 20, &mut bytes).expect("read");
        assert_eq!(bytes, [0; 4096]);
        redo.read(0, &mut bytes).expect("read");
        assert_eq!(bytes, [2; 4096]);
        drop((disk, redo));
        sender.send(Word::End).expect("listening");
        waker.wake().expect("woken");
        served.join().expect("no panic").expect("no error");
    }
}
