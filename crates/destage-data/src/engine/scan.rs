//! SCAN over tables, and the other question that the origin answers in pieces: reserved keys.
//!
//! A page is read from the origin in key order and merged
//! with the undecided inserts and deletes of the same range, so a scan sees every row that exists throughout.

use super::cursors::Scan;
use super::glob::{glob, pattern_of};
use super::key::{format_key, order_key, unknown_table};
use super::rights::limited;
use super::session::{Job, Session, Waiting};
use super::{Engine, Io};
use crate::cells::{Cell, Reader};
use crate::key_text::decode;
use crate::resp::{Code, Reply, ReplyError};
use crate::schema::TableId;
use crate::users::Reach;
use destage_core::{ClientId, Lsn, UnitId};

/// Rows in a page unless COUNT says otherwise, and the most that COUNT may say.
const COUNT_DEFAULT: usize = 10;
const COUNT_MAX: usize = 10_000;
/// Units of all kinds that are looked at for one page of plain cache keys: some 0.1 ms.
const LOOKED_MAX: usize = 10_000;

impl Scan {
    /// What the origin is asked for its next page.
    pub(super) fn question(&self, request: u64) -> Io {
        Io::Scan { request, table: self.table, after: self.after.clone(), limit: self.count }
    }
}

impl Engine {
    /// SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]
    pub(super) fn scan_command(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
        match self.read_scan(args) {
            Err(message) => self.fail(session, message),
            Ok(scan) if self.schema.plain == Some(scan.table) => {
                self.reply_plain_page(session, scan);
            }
            Ok(scan) if scan.wants("hash") && !self.schema.reachable().is_empty() => {
                self.ask_page(client, session, scan);
            }
            // There are no such rows.
            Ok(scan) => match self.schema.plain.filter(|_| scan.all_tables) {
                Some(table) => self.reply_plain_page(session, Scan { table, after: None, ..scan }),
                None => write_page(&mut Reply::new(&mut session.out, session.protocol), 0, &[]),
            },
        }
    }

    /// Replies with plain cache keys.
    fn reply_plain_page(&mut self, session: &mut Session, scan: Scan) {
        let first = scan.after.as_deref().and_then(|after| after.try_into().ok());
        let first = UnitId(first.map_or(0, u32::from_le_bytes));
        let (units, next) = self.rows.present_from(scan.table, first, scan.count, LOOKED_MAX);
        let user = limited(session);
        let is_reached = |name: &[u8]| user.as_ref().is_none_or(|u| u.reaches(Reach::Read, name));
        let mut names: Vec<Vec<u8>> = Vec::with_capacity(units.len());
        for unit in units {
            let mut cells = Reader::new(self.rows.get(unit).cells);
            let name = cells.next().and_then(Cell::value).unwrap_or_default();
            let kind = if cells.next() == Some(Cell::Null) { "hash" } else { "string" };
            let is_matched = |pattern: &[u8]| glob(pattern, name);
            let is_shown = is_reached(name) && scan.pattern.as_deref().is_none_or(is_matched);
            if is_shown && scan.wants(kind) && !self.freshness.expiries().is_due(unit, self.now) {
                names.push(name.to_vec());
            }
        }
        let cursor = next.map_or(0, |unit| {
            self.sessions.keep_place(Scan { after: Some(unit.0.to_le_bytes().into()), ..scan })
        });
        write_page(&mut Reply::new(&mut session.out, session.protocol), cursor, &names);
    }

    fn read_scan(&self, args: &[&[u8]]) -> Result<Scan, ReplyError> {
        let number =
            |bytes: &[u8]| -> Option<u64> { std::str::from_utf8(bytes).ok()?.parse().ok() };
        let cursor = number(args[1]).ok_or(ReplyError::fixed(Code::Err, "invalid cursor"))?;
        let mut scan = match cursor {
            0 => Scan {
                table: TableId(0),
                all_tables: true,
                after: None,
                pattern: None,
                count: COUNT_DEFAULT,
                kind: None,
            },
            _ => self.sessions.place_of(cursor).cloned().ok_or(ReplyError::fixed(
                Code::Err,
                "this cursor is unknown or was forgotten; start again with SCAN 0",
            ))?,
        };
        if !args[2..].len().is_multiple_of(2) {
            return Err(ReplyError::fixed(
                Code::Err,
                "syntax error: SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]",
            ));
        }
        for option in args[2..].chunks_exact(2) {
            match option[0].to_ascii_lowercase().as_slice() {
                b"match" if cursor == 0 => self.read_pattern(&mut scan, option[1])?,
                // A later call repeats the pattern; the cursor has it.
                b"match" => {}
                b"count" => {
                    let count = number(option[1]).filter(|&count| count > 0);
                    let count =
                        count.ok_or(ReplyError::fixed(Code::Err, "COUNT is a number from 1"))?;
                    scan.count = usize::try_from(count).unwrap_or(COUNT_MAX).min(COUNT_MAX);
                }
                b"type" => scan.kind = Some(option[1].to_ascii_lowercase().into()),
                _ => {
                    return Err(ReplyError::fixed(
                        Code::Err,
                        "syntax error: SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]",
                    ));
                }
            }
        }
        Ok(scan)
    }

    /// A pattern that begins with a table's name scans that table alone.
    fn read_pattern(&self, scan: &mut Scan, pattern: &[u8]) -> Result<(), ReplyError> {
        let literal =
            pattern.iter().position(|byte| b"*?[\\".contains(byte)).unwrap_or(pattern.len());
        if let Some(colon) = pattern[..literal].iter().position(|&byte| byte == b':') {
            let name = &pattern[..colon];
            let table = self.schema.find(&decode(name)).map(|table| table.id);
            let table = table.or_else(|| self.schema.plain_below(&pattern[..literal]));
            scan.table = table.ok_or_else(|| unknown_table(&self.schema, name))?;
            scan.all_tables = false;
        }
        scan.pattern = Some(pattern_of(pattern)?.into());
        Ok(())
    }

    fn ask_page(&mut self, client: ClientId, session: &mut Session, scan: Scan) {
        let request = self.asking.request_id(client.0);
        self.undecided.structural_mut().pin(request.0);
        self.domains.ask(request.0);
        let page = scan.question(request.0);
        self.ask_for_page(request.0, scan.table, page);
        session.waiting = Some(Waiting::Job { request, job: Job::Scan(scan) });
    }

    /// `shown` says of each domain up to where the page shows it.
    pub(super) fn reply_page(
        &mut self,
        client: ClientId,
        (request, scan): (u64, Scan),
        page: Vec<Box<[u8]>>,
        shown: &[Lsn],
    ) {
        let is_last = page.len() < scan.count;
        let last = page.last().cloned();
        let shown = |key: &[u8]| shown[usize::from(self.domain_of(scan.table, key).0)];
        let keys = self.undecided.structural().merge(&self.schema, (request, &scan), page, shown);
        let table = self.schema.table(scan.table);
        // What the origin holds and no command takes, such as a zero date, could not be used again.
        let is_usable = |key: &[u8]| {
            let mut cells = table.key().iter().zip(Reader::new(key));
            cells.all(|(column, cell)| {
                cell.value().is_none_or(|value| column.ty.canonical(value).is_ok())
            })
        };
        let user = self.limited(client);
        let is_reached = |name: &[u8]| user.as_ref().is_none_or(|u| u.reaches(Reach::Read, name));
        let names: Vec<Vec<u8>> = keys
            .iter()
            .filter(|key| is_usable(key) && !self.is_known_to_have_ended(table, key))
            .map(|key| {
                let mut name = Vec::new();
                format_key(table, Reader::new(key), &mut name);
                name
            })
            .filter(|name| is_reached(name))
            .filter(|name| scan.pattern.as_ref().is_none_or(|pattern| glob(pattern, name)))
            .collect();
        let next_table = TableId(scan.table.0 + 1);
        let more = if !is_last {
            Some(Scan { after: last, ..scan })
        } else if !scan.all_tables {
            None
        } else if usize::from(next_table.0) < self.schema.reachable().len() {
            Some(Scan { table: next_table, after: None, ..scan })
        } else {
            self.schema.plain.map(|table| Scan { table, after: None, ..scan })
        };
        let cursor = more.map_or(0, |scan| self.sessions.keep_place(scan));
        // The page may show any buffered insert or delete.
        let newest = self.core.last();
        let Some(session) = self.sessions.get_mut(client) else { return };
        session.lsn = session.lsn.max(newest);
        write_page(&mut Reply::new(&mut session.out, session.protocol), cursor, &names);
    }

    /// Reserved keys, unless a buffered row has one of them.
    pub(super) fn beyond_buffered(&self, table: TableId, keys: Vec<i64>) -> Option<Vec<i64>> {
        let schema_table = self.schema.table(table);
        let is_taken = |key: &i64| {
            let mut cells = Vec::new();
            crate::cells::push_cell(&mut cells, Cell::Value(key.to_string().as_bytes()));
            // Also keys of rows whose inserts wait for the origin's word.
            let unit = self.rows.find(table, &cells);
            let waits = unit.is_some_and(|unit| self.undecided.changes_through(unit));
            waits || self.undecided.structural().inserts(table, order_key(schema_table, &cells))
        };
        (!keys.iter().any(is_taken)).then_some(keys)
    }
}

fn write_page(reply: &mut Reply<'_>, cursor: u64, names: &[Vec<u8>]) {
    reply.array(2);
    reply.bulk(cursor.to_string().as_bytes());
    reply.array(names.len());
    names.iter().for_each(|name| reply.bulk(name));
}
