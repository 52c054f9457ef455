//! The commands that apply steps.

use super::guard::{self, Ours};
use super::steps::{Effect, Field, Step, Value};
use super::types::{amount_to_bson, to_bson};
use crate::cells::Reader;
use crate::contract::OriginError;
use crate::schema::Table;
use destage_core::Fault;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use std::time::Duration;

/// Which command a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Insert,
    Update,
    Delete,
}

impl Verb {
    pub(super) fn of(effect: &Effect<'_>) -> Option<Self> {
        match effect {
            Effect::Insert(_) | Effect::Merge { is_there: false, .. } => Some(Self::Insert),
            Effect::Merge { is_there: true, .. } | Effect::Update(_) | Effect::Replace(_) => {
                Some(Self::Update)
            }
            Effect::Delete => Some(Self::Delete),
            Effect::Nothing => None,
        }
    }

    /// The command that runs these statements in order, and stops at the first that fails. It is durable when it is
    /// answered.
    pub(super) fn command(
        self,
        collection: &str,
        statements: Vec<Document>,
        timeout: Duration,
    ) -> Document {
        let (verb, list) = match self {
            Self::Insert => ("insert", "documents"),
            Self::Update => ("update", "updates"),
            Self::Delete => ("delete", "deletes"),
        };
        let mut command = doc! { verb: collection, list: statements, "ordered": true };
        command.extend(durable(timeout));
        command
    }
}

/// What makes a write durable, and keeps the server from doing it after we have given up.
pub(super) fn durable(timeout: Duration) -> Document {
    let millis = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
    doc! { "writeConcern": { "w": "majority", "j": true }, "maxTimeMS": millis }
}

/// How many bytes a statement takes as BSON.
///
/// # Errors
/// [`Fault::Rejected`] if no document may be as large, or it cannot be written as BSON.
pub(super) fn bytes_of(table: &Table, statement: &Document) -> Result<usize, OriginError> {
    let name = &table.name;
    let written = RawDocumentBuf::try_from(statement).map_err(|error| {
        let message = format!("a document of {name} cannot be written as BSON");
        OriginError::new(Fault::Rejected, message).with_values(error.to_string())
    })?;
    let bytes = written.as_bytes().len();
    if bytes <= DOCUMENT_BYTES_MAX {
        return Ok(bytes);
    }
    let message = format!(
        "a document of {name}, or a change of it, takes {bytes} bytes as BSON; MongoDB takes {DOCUMENT_BYTES_MAX}"
    );
    Err(OriginError::new(Fault::Rejected, message))
}

/// MongoDB's own limit.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;

/// A document's `_id`.
pub(super) fn id(table: &Table, key: &[u8]) -> Result<Bson, OriginError> {
    let value = Reader::new(key).cell().and_then(|cell| cell.value());
    let Some(value) = value else {
        let message = format!("a key of {} has no value", table.name);
        return Err(OriginError::new(Fault::Failed, message));
    };
    to_bson(&table.columns[0], value)
}

/// The statements of as many of the first steps as one command holds, of which there is one at least.
///
/// # Errors
/// As for [`bytes_of`], of the first one; a later one is the first of the next command, or refused as that.
pub(super) fn statements(
    table: &Table,
    steps: &[Step<'_>],
    ours: Ours,
) -> Result<Vec<Document>, OriginError> {
    let mut statements = Vec::with_capacity(steps.len());
    let mut bytes = 0;
    for step in steps {
        let statement = statement(table, step, ours)?;
        match bytes_of(table, &statement) {
            Ok(more) if statements.is_empty() || bytes + more <= BYTES_MAX => bytes += more,
            Err(error) if statements.is_empty() => return Err(error),
            _ => break,
        }
        statements.push(statement);
    }
    Ok(statements)
}

/// A command is one document, of 16 MiB at most; one statement may exceed this.
pub(super) const BYTES_MAX: usize = 8 << 20;

/// The statement of a step; its verb decides which command takes it.
fn statement(table: &Table, step: &Step<'_>, ours: Ours) -> Result<Document, OriginError> {
    let id = id(table, step.key)?;
    let filter = ours.filter(&id, step.first);
    guarded(table, &id, &step.effect, filter, ours.written(step.last))
}

/// The statement of an effect on the document that `filter` finds, or that is made, and which has this guard then.
pub(super) fn guarded(
    table: &Table,
    id: &Bson,
    effect: &Effect<'_>,
    filter: Document,
    guard: Document,
) -> Result<Document, OriginError> {
    Ok(match effect {
        Effect::Insert(fields) | Effect::Merge { fields, is_there: false } => {
            integer(table, id, fields, guard)?
        }
        Effect::Update(fields) | Effect::Merge { fields, is_there: true } => {
            doc! { "q": filter, "u": update(table, fields, guard)? }
        }
        Effect::Replace(fields) => doc! { "q": filter, "u": integer(table, id, fields, guard)? },
        Effect::Delete | Effect::Nothing => doc! { "q": filter, "limit": 1 },
    })
}

/// A whole document.
fn integer(
    table: &Table,
    id: &Bson,
    fields: &[Field<'_>],
    guard: Document,
) -> Result<Document, OriginError> {
    let mut document = doc! { "_id": id.clone() };
    for Field { column, value } in fields {
        let column = &table.columns[*column];
        // What is not there has nothing to add to: the amount is the value.
        if let Value::To(bytes) | Value::By(bytes) = value {
            place(&mut document, &column.name, to_bson(column, bytes)?);
        }
    }
    document.insert(guard::FIELD, guard);
    Ok(document)
}

/// Puts a value where its path leads, making the documents on the way.
fn place(document: &mut Document, path: &str, value: Bson) {
    let Some((outer, rest)) = path.split_once('.') else {
        document.insert(path, value);
        return;
    };
    let inner = document.entry(outer.to_owned()).or_insert_with(|| Bson::Document(Document::new()));
    // Declared paths never lead through another field.
    if let Bson::Document(inner) = inner {
        place(inner, rest, value);
    }
}

fn update(table: &Table, fields: &[Field<'_>], guard: Document) -> Result<Document, OriginError> {
    let (mut set, mut unset, mut inc) = (Document::new(), Document::new(), Document::new());
    for Field { column, value } in fields {
        let column = &table.columns[*column];
        let name = column.name.as_str();
        match value {
            Value::Null => drop(unset.insert(name, "")),
            Value::To(bytes) => drop(set.insert(name, to_bson(column, bytes)?)),
            Value::By(amount) => drop(inc.insert(name, amount_to_bson(column, amount)?)),
        }
    }
    set.insert(guard::FIELD, guard);
    let parts = [("$set", set), ("$unset", unset), ("$inc", inc)];
    Ok(parts
        .into_iter()
        .filter(|(_, part)| !part.is_empty())
        .map(|(operator, part)| (operator.to_owned(), Bson::Document(part)))
        .collect())
}

/// The value that a path leads to.
pub(super) fn at_path<'d>(document: &'d Document, path: &str) -> Option<&'d Bson> {
    match path.split_once('.') {
        None => document.get(path),
        Some((outer, rest)) => at_path(document.get_document(outer).ok()?, rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::{Cell, push_cell};
    use crate::origins::mongo::types::Kind;
    use crate::schema::{Column, TableId};
    use destage_core::Lsn;

    #[test]
    fn a_command_has_as_many_statements_as_it_holds_as_bson() {
        let column = |name: &str, kind: Kind| Column {
            type_name: kind.name().to_owned(),
            ..Column::named(name, kind.column_type())
        };
        let mut table = Table::named("t".into(), "t".into());
        table.columns = vec![column("_id", Kind::Long), column("list", Kind::Array)];
        table.key_len = 1;
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(b"1"));
        // As a text each element has two bytes, as BSON 12 or 13.
        let step = |elements: usize| Step {
            table: TableId(0),
            key: &key,
            effect: Effect::Update(vec![Field {
                column: 1,
                value: Value::To(format!("[{}0]", "0,".repeat(elements)).into_bytes().into()),
            }]),
            groups: 0..1,
            first: Lsn(1),
            last: Lsn(1),
        };
        let count = |steps: &[Step<'_>]| {
            let sent = statements(&table, steps, Ours::default());
            sent.map(|statements| statements.len()).map_err(|error| error.fault)
        };
        assert_eq!(count(&[step(1), step(1_000), step(1)]), Ok(3));
        assert_eq!(count(&[step(600_000), step(600_000), step(1)]), Ok(1));
        assert_eq!(count(&[step(1_000), step(1_500_000)]), Ok(1));
        assert_eq!(count(&[step(1_500_000), step(1_000)]), Err(Fault::Rejected));
    }

    #[test]
    fn paths_lead_into_nested_documents() {
        let mut document = doc! {};
        place(&mut document, "a", Bson::Int32(1));
        place(&mut document, "b.c.d", Bson::Int32(2));
        place(&mut document, "b.e", Bson::Int32(3));
        assert_eq!(document, doc! { "a": 1, "b": { "c": { "d": 2 }, "e": 3 } });
        assert_eq!(at_path(&document, "b.c.d"), Some(&Bson::Int32(2)));
        assert_eq!(at_path(&document, "b.x"), None);
        assert_eq!(at_path(&document, "a.x"), None);
    }
}
