//! Clients that come and go, and commands about the connection and the server: what clients send besides data commands.

use super::command::{Category, SPECS, Spec, Verb};
use super::session::{Job, Multi, Session, WaitKind, Waiting, wrong_database};
use super::{Engine, Io};
use crate::resp::{Code, Protocol, Reply, ReplyError};
use crate::value::ColumnType;
use destage_core::{ClientId, Input, Lsn, Span, Time, WaitFor};
use destage_runtime::auth::{Auth, Verdict};
use std::net::IpAddr;
use std::sync::Arc;

/// How much work a command about the connection or the server is, in the units of a turn: some look at all clients.
const OF_SERVER_COST: usize = 2 << 10;
/// How much work it is to look at a cached row, in the units of a turn.
const ROW_COST: usize = 16;
/// The longest name of a connection: it is kept for as long as that lasts.
const NAME_BYTES_MAX: usize = 1 << 10;
const LONG_NAME: ReplyError =
    ReplyError::fixed(Code::Err, "a connection's name has 1024 bytes at most");
/// Keys handed out by one DESTAGE NEXTID.
const NEXT_KEYS_MAX: u32 = 10_000;
/// What clients that ask for a Redis version are told: the commands supported behave as in that version.
const REDIS_VERSION: &str = "7.2.0";

impl Engine {
    /// A client connected that has no address; `None` if there are too many.
    pub fn connect(&mut self) -> Option<ClientId> {
        self.connect_from(self.now, None)
    }

    /// A client connected from this address; `None` if there are too many.
    pub fn connect_from(&mut self, now: Time, from: Option<IpAddr>) -> Option<ClientId> {
        self.now = self.now.max(now);
        if self.sessions.is_full() {
            return None;
        }
        let mut session = Box::<Session>::default();
        session.from = from;
        if !self.config.auth.is_asked_for() {
            session.authenticate();
        }
        self.measured.accepted();
        session.known_by = (!session.known).then(|| self.now + self.config.handshake_timeout);
        let client = self.sessions.add(session);
        self.look_after(client);
        Some(client)
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

    /// A client is gone. What it wrote stays; what it waited for is dropped.
    pub fn disconnect(&mut self, now: Time, client: ClientId) {
        self.now = self.now.max(now);
        let Some(mut session) = self.sessions.remove(client) else { return };
        self.unwatch(&mut session);
        if let Some(request) = session.pending_request() {
            self.core.handle(self.now, Input::Cancel { request });
        }
        if let Some(Waiting::Derived { name, .. }) = &session.waiting {
            self.derived.leave(client, name);
        }
        self.pump();
        self.run_ready();
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
            Verb::Ping => match args.get(1) {
                Some(text) => Reply::new(&mut session.out, session.protocol).bulk(text),
                None => Reply::new(&mut session.out, session.protocol).simple("PONG"),
            },
            Verb::Echo => Reply::new(&mut session.out, session.protocol).bulk(args[1]),
            Verb::Select => self.select(session, args[1]),
            Verb::Auth => self.auth(session, &args[1..]),
            Verb::Hello => self.hello(client, session, &args[1..]),
            Verb::Client => self.client_command(client, session, args),
            Verb::Command => self.command_table(session, args),
            Verb::Config => self.config_command(session, args),
            Verb::Info => {
                let text = self.info(&args[1..]);
                Reply::new(&mut session.out, session.protocol).text(&text);
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
            Verb::Scan => self.scan_command(client, session, args),
            Verb::WaitAof => self.wait_aof(client, session, args),
            Verb::Destage => self.destage_command(client, session, args),
            Verb::Quit => {
                Reply::new(&mut session.out, session.protocol).ok();
                session.closing = true;
            }
            Verb::Reset => {
                session.multi = None;
                self.unwatch(session);
                session.protocol = Protocol::V2;
                session.name.clear();
                (session.wrong_database, session.has_begun) = (None, false);
                session.authenticated = !self.config.auth.is_asked_for();
                Reply::new(&mut session.out, session.protocol).simple("RESET");
            }
            _ => unreachable!("not a server command"),
        }
    }

    /// There is one database. A client that asks for another one as it connects does not mean the origin's rows, and may not
    /// look at this reply (ioredis does not), so it gets no further. Whoever asks later is told, and stays where it was.
    fn select(&mut self, session: &mut Session, index: &[u8]) {
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
            None => self.fail(session, super::strings::NOT_INTEGER),
        }
    }

    /// What asks for the password, which the admin port shares.
    pub fn passwords(&self) -> &Arc<Auth> {
        &self.config.auth
    }

    /// Lets the client in if it knows the password. The only user is `default`.
    ///
    /// # Errors
    /// A message for the client.
    fn log_in(
        &self,
        session: &mut Session,
        user: &[u8],
        password: &[u8],
    ) -> Result<(), ReplyError> {
        match self.config.auth.check(self.now, session.from, user != b"default", password) {
            Verdict::Right => {
                session.authenticate();
                Ok(())
            }
            Verdict::Wrong => Err(ReplyError::fixed(
                Code::WrongPass,
                "invalid username-password pair or user is disabled.",
            )),
            Verdict::Held(span) => Err(ReplyError::err(format!(
                "too many wrong passwords came from this address: this one was not looked at, try again in {} s",
                span.as_nanos().div_ceil(1_000_000_000)
            ))),
        }
    }

    /// AUTH [user] password
    fn auth(&mut self, session: &mut Session, args: &[&[u8]]) {
        let (user, password) = match args {
            [password] => (b"default".as_slice(), *password),
            [user, password] => (*user, *password),
            _ => {
                return self.fail(
                    session,
                    ReplyError::fixed(Code::Err, "wrong number of arguments for 'auth' command"),
                );
            }
        };
        if !self.config.auth.is_asked_for() && args.len() == 1 {
            return self.fail(
                session,
                ReplyError::fixed(
                    Code::Err,
                    "AUTH <password> called without any password configured for this server",
                ),
            );
        }
        match self.log_in(session, user, password) {
            Ok(()) => Reply::new(&mut session.out, session.protocol).ok(),
            Err(message) => self.fail(session, message),
        }
    }

    /// HELLO [version [AUTH user password] [SETNAME name]]
    fn hello(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
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
        let mut rest = args.get(1..).unwrap_or_default();
        while let Some((option, tail)) = rest.split_first() {
            match (option.to_ascii_lowercase().as_slice(), tail) {
                (b"auth", [user, password, tail @ ..]) => {
                    if let Err(message) = self.log_in(session, user, password) {
                        return self.fail(session, message);
                    }
                    rest = tail;
                }
                (b"setname", [name, tail @ ..]) => {
                    if name.len() > NAME_BYTES_MAX {
                        return self.fail(session, LONG_NAME);
                    }
                    session.name = name.to_vec();
                    rest = tail;
                }
                _ => {
                    return self
                        .fail(session, ReplyError::fixed(Code::Err, "syntax error in HELLO"));
                }
            }
        }
        if !session.authenticated {
            return self.fail(
                session,
                ReplyError::fixed(Code::NoAuth, "HELLO must be called with the client already authenticated, otherwise the \
                 HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
                 select the RESP protocol version at the same time"),
            );
        }
        session.protocol = protocol;
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

    fn client_command(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
        let mut reply = Reply::new(&mut session.out, session.protocol);
        match args[1].to_ascii_lowercase().as_slice() {
            b"setname" if args.len() == 3 && args[2].len() > NAME_BYTES_MAX => {
                self.fail(session, LONG_NAME);
            }
            b"setname" if args.len() == 3 => {
                session.name = args[2].to_vec();
                reply.ok();
            }
            b"getname" => match session.name.is_empty() {
                true => reply.null(),
                false => reply.bulk(&session.name),
            },
            b"id" => reply.integer(i64::from(client.0) + 1),
            b"setinfo" | b"no-evict" | b"no-touch" => reply.ok(),
            b"info" | b"list" => reply.text(&format!(
                "id={} name={} resp={}\n",
                client.0 + 1,
                String::from_utf8_lossy(&session.name),
                if session.protocol == Protocol::V3 { 3 } else { 2 }
            )),
            _ => self.fail(
                session,
                ReplyError::fixed(
                    Code::Err,
                    "unknown CLIENT subcommand; supported: SETNAME GETNAME ID SETINFO INFO LIST \
                 NO-EVICT NO-TOUCH",
                ),
            ),
        }
    }

    fn command_table(&mut self, session: &mut Session, args: &[&[u8]]) {
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

    /// CONFIG GET with Redis's names for what there is of them.
    fn config_command(&mut self, session: &mut Session, args: &[&[u8]]) {
        if !args[1].eq_ignore_ascii_case(b"get") || args.len() < 3 {
            return self.fail(
                session,
                ReplyError::fixed(Code::Err, "only CONFIG GET is supported; see destage serve --help for settings, and DESTAGE \
                 POLICY for what changes at run time"),
            );
        }
        let policy = self.core.policy();
        let fsync = if policy.commit == Span::ZERO { "always" } else { "everysec" };
        let known = [
            ("save", String::new()),
            ("appendonly", "yes".into()),
            ("appendfsync", fsync.into()),
            ("databases", "1".into()),
            ("maxmemory", policy.limits.cache_bytes_max.to_string()),
            ("maxmemory-policy", "allkeys-lru".into()),
            ("maxclients", self.config.clients_max.to_string()),
            ("proto-max-bulk-len", self.config.limits.bytes_max.to_string()),
        ];
        let asked: Vec<_> = known
            .iter()
            .filter(|(name, _)| {
                args[2..]
                    .iter()
                    .any(|asked| *asked == b"*" || asked.eq_ignore_ascii_case(name.as_bytes()))
            })
            .collect();
        let mut reply = Reply::new(&mut session.out, session.protocol);
        reply.map(asked.len());
        for (name, value) in asked {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
    }

    /// WAITAOF numlocal numreplicas timeout-ms: waits until the connection's writes are durable in the journal.
    fn wait_aof(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
        let numbers: Vec<u64> = args[1..].iter().filter_map(|arg| number(arg)).collect();
        let [local, replicas, timeout] = numbers[..] else {
            return self.fail(
                session,
                ReplyError::fixed(Code::Err, "value is not an integer or out of range"),
            );
        };
        if replicas > 0 || local > 1 {
            return self.fail(
                session,
                ReplyError::fixed(Code::Err, "there is one journal and no replica: WAITAOF 1 0 ms"),
            );
        }
        if local == 0 {
            let mut reply = Reply::new(&mut session.out, session.protocol);
            let done = session.last_write <= self.core.committed();
            reply.array(2);
            reply.integer(i64::from(done));
            reply.integer(0);
            return;
        }
        self.wait(client, session, WaitKind::Aof, timeout);
    }

    /// DESTAGE DECIDED lsn ms, of the library: waits until the origin has decided a write, applied or parked.
    fn wait_decided(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
        let numbers: Vec<u64> = args.iter().filter_map(|arg| number(arg)).collect();
        let [lsn, timeout] = numbers[..] else {
            return self.fail(
                session,
                ReplyError::fixed(Code::Err, "value is not an integer or out of range"),
            );
        };
        self.wait(client, session, WaitKind::Decided(Lsn(lsn)), timeout);
    }

    /// Waits until the connection's newest write is committed or decided; a timeout of 0 waits as long as it takes.
    fn wait(&mut self, client: ClientId, session: &mut Session, kind: WaitKind, timeout: u64) {
        let request = self.asking.request_id(client.0);
        let deadline = (timeout > 0).then(|| self.now + Span::from_millis(timeout));
        let lsn = match kind {
            WaitKind::Flushed | WaitKind::Drained => self.core.last(),
            WaitKind::Aof | WaitKind::Destaged => session.last_write,
            WaitKind::Decided(lsn) => lsn,
        };
        let until = match kind {
            WaitKind::Aof | WaitKind::Flushed => WaitFor::Committed,
            WaitKind::Destaged => WaitFor::Decided,
            WaitKind::Drained | WaitKind::Decided(_) => WaitFor::AllDecided,
        };
        if let Some(deadline) = deadline {
            self.sessions.set_deadline(client, deadline);
        }
        session.waiting = Some(Waiting::Wait { request, kind, deadline });
        // Told to the core once the session is in its place again, since the answer may come at once.
        self.asking.wait((request, lsn, until));
    }

    /// DESTAGE FLUSH [ms]: everything so far is in the journal. DESTAGE DRAIN [ms]: everything so far is at the origin.
    fn wait_for_all(
        &mut self,
        client: ClientId,
        session: &mut Session,
        kind: WaitKind,
        timeout: Option<&[u8]>,
    ) {
        match timeout.map_or(Some(0), number) {
            Some(timeout) => self.wait(client, session, kind, timeout),
            None => self.fail(
                session,
                ReplyError::fixed(Code::Err, "the timeout is a number of milliseconds; 0 for none"),
            ),
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
                None => self.fail(session, ReplyError::fixed(Code::Err, "DESTAGE WAIT timeout-in-ms (0: as long as it takes)")),
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
                ReplyError::fixed(Code::Err, "unknown DESTAGE subcommand; supported: STATUS, POLICY [part=value ...], PAUSE, RESUME [PARK], \
                 FLUSH [ms], DRAIN [ms], WAIT ms, ONCE token command [argument ...], BEGIN [ms], EXCLUDE key [key ...], ABSENT key [key ...], SHARE name [name ...], NEXTID table \
                 [n], INVALIDATE key [key ...], PARKED LIST | SHOW id | RETRY id|ALL | EDIT id changes | SKIP id"),
            ),
        }
    }

    /// Changes the policy; its new form is returned. Without arguments nothing changes.
    ///
    /// # Errors
    /// An argument does not fit; nothing has changed.
    pub fn change_policy(&mut self, args: &[String]) -> Result<String, String> {
        let changed = destage_runtime::policy::change(self.core.policy(), args)
            .map_err(|error| error.to_string())?;
        if changed != *self.core.policy() {
            tracing::info!(policy = destage_runtime::policy::summary(&changed), "policy changed");
            self.core.handle(self.now, Input::SetPolicy(&changed));
        }
        Ok(destage_runtime::policy::summary(self.core.policy()))
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
        let generates = table
            .generated_key
            .is_some_and(|index| matches!(table.columns[index].ty, ColumnType::Int { .. }));
        if !generates {
            let message = ReplyError::err(format!(
                "{} has no key that the origin generates; choose the key",
                table.name
            ));
            return self.fail(session, message);
        }
        let table = table.id;
        let count = args.get(1).map_or(Some(1), |arg| number(arg));
        let Some(count) =
            count.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0 && n <= NEXT_KEYS_MAX)
        else {
            let message =
                ReplyError::err(format!("DESTAGE NEXTID hands out 1 to {NEXT_KEYS_MAX} keys"));
            return self.fail(session, message);
        };
        let request = self.asking.request_id(client.0);
        self.jobs.push(Io::NextKeys { request: request.0, table, count });
        session.waiting = Some(Waiting::Job { request, job: Job::NextKeys { table, count } });
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

fn write_spec(reply: &mut Reply<'_>, spec: &Spec) {
    let (first, last, step) = match (spec.category, spec.verb) {
        (_, Verb::Del | Verb::Exists | Verb::Watch | Verb::MGet) => (1, -1, 1),
        (_, Verb::MSet | Verb::MSetNx) => (1, -1, 2),
        (Category::Server, _) => (0, 0, 0),
        _ => (1, 1, 1),
    };
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
    reply.integer(first);
    reply.integer(last);
    reply.integer(step);
    (0..4).for_each(|_| reply.array(0));
}

fn number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}
