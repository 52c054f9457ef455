//! Orderly shutdown: the first SIGTERM, SIGINT or SIGHUP asks for a drain, a second SIGTERM or SIGINT for a stop at once.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::io;
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

/// Calls `callback` on its own thread: with [`Request::Drain`] at the first signal, with [`Request::Now`] at each later one. A
/// terminal that closes may send SIGHUP more than once, so that asks for a drain only; where the program was started to ignore
/// it, as by nohup, it still does.
///
/// # Errors
/// The signal handlers or the thread could not be set up.
pub fn watch(callback: impl FnMut(Request) + Send + 'static) -> io::Result<Watcher> {
    let hangup = (!ignores_hangup()).then_some(SIGHUP);
    watch_for([SIGTERM, SIGINT].into_iter().chain(hangup), callback)
}

fn watch_for(
    signals: impl IntoIterator<Item = i32>,
    mut callback: impl FnMut(Request) + Send + 'static,
) -> io::Result<Watcher> {
    let mut signals = Signals::new(signals)?;
    let handle = signals.handle();
    let thread = thread::Builder::new().name("signals".into()).spawn(move || {
        let mut is_draining = false;
        for signal in signals.forever() {
            let asks_again = is_draining && signal != SIGHUP;
            callback(if asks_again { Request::Now } else { Request::Drain });
            is_draining = true;
        }
    })?;
    Ok(Watcher { handle, thread: Some(thread) })
}

/// Whether the program was started with SIGHUP ignored. What the system does not tell counts as no.
fn ignores_hangup() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_ignored(&status, SIGHUP))
}

/// Whether this text of the system, of a process, says that it ignores the signal.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
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
        let watcher = watch_for([SIGTERM, SIGINT, SIGHUP], tell).unwrap();
        let next = |signal| {
            signal_hook::low_level::raise(signal).unwrap();
            receiver.recv_timeout(Duration::from_secs(60)).unwrap()
        };
        assert_eq!(next(SIGHUP), Request::Drain);
        assert_eq!(next(SIGHUP), Request::Drain);
        assert_eq!(next(SIGTERM), Request::Now);
        assert_eq!(next(SIGINT), Request::Now);
        drop(watcher);
    }

    #[test]
    fn a_signal_is_ignored_where_the_systems_mask_says_so() {
        let status =
            |mask: &str| format!("SigBlk:\t0000000000000001\nSigIgn:\t{mask}\nSigCgt:\t1\n");
        assert!(is_ignored(&status("0000000000001001"), SIGHUP));
        assert!(!is_ignored(&status("0000000000001000"), SIGHUP));
        assert!(!is_ignored("nothing", SIGHUP));
    }
}
