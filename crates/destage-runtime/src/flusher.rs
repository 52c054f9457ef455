//! What keeps a server from waiting for itself, where the file systems on its volumes are on its own host.
//!
//! A thread that needs memory may be made to write dirty pages back first, and a thread that dirties pages may be made to
//! wait until enough of all dirty pages are written. Where those pages lie on a volume of this very process, it would wait
//! for itself. The kernel exempts who declares itself an I/O flusher. A page of the process that was put out, to a swap
//! file or by dropping it, must not have to be read through the process either; so pages are locked once they are there.

use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, configure_io_flusher_behavior, getrlimit};
use rustix::thread::CapabilitySet;
use std::thread;

/// Declares this thread, and those that it starts from now on, I/O flushers; if the host's own kernel is known to be a
/// client, locks memory as well, and says what is not permitted.
pub fn declare(serves_kernel: bool) {
    if let Err(error) = configure_io_flusher_behavior(true) {
        if serves_kernel {
            tracing::warn!(
                %error,
                "the kernel does not take this process for an I/O flusher: under memory pressure it may wait for itself. \
                 Run it with CAP_SYS_RESOURCE"
            )
        } else {
            tracing::debug!(%error, "not an I/O flusher")
        }
    }
    if serves_kernel && let Err(reason) = lock_memory() {
        tracing::warn!(
            reason,
            "memory cannot be locked: do not swap to a volume of this server. Run it with CAP_IPC_LOCK or LimitMEMLOCK=infinity"
        );
    }
}

fn lock_memory() -> Result<(), String> {
    // With a limit, memory above it could not be had at all.
    let may = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if !may && getrlimit(Resource::Memlock).current.is_some() {
        return Err("not permitted".into());
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    rustix::mm::mlockall(flags).map_err(|error| error.to_string())
}

/// Runs something, such as the start of another program, as an ordinary thread.
pub fn ordinary<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // Who was not permitted to declare itself is ordinary.
            let _ = configure_io_flusher_behavior(false);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
