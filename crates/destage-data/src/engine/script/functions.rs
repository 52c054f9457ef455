//! The functions that scripts call, above all the commands.

use super::numbers::replied;
use super::parse::{RENAME, TIME, command};
use super::run::Run;
use super::syntax::Function;
use super::value::{Value, of_reply, unfit};
use crate::engine::command::{Category, Verb};
use crate::engine::prepared::Trouble;
use crate::engine::txn::Update;
use crate::key_text::show;
use crate::resp::{Protocol, Reply, ReplyError};
use crate::schema::{PLAIN_HASH, PLAIN_STRING};
use destage_core::UnitId;

/// So many steps is a command.
const COMMAND_STEPS: usize = 10;
const MICROSECOND: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;

impl Run<'_, '_> {
    /// Calls a function; `line` is where, from 1.
    pub(super) fn function(
        &mut self,
        function: Function,
        arguments: &[Value],
        line: u32,
    ) -> Result<Value, Trouble> {
        let first = arguments.first().unwrap_or(&Value::Nil);
        let mut number = |value: &Value| -> Result<f64, Trouble> {
            let number = self.number(value)?;
            Ok(number.ok_or_else(|| unfit("compute with", value))?)
        };
        Ok(match function {
            Function::Command => match self.command(arguments)? {
                Ok(value) => value,
                Err(error) => {
                    let digest = &self.call.digest;
                    let text = error.text();
                    let text = format!("{text} script: {digest}, on @user_script:{line}.");
                    return Err(ReplyError::new(error.code(), text).into());
                }
            },
            Function::TriedCommand => match self.command(arguments)? {
                Ok(value) => value,
                Err(error) => Value::Error(error.to_string().into_bytes().into()),
            },
            Function::StatusReply | Function::ErrorReply => {
                let Value::Text(text) = first else {
                    return Err(unfit("reply with", first).into());
                };
                if function == Function::StatusReply {
                    Value::Status(text.clone())
                } else {
                    let text = text.strip_prefix(b"-").unwrap_or(text);
                    let has_code = text.contains(&b' ');
                    let text = if has_code { text.to_vec() } else { [b"ERR ", text].concat() };
                    Value::Error(text.into())
                }
            }
            Function::ReplicateCommands => Value::Bool(true),
            Function::ToNumber => self.number(first)?.map_or(Value::Nil, Value::Number),
            Function::ToString => match first {
                Value::Nil => Value::text(b"nil"),
                Value::Bool(is_true) => Value::text(is_true.to_string().as_bytes()),
                value => Value::Text(value.shown().ok_or_else(|| unfit("show", value))?),
            },
            Function::Type => Value::text(first.type_name().as_bytes()),
            Function::Abs => Value::Number(number(first)?.abs()),
            Function::Ceil => Value::Number(number(first)?.ceil()),
            Function::Floor => Value::Number(number(first)?.floor()),
            Function::Max | Function::Min => {
                let mut chosen = number(first)?;
                for value in &arguments[1..] {
                    let other = number(value)?;
                    let is_better =
                        if function == Function::Max { other > chosen } else { other < chosen };
                    chosen = if is_better { other } else { chosen };
                }
                Value::Number(chosen)
            }
            Function::Len | Function::Sub => {
                let text = first.shown().ok_or_else(|| unfit("take the text of", first))?;
                if function == Function::Len {
                    return Ok(Value::Number(text.len() as f64));
                }
                let from = number(&arguments[1])?;
                let to = arguments.get(2).map(number).transpose()?.unwrap_or(-1.0);
                let part = part(&text, from, to);
                self.budget().weigh(part.len())?;
                Value::text(part)
            }
        })
    }

    /// Performs a command upon the script's own keys. The inner error is the command's, which has done nothing then.
    fn command(&mut self, arguments: &[Value]) -> Result<Result<Value, ReplyError>, Trouble> {
        self.budget().step(COMMAND_STEPS)?;
        let words: Option<Vec<Vec<u8>>> = arguments.iter().map(Value::word).collect();
        let Some(words) = words else {
            let what = "Lua redis lib command arguments must be strings or integers";
            return Ok(Err(ReplyError::err(what)));
        };
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        self.budget().weigh(words.iter().map(|word| word.len()).sum())?;
        let too_few = "Wrong number of args calling Redis command from script";
        let own = |name: &str| words[0].eq_ignore_ascii_case(name.as_bytes());
        if own(TIME) {
            let now = self.context.now.0;
            let parts = [now / SECOND, now % SECOND / MICROSECOND];
            let parts = parts.map(|part| Value::text(part.to_string().as_bytes()));
            return Ok(Ok(Value::list(parts.to_vec())?));
        }
        if own(RENAME) {
            let [_, from, to] = words[..] else { return Ok(Err(ReplyError::err(too_few))) };
            let (from, to) = (self.unit(from)?, self.unit(to)?);
            return self.rename(from, to);
        }
        let spec = command(words[0]).expect("the commands were looked up as the script was read");
        let count = words.len() as i32;
        if if spec.arity < 0 { count < -spec.arity } else { count != spec.arity } {
            return Ok(Err(ReplyError::err(too_few)));
        }
        if self.is_read_only && spec.category == Category::Write {
            let what = "Write commands are not allowed from read-only scripts.";
            return Ok(Err(ReplyError::err(what)));
        }
        let keys: Vec<&[u8]> = match spec.verb {
            Verb::Del | Verb::Exists | Verb::MGet => words[1..].to_vec(),
            Verb::MSet | Verb::MSetNx => words[1..].iter().step_by(2).copied().collect(),
            _ => vec![words[1]],
        };
        let units = keys.iter().map(|key| self.unit(key)).collect::<Result<Vec<_>, _>>()?;
        if let Err(error) = self.prepared.read(self.context.schema, spec, &words, false) {
            return Ok(Err(error));
        }
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, Protocol::V2).within(self.budget().bytes());
        let done = self.context.perform(&self.prepared, &units, &mut reply);
        // Whether it has done something or is only too long to be told: the script ends.
        self.budget().weigh(out.len())?;
        // A row that is written is written as a whole.
        let rows = units.iter().map(|&unit| self.context.row(unit).map_or(0, <[u8]>::len)).sum();
        self.budget().weigh(rows)?;
        match done {
            Ok(()) => {}
            Err(Trouble::Error(error)) => return Ok(Err(error)),
            Err(trouble) => return Err(trouble),
        }
        let value = of_reply(&out).expect("the engine writes whole replies");
        Ok(Ok(value.0))
    }

    /// The unit of one of the script's keys.
    ///
    /// # Errors
    /// It has none of that name, so that it may not be there.
    fn unit(&self, key: &[u8]) -> Result<UnitId, Trouble> {
        self.units.get(key).copied().ok_or_else(|| {
            ReplyError::err(format!(
                "a script uses the keys that it is given (KEYS), and '{}' is none of them; nothing was done",
                show(key)
            ))
            .into()
        })
    }

    /// Gives what one key holds, and its deadline, to another one.
    fn rename(&mut self, from: UnitId, to: UnitId) -> Result<Result<Value, ReplyError>, Trouble> {
        let context = &mut *self.context;
        if self.is_read_only {
            let what = "Write commands are not allowed from read-only scripts.";
            return Ok(Err(ReplyError::err(what)));
        }
        if context.row(from).is_none() {
            return Ok(Err(ReplyError::err("no such key")));
        }
        if from != to {
            let mut sets = Vec::new();
            for column in [PLAIN_STRING, PLAIN_HASH] {
                let value = context.cell(from, column)?.map(<[u8]>::to_vec);
                sets.push((column, value.map_or(Update::Null, Update::To)));
            }
            let deadline = context.deadline(from);
            let table = context.schema.table(context.rows.get(from).table);
            context.write(table, to, sets)?;
            context.forget_deadline(to);
            context.remove(table.id, from);
            if deadline.is_some() {
                context.txn.deadlines.push((to, deadline));
            }
        }
        Ok(Ok(Value::Status(b"OK".as_slice().into())))
    }
}

/// The bytes between two places, both included, from 1; negative ones count from the end.
fn part(text: &[u8], from: f64, to: f64) -> &[u8] {
    let len = text.len() as i64;
    let place = |at: f64| match replied(at) {
        at @ ..0 => at.saturating_add(len + 1),
        at => at,
    };
    let (from, to) = (place(from).max(1), place(to).min(len));
    if from > to { b"" } else { &text[from as usize - 1..to as usize] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_texts_are_those_of_lua() {
        for (from, to, expected) in [
            (1.0, -1.0, "abc"),
            (2.0, 2.0, "b"),
            (-2.0, -1.0, "bc"),
            (0.0, 9.0, "abc"),
            (3.0, 2.0, ""),
            (1.0, 0.0, ""),
            (-9.0, 1.0, "a"),
            (f64::NAN, f64::INFINITY, ""),
        ] {
            assert_eq!(part(b"abc", from, to), expected.as_bytes(), "{from} {to}");
        }
    }
}
