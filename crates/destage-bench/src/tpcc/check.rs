//! The standard's consistency conditions, as queries at the origin.
//!
//! All twelve are checked. The eleventh speaks of the first population only, since each delivery changes what it counts: here
//! the customers' numbers of deliveries (0 at first) are taken into account, so that it holds at any moment. The 2,100 orders
//! that are delivered at first are seven tenths of a district's customers, whatever the scale.
//!
//! *Source:* TPC Benchmark C, clause 3.3.2.

use super::sql::Sql;
use crate::Result;

/// Each condition by its number, with a query for what breaks it.
const CONDITIONS: [(u32, &str); 12] = [
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
        7,
        "SELECT ol_w_id, ol_d_id, ol_o_id, ol_number FROM order_line JOIN orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id \
         AND o_id = ol_o_id WHERE (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)",
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
    (
        10,
        "SELECT c_w_id, c_d_id, c_id FROM customer LEFT JOIN (SELECT o_w_id, o_d_id, o_c_id, sum(ol_amount) AS delivered \
         FROM orders JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id WHERE ol_delivery_d IS NOT \
         NULL GROUP BY o_w_id, o_d_id, o_c_id) AS bought ON o_w_id = c_w_id AND o_d_id = c_d_id AND o_c_id = c_id LEFT JOIN \
         (SELECT h_c_w_id, h_c_d_id, h_c_id, sum(h_amount) AS paid FROM history GROUP BY h_c_w_id, h_c_d_id, h_c_id) AS \
         payments ON h_c_w_id = c_w_id AND h_c_d_id = c_d_id AND h_c_id = c_id WHERE c_balance <> coalesce(delivered, 0) - \
         coalesce(paid, 0)",
    ),
    (
        11,
        "SELECT d_w_id, d_id FROM district WHERE (SELECT count(*) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id) - \
         (SELECT count(*) FROM new_orders WHERE no_w_id = d_w_id AND no_d_id = d_id) <> (SELECT count(*) * 7 / 10 + \
         sum(c_delivery_cnt) FROM customer WHERE c_w_id = d_w_id AND c_d_id = d_id)",
    ),
    (
        12,
        "SELECT c_w_id, c_d_id, c_id FROM customer LEFT JOIN (SELECT o_w_id, o_d_id, o_c_id, sum(ol_amount) AS delivered \
         FROM orders JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id WHERE ol_delivery_d IS NOT \
         NULL GROUP BY o_w_id, o_d_id, o_c_id) AS bought ON o_w_id = c_w_id AND o_d_id = c_d_id AND o_c_id = c_id WHERE \
         c_balance + c_ytd_payment <> coalesce(delivered, 0)",
    ),
];

/// Checks all of them.
///
/// # Errors
/// What does not fit, or the database cannot be asked.
pub(crate) fn check(sql: &mut Sql) -> Result<()> {
    match broken(sql)?.first() {
        None => Ok(()),
        Some((number, places)) => Err(format!(
            "consistency condition {number} is broken in {} places, first ({})",
            places.len(),
            places[0].join(", ")
        )
        .into()),
    }
}

/// The conditions that do not hold, each with the places where it does not.
fn broken(sql: &mut Sql) -> Result<Vec<(u32, Vec<Vec<String>>)>> {
    let mut broken = Vec::new();
    for (number, query) in CONDITIONS {
        let places = sql.rows(query)?;
        if !places.is_empty() {
            broken.push((number, places));
        }
    }
    Ok(broken)
}

/// How many orders there are.
///
/// # Errors
/// The database cannot be asked.
pub(crate) fn orders(sql: &mut Sql) -> Result<i64> {
    let rows = sql.numbers("SELECT count(*) FROM orders")?;
    Ok(rows.first().and_then(|row| row.first()).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::{Scale, load};
    use super::*;

    /// What is done to the tables, and which conditions notice.
    const DAMAGE: [(&str, &[u32]); 12] = [
        ("UPDATE district SET d_ytd = d_ytd + 1 WHERE d_id = 1", &[1, 9]),
        ("UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_id = 1", &[2]),
        // An order that is neither new nor has a carrier.
        ("DELETE FROM new_orders WHERE no_d_id = 1 AND no_o_id = 9", &[3, 5, 11]),
        ("DELETE FROM order_line WHERE ol_d_id = 1 AND ol_o_id = 1 AND ol_number = 1", &[4, 6]),
        ("UPDATE orders SET o_carrier_id = NULL WHERE o_d_id = 1 AND o_id = 1", &[5, 7]),
        (
            "UPDATE orders SET o_ol_cnt = o_ol_cnt + CASE o_id WHEN 1 THEN 1 ELSE -1 END WHERE o_d_id = 1 AND o_id < 3",
            &[6],
        ),
        ("UPDATE order_line SET ol_delivery_d = NULL WHERE ol_d_id = 1 AND ol_o_id = 1", &[7]),
        (
            "UPDATE warehouse SET w_ytd = w_ytd + 1; UPDATE district SET d_ytd = d_ytd + 1 WHERE d_id = 1",
            &[8, 9],
        ),
        ("UPDATE history SET h_d_id = 2 WHERE h_d_id = 1 AND h_c_id = 1", &[9]),
        // A payment that is in neither the history nor the warehouse.
        (
            "UPDATE customer SET c_balance = c_balance - 1, c_ytd_payment = c_ytd_payment + 1 WHERE c_d_id = 1 AND c_id = 1",
            &[10],
        ),
        ("UPDATE customer SET c_delivery_cnt = 1 WHERE c_d_id = 1 AND c_id = 1", &[11]),
        (
            "UPDATE customer SET c_ytd_payment = c_ytd_payment - 1 WHERE c_d_id = 1 AND c_id = 1",
            &[12],
        ),
    ];

    #[test]
    fn each_condition_holds_at_first_and_notices_what_breaks_it() {
        let mut sql = Sql::open("sqlite::memory:").unwrap();
        load::load(&mut sql, &Scale { warehouses: 1, items: 20, customers: 11 }, 1).unwrap();
        check(&mut sql).unwrap();
        for ((number, _), (damage, expected)) in CONDITIONS.iter().zip(DAMAGE) {
            assert!(expected.contains(number), "{damage}");
            sql.run("BEGIN").unwrap();
            sql.run(damage).unwrap();
            let found: Vec<u32> = broken(&mut sql).unwrap().iter().map(|(of, _)| *of).collect();
            assert_eq!(found, expected, "{damage}");
            sql.run("ROLLBACK").unwrap();
        }
        check(&mut sql).unwrap();
    }

    #[test]
    fn a_delivery_keeps_the_conditions_and_half_of_one_does_not() {
        let mut sql = Sql::open("sqlite::memory:").unwrap();
        load::load(&mut sql, &Scale { warehouses: 1, items: 20, customers: 10 }, 1).unwrap();
        let of = "WHERE o_d_id = 1 AND o_id = 8";
        let lines = "ol_d_id = 1 AND ol_o_id = 8";
        let customer = format!("c_d_id = 1 AND c_id = (SELECT o_c_id FROM orders {of})");
        sql.run("DELETE FROM new_orders WHERE no_d_id = 1 AND no_o_id = 8").unwrap();
        sql.run(&format!("UPDATE orders SET o_carrier_id = 3 {of}")).unwrap();
        sql.run(&format!("UPDATE order_line SET ol_delivery_d = 1 WHERE {lines}")).unwrap();
        let half: Vec<u32> = broken(&mut sql).unwrap().iter().map(|(of, _)| *of).collect();
        assert_eq!(half, [10, 11, 12]);
        let total = format!("(SELECT sum(ol_amount) FROM order_line WHERE {lines})");
        sql.run(&format!(
            "UPDATE customer SET c_balance = c_balance + {total}, c_delivery_cnt = c_delivery_cnt + 1 WHERE {customer}"
        ))
        .unwrap();
        check(&mut sql).unwrap();
    }
}
