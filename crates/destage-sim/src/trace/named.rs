//! Columns that a header names, or that the user says.

use super::Bad;
use super::columns::{COLUMNS_MAX, Column, Header, Layout, OpCode, SECOND, SECTOR};
use super::fields::commas;
use std::str::FromStr;

/// What the columns of a text separated by commas are, where its header does not say so itself: [`ColumnMap::from_str`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnMap(Vec<(&'static str, String)>);

/// What a column may be, with what it is multiplied by.
const TIMES: [(&str, u64); 4] =
    [("time_ns", 1), ("time_us", 1_000), ("time_ms", 1_000_000), ("time_s", SECOND)];
const OFFSETS: [(&str, u64); 3] =
    [("offset_bytes", 1), ("offset_sectors", SECTOR), ("offset_blocks", 4_096)];
const SIZES: [(&str, u64); 3] =
    [("size_bytes", 1), ("size_sectors", SECTOR), ("size_blocks", 4_096)];
const OPS: [(&str, OpCode); 3] =
    [("op", OpCode::Word), ("is_write", OpCode::WriteIsOne), ("is_read", OpCode::ReadIsOne)];
const DEVICES: [&str; 2] = ["disk", "device"];
const KEY: &str = "key";
const HOST: &str = "host";
const THREAD: &str = "thread";

fn names() -> impl Iterator<Item = &'static str> {
    let scaled = TIMES.iter().chain(&OFFSETS).chain(&SIZES).map(|(name, _)| *name);
    let ops = OPS.iter().map(|(name, _)| *name);
    ops.chain(scaled).chain(DEVICES).chain([KEY, HOST, THREAD])
}

/// What two columns of the same kind are for.
fn kind(name: &str) -> &str {
    let is_op = OPS.iter().any(|(op, _)| *op == name);
    match name.split_once('_') {
        _ if is_op => "op",
        _ if DEVICES.contains(&name) => "device",
        Some((kind, _)) => kind,
        None => name,
    }
}

impl FromStr for ColumnMap {
    type Err = String;

    /// `time_ms=Timestamp,op=Opcode,offset_sectors=3`: the own name of a column, and that of the file's header or its number from 1
    /// on. There is a size, and an offset or a key; without an operation all are reads.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut map = Self::default();
        for part in text.split(',') {
            let (own, theirs) = part
                .split_once('=')
                .ok_or_else(|| format!("'{part}' is not like op=Opcode or op=3"))?;
            let (own, theirs) = (own.trim(), theirs.trim());
            let own = names().find(|name| *name == own).ok_or_else(|| {
                format!("there is no '{own}': use {}", names().collect::<Vec<_>>().join(", "))
            })?;
            if theirs.is_empty() {
                return Err(format!("{own} has no column"));
            }
            if let Some((other, _)) = map.0.iter().find(|(other, _)| kind(other) == kind(own)) {
                return Err(format!("{own} is said twice, or {other} beside it"));
            }
            map.0.push((own, theirs.to_owned()));
        }
        let has = |wanted: &str| map.0.iter().any(|(own, _)| kind(own) == wanted);
        match (has("size"), has("offset"), has(KEY)) {
            (false, ..) => Err("no column is a size: size_bytes=... for example".into()),
            (_, false, false) => {
                Err("no column is an offset or a key: offset_bytes=... for example".into())
            }
            (_, true, true) => Err("a trace is of offsets or of keys, not of both".into()),
            _ if has(KEY) && has("device") => Err("keys are on no device".into()),
            _ => Ok(map),
        }
    }
}

impl ColumnMap {
    /// Whether nothing is said.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where everything is in a file that begins so.
    pub(super) fn layout(&self, head: &[u8]) -> Result<(Layout, Header), Bad> {
        let found = columns(head);
        let mut places = Vec::new();
        let mut header = Header::IfNoSize;
        for (own, theirs) in &self.0 {
            // A name may be any column's content where there is no header: a number is no name.
            let place = match theirs.parse::<usize>() {
                Ok(number) => (1..=COLUMNS_MAX).contains(&number).then(|| number - 1),
                Err(_) => {
                    header = Header::Yes;
                    found.iter().position(|name| *name == theirs.as_bytes())
                }
            };
            let place = place.ok_or_else(|| {
                let found: Vec<_> =
                    found.iter().map(|name| String::from_utf8_lossy(name)).collect();
                Bad::from(format!("it has no column '{theirs}', but {}", found.join(", ")))
            })?;
            places.push((*own, place));
        }
        let find =
            |name: &str| places.iter().find(|(own, _)| *own == name).map(|(_, place)| *place);
        layout(find).map(|layout| (layout, header))
    }
}

/// Where everything is by the header of the own format.
pub(super) fn of_header(head: &[u8]) -> Result<Layout, Bad> {
    let names = columns(head);
    let find = |name: &str| names.iter().position(|found| *found == name.as_bytes());
    if OPS.iter().all(|(name, _)| find(name).is_none()) {
        return Err("its header names no column op".into());
    }
    layout(find)
}

/// The columns of the first line that is no comment; a name may be quoted. Some programs put a mark of the encoding first.
fn columns(head: &[u8]) -> Vec<&[u8]> {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let line = head.split(|&byte| byte == b'\n').find(|line| !is_comment(line));
    commas(line.unwrap_or_default().trim_ascii()).take(COLUMNS_MAX).collect()
}

/// Whether a line is nothing but a comment.
pub(super) fn is_comment(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace) || line.starts_with(b"#")
}

fn layout(find: impl Fn(&str) -> Option<usize>) -> Result<Layout, Bad> {
    let one_of = |choices: &[(&str, u64)]| {
        let column = |&(name, scale): &(&str, u64)| Some(Column { index: find(name)?, scale });
        choices.iter().find_map(column)
    };
    let must = |choices: &[(&str, u64)]| {
        one_of(choices).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            Bad::from(format!("its header names none of the columns {}", names.join(", ")))
        })
    };
    let (offset, device) = match (one_of(&OFFSETS), find(KEY)) {
        (None, Some(key)) => (None, vec![key]),
        _ => (
            Some(must(&OFFSETS)?),
            DEVICES.iter().find_map(|name| find(name)).into_iter().collect(),
        ),
    };
    Ok(Layout {
        by_blanks: false,
        columns_min: 0,
        time: one_of(&TIMES),
        op: OPS.iter().find_map(|&(name, code)| Some((find(name)?, code))),
        device,
        offset,
        size: vec![must(&SIZES)?],
        host: find(HOST),
        thread: find(THREAD),
    })
}
