use super::*;

fn experiment(when: When) -> Experiment {
    Experiment {
        when,
        discipline: Discipline::Fifo,
        access: Span::from_millis(18),
        near: Span::from_millis(14),
        rotation: Span::from_millis(11),
        think: Span::ZERO,
        cache_blocks: 1_228,
        file_blocks: 8_704,
        writes_per_30s: 614,
        reads: 4_000,
        seed: 1,
    }
}

const PERIODIC: When = When::Periodic { every: Span::from_secs(30) };
const INTERVAL: When = When::Interval { age: Span::from_secs(30), check: Span::from_secs(1) };

#[test]
fn the_same_seed_measures_the_same() {
    let run = |seed| Experiment { seed, ..experiment(INTERVAL) }.run();
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).reads, run(2).reads);
}

#[test]
fn periodic_update_writes_everything_at_once_and_interval_update_second_by_second() {
    let (periodic, interval) = (experiment(PERIODIC).run(), experiment(INTERVAL).run());
    assert!(
        periodic.bursts.iter().all(|&burst| (612..=617).contains(&burst)),
        "{:?}",
        periodic.bursts
    );
    let (first, rest) = interval.bursts.split_first().unwrap();
    assert!(*first <= 22 && rest.iter().all(|&burst| (20..=22).contains(&burst)), "{rest:?}");
    let age = |m: &Measured| m.dirty_age_sum.as_secs_f64() / m.writes as f64;
    // Mogul: 15 s and 30 s on average, where the interval's own granularity adds half a second.
    assert!((14.5..15.5).contains(&age(&periodic)), "{}", age(&periodic));
    assert!((30.0..31.0).contains(&age(&interval)), "{}", age(&interval));
    let max = |m: &Measured| m.reads.iter().max().unwrap().as_secs_f64();
    assert!(max(&periodic) > 5.0 && max(&interval) < 1.0, "{} {}", max(&periodic), max(&interval));
}

#[test]
fn without_writes_reads_wait_for_nothing_but_the_disk() {
    let quiet = Experiment { writes_per_30s: 0, ..experiment(PERIODIC) }.run();
    assert_eq!((quiet.writes, quiet.bursts.len()), (0, 0));
    assert_eq!(quiet.reads.iter().map(|span| span.0).sum::<u64>(), quiet.duration.0);
    // The next read has begun when the last one ends.
    let beyond = quiet.disk_busy.saturating_sub(quiet.duration);
    assert!(quiet.disk_busy >= quiet.duration && beyond < Span::from_millis(50));
    let zero = quiet.reads.iter().filter(|span| **span == Span::ZERO).count() as u64;
    assert_eq!((zero, zero > 100), (quiet.hits, true));
}

#[test]
fn read_priority_ends_the_long_waits_unless_writes_have_starved() {
    let max = |discipline| {
        let run = Experiment { discipline, ..experiment(PERIODIC) }.run();
        run.reads.iter().max().unwrap().as_secs_f64()
    };
    let fifo = max(Discipline::Fifo);
    let free = max(Discipline::ReadPriority { starvation: Span::MAX });
    let bounded = max(Discipline::ReadPriority { starvation: Span::from_secs(5) });
    assert!(free < 0.1 && fifo > 5.0 && bounded > free, "{fifo} {free} {bounded}");
}
