//! The queries of derived keys.

use super::literal::{push_number, push_text};
use super::reader::{MysqlReader, parsed};
use crate::cells::{Cell, Reader};
use crate::contract::OriginError;
use crate::derived::{Answer, Json, Kind, ParameterType, Query, Statement, Uses};
use crate::dml::Parameter;
use crate::schema::Schema;
use destage_core::Fault;
use mysql_async::consts::ColumnType;
use mysql_async::{Column, Value};
use std::time::Duration;

/// One snapshot, in which nothing can be written.
const BEGIN: [&str; 2] = [
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
];

impl MysqlReader {
    /// Has the server resolve the names. It does not tell which tables it read in the end, so those count whose names stand
    /// in the SQL.
    pub(super) fn query_uses(
        &mut self,
        query: &Query,
        schema: &Schema,
    ) -> Result<Uses, OriginError> {
        let nothing = query.statement.render(|out, number| {
            out.push_str(match query.parameters[number].ty {
                ParameterType::Text => "''",
                ParameterType::Integer | ParameterType::Number => "0",
            });
        });
        // A comment at the end of the query ends with its line.
        let sql = format!("SELECT * FROM ({nothing}\n) AS destage_q LIMIT 0");
        self.connection.rows("prepare the SQL", &sql)?;
        Ok(Uses { tables: query.statement.mentioned(schema), is_exact: false })
    }

    /// Has the server prepare raw SQL. It does not tell what that would write.
    pub(super) fn prepare_dml(&mut self, statement: &Statement) -> Result<(), OriginError> {
        let sql = dml_sql(statement, &mut Vec::new());
        let columns = self.connection.prepare("prepare the SQL", &sql)?;
        let begins_with = sql.trim_start().get(..4).unwrap_or_default();
        if columns > 0 && begins_with.eq_ignore_ascii_case("with") {
            return Err(OriginError::new(Fault::Denied, "the SQL writes no row"));
        }
        Ok(())
    }

    /// Runs the query in a transaction that cannot write.
    pub(super) fn run_query(
        &mut self,
        query: &Query,
        values: &[u8],
        limit: Duration,
    ) -> Result<Answer, OriginError> {
        let what = format!("run the query of {}", query.key);
        let sql = sql(query, values)?;
        let watermarks = format!("SELECT destage_w FROM {}", self.watermarks()?);
        let usual = self.connection.timeout();
        let begin = [BEGIN[0], BEGIN[1], &statement_limit(limit.min(usual))];
        self.connection.script(&what, &begin)?;
        let found = self.connection.rows(&what, &watermarks);
        let answer = found.and_then(|found| {
            let json = self.connection.json(&what, &sql)?;
            Ok(Answer { json, watermarks: parsed(&found) })
        });
        let ended = self.connection.script(&what, &["ROLLBACK", &statement_limit(usual)]);
        let answer = answer?;
        ended.map(|_| answer)
    }
}

/// Has the server end statements after that time.
fn statement_limit(limit: Duration) -> String {
    format!("SET max_statement_time = {}", limit.as_secs_f64().max(STATEMENT_SECONDS_MIN))
}

/// A statement with a question mark for each parameter, whose numbers are added in their order.
pub(super) fn dml_sql(statement: &Statement, numbers: &mut Vec<usize>) -> String {
    statement.render(|out, number| {
        out.push('?');
        numbers.push(number);
    })
}

/// A parameter of raw SQL on its way.
pub(super) fn dml_value(parameter: &Parameter<'_>) -> Value {
    match *parameter {
        Parameter::Null => Value::NULL,
        Parameter::Text(text) => Value::Bytes(text.into()),
        Parameter::Integer(number) => Value::Int(number),
        Parameter::Real(number) => Value::Double(number),
        Parameter::Bytes(bytes) => Value::Bytes(bytes.into()),
    }
}

fn sql(query: &Query, values: &[u8]) -> Result<String, OriginError> {
    let cells = Reader::new(values).map(|cell| Cell::value(cell).unwrap_or_default());
    let mut literals = Vec::new();
    for (parameter, value) in query.parameters.iter().zip(cells) {
        let literal = literal(parameter.ty, value).ok_or_else(|| {
            let message = format!("the part {{{}}} of the key is no value", parameter.name);
            OriginError::new(Fault::Rejected, message)
        })?;
        literals.push(literal);
    }
    Ok(query.statement.render(|out, number| out.push_str(&literals[number])))
}

fn literal(ty: ParameterType, value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    let mut out = String::new();
    match ty {
        ParameterType::Text => push_text(&mut out, text),
        // A sign could join what stands before it.
        ParameterType::Integer | ParameterType::Number if text.starts_with('-') => {
            out.push('(');
            push_number(&mut out, text)?;
            out.push(')');
        }
        ParameterType::Integer | ParameterType::Number => push_number(&mut out, text)?,
    }
    Some(out)
}

/// Adds a row of the text protocol.
pub(super) fn push_row(json: &mut Json, columns: &[Column], row: Vec<Value>) {
    for (column, value) in columns.iter().zip(row) {
        let Value::Bytes(value) = value else {
            json.push(Kind::Text, None);
            continue;
        };
        match kind(column) {
            Some(kind) => json.push(kind, Some(&value)),
            None => json.push_bytes(&value),
        }
    }
}

/// The shortest time that the server knows; zero is none.
const STATEMENT_SECONDS_MIN: f64 = 0.001;

/// The character set of what is no text.
const BINARY: u16 = 63;

/// How a column is written; `None` for bytes.
fn kind(column: &Column) -> Option<Kind> {
    use ColumnType as Type;
    match column.column_type() {
        Type::MYSQL_TYPE_TINY
        | Type::MYSQL_TYPE_SHORT
        | Type::MYSQL_TYPE_LONG
        | Type::MYSQL_TYPE_INT24
        | Type::MYSQL_TYPE_LONGLONG
        | Type::MYSQL_TYPE_YEAR
        | Type::MYSQL_TYPE_FLOAT
        | Type::MYSQL_TYPE_DOUBLE
        | Type::MYSQL_TYPE_DECIMAL
        | Type::MYSQL_TYPE_NEWDECIMAL => Some(Kind::Number),
        Type::MYSQL_TYPE_VARCHAR
        | Type::MYSQL_TYPE_VAR_STRING
        | Type::MYSQL_TYPE_STRING
        | Type::MYSQL_TYPE_BIT
        | Type::MYSQL_TYPE_TINY_BLOB
        | Type::MYSQL_TYPE_BLOB
        | Type::MYSQL_TYPE_MEDIUM_BLOB
        | Type::MYSQL_TYPE_LONG_BLOB
            if column.character_set() == BINARY =>
        {
            None
        }
        _ => Some(Kind::Text),
    }
}
