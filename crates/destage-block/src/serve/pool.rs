//! The threads that carry out the engines' jobs.

use super::{Event, Outbox, slice};
use crate::engine::{Context, Job, JobKind};
use crossbeam_channel::{Receiver, Sender};
use std::io;
use std::sync::Arc;
use std::thread;

/// Threads that read from the caches while clients wait.
const READ_THREADS: usize = 8;
/// Threads that write clean blocks to the caches. Few, so that the log's writes do not wait behind theirs.
const INSTALL_THREADS: usize = 2;
/// Threads that read from or write to the origins while clients wait.
const ORIGIN_THREADS: usize = 16;

/// A job and whose it is.
type Item = (usize, Job);

/// One queue for each kind of work, so that the slow kind does not keep the quick one waiting.
pub(super) struct Pool {
    log: Sender<Item>,
    read: Sender<Item>,
    install: Sender<Item>,
    fetch: Sender<Item>,
    through: Sender<Item>,
    destage: Sender<Item>,
    checkpoint: Sender<Item>,
}

impl Pool {
    /// Starts the threads. They end when the pool is dropped.
    ///
    /// # Errors
    /// As the system reports them.
    pub(super) fn start(contexts: Arc<[Context]>, outbox: &Outbox) -> io::Result<Self> {
        let volumes = contexts.len();
        let queue = |name: &str, threads: usize, is_awaited: bool| -> io::Result<Sender<Item>> {
            let (sender, receiver) = crossbeam_channel::unbounded();
            for _ in 0..threads {
                let (receiver, contexts, outbox) =
                    (receiver.clone(), contexts.clone(), outbox.clone());
                let work = move || {
                    if is_awaited {
                        slice::shorten();
                    }
                    work(&receiver, &contexts, &outbox);
                };
                thread::Builder::new().name(name.into()).spawn(work)?;
            }
            Ok(sender)
        };
        Ok(Self {
            log: queue("log", volumes, true)?,
            read: queue("read", READ_THREADS, true)?,
            install: queue("install", INSTALL_THREADS, false)?,
            fetch: queue("fetch", ORIGIN_THREADS, true)?,
            through: queue("through", ORIGIN_THREADS, true)?,
            destage: queue("destage", volumes, false)?,
            checkpoint: queue("checkpoint", volumes, false)?,
        })
    }

    /// Hands a job over.
    pub(super) fn give(&self, volume: usize, job: Job) {
        let queue = match job.kind() {
            JobKind::Log => &self.log,
            JobKind::Read => &self.read,
            JobKind::Install => &self.install,
            JobKind::Fetch => &self.fetch,
            JobKind::Through => &self.through,
            JobKind::Destage => &self.destage,
            JobKind::Checkpoint => &self.checkpoint,
        };
        queue.send((volume, job)).expect("the threads live as long as the pool");
    }
}

fn work(jobs: &Receiver<Item>, contexts: &[Context], outbox: &Outbox) {
    for (volume, job) in jobs {
        let done = job.run(&contexts[volume]);
        outbox.send(Event::Done { volume, done });
    }
}
