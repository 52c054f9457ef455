//! Holland and others, "Flash caching on the storage client", USENIX ATC 2013. Its figures are drawings: what its text says of
//! them is beside ours.

use super::Bound::{AtLeast, AtMost, Between, Near};
use super::Says::{Against, Fitted, Ours, Paper};
use super::{Expected, row};

pub(super) const ROWS: &[Expected] = &[
    row(
        "flash-2",
        "set of 40 GB, no flash / 64 GB",
        "",
        Paper("above 1: \"in-cache performance for much larger workloads\""),
        Between(4.02, 4.37),
    )
    .small(AtLeast(3.0)),
    row(
        "flash-2",
        "set of 40 GB / set of 5 GB, flash of 64 GB",
        "",
        Paper("about 1: \"in-cache performance\""),
        Between(0.892, 1.13),
    )
    .small(AtMost(1.4)),
    row(
        "flash-2",
        "set of 40 GB / set of 5 GB, no flash",
        "",
        Paper("above 1"),
        Between(3.74, 4.73),
    )
    .small(AtLeast(3.0)),
    row("flash-2", "set of 40 GB, flash of 32 GB / 64 GB", "", Ours, Between(1.6, 1.7))
        .small(AtLeast(1.1)),
    row(
        "flash-2",
        "set 5 times the flash of 16 GB, flash / none",
        "",
        Paper("below 1: \"still a substantial benefit\""),
        Between(0.874, 0.899),
    )
    .small(AtMost(0.92)),
    row(
        "flash-2",
        "set 10 times the flash of 16 GB, flash / none",
        "",
        Paper("below 1: \"still a substantial benefit\""),
        Between(0.928, 0.95),
    )
    .small(AtMost(0.97)),
    row(
        "flash-policies",
        "asynchronous from both: blocks read that hit",
        "%",
        Ours,
        Between(74.8, 79.9),
    )
    .small(AtLeast(50.0)),
    row(
        "flash-policies",
        "neither synchronous from RAM nor none: farthest from their mean",
        "%",
        Against("0: they \"perform identically\""),
        Between(0.0, 3.25),
    )
    .small(AtMost(2.0)),
    row(
        "flash-policies",
        "synchronous from RAM, best write / worst of the others",
        "",
        Paper("above 1: they \"perform badly\""),
        Between(53.6, 56.1),
    )
    .small(AtLeast(5.0)),
    row(
        "flash-policies",
        "none from RAM, best write / worst of the others",
        "",
        Paper("above 1: it \"performs badly\""),
        Between(11.0, 18.6),
    )
    .small(AtLeast(5.0)),
    row("flash-unified", "reads, unified / naive", "", Paper("below 1"), Between(0.81, 0.849))
        .small(AtMost(0.99)),
    row("flash-unified", "writes, naive, us", "us", Ours, Between(0.396, 0.404)).small(AtMost(2.0)),
    row(
        "flash-unified",
        "writes, unified / flash write",
        "",
        Against("8/9"),
        Between(0.899, 0.932),
    )
    .small(Near(0.889, 15.0)),
    row("flash-3", "blocks read that hit in RAM, LRU / FIFO", "", Ours, Between(1.009, 1.068))
        .small(AtLeast(0.95)),
    row(
        "flash-3",
        "reads, metadata written / not",
        "",
        Paper("1: \"no visible effect whatsoever\""),
        Between(0.99, 1.011),
    )
    .small(Near(1.0, 2.0)),
    row(
        "flash-3",
        "writes, metadata written / not",
        "",
        Paper("1: \"no visible effect whatsoever\""),
        Between(0.99, 1.01),
    )
    .small(Near(1.0, 2.0)),
    row(
        "flash-3",
        "set of 5 GB, cold / warm",
        "",
        Paper("above 1: \"considerably worse\""),
        Between(2.37, 2.85),
    )
    .small(AtLeast(1.5)),
    row(
        "flash-3",
        "set of 60 GB, cold flash / no flash",
        "",
        Paper("below 1: \"still better\""),
        Between(0.546, 0.571),
    )
    .small(AtMost(0.9)),
    row(
        "flash-3",
        "set of 320 GB, cold / warm",
        "",
        Paper("1: it \"converges\""),
        Between(1.0, 1.03),
    )
    .small(Between(1.0, 1.1)),
    row(
        "flash-3",
        "cold flash is better than none after, minutes",
        "min",
        Fitted("about 20 to 25"),
        Between(20.1, 21.2),
    )
    .small(Between(15.0, 30.0)),
    row("flash-4", "blocks read that hit in RAM, LRU / FIFO", "", Ours, Between(1.015, 1.064))
        .small(AtLeast(0.95)),
    row(
        "flash-4",
        "set of 40 GB, flash of 64 GB, by request",
        "%",
        Against("over 90: \"upwards of\" it"),
        Between(78.9, 83.3),
    )
    .small(Between(76.95, 85.05)),
    row(
        "flash-4",
        "set of 40 GB, flash of 64 GB, by block",
        "%",
        Against("over 90: \"upwards of\" it"),
        Between(65.8, 69.3),
    )
    .small(Between(64.6, 71.4)),
    row("flash-4", "set of 40 GB, no flash", "%", Paper("\"much\" lower"), Between(30.3, 34.7))
        .small(AtMost(60.0)),
    row(
        "flash-4",
        "set of 120 GB, flash of 64 GB",
        "%",
        Paper("\"drops off much more slowly\""),
        Between(69.0, 71.9),
    )
    .small(AtLeast(50.0)),
    row(
        "flash-4",
        "set of 120 GB, no flash",
        "%",
        Paper("lower than for small sets"),
        Between(12.3, 14.1),
    )
    .small(AtMost(30.0)),
    row("flash-5", "blocks read that hit in RAM, LRU / FIFO", "", Ours, Between(1.003, 1.033))
        .small(AtLeast(0.95)),
    row(
        "flash-5",
        "reads, 256 KB of RAM / 8 GB",
        "",
        Against("around 2 % more"),
        Between(1.033, 1.06),
    )
    .small(Between(1.0, 1.06)),
    row("flash-5", "reads, no RAM / 8 GB", "", Against("around 2 % more"), Between(1.031, 1.058))
        .small(Between(1.0, 1.06)),
    row(
        "flash-5",
        "writes, 256 KB of RAM / 8 GB",
        "",
        Paper("1: \"remains the same\""),
        Between(0.99, 1.01),
    )
    .small(Near(1.0, 10.0)),
    row("flash-5", "reads that hit in 8 GB of RAM", "%", Fitted("about 14"), Between(13.7, 15.2))
        .small(Near(14.0, 20.0)),
    row("flash-5", "other reads that hit in flash", "%", Against("over 85"), Between(81.2, 84.1))
        .small(Near(85.0, 5.0)),
    row("flash-6", "reads, no RAM / 8 GB", "", Fitted("about 1.25 to 1.30"), Between(1.22, 1.32))
        .small(Between(1.2, 1.35)),
    row(
        "flash-6",
        "reads without flash, no RAM / 8 GB",
        "",
        Fitted("about 5"),
        Between(4.78, 5.97),
    )
    .small(Near(5.0, 20.0)),
    row("flash-sensitivity", "flash reads take 44 us", "", Ours, Between(1.1, 1.17))
        .small(Near(1.14, 10.0)),
    row("flash-sensitivity", "flash reads take 176 us", "", Ours, Between(1.46, 1.63))
        .small(Near(1.57, 10.0)),
    row("flash-sensitivity", "a tenth of the filer's reads is slow", "", Ours, Between(1.35, 1.48))
        .small(Near(1.43, 10.0)),
    row("flash-sensitivity", "three tenths are slow", "", Ours, Between(1.12, 1.19))
        .small(Near(1.16, 10.0)),
    row("flash-sensitivity", "slow reads take 4 ms", "", Ours, Between(1.42, 1.58))
        .small(Near(1.52, 10.0)),
    row("flash-sensitivity", "slow reads take 16 ms", "", Ours, Between(1.11, 1.18))
        .small(Near(1.15, 10.0)),
    row("flash-sensitivity", "the network takes no time", "", Ours, Between(1.23, 1.33))
        .small(Near(1.3, 10.0)),
];
