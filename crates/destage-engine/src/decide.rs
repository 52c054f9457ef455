//! What is driven.

use destage_core::{Core, Effect, Input, Time};

/// A core, or something around one that passes everything on, such as a recording.
pub trait Decide {
    /// The core, to be asked.
    fn core(&self) -> &Core;

    /// [`Core::handle`].
    fn handle(&mut self, now: Time, input: Input<'_>);

    /// [`Core::poll_effect`].
    fn poll_effect(&mut self) -> Option<Effect>;
}

impl Decide for Core {
    fn core(&self) -> &Core {
        self
    }

    fn handle(&mut self, now: Time, input: Input<'_>) {
        Self::handle(self, now, input);
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        Self::poll_effect(self)
    }
}
