//! What a server offers.

use crate::nbd::wire::{PAYLOAD_MAX, transmission};
use std::fmt::Debug;

/// One volume as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// What clients ask for; at most 4096 bytes of UTF-8 without NUL. May be empty.
    pub name: String,
    /// What it is, for a human; the same limits. Empty says nothing.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Seeks are slow.
    pub rotational: bool,
    /// The sizes of requests.
    pub block: BlockSizes,
}

/// The sizes of requests that an export takes, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of it; a power of two, 1 to 64 KiB.
    pub min: u32,
    /// What is served best; a power of two, at least 512 and `min`.
    pub preferred: u32,
    /// The longest read or write; a multiple of `min`.
    pub max: u32,
}

impl Default for BlockSizes {
    /// Any alignment, best by [`crate::block::BLOCK`], up to what every client may send.
    fn default() -> Self {
        Self { min: 1, preferred: crate::block::BLOCK as u32, max: PAYLOAD_MAX }
    }
}

impl Export {
    /// A volume that may be written, with everything else by default.
    pub fn new(name: &str, size: u64) -> Self {
        Self {
            name: name.to_owned(),
            description: String::new(),
            size,
            read_only: false,
            rotational: false,
            block: BlockSizes::default(),
        }
    }

    /// The transmission flags. Connections share one volume, so a flush on one covers them all.
    pub(super) fn flags(&self, structured: bool) -> u16 {
        use transmission::*;
        let always = HAS_FLAGS
            | SEND_FLUSH
            | SEND_FUA
            | SEND_TRIM
            | SEND_WRITE_ZEROES
            | SEND_CACHE
            | CAN_MULTI_CONN;
        let optional =
            [(self.read_only, READ_ONLY), (self.rotational, ROTATIONAL), (structured, SEND_DF)];
        optional.iter().filter(|(set, _)| *set).fold(always, |flags, (_, flag)| flags | flag)
    }
}

/// The volumes of a server. They may come and go; a connection keeps the one it has opened.
pub trait Exports: Send + Sync + Debug {
    /// All of them.
    fn list(&self) -> Vec<Export>;

    /// The one that a client means: the empty name stands for the only one there is.
    fn find(&self, name: &str) -> Option<Export> {
        let mut all = self.list();
        if let Some(index) = all.iter().position(|export| export.name == name) {
            return Some(all.swap_remove(index));
        }
        (name.is_empty() && all.len() == 1).then(|| all.remove(0))
    }
}

impl Exports for Vec<Export> {
    fn list(&self) -> Vec<Export> {
        self.clone()
    }
}
