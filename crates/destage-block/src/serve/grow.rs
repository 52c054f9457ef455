//! Origins that grow while they are served. The order is the point: the origin's new size is durable there, then in the
//! redo store, then in the cache, and only then does anyone hear of it. So what was written behind the old end is inside
//! the volume for every later start, wherever a crash comes in between; a start takes up by itself what did not get that
//! far.

use super::Served;
use super::fuse::{Files, Sizes};
use super::report;
use crate::block::BLOCK;
use crate::cache::OriginId;
use crate::engine::Context;
use crate::nbd::server::{Export, Exports};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What clients are offered. A connection keeps the size that it was told.
#[derive(Debug)]
pub(super) struct LiveExports(RwLock<Vec<Export>>);

impl LiveExports {
    pub(super) fn new(exports: Vec<Export>) -> Self {
        Self(RwLock::new(exports))
    }

    fn set_size(&self, index: usize, size: u64) {
        // A size is changed in one step, so a panic elsewhere leaves the list whole.
        self.0.write().unwrap_or_else(PoisonError::into_inner)[index].size = size;
    }
}

impl Exports for LiveExports {
    fn list(&self) -> Vec<Export> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Makes volumes as large as their origins have become. For the admin port's threads: it waits for disks.
pub(super) struct Growth {
    contexts: Arc<[Context]>,
    exports: Arc<LiveExports>,
    files: Option<Sizes>,
    /// One at a time.
    busy: Mutex<()>,
}

/// The size of a volume that may grow now, bytes.
///
/// # Errors
/// Why it may not, and what to do.
pub(super) fn check(served: &Served) -> Result<u64, String> {
    if let Some(why) = report::stopped(served).or_else(|| report::tampered(served)) {
        return Err(why);
    }
    let size = served.volume.size();
    if !size.is_multiple_of(BLOCK as u64) {
        return Err(format!(
            "volume '{}' has {size} bytes, and its last block is a part of one: only a start can take up what was added \
             behind it: stop the server ('destage block detach') and start it again",
            served.name
        ));
    }
    Ok(size)
}

impl Growth {
    pub(super) fn new(
        contexts: &Arc<[Context]>,
        exports: &Arc<LiveExports>,
        files: Option<&Files>,
    ) -> Self {
        let files = files.map(Files::sizes);
        Self { contexts: contexts.clone(), exports: exports.clone(), files, busy: Mutex::new(()) }
    }

    /// To be held from before the first look at a volume until it is announced: two who do so at once would make a volume
    /// shrink again.
    pub(super) fn alone(&self) -> MutexGuard<'_, ()> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the origin's size up, durably: it may be announced then. `known` is the volume's size, bytes; the same comes
    /// back where nothing was added.
    ///
    /// # Errors
    /// Why not: the origin was cut, cannot be reached, belongs to another host. What was done before an error does no harm,
    /// and is gone on with by the next call or the next start.
    pub(super) fn adopt_size(&self, volume: usize, known: u64) -> Result<u64, String> {
        let context = &self.contexts[volume];
        let name = context.origin.identity().map_err(|error| error.to_string())?.name;
        let redo = context.redo.as_ref();
        // No group is under way while this is held: a group counts on one size.
        let mut redo = redo.map(|redo| redo.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(redo) = &mut redo {
            redo.settle().map_err(|error| format!("the redo store of {name}: {error}"))?;
        }
        let size = context.origin.take_up_growth().map_err(|error| error.to_string())?;
        if size == known {
            return Ok(size);
        }
        if let Some(redo) = &mut redo {
            redo.set_origin_bytes(size);
            redo.settle().map_err(|error| format!("the redo store of {name}: {error}"))?;
        }
        drop(redo);
        let origin = OriginId { volume_bytes: size, ..context.cache.superblock().origin };
        context.cache.set_origin(origin).map_err(|error| format!("the cache: {error}"))?;
        Ok(size)
    }

    /// Clients that connect, and whoever has the volume's file open, see the new size from now on. To be called once the
    /// volume itself has it.
    pub(super) fn announce(&self, volume: usize, size: u64) {
        self.exports.set_size(volume, size);
        if let Some(files) = &self.files {
            files.set(volume, size);
        }
    }
}
