//! Defaults that are constants, and those that can be given here.

use super::super::connection::pipelined;
use crate::defaults::Formula;
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

/// Evaluates those defaults that are literals and enters them, and those whose formula is known here; the others only the
/// origin can tell.
pub(super) async fn evaluate(client: &Client, candidates: &[Candidate], tables: &mut [Table]) {
    for candidate in candidates {
        let column = &mut tables[candidate.table].columns[candidate.column];
        let formula = formula(&candidate.expression);
        if let Some(formula) = formula.and_then(|formula| formula.fitting(&column.ty, false)) {
            column.default = ColumnDefault::Formula(formula);
        }
    }
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

/// What the expression computes, as the catalogue writes it. The sessions of Destage are in UTC, so a time without a zone is
/// one in UTC.
fn formula(expression: &str) -> Option<Formula> {
    let text = expression.trim();
    if let Some(inner) = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'))
        && balanced(inner)
    {
        return formula(inner);
    }
    let is_time = |formula: &Formula| matches!(formula, Formula::Time { .. });
    let in_two = |(left, right): &(&str, &str)| balanced(left) && balanced(right);
    if let Some((inner, zone)) = text.rsplit_once(" AT TIME ZONE ").filter(in_two) {
        return formula(inner).filter(|formula| is_time(formula) && is_utc(zone));
    }
    if let Some(rest) = text.strip_prefix("timezone(").and_then(|text| text.strip_suffix(')')) {
        let (zone, inner) = rest.split_once(", ")?;
        return formula(inner).filter(|formula| is_time(formula) && is_utc(zone));
    }
    if let Some((inner, name)) = text.rsplit_once("::").filter(in_two) {
        return cast(formula(inner)?, name);
    }
    let name_len = text.find('(').unwrap_or(text.len());
    let (name, arguments) = text.split_at(name_len);
    match (name, arguments) {
        ("now" | "transaction_timestamp" | "statement_timestamp" | "clock_timestamp", "()") => {
            Some(Formula::Time { digits: 6 })
        }
        ("CURRENT_TIMESTAMP" | "LOCALTIMESTAMP", arguments) => Formula::time(arguments, 6),
        ("CURRENT_DATE", "") => Some(Formula::Date),
        (name, "()") => {
            // An extension may be in a schema of its own.
            let name = name.rsplit_once('.').map_or(name, |(_, name)| name);
            let is_random = ["gen_random_uuid", "uuidv4", "uuid_generate_v4"].contains(&name);
            is_random.then_some(Formula::Uuid)
        }
        _ => None,
    }
}

fn is_utc(zone: &str) -> bool {
    let name = zone.trim().strip_suffix("::text").unwrap_or(zone).trim();
    name.eq_ignore_ascii_case("'utc'")
}

/// What a value is after a cast to that type.
fn cast(formula: Formula, name: &str) -> Option<Formula> {
    let (Formula::Time { digits: 0..=6 } | Formula::Date, "date") = (formula, name) else {
        let is_text = name == "text" || name.starts_with("character varying");
        return match formula {
            Formula::Time { digits } => {
                let rest = name.strip_prefix("timestamp")?;
                let rest = ["without", "with"].iter().find_map(|word| {
                    rest.trim_end().strip_suffix("time zone")?.trim_end().strip_suffix(word)
                })?;
                let Formula::Time { digits: cut } = Formula::time(rest, 6)? else { return None };
                Some(Formula::Time { digits: digits.min(cut) })
            }
            Formula::Uuid => (is_text || name == "uuid").then_some(formula),
            Formula::Date | Formula::Number => None,
        };
    };
    Some(Formula::Date)
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

    #[test]
    fn what_can_be_given_here_is_told_from_what_cannot() {
        let time = |digits| Some(Formula::Time { digits });
        for (expression, expected) in [
            ("now()", time(6)),
            ("CURRENT_TIMESTAMP", time(6)),
            ("CURRENT_TIMESTAMP(3)", time(3)),
            ("LOCALTIMESTAMP(0)", time(0)),
            ("clock_timestamp()", time(6)),
            ("(now() AT TIME ZONE 'utc'::text)", time(6)),
            ("timezone('UTC'::text, CURRENT_TIMESTAMP)", time(6)),
            ("(CURRENT_TIMESTAMP)::timestamp without time zone", time(6)),
            ("(now())::timestamp(2) with time zone", time(2)),
            ("CURRENT_DATE", Some(Formula::Date)),
            ("(now())::date", Some(Formula::Date)),
            ("((now() AT TIME ZONE 'utc'::text))::date", Some(Formula::Date)),
            ("gen_random_uuid()", Some(Formula::Uuid)),
            ("(gen_random_uuid())::text", Some(Formula::Uuid)),
            ("(public.uuid_generate_v4())::character varying(36)", Some(Formula::Uuid)),
        ] {
            assert_eq!(formula(expression), expected, "{expression}");
        }
        for other in [
            "(now() + '1 day'::interval)",
            "(now() AT TIME ZONE 'Europe/Berlin'::text)",
            "timezone('CET'::text, now())",
            "(now())::text",
            "(CURRENT_DATE)::text",
            "(now() - now())",
            "(CURRENT_DATE + 1)",
            "(gen_random_uuid())::bytea",
            "replace((gen_random_uuid())::text, '-'::text, ''::text)",
            "(('x'::text || (gen_random_uuid())::text))",
            "nextval('s'::regclass)",
            "mine.now()",
            "uuid_generate_v1()",
            "CURRENT_TIMESTAMP(7)",
            "CURRENT_TIME",
            "('now'::text)::date",
            "date_trunc('day'::text, now())",
            "",
        ] {
            assert_eq!(formula(other), None, "{other}");
        }
    }
}
