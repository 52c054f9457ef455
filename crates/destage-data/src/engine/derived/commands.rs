//! The commands that take derived keys.

use super::super::Engine;
use super::super::command::{Category, Spec, Verb};
use super::super::session::Session;
use super::Name;
use crate::cells::{Cell, push_cell};
use crate::key_text::show;
use crate::resp::{Code, Reply, ReplyError};
use crate::schema::TableId;
use destage_core::{ClientId, Span};

/// What works on a derived key.
const SUPPORTED: &str = "GET, EXISTS, TYPE, TTL, PTTL, DEL (drops the cached result), WATCH";

impl Engine {
    /// Executes a command on derived keys; false if it names none.
    pub(in crate::engine) fn derived_request(
        &mut self,
        client: ClientId,
        session: &mut Session,
        spec: &Spec,
        args: &[&[u8]],
    ) -> bool {
        let keys = match (spec.category, spec.verb) {
            (Category::Server, _) => return false,
            (_, Verb::Del | Verb::Exists) => &args[1..],
            _ => &args[1..2],
        };
        let Some(first) = keys.iter().find_map(|key| self.derived.queries().begins(key)) else {
            return false;
        };
        let pattern = first.key.clone();
        if session.multi.is_some() {
            let message = ReplyError::err(format!(
                "{pattern} is a derived key: GET it before MULTI, and WATCH it where the transaction depends on it"
            ));
            if session.is_leased() {
                self.complain(session, message)
            } else {
                self.fail(session, message)
            }
            return true;
        }
        match self.derived_names(keys) {
            Err(message) => self.fail(session, message),
            Ok(names) => self.derived_command(client, session, spec.verb, &pattern, names),
        }
        true
    }

    fn derived_command(
        &mut self,
        client: ClientId,
        session: &mut Session,
        verb: Verb,
        pattern: &str,
        mut names: Vec<Name>,
    ) {
        match verb {
            Verb::Get => {
                let name = names.pop().expect("GET takes one key");
                self.get_derived(client, session, name);
            }
            Verb::Exists => {
                Reply::new(&mut session.out, session.protocol).integer(names.len() as i64);
            }
            Verb::Type => Reply::new(&mut session.out, session.protocol).simple("string"),
            Verb::Ttl | Verb::PTtl => {
                let left = self.time_left(&names[0]);
                let unit =
                    if verb == Verb::Ttl { Span::from_secs(1) } else { Span::from_millis(1) };
                let number = left.map_or(-1, |left| left.0.div_ceil(unit.0) as i64);
                Reply::new(&mut session.out, session.protocol).integer(number);
            }
            Verb::Del => {
                let dropped = self.drop_results(&names);
                Reply::new(&mut session.out, session.protocol).integer(dropped);
            }
            _ => {
                let message = ReplyError::new(
                    Code::WrongType,
                    format!("{pattern} is a derived key, read-only: {SUPPORTED}"),
                );
                self.fail(session, message);
            }
        }
    }

    /// The keys' queries and values.
    fn derived_names(&self, keys: &[&[u8]]) -> Result<Vec<Name>, ReplyError> {
        let name = |key: &&[u8]| match self.derived_name(key) {
            Some(name) => name,
            None => Err(ReplyError::err(format!(
                "'{}' is no derived key; name rows and derived keys in different commands",
                show(key)
            ))),
        };
        keys.iter().map(name).collect()
    }

    /// The query and the values of a key that begins as derived keys do.
    fn derived_name(&self, key: &[u8]) -> Option<Result<Name, ReplyError>> {
        let queries = self.derived.queries();
        let similar = queries.begins(key)?;
        let Some((index, parts)) = queries.find(key) else {
            return Some(Err(ReplyError::err(format!(
                "the key '{}' fits no derived key: those that begin so are {}",
                show(key),
                similar.key
            ))));
        };
        let values = queries.get(index).canonical(&self.schema, &parts).map_err(ReplyError::err);
        Some(values.map(|values| {
            let mut cells = Vec::new();
            values.iter().for_each(|value| push_cell(&mut cells, Cell::Value(value)));
            (index, cells.into())
        }))
    }

    /// How long a result will be kept at most: nothing where none is cached, `None` for ever.
    fn time_left(&self, name: &Name) -> Option<Span> {
        let age_max = self.derived.query(name).max_age?;
        let cached = self.cached(name).filter(|cached| self.is_fresh(name, cached));
        Some(cached.map_or(Span::ZERO, |cached| age_max.saturating_sub(self.now.since(cached.at))))
    }

    /// Drops cached results, and those on their way; how many were cached.
    fn drop_results(&mut self, names: &[Name]) -> i64 {
        let mut dropped = 0;
        for name in names {
            self.derived.versions_mut().drop(name.0, &name.1);
            let unit = self.cached(name).map(|cached| cached.unit);
            dropped += i64::from(unit.is_some());
            unit.into_iter().for_each(|unit| self.invalidate(unit));
        }
        dropped
    }

    /// DESTAGE INVALIDATE of a key that begins as derived keys do.
    ///
    /// # Errors
    /// The key fits no query.
    pub(in crate::engine) fn drop_derived(
        &mut self,
        key: &[u8],
    ) -> Option<Result<i64, ReplyError>> {
        let name = self.derived_name(key)?;
        Some(name.map(|name| self.drop_results(&[name])))
    }

    /// The tables that a key to be watched depends on, if it is derived.
    pub(in crate::engine) fn watched_tables(
        &self,
        key: &[u8],
    ) -> Option<Result<Vec<TableId>, ReplyError>> {
        let name = self.derived_name(key)?;
        let tables = |name: Name| {
            let dependencies = self.derived.query(&name).dependencies().iter();
            dependencies.map(|dependency| dependency.table).collect()
        };
        Some(name.map(tables))
    }
}
