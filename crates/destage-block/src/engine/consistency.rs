//! Several volumes whose origins are one state together: what a database and its log need.
//!
//! The writes of all volumes stand in one order, that of their stamps. What reaches the origins is a prefix of it, sent as
//! one atomic group over all redo stores. So if a write to one volume was issued after a write to another one was
//! acknowledged, no origin ever has the later without the earlier, after the replay. *When* a group is sent the cores
//! decide, each for its volume: a batch that one of them wants takes along what came before it on the others.
//!
//! A group waits for every volume: one whose origin is away, or that has stopped, holds the others up, until D does.

use super::Volume;
use super::job::{Context, Failure, Part, Sent, send_together};
use super::member::Ordered;
use crate::block::BLOCK;
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
        let result = send_together(contexts, &self.parts, self.coordinator, self.uuid);
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
                    volumes.iter_mut().for_each(|v| v.not_sent_together(now, &failure, &[]));
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
                    volume.sent_together(now, sent, member.upto, &member.pins);
                }
            }
            Err(failure) => {
                self.failed(&failure);
                for (volume, member) in volumes.iter_mut().zip(&done.members) {
                    volume.not_sent_together(now, &failure, &member.pins);
                }
            }
        }
    }

    fn failed(&mut self, failure: &Failure) {
        self.status.failures += 1;
        self.status.last_error = Some(failure.message.clone());
    }
}

/// How far each volume goes in the next group: the writes of all in the order of their stamps, as far as they are durable
/// in the logs, fit in the redo stores, and to the next point at which an application was consistent. Never inside a
/// request, whatever the limits; nothing if the first request is not durable as a whole.
fn cut(volumes: &[&mut Volume]) -> Vec<Lsn> {
    let mut queues: Vec<_> = volumes.iter().map(|volume| volume.not_sent().peekable()).collect();
    let mut next = Cut::new(volumes.len());
    // As of the last write that ends a request.
    let (mut whole, mut whole_count) = (next.upto.clone(), 0);
    loop {
        let heads = queues
            .iter_mut()
            .enumerate()
            .filter_map(|(index, queue)| queue.peek().map(|head: &Ordered| (head.stamp, index)));
        // What follows a part of a request on another volume shows that a crash has cut the request short there.
        let Some((_, index)) = heads.min() else { return next.upto };
        if next.inside.is_some_and(|inside| inside != index) {
            next.inside = None;
            whole.copy_from_slice(&next.upto);
            whole_count = next.count;
        }
        let Some(head) = queues[index].next() else { return whole };
        let volume = &volumes[index];
        let is_over = whole_count > 0 && next.is_full(index, &head, volume);
        let is_durable = head.lsn <= volume.core.committed();
        if is_over || !is_durable || (next.has_mark && !head.is_mark) {
            return whole;
        }
        next.take(index, &head);
        if next.inside.is_none() {
            whole.copy_from_slice(&next.upto);
            whole_count = next.count;
        }
    }
}

/// A cut through the order of all writes.
#[derive(Debug)]
struct Cut {
    /// By volume.
    upto: Vec<Lsn>,
    bytes: Vec<u64>,
    count: u32,
    has_mark: bool,
    /// The volume of a request that goes on behind the cut.
    inside: Option<usize>,
}

impl Cut {
    fn new(volumes: usize) -> Self {
        let (upto, bytes) = (vec![Lsn::ZERO; volumes], vec![0; volumes]);
        Self { upto, bytes, count: 0, has_mark: false, inside: None }
    }

    fn is_full(&self, index: usize, head: &Ordered, volume: &Volume) -> bool {
        let limits = &volume.core.policy().limits;
        let bytes = self.bytes[index] + head.blocks * BLOCK as u64;
        self.count >= limits.batch_groups_max || bytes > limits.batch_bytes_max
    }

    fn take(&mut self, index: usize, head: &Ordered) {
        self.upto[index] = head.lsn;
        self.bytes[index] += head.blocks * BLOCK as u64;
        self.count += 1;
        self.has_mark |= head.is_mark;
        self.inside = head.continues.then_some(index);
    }
}
