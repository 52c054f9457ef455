//! Tells the log of changes of mode: the first at once, a flutter between two modes once in a while with its count.

use crate::notify;
use crate::policy::{mode_meaning, mode_name};
use destage_core::{Mode, Span, Time};

/// What the log was told of an engine's mode.
#[derive(Debug)]
pub struct ModeLog {
    /// Whose mode it is; empty where there is one only.
    volume: String,
    /// The mode in force, and the one that the log shows.
    mode: Mode,
    shown: Mode,
    /// Before this nothing is logged.
    quiet_until: Time,
    /// Changes since the last line.
    changes: u64,
}

/// Lines are at least this far apart.
pub const MODE_LINES_APART: Span = Span::from_secs(10);

impl Default for ModeLog {
    fn default() -> Self {
        Self {
            volume: String::new(),
            mode: Mode::Normal,
            shown: Mode::Normal,
            quiet_until: Time::from_secs(0),
            changes: 0,
        }
    }
}

/// A line for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    mode: Mode,
    changes: u64,
}

impl ModeLog {
    /// For one of several volumes, which the lines name.
    pub fn of_volume(name: &str) -> Self {
        Self { volume: name.to_owned(), ..Self::default() }
    }

    /// The mode has changed to this one.
    pub fn changed(&mut self, now: Time, mode: Mode) {
        self.mode = mode;
        self.changes += 1;
        self.tick(now);
    }

    /// Logs what was held back, once its time has come.
    pub fn tick(&mut self, now: Time) {
        if let Some(Line { mode, changes }) = self.line(now) {
            let volume = (!self.volume.is_empty()).then_some(&*self.volume);
            let (mode, meaning) = (mode_name(mode), mode_meaning(mode));
            tracing::info!(volume, mode, meaning, changes, "mode changed");
            let whose = volume.map_or_else(String::new, |volume| format!("volume {volume}: "));
            notify::status(&format!("{whose}{mode}: {meaning}"));
        }
    }

    /// When to call [`ModeLog::tick`], if something is held back.
    pub fn due(&self) -> Option<Time> {
        (self.changes > 0).then_some(self.quiet_until)
    }

    fn line(&mut self, now: Time) -> Option<Line> {
        // A stop is the last change, and nobody may miss it.
        let is_quiet = now < self.quiet_until && self.mode != Mode::Stopped;
        if self.changes == 0 || is_quiet {
            return None;
        }
        self.quiet_until = now + MODE_LINES_APART;
        let line = Line { mode: self.mode, changes: self.changes };
        // There and back again within one span: the log shows the right one, and is told only of much to and fro.
        let is_news = self.mode != self.shown || self.changes > 2;
        (self.shown, self.changes) = (self.mode, 0);
        is_news.then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    /// What the log is told at `now` of a change.
    fn change(log: &mut ModeLog, now: Time, mode: Mode) -> Option<Line> {
        log.mode = mode;
        log.changes += 1;
        log.line(now)
    }

    #[test]
    fn the_first_change_is_told_at_once_and_a_flutter_once_with_its_count() {
        let mut log = ModeLog::default();
        let first = change(&mut log, at(1), Mode::Full);
        assert_eq!(first, Some(Line { mode: Mode::Full, changes: 1 }));
        assert_eq!(log.due(), None);
        for _ in 0..50 {
            assert_eq!(change(&mut log, at(2), Mode::Normal), None);
            assert_eq!(change(&mut log, at(2), Mode::Full), None);
        }
        assert_eq!(change(&mut log, at(3), Mode::Normal), None);
        assert_eq!(log.due(), Some(at(11)));
        assert_eq!(log.line(at(10)), None);
        assert_eq!(log.line(at(11)), Some(Line { mode: Mode::Normal, changes: 101 }));
        assert_eq!(log.line(at(30)), None);
    }

    #[test]
    fn the_last_mode_is_always_told() {
        let mut log = ModeLog::default();
        assert!(change(&mut log, at(1), Mode::Throttled).is_some());
        assert_eq!(change(&mut log, at(2), Mode::Normal), None);
        assert_eq!(log.line(at(11)), Some(Line { mode: Mode::Normal, changes: 1 }));
    }

    #[test]
    fn there_and_back_is_not_worth_a_line() {
        let mut log = ModeLog::default();
        assert!(change(&mut log, at(1), Mode::Full).is_some());
        assert_eq!(change(&mut log, at(2), Mode::Normal), None);
        assert_eq!(change(&mut log, at(3), Mode::Full), None);
        assert_eq!(log.line(at(11)), None);
        assert_eq!(log.due(), None);
    }

    #[test]
    fn a_stop_is_told_at_once() {
        let mut log = ModeLog::default();
        assert!(change(&mut log, at(1), Mode::Full).is_some());
        let stopped = change(&mut log, at(1), Mode::Stopped);
        assert_eq!(stopped, Some(Line { mode: Mode::Stopped, changes: 1 }));
    }
}
