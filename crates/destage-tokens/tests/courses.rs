//! Courses of events that neither the seeds nor the search meet, as requests of theirs need one file each.

use destage_core::{Span, Time};
use destage_tokens::{
    AskId, Controls, Effect, Event, FileId, Host, HostId, Kept, Key, LeaseId, Mode, Need, Root,
    Settings, Stage, Store, Value,
};
use std::collections::BTreeSet;

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
/// More than any host has to do at a moment.
const EFFECTS_MAX: u32 = 10_000;

/// Hosts at a store that answers at once, and an origin that takes everything at once.
struct Hosts {
    hosts: Vec<Host>,
    store: Store,
    admitted: Vec<BTreeSet<u64>>,
    now: Time,
    leases: u64,
    fences: Vec<HostId>,
    /// All that the store has told.
    told: Vec<Event>,
    /// Hears nothing.
    deaf: Option<usize>,
    /// What was to be given up, with what was covered by it.
    revoked: Vec<(Root, Vec<FileId>)>,
    /// It is not, until it is said.
    drains_late: bool,
    /// The store tells nobody what came of a transaction.
    is_in_doubt: bool,
    /// It tells everybody what has changed before it tells whoever has changed it that this is done.
    tells_early: bool,
    loads: u32,
}

fn file(number: u8) -> FileId {
    [number][..].into()
}

fn change(number: u8) -> Need {
    Need { root: Root::File(file(number)), mode: Mode::Exclusive, is_explicit: false }
}

fn settings(at: usize, tokens_max: usize, controls: Controls) -> Settings {
    Settings {
        host: HostId(at as u128),
        lease: Span::from_secs(15),
        margin: Span::from_secs(2),
        renew_every: Span::from_secs(3),
        retry_after: Span::from_millis(100),
        tokens_max,
        controls,
    }
}

impl Hosts {
    fn new(count: usize) -> Self {
        Self::with(count, 1_000, Controls::default())
    }

    fn with(count: usize, tokens_max: usize, controls: Controls) -> Self {
        let mut all = Self {
            hosts: (0..count).map(|at| Host::new(settings(at, tokens_max, controls))).collect(),
            store: Store::default(),
            admitted: vec![BTreeSet::new(); count],
            now: Time::from_secs(100),
            leases: 0,
            fences: Vec::new(),
            told: Vec::new(),
            deaf: None,
            revoked: Vec::new(),
            drains_late: false,
            is_in_doubt: false,
            tells_early: false,
            loads: 0,
        };
        let now = all.now;
        all.hosts.iter_mut().for_each(|host| host.start(now));
        all.settle();
        assert!(all.hosts.iter().all(|host| host.stage() == Stage::Online));
        all
    }

    /// Everything happens that can, for some seconds.
    fn settle(&mut self) {
        for _ in 0..500 {
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        self.now = self.now + Span::from_millis(20);
        for host in 0..self.hosts.len() {
            self.hosts[host].tick(self.now);
            let mut done = 0;
            while let Some(effect) = self.hosts[host].poll() {
                self.carry_out(host, effect);
                done += 1;
                assert!(done < EFFECTS_MAX, "it comes to no end");
            }
        }
    }

    fn carry_out(&mut self, at: usize, effect: Effect) {
        let now = self.now;
        match effect {
            Effect::Lease => {
                self.leases += 1;
                self.hosts[at].leased(now, now, Some(LeaseId(self.leases)));
            }
            Effect::Renew(lease) => self.hosts[at].kept(now, now, lease, Kept::Renewed),
            Effect::Load => {
                self.loads += 1;
                let all = self.store.all();
                self.hosts[at].loaded(now, Some(all));
            }
            Effect::Txn(_) if self.is_in_doubt => self.hosts[at].replied(now, None),
            Effect::Txn(txn) => {
                let (reply, mut events) = self.store.txn(&txn);
                if self.tells_early {
                    self.spread(&std::mem::take(&mut events));
                }
                self.hosts[at].replied(now, Some(reply));
                self.spread(&events);
            }
            Effect::Admit(ask) => {
                self.admitted[at].insert(ask.0);
            }
            Effect::Revoke { root, covered, .. } => {
                if !self.drains_late {
                    self.hosts[at].drained(now, &root);
                }
                self.revoked.push((root, covered));
            }
            Effect::Entered => self.hosts[at].recovered(now),
            Effect::Fence(host) => self.fences.push(host),
            Effect::Left => {}
            Effect::Fenced => panic!("nobody is shut out while it lives"),
        }
    }

    /// What has changed is told to everybody but who is deaf.
    fn spread(&mut self, events: &[Event]) {
        let now = self.now;
        self.told.extend_from_slice(events);
        for event in events {
            for (at, host) in self.hosts.iter_mut().enumerate() {
                if self.deaf != Some(at) {
                    host.event(now, event.clone());
                }
            }
        }
    }

    /// A host has lost its lease, and the store has ended it.
    fn lose(&mut self, at: usize) {
        let session = Key::Session(HostId(at as u128));
        let lease = self.store.lease_of(&session).expect("it has one");
        self.hosts[at].lose();
        let events = self.store.end(lease);
        self.spread(&events);
    }

    fn ask(&mut self, at: usize, id: u64, needs: &[Need]) {
        self.hosts[at].ask(self.now, AskId(id), needs.to_vec());
        self.settle();
    }

    fn end(&mut self, at: usize, id: u64) {
        assert!(self.admitted[at].contains(&id), "{id} was admitted");
        self.hosts[at].ended(self.now, AskId(id));
        self.settle();
    }
}

/// A folder's token covers a file that sorts before another file, and the folder behind it: who needs both has the last of all
/// three when it waits for the one in the middle.
#[test]
fn two_hosts_do_not_wait_for_each_other_through_a_folder_that_covers_what_it_holds() {
    let (inner, old, folder) = (1, 2, 3);
    let mut hosts = Hosts::new(2);
    // The one that comes second ends that the first has everything.
    hosts.ask(B, 2, &[change(old)]);
    hosts.end(B, 2);
    hosts.ask(A, 1, &[change(folder)]);
    hosts.hosts[A].born(&file(inner), &file(folder));
    hosts.end(A, 1);
    hosts.ask(B, 5, &[change(old)]);
    hosts.end(B, 5);
    assert_eq!(hosts.hosts[A].cover(&file(inner)), Some(Root::File(file(folder))));
    // At the same time: neither has heard of the other one.
    let now = hosts.now;
    hosts.hosts[A].ask(now, AskId(3), vec![change(inner), change(old)]);
    hosts.hosts[B].ask(now, AskId(4), vec![change(old), change(folder)]);
    hosts.settle();
    let first = if hosts.admitted[B].contains(&4) { (B, 4) } else { (A, 3) };
    hosts.end(first.0, first.1);
    let second = if first.0 == B { (A, 3) } else { (B, 4) };
    hosts.end(second.0, second.1);
    assert!(hosts.hosts.iter().all(|host| host.asked() == 0));
}

/// A host hears once more of what it held, after it has read anew what the store holds; since then the key has gone.
fn is_brought_back_by_old_news(controls: Controls) -> bool {
    let mut hosts = Hosts::with(2, 1_000, controls);
    hosts.ask(B, 1, &[change(9)]);
    hosts.end(B, 1);
    hosts.ask(A, 2, &[change(1)]);
    hosts.end(A, 2);
    assert_eq!(hosts.hosts[A].mode_of(&Root::File(file(1))), Some(Mode::Exclusive));
    hosts.ask(B, 3, &[change(1)]);
    hosts.end(B, 3);
    let now = hosts.now;
    hosts.hosts[B].leave(now);
    hosts.settle();
    assert_eq!(hosts.store.get(&Key::Token(Root::File(file(1)))), None);
    hosts.hosts[A].unwatched(now);
    hosts.settle();
    let now = hosts.now;
    let is_mine = |event: &&Event| matches!(&event.value, Some(Value::Token(register)) if register.holder(HostId(A as u128)).is_some());
    for event in hosts.told.clone().iter().filter(is_mine) {
        hosts.hosts[A].event(now, event.clone());
    }
    hosts.hosts[A].mode_of(&Root::File(file(1))).is_some()
}

#[test]
fn old_news_after_a_reload_bring_no_token_back() {
    assert!(!is_brought_back_by_old_news(Controls::default()));
    assert!(is_brought_back_by_old_news(Controls { old_news: true, ..Controls::default() }));
}

/// What has gone, and what was made in a directory, is forgotten.
#[test]
fn what_a_host_remembers_does_not_grow_with_what_it_has_done() {
    const TOKENS_MAX: usize = 10;
    let mut hosts = Hosts::with(2, TOKENS_MAX, Controls::default());
    let long = |number: u64| FileId::from(number.to_be_bytes());
    let (mut most, folder) = (0, FileId::from([200][..].to_vec()));
    for number in 0..300 {
        let (now, at) = (hosts.now + Span::from_millis(1), (number % 2) as usize);
        hosts.now = now;
        let wanted = if number % 3 == 0 { &folder } else { &long(number) };
        let need =
            Need { root: Root::File(wanted.clone()), mode: Mode::Exclusive, is_explicit: false };
        hosts.hosts[at].ask(now, AskId(number), vec![need]);
        while !hosts.admitted[at].contains(&number) {
            hosts.go_on();
        }
        if number % 3 == 0 {
            for made in 0..5 {
                hosts.hosts[at].born(&long(1_000 + number * 10 + made), &folder);
            }
        }
        hosts.hosts[at].ended(now, AskId(number));
        hosts.go_on();
        most = most.max(hosts.hosts[at].remembered());
    }
    hosts.settle();
    most = most.max(hosts.hosts[A].remembered());
    // Each host's tokens and what it has made, and the keys of both hosts.
    assert!(most < 8 * TOKENS_MAX, "{most} are remembered");
}

/// A host was shut out, starts again before the store hears of it, and is silent once more by then.
fn is_declared_of_a_later_life(controls: Controls) -> bool {
    let mut hosts = Hosts::with(2, 1_000, controls);
    hosts.ask(B, 1, &[change(9)]);
    hosts.end(B, 1);
    hosts.ask(A, 2, &[change(1)]);
    hosts.end(A, 2);
    let settings = settings(A, 1_000, controls);
    hosts.lose(A);
    hosts.hosts[A] = Host::new(settings);
    hosts.ask(B, 3, &[change(1)]);
    assert_eq!(hosts.fences, [HostId(A as u128)], "the silent one is shut out");
    // Of the second life the other host hears nothing, and it has ended.
    hosts.deaf = Some(B);
    let now = hosts.now;
    hosts.hosts[A].start(now);
    hosts.settle();
    assert_eq!(hosts.hosts[A].stage(), Stage::Online);
    hosts.lose(A);
    hosts.hosts[A] = Host::new(settings);
    let now = hosts.now;
    hosts.hosts[B].fence_ended(now, HostId(A as u128), true);
    while let Some(effect) = hosts.hosts[B].poll() {
        hosts.carry_out(B, effect);
    }
    let known = hosts.store.get(&Key::Host(HostId(A as u128))).map(|(value, _)| value.clone());
    known == Some(Value::Host { is_fenced: true })
}

#[test]
fn that_a_host_was_shut_out_is_not_said_of_a_later_life_of_it() {
    assert!(!is_declared_of_a_later_life(Controls::default()));
    assert!(is_declared_of_a_later_life(Controls { any_life: true, ..Controls::default() }));
}

/// A host that has stopped holds on to what it has, and asks for no lease any more.
#[test]
fn a_host_that_has_stopped_serves_nothing_and_is_shut_out_like_a_silent_one() {
    let mut hosts = Hosts::new(2);
    hosts.ask(B, 1, &[change(9)]);
    hosts.end(B, 1);
    hosts.ask(A, 2, &[change(1)]);
    let now = hosts.now;
    hosts.hosts[A].stop();
    assert!(!hosts.hosts[A].may_serve(now) && !hosts.hosts[A].may_change(now));
    let lease = hosts.store.lease_of(&Key::Session(HostId(A as u128))).expect("it had one");
    let events = hosts.store.end(lease);
    hosts.spread(&events);
    hosts.ask(B, 3, &[change(1)]);
    assert!(!hosts.admitted[B].contains(&3), "what it holds is waited for");
    assert_eq!(hosts.fences, [HostId(A as u128)]);
    let now = hosts.now;
    hosts.hosts[B].fence_ended(now, HostId(A as u128), true);
    hosts.settle();
    assert!(hosts.admitted[B].contains(&3));
    assert_eq!(hosts.hosts[A].stage(), Stage::Offline);
}

/// A silent host has a file that another one waits for; that one has what a third one wants. Returns whether the third one gets it.
fn is_kept_for_what_a_silent_host_has(silent: u8, wanted: u8) -> bool {
    let mut hosts = Hosts::new(3);
    // The one that comes second ends that the first has everything.
    hosts.ask(B, 1, &[change(9)]);
    hosts.end(B, 1);
    hosts.ask(A, 2, &[change(silent)]);
    hosts.end(A, 2);
    hosts.lose(A);
    hosts.hosts[A].stop();
    let read = |number| Need { mode: Mode::Read, ..change(number) };
    hosts.ask(B, 3, &[read(silent), read(wanted)]);
    assert!(!hosts.admitted[B].contains(&3), "what the silent one has is waited for");
    assert_eq!(hosts.fences, [HostId(A as u128)]);
    hosts.ask(C, 4, &[change(wanted)]);
    let is_kept = !hosts.admitted[C].contains(&4);
    if !is_kept {
        hosts.end(C, 4);
    }
    let now = hosts.now;
    hosts.hosts[B].fence_ended(now, HostId(A as u128), true);
    hosts.settle();
    hosts.end(B, 3);
    is_kept
}

#[test]
fn what_a_silent_host_has_is_waited_for_and_nothing_else() {
    let (first, second) = (1, 2);
    assert!(!is_kept_for_what_a_silent_host_has(first, second));
    assert!(!is_kept_for_what_a_silent_host_has(second, first));
}

/// A store that refuses each transaction is not asked for everything that it holds again and again.
#[test]
fn a_store_that_refuses_is_asked_ever_more_seldom_and_soon_again_once_it_answers() {
    let mut hosts = Hosts::new(2);
    hosts.ask(B, 1, &[change(9)]);
    hosts.end(B, 1);
    let loads = hosts.loads;
    hosts.is_in_doubt = true;
    hosts.ask(A, 2, &[change(1)]);
    let asked = hosts.loads - loads;
    assert!((5..15).contains(&asked), "{asked} times within 10 s");
    assert!(!hosts.admitted[A].contains(&2));
    hosts.is_in_doubt = false;
    hosts.settle();
    hosts.end(A, 2);
    // A single answer that is lost costs a moment.
    let loads = hosts.loads;
    hosts.is_in_doubt = true;
    let now = hosts.now;
    hosts.hosts[A].ask(now, AskId(3), vec![change(2)]);
    hosts.go_on();
    hosts.is_in_doubt = false;
    (0..10).for_each(|_| hosts.go_on());
    assert_eq!(hosts.loads, loads + 1);
    hosts.end(A, 3);
    // So does one now and then, also of a host that asks for nothing.
    for round in 0..6 {
        let now = hosts.now;
        hosts.hosts[A].unwatched(now);
        (0..10).for_each(|_| hosts.go_on());
        assert_eq!(hosts.loads, loads + 2 + round);
        hosts.settle();
    }
}

/// A host that leaves may hear of that before it is told that it has left.
#[test]
fn a_host_that_leaves_is_not_shut_out_by_itself() {
    let mut hosts = Hosts::new(2);
    hosts.ask(A, 1, &[change(1)]);
    hosts.end(A, 1);
    hosts.tells_early = true;
    let now = hosts.now;
    hosts.hosts[A].leave(now);
    hosts.settle();
    assert_eq!(hosts.hosts[A].stage(), Stage::Left);
    hosts.ask(B, 2, &[change(1)]);
    hosts.end(B, 2);
}

/// Two hosts want what a silent one has, and something that they can have: they do not take that from each other all the time, and
/// do not wait for each other once the silent one is shut out.
#[test]
fn hosts_that_wait_for_a_silent_one_leave_each_other_in_peace() {
    for (kept, free) in [(2, 1), (1, 2)] {
        let mut hosts = Hosts::new(3);
        // The one that comes second ends that the first has everything.
        hosts.ask(B, 1, &[change(9)]);
        hosts.end(B, 1);
        hosts.ask(A, 2, &[change(kept)]);
        hosts.end(A, 2);
        // One has what both want besides, and waits already when the other host falls silent.
        hosts.hosts[A].ask(hosts.now, AskId(3), vec![change(kept)]);
        hosts.ask(B, 4, &[change(kept), change(free)]);
        hosts.lose(A);
        hosts.hosts[A].stop();
        let waits = [change(kept), change(free)];
        hosts.ask(C, 5, &waits);
        hosts.ask(B, 6, &[change(free)]);
        hosts.end(B, 6);
        // It has the free one last, and the other host the first place for the other one.
        hosts.ask(C, 7, &[change(free)]);
        hosts.end(C, 7);
        assert!(hosts.fences.contains(&HostId(A as u128)), "they shut it out");
        let before = hosts.store.revision();
        hosts.settle();
        assert_eq!(hosts.store.revision(), before, "they wait");
        let now = hosts.now;
        hosts.hosts[C].fence_ended(now, HostId(A as u128), true);
        hosts.settle();
        let first = if hosts.admitted[B].contains(&4) { (B, 4) } else { (C, 5) };
        hosts.end(first.0, first.1);
        let second = if first.0 == B { (C, 5) } else { (B, 4) };
        hosts.end(second.0, second.1);
    }
}

/// A folder is moved with what lies in it; the host starts anew, and is told what it has written down.
#[test]
fn a_folder_takes_along_what_lies_in_it_and_is_given_up_with_it_after_a_start_too() {
    let (inner, folder, from, to) = (1, 2, 8, 9);
    let root = |number| Root::File(file(number));
    let mut hosts = Hosts::new(2);
    // The one that comes second ends that the first has everything.
    hosts.ask(B, 1, &[change(5)]);
    hosts.end(B, 1);
    hosts.ask(A, 2, &[change(from), change(to)]);
    hosts.hosts[A].born(&file(folder), &file(from));
    hosts.hosts[A].born(&file(inner), &file(folder));
    assert_eq!(hosts.hosts[A].way(&file(inner)), [root(folder), root(from)]);
    assert_eq!(hosts.hosts[A].way(&file(from)), [root(from)]);
    hosts.hosts[A].moved(&file(folder), &file(to));
    let ways = [inner, folder].map(|number| hosts.hosts[A].way(&file(number)));
    assert_eq!(ways, [vec![root(folder), root(to)], vec![root(to)]]);
    hosts.end(A, 2);
    hosts.lose(A);
    hosts.hosts[A] = Host::new(settings(A, 1_000, Controls::default()));
    let now = hosts.now;
    hosts.hosts[A].start(now);
    hosts.settle();
    for (number, way) in [inner, folder].into_iter().zip(ways) {
        if let Root::File(home) = &way[0] {
            hosts.hosts[A].born(&file(number), home);
        }
    }
    hosts.revoked.clear();
    hosts.ask(B, 3, &[change(to)]);
    assert_eq!(hosts.revoked, [(root(to), vec![file(inner), file(folder)])]);
}

/// A file is to get a further name elsewhere, and has a token of its own for that, when the token of its folder is given up.
#[test]
fn a_file_with_a_token_of_its_own_is_changed_while_that_of_its_folder_is_given_up() {
    let (inner, other, from, to) = (1, 2, 8, 9);
    let root = |number| Root::File(file(number));
    let mut hosts = Hosts::new(2);
    // The one that comes second ends that the first has everything.
    hosts.ask(B, 1, &[change(5)]);
    hosts.end(B, 1);
    hosts.ask(A, 2, &[change(from)]);
    hosts.hosts[A].born(&file(inner), &file(from));
    hosts.hosts[A].born(&file(other), &file(from));
    hosts.end(A, 2);
    let explicit = Need { is_explicit: true, ..change(inner) };
    assert!(!hosts.hosts[A].stays(&file(inner), &root(from)));
    hosts.ask(A, 3, &[explicit, change(to)]);
    assert!(hosts.admitted[A].contains(&3));
    hosts.drains_late = true;
    hosts.ask(B, 4, &[change(from)]);
    assert_eq!(hosts.revoked.last(), Some(&(root(from), vec![file(inner), file(other)])));
    let stays = [inner, other, from].map(|number| hosts.hosts[A].stays(&file(number), &root(from)));
    assert_eq!(stays, [true, false, false]);
    hosts.ask(A, 5, &[change(inner)]);
    hosts.ask(A, 6, &[change(other)]);
    assert!(hosts.admitted[A].contains(&5), "it is changed under its own token");
    assert!(!hosts.admitted[A].contains(&6), "what the folder covers alone waits");
    hosts.drains_late = false;
    let now = hosts.now;
    hosts.hosts[A].drained(now, &root(from));
    hosts.settle();
    assert!(hosts.admitted[B].contains(&4) && hosts.admitted[A].contains(&6));
    assert_eq!(hosts.hosts[A].cover(&file(inner)), Some(root(inner)));
}

/// What lies in a folder with a token of its own stays that one's.
#[test]
fn what_a_nearer_folder_covers_is_not_lost_with_the_one_in_which_that_was_made() {
    let (inner, folder, from) = (1, 2, 8);
    let root = |number| Root::File(file(number));
    let mut hosts = Hosts::new(2);
    // The one that comes second ends that the first has everything.
    hosts.ask(B, 1, &[change(5)]);
    hosts.end(B, 1);
    hosts.ask(A, 2, &[change(folder), change(from)]);
    hosts.hosts[A].born(&file(folder), &file(from));
    hosts.hosts[A].born(&file(inner), &file(folder));
    hosts.end(A, 2);
    assert!(hosts.hosts[A].stays(&file(inner), &root(from)));
    hosts.ask(B, 3, &[change(from)]);
    hosts.end(B, 3);
    assert_eq!(hosts.hosts[A].way(&file(inner)), [root(folder)]);
    assert_eq!(hosts.hosts[A].way(&file(folder)), [root(folder)]);
    hosts.ask(B, 4, &[change(folder)]);
    assert_eq!(hosts.revoked.last(), Some(&(root(folder), vec![file(inner)])));
    assert_eq!(hosts.hosts[A].cover(&file(inner)), None);
}
