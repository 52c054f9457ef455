//! One transaction that moves a domain's watermark and writes rows: what is sent, and what the answers mean.
//!
//! All of it up to the commit is sent at once; the row counts are checked before the commit is. A transaction may begin
//! while the one before it is still under way. It then writes first, waits for the other's end by its [`Marker`] and moves
//! the watermark after that, so that it can only be committed behind it. That wait is a lock of PostgreSQL's: if a
//! stranger's locks close a circle with it, the deadlock is found like any other.

use super::connection::{Session, pipelined};
use super::invalidation::OURS;
use super::wire::{Param, refs};
use crate::change::Op;
use crate::contract::verdict::missed;
use crate::origins::ledger::{self, Value};
use crate::schema::Table;
use std::fmt::Write;
use std::pin::Pin;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Statement};

/// A transaction, ready to be sent.
pub(super) struct Transaction<'a> {
    /// Whether triggers tell Destage of what others change.
    pub(super) has_triggers: bool,
    /// What moves the watermarks, or holds them.
    pub(super) watermarks: Vec<Step<'a>>,
    /// What is locked until the transaction ends, for the one behind it.
    pub(super) marker: Option<Marker>,
    /// The marker of the transaction before, if that may still be under way.
    pub(super) follows: Option<Marker>,
    /// What is written before the watermark is moved; empty unless it follows another.
    pub(super) early: Vec<Step<'a>>,
    pub(super) steps: Vec<Step<'a>>,
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

impl Step<'_> {
    /// A statement of the ledger, which must touch so many rows.
    pub(super) async fn of(
        session: &mut Session,
        statement: &ledger::Statement,
        rows: Option<u64>,
    ) -> Result<Self, Error> {
        let ty = |value: &Value| match value {
            Value::Null | Value::Integer(_) => Type::INT8,
            Value::Unsigned(_) | Value::Text(_) => Type::TEXT,
        };
        let types: Vec<Type> = statement.values.iter().map(ty).collect();
        let bytes = |value: &Value| match value {
            Value::Null => None,
            Value::Integer(number) => Some(number.to_be_bytes().to_vec()),
            Value::Unsigned(number) => Some(number.to_string().into_bytes()),
            // It has no place for this character.
            Value::Text(text) => Some(text.replace('\0', "\u{fffd}")).map(|text| {
                if session.lacks_characters { ascii(&text) } else { text }.into_bytes()
            }),
        };
        let params = statement.values.iter().map(|value| Param::scalar(bytes(value))).collect();
        let statement = session.statement(&statement.sql, &types).await?;
        Ok(Self { statement, params, rows, check_after: false, target: None })
    }

    pub(super) async fn run(&self, client: &Client) -> Result<u64, Error> {
        client.execute(&self.statement, &refs(&self.params)).await
    }
}

/// A text in ASCII, with other characters as JSON escapes them: so what is parked can be stored whatever its encoding, and
/// its payload means the same.
fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            out.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _infallible = write!(out, "\\u{unit:04x}");
        }
    }
    out
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

    /// Runs it to its end. `begun` is called once its marker is held. `check` checks the deferred constraints and defers
    /// them again.
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
        if self.has_triggers {
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
        for step in &self.watermarks {
            let test = if step.rows.is_some() { Test::Watermark } else { Test::Done };
            requests.push(test, step.run(client));
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
        self.push(Test::Rows(step), step.run(client));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ascii_is_escaped_as_json_escapes_it() {
        let text = "{\"v\":\"\u{e9}\u{1f600}\"}";
        assert_eq!(ascii(text), r#"{"v":"\u00e9\ud83d\ude00"}"#);
        let read = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap();
        assert_eq!(read(&ascii(text)), read(text));
    }
}
