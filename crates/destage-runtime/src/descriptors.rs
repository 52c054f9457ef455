//! File descriptors: each connection takes one, and so do the journal, the origin and the admin port. Clients never get the last
//! ones, or those that wait to be accepted would hang, and the origin could not be reached any more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept for the server's own files and connections.
const OWN: usize = 128;

/// Lets this process have as many files open as it is allowed to.
pub fn raise() {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limits.maximum, ..limits };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// How many clients may be connected at a time: as many as are wanted, or as this process may have files open for. Raises its
/// limit (`RLIMIT_NOFILE`) as far as it is allowed to, and warns where that does not do.
pub fn for_clients(wanted: usize) -> usize {
    let limits = getrlimit(Resource::Nofile);
    let needed = wanted.saturating_add(OWN) as u64;
    // None is no limit.
    let now = limits.current.unwrap_or(u64::MAX);
    if now >= needed {
        return wanted;
    }
    let raised = needed.min(limits.maximum.unwrap_or(u64::MAX)).max(now);
    let asked = Rlimit { current: Some(raised), ..limits };
    let got = if setrlimit(Resource::Nofile, asked).is_ok() { raised } else { now };
    let clients = usize::try_from(got).unwrap_or(usize::MAX).saturating_sub(OWN).clamp(1, wanted);
    if clients < wanted {
        tracing::warn!(
            open_files = got,
            wanted,
            clients,
            "this process may not have enough files open for --max-clients: fewer clients are let in; raise the limit \
             (ulimit -n, LimitNOFILE=)"
        );
    }
    clients
}
