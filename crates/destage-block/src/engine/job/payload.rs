//! The blocks of a part, for the redo store that makes them an atomic group.

use super::destage::{Failure, Part, Target, read};
use crate::block::{BLOCK, Extent, Lba};
use crate::cache::CacheDevice;
use crate::origin::{OriginIoError, OriginIoErrorKind};
use crate::redo::{Payload, RedoError};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
pub(super) struct PartBytes<'a> {
    targets: &'a [Target],
    cache: &'a CacheDevice,
    /// Why the bytes could not be read. The redo store only tells that they could not.
    failure: OnceLock<Failure>,
    known: AtomicU64,
    unknown: AtomicU64,
}

/// Where atomic groups learned what their blocks were before, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct PreImageRead {
    /// From the cache.
    pub(in super::super) cached: u64,
    /// From the origin.
    pub(in super::super) fetched: u64,
}

impl<'a> PartBytes<'a> {
    /// Of a part of the volume with this cache.
    pub(super) fn of(part: &'a Part, cache: &'a CacheDevice) -> Self {
        Self {
            targets: &part.targets,
            cache,
            failure: OnceLock::new(),
            known: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        }
    }

    /// Whether the bytes could not be read.
    pub(super) fn is_unread(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Why the redo store did not apply them: the bytes themselves, or what the store says.
    pub(super) fn why(&self, error: RedoError) -> Failure {
        self.failure.get().cloned().unwrap_or_else(|| error.into())
    }

    pub(super) fn before_read(&self) -> PreImageRead {
        PreImageRead {
            cached: self.known.load(Ordering::Relaxed),
            fetched: self.unknown.load(Ordering::Relaxed),
        }
    }

    fn read_slots(&self, extent: Extent, buf: &mut [u8]) -> bool {
        if extent.blocks > SLOTS_READ_MAX {
            return false;
        }
        let start = self.targets.partition_point(|target| target.extent.first < extent.first);
        let Some(targets) = self.targets.get(start..start + extent.blocks as usize) else {
            return false;
        };
        targets.iter().zip(buf.chunks_mut(BLOCK)).all(|(target, block)| {
            let slot = target.unit.zip(target.before);
            slot.is_some_and(|(unit, crc)| {
                self.cache.read_slot(unit.0, crc, block).unwrap_or(false)
            })
        })
    }
}

impl Payload for PartBytes<'_> {
    /// The blocks from `first` on, all of them among the targets.
    fn fill(&self, first: Lba, buf: &mut [u8]) -> Result<(), OriginIoError> {
        let start = self.targets.partition_point(|target| target.extent.first < first);
        for (target, block) in self.targets[start..].iter().zip(buf.chunks_mut(BLOCK)) {
            let bytes = read(target).map_err(|failure| {
                let error =
                    OriginIoError::new(OriginIoErrorKind::Unavailable, failure.message.clone());
                // The first failure ends the attempt.
                let _ = self.failure.set(failure);
                error
            })?;
            block.copy_from_slice(&bytes[..block.len()]);
        }
        Ok(())
    }

    fn before(&self, extent: Extent, buf: &mut [u8]) -> bool {
        let is_known = self.read_slots(extent, buf);
        let counter = if is_known { &self.known } else { &self.unknown };
        counter.fetch_add(u64::from(extent.blocks), Ordering::Relaxed);
        is_known
    }
}

/// Above this the origin is asked: a long request costs it hardly more than a short one, and the cache one read a block.
const SLOTS_READ_MAX: u32 = 32;
