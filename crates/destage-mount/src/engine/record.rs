//! The journal's records: what one request changes is one group of them, and is there as a whole or not at all.
//!
//! ```text
//!   group   = record*                       numbers are little-endian
//!   record  = kind u8, length u32, body     a length covers the body
//!   bytes   = length u32, bytes             a name, a handle, data
//!   moment  = seconds i64, nanos u32
//! ```

use super::lives::{Life, UNKNOWN_END};
use crate::ask::{Ino, Kind, Make, Moment, Name, Stat};
use crate::origin::Key;
use destage_core::Lsn;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A mount begins: which one, in which of its lives, and when by the wall clock.
    Begin { mount: [u8; 16], epoch: u64, wall: Moment },
    /// What a file is called for good. Before the first record of a group that names it.
    File { key: Key, kind: Kind },
    /// Bytes of a file.
    Data { ino: Ino, offset: u64, bytes: Arc<[u8]> },
    /// Zeros of a file.
    Zero { ino: Ino, offset: u64, len: u64 },
    /// A file's size is changed: what is behind it is gone, what is new is zeros.
    Size { ino: Ino, size: u64 },
    /// Everything that `stat` shows, and what the origin held before the first change that it does not hold.
    Meta { stat: Stat, base: Option<Base> },
    /// An extended attribute is set, or removed.
    Xattr { ino: Ino, name: Name, value: Option<Box<[u8]>> },
    /// A name changes.
    Names(NameChange),
    /// These files are about to be written at the origin, and names changed up to this group. Files that are gone again by
    /// then are left out.
    Intent { upto: u64, files: Vec<Ino>, absorbed: Vec<Life> },
    /// It was done; what the files are like at the origin. Files left out of it are named until all that concerns
    /// them is done.
    Ckpt { upto: u64, bases: Vec<(Ino, Base)>, absorbed: Vec<Life> },
    /// More of the same, in front of the next checkpoint with this group: one would not fit into the journal.
    Part { upto: u64, bases: Vec<(Ino, Base)>, absorbed: Vec<Life> },
    /// What was found of files that attempts at batches up to this group may have changed: what these have left, what others have
    /// changed since, and what is of no matter.
    Judged { upto: u64, left: Vec<(Ino, Base)>, others: Vec<Ino>, rest: Vec<Ino> },
    /// What could not be written since others had changed the origin, and where it is kept.
    Conflict { number: u64, ino: Ino, reason: String },
    /// Where several hosts share the origin: what covered a change of a file of this group, by a handle. Its own is that of the
    /// file's own token; none is that of everything; else it is the directory in which it was made.
    Cover { ino: Ino, root: Arc<[u8]> },
    /// The token of a directory that covers others did not cover it then, but that of the directory in which it was made, or what
    /// covered that one.
    Home { dir: Arc<[u8]>, home: Arc<[u8]> },
}

impl Record {
    /// Whether it is about the journal and the origin, and not about what a request changes.
    pub(crate) fn is_own(&self) -> bool {
        matches!(
            self,
            Self::Begin { .. }
                | Self::Intent { .. }
                | Self::Ckpt { .. }
                | Self::Part { .. }
                | Self::Judged { .. }
                | Self::Conflict { .. }
                | Self::Cover { .. }
                | Self::Home { .. }
        )
    }
}

/// What tells whether a file is as it was left at the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) size: u64,
    pub(crate) mtime: Moment,
    pub(crate) ctime: Moment,
}

impl Base {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { size: stat.size, mtime: stat.mtime, ctime: stat.ctime }
    }

    /// Whether a file is still as it was left.
    ///
    /// Where all who write are hosts with tokens (`is_shared`), its mtime may be another one. The server of CephFS guesses it
    /// anew when a client is evicted that had the file open: it takes the time of the last write of bytes. Nothing else
    /// changes then, and the guess lies before the ctime, which every change of content moves.
    pub(crate) fn is_of(self, found: &Stat, is_shared: bool) -> bool {
        let found = Self::of(found);
        let is_guessed = is_shared && found.mtime < found.ctime;
        self == if is_guessed { Self { mtime: self.mtime, ..found } } else { found }
    }
}

/// A change of names, with whose they were before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NameChange {
    /// A file that was made in advance, under this number among those, gets its first name.
    Create { dir: Ino, name: Name, ino: Ino, staged: u64, make: Make },
    /// A further name.
    Link { dir: Ino, name: Name, ino: Ino },
    /// A name goes.
    Unlink { dir: Ino, name: Name, ino: Ino },
    /// An empty directory goes.
    RmDir { dir: Ino, name: Name, ino: Ino },
    /// A name becomes another one, whose file may have been another one before.
    Rename { dir: Ino, name: Name, to_dir: Ino, to_name: Name, ino: Ino, replaced: Option<Ino> },
}

impl NameChange {
    /// Whose name it is.
    pub(crate) fn ino(&self) -> Ino {
        match *self {
            Self::Create { ino, .. }
            | Self::Link { ino, .. }
            | Self::Unlink { ino, .. }
            | Self::RmDir { ino, .. }
            | Self::Rename { ino, .. } => ino,
        }
    }

    /// The directories whose names change.
    pub(crate) fn dirs(&self) -> [Ino; 2] {
        match *self {
            Self::Create { dir, .. }
            | Self::Link { dir, .. }
            | Self::Unlink { dir, .. }
            | Self::RmDir { dir, .. } => [dir, dir],
            Self::Rename { dir, to_dir, .. } => [dir, to_dir],
        }
    }

    /// Whose name is lost to another file.
    pub(crate) fn replaced(&self) -> Option<Ino> {
        match *self {
            Self::Rename { replaced, .. } => replaced,
            _ => None,
        }
    }

    /// What each name is afterwards.
    pub(crate) fn after(&self) -> [Option<(Ino, &Name, Option<Ino>)>; 2] {
        match self {
            Self::Create { dir, name, ino, .. } | Self::Link { dir, name, ino } => {
                [Some((*dir, name, Some(*ino))), None]
            }
            Self::Unlink { dir, name, .. } | Self::RmDir { dir, name, .. } => {
                [Some((*dir, name, None)), None]
            }
            Self::Rename { dir, name, to_dir, to_name, ino, .. } => {
                [Some((*dir, name, None)), Some((*to_dir, to_name, Some(*ino)))]
            }
        }
    }

    /// What each name is before.
    pub(crate) fn before(&self) -> [Option<(Ino, &Name, Option<Ino>)>; 2] {
        match self {
            Self::Create { dir, name, .. } | Self::Link { dir, name, .. } => {
                [Some((*dir, name, None)), None]
            }
            Self::Unlink { dir, name, ino } | Self::RmDir { dir, name, ino } => {
                [Some((*dir, name, Some(*ino))), None]
            }
            Self::Rename { dir, name, to_dir, to_name, ino, replaced } => {
                [Some((*dir, name, Some(*ino))), Some((*to_dir, to_name, *replaced))]
            }
        }
    }
}

/// Why a group cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It is not what this front end writes.
    Broken,
    /// A record that a later version writes.
    Unknown(u8),
}

/// The bytes of a group.
pub(crate) fn encode(records: &[Record], out: &mut Vec<u8>) {
    for record in records {
        let start = out.len();
        out.extend_from_slice(&[kind_of(record), 0, 0, 0, 0]);
        body(record, out);
        let len = (out.len() - start - HEADER_BYTES) as u32;
        out[start + 1..start + HEADER_BYTES].copy_from_slice(&len.to_le_bytes());
    }
}

/// The records of a group that can be taken up: it introduces all that it names, and its ranges are ones that files have.
pub(crate) fn read_group(bytes: &[u8]) -> Result<Vec<Record>, Unreadable> {
    let records = decode(bytes)?;
    let mut known = BTreeSet::new();
    let mut is_sound = true;
    for record in &records {
        is_sound &= match record {
            Record::File { key, .. } => {
                known.insert(key.ino);
                true
            }
            Record::Data { ino, offset, bytes } => {
                known.contains(ino) && is_place(*offset, bytes.len() as u64)
            }
            Record::Zero { ino, offset, len } => known.contains(ino) && is_place(*offset, *len),
            Record::Size { ino, size } => known.contains(ino) && is_place(*size, 0),
            Record::Meta { stat, .. } => known.contains(&stat.ino) && is_place(stat.size, 0),
            Record::Xattr { ino, .. } => known.contains(ino),
            Record::Names(change) => {
                let names = change.before().into_iter().flatten();
                let inos = names.flat_map(|(dir, _, whose)| [Some(dir), whose]).flatten();
                inos.chain([change.ino()]).all(|ino| known.contains(&ino))
            }
            Record::Cover { ino, .. } => known.contains(ino),
            Record::Begin { .. }
            | Record::Intent { .. }
            | Record::Ckpt { .. }
            | Record::Part { .. }
            | Record::Judged { .. }
            | Record::Conflict { .. }
            | Record::Home { .. } => true,
        };
    }
    if is_sound { Ok(records) } else { Err(Unreadable::Broken) }
}

/// Whether a file can have bytes there.
fn is_place(offset: u64, len: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| i64::try_from(end).is_ok())
}

/// The records of a group.
fn decode(mut bytes: &[u8]) -> Result<Vec<Record>, Unreadable> {
    let mut records = Vec::new();
    while let Some((&kind, rest)) = bytes.split_first() {
        let mut rest = Reader(rest);
        let body = rest.bytes().ok_or(Unreadable::Broken)?;
        bytes = rest.0;
        let mut body = Reader(body);
        let record = read(kind, &mut body).ok_or(match kind {
            BEGIN..=HOME => Unreadable::Broken,
            _ => Unreadable::Unknown(kind),
        })?;
        if !body.0.is_empty() {
            return Err(Unreadable::Broken);
        }
        records.push(record);
    }
    Ok(records)
}

const HEADER_BYTES: usize = 5;
const BEGIN: u8 = 1;
const FILE: u8 = 2;
const DATA: u8 = 3;
const ZERO: u8 = 4;
const SIZE: u8 = 5;
const META: u8 = 6;
const XATTR: u8 = 7;
const CREATE: u8 = 8;
const LINK: u8 = 9;
const UNLINK: u8 = 10;
const RMDIR: u8 = 11;
const RENAME: u8 = 12;
const INTENT_OF_NUMBERS: u8 = 13;
const CKPT_OF_NUMBERS: u8 = 14;
const CONFLICT: u8 = 15;
const COVER: u8 = 16;
const INTENT: u8 = 17;
const CKPT: u8 = 18;
const PART: u8 = 19;
const JUDGED: u8 = 20;
const HOME: u8 = 21;

fn kind_of(record: &Record) -> u8 {
    match record {
        Record::Begin { .. } => BEGIN,
        Record::File { .. } => FILE,
        Record::Data { .. } => DATA,
        Record::Zero { .. } => ZERO,
        Record::Size { .. } => SIZE,
        Record::Meta { .. } => META,
        Record::Xattr { .. } => XATTR,
        Record::Names(NameChange::Create { .. }) => CREATE,
        Record::Names(NameChange::Link { .. }) => LINK,
        Record::Names(NameChange::Unlink { .. }) => UNLINK,
        Record::Names(NameChange::RmDir { .. }) => RMDIR,
        Record::Names(NameChange::Rename { .. }) => RENAME,
        Record::Intent { .. } => INTENT,
        Record::Ckpt { .. } => CKPT,
        Record::Part { .. } => PART,
        Record::Judged { .. } => JUDGED,
        Record::Conflict { .. } => CONFLICT,
        Record::Cover { .. } => COVER,
        Record::Home { .. } => HOME,
    }
}

fn body(record: &Record, out: &mut Vec<u8>) {
    match record {
        Record::Begin { mount, epoch, wall } => {
            out.extend_from_slice(mount);
            u64s(out, [*epoch]);
            moment(out, *wall);
        }
        Record::File { key, kind } => {
            u64s(out, [key.ino]);
            u32s(out, [kind.mode_bits()]);
            bytes(out, &key.handle);
        }
        Record::Data { ino, offset, bytes: data } => {
            u64s(out, [*ino, *offset]);
            bytes(out, data);
        }
        Record::Zero { ino, offset, len } => u64s(out, [*ino, *offset, *len]),
        Record::Size { ino, size } => u64s(out, [*ino, *size]),
        Record::Meta { stat, base } => {
            u64s(out, [stat.ino]);
            u32s(out, [stat.kind.mode_bits() | stat.mode, stat.nlink, stat.uid, stat.gid]);
            u64s(out, [stat.rdev, stat.size, stat.blocks]);
            [stat.atime, stat.mtime, stat.ctime].into_iter().for_each(|time| moment(out, time));
            if let Some(base) = base {
                write_base(out, *base);
            }
        }
        Record::Xattr { ino, name, value } => {
            u64s(out, [*ino]);
            bytes(out, name);
            if let Some(value) = value {
                bytes(out, value);
            }
        }
        Record::Names(change) => names(change, out),
        Record::Intent { upto, files, absorbed } => {
            u64s(out, [*upto]);
            inos(out, files);
            lives(out, absorbed);
        }
        Record::Ckpt { upto, bases, absorbed } | Record::Part { upto, bases, absorbed } => {
            u64s(out, [*upto]);
            write_bases(out, bases);
            lives(out, absorbed);
        }
        Record::Judged { upto, left, others, rest } => {
            u64s(out, [*upto]);
            write_bases(out, left);
            inos(out, others);
            inos(out, rest);
        }
        Record::Conflict { number, ino, reason } => {
            u64s(out, [*number, *ino]);
            bytes(out, reason.as_bytes());
        }
        Record::Home { dir, home } => [dir, home].into_iter().for_each(|handle| bytes(out, handle)),
        Record::Cover { ino, root } => {
            u64s(out, [*ino]);
            bytes(out, root);
        }
    }
}

fn names(change: &NameChange, out: &mut Vec<u8>) {
    match change {
        NameChange::Create { dir, name, ino, staged, make } => {
            u64s(out, [*dir]);
            bytes(out, name);
            u64s(out, [*ino, *staged]);
            let (device, target) = match make {
                Make::Link(target) => (0, &target[..]),
                Make::Special(_, device) => (*device, &[][..]),
                Make::File | Make::Dir => (0, &[][..]),
            };
            u32s(out, [make.kind().mode_bits()]);
            u64s(out, [device]);
            bytes(out, target);
        }
        NameChange::Link { dir, name, ino }
        | NameChange::Unlink { dir, name, ino }
        | NameChange::RmDir { dir, name, ino } => {
            u64s(out, [*dir]);
            bytes(out, name);
            u64s(out, [*ino]);
        }
        NameChange::Rename { dir, name, to_dir, to_name, ino, replaced } => {
            u64s(out, [*dir]);
            bytes(out, name);
            u64s(out, [*to_dir]);
            bytes(out, to_name);
            u64s(out, [*ino, replaced.unwrap_or(0)]);
        }
    }
}

fn read(kind: u8, body: &mut Reader<'_>) -> Option<Record> {
    Some(match kind {
        BEGIN => Record::Begin {
            mount: body.take(16)?.try_into().ok()?,
            epoch: body.u64()?,
            wall: body.moment()?,
        },
        FILE => {
            let (ino, kind) = (body.u64()?, Kind::of_mode(body.u32()?)?);
            Record::File { key: Key { ino, handle: body.bytes()?.into() }, kind }
        }
        DATA => Record::Data { ino: body.u64()?, offset: body.u64()?, bytes: body.bytes()?.into() },
        ZERO => Record::Zero { ino: body.u64()?, offset: body.u64()?, len: body.u64()? },
        SIZE => Record::Size { ino: body.u64()?, size: body.u64()? },
        META => {
            let ino = body.u64()?;
            let mode = body.u32()?;
            let stat = Stat {
                ino,
                kind: Kind::of_mode(mode)?,
                mode: mode & 0o7777,
                nlink: body.u32()?,
                uid: body.u32()?,
                gid: body.u32()?,
                rdev: body.u64()?,
                size: body.u64()?,
                blocks: body.u64()?,
                atime: body.moment()?,
                mtime: body.moment()?,
                ctime: body.moment()?,
            };
            let base = if body.0.is_empty() { None } else { Some(body.base()?) };
            Record::Meta { stat, base }
        }
        XATTR => {
            let (ino, name) = (body.u64()?, body.bytes()?.into());
            let value = if body.0.is_empty() { None } else { Some(body.bytes()?.into()) };
            Record::Xattr { ino, name, value }
        }
        CREATE => {
            let (dir, name) = (body.u64()?, body.bytes()?.into());
            let (ino, staged) = (body.u64()?, body.u64()?);
            let (kind, device) = (Kind::of_mode(body.u32()?)?, body.u64()?);
            let target = body.bytes()?;
            let make = match kind {
                Kind::File => Make::File,
                Kind::Dir => Make::Dir,
                Kind::Link => Make::Link(target.into()),
                kind => Make::Special(kind, device),
            };
            Record::Names(NameChange::Create { dir, name, ino, staged, make })
        }
        LINK | UNLINK | RMDIR => {
            let (dir, name, ino) = (body.u64()?, body.bytes()?.into(), body.u64()?);
            Record::Names(match kind {
                LINK => NameChange::Link { dir, name, ino },
                UNLINK => NameChange::Unlink { dir, name, ino },
                _ => NameChange::RmDir { dir, name, ino },
            })
        }
        RENAME => {
            let (dir, name) = (body.u64()?, body.bytes()?.into());
            let (to_dir, to_name) = (body.u64()?, body.bytes()?.into());
            let (ino, replaced) = (body.u64()?, Some(body.u64()?).filter(|&ino| ino != 0));
            Record::Names(NameChange::Rename { dir, name, to_dir, to_name, ino, replaced })
        }
        INTENT | INTENT_OF_NUMBERS => {
            let (upto, files) = (body.u64()?, body.inos()?);
            Record::Intent { upto, files, absorbed: body.absorbed(kind == INTENT)? }
        }
        CKPT | CKPT_OF_NUMBERS | PART => {
            let (upto, bases) = (body.u64()?, body.bases()?);
            let absorbed = body.absorbed(kind != CKPT_OF_NUMBERS)?;
            match kind {
                PART => Record::Part { upto, bases, absorbed },
                _ => Record::Ckpt { upto, bases, absorbed },
            }
        }
        JUDGED => Record::Judged {
            upto: body.u64()?,
            left: body.bases()?,
            others: body.inos()?,
            rest: body.inos()?,
        },
        CONFLICT => Record::Conflict {
            number: body.u64()?,
            ino: body.u64()?,
            reason: String::from_utf8(body.bytes()?.to_vec()).ok()?,
        },
        COVER => Record::Cover { ino: body.u64()?, root: body.bytes()?.into() },
        HOME => Record::Home { dir: body.bytes()?.into(), home: body.bytes()?.into() },
        _ => return None,
    })
}

fn u64s<const N: usize>(out: &mut Vec<u8>, values: [u64; N]) {
    values.into_iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
}

fn u32s<const N: usize>(out: &mut Vec<u8>, values: [u32; N]) {
    values.into_iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    u32s(out, [bytes.len() as u32]);
    out.extend_from_slice(bytes);
}

fn moment(out: &mut Vec<u8>, moment: Moment) {
    u64s(out, [moment.seconds.cast_unsigned()]);
    u32s(out, [moment.nanos]);
}

fn write_base(out: &mut Vec<u8>, base: Base) {
    u64s(out, [base.size]);
    moment(out, base.mtime);
    moment(out, base.ctime);
}

fn write_bases(out: &mut Vec<u8>, bases: &[(Ino, Base)]) {
    u32s(out, [bases.len() as u32]);
    for (ino, base) in bases {
        u64s(out, [*ino]);
        write_base(out, *base);
    }
}

fn inos(out: &mut Vec<u8>, inos: &[Ino]) {
    u32s(out, [inos.len() as u32]);
    inos.iter().for_each(|&ino| u64s(out, [ino]));
}

fn lives(out: &mut Vec<u8>, lives: &[Life]) {
    u32s(out, [lives.len() as u32]);
    lives.iter().for_each(|life| u64s(out, [life.ino, life.from.0, life.to.0]));
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    fn moment(&mut self) -> Option<Moment> {
        Some(Moment { seconds: self.u64()?.cast_signed(), nanos: self.u32()? })
    }

    fn base(&mut self) -> Option<Base> {
        Some(Base { size: self.u64()?, mtime: self.moment()?, ctime: self.moment()? })
    }

    fn bases(&mut self) -> Option<Vec<(Ino, Base)>> {
        let count = self.u32()?;
        (0..count).map(|_| Some((self.u64()?, self.base()?))).collect()
    }

    fn inos(&mut self) -> Option<Vec<Ino>> {
        let count = self.u32()?;
        (0..count).map(|_| self.u64()).collect()
    }

    /// Earlier versions wrote down numbers instead of lives.
    fn absorbed(&mut self, is_of_lives: bool) -> Option<Vec<Life>> {
        if !is_of_lives {
            let life = |ino| Life { ino, from: Lsn::ZERO, to: UNKNOWN_END };
            return Some(self.inos()?.into_iter().map(life).collect());
        }
        let count = self.u32()?;
        let mut life =
            || Some(Life { ino: self.u64()?, from: Lsn(self.u64()?), to: Lsn(self.u64()?) });
        (0..count).map(|_| life()).collect()
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
