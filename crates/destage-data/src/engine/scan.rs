//! SCAN over tables, and the other question that the origin answers in pieces: reserved keys.
//!
//! A cursor is a number for a place in a bounded table of places. A page is read from the origin in key order and merged
//! with the undecided inserts and deletes of the same range, so a scan sees every row that exists throughout.

use super::key::{format_key, names_table, order_key, unknown_table};
use super::session::{Job, Session, Waiting};
use super::{Engine, Io, KeyOrder};
use crate::cells::{Cell, Reader};
use crate::change::Op;
use crate::key_text::decode;
use crate::origins::{Keys, OriginError, Watermarks};
use crate::resp::Reply;
use crate::schema::{Schema, Table, TableId};
use destage_core::{ClientId, Fault, Lsn, Time, UnitId};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Cursors kept at once; the oldest are forgotten first.
const CURSORS_MAX: usize = 10_000;
/// Rows in a page unless COUNT says otherwise, and the most that COUNT may say.
const COUNT_DEFAULT: usize = 10;
const COUNT_MAX: usize = 10_000;
/// Units of all kinds that are looked at for one page of plain cache keys: some 0.1 ms.
const LOOKED_MAX: usize = 10_000;

/// A scan's place and terms.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    table: TableId,
    /// Whether the tables that follow are scanned too.
    all_tables: bool,
    after: Option<Box<[u8]>>,
    pattern: Option<Box<[u8]>>,
    count: usize,
    /// TYPE, in lower case.
    kind: Option<Box<[u8]>>,
}

impl Scan {
    /// Whether keys of this type are asked for.
    fn wants(&self, kind: &str) -> bool {
        self.kind.as_deref().is_none_or(|wanted| wanted == kind.as_bytes())
    }
}

/// Places to go on from.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    places: HashMap<u64, Scan>,
    order: VecDeque<u64>,
    next: u64,
}

impl Cursors {
    fn insert(&mut self, scan: Scan) -> u64 {
        if self.order.len() >= CURSORS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.places.remove(&oldest);
        }
        self.next += 1;
        self.places.insert(self.next, scan);
        self.order.push_back(self.next);
        self.next
    }
}

/// Inserts and deletes that the origin's pages do not show: undecided ones, and those that are parked.
#[derive(Debug, Default)]
pub(crate) struct Structural {
    by_key: KeyOrder,
    by_lsn: BTreeMap<Lsn, Vec<(TableId, Vec<u8>)>>,
    parked: KeyOrder,
    /// Pages under way.
    pins: BTreeMap<u64, Pin>,
    decided: Lsn,
}

/// A page under way.
#[derive(Debug)]
struct Pin {
    /// What was decided when it was asked for: it may show no more than that.
    decided: Lsn,
    /// What was parked until some of it left meanwhile, oldest first: nobody knows on which side of that the page is.
    parked: Vec<Arc<KeyOrder>>,
}

impl Structural {
    /// Notes the inserts and deletes of a group.
    pub(crate) fn note(&mut self, schema: &Schema, lsn: Lsn, bytes: &[u8]) {
        // Groups of updates alone, the common case, are told by the first change's operation.
        for change in super::overlay::changes(schema, bytes) {
            if change.op == Op::Update {
                continue;
            }
            let table = schema.table(change.table);
            let place = (change.table, order_key(table, change.key));
            let entry = (lsn, change.op == Op::Insert, change.key.into());
            self.by_key.insert(place.clone(), entry);
            self.by_lsn.entry(lsn).or_default().push(place);
        }
    }

    /// Notes the inserts and deletes of a group that is parked.
    pub(crate) fn park(&mut self, schema: &Schema, lsn: Lsn, bytes: &[u8]) {
        note_parked(&mut self.parked, schema, lsn, bytes);
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty() && self.parked.is_empty()
    }

    /// The group that inserts a row, if that is among them and the row is not deleted again. `is_open` tells which groups the
    /// origin has not applied.
    pub(super) fn inserted_by(
        &self,
        table: &Table,
        key: &[u8],
        is_open: impl Fn(Lsn) -> bool,
    ) -> Option<Lsn> {
        let place = (table.id, order_key(table, key));
        let undecided = self.by_key.get(&place).filter(|(lsn, ..)| is_open(*lsn));
        let (lsn, is_insert, _) = undecided.or_else(|| self.parked.get(&place))?;
        is_insert.then_some(*lsn)
    }

    /// Some groups are parked no more; these still are.
    pub(super) fn unpark<'g>(
        &mut self,
        schema: &Schema,
        still: impl Iterator<Item = (Lsn, &'g [u8])>,
    ) {
        let mut fewer = KeyOrder::new();
        still.for_each(|(lsn, bytes)| note_parked(&mut fewer, schema, lsn, bytes));
        let before = Arc::new(std::mem::replace(&mut self.parked, fewer));
        self.pins.values_mut().for_each(|pin| pin.parked.push(before.clone()));
    }

    /// A page is asked for.
    fn pin(&mut self, request: u64) {
        self.pins.insert(request, Pin { decided: self.decided, parked: Vec::new() });
    }

    /// What was decided when the page was asked for.
    fn pinned(&self, request: u64) -> Lsn {
        self.pins.get(&request).map_or(Lsn::ZERO, |pin| pin.decided)
    }

    /// The page came, or will not come.
    fn unpin(&mut self, request: u64) {
        self.pins.remove(&request);
        self.forget(self.decided);
    }

    /// Drops what the origin has decided, unless a page under way may need it.
    pub(crate) fn forget(&mut self, decided: Lsn) {
        self.decided = self.decided.max(decided);
        let pinned = self.pins.values().map(|pin| pin.decided).min();
        let upto = pinned.map_or(self.decided, |pin| pin.min(self.decided));
        while let Some(entry) = self.by_lsn.first_entry()
            && *entry.key() <= upto
        {
            for place in entry.remove() {
                if self.by_key.get(&place).is_some_and(|(lsn, ..)| *lsn <= upto) {
                    self.by_key.remove(&place);
                }
            }
        }
    }

    fn inserts(&self, table: TableId, order: Vec<u8>) -> bool {
        self.by_key.get(&(table, order)).is_some_and(|(_, insert, _)| *insert)
    }

    /// Merges a page of keys with what it does not show in its range: what is or was parked, and what comes behind that group
    /// up to which all of a key's domain is `shown`.
    fn merge(
        &self,
        schema: &Schema,
        (request, scan): (u64, &Scan),
        page: Vec<Box<[u8]>>,
        shown: impl Fn(&[u8]) -> Lsn,
    ) -> Vec<Box<[u8]>> {
        let table = schema.table(scan.table);
        let is_last = page.len() < scan.count;
        let upper = page.last().map(|key| order_key(table, key));
        let mut merged: BTreeMap<Vec<u8>, Box<[u8]>> =
            page.into_iter().map(|key| (order_key(table, &key), key)).collect();
        let lower = scan.after.as_ref().map(|key| order_key(table, key));
        let start = (scan.table, lower.clone().unwrap_or_default());
        let within = |((table, order), _): &(&(TableId, Vec<u8>), _)| {
            let beyond = !is_last && upper.as_ref().is_some_and(|upper| order > upper);
            *table == scan.table && !beyond
        };
        let before = self.pins.get(&request).into_iter().flat_map(|pin| &pin.parked);
        let parked = before.map(|parked| &**parked).chain([&self.parked]);
        let parked = parked.flat_map(|parked| parked.range(start.clone()..).take_while(within));
        let later = self.by_key.range(start.clone()..).take_while(within);
        let later = later.filter(|(_, (lsn, _, key))| *lsn > shown(key));
        for ((_, order), (_, insert, key)) in parked.chain(later) {
            if Some(order) == lower.as_ref() {
                continue;
            }
            if *insert {
                merged.insert(order.clone(), key.clone());
            } else {
                merged.remove(order);
            }
        }
        merged.into_values().collect()
    }
}

fn note_parked(parked: &mut KeyOrder, schema: &Schema, lsn: Lsn, bytes: &[u8]) {
    for change in super::overlay::changes(schema, bytes) {
        if change.op != Op::Update {
            let place = (change.table, order_key(schema.table(change.table), change.key));
            let entry = (lsn, change.op == Op::Insert, change.key.into());
            parked.insert(place, entry);
        }
    }
}

impl Engine {
    /// SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]
    pub(super) fn scan_command(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
        match self.read_scan(args) {
            Err(message) => self.fail(session, &message),
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
        let mut names: Vec<Vec<u8>> = Vec::with_capacity(units.len());
        for unit in units {
            let mut cells = Reader::new(self.rows.get(unit).cells);
            let name = cells.next().and_then(Cell::value).unwrap_or_default();
            let kind = if cells.next() == Some(Cell::Null) { "hash" } else { "string" };
            let is_matched = scan.pattern.as_ref().is_none_or(|pattern| glob(pattern, name));
            if is_matched && scan.wants(kind) && !self.expiries.is_due(unit, self.now) {
                names.push(name.to_vec());
            }
        }
        let cursor = next.map_or(0, |unit| {
            self.cursors.insert(Scan { after: Some(unit.0.to_le_bytes().into()), ..scan })
        });
        write_page(&mut Reply::new(&mut session.out, session.protocol), cursor, &names);
    }

    fn read_scan(&self, args: &[&[u8]]) -> Result<Scan, String> {
        let number =
            |bytes: &[u8]| -> Option<u64> { std::str::from_utf8(bytes).ok()?.parse().ok() };
        let cursor = number(args[1]).ok_or("ERR invalid cursor")?;
        let mut scan =
            match cursor {
                0 => Scan {
                    table: TableId(0),
                    all_tables: true,
                    after: None,
                    pattern: None,
                    count: COUNT_DEFAULT,
                    kind: None,
                },
                _ => self.cursors.places.get(&cursor).cloned().ok_or(
                    "ERR this cursor is unknown or was forgotten; start again with SCAN 0",
                )?,
            };
        if !args[2..].len().is_multiple_of(2) {
            return Err(
                "ERR syntax error: SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]".into()
            );
        }
        for option in args[2..].chunks_exact(2) {
            match option[0].to_ascii_lowercase().as_slice() {
                b"match" if cursor == 0 => self.read_pattern(&mut scan, option[1])?,
                // A later call repeats the pattern; the cursor has it.
                b"match" => {}
                b"count" => {
                    let count = number(option[1]).filter(|&count| count > 0);
                    let count = count.ok_or("ERR COUNT is a number from 1")?;
                    scan.count = usize::try_from(count).unwrap_or(COUNT_MAX).min(COUNT_MAX);
                }
                b"type" => scan.kind = Some(option[1].to_ascii_lowercase().into()),
                _ => {
                    return Err(
                        "ERR syntax error: SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]"
                            .into(),
                    );
                }
            }
        }
        Ok(scan)
    }

    /// A pattern that begins with a table's name scans that table alone.
    fn read_pattern(&self, scan: &mut Scan, pattern: &[u8]) -> Result<(), String> {
        let literal =
            pattern.iter().position(|byte| b"*?[\\".contains(byte)).unwrap_or(pattern.len());
        if let Some(colon) = pattern[..literal].iter().position(|&byte| byte == b':') {
            let name = &pattern[..colon];
            let table = self.schema.find(&decode(name)).map(|table| table.id);
            let plain = self.schema.plain.filter(|_| !names_table(&self.schema, pattern));
            let table = table.or(plain);
            scan.table = table.ok_or_else(|| unknown_table(&self.schema, name))?;
            scan.all_tables = false;
        }
        scan.pattern = Some(pattern.into());
        Ok(())
    }

    fn ask_page(&mut self, client: ClientId, session: &mut Session, scan: Scan) {
        let request = self.request_id(client.0);
        self.structural.pin(request.0);
        self.domains.ask(request.0);
        let page = Io::Scan {
            request: request.0,
            table: scan.table,
            after: scan.after.clone(),
            limit: scan.count,
        };
        self.ask_for_page(request.0, scan.table, page);
        session.waiting = Some(Waiting::Job { request, job: Job::Scan(scan) });
    }

    /// A page of keys came, or failed.
    pub fn scanned(
        &mut self,
        now: Time,
        request: u64,
        result: Result<(Keys, Watermarks), OriginError>,
    ) {
        self.now = self.now.max(now);
        let Some((client, Job::Scan(scan))) = self.take_job(request) else {
            self.domains.unask(request);
            return self.structural.unpin(request);
        };
        match result {
            Err(error) => {
                self.domains.unask(request);
                self.job_failed(client, scan.table, &error);
            }
            Ok((page, watermarks)) => {
                let (table, pinned) = (scan.table, self.structural.pinned(request));
                match self.seen_page(request, &watermarks, pinned) {
                    Some(shown) => self.reply_page(client, (request, scan), page, &shown),
                    None => {
                        let error = OriginError::new(Fault::Unavailable, "the origin went back");
                        self.job_failed(client, table, &error);
                    }
                }
            }
        }
        self.structural.unpin(request);
        self.runnable.push_back(client);
        self.run_ready();
    }

    /// `shown` says of each domain up to where the page shows it.
    fn reply_page(
        &mut self,
        client: ClientId,
        (request, scan): (u64, Scan),
        page: Vec<Box<[u8]>>,
        shown: &[Lsn],
    ) {
        let is_last = page.len() < scan.count;
        let last = page.last().cloned();
        let shown = |key: &[u8]| shown[usize::from(self.domain_of(scan.table, key).0)];
        let keys = self.structural.merge(&self.schema, (request, &scan), page, shown);
        let table = self.schema.table(scan.table);
        // What the origin holds and no command takes, such as a zero date, could not be used again.
        let is_usable = |key: &[u8]| {
            let mut cells = table.key().iter().zip(Reader::new(key));
            cells.all(|(column, cell)| {
                cell.value().is_none_or(|value| column.ty.canonical(value).is_ok())
            })
        };
        let names: Vec<Vec<u8>> = keys
            .iter()
            .filter(|key| is_usable(key))
            .map(|key| {
                let mut name = Vec::new();
                format_key(table, Reader::new(key), &mut name);
                name
            })
            .filter(|name| scan.pattern.as_ref().is_none_or(|pattern| glob(pattern, name)))
            .collect();
        let next_table = TableId(scan.table.0 + 1);
        let more = match is_last {
            false => Some(Scan { after: last, ..scan }),
            true if scan.all_tables
                && usize::from(next_table.0) < self.schema.reachable().len() =>
            {
                Some(Scan { table: next_table, after: None, ..scan })
            }
            true => self.schema.plain.filter(|_| scan.all_tables).map(|table| Scan {
                table,
                after: None,
                ..scan
            }),
        };
        let cursor = more.map_or(0, |scan| self.cursors.insert(scan));
        // The page may show any buffered insert or delete.
        let newest = self.core.last();
        let Some(session) = self.session(client) else { return };
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
            let waits = unit.is_some_and(|u| self.through.values().any(|t| t.units.contains(&u)));
            waits || self.structural.inserts(table, order_key(schema_table, &cells))
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

/// Redis's glob patterns: `*`, `?`, `[abc]`, `[^a-z]`, `\x`. Takes time proportional to the lengths' product at worst.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some(_) => match_one(&pattern[p..], text[t]),
            None => None,
        };
        match (step, star) {
            (Some(used), _) => {
                p += used;
                t += 1;
            }
            (None, Some((after, from))) => {
                star = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// Matches one byte; the length of the pattern's element, or `None`.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern[0] {
        b'?' => Some(1),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        b'[' => match_class(pattern, byte),
        literal => (literal == byte).then_some(1),
    }
}

fn match_class(pattern: &[u8], byte: u8) -> Option<usize> {
    let negated = pattern.get(1) == Some(&b'^');
    let mut at = if negated { 2 } else { 1 };
    let mut found = false;
    while let Some(&first) = pattern.get(at) {
        if first == b']' {
            return (found != negated).then_some(at + 1);
        }
        let first = if first == b'\\' && at + 1 < pattern.len() {
            at += 1;
            pattern[at]
        } else {
            first
        };
        if pattern.get(at + 1) == Some(&b'-') && pattern.get(at + 2).is_some_and(|&b| b != b']') {
            let last = pattern[at + 2];
            found |= (first.min(last)..=first.max(last)).contains(&byte);
            at += 3;
        } else {
            found |= first == byte;
            at += 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn globs_match_as_in_redis() {
        let cases: [(&str, &str, bool); 14] = [
            ("*", "", true),
            ("orders:*", "orders:1", true),
            ("orders:*", "order:1", false),
            ("*:1", "orders:1", true),
            ("o*s:?", "orders:1", true),
            ("o*s:?", "orders:12", false),
            ("t:[12]", "t:2", true),
            ("t:[^12]", "t:2", false),
            ("t:[0-9]*", "t:77", true),
            ("t:[9-0]", "t:5", true),
            ("t:\\*", "t:*", true),
            ("t:\\*", "t:1", false),
            ("t:[", "t:[", false),
            ("a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
