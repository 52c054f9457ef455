use super::*;
use crate::generate::{Generate, Load};
use crate::replay::RecordedRun;
use crate::trace::{Extent, Op};
use destage_core::Time;

/// A mail server: small writes, each followed by a flush.
fn mail() -> Vec<Request> {
    let generate = Generate {
        load: Load::MailServer { files: 200 },
        requests: 6_000,
        interval: Span::from_millis(2),
        hosts: 1,
        threads: 4,
        seed: 5,
    };
    generate.requests().expect("the parameters are in range").collect()
}

fn base(requests: &[Request]) -> Settings {
    let last = requests.last().expect("there are requests").time;
    let crashes = random_times(100, last.since(Time::ZERO), 1);
    Settings { crashes, ..Settings::default() }
}

fn wish(rpo: Span, p99_write: Option<Span>) -> Wish {
    let front = Front::Block { flash: FLASH_MIN, ram: 0 };
    Wish { rpo, rpo_crash: None, p99_read: Some(Span::from_secs(1)), p99_write, front }
}

#[test]
fn order_is_kept_by_the_policies_that_promise_it_and_by_no_other() {
    let requests = mail();
    let wish = wish(Span::from_secs(5), None);
    let candidates = wish.candidates(&base(&requests));
    assert_eq!(candidates.len(), 21);
    let ranking = wish.judge(&requests, candidates, &Meter::default()).expect("they can be run");
    let mut unordered = 0;
    for judged in &ranking {
        let losses = &judged.losses;
        let what = format!("{:?} {:?}", judged.policy(), judged.report.settings.flash.when);
        assert_eq!(losses.crashes, 100);
        match judged.policy() {
            WritePolicy::WriteThrough => assert_eq!(losses.lost_writes.max, 0.0, "{what}"),
            WritePolicy::Journaled => {
                assert_eq!(losses.order_violations, Violations::default(), "{what}");
                assert_eq!(losses.torn_writes, Violations::default(), "{what}");
            }
            WritePolicy::Strict => {
                assert_eq!(losses.order_violations, Violations::default(), "{what}");
            }
            WritePolicy::Ordered => {
                assert_eq!(losses.epoch_violations, Violations::default(), "{what}");
            }
            // The control: the same crashes find the disorder where nothing prevents it.
            _ => unordered += losses.epoch_violations.crashes,
        }
        if judged.policy() != WritePolicy::WriteThrough {
            assert!(losses.lost_writes.max > 0.0, "{what}: something is under way at a crash");
        }
        assert!(losses.staleness_seconds.max <= 5.0, "{what}: {losses:?}");
    }
    assert!(unordered > 0, "write-back leaves writes out of order");
}

#[test]
fn what_meets_the_wish_comes_first_and_the_reason_says_why() {
    let requests = mail();
    // No slow origin answers a write so fast.
    let wish = wish(Span::from_secs(5), Some(Span::from_micros(400)));
    let mut base = base(&requests);
    base.devices.filer.write = Interval(Span::from_millis(8));
    let ranking =
        wish.judge(&requests, wish.candidates(&base), &Meter::default()).expect("they can be run");
    let best = &ranking[0];
    assert!(best.meets(), "{:?}", best.misses);
    assert!(matches!(best.policy(), WritePolicy::Journaled | WritePolicy::Ordered));
    let through = ranking.iter().find(|judged| judged.policy() == WritePolicy::WriteThrough);
    let misses = &through.expect("it is a candidate").misses;
    assert!(misses.iter().any(|miss| miss.starts_with("writes take")), "{misses:?}");
    let met = ranking.iter().take_while(|judged| judged.meets()).count();
    assert!(ranking[met..].iter().all(|judged| !judged.meets()));
    let reason = reason(&wish, &ranking).join(" ");
    assert!(reason.contains("meet everything asked for") && reason.contains("Write-through"));
    assert!(reason.contains("100 simulated crashes"), "{reason}");
}

#[test]
fn a_wish_that_nothing_meets_is_said_to_be_one() {
    let requests = mail();
    let wish = Wish { p99_read: Some(Span(1)), ..wish(Span::from_secs(5), Some(Span(1))) };
    let candidates = vec![wish.candidates(&base(&requests)).swap_remove(0)];
    let ranking = wish.judge(&requests, candidates, &Meter::default()).expect("they can be run");
    assert!(!ranking[0].meets());
    let reason = reason(&wish, &ranking).join(" ");
    assert!(reason.contains("None of the 1 candidates") && reason.contains("(p99)"), "{reason}");
}

/// Gets and sets of rows, most of them of few.
fn rows() -> Vec<Request> {
    let request = |n: u64| {
        let random = crate::blocks::mix(n);
        let op = if random % 10 < 3 { Op::Write } else { Op::Read };
        let id = (random >> 8) % (1 + (random >> 32) % 5_000);
        let extent = Extent::Object { id, bytes: 200 };
        Request { time: Time(n * 1_500_000), op, extent, host: 0, thread: 0 }
    };
    (0..6_000).map(request).collect()
}

#[test]
fn rows_are_never_torn_nor_out_of_order_and_buffering_them_is_faster_than_the_origin() {
    let requests = rows();
    let front = Front::Data { ram: RAM_MIN, row: 200 };
    let wish = Wish { front, ..wish(Span::from_secs(5), None) };
    let mut base = base(&requests);
    base.devices.filer.write = Interval(Span::from_millis(2));
    let candidates = wish.candidates(&base);
    assert_eq!(candidates.len(), 6);
    let ranking = wish.judge(&requests, candidates, &Meter::default()).expect("they can be run");
    for judged in &ranking {
        assert!(judged.meets(), "{:?}", judged.misses);
        assert_eq!(judged.losses.order_violations, Violations::default());
        assert_eq!(judged.losses.torn_writes, Violations::default());
        assert_eq!(judged.report.origin.redo_blocks, 0, "a transaction needs no redo store");
        // Rows that are in memory take no device.
        let flash = judged.report.stations.iter().find(|load| load.name == "flash 0");
        let syncs = flash.expect("the journal's device").served;
        assert!(syncs <= judged.report.writes.latency.count, "{syncs}");
    }
    assert_eq!(ranking[0].policy(), WritePolicy::Journaled);
    let through = ranking.iter().find(|judged| judged.policy() == WritePolicy::WriteThrough);
    let through = through.expect("it is a candidate").report.writes.latency.mean;
    assert!(ranking[0].report.writes.latency.mean * 10.0 < through);
    assert!(reason(&wish, &ranking).join(" ").contains("host and journal are lost"));
}

#[test]
fn ram_before_the_flash_answers_reads_and_loses_nothing() {
    let requests = mail();
    let without = wish(Span::from_secs(5), None);
    let front = Front::Block { flash: FLASH_MIN, ram: 8 << 20 };
    let with = Wish { front, ..without };
    let base = base(&requests);
    let judged = |wish: &Wish| {
        let candidates = vec![wish.candidates(&base).swap_remove(1)];
        wish.judge(&requests, candidates, &Meter::default()).expect("it can be run").remove(0)
    };
    let (without, with) = (judged(&without), judged(&with));
    assert!(with.report.reads.counts.ram_block_hits > 0);
    assert!(with.report.reads.latency.mean < without.report.reads.latency.mean);
    assert_eq!(with.losses.order_violations, Violations::default());
}

#[test]
fn what_else_can_be_set_is_tried_and_taken_where_it_is_better() {
    // Bursts of writes that the dirty limit of a small log holds up, with rest between them.
    let burst = |n: u64| {
        let extent = Extent::Range { device: 0, offset: n * 7_919 % 20_000 * 4_096, bytes: 4_096 };
        let time = Time(n / 3_000 * 4_000_000_000 + n % 3_000 * 20_000);
        Request { time, op: Op::Write, extent, host: 0, thread: 0 }
    };
    let requests: Vec<Request> = (0..9_000).map(burst).collect();
    let wish = wish(Span::from_secs(30), None);
    let mut base = base(&requests);
    base.devices.filer.write = Interval(Span::from_millis(4));
    base.devices.filer.servers = 1;
    let judge = |settings| wish.judge(&requests, settings, &Meter::default()).expect("it runs");
    let first = judge(vec![wish.candidates(&base).swap_remove(1)]).remove(0);
    let tuned = wish.tune(&requests, &first, &Meter::default()).expect("it runs");
    assert!(tuned.choices.len() >= 6, "{:?}", tuned.choices);
    assert!(tuned.best.mean() < first.mean() / 1.5, "{:?}", tuned.choices);
    let taken: Vec<_> = tuned.choices.iter().filter(|choice| choice.is_taken).collect();
    assert!(
        taken.iter().any(|choice| choice.what.contains("limit") || choice.what.contains("log"))
    );
    // What was told of a choice is what a run with it comes to.
    let again = judge(vec![tuned.best.report.settings.clone()]).remove(0);
    assert_eq!(again.mean(), tuned.best.mean());
    // Nothing is better than what is best already.
    let rest = wish.tune(&requests, &tuned.best, &Meter::default()).expect("it runs");
    assert!(rest.best.mean() <= tuned.best.mean());
}

#[test]
fn of_what_is_as_fast_the_policy_that_promises_more_is_advised() {
    // A few blocks are written again and again, which no policy holds up.
    let request = |n: u64| {
        let extent = Extent::Range { device: 0, offset: n * 7_919 % 50 * 4_096, bytes: 4_096 };
        Request { time: Time(n * 20_000_000), op: Op::Write, extent, host: 0, thread: 0 }
    };
    let requests: Vec<Request> = (0..1_000).map(request).collect();
    let wish = wish(Span::from_secs(5), None);
    let candidates = wish.candidates(&base(&requests));
    let ranking = wish.judge(&requests, candidates, &Meter::default()).expect("they can be run");
    let best = &ranking[0];
    assert_eq!(best.policy(), WritePolicy::Journaled);
    // The control: another one is as fast, promises less, and writes less at the origin.
    let writes = |judged: &&Judged| judged.report.origin.write_requests;
    let met = ranking.iter().filter(|judged| judged.meets() && judged.is_buffered());
    let fewest = met.min_by_key(writes).expect("there is one");
    assert!(promise_of(fewest.policy()) < promise_of(best.policy()), "{:?}", fewest.policy());
    assert!(writes(&fewest) < writes(&best), "{} {}", writes(&fewest), writes(&best));
    let (mean, shorter) = (fewest.mean(), best.mean());
    assert!((mean - shorter).abs() <= 0.04 * shorter, "{mean} {shorter}");
}

#[test]
fn a_policy_that_a_small_log_holds_up_is_advised_with_a_larger_one() {
    // A burst that half of the log holds, and not the quarter of it that may be dirty unless told.
    let request = |n: u64| {
        let extent = Extent::Range { device: 0, offset: n * 7_919 % 7_000 * 4_096, bytes: 4_096 };
        Request { time: Time(n * 50_000), op: Op::Write, extent, host: 0, thread: 0 }
    };
    let requests: Vec<Request> = (0..7_000).map(request).collect();
    let front = Front::Block { flash: 3 * FLASH_MIN, ram: 0 };
    let wish = Wish { front, ..wish(Span::from_secs(30), Some(Span::from_millis(100))) };
    let mut base = base(&requests);
    base.devices.filer.write = Interval(Span::from_micros(500));
    base.devices.filer.servers = 1;
    let meter = Meter::default();
    let candidates = wish.candidates(&base);
    let ranking = wish.judge(&requests, candidates, &meter).expect("they can be run");
    let best = &ranking[0];
    let alone = wish.tune(&requests, best, &meter).expect("it runs").best;
    let runs = meter.requests();
    let tuned = wish.tune_best(&requests, None, best, &ranking, &meter).expect("it runs");
    let most = wish.tune_runs_max(best, &ranking) * requests.len();
    assert!(meter.requests() - runs <= most as u64, "the total of the progress holds");
    assert_eq!(best.policy(), WritePolicy::WriteThrough, "the control: the candidates are held up");
    assert!(tuned.best.meets() && !alone.meets(), "{:?}", tuned.choices);
    assert!(tuned.best.mean() * 3.0 < alone.mean());
    let taken: Vec<_> = tuned.choices.iter().filter(|choice| choice.is_taken).collect();
    assert!(taken[0].what.contains("--dirty-limit"), "{taken:?}");
}

/// A run that was recorded under these settings, as the model itself has it.
fn recorded_as(judged: &Judged, policy: destage_core::Policy) -> RecordedRun {
    let report = &judged.report;
    let mut tally = crate::replay::Tally::default();
    tally.staleness_max = judged.behind;
    tally.dirty_age_mean = report.destage.dirty_age_mean;
    tally.origin_writes = report.origin.write_blocks;
    tally.fetches = report.origin.read_blocks;
    let [reads, writes] = [&report.reads, &report.writes].map(|kind| Some(kind.latency.clone()));
    RecordedRun { load: None, policy, tally, reads, writes }
}

#[test]
fn a_prediction_is_as_sure_as_the_model_is_right_about_the_recorded_run() {
    let requests = mail();
    let wish = wish(Span::from_secs(5), Some(Span::from_millis(1)));
    let base = base(&requests);
    let mut policy = defaults::volume::policy(16 << 20);
    policy.limits.cache_bytes_max = 40 << 20;
    let running = Settings { flash: Tier::of_running_volume(&policy, 4_096), ..base.clone() };
    let judge = |settings| wish.judge(&requests, vec![settings], &Meter::default());
    let recorded = judge(running).expect("it runs").remove(0);
    let best = judge(wish.candidates(&base).swap_remove(1)).expect("it runs").remove(0);
    let tuned = Tuned { base: best.clone(), best, choices: Vec::new(), is_kept: false };
    let trust = |run: &RecordedRun| {
        let trust = wish.trust(run, &requests, &base, &Meter::default()).expect("it runs");
        trust.expect("nothing interrupted it").of(&tuned)
    };
    let run = recorded_as(&recorded, policy);
    let sure = trust(&run);
    assert_eq!(sure.len(), Predicted::ALL.len());
    for sure in &sure {
        assert!(sure.recorded == sure.modelled && sure.low == sure.high, "{sure}");
        assert_eq!(sure.doubt(&wish), None);
    }
    // The control: where the recorded run took twice as long as the model has it, so may what is predicted.
    let twice = |latency: &Option<machine::Latency>| {
        let twice = |all: machine::Latency| machine::Latency {
            mean: 2.0 * all.mean,
            p99: 2.0 * all.p99,
            ..all
        };
        latency.clone().map(twice)
    };
    let slower =
        RecordedRun { writes: twice(&run.writes), reads: twice(&run.reads), ..run.clone() };
    let sure = trust(&slower);
    let of = |what| sure.iter().find(|sure| sure.what == what).expect("it is predicted");
    let mean = of(Predicted::Mean);
    assert!((mean.high / mean.predicted - 2.0).abs() < 1e-9 && mean.low == mean.predicted);
    // Writes wait for no device here, so reads.
    let read = of(Predicted::P99Read);
    assert!(read.modelled > 1e-4, "{read}");
    let within = |times: f64| {
        let limit = Span((read.predicted * times * 1e9) as u64);
        read.doubt(&Wish { p99_read: Some(limit), ..wish })
    };
    assert!(within(1.5).is_some_and(|doubt| doubt.contains("more than")), "the error may miss it");
    assert_eq!(within(2.5), None, "the error does not reach so far");
    assert_eq!(within(0.5), None, "it is missed anyway, which the ranking says");
    assert_eq!(of(Predicted::OriginWrites).low, of(Predicted::OriginWrites).high);
    // What the recording does not tell is not made up.
    let silent = RecordedRun { reads: None, ..run };
    assert_eq!(trust(&silent).len(), Predicted::ALL.len() - 2);
}

#[test]
fn what_is_in_force_stays_unless_the_best_gains_more_than_the_model_errs() {
    let requests = mail();
    let wish = wish(Span::from_secs(5), None);
    let candidates = wish.candidates(&base(&requests));
    let ranking = wish.judge(&requests, candidates, &Meter::default()).expect("they can be run");
    let best = &ranking[0];
    let is_other = |judged: &&Judged| {
        let is_slower = judged.mean() > 1.3 * best.mean();
        judged.misses.len() <= best.misses.len() && judged.policy() != best.policy() && is_slower
    };
    let in_force = ranking.iter().find(is_other).expect("others meet the wish, too");
    let advised = |times: f64| {
        let policy = wish.live_policy(&in_force.report.settings);
        let run = recorded_as(best, policy);
        let longer = |latency: Option<machine::Latency>| {
            latency.map(|all| machine::Latency { mean: times * all.mean, ..all })
        };
        let run = RecordedRun { reads: longer(run.reads), writes: longer(run.writes), ..run };
        let (base, choices) = (best.clone(), Vec::new());
        let tuned = Tuned { best: best.clone(), base, choices, is_kept: false };
        wish.keep_in_force(&run, &ranking, tuned).best.policy()
    };
    assert_eq!(advised(0.9), in_force.policy());
    assert_eq!(advised(1.05), in_force.policy(), "too little to gain");
    // What is in force was recorded to be as much slower as the model has it.
    let slower = in_force.mean() / best.mean();
    assert_eq!(advised(slower), best.policy());
    // The control: the model is off by more than what is to be gained.
    let between = 1.0 + (slower - 1.0) / 4.0;
    assert_eq!(advised(between), in_force.policy(), "{between}, but {slower} in the model");
}

#[test]
fn what_is_in_force_is_so_in_all_that_advice_names() {
    let requests = mail();
    let wish = wish(Span::from_secs(5), None);
    let settings = wish.candidates(&base(&requests)).swap_remove(1);
    let live = wish.live_policy(&settings);
    let is_in_force = |change: &dyn Fn(&mut destage_core::Policy)| {
        let mut policy = live.clone();
        change(&mut policy);
        let tally = crate::replay::Tally::default();
        let run = RecordedRun { load: None, policy, tally, reads: None, writes: None };
        let mut candidates = vec![settings.clone()];
        wish.keep_unasked(&run, &mut candidates);
        let in_force = wish.in_force(&candidates[0], &run);
        // Its bounds are those that are asked for.
        assert!(in_force.as_ref().is_none_or(|policy| policy.staleness == live.staleness));
        in_force.is_some()
    };
    assert!(is_in_force(&|_| {}));
    // What nobody asks about stays.
    assert!(is_in_force(&|policy| policy.at_limit = destage_core::AtLimit::Fail));
    assert!(is_in_force(&|policy| policy.read_priority = true));
    assert!(is_in_force(&|policy| policy.limits.batch_groups_max = 7));
    assert!(is_in_force(&|policy| policy.limits.linger = Span::from_millis(20)));
    // Unless D is shorter. The rest stays then, too.
    assert!(!is_in_force(&|policy| policy.limits.linger = Span::from_secs(6)));
    let mut policy = live.clone();
    (policy.limits.linger, policy.limits.batch_groups_max) = (Span::from_secs(6), 7);
    let tally = crate::replay::Tally::default();
    let run = RecordedRun { load: None, policy, tally, reads: None, writes: None };
    let mut candidates = vec![settings.clone()];
    wish.keep_unasked(&run, &mut candidates);
    let kept = &candidates[0].flash;
    assert_eq!((kept.linger, kept.batch_groups), (settings.flash.linger, 7));
    // D is what was asked for, and with it what follows from it.
    assert!(is_in_force(&|policy| {
        policy.staleness = Span::from_secs(30);
        policy.commit = destage_engine::commit_on_flush(policy.staleness);
    }));
    assert!(!is_in_force(&|policy| policy.commit = Span::from_secs(3)));
    assert!(!is_in_force(&|policy| policy.limits.batch_bytes_max /= 2));
}

#[test]
fn what_promises_less_than_what_is_in_force_is_advised_last() {
    let requests = mail();
    // Nothing meets it, so that what misses least would be first.
    let wish = wish(Span::from_secs(5), Some(Span::ZERO));
    let base = base(&requests);
    let run = |named: WritePolicy| {
        let mut policy = defaults::volume::policy(64 << 20);
        named.apply(&mut policy);
        let tally = crate::replay::Tally::default();
        RecordedRun { load: None, policy, tally, reads: None, writes: None }
    };
    let policies = |run: Option<&RecordedRun>| -> Vec<WritePolicy> {
        let ranking =
            wish.judge_recorded(&requests, run, wish.candidates(&base), &Meter::default());
        ranking.expect("they can be run").iter().map(Judged::policy).collect()
    };
    let journaled = policies(Some(&run(WritePolicy::Journaled)));
    let (kept, weaker) = journaled.split_at(6);
    let keeps = [WritePolicy::Journaled, WritePolicy::WriteThrough];
    assert!(kept.iter().all(|policy| keeps.contains(policy)), "{journaled:?}");
    assert!(weaker.iter().all(|policy| !keeps.contains(policy)), "{journaled:?}");
    assert_eq!(policies(Some(&run(WritePolicy::WriteThrough)))[0], WritePolicy::WriteThrough);
    // Without anything in force plain write-back is still last.
    assert!(policies(None)[16..].iter().all(|&policy| policy == WritePolicy::WriteBack));
    // The control: who runs plain write-back gets it where it is fastest.
    let unordered = policies(Some(&run(WritePolicy::WriteBack)));
    assert!(unordered[..16].contains(&WritePolicy::WriteBack), "{unordered:?}");
}

#[test]
fn the_reason_counts_nothing_that_is_set_aside() {
    let requests = mail();
    let wish = wish(Span::from_secs(5), None);
    let candidates = wish.candidates(&base(&requests));
    let ranking = wish.judge(&requests, candidates, &Meter::default()).expect("they can be run");
    let first = ranking.iter().position(Judged::meets).expect("one meets it");
    let [mut best, mut other] = [ranking[first].clone(), ranking[first].clone()];
    let said = |ranking: &[Judged]| reason(&wish, ranking).join(" ");
    let both = said(&[best.clone(), other.clone()]);
    assert!(both.starts_with("2 of 2 candidates") && !both.contains("set aside"), "{both}");
    other.is_weaker = true;
    let one = said(&[best.clone(), other.clone()]);
    assert!(
        one.starts_with("1 of 2 candidates") && one.contains("Set aside are 1 more that"),
        "{one}"
    );
    best.misses.push("it is slow".into());
    let none = said(&[best, other]);
    assert!(none.starts_with("None of the 1 candidates left meets"), "{none}");
    assert!(none.contains("Set aside are 1 more that"), "{none}");
}

#[test]
fn rows_that_are_written_through_stay_so() {
    let requests = rows();
    let front = Front::Data { ram: RAM_MIN, row: 200 };
    let wish = Wish { front, ..wish(Span::from_secs(5), None) };
    let mut base = base(&requests);
    base.devices.filer.write = Interval(Span::from_millis(2));
    let first = |named: WritePolicy| {
        let mut policy = defaults::rows::policy();
        named.apply(&mut policy);
        let tally = crate::replay::Tally::default();
        let run = RecordedRun { load: None, policy, tally, reads: None, writes: None };
        let (candidates, meter) = (wish.candidates(&base), Meter::default());
        let ranking = wish.judge_recorded(&requests, Some(&run), candidates, &meter);
        ranking.expect("they can be run")[0].policy()
    };
    assert_eq!(first(WritePolicy::WriteThrough), WritePolicy::WriteThrough);
    // The control: it is the slower one.
    assert_eq!(first(WritePolicy::Journaled), WritePolicy::Journaled);
}

#[test]
fn no_candidate_acknowledges_earlier_than_the_recorded_run_did() {
    let requests = mail();
    let wish = wish(Span::from_secs(5), None);
    let mut policy = defaults::volume::policy(64 << 20);
    let tally = crate::replay::Tally::default();
    let commits = |policy: &destage_core::Policy| {
        let mut candidates = wish.candidates(&base(&requests));
        let (policy, tally) = (policy.clone(), tally.clone());
        let run = RecordedRun { load: None, policy, tally, reads: None, writes: None };
        wish.keep_unasked(&run, &mut candidates);
        candidates.iter().map(|settings| settings.flash.commit.span()).max()
    };
    let on_flush = destage_engine::commit_on_flush(Span::from_secs(5));
    assert_eq!(commits(&policy), Some(on_flush));
    policy.commit = Span::ZERO;
    assert_eq!(commits(&policy), Some(Span::ZERO));
    // Unless it is said what a crash may cost.
    let front = Front::Data { ram: RAM_MIN, row: 200 };
    let tally = crate::replay::Tally::default();
    let run = RecordedRun { load: None, policy, tally, reads: None, writes: None };
    let of_rows = |rpo_crash: Option<Span>| {
        let wish = Wish { front, rpo_crash, ..wish };
        let mut candidates = wish.candidates(&base(&requests));
        wish.keep_unasked(&run, &mut candidates);
        candidates.iter().map(|settings| settings.flash.commit.span()).max()
    };
    assert_eq!(of_rows(None), Some(Span::ZERO));
    assert_eq!(of_rows(Some(Span::from_secs(1))), Some(Span::from_secs(1)));
}

mod kept;
