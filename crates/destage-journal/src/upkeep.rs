//! The thread that prepares and recycles segments, so that neither the hot path nor a roll waits for it.

use crate::error::ErrorKind;
use crate::store::{Segment, Store};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Where work on whole files goes.
#[derive(Clone, Debug)]
pub(crate) struct Upkeep {
    store: Arc<Store>,
    /// `None`: at once, on the calling thread.
    jobs: Option<Sender<Job>>,
}

#[derive(Debug)]
enum Job {
    Prepare(u64),
    Recycle(Segment),
    Restock,
    Stop,
}

/// The running thread; ends when dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    jobs: Sender<Job>,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    pub(crate) fn inline(store: Arc<Store>) -> Self {
        Self { store, jobs: None }
    }

    pub(crate) fn background(store: Arc<Store>) -> std::io::Result<(Self, Worker)> {
        let (jobs, queue) = channel();
        let worker_store = store.clone();
        let thread = std::thread::Builder::new()
            .name("journal-upkeep".to_owned())
            .spawn(move || work(&worker_store, &queue))?;
        let worker = Worker { jobs: jobs.clone(), thread: Some(thread) };
        Ok((Self { store, jobs: Some(jobs) }, worker))
    }

    /// Has the segment ready soon. Nothing on the calling thread without a worker: the roll prepares it then.
    pub(crate) fn prepare(&self, number: u64) {
        if let Some(jobs) = &self.jobs {
            // Without its worker the roll prepares the segment itself.
            let _ = jobs.send(Job::Prepare(number));
        }
    }

    /// Has the spare file that is kept made, if there is none.
    pub(crate) fn restock(&self) {
        if !self.store.keeps_spare || self.store.restocks.swap(true, Relaxed) {
            return;
        }
        match &self.jobs {
            Some(jobs) => drop(jobs.send(Job::Restock)),
            None => perform(&self.store, Job::Restock),
        }
    }

    pub(crate) fn recycle(&self, segment: Segment) {
        let job = Job::Recycle(segment);
        match &self.jobs {
            Some(jobs) => drop(jobs.send(job)),
            None => perform(&self.store, job),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A stopped worker has closed its queue: then there is nothing to tell it.
        let _ = self.jobs.send(Job::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the panic hook; here it must not become a second one.
            let _ = thread.join();
        }
    }
}

fn work(store: &Store, queue: &Receiver<Job>) {
    while let Ok(job) = queue.recv() {
        if matches!(job, Job::Stop) {
            return;
        }
        perform(store, job);
    }
}

fn perform(store: &Store, job: Job) {
    let (what, number, result) = match job {
        Job::Prepare(number) => ("prepare", number, store.prepare(number)),
        // What is too short to be used again has made room for what is kept.
        Job::Recycle(segment) => {
            let done = store.recycle(&segment).and_then(|()| store.restock());
            ("recycle", segment.number, done)
        }
        Job::Restock => ("spare", 0, store.restock()),
        Job::Stop => return,
    };
    // The next roll meets the same trouble and reports it to whoever waits.
    if let Err(error) = result {
        if error.kind() == ErrorKind::Full {
            // Where segments come back as fast as they are needed, as in a cache's log, this is no trouble yet.
            tracing::debug!(segment = number, %error, "no room yet to {what} a journal segment ahead of time");
            return;
        }
        tracing::warn!(segment = number, %error, "failed to {what} a journal segment");
    }
}
