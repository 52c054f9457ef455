use super::*;
use crate::event::Stream;
use destage_core::{
    Access, Ack, BatchId, ClientId, DomainId, Intent, Lsn, Policy, RequestId, UnitId, When,
};
use destage_record::{RecordSettings, RecordedCore, list};
use std::path::Path;

const BLOCK: u32 = 4_096;
const VERSION: &str = "1.2.3";

/// A small driver: random reads and writes of a few units, devices with times of their own.
struct Driver {
    core: RecordedCore,
    now: Time,
    random: Stream,
    next_request: u64,
    writing: Vec<(RequestId, UnitId)>,
    later: Vec<(Time, Later)>,
    /// When each request came and whether it writes, and how long those took that were answered.
    asked: Vec<(Time, bool)>,
    answered: Vec<(bool, Span)>,
    /// Where writes are announced together, at the end of a turn: those that are not yet, and those that are, by the client that
    /// stands for all of them.
    together: Option<Vec<(ClientId, Lsn)>>,
    announced: Vec<(ClientId, Vec<ClientId>)>,
}

#[derive(Clone, Copy, Debug)]
enum Later {
    Synced(Lsn),
    Fetched(UnitId),
    Destaged(BatchId),
}

impl Driver {
    fn new(policy: Policy, settings: Option<&RecordSettings>) -> Self {
        let mut core = RecordedCore::from(Core::new(Time::from_secs(5), policy));
        if let Some(settings) = settings {
            core.record(settings, VERSION, "a test").unwrap();
        }
        Self {
            core,
            now: Time::from_secs(5),
            random: Stream::new(7, "driver"),
            next_request: 0,
            writing: Vec::new(),
            later: Vec::new(),
            asked: Vec::new(),
            answered: Vec::new(),
            together: None,
            announced: Vec::new(),
        }
    }

    fn run(&mut self, requests: u64, units: u64) {
        for _ in 0..requests {
            self.now = self.now + self.random.around(Span::from_millis(2));
            self.complete();
            let unit = UnitId(self.random.below(units) as u32);
            let request = RequestId(self.next_request);
            self.next_request += 1;
            let writes = self.random.below(2) == 0;
            let bytes = BLOCK;
            let intent = if writes {
                Intent::Write { bytes, ack: Ack::Policy, fetch: self.random.below(2) == 0 }
            } else {
                Intent::Read
            };
            if writes {
                self.writing.push((request, unit));
            }
            self.asked.push((self.now, writes));
            self.core.handle(self.now, Input::Access { request, intent, units: &[unit] });
            self.effects();
            self.core.handle(self.now, Input::Tick);
            self.effects();
            self.announce();
        }
    }

    fn announce(&mut self) {
        let all = self.together.as_mut().map(std::mem::take).unwrap_or_default();
        let Some(&(client, lsn)) = all.last() else { return };
        self.announced.push((client, all.into_iter().map(|(client, _)| client).collect()));
        self.core.handle(self.now, Input::Respond { client, lsn, wrote: true });
        self.effects();
    }

    fn complete(&mut self) {
        self.later.sort_by_key(|(at, _)| *at);
        while self.later.first().is_some_and(|(at, _)| *at <= self.now) {
            let (_, later) = self.later.remove(0);
            let (result, identity) = (Ok(()), 99);
            let input = match later {
                Later::Synced(upto) => Input::Synced { upto, result },
                Later::Destaged(batch) => Input::Destaged { batch, result },
                Later::Fetched(unit) => {
                    let identity = identity + u64::from(unit.0);
                    Input::Fetched { unit, result: Ok(BLOCK), identity }
                }
            };
            self.core.handle(self.now, input);
            self.effects();
        }
    }

    fn effects(&mut self) {
        while let Some(effect) = self.core.poll_effect() {
            let mut after = |ms, later| self.later.push((self.now + Span::from_millis(ms), later));
            match effect {
                Effect::Execute { request, access, observed } => {
                    self.execute(request, access, observed);
                }
                Effect::Sync { upto } => after(1, Later::Synced(upto)),
                Effect::Fetch { unit } => after(4, Later::Fetched(unit)),
                Effect::Destage { batch, .. } => after(9, Later::Destaged(batch)),
                Effect::Send { client } => {
                    let of_all = self.announced.iter().position(|(first, _)| *first == client);
                    let all = of_all.map(|place| self.announced.remove(place).1);
                    for client in all.unwrap_or_else(|| vec![client]) {
                        let (at, writes) = self.asked[client.0 as usize];
                        self.answered.push((writes, self.now.since(at)));
                    }
                }
                Effect::Evict { unit } => {
                    let identity = 99 + u64::from(unit.0);
                    self.core.handle(self.now, Input::Evicted { identity });
                }
                _ => {}
            }
        }
    }

    fn execute(&mut self, request: RequestId, access: Access, observed: Lsn) {
        let client = ClientId(request.0 as u32);
        let place = self.writing.iter().position(|(writing, _)| *writing == request);
        let Some(place) = place else {
            let input = Input::Respond { client, lsn: observed, wrote: false };
            return self.core.handle(self.now, input);
        };
        let (_, unit) = self.writing.remove(place);
        let lsn = self.core.next_lsn();
        let (domain, bytes) = (DomainId(0), BLOCK);
        let units = &[(unit, BLOCK)];
        self.core
            .handle(self.now, Input::Write { domain, units, bytes, journal_bytes: bytes, access });
        match &mut self.together {
            _ if access != Access::Back => {}
            Some(together) => together.push((client, lsn)),
            None => self.core.handle(self.now, Input::Respond { client, lsn, wrote: true }),
        }
    }
}

fn policy() -> Policy {
    let mut policy = Policy::default();
    policy.limits.cache_bytes_max = 40 * u64::from(BLOCK);
    policy
}

/// A recorded run; its parts.
fn recorded(folder: &Path, policy: Policy, requests: u64, bytes_max: u64) -> Vec<Part> {
    let settings = RecordSettings { path: folder.join("run"), bytes_max, is_anonymous: false };
    let mut driver = Driver::new(policy, Some(&settings));
    driver.run(requests, 100);
    drop(driver);
    let read = |path| Part::read(std::fs::read(path).unwrap(), VERSION).unwrap();
    list(&settings.path).unwrap().into_iter().map(read).collect()
}

/// Nobody.
struct Silent;

impl Observer for Silent {
    fn input(&mut self, _: Time, _: &Input<'_>, _: &Core) {}
    fn effect(&mut self, _: Time, _: &Effect, _: &Core) {}
}

/// Looks at so many inputs.
struct Brief(u64);

impl Observer for Brief {
    fn is_stopped(&self) -> bool {
        self.0 == 0
    }

    fn input(&mut self, _: Time, _: &Input<'_>, _: &Core) {
        self.0 -= 1;
    }

    fn effect(&mut self, _: Time, _: &Effect, _: &Core) {}
}

#[test]
fn a_replay_ends_where_it_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let parts = recorded(folder.path(), policy(), 300, 1 << 30);
    let all = replay(&parts[0], &mut Silent).unwrap();
    let some = replay(&parts[0], &mut Brief(200)).unwrap();
    assert!(some.inputs == 200 && some.inputs < all.inputs, "{some:?} {all:?}");
    assert!(some.effects < all.effects && some.ended < all.ended, "{some:?} {all:?}");
    let mut load = Load::default();
    replay(&parts[0], &mut load).unwrap();
    let told = |until: u64| what_if_with(&load, Policy::clone, |told, _| told < until);
    assert!(told(50).is_none() && told(u64::MAX).is_some());
}

#[test]
fn what_was_recorded_gives_the_same_effects() {
    let folder = tempfile::tempdir().unwrap();
    let parts = recorded(folder.path(), policy(), 3_000, 1 << 30);
    let [part] = &parts[..] else { panic!("one part: {}", parts.len()) };
    assert_eq!(part.end, destage_record::End::Whole);
    let summary = replay(part, &mut Silent).unwrap();
    assert!(summary.inputs > 9_000 && summary.effects > 6_000, "{summary:?}");
    assert!(summary.duration() > Span::from_secs(4), "{summary:?}");
}

#[test]
fn another_policy_or_a_changed_input_is_found_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut part = recorded(folder.path(), policy(), 300, 1 << 30).remove(0);
    let other = Policy { when: When::Periodic { every: Span::from_secs(1) }, ..policy() };
    let core = part.core.clone();
    part.core.handle(Time::from_secs(5), Input::SetPolicy(&other));
    let error = replay(&part, &mut Silent).unwrap_err();
    assert!(matches!(error, ReplayError::Differs(_)), "{error}");
    assert!(error.to_string().contains("Effects now: "), "{error}");
    part.core = core;
    replay(&part, &mut Silent).unwrap();

    // The first byte of the first request's unit, with a checksum that is right again.
    let path = list(&folder.path().join("run")).unwrap().remove(0);
    let file = std::fs::read(path).unwrap();
    let mut found = 0;
    for at in 0..file.len() - 9 {
        let len = u32::from_le_bytes(file[at + 1..at + 5].try_into().unwrap()) as usize;
        let Some(payload) = file.get(at + 9..at + 9 + len) else { continue };
        let sum = crc32c::crc32c_append(crc32c::crc32c(&file[at..at + 5]), payload);
        if file[at] != 3 || sum.to_le_bytes() != file[at + 5..at + 9] {
            continue;
        }
        found += 1;
        let mut bad = file.clone();
        // Time, then an access (1): its request 0, its intent.
        assert_eq!(bad[at + 17..at + 19], [1, 0]);
        bad[at + 18] = 77;
        let sum =
            crc32c::crc32c_append(crc32c::crc32c(&bad[at..at + 5]), &bad[at + 9..at + 9 + len]);
        bad[at + 5..at + 9].copy_from_slice(&sum.to_le_bytes());
        let part = Part::read(bad, VERSION).unwrap();
        let error = replay(&part, &mut Silent).unwrap_err();
        assert!(error.to_string().contains("RequestId(77)"), "{error}");
        break;
    }
    assert_eq!(found, 1);
}

#[test]
fn a_recording_that_broke_off_replays_up_to_there_and_damage_is_told() {
    let folder = tempfile::tempdir().unwrap();
    drop(recorded(folder.path(), policy(), 3_000, 1 << 30));
    let path = list(&folder.path().join("run")).unwrap().remove(0);
    let file = std::fs::read(path).unwrap();
    let whole = replay(&Part::read(file.clone(), VERSION).unwrap(), &mut Silent).unwrap();
    let cut = Part::read(file[..file.len() - 4_000].to_vec(), VERSION).unwrap();
    assert!(matches!(cut.end, destage_record::End::BrokenOff { .. }));
    let part = replay(&cut, &mut Silent).unwrap();
    assert!(part.inputs > 0 && part.inputs < whole.inputs, "{part:?} {whole:?}");
    let mut bad = file.clone();
    bad[file.len() - 4_000] ^= 1;
    assert!(Part::read(bad, VERSION).is_err());
    assert!(Part::read(file, "1.2.4").unwrap_err().to_string().contains("another version"));
    assert!(Part::read(b"something else".to_vec(), VERSION).is_err());
}

/// The frames of a file: where each begins, its kind, and its payload's place.
fn frames(file: &[u8]) -> Vec<(usize, u8, std::ops::Range<usize>)> {
    let mut frames = Vec::new();
    let mut at = 10;
    while at < file.len() {
        let len = u32::from_le_bytes(file[at + 1..at + 5].try_into().unwrap()) as usize;
        frames.push((at, file[at], at + 9..at + 9 + len));
        at += 9 + len;
    }
    frames
}

/// Makes the checksum of the frame at `at` right again.
fn repair(file: &mut [u8], at: usize, payload: std::ops::Range<usize>) {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&file[at..at + 5]), &file[payload]);
    file[at + 5..at + 9].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn a_changed_file_is_read_or_refused_with_its_place_and_replays_to_an_end() {
    let folder = tempfile::tempdir().unwrap();
    drop(recorded(folder.path(), policy(), 300, 1 << 30));
    let path = list(&folder.path().join("run")).unwrap().remove(0);
    let file = std::fs::read(path).unwrap();
    let frames = frames(&file);
    let mut random = Stream::new(7, "changes");
    let [mut refused, mut unreadable, mut differs, mut impossible] = [0; 4];
    for round in 0..200 {
        let mut bad = file.clone();
        let wanted = if round % 8 == 0 { 2 } else { 3 };
        let of_kind: Vec<_> = frames.iter().filter(|(_, kind, _)| *kind == wanted).collect();
        let (at, _, payload) = of_kind[random.below(of_kind.len() as u64) as usize];
        for _ in 0..=random.below(3) {
            let place = payload.start + random.below(payload.len() as u64) as usize;
            bad[place] = match random.below(3) {
                0 => bad[place] ^ 1 << random.below(8),
                1 => 0xff,
                _ => random.next_number() as u8,
            };
        }
        if bad == file {
            continue;
        }
        // A sum that is wrong finds it, or lets the file end there if it is the last frame.
        let found = Part::read(bad.clone(), VERSION);
        assert!(found.is_err_and(|damage| damage.at == *at as u64), "round {round}");
        repair(&mut bad, *at, payload.clone());
        let Ok(part) = Part::read(bad, VERSION) else {
            refused += 1;
            continue;
        };
        let (mut events, mut scratch) = (part.events(), Scratch::default());
        let read = loop {
            match events.next(&mut scratch) {
                Ok(Some(_)) => {}
                Ok(None) => break Ok(()),
                Err(damage) => break Err(damage),
            }
        };
        // The core's own checks find what no driver did; the command turns those into words.
        let replayed = std::panic::catch_unwind(|| replay(&part, &mut Silent));
        match (replayed, read) {
            (Err(_), _) => impossible += 1,
            (Ok(Err(ReplayError::Differs(difference))), _) => {
                assert!(difference.byte > payload.start as u64 || wanted == 2, "{difference}");
                differs += 1;
            }
            (Ok(Err(ReplayError::Damaged(damage))), _) => {
                assert!(payload.contains(&(damage.at as usize)), "{damage}");
                unreadable += 1;
            }
            (Ok(Ok(_)), read) => assert_eq!(read, Ok(()), "round {round}"),
        }
    }
    assert!(
        refused > 0 && unreadable > 0 && differs > 20 && impossible > 0,
        "{refused} {unreadable} {differs} {impossible}"
    );
}

#[test]
fn the_oldest_parts_make_room_and_each_that_is_left_replays() {
    let folder = tempfile::tempdir().unwrap();
    let bytes_max = RecordSettings::BYTES_MIN;
    let parts = recorded(folder.path(), policy(), 200_000, bytes_max);
    let total: u64 = parts.iter().map(Part::len).sum();
    assert!(parts.len() > 1 && total <= bytes_max, "{} parts, {total} bytes", parts.len());
    assert!(parts[0].begin.part > 1, "the first one is gone");
    for (part, next) in parts.iter().zip(&parts[1..]) {
        assert_eq!((part.begin.part + 1, next.begin.after_gap), (next.begin.part, false));
        assert_eq!(part.begin.run, next.begin.run);
    }
    for part in &parts {
        assert!(replay(part, &mut Silent).unwrap().inputs > 1_000);
    }
}

#[test]
fn a_second_run_begins_other_parts() {
    let folder = tempfile::tempdir().unwrap();
    recorded(folder.path(), policy(), 10, 1 << 30);
    let parts = recorded(folder.path(), policy(), 20, 1 << 30);
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[1].begin.part, 1);
}

/// The load of a run and its counts.
fn load(policy: Policy) -> (Load, Tally) {
    let folder = tempfile::tempdir().unwrap();
    let part = recorded(folder.path(), policy, 5_000, 1 << 30).remove(0);
    let mut both = (Load::default(), Tally::default());
    replay(&part, &mut both).unwrap();
    both
}

#[test]
fn the_same_policy_again_comes_near_what_was_recorded() {
    let (load, recorded) = load(policy());
    let modelled = what_if(&load, Policy::clone).unwrap();
    // The test's driver looks at what is done only when a request comes.
    let near = |ours: u64, theirs: u64| {
        assert!(ours.abs_diff(theirs) <= theirs / 5, "{ours} for {theirs}");
    };
    near(modelled.tally.writes, recorded.writes);
    near(modelled.tally.origin_writes, recorded.origin_writes);
    near(modelled.tally.fetches, recorded.fetches);
    near(modelled.tally.batches, recorded.batches);
    // The last ones are under way when the recording ends.
    let answered = modelled.reads.answered + modelled.writes.answered;
    assert!((4_900..=5_000).contains(&answered), "{answered}");
}

#[test]
fn another_policy_writes_less_to_the_origin_and_lets_it_grow_older() {
    let (load, recorded) = load(policy());
    let periodic = When::Periodic { every: Span::from_secs(2) };
    let rare = what_if(&load, |policy| Policy { when: periodic, ..policy.clone() }).unwrap();
    assert!(
        rare.tally.origin_writes < recorded.origin_writes / 2,
        "{} {}",
        rare.tally.origin_writes,
        recorded.origin_writes
    );
    assert!(rare.tally.staleness_max > 1.5 && recorded.staleness_max < 0.5);
    let through = destage_core::Acknowledge::Origin;
    let through = what_if(&load, |p| Policy { acknowledge: through, ..p.clone() }).unwrap();
    assert!(through.writes.mean > 0.008, "a write waits for the origin: {:?}", through.writes);
}

#[test]
fn a_larger_cache_begins_with_more_if_the_recorded_one_was_full() {
    let (mut load, _) = load(policy());
    // All alike, so that nothing but what is held makes a difference.
    load.fetches.iter_mut().for_each(|fetch| fetch.timed.took = Span::from_millis(4));
    let larger = |policy: &Policy| {
        let mut policy = policy.clone();
        policy.limits.cache_bytes_max = 70 * u64::from(BLOCK);
        policy
    };
    let mut fetched = |held_bytes, held: &[u32]| {
        (load.held_bytes, load.held) = (held_bytes, held.to_vec());
        what_if(&load, larger).unwrap().tally.fetches
    };
    let full = 40 * u64::from(BLOCK);
    // The recording began with nothing; had it begun with some of the units, a larger cache had held more of them.
    let some: Vec<u32> = (0..20).collect();
    let (not_full, more) = (fetched(full / 2, &some), fetched(full, &some));
    assert!(more < not_full && more + 60 > not_full, "{more} {not_full}");
    assert_eq!(fetched(full, &[]), fetched(0, &[]), "none of them was held");
}

#[test]
fn of_a_volume_only_the_bytes_of_writes_count_against_the_dirty_limit() {
    let (mut load, _) = load(policy());
    let mut most_dirty = |subject: &str| {
        load.note_subject(subject);
        let tight = |policy: &Policy| {
            let mut policy = policy.clone();
            policy.when = When::Periodic { every: Span::from_secs(2) };
            (policy.limits.dirty_bytes_max, policy.limits.dirty_bytes_low) = (1 << 20, 1 << 19);
            policy
        };
        what_if(&load, tight).unwrap().tally.dirty_bytes_max
    };
    let (volume, rows) = (most_dirty("block v"), most_dirty("serve"));
    assert!(volume > rows + rows / 4, "{volume} {rows}");
}

/// Clients that wait for their answers send no more: where some had to, the waits do not pile up.
#[test]
fn no_more_requests_wait_than_did_where_a_limit_held_them_back() {
    let tight = |policy: &Policy| {
        let mut policy = policy.clone();
        policy.at_limit = destage_core::AtLimit::Block;
        (policy.limits.dirty_bytes_max, policy.limits.dirty_bytes_low) = (1 << 16, 1 << 15);
        policy
    };
    let slow = |mut load: Load| {
        load.destages.iter_mut().for_each(|batch| batch.took = Span::from_millis(200));
        load
    };
    let free = slow(load(policy()).0);
    assert_eq!(free.clients(), None, "no limit was met");
    let open = what_if(&free, tight).unwrap();
    let mut waited = slow(load(tight(&policy())).0);
    assert!(waited.clients().expect("a limit was met") > 1);
    waited.waiting_max = 4;
    let closed = what_if(&waited, tight).unwrap();
    let (open, closed) = (open.writes.mean, closed.writes.mean);
    assert!(closed > 0.0 && closed < open / 4.0, "{closed} {open}");
}

/// At a limit as many writes wait as did at the one nearest in time.
#[test]
fn as_many_writes_wait_at_a_limit_as_did_at_that_time() {
    let at = Time::from_secs;
    let mut known = Load::default();
    assert_eq!(known.writes_at_limit(at(1)), None);
    known.held_back = vec![(at(10), 3), (at(20), 7)];
    let writes = [0, 10, 14, 16, 99].map(|second| known.writes_at_limit(at(second)));
    assert_eq!(writes, [3, 3, 3, 7, 7].map(Some));
    // In a run: with one at a time nothing piles up.
    let tight = |policy: &Policy| {
        let mut policy = policy.clone();
        policy.at_limit = destage_core::AtLimit::Block;
        (policy.limits.dirty_bytes_max, policy.limits.dirty_bytes_low) = (1 << 16, 1 << 15);
        policy
    };
    let mut waited = load(tight(&policy())).0;
    waited.destages.iter_mut().for_each(|batch| batch.took = Span::from_millis(200));
    assert!(waited.held_back.iter().any(|(_, writes)| *writes > 1), "{:?}", waited.held_back);
    let many = what_if(&waited, tight).unwrap().writes.mean;
    waited.held_back.iter_mut().for_each(|(_, writes)| *writes = 1);
    let one = what_if(&waited, tight).unwrap().writes.mean;
    assert!(one > 0.0 && one < many, "{one} {many}");
}

/// A drain is followed to its end, whatever it has to write.
#[test]
fn what_a_drain_finds_dirty_is_written() {
    let late = |policy: &Policy| {
        let mut policy = policy.clone();
        policy.when = When::OnPressure;
        policy
    };
    let mut load = load(policy()).0;
    load.ended_clean = false;
    let left = what_if(&load, late).unwrap().tally.left_dirty;
    assert!(left > 0, "the run ends with something to drain");
    let written = |load: &Load| {
        let tally = what_if(load, late).unwrap().tally;
        assert_eq!(tally.left_dirty, 0);
        tally.origin_writes
    };
    // Nothing was left in the recorded run, or a drain was recorded.
    load.ended_clean = true;
    let all = written(&load);
    load.ended_clean = false;
    load.arrivals.push((load.ended, load::Arrival::Drain));
    load.causes.push(None);
    assert_eq!(written(&load), all);
}

#[test]
fn the_times_of_requests_are_found_in_a_recording() {
    for is_together in [false, true] {
        times_are_found(is_together);
    }
}

fn times_are_found(is_together: bool) {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        RecordSettings { path: folder.path().join("run"), bytes_max: 1 << 30, is_anonymous: false };
    let mut driver = Driver::new(policy(), Some(&settings));
    driver.together = is_together.then(Vec::new);
    driver.run(3_000, 100);
    let answered = std::mem::take(&mut driver.answered);
    drop(driver);
    let path = list(&settings.path).unwrap().remove(0);
    let part = Part::read(std::fs::read(path).unwrap(), VERSION).unwrap();
    let mut watched = Watched::new(Span::ZERO);
    watched.note_subject(if is_together { "serve" } else { "block v" });
    replay(&part, &mut watched).unwrap();
    let run = watched.into_run().1.expect("there was one");
    for (writes, found) in [(false, run.reads), (true, run.writes)] {
        let spans: Vec<_> = answered.iter().filter(|(kind, _)| *kind == writes).collect();
        let mean =
            spans.iter().map(|(_, span)| span.as_secs_f64()).sum::<f64>() / spans.len() as f64;
        let found = found.expect("they are told");
        assert!(found.count > 1_400 && found.count == spans.len() as u64, "{}", found.count);
        assert!((found.mean - mean).abs() < 1e-9 && mean > 0.001, "{} {mean}", found.mean);
    }
    assert!(Watched::new(Span::ZERO).into_run().1.is_none(), "nothing was recorded");
}

mod watched;
