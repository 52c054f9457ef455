//! SIGHUP: the settings are read again, and what may change while running does.
//!
//! The command line knows the settings file; the front end knows what can change. Between them this asks for one policy
//! command after the other, as the admin port would.

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
/// The signal handler or the thread could not be set up.
pub fn watch(control: Arc<dyn Control>, mut reread: Reread) -> io::Result<Watcher> {
    let mut signals = Signals::new([SIGHUP])?;
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
