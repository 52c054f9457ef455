//! ACL: who the users are, in Redis's words. Nothing of it can be changed here: the file of `--users` says who they are.

use super::Engine;
use super::command::{SPECS, Spec, Verb};
use super::session::Session;
use crate::resp::{Code, Reply, ReplyError};
use crate::users::{DEFAULT, Role, User};

/// What commands are of, in Redis's words, as far as there are such.
const CATEGORIES: [&str; 9] = [
    "read",
    "write",
    "admin",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
    "keyspace",
    "all",
];

const FROM_FILE: ReplyError = ReplyError::fixed(
    Code::Err,
    "users come from the file of --users only: change it there and send SIGHUP; supported: ACL WHOAMI, LIST, USERS, GETUSER \
     name, CAT [category]",
);

/// Whether a command belongs to a category.
fn is_of(spec: &Spec, category: &str) -> bool {
    // Of those whose second word decides, that which asks for most.
    let role = spec.least_role(&[spec.name.as_bytes(), b"list"]);
    match category {
        "read" => role == Some(Role::Read),
        "write" => role == Some(Role::Write),
        "admin" | "dangerous" => role == Some(Role::Admin),
        "connection" => spec.verb.is_of_connection(),
        "transaction" => matches!(
            spec.verb,
            Verb::Multi | Verb::Exec | Verb::Discard | Verb::Watch | Verb::Unwatch
        ),
        "scripting" => matches!(spec.verb, Verb::Eval | Verb::EvalSha | Verb::Script),
        "keyspace" => matches!(
            spec.verb,
            Verb::Del
                | Verb::Exists
                | Verb::Type
                | Verb::Expire
                | Verb::Persist
                | Verb::Ttl
                | Verb::PTtl
                | Verb::ExpireTime
                | Verb::PExpireTime
                | Verb::Scan
                | Verb::DbSize
                | Verb::Object
        ),
        _ => true,
    }
}

impl Engine {
    /// ACL WHOAMI | LIST | USERS | GETUSER name | CAT [category]
    pub(super) fn acl_command(&mut self, session: &mut Session, args: &[&[u8]]) {
        match (args[1].to_ascii_lowercase().as_slice(), &args[2..]) {
            (b"whoami", []) => {
                let Session { login, out, protocol, .. } = session;
                let name = login.as_ref().map_or(DEFAULT, |login| login.user.name());
                Reply::new(out, *protocol).bulk(name.as_bytes());
            }
            (b"users", []) => {
                let names: Vec<String> =
                    self.acl_users().into_iter().map(|(name, _)| name).collect();
                let mut reply = Reply::new(&mut session.out, session.protocol);
                reply.array(names.len());
                names.iter().for_each(|name| reply.bulk(name.as_bytes()));
            }
            (b"list", []) => {
                let lines: Vec<String> = self
                    .acl_users()
                    .iter()
                    .map(|(name, user)| self.acl_line(name, *user))
                    .collect();
                let mut reply = Reply::new(&mut session.out, session.protocol);
                reply.array(lines.len());
                lines.iter().for_each(|line| reply.bulk(line.as_bytes()));
            }
            (b"getuser", [name]) => self.acl_user(session, name),
            (b"cat", []) => {
                let mut reply = Reply::new(&mut session.out, session.protocol);
                reply.array(CATEGORIES.len() - 1);
                CATEGORIES[..CATEGORIES.len() - 1]
                    .iter()
                    .for_each(|category| reply.bulk(category.as_bytes()));
            }
            (b"cat", [category]) => {
                let lower = String::from_utf8_lossy(category).to_ascii_lowercase();
                let Some(known) = CATEGORIES.iter().find(|known| **known == lower) else {
                    let shown = crate::key_text::show(category);
                    let message = format!("Unknown category '{shown}'; ACL CAT lists them");
                    return self.fail(session, ReplyError::err(message));
                };
                let of_it: Vec<&Spec> = SPECS.iter().filter(|spec| is_of(spec, known)).collect();
                let mut reply = Reply::new(&mut session.out, session.protocol);
                reply.array(of_it.len());
                of_it.iter().for_each(|spec| reply.bulk(spec.name.as_bytes()));
            }
            _ => self.fail(session, FROM_FILE),
        }
    }

    /// All users by name; default, where the file does not name it, without more.
    fn acl_users(&self) -> Vec<(String, Option<&User>)> {
        let of_file = self.users().into_iter().flat_map(|users| users.iter());
        let mut all: Vec<_> = of_file.map(|user| (user.name().to_owned(), Some(&**user))).collect();
        let is_own = self.users().is_none() || self.config.auth.is_asked_for();
        if is_own && all.iter().all(|(name, _)| name != DEFAULT) {
            all.push((DEFAULT.to_owned(), None));
            all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        }
        all
    }

    /// A line of ACL LIST: without the hashes of passwords, which are nobody's business.
    fn acl_line(&self, name: &str, user: Option<&User>) -> String {
        match user {
            Some(user) => format!(
                "user {name} {} {} resetchannels {}",
                if user.is_on() { "on" } else { "off" },
                user.keys_text(),
                user.commands_text()
            ),
            None if self.config.auth.is_asked_for() => {
                format!("user {name} on ~* resetchannels +@all")
            }
            None => format!("user {name} on nopass ~* resetchannels +@all"),
        }
    }

    fn acl_user(&mut self, session: &mut Session, name: &[u8]) {
        let all = self.acl_users();
        let found = all.iter().find(|(known, _)| known.as_bytes() == name);
        let is_open = self.users().is_none() && !self.config.auth.is_asked_for();
        let shown = found.map(|(_, user)| {
            let is_on = user.is_none_or(User::is_on);
            let flags: &[&str] = match (is_on, is_open) {
                (true, true) => &["on", "nopass"],
                (true, false) => &["on"],
                (false, _) => &["off"],
            };
            let commands = user.map_or("+@all", User::commands_text);
            (flags, commands, user.map_or_else(|| "~*".to_owned(), User::keys_text))
        });
        let mut reply = Reply::new(&mut session.out, session.protocol);
        let Some((flags, commands, keys)) = shown else { return reply.null() };
        reply.map(6);
        reply.bulk(b"flags");
        reply.array(flags.len());
        flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
        reply.bulk(b"passwords");
        reply.array(0);
        for (name, text) in [("commands", commands), ("keys", keys.as_str()), ("channels", "")] {
            reply.bulk(name.as_bytes());
            reply.bulk(text.as_bytes());
        }
        reply.bulk(b"selectors");
        reply.array(0);
    }
}
