//! When a client will flush next.

/// Foresees flushes from how many writes came between the last two: clients that flush after each write, or after every
/// sixteenth, go on like that. Whoever knows may prepare for a flush while the client is still busy with the reply to the
/// write before it.
///
/// # Examples
/// ```
/// # use destage_core::FlushRhythm;
/// let mut rhythm = FlushRhythm::default();
/// rhythm.wrote();
/// assert!(!rhythm.expects_flush());
/// rhythm.flushed();
/// rhythm.wrote();
/// assert!(rhythm.expects_flush());
/// rhythm.wrote();
/// assert!(!rhythm.expects_flush());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct FlushRhythm {
    /// Writes since the last flush.
    writes: u64,
    /// Writes between the last two flushes; 0 while there were none.
    usual: u64,
}

impl FlushRhythm {
    /// A write was made.
    pub fn wrote(&mut self) {
        self.writes += 1;
    }

    /// A flush was asked for. One without writes before it tells nothing.
    pub fn flushed(&mut self) {
        if self.writes > 0 {
            self.usual = self.writes;
        }
        self.writes = 0;
    }

    /// Whether a flush is what comes next, if the client goes on as before.
    pub fn expects_flush(&self) -> bool {
        self.writes > 0 && self.writes == self.usual
    }
}
