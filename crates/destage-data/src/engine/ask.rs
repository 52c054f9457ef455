//! Questions about whole collections: which of the elements are meant, in which order, and which part of a large collection
//! has to be read for it.

use super::elements::{Element, number};
use super::numbers::{NOT_INTEGER, integer};
use super::set_scan::SetScan;
use crate::collection::{By, Collection, Edge, Query};
use crate::resp::{Code, ReplyError};
use crate::schema::Table;
use crate::value::ColumnType;

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ask {
    pub(super) what: What,
    /// Ranges from the highest to the lowest.
    pub(super) reverse: bool,
    pub(super) with_scores: bool,
    /// LIMIT.
    pub(super) offset: usize,
    pub(super) limit: usize,
    /// SSCAN or ZSCAN.
    pub(super) scan: Option<SetScan>,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    /// All members.
    All,
    /// How many there are.
    Count,
    /// Those from one place to another.
    Index(i64, i64),
    /// Those with such scores.
    Score(Scores),
    /// Those with such members.
    Lex(Members),
    /// How many have such scores.
    CountScore(Scores),
    /// How many such members there are.
    CountLex(Members),
    /// The place of a member.
    Rank(Vec<u8>),
}

/// A range of scores; true where the bound itself is left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scores {
    min: (f64, bool),
    max: (f64, bool),
}

/// A range of members.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Members {
    min: MemberBound,
    max: MemberBound,
}

#[derive(Clone, Debug, PartialEq)]
enum MemberBound {
    Lowest,
    Highest,
    /// A member; true if it is left out.
    At(Vec<u8>, bool),
}

const SYNTAX: ReplyError = ReplyError::fixed(Code::Err, "syntax error");
const NOT_SCORE: ReplyError = ReplyError::fixed(Code::Err, "min or max is not a float");
const NOT_LEX: ReplyError = ReplyError::fixed(Code::Err, "min or max not valid string range item");

impl Scores {
    /// Reads two bounds; of a reversed range the greater one comes first.
    fn read(first: &[u8], second: &[u8], reverse: bool) -> Result<Self, ReplyError> {
        let (min, max) = if reverse { (second, first) } else { (first, second) };
        Ok(Self { min: score_bound(min)?, max: score_bound(max)? })
    }

    fn contains(&self, score: f64) -> bool {
        let above = score > self.min.0 || !self.min.1 && score == self.min.0;
        let below = score < self.max.0 || !self.max.1 && score == self.max.0;
        above && below
    }
}

fn score_bound(text: &[u8]) -> Result<(f64, bool), ReplyError> {
    let (text, is_excluded) = match text.strip_prefix(b"(") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let value = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    let value = value.filter(|value| !value.is_nan()).ok_or(NOT_SCORE)?;
    Ok((value, is_excluded))
}

impl Members {
    fn read(first: &[u8], second: &[u8], reverse: bool) -> Result<Self, ReplyError> {
        let (min, max) = if reverse { (second, first) } else { (first, second) };
        Ok(Self { min: member_bound(min)?, max: member_bound(max)? })
    }

    /// Those behind a member, or all.
    pub(super) fn behind(member: Option<&[u8]>) -> Self {
        let min = member.map_or(MemberBound::Lowest, |m| MemberBound::At(m.into(), true));
        Self { min, max: MemberBound::Highest }
    }

    fn contains(&self, member: &[u8]) -> bool {
        let above = match &self.min {
            MemberBound::Lowest => true,
            MemberBound::Highest => false,
            MemberBound::At(bound, is_excluded) => {
                member > &bound[..] || !is_excluded && member == &bound[..]
            }
        };
        let below = match &self.max {
            MemberBound::Lowest => false,
            MemberBound::Highest => true,
            MemberBound::At(bound, is_excluded) => {
                member < &bound[..] || !is_excluded && member == &bound[..]
            }
        };
        above && below
    }
}

fn member_bound(text: &[u8]) -> Result<MemberBound, ReplyError> {
    match text.split_first() {
        Some((b'-', [])) => Ok(MemberBound::Lowest),
        Some((b'+', [])) => Ok(MemberBound::Highest),
        Some((b'[', rest)) => Ok(MemberBound::At(rest.into(), false)),
        Some((b'(', rest)) => Ok(MemberBound::At(rest.into(), true)),
        _ => Err(NOT_LEX),
    }
}

/// How a range of a sorted set is named.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Index,
    Score,
    Lex,
}

impl Ask {
    pub(super) fn plain(what: What) -> Self {
        Self { what, reverse: false, with_scores: false, offset: 0, limit: usize::MAX, scan: None }
    }

    /// Reads the arguments of a question behind the key.
    ///
    /// # Errors
    /// A message for the client, in Redis's words.
    pub(super) fn read(name: &str, args: &[&[u8]]) -> Result<Self, ReplyError> {
        match name {
            "smembers" => Ok(Self::plain(What::All)),
            "scard" | "zcard" => Ok(Self::plain(What::Count)),
            "zcount" => Ok(Self::plain(What::CountScore(Scores::read(args[0], args[1], false)?))),
            "zlexcount" => Ok(Self::plain(What::CountLex(Members::read(args[0], args[1], false)?))),
            "zrank" | "zrevrank" => Self::read_rank(name == "zrevrank", args),
            "zrange" => Self::read_range(Named::Index, false, true, args),
            "zrevrange" => Self::read_range(Named::Index, true, false, args),
            "zrangebyscore" => Self::read_range(Named::Score, false, false, args),
            "zrevrangebyscore" => Self::read_range(Named::Score, true, false, args),
            "zrangebylex" => Self::read_range(Named::Lex, false, false, args),
            "zrevrangebylex" => Self::read_range(Named::Lex, true, false, args),
            _ => unreachable!("not a question about a collection"),
        }
    }

    fn read_rank(reverse: bool, args: &[&[u8]]) -> Result<Self, ReplyError> {
        let with_scores = match &args[1..] {
            [] => false,
            [option] if option.eq_ignore_ascii_case(b"withscore") => true,
            _ => return Err(SYNTAX),
        };
        Ok(Self { reverse, with_scores, ..Self::plain(What::Rank(args[0].into())) })
    }

    /// `is_general`: ZRANGE, whose options say what the others have in their names.
    fn read_range(
        mut named: Named,
        mut reverse: bool,
        is_general: bool,
        args: &[&[u8]],
    ) -> Result<Self, ReplyError> {
        let mut ask = Self::plain(What::All);
        let mut is_limited = false;
        let mut rest = &args[2..];
        while let Some((option, tail)) = rest.split_first() {
            rest = tail;
            match (option.to_ascii_lowercase().as_slice(), tail) {
                (b"byscore", _) if is_general => named = Named::Score,
                (b"bylex", _) if is_general => named = Named::Lex,
                (b"rev", _) if is_general => reverse = true,
                (b"withscores", _) => ask.with_scores = true,
                (b"limit", [offset, limit, tail @ ..]) => {
                    is_limited = true;
                    let count = |arg| integer(arg).map_err(|_| NOT_INTEGER);
                    let (offset, limit) = (count(offset)?, count(limit)?);
                    // As in Redis: behind a negative place there is nothing, and a negative number is no limit.
                    ask.offset = usize::try_from(offset).unwrap_or(usize::MAX);
                    ask.limit = usize::try_from(limit).unwrap_or(usize::MAX);
                    rest = tail;
                }
                _ => return Err(SYNTAX),
            }
        }
        if is_limited && named == Named::Index {
            return Err(ReplyError::fixed(
                Code::Err,
                "syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if ask.with_scores && named == Named::Lex {
            return Err(ReplyError::fixed(
                Code::Err,
                "syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        ask.reverse = reverse;
        ask.what = match named {
            Named::Index => {
                let place = |arg| integer(arg).map_err(|_| NOT_INTEGER);
                What::Index(place(args[0])?, place(args[1])?)
            }
            Named::Score => What::Score(Scores::read(args[0], args[1], reverse)?),
            Named::Lex => What::Lex(Members::read(args[0], args[1], reverse)?),
        };
        Ok(ask)
    }

    /// Whether an element is meant, as far as its own content tells.
    pub(super) fn takes(&self, element: &Element<'_>) -> bool {
        match &self.what {
            What::Score(scores) | What::CountScore(scores) => {
                scores.contains(number(element.score))
            }
            What::Lex(members) | What::CountLex(members) => members.contains(element.member),
            What::All | What::Count | What::Index(..) | What::Rank(_) => true,
        }
    }

    /// Which of the elements that are meant to show: whether to count from the other end, how many to skip, and how many to
    /// take. `len` is the number of elements, if it is known; `None` where that is needed.
    pub(super) fn window(&self, len: Option<usize>) -> Option<(bool, usize, usize)> {
        let What::Index(start, stop) = self.what else {
            return Some((false, self.offset, self.limit));
        };
        // A start before the beginning means the beginning, a stop there means nothing.
        let place = |at: i64, lowest| match len {
            Some(len) if at < 0 => (len as i64 + at).max(lowest),
            _ => at,
        };
        let (first, last) = (place(start, 0), place(stop, -1));
        if (first < 0) != (last < 0) {
            // From within to before the beginning: nothing. Without the length nobody knows.
            return len.map(|_| (false, 0, 0));
        }
        let take = last.saturating_sub(first).saturating_add(1).max(0) as usize;
        if first < 0 {
            Some((true, (-(last + 1)) as usize, take))
        } else {
            Some((false, first as usize, take))
        }
    }

    /// What to read of a large collection; each further attempt reads more than is needed if nothing changes meanwhile.
    ///
    /// # Errors
    /// A message for the client: the question needs the whole collection.
    pub(super) fn page(
        &self,
        collection: &Collection,
        table: &Table,
        attempts: u32,
    ) -> Result<Query, ReplyError> {
        let count = Query { by: By::Count, min: None, max: None, reverse: false, limit: 0 };
        let (flip, skip, take) = match self.window(None) {
            _ if self.what == What::Count => return Ok(count),
            Some(window) if !self.needs_all() => window,
            _ => return Err(large(collection)),
        };
        let by = match &self.what {
            What::Lex(_) | What::CountLex(_) => By::Member,
            _ if collection.is_sorted() => By::Score,
            _ => By::Member,
        };
        let (min, max) = self.edges(collection, table);
        let needed = skip.saturating_add(take).min(collection.members_max);
        let slack = SLACK << attempts.min(ATTEMPTS_MAX);
        Ok(Query { by, min, max, reverse: self.reverse != flip, limit: needed + slack })
    }

    /// The order in which it is read in parts.
    pub(super) fn order(&self) -> By {
        match &self.what {
            What::Lex(_) | What::CountLex(_) => By::Member,
            _ => By::Score,
        }
    }

    /// Whether the question needs all members, whatever it finds.
    pub(super) fn needs_all(&self) -> bool {
        matches!(self.what, What::Rank(_)) || self.window(None).is_none()
    }

    /// Whether a page that is not complete, with so many elements that are meant, answers the question.
    pub(super) fn is_answered(
        &self,
        collection: &Collection,
        found: usize,
    ) -> Result<bool, ReplyError> {
        let (_, skip, take) = self.window(None).ok_or_else(|| large(collection))?;
        let needed = skip.saturating_add(take);
        let is_counted = matches!(self.what, What::CountScore(_) | What::CountLex(_) | What::All);
        let is_enough = found >= needed && !is_counted;
        if !is_enough && found > collection.members_max {
            return Err(large(collection));
        }
        Ok(is_enough)
    }

    fn edges(&self, collection: &Collection, table: &Table) -> (Option<Edge>, Option<Edge>) {
        match &self.what {
            What::Score(scores) | What::CountScore(scores) => {
                let Some(score) = collection.score else { return (None, None) };
                let ty = &table.columns[score].ty;
                (score_edge(ty, scores.min, f64::ceil), score_edge(ty, scores.max, f64::floor))
            }
            What::Lex(members) | What::CountLex(members) => {
                let edge = |bound: &MemberBound| match bound {
                    MemberBound::At(value, is_excluded) => {
                        Some(Edge { value: value.clone(), is_included: !is_excluded })
                    }
                    MemberBound::Lowest | MemberBound::Highest => None,
                };
                (edge(&members.min), edge(&members.max))
            }
            _ => (None, None),
        }
    }

    /// Whether nothing can be meant, whatever there is.
    pub(super) fn is_empty(&self) -> bool {
        if self.limit == 0 || self.offset == usize::MAX {
            return true;
        }
        match &self.what {
            What::Score(Scores { min, max }) | What::CountScore(Scores { min, max }) => {
                min.0 > max.0
                    || (min.0 == max.0 && (min.1 || max.1))
                    || min.0 == f64::INFINITY
                    || max.0 == f64::NEG_INFINITY
            }
            What::Lex(Members { min, max }) | What::CountLex(Members { min, max }) => {
                *min == MemberBound::Highest || *max == MemberBound::Lowest
            }
            _ => self.window(None).is_some_and(|(_, _, take)| take == 0),
        }
    }
}

/// A bound of scores in the form of their column; `None` where it bounds nothing. Where the form is not exact the bound is
/// left in, and what does not belong to the range is left out later.
fn score_edge(
    ty: &ColumnType,
    (bound, is_excluded): (f64, bool),
    rounded: fn(f64) -> f64,
) -> Option<Edge> {
    if bound.is_infinite() {
        return None;
    }
    if let ColumnType::Int { .. } = ty {
        let whole = rounded(bound);
        let is_included = !is_excluded || whole != bound;
        // What does not fit saturates: nothing lies beyond.
        return Some(Edge { value: (whole as i64).to_string().into(), is_included });
    }
    let is_exact = !matches!(ty.signed(), ColumnType::Numeric { .. });
    let value = ty.canonical(bound.to_string().as_bytes()).ok()?.into_owned();
    Some(Edge { value, is_included: !is_excluded || !is_exact })
}

/// What to read of a set that was large and may not be so any more: one member more than is cached, in the set's order.
pub(super) fn everything(collection: &Collection, attempts: u32) -> Query {
    let by = if collection.is_sorted() { By::Score } else { By::Member };
    let limit = collection.members_max + 1 + (SLACK << attempts.min(ATTEMPTS_MAX));
    Query { by, min: None, max: None, reverse: false, limit }
}

/// What is told where a question needs all members of a set that has too many.
pub(super) fn large(collection: &Collection) -> ReplyError {
    ReplyError::new(
        Code::Large,
        format!(
            "the set has more than {} members, and this needs all of them: read it in parts, by ZRANGEBYSCORE or ZRANGE \
         with LIMIT, or raise members-max of its mapping",
            collection.members_max
        ),
    )
}

/// What is read beyond what is needed: pending changes may take elements away.
const SLACK: usize = 16;
/// How often a page is asked for before the client is told that it changes too fast.
pub(super) const ATTEMPTS_MAX: u32 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn range(name: &str, words: &str) -> Ask {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        Ask::read(name, &words).unwrap()
    }

    #[test]
    fn windows_are_those_of_redis() {
        for (words, len, expected) in [
            ("0 -1", Some(5), Some((false, 0, 5))),
            ("1 3", Some(5), Some((false, 1, 3))),
            ("-3 -2", Some(5), Some((false, 2, 2))),
            ("-100 1", Some(5), Some((false, 0, 2))),
            ("-100 -50", Some(5), Some((false, 0, 0))),
            ("-2 -2", Some(1), Some((false, 0, 0))),
            ("-1 -1", Some(1), Some((false, 0, 1))),
            ("-1 -1", Some(0), Some((false, 0, 0))),
            ("0 -100", Some(5), Some((false, 0, 0))),
            ("3 1", Some(5), Some((false, 3, 0))),
            ("0 -1", None, None),
            ("0 9", None, Some((false, 0, 10))),
            ("-3 -1", None, Some((true, 0, 3))),
            ("-5 -3", None, Some((true, 2, 3))),
        ] {
            assert_eq!(range("zrange", words).window(len), expected, "{words} of {len:?}");
        }
    }

    #[test]
    fn bounds_take_the_form_of_their_column() {
        let int = ColumnType::Int { min: i64::MIN, max: i64::MAX };
        let edge = |value: &str, is_included| Some(Edge { value: value.into(), is_included });
        assert_eq!(score_edge(&int, (1.5, true), f64::ceil), edge("2", true));
        assert_eq!(score_edge(&int, (2.0, true), f64::ceil), edge("2", false));
        assert_eq!(score_edge(&int, (1.5, false), f64::floor), edge("1", true));
        assert_eq!(score_edge(&int, (f64::INFINITY, false), f64::floor), None);
        assert_eq!(score_edge(&ColumnType::Float8, (1.5, true), f64::ceil), edge("1.5", false));
        let cents = ColumnType::Numeric { precision: Some((10, 2)), has_nan: true };
        assert_eq!(score_edge(&cents, (1.5, true), f64::ceil), edge("1.50", true));
    }

    #[test]
    fn wrong_ranges_are_told_in_redis_words() {
        for (name, words, message) in [
            ("zrange", "a 1", NOT_INTEGER),
            ("zrangebyscore", "a 1", NOT_SCORE),
            ("zrangebylex", "a [b", NOT_LEX),
            ("zrange", "0 1 LIMIT 0", SYNTAX),
            ("zrevrange", "0 1 REV", SYNTAX),
        ] {
            let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            assert_eq!(Ask::read(name, &words).unwrap_err(), message, "{name}");
        }
    }
}
