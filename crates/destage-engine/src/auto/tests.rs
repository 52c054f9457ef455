use super::*;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

const SECOND: Span = Span::from_secs(1);

fn settings(goal: Goal) -> AutoSettings {
    AutoSettings { goal, ranges: Ranges::default(), period: SECOND }
}

/// A server that nobody has but in numbers: what it counts follows from what is in force.
struct Server {
    now: Time,
    policy: Policy,
    counts: Counts,
    auto: Auto,
    told: Vec<Told>,
}

/// What a second of it brings: writes, what the origin writes for each of them, and what an acknowledgement takes.
struct Second {
    writes: u64,
    sent: f64,
    answer: f64,
}

impl Server {
    fn new(settings: AutoSettings) -> Self {
        let policy = crate::defaults::rows::policy();
        let now = Time::ZERO;
        let auto = Auto::new(now, settings, &policy);
        Self { now, policy, counts: Counts::default(), auto, told: Vec::new() }
    }

    fn look(&mut self) {
        let before = self.policy.clone();
        let told = self.auto.look(self.now, &mut self.policy, &self.counts);
        let was_changed = told.is_some_and(|told| told.verdict != Verdict::Kept);
        assert_eq!(before != self.policy, was_changed, "{told:?}");
        let mut same = before;
        Knobs::of(&self.policy).apply(&mut same);
        assert_eq!(same, self.policy, "nothing but the knobs");
        self.policy.validate().unwrap();
        self.told.extend(told);
    }

    /// Runs for so many seconds, each of which brings what `second` makes of the settings in force.
    fn run(&mut self, seconds: u64, second: impl Fn(Knobs) -> Second) {
        for _ in 0..5 * seconds {
            self.step(&second);
        }
    }

    /// Runs until a step is tried.
    fn run_to_trial(&mut self, second: impl Fn(Knobs) -> Second) {
        while !self.auto.is_trying() {
            self.step(&second);
        }
    }

    /// A fifth of a second, and a look at its end.
    fn step(&mut self, second: &impl Fn(Knobs) -> Second) {
        let Second { writes, sent, answer } = second(Knobs::of(&self.policy));
        let (counts, writes) = (&mut self.counts, writes / 5);
        counts.written += writes;
        counts.changes += writes;
        counts.groups += writes;
        counts.batches += 1;
        counts.sent += (writes as f64 * sent) as u64;
        counts.answers += writes;
        counts.answers_nanos += (answer * 1e9) as u128 * u128::from(writes);
        self.now = self.now + Span(SECOND.0 / 5);
        self.look();
    }

    fn linger(&self) -> Span {
        self.policy.limits.linger
    }

    fn verdicts(&self, verdict: Verdict) -> usize {
        self.told.iter().filter(|told| told.verdict == verdict).count()
    }

    fn advise(&mut self, millis: u64) {
        let linger = Span::from_millis(millis);
        self.auto.advise(Knobs { linger, ..Knobs::of(&self.policy) });
    }

    /// Where each advice that was tried has led to, milliseconds.
    fn advised(&self) -> Vec<u64> {
        let of = self.told.iter().filter(|told| matches!(told.reason, Reason::Advised(_)));
        of.map(|told| told.to.linger.0 / 1_000_000).collect()
    }
}

/// Hot rows: the longer one waits, the less is written, down to a tenth.
fn hot(knobs: Knobs) -> Second {
    Second {
        writes: 1_000,
        sent: (0.02 / knobs.linger.as_secs_f64()).clamp(0.1, 1.0),
        answer: 0.001,
    }
}

/// Nothing is written twice.
fn cold(_: Knobs) -> Second {
    Second { writes: 1_000, sent: 1.0, answer: 0.001 }
}

#[test]
fn a_step_that_helps_is_kept_and_the_next_one_tried_until_one_does_not() {
    let mut server = Server::new(settings(Goal::Writes));
    server.run(300, hot);
    // 20, 40, 80, 160 ms help; 200 ms are as good as anything; from 320 ms on nothing is won.
    assert_eq!(server.linger(), Span::from_millis(320));
    assert_eq!(server.verdicts(Verdict::Kept), 4);
    assert_eq!(server.verdicts(Verdict::WentBack), usize::from(ATTEMPTS));
    assert!(matches!(server.told[0].reason, Reason::Measured(_)), "{:?}", server.told[0]);
    let changes = server.auto.done().changes;
    server.run(3_000, hot);
    assert_eq!(server.auto.done().changes, changes, "a steady load sees no more of it");
    assert!(changes <= server.auto.changes_max());
}

#[test]
fn a_step_that_does_not_help_is_taken_back() {
    let mut server = Server::new(settings(Goal::Writes));
    server.run(300, cold);
    assert_eq!(server.linger(), Span::from_millis(20));
    assert_eq!(server.verdicts(Verdict::Tried), usize::from(ATTEMPTS));
    assert_eq!(server.verdicts(Verdict::WentBack), usize::from(ATTEMPTS));
    assert_eq!(server.verdicts(Verdict::Kept), 0);
}

#[test]
fn what_lengthens_acknowledgements_is_taken_back_whatever_it_saves() {
    let mut server = Server::new(settings(Goal::Writes));
    server.run(300, |knobs| Second {
        answer: if knobs.linger > Span::from_millis(50) { 0.1 } else { 0.001 },
        ..hot(knobs)
    });
    assert_eq!(server.linger(), Span::from_millis(40));
    assert!(server.told.iter().any(|told| matches!(told.reason, Reason::Slower(..))));
}

#[test]
fn the_shortest_acknowledgement_is_found_in_either_direction() {
    for (best, expected) in [(5.0, 5), (80.0, 80)] {
        let mut server = Server::new(settings(Goal::Latency));
        server.run(400, |knobs| {
            let millis = knobs.linger.as_secs_f64() * 1e3;
            Second { writes: 1_000, sent: 1.0, answer: 0.001 * (millis / best).max(best / millis) }
        });
        assert_eq!(server.linger(), Span::from_millis(expected));
        assert!(server.auto.done().changes <= server.auto.changes_max());
    }
}

#[test]
fn the_ranges_and_a_quarter_of_the_bound_hold_every_value() {
    let mut server = Server::new(AutoSettings {
        ranges: Ranges {
            linger: Some((Span::from_millis(10), Span::from_millis(50))),
            batch: None,
        },
        ..settings(Goal::Writes)
    });
    server.run(300, hot);
    assert_eq!(server.linger(), Span::from_millis(50));

    let mut server = Server::new(settings(Goal::Writes));
    server.policy.staleness = Span::from_millis(200);
    server.run(300, hot);
    assert_eq!(server.linger(), Span::from_millis(50), "a quarter of D");
}

#[test]
fn a_limit_that_is_met_under_trial_or_later_brings_back_what_was_before() {
    let mut server = Server::new(settings(Goal::Writes));
    server.run_to_trial(hot);
    let from = server.told.last().unwrap().from;
    server.counts.is_limited = true;
    server.run(1, hot);
    let told = server.told.last().unwrap();
    assert_eq!((told.verdict, told.reason), (Verdict::WentBack, Reason::Limit));
    assert_eq!(Knobs::of(&server.policy), from);

    let mut server = Server::new(settings(Goal::Writes));
    server.run(300, hot);
    assert_eq!(server.linger(), Span::from_millis(320));
    server.counts.is_limited = true;
    server.run(1, hot);
    assert_eq!(server.linger(), Span::from_millis(20), "the user's");
    server.counts.is_limited = false;
    server.run(3_000, hot);
    assert_eq!(server.linger(), Span::from_millis(20), "until the load has changed");
}

#[test]
fn an_origin_that_is_away_ends_a_trial_and_nothing_is_judged_meanwhile() {
    let mut server = Server::new(settings(Goal::Writes));
    server.run_to_trial(hot);
    server.counts.is_disturbed = true;
    server.run(100, hot);
    assert_eq!(server.told.last().unwrap().reason, Reason::Disturbed);
    assert_eq!(server.linger(), Span::from_millis(20));
    server.counts.is_disturbed = false;
    server.run(300, hot);
    assert_eq!(server.linger(), Span::from_millis(320));
}

#[test]
fn another_load_brings_back_what_the_user_has_set_and_begins_anew() {
    let mut server = Server::new(settings(Goal::Writes));
    server.run(300, hot);
    assert_eq!(server.linger(), Span::from_millis(320));
    let told = server.told.len();
    server.run(5, cold);
    assert_eq!(server.told[told].reason, Reason::LoadChanged);
    assert_eq!(server.told[told].to.linger, Span::from_millis(20));
    assert_eq!(server.linger(), Span::from_millis(20));
    server.run(300, cold);
    assert_eq!(server.linger(), Span::from_millis(20));
    // Under the user's settings the hot load looks like the cold one: only its rate tells it apart.
    server.run(300, hot);
    assert_eq!(server.linger(), Span::from_millis(20));
    server.run(300, |knobs| Second { writes: 2_000, ..hot(knobs) });
    assert_eq!(server.linger(), Span::from_millis(320));
}

#[test]
fn a_policy_changed_by_hand_is_right_and_the_new_base() {
    let mut server = Server::new(settings(Goal::Writes));
    server.run(300, hot);
    let by_hand = Span::from_millis(30);
    server.policy.limits.linger = by_hand;
    server.run(1, hot);
    assert_eq!((server.linger(), server.auto.base().linger), (by_hand, by_hand));
    assert!(!server.auto.is_trying());
    server.run(300, hot);
    assert_eq!(server.linger(), Span::from_millis(240), "it goes on from there");

    // What is not named goes back to what the user had set before.
    server.policy.staleness = Span::from_secs(1);
    server.run(1, hot);
    assert_eq!(server.told.last().unwrap().reason, Reason::ByHand);
    assert_eq!(server.linger(), by_hand);
    assert_eq!(server.policy.staleness, Span::from_secs(1));
}

#[test]
fn what_is_named_is_the_new_base_even_if_it_is_what_is_tried() {
    let tried = |names: bool| {
        let mut server = Server::new(settings(Goal::Writes));
        server.run_to_trial(hot);
        let (base, tried) = (server.auto.base().linger, server.linger());
        assert_ne!(base, tried);
        if names {
            server.auto.name(Knob::Linger, &server.policy);
        }
        (server, base, tried)
    };
    let (mut server, _, named) = tried(true);
    server.step(&cold);
    assert!(!server.auto.is_trying() && server.told.last().unwrap().verdict == Verdict::Tried);
    assert_eq!(server.auto.stop(server.now, &mut server.policy), None);
    assert_eq!(server.linger(), named);
    // Switched off at once it stays, too.
    let (mut server, _, named) = tried(true);
    assert_eq!(server.auto.stop(server.now, &mut server.policy), None);
    assert_eq!(server.linger(), named);
    // The control: nobody has named it.
    let (mut server, base, _) = tried(false);
    server.auto.stop(server.now, &mut server.policy).unwrap();
    assert_eq!(server.linger(), base);
}

#[test]
fn switched_off_it_leaves_what_the_user_has_set() {
    let mut server = Server::new(settings(Goal::Writes));
    server.run(300, hot);
    let told = server.auto.stop(server.now, &mut server.policy).unwrap();
    assert_eq!((told.verdict, told.reason), (Verdict::WentBack, Reason::Off));
    assert_eq!(server.policy, crate::defaults::rows::policy());
}

#[test]
fn where_neither_setting_counts_nothing_is_tried() {
    for change in [
        (|policy: &mut Policy| policy.acknowledge = Acknowledge::Origin) as fn(&mut Policy),
        |policy| policy.when = When::Adaptive,
    ] {
        let mut server = Server::new(settings(Goal::Writes));
        change(&mut server.policy);
        server.run(100, hot);
        assert_eq!(server.auto.done(), Done::default());
    }
}

#[test]
fn a_server_without_writes_is_left_alone() {
    let mut server = Server::new(settings(Goal::Writes));
    server.run(300, |knobs| Second { writes: 0, ..hot(knobs) });
    assert_eq!(server.auto.done(), Done::default());
    server.run(300, hot);
    // A trial during which the writes stop is taken back in the end.
    let mut server = Server::new(settings(Goal::Writes));
    server.run_to_trial(hot);
    server.run(60, |knobs| Second { writes: 0, ..hot(knobs) });
    assert_eq!(server.told.last().unwrap().reason, Reason::TooFew);
    assert_eq!(server.linger(), Span::from_millis(20));
}

#[test]
fn what_is_advised_is_tried_first_and_kept_if_it_is_better() {
    let mut server = Server::new(settings(Goal::Writes));
    server.advise(160);
    server.run(300, hot);
    assert!(matches!(server.told[0].reason, Reason::Advised(_)), "{:?}", server.told[0]);
    assert_eq!(server.told[0].to.linger, Span::from_millis(160));
    assert_eq!(server.told[1].verdict, Verdict::Kept);
    // The steps go on from there: 320 ms are better still.
    assert_eq!((server.linger(), server.advised()), (Span::from_millis(320), vec![160]));
    assert_eq!(server.verdicts(Verdict::Kept), 2);
    assert!(server.auto.done().changes <= server.auto.changes_max());
}

#[test]
fn advice_that_is_not_kept_is_tried_again_only_under_another_load() {
    let mut server = Server::new(settings(Goal::Writes));
    let advised = |server: &mut Server, advice: &[u64], second: fn(Knobs) -> Second| {
        let before = server.advised().len();
        for millis in advice.iter().cycle().take(300) {
            server.advise(*millis);
            server.run(1, second);
        }
        server.advised()[before..].to_vec()
    };
    assert_eq!(advised(&mut server, &[200], cold), [200]);
    assert_eq!(server.linger(), Span::from_millis(20));
    assert_eq!(advised(&mut server, &[300, 200, 400, 500, 600], cold).len(), 2, "three in all");
    assert!(server.auto.done().changes <= server.auto.changes_max());
    let twice = |knobs| Second { writes: 2_000, ..cold(knobs) };
    assert_eq!(advised(&mut server, &[200], twice), [200]);
    // The control: where it helps it stays.
    assert_eq!(advised(&mut server, &[200], hot), [200]);
    assert_eq!(server.linger(), Span::from_millis(200));
}

#[test]
fn advice_goes_no_further_than_the_ranges_and_never_back() {
    let mut server = Server::new(AutoSettings {
        ranges: Ranges {
            linger: Some((Span::from_millis(10), Span::from_millis(50))),
            batch: None,
        },
        ..settings(Goal::Writes)
    });
    server.advise(20);
    server.auto.advise(Knobs { linger: Span(u64::MAX), batch: 0 });
    server.run_to_trial(hot);
    // Batches are far from full: less than that changes nothing.
    let batch = server.auto.base().batch;
    assert_eq!(Knobs::of(&server.policy), Knobs { linger: Span::from_millis(50), batch });
    assert_eq!(server.told.len(), 1, "the older one counts no more: {:?}", server.told);
    server.run(10, hot);
    assert_eq!(server.verdicts(Verdict::Kept), 1);
    // What was kept is better than what was before: nothing goes back there but with the load.
    for millis in [10, 20, 0] {
        server.advise(millis);
        server.run(20, hot);
    }
    assert_eq!(server.advised(), [50]);

    let mut server = Server::new(settings(Goal::Latency));
    server.advise(20);
    server.run(3, cold);
    assert_eq!(server.advised(), [0; 0], "it is in force");
    let mut server = Server::new(settings(Goal::Writes));
    server.policy.staleness = Span::from_millis(200);
    server.run(1, cold);
    server.advise(900);
    server.run_to_trial(cold);
    assert_eq!(server.advised(), [50], "a quarter of D");
}

#[test]
fn after_a_limit_or_a_word_of_the_user_no_older_advice_is_tried() {
    let mut server = Server::new(settings(Goal::Writes));
    server.run(300, hot);
    server.counts.is_limited = true;
    server.run(1, hot);
    server.counts.is_limited = false;
    server.advise(200);
    server.run(300, hot);
    assert_eq!((server.linger(), server.advised()), (Span::from_millis(20), Vec::new()));

    let mut server = Server::new(settings(Goal::Writes));
    server.advise(200);
    server.policy.limits.linger = Span::from_millis(30);
    server.run(300, cold);
    assert_eq!(server.advised(), [0; 0]);
}

/// Any advice: far out of what may be, too.
fn any_advice() -> impl Strategy<Value = Option<Knobs>> {
    let linger = prop_oneof![0..2_000_000_000u64, Just(u64::MAX)].prop_map(Span);
    let knobs = (linger, 0..100_000u32).prop_map(|(linger, batch)| Knobs { linger, batch });
    prop::option::of(knobs)
}

/// Any second: as unsteady as can be.
fn any_second() -> impl Strategy<Value = (Option<Knobs>, u64, f64, f64, bool, bool)> {
    (
        any_advice(),
        0..3_000u64,
        0.01..2.0f64,
        1e-5..0.5f64,
        prop::bool::weighted(0.05),
        prop::bool::weighted(0.02),
    )
}

proptest! {
    /// Whatever is measured and advised, nothing but the knobs changes (see [`Server::look`]), they stay in their ranges, and the
    /// changes are bounded by the number of times that all was open.
    #[test]
    fn whatever_is_measured_changes_are_bounded_and_in_range(
        seconds in prop::collection::vec(any_second(), 400),
        is_writes: bool,
    ) {
        let goal = if is_writes { Goal::Writes } else { Goal::Latency };
        let mut server = Server::new(settings(goal));
        for (advice, writes, sent, answer, is_limited, is_disturbed) in seconds {
            if let Some(advice) = advice {
                server.auto.advise(advice);
            }
            (server.counts.is_limited, server.counts.is_disturbed) = (is_limited, is_disturbed);
            server.run(1, |_| Second { writes, sent, answer });
            let linger = server.linger();
            prop_assert!(linger >= Span::from_millis(1) && linger <= SECOND, "{linger:?}");
            prop_assert!((1_000..=16_000).contains(&server.policy.limits.batch_groups_max));
        }
        let opened = 1 + 400 / SPACING_MIN;
        prop_assert!(server.auto.done().changes <= opened * (1 + server.auto.changes_max()));
    }
}
