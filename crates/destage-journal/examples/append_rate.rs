//! Measures the journal on the disk under a folder: appends per second in memory, then group commits per second.
//!
//! `cargo run --release -p destage-journal --example append_rate -- FOLDER`

use destage_journal::{DirDisk, Journal, Options};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAYLOAD: [u8; 100] = [7; 100];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = std::env::args().nth(1).ok_or("name a folder to write in")?;
    let path = std::path::Path::new(&parent).join(format!("append-rate-{}", std::process::id()));
    let started = Instant::now();
    let (mut journal, _) = Journal::open(Arc::new(DirDisk::open(&path)?), Options::default())?;
    println!("first start             {:>10.1} ms", started.elapsed().as_secs_f64() * 1e3);
    appends(&mut journal)?;
    for group in [1, 10, 100, 1_000] {
        commits(&mut journal, group)?;
    }
    bare_sync(&path)?;
    let (last, status) = (journal.last(), journal.status());
    journal.close()?;
    let started = Instant::now();
    let (journal, recovery) = Journal::open(Arc::new(DirDisk::open(&path)?), Options::default())?;
    let took = started.elapsed();
    assert_eq!(recovery.last_lsn, last);
    println!(
        "recovery                {:>10.1} ms for {} MiB",
        took.as_secs_f64() * 1e3,
        status.bytes >> 20
    );
    drop((journal, recovery));
    std::fs::remove_dir_all(&path)?;
    Ok(())
}

fn appends(journal: &mut Journal) -> Result<(), Box<dyn std::error::Error>> {
    let (mut spent, mut count) = (Duration::ZERO, 0u32);
    for _ in 0..40 {
        let started = Instant::now();
        for _ in 0..50_000 {
            let lsn = journal.last() + 1;
            journal.append(lsn, lsn, 0, &PAYLOAD);
        }
        spent += started.elapsed();
        count += 50_000;
        let mut flush = journal.take();
        let result = flush.run(true);
        journal.give_back(flush);
        result?;
    }
    println!("append of 100 bytes     {:>10.1} ns", spent.as_secs_f64() * 1e9 / f64::from(count));
    Ok(())
}

fn commits(journal: &mut Journal, group: u32) -> Result<(), Box<dyn std::error::Error>> {
    let mut times = Vec::new();
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        for _ in 0..group {
            let lsn = journal.last() + 1;
            journal.append(lsn, lsn, 0, &PAYLOAD);
        }
        let started = Instant::now();
        let mut flush = journal.take();
        let result = flush.run(true);
        times.push(started.elapsed());
        journal.give_back(flush);
        let durable = result?;
        journal.reclaim(durable, u64::MAX);
    }
    times.sort_unstable();
    let us = |t: Duration| t.as_secs_f64() * 1e6;
    println!(
        "commit of {group:>4} records  {:>10.0} /s, median {:.0} us, p99 {:.0} us",
        times.len() as f64 / 2.0,
        us(times[times.len() / 2]),
        us(times[times.len() * 99 / 100])
    );
    Ok(())
}

/// What the medium does without a journal: a 4 KiB overwrite and fdatasync.
fn bare_sync(path: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path.join("bare"))?;
    file.write_all_at(&vec![1; 4 << 20], 0)?;
    file.sync_all()?;
    let mut times = Vec::new();
    for i in 0..1_000 {
        let started = Instant::now();
        file.write_all_at(&[2; 4096], i * 4096)?;
        file.sync_data()?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    println!("bare overwrite and sync {:>10.0} us median", times[500].as_secs_f64() * 1e6);
    std::fs::remove_file(path.join("bare"))
}
