//! Text of a catalogue, of a trigger or a condition, as words and signs. A text with anything else in it is not read at all.

/// How a database writes names and comments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect {
    /// What stands around names that are taken as they are.
    pub(crate) quotes: &'static [(char, char)],
    /// Whether comments may be passed over. Some databases carry out what stands in comments.
    pub(crate) has_comments: bool,
    /// Whether texts may be empty, and hold their quote, doubled.
    pub(crate) has_any_text: bool,
}

/// A part of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A bare word, in lower case.
    Word(String),
    /// A name in quotes.
    Name(String),
    /// A text in single quotes.
    Text(String),
    /// Digits.
    Digits(String),
    /// One of `SIGNS`.
    Sign(&'static str),
}

/// The longer ones first.
const SIGNS: [&str; 21] = [
    "<=>", ":=", "::", "<=", ">=", "<>", "!=", "==", ";", ".", ",", "(", ")", "=", "+", "*", "<",
    ">", "[", "]", "-",
];

/// The parts of a text; `None` if there is something in it that is none of them.
pub(crate) fn tokens(text: &str, dialect: Dialect) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r']);
        let Some(first) = rest.chars().next() else { return Some(tokens) };
        if let Some(comment) = rest.strip_prefix("--") {
            rest = comment.find('\n').map_or("", |end| &comment[end..]);
            // Databases differ in what ends a line.
            let is_plain =
                dialect.has_comments && !comment[..comment.len() - rest.len()].contains('\r');
            if !is_plain {
                return None;
            }
        } else if let Some(comment) = rest.strip_prefix("/*") {
            let (inside, behind) = comment.split_once("*/")?;
            // Databases differ in whether comments nest.
            if !dialect.has_comments || inside.contains("/*") {
                return None;
            }
            rest = behind;
        } else if first.is_ascii_alphabetic() || first == '_' {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let (word, behind) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
            tokens.push(Token::Word(word.to_ascii_lowercase()));
            rest = behind;
        } else if first.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (digits, behind) = rest.split_at(end);
            tokens.push(Token::Digits(digits.to_owned()));
            rest = behind;
        } else if let Some(&(_, end)) = dialect.quotes.iter().find(|(begin, _)| *begin == first) {
            let (name, behind) = quoted(rest, end)?;
            tokens.push(Token::Name(name));
            rest = behind;
        } else if first == '\'' {
            let (inside, behind) =
                if dialect.has_any_text { text_of(rest)? } else { quoted(rest, '\'')? };
            tokens.push(Token::Text(inside));
            rest = behind;
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign))?;
            tokens.push(Token::Sign(sign));
            rest = &rest[sign.len()..];
        }
        // What touches a word or a number from behind may be one thing with it in some database.
        let joins = matches!(tokens.last(), Some(Token::Digits(_) | Token::Word(_)))
            && rest
                .starts_with(|c: char| !c.is_ascii() || matches!(c, '\'' | '"' | '$' | '#' | '@'));
        if joins {
            return None;
        }
    }
}

/// What stands in quotes, and what follows. Without the quote itself and without backslashes, which databases read in
/// several ways.
fn quoted(text: &str, end: char) -> Option<(String, &str)> {
    let (inside, behind) = text[1..].split_once(end)?;
    let is_plain = !inside.is_empty() && !inside.contains('\\') && !behind.starts_with(end);
    is_plain.then(|| (inside.to_owned(), behind))
}

/// A text in its quotes, and what follows; without backslashes.
fn text_of(quoted: &str) -> Option<(String, &str)> {
    let mut inside = String::new();
    let mut rest = &quoted[1..];
    loop {
        let (part, behind) = rest.split_once('\'')?;
        inside.push_str(part);
        match behind.strip_prefix('\'') {
            Some(behind) => {
                inside.push('\'');
                rest = behind;
            }
            None => return (!inside.contains('\\')).then_some((inside, behind)),
        }
    }
}

/// Reads tokens from the front to the back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [Token],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(tokens: &'a [Token]) -> Self {
        Self { rest: tokens }
    }

    pub(crate) fn is_at_end(self) -> bool {
        self.rest.is_empty()
    }

    fn next(&mut self) -> Option<&'a Token> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    /// Passes a sign, if it is the next.
    pub(crate) fn sign(&mut self, sign: &str) -> Option<()> {
        let mut next = *self;
        let is_it = matches!(next.next(), Some(Token::Sign(found)) if *found == sign);
        is_it.then(|| *self = next)
    }

    /// Passes these words, if they are the next.
    pub(crate) fn words(&mut self, words: &str) -> Option<()> {
        let mut next = *self;
        for word in words.split(' ') {
            match next.next() {
                Some(Token::Word(found)) if found == word => {}
                _ => return None,
            }
        }
        *self = next;
        Some(())
    }

    /// Passes one of these words.
    pub(crate) fn any(&mut self, words: &[&str]) -> Option<&'a str> {
        let mut next = *self;
        let Some(Token::Word(found)) = next.next() else { return None };
        words.contains(&found.as_str()).then(|| {
            *self = next;
            found.as_str()
        })
    }

    /// A name, bare or in quotes.
    pub(crate) fn name(&mut self) -> Option<&'a str> {
        let mut next = *self;
        match next.next() {
            Some(Token::Word(name) | Token::Name(name)) => {
                *self = next;
                Some(name)
            }
            _ => None,
        }
    }

    /// A name in quotes.
    pub(crate) fn quoted_name(&mut self) -> Option<&'a str> {
        let mut next = *self;
        let Some(Token::Name(name)) = next.next() else { return None };
        *self = next;
        Some(name)
    }

    /// Digits.
    pub(crate) fn digits(&mut self) -> Option<&'a str> {
        let mut next = *self;
        let Some(Token::Digits(digits)) = next.next() else { return None };
        *self = next;
        Some(digits)
    }

    /// A text.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let mut next = *self;
        let Some(Token::Text(text)) = next.next() else { return None };
        *self = next;
        Some(text)
    }

    /// `()`.
    pub(crate) fn no_arguments(&mut self) -> Option<()> {
        let mut next = *self;
        next.sign("(")?;
        next.sign(")")?;
        *self = next;
        Some(())
    }

    /// `(3)`.
    pub(crate) fn digits_argument(&mut self) -> Option<()> {
        let mut next = *self;
        next.sign("(")?;
        let Some(Token::Digits(_)) = next.next() else { return None };
        next.sign(")")?;
        *self = next;
        Some(())
    }
}
