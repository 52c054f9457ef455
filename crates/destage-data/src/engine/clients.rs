//! CLIENT and CONFIG: who is connected, and what tools ask the settings for, under Redis's names.

use super::Engine;
use super::glob::glob;
use super::handshake::check_name;
use super::session::Session;
use super::sessions::address;
use super::tracking::{Mode, Tracker};
use crate::resp::{Code, Protocol, Reply, ReplyError};
use crate::users::DEFAULT;
use destage_core::{ClientId, Span, Time};

/// The longest name or version of a client library that is kept.
const LIBRARY_BYTES_MAX: usize = 64;

impl Engine {
    pub(super) fn client_command(
        &mut self,
        client: ClientId,
        session: &mut Session,
        args: &[&[u8]],
    ) {
        let mut reply = Reply::new(&mut session.out, session.protocol);
        match args[1].to_ascii_lowercase().as_slice() {
            b"setname" if args.len() == 3 => match check_name(args[2]) {
                Ok(()) => {
                    session.name = args[2].to_vec();
                    reply.ok();
                }
                Err(error) => self.fail(session, error),
            },
            b"getname" => {
                if session.name.is_empty() {
                    reply.null()
                } else {
                    reply.bulk(&session.name)
                }
            }
            b"id" => reply.integer(number_of(client)),
            b"setinfo" => self.set_info(session, args),
            b"no-evict" | b"no-touch" => reply.ok(),
            b"tracking" => self.tracking_command(client, session, &args[2..]),
            b"caching" => self.caching_command(session, &args[2..]),
            b"trackinginfo" if args.len() == 2 => self.tracking_info(session),
            b"getredir" if args.len() == 2 => {
                let redirection = self.redirection(session);
                Reply::new(&mut session.out, session.protocol).integer(redirection);
            }
            b"info" => {
                let line = self.client_line(client, session);
                Reply::new(&mut session.out, session.protocol).text(&line);
            }
            b"list" => self.list_clients(client, session, &args[2..]),
            _ => self.fail(
                session,
                ReplyError::fixed(
                    Code::Err,
                    "unknown CLIENT subcommand; supported: SETNAME GETNAME ID SETINFO INFO LIST [ID id ...] \
                     NO-EVICT NO-TOUCH TRACKING CACHING TRACKINGINFO GETREDIR",
                ),
            ),
        }
    }

    /// CLIENT SETINFO LIB-NAME|LIB-VER text. What is too long is not kept: libraries send it unasked.
    fn set_info(&mut self, session: &mut Session, args: &[&[u8]]) {
        if let [_, _, what, text] = args
            && text.len() <= LIBRARY_BYTES_MAX
            && text.iter().all(u8::is_ascii_graphic)
        {
            let is_version = what.eq_ignore_ascii_case(b"lib-ver");
            session.seen.library[usize::from(is_version)] = (*text).into();
        }
        Reply::new(&mut session.out, session.protocol).ok();
    }

    /// CLIENT LIST [TYPE normal] [ID id ...]
    fn list_clients(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
        let is_meant: Box<dyn Fn(ClientId) -> bool> = match args {
            [] => Box::new(|_| true),
            [what, kind] if what.eq_ignore_ascii_case(b"type") => {
                let is_normal = kind.eq_ignore_ascii_case(b"normal");
                Box::new(move |_| is_normal)
            }
            [what, ids @ ..] if what.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
                let ids: Vec<Option<i64>> = ids
                    .iter()
                    .map(|id| std::str::from_utf8(id).ok().and_then(|id| id.parse().ok()))
                    .collect();
                Box::new(move |client| ids.contains(&Some(number_of(client))))
            }
            _ => {
                let usage = "CLIENT LIST [TYPE normal] [ID id ...]";
                return self.fail(session, ReplyError::fixed(Code::Err, usage));
            }
        };
        // Who asks is taken out of its place.
        let own = std::iter::once((client, &*session));
        let mut all: Vec<(ClientId, &Session)> = self.sessions.numbered().chain(own).collect();
        all.retain(|(client, _)| is_meant(*client));
        all.sort_unstable_by_key(|(client, _)| client.0);
        let text: String = all.into_iter().map(|(id, one)| self.client_line(id, one)).collect();
        self.sessions.worked(text.len());
        Reply::new(&mut session.out, session.protocol).text(&text);
    }

    /// CONFIG GET with Redis's names for what there is of them, and CONFIG SET of what is only about looking.
    pub(super) fn config_command(&mut self, session: &mut Session, args: &[&[u8]]) {
        if args[1].eq_ignore_ascii_case(b"set") {
            return match self.set_config(&args[2..]) {
                Ok(()) => Reply::new(&mut session.out, session.protocol).ok(),
                Err(error) => self.fail(session, error),
            };
        }
        if args[1].eq_ignore_ascii_case(b"resetstat") {
            let what = "counters go on for as long as the server runs; SLOWLOG RESET and LATENCY RESET empty what they show";
            return self.fail(session, ReplyError::fixed(Code::Err, what));
        }
        if !args[1].eq_ignore_ascii_case(b"get") || args.len() < 3 {
            return self.fail(session, ONLY_GET);
        }
        let policy = self.core.policy();
        let fsync = if policy.commit == Span::ZERO { "always" } else { "everysec" };
        let limit = policy.limits.cache_bytes_max.to_string();
        let (slow, slow_kept) = (self.measured.slow().threshold, self.measured.slow().kept_max());
        let slow = slow.map_or(-1, |span| (span.as_nanos() / 1_000) as i64);
        let spike = self.measured.spikes().threshold.map_or(0, |span| span.as_nanos() / 1_000_000);
        let known = [
            ("save", String::new()),
            ("appendonly", "yes".into()),
            ("appendfsync", fsync.into()),
            ("databases", "1".into()),
            ("maxmemory", limit),
            ("maxmemory-policy", "allkeys-lru".into()),
            ("maxclients", self.config.clients_max.to_string()),
            ("tracking-table-max-keys", self.rows.tracking().entries_max().to_string()),
            ("proto-max-bulk-len", self.config.limits.bytes_max.to_string()),
            (SLOWER_THAN, slow.to_string()),
            (SLOW_KEPT, slow_kept.to_string()),
            (SPIKE, spike.to_string()),
        ];
        let is_asked = |name: &str| {
            let is_it = |asked: &&[u8]| glob(&asked.to_ascii_lowercase(), name.as_bytes());
            args[2..].iter().any(is_it)
        };
        let asked: Vec<_> = known.iter().filter(|(name, _)| is_asked(name)).collect();
        let mut reply = Reply::new(&mut session.out, session.protocol);
        reply.map(asked.len());
        for (name, value) in asked {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
    }

    /// All or nothing.
    fn set_config(&mut self, pairs: &[&[u8]]) -> Result<(), ReplyError> {
        let (pairs, rest) = pairs.as_chunks::<2>();
        if pairs.is_empty() || !rest.is_empty() {
            return Err(ONLY_GET);
        }
        let mut changes = Vec::new();
        for [name, value] in pairs {
            let name = name.to_ascii_lowercase();
            let number =
                std::str::from_utf8(value).ok().and_then(|value| value.parse::<i64>().ok());
            changes.push(match (&name[..], number) {
                (b"slowlog-log-slower-than", Some(us)) => Looking::SlowerThan(us),
                (b"slowlog-max-len", Some(count @ 0..=SLOW_KEPT_MAX)) => {
                    Looking::SlowKept(count as usize)
                }
                (b"latency-monitor-threshold", Some(ms @ 0..)) => Looking::Spike(ms as u64),
                _ => return Err(ONLY_GET),
            });
        }
        for change in changes {
            match change {
                Looking::SlowerThan(us) => {
                    self.measured.slow().threshold = u64::try_from(us).ok().map(Span::from_micros);
                }
                Looking::SlowKept(count) => self.measured.slow().keep(count),
                Looking::Spike(ms) => {
                    self.measured.spikes().threshold = (ms > 0).then(|| Span::from_millis(ms));
                }
            }
        }
        Ok(())
    }
}

/// What CONFIG SET changes.
enum Looking {
    /// Microseconds; negative for no request.
    SlowerThan(i64),
    SlowKept(usize),
    /// Milliseconds; 0 for none.
    Spike(u64),
}

const SLOWER_THAN: &str = "slowlog-log-slower-than";
const SLOW_KEPT: &str = "slowlog-max-len";
/// The longest log of slow requests: each entry has 4 KiB at most.
const SLOW_KEPT_MAX: i64 = 4 << 10;
const SPIKE: &str = "latency-monitor-threshold";
const ONLY_GET: ReplyError = ReplyError::fixed(
    Code::Err,
    "only CONFIG GET is supported, and CONFIG SET of slowlog-log-slower-than (microseconds), slowlog-max-len (up to 4096) and \
     latency-monitor-threshold (milliseconds); see destage serve --help for settings, and DESTAGE POLICY for what changes at \
     run time",
);

/// Its number as clients see it: they take 0 for none.
pub(super) fn number_of(client: ClientId) -> i64 {
    i64::from(client.0) + 1
}

impl Engine {
    /// A line of CLIENT LIST.
    fn client_line(&self, client: ClientId, session: &Session) -> String {
        let tracker = session.tracker.and_then(|id| self.rows.tracking().tracker(id));
        line(self.now, client, session, tracker)
    }
}

/// A line of CLIENT LIST, with Redis's names.
fn line(now: Time, client: ClientId, session: &Session, tracker: Option<&Tracker>) -> String {
    let seconds = |since: Time| now.since(since).as_nanos() / 1_000_000_000;
    let seen = &session.seen;
    let name: String = String::from_utf8_lossy(&session.name).into_owned();
    let queued = session.multi.as_ref().map_or(-1, |multi| multi.requests.len() as i64);
    let mut flags = String::new();
    let states = [
        ('x', session.multi.is_some()),
        ('O', session.monitors),
        ('b', session.waiting.is_some()),
        ('c', session.closing),
        ('P', session.is_subscribed),
        ('t', tracker.is_some()),
        ('R', tracker.is_some_and(|tracker| tracker.is_broken)),
        ('B', tracker.is_some_and(|tracker| tracker.mode == Mode::Broadcast)),
    ];
    flags.extend(states.iter().filter(|(_, is_so)| *is_so).map(|(flag, _)| *flag));
    if flags.is_empty() {
        flags.push('N');
    }
    let [library, version] = seen.library.each_ref().map(|text| String::from_utf8_lossy(text));
    format!(
        "id={} addr={} name={name} age={} idle={} flags={flags} db=0 sub={} psub=0 ssub=0 multi={queued} qbuf={} qbuf-free=0 \
         obl={} oll=0 omem={} tot-mem={} events=r cmd={} user={} redir={} resp={} lib-name={library} lib-ver={version}\n",
        number_of(client),
        address(session.from),
        seconds(seen.since),
        seconds(seen.at),
        u8::from(session.is_subscribed),
        session.inbox.len(),
        session.out.len(),
        session.gated.len() + session.ready.len(),
        size_of::<Session>() + session.inbox.len() + session.output_bytes(),
        if seen.command.is_empty() { "NULL" } else { seen.command },
        session.login.as_ref().map_or(DEFAULT, |login| login.user.name()),
        tracker.map_or(-1, |tracker| tracker.redirect.map_or(0, number_of)),
        if session.protocol == Protocol::V3 { 3 } else { 2 },
    )
}
