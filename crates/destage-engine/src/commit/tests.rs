//! A journal as a model: what each flush and each sync covers is known, any of them may fail, take its time or find no room.

use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;

/// A disk that does what it is told, or not.
#[derive(Debug, Default)]
struct Disk {
    appended: u64,
    written: u64,
    /// On the medium for certain.
    durable: u64,
    /// A sync has failed: what it covered may be gone, whatever syncs say that began later.
    has_lost: bool,
    /// How many syncs have begun.
    begun: u64,
    /// The syncs of the lanes that ended well: which they were, and what they covered.
    synced: Vec<(u64, u64)>,
    /// Durable writes that ended well while an earlier one had not: their first and last groups.
    islands: Vec<(u64, u64)>,
}

/// Lanes of syncs, and after them those of durable writes.
const SYNCS: usize = 2;
const LANES: usize = SYNCS + 3;

/// A sync under way.
#[derive(Clone, Copy, Debug)]
struct Sync {
    number: u64,
    /// What was durable when it began.
    from: u64,
    upto: u64,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Good,
    Full,
    Failed,
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Act {
    Append,
    Want,
    Begin { is_prompt: bool, has_readers: bool, is_short: bool },
    Ahead,
    EndFlush(Fate),
    EndSync(usize, Fate),
    Pass,
}

#[derive(Debug)]
struct Bench {
    commit: GroupCommit,
    disk: Disk,
    now: Time,
    flush: Option<bool>,
    lanes: [Option<Sync>; LANES],
    told: u64,
    is_dead: bool,
    wanted: u64,
    /// Negative control: counts syncs as they end.
    unsafe_any_order: bool,
}

impl Bench {
    fn new(settings: CommitSettings) -> Self {
        let disk = Disk::default();
        Self {
            commit: GroupCommit::new(settings, Time::from_secs(1)),
            disk,
            now: Time::from_secs(1),
            flush: None,
            lanes: [None; LANES],
            told: 0,
            is_dead: false,
            wanted: 0,
            unsafe_any_order: false,
        }
    }

    fn log(&self) -> Log {
        Log {
            buffered_bytes: (self.disk.appended - self.disk.written) as usize * 100,
            written: Lsn(self.disk.written),
            is_light: self.disk.appended - self.disk.written < 5,
            is_direct: self.writes_durably() || self.disk.written == self.disk.durable,
            is_mark_due: self.disk.written > self.disk.durable,
        }
    }

    fn writes_durably(&self) -> bool {
        self.lanes[SYNCS..].iter().any(Option::is_some)
    }

    fn begin(&mut self, load: Load) {
        for _ in 0..8 {
            let log = self.log();
            let Some(step) = self.commit.next_due(self.now, log, load) else {
                let timeout = self.commit.next_timeout(log);
                assert!(timeout.is_none_or(|at| at > self.now), "woken for nothing: {self:?}");
                return;
            };
            self.step(step);
        }
        panic!("there is always something due: {self:?}");
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write { here } => {
                assert!(self.flush.is_none() && !self.writes_durably());
                self.flush = Some(false);
                if here {
                    self.end_flush(Fate::Good);
                }
            }
            Step::WriteAndSync { here } => {
                assert!(self.flush.is_none() && !self.writes_durably());
                self.flush = Some(true);
                if here {
                    self.end_flush(Fate::Good);
                }
            }
            // What is too much for one write of the segment takes a flush.
            Step::WriteDurably { lane, .. } if self.disk.appended - self.disk.written == 4 => {
                self.commit.not_begun(self.now, lane);
            }
            Step::WriteDurably { lane, here } => {
                assert!(self.flush.is_none() && self.lanes[lane].is_none());
                assert!(self.lanes[..SYNCS].iter().all(Option::is_none));
                let Disk { written: from, appended: upto, .. } = self.disk;
                self.disk.written = upto;
                self.lanes[lane] = Some(Sync { number: 0, from, upto });
                if here {
                    self.end_sync(lane, Fate::Good);
                }
            }
            Step::Sync { lane } if self.disk.written == self.disk.durable => {
                self.commit.not_begun(self.now, lane);
            }
            Step::Sync { lane } => {
                assert!(self.flush.is_none() && self.lanes[lane].is_none());
                self.disk.begun += 1;
                let Disk { begun: number, durable: from, written: upto, .. } = self.disk;
                self.lanes[lane] = Some(Sync { number, from, upto });
            }
        }
        self.news();
    }

    fn end_flush(&mut self, fate: Fate) {
        let Some(sync) = self.flush.take() else { return };
        let result = match fate {
            Fate::Full => Err(LogFault::Full { durable: Lsn(self.disk.durable) }),
            Fate::Failed => Err(LogFault::Failed),
            Fate::Good => {
                self.disk.written = self.disk.appended;
                if sync && !self.disk.has_lost {
                    self.disk.durable = self.disk.written;
                }
                Ok(Lsn(self.disk.written))
            }
        };
        self.is_dead |= matches!(fate, Fate::Failed);
        let took = Span::from_micros(50);
        self.commit.ended(
            self.now,
            if sync {
                Ended::WroteAndSynced { result, took }
            } else {
                Ended::Wrote(result.map(drop))
            },
        );
        self.news();
    }

    fn end_sync(&mut self, lane: usize, fate: Fate) {
        let Some(Sync { number, from, upto }) = self.lanes[lane].take() else { return };
        let disk = &mut self.disk;
        let result = match fate {
            Fate::Failed | Fate::Full if lane >= SYNCS => {
                self.is_dead = true;
                Err(LogFault::Failed)
            }
            Fate::Good if lane >= SYNCS => {
                disk.islands.push((from, upto));
                while let Some(at) = disk.islands.iter().position(|&(from, _)| from == disk.durable)
                {
                    disk.durable = disk.islands.swap_remove(at).1;
                }
                Ok(Lsn(upto))
            }
            Fate::Failed | Fate::Full => {
                // What ended well and began before it has been looked at; what began later may have been told nothing.
                let earlier = disk.synced.iter().filter(|(other, _)| *other < number);
                let kept = earlier.map(|&(_, upto)| upto).max().unwrap_or(0).max(from);
                disk.durable = disk.durable.min(kept);
                disk.has_lost = true;
                self.is_dead = true;
                Err(LogFault::Failed)
            }
            Fate::Good => {
                if !disk.has_lost {
                    disk.durable = disk.durable.max(upto);
                    disk.synced.push((number, upto));
                }
                Ok(Lsn(upto))
            }
        };
        let took = Span::from_micros(50);
        if let (true, Ok(upto)) = (self.unsafe_any_order, result) {
            self.told = self.told.max(upto.0);
        }
        self.commit.ended(self.now, Ended::Synced { lane, result, took });
        self.news();
    }

    fn news(&mut self) {
        while let Some(news) = self.commit.poll_news() {
            if let News::Durable { upto, .. } = news {
                self.told = self.told.max(upto.0);
            }
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Append => self.disk.appended += 1,
            Act::Want => {
                self.wanted = self.disk.appended;
                self.commit.want(Lsn(self.wanted));
            }
            Act::Begin { is_prompt, has_readers, is_short } => {
                let is_room_short = is_short;
                self.begin(Load { is_prompt, has_readers, is_room_short, ..Load::default() });
            }
            Act::Ahead => {
                let log = self.log();
                if let Some(step) = self.commit.next_ahead(self.now, log, Load::default()) {
                    self.step(step);
                }
            }
            Act::EndFlush(fate) => self.end_flush(fate),
            Act::EndSync(lane, fate) => self.end_sync(lane, fate),
            Act::Pass => self.now = self.now + Span::from_millis(20),
        }
    }

    /// The disk works from now on: everything wanted is durable in the end, unless it had failed.
    fn settle(&mut self) {
        for _ in 0..40 {
            self.begin(Load::default());
            self.end_flush(Fate::Good);
            (0..LANES).for_each(|lane| self.end_sync(lane, Fate::Good));
            self.act(Act::Pass);
        }
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![8 => Just(Fate::Good), 2 => Just(Fate::Full), 1 => Just(Fate::Failed)]
}

fn act() -> impl Strategy<Value = Act> {
    let begin = (any::<bool>(), any::<bool>(), any::<bool>());
    prop_oneof![
        4 => Just(Act::Append),
        3 => Just(Act::Want),
        6 => begin.prop_map(|(is_prompt, has_readers, is_short)| Act::Begin { is_prompt, has_readers, is_short }),
        1 => Just(Act::Ahead),
        3 => fate().prop_map(Act::EndFlush),
        4 => (0..LANES, fate()).prop_map(|(lane, fate)| Act::EndSync(lane, fate)),
        1 => Just(Act::Pass),
    ]
}

fn settings() -> impl Strategy<Value = CommitSettings> {
    let writes = prop_oneof![Just(0), 1..=LANES - SYNCS];
    (writes, 1..=SYNCS, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(durable_writes, lanes, is_here, is_beside, is_marked)| CommitSettings {
            // Lanes of durable writes come after all those of syncs.
            lanes: if durable_writes > 0 { SYNCS } else { lanes },
            durable_writes,
            here_max: is_here.then_some(Span::from_millis(3)),
            write_ahead_bytes: 300,
            write_beside_bytes: if is_beside { 100 } else { usize::MAX },
            mark_after: is_marked.then_some(Span::from_secs(1)),
        },
    )
}

/// Whether nothing is told durable that is not.
fn is_true(settings: CommitSettings, acts: &[Act], unsafe_any_order: bool) -> bool {
    let mut bench = Bench { unsafe_any_order, ..Bench::new(settings) };
    for &act in acts {
        bench.act(act);
        if bench.told > bench.disk.durable {
            return false;
        }
    }
    bench.settle();
    assert!(bench.is_dead || bench.told >= bench.wanted, "somebody waits for ever: {bench:?}");
    assert_eq!(bench.commit.has_failed(), bench.is_dead, "{bench:?}");
    bench.told <= bench.disk.durable
}

proptest! {
    #[test]
    fn what_is_told_durable_is_and_what_is_wanted_becomes_it(
        settings in settings(), acts in proptest::collection::vec(act(), 0..80)
    ) {
        prop_assert!(is_true(settings, &acts, false));
    }
}

fn two_lanes() -> CommitSettings {
    CommitSettings {
        lanes: SYNCS,
        durable_writes: 0,
        here_max: Some(Span::from_millis(3)),
        write_ahead_bytes: 300,
        write_beside_bytes: usize::MAX,
        mark_after: None,
    }
}

/// Two syncs are under way; the second one ends well, the first one fails.
fn second_before_first() -> Vec<Act> {
    let begin = Act::Begin { is_prompt: true, has_readers: true, is_short: false };
    let mut acts = Vec::from([Act::Append, Act::Want, begin, Act::Append, begin]);
    acts.extend([Act::EndSync(1, Fate::Good), Act::EndSync(0, Fate::Failed)]);
    acts
}

#[test]
fn a_sync_behind_one_that_failed_counts_for_nothing() {
    assert!(is_true(two_lanes(), &second_before_first(), false));
}

#[test]
fn a_sync_that_ends_after_another_one_has_failed_counts_for_nothing() {
    let mut acts = second_before_first();
    acts.truncate(acts.len() - 2);
    acts.extend([Act::EndSync(1, Fate::Failed), Act::EndSync(0, Fate::Good)]);
    assert!(is_true(two_lanes(), &acts, false));
}

/// Negative control: syncs count as they end.
#[test]
fn syncs_that_count_as_they_end_fail_the_same_test() {
    assert!(!is_true(two_lanes(), &second_before_first(), true));
}

/// Three durable writes are under way; the first one ends last.
fn first_write_last(fate: Fate) -> Vec<Act> {
    let begin = Act::Begin { is_prompt: true, has_readers: true, is_short: false };
    let mut acts = Vec::new();
    (0..3).for_each(|_| acts.extend([Act::Append, Act::Want, begin]));
    let ends = [(SYNCS + 1, Fate::Good), (SYNCS + 2, Fate::Good), (SYNCS, fate)];
    acts.extend(ends.map(|(lane, fate)| Act::EndSync(lane, fate)));
    acts
}

fn three_writes() -> CommitSettings {
    CommitSettings { durable_writes: LANES - SYNCS, ..two_lanes() }
}

#[test]
fn durable_writes_count_in_the_order_of_the_log() {
    for fate in [Fate::Good, Fate::Failed] {
        let mut bench = Bench::new(three_writes());
        let acts = first_write_last(fate);
        for &act in &acts[..acts.len() - 1] {
            bench.act(act);
            assert_eq!(bench.told, 0, "{bench:?}");
        }
        assert_eq!(bench.disk.written, 3, "one does not wait for another: {bench:?}");
        assert!(is_true(three_writes(), &acts, false));
    }
}

/// Negative control: durable writes count as they end.
#[test]
fn durable_writes_that_count_as_they_end_fail_the_same_test() {
    for fate in [Fate::Good, Fate::Failed] {
        assert!(!is_true(three_writes(), &first_write_last(fate), true));
    }
}

#[test]
fn a_full_disk_is_left_alone_for_a_while_and_tried_again() {
    let mut bench = Bench::new(two_lanes());
    let begin = Act::Begin { is_prompt: false, has_readers: false, is_short: false };
    [Act::Append, Act::Want, begin].into_iter().for_each(|act| bench.act(act));
    bench.end_flush(Fate::Full);
    bench.act(begin);
    assert!(bench.flush.is_none() && bench.commit.next_timeout(bench.log()).is_some());
    (0..3).for_each(|_| bench.act(Act::Pass));
    bench.act(begin);
    bench.end_flush(Fate::Good);
    assert_eq!(bench.told, 1);
}

/// As long as the room is short and nobody waits there is nothing to be woken for.
#[test]
fn a_full_disk_that_nobody_waits_for_wakes_nobody() {
    let mut bench = Bench::new(two_lanes());
    (0..5).for_each(|_| bench.act(Act::Append));
    bench.act(Act::Ahead);
    bench.end_flush(Fate::Full);
    (0..3).for_each(|_| bench.act(Act::Pass));
    let short = Load { is_room_short: true, ..Load::default() };
    let log = bench.log();
    assert_eq!(bench.commit.next_due(bench.now, log, short), None);
    assert_eq!(bench.commit.next_timeout(log), None);
    assert!(bench.commit.next_due(bench.now, log, Load::default()).is_some());
}

#[test]
fn a_fast_disk_is_written_by_who_asks_and_beside_readers_by_a_lane() {
    let mut commit = GroupCommit::new(two_lanes(), Time::ZERO);
    let log = Log {
        buffered_bytes: 100,
        written: Lsn(0),
        is_light: true,
        is_direct: false,
        is_mark_due: true,
    };
    let prompt = Load { is_prompt: true, ..Load::default() };
    commit.want(Lsn(1));
    assert!(commit.patience(prompt).is_some());
    let readers = Load { has_readers: true, ..prompt };
    assert_eq!(commit.patience(readers), None);
    assert_eq!(commit.next_due(Time::ZERO, log, readers), Some(Step::Write { here: true }));
    commit.ended(Time::ZERO, Ended::Wrote(Ok(())));
    let log = Log { buffered_bytes: 0, written: Lsn(1), ..log };
    assert_eq!(commit.next_due(Time::ZERO, log, readers), Some(Step::Sync { lane: 0 }));
    let took = Span::from_secs(1);
    commit.ended(Time::ZERO, Ended::Synced { lane: 0, result: Ok(Lsn(1)), took });
    assert_eq!(commit.poll_news(), Some(News::Synced { lane: 0 }));
    assert_eq!(commit.poll_news(), Some(News::Durable { upto: Lsn(1), took }));
    // That disk is slow: from now on nothing is done here.
    commit.want(Lsn(2));
    let log = Log { buffered_bytes: 100, ..log };
    let step = commit.next_due(Time::ZERO, log, prompt);
    assert_eq!(step, Some(Step::WriteAndSync { here: false }));
}

#[test]
fn nobody_is_woken_for_a_mark_while_something_is_buffered() {
    let settings = CommitSettings { mark_after: Some(Span::from_secs(1)), ..two_lanes() };
    let mut commit = GroupCommit::new(settings, Time::ZERO);
    let idle = Log {
        buffered_bytes: 0,
        written: Lsn(1),
        is_light: true,
        is_direct: false,
        is_mark_due: true,
    };
    let buffered = Log { buffered_bytes: 100, ..idle };
    let now = Time::from_secs(5);
    assert_eq!(commit.next_due(now, buffered, Load::default()), None);
    assert_eq!(commit.next_timeout(buffered), None);
    // The control: without anything buffered the mark is due.
    assert!(commit.next_timeout(idle).is_some_and(|at| at <= now));
    assert!(commit.next_due(now, idle, Load::default()).is_some());
}
