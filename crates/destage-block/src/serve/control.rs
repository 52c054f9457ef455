//! The admin port's side of the volumes.

use super::Outbox;
use super::groups::check_member;
use super::grow::{self, Growth};
use super::{Event, Served, report};
use destage_core::{AtLimit, Lsn, Order, Policy, Span, Status, Time};
use destage_engine::{Drive, WritePolicy, commit_on_flush};
use destage_runtime::admin::{Caller, Control, ControlError, ask};
use destage_runtime::advice::{Advised, Question};
use destage_runtime::auto::take_goal;
use destage_runtime::metrics::Exports;
use destage_runtime::policy;
use destage_runtime::status::Report;
use serde_json::{Value, json};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// How long writes under way may hold up a freeze.
const FREEZE_MAX: Duration = Duration::from_secs(600);
/// How often it is looked whether writes under way have ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What the admin port sees of the server, on the server's thread.
pub(super) struct View<'a> {
    pub(super) volumes: &'a mut [Served],
    pub(super) counted: report::Counted,
    pub(super) now: Time,
    pub(super) next_tag: &'a mut u64,
    /// To be set for the server to shut down as by a signal.
    pub(super) ends: &'a mut Option<Ended>,
}

/// Who is told how the server has ended, once it has given back its origins and caches.
pub(super) type Ended = SyncSender<Result<(), String>>;

/// Asks the volumes, which live on the server's thread.
pub(super) struct VolumesControl {
    outbox: Outbox,
    names: Vec<String>,
    /// The consistency group of each volume.
    groups: Vec<Option<String>>,
    growth: Growth,
}

impl VolumesControl {
    pub(super) fn new(outbox: Outbox, volumes: &[Served], growth: Growth) -> Self {
        let names = volumes.iter().map(|served| served.name.clone()).collect();
        let groups = volumes.iter().map(|served| served.group.clone()).collect();
        Self { outbox, names, groups, growth }
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut View<'_>) -> T + Send + 'static,
    ) -> Result<T, ControlError> {
        ask(|answer| {
            let work = Box::new(move |view: &mut View<'_>| answer.give(|| question(view)));
            self.outbox.send(Event::Control(work));
        })
    }

    /// The volumes that a command means: those named by `volume=NAME`, all of them if none is. The other arguments.
    fn chosen(&self, args: &[String]) -> Result<(Vec<usize>, Vec<String>), ControlError> {
        let (named, rest): (Vec<_>, Vec<_>) =
            args.iter().cloned().partition(|arg| arg.starts_with("volume="));
        let mut chosen = Vec::new();
        for arg in &named {
            let name = arg.strip_prefix("volume=").unwrap_or_default();
            let index = self.names.iter().position(|known| known == name).ok_or_else(|| {
                let known = self.names.join("', '");
                ControlError::Invalid(format!("there is no volume '{name}': there is '{known}'"))
            })?;
            chosen.push(index);
        }
        if chosen.is_empty() {
            chosen.extend(0..self.names.len());
        }
        Ok((self.with_groups(&chosen), rest))
    }

    /// What is done to one volume of a consistency group is done to all, at one moment.
    fn with_groups(&self, chosen: &[usize]) -> Vec<usize> {
        let is_mate = |index: usize, other: usize| {
            self.groups[index].is_some() && self.groups[index] == self.groups[other]
        };
        let is_meant =
            |&index: &usize| chosen.iter().any(|&other| other == index || is_mate(index, other));
        (0..self.names.len()).filter(is_meant).collect()
    }

    /// Does something with each chosen volume.
    fn each<T: Send + 'static>(
        &self,
        chosen: &[usize],
        mut work: impl FnMut(&mut Served, Time) -> T + Send + 'static,
    ) -> Result<Vec<T>, ControlError> {
        let chosen = chosen.to_vec();
        self.ask(move |view| {
            let now = view.now;
            chosen.iter().map(|&index| work(&mut view.volumes[index], now)).collect()
        })
    }

    /// Waits until each chosen volume has destaged up to its point: for as long as it takes, or as the caller waits.
    fn wait(&self, chosen: &[usize], points: &[Lsn], caller: &Caller) -> Result<(), ControlError> {
        self.wait_until(chosen, points, |status| status.decided, "destaged", caller)
    }

    /// The same for any way to go: how far a volume has come on it, and the word for that.
    fn wait_until(
        &self,
        chosen: &[usize],
        points: &[Lsn],
        come: fn(&Status) -> Lsn,
        done: &str,
        caller: &Caller,
    ) -> Result<(), ControlError> {
        caller.until(|| {
            let at = self.each(chosen, move |served, _| come(&served.volume.status().core))?;
            if at.iter().zip(points).all(|(at, point)| at >= point) {
                return Ok(Ok(()));
            }
            let stopped = self.each(chosen, |served, _| report::stopped(served))?;
            if let Some(why) = stopped.into_iter().flatten().next() {
                return Err(ControlError::Failed(format!("not everything can be {done}: {why}")));
            }
            Ok(Err(format!(
                "not everything was {done} within the time given; it goes on, see the status"
            )))
        })
    }

    fn flush(&self, chosen: &[usize], caller: &Caller) -> Result<Value, ControlError> {
        let points = self.each(chosen, |served, now| {
            served.volume.commit_soon(now);
            served.volume.status().core.last
        })?;
        self.wait_until(chosen, &points, |status| status.committed, "made durable", caller)?;
        Ok(self.named(chosen, points.iter().map(|lsn| json!({ "committed": lsn.0 }))))
    }

    fn drain(&self, chosen: &[usize], caller: &Caller) -> Result<Value, ControlError> {
        let points = self.each(chosen, |served, now| {
            served.volume.hurry(now);
            served.volume.status().core.last
        })?;
        self.wait(chosen, &points, caller)?;
        Ok(self.named(chosen, points.iter().map(|lsn| json!({ "decided": lsn.0 }))))
    }

    /// Destages everything, and then has the server end: until its caches are closed, they are in use.
    fn detach(&self, chosen: &[usize], caller: &Caller) -> Result<Value, ControlError> {
        if chosen.len() < self.names.len() {
            return Err(ControlError::Invalid(
                "a detach ends the server with all of its volumes: ask for it without --volume, or restart the server \
                 without the volume"
                    .into(),
            ));
        }
        let drained = self.drain(chosen, caller)?;
        let (tell, told) = mpsc::sync_channel(1);
        self.ask(|view| *view.ends = Some(tell))?;
        loop {
            match told.recv_timeout(LOOK_EVERY) {
                Ok(ended) => return ended.map(|()| drained).map_err(ControlError::Failed),
                Err(RecvTimeoutError::Disconnected) => return Err(ControlError::no_answer()),
                Err(RecvTimeoutError::Timeout) => caller.still_waits(|| {
                    "everything is destaged, and the server has not ended within the time given; it goes on to end".into()
                })?,
            }
        }
    }

    /// Waits for it if there is somebody to wait.
    fn mark(&self, chosen: &[usize], waits: Option<&Caller>) -> Result<Value, ControlError> {
        let points = self.each(chosen, |served, now| served.volume.mark(now))?;
        if let Some(caller) = waits {
            self.each(chosen, |served, now| served.volume.hurry(now))?;
            self.wait(chosen, &points, caller)?;
        }
        Ok(self.named(chosen, points.iter().map(|lsn| json!({ "mark": lsn.0 }))))
    }

    fn freeze(&self, chosen: &[usize], caller: &Caller) -> Result<Value, ControlError> {
        let chosen_here = chosen.to_vec();
        let not_before = self.ask(move |view| {
            let is_new = |&index: &usize| !view.volumes[index].volume.is_frozen();
            let not_before: Vec<usize> = chosen_here.iter().copied().filter(is_new).collect();
            for index in chosen_here {
                *view.next_tag += 1;
                view.volumes[index].volume.freeze(view.now, *view.next_tag);
            }
            not_before
        })?;
        let deadline = Instant::now() + FREEZE_MAX;
        while !self.each(chosen, |served, _| served.volume.is_frozen())?.into_iter().all(|is| is) {
            if Instant::now() > deadline || caller.gone().is_some() {
                self.each(&not_before, |served, now| served.volume.thaw(now))?;
                return Err(ControlError::Failed(
                    "writes under way do not end; they may begin again".into(),
                ));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(json!("frozen"))
    }

    /// One volume after the other: what stops one leaves those before it grown.
    fn grow(&self, chosen: &[usize]) -> Result<Value, ControlError> {
        let _alone = self.growth.alone();
        let mut sizes = Vec::with_capacity(chosen.len());
        for &index in chosen {
            let known = self.each(&[index], |served, _| grow::check(served))?.remove(0);
            let known = known.map_err(ControlError::Failed)?;
            let name = &self.names[index];
            let size = self
                .growth
                .adopt_size(index, known)
                .map_err(|why| ControlError::Failed(format!("volume '{name}': {why}")))?;
            if size > known {
                self.each(&[index], move |served, _| served.volume.grow(size))?;
                self.growth.announce(index, size);
                tracing::info!(volume = %name, then = known, now = size, "the origin has grown, and the volume with it");
            }
            sizes.push((size, size - known));
        }
        if sizes.iter().all(|&(_, added)| added == 0) {
            return Err(ControlError::Failed(
                "no origin is larger than its volume: let it grow first, then ask again".into(),
            ));
        }
        let sizes = sizes.into_iter();
        Ok(self.named(chosen, sizes.map(|(size, added)| json!({ "bytes": size, "added": added }))))
    }

    fn policy(&self, chosen: &[usize], args: &[String]) -> Result<Value, ControlError> {
        let (goal, args) = take_goal(args).map_err(ControlError::Invalid)?;
        let chosen_here = chosen.to_vec();
        let changed = self.ask(move |view| {
            let (volumes, now) = (&mut *view.volumes, view.now);
            if goal.flatten().is_some()
                && let Some(why) = chosen_here.iter().find_map(|&i| volumes[i].refuses_auto())
            {
                return Err(why);
            }
            if args.is_empty() {
                return chosen_here
                    .iter()
                    .map(|&i| {
                        volumes[i].switch_auto(now, goal)?;
                        Ok(report::policy_summary(&volumes[i]))
                    })
                    .collect();
            }
            let changes = chosen_here.iter().map(|&index| change(&volumes[index], &args));
            // All or none: volumes of a group have one policy.
            let changes = changes.collect::<Result<Vec<_>, String>>()?;
            for (&index, (policy, _)) in chosen_here.iter().zip(&changes) {
                volumes[index].volume.check_change(policy).map_err(str::to_owned)?;
            }
            let changes = chosen_here.iter().zip(changes);
            changes
                .map(|(&index, (policy, on_flush))| {
                    let served = &mut volumes[index];
                    served.volume.set_policy(now, &policy).map_err(str::to_owned)?;
                    served.commits_on_flush = on_flush;
                    served.auto.name(&args, &policy);
                    served.switch_auto(now, goal)?;
                    Ok(report::summary_of(&policy, on_flush))
                })
                .collect::<Result<Vec<String>, String>>()
        })?;
        let changed: Vec<String> = changed.map_err(ControlError::Invalid)?;
        Ok(self.named(chosen, changed.into_iter().map(Value::String)))
    }

    /// One value for a single volume, an object by name for several.
    fn named(&self, chosen: &[usize], values: impl Iterator<Item = Value>) -> Value {
        let names = chosen.iter().map(|&index| self.names[index].clone());
        let mut pairs: Vec<_> = names.zip(values).collect();
        match pairs.len() {
            1 => pairs.remove(0).1,
            _ => Value::Object(pairs.into_iter().collect()),
        }
    }
}

/// Whether a volume can be asked for a policy by this name: blocks that are written are always kept, and strictness is asked for
/// by the order.
fn is_of_volumes(named: WritePolicy) -> bool {
    !matches!(named, WritePolicy::WriteAround | WritePolicy::Strict)
}

/// The policy that the volume has or is about to have, with parts changed: a policy's name, `order=`, `commit=` and what every
/// front end takes.
fn change(served: &Served, args: &[String]) -> Result<(Policy, bool), String> {
    let mut changed = served.volume.wanted_policy().clone();
    let mut on_flush = served.commits_on_flush;
    let mut rest = Vec::new();
    for arg in args {
        let word = arg.strip_prefix("policy=").unwrap_or(arg);
        match word {
            "order=epoch" => WritePolicy::Ordered.apply(&mut changed),
            "order=strict" => WritePolicy::Strict.apply(&mut changed),
            "commit=flush" => on_flush = true,
            _ if word.contains('=') => {
                on_flush &= !word.starts_with("commit=");
                rest.push(word.to_owned());
            }
            _ => match WritePolicy::parse(word).filter(|named| is_of_volumes(*named)) {
                Some(named) => named.apply(&mut changed),
                None => {
                    return Err(format!(
                        "'{word}' is not a policy: use write-through, write-back, ordered or journaled"
                    ));
                }
            },
        }
    }
    if on_flush {
        // What it is follows from D, which may be among what changes.
        changed.commit = Span::ZERO;
    }
    let mut changed = policy::change(&changed, &rest).map_err(|error| error.to_string())?;
    if on_flush {
        changed.commit = commit_on_flush(changed.staleness);
    }
    if let Some(group) = &served.group {
        check_member(&changed, &changed).map_err(|why| {
            format!(
                "volume '{}' is in the consistency group '{group}' and then {why}; to leave the group, stop the server and \
                 start it without",
                served.name
            )
        })?;
    }
    if served.takes_snapshots {
        check_snapshots(&changed)?;
    }
    Ok((changed, on_flush))
}

/// Whether a volume whose origin is replaced as a whole may have this policy.
pub(super) fn check_snapshots(policy: &Policy) -> Result<(), String> {
    if policy.order != Order::Domain || policy.waits_for_origin() {
        return Err(
            "--atomic snapshot is for the journaled policy: the others change the origin in place"
                .into(),
        );
    }
    if policy.at_limit == AtLimit::WriteThrough {
        return Err(
            "--atomic snapshot does not go with writing through at a limit, which changes the origin in place: use --at-limit \
             throttle, block or fail"
                .into(),
        );
    }
    Ok(())
}

impl Advised for VolumesControl {
    fn question(&self, place: &str) -> Option<Question> {
        let chosen = [self.names.iter().position(|name| name == place)?];
        self.each(&chosen, |served, _| served.question()).ok()?.pop()?
    }

    fn advise(&self, place: &str, advice: Result<Vec<String>, String>) -> Result<(), String> {
        let index = self.names.iter().position(|name| name == place);
        let index = index.ok_or_else(|| format!("there is no volume '{place}'"))?;
        let advised = self.ask(move |view| view.volumes[index].advise(advice));
        advised.map_err(|error| error.to_string())?
    }
}

impl Control for VolumesControl {
    fn report(&self) -> Result<Report, ControlError> {
        self.ask(|view| report::report(view.volumes, view.counted, view.now))
    }

    fn exports(&self) -> Exports {
        super::EXPORTS
    }

    fn command(&self, name: &str, args: &[String], caller: &Caller) -> Result<Value, ControlError> {
        let (chosen, rest) = self.chosen(args)?;
        if !rest.is_empty() && !matches!(name, "policy" | "checkpoint") {
            return Err(ControlError::Invalid(format!("'{name}' takes no '{}'", rest[0])));
        }
        match name {
            "policy" => self.policy(&chosen, &rest),
            "pause" => {
                self.each(&chosen, |served, now| served.volume.pause(now)).map(|_| json!("paused"))
            }
            "resume" => self
                .each(&chosen, |served, now| served.volume.resume(now))
                .map(|_| json!("resumed")),
            "flush" => self.flush(&chosen, caller),
            "drain" => self.drain(&chosen, caller),
            "detach" => self.detach(&chosen, caller),
            "mark" => self.mark(&chosen, None),
            "checkpoint" => {
                let waits = rest.iter().any(|arg| arg == "wait");
                self.mark(&chosen, waits.then_some(caller))
            }
            "freeze" => self.freeze(&chosen, caller),
            "grow" => self.grow(&chosen),
            "thaw" => {
                self.each(&chosen, |served, now| served.volume.thaw(now)).map(|_| json!("thawed"))
            }
            _ => Err(ControlError::Invalid(format!(
                "there is no command '{name}': use policy, pause, resume, flush, drain, detach, mark, checkpoint, \
                 freeze, thaw or grow"
            ))),
        }
    }
}
