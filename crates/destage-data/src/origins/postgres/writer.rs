//! Writes: who owns the origin, and batches applied exactly once.

use super::connection::{Connection, pipelined};
use super::statements::{bucket_params, bucket_sql};
use super::tables::{self, WATERMARKS, parse_watermarks};
use super::wire::{Param, refs};
use crate::change::Op;
use crate::origins::{
    Applied, Claim, GroupRef, OriginError, Owner, ParkedGroup, WriteClaim, Writer,
};
use crate::plan::{Bucket, plan};
use crate::schema::{Schema, Table};
use destage_core::{DomainId, Fault, Lsn};
use std::pin::Pin;
use std::time::Duration;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Statement};

pub(super) struct PostgresWriter {
    connection: Connection,
    /// Checks the deferred constraints and defers them again.
    check_deferred: String,
}

impl PostgresWriter {
    pub(super) fn new(mut connection: Connection) -> Result<Self, OriginError> {
        let check_deferred = connection.run("look at the server", async |client| {
            let server = client.query_one(SERVER, &[]).await?;
            let deferred: Vec<String> =
                client.query(DEFERRED, &[]).await?.iter().map(|row| row.get(0)).collect();
            let standby: bool = server.get(0);
            let unsafe_settings: Option<String> = server.get(1);
            Ok((standby, unsafe_settings, deferred))
        })?;
        let (standby, unsafe_settings, deferred) = check_deferred;
        if standby {
            return Err(OriginError::new(
                Fault::Denied,
                format!(
                    "{} is a standby, which cannot be written; use the primary",
                    connection.place()
                ),
            ));
        }
        if let Some(settings) = unsafe_settings {
            tracing::warn!(
                origin = connection.place(),
                "the server runs with {settings}: it may lose what Destage has handed over"
            );
        }
        tables::ensure(&mut connection)?;
        let mut check_deferred = "SET CONSTRAINTS ALL IMMEDIATE".to_owned();
        if !deferred.is_empty() {
            check_deferred.push_str(&format!("; SET CONSTRAINTS {} DEFERRED", deferred.join(", ")));
        }
        Ok(Self { connection, check_deferred })
    }

    /// Runs one transaction that moves the watermark and does `steps`.
    fn advance(
        &mut self,
        what: &str,
        claim: &WriteClaim,
        upto: Lsn,
        steps: &[Step<'_>],
    ) -> Result<(), OriginError> {
        let cas = self.watermark_step(claim, upto)?;
        let check = &self.check_deferred;
        let outcome = self.connection.run(what, async |client| {
            let results = pipelined(requests(client, &cas, steps, check)).await;
            match verdict(results, steps, claim.unsafe_no_watermark) {
                Verdict::Commit => client.batch_execute("COMMIT").await.map(|()| None),
                other => {
                    client.batch_execute("ROLLBACK").await?;
                    Ok(Some(other))
                }
            }
        })?;
        match outcome {
            None => Ok(()),
            Some(Verdict::Moved) => self.explain_watermark(claim, upto),
            Some(Verdict::Failed(error)) => Err(self.connection.failed(what, &error)),
            Some(Verdict::Missed(message)) => Err(OriginError::new(
                Fault::Rejected,
                format!("failed to {what} at {}: {message}", self.connection.place()),
            )),
            Some(Verdict::Commit) => Ok(()),
        }
    }

    fn watermark_step(&mut self, claim: &WriteClaim, upto: Lsn) -> Result<Cas, OriginError> {
        let sql = if claim.unsafe_no_watermark {
            "UPDATE destage_watermark SET seq = $2 WHERE domain = $1"
        } else {
            "UPDATE destage_watermark SET seq = $2 WHERE domain = $1 AND seq = $3 AND epoch = $4"
        };
        let types: &[Type] = if claim.unsafe_no_watermark {
            &[Type::INT4, Type::INT8]
        } else {
            &[Type::INT4, Type::INT8, Type::INT8, Type::INT8]
        };
        let statement = self.connection.prepared("move the watermark", sql, types)?;
        Ok(Cas {
            statement,
            domain: i32::from(claim.domain.0),
            numbers: [signed(upto.0), signed(claim.expected.0), signed(claim.epoch)],
            compares: !claim.unsafe_no_watermark,
        })
    }

    /// The watermark was not where it was expected: who is right?
    fn explain_watermark(&mut self, claim: &WriteClaim, upto: Lsn) -> Result<(), OriginError> {
        let domain = i32::from(claim.domain.0);
        let row = self.connection.run("read the watermark", async |client| {
            let sql = "SELECT seq, epoch FROM destage_watermark WHERE domain = $1";
            client.query_opt(sql, &[&domain]).await
        })?;
        let place = self.connection.place();
        let Some(row) = row else {
            let message = format!("{place} has no watermark for domain {domain}: claim it first");
            return Err(OriginError::new(Fault::Failed, message));
        };
        let (seq, epoch): (i64, i64) = (row.get(0), row.get(1));
        if unsigned(epoch) != claim.epoch {
            return Err(fenced(place, claim.epoch, Some(unsigned(epoch))));
        }
        if unsigned(seq) >= upto.0 {
            return Ok(());
        }
        Err(OriginError::new(
            Fault::Failed,
            format!(
                "{place} stands at group {seq} of domain {domain}, expected {}: it was restored or \
                 changed by hand",
                claim.expected.0
            ),
        ))
    }

    fn step<'a>(&mut self, table: &'a Table, bucket: &Bucket<'_>) -> Result<Step<'a>, OriginError> {
        let (sql, types) = bucket_sql(table, bucket);
        let what = format!("prepare to write {}", table.name);
        let statement = self.connection.prepared(&what, &sql, &types)?;
        let params = bucket_params(table, bucket)?;
        Ok(Step {
            statement,
            params,
            rows: bucket.len() as u64,
            check_after: bucket.check_after,
            target: Some((table, bucket.op)),
        })
    }
}

impl Writer for PostgresWriter {
    fn owner(&mut self) -> Result<Option<Owner>, OriginError> {
        let sql = format!(
            "SELECT journal, epoch, domain_map::text, extract(epoch FROM clock_timestamp() - \
             heartbeat)::float8, {WATERMARKS} FROM destage_owner WHERE id = 1"
        );
        let row = self
            .connection
            .run("read the owner", async |client| client.query_opt(&sql, &[]).await)?;
        let Some(row) = row else { return Ok(None) };
        let age: f64 = row.get(3);
        Ok(Some(Owner {
            journal: row.get(0),
            epoch: unsigned(row.get(1)),
            domain_map: row.get::<_, &str>(2).parse().unwrap_or(0),
            heartbeat_age: Duration::try_from_secs_f64(age.max(0.0)).unwrap_or(Duration::MAX),
            watermarks: parse_watermarks(row.get(4)),
        }))
    }

    fn claim(&mut self, claim: &Claim) -> Result<(), OriginError> {
        let claimed = self.connection.run("claim the origin", async |client| {
            client.batch_execute("BEGIN").await?;
            let done = claim_in_transaction(client, claim).await;
            let end = if matches!(done, Ok(true)) { "COMMIT" } else { "ROLLBACK" };
            client.batch_execute(end).await?;
            done
        })?;
        if claimed {
            return Ok(());
        }
        let now = self.owner()?.map(|owner| owner.epoch);
        Err(fenced(self.connection.place(), claim.epoch, now))
    }

    fn apply(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim,
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let Some(last) = groups.last() else { return Ok(Applied::default()) };
        let plan = plan(schema, groups.iter().map(|group| group.bytes))
            .map_err(|error| OriginError::new(Fault::Failed, error))?;
        let mut steps = Vec::with_capacity(plan.buckets.len());
        for bucket in &plan.buckets {
            steps.push(self.step(schema.table(bucket.table), bucket)?);
        }
        let applied = Applied { changes: plan.changes as u64, rows: plan.rows() as u64 };
        self.advance("apply a batch", claim, last.lsn, &steps)?;
        Ok(applied)
    }

    fn park(
        &mut self,
        claim: &WriteClaim,
        lsn: Lsn,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        let mut steps = Vec::new();
        if let Some(parked) = parked {
            let types = [Type::INT4, Type::INT8, Type::INT8, Type::TEXT, Type::TEXT];
            let statement = self.connection.prepared("park a group", PARK, &types)?;
            let seq = |lsn: Lsn| Some(signed(lsn.0).to_be_bytes().to_vec());
            let text = |text: &str| Some(text.replace('\0', "\u{fffd}").into_bytes());
            let params = [
                Some(i32::from(parked.domain.0).to_be_bytes().to_vec()),
                seq(parked.lsn),
                parked.depends_on.and_then(seq),
                text(&parked.reason),
                text(&parked.payload),
            ];
            let params = params.into_iter().map(Param::scalar).collect();
            steps.push(Step { statement, params, rows: 1, check_after: false, target: None });
        }
        self.advance("park a group", claim, lsn, &steps)
    }

    fn heartbeat(&mut self, epoch: u64) -> Result<Vec<(DomainId, Lsn)>, OriginError> {
        let sql = format!(
            "UPDATE destage_owner SET heartbeat = clock_timestamp() \
             WHERE id = 1 AND epoch = $1 RETURNING {WATERMARKS}"
        );
        let statement = self.connection.prepared("renew the heartbeat", &sql, &[Type::INT8])?;
        let row = self.connection.run("renew the heartbeat", async |client| {
            client.query_opt(&statement, &[&signed(epoch)]).await
        })?;
        match row {
            Some(row) => Ok(parse_watermarks(row.get(0))),
            None => {
                let now = self.owner()?.map(|owner| owner.epoch);
                Err(fenced(self.connection.place(), epoch, now))
            }
        }
    }

    fn parked(&mut self) -> Result<Vec<ParkedGroup>, OriginError> {
        let rows = self.connection.run("read the parked groups", async |client| {
            let sql = "SELECT domain, seq, depends_on, reason, payload FROM destage_parked \
                 ORDER BY parked_at, domain, seq";
            client.query(sql, &[]).await
        })?;
        let parked = |row: &tokio_postgres::Row| ParkedGroup {
            domain: DomainId(u16::try_from(row.get::<_, i32>(0)).unwrap_or(0)),
            lsn: Lsn(unsigned(row.get(1))),
            depends_on: row.get::<_, Option<i64>>(2).map(|seq| Lsn(unsigned(seq))),
            reason: row.get(3),
            payload: row.get(4),
        };
        Ok(rows.iter().map(parked).collect())
    }
}

async fn claim_in_transaction(client: &Client, claim: &Claim) -> Result<bool, Error> {
    let (epoch, map) = (signed(claim.epoch), claim.domain_map.to_string());
    let owned = match claim.expected {
        None => {
            let sql = "INSERT INTO destage_owner (id, journal, epoch, domain_map, heartbeat) \
                 VALUES (1, $1, $2, $3::text::numeric, clock_timestamp()) ON CONFLICT DO NOTHING";
            client.execute(sql, &[&claim.journal, &epoch, &map]).await?
        }
        Some(expected) => {
            let sql = "UPDATE destage_owner SET journal = $1, epoch = $2, \
                 domain_map = $3::text::numeric, heartbeat = clock_timestamp() \
                 WHERE id = 1 AND epoch = $4";
            client.execute(sql, &[&claim.journal, &epoch, &map, &signed(expected)]).await?
        }
    };
    if owned != 1 {
        return Ok(false);
    }
    client.execute("UPDATE destage_watermark SET epoch = $1", &[&epoch]).await?;
    let domains: Vec<i32> = claim.domains.iter().map(|domain| i32::from(domain.0)).collect();
    let sql = "INSERT INTO destage_watermark (domain, seq, epoch) \
         SELECT d, 0, $2 FROM unnest($1::int4[]) AS d ON CONFLICT DO NOTHING";
    client.execute(sql, &[&domains, &epoch]).await?;
    Ok(true)
}

/// The compare-and-set of a watermark.
struct Cas {
    statement: Statement,
    domain: i32,
    /// The new number, the expected one, our epoch.
    numbers: [i64; 3],
    compares: bool,
}

/// One statement of a batch.
struct Step<'a> {
    statement: Statement,
    params: Vec<Param>,
    /// How many rows it must touch.
    rows: u64,
    check_after: bool,
    target: Option<(&'a Table, Op)>,
}

enum Verdict {
    Commit,
    /// The watermark was not where it was expected.
    Moved,
    Failed(Error),
    /// A statement did not touch its rows exactly.
    Missed(String),
}

type Request<'a> = Pin<Box<dyn Future<Output = Result<u64, Error>> + 'a>>;

/// BEGIN, the watermark, the steps: sent at once, answered in this order.
fn requests<'a>(
    client: &'a Client,
    cas: &'a Cas,
    steps: &'a [Step<'_>],
    check: &'a str,
) -> Vec<Request<'a>> {
    let simple = |sql: &'a str| -> Request<'a> {
        Box::pin(async move { client.batch_execute(sql).await.map(|()| 0) })
    };
    let mut requests = vec![simple("BEGIN")];
    requests.push(Box::pin(async move {
        let [upto, expected, epoch] = &cas.numbers;
        if cas.compares {
            client.execute(&cas.statement, &[&cas.domain, upto, expected, epoch]).await
        } else {
            client.execute(&cas.statement, &[&cas.domain, upto]).await
        }
    }));
    for step in steps {
        requests.push(Box::pin(async move {
            client.execute(&step.statement, &refs(&step.params)).await
        }));
        if step.check_after {
            requests.push(simple(check));
        }
    }
    requests
}

fn verdict(results: Vec<Result<u64, Error>>, steps: &[Step<'_>], unchecked: bool) -> Verdict {
    let mut results = results.into_iter();
    for (at, result) in results.by_ref().take(2).enumerate() {
        match result {
            Err(error) => return Verdict::Failed(error),
            Ok(0) if at == 1 && !unchecked => return Verdict::Moved,
            Ok(_) => {}
        }
    }
    for step in steps {
        match results.next() {
            Some(Ok(rows)) if rows == step.rows => {}
            Some(Ok(rows)) => return Verdict::Missed(missed(step, rows)),
            Some(Err(error)) => return Verdict::Failed(error),
            None => break,
        }
        if step.check_after
            && let Some(Err(error)) = results.next()
        {
            return Verdict::Failed(error);
        }
    }
    Verdict::Commit
}

fn missed(step: &Step<'_>, rows: u64) -> String {
    let (table, op) = step.target.map_or(("destage_parked", "insert"), |(table, op)| {
        let op = match op {
            Op::Insert => "insert",
            Op::Update => "update",
            Op::Delete => "delete",
        };
        (table.name.as_str(), op)
    });
    format!("an {op} of {} rows of {table} met {rows}: the others do not exist there", step.rows)
}

fn fenced(place: &str, ours: u64, theirs: Option<u64>) -> OriginError {
    let theirs = theirs.map_or_else(|| "none".to_owned(), |epoch| epoch.to_string());
    let message = format!("{place} has another owner: its epoch is {theirs}, ours is {ours}");
    OriginError::new(Fault::Fenced, message)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("sequence numbers and epochs stay below 2^63")
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Whether it is a standby, and settings under which a crash loses commits.
const SERVER: &str = "SELECT pg_is_in_recovery(), (SELECT string_agg(name || ' = off', ', ') \
     FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off')";

const DEFERRED: &str = "SELECT DISTINCT format('%I.%I', n.nspname, c.conname) \
     FROM pg_constraint c JOIN pg_namespace n ON n.oid = c.connamespace WHERE c.condeferred";

const PARK: &str = "INSERT INTO destage_parked (domain, seq, depends_on, reason, payload) \
     VALUES ($1, $2, $3, $4, $5)";
