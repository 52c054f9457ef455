//! The start of a mount that shares its origin with other hosts: what of an earlier run is still its own.

mod handles;

use super::ServeError;
use super::live::Live;
use crate::ask::Ino;
use crate::engine::{Homes, Record};
use crate::origin::LocalOrigin;
use crate::tokens::{Client, Fences, TokenSettings, Tokens};
use destage_engine::Drive;
use destage_runtime::exit;
use destage_tokens::{HostId, Root, Stage};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Has a place among the hosts, and knows what it holds. `own` is this front end's folder at the origin.
///
/// # Errors
/// etcd does not answer, or this host's place is taken.
pub(super) fn start(
    settings: &TokenSettings,
    origin: &Arc<LocalOrigin>,
    own: &Path,
    host: Uuid,
) -> Result<Arc<Tokens>, ServeError> {
    let host = HostId(host.as_u128());
    let place = |error: io::Error| {
        let message = format!("cannot keep files of its own in {}: {error}", own.display());
        ServeError::new(exit::ORIGIN_UNREACHABLE, message)
    };
    if !origin.locks_end_with_data().map_err(|error| place(io::Error::other(error.to_string())))? {
        let message = "over NFS and SMB nobody can tell whether a silent host still writes: --tokens needs CephFS".to_owned();
        return Err(ServeError::new(exit::USAGE, message));
    }
    let volume = volume(own).map_err(place)?;
    handles::check(origin, own).map_err(place)??;
    let hosts = own.join("hosts");
    fs::create_dir_all(&hosts).map_err(place)?;
    let client = Client::of(own);
    let fences = Fences::claim(&hosts, host, settings.fence.clone(), client.as_ref())?;
    let tokens = Tokens::start(settings, &volume, host, fences, client)?;
    let guard = Arc::downgrade(&tokens);
    origin.guard(move || guard.upgrade().is_some_and(|tokens| tokens.may_change()));
    let began = Instant::now();
    while tokens.stage() != Stage::Recovering {
        refuse_if_shut_out(&tokens)?;
        if began.elapsed() > start_limit(settings) {
            return Err(no_tokens(settings));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(tokens)
}

/// Of what it knows to be its own nothing holds any more.
fn refuse_if_shut_out(tokens: &Tokens) -> Result<(), ServeError> {
    if tokens.is_fenced() {
        let message = "other hosts have shut this one out while it started: start it again";
        return Err(ServeError::new(exit::FENCED, message.to_owned()));
    }
    Ok(())
}

/// How long a start waits for etcd, at first and while it keeps conflicts.
fn start_limit(settings: &TokenSettings) -> Duration {
    START_LIMIT_MAX.min(Duration::from_nanos(settings.lease.0) * 2)
}

fn no_tokens(settings: &TokenSettings) -> ServeError {
    let message = format!(
        "no tokens from etcd at {} for {} s: see whether it runs, and lets this host in; what was acknowledged is in the \
         journal, and the next start takes it up",
        settings.etcd,
        start_limit(settings).as_secs()
    );
    ServeError::new(exit::SERVER_UNREACHABLE, message)
}

/// What all hosts call this origin: whoever comes first says it.
fn volume(own: &Path) -> io::Result<String> {
    said_first(own, VOLUME, &Uuid::new_v4().to_string())
}

/// What a file says at the origin: this, unless somebody has said something before.
fn said_first(own: &Path, name: &str, said: &str) -> io::Result<String> {
    let path = own.join(name);
    loop {
        match fs::read_to_string(&path) {
            Ok(said) => return Ok(said.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let made = own.join(format!("{name}.{}", Uuid::new_v4()));
        let mut file = File::create(&made)?;
        writeln!(file, "{said}")?;
        file.sync_all()?;
        // A further name never replaces one that is there.
        let linked = fs::hard_link(&made, &path);
        fs::remove_file(&made)?;
        File::open(own)?.sync_all()?;
        if let Err(error) = linked
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(error);
        }
    }
}

/// A group that the origin does not have: what covered its changes.
///
/// # Errors
/// It was written under tokens, and there are none now; or the other way round.
pub(super) fn look(
    has_tokens: bool,
    records: &[Record],
    homes: &mut Homes,
) -> Result<(), ServeError> {
    homes.look(records);
    let is_covered = |wanted: Ino| {
        records.iter().any(|record| matches!(record, Record::Cover { ino, .. } if *ino == wanted))
    };
    for record in records {
        let Record::File { key, .. } = record else { continue };
        match (has_tokens, is_covered(key.ino)) {
            (false, false) | (true, true) => {}
            (false, true) => {
                let message = "the journal holds changes that were made while other hosts shared the origin: name the \
                               --tokens by which they do, so that what others have changed since is not overwritten";
                return Err(ServeError::new(exit::USAGE, message.to_owned()));
            }
            (true, false) => {
                let message = "the journal holds changes that were made without --tokens: bring them to the origin first, \
                               while no other host has it, by 'destage mount replay'";
                return Err(ServeError::new(exit::USAGE, message.to_owned()));
            }
        }
    }
    Ok(())
}

/// From now on requests wait for tokens. What others have changed meanwhile is not shown: this host's version of it is
/// kept aside before anything is served.
///
/// # Errors
/// The origin does not take it.
pub(super) fn take_up(
    live: &Arc<Live>,
    tokens: Arc<Tokens>,
    settings: &TokenSettings,
) -> Result<(), ServeError> {
    let shared = live.share(tokens.clone(), settings.no_revocation);
    shared.map_err(|error| ServeError::internal(&error))?;
    // Whoever is told of it from now on was not there to be told before.
    refuse_if_shut_out(&tokens)?;
    let (lost, upto) =
        live.with(|front, _| (front.tree.lost.len(), front.covered(&Root::Volume, &[]).1));
    if lost > 0 {
        tracing::warn!(
            files = lost,
            "others have had files since that this host had changed: its versions are kept as conflicts"
        );
        // Until the journal says durably that this is done, nothing is taken: under a token that is this host's again, all of it
        // would count as its own after a crash.
        live.with(|front, now| front.hurry(now));
        let mut in_touch = Instant::now();
        loop {
            live.tick();
            if tokens.may_change() {
                in_touch = Instant::now();
            } else if in_touch.elapsed() > start_limit(settings) {
                // Without a lease nothing may be kept at the origin.
                return Err(no_tokens(settings));
            }
            let (is_done, stopped) = live.with(|front, now| {
                if front.decided() >= upto {
                    front.commit_soon(now);
                }
                (front.checkpointed() >= upto, front.stopped())
            });
            if is_done {
                break;
            }
            refuse_if_shut_out(&tokens)?;
            if let Some(reason) = stopped {
                let message = format!(
                    "stopped ({reason:?}) while conflicts were kept: what was acknowledged is in the journal"
                );
                return Err(ServeError::new(exit::JOURNAL_UNUSABLE, message));
            }
            thread::sleep(LOOK_EVERY);
        }
        live.with(|front, _| front.tree.settle_lost());
    }
    tokens.recovered();
    Ok(())
}

/// Where it is said what the hosts call the origin.
const VOLUME: &str = "volume";
const START_LIMIT_MAX: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_hosts_call_an_origin_the_same() {
        let own = tempfile::tempdir().unwrap();
        let first = volume(own.path()).unwrap();
        assert_eq!(volume(own.path()).unwrap(), first);
        assert_eq!(fs::read_dir(own.path()).unwrap().count(), 1);
        Uuid::parse_str(&first).unwrap();
    }
}
