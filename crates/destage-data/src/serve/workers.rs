//! The origin's threads: one that writes, some that read.

use super::Event;
use crate::collection;
use crate::derived::Queries;
use crate::engine::{DOMAIN, FetchJob, Groups};
use crate::origins::{
    Applied, GroupRef, Origin, OriginError, ParkedGroup, Reader, Snapshot, WriteClaim, Writer,
};
use crate::schema::{Schema, TableId};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use destage_core::{BatchId, DomainId, Fault, Lsn};
use mio::Waker;
use std::sync::Arc;
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
        expected: Lsn,
        groups: Groups,
    },
    Park {
        lsn: Lsn,
        expected: Lsn,
        parked: Option<ParkedGroup>,
    },
    Unpark {
        parked: Vec<Lsn>,
        groups: Groups,
    },
    ListParked {
        request: u64,
    },
    /// The last one: everything is decided. Answered when it is done or has failed.
    Release {
        done: Sender<()>,
    },
}

/// The writing thread's state.
pub(super) struct Destager {
    pub(super) origin: Arc<dyn Origin>,
    pub(super) schema: Arc<Schema>,
    pub(super) writer: Option<Box<dyn Writer>>,
    pub(super) epoch: u64,
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
                self.show();
            }
            self.settle_doubt();
            let patience = if self.doubt.is_some() { DOUBT_EVERY } else { HEARTBEAT_EVERY };
            match jobs.recv_timeout(patience.saturating_sub(shown.elapsed())) {
                Ok(WriteJob::Apply { batch, expected, groups }) => {
                    let result = self.apply(expected, &groups);
                    self.outbox.send(Event::Destaged { batch, result });
                }
                Ok(WriteJob::Park { lsn, expected, parked }) => {
                    let claim = self.claim(expected);
                    let result = self.with_writer(|w| w.park(&claim, lsn, parked.as_ref()));
                    self.outbox.send(Event::Parked { lsn, result });
                }
                Ok(WriteJob::Unpark { parked, groups }) => self.unpark(parked, &groups),
                Ok(WriteJob::ListParked { request }) => {
                    let result = self.with_writer(|writer| writer.parked());
                    self.outbox.send(Event::ParkedListed { request, result });
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
        match self.with_writer(|writer| writer.heartbeat(epoch)) {
            Ok(watermarks) => self.outbox.send(Event::Shown { watermarks }),
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

    fn claim(&self, expected: Lsn) -> WriteClaim {
        WriteClaim {
            domain: DOMAIN,
            epoch: self.epoch,
            expected,
            unsafe_no_watermark: self.unsafe_no_watermark,
        }
    }

    fn apply(&mut self, expected: Lsn, groups: &Groups) -> Result<Applied, OriginError> {
        let claim = self.claim(expected);
        let schema = self.schema.clone();
        let refs: Vec<GroupRef<'_>> = groups.iter().collect();
        self.with_writer(|writer| writer.apply(&schema, &claim, &refs))
    }

    fn unpark(&mut self, parked: Vec<Lsn>, groups: &Groups) {
        let claim = self.claim(Lsn::ZERO);
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
        let claim = self.claim(Lsn::ZERO);
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
    watermarks: Vec<(DomainId, Lsn)>,
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
