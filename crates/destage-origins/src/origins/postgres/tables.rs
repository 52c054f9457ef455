//! Destage's own tables at the origin.

use super::connection::Connection;
use crate::contract::OriginError;
use destage_core::Fault;

/// Creates what is missing.
pub(super) fn ensure(connection: &mut Connection) -> Result<(), OriginError> {
    let missing = connection.run("look for Destage's tables", async |client| {
        let row = client.query_one(MISSING, &[]).await?;
        row.try_get::<_, bool>(0)
    })?;
    if !missing {
        return Ok(());
    }
    let script = format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK}); {CREATE} COMMIT");
    connection
        .run("create Destage's tables", async |client| {
            let created = client.batch_execute(&script).await;
            if created.is_err() {
                let _ = client.batch_execute("ROLLBACK").await;
            }
            created
        })
        .map_err(|error| match error.fault {
            Fault::Denied => OriginError::new(
                Fault::Denied,
                format!("{error}; run this as a user who may, and grant access to it: {CREATE}"),
            ),
            _ => error,
        })
}

/// All watermarks as [`crate::origins::ledger::parse_watermarks`] reads them.
pub(super) const WATERMARKS: &str =
    "(SELECT string_agg(domain || ' ' || seq, ',' ORDER BY domain) FROM destage_watermark)";

const MISSING: &str = "SELECT to_regclass('destage_owner') IS NULL \
    OR to_regclass('destage_watermark') IS NULL OR to_regclass('destage_parked') IS NULL";

/// `domain_map` holds 64 bits without a sign.
const CREATE: &str = "\
CREATE TABLE IF NOT EXISTS destage_owner (\
id int PRIMARY KEY CHECK (id = 1), journal text NOT NULL, epoch bigint NOT NULL, \
domain_map numeric(20) NOT NULL, heartbeat timestamptz NOT NULL); \
CREATE TABLE IF NOT EXISTS destage_watermark (\
domain int PRIMARY KEY, seq bigint NOT NULL, epoch bigint NOT NULL); \
CREATE TABLE IF NOT EXISTS destage_parked (\
domain int NOT NULL, seq bigint NOT NULL, depends_on bigint, reason text NOT NULL, \
payload text NOT NULL, parked_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (domain, seq));";

/// Two processes must not create the tables at the same moment.
const LOCK: i64 = 0x6465_7374_6167_6501;
