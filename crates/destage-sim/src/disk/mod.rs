//! How long a disk takes, in virtual time: requests and the moment go in, what is done by then comes out. The simulator
//! and the modelled disk of the benchmarks ask the same model.
//!
//! Each arm serves one access at a time, in the order of the addresses, upwards and round again (C-SCAN); what has
//! waited long goes first. An access that goes on where the arm's last one ended costs the sequential time. Any other
//! costs the random one on average: half of the difference for the seek, by the root of its distance, and half for the
//! rotation, which is drawn from the seed. So sorted accesses are cheaper than scattered ones, as with real disks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::event::Stream;

mod profile;
#[cfg(test)]
mod tests;

pub use profile::{Accesses, FIRST_BYTES, Profile, TABLE_1_RAID_US, TABLE_1_SSD_US};

/// Since the model began.
pub type Moment = Duration;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Bytes from the medium.
    Read,
    /// Bytes to the medium, or into the write cache.
    Write {
        /// Done only once it is on the medium.
        through: bool,
    },
    /// Everything written before is on the medium.
    Flush,
    /// What moves no data, such as a trim.
    Note,
}

/// What the disk did since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests to read.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Requests to write.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Requests to flush.
    pub flushes: u64,
}

impl Counts {
    fn add(&mut self, access: Access, len: u64) {
        match access {
            Access::Read => {
                self.reads += 1;
                self.read_bytes += len;
            }
            Access::Write { .. } => {
                self.writes += 1;
                self.written_bytes += len;
            }
            Access::Flush => self.flushes += 1,
            Access::Note => {}
        }
    }
}

/// A disk in virtual time. The same requests at the same moments with the same seed take the same time.
#[derive(Debug)]
pub struct Model {
    profile: Profile,
    span_bytes: u64,
    arms: Vec<Arm>,
    random: Stream,
    /// Requests with parts that the arms have not served.
    requests: HashMap<u64, Request>,
    /// Answers on their way.
    answers: BinaryHeap<Reverse<(Moment, u64)>>,
    /// Writes that wait for room in the write cache: number, offset, length.
    waiting: VecDeque<(u64, u64, u64)>,
    cached_bytes: u64,
    /// Writes that are not on the medium, whether answered or not.
    unwritten: BTreeSet<u64>,
    /// Flushes and what they wait for: every write with a smaller number.
    flushes: VecDeque<u64>,
    next: u64,
    tags: HashMap<u64, u64>,
    is_instant: bool,
    counts: Counts,
    /// For how long all arms have worked, or will have once they are done.
    busy: Duration,
}

#[derive(Debug)]
struct Request {
    parts: u32,
    bytes: u64,
    /// It is answered when its last part is served; else it was answered when it came into the write cache.
    answers: bool,
    /// It takes room of the write cache until then.
    cached: bool,
}

#[derive(Debug, Default)]
struct Arm {
    /// By the arm's own address, then by number.
    queue: BTreeMap<(u64, u64), Part>,
    /// The same by number: the oldest first.
    by_age: BTreeMap<u64, u64>,
    /// What it does, and until when.
    serving: Option<(Moment, Part)>,
    /// Where its last access ended.
    head: u64,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    number: u64,
    address: u64,
    len: u64,
    is_write: bool,
    came: Moment,
}

/// An access that has waited so much longer than a random one takes is the next.
const PATIENCE: u32 = 32;

impl Model {
    /// A disk of so many bytes; the seed is of its rotation.
    pub fn new(profile: Profile, span_bytes: u64, seed: u64) -> Self {
        let arms = (0..profile.arms).map(|_| Arm::default()).collect();
        Self {
            profile,
            span_bytes,
            arms,
            random: Stream::new(seed, "rotation"),
            requests: HashMap::new(),
            answers: BinaryHeap::new(),
            waiting: VecDeque::new(),
            cached_bytes: 0,
            unwritten: BTreeSet::new(),
            flushes: VecDeque::new(),
            next: 0,
            tags: HashMap::new(),
            is_instant: false,
            counts: Counts::default(),
            busy: Duration::ZERO,
        }
    }

    /// Takes a request; `tag` comes back from [`Model::done`]. Lengths may be 0 where there is no data.
    pub fn submit(&mut self, now: Moment, tag: u64, access: Access, offset: u64, len: u64) {
        self.advance(now);
        self.next += 1;
        let number = self.next;
        self.tags.insert(number, tag);
        self.counts.add(access, len);
        if self.is_instant {
            self.answers.push(Reverse((now, number)));
            return;
        }
        match access {
            Access::Note => self.answer(number, now),
            Access::Flush if self.unwritten.is_empty() => self.answer(number, now),
            Access::Flush => self.flushes.push_back(number),
            Access::Read => self.begin(number, now, offset, len, false, true),
            Access::Write { through } if through || self.profile.write_cache_bytes == 0 => {
                self.begin(number, now, offset, len, true, true);
            }
            Access::Write { .. } => {
                self.waiting.push_back((number, offset, len));
                self.unwritten.insert(number);
                self.take_in(now);
            }
        }
    }

    /// The tags of the requests that are answered by `now`, in their order.
    pub fn done(&mut self, now: Moment) -> Vec<u64> {
        self.advance(now);
        let mut tags = Vec::new();
        while let Some(Reverse((at, number))) = self.answers.peek().copied() {
            if at > now {
                break;
            }
            self.answers.pop();
            tags.push(self.tags.remove(&number).expect("each request is answered once"));
        }
        tags
    }

    /// When something happens next, if nothing is asked meanwhile.
    pub fn next_moment(&self) -> Option<Moment> {
        let answers = self.answers.peek().map(|Reverse((at, _))| *at);
        let arms = self.arms.iter().filter_map(|arm| arm.serving.map(|(until, _)| until));
        arms.chain(answers).min()
    }

    /// With `true` everything takes no time from now on, what is under way included; with `false` the disk is itself
    /// again.
    pub fn set_instant(&mut self, now: Moment, is_instant: bool) {
        self.advance(now);
        self.is_instant = is_instant;
        if is_instant {
            // Served as the arms come to it; time stands still meanwhile.
            while self.arms.iter().any(|arm| arm.serving.is_some()) {
                for arm in 0..self.arms.len() {
                    if let Some((_, part)) = self.arms[arm].serving.take() {
                        self.served(part, now);
                    }
                    self.start(arm, now);
                }
            }
        }
    }

    /// What it was asked since it began.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How long its arms have worked, on average.
    pub fn busy(&self) -> Duration {
        self.busy / self.arms.len() as u32
    }

    /// Moves every arm on to `now`, in the order in which they finish.
    fn advance(&mut self, now: Moment) {
        loop {
            let finished = |arm: &Arm| arm.serving.map(|(until, _)| until);
            let first = (0..self.arms.len())
                .filter_map(|index| Some((finished(&self.arms[index])?, index)))
                .min();
            let Some((until, arm)) = first.filter(|(until, _)| *until <= now) else { return };
            let (_, part) = self.arms[arm].serving.take().expect("it was just found");
            self.served(part, until);
            self.start(arm, until);
        }
    }

    fn answer(&mut self, number: u64, at: Moment) {
        let link = if self.is_instant { Duration::ZERO } else { self.profile.link() };
        self.answers.push(Reverse((at + link, number)));
    }

    /// Lets waiting writes into the cache, as far as there is room. One that exceeds the cache goes in alone.
    fn take_in(&mut self, now: Moment) {
        while let Some(&(number, offset, len)) = self.waiting.front() {
            if self.cached_bytes > 0 && self.cached_bytes + len > self.profile.write_cache_bytes {
                return;
            }
            self.waiting.pop_front();
            self.cached_bytes += len;
            self.answer(number, now);
            self.begin(number, now, offset, len, true, false);
        }
    }

    /// Gives each arm its part.
    fn begin(
        &mut self,
        number: u64,
        now: Moment,
        offset: u64,
        len: u64,
        is_write: bool,
        answers: bool,
    ) {
        let parts = self.parts(number, now, offset, len, is_write);
        let cached = is_write && !answers;
        if is_write {
            self.unwritten.insert(number);
        }
        self.requests
            .insert(number, Request { parts: parts.len() as u32, bytes: len, answers, cached });
        for (arm, part) in parts {
            self.arms[arm].queue.insert((part.address, number), part);
            self.arms[arm].by_age.insert(number, part.address);
            self.start(arm, now);
        }
    }

    /// The request's part on each arm. Stripes of one arm lie one behind the other there.
    fn parts(
        &self,
        number: u64,
        came: Moment,
        offset: u64,
        len: u64,
        is_write: bool,
    ) -> Vec<(usize, Part)> {
        let (stripe, arms) = (self.profile.stripe_bytes, self.arms.len() as u64);
        let mut parts: Vec<(usize, Part)> = Vec::new();
        let (mut at, end) = (offset, offset + len.max(1));
        while at < end {
            let next = ((at / stripe + 1) * stripe).min(end);
            let arm = (at / stripe % arms) as usize;
            let address = at / stripe / arms * stripe + at % stripe;
            match parts.iter_mut().find(|(known, _)| *known == arm) {
                Some((_, part)) => part.len += next - at,
                None => {
                    parts.push((arm, Part { number, address, len: next - at, is_write, came }));
                }
            }
            at = next;
        }
        parts
    }

    /// Gives an idle arm its next part.
    fn start(&mut self, arm: usize, now: Moment) {
        if self.arms[arm].serving.is_some() {
            return;
        }
        let patience = Duration::from_micros(self.profile.accesses_us.random_write) * PATIENCE;
        let Some(part) = self.arms[arm].take_next(now, patience) else { return };
        let took =
            if self.is_instant { Duration::ZERO } else { self.service(self.arms[arm].head, part) };
        self.busy += took;
        self.arms[arm].head = part.address + part.len;
        self.arms[arm].serving = Some((now + took, part));
    }

    fn service(&mut self, head: u64, part: Part) -> Duration {
        let times = self.profile.accesses_us;
        let (sequential, random) = if part.is_write {
            (times.sequential_write, times.random_write)
        } else {
            (times.sequential_read, times.random_read)
        };
        let base = sequential.saturating_sub(self.profile.link_us) as f64;
        let more = part.len.saturating_sub(FIRST_BYTES) as f64;
        let transfer = more * 1e6 / self.profile.bytes_per_second as f64;
        let moved = if part.address == head {
            0.0
        } else {
            let half = random.saturating_sub(sequential) as f64 / 2.0;
            let distance = part.address.abs_diff(head) as f64;
            let share = distance * self.arms.len() as f64 / self.span_bytes as f64;
            // The mean of the root of the distance of two uniform points of [0, 1] is 8/15.
            half * share.min(1.0).sqrt() * (15.0 / 8.0) + half * 2.0 * self.random.share()
        };
        Duration::from_nanos(((base + transfer + moved) * 1000.0) as u64)
    }

    fn served(&mut self, part: Part, at: Moment) {
        let request = self.requests.get_mut(&part.number).expect("its part was under way");
        request.parts -= 1;
        if request.parts > 0 {
            return;
        }
        let request = self.requests.remove(&part.number).expect("it was just found");
        if request.answers {
            self.answer(part.number, at);
        }
        if request.cached {
            self.cached_bytes -= request.bytes;
            self.take_in(at);
        }
        if part.is_write {
            self.unwritten.remove(&part.number);
            self.end_flushes(at);
        }
    }

    fn end_flushes(&mut self, at: Moment) {
        let oldest = self.unwritten.first().copied().unwrap_or(u64::MAX);
        while let Some(&number) = self.flushes.front() {
            if number > oldest {
                return;
            }
            self.flushes.pop_front();
            let took = if self.is_instant {
                Duration::ZERO
            } else {
                Duration::from_micros(self.profile.flush_us)
            };
            self.answer(number, at + took);
        }
    }
}

impl Arm {
    /// The next upwards from where it is, else from the lowest; the oldest, if that has waited for long.
    fn take_next(&mut self, now: Moment, patience: Duration) -> Option<Part> {
        let (&oldest, &address) = self.by_age.first_key_value()?;
        let waited = now.saturating_sub(self.queue[&(address, oldest)].came);
        let key = if waited > patience {
            (address, oldest)
        } else {
            let upwards = self.queue.range((self.head, 0)..).next();
            *upwards.or_else(|| self.queue.first_key_value())?.0
        };
        self.by_age.remove(&key.1);
        self.queue.remove(&key)
    }
}
