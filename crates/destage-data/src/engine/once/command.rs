//! A command that is to be carried out once, and what its group tells of it.

use crate::once::{COMMAND_BYTES, Done};
use crate::resp::{Args, RequestLimits, parse};
use destage_core::{Lsn, Time};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Words before the command.
const WORDS: usize = 3;

/// A command that is to be carried out once.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Once {
    pub(super) token: Arc<[u8]>,
    pub(super) command: [u8; COMMAND_BYTES],
}

/// What a transaction tells of its command.
#[derive(Debug)]
pub(in crate::engine) struct OnceRecord {
    pub(super) once: Once,
    pub(super) reply: Box<[u8]>,
    pub(super) through: bool,
}

impl OnceRecord {
    pub(in crate::engine) fn done(&self) -> Done<'_> {
        Done {
            lsn: Lsn::ZERO,
            stamp: Time::ZERO,
            through: self.through,
            token: &self.once.token,
            command: self.once.command,
            reply: &self.reply,
        }
    }
}

impl Once {
    /// The command's own words, and the token if it is sent to be carried out once.
    pub(in crate::engine) fn split<'l, 'a>(args: &'l [&'a [u8]]) -> (Option<Self>, &'l [&'a [u8]]) {
        let is_once = args.len() > WORDS
            && args[0].eq_ignore_ascii_case(b"destage")
            && args[1].eq_ignore_ascii_case(b"once");
        if !is_once {
            return (None, args);
        }
        let (token, command) = (args[2], &args[WORDS..]);
        (Some(Self { token: token.into(), command: hash(std::iter::once(command)) }), command)
    }

    /// The commands of a transaction under a token.
    pub(in crate::engine) fn of_transaction(
        limits: &RequestLimits,
        token: &[u8],
        requests: &[Box<[u8]>],
    ) -> Self {
        let mut args = Args::default();
        let requests = requests.iter().map(|raw| {
            parse(raw, limits, &mut args).expect("the request was read before");
            let mut list = Vec::new();
            args.to_slices(raw, &mut list);
            list
        });
        Self { token: token.into(), command: hash(requests) }
    }
}

/// Of commands, each by the length of its words and these.
fn hash<'a>(commands: impl Iterator<Item = impl AsRef<[&'a [u8]]>>) -> [u8; COMMAND_BYTES] {
    let mut hash = Sha256::new();
    for command in commands {
        let words = command.as_ref();
        hash.update((words.len() as u64).to_le_bytes());
        for (place, word) in words.iter().enumerate() {
            hash.update((word.len() as u64).to_le_bytes());
            match place {
                0 => hash.update(word.to_ascii_lowercase()),
                _ => hash.update(word),
            }
        }
    }
    let hash = hash.finalize();
    *hash.first_chunk().expect("SHA-256 has 32 bytes")
}
