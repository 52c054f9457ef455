//! `destage mount`, live: the kernel's threads, the origin, signals and the admin port around the engine.

mod server;

use crate::kernel;
use crate::origin::{LocalOrigin, Origin};
use crate::settings::Settings;
use destage_runtime::clock::Clock;
use destage_runtime::shell::{EndRequest, Shell};
use destage_runtime::sockets::Reserved;
use destage_runtime::{exit, fuse};
use std::sync::Arc;

pub use destage_runtime::ServeError;

/// What other threads tell the server.
enum Event {
    /// Somebody has unmounted the folder.
    Unmounted,
    /// The server is to end.
    End(EndRequest),
}

impl From<EndRequest> for Event {
    fn from(request: EndRequest) -> Self {
        Self::End(request)
    }
}

/// What the mountpoint is called in messages.
const WHAT: &str = "mountpoint";

/// Mounts and serves until a signal, the end of the `--run` command, or a failure.
///
/// # Errors
/// [`ServeError`] with the exit code; what was committed is in the journal in any case.
pub fn run(settings: Settings) -> Result<(), ServeError> {
    let mut reserved = Reserved::new(None, settings.admin)?;
    let mountpoint = fuse::prepare(&settings.mountpoint, WHAT)?;
    let origin = open(&settings)?;
    let root = origin.root().ino;
    let mut shell = Shell::<Event>::new(Clock::new())?;
    let outbox = shell.outbox().clone();
    let ended = move || outbox.send(Event::Unmounted);
    let serve = Arc::new(crate::through::Through::new(origin));
    let remember = std::time::Duration::from_nanos(settings.origin_check.as_nanos());
    let kernel = kernel::Kernel::new(serve, root, remember, ended);
    let config = kernel::config(settings.threads, &settings.origin.display().to_string());
    shell.watch_signals()?;
    let session = fuse::mount(kernel, &mountpoint, &config, WHAT)?;
    let _ = &mut reserved;
    server::Server::new(settings, shell, session, mountpoint).run()
}

fn open(settings: &Settings) -> Result<LocalOrigin, ServeError> {
    let place = settings.origin.display();
    LocalOrigin::open(&settings.origin).map_err(|error| {
        let (code, advice) = match error.0 {
            libc::ENOENT | libc::ENOTDIR => {
                (exit::USAGE, "name a folder that is there, as of a mounted file system")
            }
            libc::EPERM | libc::EACCES => {
                (exit::USAGE, "run as root, with CAP_DAC_READ_SEARCH: files are opened by their handles")
            }
            libc::EOPNOTSUPP => (
                exit::USAGE,
                "its file system has no file handles, by which files are known after a crash: use CephFS, ext4, XFS, btrfs or NFS",
            ),
            libc::ENOTCONN | libc::ESHUTDOWN => {
                (exit::ORIGIN_UNREACHABLE, "its file system is not connected: mount it again")
            }
            _ => (exit::ORIGIN_UNREACHABLE, "see whether its file system is mounted and well"),
        };
        ServeError::new(code, format!("the origin {place} cannot be used: {error}: {advice}"))
    })
}
