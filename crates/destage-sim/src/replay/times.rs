//! How long the devices of a recording took, one by one and on average.

use super::ASSUMED;
use super::load::{BatchTime, Fetched, Load, Timed};
use crate::machine::Devices;
use destage_core::{Span, Time};
use destage_runtime::units::Interval;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// How long the devices take.
pub(super) struct Times {
    syncs: Series,
    /// Those that had the origin to themselves, and those beside batches.
    fetches: [Series; 2],
    /// Those of each thing that was fetched, in order.
    of_each: HashMap<u64, VecDeque<Fetched>>,
    /// Those of the batches that were recorded, by their units.
    batches: Vec<BatchTime>,
    /// The same in the order in which they began.
    in_time: Vec<BatchTime>,
}

impl Times {
    pub(super) fn of(load: &Load) -> Self {
        let mut batches = load.destages.clone();
        batches.sort_by_key(|batch| batch.units);
        let mut in_time = load.destages.clone();
        in_time.sort_by_key(|batch| batch.began);
        let mut of_each: HashMap<u64, VecDeque<Fetched>> = HashMap::new();
        for fetch in &load.fetches {
            of_each.entry(fetch.identity).or_default().push_back(*fetch);
        }
        let syncs = Series::new(load.syncs.clone());
        let fetches = [false, true].map(|is_beside_batches| {
            let alike = load.fetches.iter().filter(|it| it.is_beside_batches == is_beside_batches);
            Series::new(alike.map(|it| it.timed).collect())
        });
        Self { syncs, fetches, of_each, batches, in_time }
    }

    pub(super) fn sync(&mut self, now: Time) -> Span {
        self.syncs.next(now)
    }

    /// As long as the same thing took when it was fetched in the recording; as one of that time if it was not, or not so often.
    /// An origin that writes batches at the same time is slower: what was fetched beside them stands only for what is, and the
    /// other way round, as long as there is any such.
    pub(super) fn fetch(&mut self, now: Time, identity: u64, is_beside_batches: bool) -> Span {
        let alike = &mut self.fetches[usize::from(is_beside_batches)];
        let is_known = !alike.all.is_empty();
        let own = self.of_each.get_mut(&identity).and_then(|own| {
            let is_alike = |it: &Fetched| it.is_beside_batches == is_beside_batches || !is_known;
            let first = own.iter().position(is_alike)?;
            own.remove(first)
        });
        match own {
            Some(own) => own.timed.took,
            None if is_known => alike.next(now),
            None => self.fetches[usize::from(!is_beside_batches)].next(now),
        }
    }

    /// As long as that one of the recorded batches of about so many units which began at about the same time: so the times need
    /// not lie on a line, and an origin that was slow for a while is slow then. Where none of the size is near in time, those
    /// nearest in size are. One that is larger than all of them takes longer by its share.
    pub(super) fn destage(&self, now: Time, units: u64) -> Span {
        if let Some(near) = self.near(now, units) {
            return near.took;
        }
        let after = self.batches.partition_point(|batch| batch.units < units);
        let first = after.saturating_sub(ALIKE / 2).min(self.batches.len().saturating_sub(ALIKE));
        let alike = &self.batches[first..self.batches.len().min(first + ALIKE)];
        let nearest = alike.iter().min_by_key(|batch| batch.began.0.abs_diff(now.0));
        let Some(&BatchTime { units: other, took, .. }) = nearest else { return ASSUMED };
        let is_beyond = self.batches.last().is_some_and(|largest| units > largest.units);
        if !is_beyond {
            return took;
        }
        Span((u128::from(took.0) * u128::from(units) / u128::from(other.max(1))) as u64)
    }
}

impl Times {
    /// The batch of about so many units that began nearest to now.
    fn near(&self, now: Time, units: u64) -> Option<BatchTime> {
        let after = self.in_time.partition_point(|batch| batch.began < now);
        let (before, after) = self.in_time.split_at(after);
        let (mut before, mut after) = (before.iter().rev().peekable(), after.iter().peekable());
        let distance = |batch: &&BatchTime| batch.began.0.abs_diff(now.0);
        for _ in 0..NEAR {
            let next = match (before.peek(), after.peek()) {
                (Some(earlier), Some(later)) if distance(later) < distance(earlier) => after.next(),
                (Some(_), _) => before.next(),
                (None, _) => after.next(),
            };
            let batch = next?;
            if batch.units.abs_diff(units) <= units / ALIKE_SHARE {
                return Some(*batch);
            }
        }
        None
    }
}

/// So many batches are looked at, the nearest in time first.
const NEAR: usize = 64;
/// A batch is about as large as another one if they differ by this share of it.
const ALIKE_SHARE: u64 = 8;
/// So many of the recorded batches, those next to it in size, stand for one.
const ALIKE: usize = 9;

/// Times that are taken one after the other, none twice unless more are needed than there are. One that is asked for later than
/// the next one began is that of its own time, so that a device which was slow for a while is slow then.
struct Series {
    /// In the order in which they began.
    all: Vec<Timed>,
    next: usize,
}

impl Series {
    fn new(mut all: Vec<Timed>) -> Self {
        all.sort_by_key(|timed| timed.began);
        Self { all, next: 0 }
    }

    fn next(&mut self, now: Time) -> Span {
        let at_now = self.all.partition_point(|timed| timed.began < now);
        let index = if self.next < self.all.len() { self.next.max(at_now) } else { at_now };
        let index = index.min(self.all.len().saturating_sub(1));
        self.next = index + 1;
        self.all.get(index).map_or(ASSUMED, |timed| timed.took)
    }
}

impl Load {
    /// Devices as slow as those of the recording were on average, as their host saw them; what was not recorded is as unless told.
    /// A batch takes a time for itself and one for each of its units. `None` if nothing was recorded of any.
    pub fn devices(&self) -> Option<Devices> {
        let mean = |spans: &[Span]| {
            let sum: u128 = spans.iter().map(|span| u128::from(span.0)).sum();
            let mean = sum.checked_div(spans.len() as u128)?;
            Some(Interval(Span(mean as u64)))
        };
        let syncs: Vec<Span> = self.syncs.iter().map(|sync| sync.took).collect();
        let fetches: Vec<Span> = self.fetches.iter().map(|fetch| fetch.timed.took).collect();
        let (sync, fetch) = (mean(&syncs), mean(&fetches));
        if sync.is_none() && fetch.is_none() && self.destages.is_empty() {
            return None;
        }
        let mut devices = Devices::default();
        devices.flash.write = sync.unwrap_or(devices.flash.write);
        // The way to the origin is in the times.
        (devices.packet, devices.kilobyte) = (Interval(Span::ZERO), Interval(Span::ZERO));
        let filer = &mut devices.filer;
        if let Some(fetch) = fetch {
            (filer.read, filer.slow_read, filer.slow_percent) = (fetch, fetch, 0);
        }
        if !self.destages.is_empty() {
            let (fixed, each) = line(&self.destages);
            let span = |seconds: f64| Interval(Span((seconds * 1e9) as u64));
            (filer.write, filer.next) = (span(fixed + each), span(each));
        }
        Some(devices)
    }
}

/// The line of least squares through times over units, seconds; neither part is negative.
fn line(samples: &[BatchTime]) -> (f64, f64) {
    if samples.is_empty() {
        return (ASSUMED.as_secs_f64(), 0.0);
    }
    let count = samples.len() as f64;
    let mean_units = samples.iter().map(|batch| batch.units as f64).sum::<f64>() / count;
    let mean_time = samples.iter().map(|batch| batch.took.as_secs_f64()).sum::<f64>() / count;
    let (mut square, mut product) = (0.0, 0.0);
    for batch in samples {
        let distance = batch.units as f64 - mean_units;
        square += distance * distance;
        product += distance * (batch.took.as_secs_f64() - mean_time);
    }
    let slope = if square > 0.0 { (product / square).max(0.0) } else { 0.0 };
    let fixed = mean_time - slope * mean_units;
    if fixed >= 0.0 { (fixed, slope) } else { (0.0, mean_time / mean_units.max(1.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of so many units, which took so long, one every second.
    fn batches(all: impl IntoIterator<Item = (u64, Span)>) -> Vec<BatchTime> {
        let seconds = (0..).map(Time::from_secs);
        let all = all.into_iter().zip(seconds);
        all.map(|((units, took), began)| BatchTime { units, began, took }).collect()
    }

    #[test]
    fn devices_are_as_slow_as_they_were() {
        assert_eq!(Load::default().devices(), None);
        let ms = Span::from_millis;
        let mut load = Load::default();
        let timed = |took| Timed { began: Time::ZERO, took };
        load.syncs = vec![timed(ms(1)), timed(ms(3))];
        let (identity, timed_fetch) = (7, timed(ms(5)));
        load.fetches = vec![Fetched { identity, is_beside_batches: false, timed: timed_fetch }];
        load.destages = batches([(1, ms(3)), (2, ms(4)), (11, ms(13))]);
        let devices = load.devices().expect("they were recorded");
        assert_eq!((devices.flash.write.span(), devices.filer.read.span()), (ms(2), ms(5)));
        assert_eq!((devices.filer.write.span(), devices.filer.next.span()), (ms(3), ms(1)));
        assert_eq!((devices.filer.slow_percent, devices.packet.span()), (0, Span::ZERO));
    }

    #[test]
    fn a_fetch_takes_as_long_as_that_of_the_same_thing_did_and_others_as_those_of_their_time() {
        let (ms, at) = (Span::from_millis, Time::from_secs);
        let mut load = Load::default();
        assert_eq!(Times::of(&load).fetch(at(0), 1, false), ASSUMED);
        let fetched = |identity, began, took| Fetched {
            identity,
            is_beside_batches: false,
            timed: Timed { began: at(began), took: ms(took) },
        };
        // As they ended.
        load.fetches =
            vec![fetched(1, 0, 10), fetched(2, 1, 20), fetched(1, 60, 40), fetched(3, 50, 30)];
        let mut times = Times::of(&load);
        let mut fetch = |second, identity| times.fetch(at(second), identity, false);
        assert_eq!((fetch(5, 2), fetch(6, 1)), (ms(20), ms(10)));
        assert_eq!(fetch(7, 1), ms(40), "its second one");
        // Unknown: the ones of their time, none twice.
        assert_eq!((fetch(0, 9), fetch(0, 9)), (ms(10), ms(20)));
        assert_eq!((fetch(40, 9), fetch(40, 9)), (ms(30), ms(40)));
        // More than there are.
        assert_eq!((fetch(45, 9), fetch(0, 9)), (ms(30), ms(40)));
    }

    #[test]
    fn a_fetch_beside_batches_takes_as_long_as_those_that_were_beside_some() {
        let (ms, at) = (Span::from_millis, Time::from_secs);
        let mut load = Load::default();
        let fetched = |identity, is_beside_batches, began, took| Fetched {
            identity,
            is_beside_batches,
            timed: Timed { began: at(began), took: ms(took) },
        };
        load.fetches =
            vec![fetched(1, false, 0, 3), fetched(1, true, 1, 30), fetched(2, true, 2, 20)];
        let mut times = Times::of(&load);
        // The same thing's own where it was as busy; else one that was, of about that time.
        assert_eq!(times.fetch(at(9), 1, true), ms(30));
        assert_eq!(times.fetch(at(9), 2, false), ms(3));
        assert_eq!(times.fetch(at(9), 1, false), ms(3));
        assert_eq!(times.fetch(at(9), 7, true), ms(20));
        // Where nothing was as busy, all stand for it.
        load.fetches.remove(0);
        let mut times = Times::of(&load);
        assert_eq!(times.fetch(at(9), 1, false), ms(30));
        assert_eq!(times.fetch(at(9), 7, false), ms(20));
    }

    #[test]
    fn a_batch_takes_as_long_as_those_of_its_size_did() {
        let ms = Span::from_millis;
        let mut load = Load::default();
        let at = Time::from_secs;
        assert_eq!(Times::of(&load).destage(at(0), 7), ASSUMED);
        // Small ones take 2 or 4 ms, large ones 50: no line has both.
        let small = (1..=20).map(|units| (units, ms(2 + units % 2 * 2)));
        load.destages = batches(small.chain((500..520).map(|units| (units, ms(50)))));
        let times = Times::of(&load);
        let small: Vec<Span> = (0..20).map(|second| times.destage(at(second), 10)).collect();
        assert!(small.contains(&ms(2)) && small.contains(&ms(4)), "{small:?}");
        assert!(small.iter().all(|&span| span <= ms(4)), "{small:?}");
        // The tenth second had the one of 11 units.
        assert_eq!((small[9], small[10]), (ms(2), ms(4)));
        // Many of one size: the origin was slow in the middle.
        let took = |second| if (100..200).contains(&second) { 40 } else { 4 };
        load.destages = batches((0..300).map(|second| (1_000, ms(took(second)))));
        let times = Times::of(&load);
        let at_most = [50, 150, 250].map(|second| times.destage(at(second), 1_050));
        assert_eq!(at_most, [ms(4), ms(40), ms(4)]);
        load.destages = batches(
            (1..=20)
                .map(|units| (units, ms(2 + units % 2 * 2)))
                .chain((500..520).map(|units| (units, ms(50)))),
        );
        let times = Times::of(&load);
        assert_eq!(times.destage(at(0), 510), ms(50));
        let larger = times.destage(at(0), 5_150);
        assert!((ms(490)..ms(520)).contains(&larger), "{larger:?}");
    }

    #[test]
    fn a_line_goes_through_its_samples() {
        let ms = Span::from_millis;
        let (fixed, each) = line(&batches([(1, ms(3)), (2, ms(4)), (11, ms(13))]));
        assert!((fixed - 0.002).abs() < 1e-9 && (each - 0.001).abs() < 1e-9, "{fixed} {each}");
        assert_eq!(line(&batches([(5, ms(7))])), (0.007, 0.0));
        let (fixed, each) = line(&batches([(1, ms(9)), (9, ms(1))]));
        assert!(fixed > 0.0 && each == 0.0, "more units never take less");
        assert_eq!(line(&[]), (0.001, 0.0));
    }
}
