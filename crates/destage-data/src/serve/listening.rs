//! The thread that hears what others change at the origin.

use super::Event;
use super::Outbox;
use crate::origins::{Listener, Notices, Origin, OriginError};
use crate::schema::Schema;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// Shortest and longest wait before it is tried again to listen.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long it may take until the thread notices that the server has ended.
const NOTICE: Duration = Duration::from_millis(500);
/// Changes are handed on at most this often: between them what was dropped can be fetched again, however often a row changes.
const HAND_ON_EVERY: Duration = Duration::from_millis(20);

/// The thread's state.
struct Hearer {
    origin: Arc<dyn Origin>,
    schema: Arc<Schema>,
    outbox: Outbox,
    /// Gone when the server is.
    server: Weak<()>,
}

/// Starts the thread, which listens already, if the origin tells anything; it ends once what is returned is dropped.
///
/// # Errors
/// The system has no thread to give.
pub(super) fn start(
    listener: Option<Box<dyn Listener>>,
    origin: &Arc<dyn Origin>,
    schema: Arc<Schema>,
    outbox: &Outbox,
) -> std::io::Result<Arc<()>> {
    let alive = Arc::new(());
    if let Some(listener) = listener {
        let (origin, outbox, server) = (origin.clone(), outbox.clone(), Arc::downgrade(&alive));
        let hearer = Hearer { origin, schema, outbox, server };
        thread::Builder::new().name("listener".into()).spawn(move || hearer.run(listener))?;
    }
    Ok(alive)
}

impl Hearer {
    fn run(&self, first: Box<dyn Listener>) {
        let mut listener = Some(first);
        let mut retry = RETRY_MIN;
        while self.server.strong_count() > 0 {
            match listener.take() {
                Some(heard) => {
                    retry = RETRY_MIN;
                    self.outbox.send(Event::Listening(Some(heard.tables().to_vec())));
                    let error = self.hear(heard);
                    self.outbox.send(Event::Listening(None));
                    if let Some(error) = error {
                        tracing::warn!(
                            error = error.message,
                            "others' changes are not told of; trying again"
                        );
                    }
                }
                None => {
                    self.rest(retry);
                    retry = (retry * 2).min(RETRY_MAX);
                    listener = self.listen();
                }
            }
        }
    }

    /// Hands on what is heard until the connection or the server ends. While the server has not looked at it, no further
    /// event is sent: what else is heard goes to the rest, folded.
    fn hear(&self, mut listener: Box<dyn Listener>) -> Option<OriginError> {
        let heard = Notices::default();
        while self.server.strong_count() > 0 {
            match listener.wait(NOTICE) {
                Ok(changes) if changes.is_empty() => {}
                Ok(changes) => {
                    if heard.add(|all| all.merge(changes)) {
                        self.outbox.send(Event::Notices(heard.clone()));
                    }
                    thread::sleep(HAND_ON_EVERY);
                }
                Err(error) => return Some(error),
            }
        }
        None
    }

    fn listen(&self) -> Option<Box<dyn Listener>> {
        match self.origin.listener(&self.schema) {
            Ok(Some(listener)) => {
                tracing::info!("listening again; what was cached of these tables is dropped");
                Some(listener)
            }
            Ok(None) => {
                tracing::debug!("no table has triggers any more");
                None
            }
            Err(error) => {
                tracing::debug!(error = error.message, "cannot listen");
                None
            }
        }
    }

    /// Waits, unless the server ends.
    fn rest(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() && self.server.strong_count() > 0 {
            let part = left.min(NOTICE);
            thread::sleep(part);
            left -= part;
        }
    }
}
