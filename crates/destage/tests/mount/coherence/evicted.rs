//! Hosts in front of a CephFS that shut a silent one out by themselves: they evict its client.

use super::{Hosts, kept, leave_behind, local};
use crate::cluster::Cluster;
use crate::etcd::{Etcd, How};
use crate::harness::server::signal;
use crate::harness::{PATIENCE, Scratch, eventually, seconds};
use crate::mounted::{Launch, destage};
use crate::origin::Origin;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::thread::{self, JoinHandle};

const LEASE: &str = "15s";

/// What is on its way to an origin while its client hangs.
fn on_its_way(file: &File, content: &'static [u8]) -> JoinHandle<io::Result<()>> {
    let mut file = file.try_clone().expect("it can be had twice");
    thread::spawn(move || file.write_all(content).and_then(|()| file.sync_all()))
}

#[test]
fn a_silent_host_is_evicted_and_what_it_still_sends_does_not_arrive() {
    let scratch = Scratch::for_at_most(seconds(900));
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some(cluster) = Cluster::with_mounts(2) else { return };
    let origins = [1, 2].map(|number| cluster.state.join(format!("mnt/{number}/shared")));
    let _origin = Origin::at(origins[0].clone());
    let conf = cluster.state.join("ceph.conf").display().to_string();
    let fence = ["--fence", "ceph", "--ceph-conf", &conf];
    let mut hosts = Hosts::start(&scratch, &origins, &etcd, LEASE, &fence);
    let [first, second] = [hosts.folders[0].clone(), hosts.folders[1].clone()];
    leave_behind(&first, &second);

    let client = fs::read_to_string(cluster.state.join("run/client.1.pid")).expect("it runs");
    let client = Pid::from_raw(client.trim().parse().expect("a number")).expect("a process");
    let tell = |what: Signal| kill_process(client, what).expect("it is there");
    // Not a file of the mounts: nobody's tokens say that it may not be written.
    let late = File::create(origins[0].join("late")).expect("a file can be made");
    let seen = || fs::read(origins[1].join("late")).expect("it is there");
    // The control: of a client that only hangs it arrives.
    tell(Signal::STOP);
    let writes = on_its_way(&late, b"control");
    tell(Signal::CONT);
    writes.join().expect("it ends").expect("it is written");
    assert_eq!(seen(), b"control");

    signal(hosts.process(0), Signal::STOP);
    assert_eq!(fs::read(second.join("taken")).expect("the other one goes on"), b"before");
    fs::write(second.join("taken"), "after!").expect("it may change it");
    assert!(hosts.said(1).contains("of CephFS is evicted"), "{}", hosts.said(1));
    assert!(!hosts.said(1).contains("its lock is free"), "{}", hosts.said(1));
    let writes = on_its_way(&late, b"too late");
    signal(hosts.process(0), Signal::CONT);
    writes.join().expect("it ends").expect_err("it is refused");
    assert_eq!(seen(), b"control");
    let code = hosts.mounted[0].as_mut().expect("it runs").ended();
    assert!(matches!(code, Some(10 | 11)), "{code:?} {}", hosts.said(0));

    // Its disk in another host, or its own again: what nobody has had since goes to the origin.
    cluster.tell("kill client.1");
    cluster.tell("start");
    let mut replay = destage();
    replay.args(["mount", "replay"]).arg(&origins[0]);
    replay.arg("--journal").arg(hosts.launches[0].journal());
    replay.args(["--tokens", &etcd.url(), "--token-lease", LEASE]).args(fence);
    let replayed = replay.output().expect("the binary starts");
    assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));
    assert_eq!(fs::read(second.join("taken")).expect("it is there"), b"after!");
    assert_eq!(fs::read(second.join("kept")).expect("it is there"), b"behind");
    assert_eq!(kept(&origins[1]), [b"behind"], "what was acknowledged is not discarded");
    hosts.mounted[0] = None;
    hosts.stop();
}

/// What an eviction lacks is told while it is not needed yet; and later for as long as it is.
#[test]
fn a_fence_that_cannot_work_is_refused_and_one_that_does_not_is_shown() {
    let scratch = Scratch::for_at_most(seconds(600));
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_local, folders)) = local(&scratch, 1) else { return };
    let refused = |name: &str, origin: &PathBuf, fence: &[&str]| {
        let url = etcd.url();
        let more = [&["--tokens", &url, "--token-lease", LEASE], fence].concat();
        Launch::before_folder(&scratch.join(name), origin).with(&more).refused()
    };
    let (code, text) = refused("local", &folders[0], &["--fence", "ceph"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("use --fence-command"), "{text}");

    let Some(cluster) = Cluster::with_mounts(1) else { return };
    let shared = cluster.state.join("mnt/1/shared");
    let _origin = Origin::at(shared.clone());
    let absent = scratch.join("absent.conf").display().to_string();
    let (code, text) = refused("elsewhere", &shared, &["--fence", "ceph", "--ceph-conf", &absent]);
    assert_eq!(code, 10, "{text}");
    assert!(text.contains("--fence ceph does not work here: 'ceph fsid' failed"), "{text}");

    // Both by one client: evicting it would end both.
    let conf = cluster.state.join("ceph.conf").display().to_string();
    let fence = ["--fence", "ceph", "--ceph-conf", &conf];
    let hosts = Hosts::start(&scratch, &[shared.clone(), shared.clone()], &etcd, LEASE, &fence);
    fs::write(hosts.folders[0].join("file"), "content").expect("a file can be made");
    assert_eq!(fs::read(hosts.folders[1].join("file")).expect("it is there"), b"content");
    fs::write(hosts.folders[0].join("file"), "changed").expect("it can be changed");
    signal(hosts.process(0), Signal::STOP);
    let file = hosts.folders[1].join("file");
    // It waits until the other one goes on.
    let reader = thread::spawn(move || fs::read(file));
    let status = || {
        let output = hosts.mounted[1].as_ref().expect("it runs").ask(&["status"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    eventually("the status shows it", PATIENCE * 2, || status().contains("the same mount"));
    let told = || hosts.said(1).matches("the same mount").count();
    let before = told();
    eventually("the log repeats it", PATIENCE * 2, || told() > before);
    signal(hosts.process(0), Signal::CONT);
    assert_eq!(reader.join().expect("it ends").expect("it is read"), b"changed");
    eventually("the status shows it no more", PATIENCE * 2, || {
        !status().contains("the same mount")
    });
    hosts.stop();
}

/// Whoever names both wants something that is not offered.
#[test]
fn a_silent_host_is_shut_out_in_one_way() {
    let mut both: Command = destage();
    both.args(["mount", "a", "b", "--journal", "c", "--tokens", "etcd://h:1"]);
    both.args(["--fence", "ceph", "--fence-command", "true"]);
    let output = both.output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--fence-command"));
}
