//! Conformance: one body of requests on the simulated and on the live arm. What depends on no clock must be counted alike.
//!
//! The live arm is `destage block serve` with one NBD client, before an origin that writes down what it is asked; the
//! simulated one is `destage sim run` on the same body, with the room that the live one says it has, and devices that take
//! no time. There is one client, no limit is reached, and a drain after every so many writes is waited for: so no count
//! depends on how fast the machine is.

use crate::harness::{Random, Scratch};
use crate::server::{Launch, Server, SlowDisk, destage, image, text};
use destage_block::nbd::client::Client;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

const BLOCK: u64 = 4096;
const VOLUME: u64 = 64 << 20;
/// Requests of a body.
const REQUESTS: usize = 1_600;
/// Longest request, blocks.
const BLOCKS_MAX: u64 = 32;
/// Writes from one drain to the next. The last drain leaves some behind.
const DRAIN_EVERY: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Read { first: u64, blocks: u64 },
    Write { first: u64, blocks: u64 },
    Flush,
}

/// Reads and writes, some places hotter than others, over more than the cache holds; now and then a flush.
fn body(seed: u64) -> Vec<Step> {
    let mut random = Random::new(seed, 1);
    let mut steps = Vec::new();
    while steps.len() < REQUESTS {
        let blocks = random.between(1, BLOCKS_MAX + 1);
        let region = if random.between(0, 3) == 0 { VOLUME / BLOCK } else { VOLUME / BLOCK / 8 };
        let first = random.between(0, region - BLOCKS_MAX);
        steps.push(match random.between(0, 100) {
            0..60 => Step::Read { first, blocks },
            60..95 => Step::Write { first, blocks },
            _ => Step::Flush,
        });
    }
    steps
}

/// What an arm counted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counts {
    hit_blocks: u64,
    miss_blocks: u64,
    evictions: u64,
    dirty_left: u64,
    destaged_blocks: u64,
    origin_read_blocks: u64,
    origin_written_blocks: u64,
}

impl Counts {
    fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("blocks read that were cached", self.hit_blocks),
            ("blocks read that were not", self.miss_blocks),
            ("clean blocks evicted", self.evictions),
            ("dirty blocks left", self.dirty_left),
            ("blocks destaged", self.destaged_blocks),
            ("blocks read at the origin", self.origin_read_blocks),
            ("blocks written at the origin", self.origin_written_blocks),
        ]
    }
}

/// A policy in the words of both arms.
struct Policy {
    name: &'static str,
    live: &'static [&'static str],
    simulated: &'static str,
}

const POLICIES: [Policy; 5] = [
    Policy {
        name: "write-through",
        live: &["--policy", "write-through"],
        simulated: "write-through",
    },
    Policy { name: "write-back", live: &["--policy", "write-back"], simulated: "write-back" },
    Policy { name: "ordered", live: &["--policy", "ordered"], simulated: "ordered" },
    Policy {
        name: "strict",
        live: &["--policy", "ordered", "--order", "strict"],
        simulated: "strict",
    },
    Policy { name: "journaled", live: &["--policy", "journaled"], simulated: "journaled" },
];

/// Destages nothing by itself, acknowledges nothing that the log does not hold.
const UNTIMED: [&str; 12] = [
    "--when",
    "pressure",
    "--staleness",
    "none",
    "-d",
    "0",
    "--log-size",
    "32M",
    "--dirty-limit",
    "8M",
    "--at-limit",
    "block",
];

/// What the origin was asked, by its own log: blocks read, blocks written.
fn asked(log: &Path) -> [u64; 2] {
    let mut sum = [0; 2];
    for line in std::fs::read_to_string(log).expect("the origin's log").lines() {
        let number = |name: &str| {
            let rest = line.split_once(name).expect("the request has it").1;
            let digits = rest.split(' ').next().expect("a word").trim_start_matches("0x");
            u64::from_str_radix(digits, 16).expect("a number")
        };
        if line.contains(" Read id=") {
            sum[0] += number(" count=") / BLOCK;
        } else if line.contains(" Write id=") {
            sum[1] += number(" count=") / BLOCK;
        }
    }
    sum
}

fn send(client: &Client, server: &Server, steps: &[Step]) {
    let mut buffer = vec![0; (BLOCKS_MAX * BLOCK) as usize];
    let mut writes = 0;
    for (number, &step) in steps.iter().enumerate() {
        match step {
            Step::Read { first, blocks } => {
                let buffer = &mut buffer[..(blocks * BLOCK) as usize];
                client.read(first * BLOCK, buffer).expect("a read");
            }
            Step::Write { first, blocks } => {
                let data = (number as u64 + 1).to_le_bytes().repeat((blocks * BLOCK / 8) as usize);
                client.write(first * BLOCK, &data, false).expect("a write");
                writes += 1;
                if writes % DRAIN_EVERY == 0 {
                    server.ask(&["drain"]);
                }
            }
            Step::Flush => client.flush().expect("a flush"),
        }
    }
}

/// What the server counted, and the room for clean blocks that it says it has.
fn live(policy: &Policy, steps: &[Step]) -> Option<(Counts, u64)> {
    let scratch = Scratch::new();
    let image = image(&scratch, VOLUME);
    let disk = SlowDisk::noting(&scratch, &image)?;
    let launch = Launch::before(&scratch, &disk.uri).redo_at(scratch.join("redo"));
    let server = launch.with(&UNTIMED).with(policy.live).start();
    let log = scratch.join("origin.log");
    let before = asked(&log);
    send(&server.client(), &server, steps);
    let status = server.status();
    let number = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).expect(pointer);
    let after = asked(&log);
    let [read_blocks, origin_written_blocks] = [0, 1].map(|index| after[index] - before[index]);
    // An atomic group holds what its blocks were before, so that a replay knows them: the simulator leaves that out.
    let read_before = number("/volumes/0/before_fetched_blocks_total");
    let counts = Counts {
        hit_blocks: number("/volumes/0/hit_blocks_total"),
        miss_blocks: number("/volumes/0/miss_blocks_total"),
        evictions: number("/cache/evictions_total"),
        dirty_left: number("/volumes/0/dirty_bytes") / BLOCK,
        destaged_blocks: number("/volumes/0/destaged_blocks_total"),
        origin_read_blocks: read_blocks - read_before,
        origin_written_blocks,
    };
    Some((counts, number("/policy/cache_bytes_max")))
}

/// The body as a trace.
fn trace(steps: &[Step]) -> String {
    let mut out = "op,offset_blocks,size_blocks\n".to_owned();
    for step in steps {
        let _ = match step {
            Step::Read { first, blocks } => writeln!(out, "R,{first},{blocks}"),
            Step::Write { first, blocks } => writeln!(out, "W,{first},{blocks}"),
            Step::Flush => writeln!(out, "F,0,0"),
        };
    }
    out
}

fn simulated(policy: &Policy, steps: &[Step], cache_bytes: u64) -> Counts {
    let scratch = Scratch::new();
    let (body, settings) = (scratch.join("body.csv"), scratch.join("settings.toml"));
    std::fs::write(&body, trace(steps)).expect("a file");
    let simulated = policy.simulated;
    let lines = format!(
        r#"
        drain-every = {DRAIN_EVERY}
        [arrivals]
        loop = "closed"
        threads = 1
        think = "1ms"
        [flash]
        size = "{cache_bytes}"
        policy = "{simulated}"
        replacement = "s3-fifo"
        when = "pressure"
        commit = "0"
        staleness = "none"
        at-limit = "block"
        dirty-apart = true
        persistent = true
        [devices]
        ram = "0"
        packet = "0"
        kilobyte = "0"
        flash = {{ merge-blocks = 0 }}
        filer = {{ merge-blocks = 0 }}
        "#
    );
    std::fs::write(&settings, lines).expect("a file");
    let mut run = destage();
    run.args(["sim", "run", "--output", "json", "--trace"]).arg(&body);
    let output = run.arg("--settings").arg(&settings).output().expect("the binary starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_u64).expect(pointer);
    let (read, hits) = (number("/reads/counts/blocks/all"), number("/reads/counts/blocks/hits"));
    Counts {
        hit_blocks: hits,
        miss_blocks: read - hits,
        evictions: number("/destage/evictions"),
        dirty_left: number("/destage/dirty_left"),
        destaged_blocks: number("/destage/destaged_blocks"),
        origin_read_blocks: number("/origin/read_blocks"),
        origin_written_blocks: number("/origin/write_blocks"),
    }
}

/// A table for people: every count of both arms.
fn table(rows: &[(&str, Counts, Counts)]) -> String {
    let mut out =
        format!("{:<16}{:<32}{:>10}{:>10}{:>8}\n", "policy", "count", "simulated", "live", "");
    for (name, simulated, live) in rows {
        for ((what, simulated), (_, live)) in simulated.named().into_iter().zip(live.named()) {
            let verdict = if simulated == live { "" } else { "DIFFERS" };
            let _ = writeln!(out, "{name:<16}{what:<32}{simulated:>10}{live:>10}{verdict:>8}");
        }
    }
    out
}

#[test]
fn one_body_is_counted_alike_on_the_simulated_and_the_live_arm() {
    let steps = body(1);
    let mut rows = Vec::new();
    for policy in &POLICIES {
        let Some((live, cache_bytes)) = live(policy, &steps) else { return };
        rows.push((policy.name, simulated(policy, &steps, cache_bytes), live));
    }
    let table = table(&rows);
    println!("{table}");
    for (name, simulated, live) in &rows {
        assert_eq!(simulated, live, "{name}\n{table}");
        assert!(live.evictions > 0 && live.hit_blocks > 0, "the body has all kinds: {name}");
        assert_eq!(live.dirty_left > 0, *name != "write-through", "{name}");
    }
    // The control: another policy is not counted alike, so that equality says something.
    let [through, back, ordered, ..] = &rows[..] else { unreachable!("five policies") };
    assert_ne!(through.1, back.2);
    assert!(
        ordered.2.destaged_blocks > back.2.destaged_blocks,
        "newer versions stand for older ones"
    );
}
