//! `destage schema`: what an origin's catalogue allows, and whether the origin tells what others change.

use crate::error::CliError;
use crate::invalidation::InvalidationArgs;
use crate::output::{Format, print, print_json};
use crate::values::interval;
use destage_core::{Fault, Span};
use destage_data::checks::Check;
use destage_data::origins::{self, OriginError};
use destage_data::schema::{
    Column, ColumnDefault, ForeignKey, Schema, SetByTrigger, Table, TableId, Unique,
};
use destage_data::serve::{fit, missing_indexes};
use destage_data::settings::{Settings, TableSettings};
use destage_data::value::ColumnType;
use destage_runtime::units::Interval;
use serde_json::{Value, json};
use std::fmt::Write;

/// Flags of `schema`.
#[derive(Debug, clap::Args)]
pub(crate) struct SchemaArgs {
    /// The origin: sqlite:FILE, postgres://USER:PASSWORD@HOST[:PORT]/DATABASE, for MariaDB
    /// mysql://USER:PASSWORD@HOST[:PORT]/DATABASE, or mongodb://USER:PASSWORD@HOST[:PORT]/DATABASE. That of the settings file
    /// unless told.
    #[arg(
        long,
        env = "DESTAGE_ORIGIN",
        hide_env_values = true,
        required_unless_present = "config",
        value_name = "URL"
    )]
    origin: Option<String>,

    /// The settings file of the server: what comes of its sections is shown, and what does not fit the tables.
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,

    /// Longest wait for one answer of the origin. 100ms to 5m; 10s unless told, here or in the settings file.
    #[arg(long, value_parser = |s: &str| interval(s, "100ms", "5m"), value_name = "TIME")]
    origin_timeout: Option<Interval>,

    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,

    /// Print nothing but the sections to begin a settings file with, from samples of the documents (MongoDB).
    #[arg(long, conflicts_with = "format")]
    suggest: bool,

    #[command(flatten)]
    invalidation: InvalidationArgs,
}

/// Reads the catalogue and shows it, or changes what the origin tells.
pub(crate) fn run(args: &SchemaArgs) -> Result<(), CliError> {
    args.invalidation.check()?;
    let settings = args.settings()?;
    let url = settings.origin.as_deref().ok_or_else(|| {
        CliError::usage("neither --origin nor the settings file names an origin: give one of them")
    })?;
    let open = origins::open(url, settings.origin_timeout, &settings.tables);
    let origin = open.map_err(|error| failed(READ, &error))?;
    let schema = || origin.schema().map_err(|error| failed(READ, &error));
    if args.invalidation.is_asked() {
        return args.invalidation.run(&*origin, schema, refused, args.format);
    }
    let mut schema = schema()?;
    let suggested = origin.suggested_settings(&schema).map_err(|error| failed(READ, &error))?;
    if args.suggest {
        let sections = suggested.ok_or_else(|| {
            let origin = origin.describe();
            CliError::usage(format!(
                "nothing is to be suggested for {origin}: its catalogue tells all tables, or its collections hold no documents. \
                 See them without --suggest"
            ))
        })?;
        return print(&format!("# {SUGGESTED}\n{sections}"));
    }
    // What does not fit is told below what there is.
    let fits = fit(&settings, &*origin, &mut schema);
    let missing = missing_indexes(&*origin, &schema);
    let (origin, schema, settings) = (origin.describe(), &schema, &settings);
    let shown = Shown { origin, schema, settings, suggested, missing };
    match args.format {
        Format::Table => print(&shown.table())?,
        Format::Json => print_json(&shown.json())?,
    }
    fits.map_err(|error| CliError::new(error.exit_code(), error))
}

impl SchemaArgs {
    /// Those of the server that matter here.
    fn settings(&self) -> Result<Settings, CliError> {
        let mut settings = match &self.config {
            Some(path) => crate::serve::of_file(path)?,
            None => Settings::default(),
        };
        let origin = self.origin.clone().filter(|origin| !origin.is_empty());
        settings.origin = origin.or(settings.origin);
        if let Some(timeout) = self.origin_timeout.and_then(Interval::duration) {
            settings.origin_timeout = timeout;
        }
        Ok(settings)
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

/// What is shown.
struct Shown<'a> {
    origin: String,
    schema: &'a Schema,
    settings: &'a Settings,
    /// What to write into a settings file.
    suggested: Option<String>,
    /// Tables whose ended rows no index finds, and the statement that creates one.
    missing: Result<Vec<(String, String)>, OriginError>,
}

impl Shown<'_> {
    fn table(&self) -> String {
        let tables = self.schema.reachable();
        let mut out = format!("{}: {} tables can be reached", self.origin, tables.len());
        let buffered = tables.iter().filter(|table| self.is_buffered(table)).count();
        let _ = match tables.len() - buffered {
            _ if tables.is_empty() => writeln!(out),
            0 => writeln!(out, "; writes of all of them are buffered"),
            others => writeln!(out, "; writes of {buffered} are buffered, of {others} are not"),
        };
        for table in tables {
            let _ = writeln!(out, "\n{}   {}", pattern(table), self.class(table));
            let width = table.columns.iter().map(|c| c.name.chars().count()).max().unwrap_or(0);
            for (index, column) in table.columns.iter().enumerate() {
                let notes = notes(table, index, column).join(", ");
                let line = format!("  {:<width$}  {:<18}  {notes}", column.name, column.type_name);
                let _ = writeln!(out, "{}", line.trim_end());
            }
            for check in &table.checks {
                let _ =
                    writeln!(out, "  {}: {}", check.shown(), judged(left_to_origin(table, check)));
            }
            for key in &table.foreign_keys {
                let shown = key.shown(table, self.schema.table(key.parent));
                let _ = writeln!(out, "  {shown}: {}", judged(self.fk_left(table, key)));
            }
            for unique in &table.uniques {
                let shown = unique.shown(table);
                let _ = writeln!(out, "  {shown}: {}", judged(unique_left(table, unique)));
            }
        }
        if !self.schema.unreachable.is_empty() {
            let _ = writeln!(out, "\nnot reachable:");
            for table in &self.schema.unreachable {
                let _ = writeln!(out, "  {}: {}", table.name, table.reason);
            }
        }
        if !self.schema.key_changes.is_empty() {
            let statements = self.schema.key_changes.join(";\n");
            let _ = writeln!(out, "\n-- {}\n{statements};", Schema::KEY_CHANGES);
        }
        if let Some(sections) = &self.suggested {
            let _ = writeln!(out, "\n# {SUGGESTED}\n{sections}");
        }
        out
    }

    fn settings(&self, table: &Table) -> TableSettings {
        self.settings.tables.get(&table.name).cloned().unwrap_or_default()
    }

    /// Whether writes of the table are acknowledged before the origin has them, cascades aside.
    fn is_buffered(&self, table: &Table) -> bool {
        let settings = self.settings(table);
        !settings.ack_origin && !settings.goes_through(table)
    }

    /// What the origin and the settings make of the table's writes and copies.
    fn class(&self, table: &Table) -> String {
        let settings = self.settings(table);
        let mut parts = Vec::new();
        if table.is_plain() {
            parts.push("plain".to_string());
        }
        if let Some(index) = &table.key_index {
            parts.push(format!("has no primary key: its unique index {index} is the key"));
        }
        match through(table, &settings) {
            Some(how) => parts.push(how),
            None if self.is_buffered(table) => parts.push("writes are buffered".into()),
            None => {}
        }
        parts.extend(set_by_triggers(table));
        if table.columns.iter().any(|column| column.generated) {
            parts.push("has computed columns".into());
        }
        let cascades = &table.class.cascades_to;
        for (label, ids) in [("references", &table.references), ("changes", cascades)] {
            if !ids.is_empty() {
                parts.push(format!("{label} {}", self.names(ids).join(", ")));
            }
        }
        if settings.ack_origin {
            parts.push("writes wait for the origin (ack)".into());
        }
        if settings.blind {
            parts.push("written blind".into());
        }
        if settings.others_write {
            parts.push("other programs write to it (writers)".into());
        }
        if settings.merges_new {
            parts.push("new rows are merged with what they meet (new)".into());
        }
        if let Some(age) = settings.max_age {
            parts.push(format!("copies are at most {} old (max_age)", Interval(age)));
        }
        if !table.given_here.is_empty() {
            let names = table.given_here.iter().map(|(column, _)| &*table.columns[*column].name);
            let names: Vec<&str> = names.collect();
            parts.push(format!("new rows are given {} here (defaults)", names.join(", ")));
        }
        if settings.copies_expire {
            parts.push("copies may expire (ttl)".into());
        }
        if let Some(ttl) = &table.ttl {
            let column = &table.columns[ttl.column].name;
            parts.push(format!("rows end at the time in {column}, {} (ttl)", ttl.describe()));
            match &self.missing {
                Ok(missing) => {
                    let missing = missing.iter().find(|(name, _)| *name == table.name);
                    parts.extend(missing.map(|(_, statement)| {
                        format!("no index finds those that have ended: {statement}")
                    }));
                }
                Err(error) => parts.push(format!(
                    "whether an index finds those that have ended is not known: {error}"
                )),
            }
        }
        parts.join("; ")
    }

    /// Why a foreign key is not judged here.
    fn fk_left(&self, table: &Table, key: &ForeignKey) -> Option<&'static str> {
        let left = self.schema.fk_left_to_origin(table, key);
        left.or_else(|| {
            (!table.asks_foreign_keys).then_some("unless the settings say fk = \"ask\"")
        })
    }

    fn names(&self, ids: &[TableId]) -> Vec<&str> {
        ids.iter().map(|&id| self.schema.table(id).name.as_str()).collect()
    }

    fn json(&self) -> Value {
        let tables: Vec<_> =
            self.schema.reachable().iter().map(|table| self.table_json(table)).collect();
        let unreachable: Vec<_> = self
            .schema
            .unreachable
            .iter()
            .map(|table| json!({ "name": table.name, "reason": table.reason }))
            .collect();
        json!({
            "origin": self.origin,
            "tables": tables,
            "unreachable": unreachable,
            "key_changes": self.schema.key_changes,
            "suggested_settings": self.suggested,
        })
    }

    fn table_json(&self, table: &Table) -> Value {
        let settings = self.settings(table);
        let column = |(index, column): (usize, &Column)| {
            json!({
                "name": column.name,
                "type": column.type_name,
                "key": index < table.key_len,
                "not_null": column.not_null,
                "computed": table.is_computed(index),
                "given_here": is_given(table, index),
                "writable": index >= table.key_len
                    && !column.generated
                    && column.ty != ColumnType::Opaque,
                "notes": notes(table, index, column),
            })
        };
        let set = |set: &SetByTrigger| {
            json!({
                "column": table.columns[set.column].name,
                "on_insert": set.on_insert,
                "on_update": set.on_update,
                "by": set.by,
            })
        };
        let check = |check: &Check| {
            json!({
                "name": check.name,
                "condition": check.text,
                "before_acknowledgement": left_to_origin(table, check).is_none(),
                "left_to_origin": left_to_origin(table, check),
            })
        };
        let foreign_key = |key: &ForeignKey| {
            let names = |table: &Table, columns: &[usize]| -> Vec<String> {
                columns.iter().map(|&column| table.columns[column].name.clone()).collect()
            };
            let (parent, left) = (self.schema.table(key.parent), self.fk_left(table, key));
            json!({
                "name": key.name,
                "columns": names(table, &key.columns),
                "references": parent.name,
                "referenced_columns": names(parent, &key.parent_columns),
                "before_acknowledgement": left.is_none(),
                "left_to_origin": left,
            })
        };
        let unique = |unique: &Unique| {
            let columns = unique.columns.iter().map(|&column| &table.columns[column].name);
            let left = unique_left(table, unique);
            json!({
                "name": unique.name,
                "columns": columns.collect::<Vec<_>>(),
                "before_acknowledgement": left.is_none(),
                "left_to_origin": left,
            })
        };
        let through = table.class.opaque.as_ref().filter(|_| settings.goes_through(table));
        json!({
            "name": table.name,
            "pattern": pattern(table),
            "key": table.key().iter().map(|column| &column.name).collect::<Vec<_>>(),
            "key_index": table.key_index,
            "plain": table.is_plain(),
            "writes_go_through": through,
            "does_more": table.class.opaque,
            "triggers_declared": settings.triggers,
            "triggers_set": table.class.sets.iter().map(set).collect::<Vec<_>>(),
            "ack_origin": settings.ack_origin,
            "blind": settings.blind,
            "others_write": settings.others_write,
            "merges_new": settings.merges_new,
            "max_age_seconds": settings.max_age.map(Span::as_secs_f64),
            "copies_expire": settings.copies_expire,
            "ends_at": table.ttl.as_ref().map(|ttl| &table.columns[ttl.column].name),
            "references": self.names(&table.references),
            "cascades_to": self.names(&table.class.cascades_to),
            "columns": table.columns.iter().enumerate().map(column).collect::<Vec<_>>(),
            "checks": table.checks.iter().map(check).collect::<Vec<_>>(),
            "unique": table.uniques.iter().map(unique).collect::<Vec<_>>(),
            "foreign_keys": table.foreign_keys.iter().map(foreign_key).collect::<Vec<_>>(),
        })
    }
}

const SUGGESTED: &str = "To begin a settings file with (--config): what some of their documents hold, which is yours to correct";

/// What becomes of the writes of a table with which the origin does more than store them.
fn through(table: &Table, settings: &TableSettings) -> Option<String> {
    let why = table.class.opaque.as_ref()?;
    Some(match &settings.triggers {
        Some(_) if !settings.goes_through(table) && !settings.trigger_sets.is_empty() => {
            format!("writes are buffered: {why}, declared to set columns of its own row only")
        }
        Some(changed) if !settings.goes_through(table) => {
            debug_assert!(changed.is_empty(), "others go through");
            format!("writes are buffered: {why}, declared to change nothing that is cached")
        }
        Some(changed) if !changed.is_empty() => {
            format!("writes go through: {why}, declared to change {}", changed.join(", "))
        }
        _ => format!("writes go through: {why}"),
    })
}

/// Which columns triggers set in the row that is written, and how that is known.
fn set_by_triggers(table: &Table) -> Option<String> {
    let sets = &table.class.sets;
    let names = |is_meant: &dyn Fn(&SetByTrigger) -> bool| {
        let meant = sets.iter().filter(|set| is_meant(set));
        let mut names: Vec<&str> =
            meant.map(|set| table.columns[set.column].name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.join(", ")
    };
    let mut by: Vec<Option<&String>> = sets.iter().map(|set| set.by.as_ref()).collect();
    by.sort_unstable();
    by.dedup();
    let told = by.into_iter().map(|by| {
        let columns = names(&|set| set.by.as_ref() == by);
        match by {
            Some(trigger) => {
                format!("trigger {trigger} sets {columns} to the time, and does nothing else")
            }
            None => format!("triggers are declared to set {columns}"),
        }
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| told.join("; "))
}

/// When a constraint is judged that is left to the origin for this reason, if for any.
fn judged(left: Option<&str>) -> String {
    match left {
        None => "judged before the acknowledgement".into(),
        Some(why) => format!("left to the origin ({why})"),
    }
}

/// Why a unique index is not judged here.
fn unique_left(table: &Table, unique: &Unique) -> Option<&'static str> {
    let left = table.unique_left_to_origin(unique);
    left.or_else(|| (!table.asks_unique).then_some("unless the settings say unique = \"ask\""))
}

/// Why a constraint is not judged here.
fn left_to_origin<'a>(table: &Table, check: &'a Check) -> Option<&'a str> {
    match &check.condition {
        Err(why) => Some(why),
        Ok(_) if table.class.opaque.is_some() => Some("triggers or rules may change the row first"),
        Ok(_) => None,
    }
}

/// The key as clients write it: `orders:{id}`.
fn pattern(table: &Table) -> String {
    let key: String = table.key().iter().map(|column| format!(":{{{}}}", column.name)).collect();
    format!("{}{key}", table.name)
}

/// What can be done about a default that makes readers of a new row wait.
const GIVABLE: &str = "default computed by the origin; with defaults = \"here\" a new row is given it before the acknowledgement";

fn is_given(table: &Table, column: usize) -> bool {
    table.given_here.iter().any(|(given, _)| *given == column)
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
    } else if table.is_computed(index) {
        notes.push("set by a trigger: read from the origin once it is written".into());
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
        ColumnDefault::Formula(_) if is_given(table, index) => {
            notes.push("a new row is given it before the acknowledgement".into());
        }
        ColumnDefault::Formula(_) if table.givable().any(|(column, _)| column == index) => {
            notes.push(GIVABLE.into());
        }
        ColumnDefault::Computed | ColumnDefault::Formula(_) => {
            notes.push("default computed by the origin".into());
        }
    }
    notes
}
