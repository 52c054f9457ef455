//! What the numbers of figures come to with the seeds 1 to 20: the least and the most of each, from which their bounds are made.
//!
//! `cargo run --release -p destage-figures --example spread -- FIGURE...`

use destage_figures::{Figure, Line};
use rayon::prelude::*;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=20;

fn main() -> Result<(), String> {
    println!("figure\tnumber\tseed 1\tleast\tmost\tbound\toutside");
    for name in std::env::args().skip(1) {
        let figure = Figure::find(&name).ok_or_else(|| format!("no figure '{name}'"))?;
        let runs: Vec<Vec<Line>> = SEEDS.into_par_iter().map(|seed| figure.run(seed)).collect();
        for (at, line) in runs[0].iter().enumerate() {
            let values = || runs.iter().map(|run| run[at].ours);
            let (least, most) =
                (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
            let outside = runs.iter().filter(|run| !run[at].holds).count();
            let Line { what, ours, bound, .. } = line;
            println!("{name}\t{what}\t{ours}\t{least}\t{most}\t{bound}\t{outside}");
        }
    }
    Ok(())
}
