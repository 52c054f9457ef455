//! The text of a query: where its parameters stand.

use crate::schema::Schema;

/// One statement, with places for parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    fragments: Vec<Fragment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fragment {
    Text(String),
    Parameter(usize),
}

impl Statement {
    /// Finds `$name` outside of quotes and comments.
    ///
    /// # Errors
    /// A name that is no parameter, a parameter that is not used, several statements, quotes without an end.
    pub fn parse(sql: &str, names: &[String]) -> Result<Self, String> {
        let parsed = Self::scan(sql, |name| {
            if name.starts_with(|c: char| c.is_ascii_digit()) {
                return Err(format!("'${name}' is no parameter: they are named as in the key"));
            }
            let number = names.iter().position(|other| other == name);
            number.ok_or_else(|| format!("the key has no parameter {{{name}}} for ${name}"))
        })?;
        if let Some(unused) = parsed.unused(names.len()) {
            return Err(format!("the SQL does not use ${}", names[unused]));
        }
        match first_word(sql.trim()).as_str() {
            "select" | "with" => Ok(parsed),
            _ => Err("the SQL must begin with SELECT or WITH".into()),
        }
    }

    /// As [`Statement::parse`], for SQL that writes rows: its parameters are `$1` to `$count`.
    ///
    /// # Errors
    /// As for [`Statement::parse`].
    pub fn parse_dml(sql: &str, count: usize) -> Result<Self, String> {
        let parsed = Self::scan(sql, |name| {
            let number = name.parse().ok().filter(|number| (1..=count).contains(number));
            let number: usize = number.ok_or_else(|| match count {
                0 => format!("the SQL has ${name}, and no parameter is given"),
                count => format!("the SQL has ${name}, and the parameters are $1 to ${count}"),
            })?;
            Ok(number - 1)
        })?;
        if let Some(unused) = parsed.unused(count) {
            return Err(format!("the SQL does not use ${}", unused + 1));
        }
        match first_word(behind_comments(sql)).as_str() {
            "insert" | "update" | "delete" | "replace" | "merge" | "with" => Ok(parsed),
            _ => Err("the SQL begins with INSERT, UPDATE, DELETE, REPLACE, MERGE or WITH".into()),
        }
    }

    /// Finds the parameters; `number` tells which one a name means.
    fn scan(sql: &str, number: impl Fn(&str) -> Result<usize, String>) -> Result<Self, String> {
        let sql = sql.trim().trim_end_matches(';').trim_end();
        let mut scanner = Scanner { sql, at: 0 };
        let (mut fragments, mut text) = (Vec::new(), String::new());
        while let Some(token) = scanner.next()? {
            match token {
                Token::Other(part) => text.push_str(part),
                Token::Parameter(name) => {
                    let number = number(name)?;
                    fragments.push(Fragment::Text(std::mem::take(&mut text)));
                    fragments.push(Fragment::Parameter(number));
                }
            }
        }
        fragments.push(Fragment::Text(text));
        Ok(Self { fragments })
    }

    /// The first of so many parameters that it does not use.
    fn unused(&self, count: usize) -> Option<usize> {
        (0..count).find(|&at| !self.fragments.contains(&Fragment::Parameter(at)))
    }

    /// The text, with each parameter written by `write`.
    pub fn render(&self, mut write: impl FnMut(&mut String, usize)) -> String {
        let mut out = String::new();
        for fragment in &self.fragments {
            match fragment {
                Fragment::Text(text) => out.push_str(text),
                Fragment::Parameter(number) => write(&mut out, *number),
            }
        }
        out
    }

    /// The origin's tables whose names stand in it, by name.
    pub fn mentioned(&self, schema: &Schema) -> Vec<String> {
        let reachable = schema.reachable().iter().map(|table| &table.name);
        let all = reachable.chain(schema.unreachable.iter().map(|table| &table.name));
        all.filter(|name| self.mentions(name)).cloned().collect()
    }

    /// Whether a name stands in it as a word, in quotes or not, whatever its case.
    pub fn mentions(&self, name: &str) -> bool {
        let text = self.render(|out, _| out.push(' ')).to_ascii_lowercase();
        let name = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        text.match_indices(&name).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            let after = text[at + name.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
    }
}

fn first_word(sql: &str) -> String {
    let begins = sql.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    begins.to_ascii_lowercase()
}

/// What follows the comments and blanks at the beginning.
fn behind_comments(sql: &str) -> &str {
    let mut rest = sql.trim_start();
    loop {
        let end = match () {
            () if rest.starts_with("--") => rest.find('\n').map(|at| at + 1),
            () if rest.starts_with("/*") => rest.find("*/").map(|at| at + 2),
            () => return rest,
        };
        rest = rest[end.unwrap_or(rest.len())..].trim_start();
    }
}

enum Token<'s> {
    Other(&'s str),
    Parameter(&'s str),
}

struct Scanner<'s> {
    sql: &'s str,
    at: usize,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

impl<'s> Scanner<'s> {
    fn next(&mut self) -> Result<Option<Token<'s>>, String> {
        let rest = &self.sql[self.at..];
        let Some(&first) = rest.as_bytes().first() else { return Ok(None) };
        if first == b'$' {
            return self.parameter(rest).map(Some);
        }
        let len = match first {
            b'\'' | b'"' | b'`' => self.quoted(rest, first)?,
            b'-' if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            b'/' if rest.starts_with("/*") => self.comment(rest)?,
            b';' => return Err("the SQL must be one statement".into()),
            _ if is_word(first) => {
                // A '$' inside a word belongs to it.
                let end = |byte: u8| !is_word(byte) && byte != b'$';
                rest.bytes().position(end).unwrap_or(rest.len())
            }
            _ => 1,
        };
        self.at += len;
        Ok(Some(Token::Other(&rest[..len])))
    }

    fn parameter(&mut self, rest: &'s str) -> Result<Token<'s>, String> {
        let name = &rest[1..];
        let len = name.bytes().position(|byte| !is_word(byte)).unwrap_or(name.len());
        let (name, after) = name.split_at(len);
        if after.starts_with('$') {
            return Err("texts are quoted by '...', not by $...$".into());
        }
        if name.is_empty() {
            return Err("a '$' that names no parameter".into());
        }
        self.at += 1 + len;
        Ok(Token::Parameter(name))
    }

    /// The length of a text or name in quotes; a doubled quote stands for itself.
    fn quoted(&self, rest: &str, quote: u8) -> Result<usize, String> {
        // PostgreSQL's E'...' knows backslashes.
        let before = &self.sql.as_bytes()[..self.at];
        let escapes = quote == b'\''
            && matches!(before.last(), Some(b'e' | b'E'))
            && !before[..before.len() - 1].last().is_some_and(|&byte| is_word(byte));
        let bytes = rest.as_bytes();
        let mut at = 1;
        while let Some(&byte) = bytes.get(at) {
            match byte {
                b'\\' if escapes => at += 2,
                _ if byte != quote => at += 1,
                _ if bytes.get(at + 1) == Some(&quote) => at += 2,
                _ => return Ok(at + 1),
            }
        }
        Err(format!("the SQL ends inside of {}...{}", char::from(quote), char::from(quote)))
    }

    fn comment(&self, rest: &str) -> Result<usize, String> {
        let end = rest.find("*/").ok_or("the SQL ends inside of a comment")?;
        if rest[2..end].contains("/*") {
            return Err("a comment inside a comment: databases do not agree where it ends".into());
        }
        Ok(end + 2)
    }
}
