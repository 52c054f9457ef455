//! Simulators that are wrong on purpose fail in every figure that they touch: the negative control of the bounds.
//!
//! It is one test, since a process is wrong in one way at a time.

use destage_figures::{ALL, Figure, Line, Sabotage};

/// What each is to be noticed in. Mogul's experiments have no cache that decides anything: their reads are of random blocks. So do
/// the file server's and PostMark's files, of which any is as likely as another: there FIFO is as good as ARC.
fn touches(sabotage: Sabotage, figure: &str) -> bool {
    match sabotage {
        Sabotage::OrderedAsWriteBack => ["host-12", "host-13", "host-15"].contains(&figure),
        Sabotage::JournaledAsWriteBack => {
            ["host-12", "host-13", "host-14", "host-15"].contains(&figure)
        }
        Sabotage::FifoEverywhere => {
            figure == "host-12" || (figure.starts_with("flash-") && figure != "flash-policies")
        }
        Sabotage::NoReadPriority => ["purp", "ipu-best"].contains(&figure),
        Sabotage::HalfTheCache => figure.starts_with("host-") || figure.starts_with("flash-"),
    }
}

fn outside(figure: &Figure, seed: u64) -> Vec<Line> {
    figure.run(seed).into_iter().filter(|line| !line.holds).collect()
}

/// Those that take less than a second each.
fn is_quick(figure: &&Figure) -> bool {
    figure.name.starts_with("host-") || ["purp", "ipu-best"].contains(&figure.name)
}

fn check(figures: &[&Figure]) {
    let mut unnoticed = Vec::new();
    for sabotage in Sabotage::ALL {
        Sabotage::set(Some(sabotage));
        for figure in figures.iter().filter(|figure| touches(sabotage, figure.name)) {
            let outside = outside(figure, 1);
            println!("{sabotage:?} in {}: {} numbers are outside", figure.name, outside.len());
            if outside.is_empty() {
                unnoticed.push((sabotage, figure.name));
            }
        }
    }
    Sabotage::set(None);
    for figure in figures {
        assert_eq!(outside(figure, 1), [], "{} as it is", figure.name);
    }
    assert!(unnoticed.is_empty(), "nothing is outside its bound: {unnoticed:?}");
}

#[test]
fn simulators_that_are_wrong_on_purpose_fail_in_quick_figures() {
    check(&ALL.iter().filter(is_quick).collect::<Vec<_>>());
}

#[test]
#[ignore = "takes minutes: cargo test --release -p destage-figures --test sabotage -- --ignored --test-threads 1"]
fn simulators_that_are_wrong_on_purpose_fail_in_every_figure_that_they_touch() {
    check(&ALL.iter().collect::<Vec<_>>());
}

#[test]
#[ignore = "takes many minutes: cargo test --release -p destage-figures --test sabotage -- --ignored --test-threads 1"]
fn every_figure_keeps_its_bounds_with_twenty_seeds() {
    for seed in 1..=20 {
        for figure in ALL.iter() {
            assert_eq!(outside(figure, seed), [], "{} with seed {seed}", figure.name);
        }
    }
}
