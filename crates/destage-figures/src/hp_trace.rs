//! The waits that a trace measured against those of the queue model: a week of a Hewlett-Packard workstation's disk, with the
//! wait and the service of each request (Ruemmler and Wilkes, "UNIX disk access patterns", USENIX Winter 1993).
//!
//! Each request arrives when it did. With the services as they were recorded, only the discipline is put to the test; with
//! services by the geometry that the trace's header tells, the disk model as well.

use super::sabotage::Sabotage;
use super::{Found, TraceFigure};
use destage_core::{Span, Time};
use destage_sim::event::{
    Begun, Discipline, Events, GeometricDisk, Geometry, Job, JobKind, Service, Station,
};
use std::io::{BufRead, BufReader};
use std::path::Path;

pub(super) const FIGURE: TraceFigure = TraceFigure {
    name: "hp-trace",
    title: "waits for a workstation's disk, against those measured (Ruemmler and Wilkes 1993)",
    file: "hplajw-1week.csv.zst",
    run,
};

/// HP 335H, from the trace's header: `nspt`, `ntpc`, `rpm`, `overhead`, `headswitch`, `sectorskew`, `seekparms` (of which the
/// last is taken for the settling of the head) and `adaptor` (1.2 MB/s, 250 us).
const DISK: Geometry = Geometry {
    sectors_per_track: 113,
    tracks_per_cylinder: 8,
    sector_bytes: 256,
    rotation: Span::from_nanos(60_000_000_000 / 4_002),
    track_skew: 12,
    overhead: Span::from_micros(1_100),
    head_switch: Span::from_micros(1_000),
    settle: Span::from_micros(2_500),
    seek_bend: 616,
    seek_short: (3_450.0, 597.0),
    seek_long: (10_840.0, 12.0),
    bus_nanos_per_byte: 833,
    bus_overhead: Span::from_micros(250),
};
/// The sections that lie on the second disk; the others on the first.
const SECOND_DISK: u64 = 7;
/// A request that comes so soon after the end of one that a process waited for is taken to follow from it.
const FOLLOWS: Span = Span::from_millis(30);
/// How long reads may pass a write where they go first.
const STARVATION: Span = Span::from_secs(10);

/// A request of the trace.
#[derive(Clone, Copy, Debug)]
struct Io {
    at: Time,
    disk: usize,
    job: Job,
    wait: Span,
    service: Span,
    is_sync: bool,
}

impl Io {
    fn reads(&self) -> bool {
        self.job.kind == JobKind::Read
    }
}

/// The requests of a trace.
///
/// # Errors
/// It cannot be read, or a line is not as the header says.
fn load(path: &Path) -> Result<Vec<Io>, String> {
    let failed = |error: std::io::Error| format!("failed to read {}: {error}", path.display());
    let file = std::fs::File::open(path).map_err(failed)?;
    let reader = BufReader::new(zstd::Decoder::new(file).map_err(failed)?);
    let mut ios = Vec::new();
    for (number, line) in reader.lines().enumerate().skip(1) {
        let line = line.map_err(failed)?;
        let io = parse(&line, ios.len() as u64);
        ios.push(io.ok_or_else(|| format!("{}: line {}: {line}", path.display(), number + 1))?);
    }
    Ok(ios)
}

/// `time_us,device,op,offset_bytes,size_bytes,start_us,stop_us,sync,async,delayed_write,raw_flags`.
fn parse(line: &str, id: u64) -> Option<Io> {
    let fields: Vec<&str> = line.split(',').collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let (start, stop) = (number(5)?, number(6)?);
    let kind = if *fields.get(2)? == "R" { JobKind::Read } else { JobKind::Write };
    let blocks = number(4)?.div_ceil(DISK.sector_bytes).max(1);
    Some(Io {
        at: Time(number(0)?.checked_mul(1_000)?),
        disk: usize::from(number(1)? == SECOND_DISK),
        job: Job { id, kind, block: number(3)? / DISK.sector_bytes, blocks },
        wait: Span::from_micros(start),
        service: Span::from_micros(stop.checked_sub(start)?),
        // Reads wait for their data unless they are read ahead; of writes the flag tells.
        is_sync: match kind {
            JobKind::Read => number(8)? == 0,
            JobKind::Write => number(7)? == 1,
        },
    })
}

/// Services as they were recorded.
#[derive(Debug)]
struct Recorded(Vec<Span>);

impl Service for Recorded {
    fn time(&mut self, _: Time, job: &Job) -> Span {
        self.0[job.id as usize]
    }
}

/// Services by the geometry. The station's places are cylinders, so the sectors are looked up.
#[derive(Debug)]
struct Modelled {
    disk: GeometricDisk,
    sectors: Vec<(u64, u64)>,
}

impl Service for Modelled {
    fn time(&mut self, now: Time, job: &Job) -> Span {
        let (block, blocks) = self.sectors[job.id as usize];
        self.disk.time(now, &Job { block, blocks, ..*job })
    }
}

/// What a simulation gives each request.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    wait: Span,
    service: Span,
}

#[derive(Debug)]
enum Event {
    Arrives(usize),
    Done(usize),
}

/// A replay of the trace.
struct Replay<'i> {
    ios: &'i [Io],
    disks: [Station; 2],
    events: Events<Event>,
    /// When each disk's service under way began.
    began: [Time; 2],
    arrived: Vec<Time>,
    served: Vec<Served>,
    /// Requests that follow the end of another one, and after how long.
    followers: Vec<Vec<(usize, Span)>>,
    now: Time,
}

/// Where requests that come within [`FOLLOWS`] after the end of one that its process waited for come so long after it again
/// (`is_closed`), else when they did.
fn simulate(ios: &[Io], discipline: Discipline, is_modelled: bool, is_closed: bool) -> Vec<Served> {
    let disk = || -> Station {
        let service: Box<dyn Service> = if is_modelled {
            Box::new(Modelled {
                disk: GeometricDisk::new(DISK),
                sectors: ios.iter().map(|io| (io.job.block, io.job.blocks)).collect(),
            })
        } else {
            Box::new(Recorded(ios.iter().map(|io| io.service).collect()))
        };
        Station::new(discipline.into(), service)
    };
    let mut replay = Replay {
        ios,
        disks: [disk(), disk()],
        events: Events::default(),
        began: [Time::ZERO; 2],
        arrived: vec![Time::ZERO; ios.len()],
        served: vec![Served::default(); ios.len()],
        followers: vec![Vec::new(); ios.len()],
        now: Time::ZERO,
    };
    replay.plan_arrivals(is_closed);
    replay.run();
    replay.served
}

impl Replay<'_> {
    fn plan_arrivals(&mut self, is_closed: bool) {
        let waited_for = |io: &Io| io.reads() || io.is_sync;
        let chosen = self.ios.iter().enumerate().filter(|(_, io)| is_closed && waited_for(io));
        let mut ends: Vec<_> =
            chosen.map(|(index, io)| (io.at + io.wait + io.service, index)).collect();
        ends.sort_unstable();
        for (index, io) in self.ios.iter().enumerate() {
            let before = ends.partition_point(|&(end, _)| end <= io.at);
            match before.checked_sub(1).map(|last| ends[last]) {
                Some((end, leader)) if io.at.since(end) <= FOLLOWS && leader != index => {
                    self.followers[leader].push((index, io.at.since(end)));
                }
                _ => self.events.plan(io.at, Event::Arrives(index)),
            }
        }
    }

    fn run(&mut self) {
        while let Some(now) = self.events.next_at() {
            self.now = now;
            let begun = match self.events.take_until(now) {
                None => continue,
                Some(Event::Arrives(index)) => {
                    let io = &self.ios[index];
                    self.arrived[index] = now;
                    let block = io.job.block / DISK.sectors_per_cylinder();
                    let begun = self.disks[io.disk].submit(now, Job { block, blocks: 0, ..io.job });
                    (io.disk, begun)
                }
                Some(Event::Done(disk)) => {
                    let (jobs, next) = self.disks[disk].done(now, 0);
                    jobs.iter().for_each(|job| self.done(disk, job.id as usize));
                    (disk, next)
                }
            };
            if let (disk, Some(Begun { at, .. })) = begun {
                self.began[disk] = now;
                self.events.plan(at, Event::Done(disk));
            }
        }
    }

    fn done(&mut self, disk: usize, index: usize) {
        let began = self.began[disk];
        let wait = began.since(self.arrived[index]);
        self.served[index] = Served { wait, service: self.now.since(began) };
        for (follower, after) in std::mem::take(&mut self.followers[index]) {
            self.events.plan(self.now + after, Event::Arrives(follower));
        }
    }
}

/// How many percent of the choices among several waiting requests are those that a rule makes of what waited.
fn explained(ios: &[Io], choose: impl Fn(&[usize], u64) -> usize) -> f64 {
    let (mut choices, mut explained) = (0_u32, 0_u32);
    for disk in 0..2 {
        let mut starts: Vec<_> = (0..ios.len()).filter(|&index| ios[index].disk == disk).collect();
        let arrivals = starts.clone();
        starts.sort_by_key(|&index| ios[index].at + ios[index].wait);
        let mut arrivals = arrivals.into_iter().peekable();
        let (mut waiting, mut head) = (Vec::new(), 0);
        for index in starts {
            let start = ios[index].at + ios[index].wait;
            waiting.extend(std::iter::from_fn(|| arrivals.next_if(|&next| ios[next].at <= start)));
            if waiting.len() > 1 {
                choices += 1;
                explained += u32::from(choose(&waiting, head) == index);
            }
            waiting.retain(|&other| other != index);
            head = cylinder(&ios[index]);
        }
    }
    100.0 * f64::from(explained) / f64::from(choices)
}

fn cylinder(io: &Io) -> u64 {
    io.job.block / DISK.sectors_per_cylinder()
}

/// The mean of some requests' spans, milliseconds.
fn mean(ios: &[Io], of: impl Fn(usize) -> Span, which: impl Fn(&Io) -> bool) -> f64 {
    let chosen = ios.iter().enumerate().filter(|(_, io)| which(io));
    let spans: Vec<f64> = chosen.map(|(index, _)| of(index).as_secs_f64() * 1e3).collect();
    spans.iter().sum::<f64>() / spans.len() as f64
}

fn run(path: &Path) -> Result<Found, String> {
    let ios = load(path)?;
    let priority = if Sabotage::NoReadPriority.is_on() {
        Discipline::Fifo
    } else {
        Discipline::ReadPriority { starvation: STARVATION }
    };
    let wait = |served: &[Served], which: fn(&Io) -> bool| mean(&ios, |i| served[i].wait, which);
    let all: fn(&Io) -> bool = |_| true;
    let sync_writes: fn(&Io) -> bool = |io| !io.reads() && io.is_sync;
    let async_writes: fn(&Io) -> bool = |io| !io.reads() && !io.is_sync;
    let writes: fn(&Io) -> bool = |io| !io.reads();
    let open = |discipline| simulate(&ios, discipline, false, false);
    let closed = |discipline| simulate(&ios, discipline, false, true);
    let (scan, fifo, reads_first) =
        (closed(Discipline::CScan), closed(Discipline::Fifo), closed(priority));
    let modelled = simulate(&ios, Discipline::CScan, true, true);
    let service = |which: fn(&Io) -> bool| mean(&ios, |i| modelled[i].service, which);
    let by_scan = |waiting: &[usize], head: u64| {
        let place = |index: &usize| (cylinder(&ios[*index]) < head, cylinder(&ios[*index]), *index);
        waiting.iter().copied().min_by_key(place).unwrap_or_default()
    };
    let by_age = |waiting: &[usize], _| waiting.iter().copied().min().unwrap_or_default();
    let reads_then_scan = |waiting: &[usize], head: u64| {
        let reads: Vec<_> = waiting.iter().copied().filter(|&index| ios[index].reads()).collect();
        by_scan(if reads.is_empty() { waiting } else { &reads }, head)
    };
    Ok(vec![
        ("choices that C-SCAN by cylinder explains", explained(&ios, by_scan)),
        ("choices that first come, first served explains", explained(&ios, by_age)),
        ("choices that reads first, then C-SCAN explains", explained(&ios, reads_then_scan)),
        ("C-SCAN, open loop: wait of all", wait(&open(Discipline::CScan), all)),
        ("C-SCAN, open loop: wait of reads", wait(&open(Discipline::CScan), Io::reads)),
        ("C-SCAN: wait of reads", wait(&scan, Io::reads)),
        ("C-SCAN: wait of synchronous writes", wait(&scan, sync_writes)),
        ("C-SCAN: wait of asynchronous writes", wait(&scan, async_writes)),
        ("C-SCAN: wait of all", wait(&scan, all)),
        ("first come, first served: wait of asynchronous writes", wait(&fifo, async_writes)),
        ("first come, first served: wait of all", wait(&fifo, all)),
        ("reads first: wait of reads", wait(&reads_first, Io::reads)),
        ("reads first: wait of asynchronous writes", wait(&reads_first, async_writes)),
        ("by geometry: service of reads", service(Io::reads)),
        ("by geometry: service of writes", service(writes)),
        ("by geometry: wait of reads", wait(&modelled, Io::reads)),
        ("by geometry: wait of asynchronous writes", wait(&modelled, async_writes)),
        ("by geometry: wait of all", wait(&modelled, all)),
    ])
}
