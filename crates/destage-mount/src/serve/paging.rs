//! Requests of the kernel's page cache that wait for tokens, by their files: it holds on to pages until they are answered.
//!
//! Kernels before 6.16 write copies of pages: to them a page is clean once its copy is on its way.

use crate::ask::{Answer, Answered, Ask, Errno, Ino};
use crate::engine::Pending;
use crossbeam_channel::{Receiver, Sender, bounded};
use hashbrown::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The requests: see the module.
#[derive(Default)]
pub(super) struct Paging(Mutex<HashMap<Ino, Vec<Slot>>>);

/// One of them, until it begins.
pub(super) type Slot = Arc<Mutex<Option<Pending>>>;

/// What carries them out.
pub(super) trait Engine {
    /// Whether this host has the token to change the file.
    fn may_change(&self) -> bool;
    /// Without waiting for a token.
    fn begin(&self, pending: Pending);
    /// Whether somebody asks for the file's attributes.
    fn is_asked(&self) -> bool;
    /// Whether some may never be answered.
    fn is_over(&self) -> bool;
}

impl Paging {
    pub(super) fn add(&self, ino: Ino, slot: Slot) {
        self.all().entry(ino).or_default().push(slot);
    }

    /// Forgets those of a file that have begun.
    pub(super) fn tidy(&self, ino: Ino) {
        let mut all = self.all();
        if let Some(slots) = all.get_mut(&ino) {
            slots.retain(|slot| lock(slot).is_some());
            if slots.is_empty() {
                all.remove(&ino);
            }
        }
    }

    pub(super) fn clear(&self) {
        self.all().clear();
    }

    /// Takes back the pages that the kernel has of a file; what was stored to them has come here when this returns.
    ///
    /// `forget` waits for requests of the kernel's own for these pages. Those wait for the token that is being given up: so they
    /// are answered here, while it is still held; and since they bring pages in again, all of it is done once more. Of a page
    /// whose copy is on its way the kernel waits for nothing: that one is waited for here, or it would be written once others
    /// have had the file. Questions for the file's attributes are answered before the kernel is told: see [`super::sizes`].
    pub(super) fn take_back(
        &self,
        ino: Ino,
        forget: impl Fn() + Clone + Send + 'static,
        engine: &impl Engine,
    ) {
        let mut writes = Vec::new();
        loop {
            self.answer_questions(ino, engine, &mut writes);
            let (done, is_done) = bounded(1);
            let forget = forget.clone();
            let told = thread::Builder::new().name("invalidate".into()).spawn(move || {
                forget();
                let _ = done.send(());
            });
            if told.is_err() {
                thread::sleep(WAIT_FOR_KERNEL);
                continue;
            }
            let mut has_answered = false;
            while is_done.recv_timeout(WAIT_FOR_KERNEL).is_err() {
                let may_change = engine.may_change();
                // A truncation holds pages back only of a file that may be changed here: else none waits for it.
                let goes = |ask: &Ask| {
                    !is_question(ask) && (may_change || !matches!(ask, Ask::SetAttr { .. }))
                };
                has_answered |= self.begin(ino, goes, engine, &mut writes);
            }
            if !has_answered {
                break;
            }
        }
        let is_write = |ask: &Ask| matches!(ask, Ask::Write { .. });
        loop {
            if engine.may_change() {
                self.begin(ino, is_write, engine, &mut writes);
            }
            writes.retain(|write| write.try_recv().is_err_and(|error| error.is_empty()));
            let Some(write) = writes.first() else { return };
            if engine.is_over() {
                return;
            }
            // It may be back among those that wait, if it had to find something out.
            let _ = write.recv_timeout(WAIT_FOR_KERNEL);
        }
    }

    /// Answers who asks for a file's attributes, by the token that is being given up. Who asks all the time does not keep it.
    fn answer_questions(
        &self,
        ino: Ino,
        engine: &impl Engine,
        writes: &mut Vec<Receiver<Infallible>>,
    ) {
        let until = Instant::now() + WAIT_FOR_QUESTIONS;
        loop {
            self.begin(ino, is_question, engine, writes);
            if !engine.is_asked() || engine.is_over() || Instant::now() >= until {
                return;
            }
            thread::sleep(WAIT_FOR_ANSWER);
        }
    }

    /// Begins those of a file that go, and says of writes when they have ended. True if there were any.
    fn begin(
        &self,
        ino: Ino,
        goes: impl Fn(&Ask) -> bool,
        engine: &impl Engine,
        writes: &mut Vec<Receiver<Infallible>>,
    ) -> bool {
        let taken = self.take(ino, goes);
        let is_any = !taken.is_empty();
        for mut pending in taken {
            if let Ask::Write { .. } = pending.ask {
                let (has_ended, ends) = bounded(0);
                pending.answer = Box::new(Heard { answer: pending.answer, _has_ended: has_ended });
                writes.push(ends);
            }
            engine.begin(pending);
        }
        is_any
    }

    fn take(&self, ino: Ino, goes: impl Fn(&Ask) -> bool) -> Vec<Pending> {
        let mut all = self.all();
        let mut taken = Vec::new();
        if let Some(slots) = all.get_mut(&ino) {
            slots.retain(|slot| {
                let mut slot = lock(slot);
                taken.extend(slot.take_if(|pending| goes(&pending.ask)));
                slot.is_some()
            });
            if slots.is_empty() {
                all.remove(&ino);
            }
        }
        taken
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Ino, Vec<Slot>>> {
        lock(&self.0)
    }
}

fn is_question(ask: &Ask) -> bool {
    matches!(ask, Ask::GetAttr { .. })
}

/// Answers, and is gone then.
struct Heard {
    answer: Box<dyn Answer>,
    _has_ended: Sender<Infallible>,
}

impl Answer for Heard {
    fn give(self: Box<Self>, answered: Result<Answered, Errno>) {
        self.answer.give(answered);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process: see the program's `main`.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long the kernel is waited for before its own requests are answered.
const WAIT_FOR_KERNEL: Duration = Duration::from_millis(5);
/// How long the questions of a file are waited for, and how often it is looked whether there are any.
const WAIT_FOR_QUESTIONS: Duration = Duration::from_millis(100);
const WAIT_FOR_ANSWER: Duration = Duration::from_micros(500);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Caller;
    use crate::engine::Hints;
    use crossbeam_channel::unbounded;

    struct Told(Sender<()>);

    impl Answer for Told {
        fn give(self: Box<Self>, _: Result<Answered, Errno>) {
            self.0.send(()).unwrap();
        }
    }

    /// Answers what begins on another thread, after a while.
    struct Late {
        begun: Sender<Pending>,
        may_change: bool,
        asked: Option<Receiver<()>>,
    }

    impl Late {
        fn new(may_change: bool) -> Self {
            let (begun, begins) = unbounded::<Pending>();
            thread::spawn(move || {
                for pending in begins {
                    thread::sleep(WAIT_FOR_KERNEL * 4);
                    pending.answer.give(Ok(Answered::Done));
                }
            });
            Self { begun, may_change, asked: None }
        }
    }

    impl Engine for Late {
        fn may_change(&self) -> bool {
            self.may_change
        }

        fn begin(&self, pending: Pending) {
            self.begun.send(pending).unwrap();
        }

        fn is_asked(&self) -> bool {
            self.asked.as_ref().is_some_and(Receiver::is_empty)
        }

        fn is_over(&self) -> bool {
            false
        }
    }

    /// A request of a file, and whether it has been answered.
    fn waits(paging: &Paging, ino: Ino, ask: Ask) -> Receiver<()> {
        let (answer, answered) = unbounded();
        let caller = Caller { uid: 0, gid: 0, clears_privileges: false };
        let (hints, answer) = (Hints::default(), Box::new(Told(answer)));
        let pending = Pending { caller, ask, hints, answer, ticket: None };
        paging.add(ino, Arc::new(Mutex::new(Some(pending))));
        answered
    }

    fn page(ino: Ino) -> Ask {
        let data = vec![1; 4096];
        Ask::Write { ino, offset: 0, data, sync: false, append: false, mapped: true }
    }

    #[test]
    fn a_copy_of_a_page_that_the_kernel_has_forgotten_arrives_before_the_file_is_given_up() {
        let paging = Paging::default();
        let (written, other) = (waits(&paging, 1, page(1)), waits(&paging, 2, page(2)));
        let read = waits(&paging, 1, Ask::Read { ino: 1, offset: 0, len: 4096, mapped: true });
        paging.take_back(1, || {}, &Late::new(true));
        assert!(written.try_recv().is_ok());
        assert!(other.try_recv().is_err() && read.try_recv().is_err());
    }

    #[test]
    fn what_the_kernel_waits_for_is_answered_and_its_writes_are_waited_for() {
        let paging = Paging::default();
        let asked = Ask::Read { ino: 1, offset: 0, len: 4096, mapped: true };
        let (written, read) = (waits(&paging, 1, page(1)), waits(&paging, 1, asked));
        let heard = read.clone();
        // It has pages again after each answer: so it is told until there was none.
        paging.take_back(1, move || while heard.is_empty() {}, &Late::new(true));
        assert!(written.try_recv().is_ok() && read.try_recv().is_ok());
    }

    #[test]
    fn who_asks_for_attributes_is_answered_before_the_kernel_is_told_to_forget() {
        let paging = Paging::default();
        let asked = waits(&paging, 1, Ask::GetAttr { ino: 1 });
        let other = waits(&paging, 2, Ask::GetAttr { ino: 2 });
        // What is read alone is asked for as well.
        let engine = Late { asked: Some(asked.clone()), ..Late::new(false) };
        let (told, order) = unbounded();
        paging.take_back(1, move || told.send(asked.is_empty()).unwrap(), &engine);
        assert_eq!(order.iter().collect::<Vec<_>>(), [false]);
        assert!(other.try_recv().is_err());
    }

    #[test]
    fn who_is_not_answered_does_not_keep_a_file() {
        let (_answer, asked) = unbounded();
        let engine = Late { asked: Some(asked), ..Late::new(false) };
        let (told, is_told) = unbounded();
        Paging::default().take_back(1, move || told.send(()).unwrap(), &engine);
        is_told.recv().unwrap();
    }

    #[test]
    fn a_copy_that_must_not_be_written_here_waits_for_its_token() {
        let paging = Paging::default();
        let written = waits(&paging, 1, page(1));
        paging.take_back(1, || {}, &Late::new(false));
        assert!(written.try_recv().is_err());
        assert_eq!(paging.take(1, |_| true).len(), 1);
    }
}
