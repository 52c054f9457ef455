//! A batch as several transactions, one behind the other, of which two may be under way at once.
//!
//! A backend of PostgreSQL uses one core and rests while its commit is synced; a large batch is therefore cut into parts
//! that take turns on several connections. What is seen at the origin is the same as if each began after the one before was
//! committed:
//!
//! - each part moves the watermark from the last group of the part before, so none is committed before that one is;
//! - a part begins early only if all of it and of the part before commutes ([`Plan::is_free`]), and the rows that both write
//!   are left until the other has ended. So neither waits for a row of the other, and nothing is written twice out of turn;
//! - what is not of that kind waits for its turn.
//!
//! Left to the caller: what to do with the rest when a part fails.

use super::connection::{Connection, Session, pipelined, run_all};
use super::query::dml_sql;
use super::statements::{bucket_params, bucket_sql};
use super::transaction::{End, Marker, Step, Transaction};
use super::wire::Param;
use super::writer::PostgresWriter;
use crate::contract::{Applied, GroupRef, Mark, OriginError, WriteClaim};
use crate::origins::ledger::{Database, applied};
use crate::plan::{self, Bucket, Plan, plan};
use crate::schema::Schema;
use destage_core::{Fault, Lsn};
use std::cell::{OnceCell, RefCell};
use std::time::Instant;
use tokio::sync::watch;
use tokio_postgres::Error;

/// Most connections that are used at once.
pub(super) const CONNECTIONS_MAX: usize = 2;

/// What the parts of a batch have in common.
pub(super) struct Batch<'b> {
    pub(super) schema: &'b Schema,
    pub(super) claim: &'b WriteClaim<'b>,
    /// Its only one.
    pub(super) mark: Mark,
    /// Checks the deferred constraints and defers them again.
    pub(super) check: &'b str,
    /// The first number of the parts' markers.
    pub(super) marker: u32,
    /// Whether triggers tell Destage of what others change.
    pub(super) has_triggers: bool,
}

/// How far it came.
pub(super) struct Outcome {
    /// Groups at the origin, from the first on.
    pub(super) groups: usize,
    pub(super) applied: Applied,
    /// Why it ended, if not because everything is there or because it took long.
    pub(super) failure: Option<Failure>,
}

/// Why a part is not at the origin.
pub(super) enum Failure {
    /// The watermark was not where it was expected.
    Moved,
    Database(String, Error),
    Other(OriginError),
}

impl From<OriginError> for Failure {
    fn from(error: OriginError) -> Self {
        Self::Other(error)
    }
}

impl Batch<'_> {
    /// Applies the groups in order, at most `size` in one transaction. After a quarter of the connections' time for an
    /// operation no further part is begun, so that the caller can show itself.
    ///
    /// # Errors
    /// The connections are broken, or were given up since it took too long; parts may have landed.
    pub(super) fn apply(
        &self,
        connections: &mut [Connection],
        groups: &[GroupRef<'_>],
        size: usize,
    ) -> Result<Outcome, OriginError> {
        let count = groups.len().div_ceil(size.max(1)).max(1);
        let size = groups.len().div_ceil(count).max(1);
        let parts: Vec<Part<'_>> = groups.chunks(size).map(Part::new).collect();
        let run = Run {
            batch: self,
            until: Instant::now() + connections[0].timeout() / PATIENCE,
            connections: connections.len(),
            parts: &parts,
            place: connections[0].place().to_owned(),
            progress: watch::Sender::default(),
            failure: RefCell::default(),
        };
        run_all(connections, "apply a batch", async |sessions| {
            let each = sessions.into_iter().enumerate();
            pipelined(
                each.map(|(at, session)| Box::pin(run.connection(session, at)) as _).collect(),
            )
            .await
        })?;
        Ok(run.outcome())
    }
}

/// Consecutive groups that go to the origin in one transaction.
struct Part<'p> {
    groups: &'p [GroupRef<'p>],
    plan: OnceCell<Plan<'p>>,
}

/// The parts under way.
struct Run<'r, 'p> {
    batch: &'r Batch<'r>,
    parts: &'r [Part<'p>],
    connections: usize,
    place: String,
    /// No part begins later.
    until: Instant,
    progress: watch::Sender<Progress>,
    /// Of the first part that failed.
    failure: RefCell<Option<(usize, Failure)>>,
}

#[derive(Default)]
struct Progress {
    /// Parts whose markers are or were held.
    begun: usize,
    /// Parts that are committed.
    committed: usize,
    /// No other part may begin.
    over: bool,
}

impl Progress {
    /// A part is committed, and so are those before it. Of one of these the answer may be read later.
    fn commit(&mut self, at: usize) {
        self.committed = self.committed.max(at + 1);
    }
}

impl<'r, 'p> Run<'r, 'p> {
    /// Every so manyth part, on one connection.
    async fn connection(&self, session: &mut Session, first: usize) {
        for at in (first..self.parts.len()).step_by(self.connections) {
            // Lets the runtime send what the other connections have queued, before this thread plans and encodes.
            tokio::task::yield_now().await;
            match self.part(session, at).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(failure) => return self.failed(at, failure),
            }
        }
    }

    /// Applies one part; false if it was not to begin any more.
    async fn part(&self, session: &mut Session, at: usize) -> Result<bool, Failure> {
        let overlaps = at > 0 && self.plan(at - 1)?.is_free() && self.plan(at)?.is_free();
        let mut transaction = self.transaction(session, at, overlaps).await?;
        let turn = |p: &Progress| p.over || p.committed >= at || (overlaps && p.begun >= at);
        let mut progress = self.progress.subscribe();
        let is_committed = match progress.wait_for(turn).await {
            Ok(progress) if !progress.over => progress.committed >= at,
            _ => return Ok(false),
        };
        if at > 0 && Instant::now() >= self.until {
            self.progress.send_modify(|progress| progress.over = true);
            return Ok(false);
        }
        if is_committed {
            transaction.follow_nothing();
        }
        let begun = || self.progress.send_modify(|progress| progress.begun = at + 1);
        let end = transaction.run(&session.client, self.batch.check, begun).await;
        match end.map_err(|error| self.database(error))? {
            End::Committed => {
                self.progress.send_modify(|progress| progress.commit(at));
                Ok(true)
            }
            End::Moved => Err(Failure::Moved),
            End::Failed(error) => Err(self.database(error)),
            End::Missed(message) => {
                let message = format!("failed to apply a batch at {}: {message}", self.place);
                Err(OriginError::new(Fault::Rejected, message).into())
            }
        }
    }

    fn database(&self, error: Error) -> Failure {
        Failure::Database("apply a batch".to_owned(), error)
    }

    fn failed(&self, at: usize, failure: Failure) {
        self.progress.send_modify(|progress| progress.over = true);
        let mut first = self.failure.borrow_mut();
        // A part that fails makes those behind it fail, which says nothing about them.
        if first.as_ref().is_none_or(|(other, _)| at < *other) {
            *first = Some((at, failure));
        }
    }

    fn plan(&self, at: usize) -> Result<&'r Plan<'p>, OriginError> {
        let part = &self.parts[at];
        if let Some(plan) = part.plan.get() {
            return Ok(plan);
        }
        let groups = part.groups.iter().map(|group| group.bytes);
        let new = plan(self.batch.schema, groups)
            .map_err(|error| OriginError::new(Fault::Failed, error))?;
        Ok(part.plan.get_or_init(|| new))
    }

    /// Prepares and encodes a part.
    async fn transaction(
        &self,
        session: &mut Session,
        at: usize,
        overlaps: bool,
    ) -> Result<Transaction<'r>, Failure> {
        let Batch { claim, mark, .. } = self.batch;
        let mark = Mark { expected: self.expected(at), upto: self.parts[at].last(), ..*mark };
        let statement = PostgresWriter::DIALECT.compare_and_set(claim, &mark);
        let rows = (!claim.unsafe_no_watermark).then_some(1);
        let moves = Step::of(session, &statement, rows).await;
        let moves =
            moves.map_err(|error| Failure::Database("move the watermark".to_owned(), error))?;
        let is_overlapped = self.connections > 1 && at + 1 < self.parts.len();
        let mut transaction = Transaction {
            has_triggers: self.batch.has_triggers,
            watermarks: vec![moves],
            marker: is_overlapped.then(|| self.marker(at)),
            follows: overlaps.then(|| self.marker(at - 1)),
            early: Vec::new(),
            steps: Vec::new(),
        };
        for planned in self.plan(at)?.steps() {
            let bucket = match planned {
                plan::Step::Bucket(bucket) => bucket,
                // With it nothing overlaps, so there is nothing early.
                plan::Step::Raw(raw) => {
                    transaction.steps.push(raw_step(session, raw).await?);
                    continue;
                }
            };
            let (early, rest) = self.rows(at, overlaps, bucket);
            if !early.is_empty() {
                transaction.early.push(self.step(session, bucket, &early).await?);
            }
            if !rest.is_empty() {
                transaction.steps.push(self.step(session, bucket, &rest).await?);
            }
        }
        Ok(transaction)
    }

    /// The bucket's rows that may be written while earlier parts are under way, and the others.
    fn rows(&self, at: usize, overlaps: bool, bucket: &Bucket<'_>) -> (Vec<usize>, Vec<usize>) {
        if !overlaps {
            return (Vec::new(), (0..bucket.len()).collect());
        }
        let before = &self.parts[(at + 1).saturating_sub(self.connections)..at];
        let plans: Vec<_> = before.iter().filter_map(|part| part.plan.get()).collect();
        (0..bucket.len())
            .partition(|&row| !plans.iter().any(|plan| plan.writes(bucket.table, bucket.key(row))))
    }

    async fn step(
        &self,
        session: &mut Session,
        bucket: &Bucket<'_>,
        rows: &[usize],
    ) -> Result<Step<'r>, Failure> {
        step(session, self.batch.schema, bucket, rows).await
    }

    /// Where the watermark stands before a part.
    fn expected(&self, at: usize) -> Lsn {
        match at.checked_sub(1) {
            Some(before) => self.parts[before].last(),
            None => self.batch.mark.expected,
        }
    }

    /// One is held by the part itself, one by whoever waits for the part before: with one more than there are connections
    /// none is taken twice. Those of several ordering domains are apart: their parts do not wait for one another.
    fn marker(&self, at: usize) -> Marker {
        const MARKERS: usize = CONNECTIONS_MAX + 1;
        let domain = usize::from(self.batch.mark.domain.0);
        Marker(self.batch.marker, domain * MARKERS + at % MARKERS)
    }

    fn outcome(self) -> Outcome {
        let committed = self.progress.borrow().committed;
        let mut outcome = Outcome { groups: 0, applied: Applied::default(), failure: None };
        for part in &self.parts[..committed] {
            outcome.groups += part.groups.len();
            let plan = part.plan.get().expect("what is committed was planned");
            let part = applied(plan);
            outcome.applied.changes += part.changes;
            outcome.applied.rows += part.rows;
        }
        outcome.failure = self.failure.into_inner().map(|(_, failure)| failure);
        outcome
    }
}

impl<'p> Part<'p> {
    fn new(groups: &'p [GroupRef<'p>]) -> Self {
        Self { groups, plan: OnceCell::new() }
    }

    fn last(&self) -> Lsn {
        self.groups.last().expect("a part holds groups").lsn
    }
}

/// The statement that writes some rows of a bucket.
pub(super) async fn step<'s>(
    session: &mut Session,
    schema: &'s Schema,
    bucket: &Bucket<'_>,
    rows: &[usize],
) -> Result<Step<'s>, Failure> {
    let table = schema.table(bucket.table);
    let (sql, types) = bucket_sql(table, bucket);
    let statement = session
        .statement(&sql, &types)
        .await
        .map_err(|error| Failure::Database(format!("prepare to write {}", table.name), error))?;
    Ok(Step {
        statement,
        params: bucket_params(table, bucket, rows)?,
        rows: bucket.meets_all(table).then_some(rows.len() as u64),
        check_after: bucket.check_after,
        target: Some((table, bucket.op)),
    })
}

/// Raw SQL, whose parameters have the types that the server finds for them.
pub(super) async fn raw_step<'s>(
    session: &mut Session,
    raw: &plan::Raw<'_>,
) -> Result<Step<'s>, Failure> {
    let sql = raw
        .dml
        .statement()
        .map_err(|why| OriginError::new(Fault::Rejected, format!("cannot run raw SQL: {why}")))?;
    let statement = session.statement(&dml_sql(&sql), &[]).await;
    let statement =
        statement.map_err(|error| Failure::Database("prepare raw SQL".to_owned(), error))?;
    let params = raw.dml.parameters().map(Param::raw).collect();
    Ok(Step { statement, params, rows: None, check_after: raw.check_after, target: None })
}

/// The part of the time for an operation in which parts may begin.
const PATIENCE: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_read_late_takes_nothing_back() {
        let mut progress = Progress::default();
        progress.commit(1);
        progress.commit(0);
        assert_eq!(progress.committed, 2);
    }
}
