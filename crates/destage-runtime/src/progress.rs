//! Progress of something that may take long. Nothing is shown in the first second; then a bar on a terminal, otherwise a log
//! line every second. With `DESTAGE_PROGRESS_AFTER=0s` it is shown from the first step on.

use crate::{human, notify, units};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::fmt;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long nothing is shown, if the environment says something else than [`QUIET`].
const QUIET_ENV: &str = "DESTAGE_PROGRESS_AFTER";
const QUIET: Duration = Duration::from_secs(1);
const LINE_EVERY: Duration = Duration::from_secs(1);

/// Shows how far `work` has come with the segments of a journal or a log.
pub fn of_segments<T>(
    label: &str,
    work: impl FnOnce(&mut dyn FnMut(destage_journal::Progress)) -> T,
) -> T {
    let mut bar = Progress::new(label, 0);
    let result = work(&mut |at| {
        bar.set_total(at.segments_total);
        bar.set(at.segments);
    });
    bar.finish();
    result
}

/// What several threads do together.
#[derive(Debug)]
pub struct Together(Mutex<Progress>);

impl Together {
    /// One step more is done.
    pub fn step(&self) {
        let mut bar = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let done = bar.done + 1;
        bar.set(done);
    }

    /// So many steps are done, of so many. A thread may say less than another one has said before.
    pub fn set(&self, done: u64, total: u64) {
        let mut bar = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bar.set_total(total);
        let done = bar.done.max(done);
        bar.set(done);
    }

    /// As [`Progress::finish`].
    pub fn finish(self) -> bool {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).finish()
    }
}

/// Shows how far something has come.
#[derive(Debug)]
pub struct Progress {
    label: String,
    /// Shown behind the label: what changes on the way.
    note: String,
    total: u64,
    done: u64,
    /// Nothing is shown for so long.
    quiet: Duration,
    started: Instant,
    terminal: bool,
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
}

impl Progress {
    /// Progress of `label` ("replaying the journal") over `total` steps.
    pub fn new(label: &str, total: u64) -> Self {
        Self {
            label: label.into(),
            note: String::new(),
            total,
            done: 0,
            quiet: quiet(std::env::var(QUIET_ENV).ok().as_deref()),
            started: Instant::now(),
            terminal: std::io::stderr().is_terminal(),
            bar: None,
            last_line: None,
        }
    }

    /// The same for several threads, each of which says when it has done a step.
    pub fn together(self) -> Together {
        Together(Mutex::new(self))
    }

    /// `done` steps are done. Cheap enough to call for every one.
    pub fn set(&mut self, done: u64) {
        self.done = done;
        let elapsed = self.started.elapsed();
        if elapsed < self.quiet {
            return;
        }
        if self.terminal {
            self.bar().set_position(done);
        } else if self.last_line.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            self.last_line = Some(Instant::now());
            tracing::info!("{}", self.line());
            notify::status(&self.line());
        }
    }

    /// Shows something else with the progress, as a rate; cheap in the first second, when nothing is shown.
    pub fn note(&mut self, note: fmt::Arguments<'_>) {
        if self.started.elapsed() < self.quiet {
            return;
        }
        self.note = format!(", {note}");
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}{}", self.label, self.note));
        }
    }

    /// The number of steps turned out to be different, as when writes arrive during a drain.
    pub fn set_total(&mut self, total: u64) {
        self.total = total;
        if let Some(bar) = &self.bar {
            bar.set_length(total);
        }
    }

    /// Everything is done, or given up. Whether it was shown at all.
    pub fn finish(mut self) -> bool {
        let shown = self.bar.is_some() || self.last_line.is_some();
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        if shown {
            tracing::info!(
                "{} after {}",
                self.line(),
                human::seconds(self.started.elapsed().as_secs_f64())
            );
        }
        shown
    }

    fn bar(&mut self) -> &ProgressBar {
        self.bar.get_or_insert_with(|| {
            let started = self.started;
            // The bar's own rate would begin with the bar, which is made when much is done already.
            let pace = move |state: &ProgressState, text: &mut dyn fmt::Write| {
                let total = state.len().unwrap_or(0);
                let _ = text.write_str(&pace(state.pos(), total, started.elapsed()));
            };
            let style =
                ProgressStyle::with_template("{msg} [{bar:30}] {human_pos}/{human_len}{pace}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar())
                    .with_key("pace", pace);
            let bar = ProgressBar::new(self.total).with_style(style);
            bar.set_message(self.label.clone());
            bar
        })
    }

    fn line(&self) -> String {
        let percent = (self.done.min(self.total) * 100).checked_div(self.total).unwrap_or(100);
        let left = left(self.done, self.total, self.started.elapsed());
        let left = left.map_or_else(String::new, |left| format!(", {left} left"));
        format!(
            "{}: {} of {} ({percent} %){}{left}",
            self.label,
            human::count(self.done),
            human::count(self.total),
            self.note
        )
    }
}

/// How long nothing is shown; what is no time is as if nothing had been said.
fn quiet(said: Option<&str>) -> Duration {
    let said = said.and_then(|said| said.parse::<units::Interval>().ok());
    said.and_then(|said| said.duration()).unwrap_or(QUIET)
}

/// How many steps a second since the start, and how long the rest takes.
fn pace(done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    let left = left(done, total, elapsed).map_or_else(String::new, |left| format!(", {left} left"));
    format!(" {}/s{left}", human::count(rate as u64))
}

/// How long the rest takes if it goes on as so far; nothing at the beginning and at the end.
fn left(done: u64, total: u64, elapsed: Duration) -> Option<String> {
    let rest = total.checked_sub(done).filter(|&rest| rest > 0 && done > 0)?;
    Some(human::seconds((elapsed.as_secs_f64() * rest as f64 / done as f64).ceil()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_shown_for_what_is_quick() {
        let mut progress = Progress::new("draining", 10);
        for step in 0..=10 {
            progress.set(step);
        }
        assert!(!progress.finish());
    }

    #[test]
    fn it_may_be_shown_from_the_first_step_on() {
        for (said, then) in [(None, QUIET), (Some("soon"), QUIET), (Some("0s"), Duration::ZERO)] {
            assert_eq!(quiet(said), then, "{said:?}");
        }
        let mut progress = Progress::new("draining", 10);
        (progress.quiet, progress.terminal) = (Duration::ZERO, false);
        progress.set(1);
        assert!(progress.line().starts_with("draining: 1 of 10 (10 %), "), "{}", progress.line());
        assert!(progress.finish());
    }

    #[test]
    fn steps_of_several_threads_add_up() {
        let together = Progress::new("comparing", 40).together();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10).for_each(|_| together.step()));
            }
        });
        assert_eq!(together.0.lock().unwrap().done, 40);
        together.set(39, 50);
        let (done, total) = { together.0.lock().map(|bar| (bar.done, bar.total)).unwrap() };
        assert_eq!((done, total), (40, 50));
        assert!(!together.finish());
    }

    #[test]
    fn work_on_a_journal_gives_what_it_gives() {
        let read = of_segments("reading", |shown| {
            shown(destage_journal::Progress { segments: 1, segments_total: 2 });
            7
        });
        assert_eq!(read, 7);
    }

    /// A terminal that keeps what is drawn.
    #[derive(Clone, Debug, Default)]
    struct Drawn(std::sync::Arc<Mutex<String>>);

    impl indicatif::TermLike for Drawn {
        fn width(&self) -> u16 {
            200
        }

        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn write_line(&self, line: &str) -> std::io::Result<()> {
            self.write_str(line)
        }

        fn write_str(&self, text: &str) -> std::io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> std::io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_first_frame_has_the_rate_since_the_start() {
        let mut progress = Progress::new("reading", 4_000_000);
        progress.terminal = true;
        progress.started -= Duration::from_secs(2);
        let drawn = Drawn::default();
        let target = indicatif::ProgressDrawTarget::term_like(Box::new(drawn.clone()));
        progress.bar().set_draw_target(target);
        progress.set(1_000_000);
        progress.bar().force_draw();
        let drawn = drawn.0.lock().unwrap().clone();
        // Half a million a second, and a bit less by the time it is drawn.
        let rate = drawn.split("4,000,000 ").last().and_then(|rest| rest.split("/s").next());
        let rate: u64 = rate.unwrap_or_default().replace(',', "").parse().unwrap_or(0);
        assert!((300_000..=500_000).contains(&rate), "{drawn}");
        assert!(drawn.contains(" s left"), "{drawn}");
    }

    #[test]
    fn what_takes_long_is_shown_with_its_share() {
        let mut progress = Progress::new("draining", 2_000);
        progress.terminal = false;
        progress.started -= Duration::from_secs(2);
        progress.set(500);
        let line = progress.line();
        assert!(
            line.starts_with("draining: 500 of 2,000 (25 %), ") && line.ends_with(" s left"),
            "{line}"
        );
        progress.note(format_args!("{} requests/s", 7));
        progress.set_total(1_000);
        let line = progress.line();
        assert!(line.starts_with("draining: 500 of 1,000 (50 %), 7 requests/s, "), "{line}");
        progress.set(1_000);
        assert_eq!(progress.line(), "draining: 1,000 of 1,000 (100 %), 7 requests/s");
        assert!(progress.finish());
    }
}
