//! The requests under way: what each waits for, what it is answered, and the streams that clients make.

use super::VolumeOptions;
use super::fragment::Work;
use crate::block::{Extent, Lba};
use crate::request::{Reply, RequestError};
use destage_core::{Lsn, Sequential};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// All requests under way, and the replies that nobody has taken.
#[derive(Debug)]
pub(super) struct Requests {
    under_way: HashMap<u32, Asked>,
    /// What the requests under way count for.
    bytes: u64,
    last: u32,
    /// Requests to zero more than a fragment holds, whose next fragment is due.
    rests: VecDeque<u32>,
    replies: VecDeque<(u64, Reply)>,
    reads: Sequential,
    /// The streams of writes, zeros among them.
    writes: Sequential,
    requests_max: usize,
    bytes_max: u64,
}

/// A request under way.
#[derive(Debug)]
struct Asked {
    tag: u64,
    kind: Kind,
    /// Fragments that are not done.
    left: u32,
    error: Option<RequestError>,
    /// The newest group that it wrote or saw.
    lsn: Lsn,
    /// Whether a fragment went past the log.
    is_through: bool,
    /// Where a read's bytes are gathered.
    buffer: Vec<u8>,
    /// What it counts for.
    bytes: u64,
    /// What is still to be zeroed once the fragment before it is done.
    rest: Option<Rest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write { fua: bool },
    Flush,
    Status,
    Cache,
}

/// Whole blocks that no fragment has been made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    pub(super) from: Lba,
    pub(super) to: Lba,
    pub(super) punch: bool,
}

/// A request of which all fragments are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) kind: Kind,
    /// The newest group that it wrote or saw.
    pub(super) lsn: Lsn,
    /// Whether a fragment went past the log.
    pub(super) is_through: bool,
}

impl Requests {
    pub(super) fn new(options: &VolumeOptions) -> Self {
        Self {
            under_way: HashMap::new(),
            bytes: 0,
            last: 0,
            rests: VecDeque::new(),
            replies: VecDeque::new(),
            reads: Sequential::default(),
            writes: Sequential::default(),
            requests_max: options.requests_max,
            bytes_max: options.request_bytes_max,
        }
    }

    /// A request begins. Returns its number, which is never 0.
    pub(super) fn begin(&mut self, tag: u64, kind: Kind, bytes: u64) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.under_way.contains_key(&self.last) {
                break;
            }
        }
        self.bytes += bytes;
        let asked = Asked {
            tag,
            kind,
            left: 0,
            error: None,
            lsn: Lsn::ZERO,
            is_through: false,
            buffer: Vec::new(),
            bytes,
            rest: None,
        };
        self.under_way.insert(self.last, asked);
        self.last
    }

    /// Whether a read belongs to a stream longer than `bytes_max`.
    pub(super) fn is_of_long_read(&mut self, offset: u64, len: u64, bytes_max: u64) -> bool {
        self.reads.is_longer(offset, len, bytes_max)
    }

    /// Whether a write belongs to a stream longer than `bytes_max`.
    pub(super) fn is_of_long_write(&mut self, offset: u64, len: u64, bytes_max: u64) -> bool {
        self.writes.is_longer(offset, len, bytes_max)
    }

    /// A request consists of so many fragments, and of what its rest is cut into.
    pub(super) fn expect_fragments(&mut self, asked: u32, fragments: usize) {
        let Some(state) = self.under_way.get_mut(&asked) else { return };
        state.left = fragments as u32;
        if state.kind == Kind::Read && fragments > 1 {
            state.buffer = vec![0; state.bytes as usize];
        }
    }

    /// What is to be zeroed fragment by fragment.
    pub(super) fn set_rest(&mut self, asked: u32, rest: Rest) {
        if let Some(state) = self.under_way.get_mut(&asked) {
            state.rest = (rest.from < rest.to).then_some(rest);
        }
    }

    /// The next fragment of what is to be zeroed.
    pub(super) fn next_of_rest(&mut self, asked: u32, blocks_max: u32) -> Option<(Extent, Work)> {
        let state = self.under_way.get_mut(&asked)?;
        let Rest { from, to, punch } = state.rest.take()?;
        let blocks = (to.0 - from.0).min(u64::from(blocks_max)) as u32;
        let extent = Extent { first: from, blocks };
        state.rest = (extent.end() < to).then_some(Rest { from: extent.end(), to, punch });
        Some((extent, Work::Zero { punch }))
    }

    /// Takes the requests of which the next fragment of what is to be zeroed is due.
    pub(super) fn take_rests(&mut self) -> VecDeque<u32> {
        std::mem::take(&mut self.rests)
    }

    /// Whether the next fragment of what is to be zeroed is due.
    pub(super) fn has_rests(&self) -> bool {
        !self.rests.is_empty()
    }

    /// A fragment of a read brought its bytes: `bytes` begins with the extent's first block.
    pub(super) fn deliver(
        &mut self,
        asked: u32,
        at: usize,
        bytes: Vec<u8>,
        skip: usize,
        len: usize,
    ) {
        let Some(asked) = self.under_way.get_mut(&asked) else { return };
        if asked.buffer.is_empty() {
            asked.buffer = bytes;
            asked.buffer.truncate(skip + len);
            asked.buffer.drain(..skip);
        } else {
            asked.buffer[at..at + len].copy_from_slice(&bytes[skip..skip + len]);
        }
    }

    /// A request has seen or written this group.
    pub(super) fn note_lsn(&mut self, asked: u32, lsn: Lsn) {
        if let Some(asked) = self.under_way.get_mut(&asked) {
            asked.lsn = asked.lsn.max(lsn);
        }
    }

    /// A request covers everything up to this group.
    pub(super) fn set_lsn(&mut self, asked: u32, lsn: Lsn) {
        if let Some(asked) = self.under_way.get_mut(&asked) {
            asked.lsn = lsn;
        }
    }

    /// The newest group that a request wrote, saw or covers. `None` if it is not under way.
    pub(super) fn lsn(&self, asked: u32) -> Option<Lsn> {
        Some(self.under_way.get(&asked)?.lsn)
    }

    /// The newest group that a write has written. `None` if it is no write, or has written none.
    pub(super) fn written_lsn(&self, asked: u32) -> Option<Lsn> {
        let state = self.under_way.get(&asked)?;
        (matches!(state.kind, Kind::Write { .. }) && state.lsn > Lsn::ZERO).then_some(state.lsn)
    }

    /// Whether the reply to a request says that what it wrote is durable. With `is_every`, that to any write does.
    pub(super) fn claims_durability(&self, asked: u32, is_every: bool) -> bool {
        let kind = self.under_way.get(&asked).map(|state| state.kind);
        matches!(kind, Some(Kind::Write { fua }) if fua || is_every)
    }

    /// A fragment of a write is at the origin and not in the log.
    pub(super) fn note_through(&mut self, asked: u32) {
        if let Some(asked) = self.under_way.get_mut(&asked) {
            asked.is_through = true;
        }
    }

    /// A fragment is done, or has failed. Returns the request if all of its fragments are done; if one has failed, it is answered.
    pub(super) fn fragment_done(
        &mut self,
        asked: u32,
        result: Result<(), RequestError>,
    ) -> Option<Ended> {
        let state = self.under_way.get_mut(&asked)?;
        if let Err(error) = result {
            state.error.get_or_insert(error);
            state.rest = None;
        }
        if state.rest.is_some() && state.left == 1 {
            self.rests.push_back(asked);
            return None;
        }
        state.left -= 1;
        if state.left > 0 {
            return None;
        }
        let ended = Ended { kind: state.kind, lsn: state.lsn, is_through: state.is_through };
        let error = state.error;
        if let Some(error) = error {
            self.finish(asked, Reply::Error(error));
            return None;
        }
        Some(ended)
    }

    /// Answers a request by what it asked for.
    pub(super) fn answer(&mut self, asked: u32) {
        let Some(state) = self.under_way.get_mut(&asked) else { return };
        let reply = match state.kind {
            Kind::Read => Reply::Data(std::mem::take(&mut state.buffer)),
            _ => Reply::Done,
        };
        self.finish(asked, reply);
    }

    /// Answers a request.
    pub(super) fn finish(&mut self, asked: u32, reply: Reply) {
        let Some(state) = self.under_way.remove(&asked) else { return };
        self.bytes -= state.bytes;
        self.reply(state.tag, reply);
    }

    /// Whoever waits for the log waits in vain.
    pub(super) fn fail_waiting(&mut self) {
        let waiting = self.under_way.iter().filter(|(_, asked)| asked.left == 0);
        let mut waiting: Vec<u32> = waiting.map(|(&asked, _)| asked).collect();
        // A hash map's order must not show.
        waiting.sort_unstable();
        for asked in waiting {
            self.finish(asked, Reply::Error(RequestError::Io));
        }
    }

    /// Answers whoever came with this tag.
    pub(super) fn reply(&mut self, tag: u64, reply: Reply) {
        self.replies.push_back((tag, reply));
    }

    /// Answers whoever came with this tag by an error.
    pub(super) fn fail(&mut self, tag: u64, error: RequestError) {
        self.reply(tag, Reply::Error(error));
    }

    /// Takes the next reply.
    pub(super) fn poll_reply(&mut self) -> Option<(u64, Reply)> {
        self.replies.pop_front()
    }

    /// Requests under way.
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Whether none is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether so much is under way, or so many `other_bytes` are in memory, that further requests should wait.
    pub(super) fn is_congested(&self, other_bytes: u64) -> bool {
        self.len() >= self.requests_max
            || self.bytes >= self.bytes_max
            || other_bytes >= self.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Requests {
        let options =
            VolumeOptions { requests_max: 3, request_bytes_max: 100, ..VolumeOptions::default() };
        Requests::new(&options)
    }

    #[test]
    fn a_read_gathers_its_fragments_in_any_order() {
        let mut requests = requests();
        let asked = requests.begin(7, Kind::Read, 6);
        requests.expect_fragments(asked, 2);
        requests.deliver(asked, 4, vec![5, 6, 0, 0], 0, 2);
        assert_eq!(requests.fragment_done(asked, Ok(())), None);
        requests.deliver(asked, 0, vec![0, 1, 2, 3, 4], 1, 4);
        requests.note_lsn(asked, Lsn(3));
        let ended = Ended { kind: Kind::Read, lsn: Lsn(3), is_through: false };
        assert_eq!(requests.fragment_done(asked, Ok(())), Some(ended));
        assert_eq!(requests.poll_reply(), None);
        requests.answer(asked);
        assert_eq!(requests.poll_reply(), Some((7, Reply::Data(vec![1, 2, 3, 4, 5, 6]))));
        assert!(requests.is_empty());
    }

    #[test]
    fn a_request_fails_once_with_its_first_error_when_all_fragments_are_done() {
        let mut requests = requests();
        let asked = requests.begin(7, Kind::Write { fua: false }, 6);
        requests.expect_fragments(asked, 3);
        let errors = [Err(RequestError::NoSpace), Err(RequestError::Io), Ok(())];
        for error in errors {
            assert_eq!(requests.poll_reply(), None);
            assert_eq!(requests.fragment_done(asked, error), None);
        }
        assert_eq!(requests.poll_reply(), Some((7, Reply::Error(RequestError::NoSpace))));
        requests.answer(asked);
        assert_eq!(requests.poll_reply(), None);
    }

    #[test]
    fn what_is_to_be_zeroed_comes_fragment_by_fragment_until_one_fails() {
        for fails in [false, true] {
            let mut requests = requests();
            let asked = requests.begin(7, Kind::Write { fua: false }, 0);
            requests.set_rest(asked, Rest { from: Lba(10), to: Lba(15), punch: true });
            let first = requests.next_of_rest(asked, 2).map(|(extent, _)| extent);
            assert_eq!(first, Some(Extent { first: Lba(10), blocks: 2 }));
            requests.expect_fragments(asked, 1);
            let result = if fails { Err(RequestError::Io) } else { Ok(()) };
            assert_eq!(requests.fragment_done(asked, result), None);
            assert_eq!(requests.take_rests(), if fails { vec![] } else { vec![asked] });
            assert_eq!(requests.poll_reply().is_some(), fails);
            let rest = std::iter::from_fn(|| requests.next_of_rest(asked, 2));
            assert_eq!(rest.count(), if fails { 0 } else { 2 });
        }
    }

    #[test]
    fn number_and_bytes_of_requests_congest_until_they_are_answered() {
        let mut requests = requests();
        let asked = [40, 59].map(|bytes| requests.begin(0, Kind::Read, bytes));
        assert!(!requests.is_congested(99) && requests.is_congested(100));
        let more = requests.begin(0, Kind::Flush, 0);
        assert!(requests.is_congested(0), "too many");
        requests.finish(more, Reply::Done);
        assert!(!requests.is_congested(0));
        let more = requests.begin(0, Kind::Read, 1);
        requests.finish(asked[0], Reply::Done);
        assert!(!requests.is_congested(0) && requests.len() == 2);
        let most = requests.begin(0, Kind::Read, 40);
        [asked[1], more, most].into_iter().for_each(|asked| requests.answer(asked));
        assert!(requests.is_empty());
    }

    #[test]
    fn a_number_in_use_is_not_given_again() {
        let mut requests = requests();
        assert_eq!(requests.begin(0, Kind::Flush, 0), 1);
        requests.last = u32::MAX;
        assert_eq!(requests.begin(0, Kind::Flush, 0), 2);
    }
}
