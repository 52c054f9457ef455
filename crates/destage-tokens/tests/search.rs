//! Every order of everything that can happen to two hosts that use two files, to its end.

#[expect(dead_code, reason = "the simulation uses the rest")]
mod model;

use destage_core::{Span, Time};
use destage_tokens::{Controls, HostId, Key, Settings, Stage};
use model::{Broken, Kind, World};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

const NOW: Time = Time::ZERO;
const HOSTS: usize = 2;
/// Else one that is shut out, and starts, and is shut out, has no end.
const FENCES_MAX: u8 = 1;

/// How often each may happen.
#[derive(Clone, Copy, Hash)]
struct Bounds {
    /// Requests of each host, in this order.
    asks: [&'static [(usize, Kind)]; HOSTS],
    /// Of the first host.
    leases_lost: u8,
    crashes: u8,
    replies_lost: u8,
    /// What the store tells may arrive late.
    late_news: bool,
    states_max: usize,
}

#[derive(Clone, Hash)]
struct State {
    world: World,
    asked: [usize; HOSTS],
    leases_lost: u8,
    crashes: u8,
    replies_lost: u8,
    fences: u8,
}

struct Search {
    bounds: Bounds,
    seen: HashSet<u128>,
    stack: Vec<State>,
    states: usize,
    ended: usize,
    fenced: usize,
}

fn fingerprint(state: &State) -> u128 {
    let mut halves = [0_u8, 1].map(|salt| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        state.hash(&mut hasher);
        hasher.finish()
    });
    halves.sort_unstable();
    u128::from(halves[0]) << 64 | u128::from(halves[1])
}

impl Search {
    fn run(bounds: Bounds, broken: Broken) -> Result<Self, String> {
        let settings = World::settings(Span::from_secs(1), Span::ZERO, Controls::default());
        // Time stands still here.
        let settings = Settings { retry_after: Span::ZERO, ..settings };
        let mut world = World::new(HOSTS, 2, settings, broken);
        for m in 0..HOSTS {
            world.start(m, NOW)?;
            // Both are there before anything happens.
            while world.stage(m) != Some(Stage::Online) {
                world.lease(m, NOW, false)?;
                world.load(m, NOW, false)?;
                world.store(m);
                world.reply(m, NOW, false)?;
            }
        }
        let state = State {
            world,
            asked: [0; HOSTS],
            leases_lost: 0,
            crashes: 0,
            replies_lost: 0,
            fences: 0,
        };
        let mut search = Self {
            bounds,
            seen: HashSet::new(),
            stack: vec![state],
            states: 0,
            ended: 0,
            fenced: 0,
        };
        while let Some(state) = search.stack.pop() {
            search.states += 1;
            if search.states > bounds.states_max {
                return Err(format!("more than {} states", bounds.states_max));
            }
            let count = search.stack.len();
            for m in 0..HOSTS {
                search.host(&state, m)?;
            }
            search.expiries(&state)?;
            if search.stack.len() == count {
                search.end(&state);
            }
        }
        Ok(search)
    }

    /// Nothing new can follow.
    fn end(&mut self, state: &State) {
        self.ended += 1;
        self.fenced += usize::from(state.world.counted.fenced > 0);
    }

    fn push(&mut self, mut next: State) {
        // What is only counted tells no states apart.
        let counted = std::mem::take(&mut next.world.counted);
        let is_new = self.seen.insert(fingerprint(&next));
        next.world.counted = counted;
        if is_new {
            self.stack.push(next);
        }
    }

    fn step(
        &mut self,
        state: &State,
        what: impl FnOnce(&mut State) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut next = state.clone();
        what(&mut next)?;
        Self::settle(&mut next.world, self.bounds.late_news)?;
        self.push(next);
        Ok(())
    }

    fn host(&mut self, state: &State, m: usize) -> Result<(), String> {
        let machine = &state.world.machines[m];
        for index in 0..machine.io.len() {
            self.step(state, |next| {
                next.world.land(m, index);
                Ok(())
            })?;
        }
        if machine.host.is_none() {
            if machine.io.is_empty() {
                self.step(state, |next| next.world.start(m, NOW))?;
            }
            return Ok(());
        }
        self.talk(state, m)?;
        if let Some(&(file, kind)) = self.bounds.asks[m].get(state.asked[m]) {
            self.step(state, |next| {
                next.asked[m] += 1;
                next.world.ask(m, NOW, file, kind)
            })?;
        }
        let is_serving = state.world.is_serving(m, NOW);
        if is_serving {
            let admitted = machine.ops.iter().filter(|(_, op)| op.is_admitted);
            for (&id, _) in admitted {
                self.step(state, |next| next.world.perform(m, NOW, id))?;
            }
            for file in state.world.sendable(m) {
                self.step(state, |next| {
                    next.world.send(m, NOW, file);
                    Ok(())
                })?;
            }
        }
        if m == 0 && is_serving && state.leases_lost < self.bounds.leases_lost {
            self.step(state, |next| {
                next.leases_lost += 1;
                next.world.lose(m, NOW)
            })?;
        }
        if m == 0 && state.crashes < self.bounds.crashes {
            self.step(state, |next| {
                next.crashes += 1;
                next.world.crash(m);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn talk(&mut self, state: &State, m: usize) -> Result<(), String> {
        let machine = &state.world.machines[m];
        if machine.txn.is_some() {
            self.step(state, |next| {
                next.world.store(m);
                next.world.reply(m, NOW, false)
            })?;
            if state.replies_lost < self.bounds.replies_lost {
                self.step(state, |next| {
                    next.replies_lost += 1;
                    next.world.store(m);
                    next.world.reply(m, NOW, true)
                })?;
            }
        }
        if !machine.events.is_empty() {
            self.step(state, |next| {
                while !next.world.machines[m].events.is_empty() {
                    next.world.watch(m, NOW)?;
                }
                Ok(())
            })?;
        }
        if !machine.fences.is_empty() && state.fences < FENCES_MAX {
            self.step(state, |next| {
                next.fences += 1;
                next.world.fence(m, NOW)
            })?;
        }
        Ok(())
    }

    /// What the order of other things does not depend on happens at once.
    fn settle(world: &mut World, late_news: bool) -> Result<(), String> {
        for m in 0..HOSTS {
            loop {
                if world.machines[m].lease_asked.is_some() {
                    world.lease(m, NOW, false)?;
                } else if world.machines[m].load {
                    world.load(m, NOW, false)?;
                } else if let Some(&index) = world.drainable(m).first() {
                    world.drained(m, NOW, index)?;
                } else if !late_news && !world.machines[m].events.is_empty() {
                    world.watch(m, NOW)?;
                } else {
                    break;
                }
            }
        }
        Ok(())
    }

    /// A lease ends at the store only after its host counts it as ended: the margin sees to that.
    fn expiries(&mut self, state: &State) -> Result<(), String> {
        for m in 0..HOSTS {
            let session = Key::Session(HostId(m as u128 + 1));
            if let Some(lease) = state.world.store.lease_of(&session)
                && state.world.machines[m].lease != Some(lease)
            {
                self.step(state, |next| {
                    next.world.expire(lease);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

const TWO_EACH: [&[(usize, Kind)]; HOSTS] =
    [&[(0, Kind::Create(1)), (0, Kind::Read)], &[(0, Kind::Read), (1, Kind::Write)]];

const SMALL: Bounds = Bounds {
    asks: [&[(0, Kind::Write)], &[(0, Kind::Read)]],
    leases_lost: 1,
    crashes: 0,
    replies_lost: 0,
    late_news: false,
    states_max: 2_000_000,
};

fn searched(bounds: Bounds) -> Search {
    let search = Search::run(bounds, Broken::default()).expect("every read gives the last write");
    println!(
        "{} states, {} ends, {} of them with a host shut out",
        search.states, search.ended, search.fenced
    );
    search
}

#[test]
fn every_order_of_a_write_and_a_read_with_a_lease_lost_anywhere() {
    let search = searched(SMALL);
    assert!(search.fenced > 0, "a host was shut out");
}

#[test]
fn every_order_of_a_file_made_and_used_by_another_host() {
    searched(Bounds { asks: TWO_EACH, leases_lost: 0, late_news: true, ..SMALL });
}

#[test]
fn every_order_of_a_write_and_a_read_with_a_crash_anywhere() {
    searched(Bounds { leases_lost: 0, crashes: 1, ..SMALL });
}

#[test]
fn every_order_of_a_write_and_a_read_with_an_answer_of_the_store_lost() {
    searched(Bounds { leases_lost: 0, replies_lost: 1, late_news: true, ..SMALL });
}

fn is_caught(broken: Broken, bounds: Bounds) {
    let found = Search::run(bounds, broken).map(|search| search.states);
    let error = found.expect_err("the search notices");
    assert!(error.contains("finds"), "{error}");
    println!("{error}");
}

#[test]
fn showing_what_is_known_by_a_token_that_is_gone_is_caught() {
    let asks: [&[(usize, Kind)]; HOSTS] =
        [&[(0, Kind::Read), (0, Kind::Read)], &[(0, Kind::Write)]];
    let bounds = Bounds { asks, leases_lost: 0, ..SMALL };
    is_caught(Broken { no_invalidation: true, ..Broken::default() }, bounds);
}

#[test]
fn giving_up_a_token_under_a_request_is_caught() {
    let controls = Controls { no_gate: true, ..Controls::default() };
    is_caught(Broken { controls, ..Broken::default() }, Bounds { leases_lost: 0, ..SMALL });
}

#[test]
fn taking_over_from_a_host_whose_writes_are_on_their_way_is_caught() {
    let controls = Controls { no_fence: true, ..Controls::default() };
    let asks: [&[(usize, Kind)]; HOSTS] =
        [&[(0, Kind::Write)], &[(0, Kind::Write), (0, Kind::Read)]];
    is_caught(Broken { controls, ..Broken::default() }, Bounds { asks, ..SMALL });
}

#[test]
fn replaying_what_is_not_confirmed_is_caught() {
    let controls = Controls { confirms_all: true, ..Controls::default() };
    let asks: [&[(usize, Kind)]; HOSTS] =
        [&[(0, Kind::Write)], &[(0, Kind::Write), (0, Kind::Read)]];
    is_caught(Broken { controls, ..Broken::default() }, Bounds { asks, ..SMALL });
}
