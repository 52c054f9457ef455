//! Rates of a steady state: the cache is warm and as much is dirty as may be before anything is counted.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use super::bench::{BlockBench, POLICIES, Volume};
use super::clients::{Progress, ReadTimes, wait_for_operations};
use crate::Result;
use crate::figure::thousands;
use crate::report::Table;
use crate::stats::Spread;

/// What one steady state gave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) per_second: f64,
    /// Bytes written at the origin for each operation.
    pub(super) written: f64,
    pub(super) reads: ReadTimes,
}

/// What a ratio is of.
#[derive(Clone, Copy, Debug, serde::Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Measured {
    /// Operations a second.
    Rate,
    /// Bytes written at the origin for each operation.
    Written,
}

/// All of a figure: by point, then by policy.
#[derive(Debug, Default)]
pub(super) struct Samples(BTreeMap<String, BTreeMap<String, Vec<Sample>>>);

impl Samples {
    pub(super) fn add(&mut self, point: &str, policy: &str, sample: Sample) {
        let at = self.0.entry(point.to_owned()).or_default();
        at.entry(policy.to_owned()).or_default().push(sample);
    }

    pub(super) fn of(&self, point: &str, policy: &str) -> &[Sample] {
        self.0.get(point).and_then(|at| at.get(policy)).map_or(&[], Vec::as_slice)
    }

    fn spread(&self, point: &str, policy: &str, of: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.of(point, policy).iter().map(of))
    }

    pub(super) fn median(&self, point: &str, policy: &str, measured: Measured) -> Option<f64> {
        let value = |sample: &Sample| match measured {
            Measured::Rate => sample.per_second,
            Measured::Written => sample.written,
        };
        self.spread(point, policy, value).map(|spread| spread.median)
    }

    /// Rate over that of write-through of the same round, percent.
    fn normalised(&self, point: &str, policy: &str) -> String {
        let through = self.of(point, POLICIES[0]);
        let pairs = self.of(point, policy).iter().zip(through);
        match Spread::of(pairs.map(|(own, through)| own.per_second / through.per_second * 100.0)) {
            None => "-".into(),
            Some(it) => format!("{:.0} [{:.0}, {:.0}]", it.median, it.min, it.max),
        }
    }

    fn rate(&self, point: &str, policy: &str) -> String {
        let rate = self.median(point, policy, Measured::Rate);
        rate.map_or_else(|| "-".into(), thousands)
    }

    fn written(&self, point: &str, policy: &str) -> String {
        let written = self.median(point, policy, Measured::Written);
        written.map_or_else(|| "-".into(), |bytes| format!("{:.1}", bytes / 1024.0))
    }

    fn read_ms(&self, point: &str, policy: &str) -> String {
        let mean = self.spread(point, policy, |sample| sample.reads.mean_us / 1e3);
        mean.map_or_else(|| "-".into(), |ms| format!("{:.1}", ms.median))
    }

    /// A table with a row for each point, write-through's rate and the others' in percent of it.
    pub(super) fn normalised_table(
        &self,
        title: &str,
        note: String,
        axis: &str,
        points: &[String],
    ) -> Table {
        let columns = [axis, "write-through, operations/s"];
        let columns = columns.into_iter().chain(POLICIES[1..].iter().copied());
        let row = |point: &String| {
            let mut row = vec![point.clone(), self.rate(point, POLICIES[0])];
            row.extend(POLICIES[1..].iter().map(|policy| self.normalised(point, policy)));
            row
        };
        Table {
            title: title.into(),
            note,
            columns: columns.map(str::to_owned).collect(),
            rows: points.iter().map(row).collect(),
        }
    }

    /// A table with a row for each point and a column for each policy that was measured.
    pub(super) fn swept_table(
        &self,
        title: &str,
        note: &str,
        axis: &str,
        points: &[String],
    ) -> Table {
        let measured: Vec<&str> = POLICIES
            .into_iter()
            .filter(|policy| points.iter().any(|point| !self.of(point, policy).is_empty()))
            .collect();
        let cell = |point: &str, policy: &str| {
            let [rate, written, read] =
                [Self::rate, Self::written, Self::read_ms].map(|of| of(self, point, policy));
            format!("{rate} ({written}; {read})")
        };
        let row = |point: &String| {
            let cells = measured.iter().map(|policy| cell(point, policy));
            std::iter::once(point.clone()).chain(cells).collect()
        };
        let columns = std::iter::once(axis).chain(measured.iter().copied());
        Table {
            title: title.into(),
            note: format!(
                "{note} In each cell: operations a second (KiB written at the origin for each operation, redo store included; \
                 milliseconds that a read takes on average)."
            ),
            columns: columns.map(str::to_owned).collect(),
            rows: points.iter().map(row).collect(),
        }
    }
}

/// What is to be measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady<'a> {
    pub(super) name: &'a str,
    pub(super) policy: &'a str,
    /// The most that may be dirty, bytes.
    pub(super) dirty_bytes_max: u64,
    /// Operations that a rate is of at least, unless they take ten times as long as a run.
    pub(super) operations_min: u64,
}

impl Steady<'_> {
    /// Sets the policy in a state of rest; then runs `load`, which calls what it is given while its clients work.
    pub(super) fn measure(
        &self,
        bench: &BlockBench,
        volume: &mut Volume,
        load: impl FnOnce(&str, &mut dyn FnMut(&Progress) -> Result<Sample>) -> Result<Sample>,
    ) -> Result<Sample> {
        // The limit counts every undestaged write, also those that overwrite a dirty block.
        let limit = format!("dirty-limit={}", (self.dirty_bytes_max * 2).max(64 << 10));
        volume.rest_with(&[self.policy, &limit])?;
        let uri = volume.server.uri();
        let time = bench.options.time.mul_f64(0.6);
        let sample = load(&uri, &mut |progress: &Progress| self.watch(volume, progress, time))?;
        eprintln!(
            "{}, {}, {} MiB dirty at most: {:.0}/s, {:.1} KiB at the origin per operation, reads {:.1} ms, p99 {:.1} ms",
            self.name,
            self.policy,
            self.dirty_bytes_max >> 20,
            sample.per_second,
            sample.written / 1024.0,
            sample.reads.mean_us / 1e3,
            sample.reads.p99_us / 1e3,
        );
        Ok(sample)
    }

    fn watch(&self, volume: &mut Volume, progress: &Progress, time: Duration) -> Result<Sample> {
        if self.policy != POLICIES[0] {
            wait_until_dirty(volume, self.dirty_bytes_max / 3 * 2, time * 2)?;
        }
        thread::sleep(time / 2);
        let (before, start) = (progress.operations(), Instant::now());
        progress.take_reads();
        let written = volume.device.counts()?.written_bytes;
        thread::sleep(time);
        // A slow load is given more time, so that a few operations are counted.
        wait_for_operations(progress, before + self.operations_min, time * 10);
        wait_for_operations(progress, before + 1, OPERATION_MAX);
        let operations = progress.operations() - before;
        let (seconds, reads) = (start.elapsed().as_secs_f64(), progress.take_reads());
        let written = volume.device.counts()?.written_bytes - written;
        // What is under way is to end soon.
        volume.device.instant()?;
        if operations == 0 {
            return Err(format!("{}: no operation within {seconds:.1} s", self.name).into());
        }
        Ok(Sample {
            per_second: operations as f64 / seconds,
            written: written as f64 / operations as f64,
            reads,
        })
    }
}

/// No operation takes longer unless something is stuck.
const OPERATION_MAX: Duration = Duration::from_secs(60);

/// Waits until so much is dirty, or the time is over.
fn wait_until_dirty(volume: &Volume, bytes: u64, most: Duration) -> Result<()> {
    let deadline = Instant::now() + most;
    while Instant::now() < deadline && volume.server.status()?.dirty_bytes < bytes {
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Measures several at a time, each at a volume and a disk of its own: what bounds them is the disk, which is a model. In
/// the order of `all`.
///
/// # Errors
///
/// The first that failed.
pub(super) fn side_by_side<T: Sync, R: Send>(
    all: &[T],
    measure: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let measure = &measure;
    thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(move || measure(one))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|result| result.map_err(|_| "a measurement panicked")?).collect()
    })
}
