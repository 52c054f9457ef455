//! SSCAN and ZSCAN: the members of a set, in parts in the order of their bytes.
//!
//! A part goes on behind the last member of the one before, so what is a member throughout is shown, once, whatever happens to
//! others and to its score meanwhile. What comes or goes meanwhile may be shown or not, as in Redis.

use super::ask::{Ask, Members, What};
use super::elements::{self, Element, number};
use super::glob::{glob, pattern_of};
use super::numbers::integer;
use crate::resp::{Code, Reply, ReplyError};
use crate::schema::TableId;

/// Least and most members in a part. Of a large set each part is a question to the origin, and COUNT is a hint.
const COUNT_MIN: usize = 1_000;
const COUNT_MAX: usize = 10_000;

const CURSOR: ReplyError = ReplyError::fixed(Code::Err, "invalid cursor");
const SYNTAX: ReplyError =
    ReplyError::fixed(Code::Err, "syntax error: SSCAN|ZSCAN key cursor [MATCH pattern] [COUNT n]");
/// What is said of a cursor of which the place is not known.
pub(super) const UNKNOWN: ReplyError = ReplyError::fixed(
    Code::Err,
    "this cursor is unknown, was forgotten or is of another key; start again with cursor 0",
);

/// The part that is asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SetScan {
    /// 0 for the first part, and once the place is known that the cursor stands for.
    cursor: u64,
    pattern: Option<Vec<u8>>,
}

/// Where a scan goes on.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) table: TableId,
    pub(super) owners: Box<[u8]>,
    /// The last member that was shown.
    pub(super) after: Box<[u8]>,
}

impl SetScan {
    /// Reads what stands behind the key of a set of which at most so many members are in a part.
    ///
    /// # Errors
    /// A message for the client.
    pub(super) fn read(args: &[&[u8]], members_max: usize) -> Result<Ask, ReplyError> {
        let (cursor, mut rest) = args.split_first().ok_or(SYNTAX)?;
        let cursor = std::str::from_utf8(cursor).ok().and_then(|text| text.parse().ok());
        let mut scan = Self { cursor: cursor.ok_or(CURSOR)?, pattern: None };
        let mut count = COUNT_MIN;
        while let Some((option, tail)) = rest.split_first() {
            rest = match (option.to_ascii_lowercase().as_slice(), tail) {
                (b"match", [pattern, tail @ ..]) => {
                    scan.pattern = Some(pattern_of(pattern)?.to_vec());
                    tail
                }
                (b"count", [number, tail @ ..]) => {
                    let number = integer(number).ok().filter(|&number| number > 0).ok_or(SYNTAX)?;
                    count = usize::try_from(number).unwrap_or(COUNT_MAX);
                    tail
                }
                _ => return Err(SYNTAX),
            };
        }
        let limit = count.clamp(COUNT_MIN, COUNT_MAX).min(members_max.max(1));
        let what = What::Lex(Members::behind(None));
        Ok(Ask { limit, scan: Some(scan), ..Ask::plain(what) })
    }

    /// The cursor whose place is to be found.
    pub(super) fn cursor(&self) -> Option<u64> {
        (self.cursor != 0).then_some(self.cursor)
    }

    /// Replies with these members, and the cursor with which it goes on; 0 if it does not.
    pub(super) fn tell(
        &self,
        next: u64,
        shown: &[Element<'_>],
        is_sorted: bool,
        reply: &mut Reply<'_>,
    ) {
        let is_asked =
            |member: &[u8]| self.pattern.as_ref().is_none_or(|pattern| glob(pattern, member));
        let shown: Vec<&Element<'_>> = shown.iter().filter(|one| is_asked(one.member)).collect();
        reply.array(2);
        reply.bulk(next.to_string().as_bytes());
        reply.array(shown.len() * if is_sorted { 2 } else { 1 });
        for element in shown {
            reply.bulk(element.member);
            if is_sorted {
                reply.bulk(elements::format(number(element.score)).as_bytes());
            }
        }
    }
}

impl Ask {
    /// Goes on at a place that was kept.
    pub(super) fn go_on(&mut self, place: &Place) {
        self.what = What::Lex(Members::behind(Some(&place.after)));
        if let Some(scan) = &mut self.scan {
            scan.cursor = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::Protocol;

    #[test]
    fn members_are_chosen_by_pattern_and_scores_are_texts() {
        let elements = [
            Element { score: b"1", member: b"ada" },
            Element { score: b"2.50", member: b"alan" },
            Element { score: b"3", member: b"grace" },
        ];
        let tell = |args: &[&[u8]], is_sorted| {
            let ask = SetScan::read(args, 100).unwrap();
            let mut out = Vec::new();
            let mut reply = Reply::new(&mut out, Protocol::V3);
            ask.scan.unwrap().tell(7, &elements, is_sorted, &mut reply);
            String::from_utf8_lossy(&out).replace("\r\n", " ")
        };
        assert_eq!(tell(&[b"0", b"MATCH", b"a*"], false), "*2 $1 7 *2 $3 ada $4 alan ");
        assert_eq!(
            tell(&[b"0", b"count", b"5", b"match", b"al*"], true),
            "*2 $1 7 *2 $4 alan $3 2.5 "
        );
    }

    #[test]
    fn a_part_has_no_more_members_than_are_cached() {
        let limit = |args: &[&[u8]], max| SetScan::read(args, max).unwrap().limit;
        assert_eq!(limit(&[b"0"], 100_000), COUNT_MIN);
        assert_eq!(limit(&[b"0", b"COUNT", b"5000"], 100_000), 5_000);
        assert_eq!(limit(&[b"0", b"COUNT", b"5000000"], 100_000), COUNT_MAX);
        assert_eq!(limit(&[b"0", b"COUNT", b"5000"], 4), 4);
        let wrong: [&[&[u8]]; 6] = [
            &[],
            &[b"x"],
            &[b"-1"],
            &[b"0", b"COUNT", b"0"],
            &[b"0", b"MATCH"],
            &[b"0", b"NOVALUES"],
        ];
        for args in wrong {
            assert!(SetScan::read(args, 9).is_err(), "{args:?}");
        }
    }
}
