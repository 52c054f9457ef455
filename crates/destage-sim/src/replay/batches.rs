//! How long batches of other sizes take than those that were recorded.

use super::ASSUMED;
use super::load::Load;
use destage_core::{Span, Time};
use hashbrown::HashMap;

/// What the time of a batch depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchSize {
    /// Distinct blocks or rows.
    units: u64,
    /// Of a volume, runs of neighbouring blocks, since a disk moves between them; rows stand each for itself.
    runs: u64,
}

impl BatchSize {
    /// The size of a batch of these items.
    pub(super) fn of(load: &Load, items: impl Iterator<Item = u32>) -> Self {
        let mut places: Vec<(u32, u64)> = items.map(|item| load.place(item)).collect();
        places.sort_unstable();
        places.dedup();
        let units = places.len() as u64;
        if !load.counts_writes_only {
            return Self { units, runs: units };
        }
        let is_next =
            |&(device, block): &(u32, u64), next: &(u32, u64)| *next == (device, block + 1);
        let runs = places.chunk_by(is_next).count() as u64;
        Self { units, runs }
    }
}

/// What a batch costs by its size, seconds: the sum of these, none of them negative, that comes nearest to what was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    /// Of the batch itself.
    pub(super) fixed: f64,
    /// Of each unit.
    pub(super) unit: f64,
    /// Of each run.
    pub(super) run: f64,
}

impl Cost {
    /// The one of a load's batches, wherever their units are.
    pub(super) fn by_units(load: &Load) -> Self {
        let alone = |(size, took): (BatchSize, f64)| (BatchSize { runs: 0, ..size }, took);
        Self::fit(&samples(load).map(alone).collect::<Vec<_>>())
    }

    /// The least squares. None of the parts is negative, so the best is found among those that leave some of them out.
    fn fit(samples: &[(BatchSize, f64)]) -> Self {
        if samples.is_empty() {
            return Self { fixed: ASSUMED.as_secs_f64(), ..Self::default() };
        }
        let parts = |size: &BatchSize| [1.0, size.units as f64, size.runs as f64];
        let (mut square, mut product) = ([[0.0; 3]; 3], [0.0; 3]);
        for (size, took) in samples {
            let values = parts(size);
            for (row, &value) in values.iter().enumerate() {
                product[row] += value * took;
                for (column, &other) in values.iter().enumerate() {
                    square[row][column] += value * other;
                }
            }
        }
        let error = |found: &[f64; 3]| -> f64 {
            let off = |(size, took): &(BatchSize, f64)| {
                let sum: f64 =
                    parts(size).iter().zip(found).map(|(value, part)| value * part).sum();
                (sum - took) * (sum - took)
            };
            samples.iter().map(off).sum()
        };
        let all = (1..8).filter_map(|chosen| solve(&square, &product, chosen));
        let best = all.min_by(|one, other| error(one).total_cmp(&error(other)));
        let [fixed, unit, run] = best.unwrap_or_default();
        Self { fixed, unit, run }
    }

    /// Nanoseconds.
    fn nanos(&self, size: BatchSize) -> u64 {
        let seconds = self.fixed + self.unit * size.units as f64 + self.run * size.runs as f64;
        ((seconds * 1e9) as u64).max(1)
    }
}

/// The sizes of the batches that were recorded, and how long they took, seconds.
fn samples(load: &Load) -> impl Iterator<Item = (BatchSize, f64)> {
    load.destages
        .iter()
        .map(|batch| (BatchSize::of(load, batch.items.iter().copied()), batch.took.as_secs_f64()))
}

/// Solves the equations of the chosen unknowns, one bit each; `None` where they do not tell them, or one would be negative.
fn solve(square: &[[f64; 3]; 3], product: &[f64; 3], chosen: u32) -> Option<[f64; 3]> {
    let is_chosen = |index: usize| chosen & (1 << index) != 0;
    let (mut left, mut right) = (*square, *product);
    for index in (0..3).filter(|&index| !is_chosen(index)) {
        left[index] = [0.0; 3];
        left.iter_mut().for_each(|row| row[index] = 0.0);
        (left[index][index], right[index]) = (1.0, 0.0);
    }
    for pivot in 0..3 {
        // What is left of a square that others explain is rounding.
        if left[pivot][pivot] <= square[pivot][pivot] * 1e-9 && is_chosen(pivot) {
            return None;
        }
        for row in (0..3).filter(|&row| row != pivot) {
            let factor = left[row][pivot] / left[pivot][pivot];
            let of_pivot = left[pivot];
            for (value, other) in left[row].iter_mut().zip(of_pivot) {
                *value -= factor * other;
            }
            right[row] -= factor * right[pivot];
        }
    }
    let found = [0, 1, 2].map(|index| right[index] / left[index][index]);
    found.iter().all(|part| part.is_finite() && *part >= 0.0).then_some(found)
}

/// What goes to the origin at a time: batches of about the same cost are one, and nothing is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Traffic(u32);

impl Traffic {
    /// Nothing.
    pub(super) const NONE: Self = Self(0);

    const fn of(cost: u64) -> Self {
        Self(1 + cost.ilog2())
    }

    /// How many times as much it is as a smaller one, neither of them nothing.
    pub(super) const fn times(self, smaller: Self) -> u64 {
        1 << self.0.abs_diff(smaller.0)
    }

    /// How much it differs from another one: most where one of them is nothing.
    pub(super) const fn distance(self, other: Self) -> u32 {
        let is_other_kind = (self.0 == 0) != (other.0 == 0);
        self.0.abs_diff(other.0) + if is_other_kind { u64::BITS } else { 0 }
    }
}

/// A batch that was recorded.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    /// What one of its size costs, nanoseconds.
    cost: u64,
    began: Time,
    took: Span,
}

/// All of them.
pub(super) struct Batches {
    cost: Cost,
    by_cost: Vec<Recorded>,
    /// In the order in which they began.
    in_time: Vec<Recorded>,
    by_number: HashMap<u32, Traffic>,
    /// The most units, where batches differ too little in size to tell what more of them cost.
    untold_from: Option<u64>,
}

impl Batches {
    pub(super) fn of(load: &Load) -> Self {
        let samples: Vec<(BatchSize, f64)> = samples(load).collect();
        let cost = Cost::fit(&samples);
        let recorded = load.destages.iter().zip(&samples).map(|(batch, (size, _))| Recorded {
            cost: cost.nanos(*size),
            began: batch.began,
            took: batch.took,
        });
        let mut by_cost: Vec<Recorded> = recorded.collect();
        let numbers = load.destages.iter().map(|batch| batch.number);
        let by_number = numbers.zip(&by_cost).map(|(number, it)| (number, Traffic::of(it.cost)));
        let by_number = by_number.collect();
        let mut in_time = by_cost.clone();
        by_cost.sort_by_key(|batch| batch.cost);
        in_time.sort_by_key(|batch| batch.began);
        let units = samples.iter().map(|(size, _)| size.units);
        let (least, most) =
            units.fold((u64::MAX, 0), |(least, most), units| (least.min(units), most.max(units)));
        let untold_from = (most > 0 && most < least.saturating_mul(2)).then_some(most);
        Self { cost, by_cost, in_time, by_number, untold_from }
    }

    /// What a batch of this size costs, nanoseconds. Where nothing tells what more units cost than were recorded, they cost their
    /// share.
    fn cost(&self, size: BatchSize) -> u64 {
        let cost = self.cost.nanos(size);
        match self.untold_from {
            Some(most) if size.units > most => {
                let of_most = self.by_cost.last().map_or(cost, |largest| largest.cost);
                let share = u128::from(of_most) * u128::from(size.units) / u128::from(most);
                cost.max(u64::try_from(share).unwrap_or(u64::MAX))
            }
            _ => cost,
        }
    }

    /// The traffic of a batch.
    pub(super) fn traffic(&self, size: BatchSize) -> Traffic {
        Traffic::of(self.cost(size))
    }

    /// The traffic of recorded ones, by their numbers: that of the one which costs most. `None` if nothing is known of any, for it
    /// failed, or had not ended.
    pub(super) fn recorded_traffic(&self, numbers: &[u32]) -> Option<Traffic> {
        if numbers.is_empty() {
            return Some(Traffic::NONE);
        }
        numbers.iter().filter_map(|number| self.by_number.get(number)).copied().max()
    }

    /// As long as that one of the recorded batches of about this size which began at about the same time: so the times need not lie
    /// on a line, and an origin that was slow for a while is slow then. Where none of the size is near in time, those nearest in
    /// size are. One that is larger than all of them takes longer by its share. Sizes are compared by what they cost.
    pub(super) fn took(&self, now: Time, size: BatchSize) -> Span {
        let cost = self.cost(size);
        if let Some(near) = self.near(now, cost) {
            return near.took;
        }
        let after = self.by_cost.partition_point(|batch| batch.cost < cost);
        let first = after.saturating_sub(ALIKE / 2).min(self.by_cost.len().saturating_sub(ALIKE));
        let alike = &self.by_cost[first..self.by_cost.len().min(first + ALIKE)];
        let nearest = alike.iter().min_by_key(|batch| batch.began.0.abs_diff(now.0));
        let Some(&Recorded { cost: other, took, .. }) = nearest else { return ASSUMED };
        let is_beyond = self.by_cost.last().is_some_and(|largest| cost > largest.cost);
        if !is_beyond {
            return took;
        }
        Span((u128::from(took.0) * u128::from(cost) / u128::from(other)) as u64)
    }

    /// The batch of about this cost that began nearest to now.
    fn near(&self, now: Time, cost: u64) -> Option<Recorded> {
        let after = self.in_time.partition_point(|batch| batch.began < now);
        let (before, after) = self.in_time.split_at(after);
        let (mut before, mut after) = (before.iter().rev().peekable(), after.iter().peekable());
        let distance = |batch: &&Recorded| batch.began.0.abs_diff(now.0);
        for _ in 0..NEAR {
            let next = match (before.peek(), after.peek()) {
                (Some(earlier), Some(later)) if distance(later) < distance(earlier) => after.next(),
                (Some(_), _) => before.next(),
                (None, _) => after.next(),
            };
            let batch = next?;
            if batch.cost.abs_diff(cost) <= cost / ALIKE_SHARE {
                return Some(*batch);
            }
        }
        None
    }
}

/// So many batches are looked at, the nearest in time first.
const NEAR: usize = 64;
/// A batch is about as large as another one if what they cost differs by this share of it.
const ALIKE_SHARE: u64 = 8;
/// So many of the recorded batches, those next to it in size, stand for one.
const ALIKE: usize = 9;

#[cfg(test)]
pub(super) mod tests {
    use super::super::load::BatchTime;
    use super::*;

    /// Batches of so many units, which took so long, one every second.
    pub(in super::super) fn batches(load: &mut Load, all: impl IntoIterator<Item = (u64, Span)>) {
        let seconds = (0..).map(Time::from_secs);
        let all = all.into_iter().zip(seconds);
        let all: Vec<_> = all
            .map(|((units, took), began)| BatchTime {
                number: began.0 as u32,
                items: (0..units as u32).collect(),
                began,
                took,
            })
            .collect();
        let most = all.iter().map(|batch| batch.items.len()).max().unwrap_or(0);
        load.identities = vec![None; most];
        load.destages = all;
    }

    /// So many rows.
    fn rows(count: u64) -> BatchSize {
        BatchSize { units: count, runs: count }
    }

    #[test]
    fn a_batch_takes_as_long_as_those_of_its_size_did() {
        let ms = Span::from_millis;
        let mut load = Load::default();
        let at = Time::from_secs;
        assert_eq!(Batches::of(&load).took(at(0), rows(7)), ASSUMED);
        // Small ones take 2 or 4 ms, large ones 50: no line has both.
        let small = |units| (units, ms(2 + units % 2 * 2));
        let both = || (1..=20).map(small).chain((500..520).map(|units| (units, ms(50))));
        batches(&mut load, both());
        let times = Batches::of(&load);
        let small: Vec<Span> = (0..20).map(|second| times.took(at(second), rows(10))).collect();
        assert!(small.contains(&ms(2)) && small.contains(&ms(4)), "{small:?}");
        assert!(small.iter().all(|&span| span <= ms(4)), "{small:?}");
        // The tenth second had the one of 11 units.
        assert_eq!((small[9], small[10]), (ms(2), ms(4)));
        assert_eq!(times.took(at(0), rows(510)), ms(50));
        let larger = times.took(at(0), rows(5_150));
        assert!((ms(450)..ms(520)).contains(&larger), "{larger:?}");
        // Many of one size: the origin was slow in the middle.
        let took = |second| if (100..200).contains(&second) { 40 } else { 4 };
        batches(&mut load, (0..300).map(|second| (1_000, ms(took(second)))));
        let times = Batches::of(&load);
        let at_most = [50, 150, 250].map(|second| times.took(at(second), rows(1_050)));
        assert_eq!(at_most, [ms(4), ms(40), ms(4)]);
    }

    #[test]
    fn larger_batches_take_longer_where_all_that_were_recorded_are_of_one_size() {
        let ms = Span::from_millis;
        let mut load = Load::default();
        batches(&mut load, (0..30).map(|second| (4, ms(5 + second % 2))));
        let times = Batches::of(&load);
        let took = |units| times.took(Time::from_secs(3), rows(units));
        assert!((ms(5)..=ms(6)).contains(&took(4)), "{:?}", took(4));
        assert!((ms(4_000)..ms(9_000)).contains(&took(4_000)), "{:?}", took(4_000));
        assert!(times.traffic(rows(4_000)) > times.traffic(rows(4)));
    }

    #[test]
    fn scattered_blocks_take_longer_than_neighbours() {
        let ms = Span::from_millis;
        let at = Time::from_secs;
        let mut load = Load::default();
        load.note_subject("block v");
        // Every fourth batch is scattered.
        let batch = |number: u64| {
            let (count, step, took) = if number.is_multiple_of(4) {
                (40 + number as u32, 2, 400)
            } else {
                (50 + number as u32, 1, 60)
            };
            let items = (0..count).map(|index| index * step).collect();
            BatchTime { number: number as u32, items, began: at(number), took: ms(took) }
        };
        load.destages = (0..40).map(batch).collect();
        load.identities = vec![None; 200];
        let times = Batches::of(&load);
        let size = |count: u32, step| BatchSize::of(&load, (0..count).map(|index| index * step));
        assert_eq!(size(60, 2), BatchSize { units: 60, runs: 60 });
        assert_eq!(size(60, 1), BatchSize { units: 60, runs: 1 });
        let twice = (0..60).chain(0..60);
        assert_eq!(BatchSize::of(&load, twice), size(60, 1));
        assert_eq!(times.took(at(20), size(60, 2)), ms(400));
        assert_eq!(times.took(at(20), size(60, 1)), ms(60));
        assert_eq!(times.took(at(20), size(150, 1)), ms(60));
        let cost = times.cost;
        assert!(cost.run > 0.004 && cost.unit < 0.001, "{cost:?}");
    }

    #[test]
    fn a_cost_goes_through_its_samples() {
        let fit = |all: &[(u64, u64)]| {
            let samples = all.iter().map(|&(count, ms)| (rows(count), ms as f64 / 1e3));
            Cost::fit(&samples.collect::<Vec<_>>())
        };
        let near = |found: Cost, fixed: f64, each: f64| {
            let off = (found.fixed - fixed).abs() + (found.unit + found.run - each).abs();
            assert!(off < 1e-6, "{found:?}");
        };
        near(fit(&[(1, 3), (2, 4), (11, 13)]), 0.002, 0.001);
        near(fit(&[(5, 7), (5, 9)]), 0.008, 0.0);
        let falling = fit(&[(1, 9), (9, 1)]);
        assert!(falling.fixed > 0.0 && falling.unit + falling.run == 0.0, "{falling:?}");
        near(fit(&[]), 0.001, 0.0);
        let both = [(10, 1), (10, 10), (100, 1), (100, 50), (40, 20)].map(|(units, runs)| {
            (BatchSize { units, runs }, 0.003 + units as f64 * 1e-5 + runs as f64 * 2e-3)
        });
        let found = Cost::fit(&both);
        let off =
            (found.fixed - 0.003).abs() + (found.unit - 1e-5).abs() + (found.run - 2e-3).abs();
        assert!(off < 1e-9, "{found:?}");
    }
}
