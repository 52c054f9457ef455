//! `destage schema`: what an origin's catalogue allows, and whether the origin tells what others change.

use crate::error::CliError;
use crate::invalidation::InvalidationArgs;
use crate::output::{Format, print, print_json};
use crate::values::interval;
use destage_core::Fault;
use destage_data::origins::{self, OriginError};
use destage_data::schema::{Column, ColumnDefault, Schema, Table};
use destage_data::value::ColumnType;
use destage_runtime::units::Interval;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Flags of `schema`.
#[derive(Debug, clap::Args)]
pub(crate) struct SchemaArgs {
    /// The origin: sqlite:FILE, postgres://USER:PASSWORD@HOST[:PORT]/DATABASE, for MariaDB
    /// mysql://USER:PASSWORD@HOST[:PORT]/DATABASE, or mongodb://USER:PASSWORD@HOST[:PORT]/DATABASE.
    #[arg(long, env = "DESTAGE_ORIGIN", hide_env_values = true, value_name = "URL")]
    origin: String,

    /// The settings file of the server, whose [table.NAME] sections say what the collections of a MongoDB hold.
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,

    /// Longest wait for one answer of the origin. 100ms to 5m.
    #[arg(
        long,
        default_value = "10s",
        value_parser = |s: &str| interval(s, "100ms", "5m"),
        value_name = "TIME"
    )]
    origin_timeout: Interval,

    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,

    #[command(flatten)]
    invalidation: InvalidationArgs,
}

/// Reads the catalogue and shows it, or changes what the origin tells.
pub(crate) fn run(args: &SchemaArgs) -> Result<(), CliError> {
    args.invalidation.check()?;
    let timeout = args.origin_timeout.duration().expect("none is out of its range");
    let tables = match &args.config {
        Some(path) => crate::serve::tables(path)?,
        None => BTreeMap::new(),
    };
    let open = origins::open(&args.origin, timeout, &tables);
    let origin = open.map_err(|error| failed(READ, &error))?;
    let schema = || origin.schema().map_err(|error| failed(READ, &error));
    if args.invalidation.is_asked() {
        return args.invalidation.run(&*origin, schema, refused, args.format);
    }
    let schema = schema()?;
    match args.format {
        Format::Table => print(&table(&origin.describe(), &schema)),
        Format::Json => print_json(&to_json(&origin.describe(), &schema)),
    }
}

const READ: &str = "read the schema";

fn failed(what: &str, error: &OriginError) -> CliError {
    CliError::new(error.exit_code(), format!("failed to {what}: {error}"))
}

/// A change that the origin denies is the wrong thing to ask for.
fn refused(what: &str, error: &OriginError) -> CliError {
    match error.fault {
        Fault::Denied => CliError::usage(format!("failed to {what}: {error}")),
        _ => failed(what, error),
    }
}

fn table(origin: &str, schema: &Schema) -> String {
    let mut out = format!("{origin}: {} tables can be reached\n", schema.tables.len());
    for table in &schema.tables {
        let _ = writeln!(out, "\n{}   {}", pattern(table), class(schema, table));
        let width = table.columns.iter().map(|c| c.name.chars().count()).max().unwrap_or(0);
        for (index, column) in table.columns.iter().enumerate() {
            let notes = notes(table, index, column).join(", ");
            let line = format!("  {:<width$}  {:<18}  {notes}", column.name, column.type_name);
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
    if !schema.unreachable.is_empty() {
        let _ = writeln!(out, "\nnot reachable:");
        for table in &schema.unreachable {
            let _ = writeln!(out, "  {}: {}", table.name, table.reason);
        }
    }
    out
}

/// The key as clients write it: `orders:{id}`.
fn pattern(table: &Table) -> String {
    let key: String = table.key().iter().map(|column| format!(":{{{}}}", column.name)).collect();
    format!("{}{key}", table.name)
}

fn class(schema: &Schema, table: &Table) -> String {
    let mut parts = Vec::new();
    if table.is_plain() {
        parts.push("plain".to_string());
    }
    if let Some(why) = &table.class.opaque {
        parts.push(format!("writes go through: {why}"));
    }
    if table.columns.iter().any(|column| column.generated) {
        parts.push("has computed columns".into());
    }
    for (label, ids) in [("references", &table.references), ("changes", &table.class.cascades_to)] {
        if !ids.is_empty() {
            let names: Vec<_> = ids.iter().map(|&id| schema.table(id).name.as_str()).collect();
            parts.push(format!("{label} {}", names.join(", ")));
        }
    }
    parts.join("; ")
}

fn notes(table: &Table, index: usize, column: &Column) -> Vec<String> {
    let mut notes = Vec::new();
    if index < table.key_len {
        notes.push("key".to_string());
    }
    if table.generated_key == Some(index) {
        notes.push("the origin can hand out values (DESTAGE NEXTID)".into());
    }
    if column.generated {
        notes.push("computed by the origin, read-only".into());
    }
    if column.ty == ColumnType::Opaque {
        notes.push("read-only: its form is not known".into());
    }
    if column.not_null && index >= table.key_len {
        notes.push("not null".into());
    }
    match &column.default {
        ColumnDefault::None => {}
        ColumnDefault::Constant(value) => {
            notes.push(format!("default '{}'", String::from_utf8_lossy(value)));
        }
        ColumnDefault::Computed => notes.push("default computed by the origin".into()),
    }
    notes
}

fn to_json(origin: &str, schema: &Schema) -> Value {
    let names = |ids: &[destage_data::schema::TableId]| -> Vec<&str> {
        ids.iter().map(|&id| schema.table(id).name.as_str()).collect()
    };
    let tables: Vec<_> = schema
        .tables
        .iter()
        .map(|table| {
            json!({
                "name": table.name,
                "pattern": pattern(table),
                "key": table.key().iter().map(|column| &column.name).collect::<Vec<_>>(),
                "plain": table.is_plain(),
                "writes_go_through": table.class.opaque,
                "references": names(&table.references),
                "cascades_to": names(&table.class.cascades_to),
                "columns": table.columns.iter().enumerate().map(|(index, column)| json!({
                    "name": column.name,
                    "type": column.type_name,
                    "key": index < table.key_len,
                    "not_null": column.not_null,
                    "computed": column.generated,
                    "writable": index >= table.key_len
                        && !column.generated
                        && column.ty != ColumnType::Opaque,
                    "notes": notes(table, index, column),
                })).collect::<Vec<_>>(),
            })
        })
        .collect();
    let unreachable: Vec<_> = schema
        .unreachable
        .iter()
        .map(|table| json!({ "name": table.name, "reason": table.reason }))
        .collect();
    json!({ "origin": origin, "tables": tables, "unreachable": unreachable })
}
