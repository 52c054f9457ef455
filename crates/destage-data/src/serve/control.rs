//! The admin port's side of the engine.

use super::Event;
use super::Outbox;
use crate::engine::{Asker, Engine, ParkedCommand};
use crate::settings::Settings;
use destage_core::Lsn;
use destage_engine::Drive;
use destage_replicas_redis::Replicas;
use destage_runtime::admin::{Caller, Control, ControlError, ask};
use destage_runtime::advice::{Advised, Question, Recording};
use destage_runtime::metrics::Exports;
use destage_runtime::status::Report;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// How often it is looked whether someone still waits for a decision on what is parked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Asks the engine, which lives on the server's thread.
pub(super) struct EngineControl {
    pub(super) outbox: Outbox,
    /// The log on other servers, and its name.
    pub(super) log: Option<(Arc<Replicas>, String)>,
}

impl EngineControl {
    pub(super) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, ControlError> {
        ask(|answer| {
            let work = Box::new(move |engine: &mut Engine| answer.give(|| question(engine)));
            self.outbox.send(Event::Control(work));
        })
    }

    /// Waits until everything written so far is in the journal.
    fn flush(&self, caller: &Caller) -> Result<Value, ControlError> {
        let start = |engine: &mut Engine| {
            engine.commit_soon(engine.now());
            engine.last()
        };
        let reached = self.wait(start, |engine| engine.committed(), caller, "in the journal")?;
        Ok(json!({ "committed": reached.0 }))
    }

    /// Waits until everything written so far is decided.
    fn drain(&self, caller: &Caller) -> Result<Value, ControlError> {
        let start = |engine: &mut Engine| {
            engine.hurry(engine.now());
            engine.last()
        };
        let reached = self.wait(start, |engine| engine.decided(), caller, "destaged")?;
        Ok(json!({ "decided": reached.0 }))
    }

    /// Uses another server for the log, or one no more.
    fn replicas(&self, args: &[String]) -> Result<Value, ControlError> {
        let Some((log, _)) = &self.log else {
            let message = "this server keeps its writes on its own disk: see --replicas";
            return Err(ControlError::Invalid(message.into()));
        };
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        let changed = match words.as_slice() {
            ["add", url] => log.add_server(url),
            ["remove", address] => log.remove_server(address),
            _ => Err("write: replicas add URL, or replicas remove HOST:PORT".into()),
        };
        changed
            .map(|()| json!("the servers are being changed; see the status"))
            .map_err(ControlError::Invalid)
    }

    /// Shows or decides on what is parked.
    fn parked(&self, args: &[String], caller: &Caller) -> Result<Value, ControlError> {
        let command = ParkedCommand::parse(args).map_err(ControlError::Invalid)?;
        let (answer, answered) = mpsc::sync_channel(1);
        let asker = Asker::new(move |told| {
            // Whoever asked may have stopped waiting.
            let _ = answer.send(told);
        });
        let work = Box::new(move |engine: &mut Engine| engine.ask_parked(command, asker));
        self.outbox.send(Event::Control(work));
        loop {
            match answered.recv_timeout(LOOK_EVERY) {
                Ok(told) => return told.map_err(|error| ControlError::Failed(error.to_string())),
                Err(RecvTimeoutError::Disconnected) => return Err(ControlError::no_answer()),
                Err(RecvTimeoutError::Timeout) => caller.still_waits(|| {
                    "the origin has not answered within the time given; the decision stands, see the log and the list of \
                     parked writes"
                        .into()
                })?,
            }
        }
    }

    /// Waits for as long as it takes, or as the caller waits.
    fn wait(
        &self,
        start: fn(&mut Engine) -> Lsn,
        reached: fn(&mut Engine) -> Lsn,
        caller: &Caller,
        what: &str,
    ) -> Result<Lsn, ControlError> {
        let target = self.ask(start)?;
        caller.until(|| {
            let missing = target.0.saturating_sub(self.ask(reached)?.0);
            Ok(if missing == 0 {
                Ok(target)
            } else {
                Err(format!(
                    "not everything was {what} within the time given, {missing} writes are left; it goes on, see the status"
                ))
            })
        })
    }
}

/// The server's recording, where advice on it is wanted.
pub(super) fn recording(settings: &Settings) -> Option<Recording> {
    let (record, every) = settings.record.as_ref().zip(settings.auto.advice)?;
    Some(Recording { place: String::new(), path: record.path.clone(), every })
}

impl Advised for EngineControl {
    fn question(&self, _: &str) -> Option<Question> {
        self.ask(|engine| engine.question()).ok().flatten()
    }

    fn advise(&self, _: &str, advice: Result<Vec<String>, String>) -> Result<(), String> {
        self.ask(|engine| engine.advise(advice)).map_err(|error| error.to_string())?
    }
}

impl Control for EngineControl {
    fn report(&self) -> Result<Report, ControlError> {
        let mut report = self.ask(Engine::report)?;
        report.replicas = self.log.as_ref().map(|(log, name)| super::replicated::report(log, name));
        Ok(report)
    }

    fn exports(&self) -> Exports {
        super::EXPORTS
    }

    fn command(&self, name: &str, args: &[String], caller: &Caller) -> Result<Value, ControlError> {
        if matches!(name, "pause" | "flush" | "drain") && !args.is_empty() {
            let message = format!("'{name}' takes no arguments, not '{}'", args.join(" "));
            return Err(ControlError::Invalid(message));
        }
        match name {
            "policy" => {
                let args = args.to_vec();
                let changed = self.ask(move |engine| engine.change_policy(&args))?;
                changed.map(|summary| json!({ "policy": summary })).map_err(ControlError::Invalid)
            }
            "pause" => self.ask(|engine| engine.pause(engine.now())).map(|()| json!("paused")),
            "resume" => {
                let args = args.to_vec();
                let resumed = self.ask(move |engine| engine.resume_by(&args))?;
                resumed.map(|()| json!("resumed")).map_err(ControlError::Invalid)
            }
            "flush" => self.flush(caller),
            "drain" => self.drain(caller),
            "invalidate" => {
                let keys: Vec<String> = args.to_vec();
                let dropped = self.ask(move |engine| {
                    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
                    engine.invalidate_named(&keys)
                })?;
                dropped
                    .map(|count| json!({ "invalidated": count }))
                    .map_err(|error| ControlError::Invalid(error.to_string()))
            }
            "parked" => self.parked(args, caller),
            "replicas" => self.replicas(args),
            _ => Err(ControlError::Invalid(format!(
                "there is no command '{name}': use policy, pause, resume, flush, drain, invalidate, parked or replicas"
            ))),
        }
    }
}
