//! Commands about the connection, and those by which client libraries get to know the server.

use super::Engine;
use super::command::{Category, SPECS, Spec};
use super::login::LoggedIn;
use super::numbers::NOT_INTEGER;
use super::session::{Session, wrong_database};
use crate::resp::{Code, Protocol, Reply, ReplyError};
use crate::users::DEFAULT;
use destage_core::ClientId;
use destage_runtime::auth::Auth;
use std::sync::Arc;

/// The longest name of a connection: it is kept for as long as that lasts.
const NAME_BYTES_MAX: usize = 1 << 10;
const LONG_NAME: ReplyError =
    ReplyError::fixed(Code::Err, "a connection's name has 1024 bytes at most");
/// Whether a connection may have this name. A space or an end of a line would forge fields of CLIENT LIST.
///
/// # Errors
/// A message for the client.
pub(super) fn check_name(name: &[u8]) -> Result<(), ReplyError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(LONG_NAME);
    }
    if name.iter().all(u8::is_ascii_graphic) {
        return Ok(());
    }
    let what = "a connection's name has no spaces, line ends or other special characters";
    Err(ReplyError::fixed(Code::Err, what))
}

/// What clients that ask for a Redis version are told: the commands supported behave as in that version.
const REDIS_VERSION: &str = "7.2.0";

/// What HELLO does besides logging in.
#[derive(Clone, Debug)]
pub(crate) struct HelloRest {
    protocol: Protocol,
    name: Option<Box<[u8]>>,
}

impl Engine {
    /// There is one database. A client that asks for another one as it connects does not mean the origin's rows, and may not
    /// look at this reply (ioredis does not), so it gets no further. Whoever asks later is told, and stays where it was.
    pub(super) fn select(&mut self, session: &mut Session, index: &[u8]) {
        match std::str::from_utf8(index).ok().and_then(|index| index.parse::<i64>().ok()) {
            Some(0) => {
                session.wrong_database = None;
                Reply::new(&mut session.out, session.protocol).ok();
            }
            Some(other) => {
                session.wrong_database = (!session.has_begun).then_some(other);
                let message =
                    ReplyError::err(format!("DB index is out of range: {}", wrong_database(other)));
                self.fail(session, message);
            }
            None => self.fail(session, NOT_INTEGER),
        }
    }

    /// What asks for the password, which the admin port shares.
    pub fn passwords(&self) -> &Arc<Auth> {
        &self.config.auth
    }

    /// AUTH [user] password
    pub(super) fn auth(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
        let (user, password) = match args {
            [password] => (DEFAULT.as_bytes(), *password),
            [user, password] => (*user, *password),
            _ => {
                return self.fail(
                    session,
                    ReplyError::fixed(Code::Err, "wrong number of arguments for 'auth' command"),
                );
            }
        };
        if args.len() == 1 && !self.has_default_password() {
            return self.fail(
                session,
                ReplyError::fixed(
                    Code::Err,
                    "AUTH <password> called without any password configured for the default user. Are you sure your \
                     configuration is correct?",
                ),
            );
        }
        match self.log_in(client, session, user, password, None) {
            Ok(LoggedIn::Now) => Reply::new(&mut session.out, session.protocol).ok(),
            Ok(LoggedIn::Later) => {}
            Err(message) => self.fail(session, message),
        }
    }

    /// HELLO [version [AUTH user password] [SETNAME name]]
    pub(super) fn hello(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
        let protocol = match args.first() {
            None => session.protocol,
            Some(&b"2") => Protocol::V2,
            Some(&b"3") => Protocol::V3,
            Some(_) => {
                return self.fail(
                    session,
                    ReplyError::fixed(Code::NoProto, "unsupported protocol version"),
                );
            }
        };
        let mut then = HelloRest { protocol, name: None };
        let mut credentials = None;
        let mut rest = args.get(1..).unwrap_or_default();
        while let Some((option, tail)) = rest.split_first() {
            rest = match (option.to_ascii_lowercase().as_slice(), tail) {
                (b"auth", [user, password, tail @ ..]) => {
                    credentials = Some((*user, *password));
                    tail
                }
                (b"setname", [name, tail @ ..]) => {
                    if let Err(error) = check_name(name) {
                        return self.fail(session, error);
                    }
                    then.name = Some((*name).into());
                    tail
                }
                _ => {
                    return self
                        .fail(session, ReplyError::fixed(Code::Err, "syntax error in HELLO"));
                }
            };
        }
        if let Some((user, password)) = credentials {
            return match self.log_in(client, session, user, password, Some(&then)) {
                Ok(LoggedIn::Now) => Self::greeting(client, session, then),
                Ok(LoggedIn::Later) => {}
                Err(message) => self.fail(session, message),
            };
        }
        if !session.authenticated {
            return self.fail(
                session,
                ReplyError::fixed(Code::NoAuth, "HELLO must be called with the client already authenticated, otherwise the \
                 HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
                 select the RESP protocol version at the same time"),
            );
        }
        Self::greeting(client, session, then);
    }

    /// What HELLO does once it is known who the client is.
    pub(super) fn greeting(client: ClientId, session: &mut Session, then: HelloRest) {
        let HelloRest { protocol, name } = then;
        // They are in the words of the protocol before this one.
        session.out.append(&mut session.pushes);
        session.protocol = protocol;
        if let Some(name) = name {
            session.name = name.into();
        }
        let mut reply = Reply::new(&mut session.out, protocol);
        reply.map(7);
        for (name, value) in [("server", "destage"), ("version", REDIS_VERSION)] {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"proto");
        reply.integer(if protocol == Protocol::V3 { 3 } else { 2 });
        reply.bulk(b"id");
        reply.integer(i64::from(client.0) + 1);
        for (name, value) in [("mode", "standalone"), ("role", "master")] {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"modules");
        reply.array(0);
    }

    pub(super) fn command_table(&mut self, session: &mut Session, args: &[&[u8]]) {
        let mut reply = Reply::new(&mut session.out, session.protocol);
        let sub = args.get(1).map(|sub| sub.to_ascii_lowercase());
        match sub.as_deref() {
            None => {
                reply.array(SPECS.len());
                SPECS.iter().for_each(|spec| write_spec(&mut reply, spec));
            }
            Some(b"count") => reply.integer(SPECS.len() as i64),
            Some(b"docs") => reply.map(0),
            Some(b"list") => {
                reply.array(SPECS.len());
                SPECS.iter().for_each(|spec| reply.bulk(spec.name.as_bytes()));
            }
            Some(b"info") => {
                reply.array(args.len() - 2);
                for name in &args[2..] {
                    match SPECS.iter().find(|s| name.eq_ignore_ascii_case(s.name.as_bytes())) {
                        Some(spec) => write_spec(&mut reply, spec),
                        None => reply.null(),
                    }
                }
            }
            Some(_) => self.fail(
                session,
                ReplyError::fixed(
                    Code::Err,
                    "unknown COMMAND subcommand; supported: COUNT DOCS INFO LIST",
                ),
            ),
        }
    }
}

fn write_spec(reply: &mut Reply<'_>, spec: &Spec) {
    let (first, last, step) = spec.key_places();
    // Redis 7 sends ten elements; the last four (categories, hints, key specifications, subcommands) are empty here.
    reply.array(10);
    reply.bulk(spec.name.as_bytes());
    reply.integer(i64::from(spec.arity));
    reply.array(1);
    reply.simple(match spec.category {
        Category::Read => "readonly",
        Category::Write => "write",
        Category::Server => "fast",
    });
    reply.integer(first as i64);
    reply.integer(last);
    reply.integer(step as i64);
    (0..4).for_each(|_| reply.array(0));
}
