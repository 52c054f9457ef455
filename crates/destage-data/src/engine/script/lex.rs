//! The words of a script.

use super::numbers::number;

/// One word.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Name(String),
    /// A word of the language, or what stands between words.
    Sign(&'static str),
    Number(f64),
    Text(Box<[u8]>),
    End,
}

/// Words that are no names.
const WORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// The longer ones first.
const SIGNS: [&str; 25] = [
    "...", "..", "==", "~=", "<=", ">=", "+", "-", "*", "/", "%", "^", "#", "<", ">", "=", "(",
    ")", "{", "}", "[", "]", ";", ":", ",",
];

/// Reads words one after the other.
#[derive(Debug)]
pub(super) struct Lexer<'s> {
    rest: &'s [u8],
    /// The line of the word read last, from 1.
    pub(super) line: u32,
}

impl<'s> Lexer<'s> {
    pub(super) fn new(text: &'s [u8]) -> Self {
        Self { rest: text, line: 1 }
    }

    fn take(&mut self, count: usize) -> &'s [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.line += taken.iter().filter(|&&byte| byte == b'\n').count() as u32;
        self.rest = rest;
        taken
    }

    fn take_while(&mut self, is_meant: impl Fn(u8) -> bool) -> &'s [u8] {
        let end = self.rest.iter().position(|&byte| !is_meant(byte));
        self.take(end.unwrap_or(self.rest.len()))
    }

    /// Passes white space and comments.
    fn pass_blanks(&mut self) -> Result<(), String> {
        loop {
            self.take_while(|byte| byte.is_ascii_whitespace() || byte == 0x0b);
            if !self.rest.starts_with(b"--") {
                return Ok(());
            }
            self.take(2);
            if self.long_text()?.is_none() {
                self.take_while(|byte| byte != b'\n');
            }
        }
    }

    /// `[[...]]`, or with as many `=` between the brackets at either end.
    fn long_text(&mut self) -> Result<Option<&'s [u8]>, String> {
        let Some(inner) = self.rest.strip_prefix(b"[") else { return Ok(None) };
        let level = inner.iter().take_while(|&&byte| byte == b'=').count();
        if inner.get(level) != Some(&b'[') {
            return Ok(None);
        }
        let end = [b"]".as_slice(), &vec![b'='; level], b"]"].concat();
        self.take(level + 2);
        let len = memchr::memmem::find(self.rest, &end).ok_or("a text without an end")?;
        let text = self.take(len);
        self.take(end.len());
        let text = text.strip_prefix(b"\r").unwrap_or(text);
        Ok(Some(text.strip_prefix(b"\n").unwrap_or(text)))
    }

    /// The next word.
    ///
    /// # Errors
    /// What it is that is no word of a script.
    pub(super) fn next(&mut self) -> Result<Token, String> {
        self.pass_blanks()?;
        let Some(&first) = self.rest.first() else { return Ok(Token::End) };
        if first.is_ascii_alphabetic() || first == b'_' {
            let name = self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            let name = String::from_utf8_lossy(name).into_owned();
            let word = WORDS.into_iter().find(|word| *word == name);
            return Ok(word.map_or(Token::Name(name), Token::Sign));
        }
        let second = self.rest.get(1).copied().unwrap_or(b' ');
        if first.is_ascii_digit() || first == b'.' && second.is_ascii_digit() {
            return self.number();
        }
        if first == b'"' || first == b'\'' {
            self.take(1);
            return self.short_text(first);
        }
        if let Some(text) = self.long_text()? {
            return Ok(Token::Text(text.into()));
        }
        if let Some(sign) = SIGNS.into_iter().find(|sign| self.rest.starts_with(sign.as_bytes())) {
            self.take(sign.len());
            return Ok(Token::Sign(sign));
        }
        if first == b'.' {
            self.take(1);
            return Ok(Token::Sign("."));
        }
        Err(format!("the byte '{}'", first.escape_ascii()))
    }

    fn number(&mut self) -> Result<Token, String> {
        let start = self.rest;
        self.take_while(|byte| byte.is_ascii_digit() || byte == b'.');
        if self.rest.first().is_some_and(|byte| byte.eq_ignore_ascii_case(&b'e')) {
            self.take(1);
            if self.rest.first().is_some_and(|byte| b"+-".contains(byte)) {
                self.take(1);
            }
        }
        self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let text = &start[..start.len() - self.rest.len()];
        let shown = || format!("the number '{}'", String::from_utf8_lossy(text));
        number(text).map(Token::Number).ok_or_else(shown)
    }

    /// A text in quotation marks, of which the first is read already.
    fn short_text(&mut self, end: u8) -> Result<Token, String> {
        let mut text = Vec::new();
        loop {
            let plain = self.take_while(|byte| byte != end && !b"\\\n".contains(&byte));
            text.extend_from_slice(plain);
            match self.take(1) {
                [byte] if *byte == end => return Ok(Token::Text(text.into())),
                b"\\" => self.escape(&mut text)?,
                _ => return Err("a text without an end".to_owned()),
            }
        }
    }

    /// What a backslash stands before.
    fn escape(&mut self, text: &mut Vec<u8>) -> Result<(), String> {
        let digits = self.rest.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        if digits > 0 {
            let value = self.take(digits).iter();
            let value = value.fold(0_u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
            text.push(u8::try_from(value).map_err(|_| format!("the byte '\\{value}'"))?);
            return Ok(());
        }
        let [byte] = self.take(1) else { return Err("a text without an end".to_owned()) };
        text.push(match byte {
            b'a' => 7,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'v' => 0x0b,
            b'f' => 0x0c,
            b'r' => b'\r',
            other => *other,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Token>, String> {
        let mut lexer = Lexer::new(text.as_bytes());
        let mut tokens = Vec::new();
        loop {
            match lexer.next()? {
                Token::End => return Ok(tokens),
                token => tokens.push(token),
            }
        }
    }

    fn text(bytes: &[u8]) -> Token {
        Token::Text(bytes.into())
    }

    #[test]
    fn words_are_those_of_lua() {
        let name = |name: &str| Token::Name(name.into());
        assert_eq!(
            read("local x2=KEYS[1]--c\n..'a'").unwrap(),
            [
                Token::Sign("local"),
                name("x2"),
                Token::Sign("="),
                name("KEYS"),
                Token::Sign("["),
                Token::Number(1.0),
                Token::Sign("]"),
                Token::Sign(".."),
                text(b"a"),
            ]
        );
        assert_eq!(read("1.5e3 .5 0x1F").unwrap(), [1500.0, 0.5, 31.0].map(Token::Number));
        assert_eq!(read("--[[ a\n]]--[==[ ]] ]==] 'b'").unwrap(), [text(b"b")]);
        assert_eq!(read("[[\na\n]] [=[]]]=]").unwrap(), [text(b"a\n"), text(b"]]")]);
        assert_eq!(
            read(r#"'a\'b' "\65\n\\\0001" '\q'"#).unwrap(),
            [text(b"a'b"), text(b"A\n\\\x001"), text(b"q")]
        );
    }

    #[test]
    fn what_is_no_word_is_said() {
        for (script, what) in [
            ("'a", "without an end"),
            ("'a\nb'", "without an end"),
            ("[[a", "without an end"),
            ("--[[a", "without an end"),
            ("a @", "'@'"),
            ("3x", "'3x'"),
            (r"'\999'", r"'\999'"),
            ("'a\\", "without an end"),
        ] {
            let error = read(script).unwrap_err();
            assert!(error.contains(what), "{script}: {error}");
        }
    }
}
