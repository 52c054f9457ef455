//! SIGHUP: the settings are read again, and what may change while running does.
//!
//! The command line knows the settings file; the front end knows what can change. Between them this asks for one policy
//! command after the other, as the admin port would.

use crate::ServeError;
use crate::admin::{Caller, Control};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::sync::Arc;
use std::thread;

/// Carries out one `policy` command with these arguments.
///
/// # Errors
/// Why it was refused.
pub type Apply<'a> = &'a dyn Fn(&[String]) -> Result<(), String>;

/// Reads the settings again, applies what has changed, and logs what was and what was not.
pub type Reread = Box<dyn FnMut(Apply<'_>) + Send>;

/// SIGHUP, which ends nothing from the making of this on. What comes before it is [watched](watch) for is heeded then.
#[derive(Debug)]
pub struct Hangups(Signals);

impl Hangups {
    /// To be made before anything else: a start may take long, and a standby for good.
    ///
    /// # Errors
    /// The signal handler could not be set up.
    pub fn begin() -> Result<Self, ServeError> {
        Signals::new([SIGHUP]).map(Self).map_err(|error| ServeError::internal(&error))
    }
}

/// Listens for SIGHUP until dropped.
#[derive(Debug)]
pub struct Watcher(Handle);

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Reads the settings again at each SIGHUP, on a thread of its own. A terminal that closes sends one, too: the server goes on.
///
/// # Errors
/// The thread could not be set up.
pub fn watch(
    Hangups(mut signals): Hangups,
    control: Arc<dyn Control>,
    mut reread: Reread,
) -> io::Result<Watcher> {
    let handle = signals.handle();
    thread::Builder::new().name("reload".into()).spawn(move || {
        let apply = |args: &[String]| {
            let done = control.command("policy", args, &Caller::patient());
            done.map(drop).map_err(|error| error.to_string())
        };
        for _ in signals.forever() {
            reread(&apply);
        }
    })?;
    Ok(Watcher(handle))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::ControlError;
    use crate::status::Report;
    use crossbeam_channel::unbounded;
    use serde_json::{Value, json};
    use std::time::Duration;

    struct Deaf;

    impl Control for Deaf {
        fn report(&self) -> Result<Report, ControlError> {
            Ok(Report::default())
        }

        fn command(&self, _: &str, _: &[String], _: &Caller) -> Result<Value, ControlError> {
            Ok(json!(null))
        }
    }

    #[test]
    fn a_hangup_during_the_start_is_heeded_after_it() {
        let hangups = Hangups::begin().unwrap();
        signal_hook::low_level::raise(SIGHUP).unwrap();
        let (read, reads) = unbounded();
        let reread: Reread = Box::new(move |apply| read.send(apply(&[])).unwrap());
        let watcher = watch(hangups, Arc::new(Deaf), reread).unwrap();
        assert_eq!(reads.recv_timeout(Duration::from_secs(60)), Ok(Ok(())));
        drop(watcher);
    }
}
