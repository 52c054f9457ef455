//! Courses of events that neither the seeds nor the search meet, as requests of theirs need one file each.

use destage_core::{Span, Time};
use destage_tokens::{
    AskId, Controls, Effect, FileId, Host, HostId, Kept, LeaseId, Mode, Need, Root, Settings,
    Stage, Store,
};
use std::collections::BTreeSet;

const A: usize = 0;
const B: usize = 1;

/// Hosts at a store that answers at once, and an origin that takes everything at once.
struct Hosts {
    hosts: Vec<Host>,
    store: Store,
    admitted: Vec<BTreeSet<u64>>,
    now: Time,
    leases: u64,
}

fn file(number: u8) -> FileId {
    [number][..].into()
}

fn change(number: u8) -> Need {
    Need { root: Root::File(file(number)), mode: Mode::Exclusive, is_explicit: false }
}

impl Hosts {
    fn new(count: usize) -> Self {
        let settings = |host| Settings {
            host: HostId(host as u128),
            lease: Span::from_secs(15),
            margin: Span::from_secs(2),
            renew_every: Span::from_secs(3),
            retry_after: Span::from_millis(100),
            tokens_max: 1_000,
            controls: Controls::default(),
        };
        let mut all = Self {
            hosts: (0..count).map(|host| Host::new(settings(host))).collect(),
            store: Store::default(),
            admitted: vec![BTreeSet::new(); count],
            now: Time::from_secs(100),
            leases: 0,
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
            self.now = self.now + Span::from_millis(20);
            for host in 0..self.hosts.len() {
                self.hosts[host].tick(self.now);
                while let Some(effect) = self.hosts[host].poll() {
                    self.carry_out(host, effect);
                }
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
                let all = self.store.all();
                self.hosts[at].loaded(now, Some(all));
            }
            Effect::Txn(txn) => {
                let (reply, events) = self.store.txn(&txn);
                self.hosts[at].replied(now, Some(reply));
                for event in events {
                    self.hosts.iter_mut().for_each(|host| host.event(now, event.clone()));
                }
            }
            Effect::Admit(ask) => {
                self.admitted[at].insert(ask.0);
            }
            Effect::Revoke { root, .. } => self.hosts[at].drained(now, &root),
            Effect::Entered => self.hosts[at].recovered(now),
            Effect::Fence(_) | Effect::Fenced | Effect::Left => {
                panic!("{effect:?}: nobody is silent")
            }
        }
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
