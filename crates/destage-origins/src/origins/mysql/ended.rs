//! Rows that have ended: their keys, and the server's clock.

use super::literal::{push_text, selected};
use super::reader::{MysqlReader, encoded_row, ordered, push_after, qualified};
use super::statements::push_ended;
use crate::cells::Cell;
use crate::contract::{EndedAsk, EndedKeys, OriginError};
use crate::origins::bound::Bound;
use crate::origins::quote::join;
use crate::schema::{Schema, Table};
use crate::ttl::{cutoff_of, index_statement, is_referenced};
use destage_core::Fault;

const CLOCK: &str =
    "SELECT timestampdiff(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000";

impl MysqlReader {
    pub(super) fn read_clock(&mut self) -> Result<i64, OriginError> {
        let rows = self.connection.rows("read the clock", CLOCK)?;
        let text = rows.first().and_then(|row| row.first()?.as_deref());
        let clock = text.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        clock.ok_or_else(|| OriginError::new(Fault::Unavailable, "its clock told no time"))
    }

    /// Has a deletion explained, which takes the right to it. The catalogue tells that right only of what was granted to the
    /// user itself, not through a role.
    pub(super) fn try_deletion(&mut self, table: &Table) -> Result<(), OriginError> {
        let what = format!("see whether rows of {} may be deleted", table.name);
        self.connection.rows(&what, &deletion_sql(table)).map(drop)
    }

    pub(super) fn find_index(&mut self, table: &Table) -> Result<Option<String>, OriginError> {
        let Some(ttl) = &table.ttl else { return Ok(None) };
        let mut sql =
            "SELECT 1 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = database() \
                       AND SEQ_IN_INDEX = 1 AND TABLE_NAME = "
                .to_owned();
        push_text(&mut sql, &table.name);
        sql.push_str(" AND COLUMN_NAME = ");
        push_text(&mut sql, &table.columns[ttl.column].name);
        sql.push_str(" LIMIT 1");
        let found = self.connection.rows("look for an index", &sql)?;
        Ok(found.is_empty().then(|| index_statement("CREATE INDEX", table, ttl)))
    }

    pub(super) fn read_ended(
        &mut self,
        schema: &Schema,
        ask: &EndedAsk,
    ) -> Result<EndedKeys, OriginError> {
        let (table, limit) = (schema.table(ask.table), ask.limit);
        let clock_ms = self.read_clock()?;
        let (ttl, cutoff_ms, cutoff) = cutoff_of(table, ask, clock_ms)?;
        let (column, key) = (&table.columns[ttl.column], table.key());
        let orders: Vec<String> =
            key.iter().map(|c| ordered(&qualified(c.sql_name.clone()), c)).collect();
        let mut sql = format!(
            "SELECT ({}), {} FROM {} AS t WHERE ",
            is_referenced(schema, table),
            join(key.iter().map(|c| qualified(selected(c))), ", "),
            table.sql_name
        );
        let name = qualified(column.sql_name.clone());
        push_ended(&mut sql, &name, (table, column), Cell::Value(&cutoff))?;
        if let Some(after) = ask.after.as_deref() {
            sql.push_str(" AND ");
            push_after(&mut sql, &orders, key, after)?;
        }
        sql.push_str(&format!(" ORDER BY {} LIMIT {limit}", join(&orders, ", ")));
        let what = format!("look for rows of {} that have ended", table.name);
        self.check_size(&what, &sql)?;
        let found = self.connection.rows_within(&what, &sql, &mut Bound::rows(limit.max(1)))?;
        let keys = found.iter().filter_map(|row| {
            let referenced = row.first().and_then(|flag| flag.as_deref()) == Some(b"1");
            encoded_row(row, key).map(|key| (key, referenced))
        });
        Ok(EndedKeys { keys: keys.collect(), clock_ms, cutoff_ms })
    }
}

fn deletion_sql(table: &Table) -> String {
    format!("EXPLAIN DELETE FROM {} WHERE 1 = 0", table.sql_name)
}
