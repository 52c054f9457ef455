//! The recording that `docs/FORMAT.md` shows is what this build writes.

use destage_core::replace::spread;
use destage_core::{ClientId, Core, Input, Intent, Lsn, Policy, RequestId, Span, Time, UnitId};
use destage_record::{Asked, RecordSettings, RecordedCore, What, list};
use std::fmt::Write;

/// A read of a part of a block that is fetched.
fn written() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("it works");
    let settings = RecordSettings {
        path: folder.path().join("run"),
        bytes_max: RecordSettings::BYTES_DEFAULT,
        is_anonymous: false,
    };
    let began = Time(1_700_000_000_000_000_000);
    let mut core = RecordedCore::from(Core::new(began, Policy::default()));
    core.record(&settings, "0.1.0", "block").expect("it works");
    let poll = |core: &mut RecordedCore| while core.poll_effect().is_some() {};
    let (request, unit) = (RequestId(300), UnitId(3));
    core.ask(began, Asked { what: What::Read, offset: 40_960, bytes: 512 });
    core.name(began, unit, || spread(10));
    core.handle(began, Input::Access { request, intent: Intent::Read, units: &[unit] });
    poll(&mut core);
    let now = began + Span::from_millis(1);
    core.handle(now, Input::Fetched { unit, result: Ok(4_096), identity: spread(10) });
    core.poll_effect();
    let client = ClientId(9);
    core.handle(now, Input::Respond { client, lsn: Lsn::ZERO, wrote: false });
    poll(&mut core);
    drop(core);
    let path = list(&settings.path).expect("it works").remove(0);
    std::fs::read(path).expect("it works")
}

/// The file without the frames of the state, whose form is that of the version.
fn without_state(file: &[u8]) -> Vec<u8> {
    let mut out = file[..10].to_vec();
    let mut at = 10;
    while at < file.len() {
        let len = u32::from_le_bytes(file[at + 1..at + 5].try_into().expect("it works")) as usize;
        let end = at + 9 + len;
        if file[at] != 2 {
            out.extend(&file[at..end]);
        }
        at = end;
    }
    out
}

fn shown(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (row, bytes) in bytes.chunks(16).enumerate() {
        write!(out, "{:06x} ", row * 16).expect("it works");
        bytes.iter().for_each(|byte| write!(out, " {byte:02x}").expect("it works"));
        out.push('\n');
    }
    out
}

#[test]
fn the_documented_recording_is_what_is_written() {
    let document = include_str!("../../../docs/FORMAT.md");
    let section = document.split("\n## Recording\n").nth(1).expect("the section is there");
    let documented =
        section.split("```hexdump\n").nth(1).expect("it works").split("```").next().unwrap();
    let shown = shown(&without_state(&written()));
    assert!(shown == documented, "this build writes\n{shown}");
}
