//! What goes wrong.

use crate::events::Event;
use crate::world::{MS, World, address};
use destage_replicas::{Owner, RunId, Server};

/// Something goes wrong.
pub(crate) fn happen(world: &mut World) {
    let process = world.rng.below(world.processes.len() as u64) as usize;
    let server = world.rng.below(world.machines.len() as u64) as usize;
    match world.rng.below(12) {
        0 | 1 => world.cut(process, server),
        2 | 3 => partition(world),
        4 | 5 => {
            let after = world.rng.below(2_000) * MS;
            if world.processes[process].owner.is_some() {
                world.end(process, after);
            }
        }
        6 => pause(world, process),
        7 => lose(world, server),
        8 | 9 => away(world, server),
        10 => change(world),
        _ => world.tell(process, |owner, now| owner.give_up(now)),
    }
}

/// Nothing does any more.
pub(crate) fn end(world: &mut World) {
    world.blocked.iter_mut().flatten().for_each(|blocked| *blocked = false);
    for machine in &mut world.machines {
        machine.is_up = true;
    }
}

/// Some process does not reach some servers, of whatever shape.
fn partition(world: &mut World) {
    let shape = world.rng.below(3);
    let who = world.rng.next() as usize;
    let chance = world.rng.pick(&[30, 50, 80]);
    for process in 0..world.processes.len() {
        for server in 0..world.machines.len() {
            let is_blocked = match shape {
                0 => process == who % world.processes.len(),
                1 => server == who % world.machines.len(),
                _ => world.rng.chance(chance),
            };
            world.blocked[process][server] |= is_blocked;
        }
    }
    let after = (100 + world.rng.below(3_000)) * MS;
    world.after(after, Event::Heal);
}

fn pause(world: &mut World, process: usize) {
    let span = (200 + world.rng.below(4_000)) * MS;
    world.report.pauses += 1;
    let until = world.now + span;
    world.processes[process].paused_until = until;
}

/// A server loses its memory, of as many as the promise allows.
fn lose(world: &mut World, server: usize) {
    let machine = &world.machines[server];
    let has_memory = machine.memory.view().config.is_some();
    // Fewer than k, and no more than half of the servers: with fewer, nobody takes over.
    let lost_max = (world.setup.copies - 1).min(world.setup.servers / 2);
    // Where none of the servers that are named to a process remembers the log, nobody finds it: the origin refuses the new one.
    let named = world.machines.iter().take(world.setup.servers).enumerate();
    let mut others = named.filter(|&(other, _)| other != server);
    let is_found = others.any(|(_, machine)| machine.memory.view().config.is_some());
    if !has_memory || !is_found || world.lost_since_settled >= lost_max {
        return;
    }
    world.lost_since_settled += 1;
    world.report.lost_memories += 1;
    let memory = Server::new(world.setup.controls);
    restart(world, server, Some(memory));
}

/// All servers lose their memory, while the owner lives, which nothing happens to afterwards; the others begin anew. Whether there
/// was one; if not, later.
pub(crate) fn all_forget(world: &mut World) -> bool {
    let (now, processes) = (world.now, 0..world.processes.len());
    let is_owner = |&process: &usize| {
        let at = &world.processes[process];
        let owner = at.owner.as_ref().filter(|owner| owner.is_open() && at.paused_until <= now);
        owner.is_some_and(|owner| {
            at.claimed.is_some_and(|(epoch, _)| epoch == owner.epoch())
                && owner.may_answer(world.local(process))
        })
    };
    let Some(owner) = processes.clone().find(is_owner) else {
        world.after(200 * MS, Event::AllForget);
        return false;
    };
    world.report.forgotten += world.books.undecided(&world.origin);
    world.has_all_forgotten = true;
    end(world);
    for server in 0..world.machines.len() {
        let memory = Server::new(world.setup.controls);
        restart(world, server, Some(memory));
    }
    for process in processes.filter(|&process| process != owner) {
        let after = world.rng.below(2_000) * MS;
        if world.processes[process].owner.is_some() {
            world.end(process, after);
        }
    }
    true
}

fn restart(world: &mut World, server: usize, memory: Option<Server>) {
    let next = world.machines.iter().map(|machine| machine.run.0).max().unwrap_or(0) + 1;
    let machine = &mut world.machines[server];
    machine.run = RunId(next);
    if let Some(memory) = memory {
        machine.memory = memory;
    }
    (0..world.processes.len()).for_each(|process| world.cut(process, server));
}

/// A server is away for a while; one with a log file of its own may have been restarted.
fn away(world: &mut World, server: usize) {
    world.machines[server].is_up = false;
    if world.machines[server].is_durable {
        restart(world, server, None);
    }
    let after = world.rng.below(2_500) * MS;
    world.after(after, Event::ServerBack { server });
}

/// The servers' configuration is changed.
fn change(world: &mut World) {
    let count = world.setup.servers;
    let mut all: Vec<usize> = (0..world.machines.len()).collect();
    for at in 0..all.len() {
        let other = world.rng.below(all.len() as u64) as usize;
        all.swap(at, other);
    }
    let servers: Vec<_> = all.into_iter().take(count).map(address).collect();
    for process in 0..world.processes.len() {
        if world.processes[process].owner.as_ref().is_some_and(Owner::is_open) {
            let mut is_begun = false;
            let servers = servers.clone();
            world.tell(process, |owner, now| is_begun = owner.use_servers(now, servers).is_ok());
            world.report.changes += u64::from(is_begun);
        }
    }
}
