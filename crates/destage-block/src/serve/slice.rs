//! Short time slices for the threads that clients wait for.
//!
//! A thread that is woken waits until whoever has the processor has used its slice: milliseconds where others keep all
//! processors busy, many times what a disk takes. Since Linux 6.12 a thread may ask for shorter slices. It is then run the
//! sooner after it was woken, and its share of the processor stays what it was, so nobody else has less.

use std::io;

/// Asks for the shortest slices there are, for this thread only. Nothing but time depends on them: older kernels do not
/// care, and a thread of another class than the usual one is left as it is.
pub(super) fn shorten() {
    if let Err(error) = shorten_to(SLICE_NS) {
        tracing::debug!(%error, "no shorter time slices");
    }
}

fn shorten_to(slice_ns: u64) -> io::Result<()> {
    let mut attributes = attributes()?;
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.sched_runtime = slice_ns;
    // SAFETY: the kernel reads as many bytes as the structure says that it has, and keeps no pointer to it.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How this thread is scheduled.
fn attributes() -> io::Result<libc::sched_attr> {
    let mut attributes = libc::sched_attr {
        size: ATTRIBUTES_BYTES,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most as many bytes as it is told that the structure has.
    let result = unsafe {
        libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, ATTRIBUTES_BYTES, 0)
    };
    if result == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

/// The least that the kernel grants.
const SLICE_NS: u64 = 100_000;
const ATTRIBUTES_BYTES: u32 = size_of::<libc::sched_attr>() as u32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_slices_are_granted_or_ignored_and_nothing_else_changes() {
        let before = attributes().unwrap();
        shorten_to(SLICE_NS).unwrap();
        let after = attributes().unwrap();
        assert_eq!(
            (after.sched_policy, after.sched_nice, after.sched_priority),
            (before.sched_policy, before.sched_nice, before.sched_priority)
        );
        // Kernels before 6.12 know of no such slices.
        assert!([before.sched_runtime, SLICE_NS].contains(&after.sched_runtime));
    }
}
