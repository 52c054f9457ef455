//! A deposed owner meets a server that has lost its memory, one of those that had deposed it.

use destage_core::{Span, Time};
use destage_replicas::{Address, Connection, Controls, Owner, Position, RunId, Server, Settings};
use std::collections::BTreeMap;

struct World {
    servers: BTreeMap<Address, (Server, RunId)>,
}

fn address(server: usize) -> Address {
    format!("s{server}").into()
}

fn owner(identity: u64, controls: Controls) -> Owner {
    let settings = Settings {
        identity,
        place: format!("o{identity}").into(),
        subject: "test".into(),
        servers: (0..5).map(address).collect(),
        copies: 3,
        lease: Span(700),
        quiet: Span(1_000),
        renew_every: Span(100),
        window: 4,
        bytes_max: 100,
        at_once: false,
        controls,
    };
    Owner::new(settings, Time(0))
}

impl World {
    fn connect(&self, owner: &mut Owner, now: Time, servers: &[usize]) {
        for &server in servers {
            let connection =
                Connection { run: self.servers[&address(server)].1, is_durable: false };
            owner.connected(now, &address(server), connection);
        }
    }

    /// Everything that an owner asks is carried out and answered.
    fn pump(&mut self, owner: &mut Owner, now: Time) {
        owner.tick(now);
        while let Some((to, request)) = owner.poll_request() {
            let reply = self.servers.get_mut(&to).expect("a server").0.handle(&request);
            owner.replied(now, &to, reply);
        }
    }
}

/// Whether the deposed owner commits its entry after the new one has committed another one there.
fn deposed_commits(controls: Controls) -> bool {
    let servers = (0..5).map(|s| (address(s), (Server::new(controls), RunId(s as u128 + 1))));
    let mut world = World { servers: servers.collect() };
    let mut old = owner(1, controls);
    world.connect(&mut old, Time(0), &[0, 1, 2, 3, 4]);
    world.pump(&mut old, Time(0));
    assert!(old.is_open());
    // From now on it reaches two servers only, and the new one the three others.
    (0..3).for_each(|server| old.disconnected(Time(10), &address(server)));
    let mut new = owner(2, controls);
    world.connect(&mut new, Time(10), &[0, 1, 2]);
    world.pump(&mut new, Time(10));
    world.pump(&mut new, Time(2_000));
    let at = new.append(Time(2_000), [2].as_slice().into());
    world.pump(&mut new, Time(2_000));
    assert!(new.is_open() && new.committed() == at, "{:?}", new.stage());
    // One of the three forgets all, and is met by the deposed one.
    world.servers.insert(address(2), (Server::new(controls), RunId(9)));
    let entry: Position = old.append(Time(2_100), [1].as_slice().into());
    world.connect(&mut old, Time(2_100), &[2]);
    for now in [2_100, 2_200, 4_000, 6_000] {
        world.pump(&mut old, Time(now));
    }
    old.committed() >= entry
}

#[test]
fn a_deposed_owner_commits_nothing_with_a_server_that_has_forgotten_who_deposed_it() {
    assert!(!deposed_commits(Controls::default()));
}

#[test]
fn a_deposed_owner_that_admits_a_server_is_caught() {
    assert!(deposed_commits(Controls { admits_alone: true, ..Controls::default() }));
}
