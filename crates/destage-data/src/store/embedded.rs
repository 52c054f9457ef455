//! The cache manager within this process: an engine on a thread of its own, its journal on the local disk.

use super::checker::Checker;
use super::wire::{Answer, push_request, read_answer};
use super::{CacheManager, CacheSession, Change, Dml, Error, ErrorKind, Key, Lease, Row};
use super::{Value, value::Field};
use crate::cells::{Cell, Reader};
use crate::domains::Partition;
use crate::engine::{Observer, key_cells};
use crate::resp::{Code, ReplyError};
use crate::schema::{Schema, Table};
use crate::serve::{EmbeddedServer, Local, Refusal};
use crate::settings::Settings;
use destage_core::Lsn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Conversations kept for the next session: so many, and no more than this part of the places of all clients.
const IDLE_MAX: usize = 64;
const IDLE_PART: usize = 4;
/// How long an entry waits for what it depends on to be destaged.
const DECIDE_MAX: Duration = Duration::from_secs(30);

/// The cache manager within this process.
pub struct Embedded {
    server: EmbeddedServer,
    idle: Mutex<Vec<Conversation>>,
    idle_max: usize,
    names: Vec<Names>,
    checker: Checker,
    /// Up to here, what writes left may be told.
    seen: AtomicU64,
    /// What is written is on other servers, too.
    is_replicated: bool,
}

/// A table's names, shared by all rows.
struct Names {
    table: Arc<str>,
    columns: Vec<Arc<str>>,
}

impl Embedded {
    pub(super) fn start(settings: Settings, listens: bool) -> Result<Self, Error> {
        let is_replicated = settings.replicas.is_some();
        let idle_max = IDLE_MAX.min(settings.clients_max / IDLE_PART);
        let server = EmbeddedServer::start(settings, listens)?;
        let names = |table: &Table| Names {
            table: table.name.as_str().into(),
            columns: table.columns.iter().map(|column| column.name.as_str().into()).collect(),
        };
        let names = server.schema().tables.iter().map(names).collect();
        let checker = Checker::new(server.origin().clone());
        let (idle, seen) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { server, idle, idle_max, names, checker, seen, is_replicated })
    }

    pub(super) fn server(&self) -> &EmbeddedServer {
        &self.server
    }

    fn conversation(&self) -> Result<Conversation, Error> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(conversation) = idle {
            return Ok(conversation);
        }
        let local = self.server.connect().map_err(|refusal| match refusal {
            Refusal::Full => {
                Error::new(ErrorKind::Busy, "too many sessions at once; see Options::sessions_max")
            }
            Refusal::Ended => self.ended(),
        })?;
        Ok(Conversation { local, buffer: Vec::new(), unread: 0, is_over: false, end: None })
    }

    /// Keeps a conversation for the next session, unless it is over.
    fn keep(&self, conversation: Conversation) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.idle_max && !conversation.is_over {
            idle.push(conversation);
        }
    }

    /// Tells an observer of every change from now on.
    pub(super) fn observe(&self, observer: Arc<dyn Observer>) -> Result<(), Error> {
        Ok(self.server.run(move |engine| engine.observe(observer))?)
    }

    /// The ordering domains.
    pub(super) fn partition(&self) -> Result<Arc<Partition>, Error> {
        Ok(self.server.run(|engine| engine.partition().clone())?)
    }

    /// Where each ordering domain is known to stand at the origin.
    pub(super) fn watermarks(&self) -> Result<Vec<Lsn>, Error> {
        Ok(self.server.run(|engine| engine.watermarks().to_vec())?)
    }

    /// Waits until the origin has decided everything up to here, which is hurried.
    pub(super) fn decide(&self, upto: Lsn) -> Result<(), Error> {
        let (lsn, limit) = (upto.0.to_string(), DECIDE_MAX.as_millis().to_string());
        let mut requests = Vec::new();
        push_request(&mut requests, &[b"DESTAGE", b"DECIDED", lsn.as_bytes(), limit.as_bytes()]);
        let answer = self.ask(requests, 1)?.pop().ok_or_else(|| Error::closed(None))?;
        match answer.accepted()? {
            Answer::Int(1) => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Timeout,
                format!(
                    "the origin has not taken write {lsn} within {DECIDE_MAX:?}, which the entry depends on; see the status"
                ),
            )),
        }
    }

    /// Waits until what shows this write may be told, as every reply does.
    pub(super) fn see(&self, lsn: Lsn) -> Result<(), Error> {
        // Who has a log on other servers asks each time: another process may own it by now.
        if !self.is_replicated && self.seen.load(Ordering::Relaxed) >= lsn.0 {
            return match self.server.ended() {
                Some(Err(error)) => Err(Error::closed(Some(error))),
                _ => Ok(()),
            };
        }
        let mut conversation = self.conversation()?;
        conversation.local.see(lsn);
        let mut requests = Vec::new();
        push_request(&mut requests, &[b"PING"]);
        let answer = self.ask_by(&mut conversation, requests, 1)?.pop();
        self.keep(conversation);
        answer.ok_or_else(|| Error::closed(None))?.accepted()?;
        self.seen.fetch_max(lsn.0, Ordering::Relaxed);
        Ok(())
    }

    /// Has requests answered that belong to no session.
    pub(super) fn ask(&self, requests: Vec<u8>, count: usize) -> Result<Vec<Answer>, Error> {
        let mut conversation = self.conversation()?;
        let answers = self.ask_by(&mut conversation, requests, count)?;
        self.keep(conversation);
        Ok(answers)
    }

    fn ask_by(
        &self,
        conversation: &mut Conversation,
        requests: Vec<u8>,
        count: usize,
    ) -> Result<Vec<Answer>, Error> {
        let answers = conversation.ask(requests, count)?;
        if answers.len() == count {
            return Ok(answers);
        }
        // What is not understood ends the conversation: the last answer says why.
        match answers.last() {
            Some(Answer::Error(error)) => Err(error.clone().into()),
            _ => Err(self.over(conversation)),
        }
    }

    /// Nothing is answered any more in this conversation: with the reason, also for those who did not look at it.
    fn over(&self, conversation: &Conversation) -> Error {
        match &conversation.end {
            Some(error) if self.server.ended().is_none() => error.clone().into(),
            _ => self.ended(),
        }
    }

    /// Nothing is answered any more: with the reason for which the engine has ended.
    fn ended(&self) -> Error {
        Error::closed(self.server.ended().and_then(|end| end.as_ref().err()))
    }

    /// A row from the answer to HGETALL, which leaves NULLs out.
    fn row(&self, key: &Key, answer: Answer) -> Result<Option<Row>, Error> {
        let Answer::Array(Some(fields)) = answer.accepted()? else { return Ok(None) };
        if fields.is_empty() {
            return Ok(None);
        }
        let (table, _) = key_cells(self.server.schema(), key.0.as_bytes())?;
        let names = &self.names[usize::from(table.id.0)];
        let mut row = Vec::with_capacity(names.columns.len());
        let mut fields = fields.into_iter().filter_map(|answer| match answer {
            Answer::Bulk(bytes) => bytes,
            _ => None,
        });
        let mut next = fields.next().zip(fields.next());
        for name in &names.columns {
            let is_it = |(field, _): &mut (Vec<u8>, Vec<u8>)| field == name.as_bytes();
            let value = match next.take_if(is_it) {
                Some((_, value)) => {
                    next = fields.next().zip(fields.next());
                    value.into()
                }
                None => Value::NULL,
            };
            row.push((name.clone(), Field::Is(value)));
        }
        Ok(Some(Row { table: names.table.clone(), fields: row }))
    }
}

impl CacheManager for Embedded {
    fn schema(&self) -> &Arc<Schema> {
        self.server.schema()
    }

    fn begin(&self, lifetime: Duration) -> Result<Box<dyn CacheSession + '_>, Error> {
        let conversation = Some(self.conversation()?);
        Ok(Box::new(EmbeddedSession { manager: self, conversation, lifetime, begun: false }))
    }

    fn look(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, Error> {
        let mut requests = Vec::new();
        keys.iter().for_each(|key| push_request(&mut requests, &[b"HGETALL", key.0.as_bytes()]));
        let answers = self.ask(requests, keys.len())?;
        keys.iter().zip(answers).map(|(key, answer)| self.row(key, answer)).collect()
    }
}

/// A session: it begins with its first request.
struct EmbeddedSession<'m> {
    manager: &'m Embedded,
    /// None once the session has ended.
    conversation: Option<Conversation>,
    lifetime: Duration,
    begun: bool,
}

impl EmbeddedSession<'_> {
    fn ask(&mut self, requests: Vec<u8>, count: usize) -> Result<Vec<Answer>, Error> {
        let Some(conversation) = &mut self.conversation else {
            return Err(Error::new(ErrorKind::Conflict, "the session has ended"));
        };
        self.manager.ask_by(conversation, requests, count)
    }

    /// Appends what begins the session, unless it has begun; the number of its answers is returned.
    fn push_begin(&mut self, requests: &mut Vec<u8>) -> usize {
        if std::mem::replace(&mut self.begun, true) {
            return 0;
        }
        let lifetime = self.lifetime.as_millis().to_string();
        push_request(requests, &[b"DESTAGE", b"BEGIN", lifetime.as_bytes()]);
        1
    }
}

impl CacheSession for EmbeddedSession<'_> {
    fn read(&mut self, lease: Lease, keys: &[Key]) -> Result<Vec<Option<Row>>, Error> {
        let mut requests = Vec::new();
        let mut before = self.push_begin(&mut requests);
        if lease == Lease::X && !keys.is_empty() {
            let mut words: Vec<&[u8]> = vec![b"DESTAGE", b"EXCLUDE"];
            words.extend(keys.iter().map(|key| key.0.as_bytes()));
            push_request(&mut requests, &words);
            before += 1;
        }
        keys.iter().for_each(|key| push_request(&mut requests, &[b"HGETALL", key.0.as_bytes()]));
        let mut answers = self.ask(requests, before + keys.len())?.into_iter();
        for answer in answers.by_ref().take(before) {
            answer.accepted()?;
        }
        keys.iter().zip(answers).map(|(key, answer)| self.manager.row(key, answer)).collect()
    }

    fn share(&mut self, name: &str) -> Result<(), Error> {
        let mut requests = Vec::new();
        let count = self.push_begin(&mut requests) + 1;
        push_request(&mut requests, &[b"DESTAGE", b"SHARE", name.as_bytes()]);
        let answers = self.ask(requests, count)?;
        answers.into_iter().try_for_each(|answer| answer.accepted().map(drop))
    }

    fn check(&mut self, dml: &Dml) -> Result<Option<Vec<String>>, Error> {
        self.manager.checker.check(self.manager.schema(), dml)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), Error> {
        if self.manager.server.ended().is_some() {
            return Err(self.manager.ended());
        }
        if let Some(conversation) = self.conversation.as_ref().filter(|it| it.is_over) {
            return Err(self.manager.over(conversation));
        }
        let mut requests = Vec::new();
        let mut count = 0;
        let unknown = |change: &&Change| matches!(change, Change::Insert { is_known: false, .. });
        let unknown: Vec<&Change> = changes.iter().filter(unknown).collect();
        if !unknown.is_empty() {
            count += self.push_begin(&mut requests);
            let mut words: Vec<&[u8]> = vec![b"DESTAGE", b"ABSENT"];
            let keys = unknown.iter().filter_map(|change| change.key());
            words.extend(keys.map(|key| key.0.as_bytes()));
            push_request(&mut requests, &words);
            count += 1;
        }
        if !changes.is_empty() {
            push_request(&mut requests, &[b"MULTI"]);
            count += 1;
            for change in changes {
                count += push_change(&mut requests, self.manager.schema(), change);
            }
        } else if !self.begun {
            return Ok(());
        }
        push_request(&mut requests, &[b"EXEC"]);
        let mut answers = self.ask(requests, count + 1).map_err(|error| match changes {
            [] => error,
            _ => error.of_changes(),
        })?;
        self.begun = false;
        let end = answers.pop();
        let refused = answers.into_iter().find_map(|answer| answer.accepted().err());
        match (end, refused) {
            (Some(Answer::Array(Some(_))), _) => Ok(()),
            // What was refused first says more than that therefore nothing was done.
            (Some(Answer::Error(error)), Some(refused)) if error.code() == Code::ExecAbort => {
                Err(refused)
            }
            (Some(Answer::Error(error)), _)
                if error.code() == Code::Pending && !changes.is_empty() =>
            {
                Err(Error::new(ErrorKind::Pending, error.text()))
            }
            (Some(Answer::Error(error)), _) => Err(error.into()),
            _ => Err(Error::new(
                ErrorKind::Conflict,
                "a row that the session has read or changes was changed or leased by another one",
            )),
        }
    }

    fn abort(&mut self) {
        if std::mem::take(&mut self.begun)
            && let Some(conversation) = &mut self.conversation
        {
            let mut requests = Vec::new();
            push_request(&mut requests, &[b"DISCARD"]);
            conversation.post(requests, 1);
        }
    }
}

impl Drop for EmbeddedSession<'_> {
    fn drop(&mut self) {
        self.abort();
        if let Some(conversation) = self.conversation.take() {
            self.manager.keep(conversation);
        }
    }
}

/// Appends a change as commands; their number is returned.
fn push_change(requests: &mut Vec<u8>, schema: &Schema, change: &Change) -> usize {
    let key = change.key().map_or(&b""[..], |key| key.0.as_bytes());
    match change {
        Change::Set { fields, .. } | Change::Insert { fields, .. } => {
            push_fields(requests, schema, key, fields)
        }
        Change::Unset { columns, .. } => {
            let mut words: Vec<&[u8]> = vec![b"HDEL", key];
            words.extend(columns.iter().map(|column| column.as_bytes()));
            push_with_fields(requests, &words)
        }
        Change::Inc { field, by, .. } => {
            let is_whole = by.parse::<i64>().is_ok();
            let name: &[u8] = if is_whole { b"HINCRBY" } else { b"HINCRBYFLOAT" };
            push_request(requests, &[name, key, field.as_bytes(), by.as_bytes()]);
            1
        }
        Change::Delete { .. } => {
            push_request(requests, &[b"DEL", key]);
            1
        }
        Change::Execute(dml) => {
            push_request(requests, &[b"DESTAGE", b"EXECUTE", dml.bytes()]);
            1
        }
    }
}

/// A key's first column with its value.
fn key_column(schema: &Schema, key: &[u8]) -> Option<(String, Vec<u8>)> {
    let (table, cells) = key_cells(schema, key).ok()?;
    let value = Reader::new(&cells).cell().and_then(Cell::value)?;
    Some((table.columns[0].name.clone(), value.to_vec()))
}

/// Values are set, which makes a row that does not exist, and NULLs cleared.
fn push_fields(
    requests: &mut Vec<u8>,
    schema: &Schema,
    key: &[u8],
    fields: &[(String, Value)],
) -> usize {
    let mut set: Vec<&[u8]> = vec![b"HSET", key];
    let mut clear: Vec<&[u8]> = vec![b"HDEL", key];
    for (at, (name, value)) in fields.iter().enumerate() {
        if fields[at + 1..].iter().any(|(later, _)| later == name) {
            continue;
        }
        match value.as_bytes() {
            Some(value) => set.extend([name.as_bytes(), value]),
            None => clear.push(name.as_bytes()),
        }
    }
    // A row of nothing but its key: one of the key's columns is named, with the value that it has anyway.
    let own = if set.len() == 2 { key_column(schema, key) } else { None };
    if let Some((name, value)) = &own {
        set.extend([name.as_bytes(), value]);
    }
    push_with_fields(requests, &set) + push_with_fields(requests, &clear)
}

/// Appends a command that is of no use without fields; whether there are any.
fn push_with_fields(requests: &mut Vec<u8>, words: &[&[u8]]) -> usize {
    let has_fields = words.len() > 2;
    if has_fields {
        push_request(requests, words);
    }
    usize::from(has_fields)
}

/// One connection to the engine.
struct Conversation {
    local: Local,
    buffer: Vec<u8>,
    /// Answers that nobody waits for.
    unread: usize,
    /// The engine has closed it, or it cannot be understood: it is of no use any more.
    is_over: bool,
    /// For which the engine has closed it.
    end: Option<ReplyError>,
}

impl Conversation {
    /// Sends requests whose answers nobody needs.
    fn post(&mut self, requests: Vec<u8>, count: usize) {
        self.local.send(requests);
        self.unread += count;
    }

    /// Sends requests and waits for their answers: all of them, or those before the conversation's end.
    fn ask(&mut self, requests: Vec<u8>, count: usize) -> Result<Vec<Answer>, Error> {
        let mut answers = Vec::with_capacity(count);
        if count == 0 || self.is_over {
            return Ok(answers);
        }
        self.local.send(requests);
        while answers.len() < count {
            match self.answer()? {
                Some(_) if self.unread > 0 => self.unread -= 1,
                Some(answer) => answers.push(answer),
                None => break,
            }
        }
        Ok(answers)
    }

    /// The next answer; `None` if there will be none.
    fn answer(&mut self) -> Result<Option<Answer>, Error> {
        loop {
            let read = read_answer(&self.buffer).inspect_err(|_| self.is_over = true)?;
            if let Some((answer, used)) = read {
                self.buffer.drain(..used);
                if let Answer::Error(error) = &answer
                    && self.is_over
                    && self.buffer.is_empty()
                {
                    self.end = Some(error.clone());
                }
                return Ok(Some(answer));
            }
            if self.is_over {
                return Ok(None);
            }
            match self.local.receive() {
                Some(replies) => {
                    self.buffer.extend_from_slice(&replies.bytes);
                    self.is_over = replies.are_last;
                }
                None => self.is_over = true,
            }
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Err(error) = self.server.stop(false) {
            tracing::info!(%error, "the store has stopped");
        }
    }
}

#[cfg(test)]
mod tests;
