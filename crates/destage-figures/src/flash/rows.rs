//! The figures as curves, and the grid as such, with what the paper's text says at its places.

use super::{
    LITTLE_RAM, Way, by_ram, cold, experiment, grid, hits, invalidated, read_of_5, read_us, scaled,
    ways, with_flash, with_ram, write_us,
};
use crate::table::Of;
use crate::{Draw, Table};
use destage_runtime::units::Bytes;
use rayon::prelude::*;

pub(crate) const TABLES: &[(&str, Draw)] = &[
    ("flash-2", working_sets),
    ("flash-policies", policies),
    ("flash-3", cold_flash),
    ("flash-4", invalidations),
    ("flash-5", ram_60),
    ("flash-6", ram_5),
];

/// Rows whose cells are measured all at once.
fn measured<X: Sync, const CELLS: usize>(
    table: &mut Table,
    rows: &[X],
    name: impl Fn(&X) -> String,
    cells: impl Fn(&X) -> [f64; CELLS] + Send + Sync,
) {
    let measured: Vec<[f64; CELLS]> = rows.par_iter().map(cells).collect();
    for (row, cells) in rows.iter().zip(measured) {
        table.row(&name(row), cells.map(|cell| format!("{cell:.2}")));
    }
}

fn working_sets(seed: u64) -> Vec<Table> {
    let header = ["set, GB", "no flash", "16 GB", "32 GB", "64 GB", "128 GB"];
    let mut table = Table::new("flash-2", "mean read, us, by working set and flash", &header);
    let read = |set: u64, flash| with_flash(experiment(seed, set), flash).read_us();
    let sets = [5, 10, 20, 40, 60, 80, 120, 160];
    measured(&mut table, &sets, u64::to_string, |&set| {
        [0, 16, 32, 64, 128].map(|flash| read(set, flash))
    });
    for (number, cell, over) in [
        ("set of 40 GB, no flash / 64 GB", ("40", "no flash"), ("40", "64 GB")),
        ("set of 40 GB / set of 5 GB, flash of 64 GB", ("40", "64 GB"), ("5", "64 GB")),
        ("set of 40 GB / set of 5 GB, no flash", ("40", "no flash"), ("5", "no flash")),
        ("set of 40 GB, flash of 32 GB / 64 GB", ("40", "32 GB"), ("40", "64 GB")),
        ("set 5 times the flash of 16 GB, flash / none", ("80", "16 GB"), ("80", "no flash")),
        ("set 10 times the flash of 16 GB, flash / none", ("160", "16 GB"), ("160", "no flash")),
    ] {
        table.tell(number, cell, Of::Over(over));
    }
    vec![table]
}

/// The grid: rows by the policy of the RAM, columns by that of the flash. And what its rows come to.
fn policies(seed: u64) -> Vec<Table> {
    let cells = grid(seed);
    let names: Vec<String> = ways().into_iter().map(Way::name).collect();
    let header: Vec<&str> =
        std::iter::once("RAM").chain(names.iter().map(String::as_str)).collect();
    let table = |title, of: fn(&super::Cell) -> f64| {
        let mut table = Table::new("flash-policies", title, &header);
        for way in ways() {
            let row = cells.iter().filter(|cell| cell.0 == way);
            table.row(&way.name(), row.map(|cell| format!("{:.1}", of(cell))));
        }
        table
    };
    let [best, worst, farthest] =
        ["best write, us", "worst write, us", "farthest from the mean of the others, %"];
    let title = "by the policy of the RAM: writes, and what an application sees";
    let mut rows = Table::new("flash-policies", title, &["RAM", best, worst, farthest]);
    for (name, of) in ["synchronous", "none", "the others"].iter().zip(by_ram(&cells)) {
        let cells = [of.best_write, of.worst_write, of.farthest];
        rows.row(name, cells.map(|cell| format!("{cell:.3}")));
    }
    let number = "neither synchronous from RAM nor none: farthest from their mean";
    rows.tell(number, ("the others", farthest), Of::Itself);
    let others = Of::Over(("the others", worst));
    let number = "synchronous from RAM, best write / worst of the others";
    rows.tell(number, ("synchronous", best), others);
    rows.tell("none from RAM, best write / worst of the others", ("none", best), others);
    vec![
        table("mean read, us, by the policy of the flash", |cell| cell.2),
        table("mean write, us, by the policy of the flash", |cell| cell.3),
        rows,
    ]
}

fn cold_flash(seed: u64) -> Vec<Table> {
    let [none, cooled, warm] = ["no flash", "cold flash of 64 GB", "warm flash of 64 GB"];
    let title = "mean read, us, by working set";
    let mut table = Table::new("flash-3", title, &["set, GB", none, cooled, warm]);
    measured(&mut table, &[5, 10, 20, 60, 120, 320], u64::to_string, |&set| {
        let without = with_flash(experiment(seed, set), 0).read_us();
        [without, read_us(&cold(seed, set)), experiment(seed, set).read_us()]
    });
    for (number, set, over) in [
        ("set of 5 GB, cold / warm", "5", warm),
        ("set of 60 GB, cold flash / no flash", "60", none),
        ("set of 320 GB, cold / warm", "320", warm),
    ] {
        table.tell(number, (set, cooled), Of::Over((set, over)));
    }
    vec![table]
}

fn invalidations(seed: u64) -> Vec<Table> {
    let [none, blocks, requests] =
        ["no flash, by request, %", "64 GB, by block, %", "64 GB, by request, %"];
    let title = "writes that invalidate a block of the other host, by working set";
    let mut table = Table::new("flash-4", title, &["set, GB", none, blocks, requests]);
    measured(&mut table, &[5, 20, 40, 80, 120], u64::to_string, |&set| {
        let ([_, none], [blocks, requests]) =
            (invalidated(seed, set, 0), invalidated(seed, set, 64));
        [none, blocks, requests]
    });
    for (number, cell) in [
        ("set of 40 GB, flash of 64 GB, by request", ("40", requests)),
        ("set of 40 GB, flash of 64 GB, by block", ("40", blocks)),
        ("set of 40 GB, no flash", ("40", none)),
        ("set of 120 GB, flash of 64 GB", ("120", requests)),
        ("set of 120 GB, no flash", ("120", none)),
    ] {
        table.tell(number, cell, Of::Itself);
    }
    vec![table]
}

fn ram_60(seed: u64) -> Vec<Table> {
    let [reads, writes] = ["mean read, us", "mean write, us"];
    let [in_ram, in_flash] = ["reads that hit in RAM, %", "others that hit in flash, %"];
    let header = ["RAM", reads, writes, in_ram, in_flash];
    let mut table =
        Table::new("flash-5", "a working set of 60 GB, by the size of the RAM", &header);
    let sizes = [("none", Bytes(0)), ("256 KB", LITTLE_RAM)];
    let larger = [("1 GB", 1), ("2 GB", 2), ("4 GB", 4), ("8 GB", 8)];
    let sizes = [&sizes[..], &larger.map(|(name, size)| (name, scaled(size)))[..]].concat();
    measured(
        &mut table,
        &sizes,
        |(name, _)| (*name).to_owned(),
        |&(_, size)| {
            let report = with_ram(seed, 60, size);
            let [in_ram, in_flash] = hits(&report);
            [read_us(&report), write_us(&report), in_ram, in_flash]
        },
    );
    for (number, size, column) in [
        ("reads, 256 KB of RAM / 8 GB", "256 KB", reads),
        ("reads, no RAM / 8 GB", "none", reads),
        ("writes, 256 KB of RAM / 8 GB", "256 KB", writes),
    ] {
        table.tell(number, (size, column), Of::Over(("8 GB", column)));
    }
    table.tell("reads that hit in 8 GB of RAM", ("8 GB", in_ram), Of::Itself);
    table.tell("other reads that hit in flash", ("8 GB", in_flash), Of::Itself);
    vec![table]
}

fn ram_5(seed: u64) -> Vec<Table> {
    let [with, without] = ["flash of 64 GB", "no flash"];
    let title = "mean read, us, of a working set of 5 GB, by the size of the RAM";
    let mut table = Table::new("flash-6", title, &["RAM, GB", with, without]);
    measured(&mut table, &[0, 1, 2, 4, 8], u64::to_string, |&ram| {
        [64, 0].map(|flash| read_of_5(seed, flash, ram))
    });
    for (number, column) in
        [("reads, no RAM / 8 GB", with), ("reads without flash, no RAM / 8 GB", without)]
    {
        table.tell(number, ("0", column), Of::Over(("8", column)));
    }
    vec![table]
}
