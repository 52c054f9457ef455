//! Writes: what the ledger asks of a database; a batch takes two round trips.

use super::connection::{Connection, Texts};
use super::literal::push_text;
use super::query::{dml_sql, dml_value};
use super::statements::{ANY, SOME, Statement, push_bucket};
use super::tables::{self, WATERMARKS};
use crate::contract::{GroupRef, OriginError, WriteClaim};
use crate::dml::Parameter;
use crate::origins::bound::Bound;
use crate::origins::ledger::{
    self, Database, Dialect, End, Field, Part, Transaction, Value, apply_first, push_number,
};
use crate::plan::{Plan, Raw, Step};
use crate::schema::Schema;
use destage_core::Fault;
use mysql_async::Value as SqlValue;
use std::time::Duration;

pub(super) struct MysqlWriter {
    connection: Connection,
    /// Most groups in one transaction.
    transaction_groups: usize,
}

/// A part of a transaction.
enum Task<'a> {
    /// Sent together with others.
    Plain(Statement<'a>),
    /// Raw SQL with its parameters, sent alone.
    Raw(String, Vec<SqlValue>),
}

impl MysqlWriter {
    pub(super) fn new(
        mut connection: Connection,
        transaction_groups: usize,
    ) -> Result<Self, OriginError> {
        let server = connection.rows("look at the server", SERVER)?;
        let server = server.first().map(Vec::as_slice).unwrap_or_default();
        if text(server, 0) != "0" {
            let message =
                format!("{} is read-only, a replica perhaps; use the primary", connection.place());
            return Err(OriginError::new(Fault::Denied, message));
        }
        if text(server, 2) != "0" {
            let message = format!(
                "{} is read-only: tx_read_only is on for the server or this user, and Destage does not write against that. Have \
                 it reset (SET GLOBAL tx_read_only = 0)",
                connection.place()
            );
            return Err(OriginError::new(Fault::Denied, message));
        }
        if text(server, 1) != "1" {
            tracing::warn!(
                origin = connection.place(),
                "the server runs with innodb_flush_log_at_trx_commit = {}: it may lose what Destage \
                 has handed over; set it to 1",
                text(server, 1)
            );
        }
        tables::ensure(&mut connection)?;
        Ok(Self { connection, transaction_groups })
    }

    /// The statements of a plan.
    fn tasks<'p>(&self, schema: &'p Schema, plan: &Plan<'_>) -> Result<Vec<Task<'p>>, OriginError> {
        let mut tasks = Vec::new();
        let mut statements = Vec::new();
        for step in plan.steps() {
            match step {
                Step::Raw(raw) => tasks.push(raw_task(raw)?),
                Step::Bucket(bucket) => {
                    let table = schema.table(bucket.table);
                    let bytes_max = self.connection.packet_bytes_max();
                    push_bucket(&mut statements, table, bucket, bytes_max)?;
                    tasks.extend(statements.drain(..).map(Task::Plain));
                }
            }
        }
        Ok(tasks)
    }

    /// Everything of a transaction but its end.
    fn body(
        &mut self,
        transaction: &Transaction<'_>,
        tasks: &[Task<'_>],
    ) -> Result<End, OriginError> {
        let Transaction { what, watermarks, compares, .. } = transaction;
        let mut rest = tasks;
        let mut first = true;
        while first || !rest.is_empty() {
            if let (false, Some((Task::Raw(sql, parameters), later))) = (first, rest.split_first())
            {
                self.connection.execute(what, sql, parameters)?;
                rest = later;
                continue;
            }
            let mut script: Vec<&str> = Vec::new();
            if first {
                script.push("START TRANSACTION");
                script.extend(watermarks.iter().map(|statement| statement.sql.as_str()));
            }
            let mut bytes: usize = script.iter().map(|sql| sql.len() + 1).sum();
            let budget = self.connection.packet_bytes_max().min(SCRIPT_BYTES_MAX);
            let ours = script.len();
            let mut sent = Vec::new();
            for task in rest {
                let Task::Plain(statement) = task else { break };
                bytes += statement.sql.len() + 1;
                if bytes > budget && !script.is_empty() {
                    break;
                }
                script.push(&statement.sql);
                sent.push(statement);
            }
            let mut met = Vec::new();
            let done = self.connection.script_until(what, &script, &mut met);
            // What the others made of it says nothing if the watermark was elsewhere.
            let compared = met.iter().skip(1).take(watermarks.len());
            if first && *compares && compared.into_iter().any(|&rows| rows == 0) {
                return Ok(End::Moved);
            }
            done?;
            for (statement, &rows) in sent.iter().zip(&met[ours..]) {
                if let Some(missed) = statement.missed(rows) {
                    let place = self.connection.place();
                    let message = format!("failed to {what} at {place}: {missed}");
                    return Err(OriginError::new(Fault::Rejected, message));
                }
            }
            rest = &rest[sent.len()..];
            first = false;
        }
        Ok(End::Committed)
    }
}

impl Database for MysqlWriter {
    const DIALECT: Dialect = Dialect {
        push_value: |out, _, value| match value {
            Value::Null => out.push_str("NULL"),
            Value::Integer(number) => push_number(out, number),
            Value::Unsigned(number) => push_number(out, number),
            Value::Text(text) => push_text(out, text),
        },
        now: "utc_timestamp(6)",
        released: "'1970-01-01'",
        heartbeat_age: "timestampdiff(MICROSECOND, heartbeat, utc_timestamp(6)) / 1000000",
        owner_key: "id",
        domain_map: "domain_map",
        watermarks: WATERMARKS,
        insert_missing: ["INSERT IGNORE INTO", ""],
        returns: false,
    };

    fn place(&self) -> &str {
        self.connection.place()
    }

    fn timeout(&self) -> Duration {
        self.connection.timeout()
    }

    fn execute(&mut self, what: &str, statement: &ledger::Statement) -> Result<u64, OriginError> {
        self.connection.script(what, &[&statement.sql]).map(|met| met[0])
    }

    fn query(
        &mut self,
        what: &str,
        statement: &ledger::Statement,
        mut bound: Bound,
    ) -> Result<Vec<Vec<Field>>, OriginError> {
        let rows = self.connection.rows_within(what, &statement.sql, &mut bound)?;
        let text = |field: &Vec<u8>| String::from_utf8_lossy(field).into_owned();
        let fields = |row: &Texts| row.iter().map(|field| field.as_ref().map(text)).collect();
        Ok(rows.iter().map(fields).collect())
    }

    fn begin(&mut self, what: &str) -> Result<(), OriginError> {
        self.connection.script(what, &["START TRANSACTION"]).map(drop)
    }

    fn commit(&mut self, what: &str) -> Result<(), OriginError> {
        self.connection.script(what, &["COMMIT"]).map(drop)
    }

    fn roll_back(&mut self) {
        if let Err(error) = self.connection.script("roll back", &["ROLLBACK"]) {
            tracing::debug!(%error, "a transaction was left to the server");
        }
    }

    fn transact(&mut self, transaction: &Transaction<'_>) -> Result<End, OriginError> {
        let bytes_max = self.connection.packet_bytes_max();
        let mut tasks = Vec::new();
        let pieces = transaction.pieces.iter().map(|statement| (statement, ANY));
        let parked = transaction.parked.iter().map(|statement| (statement, SOME));
        for (statement, rows) in parked.chain(pieces) {
            let sql = statement.sql.clone();
            if sql.len() > bytes_max {
                let message = format!(
                    "failed to {} at {}: it takes {} bytes; raise the server's max_allowed_packet, which allows {bytes_max}",
                    transaction.what,
                    self.connection.place(),
                    sql.len()
                );
                return Err(OriginError::new(Fault::Denied, message));
            }
            tasks.push(Task::Plain(Statement { sql, rows, target: None }));
        }
        tasks.extend(self.tasks(transaction.schema, transaction.plan)?);
        let end = self.body(transaction, &tasks);
        let end = match end {
            Ok(End::Committed) => self.commit(transaction.what).map(|()| End::Committed),
            other => other,
        };
        if !matches!(end, Ok(End::Committed)) {
            self.roll_back();
        }
        end
    }

    /// A literal may be twice as long as its text, and the reason needs some room, too.
    fn piece_bytes_max(&self) -> usize {
        self.connection.packet_bytes_max() / 4
    }

    fn apply_some(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Part, OriginError> {
        let count = self.transaction_groups;
        apply_first(self, schema, claim, groups, count)
    }
}

fn raw_task<'p>(raw: &Raw<'_>) -> Result<Task<'p>, OriginError> {
    let statement = raw
        .dml
        .statement()
        .map_err(|why| OriginError::new(Fault::Rejected, format!("cannot run raw SQL: {why}")))?;
    let mut numbers = Vec::new();
    let sql = dml_sql(&statement, &mut numbers);
    let parameters: Vec<Parameter<'_>> = raw.dml.parameters().collect();
    let values = numbers.into_iter().map(|number| dml_value(&parameters[number]));
    Ok(Task::Raw(sql, values.collect()))
}

fn text(row: &[Option<Vec<u8>>], at: usize) -> String {
    let value = row.get(at).and_then(|value| value.as_deref());
    String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
}

const SERVER: &str =
    "SELECT @@global.read_only, @@global.innodb_flush_log_at_trx_commit, @@session.tx_read_only";
/// Statements sent at once: past this a round trip more costs nothing.
const SCRIPT_BYTES_MAX: usize = 4 << 20;
