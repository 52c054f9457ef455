//! Numbers and fixed-size headers of the protocol, as they are on the wire. Everything is big-endian. Decoding takes any
//! bytes: what does not begin with its magic number is `None`, numbers are checked by whoever gives them a meaning.

/// The IANA port of NBD.
pub const PORT: u16 = 10809;

/// First words of a server: `NBDMAGIC`.
pub const GREETING: u64 = 0x4e42_444d_4147_4943;
/// Second words of a newstyle server, and first of each option: `IHAVEOPT`.
pub const OPTION: u64 = 0x4948_4156_454f_5054;
/// Begins each reply to an option.
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// Begins each request.
pub const REQUEST: u32 = 0x2560_9513;
/// Begins each simple reply.
pub const SIMPLE_REPLY: u32 = 0x6744_6698;
/// Begins each chunk of a structured reply.
pub const STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// The longest string that the protocol allows, bytes.
pub const STRING_MAX: usize = 4096;
/// Bytes of zeros after the reply to [`option::EXPORT_NAME`], unless both sides leave them out.
pub const EXPORT_NAME_ZEROES: usize = 124;
/// The longest payload that every server takes unless it says otherwise, bytes.
pub const PAYLOAD_MAX: u32 = 32 << 20;

/// Flags of the greeting, and of the client's answer.
pub mod handshake {
    /// Options are answered one by one.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No zeros after the reply to [`super::option::EXPORT_NAME`].
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// What an export can do.
pub mod transmission {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Takes [`super::command::FLUSH`].
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Takes [`super::command_flag::FUA`].
    pub const SEND_FUA: u16 = 1 << 3;
    /// Seeks are slow.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// Takes [`super::command::TRIM`].
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Takes [`super::command::WRITE_ZEROES`].
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Takes [`super::command_flag::DF`].
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers the writes answered on all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// Takes [`super::command::CACHE`].
    pub const SEND_CACHE: u16 = 1 << 10;
    /// Takes [`super::command_flag::FAST_ZERO`].
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// What a client asks during the negotiation.
pub mod option {
    /// Ends the negotiation with an export; cannot be refused but by closing.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the connection.
    pub const ABORT: u32 = 2;
    /// Names the exports.
    pub const LIST: u32 = 3;
    /// Goes on in TLS.
    pub const STARTTLS: u32 = 5;
    /// Describes an export.
    pub const INFO: u32 = 6;
    /// Describes an export and ends the negotiation with it.
    pub const GO: u32 = 7;
    /// Replies may come in chunks.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Names the metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Chooses metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Requests and replies have 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// What a server answers to an option.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export's name.
    pub const SERVER: u32 = 2;
    /// Something about an export: see [`super::info`].
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const ERROR: u32 = 1 << 31;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = ERROR | 1;
    /// The option is forbidden.
    pub const ERR_POLICY: u32 = ERROR | 2;
    /// The option's data makes no sense.
    pub const ERR_INVALID: u32 = ERROR | 3;
    /// Not on this platform.
    pub const ERR_PLATFORM: u32 = ERROR | 4;
    /// Not before TLS.
    pub const ERR_TLS_REQD: u32 = ERROR | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR | 7;
    /// The client must respect block sizes.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR | 8;
    /// The option's data is too long.
    pub const ERR_TOO_BIG: u32 = ERROR | 9;
}

/// Kinds of [`option_reply::INFO`].
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's own name.
    pub const NAME: u16 = 1;
    /// What it is, for a human.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, preferred and largest request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// What a client asks of an export.
pub mod command {
    /// Bytes, please.
    pub const READ: u16 = 0;
    /// New bytes follow the header.
    pub const WRITE: u16 = 1;
    /// No more requests follow.
    pub const DISC: u16 = 2;
    /// What was answered is to be durable.
    pub const FLUSH: u16 = 3;
    /// The range's content no longer matters.
    pub const TRIM: u16 = 4;
    /// The range will be read soon.
    pub const CACHE: u16 = 5;
    /// The range is to read as zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Which parts are allocated?
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a request.
pub mod command_flag {
    /// The reply says that this write is durable.
    pub const FUA: u16 = 1 << 0;
    /// The space behind the zeros is kept.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One chunk of data at most.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zeros fast or not at all.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Chunks of a structured reply.
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const FLAG_DONE: u16 = 1 << 0;
    /// Nothing but its flags.
    pub const NONE: u16 = 0;
    /// An offset and the bytes there.
    pub const OFFSET_DATA: u16 = 1;
    /// An offset and how many zeros are there.
    pub const OFFSET_HOLE: u16 = 2;
    /// A metadata context, and the parts of the range with their flags.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every error.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// The request failed.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// The request failed at an offset.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
}

/// The context that tells where an export is sparse.
pub const ALLOCATION: &str = "base:allocation";

/// Flags of a part in the context [`ALLOCATION`].
pub mod allocation {
    /// It takes no space.
    pub const HOLE: u32 = 1 << 0;
    /// It reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// Errors in replies.
pub mod errno {
    /// Not permitted.
    pub const EPERM: u32 = 1;
    /// Input or output failed.
    pub const EIO: u32 = 5;
    /// No memory.
    pub const ENOMEM: u32 = 12;
    /// The request makes no sense.
    pub const EINVAL: u32 = 22;
    /// No space.
    pub const ENOSPC: u32 = 28;
    /// Too large.
    pub const EOVERFLOW: u32 = 75;
    /// Not supported.
    pub const ENOTSUP: u32 = 95;
    /// Shutting down.
    pub const ESHUTDOWN: u32 = 108;
}

/// What comes before each option's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// One of [`option`].
    pub option: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionHeader {
    /// Bytes on the wire.
    pub const SIZE: usize = 16;

    /// As sent.
    pub fn encode(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        Put(&mut bytes).u64(OPTION).u32(self.option).u32(self.len);
        bytes
    }

    /// As received; `None` if it is no option.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let mut take = Take(bytes);
        (take.u64()? == OPTION).then_some(())?;
        Some(Self { option: take.u32()?, len: take.u32()? })
    }
}

/// What comes before the data of each reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option that is answered.
    pub option: u32,
    /// One of [`option_reply`].
    pub kind: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionReplyHeader {
    /// Bytes on the wire.
    pub const SIZE: usize = 20;

    /// As sent.
    pub fn encode(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        Put(&mut bytes).u64(OPTION_REPLY).u32(self.option).u32(self.kind).u32(self.len);
        bytes
    }

    /// As received; `None` if it is no reply to an option.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let mut take = Take(bytes);
        (take.u64()? == OPTION_REPLY).then_some(())?;
        Some(Self { option: take.u32()?, kind: take.u32()?, len: take.u32()? })
    }
}

/// One request; the payload of a write follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// See [`command_flag`].
    pub flags: u16,
    /// One of [`command`].
    pub command: u16,
    /// Chosen by the client, repeated in the reply.
    pub cookie: u64,
    /// Where in the export, bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

impl RequestHeader {
    /// Bytes on the wire.
    pub const SIZE: usize = 28;

    /// As sent.
    pub fn encode(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let put = Put(&mut bytes).u32(REQUEST).u16(self.flags).u16(self.command);
        put.u64(self.cookie).u64(self.offset).u32(self.len);
        bytes
    }

    /// As received; `None` if it is no request.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let mut take = Take(bytes);
        (take.u32()? == REQUEST).then_some(())?;
        Some(Self {
            flags: take.u16()?,
            command: take.u16()?,
            cookie: take.u64()?,
            offset: take.u64()?,
            len: take.u32()?,
        })
    }
}

/// The end of a request, whole: the data of a read follows it if there is no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleReply {
    /// One of [`errno`], or 0.
    pub error: u32,
    /// The request's.
    pub cookie: u64,
}

impl SimpleReply {
    /// Bytes on the wire.
    pub const SIZE: usize = 16;

    /// As sent.
    pub fn encode(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        Put(&mut bytes).u32(SIMPLE_REPLY).u32(self.error).u64(self.cookie);
        bytes
    }

    /// As received; `None` if it is no simple reply.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let mut take = Take(bytes);
        (take.u32()? == SIMPLE_REPLY).then_some(())?;
        Some(Self { error: take.u32()?, cookie: take.u64()? })
    }
}

/// What comes before the payload of each chunk of a structured reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// [`chunk::FLAG_DONE`].
    pub flags: u16,
    /// One of [`chunk`].
    pub kind: u16,
    /// The request's.
    pub cookie: u64,
    /// Bytes of payload that follow.
    pub len: u32,
}

impl ChunkHeader {
    /// Bytes on the wire.
    pub const SIZE: usize = 20;

    /// As sent.
    pub fn encode(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let put = Put(&mut bytes).u32(STRUCTURED_REPLY).u16(self.flags).u16(self.kind);
        put.u64(self.cookie).u32(self.len);
        bytes
    }

    /// As received; `None` if it is no chunk.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let mut take = Take(bytes);
        (take.u32()? == STRUCTURED_REPLY).then_some(())?;
        Some(Self { flags: take.u16()?, kind: take.u16()?, cookie: take.u64()?, len: take.u32()? })
    }
}

/// Takes fields off the front of some bytes; `None` where they end too early.
#[derive(Clone, Copy, Debug)]
pub struct Take<'a>(pub &'a [u8]);

impl<'a> Take<'a> {
    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// A string of `len` bytes as the protocol allows them: UTF-8 without NUL, at most [`STRING_MAX`] bytes.
    pub fn string(&mut self, len: usize) -> Option<&'a str> {
        let text = std::str::from_utf8(self.bytes(len)?).ok()?;
        (len <= STRING_MAX && !text.contains('\0')).then_some(text)
    }

    /// A string after its length in 32 bits.
    pub fn counted_string(&mut self) -> Option<&'a str> {
        let len = self.u32()?;
        self.string(usize::try_from(len).ok()?)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }
}

/// Puts fields into a header whose size is right by construction.
struct Put<'a>(&'a mut [u8]);

impl Put<'_> {
    fn u16(self, value: u16) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    fn bytes(self, value: &[u8]) -> Self {
        let (head, rest) = self.0.split_at_mut(value.len());
        head.copy_from_slice(value);
        Self(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_has_its_documented_bytes() {
        let header = RequestHeader {
            flags: command_flag::FUA,
            command: command::WRITE,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1000,
            len: 0x200,
        };
        let bytes = [
            0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0,
            0, 0, 2, 0,
        ];
        assert_eq!(header.encode(), bytes);
        assert_eq!(RequestHeader::decode(&bytes), Some(header));
    }

    #[test]
    fn replies_have_their_documented_bytes() {
        let simple = SimpleReply { error: errno::ENOSPC, cookie: 7 };
        let bytes = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(simple.encode(), bytes);
        assert_eq!(SimpleReply::decode(&bytes), Some(simple));
        let data = ChunkHeader { flags: 1, kind: chunk::OFFSET_DATA, cookie: 7, len: 520 };
        let bytes = [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 2, 8];
        assert_eq!(data.encode(), bytes);
        assert_eq!(ChunkHeader::decode(&bytes), Some(data));
    }

    #[test]
    fn options_have_their_documented_bytes() {
        let header = OptionHeader { option: option::GO, len: 6 };
        assert_eq!(&header.encode(), b"IHAVEOPT\0\0\0\x07\0\0\0\x06");
        assert_eq!(OptionHeader::decode(&header.encode()), Some(header));
        let reply =
            OptionReplyHeader { option: option::GO, kind: option_reply::ERR_UNKNOWN, len: 0 };
        let bytes = [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9, 0, 0, 0, 7, 0x80, 0, 0, 6, 0, 0, 0, 0];
        assert_eq!(reply.encode(), bytes);
        assert_eq!(OptionReplyHeader::decode(&bytes), Some(reply));
    }

    #[test]
    fn strings_are_short_utf8_without_nul() {
        assert_eq!(Take(b"\0\0\0\x02hi!").counted_string(), Some("hi"));
        assert_eq!(Take(b"\0\0\0\x09hi").counted_string(), None);
        assert_eq!(Take(b"a\0b").string(3), None);
        assert_eq!(Take(&[0xff, 0xfe]).string(2), None);
        assert_eq!(Take(&[b'x'; 5000]).string(STRING_MAX + 1), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_to_what_encodes_to_them_or_refused(
            bytes in any::<[u8; RequestHeader::SIZE]>(), magic in any::<bool>()
        ) {
            let mut bytes = bytes;
            if magic {
                bytes[..4].copy_from_slice(&REQUEST.to_be_bytes());
            }
            match RequestHeader::decode(&bytes) {
                Some(header) => prop_assert_eq!(header.encode(), bytes),
                None => prop_assert!(!magic),
            }
        }
    }
}
