//! Writes: who owns the origin, and batches applied exactly once.

use super::connection::Connection;
use super::parts::{Batch, CONNECTIONS_MAX, Failure, Outcome, raw_step, step};
use super::server;
use super::settings::Settings;
use super::tables::{self, WATERMARKS};
use super::transaction::{Cas, End, Step, Transaction};
use super::wire::Param;
use crate::contract::{
    AcrossClaim, Applied, Claim, GroupRef, Mark, OriginError, Owner, ParkedGroup, Watermarks,
    WriteClaim, Writer,
};
use crate::origins::bound::Bound;
use crate::origins::ledger::{self, WHOLE, fenced, parse_watermarks, signed, unsigned};
use crate::plan::{self, Plan, plan};
use crate::schema::Schema;
use destage_core::{DomainId, Fault, Lsn};
use std::time::{Duration, Instant};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error};

pub(super) struct PostgresWriter {
    settings: Settings,
    /// The first one does everything but the further parts of large batches.
    connections: Vec<Connection>,
    /// Checks the deferred constraints and defers them again.
    check_deferred: String,
    /// The object id of the watermark table.
    marker: u32,
    /// Whether triggers tell Destage of what others change.
    is_told_apart: bool,
    /// Nothing has been applied since the last failure: one transaction at a time, so that whatever two of them did to one
    /// another cannot go on.
    careful: bool,
    /// Not before this time, since the server refused another connection.
    more_at: Option<Instant>,
}

impl PostgresWriter {
    pub(super) fn new(mut connection: Connection, settings: Settings) -> Result<Self, OriginError> {
        let is_told_apart = server::look(&mut connection)?;
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
            is_told_apart,
            careful: true,
            more_at: None,
        })
    }

    /// Does something, and once more if it failed for what was known of the tables and is out of date: a constraint that was
    /// dropped meanwhile, or is not deferred any more, or a prepared statement. Nothing of it was done then but whole
    /// transactions, which a second attempt finds done.
    fn up_to_date<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<T, OriginError>,
    ) -> Result<T, OriginError> {
        match attempt(self) {
            Err(error) if error.fault == Fault::Denied && self.is_brought_up_to_date() => {
                tracing::info!(reason = error.message, "the tables have changed: trying again");
                attempt(self)
            }
            other => other,
        }
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

    /// Applies all groups, in as many transactions as it takes.
    fn apply_all(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim,
        mut groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let mut applied = Applied::default();
        let mut claim = *claim;
        while !groups.is_empty() {
            let outcome = self.apply_some(schema, &claim, groups)?;
            applied.changes += outcome.applied.changes;
            applied.rows += outcome.applied.rows;
            if let Some(last) = outcome.groups.checked_sub(1) {
                claim.expected = groups[last].lsn;
            }
            groups = &groups[outcome.groups..];
            match outcome.failure {
                None if groups.is_empty() => {}
                // It takes long: other processes must not take this one for dead.
                None => drop(self.heartbeat(claim.epoch)?),
                Some(Failure::Moved) => {
                    claim.expected = self.landed(&claim, groups)?;
                    let landed = groups.partition_point(|group| group.lsn <= claim.expected);
                    groups = &groups[landed..];
                }
                Some(Failure::Database(what, error)) => {
                    let failed = self.connections.iter_mut().map(|c| c.failed(&what, &error));
                    return Err(failed.last().expect("there is always a connection"));
                }
                Some(Failure::Other(error)) => return Err(error),
            }
        }
        Ok(applied)
    }

    /// Applies groups from the first on, several transactions at once where there is enough to do and nothing went wrong.
    fn apply_some(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim,
        groups: &[GroupRef<'_>],
    ) -> Result<Outcome, OriginError> {
        let size = self.settings.transaction_groups;
        let may_overlap = !self.careful && !claim.unsafe_no_watermark && groups.len() > size;
        let count = if may_overlap { self.connect_more() } else { 1 };
        let (check, marker) = (&self.check_deferred, self.marker);
        let is_told_apart = self.is_told_apart;
        let batch = Batch { schema, claim: *claim, check, marker, is_told_apart };
        batch.apply(&mut self.connections[..count], groups, size)
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

    /// The watermark was not where it was expected: who is right? The number up to which the groups had landed before.
    fn landed(&mut self, claim: &WriteClaim, groups: &[GroupRef<'_>]) -> Result<Lsn, OriginError> {
        let domain = i32::from(claim.domain.0);
        let row = self.connection().run("read the watermark", async |client| {
            let sql = "SELECT seq, epoch FROM destage_watermark WHERE domain = $1";
            client.query_opt(sql, &[&domain]).await
        })?;
        let found = row.map(|row| (Lsn(unsigned(row.get(0))), unsigned(row.get(1))));
        ledger::landed(self.connections[0].place(), claim, found, groups)
    }

    /// Some watermark was not where it was expected. Done if the whole had landed before.
    fn landed_across(&mut self, claim: &AcrossClaim<'_>) -> Result<(), OriginError> {
        let rows = self.connection().run("read the watermarks", async |client| {
            client.query("SELECT domain, seq, epoch FROM destage_watermark", &[]).await
        })?;
        let found = |domain: DomainId| {
            let row = rows.iter().find(|row| row.get::<_, i32>(0) == i32::from(domain.0))?;
            Some((Lsn(unsigned(row.get(1))), unsigned(row.get(2))))
        };
        ledger::landed_across(self.connections[0].place(), claim, found)
    }

    /// The statement that keeps a group as parked.
    fn park_step(&mut self, parked: &ParkedGroup) -> Result<Step<'static>, OriginError> {
        let types = [Type::INT4, Type::INT8, Type::INT8, Type::TEXT, Type::TEXT];
        let statement = self.connection().prepared("park a group", PARK, &types)?;
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
        Ok(Step { statement, params, rows: Some(1), check_after: false, target: None })
    }

    /// The statements of a plan.
    fn steps<'a>(
        &mut self,
        schema: &'a Schema,
        plan: &Plan<'_>,
    ) -> Result<Vec<Step<'a>>, OriginError> {
        const WHAT: &str = "prepare to write";
        let steps = self.connections[0].run_session(WHAT, async |session| {
            let mut steps = Vec::with_capacity(plan.buckets.len());
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
            Ok(Ok(steps))
        })?;
        steps.map_err(|failure| match failure {
            Failure::Database(what, error) => self.connection().failed(&what, &error),
            Failure::Other(error) => error,
            Failure::Moved => unreachable!("nothing is sent yet"),
        })
    }

    /// The statements that take groups out of the parked ones.
    fn take_steps(&mut self, parked: &[Lsn]) -> Result<Vec<Step<'static>>, OriginError> {
        let mut steps = Vec::with_capacity(parked.len());
        for lsn in parked {
            let statement = self.connection().prepared(UNPARK, TAKE_PARKED, &[Type::INT8])?;
            let params = vec![Param::scalar(Some(signed(lsn.0).to_be_bytes().to_vec()))];
            steps.push(Step { statement, params, rows: Some(1), check_after: false, target: None });
        }
        Ok(steps)
    }

    fn apply_marked(
        &mut self,
        schema: &Schema,
        claim: &AcrossClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let plan = plan(schema, groups.iter().map(|group| group.bytes))
            .map_err(|error| OriginError::new(Fault::Failed, error))?;
        let steps = self.steps(schema, &plan)?;
        Ok(match self.advance("apply a batch", claim, steps)? {
            true => Applied { changes: plan.changes as u64, rows: plan.rows() as u64 },
            false => Applied::default(),
        })
    }

    /// Runs one transaction that moves the watermarks and does `steps`. False if it had landed before.
    fn advance(
        &mut self,
        what: &str,
        claim: &AcrossClaim<'_>,
        steps: Vec<Step<'_>>,
    ) -> Result<bool, OriginError> {
        let (check, is_told_apart) = (&self.check_deferred, self.is_told_apart);
        let end = self.connections[0].run_session(what, async |session| {
            let mut cas = Vec::with_capacity(claim.marks.len());
            for mark in claim.marks {
                cas.push(Cas::prepare(session, &claim.of(mark), mark.upto).await?);
            }
            let transaction = Transaction {
                is_told_apart,
                cas,
                marker: None,
                follows: None,
                early: Vec::new(),
                steps,
            };
            transaction.run(&session.client, check, || {}).await
        })?;
        match self.has_committed(what, end)? {
            true => Ok(true),
            false => self.landed_across(claim).map(|()| false),
        }
    }

    /// Runs one transaction that takes groups out of the parked ones and does what they are planned to do. False if the
    /// origin is another one's.
    fn take_back(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim,
        parked: &[Lsn],
        plan: &Plan<'_>,
    ) -> Result<bool, OriginError> {
        let mut steps = self.take_steps(parked)?;
        steps.extend(self.steps(schema, plan)?);
        let (check, is_told_apart) = (&self.check_deferred, self.is_told_apart);
        let end = self.connections[0].run_session(UNPARK, async |session| {
            let cas = vec![Cas::hold(session, claim).await?];
            let transaction = Transaction {
                is_told_apart,
                cas,
                marker: None,
                follows: None,
                early: Vec::new(),
                steps,
            };
            transaction.run(&session.client, check, || {}).await
        })?;
        self.has_committed(UNPARK, end)
    }

    /// How a transaction ended; false if the watermark was not where it was expected.
    fn has_committed(&mut self, what: &str, end: End) -> Result<bool, OriginError> {
        match end {
            End::Committed => Ok(true),
            End::Moved => Ok(false),
            End::Failed(error) => Err(self.connection().failed(what, &error)),
            End::Missed(message) => Err(OriginError::new(
                Fault::Rejected,
                format!("failed to {what} at {}: {message}", self.connections[0].place()),
            )),
        }
    }

    /// Someone else owns the origin.
    fn fenced(&mut self, ours: u64) -> OriginError {
        match self.owner() {
            Ok(owner) => fenced(self.connections[0].place(), ours, owner.map(|owner| owner.epoch)),
            Err(error) => error,
        }
    }
}

impl Writer for PostgresWriter {
    fn owner(&mut self) -> Result<Option<Owner>, OriginError> {
        let sql = format!(
            "SELECT journal, epoch, domain_map::text, extract(epoch FROM clock_timestamp() - \
             heartbeat)::float8, {WATERMARKS}, heartbeat = to_timestamp(0), {WHOLE} FROM destage_owner WHERE id = 1"
        );
        let row = self
            .connection()
            .run("read the owner", async |client| client.query_opt(&sql, &[]).await)?;
        let Some(row) = row else { return Ok(None) };
        let age: f64 = row.get(3);
        Ok(Some(Owner {
            journal: row.get(0),
            epoch: unsigned(row.get(1)),
            domain_map: row.get::<_, &str>(2).parse().unwrap_or(0),
            heartbeat_age: Duration::try_from_secs_f64(age.max(0.0)).unwrap_or(Duration::MAX),
            released: row.get(5),
            watermarks: parse_watermarks(row.get(4)),
            is_whole: row.get(6),
        }))
    }

    fn claim(&mut self, claim: &Claim) -> Result<(), OriginError> {
        let claimed = self.connection().run("claim the origin", async |client| {
            client.batch_execute("BEGIN").await?;
            let done = claim_in_transaction(client, claim).await;
            let end = if matches!(done, Ok(true)) { "COMMIT" } else { "ROLLBACK" };
            client.batch_execute(end).await?;
            done
        })?;
        if claimed {
            return Ok(());
        }
        Err(ledger::outrun(self.connections[0].place()))
    }

    fn apply(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim,
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let result = self.up_to_date(|writer| writer.apply_all(schema, claim, groups));
        self.careful = result.is_err();
        result
    }

    fn park(
        &mut self,
        claim: &WriteClaim,
        lsn: Lsn,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        let marks = [Mark { domain: claim.domain, expected: claim.expected, upto: lsn }];
        let claim = AcrossClaim {
            epoch: claim.epoch,
            marks: &marks,
            unsafe_no_watermark: claim.unsafe_no_watermark,
        };
        self.park_across(&claim, parked)
    }

    fn unpark(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim,
        parked: &[Lsn],
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let plan: Plan<'_> = plan(schema, groups.iter().map(|group| group.bytes))
            .map_err(|error| OriginError::new(Fault::Rejected, error))?;
        match self.up_to_date(|writer| writer.take_back(schema, claim, parked, &plan))? {
            true => Ok(Applied { changes: plan.changes as u64, rows: plan.rows() as u64 }),
            false => Err(self.fenced(claim.epoch)),
        }
    }

    fn apply_across(
        &mut self,
        schema: &Schema,
        claim: &AcrossClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let result = self.up_to_date(|writer| writer.apply_marked(schema, claim, groups));
        self.careful = result.is_err();
        result
    }

    fn park_across(
        &mut self,
        claim: &AcrossClaim<'_>,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        self.up_to_date(|writer| {
            let step = parked.map(|parked| writer.park_step(parked)).transpose()?;
            writer.advance("park a group", claim, step.into_iter().collect()).map(drop)
        })
    }

    fn mark_all(
        &mut self,
        claim: &WriteClaim,
        upto: Lsn,
        floors: &[(DomainId, Lsn)],
    ) -> Result<(), OriginError> {
        const WHAT: &str = "move the mark of all domains";
        let domains: Vec<i32> = floors.iter().map(|(domain, _)| i32::from(domain.0)).collect();
        let numbers: Vec<i64> = floors.iter().map(|(_, lsn)| signed(lsn.0)).collect();
        let domain = i32::from(claim.domain.0);
        let (upto_seq, expected, epoch) =
            (signed(upto.0), signed(claim.expected.0), signed(claim.epoch));
        let moved = self.connection().run(WHAT, async |client| {
            let params: [&(dyn ToSql + Sync); 6] =
                [&domain, &upto_seq, &expected, &epoch, &domains, &numbers];
            client.execute(MARK_ALL, &params).await
        })?;
        if moved == 1 {
            return Ok(());
        }
        let found = self.heartbeat(claim.epoch)?;
        ledger::check_floors(self.connections[0].place(), &found, floors)?;
        self.landed(claim, &[GroupRef { lsn: upto, bytes: &[] }]).map(drop)
    }

    fn heartbeat(&mut self, epoch: u64) -> Result<Watermarks, OriginError> {
        let sql = format!(
            "UPDATE destage_owner SET heartbeat = clock_timestamp() \
             WHERE id = 1 AND epoch = $1 RETURNING {WATERMARKS}"
        );
        let statement = self.connection().prepared("renew the heartbeat", &sql, &[Type::INT8])?;
        let row = self.connection().run("renew the heartbeat", async |client| {
            client.query_opt(&statement, &[&signed(epoch)]).await
        })?;
        match row {
            Some(row) => Ok(parse_watermarks(row.get(0))),
            None => Err(self.fenced(epoch)),
        }
    }

    fn release(&mut self, epoch: u64) -> Result<(), OriginError> {
        let released = self.connection().run("release the origin", async |client| {
            let sql =
                "UPDATE destage_owner SET heartbeat = to_timestamp(0) WHERE id = 1 AND epoch = $1";
            client.execute(sql, &[&signed(epoch)]).await
        })?;
        if released == 1 {
            return Ok(());
        }
        Err(self.fenced(epoch))
    }

    fn parked(&mut self) -> Result<Vec<ParkedGroup>, OriginError> {
        self.connection().expect(Bound::parked());
        let rows = self.connection().run("read the parked groups", async |client| {
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

/// The mark moves only if every domain is where it was known to be, or beyond.
const MARK_ALL: &str = "UPDATE destage_watermark SET seq = $2 WHERE domain = $1 AND seq = $3 AND epoch = $4 \
    AND NOT EXISTS (SELECT FROM unnest($5::int4[], $6::int8[]) AS f (domain, seq) \
    LEFT JOIN destage_watermark w ON w.domain = f.domain WHERE coalesce(w.seq, 0) < f.seq)";

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

const PARK: &str = "INSERT INTO destage_parked (domain, seq, depends_on, reason, payload) \
     VALUES ($1, $2, $3, $4, $5)";

const UNPARK: &str = "take back parked groups";
const TAKE_PARKED: &str = "DELETE FROM destage_parked WHERE seq = $1";

/// After this long a refused connection is tried again.
const MORE_AFTER: Duration = Duration::from_secs(60);
