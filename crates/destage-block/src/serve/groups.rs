//! Volumes that destage together: see [`crate::engine::ConsistencyGroup`].

use super::Outbox;
use super::{Event, ServeError, Served};
use crate::engine::{ConsistencyGroup, Context, GroupDone, GroupJob, Volume};
use crate::settings::Settings;
use crossbeam_channel::{Receiver, Sender};
use destage_core::{AtLimit, Order, Policy, Time};
use destage_runtime::exit;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread;

/// A consistency group as the settings have it, by the volumes' places among all of them.
#[derive(Clone, Debug)]
pub(super) struct Members {
    /// In rising order.
    pub(super) volumes: Vec<usize>,
    /// Which of `volumes` keeps the commit records.
    pub(super) coordinator: usize,
}

/// The consistency groups, checked.
pub(super) fn checked(settings: &Settings) -> Result<Vec<Members>, ServeError> {
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, volume) in settings.volumes.iter().enumerate() {
        if let Some(group) = &volume.group {
            groups.entry(&group.name).or_default().push(index);
        }
    }
    let mut checked = Vec::with_capacity(groups.len());
    for (name, volumes) in groups {
        let refuse = |why: String| {
            Err(ServeError::new(exit::USAGE, format!("the consistency group '{name}': {why}")))
        };
        let is_coordinator = |&index: &usize| {
            settings.volumes[index].group.as_ref().is_some_and(|group| group.is_coordinator)
        };
        let coordinators = volumes.iter().filter(|index| is_coordinator(index)).count();
        if volumes.len() < 2 {
            return refuse("it has one volume only: name it in another volume as well".into());
        }
        if coordinators != 1 {
            return refuse(format!(
                "{coordinators} of its volumes say 'coordinator = true', and one must: its redo store keeps the commit \
                 records"
            ));
        }
        let first = &settings.volumes[volumes[0]].policy;
        for &index in &volumes {
            let volume = &settings.volumes[index];
            if let Err(why) = check_member(&volume.policy, first) {
                return refuse(format!("volume '{}' {why}", volume.name));
            }
        }
        let coordinator = volumes.iter().position(is_coordinator).unwrap_or_default();
        checked.push(Members { volumes, coordinator });
    }
    Ok(checked)
}

/// Whether a volume may have this policy in a group where another one has `first`.
pub(super) fn check_member(policy: &Policy, first: &Policy) -> Result<(), String> {
    if policy.order != Order::Domain || policy.waits_for_origin() {
        return Err("is not journaled, and only atomic groups can span several volumes".into());
    }
    if policy.at_limit == AtLimit::WriteThrough {
        return Err("writes through at a limit, past the group's order: use --at-limit throttle, block or fail".into());
    }
    if (policy.staleness, policy.when) != (first.staleness, first.when) {
        return Err(
            "has another --staleness or --when than the others: they are destaged together".into(),
        );
    }
    Ok(())
}

/// All consistency groups of a server.
pub(super) struct Groups(Vec<Live>);

struct Live {
    group: ConsistencyGroup,
    members: Vec<usize>,
    /// To the thread that carries its jobs out.
    jobs: Sender<GroupJob>,
}

impl Groups {
    /// Starts a thread for each group. They end when this is dropped.
    ///
    /// # Errors
    /// As the system reports them.
    pub(super) fn start(
        groups: &[Members],
        contexts: &Arc<[Context]>,
        outbox: &Outbox,
    ) -> io::Result<Self> {
        let mut live = Vec::with_capacity(groups.len());
        for (number, members) in groups.iter().enumerate() {
            // At most one job is under way.
            let (jobs, receiver) = crossbeam_channel::bounded(1);
            let (contexts, outbox) = (contexts.clone(), outbox.clone());
            let volumes = members.volumes.clone();
            let work = move || work(&receiver, number, &volumes, &contexts, &outbox);
            thread::Builder::new().name("group".into()).spawn(work)?;
            let group =
                ConsistencyGroup::new(members.coordinator, *uuid::Uuid::new_v4().as_bytes());
            live.push(Live { group, members: members.volumes.clone(), jobs });
        }
        Ok(Self(live))
    }

    /// Begins what is to be done; how many jobs that were.
    pub(super) fn drive(&mut self, volumes: &mut [Served], now: Time) -> usize {
        let mut begun = 0;
        for live in &mut self.0 {
            let job = live.group.drive(now, &mut chosen(volumes, &live.members));
            if let Some(job) = job {
                begun += 1;
                live.jobs.send(job).expect("the thread lives as long as the group");
            }
        }
        begun
    }

    /// A job has been carried out.
    pub(super) fn finished(
        &mut self,
        volumes: &mut [Served],
        now: Time,
        group: usize,
        done: GroupDone,
    ) {
        let live = &mut self.0[group];
        live.group.finished(now, &mut chosen(volumes, &live.members), done);
    }

    /// Begins nothing more.
    pub(super) fn close(&mut self) {
        self.0.iter_mut().for_each(|live| live.group.close());
    }
}

fn chosen<'a>(volumes: &'a mut [Served], members: &[usize]) -> Vec<&'a mut Volume> {
    let all = volumes.iter_mut().enumerate();
    all.filter(|(index, _)| members.contains(index)).map(|(_, served)| &mut served.volume).collect()
}

fn work(
    jobs: &Receiver<GroupJob>,
    group: usize,
    members: &[usize],
    contexts: &[Context],
    outbox: &Outbox,
) {
    let contexts: Vec<&Context> = members.iter().map(|&index| &contexts[index]).collect();
    for job in jobs {
        let done = job.run(&contexts);
        outbox.send(Event::GroupDone { group, done });
    }
}
