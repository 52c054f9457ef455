//! SLOWLOG, LATENCY and MONITOR: what took long, and what is asked for.

use super::Engine;
use super::command::find;
use super::numbers::NOT_INTEGER;
use super::session::{Job, Session, Waiting};
use super::sessions::{MONITORS_MAX, address};
use super::slow::{Begun, COMMAND, Spikes};
use super::waits::number;
use crate::resp::{Args, Code, Reply, ReplyError};
use destage_core::ClientId;

/// So many entries SLOWLOG GET gives without a number.
const SHOWN: usize = 10;

impl Engine {
    /// A request has been looked at: if it waits now, for how long is measured. What names its own bound waits as it was told.
    pub(super) fn begins_to_wait(&self, session: &mut Session, raw: &[u8], args: &Args) {
        // What is sent to log in is kept nowhere.
        let logs_in =
            |waiting: &Waiting| matches!(waiting, Waiting::Job { job: Job::LogIn(_), .. });
        let waits = |waiting: &Waiting| !waiting.names_its_bound() && !logs_in(waiting);
        if session.begun.is_none() && session.waiting.as_ref().is_some_and(waits) {
            let mut words = Vec::new();
            args.to_slices(raw, &mut words);
            let what = find(&words).map_or(("", 0), |spec| (spec.name, spec.keys_named(&words)));
            session.begun = Some(Box::new(Begun::new(self.now, &words, what)));
        }
    }

    /// The request that waited, if there was one, is answered.
    pub(super) fn ended_waiting(&mut self, session: &mut Session) {
        if let Some(begun) = session.begun.take() {
            let took = self.measured.slow().ended(self.now, *begun, session);
            self.measured.spikes().record(self.now, COMMAND, took);
        }
    }

    /// SLOWLOG GET [count] | LEN | RESET
    pub(super) fn slow_log_command(&mut self, session: &mut Session, args: &[&[u8]]) {
        let mut reply = Reply::new(&mut session.out, session.protocol);
        match (args[1].to_ascii_lowercase().as_slice(), &args[2..]) {
            (b"len", []) => reply.integer(self.measured.slow().len() as i64),
            (b"reset", []) => {
                self.measured.slow().clear();
                reply.ok();
            }
            (b"get", count @ ([] | [_])) => {
                let count = match count {
                    [] => Some(SHOWN),
                    [b"-1"] => Some(usize::MAX),
                    [count, ..] => number(count).and_then(|count| usize::try_from(count).ok()),
                };
                let Some(count) = count else { return self.fail(session, NOT_INTEGER) };
                let entries: Vec<_> = self.measured.slow().iter().take(count).collect();
                reply.array(entries.len());
                for entry in entries {
                    reply.array(6);
                    reply.integer(entry.id as i64);
                    reply.integer((entry.at.0 / 1_000_000_000) as i64);
                    reply.integer((entry.took.as_nanos() / 1_000) as i64);
                    reply.array(entry.words.len());
                    entry.words.iter().for_each(|word| reply.bulk(word));
                    reply.bulk(address(entry.from).as_bytes());
                    reply.bulk(&entry.name);
                }
            }
            _ => self.fail(
                session,
                ReplyError::fixed(
                    Code::Err,
                    "unknown SLOWLOG subcommand; supported: GET [count], LEN, RESET; CONFIG SET slowlog-log-slower-than \
                     microseconds says what is slow",
                ),
            ),
        }
    }

    /// LATENCY LATEST | HISTORY event | RESET [event ...] | DOCTOR
    pub(super) fn latency_command(&mut self, session: &mut Session, args: &[&[u8]]) {
        let mut reply = Reply::new(&mut session.out, session.protocol);
        let spikes = self.measured.spikes();
        match (args[1].to_ascii_lowercase().as_slice(), &args[2..]) {
            (b"latest", []) => {
                reply.array(spikes.iter().len());
                for (event, Spikes { samples, ms_max }) in spikes.iter() {
                    let last = samples.back().expect("an event has a sample");
                    reply.array(4);
                    reply.bulk(event.as_bytes());
                    [last.second, last.ms, *ms_max].iter().for_each(|&n| reply.integer(n as i64));
                }
            }
            (b"history", [event]) => {
                let samples = spikes.get(event).map(|spikes| &spikes.samples);
                reply.array(samples.map_or(0, |samples| samples.len()));
                for sample in samples.into_iter().flatten() {
                    reply.array(2);
                    reply.integer(sample.second as i64);
                    reply.integer(sample.ms as i64);
                }
            }
            (b"reset", events) => {
                let count = spikes.reset(events);
                reply.integer(count as i64);
            }
            (b"doctor", []) => {
                let lines = spikes.iter().map(|(event, Spikes { samples, ms_max })| {
                    let seconds = samples.len();
                    let what = if event == COMMAND {
                        "requests waited for the origin, for leases of others or for room; SLOWLOG GET shows which"
                    } else {
                        "the journal's disk took long to sync"
                    };
                    format!("{event}: {seconds} seconds with spikes, the longest {ms_max} ms: {what}\n")
                });
                let text: String = lines.collect();
                reply.text(if text.is_empty() { "no spikes were seen\n" } else { &text });
            }
            _ => self.fail(
                session,
                ReplyError::fixed(
                    Code::Err,
                    "unknown LATENCY subcommand; supported: LATEST, HISTORY event, RESET [event ...], DOCTOR; the events are \
                     command and journal-sync; distributions are in the admin port's /metrics",
                ),
            ),
        }
    }

    /// MONITOR: the connection is shown what all others ask for.
    pub(super) fn monitor(&mut self, client: ClientId, session: &mut Session) {
        if !self.sessions.monitor(client) {
            let message = format!("{MONITORS_MAX} connections are in MONITOR, and no more may be");
            return self.fail(session, ReplyError::err(message));
        }
        session.monitors = true;
        Reply::new(&mut session.out, session.protocol).ok();
    }
}
