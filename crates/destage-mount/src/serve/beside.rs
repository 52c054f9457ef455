//! What is looked at from time to time, beside all else: stores through mappings, which the kernel does not tell of, and the
//! room at the origin.

use super::live::Live;
use fuser::{INodeNo, Notifier};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// What the kernel remembers of files.
#[derive(Clone, Debug)]
pub(super) struct Remembered {
    notifier: Notifier,
    root: u64,
}

impl Remembered {
    pub(super) fn new(notifier: Notifier, root: u64) -> Self {
        Self { notifier, root }
    }

    /// It asks for a file's attributes again. Waits for no page, and so for nobody who waits for this process.
    pub(super) fn forget_attributes(&self, ino: u64) {
        self.forget(ino, -1);
    }

    /// It writes the pages of a file back to this process before this returns.
    pub(super) fn forget_pages(&self, ino: u64) {
        self.forget(ino, 0);
    }

    fn forget(&self, ino: u64, from: i64) {
        let ino = if ino == self.root { INodeNo::ROOT } else { INodeNo(ino) };
        // Of a file that the kernel has forgotten it remembers nothing.
        let _ = self.notifier.inval_inode(ino, from, 0);
    }
}

/// Looks every `period` at mappings, and at the room at the origin, which may hang.
///
/// # Errors
/// The system has no threads.
pub(super) fn start(live: Arc<Live>, remembered: Remembered, period: Duration) -> io::Result<()> {
    let room = live.clone();
    every("room", SPACE_EVERY, move || room.look_at_space())?;
    every("beside", period, move || {
        for ino in live.with(|front, _| front.take_mapped()) {
            if live.shared().is_some_and(|shared| shared.sizes.are_asked(ino)) {
                live.with(|front, _| front.is_mapped(ino));
            } else {
                remembered.forget_pages(ino);
            }
        }
    })
}

/// On a thread of its own.
fn every(name: &str, period: Duration, work: impl Fn() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(move || {
        loop {
            thread::sleep(period);
            work();
        }
    })?;
    Ok(())
}

/// How old what is known of the room may be.
const SPACE_EVERY: Duration = Duration::from_secs(1);
