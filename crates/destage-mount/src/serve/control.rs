//! The admin port's side of the mount.

use super::conflicts::Conflicts;
use super::live::Live;
use super::{Event, Outbox, report};
use crate::settings::Settings;
use destage_core::{Lsn, Policy, Time};
use destage_engine::Drive;
use destage_runtime::admin::{Caller, Control, ControlError};
use destage_runtime::metrics::Exports;
use destage_runtime::policy;
use destage_runtime::shell::EndRequest;
use destage_runtime::shutdown::Request;
use destage_runtime::status::Report;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Asks the engine.
pub(super) struct MountControl {
    live: Arc<Live>,
    outbox: Outbox,
    origin: String,
    conflicts: Conflicts,
    started: Time,
    /// What holds for as long as it is mounted.
    warning: Option<&'static str>,
}

/// How often it is looked whether something has come.
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl MountControl {
    pub(super) fn new(
        live: Arc<Live>,
        outbox: Outbox,
        settings: &Settings,
        started: Time,
        warning: Option<&'static str>,
    ) -> Self {
        let origin = settings.origin.display().to_string();
        let conflicts = Conflicts::new(
            &settings.origin,
            &live.with(|front, _| front.journal().uuid().to_owned()),
        );
        Self { live, outbox, origin, conflicts, started, warning }
    }

    /// Waits for a place in the order of changes.
    fn wait(
        &self,
        caller: &Caller,
        upto: Lsn,
        at: impl Fn(&crate::engine::Front) -> Lsn,
    ) -> Result<Value, ControlError> {
        loop {
            let (reached, stopped) = self.live.with(|front, _| (at(front), front.stopped()));
            if reached >= upto {
                return Ok(json!({ "upto": upto.0 }));
            }
            if let Some(reason) = stopped {
                return Err(ControlError::Failed(format!("it has stopped: {reason:?}")));
            }
            caller.still_waits(|| {
                "not everything came so far within the time given; it goes on, see the status"
                    .into()
            })?;
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn conflicts(&self, args: &[String]) -> Result<Value, ControlError> {
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        let result = match words[..] {
            ["list"] => self.conflicts.list(),
            ["show", conflict] => self.conflicts.show(conflict),
            ["drop", conflict] => self.conflicts.forget(conflict),
            _ => {
                let message = "use conflicts list, or show or drop with the name of one";
                return Err(ControlError::Invalid(message.into()));
            }
        };
        result.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                ControlError::Invalid("there is no such conflict: see 'list'".into())
            }
            _ => ControlError::Failed(format!("the origin does not tell: {error}")),
        })
    }

    fn policy(&self, args: &[String]) -> Result<Value, ControlError> {
        self.live
            .with(|front, now| {
                if !args.is_empty() {
                    let changed = changed(front.policy(), args)?;
                    front.set_policy(now, &changed).map_err(str::to_owned)?;
                }
                Ok(json!(policy::summary(front.policy())))
            })
            .map_err(ControlError::Invalid)
    }
}

fn changed(policy: &Policy, args: &[String]) -> Result<Policy, String> {
    policy::change(policy, args).map_err(|error| error.to_string())
}

impl Control for MountControl {
    fn report(&self) -> Result<Report, ControlError> {
        let mut report =
            self.live.with(|front, now| report::report(front, self.started, now, &self.origin));
        report.warnings.extend(self.warning.map(str::to_owned));
        if let Some(shared) = self.live.shared() {
            report.warnings.extend(shared.tokens.troubles());
        }
        Ok(report)
    }

    fn exports(&self) -> Exports {
        super::metrics::EXPORTS
    }

    fn command(&self, name: &str, args: &[String], caller: &Caller) -> Result<Value, ControlError> {
        if !args.is_empty() && !matches!(name, "policy" | "conflicts") {
            return Err(ControlError::Invalid(format!("'{name}' takes no '{}'", args[0])));
        }
        let live = &self.live;
        match name {
            "policy" => self.policy(args),
            "conflicts" => self.conflicts(args),
            // As the other front ends call it.
            "sync" | "flush" => {
                let last = live.with(|front, now| {
                    front.commit_soon(now);
                    front.last()
                });
                self.wait(caller, last, |front| front.committed())
            }
            "drain" => {
                let last = live.with(|front, now| {
                    front.hurry(now);
                    front.last()
                });
                self.wait(caller, last, |front| front.decided())
            }
            "pause" => {
                live.with(|front, now| front.pause(now));
                Ok(json!("paused"))
            }
            "resume" => {
                live.with(|front, now| front.resume(now));
                Ok(json!("resumed"))
            }
            "freeze" => {
                live.with(|front, _| front.freeze());
                Ok(json!("frozen"))
            }
            "thaw" => {
                live.with(|front, _| front.thaw());
                Ok(json!("thawed"))
            }
            "unmount" => {
                self.outbox.send(Event::End(EndRequest::Shutdown(Request::Drain)));
                Ok(json!("unmounting"))
            }
            _ => Err(ControlError::Invalid(format!(
                "there is no command '{name}': use policy, sync, drain, pause, resume, freeze, thaw, conflicts or unmount"
            ))),
        }
    }
}
