//! Which files' attributes are being asked for, where hosts share them.
//!
//! The kernel drops the attributes of an answer if it was told meanwhile to forget what it remembers of the file, and goes on
//! with the size that it had. A `stat` shows the answer all the same, but `lseek` to the end takes that size, which another host
//! may have changed long ago. So nothing is forgotten beside a question: it is once that is answered. There are two exceptions,
//! since what the kernel would show else is worse: a file whose set-user-ID bit goes, and all files when the lease is lost. And a
//! question may come between the last look for one and the kernel's forgetting, a moment later: nothing keeps it out.

use super::live::Live;
use crate::ask::{Answer, Answered, Errno, Ino};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// The questions under way, by their files.
#[derive(Debug, Default)]
pub(super) struct Sizes(Mutex<BTreeMap<Ino, u32>>);

impl Sizes {
    /// A file's attributes are asked for, until the answer is given.
    pub(super) fn ask(
        &self,
        ino: Ino,
        answer: Box<dyn Answer>,
        live: Weak<Live>,
    ) -> Box<dyn Answer> {
        *self.asked().entry(ino).or_default() += 1;
        Box::new(Asked { answer: Some(answer), ino, live })
    }

    /// Whether somebody asks for them now.
    pub(super) fn are_asked(&self, ino: Ino) -> bool {
        self.asked().contains_key(&ino)
    }

    fn ended(&self, ino: Ino) {
        let mut asked = self.asked();
        let count = asked.get_mut(&ino).expect("what was asked is counted");
        *count -= 1;
        if *count == 0 {
            asked.remove(&ino);
        }
    }

    fn asked(&self) -> MutexGuard<'_, BTreeMap<Ino, u32>> {
        // A panic ends the process: see the program's `main`.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers, and says that it has.
struct Asked {
    answer: Option<Box<dyn Answer>>,
    ino: Ino,
    live: Weak<Live>,
}

impl Answer for Asked {
    fn give(mut self: Box<Self>, answered: Result<Answered, Errno>) {
        if let Some(answer) = self.answer.take() {
            answer.give(answered);
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(shared) = self.live.upgrade().as_deref().and_then(Live::shared) {
            shared.sizes.ended(self.ino);
        }
    }
}
