//! `destage mount`, live: the kernel's threads, the origin, signals and the admin port around the engine.

mod beside;
mod check;
mod conflicts;
mod control;
pub(crate) mod live;
mod locks;
mod metrics;
mod paging;
mod report;
mod server;
mod share;
mod shared;
mod sizes;
mod start;

use crate::kernel;
use crate::settings::Settings;
use destage_runtime::auth::Auth;
use destage_runtime::clock::Clock;
use destage_runtime::fuse;
use destage_runtime::reload::Hangups;
use destage_runtime::shell::{EndRequest, Shell};
use destage_runtime::shutdown::{self, Request};
use destage_runtime::sockets::Reserved;
use std::sync::Arc;
use std::time::Duration;

pub use check::{Checked, check};
pub use destage_runtime::ServeError;
pub use metrics::EXPORTS;

/// What other threads tell the server.
enum Event {
    /// Something is due earlier than it was.
    Look,
    /// Other hosts have shut this one out, or it can keep nothing for them.
    Over,
    /// Somebody has unmounted the folder.
    Unmounted,
    /// The origin's own mount has ended.
    OriginGone,
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

/// How often mappings are looked at, at most.
const BESIDE_EVERY_MIN: Duration = Duration::from_millis(100);

/// What the mountpoint is called in messages.
const WHAT: &str = "mountpoint";

/// Mounts and serves until a signal, the end of the `--run` command, or a failure.
///
/// # Errors
/// [`ServeError`] with the exit code; what was committed is in the journal in any case.
pub fn run(settings: Settings) -> Result<(), ServeError> {
    let _hangups = Hangups::begin()?;
    // Threads inherit it, so it comes first.
    destage_runtime::flusher::declare(true);
    destage_runtime::descriptors::raise();
    destage_runtime::memory::give_back_when_quiet();
    let mut reserved = Reserved::new(None, settings.admin)?;
    let mountpoint = fuse::prepare(&settings.mountpoint, WHAT)?;
    let clock = Clock::new();
    let mut shell = Shell::<Event>::new(clock.clone())?;
    let outbox = shell.outbox().clone();
    let started = start::start(&settings, &clock, outbox.clone())?;
    let remember = kernel::Remember {
        names: Duration::from_nanos(settings.names_unseen().0),
        nobodys: Duration::from_nanos(settings.nobodys_unseen().0),
    };
    let ended = {
        let outbox = outbox.clone();
        move || outbox.send(Event::Unmounted)
    };
    let is_shared = settings.tokens.is_some();
    let kernel =
        kernel::Kernel::new(started.live.clone(), started.root, remember, is_shared, ended);
    let config = kernel::config(settings.threads, &settings.origin.display().to_string());
    let warning = started.has_page_cache.then_some(start::PAGE_CACHE);
    let live = started.live.clone();
    let control = control::MountControl::new(live, outbox, &settings, clock.now(), warning);
    let auth = Arc::new(Auth::new(settings.password.clone()));
    shell.serve_admin(&mut reserved, Arc::new(control), auth, &settings.admin_hosts)?;
    if settings.admin.is_some() {
        started.live.set_admin(shell.admin_address());
    }
    shell.watch_signals()?;
    let session = fuse::mount(kernel, &mountpoint, &config, WHAT)?;
    let period = Duration::from_nanos(settings.policy.commit.as_nanos()).max(BESIDE_EVERY_MIN);
    let remembered = beside::Remembered::new(session.notifier(), started.root);
    if let Some(shared) = started.live.shared() {
        shared.set_kernel(remembered.clone());
    }
    started.live.set_remembered(remembered.clone());
    beside::start(started.live.clone(), remembered, period)
        .map_err(|error| ServeError::internal(&error))?;
    server::Server::new(settings, shell, Some((session, mountpoint)), started).run()
}

/// Brings what a journal holds to its origin, without mounting it. Returns how many conflicts it told of in all.
///
/// # Errors
/// As [`run`].
pub fn replay(settings: Settings) -> Result<u64, ServeError> {
    let _hangups = Hangups::begin()?;
    let clock = Clock::new();
    let shell = Shell::<Event>::new(clock.clone())?;
    let outbox = shell.outbox().clone();
    let started = start::start(&settings, &clock, outbox.clone())?;
    // The first one ends it: the next replay goes on.
    let end = move |_| outbox.send(EndRequest::Shutdown(Request::Now).into());
    let _signals = shutdown::watch(end).map_err(|error| ServeError::internal(&error))?;
    let live = started.live.clone();
    server::Server::new(settings, shell, None, started).replay()?;
    Ok(live.with(|front, _| front.counted.conflicts))
}
