//! What a client has sent and is not executed yet: bytes, and how far they have been looked at, so that nothing is read from
//! its start each time that more comes.

use crate::resp::Place;

/// What waits to be executed.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    /// What lies before is executed.
    start: usize,
    seen: Seen,
}

/// How far the bytes that wait have been looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// The first request, as far as it has come.
    pub(super) place: Place,
    /// There is no whole request.
    pub(super) is_part: bool,
    /// The requests whose rows have been asked for, and their bytes.
    pub(super) ahead: usize,
    pub(super) ahead_bytes: usize,
    /// Behind them there is no whole request.
    pub(super) ahead_is_part: bool,
    /// Bytes that were here when something before them began to wait: they wait for as long.
    late_bytes: usize,
}

impl Seen {
    /// The first request is executed.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.ahead = self.ahead.saturating_sub(1);
        self.ahead_bytes = self.ahead_bytes.saturating_sub(bytes);
        self.late_bytes = self.late_bytes.saturating_sub(bytes);
    }

    /// Whether the first request was here when one before it began to wait.
    pub(super) fn is_late(&self) -> bool {
        self.late_bytes > 0
    }

    /// The first request goes on beyond the bytes: its end comes later than anything that was here.
    pub(super) fn end_in_part(&mut self) {
        (self.is_part, self.late_bytes) = (true, 0);
    }
}

/// A buffer that grew beyond this is given back once it is empty.
const KEPT_BYTES: usize = 4 << 10;

impl Inbox {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether nothing can be executed before more comes.
    pub(super) fn needs_more(&self) -> bool {
        self.is_empty() || self.seen.is_part
    }

    /// The request before what is here begins to wait.
    pub(super) fn set_late(&mut self) {
        self.seen.late_bytes = self.len();
    }

    /// What waits, and how far it has been looked at.
    pub(super) fn parts(&mut self) -> (&[u8], &mut Seen) {
        (&self.bytes[self.start..], &mut self.seen)
    }

    /// More has come.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.bytes.extend_from_slice(bytes);
            (self.seen.is_part, self.seen.ahead_is_part) = (false, false);
        }
    }

    /// What is left of bytes that were executed where they came in; it comes behind what asks anew.
    pub(super) fn push_rest(&mut self, bytes: &[u8], seen: Seen) {
        if self.is_empty() {
            self.seen = seen;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// So many bytes are executed. Those that wait are moved once they are fewer, so that each is moved once at most on average.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.start += bytes;
        if self.is_empty() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
            (self.start, self.seen) = (0, Seen::default());
        } else if self.start > self.len() {
            self.bytes.drain(..self.start);
            self.start = 0;
            self.bytes.shrink_to(2 * self.bytes.len() + KEPT_BYTES);
        }
    }

    /// Puts a request back in front of the rest: it has waited, and asks anew.
    pub(super) fn put_back(&mut self, request: &[u8]) {
        // There is room where it came from, as a rule.
        match self.start.checked_sub(request.len()) {
            Some(start) => {
                self.bytes[start..self.start].copy_from_slice(request);
                self.start = start;
            }
            None => {
                self.bytes.splice(..self.start, request.iter().copied());
                self.start = 0;
            }
        }
        let late_bytes = self.seen.late_bytes + request.len();
        self.seen = Seen { late_bytes, ..Seen::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(inbox: &mut Inbox) -> String {
        String::from_utf8(inbox.parts().0.to_vec()).unwrap()
    }

    #[test]
    fn what_is_put_back_comes_first_whether_or_not_there_is_room() {
        let mut inbox = Inbox::default();
        inbox.push(b"one two three");
        inbox.pass(4);
        inbox.put_back(b"ONE ");
        assert_eq!(content(&mut inbox), "ONE two three");
        inbox.pass(4);
        inbox.put_back(b"longer ");
        assert_eq!(content(&mut inbox), "longer two three");
        assert!(inbox.seen.is_late());
        inbox.pass(7);
        inbox.push_rest(b" four", Seen::default());
        assert_eq!(content(&mut inbox), "two three four");
    }

    #[test]
    fn passing_small_requests_moves_each_byte_once_and_gives_memory_back() {
        let mut inbox = Inbox::default();
        inbox.push(&vec![b'x'; 1 << 20]);
        let mut moves = 0;
        while inbox.len() > 10 {
            let before = inbox.start;
            inbox.pass(10);
            moves += usize::from(inbox.start < before);
        }
        assert!(moves < 20, "{moves}");
        assert!(inbox.bytes.capacity() < 100 << 10, "{}", inbox.bytes.capacity());
        inbox.pass(inbox.len());
        assert!(inbox.is_empty() && inbox.bytes.capacity() <= KEPT_BYTES);
    }
}
