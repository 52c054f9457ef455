use super::*;
use crate::block::BlockCommand;
use crate::cli::{Cli, Subcommand};
use clap::Parser;
use destage_block::block::BLOCK;
use destage_block::cache::{Geometry, Sizing};
use destage_core::{Policy, Span};
use destage_engine::{defaults, fit_volume};
use destage_sim::replay::RecordedRun;

/// The settings that the block server makes of a command line.
fn parsed(command: &str) -> destage_block::settings::Settings {
    let words = shlex::split(command).expect("it is a command line");
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{command}: {error}"));
    let Subcommand::Block { command: BlockCommand::Serve(args) } = cli.command else {
        panic!("it starts the block server: {command}");
    };
    args.into_settings(Vec::new()).unwrap_or_else(|error| panic!("{command}: {error}"))
}

#[test]
fn the_command_line_says_what_was_simulated() {
    let mut policies = std::collections::BTreeSet::new();
    for (rpo, flash) in [(100, 64 << 20), (5_000, 20 << 30), (86_400_000, 16 << 40)] {
        let front = Front::Block { flash, ram: 1 << 30 };
        let wish = Wish {
            rpo: Span::from_millis(rpo),
            rpo_crash: None,
            p99_read: None,
            p99_write: None,
            front,
        };
        for mut settings in wish.candidates(&Settings::default()) {
            settings.flash.read_priority = rpo == 100;
            settings.validate().expect("candidates can be run");
            let command = command(&wish, &settings);
            let live = parsed(&command);
            let [volume] = &live.volumes[..] else { panic!("one volume: {command}") };
            assert_eq!((volume.cache_bytes, volume.log_bytes), (Some(flash), Some(wish.log())));
            assert!(volume.commit_on_flush, "as unless told: {command}");
            let tier = &settings.flash;
            let simulated = core_policy(&settings);
            let policy = &volume.policy;
            assert_eq!(policy.acknowledge, simulated.acknowledge, "{command}");
            assert_eq!((policy.order, policy.when), (simulated.order, simulated.when));
            assert_eq!((policy.commit, policy.staleness), (simulated.commit, simulated.staleness));
            assert_eq!(policy.at_limit, simulated.at_limit, "{command}");
            assert_eq!(policy.read_priority, simulated.read_priority, "{command}");
            assert!(tier.counts_writes && tier.dirty_apart, "as a volume does");
            same_limits(&command, &simulated, &served(volume));
            // What changes a running server makes the same policy of the one that it has.
            let online = online(&wish, &settings);
            let words = shlex::split(&online).expect("it is a command line");
            Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{online}: {error}"));
            let named = |word: &&String| {
                word.contains('=') && !word.starts_with("order=") && *word != "commit=flush"
            };
            let parts: Vec<String> = words[4..].iter().filter(named).cloned().collect();
            let mut changed = policy.clone();
            changed.when = destage_core::When::OnPressure;
            changed.limits.linger = Span::from_millis(7);
            changed.read_priority = false;
            changed.limits.dirty_bytes_max = 1 << 33;
            let changed = destage_runtime::policy::change(&changed, &parts);
            assert_eq!(changed.unwrap_or_else(|error| panic!("{online}: {error}")), *policy);
            policies.insert(policy_name(&wish, tier.policy));
        }
    }
    assert_eq!(policies.len(), 5, "{policies:?}");
}

/// The settings of a simulated run by its flags.
fn run_settings(command: &str) -> Settings {
    let words = shlex::split(command).expect("it is a command line");
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{command}: {error}"));
    let Subcommand::Sim { command: crate::sim::SimCommand::Run(args) } = cli.command else {
        panic!("it is a run: {command}");
    };
    args.settings().unwrap_or_else(|error| panic!("{command}: {error}"))
}

/// The policy that the core of a simulated volume has.
fn core_policy(settings: &Settings) -> Policy {
    let (tier, block) = (&settings.flash, settings.block.get());
    tier.core_policy(tier.size.get() / block, block, false)
}

/// The policy that the core of a served volume has: its limits are those that the cache can keep.
fn served(volume: &destage_block::settings::VolumeSettings) -> Policy {
    let sizing = Sizing {
        total_bytes: volume.cache_bytes.expect("it is told"),
        log_bytes: volume.log_bytes,
        segment_bytes: None,
    };
    let geometry = Geometry::plan(&sizing).unwrap_or_else(|error| panic!("{error}"));
    let mut policy = volume.policy.clone();
    fit_volume(&mut policy, geometry.slots, BLOCK as u64, geometry.log_bytes());
    policy
}

/// What both limit is the same. For superblocks and the like a cache keeps less than a hundredth and 256 KiB of its blocks, of
/// which a batch takes a part.
fn same_limits(who: &str, simulated: &Policy, served: &Policy) {
    let (ours, theirs) = (&simulated.limits, &served.limits);
    for (what, ours, theirs, apart) in [
        ("clean", ours.cache_bytes_max, theirs.cache_bytes_max, 256 << 10),
        ("dirty", ours.dirty_bytes_max, theirs.dirty_bytes_max, 0),
        ("dirty, low", ours.dirty_bytes_low, theirs.dirty_bytes_low, 0),
        ("log", ours.journal_bytes_max, theirs.journal_bytes_max, 0),
        ("batch", ours.batch_bytes_max, theirs.batch_bytes_max, 64 << 10),
    ] {
        let most = theirs / 100 + apart;
        assert!(ours.abs_diff(theirs) <= most, "{who}: {what} {ours}, served {theirs}");
    }
    assert_eq!(ours.batch_groups_max, theirs.batch_groups_max, "{who}");
    assert_eq!(ours.linger, theirs.linger, "{who}");
}

/// A run, an advice and a replay with so much flash have what a server has that is started so.
fn same_defaults(live: &destage_block::settings::VolumeSettings, size: &str, flash: u64) {
    let run =
        run_settings(&format!("destage sim run --trace t --flash {size} --devices /dev/null"));
    let front = Front::Block { flash, ram: 0 };
    let rpo = defaults::STALENESS;
    let wish = Wish { rpo, rpo_crash: None, p99_read: None, p99_write: None, front };
    let named = defaults::volume::POLICY;
    let advised = wish.candidates(&Settings::default());
    let advised = advised.into_iter().find(|settings| settings.flash.policy == named);
    let served = served(live);
    for (who, settings) in [("run", run), ("advise", advised.expect("a candidate"))] {
        let (who, tier) = (format!("{who} with {size}"), &settings.flash);
        assert_eq!(tier.size.get(), flash - defaults::volume::log_bytes(flash), "{who}");
        assert_eq!(tier.replacement.choice(), Some(destage_core::replace::Choice::default()));
        let simulated = core_policy(&settings);
        same_limits(&who, &simulated, &served);
        // Nothing is rejected here, and nobody waits for room in a list.
        let mut alike = simulated;
        alike.limits.clone_from(&served.limits);
        alike.on_reject = served.on_reject;
        assert_eq!(alike, served, "{who}");
    }
    assert!(live.commit_on_flush && live.dirty_limit.is_none() && live.log_bytes.is_none());
    // A recording has the policy of its server. What asks for the defaults changes nothing of it.
    let words = format!(
        "destage sim replay t --policy {} --when {} --staleness {} --at-limit {} --dirty-limit {} --linger {}",
        named.name(),
        when_text(defaults::WHEN),
        Interval(defaults::STALENESS),
        destage_runtime::policy::at_limit_name(defaults::AT_LIMIT),
        Bytes(served.limits.dirty_bytes_max),
        Interval(defaults::volume::LINGER),
    );
    assert_eq!(replayed(&words, &served), served, "{words}");
}

/// The policy that a replay makes of the recorded one of a volume.
fn replayed(command: &str, recorded: &Policy) -> Policy {
    let words = shlex::split(command).expect("it is a command line");
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{command}: {error}"));
    let Subcommand::Sim { command: crate::sim::SimCommand::Replay(args) } = cli.command else {
        panic!("it is a replay: {command}");
    };
    args.change(recorded, true).unwrap_or_else(|error| panic!("{command}: {error}"))
}

#[test]
fn servers_runs_and_advice_have_the_same_defaults() {
    for (size, flash) in [("128M", 128 << 20), ("1G", 1 << 30), ("1T", 1 << 40)] {
        let live =
            parsed(&format!("destage block serve --origin file:/a --cache /b --cache-size {size}"));
        same_defaults(&live.volumes[0], size, flash);
    }
    let words = ["destage", "serve"];
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
    let Subcommand::Serve(args) = cli.command else { panic!("it is the server of rows") };
    let live = args.into_settings().unwrap_or_else(|error| panic!("{error}")).policy;
    assert_eq!(live, defaults::rows::policy());
    let front = Front::Data { ram: 2 << 30, row: 4_096 };
    let rpo = defaults::STALENESS;
    let wish = Wish { rpo, rpo_crash: None, p99_read: None, p99_write: None, front };
    let settings = wish.candidates(&Settings::default()).swap_remove(1);
    let simulated = core_policy(&settings);
    assert_eq!(
        (live.when, live.commit, live.staleness, live.at_limit),
        (simulated.when, simulated.commit, simulated.staleness, simulated.at_limit)
    );
    assert_eq!(live.limits.linger, simulated.limits.linger);
    assert_eq!(live.limits.batch_groups_max, simulated.limits.batch_groups_max);
    assert_eq!(live.limits.cache_bytes_max, simulated.limits.cache_bytes_max);
    assert_eq!(live.limits.dirty_bytes_max, simulated.limits.dirty_bytes_max);
    // What the report has in force, and the words for it, are those of the server, not numbers of simulated rows.
    let reported = wish.live_policy(&settings);
    assert_eq!(reported.limits.journal_bytes_max, live.limits.journal_bytes_max);
    assert_eq!(reported.limits.batch_bytes_max, live.limits.batch_bytes_max);
    let odd = Wish { front: Front::Data { ram: 2 << 30, row: 333 }, ..wish };
    let settings = odd.candidates(&Settings::default()).swap_remove(1);
    for words in [command(&odd, &settings), online(&odd, &settings)] {
        assert!(words.contains("cache-size") && words.matches("1G").count() == 2, "{words}");
    }
}

#[test]
fn the_command_line_for_rows_says_what_was_simulated() {
    let mut policies = std::collections::BTreeSet::new();
    let crashes = [None, Some(Span::ZERO), Some(Span::from_secs(60))];
    for ((rpo, ram), rpo_crash) in
        [(100, 1 << 20), (5_000, 20 << 30), (86_400_000, 1 << 40)].into_iter().zip(crashes)
    {
        let front = Front::Data { ram, row: 333 };
        let wish =
            Wish { rpo: Span::from_millis(rpo), rpo_crash, p99_read: None, p99_write: None, front };
        for mut settings in wish.candidates(&Settings::default()) {
            settings.flash.read_priority = rpo == 100;
            settings.validate().expect("candidates can be run");
            let command = command(&wish, &settings);
            let words = shlex::split(&command).expect("it is a command line");
            let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
            let Subcommand::Serve(args) = cli.command else { panic!("{command}") };
            let live = args.into_settings().unwrap_or_else(|error| panic!("{error}")).policy;
            let tier = &settings.flash;
            let simulated = core_policy(&settings);
            assert_eq!(live.acknowledge, simulated.acknowledge, "{command}");
            assert_eq!((live.commit, live.staleness), (simulated.commit, simulated.staleness));
            assert_eq!(live.commit, rpo_crash.unwrap_or_default(), "{command}");
            assert_eq!((live.when, live.at_limit), (simulated.when, simulated.at_limit));
            assert_eq!(live.read_priority, simulated.read_priority, "{command}");
            let (ours, theirs) = (&live.limits, &simulated.limits);
            assert_eq!(ours.batch_groups_max, theirs.batch_groups_max, "{command}");
            assert_eq!(ours.linger, theirs.linger, "{command}");
            assert_eq!(ours.dirty_bytes_max + ours.cache_bytes_max, ram, "{command}");
            // Rows are simulated as blocks: so many fit.
            let dirty_rows = theirs.dirty_bytes_max / settings.block.get();
            assert_eq!(dirty_rows, ours.dirty_bytes_max / 333 / 2 * 2, "{command}");
            if tier.policy != WritePolicy::WriteThrough {
                assert_eq!(live.order, simulated.order, "{command}");
            }
            policies.insert(policy_name(&wish, tier.policy));
        }
    }
    assert_eq!(policies.into_iter().collect::<Vec<_>>(), ["write-back", "write-through"]);
}

fn asked(words: &[&str]) -> Box<AdviseArgs> {
    let always = ["destage", "sim", "advise", "--trace", "none", "--rpo", "5s"];
    let cli = Cli::try_parse_from(always.iter().chain(words));
    let cli = cli.unwrap_or_else(|error| panic!("{error}"));
    let Subcommand::Sim { command: crate::sim::SimCommand::Advise(args) } = cli.command else {
        panic!("it is advice that is asked for");
    };
    args
}

#[test]
fn a_recording_of_rows_gives_no_advice_on_a_volume() {
    let extent = Extent::Object { id: 1, bytes: 200 };
    let request = Request { time: Time::ZERO, op: Op::Write, extent, host: 0, thread: 0 };
    let volume = asked(&["--flash", "1G"]);
    let refused = front(&volume, &[request], true).map_err(|error| error.to_string());
    assert!(refused.is_err_and(|error| error.contains("--front data")));
    // A trace of objects may be asked about as blocks.
    assert!(front(&volume, &[request], false).is_ok());
    let rows = asked(&["--front", "data", "--ram", "1G"]);
    assert!(front(&rows, &[request], true).is_ok());
}

#[test]
fn what_a_crash_may_cost_is_asked_of_rows_and_no_longer_than_without_the_journal() {
    let asked = |words: &[&str]| rpo_crash(&asked(words)).map_err(|error| error.to_string());
    let rows = ["--front", "data", "--ram", "1G", "--rpo-crash"];
    let of_rows = |time: &'static str| asked(&[&rows[..], &[time]].concat());
    assert_eq!(asked(&rows[..4]), Ok(None));
    assert_eq!(of_rows("0"), Ok(Some(Span::ZERO)));
    assert_eq!(of_rows("4s"), Ok(Some(Span::from_secs(4))));
    for long in ["5s", "6s"] {
        assert!(of_rows(long).is_err_and(|error| error.contains("not shorter than --rpo 5s")));
    }
    assert_eq!(of_rows("1ms"), Ok(Some(Span::from_millis(1))));
    assert!(of_rows("500us").is_err_and(|error| error.contains("is too short")));
    let of_volume = asked(&["--flash", "1G", "--rpo-crash", "1s"]);
    assert!(of_volume.is_err_and(|error| error.contains("--front data")));
}

#[test]
fn what_stays_names_the_bound_that_does_not() {
    let settings = Settings::default();
    let front = Front::Block { flash: 64 << 20, ram: 0 };
    let rpo = Span::from_secs(5);
    let wish = Wish { rpo, rpo_crash: None, p99_read: None, p99_write: None, front };
    let meter = Meter::default();
    let kept = wish.judge(&[], vec![wish.candidates(&settings).swap_remove(1)], &meter);
    let kept = kept.unwrap_or_else(|error| panic!("{error}")).swap_remove(0);
    let run = |secs| RecordedRun {
        load: None,
        policy: Policy { staleness: Span::from_secs(secs), ..Default::default() },
        tally: Default::default(),
        reads: None,
        writes: None,
    };
    let said = |secs| stays(Some(&run(secs)), &kept, 0.001);
    assert!(said(5).starts_with("What is in force stays. "), "{}", said(5));
    assert!(said(30).starts_with("What is in force stays, but for D: 5s instead of 30s."));
}
