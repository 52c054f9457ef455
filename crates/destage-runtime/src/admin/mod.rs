//! The admin port: HTTP on a thread of its own, so that it answers while the engine is busy.
//!
//! | request | answer |
//! |---|---|
//! | `GET /` | the console: a page that shows what follows, live |
//! | `GET /status` | the [`Report`] as JSON |
//! | `GET /metrics` | the same for Prometheus |
//! | `GET /healthz` | 200 while the process answers |
//! | `GET /readyz` | 200, or 503 with the reason while clients are not served as the policy says |
//! | `POST /command` | `{"command":"policy","args":["write-through"]}`, answered by `{"result":...}` or `{"error":"..."}` |
//!
//! It survives slow and silent clients (bounded connections, bodies and commands at once) and leaves the meaning of commands
//! to the front end's [`Control`]. A command may take as long as it needs, unless `"timeout_ms"` stands beside its name; it
//! ends when its client hangs up. With a password, `POST` needs `Authorization: Bearer PASSWORD`, and whoever guesses is held up
//! ([`Auth`]); without one, the `Host` must be an address or `localhost`, so that no web page reaches it through a name of its own.

mod ask;
mod caller;
mod listener;
mod routes;

pub use ask::{Answer, ask};
pub use caller::{Caller, Gone};

use crate::auth::Auth;
use crate::clock::Clock;
use crate::metrics::Exports;
use crate::sockets::BACKLOG;
use crate::status::Report;
use listener::{Bounded, Limits, Peer};
use socket2::SockRef;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::watch;

/// What a front end offers to the admin port. Called on threads of the admin port; may block.
pub trait Control: Send + Sync {
    /// The current report.
    ///
    /// # Errors
    /// The engine does not answer.
    fn report(&self) -> Result<Report, ControlError>;

    /// What it exports as metrics besides what every front end does. The default is nothing of its own.
    fn exports(&self) -> Exports {
        Exports::default()
    }

    /// Executes a command: `policy`, `pause`, `resume`, `flush`, `drain`, `invalidate` and whatever the front end adds.
    ///
    /// One that waits for something ends soon after [`Caller::gone`] says so.
    ///
    /// # Errors
    /// An unknown command, wrong arguments, or a failure.
    fn command(
        &self,
        name: &str,
        args: &[String],
        caller: &Caller,
    ) -> Result<serde_json::Value, ControlError>;
}

/// Why a [`Control`] could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The command or its arguments are wrong (HTTP 400).
    #[error("{0}")]
    Invalid(String),
    /// Not now: the engine does not answer, or is stopping (HTTP 503).
    #[error("{0}")]
    Unavailable(String),
    /// It was tried and failed (HTTP 500).
    #[error("{0}")]
    Failed(String),
    /// The caller's time is over; what was begun goes on (HTTP 504).
    #[error("{0}")]
    TimedOut(String),
}

impl Caller {
    /// Whether the caller still waits.
    ///
    /// # Errors
    /// [`ControlError::TimedOut`] with that message once the time given is over; one that nobody reads once the caller has
    /// hung up.
    pub fn still_waits(&self, message: impl FnOnce() -> String) -> Result<(), ControlError> {
        match self.gone() {
            None => Ok(()),
            Some(Gone::TimedOut) => Err(ControlError::TimedOut(message())),
            Some(Gone::HungUp) => {
                Err(ControlError::Unavailable("whoever asked has hung up".into()))
            }
        }
    }
}

/// A running admin port. Stops when dropped: what is under way is answered, if it is soon.
#[derive(Debug)]
pub struct AdminHandle {
    addr: SocketAddr,
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the admin port on a socket that is bound and need not listen yet, with `control` behind it.
///
/// # Errors
/// The address cannot be listened on, or the thread cannot be started.
pub fn serve(
    listener: TcpListener,
    control: Arc<dyn Control>,
    auth: Arc<Auth>,
    clock: Clock,
    hosts: Vec<String>,
) -> io::Result<AdminHandle> {
    serve_within(listener::LIMITS, listener, control, (auth, clock), hosts)
}

fn serve_within(
    limits: Limits,
    listener: TcpListener,
    control: Arc<dyn Control>,
    (auth, clock): (Arc<Auth>, Clock),
    hosts: Vec<String>,
) -> io::Result<AdminHandle> {
    SockRef::from(&listener).listen(BACKLOG)?;
    listener.set_nonblocking(true)?;
    let addr = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_MAX)
        .thread_keep_alive(Duration::from_secs(10))
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let (stop, mut stopped) = watch::channel(());
    let mut stops = stopped.clone();
    let thread = thread::Builder::new().name("admin".into()).spawn(move || {
        runtime.block_on(async move {
            let telling = tell(auth.clone(), clock.clone());
            let routes = routes::router(control, auth, clock, hosts, limits);
            let routes = routes.into_make_service_with_connect_info::<Peer>();
            let server = axum::serve(Bounded::new(listener, limits), routes)
                .with_graceful_shutdown(async move { drop(stops.changed().await) });
            let given_up = async {
                // It ends with the handle.
                let _ = stopped.changed().await;
                tokio::time::sleep(LAST_ANSWERS_MAX).await;
            };
            tokio::select! {
                result = server => if let Err(error) = result {
                    tracing::error!("the admin port failed: {error}");
                },
                _ = telling => {}
                () = given_up => {}
            }
        });
        // Commands under way must not hold up the process's end.
        runtime.shutdown_background();
    })?;
    Ok(AdminHandle { addr, stop: Some(stop), thread: Some(thread) })
}

/// Has the log told of wrong passwords as long as the port is there.
async fn tell(auth: Arc<Auth>, clock: Clock) {
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        auth.tell(clock.now());
    }
}

impl AdminHandle {
    /// The address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for AdminHandle {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been printed by its thread; there is nothing to add here.
            let _ = thread.join();
        }
    }
}

/// The largest body of a command, and of its answer. A write is at most 16 MiB; as JSON inside JSON each of its bytes may
/// take seven (`\\u0001`).
pub const COMMAND_BYTES_MAX: usize = 128 << 20;
/// How long the port's end waits for answers under way, such as how the server has ended.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether there is something to tell.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Reports and commands that may be under way at once.
const BLOCKING_MAX: usize = 16;
/// Commands that may be under way at once: fewer, so that there are reports while commands wait for the origin.
const COMMANDS_MAX: usize = 12;

#[cfg(test)]
mod tests;
