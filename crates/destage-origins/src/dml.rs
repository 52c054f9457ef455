//! Raw SQL in write groups: one statement that writes rows, its parameters, and what it is declared to touch.
//!
//! ```text
//! dml  = sql:cell count:varint { kind:u8 cell } count:varint { table:varint [ row:cell ] }
//! kind = 0 NULL | 1 text | 2 integer | 3 real | 4 bytes
//! row  = the row's key cells as one value, or NULL: any row of the table
//! ```
//!
//! What it does is the origin's alone to know: it is never merged with other changes nor applied to cached rows. Whoever
//! reads what it declares waits until the origin has decided it (`engine/raw_sql.rs` of the front end).

use crate::cells::{Cell, Reader, push_cell, push_varint};
use crate::derived::Statement;
use crate::schema::TableId;

/// A value given to a statement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Parameter<'a> {
    /// SQL NULL.
    Null,
    /// Text; also what the origin reads from text: decimals, dates, UUIDs, JSON.
    Text(&'a str),
    /// A whole number.
    Integer(i64),
    /// A finite number.
    Real(f64),
    /// Bytes.
    Bytes(&'a [u8]),
}

/// A row, by its encoded key cells, or with `None` any row of a table.
pub type Declared<'a> = (TableId, Option<&'a [u8]>);

/// A statement, borrowed from a group's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Dml<'a> {
    bytes: &'a [u8],
    sql: &'a str,
    parameters: &'a [u8],
    parameter_count: usize,
    declared: &'a [u8],
    declared_count: usize,
}

/// The statement's bytes in a group. Parameters are those that [`checked`] has counted.
pub fn encode(sql: &str, parameters: &[Parameter<'_>], declared: &[Declared<'_>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(sql.len() + 16 * (parameters.len() + declared.len()));
    push_cell(&mut out, Cell::Value(sql.as_bytes()));
    push_varint(&mut out, parameters.len() as u64);
    for parameter in parameters {
        push_parameter(&mut out, *parameter);
    }
    push_varint(&mut out, declared.len() as u64);
    for (table, row) in declared {
        push_varint(&mut out, u64::from(table.0));
        push_cell(&mut out, row.map_or(Cell::Null, Cell::Value));
    }
    out
}

fn push_parameter(out: &mut Vec<u8>, parameter: Parameter<'_>) {
    let (kind, text);
    let value = match parameter {
        Parameter::Null => {
            out.push(0);
            return push_cell(out, Cell::Null);
        }
        Parameter::Text(value) => {
            kind = 1;
            value.as_bytes()
        }
        Parameter::Integer(number) => {
            (kind, text) = (2, number.to_string());
            text.as_bytes()
        }
        Parameter::Real(number) => {
            (kind, text) = (3, format!("{number:?}"));
            text.as_bytes()
        }
        Parameter::Bytes(value) => {
            kind = 4;
            value
        }
    };
    out.push(kind);
    push_cell(out, Cell::Value(value));
}

/// The statement's text with its places for parameters, `$1` to the number of parameters.
///
/// # Errors
/// It is not one statement that begins with INSERT, UPDATE, DELETE, REPLACE, MERGE or WITH, its parameters are others, or it
/// names a table of Destage's own.
pub fn checked(sql: &str, parameters: usize) -> Result<Statement, String> {
    let statement = Statement::parse_dml(sql, parameters)?;
    match OWN_TABLES.iter().find(|table| statement.mentions(table)) {
        Some(table) => Err(format!("the SQL names {table}, which is Destage's own")),
        None => Ok(statement),
    }
}

/// Of all kinds of origins.
const OWN_TABLES: [&str; 4] =
    ["destage_owner", "destage_watermark", "destage_parked", "destage_sequence"];

impl<'a> Dml<'a> {
    /// Reads one from the front of what is left.
    pub(crate) fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let start = reader.rest();
        let sql = std::str::from_utf8(reader.cell()?.value()?).ok()?;
        let parameter_count = usize::try_from(reader.varint()?).ok()?;
        let parameters = reader.rest();
        for _ in 0..parameter_count {
            read_parameter(reader)?;
        }
        let declared_count = usize::try_from(reader.varint()?).ok().filter(|&count| count > 0)?;
        let declared = reader.rest();
        for _ in 0..declared_count {
            read_declared(reader)?;
        }
        let bytes = &start[..start.len() - reader.rest().len()];
        Some(Self { bytes, sql, parameters, parameter_count, declared, declared_count })
    }

    /// A statement from its bytes; `None` if they are not one.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let dml = Self::read(&mut reader)?;
        reader.is_empty().then_some(dml)
    }

    /// As it was encoded.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The SQL as it was given.
    pub fn sql(&self) -> &'a str {
        self.sql
    }

    /// The SQL with its places for parameters.
    ///
    /// # Errors
    /// As for [`checked`]: it was checked before it was acknowledged, but may have been edited since.
    pub fn statement(&self) -> Result<Statement, String> {
        checked(self.sql, self.parameter_count)
    }

    /// The parameters' values, by number.
    pub fn parameters(&self) -> impl Iterator<Item = Parameter<'a>> + use<'a> {
        let mut reader = Reader::new(self.parameters);
        (0..self.parameter_count).map_while(move |_| read_parameter(&mut reader))
    }

    /// What it is declared to touch.
    pub fn declared(&self) -> impl Iterator<Item = Declared<'a>> + use<'a> {
        let mut reader = Reader::new(self.declared);
        (0..self.declared_count).map_while(move |_| read_declared(&mut reader))
    }
}

fn read_parameter<'a>(reader: &mut Reader<'a>) -> Option<Parameter<'a>> {
    let kind = reader.byte()?;
    let cell = reader.cell()?;
    let text = || std::str::from_utf8(cell.value()?).ok();
    Some(match kind {
        0 if cell == Cell::Null => Parameter::Null,
        1 => Parameter::Text(text()?),
        2 => Parameter::Integer(text()?.parse().ok()?),
        3 => Parameter::Real(text()?.parse().ok()?),
        4 => Parameter::Bytes(cell.value()?),
        _ => return None,
    })
}

fn read_declared<'a>(reader: &mut Reader<'a>) -> Option<Declared<'a>> {
    let table = TableId(u16::try_from(reader.varint()?).ok()?);
    match reader.cell()? {
        Cell::Null => Some((table, None)),
        Cell::Value(key) => Some((table, Some(key))),
        Cell::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{GroupWriter, Item, items};

    const SQL: &str = "DELETE FROM t WHERE a = $1";

    #[test]
    fn statements_read_back_as_written() {
        let parameters = [
            Parameter::Null,
            Parameter::Text("it's"),
            Parameter::Integer(i64::MIN),
            Parameter::Real(0.1),
            Parameter::Real(1e300),
            Parameter::Bytes(b"\x00\xff"),
        ];
        let declared = [(TableId(300), None), (TableId(0), Some(b"\x03a".as_slice()))];
        let bytes = encode("x", &parameters, &declared);
        let dml = Dml::decode(&bytes).unwrap();
        assert_eq!(dml.sql(), "x");
        assert_eq!(dml.parameters().collect::<Vec<_>>(), parameters);
        assert_eq!(dml.declared().collect::<Vec<_>>(), declared);
        for cut in 0..bytes.len() {
            assert!(Dml::decode(&bytes[..cut]).is_none(), "cut at {cut}");
        }
        assert!(Dml::decode(&encode("x", &[], &[])).is_none(), "it declares nothing");
    }

    /// The example of `docs/FORMAT.md`.
    #[test]
    fn the_bytes_are_those_of_the_documented_format() {
        let documented = include_str!("../../../docs/FORMAT.md");
        let example = documented.split_once("declared to touch the row of table 2").unwrap().1;
        let example = example.split("```").nth(1).unwrap().trim_start_matches("text");
        let lines = example.lines().filter_map(|line| line.split_once("  "));
        let digits = lines.flat_map(|(_, bytes)| bytes.split_whitespace());
        let bytes: Vec<u8> = digits.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let mut writer = GroupWriter::new();
        let row = (TableId(2), Some(b"\x037".as_slice()));
        writer.dml(&encode(SQL, &[Parameter::Integer(7)], &[row]));
        assert_eq!(writer.finish(), bytes);
        let read: Vec<_> = items(&bytes, |_| None).map(Result::unwrap).collect();
        let [Item::Dml(dml)] = &read[..] else { panic!("{read:?}") };
        assert_eq!((dml.sql(), dml.parameters().next()), (SQL, Some(Parameter::Integer(7))));
    }

    #[test]
    fn only_one_statement_that_writes_is_taken() {
        for (sql, parameters) in [
            (SQL, 1),
            ("update t set a = $1 where b = $2 and c = $1;", 2),
            ("INSERT INTO t VALUES ('$9; COMMIT')", 0),
            ("WITH x AS (SELECT 1) DELETE FROM t", 0),
            ("-- why\nREPLACE INTO t VALUES (1)", 0),
        ] {
            assert!(checked(sql, parameters).is_ok(), "{sql}: {:?}", checked(sql, parameters));
        }
        for (sql, parameters, why) in [
            ("SELECT 1", 0, "begins with"),
            ("COMMIT", 0, "begins with"),
            ("DROP TABLE t", 0, "begins with"),
            ("EXPLAIN DELETE FROM t", 0, "begins with"),
            ("", 0, "begins with"),
            ("DELETE FROM t; COMMIT", 0, "one statement"),
            (SQL, 0, "$1"),
            (SQL, 2, "$2"),
            ("DELETE FROM t WHERE a = $name", 0, "$name"),
            ("DELETE FROM t WHERE a = $0", 1, "$0"),
            ("DELETE FROM t WHERE a = 'x", 0, "ends inside"),
            ("DELETE FROM s.\"destage_Parked\"", 0, "destage_parked"),
        ] {
            let refused = checked(sql, parameters).unwrap_err();
            assert!(refused.contains(why), "{sql}: {refused}");
        }
    }
}
