//! Clients that come and go, and commands about the connection and the server: what clients send besides data commands.

use super::Engine;
use super::command::{Spec, Verb};
use super::session::{Multi, Session, WaitKind};
use super::waits::number;
use crate::lookup;
use crate::resp::{Code, Protocol, Reply, ReplyError};
use crate::value::ColumnType;
use destage_core::{ClientId, Input, Lsn, Time};
use std::net::SocketAddr;

/// How much work a command about the connection or the server is, in the units of a turn: some look at all clients.
const OF_SERVER_COST: usize = 2 << 10;
/// How much work it is to look at a cached row, in the units of a turn.
const ROW_COST: usize = 16;
/// Keys handed out by one DESTAGE NEXTID.
const NEXT_KEYS_MAX: u32 = 10_000;
impl Engine {
    /// A client connected that has no address; `None` if there are too many.
    pub fn connect(&mut self) -> Option<ClientId> {
        self.connect_from(self.now, None, true)
    }

    /// A client connected from this address; `None` if there are too many. One that is not greeted yet is to be by
    /// [`Engine::greet`], in time, before anything that it says is received.
    pub fn connect_from(
        &mut self,
        now: Time,
        from: Option<SocketAddr>,
        is_greeted: bool,
    ) -> Option<ClientId> {
        self.now = self.now.max(now);
        if self.sessions.is_full() {
            return None;
        }
        let mut session = Box::<Session>::default();
        session.from = from;
        (session.seen.since, session.seen.at) = (self.now, self.now);
        if is_greeted && !self.asks_for_password() {
            session.authenticate();
        }
        self.measured.accepted();
        session.known_by = (!session.known).then(|| self.now + self.config.handshake_timeout);
        let client = self.sessions.add(session);
        self.look_after(client);
        Some(client)
    }

    /// The client's connection is encrypted: where there is no password it may go on.
    pub fn greet(&mut self, client: ClientId) {
        let is_open = !self.asks_for_password();
        if let Some(session) = self.sessions.get_mut(client).filter(|_| is_open) {
            session.authenticate();
        }
    }

    /// As [`Engine::connect`], for a client of this very process, which needs no password.
    pub fn connect_trusted(&mut self) -> Option<ClientId> {
        let client = self.connect()?;
        if let Some(session) = self.sessions.get_mut(client) {
            session.authenticate();
            session.is_trusted = true;
        }
        Some(client)
    }

    /// The client's next reply tells of this write, and leaves when that may be told.
    pub fn see(&mut self, client: ClientId, lsn: Lsn) {
        if let Some(session) = self.sessions.get_mut(client) {
            session.lsn = session.lsn.max(lsn);
        }
    }

    pub(super) fn server_command(
        &mut self,
        client: ClientId,
        session: &mut Session,
        spec: &Spec,
        args: &[&[u8]],
    ) {
        if !matches!(spec.verb, Verb::Ping | Verb::Echo | Verb::Multi | Verb::Exec) {
            self.sessions.worked(OF_SERVER_COST);
        }
        match spec.verb {
            Verb::Ping if session.is_subscribed && session.protocol == Protocol::V2 => {
                let mut reply = Reply::new(&mut session.out, session.protocol);
                reply.array(2);
                reply.bulk(b"pong");
                reply.bulk(args.get(1).unwrap_or(&b"".as_slice()));
            }
            Verb::Ping => match args.get(1) {
                Some(text) => Reply::new(&mut session.out, session.protocol).bulk(text),
                None => Reply::new(&mut session.out, session.protocol).simple("PONG"),
            },
            Verb::Echo => Reply::new(&mut session.out, session.protocol).bulk(args[1]),
            Verb::Select => self.select(session, args[1]),
            Verb::Auth => self.auth(client, session, &args[1..]),
            Verb::Acl => self.acl_command(session, args),
            Verb::Hello => self.hello(client, session, &args[1..]),
            Verb::Client => self.client_command(client, session, args),
            Verb::Subscribe => self.subscribe(session, &args[1..]),
            Verb::Unsubscribe => self.unsubscribe(session, &args[1..]),
            Verb::Command => self.command_table(session, args),
            Verb::Config => self.config_command(session, args),
            Verb::Info => {
                let text = self.info(&args[1..]);
                Reply::new(&mut session.out, session.protocol).text(&text);
            }
            Verb::Sentinel => {
                let mut reply = Reply::new(&mut session.out, session.protocol);
                lookup::sentinel(args, self.config.place.as_ref(), &mut reply);
            }
            Verb::Role => {
                let last = self.core.last().0;
                lookup::role_of_owner(last, &mut Reply::new(&mut session.out, session.protocol));
            }
            Verb::Multi if session.is_leased() => self.defer(session),
            Verb::Multi if session.multi.is_some() => {
                self.complain(
                    session,
                    ReplyError::fixed(Code::Err, "MULTI calls can not be nested"),
                );
            }
            Verb::Multi => {
                session.multi = Some(Multi::default());
                Reply::new(&mut session.out, session.protocol).ok();
            }
            Verb::Exec => self.exec(client, session),
            Verb::Discard if session.multi.is_some() => {
                self.end_multi(session);
                Reply::new(&mut session.out, session.protocol).ok();
            }
            Verb::Discard => {
                self.fail(session, ReplyError::fixed(Code::Err, "DISCARD without MULTI"))
            }
            Verb::Watch => self.watch(session, &args[1..]),
            Verb::Unwatch => {
                self.unwatch(session);
                Reply::new(&mut session.out, session.protocol).ok();
            }
            Verb::Script => self.script_command(session, args),
            Verb::Scan => self.scan_command(client, session, args),
            Verb::DbSize => {
                let keys = i64::try_from(self.keys_in_memory()).unwrap_or(i64::MAX);
                Reply::new(&mut session.out, session.protocol).integer(keys);
            }
            Verb::SlowLog => self.slow_log_command(session, args),
            Verb::Latency => self.latency_command(session, args),
            Verb::Monitor => self.monitor(client, session),
            Verb::Memory => self.memory_command(session, args),
            Verb::Object => self.object_command(session, args),
            Verb::WaitAof => self.wait_aof(client, session, args),
            Verb::Destage => self.destage_command(client, session, args),
            Verb::Quit => {
                Reply::new(&mut session.out, session.protocol).ok();
                session.closing = true;
            }
            Verb::Reset => {
                session.multi = None;
                self.unwatch(session);
                if std::mem::take(&mut session.monitors) {
                    self.sessions.unmonitor(client);
                }
                self.untrack(session);
                session.is_subscribed = false;
                session.pushes.clear();
                session.protocol = Protocol::V2;
                session.name.clear();
                (session.wrong_database, session.has_begun) = (None, false);
                (session.authenticated, session.login) = (!self.asks_for_password(), None);
                Reply::new(&mut session.out, session.protocol).simple("RESET");
            }
            _ => unreachable!("not a server command"),
        }
    }

    fn destage_command(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
        let texts: Vec<String> =
            args[2..].iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
        let subcommand = args[1].to_ascii_lowercase();
        if matches!(&subcommand[..], b"status" | b"pause") && args.len() > 2 {
            let name = String::from_utf8_lossy(&subcommand);
            let message =
                ReplyError::err(format!("wrong number of arguments for 'destage|{name}' command"));
            return self.fail(session, message);
        }
        match subcommand.as_slice() {
            b"status" => {
                let text = self.report().to_table();
                Reply::new(&mut session.out, session.protocol).text(&text);
            }
            b"policy" => match self.change_policy(&texts) {
                Ok(summary) => Reply::new(&mut session.out, session.protocol).bulk(summary.as_bytes()),
                Err(message) => self.fail(session, ReplyError::err(message)),
            },
            b"pause" => {
                self.core.handle(self.now, Input::Pause);
                Reply::new(&mut session.out, session.protocol).ok();
            }
            b"resume" => match self.resume_as(&texts) {
                Ok(()) => Reply::new(&mut session.out, session.protocol).ok(),
                Err(message) => self.fail(session, ReplyError::err(message)),
            },
            b"flush" => self.wait_for_all(client, session, WaitKind::Flushed, args.get(2).copied()),
            b"drain" => self.wait_for_all(client, session, WaitKind::Drained, args.get(2).copied()),
            b"wait" => match args.get(2).and_then(|arg| number(arg)) {
                Some(timeout) => self.wait(client, session, WaitKind::Destaged, timeout),
                None => {
                    let usage = "DESTAGE WAIT timeout-in-ms (0: as long as it takes)";
                    self.fail(session, ReplyError::fixed(Code::Err, usage));
                }
            },
            b"decided" if session.is_trusted => self.wait_decided(client, session, &args[2..]),
            b"begin" => self.begin_leased(session, &args[2..]),
            b"exclude" | b"absent" | b"share" => {
                self.fail(session, ReplyError::fixed(Code::Err, "that belongs between DESTAGE BEGIN and EXEC"));
            }
            b"parked" => self.parked_command(client, session, &texts),
            b"nextid" => self.next_id(client, session, &args[2..]),
            b"invalidate" => self.invalidate_keys(session, &args[2..]),
            _ => self.fail(
                session,
                ReplyError::fixed(Code::Err, "unknown DESTAGE subcommand; supported: STATUS, POLICY [part=value ...], \
                 PAUSE, RESUME [PARK], FLUSH [ms], DRAIN [ms], WAIT ms, ONCE token command [argument ...], BEGIN [ms], \
                 EXCLUDE key [key ...], ABSENT key [key ...], SHARE name [name ...], NEXTID table [n], INVALIDATE key [key ...], PARKED LIST | SHOW id | RETRY id|ALL | EDIT id changes | SKIP id"),
            ),
        }
    }

    /// DESTAGE NEXTID table [n]
    fn next_id(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
        let Some(name) = args.first() else {
            return self.fail(session, ReplyError::fixed(Code::Err, "DESTAGE NEXTID table [n]"));
        };
        let Some(table) = self.schema.find(name) else {
            let message = super::key::unknown_table(&self.schema, name);
            return self.fail(session, message);
        };
        let generated = table
            .generated_key
            .filter(|&index| matches!(table.columns[index].ty, ColumnType::Int { .. }));
        let Some(column) = generated else {
            let message = ReplyError::err(format!(
                "{} has no key that the origin generates; choose the key",
                table.name
            ));
            return self.fail(session, message);
        };
        let table = table.id;
        let count = args.get(1).map_or(Some(1), |arg| number(arg));
        let Some(count) =
            count.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0 && n <= NEXT_KEYS_MAX)
        else {
            let message =
                ReplyError::err(format!("DESTAGE NEXTID hands out 1 to {NEXT_KEYS_MAX} keys"));
            return self.fail(session, message);
        };
        session.waiting = Some(self.ask_next_keys(client, table, column, count));
    }

    /// DESTAGE INVALIDATE key [key ...]: the number of cached rows dropped.
    fn invalidate_keys(&mut self, session: &mut Session, keys: &[&[u8]]) {
        if keys.is_empty() {
            return self.fail(
                session,
                ReplyError::fixed(Code::Err, "DESTAGE INVALIDATE key|table:*|* [...]"),
            );
        }
        if keys.iter().any(|key| key.ends_with(b"*")) {
            // All that is cached is looked through.
            self.sessions.worked(keys.len() * self.rows.len() * ROW_COST);
        }
        match self.invalidate_named(keys) {
            Ok(count) => Reply::new(&mut session.out, session.protocol).integer(count),
            Err(message) => self.fail(session, message),
        }
    }
}
