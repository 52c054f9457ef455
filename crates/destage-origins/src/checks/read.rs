//! The conditions that are understood, as the databases write them in their catalogues:
//!
//! ```text
//! condition  = all { OR all }
//! all        = not { AND not }
//! not        = NOT not | test
//! test       = ( condition ) | column | operand compared
//! compared   = ( = | <> | < | <= | > | >= ) operand | IS [ NOT ] NULL | [ NOT ] BETWEEN operand AND operand
//!            | [ NOT ] IN ( constant { , constant } )
//!            | ( = ANY | <> ALL ) ( ARRAY [ constant { , constant } ] )
//! operand    = column | constant | length ( text ) | trim ( text ) | ( operand ) | operand :: type
//! ```
//!
//! A column alone is one of PostgreSQL's booleans. Casts and arrays are PostgreSQL's, IN and BETWEEN the others': PostgreSQL
//! writes these in another way. What follows a comparison other than AND, OR and a parenthesis makes a text unknown, so that
//! no rule of precedence matters but those of NOT, AND and OR, in which the three agree.

use super::values::{By, Kind, Moment, TextRule, is_decimal, is_moment};
use super::{COMPARISONS_MAX, Condition, MANY, MORE, Op, Operand, Reason, TEXT_BYTES_MAX, Test};
use crate::sql_text::{Cursor, Dialect, tokens};

/// Whose text it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sql {
    Postgres,
    MariaDb,
    Sqlite,
}

impl Sql {
    fn dialect(self) -> Dialect {
        let (quotes, has_comments): (&[(char, char)], bool) = match self {
            Self::Postgres => (&[('"', '"')], false),
            Self::MariaDb => (&[('"', '"'), ('`', '`')], false),
            Self::Sqlite => (&[('"', '"'), ('`', '`'), ('[', ']')], true),
        };
        Dialect { quotes, has_comments, has_any_text: true }
    }
}

/// The place of a column of that name, and what it is.
pub(crate) type Find<'a> = &'a dyn Fn(&str) -> Option<(usize, Kind)>;

/// The condition that a text states, if that is understood.
pub(crate) fn read(sql: Sql, text: &str, find: Find<'_>) -> Result<Condition, Reason> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(MANY);
    }
    let tokens = tokens(text, sql.dialect()).ok_or(MORE)?;
    let mut reader = Reader { sql, cursor: Cursor::new(&tokens), find, depth: 0 };
    let test = reader.any().filter(|_| reader.cursor.is_at_end()).ok_or(MORE)?;
    if test.comparisons() > COMPARISONS_MAX {
        return Err(MANY);
    }
    let mut columns = Vec::new();
    test.columns(&mut columns);
    Ok(Condition { columns, test })
}

/// Deeper ones are not read: each level is tried in two ways.
const DEPTH_MAX: u32 = 32;

/// Words that mean something else than a column of that name, which has to be in quotes.
const RESERVED: [&str; 15] = [
    "null",
    "true",
    "false",
    "current_date",
    "current_time",
    "current_timestamp",
    "localtime",
    "localtimestamp",
    "current_user",
    "session_user",
    "system_user",
    "user",
    "current_role",
    "current_catalog",
    "current_schema",
];

struct Reader<'a> {
    sql: Sql,
    cursor: Cursor<'a>,
    find: Find<'a>,
    depth: u32,
}

struct Term {
    operand: Operand,
    kind: Kind,
}

impl Reader<'_> {
    fn any(&mut self) -> Option<Test> {
        let mut tests = vec![self.all()?];
        while self.cursor.words("or").is_some() {
            tests.push(self.all()?);
        }
        Some(if tests.len() == 1 { tests.remove(0) } else { Test::Any(tests) })
    }

    fn all(&mut self) -> Option<Test> {
        let mut tests = vec![self.not()?];
        while self.cursor.words("and").is_some() {
            tests.push(self.not()?);
        }
        Some(if tests.len() == 1 { tests.remove(0) } else { Test::All(tests) })
    }

    fn not(&mut self) -> Option<Test> {
        let mut is_negated = false;
        while self.cursor.words("not").is_some() {
            is_negated = !is_negated;
        }
        let test = self.test()?;
        Some(if is_negated { Test::Not(Box::new(test)) } else { test })
    }

    fn test(&mut self) -> Option<Test> {
        let start = self.cursor;
        if let Some(test) = self.of_operand() {
            return Some(test);
        }
        self.cursor = start;
        self.within(Self::any)
    }

    /// What stands in parentheses.
    fn within<T>(&mut self, inside: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.cursor.sign("(")?;
        if self.depth == DEPTH_MAX {
            return None;
        }
        self.depth += 1;
        let read = inside(self);
        self.depth -= 1;
        let read = read?;
        self.cursor.sign(")")?;
        Some(read)
    }

    fn of_operand(&mut self) -> Option<Test> {
        let left = self.operand()?;
        if self.cursor.words("is").is_some() {
            let is_negated = self.cursor.words("not").is_some();
            self.cursor.words("null")?;
            return Some(negated(is_negated, Test::IsNull(left.operand)));
        }
        if self.sql == Sql::Sqlite {
            if self.cursor.words("isnull").is_some() {
                return Some(Test::IsNull(left.operand));
            }
            if self.cursor.words("notnull").is_some() || self.cursor.words("not null").is_some() {
                return Some(negated(true, Test::IsNull(left.operand)));
            }
        }
        if let Some(op) = self.comparison() {
            if self.sql == Sql::Postgres {
                let quantified = match op {
                    Op::Eq => self.cursor.words("any").map(|()| false),
                    Op::Ne => self.cursor.words("all").map(|()| true),
                    _ => None,
                };
                if let Some(is_negated) = quantified {
                    return self.array(&left, is_negated);
                }
            }
            let right = self.operand()?;
            return self.compare(op, &left, &right);
        }
        if self.sql == Sql::Postgres {
            let Operand::Column(column) = left.operand else { return None };
            return (left.kind == Kind::Bool).then_some(Test::Holds(column));
        }
        let is_negated = self.cursor.words("not").is_some();
        if self.cursor.words("in").is_some() {
            let items = self.within(Self::constants)?;
            return self.one_of(&left, &items, is_negated);
        }
        self.cursor.words("between")?;
        let least = self.operand()?;
        self.cursor.words("and")?;
        let most = self.operand()?;
        let least = self.compare(Op::Ge, &left, &least)?;
        let most = self.compare(Op::Le, &left, &most)?;
        Some(negated(is_negated, Test::All(vec![least, most])))
    }

    fn comparison(&mut self) -> Option<Op> {
        let signs = [
            ("=", Op::Eq),
            ("==", Op::Eq),
            ("<>", Op::Ne),
            ("!=", Op::Ne),
            ("<=", Op::Le),
            (">=", Op::Ge),
            ("<", Op::Lt),
            (">", Op::Gt),
        ];
        signs.into_iter().find(|(sign, _)| self.cursor.sign(sign).is_some()).map(|(_, op)| op)
    }

    /// `(ARRAY[1, 2])`, or with a cast `((ARRAY['a'::character varying])::text[])`.
    fn array(&mut self, left: &Term, is_negated: bool) -> Option<Test> {
        let items = self.within(|reader| {
            if reader.cursor.words("array").is_some() {
                return reader.items();
            }
            let items = reader.within(|reader| {
                reader.cursor.words("array")?;
                reader.items()
            })?;
            reader.cursor.sign("::")?;
            reader.cursor.words("text")?;
            reader.cursor.sign("[")?;
            reader.cursor.sign("]")?;
            Some(items)
        })?;
        self.one_of(left, &items, is_negated)
    }

    fn items(&mut self) -> Option<Vec<Term>> {
        self.cursor.sign("[")?;
        let items = self.constants()?;
        self.cursor.sign("]")?;
        Some(items)
    }

    fn constants(&mut self) -> Option<Vec<Term>> {
        let mut items = Vec::new();
        loop {
            let item = self.operand()?;
            if !matches!(item.operand, Operand::Constant(_)) {
                return None;
            }
            items.push(item);
            if self.cursor.sign(",").is_none() {
                return Some(items);
            }
        }
    }

    fn one_of(&self, left: &Term, items: &[Term], is_negated: bool) -> Option<Test> {
        let each = items.iter().map(|item| self.compare(Op::Eq, left, item));
        Some(negated(is_negated, Test::Any(each.collect::<Option<_>>()?)))
    }

    fn operand(&mut self) -> Option<Term> {
        let mut term = self.primary()?;
        while self.sql == Sql::Postgres && self.cursor.sign("::").is_some() {
            term = self.cast(term)?;
        }
        Some(term)
    }

    fn primary(&mut self) -> Option<Term> {
        if let Some(term) = self.number() {
            return Some(term);
        }
        if let Some(text) = self.cursor.text() {
            return Some(constant(text, Kind::Word));
        }
        let start = self.cursor;
        if let Some(term) = self.function() {
            return Some(term);
        }
        self.cursor = start;
        if self.sql == Sql::Postgres {
            if let Some(word) = self.cursor.any(&["true", "false"]) {
                return Some(constant(&word[..1], Kind::Bool));
            }
        } else if self.cursor.words("null").is_some() {
            return Some(Term { operand: Operand::Constant(None), kind: Kind::Null });
        }
        if let Some(term) = self.column() {
            return Some(term);
        }
        self.cursor = start;
        self.within(Self::operand)
    }

    /// `12`, `-12.50`.
    fn number(&mut self) -> Option<Term> {
        let mut next = self.cursor;
        let mut text = String::new();
        if next.sign("-").is_some() {
            text.push('-');
        }
        text.push_str(next.digits()?);
        if next.sign(".").is_some() {
            text.push('.');
            text.push_str(next.digits()?);
        }
        self.cursor = next;
        Some(constant(&text, Kind::Number))
    }

    /// A length, or a text without the blanks around it.
    fn function(&mut self) -> Option<Term> {
        let (chars, bytes): (&[&str], &[&str]) = match self.sql {
            Sql::Postgres => (&["length", "char_length", "character_length"], &["octet_length"]),
            Sql::MariaDb => (&["char_length", "character_length"], &["length", "octet_length"]),
            Sql::Sqlite => (&["length"], &[]),
        };
        let is_trim = match self.sql {
            Sql::Postgres => self.cursor.any(&["btrim", "trim"]),
            Sql::MariaDb | Sql::Sqlite => self.cursor.any(&["trim"]),
        };
        if let Some(name) = is_trim {
            let text = self.within(|reader| {
                if reader.sql == Sql::Postgres && name == "trim" {
                    reader.cursor.words("both from")?;
                }
                reader.text()
            })?;
            return Some(Term { operand: Operand::Trimmed(Box::new(text.operand)), ..text });
        }
        let counts = |operand: Operand, is_chars: bool| {
            let operand = Box::new(operand);
            if is_chars { Operand::Chars(operand) } else { Operand::Bytes(operand) }
        };
        let is_chars = self.cursor.any(chars).is_some();
        if !is_chars {
            self.cursor.any(bytes)?;
        }
        let text = self.within(Self::text)?;
        Some(Term { operand: counts(text.operand, is_chars), kind: Kind::Number })
    }

    fn text(&mut self) -> Option<Term> {
        self.operand().filter(|term| matches!(term.kind, Kind::Text(_)))
    }

    fn column(&mut self) -> Option<Term> {
        let name = match self.cursor.quoted_name() {
            Some(name) => name,
            // MariaDB has every column in quotes.
            None if self.sql == Sql::MariaDb => return None,
            None => self.cursor.name().filter(|name| !RESERVED.contains(name))?,
        };
        let (column, kind) = (self.find)(name)?;
        Some(Term { operand: Operand::Column(column), kind })
    }

    /// A term of another type of PostgreSQL's, as far as that changes nothing of its value.
    fn cast(&mut self, term: Term) -> Option<Term> {
        const TEXT: Kind = Kind::Text(TextRule::Bytes);
        let moments = [
            ("date", Moment::Date),
            ("time without time zone", Moment::Time),
            ("timestamp without time zone", Moment::Stamp),
            ("timestamp with time zone", Moment::Instant),
        ];
        if let Some((_, moment)) =
            moments.into_iter().find(|(words, _)| self.cursor.words(words).is_some())
        {
            let is_one = |text: &str| is_moment(moment, text);
            return retyped(term, Kind::Word, is_one, Kind::Moment(moment));
        }
        if self.cursor.words("character varying").or_else(|| self.cursor.words("text")).is_some() {
            return match term.kind {
                Kind::Text(_) => Some(term),
                _ => retyped(term, Kind::Word, |_| true, TEXT),
            };
        }
        if self.cursor.words("double precision").is_some() {
            return match term.kind {
                Kind::Double => Some(term),
                Kind::Single => {
                    let operand = Operand::Single(Box::new(term.operand));
                    Some(Term { operand, kind: Kind::Double })
                }
                from => retyped(term, from, is_decimal, Kind::Double),
            };
        }
        if self.cursor.words("numeric").is_some() {
            return match term.kind {
                Kind::Whole { .. } | Kind::Exact => Some(Term { kind: Kind::Exact, ..term }),
                from => retyped(term, from, is_decimal, Kind::Number),
            };
        }
        if let Some(name) = self.cursor.any(&["smallint", "integer", "bigint"]) {
            let target = match name {
                "smallint" => 16,
                "integer" => 32,
                _ => 64,
            };
            return match term.kind {
                Kind::Whole { bits } if bits <= target => Some(term),
                Kind::Whole { .. } => None,
                from => retyped(term, from, |text| is_whole(text, target), Kind::Number),
            };
        }
        // Of other types those are known that have labels: PostgreSQL has checked that this is one.
        self.cursor.name()?;
        if self.cursor.sign(".").is_some() {
            self.cursor.name()?;
        }
        retyped(term, Kind::Word, |_| true, Kind::Label)
    }

    /// A comparison of two terms, if it is known how their database does it.
    fn compare(&self, op: Op, left: &Term, right: &Term) -> Option<Test> {
        let (by, is_ordered) = match self.sql {
            Sql::Postgres => postgres(left.kind, right.kind)?,
            Sql::MariaDb => mariadb(left, right)?,
            Sql::Sqlite => sqlite(left.kind, right.kind)?,
        };
        // What is known of types is known of columns.
        let is_of_row = |term: &Term| !matches!(term.operand, Operand::Constant(_));
        if !is_of_row(left) && !is_of_row(right) || !is_ordered && !matches!(op, Op::Eq | Op::Ne) {
            return None;
        }
        let operand = |term: &Term| match term.kind {
            Kind::Single => Operand::Single(Box::new(term.operand.clone())),
            _ => term.operand.clone(),
        };
        Some(Test::Compare { op, left: operand(left), right: operand(right), by })
    }
}

fn is_number(kind: Kind) -> bool {
    matches!(kind, Kind::Whole { .. } | Kind::Exact | Kind::Number)
}

/// How PostgreSQL compares them, and whether one may come first. Of texts that depends on the collation.
fn postgres(left: Kind, right: Kind) -> Option<(By, bool)> {
    match (left, right) {
        (left, right) if is_number(left) && is_number(right) => Some((By::Decimal, true)),
        (Kind::Double | Kind::Single, Kind::Double | Kind::Single) => Some((By::Double, true)),
        (Kind::Text(TextRule::Bytes), Kind::Text(TextRule::Bytes))
        | (Kind::Bool, Kind::Bool)
        | (Kind::Label, Kind::Label) => Some((By::Bytes, false)),
        (Kind::Moment(left), Kind::Moment(right)) if left == right => Some((By::Moment, true)),
        _ => None,
    }
}

fn mariadb(left: &Term, right: &Term) -> Option<(By, bool)> {
    let of_text = |rule| match rule {
        TextRule::Bytes => By::Bytes,
        TextRule::Padded => By::Padded,
        TextRule::Folded => By::Folded,
    };
    let as_moment = |moment, word: &Term| match &word.operand {
        Operand::Constant(Some(text)) => {
            std::str::from_utf8(text).is_ok_and(|text| is_moment(moment, text))
        }
        _ => false,
    };
    match (left.kind, right.kind) {
        (Kind::Null, _) | (_, Kind::Null) => Some((By::Bytes, true)),
        (left, right) if is_number(left) && is_number(right) => Some((By::Decimal, true)),
        (Kind::Double, Kind::Double | Kind::Number) | (Kind::Number, Kind::Double) => {
            Some((By::Double, true))
        }
        (Kind::Text(rule), Kind::Word) | (Kind::Word, Kind::Text(rule)) => {
            Some((of_text(rule), false))
        }
        (Kind::Text(rule), Kind::Text(other)) if rule == other => Some((of_text(rule), false)),
        (Kind::Moment(left), Kind::Moment(right)) if left == right => Some((By::Moment, true)),
        (Kind::Moment(moment), Kind::Word) if as_moment(moment, right) => Some((By::Moment, true)),
        (Kind::Word, Kind::Moment(moment)) if as_moment(moment, left) => Some((By::Moment, true)),
        _ => None,
    }
}

/// How SQLite compares them: by the affinity of columns. Texts here are of columns under the collation BINARY.
fn sqlite(left: Kind, right: Kind) -> Option<(By, bool)> {
    match (left, right) {
        (Kind::Null, _) | (_, Kind::Null) => Some((By::Bytes, true)),
        (Kind::Affine, Kind::Affine | Kind::Number | Kind::Word)
        | (Kind::Number | Kind::Word, Kind::Affine)
        | (Kind::Number, Kind::Number) => Some((By::Affinity, true)),
        (Kind::Text(TextRule::Bytes), Kind::Text(TextRule::Bytes) | Kind::Word)
        | (Kind::Word, Kind::Text(TextRule::Bytes)) => Some((By::Bytes, true)),
        _ => None,
    }
}

fn negated(is_negated: bool, test: Test) -> Test {
    if is_negated { Test::Not(Box::new(test)) } else { test }
}

fn constant(text: &str, kind: Kind) -> Term {
    Term { operand: Operand::Constant(Some(text.as_bytes().into())), kind }
}

/// A constant of kind `from` under another one, if its text is one of that.
fn retyped(term: Term, from: Kind, is_one: impl Fn(&str) -> bool, to: Kind) -> Option<Term> {
    let is_constant = term.kind == from && matches!(from, Kind::Word | Kind::Number);
    let Operand::Constant(Some(text)) = &term.operand else { return None };
    let is_known = is_constant && std::str::from_utf8(text).is_ok_and(is_one);
    is_known.then_some(Term { kind: to, ..term })
}

fn is_whole(text: &str, bits: u32) -> bool {
    let most = i64::MAX >> (64 - bits);
    text.parse::<i64>().is_ok_and(|number| (-most - 1..=most).contains(&number))
}
