//! `--auto` as users write it, and what is logged and reported of it. What it decides is in [`destage_engine::auto`].

use crate::policy::{self, PolicyTextError};
use crate::status::AutoReport;
use crate::units::Interval;
use destage_core::{Policy, Span, Time};
use destage_engine::auto::{
    Auto, AutoSettings, Counts, Goal, Knob, Knobs, PERIOD, Ranges, Reason, Told, Verdict,
};

/// What the user asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoOptions {
    /// What is to become less; `None` while it is off.
    pub goal: Option<Goal>,
    /// The values that may be tried.
    pub ranges: Ranges,
    /// How long one setting is measured.
    pub period: Span,
    /// How often advice on the server's own recording is asked for; `None` for never.
    pub advice: Option<Span>,
}

impl Default for AutoOptions {
    fn default() -> Self {
        Self { goal: None, ranges: Ranges::default(), period: PERIOD, advice: None }
    }
}

/// Reads `off`, `writes` or `latency`.
///
/// # Errors
/// Lists what is possible.
pub fn parse_goal(text: &str) -> Result<Option<Goal>, String> {
    match text {
        "off" => Ok(None),
        "writes" => Ok(Some(Goal::Writes)),
        "latency" => Ok(Some(Goal::Latency)),
        _ => Err(format!("'{text}' is not a goal: use off, writes or latency")),
    }
}

/// The word that [`parse_goal`] reads.
pub fn goal_name(goal: Option<Goal>) -> &'static str {
    match goal {
        None => "off",
        Some(Goal::Writes) => "writes",
        Some(Goal::Latency) => "latency",
    }
}

/// Takes `auto=GOAL` out of the arguments of a command that changes the policy: the goal, if one is named, and the others.
///
/// # Errors
/// It is no goal.
pub fn take_goal(args: &[String]) -> Result<(Option<Option<Goal>>, Vec<String>), String> {
    let (named, rest): (Vec<_>, Vec<_>) =
        args.iter().cloned().partition(|arg| arg.starts_with("auto="));
    let goal = named.last().map(|arg| parse_goal(arg.trim_start_matches("auto="))).transpose()?;
    Ok((goal, rest))
}

/// `--auto` of one core: on or off.
#[derive(Debug)]
pub struct AutoPilot {
    options: AutoOptions,
    /// Which volume, for the log; empty where there is only one core.
    place: String,
    machine: Option<Auto>,
    last: Option<String>,
    advice: Option<String>,
}

impl AutoPilot {
    /// What the user asks for, with `policy` as the user has set it.
    pub fn new(now: Time, options: AutoOptions, place: &str, policy: &Policy) -> Self {
        let place = place.to_owned();
        let mut it = Self { options, place, machine: None, last: None, advice: None };
        it.begin(now, policy);
        it
    }

    fn begin(&mut self, now: Time, policy: &Policy) {
        let AutoOptions { goal, ranges, period, advice: _ } = self.options;
        let machine = |goal| Auto::new(now, AutoSettings { goal, ranges, period }, policy);
        self.machine = goal.map(machine);
    }

    /// When to call [`AutoPilot::look`] next.
    pub fn due(&self) -> Option<Time> {
        self.machine.as_ref().map(Auto::due)
    }

    /// Looks at what was counted: the policy to put in force, if it is another one. Logs what was done.
    pub fn look(&mut self, now: Time, policy: &Policy, counts: &Counts) -> Option<Policy> {
        let mut next = policy.clone();
        let told = self.machine.as_mut()?.look(now, &mut next, counts)?;
        self.tell(&told);
        (next != *policy).then_some(next)
    }

    /// Whether somebody is to ask for advice now: it is switched on.
    pub fn wants_advice(&self) -> bool {
        self.machine.is_some()
    }

    /// This was advised, with `policy` in force, as words of the command `policy`; or why nothing was. Of the words those are
    /// taken that it may change.
    ///
    /// # Errors
    /// One of these words cannot be read.
    pub fn advise(
        &mut self,
        policy: &Policy,
        advice: Result<Vec<String>, String>,
    ) -> Result<(), PolicyTextError> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let words = match advice {
            Ok(words) => words,
            Err(why) => {
                self.advice = Some(format!("none: {why}"));
                return Ok(());
            }
        };
        let all = words.join(" ");
        let mut words = words;
        words.retain(|word| ["linger=", "batch="].iter().any(|part| word.starts_with(part)));
        let changed = policy::change(policy, &words);
        self.advice = Some(match &changed {
            Ok(_) => all,
            Err(error) => format!("none: {error}"),
        });
        machine.advise(Knobs::of(&changed?));
        Ok(())
    }

    /// The user has changed the policy to this one by these arguments: what they name is what it returns to from then on.
    pub fn name(&mut self, args: &[String], policy: &Policy) {
        let Some(machine) = &mut self.machine else { return };
        for arg in args {
            match arg.split_once('=') {
                Some(("linger", _)) => machine.name(Knob::Linger, policy),
                Some(("batch", _)) => machine.name(Knob::Batch, policy),
                _ => {}
            }
        }
    }

    /// Another goal, or none. What the user has set is in force first: the policy for that, if it is another one.
    pub fn switch(&mut self, now: Time, goal: Option<Goal>, policy: &Policy) -> Option<Policy> {
        if goal == self.options.goal {
            return None;
        }
        let mut next = policy.clone();
        if let Some(told) = self.machine.as_mut().and_then(|auto| auto.stop(now, &mut next)) {
            self.tell(&told);
        }
        self.options.goal = goal;
        tracing::info!(place = self.place, goal = goal_name(goal), "auto: another goal");
        self.begin(now, &next);
        (next != *policy).then_some(next)
    }

    /// What is to become less; `None` while it is off.
    pub fn goal(&self) -> Option<Goal> {
        self.options.goal
    }

    fn tell(&mut self, told: &Told) {
        let text = text(told, self.options.goal);
        tracing::info!(place = self.place, "auto: {text}");
        self.last = Some(text);
    }

    /// What is to be seen of it; nothing while it is off.
    pub fn report(&self, policy: &Policy) -> Option<AutoReport> {
        let machine = self.machine.as_ref()?;
        let (base, done) = (machine.base(), machine.done());
        let state = match () {
            () if !Auto::is_of_use(policy) => "idle",
            () if machine.is_trying() => "trying",
            () => "measuring",
        };
        Some(AutoReport {
            goal: goal_name(self.options.goal).into(),
            state: state.into(),
            user_linger_seconds: base.linger.as_secs_f64(),
            user_batch_groups: base.batch.into(),
            changes_total: done.changes,
            kept_total: done.kept,
            went_back_total: done.went_back,
            last: self.last.clone(),
            advice: self.advice.clone(),
        })
    }
}

/// What was done and why, as the log and the status have it: `linger 20ms -> 40ms is tried: ...`.
fn text(told: &Told, goal: Option<Goal>) -> String {
    let Told { verdict, from, to, reason } = *told;
    let what = difference(from, to);
    let done = match verdict {
        Verdict::Tried if matches!(reason, Reason::Advised(_)) => "is tried as advised",
        Verdict::Tried => "is tried",
        Verdict::Kept => "is kept",
        Verdict::WentBack => "goes back",
    };
    let measured = |value: f64| match goal {
        Some(Goal::Latency) => Interval(span(value)).to_string(),
        _ => format!("{value:.3}"),
    };
    let of = match goal {
        Some(Goal::Latency) => "an acknowledgement takes",
        _ => "the origin writes for each change",
    };
    let why = match reason {
        Reason::Measured(now) | Reason::Advised(now) => format!("{of} {} now", measured(now)),
        Reason::Better(before, after) => {
            format!("{of} {}, {} before", measured(after), measured(before))
        }
        Reason::NotBetter(before, after) => {
            format!("{of} {}, {} before, which is not enough", measured(after), measured(before))
        }
        Reason::Slower(before, after) => format!(
            "acknowledgements took {}, {} before",
            Interval(span(after)),
            Interval(span(before))
        ),
        Reason::Limit => "a limit or D was reached".into(),
        Reason::Disturbed => "the origin was away, or destaging paused".into(),
        Reason::OtherLoad(before, after) => format!(
            "the load was another one meanwhile, {after:.0} writes a second instead of {before:.0}"
        ),
        Reason::TooFew => "too few writes came to tell".into(),
        Reason::LoadChanged => "the load is another one".into(),
        Reason::ByHand => "the policy was changed by hand".into(),
        Reason::Off => "it was switched off".into(),
    };
    format!("{what} {done}: {why}")
}

fn difference(from: Knobs, to: Knobs) -> String {
    let mut parts = Vec::new();
    if from.linger != to.linger {
        parts.push(format!("linger {} -> {}", Interval(from.linger), Interval(to.linger)));
    }
    if from.batch != to.batch {
        parts.push(format!("batch {} -> {}", from.batch, to.batch));
    }
    parts.join(", ")
}

/// To the microsecond, which is what is worth reading.
fn span(seconds: f64) -> Span {
    Span::from_micros((seconds * 1e6) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_engine::defaults;

    fn knobs(millis: u64, batch: u32) -> Knobs {
        Knobs { linger: Span::from_millis(millis), batch }
    }

    #[test]
    fn what_was_done_says_why() {
        let told =
            |verdict, reason| Told { verdict, from: knobs(20, 100), to: knobs(40, 100), reason };
        let writes = Some(Goal::Writes);
        assert_eq!(
            text(&told(Verdict::Kept, Reason::Better(0.5, 0.25)), writes),
            "linger 20ms -> 40ms is kept: the origin writes for each change 0.250, 0.500 before"
        );
        assert_eq!(
            text(&told(Verdict::Tried, Reason::Measured(0.002)), Some(Goal::Latency)),
            "linger 20ms -> 40ms is tried: an acknowledgement takes 2ms now"
        );
        let both = Told {
            verdict: Verdict::WentBack,
            from: knobs(40, 200),
            to: knobs(20, 100),
            reason: Reason::LoadChanged,
        };
        assert_eq!(
            text(&both, writes),
            "linger 40ms -> 20ms, batch 200 -> 100 goes back: the load is another one"
        );
    }

    #[test]
    fn the_goal_is_one_of_the_arguments_of_a_change() {
        let args = ["linger=5ms".to_owned(), "auto=latency".to_owned()];
        let (goal, rest) = take_goal(&args).unwrap();
        assert_eq!((goal, rest), (Some(Some(Goal::Latency)), vec!["linger=5ms".to_owned()]));
        assert_eq!(take_goal(&["auto=off".to_owned()]).unwrap().0, Some(None));
        assert!(take_goal(&["auto=on".to_owned()]).unwrap_err().contains("off, writes or latency"));
        for text in ["off", "writes", "latency"] {
            assert_eq!(goal_name(parse_goal(text).unwrap()), text);
        }
    }

    #[test]
    fn what_the_user_names_is_what_it_returns_to() {
        let set = defaults::rows::policy();
        let options = AutoOptions { goal: Some(Goal::Writes), ..AutoOptions::default() };
        let mut pilot = AutoPilot::new(Time::ZERO, options, "", &set);
        let mut tried = set.clone();
        knobs(40, 8_000).apply(&mut tried);
        let mut named = |arg: &str| {
            pilot.name(&[arg.to_owned()], &tried);
            let report = pilot.report(&tried).unwrap();
            (report.user_linger_seconds, report.user_batch_groups)
        };
        let (linger, batch) = (set.limits.linger.as_secs_f64(), set.limits.batch_groups_max.into());
        assert_eq!(named("when=async"), (linger, batch));
        assert_eq!(named("linger=40ms"), (0.04, batch));
        assert_eq!(named("batch=8000"), (0.04, 8_000));
    }

    #[test]
    fn of_what_is_advised_what_it_may_change_is_taken_and_the_rest_is_told() {
        let set = defaults::rows::policy();
        let options = AutoOptions { goal: Some(Goal::Writes), ..AutoOptions::default() };
        let mut pilot = AutoPilot::new(Time::ZERO, options, "", &set);
        let words = |text: &str| Ok(text.split(' ').map(str::to_owned).collect());
        let told = |pilot: &AutoPilot| pilot.report(&set).unwrap().advice;
        assert_eq!(told(&pilot), None);
        // Those of a volume have policies that rows do not have.
        let all = "journaled order=epoch when=adaptive commit=flush staleness=1h linger=80ms";
        assert_eq!(pilot.advise(&set, words(all)), Ok(()));
        assert_eq!(told(&pilot).unwrap(), all);
        let mut policy = set.clone();
        let mut counts = Counts::default();
        let tried = (0..100).find_map(|look| {
            (counts.written, counts.changes) = (counts.written + 1_000, counts.changes + 1_000);
            (counts.groups, counts.sent) = (counts.groups + 1_000, counts.sent + 1_000);
            pilot.look(Time::from_secs(2 * look), &policy, &counts)
        });
        policy.limits.linger = Span::from_millis(80);
        assert_eq!(tried, Some(policy), "nothing else of the policy");
        let last = pilot.report(&set).unwrap().last.unwrap();
        assert!(last.starts_with("linger 20ms -> 80ms is tried as advised: the origin"), "{last}");
        assert!(pilot.advise(&set, words("linger=soon")).is_err());
        assert!(told(&pilot).unwrap().starts_with("none: "), "{:?}", told(&pilot));
        assert_eq!(pilot.advise(&set, Err("there is no recording".into())), Ok(()));
        assert_eq!(told(&pilot).unwrap(), "none: there is no recording");
        pilot.switch(Time::ZERO, None, &set);
        assert!(!pilot.wants_advice());
    }

    #[test]
    fn it_is_switched_on_and_off_while_it_runs() {
        let policy = defaults::rows::policy();
        let mut pilot = AutoPilot::new(Time::ZERO, AutoOptions::default(), "", &policy);
        assert_eq!((pilot.due(), pilot.report(&policy)), (None, None));
        assert_eq!(pilot.switch(Time::ZERO, Some(Goal::Writes), &policy), None);
        let report = pilot.report(&policy).unwrap();
        assert_eq!((&*report.goal, &*report.state), ("writes", "measuring"));
        assert_eq!(pilot.switch(Time::ZERO, None, &policy), None);
        assert_eq!(pilot.goal(), None);
    }
}
