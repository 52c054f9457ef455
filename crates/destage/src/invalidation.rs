//! `destage schema --install-invalidation` and `--remove-invalidation`: having an origin tell what others change.

use crate::error::CliError;
use crate::output::{Format, print, print_json};
use destage_data::origins::{InvalidationChange, Origin, OriginError};
use destage_data::schema::{Schema, Table};
use serde_json::json;
use std::fmt::Write;

/// Flags of `schema` that change the origin.
#[derive(Debug, clap::Args)]
pub(crate) struct InvalidationArgs {
    /// Have a PostgreSQL tell what other programs change, by triggers on the tables, so that servers started from now on
    /// notice. May be repeated: what is there stays.
    #[arg(long, conflicts_with = "remove_invalidation")]
    install_invalidation: bool,

    /// Remove these triggers from all tables.
    #[arg(long)]
    remove_invalidation: bool,

    /// Only print the SQL that would be run.
    #[arg(long)]
    dry_run: bool,

    /// Install for this table only; may be given several times. All tables that can be reached unless given.
    #[arg(long = "table", requires = "install_invalidation", value_name = "NAME")]
    tables: Vec<String>,
}

impl InvalidationArgs {
    /// Whether any of them was given that does something.
    pub(crate) fn is_asked(&self) -> bool {
        self.install_invalidation || self.remove_invalidation
    }

    /// Refuses what means nothing.
    ///
    /// # Errors
    /// `--dry-run` without anything to be done.
    pub(crate) fn check(&self) -> Result<(), CliError> {
        if self.dry_run && !self.is_asked() {
            Err(CliError::usage(
                "--dry-run goes with --install-invalidation or --remove-invalidation",
            ))
        } else {
            Ok(())
        }
    }

    /// Does it, and says what was done.
    ///
    /// # Errors
    /// The origin cannot, or the user may not, or a table is not there.
    pub(crate) fn run(
        &self,
        origin: &dyn Origin,
        schema: impl FnOnce() -> Result<Schema, CliError>,
        failed: fn(&str, &OriginError) -> CliError,
        format: Format,
    ) -> Result<(), CliError> {
        let change = if self.remove_invalidation {
            origin
                .remove_invalidation(self.dry_run)
                .map_err(|error| failed("remove the triggers", &error))?
        } else {
            let schema = schema()?;
            let tables = self.chosen(&schema)?;
            origin
                .install_invalidation(&tables, self.dry_run)
                .map_err(|error| failed("install the triggers", &error))?
        };
        match format {
            Format::Table => print(&self.text(&origin.describe(), &change)),
            Format::Json => print_json(&self.json(&origin.describe(), &change)),
        }
    }

    fn chosen<'s>(&self, schema: &'s Schema) -> Result<Vec<&'s Table>, CliError> {
        if self.tables.is_empty() {
            return Ok(schema.reachable().iter().collect());
        }
        let table = |name: &String| {
            schema.find(name.as_bytes()).ok_or_else(|| {
                CliError::usage(format!(
                    "--table {name}: no key reaches such a table; see destage schema"
                ))
            })
        };
        self.tables.iter().map(table).collect()
    }

    fn text(&self, origin: &str, change: &InvalidationChange) -> String {
        let mut out = String::new();
        if self.dry_run {
            if change.statements.is_empty() {
                let _ = writeln!(out, "-- {origin}: nothing is to be done");
            }
            for statement in &change.statements {
                let _ = writeln!(out, "{statement};");
            }
            return out;
        }
        if change.statements.is_empty() {
            let _ = writeln!(out, "{origin}: nothing was to be done");
        }
        for (table, is_changed) in &change.tables {
            let done = match (self.remove_invalidation, is_changed) {
                (true, _) => "others' changes are not told of any more",
                (false, true) => "others' changes are told of from now on",
                (false, false) => "others' changes were told of already",
            };
            let _ = writeln!(out, "{table}: {done}");
        }
        if !change.statements.is_empty() && self.install_invalidation {
            let _ = writeln!(
                out,
                "Restart a server that was started before these were the first triggers."
            );
        }
        out
    }

    fn json(&self, origin: &str, change: &InvalidationChange) -> serde_json::Value {
        let tables: Vec<_> = change
            .tables
            .iter()
            .map(|(name, changed)| json!({ "name": name, "changed": changed }))
            .collect();
        json!({
            "origin": origin,
            "installed": self.install_invalidation,
            "dry_run": self.dry_run,
            "tables": tables,
            "statements": change.statements,
        })
    }
}
