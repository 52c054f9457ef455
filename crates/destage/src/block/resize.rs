//! `destage block resize`.

use crate::error::CliError;
use crate::output::print;
use crate::values::bytes;
use destage_block::cache::{self, CacheDevice, CacheError, FileMedia, Sizing};
use destage_runtime::exit;
use destage_runtime::human::count;
use destage_runtime::units::Bytes;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Flags of `resize`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResizeArgs {
    /// The cache: a file or a block device. No server may use it.
    #[arg(long, value_name = "PATH")]
    cache: PathBuf,

    /// Bytes of the cache from now on. 64M to 16T.
    #[arg(long, value_parser = |s: &str| bytes(s, "64M", "16T"), value_name = "SIZE")]
    cache_size: Bytes,

    /// Bytes of the log inside; unless told a quarter of the cache, but 64M to 32G, and at most half. 32M to 1T.
    #[arg(long, value_parser = |s: &str| bytes(s, "32M", "1T"), value_name = "SIZE")]
    log_size: Option<Bytes>,

    /// Put the new cache here, an absent file or an empty device, and leave the old one as it is. A file is otherwise replaced
    /// by one beside it; a device needs this.
    #[arg(long, value_name = "PATH")]
    to: Option<PathBuf>,
}

/// Moves a cache into one of another size.
pub(crate) fn run(args: &ResizeArgs) -> Result<(), CliError> {
    let failed = |path: &Path, error: CacheError| {
        let code = match error {
            CacheError::Dirty { .. } => exit::DIRTY_REMAINS,
            CacheError::Invalid(_) | CacheError::NotEmpty | CacheError::Exists => exit::USAGE,
            _ => exit::JOURNAL_UNUSABLE,
        };
        CliError::new(code, format!("{}: {error}", path.display()))
    };
    let from = FileMedia::open(&args.cache).map_err(|error| failed(&args.cache, error))?;
    let is_device = args.cache.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
    if is_device && args.to.is_none() {
        return Err(CliError::usage(
            "a device keeps its size while it is copied: name another place for the cache by --to",
        ));
    }
    let target = args.to.clone().unwrap_or_else(|| beside(&args.cache));
    let was_there = target.exists();
    if was_there {
        // It may be somebody's data: it is looked at before anything is changed.
        let found =
            FileMedia::open(&target).and_then(|found| CacheDevice::check_empty(Box::new(found)));
        found.map_err(|error| match (&error, &args.to) {
            (CacheError::NotEmpty, None) => CliError::usage(format!(
                "{0} is there already: if an earlier resize was interrupted, it is what that one left, and can be removed, since                  {1} still is whole; otherwise have the new cache made elsewhere by --to",
                target.display(),
                args.cache.display()
            )),
            _ => failed(&target, error),
        })?;
    }
    let total = args.cache_size.get();
    let to = FileMedia::create(&target, total).map_err(|error| failed(&target, error))?;
    let sizing = Sizing {
        total_bytes: total,
        log_bytes: args.log_size.map(Bytes::get),
        segment_bytes: None,
    };
    let resized = cache::resize(Box::new(from), Box::new(to), &sizing).map_err(|error| {
        if !was_there {
            // Half a cache is of no use to anyone; the error is what counts.
            let _ = std::fs::remove_file(&target);
        }
        failed(&args.cache, error)
    })?;
    let place = match &args.to {
        Some(place) => place,
        None => {
            replace(&target, &args.cache).map_err(|error| {
                let (from, to) = (target.display(), args.cache.display());
                CliError::new(
                    exit::JOURNAL_UNUSABLE,
                    format!("failed to rename {from} to {to}: {error}"),
                )
            })?;
            &args.cache
        }
    };
    let left = match &args.to {
        Some(_) => format!("; {} is out of date now: remove it", args.cache.display()),
        None => String::new(),
    };
    print(&format!(
        "{} has {} slots and {} clean blocks; {} were dropped{left}",
        place.display(),
        count(u64::from(resized.slots)),
        count(resized.blocks),
        count(resized.dropped),
    ))
}

fn beside(cache: &Path) -> PathBuf {
    let mut name = OsString::from(cache);
    name.push(".resized");
    name.into()
}

/// Puts the new cache in the place of the old one, durably.
fn replace(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}
