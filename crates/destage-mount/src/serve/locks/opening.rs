//! Files that are being opened at the origin, which may take long: on threads of their own, so that locks of other files do
//! not wait for that. What is asked of the same file meanwhile comes after it, in its order.

use super::{Files, Work};
use crate::ask::{Errno, Ino};
use crossbeam_channel::{Receiver, Sender, unbounded};
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

/// A file that was opened, or was not.
pub(super) type Opened = (Ino, Result<OwnedFd, Errno>);

/// Them: see the module.
pub(super) struct Opening {
    /// Who waits, by the file: the first one for whom it is opened.
    files: HashMap<Ino, VecDeque<Work>>,
    opened: Sender<Opened>,
}

impl Opening {
    /// None yet; and who hears of those that are opened.
    pub(super) fn new() -> (Self, Receiver<Opened>) {
        let (opened, hears) = unbounded();
        (Self { files: HashMap::new(), opened }, hears)
    }

    pub(super) fn has(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino)
    }

    /// Opens the file of somebody who needs it.
    pub(super) fn open(&mut self, files: &Arc<dyn Files>, work: Work) {
        let ino = work.owner.0;
        self.files.entry(ino).or_default().push_front(work);
        let (files, opened) = (files.clone(), self.opened.clone());
        let opens = thread::Builder::new().name("locks-open".into()).spawn(move || {
            // Nobody hears it once the mount has ended.
            let _ = opened.send((ino, files.open(ino)));
        });
        if let Err(error) = opens {
            let _ = self.opened.send((ino, Err(error.into())));
        }
    }

    /// Keeps what is asked of a file that is being opened; gives anything else back.
    pub(super) fn park(&mut self, work: Work) -> Option<Work> {
        match self.files.get_mut(&work.owner.0) {
            Some(parked) => {
                parked.push_back(work);
                None
            }
            None => Some(work),
        }
    }

    /// Who has waited for a file, in order.
    pub(super) fn ended(&mut self, ino: Ino) -> VecDeque<Work> {
        self.files.remove(&ino).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{END, Locks, Serving, test};
    use super::*;
    use crate::ask::{Answer, Answered, Lock, Locking};
    use crate::origin::claim;
    use std::path::PathBuf;

    /// Files by their numbers. The first one is opened when somebody says so, and not at all once nobody can say it any more.
    struct Hangs {
        folder: PathBuf,
        goes_on: Receiver<()>,
    }

    impl Files for Hangs {
        fn serving(&self) -> Serving {
            Serving::Yes
        }

        fn open(&self, ino: Ino) -> Result<OwnedFd, Errno> {
            if ino == 1 {
                self.goes_on.recv().map_err(|_| Errno::IO)?;
            }
            Ok(claim::open(&self.folder.join(ino.to_string()))?.into())
        }
    }

    struct Tells(Sender<Result<Answered, Errno>>);

    impl Answer for Tells {
        fn give(self: Box<Self>, answered: Result<Answered, Errno>) {
            self.0.send(answered).unwrap();
        }
    }

    #[test]
    fn a_file_that_is_opened_slowly_keeps_no_other_one_waiting_and_what_is_asked_of_it_its_order() {
        let folder = tempfile::tempdir().unwrap();
        let (go_on, goes_on) = unbounded();
        let files = Hangs { folder: folder.path().to_owned(), goes_on };
        let locks = Locks::start_at(Arc::new(files)).unwrap();
        let ask = |owner, locking| {
            let (answer, answered) = unbounded();
            locks.ask(owner, locking, Box::new(Tells(answer)));
            answered
        };
        let takes =
            |open| Locking::Set(Lock { start: 0, end: END, kind: libc::F_WRLCK }, None, open);
        let hangs = ask((1, 7), takes(1));
        let closed = ask((1, 0), Locking::Closed(1));
        let again = ask((1, 8), takes(2));
        ask((2, 7), takes(3)).recv().unwrap().unwrap();
        assert!(hangs.is_empty() && closed.is_empty() && again.is_empty());
        // Each owner has the file opened anew.
        go_on.send(()).unwrap();
        hangs.recv().unwrap().unwrap();
        closed.recv().unwrap().unwrap();
        assert!(again.is_empty());
        let other = OwnedFd::from(claim::open(&folder.path().join("1")).unwrap());
        let is_held =
            || test(&other, Lock { start: 0, end: END, kind: libc::F_WRLCK }).unwrap().is_some();
        assert!(!is_held(), "it was taken before the end of its open");
        go_on.send(()).unwrap();
        again.recv().unwrap().unwrap();
        assert!(is_held());
        drop(go_on);
        let fails = ask((1, 9), takes(4));
        assert!(matches!(fails.recv().unwrap(), Err(Errno::IO)));
    }
}
