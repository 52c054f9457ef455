//! What a recording tells beside the core's inputs, and what it hides.

use destage_core::replace::spread;
use destage_core::{Core, Effect, Input, Intent, Policy, RequestId, Span, Time, UnitId};
use destage_record::{Asked, Event, Part, RecordSettings, RecordedCore, Scratch, What, list};

const MIB: u64 = 1 << 20;
const VERSION: &str = "1.2.3";
const NOW: Time = Time(1_000_000_000);

fn recorded(is_anonymous: bool, subject: &str, drive: impl FnOnce(&mut RecordedCore)) -> Part {
    let folder = tempfile::tempdir().expect("it works");
    let path = folder.path().join("run");
    let settings = RecordSettings { path, bytes_max: RecordSettings::BYTES_MIN, is_anonymous };
    let mut policy = Policy::default();
    policy.limits.cache_bytes_max = 4 * 4_096;
    let mut core = RecordedCore::from(Core::new(Time::ZERO, policy));
    core.record(&settings, VERSION, subject).expect("it works");
    drive(&mut core);
    drop(core);
    let file = std::fs::read(list(&settings.path).expect("it works").remove(0));
    Part::read(file.expect("it works"), VERSION).expect("it reads back")
}

/// All that was told: ranges, names, and identities that the core heard of.
#[derive(Debug, Default, PartialEq)]
struct Told {
    asked: Vec<(u64, u64)>,
    names: Vec<(u32, u64)>,
    fetched: Vec<u64>,
}

fn told(part: &Part) -> Told {
    let (mut events, mut scratch, mut told) = (part.events(), Scratch::default(), Told::default());
    while let Some(event) = events.next(&mut scratch).expect("it is whole") {
        match event {
            Event::Asked { asked, .. } => told.asked.push((asked.offset, asked.bytes)),
            Event::Named { unit, identity } => told.names.push((unit.0, identity)),
            Event::Input { input: Input::Fetched { identity, .. }, .. } => {
                told.fetched.push(identity);
            }
            _ => {}
        }
    }
    told
}

/// Reads blocks one by one, each through the unit of its number below ten.
fn read(core: &mut RecordedCore, blocks: &[u64]) {
    for (number, &block) in blocks.iter().enumerate() {
        let now = NOW + Span::from_millis(number as u64);
        let unit = UnitId((block % 10) as u32);
        let request = RequestId(number as u64 + 1);
        core.name(now, unit, || spread(block));
        core.handle(now, Input::Access { request, intent: Intent::Read, units: &[unit] });
        while let Some(effect) = core.poll_effect() {
            match effect {
                Effect::Fetch { unit } => {
                    let (result, identity) = (Ok(4_096), spread(block));
                    core.handle(now, Input::Fetched { unit, result, identity });
                }
                Effect::Evict { .. } => core.handle(now, Input::Evicted { identity: 1 }),
                _ => {}
            }
        }
    }
}

#[test]
fn a_unit_is_named_once_in_each_part_and_again_when_it_was_evicted() {
    let part = recorded(false, "block", |core| read(core, &[0, 1, 0, 2, 3, 4, 5, 6, 7, 10]));
    let names = told(&part).names;
    // The room is for four: unit 0 is evicted before it stands for block 10.
    let expected = [0, 1, 2, 3, 4, 5, 6, 7, 10].map(|block| (block as u32 % 10, spread(block)));
    assert_eq!(names, expected);
}

#[test]
fn an_anonymous_recording_tells_the_core_and_the_file_the_same_and_no_address() {
    let drive = |core: &mut RecordedCore| {
        core.ask(NOW, Asked { what: What::Write, offset: MIB - 512, bytes: 1_024 });
        core.ask(NOW, Asked { what: What::Discard, offset: 0, bytes: 1 << 40 });
        read(core, &[7]);
    };
    let (plain, hidden) =
        (told(&recorded(false, "block", drive)), told(&recorded(true, "block", drive)));
    assert_eq!(plain.asked, [(MIB - 512, 1_024), (0, 1 << 40)]);
    assert_eq!((&plain.names[..], &plain.fetched[..]), (&[(7, spread(7))][..], &[spread(7)][..]));
    // A request across extents is told in pieces, and so much of a long one.
    assert_eq!(hidden.asked.len(), 2 + 4_096);
    let inside: Vec<_> = hidden.asked.iter().map(|(offset, len)| (offset % MIB, *len)).collect();
    assert_eq!(inside[..3], [(MIB - 512, 512), (0, 512), (0, MIB)]);
    assert!(hidden.asked.iter().all(|(offset, _)| *offset >= 8 * MIB), "they are elsewhere");
    assert_eq!(hidden.fetched, [hidden.names[0].1], "a fetched block has its name");
    assert_ne!(hidden.fetched, plain.fetched);
    // What the core remembers is what the recording tells, or a replay would answer something else.
    let mut live = None;
    let part = recorded(true, "block", |core| {
        drive(core);
        live = Some(format!("{:?}", **core));
    });
    let (mut core, mut events, mut scratch) =
        (part.core.clone(), part.events(), Scratch::default());
    while let Some(event) = events.next(&mut scratch).expect("it is whole") {
        match event {
            Event::Input { now, input } => core.handle(now, input),
            Event::Polled { count, .. } => (0..count).for_each(|_| {
                core.poll_effect();
            }),
            _ => {}
        }
    }
    assert_eq!(Some(format!("{core:?}")), live);
}
