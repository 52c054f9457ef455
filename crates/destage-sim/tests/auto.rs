//! `--auto` on hundreds of simulated loads: the contract holds as it does without it, a steady load sees a bounded number of
//! changes, and the end is no worse than what the user had set.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use destage_core::{Policy, Span, Time};
use destage_engine::auto::{
    Auto, AutoSettings, Counts, Goal, Knobs, Ranges, Reason, SPACING_MIN, Verdict,
};
use destage_runtime::units::{Bytes, Interval};
use destage_sim::generate::{Generate, Load, Ycsb};
use destage_sim::machine::{
    FaultKind, Faulty, InjectedFault, Look, Settings, Spread, WritePolicy, run_looked,
};
use destage_sim::trace::{Op, Request};
use rayon::prelude::*;
use std::convert::Infallible;

const PERIOD: Span = Span::from_secs(1);
const LOOK: Span = Span::from_millis(200);
const SECONDS: u64 = 60;

/// How a load comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The same all the time.
    Steady,
    /// Twice it becomes another one.
    Shifting,
    /// All of some seconds comes in a part of them.
    Bursty,
    /// The origin is slow, and much slower for a while.
    SlowOrigin,
}

const KINDS: [Kind; 4] = [Kind::Steady, Kind::Shifting, Kind::Bursty, Kind::SlowOrigin];

/// A load and the host that it meets.
struct Case {
    seed: u64,
    kind: Kind,
    goal: Goal,
    settings: Settings,
    requests: Vec<Request>,
}

/// The same seed, the same case. Not from the generator's streams, whose seeds are the same numbers.
fn pick<T: Copy>(seed: u64, salt: u64, from: &[T]) -> T {
    let mut x = (seed << 8 | salt).wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    from[((x ^ x >> 31) % from.len() as u64) as usize]
}

fn requests(seed: u64, salt: u64, from: Time, seconds: u64) -> Vec<Request> {
    let interval = Span::from_micros(pick(seed, salt, &[3_000, 4_000, 6_000]));
    let generate = Generate {
        load: Load::Ycsb {
            workload: Ycsb::A,
            records: pick(seed, salt + 1, &[50, 2_000, 200_000]),
        },
        requests: Span::from_secs(seconds).0 / interval.0,
        interval,
        hosts: 1,
        threads: 4,
        seed: seed * 7 + salt,
    };
    let later = |request: Request| Request { time: from + Span(request.time.0), ..request };
    generate.requests().unwrap().map(later).collect()
}

fn case(seed: u64) -> Case {
    let kind = KINDS[(seed % 4) as usize];
    let goal = if seed / 4 % 4 == 3 { Goal::Latency } else { Goal::Writes };
    let mut settings = Settings::default();
    let flash = &mut settings.flash;
    flash.size = Bytes(256 << 20);
    flash.policy =
        pick(seed, 1, &[WritePolicy::Journaled, WritePolicy::WriteBack, WritePolicy::Ordered]);
    flash.rows = flash.policy != WritePolicy::Ordered && pick(seed, 2, &[true, false]);
    flash.staleness = Interval(Span::from_millis(pick(seed, 3, &[1_000, 5_000, 30_000])));
    flash.dirty = Bytes(pick(seed, 4, &[1 << 20, 16 << 20]));
    flash.linger = Interval(Span::from_millis(pick(seed, 5, &[0, 5, 20, 100])));
    flash.batch_groups = pick(seed, 6, &[16, 256, 4_000]);
    let filer = &mut settings.devices.filer;
    filer.write = Interval(Span::from_micros(pick(seed, 7, &[100, 400])));
    filer.next = Interval(Span::from_micros(20));
    filer.spread = Spread::Exponential;
    let third = SECONDS / 3;
    let mut all = requests(seed, 10, Time::ZERO, SECONDS);
    match kind {
        Kind::Steady => {}
        Kind::Shifting => {
            all = (0..3)
                .flat_map(|part| {
                    let from = Time::ZERO + Span::from_secs(part * third);
                    requests(seed, 20 + part * 10, from, third)
                })
                .collect();
        }
        Kind::Bursty => {
            let (of, within) =
                (pick(seed, 8, &[2_u64, 7, 15]) * 1_000_000_000, pick(seed, 9, &[2, 4, 10]));
            for request in &mut all {
                let at = request.time.0;
                request.time = Time(at / of * of + at % of / within);
            }
        }
        Kind::SlowOrigin => {
            settings.devices.filer.write = Interval(Span::from_millis(pick(seed, 8, &[2, 5])));
            let (at, lasts) =
                (Interval(Span::from_secs(third)), Interval(Span::from_secs(third / 2)));
            let kind = pick(seed, 9, &[FaultKind::Slow, FaultKind::Stall, FaultKind::Fail]);
            let lasts = if kind == FaultKind::Slow { lasts } else { Interval(Span::from_secs(3)) };
            settings.faults =
                vec![InjectedFault { device: Faulty::Filer, kind, at, lasts, factor: 4 }];
        }
    }
    all.retain(|request| matches!(request.op, Op::Read | Op::Write));
    Case { seed, kind, goal, settings, requests: all }
}

/// What was seen of a run.
#[derive(Debug, Default)]
struct Seen {
    first: Option<Policy>,
    looks: Vec<(Time, Counts)>,
    /// Of each look whether what it decided is left out of the end, as a trial of advice is.
    left_out: Vec<bool>,
    /// Policies that were in force, each as it came into force.
    policies: Vec<Policy>,
    staleness_max: Span,
    dirty_max: u64,
}

impl Seen {
    /// Blocks sent for each change, and what an acknowledgement took in the mean, in the last third.
    fn end(&self) -> (f64, f64) {
        let from = self.looks.len() * 2 / 3;
        let steps = self.looks[from..].windows(2).zip(&self.left_out[from..]);
        let counted: Vec<_> = steps.filter(|(_, left_out)| !**left_out).map(|it| it.0).collect();
        let sum = |of: fn(&Counts) -> u128| {
            counted.iter().map(|both| of(&both[1].1) - of(&both[0].1)).sum::<u128>() as f64
        };
        let changes = sum(|counts| counts.changes.into()).max(1.0);
        let answers = sum(|counts| counts.answers.into()).max(1.0);
        let took = sum(|counts| counts.answers_nanos) / 1e9;
        (sum(|counts| counts.sent.into()) / changes, took / answers)
    }
}

/// Runs a case; `decide` says whether what it decided is left out of the end.
fn run(case: &Case, mut decide: impl FnMut(&mut Look<'_>) -> bool) -> Seen {
    let mut seen = Seen::default();
    let mut look = |mut look: Look<'_>| {
        seen.first.get_or_insert_with(|| look.policy.clone());
        seen.staleness_max = seen.staleness_max.max(look.status.staleness_max);
        seen.dirty_max = seen.dirty_max.max(look.status.dirty_bytes);
        seen.looks.push((look.now, look.counts));
        let before = look.policy.clone();
        seen.left_out.push(decide(&mut look));
        if *look.policy != before {
            seen.policies.push(look.policy.clone());
        }
    };
    let requests = case.requests.iter().map(|&request| Ok::<_, Infallible>(request));
    run_looked(requests, &case.settings, LOOK, &mut look).unwrap();
    seen
}

/// What is wrong with a run beside the one without anybody who changes anything.
fn wrong(case: &Case, plain: &Seen, seen: &Seen, changes_max: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    let first = seen.first.as_ref().unwrap();
    for policy in &seen.policies {
        let mut same = first.clone();
        Knobs::of(policy).apply(&mut same);
        if same != *policy {
            wrong.push("something else than the knobs was changed".to_owned());
        }
        let linger = policy.limits.linger;
        if linger != first.limits.linger && linger.0 > policy.staleness.0 / 4 {
            wrong.push(format!("linger {linger:?} is out of its range"));
        }
    }
    // An origin that stalls for longer than D leaves is behind in any case, by what waited when it began besides, and by what
    // it takes to send that.
    let stale_max = match plain.staleness_max {
        plain if plain > first.staleness => Span(plain.0 + first.staleness.0 / 2),
        _ => first.staleness,
    };
    if seen.staleness_max > stale_max {
        wrong.push(format!("{:?} stale, at most {stale_max:?} are allowed", seen.staleness_max));
    }
    if seen.dirty_max > first.limits.dirty_bytes_max && seen.dirty_max > plain.dirty_max {
        wrong.push(format!("{} bytes dirty, {} without", seen.dirty_max, plain.dirty_max));
    }
    let opened = if case.kind == Kind::Steady { 1 } else { 1 + SECONDS / SPACING_MIN };
    let changes = seen.policies.len() as u64;
    if changes > opened * changes_max {
        wrong.push(format!("{changes} changes, of at most {}", opened * changes_max));
    }
    let ((writes, took), (writes_plain, took_plain)) = (seen.end(), plain.end());
    if case.goal == Goal::Writes && writes > writes_plain * 1.1 {
        wrong.push(format!("{writes:.3} blocks for a change, {writes_plain:.3} without"));
    }
    if took > took_plain * 1.5 + 0.005 {
        wrong.push(format!("a write takes {took:.6} s, {took_plain:.6} without"));
    }
    wrong
}

fn settings(goal: Goal) -> AutoSettings {
    AutoSettings { goal, ranges: Ranges::default(), period: PERIOD }
}

/// What somebody advises at the look of this number who means no good, or knows nothing: all to and fro, or always the same.
fn hostile(seed: u64, at: u64) -> Knobs {
    let least = Knobs { linger: Span::ZERO, batch: 1 };
    let most = Knobs { linger: Span::from_secs(1), batch: 65_536 };
    let any = Knobs {
        linger: Span(pick(seed, 1_000 + at, &[0, 1, 1_000_000, 70_000_000, 1_000_000_000])),
        batch: pick(seed, 2_000 + at, &[0, 1, 16, 100, 10_000]),
    };
    match seed / 16 % 4 {
        0 => [least, most][(at / 5 % 2) as usize],
        1 => least,
        2 => most,
        _ => any,
    }
}

/// What came of a run with the real one.
struct Outcome {
    seed: u64,
    kind: Kind,
    goal: Goal,
    wrong: Vec<String>,
    kept: u64,
    /// Advices that were tried.
    advised: u64,
    /// By which factor less was sent in the end.
    fewer: f64,
}

/// Runs all cases, or the one that was asked for.
///
/// # Panics
/// Something is wrong.
fn with_auto(is_advised: bool) -> Vec<Outcome> {
    let seeds = match std::env::var("DESTAGE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..240).collect::<Vec<u64>>(),
    };
    let all: Vec<_> =
        seeds.into_par_iter().map(|seed| with_auto_in(&case(seed), is_advised)).collect();
    let wrong = all.iter().filter(|it| !it.wrong.is_empty());
    let wrong: Vec<_> = wrong.map(|it| (it.seed, it.kind, it.goal, &it.wrong)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    all
}

fn with_auto_in(case: &Case, is_advised: bool) -> Outcome {
    let plain = run(case, |_| false);
    let mut auto: Option<Auto> = None;
    let (mut at, mut advised) = (0, 0);
    let seen = run(case, |look| {
        let auto =
            auto.get_or_insert_with(|| Auto::new(look.now, settings(case.goal), look.policy));
        at += 1;
        if is_advised {
            auto.advise(hostile(case.seed, at));
        }
        let before = Knobs::of(look.policy);
        if let Some(told) = auto.look(look.now, look.policy, &look.counts) {
            assert_eq!(told.verdict == Verdict::Kept, before == Knobs::of(look.policy), "{told:?}");
            advised += u64::from(matches!(told.reason, Reason::Advised(_)));
        }
        // What bad advice costs while it is tried is not what is left of it.
        is_advised && auto.is_trying()
    });
    let auto = auto.unwrap();
    assert_eq!(seen.policies.len() as u64, auto.done().changes);
    Outcome {
        seed: case.seed,
        kind: case.kind,
        goal: case.goal,
        wrong: wrong(case, &plain, &seen, auto.changes_max()),
        kept: auto.done().kept,
        advised,
        fewer: plain.end().0 / seen.end().0.max(1e-9),
    }
}

/// > `--auto` never changes anything else of the policy, and never leaves the ranges that the user allows.
#[test]
fn hundreds_of_loads_keep_the_contract_see_few_changes_and_end_no_worse() {
    let runs = with_auto(false);
    // That it does anything at all.
    let won = |kind: Kind| {
        let of = runs.iter().filter(|run| run.kind == kind && run.goal == Goal::Writes);
        let (all, won) =
            of.fold((0, 0), |(all, won), run| (all + 1, won + u32::from(run.fewer > 1.1)));
        println!("{kind:?}: {won} of {all} loads write a tenth less at the origin");
        (all, won)
    };
    let all: Vec<_> = KINDS.into_iter().map(won).collect();
    if runs.len() > 1 {
        assert!(all[0].1 * 3 >= all[0].0, "{all:?}");
    }
}

/// What is advised is tried as any step is: bad advice breaks no promise, and does not make it go to and fro.
#[test]
fn hundreds_of_loads_with_advice_of_any_kind_keep_the_contract_and_see_few_changes() {
    let runs = with_auto(true);
    let tried = runs.iter().filter(|run| run.advised > 0).count();
    let kept = runs.iter().filter(|run| run.kept > 0).count();
    println!("{tried} of {} loads tried an advice, {kept} kept a step", runs.len());
    assert!(runs.len() == 1 || tried * 2 > runs.len(), "{tried} of {}", runs.len());
}

/// Machines that are wrong in one way each.
#[test]
fn a_machine_that_is_wrong_is_caught() {
    type Wrong = fn(&mut Look<'_>, u64);
    let wrongs: [(&str, Wrong, &str); 6] = [
        // It goes up and down as it likes.
        (
            "restless",
            |look, at| {
                look.policy.limits.linger = Span::from_millis(if at % 10 < 5 { 40 } else { 20 });
            },
            "changes, of at most",
        ),
        // It does not know its bounds.
        ("boundless", |look, _| look.policy.limits.linger = Span::from_secs(1), "out of its range"),
        // It takes the contract for a setting.
        ("generous", |look, _| look.policy.staleness = Span::from_secs(3_600), "something else"),
        // It does whatever it is advised.
        ("obedient", |look, at| hostile(0, at).apply(look.policy), "changes, of at most"),
        ("credulous", |look, at| hostile(32, at).apply(look.policy), "out of its range"),
        // It keeps what was worse.
        (
            "deaf",
            |look, _| {
                look.policy.limits.linger = Span::ZERO;
                look.policy.limits.batch_groups_max = 1;
            },
            "blocks for a change",
        ),
    ];
    for (name, decide, expected) in wrongs {
        let caught = (0..60).map(|n| n * 4).any(|seed| {
            let case = case(seed);
            let plain = run(&case, |_| false);
            let mut at = 0;
            let seen = run(&case, |look| {
                at += 1;
                decide(look, at);
                false
            });
            let auto = Auto::new(Time::ZERO, settings(case.goal), plain.first.as_ref().unwrap());
            let wrong = wrong(&case, &plain, &seen, auto.changes_max());
            wrong.iter().any(|text| text.contains(expected))
        });
        assert!(caught, "{name}");
    }
}
