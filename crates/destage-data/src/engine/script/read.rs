//! A script as a command with its keys.

use super::call::{Call, digest};
use super::parse::parse;
use crate::engine::command::{Spec, Verb};
use crate::engine::numbers::{NOT_INTEGER, integer};
use crate::engine::prepared::Prepared;
use crate::key_text::show;
use crate::mapping::Shape;
use crate::resp::{Code, ReplyError};
use crate::schema::Schema;

/// What is said of a script that nobody has sent as a whole.
pub(super) const UNKNOWN: ReplyError =
    ReplyError::fixed(Code::NoScript, "No matching script. Please use EVAL.");

/// What is said of a script that is not taken.
pub(super) fn not_taken(what: &str) -> ReplyError {
    ReplyError::err(format!(
        "scripts of locks and rate limits are taken, as docs/CLIENTS.md lists them under 'Scripts', and this one is none: {what}; \
         group other commands with MULTI ... EXEC, on condition with WATCH"
    ))
}

type Words<'l, 'a> = &'l [&'a [u8]];

/// The words of EVAL and its kin behind the script: its keys, and its other arguments.
///
/// # Errors
/// The count of the keys, which comes first, is none.
fn split_keys<'l, 'a>(words: Words<'l, 'a>) -> Result<(Words<'l, 'a>, Words<'l, 'a>), ReplyError> {
    let (count, rest) = words.split_first().ok_or(NOT_INTEGER)?;
    let count = integer(count).map_err(|_| NOT_INTEGER)?;
    let count = usize::try_from(count)
        .map_err(|_| ReplyError::fixed(Code::Err, "Number of keys can't be negative"))?;
    rest.split_at_checked(count)
        .ok_or(ReplyError::fixed(Code::Err, "Number of keys can't be greater than number of args"))
}

/// The keys of an EVAL; none where they are not given as they should be.
pub(in crate::engine) fn keys_of_script<'l, 'a>(args: Words<'l, 'a>) -> Words<'l, 'a> {
    split_keys(&args[2..]).map_or(&[], |(keys, _)| keys)
}

impl Prepared {
    /// Reads EVAL script count [key ...] [argument ...], or EVAL_RO.
    ///
    /// # Errors
    /// A message for the client: what is not taken.
    pub(in crate::engine) fn read_script(
        &mut self,
        schema: &Schema,
        spec: &Spec,
        args: &[&[u8]],
    ) -> Result<(), ReplyError> {
        if spec.verb == Verb::EvalSha {
            return Err(UNKNOWN);
        }
        let (keys, arguments) = split_keys(&args[2..])?;
        let program = parse(args[1]).map_err(|what| not_taken(&what))?;
        if keys.is_empty() {
            return Err(not_taken("it has no keys"));
        }
        for key in keys {
            let (table, shape) = self.push_key(schema, key)?;
            if shape != Shape::Plain {
                return Err(ReplyError::err(format!(
                    "a script takes plain cache keys alone (--unmapped), and '{}' is a key of {}; group commands on rows with \
                     MULTI ... EXEC, on condition with WATCH",
                    show(key),
                    table.name
                )));
            }
        }
        let owned = |words: &[&[u8]]| words.iter().map(|&word| word.into()).collect();
        self.script = Some(Box::new(Call {
            program,
            digest: digest(args[1]),
            keys: owned(keys),
            arguments: owned(arguments),
        }));
        Ok(())
    }
}
