//! JSON, kept as written or in the normal form of PostgreSQL's `jsonb`.

use super::{ValueError, numeric, text};
use std::borrow::Cow;

/// Valid JSON, as written.
pub(super) fn json(input: &[u8]) -> Result<Cow<'_, [u8]>, ValueError> {
    text::utf8(input)?;
    Parser { input, at: 0, normal: false }.document()?;
    Ok(Cow::Borrowed(input))
}

/// The normal form: one blank after colons and commas, keys by length and then bytes, the last of equal keys, numbers as
/// `numeric` writes them.
pub(super) fn jsonb(input: &[u8]) -> Result<String, ValueError> {
    text::utf8(input)?;
    Parser { input, at: 0, normal: true }.document()
}

/// Reads JSON; also the words of the forms that other modules make of it.
pub(super) struct Parser<'a> {
    input: &'a [u8],
    at: usize,
    /// Whether the normal form is built, in which escapes must stand for characters and numbers must fit `numeric`.
    normal: bool,
}

impl<'a> Parser<'a> {
    /// A parser whose strings are their characters.
    pub(super) fn of_characters(input: &'a [u8]) -> Self {
        Self { input, at: 0, normal: true }
    }

    fn document(&mut self) -> Result<String, ValueError> {
        let mut out = String::with_capacity(if self.normal { self.input.len() } else { 0 });
        self.value(&mut out, 0)?;
        self.end()?;
        Ok(out)
    }

    /// Nothing but blanks is left.
    pub(super) fn end(&mut self) -> Result<(), ValueError> {
        self.blanks();
        if self.at == self.input.len() { Ok(()) } else { Err(self.error("the end")) }
    }

    fn value(&mut self, out: &mut String, depth: usize) -> Result<(), ValueError> {
        if depth > DEPTH_MAX {
            return Err(ValueError(format!("takes JSON nested at most {DEPTH_MAX} deep")));
        }
        self.blanks();
        match self.peek() {
            Some(b'{') => self.object(out, depth),
            Some(b'[') => self.array(out, depth),
            Some(b'"') => {
                let string = self.string()?;
                self.emit(out, |out| escape(out, &string));
                Ok(())
            }
            Some(b'-' | b'0'..=b'9') => self.number(out),
            _ => self.word(out),
        }
    }

    fn object(&mut self, out: &mut String, depth: usize) -> Result<(), ValueError> {
        self.at += 1;
        let mut members: Vec<(String, String)> = Vec::new();
        self.blanks();
        if self.skip(b'}') {
            self.emit(out, |out| out.push_str("{}"));
            return Ok(());
        }
        loop {
            self.blanks();
            if self.peek() != Some(b'"') {
                return Err(self.error("a key in double quotes"));
            }
            let key = self.string()?;
            self.blanks();
            self.expect(b':', "a colon")?;
            let mut value = String::new();
            self.value(&mut value, depth + 1)?;
            if self.normal {
                members.push((key, value));
            }
            self.blanks();
            if self.skip(b'}') {
                break;
            }
            self.expect(b',', "a comma or the object's end")?;
        }
        if self.normal {
            write_members(out, members);
        }
        Ok(())
    }

    fn array(&mut self, out: &mut String, depth: usize) -> Result<(), ValueError> {
        self.at += 1;
        self.emit(out, |out| out.push('['));
        self.blanks();
        if !self.skip(b']') {
            loop {
                self.value(out, depth + 1)?;
                self.blanks();
                if self.skip(b']') {
                    break;
                }
                self.expect(b',', "a comma or the array's end")?;
                self.emit(out, |out| out.push_str(", "));
            }
        }
        self.emit(out, |out| out.push(']'));
        Ok(())
    }

    fn number(&mut self, out: &mut String) -> Result<(), ValueError> {
        let number = self.number_text()?;
        if self.normal {
            out.push_str(&numeric::canonical(number, None, false)?);
        }
        Ok(())
    }

    /// The next number as it is written.
    pub(super) fn number_text(&mut self) -> Result<&'a [u8], ValueError> {
        let start = self.at;
        self.skip(b'-');
        if !self.skip(b'0') {
            self.digits()?;
        }
        if self.skip(b'.') {
            self.digits()?;
        }
        if self.skip(b'e') || self.skip(b'E') {
            let _ = self.skip(b'+') || self.skip(b'-');
            self.digits()?;
        }
        Ok(&self.input[start..self.at])
    }

    fn digits(&mut self) -> Result<(), ValueError> {
        let len = self.input[self.at..].iter().take_while(|b| b.is_ascii_digit()).count();
        self.at += len;
        if len == 0 { Err(self.error("a digit")) } else { Ok(()) }
    }

    fn word(&mut self, out: &mut String) -> Result<(), ValueError> {
        let word = self.constant()?;
        self.emit(out, |out| out.push_str(word));
        Ok(())
    }

    /// The next word: `true`, `false` or `null`.
    pub(super) fn constant(&mut self) -> Result<&'static str, ValueError> {
        for word in ["true", "false", "null"] {
            if self.input[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(word);
            }
        }
        Err(self.error("a value"))
    }

    /// The string's characters; empty where no normal form is built.
    pub(super) fn string(&mut self) -> Result<String, ValueError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let run = self.input[self.at..]
                .iter()
                .take_while(|&&b| b != b'"' && b != b'\\' && b >= b' ')
                .count();
            if self.normal {
                let bytes = &self.input[self.at..self.at + run];
                out.push_str(std::str::from_utf8(bytes).expect("cut at ASCII in valid UTF-8"));
            }
            self.at += run;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    let escaped = self.escaped()?;
                    if self.normal {
                        out.push(escaped);
                    }
                }
                _ => return Err(self.error("the string's end (control characters as escapes)")),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, ValueError> {
        let kind = self.input.get(self.at + 1).copied();
        self.at += 2;
        Ok(match kind {
            Some(c @ (b'"' | b'\\' | b'/')) => char::from(c),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(),
            _ => {
                self.at = (self.at - 1).min(self.input.len());
                return Err(self.error("an escape that JSON knows"));
            }
        })
    }

    fn unicode(&mut self) -> Result<char, ValueError> {
        let first = self.hex4()?;
        let mut code = first;
        if (0xd800..0xdc00).contains(&first) && self.input[self.at..].starts_with(b"\\u") {
            self.at += 2;
            let second = self.hex4()?;
            if !(0xdc00..0xe000).contains(&second) {
                return Err(self.error("the second half of a surrogate pair"));
            }
            code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        }
        match char::from_u32(code) {
            Some('\0') | None if self.normal => Err(self.error("an escape of a character")),
            Some(char) => Ok(char),
            None => Err(self.error("a whole surrogate pair")),
        }
    }

    fn hex4(&mut self) -> Result<u32, ValueError> {
        let digits = self.input.get(self.at..self.at + 4).and_then(|hex| {
            hex.iter().try_fold(0, |code, &b| Some(code * 16 + char::from(b).to_digit(16)?))
        });
        let code = digits.ok_or_else(|| self.error("four hexadecimal digits"))?;
        self.at += 4;
        Ok(code)
    }

    fn emit(&self, out: &mut String, write: impl FnOnce(&mut String)) {
        if self.normal {
            write(out);
        }
    }

    pub(super) fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.input.get(self.at).copied()
    }

    pub(super) fn skip(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, byte: u8, what: &str) -> Result<(), ValueError> {
        if self.skip(byte) { Ok(()) } else { Err(self.error(what)) }
    }

    pub(super) fn error(&self, expected: &str) -> ValueError {
        ValueError(format!("takes JSON; {expected} is missing at byte {}", self.at))
    }
}

fn write_members(out: &mut String, mut members: Vec<(String, String)>) {
    // Stable: the last of equal keys stays last and is the one that is kept.
    members.sort_by(|(a, _), (b, _)| (a.len(), a.as_bytes()).cmp(&(b.len(), b.as_bytes())));
    out.push('{');
    let mut first = true;
    for (at, (key, value)) in members.iter().enumerate() {
        if members.get(at + 1).is_some_and(|(next, _)| next == key) {
            continue;
        }
        if !first {
            out.push_str(", ");
        }
        first = false;
        escape(out, key);
        out.push_str(": ");
        out.push_str(value);
    }
    out.push('}');
}

/// Appends a string in double quotes.
pub(super) fn escape(out: &mut String, string: &str) {
    out.push('"');
    for char in string.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Deeper documents are refused: the parser recurses, and so does PostgreSQL's.
const DEPTH_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jsonb_has_a_normal_form() {
        for (input, output) in [
            ("{}", "{}"),
            (" [ ] ", "[]"),
            (r#"{"bb":1,"a":[1,2.50,-0],"a":null}"#, r#"{"a": null, "bb": 1}"#),
            (r#"{"b":true,"aa":false}"#, r#"{"b": true, "aa": false}"#),
            ("1.5e2", "150"),
            (r#""\u00e9\ud83d\ude00\/\u0001""#, "\"é😀/\\u0001\""),
        ] {
            assert_eq!(jsonb(input.as_bytes()).unwrap(), output, "{input}");
            assert_eq!(jsonb(output.as_bytes()).unwrap(), output, "{input}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for input in [
            "",
            "{",
            "[1,]",
            "{\"a\"}",
            "{a:1}",
            "01",
            "1.",
            "-",
            "nul",
            "\"a",
            "\"\n\"",
            "1 2",
            "\"\\x\"",
            "\"\\",
            "\"\\u12\"",
            "[",
            "\"\\ud800x\"",
        ] {
            assert!(jsonb(input.as_bytes()).is_err(), "{input}");
            assert!(json(input.as_bytes()).is_err(), "{input}");
        }
        assert!(jsonb(b"\"\\u0000\"").is_err());
        assert!(json(b"\"\\u0000\"").is_ok());
        assert!(jsonb("[".repeat(200).as_bytes()).is_err());
    }
}
