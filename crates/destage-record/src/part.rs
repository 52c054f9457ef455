//! One file of a recording, as it is read.

use crate::codec::Bytes;
use crate::frame::{self, Damage, Found, Kind, MAGIC};
use crate::input::{self, Scratch};
use crate::told::{self, Asked, Last};
use crate::{FORMAT_VERSION, FORMAT_VERSION_MIN};
use destage_core::{Core, Input, Span, Time, UnitId};

/// What a part says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The version of the program that wrote it; the state is only read by the same one.
    pub version: String,
    /// What was recorded: a front end, and a volume where there are several.
    pub subject: String,
    /// When the process began to record: parts with the same one belong together.
    pub run: u64,
    /// The part's place in the run, from 1.
    pub part: u32,
    /// Whether something is missing between the part before and this one.
    pub after_gap: bool,
}

/// How a part ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In order: the process stopped, or the next part follows.
    Whole,
    /// It broke off: the process was killed, or the power failed.
    BrokenOff {
        /// Where what is readable ends, bytes.
        at: u64,
    },
}

/// One file of a recording.
#[derive(Debug)]
pub struct Part {
    /// What it says of itself.
    pub begin: Begin,
    /// How it ends.
    pub end: End,
    /// The core as it was when the part began.
    pub core: Core,
    file: Vec<u8>,
    /// Where the payloads of the frames with events are.
    frames: Vec<(usize, usize)>,
}

/// What was recorded, in order.
#[derive(Debug, PartialEq)]
pub enum Event<'s> {
    /// The core was told something.
    Input {
        /// When.
        now: Time,
        /// What.
        input: Input<'s>,
    },
    /// A client asked a volume for something. An input follows for what does not go past the cache.
    Asked {
        /// When.
        now: Time,
        /// What for.
        asked: Asked,
    },
    /// From now on a unit stands for what is known by this.
    Named {
        /// The unit.
        unit: UnitId,
        /// As [`Input::Fetched`] tells it: of a block, [`spread`](destage_core::replace::spread) of its number.
        identity: u64,
    },
    /// The core was polled for effects.
    Polled {
        /// How often, also where it had nothing to say.
        count: u64,
        /// The short digest of all effects of the part so far.
        short: u16,
    },
    /// A frame ended here.
    Checked {
        /// The digest of all effects of the part so far.
        all: u64,
    },
}

impl Begin {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for text in [&self.version, &self.subject] {
            crate::codec::put(&mut out, text.len() as u64);
            out.extend(text.as_bytes());
        }
        out.extend(self.run.to_le_bytes());
        crate::codec::put(&mut out, self.part.into());
        out.push(self.after_gap.into());
        out
    }

    fn decode(payload: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(payload);
        let mut text = || {
            let len = bytes.number()?.try_into().ok()?;
            std::str::from_utf8(bytes.take(len)?).ok().map(str::to_owned)
        };
        let (version, subject) = (text()?, text()?);
        let run = bytes.fixed64()?;
        Some(Self { version, subject, run, part: bytes.number32()?, after_gap: bytes.byte()? != 0 })
    }
}

impl Part {
    /// Reads what a file held.
    ///
    /// # Errors
    /// [`Damage`] tells where it is not what was written. An end that broke off is none, once the part has begun.
    pub fn read(file: Vec<u8>, version: &str) -> Result<Self, Damage> {
        let at = file.len() as u64;
        let what = "the recording broke off before it began";
        Self::read_begun(file, version)?.ok_or(Damage { at, what })
    }

    /// The same; `None` if the recording broke off before it began: the file is empty, or ends before its state is whole.
    ///
    /// # Errors
    /// As [`Part::read`].
    pub fn read_begun(file: Vec<u8>, version: &str) -> Result<Option<Self>, Damage> {
        let damage = |at: usize, what| Damage { at: at as u64, what };
        // A file system may have made room that was never written.
        let is_cut = (FORMAT_VERSION_MIN..=FORMAT_VERSION)
            .any(|version| [&MAGIC[..], &version.to_le_bytes()].concat().starts_with(&file));
        if is_cut || file.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let Some(version_bytes) = file.get(8..10) else {
            return Err(damage(0, "no recording: it is shorter than its first bytes"));
        };
        if file[..8] != *MAGIC {
            return Err(damage(0, "no recording: it does not begin as one"));
        }
        let format = u16::from_le_bytes([version_bytes[0], version_bytes[1]]);
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&format) {
            return Err(damage(8, "a recording in another version of the format"));
        }
        let mut at = 10;
        let (payload, next) = match frame::read(&file, at)? {
            Found::Nothing | Found::Torn => return Ok(None),
            Found::Frame { kind: Kind::Begin, payload, next } => (payload, next),
            Found::Frame { .. } => return Err(damage(at, "it does not say what it is")),
        };
        let begin = Begin::decode(payload).ok_or_else(|| damage(at, "it cannot be read"))?;
        if begin.version != version {
            return Err(damage(
                at,
                "recorded by another version of Destage: replay it with that one",
            ));
        }
        at = next;
        let mut state = Vec::new();
        let (mut frames, mut ended) = (Vec::new(), false);
        let end = loop {
            match frame::read(&file, at)? {
                Found::Nothing if ended => break End::Whole,
                Found::Nothing | Found::Torn => break End::BrokenOff { at: at as u64 },
                Found::Frame { .. } if ended => return Err(damage(at, "more after the end")),
                Found::Frame { kind, payload, next } => {
                    match kind {
                        Kind::Begin => return Err(damage(at, "it begins twice")),
                        Kind::State => state.extend(payload),
                        Kind::Events => frames.push((next - payload.len(), next)),
                        Kind::End => ended = true,
                    }
                    at = next;
                }
            }
        };
        let has_followed = ended || !frames.is_empty();
        let core: Core = match postcard::from_bytes(&state) {
            Ok(core) => core,
            Err(postcard::Error::DeserializeUnexpectedEnd) if !has_followed => return Ok(None),
            Err(_) => return Err(damage(at, "the core's state is missing or cannot be read")),
        };
        if core.policy().validate().is_err() {
            return Err(damage(at, "the core's state has a policy that cannot be"));
        }
        Ok(Some(Self { begin, end, core, file, frames }))
    }

    /// What was recorded, from the beginning.
    pub fn events(&self) -> Events<'_> {
        let units_max = self.len() + UNITS_UNSEEN_MAX;
        Events {
            part: self,
            frame: 0,
            bytes: Bytes(&[]),
            last: Last::default(),
            now: Time::ZERO,
            at: 0,
            end: 0,
            units_max,
        }
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.file.len() as u64
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// The events of a part, one after the other.
#[derive(Debug)]
pub struct Events<'p> {
    part: &'p Part,
    frame: usize,
    bytes: Bytes<'p>,
    last: Last,
    now: Time,
    /// Where the event given last begins; 0 between frames.
    at: u64,
    /// Where the frame under way ends.
    end: u64,
    /// Units have numbers below this one.
    units_max: u64,
}

/// The core's state has a byte for each unit up to the highest that was used, and each further one stands in an event. A driver
/// may have numbered so many more that it did not tell of; beyond that a number is damage, and would ask for much memory.
const UNITS_UNSEEN_MAX: u64 = 1 << 26;
/// Polls that one event tells of, at most; a driver polls as often as there are effects, and once more.
const POLLS_MAX: u64 = 1 << 32;
/// Where the digest at the end of a frame begins: eight bytes before it.
pub(crate) const DIGEST_LEN: usize = 8;
/// Begins the times of effects that were polled.
pub(crate) const POLLED: u8 = 0;
/// Begins a step of the clock.
pub(crate) const CLOCK: u8 = 0x7f;

impl Events<'_> {
    /// The next event; `None` at the end.
    ///
    /// # Errors
    /// The events cannot be read, although the checksum is right.
    pub fn next<'s>(&mut self, scratch: &'s mut Scratch) -> Result<Option<Event<'s>>, Damage> {
        if self.at == 0 && !self.next_frame()? {
            return Ok(None);
        }
        while self.bytes.0.len() > DIGEST_LEN {
            self.at = self.end - self.bytes.0.len() as u64;
            let damage = Damage { at: self.at, what: "this event cannot be read" };
            match self.bytes.0[0] {
                POLLED => {
                    self.bytes.byte();
                    let count = self.bytes.number().filter(|&count| count <= POLLS_MAX);
                    let count = count.ok_or_else(|| damage.clone())?;
                    let short = self.bytes.take(2).ok_or(damage)?;
                    let short = u16::from_le_bytes([short[0], short[1]]);
                    return Ok(Some(Event::Polled { count, short }));
                }
                CLOCK => {
                    self.bytes.byte();
                    let step = self.bytes.number().ok_or(damage)?;
                    self.now = self.now + Span(step);
                }
                told::ASKED => {
                    self.bytes.byte();
                    let asked = self.last.asked(&mut self.bytes).ok_or(damage)?;
                    return Ok(Some(Event::Asked { now: self.now, asked }));
                }
                kind @ (told::BLOCK | told::ROW) => {
                    self.bytes.byte();
                    let named = match kind {
                        told::BLOCK => self.last.block(&mut self.bytes),
                        _ => told::row(&mut self.bytes),
                    };
                    let (unit, identity) = named.ok_or_else(|| damage.clone())?;
                    check_unit(self.units_max, Some(unit.0.into()), damage)?;
                    return Ok(Some(Event::Named { unit, identity }));
                }
                _ => {
                    let now = self.now;
                    let input =
                        input::decode(&mut self.bytes, scratch).ok_or_else(|| damage.clone())?;
                    check_unit(self.units_max, input::highest_unit(&input), damage)?;
                    return Ok(Some(Event::Input { now, input }));
                }
            }
        }
        let damage = Damage { at: self.at, what: "the frame ends without its digest" };
        let all = self.bytes.fixed64().ok_or(damage)?;
        self.at = 0;
        Ok(Some(Event::Checked { all }))
    }

    /// Where the event given last begins, bytes from the beginning of the file; 0 after the digest of a frame.
    pub fn at(&self) -> u64 {
        self.at
    }

    fn next_frame(&mut self) -> Result<bool, Damage> {
        let Some(&(from, to)) = self.part.frames.get(self.frame) else { return Ok(false) };
        self.frame += 1;
        self.at = from as u64;
        self.end = to as u64;
        self.bytes = Bytes(&self.part.file[from..to]);
        self.last = Last::default();
        let now = self.bytes.fixed64();
        self.now = Time(now.ok_or(Damage { at: self.at, what: "the frame is too short" })?);
        Ok(true)
    }
}

fn check_unit(units_max: u64, highest: Option<u64>, damage: Damage) -> Result<(), Damage> {
    if highest.is_some_and(|unit| unit >= units_max) {
        return Err(Damage { what: "a unit's number is beyond all units", ..damage });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RecordSettings, RecordedCore, list};
    use destage_core::Policy;

    const VERSION: &str = "1.2.3";

    #[test]
    fn a_part_that_ends_before_its_state_is_whole_was_not_begun_and_damage_is_still_told() {
        let folder = tempfile::tempdir().unwrap();
        let settings = RecordSettings {
            path: folder.path().join("run"),
            bytes_max: RecordSettings::BYTES_MIN,
            is_anonymous: false,
        };
        let mut core = RecordedCore::from(Core::new(Time::ZERO, Policy::default()));
        core.record(&settings, VERSION, "a test").unwrap();
        core.handle(Time::from_secs(1), Input::Tick);
        drop(core);
        let file = std::fs::read(list(&settings.path).unwrap().remove(0)).unwrap();
        let whole = Part::read(file.clone(), VERSION).unwrap();
        let events = whole.frames[0].0 - frame::HEADER_LEN;
        let begun = |file: &[u8]| Part::read_begun(file.to_vec(), VERSION).map(|it| it.is_some());
        for cut in 0..events {
            assert_eq!(begun(&file[..cut]), Ok(false), "{cut}");
            assert!(Part::read(file[..cut].to_vec(), VERSION).is_err(), "{cut}");
        }
        for cut in events..file.len() {
            assert_eq!(begun(&file[..cut]), Ok(true), "{cut}");
        }
        // The version before has less to tell, and no other one is known.
        for (version, is_read) in [(0, false), (1, true), (2, true), (3, false)] {
            let mut other = file.clone();
            other[8] = version;
            assert_eq!(begun(&other).is_ok(), is_read, "{version}");
        }
        // Room that was never written.
        assert_eq!(begun(&[0; 4_096]), Ok(false));
        assert_eq!(begun(&[&file[..10], &[0; 40]].concat()), Ok(false));
        // The control: what stands there and is wrong. A length that reaches beyond the end is an end.
        let begin = 10 + frame::HEADER_LEN..10 + frame::HEADER_LEN + whole.begin.encode().len();
        for at in (0..10).chain(begin) {
            let mut bad = file.clone();
            bad[at] ^= 1;
            assert!(begun(&bad).is_err(), "{at}");
        }
        assert!(begun(b"something else").is_err() && begun(b"else").is_err());
    }
}
