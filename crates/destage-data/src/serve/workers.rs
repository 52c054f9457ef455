//! The origin's threads: one that writes, some that read.

use super::Event;
use crate::collection;
use crate::derived::Queries;
use crate::engine::{DOMAIN, FetchJob, Groups};
use crate::origins::{
    ALL_DOMAINS, AcrossClaim, Applied, GroupRef, Mark, Origin, OriginError, ParkedGroup, Reader,
    Snapshot, Watermarks, WriteClaim, Writer,
};
use crate::schema::{Schema, TableId};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use destage_core::{BatchId, Fault, Lsn};
use mio::Waker;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often an owner shows itself at the origin.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);

/// How often an outcome in doubt is looked for.
const DOUBT_EVERY: Duration = Duration::from_millis(200);

/// Where events go: to the server, which is woken.
#[derive(Clone)]
pub(super) struct Outbox {
    pub(super) sender: Sender<Event>,
    pub(super) waker: Arc<Waker>,
}

impl Outbox {
    /// Delivers an event. A server that has ended does not care any more.
    pub(super) fn send(&self, event: Event) {
        if self.sender.send(event).is_ok()
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "cannot wake the server");
        }
    }
}

/// A job for the writing thread.
pub(super) enum WriteJob {
    Apply {
        batch: BatchId,
        marks: Box<[Mark]>,
        groups: Groups,
    },
    Park {
        lsn: Lsn,
        marks: Box<[Mark]>,
        parked: Option<ParkedGroup>,
    },
    Unpark {
        parked: Vec<Lsn>,
        groups: Groups,
    },
    ListParked {
        request: u64,
    },
    /// Moves the mark of all domains.
    MarkAll {
        expected: Lsn,
        upto: Lsn,
        floors: Watermarks,
    },
    /// The last one: everything is decided. Answered when it is done or has failed.
    Release {
        done: Sender<()>,
    },
}

/// What the origin has confirmed of each ordering domain, for all writing threads.
#[derive(Debug)]
pub(super) struct Confirmed(Box<[AtomicU64]>);

impl Confirmed {
    pub(super) fn new(watermarks: &[Lsn]) -> Self {
        Self(watermarks.iter().map(|lsn| AtomicU64::new(lsn.0)).collect())
    }

    fn reached(&self, marks: &[Mark]) {
        for mark in marks {
            self.0[usize::from(mark.domain.0)].fetch_max(mark.upto.0, Ordering::SeqCst);
        }
    }

    fn now(&self) -> Vec<Lsn> {
        self.0.iter().map(|at| Lsn(at.load(Ordering::SeqCst))).collect()
    }
}

/// The writing thread's state. Where several write, the first one shows the owner, the others only apply and park.
pub(super) struct Destager {
    pub(super) origin: Arc<dyn Origin>,
    pub(super) schema: Arc<Schema>,
    pub(super) writer: Option<Box<dyn Writer>>,
    pub(super) epoch: u64,
    pub(super) is_first: bool,
    pub(super) confirmed: Arc<Confirmed>,
    pub(super) unsafe_no_watermark: bool,
    pub(super) outbox: Outbox,
    /// Parked groups were to be taken back, and nobody knows whether they were: which, and what failed.
    pub(super) doubt: Option<(Vec<Lsn>, OriginError)>,
}

impl Destager {
    /// Starts the thread. It ends when the sender of its jobs is dropped.
    pub(super) fn spawn(mut self, jobs: Receiver<WriteJob>) -> std::io::Result<()> {
        thread::Builder::new().name("destager".into()).spawn(move || self.run(&jobs))?;
        Ok(())
    }

    fn run(&mut self, jobs: &Receiver<WriteJob>) {
        let mut shown = Instant::now();
        loop {
            // However busy it is: an owner that does not show itself would be taken for dead.
            if shown.elapsed() >= HEARTBEAT_EVERY {
                shown = Instant::now();
                if self.is_first {
                    self.show();
                }
            }
            self.settle_doubt();
            let patience = if self.doubt.is_some() { DOUBT_EVERY } else { HEARTBEAT_EVERY };
            match jobs.recv_timeout(patience.saturating_sub(shown.elapsed())) {
                Ok(WriteJob::Apply { batch, marks, groups }) => {
                    let result = self.apply(&marks, &groups);
                    self.outbox.send(Event::Destaged { batch, result });
                }
                Ok(WriteJob::Park { lsn, marks, parked }) => {
                    let result = self.park(lsn, &marks, parked.as_ref());
                    self.outbox.send(Event::Parked { lsn, result });
                }
                Ok(WriteJob::Unpark { parked, groups }) => self.unpark(parked, &groups),
                Ok(WriteJob::ListParked { request }) => {
                    let result = self.with_writer(|writer| writer.parked());
                    self.outbox.send(Event::ParkedListed { request, result });
                }
                Ok(WriteJob::MarkAll { expected, upto, floors }) => {
                    let mark = Mark { domain: ALL_DOMAINS, expected, upto };
                    let claim = self.across(&[mark]).of(&mark);
                    let result = self.with_writer(|w| w.mark_all(&claim, upto, &floors));
                    self.outbox.send(Event::MarkedAll { upto, result });
                }
                Ok(WriteJob::Release { done }) => {
                    self.release();
                    // The server waits a limited time only.
                    let _ = done.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Renews the heartbeat at the origin, and learns whether that went back, which no batch tells while nobody writes.
    fn show(&mut self) {
        let epoch = self.epoch;
        // What other threads have written meanwhile, the heartbeat may not see.
        let confirmed = self.confirmed.now();
        match self.with_writer(|writer| writer.heartbeat(epoch)) {
            Ok(watermarks) => self.outbox.send(Event::Shown { watermarks, confirmed }),
            Err(error) if error.fault == Fault::Fenced => self.outbox.send(Event::Fenced(error)),
            // The next batch tells what is wrong.
            Err(_) => {}
        }
    }

    /// Lets another process have the origin at once. Without it, that one waits until the heartbeat is old.
    fn release(&mut self) {
        let epoch = self.epoch;
        if let Err(error) = self.with_writer(|writer| writer.release(epoch)) {
            tracing::warn!(
                error = error.message,
                "the origin was not told that this process has ended"
            );
        }
    }

    fn across<'m>(&self, marks: &'m [Mark]) -> AcrossClaim<'m> {
        AcrossClaim { epoch: self.epoch, marks, unsafe_no_watermark: self.unsafe_no_watermark }
    }

    /// For what holds the first domain's watermark where it is, which is enough to shut out another owner.
    fn hold(&self) -> WriteClaim {
        let mark = Mark { domain: DOMAIN, expected: Lsn::ZERO, upto: Lsn::ZERO };
        self.across(&[mark]).of(&mark)
    }

    fn apply(&mut self, marks: &[Mark], groups: &Groups) -> Result<Applied, OriginError> {
        let claim = self.across(marks);
        let schema = self.schema.clone();
        let refs: Vec<GroupRef<'_>> = groups.iter().collect();
        let applied = self.with_writer(|writer| match marks {
            [only] => writer.apply(&schema, &claim.of(only), &refs),
            _ => writer.apply_across(&schema, &claim, &refs),
        })?;
        self.confirmed.reached(marks);
        Ok(applied)
    }

    fn park(
        &mut self,
        lsn: Lsn,
        marks: &[Mark],
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        let claim = self.across(marks);
        self.with_writer(|writer| match marks {
            [only] => writer.park(&claim.of(only), lsn, parked),
            _ => writer.park_across(&claim, parked),
        })?;
        self.confirmed.reached(marks);
        Ok(())
    }

    fn unpark(&mut self, parked: Vec<Lsn>, groups: &Groups) {
        let claim = self.hold();
        let schema = self.schema.clone();
        let refs: Vec<GroupRef<'_>> = groups.iter().collect();
        // Without a connection nothing can have been done.
        let is_connected = self.with_writer(|_| Ok(()));
        let result = is_connected.and_then(|()| {
            let result = self.with_writer(|writer| writer.unpark(&schema, &claim, &parked, &refs));
            if let Err(error) = &result
                && error.fault == Fault::Unavailable
            {
                self.doubt = Some((parked, error.clone()));
            }
            result
        });
        if self.doubt.is_none() {
            self.outbox.send(Event::Unparked { result });
        }
    }

    /// Looks whether groups that were to be taken back are still parked.
    fn settle_doubt(&mut self) {
        let Some((parked, error)) = self.doubt.take() else { return };
        let claim = self.hold();
        let schema = self.schema.clone();
        let found = self.with_writer(|writer| {
            // Waits until the transaction in doubt has ended.
            writer.unpark(&schema, &claim, &[], &[])?;
            writer.parked()
        });
        let result = match found {
            Ok(found) => match found.iter().any(|group| parked.contains(&group.lsn)) {
                true => Err(error),
                false => Ok(Applied::default()),
            },
            Err(again) if again.fault == Fault::Fenced => Err(again),
            Err(_) => return self.doubt = Some((parked, error)),
        };
        self.outbox.send(Event::Unparked { result });
    }

    /// Runs `work` on the connection, which is opened if there is none and dropped if it is in doubt.
    fn with_writer<T>(
        &mut self,
        work: impl FnOnce(&mut dyn Writer) -> Result<T, OriginError>,
    ) -> Result<T, OriginError> {
        if self.writer.is_none() {
            self.writer = Some(self.origin.writer()?);
        }
        let writer = self.writer.as_deref_mut().expect("opened above");
        let result = work(writer);
        if let Err(error) = &result
            && matches!(error.fault, Fault::Unavailable | Fault::Denied | Fault::Failed)
        {
            self.writer = None;
        }
        result
    }
}

/// Fetched rows in one piece of memory. A row allocated by one thread and kept by another would leave holes in the first
/// one's heap, as large as the cache in the long run.
pub(super) struct Packed {
    bytes: Vec<u8>,
    /// For each row its end; `None` where there is no row.
    ends: Vec<Option<usize>>,
    watermarks: Watermarks,
    seen: Vec<Lsn>,
}

impl Packed {
    fn new(snapshot: Snapshot) -> Self {
        let size = snapshot.rows.iter().flatten().map(|row| row.len()).sum();
        let mut bytes = Vec::with_capacity(size);
        let mut pack = |row: &Option<Box<[u8]>>| {
            row.as_ref().map(|row| {
                bytes.extend_from_slice(row);
                bytes.len()
            })
        };
        let ends = snapshot.rows.iter().map(&mut pack).collect();
        Self { bytes, ends, watermarks: snapshot.watermarks, seen: snapshot.seen }
    }

    /// The rows, in the memory of the calling thread.
    pub(super) fn unpack(self) -> Snapshot {
        let mut start = 0;
        let rows = self.ends.iter().map(|end| {
            end.map(|end| {
                let row = self.bytes[start..end].into();
                start = end;
                row
            })
        });
        Snapshot { rows: rows.collect(), watermarks: self.watermarks, seen: self.seen }
    }
}

/// A job for the reading threads.
pub(super) enum ReadJob {
    Fetch(Vec<FetchJob>),
    Scan { request: u64, table: TableId, after: Option<Box<[u8]>>, limit: usize },
    NextKeys { request: u64, table: TableId, count: u32 },
    Query { job: u64, query: usize, values: Box<[u8]> },
}

/// A reading thread's state.
pub(super) struct Fetcher {
    pub(super) origin: Arc<dyn Origin>,
    pub(super) schema: Arc<Schema>,
    pub(super) queries: Arc<Queries>,
    pub(super) reader: Option<Box<dyn Reader>>,
    pub(super) outbox: Outbox,
}

impl Fetcher {
    /// Starts the thread. It ends when the sender of its jobs is dropped.
    pub(super) fn spawn(mut self, jobs: Receiver<ReadJob>) -> std::io::Result<()> {
        thread::Builder::new().name("fetcher".into()).spawn(move || {
            for job in &jobs {
                let event = self.work(job);
                self.outbox.send(event);
            }
        })?;
        Ok(())
    }

    fn work(&mut self, job: ReadJob) -> Event {
        let schema = self.schema.clone();
        match job {
            ReadJob::Fetch(jobs) => {
                let table = schema.table(jobs[0].table);
                if table.part.is_some() {
                    let key = &jobs[0].key;
                    let result =
                        self.with_reader(|reader| collection::read(reader, &schema, table, key));
                    return Event::Fetched { jobs, result: result.map(Packed::new) };
                }
                let keys: Vec<&[u8]> = jobs.iter().map(|job| &job.key[..]).collect();
                let result = self.with_reader(|reader| reader.fetch(table, &keys)).map(Packed::new);
                Event::Fetched { jobs, result }
            }
            ReadJob::Scan { request, table, after, limit } => {
                let table = schema.table(table);
                let result = self.with_reader(|r| r.scan(table, after.as_deref(), limit));
                Event::Scanned { request, result }
            }
            ReadJob::NextKeys { request, table, count } => {
                let table = schema.table(table);
                let result = self.with_reader(|reader| reader.next_keys(table, count));
                Event::KeysReserved { request, result }
            }
            ReadJob::Query { job, query, values } => {
                let queries = self.queries.clone();
                let query = queries.get(query);
                let result = self.with_reader(|reader| reader.query(query, &values));
                Event::Queried { job, result }
            }
        }
    }

    /// As the destager's; a connection that turns out to be broken is replaced once, since it may have been idle for long.
    fn with_reader<T>(
        &mut self,
        mut work: impl FnMut(&mut dyn Reader) -> Result<T, OriginError>,
    ) -> Result<T, OriginError> {
        let was_open = self.reader.is_some();
        let result = self.try_reader(&mut work);
        match result {
            Err(error) if was_open && error.fault == Fault::Unavailable => {
                self.try_reader(&mut work)
            }
            result => result,
        }
    }

    fn try_reader<T>(
        &mut self,
        work: &mut impl FnMut(&mut dyn Reader) -> Result<T, OriginError>,
    ) -> Result<T, OriginError> {
        if self.reader.is_none() {
            self.reader = Some(self.origin.reader()?);
        }
        let result = work(self.reader.as_deref_mut().expect("opened above"));
        if result.as_ref().is_err_and(|error| error.fault != Fault::Rejected) {
            self.reader = None;
        }
        result
    }
}
