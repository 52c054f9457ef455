//! `destage mount` end to end: the real binary, the suites that others wrote for file systems, everyday programs, real crashes.

#[path = "../e2e/harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tests of other front ends use the rest")]
mod harness;

#[path = "../block/applications.rs"]
#[allow(dead_code, reason = "the tests of `destage block` use the rest")]
mod applications;
mod baseline;
mod books;
mod cluster;
mod coherence;
mod commands;
mod crash;
mod ending;
mod etcd;
mod exercised;
mod mounted;
mod origin;
mod outages;
mod pjdfstest;
mod programs;
mod reused;
mod soak;
mod tap;
mod told;
mod traps;
mod xfstests;
