//! The standard's consistency conditions, as queries at the origin.
//!
//! *Source:* TPC Benchmark C, clause 3.3.2.

use super::sql::Sql;
use crate::Result;

/// Each condition by its number, with a query for what breaks it.
const CONDITIONS: [(u32, &str); 8] = [
    (
        1,
        "SELECT w_id FROM warehouse WHERE w_ytd <> (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id)",
    ),
    (
        2,
        "SELECT d_w_id, d_id FROM district WHERE d_next_o_id - 1 <> (SELECT max(o_id) FROM orders WHERE o_w_id = d_w_id \
         AND o_d_id = d_id) OR d_next_o_id - 1 < (SELECT coalesce(max(no_o_id), 0) FROM new_orders WHERE \
         no_w_id = d_w_id AND no_d_id = d_id)",
    ),
    (
        3,
        "SELECT no_w_id, no_d_id FROM new_orders GROUP BY no_w_id, no_d_id HAVING max(no_o_id) - min(no_o_id) + 1 <> \
         count(*)",
    ),
    (
        4,
        "SELECT d_w_id, d_id FROM district WHERE (SELECT sum(o_ol_cnt) FROM orders WHERE o_w_id = d_w_id AND \
         o_d_id = d_id) <> (SELECT count(*) FROM order_line WHERE ol_w_id = d_w_id AND ol_d_id = d_id)",
    ),
    (
        5,
        "SELECT o_w_id, o_d_id, o_id FROM orders LEFT JOIN new_orders ON no_w_id = o_w_id AND no_d_id = o_d_id AND \
         no_o_id = o_id WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)",
    ),
    (
        6,
        "SELECT o_w_id, o_d_id, o_id FROM orders WHERE o_ol_cnt <> (SELECT count(*) FROM order_line WHERE \
         ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id)",
    ),
    (
        8,
        "SELECT w_id FROM warehouse WHERE w_ytd <> (SELECT sum(h_amount) FROM history WHERE h_w_id = w_id)",
    ),
    (
        9,
        "SELECT d_w_id, d_id FROM district WHERE d_ytd <> (SELECT sum(h_amount) FROM history WHERE h_w_id = d_w_id AND \
         h_d_id = d_id)",
    ),
];

/// Checks conditions 1 to 6, 8 and 9.
///
/// # Errors
/// What does not fit, or the database cannot be asked.
pub(crate) fn check(sql: &mut Sql) -> Result<()> {
    for (number, query) in CONDITIONS {
        let broken = sql.rows(query)?;
        if let Some(first) = broken.first() {
            let count = broken.len();
            let place = first.join(", ");
            return Err(format!(
                "consistency condition {number} is broken in {count} places, first ({place})"
            )
            .into());
        }
    }
    Ok(())
}

/// How many orders there are.
///
/// # Errors
/// The database cannot be asked.
pub(crate) fn orders(sql: &mut Sql) -> Result<i64> {
    let rows = sql.numbers("SELECT count(*) FROM orders")?;
    Ok(rows.first().and_then(|row| row.first()).copied().unwrap_or_default())
}
