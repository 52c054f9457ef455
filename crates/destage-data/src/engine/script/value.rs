//! What scripts compute with.

use super::numbers::{argument, number, replied, shown};
use crate::resp::{Reply, ReplyError};
use std::rc::Rc;

/// How deep lists may lie in each other: whoever writes them or drops them goes as deep.
const DEPTH_MAX: usize = 30;

/// A value. What is compared is compared as in Lua: lists, statuses and errors are equal to themselves alone.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Nil,
    Bool(bool),
    Number(f64),
    Text(Rc<[u8]>),
    List(Rc<List>),
    /// `{ ok = text }`
    Status(Rc<[u8]>),
    /// `{ err = text }`, with its code in front.
    Error(Rc<[u8]>),
}

/// A list of values, which never changes.
#[derive(Debug)]
pub(super) struct List {
    pub(super) values: Vec<Value>,
    depth: usize,
}

/// Another value was needed.
pub(super) fn unfit(what: &str, value: &Value) -> ReplyError {
    ReplyError::err(format!("attempt to {what} a {} value", value.type_name()))
}

impl Value {
    pub(super) fn text(bytes: &[u8]) -> Self {
        Self::Text(bytes.into())
    }

    /// A list of these.
    ///
    /// # Errors
    /// They lie too deep.
    pub(super) fn list(values: Vec<Self>) -> Result<Self, ReplyError> {
        let depth = |value: &Self| if let Self::List(list) = value { list.depth } else { 0 };
        let depth = values.iter().map(depth).max().unwrap_or(0) + 1;
        if depth > DEPTH_MAX {
            return Err(ReplyError::err(format!(
                "a script made lists in more than {DEPTH_MAX} others; nothing was done"
            )));
        }
        Ok(Self::List(Rc::new(List { values, depth })))
    }

    /// What `type` says.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "boolean",
            Self::Number(_) => "number",
            Self::Text(_) => "string",
            Self::List(_) | Self::Status(_) | Self::Error(_) => "table",
        }
    }

    pub(super) fn is_true(&self) -> bool {
        !matches!(self, Self::Nil | Self::Bool(false))
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nil, Self::Nil) => true,
            (Self::Bool(first), Self::Bool(second)) => first == second,
            (Self::Number(first), Self::Number(second)) => first == second,
            (Self::Text(first), Self::Text(second)) => first == second,
            (Self::List(first), Self::List(second)) => Rc::ptr_eq(first, second),
            (Self::Status(first), Self::Status(second))
            | (Self::Error(first), Self::Error(second)) => Rc::ptr_eq(first, second),
            _ => false,
        }
    }

    /// A number, or a text that reads as one.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => number(text),
            _ => None,
        }
    }

    /// A text, or a number as Lua shows it.
    pub(super) fn shown(&self) -> Option<Rc<[u8]>> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Number(number) => Some(shown(*number).into_bytes().into()),
            _ => None,
        }
    }

    /// The word that a command gets.
    pub(super) fn word(&self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text.to_vec()),
            Self::Number(number) => Some(argument(*number).into_bytes()),
            _ => None,
        }
    }

    /// What is found in it under an index.
    ///
    /// # Errors
    /// It has none.
    pub(super) fn index(&self, index: &Self) -> Result<Self, ReplyError> {
        let is = |name: &[u8]| matches!(index, Self::Text(text) if **text == *name);
        match self {
            Self::List(list) => Ok(match index {
                Self::Number(place) if *place >= 1.0 && place.fract() == 0.0 => {
                    list.values.get(*place as usize - 1).cloned().unwrap_or(Self::Nil)
                }
                _ => Self::Nil,
            }),
            Self::Status(text) if is(b"ok") => Ok(Self::Text(text.clone())),
            Self::Error(text) if is(b"err") => Ok(Self::Text(text.clone())),
            Self::Status(_) | Self::Error(_) => Ok(Self::Nil),
            _ => Err(unfit("index", self)),
        }
    }

    /// Writes it as the reply to a script. `left` counts what may still be written.
    ///
    /// # Errors
    /// That is too little.
    pub(super) fn tell(&self, reply: &mut Reply<'_>, left: &mut usize) -> Result<(), ReplyError> {
        *left = left.checked_sub(1).ok_or(TOO_MUCH)?;
        reply.is_within()?;
        match self {
            Self::Nil | Self::Bool(false) => reply.null(),
            Self::Bool(true) => reply.integer(1),
            Self::Number(number) => reply.integer(replied(*number)),
            Self::Text(text) => reply.bulk(text),
            Self::Status(text) => reply.raw(&line(b'+', text)),
            Self::Error(text) => reply.raw(&line(b'-', text)),
            Self::List(list) => {
                // A reply ends before the first value that is none.
                let values = list.values.iter();
                let values: Vec<&Self> =
                    values.take_while(|value| !matches!(value, Self::Nil)).collect();
                reply.array(values.len());
                return values.into_iter().try_for_each(|value| value.tell(reply, left));
            }
        }
        Ok(())
    }
}

/// A script does too much for one turn.
pub(super) const TOO_MUCH: ReplyError = ReplyError::fixed(
    crate::resp::Code::Err,
    "scripts of one transaction did more than 100000 steps or handled more than 8 MiB of text, and nothing was done",
);

/// A line of the protocol. Line ends within would end it.
fn line(kind: u8, text: &[u8]) -> Vec<u8> {
    let blank = |&byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
    std::iter::once(kind).chain(text.iter().map(blank)).chain(*b"\r\n").collect()
}

/// The value that a reply of RESP2 is, as the engine writes it: statuses and errors are tables, and what is absent is false.
/// The bytes behind it are returned, too; `None` if it is no whole reply.
pub(super) fn of_reply(bytes: &[u8]) -> Option<(Value, &[u8])> {
    let end = memchr::memmem::find(bytes, b"\r\n")?;
    let (line, rest) = (&bytes[..end], &bytes[end + 2..]);
    let (&kind, text) = line.split_first()?;
    let number = || std::str::from_utf8(text).ok()?.parse::<i64>().ok();
    match kind {
        b'+' => Some((Value::Status(text.into()), rest)),
        b'-' => Some((Value::Error(text.into()), rest)),
        b':' => Some((Value::Number(number()? as f64), rest)),
        b'$' | b'*' if number()? < 0 => Some((Value::Bool(false), rest)),
        b'$' => {
            let len = usize::try_from(number()?).ok()?;
            let text = rest.get(..len)?;
            Some((Value::text(text), rest.get(len + 2..)?))
        }
        b'*' => {
            let (mut values, mut rest) = (Vec::new(), rest);
            for _ in 0..number()? {
                let (value, behind) = of_reply(rest)?;
                values.push(value);
                rest = behind;
            }
            Some((Value::list(values).ok()?, rest))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::Protocol;

    #[test]
    fn replies_are_values_and_values_are_replies() {
        for (reply, told) in [
            ("+OK\r\n", "+OK\r\n"),
            ("-ERR no\r\n", "-ERR no\r\n"),
            (":-5\r\n", ":-5\r\n"),
            ("$3\r\na\r\n\r\n", "$3\r\na\r\n\r\n"),
            ("$-1\r\n", "$-1\r\n"),
            ("*2\r\n$-1\r\n:1\r\n", "*2\r\n$-1\r\n:1\r\n"),
        ] {
            let (value, rest) = of_reply(reply.as_bytes()).unwrap();
            assert!(rest.is_empty());
            let mut out = Vec::new();
            value.tell(&mut Reply::new(&mut out, Protocol::V2), &mut 9).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), told);
        }
        assert!(of_reply(b"*1\r\n").is_none());
        assert!(of_reply(b"$5\r\nab\r\n").is_none());
    }

    #[test]
    fn a_list_ends_before_what_is_nil_and_has_a_bounded_depth_and_reply() {
        let list = Value::list(vec![Value::Number(1.5), Value::Nil, Value::Number(2.0)]).unwrap();
        let mut out = Vec::new();
        list.tell(&mut Reply::new(&mut out, Protocol::V2), &mut 9).unwrap();
        assert_eq!(out, b"*1\r\n:1\r\n");
        let mut value = Value::Number(1.0);
        for _ in 0..DEPTH_MAX {
            value = Value::list(vec![value.clone(), value]).unwrap();
        }
        assert!(Value::list(vec![value.clone()]).is_err());
        assert!(value.tell(&mut Reply::new(&mut out, Protocol::V2), &mut 1_000).is_err());
    }

    #[test]
    fn what_would_end_the_line_is_blanked() {
        assert_eq!(line(b'+', b"a\r\nb"), b"+a  b\r\n");
    }
}
