//! Recordings of live runs, read as traces: see [`crate::replay`].

use super::{Format, Raw, TraceError};
use crate::machine::Devices;
use crate::replay::{RecordedRun, ReplayError, Watched, is_of_volume, replay};
use destage_core::Span;
use destage_record::{Part, list};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What a part of a recording begins with.
const MAGIC: &[u8; 8] = b"DSTGREC1";
/// What stands before the name of a volume.
const VOLUME: &str = "block volume ";

/// Whether the file begins as a part of a recording does. What can be read only once is none.
pub(super) fn is_part(path: &Path) -> bool {
    let mut head = [0; MAGIC.len()];
    let mut begins = || -> std::io::Result<bool> {
        File::open(path)?.read_exact(&mut head)?;
        Ok(head == *MAGIC)
    };
    path.is_file() && begins().unwrap_or(false)
}

/// Whether there is no such file, but parts of a recording of that name.
pub(super) fn has_parts(path: &Path) -> bool {
    !path.exists() && path.as_os_str() != "-" && list(path).is_ok()
}

/// What a recording holds.
pub(super) struct Recorded {
    /// The requests of the newest stretch of parts without a gap.
    pub(super) requests: Vec<Raw>,
    /// What is to be known of them.
    pub(super) note: Option<String>,
    /// How slow devices were.
    pub(super) devices: Option<Devices>,
    /// What became of the requests.
    pub(super) run: Option<RecordedRun>,
    /// The name of the volume, if it is of one that has a name.
    pub(super) volume: Option<String>,
}

/// Reads all of it. What became of the requests is not counted for `warmup` from the first one on.
pub(super) fn read(path: &Path, warmup: Span) -> Result<Recorded, TraceError> {
    let name = path.display().to_string();
    let wrong = |reason: String| TraceError::Format {
        name: name.clone(),
        format: Format::Recording,
        reason: reason.into(),
    };
    let parts = list(path).map_err(|error| wrong(error.to_string()))?;
    let mut watched = Watched::new(warmup);
    let (mut is_volume, mut volume, mut last) = (false, None, None);
    let (mut notes, mut is_begun) = (Vec::new(), false);
    for path in parts {
        let name = path.display().to_string();
        let content =
            std::fs::read(&path).map_err(|error| TraceError::Open { name: name.clone(), error })?;
        let part = Part::read_begun(content, env!("CARGO_PKG_VERSION"));
        let part = part.map_err(|error| wrong(error.to_string()))?;
        let Some(part) = part else {
            notes
                .push(format!("{name} is left out: the recording broke off before it began there"));
            last = None;
            continue;
        };
        is_begun = true;
        let begin = &part.begin;
        let follows = last == Some((begin.run, begin.part.wrapping_sub(1)));
        if !follows || begin.after_gap {
            watched = Watched::new(warmup);
        }
        last = Some((begin.run, begin.part));
        is_volume = is_of_volume(&begin.subject);
        volume = begin.subject.strip_prefix(VOLUME).map(str::to_owned);
        watched.note_subject(&begin.subject);
        replay(&part, &mut watched).map_err(|error: ReplayError| wrong(error.to_string()))?;
    }
    if !is_begun {
        return Err(wrong("nothing was recorded: it broke off before it began".into()));
    }
    let (load, run) = watched.into_run();
    let (all, known) = load.known();
    let what = if is_volume { "blocks" } else { "rows" };
    notes.extend((known < all && !load.tells_places()).then(|| {
        format!(
            "of {all} {what} the recording tells where {known} are; the others were neither fetched nor evicted meanwhile, and count \
             as apart from all others"
        )
    }));
    let note = (!notes.is_empty()).then(|| notes.join("; "));
    let raw = |request: crate::trace::Request| Raw {
        time_ns: request.time.0,
        op: request.op,
        extent: request.extent,
        host: request.host,
        thread: request.thread,
    };
    let requests = load.trace(is_volume).into_iter().map(raw).collect();
    let devices = load.devices();
    Ok(Recorded { requests, note, devices, run, volume })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Extent;
    use destage_core::replace::spread;
    use destage_core::{Core, Input, Intent, Policy, RequestId, Time, UnitId};
    use destage_record::{Asked, RecordSettings, RecordedCore, What};

    #[test]
    fn parts_that_were_not_begun_are_left_out_and_told() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes_max) = (folder.path().join("run"), RecordSettings::BYTES_MIN);
        let part = |number: u32| folder.path().join(format!("run.{number}"));
        let reads = || read(&path, Span::ZERO);
        std::fs::write(part(1), []).unwrap();
        assert!(reads().is_err_and(|error| error.to_string().contains("nothing was recorded")));
        let mut core = RecordedCore::from(Core::new(Time::ZERO, Policy::default()));
        let settings = RecordSettings { path: path.clone(), bytes_max, is_anonymous: false };
        core.record(&settings, env!("CARGO_PKG_VERSION"), "serve").unwrap();
        core.handle(Time::from_secs(1), Input::Tick);
        drop(core);
        let whole = std::fs::read(part(2)).unwrap();
        std::fs::write(part(3), &whole[..60]).unwrap();
        let recorded = reads().unwrap();
        assert!(recorded.run.is_some());
        let note = recorded.note.unwrap_or_default();
        assert!(note.contains("run.1 is left out") && note.contains("run.3 is left out"), "{note}");
        // The control: damage is no end.
        let mut bad = whole;
        bad[30] ^= 1;
        std::fs::write(part(3), bad).unwrap();
        assert!(reads().is_err());
    }

    #[test]
    fn a_recording_of_the_format_before_has_blocks_and_tells_how_many_places_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes_max) = (folder.path().join("run"), RecordSettings::BYTES_MIN);
        let part = folder.path().join("run.1");
        let record = |tells: bool| {
            let _ = std::fs::remove_file(&part);
            let mut core = RecordedCore::from(Core::new(Time::ZERO, Policy::default()));
            let settings = RecordSettings { path: path.clone(), bytes_max, is_anonymous: false };
            core.record(&settings, env!("CARGO_PKG_VERSION"), "block").unwrap();
            let (now, unit) = (Time::from_secs(1), UnitId(0));
            if tells {
                core.ask(now, Asked { what: What::Read, offset: 9 * 4_096 + 512, bytes: 512 });
                core.name(now, unit, || spread(9));
            }
            let (request, intent) = (RequestId(1), Intent::Read);
            core.handle(now, Input::Access { request, intent, units: &[unit] });
        };
        let extent = |recorded: &Recorded| recorded.requests.first().map(|it| it.extent);
        record(false);
        // Without what it has more, a recording is one of the version before.
        let mut older = std::fs::read(&part).unwrap();
        older[8] = 1;
        std::fs::write(&part, older).unwrap();
        let recorded = read(&path, Span::ZERO).unwrap();
        assert_eq!(extent(&recorded), Some(Extent::Range { device: 1, offset: 0, bytes: 4_096 }));
        assert!(
            recorded.note.unwrap_or_default().contains("of 1 blocks the recording tells where 0")
        );
        record(true);
        let recorded = read(&path, Span::ZERO).unwrap();
        assert_eq!(
            extent(&recorded),
            Some(Extent::Range { device: 0, offset: 9 * 4_096 + 512, bytes: 512 })
        );
        assert_eq!((recorded.requests.len(), recorded.note), (1, None));
    }
}
