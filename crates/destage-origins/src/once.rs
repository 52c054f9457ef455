//! Commands that are carried out once (`DESTAGE ONCE`): what write groups tell of them.
//!
//! ```text
//! token-record = 65535:varint 5:u8 kind:u8 number:varint [ stamp:varint token:cell command:cell reply:cell ]
//! kind = 0 carried out | 1 carried out if the origin applies it | 2 given up (no more follows)
//! ```
//!
//! The group that a command makes tells of it first, with 0 as number and stamp: they are the group's own. A later group
//! repeats it, with the number and the stamp of the first one, before the segment of that leaves the journal. A group whose
//! client waited for the origin's word, and was rejected, is given up by a later group, with its number: it is never
//! applied, and its token is free again.

use crate::cells::{Cell, Reader, push_cell, push_varint};
use destage_core::{Lsn, Time};

/// Of the hash of a command, enough to tell it from any other.
pub const COMMAND_BYTES: usize = 16;

/// What a group tells of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRecord<'a> {
    /// It was carried out.
    Done(Done<'a>),
    /// The origin rejected it while its client waited: the group with this number is given up.
    GivenUp(Lsn),
}

/// A command that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done<'a> {
    /// Its group; zero: this one.
    pub lsn: Lsn,
    /// When that was written; zero: with this group.
    pub stamp: Time,
    /// Its client waits for the origin's word.
    pub through: bool,
    /// What its client calls it.
    pub token: &'a [u8],
    /// A hash of the command.
    pub command: [u8; COMMAND_BYTES],
    /// What it is answered, as RESP3.
    pub reply: &'a [u8],
}

const DONE: u8 = 0;
const THROUGH: u8 = 1;
const GIVEN_UP: u8 = 2;

impl<'a> TokenRecord<'a> {
    pub(crate) fn push(&self, out: &mut Vec<u8>) {
        let done = match self {
            Self::Done(done) => done,
            Self::GivenUp(lsn) => {
                out.push(GIVEN_UP);
                return push_varint(out, lsn.0);
            }
        };
        out.push(if done.through { THROUGH } else { DONE });
        push_varint(out, done.lsn.0);
        push_varint(out, done.stamp.0);
        for bytes in [done.token, &done.command, done.reply] {
            push_cell(out, Cell::Value(bytes));
        }
    }

    pub(crate) fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let kind = reader.byte()?;
        let lsn = Lsn(reader.varint()?);
        match kind {
            DONE | THROUGH => Some(Self::Done(Done {
                lsn,
                stamp: Time(reader.varint()?),
                through: kind == THROUGH,
                token: reader.cell()?.value()?,
                command: reader.cell()?.value()?.try_into().ok()?,
                reply: reader.cell()?.value()?,
            })),
            GIVEN_UP => Some(Self::GivenUp(lsn)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{GroupWriter, Op, builds_on, changes, token_records};
    use crate::schema::TableId;

    fn done(token: &[u8]) -> Done<'_> {
        let (lsn, stamp) = (Lsn(300), Time(1 << 60));
        let command = *b"0123456789abcdef";
        Done { lsn, stamp, through: false, token, command, reply: b":1\r\n" }
    }

    #[test]
    fn what_a_group_tells_reads_back_and_leaves_the_rest_as_it_is() {
        let all = [
            TokenRecord::Done(done(b"a token")),
            TokenRecord::Done(Done {
                through: true,
                lsn: Lsn::ZERO,
                stamp: Time::ZERO,
                ..done(b"")
            }),
            TokenRecord::GivenUp(Lsn(299)),
        ];
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(b"42"));
        let mut writer = GroupWriter::new();
        for on in [&[][..], &[Lsn(3), Lsn(9)]] {
            writer.clear();
            writer.builds_on(on.iter().copied());
            all.iter().for_each(|one| writer.token_record(one));
            writer.begin(TableId(3), Op::Delete, &key);
            let bytes = writer.finish().to_vec();
            assert_eq!(token_records(&bytes).collect::<Vec<_>>(), all);
            assert_eq!(builds_on(&bytes), on);
            assert_eq!(changes(&bytes, |_| Some(1)).map(|c| c.unwrap().table.0).sum::<u16>(), 3);
            let whole = bytes.len() - key.len() - 2;
            for cut in 1..whole {
                let is_read = changes(&bytes[..cut], |_| Some(1)).all(|c| c.is_ok());
                let complete = token_records(&bytes[..cut]).count();
                // A cut between two of them leaves whole ones.
                assert!(!is_read || complete < all.len() || cut == whole, "cut at {cut}");
            }
        }
    }

    #[test]
    fn the_documented_example_is_what_is_written() {
        let mut writer = GroupWriter::new();
        let own = Done { lsn: Lsn::ZERO, stamp: Time::ZERO, ..done(b"t1") };
        writer.token_record(&TokenRecord::Done(own));
        let hex: Vec<String> = writer.finish().iter().map(|b| format!("{b:02x}")).collect();
        let lines: Vec<String> = hex
            .chunks(16)
            .enumerate()
            .map(|(line, bytes)| format!("{:02x}  {}", line * 16, bytes.join(" ")))
            .collect();
        let documented = include_str!("../../../docs/FORMAT.md");
        assert!(documented.contains(&lines.join("\n")), "{}", lines.join("\n"));
        writer.clear();
        writer.token_record(&TokenRecord::GivenUp(Lsn(300)));
        let hex: Vec<String> = writer.finish().iter().map(|b| format!("{b:02x}")).collect();
        assert!(documented.contains(&format!("`{}`", hex.join(" "))), "{}", hex.join(" "));
    }

    #[test]
    fn other_kinds_and_other_lengths_are_refused() {
        let mut writer = GroupWriter::new();
        writer.token_record(&TokenRecord::Done(done(b"t1")));
        let bytes = writer.finish().to_vec();
        let mut other = bytes.clone();
        other[4] = 3;
        for malformed in [&other[..], &bytes[..bytes.len() - 1]] {
            assert_eq!(token_records(malformed).count(), 0);
            assert!(changes(malformed, |_| Some(1)).any(|c| c.is_err()));
        }
    }
}
