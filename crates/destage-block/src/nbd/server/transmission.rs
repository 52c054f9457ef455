//! Requests and their replies, once an export is chosen.

use super::contexts::Context;
use super::input::Input;
use super::output::Output;
use super::{Cookie, End, Event, Export, Limits, Replies, Room, Step};
use crate::nbd::wire::{ChunkHeader, RequestHeader, SimpleReply};
use crate::nbd::wire::{chunk, command, command_flag, errno};
use crate::request::{Reply, Request, RequestError, Status};
use hashbrown::HashMap;

#[derive(Debug)]
pub(super) struct Transmission {
    export: Export,
    replies: Replies,
    /// What the client may ask about parts of the export.
    contexts: Vec<Context>,
    under_way: HashMap<Cookie, UnderWay>,
    /// Bytes that these hold or will hold.
    bytes: usize,
    next: u64,
    /// The write whose payload is being received.
    write: Option<RequestHeader>,
}

/// A request that waits for its reply.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// The client's cookie: not used as a key, since a client may send the same one twice.
    client: u64,
    expects: Expects,
    bytes: usize,
}

/// What belongs into a reply.
#[derive(Clone, Copy, Debug)]
enum Expects {
    Nothing,
    /// The data that lies there.
    Data(u64, u32),
    /// The parts of so many bytes, or the first of them.
    Status {
        len: u32,
        is_one: bool,
    },
}

/// Why a request is refused: error and words for a human.
type Refusal = (u32, &'static str);

impl Transmission {
    pub(super) fn new(export: Export, replies: Replies, contexts: Vec<Context>) -> Self {
        let under_way = HashMap::new();
        Self { export, replies, contexts, under_way, bytes: 0, next: 0, write: None }
    }

    pub(super) fn requests(&self) -> usize {
        self.under_way.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_at_limit(&self, limits: Limits, output: usize) -> bool {
        self.under_way.len() >= limits.requests_max.max(1)
            || self.bytes + output >= limits.bytes_max.max(1)
    }

    pub(super) fn step(
        &mut self,
        input: &mut Input,
        output: &mut Output,
        room: Room,
        stopping: bool,
    ) -> Step {
        if let Some(header) = self.write {
            let Some(data) = input.take_payload() else {
                return Step::Wait;
            };
            self.write = None;
            let fua = header.flags & command_flag::FUA != 0;
            return self.begin(header, Request::Write { offset: header.offset, data, fua });
        }
        let Some(header) = input.peek() else {
            return Step::Wait;
        };
        let Some(header) = RequestHeader::decode(header) else {
            return Step::End(End::Violation("a request without its magic number".to_owned()));
        };
        if !self.has_room(header, room, output.len()) {
            return Step::Wait;
        }
        input.skip(RequestHeader::SIZE as u64);
        self.request(header, input, output, stopping)
    }

    /// Answers a request that was taken.
    pub(super) fn reply(&mut self, output: &mut Output, cookie: Cookie, reply: Reply) {
        let Some(request) = self.under_way.remove(&cookie) else {
            return;
        };
        self.bytes -= request.bytes;
        match (request.expects, reply) {
            (Expects::Data(offset, len), Reply::Data(data)) if data.len() == len as usize => {
                self.put_data(output, request.client, offset, data);
            }
            (Expects::Status { len, is_one }, Reply::Status(parts)) if !parts.is_empty() => {
                self.put_status(output, request.client, &parts, u64::from(len), is_one);
            }
            (Expects::Nothing, Reply::Done) => {
                output.put(&SimpleReply { error: 0, cookie: request.client }.encode());
            }
            (_, Reply::Error(error)) => self.put_error(output, request.client, refusal_of(error)),
            _ => self.put_error(output, request.client, (errno::EIO, "the server failed")),
        }
    }

    fn request(
        &mut self,
        header: RequestHeader,
        input: &mut Input,
        output: &mut Output,
        stopping: bool,
    ) -> Step {
        if header.command == command::DISC {
            return Step::End(End::Disconnected);
        }
        let checked = if stopping {
            Err((errno::ESHUTDOWN, "the server is shutting down"))
        } else {
            self.check(header)
        };
        if let Err(refusal) = checked {
            self.put_error(output, header.cookie, refusal);
            if header.command == command::WRITE {
                input.skip(u64::from(header.len));
            }
            return Step::Again;
        }
        if header.command == command::WRITE {
            // Counted from here on: the memory is there.
            self.bytes += header.len as usize;
            input.begin_payload(header.len as usize);
            self.write = Some(header);
            return Step::Again;
        }
        self.begin(header, request_of(header))
    }

    fn begin(&mut self, header: RequestHeader, request: Request) -> Step {
        let cookie = Cookie(self.next);
        self.next += 1;
        let expects = match header.command {
            command::READ => Expects::Data(header.offset, header.len),
            command::BLOCK_STATUS => {
                let is_one = header.flags & command_flag::REQ_ONE != 0;
                Expects::Status { len: header.len, is_one }
            }
            _ => Expects::Nothing,
        };
        let bytes = match header.command {
            command::READ | command::WRITE => header.len as usize,
            _ => 0,
        };
        // A write's were counted when its payload began.
        if header.command == command::READ {
            self.bytes += bytes;
        }
        self.under_way.insert(cookie, UnderWay { client: header.cookie, expects, bytes });
        Step::Event(Event::Request(cookie, request))
    }

    /// A request is taken if it fits beside the others, or is alone.
    fn has_room(&self, header: RequestHeader, room: Room, output: usize) -> bool {
        let limits = room.limits;
        if self.is_at_limit(limits, output) {
            return false;
        }
        let held = self.bytes + output;
        let is_alone = held == 0 && room.takes_long;
        is_alone || held + self.needs(header) <= limits.bytes_max
    }

    /// What a request will hold, bytes.
    fn needs(&self, header: RequestHeader) -> usize {
        match header.command {
            command::READ | command::WRITE if header.len <= self.export.block.max => {
                header.len as usize
            }
            _ => 0,
        }
    }

    /// Whether the next request is longer than the limit.
    pub(super) fn waits_for_memory(&self, input: &Input, limits: Limits) -> bool {
        let header = input.peek().filter(|_| self.write.is_none());
        let header = header.and_then(RequestHeader::decode);
        header.is_some_and(|header| self.needs(header) > limits.bytes_max)
    }

    fn check(&self, header: RequestHeader) -> Result<(), Refusal> {
        self.check_flags(header)?;
        let writes =
            matches!(header.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        if writes && self.export.read_only {
            return Err((errno::EPERM, "the export is read-only"));
        }
        if header.command == command::FLUSH {
            let plain = header.offset == 0 && header.len == 0;
            return plain.then_some(()).ok_or((errno::EINVAL, "a flush has no range"));
        }
        self.check_range(header)
    }

    fn check_flags(&self, header: RequestHeader) -> Result<(), Refusal> {
        // Some clients are known to set FUA where it means nothing; whoever offers it must take it everywhere.
        let known = command_flag::FUA
            | match header.command {
                command::READ if self.replies == Replies::Structured => command_flag::DF,
                command::READ | command::WRITE | command::FLUSH => 0,
                command::TRIM | command::CACHE => 0,
                command::WRITE_ZEROES => command_flag::NO_HOLE,
                command::BLOCK_STATUS if !self.contexts.is_empty() => command_flag::REQ_ONE,
                command::BLOCK_STATUS => {
                    return Err((errno::EINVAL, "no metadata context was agreed on"));
                }
                _ => return Err((errno::EINVAL, "unknown command")),
            };
        (header.flags & !known == 0).then_some(()).ok_or((errno::EINVAL, "unknown command flag"))
    }

    fn check_range(&self, header: RequestHeader) -> Result<(), Refusal> {
        if header.len == 0 {
            return Err((errno::EINVAL, "a range of no bytes"));
        }
        let transfers = matches!(header.command, command::READ | command::WRITE);
        if transfers && header.len > self.export.block.max {
            let unfragmented = header.flags & command_flag::DF != 0;
            let error = if unfragmented { errno::EOVERFLOW } else { errno::EINVAL };
            return Err((error, "longer than the largest block size"));
        }
        let end = header.offset.checked_add(u64::from(header.len));
        if end.is_none_or(|end| end > self.export.size) {
            let fills = matches!(header.command, command::WRITE | command::WRITE_ZEROES);
            let error = if fills { errno::ENOSPC } else { errno::EINVAL };
            return Err((error, "beyond the end of the export"));
        }
        let unit = u64::from(self.export.block.min.max(1));
        let aligned =
            header.offset.is_multiple_of(unit) && u64::from(header.len).is_multiple_of(unit);
        aligned.then_some(()).ok_or((errno::EINVAL, "not a multiple of the smallest block size"))
    }

    fn put_data(&self, output: &mut Output, cookie: u64, offset: u64, data: Vec<u8>) {
        match self.replies {
            Replies::Simple => output.put(&SimpleReply { error: 0, cookie }.encode()),
            Replies::Structured => {
                let len = (size_of_val(&offset) + data.len()) as u32;
                let kind = chunk::OFFSET_DATA;
                let header = ChunkHeader { flags: chunk::FLAG_DONE, kind, cookie, len };
                output.put(&header.encode());
                output.put(&offset.to_be_bytes());
            }
        }
        output.put_owned(data);
    }

    fn put_status(
        &self,
        output: &mut Output,
        cookie: u64,
        parts: &[Status],
        len: u64,
        is_one: bool,
    ) {
        for (index, context) in self.contexts.iter().enumerate() {
            let payload = context.payload(parts, len, is_one);
            let is_last = index + 1 == self.contexts.len();
            let flags = if is_last { chunk::FLAG_DONE } else { 0 };
            let kind = chunk::BLOCK_STATUS;
            let header = ChunkHeader { flags, kind, cookie, len: payload.len() as u32 };
            output.put(&header.encode());
            output.put_owned(payload);
        }
    }

    fn put_error(&self, output: &mut Output, cookie: u64, (error, why): Refusal) {
        if self.replies == Replies::Simple {
            return output.put(&SimpleReply { error, cookie }.encode());
        }
        let text = (why.len() as u16).to_be_bytes();
        let payload = [&error.to_be_bytes(), text.as_slice(), why.as_bytes()].concat();
        let len = payload.len() as u32;
        let header = ChunkHeader { flags: chunk::FLAG_DONE, kind: chunk::ERROR, cookie, len };
        output.put(&header.encode());
        output.put(&payload);
    }
}

/// What a checked request without a payload asks for.
fn request_of(header: RequestHeader) -> Request {
    let RequestHeader { flags, offset, .. } = header;
    let fua = flags & command_flag::FUA != 0;
    let len = u64::from(header.len);
    match header.command {
        command::READ => Request::Read { offset, len: header.len },
        command::TRIM => Request::Zero { offset, len, fua, punch: true },
        command::WRITE_ZEROES => {
            Request::Zero { offset, len, fua, punch: flags & command_flag::NO_HOLE == 0 }
        }
        command::CACHE => Request::Cache { offset, len },
        command::BLOCK_STATUS => Request::Status { offset, len },
        // The only other command that passes the check.
        _ => Request::Flush,
    }
}

fn refusal_of(error: RequestError) -> Refusal {
    match error {
        RequestError::Io => (errno::EIO, "input or output failed"),
        RequestError::NoSpace => (errno::ENOSPC, "no space is left"),
        RequestError::ReadOnly => (errno::EPERM, "the volume is read-only"),
        RequestError::Invalid => (errno::EINVAL, "the request makes no sense"),
        RequestError::Busy => (errno::ENOMEM, "too much is under way"),
        RequestError::Stopping => (errno::ESHUTDOWN, "the server is shutting down"),
    }
}
