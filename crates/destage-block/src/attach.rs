//! Who writes to an origin, and whether someone else did meanwhile.
//!
//! The attach record stands in the redo store: which cache writes to the origin, from which host, how often that changed.
//! Each attachment counts one more, and the record is read again before every atomic group, so that of two hosts at one
//! origin at least the earlier one stops. The cache notes the same numbers, so that an older copy of either is told. A host
//! that lost contact after that look may still write: only the store's own reservations can prevent that.
//!
//! Beside it stands the *evidence*: what the origin looked like when it was last known. [`examine`] compares it with what is
//! there now and says how far that goes; a change elsewhere that leaves all of this alone is not found.

use crate::block::{BLOCK, Lba};
use crate::cache::Attachment;
use crate::compare::differing;
use crate::origin::{Origin, OriginIoError, OriginIoErrorKind};
use crate::redo::{AttachRecord, Evidence, RedoError, RedoStore};
use crc32c::crc32c;
use destage_core::Lsn;

/// The name of this host.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "unknown".to_owned() } else { name.trim().to_owned() }
}

/// Who wants to write to an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// UUID of the cache.
    pub cache: [u8; 16],
    /// Name of this host.
    pub host: String,
    /// Wall clock, ns since 1970.
    pub now_ns: u64,
    /// Take the origin from another cache that has not detached, whatever it still holds.
    pub take_over: bool,
    /// The highest attachment that the cache knows of: the new one is higher, even where the record is an older copy.
    pub known: u64,
}

/// What [`examine`] compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachReport {
    /// Who was attached last.
    pub previous: AttachRecord,
    /// What was compared and is the same, in words.
    pub checked: Vec<String>,
    /// What differs, in words: someone else has changed the origin.
    pub differs: Vec<String>,
    /// What could not be compared, and why.
    pub unchecked: Vec<String>,
    /// The origin is larger than it was: its size then and now, bytes. No difference: what it held is compared all the same.
    pub grown: Option<(u64, u64)>,
}

impl AttachReport {
    /// Whether nothing that was compared differs.
    pub fn is_unchanged(&self) -> bool {
        self.differs.is_empty()
    }
}

/// What the cache knows of its own writes.
pub struct OwnWrites<'a> {
    /// The origin holds everything up to here.
    pub decided: Lsn,
    /// Whether a block was written after that, so that it may or may not be at the origin.
    pub is_undecided: &'a dyn Fn(Lba) -> bool,
}

/// Compares an origin with the evidence that was left about it. To be called before [`attach`], [`RedoStore::recover`] and
/// any write. `own` is what the same cache knows of its writes; without it less can be compared after a crash.
///
/// # Errors
/// As the origin and the store report them.
pub fn examine(
    store: &RedoStore,
    origin: &dyn Origin,
    own: Option<&OwnWrites<'_>>,
) -> Result<AttachReport, RedoError> {
    let previous = store.attachment().clone();
    let mut report = AttachReport { previous, ..AttachReport::default() };
    let size = origin.size();
    match store.origin_bytes() {
        then if then < size => report.grown = Some((then, size)),
        then => report.compare("size", &then.to_string(), &size.to_string()),
    }
    let Some(evidence) = store.read_evidence()? else {
        report.skip("identity, time of change and blocks", "no evidence was left");
        return Ok(report);
    };
    let identity = origin.identity()?;
    let store_now = Evidence::cut_store(&identity.store);
    report.compare("identity", &evidence.store, store_now);
    report.compare_clean(&evidence, origin, identity.modified_ns)?;
    if report.is_unchanged() || evidence.origin_bytes == size {
        report.compare_blocks(&evidence, store, origin, own)?;
    }
    Ok(report)
}

impl AttachReport {
    fn compare(&mut self, what: &str, then: &str, now: &str) {
        if then == now {
            self.checked.push(format!("{what}: {now}"))
        } else {
            self.differs.push(format!("{what}: was {then}, is {now}"))
        }
    }

    fn skip(&mut self, what: &str, why: &str) {
        self.unchecked.push(format!("{what}: {why}"));
    }

    /// What holds only if nothing was written since the evidence was left.
    fn compare_clean(
        &mut self,
        evidence: &Evidence,
        origin: &dyn Origin,
        modified_ns: Option<u64>,
    ) -> Result<(), OriginIoError> {
        if self.previous.attached || !evidence.is_clean {
            self.skip(
                "time of change, first and last MiB",
                "the cache did not detach, so its own writes may have come later",
            );
            return Ok(());
        }
        match (evidence.modified_ns, modified_ns) {
            _ if self.grown.is_some() => self.skip("time of change", "the origin has grown"),
            (Some(then), Some(now)) => {
                self.compare("time of change (ns since 1970)", &then.to_string(), &now.to_string());
            }
            _ => self.skip("time of change", "the origin does not tell"),
        }
        if let Some((first, last)) = evidence.edges
            && (evidence.origin_bytes == origin.size() || self.grown.is_some())
        {
            let (first_now, last_now) = edges(origin, evidence.origin_bytes)?;
            self.compare("checksum of the first MiB", &hex(first), &hex(first_now));
            self.compare("checksum of the last MiB", &hex(last), &hex(last_now));
        }
        Ok(())
    }

    fn compare_blocks(
        &mut self,
        evidence: &Evidence,
        store: &RedoStore,
        origin: &dyn Origin,
        own: Option<&OwnWrites<'_>>,
    ) -> Result<(), RedoError> {
        let count = evidence.blocks.len();
        let what = format!("the {count} blocks destaged last");
        let is_clean = evidence.is_clean && !self.previous.attached;
        if count == 0 {
            self.skip("blocks destaged last", "there are none");
            return Ok(());
        }
        if !is_clean && own.is_none_or(|own| own.decided > evidence.upto) {
            self.skip(&what, "later writes of the cache itself may have changed them");
            return Ok(());
        }
        let pending = store.pending_extents()?;
        let is_pending = |lba: Lba| pending.iter().any(|e| e.first <= lba && lba < e.end());
        let is_excused =
            |lba: Lba| is_pending(lba) || own.is_some_and(|own| (own.is_undecided)(lba));
        let blocks = evidence.blocks.iter().filter(|(lba, _)| !is_excused(*lba));
        let blocks: Vec<(Lba, u32)> = blocks.copied().collect();
        let compared = blocks.len();
        let wrong = differing(origin, &blocks)?;
        if compared < count {
            self.skip(
                &format!("{} of {what}", count - compared),
                "later writes of the cache are under way to them",
            );
        }
        match wrong.first() {
            None => self.checked.push(format!("checksums of {compared} of {what}")),
            Some(first) => self.differs.push(format!(
                "{} of {what} hold other bytes, the first at block {}",
                wrong.len(),
                first.0
            )),
        }
        Ok(())
    }
}

/// Writes the attach record with the next generation. From then on an earlier attachment is fenced. To be called between
/// [`examine`] and [`RedoStore::recover`], so that nobody else is in the middle of a group when that is finished. For
/// another cache than the last one, [`RedoStore::done`] is [`Lsn::ZERO`] from now on: it numbers its writes anew.
///
/// # Errors
/// `Denied` if another cache is attached and `take_over` is not set; as the store reports them.
pub fn attach(
    store: &mut RedoStore,
    origin: &dyn Origin,
    claim: &Claim,
) -> Result<AttachRecord, RedoError> {
    // Whoever came between opening the store and now counts as well.
    store.check_fence()?;
    let previous = store.attachment();
    if previous.attached && previous.cache != claim.cache && !claim.take_over {
        let message = format!(
            "the origin belongs to another cache, attached from host \"{}\" (attachment {}) and never detached: what it \
             still holds would be lost; start it and let it destage, or take the origin over",
            previous.host, previous.generation
        );
        return Err(OriginIoError::new(OriginIoErrorKind::Denied, message).into());
    }
    let was_clean = previous.generation > 0 && !previous.attached;
    let is_another = previous.generation > 0 && previous.cache != claim.cache;
    let record = AttachRecord {
        cache: claim.cache,
        generation: next_generation(store, claim.known),
        since_ns: claim.now_ns,
        host: AttachRecord::cut_host(&claim.host).to_owned(),
        attached: true,
    };
    let left = if was_clean { store.read_evidence()? } else { None };
    if is_another {
        // Its Lsns are another log's: they say nothing of what this one's writes have changed.
        void_upto(store, origin, Lsn::ZERO)?;
    }
    let blocks = left.iter().flat_map(|evidence| &evidence.blocks);
    blocks.for_each(|&(lba, crc)| store.recent.push(lba, crc));
    store.set_attachment(record.clone())?;
    // Had two hosts done so at once, one of them finds the other one's record here.
    store.check_fence()?;
    Ok(record)
}

/// Which of two records of the same attachments is an older copy of itself, such as a backup or a snapshot brings back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WentBack {
    /// The cache: it has been attached since what it knows of.
    Cache {
        /// The last attachment that the copy knows of.
        knows: u64,
        /// The last attachment in the record at the origin.
        recorded: u64,
    },
    /// The record at the origin, and perhaps the origin with it.
    Record {
        /// The last attachment that the cache knows of.
        knows: u64,
        /// The last attachment in the record.
        recorded: u64,
    },
}

/// Compares what a cache knows of its own attachments with the record at the origin. An older copy from within the last
/// attachment is not told: its number is the same.
pub fn went_back(record: &AttachRecord, cache: &[u8; 16], known: Attachment) -> Option<WentBack> {
    let recorded = record.generation;
    if recorded < known.made {
        return Some(WentBack::Record { knows: known.made, recorded });
    }
    let is_known = known.begun > 0 && record.cache == *cache;
    let knows = known.begun;
    (is_known && recorded > knows).then_some(WentBack::Cache { knows, recorded })
}

/// The number of the attachment that comes next, for a cache that knows of attachments up to `known`.
pub fn next_generation(store: &RedoStore, known: u64) -> u64 {
    store.attachment().generation.max(known) + 1
}

/// Leaves evidence of what the origin looks like, while everything goes on: for who writes past the store, after
/// [`RedoStore::note_destaged`] and [`RedoStore::note_zeroed`]. Costs one write; durable by the next flush of the store.
/// `upto`: the origin holds everything up to here.
///
/// # Errors
/// As the origin and the store report them.
pub fn leave_evidence(
    store: &mut RedoStore,
    origin: &dyn Origin,
    upto: Lsn,
) -> Result<(), RedoError> {
    let evidence = evidence(store, origin, upto, None)?;
    store.write_evidence(&evidence)
}

/// Blocks are written from now on of which neither the store nor the log knows: what was noted of the origin's blocks no
/// longer counts, durably. Free after the first time, until evidence is left again.
///
/// # Errors
/// As the origin and the store report them.
pub fn void_evidence(store: &mut RedoStore, origin: &dyn Origin) -> Result<(), RedoError> {
    if store.is_evidence_void {
        return Ok(());
    }
    let upto = store.evidence_upto()?.unwrap_or_default();
    void_upto(store, origin, upto)
}

/// Writes from `from` on are sent to the origin. If some of them, and later ones, were there already, as after a crash, a
/// block may be older again for a while than what was noted of it: that does not count any longer, durably. Else free.
///
/// # Errors
/// As the origin and the store report them.
pub fn void_evidence_from(
    store: &mut RedoStore,
    origin: &dyn Origin,
    from: Lsn,
) -> Result<(), RedoError> {
    if from > store.evidence_reach()? {
        return Ok(());
    }
    void_evidence(store, origin)
}

/// Forgets what was noted of blocks, durably; `upto` is a number of the log that writes from now on.
pub(crate) fn void_upto(
    store: &mut RedoStore,
    origin: &dyn Origin,
    upto: Lsn,
) -> Result<(), RedoError> {
    store.forget_recent();
    let evidence = evidence(store, origin, upto, None)?;
    store.void_evidence(&evidence)
}

/// Ends an attachment: everything is at the origin and flushed, nothing is written from now on.
///
/// # Errors
/// `Fenced` if another one has taken over; as the origin and the store report them.
pub fn detach(store: &mut RedoStore, origin: &dyn Origin, upto: Lsn) -> Result<(), RedoError> {
    store.check_fence()?;
    store.settle()?;
    let evidence = evidence(store, origin, upto, Some(edges(origin, origin.size())?))?;
    store.write_evidence(&evidence)?;
    let record = AttachRecord { attached: false, ..store.attachment().clone() };
    store.set_attachment(record)
}

fn evidence(
    store: &RedoStore,
    origin: &dyn Origin,
    upto: Lsn,
    edges: Option<(u32, u32)>,
) -> Result<Evidence, RedoError> {
    let identity = origin.identity()?;
    Ok(Evidence {
        sequence: 0,
        upto,
        origin_bytes: origin.size(),
        modified_ns: identity.modified_ns,
        is_clean: edges.is_some(),
        edges,
        store: Evidence::cut_store(&identity.store).to_owned(),
        blocks: store.recent.iter().collect(),
    })
}

/// Checksums of the first and the last MiB of so many bytes, or of all if there are fewer.
fn edges(origin: &dyn Origin, size: u64) -> Result<(u32, u32), OriginIoError> {
    let last = size.saturating_sub(EDGE_BYTES) / BLOCK as u64 * BLOCK as u64;
    Ok((sum(origin, 0, size.min(EDGE_BYTES))?, sum(origin, last, size - last)?))
}

fn sum(origin: &dyn Origin, offset: u64, len: u64) -> Result<u32, OriginIoError> {
    let mut buf = vec![0; len as usize];
    origin.read(offset, &mut buf)?;
    Ok(crc32c(&buf))
}

fn hex(crc: u32) -> String {
    format!("{crc:08x}")
}

const EDGE_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests;
