//! The commands that take derived keys.

use super::super::Engine;
use super::super::command::{Category, Spec, Verb};
use super::super::script::read::keys_of_script;
use super::super::session::Session;
use super::Name;
use crate::key_text::show;
use crate::resp::{Code, Reply, ReplyError};
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
            (_, Verb::Eval) => keys_of_script(args),
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
            self.fail(session, message);
            return true;
        }
        match self.derived_names(keys) {
            Err(message) => self.fail(session, message),
            Ok(names) => {
                let key = keys.first().copied().unwrap_or_default();
                self.derived_command(client, session, spec.verb, &pattern, names, key);
            }
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
        key: &[u8],
    ) {
        match verb {
            Verb::Get => {
                let name = names.pop().expect("GET takes one key");
                self.get_derived(client, session, name, key);
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

    /// How long a result will be kept at most: nothing where none is cached, `None` for ever.
    fn time_left(&self, name: &Name) -> Option<Span> {
        let age_max = self.derived.query(name).max_age?;
        let cached = self.cached(name).filter(|cached| self.is_fresh(name, cached));
        Some(cached.map_or(Span::ZERO, |cached| age_max.saturating_sub(self.now.since(cached.at))))
    }
}
