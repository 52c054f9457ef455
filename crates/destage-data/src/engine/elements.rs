//! What the cache holds of collections: their elements in order, as one run of cells behind the key.
//!
//! An element is `[score] member`; sets are ordered by the member's bytes, sorted sets by score and then so. Changing one
//! element copies the run, which is bounded by the mapping's limit.

use crate::cells::{Cell, Reader, push_cell};
use crate::collection::{By, CollectionId, Part};
use crate::schema::{Schema, TableId};
use std::cmp::Ordering;

/// What is known of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetState<'a> {
    /// All elements.
    Full(&'a [u8]),
    /// It had too many: since which moment that is known, when it last changed, and how many there are at least.
    Large { loaded: u64, changed: u64, at_least: usize },
    /// Only the origin knows.
    Unknown,
}

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page<'a> {
    /// These elements, in order; all of the range if `is_complete`.
    Elements { started: u64, installed: u64, is_complete: bool, elements: &'a [u8] },
    /// The number of all elements.
    Count { started: u64, installed: u64, count: i64 },
    /// Only the origin knows.
    Unknown,
}

/// One element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element<'a> {
    /// Its score in canonical form; of sets nothing.
    pub(super) score: &'a [u8],
    pub(super) member: &'a [u8],
}

const FULL: &[u8] = b"";
const LARGE: u8 = b'l';
const COMPLETE: u8 = b'c';
const PARTIAL: u8 = b'p';
const COUNT: u8 = b'n';

impl<'a> SetState<'a> {
    /// Reads what follows the key's cells.
    pub(super) fn read(mut cells: Reader<'a>) -> Self {
        match cells.cell() {
            Some(Cell::Value(FULL)) => Self::Full(cells.rest()),
            Some(Cell::Value(state)) => match times(state) {
                Some((LARGE, loaded, changed)) => {
                    let at_least = cells.cell().and_then(Cell::value).and_then(parse);
                    Self::Large { loaded, changed, at_least: at_least.unwrap_or_default() }
                }
                _ => Self::Unknown,
            },
            _ => Self::Unknown,
        }
    }

    /// Appends it to the key's cells.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Full(elements) => {
                push_cell(out, Cell::Value(FULL));
                out.extend_from_slice(elements);
            }
            Self::Large { loaded, changed, at_least } => {
                push_times(out, LARGE, loaded, changed);
                push_cell(out, Cell::Value(itoa::Buffer::new().format(at_least).as_bytes()));
            }
            Self::Unknown => push_cell(out, Cell::Unknown),
        }
    }
}

impl<'a> Page<'a> {
    /// Reads what follows the key's cells.
    pub(super) fn read(mut cells: Reader<'a>) -> Self {
        let state = cells.cell().and_then(Cell::value).and_then(times);
        match state {
            Some((COUNT, started, installed)) => {
                let count = cells.cell().and_then(Cell::value).and_then(parse);
                count.map_or(Self::Unknown, |count| Self::Count { started, installed, count })
            }
            Some((kind, started, installed)) => Self::Elements {
                started,
                installed,
                is_complete: kind == COMPLETE,
                elements: cells.rest(),
            },
            None => Self::Unknown,
        }
    }

    /// Appends it to the key's cells.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Elements { started, installed, is_complete, elements } => {
                push_times(out, if is_complete { COMPLETE } else { PARTIAL }, started, installed);
                out.extend_from_slice(elements);
            }
            Self::Count { started, installed, count } => {
                push_times(out, COUNT, started, installed);
                push_cell(out, Cell::Value(count.to_string().as_bytes()));
            }
            Self::Unknown => push_cell(out, Cell::Unknown),
        }
    }
}

fn times(state: &[u8]) -> Option<(u8, u64, u64)> {
    let (&kind, rest) = state.split_first()?;
    let (first, second) = rest.split_at_checked(8)?;
    let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    Some((kind, number(first)?, number(second)?))
}

fn push_times(out: &mut Vec<u8>, kind: u8, first: u64, second: u64) {
    let mut state = vec![kind];
    state.extend_from_slice(&first.to_le_bytes());
    state.extend_from_slice(&second.to_le_bytes());
    push_cell(out, Cell::Value(&state));
}

/// The elements of a run.
pub(super) fn elements(run: &[u8], is_sorted: bool) -> impl Iterator<Item = Element<'_>> {
    let mut cells = Reader::new(run);
    std::iter::from_fn(move || next(&mut cells, is_sorted))
}

/// The next element of a run.
fn next<'a>(cells: &mut Reader<'a>, is_sorted: bool) -> Option<Element<'a>> {
    let score = if is_sorted { cells.cell()?.value().unwrap_or_default() } else { &[] };
    Some(Element { score, member: cells.cell()?.value().unwrap_or_default() })
}

/// Appends an element to a run.
pub(super) fn push(out: &mut Vec<u8>, is_sorted: bool, element: Element<'_>) {
    if is_sorted {
        push_cell(out, Cell::Value(element.score));
    }
    push_cell(out, Cell::Value(element.member));
}

/// The order of elements: by score, then by the member's bytes.
pub(super) fn compare(a: &Element<'_>, b: &Element<'_>) -> Ordering {
    let by_score = if a.score == b.score {
        Ordering::Equal
    } else {
        number(a.score).total_cmp(&number(b.score))
    };
    by_score.then_with(|| a.member.cmp(b.member))
}

/// The order in which a part of a collection is read.
pub(super) fn compare_by(by: By, a: &Element<'_>, b: &Element<'_>) -> Ordering {
    match by {
        By::Member => a.member.cmp(b.member),
        By::Score | By::Count => compare(a, b),
    }
}

/// A run with this element, which replaces one of the same member; with `None` for the score, without the member.
///
/// Only what tells elements apart is read of each, and the place of the new one is searched by halves: reading a score takes
/// several times as long as copying its element.
pub(super) fn changed(run: &[u8], is_sorted: bool, member: &[u8], score: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(run.len() + member.len() + score.map_or(0, <[u8]>::len) + 8);
    // Where each element begins but the one of this member, and where that one is.
    let (mut starts, mut old) = (Vec::new(), None);
    let mut cells = Reader::new(run);
    let at = |cells: Reader<'_>| run.len() - cells.rest().len();
    while !cells.is_empty() {
        let start = at(cells);
        let Some(element) = next(&mut cells, is_sorted) else { break };
        if element.member == member {
            old = Some(start..at(cells));
        } else {
            starts.push(start);
        }
    }
    let end = at(cells);
    let old = old.unwrap_or(end..end);
    let Some(score) = score else {
        out.extend_from_slice(&run[..old.start]);
        out.extend_from_slice(&run[old.end..end]);
        return out;
    };
    let new = Element { score, member };
    let is_before = |start: &usize| {
        next(&mut Reader::new(&run[*start..]), is_sorted)
            .is_some_and(|element| compare(&element, &new).is_lt())
    };
    let place = starts.get(starts.partition_point(is_before)).copied().unwrap_or(end);
    // The old one lies before the place, or behind it.
    let (first, second) = (old.start.min(place), place.max(old.end));
    out.extend_from_slice(&run[..first]);
    if old.end <= place {
        out.extend_from_slice(&run[old.end..place]);
        push(&mut out, is_sorted, new);
    } else {
        push(&mut out, is_sorted, new);
        out.extend_from_slice(&run[place.min(old.start)..old.start]);
    }
    out.extend_from_slice(&run[second..end]);
    out
}

/// A score as a number; what is none (there is nothing of the kind) counts as 0.
pub(super) fn number(score: &[u8]) -> f64 {
    match score {
        b"" => 0.0,
        b"Inf" | b"Infinity" => f64::INFINITY,
        b"-Inf" | b"-Infinity" => f64::NEG_INFINITY,
        // No sign of a zero: Redis compares numbers.
        score => parse::<f64>(score).unwrap_or_default() + 0.0,
    }
}

fn parse<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// A number as Redis writes it: whole numbers without a fraction, the others in the shortest form that reads back the same.
pub(super) fn format(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if number == number.trunc() && number.abs() < 1e17 {
        return itoa::Buffer::new().format(number as i64).to_owned();
    }
    let magnitude = number.abs();
    if (1e-5..1e21).contains(&magnitude) {
        return number.to_string();
    }
    // 1e+21, as C writes it.
    let text = format!("{number:e}");
    match text.split_once('e') {
        Some((digits, power)) if !power.starts_with('-') => format!("{digits}e+{power:0>2}"),
        Some((digits, power)) => format!("{digits}e-{:0>2}", &power[1..]),
        None => text,
    }
}

/// The collection that a table of the cache's own holds as a whole.
pub(super) fn set_of_table(schema: &Schema, table: TableId) -> Option<CollectionId> {
    match schema.table(table).part {
        Some((id, Part::Whole)) => Some(id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(list: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (score, member) in list {
            push(&mut out, true, Element { score: score.as_bytes(), member: member.as_bytes() });
        }
        out
    }

    #[test]
    fn changes_keep_the_order() {
        let run = run_of(&[("1", "b"), ("2", "a"), ("10", "c")]);
        let moved = changed(&run, true, b"b", Some(b"2"));
        assert_eq!(moved, run_of(&[("2", "a"), ("2", "b"), ("10", "c")]));
        let added = changed(&moved, true, b"d", Some(b"1.5"));
        assert_eq!(added, run_of(&[("1.5", "d"), ("2", "a"), ("2", "b"), ("10", "c")]));
        assert_eq!(changed(&added, true, b"d", None), moved);
        assert_eq!(changed(&moved, true, b"none", None), moved);
    }

    #[test]
    fn a_change_leaves_the_elements_that_a_sort_leaves() {
        // Each member once, with scores of which some are equal and some differ in digits alone.
        let scores = ["-2", "0", "0.0", "1", "1.5", "2", "10", "Infinity"];
        let members = ["a", "b", "c", "d", "e"];
        let sorted = |mut list: Vec<(&str, &str)>, is_sorted: bool| {
            list.sort_by(|a, b| {
                let element = |pair: &(&str, &str)| {
                    let score = if is_sorted { pair.0 } else { "" };
                    (number(score.as_bytes()), pair.1.to_owned())
                };
                let (a, b) = (element(a), element(b));
                a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
            });
            let mut out = Vec::new();
            for (score, member) in list {
                let score = if is_sorted { score } else { "" };
                push(
                    &mut out,
                    is_sorted,
                    Element { score: score.as_bytes(), member: member.as_bytes() },
                );
            }
            out
        };
        for seed in 0..640usize {
            let is_sorted = seed % 2 == 0;
            let pick = |at: usize| scores[(seed / 2 * 7 + at * 5 + seed / 11) % scores.len()];
            let list: Vec<_> = members
                .iter()
                .enumerate()
                .filter(|(at, _)| (seed >> at) & 1 == 1)
                .map(|(at, member)| (pick(at), *member))
                .collect();
            let run = sorted(list.clone(), is_sorted);
            for member in members {
                let others = list.iter().copied().filter(|other| other.1 != member);
                let without: Vec<_> = others.collect();
                assert_eq!(
                    changed(&run, is_sorted, member.as_bytes(), None),
                    sorted(without.clone(), is_sorted)
                );
                for score in scores {
                    let with = [without.clone(), vec![(score, member)]].concat();
                    let score = if is_sorted { score } else { "" };
                    assert_eq!(
                        changed(&run, is_sorted, member.as_bytes(), Some(score.as_bytes())),
                        sorted(with, is_sorted),
                        "{list:?} with {member} at {score}"
                    );
                }
            }
        }
    }

    #[test]
    fn contents_read_back_as_written() {
        let run = run_of(&[("1", "b")]);
        let large = SetState::Large { loaded: 3, changed: 9, at_least: 70 };
        for whole in [SetState::Full(&run), large, SetState::Unknown] {
            let mut bytes = Vec::new();
            whole.write(&mut bytes);
            assert_eq!(SetState::read(Reader::new(&bytes)), whole);
        }
        let pages = [
            Page::Elements { started: 1, installed: 2, is_complete: true, elements: &run },
            Page::Elements { started: 1, installed: 2, is_complete: false, elements: &[] },
            Page::Count { started: 5, installed: 6, count: 70 },
            Page::Unknown,
        ];
        for page in pages {
            let mut bytes = Vec::new();
            page.write(&mut bytes);
            assert_eq!(Page::read(Reader::new(&bytes)), page);
        }
    }

    #[test]
    fn scores_are_written_as_redis_writes_them() {
        for (number, text) in [
            (1.0, "1"),
            (-0.5, "-0.5"),
            (1e20, "100000000000000000000"),
            (1.5e300, "1.5e+300"),
            (1e-7, "1e-07"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(format(number), text);
        }
    }
}
