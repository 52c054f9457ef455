//! What only the origin can say of queries, asked at start: whether they run at all, and what they read.

use super::{Queries, Query, Uses};
use crate::contract::{OriginError, Reader};
use crate::schema::Schema;

/// Has the origin prepare each query.
///
/// # Errors
/// The origin refuses a query, or a query reads a table that it does not declare.
pub fn check(
    queries: &Queries,
    schema: &Schema,
    reader: &mut dyn Reader,
) -> Result<(), OriginError> {
    for query in queries.iter() {
        let uses = reader.uses(query, schema).map_err(|error| OriginError {
            message: format!("[[query]] key = '{}': {}", query.key, error.message),
            ..error
        })?;
        check_uses(query, schema, &uses)?;
    }
    Ok(())
}

fn check_uses(query: &Query, schema: &Schema, uses: &Uses) -> Result<(), OriginError> {
    let undeclared = |name: &&String| !query.depends_on.contains(*name);
    let missing: Vec<&str> = uses.tables.iter().filter(undeclared).map(String::as_str).collect();
    if !missing.is_empty() && uses.is_exact {
        let message = format!(
            "[[query]] key = '{}': it reads {}, which depends_on does not list, so that writes there would leave old results",
            query.key,
            missing.join(", ")
        );
        return Err(OriginError::new(destage_core::Fault::Denied, message));
    }
    if !missing.is_empty() {
        tracing::warn!(
            key = query.key,
            tables = missing.join(", "),
            "a query names tables that its depends_on does not list: if it reads them, writes there leave old results"
        );
    }
    let is_foreign = |name: &&String| schema.find(name.as_bytes()).is_none();
    let foreign: Vec<&str> =
        query.depends_on.iter().filter(is_foreign).map(String::as_str).collect();
    if !foreign.is_empty() && query.max_age.is_none() {
        tracing::warn!(
            key = query.key,
            tables = foreign.join(", "),
            "a query depends on tables that only others write, and has no max_age: their changes are not noticed"
        );
    }
    Ok(())
}
