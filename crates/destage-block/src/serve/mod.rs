//! `destage block serve`, live: sockets, threads and media around the volume engines.
//!
//! One thread owns the engines and all clients' sockets. Jobs that block run on threads of their own and report back
//! through [`Event`]s.

mod auto;
mod check;
mod clients;
mod control;
mod files;
mod fuse;
mod groups;
mod grow;
mod lost_store;
mod made;
mod metrics;
mod pool;
mod recovery;
mod report;
mod requests;
mod server;
mod shutdown_report;
mod slice;
mod spin;
mod start;
mod watch;

use crate::engine::{GroupDone, JobDone, Volume};
use crate::settings::Settings;
use destage_runtime::auto::AutoPilot;
use destage_runtime::reload::{self, Hangups, Reread};
use destage_runtime::shell::EndRequest;
use destage_runtime::sockets::Reserved;
use destage_runtime::watch::Guard;
use destage_runtime::{descriptors, flusher, memory};
use server::{Server, Surroundings};

pub use check::{check, check_together};
pub use destage_runtime::ServeError;
pub use metrics::EXPORTS;

/// A volume in service.
struct Served {
    name: String,
    volume: Volume,
    /// What its origin and cache are called.
    description: String,
    cache: String,
    cache_bytes: u64,
    /// Only FLUSH and FUA promise durability: `d = flush`.
    commits_on_flush: bool,
    requests: requests::Requests,
    /// Undecided groups that the start found, and bytes that a torn tail of the log lost.
    found: report::Found,
    reported_losses: crate::engine::ReportedLosses,
    /// How many losses whoever has the volume's file open was told of.
    file_losses_known: u64,
    /// The consistency group that it is in.
    group: Option<String>,
    /// Its origin is replaced as a whole by each group.
    takes_snapshots: bool,
    /// Settings that are tried out.
    auto: AutoPilot,
    /// Looks at its cache's file.
    watch: Guard,
}

/// What other threads tell the server.
enum Event {
    /// A job of this volume ended.
    Done { volume: usize, done: JobDone },
    /// The kernel asks something of the volumes' files.
    File(fuse::FileEvent),
    /// A job of this consistency group ended.
    GroupDone { group: usize, done: GroupDone },
    /// The admin port asks something of the volumes.
    Control(Box<dyn FnOnce(&mut control::View<'_>) + Send>),
    /// The server is to end.
    End(EndRequest),
}

impl From<EndRequest> for Event {
    fn from(request: EndRequest) -> Self {
        Self::End(request)
    }
}

/// Where other threads tell the server something.
type Outbox = destage_runtime::shell::Outbox<Event>;

/// Serves until a signal, the end of the `--run` command, or a failure. At SIGHUP, `reread` looks for changed settings.
///
/// # Errors
/// [`ServeError`] with the exit code; what was committed is in the cache in any case.
pub fn run(mut settings: Settings, reread: Reread) -> Result<(), ServeError> {
    let hangups = Hangups::begin()?;
    // Threads inherit it, so it comes first.
    flusher::declare(settings.fuse.is_some());
    settings.clients_max = descriptors::for_clients(settings.clients_max);
    memory::give_back_when_quiet();
    let reserved = Reserved::new(Some(&settings.listen), settings.admin)?;
    let place = fuse::Place::prepare(&settings)?;
    let mut started = start::start(&settings)?;
    match Surroundings::new(&settings, &started, reserved, place) {
        Ok(surroundings) => {
            started.made.keep();
            let control = surroundings.control();
            // Before anybody is told that it is ready.
            let _hangups = reload::watch(hangups, control, reread)
                .map_err(|error| ServeError::internal(&error))?;
            let server = Server::new(settings, started, surroundings)?;
            server.run()
        }
        Err(error) => {
            start::give_back(started.volumes, &started.contexts);
            Err(error)
        }
    }
}
