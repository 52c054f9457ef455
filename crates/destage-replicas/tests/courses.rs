//! Courses of events that chance hardly meets, step by step: each with what it would lead to if a precaution were missing.

use destage_core::{Span, Time};
use destage_replicas::{
    Address, Connection, Controls, Owner, Position, Reply, Request, RunId, Server, Settings, Stage,
};
use std::collections::{BTreeMap, VecDeque};

const LEASE: u64 = 700;
const QUIET: u64 = 1_000;
const EVERY: u64 = 100;

struct World {
    servers: BTreeMap<Address, (Server, RunId)>,
    /// Bytes that a server holds.
    room: u64,
    lives: u128,
    controls: Controls,
    /// Owners open with fewer servers than copies.
    opens_short: bool,
}

fn address(server: usize) -> Address {
    format!("s{server}").into()
}

impl World {
    fn new(count: usize, controls: Controls) -> Self {
        let mut world = Self {
            servers: BTreeMap::new(),
            room: u64::MAX,
            lives: 0,
            controls,
            opens_short: false,
        };
        (0..count).for_each(|server| world.forget(server));
        world
    }

    /// A server begins anew, without its memory.
    fn forget(&mut self, server: usize) {
        self.lives += 1;
        let fresh = (Server::new(self.controls), RunId(self.lives));
        self.servers.insert(address(server), fresh);
    }

    /// A server is emptied, and neither its life nor a connection ends.
    fn empty(&mut self, server: usize) {
        let (memory, _) = self.servers.get_mut(&address(server)).expect("a server");
        *memory = Server::new(self.controls);
    }

    fn settings(&self, identity: u64, copies: usize) -> Settings {
        Settings {
            identity,
            place: format!("o{identity}").into(),
            subject: "test".into(),
            servers: (0..self.servers.len()).map(address).collect(),
            copies,
            lease: Span(LEASE),
            quiet: Span(QUIET),
            renew_every: Span(EVERY),
            window: 4,
            bytes_max: 100,
            opens_short: self.opens_short,
            founds: true,
            at_once: false,
            controls: self.controls,
        }
    }

    fn owner(&self, identity: u64, copies: usize) -> Owner {
        Owner::new(self.settings(identity, copies), Time(0))
    }

    fn connect(&self, owner: &mut Owner, now: Time, servers: &[usize]) {
        for &server in servers {
            let connection =
                Connection { run: self.servers[&address(server)].1, is_durable: false };
            owner.connected(now, &address(server), connection);
        }
    }

    /// A server does what it is asked, if it has room for that.
    fn handle(&mut self, to: &Address, request: &Request) -> Reply {
        let (server, _) = self.servers.get_mut(to).expect("a server");
        if let Request::Append { entries, .. } = request {
            let more: u64 = entries.iter().map(|entry| entry.payload.len() as u64).sum();
            if more > 0 && server.bytes() + more > self.room {
                return Reply::Full;
            }
        }
        server.handle(request)
    }

    /// Everything that an owner asks is carried out and answered.
    fn pump(&mut self, owner: &mut Owner, now: Time) {
        owner.tick(now);
        for _ in 0..1_000 {
            let Some((to, request)) = owner.poll_request() else { return };
            let reply = self.handle(&to, &request);
            owner.replied(now, &to, reply);
        }
        panic!("it asks without end: {:?}", owner.stage());
    }

    /// Everything that an owner asks is carried out; the answers are under way.
    fn carry_out(&mut self, owner: &mut Owner) -> VecDeque<(Address, Reply)> {
        let requests: Vec<_> = std::iter::from_fn(|| owner.poll_request()).collect();
        requests.into_iter().map(|(to, request)| (to.clone(), self.handle(&to, &request))).collect()
    }
}

fn append(owner: &mut Owner, now: u64, payload: &[u8]) -> Position {
    owner.append(Time(now), payload.into())
}

/// Whether the deposed owner commits its entry after the new one has committed another one there.
fn deposed_commits(controls: Controls) -> bool {
    let mut world = World::new(5, controls);
    let mut old = world.owner(1, 3);
    world.connect(&mut old, Time(0), &[0, 1, 2, 3, 4]);
    world.pump(&mut old, Time(0));
    assert!(old.is_open());
    // From now on it reaches two servers only, and the new one the three others.
    (0..3).for_each(|server| old.disconnected(Time(10), &address(server)));
    let mut new = world.owner(2, 3);
    world.connect(&mut new, Time(10), &[0, 1, 2]);
    world.pump(&mut new, Time(10));
    world.pump(&mut new, Time(2_000));
    let at = append(&mut new, 2_000, &[2]);
    world.pump(&mut new, Time(2_000));
    assert!(new.is_open() && new.committed() == at, "{:?}", new.stage());
    // One of the three forgets all, and is met by the deposed one.
    world.forget(2);
    let entry = append(&mut old, 2_100, &[1]);
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

/// Whether a standby that has followed a log which all servers have forgotten since keeps what the next log acknowledged.
fn next_log_is_kept(controls: Controls) -> bool {
    let mut world = World::new(3, controls);
    let (mut old, mut standby) = (world.owner(9, 2), world.owner(3, 2));
    world.connect(&mut old, Time(0), &[0, 1, 2]);
    world.pump(&mut old, Time(0));
    for n in 1..=5 {
        append(&mut old, 10, &[n]);
    }
    world.pump(&mut old, Time(10));
    world.connect(&mut standby, Time(20), &[0, 1, 2]);
    (20..25).for_each(|now| world.pump(&mut standby, Time(now * 10)));
    assert_eq!(standby.last(), old.last(), "it has followed");
    (0..3).for_each(|server| {
        standby.disconnected(Time(300), &address(server));
        world.forget(server);
    });
    let mut new = world.owner(2, 2);
    world.connect(&mut new, Time(300), &[0, 1, 2]);
    world.pump(&mut new, Time(300));
    let at = append(&mut new, 310, b"new");
    world.pump(&mut new, Time(310));
    assert!(new.committed() >= at, "acknowledged");
    world.connect(&mut standby, Time(320), &[0, 1, 2]);
    (1..=30).for_each(|step| world.pump(&mut standby, Time(320 + step * EVERY)));
    assert!(standby.is_open(), "{:?}", standby.stage());
    standby.entries().any(|(found, entry)| found == at && *entry.payload == *b"new")
}

#[test]
fn what_a_standby_has_followed_does_not_outlive_the_log() {
    assert!(next_log_is_kept(Controls::default()));
}

#[test]
fn a_standby_that_takes_what_it_has_followed_for_the_log_is_caught() {
    assert!(!next_log_is_kept(Controls { trusts_followed: true, ..Controls::default() }));
}

#[test]
fn a_log_is_read_however_large_its_entries_are() {
    let mut world = World::new(3, Controls::default());
    let mut old = world.owner(1, 2);
    world.connect(&mut old, Time(0), &[0, 1, 2]);
    world.pump(&mut old, Time(0));
    // Most are more than is read at once.
    let sizes = [300, 1, 101, 400, 500, 99, 2, 1];
    let last = sizes.map(|size| append(&mut old, 10, &vec![7; size]))[sizes.len() - 1];
    world.pump(&mut old, Time(10));
    assert!(old.committed() >= last);
    let mut next = world.owner(2, 2);
    world.connect(&mut next, Time(20), &[1, 2]);
    // First it follows, then it takes over.
    (1..=40).for_each(|step| world.pump(&mut next, Time(20 + step * EVERY)));
    assert!(next.is_open() && next.last() > last, "{:?}", next.stage());
    let found: Vec<usize> = next.entries().map(|(_, entry)| entry.payload.len()).collect();
    assert!(found.windows(sizes.len()).any(|found| found == sizes), "{found:?}");
}

/// Whether two owners answer at the same time, after one that takes over at once has met another one that does.
fn two_answer(controls: Controls) -> bool {
    let mut world = World::new(3, controls);
    let at_once = |world: &World, identity| {
        let settings = Settings { at_once: true, ..world.settings(identity, 2) };
        Owner::new(settings, Time(0))
    };
    let mut first = world.owner(1, 2);
    world.connect(&mut first, Time(0), &[0, 1, 2]);
    world.pump(&mut first, Time(0));
    let now = Time(10);
    let (mut second, mut third) = (at_once(&world, 2), at_once(&world, 3));
    for owner in [&mut second, &mut third] {
        world.connect(owner, now, &[0, 1, 2]);
        for (from, reply) in world.carry_out(owner) {
            owner.replied(now, &from, reply);
        }
    }
    // Of the third one's requests, only that to the last server arrives.
    while let Some((to, request)) = third.poll_request() {
        if to == address(2) {
            world.handle(&to, &request);
        }
    }
    // What that one says comes first.
    let replies = world.carry_out(&mut second);
    let (mut first_ones, others): (VecDeque<_>, VecDeque<_>) =
        replies.into_iter().partition(|(from, _)| *from == address(2));
    assert!(first_ones.iter().any(|(_, reply)| matches!(reply, Reply::Fenced { .. })));
    first_ones.extend(others);
    for (from, reply) in first_ones {
        second.replied(now, &from, reply);
    }
    let mut is_both = false;
    for step in 0..40 {
        let now = Time(10 + step * 50);
        world.pump(&mut second, now);
        is_both |= first.may_answer(now) && second.may_answer(now);
    }
    assert!(second.may_answer(Time(10 + 39 * 50)), "{:?}", second.stage());
    is_both
}

#[test]
fn who_deposes_at_once_and_in_vain_waits_for_the_lease_all_the_same() {
    assert!(!two_answer(Controls::default()));
}

#[test]
fn one_that_answers_after_its_lease_is_caught_by_who_deposes_at_once() {
    assert!(two_answer(Controls { ignores_lease: true, ..Controls::default() }));
}

/// Whether servers that are full are of use again once the origin has decided what they hold.
fn full_ones_recover(controls: Controls) -> bool {
    let mut world = World::new(3, controls);
    world.room = 500;
    let mut owner = world.owner(1, 2);
    world.connect(&mut owner, Time(0), &[0, 1, 2]);
    world.pump(&mut owner, Time(0));
    let mut last = Position::NONE;
    for _ in 0..20 {
        last = append(&mut owner, 10, &[7; 50]);
        world.pump(&mut owner, Time(10));
    }
    let held = owner.committed();
    assert!(held < last && held > owner.base(), "they are full");
    let mut does_answer = true;
    for step in 1..30 {
        let now = Time(10 + step * EVERY);
        world.pump(&mut owner, now);
        does_answer &= owner.may_answer(now);
        if step == 15 {
            assert_eq!(owner.committed(), held);
            owner.reclaim(held.next());
        }
    }
    does_answer && owner.committed() == last
}

#[test]
fn a_full_server_hears_of_the_owner_and_lets_go_of_what_is_decided() {
    assert!(full_ones_recover(Controls::default()));
}

#[test]
fn insisting_on_what_a_full_server_cannot_hold_is_caught() {
    assert!(!full_ones_recover(Controls { insists: true, ..Controls::default() }));
}

#[test]
fn a_server_that_is_emptied_while_it_is_connected_counts_only_once_it_is_filled_again() {
    let mut world = World::new(3, Controls::default());
    let mut owner = world.owner(1, 2);
    world.connect(&mut owner, Time(0), &[0, 1, 2]);
    world.pump(&mut owner, Time(0));
    let before = append(&mut owner, 10, b"before");
    world.pump(&mut owner, Time(10));
    // The owner reaches two, of which one has forgotten everything but not who it is.
    owner.disconnected(Time(20), &address(2));
    world.empty(0);
    let after = append(&mut owner, 30, b"after");
    world.pump(&mut owner, Time(30));
    assert_eq!(owner.committed(), before, "one server holds it");
    // With one that remembers, nobody may be admitted; with two, the third one is.
    for step in 0..60 {
        if step == 30 {
            assert_eq!(owner.committed(), before);
            world.connect(&mut owner, Time(3_100), &[2]);
        }
        world.pump(&mut owner, Time(100 + step * EVERY));
    }
    assert!(owner.is_settled());
    assert!(owner.committed() > after, "it was filled by a take-over");
    drop(owner);
    // The other one that holds it is lost now.
    world.forget(1);
    let mut next = world.owner(2, 2);
    world.connect(&mut next, Time(8_000), &[0, 1, 2]);
    for step in 0..30 {
        world.pump(&mut next, Time(8_000 + step * EVERY));
    }
    assert!(next.is_open());
    let all: Vec<_> = next.entries().map(|(_, entry)| entry.payload.to_vec()).collect();
    assert!(all.contains(&b"before".to_vec()) && all.contains(&b"after".to_vec()), "{all:?}");
}

/// An owner of three servers that was told to use a fourth one, which nobody reaches; and time that goes on.
fn with_one_that_is_not_reached(world: &mut World) -> Owner {
    let mut owner = world.owner(1, 2);
    world.connect(&mut owner, Time(0), &[0, 1, 2]);
    world.pump(&mut owner, Time(0));
    owner.use_servers(Time(0), (0..4).map(address).collect()).expect("it is the first change");
    world.forget(3);
    world.pump(&mut owner, Time(10));
    assert!(owner.is_open());
    owner
}

fn members(owner: &Owner) -> Vec<Address> {
    let config = owner.config().expect("the log is open");
    config.now.members.iter().map(|member| member.address.clone()).collect()
}

#[test]
fn a_lost_server_is_filled_again_while_an_added_one_is_not_reached() {
    let mut world = World::new(3, Controls::default());
    let mut owner = with_one_that_is_not_reached(&mut world);
    let before = append(&mut owner, 20, b"before");
    world.pump(&mut owner, Time(20));
    owner.disconnected(Time(30), &address(1));
    world.forget(1);
    world.connect(&mut owner, Time(40), &[1]);
    (0..60).for_each(|step| world.pump(&mut owner, Time(40 + step * EVERY)));
    // It counts: with it and one other, writes go on.
    owner.disconnected(Time(7_000), &address(0));
    let after = append(&mut owner, 7_000, b"after");
    world.pump(&mut owner, Time(7_000));
    assert!(owner.committed() >= after && after > before, "{:?}", owner.stage());
    // The added one is used once it is reached.
    world.connect(&mut owner, Time(7_100), &[3]);
    (0..60).for_each(|step| world.pump(&mut owner, Time(7_100 + step * EVERY)));
    assert_eq!(members(&owner), (0..4).map(address).collect::<Vec<_>>());
    assert!(owner.wanted_servers().is_none());
}

/// An owner that is about to be told that the added server has promised, so that its change has begun.
fn in_a_change(world: &mut World) -> Owner {
    let mut owner = with_one_that_is_not_reached(world);
    world.pump(&mut owner, Time(2_000));
    world.connect(&mut owner, Time(2_000), &[3]);
    owner.tick(Time(2_100));
    while owner.is_open() {
        let Some((to, request)) = owner.poll_request() else { break };
        let reply = world.handle(&to, &request);
        owner.replied(Time(2_100), &to, reply);
    }
    assert!(!owner.is_open(), "the change has begun");
    owner
}

#[test]
fn who_was_deposed_in_the_middle_of_a_change_of_servers_hears_of_it() {
    let mut world = World::new(3, Controls::default());
    let mut owner = in_a_change(&mut world);
    (0..4).for_each(|server| owner.disconnected(Time(2_100), &address(server)));
    let mut next = world.owner(2, 2);
    world.connect(&mut next, Time(2_200), &[0, 1, 2]);
    (0..60).for_each(|step| world.pump(&mut next, Time(2_200 + step * EVERY)));
    assert!(next.is_open());
    world.connect(&mut owner, Time(9_000), &[0, 1, 2, 3]);
    (0..60).for_each(|step| world.pump(&mut owner, Time(9_000 + step * EVERY)));
    let by = next.epoch();
    assert!(matches!(owner.stage(), Stage::Fenced { by: found, .. } if *found == by));
}

/// An added server promises, so that its change begins, and then says nothing more. When the log is open again, and its owner.
fn open_again(world: &mut World, is_gone: bool) -> (u64, Owner) {
    let mut owner = in_a_change(world);
    if is_gone {
        owner.disconnected(Time(2_100), &address(3));
    }
    for now in (2_100..12_000).step_by(EVERY as usize / 2) {
        owner.tick(Time(now));
        while let Some((to, request)) = owner.poll_request() {
            if to != address(3) {
                let reply = world.handle(&to, &request);
                owner.replied(Time(now), &to, reply);
            }
        }
        if owner.is_open() {
            return (now, owner);
        }
    }
    panic!("the log stays closed: {:?}", owner.stage());
}

#[test]
fn an_added_server_that_is_lost_in_the_middle_of_the_change_closes_no_log() {
    for is_gone in [true, false] {
        let mut world = World::new(3, Controls::default());
        let (now, mut owner) = open_again(&mut world, is_gone);
        // One that is connected may still answer.
        let most = if is_gone { EVERY } else { QUIET };
        assert!(now <= 2_100 + most, "open at {now}, gone: {is_gone}");
        let entry = append(&mut owner, now, b"goes on");
        owner.disconnected(Time(now), &address(3));
        world.pump(&mut owner, Time(now));
        assert!(owner.committed() >= entry, "{:?}", owner.stage());
        assert_eq!(members(&owner), (0..3).map(address).collect::<Vec<_>>());
        // It is not forgotten.
        world.connect(&mut owner, Time(now + 100), &[3]);
        (0..60).for_each(|step| world.pump(&mut owner, Time(now + 100 + step * EVERY)));
        assert_eq!(members(&owner), (0..4).map(address).collect::<Vec<_>>());
    }
}

#[test]
fn a_server_that_was_added_and_is_not_reached_can_be_given_up() {
    let mut world = World::new(3, Controls::default());
    let mut owner = with_one_that_is_not_reached(&mut world);
    let other = owner.use_servers(Time(20), (0..5).map(address).collect());
    assert!(other.is_err(), "one change at a time");
    owner.use_servers(Time(20), (0..3).map(address).collect()).expect("the change is given up");
    assert!(owner.wanted_servers().is_none());
    world.connect(&mut owner, Time(2_000), &[3]);
    (0..60).for_each(|step| world.pump(&mut owner, Time(2_000 + step * EVERY)));
    assert_eq!(members(&owner), (0..3).map(address).collect::<Vec<_>>());
}

/// Whether an owner still answers reads after more than a lease in which it has reached so many servers, and commits.
fn goes_on(servers: usize, copies: usize, reached: usize) -> (bool, bool) {
    let mut world = World::new(servers, Controls::default());
    let mut owner = world.owner(1, copies);
    let all: Vec<usize> = (0..servers).collect();
    world.connect(&mut owner, Time(0), &all);
    world.pump(&mut owner, Time(0));
    assert!(owner.is_open() && owner.may_answer(Time(1)));
    (reached..servers).for_each(|server| owner.disconnected(Time(1), &address(server)));
    let at = append(&mut owner, 1, &[1]);
    (0..=LEASE / EVERY).for_each(|step| world.pump(&mut owner, Time(2 + step * EVERY)));
    (owner.may_answer(Time(2 + LEASE)), owner.committed() >= at)
}

#[test]
fn reads_need_as_many_servers_as_copies_or_more_than_half_and_writes_as_many_as_copies() {
    for (servers, copies, reads) in [
        (1, 1, 1),
        (2, 2, 2),
        (3, 2, 2),
        (3, 3, 2),
        (4, 4, 3),
        (5, 2, 2),
        (5, 3, 3),
        (5, 4, 3),
        (5, 5, 3),
    ] {
        for reached in 1..=servers {
            let expected = (reached >= reads, reached >= copies);
            let found = goes_on(servers, copies, reached);
            assert_eq!(found, expected, "{reached} of {servers} servers, {copies} copies");
        }
    }
}
