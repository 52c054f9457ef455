//! Several volumes whose origins are one state together: what a database and its log need.
//!
//! The writes of all volumes stand in one order, that of their stamps. What reaches the origins is a prefix of it, sent as
//! one atomic group over all redo stores. So if a write to one volume was issued after a write to another one was
//! acknowledged, no origin ever has the later without the earlier, after the replay. *When* a group is sent the cores
//! decide, each for its volume: a batch that one of them wants takes along what came before it on the others. How far it
//! reaches is for [`destage_core::consistency`] to say.
//!
//! A group waits for every volume: one whose origin is away, or that has stopped, holds the others up, until D does.

use super::Volume;
use super::job::{Context, Failure, Part, Sent, send_group};
use destage_core::consistency::{self, Share};
use destage_core::{Lsn, Time};

/// The volumes that form one state: see the module. Without I/O, as [`Volume`] is.
#[derive(Debug)]
pub struct ConsistencyGroup {
    /// Which of the volumes has the commit record.
    coordinator: usize,
    /// For the UUIDs of the groups.
    uuid: [u8; 16],
    next: u64,
    is_running: bool,
    is_closing: bool,
    status: ConsistencyGroupStatus,
}

/// What a consistency group has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsistencyGroupStatus {
    /// Groups that have reached the origins.
    pub groups: u64,
    /// Groups that were tried and failed.
    pub failures: u64,
    /// Why the last one failed, if it did.
    pub last_error: Option<String>,
}

/// An atomic group over all volumes, to be carried out on any thread.
#[derive(Debug)]
pub struct GroupJob {
    uuid: [u8; 16],
    coordinator: usize,
    /// By volume.
    parts: Vec<Part>,
}

/// What came of a [`GroupJob`].
#[derive(Debug)]
pub struct GroupDone {
    members: Vec<MemberDone>,
    result: Result<Vec<Vec<Sent>>, Failure>,
}

#[derive(Debug)]
struct MemberDone {
    upto: Lsn,
    pins: Vec<Lsn>,
}

impl GroupJob {
    /// Carries it out; blocks until it is done. `contexts` are those of the group's volumes, in their order.
    pub fn run(self, contexts: &[&Context]) -> GroupDone {
        let result = send_group(contexts, &self.parts, self.coordinator, self.uuid);
        let member = |part: &Part| MemberDone { upto: part.upto, pins: part.pins().collect() };
        GroupDone { members: self.parts.iter().map(member).collect(), result }
    }
}

impl ConsistencyGroup {
    /// A group of which the volume `coordinator` keeps the commit records. `uuid` was never used before.
    pub fn new(coordinator: usize, uuid: [u8; 16]) -> Self {
        Self {
            coordinator,
            uuid,
            next: 0,
            is_running: false,
            is_closing: false,
            status: ConsistencyGroupStatus::default(),
        }
    }

    /// What it has done.
    pub fn status(&self) -> &ConsistencyGroupStatus {
        &self.status
    }

    /// No further group is begun.
    pub fn close(&mut self) {
        self.is_closing = true;
    }

    /// What is to be done now: at most one job is under way at a time. `volumes` are always the same ones in the same order.
    pub fn drive(&mut self, now: Time, volumes: &mut [&mut Volume]) -> Option<GroupJob> {
        if self.is_running || self.is_closing {
            return None;
        }
        volumes.iter_mut().for_each(|volume| volume.tell_core());
        let target = volumes.iter().filter_map(|volume| volume.wanted_stamp()).max()?;
        let mut is_committed = true;
        for volume in volumes.iter_mut() {
            is_committed &= volume.is_committed_upto(now, target);
        }
        if !is_committed {
            return None;
        }
        let cut = cut(volumes);
        // The rest of a request is not durable yet: what is under way in the log will tell.
        if cut.iter().all(|&upto| upto == Lsn::ZERO) {
            return None;
        }
        self.job(now, volumes, &cut)
    }

    fn job(&mut self, now: Time, volumes: &mut [&mut Volume], cut: &[Lsn]) -> Option<GroupJob> {
        let mut parts = Vec::with_capacity(volumes.len());
        for (volume, &upto) in volumes.iter_mut().zip(cut) {
            match volume.share(upto) {
                Ok(part) => parts.push(part),
                Err(failure) => {
                    self.failed(&failure);
                    volumes.iter_mut().for_each(|v| v.group_not_sent(now, &failure, &[]));
                    return None;
                }
            }
        }
        for (volume, part) in volumes.iter_mut().zip(&parts) {
            volume.pin_logs(&part.pins().collect::<Vec<_>>());
        }
        self.is_running = true;
        self.next += 1;
        let mut uuid = self.uuid;
        for (byte, number) in uuid[8..].iter_mut().zip(self.next.to_le_bytes()) {
            *byte ^= number;
        }
        Some(GroupJob { uuid, coordinator: self.coordinator, parts })
    }

    /// A job has been carried out.
    pub fn finished(&mut self, now: Time, volumes: &mut [&mut Volume], done: GroupDone) {
        self.is_running = false;
        match done.result {
            Ok(sent) => {
                self.status.groups += 1;
                self.status.last_error = None;
                let members = done.members.iter().zip(sent);
                for (volume, (member, sent)) in volumes.iter_mut().zip(members) {
                    volume.group_sent(now, sent, member.upto, &member.pins);
                }
            }
            Err(failure) => {
                self.failed(&failure);
                for (volume, member) in volumes.iter_mut().zip(&done.members) {
                    volume.group_not_sent(now, &failure, &member.pins);
                }
            }
        }
    }

    fn failed(&mut self, failure: &Failure) {
        self.status.failures += 1;
        self.status.last_error = Some(failure.message.clone());
    }
}

/// How far each volume goes in the next group: as far as the redo stores take it.
fn cut(volumes: &[&mut Volume]) -> Vec<Lsn> {
    let shares = volumes.iter().map(|volume| Share {
        not_sent: volume.not_sent(),
        committed: volume.core.committed(),
        limits: volume.core.policy().limits,
    });
    consistency::cut(shares.collect())
}
