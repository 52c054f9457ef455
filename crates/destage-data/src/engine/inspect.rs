//! MEMORY and OBJECT: what is kept of a key here. They look at what is cached, and never ask the origin.

use super::Engine;
use super::key::resolve;
use super::rows::Kind;
use super::session::Session;
use crate::cells::{Cell, Reader};
use crate::mapping::Shape;
use crate::resp::{Code, Reply, ReplyError};
use crate::schema::PLAIN_HASH;
use destage_core::UnitId;

impl Engine {
    /// The cached row that a key is, and how it is shown; none if it is not cached, or does not exist.
    fn cached_row(&self, key: &[u8]) -> Result<Option<(UnitId, Shape)>, ReplyError> {
        let mut cells = Vec::new();
        let (table, shape) = resolve(&self.schema, key, &mut cells)?;
        let unit = self.rows.find(table.id, &cells);
        let is_row = |unit: &UnitId| self.rows.get(*unit).kind == Kind::Row;
        Ok(unit.filter(is_row).map(|unit| (unit, shape)))
    }

    fn is_plain_hash(&self, unit: UnitId) -> bool {
        let cells = self.rows.get(unit).cells;
        matches!(Reader::new(cells).nth(PLAIN_HASH), Some(Cell::Value(_)))
    }

    /// MEMORY USAGE key [SAMPLES n]
    pub(super) fn memory_command(&mut self, session: &mut Session, args: &[&[u8]]) {
        if !args[1].eq_ignore_ascii_case(b"usage") || !matches!(args.len(), 3 | 5) {
            let usage =
                "supported: MEMORY USAGE key; INFO memory and DESTAGE STATUS tell of the whole";
            return self.fail(session, ReplyError::fixed(Code::Err, usage));
        }
        // What is shown may be of a write that is not durable, and so may what is not there.
        session.lsn = session.lsn.max(self.core.last());
        match self.cached_row(args[2]) {
            Ok(cached) => {
                let bytes = cached.map(|(unit, _)| self.rows.bytes(unit));
                let mut reply = Reply::new(&mut session.out, session.protocol);
                match bytes {
                    Some(bytes) => reply.integer(i64::from(bytes)),
                    None => reply.null(),
                }
            }
            Err(error) => self.fail(session, error),
        }
    }

    /// OBJECT ENCODING key | REFCOUNT key
    pub(super) fn object_command(&mut self, session: &mut Session, args: &[&[u8]]) {
        let what = args[1].to_ascii_lowercase();
        if args.len() != 3 || !matches!(&what[..], b"encoding" | b"refcount") {
            let usage = "supported: OBJECT ENCODING key, OBJECT REFCOUNT key; how long ago or how often a row was used is not kept";
            return self.fail(session, ReplyError::fixed(Code::Err, usage));
        }
        session.lsn = session.lsn.max(self.core.last());
        match self.cached_row(args[2]) {
            Ok(cached) => {
                let mut reply = Reply::new(&mut session.out, session.protocol);
                match cached {
                    None => reply.null(),
                    Some(_) if what == b"refcount" => reply.integer(1),
                    Some((unit, shape)) => reply.bulk(match shape {
                        Shape::Hash => b"listpack",
                        Shape::String(_) => b"raw",
                        Shape::Set(_) => b"hashtable",
                        Shape::SortedSet(_) => b"skiplist",
                        Shape::Plain if self.is_plain_hash(unit) => b"listpack",
                        Shape::Plain => b"raw",
                    }),
                }
            }
            Err(error) => self.fail(session, error),
        }
    }
}
