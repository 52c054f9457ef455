//! The ledger in SQL: what databases write differently, and the statements on Destage's own tables.

use super::{pieces, signed};
use crate::contract::{Claim, Mark, ParkedGroup, WriteClaim};
use destage_core::{DomainId, Lsn};
use std::fmt::{Display, Write};

/// What a database writes in its own way.
pub(in crate::origins) struct Dialect {
    /// Appends the place of a value: a parameter with this number, from 1 on, or the value itself as a literal.
    pub(in crate::origins) push_value: fn(&mut String, usize, &Value),
    /// The present moment, as `heartbeat` and `parked_at` hold it.
    pub(in crate::origins) now: &'static str,
    /// The heartbeat of an owner that has released the origin.
    pub(in crate::origins) released: &'static str,
    /// The age of `heartbeat` in seconds, with fractions.
    pub(in crate::origins) heartbeat_age: &'static str,
    /// The key column of `destage_owner`.
    pub(in crate::origins) owner_key: &'static str,
    /// The column `domain_map` as a text.
    pub(in crate::origins) domain_map: &'static str,
    /// All watermarks as one text, see [`super::parse_watermarks`].
    pub(in crate::origins) watermarks: &'static str,
    /// What an INSERT begins and ends with that leaves alone rows that are there.
    pub(in crate::origins) insert_missing: [&'static str; 2],
    /// Whether an UPDATE may return values, so that the heartbeat takes one statement.
    pub(in crate::origins) returns: bool,
}

/// A value in a statement on the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::origins) enum Value {
    Null,
    Integer(i64),
    /// All 64 bits count.
    Unsigned(u64),
    Text(String),
}

/// A statement on the ledger.
pub(in crate::origins) struct Statement {
    pub(in crate::origins) sql: String,
    /// Its parameters, where the dialect has them.
    pub(in crate::origins) values: Vec<Value>,
}

impl Dialect {
    fn statement(&self, sql: &str) -> Builder<'_> {
        Builder { dialect: self, statement: Statement { sql: sql.to_owned(), values: Vec::new() } }
    }

    /// The row of the owner: journal, epoch, domain map, age of the heartbeat, watermarks, whether it has released the
    /// origin, whether all watermarks are of its epoch.
    pub(super) fn owner(&self) -> Statement {
        let Self { domain_map, heartbeat_age, watermarks, released, .. } = self;
        self.statement(&format!(
            "SELECT journal, epoch, {domain_map}, {heartbeat_age}, {watermarks}, heartbeat = {released}, \
             NOT EXISTS (SELECT 1 FROM destage_watermark w WHERE w.epoch <> destage_owner.epoch) FROM destage_owner"
        ))
        .statement
    }

    /// Makes the claim's journal the owner: meets one row if the owner is the one expected.
    pub(super) fn claim_owner(&self, claim: &Claim) -> Statement {
        let Self { now, owner_key, insert_missing: [insert, or_leave], .. } = self;
        let (journal, epoch) = (Value::Text(claim.journal.clone()), signed(claim.epoch));
        let map = Value::Unsigned(claim.domain_map);
        let Some(expected) = claim.expected else {
            let sql = format!(
                "{insert} destage_owner ({owner_key}, journal, epoch, domain_map, heartbeat) VALUES (1, "
            );
            let sql =
                self.statement(&sql).value(journal).sql(", ").number(epoch).sql(", ").value(map);
            return sql.sql(&format!(", {now}) {or_leave}")).statement;
        };
        let sql = self.statement("UPDATE destage_owner SET journal = ").value(journal);
        let sql = sql.sql(", epoch = ").number(epoch).sql(", domain_map = ").value(map);
        let sql = sql.sql(&format!(", heartbeat = {now} WHERE epoch = "));
        sql.number(signed(expected)).statement
    }

    /// Gives all watermarks the claim's epoch.
    pub(super) fn claim_watermarks(&self, claim: &Claim) -> Statement {
        let sql = self.statement("UPDATE destage_watermark SET epoch = ");
        sql.number(signed(claim.epoch)).statement
    }

    /// Adds the watermarks that are missing.
    pub(super) fn add_watermarks(&self, claim: &Claim) -> Statement {
        let [insert, or_leave] = self.insert_missing;
        let row = |domain: &DomainId| format!("({}, 0, {})", domain.0, signed(claim.epoch));
        let rows: Vec<String> = claim.domains.iter().map(row).collect();
        let rows = rows.join(", ");
        let sql =
            format!("{insert} destage_watermark (domain, seq, epoch) VALUES {rows} {or_leave}");
        self.statement(&sql).statement
    }

    /// Renews the heartbeat of the owner with this epoch; returns the watermarks where the dialect can.
    pub(super) fn heartbeat(&self, epoch: u64) -> Statement {
        let sql = format!("UPDATE destage_owner SET heartbeat = {} WHERE epoch = ", self.now);
        let sql = self.statement(&sql).number(signed(epoch));
        if self.returns {
            sql.sql(&format!(" RETURNING {}", self.watermarks)).statement
        } else {
            sql.statement
        }
    }

    /// All watermarks, as one text.
    pub(super) fn watermarks(&self) -> Statement {
        self.statement(&format!("SELECT {}", self.watermarks)).statement
    }

    /// Domain, number and epoch of each watermark.
    pub(super) fn marks(&self) -> Statement {
        self.statement("SELECT domain, seq, epoch FROM destage_watermark").statement
    }

    /// Says that the owner has released the origin.
    pub(super) fn release(&self, epoch: u64) -> Statement {
        let sql = format!("UPDATE destage_owner SET heartbeat = {} WHERE epoch = ", self.released);
        self.statement(&sql).number(signed(epoch)).statement
    }

    /// Moves a watermark from where the claim expects it: meets one row if it stands there.
    pub(in crate::origins) fn compare_and_set(
        &self,
        claim: &WriteClaim<'_>,
        mark: &Mark,
    ) -> Statement {
        self.advance(claim, mark).statement
    }

    fn advance(&self, claim: &WriteClaim<'_>, mark: &Mark) -> Builder<'_> {
        let sql = self.statement("UPDATE destage_watermark SET seq = ").number(signed(mark.upto.0));
        let sql = sql.sql(" WHERE domain = ").number(mark.domain.0.into());
        if claim.unsafe_no_watermark {
            return sql;
        }
        let sql = sql.sql(" AND seq = ").number(signed(mark.expected.0));
        sql.sql(" AND epoch = ").number(signed(claim.epoch))
    }

    /// As [`Self::compare_and_set`], if besides no domain stands below its floor.
    pub(super) fn mark_all(
        &self,
        claim: &WriteClaim<'_>,
        mark: &Mark,
        floors: &[(DomainId, Lsn)],
    ) -> Statement {
        let mut sql = self.advance(claim, mark);
        for (domain, floor) in floors {
            // MariaDB reads a table that it changes in a derived one only.
            sql = sql.sql(
                " AND coalesce((SELECT seq FROM (SELECT seq FROM destage_watermark WHERE domain = ",
            );
            sql = sql.number(domain.0.into()).sql(") AS w), 0) >= ").number(signed(floor.0));
        }
        sql.statement
    }

    /// Holds a watermark where it is until the transaction ends: meets one row if the claim's owner still is the owner.
    pub(super) fn hold(&self, claim: &WriteClaim<'_>, mark: &Mark) -> Statement {
        let sql = self.statement("UPDATE destage_watermark SET seq = seq WHERE domain = ");
        let sql = sql.number(mark.domain.0.into()).sql(" AND epoch = ");
        sql.number(signed(claim.epoch)).statement
    }

    /// Stores a rejected group. What is left of its payload after `piece_bytes_max` stands in rows with the same number,
    /// whose domains are -1, -2 and so on.
    pub(super) fn store_parked(
        &self,
        parked: &ParkedGroup,
        piece_bytes_max: usize,
    ) -> Vec<Statement> {
        let pieces = pieces(&parked.payload, piece_bytes_max).into_iter();
        let row = |(at, piece): (i64, &str)| {
            let depends_on = parked.depends_on.filter(|_| at == 0);
            let depends_on = depends_on.map_or(Value::Null, |lsn| Value::Integer(signed(lsn.0)));
            let (domain, reason) = match at {
                0 => (parked.domain.0.into(), parked.reason.as_str()),
                further => (-further, ""),
            };
            let sql = "INSERT INTO destage_parked (domain, seq, depends_on, reason, payload, parked_at) VALUES (";
            let sql = self.statement(sql).number(domain).sql(", ");
            let sql = sql.number(signed(parked.lsn.0)).sql(", ").value(depends_on).sql(", ");
            let sql = sql.value(Value::Text(reason.to_owned())).sql(", ");
            let sql = sql.value(Value::Text(piece.to_owned()));
            sql.sql(&format!(", {})", self.now)).statement
        };
        (0..).zip(pieces).map(row).collect()
    }

    /// Takes one group out of the parked ones, whatever its domains: no two have one number. Its pieces stay.
    pub(super) fn take_parked(&self, lsn: Lsn) -> Statement {
        let sql = self.statement("DELETE FROM destage_parked WHERE domain >= 0 AND seq = ");
        sql.number(signed(lsn.0)).statement
    }

    /// Takes its pieces, too.
    pub(super) fn take_pieces(&self, lsn: Lsn) -> Statement {
        let sql = self.statement("DELETE FROM destage_parked WHERE domain < 0 AND seq = ");
        sql.number(signed(lsn.0)).statement
    }

    /// Gives one group up, or its pieces where someone has deleted its first row by hand.
    pub(super) fn give_up_parked(&self, lsn: Lsn) -> Statement {
        self.statement("DELETE FROM destage_parked WHERE seq = ").number(signed(lsn.0)).statement
    }

    /// All parked groups, oldest first, the pieces of each in their order.
    pub(super) fn parked(&self) -> Statement {
        let sql = "SELECT domain, seq, depends_on, reason, payload FROM destage_parked \
                   ORDER BY seq, domain < 0, abs(domain)";
        self.statement(sql).statement
    }
}

/// Puts a statement together.
struct Builder<'d> {
    dialect: &'d Dialect,
    statement: Statement,
}

impl Builder<'_> {
    fn sql(mut self, text: &str) -> Self {
        self.statement.sql.push_str(text);
        self
    }

    fn value(mut self, value: Value) -> Self {
        let Statement { sql, values } = &mut self.statement;
        (self.dialect.push_value)(sql, values.len() + 1, &value);
        values.push(value);
        self
    }

    fn number(self, number: i64) -> Self {
        self.value(Value::Integer(number))
    }
}

/// As SQL has whole numbers.
pub(in crate::origins) fn push_number(out: &mut String, number: impl Display) {
    let _infallible = write!(out, "{number}");
}
