//! An origin that several hosts share: requests wait for their tokens, and what others want is given up.

use super::Event;
use super::beside::{self, Remembered};
use super::live::Live;
use super::locks::Locks;
use super::paging::{self, Paging, Slot};
use super::sizes::Sizes;
use crate::ask::{Answer, Answered, Ask, Errno, Ino};
use crate::engine::{Covers, Pending, Ticket};
use crate::tokens::{Holder, Tokens};
use crossbeam_channel::Receiver;
use destage_core::Lsn;
use destage_engine::Drive;
use destage_tokens::{AskId, FileId, Need, Root};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

/// What a mount has besides, where several hosts share the origin.
pub(super) struct Shared {
    pub(super) tokens: Arc<Tokens>,
    pub(super) locks: Locks,
    pub(super) sizes: Sizes,
    me: Weak<Live>,
    kernel: OnceLock<Remembered>,
    paging: Paging,
    /// Answers that wait for the lease.
    held: Mutex<Vec<Held>>,
    has_held: AtomicBool,
    lease: Lease,
    /// It serves nothing any more, since others have shut it out, or since it cannot keep what it promises.
    is_over: AtomicBool,
    /// See [`crate::tokens::TokenSettings`].
    no_revocation: bool,
}

struct Held {
    answer: Box<dyn Answer>,
    answered: Result<Answered, Errno>,
    ask: Arc<AtomicU64>,
}

/// Answers, and says that the request has ended.
struct Tracked {
    answer: Box<dyn Answer>,
    live: Weak<Live>,
    ask: Arc<AtomicU64>,
}

impl Answer for Tracked {
    fn give(self: Box<Self>, answered: Result<Answered, Errno>) {
        let Self { answer, live, ask } = *self;
        match live.upgrade().as_deref().and_then(Live::shared) {
            Some(shared) => shared.answer(Held { answer, answered, ask }),
            None => answer.give(answered),
        }
    }
}

impl Shared {
    pub(super) fn new(
        tokens: Arc<Tokens>,
        me: Weak<Live>,
        locks: Locks,
        no_revocation: bool,
    ) -> Self {
        Self {
            tokens,
            locks,
            sizes: Sizes::default(),
            me,
            kernel: OnceLock::new(),
            paging: Paging::default(),
            held: Mutex::default(),
            has_held: AtomicBool::new(false),
            lease: Lease::default(),
            is_over: AtomicBool::new(false),
            no_revocation,
        }
    }

    /// The kernel can be told from now on.
    pub(super) fn set_kernel(&self, kernel: Remembered) {
        // Once.
        let _ = self.kernel.set(kernel);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Nothing is answered after the lease: what was true then may not be any more. It waits for the next one.
    fn answer(&self, held: Held) {
        if self.is_over() {
            return held.answer.give(Err(Errno::IO));
        }
        if !self.tokens.may_serve() {
            lock(&self.held).push(held);
            self.has_held.store(true, Ordering::Release);
            return;
        }
        held.answer.give(held.answered);
        self.tokens.ended(AskId(held.ask.load(Ordering::Relaxed)));
    }

    pub(super) fn attributes_asked(&self, ino: Ino, answer: Box<dyn Answer>) -> Box<dyn Answer> {
        self.sizes.ask(ino, answer, self.me.clone())
    }

    fn answer_held(&self) {
        if self.has_held.load(Ordering::Acquire) && self.tokens.may_serve() {
            self.has_held.store(false, Ordering::Release);
            let held = std::mem::take(&mut *lock(&self.held));
            held.into_iter().for_each(|held| self.answer(held));
        }
    }

    /// A request comes, or has found out that it needs more.
    pub(super) fn admit(&self, mut pending: Pending, needs: BTreeSet<Need>) {
        if self.is_over() {
            return pending.answer.give(Err(Errno::IO));
        }
        let ask = match &pending.ticket {
            Some(ticket) => {
                // What it knows it has learned under tokens that may be others' before it has all.
                pending.hints.outdate();
                let ask = ticket.ask.clone();
                self.tokens.ended(AskId(ask.load(Ordering::Relaxed)));
                ask
            }
            None => {
                let ask = Arc::new(AtomicU64::new(0));
                let (live, tracked) = (self.me.clone(), ask.clone());
                let answer = std::mem::replace(&mut pending.answer, Box::new(Nobody));
                pending.answer = Box::new(Tracked { answer, live, ask: tracked });
                ask
            }
        };
        let list = needs.iter().cloned().collect();
        pending.ticket = Some(Ticket { needs, ask: ask.clone() });
        let paged = match pending.ask {
            Ask::Read { ino, mapped: true, .. } | Ask::Write { ino, mapped: true, .. } => Some(ino),
            // The kernel writes no page of the file back meanwhile.
            Ask::SetAttr { ino, set } if set.size.is_some() => Some(ino),
            // What it is told is lost if it is told to forget the file meanwhile.
            Ask::GetAttr { ino } => Some(ino),
            _ => None,
        };
        let slot: Slot = Arc::new(Mutex::new(Some(pending)));
        if let Some(ino) = paged {
            self.paging.add(ino, slot.clone());
        }
        let me = self.me.clone();
        let begin = move |id: AskId| {
            let Some(live) = me.upgrade() else { return };
            let pending = lock(&slot).take();
            let shared = live.shared();
            if let (Some(shared), Some(ino)) = (shared, paged) {
                shared.paging.tidy(ino);
            }
            match pending {
                Some(pending) => {
                    ask.store(id.0, Ordering::Relaxed);
                    live.begin(pending);
                }
                // It was answered while the kernel's pages were taken back.
                None => _ = shared.map(|shared| shared.tokens.ended(id)),
            }
        };
        self.tokens.ask(list, Box::new(begin));
    }

    /// Takes back the pages that the kernel has of a file; what was stored to them comes here first.
    fn take_back(&self, live: &Arc<Live>, ino: Ino) {
        let Some(kernel) = self.kernel.get().cloned() else { return };
        let engine = GivingUp { shared: self, live, ino };
        self.paging.take_back(ino, move || kernel.forget_pages(ino), &engine);
    }

    /// The kernel shows whoever has a file mapped the pages that it has, and asks nobody. Without a lease others may change it.
    /// Waits for nothing; who hears the end hears that all were tried.
    fn forget_pages(&self, live: &Live) -> Option<Receiver<Infallible>> {
        let kernel = self.kernel.get()?.clone();
        let open = live.with(|front, _| front.open_files());
        // What was stored to the others is written first. That waits for a lease, and fails once it is over.
        let goes = |(_, is_read): &(Ino, bool)| *is_read || self.is_over();
        let files = open.into_iter().filter(goes).map(|(ino, _)| ino).collect();
        let forgets = beside::forget_each(files, move |ino| kernel.forget_pages(ino));
        if let Err(error) = &forgets {
            tracing::debug!(%error, "pages in the kernel stay until there is a thread");
            self.lease.is_to_be_looked_at_again();
        }
        forgets.ok()
    }

    /// Waits until the origin has everything up to a group, and the journal says so durably; false if that will never be.
    pub(super) fn wait_for_origin(&self, live: &Live, upto: Lsn) -> bool {
        if upto == Lsn::ZERO {
            return true;
        }
        live.with(|front, now| front.hurry(now));
        loop {
            let (is_there, is_stopped) = live.with(|front, now| {
                // What says so is written once it is there.
                if front.decided() >= upto {
                    front.commit_soon(now);
                }
                (front.checkpointed() >= upto, front.stopped().is_some())
            });
            if is_there || is_stopped || self.is_over() || self.tokens.is_fenced() {
                return is_there;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// It serves nothing any more: whoever waits gets an error.
    fn end(&self, live: &Live) {
        self.is_over.store(true, Ordering::Relaxed);
        self.fail_rest();
        // Nobody does once the process has ended.
        if let Some(forgets) = self.forget_pages(live) {
            let _ = forgets.recv_timeout(WAIT_FOR_PAGES);
        }
        live.tell(Event::Over);
    }

    /// Those who had come, and had not seen that it is over.
    fn fail_rest(&self) {
        self.tokens.fail_waiting();
        self.paging.clear();
        let held = std::mem::take(&mut *lock(&self.held));
        held.into_iter().for_each(|held| self.answer(held));
    }
}

/// Whether there is one, as was seen last.
#[derive(Default)]
struct Lease(AtomicBool);

impl Lease {
    /// True once after each one.
    fn has_been_lost(&self, is_there: bool) -> bool {
        self.0.swap(is_there, Ordering::Relaxed) && !is_there
    }

    /// Its loss counts as unseen.
    fn is_to_be_looked_at_again(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A file whose token is to be given up.
struct GivingUp<'a> {
    shared: &'a Shared,
    live: &'a Arc<Live>,
    ino: Ino,
}

impl paging::Engine for GivingUp<'_> {
    fn may_change(&self) -> bool {
        let file = self
            .live
            .with(|front, _| front.tree.node(self.ino).map(|node| node.key.handle.clone()));
        file.is_some_and(|file| self.shared.tokens.cover_of(&file).is_some())
    }

    fn begin(&self, pending: Pending) {
        self.live.begin(pending);
    }

    fn is_asked(&self) -> bool {
        self.shared.sizes.are_asked(self.ino)
    }

    fn is_over(&self) -> bool {
        let is_stopped = self.live.with(|front, _| front.stopped().is_some());
        is_stopped || self.shared.is_over() || self.shared.tokens.is_fenced()
    }
}

/// Who is put in the place of an answer while it is wrapped.
struct Nobody;

impl Answer for Nobody {
    fn give(self: Box<Self>, _: Result<Answered, Errno>) {}
}

impl Holder for Live {
    fn give_up(&self, root: &Root, covered: &[FileId]) -> bool {
        let Some(shared) = self.shared() else { return false };
        let Some(me) = shared.me.upgrade() else { return false };
        if shared.no_revocation {
            return true;
        }
        let (inos, _) = self.with(|front, _| front.covered(root, covered));
        let open = self.with(|front, _| {
            let is_open = |ino: &Ino| front.tree.node(*ino).is_some_and(|node| node.opens > 0);
            inos.iter().copied().filter(is_open).collect::<Vec<_>>()
        });
        open.into_iter().for_each(|ino| shared.take_back(&me, ino));
        // Only now, since stores to pages have come in.
        loop {
            let (_, upto) = self.with(|front, _| front.covered(root, covered));
            if !shared.wait_for_origin(self, upto) {
                return false;
            }
            let open = self.with(|front, _| front.to_be_kept(root, covered));
            // An origin that hangs here keeps nobody waiting but who wants the token.
            let kept = self.keep_open(open);
            if self.with(|front, _| front.give_up(root, covered, kept)) {
                return true;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn look(&self) {
        let Some(shared) = self.shared() else { return };
        if shared.lease.has_been_lost(shared.tokens.may_serve()) {
            shared.forget_pages(self);
        }
        if shared.is_over() {
            return shared.fail_rest();
        }
        shared.answer_held();
        // Without its journal, or its origin, it can give nothing back: others are not to wait for it.
        if self.with(|front, _| front.stopped().is_some()) {
            tracing::error!("it can keep nothing for the other hosts: it ends, and they may go on");
            shared.end(self);
            shared.tokens.stop();
        }
    }

    fn fenced(&self) {
        if let Some(shared) = self.shared() {
            tracing::error!(
                "other hosts have shut this one out: it ends, and a new start says what is still its own"
            );
            shared.end(self);
        }
    }
}

impl Covers for Tokens {
    fn way(&self, file: &FileId) -> Vec<Root> {
        self.way_of(file)
    }

    fn stays(&self, file: &FileId, root: &Root) -> bool {
        self.stays_covered(file, root)
    }

    fn born(&self, file: &FileId, dir: &FileId) {
        self.made(file, dir);
    }

    fn moved(&self, file: &FileId, dir: &FileId) {
        self.moved_to(file, dir);
    }

    fn not_born(&self, file: &FileId) {
        self.linked(file);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process: see the program's `main`.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long the end waits for pages in the kernel that it is to forget.
const WAIT_FOR_PAGES: Duration = Duration::from_secs(2);
/// How often it is looked how far the origin is.
const LOOK_EVERY: Duration = Duration::from_micros(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_of_the_lease_is_seen_once() {
        let lease = Lease::default();
        assert!(!lease.has_been_lost(false), "there was none yet");
        for _ in 0..2 {
            assert!(!lease.has_been_lost(true));
            assert!(lease.has_been_lost(false));
            assert!(!lease.has_been_lost(false));
        }
        lease.is_to_be_looked_at_again();
        assert!(lease.has_been_lost(false));
    }
}
