//! A journal's durable writes, carried out by the kernel through io_uring: several under way at once, none of which holds up
//! the thread that asks, or takes another thread to be woken.

use crate::commit::{CommitDone, CommitWork};
use crate::ring::{is_for_now, new_ring};
use destage_core::Time;
use destage_journal::{DirDisk, DiskFile, LocalFile};
use io_uring::{IoUring, opcode, types};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most durable writes under way at a time.
pub const DEPTH_MAX: usize = 32;

/// The ring.
pub struct CommitRing {
    uring: IoUring,
    /// By number; the kernel reads their bytes.
    under_way: Vec<Option<CommitWork>>,
    count: usize,
    is_pushed: bool,
}

impl std::fmt::Debug for CommitRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitRing").field("count", &self.count).finish_non_exhaustive()
    }
}

impl CommitRing {
    /// For so many writes at a time, at most [`DEPTH_MAX`].
    ///
    /// # Errors
    /// The kernel grants none: a container's filter or an old kernel may not.
    pub fn new(depth: usize) -> io::Result<Self> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let under_way = (0..depth).map(|_| None).collect();
        Ok(Self { uring: new_ring(depth as u32)?, under_way, count: 0, is_pushed: false })
    }

    /// Readable when a write has ended.
    pub fn fd(&self) -> RawFd {
        self.uring.as_raw_fd()
    }

    /// Whether any is under way.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes a durable write, to be handed to the kernel by [`CommitRing::submit`].
    ///
    /// # Errors
    /// The work itself, if it is no such write or the ring is full: run it in another way.
    pub fn begin(&mut self, work: CommitWork) -> Result<(), Box<CommitWork>> {
        let number = self.under_way.iter().position(Option::is_none);
        let place = work.durable_write().and_then(|write| write.place());
        let (Some(number), Some((fd, offset, bytes))) = (number, place) else {
            return Err(Box::new(work));
        };
        let Ok(len) = u32::try_from(bytes.len()) else { return Err(Box::new(work)) };
        let entry = opcode::Write::new(types::Fd(fd.as_raw_fd()), bytes.as_ptr(), len)
            .offset(offset)
            .rw_flags(libc::RWF_DSYNC)
            .build()
            .user_data(number as u64);
        self.under_way[number] = Some(work);
        // SAFETY: the write keeps its bytes where they are and its file open, and stays in `under_way` until the kernel has
        // said that it has ended; dropping the ring waits for that.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        pushed.expect("no more writes at a time than the ring has entries");
        self.count += 1;
        self.is_pushed = true;
        Ok(())
    }

    /// Hands over what has been taken.
    pub fn submit(&mut self) {
        if std::mem::take(&mut self.is_pushed) {
            self.enter(0);
        }
    }

    /// The next write that has ended, well or not.
    pub fn next_ended(&mut self, now: Time) -> Option<CommitDone> {
        if self.count == 0 {
            return None;
        }
        let completion = self.uring.completion().next()?;
        let work = self.under_way[completion.user_data() as usize].take();
        let work = work.expect("the kernel ends what is under way");
        self.count -= 1;
        let len =
            work.durable_write().and_then(|write| write.place()).map(|(_, _, bytes)| bytes.len());
        match usize::try_from(completion.result()) {
            Ok(written) if Some(written) == len => Some(work.ended(now, Ok(()))),
            // Once more, whole: the same bytes at the same place.
            Ok(_) => Some(work.run().until(now)),
            Err(_) if is_for_now(-completion.result()) => Some(work.run().until(now)),
            Err(_) => {
                Some(work.ended(now, Err(io::Error::from_raw_os_error(-completion.result()))))
            }
        }
    }

    /// Enters the kernel, until so many have ended.
    fn enter(&mut self, wait_for: usize) {
        while let Err(error) = self.uring.submit_and_wait(wait_for) {
            if !is_for_now(error.raw_os_error().unwrap_or_default()) {
                // The kernel may be reading the bytes: they must not be given to anybody else.
                tracing::error!(%error, "io_uring failed with writes of the journal under way");
                std::process::abort();
            }
        }
    }
}

impl CommitRing {
    /// Leaves the writes under way to the kernel for good, with their memory and files: for the end of a process whose disk
    /// does not answer.
    pub fn abandon(self) {
        std::mem::forget(self);
    }
}

impl Drop for CommitRing {
    fn drop(&mut self) {
        while self.count > 0 {
            self.enter(1);
            while let Some(completion) = self.uring.completion().next() {
                self.under_way[completion.user_data() as usize] = None;
                self.count -= 1;
            }
        }
    }
}

/// How many durable writes are best under way at once in this journal's folder: 0 where one after the other is as good, or it
/// cannot be had. Takes some milliseconds; on a slow disk, as long as it takes for four writes one after the other, and a bit.
pub fn measure_depth(disk: &DirDisk) -> usize {
    match try_measure(disk.path()) {
        Ok(depth) => depth,
        Err(error) => {
            tracing::debug!(%error, "the journal is written through the page cache");
            0
        }
    }
}

/// Whether durable writes can be had in this journal's folder, however much is gained.
///
/// # Errors
/// Why not.
pub fn check_depth(disk: &DirDisk) -> io::Result<()> {
    let probe = Probe::new(disk.path())?;
    time_of(&mut new_ring(DEPTH_MAX as u32)?, &probe, 1).map(drop)
}

fn try_measure(folder: &Path) -> io::Result<usize> {
    if is_remote(folder) {
        return Err(io::Error::other("a file system on the network"));
    }
    let probe = Probe::new(folder)?;
    let mut ring = new_ring(DEPTH_MAX as u32)?;
    let mut best = DEPTHS.map(|_| Duration::MAX);
    let until = Instant::now() + PROBE_TIME_MAX;
    for round in 0..PROBE_ROUNDS {
        for (best, depth) in best.iter_mut().zip(DEPTHS) {
            if round > 0 && Instant::now() > until {
                break;
            }
            *best = (*best).min(time_of(&mut ring, &probe, depth)? / depth as u32);
        }
    }
    tracing::debug!(?best, depths = ?DEPTHS, "measured durable writes of the journal's disk");
    Ok(depth_of(best))
}

/// A file without a name, written before, and its handle for direct writes.
struct Probe {
    direct: Box<dyn DiskFile>,
    page: Page,
}

impl Probe {
    fn new(folder: &Path) -> io::Result<Self> {
        let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).mode(0o600).custom_flags(flags).open(folder)?;
        let file = LocalFile(file);
        file.write_at(0, &vec![0; DEPTHS[DEPTHS.len() - 1] * PROBE_BYTES])?;
        file.sync_data()?;
        let direct = file.direct()?;
        // A file system that takes no such writes says so now.
        let page = Page([0; PROBE_BYTES]);
        direct.write_durably(SECTOR, &page.0[..SECTOR as usize])?;
        Ok(Self { direct, page })
    }
}

/// How long so many writes at once take.
fn time_of(ring: &mut IoUring, probe: &Probe, depth: usize) -> io::Result<Duration> {
    let fd = probe.direct.fd().ok_or(io::ErrorKind::Unsupported)?.as_raw_fd();
    let page = &probe.page;
    let began = Instant::now();
    for number in 0..depth {
        let entry = opcode::Write::new(types::Fd(fd), page.0.as_ptr(), PROBE_BYTES as u32)
            .offset((number * PROBE_BYTES) as u64)
            .rw_flags(libc::RWF_DSYNC)
            .build();
        // SAFETY: the page and the file outlive the write: all that the kernel has taken are waited for below.
        let pushed = unsafe { ring.submission().push(&entry) };
        pushed.expect("no more writes at a time than the ring has entries");
    }
    let mut ended = 0;
    let mut failed = None;
    while ended < depth {
        if let Err(error) = ring.submit_and_wait(depth - ended)
            && !is_for_now(error.raw_os_error().unwrap_or_default())
        {
            if ended == 0 && ring.submission().len() == depth {
                // A container's filter lets nobody in; the kernel has taken nothing, and the ring is not used again.
                return Err(error);
            }
            tracing::error!(%error, "io_uring failed with writes under way");
            std::process::abort();
        }
        for completion in ring.completion() {
            ended += 1;
            if completion.result() != PROBE_BYTES as i32 {
                failed = Some(io::Error::from_raw_os_error(-completion.result().min(0)));
            }
        }
    }
    failed.map_or_else(|| Ok(began.elapsed()), Err)
}

/// The least depth that gains nearly as much as any; 0 where none gains.
fn depth_of(best: [Duration; DEPTHS.len()]) -> usize {
    let fastest = best.into_iter().min().unwrap_or_default();
    if best[0] < fastest.mul_f64(GAIN_MIN) {
        return 0;
    }
    let enough = |time: &Duration| *time <= fastest.mul_f64(NEARLY);
    best.iter().position(enough).map_or(0, |at| DEPTHS[at])
}

/// Whether the folder is on another host, where what a direct write promises is another's word.
fn is_remote(folder: &Path) -> bool {
    let of = File::open(folder).and_then(|file| Ok(rustix::fs::fstatfs(&file)?));
    of.is_ok_and(|of| REMOTE.contains(&(of.f_type as u64 & 0xFFFF_FFFF)))
}

#[repr(align(4096))]
struct Page([u8; PROBE_BYTES]);

const SECTOR: u64 = 512;
const PROBE_BYTES: usize = 4_096;
/// What is compared: one after the other, and so many at once.
const DEPTHS: [usize; 4] = [1, 2, 4, 8];
const PROBE_ROUNDS: usize = 6;
const PROBE_TIME_MAX: Duration = Duration::from_millis(30);
/// By so much a disk must be faster with several at once.
const GAIN_MIN: f64 = 1.25;
const NEARLY: f64 = 1.2;
/// NFS, CIFS, SMB2, FUSE, 9P, Ceph, AFS: their superblocks' magic numbers.
const REMOTE: [u64; 7] =
    [0x6969, 0xFF53_4D42, 0xFE53_4D42, 0x6573_5546, 0x0102_1997, 0x00C3_6400, 0x5346_414F];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::JournalCommit;
    use destage_core::Lsn;
    use destage_engine::{CommitSettings, Load, News};
    use destage_journal::{Journal, Options, Recovery};
    use destage_testkit::needs;
    use std::sync::Arc;

    const NOW: Time = Time(1_000_000_000);

    /// A journal on a real disk that takes durable writes; `None` where that has none to give.
    fn journal(folder: &Path) -> Option<(Journal, Recovery)> {
        let disk = DirDisk::open(folder.join("journal")).unwrap();
        let (mut journal, recovery) = Journal::open(Arc::new(disk), Options::default()).unwrap();
        journal.allow_durable_writes(DEPTH);
        if journal.durable_writes() == 0 {
            needs::refused("direct writes of the temporary folder's file system");
            return None;
        }
        Some((journal, recovery))
    }

    /// `None` where the kernel grants none.
    fn ring() -> Option<CommitRing> {
        let ring = CommitRing::new(DEPTH).ok();
        if ring.is_none() {
            needs::refused("io_uring");
        }
        ring
    }

    fn commit() -> JournalCommit {
        let settings = CommitSettings {
            lanes: 1,
            durable_writes: DEPTH,
            here_max: None,
            write_ahead_bytes: usize::MAX,
            write_beside_bytes: usize::MAX,
            mark_after: None,
        };
        JournalCommit::new(settings, usize::MAX, NOW)
    }

    /// Hands groups to the kernel, one write each.
    fn begin(ring: &mut CommitRing, commit: &mut JournalCommit, journal: &mut Journal) {
        for _ in 0..DEPTH {
            let lsn = journal.last() + 1;
            journal.append(lsn, NOW.0, 0, &lsn.to_le_bytes().repeat(1 + lsn as usize * 20));
            commit.want(Lsn(lsn));
            let load = Load { is_prompt: true, has_readers: true, ..Load::default() };
            let work = commit.next_due(NOW, journal, load).expect("someone waits");
            ring.begin(work).expect("a durable write, and there is room");
        }
        ring.submit();
    }

    const DEPTH: usize = 3;

    #[test]
    fn writes_of_the_kernel_are_told_in_order_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let Some((mut journal, _)) = journal(folder.path()) else { return };
        let (Some(mut ring), mut commit) = (ring(), commit()) else { return };
        for _ in 0..20 {
            begin(&mut ring, &mut commit, &mut journal);
            let (mut told, last) = (0, journal.last());
            while told < last {
                if let Some(done) = ring.next_ended(NOW) {
                    assert!(done.result.is_ok(), "{done:?}");
                    commit.ended(NOW, &mut journal, done);
                }
                while let Some(news) = commit.poll_news(&mut journal) {
                    let News::Durable { upto, .. } = news else { panic!("{news:?}") };
                    assert!(upto.0 > told);
                    told = upto.0;
                }
            }
            assert!(ring.is_empty() && !commit.is_busy());
        }
        // The power may go now: nothing is closed.
        drop(journal);
        let (journal, recovery) = self::journal(folder.path()).unwrap();
        assert_eq!(journal.last(), 20 * DEPTH as u64);
        for record in recovery.records(1) {
            let record = record.unwrap();
            let expected = record.lsn.to_le_bytes().repeat(1 + record.lsn as usize * 20);
            assert_eq!(record.payload, expected);
        }
    }

    #[test]
    fn a_ring_that_is_dropped_waits_for_the_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let Some((mut journal, _)) = journal(folder.path()) else { return };
        let (Some(mut ring), mut commit) = (ring(), commit()) else { return };
        begin(&mut ring, &mut commit, &mut journal);
        drop((ring, commit, journal));
        let (journal, _) = self::journal(folder.path()).unwrap();
        assert_eq!(journal.last(), DEPTH as u64, "they were under way, and have ended");
    }

    fn times(micros: [u64; DEPTHS.len()]) -> [Duration; DEPTHS.len()] {
        micros.map(Duration::from_micros)
    }

    #[test]
    fn the_depth_is_the_least_that_gains_and_none_where_none_does() {
        assert_eq!(depth_of(times([100, 70, 40, 38])), 4);
        assert_eq!(depth_of(times([100, 60, 40, 25])), 8);
        assert_eq!(depth_of(times([100, 50, 48, 47])), 2);
        assert_eq!(depth_of(times([100, 95, 90, 110])), 0);
        assert_eq!(depth_of(times([100, 150, 190, 220])), 0);
    }

    #[test]
    fn a_folder_is_measured_and_keeps_nothing_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let disk = DirDisk::open(folder.path().join("journal")).unwrap();
        let depth = measure_depth(&disk);
        assert!(depth == 0 || DEPTHS[1..].contains(&depth), "{depth}");
        let names: Vec<_> = std::fs::read_dir(disk.path()).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }
}
