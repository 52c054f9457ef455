//! Writes: who owns the origin, and batches applied exactly once.

use super::connection::{Connection, Texts};
use super::literal::push_text;
use super::query::{dml_sql, dml_value};
use super::statements::{Statement, push_bucket};
use super::tables::{self, WATERMARKS};
use crate::contract::{
    AcrossClaim, Applied, Claim, GroupRef, Mark, OriginError, Owner, ParkedGroup, Watermarks,
    WriteClaim, Writer,
};
use crate::dml::Parameter;
use crate::origins::bound::Bound;
use crate::origins::ledger::{
    self, WHOLE, fenced, missed, parse_watermarks, signed, still_ours, take_parked,
};
use crate::plan::{Plan, Raw, Step, plan};
use crate::schema::Schema;
use destage_core::{DomainId, Fault, Lsn};
use mysql_async::Value;
use std::time::{Duration, Instant};

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
    Raw(String, Vec<Value>),
}

/// How a transaction ended. Unless it is committed, nothing of it is left.
enum End {
    Committed,
    /// The watermark was not where it was expected.
    Moved,
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

    /// The watermark was not where it was expected: the number up to which the groups had landed before.
    fn landed(&mut self, claim: &WriteClaim, groups: &[GroupRef<'_>]) -> Result<Lsn, OriginError> {
        let domain = claim.domain.0;
        let sql = format!("SELECT seq, epoch FROM destage_watermark WHERE domain = {domain}");
        let rows = self.connection.rows("read the watermark", &sql)?;
        let found = rows.first().map(|row| (Lsn(number(row, 0)), number(row, 1)));
        ledger::landed(self.connection.place(), claim, found, groups)
    }

    /// The statements of a plan.
    fn statements<'p>(
        &self,
        schema: &'p Schema,
        plan: &Plan<'_>,
    ) -> Result<Vec<Task<'p>>, OriginError> {
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

    /// Some watermark was not where it was expected. Done if the whole had landed before.
    fn landed_across(&mut self, claim: &AcrossClaim<'_>) -> Result<(), OriginError> {
        let sql = "SELECT domain, seq, epoch FROM destage_watermark";
        let rows = self.connection.rows("read the watermarks", sql)?;
        let found = |domain: DomainId| {
            let row = rows.iter().find(|row| number(row, 0) == u64::from(domain.0))?;
            Some((Lsn(number(row, 1)), number(row, 2)))
        };
        ledger::landed_across(self.connection.place(), claim, found)
    }

    /// Applies the groups of one transaction.
    fn apply_part(
        &mut self,
        schema: &Schema,
        claim: &AcrossClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<(End, Applied), OriginError> {
        let plan: Plan<'_> = plan(schema, groups.iter().map(|group| group.bytes))
            .map_err(|error| OriginError::new(Fault::Failed, error))?;
        let statements = self.statements(schema, &plan)?;
        let end = self.transaction("apply a batch", &Moves::of(claim), &statements)?;
        let applied = Applied { changes: plan.changes as u64, rows: plan.rows() as u64 };
        Ok((end, applied))
    }

    /// Runs one transaction that moves the watermarks, or holds one, and then does the rest.
    fn transaction(
        &mut self,
        what: &str,
        moves: &Moves,
        tasks: &[Task<'_>],
    ) -> Result<End, OriginError> {
        let mut end = self.body(what, moves, tasks);
        if matches!(end, Ok(End::Committed)) {
            let committed = self.connection.script(what, &["COMMIT"]);
            end = committed.map(|_| End::Committed);
        }
        if !matches!(end, Ok(End::Committed)) {
            self.roll_back();
        }
        end
    }

    /// Everything of a transaction but its end.
    fn body(&mut self, what: &str, moves: &Moves, tasks: &[Task<'_>]) -> Result<End, OriginError> {
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
                script.extend(moves.sql.iter().map(String::as_str));
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
            let compared = met.iter().skip(1).take(moves.sql.len());
            if first && moves.compares && compared.into_iter().any(|&rows| rows == 0) {
                return Ok(End::Moved);
            }
            done?;
            for (statement, &rows) in sent.iter().zip(&met[ours..]) {
                if rows != statement.rows {
                    let missed = missed(statement.target, statement.rows, rows);
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

    /// Ends a transaction that failed. If even that fails, the connection is lost, and the server does it.
    fn roll_back(&mut self) {
        if let Err(error) = self.connection.script("roll back", &["ROLLBACK"]) {
            tracing::debug!(%error, "a transaction was left to the server");
        }
    }

    fn owner_epoch(&mut self) -> Result<Option<u64>, OriginError> {
        Ok(self.owner()?.map(|owner| owner.epoch))
    }

    fn fenced(&mut self, ours: u64) -> OriginError {
        match self.owner_epoch() {
            Ok(theirs) => fenced(self.connection.place(), ours, theirs),
            Err(error) => error,
        }
    }

    /// The statements of a claim behind its start; true if the origin is ours.
    fn claim_in_transaction(&mut self, claim: &Claim) -> Result<bool, OriginError> {
        const WHAT: &str = "claim the origin";
        let mut journal = String::new();
        push_text(&mut journal, &claim.journal);
        let (epoch, map) = (signed(claim.epoch), claim.domain_map);
        let owned = match claim.expected {
            None => format!(
                "INSERT IGNORE INTO destage_owner (id, journal, epoch, domain_map, heartbeat) \
                 VALUES (1, {journal}, {epoch}, {map}, {NOW})"
            ),
            Some(expected) => format!(
                "UPDATE destage_owner SET journal = {journal}, epoch = {epoch}, \
                 domain_map = {map}, heartbeat = {NOW} WHERE id = 1 AND epoch = {}",
                signed(expected)
            ),
        };
        let met = self.connection.script(WHAT, &["START TRANSACTION", &owned])?;
        if met[1] != 1 {
            return Ok(false);
        }
        let mut script = vec![format!("UPDATE destage_watermark SET epoch = {epoch}")];
        for domain in &claim.domains {
            script.push(format!(
                "INSERT IGNORE INTO destage_watermark (domain, seq, epoch) VALUES ({}, 0, {epoch})",
                domain.0
            ));
        }
        script.push("COMMIT".to_owned());
        self.connection.script(WHAT, &script).map(|_| true)
    }
}

impl Writer for MysqlWriter {
    fn owner(&mut self) -> Result<Option<Owner>, OriginError> {
        let sql = format!(
            "SELECT journal, epoch, domain_map, timestampdiff(MICROSECOND, heartbeat, {NOW}), \
             {WATERMARKS}, heartbeat = {RELEASED}, {WHOLE} FROM destage_owner WHERE id = 1"
        );
        let rows = self.connection.rows("read the owner", &sql)?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(Owner {
            journal: text(row, 0),
            epoch: number(row, 1),
            domain_map: number(row, 2),
            heartbeat_age: Duration::from_micros(number(row, 3)),
            released: text(row, 5) == "1",
            watermarks: parse_watermarks(Some(&text(row, 4))),
            is_whole: text(row, 6) == "1",
        }))
    }

    fn claim(&mut self, claim: &Claim) -> Result<(), OriginError> {
        match self.claim_in_transaction(claim) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.roll_back();
                Err(ledger::outrun(self.connection.place()))
            }
            Err(error) => {
                self.roll_back();
                Err(error)
            }
        }
    }

    fn apply(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim,
        mut groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let mut sum = Applied::default();
        let mut claim = *claim;
        let mut shown = Instant::now();
        while !groups.is_empty() {
            if shown.elapsed() > self.connection.timeout() / PATIENCE {
                // It takes long: other processes must not take this one for dead.
                self.heartbeat(claim.epoch)?;
                shown = Instant::now();
            }
            let (part, rest) = groups.split_at(groups.len().min(self.transaction_groups));
            let upto = part.last().map_or(claim.expected, |last| last.lsn);
            match self.apply_part(schema, &alone(&claim, &[mark(&claim, upto)]), part)? {
                (End::Committed, applied) => {
                    sum.changes += applied.changes;
                    sum.rows += applied.rows;
                    claim.expected = upto;
                    groups = rest;
                }
                (End::Moved, _) => {
                    claim.expected = self.landed(&claim, groups)?;
                    let landed = groups.partition_point(|group| group.lsn <= claim.expected);
                    groups = &groups[landed..];
                }
            }
        }
        Ok(sum)
    }

    fn park(
        &mut self,
        claim: &WriteClaim,
        lsn: Lsn,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        self.park_across(&alone(claim, &[mark(claim, lsn)]), parked)
    }

    fn apply_across(
        &mut self,
        schema: &Schema,
        claim: &AcrossClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        match self.apply_part(schema, claim, groups)? {
            (End::Committed, applied) => Ok(applied),
            (End::Moved, _) => self.landed_across(claim).map(|()| Applied::default()),
        }
    }

    fn park_across(
        &mut self,
        claim: &AcrossClaim<'_>,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        const WHAT: &str = "park a group";
        let mut statements = Vec::new();
        if let Some(parked) = parked {
            let depends_on = parked.depends_on.map(|lsn| signed(lsn.0).to_string());
            let mut sql = format!(
                "INSERT INTO destage_parked (domain, seq, depends_on, parked_at, reason, payload) \
                 VALUES ({}, {}, {}, {NOW}, ",
                parked.domain.0,
                signed(parked.lsn.0),
                depends_on.as_deref().unwrap_or("NULL"),
            );
            push_text(&mut sql, &parked.reason);
            sql.push_str(", ");
            push_text(&mut sql, &parked.payload);
            sql.push(')');
            let bytes_max = self.connection.packet_bytes_max();
            if sql.len() > bytes_max {
                let message = format!(
                    "failed to {WHAT} at {}: it takes {} bytes; raise the server's max_allowed_packet, \
                     which allows {bytes_max}",
                    self.connection.place(),
                    sql.len()
                );
                return Err(OriginError::new(Fault::Denied, message));
            }
            statements.push(Task::Plain(Statement { sql, rows: 1, target: None }));
        }
        match self.transaction(WHAT, &Moves::of(claim), &statements)? {
            End::Committed => Ok(()),
            End::Moved => self.landed_across(claim),
        }
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
        let take = |&lsn| Task::Plain(Statement { sql: take_parked(lsn), rows: 1, target: None });
        let mut statements: Vec<Task<'_>> = parked.iter().map(take).collect();
        statements.extend(self.statements(schema, &plan)?);
        match self.transaction("take back parked groups", &Moves::hold(claim), &statements)? {
            End::Committed => {
                Ok(Applied { changes: plan.changes as u64, rows: plan.rows() as u64 })
            }
            End::Moved => Err(self.fenced(claim.epoch)),
        }
    }

    fn mark_all(
        &mut self,
        claim: &WriteClaim,
        upto: Lsn,
        floors: &[(DomainId, Lsn)],
    ) -> Result<(), OriginError> {
        const WHAT: &str = "move the mark of all domains";
        let mut sql = compare_and_set(claim, upto);
        for (domain, floor) in floors {
            // A table that is changed may be read in a derived one only.
            sql.push_str(&format!(
                " AND coalesce((SELECT seq FROM (SELECT seq FROM destage_watermark WHERE domain = {}) AS w), 0) >= {}",
                domain.0,
                signed(floor.0)
            ));
        }
        if self.connection.script(WHAT, &[sql])? == [1] {
            return Ok(());
        }
        let found = self.heartbeat(claim.epoch)?;
        ledger::check_floors(self.connection.place(), &found, floors)?;
        self.landed(claim, &[GroupRef { lsn: upto, bytes: &[] }]).map(drop)
    }

    fn heartbeat(&mut self, epoch: u64) -> Result<Watermarks, OriginError> {
        const WHAT: &str = "renew the heartbeat";
        let sql = format!(
            "UPDATE destage_owner SET heartbeat = {NOW} WHERE id = 1 AND epoch = {}",
            signed(epoch)
        );
        if self.connection.script(WHAT, &[sql])? != [1] {
            return Err(self.fenced(epoch));
        }
        let rows = self.connection.rows(WHAT, &format!("SELECT {WATERMARKS}"))?;
        let watermarks = rows.first().map(|row| text(row, 0));
        Ok(parse_watermarks(watermarks.as_deref()))
    }

    fn release(&mut self, epoch: u64) -> Result<(), OriginError> {
        let sql = format!(
            "UPDATE destage_owner SET heartbeat = {RELEASED} WHERE id = 1 AND epoch = {}",
            signed(epoch)
        );
        if self.connection.script("release the origin", &[sql])? == [1] {
            return Ok(());
        }
        Err(self.fenced(epoch))
    }

    fn parked(&mut self) -> Result<Vec<ParkedGroup>, OriginError> {
        let what = "read the parked groups";
        let rows = self.connection.rows_within(what, PARKED, &mut Bound::parked())?;
        let parked = |row: &Texts| ParkedGroup {
            domain: DomainId(text(row, 0).parse().unwrap_or(0)),
            lsn: Lsn(number(row, 1)),
            depends_on: row[2].is_some().then(|| Lsn(number(row, 2))),
            reason: text(row, 3),
            payload: text(row, 4),
        };
        Ok(rows.iter().map(parked).collect())
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

/// How a claim moves the watermark of its domain.
fn mark(claim: &WriteClaim, upto: Lsn) -> Mark {
    Mark { domain: claim.domain, expected: claim.expected, upto }
}

/// The claim of one domain as one of several.
fn alone<'m>(claim: &WriteClaim, marks: &'m [Mark]) -> AcrossClaim<'m> {
    let WriteClaim { epoch, unsafe_no_watermark, .. } = *claim;
    AcrossClaim { epoch, marks, unsafe_no_watermark }
}

/// What a transaction does to the watermarks before anything else.
struct Moves {
    sql: Vec<String>,
    /// Each statement must meet one row.
    compares: bool,
}

impl Moves {
    /// Moves them as the claim says.
    fn of(claim: &AcrossClaim<'_>) -> Self {
        let sql = claim.marks.iter().map(|mark| compare_and_set(&claim.of(mark), mark.upto));
        Self { sql: sql.collect(), compares: !claim.unsafe_no_watermark }
    }

    /// Holds one where it is.
    fn hold(claim: &WriteClaim) -> Self {
        Self { sql: vec![still_ours(claim)], compares: !claim.unsafe_no_watermark }
    }
}

/// The statement that moves a domain's watermark, if it stands where the claim says.
fn compare_and_set(claim: &WriteClaim, upto: Lsn) -> String {
    let mut sql = format!(
        "UPDATE destage_watermark SET seq = {} WHERE domain = {}",
        signed(upto.0),
        claim.domain.0
    );
    if !claim.unsafe_no_watermark {
        let (expected, epoch) = (signed(claim.expected.0), signed(claim.epoch));
        sql.push_str(&format!(" AND seq = {expected} AND epoch = {epoch}"));
    }
    sql
}

fn text(row: &[Option<Vec<u8>>], at: usize) -> String {
    let value = row.get(at).and_then(|value| value.as_deref());
    String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
}

/// A number that is not negative; 0 for what nobody but a stranger can have written.
fn number(row: &[Option<Vec<u8>>], at: usize) -> u64 {
    text(row, at).parse().unwrap_or(0)
}

const SERVER: &str =
    "SELECT @@global.read_only, @@global.innodb_flush_log_at_trx_commit, @@session.tx_read_only";
const PARKED: &str = "SELECT domain, seq, depends_on, reason, payload FROM destage_parked ORDER BY parked_at, domain, seq";
const NOW: &str = "utc_timestamp(6)";
const RELEASED: &str = "'1970-01-01'";
/// Statements sent at once: past this a round trip more costs nothing.
const SCRIPT_BYTES_MAX: usize = 4 << 20;
/// The part of the time for an operation in which nothing of us need be seen.
const PATIENCE: u32 = 4;
