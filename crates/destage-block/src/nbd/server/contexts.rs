//! Metadata contexts: what a client may ask about parts of an export.

use crate::nbd::wire::allocation;
use crate::request::Status;

/// What is known of each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    /// Where the export is sparse.
    Allocation,
    /// Where the origin lacks the newest bytes, in the form of qemu's dirty bitmaps.
    Dirty,
}

/// Those that a client has chosen, for one export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contexts {
    export: String,
    chosen: Vec<Context>,
}

impl Context {
    const ALL: [Self; 2] = [Self::Allocation, Self::Dirty];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Allocation => "base:allocation",
            Self::Dirty => "destage:dirty",
        }
    }

    /// By which replies name it.
    pub(super) fn id(self) -> u32 {
        match self {
            Self::Allocation => 1,
            Self::Dirty => 2,
        }
    }

    fn flags(self, part: &Status) -> u32 {
        match self {
            Self::Allocation if part.is_hole => allocation::HOLE | allocation::ZERO,
            Self::Allocation => 0,
            Self::Dirty => u32::from(part.is_dirty),
        }
    }

    /// The payload of a chunk: parts of a range of `len` bytes, only the first with `is_one`.
    pub(super) fn payload(self, parts: &[Status], len: u64, is_one: bool) -> Vec<u8> {
        let mut joined: Vec<(u64, u32)> = Vec::new();
        let mut left = len;
        for part in parts {
            let (flags, len) = (self.flags(part), part.len.min(left));
            left -= len;
            match joined.last_mut() {
                _ if len == 0 => {}
                Some((before, same)) if *same == flags => *before += len,
                _ => joined.push((len, flags)),
            }
        }
        joined.truncate(if is_one { 1 } else { usize::MAX });
        let mut out = self.id().to_be_bytes().to_vec();
        for (len, flags) in joined {
            // A request's length has 32 bits.
            out.extend_from_slice(&(len as u32).to_be_bytes());
            out.extend_from_slice(&flags.to_be_bytes());
        }
        out
    }
}

impl Contexts {
    /// Those that queries for an export find: all of them for none if the client wants a list.
    pub(super) fn matching(export: &str, queries: &[&str], lists: bool) -> Self {
        let is_meant = |context: &Context| {
            let name = context.name();
            let is_asked = |query: &&str| {
                name == *query || (lists && query.ends_with(':') && name.starts_with(*query))
            };
            (lists && queries.is_empty()) || queries.iter().any(is_asked)
        };
        let chosen = Context::ALL.into_iter().filter(is_meant).collect();
        Self { export: export.to_owned(), chosen }
    }

    pub(super) fn chosen(&self) -> &[Context] {
        &self.chosen
    }

    /// What holds once this export is opened: a choice for another one counts for nothing.
    pub(super) fn for_export(self, export: &str) -> Vec<Context> {
        if self.export == export { self.chosen } else { Vec::new() }
    }
}
