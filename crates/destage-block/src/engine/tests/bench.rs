//! A volume whose jobs run when the test says so.

use super::choice::Choice;
use super::world::World;
use crate::engine::{Context, Job, JobDone, JobKind, Volume};
use crate::request::{Reply, Request};
use destage_core::{AtLimit, Order, Policy, Span, Time, WaitFor, When};
use destage_engine::Drive;
use std::collections::VecDeque;

/// The volume and what has come of it.
pub(super) struct Bench {
    pub(super) world: World,
    pub(super) choice: Choice,
    pub(super) volume: Volume,
    pub(super) context: Context,
    pub(super) now: Time,
    pub(super) held: VecDeque<Job>,
    pub(super) replies: Vec<(u64, Reply)>,
}

/// A policy that destages only when asked.
pub(super) fn lazy(order: Order) -> Choice {
    let mut choice = Choice::any(1);
    choice.blocks = 40;
    choice.slots = 400;
    choice.zero_blocks_max = 16_384;
    choice.has_redo = order == Order::Domain;
    choice.log_bytes = 4 << 20;
    choice.options.memory_bytes_max = 1 << 20;
    choice.options.checkpoint_every = Span::from_secs(1000);
    choice.policy = Policy {
        order,
        when: When::OnPressure,
        commit: Span::from_secs(1),
        staleness: Span::from_secs(3600),
        at_limit: AtLimit::Block,
        ..Policy::default()
    };
    choice
}

impl Bench {
    pub(super) fn new(choice: Choice) -> Self {
        let world = World::new(&choice);
        let now = Time::from_secs(5_000);
        let (volume, context) = world.open(&choice, now);
        let (held, replies) = (VecDeque::new(), Vec::new());
        Self { world, choice, volume, context, now, held, replies }
    }

    pub(super) fn take(&mut self) {
        while let Some(job) = self.volume.poll_job() {
            self.held.push_back(job);
        }
        self.take_replies();
    }

    pub(super) fn take_replies(&mut self) {
        while let Some(reply) = self.volume.poll_reply() {
            self.replies.push(reply);
        }
    }

    /// Runs everything except jobs of a kind, until nothing is left to do now.
    pub(super) fn run_except(&mut self, kept: Option<JobKind>) {
        loop {
            self.take();
            if let Some(index) = self.held.iter().position(|job| Some(job.kind()) != kept) {
                let job = self.held.remove(index).unwrap();
                let done = job.run(&self.context);
                if self.world.disk.is_powered_off() {
                    return;
                }
                self.volume.finished(self.now, done);
            } else if self.volume.next_timeout().is_some_and(|at| at <= self.now) {
                self.volume.tick(self.now);
            } else {
                return;
            }
        }
    }

    pub(super) fn run_job(&self, job: Job) -> JobDone {
        job.run(&self.context)
    }

    pub(super) fn run(&mut self) {
        self.run_except(None);
    }

    pub(super) fn submit(&mut self, tag: u64, request: Request) {
        self.volume.submit(self.now, tag, request);
        self.take();
    }

    pub(super) fn write(&mut self, tag: u64, offset: u64, data: &[u8], fua: bool) {
        self.submit(tag, Request::Write { offset, data: data.to_vec(), fua });
    }

    /// The reply to a request, once it has come.
    pub(super) fn reply(&self, tag: u64) -> Option<&Reply> {
        self.replies.iter().find(|(answered, _)| *answered == tag).map(|(_, reply)| reply)
    }

    pub(super) fn read(&mut self, tag: u64, offset: u64, len: u32) -> Vec<u8> {
        self.submit(tag, Request::Read { offset, len });
        self.run();
        match self.reply(tag) {
            Some(Reply::Data(data)) => data.clone(),
            other => panic!("the read was answered by {other:?}"),
        }
    }

    pub(super) fn reopen(&mut self) {
        self.held.clear();
        self.replies.clear();
        let (volume, context) = self.world.open(&self.choice, self.now);
        (self.volume, self.context) = (volume, context);
    }

    pub(super) fn wait_decided(&mut self, tag: u64) {
        let last = self.volume.last();
        self.volume.wait(self.now, tag, last, WaitFor::Decided);
        self.run();
        assert_eq!(self.reply(tag), Some(&Reply::Done));
    }
}
