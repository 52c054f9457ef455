//! Orderly shutdown: the first SIGTERM or SIGINT asks for a drain, a second one for a stop at once.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Stop accepting, destage what is dirty, exit.
    Drain,
    /// Exit now; what is dirty stays in the journal.
    Now,
}

/// Listens for signals until dropped.
#[derive(Debug)]
pub struct Watcher {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Calls `callback` on its own thread: with [`Request::Drain`] at the first signal, with [`Request::Now`] at each later one.
/// SIGHUP ends nothing: see [`crate::reload`].
///
/// # Errors
/// The signal handlers or the thread could not be set up.
pub fn watch(mut callback: impl FnMut(Request) + Send + 'static) -> io::Result<Watcher> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let handle = signals.handle();
    let thread = thread::Builder::new().name("signals".into()).spawn(move || {
        let mut is_draining = false;
        for _ in signals.forever().filter(|&signal| signal != SIGHUP) {
            callback(if is_draining { Request::Now } else { Request::Drain });
            is_draining = true;
        }
    })?;
    Ok(Watcher { handle, thread: Some(thread) })
}

/// A flag that the first SIGINT sets, for work that shows what it has by then; the second one ends the process.
///
/// # Errors
/// The signal handlers could not be set up.
pub fn on_interrupt() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    // In this order: the second signal finds the flag set by the first.
    signal_hook::flag::register_conditional_default(SIGINT, Arc::clone(&stop))?;
    signal_hook::flag::register(SIGINT, Arc::clone(&stop))?;
    Ok(stop)
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) =
            self.thread.take().filter(|t| t.thread().id() != thread::current().id())
        {
            // A panic in the callback has been printed by its thread; there is nothing to add here.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn first_signal_drains_and_the_second_stops_at_once() {
        let (sender, receiver) = mpsc::channel();
        let tell = move |request| sender.send(request).unwrap();
        let watcher = watch(tell).unwrap();
        let next = |signal| {
            signal_hook::low_level::raise(signal).unwrap();
            receiver.recv_timeout(Duration::from_secs(60)).unwrap()
        };
        signal_hook::low_level::raise(SIGHUP).unwrap();
        assert_eq!(next(SIGTERM), Request::Drain);
        assert_eq!(next(SIGTERM), Request::Now);
        assert_eq!(next(SIGINT), Request::Now);
        drop(watcher);
    }
}
