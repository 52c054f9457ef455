//! Virtual time: the load, the cache and the disk in the order in which things happen.

use super::cache::{Cache, Waiter};
use destage_core::{Span, Time};
use destage_sim::event::{Events, Job};

/// What uses the cache.
pub(super) trait Load {
    /// What it plans.
    type Event;

    /// Plans what comes first.
    fn begin(&mut self, plan: &mut Plan<Self::Event>);

    /// Something that it planned happens.
    fn happen(&mut self, event: Self::Event, cache: &mut Cache, plan: &mut Plan<Self::Event>);

    /// A read, or a write that was waited for, is over.
    fn ended(&mut self, waiter: Waiter, now: Time, plan: &mut Plan<Self::Event>);

    /// Whether it is over.
    fn is_over(&self) -> bool;
}

/// What is planned.
pub(super) struct Plan<E>(Events<Planned<E>>);

enum Planned<E> {
    Load(E),
    DiskDone { server: usize },
    AtServer(Job),
}

impl<E> Plan<E> {
    pub(super) fn at(&mut self, time: Time, event: E) {
        self.0.plan(time, Planned::Load(event));
    }
}

/// Runs a load from time zero to its end; how long it took.
pub(super) fn run<L: Load>(load: &mut L, cache: &mut Cache) -> Span {
    let mut plan = Plan(Events::default());
    load.begin(&mut plan);
    while !load.is_over() {
        cache.tick();
        cache.send_held();
        settle(load, cache, &mut plan);
        let next = plan.0.next_at().into_iter().chain(cache.next_timeout()).min();
        cache.now = next.expect("the load or the disk has something planned until it is over");
        while let Some(event) = plan.0.take_until(cache.now) {
            match event {
                Planned::Load(event) => load.happen(event, cache, &mut plan),
                Planned::DiskDone { server } => cache.disk_done(server),
                Planned::AtServer(job) => cache.arrive(job),
            }
            settle(load, cache, &mut plan);
        }
    }
    cache.now.since(Time::ZERO)
}

/// Plans the ends of services that have begun and of ways to the server, and tells the load what is over.
fn settle<L: Load>(load: &mut L, cache: &mut Cache, plan: &mut Plan<L::Event>) {
    for begun in cache.begun.drain(..) {
        plan.0.plan(begun.at, Planned::DiskDone { server: begun.server });
    }
    for (at, job) in cache.travelling.drain(..) {
        plan.0.plan(at, Planned::AtServer(job));
    }
    let now = cache.now;
    cache.ended.drain(..).for_each(|waiter| load.ended(waiter, now, plan));
}
