use super::*;

fn experiment(when: When) -> Experiment {
    Experiment {
        when,
        yields: Yields::Never,
        staleness: Span::MAX,
        discipline: Discipline::Fifo,
        access: Span::from_millis(18),
        near: Span::from_millis(14),
        rotation: Span::from_millis(11),
        readers: 1,
        think: Span::ZERO,
        open: None,
        cache_blocks: 1_228,
        file_blocks: 8_704,
        is_sequential: false,
        writes_per_30s: 614,
        left_one_in: 1,
        server: None,
        begins_within: Span::ZERO,
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
        periodic.written.bursts.iter().all(|&burst| (612..=617).contains(&burst)),
        "{:?}",
        periodic.written.bursts
    );
    let (first, rest) = interval.written.bursts.split_first().unwrap();
    assert!(*first <= 22 && rest.iter().all(|&burst| (20..=22).contains(&burst)), "{rest:?}");
    let age = |m: &Measured| m.written.dirty_age_sum.as_secs_f64() / m.written.blocks as f64;
    // Mogul: 15 s and 30 s on average, where the interval's own granularity adds half a second.
    assert!((14.5..15.5).contains(&age(&periodic)), "{}", age(&periodic));
    assert!((30.0..31.0).contains(&age(&interval)), "{}", age(&interval));
    let max = |m: &Measured| m.reads.iter().max().unwrap().as_secs_f64();
    assert!(max(&periodic) > 5.0 && max(&interval) < 1.0, "{} {}", max(&periodic), max(&interval));
}

#[test]
fn without_writes_reads_wait_for_nothing_but_the_disk() {
    let quiet = Experiment { writes_per_30s: 0, ..experiment(PERIODIC) }.run();
    assert_eq!((quiet.written.blocks, quiet.written.bursts.len()), (0, 0));
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

#[test]
fn of_several_changes_of_a_block_the_disk_gets_one() {
    let every = Span::from_millis(50);
    let open = Open { read_every: every, write_every: every, hits_per_million: 800_000 };
    let run = |when| {
        let open = Some(open.clone());
        Experiment { open, file_blocks: 1 << 39, ..experiment(when) }.run().written
    };
    let (periodic, direct) = (run(PERIODIC), run(When::Async));
    // A fifth of the writes finds its block clean.
    let share = periodic.blocks as f64 / (periodic.blocks + periodic.on_dirty) as f64;
    assert!((0.17..0.23).contains(&share), "{periodic:?}");
    assert!(direct.on_dirty * 20 < direct.blocks, "nothing stays dirty: {direct:?}");
}

#[test]
fn without_a_bound_reads_that_never_end_keep_writes_from_the_disk() {
    let run = |starvation| {
        let discipline = Discipline::ReadPriority { starvation };
        Experiment { readers: 4, discipline, ..experiment(INTERVAL) }.run().written
    };
    let (free, bounded) = (run(Span::MAX), run(Span::from_secs(5)));
    assert_eq!((free.arrived, free.blocks > 100), (0, true));
    assert!(bounded.arrived > 100 && bounded.age_max < Span::from_secs(37), "{bounded:?}");
}

#[test]
fn destaging_in_turn_is_slow_beside_reads_without_end_but_goes_on() {
    let run = |yields| Experiment { readers: 4, yields, ..experiment(INTERVAL) }.run();
    let longest = |run: &Measured| run.reads.iter().max().unwrap().as_secs_f64();
    let (never, in_turn, waits) =
        (run(Yields::Never), run(Yields::InTurn), run(Yields::WhileFetching));
    assert!(longest(&in_turn) < 0.2 && longest(&never) > 0.3);
    assert!(in_turn.written.arrived > 100 && in_turn.written.arrived < never.written.arrived);
    assert_eq!((waits.written.blocks, waits.written.arrived), (0, 0), "D alone would end it");
}

fn remote(when: When, nvram_blocks: u64) -> Experiment {
    let server = Server { travel: Span::from_millis(5), daemons: 4, nvram_blocks };
    Experiment { server: Some(server), writes_per_30s: 200, ..experiment(when) }
}

#[test]
fn before_a_server_few_writes_are_on_their_way_and_its_memory_ends_them_sooner() {
    let longest = |run: &Measured| run.reads.iter().max().unwrap().as_secs_f64();
    let [local, remote, kept] =
        [experiment(PERIODIC), remote(PERIODIC, 0), remote(PERIODIC, 256)].map(|e| e.run());
    // A read waits for the writes of four daemons, not for the burst.
    assert!(longest(&local) > 5.0 && longest(&remote) < 0.3, "{}", longest(&remote));
    let least = remote.reads.iter().filter(|&&span| span > Span::ZERO).min().unwrap();
    assert!(*least >= Span::from_millis(5), "{least:?}");
    // There is room for all of a burst, which is over as soon as it is there.
    assert!(kept.written.waited_max < Span::from_secs(1), "{:?}", kept.written.waited_max);
    assert!(remote.written.waited_max > Span::from_secs(2), "{:?}", remote.written.waited_max);
    assert_eq!(kept.written.bursts[0], remote.written.bursts[0]);
}

#[test]
fn memory_that_is_full_takes_writes_as_the_disk_makes_room() {
    let run = Experiment { reads: 6_000, ..remote(PERIODIC, 8) }.run();
    let Written { blocks, arrived, waited_max, .. } = run.written;
    assert!(arrived > 600 && arrived + 200 >= blocks, "{arrived} of {blocks}");
    assert!(waited_max > Span::from_secs(2), "{waited_max:?}");
}

#[test]
fn blocks_that_are_full_go_to_the_disk_at_once() {
    let run = Experiment { left_one_in: 20, ..experiment(PERIODIC) }.run();
    let Written { blocks, direct, bursts, .. } = &run.written;
    assert!(*direct > 18 * blocks && *direct > 1_000, "{direct} {blocks}");
    assert!(bursts.iter().all(|&burst| (29..=32).contains(&burst)), "{bursts:?}");
}

#[test]
fn blocks_read_in_sequence_are_near_one_another() {
    let quiet = Experiment { writes_per_30s: 0, think: Span::ZERO, ..experiment(PERIODIC) };
    let mean = |experiment: Experiment| {
        let run = experiment.run();
        (run.duration.0 / run.reads.len() as u64, run.hits)
    };
    let (random, _) = mean(Experiment { cache_blocks: 1, ..quiet.clone() });
    let (in_sequence, hits) = mean(Experiment { is_sequential: true, ..quiet });
    assert_eq!(hits, 0, "the file is larger than the cache");
    assert!((13_500_000..14_500_000).contains(&in_sequence), "{in_sequence}");
    assert!(random > 17_000_000, "{random}");
}

fn build(when: When) -> Build {
    Build {
        when,
        delays_full: true,
        look: Span::from_secs(1),
        disk: [Span::from_millis(18), Span::from_millis(14), Span::from_millis(11)],
        files: 20,
        compute: Span::from_secs(5),
        data_blocks: 10,
        partial_blocks: 5,
        shared_blocks: 1,
        waited_writes: 4,
        reads: 2,
        seed: 1,
    }
}

#[test]
fn what_is_deleted_while_it_is_dirty_never_reaches_the_disk() {
    let [direct, interval] = [When::Async, INTERVAL].map(|when| build(when).run());
    assert_eq!(interval, build(INTERVAL).run());
    assert_eq!((interval.waits, interval.written.direct), (20 * 6, 20 * 4));
    // Half of what is written is deleted within seconds, and the rest is changed several times before it is 30 s old.
    let changes = |built: &Built| built.charged + built.written.on_dirty;
    assert_eq!(changes(&direct), changes(&interval));
    assert!(direct.written.blocks > 3 * interval.written.blocks, "{direct:?} {interval:?}");
}
