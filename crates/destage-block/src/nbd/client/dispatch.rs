//! Who waits for which reply, and the thread that reads them all.

use super::Errno;
use super::link::Reader;
use crate::nbd::wire::{ChunkHeader, SimpleReply, Take, chunk};
use crossbeam_channel::{Receiver, Sender, bounded};
use hashbrown::HashMap;
use std::io::{self, BufReader, ErrorKind, Read};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How a request ends: with the data of a read, with nothing, or so.
pub(super) type Outcome = Result<Vec<u8>, Failure>;

/// Why a request failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// Nobody knows what became of it.
    Lost(String),
    /// The server says so.
    Server(Errno, String),
}

#[derive(Debug, Default)]
pub(super) struct Dispatch {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    waiting: HashMap<u64, Waiting>,
    last: u64,
    lost: Option<String>,
}

#[derive(Debug)]
struct Waiting {
    outcome: Sender<Outcome>,
    offset: u64,
    len: u32,
    /// What the reply is about, if it is not data.
    context: Option<u32>,
    reply: Partial,
}

/// What has come of a reply in chunks.
#[derive(Debug, Default)]
struct Partial {
    data: Vec<u8>,
    /// Which bytes of it have come; ascending, apart from each other.
    covered: Vec<Range<usize>>,
    failure: Option<(Errno, String)>,
}

impl Dispatch {
    /// Says that a reply with `len` bytes of data will come, or one about a context; returns what to send and where to wait.
    pub(super) fn expect(
        &self,
        offset: u64,
        len: u32,
        context: Option<u32>,
    ) -> Result<(u64, Receiver<Outcome>), String> {
        let mut table = self.table();
        if let Some(why) = &table.lost {
            return Err(why.clone());
        }
        table.last += 1;
        let cookie = table.last;
        let (outcome, receiver) = bounded(1);
        let reply = Partial::default();
        table.waiting.insert(cookie, Waiting { outcome, offset, len, context, reply });
        Ok((cookie, receiver))
    }

    /// Fails all who wait or will wait. The first reason stays.
    pub(super) fn lose(&self, why: String) {
        let mut table = self.table();
        let why = table.lost.get_or_insert(why).clone();
        for (_, waiting) in table.waiting.drain() {
            // Who no longer waits needs no answer.
            let _ = waiting.outcome.send(Err(Failure::Lost(why.clone())));
        }
    }

    /// Why the connection is lost, if it is.
    pub(super) fn lost(&self) -> Option<String> {
        self.table().lost.clone()
    }

    /// The failure of a request that was under way when the connection was lost.
    pub(super) fn failure(&self) -> Failure {
        Failure::Lost(self.lost().unwrap_or_else(|| "no reply".to_owned()))
    }

    /// Reads replies until the connection ends.
    pub(super) fn run(&self, reader: Reader) {
        let mut reader = BufReader::with_capacity(READ_AHEAD, reader);
        loop {
            if let Err(error) = self.one_reply(&mut reader) {
                let ended = error.kind() == ErrorKind::UnexpectedEof;
                let why = if ended { "the server closed it".to_owned() } else { error.to_string() };
                return self.lose(why);
            }
        }
    }

    fn one_reply(&self, reader: &mut impl Read) -> io::Result<()> {
        let mut head = [0; SimpleReply::SIZE];
        reader.read_exact(&mut head)?;
        if let Some(reply) = SimpleReply::decode(&head) {
            return self.simple(reply, reader);
        }
        let mut whole = [0; ChunkHeader::SIZE];
        let (front, rest) = whole.split_at_mut(head.len());
        front.copy_from_slice(&head);
        reader.read_exact(rest)?;
        let header = ChunkHeader::decode(&whole).ok_or_else(|| nonsense("no reply"))?;
        self.chunk(header, reader)
    }

    fn simple(&self, reply: SimpleReply, reader: &mut impl Read) -> io::Result<()> {
        let mut waiting = self.take(reply.cookie)?;
        let outcome = match reply.error {
            0 => {
                let mut data = vec![0; waiting.len as usize];
                if let Err(error) = reader.read_exact(&mut data) {
                    // Back to those who wait, so that it fails with them.
                    self.table().waiting.insert(reply.cookie, waiting);
                    return Err(error);
                }
                waiting.len = 0;
                Ok(data)
            }
            error => Err(Failure::Server(Errno(error), String::new())),
        };
        // Who no longer waits needs no answer.
        let _ = waiting.outcome.send(outcome);
        Ok(())
    }

    fn chunk(&self, header: ChunkHeader, reader: &mut impl Read) -> io::Result<()> {
        let mut waiting = self.take(header.cookie)?;
        let read = waiting.chunk(header, reader);
        if read.is_ok() && header.flags & chunk::FLAG_DONE != 0 {
            return waiting.finish();
        }
        self.table().waiting.insert(header.cookie, waiting);
        read
    }

    fn take(&self, cookie: u64) -> io::Result<Waiting> {
        let waiting = self.table().waiting.remove(&cookie);
        waiting.ok_or_else(|| nonsense("a reply to what was never asked"))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn chunk(&mut self, header: ChunkHeader, reader: &mut impl Read) -> io::Result<()> {
        match header.kind {
            chunk::NONE if header.len == 0 => Ok(()),
            chunk::OFFSET_DATA if header.len > 8 => {
                let at = self.place(reader, header.len - 8)?;
                reader.read_exact(&mut self.reply.data[at])
            }
            chunk::OFFSET_HOLE if header.len == 12 => {
                let mut hole = [0; 12];
                reader.read_exact(&mut hole)?;
                let mut take = Take(&hole[8..]);
                let len = take.u32().unwrap_or(0);
                let at = self.place(&mut &hole[..8], len)?;
                self.reply.data[at].fill(0);
                Ok(())
            }
            chunk::BLOCK_STATUS if self.context.is_some() && header.len <= STATUS_MAX => {
                let mut payload = vec![0; header.len as usize];
                reader.read_exact(&mut payload)?;
                let mut take = Take(&payload);
                // One that nobody asked for, or a second one, is not what was asked.
                if take.u32() != self.context || !self.reply.data.is_empty() {
                    return Err(nonsense("the status of another context"));
                }
                self.reply.data.extend_from_slice(&payload[4..]);
                Ok(())
            }
            kind if kind & chunk::ERROR_BIT != 0 && header.len <= ERROR_MAX => {
                let mut payload = vec![0; header.len as usize];
                reader.read_exact(&mut payload)?;
                let failure = error_of(&payload).ok_or_else(|| nonsense("a malformed error"))?;
                self.reply.failure.get_or_insert(failure);
                Ok(())
            }
            _ => Err(nonsense("an unknown or malformed chunk")),
        }
    }

    /// Gives what the reply amounts to, now that it is over, to who waits for it.
    fn finish(self) -> io::Result<()> {
        let finished = self.reply.finish(self.len);
        let (outcome, result) = match finished {
            Ok(outcome) => (outcome, Ok(())),
            Err(error) => (Err(Failure::Lost(error.to_string())), Err(error)),
        };
        // Who no longer waits needs no answer.
        let _ = self.outcome.send(outcome);
        result
    }

    /// Reads a chunk's offset; returns where its `len` bytes lie in the request.
    fn place(&mut self, reader: &mut impl Read, len: u32) -> io::Result<Range<usize>> {
        let mut offset = [0; 8];
        reader.read_exact(&mut offset)?;
        let begin = u64::from_be_bytes(offset).checked_sub(self.offset);
        let end = begin.and_then(|begin| begin.checked_add(u64::from(len)));
        let (Some(begin), Some(end)) = (begin, end) else {
            return Err(nonsense("data from outside of what was asked"));
        };
        if end > u64::from(self.len) {
            return Err(nonsense("data from outside of what was asked"));
        }
        self.reply.data.resize(self.len as usize, 0);
        self.reply.cover(begin as usize..end as usize)
    }
}

impl Partial {
    fn cover(&mut self, range: Range<usize>) -> io::Result<Range<usize>> {
        let index = self.covered.partition_point(|before| before.start < range.start);
        let after_last =
            index.checked_sub(1).is_none_or(|last| self.covered[last].end <= range.start);
        let before_next = self.covered.get(index).is_none_or(|next| range.end <= next.start);
        if range.is_empty() || !after_last || !before_next {
            return Err(nonsense("data that overlaps other data, or none"));
        }
        self.covered.insert(index, range.clone());
        Ok(range)
    }

    /// What was gathered, checked to be whole.
    fn finish(self, len: u32) -> io::Result<Outcome> {
        if let Some((errno, message)) = self.failure {
            return Ok(Err(Failure::Server(errno, message)));
        }
        // Apart from each other, they leave no gap if together they are as long as the whole.
        if self.covered.iter().map(Range::len).sum::<usize>() != len as usize {
            return Err(nonsense("less data than was asked"));
        }
        Ok(Ok(self.data))
    }
}

fn error_of(payload: &[u8]) -> Option<(Errno, String)> {
    let mut take = Take(payload);
    let error = take.u32()?;
    let len = take.u16()?;
    let message = String::from_utf8_lossy(take.bytes(usize::from(len))?).into_owned();
    (error != 0).then_some((Errno(error), message))
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the server sent {what}"))
}

/// Bytes read at a time; longer data goes straight where it belongs.
const READ_AHEAD: usize = 64 << 10;

/// The longest status of a range that may be sent, bytes: half a million parts.
const STATUS_MAX: u32 = 4 << 20;

/// The longest error that may be sent, with its message, bytes.
const ERROR_MAX: u32 = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A chunk or simple reply that may be right.
    fn reply() -> impl Strategy<Value = Vec<u8>> {
        let payload = prop_oneof![
            (0_u64..20, 0_usize..20).prop_map(|(offset, len)| {
                [offset.to_be_bytes().to_vec(), vec![7; len]].concat()
            }),
            (0_u64..20, 0_u32..20).prop_map(|(offset, len)| {
                [offset.to_be_bytes().as_slice(), &len.to_be_bytes()].concat()
            }),
            proptest::collection::vec(any::<u8>(), 0..20),
        ];
        let kind = prop_oneof![0_u16..4, 0x8000_u16..0x8004];
        let chunk =
            (0_u16..2, kind, 1_u64..4, payload).prop_map(|(flags, kind, cookie, payload)| {
                let len = payload.len() as u32;
                [ChunkHeader { flags, kind, cookie, len }.encode().as_slice(), &payload].concat()
            });
        let simple = (0_u32..3, 1_u64..4).prop_map(|(error, cookie)| {
            [SimpleReply { error, cookie }.encode().as_slice(), &[7; 10]].concat()
        });
        prop_oneof![4 => chunk, 1 => simple, 1 => proptest::collection::vec(any::<u8>(), 0..60)]
    }

    proptest! {
        #[test]
        fn whatever_a_server_says_each_request_ends_once(
            replies in proptest::collection::vec(reply(), 0..10)
        ) {
            let dispatch = Dispatch::default();
            let waiting: Vec<_> = (0..3).map(|_| dispatch.expect(5, 10, None).unwrap().1).collect();
            let bytes = replies.concat();
            let mut rest = bytes.as_slice();
            while let Ok(()) = dispatch.one_reply(&mut rest) {}
            dispatch.lose("the end".to_owned());
            for receiver in waiting {
                match receiver.try_recv() {
                    Ok(Ok(data)) => prop_assert_eq!(data.len(), 10),
                    Ok(Err(_)) => {}
                    Err(error) => prop_assert!(false, "no outcome: {}", error),
                }
                prop_assert!(receiver.try_recv().is_err());
            }
            prop_assert!(dispatch.expect(0, 1, None).is_err());
        }
    }
}
