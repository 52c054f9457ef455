//! The media of a simulated host and its origin, on one disk that loses power as one.

use super::choice::Choice;
use crate::attach::{self, OwnWrites};
use crate::block::BLOCK;
use crate::cache::{CacheDevice, Creation, OriginId, Sizing};
use crate::engine::{Context, Logged, Parts, Volume};
use crate::redo::{NewStore, RedoError, RedoStore};
use crate::testing::SimOrigin;
use destage_core::{Lsn, Time};
use destage_journal::{Disk, Journal, Options, Recovery};
use destage_testkit::SimDisk;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Debug)]
pub(super) struct World {
    pub(super) disk: SimDisk,
    pub(super) origin: SimOrigin,
    redo: SimOrigin,
    /// Bytes of the volume: no multiple of a block.
    pub(super) size: u64,
    cache: String,
    cache_bytes: u64,
    log_bytes: u64,
    /// How often the blocks destaged last were found unchanged at a start.
    pub(super) compared: AtomicU64,
}

/// Bytes in a sector, as the checks see the volume.
pub(super) const SECTOR: usize = 512;
/// What the last block lacks.
const CUT: u64 = 3 * SECTOR as u64;
const REDO_BYTES: u64 = 2 << 20;

impl World {
    pub(super) fn new(choice: &Choice) -> Self {
        let disk = SimDisk::new();
        disk.set_unsafe_no_rewrites(choice.unsafe_no_rewrites);
        Self::named(disk, "", 7, choice)
    }

    /// One of several volumes on a disk.
    pub(super) fn named(disk: SimDisk, name: &str, uuid: u8, choice: &Choice) -> Self {
        let size = choice.blocks * BLOCK as u64 - CUT;
        let cache_bytes = choice.log_bytes + choice.slots * (BLOCK as u64 + 16) + (192 << 10);
        let origin = SimOrigin::new(&disk, &format!("origin{name}"), size);
        let redo = SimOrigin::new(&disk, &format!("redo{name}"), REDO_BYTES);
        let (cache, log_bytes) = (format!("cache{name}"), choice.log_bytes);
        let compared = AtomicU64::new(0);
        let world = Self { disk, origin, redo, size, cache, cache_bytes, log_bytes, compared };
        world.origin.edit(|bytes| {
            for (sector, chunk) in bytes.chunks_mut(SECTOR).enumerate() {
                chunk.copy_from_slice(&sector_bytes(sector as u32 + 1, sector));
            }
        });
        let new = NewStore { uuid: [uuid; 16], origin_bytes: size, overwrite: true };
        RedoStore::create(Arc::new(world.redo.clone()), &new).unwrap();
        world.new_cache();
        world
    }

    fn origin_id(&self) -> OriginId {
        OriginId {
            uuid: uuid::Uuid::from_bytes([1; 16]),
            name: "sim".into(),
            volume_bytes: self.size,
        }
    }

    /// An empty cache device.
    pub(super) fn new_cache(&self) {
        self.disk.edit(&self.cache, |bytes| *bytes = vec![0; self.cache_bytes as usize]);
        let sizing = Sizing {
            total_bytes: self.cache_bytes,
            log_bytes: Some(self.log_bytes),
            segment_bytes: Some(64 << 10),
        };
        let creation =
            Creation { sizing, origin: self.origin_id(), created_ns: 0, overwrite: true };
        let file = self.disk.open(&self.cache, false).unwrap();
        CacheDevice::create(file, &creation).unwrap();
        // Of what another cache wrote, this one's log knows nothing.
        attach::void_upto(&mut self.open_redo(false), &self.origin, Lsn::ZERO).unwrap();
    }

    /// Opens the redo store and, unless told otherwise, replays what it holds.
    pub(super) fn open_redo(&self, replays: bool) -> RedoStore {
        let mut redo = RedoStore::open(Arc::new(self.redo.clone())).unwrap();
        if replays {
            redo.recover(&self.origin, false).unwrap();
        }
        redo
    }

    /// As a replay opens it.
    pub(super) fn redo(&self) -> Result<RedoStore, RedoError> {
        RedoStore::open(Arc::new(self.redo.clone()))
    }

    pub(super) fn open(&self, choice: &Choice, now: Time) -> (Volume, Context) {
        self.open_with(choice, now, None)
    }

    /// The same; `replayed` is the redo store if that is open and replayed already.
    pub(super) fn open_with(
        &self,
        choice: &Choice,
        now: Time,
        replayed: Option<RedoStore>,
    ) -> (Volume, Context) {
        let file = self.disk.open(&self.cache, false).unwrap();
        let cache = Arc::new(CacheDevice::open(file, &self.origin_id()).unwrap());
        let log = Options { background: false, ..cache.log_options() };
        let (journal, recovery) = Journal::open(cache.log(), log).unwrap();
        if choice.has_redo && replayed.is_none() {
            self.examine(&cache, &recovery);
        }
        if choice.has_redo && replayed.is_none() {
            // By which a start recognises an older copy of the redo store: one that is none never looks like it.
            let pending = self.open_redo(false).pending_upto().unwrap();
            assert!(pending.is_none_or(|upto| upto.0 >= cache.decided()), "{pending:?}");
        }
        let redo = replayed.or_else(|| choice.has_redo.then(|| self.open_redo(true)));
        let parts = Parts {
            cache: cache.clone(),
            journal,
            recovery,
            size: self.size,
            policy: choice.policy.clone(),
            options: choice.options.clone(),
            applied: redo.as_ref().map(RedoStore::done),
            atomic_bytes_max: redo.as_ref().map(RedoStore::group_bytes_max),
        };
        let mut volume = Volume::open(parts, now).unwrap();
        volume.set_zero_blocks_max(choice.zero_blocks_max);
        let origin = Arc::new(self.origin.clone());
        let redo = redo.map(|redo| Arc::new(Mutex::new(redo)));
        (volume, Context { cache, origin, redo, turns: Arc::default() })
    }

    /// Nobody else writes to the origin, so a start finds no trace of anybody.
    fn examine(&self, cache: &CacheDevice, recovery: &Recovery) {
        let redo = self.open_redo(false);
        let Some(upto) = redo.evidence_upto().unwrap() else { return };
        let logged = Logged::after(upto, cache, recovery).unwrap();
        let is_undecided = |lba| logged.contains(lba);
        let own = OwnWrites { decided: logged.decided, is_undecided: &is_undecided };
        let found = attach::examine(&redo, &self.origin, Some(&own)).unwrap();
        assert!(found.is_unchanged(), "{found:?}");
        let is_of_blocks = |what: &&String| what.starts_with("checksums");
        let compared = found.checked.iter().filter(is_of_blocks).count();
        self.compared.fetch_add(compared as u64, Ordering::Relaxed);
    }

    /// What each sector of the origin holds.
    pub(super) fn origin_ids(&self) -> Vec<u32> {
        ids(&self.origin.bytes(), 0)
    }
}

/// A sector that says who wrote it; 0 is zeros.
pub(super) fn sector_bytes(id: u32, sector: usize) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if id != 0 {
        let word = (u64::from(id) << 32 | sector as u64).to_le_bytes();
        bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word));
    }
    bytes
}

/// Who wrote each of these sectors, the first of which is `first`.
pub(super) fn ids(bytes: &[u8], first: usize) -> Vec<u32> {
    let id_of = |(index, chunk): (usize, &[u8])| {
        let word = u64::from_le_bytes(chunk[..8].try_into().unwrap());
        let id = (word >> 32) as u32;
        let sector = first + index;
        assert_eq!(
            chunk,
            &sector_bytes(id, sector)[..chunk.len()],
            "sector {sector} is torn or misplaced"
        );
        id
    };
    bytes.chunks(SECTOR).enumerate().map(id_of).collect()
}
