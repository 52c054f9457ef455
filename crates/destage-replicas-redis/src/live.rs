//! The log, live: the owner behind a lock, and a thread for each server, which connects and asks. Whoever serves may send
//! and read itself: an append then wakes no thread, and neither does its answer.

use crate::codec::Wire;
use crate::connect::{Link, Trouble};
use crate::line::Lines;
use crate::place::{PlaceError, Places};
use crate::said::{Said, said};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use destage_core::{Span, Time};
use destage_replicas::{
    Address, Config, Connection, Controls, Epoch, Owner, Payload, Position, Request, Settings,
    Standing,
};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest wait for a server's answer; then its connection is given up.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a server is left alone after it could not be reached, at first and at last.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// Requests that are sent together.
const TOGETHER_MAX: usize = 64;
/// Most appends under way at one server, and most bytes of one.
const WINDOW: usize = 4;
const BYTES_MAX: usize = 1 << 20;

/// What the log is for and how it is owned.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Names it on the servers.
    pub name: String,
    /// What it is for, in words that are the same on all hosts.
    pub subject: String,
    /// Where clients reach this process.
    pub place: String,
    /// k, for a new log.
    pub copies: usize,
    /// How long an owner must not have shown itself before another one takes over.
    pub failover: Duration,
    /// With fewer than k servers writes go through to the origin: the log is opened all the same, if enough of them are there
    /// for whoever takes over to find what they hold.
    pub opens_short: bool,
    /// Begin a log unasked where no server holds anything, instead of waiting for [`Replicas::found`].
    pub founds: bool,
    /// Take over from an owner that shows itself.
    pub at_once: bool,
    /// Unlike that of any other process.
    pub identity: u64,
}

/// How a server stands.
#[derive(Clone, Debug)]
pub struct ServerReport {
    /// As the owner sees it.
    pub standing: Standing,
    /// Why it cannot be reached or used, if so.
    pub trouble: Option<Trouble>,
}

/// The log: see the module. Its threads end once it is dropped.
pub struct Replicas {
    shared: Arc<Shared>,
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas").field("said", &self.said()).finish_non_exhaustive()
    }
}

type Listener = Arc<dyn Fn(&Said) + Send + Sync>;

struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
    places: Mutex<Places>,
    wire: Wire,
    is_over: AtomicBool,
    /// Until when something may be answered, by [`now`]; 0 for not at all.
    answers_from: AtomicU64,
    answers_until: AtomicU64,
}

struct Inner {
    owner: Owner,
    queues: HashMap<Address, Sender<Request>>,
    /// Connections that no thread waits for.
    lines: Lines,
    troubles: HashMap<Address, Trouble>,
    said: Said,
    /// Since when entries, and answers, lack servers.
    lacking: [Option<Time>; 2],
    /// How long they must, for it to be told: a change of the configuration takes some round trips.
    lacking_min: Span,
    listener: Option<Listener>,
}

/// Nanoseconds that also pass while the machine is suspended.
pub(crate) fn now() -> Time {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Time(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

impl Replicas {
    /// Begins to look at the servers, and takes the log over once nobody owns it.
    pub fn start(places: Places, settings: &LogSettings) -> Self {
        let failover = u64::try_from(settings.failover.as_nanos()).unwrap_or(u64::MAX);
        let owner = Settings {
            identity: settings.identity.clamp(1, u64::MAX - 1),
            place: settings.place.as_str().into(),
            subject: settings.subject.as_str().into(),
            servers: places.addresses().to_vec(),
            copies: settings.copies,
            lease: Span(failover / 10 * LEASE_TENTHS),
            quiet: Span(failover),
            renew_every: Span(failover / 12),
            window: WINDOW,
            bytes_max: BYTES_MAX,
            opens_short: settings.opens_short,
            founds: settings.founds,
            at_once: settings.at_once,
            controls: Controls::default(),
        };
        let every = Duration::from_nanos(failover / 24).clamp(TICK_MIN, TICK_MAX);
        let owner = Owner::new(owner, now());
        let mut lacking = [None; 2];
        let lacking_min = Span(failover / 6);
        let said = said(&owner, now(), &mut lacking, lacking_min);
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner {
                owner,
                queues: HashMap::new(),
                lines: Lines::default(),
                troubles: HashMap::new(),
                said,
                lacking,
                lacking_min,
                listener: None,
            }),
            changed: Condvar::new(),
            places: Mutex::new(places),
            wire: Wire::new(&settings.name),
            is_over: AtomicBool::new(false),
            answers_from: AtomicU64::new(0),
            answers_until: AtomicU64::new(0),
        });
        let ticking = shared.clone();
        spawn("replicas", move || {
            while !ticking.is_over.load(Ordering::Acquire) {
                ticking.tell(Owner::tick);
                // Whoever serves may be busy for longer than a lease.
                ticking.read_all();
                thread::sleep(every);
            }
        });
        Self { shared }
    }

    /// Tells each change of how the log stands to this one from now on, on some thread.
    pub fn listen(&self, listener: impl Fn(&Said) + Send + Sync + 'static) {
        let said = {
            let mut inner = self.shared.lock();
            inner.listener = Some(Arc::new(listener));
            (inner.listener.clone(), inner.said.clone())
        };
        if let (Some(listener), said) = said {
            listener(&said);
        }
    }

    /// From now on whoever calls this sends and reads itself, so that no thread is woken for an append. Connections by TLS and
    /// what is not connected stay with their threads. `watch` is told each descriptor that may become readable or writable,
    /// with a number; when it does, [`Replicas::read`] is to be called.
    pub fn attend(&self, watch: impl Fn(BorrowedFd<'_>, usize) -> io::Result<()> + Send + 'static) {
        self.shared.lock().lines.attend(Box::new(watch));
    }

    /// Takes note of what has arrived on the connection of this number. Whether the log stands otherwise since; who listens is
    /// not told of it.
    pub fn read(&self, number: usize) -> bool {
        self.shared.read(number)
    }

    /// The same for all connections.
    pub fn read_all(&self) {
        self.shared.read_all();
    }

    /// How the log stands.
    pub fn said(&self) -> Said {
        self.shared.lock().said.clone()
    }

    /// Waits until `is_it` or for so long; how the log stands then.
    pub fn wait(&self, patience: Duration, is_it: impl Fn(&Said) -> bool) -> Said {
        let until = Instant::now() + patience;
        let mut inner = self.shared.lock();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if is_it(&inner.said) || left.is_zero() {
                return inner.said.clone();
            }
            let waited = self.shared.changed.wait_timeout(inner, left);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Begins a log, if no server holds anything: whoever calls this has looked at the origin, which knows of none.
    pub fn found(&self) {
        self.shared.tell(Owner::found);
    }

    /// Appends an entry; nothing unless the log is open.
    pub fn append(&self, payload: Payload) -> Option<Position> {
        self.shared.tell(|owner, now| owner.is_open().then(|| owner.append(now, payload)))
    }

    /// Lets go of what the origin has decided: the entries before this one.
    pub fn reclaim(&self, base: Position) {
        self.shared.lock().owner.reclaim(base);
    }

    /// Whether anything may be answered now.
    #[inline]
    pub fn may_answer(&self) -> bool {
        let now = now().0;
        now >= self.shared.answers_from.load(Ordering::Acquire)
            && now < self.shared.answers_until.load(Ordering::Acquire)
    }

    /// Whether no other process owns the log now. Unlike [`Replicas::may_answer`], this holds at once for whoever has taken it over
    /// from an owner that showed itself, and may still answer reads.
    pub fn is_leased(&self) -> bool {
        now().0 < self.shared.answers_until.load(Ordering::Acquire)
    }

    /// The entries that are not decided.
    pub fn entries(&self) -> Vec<(Position, Payload)> {
        let inner = self.shared.lock();
        inner.owner.entries().map(|(at, entry)| (at, entry.payload.clone())).collect()
    }

    /// Bytes of these.
    pub fn bytes(&self) -> u64 {
        self.shared.lock().owner.bytes()
    }

    /// How each server stands.
    pub fn servers(&self) -> Vec<ServerReport> {
        let inner = self.shared.lock();
        let report = |standing: Standing| {
            let trouble = inner.troubles.get(&standing.address).cloned();
            ServerReport { standing, trouble }
        };
        inner.owner.standings().map(report).collect()
    }

    /// The configuration in force, as far as it is known.
    pub fn config(&self) -> Option<Arc<Config>> {
        self.shared.lock().owner.config().cloned()
    }

    /// Who owns the log as far as the servers know, where clients reach that one, and whether it shows itself.
    pub fn owner_seen(&self) -> Option<(Epoch, Address, bool)> {
        let inner = self.shared.lock();
        let is_alive = inner.owner.is_owner_alive(now());
        inner.owner.owner_seen().map(|(epoch, place)| (epoch, place, is_alive))
    }

    /// The newest entry that any server has shown, and the newest that this process has.
    pub fn followed(&self) -> (Position, Position) {
        let inner = self.shared.lock();
        (inner.owner.last_seen(), inner.owner.last())
    }

    /// Uses another server besides, named as at the start.
    ///
    /// # Errors
    /// Why not.
    pub fn add_server(&self, url: &str) -> Result<(), String> {
        let address = {
            let mut places = self.shared.places.lock().unwrap_or_else(PoisonError::into_inner);
            places.add(url).map_err(|error: PlaceError| error.to_string())?
        };
        self.change(|servers| {
            if servers.contains(&address) {
                return Err(format!("{address} holds the log already"));
            }
            servers.push(address.clone());
            Ok(())
        })
    }

    /// Uses a server no more.
    ///
    /// # Errors
    /// Why not.
    pub fn remove_server(&self, address: &str) -> Result<(), String> {
        self.change(|servers| {
            let count = servers.len();
            servers.retain(|server| **server != *address);
            if servers.len() == count {
                Err(format!("{address} does not hold the log"))
            } else {
                Ok(())
            }
        })
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Vec<Address>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.shared.tell(|owner, now| {
            let config =
                owner.config().cloned().ok_or("the log is being opened: try again in a moment")?;
            let members = || config.now.members.iter().map(|m| m.address.clone()).collect();
            let mut servers = owner.wanted_servers().map_or_else(members, <[Address]>::to_vec);
            change(&mut servers)?;
            owner.use_servers(now, servers).map_err(str::to_owned)
        })
    }

    /// Ends in order, so that the next owner need not wait. Waits a little for the servers to hear of it.
    pub fn give_up(&self) {
        self.shared.tell(Owner::give_up);
        let until = Instant::now() + GIVE_UP;
        let is_heard = || {
            self.shared.read_all();
            let inner = self.shared.lock();
            inner.queues.values().all(Sender::is_empty) && inner.lines.are_answered()
        };
        while Instant::now() < until && !is_heard() {
            thread::sleep(TICK_MIN);
        }
        thread::sleep(TICK_MIN);
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        // Without their senders, the servers' threads end.
        let mut inner = self.shared.lock();
        inner.queues.clear();
        inner.lines.clear();
    }
}

/// Of the time after which another owner takes over, so much is the lease; the rest is what clocks' rates may differ by.
const LEASE_TENTHS: u64 = 6;
const TICK_MIN: Duration = Duration::from_millis(5);
const TICK_MAX: Duration = Duration::from_millis(100);
const GIVE_UP: Duration = Duration::from_millis(300);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the owner something, and carries on what follows.
    fn tell<R>(self: &Arc<Self>, what: impl FnOnce(&mut Owner, Time) -> R) -> R {
        let mut inner = self.lock();
        let result = what(&mut inner.owner, now());
        self.carry_on(inner);
        result
    }

    /// Tells the owner what has arrived on all connections that no thread waits for.
    fn read_all(self: &Arc<Self>) {
        let mut inner = self.lock();
        if inner.lines.is_empty() {
            return;
        }
        let Inner { owner, lines, .. } = &mut *inner;
        lines.read_all(PATIENCE, |address, reply| owner.replied(now(), address, reply));
        self.carry_on(inner);
    }

    /// The same for one of them, without telling who listens; whether there is something to be told.
    fn read(self: &Arc<Self>, number: usize) -> bool {
        let mut inner = self.lock();
        let Inner { owner, lines, .. } = &mut *inner;
        lines.read(number, |address, reply| owner.replied(now(), address, reply));
        self.follow(&mut inner)
    }

    /// Does what follows, and tells who listens.
    fn carry_on(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>) {
        if !self.follow(&mut inner) {
            return;
        }
        let (listener, said) = (inner.listener.clone(), inner.said.clone());
        drop(inner);
        if let Some(listener) = listener {
            listener(&said);
        }
    }

    /// Sends what the owner asks; whether the log stands otherwise since, in a way that is news to whoever appends.
    fn follow(self: &Arc<Self>, inner: &mut Inner) -> bool {
        self.meet(inner);
        while let Some((to, request)) = inner.owner.poll_request() {
            let Err(request) = inner.lines.send(&to, request) else { continue };
            if let Some(queue) = inner.queues.get(&to) {
                // A thread that has ended says that its server is gone.
                let _ = queue.send(request);
            }
        }
        self.answers_from.store(inner.owner.answers_from().0, Ordering::Release);
        let until = inner.owner.answers_until().unwrap_or_default();
        self.answers_until.store(until.0, Ordering::Release);
        let Inner { owner, lacking, lacking_min, .. } = inner;
        let said = said(owner, now(), lacking, *lacking_min);
        if said == inner.said {
            return false;
        }
        // Whoever appends knows of the entry.
        let is_news = Said { last: said.last, ..inner.said.clone() } != said;
        inner.said = said;
        self.changed.notify_all();
        is_news
    }

    /// A thread for each server that has none.
    fn meet(self: &Arc<Self>, inner: &mut Inner) {
        if inner.queues.len() == inner.owner.addresses_len() || self.is_over.load(Ordering::Acquire)
        {
            return;
        }
        for address in inner.owner.addresses() {
            if inner.queues.contains_key(&address) {
                continue;
            }
            let number = inner.queues.len();
            let (sender, requests) = unbounded();
            inner.queues.insert(address.clone(), sender);
            let shared = self.clone();
            spawn("replica", move || shared.serve(&address, number, &requests));
        }
    }

    /// A server's thread: connected as long as it can be.
    fn serve(self: &Arc<Self>, address: &Address, number: usize, requests: &Receiver<Request>) {
        let mut again = AGAIN_MIN;
        while !self.is_over.load(Ordering::Acquire) {
            let places = self.places.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let trouble = match Link::open(&places, address, self.wire.clone(), PATIENCE) {
                Ok(link) => match self.connected(address, link.who()) {
                    Ok(()) => {
                        again = AGAIN_MIN;
                        let ended = self.run(address, number, requests, link);
                        self.tell(|owner, now| owner.disconnected(now, address));
                        while requests.try_recv().is_ok() {}
                        ended
                    }
                    Err(trouble) => Some(trouble),
                },
                Err(trouble) => Some(trouble),
            };
            let Some(trouble) = trouble else { return };
            self.note(address, trouble);
            thread::sleep(again);
            again = (again * 2).min(AGAIN_MAX);
        }
    }

    fn connected(self: &Arc<Self>, address: &Address, who: Connection) -> Result<(), Trouble> {
        self.tell(|owner, now| {
            if let Some(twin) = owner.twin_of(address, who.run) {
                let what = format!("it is the same server as {twin}: name each server once");
                return Err(Trouble::Unfit(what));
            }
            owner.connected(now, address, who);
            Ok(())
        })?;
        if self.lock().troubles.remove(address).is_some() {
            tracing::info!(server = &**address, "a server of the log can be used again");
        }
        Ok(())
    }

    /// Carries out requests until the connection ends, or nobody is there any more; or waits for its end, if somebody else
    /// attends to it.
    fn run(
        self: &Arc<Self>,
        address: &Address,
        number: usize,
        requests: &Receiver<Request>,
        mut link: Link,
    ) -> Option<Trouble> {
        loop {
            {
                // Requests are sent under this lock, so none can come in between.
                let mut inner = self.lock();
                if requests.is_empty() {
                    match inner.lines.take(address, number, link) {
                        Ok(ended) => {
                            drop(inner);
                            return ended.recv().ok();
                        }
                        Err(same) => link = *same,
                    }
                }
            }
            let mut together = match requests.recv_timeout(PATIENCE) {
                Ok(request) => vec![request],
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return None,
            };
            together.extend(requests.try_iter().take(TOGETHER_MAX - 1));
            let replies = match link.ask(&together) {
                Ok(replies) => replies,
                Err(trouble) => return Some(trouble),
            };
            for reply in replies {
                self.tell(|owner, now| owner.replied(now, address, reply));
            }
        }
    }

    fn note(&self, address: &Address, trouble: Trouble) {
        let before = self.lock().troubles.insert(address.clone(), trouble.clone());
        if before.as_ref() == Some(&trouble) {
            return;
        }
        let server = &**address;
        match trouble {
            Trouble::Unreachable(why) => {
                tracing::warn!(server, why, "a server of the log cannot be reached")
            }
            Trouble::Unfit(why) => {
                tracing::error!(server, why, "a server is not fit to hold the log")
            }
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) {
    let spawned = thread::Builder::new().name(name.into()).spawn(run);
    spawned.expect("the system has threads to give");
}
