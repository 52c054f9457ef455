//! One transaction that moves a domain's watermark and writes rows: what is sent, and what the answers mean.
//!
//! All of it up to the commit is sent at once; the row counts are checked before the commit is. A transaction may begin while
//! the one before it is still under way. It then writes first, waits for the other's end by its [`Marker`] and moves the
//! watermark after that, so that it can only be committed behind it. That wait is a lock of PostgreSQL's: if a stranger's
//! locks close a circle with it, the deadlock is found like any other.

use super::connection::{Session, pipelined};
use super::invalidation::OURS;
use super::wire::{Param, refs};
use crate::change::Op;
use crate::contract::WriteClaim;
use crate::origins::ledger::{missed, signed};
use crate::schema::Table;
use destage_core::Lsn;
use std::pin::Pin;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Statement};

/// A transaction, ready to be sent.
pub(super) struct Transaction<'a> {
    /// Whether triggers tell Destage of what others change.
    pub(super) is_told_apart: bool,
    /// Of each domain, all compared alike.
    pub(super) cas: Vec<Cas>,
    /// What is locked until the transaction ends, for the one behind it.
    pub(super) marker: Option<Marker>,
    /// The marker of the transaction before, if that may still be under way.
    pub(super) follows: Option<Marker>,
    /// What is written before the watermark is moved; empty unless it follows another.
    pub(super) early: Vec<Step<'a>>,
    pub(super) steps: Vec<Step<'a>>,
}

/// The compare-and-set of a watermark.
pub(super) struct Cas {
    statement: Statement,
    domain: i32,
    /// The new number, the expected one, our epoch.
    numbers: [i64; 3],
    compares: bool,
}

/// An advisory lock by its two numbers: the object id of our watermark table, so that no other user of the database means
/// the same, and a small one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marker(pub(super) u32, pub(super) usize);

/// One statement of a transaction.
pub(super) struct Step<'a> {
    pub(super) statement: Statement,
    pub(super) params: Vec<Param>,
    /// How many rows it must touch, if that is known.
    pub(super) rows: Option<u64>,
    pub(super) check_after: bool,
    pub(super) target: Option<(&'a Table, Op)>,
}

/// How a transaction ended. Unless it is committed, nothing of it is left.
pub(super) enum End {
    Committed,
    /// The watermark was not where it was expected.
    Moved,
    Failed(Error),
    /// A statement did not touch its rows exactly.
    Missed(String),
}

impl Cas {
    /// The compare-and-set from the claim's number to `upto`.
    pub(super) async fn prepare(
        session: &mut Session,
        claim: &WriteClaim,
        upto: Lsn,
    ) -> Result<Self, Error> {
        let compares = !claim.unsafe_no_watermark;
        let statement = if compares {
            let types = [Type::INT4, Type::INT8, Type::INT8, Type::INT8];
            session.statement(COMPARE_AND_SET, &types).await?
        } else {
            session.statement(SET, &[Type::INT4, Type::INT8]).await?
        };
        Ok(Self {
            statement,
            domain: i32::from(claim.domain.0),
            numbers: [signed(upto.0), signed(claim.expected.0), signed(claim.epoch)],
            compares,
        })
    }

    /// Holds the watermark where it is, if the claim's owner still is the owner.
    pub(super) async fn hold(session: &mut Session, claim: &WriteClaim) -> Result<Self, Error> {
        let types = [Type::INT4, Type::INT8, Type::INT8, Type::INT8];
        Ok(Self {
            statement: session.statement(HOLD, &types).await?,
            domain: i32::from(claim.domain.0),
            numbers: [0, 0, signed(claim.epoch)],
            compares: true,
        })
    }

    async fn run(&self, client: &Client) -> Result<u64, Error> {
        let [upto, expected, epoch] = &self.numbers;
        if self.compares {
            client.execute(&self.statement, &[&self.domain, upto, expected, epoch]).await
        } else {
            client.execute(&self.statement, &[&self.domain, upto]).await
        }
    }
}

impl Marker {
    fn lock(self) -> String {
        format!("SELECT pg_advisory_xact_lock({}, {})", self.0.cast_signed(), self.1)
    }

    /// Waits until no other transaction holds it.
    fn wait(self) -> String {
        format!("SELECT pg_advisory_xact_lock_shared({}, {})", self.0.cast_signed(), self.1)
    }
}

impl Transaction<'_> {
    /// The transaction before has ended: it need not be waited for.
    pub(super) fn follow_nothing(&mut self) {
        self.follows = None;
        self.steps.splice(0..0, self.early.drain(..));
    }

    /// Runs it to its end. `begun` is called once its marker is held. `check` checks the deferred constraints and defers them
    /// again.
    ///
    /// # Errors
    /// The outcome is unknown.
    pub(super) async fn run(
        &self,
        client: &Client,
        check: &str,
        begun: impl FnOnce(),
    ) -> Result<End, Error> {
        let mut begin = "BEGIN".to_owned();
        if self.is_told_apart {
            begin.push_str(&format!("; {OURS}"));
        }
        if let Some(marker) = self.marker {
            begin.push_str(&format!("; {}", marker.lock()));
        }
        let wait = self.follows.map(Marker::wait).unwrap_or_default();
        let (tests, requests) = self.requests(client, [&begin, &wait, check], begun);
        match verdict(&tests, pipelined(requests).await) {
            End::Committed => client.batch_execute("COMMIT").await.map(|()| End::Committed),
            other => client.batch_execute("ROLLBACK").await.map(|()| other),
        }
    }

    /// What is sent, in order, and what each answer must be.
    fn requests<'r>(
        &'r self,
        client: &'r Client,
        [begin, wait, check]: [&'r str; 3],
        begun: impl FnOnce() + 'r,
    ) -> (Vec<Test<'r>>, Vec<Request<'r>>) {
        let mut requests = Requests { client, check, tests: Vec::new(), futures: Vec::new() };
        requests.push(Test::Done, async move {
            client.batch_execute(begin).await?;
            begun();
            Ok(0)
        });
        self.early.iter().for_each(|step| requests.step(step));
        if self.follows.is_some() {
            requests.simple(wait);
        }
        for cas in &self.cas {
            let test = if cas.compares { Test::Watermark } else { Test::Done };
            requests.push(test, cas.run(client));
        }
        self.steps.iter().for_each(|step| requests.step(step));
        (requests.tests, requests.futures)
    }
}

type Request<'r> = Pin<Box<dyn Future<Output = Result<u64, Error>> + 'r>>;

/// What an answer must be.
enum Test<'r> {
    Done,
    /// One row.
    Watermark,
    Rows(&'r Step<'r>),
}

struct Requests<'r> {
    client: &'r Client,
    check: &'r str,
    tests: Vec<Test<'r>>,
    futures: Vec<Request<'r>>,
}

impl<'r> Requests<'r> {
    fn push(&mut self, test: Test<'r>, request: impl Future<Output = Result<u64, Error>> + 'r) {
        self.tests.push(test);
        self.futures.push(Box::pin(request));
    }

    fn simple(&mut self, sql: &'r str) {
        let client = self.client;
        self.push(Test::Done, async move { client.batch_execute(sql).await.map(|()| 0) });
    }

    fn step(&mut self, step: &'r Step<'_>) {
        let client = self.client;
        self.push(Test::Rows(step), async move {
            client.execute(&step.statement, &refs(&step.params)).await
        });
        if step.check_after {
            self.simple(self.check);
        }
    }
}

/// The first answer that is not as it must be decides.
fn verdict(tests: &[Test<'_>], results: Vec<Result<u64, Error>>) -> End {
    for (test, result) in tests.iter().zip(results) {
        match (test, result) {
            (_, Err(error)) => return End::Failed(error),
            (Test::Watermark, Ok(0)) => return End::Moved,
            (Test::Rows(step), Ok(rows)) if step.rows.is_some_and(|expected| expected != rows) => {
                return End::Missed(missed(step.target, step.rows.unwrap_or(rows), rows));
            }
            (_, Ok(_)) => {}
        }
    }
    End::Committed
}

const COMPARE_AND_SET: &str =
    "UPDATE destage_watermark SET seq = $2 WHERE domain = $1 AND seq = $3 AND epoch = $4";

/// With the same parameters, of which the first two numbers are equal.
const HOLD: &str =
    "UPDATE destage_watermark SET seq = seq + $2 - $3 WHERE domain = $1 AND epoch = $4";

/// For tests of what the comparison is good for.
const SET: &str = "UPDATE destage_watermark SET seq = $2 WHERE domain = $1";
