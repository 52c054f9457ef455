//! How long the devices of a recording took, one by one and on average.

use super::ASSUMED;
use super::batches::{BatchSize, Batches, Cost, Traffic};
use super::load::{Load, Request, Timed};
use crate::machine::Devices;
use destage_core::{Span, Time};
use destage_runtime::units::Interval;
use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};

/// How long the devices take.
pub(super) struct Times {
    syncs: Series,
    /// By what went to the origin when they began, and by how many there were at a time.
    fetches: BTreeMap<Traffic, BTreeMap<Crowd, Series>>,
    /// Whether that counts.
    is_of_rows: bool,
    /// Reads that had to wait, and those that hit.
    served: [Series; 2],
    /// Those of each thing that was fetched, in order.
    of_each: HashMap<u64, VecDeque<(Traffic, Crowd, Span)>>,
    batches: Batches,
}

/// How many fetches are under way at a time, the one that is asked for among them: two to the power of this, and less than twice
/// as many.
type Crowd = u32;

/// With fewer of a [`Crowd`], the one of half as many stands for it, too.
const CROWD_MIN: usize = 32;

fn crowd(count: usize) -> Crowd {
    count.max(1).ilog2()
}

impl Times {
    pub(super) fn of(load: &Load) -> Self {
        let batches = Batches::of(load);
        let is_of_rows = !load.counts_writes_only;
        let mut found: BTreeMap<Traffic, BTreeMap<Crowd, Vec<(u64, Timed)>>> = BTreeMap::new();
        for (fetch, count) in load.fetches.iter().zip(under_way(load)) {
            let Some(traffic) = batches.recorded_traffic(&fetch.beside) else { continue };
            let crowd = if is_of_rows { crowd(count) } else { 0 };
            let of_crowd = found.entry(traffic).or_default().entry(crowd).or_default();
            of_crowd.push((fetch.identity, fetch.timed));
        }
        let mut of_each: HashMap<u64, VecDeque<(Traffic, Crowd, Span)>> = HashMap::new();
        let mut fetches: BTreeMap<Traffic, BTreeMap<Crowd, Series>> = BTreeMap::new();
        for (traffic, mut crowds) in found {
            while let Some((crowd, few)) = crowds.pop_last() {
                if let Some(mut less) = crowds.last_entry().filter(|_| few.len() < CROWD_MIN) {
                    less.get_mut().extend(few);
                    continue;
                }
                for (identity, timed) in &few {
                    of_each.entry(*identity).or_default().push_back((traffic, crowd, timed.took));
                }
                let timed = few.into_iter().map(|(_, timed)| timed).collect();
                let series =
                    if is_of_rows { Series::around(timed, CROWD_MIN) } else { Series::new(timed) };
                fetches.entry(traffic).or_default().insert(crowd, series);
            }
        }
        let syncs = Series::new(load.syncs.clone());
        let served = load.served.clone().map(Series::new);
        Self { syncs, fetches, is_of_rows, served, of_each, batches }
    }

    pub(super) fn sync(&mut self, now: Time) -> Span {
        self.syncs.next(now)
    }

    /// As long as the same thing took when it was fetched in the recording; as one of that time if it was not, or not so often.
    /// An origin that writes a batch at the same time is slower, and one that writes a large one is slow for long: what was
    /// fetched beside such stands only for what is, as long as there is any. Beside a larger one than any that was recorded it takes
    /// longer by its share. Rows that are asked for at the same time wait for each other: `count` is of all that are under way then,
    /// this one among them. (A disk has blocks that wait for each other in its own times.)
    pub(super) fn fetch(
        &mut self,
        now: Time,
        identity: u64,
        traffic: Traffic,
        count: usize,
    ) -> Span {
        let largest = self.fetches.keys().next_back().copied().unwrap_or(Traffic::NONE);
        let is_beyond = largest > Traffic::NONE && traffic > largest;
        let nearest = self.fetches.iter_mut().min_by_key(|(other, _)| traffic.distance(**other));
        let Some((&alike, crowds)) = nearest else { return ASSUMED };
        let crowd = if self.is_of_rows { crowd(count) } else { 0 };
        let nearest = crowds.iter_mut().min_by_key(|(other, _)| other.abs_diff(crowd));
        let Some((&crowd, series)) = nearest else { return ASSUMED };
        let own = self.of_each.get_mut(&identity).and_then(|own| {
            let first = own.iter().position(|it| (it.0, it.1) == (alike, crowd))?;
            own.remove(first)
        });
        let took = own.map_or_else(|| series.next(now), |(.., took)| took);
        if is_beyond { Span(took.0.saturating_mul(traffic.times(alike))) } else { took }
    }

    /// How long a read takes once all of it is there: as long as it took itself, if it hit now as it did then; else as one that did,
    /// of this time. A recording that tells of none is of memory, which takes no time.
    pub(super) fn served(&mut self, now: Time, read: &Request, is_hit: bool) -> Span {
        let alike = &mut self.served[usize::from(is_hit)];
        match read.served.filter(|own| own.is_hit == is_hit) {
            Some(own) => own.took,
            None if alike.all.is_empty() => Span::ZERO,
            None => alike.next(now),
        }
    }

    pub(super) fn destage(&self, now: Time, size: BatchSize) -> Span {
        self.batches.took(now, size)
    }

    pub(super) fn traffic(&self, size: BatchSize) -> Traffic {
        self.batches.traffic(size)
    }
}

/// How many fetches were under way when each began, itself among them.
fn under_way(load: &Load) -> impl Iterator<Item = usize> {
    let timed = || load.fetches.iter().map(|fetch| fetch.timed);
    let mut began: Vec<Time> = timed().map(|timed| timed.began).collect();
    let mut ended: Vec<Time> = timed().map(|timed| timed.began + timed.took).collect();
    began.sort_unstable();
    ended.sort_unstable();
    timed().map(move |timed| {
        let until = |all: &[Time]| all.partition_point(|at| *at <= timed.began);
        until(&began).saturating_sub(until(&ended))
    })
}

/// Times that are taken one after the other, none twice unless more are needed than there are. One that is asked for later than
/// the next one began is that of its own time, so that a device which was slow for a while is slow then.
struct Series {
    /// In the order in which they began.
    all: Vec<Timed>,
    next: usize,
    /// How many were taken of so many around a time, once more are needed than there are.
    around: Option<(usize, usize)>,
}

impl Series {
    fn new(mut all: Vec<Timed>) -> Self {
        all.sort_by_key(|timed| timed.began);
        Self { all, next: 0, around: None }
    }

    /// One of which, once more are needed than there are, the times around are taken in turn, so many of them: of one time alone
    /// all would be alike.
    fn around(all: Vec<Timed>, most: usize) -> Self {
        Self { around: Some((0, most)), ..Self::new(all) }
    }

    fn next(&mut self, now: Time) -> Span {
        let at_now = self.all.partition_point(|timed| timed.began < now);
        if let Some((taken, most)) = self.around.as_mut().filter(|_| self.next >= self.all.len()) {
            let most = (*most).min(self.all.len());
            let first = at_now.saturating_sub(most / 2).min(self.all.len() - most);
            let index = first + *taken % most.max(1);
            *taken += 1;
            return self.all.get(index).map_or(ASSUMED, |timed| timed.took);
        }
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
            // These devices know of no places.
            let cost = Cost::by_units(self);
            let each = cost.unit;
            let span = |seconds: f64| Interval(Span((seconds * 1e9) as u64));
            (filer.write, filer.next) = (span(cost.fixed + each), span(each));
        }
        Some(devices)
    }
}

#[cfg(test)]
mod tests {
    use super::super::batches::tests::batches;
    use super::super::load::Fetched;
    use super::*;

    #[test]
    fn devices_are_as_slow_as_they_were() {
        assert_eq!(Load::default().devices(), None);
        let ms = Span::from_millis;
        let mut load = Load::default();
        let timed = |took| Timed { began: Time::ZERO, took };
        load.syncs = vec![timed(ms(1)), timed(ms(3))];
        let (identity, timed_fetch) = (7, timed(ms(5)));
        load.fetches = vec![Fetched { identity, beside: [].into(), timed: timed_fetch }];
        batches(&mut load, [(1, ms(3)), (2, ms(4)), (11, ms(13))]);
        let devices = load.devices().expect("they were recorded");
        assert_eq!((devices.flash.write.span(), devices.filer.read.span()), (ms(2), ms(5)));
        assert_eq!((devices.filer.write.span(), devices.filer.next.span()), (ms(3), ms(1)));
        assert_eq!((devices.filer.slow_percent, devices.packet.span()), (0, Span::ZERO));
    }

    #[test]
    fn a_fetch_takes_as_long_as_that_of_the_same_thing_did_and_others_as_those_of_their_time() {
        let (ms, at) = (Span::from_millis, Time::from_secs);
        let mut load = Load::default();
        assert_eq!(Times::of(&load).fetch(at(0), 1, Traffic::NONE, 1), ASSUMED);
        let fetched = |identity, began, took| Fetched {
            identity,
            beside: [].into(),
            timed: Timed { began: at(began), took: ms(took) },
        };
        // As they ended.
        load.fetches =
            vec![fetched(1, 0, 10), fetched(2, 1, 20), fetched(1, 60, 40), fetched(3, 50, 30)];
        let mut times = Times::of(&load);
        let mut fetch = |second, identity| times.fetch(at(second), identity, Traffic::NONE, 1);
        assert_eq!((fetch(5, 2), fetch(6, 1)), (ms(20), ms(10)));
        assert_eq!(fetch(7, 1), ms(40), "its second one");
        // Unknown: the ones of their time, none twice.
        assert_eq!((fetch(0, 9), fetch(0, 9)), (ms(10), ms(20)));
        assert_eq!((fetch(40, 9), fetch(40, 9)), (ms(30), ms(40)));
        // More than there are: those around, in turn; of a disk the one of that time.
        assert_eq!([fetch(45, 9), fetch(0, 9), fetch(0, 9)], [ms(10), ms(20), ms(30)]);
        load.counts_writes_only = true;
        let mut times = Times::of(&load);
        let mut fetch = |second| times.fetch(at(second), 9, Traffic::NONE, 1);
        assert_eq!([0; 4].map(&mut fetch), [10, 20, 30, 40].map(ms));
        assert_eq!((fetch(45), fetch(0)), (ms(30), ms(40)));
    }

    #[test]
    fn a_fetch_beside_batches_takes_as_long_as_those_that_were_beside_such() {
        let (ms, at) = (Span::from_millis, Time::from_secs);
        let mut load = Load::default();
        batches(&mut load, [(1, ms(10)), (100, ms(1_000))]);
        let [small, large] = [0, 1].map(|index| Some(load.destages[index].number));
        let fetched = |identity, beside: Option<u32>, began, took| Fetched {
            identity,
            beside: beside.into_iter().collect(),
            timed: Timed { began: at(began), took: ms(took) },
        };
        load.fetches = vec![
            fetched(1, None, 0, 3),
            fetched(1, small, 1, 30),
            fetched(2, small, 2, 20),
            fetched(3, large, 3, 800),
        ];
        // One that had not ended says nothing.
        load.fetches.push(fetched(1, Some(77), 4, 90_000));
        let fetch = |times: &mut Times, identity, beside: Option<u32>| {
            let traffic = times.batches.recorded_traffic(&Vec::from_iter(beside));
            times.fetch(at(9), identity, traffic.expect("it is known"), 1)
        };
        // The same thing's own where it was as busy; else one that was, of about that time.
        let mut times = Times::of(&load);
        assert_eq!(fetch(&mut times, 1, small), ms(30));
        assert_eq!(fetch(&mut times, 2, None), ms(3));
        assert_eq!(fetch(&mut times, 1, None), ms(3));
        assert_eq!(fetch(&mut times, 7, small), ms(20));
        assert_eq!(fetch(&mut times, 1, large), ms(800));
        // Where nothing was as busy, those stand for it that were nearly so.
        load.fetches.remove(0);
        load.fetches.truncate(2);
        let mut times = Times::of(&load);
        assert_eq!(fetch(&mut times, 1, None), ms(30));
        assert_eq!(fetch(&mut times, 7, None), ms(20));
        let larger = fetch(&mut times, 7, large);
        assert!(larger >= ms(100), "{larger:?}");
    }

    #[test]
    fn rows_take_as_long_as_those_did_that_were_asked_for_among_as_many() {
        let (ms, at) = (Span::from_millis, Time::from_secs);
        let mut load = Load::default();
        let fetched = |identity, second, took| Fetched {
            identity,
            beside: [].into(),
            timed: Timed { began: at(second), took: ms(took) },
        };
        // Alone, each at its second; then four at a time.
        let all = CROWD_MIN as u64;
        load.fetches.extend((0..all).map(|number| fetched(number, number, 1)));
        load.fetches.extend((0..4 * all).map(|number| fetched(all + number, 100 + number / 4, 9)));
        let took = |load: &Load, identity, count| {
            Times::of(load).fetch(at(150), identity, Traffic::NONE, count)
        };
        assert_eq!(
            (took(&load, 7, 1), took(&load, 7, 4), took(&load, 7, 60)),
            (ms(1), ms(9), ms(9))
        );
        assert_eq!((took(&load, all, 7), took(&load, all, 1)), (ms(9), ms(1)));
        // A few tell nothing of their own.
        load.fetches.truncate(CROWD_MIN + 8);
        assert_eq!(took(&load, 7, 4), ms(1));
        // The times of a disk have it in them.
        load.fetches.extend((0..4 * all).map(|number| fetched(all + number, 100 + number / 4, 9)));
        load.counts_writes_only = true;
        assert_eq!(took(&load, 7, 4), ms(1));
    }
}
