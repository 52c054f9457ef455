//! Scripts that clients may name by their digest. They are in memory alone, and the oldest are forgotten where there are many:
//! `EVALSHA` then says so, and clients send the whole script.

use super::call::digest;
use super::parse::{TEXT_BYTES_MAX, parse};
use super::read::{UNKNOWN, not_taken};
use crate::engine::Engine;
use crate::engine::session::Session;
use crate::resp::{Code, Reply, ReplyError};
use std::collections::{HashMap, VecDeque};

/// Most bytes of what is kept.
const BYTES_MAX: usize = 1 << 20;
/// What a script takes besides its text, bytes.
const ENTRY_BYTES: usize = 256;

/// The scripts that are kept.
#[derive(Debug, Default)]
pub(in crate::engine) struct Scripts {
    texts: HashMap<String, Box<[u8]>>,
    /// Their digests, the oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

impl Scripts {
    /// Keeps a script; its digest is returned.
    ///
    /// # Errors
    /// What of it is not taken.
    fn keep(&mut self, text: &[u8]) -> Result<String, String> {
        if text.len() > TEXT_BYTES_MAX {
            // Its digest would be work for nothing.
            return parse(text).map(|_| String::new());
        }
        let digest = digest(text);
        if self.texts.contains_key(&digest) {
            return Ok(digest);
        }
        parse(text)?;
        self.texts.insert(digest.clone(), text.into());
        self.order.push_back(digest.clone());
        self.bytes += text.len() + ENTRY_BYTES;
        while self.bytes > BYTES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= self.texts.remove(&oldest).map_or(0, |text| text.len() + ENTRY_BYTES);
        }
        Ok(digest)
    }

    /// The text behind a digest, in any case.
    fn find(&self, digest: &[u8]) -> Option<&[u8]> {
        let digest = std::str::from_utf8(digest).ok()?.to_ascii_lowercase();
        self.texts.get(&digest).map(|text| &**text)
    }
}

impl Engine {
    /// Keeps a script that is sent as a whole, if it is one that is taken.
    pub(in crate::engine) fn keep_script(&mut self, text: &[u8]) {
        // What is wrong with it is said when it is read.
        let _ = self.sessions.scripts_mut().keep(text);
    }

    /// The request that EVALSHA or EVALSHA_RO stands for, with the whole script.
    ///
    /// # Errors
    /// No such script is kept.
    pub(in crate::engine) fn whole_script(&self, args: &[&[u8]]) -> Result<Vec<u8>, ReplyError> {
        let text = self.sessions.scripts().find(args[1]).ok_or(UNKNOWN)?;
        let is_read_only = args[0].len() > b"evalsha".len();
        let name: &[u8] = if is_read_only { b"EVAL_RO" } else { b"EVAL" };
        let mut raw = Vec::new();
        let mut request = Reply::new(&mut raw, Default::default());
        request.array(args.len());
        [name, text].iter().chain(&args[2..]).for_each(|word| request.bulk(word));
        if raw.len() > self.config.limits.bytes_max {
            return Err(ReplyError::fixed(
                Code::Err,
                "the script and its arguments are longer than a request may be, and nothing was done",
            ));
        }
        Ok(raw)
    }

    /// SCRIPT LOAD text | EXISTS digest [digest ...] | FLUSH [ASYNC | SYNC] | KILL
    pub(in crate::engine) fn script_command(&mut self, session: &mut Session, args: &[&[u8]]) {
        let error = match (args[1].to_ascii_lowercase().as_slice(), &args[2..]) {
            (b"load", [text]) => match self.sessions.scripts_mut().keep(text) {
                Ok(digest) => {
                    let mut reply = Reply::new(&mut session.out, session.protocol);
                    return reply.bulk(digest.as_bytes());
                }
                Err(what) => not_taken(&what),
            },
            (b"exists", digests @ [_, ..]) => {
                let mut reply = Reply::new(&mut session.out, session.protocol);
                reply.array(digests.len());
                for digest in digests {
                    reply.integer(i64::from(self.sessions.scripts().find(digest).is_some()));
                }
                return;
            }
            (b"flush", []) => return self.flush_scripts(session),
            (b"flush", [mode])
                if mode.eq_ignore_ascii_case(b"async") || mode.eq_ignore_ascii_case(b"sync") =>
            {
                return self.flush_scripts(session);
            }
            (b"flush", _) => {
                ReplyError::fixed(Code::Err, "SCRIPT FLUSH only support SYNC|ASYNC option")
            }
            (b"kill", []) => ReplyError::fixed(Code::NotBusy, "No scripts in execution right now."),
            _ => ReplyError::fixed(
                Code::Err,
                "unknown SCRIPT subcommand, or another number of arguments; supported: LOAD script, EXISTS sha1 [sha1 ...], \
                 FLUSH [ASYNC|SYNC], KILL",
            ),
        };
        self.fail(session, error);
    }

    fn flush_scripts(&mut self, session: &mut Session) {
        *self.sessions.scripts_mut() = Scripts::default();
        Reply::new(&mut session.out, session.protocol).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_scripts_are_forgotten_where_there_are_many() {
        let mut scripts = Scripts::default();
        let text = |number: usize| format!("return {number} --{}", "x".repeat(10_000));
        let digests: Vec<String> =
            (0..300).map(|number| scripts.keep(text(number).as_bytes()).unwrap()).collect();
        assert!(scripts.bytes <= BYTES_MAX && scripts.texts.len() == scripts.order.len());
        assert!(scripts.find(digests[0].as_bytes()).is_none());
        assert!(scripts.find(digests[299].to_ascii_uppercase().as_bytes()).is_some());
        assert!(scripts.keep(b"return nosuch()").is_err());
        // One that is kept takes no more room.
        let bytes = scripts.bytes;
        scripts.keep(text(299).as_bytes()).unwrap();
        assert_eq!(scripts.bytes, bytes);
    }
}
