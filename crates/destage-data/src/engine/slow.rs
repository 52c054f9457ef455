//! What took long: requests that waited (SLOWLOG), and seconds in which something took long (LATENCY).
//!
//! A request takes no time that this engine could measure unless it waits: for the origin, for the leases or locks of others,
//! or for room. So this is measured. The sync of the journal is not part of it: its own latencies are in the status.

use super::session::Session;
use destage_core::{Span, Time};
use destage_runtime::status::SlowReport;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// What is kept of a request's words, as Redis does.
const WORDS_MAX: usize = 32;
const WORD_BYTES_MAX: usize = 128;
/// Entries in the status.
const REPORTED_MAX: usize = 20;
/// Seconds kept of each event.
const SAMPLES_MAX: usize = 160;

/// What an entry and a spike are called that come from requests which waited.
pub(super) const COMMAND: &str = "command";
/// The same of syncs of the journal.
pub(super) const SYNC: &str = "journal-sync";

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Begun {
    at: Time,
    words: Box<[Box<[u8]>]>,
    command: &'static str,
    keys: usize,
}

impl Begun {
    /// The request is this command and names so many keys.
    pub(super) fn new(at: Time, words: &[&[u8]], (command, keys): (&'static str, usize)) -> Self {
        let shown = words.len().min(WORDS_MAX);
        let mut kept: Vec<Box<[u8]>> = words[..shown].iter().map(|word| shorten(word)).collect();
        if words.len() > WORDS_MAX {
            let more = words.len() - WORDS_MAX + 1;
            kept[WORDS_MAX - 1] = format!("... ({more} more arguments)").into_bytes().into();
        }
        Self { at, words: kept.into(), command, keys }
    }
}

fn shorten(word: &[u8]) -> Box<[u8]> {
    if word.len() <= WORD_BYTES_MAX {
        return word.into();
    }
    let more = word.len() - WORD_BYTES_MAX;
    [&word[..WORD_BYTES_MAX], format!("... ({more} more bytes)").as_bytes()].concat().into()
}

/// A request that waited long.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: u64,
    /// When it began.
    pub(super) at: Time,
    pub(super) took: Span,
    pub(super) words: Box<[Box<[u8]>]>,
    command: &'static str,
    keys: usize,
    pub(super) from: Option<SocketAddr>,
    pub(super) name: Box<[u8]>,
}

/// The newest of them.
#[derive(Debug)]
pub(super) struct SlowLog {
    /// The newest last.
    entries: VecDeque<Entry>,
    next_id: u64,
    /// Requests are kept that waited for so long or longer; none for no request.
    pub(super) threshold: Option<Span>,
    kept_max: usize,
}

impl Default for SlowLog {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            next_id: 0,
            threshold: Some(Span::from_millis(10)),
            kept_max: 128,
        }
    }
}

impl SlowLog {
    /// The newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().rev()
    }

    /// The newest ones without their words, for those who have not logged in.
    pub(super) fn report(&self, now: Time) -> Vec<SlowReport> {
        let shown = |entry: &Entry| SlowReport {
            id: entry.id,
            command: entry.command.into(),
            keys: entry.keys as u64,
            seconds: entry.took.as_secs_f64(),
            age_seconds: now.since(entry.at).as_secs_f64(),
        };
        self.iter().take(REPORTED_MAX).map(shown).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(super) fn kept_max(&self) -> usize {
        self.kept_max
    }

    /// Keeps at most so many from now on.
    pub(super) fn keep(&mut self, count: usize) {
        self.kept_max = count;
        self.entries.drain(..self.entries.len().saturating_sub(count));
    }

    /// A request is answered: for how long it waited.
    pub(super) fn ended(&mut self, now: Time, begun: Begun, session: &Session) -> Span {
        let took = now.since(begun.at);
        if self.threshold.is_some_and(|threshold| took >= threshold) && self.kept_max > 0 {
            if self.entries.len() >= self.kept_max {
                self.entries.pop_front();
            }
            self.entries.push_back(Entry {
                id: self.next_id,
                at: begun.at,
                took,
                words: begun.words,
                command: begun.command,
                keys: begun.keys,
                from: session.from,
                name: session.name.as_slice().into(),
            });
            self.next_id += 1;
        }
        took
    }
}

/// A second in which something took long, as Redis counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// Since the beginning of 1970.
    pub(super) second: u64,
    /// The longest time in it.
    pub(super) ms: u64,
}

/// What has taken long of one kind.
#[derive(Debug, Default)]
pub(super) struct Spikes {
    /// The newest last.
    pub(super) samples: VecDeque<Sample>,
    pub(super) ms_max: u64,
}

/// All kinds.
#[derive(Debug)]
pub(super) struct LatencyLog {
    events: BTreeMap<&'static str, Spikes>,
    /// Times are kept that are so long or longer; none for no time.
    pub(super) threshold: Option<Span>,
}

impl Default for LatencyLog {
    fn default() -> Self {
        Self { events: BTreeMap::new(), threshold: Some(Span::from_millis(100)) }
    }
}

impl LatencyLog {
    /// Something of a kind took so long.
    pub(super) fn record(&mut self, now: Time, event: &'static str, took: Span) {
        if self.threshold.is_none_or(|threshold| took < threshold) {
            return;
        }
        let spikes = self.events.entry(event).or_default();
        let (second, ms) = (now.0 / 1_000_000_000, took.as_nanos() / 1_000_000);
        spikes.ms_max = spikes.ms_max.max(ms);
        match spikes.samples.back_mut().filter(|last| last.second == second) {
            Some(last) => last.ms = last.ms.max(ms),
            None => {
                if spikes.samples.len() == SAMPLES_MAX {
                    spikes.samples.pop_front();
                }
                spikes.samples.push_back(Sample { second, ms });
            }
        }
    }

    /// By name.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&'static str, &Spikes)> {
        self.events.iter().map(|(name, spikes)| (*name, spikes))
    }

    pub(super) fn get(&self, event: &[u8]) -> Option<&Spikes> {
        self.events.get(std::str::from_utf8(event).ok()?)
    }

    /// Forgets events of these names, or all if there are none; how many there were.
    pub(super) fn reset(&mut self, names: &[&[u8]]) -> usize {
        let before = self.events.len();
        let is_meant = |event: &str| names.is_empty() || names.contains(&event.as_bytes());
        self.events.retain(|event, _| !is_meant(event));
        before - self.events.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(log: &mut SlowLog, name: &str, ms: u64) {
        let begun = Begun::new(Time(0), &[b"GET", name.as_bytes()], ("get", 1));
        let _ = log.ended(Time(ms * 1_000_000), begun, &Session::default());
    }

    #[test]
    fn only_what_waited_long_is_kept_and_only_the_newest() {
        let mut log = SlowLog::default();
        log.keep(2);
        for (name, ms) in [("a", 10), ("b", 9), ("c", 30), ("d", 11)] {
            ended(&mut log, name, ms);
        }
        let kept: Vec<_> = log.iter().map(|entry| (entry.id, &*entry.words[1])).collect();
        assert_eq!(kept, [(2, &b"d"[..]), (1, &b"c"[..])]);
        log.threshold = None;
        ended(&mut log, "e", 1_000);
        assert_eq!(log.len(), 2, "nothing is kept");
        log.keep(1);
        assert_eq!(log.iter().next().map(|entry| entry.id), Some(2), "the newest stays");
    }

    #[test]
    fn the_status_shows_the_newest_without_their_words() {
        let mut log = SlowLog::default();
        for ms in 0..100 {
            ended(&mut log, "a-secret", 10 + ms);
        }
        let shown = log.report(Time(5_000_000_000));
        assert_eq!((shown.len(), shown[0].id, shown[19].id), (REPORTED_MAX, 99, 80));
        assert_eq!((shown[0].command.as_str(), shown[0].keys), ("get", 1));
        assert_eq!((shown[0].seconds, shown[0].age_seconds), (0.109, 5.0));
        let text = format!("{shown:?}");
        assert!(!text.contains("a-secret"), "{text}");
    }

    #[test]
    fn long_requests_are_shortened() {
        let long = [b'x'; 1_000];
        let words: Vec<&[u8]> = std::iter::repeat_n(&long[..], 40).collect();
        let begun = Begun::new(Time(0), &words, ("mget", 39));
        assert_eq!(begun.words.len(), WORDS_MAX);
        assert!(begun.words[0].ends_with(b"... (872 more bytes)"));
        assert_eq!(&*begun.words[31], b"... (9 more arguments)");
    }

    #[test]
    fn a_second_has_one_sample_and_old_seconds_are_forgotten() {
        let mut log = LatencyLog::default();
        let at = |second: u64| Time(second * 1_000_000_000);
        for ms in [99, 100, 300, 200] {
            log.record(at(5), SYNC, Span::from_millis(ms));
        }
        let spikes = log.get(b"journal-sync").unwrap();
        assert_eq!((spikes.samples.len(), spikes.samples[0].ms, spikes.ms_max), (1, 300, 300));
        for second in 10..400 {
            log.record(at(second), SYNC, Span::from_millis(150));
        }
        let spikes = log.get(b"journal-sync").unwrap();
        assert_eq!(spikes.samples.len(), SAMPLES_MAX);
        assert_eq!(spikes.samples[0].second, 400 - SAMPLES_MAX as u64);
        log.record(at(1), COMMAND, Span::from_secs(1));
        assert_eq!((log.reset(&[b"command", b"none"]), log.iter().len()), (1, 1));
        assert_eq!(log.reset(&[]), 1);
    }
}
