//! What the text of a CREATE TABLE statement tells and the catalogue's tables do not: which CHECK constraints there are and
//! which columns they look at, and which defaults are constants.

use super::types;
use crate::checks::{Check, Sql, read};
use crate::schema::Table;

/// The CHECK constraints, of a table whose columns are complete. None, where the text is not understood.
pub(super) fn constraints(sql: &str, table: &Table) -> Vec<Check> {
    let has_collations = has_word(sql, "COLLATE");
    let find = |name: &str| {
        let at = table.column_like(name)?;
        Some((at, types::kind(&table.columns[at], has_collations)))
    };
    let of_clause = |(name, text): (Option<&str>, &str)| {
        let text = text.trim().to_owned();
        let condition = read(Sql::Sqlite, &text, &find);
        Check { name: name.map_or_else(|| text.clone(), str::to_owned), text, condition }
    };
    clauses(sql).into_iter().flatten().map(of_clause).collect()
}

/// What stands in the parentheses of each CHECK, with the name that precedes it.
fn clauses(sql: &str) -> Option<Vec<(Option<&str>, &str)>> {
    let mut clauses = Vec::new();
    let mut tokens = Tokens { rest: sql };
    let is_word = |token: &Token<'_>, word: &str| matches!(token, Token::Word(w) if w.eq_ignore_ascii_case(word));
    let mut before = [Token::Other(' '), Token::Other(' ')];
    while let Some(token) = tokens.next() {
        if !is_word(&token, "CHECK") {
            before = [before[1], token];
            continue;
        }
        (tokens.next()? == Token::Other('(')).then_some(())?;
        let inside = tokens.rest;
        let mut depth = 1;
        let mut end = inside.len();
        while depth > 0 {
            end = tokens.rest.len();
            match tokens.next()? {
                Token::Other('(') => depth += 1,
                Token::Other(')') => depth -= 1,
                _ => {}
            }
        }
        let text = &inside[..inside.len() - end];
        let name = match before {
            [first, Token::Word(name) | Token::Quoted(name)] if is_word(&first, "CONSTRAINT") => {
                Some(name)
            }
            _ => None,
        };
        clauses.push((name, text));
    }
    Some(clauses)
}

/// For each column, whether a CHECK constraint may look at it. In doubt it does.
pub(super) fn checked(sql: &str, table: &Table) -> Vec<bool> {
    let tokens: Vec<Token<'_>> = Tokens { rest: sql }.collect();
    let mut checked = vec![false; table.columns.len()];
    let mut at = 0;
    while at < tokens.len() {
        let is_check = matches!(tokens[at], Token::Word(w) if w.eq_ignore_ascii_case("CHECK"));
        at += 1;
        if !is_check {
            continue;
        }
        let mut depth = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                Token::Other('(') => depth += 1,
                Token::Other(')') => depth -= 1,
                Token::Word(name) => mark(&mut checked, table, name),
                Token::Quoted(text) => mark(&mut checked, table, text),
                Token::Other(_) => {}
            }
            at += 1;
            if depth == 0 {
                break;
            }
        }
        if depth != 0 {
            return vec![true; table.columns.len()];
        }
    }
    checked
}

/// A quoted name arrives in parts where it holds its own quote, doubled: such columns count as named.
fn mark(checked: &mut [bool], table: &Table, name: &str) {
    for (mark, column) in checked.iter_mut().zip(&table.columns) {
        *mark |= column.name.eq_ignore_ascii_case(name) || column.name.contains(['"', '`']);
    }
}

/// Whether the word stands in the statement, outside of quotes and comments.
pub(super) fn has_word(sql: &str, word: &str) -> bool {
    Tokens { rest: sql }.any(|t| matches!(t, Token::Word(w) if w.eq_ignore_ascii_case(word)))
}

/// Whether the text of a default is one literal, which stays the same for each row.
pub(super) fn is_literal(text: &str) -> bool {
    let text = text.trim();
    let number = text.trim_start_matches(['+', '-']).trim_start();
    let quoted = |text: &str| {
        text.strip_prefix('\'')
            .and_then(|t| t.strip_suffix('\''))
            .is_some_and(|inner| !inner.replace("''", "").contains('\''))
    };
    let words = ["NULL", "TRUE", "FALSE"];
    words.iter().any(|w| text.eq_ignore_ascii_case(w))
        || quoted(text)
        || text.strip_prefix(['x', 'X']).is_some_and(quoted)
        || (number.starts_with(|c: char| c.is_ascii_digit() || c == '.')
            && number.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-'))
            && number.parse::<f64>().is_ok())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    /// The inside of quotes or brackets, as written.
    Quoted(&'a str),
    Other(char),
}

struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    fn cut(&mut self, len: usize) -> &'a str {
        let (head, rest) = self.rest.split_at(len);
        self.rest = rest;
        head
    }

    /// What stands before `end`, which is skipped as well.
    fn until(&mut self, end: &str) -> &'a str {
        let len = self.rest.find(end).unwrap_or(self.rest.len());
        let inside = self.cut(len);
        self.rest = self.rest.strip_prefix(end).unwrap_or(self.rest);
        inside
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            self.rest = self.rest.trim_start();
            if let Some(rest) = self.rest.strip_prefix("--") {
                self.rest = rest;
                self.until("\n");
            } else if let Some(rest) = self.rest.strip_prefix("/*") {
                self.rest = rest;
                self.until("*/");
            } else {
                break;
            }
        }
        let first = self.rest.chars().next()?;
        let in_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$' || !c.is_ascii();
        if in_word(first) {
            let len = self.rest.find(|c| !in_word(c)).unwrap_or(self.rest.len());
            return Some(Token::Word(self.cut(len)));
        }
        self.cut(first.len_utf8());
        Some(match first {
            '\'' => Token::Quoted(self.until("'")),
            '"' => Token::Quoted(self.until("\"")),
            '`' => Token::Quoted(self.until("`")),
            '[' => Token::Quoted(self.until("]")),
            other => Token::Other(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Column, ColumnDefault};
    use crate::value::ColumnType;

    fn table(names: &[&str]) -> Table {
        let mut table = Table::named("t".into(), "\"t\"".into());
        table.columns = names
            .iter()
            .map(|name| Column {
                name: (*name).to_owned(),
                sql_name: String::new(),
                ty: ColumnType::Bytes,
                type_name: String::new(),
                not_null: false,
                default: ColumnDefault::None,
                generated: false,
                structural: false,
                checked: false,
            })
            .collect();
        table
    }

    #[test]
    fn only_columns_named_in_a_check_are_checked() {
        let table = table(&["id", "check_date", "qty", "odd \"name"]);
        let of = |sql: &str| checked(sql, &table);
        assert_eq!(of("CREATE TABLE t (id, check_date, qty /* CHECK (qty) */)"), [false; 4]);
        assert_eq!(
            of("CREATE TABLE t (id, qty INT CHECK (QTY > (1)), check_date TEXT)"),
            [false, false, true, true]
        );
        assert_eq!(
            of("CREATE TABLE t (id CHECK ([check_date] < 'a)'), qty)"),
            [false, true, false, true]
        );
        assert_eq!(of("CREATE TABLE t (id, CHECK (qty > 0"), [true; 4]);
    }

    #[test]
    fn constraints_are_found_with_their_names() {
        let sql = "CREATE TABLE t (id, qty INT CHECK (qty > (1)), \"a CHECK (b)\" TEXT,
            CONSTRAINT [one of] CHECK( id IN (1, /* ) */ ')') ), CHECK (id <> 'CHECK (') )";
        let found = [
            (None, "qty > (1)"),
            (Some("one of"), " id IN (1, /* ) */ ')')"),
            (None, "id <> 'CHECK ('"),
        ];
        assert_eq!(clauses(sql).unwrap(), found);
        assert_eq!(clauses("CREATE TABLE t (id, CHECK (qty > 0"), None);
    }

    #[test]
    fn literals_are_told_from_expressions() {
        for text in ["0", "-1", "1.5e3", "'a''b'", "NULL", "true", "x'00ff'", "+ 3", " 7 "] {
            assert!(is_literal(text), "{text}");
        }
        for text in
            ["CURRENT_TIMESTAMP", "random()", "(1 + 2)", "'a' || 'b'", "\"a\"", "inf", "1 2"]
        {
            assert!(!is_literal(text), "{text}");
        }
    }

    #[test]
    fn words_in_quotes_and_comments_do_not_count() {
        assert!(has_word("REFERENCES p DEFERRABLE INITIALLY DEFERRED)", "DEFERRED"));
        assert!(!has_word(
            "a TEXT DEFAULT 'DEFERRED' -- DEFERRED\n, \"DEFERRED\" TEXT",
            "DEFERRED"
        ));
    }
}
