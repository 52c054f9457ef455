//! How one client performs actions: by the Redis protocol over mapped sorted sets, or by SQL at PostgreSQL.

use destage_runtime::sockets::Listen;

use super::graph::{Action, Member};
use super::lists::{Documents, Watching};
use crate::Result;
use crate::control::Value;
use crate::load::Protocol;
use crate::servers::{Statement, postgres_preamble, push_execute, push_sync};
use crate::wire::{Resp, Wire};

/// Of 100 friends or invitations a list shows these many, as in the paper.
pub(super) const SHOWN: usize = 10;

/// A client's connection with a side.
#[derive(Debug)]
pub(super) enum Link {
    Keys(Keys),
    Sql(Wire),
    Watching(Watching),
    Documents(Documents),
}

impl Link {
    pub(super) async fn keys(address: &Listen) -> Result<Self> {
        Ok(Self::Keys(Keys(Resp::connect(address).await?)))
    }

    pub(super) async fn sql(address: &Listen) -> Result<Self> {
        let statements = statements();
        let replies = statements.len() + 1;
        let preamble = postgres_preamble(&statements);
        Ok(Self::Sql(Wire::connect(address, Protocol::Postgres, &preamble, replies).await?))
    }

    /// Performs one action; `since` is when what it makes begins.
    ///
    /// # Errors
    ///
    /// It was refused, or did not find what it changes.
    pub(super) async fn perform(&mut self, action: Action, since: i64) -> Result<()> {
        match self {
            Self::Keys(keys) => keys.perform(action, since).await,
            Self::Sql(wire) => sql(wire, action, since).await,
            Self::Watching(link) => link.perform(action).await,
            Self::Documents(link) => link.perform(action).await,
        }
    }

    /// Round trips so far.
    pub(super) fn trips(&self) -> u64 {
        match self {
            Self::Keys(keys) => keys.0.trips(),
            Self::Sql(wire) => wire.trips(),
            Self::Watching(link) => link.trips(),
            Self::Documents(link) => link.trips(),
        }
    }
}

/// Profiles are hashes, lists are sorted sets by the time of their making; a write is one transaction, sent at once.
#[derive(Debug)]
pub(super) struct Keys(Resp);

impl Keys {
    async fn perform(&mut self, action: Action, since: i64) -> Result<()> {
        let since = since.to_string();
        match action {
            Action::View(member) => {
                self.0.push(&["HGETALL", &profile(member)]);
                match self.0.last().await? {
                    Value::List(fields) if !fields.is_empty() => Ok(()),
                    other => Err(format!("member {member} is missing: {other:?}").into()),
                }
            }
            Action::Friends(member) => self.list(&friends(member)).await,
            Action::Pending(member) => self.list(&pending(member)).await,
            Action::Invite { from, to } => {
                self.0.push(&["MULTI"]);
                self.0.push(&["ZADD", &pending(to), &since, &from.to_string()]);
                self.count(to, "pending", 1);
                self.execute(1).await
            }
            Action::Reject { from, to } => {
                self.0.push(&["MULTI"]);
                self.0.push(&["ZREM", &pending(to), &from.to_string()]);
                self.count(to, "pending", -1);
                self.execute(1).await
            }
            Action::Accept { from, to } => {
                self.0.push(&["MULTI"]);
                self.0.push(&["ZREM", &pending(to), &from.to_string()]);
                self.0.push(&["ZADD", &friends(to), &since, &from.to_string()]);
                self.0.push(&["ZADD", &friends(from), &since, &to.to_string()]);
                self.count(to, "pending", -1);
                self.count(to, "friends", 1);
                self.count(from, "friends", 1);
                self.execute(3).await
            }
            Action::Thaw { one, other } => {
                self.0.push(&["MULTI"]);
                self.0.push(&["ZREM", &friends(one), &other.to_string()]);
                self.0.push(&["ZREM", &friends(other), &one.to_string()]);
                self.count(one, "friends", -1);
                self.count(other, "friends", -1);
                self.execute(2).await
            }
        }
    }

    fn count(&mut self, member: Member, field: &str, by: i64) {
        self.0.push(&["HINCRBY", &profile(member), field, &by.to_string()]);
    }

    /// Ends a transaction, whose first commands must each have changed one member of a set.
    async fn execute(&mut self, changes: usize) -> Result<()> {
        self.0.push(&["EXEC"]);
        match self.0.last().await? {
            Value::List(results) if results.iter().take(changes).all(|it| *it == Value::Int(1)) => {
                Ok(())
            }
            other => Err(format!("a transaction did not do its work: {other:?}").into()),
        }
    }

    /// The first of a list, then their names and places: the second round trip, as in the paper.
    async fn list(&mut self, key: &str) -> Result<()> {
        self.0.push(&["ZRANGE", key, "0", &(SHOWN - 1).to_string()]);
        let members = match self.0.last().await? {
            Value::List(members) => members,
            other => return Err(format!("no list at {key}: {other:?}").into()),
        };
        for member in &members {
            let Value::Text(member) = member else { return Err("a member is no text".into()) };
            self.0.push(&["HMGET", &format!("members:{member}"), "name", "city"]);
        }
        if members.is_empty() { Ok(()) } else { self.0.last().await.map(drop) }
    }
}

fn profile(member: Member) -> String {
    format!("members:{member}")
}

fn friends(member: Member) -> String {
    format!("friends:{member}")
}

fn pending(member: Member) -> String {
    format!("pending:{member}")
}

fn statements() -> [Statement; 8] {
    let statement = |name, numbers, sql: String| Statement { name, sql, texts: 0, numbers };
    let list = |table: &str, column: &str| {
        format!(
            "SELECT m.id, m.name, m.city FROM {table} l JOIN members m ON m.id = l.{column} WHERE l.member = $1 \
             ORDER BY l.since, l.{column} LIMIT {SHOWN}"
        )
    };
    let insert = |table: &str, column: &str| {
        format!("INSERT INTO {table} (member, {column}, since) VALUES ($1, $2, $3)")
    };
    let delete = |table: &str, column: &str| {
        format!("DELETE FROM {table} WHERE member = $1 AND {column} = $2")
    };
    let count = "UPDATE members SET friends = friends + $2, pending = pending + $3 WHERE id = $1";
    [
        statement("view", 1, "SELECT * FROM members WHERE id = $1".into()),
        statement("friends", 1, list("friends", "friend")),
        statement("pending", 1, list("invitations", "inviter")),
        statement("befriend", 3, insert("friends", "friend")),
        statement("part", 2, delete("friends", "friend")),
        statement("invite", 3, insert("invitations", "inviter")),
        statement("answer", 2, delete("invitations", "inviter")),
        statement("count", 3, count.into()),
    ]
}

/// Every action is one round trip; statements that are sent together are one transaction, and members are changed in the
/// order of their numbers, so that no two transactions wait for each other.
async fn sql(wire: &mut Wire, action: Action, since: i64) -> Result<()> {
    let out = &mut wire.out;
    let mut changes: Vec<(Member, i64, i64)> = Vec::new();
    match action {
        Action::View(member) => push_execute(out, "view", &[member]),
        Action::Friends(member) => push_execute(out, "friends", &[member]),
        Action::Pending(member) => push_execute(out, "pending", &[member]),
        Action::Invite { from, to } => {
            push_execute(out, "invite", &[to, from, since]);
            changes.push((to, 0, 1));
        }
        Action::Reject { from, to } => {
            push_execute(out, "answer", &[to, from]);
            changes.push((to, 0, -1));
        }
        Action::Accept { from, to } => {
            push_execute(out, "answer", &[to, from]);
            push_execute(out, "befriend", &[to, from, since]);
            push_execute(out, "befriend", &[from, to, since]);
            changes.extend([(to, 1, -1), (from, 1, 0)]);
        }
        Action::Thaw { one, other } => {
            push_execute(out, "part", &[one, other]);
            push_execute(out, "part", &[other, one]);
            changes.extend([(one, -1, 0), (other, -1, 0)]);
        }
    }
    changes.sort_unstable();
    for (member, friends, pending) in changes {
        push_execute(out, "count", &[member, friends, pending]);
    }
    push_sync(out);
    match wire.exchange(1).await {
        Ok(_) => Ok(()),
        // A list may be empty.
        Err(error) if matches!(action, Action::Friends(_) | Action::Pending(_)) => {
            if error.to_string().starts_with("no row touched") { Ok(()) } else { Err(error) }
        }
        Err(error) => Err(error),
    }
}
