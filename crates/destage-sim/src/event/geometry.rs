//! A disk by its geometry: where the head is, how long it travels, when the sector comes round.
//!
//! Source: Ruemmler and Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3), 1994: the seek time as a root,
//! then a line over the distance; rotation and transfer by position; the controller's and the bus's own time.

use super::service::Service;
use super::{Job, JobKind};
use destage_core::{Span, Time};

/// What a disk's maker and a trace's header tell of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geometry {
    /// Sectors of a track.
    pub sectors_per_track: u64,
    /// Tracks of a cylinder.
    pub tracks_per_cylinder: u64,
    /// Bytes of a sector.
    pub sector_bytes: u64,
    /// One rotation.
    pub rotation: Span,
    /// By how many sectors each track begins later than the one before.
    pub track_skew: u64,
    /// The controller's own time for each request.
    pub overhead: Span,
    /// Changing to another track of the same cylinder.
    pub head_switch: Span,
    /// Until the head is still over its track.
    pub settle: Span,
    /// Below so many cylinders a seek takes `seek_short`, from there on `seek_long`.
    pub seek_bend: u64,
    /// So many microseconds, and so many times the root of the distance.
    pub seek_short: (f64, f64),
    /// So many microseconds, and so many times the distance.
    pub seek_long: (f64, f64),
    /// The bus: nanoseconds for each byte, sent once the disk has read it, or before it writes.
    pub bus_nanos_per_byte: u64,
    /// The bus's own time for each request.
    pub bus_overhead: Span,
}

/// A disk by its geometry. A job's block is a sector.
#[derive(Debug)]
pub struct GeometricDisk {
    geometry: Geometry,
    cylinder: u64,
}

impl GeometricDisk {
    /// A disk with its head at cylinder 0.
    pub fn new(geometry: Geometry) -> Self {
        Self { geometry, cylinder: 0 }
    }
}

impl Geometry {
    /// The sectors of a cylinder.
    pub fn sectors_per_cylinder(&self) -> u64 {
        self.sectors_per_track * self.tracks_per_cylinder
    }

    /// How long a seek over so many cylinders takes.
    pub fn seek(&self, cylinders: u64) -> Span {
        let distance = cylinders as f64;
        let micros = match cylinders {
            0 => 0.0,
            _ if cylinders < self.seek_bend => {
                self.seek_short.0 + self.seek_short.1 * distance.sqrt()
            }
            _ => self.seek_long.0 + self.seek_long.1 * distance,
        };
        Span((micros * 1_000.0) as u64)
    }

    /// The time of one sector under the head.
    fn sector_time(&self) -> Span {
        Span(self.rotation.0 / self.sectors_per_track)
    }

    /// How long from a moment until a sector begins to pass under the head.
    fn until_sector(&self, now: Time, sector: u64) -> Span {
        let track = sector / self.sectors_per_track;
        let place = (sector + track * self.track_skew) % self.sectors_per_track;
        let begins = place * self.sector_time().0;
        let angle = now.0 % self.rotation.0;
        Span((begins + self.rotation.0 - angle) % self.rotation.0)
    }
}

impl Service for GeometricDisk {
    fn time(&mut self, now: Time, job: &Job) -> Span {
        let geometry = &self.geometry;
        let cylinder = job.block / geometry.sectors_per_cylinder();
        let bus = Span(
            geometry.bus_overhead.0
                + job.blocks * geometry.sector_bytes * geometry.bus_nanos_per_byte,
        );
        let is_write = job.kind == JobKind::Write;
        let mut at = now + geometry.overhead;
        // What is to be written is sent to the disk's memory while the head travels.
        let seek = geometry.seek(cylinder.abs_diff(self.cylinder));
        at = at + if is_write { Span(seek.0.max(bus.0)) } else { seek };
        at = at + geometry.settle;
        at = at + geometry.until_sector(at, job.block);
        let last = job.block + job.blocks - 1;
        let switches = last / geometry.sectors_per_track - job.block / geometry.sectors_per_track;
        at = at + Span(job.blocks * geometry.sector_time().0);
        // The next track begins later by the skew, which is there to cover the switch.
        let skew = Span(geometry.track_skew * geometry.sector_time().0);
        at = at + Span(switches * skew.0.max(geometry.head_switch.0));
        if !is_write {
            at = at + bus;
        }
        self.cylinder = last / geometry.sectors_per_cylinder();
        at.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Geometry = Geometry {
        sectors_per_track: 100,
        tracks_per_cylinder: 4,
        sector_bytes: 512,
        rotation: Span::from_millis(10),
        track_skew: 10,
        overhead: Span::ZERO,
        head_switch: Span::from_millis(1),
        settle: Span::ZERO,
        seek_bend: 100,
        seek_short: (1_000.0, 100.0),
        seek_long: (1_800.0, 2.0),
        bus_nanos_per_byte: 0,
        bus_overhead: Span::ZERO,
    };

    fn read(block: u64, blocks: u64) -> Job {
        Job { id: 0, kind: JobKind::Read, block, blocks }
    }

    #[test]
    fn seeks_follow_the_root_then_the_line() {
        assert_eq!(PLAIN.seek(0), Span::ZERO);
        assert_eq!(PLAIN.seek(16), Span::from_micros(1_400));
        assert_eq!(PLAIN.seek(100), Span::from_micros(2_000));
        assert_eq!(PLAIN.seek(600), Span::from_micros(3_000));
    }

    #[test]
    fn a_sector_comes_round_once_a_rotation() {
        let mut disk = GeometricDisk::new(PLAIN);
        // Sector 50 begins at half a rotation and takes a hundredth.
        assert_eq!(disk.time(Time::ZERO, &read(50, 1)), Span::from_micros(5_100));
        let missed = Time(5_100_000);
        assert_eq!(disk.time(missed, &read(50, 1)), Span::from_millis(10));
        // The next one in sequence is there at once.
        assert_eq!(disk.time(missed, &read(51, 1)), Span::from_micros(100));
        // The second track begins ten sectors later; a switch is covered by the skew.
        assert_eq!(disk.time(Time::ZERO, &read(100, 1)), Span::from_micros(1_100));
        assert_eq!(disk.time(Time::ZERO, &read(99, 2)), Span::from_micros(9_900 + 200 + 1_000));
    }

    #[test]
    fn the_head_stays_where_the_last_request_ended() {
        let mut disk = GeometricDisk::new(PLAIN);
        let far = read(40_000, 1);
        // 100 cylinders in 2 ms, then until the track's first sector is there.
        assert_eq!(disk.time(Time::ZERO, &far), Span::from_micros(10_100));
        let again = disk.time(Time::ZERO, &far);
        assert_eq!(again, Span::from_micros(100), "the head is there");
    }

    #[test]
    fn the_bus_takes_its_time_after_reads_and_beside_the_seeks_of_writes() {
        let slow =
            Geometry { bus_nanos_per_byte: 1_000, bus_overhead: Span::from_micros(250), ..PLAIN };
        let time = |kind| {
            let job = Job { kind, ..read(40_050, 1) };
            GeometricDisk::new(slow).time(Time::ZERO, &job)
        };
        assert_eq!(time(JobKind::Read), Span::from_micros(5_100 + 250 + 512));
        assert_eq!(time(JobKind::Write), Span::from_micros(5_100));
    }
}
