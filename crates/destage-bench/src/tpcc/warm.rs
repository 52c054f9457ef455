//! Everything in the cache at the start.
//!
//! *Source:* Ghandeharizadeh and Nguyen, write-back with cache augmented data stores, section 4: "each experiment starts
//! with a warm cache (100% cache hit rate)".

use super::library::Shared;
use super::sql::Sql;
use crate::Result;
use destage_data::store::Key;

/// The tables that are read, and their keys.
const TABLES: [(&str, &str); 8] = [
    ("warehouse", "w_id"),
    ("district", "d_w_id, d_id"),
    ("customer", "c_w_id, c_d_id, c_id"),
    ("new_orders", "no_w_id, no_d_id, no_o_id"),
    ("orders", "o_w_id, o_d_id, o_id"),
    ("order_line", "ol_w_id, ol_d_id, ol_o_id, ol_number"),
    ("item", "i_id"),
    ("stock", "s_w_id, s_i_id"),
];
const KEYS_AT_ONCE: usize = 1_000;

/// Reads every row and every cached entry once.
///
/// # Errors
/// The origin or the store refuses something.
pub(super) fn warm(shared: &Shared<'_>, url: &str) -> Result<()> {
    let mut sql = Sql::open(url)?;
    for (table, key) in TABLES {
        let rows = sql.rows(&format!("SELECT {key} FROM {table}"))?;
        for some in rows.chunks(KEYS_AT_ONCE) {
            let key = |parts: &Vec<String>| Key::from(format!("{table}:{}", parts.join(":")));
            shared.store.read_all(&some.iter().map(key).collect::<Vec<_>>())?;
        }
        if table == "customer" {
            rows.iter().try_for_each(|parts| shared.last_order(&parts.join(":")).map(drop))?;
        }
    }
    Ok(())
}
