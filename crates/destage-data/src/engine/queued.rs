//! The commands of a transaction.

use super::prepared::Prepared;
use crate::dml::Dml;
use crate::resp::{Code, ReplyError};

/// A command between MULTI and EXEC.
pub(super) enum Queued {
    Data(Box<Prepared>),
    /// PING or ECHO: replies with these bytes.
    Echo(Option<Vec<u8>>),
    /// DESTAGE EXECUTE: raw SQL.
    Dml(Box<[u8]>),
    /// UNWATCH, which EXEC does anyway.
    Unwatch,
}

/// Those on data.
pub(super) fn data_commands(queued: &[Queued]) -> impl Iterator<Item = &Prepared> {
    queued.iter().filter_map(|command| match command {
        Queued::Data(prepared) => Some(&**prepared),
        Queued::Echo(_) | Queued::Dml(_) | Queued::Unwatch => None,
    })
}

/// Raw SQL.
pub(super) fn dmls(queued: &[Queued]) -> impl Iterator<Item = Dml<'_>> {
    queued.iter().filter_map(|command| match command {
        Queued::Dml(bytes) => Dml::decode(bytes),
        Queued::Data(_) | Queued::Echo(_) | Queued::Unwatch => None,
    })
}

/// A transaction is not done because of this.
pub(super) fn discarded(why: &ReplyError) -> ReplyError {
    let before = "Transaction discarded, nothing was done: ";
    match why.code() {
        Code::Err => why.within(Code::ExecAbort, before),
        // It says so itself, and what to do is another thing.
        Code::Exists => why.clone(),
        _ => ReplyError::new(Code::ExecAbort, format!("{before}{why}")),
    }
}
