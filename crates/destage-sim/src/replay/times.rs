//! How long the devices of a recording took, one by one and on average.

use super::ASSUMED;
use super::load::{BatchTime, Load};
use crate::machine::Devices;
use destage_core::{Span, Time};
use destage_runtime::units::Interval;

/// How long the devices take.
pub(super) struct Times<'l> {
    load: &'l Load,
    syncs: usize,
    fetches: usize,
    /// Those of the batches that were recorded, by their units.
    batches: Vec<BatchTime>,
}

impl<'l> Times<'l> {
    pub(super) fn of(load: &'l Load) -> Self {
        let mut batches = load.destages.clone();
        batches.sort_by_key(|batch| batch.units);
        Self { load, syncs: 0, fetches: 0, batches }
    }

    pub(super) fn sync(&mut self) -> Span {
        self.syncs += 1;
        nth(&self.load.syncs, self.syncs - 1)
    }

    pub(super) fn fetch(&mut self) -> Span {
        self.fetches += 1;
        nth(&self.load.fetches, self.fetches - 1)
    }

    /// As long as that one of the recorded batches of about so many units which began at about the same time: so the times need
    /// not lie on a line, and an origin that was slow for a while is slow then. One that is larger than all of them takes longer
    /// by its share.
    pub(super) fn destage(&self, now: Time, units: u64) -> Span {
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

/// So many of the recorded batches, those next to it in size, stand for one.
const ALIKE: usize = 9;

fn nth(spans: &[Span], index: usize) -> Span {
    if spans.is_empty() { ASSUMED } else { spans[index % spans.len()] }
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
        let (sync, fetch) = (mean(&self.syncs), mean(&self.fetches));
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
        load.syncs = vec![ms(1), ms(3)];
        load.fetches = vec![ms(5)];
        load.destages = batches([(1, ms(3)), (2, ms(4)), (11, ms(13))]);
        let devices = load.devices().expect("they were recorded");
        assert_eq!((devices.flash.write.span(), devices.filer.read.span()), (ms(2), ms(5)));
        assert_eq!((devices.filer.write.span(), devices.filer.next.span()), (ms(3), ms(1)));
        assert_eq!((devices.filer.slow_percent, devices.packet.span()), (0, Span::ZERO));
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
