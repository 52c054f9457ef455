//! What the papers say, and how far a reproduction may be from it. The only place where tolerances stand.

use std::fmt;

/// A number of a figure, as the paper has it.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The figure's name.
    pub figure: &'static str,
    /// What the number is.
    pub what: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The paper's value and what is tolerated.
    pub theirs: Bound,
}

/// A value of a paper with its tolerance, or what its text says of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// A value, and by how many percent it may be missed.
    Near(f64, f64),
    /// Two values.
    Between(f64, f64),
    /// At most so much.
    AtMost(f64),
    /// At least so much.
    AtLeast(f64),
    /// What the paper says is not reached, for a reason in `docs/SIMULATION.md`: its value as a least, and what is known to come
    /// out instead, by how many percent it may change.
    Apart(f64, f64, f64),
}

impl Bound {
    /// Whether a measured value keeps the bound.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::Near(theirs, percent) => (value - theirs).abs() <= theirs * percent / 100.0,
            Self::Between(low, high) => (low..=high).contains(&value),
            Self::AtMost(high) => value <= high,
            Self::AtLeast(low) => value >= low,
            Self::Apart(_, ours, percent) => Self::Near(ours, percent).holds(value),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Near(theirs, percent) => write!(f, "{theirs} (+-{percent} %)"),
            Self::Between(low, high) => write!(f, "{low} to {high}"),
            Self::AtMost(high) => write!(f, "at most {high}"),
            Self::AtLeast(low) => write!(f, "at least {low}"),
            Self::Apart(theirs, ours, percent) => {
                write!(f, "at least {theirs}: not reached, known as {ours} (+-{percent} %)")
            }
        }
    }
}

const fn row(
    figure: &'static str,
    what: &'static str,
    unit: &'static str,
    theirs: Bound,
) -> Expected {
    Expected { figure, what, unit, theirs }
}

use Bound::{Apart, AtLeast, AtMost, Between, Near};

/// Mogul, "A better update policy", USENIX Summer 1994; see `docs/SIMULATION.md` for what its text leaves open.
pub(super) const ALL: &[Expected] = &[
    row("table-2-1", "1983", "s", Near(7.2, 5.0)),
    // The paper prints 26 s, its own figures (1638 buffers of 15 ms) give 24.6 s.
    row("table-2-1", "1993", "s", Near(26.0, 8.0)),
    row("table-2-1", "2003", "s", Near(39.0, 5.0)),
    // Printed with one digit.
    row("table-2-2", "1983", "s", Near(0.1, 10.0)),
    row("table-2-2", "1993", "s", Near(1.2, 5.0)),
    row("table-2-2", "2003", "s", Near(13.6, 5.0)),
    row("figure-4-1", "async writes, reads/s", "1/s", Near(32.0, 15.0)),
    row("figure-4-1", "PU, reads/s", "1/s", Near(38.0, 15.0)),
    row("figure-4-1", "AIPU, reads/s", "1/s", Near(38.0, 15.0)),
    row("figure-4-1", "sd PU / sd AIPU", "", AtLeast(3.0)),
    row("figure-4-1", "mean AIPU / mean PU", "", Between(0.85, 1.15)),
    row("figure-4-1", "mean PU / mean async writes", "", AtMost(1.0)),
    row("figure-4-2", "sd PU / sd AIPU", "", AtLeast(3.0)),
    row("figure-4-2", "mean AIPU / mean PU", "", Between(0.85, 1.15)),
    row("figure-4-2", "mean PU / mean async writes", "", AtMost(1.0)),
    // "Some reads will be delayed by up to 8 or 9 seconds", at six trials.
    row("figure-4-3", "PU, longest read", "s", Between(8.0, 9.5)),
    // "A significant number": at most one per burst, of which there are about fifty, since the reader waits for each read.
    row("figure-4-3", "PU, reads longer than 1 s, of 60,000", "", AtLeast(40.0)),
    row("figure-4-3", "AIPU, longest read", "s", AtMost(0.75)),
    row("figure-4-3", "AIPU, reads longer than 0.45 s, of 60,000", "", AtMost(10.0)),
    row("figure-4-3", "AIPU, longest wait behind a usual burst", "s", Near(0.3, 20.0)),
    row("figure-4-4", "PU, longest read / AIPU, longest read", "", AtLeast(5.0)),
    row("dirty-age", "PU, every 30 s", "s", Near(15.0, 5.0)),
    row("dirty-age", "AIPU-1, 30 s old, every 1 s", "s", Near(30.0, 5.0)),
    row("dirty-age", "AIPU-30, 30 s old, every 30 s", "s", Near(45.0, 5.0)),
    // Tables 4-2 and 4-3, figure 4-7. The load was fitted to the writes, the waits, the time under PU and the bursts of PU; it is
    // one and the same for all policies. The other rows follow.
    row("table-4-2", "async writes, PU: elapsed", "s", Near(3_280.0, 5.0)),
    row("table-4-2", "async writes, PU: writes", "", Near(40_548.0, 12.0)),
    row("table-4-2", "async writes: writes AIPU / PU", "", Near(0.934, 6.0)),
    row("table-4-2", "delayed writes: writes AIPU / PU", "", Near(0.824, 6.0)),
    row("table-4-2", "PU: writes delayed / async", "", Near(0.777, 6.0)),
    row("table-4-2", "AIPU: writes delayed / async", "", Near(0.686, 8.0)),
    row("table-4-2", "writes delayed, AIPU / async, PU", "", Near(0.640, 8.0)),
    // Ours gains twice as much: see the documentation.
    row("table-4-2", "async writes: elapsed AIPU / PU", "", Near(0.986, 4.0)),
    row("table-4-2", "delayed writes: elapsed AIPU / PU", "", Near(0.972, 4.0)),
    row("table-4-2", "PU: elapsed delayed / async", "", Near(1.005, 2.0)),
    row("table-4-3", "async writes, PU: blocks written by the update", "", Near(9_531.0, 15.0)),
    row("table-4-3", "delayed writes, PU: blocks written by the update", "", Near(16_749.0, 20.0)),
    row("table-4-3", "async writes: written AIPU-1 / PU", "", Near(0.564, 12.0)),
    row("table-4-3", "delayed writes: written AIPU-1 / PU", "", Near(0.598, 18.0)),
    row("table-4-3", "async writes: written AIPU-30 / AIPU-1", "", Near(0.980, 4.0)),
    row("table-4-3", "delayed writes: written AIPU-30 / AIPU-1", "", Near(0.950, 6.0)),
    row("table-4-3", "PU: looks for each block written", "", Near(1.0, 1.0)),
    row("table-4-3", "async writes, AIPU-1: looks for each block written", "", Near(54.0, 30.0)),
    row("table-4-3", "delayed writes, AIPU-1: looks for each block written", "", Near(50.7, 25.0)),
    row("table-4-3", "async writes, AIPU-30: looks for each block written", "", Near(2.77, 25.0)),
    row("table-4-3", "delayed writes, AIPU-30: looks for each block written", "", Near(2.72, 20.0)),
    // "Roughly the same": 7,000 more hits, printed in thousands, and 5,557 fewer writes.
    row(
        "table-4-3",
        "delayed writes: more hits / fewer writes, AIPU-1 against PU",
        "",
        Near(1.26, 25.0),
    ),
    row("figure-4-7", "AIPU-1, blocks in bursts of 40 or fewer", "%", AtLeast(95.0)),
    row("figure-4-7", "AIPU-1, largest burst", "", AtMost(104.0)),
    row("figure-4-7", "PU, blocks in bursts of more than 62", "%", AtLeast(95.0)),
    row("figure-4-7", "PU, blocks in bursts of more than 182", "%", Between(30.0, 55.0)),
    row("figure-4-7", "PU, largest burst", "", Near(344.0, 30.0)),
    // 344 / 104.
    row("figure-4-7", "largest burst PU / AIPU-1", "", AtLeast(3.0)),
    // Carson and Setia as Mogul cites them: "the cache must eliminate 80-90 % of all write accesses before the PU policy pays
    // off"; under heavy loads it pays off earlier, and where WT would saturate the disk it is far better.
    row("break-even", "lowest, by formula", "", Near(0.8, 3.0)),
    row("break-even", "highest, by formula", "", Near(0.9, 3.0)),
    row("break-even", "lowest, simulated", "", Near(0.8, 8.0)),
    row("break-even", "highest, simulated", "", Near(0.9, 4.0)),
    row("break-even", "simulated against formula, farthest", "", AtMost(0.04)),
    row("break-even", "reads 0.5, writes 0.45, by formula", "", AtMost(0.78)),
    row(
        "break-even",
        "reads 0.4, writes 0.7, 0.8 hit: mean read PU / WT, simulated",
        "",
        AtMost(0.2),
    ),
    // "IPU never gives worse mean read response time than WT or PU, although in some situations it may perform worse than PURP."
    row("ipu-best", "IPU / WT, worst, by formula", "", AtMost(1.0)),
    row("ipu-best", "IPU / PU, worst, by formula", "", AtMost(1.0)),
    row("ipu-best", "PURP / IPU, worst, by formula", "", AtMost(1.0)),
    row("ipu-best", "IPU / WT, worst, simulated", "", AtMost(1.0)),
    row("ipu-best", "IPU / PU, worst, simulated", "", AtMost(1.0)),
    row("ipu-best", "PURP / IPU, worst, simulated", "", AtMost(1.05)),
    row("ipu-best", "simulated against formula, farthest", "%", AtMost(12.0)),
    // Not measured by the paper, which expects that read priority helps reads, that reads without end starve writes, and that
    // IPU could outperform PU even so.
    row("purp", "PU, longest read", "s", Between(8.0, 9.5)),
    row("purp", "PU + RP, longest read", "s", AtMost(0.1)),
    row("purp", "PU + RP / PU, longest wait of a write", "", AtLeast(1.5)),
    row("purp", "PU + RP, bound 5 s, longest read", "s", AtLeast(5.0)),
    row("purp", "PU, --read-priority / PU, longest read", "", AtLeast(0.9)),
    row("purp", "PU, in turn, longest read", "s", AtMost(0.2)),
    row("purp", "IPU, longest read", "s", AtMost(0.75)),
    row("purp", "IPU + RP, bound 5 s, longest read", "s", AtMost(0.1)),
    row("purp", "IPU + RP, bound 5 s, longest wait of a write", "s", AtMost(2.0)),
    row("purp", "IPU + RP / IPU, mean read", "", Between(0.9, 1.1)),
    row("purp", "busy disk: PU + RP, writes that arrive", "%", AtMost(1.0)),
    row("purp", "busy disk: IPU + RP, writes that arrive", "%", AtMost(1.0)),
    row("purp", "busy disk: IPU + RP, dirty blocks, of 1,228 buffers", "", AtLeast(1_228.0)),
    row("purp", "busy disk: PU + RP, bound 5 s, longest read", "s", AtLeast(5.0)),
    row("purp", "busy disk: IPU + RP, bound 5 s, longest read", "s", AtMost(0.75)),
    row("purp", "busy disk: IPU + RP, bound 5 s, oldest dirty block", "s", AtMost(37.0)),
    row("purp", "busy disk: IPU, --read-priority, D 60 s, oldest dirty block", "s", AtMost(60.0)),
    row("purp", "busy disk: IPU, --read-priority, D 60 s, longest read", "s", AtLeast(5.0)),
    row("purp", "busy disk: IPU, in turn, longest read", "s", AtMost(0.3)),
    row("purp", "busy disk: IPU, in turn, writes that arrive", "%", Between(30.0, 80.0)),
    // What the trace itself measured. The waits under other disciplines are there to be told apart from it.
    row("hp-trace", "choices that C-SCAN by cylinder explains", "%", AtLeast(94.0)),
    row("hp-trace", "choices that first come, first served explains", "%", AtMost(30.0)),
    row("hp-trace", "choices that reads first, then C-SCAN explains", "%", AtMost(93.0)),
    row("hp-trace", "C-SCAN, open loop: wait of all", "ms", Near(91.6, 4.0)),
    // Not matched: where reads follow from reads, an open loop sends them while the head is elsewhere.
    row("hp-trace", "C-SCAN, open loop: wait of reads", "ms", AtLeast(8.6)),
    row("hp-trace", "C-SCAN: wait of reads", "ms", Near(8.6, 5.0)),
    row("hp-trace", "C-SCAN: wait of synchronous writes", "ms", Near(4.0, 5.0)),
    row("hp-trace", "C-SCAN: wait of asynchronous writes", "ms", Near(239.0, 15.0)),
    row("hp-trace", "C-SCAN: wait of all", "ms", Near(91.6, 15.0)),
    row("hp-trace", "first come, first served: wait of asynchronous writes", "ms", AtMost(210.0)),
    row("hp-trace", "first come, first served: wait of all", "ms", AtMost(80.0)),
    row("hp-trace", "reads first: wait of reads", "ms", AtMost(7.0)),
    row("hp-trace", "reads first: wait of asynchronous writes", "ms", AtLeast(290.0)),
    row("hp-trace", "by geometry: service of reads", "ms", Near(27.4, 12.0)),
    row("hp-trace", "by geometry: service of writes", "ms", Near(24.1, 5.0)),
    row("hp-trace", "by geometry: wait of reads", "ms", Near(8.6, 30.0)),
    row("hp-trace", "by geometry: wait of asynchronous writes", "ms", Near(239.0, 30.0)),
    row("hp-trace", "by geometry: wait of all", "ms", Near(91.6, 30.0)),
    // Koller and others, "Write policies for host-side flash caches", FAST 2013. Its figures are drawings without numbers:
    // what their text says of them is checked. "10 % to 8x for ordered write-back and 50 % to 10x for journaled write-back".
    row("host-12", "file server: ordered / write-through", "", Between(1.1, 9.0)),
    // Not matched: the journal holds few of its files. With a larger one it is as they say, below.
    row("host-12", "file server: journaled / write-through", "", AtLeast(1.05)),
    row("host-12", "PostMark: ordered / write-through", "", Between(1.1, 9.0)),
    row("host-12", "PostMark: journaled / write-through", "", Between(1.5, 11.0)),
    row("host-12", "TPC-C: ordered / write-through", "", Between(1.1, 9.0)),
    row("host-12", "TPC-C: journaled / write-through", "", Between(1.5, 11.0)),
    row("host-12", "TPC-C: write-back / write-through", "", Between(2.0, 4.5)),
    row("host-12", "YCSB-A: ordered / write-through", "", Between(1.1, 9.0)),
    row("host-12", "YCSB-A: journaled / write-through", "", Between(1.5, 11.0)),
    row("host-12", "YCSB-B: ordered / write-through", "", Between(1.1, 9.0)),
    // Not matched: with 5 % of writes a cache that writes nothing at all gains but half.
    row("host-12", "YCSB-B: journaled / write-through", "", AtLeast(1.05)),
    row("host-12", "YCSB-F: ordered / write-through", "", Between(1.1, 9.0)),
    row("host-12", "YCSB-F: journaled / write-through", "", Between(1.5, 11.0)),
    row(
        "host-12",
        "file server, a journal four times as large: journaled / write-through",
        "",
        Between(1.5, 11.0),
    ),
    // "Ordered write-back performs the best, even surpassing both conventional and journaled write-back": here it is on a
    // par with the latter.
    row("host-12", "YCSB-F: ordered / write-back on demand", "", AtLeast(1.0)),
    row("host-12", "YCSB-F: ordered / journaled", "", Between(0.9, 2.0)),
    // Not in the paper, which does not say how many terminals it has.
    row("host-12", "TPC-C, 16 terminals: write-back / write-through", "", AtLeast(1.5)),
    row("host-12", "TPC-C, 16 terminals: ordered / write-through", "", AtLeast(0.9)),
    row("host-12", "file server: write-back / write-through", "", AtLeast(1.1)),
    row("host-12", "PostMark: write-back / write-through", "", AtLeast(1.1)),
    row("host-12", "YCSB-A: write-back / write-through", "", AtLeast(1.1)),
    row("host-12", "YCSB-B: write-back / write-through", "", AtLeast(1.1)),
    row("host-12", "YCSB-F: write-back / write-through", "", AtLeast(1.1)),
    // The paper has no figure of a mail server.
    row("host-12", "mail server: write-back / write-through", "", AtLeast(1.1)),
    row("host-12", "mail server: ordered / write-through", "", AtLeast(0.5)),
    row("host-12", "mail server: journaled / write-through", "", AtLeast(1.1)),
    // "Less than 1.5 GB [...] write-through and journaled write-back perform significantly better than the other two".
    row("host-13", "0.5 GB: write-through / write-back on demand", "", AtLeast(1.03)),
    row("host-13", "0.5 GB: journaled / write-back on demand", "", AtLeast(1.1)),
    row("host-13", "1 GB: journaled / write-back on demand", "", AtLeast(1.03)),
    // "Greater than 1.5 GB [...] all three write-back policies perform better than write-through".
    row("host-13", "1.5 GB: write-back on demand / write-through", "", AtLeast(1.0)),
    row("host-13", "2 GB: write-back on demand / write-through", "", AtLeast(1.0)),
    row("host-13", "2 GB: ordered / write-through", "", AtLeast(1.0)),
    row("host-13", "2.5 GB: write-back on demand / write-through", "", AtLeast(1.0)),
    row("host-13", "2.5 GB: ordered / write-through", "", AtLeast(1.0)),
    row("host-13", "2 GB: journaled, groups taken whole / write-through", "", AtLeast(1.0)),
    row("host-13", "2.5 GB: journaled, groups taken whole / write-through", "", AtLeast(1.0)),
    // The copy of each group in the redo store costs a part of that.
    row("host-13", "2 GB: journaled / write-through", "", AtLeast(0.95)),
    row("host-13", "2.5 GB: journaled / write-through", "", AtLeast(0.95)),
    // 800 operations a second compared to 1,000.
    row("host-13", "2.5 GB: ordered / write-back on demand", "", Between(0.65, 1.1)),
    row("host-13", "2.5 GB: strict / write-back on demand", "", Near(0.8, 20.0)),
    // Not matched: there ordered write-back is below write-through as well. What decides is how many writes no order is
    // known of.
    row("host-13", "0.5 GB: ordered / write-through", "", AtLeast(1.0)),
    row("host-13", "0.5 GB, 16 threads: strict / write-through", "", AtMost(1.0)),
    // Not in the paper, whose write-back destages only on demand.
    row("host-13", "0.5 GB: write-back in batches / on demand", "", AtLeast(1.2)),
    // "Write-through has the highest write volume"; "more write traffic in the case of ordered write-back".
    row(
        "host-13",
        "2.5 GB: blocks at the disks for each written, write-through",
        "",
        Near(1.0, 1.0),
    ),
    row("host-13", "2.5 GB: the same, write-back on demand", "", AtMost(0.8)),
    row("host-13", "2.5 GB: the same, ordered", "", Near(1.0, 5.0)),
    // Not matched: a group goes to the redo store first. On storage that takes it whole, as the paper's does, it is as they
    // say.
    row("host-13", "2.5 GB: the same, journaled, redo store included", "", Near(2.0, 10.0)),
    row("host-13", "2.5 GB: the same, journaled, groups taken whole", "", Near(1.0, 5.0)),
    // "For small cache sizes, most cache writes induce write-allocation"; of ordered write-back "all writes".
    row("host-13", "0.5 GB: write allocations, write-back on demand", "", AtLeast(0.5)),
    row("host-13", "2.5 GB: write allocations, write-back on demand", "", AtMost(0.1)),
    row("host-13", "0.5 GB: write allocations, ordered", "", AtLeast(0.9)),
    // Not matched: a block that is clean is overwritten in its place.
    row("host-13", "2.5 GB: write allocations, ordered", "", Between(0.5, 1.0)),
    // "Performance can be tuned to span a significant portion of the range between write-through and write-back".
    row("host-14", "25 MB: journaled / write-through", "", AtLeast(0.95)),
    row("host-14", "100 MB: journaled / write-through", "", Between(1.5, 11.0)),
    row("host-14", "500 MB: journaled / write-through", "", Between(1.5, 11.0)),
    row("host-14", "25 MB: journaled / write-back on demand", "", AtMost(0.9)),
    // "Approaching, and in some cases, exceeding conventional write-back performance".
    row("host-14", "500 MB: journaled / write-back on demand", "", Between(0.8, 2.0)),
    row("host-14", "500 MB / 25 MB: journaled", "", Between(1.1, 10.0)),
    row("host-14", "each journal / the next smaller one, least", "", AtLeast(1.0)),
    // "A larger journal allows for greater write coalescing".
    row("host-14", "500 MB / 25 MB: blocks at the disks, journaled", "", AtMost(1.0)),
    // "Across all the file system variants [...] the write-back caching policy variants outperform the write-through policy
    // for cache sizes that are sufficiently large"; ordered does "beyond a certain cache size for all file systems".
    row("host-15", "ext2, 2 GB: write-back on demand / write-through", "", AtLeast(1.0)),
    row("host-15", "ext2, 2 GB: ordered / write-through", "", AtLeast(1.0)),
    row("host-15", "ext2, 2 GB: journaled / write-through", "", AtLeast(1.0)),
    row("host-15", "ext2, 1 GB: journaled / write-through", "", AtLeast(1.0)),
    row("host-15", "ext3, ext4, 2 GB: write-back on demand / write-through", "", AtLeast(1.0)),
    row("host-15", "ext3, ext4, 2 GB: ordered / write-through", "", AtLeast(1.0)),
    row("host-15", "ext3, ext4, 2 GB: journaled / write-through", "", AtLeast(1.0)),
    row("host-15", "ext3, ext4, 1 GB: journaled / write-through", "", AtLeast(1.0)),
    row(
        "host-15",
        "ext3, ext4, data journaled, 2 GB: write-back on demand / write-through",
        "",
        AtLeast(1.0),
    ),
    row("host-15", "ext3, ext4, data journaled, 2 GB: ordered / write-through", "", AtLeast(1.0)),
    row("host-15", "ext3, ext4, data journaled, 2 GB: journaled / write-through", "", AtLeast(1.0)),
    row("host-15", "ext3, ext4, data journaled, 1 GB: journaled / write-through", "", AtLeast(1.0)),
    row("host-15", "btrfs, 2 GB: write-back on demand / write-through", "", AtLeast(1.0)),
    row("host-15", "btrfs, 2 GB: ordered / write-through", "", AtLeast(1.0)),
    row("host-15", "btrfs, 2 GB: journaled / write-through", "", AtLeast(1.0)),
    row("host-15", "btrfs, 1 GB: journaled / write-through", "", AtLeast(1.0)),
    // Holland and others, "Flash caching on the storage client", USENIX ATC 2013. Its figures are drawings: what their text says
    // of them is checked. "A large flash cache offers in-cache performance for much larger workloads"; "on the right where the
    // workload is 5x to 10x the flash size there is still a substantial benefit".
    row("flash-2", "set of 40 GB, no flash / 64 GB", "", AtLeast(3.0)),
    row("flash-2", "set of 40 GB / set of 5 GB, flash of 64 GB", "", AtMost(1.4)),
    row("flash-2", "set of 40 GB / set of 5 GB, no flash", "", AtLeast(3.0)),
    row("flash-2", "set of 40 GB, flash of 32 GB / 64 GB", "", AtLeast(1.1)),
    row("flash-2", "set 5 times the flash of 16 GB, flash / none", "", AtMost(0.92)),
    row("flash-2", "set 10 times the flash of 16 GB, flash / none", "", AtMost(0.97)),
    // "All other policies perform identically."
    row(
        "flash-policies",
        "neither synchronous from RAM nor none: farthest from their mean",
        "%",
        AtMost(2.0),
    ),
    row(
        "flash-policies",
        "synchronous from RAM, best write / worst of the others",
        "",
        AtLeast(5.0),
    ),
    row("flash-policies", "none from RAM, best write / worst of the others", "", AtLeast(5.0)),
    // "The unified cache performed better for reads and worse for writes": 8/9 of the flash write latency.
    row("flash-unified", "reads, unified / naive", "", AtMost(0.99)),
    row("flash-unified", "writes, naive, us", "us", AtMost(2.0)),
    row("flash-unified", "writes, unified / flash write", "", Near(0.889, 15.0)),
    // "There was no visible effect whatsoever on the application."
    row("flash-3", "reads, metadata written / not", "", Near(1.0, 2.0)),
    row("flash-3", "writes, metadata written / not", "", Near(1.0, 2.0)),
    row("flash-3", "set of 5 GB, cold / warm", "", AtLeast(1.5)),
    row("flash-3", "set of 60 GB, cold flash / no flash", "", AtMost(0.9)),
    row("flash-3", "set of 320 GB, cold / warm", "", Between(1.0, 1.1)),
    // "The cross-over point corresponds to roughly 20-25 minutes."
    row("flash-3", "cold flash is better than none after, minutes", "min", Between(15.0, 30.0)),
    // "Upwards of 90 %" while the set fits the flash, which no even load of two hosts reaches; much lower without.
    row("flash-4", "set of 40 GB, flash of 64 GB, by request", "%", Apart(90.0, 81.0, 5.0)),
    row("flash-4", "set of 40 GB, flash of 64 GB, by block", "%", Apart(90.0, 68.0, 5.0)),
    row("flash-4", "set of 40 GB, no flash", "%", AtMost(60.0)),
    row("flash-4", "set of 120 GB, flash of 64 GB", "%", AtLeast(50.0)),
    row("flash-4", "set of 120 GB, no flash", "%", AtMost(30.0)),
    // "The read latency is slightly worse, around 2 %"; "the write latency remains the same all the way down to 256 KB".
    row("flash-5", "reads, 256 KB of RAM / 8 GB", "", Between(1.0, 1.06)),
    row("flash-5", "reads, no RAM / 8 GB", "", Between(1.0, 1.06)),
    row("flash-5", "writes, 256 KB of RAM / 8 GB", "", Near(1.0, 10.0)),
    row("flash-5", "reads that hit in 8 GB of RAM", "%", Near(14.0, 20.0)),
    row("flash-5", "other reads that hit in flash", "%", Near(85.0, 5.0)),
    // "The penalty here is about 25-30 %"; "reads become some five times slower".
    row("flash-6", "reads, no RAM / 8 GB", "", Between(1.2, 1.35)),
    row("flash-6", "reads without flash, no RAM / 8 GB", "", Near(5.0, 20.0)),
    // Not in the paper: the first number of flash-6 under other latencies than those assumed, as it was found, so that a change
    // of it shows.
    row("flash-sensitivity", "flash reads take 44 us", "", Near(1.14, 10.0)),
    row("flash-sensitivity", "flash reads take 176 us", "", Near(1.57, 10.0)),
    row("flash-sensitivity", "a tenth of the filer's reads is slow", "", Near(1.43, 10.0)),
    row("flash-sensitivity", "three tenths are slow", "", Near(1.16, 10.0)),
    row("flash-sensitivity", "slow reads take 4 ms", "", Near(1.52, 10.0)),
    row("flash-sensitivity", "slow reads take 16 ms", "", Near(1.15, 10.0)),
    row("flash-sensitivity", "the network takes no time", "", Near(1.3, 10.0)),
];
