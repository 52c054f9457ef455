//! What is behind the mount fails: an OSD, or the `ceph-fuse` that has mounted the origin, and the daemon with it.

use crate::cluster::Cluster;
use crate::crash::Loaded;
use crate::harness::{Random, Scratch, eventually, millis, seconds};
use crate::mounted::{Launch, Mounted, Unmounting, is_mounted};
use crate::origin::Origin;
use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

/// What fails.
#[derive(Clone, Copy, Debug)]
enum Outage {
    /// An OSD is killed; the daemon goes on for a while, and is killed before the OSD is back.
    Osd,
    /// The origin's own `ceph-fuse` is killed, and is mounted again. The daemon cannot go on.
    CephFuse,
}

impl Outage {
    fn disturb(self, cluster: &Cluster, mounted: &Mounted, random: &mut Random) {
        match self {
            Self::Osd => {
                cluster.tell("kill osd.0");
                thread::sleep(millis(random.between(100, 900)));
                mounted.cut();
            }
            Self::CephFuse => {
                cluster.tell("kill client.1");
                thread::sleep(millis(random.between(0, 500)));
                mounted.cut();
                cluster.tell("evict");
            }
        }
        cluster.tell("start");
    }
}

/// Rounds of an outage under load, on one CephFS; so many operations were answered in all.
fn rounds(cluster: &Cluster, outage: Outage, seed: u64, count: u64) -> Result<u64, String> {
    let scratch = Scratch::for_at_most(seconds(900));
    let origin = Origin::at(cluster.state.join(format!("mnt/1/{outage:?}{seed}")));
    let mut loaded = Loaded::new(Launch::before(&scratch, &origin), seed);
    let mut random = Random::new(seed, 3);
    let mut answered = 0;
    for _ in 0..count {
        answered += loaded.work(|mounted| outage.disturb(cluster, mounted, &mut random))?;
        loaded.start();
        loaded.check()?;
    }
    loaded.finish(&origin)?;
    Ok(answered)
}

/// A soak's round: a CephFS of its own, and some of each.
pub(crate) fn round(seed: u64) -> Option<Result<u64, String>> {
    let cluster = Cluster::new()?;
    let run = |outage| rounds(&cluster, outage, seed, 3);
    let both = run(Outage::Osd).and_then(|sum| Ok(sum + run(Outage::CephFuse)?));
    Some(both.map_err(|what| format!("outages, seed {seed}: {what}")))
}

#[test]
fn what_was_fsynced_survives_kills_of_an_osd_and_of_ceph_fuse() {
    let Some(cluster) = Cluster::new() else { return };
    for outage in [Outage::Osd, Outage::CephFuse] {
        rounds(&cluster, outage, 1, 2).unwrap_or_else(|what| panic!("{outage:?}: {what}"));
    }
}

/// A mount in front of this cluster's CephFS, with what was made durable in it; the daemon is told nothing.
fn with_durable(cluster: &Cluster, scratch: &Scratch, name: &str) -> (Origin, Launch, Mounted) {
    let origin = Origin::at(cluster.state.join("mnt/1").join(name));
    let launch = Launch::before(scratch, &origin);
    let mounted = launch.start();
    let path = mounted.folder().join("file");
    let mut file = File::create(&path).expect("it is made");
    file.write_all(b"durable").and_then(|()| file.sync_all()).expect("it is made durable");
    (origin, launch, mounted)
}

/// A `ceph-fuse` that was evicted is so for good: the mount does not go on trying, says what to do and ends, and what was
/// acknowledged arrives once the origin is mounted again.
#[test]
fn trap_28_an_origin_that_is_evicted_ends_the_mount_and_loses_nothing() {
    let Some(cluster) = Cluster::new() else { return };
    let scratch = Scratch::for_at_most(seconds(300));
    let (origin, launch, mut mounted) = with_durable(&cluster, &scratch, "evicted");
    let _unmounting = Unmounting(mounted.folder().to_owned());
    cluster.tell("evict");
    let code = mounted.ended();
    let said = mounted.said();
    assert_eq!(code, Some(10), "{said}");
    assert!(said.contains("is not mounted any more: mount it again"), "{said}");
    drop(mounted);
    cluster.tell("kill client.1");
    cluster.tell("start");
    let mounted = launch.start();
    let path = mounted.folder().join("file");
    assert_eq!(fs::read(&path).expect("it is there"), b"durable");
    mounted.stop();
    assert_eq!(fs::read(origin.folder().join("file")).expect("it has arrived"), b"durable");
}

/// An origin whose own mount has a page cache is told of: other hosts' writes are not seen by it.
#[test]
fn trap_26_an_origin_with_pages_in_the_kernel_is_told_of() {
    let Some(cluster) = Cluster::new() else { return };
    let scratch = Scratch::for_at_most(seconds(300));
    let cached = scratch.join("cached");
    fs::create_dir(&cached).expect("a folder can be made");
    let mut fuse = Command::new("ceph-fuse");
    fuse.arg("-f").arg("-c").arg(cluster.state.join("ceph.conf")).args(["--id", "admin"]);
    fuse.args(["--pid-file=", "--fuse_disable_pagecache=false", "-o", "dev,suid"]).arg(&cached);
    let null = || Stdio::null();
    let mut fuse = fuse.stdin(null()).stdout(null()).stderr(null()).spawn().expect("it starts");
    let _unmounting = Unmounting(cached.clone());
    eventually("it is mounted", seconds(60), || is_mounted(&cached));
    let folder = cluster.state.join("mnt/1");
    for (place, is_told) in [(cached.join("with"), true), (folder.join("without"), false)] {
        let origin = Origin::at(place);
        let launch =
            Launch::before(&scratch, &origin).journaled_in(scratch.join(format!("{is_told}")));
        let mounted = launch.start();
        let _unmounting = Unmounting(mounted.folder().to_owned());
        let status = mounted.ask(&["status"]);
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        let text = "keeps pages of its files in the kernel";
        assert_eq!(status.contains(text), is_told, "{status}");
        mounted.stop();
    }
    fuse.kill().expect("it is our child");
    fuse.wait().expect("it is our child");
}
