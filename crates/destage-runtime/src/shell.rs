//! The shell around the engines of a live server. One thread owns the engines and all sockets; whatever blocks runs on threads
//! of its own and reports back through an [`Outbox`]. The shell waits for both, listens, has the admin port and the signals
//! watched, runs a command beside the server, and keeps the server's end: one that is asked for destages what is dirty until
//! that is done, the time is over, or it is asked for once more.

use crate::admin::{self, AdminHandle, Control};
use crate::advice::{Advised, Adviser, Recording};
use crate::auth::Auth;
use crate::child::Child;
use crate::clock::Clock;
use crate::exit;
use crate::notify::{self, Pulse};
use crate::progress::Progress;
use crate::serve_error::ServeError;
use crate::shutdown::{self, Request};
use crate::sockets::{BindError, Listener, Reserved, Stream};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use destage_core::{Span, Time};
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The listening socket, in a poll's events. Connections have smaller tokens.
pub const LISTENER: Token = Token(usize::MAX);
/// Another thread has told something: nothing is to be done for it but to look.
pub const WAKER: Token = Token(usize::MAX - 1);
/// Longest sleep, so that a changed clock or a lost wake-up is noticed.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How long to wait before accepting again after that has failed.
const ACCEPT_AGAIN: Span = Span::from_millis(100);

/// Where other threads tell the server something: it is woken.
#[derive(Debug)]
pub struct Outbox<E> {
    events: Sender<E>,
    waker: Arc<Waker>,
}

impl<E> Clone for Outbox<E> {
    fn clone(&self) -> Self {
        Self { events: self.events.clone(), waker: self.waker.clone() }
    }
}

impl<E> Outbox<E> {
    /// Delivers an event. A server that has ended does not care any more.
    pub fn send(&self, event: E) {
        if self.events.send(event).is_ok()
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "cannot wake the server");
        }
    }
}

/// Why a server is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndRequest {
    /// Somebody asks for it, as by a signal.
    Shutdown(Request),
    /// The command that was run beside it has ended with this code.
    ChildEnded(u8),
}

/// The shell: see the module. `E` is what other threads tell the server.
#[derive(Debug)]
pub struct Shell<E> {
    poll: Poll,
    events: Receiver<E>,
    outbox: Outbox<E>,
    clock: Clock,
    /// For systemd.
    pulse: Pulse,
    listener: Option<Listener>,
    /// When to accept again after that has failed.
    accept_at: Option<Time>,
    admin: Option<AdminHandle>,
    signals: Option<shutdown::Watcher>,
    ending: Option<Ending>,
    /// The command that runs beside it. The signals' thread ends it as well.
    child: Arc<OnceLock<Child>>,
    adviser: Option<Adviser>,
}

/// An end that was asked for.
#[derive(Debug)]
struct Ending {
    until: Option<Time>,
    /// What was dirty at its beginning.
    first: u64,
    bar: Progress,
}

impl<E> Shell<E> {
    /// Nothing but the thread's own poll.
    ///
    /// # Errors
    /// The system has none to give.
    pub fn new(clock: Clock) -> Result<Self, ServeError> {
        let (poll, waker) = poll().map_err(|error| ServeError::internal(&error))?;
        let (sender, events) = crossbeam_channel::unbounded();
        let outbox = Outbox { events: sender, waker: Arc::new(waker) };
        Ok(Self {
            poll,
            events,
            outbox,
            clock,
            pulse: Pulse::of_unit(),
            listener: None,
            accept_at: None,
            admin: None,
            signals: None,
            ending: None,
            child: Arc::default(),
            adviser: None,
        })
    }

    /// For other threads.
    pub fn outbox(&self) -> &Outbox<E> {
        &self.outbox
    }

    /// Where sockets are watched.
    pub fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// What waits for events, for a server that waits in its own way.
    pub fn poll(&mut self) -> &mut Poll {
        &mut self.poll
    }

    /// Waits for events.
    ///
    /// # Errors
    /// As the system reports them; [`Shell::waited`] takes it.
    pub fn wait(&mut self, events: &mut Events, timeout: Duration) -> io::Result<()> {
        self.poll.poll(events, Some(timeout))
    }

    /// What came of waiting: to be interrupted is none the worse.
    ///
    /// # Errors
    /// The system cannot wait.
    pub fn waited(result: io::Result<()>) -> Result<(), ServeError> {
        match result {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                Err(ServeError::new(exit::BUG, format!("cannot wait for events: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// How long to wait if the engines have something to do at `at`. Asked at each turn of the server's thread, which thereby shows
    /// that it is alive.
    pub fn timeout(&self, at: Option<Time>) -> Duration {
        let until = self.ending.as_ref().and_then(|ending| ending.until);
        let now = self.clock.now();
        let at = [at, until, self.accept_at, self.pulse.beat(now)].into_iter().flatten().min();
        let wait = at.map_or(SLEEP_MAX, |at| Duration::from_nanos(at.since(now).as_nanos()));
        wait.min(SLEEP_MAX)
    }

    /// What another thread has told, if there is anything.
    pub fn next_event(&self) -> Option<E> {
        self.events.try_recv().ok()
    }

    /// The same, waited for.
    ///
    /// # Errors
    /// Nothing came in this time.
    pub fn await_event(&self, limit: Duration) -> Result<E, RecvTimeoutError> {
        self.events.recv_timeout(limit)
    }

    /// Lets clients connect where they are to.
    ///
    /// # Errors
    /// Another process has begun to listen there, or the system cannot watch it.
    pub fn listen(&mut self, reserved: &mut Reserved) -> Result<(), ServeError> {
        let Some(mut listener) = reserved.listen()? else { return Ok(()) };
        let watched = self.registry().register(listener.source(), LISTENER, Interest::READABLE);
        watched.map_err(|error| ServeError::new(exit::BUG, format!("cannot listen: {error}")))?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Where clients connect, if they can.
    pub fn listener(&self) -> Option<&Listener> {
        self.listener.as_ref()
    }

    /// The same for the ready line; empty where they cannot.
    pub fn address(&self) -> String {
        self.listener.as_ref().map_or_else(String::new, Listener::address)
    }

    /// The next connection; `None` if there is none for now.
    pub fn accept(&mut self) -> Option<(Stream, Option<SocketAddr>)> {
        loop {
            match self.listener.as_ref()?.accept() {
                Ok(accepted) => return Some(accepted),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                // The peer went away: others wait behind it.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors or memory: nothing tells when there are some again.
                    tracing::warn!(%error, "cannot accept a connection; trying again");
                    self.accept_at = Some(self.clock.now() + ACCEPT_AGAIN);
                    return None;
                }
            }
        }
    }

    /// Whether it is time to accept again after that has failed.
    pub fn is_accept_due(&mut self) -> bool {
        self.accept_at.take_if(|at| *at <= self.clock.now()).is_some()
    }

    /// Serves the admin port, if there is to be one.
    ///
    /// # Errors
    /// It cannot be served there.
    pub fn serve_admin(
        &mut self,
        reserved: &mut Reserved,
        control: Arc<dyn Control>,
        auth: Arc<Auth>,
        hosts: &[String],
    ) -> Result<(), ServeError> {
        let Some(listener) = reserved.take_admin() else { return Ok(()) };
        let admin = admin::serve(listener, control, auth, self.clock.clone(), hosts.to_vec());
        let admin = admin.map_err(|error| {
            let message =
                format!("cannot serve the admin port: {error}; choose another with --admin");
            ServeError::new(exit::ADDRESS_IN_USE, message)
        })?;
        self.admin = Some(admin);
        Ok(())
    }

    /// Asks for advice on these recordings, until the server begins to end.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn ask_for_advice(
        &mut self,
        recordings: Vec<Recording>,
        server: Arc<dyn Advised>,
    ) -> io::Result<()> {
        self.adviser = Adviser::start(recordings, server)?;
        Ok(())
    }

    /// Where the admin port is, for the ready line.
    pub fn admin_address(&self) -> String {
        self.admin.as_ref().map_or_else(|| "none".into(), |admin| admin.addr().to_string())
    }
}

impl<E: From<EndRequest> + Send + 'static> Shell<E> {
    /// Has signals ask for the server's end from now on.
    ///
    /// # Errors
    /// The system cannot watch them.
    pub fn watch_signals(&mut self) -> Result<(), ServeError> {
        let (outbox, child) = (self.outbox.clone(), self.child.clone());
        let tell = move |request| {
            // However far the end has come.
            if let (Request::Now, Some(child)) = (request, child.get()) {
                child.kill();
            }
            outbox.send(EndRequest::Shutdown(request).into());
        };
        let signals = shutdown::watch(tell).map_err(|error| ServeError::internal(&error))?;
        self.signals = Some(signals);
        Ok(())
    }

    /// Runs a command, whose end is the server's, and which does not outlive the server. Once.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run_child(&self, command: &str, env: &[(&str, Option<String>)]) -> io::Result<()> {
        let outbox = self.outbox.clone();
        let ended = move |code| outbox.send(EndRequest::ChildEnded(code).into());
        let child = Child::run(command, env, ended)?;
        assert!(self.child.set(child).is_ok(), "a server runs one command");
        Ok(())
    }
}

/// The end.
impl<E> Shell<E> {
    /// Whether the server is to end.
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Nobody can connect any more.
    pub fn stop_listening(&mut self) {
        if let Some(mut listener) = self.listener.take() {
            let _ = self.registry().deregister(listener.source());
        }
    }

    /// The server begins to end, and destages `dirty` groups for at most `limit`.
    pub fn drain(&mut self, dirty: u64, limit: Span) {
        tracing::info!(groups = dirty, "shutting down: destaging what is dirty");
        notify::stopping("shutting down: destaging what is dirty");
        self.adviser = None;
        // What it writes as it ends is destaged as well, where that is taken.
        if let Some(child) = self.child.get() {
            child.ask();
        }
        let until = (limit != Span::MAX).then(|| self.clock.now() + limit);
        self.ending = Some(Ending { until, first: dirty, bar: Progress::new("draining", dirty) });
    }

    /// The server ends at once: what is dirty stays where it is.
    pub fn end_now(&mut self, dirty: u64) {
        let until = Some(self.clock.now());
        self.ending = Some(Ending { until, first: dirty, bar: Progress::new("stopping", dirty) });
    }

    /// What else an end that has begun owes to what asked for it.
    pub fn heed(&mut self, request: EndRequest) {
        match request {
            EndRequest::Shutdown(Request::Drain) | EndRequest::ChildEnded(_) => {}
            EndRequest::Shutdown(Request::Now) => {
                if let Some(ending) = &mut self.ending {
                    ending.until = Some(self.clock.now());
                }
            }
        }
    }

    /// So many groups are dirty now.
    pub fn show_progress(&mut self, dirty: impl FnOnce() -> u64) {
        if let Some(ending) = &mut self.ending {
            ending.bar.set(ending.first.saturating_sub(dirty()));
        }
    }

    /// Whether the time for destaging is over.
    pub fn is_out_of_time(&self) -> bool {
        let until = self.ending.as_ref().and_then(|ending| ending.until);
        until.is_some_and(|until| self.clock.now() >= until)
    }

    /// Destaging has ended, one way or the other.
    pub fn finish_progress(&mut self) {
        if let Some(ending) = self.ending.take() {
            ending.bar.finish();
        }
    }

    /// Ends the command that was run, if it has not ended by itself.
    ///
    /// # Errors
    /// With its own code, if it failed or was cut off.
    pub fn child_result(&self) -> Result<(), ServeError> {
        match self.child.get().map(Child::end) {
            None | Some(0) => Ok(()),
            Some(code) => Err(ServeError::new(code, format!("the command ended with {code}"))),
        }
    }
}

impl<E> Drop for Shell<E> {
    fn drop(&mut self) {
        // However the server ends.
        let _ = self.child_result();
    }
}

impl From<BindError> for ServeError {
    fn from(error: BindError) -> Self {
        Self::new(exit::ADDRESS_IN_USE, error.to_string())
    }
}

fn poll() -> io::Result<(Poll, Waker)> {
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), WAKER)?;
    Ok((poll, waker))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell() -> Shell<EndRequest> {
        Shell::new(Clock::new()).unwrap()
    }

    #[test]
    fn an_event_wakes_the_server() {
        let mut shell = shell();
        let outbox = shell.outbox().clone();
        let sender = std::thread::spawn(move || outbox.send(EndRequest::ChildEnded(3)));
        let mut events = Events::with_capacity(8);
        shell.wait(&mut events, LIMIT).unwrap();
        assert!(events.iter().all(|event| event.token() == WAKER));
        assert_eq!(shell.await_event(LIMIT), Ok(EndRequest::ChildEnded(3)));
        assert_eq!(shell.next_event(), None);
        sender.join().unwrap();
    }

    #[test]
    fn a_drain_ends_with_its_time_or_at_the_second_signal() {
        let mut shell = shell();
        assert!(!shell.is_ending() && !shell.is_out_of_time());
        shell.drain(7, Span::MAX);
        shell.heed(EndRequest::Shutdown(Request::Drain));
        assert!(shell.is_ending() && !shell.is_out_of_time());
        shell.heed(EndRequest::Shutdown(Request::Now));
        assert!(shell.is_out_of_time());
        shell.finish_progress();
        shell.drain(7, Span::from_nanos(1));
        std::thread::sleep(Duration::from_millis(1));
        assert!(shell.is_out_of_time());
        assert_eq!(shell.timeout(None), Duration::ZERO);
    }

    #[test]
    fn clients_connect_until_the_end_begins() {
        let mut shell = shell();
        let address = crate::sockets::Listen::Tcp("127.0.0.1:0".parse().unwrap());
        let mut reserved = Reserved::new(Some(&address), None).unwrap();
        shell.listen(&mut reserved).unwrap();
        assert_eq!(shell.admin_address(), "none");
        let place = shell.address();
        let _client = std::net::TcpStream::connect(&place).unwrap();
        let mut events = Events::with_capacity(8);
        shell.wait(&mut events, LIMIT).unwrap();
        assert!(events.iter().any(|event| event.token() == LISTENER));
        assert!(shell.accept().is_some() && shell.accept().is_none());
        shell.stop_listening();
        assert!(shell.accept().is_none() && shell.address().is_empty());
        assert!(std::net::TcpStream::connect(&place).is_err());
    }

    #[test]
    fn a_command_ends_the_server_with_its_own_code() {
        let mut shell = shell();
        shell.run_child("exit 7", &[]).unwrap();
        assert_eq!(shell.await_event(LIMIT), Ok(EndRequest::ChildEnded(7)));
        shell.drain(0, Span::MAX);
        assert_eq!(shell.child_result().unwrap_err().exit_code(), 7);
    }

    #[test]
    fn a_command_that_is_cut_off_is_no_success() {
        let mut shell = shell();
        shell.run_child("exec sleep 600 >/dev/null 2>&1", &[]).unwrap();
        shell.drain(0, Span::MAX);
        assert_eq!(shell.await_event(LIMIT), Ok(EndRequest::ChildEnded(143)));
        assert_eq!(shell.child_result().unwrap_err().exit_code(), 143);
    }

    #[test]
    fn a_server_that_fails_leaves_no_command_behind() {
        let shell = shell();
        shell.run_child("exec sleep 600 >/dev/null 2>&1", &[]).unwrap();
        let events = shell.events.clone();
        drop(shell);
        assert_eq!(events.recv_timeout(LIMIT), Ok(EndRequest::ChildEnded(143)));
    }
}
