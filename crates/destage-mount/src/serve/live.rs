//! The engine among threads: whoever asks takes the lock, decides, and does outside of it what may block.

use super::beside::Remembered;
use super::locks::Locks;
use super::shared::Shared;
use super::{Event, Outbox};
use crate::ask::{Answer, Answered, Ask, Caller, Errno, Ino, Locking, Serve};
use crate::engine::{
    AtWork, Fragment, Front, Hints, Kept, Need, Out, OwnFolders, Pending, Plan, Submitted,
    carry_out,
};
use crate::origin::pool::Pool;
use crate::origin::{Key, Origin};
use crate::tokens::Tokens;
use crossbeam_channel::{Receiver, Sender, unbounded};
use destage_core::{BatchId, Time};
use destage_engine::Drive;
use destage_runtime::clock::Clock;
use destage_runtime::commit::CommitWork;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;

/// The live front end.
pub(crate) struct Live {
    front: Mutex<Front>,
    origin: Arc<dyn Origin>,
    own: OwnFolders,
    pool: Pool,
    clock: Clock,
    commits: Sender<CommitWork>,
    retries: Sender<(Pending, Need)>,
    batches: Sender<(BatchId, Plan)>,
    outbox: Outbox,
    /// What the kernel remembers, once it is mounted.
    remembered: OnceLock<Remembered>,
    /// Where the admin port is, once there is one.
    admin: OnceLock<String>,
    /// When the server's thread wakes up by itself, nanoseconds.
    wakes_at: AtomicU64,
    /// The server's thread knows that the origin is gone.
    has_told_of_origin: AtomicBool,
    shared: OnceLock<Shared>,
    at_work: AtWork,
}

impl Live {
    /// Starts the threads that write the journal and the origin.
    ///
    /// # Errors
    /// The system has no threads.
    pub(super) fn start(
        front: Front,
        origin: Arc<dyn Origin>,
        own: OwnFolders,
        pool: Pool,
        clock: Clock,
        outbox: Outbox,
    ) -> io::Result<Arc<Self>> {
        let (commits, commit_work) = unbounded();
        let (retries, retry_work) = unbounded();
        let (batches, batch_work) = unbounded();
        let wakes_at = AtomicU64::new(0);
        let front = Mutex::new(front);
        let live = Arc::new(Self {
            front,
            origin,
            own,
            pool,
            clock,
            commits,
            retries,
            batches,
            outbox,
            remembered: OnceLock::new(),
            admin: OnceLock::new(),
            wakes_at,
            has_told_of_origin: AtomicBool::new(false),
            shared: OnceLock::new(),
            at_work: AtWork::default(),
        });
        spawn("journal", live.clone(), commit_work, |live, work: CommitWork| {
            let done = work.run();
            live.with(|front, now| front.commit_ended(now, done));
        })?;
        spawn("retries", live.clone(), retry_work, |live, (pending, need)| {
            live.find_out(pending, need);
        })?;
        spawn("destage", live.clone(), batch_work, Self::carry_out)?;
        let tidied = live.clone();
        thread::Builder::new().name("tidy".into()).spawn(move || tidied.pool.tidy())?;
        for (name, files) in [("files", true), ("folders", false)] {
            let live = live.clone();
            thread::Builder::new().name(name.into()).spawn(move || live.pool.keep(files))?;
        }
        Ok(live)
    }

    fn carry_out(&self, (batch, plan): (BatchId, Plan)) {
        let controls = self.lock().controls();
        let carried =
            carry_out(&*self.origin, &self.own, &plan, controls, LANES, &self.at_work, &|| {
                self.clock.now()
            });
        self.with(|front, now| front.batch_ended(now, batch, plan, carried));
        // Whoever waits for room may have waited for what this batch held.
        self.with(|_, _| ());
    }

    fn lock(&self) -> MutexGuard<'_, Front> {
        // A panic ends the process: see the program's `main`.
        self.front.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the engine, and what follows from it.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Front, Time) -> T) -> T {
        let (result, mut out, at, is_lost) = {
            let mut front = self.lock();
            let now = self.clock.now();
            let result = work(&mut front, now);
            let out = front.take_out();
            (result, out, front.next_timeout(), front.has_lost_origin())
        };
        self.wake_for(at);
        if is_lost && !self.has_told_of_origin.swap(true, Ordering::Relaxed) {
            self.outbox.send(Event::OriginGone);
        }
        let again = std::mem::take(&mut out.again);
        // Nobody who can be answered waits for an origin that hangs, and neither does the journal's thread.
        self.dispatch(out);
        for pending in again {
            if let Some(asking) = self.submit(pending) {
                let _ = self.retries.send(asking);
            }
        }
        result
    }

    fn wake_for(&self, at: Option<Time>) {
        if at.is_some_and(|at| at.0 < self.wakes_at.load(Ordering::Relaxed)) {
            self.wakes_at.store(0, Ordering::Relaxed);
            self.outbox.send(Event::Look);
        }
    }

    /// The server's thread looks at the time: when to look again.
    pub(super) fn tick(&self) -> Option<Time> {
        let at = self.with(|front, now| {
            front.tick(now);
            front.next_timeout()
        });
        self.wakes_at.store(at.map_or(u64::MAX, |at| at.0), Ordering::Relaxed);
        at
    }

    fn dispatch(&self, out: Out) {
        if let Some(remembered) = self.remembered.get() {
            out.outdated.into_iter().for_each(|ino| remembered.forget_attributes(ino));
        }
        for (answer, answered) in out.answers {
            answer.give(answered);
        }
        // The threads live as long as this does.
        for retry in out.retries {
            let _ = self.retries.send(retry);
        }
        for work in out.commits {
            let _ = self.commits.send(work);
        }
        for batch in out.batches {
            let _ = self.batches.send(batch);
        }
        let unused = out.unused.into_iter().map(|staged| staged.number);
        self.pool.discard_later(out.free.into_iter().chain(unused));
        self.pool.give_back(out.unchanged);
    }

    /// Asks the origin what a request has to know, until it knows it.
    fn find_out(&self, mut pending: Pending, mut need: Need) {
        loop {
            if let Err(errno) = pending.hints.ask(&need, &*self.origin, &self.pool) {
                if let (Some(shared), Some(ticket)) = (self.shared(), &pending.ticket)
                    && !shared.tokens.may_serve()
                {
                    // The origin is not to be changed without a lease: it waits for the next one.
                    let needs = ticket.needs.clone();
                    return shared.admit(pending, needs);
                }
                return self.with(|front, _| front.cannot_know(pending, errno));
            }
            let Some(asking) = self.submit(pending) else { return };
            (pending, need) = asking;
        }
    }

    /// It is mounted.
    pub(super) fn set_remembered(&self, remembered: Remembered) {
        // It is mounted once.
        let _ = self.remembered.set(remembered);
    }

    /// The admin port is there.
    pub(super) fn set_admin(&self, address: String) {
        // It does not change.
        let _ = self.admin.set(address);
    }

    /// Whether somebody asks where the admin port is.
    fn admin_asked(&self, ask: &Ask) -> Option<&String> {
        match ask {
            Ask::GetXattr { ino, name } if **name == *crate::ADMIN_XATTR.as_bytes() => {
                self.admin.get().filter(|_| *ino == self.origin.root().ino)
            }
            _ => None,
        }
    }

    fn admit(&self, pending: Pending, needs: BTreeSet<destage_tokens::Need>) {
        match self.shared.get() {
            Some(shared) => shared.admit(pending, needs),
            None => unreachable!("only an engine with tokens asks for them"),
        }
    }

    /// What a mount has besides, where several hosts share the origin.
    pub(super) fn shared(&self) -> Option<&Shared> {
        self.shared.get()
    }

    /// From now on requests wait for tokens.
    ///
    /// # Errors
    /// The system has no threads.
    pub(super) fn share(
        self: &Arc<Self>,
        tokens: Arc<Tokens>,
        no_revocation: bool,
    ) -> io::Result<()> {
        let me: Weak<Self> = Arc::downgrade(self);
        self.with(|front, _| front.set_covers(tokens.clone()));
        tokens.set_holder(me.clone());
        let locks = Locks::start(me.clone(), self.origin.clone())?;
        let shared = Shared::new(tokens, me, locks, no_revocation);
        // Once, before the first request.
        assert!(self.shared.set(shared).is_ok(), "a mount is shared once");
        Ok(())
    }

    pub(super) fn tell(&self, event: Event) {
        self.outbox.send(event);
    }

    pub(super) fn begin(&self, pending: Pending) {
        if let Some((pending, need)) = self.submit(pending) {
            self.find_out(pending, need);
        }
    }

    /// Gives it to the engine; what the origin has to be asked first, if anything.
    fn submit(&self, pending: Pending) -> Option<(Pending, Need)> {
        match self.with(|front, now| front.submit(now, pending)) {
            Submitted::Taken => {}
            Submitted::NeedsTokens(pending, needs) => self.admit(pending, needs),
            Submitted::Needs(pending, need) => return Some((pending, need)),
            Submitted::Read(answer, key, fragments, limit) => {
                self.read(answer, &key, &fragments, limit);
            }
        }
        None
    }

    fn read(&self, answer: Box<dyn Answer>, key: &Key, fragments: &[Fragment], limit: u64) {
        answer.give(gather(&*self.origin, key, fragments, limit).map(Answered::Data));
    }

    /// Has the origin keep files open that others may delete from now on.
    pub(super) fn keep_open(&self, files: Vec<Key>) -> Kept {
        Kept::pin(files, |file| self.origin.pin(file).is_ok())
    }

    /// Asks the origin how much room it has.
    pub(super) fn look_at_space(&self) {
        let landed = self.lock().landed();
        match self.origin.space() {
            Ok(space) => self.with(|front, _| front.set_space(&space, landed)),
            Err(error) if error.is_end_of_mount() => {
                self.with(|front, now| front.lose_origin(now, error));
            }
            Err(error) => tracing::debug!(%error, "the origin does not say how much room it has"),
        }
    }

    /// Nobody creates anything any more.
    pub(super) fn close(&self) {
        self.pool.empty();
        self.lock().core_mut().end_recording();
    }
}

/// Files that are brought to the origin at a time. A CephFS makes those durable together that come together: 32 take a fifth less time than 8.
const LANES: usize = 32;

/// The bytes of a part of a file: what is here on top of what the origin has.
pub(crate) fn gather(
    origin: &dyn Origin,
    key: &Key,
    fragments: &[Fragment],
    limit: u64,
) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    for fragment in fragments {
        let end = bytes.len() + fragment.len as usize;
        match &fragment.content {
            Some(content) => content.append_to(&mut bytes, fragment.len),
            None => {
                let there = limit.saturating_sub(fragment.offset).min(fragment.len);
                if there > 0 {
                    bytes.extend(origin.read(key, fragment.offset, there as usize)?);
                }
                // Behind what it holds there are zeros.
                bytes.resize(end, 0);
            }
        }
    }
    Ok(bytes)
}

impl Serve for Live {
    fn ask(&self, caller: Caller, ask: Ask, answer: Box<dyn Answer>) {
        if let Some(address) = self.admin_asked(&ask) {
            return answer.give(Ok(Answered::Data(address.clone().into_bytes())));
        }
        let answer = match (self.shared(), &ask) {
            (Some(shared), Ask::GetAttr { ino }) => shared.attributes_asked(*ino, answer),
            _ => answer,
        };
        self.begin(Pending { caller, ask, hints: Hints::default(), answer, ticket: None });
    }

    fn lock(&self, ino: Ino, owner: u64, locking: Locking, answer: Box<dyn Answer>) {
        match self.shared() {
            Some(shared) => shared.locks.ask((ino, owner), locking, answer),
            None => answer.give(Err(Errno::NOLCK)),
        }
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    live: Arc<Live>,
    work: Receiver<T>,
    run: impl Fn(&Live, T) + Send + 'static,
) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(move || {
        for item in work {
            run(&live, item);
        }
    })?;
    Ok(())
}
