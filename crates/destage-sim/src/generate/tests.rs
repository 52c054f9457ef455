use super::*;
use crate::blocks::Blocks;
use crate::trace::{Options, Trace};
use records::RECORD;
use std::collections::{BTreeMap, HashMap, HashSet};

fn working_set() -> Load {
    Load::WorkingSet {
        set_blocks: 10_000,
        all_blocks: 10_000_000,
        region_blocks: 100,
        skew: 1,
        outside_percent: 20,
        outside_halvings: 0,
        write_percent: 30,
        request_blocks: 3,
    }
}

fn generate(load: Load, requests: u64) -> Generate {
    Generate { load, requests, interval: Span(1_000), hosts: 2, threads: 8, seed: 7 }
}

#[test]
fn a_working_set_has_the_shares_asked_for() {
    let requests: Vec<Request> = generate(working_set(), 40_000).requests().unwrap().collect();
    let writes = requests.iter().filter(|request| request.op == Op::Write).count();
    assert!((11_500..12_500).contains(&writes), "{writes}");
    let mut blocks = Blocks::new(BLOCK_BYTES);
    let mut found = Vec::new();
    let mut uses = HashMap::new();
    let mut accesses = 0;
    for request in &requests {
        blocks.of(request, &mut found).unwrap();
        accesses += found.len();
        found.iter().for_each(|block| *uses.entry(block.id).or_insert(0) += 1);
    }
    assert!((110_000..130_000).contains(&accesses), "{accesses}");
    // Four fifths of the accesses are to the ten thousand blocks of the set, the others hardly ever to the same block twice.
    let often = uses.values().filter(|&&uses| uses > 2).count();
    assert!((9_000..10_500).contains(&often), "{often}");
    let hosts = requests.iter().filter(|request| request.host == 1).count();
    assert!((19_000..21_000).contains(&hosts), "{hosts}");
    assert!(requests.iter().any(|request| request.thread == 7));
}

#[test]
fn ycsb_is_skewed_as_zipf_has_it() {
    let load = |workload| Load::Ycsb { workload, records: 1_000 };
    let requests: Vec<Request> = generate(load(Ycsb::A), 50_000).requests().unwrap().collect();
    let mut uses: HashMap<u64, u64> = HashMap::new();
    for request in &requests {
        let Extent::Range { offset, bytes, .. } = request.extent else { panic!() };
        assert_eq!((offset % RECORD, bytes), (0, RECORD));
        *uses.entry(offset).or_default() += 1;
    }
    let mut counts: Vec<u64> = uses.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    // The most popular of a thousand has 1 / 7.73 of all, the second half of that.
    assert!((6_000..7_000).contains(&counts[0]), "{}", counts[0]);
    assert!((2_900..3_700).contains(&counts[1]), "{}", counts[1]);
    let writes = |workload| {
        let requests = generate(load(workload), 10_000).requests().unwrap();
        requests.filter(|request| request.op == Op::Write).count()
    };
    assert!((4_800..5_200).contains(&writes(Ycsb::A)) && (400..600).contains(&writes(Ycsb::B)));
    assert_eq!(writes(Ycsb::C), 0);
    // Every second operation is a read and a write: one request in three.
    assert!((3_100..3_550).contains(&writes(Ycsb::F)), "{}", writes(Ycsb::F));
}

#[test]
fn what_is_written_is_read_again() {
    let generate = generate(working_set(), 1_000);
    let mut text = Vec::new();
    generate.write(&mut text).unwrap();
    let mut again = Vec::new();
    generate.write(&mut again).unwrap();
    assert_eq!(text, again);
    let trace =
        Trace::from_reader(io::Cursor::new(text), "generated", &Options::default()).unwrap();
    let read: Vec<Request> = trace.collect::<Result<_, _>>().unwrap();
    let requests: Vec<Request> = generate.requests().unwrap().collect();
    assert_eq!(read, requests);
}

#[test]
fn a_skew_prefers_regions_and_halvings_prefer_a_part_of_the_file_system() {
    let uses = |change: fn(&mut u8, &mut u8, &mut u8)| {
        let mut load = working_set();
        let Load::WorkingSet { skew, outside_percent, outside_halvings, .. } = &mut load else {
            panic!()
        };
        change(skew, outside_percent, outside_halvings);
        run(load, 40_000).into_iter().map(|(_, block, _)| block).collect::<Vec<u64>>()
    };
    // The shares of the first tenth of what there is, by rank.
    let busiest = |blocks: &[u64]| {
        let mut regions = HashMap::new();
        blocks.iter().for_each(|block| *regions.entry(block / 100).or_insert(0u32) += 1);
        let mut counts: Vec<u32> = regions.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        f64::from(counts[..10].iter().sum::<u32>()) / blocks.len() as f64
    };
    let even = busiest(&uses(|_, outside, _| *outside = 0));
    let skewed = busiest(&uses(|skew, outside, _| (*skew, *outside) = (2, 0)));
    // Of two draws the lower one is in the first tenth with 19 %; the busiest ten of a hundred even regions have little over 10.
    assert!((0.10..0.13).contains(&even) && (0.17..0.22).contains(&skewed), "{even} {skewed}");
    let low = |blocks: Vec<u64>| {
        blocks.iter().filter(|block| **block < 10_000_000 / 16).count() as f64 / blocks.len() as f64
    };
    let even = low(uses(|_, outside, _| *outside = 100));
    let halved = low(uses(|_, outside, halvings| (*outside, *halvings) = (100, 3)));
    // A quarter each to the whole, the half, the quarter and the eighth: (1/16 + 1/8 + 1/4 + 1/2) / 4.
    assert!((0.055..0.07).contains(&even) && (0.22..0.25).contains(&halved), "{even} {halved}");
}

#[test]
fn parameters_out_of_range_are_refused() {
    let refused = |load| generate(load, 1).requests().err().is_some();
    let Load::WorkingSet { set_blocks, all_blocks, region_blocks, .. } = working_set() else {
        panic!()
    };
    let load = |set, all, region, outside, request| Load::WorkingSet {
        set_blocks: set,
        all_blocks: all,
        region_blocks: region,
        skew: 1,
        outside_percent: outside,
        outside_halvings: 0,
        write_percent: 30,
        request_blocks: request,
    };
    assert!(!refused(load(set_blocks, all_blocks, region_blocks, 100, 1)));
    assert!(refused(load(all_blocks + 1, all_blocks, region_blocks, 20, 1)));
    assert!(refused(load(set_blocks, all_blocks, set_blocks + 1, 20, 1)));
    assert!(refused(load(set_blocks, all_blocks, 0, 20, 1)));
    assert!(refused(load(set_blocks, BLOCKS_MAX + 1, region_blocks, 20, 1)));
    assert!(refused(load(set_blocks, all_blocks, region_blocks, 101, 1)));
    assert!(refused(load(set_blocks, all_blocks, region_blocks, 20, 0)));
    let uneven = |change: fn(&mut u8, &mut u8)| {
        let mut load = working_set();
        let Load::WorkingSet { skew, outside_halvings, .. } = &mut load else { panic!() };
        change(skew, outside_halvings);
        load
    };
    assert!(!refused(uneven(|skew, halvings| (*skew, *halvings) = (16, 40))));
    assert!(refused(uneven(|skew, _| *skew = 0)) && refused(uneven(|skew, _| *skew = 17)));
    assert!(refused(uneven(|_, halvings| *halvings = 41)));
    assert!(refused(Load::Ycsb { workload: Ycsb::A, records: 0 }));
    let no_hosts = Generate { hosts: 0, ..generate(working_set(), 1) };
    assert!(no_hosts.requests().err().is_some());
}

/// Operation, first block, blocks.
fn run(load: Load, requests: u64) -> Vec<(Op, u64, u64)> {
    let requests = generate(load, requests).requests().unwrap();
    let place = |request: Request| {
        let Extent::Range { offset, bytes, .. } = request.extent else { panic!() };
        assert_eq!((offset % BLOCK, bytes % BLOCK), (0, 0), "whole blocks");
        (request.op, offset / BLOCK, bytes / BLOCK)
    };
    requests.map(place).collect()
}

fn count(requests: &[(Op, u64, u64)], op: Op) -> f64 {
    requests.iter().filter(|request| request.0 == op).count() as f64
}

fn blocks(requests: &[(Op, u64, u64)], op: Op) -> f64 {
    requests.iter().filter(|request| request.0 == op).map(|request| request.2 as f64).sum()
}

#[test]
fn moguls_writer_touches_no_block_twice_in_a_minute_and_the_reader_goes_anywhere() {
    let load = Load::Mogul { read_blocks: 8_704, write_blocks: 1_228, write_percent: 35 };
    assert_eq!(load.interval(), Span::from_micros(17_103));
    let requests = run(load, 100_000);
    assert_eq!((count(&requests, Op::Write), count(&requests, Op::Read)), (35_000.0, 65_000.0));
    let mut last = HashMap::new();
    let per_minute = 60_000_000 / 17_103;
    let mut read = HashSet::new();
    for (place, &(op, block, count)) in requests.iter().enumerate() {
        assert_eq!(count, 1);
        if op == Op::Read {
            assert!(block < 8_704);
            read.insert(block);
        } else if let Some(before) = last.insert(block, place) {
            assert!(place - before >= per_minute - 100, "{}", place - before);
        }
    }
    // 65,000 of 8,704 blocks, each equally likely: all but one in 1,700.
    assert!(read.len() > 8_600, "{}", read.len());
    assert_eq!(last.len(), 1_228);
}

#[test]
fn tpcc_reads_two_pages_for_one_written_and_syncs_its_log() {
    let requests = run(Load::Tpcc { warehouses: 4 }, 400_000);
    let (reads, writes) = (count(&requests, Op::Read), count(&requests, Op::Write));
    // Chen and others, SIGMOD Record 2010, measured 1.9 reads for one write.
    assert!((1.6..2.4).contains(&(reads / writes)), "{}", reads / writes);
    assert!(requests.iter().all(|&(op, _, blocks)| blocks == 2 || op == Op::Flush));
    // All transactions but order-status and stock-level write: 92 %. Each log page is followed by a flush.
    let log = requests.iter().map(|request| request.1).max().unwrap_or(0);
    let flushes = count(&requests, Op::Flush);
    let flushed: Vec<u64> =
        requests.windows(2).filter(|pair| pair[1].0 == Op::Flush).map(|pair| pair[0].1).collect();
    assert_eq!((flushed.len() as f64, flushed.last()), (flushes, Some(&log)));
    assert!(flushed.windows(2).all(|pair| pair[1] == pair[0] + 2), "one page after the other");
    let per_transaction = (reads + writes) * 0.92 / flushes;
    assert!((25.0..45.0).contains(&per_transaction), "{per_transaction}");
    // Few pages have most of the accesses: those of warehouses, districts and popular items.
    let mut uses: BTreeMap<u64, u64> = BTreeMap::new();
    requests.iter().for_each(|request| *uses.entry(request.1).or_default() += 1);
    let mut uses: Vec<u64> = uses.into_values().collect();
    uses.sort_unstable_by(|a, b| b.cmp(a));
    let top: u64 = uses.iter().take(uses.len() / 20).sum();
    let share = top as f64 / uses.iter().sum::<u64>() as f64;
    assert!(share > 0.35, "a twentieth of the pages has {share} of the accesses");
}

#[test]
fn postmark_has_as_many_reads_as_appends_and_keeps_its_number_of_files() {
    const FILES: u64 = 2_000;
    let requests = run(Load::PostMark { files: FILES }, 100_000);
    let transactions = &requests[requests.len() / 2..];
    // Of two transactions one creates or deletes, one reads or appends; creations and appends write.
    let (reads, discards) = (blocks(transactions, Op::Read), blocks(transactions, Op::Discard));
    assert!((0.9..1.15).contains(&(reads / discards)), "{reads} {discards}");
    let writes = blocks(transactions, Op::Write);
    assert!((1.3..2.6).contains(&(writes / reads)), "{writes} {reads}");
    // Files have 500 to 9,770 bytes: one to three blocks.
    assert!(requests.iter().all(|request| (1..=3).contains(&request.2)));
    let live = live_blocks(&requests);
    let mean = live as f64 / FILES as f64;
    assert!((1.2..2.6).contains(&mean), "{mean} blocks per file");
}

#[test]
fn a_file_server_writes_and_reads_whole_files() {
    const FILES: u64 = 1_000;
    let requests = run(Load::FileServer { files: FILES }, 40_000);
    let rounds = &requests[requests.len() / 4..];
    // A round writes 128 KiB and up to 16 KiB more, and reads a file.
    let ratio = blocks(rounds, Op::Write) / blocks(rounds, Op::Read);
    assert!((0.85..1.25).contains(&ratio), "{ratio}");
    let discarded = blocks(rounds, Op::Discard) / blocks(rounds, Op::Write);
    assert!((0.8..1.1).contains(&discarded), "as much is deleted as is written: {discarded}");
    let mean = live_blocks(&requests) as f64 / FILES as f64 * 4.0;
    assert!((110.0..170.0).contains(&mean), "{mean} KiB per file");
    assert!(requests.iter().all(|request| request.0 == Op::Discard || request.2 <= 256));
    assert_eq!(count(&requests, Op::Flush), 0.0);
}

#[test]
fn a_mail_server_reads_as_often_as_it_writes_and_syncs_each_write() {
    const FILES: u64 = 1_000;
    let requests = run(Load::MailServer { files: FILES }, 80_000);
    let rounds = &requests[requests.len() / 4..];
    let flushes = count(rounds, Op::Flush);
    // Of each round's four operations on messages two write and sync, two read.
    let synced = rounds.windows(2).filter(|pair| pair[1].0 == Op::Flush && pair[0].0 == Op::Write);
    assert!(synced.count() as f64 >= flushes - 1.0);
    let ratio = blocks(rounds, Op::Read) / blocks(rounds, Op::Write);
    assert!((0.9..2.2).contains(&ratio), "{ratio}");
    let per_flush = blocks(rounds, Op::Write) / flushes;
    assert!((2.0..3.6).contains(&per_flush), "up to 16 KiB and a block begun: {per_flush}");
    assert!(live_blocks(&requests) > FILES as usize);
}

/// Blocks written and not discarded since; what is read was written, and what is discarded, too.
fn live_blocks(requests: &[(Op, u64, u64)]) -> usize {
    let mut live = HashSet::new();
    for &(op, first, count) in requests {
        for block in first..first + count {
            match op {
                Op::Write => drop(live.insert(block)),
                Op::Read => assert!(live.contains(&block), "read before it was written"),
                Op::Discard => assert!(live.remove(&block), "discarded twice"),
                Op::Flush => {}
            }
        }
    }
    live.len()
}

#[test]
fn every_load_is_written_as_a_trace_and_read_again() {
    for load in [
        Load::Mogul { read_blocks: 100, write_blocks: 100, write_percent: 35 },
        Load::Tpcc { warehouses: 1 },
        Load::PostMark { files: 50 },
        Load::FileServer { files: 50 },
        Load::MailServer { files: 50 },
    ] {
        let generate = generate(load, 3_000);
        let mut text = Vec::new();
        generate.write(&mut text).unwrap();
        let input = io::Cursor::new(text);
        let trace = Trace::from_reader(input, "generated", &Options::default()).unwrap();
        let read: Vec<Request> = trace.collect::<Result<_, _>>().unwrap();
        let requests: Vec<Request> = generate.requests().unwrap().collect();
        assert_eq!(read.len(), 3_000, "{generate}");
        assert!(read.iter().zip(&requests).all(|(a, b)| a == b || a.op == Op::Flush), "{generate}");
    }
}

#[test]
fn parameters_of_the_other_loads_are_checked() {
    for load in [
        Load::Mogul { read_blocks: 0, write_blocks: 1, write_percent: 35 },
        Load::Mogul { read_blocks: 1, write_blocks: 1, write_percent: 101 },
        Load::Tpcc { warehouses: 0 },
        Load::PostMark { files: 0 },
        Load::FileServer { files: 0 },
        Load::MailServer { files: u64::MAX },
    ] {
        assert!(generate(load.clone(), 1).requests().err().is_some(), "{load:?}");
    }
}
