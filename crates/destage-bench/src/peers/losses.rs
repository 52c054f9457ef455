//! What the database lacks of what was acknowledged, when something goes wrong.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::cli::Peer;
use super::judge::{Order, Verdict, follow, followed, judge, written};
use super::program::{BYTES, Programs};
use super::stage::{Stage, Who};
use crate::Result;
use crate::figure::thousands;
use crate::report::Table;
use crate::servers::{Fsync, Postgres, Transport};

/// Acknowledged writes per second that are asked for, so that every side has as many on their way.
const RATE: u64 = 3000;
/// How long the database is down.
const DOWN: Duration = Duration::from_secs(1);
/// Acknowledged writes after which a kill shows something.
const ENOUGH: usize = 1000;
/// The write of the first thread that the database refuses.
const POISON: u64 = 100;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// `kill -9` of the process that holds what the database lacks.
    Kill,
    /// `kill -9` of redis-server.
    KillRedis,
    /// The database refuses one value.
    Poison,
    /// What a service manager sends.
    Terminate,
    /// The library's own call.
    Shutdown,
    /// Half of all writes delete their record.
    Deletions,
    /// The database crashes and is back after a second.
    Restart,
}

impl Trouble {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill -9 of the process",
            Self::KillRedis => "kill -9 of redis-server",
            Self::Poison => "a row that the database refuses",
            Self::Terminate => "SIGTERM",
            Self::Shutdown => "shutdown()",
            Self::Deletions => "deletions and insertions of the same keys",
            Self::Restart => "a crash of the database, down 1 s",
        }
    }

    /// Records that are written; as many as writes, but for those that are deleted.
    fn load(self, seconds: f64, seed: u64) -> String {
        let milliseconds = (seconds * 1000.0) as u64;
        let which = match self {
            Self::Deletions => "deletes=50".to_owned(),
            Self::Poison => format!("keys=each poison={POISON}"),
            _ => "keys=each".to_owned(),
        };
        format!("load milliseconds={milliseconds} rate={RATE} seed={seed} bytes={BYTES} {which}")
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Case {
    trouble: Trouble,
    who: Who,
}

/// All of them, without those whose peers are not wanted.
fn cases(peers: &[Peer]) -> Vec<Case> {
    use Trouble::{Deletions, Kill, KillRedis, Poison, Restart, Shutdown, Terminate};
    let hazelcast = Who::Hazelcast { members: 1 };
    let redisson = Who::Redisson { attempts: 0, fsync: Fsync::Off };
    let mut all = Vec::new();
    for trouble in [Kill, Poison, Terminate, Deletions, Restart] {
        for who in [Who::Destage("0"), Who::Destage("1s"), hazelcast, redisson] {
            all.push(Case { trouble, who });
            // What the peers offer for more safety, or else than this.
            let further = match (trouble, who) {
                (Kill, Who::Hazelcast { .. }) => vec![(Kill, Who::Hazelcast { members: 2 })],
                (Kill, Who::Redisson { .. }) => vec![
                    (KillRedis, redisson),
                    (KillRedis, Who::Redisson { attempts: 0, fsync: Fsync::Always }),
                ],
                (Terminate, Who::Hazelcast { .. } | Who::Redisson { .. }) => vec![(Shutdown, who)],
                (Restart, Who::Redisson { .. }) => {
                    vec![(Restart, Who::Redisson { attempts: 10, fsync: Fsync::Off })]
                }
                _ => Vec::new(),
            };
            all.extend(further.into_iter().map(|(trouble, who)| Case { trouble, who }));
        }
    }
    all.retain(|case| case.who.peer().is_none_or(|peer| peers.contains(&peer)));
    all
}

/// What is tried, and how long.
pub(super) struct Losses<'a> {
    pub(super) programs: Programs<'a>,
    pub(super) bin: &'a Path,
    pub(super) peers: &'a [Peer],
    pub(super) is_quick: bool,
    pub(super) seed: u64,
    pub(super) extra: &'a [String],
}

/// What a case came to.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// When the process had ended, before it was started again.
    at_end: Option<Verdict>,
    last: Verdict,
    order: Order,
}

impl Losses<'_> {
    /// A row for each case, and which could not be tried or showed what Destage must not do.
    ///
    /// # Errors
    ///
    /// The database does not start.
    pub(super) fn run(&self) -> Result<(Table, Vec<String>)> {
        let further = [("wal_level", "logical")];
        let mut origin = Postgres::start_with(self.programs.dir, Transport::Tcp, &further)?;
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        let mut cases = cases(self.peers);
        if self.is_quick {
            // Those whose losses are certain beside the one who may lose nothing: the checks see both.
            cases.retain(|case| {
                case.trouble == Trouble::Kill && case.who != Who::Hazelcast { members: 2 }
            });
        }
        for (number, case) in cases.into_iter().enumerate() {
            let name = format!("{}, {}", case.trouble.name(), case.who.name());
            match self.case(&mut origin, &format!("case{number}"), case) {
                Ok(outcome) => {
                    eprintln!("{name}: {outcome:?}");
                    failures.extend(broken(case, &outcome).map(|what| format!("{name}: {what}")));
                    rows.push(row(case, &outcome));
                }
                Err(error) => {
                    eprintln!("error: {name}: {error}");
                    failures.push(format!("{name}: {error}"));
                    // A failed case may leave it.
                    let drop =
                        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots";
                    origin.query()?.run(drop)?;
                }
            }
        }
        Ok((table(rows), failures))
    }

    fn case(&self, origin: &mut Postgres, table: &str, case: Case) -> Result<Outcome> {
        let Case { trouble, who } = case;
        let programs = Programs {
            // Each thread's writes go round in these.
            records: if trouble == Trouble::Deletions { 800 } else { 32_000 },
            threads: 8,
            ..self.programs
        };
        origin.query()?.run(&format!(
            "CREATE TABLE {table} (id bigint PRIMARY KEY, v text NOT NULL CHECK (v NOT LIKE '%poison'))"
        ))?;
        let mut stage = Stage::start(programs, self.bin, self.extra, origin, table, who)?;
        follow(origin)?;
        let seconds = if self.is_quick { 1.0 } else { 2.0 };
        let except = (trouble == Trouble::Poison).then_some(POISON * programs.threads);
        let file = programs.acknowledged(table);
        let look = |origin: &Postgres| judge(origin, table, &file, except);
        let mut outcome = Outcome::default();
        match trouble {
            Trouble::Kill => {
                let longest = Duration::from_secs(30);
                stage.java()?.send(&trouble.load(longest.as_secs_f64(), self.seed))?;
                thread::sleep(Duration::from_secs_f64(seconds));
                // A slow machine has hardly begun by then.
                let begun = Instant::now();
                while written(&file)? < ENOUGH && begun.elapsed() < longest {
                    thread::sleep(Duration::from_millis(50));
                }
                stage.kill()?;
                outcome.at_end = Some(look(origin)?);
                stage.start_again(origin)?;
            }
            Trouble::Restart => {
                stage.java()?.send(&trouble.load(seconds * 2.0, self.seed))?;
                thread::sleep(Duration::from_secs_f64(seconds * 0.7));
                origin.crash(DOWN)?;
                stage.java()?.answer()?;
            }
            _ => {
                stage.java()?.call(&trouble.load(seconds, self.seed))?;
            }
        }
        match trouble {
            Trouble::Terminate | Trouble::Shutdown => {
                if trouble == Trouble::Shutdown {
                    stage.java()?.call("shutdown")?;
                }
                stage.terminate()?;
                outcome.at_end = Some(look(origin)?);
                stage.start_again(origin)?;
            }
            Trouble::KillRedis => stage.crash_redis()?,
            _ => {}
        }
        stage.drain()?;
        outcome.last = settle(origin, look, stage.patience())?;
        drop(stage);
        outcome.order = followed(origin, table)?;
        Ok(outcome)
    }
}

/// Waits until the database holds everything, or nothing has changed for so long.
fn settle(
    origin: &Postgres,
    look: impl Fn(&Postgres) -> Result<Verdict>,
    patience: Duration,
) -> Result<Verdict> {
    let mut last = look(origin)?;
    let mut changed = Instant::now();
    while !last.is_clean() && changed.elapsed() < patience {
        thread::sleep(Duration::from_millis(200));
        let now = look(origin)?;
        if now != last {
            (last, changed) = (now, Instant::now());
        }
    }
    Ok(last)
}

/// What Destage has promised and not kept, or why the case shows nothing.
fn broken(case: Case, outcome: &Outcome) -> Option<String> {
    let Outcome { last, order, at_end } = outcome;
    if last.acknowledged < 100 {
        return Some(format!("only {} records were written", last.acknowledged));
    }
    let Who::Destage(commit) = case.who else { return None };
    // What one second may lose, and a pause of the machine beside it.
    let may_lose = if case.trouble == Trouble::Kill && commit == "1s" { RATE * 3 / 2 } else { 0 };
    let missing = at_end.filter(|_| case.trouble == Trouble::Terminate).unwrap_or(*last);
    let is_kept = last.lost <= may_lose && last.back == 0 && (order.twice, order.late) == (0, 0);
    let is_drained = case.trouble != Trouble::Terminate || missing.is_clean();
    (!is_kept || !is_drained).then(|| format!("Destage broke its contract: {outcome:?}"))
}

fn row(case: Case, outcome: &Outcome) -> Vec<String> {
    let Outcome { at_end, last, order } = outcome;
    let count = |number: u64| thousands(number as f64);
    let cells = [
        case.trouble.name().to_owned(),
        case.who.name(),
        count(last.acknowledged),
        at_end.map_or_else(|| "-".to_owned(), |verdict| count(verdict.lost + verdict.back)),
        count(last.lost),
        count(last.back),
        order.twice.to_string(),
        order.late.to_string(),
    ];
    cells.into()
}

fn table(rows: Vec<Vec<String>>) -> Table {
    let columns = [
        "what happens",
        "to whom",
        "records acknowledged",
        "missing when it ended",
        "lost",
        "came back",
        "written twice",
        "out of order",
    ];
    Table {
        title: "Peers: what the database lacks of what was acknowledged".into(),
        note: format!(
            "{RATE} writes a second of 8 threads, but for deletions each to a record of its own. `missing when it ended` is counted \
             before the process is started again, `lost` when the database has stopped changing after that. `came back`: rows that \
             are there although they were deleted last. `written twice` and `out of order` are from the database's own log. The \
             refused value itself is left out of the counts."
        ),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trouble_meets_destage_and_each_peer() {
        let all = cases(&Peer::ALL);
        for trouble in [Trouble::Kill, Trouble::Poison, Trouble::Terminate, Trouble::Deletions] {
            let met: Vec<_> = all.iter().filter(|case| case.trouble == trouble).collect();
            assert!(met.len() >= 4, "{met:?}");
        }
        assert!(cases(&[]).iter().all(|case| matches!(case.who, Who::Destage(_))));
    }

    #[test]
    fn losses_of_destage_are_failures_and_those_of_others_are_not() {
        let of = |acknowledged, lost| Outcome {
            last: Verdict { acknowledged, lost, back: 0 },
            ..Outcome::default()
        };
        let kill = |who| Case { trouble: Trouble::Kill, who };
        let is_broken = |who, outcome| broken(kill(who), &outcome).is_some();
        assert!(is_broken(Who::Destage("0"), of(1000, 1)));
        assert!(!is_broken(Who::Destage("0"), of(1000, 0)));
        assert!(!is_broken(Who::Destage("1s"), of(1000, 1)));
        assert!(is_broken(Who::Destage("1s"), of(10_000, 9_000)));
        assert!(!is_broken(Who::Hazelcast { members: 1 }, of(1000, 900)));
        // A run that wrote next to nothing shows nothing.
        assert!(is_broken(Who::Hazelcast { members: 1 }, of(10, 10)));
    }
}
