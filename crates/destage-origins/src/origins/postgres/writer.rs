//! Writes: what the ledger asks of a database, and batches in parts.

use super::connection::{Bounded, Connection};
use super::parts::{Batch, CONNECTIONS_MAX, Failure, Outcome, raw_step, step};
use super::server;
use super::settings::Settings;
use super::tables::{self, WATERMARKS};
use super::transaction::{End as Ended, Step, Transaction as Requests};
use super::wire::refs;
use crate::contract::{GroupRef, OriginError, WriteClaim};
use crate::origins::bound::Bound;
use crate::origins::ledger::{
    Database, Dialect, End, Field, Part, Statement, Transaction, Value, push_number,
};
use crate::plan;
use crate::schema::Schema;
use destage_core::Fault;
use std::time::{Duration, Instant};
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};

pub(super) struct PostgresWriter {
    settings: Settings,
    /// The first one does everything but the further parts of large batches.
    connections: Vec<Connection>,
    /// Checks the deferred constraints and defers them again.
    check_deferred: String,
    /// The object id of the watermark table.
    marker: u32,
    /// Whether triggers tell Destage of what others change.
    has_triggers: bool,
    /// Nothing has been applied since the last failure: one transaction at a time, so that whatever two of them did to one
    /// another cannot go on.
    careful: bool,
    /// Not before this time, since the server refused another connection.
    more_at: Option<Instant>,
}

impl PostgresWriter {
    pub(super) fn new(mut connection: Connection, settings: Settings) -> Result<Self, OriginError> {
        let has_triggers = server::look(&mut connection)?;
        tables::ensure(&mut connection)?;
        connection.prefer_indexes(true)?;
        let marker = connection.run("look for the watermarks", async |client| {
            client.query_one("SELECT 'destage_watermark'::regclass::oid", &[]).await?.try_get(0)
        })?;
        let check_deferred = server::check_deferred(&mut connection)?;
        let connections = vec![connection];
        Ok(Self {
            settings,
            connections,
            check_deferred,
            marker,
            has_triggers,
            careful: true,
            more_at: None,
        })
    }

    /// Looks at the tables again; whether anything is other than it was.
    fn is_brought_up_to_date(&mut self) -> bool {
        let mut is_other = false;
        self.connections.iter_mut().for_each(|connection| is_other |= connection.take_outgrown());
        if !self.connections[0].is_closed()
            && let Ok(check) = server::check_deferred(&mut self.connections[0])
        {
            is_other |= check != self.check_deferred;
            self.check_deferred = check;
        }
        is_other
    }

    fn connection(&mut self) -> &mut Connection {
        &mut self.connections[0]
    }

    /// Opens the connections that are missing; how many there are then.
    fn connect_more(&mut self) -> usize {
        let mut at = 0;
        self.connections.retain(|connection| {
            at += 1;
            at == 1 || !connection.is_closed()
        });
        while self.connections.len() < CONNECTIONS_MAX
            && self.more_at.is_none_or(|at| at <= Instant::now())
        {
            let opened = self.connections[0].open_another(&self.settings);
            match opened.and_then(|mut another| another.prefer_indexes(true).map(|()| another)) {
                Ok(another) => self.connections.push(another),
                Err(error) => {
                    tracing::warn!(%error, "destaging with {} connections", self.connections.len());
                    self.more_at = Some(Instant::now() + MORE_AFTER);
                }
            }
        }
        self.connections.len()
    }

    /// What a transaction sends: the statements of the ledger and of the plan.
    fn prepared<'a>(
        &mut self,
        transaction: &Transaction<'a>,
    ) -> Result<(Vec<Step<'a>>, Vec<Step<'a>>), OriginError> {
        let Transaction { schema, plan, compares, .. } = *transaction;
        let prepared = self.connections[0].run_session("prepare to write", async |session| {
            let mut watermarks = Vec::with_capacity(transaction.watermarks.len());
            for statement in &transaction.watermarks {
                watermarks.push(Step::of(session, statement, compares.then_some(1)).await?);
            }
            let mut steps = Vec::with_capacity(transaction.parked.len() + plan.buckets.len());
            for statement in &transaction.parked {
                steps.push(Step::of(session, statement, Some(1)).await?);
            }
            for planned in plan.steps() {
                let prepared = match planned {
                    plan::Step::Raw(raw) => raw_step(session, raw).await,
                    plan::Step::Bucket(bucket) => {
                        let rows: Vec<usize> = (0..bucket.len()).collect();
                        step(session, schema, bucket, &rows).await
                    }
                };
                match prepared {
                    Ok(step) => steps.push(step),
                    Err(failure) => return Ok(Err(failure)),
                }
            }
            Ok(Ok((watermarks, steps)))
        })?;
        prepared.map_err(|failure| self.failed(failure))
    }

    /// The failure in words, with what it means for the connections.
    fn failed(&mut self, failure: Failure) -> OriginError {
        match failure {
            Failure::Database(what, error) => {
                let failed = self.connections.iter_mut().map(|c| c.failed(&what, &error));
                failed.last().expect("there is always a connection")
            }
            Failure::Other(error) => error,
            Failure::Moved => unreachable!("it is no error"),
        }
    }

    /// Applies groups from the first on, several transactions at once where there is enough to do and nothing went wrong.
    fn apply_parts(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Part, OriginError> {
        let size = self.settings.transaction_groups;
        let may_overlap = !self.careful && !claim.unsafe_no_watermark && groups.len() > size;
        let count = if may_overlap { self.connect_more() } else { 1 };
        let (check, marker) = (&self.check_deferred, self.marker);
        let has_triggers = self.has_triggers;
        let mark = claim.only()?;
        let batch = Batch { schema, claim, mark, check, marker, has_triggers };
        let Outcome { groups, applied, failure } =
            batch.apply(&mut self.connections[..count], groups, size)?;
        match failure {
            None => Ok(Part { groups, applied, moved: false }),
            Some(Failure::Moved) => Ok(Part { groups, applied, moved: true }),
            Some(failure) => Err(self.failed(failure)),
        }
    }
}

impl Database for PostgresWriter {
    const DIALECT: Dialect = Dialect {
        push_value: |out, number, value| {
            push_number(out, format_args!("${number}"));
            if let Value::Unsigned(_) = value {
                out.push_str("::text::numeric");
            }
        },
        now: "clock_timestamp()",
        released: "to_timestamp(0)",
        heartbeat_age: "extract(epoch FROM clock_timestamp() - heartbeat)::float8",
        owner_key: "id",
        domain_map: "domain_map::text",
        watermarks: WATERMARKS,
        insert_missing: ["INSERT INTO", "ON CONFLICT DO NOTHING"],
        returns: true,
    };

    fn place(&self) -> &str {
        self.connections[0].place()
    }

    fn timeout(&self) -> Duration {
        self.connections[0].timeout()
    }

    fn execute(&mut self, what: &str, statement: &Statement) -> Result<u64, OriginError> {
        self.connection().run_session(what, async |session| {
            let step = Step::of(session, statement, None).await?;
            step.run(&session.client).await
        })
    }

    fn query(
        &mut self,
        what: &str,
        statement: &Statement,
        bound: Bound,
    ) -> Result<Vec<Vec<Field>>, OriginError> {
        self.connection().expect(bound);
        self.connection().run_session(what, async |session| {
            let step = Step::of(session, statement, None).await?;
            let params = refs(&step.params);
            let rows = session.client.read(&step.statement, &params, |row| fields(&row)).await?;
            rows.into_iter().collect()
        })
    }

    fn begin(&mut self, what: &str) -> Result<(), OriginError> {
        self.connection().run(what, async |client| client.batch_execute("BEGIN").await)
    }

    fn commit(&mut self, what: &str) -> Result<(), OriginError> {
        self.connection().run(what, async |client| client.batch_execute("COMMIT").await)
    }

    fn roll_back(&mut self) {
        let undo = async |client: &Bounded| client.batch_execute("ROLLBACK").await;
        if let Err(error) = self.connection().run("roll back", undo) {
            tracing::debug!(%error, "a transaction was left to the server");
        }
    }

    fn transact(&mut self, transaction: &Transaction<'_>) -> Result<End, OriginError> {
        let what = transaction.what;
        let (watermarks, steps) = self.prepared(transaction)?;
        let (check, has_triggers) = (&self.check_deferred, self.has_triggers);
        let ended = self.connections[0].run_session(what, async |session| {
            let early = Vec::new();
            let requests =
                Requests { has_triggers, watermarks, marker: None, follows: None, early, steps };
            requests.run(&session.client, check, || {}).await
        });
        self.careful |= !matches!(ended, Ok(Ended::Committed));
        match ended? {
            Ended::Committed => Ok(End::Committed),
            Ended::Moved => Ok(End::Moved),
            Ended::Failed(error) => Err(self.connection().failed(what, &error)),
            Ended::Missed(message) => Err(OriginError::new(
                Fault::Rejected,
                format!("failed to {what} at {}: {message}", self.connections[0].place()),
            )),
        }
    }

    fn apply_some(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Part, OriginError> {
        let result = self.apply_parts(schema, claim, groups);
        self.careful = !matches!(result, Ok(Part { moved: false, .. }));
        result
    }

    fn has_caught_up(&mut self) -> bool {
        self.is_brought_up_to_date()
    }
}

/// The texts of a row of the ledger.
///
/// # Errors
/// A value is not what its type says: that is no PostgreSQL.
fn fields(row: &Row) -> Result<Vec<Field>, Error> {
    let text = |at: usize| match *row.columns()[at].type_() {
        Type::BOOL => shown(row.try_get::<_, Option<bool>>(at)?.map(u8::from)),
        Type::INT4 => shown(row.try_get::<_, Option<i32>>(at)?),
        Type::INT8 => shown(row.try_get::<_, Option<i64>>(at)?),
        Type::FLOAT8 => shown(row.try_get::<_, Option<f64>>(at)?),
        _ => row.try_get(at),
    };
    (0..row.len()).map(text).collect()
}

fn shown(value: Option<impl ToString>) -> Result<Field, Error> {
    Ok(value.map(|value| value.to_string()))
}

/// After this long a refused connection is tried again.
const MORE_AFTER: Duration = Duration::from_secs(60);
