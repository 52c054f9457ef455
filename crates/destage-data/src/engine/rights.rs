//! What a user of `--users` may do: which commands by its role, which keys by its patterns.
//!
//! Every request is looked at as it arrives, before anything is done or kept of it; what asks anew after it has waited is
//! looked at again. A script reaches its KEYS alone, so these are what counts of it. What a pattern takes is a key as it is
//! sent; of a row also as SCAN writes it, since a row has several spellings.

use super::Engine;
use super::command::{Category, Spec, Verb, find};
use super::key::{format_key, parse_key};
use super::once::command::Once;
use super::script::read::keys_of_script;
use super::session::Session;
use crate::cells::Reader;
use crate::resp::{Code, ReplyError};
use crate::users::{Reach, Role, User};
use destage_core::ClientId;
use std::sync::Arc;

const NO_KEY: ReplyError = ReplyError::fixed(Code::NoPerm, "No permissions to access a key");

impl Spec {
    /// The least role that may send this; `None` for all who may connect.
    pub(super) fn least_role(&self, args: &[&[u8]]) -> Option<Role> {
        let sub = args.get(1).map(|sub| sub.to_ascii_lowercase()).unwrap_or_default();
        match (self.category, self.verb) {
            (Category::Read, _) => Some(Role::Read),
            (Category::Write, _) => Some(Role::Write),
            (_, Verb::Destage) => Some(match &sub[..] {
                b"status" => Role::Read,
                // What ONCE carries out has a role of its own; its token is kept, whatever that is.
                b"once" | b"wait" | b"begin" | b"exclude" | b"share" | b"absent" | b"nextid"
                | b"invalidate" => Role::Write,
                _ => Role::Admin,
            }),
            (_, Verb::Client) => (sub == b"list").then_some(Role::Admin),
            (_, Verb::Acl) => (!matches!(&sub[..], b"whoami" | b"cat")).then_some(Role::Admin),
            (_, Verb::Script) => Some(match &sub[..] {
                b"load" | b"exists" => Role::Read,
                _ => Role::Admin,
            }),
            (_, Verb::SlowLog | Verb::Latency | Verb::Monitor | Verb::Config) => Some(Role::Admin),
            (_, Verb::Scan | Verb::DbSize | Verb::Memory | Verb::Object | Verb::Watch) => {
                Some(Role::Read)
            }
            _ => None,
        }
    }

    /// How many keys a request names; of one that is carried out once, its command.
    pub(super) fn keys_named(&self, args: &[&[u8]]) -> usize {
        match Once::split(args) {
            (Some(_), command) => find(command).map_or(0, |inner| inner.named(command).1.count()),
            (None, _) => self.named(args).1.count(),
        }
    }

    /// The keys that a request names, and what it does with them.
    fn named<'l, 'a>(&self, args: &'l [&'a [u8]]) -> (Reach, impl Iterator<Item = &'l &'a [u8]>) {
        let reach = if self.category == Category::Write { Reach::Write } else { Reach::Read };
        let is = |word: &[u8]| args[1].eq_ignore_ascii_case(word);
        let behind = |count: usize| args.get(count..).unwrap_or_default();
        let (reach, words, step) = match (self.verb, self.key_places()) {
            (Verb::Eval | Verb::EvalSha, _) => (reach, keys_of_script(args), 1),
            (Verb::Memory | Verb::Object, _) => (reach, args.get(2..3).unwrap_or_default(), 1),
            (Verb::Destage, _) if is(b"exclude") || is(b"absent") || is(b"share") => {
                (Reach::Write, behind(2), 1)
            }
            (_, (0, ..)) => (reach, &args[..0], 1),
            (_, (first, 1, step)) => (reach, &args[first..2], step),
            (_, (first, _, step)) => (reach, behind(first), step),
        };
        (reach, words.iter().step_by(step))
    }
}

impl Engine {
    /// Whether the client may send this.
    ///
    /// # Errors
    /// A message for the client; nothing is to be done.
    pub(super) fn may_send(
        &self,
        session: &Session,
        spec: &Spec,
        args: &[&[u8]],
    ) -> Result<(), ReplyError> {
        let Some(login) = session.login.as_ref() else { return Ok(()) };
        let user = &*login.user;
        if user.role() == Role::Admin {
            return Ok(());
        }
        self.has_right(user, spec, args)?;
        let (Some(_), command) = Once::split(args) else { return Ok(()) };
        // One that does not fit is refused as such later.
        find(command).map_or(Ok(()), |inner| self.has_right(user, inner, command))
    }

    fn has_right(&self, user: &User, spec: &Spec, args: &[&[u8]]) -> Result<(), ReplyError> {
        if spec.least_role(args).is_some_and(|least| user.role() < least) {
            let what = match spec.verb {
                Verb::Destage | Verb::Client | Verb::Acl | Verb::Script | Verb::Config => {
                    format!(
                        "{}|{}",
                        spec.name,
                        String::from_utf8_lossy(args[1]).to_ascii_lowercase()
                    )
                }
                _ => spec.name.to_owned(),
            };
            let text =
                format!("User {} has no permissions to run the '{what}' command", user.name());
            return Err(ReplyError::new(Code::NoPerm, text));
        }
        if spec.verb == Verb::Destage {
            self.has_tables(user, args)?;
        }
        let (reach, mut keys) = spec.named(args);
        if keys.all(|key| self.reaches(user, reach, key)) { Ok(()) } else { Err(NO_KEY) }
    }

    /// DESTAGE NEXTID table and DESTAGE INVALIDATE key, table:* or *: whole tables at once.
    fn has_tables(&self, user: &User, args: &[&[u8]]) -> Result<(), ReplyError> {
        let has = match args[1].to_ascii_lowercase().as_slice() {
            b"nextid" => args.get(2).is_none_or(|table| {
                user.reaches_below(Reach::Write, &[*table, b":".as_slice()].concat())
            }),
            b"invalidate" => args[2..].iter().all(|key| match key.strip_suffix(b"*") {
                Some(prefix) => user.reaches_below(Reach::Write, prefix),
                None => self.reaches(user, Reach::Write, key),
            }),
            _ => true,
        };
        if has { Ok(()) } else { Err(NO_KEY) }
    }

    /// Whether a user reaches a key, in each of its spellings that count.
    fn reaches(&self, user: &User, reach: Reach, key: &[u8]) -> bool {
        user.reaches_all(reach)
            || user.reaches(reach, key)
                && self.written_out(key).is_none_or(|key| user.reaches(reach, &key))
    }

    /// The key of a row as SCAN writes it; `None` where the key is one of the settings' own making, or none of a row.
    fn written_out(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut cells = Vec::new();
        let is_mapped = self.schema.mappings.resolve(&self.schema, key, &mut cells).is_some();
        if is_mapped || self.schema.plain_of(key).is_some() {
            return None;
        }
        cells.clear();
        let table = parse_key(&self.schema, key, &mut cells).ok()?;
        let mut written = Vec::new();
        format_key(table, Reader::new(&cells), &mut written);
        Some(written)
    }

    /// The user that a client is, if its keys are limited for reading.
    pub(super) fn limited(&self, client: ClientId) -> Option<Arc<User>> {
        limited(self.sessions.get(client)?)
    }
}

/// The user of a connection, if its keys are limited for reading.
pub(super) fn limited(session: &Session) -> Option<Arc<User>> {
    let user = &session.login.as_ref()?.user;
    (!user.reaches_all(Reach::Read)).then(|| user.clone())
}
