//! `destage serve`, live: sockets, threads, the journal's disk and the origin's connections around the [`Engine`].
//!
//! One thread owns the engine and all clients' sockets. The journal, the destager and the readers of the origin have
//! threads of their own and report back through events.

mod alone;
mod check;
mod claims;
mod client;
mod control;
mod embedded;
mod ends;
mod identity;
mod listening;
mod metrics;
mod owned;
mod replicated;
mod run;
mod server;
mod slow;
mod standby;
mod start;
mod sync;
mod users;
mod whose;
mod workers;

use crate::derived::Answer;
use crate::engine::{Engine, FetchJob};
use crate::origins::{
    Applied, EndedKeys, Keys, NextKeys, Notices, Origin, OriginError, ParkedGroup, Watermarks,
};
use crate::schema::{Schema, TableId};
use crate::settings::Settings;
use destage_core::{BatchId, Lsn};
use destage_runtime::commit::CommitDone;
use destage_runtime::notify::Alive;
use destage_runtime::reload::{Hangups, Reread};
use destage_runtime::shell::EndRequest;
use destage_runtime::sockets::Reserved;
use destage_runtime::tls::{ServerConfig, ServerFiles};
use destage_runtime::{descriptors, memory};
use server::{Host, LocalEvent, Server};
use std::sync::Arc;

pub use check::check;
pub use destage_runtime::ServeError;
pub(crate) use embedded::EmbeddedServer;
pub use ends::missing_indexes;
pub use metrics::EXPORTS;
pub(crate) use server::{Local, Refusal};
pub use whose::origin_of;

/// What other threads tell the server.
enum Event {
    /// Something was done with the journal.
    Committed(CommitDone),
    /// The replicated log stands otherwise than before.
    Replicated,
    /// Rows were fetched, or not.
    Fetched {
        jobs: Vec<FetchJob>,
        result: Result<workers::Packed, OriginError>,
    },
    /// A password was looked at: which of its user's it is.
    PasswordChecked {
        id: u64,
        place: Option<usize>,
    },
    /// A page of keys was read, or not.
    Scanned {
        request: u64,
        result: Result<(Keys, Watermarks), OriginError>,
    },
    /// Keys of rows that have ended were read, or not.
    Ended {
        request: u64,
        result: Result<EndedKeys, OriginError>,
    },
    /// Keys were reserved, or not.
    KeysReserved {
        request: u64,
        result: Result<NextKeys, OriginError>,
    },
    HoldersFound {
        request: u64,
        result: Result<Vec<Option<Box<[u8]>>>, OriginError>,
    },
    /// The query of a derived key ended.
    Queried {
        job: u64,
        result: Result<Answer, OriginError>,
    },
    /// A batch was applied, or not.
    Destaged {
        batch: BatchId,
        result: Result<Applied, OriginError>,
    },
    /// A group was moved past, or not.
    Parked {
        lsn: Lsn,
        result: Result<(), OriginError>,
    },
    /// Parked groups were taken back, or not.
    Unparked {
        result: Result<Applied, OriginError>,
    },
    /// The parked groups were read, or not.
    ParkedListed {
        request: u64,
        result: Result<Vec<ParkedGroup>, OriginError>,
    },
    /// The heartbeat was renewed and found the origin's watermarks there.
    /// No older than what was `confirmed` before.
    Shown {
        watermarks: Watermarks,
        confirmed: Vec<Lsn>,
    },
    /// The mark of all ordering domains has moved, or not.
    MarkedAll {
        upto: Lsn,
        result: Result<(), OriginError>,
    },
    /// The origin tells what others change in these tables from now on; without tables, it is not heard any more.
    Listening(Option<Vec<TableId>>),
    /// Others have changed something. Sent once for all that is heard until it is looked at.
    Notices(Notices),
    /// The heartbeat found another owner.
    Fenced(OriginError),
    /// The heartbeat found something else than what was opened.
    Changed(OriginError),
    /// The admin port asks something of the engine.
    Control(Box<dyn FnOnce(&mut Engine) + Send>),
    /// A connection from within the process.
    Local(LocalEvent),
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

/// Makes of an origin's tables what the settings say, as a start does, and changes nothing there.
///
/// # Errors
/// The settings do not fit the tables, or the origin cannot be asked.
pub fn fit(
    settings: &Settings,
    origin: &dyn Origin,
    schema: &mut Schema,
) -> Result<(), ServeError> {
    start::fit(settings, origin, schema).map(drop)
}

/// Serves until a signal, the end of the `--run` command, or a failure. At SIGHUP, `reread` looks for changed settings.
///
/// # Errors
/// [`ServeError`] with the exit code; what was acknowledged is in the journal in any case.
pub fn run(mut settings: Settings, reread: Reread) -> Result<(), ServeError> {
    let hangups = Hangups::begin()?;
    settings.clients_max = descriptors::for_clients(settings.clients_max);
    if let Some(users) = &mut settings.users {
        users.read().map_err(|error| ServeError::usage(&error))?;
    }
    memory::give_back_when_quiet();
    let door = Door::open(&settings, true)?;
    let alive = Alive::of_unit().map_err(|error| ServeError::internal(&error))?;
    let log = replicated::open(&settings, Some(&door))?;
    let started = replicated::start(&settings, log)?;
    let (server, _) = Server::new(settings, started, door, Host::Program(hangups, reread))?;
    drop(alive);
    server.run()
}

/// Where clients come in.
struct Door {
    /// The places to listen at, which are taken before anything is claimed.
    reserved: Reserved,
    /// What encrypts their connections, if anything does.
    tls: Option<Arc<ServerConfig>>,
}

impl Door {
    /// Takes the places, and reads what encrypts.
    fn open(settings: &Settings, listens: bool) -> Result<Self, ServeError> {
        let tls = settings.tls.as_ref().map(ServerFiles::config).transpose()?;
        let listen = listens.then_some(&settings.listen);
        Ok(Self { reserved: Reserved::new(listen, settings.admin)?, tls })
    }
}
