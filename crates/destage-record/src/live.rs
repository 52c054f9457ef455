//! The recording side: beside a live core, without waiting for a file.

use crate::anonymous::{Anonymous, EXTENT};
use crate::codec::put;
use crate::digest::Digest;
use crate::frame::{self, Kind};
use crate::input;
use crate::is_of_volume;
use crate::part::{Begin, CLOCK, POLLED};
use crate::told::{self, Asked, Last, Named};
use crate::writer::{self, Message, Writer};
use destage_core::{Core, Effect, Input, Span, Time, UnitId};
use destage_engine::Decide;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;

/// Where a recording goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSettings {
    /// Its name; the files are called so with `.1`, `.2` and so on.
    pub path: PathBuf,
    /// Bytes that all its files may hold; the oldest is deleted before that is exceeded. At least
    /// [`RecordSettings::BYTES_MIN`].
    pub bytes_max: u64,
    /// Nobody reads addresses and keys from it: extents of volumes change places, and hashes of keys have a key of their own.
    pub is_anonymous: bool,
}

impl RecordSettings {
    /// The least room: 4 MiB.
    pub const BYTES_MIN: u64 = 4 << 20;
    /// The usual room: 1 GiB.
    pub const BYTES_DEFAULT: u64 = 1 << 30;

    /// Looks whether a recording can be made, before anything is done that a wrong name would have to undo.
    ///
    /// # Errors
    /// The first file cannot be made.
    pub fn check(&self) -> Result<(), CannotRecord> {
        writer::check(self).map_err(|error| CannotRecord::new(self, error))
    }
}

/// A recording cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the recording {}: {source}", path.display())]
pub struct CannotRecord {
    path: PathBuf,
    source: io::Error,
}

impl CannotRecord {
    fn new(settings: &RecordSettings, source: io::Error) -> Self {
        Self { path: settings.path.clone(), source }
    }
}

/// A live core: what it is told and what it answers goes into a recording if there is one.
#[derive(Debug)]
pub struct RecordedCore {
    core: Core,
    recorder: Option<Box<Recorder>>,
    /// As long as the core lives: what it remembers of what it evicted, it knows by this.
    anonymous: Option<Box<Anonymous>>,
}

impl From<Core> for RecordedCore {
    fn from(core: Core) -> Self {
        Self { core, recorder: None, anonymous: None }
    }
}

impl Deref for RecordedCore {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Decide for RecordedCore {
    fn core(&self) -> &Core {
        &self.core
    }

    #[inline]
    fn handle(&mut self, now: Time, input: Input<'_>) {
        Self::handle(self, now, input);
    }

    #[inline]
    fn poll_effect(&mut self) -> Option<Effect> {
        Self::poll_effect(self)
    }
}

impl RecordedCore {
    /// Records from now on. `subject` names the front end, and the volume where there are several.
    ///
    /// # Errors
    /// The first file cannot be made.
    pub fn record(
        &mut self,
        settings: &RecordSettings,
        version: &str,
        subject: &str,
    ) -> Result<(), CannotRecord> {
        let writer = Writer::open(settings).map_err(|error| CannotRecord::new(settings, error))?;
        self.recorder = Some(Box::new(Recorder::new(writer, version, subject)));
        self.anonymous = settings.is_anonymous.then(|| Box::new(Anonymous::new(subject)));
        Ok(())
    }

    /// Whether names and requests of clients are to be told.
    #[inline]
    pub fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }

    /// Tells the recording what a client asks a volume for, before the core hears of it.
    pub fn ask(&mut self, now: Time, asked: Asked) {
        let Some(recorder) = &mut self.recorder else { return };
        let Some(anonymous) = &self.anonymous else {
            return recorder.asked(now, &asked, &self.core);
        };
        let (mut at, end) = (asked.offset, asked.offset.saturating_add(asked.bytes));
        // More than that only zeros and discards have, and nobody is to wait for so many events.
        for _ in 0..EXTENTS_MAX {
            if at >= end {
                break;
            }
            let next = (at - at % EXTENT).saturating_add(EXTENT).min(end);
            let offset = anonymous.offset(at);
            recorder.asked(now, &Asked { offset, bytes: next - at, ..asked }, &self.core);
            at = next;
        }
    }

    /// Tells the recording what a unit stands for, unless it knows. `identity` is what [`Input::Fetched`] would tell. Comes before
    /// the input that names the unit first.
    pub fn name(&mut self, now: Time, unit: UnitId, identity: impl FnOnce() -> u64) {
        let Some(recorder) = &mut self.recorder else { return };
        if !recorder.is_to_name(now, unit, &self.core) {
            return;
        }
        let identity = identity();
        let identity = self.anonymous.as_ref().map_or(identity, |it| it.identity(identity));
        recorder.named(now, unit, identity);
    }

    /// Ends the recording, if there is one; all of it is in its file once this returns.
    pub fn end_recording(&mut self) {
        self.recorder = None;
    }

    /// [`Core::handle`].
    #[inline]
    pub fn handle(&mut self, now: Time, mut input: Input<'_>) {
        // The core is told the same as the recording. Otherwise it would remember other units than a replay does.
        if let Some(anonymous) = &self.anonymous
            && let Input::Fetched { identity, .. } | Input::Evicted { identity } = &mut input
        {
            *identity = anonymous.identity(*identity);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.input(now, &input, &self.core);
        }
        self.core.handle(now, input);
    }

    /// [`Core::poll_effect`].
    #[inline]
    pub fn poll_effect(&mut self) -> Option<Effect> {
        let effect = self.core.poll_effect();
        if let Some(recorder) = &mut self.recorder {
            recorder.polled(&self.core, effect.as_ref());
        }
        effect
    }

    /// [`Core::next_timeout`], and when what was recorded is due to be written.
    pub fn next_timeout(&self) -> Option<Time> {
        let recorder = self.recorder.as_ref().and_then(|recorder| recorder.due());
        self.core.next_timeout().into_iter().chain(recorder).min()
    }
}

/// An anonymous recording tells a request in pieces, one for each extent: so many at most, which are 4 GiB.
const EXTENTS_MAX: u64 = 4_096;
/// A frame is written when it is so long, bytes.
const FRAME_LEN: usize = 64 << 10;
/// And when it is so old: what a crash of the process loses at most, besides what the writer has in hand.
const FRAME_AGE: Span = Span::from_secs(1);
/// After a gap, when to try again. Each further gap of the same part lasts twice as long, up to [`GAP_MAX`].
const GAP: Span = Span::from_secs(1);
/// The longest wait.
const GAP_MAX: Span = Span::from_secs(60);

/// What goes on.
#[derive(Debug)]
enum Stage {
    /// A part is to be begun with the next input.
    Begins { after_gap: bool, not_before: Time },
    /// Inputs are recorded.
    Records,
    /// The file failed; said in the log.
    Failed,
}

#[derive(Debug)]
struct Recorder {
    writer: Writer,
    version: String,
    subject: String,
    stage: Stage,
    run: u64,
    part: u32,
    /// Bytes of events in this part.
    part_len: u64,
    /// The frame under way; empty, or begun at `since`.
    frame: Vec<u8>,
    since: Time,
    now: Time,
    digest: Digest,
    polls: u64,
    is_volume: bool,
    last: Last,
    named: Named,
    /// How long the next gap lasts.
    gap: Span,
}

impl Recorder {
    fn new(writer: Writer, version: &str, subject: &str) -> Self {
        Self {
            writer,
            version: version.to_owned(),
            subject: subject.to_owned(),
            stage: Stage::Begins { after_gap: false, not_before: Time::ZERO },
            run: 0,
            part: 0,
            part_len: 0,
            frame: Vec::new(),
            since: Time::ZERO,
            now: Time::ZERO,
            digest: Digest::default(),
            polls: 0,
            is_volume: is_of_volume(subject),
            last: Last::default(),
            named: Named::default(),
            gap: GAP,
        }
    }

    /// When the frame under way is to be written.
    fn due(&self) -> Option<Time> {
        (!self.frame.is_empty()).then(|| self.since + FRAME_AGE)
    }

    fn input(&mut self, now: Time, input: &Input<'_>, core: &Core) {
        if !self.is_ready(now, core) {
            return;
        }
        self.put_time(now);
        input::encode(&mut self.frame, input);
        if self.frame.len() >= FRAME_LEN || now.since(self.since) >= FRAME_AGE {
            self.send_frame();
        }
    }

    fn asked(&mut self, now: Time, asked: &Asked, core: &Core) {
        if self.is_ready(now, core) {
            self.put_time(now);
            self.last.put_asked(&mut self.frame, asked);
            // A long read that goes past the cache has no input of its own.
            if self.frame.len() >= FRAME_LEN {
                self.send_frame();
            }
        }
    }

    /// Whether a part is under way that does not tell yet what a unit stands for.
    fn is_to_name(&mut self, now: Time, unit: UnitId, core: &Core) -> bool {
        self.is_ready(now, core) && self.named.insert(unit)
    }

    fn named(&mut self, now: Time, unit: UnitId, identity: u64) {
        self.put_time(now);
        if self.is_volume {
            self.last.put_block(&mut self.frame, unit, identity);
        } else {
            told::put_row(&mut self.frame, unit, identity);
        }
    }

    /// Whether something can be recorded now. Begins a part where one is due.
    fn is_ready(&mut self, now: Time, core: &Core) -> bool {
        match self.stage {
            Stage::Failed => return false,
            Stage::Begins { not_before, .. } if now < not_before => return false,
            Stage::Begins { after_gap, .. } => self.begin_part(now, core, after_gap),
            Stage::Records if self.part_len >= self.writer.part_len_max() => {
                self.end_part();
                if matches!(self.stage, Stage::Records) {
                    self.gap = GAP;
                    self.begin_part(now, core, false);
                }
            }
            Stage::Records => {}
        }
        matches!(self.stage, Stage::Records)
    }

    fn put_time(&mut self, now: Time) {
        if self.frame.is_empty() {
            self.since = now;
            self.now = now;
            self.frame.extend(now.0.to_le_bytes());
            self.last = Last::default();
        }
        self.put_polls();
        let step = now.since(self.now);
        if step > Span::ZERO {
            self.now = now;
            self.frame.push(CLOCK);
            put(&mut self.frame, step.0);
        }
    }

    #[inline]
    fn polled(&mut self, core: &Core, effect: Option<&Effect>) {
        if matches!(self.stage, Stage::Records) {
            self.digest.add(core, effect);
            self.polls += 1;
            if let Some(Effect::Evict { unit }) = effect {
                self.named.remove(*unit);
            }
        }
    }

    fn put_polls(&mut self) {
        if self.polls > 0 {
            self.frame.push(POLLED);
            put(&mut self.frame, self.polls);
            self.frame.extend(self.digest.short().to_le_bytes());
            self.polls = 0;
        }
    }

    /// Begins a part with a copy of the core's state, if the writer is not behind.
    fn begin_part(&mut self, now: Time, core: &Core, after_gap: bool) {
        self.now = now;
        if self.writer.has_failed() {
            self.stage = Stage::Failed;
            return;
        }
        if !self.writer.can_begin(after_gap) {
            return self.leave_gap();
        }
        if self.run == 0 {
            self.run = now.0;
        }
        self.part += 1;
        self.digest = Digest::default();
        self.polls = 0;
        self.part_len = 0;
        self.frame.clear();
        self.named.clear();
        self.stage = Stage::Records;
        let begin = Begin {
            version: self.version.clone(),
            subject: self.subject.clone(),
            run: self.run,
            part: self.part,
            after_gap,
        };
        self.send(Message::Begin(begin, Box::new(core.clone())));
    }

    fn end_part(&mut self) {
        if !self.frame.is_empty() || self.polls > 0 {
            if self.frame.is_empty() {
                self.frame.extend(self.now.0.to_le_bytes());
            }
            self.put_polls();
            self.send_frame();
        }
        let mut end = Vec::new();
        frame::put(&mut end, Kind::End, &[]);
        self.send(Message::Bytes(end));
    }

    fn send_frame(&mut self) {
        self.frame.extend(self.digest.all().to_le_bytes());
        let mut whole = Vec::with_capacity(self.frame.len() + frame::HEADER_LEN);
        frame::put(&mut whole, Kind::Events, &self.frame);
        self.frame.clear();
        self.part_len += whole.len() as u64;
        self.send(Message::Bytes(whole));
    }

    fn send(&mut self, message: Message) {
        if !matches!(self.stage, Stage::Records) {
            return;
        }
        if self.writer.has_failed() {
            self.stage = Stage::Failed;
        } else if !self.writer.send(message) {
            self.leave_gap();
        }
    }

    /// Records nothing for a while.
    fn leave_gap(&mut self) {
        if matches!(self.stage, Stage::Records) {
            tracing::warn!("the recording is written too slowly: it has a gap here");
        }
        self.frame.clear();
        self.stage = Stage::Begins { after_gap: true, not_before: self.now + self.gap };
        self.gap = Span((self.gap.0 * 2).min(GAP_MAX.0));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if matches!(self.stage, Stage::Records) {
            self.end_part();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_core::Policy;
    use std::sync::mpsc::Receiver;

    /// A recorder whose writer writes what the test takes from it.
    struct Beside {
        recorder: Recorder,
        core: Core,
        messages: Receiver<Message>,
        now: Time,
        /// Parts that were begun and taken.
        begun: Vec<Begin>,
    }

    impl Beside {
        fn new(part_len_max: u64) -> Self {
            let (writer, messages) = Writer::hung(part_len_max);
            let recorder = Recorder::new(writer, "1.2.3", "a test");
            let core = Core::new(Time::ZERO, Policy::default());
            Self { recorder, core, messages, now: Time::ZERO, begun: Vec::new() }
        }

        /// Ticks, a second apart, each of which is a frame of its own.
        fn tick(&mut self, times: u64) {
            for _ in 0..times {
                self.now = self.now + FRAME_AGE;
                self.recorder.input(self.now, &Input::Tick, &self.core);
            }
        }

        fn take(&mut self) {
            let begun = |message| match message {
                Message::Begin(begin, _) => Some(begin),
                Message::Bytes(_) => None,
            };
            let taken = self.recorder.writer.taken(&self.messages);
            self.begun.extend(taken.into_iter().filter_map(begun));
        }
    }

    #[test]
    fn a_hung_writer_costs_one_copy_of_the_state() {
        let mut beside = Beside::new(1 << 30);
        beside.tick(10_000);
        assert!(matches!(beside.recorder.stage, Stage::Begins { after_gap: true, .. }));
        assert_eq!(beside.recorder.part, 1, "the state was copied once");
        assert_eq!(beside.recorder.due(), None, "nobody is woken for what is not recorded");
        // It goes on once the writer does, within the longest wait.
        beside.take();
        beside.tick(GAP_MAX.0 / FRAME_AGE.0 + 1);
        assert!(matches!(beside.recorder.stage, Stage::Records));
        beside.take();
        let begun: Vec<_> = beside.begun.iter().map(|it| (it.part, it.after_gap)).collect();
        assert_eq!(begun, [(1, false), (2, true)]);
    }

    #[test]
    fn a_slow_writer_has_at_most_two_copies_of_the_state_before_it() {
        // Each part is a frame, so that parts are begun one after the other.
        let mut beside = Beside::new(1);
        beside.tick(100);
        assert_eq!(beside.recorder.part, 2);
        // The control: one that keeps up gets each part.
        let mut beside = Beside::new(1);
        for _ in 0..100 {
            beside.tick(1);
            beside.take();
        }
        assert!(beside.begun.len() > 40, "{}", beside.begun.len());
        assert!(beside.begun.iter().all(|begin| !begin.after_gap));
    }
}
