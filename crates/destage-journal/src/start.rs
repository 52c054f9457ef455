//! Making a new journal, or taking up one that was found.

use crate::disk::Disk;
use crate::error::Error;
use crate::flush::Writer;
use crate::format::SECTOR;
use crate::journal::first_header;
use crate::options::Options;
use crate::recover::{Recovery, Scan, read_header, settle};
use crate::store::{FileKind, NEW_NAME, Segment, Stamps, Store, segment_name, survey};
use crate::summary::Builder;
use crate::upkeep::{Upkeep, Worker};
use std::collections::VecDeque;
use std::sync::Arc;

/// A journal ready to be written.
pub(crate) struct Begun {
    pub(crate) writer: Writer,
    pub(crate) worker: Option<Worker>,
    pub(crate) recovery: Recovery,
}

/// A new journal. Its first segment gets its name only when its header is durable, so a first segment without one is
/// always damage.
pub(crate) fn create(disk: Arc<dyn Disk>, options: &Options) -> Result<Begun, Error> {
    let uuid = options.uuid.unwrap_or_else(|| uuid::Uuid::new_v4().into_bytes());
    let store = Arc::new(Store::new(disk.clone(), uuid, options));
    let spares = tidy(&*disk, options, &[])?.1;
    let catalog: Arc<[u8]> = Arc::from(options.catalog.as_slice());
    // A record may take half a segment, so a small first one must at least hold the catalog; others wait for the second.
    let small = FIRST_SEGMENT_BYTES.max(Options::SEGMENT_BYTES_MIN + catalog.len() as u64 * 2);
    let bytes = options.segment_bytes.min(small.next_multiple_of(crate::format::PAGE as u64));
    let header = first_header(uuid, bytes, &catalog);
    store.fill(NEW_NAME, bytes, &header.encode(&catalog))?;
    store.name(NEW_NAME, 1)?;
    store.adopt_files(None, spares);
    let segment = Segment {
        number: 1,
        file_bytes: bytes,
        first_lsn: 1,
        next_lsn: 1,
        stamps: Stamps::default(),
        end: header.data_start(),
        summary: None,
    };
    let recovery = Recovery {
        first_lsn: 1,
        last_lsn: 0,
        torn: None,
        clean_shutdown: true,
        segments: 0,
        created: true,
        disk,
        summarise: options.summarise,
        index: VecDeque::new(),
    };
    let summary = Builder::new(options.summarise);
    let position = Position { incarnation: 1, sequence: 1, next_lsn: 1, catalog, summary };
    begin(store, options, VecDeque::from([segment]), position, recovery)
}

/// Goes on where the journal that was found ends, as the next incarnation.
pub(crate) fn resume(disk: Arc<dyn Disk>, scan: Scan, options: &Options) -> Result<Begun, Error> {
    let store = Arc::new(Store::new(disk.clone(), scan.uuid, options));
    let last = scan.segments.back().expect("a scan has a segment");
    let (prepared, spares) = tidy(&*disk, options, &scan.ready)?;
    store.adopt_files(prepared, spares);
    let name = segment_name(last.number);
    disk.open(&name, false)
        .and_then(|file| settle(&*file, &scan.unproven, scan.torn))
        .map_err(|e| Error::io(format_args!("make {name} durable"), e))?;
    if let Some(torn) = scan.torn() {
        tracing::warn!(at = %torn.at, bytes = torn.bytes, "cut the journal's torn tail");
    }
    let held = |s: &&Segment| s.next_lsn > s.first_lsn;
    let last_lsn = scan.chain.next_lsn - 1;
    let recovery = Recovery {
        first_lsn: scan.segments.iter().find(held).map_or(last_lsn + 1, |s| s.first_lsn),
        last_lsn,
        torn: scan.torn(),
        clean_shutdown: scan.clean,
        segments: scan.segments.iter().filter(held).count(),
        created: false,
        disk,
        summarise: options.summarise,
        index: scan.segments.clone(),
    };
    let position = Position {
        incarnation: scan.chain.incarnation + 1,
        sequence: scan.chain.sequence,
        next_lsn: scan.chain.next_lsn,
        catalog: scan.catalog,
        summary: scan.summary,
    };
    begin(store, options, scan.segments, position, recovery)
}

struct Position {
    incarnation: u64,
    sequence: u64,
    next_lsn: u64,
    catalog: Arc<[u8]>,
    /// Of what the last segment holds already.
    summary: Builder,
}

/// Opens the last segment for writing and leaves the new incarnation's first mark there: from then on, nothing that an
/// earlier incarnation left behind can follow.
fn begin(
    store: Arc<Store>,
    options: &Options,
    segments: VecDeque<Segment>,
    position: Position,
    recovery: Recovery,
) -> Result<Begun, Error> {
    let last = segments.back().expect("there is a segment to write").clone();
    let name = segment_name(last.number);
    let file = store.disk.open(&name, false);
    let file = Arc::from(file.map_err(|e| Error::io(format_args!("open {name}"), e))?);
    store.index().segments = segments;
    let (upkeep, worker) = if options.background {
        let started = Upkeep::background(store.clone());
        let (upkeep, worker) = started.map_err(|e| Error::io("start the upkeep thread", e))?;
        (upkeep, Some(worker))
    } else {
        (Upkeep::inline(store.clone()), None)
    };
    let mut writer = Writer {
        store,
        upkeep,
        file,
        number: last.number,
        capacity: last.file_bytes,
        offset: last.end,
        incarnation: position.incarnation,
        sequence: position.sequence,
        next_lsn: position.next_lsn,
        durable: position.next_lsn - 1,
        marked: 0,
        unsynced: false,
        catalog: position.catalog,
        writes: 0,
        summary: position.summary,
        written: Vec::new(),
    };
    writer.mark(0)?;
    writer.upkeep.restock();
    writer.upkeep.prepare(writer.number + 1);
    Ok(Begun { writer, worker, recovery })
}

/// Removes leftovers and files of another size. Returns the prepared segment and the spares that can be used.
fn tidy(
    disk: &dyn Disk,
    options: &Options,
    ready: &[u64],
) -> Result<(Option<u64>, Vec<String>), Error> {
    let (mut prepared, mut spares) = (None, Vec::new());
    let mut try_tidy = || {
        let fits = |name: &str| {
            std::io::Result::Ok(disk.open(name, false)?.len()? == options.segment_bytes)
        };
        // From the highest on, so that no gap appears.
        for (i, &number) in ready.iter().enumerate().rev() {
            let name = segment_name(number);
            if i == 0 && fits(&name)? {
                forget_header(disk, number).map_err(std::io::Error::other)?;
                prepared = Some(number);
            } else {
                disk.remove(&name)?;
                disk.sync_dir()?;
            }
        }
        for (kind, name) in survey(disk).map_err(std::io::Error::other)? {
            match kind {
                FileKind::Spare(_) if fits(&name)? => spares.push(name),
                FileKind::Spare(_) | FileKind::New => disk.remove(&name)?,
                FileKind::Segment(_) | FileKind::Other => {}
            }
        }
        disk.sync_dir()
    };
    try_tidy().map_err(|e| Error::io("tidy the journal's directory", e))?;
    Ok((prepared, spares))
}

/// A crash may leave the header of a segment whole that was half begun. With the catalog of a later beginning, whose header
/// another crash kept away, it would end the segment before it too early. So it goes before anything is written there.
fn forget_header(disk: &dyn Disk, number: u64) -> Result<(), Error> {
    if read_header(disk, number)?.is_none_or(|head| head.number != number) {
        return Ok(());
    }
    let name = segment_name(number);
    let forgotten = disk.open(&name, false).and_then(|file| {
        file.write_at(0, &[0; SECTOR])?;
        file.sync_data()
    });
    forgotten.map_err(|e| Error::io(format_args!("make {name} ready again"), e))
}

/// Small, because its zeros are written while the first start waits.
const FIRST_SEGMENT_BYTES: u64 = 1 << 20;
