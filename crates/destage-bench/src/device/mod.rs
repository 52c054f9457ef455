//! `destage-bench device`: an NBD server that takes as long as a modelled disk.
//!
//! One process is one disk with two exports on the same arms: `disk`, and `redo` behind it, where Destage keeps its
//! atomic groups. A flush promises nothing beyond its time: the bytes die with the process.

mod server;
mod store;

use std::io::BufRead as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;

use clap::Args;

pub(crate) use destage_sim::disk::{Counts, Profile};

use self::server::{Device, Word};
use crate::Result;

/// The arguments of `destage-bench device`.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Where to listen: a path for a socket
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,
    /// The kind of disk: raid or flash
    #[arg(long, default_value = "raid", value_parser = profile, value_name = "NAME")]
    pub(crate) profile: Profile,
    /// Bytes of the export `disk`
    #[arg(long, default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(1 << 20..=1 << 44), value_name = "BYTES")]
    pub(crate) size: u64,
    /// Bytes of the export `redo`
    #[arg(long, default_value_t = 128 << 20, value_parser = clap::value_parser!(u64).range(1 << 20..=1 << 40), value_name = "BYTES")]
    pub(crate) redo_size: u64,
    /// Bytes of the write cache; 0 for none [default: as the profile says]
    #[arg(long, value_name = "BYTES")]
    pub(crate) write_cache: Option<u64>,
    /// Seed of the rotation
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Keep the bytes in this file [default: in memory]
    #[arg(long, value_name = "PATH")]
    pub(crate) state: Option<PathBuf>,
}

fn profile(name: &str) -> std::result::Result<Profile, String> {
    let names: Vec<&str> = Profile::ALL.iter().map(|profile| profile.name).collect();
    Profile::named(name).ok_or_else(|| format!("no such disk: use one of {}", names.join(", ")))
}

/// Serves until its standard input ends. Lines there are commands, each answered by a line: `instant` (no access takes
/// time from now on), `timed` (they do again), `counts` (JSON).
///
/// # Errors
///
/// The socket cannot be bound, or the bytes cannot be kept.
pub(crate) fn run(arguments: &DeviceArgs) -> Result<()> {
    let profile = match arguments.write_cache {
        Some(bytes) => arguments.profile.clone().with_write_cache(bytes),
        None => arguments.profile.clone(),
    };
    let mut device = Device::new(arguments, profile)?;
    let (sender, words) = mpsc::channel();
    let waker = Arc::new(device.waker()?);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let word = line.map_or(Word::End, |line| Word::of(&line));
            // The server is gone: so is this process soon.
            if sender.send(word).is_err() || waker.wake().is_err() {
                return;
            }
        }
        if sender.send(Word::End).is_ok() {
            let _ = waker.wake();
        }
    });
    println!("device ready: {}", arguments.socket.display());
    device.serve(&words)
}
