//! How long the flash, the network and the filer take.

use super::settings::{Device, Discipline, FaultKind, Faulty, InjectedFault, Spread};
use crate::event::{self, Job, JobKind, Rules, Service, Station, Stream};
use destage_core::{Span, Time};

/// A device's times from its settings.
#[derive(Debug)]
struct Times {
    device: Device,
    random: Stream,
    /// When it is slow or begins nothing, and by what factor; 0 for nothing at all.
    disturbed: Vec<(Time, Time, u64)>,
}

/// The station of a device; `name` tells its random stream apart.
pub(super) fn station(
    device: &Device,
    seed: u64,
    name: &str,
    faulty: Faulty,
    faults: &[InjectedFault],
) -> Station {
    let starvation = device.starvation.span();
    let rules = Rules {
        discipline: match device.discipline {
            Discipline::Fifo => event::Discipline::Fifo,
            Discipline::CScan => event::Discipline::CScan,
            Discipline::ReadPriority => event::Discipline::ReadPriority { starvation },
        },
        servers: device.servers.into(),
        merge_blocks_max: device.merge_blocks.into(),
    };
    let disturbed = faults
        .iter()
        .filter(|fault| fault.device == faulty && fault.kind != FaultKind::Fail)
        .map(|fault| {
            let at = Time::ZERO + fault.at.span();
            let factor = if fault.kind == FaultKind::Slow { fault.factor.into() } else { 0 };
            (at, at + fault.lasts.span(), factor)
        })
        .collect();
    let random = Stream::new(seed, name);
    Station::new(rules, Box::new(Times { device: device.clone(), random, disturbed }))
}

/// Stations of each host: its flash, and its link in either direction, for neither waits for the other.
const STATIONS: u16 = 3;

/// The flash of a host among the stations.
pub(super) fn flash_of(host: u16) -> u16 {
    host * STATIONS
}

/// The direction of a host's link that carries data to or from the filer.
pub(super) fn link_of(host: u16, to_filer: bool) -> u16 {
    host * STATIONS + 1 + u16::from(to_filer)
}

/// What a station that is not the filer is called in reports.
pub(super) fn name_of(station: u16) -> String {
    let host = station / STATIONS;
    match station % STATIONS {
        0 => format!("flash {host}"),
        1 => format!("network to {host}"),
        _ => format!("network from {host}"),
    }
}

/// A direction of the link of a host: a packet for the request, one for the answer, and the bytes. One transfer at a time.
pub(super) fn link(packet: Span, kilobyte: Span, block_bytes: u64) -> Station {
    let rules = Rules { discipline: event::Discipline::Fifo, servers: 1, merge_blocks_max: 0 };
    let block = Span(kilobyte.0.saturating_mul(block_bytes) / 1_024);
    Station::new(rules, Box::new(Link { packets: Span(2 * packet.0), block }))
}

#[derive(Debug)]
struct Link {
    packets: Span,
    block: Span,
}

impl Service for Link {
    fn time(&mut self, _: Time, job: &Job) -> Span {
        Span(self.packets.0.saturating_add(self.block.0.saturating_mul(job.blocks)))
    }
}

impl Service for Times {
    fn time(&mut self, now: Time, job: &Job) -> Span {
        let device = &self.device;
        let is_slow = device.slow_percent > 0
            && job.kind == JobKind::Read
            && self.random.below(100) < device.slow_percent.into();
        let (first, copies) = match job.kind {
            JobKind::Read if is_slow => (device.slow_read, 1),
            JobKind::Read => (device.read, 1),
            JobKind::Write => (device.write, u64::from(device.writes_per_block)),
        };
        let further = device.next.span().0.saturating_mul(job.blocks - 1);
        let mean = first.span().0.saturating_add(further).saturating_mul(copies);
        let time = match device.spread {
            Spread::Fixed => mean,
            Spread::Uniform => self.random.around(Span(mean)).0,
            Spread::Exponential => self.random.exponential(Span(mean)).0,
        };
        self.disturb(now, time)
    }
}

impl Times {
    /// Slower while it is slow; nothing begins while it stalls.
    fn disturb(&self, now: Time, time: u64) -> Span {
        let within = self.disturbed.iter().filter(|(from, until, _)| now >= *from && now < *until);
        let (mut factor, mut stalled) = (1u64, Span::ZERO);
        for &(_, until, by) in within {
            match by {
                0 => stalled = stalled.max(until.since(now)),
                _ => factor = factor.saturating_mul(by),
            }
        }
        Span(time.saturating_mul(factor).saturating_add(stalled.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_runtime::units::Interval;

    fn times(device: Device, disturbed: Vec<(Time, Time, u64)>) -> Times {
        Times { device, random: Stream::new(1, "device"), disturbed }
    }

    fn job(kind: JobKind, blocks: u64) -> Job {
        Job { id: 0, kind, block: 0, blocks }
    }

    fn mean_of(times: &mut Times, kind: JobKind) -> u64 {
        (0..20_000).map(|_| times.time(Time::ZERO, &job(kind, 1)).0).sum::<u64>() / 20_000
    }

    #[test]
    fn times_have_their_means_however_they_spread() {
        let us = |n| Interval(Span::from_micros(n));
        for spread in [Spread::Fixed, Spread::Uniform, Spread::Exponential] {
            let device = Device { read: us(100), write: us(50), spread, ..Device::default() };
            let mut times = times(device, Vec::new());
            let (read, write) =
                (mean_of(&mut times, JobKind::Read), mean_of(&mut times, JobKind::Write));
            assert!((97_000..103_000).contains(&read), "{spread:?} {read}");
            assert!((48_500..51_500).contains(&write), "{spread:?} {write}");
        }
        let filer =
            Device { read: us(90), slow_read: us(9_090), slow_percent: 10, ..Device::default() };
        let mean = mean_of(&mut times(filer, Vec::new()), JobKind::Read);
        assert!((930_000..1_050_000).contains(&mean), "{mean}");
    }

    #[test]
    fn faults_slow_down_and_stall_for_their_time() {
        let us = |n| Interval(Span::from_micros(n));
        let device = Device {
            read: us(10),
            next: us(1),
            write: us(20),
            writes_per_block: 2,
            ..Device::default()
        };
        let at = |us: u64| Time(us * 1_000);
        let mut times = times(device, vec![(at(100), at(200), 3), (at(150), at(300), 0)]);
        let mut read = |now| times.time(at(now), &job(JobKind::Read, 5)).0;
        assert_eq!(
            [read(99), read(100), read(160), read(299), read(300)],
            [14_000, 42_000, 182_000, 15_000, 14_000]
        );
        assert_eq!(times.time(at(0), &job(JobKind::Write, 1)), Span::from_micros(40));
    }
}
