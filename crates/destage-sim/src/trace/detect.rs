//! Recognising a format by the first bytes of a file.

use super::Format;
use super::binary::{blktrace_is_little, u64_at, vscsi_version};
use super::columns::{cache_command, word};
use super::fields::{blanks, commas, number, scaled};
use super::named::of_header;
use super::text::{fio_version, is_device};

/// The format; `None` if it is none of the known ones, or none that can be told from its content.
pub(super) fn detect(head: &[u8]) -> Option<Format> {
    if head.get(257..262) == Some(b"ustar") {
        return Some(Format::Octf);
    }
    if head.starts_with(b"$$TR_IOREC") {
        return Some(Format::Srt);
    }
    if blktrace_is_little(head).is_some() {
        return Some(Format::Blktrace);
    }
    if is_text(head) {
        return text(head);
    }
    if vscsi_version(head).is_some() {
        return Some(Format::Vscsi);
    }
    is_oracle_general(head).then_some(Format::OracleGeneral)
}

fn is_text(head: &[u8]) -> bool {
    let is_printed = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    !head.is_empty() && head.iter().all(is_printed)
}

/// So many lines are looked at until one tells.
const LINES_MAX: usize = 200;

fn text(head: &[u8]) -> Option<Format> {
    if fio_version(head).is_some() {
        return Some(Format::Fio);
    }
    if of_header(head).is_ok() {
        return Some(Format::Csv);
    }
    let lines = head.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    if lines.clone().next()?.to_ascii_lowercase().starts_with(b"timestamp,response,iotype") {
        return Some(Format::Systor17);
    }
    lines.by_ref().take(LINES_MAX).find_map(|line| {
        if !line.contains(&b',') {
            by_blanks(&blanks(line).collect::<Vec<_>>())
        } else if is_device(blanks(line).next()?) {
            Some(Format::Blkparse)
        } else {
            by_commas(&commas(line).collect::<Vec<_>>())
        }
    })
}

fn by_commas(fields: &[&[u8]]) -> Option<Format> {
    let is_number = |index: usize| number(fields[index]).is_some();
    let is_word = |index: usize| word(fields[index]).is_some();
    match fields.len() {
        // A Windows file time has eighteen digits.
        7 if is_number(0) && fields[0].len() >= 17 && is_word(3) => Some(Format::Msr),
        7 if is_number(0) && cache_command(fields[5]).is_some() => Some(Format::Twitter),
        6 if is_word(2) && scaled(fields[0], 1).is_some() => Some(Format::Systor17),
        5 if is_word(1) && is_number(2) && is_number(4) => Some(Format::Alibaba),
        5.. if is_word(3) && is_number(1) && scaled(fields[4], 1).is_some() => Some(Format::Spc),
        5 if (0..5).all(is_number) && matches!(fields[3], b"0" | b"1") => Some(Format::Tencent),
        _ => None,
    }
}

fn by_blanks(fields: &[&[u8]]) -> Option<Format> {
    let are_numbers = |fields: &[&[u8]]| fields.iter().all(|field| number(field).is_some());
    match fields {
        [time, rest @ .., _flags] if rest.len() == 3 && time.contains(&b'.') => {
            (scaled(time, 1).is_some() && are_numbers(rest)).then_some(Format::Disksim)
        }
        [.., b"0" | b"1"] if fields.len() == 5 && are_numbers(fields) => Some(Format::Mqsim),
        _ if fields.len() == 4 && are_numbers(fields) => Some(Format::Lis),
        _ => None,
    }
}

/// Records of 24 bytes whose times do not fall, whose sizes are those of objects, and whose next accesses lie ahead.
fn is_oracle_general(head: &[u8]) -> bool {
    const BYTES: usize = 24;
    const OBJECT_BYTES_MAX: u64 = 1 << 30;
    let mut time = 0;
    let mut records = head.chunks_exact(BYTES).zip(0i64..).peekable();
    records.peek().is_some()
        && records.all(|(record, index)| {
            let before = std::mem::replace(&mut time, u64_at(record, 0) & 0xffff_ffff);
            let bytes = u64_at(record, 12) & 0xffff_ffff;
            let next = u64_at(record, 16) as i64;
            let is_next = next > index || next < 0;
            time >= before && (1..=OBJECT_BYTES_MAX).contains(&bytes) && is_next
        })
}
