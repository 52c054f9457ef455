//! Recordings of live runs, told to the core once more: it must answer the same. Then, with another policy: what if.

mod answers;
mod batches;
mod causes;
mod clients;
mod load;
mod polled;
mod requests;
mod tally;
mod times;
mod watched;
mod what_if;

use destage_core::{Core, Effect, Input, Span, Time, UnitId};
use destage_record::{Asked, Damage, Digest, Event, Part, Scratch};
use polled::polled;
use std::fmt;

pub use answers::{Answers, RecordedRun};
pub use destage_record::is_of_volume;
pub use load::Load;
pub use tally::Tally;
pub use watched::Watched;
pub use what_if::{ASSUMED, Assumed, Latency, Outcome, what_if, what_if_with};

/// Who watches a replay.
pub trait Observer {
    /// What stands at this byte of the file comes next. If the core then panics, it was changed: what it tells cannot have
    /// happened.
    fn reached(&mut self, _byte: u64) {}
    /// Whether the replay is to end here.
    fn is_stopped(&self) -> bool {
        false
    }
    /// A client asked a volume for this.
    fn asked(&mut self, _now: Time, _asked: &Asked) {}
    /// A unit stands for what is known by this.
    fn named(&mut self, _unit: UnitId, _identity: u64) {}
    /// The core is about to be told this.
    fn input(&mut self, now: Time, input: &Input<'_>, core: &Core);
    /// The core has just answered this.
    fn effect(&mut self, now: Time, effect: &Effect, core: &Core);
}

impl<A: Observer, B: Observer> Observer for (A, B) {
    fn reached(&mut self, byte: u64) {
        self.0.reached(byte);
        self.1.reached(byte);
    }

    fn is_stopped(&self) -> bool {
        self.0.is_stopped() || self.1.is_stopped()
    }

    fn asked(&mut self, now: Time, asked: &Asked) {
        self.0.asked(now, asked);
        self.1.asked(now, asked);
    }

    fn named(&mut self, unit: UnitId, identity: u64) {
        self.0.named(unit, identity);
        self.1.named(unit, identity);
    }

    fn input(&mut self, now: Time, input: &Input<'_>, core: &Core) {
        self.0.input(now, input, core);
        self.1.input(now, input, core);
    }

    fn effect(&mut self, now: Time, effect: &Effect, core: &Core) {
        self.0.effect(now, effect, core);
        self.1.effect(now, effect, core);
    }
}

/// Whether it is of rows.
fn is_of_rows(subject: &str) -> bool {
    subject == "serve"
}

/// What a replay of one part came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Inputs that the core was told.
    pub inputs: u64,
    /// Effects that it gave, all as recorded.
    pub effects: u64,
    /// The first input's time.
    pub began: Time,
    /// The last input's time.
    pub ended: Time,
}

impl Summary {
    /// From the first input to the last.
    pub fn duration(&self) -> Span {
        self.ended.since(self.began)
    }
}

/// A replay that did not go as recorded.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file cannot be read to its end.
    #[error("{0}")]
    Damaged(#[from] Damage),
    /// The core answered something else.
    #[error("{0}")]
    Differs(Box<Difference>),
}

/// Where the core answered something else than what was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The last event of the file before it was found, bytes from the beginning.
    pub byte: u64,
    /// The input's number, from 1.
    pub number: u64,
    /// Its time.
    pub at: Time,
    /// The input.
    pub input: String,
    /// What the core answered now.
    pub effects: Vec<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { byte, number, at, input, effects } = self;
        write!(
            f,
            "byte {byte}: after input {number} at {at:?} the core answers something else than was recorded. "
        )?;
        write!(f, "Input: {input}. Effects now: ")?;
        if effects.is_empty() { f.write_str("none") } else { f.write_str(&effects.join(", ")) }
    }
}

/// Effects that are shown of a difference.
const SHOWN_MAX: usize = 16;
/// Groups that may be missing before one that was recovered.
const GAP_MAX: u64 = 1 << 24;

/// Tells a core what was recorded and compares what it answers. The part's own core is used up.
///
/// # Errors
/// [`ReplayError`]: the file is damaged, or the core answers something else.
///
/// # Panics
/// Where a changed recording breaks the core's contract before it differs: [`Observer::reached`] was told where.
pub fn replay(part: &Part, observer: &mut dyn Observer) -> Result<Summary, ReplayError> {
    let mut core = part.core.clone();
    let (mut events, mut scratch) = (part.events(), Scratch::default());
    let mut digest = Digest::default();
    let mut summary = Summary::default();
    let mut now = Time::ZERO;
    let mut byte = 0;
    while let Some(event) = events.next(&mut scratch)? {
        byte = byte.max(events.at());
        if observer.is_stopped() {
            break;
        }
        observer.reached(byte);
        match event {
            Event::Input { now: at, input } => {
                if summary.inputs == 0 {
                    summary.began = at;
                }
                now = at;
                summary.inputs += 1;
                summary.ended = at;
                check(&input, &core, byte)?;
                observer.input(at, &input, &core);
                core.handle(at, input);
            }
            Event::Asked { now, asked } => observer.asked(now, &asked),
            Event::Named { unit, identity } => observer.named(unit, identity),
            Event::Polled { count, short } => {
                let mut effects = Vec::new();
                polled(&mut core, &mut digest, count, |effect, core| {
                    observer.effect(now, &effect, core);
                    summary.effects += 1;
                    if effects.len() < SHOWN_MAX {
                        effects.push(effect);
                    }
                });
                if digest.short() != short {
                    return Err(difference(part, byte, summary.inputs, now, &effects));
                }
            }
            Event::Checked { all } if digest.all() != all => {
                return Err(difference(part, byte, summary.inputs, now, &[]));
            }
            Event::Checked { .. } => {}
        }
    }
    Ok(summary)
}

/// The core fills the place of every group that is missing.
fn check(input: &Input<'_>, core: &Core, byte: u64) -> Result<(), Damage> {
    let (Input::Recovered { lsn, .. }
    | Input::RecoveredUpto { lsn }
    | Input::RecoveredParked { lsn, .. }) = *input
    else {
        return Ok(());
    };
    let next = core.next_lsn();
    let has_groups = next > core.decided().next();
    if !has_groups || lsn.0 <= next.0.saturating_add(GAP_MAX) {
        Ok(())
    } else {
        Err(Damage { at: byte, what: "a group's number is far beyond the one before" })
    }
}

fn difference(part: &Part, byte: u64, number: u64, at: Time, effects: &[Effect]) -> ReplayError {
    let effects = effects.iter().map(|effect| format!("{effect:?}")).collect();
    let input = nth_input(part, number).unwrap_or_else(|| "none".into());
    ReplayError::Differs(Box::new(Difference { byte, number, at, input, effects }))
}

/// An input for people.
fn nth_input(part: &Part, number: u64) -> Option<String> {
    let (mut events, mut scratch) = (part.events(), Scratch::default());
    let mut inputs = 0;
    while let Some(event) = events.next(&mut scratch).ok()? {
        if let Event::Input { input, .. } = event {
            inputs += 1;
            if inputs == number {
                return Some(format!("{input:?}"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
