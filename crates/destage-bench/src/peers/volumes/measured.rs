//! What was measured, and the tables of it.

use serde_json::Value as Json;

use super::judge::State;
use super::sides::{Load, Side};
use crate::Result;
use crate::figure::thousands;
use crate::report::Table;
use crate::stats::Spread;

/// One load before one side.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) side: Side,
    pub(super) load: Load,
    pub(super) requests: f64,
    pub(super) seconds: f64,
    pub(super) drain_seconds: f64,
    /// Of reads, then of writes with their syncs, where there are any: milliseconds.
    pub(super) p50_ms: Vec<f64>,
    pub(super) p99_ms: Vec<f64>,
}

impl Run {
    /// Reads the guest's words behind `fio`: the side, the load, the hundredths of a second of the drain, and fio's report.
    ///
    /// # Errors
    ///
    /// They are of another form, or nothing was measured.
    pub(super) fn read(words: &str) -> Result<Self> {
        let unknown = || format!("the guest said: {words}");
        let mut parts = words.splitn(4, ' ');
        let mut next = || parts.next().ok_or_else(unknown);
        let side = Side::named(next()?).ok_or_else(unknown)?;
        let load = Load::named(next()?).ok_or_else(unknown)?;
        let drain: f64 = next()?.parse()?;
        let report: Json = serde_json::from_str(next()?)?;
        let job = &report["jobs"][0];
        let number = |json: &Json| json.as_f64().unwrap_or(0.0);
        let ends = |of: &str| -> (f64, f64, f64) {
            let one = &job[of];
            (number(&one["total_ios"]), number(&one["runtime"]) / 1e3, number(&job["error"]))
        };
        let at = |json: &Json, which: &str| number(&json["percentile"][which]) / 1e6;
        let (mut p50_ms, mut p99_ms) = (Vec::new(), Vec::new());
        let (mut requests, mut seconds) = (0.0, 0.0_f64);
        for of in ["read", "write"] {
            let (count, time, error) = ends(of);
            if error != 0.0 {
                return Err(format!("fio failed with error {error} before {}", side.name()).into());
            }
            if count > 0.0 {
                let syncs = if of == "write" { &job["sync"]["lat_ns"] } else { &Json::Null };
                let of_both = |which| at(&job[of]["clat_ns"], which) + at(syncs, which);
                p50_ms.push(of_both("50.000000"));
                p99_ms.push(of_both("99.000000"));
                requests += count;
                seconds = seconds.max(time);
            }
        }
        if requests == 0.0 || seconds == 0.0 {
            return Err(format!("{}, {}: nothing was measured", side.name(), load.name).into());
        }
        Ok(Self { side, load, requests, seconds, drain_seconds: drain / 100.0, p50_ms, p99_ms })
    }

    fn answered(&self) -> f64 {
        self.requests / self.seconds
    }

    fn drained(&self) -> f64 {
        self.requests / (self.seconds + self.drain_seconds)
    }
}

/// What a slow disk held when its guest was ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) side: Side,
    pub(super) state: State,
}

/// All rounds.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) runs: Vec<Run>,
    pub(super) losses: Vec<Loss>,
}

impl Measured {
    pub(super) fn tables(&self) -> Vec<Table> {
        let mut tables = vec![
            self.ratios("during the load", &Load::ALL, Run::answered),
            self.ratios(
                "counted to the end of the drain",
                &Load::ALL
                    .map(|load| load.writes().then_some(load))
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>(),
                Run::drained,
            ),
        ];
        tables.extend(Load::ALL.into_iter().filter_map(|load| self.of_load(load)));
        tables.push(self.lost());
        tables.retain(|table| !table.rows.is_empty());
        tables
    }

    fn of(&self, side: Side, load: Load) -> Vec<&Run> {
        self.runs.iter().filter(|run| (run.side, run.load) == (side, load)).collect()
    }

    /// How many times as fast as each peer, round by round.
    fn ratios(&self, when: &str, loads: &[Load], rate: fn(&Run) -> f64) -> Table {
        let pairs: Vec<(Side, Side)> = Side::OURS
            .into_iter()
            .flat_map(|ours| Side::PEERS.map(|peer| (ours, peer)))
            .filter(|(ours, _)| self.runs.iter().any(|run| run.side == *ours))
            .collect();
        let mut columns = vec!["load".to_owned()];
        let policy = |side: Side| side.word();
        columns.extend(
            pairs.iter().map(|(ours, peer)| format!("{} / {}", policy(*ours), peer.name())),
        );
        let mut rows = Vec::new();
        for load in loads {
            let mut row = vec![load.name.to_owned()];
            for (ours, peer) in &pairs {
                let (ours, theirs) = (self.of(*ours, *load), self.of(*peer, *load));
                let ratios =
                    ours.iter().zip(&theirs).map(|(ours, theirs)| rate(ours) / rate(theirs));
                row.push(Spread::of(ratios).map_or_else(
                    || "-".to_owned(),
                    |ratio| format!("{:.2} [{:.2}, {:.2}]", ratio.median, ratio.min, ratio.max),
                ));
            }
            if row.iter().skip(1).any(|cell| cell != "-") {
                rows.push(row);
            }
        }
        Table {
            title: format!("Peers of volumes: Destage's rate divided by the peer's, {when}"),
            note: "Below 1 Destage is slower. The median of the rounds, with the smallest and the largest.".into(),
            columns,
            rows,
        }
    }

    fn of_load(&self, load: Load) -> Option<Table> {
        let mut columns = vec!["side", "answered/s", "p50, ms", "p99, ms"];
        if load.writes() {
            columns.extend(["drain, s", "to the end of the drain, /s"]);
        }
        let mut rows = Vec::new();
        for side in Side::ALL {
            let runs = self.of(side, load);
            let Some(rate) = median(&runs, Run::answered) else { continue };
            let times = |of: fn(&Run) -> &Vec<f64>| {
                let count = runs.iter().map(|run| of(run).len()).min().unwrap_or(0);
                let one = |at: usize| Spread::of(runs.iter().map(|run| of(run)[at]));
                let cells: Vec<String> = (0..count)
                    .filter_map(one)
                    .map(|spread| format!("{:.2}", spread.median))
                    .collect();
                cells.join(" / ")
            };
            let mut row = vec![
                side.name().to_owned(),
                thousands(rate),
                times(|run| &run.p50_ms),
                times(|run| &run.p99_ms),
            ];
            if load.writes() {
                row.extend(median(&runs, |run| run.drain_seconds).map(|time| format!("{time:.2}")));
                row.extend(median(&runs, Run::drained).map(thousands));
            }
            rows.push(row);
        }
        let table = Table {
            title: format!("Peers of volumes: {}", load.name),
            note: if load.word == "mixed" {
                "Times of reads / of writes.".into()
            } else {
                String::new()
            },
            columns: columns.into_iter().map(str::to_owned).collect(),
            rows,
        };
        (!table.rows.is_empty()).then_some(table)
    }

    fn lost(&self) -> Table {
        let columns = [
            "slow disk of",
            "writes answered",
            "newest there",
            "a state that existed",
            "blocks older than in it",
            "answered and missing",
            "the oldest of them, s",
        ];
        let mut rows = Vec::new();
        for side in Side::ALL {
            let all: Vec<State> = self
                .losses
                .iter()
                .filter(|loss| loss.side == side)
                .map(|loss| loss.state)
                .collect();
            if all.is_empty() {
                continue;
            }
            let range = |of: fn(&State) -> f64, digits: usize| {
                let spread = Spread::of(all.iter().map(of)).unwrap_or_default();
                let (least, most) = (spread.min, spread.max);
                let shown = |value: f64| {
                    if digits == 0 { thousands(value) } else { format!("{value:.digits$}") }
                };
                if least == most {
                    shown(least)
                } else {
                    format!("{} to {}", shown(least), shown(most))
                }
            };
            let existed = all.iter().filter(|state| state.existed()).count();
            rows.push(vec![
                side.name().to_owned(),
                range(|state| state.answered as f64, 0),
                range(|state| state.newest as f64, 0),
                match existed {
                    0 => "**no**".to_owned(),
                    count if count == all.len() => "yes".to_owned(),
                    count => format!("{count} of {} times", all.len()),
                },
                range(|state| state.wrong as f64, 0),
                range(|state| state.missing as f64, 0),
                range(|state| state.age_seconds, 1),
            ]);
        }
        Table {
            title: "Peers of volumes: what the slow disk alone holds after a loss of guest and fast disk".into(),
            note: "Numbered writes of 4 KiB at depth 1, a sync after eight; the guest is ended by SIGKILL while they go on. \
                   `newest there`: the number of the newest write that the slow disk holds. It is a state that existed if \
                   every block is at least as new as it was when the last sync before that write was answered. For Destage, \
                   journaled, it is looked at after `destage block replay`, and every block must be as it was when that \
                   write was made. The smallest and the largest of the rounds."
                .into(),
            columns: columns.map(str::to_owned).to_vec(),
            rows,
        }
    }
}

fn median(runs: &[&Run], of: fn(&Run) -> f64) -> Option<f64> {
    Spread::of(runs.iter().map(|run| of(run))).map(|spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{"jobs":[{"error":0,"read":{"total_ios":0,"runtime":0},"write":{"total_ios":300,"runtime":1500,
        "clat_ns":{"percentile":{"50.000000":1000000,"99.000000":2000000}}},
        "sync":{"lat_ns":{"percentile":{"50.000000":500000,"99.000000":4000000}}}}]}"#;

    fn run(side: &str) -> Run {
        Run::read(&format!("{side} synced 150 {REPORT}")).expect("it is one")
    }

    #[test]
    fn a_drain_counts_and_a_write_takes_its_sync() {
        let run = run("bcache");
        assert_eq!((run.answered(), run.drained()), (200.0, 100.0));
        assert_eq!((run.p50_ms.as_slice(), run.p99_ms.as_slice()), (&[1.5][..], &[6.0][..]));
        assert!(Run::read("bcache synced 150").is_err());
        assert!(Run::read("somebody synced 150 {}").is_err());
        assert!(Run::read("bcache synced 150 {}").is_err(), "nothing was measured");
    }

    #[test]
    fn ratios_are_taken_where_both_were_measured() {
        let mut measured = Measured::default();
        let mut slow = run("ordered");
        slow.requests /= 2.0;
        measured.runs.extend([run("bcache"), slow]);
        let tables = measured.tables();
        assert_eq!(tables[0].columns, ["load", "ordered / bcache", "ordered / dm-writecache"]);
        assert_eq!(tables[0].rows.len(), 1);
        assert_eq!(tables[0].rows[0][1..], ["0.50 [0.50, 0.50]", "-"]);
        assert_eq!(tables.len(), 3, "two of ratios and one of the load");
    }
}
