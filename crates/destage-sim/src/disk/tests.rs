//! The model, asked without a clock.

use destage_core::{ReadsFirst, Time};

use super::*;

const DISK: u64 = 8 << 30;

fn us(micros: u64) -> Moment {
    Moment::from_micros(micros)
}

/// Runs everything that is under way to its end; the moment of the last answer.
fn run_out(model: &mut Model) -> Moment {
    let mut now = Moment::ZERO;
    while let Some(at) = model.next_moment() {
        now = at;
        model.done(now);
    }
    now
}

/// The mean time of accesses one at a time, microseconds.
fn mean_us(profile: Profile, access: Access, sequential: bool) -> f64 {
    let mut model = Model::new(profile, DISK, 7);
    let mut rng = Stream::new(1, "places");
    let (mut now, count) = (Moment::ZERO, 4_000);
    for n in 0..count {
        let block = if sequential { n } else { rng.below(DISK / FIRST_BYTES) };
        model.submit(now, n, access, block * FIRST_BYTES, FIRST_BYTES);
        loop {
            now = model.next_moment().expect("an answer is due");
            if model.done(now) == [n] {
                break;
            }
        }
    }
    now.as_secs_f64() * 1e6 / count as f64
}

#[test]
fn accesses_take_the_times_of_table_1() {
    // One arm, so that a sequence of addresses is one of accesses.
    let one = Profile { arms: 1, ..Profile::RAID }.with_write_cache(0);
    let (read, write) = (Access::Read, Access::Write { through: false });
    let Accesses { sequential_read, sequential_write, random_read, random_write } = TABLE;
    for (access, sequential, published) in [
        (read, true, sequential_read),
        (read, false, random_read),
        (write, true, sequential_write),
        (write, false, random_write),
    ] {
        let mean = mean_us(one.clone(), access, sequential);
        let error = mean / published as f64 - 1.0;
        assert!(error.abs() < 0.03, "{access:?}: {mean} µs against {published} µs");
    }
}

const TABLE: Accesses = TABLE_1_RAID_US;

#[test]
fn the_same_seed_takes_the_same_time_and_another_does_not() {
    let end = |seed| {
        let mut model = Model::new(Profile::RAID, DISK, seed);
        let mut rng = Stream::new(3, "places");
        for n in 0..500 {
            model.submit(us(n * 100), n, Access::Read, rng.below(DISK / 4096) * 4096, 4096);
        }
        run_out(&mut model)
    };
    assert_eq!(end(1), end(1));
    assert_ne!(end(1), end(2));
}

#[test]
fn writes_are_answered_from_the_cache_until_it_is_full() {
    let profile = Profile::RAID.with_write_cache(64 << 10);
    let mut model = Model::new(profile.clone(), DISK, 1);
    for n in 0..32 {
        model.submit(us(0), n, Access::Write { through: false }, n * (97 << 20), 4096);
    }
    let early = model.done(profile.link());
    assert_eq!(early.len(), 16, "what fits is answered at once: {early:?}");
    assert!(run_out(&mut model) > us(20_000), "the rest waits for the arms");
}

#[test]
fn a_flush_waits_for_every_write_before_it_and_none_after() {
    let mut model = Model::new(Profile::RAID, DISK, 1);
    for n in 0..20 {
        model.submit(us(0), n, Access::Write { through: false }, n * (97 << 20), 4096);
    }
    model.submit(us(0), 100, Access::Flush, 0, 0);
    let cached = model.done(Profile::RAID.link());
    assert_eq!(cached.len(), 20, "the flush is not among them: {cached:?}");
    let mut flushed_at = Moment::ZERO;
    while let Some(at) = model.next_moment() {
        if model.done(at).contains(&100) {
            flushed_at = at;
        }
    }
    assert!(flushed_at > us(20 * 1_000), "{flushed_at:?}");
    model.submit(flushed_at, 101, Access::Flush, 0, 0);
    assert_eq!(model.next_moment(), Some(flushed_at + Profile::RAID.link()), "nothing to flush");
}

#[test]
fn a_write_through_is_answered_from_the_medium() {
    let mut model = Model::new(Profile::RAID, DISK, 1);
    model.submit(us(0), 1, Access::Write { through: true }, 5 << 30, 4096);
    assert!(model.done(us(890)).is_empty());
    assert!(run_out(&mut model) > us(890));
}

#[test]
fn arms_work_at_the_same_time_and_bound_what_does() {
    let rate = |depth: u64| {
        let mut model = Model::new(Profile::FLASH, DISK, 1);
        for n in 0..depth {
            model.submit(us(0), n, Access::Read, n * Profile::FLASH.stripe_bytes, 4096);
        }
        depth as f64 / run_out(&mut model).as_secs_f64()
    };
    assert!((rate(1) - 2_000.0).abs() < 1.0, "{}", rate(1));
    assert!((rate(8) - 16_000.0).abs() < 1.0, "{}", rate(8));
    assert!(rate(64) < 21_000.0, "no more than the arms do: {}", rate(64));
}

#[test]
fn sorted_accesses_are_cheaper_than_scattered_ones() {
    let mut scattered: Vec<u64> = (0..1_000).collect();
    let mut rng = Stream::new(1, "places");
    (0..scattered.len()).for_each(|at| scattered.swap(at, rng.below(1_000) as usize));
    let took = |order: &[u64]| {
        let mut model = Model::new(Profile::RAID.with_write_cache(0), DISK, 1);
        let mut now = Moment::ZERO;
        for &n in order {
            model.submit(now, n, Access::Write { through: true }, n * (8 << 20), 4096);
            while model.done(now).is_empty() {
                now = model.next_moment().expect("an answer is due");
            }
        }
        now
    };
    let (sorted, scattered) = (took(&(0..1_000).collect::<Vec<_>>()), took(&scattered));
    assert!(sorted * 10 < scattered * 8, "{sorted:?} against {scattered:?}");
}

#[test]
fn what_waits_long_is_served_before_what_lies_better() {
    let mut model = Model::new(Profile { arms: 1, ..Profile::RAID }, DISK, 1);
    model.submit(us(0), 0, Access::Read, 0, 4096);
    model.submit(us(0), 1, Access::Read, 4 << 30, 4096);
    let (mut now, mut n) = (Moment::ZERO, 2);
    loop {
        // A stream that always lies better.
        model.submit(now, n, Access::Read, (n - 1) * 4096, 4096);
        model.submit(now, n + 1, Access::Read, n * 4096, 4096);
        n += 2;
        now = model.next_moment().expect("something is under way");
        if model.done(now).contains(&1) {
            break;
        }
        assert!(now < Duration::from_secs(2), "never served");
    }
    assert!(now > Duration::from_millis(100), "served out of order at once: {now:?}");
}

#[test]
fn an_instant_disk_answers_everything_at_once() {
    let mut model = Model::new(Profile::RAID.with_write_cache(64 << 10), DISK, 1);
    for n in 0..32 {
        model.submit(us(0), n, Access::Write { through: false }, n * (97 << 20), 4096);
    }
    model.submit(us(0), 32, Access::Flush, 0, 0);
    model.set_instant(us(10), true);
    let mut tags = model.done(us(10) + Profile::RAID.link());
    tags.sort_unstable();
    assert_eq!(tags, (0..=32).collect::<Vec<_>>());
    model.submit(us(500), 40, Access::Read, 5 << 30, 1 << 20);
    assert_eq!(model.done(us(500)), [40]);
    model.set_instant(us(600), false);
    model.submit(us(600), 41, Access::Read, 1 << 30, 4096);
    assert!(model.done(us(600)).is_empty());
    assert_eq!(model.counts().writes, 32);
}

/// A sorted batch on its way to the disk, and a client that reads now and then: how long its reads take on average, and the
/// batch.
fn batch_beside_reads(requests_max: impl Fn(&ReadsFirst, Time) -> usize) -> (Duration, Duration) {
    const WRITES: u64 = 600;
    const READ: u64 = u64::MAX;
    let think = Duration::from_millis(20);
    let mut rng = Stream::new(3, "places");
    let mut places: Vec<u64> = (0..WRITES).map(|_| rng.below(1 << 17) * 8192).collect();
    places.sort_unstable();
    let mut model = Model::new(Profile::RAID.with_write_cache(0), 1 << 30, 1);
    let mut reads = ReadsFirst::default();
    let (mut sent, mut ended, mut taken) = (0, 0, Vec::new());
    let (mut now, mut next_read, mut reading) = (Duration::ZERO, think, None);
    while ended < WRITES {
        let time = Time(now.as_nanos() as u64);
        for tag in model.done(now) {
            if tag != READ {
                ended += 1;
                continue;
            }
            taken.push(now - reading.take().expect("one is under way"));
            reads.end(time);
            next_read = now + think;
        }
        if reading.is_none() && now >= next_read {
            reading = Some(now);
            reads.begin();
            model.submit(now, READ, Access::Read, rng.below(1 << 18) * 4096, 4096);
        }
        while sent < WRITES && sent - ended < requests_max(&reads, time) as u64 {
            let write = Access::Write { through: false };
            model.submit(now, sent, write, places[sent as usize], 8192);
            sent += 1;
        }
        let read_at = reading.is_none().then_some(next_read);
        let more_at = reads.next_change(time).map(|at| Duration::from_nanos(at.0));
        let next = [model.next_moment(), read_at, more_at].into_iter().flatten().min();
        now = next.expect("something is under way").max(now + Duration::from_nanos(1));
    }
    (taken.iter().sum::<Duration>() / taken.len() as u32, now)
}

#[test]
fn reads_overtake_a_batch_that_leaves_them_room_and_starve_behind_one_that_does_not() {
    const MOST: usize = 32;
    let (behind, batch) = batch_beside_reads(|_, _| MOST);
    let (few_behind, _) = batch_beside_reads(|_, _| ReadsFirst::EXPECTING);
    let (first, longer) = batch_beside_reads(|reads, now| reads.requests_max(now, MOST));
    let said = format!("{behind:?} {few_behind:?} {first:?}, the batch {batch:?} {longer:?}");
    println!("{said}");
    assert!(behind > Duration::from_millis(60), "{said}");
    assert!(few_behind > first * 2, "a short queue alone does not help: {said}");
    assert!(first < Duration::from_millis(16), "{said}");
    assert!(longer < batch * 2, "{said}");
}
