//! What is looked at from time to time, beside all else: stores through mappings, which the kernel does not tell of, and the
//! room at the origin.

use super::live::Live;
use fuser::{INodeNo, Notifier};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Looks every `period`, on a thread of its own: the kernel writes pages back to this process before it is done.
///
/// # Errors
/// The system has no threads.
pub(super) fn start(
    live: Arc<Live>,
    notifier: Notifier,
    root: u64,
    period: Duration,
) -> io::Result<()> {
    thread::Builder::new().name("beside".into()).spawn(move || {
        loop {
            thread::sleep(period);
            live.look_at_space();
            for ino in live.with(|front, _| front.take_mapped()) {
                let ino = if ino == root { INodeNo::ROOT } else { INodeNo(ino) };
                // A file that the kernel has forgotten holds no pages.
                let _ = notifier.inval_inode(ino, 0, 0);
            }
        }
    })?;
    Ok(())
}
