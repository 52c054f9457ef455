//! What is looked at before a start for tables whose rows end.

use crate::origins::{Origin, OriginError};
use crate::schema::Schema;

/// What to tell of each table whose ended rows are not found by an index: its name, and the statement that creates one.
///
/// # Errors
/// The origin does not say so.
pub fn missing_indexes(
    origin: &dyn Origin,
    schema: &Schema,
) -> Result<Vec<(String, String)>, OriginError> {
    if !schema.rows_end {
        return Ok(Vec::new());
    }
    let mut reader = origin.reader()?;
    let tables = schema.tables.iter().filter(|table| table.ttl.is_some());
    let missing = tables.map(|table| {
        let statement = reader.missing_index(table)?;
        Ok(statement.map(|statement| (table.name.clone(), statement)))
    });
    missing.filter_map(Result::transpose).collect()
}

/// Tells the log of them.
pub(super) fn tell_missing_indexes(origin: &dyn Origin, schema: &Schema) {
    match missing_indexes(origin, schema) {
        Ok(missing) => {
            for (table, statement) in missing {
                tracing::warn!(
                    table,
                    "rows of it that have ended are looked for without an index, through the whole table: {statement}"
                );
            }
        }
        Err(error) => {
            tracing::warn!(%error, "whether there is an index to find rows that have ended is not known");
        }
    }
}
