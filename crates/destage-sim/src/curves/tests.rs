use super::*;
use crate::blocks::BLOCK_BYTES;
use crate::generate::{Generate, Load, Ycsb};
use crate::hits::Hits;
use destage_core::Span;

const POLICIES: [Replacements; 3] = [Replacements::Lru, Replacements::Arc, Replacements::S3Fifo];

fn generated(load: Load, requests: u64) -> Vec<Request> {
    let generate =
        Generate { load, requests, interval: Span(1_000), hosts: 1, threads: 1, seed: 3 };
    generate.requests().expect("the parameters are in range").collect()
}

fn ycsb() -> Vec<Request> {
    generated(Load::Ycsb { workload: Ycsb::A, records: 200_000 }, 150_000)
}

fn working_set() -> Vec<Request> {
    let load = Load::WorkingSet {
        set_blocks: 20_000,
        all_blocks: 2_000_000,
        region_blocks: 64,
        skew: 1,
        outside_percent: 10,
        outside_halvings: 0,
        write_percent: 30,
        request_blocks: 2,
    };
    generated(load, 80_000)
}

/// Some writes become discards.
fn with_discards(mut requests: Vec<Request>) -> Vec<Request> {
    let writes = requests.iter_mut().filter(|request| request.op == Op::Write);
    writes.step_by(5).for_each(|request| request.op = Op::Discard);
    requests
}

const SIZES: [u64; 7] = [400, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000];

fn curves(requests: &[Request], policies: &[Replacements], sample: Sample) -> Vec<Curve> {
    let mut curves = Curves::new(BLOCK_BYTES, policies, sample);
    requests.iter().for_each(|request| curves.request(request).expect("few blocks"));
    curves.finish(&Sizes::Given(SIZES.to_vec()))
}

/// The differences between two curves, all and reads; of sizes that both have.
fn errors(exact: &Curve, curve: &Curve) -> Vec<f64> {
    let mut errors = Vec::new();
    for point in &curve.points {
        let exact = exact.points.iter().find(|exact| exact.blocks == point.blocks);
        let exact = exact.expect("the exact curve has all sizes");
        errors.push((exact.block_miss_ratio - point.block_miss_ratio).abs());
        errors.push((exact.read_block_miss_ratio - point.read_block_miss_ratio).abs());
    }
    assert!(errors.len() >= 10, "{curve:?}");
    errors
}

#[test]
fn without_a_sample_every_curve_is_exact() {
    for requests in [with_discards(ycsb()), with_discards(working_set())] {
        let requests = &requests[..40_000];
        for curve in curves(requests, &[Replacements::Lru, Replacements::Sieve], Sample::All) {
            let replacement: Replacements = curve.replacement.parse().expect("it is a policy");
            let setup = |&flash_blocks| Setup {
                replacement,
                ram_replacement: replacement,
                ram_blocks: 0,
                flash_blocks,
            };
            let setups: Vec<Setup> = SIZES.iter().map(setup).collect();
            let mut hits = Hits::new(BLOCK_BYTES, &setups).expect("all have places");
            requests.iter().for_each(|request| hits.request(request).expect("few blocks"));
            for (point, (_, outcome)) in curve.points.iter().zip(hits.finish()) {
                let all = 1.0 - outcome.total().blocks.ratio();
                let reads = 1.0 - outcome.reads.blocks.ratio();
                assert!((all - point.block_miss_ratio).abs() < 1e-12, "{point:?}");
                assert!((reads - point.read_block_miss_ratio).abs() < 1e-12, "{point:?}");
            }
            let [first, .., last] = &curve.points[..] else { panic!("all sizes: {curve:?}") };
            assert!(first.block_miss_ratio > last.block_miss_ratio + 0.1, "it falls: {curve:?}");
        }
    }
}

#[test]
fn a_sample_is_close_to_all() {
    for requests in [ycsb(), with_discards(working_set())] {
        let exact = curves(&requests, &POLICIES, Sample::All);
        for sample in [Sample::Rate(0.1), Sample::Blocks(3_000)] {
            for (exact, curve) in exact.iter().zip(curves(&requests, &POLICIES, sample)) {
                let errors = errors(exact, &curve);
                let largest = errors.iter().copied().fold(0.0, f64::max);
                let mean = errors.iter().sum::<f64>() / errors.len() as f64;
                println!("{} {sample:?}: {largest:.4}, mean {mean:.4}", curve.replacement);
                let what = format!("{sample:?} {}: {largest} {mean}", curve.replacement);
                assert!(largest < 0.04 && mean < 0.02, "{what}");
                assert!(curve.sample_rate < 0.3 && curve.sampled_accesses > 1_000, "{what}");
            }
        }
    }
}

#[test]
fn a_sample_of_fixed_size_keeps_it() {
    let requests = ycsb();
    let mut curves =
        Curves::new(BLOCK_BYTES, &[Replacements::Lru, Replacements::Sieve], Sample::Blocks(500));
    requests.iter().for_each(|request| curves.request(request).expect("few blocks"));
    let distinct = curves.distinct_blocks();
    let mut all = Blocks::new(BLOCK_BYTES);
    let mut found = Vec::new();
    requests.iter().for_each(|request| all.of(request, &mut found).expect("few blocks"));
    let exact = f64::from(all.len());
    assert!((distinct as f64 / exact - 1.0).abs() < 0.15, "{distinct} of {exact}");
    let curves = curves.finish(&Sizes::Given(vec![100, 1_000, 10_000]));
    for curve in &curves {
        assert!((0.012..0.025).contains(&curve.sample_rate), "{curve:?}");
    }
    let sizes = |curve: &Curve| curve.points.len();
    assert_eq!([sizes(&curves[0]), sizes(&curves[1])], [2, 2], "too few blocks stand for 100");
}

#[test]
fn an_empty_trace_has_no_misses() {
    for sample in [Sample::All, Sample::Rate(0.5), Sample::Blocks(1)] {
        for curve in curves(&[], &[Replacements::Lru, Replacements::Fifo], sample) {
            assert!(curve.points.iter().all(|point| point.block_miss_ratio == 0.0), "{curve:?}");
        }
    }
}
