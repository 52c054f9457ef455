use super::*;
use crate::blocks::BLOCK_BYTES;
use crate::trace::Extent;
use destage_core::Time;
use std::collections::VecDeque;

fn setup(replacement: Replacements, ram_blocks: u64, flash_blocks: u64) -> Setup {
    Setup { replacement, ram_replacement: Replacements::Lru, ram_blocks, flash_blocks }
}

fn request(op: Op, offset: u64, bytes: u64) -> Request {
    let extent = Extent::Range { device: 0, offset, bytes };
    Request { time: Time::ZERO, op, extent, host: 0, thread: 0 }
}

/// A skewed load with scans, discards and requests of parts of blocks.
fn load(requests: u64) -> impl Iterator<Item = Request> {
    (0..requests).map(|n| {
        let random = crate::blocks::mix(n);
        let op = match random % 50 {
            0 => Op::Discard,
            1..20 => Op::Write,
            _ => Op::Read,
        };
        let skewed = (random >> 8) % (1 + (random >> 24) % 300);
        let offset = if n % 100 < 10 { n * 20_000 % 4_000_000 } else { skewed * 3_000 };
        request(op, offset, 1 + (random >> 40) % 20_000)
    })
}

fn run(setups: &[Setup], requests: u64) -> Vec<Outcome> {
    let mut hits = Hits::new(BLOCK_BYTES, setups).unwrap();
    load(requests).for_each(|request| hits.request(&request).unwrap());
    hits.finish().into_iter().map(|(_, outcome)| outcome).collect()
}

/// LRU once more, from the definition, over block addresses.
fn naive_lru(places: usize, requests: u64) -> Outcome {
    let mut list: VecDeque<u64> = VecDeque::new();
    let mut dirty = std::collections::BTreeSet::new();
    let mut outcome = Outcome::default();
    for request in load(requests) {
        let Extent::Range { offset, bytes, .. } = request.extent else { unreachable!() };
        let mut counts = Counts::default();
        let mut missed = false;
        for block in offset / 4_096..=(offset + bytes - 1) / 4_096 {
            let found = list.iter().position(|&other| other == block);
            found.map(|place| list.remove(place));
            if request.op == Op::Discard {
                outcome.discarded_blocks += u64::from(found.is_some());
                dirty.remove(&block);
                continue;
            }
            if found.is_none() && list.len() == places {
                let evicted = list.pop_front().unwrap();
                outcome.evicted_blocks += 1;
                outcome.evicted_dirty_blocks += u64::from(dirty.remove(&evicted));
            }
            if request.op == Op::Write {
                dirty.insert(block);
            }
            list.push_back(block);
            let touched = (offset + bytes).min(block * 4_096 + 4_096) - offset.max(block * 4_096);
            counts.blocks.all += 1;
            counts.bytes.all += touched;
            missed |= found.is_none();
            if found.is_some() {
                counts.blocks.hits += 1;
                counts.bytes.hits += touched;
            }
        }
        counts.requests = Count { all: 1, hits: u64::from(!missed) };
        match request.op {
            Op::Read => outcome.reads.add(&counts),
            Op::Write => outcome.writes.add(&counts),
            _ => {}
        }
    }
    outcome.dirty_left_blocks = dirty.len() as u64;
    outcome
}

#[test]
fn requests_blocks_and_bytes_are_counted_as_an_independent_model_counts_them() {
    for places in [1, 7, 100, 400] {
        let [outcome] = run(&[setup(Replacements::Lru, 0, places)], 5_000)[..] else { panic!() };
        assert_eq!(outcome, naive_lru(places as usize, 5_000), "{places} places");
        let total = outcome.total();
        assert!(total.requests.ratio() < total.blocks.ratio() || places == 1);
    }
}

#[test]
fn no_policy_beats_the_one_that_knows_the_future() {
    for places in [5, 50, 300] {
        let all: Vec<_> = Replacements::ALL.iter().map(|(_, r)| setup(*r, 0, places)).collect();
        let outcomes = run(&all, 5_000);
        let hits: Vec<_> = outcomes.iter().map(|outcome| outcome.total().blocks.hits).collect();
        let (belady, others) = hits.split_last().unwrap();
        assert!(others.iter().all(|hits| hits <= belady && *hits > 0), "{hits:?}");
        let all: Vec<_> = outcomes.iter().map(|outcome| outcome.total().blocks.all).collect();
        assert!(all.iter().all(|&count| count == all[0]));
    }
}

/// Every way of choosing what leaves, tried out.
fn best_hits(present: &[u32], rest: &[u32], places: usize) -> u32 {
    let Some((&id, rest)) = rest.split_first() else { return 0 };
    if present.contains(&id) {
        return 1 + best_hits(present, rest, places);
    }
    if present.len() < places {
        return best_hits(&[present, &[id]].concat(), rest, places);
    }
    let without = |out: &u32| {
        let left: Vec<_> = present.iter().copied().filter(|other| other != out).collect();
        best_hits(&[&left[..], &[id]].concat(), rest, places)
    };
    present.iter().map(without).max().unwrap_or(0)
}

#[test]
fn belady_is_the_best_that_can_be_done() {
    for seed in 0..40u64 {
        let ids: Vec<u32> =
            (0..14).map(|n| (crate::blocks::mix(seed << 8 | n) % 6) as u32).collect();
        let mut hits = Hits::new(BLOCK_BYTES, &[setup(Replacements::Belady, 0, 3)]).unwrap();
        for &id in &ids {
            hits.request(&request(Op::Read, u64::from(id) * 4_096, 4_096)).unwrap();
        }
        let found = hits.finish()[0].1.reads.blocks.hits;
        assert_eq!(found, u64::from(best_hits(&[], &ids, 3)), "{ids:?}");
    }
}

#[test]
fn ram_before_flash_hits_as_often_as_its_parts() {
    let [two, flash, ram] = run(
        &[
            setup(Replacements::Lru, 20, 200),
            setup(Replacements::Lru, 0, 200),
            setup(Replacements::Lru, 20, 0),
        ],
        5_000,
    )[..] else {
        panic!()
    };
    let (two, flash, ram) = (two.total(), flash.total(), ram.total());
    assert_eq!(two.ram_block_hits, ram.blocks.hits);
    assert_eq!((ram.ram_block_hits, flash.ram_block_hits), (ram.blocks.hits, 0));
    // The flash sees fewer uses of what RAM holds, and yet nearly all of the same blocks.
    assert!(two.blocks.hits > flash.blocks.hits * 95 / 100, "{two:?} {flash:?}");
    assert!(two.blocks.hits > ram.blocks.hits);
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    assert_eq!(Hits::new(4_096, &[setup(Replacements::Lru, 0, 0)]).err(), Some(SetupError::NoRoom));
    let below = Hits::new(4_096, &[setup(Replacements::Belady, 5, 5)]).err();
    assert_eq!(below, Some(SetupError::BeladyBelow));
}

#[test]
fn names_lead_back_to_their_policies() {
    for (name, policy) in Replacements::ALL {
        assert_eq!((name.parse(), policy.name()), (Ok(policy), name));
    }
    assert!("mru".parse::<Replacements>().unwrap_err().contains("s3-fifo"));
}
