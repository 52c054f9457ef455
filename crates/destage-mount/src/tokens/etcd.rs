//! etcd, by the JSON gateway that each of its servers has: transactions, leases, and a watch.

use super::address::{EtcdAddress, EtcdTls};
use super::ceph::Client;
use super::wire;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use destage_runtime::tls::TlsError;
use destage_tokens::{Event, HostId, Kept, Key, LeaseId, Put, Rev, Snapshot, Txn, TxnReply, Value};
use serde_json::{Value as Json, json};
use std::fmt;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Why etcd did not do what it was asked; perhaps it did.
#[derive(Debug)]
pub(crate) struct EtcdError(String);

impl fmt::Display for EtcdError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

type Result<T> = std::result::Result<T, EtcdError>;

/// A client: see the module. Calls block for at most a few seconds.
pub(crate) struct Etcd {
    address: EtcdAddress,
    prefix: String,
    /// What others are told of this host whenever it comes.
    client: Option<Client>,
    /// Which server is asked: another one once it has failed, or cannot do what it is asked.
    turn: AtomicUsize,
    agent: ureq::Agent,
    streams: ureq::Agent,
    ticket: Mutex<Option<String>>,
}

/// A key, what it holds, and since when.
pub(crate) type Found = (Key, Value, Rev);

/// What a volume's keys hold at a revision.
pub(crate) struct Loaded {
    pub(crate) all: Snapshot,
    /// What changes from there.
    pub(crate) watch: Watch,
}

/// The changes of a volume's keys, as they come. A connection that is silent may be dead without a word: so each is given up
/// after a while, and the next one goes on where it ended.
pub(crate) struct Watch {
    etcd: Arc<Etcd>,
    /// Of the next change.
    from: u64,
    stream: Option<Stream>,
}

type Stream = BufReader<Box<dyn std::io::Read + Send>>;

impl Etcd {
    /// A client for the keys of a volume. `limit` bounds a call, and how long a watch hears nothing before it asks anew.
    ///
    /// # Errors
    /// The files for TLS cannot be used.
    pub(crate) fn new(
        address: EtcdAddress,
        volume: &str,
        limit: Duration,
    ) -> std::result::Result<Self, TlsError> {
        let tls = address.tls.as_ref().map(EtcdTls::config).transpose()?.unwrap_or_default();
        let agent = |limit: Option<Duration>, of_body: Option<Duration>| {
            ureq::Agent::config_builder()
                .tls_config(tls.clone())
                .timeout_global(limit)
                .timeout_recv_body(of_body)
                .timeout_connect(Some(CONNECT_TIMEOUT))
                .timeout_recv_response(Some(RESPONSE_TIMEOUT))
                .http_status_as_error(false)
                .proxy(None)
                .build()
                .into()
        };
        Ok(Self {
            address,
            prefix: wire::prefix(volume),
            client: None,
            turn: AtomicUsize::new(0),
            agent: agent(Some(limit), None),
            streams: agent(None, Some(limit)),
            ticket: Mutex::default(),
        })
    }

    /// Whose origin is mounted by this client.
    pub(crate) fn with_client(self, client: Option<Client>) -> Self {
        Self { client, ..self }
    }

    fn ticket(&self) -> Option<String> {
        self.ticket.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn send(&self, agent: &ureq::Agent, path: &str, body: &Json) -> Result<ureq::Body> {
        // A ticket of earlier may have run out.
        for is_last in [false, true] {
            if self.address.user.is_some() && self.ticket().is_none() {
                self.sign_in()?;
            }
            let (status, reply) = self.post(agent, path, body)?;
            if status == 200 {
                return Ok(reply);
            }
            let text = said(reply);
            let is_old = status == 401 || TICKET_IS_OLD.iter().any(|said| text.contains(said));
            if !is_old || is_last || self.address.user.is_none() {
                return Err(EtcdError(format!("etcd refuses {path}: {text}")));
            }
            *self.ticket.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        Err(EtcdError(format!("etcd refuses {path}")))
    }

    fn post(&self, agent: &ureq::Agent, path: &str, body: &Json) -> Result<(u16, ureq::Body)> {
        let servers = &self.address.servers;
        let turn = self.turn.load(Ordering::Relaxed);
        let server = &servers[turn % servers.len()];
        let scheme = if self.address.tls.is_some() { "https" } else { "http" };
        let mut request = agent.post(format!("{scheme}://{server}/v3/{path}"));
        if let Some(ticket) = self.ticket() {
            request = request.header("Authorization", ticket);
        }
        let asked = request.send_json(body);
        // What it refuses by these any other server refuses, too.
        let is_its_word =
            |status: ureq::http::StatusCode| matches!(status.as_u16(), 200 | 400 | 401 | 403);
        if !asked.as_ref().is_ok_and(|response| is_its_word(response.status())) {
            self.pass_on(turn);
        }
        match asked {
            Ok(response) => Ok((response.status().as_u16(), response.into_body())),
            Err(error) => Err(EtcdError(format!("etcd at {server} does not answer: {error}"))),
        }
    }

    /// Whoever comes next asks the next server.
    fn pass_on(&self, turn: usize) {
        let next = turn.wrapping_add(1);
        let _ = self.turn.compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn sign_in(&self) -> Result<()> {
        let Some((name, password)) = &self.address.user else { return Ok(()) };
        let body = json!({ "name": name, "password": password });
        let (status, reply) = self.post(&self.agent, "auth/authenticate", &body)?;
        if status != 200 {
            return Err(EtcdError(format!("etcd does not let user {name} in: {}", said(reply))));
        }
        let reply = parse(reply)?;
        let ticket = reply["token"].as_str().map(str::to_owned);
        *self.ticket.lock().unwrap_or_else(PoisonError::into_inner) = ticket;
        Ok(())
    }

    fn call(&self, path: &str, body: &Json) -> Result<Json> {
        parse(self.send(&self.agent, path, body)?)
    }

    fn key(&self, key: &Key) -> String {
        BASE64_STANDARD.encode(format!("{}{}", self.prefix, wire::key(key)))
    }

    /// A lease of so many seconds.
    pub(crate) fn lease(&self, seconds: u64) -> Result<LeaseId> {
        let reply = self.call("lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        number(&reply["ID"]).map(LeaseId).ok_or_else(|| odd("lease/grant", &reply))
    }

    /// Renews a lease.
    pub(crate) fn renew(&self, lease: LeaseId) -> Result<Kept> {
        let turn = self.turn.load(Ordering::Relaxed);
        let reply = self.call("lease/keepalive", &json!({ "ID": lease.0.to_string() }))?;
        // Of a server that reaches no leader: that says nothing of the lease.
        if reply.get("error").is_some() {
            self.pass_on(turn);
            return Err(EtcdError(format!("etcd refuses lease/keepalive: {}", reason(&reply))));
        }
        let lasts = number(&reply["result"]["TTL"]).unwrap_or(0);
        Ok(if lasts > 0 { Kept::Renewed } else { Kept::Gone })
    }

    /// Ends a lease, and with it what goes with it.
    pub(crate) fn end(&self, lease: LeaseId) -> Result<()> {
        self.call("lease/revoke", &json!({ "ID": lease.0.to_string() })).map(drop)
    }

    /// Carries a transaction out. If that fails, nobody knows whether it was.
    pub(crate) fn txn(&self, txn: &Txn) -> Result<TxnReply> {
        let compare = txn.compares.iter().map(|(key, rev)| {
            json!({ "key": self.key(key), "target": "MOD", "result": "EQUAL", "mod_revision": rev.0.to_string() })
        });
        let puts = txn.puts.iter().map(|Put { key, value, lease }| match value {
            Some(value) => json!({ "request_put": {
                "key": self.key(key),
                "value": BASE64_STANDARD.encode(self.value(value)),
                "lease": lease.map_or(0, |lease| lease.0).to_string(),
            }}),
            None => json!({ "request_delete_range": { "key": self.key(key) } }),
        });
        let looks = txn
            .compares
            .iter()
            .map(|(key, _)| json!({ "request_range": { "key": self.key(key) } }));
        let body = json!({
            "compare": compare.collect::<Json>(),
            "success": puts.collect::<Json>(),
            "failure": looks.collect::<Json>(),
        });
        let reply = self.call("kv/txn", &body)?;
        let odd = || odd("kv/txn", &reply);
        let revision = number(&reply["header"]["revision"]).map(Rev).ok_or_else(odd)?;
        let is_done = reply["succeeded"].as_bool().unwrap_or(false);
        if is_done {
            return Ok(TxnReply { revision, is_done, found: Vec::new() });
        }
        let responses = reply["responses"].as_array().ok_or_else(odd)?;
        if responses.len() != txn.compares.len() {
            return Err(odd());
        }
        let mut found = Vec::new();
        for ((key, _), response) in txn.compares.iter().zip(responses) {
            let kvs = response["response_range"]["kvs"].as_array();
            let there = match kvs.and_then(|kvs| kvs.first()) {
                Some(kv) => {
                    let (_, value, rev) = self.read(kv).ok_or_else(odd)?;
                    Some((value, rev))
                }
                None => None,
            };
            found.push((key.clone(), there));
        }
        Ok(TxnReply { revision, is_done, found })
    }

    fn value(&self, value: &Value) -> String {
        match value {
            Value::Life => wire::life(self.client.as_ref()),
            _ => wire::value(value),
        }
    }

    /// The client of a host's origin, as it said when it came the last time.
    pub(crate) fn client_of(&self, host: HostId) -> Result<Option<Client>> {
        let reply = self.call("kv/range", &json!({ "key": self.key(&Key::Life(host)) }))?;
        let text =
            reply["kvs"][0]["value"].as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
        Ok(text.and_then(|text| wire::read_life(&text)))
    }

    fn read(&self, kv: &Json) -> Option<Found> {
        let key = read_key(&self.prefix, kv)?;
        let text = BASE64_STANDARD.decode(kv["value"].as_str().unwrap_or("")).ok()?;
        let value = wire::read_value(&key, &text)?;
        Some((key, value, Rev(number(&kv["mod_revision"])?)))
    }

    /// Everything of the volume, and what changes from there on.
    pub(crate) fn load(self: &Arc<Self>) -> Result<Loaded> {
        let end = BASE64_STANDARD.encode(end_of(&self.prefix));
        let mut from = BASE64_STANDARD.encode(&self.prefix);
        let mut all = Vec::new();
        let mut revision = None;
        loop {
            let body = json!({
                "key": from,
                "range_end": end,
                "limit": PAGE.to_string(),
                "revision": revision.unwrap_or(0).to_string(),
            });
            let reply = self.call("kv/range", &body)?;
            if revision.is_none() {
                revision = number(&reply["header"]["revision"]);
            }
            let kvs = reply["kvs"].as_array().cloned().unwrap_or_default();
            for kv in &kvs {
                let read = self.read(kv).ok_or_else(|| odd("kv/range", kv))?;
                all.push(read);
            }
            let is_more = reply["more"].as_bool().unwrap_or(false);
            let last = kvs.last().and_then(|kv| BASE64_STANDARD.decode(kv["key"].as_str()?).ok());
            match last.filter(|_| is_more) {
                Some(mut last) => {
                    last.push(0);
                    from = BASE64_STANDARD.encode(last);
                }
                None => break,
            }
        }
        let revision = revision.ok_or_else(|| EtcdError("etcd names no revision".into()))?;
        let mut watch = Watch { etcd: self.clone(), from: revision + 1, stream: None };
        watch.open()?;
        let all = Snapshot { keys: all, revision: Rev(revision) };
        Ok(Loaded { all, watch })
    }

    /// Lets etcd forget what its keys held before a revision: it keeps all of it else.
    ///
    /// # Errors
    /// Its own, where somebody else has done so already, too.
    pub(crate) fn compact(&self, revision: Rev) -> Result<()> {
        self.call("kv/compaction", &json!({ "revision": revision.0.to_string() })).map(drop)
    }

    /// The newest revision.
    pub(crate) fn revision(&self) -> Result<Rev> {
        let body = json!({ "key": BASE64_STANDARD.encode(&self.prefix), "count_only": true });
        let reply = self.call("kv/range", &body)?;
        number(&reply["header"]["revision"]).map(Rev).ok_or_else(|| odd("kv/range", &reply))
    }
}

impl Watch {
    fn open(&mut self) -> Result<()> {
        let body = json!({ "create_request": {
            "key": BASE64_STANDARD.encode(&self.etcd.prefix),
            "range_end": BASE64_STANDARD.encode(end_of(&self.etcd.prefix)),
            "start_revision": self.from.to_string(),
        }});
        let reply = self.etcd.send(&self.etcd.streams, "watch", &body)?;
        self.stream = Some(BufReader::new(Box::new(reply.into_reader())));
        Ok(())
    }

    /// The next changes, in order; none after a while. `None` once nothing more can be heard, or something that cannot be
    /// read, or etcd has forgotten what came next.
    pub(crate) fn next(&mut self) -> Option<Vec<Event>> {
        let Some(stream) = &mut self.stream else {
            self.open().inspect_err(|error| tracing::warn!(%error, "no news of tokens")).ok()?;
            return Some(Vec::new());
        };
        let mut line = String::new();
        if !matches!(stream.read_line(&mut line), Ok(1..)) || !line.ends_with('\n') {
            self.stream = None;
            return Some(Vec::new());
        }
        let reply: Json = serde_json::from_str(&line).ok()?;
        let result = reply.get("result")?;
        if result["canceled"].as_bool() == Some(true) {
            return None;
        }
        let events = result["events"].as_array().cloned().unwrap_or_default();
        let events = events.iter().map(|event| self.event(event)).collect::<Option<Vec<_>>>()?;
        if let Some(last) = events.last() {
            self.from = last.revision.0 + 1;
        }
        Some(events)
    }

    fn event(&self, event: &Json) -> Option<Event> {
        let kv = &event["kv"];
        let key = read_key(&self.etcd.prefix, kv)?;
        let revision = Rev(number(&kv["mod_revision"])?);
        if event["type"].as_str() == Some("DELETE") {
            return Some(Event { key, value: None, revision });
        }
        let text = BASE64_STANDARD.decode(kv["value"].as_str().unwrap_or("")).ok()?;
        let value = Some(wire::read_value(&key, &text)?);
        Some(Event { key, value, revision })
    }
}

fn read_key(prefix: &str, kv: &Json) -> Option<Key> {
    let key = String::from_utf8(BASE64_STANDARD.decode(kv["key"].as_str()?).ok()?).ok()?;
    wire::read_key(key.strip_prefix(prefix)?)
}

/// The first key behind all with this prefix.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// Numbers of 64 bits are texts.
fn number(json: &Json) -> Option<u64> {
    json.as_str().and_then(|text| text.parse().ok()).or_else(|| json.as_u64())
}

fn parse(mut body: ureq::Body) -> Result<Json> {
    let config = body.with_config().limit(REPLY_BYTES_MAX);
    let text =
        config.read_to_vec().map_err(|error| EtcdError(format!("etcd broke off: {error}")))?;
    serde_json::from_slice(&text).map_err(|error| EtcdError(format!("etcd says no JSON: {error}")))
}

fn said(body: ureq::Body) -> String {
    parse(body).map_or_else(|error| error.0, |json| reason(&json).to_owned())
}

fn reason(json: &Json) -> &str {
    // What is a stream has its error in an object.
    let (error, message) = (&json["error"], &json["message"]);
    let said = error.as_str().or_else(|| error["message"].as_str()).or_else(|| message.as_str());
    said.unwrap_or("no reason given")
}

fn odd(path: &str, reply: &Json) -> EtcdError {
    EtcdError(format!("etcd answers {path} with something else: {reply}"))
}

/// What etcd says to those who are to sign in once more: a ticket has run out, users or roles have changed since, or the
/// server knows of none.
const TICKET_IS_OLD: [&str; 3] =
    ["invalid auth token", "revision of auth store is old", "user name is empty"];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(4);
/// Keys that are read at a time.
const PAGE: u64 = 5_000;
const REPLY_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
#[path = "etcd_tests.rs"]
mod tests;
