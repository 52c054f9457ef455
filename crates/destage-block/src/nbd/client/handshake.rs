//! From the greeting to an export, the client's side.

use super::link::{Link, Reader, Writer};
use super::{ClientError, Offer};
use crate::nbd::server::BlockSizes;
use crate::nbd::uri::{Place, Uri};
use crate::nbd::wire::{self, OptionHeader, OptionReplyHeader, Take};
use crate::nbd::wire::{handshake, info, option, option_reply};
use rustls::ClientConfig;
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;

/// Why there is no agreement.
#[derive(Debug)]
pub(super) enum Disagreement {
    /// The connection failed.
    Stream(io::Error),
    /// The server will not do it, or speaks something else.
    Refused(String),
}

impl Disagreement {
    pub(super) fn into_client_error(self, uri: &Uri) -> ClientError {
        let place = uri.place.clone();
        match self {
            Self::Stream(source) if source.kind() == ErrorKind::InvalidData => {
                ClientError::Refused {
                    place,
                    export: uri.export.clone(),
                    why: format!("TLS failed: {source}"),
                }
            }
            Self::Stream(source) => ClientError::Connect { place, source },
            Self::Refused(why) => ClientError::Refused { place, export: uri.export.clone(), why },
        }
    }
}

impl From<io::Error> for Disagreement {
    fn from(error: io::Error) -> Self {
        Self::Stream(error)
    }
}

/// Agrees on the export that the address names.
pub(super) fn negotiate(
    link: &mut Link,
    uri: &Uri,
    tls: Option<&Arc<ClientConfig>>,
) -> Result<Offer, Disagreement> {
    let no_zeroes = Haggle::over(link).greet()?;
    if uri.tls {
        let config = tls.ok_or_else(|| {
            refused("the address asks for TLS, but no certificate authority to trust is configured")
        })?;
        Haggle::over(link).ask_for_tls()?;
        link.start_tls(config, server_name(uri)?)?;
    }
    let mut haggle = Haggle::over(link);
    let allocation = if haggle.ask_for_structured_replies()? {
        haggle.ask_for_allocation(&uri.export)?
    } else {
        None
    };
    match haggle.go(&uri.export)? {
        Some(offer) => Ok(Offer { allocation, ..offer }),
        // What was agreed on goes with GO only.
        None => haggle.export_name(&uri.export, no_zeroes),
    }
}

fn server_name(uri: &Uri) -> Result<&str, Disagreement> {
    match (&uri.tls_hostname, &uri.place) {
        (Some(name), _) | (None, Place::Tcp { host: name, .. }) => Ok(name),
        (None, Place::Unix(_)) => Err(refused(
            "TLS over a unix socket needs tls-hostname=NAME in the address, the name in the server's certificate",
        )),
    }
}

struct Haggle {
    reader: Reader,
    writer: Writer,
}

/// One reply to an option.
struct Answer {
    kind: u32,
    data: Vec<u8>,
}

impl Answer {
    /// What an error says to a human.
    fn complaint(&self) -> Disagreement {
        let meaning = match self.kind {
            option_reply::ERR_UNSUP => "not supported",
            option_reply::ERR_POLICY => "forbidden",
            option_reply::ERR_INVALID => "invalid",
            option_reply::ERR_PLATFORM => "not on its platform",
            option_reply::ERR_TLS_REQD => "it insists on TLS: use nbds:// or nbds+unix://",
            option_reply::ERR_UNKNOWN => "no such export",
            option_reply::ERR_SHUTDOWN => "it is shutting down",
            option_reply::ERR_BLOCK_SIZE_REQD => "it insists on block sizes",
            option_reply::ERR_TOO_BIG => "too long",
            _ => "an unknown error",
        };
        let message = String::from_utf8_lossy(&self.data);
        refused(if message.is_empty() {
            meaning.to_owned()
        } else {
            format!("{meaning} ({message})")
        })
    }

    fn is_error(&self) -> bool {
        self.kind & option_reply::ERROR != 0
    }
}

impl Haggle {
    fn over(link: &Link) -> Self {
        let (reader, writer) = link.split();
        Self { reader, writer }
    }

    /// Whether zeros are left out.
    fn greet(&mut self) -> Result<bool, Disagreement> {
        let greeting = self.take::<18>()?;
        let mut take = Take(&greeting);
        if take.u64() != Some(wire::GREETING) {
            return Err(refused("what answers there is no NBD server"));
        }
        let newstyle = take.u64() == Some(wire::OPTION);
        let flags = take.u16().unwrap_or(0);
        if !newstyle || flags & handshake::FIXED_NEWSTYLE == 0 {
            return Err(refused("the server does not speak fixed newstyle negotiation"));
        }
        let common = flags & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        self.writer.send(&u32::from(common).to_be_bytes(), &[])?;
        Ok(common & handshake::NO_ZEROES != 0)
    }

    fn ask_for_tls(&mut self) -> Result<(), Disagreement> {
        let answer = self.ask(option::STARTTLS, &[])?;
        match answer.kind {
            option_reply::ACK => Ok(()),
            _ if answer.is_error() => Err(answer.complaint()),
            _ => Err(refused("an unknown answer to the start of TLS")),
        }
    }

    /// Whether the server can, which it need not.
    fn ask_for_structured_replies(&mut self) -> Result<bool, Disagreement> {
        let answer = self.ask(option::STRUCTURED_REPLY, &[])?;
        match answer.kind {
            option_reply::ERR_TLS_REQD | option_reply::ERR_SHUTDOWN => Err(answer.complaint()),
            kind => Ok(kind == option_reply::ACK),
        }
    }

    /// The number of the context that tells where the export is sparse; `None` if the server does not tell.
    fn ask_for_allocation(&mut self, export: &str) -> Result<Option<u32>, Disagreement> {
        let context = wire::ALLOCATION.as_bytes();
        let len = |bytes: &[u8]| (bytes.len() as u32).to_be_bytes();
        let export = export.as_bytes();
        let (one, export_len, context_len) = (1_u32.to_be_bytes(), len(export), len(context));
        let query = [&export_len, export, &one, &context_len, context].concat();
        let mut answer = self.ask(option::SET_META_CONTEXT, &query)?;
        let mut found = None;
        for _ in 0..INFOS_MAX {
            match answer.kind {
                option_reply::META_CONTEXT => {
                    let mut take = Take(&answer.data);
                    let id = take.u32().filter(|_| answer.data[4..] == *context);
                    found = found.or(id);
                }
                option_reply::ACK => return Ok(found),
                option_reply::ERR_TLS_REQD | option_reply::ERR_SHUTDOWN => {
                    return Err(answer.complaint());
                }
                _ if answer.is_error() => return Ok(None),
                _ => return Err(refused("an unknown answer to the choice of a context")),
            }
            answer = self.answer(option::SET_META_CONTEXT)?;
        }
        Err(refused("too many answers to the choice of a context"))
    }

    /// `None` if the server does not know this way of opening an export.
    fn go(&mut self, export: &str) -> Result<Option<Offer>, Disagreement> {
        let len = (export.len() as u32).to_be_bytes();
        let infos = [1, info::BLOCK_SIZE].map(u16::to_be_bytes).concat();
        let query = [len.as_slice(), export.as_bytes(), &infos].concat();
        let mut answer = self.ask(option::GO, &query)?;
        let mut export = None;
        let mut block = BlockSizes::default();
        for _ in 0..INFOS_MAX {
            match answer.kind {
                option_reply::INFO => note(&answer.data, &mut export, &mut block)?,
                option_reply::ACK => {
                    let (size, flags) =
                        export.ok_or_else(|| refused("it does not say the size"))?;
                    return checked(Offer { size, flags, block, allocation: None }).map(Some);
                }
                option_reply::ERR_UNSUP => return Ok(None),
                _ if answer.is_error() => return Err(answer.complaint()),
                _ => return Err(refused("an unknown answer to GO")),
            }
            answer = self.answer(option::GO)?;
        }
        Err(refused("too many answers to GO"))
    }

    /// The way of old: the server closes if it does not want to.
    fn export_name(&mut self, export: &str, no_zeroes: bool) -> Result<Offer, Disagreement> {
        self.send(option::EXPORT_NAME, export.as_bytes())?;
        let closed = |error: Disagreement| match error {
            Disagreement::Stream(error) if error.kind() == ErrorKind::UnexpectedEof => {
                refused("the server closed the connection when it was asked for the export")
            }
            other => other,
        };
        let reply = self.take::<10>().map_err(closed)?;
        if !no_zeroes {
            self.take::<{ wire::EXPORT_NAME_ZEROES }>()?;
        }
        let mut take = Take(&reply);
        let (size, flags) = (take.u64().unwrap_or(0), take.u16().unwrap_or(0));
        checked(Offer { size, flags, block: BlockSizes::default(), allocation: None })
    }

    fn ask(&mut self, option: u32, data: &[u8]) -> Result<Answer, Disagreement> {
        self.send(option, data)?;
        self.answer(option)
    }

    fn send(&mut self, option: u32, data: &[u8]) -> io::Result<()> {
        let header = OptionHeader { option, len: data.len() as u32 };
        self.writer.send(&header.encode(), data)
    }

    fn answer(&mut self, option: u32) -> Result<Answer, Disagreement> {
        let header = OptionReplyHeader::decode(&self.take()?)
            .filter(|header| header.option == option && header.len <= ANSWER_MAX)
            .ok_or_else(|| refused("its answer to an option makes no sense"))?;
        let mut data = vec![0; header.len as usize];
        self.reader.read_exact(&mut data)?;
        Ok(Answer { kind: header.kind, data })
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Disagreement> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Keeps what one INFO says; others than were asked for are none of ours.
fn note(
    data: &[u8],
    export: &mut Option<(u64, u16)>,
    block: &mut BlockSizes,
) -> Result<(), Disagreement> {
    let malformed = || refused("malformed information about the export");
    let mut take = Take(data);
    match take.u16().ok_or_else(malformed)? {
        info::EXPORT => {
            let size = take.u64().ok_or_else(malformed)?;
            *export = Some((size, take.u16().ok_or_else(malformed)?));
        }
        info::BLOCK_SIZE => {
            *block = BlockSizes {
                min: take.u32().ok_or_else(malformed)?,
                preferred: take.u32().ok_or_else(malformed)?,
                max: take.u32().ok_or_else(malformed)?,
            };
        }
        _ => {}
    }
    Ok(())
}

/// Sizes of requests that can be worked with: the largest is made a multiple of the smallest, and no larger than memory
/// should be taken for one request.
fn checked(offer: Offer) -> Result<Offer, Disagreement> {
    let BlockSizes { min, preferred, max } = offer.block;
    if !min.is_power_of_two() || max < min {
        return Err(refused(format!("impossible block sizes: {min} to {max} bytes")));
    }
    let max = max.min(wire::PAYLOAD_MAX.max(min));
    let block = BlockSizes { min, preferred, max: max - max % min };
    Ok(Offer { block, ..offer })
}

fn refused(why: impl Into<String>) -> Disagreement {
    Disagreement::Refused(why.into())
}

/// The longest data of an answer that makes sense, bytes.
const ANSWER_MAX: u32 = 64 << 10;

/// More answers to one option than there are kinds of information.
const INFOS_MAX: usize = 64;
