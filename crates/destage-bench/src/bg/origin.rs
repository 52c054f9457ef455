//! Who knows whom, at the store behind: in tables of PostgreSQL, in documents of MongoDB.

use super::graph::{Found, Graph, Pair};
use super::lists;
use crate::Result;
use crate::behind::Behind;
use crate::servers::Postgres;
use crate::tpcc::Sql;

/// What Destage is told about the tables or the collections.
pub(super) fn settings(origin: &Behind) -> &'static str {
    match origin {
        Behind::Postgres(_) => SETTINGS,
        Behind::Mongodb(_) => lists::SETTINGS,
    }
}

/// Makes everybody's first friends and invitations, as the graph has them.
///
/// # Errors
/// The server refuses something.
pub(super) fn fill(origin: &Behind, graph: &Graph, scale: (u64, u64, u64)) -> Result<()> {
    match origin {
        Behind::Postgres(server) => fill_tables(server, scale),
        Behind::Mongodb(server) => lists::fill(server, &graph.rows()),
    }
}

/// Everything that the origin holds about who knows whom. At MongoDB the side without Destage has documents of its own.
///
/// # Errors
/// The server refuses something.
pub(super) fn found(origin: &Behind, is_direct: bool) -> Result<Found> {
    match origin {
        Behind::Postgres(server) => found_in_tables(server),
        Behind::Mongodb(server) => {
            lists::found(server, if is_direct { lists::DIRECT } else { lists::OURS })
        }
    }
}

/// What maps the keys of the lists to their tables.
const SETTINGS: &str = r#"[[zset]]
key = "friends:{member}"
table = "friends"
member = "friend"
score = "since"

[[zset]]
key = "pending:{member}"
table = "invitations"
member = "inviter"
score = "since"
"#;

/// The same as [`Graph::new`] makes, in SQL.
fn fill_tables(server: &Postgres, (members, friends, pending): (u64, u64, u64)) -> Result<()> {
    let half = friends / 2;
    let mut session = server.query()?;
    session.run(&format!(
        "CREATE TABLE members (id bigint PRIMARY KEY, name text, city text, job text, about text, \
           friends bigint NOT NULL, pending bigint NOT NULL);
         CREATE TABLE friends (member bigint, friend bigint, since bigint NOT NULL, PRIMARY KEY (member, friend));
         CREATE TABLE invitations (member bigint, inviter bigint, since bigint NOT NULL, PRIMARY KEY (member, inviter));
         INSERT INTO members SELECT g, 'member ' || g, rpad('city ' || g, 40, 'x'), rpad('job ' || g, 40, 'x'), \
           rpad('about ' || g, 800, 'x'), {friends}, {pending} FROM generate_series(0, {members} - 1) g;
         INSERT INTO friends SELECT g, (g + d) % {members}, d FROM generate_series(0, {members} - 1) g, \
           generate_series(1, {half}) d;
         INSERT INTO friends SELECT (g + d) % {members}, g, d FROM generate_series(0, {members} - 1) g, \
           generate_series(1, {half}) d;
         INSERT INTO invitations SELECT g, (g + {half} + d) % {members}, d FROM generate_series(0, {members} - 1) g, \
           generate_series(1, {pending}) d;
         CREATE INDEX ON friends (member, since, friend);
         CREATE INDEX ON invitations (member, since, inviter);"
    ))?;
    for table in ["members", "friends", "invitations"] {
        session.run(&format!("VACUUM ANALYZE {table}"))?;
    }
    session.run("CHECKPOINT")?;
    Ok(())
}

fn found_in_tables(server: &Postgres) -> Result<Found> {
    let mut sql = Sql::open(&Postgres::url(server.address))?;
    let pairs =
        |rows: Vec<Vec<i64>>| -> Vec<Pair> { rows.iter().map(|row| (row[0], row[1])).collect() };
    let friends = pairs(sql.numbers("SELECT member, friend FROM friends")?);
    let pending = pairs(sql.numbers("SELECT inviter, member FROM invitations")?);
    let counts = sql.numbers("SELECT id, friends, pending FROM members")?;
    let counts = counts.iter().map(|row| (row[0], (row[1], row[2]))).collect();
    Ok(Found { friends, pending, counts })
}
