//! The five transactions in SQL, at PostgreSQL itself.

use super::random::{DISTRICTS, Input, Line, Who};
use super::sql::connect;
use super::{Done, Target};
use crate::Result;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::runtime::Runtime;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

/// A client of PostgreSQL.
pub(crate) struct Direct {
    runtime: Runtime,
    session: Session,
}

struct Session {
    client: Client,
    statements: HashMap<&'static str, Statement>,
    next_history: Arc<AtomicI64>,
}

type Sent<T> = std::result::Result<T, tokio_postgres::Error>;
type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

impl Direct {
    /// # Errors
    /// The server cannot be reached.
    pub(crate) fn new(url: &str, next_history: Arc<AtomicI64>) -> Result<Self> {
        let (runtime, client) = connect(url)?;
        Ok(Self { runtime, session: Session { client, statements: HashMap::new(), next_history } })
    }
}

impl Target for Direct {
    fn perform(&mut self, input: &Input) -> Result<Done> {
        let Self { runtime, session } = self;
        runtime.block_on(async {
            loop {
                session.client.batch_execute("BEGIN").await?;
                match session.perform(input).await {
                    Ok(Done::Committed) => {
                        session.client.batch_execute("COMMIT").await?;
                        return Ok(Done::Committed);
                    }
                    Ok(Done::RolledBack) => {
                        session.client.batch_execute("ROLLBACK").await?;
                        return Ok(Done::RolledBack);
                    }
                    Err(error) => {
                        session.client.batch_execute("ROLLBACK").await?;
                        if error.code() != Some(&SqlState::T_R_DEADLOCK_DETECTED) {
                            return Err(error.into());
                        }
                    }
                }
            }
        })
    }
}

impl Session {
    async fn statement(&mut self, sql: &'static str) -> Sent<Statement> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.insert(sql, statement.clone());
        Ok(statement)
    }

    async fn one(&mut self, sql: &'static str, values: Values<'_>) -> Sent<Row> {
        let statement = self.statement(sql).await?;
        self.client.query_one(&statement, values).await
    }

    async fn all(&mut self, sql: &'static str, values: Values<'_>) -> Sent<Vec<Row>> {
        let statement = self.statement(sql).await?;
        self.client.query(&statement, values).await
    }

    async fn run(&mut self, sql: &'static str, values: Values<'_>) -> Sent<()> {
        let statement = self.statement(sql).await?;
        self.client.execute(&statement, values).await.map(drop)
    }

    async fn perform(&mut self, input: &Input) -> Sent<Done> {
        match input {
            Input::NewOrder { w, d, c, lines, is_unused } => {
                return self.new_order((*w, *d, *c), lines, *is_unused).await;
            }
            Input::Payment { w, d, of, who, amount } => {
                self.payment((*w, *d), *of, who, *amount).await?;
            }
            Input::OrderStatus { w, d, who } => self.order_status(*w, *d, who).await?,
            Input::Delivery { w, carrier } => {
                for d in 1..=DISTRICTS {
                    self.deliver(*w, d, *carrier).await?;
                }
            }
            Input::StockLevel { w, d, threshold } => {
                self.one(
                    "SELECT count(DISTINCT s_i_id) FROM district JOIN order_line ON ol_w_id = d_w_id AND ol_d_id = d_id \
                     AND ol_o_id < d_next_o_id AND ol_o_id >= d_next_o_id - 20 JOIN stock ON s_w_id = ol_w_id AND \
                     s_i_id = ol_i_id WHERE d_w_id = $1 AND d_id = $2 AND s_quantity < $3",
                    &[w, d, threshold],
                )
                .await?;
            }
        }
        Ok(Done::Committed)
    }

    async fn customer(&mut self, w: i64, d: i64, who: &Who) -> Sent<Option<i64>> {
        match who {
            Who::Number(number) => Ok(Some(*number)),
            Who::Name(name) => {
                let sql = "SELECT c_id FROM customer WHERE c_w_id = $1 AND c_d_id = $2 AND c_last = $3 ORDER BY c_first";
                let rows = self.all(sql, &[&w, &d, name]).await?;
                Ok(rows.get(rows.len().saturating_sub(1) / 2).map(|row| row.get(0)))
            }
        }
    }

    async fn new_order(
        &mut self,
        (w, d, c): (i64, i64, i64),
        lines: &[Line],
        is_unused: bool,
    ) -> Sent<Done> {
        let order: i64 = self
            .one(
                "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = $1 AND d_id = $2 RETURNING d_next_o_id - 1, \
                 d_tax",
                &[&w, &d],
            )
            .await?
            .get(0);
        if is_unused {
            return Ok(Done::RolledBack);
        }
        self.one(
            "SELECT c_discount, c_last, c_credit, w_tax FROM customer JOIN warehouse ON w_id = c_w_id WHERE c_w_id = $1 AND \
             c_d_id = $2 AND c_id = $3",
            &[&w, &d, &c],
        )
        .await?;
        let (count, is_local) =
            (lines.len() as i64, i64::from(lines.iter().all(|line| line.supplier == w)));
        self.run(
            "INSERT INTO orders VALUES ($1, $2, $3, $4, extract(epoch FROM now())::bigint, NULL, $5, $6)",
            &[&w, &d, &order, &c, &count, &is_local],
        )
        .await?;
        self.run("INSERT INTO new_orders VALUES ($1, $2, $3)", &[&w, &d, &order]).await?;
        for (number, line) in (1_i64..).zip(lines) {
            let Line { item, supplier, quantity } = line;
            let price: i64 =
                self.one("SELECT i_price FROM item WHERE i_id = $1", &[item]).await?.get(0);
            let remote = i64::from(*supplier != w);
            let info: String = self
                .one(
                    "UPDATE stock SET s_quantity = s_quantity - $3 + CASE WHEN s_quantity >= $3 + 10 THEN 0 ELSE 91 END, \
                     s_ytd = s_ytd + $3, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + $4 \
                     WHERE s_w_id = $1 AND s_i_id = $2 RETURNING s_dist",
                    &[supplier, item, quantity, &remote],
                )
                .await?
                .get(0);
            let amount = price * quantity;
            self.run(
                "INSERT INTO order_line VALUES ($1, $2, $3, $4, $5, $6, NULL, $7, $8, $9)",
                &[&w, &d, &order, &number, item, supplier, quantity, &amount, &info],
            )
            .await?;
        }
        Ok(Done::Committed)
    }

    async fn payment(
        &mut self,
        (w, d): (i64, i64),
        of: (i64, i64),
        who: &Who,
        amount: i64,
    ) -> Sent<()> {
        let Some(c) = self.customer(of.0, of.1, who).await? else { return Ok(()) };
        let sql = "UPDATE warehouse SET w_ytd = w_ytd + $2 WHERE w_id = $1 RETURNING w_name";
        let w_name: String = self.one(sql, &[&w, &amount]).await?.get(0);
        let sql = "UPDATE district SET d_ytd = d_ytd + $3 WHERE d_w_id = $1 AND d_id = $2 RETURNING d_name";
        let d_name: String = self.one(sql, &[&w, &d, &amount]).await?.get(0);
        let note = format!("{c} {} {} {d} {w} {amount} ", of.1, of.0);
        self.run(
            "UPDATE customer SET c_balance = c_balance - $4, c_ytd_payment = c_ytd_payment + $4, c_payment_cnt = \
             c_payment_cnt + 1, c_data = CASE WHEN c_credit = 'BC' THEN left($5::text || c_data, 500) ELSE c_data END \
             WHERE c_w_id = $1 AND c_d_id = $2 AND c_id = $3",
            &[&of.0, &of.1, &c, &amount, &note],
        )
        .await?;
        let history = self.next_history.fetch_add(1, Ordering::Relaxed);
        let data = format!("{w_name}    {d_name}");
        self.run(
            "INSERT INTO history VALUES ($1, $2, $3, $4, $5, $6, extract(epoch FROM now())::bigint, $7, $8)",
            &[&history, &of.0, &of.1, &c, &w, &d, &amount, &data],
        )
        .await
    }

    async fn order_status(&mut self, w: i64, d: i64, who: &Who) -> Sent<()> {
        let Some(c) = self.customer(w, d, who).await? else { return Ok(()) };
        let sql = "SELECT c_balance, c_first, c_last FROM customer WHERE c_w_id = $1 AND c_d_id = $2 AND c_id = $3";
        self.one(sql, &[&w, &d, &c]).await?;
        let sql = "SELECT o_id, o_entry_d, o_carrier_id FROM orders WHERE o_w_id = $1 AND o_d_id = $2 AND o_c_id = $3 \
                   ORDER BY o_id DESC LIMIT 1";
        let Some(order) =
            self.all(sql, &[&w, &d, &c]).await?.first().map(|row| row.get::<_, i64>(0))
        else {
            return Ok(());
        };
        let sql = "SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d FROM order_line WHERE ol_w_id = $1 \
                   AND ol_d_id = $2 AND ol_o_id = $3";
        self.all(sql, &[&w, &d, &order]).await.map(drop)
    }

    async fn deliver(&mut self, w: i64, d: i64, carrier: i64) -> Sent<()> {
        let sql = "SELECT no_o_id FROM new_orders WHERE no_w_id = $1 AND no_d_id = $2 ORDER BY no_o_id LIMIT 1 FOR UPDATE";
        let Some(order) = self.all(sql, &[&w, &d]).await?.first().map(|row| row.get::<_, i64>(0))
        else {
            return Ok(());
        };
        let sql = "DELETE FROM new_orders WHERE no_w_id = $1 AND no_d_id = $2 AND no_o_id = $3";
        self.run(sql, &[&w, &d, &order]).await?;
        let sql = "UPDATE orders SET o_carrier_id = $4 WHERE o_w_id = $1 AND o_d_id = $2 AND o_id = $3 RETURNING o_c_id";
        let c: i64 = self.one(sql, &[&w, &d, &order, &carrier]).await?.get(0);
        self.run(
            "UPDATE order_line SET ol_delivery_d = extract(epoch FROM now())::bigint WHERE ol_w_id = $1 AND ol_d_id = $2 AND \
             ol_o_id = $3",
            &[&w, &d, &order],
        )
        .await?;
        self.run(
            "UPDATE customer SET c_balance = c_balance + (SELECT sum(ol_amount)::bigint FROM order_line WHERE ol_w_id = $1 \
             AND ol_d_id = $2 AND ol_o_id = $3), c_delivery_cnt = c_delivery_cnt + 1 WHERE c_w_id = $1 AND c_d_id = $2 \
             AND c_id = $4",
            &[&w, &d, &order, &c],
        )
        .await
    }
}
