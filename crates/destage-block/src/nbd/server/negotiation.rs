//! Options, until an export is chosen.

use super::contexts::Contexts;
use super::input::{Input, OPTION_DATA_MAX};
use super::output::Output;
use super::{End, Event, Export, Exports, Replies, Step, TlsMode};
use crate::nbd::wire::{self, OptionHeader, OptionReplyHeader, Take};
use crate::nbd::wire::{handshake, info, option, option_reply};
use std::sync::Arc;

/// A client that has not chosen after so many options never will.
const OPTIONS_MAX: u32 = 1024;

#[derive(Debug)]
pub(super) struct Negotiation {
    exports: Arc<dyn Exports>,
    tls: TlsMode,
    phase: Phase,
    replies: Replies,
    contexts: Contexts,
    options: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The client's flags are due.
    Flags,
    /// Options are due.
    Options { client: u16, encrypted: bool },
    /// Nothing may come before TLS has begun.
    TlsDue { client: u16 },
}

/// Why an option is refused: reply type and words for a human.
type Refusal = (u32, &'static str);

/// What INFO and GO ask for.
struct Query {
    export: Export,
    infos: Vec<u16>,
}

impl Negotiation {
    pub(super) fn new(exports: Arc<dyn Exports>, tls: TlsMode) -> Self {
        let (phase, replies) = (Phase::Flags, Replies::Simple);
        Self { exports, tls, phase, replies, contexts: Contexts::default(), options: 0 }
    }

    pub(super) fn greeting() -> Vec<u8> {
        let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        let words = [wire::GREETING, wire::OPTION].map(u64::to_be_bytes).concat();
        [words.as_slice(), &flags.to_be_bytes()].concat()
    }

    /// Forgets what was agreed in the clear, since anyone may have said it.
    pub(super) fn tls_started(&mut self) {
        if let Phase::TlsDue { client } = self.phase {
            self.phase = Phase::Options { client, encrypted: true };
            self.replies = Replies::Simple;
            self.contexts = Contexts::default();
        }
    }

    pub(super) fn step(&mut self, input: &mut Input, output: &mut Output, stopping: bool) -> Step {
        match self.phase {
            Phase::Flags => self.client_flags(input),
            Phase::TlsDue { .. } if input.is_empty() => Step::Wait,
            Phase::TlsDue { .. } => violation("bytes in the clear after the start of TLS"),
            // The next option is due only after the reply to the last one, so replies cannot pile up.
            Phase::Options { .. } if output.len() > 0 => Step::Wait,
            Phase::Options { client, encrypted } => {
                let mut turn = Turn { negotiation: self, output, client, encrypted, stopping };
                turn.option(input)
            }
        }
    }

    fn client_flags(&mut self, input: &mut Input) -> Step {
        let Some(flags) = input.peek().copied().map(u32::from_be_bytes) else {
            return Step::Wait;
        };
        input.skip(4);
        let known = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        match u16::try_from(flags) {
            Ok(client) if client & !known == 0 => {
                self.phase = Phase::Options { client, encrypted: false };
                Step::Again
            }
            _ => violation(format!("unknown client flags {flags:#x}")),
        }
    }
}

/// One option being answered.
struct Turn<'a> {
    negotiation: &'a mut Negotiation,
    output: &'a mut Output,
    client: u16,
    encrypted: bool,
    stopping: bool,
}

impl Turn<'_> {
    fn option(&mut self, input: &mut Input) -> Step {
        let Some(header) = input.peek() else {
            return Step::Wait;
        };
        let Some(header) = OptionHeader::decode(header) else {
            return violation("an option without its magic number");
        };
        let len = header.len as usize;
        let refusal = self.forbidden(header);
        if refusal.is_none() && len <= OPTION_DATA_MAX {
            let Some(data) = input.range(OptionHeader::SIZE, len) else {
                return Step::Wait;
            };
            let data = data.to_vec();
            input.skip((OptionHeader::SIZE + len) as u64);
            return self.counted().unwrap_or_else(|| self.answer(header.option, &data));
        }
        input.skip((OptionHeader::SIZE + len) as u64);
        let refusal = refusal.unwrap_or((option_reply::ERR_TOO_BIG, "more than 64 KiB of data"));
        self.counted().unwrap_or_else(|| self.refuse(header.option, refusal))
    }

    /// Ends the session of a client that only ever asks.
    fn counted(&mut self) -> Option<Step> {
        self.negotiation.options += 1;
        (self.negotiation.options > OPTIONS_MAX)
            .then(|| violation(format!("more than {OPTIONS_MAX} options")))
    }

    /// Why this option is refused whatever its data says.
    fn forbidden(&self, header: OptionHeader) -> Option<Refusal> {
        if header.option == option::ABORT {
            return None;
        }
        if self.stopping {
            return Some((option_reply::ERR_SHUTDOWN, "the server is shutting down"));
        }
        let fixed = self.client & handshake::FIXED_NEWSTYLE != 0;
        if !fixed && header.option != option::EXPORT_NAME {
            return Some((option_reply::ERR_POLICY, "needs fixed newstyle negotiation"));
        }
        let insists = self.negotiation.tls == TlsMode::Required && !self.encrypted;
        (insists && header.option != option::STARTTLS)
            .then_some((option_reply::ERR_TLS_REQD, "this server insists on TLS"))
    }

    fn answer(&mut self, option: u32, data: &[u8]) -> Step {
        let answered = match option {
            option::EXPORT_NAME => self.export_name(data),
            option::ABORT => {
                self.reply(option, option_reply::ACK, &[]);
                return Step::End(End::Disconnected);
            }
            option::LIST => self.list(data),
            option::STARTTLS => self.start_tls(data),
            option::INFO | option::GO => self.info(option, data),
            option::STRUCTURED_REPLY => self.structured_reply(data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, data),
            _ => Err((option_reply::ERR_UNSUP, "unknown option")),
        };
        answered.unwrap_or_else(|refusal| self.refuse(option, refusal))
    }

    fn export_name(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        let name = Take(data).string(data.len()).ok_or(INVALID_NAME)?;
        let export = self.negotiation.exports.find(name).ok_or(UNKNOWN_EXPORT)?;
        self.output.put(&self.size_and_flags(&export));
        if self.client & handshake::NO_ZEROES == 0 {
            self.output.put(&[0; wire::EXPORT_NAME_ZEROES]);
        }
        Ok(self.open(export))
    }

    fn list(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        must_be_empty(data)?;
        for export in self.negotiation.exports.list() {
            let len = (export.name.len() as u32).to_be_bytes();
            let description = export.description.as_bytes();
            let reply = [len.as_slice(), export.name.as_bytes(), description].concat();
            self.reply(option::LIST, option_reply::SERVER, &reply);
        }
        Ok(self.acknowledge(option::LIST))
    }

    fn start_tls(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        must_be_empty(data)?;
        if self.encrypted {
            return Err((option_reply::ERR_INVALID, "TLS has been started already"));
        }
        if self.negotiation.tls == TlsMode::Off {
            return Err((option_reply::ERR_POLICY, "this server has no TLS"));
        }
        self.acknowledge(option::STARTTLS);
        self.negotiation.phase = Phase::TlsDue { client: self.client };
        Ok(Step::Event(Event::StartTls))
    }

    fn structured_reply(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        must_be_empty(data)?;
        self.negotiation.replies = Replies::Structured;
        Ok(self.acknowledge(option::STRUCTURED_REPLY))
    }

    fn info(&mut self, option: u32, data: &[u8]) -> Result<Step, Refusal> {
        let query = self.query(data)?;
        let Query { export, infos } = &query;
        let block = export.block;
        if option == option::GO && block.min > 1 && !infos.contains(&info::BLOCK_SIZE) {
            return Err((option_reply::ERR_BLOCK_SIZE_REQD, "not every request size is taken"));
        }
        self.reply_info(option, info::EXPORT, &self.size_and_flags(export));
        if infos.contains(&info::NAME) {
            self.reply_info(option, info::NAME, export.name.as_bytes());
        }
        if infos.contains(&info::DESCRIPTION) && !export.description.is_empty() {
            self.reply_info(option, info::DESCRIPTION, export.description.as_bytes());
        }
        let sizes = [block.min, block.preferred, block.max].map(u32::to_be_bytes).concat();
        self.reply_info(option, info::BLOCK_SIZE, &sizes);
        let acknowledged = self.acknowledge(option);
        Ok(match option {
            option::GO => self.open(query.export),
            _ => acknowledged,
        })
    }

    fn query(&self, data: &[u8]) -> Result<Query, Refusal> {
        let mut take = Take(data);
        let malformed = (option_reply::ERR_INVALID, "malformed request for information");
        let name = take.counted_string().ok_or(malformed)?;
        let count = take.u16().ok_or(malformed)?;
        let infos: Option<Vec<u16>> = (0..count).map(|_| take.u16()).collect();
        let infos = infos.filter(|_| take.is_empty()).ok_or(malformed)?;
        let export = self.negotiation.exports.find(name).ok_or(UNKNOWN_EXPORT)?;
        Ok(Query { export, infos })
    }

    fn open(&mut self, export: Export) -> Step {
        let contexts = std::mem::take(&mut self.negotiation.contexts).for_export(&export.name);
        Step::Open(export, self.negotiation.replies, contexts)
    }

    /// A list of metadata contexts, or a choice among them, which replaces any earlier one.
    fn contexts(&mut self, option: u32, data: &[u8]) -> Result<Step, Refusal> {
        let malformed = (option_reply::ERR_INVALID, "malformed question for metadata contexts");
        if self.negotiation.replies == Replies::Simple {
            return Err((option_reply::ERR_INVALID, "needs structured replies"));
        }
        let mut take = Take(data);
        let name = take.counted_string().ok_or(malformed)?;
        let count = take.u32().ok_or(malformed)?;
        let mut queries = Vec::new();
        for _ in 0..count {
            let query = take.counted_string().ok_or(malformed)?;
            if !query.contains(':') {
                return Err((
                    option_reply::ERR_INVALID,
                    "a metadata context without its namespace",
                ));
            }
            queries.push(query);
        }
        take.is_empty().then_some(()).ok_or(malformed)?;
        let export = self.negotiation.exports.find(name).ok_or(UNKNOWN_EXPORT)?;
        let lists = option == option::LIST_META_CONTEXT;
        let found = Contexts::matching(&export.name, &queries, lists);
        for context in found.chosen() {
            let reply = [&context.id().to_be_bytes(), context.name().as_bytes()].concat();
            self.reply(option, option_reply::META_CONTEXT, &reply);
        }
        if !lists {
            self.negotiation.contexts = found;
        }
        Ok(self.acknowledge(option))
    }

    fn size_and_flags(&self, export: &Export) -> Vec<u8> {
        let flags = export.flags(self.negotiation.replies == Replies::Structured);
        [export.size.to_be_bytes().as_slice(), &flags.to_be_bytes()].concat()
    }

    fn refuse(&mut self, option: u32, (kind, why): Refusal) -> Step {
        // The one option that has no reply; and a client that does not know replies.
        if option == option::EXPORT_NAME || self.client & handshake::FIXED_NEWSTYLE == 0 {
            return violation(format!("option {option} cannot be answered: {why}"));
        }
        self.reply(option, kind, why.as_bytes());
        Step::Again
    }

    fn acknowledge(&mut self, option: u32) -> Step {
        self.reply(option, option_reply::ACK, &[]);
        Step::Again
    }

    fn reply_info(&mut self, option: u32, info: u16, data: &[u8]) {
        self.reply(option, option_reply::INFO, &[&info.to_be_bytes(), data].concat());
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        let len = data.len() as u32;
        self.output.put(&OptionReplyHeader { option, kind, len }.encode());
        self.output.put(data);
    }
}

const UNKNOWN_EXPORT: Refusal = (option_reply::ERR_UNKNOWN, "there is no such export");
const INVALID_NAME: Refusal = (option_reply::ERR_INVALID, "an impossible export name");

fn must_be_empty(data: &[u8]) -> Result<(), Refusal> {
    let refusal = (option_reply::ERR_INVALID, "this option has no data");
    data.is_empty().then_some(()).ok_or(refusal)
}

fn violation(what: impl Into<String>) -> Step {
    Step::End(End::Violation(what.into()))
}
