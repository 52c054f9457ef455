//! Triggers by which the server tells what others change.
//!
//! One function serves all tables. Its triggers fire once per statement, not per row, and read the rows' keys from the
//! statement's transition tables: a statement that changes a million rows costs one pass over the first of them and tells of
//! the table as a whole, where triggers for each row would queue a million notifications. The price is that a partition that
//! is added later needs triggers of its own, and that rows which logical replication applies are not told of.
//!
//! Destage's own transactions say so by a setting of theirs alone ([`OURS`]), which no connection pool can hand on to
//! others. What triggers and cascades change because of them is told of: Destage has not written that.

use super::connection::Connection;
use crate::contract::{InvalidationChange, OriginError};
use crate::schema::Table;
use destage_core::Fault;
use std::collections::BTreeSet;

/// What a transaction of Destage's says about itself.
pub(super) const OURS: &str = "SET LOCAL destage.writer = 'on'";
/// The channel of the notifications.
pub(super) const CHANNEL: &str = "destage_changed";
/// Triggers of each table: the event, and the transition tables that it has.
const EVENTS: [(&str, &str); 4] = [
    ("INSERT", " REFERENCING NEW TABLE AS destage_new"),
    ("UPDATE", " REFERENCING OLD TABLE AS destage_old NEW TABLE AS destage_new"),
    ("DELETE", " REFERENCING OLD TABLE AS destage_old"),
    ("TRUNCATE", ""),
];

/// Has the server tell what others change in these tables, or says what that takes.
pub(super) fn install(
    connection: &mut Connection,
    tables: &[&Table],
    is_dry: bool,
) -> Result<InvalidationChange, OriginError> {
    let (is_current, triggers) = look(connection, tables)?;
    let mut statements = Vec::new();
    if !is_current {
        statements.push(function());
    }
    let mut changed = BTreeSet::new();
    for trigger in &triggers {
        if !trigger.is_current {
            changed.insert(trigger.place);
            statements.extend(trigger.exists.then(|| trigger.drop_statement()));
            statements.push(trigger.create_statement(tables[trigger.place]));
        }
    }
    if !is_dry {
        execute(connection, "install the triggers", &statements)?;
    }
    let told = |(place, table): (usize, &&Table)| (table.name.clone(), changed.contains(&place));
    let tables = tables.iter().enumerate().map(told).collect();
    Ok(InvalidationChange { tables, statements })
}

/// Takes all of it back.
pub(super) fn remove(
    connection: &mut Connection,
    is_dry: bool,
) -> Result<InvalidationChange, OriginError> {
    let (rows, exists) = connection.run("look for the triggers", async |client| {
        let rows = client.query(ALL, &[]).await?;
        let exists: bool = client.query_one(EXISTS, &[]).await?.try_get(0)?;
        Ok((rows, exists))
    })?;
    let mut statements = Vec::new();
    let mut tables = BTreeSet::new();
    for row in &rows {
        let (target, trigger): (String, String) = (row.get(0), row.get(1));
        statements.push(format!("DROP TRIGGER {trigger} ON {target}"));
        tables.insert(target);
    }
    if exists {
        statements.push("DROP FUNCTION destage_changed()".to_owned());
    }
    if !is_dry {
        execute(connection, "remove the triggers", &statements)?;
    }
    let tables = tables.into_iter().map(|table| (table, true)).collect();
    Ok(InvalidationChange { tables, statements })
}

/// All of it, or nothing.
fn execute(
    connection: &mut Connection,
    what: &str,
    statements: &[String],
) -> Result<(), OriginError> {
    if statements.is_empty() {
        return Ok(());
    }
    let script = format!("BEGIN; {}; COMMIT", statements.join(";\n"));
    let executed = connection.run(what, async |client| {
        let executed = client.batch_execute(&script).await;
        if executed.is_err() {
            let _ = client.batch_execute("ROLLBACK").await;
        }
        executed
    });
    executed.map_err(|error| match error.fault {
        Fault::Denied => OriginError::new(
            Fault::Denied,
            format!("{error}; have a user who may run what --dry-run prints. Nothing was done"),
        ),
        _ => error,
    })
}

/// A trigger that there should be.
struct Trigger {
    /// Of its table among those asked for.
    place: usize,
    /// The table, or a partition of it.
    target: String,
    event: usize,
    exists: bool,
    is_current: bool,
}

impl Trigger {
    fn name(&self) -> String {
        format!("destage_changed_{}", EVENTS[self.event].0.to_lowercase())
    }

    fn drop_statement(&self) -> String {
        format!("DROP TRIGGER {} ON {}", self.name(), self.target)
    }

    fn create_statement(&self, table: &Table) -> String {
        let (event, transition) = EVENTS[self.event];
        let arguments: Vec<String> = arguments(table).map(literal).collect();
        format!(
            "CREATE TRIGGER {} AFTER {event} ON {}{transition} FOR EACH STATEMENT \
             WHEN (pg_catalog.current_setting('destage.writer', true) IS DISTINCT FROM 'on' \
             OR pg_catalog.pg_trigger_depth() > 0) EXECUTE FUNCTION destage_changed({})",
            self.name(),
            self.target,
            arguments.join(", ")
        )
    }
}

/// What a table's triggers give to the function: its name, and the columns of its key.
fn arguments(table: &Table) -> impl Iterator<Item = &str> {
    std::iter::once(table.sql_name.as_str()).chain(table.key().iter().map(|c| c.name.as_str()))
}

fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') {
        format!("E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

/// Whether the function is there as it should be, and the triggers that these tables and their partitions should have.
fn look(
    connection: &mut Connection,
    tables: &[&Table],
) -> Result<(bool, Vec<Trigger>), OriginError> {
    let names: Vec<&str> = tables.iter().map(|table| table.sql_name.as_str()).collect();
    let (source, rows) = connection.run("look for the triggers", async |client| {
        let source = client.query_opt(SOURCE, &[]).await?;
        Ok((source, client.query(TARGETS, &[&names]).await?))
    })?;
    let is_current = source.is_some_and(|row| row.get::<_, &str>(0) == BODY);
    let mut triggers = Vec::with_capacity(rows.len() * EVENTS.len());
    for row in &rows {
        let place = usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or_default();
        let found: Vec<(String, Vec<u8>)> =
            row.get::<_, Vec<String>>(2).into_iter().zip(row.get::<_, Vec<Vec<u8>>>(3)).collect();
        let wanted: Vec<u8> =
            arguments(tables[place]).flat_map(|text| text.bytes().chain([0])).collect();
        for event in 0..EVENTS.len() {
            let target = row.get(1);
            let mut trigger = Trigger { place, target, event, exists: false, is_current: false };
            let name = trigger.name();
            if let Some((_, arguments)) = found.iter().find(|(found, _)| *found == name) {
                trigger.exists = true;
                trigger.is_current = *arguments == wanted;
            }
            triggers.push(trigger);
        }
    }
    Ok((is_current, triggers))
}

fn function() -> String {
    format!(
        "CREATE OR REPLACE FUNCTION destage_changed() RETURNS trigger LANGUAGE plpgsql \
         SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO, MDY' SET TimeZone = 'UTC' \
         SET bytea_output = 'hex' AS $destage${BODY}$destage$"
    )
}

/// A notification holds less than 8,000 bytes; the table's name and the rest of it take less than 1,000. Where a column of
/// the key was renamed since, the table as a whole is told of: what others do must not fail.
const BODY: &str = "
DECLARE
    place text := to_json(TG_ARGV[0])::text;
    key text;
    told text := '';
    parts text[] := ARRAY[]::text[];
    taken int := 0;
    source text;
    is_whole bool := TG_OP = 'TRUNCATE';
BEGIN
    IF NOT is_whole THEN
        SELECT 'SELECT jsonb_build_array(' || string_agg(format('%I::text', name), ', ' ORDER BY at)
            || ')::text FROM '
            INTO source FROM unnest(TG_ARGV[1:]) WITH ORDINALITY AS c (name, at);
        source := CASE TG_OP
            WHEN 'INSERT' THEN source || 'destage_new LIMIT 1001'
            WHEN 'DELETE' THEN source || 'destage_old LIMIT 1001'
            ELSE '(' || source || 'destage_old LIMIT 1001) UNION ('
                || source || 'destage_new LIMIT 1001)'
        END;
        BEGIN
            FOR key IN EXECUTE source LOOP
                taken := taken + 1;
                is_whole := taken > 1000 OR octet_length(key) > 6000;
                EXIT WHEN is_whole;
                IF octet_length(told) + octet_length(key) > 6900 THEN
                    parts := parts || substr(told, 2);
                    told := '';
                END IF;
                told := told || ',' || key;
            END LOOP;
        EXCEPTION WHEN undefined_column THEN
            is_whole := true;
        END;
    END IF;
    IF is_whole THEN
        PERFORM pg_notify('destage_changed', '{\"table\":' || place || '}');
        RETURN NULL;
    END IF;
    IF told <> '' THEN
        parts := parts || substr(told, 2);
    END IF;
    FOREACH told IN ARRAY parts LOOP
        PERFORM pg_notify('destage_changed',
            '{\"table\":' || place || ',\"keys\":[' || told || ']}');
    END LOOP;
    RETURN NULL;
END
";

const SOURCE: &str =
    "SELECT prosrc FROM pg_catalog.pg_proc WHERE oid = to_regproc('destage_changed')";

const EXISTS: &str = "SELECT to_regproc('destage_changed') IS NOT NULL";

/// For each table and its partitions the triggers that are there and enabled, with their arguments.
const TARGETS: &str = "
SELECT r.place, format('%I.%I', n.nspname, c.relname),
       array(SELECT t.tgname::text FROM pg_catalog.pg_trigger t
             WHERE t.tgrelid = c.oid AND t.tgfoid = to_regproc('destage_changed')
             ORDER BY t.tgname),
       array(SELECT CASE WHEN t.tgenabled IN ('O', 'A') THEN t.tgargs ELSE '' END
             FROM pg_catalog.pg_trigger t
             WHERE t.tgrelid = c.oid AND t.tgfoid = to_regproc('destage_changed')
             ORDER BY t.tgname)
FROM unnest($1::text[]) WITH ORDINALITY AS r (name, place)
CROSS JOIN LATERAL (SELECT r.name::regclass::oid AS relid
    UNION SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(r.name::regclass) p) m
JOIN pg_catalog.pg_class c ON c.oid = m.relid AND c.relkind IN ('r', 'p')
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY r.place, 2";

const ALL: &str = "
SELECT format('%I.%I', n.nspname, c.relname), quote_ident(t.tgname)
FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE t.tgfoid = to_regproc('destage_changed')
ORDER BY 1, 2";
