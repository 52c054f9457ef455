//! The admin port: HTTP on a thread of its own, so that it answers while the engine is busy.
//!
//! | request | answer |
//! |---|---|
//! | `GET /status` | the [`Report`] as JSON |
//! | `GET /metrics` | the same for Prometheus |
//! | `GET /healthz` | 200 while the process answers |
//! | `GET /readyz` | 200, or 503 with the reason while clients are not served as the policy says |
//! | `POST /command` | `{"command":"policy","args":["write-through"]}`, answered by `{"result":...}` or `{"error":"..."}` |
//!
//! It survives slow and silent clients (bounded connections, bodies and waiting) and leaves the meaning of commands to the
//! front end's [`Control`]. With a password, `POST` needs `Authorization: Bearer PASSWORD`; without one, the `Host` must be an
//! address or `localhost`, so that no web page reaches it through a name of its own.

mod listener;
mod routes;

use crate::status::Report;
use listener::Bounded;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// What a front end offers to the admin port. Called on threads of the admin port; may block.
pub trait Control: Send + Sync {
    /// The current report.
    ///
    /// # Errors
    /// The engine does not answer.
    fn report(&self) -> Result<Report, ControlError>;

    /// Executes a command: `policy`, `pause`, `resume`, `flush`, `drain`, `invalidate` and whatever the front end adds.
    ///
    /// # Errors
    /// An unknown command, wrong arguments, or a failure.
    fn command(&self, name: &str, args: &[String]) -> Result<serde_json::Value, ControlError>;
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
}

/// A running admin port. Stops when dropped.
#[derive(Debug)]
pub struct AdminHandle {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the admin port on `addr` (port 0 lets the system choose) with `control` behind it.
///
/// # Errors
/// The address cannot be listened on, or the thread cannot be started.
pub fn serve(
    addr: SocketAddr,
    control: Arc<dyn Control>,
    password: Option<String>,
) -> io::Result<AdminHandle> {
    let listener = std::net::TcpListener::bind(addr)?;
    listener.set_nonblocking(true)?;
    let addr = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_MAX)
        .thread_keep_alive(std::time::Duration::from_secs(10))
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        TcpListener::from_std(listener)?
    };
    let (stop, stopped) = oneshot::channel();
    let thread = thread::Builder::new().name("admin".into()).spawn(move || {
        runtime.block_on(async move {
            let server = axum::serve(Bounded::new(listener), routes::router(control, password));
            tokio::select! {
                result = server => if let Err(error) = result {
                    tracing::error!("the admin port failed: {error}");
                },
                _ = stopped => {}
            }
        });
        // Commands under way must not hold up the process's end.
        runtime.shutdown_background();
    })?;
    Ok(AdminHandle { addr, stop: Some(stop), thread: Some(thread) })
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

/// Reports and commands that may be under way at once.
const BLOCKING_MAX: usize = 16;

#[cfg(test)]
mod tests;
