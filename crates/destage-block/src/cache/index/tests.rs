//! The index against a map, and its behaviour when it is full.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
enum Step {
    Insert(u32),
    Clean(u32, u32),
    Reserve(u32),
    Remove(u32),
    /// Detaches now, releases after some more steps.
    Detach(u32),
    Release,
}

fn steps(blocks: u32) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..blocks).prop_map(Step::Insert),
        2 => (0..blocks, any::<u32>()).prop_map(|(b, crc)| Step::Clean(b, crc)),
        1 => (0..blocks).prop_map(Step::Reserve),
        2 => (0..blocks).prop_map(Step::Remove),
        1 => (0..blocks).prop_map(Step::Detach),
        1 => Just(Step::Release),
    ];
    proptest::collection::vec(step, 0..600)
}

/// Block numbers far apart and close together.
fn lba(block: u32) -> Lba {
    let spread = if block.is_multiple_of(3) { 1 << 20 } else { 1 };
    Lba((u64::from(block) * spread).min(Index::LBA_MAX.0))
}

proptest! {
    #[test]
    fn agrees_with_a_map(slots in 1..90u32, steps in steps(120)) {
        let mut index = Index::new(slots);
        let mut model: HashMap<Lba, (Handle, SlotState)> = HashMap::new();
        let mut detached = Vec::new();
        for step in steps {
            match step {
                Step::Insert(block) if !model.contains_key(&lba(block)) => {
                    let full = model.len() + detached.len() == slots as usize;
                    let handle = index.insert(lba(block));
                    prop_assert_eq!(handle.is_none(), full);
                    if let Some(handle) = handle {
                        prop_assert!(model.values().all(|&(h, _)| h != handle));
                        prop_assert!(!detached.contains(&handle));
                        model.insert(lba(block), (handle, SlotState::Reserved));
                    }
                }
                Step::Clean(block, crc) => if let Some(entry) = model.get_mut(&lba(block)) {
                    index.set_clean(entry.0, crc);
                    entry.1 = SlotState::Clean(crc);
                },
                Step::Reserve(block) => if let Some(entry) = model.get_mut(&lba(block)) {
                    index.set_reserved(entry.0);
                    entry.1 = SlotState::Reserved;
                },
                Step::Remove(block) => if let Some((handle, _)) = model.remove(&lba(block)) {
                    index.remove(handle);
                    prop_assert_eq!(index.state(handle), SlotState::Free);
                },
                Step::Detach(block) => if let Some((handle, _)) = model.remove(&lba(block)) {
                    index.detach(handle);
                    prop_assert_eq!(index.state(handle), SlotState::Detached);
                    detached.push(handle);
                },
                Step::Release => if let Some(handle) = detached.pop() {
                    index.release(handle);
                },
                Step::Insert(_) => {}
            }
            prop_assert_eq!(index.used() as usize, model.len() + detached.len());
        }
        for block in 0..120 {
            let expected = model.get(&lba(block));
            prop_assert_eq!(index.get(lba(block)), expected.map(|e| e.0), "{}", block);
            if let Some(&(handle, state)) = expected {
                prop_assert_eq!((index.lba(handle), index.state(handle)), (Some(lba(block)), state));
            }
        }
    }

    #[test]
    fn a_restored_index_holds_what_was_clean(blocks in proptest::collection::btree_set(0..500u32, 0..80)) {
        let mut index = Index::new(100);
        let handles: Vec<Handle> =
            blocks.iter().map(|&block| index.insert(lba(block)).unwrap()).collect();
        for &handle in &handles {
            match handle % 3 {
                0 => index.remove(handle),
                1 => index.set_clean(handle, handle * 7),
                _ => {}
            }
        }
        let mut restored = Index::new(100);
        let chunks: Vec<Vec<u8>> = (0..7).map(|chunk| index.chunk(chunk)).collect();
        prop_assert_eq!(chunks.concat().len(), 100 * ENTRY_BYTES);
        for (first, entries) in (0..).step_by(chunk_handles(100) as usize).zip(&chunks) {
            restored.restore(first, entries);
        }
        let mut clean = 0;
        for handle in 0..100 {
            if let SlotState::Clean(crc) = index.state(handle) {
                prop_assert_eq!(restored.state(handle), SlotState::Clean(crc));
                prop_assert_eq!(restored.get(index.lba(handle).unwrap()), Some(handle));
                clean += 1;
            } else {
                prop_assert_eq!(restored.state(handle), SlotState::Free);
            }
        }
        prop_assert_eq!(restored.used(), clean);
        // Every other handle can be had.
        for block in 0..100 - clean {
            prop_assert!(restored.insert(Lba(u64::from(block) + (1 << 31))).is_some());
        }
        prop_assert!(restored.insert(Lba(1 << 30)).is_none());
    }
}

#[test]
fn a_block_that_a_checkpoint_lists_twice_keeps_one_handle() {
    let mut index = Index::new(10);
    let entry = |lba: u32, crc: u32| [lba.to_le_bytes(), crc.to_le_bytes()].concat();
    index.restore(2, &[entry(7, 1), entry(NONE, 0), entry(NONE, 0), entry(7, 2)].concat());
    index.restore(6, &entry(8, 3));
    assert_eq!((index.get(Lba(7)), index.used()), (Some(2), 2));
    assert_eq!(index.state(5), SlotState::Free);
    let handles: Vec<_> = (100..108).map(|b| index.insert(Lba(b)).unwrap()).collect();
    assert!(handles.contains(&5));
    assert_eq!(index.insert(Lba(200)), None);
}

#[test]
fn the_highest_block_has_a_place_and_the_next_is_absent() {
    let mut index = Index::new(1);
    assert_eq!(index.insert(Index::LBA_MAX), Some(0));
    assert_eq!(index.get(Index::LBA_MAX), Some(0));
    assert_eq!(index.get(Lba(Index::LBA_MAX.0 + 1)), None);
    assert_eq!(index.get(Lba(u64::MAX)), None);
}

fn replace_at_full_load(slots: u32, replacements: u64) -> Index {
    let mut index = Index::new(slots);
    for block in 0..u64::from(slots) {
        index.insert(Lba(block)).unwrap();
    }
    let mut random = 1u64;
    for block in 0..replacements {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        index.remove((random >> 33) as u32 % slots);
        index.insert(Lba(u64::from(slots) + block * 17)).unwrap();
    }
    index
}

#[test]
fn every_block_finds_a_place_however_often_they_are_replaced_at_full_load() {
    let index = replace_at_full_load(20_000, 100_000);
    assert!(index.homeless.is_empty());
    for handle in 0..20_000 {
        assert_eq!(index.get(index.lba(handle).unwrap()), Some(handle));
    }
}

#[test]
fn blocks_chosen_to_collide_are_found_as_well() {
    let mut index = Index::new(2_000);
    let target = index.homes(hash(0));
    let colliding: Vec<Lba> = (0..Index::LBA_MAX.0 as u32)
        .filter(|&lba| index.homes(hash(lba)) == target)
        .take(100)
        .map(|lba| Lba(u64::from(lba)))
        .collect();
    let handles: Vec<Handle> = colliding.iter().map(|&lba| index.insert(lba).unwrap()).collect();
    assert_eq!(index.homeless.len(), 100 - 2 * WAYS);
    for (&lba, &handle) in colliding.iter().zip(&handles) {
        assert_eq!(index.get(lba), Some(handle));
        index.remove(handle);
        assert_eq!(index.get(lba), None);
    }
    assert_eq!((index.used(), index.homeless.len()), (0, 0));
}
