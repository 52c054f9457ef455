//! The server as a part of another program: on a thread of its own, told what to do by events.

use super::Outbox;
use super::control::EngineControl;
use super::server::{Host, Local, LocalEvent, Refusal, Server};
use super::{Door, Event, ServeError, start};
use crate::engine::Engine;
use crate::origins::Origin;
use crate::schema::Schema;
use crate::settings::Settings;
use destage_replicas_redis::Replicas;
use destage_runtime::admin::{Control, ControlError};
use destage_runtime::shell::EndRequest;
use destage_runtime::{exit, shutdown};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

/// A running server.
pub(crate) struct EmbeddedServer {
    outbox: Outbox,
    schema: Arc<Schema>,
    origin: Arc<dyn Origin>,
    address: Option<String>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: Arc<OnceLock<Result<(), ServeError>>>,
    /// The log on other servers, and its name.
    log: Option<(Arc<Replicas>, String)>,
}

impl EmbeddedServer {
    /// Starts it; it serves Redis clients, too, if it `listens`.
    ///
    /// # Errors
    /// As for [`super::run`].
    pub(crate) fn start(settings: Settings, listens: bool) -> Result<Self, ServeError> {
        let door = Door::open(&settings, listens)?;
        let log = super::replicated::open(&settings, None)?;
        let named = settings.replicas.as_ref().map(|replicas| replicas.name.clone());
        let named = log.clone().zip(named);
        let started = start::start(&settings, log)?;
        let schema = started.engine.schema().clone();
        let origin = started.origin.clone();
        let (server, outbox) = Server::new(settings, started, door, Host::Library)?;
        let address = server.address();
        let ended = Arc::new(OnceLock::new());
        let end = ended.clone();
        let serve = move || {
            let run = AssertUnwindSafe(|| server.run());
            let panicked = |_| Err(ServeError::new(exit::BUG, "its thread panicked"));
            // Nobody else says how it ended.
            let _ = end.set(catch_unwind(run).unwrap_or_else(panicked));
        };
        let thread =
            thread::Builder::new().name("destage".into()).spawn(serve).map_err(|error| {
                ServeError::new(exit::BUG, format!("cannot start a thread: {error}"))
            })?;
        Ok(Self {
            outbox,
            schema,
            origin,
            address,
            thread: Mutex::new(Some(thread)),
            ended,
            log: named,
        })
    }

    pub(crate) fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// The origin, to be asked past the engine.
    pub(crate) fn origin(&self) -> &Arc<dyn Origin> {
        &self.origin
    }

    /// Where Redis clients connect, if they can.
    pub(crate) fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    pub(crate) fn connect(&self) -> Result<Local, Refusal> {
        Local::open(&self.outbox)
    }

    pub(crate) fn control(&self) -> impl Control {
        EngineControl { outbox: self.outbox.clone(), log: self.log.clone() }
    }

    /// Has the engine do something between all else.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, ControlError> {
        EngineControl { outbox: self.outbox.clone(), log: None }.ask(work)
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&self) -> Option<&Result<(), ServeError>> {
        self.ended.get()
    }

    /// Ends it: destages what is dirty, for as long as the settings say, or leaves that in the journal.
    ///
    /// # Errors
    /// Something is left, or it had failed before.
    pub(crate) fn stop(&self, drains: bool) -> Result<(), ServeError> {
        self.outbox.send(if drains {
            Event::End(EndRequest::Shutdown(shutdown::Request::Drain))
        } else {
            Event::Local(LocalEvent::Stop)
        });
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            thread.join().expect("it catches its panics");
        }
        self.ended.get().cloned().unwrap_or(Ok(()))
    }
}
