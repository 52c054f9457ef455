//! What a server is like, as far as writing to it depends on that.

use super::connection::Connection;
use crate::contract::OriginError;
use destage_core::Fault;

/// Looks whether the server can and may be written to, and which characters it holds; whether it has triggers that tell
/// Destage of what others change.
///
/// # Errors
/// It is a standby, or somebody wants nothing to be written.
pub(super) fn look(connection: &mut Connection) -> Result<bool, OriginError> {
    let row =
        connection.run("look at the server", async |client| client.query_one(SERVER, &[]).await)?;
    connection.note_encoding(row.get(4));
    let place = connection.place();
    let refused = |why: &str| Err(OriginError::new(Fault::Denied, format!("{place} is {why}")));
    if row.get(0) {
        return refused("a standby, which cannot be written; use the primary");
    }
    if row.get(1) {
        return refused(
            "read-only: default_transaction_read_only is on for the database, the user or the server, and Destage does not \
             write against that. Have it reset, or say for Destage's own connections \
             ?options=-cdefault_transaction_read_only%3Doff in the URL",
        );
    }
    if let Some(settings) = row.get::<_, Option<String>>(2) {
        tracing::warn!(
            origin = place,
            "the server runs with {settings}: it may lose what Destage has handed over"
        );
    }
    Ok(row.get(3))
}

/// The statements that check the deferred constraints and defer them again.
///
/// # Errors
/// The server cannot be asked.
pub(super) fn check_deferred(connection: &mut Connection) -> Result<String, OriginError> {
    let deferred: Vec<String> = connection.run("look at the constraints", async |client| {
        Ok(client.query(DEFERRED, &[]).await?.iter().map(|row| row.get(0)).collect())
    })?;
    let mut check = "SET CONSTRAINTS ALL IMMEDIATE".to_owned();
    if !deferred.is_empty() {
        check.push_str(&format!("; SET CONSTRAINTS {} DEFERRED", deferred.join(", ")));
    }
    Ok(check)
}

/// Whether it is a standby, whether nothing is to be written, settings under which a crash loses commits, whether there are
/// triggers of Destage's, and whether the database's encoding has no place for some characters.
const SERVER: &str = "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on', \
     (SELECT string_agg(name || ' = off', ', ') \
     FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'), \
     to_regproc('destage_changed') IS NOT NULL, current_setting('server_encoding') <> 'UTF8'";

/// Temporary tables are others', and come and go.
const DEFERRED: &str = "SELECT DISTINCT format('%I.%I', n.nspname, c.conname) AS name \
     FROM pg_constraint c JOIN pg_namespace n ON n.oid = c.connamespace \
     LEFT JOIN pg_class t ON t.oid = c.conrelid \
     WHERE c.condeferred AND t.relpersistence IS DISTINCT FROM 't' ORDER BY name";
