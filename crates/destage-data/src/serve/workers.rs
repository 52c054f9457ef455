//! The origin's threads: one that writes, some that read.

use super::Event;
use super::Outbox;
use super::slow::Slow;
use crate::cells;
use crate::collection;
use crate::derived::{Queries, Query};
use crate::engine::{DOMAIN, FetchJob, Groups};
use crate::origins::{
    ALL_DOMAINS, Applied, EndedAsk, GroupRef, Mark, NextKeys, Origin, OriginError, ParkedGroup,
    Reader, Snapshot, Stage, Watermarks, WriteClaim, Writer,
};
use crate::schema::{Schema, TableId};
use destage_core::{BatchId, Fault, Lsn};
use destage_runtime::handoff::{Receiver, Sender};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

/// How often an owner shows itself at the origin.
pub(super) const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);

/// After a refusal a connection that has been open for so long is replaced.
const DENIED_REOPEN_AFTER: Duration = Duration::from_secs(1);

/// How often an outcome in doubt is looked for.
const DOUBT_EVERY: Duration = Duration::from_millis(200);

/// Holds the first domain's watermark where it is, which is enough to shut out another owner.
const HOLD: [Mark; 1] = [Mark { domain: DOMAIN, expected: Lsn::ZERO, upto: Lsn::ZERO }];

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
        done: Sender<Result<(), OriginError>>,
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
    pub(super) parked_bytes_max: u64,
    pub(super) confirmed: Arc<Confirmed>,
    pub(super) unsafe_no_watermark: bool,
    pub(super) outbox: Outbox,
    /// Parked groups were to be taken back, and nobody knows whether they were: which, and what failed.
    pub(super) doubt: Option<(Vec<Lsn>, Groups, OriginError)>,
    /// Raw SQL that took too long.
    pub(super) slow: Slow,
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
                    let result = self.park(&marks, parked.as_ref());
                    self.outbox.send(Event::Parked { lsn, result });
                }
                Ok(WriteJob::Unpark { parked, groups }) => self.unpark(parked, groups),
                Ok(WriteJob::ListParked { request }) => {
                    let bytes_max = self.parked_bytes_max;
                    let result = self.with_writer(|writer| writer.parked(bytes_max));
                    self.outbox.send(Event::ParkedListed { request, result });
                }
                Ok(WriteJob::MarkAll { expected, upto, floors }) => {
                    let mark = Mark { domain: ALL_DOMAINS, expected, upto };
                    let marks = [mark];
                    let claim = self.claim(&marks);
                    let result = self.with_writer(|w| w.mark_all(&claim, &floors));
                    self.outbox.send(Event::MarkedAll { upto, result });
                }
                Ok(WriteJob::Release { done }) => {
                    // The server waits a limited time only.
                    let _ = done.send(self.release());
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
            Err(error) if error.fault == Fault::Failed => self.outbox.send(Event::Changed(error)),
            // The next batch tells what is wrong.
            Err(_) => {}
        }
    }

    /// Lets another process have the origin at once. Without it, that one waits until the heartbeat is old.
    fn release(&mut self) -> Result<(), OriginError> {
        let epoch = self.epoch;
        self.with_writer(|writer| writer.release(epoch)).inspect_err(|error| {
            tracing::warn!(
                error = error.message,
                "the origin was not told that this process has ended"
            );
        })
    }

    fn claim<'m>(&self, marks: &'m [Mark]) -> WriteClaim<'m> {
        WriteClaim { epoch: self.epoch, marks, unsafe_no_watermark: self.unsafe_no_watermark }
    }

    fn apply(&mut self, marks: &[Mark], groups: &Groups) -> Result<Applied, OriginError> {
        let refs: Vec<GroupRef<'_>> = groups.iter().collect();
        let batch = refs[0].lsn;
        if let Some(error) = self.slow.refusal(batch, Instant::now()) {
            return Err(error);
        }
        let can_split = marks.len() == 1;
        let size = if can_split && self.slow.is_split(batch) { 1 } else { refs.len() };
        let schema = self.schema.clone();
        let mut sum = Applied::default();
        let mut expected = marks[0].expected;
        let mut shown = Instant::now();
        for part in refs.chunks(size) {
            let applied = self.apply_part(marks, expected, part).map_err(|error| {
                self.slow.failed(&schema, (batch, part), can_split, error, Instant::now())
            })?;
            sum.changes += applied.changes;
            sum.rows += applied.rows;
            sum.kept += applied.kept;
            expected = part.last().map_or(expected, |last| last.lsn);
            if shown.elapsed() >= HEARTBEAT_EVERY {
                shown = Instant::now();
                if self.is_first {
                    self.show();
                }
            }
        }
        self.slow.landed(batch);
        self.confirmed.reached(marks);
        Ok(sum)
    }

    /// Applies groups in one go; those of one domain where the origin stands at `expected`.
    fn apply_part(
        &mut self,
        marks: &[Mark],
        expected: Lsn,
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let part;
        let marks = match marks {
            [only] => {
                let upto = groups.last().map_or(only.upto, |last| last.lsn);
                part = [Mark { expected, upto, ..*only }];
                &part
            }
            several => several,
        };
        let claim = self.claim(marks);
        let schema = self.schema.clone();
        self.with_writer(|writer| writer.apply(&schema, &claim, groups))
    }

    fn park(&mut self, marks: &[Mark], parked: Option<&ParkedGroup>) -> Result<(), OriginError> {
        let claim = self.claim(marks);
        self.with_writer(|writer| writer.park(&claim, parked))?;
        self.confirmed.reached(marks);
        Ok(())
    }

    fn unpark(&mut self, parked: Vec<Lsn>, groups: Groups) {
        let claim = self.claim(&HOLD);
        let schema = self.schema.clone();
        let refs: Vec<GroupRef<'_>> = groups.iter().collect();
        let mut doubt = None;
        // Without a connection nothing can have been done.
        let is_connected = self.with_writer(|_| Ok(()));
        let result = is_connected.and_then(|()| {
            let result = self.with_writer(|writer| writer.unpark(&schema, &claim, &parked, &refs));
            if let Err(error) = &result
                && error.fault == Fault::Unavailable
            {
                doubt = Some(error.clone());
            }
            result
        });
        self.doubt = doubt.map(|error| (parked, groups, error));
        if self.doubt.is_none() {
            self.outbox.send(Event::Unparked { result });
        }
    }

    /// Looks whether groups that were to be taken back are still parked.
    fn settle_doubt(&mut self) {
        let Some((parked, groups, error)) = self.doubt.take() else { return };
        let claim = self.claim(&HOLD);
        let schema = self.schema.clone();
        let refs: Vec<GroupRef<'_>> = groups.iter().collect();
        let done = self.with_writer(|writer| writer.settle_unpark(&schema, &claim, &parked, &refs));
        let result = match done {
            Ok(true) => Ok(Applied::default()),
            Ok(false) => Err(error),
            Err(again) if again.fault == Fault::Fenced => Err(again),
            Err(_) => return self.doubt = Some((parked, groups, error)),
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
    Ended { request: u64, ask: EndedAsk },
    NextKeys { request: u64, table: TableId, column: usize, count: u32 },
    Holders { request: u64, questions: Vec<(TableId, usize, Box<[u8]>)> },
    Query { job: u64, query: usize, values: Box<[u8]>, until: Instant },
}

/// A reading thread's state.
pub(super) struct Fetcher {
    pub(super) origin: Arc<dyn Origin>,
    pub(super) schema: Arc<Schema>,
    pub(super) queries: Arc<Queries>,
    /// And when it was opened.
    pub(super) reader: Option<(Box<dyn Reader>, Instant)>,
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
            ReadJob::Ended { request, ask } => {
                let result = self.with_reader(|reader| reader.ended(&schema, &ask));
                Event::Ended { request, result }
            }
            ReadJob::NextKeys { request, table, column, count } => {
                let table = schema.table(table);
                let result = self.with_reader(|reader| {
                    if table.generated_key == Some(column) {
                        reader.next_keys(table, count)
                    } else {
                        let numbers = reader.next_numbers(table, column, count);
                        numbers.map(|keys| NextKeys { keys, are_new: false })
                    }
                });
                Event::KeysReserved { request, result }
            }
            ReadJob::Holders { request, questions } => {
                let result = self.with_reader(|reader| {
                    let found = questions.iter().map(|(table, unique, values)| {
                        let table = schema.table(*table);
                        let columns = table.uniques[*unique].columns.iter().copied();
                        let equal: Vec<_> = columns.zip(cells::Reader::new(values)).collect();
                        reader.holder(table, &equal)
                    });
                    found.collect()
                });
                Event::HoldersFound { request, result }
            }
            ReadJob::Query { job, query, values, until } => {
                let queries = self.queries.clone();
                let query = queries.get(query);
                let result = self.with_reader(|reader| {
                    // The time may be over, the more so when it is tried once more.
                    let left = until.checked_duration_since(Instant::now());
                    let left = left.filter(|left| !left.is_zero()).ok_or_else(|| too_late(query));
                    reader.query(query, &values, left?)
                });
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
            let opened = self.origin.reader().map_err(|error| error.at(Stage::Connection))?;
            self.reader = Some((opened, Instant::now()));
        }
        let (reader, opened) = self.reader.as_mut().expect("opened above");
        let result = work(&mut **reader);
        let is_kept = match result.as_ref().map_err(|error| error.fault) {
            Ok(_) | Err(Fault::Rejected) => true,
            // Some rights are a new session's only; but nobody is to have one opened for each refusal.
            Err(Fault::Denied) => opened.elapsed() < DENIED_REOPEN_AFTER,
            Err(_) => false,
        };
        if !is_kept {
            self.reader = None;
        }
        result
    }
}

fn too_late(query: &Query) -> OriginError {
    let message = format!("the query of {} was not begun in time", query.key);
    OriginError::new(Fault::Unavailable, message).late()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origins::Keys;
    use crate::schema::Table;
    use destage_runtime::clock::Clock;
    use destage_runtime::shell::Shell;
    use std::sync::atomic::AtomicUsize;

    /// Denies every read, and counts connections.
    #[derive(Default)]
    struct Denying(Arc<AtomicUsize>);

    impl Origin for Denying {
        fn describe(&self) -> String {
            "denying".into()
        }

        fn schema(&self) -> Result<Schema, OriginError> {
            Ok(Schema::default())
        }

        fn reader(&self) -> Result<Box<dyn Reader>, OriginError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(Self::default()))
        }

        fn writer(&self) -> Result<Box<dyn Writer>, OriginError> {
            Err(denied())
        }
    }

    impl Reader for Denying {
        fn fetch(&mut self, _: &Table, _: &[&[u8]]) -> Result<Snapshot, OriginError> {
            Err(denied())
        }

        fn scan(
            &mut self,
            _: &Table,
            _: Option<&[u8]>,
            _: usize,
        ) -> Result<(Keys, Watermarks), OriginError> {
            Err(denied())
        }

        fn next_keys(&mut self, _: &Table, _: u32) -> Result<NextKeys, OriginError> {
            Err(denied())
        }
    }

    fn denied() -> OriginError {
        OriginError::new(Fault::Denied, "permission denied")
    }

    #[test]
    fn refused_reads_open_no_connection_each() {
        const READS: usize = 1_000;
        let opened = Arc::new(AtomicUsize::new(0));
        let shell = Shell::new(Clock::new()).unwrap();
        let mut fetcher = Fetcher {
            origin: Arc::new(Denying(opened.clone())),
            schema: Arc::default(),
            queries: Arc::default(),
            reader: None,
            outbox: shell.outbox().clone(),
        };
        let table = Table::named("t".into(), "t".into());
        let began = Instant::now();
        for _ in 0..READS {
            let error = fetcher.with_reader(|reader| reader.fetch(&table, &[])).unwrap_err();
            assert_eq!(error.fault, Fault::Denied);
        }
        let seconds = began.elapsed().as_secs() as usize;
        let opened = opened.load(Ordering::Relaxed);
        assert!(opened <= 1 + seconds, "{opened} connections in {seconds} s");
    }
}
