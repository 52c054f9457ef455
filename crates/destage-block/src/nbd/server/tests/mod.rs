//! Conversations byte by byte, and any bytes at all.

mod any_bytes;
mod limits;
mod negotiation;
mod transmission;

use super::*;
use crate::nbd::wire::{OptionHeader, RequestHeader, handshake, option};

/// One side of a conversation: says bytes, hears bytes, notes events.
struct Talk {
    session: Session,
}

impl Talk {
    fn new(exports: Vec<Export>, tls: TlsMode, limits: Limits) -> Self {
        Self { session: Session::new(Arc::new(exports), tls, limits) }
    }

    /// Has heard the greeting and answered it.
    fn greeted(exports: Vec<Export>, tls: TlsMode) -> Self {
        let mut talk = Self::new(exports, tls, Limits::default());
        talk.heard();
        let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        assert_eq!(talk.says(&u32::from(flags).to_be_bytes()), []);
        talk
    }

    /// Has opened a volume.
    fn opened(export: Export, replies: Replies, limits: Limits) -> Self {
        let mut talk = Self::greeted(vec![export.clone()], TlsMode::Off);
        talk.session.limits = limits;
        if replies == Replies::Structured {
            talk.asks(option::STRUCTURED_REPLY, b"");
        }
        let events = talk.says(&an_option(option::EXPORT_NAME, export.name.as_bytes()));
        assert_eq!(events, [Event::Opened(export)]);
        talk.heard();
        talk
    }

    /// Gives bytes as far as they are wanted; returns the events.
    fn says(&mut self, mut bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        while !bytes.is_empty() && self.session.wants_input() {
            let space = self.session.space();
            let len = bytes.len().min(space.len());
            space[..len].copy_from_slice(&bytes[..len]);
            self.session.filled(len);
            bytes = &bytes[len..];
            events.extend(std::iter::from_fn(|| self.session.next_event()));
        }
        events
    }

    /// Takes what there is to send.
    fn heard(&mut self) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let set = self.session.output(&mut slices);
        let heard: Vec<u8> = slices[..set].iter().flat_map(|slice| slice.to_vec()).collect();
        self.session.sent(heard.len());
        heard
    }

    /// Asks for something that the owner of the session need not know; returns the answer.
    fn asks(&mut self, option: u32, data: &[u8]) -> Vec<u8> {
        assert_eq!(self.says(&an_option(option, data)), []);
        self.heard()
    }

    /// As [`Talk::asks`] for a request.
    fn requests(&mut self, header: RequestHeader, payload: &[u8]) -> Vec<u8> {
        assert_eq!(self.says(&[&header.encode(), payload].concat()), []);
        self.heard()
    }
}

fn an_option(option: u32, data: &[u8]) -> Vec<u8> {
    [&OptionHeader { option, len: data.len() as u32 }.encode(), data].concat()
}

fn request(command: u16, flags: u16, offset: u64, len: u32) -> RequestHeader {
    RequestHeader { flags, command, cookie: 0x1122_3344_5566_7788, offset, len }
}
