//! A client's read at the origin while a batch is on its way there.

use super::bench::lazy;
use super::world::World;
use crate::block::BLOCK;
use crate::engine::{Context, Job, JobKind, Volume};
use crate::origin::{Identity, Origin, OriginIoError};
use crate::request::{Reply, Request};
use crate::testing::SimOrigin;
use destage_core::{Order, Time, WaitFor};
use destage_engine::Drive;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Where the client reads, which is in none of the batches.
const READ_AT: u64 = 70 * BLOCK as u64;
const WRITES: u64 = 24;
const MOST: usize = 16;
const PATIENCE: Duration = Duration::from_secs(60);
const NOW: Time = Time::from_secs(5_000);

/// An origin that counts the writes under way, and holds the client's read until it is told.
#[derive(Debug)]
struct Watched {
    origin: SimOrigin,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    writing: usize,
    writing_max: usize,
    writes: u64,
    is_reading: bool,
    is_released: bool,
    /// Writes wait until there are two at a time.
    writes_meet: bool,
}

impl Watched {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn wait_until(&self, is_true: impl Fn(&State) -> bool) {
        let waited = self.changed.wait_timeout_while(self.state(), PATIENCE, |it| !is_true(it));
        assert!(!waited.unwrap().1.timed_out(), "it never comes");
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }
}

impl Origin for Watched {
    fn size(&self) -> u64 {
        self.origin.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OriginIoError> {
        if offset == READ_AT {
            self.change(|state| state.is_reading = true);
            self.wait_until(|state| state.is_released);
        }
        self.origin.read(offset, buf)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OriginIoError> {
        self.change(|state| {
            state.writing += 1;
            state.writes += 1;
            state.writing_max = state.writing_max.max(state.writing);
        });
        self.wait_until(|state| !state.writes_meet || state.writing_max > 1);
        // Others that may come have the time to.
        thread::sleep(Duration::from_millis(1));
        let written = self.origin.write(offset, bytes);
        self.change(|state| state.writing -= 1);
        written
    }

    fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<(), OriginIoError> {
        self.origin.zero(offset, len, punch)
    }

    fn flush(&self) -> Result<(), OriginIoError> {
        self.origin.flush()
    }

    fn losses(&self) -> u64 {
        self.origin.losses()
    }

    fn parallelism(&self) -> usize {
        MOST
    }

    fn identity(&self) -> Result<Identity, OriginIoError> {
        self.origin.identity()
    }
}

/// A volume with a batch of scattered blocks that is about to be sent, and the origin that it goes to.
fn with_batch(order: Order) -> (Volume, Context, Arc<Watched>, Job) {
    let mut choice = lazy(order);
    choice.blocks = 80;
    let world = World::new(&choice);
    let (mut volume, mut context) = world.open(&choice, NOW);
    let watched =
        Watched { origin: world.origin.clone(), state: Mutex::default(), changed: Condvar::new() };
    let watched = Arc::new(watched);
    context.origin = watched.clone();
    for tag in 0..WRITES {
        let write =
            Request::Write { offset: tag * 2 * BLOCK as u64, data: vec![7; BLOCK], fua: false };
        volume.submit(NOW, tag, write);
    }
    let last = volume.last();
    volume.wait(NOW, WRITES, last, WaitFor::Decided);
    let batch = run_until(&mut volume, &context, JobKind::Destage);
    (volume, context, watched, batch)
}

/// The next job that there is now.
fn next_job(volume: &mut Volume) -> Option<Job> {
    loop {
        if let Some(job) = volume.poll_job() {
            return Some(job);
        }
        volume.next_timeout().filter(|&at| at <= NOW)?;
        volume.tick(NOW);
    }
}

/// Runs jobs until one of a kind comes, which it gives.
fn run_until(volume: &mut Volume, context: &Context, kind: JobKind) -> Job {
    while let Some(job) = next_job(volume) {
        if job.kind() == kind {
            return job;
        }
        let done = job.run(context);
        volume.finished(NOW, done);
    }
    panic!("no job of the kind {kind:?}")
}

#[test]
fn beside_a_clients_read_a_batch_has_one_request_at_the_origin() {
    for order in [Order::Any, Order::Epoch, Order::Domain] {
        let (mut volume, context, origin, batch) = with_batch(order);
        volume.submit(NOW, 99, Request::Read { offset: READ_AT, len: BLOCK as u32 });
        let read = run_until(&mut volume, &context, JobKind::Fetch);
        let (read, sent) = thread::scope(|scope| {
            let read = scope.spawn(|| read.run(&context));
            origin.wait_until(|state| state.is_reading);
            let sent = batch.run(&context);
            origin.change(|state| state.is_released = true);
            (read.join().unwrap(), sent)
        });
        let State { writes, writing_max: most, .. } = *origin.state();
        assert!(writes >= WRITES, "{order:?}: the batch goes on: {writes}");
        assert_eq!(most, 1, "{order:?}");
        volume.finished(NOW, sent);
        volume.finished(NOW, read);
        while let Some(job) = next_job(&mut volume) {
            let done = job.run(&context);
            volume.finished(NOW, done);
        }
        let replies: Vec<_> = std::iter::from_fn(|| volume.poll_reply()).collect();
        assert!(replies.contains(&(WRITES, Reply::Done)), "{order:?}: all is decided");
        assert!(replies.iter().any(|(tag, it)| *tag == 99 && matches!(it, Reply::Data(_))));
    }
}

#[test]
fn without_reads_a_batch_has_many_requests_at_the_origin() {
    for order in [Order::Any, Order::Epoch, Order::Domain] {
        let (_volume, context, origin, batch) = with_batch(order);
        origin.change(|state| state.writes_meet = true);
        drop(batch.run(&context));
        assert!(origin.state().writing_max > 1, "{order:?}");
    }
}
