//! A standby, as long as another process owns the log: it follows, says who the owner is, and is not ready.

mod looks;

use self::looks::Looks;
use super::client::SPEAKS_TLS;
use super::{Door, ServeError};
use crate::engine::{WRONG, held};
use crate::lookup::{self, OwnerPlace};
use crate::resp::{Args, Parse, Protocol, Reply, RequestLimits, parse};
use crate::settings::{ReplicaSettings, Settings};
use crate::users::DEFAULT;
use destage_core::Span;
use destage_replicas_redis::Replicas;
use destage_runtime::admin::{self, AdminHandle, Caller, Control, ControlError};
use destage_runtime::auth::{Auth, Verdict};
use destage_runtime::clock::Clock;
use destage_runtime::metrics::Exports;
use destage_runtime::notify;
use destage_runtime::policy;
use destage_runtime::status::Report;
use destage_runtime::tls::{ServerConfig, TlsStream, is_for_now};
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often the listener is looked at, and how long a silent client holds up the end of its thread.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a client may take to read an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Most clients at once: they only ask where the owner is.
const CLIENTS_MAX: usize = 256;
const LIMITS: RequestLimits = RequestLimits { bytes_max: 64 << 10, args_max: 64 };

/// What answers while this process is a standby. Ends when it is dropped.
pub(super) struct Standby {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    _admin: Option<AdminHandle>,
}

struct Shared {
    log: Arc<Replicas>,
    name: String,
    auth: Arc<Auth>,
    users: Option<Looks>,
    clock: Clock,
    tls: Option<Arc<ServerConfig>>,
    handshake_timeout: Span,
    is_over: AtomicBool,
    clients: AtomicUsize,
}

impl Standby {
    /// Begins to answer at the places that are taken.
    ///
    /// # Errors
    /// They are not to be had after all.
    pub(super) fn begin(
        settings: &Settings,
        replicas: &ReplicaSettings,
        door: &Door,
        log: Arc<Replicas>,
    ) -> Result<Self, ServeError> {
        let internal = |error: io::Error| ServeError::internal(&error);
        let shared = Arc::new(Shared {
            log,
            name: replicas.name.clone(),
            auth: Arc::new(Auth::new(settings.password.clone())),
            users: settings.users.clone().map(Looks::new),
            clock: Clock::new(),
            tls: door.tls.clone(),
            handshake_timeout: settings.handshake_timeout,
            is_over: AtomicBool::new(false),
            clients: AtomicUsize::new(0),
        });
        let control = Arc::new(StandbyControl(shared.clone()));
        let (auth, clock) = (shared.auth.clone(), shared.clock.clone());
        let admin = door.reserved.admin_twin().map_err(internal)?;
        let admin = admin
            .map(|socket| admin::serve(socket, control, auth, clock, settings.admin_hosts.clone()))
            .transpose()
            .map_err(internal)?;
        let listener = door.reserved.listener_twin().map_err(internal)?;
        let serving = shared.clone();
        let thread = listener
            .map(|listener| {
                let serve = move || serving.accept(&listener);
                thread::Builder::new().name("standby".into()).spawn(serve)
            })
            .transpose()
            .map_err(internal)?;
        tracing::info!(log = replicas.name, "standby: following the log");
        let ready = format!("destage standby: log={} listen={}", replicas.name, settings.listen);
        println!("{ready}");
        // It may follow for good, and is what it was started as.
        notify::ready(&ready);
        Ok(Self { shared, thread, _admin: admin })
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the standby's listener has panicked");
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while !self.is_over.load(Ordering::Acquire) {
            match listener.accept() {
                Ok((stream, from)) if self.clients.load(Ordering::Acquire) < CLIENTS_MAX => {
                    let shared = self.clone();
                    self.clients.fetch_add(1, Ordering::AcqRel);
                    let serve = move || {
                        // A client that hangs up has what it wanted.
                        let _ = shared.serve(stream, from.ip());
                        shared.clients.fetch_sub(1, Ordering::AcqRel);
                    };
                    if thread::Builder::new().name("standby-client".into()).spawn(serve).is_err() {
                        self.clients.fetch_sub(1, Ordering::AcqRel);
                    }
                }
                Ok(_) => {}
                Err(_) => thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn serve(&self, stream: TcpStream, from: IpAddr) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK_EVERY))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        let mut stream = TlsStream::new(stream, self.tls.as_ref())?;
        let let_in_by = self.clock.now() + self.handshake_timeout;
        let mut client = Client {
            protocol: Protocol::V2,
            is_in: !self.auth.is_asked_for() && self.users.is_none(),
            is_leaving: false,
        };
        let (mut buffer, mut chunk, mut args) = (Vec::new(), [0; 4 << 10], Args::default());
        let mut out = Vec::new();
        while !self.is_over.load(Ordering::Acquire) && !client.is_leaving {
            let is_at_door = stream.is_handshaking() || !client.is_in;
            if is_at_door && self.clock.now() >= let_in_by {
                return Ok(());
            }
            match stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => buffer.extend_from_slice(&chunk[..count]),
                Err(error) if is_late(&error) => continue,
                Err(error) => {
                    if stream.spoke_in_the_clear() {
                        stream.answer_in_the_clear(SPEAKS_TLS);
                    }
                    return Err(error);
                }
            }
            loop {
                match parse(&buffer, &LIMITS, &mut args) {
                    Ok(Parse::Request(len)) => {
                        let mut words = Vec::new();
                        args.to_slices(&buffer, &mut words);
                        self.answer(&mut client, from, &words, &mut out);
                        buffer.drain(..len);
                    }
                    Ok(Parse::Incomplete) => break,
                    Err(_) => return Ok(()),
                }
            }
            stream.write_all(&out)?;
            stream.flush()?;
            out.clear();
        }
        stream.say_end();
        Ok(())
    }

    fn owner(&self) -> Option<OwnerPlace> {
        let (_, place, _) = self.log.owner_seen()?;
        OwnerPlace::parse(&self.name, &place)
    }

    fn answer(&self, client: &mut Client, from: IpAddr, words: &[&[u8]], out: &mut Vec<u8>) {
        let Some(first) = words.first() else { return };
        let name = first.to_ascii_lowercase();
        let mut reply = Reply::new(out, client.protocol);
        match name.as_slice() {
            b"auth" => self.auth(client, from, &words[1..], &mut reply),
            b"hello" => self.hello(client, from, &words[1..], out),
            b"quit" => {
                client.is_leaving = true;
                reply.ok();
            }
            _ if !client.is_in => reply.raw(b"-NOAUTH Authentication required.\r\n"),
            b"ping" => reply.simple("PONG"),
            b"client" | b"select" => reply.ok(),
            b"command" => reply.array(0),
            b"sentinel" => lookup::sentinel(words, self.owner().as_ref(), &mut reply),
            b"role" => match self.owner() {
                Some(owner) => owner.role_of_standby(self.log.followed().1.0, &mut reply),
                None => self.refuse(&mut reply),
            },
            b"info" => {
                let replication = self.owner().map(|owner| owner.replication());
                let replication = replication.unwrap_or_else(|| "role:slave\r\n".into());
                reply.text(&format!(
                    "# Server\r\nredis_version:7.2.0\r\nredis_mode:standalone\r\nloading:0\r\n\r\n# Replication\r\n{replication}"
                ));
            }
            _ => self.refuse(&mut reply),
        }
    }

    /// Clients that know of replicas look for the owner anew when they read this word.
    fn refuse(&self, reply: &mut Reply<'_>) {
        let owner = match self.owner() {
            Some(owner) => format!("its owner is at {}", owner.address()),
            None => "nobody owns it now".to_owned(),
        };
        let text = format!("-READONLY this is a standby of the log '{}': {owner}\r\n", self.name);
        reply.raw(text.as_bytes());
    }

    fn auth(&self, client: &mut Client, from: IpAddr, words: &[&[u8]], reply: &mut Reply<'_>) {
        let (user, password): (&[u8], &[u8]) = match words {
            [password] => (b"default", password),
            [user, password] => (user, password),
            _ => return reply.raw(b"-ERR wrong number of arguments for 'auth' command\r\n"),
        };
        let (now, is_other) = (self.clock.now(), user != DEFAULT.as_bytes());
        let verdict = match &self.users {
            Some(users) if is_other || !self.auth.is_asked_for() => {
                users.look(&self.auth, now, from, (user, password))
            }
            _ => match self.auth.check(now, Some(from), is_other, password) {
                Verdict::Right => Ok(()),
                Verdict::Wrong => Err(WRONG),
                Verdict::Held(span) => Err(held(span)),
            },
        };
        match verdict {
            Ok(()) => {
                client.is_in = true;
                reply.ok();
            }
            Err(error) => reply.error(&error),
        }
    }

    fn hello(&self, client: &mut Client, from: IpAddr, words: &[&[u8]], out: &mut Vec<u8>) {
        let protocol = match words.first() {
            Some(&b"3") => Protocol::V3,
            _ => Protocol::V2,
        };
        if let [_, word, user, password, ..] = words
            && word.eq_ignore_ascii_case(b"auth")
        {
            let mut told = Vec::new();
            self.auth(client, from, &[*user, *password], &mut Reply::new(&mut told, protocol));
            if !client.is_in {
                return out.extend_from_slice(&told);
            }
        }
        let mut reply = Reply::new(out, protocol);
        if !client.is_in {
            return reply
                .raw(b"-NOAUTH HELLO must be called with the client already authenticated\r\n");
        }
        client.protocol = protocol;
        reply.map(4);
        for (name, value) in [("server", "destage"), ("version", "7.2.0"), ("role", "replica")] {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"proto");
        reply.integer(if protocol == Protocol::V3 { 3 } else { 2 });
    }
}

struct Client {
    protocol: Protocol,
    is_in: bool,
    is_leaving: bool,
}

fn is_late(error: &io::Error) -> bool {
    is_for_now(error) || error.kind() == io::ErrorKind::TimedOut
}

struct StandbyControl(Arc<Shared>);

impl Control for StandbyControl {
    fn report(&self) -> Result<Report, ControlError> {
        let mut report =
            Report { front_end: "serve".into(), mode: policy::STANDBY.into(), ..Report::default() };
        report.version = env!("CARGO_PKG_VERSION").into();
        report.replicas = Some(super::replicated::report(&self.0.log, &self.0.name));
        Ok(report)
    }

    fn exports(&self) -> Exports {
        super::EXPORTS
    }

    fn command(
        &self,
        name: &str,
        _: &[String],
        _: &Caller,
    ) -> Result<serde_json::Value, ControlError> {
        let owner = self.0.owner().map(|owner| owner.address()).unwrap_or_default();
        Err(ControlError::Unavailable(format!(
            "this is a standby: ask the owner at {owner} for '{name}'"
        )))
    }
}
