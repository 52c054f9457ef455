//! Defaults that are constants.

use super::super::connection::pipelined;
use crate::schema::{ColumnDefault, Table};
use crate::value::ColumnType;
use std::pin::Pin;
use tokio_postgres::{Client, Error};

/// A default to be evaluated.
pub(super) struct Candidate {
    pub(super) table: usize,
    pub(super) column: usize,
    pub(super) expression: String,
    /// The base type to cast to.
    pub(super) sql_type: String,
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Option<String>, Error>> + 'a>>;

/// Evaluates those defaults that are literals and enters them; the others only the origin can tell.
pub(super) async fn evaluate(client: &Client, candidates: &[Candidate], tables: &mut [Table]) {
    let literals: Vec<_> = candidates.iter().filter(|c| is_literal(&c.expression)).collect();
    let ask = |candidate: &&Candidate| -> Answer<'_> {
        let sql = format!("SELECT ({})::{}::text", candidate.expression, candidate.sql_type);
        Box::pin(async move { client.query_one(&sql, &[]).await?.try_get(0) })
    };
    let answers = pipelined(literals.iter().map(ask).collect()).await;
    for (candidate, answer) in literals.iter().zip(answers) {
        let column = &mut tables[candidate.table].columns[candidate.column];
        column.default = match answer {
            Ok(None) => ColumnDefault::None,
            // The text of a bytea is not its bytes.
            Ok(Some(text)) if column.ty != ColumnType::Bytes => {
                column.ty.canonical(text.as_bytes()).map_or(ColumnDefault::Computed, |value| {
                    ColumnDefault::Constant(value.into_owned())
                })
            }
            _ => ColumnDefault::Computed,
        };
    }
}

/// Whether the expression is one literal with at most one cast: nothing in it can change from row to row.
fn is_literal(expression: &str) -> bool {
    let mut text = expression.trim();
    if let Some(rest) = literal(text) {
        return rest.is_empty() || is_cast(rest);
    }
    // (-1) or ('-1'::integer) or (0)::numeric
    if let Some(inner) = text.strip_prefix('(') {
        text = inner;
        if let Some(rest) = literal(text) {
            return match rest.strip_suffix(')') {
                Some(cast) if is_cast(cast) => true,
                _ => rest.strip_prefix(')').is_some_and(|rest| rest.is_empty() || is_cast(rest)),
            };
        }
    }
    false
}

/// What follows the literal at the start of the text, if there is one.
fn literal(text: &str) -> Option<&str> {
    for word in ["true", "false", "NULL"] {
        if let Some(rest) = text.strip_prefix(word) {
            return Some(rest);
        }
    }
    if let Some(body) = text.strip_prefix('\'') {
        let mut at = 0;
        loop {
            at += body[at..].find('\'')? + 1;
            match body[at..].strip_prefix('\'') {
                Some(_) => at += 1,
                None => return Some(&body[at..]),
            }
        }
    }
    let digits = text.strip_prefix('-').unwrap_or(text);
    let rest = digits.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    (rest.len() < digits.len()).then_some(rest)
}

fn is_cast(text: &str) -> bool {
    text.strip_prefix("::").is_some_and(|name| {
        let allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | ' ' | '.' | '"' | ',');
        let plain = |c: char| allowed(c) || matches!(c, '(' | ')' | '[' | ']');
        !name.is_empty() && name.chars().all(plain) && balanced(name)
    })
}

fn balanced(name: &str) -> bool {
    let mut depth = 0;
    for c in name.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth < 0 {
            return false;
        }
    }
    depth == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_told_from_what_may_change() {
        for constant in [
            "0",
            "-1",
            "(-1)",
            "'-1'::integer",
            "1.50",
            "true",
            "NULL::character varying",
            "'it''s'::text",
            "'a'::character varying(10)",
            "'{}'::jsonb",
            "('-1'::integer)",
            "(0)::numeric",
            "'open'::shop.\"Order State\"",
        ] {
            assert!(is_literal(constant), "{constant}");
        }
        for computed in [
            "now()",
            "CURRENT_TIMESTAMP",
            "nextval('s'::regclass)",
            "('now'::text)::timestamp without time zone",
            "1 + 1",
            "'a'::text || 'b'::text",
            "'x'::text::date",
            "gen_random_uuid()",
            "truemax()",
            "ARRAY[1]",
            "",
            "'x",
        ] {
            assert!(!is_literal(computed), "{computed}");
        }
    }
}
