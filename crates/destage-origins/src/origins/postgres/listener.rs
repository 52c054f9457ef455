//! The connection on which the server tells what others change, where triggers are installed for that
//! ([`super::invalidation`]).

use super::connection::Connection;
use super::invalidation::CHANNEL;
use super::settings::Settings;
use crate::cells::{Cell, push_cell};
use crate::contract::{ForeignChanges, Listener, Notices, OriginError};
use crate::origins::bound::exceeded;
use crate::schema::{Schema, Table, TableId};
use crate::value::ColumnType;
use destage_core::Fault;
use serde::Deserialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, channel};

pub(super) struct PostgresListener {
    connection: Connection,
    /// What was notified and not asked for yet.
    notices: Notices,
    /// One is there when something is; closed once the connection has ended.
    nudges: Receiver<()>,
    schema: Arc<Schema>,
    tables: Vec<TableId>,
    /// When the connection and the triggers were last looked at.
    looked: Instant,
}

/// How often a silent connection is looked at, and the triggers.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl PostgresListener {
    /// Listens; `None` if no table has the triggers.
    pub(super) fn open(
        settings: &Settings,
        schema: &Arc<Schema>,
    ) -> Result<Option<Self>, OriginError> {
        let (notices, (nudge, nudges)) = (Notices::default(), channel(1));
        let (heard, known) = (notices.clone(), schema.clone());
        let hear = move |payload: &str| {
            if heard.add(|all| note(all, &known, payload)) {
                // One that nobody has taken yet will do.
                let _ = nudge.try_send(());
            }
        };
        let mut connection = Connection::open_notified(settings, Box::new(hear))?;
        connection.run("listen", async |client| {
            let name = "SET application_name = 'destage listener'";
            client.batch_execute(&format!("{name}; LISTEN {CHANNEL}")).await
        })?;
        let schema = schema.clone();
        // After LISTEN: triggers that come later tell of themselves at the next look.
        let tables = covered(&mut connection, &schema)?;
        let looked = Instant::now();
        let listener = Self { connection, notices, nudges, schema, tables, looked };
        Ok((!listener.tables.is_empty()).then_some(listener))
    }

    /// Finds out whether the server still is there, and tells of the same tables.
    fn look(&mut self) -> Result<(), OriginError> {
        self.looked = Instant::now();
        if covered(&mut self.connection, &self.schema)? == self.tables {
            return Ok(());
        }
        let message = format!(
            "{} tells of other tables than before: the triggers were changed",
            self.connection.place()
        );
        Err(OriginError::new(Fault::Unavailable, message))
    }

    fn ended(&self) -> OriginError {
        if self.connection.is_exceeded() {
            return exceeded("listen", self.connection.place());
        }
        let message = format!("the connection to {} has ended", self.connection.place());
        OriginError::new(Fault::Unavailable, message)
    }
}

impl Listener for PostgresListener {
    fn tables(&self) -> &[TableId] {
        &self.tables
    }

    fn wait(&mut self, limit: Duration) -> Result<ForeignChanges, OriginError> {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.look()?;
        }
        match self.connection.wait_for(limit, self.nudges.recv()) {
            None => Ok(ForeignChanges::default()),
            Some(None) => Err(self.ended()),
            Some(Some(())) => Ok(self.notices.take()),
        }
    }
}

/// What a notification says.
#[derive(Deserialize)]
struct Payload {
    table: String,
    /// The rows' keys; without them, the table as a whole.
    keys: Option<Vec<Vec<Option<String>>>>,
}

/// Takes in a notification, unless it is none of ours.
fn note(changes: &mut ForeignChanges, schema: &Schema, payload: &str) {
    // Anybody may notify on the channel.
    let Ok(payload) = serde_json::from_str::<Payload>(payload) else {
        tracing::debug!(payload, "a notification that is none of Destage's");
        return;
    };
    let Some(table) = schema.reachable().iter().find(|t| t.sql_name == payload.table) else {
        return;
    };
    let keys = payload.keys.unwrap_or_default();
    let read: Option<Vec<Box<[u8]>>> = keys.iter().map(|key| encoded(table, key)).collect();
    changes.note(table.id, read.filter(|rows| !rows.is_empty()));
}

/// A row's key as the cache has it; `None` if it cannot be read.
fn encoded(table: &Table, key: &[Option<String>]) -> Option<Box<[u8]>> {
    if key.len() != table.key_len {
        return None;
    }
    let mut cells = Vec::new();
    for (column, text) in table.key().iter().zip(key) {
        let text = text.as_deref()?;
        match column.ty {
            ColumnType::Bytes => push_cell(&mut cells, Cell::Value(&unhex(text)?)),
            _ => {
                let value = column.ty.canonical(text.as_bytes()).ok()?;
                push_cell(&mut cells, Cell::Value(&value));
            }
        }
    }
    Some(cells.into())
}

/// Bytes as the server shows them: `\x` and two digits for each.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("\\x")?.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(byte).collect()
}

/// The tables of which the server tells, in their order.
fn covered(connection: &mut Connection, schema: &Schema) -> Result<Vec<TableId>, OriginError> {
    let tables = schema.reachable();
    let names: Vec<&str> = tables.iter().map(|table| table.sql_name.as_str()).collect();
    let rows = connection
        .run("look for the triggers", async |client| client.query(COVERED, &[&names]).await)?;
    let mut covered = Vec::new();
    for row in &rows {
        let place = usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or_default();
        let Some(table) = tables.get(place) else { continue };
        match row.get::<_, i64>(1) {
            0 => covered.push(table.id),
            lacking => tracing::warn!(
                table = table.name,
                lacking,
                "triggers are missing or tell of another name of the table, so others' changes of it are not told of; run \
                 destage schema --install-invalidation again"
            ),
        }
    }
    Ok(covered)
}

/// The tables with triggers, and how many of a table and its partitions lack some. A trigger tells of the name that the table
/// had when it was made, which is its first argument, up to a zero: of a table that was renamed since nobody is told.
const COVERED: &str = "
SELECT place, count(*) FILTER (WHERE named < 4)
FROM (SELECT r.place, c.oid, t.triggers, t.named
      FROM (SELECT name, place,
                   convert_to(name, getdatabaseencoding()::name) || '\\x00'::bytea AS argument
            FROM unnest($1::text[]) WITH ORDINALITY AS r (name, place)) r
      CROSS JOIN LATERAL (SELECT to_regclass(r.name)::oid AS relid
          UNION SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(to_regclass(r.name)) p) m
      JOIN pg_catalog.pg_class c ON c.oid = m.relid AND c.relkind IN ('r', 'p')
      CROSS JOIN LATERAL (SELECT count(*) AS triggers, count(*) FILTER (
              WHERE substring(t.tgargs FOR octet_length(r.argument)) = r.argument) AS named
          FROM pg_catalog.pg_trigger t
          WHERE t.tgrelid = c.oid AND t.tgfoid = to_regproc('destage_changed')
            AND t.tgenabled IN ('O', 'A')) t) f
GROUP BY place HAVING bool_or(triggers > 0)
ORDER BY place";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::ChangedRows;
    use crate::schema::{Column, ColumnDefault};

    fn schema() -> Schema {
        let column = |name: &str, ty| Column {
            name: name.into(),
            sql_name: name.into(),
            ty,
            type_name: String::new(),
            not_null: true,
            default: ColumnDefault::None,
            generated: false,
            structural: true,
            checked: false,
        };
        let mut orders = Table::named("orders".into(), "shop.orders".into());
        orders.columns = vec![column("id", ColumnType::Int { min: 0, max: 1 << 31 })];
        orders.key_len = 1;
        let mut seen = Table::named("seen".into(), "shop.seen".into());
        let text = ColumnType::Text { chars_max: None };
        seen.columns = vec![column("token", ColumnType::Bytes), column("who", text)];
        seen.key_len = 2;
        Schema::new(vec![orders, seen], Vec::new())
    }

    fn told(payloads: &[&str]) -> Vec<(TableId, ChangedRows)> {
        let (schema, mut changes) = (schema(), ForeignChanges::default());
        payloads.iter().for_each(|payload| note(&mut changes, &schema, payload));
        changes.into_tables().collect()
    }

    fn key(cells: &[&[u8]]) -> Box<[u8]> {
        let mut out = Vec::new();
        cells.iter().for_each(|cell| push_cell(&mut out, Cell::Value(cell)));
        out.into()
    }

    #[test]
    fn rows_are_told_of_once_by_their_canonical_keys() {
        let changes = told(&[
            r#"{"table":"shop.orders","keys":[["7"],["8"]]}"#,
            r#"{"table":"shop.orders","keys":[["7"]]}"#,
            r#"{"table":"shop.seen","keys":[["\\x00ff", "a:\"b"]]}"#,
        ]);
        assert_eq!(changes[0].1.as_deref(), Some(&[key(&[b"7"]), key(&[b"8"])][..]));
        assert_eq!(changes[1].1.as_deref(), Some(&[key(&[&[0, 255], b"a:\"b"])][..]));
    }

    #[test]
    fn what_cannot_be_read_is_the_table_as_a_whole_and_strangers_are_ignored() {
        let orders = TableId(0);
        for payload in [
            r#"{"table":"shop.orders"}"#,
            r#"{"table":"shop.orders","keys":[]}"#,
            r#"{"table":"shop.orders","keys":[["seven"]]}"#,
            r#"{"table":"shop.orders","keys":[["1","2"]]}"#,
            r#"{"table":"shop.orders","keys":[[null]]}"#,
        ] {
            assert_eq!(told(&[payload]), [(orders, None)], "{payload}");
        }
        assert_eq!(told(&[r#"{"table":"shop.seen","keys":[["00", "a"]]}"#]), [(TableId(1), None)]);
        assert_eq!(told(&["hello", "{}", r#"{"table":"other.orders"}"#]), []);
        let whole = r#"{"table":"shop.orders"}"#;
        assert_eq!(told(&[whole, r#"{"table":"shop.orders","keys":[["7"]]}"#]), [(orders, None)]);
    }
}
